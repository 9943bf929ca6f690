"""Priority mode, distribution and flow control: broker.md 21.4 and 21.5."""

from __future__ import annotations

import pytest
from kit.client import Queue, payloads
from kit.world import World

spec = pytest.mark.spec


def confirm_all(world: World, *consumers: Queue) -> dict[Queue, list[bytes]]:
    """Confirm messages of each consumer until none arrive; return the payloads of each."""
    got: dict[Queue, list[bytes]] = {consumer: [] for consumer in consumers}
    moving = True
    while moving:
        moving = False
        for consumer in consumers:
            pushes = world.pushes(consumer)
            if pushes:
                moving = True
                got[consumer] += payloads(pushes)
                consumer.confirm(*pushes)
        world.wait_idle()
    return got


# -- 21.4


@spec("broker", 68, 69)
def test_only_consumers_of_the_highest_priority_receive_messages(world: World) -> None:
    """Two consumers of priority 2 share the messages; after their close the two of priority 1 do."""
    world.domain()
    producer = world.producer()
    c1, c2 = world.consumer(priority=2), world.consumer(priority=2)
    c3, c4 = world.consumer(priority=1), world.consumer(priority=1)
    producer.post_all(b"1", b"2")
    assert [len(world.new_payloads(c)) for c in (c1, c2, c3, c4)] == [1, 1, 0, 0]
    for consumer in (c1, c2):
        consumer.confirm(*[p.guid for p in [e.push for e in consumer.client.events if e.kind == "push"]])
        consumer.close()
    producer.post_all(b"3", b"4", b"5", b"6")
    assert sorted([world.new_payloads(c3), world.new_payloads(c4)]) == [[b"3", b"5"], [b"4", b"6"]]


@spec("broker", 70)
def test_reopening_in_another_order_does_not_change_who_is_served(world: World) -> None:
    """The order of opens has no effect."""
    world.domain()
    producer = world.producer()
    consumers = {name: world.consumer(name=name, priority=p) for name, p in
                 (("c1", 2), ("c2", 2), ("c3", 1), ("c4", 1))}
    for consumer in consumers.values():
        consumer.client.disconnect()
    consumers = {name: world.consumer(name=name + "again", priority=p) for name, p in
                 (("c4", 1), ("c2", 2), ("c3", 1), ("c1", 2))}
    producer.post_all(b"1", b"2")
    assert {name: len(world.new_payloads(c)) for name, c in consumers.items()} == {"c1": 1, "c2": 1, "c3": 0, "c4": 0}
    for name in ("c1", "c2"):
        consumer = consumers[name]
        consumer.confirm(*[e.push for e in consumer.client.events if e.kind == "push"])
        consumer.close()
    producer.post_all(b"3", b"4")
    assert [len(world.new_payloads(consumers[name])) for name in ("c3", "c4")] == [1, 1]


@spec("broker", 71)
def test_150_messages_reach_ten_equal_consumers_15_each(world: World) -> None:
    """By round robin, each message confirmed at once."""
    world.domain()
    producer = world.producer()
    consumers = [world.consumer() for _ in range(10)]
    counts = [0] * 10
    for batch in range(15):
        producer.post_all(*[b"%d" % (batch * 10 + i) for i in range(10)])
        for index, consumer in enumerate(consumers):
            pushes = consumer.pushes()
            counts[index] += len(pushes)
            consumer.confirm(*pushes)
    assert counts == [15] * 10
    assert world.stored() == 0


@spec("broker", 72)
def test_priority_counts_are_weights_of_the_round_robin(world: World) -> None:
    """With counts 2 and 1, six messages are shared 4 to 2."""
    world.domain()
    producer = world.producer()
    c1, c2 = world.consumer(count=2), world.consumer(count=1)
    producer.post_all(*[b"%d" % i for i in range(6)])
    assert [len(world.new_payloads(c1)), len(world.new_payloads(c2))] == [4, 2]


@spec("broker", 73)
def test_a_full_high_priority_consumer_does_not_spill_over_to_a_lower_one(world: World) -> None:
    """Lower priorities receive messages only without consumers of a higher one."""
    world.domain()
    producer = world.producer()
    high, low = world.consumer(priority=2, m=1), world.consumer(priority=1)
    producer.post_all(b"1", b"2")
    first = world.pushes(high)
    assert payloads(first) == [b"1"]
    assert world.new_payloads(low) == []
    high.confirm(*first)
    assert world.new_payloads(high) == [b"2"]
    assert world.new_payloads(low) == []


