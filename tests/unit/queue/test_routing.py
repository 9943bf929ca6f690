"""Routing: round robin, priorities, expressions, and full consumers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bmqtwist.queue.expression import compile_expression
from bmqtwist.queue.queue import PUT_ASIDE, STOP, ConsumerSpec, ConsumerSubscription, Router
from bmqtwist.queue.window import DeliveryWindow


class Handle:
    """A handle of a client."""

    client = SimpleNamespace(is_member=False, resumes_at_once=False, window=DeliveryWindow())
    merges = False


class Stream:
    """A substream with the attributes that routing uses."""

    def __init__(self, handle: object) -> None:
        self.handle = handle


def subscription(x: str = "", priority: int = 0, count: int = 1, m: int = 100, b: int = 100, full: bool = False,
                 handle: object = None) -> ConsumerSubscription:
    stream: Any = Stream(handle or Handle())
    made = ConsumerSubscription(stream, ConsumerSpec(1, 1, x, priority, count, m, b), compile_expression(x) if x else None)
    made.full = full or made.full
    return made


def choices(router: Router, *values: dict[str, object]) -> list[Any]:
    return [router.choose(each) for each in values]


def test_without_subscriptions_no_message_is_routed() -> None:
    assert Router().choose({}) is STOP and not Router().has_room()


def test_subscriptions_of_a_group_are_chosen_in_rotation() -> None:
    a, b, c = subscription(), subscription(), subscription()
    assert choices(Router([a, b, c]), *[{}] * 5) == [a, b, c, a, b]


def test_a_subscription_is_chosen_count_times_in_a_row() -> None:
    a, b = subscription(count=2), subscription()
    assert choices(Router([a, b]), *[{}] * 6) == [a, a, b, a, a, b]


@pytest.mark.parametrize("count", [0, -5])
def test_a_count_below_one_counts_as_one(count: int) -> None:
    assert subscription(count=count).count == 1


def test_a_subscription_at_its_limit_is_skipped_and_restarts_its_count() -> None:
    a, b = subscription(count=3), subscription()
    router = Router([a, b])
    assert choices(router, {}, {}) == [a, a]
    a.full = True
    assert router.choose({}) is b
    a.full = False
    assert choices(router, *[{}] * 4) == [a, a, a, b]


def test_only_the_highest_priority_of_an_expression_receives_messages() -> None:
    low, high, other = subscription(priority=1), subscription(priority=3), subscription(priority=2)
    router = Router([low, high, other])
    assert choices(router, {}, {}) == [high, high]
    high.full = True
    assert router.choose({}) is STOP, "there is no spill-over to a lower priority"


def test_each_expression_forms_a_group_with_its_own_priority() -> None:
    odd, rest = subscription("x == 1", priority=1), subscription("x != 1", priority=5)
    router = Router([odd, rest])
    assert choices(router, {"x": 1}, {"x": 2}) == [odd, rest]


def test_the_matching_group_with_the_highest_priority_is_chosen() -> None:
    wide, narrow = subscription("x > 0", priority=1), subscription("x > 5", priority=2)
    assert choices(Router([wide, narrow]), {"x": 9}, {"x": 3}) == [narrow, wide]


def test_a_full_group_is_replaced_only_by_a_group_of_the_same_priority() -> None:
    first, second, lower = subscription("x > 0", full=True), subscription("x > 1"), subscription("x > 2", priority=-1)
    router = Router([first, second, lower])
    assert router.choose({"x": 9}) is second
    second.full = True
    assert router.choose({"x": 9}) is STOP


def test_a_message_without_match_is_put_aside_unless_all_subscriptions_are_full() -> None:
    only = subscription("x == 1")
    router = Router([only])
    assert router.choose({"x": 2}) is PUT_ASIDE
    only.full = True
    assert router.choose({"x": 2}) is STOP


def test_a_message_for_a_full_group_is_put_aside_while_another_group_has_room() -> None:
    full, free = subscription("x == 1", full=True), subscription("x == 2", priority=1)
    assert Router([full, free]).choose({"x": 1}) is PUT_ASIDE


def test_excluded_consumers_are_not_chosen() -> None:
    a, b = subscription(), subscription()
    router = Router([a, b])
    assert router.choose({}, frozenset([a.substream])) is b
    assert router.choose({}, frozenset([a.substream, b.substream])) is STOP


@pytest.mark.parametrize("limits", [{"m": 0}, {"b": 0}])
def test_a_subscription_with_a_limit_of_zero_never_has_room(limits: dict[str, int]) -> None:
    only = subscription(**limits)
    assert Router([only]).choose({}) is STOP and not Router([only]).has_room()


def test_the_resume_thresholds_are_80_percent_and_below_the_limits() -> None:
    assert [subscription(m=m).low_messages for m in (1, 2, 4, 5, 100)] == [0, 1, 3, 4, 80]


def test_the_resume_thresholds_of_a_downstream_broker_of_this_kind_are_just_below_its_limits() -> None:
    below = SimpleNamespace(client=SimpleNamespace(is_member=False, resumes_at_once=True, window=DeliveryWindow()))
    made = subscription(m=100, b=50, handle=below)
    assert (made.low_messages, made.low_bytes) == (99, 49)
    made.copy_parameters(subscription(m=10, b=5))
    assert (made.low_messages, made.low_bytes) == (9, 4)


def test_carried_over_unconfirmed_messages_count_against_the_limits() -> None:
    made = subscription(m=3, b=100)
    made.set_unconfirmed(2, 50)
    assert not made.full
    made.set_unconfirmed(3, 50)
    assert made.full
    made.set_unconfirmed(0, 100)
    assert made.full


def test_the_router_has_a_single_group_if_no_subscription_has_an_expression() -> None:
    assert Router([subscription(), subscription(priority=1)]).only_group is not None
    assert Router([subscription("x > 0")]).only_group is None
    assert Router([subscription(), subscription("x > 0")]).only_group is None


def test_broadcast_chooses_the_first_matching_subscription_of_each_handle() -> None:
    one, two = Handle(), Handle()
    first, second = subscription("x > 0", handle=one), subscription("x > 1", handle=one)
    other, deaf = subscription("x > 1", handle=two), subscription(m=0, handle=Handle())
    router = Router([first, second, other, deaf])
    assert router.eligible_subscriptions({"x": 9}) == [first, other]
    assert router.eligible_subscriptions({"x": 1}) == [first]


def test_a_client_whose_window_is_closed_counts_as_full() -> None:
    a, b = subscription("x == 1"), subscription("x == 2")
    router = Router([a, b])
    a.full = True
    assert choices(router, {"x": 1}) == [PUT_ASIDE], "the other subscription has room"
    b.window.close()
    assert choices(router, {"x": 1}, {"x": 2}) == [STOP, STOP] and not router.has_room()
