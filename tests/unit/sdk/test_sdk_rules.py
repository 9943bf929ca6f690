"""Guarantees of the client library at connection failures: one test per rule, against a scripted broker."""

from __future__ import annotations

import pytest
from kit.sdk_kit import FANOUT, URI, Bench

from bmqtwist.errors import Category
from bmqtwist.sdk import EventKind, QueueOptions, Result, SdkError, SessionOptions, parse_brokers
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk._core.states import QueueState, State
from bmqtwist.wire import events, schema
from bmqtwist.wire.cluster_schema import ClusterMessage, StopRequest
from bmqtwist.wire.control import ControlMessage

rule = pytest.mark.spec("cluster", 112)


@pytest.fixture
def bench() -> Bench:
    """A connected session."""
    return Bench().start()


def open_queue(bench: Bench, uri: str = URI, **more: object) -> object:
    queue = bench.open(uri, **more)  # type: ignore[arg-type]
    assert bench.done[("open", uri)].result is Result.SUCCESS
    return queue


@rule
@pytest.mark.parametrize("moment", ["ready", "waiting", "connecting", "negotiating", "restoring"])
def test_s1_a_post_to_an_opened_queue_is_accepted_in_any_connection_state(bench: Bench, moment: str) -> None:
    queue = open_queue(bench)
    if moment != "ready":
        bench.cut_connection(up=False)
    if moment == "negotiating":
        bench.silent.add("clientIdentity")
        bench.up = True
        bench.advance(2.0)
        assert bench.core.state is State.NEGOTIATING
    if moment == "restoring":
        bench.silent.add("openQueue")
        bench.up = True
        bench.advance(2.0)
        assert bench.core.state is State.RESTORING
    if moment == "connecting":
        bench.core.tick(bench.now + 1.0)
        assert bench.core.state is State.CONNECTING
    bench.post(queue, b"a")
    bench.silent.clear()
    if bench.requests[-1].choice == "openQueue" and moment == "restoring":
        bench.answer(bench.requests[-1])
    if moment in ("waiting", "connecting", "negotiating"):
        bench.restore_broker()
    assert bench.payloads() == [b"a"]
    assert [(ack.token, ack.status) for ack in bench.acks] == [(b"a", Result.SUCCESS)]


@rule
def test_s2_each_put_has_its_own_guid_which_is_kept_at_a_retransmission(bench: Bench) -> None:
    queue = open_queue(bench)
    bench.acks_at_once = False
    guids = [bench.post(queue, payload) for payload in (b"a", b"b")]
    bench.cut_connection()
    bench.restore_broker()
    assert [put.guid for put in bench.puts()] == guids * 2
    assert len(set(guids)) == 2 and all(len(guid) == 16 and any(guid) for guid in guids)


@rule
def test_s3_a_put_with_an_ack_request_is_kept_until_its_ack(bench: Bench) -> None:
    queue = open_queue(bench)
    bench.acks_at_once = False
    bench.post(queue, b"a")
    for _ in range(3):
        bench.cut_connection()
        bench.restore_broker()
    assert bench.payloads() == [b"a"] * 4
    bench.ack(bench.puts()[-1])
    assert not bench.core.unacked and not bench.core._posts.unacked_bytes
    bench.cut_connection()
    bench.restore_broker()
    assert bench.payloads() == [b"a"] * 4


@rule
def test_s4_a_put_without_an_ack_request_is_kept_until_it_is_sent_once(bench: Bench) -> None:
    queue = open_queue(bench)
    bench.core.post(queue, b"sent", bench.now, post=Post(ack=False))
    bench.turn()
    assert not bench.core.unacked
    bench.core.post(queue, b"not yet", bench.now, post=Post(ack=False))
    bench.cut_connection()
    assert len(bench.core.unacked) == 1
    bench.core.post(queue, b"while down", bench.now, post=Post(ack=False))
    bench.restore_broker()
    bench.cut_connection()
    bench.restore_broker()
    assert bench.payloads() == [b"sent", b"not yet", b"while down"]
    assert not bench.acks


