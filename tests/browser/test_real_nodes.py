"""Pages of real nodes: values equal those of the SDK, a graceful stop under load loses no message, a page reconnects to
another node, and browsing messages consumes none.

Scripted documents are tested in `test_pages.py`, rates under traffic in `test_numbers.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from bmqtwist.sdk.simple import Session
from bmqtwist.testing import ClusterProcess
from browser.chromium import Tab

QUEUE = "bmq://d/orders"
STORED = 120


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    """Three nodes with a domain."""
    made = ClusterProcess(tmp_path)
    for name in made.names:
        made[name].domain("d", consistency="strong")
    with made:
        yield made


class Load(threading.Thread):
    """Producer that posts one message at a time and counts its ACKs. `started`: set after the first ACK."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__(daemon=True)
        self._urls, self._end = urls, threading.Event()
        self.acknowledged, self.failed = 0, list[str]()
        self.started = threading.Event()

    def run(self) -> None:
        """From Thread."""
        with Session(self._urls) as session, session.open(QUEUE, write=True) as queue:
            while not self._end.is_set():
                ack = queue.post(b"load %d" % self.acknowledged, {"price": 12})
                if ack.ok:
                    self.acknowledged += 1
                else:
                    self.failed.append(str(ack.status))
                self.started.set()

    def finish(self) -> None:
        """Stop posting and wait for the last ACK."""
        self._end.set()
        self.join(60)


@pytest.mark.timeout(300)
def test_every_node_shows_the_stored_messages_and_browsing_consumes_none(tab: Tab, cluster: ClusterProcess) -> None:
    with Session(cluster.urls) as session, session.open(QUEUE, write=True) as queue:
        for number in range(STORED):
            assert queue.post(b'{"order": %d}' % number, {"price": number}).ok
        for name in cluster.names:  # each node shows the whole cluster
            tab.visit(f"{cluster.consoles[name]}/queue?uri={quote(QUEUE, safe='')}")
            tab.until_text("[data-tile=messages] .value", str(STORED))
            tab.until_text("#messages [role=status]", f"50 messages of {STORED}")
        tab.click("#messages tbody button")
        tab.until_text("dialog pre", '{"order": 0}')
        tab.keyboard.press("Escape")
        tab.visit(f"{cluster.consoles['n1']}/")
        tab.until("() => document.querySelector('#summary').dataset.level === 'good'")
        tab.until_text("[data-tile=messages] .value", str(STORED))
        assert tab.texts("[data-tile=leader] .value") == [cluster.leader]
        assert tab.texts("#nodes tbody th") == cluster.names
        with session.open("bmq://d/other", read=True):
            pass
        assert tab.problems() == []
    with Session(cluster.urls) as session, session.open(QUEUE, read=True) as queue:
        for number in range(STORED):
            message = queue.get(20)
            assert message is not None and message.payload == b'{"order": %d}' % number
            message.confirm()


@pytest.mark.timeout(300)
def test_a_graceful_stop_under_load_fails_no_ack(tab: Tab, cluster: ClusterProcess) -> None:
    load = Load(cluster.urls)
    load.start()
    assert load.started.wait(60)
    stopped = cluster.leader
    serving = next(name for name in cluster.names if name != stopped)
    tab.visit(f"{cluster.consoles[serving]}/node?name={stopped}")
    tab.click("#actions button")
    tab.until_text("dialog", "Quorum is kept")
    tab.fill("dialog input >> nth=0", "new kernel")
    tab.fill("dialog input[type=number]", "0")
    tab.fill("dialog input[aria-required] >> nth=1", stopped)
    tab.click("dialog button[type=submit]")
    tab.until_text("#stop-report", "Partitions moved")
    assert cluster[stopped].wait() == 0
    before = load.acknowledged
    tab.until_text("#facts", "down")
    load.finish()
    assert load.failed == [] and load.acknowledged > before
    tab.visit(f"{cluster.consoles[serving]}/queue?uri={quote(QUEUE, safe='')}")
    tab.until("(wanted) => document.querySelector('[data-tile=messages] .value').textContent.replaceAll(',', '') === wanted",
              str(load.acknowledged))


@pytest.mark.timeout(300)
def test_a_page_switches_to_another_node_when_its_node_is_killed(tab: Tab, cluster: ClusterProcess) -> None:
    tab.visit(f"{cluster.consoles['n2']}/nodes")
    tab.until("() => document.querySelectorAll('#list tbody .state[data-level=good]').length === 3")
    cluster["n2"].kill()
    peers = [cluster.consoles[name] for name in ("n1", "n3")]
    tab.until("(urls) => urls.some((url) => location.href === `${url}/nodes`)", peers)
    tab.until_text("#toasts", "Node n2 does not respond. This page is now served by n")
    tab.until_text("#list tbody .state", "down")
    tab.until("() => document.body.dataset.live === 'live'")


@pytest.mark.timeout(300)
def test_a_proxy_page_purges_a_queue_and_node_pages_show_the_clients_of_the_proxy(tab: Tab, tmp_path: Path) -> None:
    uri = "bmq://bmq.test.persistent.priority.sc/q"
    with ClusterProcess(tmp_path, proxies=1) as cluster:
        with Session([cluster["p1"].url]) as session, session.open(uri, write=True) as queue:
            for number in range(STORED):
                assert queue.post(b"%d" % number).ok
            tab.visit(f"{cluster.consoles['n1']}/topology")
            tab.until_text("#links tbody tr", "p1")
            assert tab.texts("#links tbody td:nth-child(3) a") == cluster.names  # connected to all nodes
            assert tab.texts(".graph g.proxy > text:first-of-type") == ["proxy p1"]
            tab.visit(f"{cluster.consoles['n1']}/clients")
            tab.until_text("#list tbody td", "proxy p1")
            tab.visit(f"{cluster.consoles['p1']}/queue?uri={quote(uri, safe='')}")
            tab.until_text("[data-tile=messages] .value", str(STORED))
            tab.until_text("#producers tbody td", "proxy p1")
        tab.click("#tools button.danger")
        tab.fill("dialog input >> nth=1", "made for a test")
        tab.fill("dialog input >> nth=2", uri)
        tab.click("dialog button[type=submit]")
        tab.until_text("#toasts", f"{STORED} messages (")
        tab.until("() => document.querySelector('[data-tile=messages] .value').textContent === '0'")
        for name in ("p1", cluster.leader):
            tab.visit(f"{cluster.consoles[name]}/audit")
            tab.until_text("#list tbody tr", "made for a test")
        assert tab.problems() == []
