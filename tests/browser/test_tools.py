"""Domains, storage files, a stop that is aborted, traffic to look at: what pages show of them, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bmqtwist.testing.process import BrokerProcess, free_port
from browser.chromium import Tab
from browser.conftest import FakeCluster

Clusters = Callable[..., FakeCluster]


def test_a_domain_is_reconfigured_behind_what_would_change(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    tab.visit(f"{cluster.url}/domains")
    tab.until_text("#list tbody tr", "not used yet")
    tab.click("text=bmq.test >> nth=0")
    tab.until("() => location.search === '?name=bmq.test'")
    tab.until_text("#one-state", "1 value of the files is not in force")
    assert tab.texts("#one-differences tbody tr") == ["messageTtln2360060"]
    tab.click("text=Reconfigure")
    tab.until_text("dialog", "messageTtl")
    tab.fill("dialog input[aria-required]", "messages live too long")
    tab.click("dialog button[type=submit]")
    tab.until_text("#one-result", "n3■refusedthe file cannot be read")
    tab.until_text("#one-state", "What is in force is what the files say.")
    tab.until_text("#toasts", "bmq.test is not reconfigured at all nodes.")
    assert tab.problems() == []


def test_files_records_and_copies_are_looked_at(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/storage")
    tab.until_text("#files tbody tr", "61 % of 95.4 MiB")
    tab.until_text("#records caption", "14,690 records in the journal of partition 0 at n1")
    tab.until_text("#journal tbody th", "3 – 120")
    tab.click("text=Older records")
    tab.until_text("#journal tbody th", "3 – 70")
    tab.selectOption("#journal-filters select", "CONFIRM")
    tab.click("text=Find")
    tab.until("() => [...document.querySelectorAll('#journal tbody tr')]"
              ".every((one) => one.textContent.includes('CONFIRM'))")
    tab.fill("#journal-filters input", "nothing")
    tab.click("text=Find")
    assert tab.texts("#journal-filters .wrong:not([hidden])") == ["A GUID has 32 digits 0-9 and A-F."]
    tab.click("text=Compare the copies")
    tab.until_text("#compare", "All 3 copies say the same, as far as all of them go: 9,000 records compared.")
    tab.selectOption("#choice select >> nth=0", "n2")
    tab.until("() => location.search.includes('node=n2')")
    tab.until_text("#records caption", "at n2")
    assert tab.problems() == []


def test_copies_that_do_not_say_the_same_are_bad_news(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('bad').url}/storage")
    tab.click("text=Compare the copies")
    tab.until_text("#compare", "1 block of records do not say the same.")
    tab.until_text("#compare", "lease 3, sequence numbers 4,000 to 4,999")
    tab.until_text("#compare", "Not compared: n3: no answer in time")


def test_a_stop_is_aborted_before_it_begins(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    tab.visit(f"{cluster.url}/node?name=n2")
    tab.click("#actions button")
    tab.fill("dialog input >> nth=0", "the wrong node")
    tab.fill("dialog input[type=number]", "600")
    tab.fill("dialog input[aria-required] >> nth=1", "n2")
    tab.click("dialog button[type=submit]")
    tab.until_text("#stop", "stops soon: scheduled, can be aborted")
    tab.until_text("#facts", "stops soon")
    tab.click("text=Abort the stop")
    tab.until_text("#toasts", "The stop of n2 is aborted.")
    tab.until("() => document.querySelector('#stop').hidden")
    tab.until_text("#facts", "up")


@pytest.mark.process
def test_traffic_to_look_at_is_started_and_stopped_at_a_real_broker(tab: Tab, tmp_path: Path) -> None:
    port = free_port()
    domains = ["bmq.test.mem.priority", "bmq.test.mem.fanout"]
    with BrokerProcess(tmp_path, app={"bmqtwist": {"http": {"port": port, "demoDomains": domains}}}):
        tab.visit(f"http://127.0.0.1:{port}/")
        tab.click("text=Start demonstration traffic")
        tab.until_text("#demo", "Demonstration traffic runs on 4 queues, started by local")
        tab.until("() => /, [1-9][0-9]* confirmed, 0 refused/.test(document.querySelector('#demo').textContent)")
        tab.until_text("#top tbody th", "bmq://bmq.test.mem.fanout/demo-orders")
        tab.until("() => parseFloat(document.querySelector('[data-tile=put] .value').textContent) > 1")
        tab.click("text=Stop demonstration traffic")
        tab.until_text("#toasts", "Demonstration traffic has ended.")
        tab.until("() => parseFloat(document.querySelector('[data-tile=put] .value').textContent) === 0")
        tab.visit(f"http://127.0.0.1:{port}/audit")
        tab.until_text("#list tbody tr", "start_demo")
        assert tab.problems() == []