@spec("broker", 74)
def test_a_consumer_that_lowers_its_priority_hands_over(world: World) -> None:
    """By configure, without a close."""
    world.domain()
    producer = world.producer()
    c1, c2 = world.consumer(priority=2), world.consumer(priority=1)
    producer.post(b"1")
    c1.configure(priority=0)
    producer.post(b"2")
    assert world.new_payloads(c1) == [b"1"]
    assert world.new_payloads(c2) == [b"2"]


@spec("broker", 75)
def test_swapping_priorities_swaps_delivery_and_keeps_unconfirmed_messages(world: World) -> None:
    """Delivered messages remain assigned to their consumer."""
    world.domain()
    producer = world.producer()
    c1, c2 = world.consumer(priority=2), world.consumer(priority=1)
    producer.post_all(b"1", b"2")
    held = world.pushes(c1)
    assert payloads(held) == [b"1", b"2"]
    c2.configure(priority=2)
    c1.configure(priority=1)
    producer.post(b"3")
    assert world.new_payloads(c1) == []
    assert world.new_payloads(c2) == [b"3"]
    c1.confirm(*held)
    assert world.stored() == 1


@pytest.mark.real
@spec("broker", 76, 77)
def test_a_late_consumer_gets_stored_messages_in_order(world: World) -> None:
    """First deliveries have no out-of-order flag."""
    world.domain()
    world.producer().post_all(b"1", b"2", b"3", b"4", b"5")
    pushes = world.pushes(world.consumer())
    assert payloads(pushes) == [b"1", b"2", b"3", b"4", b"5"]


# -- 21.5


@spec("broker", 78)
def test_with_a_limit_of_one_messages_come_one_at_a_time(world: World) -> None:
    """100 messages, each delivered after the confirm of the previous one."""
    world.domain()
    world.producer().post_all(*[b"%d" % i for i in range(100)])
    consumer = world.consumer(m=1)
    for number in range(100):
        pushes = world.pushes(consumer)
        assert payloads(pushes) == [b"%d" % number]
        consumer.confirm(*pushes)
    assert world.new_payloads(consumer) == []
    assert world.stored() == 0


@spec("broker", 80)
def test_the_byte_limit_holds_the_next_message_until_a_confirm(world: World) -> None:
    """The message that reaches the limit is delivered."""
    world.domain()
    producer, consumer = world.producer(), world.consumer(b=3)
    producer.post_all(b"123", b"1")
    first = world.pushes(consumer)
    assert payloads(first) == [b"123"]
    consumer.confirm(*first)
    assert world.new_payloads(consumer) == [b"1"]


@spec("broker", 80)
def test_the_message_that_crosses_the_byte_limit_is_delivered(world: World) -> None:
    """With two of four bytes used, the next message is delivered."""
    world.domain()
    producer, consumer = world.producer(), world.consumer(b=4)
    producer.post_all(b"12", b"345678", b"9")
    assert world.new_payloads(consumer) == [b"12", b"345678"]


@pytest.mark.real
@spec("broker", 81)
def test_a_limit_of_two_holds_the_third_message(world: World) -> None:
    """Until one is confirmed; another consumer of the app gets the waiting messages."""
    world.domain()
    producer, consumer = world.producer(), world.consumer(m=2)
    producer.post_all(b"1", b"2", b"3", b"4")
    first = world.pushes(consumer)
    assert payloads(first) == [b"1", b"2"]
    consumer.confirm(first[0])
    assert world.new_payloads(consumer) == [b"3"]
    other = world.consumer(m=2)
    assert world.new_payloads(other) == [b"4"]


@spec("broker", 82)
def test_delivery_resumes_at_four_fifths_of_the_limit(world: World) -> None:
    """With a limit of ten: nine unconfirmed messages are full, eight are not; then deliveries continue up to ten."""
    world.domain()
    producer, consumer = world.producer(), world.consumer(m=10)
    producer.post_all(*[b"%d" % i for i in range(15)])
    held = world.pushes(consumer)
    assert len(held) == 10
    consumer.confirm(held[0])
    assert world.new_payloads(consumer) == []
    consumer.confirm(held[1])
    assert world.new_payloads(consumer) == [b"10", b"11"]


