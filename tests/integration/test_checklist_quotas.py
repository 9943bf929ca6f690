"""Quotas, limits, expiry and stuck queues: broker.md 21.10."""

from __future__ import annotations

import pytest
from kit.client import Queue, payloads, refusal
from kit.world import World

spec = pytest.mark.spec


def confirm_one(world: World, consumer: Queue) -> None:
    """Receive one message and confirm it."""
    consumer.confirm(consumer.next_push())
    world.wait_idle()


@pytest.mark.real
@spec("broker", 176)
def test_a_limit_of_n_messages_admits_n_plus_one(world: World) -> None:
    """The check precedes the addition, as in the original, whose tests depend on it."""
    world.domain(queue_messages=3)
    producer = world.producer()
    assert [producer.status_of() for _ in range(6)] == [0, 0, 0, 0, 1, 1]


@spec("broker", 177)
def test_a_domain_limit_counts_all_its_queues(world: World) -> None:
    """With four messages in two queues, both refuse."""
    world.domain(domain_messages=3)
    one, two = world.producer("bmq://d/one"), world.producer("bmq://d/two")
    assert [one.status_of(), two.status_of(), one.status_of(), two.status_of()] == [0, 0, 0, 0]
    assert [one.status_of(), two.status_of()] == [1, 1]


@spec("broker", 178)
def test_a_raised_limit_admits_more_and_a_lowered_one_refuses_until_enough_is_confirmed(world: World) -> None:
    """Both take effect at once; stored messages are kept."""
    world.domain(domain_messages=2)
    one, two = world.producer("bmq://d/one"), world.producer("bmq://d/two")
    assert [one.status_of() for _ in range(4)] == [0, 0, 0, 1]
    world.reconfigure(domain_messages=12)
    assert [(one if i % 2 else two).status_of() for i in range(11)] == [0] * 10 + [1]
    world.reconfigure(domain_messages=11)
    assert two.status_of() == 1
    assert world.stored("bmq://d/one") + world.stored("bmq://d/two") == 13
    consumer = world.consumer("bmq://d/one")
    confirm_one(world, consumer)
    assert two.status_of() == 1
    confirm_one(world, consumer)
    assert two.status_of() == 0
    assert two.status_of() == 1


@spec("broker", 179)
def test_the_byte_limit_may_be_exceeded_by_one_message(world: World) -> None:
    """With a limit of ten bytes, three messages of four bytes are accepted."""
    world.domain(queue_bytes=10)
    producer = world.producer()
    assert [producer.status_of(b"1234") for _ in range(4)] == [0, 0, 0, 2]


@spec("broker", 180)
def test_a_confirm_makes_room_also_for_the_sibling_queue(world: World) -> None:
    """Queues share the limit of their domain."""
    world.domain(domain_messages=1)
    one, two = world.producer("bmq://d/one"), world.producer("bmq://d/two")
    assert [one.status_of(), one.status_of(), two.status_of()] == [0, 0, 1]
    confirm_one(world, world.consumer("bmq://d/one"))
    assert two.status_of() == 0
    assert one.status_of() == 1


@spec("broker", 181)
def test_watermark_alarms_are_raised_once_and_re_armed_by_draining(world: World) -> None:
    """High watermark at 80 %, full at 100 %, normal at half of the high watermark."""
    world.domain(queue_messages=10)
    producer, consumer = world.producer(), world.consumer(m=1)
    producer.post_all(*[b"x"] * 7)
    assert world.alarms("CAPACITY_STATE_HIGH_WATERMARK") == []
    producer.post_all(b"x", b"x")
    alarms = world.alarms("CAPACITY_STATE_HIGH_WATERMARK")
    assert len(alarms) == 1
    assert "for 'queue [bmq://d/q]'" in alarms[0]
    assert "8 (limit: 10)" in alarms[0]
    assert world.alarms("CAPACITY_STATE_FULL") == []
    producer.post_all(b"x", b"x")
    assert len(world.alarms("CAPACITY_STATE_FULL")) == 1
    confirm_one(world, consumer)
    producer.post()
    assert len(world.alarms("CAPACITY_STATE_FULL")) >= 1
    while world.stored():
        confirm_one(world, consumer)
    producer.post_all(*[b"x"] * 11)
    assert len(world.alarms("CAPACITY_STATE_HIGH_WATERMARK")) == 2
    assert len(world.alarms("CAPACITY_STATE_FULL")) >= 2


