"""Subscriptions: broker.md 21.9."""

from __future__ import annotations

from typing import Any

import pytest
from kit.client import Queue, payloads, refusal
from kit.config import app_subscription
from kit.world import World

spec = pytest.mark.spec


def post_values(producer: Queue, *values: int, name: str = "x") -> None:
    """Post one message for each value, with the number as payload and property."""
    for value in values:
        producer.post(b"%d" % value, properties={name: value})


@pytest.fixture
def producer(world: World) -> Queue:
    """Return a producer of the priority queue bmq://d/q."""
    world.domain()
    return world.producer()


@pytest.mark.real
@spec("broker", 148)
def test_a_consumer_gets_matching_messages_and_another_one_the_rest(world: World, producer: Queue) -> None:
    """With x > 1 for the values 1, 2, 3."""
    post_values(producer, 1, 2, 3)
    assert world.new_payloads(world.consumer(x="x > 1")) == [b"2", b"3"]
    assert world.new_payloads(world.consumer(x="x > 0 || x <= 0")) == [b"1"]


@spec("broker", 149)
def test_a_changed_expression_delivers_put_aside_messages_in_order(world: World, producer: Queue) -> None:
    consumer = world.consumer(x="x > 10")
    post_values(producer, 1, 11, 2, 3)
    assert world.new_payloads(consumer) == [b"11"]
    consumer.configure(x="x > 1")
    assert world.new_payloads(consumer) == [b"2", b"3"]
    consumer.configure(x="x > 0")
    assert world.new_payloads(consumer) == [b"1"]


@spec("broker", 150)
def test_consumers_with_disjoint_ranges_get_their_own_ranges(world: World, producer: Queue) -> None:
    consumers = [world.consumer(x=x) for x in ("x < 10", "x >= 10 && x < 20", "x >= 20")]
    post_values(producer, 25, 5, 15, 6, 16, 26)
    assert [world.new_payloads(c) for c in consumers] == [[b"5", b"6"], [b"15", b"16"], [b"25", b"26"]]


@spec("broker", 151)
def test_within_one_expression_only_the_highest_priority_is_served(world: World, producer: Queue) -> None:
    """Also when its consumer is full."""
    high, low = world.consumer(x="x > 0", priority=2, m=2), world.consumer(x="x > 0", priority=1)
    post_values(producer, 1, 2, 3)
    assert world.new_payloads(high) == [b"1", b"2"]
    assert world.new_payloads(low) == []


@spec("broker", 152)
def test_equal_consumers_of_one_expression_fill_up_evenly(world: World, producer: Queue) -> None:
    """With M = 5 each and 15 messages: 5 and 5 are delivered, 5 wait."""
    consumers = [world.consumer(x="x > 0", m=5) for _ in range(2)]
    post_values(producer, *range(1, 16))
    held = [world.pushes(c) for c in consumers]
    assert [len(h) for h in held] == [5, 5]
    for consumer, messages in zip(consumers, held, strict=True):
        consumer.confirm(*messages)
    assert sum(len(world.new_payloads(c)) for c in consumers) == 5


@spec("broker", 153)
def test_a_message_goes_to_the_highest_priority_group_that_matches(world: World, producer: Queue) -> None:
    """x=1500 to the first consumer, x=500 to the second; a negative one waits."""
    high, low = world.consumer(x="x >= 1000", priority=2), world.consumer(x="x >= 0", priority=1)
    post_values(producer, 1500, 500, -1)
    assert world.new_payloads(high) == [b"1500"]
    assert world.new_payloads(low) == [b"500"]
    assert world.stored() == 3


@spec("broker", 154)
def test_256_subscriptions_on_one_consumer_deliver_all_in_order(world: World, producer: Queue) -> None:
    """Each message matches exactly one of them."""
    consumer = world.consumer(subscriptions=[{"x": f"x == {i}"} for i in range(256)])
    post_values(producer, *range(256))
    assert world.new_payloads(consumer) == [b"%d" % i for i in range(256)]


@spec("broker", 155)
def test_a_condition_over_three_properties(world: World, producer: Queue) -> None:
    """All three parts must be true."""
    consumer = world.consumer(x='x > 1 && y == "a" && flag')
    for number, (x, y, flag) in enumerate([(2, "a", True), (2, "a", False), (2, "b", True), (1, "a", True),
                                           (3, "a", True)]):
        producer.post(b"%d" % number, properties={"x": x, "y": y, "flag": flag})
    assert world.new_payloads(consumer) == [b"0", b"4"]