@rule
def test_s4_a_put_without_an_ack_request_in_an_unsent_batch_is_kept() -> None:
    """Other output during this time does not count."""
    bench = Bench(SessionOptions(batch_delay_s=5.0)).start()
    queue = open_queue(bench, read=True)
    bench.push(b"m")
    bench.core.post(queue, b"waits", bench.now, post=Post(ack=False))
    bench.turn()
    bench.send_from_broker(bytes.fromhex("000000084b020000"))  # a heartbeat is answered
    assert bench.received[-1] == "HEARTBEAT_RSP" and len(bench.core.unacked) == 1
    bench.cut_connection()
    bench.restore_broker()
    assert bench.payloads() == [b"waits"] and not bench.core.unacked


@rule
def test_s5_queues_are_reopened_first_then_pending_puts_are_sent_before_newer_ones(bench: Bench) -> None:
    writer, both = open_queue(bench), open_queue(bench, FANOUT, read=True)
    bench.acks_at_once = False
    bench.post(writer, b"1")
    bench.post(both, b"2")
    bench.post(writer, b"3")
    bench.cut_connection(up=False)
    bench.post(both, b"4")
    bench.received.clear()
    bench.silent.add("configureStream")
    bench.restore_broker()
    bench.post(writer, b"5")
    assert not bench.puts()
    bench.silent.clear()
    bench.answer(bench.requests[-1])
    bench.post(writer, b"6")
    kinds = [type(each) for each in bench.received]
    assert kinds == [schema.ClientIdentity, schema.OpenQueue, schema.OpenQueue, schema.ConfigureStream,
                     *[events.PutMessage] * 6]
    assert bench.payloads() == [b"1", b"2", b"3", b"4", b"5", b"6"]


@rule
def test_s6_a_put_older_than_the_deduplication_time_fails_at_the_retransmission() -> None:
    bench = Bench(deduplication_ms=1500).start()
    queue = open_queue(bench)
    bench.acks_at_once = False
    bench.post(queue, b"old")
    bench.advance(60.0)
    assert not bench.acks  # no timeout while connected
    bench.cut_connection(up=False)
    assert [(ack.token, ack.status) for ack in bench.acks] == [(b"old", Result.UNKNOWN)]
    bench.post(queue, b"young")
    bench.advance(1.4)
    assert len(bench.acks) == 1
    bench.advance(0.3)
    assert [ack.token for ack in bench.acks] == [b"old", b"young"]
    bench.restore_broker()
    assert bench.payloads() == [b"old"]


@rule
def test_s6_retransmitted_puts_do_not_fail_by_age_while_connected() -> None:
    bench = Bench(deduplication_ms=2000).start()
    queue = open_queue(bench)
    bench.acks_at_once = False
    bench.cut_connection(up=False)
    bench.post(queue, b"while down")
    bench.up = True
    bench.advance(1.0)
    assert bench.payloads() == [b"while down"]
    bench.advance(100.0)
    assert not bench.acks


@rule
def test_s6_after_a_suspend_of_the_machine_too_old_puts_fail() -> None:
    """No timer ran during this time: the age at the time of sending decides."""
    bench = Bench(SessionOptions(attempt_timeout_s=1e6), deduplication_ms=2000).start()
    queue = open_queue(bench)
    bench.acks_at_once = False
    bench.cut_connection(up=False)
    bench.post(queue, b"old")
    bench.silent.add("clientIdentity")
    bench.up = True
    bench.advance(1.0)
    bench.silent.clear()
    bench.now += 100.0
    bench._negotiate()
    assert bench.core.state is State.READY and not bench.payloads()
    assert [ack.status for ack in bench.acks] == [Result.UNKNOWN]


@rule
def test_s7_a_repeated_ack_or_one_for_an_unknown_guid_is_ignored(bench: Bench) -> None:
    queue = open_queue(bench)
    bench.post(queue, b"a")
    put = bench.puts()[0]
    bench.ack(put)
    bench.ack(put, status=5)
    put.guid = bytes(range(16))
    bench.ack(put)
    assert [(ack.token, ack.status) for ack in bench.acks] == [(b"a", Result.SUCCESS)]


@rule
def test_s8_a_lost_connection_fails_no_put(bench: Bench) -> None:
    queue = open_queue(bench)
    bench.acks_at_once = False
    bench.post(queue, b"a")
    bench.cut_connection(up=False)
    bench.advance(100.0)
    assert not bench.acks