@spec("broker", 182)
def test_the_capacity_alarm_names_the_contents_of_the_queue(world: World) -> None:
    """Sizes of its lists, expressions, and the oldest message of the put-aside list, with its properties."""
    world.domain(queue_messages=3)
    producer = world.producer()
    world.consumer(x="x > 5")
    for value in range(4):
        producer.post(b"m", properties={"x": ("INT32", value)})
    text = "\n".join(world.log())
    assert world.alarms("CAPACITY_STATE_FULL")
    for line in ("For appId: __default", "Put aside list size: ", "Redelivery list size: 0", "Number of messages: ",
                 "Consumer subscription expressions:", "x > 5", "Oldest message in the 'Put aside' list:",
                 "Message Properties: [ x (INT32) = 0 ]"):
        assert line in text, line


@spec("broker", 184)
def test_producer_and_consumer_limits_count_per_queue_and_change_live(world: World) -> None:
    """The second client is refused with UNKNOWN until the limit is raised; both limits are independent."""
    world.domain(maxProducers=1, maxConsumers=1)
    world.producer()
    world.consumer()
    refused = refusal(world.client().open, "bmq://d/q", write=1)
    assert (refused.category, refused.code, refused.message) == (
        "E_UNKNOWN", -1, "Client would exceed the limit of 1 producer(s)")
    refused = refusal(world.client().open, "bmq://d/q", read=1)
    assert refused.message == "Client would exceed the limit of 1 consumer(s)"
    refused = refusal(world.client().open, "bmq://d/q", read=1, write=1)
    assert refused.message == "Client would exceed the limit of 1 producer(s) and the limit of 1 consumer(s)"
    world.producer("bmq://d/other")
    world.reconfigure(maxProducers=2, maxConsumers=1)
    world.producer()
    assert refusal(world.client().open, "bmq://d/q", write=1).category == "E_UNKNOWN"
    assert refusal(world.client().open, "bmq://d/q", read=1).category == "E_UNKNOWN"
    world.reconfigure(maxProducers=2, maxConsumers=2)
    world.consumer()
    assert refusal(world.client().open, "bmq://d/q", read=1).category == "E_UNKNOWN"


@spec("broker", 185)
def test_the_queue_limit_warns_at_80_percent_and_refuses_beyond(world: World) -> None:
    """Opens of existing queues succeed. A close does not reduce the count, garbage collection does."""
    world.domain(maxQueues=5)
    clients = [world.producer(f"bmq://d/q{i}") for i in range(3)]
    assert world.alarms("DOMAIN_QUEUE_LIMIT_HIGH_WATERMARK") == []
    clients.append(world.producer("bmq://d/q3"))
    alarms = world.alarms("DOMAIN_QUEUE_LIMIT_HIGH_WATERMARK")
    assert len(alarms) == 1
    assert "(current: 4, limit: 5)" in alarms[0]
    clients.append(world.producer("bmq://d/q4"))
    refused = refusal(world.client().open, "bmq://d/q5", write=1)
    assert (refused.category, refused.code, refused.message) == (
        "E_REFUSED", -205, "maximum number of queues reached")
    panics = world.alarms("DOMAIN_QUEUE_LIMIT_FULL")
    assert len(panics) == 1
    assert "(limit: 5)" in panics[0]
    world.consumer("bmq://d/q0")
    clients[4].close()
    assert refusal(world.client().open, "bmq://d/q5", write=1).category == "E_REFUSED"
    world.admin("CLUSTERS CLUSTER c3 FORCE_GC_QUEUES")
    world.producer("bmq://d/q5")