REFUSED = [" ", "()", "((true)", "true", "x > ", "x x", "&&", " && 1 > 0", "() && 1 > 0", "true && (>>)"]


@spec("broker", 156)
@pytest.mark.parametrize("text", REFUSED)
def test_an_invalid_expression_is_refused_and_the_former_one_stays(world: World, producer: Queue, text: str) -> None:
    """The original accepts it, and it matches all messages; see docs/differences.md."""
    consumer = world.consumer(x="x > 1")
    assert refusal(consumer.configure, x=text).category == "E_INVALID_ARGUMENT"
    post_values(producer, 1, 2)
    assert world.new_payloads(consumer) == [b"2"]


@spec("broker", 157)
@pytest.mark.parametrize("text", ["x", "x + 33"])
def test_an_expression_without_a_boolean_result_matches_nothing(world: World, producer: Queue, text: str) -> None:
    """It is accepted: the type is known at evaluation only."""
    consumer = world.consumer(x=text)
    post_values(producer, 1, 2)
    assert world.new_payloads(consumer) == []
    consumer.configure(x="x > 0")
    assert world.new_payloads(consumer) == [b"1", b"2"]


@spec("broker", 158)
def test_integers_reach_to_64_bits_and_no_further(world: World, producer: Queue) -> None:
    """A larger one is a syntax error."""
    biggest, smallest = (1 << 63) - 1, -(1 << 63)
    top, bottom = world.consumer(x=f"x == {biggest}"), world.consumer(x=f"x == {smallest}")
    post_values(producer, biggest, smallest)
    assert world.new_payloads(top) == [b"%d" % biggest]
    assert world.new_payloads(bottom) == [b"%d" % smallest]
    for beyond in (biggest + 1, smallest - 1):
        assert refusal(top.configure, x=f"x == {beyond}").category == "E_INVALID_ARGUMENT"


@spec("broker", 159)
def test_without_a_subscription_all_messages_are_delivered(world: World, producer: Queue) -> None:
    """With an undefined expression, and with the old form of configure."""
    post_values(producer, 1)
    producer.post(b"plain")
    consumer = world.consumer()
    assert world.new_payloads(consumer) == [b"1", b"plain"]
    consumer.client.disconnect()
    old = world.client().open("bmq://d/q", read=1)
    old.configure_old()
    assert world.new_payloads(old) == [b"1", b"plain"]


@spec("broker", 160)
def test_an_explicit_empty_expression_sent_raw_matches_all_messages(world: World, producer: Queue) -> None:
    """Official SDKs refuse it; the original's broker accepts it without a warning."""
    consumer = world.consumer(x="")
    producer.post(b"m")
    assert world.new_payloads(consumer) == [b"m"]
    assert world.logged("#BMQ_SUBSCRIPTION_FAILURE") == []


@spec("broker", 161)
def test_a_missing_property_makes_the_whole_expression_false_unless_it_is_not_reached(world: World, producer: Queue) -> None:
    """The right operand is not evaluated if the left one decides."""
    one = world.consumer(x="x >= 0 || (y >= 0)")
    post_values(producer, 1)
    post_values(producer, 2, name="y")
    assert world.new_payloads(one) == [b"1"]
    one.configure(x="y >= 0 || (x >= 0)")
    assert world.new_payloads(one) == [b"2"]


@spec("broker", 162)
def test_dates_as_strings_compare_as_text(world: World, producer: Queue) -> None:
    """ISO dates sort as text."""
    consumer = world.consumer(x='x > "2020-01-01" && x < "2021-01-01"')
    for date in ("2019-12-31", "2020-01-01", "2020-01-02", "2020-12-31", "2021-01-01"):
        producer.post(date.encode(), properties={"x": date})
    assert world.new_payloads(consumer) == [b"2020-01-02", b"2020-12-31"]


@spec("broker", 163)
def test_a_string_compared_with_an_integer_is_false(world: World, producer: Queue) -> None:
    """Types are not converted."""
    consumer = world.consumer(x="x > 1")
    producer.post(b"text", properties={"x": "5"})
    producer.post(b"number", properties={"x": 5})
    assert world.new_payloads(consumer) == [b"number"]


@spec("broker", 164)
def test_the_same_expression_in_three_apps_gives_each_its_copy(world: World) -> None:
    world.domain("f", "fanout")
    producer = world.producer("bmq://f/q")
    consumers = [world.consumer("bmq://f/q", app, x="x > 1") for app in ("foo", "bar", "baz")]
    post_values(producer, 1, 2)
    assert [world.new_payloads(c) for c in consumers] == [[b"2"]] * 3


