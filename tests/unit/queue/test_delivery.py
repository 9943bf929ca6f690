"""Delivery: order of new, put-aside and returned messages, delivery windows, broadcast."""

from __future__ import annotations

import pytest
from kit.calls import count_calls
from kit.engine_kit import WALL, Engine, got, spec_of

from bmqtwist.errors import Refused
from bmqtwist.limits import SUBSCRIPTIONS_MAX
from bmqtwist.queue import window
from bmqtwist.queue.domain import Throttle
from bmqtwist.queue.handles import OpenRequest, close_queue
from bmqtwist.queue.queue import FLAG_READ, Handle, Put
from bmqtwist.report import LineLimiter
from bmqtwist.storage.message import Message


def pushes(engine: Engine, *handles: Handle) -> list[tuple[str, bytes]]:
    """Post two messages and return the app and payload of all PUSHes, in order."""
    pushed: list[tuple[str, bytes]] = []
    apps = {each.s_id: app.app_id for app in engine.queue.active for each in app.current_router().subscriptions}
    with pytest.MonkeyPatch.context() as patch:
        for handle in handles:
            patch.setattr(handle.client, "push", lambda handle, sub_id, message, late: pushed.append(
                (apps[sub_id], message.payload)))
        engine.post(b"1", b"2")
    return pushed


def test_new_messages_are_delivered_in_order_of_arrival() -> None:
    engine = Engine()
    reader = engine.reader()
    engine.post(b"1", b"2", b"3")
    assert got(reader) == [b"1", b"2", b"3"]


def test_messages_posted_before_the_consumer_opens_are_delivered_to_it() -> None:
    engine = Engine()
    engine.post(b"1", b"2")
    reader = engine.reader()
    engine.turn()
    assert got(reader) == [b"1", b"2"]


def test_a_message_is_delivered_only_after_its_records_are_written() -> None:
    engine = Engine()
    reader, producer = engine.reader(), engine.open(write=1)
    engine.queue.post(Put(producer, Message(b"g" * 16, b"x", arrived=engine.now, wall=1), 0, True), engine.now, 1)
    engine.request_delivery(engine.queue)
    for queue in engine.touched:
        from bmqtwist.queue.delivery import deliver
        deliver(queue, engine.now)
    assert got(reader) == [] and producer.client.acks == []  # type: ignore[attr-defined]
    engine.turn()
    assert got(reader) == [b"x"] and producer.client.acks == [(b"g" * 16, 0)]  # type: ignore[attr-defined]


def test_a_subscription_counts_its_deliveries_since_its_configuration() -> None:
    engine = Engine()
    reader = engine.reader()
    (substream,) = reader.substreams.values()
    engine.confirm(reader, *engine.post(b"1", b"2"))
    engine.post(b"3")
    assert [each.delivered for each in substream.subscriptions] == [3]
    engine.configure(reader, spec_of(2))
    assert [(each.s_id, each.messages, each.delivered) for each in substream.subscriptions] == [(2, 1, 0)]
    engine.post(b"4")
    assert [each.delivered for each in substream.subscriptions] == [1]


def test_broadcast_deliveries_are_counted_for_each_subscription() -> None:
    engine = Engine("broadcast", in_memory=True)
    readers = [engine.reader(), engine.reader(name="other")]
    engine.post(b"1", b"2")
    assert [each.delivered for reader in readers for substream in reader.substreams.values()
            for each in substream.subscriptions] == [2, 2]


@pytest.mark.parametrize("limit", [{"m": 2}, {"b": 2}])
def test_a_consumer_at_its_limit_receives_messages_again_at_80_percent(limit: dict[str, int]) -> None:
    engine = Engine()
    reader = engine.reader(**limit)
    guids = engine.post(b"1", b"2", b"3", b"4")
    assert got(reader) == [b"1", b"2"]
    engine.confirm(reader, guids[0])
    assert got(reader) == [b"3"]


def test_one_message_may_exceed_the_limit_of_unconfirmed_bytes() -> None:
    engine = Engine()
    reader = engine.reader(b=3)
    engine.post(b"12", b"345", b"6")
    assert got(reader) == [b"12", b"345"]