@rule
def test_s9_a_confirm_without_a_connection_is_refused_and_not_kept(bench: Bench) -> None:
    open_queue(bench, read=True)
    bench.push(b"m")
    bench.cut_connection(up=False)
    with pytest.raises(SdkError) as caught:
        bench.messages[0].confirm()
    assert caught.value.result is Result.NOT_CONNECTED
    bench.silent.add("openQueue")
    bench.restore_broker()
    with pytest.raises(SdkError) as caught:  # connected, but the broker does not know the queue yet
        bench.messages[0].confirm()
    assert caught.value.result is Result.NOT_CONNECTED
    bench.silent.clear()
    bench.answer(bench.requests[-1])
    assert not bench.count(events.ConfirmMessage)
    bench.messages[0].confirm()  # possibly redelivered already; the broker ignores unknown CONFIRMs
    bench.turn()
    assert bench.last(events.ConfirmMessage).guid == bench.messages[0].guid


@rule
def test_s9_an_unsent_confirm_of_a_lost_connection_is_dropped(bench: Bench) -> None:
    open_queue(bench, read=True)
    bench.push(b"m")
    bench.messages[0].confirm()
    bench.cut_connection()
    bench.restore_broker()
    assert not bench.count(events.ConfirmMessage)


@rule
def test_s10_opens_and_configures_without_a_connection_are_sent_after_the_reconnect(bench: Bench) -> None:
    reader = open_queue(bench, read=True)
    bench.silent |= {"openQueue", "configureStream"}
    bench.core.configure(reader, QueueOptions(max_unconfirmed_messages=7), "configure", bench.now)
    bench.open(FANOUT)
    bench.cut_connection(up=False)
    bench.open(URI + "x")
    assert not {"configure", ("open", FANOUT), ("open", URI + "x")} & set(bench.done)
    bench.silent.clear()
    bench.restore_broker()
    assert {bench.done[key].result for key in ("configure", ("open", FANOUT), ("open", URI + "x"))} == {Result.SUCCESS}
    consumers = bench.last(schema.ConfigureStream).stream_parameters.subscriptions[0].consumers
    assert consumers[0].max_unconfirmed_messages == 7


@rule
@pytest.mark.parametrize("phase", ["openQueue", "configureStream"])
def test_s10_a_pending_open_restarts_on_the_next_connection(bench: Bench, phase: str) -> None:
    bench.silent.add(phase)
    bench.open(read=True)
    bench.cut_connection(up=False)
    assert ("open", URI) not in bench.done
    bench.silent.clear()
    bench.received.clear()
    bench.restore_broker()
    assert bench.done[("open", URI)].result is Result.SUCCESS
    assert [type(each) for each in bench.received] == [schema.ClientIdentity, schema.OpenQueue, schema.ConfigureStream]


@rule
def test_s10_requests_without_a_timeout_have_that_of_the_session() -> None:
    bench = Bench(SessionOptions(open_timeout_s=5.0, configure_timeout_s=7.0)).start()
    reader = open_queue(bench, read=True)
    bench.cut_connection(up=False)
    bench.open(FANOUT)
    bench.core.configure(reader, QueueOptions(), "configure", bench.now)
    bench.advance(6.0)
    assert bench.done[("open", FANOUT)].result is Result.TIMEOUT and "configure" not in bench.done
    bench.advance(2.0)
    assert bench.done["configure"].result is Result.TIMEOUT


@rule
def test_s10_requests_without_a_connection_time_out(bench: Bench) -> None:
    reader = open_queue(bench, read=True)
    bench.cut_connection(up=False)
    bench.open(FANOUT, timeout_s=5.0)
    bench.core.configure(reader, QueueOptions(), "configure", bench.now, timeout_s=6.0)
    bench.advance(5.5)
    assert bench.done[("open", FANOUT)].result is Result.TIMEOUT and "configure" not in bench.done
    bench.advance(1.0)
    assert bench.done["configure"].result is Result.TIMEOUT
    bench.restore_broker()
    assert FANOUT not in [each.handle_parameters.uri for each in bench.received if isinstance(each, schema.OpenQueue)]
    assert reader.state is QueueState.OPEN  # type: ignore[attr-defined]