@spec("broker", 165)
def test_unconfirmed_messages_of_a_killed_consumer_go_to_one_with_the_same_expression(world: World, producer: Queue) -> None:
    """Other consumers do not get them."""
    victim = world.consumer(x="x > 1")
    post_values(producer, 2, 3)
    assert world.new_payloads(victim) == [b"2", b"3"]
    other, unrelated = world.consumer(x="x > 1"), world.consumer(x="x < 1")
    victim.client.kill()
    assert world.new_payloads(other) == [b"2", b"3"]
    assert world.new_payloads(unrelated) == []


@spec("broker", 166)
def test_after_a_crash_of_the_broker_subscriptions_route_as_before(world: World, producer: Queue) -> None:
    """Unconfirmed messages are delivered again to matching consumers; new ones are routed as before."""
    texts = ("x < 10", "x >= 10")
    consumers = [world.consumer(x=text) for text in texts]
    post_values(producer, 1, 11)
    assert [world.new_payloads(c) for c in consumers] == [[b"1"], [b"11"]]
    world.crash_and_start()
    consumers = [world.consumer(x=text) for text in texts]
    assert [world.new_payloads(c) for c in consumers] == [[b"1"], [b"11"]]
    post_values(world.producer(), 2, 12)
    assert [world.new_payloads(c) for c in consumers] == [[b"2"], [b"12"]]


@spec("broker", 167)
def test_a_message_without_properties_is_put_aside_by_an_expression(world: World, producer: Queue) -> None:
    """A consumer without an expression gets it."""
    picky = world.consumer(x="x > 1")
    producer.post(b"plain")
    assert world.new_payloads(picky) == []
    assert world.new_payloads(world.consumer()) == [b"plain"]


@spec("broker", 168)
def test_an_application_subscription_confirms_rejected_messages_for_its_app(world: World) -> None:
    """With foo x == 1 and bar x == 2, a message with x = 2 is for bar and baz only; the same after a restart."""
    world.domain("f", "fanout", subscriptions=[app_subscription("foo", "x == 1"), app_subscription("bar", "x == 2")])
    producer = world.producer("bmq://f/q")
    post_values(producer, 2)
    consumers = [world.consumer("bmq://f/q", app) for app in ("foo", "bar", "baz")]
    assert [world.new_payloads(c) for c in consumers] == [[], [b"2"], [b"2"]]
    world.restart()
    consumers = [world.consumer("bmq://f/q", app) for app in ("foo", "bar", "baz")]
    pushes = [world.pushes(c) for c in consumers]
    assert [payloads(p) for p in pushes] == [[], [b"2"], [b"2"]]
    consumers[1].confirm(*pushes[1])
    assert world.stored("bmq://f/q") == 1
    consumers[2].confirm(*pushes[2])
    assert world.stored("bmq://f/q") == 0


@spec("broker", 169)
def test_a_message_that_the_only_app_rejects_is_acked_and_not_stored(world: World) -> None:
    """Also after a restart."""
    world.domain(subscriptions=[app_subscription("", "x == 1")])
    post_values(world.producer(), 2)
    assert world.stored() == 0
    world.restart()
    assert world.new_payloads(world.consumer()) == []
    assert world.stored() == 0


@spec("broker", 170)
def test_application_and_consumer_subscriptions_both_must_hold(world: World) -> None:
    """With app x > 2 and consumer x > 3, message 3 is stored for consumers with other expressions, also after a restart."""
    world.domain(subscriptions=[app_subscription("", "x > 2")])
    producer = world.producer()
    consumer = world.consumer(x="x > 3")
    post_values(producer, 2, 3, 4)
    assert world.new_payloads(consumer) == [b"4"]
    assert world.stored() == 2
    world.restart()
    consumer = world.consumer(x="x > 2")
    assert world.new_payloads(consumer) == [b"3", b"4"]


@spec("broker", 172)
def test_a_message_that_all_apps_reject_is_not_stored(world: World) -> None:
    """It is acknowledged and the storage is empty, also after rollover, garbage collection and restart."""
    world.domain("f", "fanout", subscriptions=[app_subscription(app, "x == 1") for app in ("foo", "bar", "baz")])
    producer = world.producer("bmq://f/q")
    post_values(producer, 2, 3)
    assert world.stored("bmq://f/q") == 0
    assert world.admin("CLUSTERS CLUSTER c3 STORAGE PARTITION ALL ROLLOVER") == "SUCCESS"
    post_values(producer, 2, 1)
    assert world.stored("bmq://f/q") == 1
    world.admin("CLUSTERS CLUSTER c3 FORCE_GC_QUEUES")
    world.restart()
    assert world.new_payloads(world.consumer("bmq://f/q", "foo")) == [b"1"]