def test_a_consumer_at_its_limit_is_logged_unless_the_limit_is_one_message() -> None:
    for m, mentioned in ((2, 1), (1, 0)):
        engine = Engine()
        engine.reader(m=m)
        engine.post(b"1", b"2", b"3")
        assert engine.log("I'm taking a break!") == mentioned


def test_an_early_exit_of_delivery_is_logged_once_for_each_message() -> None:
    engine = Engine()
    reader = engine.reader(m=1)
    engine.post(b"1", b"2")
    engine.post(b"3")
    engine.post(b"4")
    assert engine.log("early exits delivery") == 1
    engine.confirm(reader)
    assert engine.log("early exits delivery") == 2, "the next message meets a consumer at its limit, too"
    engine.configure(reader, spec_of(m=100))
    engine.turn()
    engine.configure(reader, spec_of(m=4))
    engine.post(b"5", b"6")
    assert engine.log("early exits delivery") == 3


def test_log_lines_of_early_exits_are_limited_in_time() -> None:
    engine = Engine()
    reader = engine.reader(m=1)
    engine.post(*[b"%d" % number for number in range(100)])
    for _ in range(50):
        engine.confirm(reader)
    assert engine.log("early exits delivery") == LineLimiter.LINES_PER_S
    engine.now += 60.0
    engine.confirm(reader)
    assert engine.log("early exits delivery") == LineLimiter.LINES_PER_S + 1


def test_an_early_exit_without_consumers_is_logged_once() -> None:
    engine = Engine()
    engine.post(b"1")
    engine.post(b"2")
    assert engine.log("early exits delivery") == 1
    engine.reader(m=1)
    engine.turn()
    assert engine.log("early exits delivery") == 2


def test_returned_messages_are_redelivered_oldest_first_with_the_out_of_order_flag() -> None:
    engine = Engine()
    first, second = engine.reader(m=2), engine.reader(m=2)
    engine.post(b"1", b"2", b"3", b"4", b"5")
    assert (got(first), got(second)) == ([b"1", b"3"], [b"2", b"4"])
    engine.confirm(second)
    assert got(second) == [b"5"]
    engine.leave(first)
    assert second.client.got == [(b"1", 1, True)], "the oldest"  # type: ignore[attr-defined]
    engine.confirm(second)
    assert [payload for payload, _, _ in second.client.got] == [b"1", b"3"]  # type: ignore[attr-defined]


def test_messages_returned_by_two_consumers_are_redelivered_in_order_of_arrival() -> None:
    engine = Engine()
    first, second = engine.reader(m=2), engine.reader(m=2)
    engine.post(b"1", b"2", b"3", b"4")
    engine.leave(second)
    engine.leave(first)
    reader = engine.reader()
    engine.turn()
    assert got(reader) == [b"1", b"2", b"3", b"4"]


def test_new_messages_wait_for_a_redelivery_while_all_consumers_are_at_their_limits() -> None:
    engine = Engine()
    first, second = engine.reader(m=1), engine.reader(m=1)
    engine.post(b"1", b"2", b"3")
    engine.leave(first)
    engine.confirm(second)
    assert got(second) == [b"2", b"1"]
    engine.confirm(second)
    assert got(second) == [b"3"]


def test_a_redelivery_that_matches_no_subscription_is_put_aside() -> None:
    engine = Engine()
    first, second = engine.reader(x="x == 1"), engine.reader(x="x == 2")
    engine.post(b"1", x=1)
    engine.leave(first)
    engine.post(b"2", x=2)
    assert got(second) == [b"2"]
    late = engine.reader(x="x == 1")
    engine.turn()
    assert late.client.got == [(b"1", 1, True)]  # type: ignore[attr-defined]


def test_redeliveries_with_few_attempts_left_are_throttled_and_delay_later_messages() -> None:
    engine = Engine(max_attempts=3, throttle=Throttle(2, 4, 1.0, 3.0))
    crasher, reader = engine.reader(m=2), None
    guids = engine.post(b"1", b"2")
    assert got(crasher) == [b"1", b"2"]
    reader = engine.reader()
    engine.leave(crasher, crashed=True)
    assert got(reader) == [b"1"], "two attempts are left: three seconds between redeliveries to one consumer"
    engine.post(b"3")
    assert got(reader) == [] and engine.delivery_times[-1] == engine.now + 3.0
    engine.confirm(reader, guids[0])
    assert got(reader) == [b"2", b"3"], "a confirm ends the pause"


