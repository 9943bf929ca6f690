"""Broadcast: broker.md 21.7."""

from __future__ import annotations

import pytest
from kit.client import refusal
from kit.config import app_subscription
from kit.world import World

spec = pytest.mark.spec
URI = "bmq://b/q"


@pytest.fixture
def cast(world: World) -> World:
    """Return a world with the broadcast domain `b`."""
    world.domain("b", "broadcast", in_memory=True)
    return world


@spec("broker", 111)
def test_a_broadcast_consumer_gets_all_messages_and_its_confirms_are_ignored(cast: World) -> None:
    """The ignored CONFIRM is logged."""
    producer, consumer = cast.producer(URI), cast.consumer(URI)
    producer.post(b"1")
    pushes = cast.pushes(consumer)
    consumer.confirm(*pushes)
    producer.post(b"2")
    assert [p.payload for p in pushes] + cast.new_payloads(consumer) == [b"1", b"2"]
    assert cast.logged("#CLIENT_IMPROPER_BEHAVIOR", "Received CONFIRM message for queue in broadcast mode")


@pytest.mark.real
@spec("broker", 112)
def test_every_consumer_gets_every_message_of_every_producer(cast: World) -> None:
    """With two producers and three consumers."""
    producers = [cast.producer(URI) for _ in range(2)]
    consumers = [cast.consumer(URI) for _ in range(3)]
    producers[0].post(b"a")
    producers[1].post(b"b")
    producers[0].post(b"c")
    assert [cast.new_payloads(c) for c in consumers] == [[b"a", b"b", b"c"]] * 3


@spec("broker", 113)
def test_messages_posted_without_consumers_are_never_delivered(cast: World) -> None:
    """Broadcast mode stores no messages."""
    producer = cast.producer(URI)
    producer.post(b"lost")
    consumer = cast.consumer(URI)
    producer.post(b"seen")
    assert cast.new_payloads(consumer) == [b"seen"]


@spec("broker", 114)
def test_messages_posted_between_close_and_reopen_are_not_delivered(cast: World) -> None:
    """A consumer gets messages from its configure on."""
    producer, consumer = cast.producer(URI), cast.consumer(URI)
    client = consumer.client
    consumer.close()
    producer.post(b"missed")
    consumer = client.consume(URI)
    producer.post(b"seen")
    assert cast.new_payloads(consumer) == [b"seen"]


@spec("broker", 115)
def test_a_second_consumer_gets_messages_from_its_arrival_on(cast: World) -> None:
    producer, first = cast.producer(URI), cast.consumer(URI)
    producer.post(b"1")
    second = cast.consumer(URI)
    producer.post(b"2")
    assert cast.new_payloads(first) == [b"1", b"2"]
    assert cast.new_payloads(second) == [b"2"]


@spec("broker", 116)
def test_only_broadcast_consumers_of_the_highest_priority_receive_messages(cast: World) -> None:
    """Priorities 2, 2, 2: all receive; one lowered to 1: the other two; one raised to 99: only this one; two at 99: both."""
    producer = cast.producer(URI)
    consumers = [cast.consumer(URI, priority=2) for _ in range(3)]

    def receivers_of(message: bytes) -> list[bool]:
        producer.post(message)
        return [cast.new_payloads(c) == [message] for c in consumers]

    assert receivers_of(b"1") == [True, True, True]
    consumers[0].configure(priority=1)
    assert receivers_of(b"2") == [False, True, True]
    consumers[1].configure(priority=99)
    assert receivers_of(b"3") == [False, True, False]
    consumers[0].configure(priority=99)
    assert receivers_of(b"4") == [True, True, False]


@spec("broker", 117)
def test_when_the_highest_priority_closes_the_next_one_receives_messages(cast: World) -> None:
    producer = cast.producer(URI)
    present = [cast.consumer(URI, priority=p) for p in (1, 2, 3)]
    while present:
        producer.post(b"m")
        assert [cast.new_payloads(c) for c in present] == [[]] * (len(present) - 1) + [[b"m"]]
        present.pop().close()


@spec("broker", 118)
def test_with_changing_consumers_the_highest_present_priority_receives_messages(cast: World) -> None:
    producer = cast.producer(URI)
    priorities: list[int] = []
    consumers = []
    for priority in (2, 1, 2, 3, 5):
        priorities.append(priority)
        consumers.append(cast.consumer(URI, priority=priority))
        message = b"%d" % len(consumers)
        producer.post(message)
        assert [cast.new_payloads(c) for c in consumers] == [[message] if p == max(priorities) else [] for p in priorities]