@spec("broker", 173)
def test_an_invalid_application_subscription_fails_opens_until_corrected(world: World) -> None:
    """If a valid one is loaded, an invalid one is refused and the valid one remains."""
    world.domain(subscriptions=[app_subscription("", "x >")])
    refused = refusal(world.client().open, "bmq://d/q", write=1)
    assert (refused.category, refused.code) == ("E_REFUSED", -10)
    world.reconfigure(subscriptions=[app_subscription("", "x > 1")])
    producer = world.producer()
    assert "Expression validation failed" in world.reconfigure(subscriptions=[app_subscription("", "x >")])
    post_values(producer, 1, 2)
    assert world.new_payloads(world.consumer()) == [b"2"]


@spec("broker", 174)
def test_an_application_subscription_of_an_unknown_app_is_ignored_with_a_warning(world: World) -> None:
    world.domain("f", "fanout", subscriptions=[app_subscription("unknown", "x == 1")])
    world.producer("bmq://f/q").post(b"m")
    assert world.new_payloads(world.consumer("bmq://f/q", "foo")) == [b"m"]
    assert world.logged("unknown")


@spec("broker", 175)
@pytest.mark.parametrize(("text", "expected"), [
    ("flag == true", [b"yes"]), ("flag == false", [b"no"]), ("flag != true", [b"no"]), ("flag == other", [])])
def test_truth_values_compare_with_literals_only(world: World, producer: Queue, text: str, expected: list[bytes]) -> None:
    """A comparison of two properties is a type error, so the result is false."""
    consumer = world.consumer(x=text)
    producer.post(b"yes", properties={"flag": True, "other": True})
    producer.post(b"no", properties={"flag": False, "other": False})
    assert world.new_payloads(consumer) == expected


def test_a_put_aside_message_does_not_leak_to_a_lower_priority_when_its_group_was_full(
        world: World, producer: Queue) -> None:
    """While the put-aside list holds a message, the original skips a full group unevaluated; this broker evaluates it."""
    high = world.consumer(x="x >= 1000", priority=2, m=1)
    low = world.consumer(x="x >= 0", priority=1)
    post_values(producer, 1000, -1, 1001, 5)
    held = world.pushes(high)
    assert payloads(held) == [b"1000"]
    assert world.new_payloads(low) == []
    high.confirm(*held)
    assert world.new_payloads(high) == [b"1001"]
    assert world.new_payloads(low) == [b"5"]


def test_a_returned_message_that_no_consumer_matches_does_not_block_its_app(world: World, producer: Queue) -> None:
    """In the original it remains in the redelivery list and blocks the app."""
    victim = world.consumer(x="x == 1")
    post_values(producer, 1)
    assert world.new_payloads(victim) == [b"1"]
    other = world.consumer(x="x == 2")
    victim.close()
    post_values(producer, 2)
    assert world.new_payloads(other) == [b"2"]


EXPRESSIONS: list[tuple[str, dict[str, Any], bool]] = [
    ("exists(x)", {"x": 1}, True), ("exists(x)", {"y": 1}, False), ("exists(x)", {"x": b"\0"}, False),
    ("!exists(x)", {"y": 1}, True), ("x % 2 == 0", {"x": 4}, True), ("x / 0 == 1", {"x": 4}, False),
    ("x - 1 == 3", {"x": 4}, True), ("-x == -4", {"x": 4}, True), ("x + y == 5", {"x": 2, "y": 3}, True),
    ('s == "a"', {"s": "a"}, True), ("c == 65", {"c": ("CHAR", 65)}, True), ("h < 0", {"h": ("SHORT", -5)}, True),
    ("i == 7", {"i": ("INT32", 7)}, True), ("a && b", {"a": True, "b": False}, False),
    ("a || missing", {"a": True}, True), ("missing || a", {"a": True}, False)]


@pytest.mark.parametrize(("text", "properties", "matches"), EXPRESSIONS)
def test_expressions_are_evaluated_on_message_properties(
        world: World, producer: Queue, text: str, properties: dict[str, Any], matches: bool) -> None:
    """Special cases of the expression language."""
    consumer = world.consumer(x=text)
    producer.post(b"m", properties=properties)
    assert world.new_payloads(consumer) == ([b"m"] if matches else [])
