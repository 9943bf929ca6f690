"""Live documents: connection badge; behaviour when the connection drops, becomes silent, or the node is killed.

The tested module is `web/live.js`; the server side is tested in `unit/console/test_console_live.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from browser.chromium import Tab
from browser.conftest import FakeCluster

Clusters = Callable[..., FakeCluster]


def test_the_badge_shows_live_stale_and_reconnecting(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    tab.visit(f"{cluster.url}/")
    tab.until_text("#badge", "live from n1")
    cluster.nodes[0].control(silent=True)
    tab.until_text("#badge", "stale")
    cluster.nodes[0].control(silent=False)
    tab.until_text("#badge", "live from n1")
    cluster.nodes[0].kill()
    tab.until_text("#badge", "reconnecting")
    assert tab.texts("#summary .headline")[0].endswith("its replicas."), "the last state stays visible"


def test_a_page_reconnects_when_the_connection_drops(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    tab.visit(f"{cluster.url}/queues?filter=queue-1")
    tab.until_text("#total", "11 queues")
    tab.evaluate(
        "() => { window.states = []; window.same = true;"
        " new MutationObserver(() => window.states.push(document.body.dataset.live))"
        ".observe(document.body, {attributes: true, attributeFilter: ['data-live']}); }"
    )
    cluster.nodes[0].control(drop=True)
    tab.until("() => window.states.includes('reconnecting') && document.body.dataset.live === 'live'")
    cluster.nodes[0].control(scene="empty")
    tab.until_text("#health", "there is no queue yet")
    tab.until_text("#list .empty-state:not([hidden])", "No queues match “queue-1”")
    assert tab.evaluate("() => window.same")


def test_a_page_switches_to_another_node_when_its_node_is_killed(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good", serving=2)
    tab.visit(f"{cluster.url}/queues?filter=queue-1")
    cluster.nodes[0].kill()
    tab.until("(url) => location.href === url", f"{cluster.nodes[1].url}/queues?filter=queue-1")
    tab.until_text("#badge", "live from n2")
    tab.until_text("#toasts", "Node n1 does not respond. This page is now served by n2.")
    tab.until_text("#total", "11 queues")


def test_a_page_leaves_a_hung_node(tab: Tab, clusters: Clusters) -> None:
    """It accepts connections, so that only its silence shows the fault."""
    cluster = clusters("good", serving=2)
    tab.visit(f"{cluster.url}/queues")
    cluster.nodes[0].pause()
    tab.until("(url) => location.href === url", f"{cluster.nodes[1].url}/queues")
    tab.until_text("#badge", "live from n2")


def test_an_open_dialog_delays_the_switch_to_another_node(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good", serving=2)
    tab.visit(f"{cluster.url}/partitions")
    tab.click("#grid button")
    tab.fill("dialog input[aria-required]", "half a reason")
    cluster.nodes[0].kill()
    tab.until_text("#toasts", "The page switches to another node when you close this dialog.")
    assert tab.inputValue("dialog input[aria-required]") == "half a reason"
    tab.keyboard.press("Escape")
    tab.until("(url) => location.href.startsWith(url)", cluster.nodes[1].url)


def test_a_page_shows_the_stop_of_its_own_node_until_the_report(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good", serving=2)
    tab.visit(f"{cluster.url}/node?name=n1&stop=1")
    tab.until_text("dialog h2", "Stop n1 gracefully")
    tab.fill("dialog input >> nth=0", "new kernel")
    tab.fill("dialog input[type=number]", "0")
    tab.fill("dialog input[aria-required] >> nth=1", "n1")
    tab.click("dialog button[type=submit]")
    tab.until_text("#stop", "stopping:")
    tab.until("(url) => location.href === url", f"{cluster.nodes[1].url}/node?name=n1")
    tab.until_text("#stop-report", "Messages left unconfirmed0")
    tab.until_text("#stop", "stopped: the process has ended")


MERGES: list[tuple[Any, Any, Any]] = [  # examples of RFC 7386, appendix A
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize("target, patch, result", MERGES)
def test_patches_are_merged_as_in_the_examples_of_rfc_7386(
        tab: Tab, scenes: Clusters, target: Any, patch: Any, result: Any) -> None:
    tab.goto(f"{scenes('good').url}/login")
    assert tab.evaluate("([a, b]) => import('/static/merge.js').then(({merge}) => merge(a, b))", [target, patch]) == result