@spec("broker", 119)
@pytest.mark.parametrize("limits", [{"m": 0}, {"b": 0}, {"subscriptions": []}])
def test_a_consumer_without_capacity_misses_messages_and_has_no_backlog(cast: World, limits: dict[str, int]) -> None:
    """Limits of zero and suspension are the only ways to stop broadcast deliveries."""
    producer, consumer = cast.producer(URI), cast.consumer(URI, **limits)  # type: ignore[arg-type]
    producer.post(b"missed")
    consumer.configure()
    producer.post(b"seen")
    assert cast.new_payloads(consumer) == [b"seen"]


@spec("broker", 119)
def test_other_limits_have_no_effect_on_broadcast(cast: World) -> None:
    """With M = 1, three messages are delivered without a confirm."""
    producer, consumer = cast.producer(URI), cast.consumer(URI, m=1, b=1)
    producer.post_all(b"1", b"2", b"3")
    assert cast.new_payloads(consumer) == [b"1", b"2", b"3"]


@spec("broker", 120)
def test_a_ttl_of_zero_expires_nothing(cast: World) -> None:
    cast.domain("b0", "broadcast", in_memory=True, messageTtl=0)
    producer, consumer = cast.producer("bmq://b0/q"), cast.consumer("bmq://b0/q")
    producer.post(b"1")
    cast.advance(11)
    producer.post(b"2")
    assert cast.new_payloads(consumer) == [b"1", b"2"]
    assert cast.logged("due to TTL expiration") == []


@spec("broker", 121)
def test_no_broadcast_queue_is_ever_stuck(cast: World) -> None:
    """Broadcast queues have no waiting messages."""
    cast.domain("b1", "broadcast", in_memory=True, maxIdleTime=1)
    cast.producer("bmq://b1/q").post_all(b"1", b"2")
    cast.advance(70)
    assert cast.alarms("QUEUE_STUCK") == []


@spec("broker", 122)
def test_quotas_do_not_apply_to_broadcast(cast: World) -> None:
    """Broadcast queues store no messages."""
    cast.domain("b2", "broadcast", in_memory=True, queue_messages=1, queue_bytes=1, domain_messages=1)
    producer = cast.producer("bmq://b2/q")
    producer.post_all(*[b"some bytes"] * 10)
    assert cast.alarms("CAPACITY_STATE_FULL") == []


@spec("broker", 123)
def test_two_matching_subscriptions_of_a_handle_get_one_copy(cast: World) -> None:
    """It has the id of the first matching subscription."""
    producer = cast.producer(URI)
    consumer = cast.consumer(URI, subscriptions=[{"x": "x > 0", "s_id": 1001}, {"x": "x > 10", "s_id": 1002}])
    producer.post(b"m", properties={"x": 20})
    pushes = [e.push for e in consumer.client.events if e.kind == "push"] or cast.pushes(consumer)
    assert len(pushes) == 1


@spec("broker", 124)
def test_broadcast_consumers_get_the_messages_that_match_their_expressions(cast: World) -> None:
    """Priorities are compared among consumers of the same expression."""
    producer = cast.producer(URI)
    low, high = cast.consumer(URI, x="x < 10"), cast.consumer(URI, x="x >= 10")
    for value in (1, 10, 5, 20):
        producer.post(b"%d" % value, properties={"x": value})
    assert cast.new_payloads(low) == [b"1", b"5"]
    assert cast.new_payloads(high) == [b"10", b"20"]


@spec("broker", 125)
def test_a_broadcast_reader_has_no_app_id(cast: World) -> None:
    """Only fanout queues have apps."""
    refused = refusal(cast.client().open, URI, read=1, app_id="x", sub_id=1)
    assert refused.category == "E_UNKNOWN"


@spec("broker", 171)
def test_a_false_application_subscription_drops_a_broadcast_message(cast: World) -> None:
    cast.domain("bs", "broadcast", in_memory=True, subscriptions=[app_subscription("", "x == 1")])
    producer, consumer = cast.producer("bmq://bs/q"), cast.consumer("bmq://bs/q")
    producer.post(b"no", properties={"x": 2})
    producer.post(b"yes", properties={"x": 1})
    assert cast.new_payloads(consumer) == [b"yes"]


@spec("broker", 18)
def test_a_strong_broadcast_domain_works_as_an_eventual_one_and_raises_an_alarm(world: World) -> None:
    """Broadcast queues store no messages, so strong consistency has no effect."""
    world.domain("bs", "broadcast", in_memory=True, strong=True)
    producer, consumer = world.producer("bmq://bs/q"), world.consumer("bmq://bs/q")
    producer.post(b"1")
    assert world.new_payloads(consumer) == [b"1"]
    alarms = world.alarms("DOMAIN")
    assert len(alarms) == 1
    assert "A broadcast domain cannot be of strong consistency" in alarms[0]