@rule
def test_s11_a_close_without_a_connection_succeeds_and_the_queue_is_not_reopened(bench: Bench) -> None:
    queue = open_queue(bench, read=True)
    bench.cut_connection(up=False)
    bench.core.close(queue, "close", bench.now)
    bench.turn()
    assert bench.done["close"].result is Result.SUCCESS
    bench.received.clear()
    bench.restore_broker()
    assert [type(each) for each in bench.received] == [schema.ClientIdentity]


@rule
def test_s11_a_pending_close_succeeds_at_the_loss_of_the_connection(bench: Bench) -> None:
    queue = open_queue(bench, read=True)
    bench.silent |= {"closeQueue"}
    bench.core.close(queue, "close", bench.now)
    bench.turn()
    assert "close" not in bench.done
    bench.cut_connection()
    assert bench.done["close"].result is Result.SUCCESS


@rule
def test_s11_a_pending_close_in_its_first_phase_succeeds_at_the_loss_of_the_connection(bench: Bench) -> None:
    queue = open_queue(bench, read=True)
    bench.silent.add("configureStream")
    bench.core.close(queue, "close", bench.now)
    bench.turn()
    bench.silent.clear()
    bench.cut_connection()
    assert bench.done["close"].result is Result.SUCCESS and queue.state is QueueState.CLOSED  # type: ignore[attr-defined]
    bench.received.clear()
    bench.restore_broker()
    assert [type(each) for each in bench.received] == [schema.ClientIdentity]


@rule
@pytest.mark.parametrize("up", [True, False])
def test_s12_closing_a_queue_fails_only_its_own_pending_puts(bench: Bench, up: bool) -> None:
    queue, other = open_queue(bench), open_queue(bench, FANOUT)
    bench.acks_at_once = False
    bench.post(queue, b"a")
    bench.post(other, b"b")
    if not up:
        bench.cut_connection(up=False)
    bench.core.close(queue, "close", bench.now)
    bench.turn()
    assert [(ack.token, ack.status) for ack in bench.acks] == [(b"a", Result.UNKNOWN)]
    assert bench.log.index(f"ack {b'a'} UNKNOWN") < bench.log.index("done close SUCCESS")


@rule
def test_s13_a_refused_reopen_closes_the_queue_with_an_event_and_fails_its_puts(bench: Bench) -> None:
    queue = open_queue(bench)
    bench.acks_at_once = False
    bench.post(queue, b"a")
    bench.refuse["openQueue"] = Category.E_REFUSED
    bench.cut_connection()
    bench.restore_broker()
    assert queue.state is QueueState.CLOSED  # type: ignore[attr-defined]
    result = next(event for event in bench.events if event.kind is EventKind.QUEUE_REOPEN_RESULT)
    assert (result.uri, result.result) == (URI, Result.REFUSED)
    assert [(ack.token, ack.status) for ack in bench.acks] == [(b"a", Result.UNKNOWN)]
    with pytest.raises(SdkError) as caught:
        bench.post(queue, b"b")
    assert caught.value.result is Result.INVALID_QUEUE


@rule
def test_s13_a_reopen_with_a_refused_configure_closes_the_queue(bench: Bench) -> None:
    queue = open_queue(bench, read=True)
    bench.acks_at_once = False
    bench.post(queue, b"a")
    bench.refuse["configureStream"] = Category.E_INVALID_ARGUMENT
    bench.cut_connection()
    bench.received.clear()
    bench.restore_broker()
    assert queue.state is QueueState.CLOSED  # type: ignore[attr-defined]
    assert [type(each) for each in bench.received] == [schema.ClientIdentity, schema.OpenQueue, schema.ConfigureStream,
                                                    schema.CloseQueue]
    assert [(event.kind, event.result) for event in bench.events[-2:]] == [
        (EventKind.QUEUE_REOPEN_RESULT, Result.INVALID_ARGUMENT), (EventKind.STATE_RESTORED, Result.SUCCESS)]
    assert [(ack.token, ack.status) for ack in bench.acks] == [(b"a", Result.UNKNOWN)]