@spec("broker", 186)
def test_the_count_of_queues_is_restored_by_a_restart(world: World) -> None:
    world.domain(maxQueues=2)
    world.producer("bmq://d/one").post()
    world.producer("bmq://d/two").post()
    world.restart()
    assert refusal(world.client().open, "bmq://d/three", write=1).code == -205
    world.producer("bmq://d/one").post()


@spec("broker", 187)
def test_messages_older_than_the_ttl_are_removed_and_counted(world: World) -> None:
    """Not earlier; a longer TTL that is configured before keeps them."""
    world.domain(messageTtl=5)
    producer = world.producer()
    producer.post(b"old")
    for _ in range(9):
        world.advance(0.5)
        assert world.stored() == 1
    world.reconfigure(messageTtl=1)
    world.advance(10)
    producer.post(b"new")
    assert world.new_payloads(world.consumer()) == [b"new"]
    records = world.logged("due to TTL expiration")
    assert len(records) == 1
    assert "For storage for queue [bmq://d/q]" in records[0]
    assert "configured with TTL value of [1] seconds, garbage-collected [1] messages" in records[0]
    assert world.statistics()["values"]["queue_gc_msgs_abs"] == 1
    world.reconfigure(messageTtl=10)
    world.advance(2)
    assert world.stored() == 1


@spec("broker", 188)
def test_a_confirm_after_expiry_is_ignored(world: World) -> None:
    """Expiry removes delivered messages, too."""
    world.domain(messageTtl=1)
    producer, consumer = world.producer(), world.consumer()
    producer.post(b"old")
    held = world.pushes(consumer)
    world.advance(12)
    assert world.stored() == 0
    consumer.confirm(*held)
    producer.post(b"new")
    assert world.new_payloads(consumer) == [b"new"]
    assert world.stored() == 1


STUCK = "appears to be stuck."


@spec("broker", 189)
def test_an_unconsumed_message_makes_a_queue_stuck_until_it_is_consumed(world: World) -> None:
    """One alarm, and one log line when the queue is no longer stuck."""
    world.domain(maxIdleTime=1)
    world.producer().post(b"m")
    world.advance(35)
    alarms = world.alarms("QUEUE_STUCK")
    assert len(alarms) == 1
    assert "Queue 'bmq://d/q' Messages [current: 1 / " in alarms[0]
    assert "It currently has 0 consumers." in "\n".join(world.log())
    assert world.logged("For appId: __default")
    world.advance(60)
    assert len(world.alarms("QUEUE_STUCK")) == 1
    assert world.new_payloads(world.consumer()) == [b"m"]
    world.advance(31)
    assert world.logged("Queue 'bmq://d/q?id=__default' no longer appears to be stuck.")


@spec("broker", 190)
def test_delivered_but_unconfirmed_is_not_stuck_but_waiting_behind_it_is(world: World) -> None:
    """A message at a connected consumer is not stuck; one that waits for a full consumer is."""
    world.domain(maxIdleTime=1)
    producer, consumer = world.producer(), world.consumer(m=1)
    producer.post(b"1")
    assert world.new_payloads(consumer) == [b"1"]
    world.advance(65)
    assert world.alarms("QUEUE_STUCK") == []
    producer.post(b"2")
    world.advance(35)
    assert len(world.alarms("QUEUE_STUCK")) == 1


@spec("broker", 191)
def test_a_slow_but_moving_consumer_is_not_stuck(world: World) -> None:
    """With one confirm per second and a limit of three seconds."""
    world.domain(maxIdleTime=3)
    producer, consumer = world.producer(), world.consumer(m=1)
    producer.post(b"0")
    for number in range(1, 70):
        producer.post(b"%d" % number)
        world.advance(1)
        confirm_one(world, consumer)
    assert world.alarms("QUEUE_STUCK") == []


