"""TopicSubscription hub: a snapshot, then numbered patches; slow subscribers receive fewer patches, none twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit.merge_patch import apply_patch

from bmqtwist.console import hub as hub_module
from bmqtwist.console.access import Refusal
from bmqtwist.console.hub import RESUMABLE_MAX, RESUME_S, SUBSCRIBERS_MAX, SUBSCRIPTIONS_MAX, TOPICS_MAX, Hub
from bmqtwist.console.topics import ClusterTopic, QueuesTopic, QueueTopic


class FakeBrowser:
    """Subscriber: its received messages and the resulting documents."""

    def __init__(self, hub: Hub, viewer: str = "ada") -> None:
        self.viewer = viewer
        self.is_busy, self.sent, self.documents, self.hub = False, list[dict[str, Any]](), dict[int, Any](), hub
        hub.add(self)

    def send(self, text: str) -> None:
        message = json.loads(text)
        self.sent.append(message)
        if "snapshot" in message:
            self.documents[message["id"]] = message["snapshot"]
        if "patch" in message:
            self.documents[message["id"]] = apply_patch(self.documents[message["id"]], message["patch"])

    def send_json(self, now: float = 0.0, **message: Any) -> None:
        self.hub.on_message(self, message, now)


@pytest.fixture
def hub() -> Hub:
    streams = iter(range(10_000))
    return Hub(lambda: f"s{next(streams)}", lambda: None)


def test_a_subscriber_receives_a_snapshot_then_numbered_patches(hub: Hub) -> None:
    browser = FakeBrowser(hub)
    browser.send_json(id=7, subscribe="cluster")
    assert hub.topics() == [ClusterTopic()]
    hub.publish(ClusterTopic(), {"at": 1, "nodes": {"n1": {"up": True}}})
    hub.publish(ClusterTopic(), {"at": 2, "nodes": {"n1": {"up": True}}})
    hub.publish(ClusterTopic(), {"at": 2, "nodes": {"n1": {"up": True}}})
    hub.publish(ClusterTopic(), {"at": 2, "nodes": {}})
    assert browser.sent == [
        {"id": 7, "seq": 1, "stream": "s0", "snapshot": {"at": 1, "nodes": {"n1": {"up": True}}}},
        {"id": 7, "seq": 2, "patch": {"at": 2}}, {"id": 7, "seq": 3, "patch": {"nodes": {"n1": None}}}]


def test_a_slow_subscriber_receives_one_patch_to_the_newest_document(hub: Hub) -> None:
    slow, fast = FakeBrowser(hub), FakeBrowser(hub)
    for browser in (slow, fast):
        browser.send_json(id=1, subscribe="cluster")
    hub.publish(ClusterTopic(), {"n": 0, "a": 0})
    slow.is_busy = True
    for number in range(1, 6):
        hub.publish(ClusterTopic(), {"n": number, "a": number if number < 3 else None})
    slow.is_busy = False
    hub.publish(ClusterTopic(), {"n": 6})
    assert [message["seq"] for message in slow.sent] == [1, 2] and len(fast.sent) == 7
    assert slow.documents == fast.documents == {1: {"n": 6}}


def test_a_patch_is_computed_once_for_all_subscribers_with_the_same_version(hub: Hub,
                                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = hub_module.merge_patch
    monkeypatch.setattr(hub_module, "merge_patch", lambda old, new: made.append(1) or real(old, new))
    browsers = [FakeBrowser(hub) for _ in range(20)]
    for browser in browsers:
        browser.send_json(id=1, subscribe="cluster")
    for number in range(4):
        browsers[0].is_busy = number == 2
        hub.publish(ClusterTopic(), {"n": number})
    assert len(made) == 4  # 1, 2, and 3 from 1 and from 2
    assert all(browser.documents == {1: {"n": 3}} for browser in browsers)


def test_a_reconnecting_subscriber_resumes_at_its_last_patch(hub: Hub) -> None:
    before = FakeBrowser(hub)
    before.send_json(id=1, subscribe="cluster")
    hub.publish(ClusterTopic(), {"n": 0, "big": "x"})
    hub.publish(ClusterTopic(), {"n": 1, "big": "x"})
    hub.remove(before, 100.0)
    after = FakeBrowser(hub)
    after.documents = {4: before.documents[1]}
    after.send_json(110.0, id=4, subscribe="cluster", resume={"seq": 2, "stream": "s0"})
    hub.publish(ClusterTopic(), {"n": 5, "big": "x"})
    assert after.sent == [{"id": 4, "seq": 3, "patch": {"n": 5}}] and after.documents[4] == {"n": 5, "big": "x"}


@pytest.mark.parametrize("resume, now", [
    ({"seq": 1, "stream": "s0"}, 1.0), ({"seq": 2, "stream": "other"}, 1.0), ({"seq": 2, "stream": "s0"}, RESUME_S + 1.0),
    ({"seq": 2, "stream": 5}, 1.0), ("nonsense", 1.0)])
def test_a_subscriber_that_cannot_resume_receives_a_snapshot(hub: Hub, resume: Any, now: float) -> None:
    """It missed a patch, names another stream, or reconnects too late."""
    before = FakeBrowser(hub)
    before.send_json(id=1, subscribe="cluster")
    hub.publish(ClusterTopic(), {"n": 0})
    hub.publish(ClusterTopic(), {"n": 1})
    hub.remove(before, 0.0)
    after = FakeBrowser(hub)
    after.send_json(now, id=1, subscribe="cluster", resume=resume)
    hub.publish(ClusterTopic(), {"n": 2})
    assert after.sent[0]["seq"] == 1 and after.sent[0]["snapshot"] == {"n": 2}


def test_a_subscription_does_not_resume_another_topic(hub: Hub) -> None:
    before = FakeBrowser(hub)
    before.send_json(id=1, subscribe="queue", uri="bmq://d/q")
    hub.publish(QueueTopic("bmq://d/q"), {"secret": 1})
    hub.remove(before, 0.0)
    after = FakeBrowser(hub)
    after.send_json(1.0, id=1, subscribe="cluster", resume={"seq": 1, "stream": "s0"})
    hub.publish(ClusterTopic(), {"n": 2})
    assert "snapshot" in after.sent[0]


def test_the_number_of_resumable_subscriptions_is_limited(hub: Hub) -> None:
    for _ in range(RESUMABLE_MAX + 50):
        browser = FakeBrowser(hub)
        browser.send_json(id=1, subscribe="cluster")
        hub.publish(ClusterTopic(), {"n": 0})
        hub.remove(browser, 0.0)
    assert len(hub._resumable) == RESUMABLE_MAX
    last = FakeBrowser(hub)
    last.send_json(id=1, subscribe="cluster")
    hub.publish(ClusterTopic(), {"n": 0})
    hub.remove(last, RESUME_S * 2)
    assert len(hub._resumable) == 1


@pytest.mark.parametrize("message, field", [
    ({"subscribe": "cluster"}, "id"), ({"id": "1", "subscribe": "cluster"}, "id"),
    ({"id": True, "subscribe": "cluster"}, "id"),
    ({"id": -1, "subscribe": "cluster"}, "id"), ({"id": 1, "subscribe": "nonsense"}, "subscribe"),
    ({"id": 1, "subscribe": ["cluster"]}, "subscribe"), ({"id": 1}, ""),
    ({"id": 1, "subscribe": "queues", "sort": "nonsense"}, "sort"),
    ({"id": 1, "subscribe": "queues", "sort": ["uri"]}, "sort"),
    ({"id": 1, "subscribe": "queues", "order": "up"}, "order"), ({"id": 1, "subscribe": "queues", "limit": 501}, "limit"),
    ({"id": 1, "subscribe": "queues", "offset": -1}, "offset"), ({"id": 1, "subscribe": "queues", "offset": 1.5}, "offset"),
    ({"id": 1, "subscribe": "queues", "filter": 5}, "filter"),
    ({"id": 1, "subscribe": "queues", "filter": "x" * 201}, "filter"),
    ({"id": 1, "subscribe": "queue"}, "uri"), ({"id": 1, "subscribe": "queue", "uri": "http://x"}, "uri"),
    ({"id": 1, "subscribe": "queue", "uri": "bmq://d/" + "q" * 600}, "uri")])
def test_an_invalid_message_is_answered_with_an_error(hub: Hub, message: dict[str, Any], field: str) -> None:
    browser = FakeBrowser(hub)
    hub.on_message(browser, message, 0.0)
    assert len(browser.sent) == 1 and browser.sent[0]["error"] and browser.sent[0]["field"] == field
    assert hub.topics() == []


def test_the_numbers_of_subscriptions_and_topics_are_limited(hub: Hub) -> None:
    greedy = FakeBrowser(hub)
    for number in range(SUBSCRIPTIONS_MAX + 3):
        greedy.send_json(id=number, subscribe="queues", offset=number)
    assert len(hub.topics()) == SUBSCRIPTIONS_MAX and len(greedy.sent) == 3
    greedy.send_json(id=0, subscribe="cluster")  # another topic under the same id
    assert len(hub.topics()) == SUBSCRIPTIONS_MAX and len(greedy.sent) == 3
    others = [FakeBrowser(hub, f"user {number}") for number in range(TOPICS_MAX)]
    for number, browser in enumerate(others, 100):
        browser.send_json(id=1, subscribe="queues", offset=number)
    assert len(hub.topics()) == TOPICS_MAX + 1  # and the cluster
    assert "error" in others[-1].sent[0]


def test_one_viewer_leaves_topics_and_websockets_to_others(hub: Hub) -> None:
    greedy = [FakeBrowser(hub, "eve") for _ in range(TOPICS_MAX)]
    for number, browser in enumerate(greedy):
        browser.send_json(id=1, subscribe="queues", offset=number)
    assert len(hub.topics()) == TOPICS_MAX // 2 and "error" in greedy[-1].sent[0]
    ada = FakeBrowser(hub, "ada")
    ada.send_json(id=1, subscribe="queues", offset=1000)
    assert not ada.sent and len(hub.topics()) == TOPICS_MAX // 2 + 1
    for _ in range(SUBSCRIBERS_MAX // 2 - len(hub.subscribers)):
        FakeBrowser(hub, "eve")
    assert not hub.has_place("eve") and hub.has_place("ada")


def test_a_subscriber_receives_nothing_after_unsubscribing(hub: Hub) -> None:
    browser = FakeBrowser(hub)
    browser.send_json(id=1, subscribe="cluster")
    browser.send_json(unsubscribe=1)
    browser.send_json(unsubscribe=1)
    hub.publish(ClusterTopic(), {"n": 1})
    assert browser.sent == [] and hub.topics() == []


def test_a_failed_document_is_reported_to_subscribers_without_a_snapshot(hub: Hub) -> None:
    early, late = FakeBrowser(hub), FakeBrowser(hub)
    early.send_json(id=1, subscribe="queues")
    hub.publish(QueuesTopic(), {"n": 1})
    late.send_json(id=2, subscribe="queues")
    hub.refuse(QueuesTopic(), Refusal(404, "not there", "uri"))
    assert late.sent == [{"id": 2, "error": "not there", "field": "uri"}] and "snapshot" in early.sent[-1]
    assert hub.topics() == [QueuesTopic()]