@rule
@pytest.mark.parametrize("refused", ["openQueue", "configureStream"])
def test_a_reopen_that_timed_out_at_the_broker_is_retried_on_another_connection(bench: Bench, refused: str) -> None:
    queue = open_queue(bench, read=True)
    bench.acks_at_once = False
    bench.post(queue, b"a")
    bench.refuse[refused] = Category.E_TIMEOUT
    bench.cut_connection()
    bench.restore_broker()
    assert queue.state is QueueState.REOPEN_PENDING and bench.acks == []  # type: ignore[attr-defined]
    bench.refuse.clear()
    bench.acks_at_once = True
    bench.restore_broker()
    assert queue.state is QueueState.OPEN  # type: ignore[attr-defined]
    assert [event.result for event in bench.events if event.kind is EventKind.QUEUE_REOPEN_RESULT] == [Result.SUCCESS]
    assert [(ack.token, ack.status) for ack in bench.acks] == [(b"a", Result.SUCCESS)]


@rule
def test_s14_an_open_without_response_resets_the_connection_and_leaves_the_queue_closed(bench: Bench) -> None:
    bench.silent.add("openQueue")
    queue = bench.open(timeout_s=10.0)
    bench.silent.clear()
    bench.advance(10.0)
    assert bench.done[("open", URI)].result is Result.TIMEOUT and queue.state is QueueState.CLOSED
    assert EventKind.CONNECTION_LOST in bench.kinds()
    bench.received.clear()
    bench.restore_broker()
    assert [type(each) for each in bench.received] == [schema.ClientIdentity]


@rule
def test_s14_a_close_without_response_resets_the_connection_and_leaves_the_queue_closed(bench: Bench) -> None:
    queue = open_queue(bench)
    bench.silent.add("closeQueue")
    bench.core.close(queue, "close", bench.now, timeout_s=10.0)
    bench.advance(11.0)
    assert bench.done["close"].result is Result.TIMEOUT and queue.state is QueueState.CLOSED  # type: ignore[attr-defined]
    assert bench.kinds().count(EventKind.CONNECTION_LOST) == 1


@rule
def test_s14_a_reopen_without_response_resets_the_connection_and_is_retried() -> None:
    bench = Bench(SessionOptions(open_timeout_s=10.0)).start()
    queue = open_queue(bench)
    bench.silent.add("openQueue")
    bench.cut_connection()
    bench.advance(11.0)
    assert bench.kinds().count(EventKind.CONNECTION_LOST) == 2
    bench.silent.clear()
    bench.restore_broker()
    assert queue.state is QueueState.OPEN  # type: ignore[attr-defined]
    assert bench.kinds()[-1] is EventKind.STATE_RESTORED


@rule
@pytest.mark.parametrize(("request_", "read"), [("openQueue", False), ("configureStream", True)])
def test_s14_a_missing_response_to_either_phase_of_an_open_resets_the_connection(bench: Bench, request_: str,
                                                                                 read: bool) -> None:
    bench.silent.add(request_)
    queue = bench.open(read=read, timeout_s=10.0)
    bench.advance(10.0)
    assert bench.done[("open", URI)].result is Result.TIMEOUT and queue.state is QueueState.CLOSED
    assert bench.kinds().count(EventKind.CONNECTION_LOST) == 1


@rule
def test_s14_a_missing_response_to_the_first_phase_of_a_close_resets_the_connection(bench: Bench) -> None:
    queue = open_queue(bench, read=True)
    bench.silent.add("configureStream")
    bench.core.close(queue, "close", bench.now, timeout_s=10.0)
    bench.advance(10.0)
    assert bench.done["close"].result is Result.TIMEOUT and queue.state is QueueState.CLOSED  # type: ignore[attr-defined]
    assert bench.kinds().count(EventKind.CONNECTION_LOST) == 1


@rule
def test_s14_a_missing_response_to_the_second_phase_of_a_reopen_resets_the_connection() -> None:
    bench = Bench(SessionOptions(open_timeout_s=10.0)).start()
    queue = open_queue(bench, read=True)
    bench.silent.add("configureStream")
    bench.cut_connection()
    bench.advance(11.0)
    assert bench.kinds().count(EventKind.CONNECTION_LOST) == 2
    bench.silent.clear()
    bench.restore_broker()
    assert queue.state is QueueState.OPEN and bench.kinds()[-1] is EventKind.STATE_RESTORED  # type: ignore[attr-defined]


