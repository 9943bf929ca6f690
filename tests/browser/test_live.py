"""The live documents: the badge, what happens when the connection drops, falls silent, or its node dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from browser.chromium import Tab
from browser.conftest import FakeCluster

Clusters = Callable[..., FakeCluster]


def test_the_badge_says_live_stale_and_reconnecting(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    tab.visit(f"{cluster.url}/")
    tab.until_text("#badge", "live from n1")
    cluster.nodes[0].order(silent=True)
    tab.until_text("#badge", "stale")
    cluster.nodes[0].order(silent=False)
    tab.until_text("#badge", "live from n1")
    cluster.nodes[0].kill()
    tab.until_text("#badge", "reconnecting")
    assert tab.texts("#summary .headline")[0].endswith("its replicas."), "the last state stays to be seen"


def test_a_page_goes_on_by_itself_when_the_connection_drops(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    tab.visit(f"{cluster.url}/queues?filter=queue-1")
    tab.until_text("#total", "11 queues")
    tab.evaluate(
        "() => { window.states = []; window.same = true;"
        " new MutationObserver(() => window.states.push(document.body.dataset.live))"
        ".observe(document.body, {attributes: true, attributeFilter: ['data-live']}); }"
    )
    cluster.nodes[0].order(drop=True)
    tab.until("() => window.states.includes('reconnecting') && document.body.dataset.live === 'live'")
    cluster.nodes[0].order(scene="empty")
    tab.until_text("#verdict", "there is no queue yet")
    tab.until_text("#list .nothing:not([hidden])", "No queue has “queue-1” in its name")
    assert tab.evaluate("() => window.same")


def test_a_page_goes_on_with_a_peer_when_its_node_dies(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good", serving=2)
    tab.visit(f"{cluster.url}/queues?filter=queue-1")
    cluster.nodes[0].kill()
    tab.until("(url) => location.href === url", f"{cluster.nodes[1].url}/queues?filter=queue-1")
    tab.until_text("#badge", "live from n2")
    tab.until_text("#toasts", "Node n1 stopped answering: this page goes on here.")
    tab.until_text("#total", "11 queues")


def test_an_open_dialog_is_not_lost_when_the_node_dies(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good", serving=2)
    tab.visit(f"{cluster.url}/shards")
    tab.click("#grid button")
    tab.fill("dialog input[aria-required]", "half a reason")
    cluster.nodes[0].kill()
    tab.until_text("#toasts", "the page goes on with a peer when this dialog is closed")
    assert tab.inputValue("dialog input[aria-required]") == "half a reason"
    tab.keyboard.press("Escape")
    tab.until("(url) => location.href.startsWith(url)", cluster.nodes[1].url)


def test_the_stop_of_the_node_that_serves_the_page_is_followed_to_its_report(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good", serving=2)
    tab.visit(f"{cluster.url}/node?name=n1&stop=1")
    tab.until_text("dialog h2", "Stop n1 gracefully")
    tab.fill("dialog input >> nth=0", "new kernel")
    tab.fill("dialog input[type=number]", "0")
    tab.fill("dialog input[aria-required] >> nth=1", "n1")
    tab.click("dialog button[type=submit]")
    tab.until_text("#stop", "stopping:")
    tab.until("(url) => location.href === url", f"{cluster.nodes[1].url}/node?name=n1")
    tab.until_text("#stop-report", "Messages given up unconfirmed0")
    tab.until_text("#stop", "stopped: the node is gone")


MERGES: list[tuple[Any, Any, Any]] = [  # of RFC 7386, appendix A
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
def test_patches_are_merged_as_the_standard_says(tab: Tab, scenes: Clusters, target: Any, patch: Any, result: Any) -> None:
    tab.goto(f"{scenes('good').url}/login")
    assert tab.evaluate("([a, b]) => import('/static/merge.js').then(({merge}) => merge(a, b))", [target, patch]) == result