@spec("broker", 84)
def test_a_limit_of_zero_delivers_nothing_until_it_is_raised(world: World) -> None:
    """With M = 0, then 10."""
    world.domain()
    producer, consumer = world.producer(), world.consumer(m=0)
    producer.post_all(b"1", b"2")
    assert world.new_payloads(consumer) == []
    consumer.configure(m=10)
    assert world.new_payloads(consumer) == [b"1", b"2"]


@spec("broker", 84)
def test_a_byte_limit_of_zero_delivers_nothing_until_it_is_raised(world: World) -> None:
    """B = 0 has the same effect as M = 0."""
    world.domain()
    producer, consumer = world.producer(), world.consumer(b=0)
    producer.post(b"1")
    assert world.new_payloads(consumer) == []
    consumer.configure(b=10)
    assert world.new_payloads(consumer) == [b"1"]


@spec("broker", 85)
def test_while_one_is_full_the_other_of_the_same_priority_gets_all_messages(world: World) -> None:
    """Capacity is per subscription."""
    world.domain()
    producer = world.producer()
    full = world.consumer(m=1)
    producer.post(b"1")
    assert world.new_payloads(full) == [b"1"]
    other = world.consumer()
    producer.post_all(b"2", b"3", b"4")
    assert world.new_payloads(full) == []
    assert world.new_payloads(other) == [b"2", b"3", b"4"]


@spec("broker", 86)
def test_when_all_are_full_the_stop_is_logged_once_and_order_survives_it(world: World) -> None:
    """The log has `early exits delivery`."""
    world.domain()
    producer = world.producer()
    consumer = world.consumer(m=2)
    producer.post_all(b"1", b"2", b"3", b"4", b"5")
    held = world.pushes(consumer)
    assert payloads(held) == [b"1", b"2"]
    assert len(world.logged("does not have any subscription capacity; early exits delivery at")) == 1
    assert len(world.logged("has too many outstanding data", "I'm taking a break!")) == 1
    consumer.confirm(*held)
    held = world.pushes(consumer)
    assert payloads(held) == [b"3", b"4"]
    consumer.confirm(*held)
    assert world.new_payloads(consumer) == [b"5"]


@spec("broker", 87)
def test_a_full_app_does_not_hold_up_another(world: World) -> None:
    world.domain("f", "fanout")
    producer = world.producer("bmq://f/q")
    bar, foo = world.consumer("bmq://f/q", "bar", m=1), world.consumer("bmq://f/q", "foo")
    producer.post_all(b"1", b"2", b"3")
    assert world.new_payloads(bar) == [b"1"]
    assert world.new_payloads(foo) == [b"1", b"2", b"3"]


@pytest.mark.real
@spec("broker", 88)
def test_the_answer_to_a_configure_precedes_the_first_message_it_allows(world: World) -> None:
    """An official client crashes on a PUSH for a subscription before the answer."""
    world.domain()
    world.producer().post(b"m")
    consumer = world.consumer()
    consumer.next_push()
    kinds = ["push" if e.kind == "push" else next(iter(set(e.control) - {"rId"}))
             for e in consumer.client.events if e.kind in ("push", "control")]
    assert kinds.index("configureStreamResponse") < kinds.index("push")


def test_a_limit_below_the_unconfirmed_messages_returns_none_of_them(world: World) -> None:
    """It delays later deliveries only."""
    world.domain()
    producer, consumer = world.producer(), world.consumer(m=3)
    producer.post_all(b"1", b"2", b"3", b"4")
    held = world.pushes(consumer)
    consumer.configure(m=1)
    consumer.confirm(held[0])
    assert world.new_payloads(consumer) == []
    consumer.confirm(held[1], held[2])
    assert world.new_payloads(consumer) == [b"4"]


def test_properties_count_for_the_byte_limit(world: World) -> None:
    """The limit counts stored bytes, including properties."""
    world.domain()
    producer, consumer = world.producer(), world.consumer(b=20)
    producer.post_all(b"1", b"2", properties={"name": "a value of some length"})
    assert world.new_payloads(consumer) == [b"1"]
