"""Merged subscriptions: one subscription upstream for all consumers of an app with the same expression."""

from __future__ import annotations

from bmqtwist.queue.handles import COUNT_MAX
from bmqtwist.queue.merge import SubscriptionIds, merge
from bmqtwist.queue.queue import PRIORITY_INVALID, ConsumerSpec


def spec(priority: int = 0, count: int = 1, messages: int = 10, size: int = 100, text: str = "",
         s_id: int = 77) -> ConsumerSpec:
    return ConsumerSpec(s_id, 1 if text else 0, text, priority, count, messages, size)


def test_consumers_of_the_highest_priority_are_merged_with_summed_limits() -> None:
    assert merge("a", [spec(1), spec(3, 2, 5, 50), spec(2), spec(3)], SubscriptionIds()) == (
        spec(3, 3, 15, 150, s_id=1),)


def test_each_expression_has_its_own_merged_subscription() -> None:
    merged = merge("a", [spec(1, text="x > 1"), spec(5), spec(2, text="x > 1")], SubscriptionIds())
    assert merged == (spec(2, text="x > 1", s_id=1), spec(5, s_id=2))


def test_an_expression_text_without_version_is_ignored() -> None:
    assert merge("a", [ConsumerSpec(4, 0, "junk", 0, 1, 10, 100)], SubscriptionIds()) == (spec(s_id=1),)


def test_consumers_with_invalid_priority_are_not_merged() -> None:
    assert merge("a", [spec(PRIORITY_INVALID, 0)], SubscriptionIds()) == () == merge("a", [], SubscriptionIds())


def test_summed_limits_are_capped_at_the_wire_maximum() -> None:
    [merged] = merge("a", [spec(0, COUNT_MAX, 2**62, 2**62), spec(0, COUNT_MAX, 2**62, 2**62)], SubscriptionIds())
    assert (merged.count, merged.max_messages, merged.max_bytes) == (COUNT_MAX, 2**62, 2**62)


def test_subscription_ids_stay_with_their_expression_and_are_not_reused() -> None:
    ids = SubscriptionIds()
    first = merge("a", [spec(text="x"), spec()], ids)
    assert merge("a", [spec(4), spec(2, text="x")], ids) == (spec(4, s_id=2), spec(2, text="x", s_id=1))
    assert merge("b", [spec()], ids)[0].s_id == 3 and ids.apps == {1: "a", 2: "a", 3: "b"}
    ids.retain_only("a", [""])
    assert ids.apps == {2: "a", 3: "b"} and first[0].s_id == 1
    assert merge("a", [spec(text="x")], ids)[0].s_id == 4
