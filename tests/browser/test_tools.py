"""Pages of domains and storage, an aborted stop, and demonstration traffic.

Other pages are tested in `test_pages.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bmqtwist.testing.process import BrokerProcess, free_port
from browser.chromium import Tab
from browser.conftest import FakeCluster

Clusters = Callable[..., FakeCluster]


def test_a_domain_is_reconfigured_after_a_preview_of_the_changes(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    tab.visit(f"{cluster.url}/domains")
    tab.until_text("#list tbody tr", "unused")
    tab.click("text=bmq.test >> nth=0")
    tab.until("() => location.search === '?name=bmq.test'")
    tab.until_text("#domain-state", "1 setting of the files is not active")
    assert tab.texts("#domain-differences tbody tr") == ["messageTtln2360060"]
    tab.click("text=Reconfigure")
    tab.until_text("dialog", "messageTtl")
    tab.fill("dialog input[aria-required]", "the time to live is too long")
    tab.click("dialog button[type=submit]")
    tab.until_text("#domain-result", "n3■refusedthe file cannot be read")
    tab.until_text("#domain-state", "The active configuration equals the files.")
    tab.until_text("#toasts", "bmq.test was not reconfigured at all nodes.")
    assert tab.problems() == []


def test_the_storage_page_shows_files_records_and_equal_copies(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/storage")
    tab.until_text("#files tbody tr", "61 % of 95.4 MiB")
    tab.until_text("#records caption", "14,690 records in the journal of partition 0 at n1")
    tab.until_text("#journal tbody th", "3 – 120")
    tab.click("#journal .buttons button")
    tab.until_text("#journal tbody th", "3 – 70")
    tab.selectOption("#journal-filters select", "CONFIRM")
    tab.click("text=Search")
    tab.until("() => [...document.querySelectorAll('#journal tbody tr')]"
              ".every((one) => one.textContent.includes('CONFIRM'))")
    tab.fill("#journal-filters input", "nothing")
    tab.click("text=Search")
    assert tab.texts("#journal-filters .field-error:not([hidden])") == ["A GUID has 32 digits 0-9 and A-F."]
    tab.click("text=Compare copies")
    tab.until_text("#compare", "All 3 copies are equal: 9,000 records compared.")
    tab.selectOption("#selection select >> nth=0", "n2")
    tab.until("() => location.search.includes('node=n2')")
    tab.until_text("#records caption", "at n2")
    assert tab.problems() == []


def test_the_comparison_of_copies_lists_differing_blocks_and_unreachable_nodes(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('bad').url}/storage")
    tab.click("text=Compare copies")
    tab.until_text("#compare", "1 block of records differs.")
    tab.until_text("#compare", "lease 3, sequence numbers 4,000 to 4,999")
    tab.until_text("#compare", "Not compared: n3: no answer in time")


def test_a_stop_is_aborted_during_its_delay(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    tab.visit(f"{cluster.url}/node?name=n2")
    tab.click("#actions button")
    tab.fill("dialog input >> nth=0", "the wrong node")
    tab.fill("dialog input[type=number]", "600")
    tab.fill("dialog input[aria-required] >> nth=1", "n2")
    tab.click("dialog button[type=submit]")
    tab.until_text("#stop", "stop scheduled, can be aborted")
    tab.until_text("#facts", "stop scheduled")
    tab.click("text=Abort the stop")
    tab.until_text("#toasts", "Stop of n2 aborted.")
    tab.until("() => document.querySelector('#stop').hidden")
    tab.until_text("#facts", "up")


@pytest.mark.process
def test_demonstration_traffic_is_started_and_stopped_at_a_real_broker(tab: Tab, tmp_path: Path) -> None:
    port = free_port()
    domains = ["bmq.test.mem.priority", "bmq.test.mem.fanout"]
    with BrokerProcess(tmp_path, app={"bmqtwist": {"http": {"port": port, "localRole": "admin", "demoDomains": domains}}}):
        tab.visit(f"http://127.0.0.1:{port}/")
        tab.click("text=Start demonstration traffic")
        tab.until_text("#demo", "Demonstration traffic runs on 4 queues, started by local")
        tab.until("() => /, [1-9][0-9]* confirmed, 0 refused/.test(document.querySelector('#demo').textContent)")
        tab.until_text("#top tbody th", "bmq://bmq.test.mem.fanout/demo-orders")
        tab.until("() => parseFloat(document.querySelector('[data-tile=put] .value').textContent) > 1")
        tab.click("text=Stop demonstration traffic")
        tab.until_text("#toasts", "Demonstration traffic stopped.")
        tab.until("() => parseFloat(document.querySelector('[data-tile=put] .value').textContent) === 0")
        tab.visit(f"http://127.0.0.1:{port}/audit")
        tab.until_text("#list tbody tr", "start_demo")
        assert tab.problems() == []
