"""Redelivery and poison pills: broker.md 21.8."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from kit.client import INT_MIN, payloads
from kit.world import World

spec = pytest.mark.spec


def kill_holding(world: World, count: int = 1, uri: str = "bmq://d/q", app: str | None = None) -> None:
    """Connect a consumer, let it receive `count` messages and kill it."""
    victim = world.consumer(uri, app, m=count)
    assert len(world.pushes(victim)) == count
    victim.client.kill()


@pytest.mark.real
@spec("broker", 126)
def test_unconfirmed_messages_of_a_closing_consumer_go_to_another_in_order(world: World) -> None:
    world.domain()
    producer, first = world.producer(), world.consumer()
    producer.post_all(b"1", b"2")
    assert world.new_payloads(first) == [b"1", b"2"]
    second = world.consumer()
    first.close()
    pushes = world.pushes(second)
    assert payloads(pushes) == [b"1", b"2"]
    assert all(push.out_of_order for push in pushes)


@spec("broker", 127)
def test_a_redelivered_message_waits_while_the_only_other_consumer_is_full(world: World) -> None:
    """A new consumer with capacity gets it."""
    world.domain()
    producer = world.producer()
    first = world.consumer(m=1)
    producer.post(b"1")
    assert world.new_payloads(first) == [b"1"]
    full = world.consumer(m=1)
    producer.post(b"2")
    assert world.new_payloads(full) == [b"2"]
    first.client.kill()
    assert world.new_payloads(full) == []
    assert world.new_payloads(world.consumer(m=1)) == [b"1"]


def test_messages_stored_before_a_restart_are_marked_as_redelivered(world: World) -> None:
    """An earlier run of the broker may have delivered them; a message posted since is not marked."""
    world.domain()
    world.producer().post_all(b"1", b"2")
    assert [push.out_of_order for push in world.pushes(world.consumer(m=1))] == [False]
    world.restart()
    consumer = world.consumer()
    assert [push.out_of_order for push in world.pushes(consumer)] == [True, True]
    world.producer().post(b"3")
    assert [push.out_of_order for push in world.pushes(consumer)] == [False]


@pytest.mark.real
@spec("broker", 128)
def test_a_crashed_consumer_gets_its_unconfirmed_messages_after_a_reconnect(world: World) -> None:
    """The producer remains connected and posts meanwhile."""
    world.domain()
    producer = world.producer()
    consumer = world.consumer(name="phoenix")
    producer.post_all(b"1", b"2")
    assert world.new_payloads(consumer) == [b"1", b"2"]
    consumer.client.kill()
    producer.post(b"3")
    assert world.new_payloads(world.consumer(name="phoenix")) == [b"1", b"2", b"3"]


@pytest.mark.real
@spec("broker", 129)
def test_only_unconfirmed_messages_are_redelivered_and_the_log_counts_them(world: World) -> None:
    """Of five received messages two are confirmed and three redelivered."""
    world.domain()
    world.producer().post_all(b"1", b"2", b"3", b"4", b"5")
    consumer = world.consumer()
    held = world.pushes(consumer)
    consumer.confirm(held[0], held[1])
    world.wait_idle()
    consumer.client.kill()
    world.expect_log("Lost a reader for queue 'bmq://d/q' __default, redelivering 3 message(s) to 0 remaining "
                     "readers starting from", held[2].guid.hex().upper())
    assert world.new_payloads(world.consumer()) == [b"3", b"4", b"5"]


@spec("broker", 130)
def test_with_one_attempt_a_crash_removes_the_message(world: World) -> None:
    """With an alarm and a statistic; the next message is delivered."""
    world.domain(maxDeliveryAttempts=1)
    producer = world.producer()
    producer.post_all(b"poison", b"good")
    kill_holding(world)
    assert world.new_payloads(world.consumer()) == [b"good"]
    alarms = world.alarms("POISON_PILL")
    assert len(alarms) == 1
    assert "A poison pill message was detected and purged from the queue bmq://d/q" in alarms[0]
    assert "Message was transmitted a total of 1 times to consumer(s)" in alarms[0]
    assert world.statistics()["values"]["queue_reject_msgs_abs"] == 1


@spec("broker", 131)
def test_a_fanout_message_stays_until_the_last_app_has_rejected_it(world: World) -> None:
    """Attempts are counted per app; the rejection survives a restart."""
    world.domain("f", "fanout", maxDeliveryAttempts=1)
    world.producer("bmq://f/q").post(b"poison")
    for app, left in (("foo", 1), ("bar", 1), ("baz", 0)):
        kill_holding(world, 1, "bmq://f/q", app)
        assert world.stored("bmq://f/q") == left
        assert world.new_payloads(world.consumer("bmq://f/q", app)) == []
    world.restart()
    assert world.stored("bmq://f/q") == 0
    assert world.new_payloads(world.consumer("bmq://f/q", "foo")) == []


@spec("broker", 132)
def test_the_app_that_used_up_its_attempts_does_not_see_the_message_again(world: World) -> None:
    """After two kills of foo; bar and baz confirm, and the storage is empty."""
    world.domain("f", "fanout", maxDeliveryAttempts=2)
    world.producer("bmq://f/q").post(b"m")
    kill_holding(world, 1, "bmq://f/q", "foo")
    kill_holding(world, 1, "bmq://f/q", "foo")
    assert world.new_payloads(world.consumer("bmq://f/q", "foo")) == []
    for app in ("bar", "baz"):
        consumer = world.consumer("bmq://f/q", app)
        consumer.confirm(*world.pushes(consumer))
    assert world.stored("bmq://f/q") == 0


@spec("broker", 133)
@pytest.mark.parametrize("how", ["close", "disconnect"])
def test_a_graceful_disconnect_uses_no_delivery_attempt(world: World, how: str) -> None:
    """Only a crash does."""
    world.domain(maxDeliveryAttempts=1)
    world.producer().post(b"m")
    for _ in range(3):
        consumer = world.consumer()
        assert world.new_payloads(consumer) == [b"m"]
        consumer.close() if how == "close" else consumer.client.disconnect()
    assert world.new_payloads(world.consumer()) == [b"m"]


@spec("broker", 137)
def test_without_a_limit_no_number_of_crashes_removes_a_message(world: World) -> None:
    """With maxDeliveryAttempts 0."""
    world.domain()
    world.producer().post(b"m")
    for _ in range(5):
        kill_holding(world)
    assert world.new_payloads(world.consumer()) == [b"m"]


@spec("broker", 138)
def test_a_limit_introduced_later_counts_from_its_introduction(world: World) -> None:
    """Ten kills without a limit, then five with one."""
    world.domain()
    world.producer().post_all(b"poison", b"1", b"2", b"3", b"4")
    for _ in range(10):
        kill_holding(world)
    world.reconfigure(maxDeliveryAttempts=5)
    for _ in range(5):
        kill_holding(world)
    assert world.new_payloads(world.consumer()) == [b"1", b"2", b"3", b"4"]


@spec("broker", 139)
@pytest.mark.parametrize("attempts", [2, 3, 4, 5, 6])
def test_a_message_survives_one_crash_less_than_its_attempts(world: World, attempts: int) -> None:
    """With a limit of n: delivered after n - 1 kills, removed after n."""
    world.domain(maxDeliveryAttempts=1)
    producer = world.producer()
    world.reconfigure(maxDeliveryAttempts=attempts)
    producer.post_all(b"m", b"next")
    for _ in range(attempts - 1):
        kill_holding(world)
    assert world.stored() == 2
    kill_holding(world)
    assert world.stored() == 1
    assert world.new_payloads(world.consumer()) == [b"next"]


@spec("broker", 140)
def test_after_the_limit_is_removed_no_crash_removes_a_message(world: World) -> None:
    """With a change of the limit from 5 to 0."""
    world.domain(maxDeliveryAttempts=5)
    world.producer().post(b"m")
    for _ in range(4):
        kill_holding(world)
    world.reconfigure(maxDeliveryAttempts=0)
    for _ in range(6):
        kill_holding(world)
    assert world.new_payloads(world.consumer()) == [b"m"]


@pytest.mark.only_real
@spec("broker", 141)
def test_a_removed_message_is_dumped_to_a_file_at_most_once_in_fifteen_seconds(world: World) -> None:
    """The alarm has the name of the file."""
    world.domain(maxDeliveryAttempts=1)
    producer = world.producer()
    producer.post(b"deadly payload", properties={"k": "v"})
    producer.post(b"second")
    kill_holding(world)
    kill_holding(world)
    alarm = world.expect_log("ALARM [POISON_PILL]")
    dumps = re.findall(r"Message was dumped in file at location \[([^]]+)\]", "\n".join(world.log()))
    assert len(set(dumps)) == 1, alarm
    path = Path(dumps[0])
    text = path.read_text(encoding="utf-8")
    mode = stat.S_IMODE(path.stat().st_mode)
    path.unlink()
    assert mode == 0o644
    assert "Message Properties:" in text
    assert '[ k (STRING) = "v" ]' in text
    assert "Message Properties hexdump:" in text
    assert "Message Payload:" in text
    assert b"deadly payload".hex().upper()[:16] in text.replace(" ", "")


@spec("broker", 141)
def test_removals_within_fifteen_seconds_raise_one_alarm(world: World) -> None:
    """Removals after fifteen seconds raise another alarm."""
    world.domain(maxDeliveryAttempts=1)
    world.producer().post_all(b"1", b"2", b"3")
    kill_holding(world)
    kill_holding(world)
    assert len(world.alarms("POISON_PILL")) == 1
    world.advance(16)
    kill_holding(world)
    assert len(world.alarms("POISON_PILL")) == 2


@spec("broker", 142)
def test_messages_of_crashing_consumers_are_redelivered_with_growing_delays(world: World) -> None:
    """Of ten attempts: with more than 4 remaining without delay.

    With 4 or 3 after one second; with 2 or 1 after three seconds.
    """
    world.domain(maxDeliveryAttempts=10)
    world.producer().post_all(b"a", b"b", b"c")
    for left in range(10, 0, -1):
        consumer = world.consumer()
        pause = 0 if left > 4 or left == 10 else 1 if left > 2 else 3
        if pause:
            world.advance(0.1)
            for message in (b"a", b"b", b"c"):
                assert world.new_payloads(consumer) == [message], left
                world.advance(pause - 0.2)
                assert world.new_payloads(consumer) == [], left
                world.advance(0.2)
        else:
            assert world.new_payloads(consumer) == [b"a", b"b", b"c"], left
        consumer.client.kill()
    assert world.stored() == 0


def post_with_four_attempts(world: World, *properties: dict[str, int]) -> None:
    """Post messages 0, 1, ... that have 4 of 10 attempts remaining, so that redelivery pauses for a second."""
    world.domain(maxDeliveryAttempts=10)
    producer = world.producer()
    for number, values in enumerate(properties):
        producer.post(b"%d" % number, properties=values or None)
    for _ in range(6):
        kill_holding(world, len(properties))


@spec("broker", 143)
def test_a_delayed_message_holds_back_the_whole_app(world: World) -> None:
    """Also messages for other subscriptions, so that the delayed message is delivered alone."""
    post_with_four_attempts(world, {"x": 1}, {"x": 1})
    ones, twos = world.consumer(x="x == 1"), world.consumer(x="x == 2")
    assert world.new_payloads(ones) == [b"0"]
    world.producer().post(b"new", properties={"x": 2})
    assert world.new_payloads(twos) == []
    world.advance(1.1)
    assert world.new_payloads(ones) == [b"1"]
    assert world.new_payloads(twos) == [b"new"]


@spec("broker", 144)
def test_confirming_the_last_redelivered_message_ends_the_delay(world: World) -> None:
    post_with_four_attempts(world, {}, {}, {})
    consumer = world.consumer()
    for number in range(3):
        pushes = world.pushes(consumer)
        assert payloads(pushes) == [b"%d" % number]
        consumer.confirm(*pushes)


@spec("broker", 145)
@pytest.mark.parametrize("how", ["stream", "old form"])
def test_a_suspended_consumer_keeps_its_unconfirmed_messages_and_others_get_new_ones(world: World, how: str) -> None:
    """As by the host health of an SDK: suspend, confirm while suspended, resume."""
    world.domain()
    producer = world.producer()
    first = world.consumer(priority=1)
    second = world.consumer(priority=1, m=0)
    producer.post_all(b"1", b"2")
    held = world.pushes(first)
    assert payloads(held) == [b"1", b"2"]
    if how == "stream":
        first.configure(priority=INT_MIN, count=0, m=0, b=0)
    else:
        first.configure_old(priority=INT_MIN, count=0, m=0, b=0)
    second.configure(priority=1)
    producer.post(b"3")
    assert world.new_payloads(second) == [b"3"]
    first.confirm(*held)
    assert world.stored() == 1
    second.configure(priority=0)
    first.old_form = False
    first.configure(priority=1)
    producer.post(b"4")
    assert world.new_payloads(first) == [b"4"]


@spec("broker", 146)
def test_a_late_confirm_of_a_message_that_another_consumer_confirmed_is_ignored(world: World) -> None:
    """It is not logged and confirms no other message."""
    world.domain()
    producer, first = world.producer(), world.consumer()
    producer.post(b"1")
    held = world.pushes(first)
    second = world.consumer()
    first.deconfigure()
    first.close_only(final=False)
    again = world.pushes(second)
    assert payloads(again) == [b"1"]
    second.confirm(*again)
    producer.post(b"2")
    first.confirm(*held)
    assert world.new_payloads(second) == [b"2"]
    assert world.stored() == 1


@spec("broker", 147)
def test_after_one_app_is_closed_no_push_for_it_arrives(world: World) -> None:
    """Another app of the session is still read."""
    world.domain("f", "fanout")
    producer = world.producer("bmq://f/q")
    client = world.client()
    foo, bar = client.consume("bmq://f/q", "foo"), client.consume("bmq://f/q", "bar")
    producer.post(b"1")
    assert [world.new_payloads(foo), world.new_payloads(bar)] == [[b"1"], [b"1"]]
    foo.close(final=False)
    producer.post(b"2")
    assert world.new_payloads(bar) == [b"2"]
    assert not [e for e in client.inbox if e.kind == "push"]


def test_a_killed_consumer_is_named_with_the_number_of_rejected_messages(world: World) -> None:
    """The crash is logged if a limit is configured."""
    world.domain(maxDeliveryAttempts=3)
    world.producer().post_all(b"1", b"2")
    kill_holding(world, 2)
    assert world.logged("Queue 'bmq://d/q' rejecting 2 messages because of a client crash.")


def test_confirms_sent_just_before_a_crash_take_effect(world: World) -> None:
    """The broker handles all data received before the end of the connection."""
    world.domain()
    producer, consumer = world.producer(), world.consumer()
    producer.post_all(b"1", b"2")
    held = world.pushes(consumer)
    consumer.confirm(held[0])
    consumer.client.kill()
    assert world.new_payloads(world.consumer()) == [b"2"]