@rule
def test_s15_posts_are_refused_from_the_high_watermark_until_the_low_watermark(bench: Bench) -> None:
    """The core raises BW_LIMIT at once and adds RoomAvailable later; fronts wait between them."""
    queue = open_queue(bench)
    bench.acks_at_once = False
    bench.post(queue, b"a")
    bench.core.pause_posts(bench.now)
    with pytest.raises(SdkError) as caught:
        bench.post(queue, b"b")
    assert caught.value.result is Result.BW_LIMIT
    assert not bench.closes and not bench.acks and not bench.rooms  # no reset, no message dropped
    bench.core.resume_posts(bench.now)
    bench.turn()
    assert bench.rooms == 1
    bench.post(queue, b"b")
    assert bench.payloads() == [b"a", b"b"]
    assert bench.kinds()[-2:] == [EventKind.CHANNEL_HIGH_WATERMARK, EventKind.CHANNEL_LOW_WATERMARK]


@rule
def test_s15_the_bytes_of_unacknowledged_posts_are_limited() -> None:
    bench = Bench(SessionOptions(unacked_bytes_max=1000), acks_at_once=False).start()
    queue = open_queue(bench)
    bench.post(queue, b"a" * 600)
    bench.cut_connection(up=False)
    with pytest.raises(SdkError) as caught:
        bench.post(queue, b"b" * 600)
    assert caught.value.result is Result.BW_LIMIT
    bench.restore_broker()
    bench.ack(bench.puts()[0])
    assert bench.rooms == 1
    bench.post(queue, b"b" * 600)


@rule
def test_s16_events_are_raised_in_the_documented_order(bench: Bench) -> None:
    open_queue(bench)
    open_queue(bench, FANOUT)
    bench.cut_connection()
    bench.restore_broker()
    assert bench.kinds() == [EventKind.CONNECTED, EventKind.CONNECTION_LOST, EventKind.RECONNECTED,
                             EventKind.QUEUE_REOPEN_RESULT, EventKind.QUEUE_REOPEN_RESULT, EventKind.STATE_RESTORED]
    bench.core.stop("stop", bench.now)
    bench.turn()
    assert bench.kinds()[-1] is EventKind.DISCONNECTED


@rule
def test_s17_only_messages_with_current_subscription_ids_are_delivered(bench: Bench) -> None:
    open_queue(bench, read=True)
    bench.push(b"first", s_id=1)
    bench.cut_connection()
    bench.restore_broker()
    bench.push(b"stale", s_id=1)
    bench.push(b"second", s_id=2)
    bench.push(b"unknown", s_id=2, q_id=77)
    assert [message.payload for message in bench.messages] == [b"first", b"second"]
    assert bench.core.counters().dropped == 2


@rule
def test_s17_subscription_ids_of_a_lost_connection_are_invalid_during_the_reopen(bench: Bench) -> None:
    open_queue(bench, read=True)
    bench.silent.add("openQueue")
    bench.cut_connection()
    bench.restore_broker()
    bench.push(b"stale", s_id=1)
    assert not bench.messages and bench.core.counters().dropped == 1


@rule
def test_s17_after_a_reconfiguration_only_its_subscription_ids_are_valid(bench: Bench) -> None:
    queue = open_queue(bench, read=True)
    bench.core.configure(queue, QueueOptions(7), "configure", bench.now)  # type: ignore[arg-type]
    bench.turn()
    bench.push(b"stale", s_id=1)
    bench.push(b"new", s_id=2)
    assert [message.payload for message in bench.messages] == [b"new"]


@rule
def test_s18_a_stop_request_of_the_broker_has_no_effect_until_the_connection_is_lost(bench: Bench) -> None:
    queue = open_queue(bench)
    before = len(bench.events), len(bench.received)
    bench.send_from_broker(ControlMessage(5, "clusterMessage", ClusterMessage("stopRequest", StopRequest())))
    assert (len(bench.events), len(bench.received)) == before
    bench.post(queue, b"a")
    bench.cut_connection()
    bench.restore_broker()
    assert bench.kinds()[1:3] == [EventKind.CONNECTION_LOST, EventKind.RECONNECTED]