@spec("broker", 192)
def test_unconfirmed_messages_of_a_consumer_that_left_make_a_queue_stuck(world: World) -> None:
    """The alarm says that they are in the redelivery list."""
    world.domain(maxIdleTime=1)
    producer, consumer = world.producer(), world.consumer()
    producer.post(b"m")
    assert world.new_payloads(consumer) == [b"m"]
    consumer.close()
    world.advance(35)
    assert len(world.alarms("QUEUE_STUCK")) == 1
    assert world.logged("Redelivery list size: 1")


@spec("broker", 193)
def test_max_idle_time_changes_live(world: World) -> None:
    """Zero disables the alarm; a change from three to one second for a blocked queue raises it after one second."""
    world.domain(maxIdleTime=1)
    world.producer().post(b"m")
    world.reconfigure(maxIdleTime=0)
    world.advance(65)
    assert world.alarms("QUEUE_STUCK") == []
    world.reconfigure(maxIdleTime=3600)
    world.advance(65)
    assert world.alarms("QUEUE_STUCK") == []
    world.reconfigure(maxIdleTime=1)
    world.advance(2)
    assert len(world.alarms("QUEUE_STUCK")) == 1


@spec("broker", 194)
def test_a_message_that_no_subscription_matches_makes_a_queue_stuck(world: World) -> None:
    """The alarm has the message and the expressions."""
    world.domain(maxIdleTime=1)
    producer = world.producer()
    world.consumer(x="x > 5", name="picky")
    producer.post(b"m", properties={"x": ("INT32", 1)})
    world.advance(35)
    assert len(world.alarms("QUEUE_STUCK")) == 1
    text = "\n".join(world.log())
    for line in ("Put aside list size: 1", "x > 5", "Message Properties: [ x (INT32) = 1 ]", "picky:4242",
                 "Number of unconfirmed messages .....: 0"):
        assert line in text, line


@spec("broker", 195)
def test_only_the_stuck_app_of_a_fanout_queue_is_named(world: World) -> None:
    """The two other apps are not."""
    world.domain("f", "fanout", maxIdleTime=1)
    producer = world.producer("bmq://f/q")
    consumers = [world.consumer("bmq://f/q", app) for app in ("bar", "baz")]
    producer.post(b"m")
    assert [world.new_payloads(c) for c in consumers] == [[b"m"], [b"m"]]
    world.advance(35)
    alarms = world.alarms("QUEUE_STUCK")
    assert len(alarms) == 1
    assert "Queue 'bmq://f/q?id=foo'" in alarms[0]


@spec("broker", 196)
@pytest.mark.setting(cluster={"partitions": 1, "partition": {"maxJournalFileSize": 16384, "maxDataFileSize": 65536}})
def test_a_full_journal_refuses_puts_until_a_whole_queue_is_purged(world: World) -> None:
    """The purge of one app frees no space; the purge of a queue does."""
    world.domain("f", "fanout")
    one, two = world.producer("bmq://f/one"), world.producer("bmq://f/two")
    statuses: list[int] = []
    while 6 not in statuses:
        statuses += [one.status_of(), two.status_of()]
        assert len(statuses) < 1000, "the partition never fills up"
    assert set(statuses) == {0, 6}
    world.advance(25)
    assert len(world.alarms("PARTITION_READONLY")) >= 1
    assert world.alarms("PARTITION_AVAILABLESPACE_SOFTLIMIT")
    world.admin("DOMAINS DOMAIN f QUEUE one PURGE foo")
    assert one.status_of() == 6
    world.admin("DOMAINS DOMAIN f QUEUE one PURGE *")
    assert [one.status_of(), two.status_of()] == [0, 0]


def test_compressed_messages_count_as_stored(world: World) -> None:
    """Quotas count compressed bytes."""
    world.domain(queue_bytes=500)
    producer, consumer = world.producer(), world.consumer()
    producer.post(bytes(5000), compress=True)
    producer.post(b"fits")
    assert payloads(world.pushes(consumer)) == [bytes(5000), b"fits"]