def test_put_aside_messages_are_delivered_to_a_later_matching_consumer() -> None:
    engine = Engine()
    engine.reader(x="x == 1")
    for number in (2, 1, 2):
        engine.post(b"%d" % number, x=number)
    assert len(engine.queue.apps["__default"].put_aside) == 2
    late = engine.reader(x="x == 2")
    engine.turn()
    assert got(late) == [b"2", b"2"] and not engine.queue.apps["__default"].put_aside


def test_messages_that_waited_for_a_consumer_at_its_limit_are_delivered_first() -> None:
    engine = Engine()
    one, two = engine.reader(x="x == 1", m=1), engine.reader(x="x == 2")
    for payload, x in ((b"a", 1), (b"b", 1), (b"c", 2), (b"d", 1)):
        engine.post(payload, x=x)
    assert (got(one), got(two)) == ([b"a"], [b"c"])
    app = engine.queue.apps["__default"]
    assert len(app.waiting) == 2
    engine.confirm(one)
    assert got(one) == [b"b"]
    engine.confirm(one)
    assert got(one) == [b"d"] and not app.waiting


def test_a_removed_message_is_skipped_by_delivery() -> None:
    engine = Engine()
    engine.post(b"1", b"2", b"3")
    message = list(engine.queue.messages.values())[1]
    engine.queue.remove(message, 0, 1)
    reader = engine.reader()
    engine.turn()
    assert got(reader) == [b"1", b"3"]


def test_each_app_receives_and_confirms_messages_independently() -> None:
    engine = Engine("fanout", ("foo", "bar"))
    foo = engine.reader("foo")
    engine.post(b"1", b"2")
    bar = engine.reader("bar", m=1)
    engine.turn()
    assert (got(foo), got(bar)) == ([b"1", b"2"], [b"1"])
    engine.confirm(foo)
    assert len(engine.queue.messages) == 2
    engine.confirm(bar)
    assert got(bar) == [b"2"] and len(engine.queue.messages) == 1


def test_apps_of_different_clients_are_delivered_one_after_the_other() -> None:
    engine = Engine("fanout", ("foo", "bar"))
    readers = [engine.reader("foo"), engine.reader("bar", s_id=2)]
    assert pushes(engine, *readers) == [("foo", b"1"), ("foo", b"2"), ("bar", b"1"), ("bar", b"2")]


def test_apps_that_share_a_client_receive_each_message_together() -> None:
    """The PUSH of a message to the client names both apps even if an event is full between two messages."""
    engine = Engine("fanout", ("foo", "bar", "own"))
    shared = engine.open(read=1, app="foo", sub_id=1)
    engine.configure(shared, spec_of(1))
    own = engine.reader("own", s_id=3)
    assert pushes(engine, shared, own) == [("foo", b"1"), ("foo", b"2"), ("own", b"1"), ("own", b"2")]
    engine.open(read=1, app="bar", sub_id=2, handle=shared)
    engine.configure(shared, spec_of(2), app="bar")
    engine.turn()
    assert pushes(engine, shared, own) == [("own", b"1"), ("own", b"2"), ("foo", b"1"), ("bar", b"1"), ("foo", b"2"),
                                           ("bar", b"2")]
    close_queue(shared, OpenRequest(1, 2, "bar", FLAG_READ, 1, 0, 0), False, WALL)
    assert pushes(engine, shared, own) == [("foo", b"1"), ("foo", b"2"), ("own", b"1"), ("own", b"2")]


def test_broadcast_delivers_to_all_consumers_and_stores_no_message() -> None:
    engine = Engine("broadcast", in_memory=True)
    first, second = engine.reader(), engine.reader()
    engine.post(b"1")
    assert (got(first), got(second)) == ([b"1"], [b"1"]) and not engine.queue.messages
    engine.leave(first)
    third = engine.reader()
    engine.turn()
    assert got(third) == []


def test_broadcast_skips_a_client_with_unsent_output() -> None:
    """Broadcast has no limit of unconfirmed messages; the client receives messages again once its output is sent."""
    engine = Engine("broadcast", in_memory=True)
    reading, lagging = engine.reader(name="reading"), engine.reader(name="lagging")
    lagging.client.window.lagging = True
    engine.post(b"one")
    lagging.client.window.lagging = False
    engine.post(b"two")
    assert (reading.client.take(), lagging.client.take()) == ([b"one", b"two"], [b"two"])