@rule
def test_s19_stop_fails_pending_requests_and_posts_after_the_drain_time() -> None:
    bench = Bench(SessionOptions(drain_s=2.0), acks_at_once=False).start()
    queue = open_queue(bench)
    bench.silent |= {"openQueue", "disconnect"}
    bench.open(FANOUT)
    bench.post(queue, b"a")
    bench.core.stop("stop", bench.now)
    bench.turn()
    assert bench.done[("open", FANOUT)].result is Result.CANCELED
    assert bench.core.state is State.DRAINING and not bench.acks
    bench.advance(2.0)
    assert bench.core.state is State.DISCONNECTING
    bench.cut_connection()
    assert [(ack.token, ack.status) for ack in bench.acks] == [(b"a", Result.UNKNOWN)]
    assert bench.done["stop"].result is Result.SUCCESS
    connects = len(bench.connects)
    bench.advance(1000.0)
    assert bench.payloads() == [b"a"] and len(bench.connects) == connects  # no reconnect after the stop


@rule
@pytest.mark.parametrize("state", ["draining", "disconnecting"])
def test_s19_a_connection_lost_while_stopping_ends_the_session(state: str) -> None:
    bench = Bench(SessionOptions(drain_s=10.0), acks_at_once=False).start()
    bench.silent.add("disconnect")
    bench.post(open_queue(bench), b"a")
    bench.core.stop("stop", bench.now, drain=state == "draining")
    bench.turn()
    assert bench.core.state is State[state.upper()]
    bench.cut_connection()
    assert bench.core.state is State.STOPPED and bench.done["stop"].result is Result.SUCCESS
    assert [ack.status for ack in bench.acks] == [Result.UNKNOWN]
    bench.advance(1000.0)
    assert len(bench.connects) == 1


@rule
def test_s19_stop_cancels_pending_requests_at_once() -> None:
    """With a connection, where posts are drained first, and without one."""
    for down in (False, True):
        bench = Bench(SessionOptions(drain_s=10.0), acks_at_once=False).start()
        reader = open_queue(bench, read=True)
        bench.post(reader, b"a")  # type: ignore[arg-type]
        if down:
            bench.cut_connection(up=False)
        bench.silent |= {"openQueue", "configureStream"}
        bench.open(FANOUT)
        bench.core.configure(reader, QueueOptions(7), "configure", bench.now)  # type: ignore[arg-type]
        bench.turn()
        bench.core.stop("stop", bench.now)
        bench.turn()
        assert bench.done[("open", FANOUT)].result is bench.done["configure"].result is Result.CANCELED
        assert ("stop" in bench.done) is down


@rule
@pytest.mark.parametrize("state", [State.IDLE, State.WAITING, State.CONNECTING, State.NEGOTIATING])
def test_s19_a_stop_before_the_negotiation_is_final(state: State) -> None:
    bench = Bench()
    bench.silent.add("clientIdentity")
    if state is not State.IDLE:
        bench.up = state is State.NEGOTIATING
        bench.core.start("start", bench.now)
        if state is not State.CONNECTING:
            bench.turn()
    assert bench.core.state is state
    bench.core.stop("stop", bench.now)
    bench.turn()
    assert bench.core.state is State.STOPPED and bench.done["stop"].result is Result.SUCCESS
    assert state is State.IDLE or bench.done["start"].result is Result.CANCELED
    connects, bench.up = len(bench.connects), True
    bench.advance(1000.0)
    assert len(bench.connects) == connects and bench.core.state is State.STOPPED


@rule
@pytest.mark.parametrize("stopped", [False, True])
def test_s19_a_session_is_started_once(bench: Bench, stopped: bool) -> None:
    if stopped:
        bench.core.stop("stop", bench.now)
        bench.turn()
    with pytest.raises(SdkError):
        bench.core.start("again", bench.now)
    bench.advance(10.0)
    assert len(bench.connects) == 1


@rule
def test_s19_a_stop_during_a_reconnect_ends_it() -> None:
    bench = Bench(acks_at_once=False).start()
    queue = open_queue(bench)
    bench.post(queue, b"a")
    bench.cut_connection(up=False)
    bench.core.stop("stop", bench.now)
    bench.turn()
    assert bench.done["stop"].result is Result.SUCCESS and [ack.status for ack in bench.acks] == [Result.UNKNOWN]
    bench.up = True
    bench.advance(1000.0)
    assert len(bench.connects) == 1


@rule
def test_s20_reconnects_continue_with_backoff_and_rotate_over_all_brokers() -> None:
    brokers = parse_brokers("tcp://a:1,tcp://b:2,tls://c:3")
    bench = Bench(SessionOptions(brokers=brokers)).start()
    bench.cut_connection(up=False)
    bench.connects.clear()
    bench.advance(3600.0)
    hosts = [connect.address.host for connect in bench.connects]
    assert hosts[:6] == ["b", "c", "a", "b", "c", "a"] and set(hosts) == {"a", "b", "c"}
    assert 3 * 3600 / 30 <= len(hosts) <= 3 * 3600 / 15 + 30
    bench.up = True
    bench.advance(31.0)
    assert bench.core.state is State.READY


@rule
def test_s20_the_backoff_grows_to_its_limit_and_restarts_after_a_success() -> None:
    bench = Bench(SessionOptions(backoff_first_s=1.0, backoff_max_s=8.0)).start()
    for _ in range(2):
        bench.cut_connection(up=False)
        times = []
        for _ in range(5):
            due = bench.core.next_deadline()
            assert due is not None
            times.append(due - bench.now)
            bench.advance(due - bench.now)
        assert times == [0.75, 1.5, 3.0, 6.0, 6.0]  # three quarters of 1, 2, 4, 8, 8: the random factor is one half here
        bench.up = True
        bench.advance(10.0)
        assert bench.core.state is State.READY


@rule
def test_s21_heartbeats_are_answered_and_missing_ones_close_the_connection() -> None:
    bench = Bench(heartbeat_ms=3000, missed_max=10).start()
    bench.send_from_broker(bytes.fromhex("000000084b020000"))
    assert bench.received[-1] == "HEARTBEAT_RSP"
    bench.advance(3.0)
    bench.received.clear()
    bench.up = False
    bench.advance(30.0)
    assert bench.received == ["HEARTBEAT_REQ"] * 10 and EventKind.CONNECTION_LOST not in bench.kinds()
    bench.advance(3.0)
    assert bench.kinds()[-1] is EventKind.CONNECTION_LOST


@rule
def test_s21_any_received_event_counts_as_a_heartbeat() -> None:
    bench = Bench(heartbeat_ms=3000, missed_max=2).start()
    for _ in range(10):
        bench.advance(6.0)
        bench.send_from_broker(bytes.fromhex("000000084c020000"))
    assert EventKind.CONNECTION_LOST not in bench.kinds()


@rule
def test_s22_guids_differ_between_clients_and_after_a_restart_within_one_tick() -> None:
    made = []
    for client_id in (b"client", b"CLIENT"):  # two clients, or one that was restarted: different client ids
        bench = Bench(client_id=client_id).start()
        queue = open_queue(bench)
        made += [bench.post(queue, b"x") for _ in range(100)]
    assert len(set(made)) == 200


@rule
def test_s23_after_a_reconnect_delivery_restarts_with_the_first_unconfirmed_message(bench: Bench) -> None:
    open_queue(bench, read=True)
    for number in range(3):
        bench.push(b"m%d" % number, guid=bytes(15) + bytes([number + 1]))
    bench.messages[0].confirm()
    bench.turn()
    bench.cut_connection()
    bench.restore_broker()
    for number in (1, 2, 3):
        bench.push(b"m%d" % number, s_id=2, guid=bytes(15) + bytes([number + 1]), flags=4 if number < 3 else 0)
    assert [message.payload for message in bench.messages] == [b"m0", b"m1", b"m2", b"m1", b"m2", b"m3"]
    assert [message.redelivered for message in bench.messages] == [False, False, False, True, True, False]