def resume_delivery(handle: Handle) -> None:
    """Resume deliveries, as the client's session does in the turn after its window closed."""
    if handle.client.window.resume():
        handle.resume()


def test_a_client_with_a_closed_window_receives_no_message_until_it_opens() -> None:
    """Neither CONFIRMs nor new subscriptions open the window; deferred messages arrive in order."""
    engine = Engine()
    reader = engine.reader(m=4)
    engine.post(b"1", b"2", b"3", b"4")
    client = reader.client
    client.window.on_written(window.LAGGING_BYTES + 1)
    engine.confirm(reader)
    engine.post(b"5")
    engine.configure(reader, spec_of(m=4))
    engine.turn()
    assert got(reader) == [b"1", b"2", b"3", b"4"]
    resume_delivery(reader)
    engine.turn()
    assert got(reader) == [], "its output is not drained yet"
    client.window.on_drained()
    resume_delivery(reader)
    engine.turn()
    assert got(reader) == [b"5"]


def test_messages_for_a_client_with_a_closed_window_go_to_the_next_client() -> None:
    engine = Engine()
    closed, other = engine.reader(), engine.reader()
    closed.client.window.count_push(window.TURN_PUSH_BYTES_MAX + 1)
    engine.post(b"1", b"2")
    assert (got(closed), got(other)) == ([], [b"1", b"2"])
    assert closed.client.window.on_written(window.LAGGING_BYTES) and not other.client.window.on_written(0)


def test_a_subscription_at_its_limit_stays_paused_when_the_window_opens() -> None:
    """It resumes at 80 % of its limits, independent of the window."""
    engine = Engine()
    reader = engine.reader(m=5)
    guids = engine.post(b"1", b"2", b"3", b"4", b"5", b"6")
    reader.client.window.on_written(window.LAGGING_BYTES + 1)
    reader.client.window.on_drained()
    resume_delivery(reader)
    engine.turn()
    assert len(got(reader)) == 5
    engine.confirm(reader, guids[0])
    assert got(reader) == [b"6"]


def test_returned_messages_without_matching_subscription_are_sorted_once() -> None:
    """With a sort per message, 20,000 messages would take 30 s."""
    engine = Engine(in_memory=True)
    leaving, other = engine.reader(m=100_000, x="v == 0"), engine.reader(x="v == 7")
    for _ in range(20):
        engine.post(*[b"x"] * 1000, v=0)
    engine.post(b"last", v=5)
    assert len(got(leaving)) == 20_000 and engine.queue.apps["__default"].put_aside_count() == 1

    def leave() -> None:
        engine.leave(leaving)
        engine.turn()
    calls = count_calls(leave)
    app = engine.queue.apps["__default"]
    assert calls["sort"] + calls["sorted"] <= 4
    assert app.put_aside_count() == 20_001 and got(other) == []
    assert app.oldest_undelivered()[0].order == 0
    engine.configure(other, spec_of(x="v >= 0", m=100_000))
    engine.turn()
    assert len(got(other)) == 20_001 and other.client.got == []


def test_a_configure_of_many_subscriptions_takes_linear_time() -> None:
    engine = Engine(in_memory=True)
    reader = engine.reader(m=100_000)
    for _ in range(20):
        engine.post(*[b"x"] * 1000, v=0)
    assert len(got(reader)) == 20_000
    many = [spec_of(n, x=f"v == {n}", m=10) for n in range(1, SUBSCRIPTIONS_MAX)]
    calls = count_calls(lambda: engine.configure(reader, *many, spec_of(SUBSCRIPTIONS_MAX, m=100_000)))
    assert calls.total() < 100 * SUBSCRIPTIONS_MAX + 4 * 20_000
    (substream,) = reader.substreams.values()
    assert substream.subscriptions[-1].messages == 20_000 and not substream.subscriptions[0].messages
    with pytest.raises(Refused, match="Too many subscriptions"):
        engine.configure(reader, *many, *many)
    assert len(substream.subscriptions) == SUBSCRIPTIONS_MAX
