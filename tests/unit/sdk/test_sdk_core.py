"""Session core: batching, groups, subscriptions, credentials, health, slow consumers."""

from __future__ import annotations

import logging
import zlib
from dataclasses import replace
from enum import IntEnum, StrEnum

import pytest
from kit import data_events as events
from kit.data_events import encode_options
from kit.sdk_kit import FANOUT, FEATURES, URI, Bench

from bmqtwist.errors import Category, LocalError
from bmqtwist.sdk import (
    Credential,
    EventKind,
    HealthMonitor,
    JsonCodec,
    PropertyType,
    QueueOptions,
    Result,
    SdkError,
    SessionOptions,
    Subscription,
    parse_brokers,
)
from bmqtwist.sdk._core.outbox import PostGroup
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk._core.states import QueueState, State
from bmqtwist.wire import properties, schema
from bmqtwist.wire.application_data import unpack_data
from bmqtwist.wire.fast import sub_queue_ids
from bmqtwist.wire.options import SubQueueIds, SubQueueInfo, SubQueueInfos

HEARTBEAT = bytes.fromhex("000000084c020000")


def test_posts_of_one_turn_are_sent_in_one_event() -> None:
    bench = Bench().start()
    queue = bench.open()
    for number in range(5):
        bench.post(queue, b"%d" % number, turn=False)
    assert len(bench.core.take_output()) == 1


def test_a_batch_is_limited_in_bytes_except_for_a_single_message() -> None:
    bench = Bench(SessionOptions(batch_bytes_max=1000)).start()
    queue = bench.open()
    for size in (300, 300, 300, 300, 5000, 10):
        bench.post(queue, b"x" * size, turn=False)
    chunks = bench.core.take_output()
    found = [[len(put.data) for put in events.decode_put(chunk, 8, len(chunk))[0]] for chunk in chunks]
    assert found == [[300, 300], [300, 300], [5000], [10]]


def test_a_delayed_batch_is_sent_by_time_size_or_flush() -> None:
    bench = Bench(SessionOptions(batch_delay_s=0.5, batch_bytes_max=1000)).start()
    queue = bench.open()
    bench.post(queue, b"a")
    bench.post(queue, b"b")
    assert not bench.puts()
    bench.advance(0.6)
    assert bench.payloads() == [b"a", b"b"]
    bench.post(queue, b"x" * 2000)
    assert len(bench.puts()) == 3
    bench.post(queue, b"c")
    assert len(bench.puts()) == 3
    bench.turn(flush=True)
    assert len(bench.puts()) == 4
    bench.post(queue, b"d")
    bench.core.close(queue, "close", bench.now)
    bench.turn()
    assert isinstance(bench.received[-1], schema.CloseQueue) and bench.payloads()[-1] == b"d"  # not after its close


def test_a_guid_given_by_the_application_is_refused_while_it_is_pending() -> None:
    bench = Bench(acks_at_once=False).start()
    queue = bench.open()
    guid = b"\x40" + bytes(15)
    assert bench.core.post(queue, b"x", bench.now, post=Post(guid=guid)) == guid
    with pytest.raises(SdkError) as raised:
        bench.core.post(queue, b"x", bench.now, post=Post(guid=guid))
    assert raised.value.result is Result.ALREADY_IN_PROGRESS
    bench.turn()
    assert [put.guid for put in bench.puts()] == [guid] and len(bench.core.unacked) == 1


def test_a_group_completes_after_its_last_ack_and_counts_failures() -> None:
    bench = Bench(acks_at_once=False).start()
    queue = bench.open()
    group = PostGroup("group", acks={})
    guids = [bench.core.post(queue, b"x", bench.now, post=Post(group=group, token="t")) for _ in range(3)]
    bench.core.seal(group)
    bench.turn()
    bench.ack(*bench.puts()[:2])
    assert "group" not in bench.done
    bench.ack(bench.puts()[2], status=1)
    assert bench.log[-2:] == ["ack t LIMIT_MESSAGES", "done group SUCCESS"]
    assert (group.failures, [ack.status for ack in group.failed]) == (1, [Result.LIMIT_MESSAGES])
    assert group.acks is not None and list(group.acks) == guids
    bench.core.seal(PostGroup("empty"))
    bench.turn()
    assert "empty" in bench.done


def test_a_negative_ack_without_a_waiting_caller_is_reported() -> None:
    bench = Bench(acks_at_once=False).start()
    queue = bench.open()
    for status in (0, 6):
        bench.core.post(queue, b"x", bench.now)
        bench.turn()
        bench.ack(bench.puts()[-1], status=status)
    assert [ack.status for ack in bench.acks] == [Result.STORAGE_FAILURE]


def test_an_ack_has_the_correlation_of_its_post() -> None:
    bench = Bench().start()
    bench.post(bench.open(), b"x", correlation={"my": "thing"})
    assert bench.acks[0].correlation == {"my": "thing"}


@pytest.mark.parametrize("v2", [True, False])
@pytest.mark.parametrize("compress", [True, False])
def test_properties_and_payload_are_encoded_in_both_styles_with_and_without_compression(v2: bool, compress: bool) -> None:
    features = FEATURES if v2 else FEATURES.replace("MPS:MESSAGE_PROPERTIES_EX;", "")
    bench = Bench(features=features).start()
    queue = bench.open()
    values = {"b": True, "c": 65, "s": -5, "i": 1 << 30, "l": 1 << 60, "t": "täxt", "x": b"\0\xff"}
    types = {"c": PropertyType.CHAR, "s": PropertyType.SHORT, "i": PropertyType.INT32}
    bench.post(queue, b"payload " * 500, values=values, types=types, compress=compress)
    put = bench.puts()[0]
    assert bool(put.schema_id) is v2 and bool(put.compression) is compress
    area, payload = unpack_data(put.data, True, put.compression, put.schema_id)
    found = properties.decode(area, v2)
    assert payload == b"payload " * 500 and {name: value for name, (_, value) in found.items()} == values
    assert {name: found[name][0] for name in types} == types and list(found) == sorted(values)
    assert {name: found[name][0].name for name in "btxl"} == {"b": "BOOL", "t": "STRING", "x": "BINARY", "l": "INT64"}


def test_members_of_enumerations_are_values_of_properties_as_their_base_classes_are() -> None:
    class Color(StrEnum):
        RED = "red"

    class Number(IntEnum):
        ONE = 1

    bench = Bench(features=FEATURES).start()
    bench.post(bench.open(), b"x", values={"color": Color.RED, "number": Number.ONE})
    put = bench.puts()[0]
    area, _ = unpack_data(put.data, True, put.compression, put.schema_id)
    assert properties.decode(area, True) == {"color": (PropertyType.STRING, "red"), "number": (PropertyType.INT64, 1)}


def test_only_payloads_from_the_threshold_on_are_compressed() -> None:
    bench = Bench(SessionOptions(compression=True, compression_threshold_bytes=2000)).start()
    queue = bench.open()
    for size, more in ((1999, {}), (2000, {}), (2000, {"compress": False})):
        bench.post(queue, b"x" * size, **more)
    assert [put.compression for put in bench.puts()] == [0, 1, 0]
    assert zlib.decompress(bench.puts()[1].data) == b"x" * 2000


def test_pending_posts_are_converted_for_a_broker_with_old_style_properties() -> None:
    bench = Bench(acks_at_once=False).start()
    queue = bench.open()
    guid = bench.post(queue, b"payload", values={"n": 1})
    bench.features = "PROTOCOL_ENCODING:BER,JSON"
    bench.cut_connection()
    bench.restore_broker()
    put = bench.puts()[-1]
    area, payload = unpack_data(put.data, True, put.compression, put.schema_id)
    assert (put.guid, put.schema_id, payload) == (guid, 0, b"payload")
    assert properties.decode(area, False) == {"n": (PropertyType.INT64, 1)}


@pytest.mark.parametrize(("payload", "more", "error"), [
    (b"", {}, SdkError), (b"x", {"values": {"_x": 1}}, LocalError), (b"x", {"values": {"x": 1.5}}, LocalError),
    (b"x", {"types": {"x": PropertyType.BOOL}}, LocalError), (b"x" * ((64 << 20) + 1), {}, SdkError),
    (b"x", {"values": {"x": 1 << 40}, "types": {"x": PropertyType.INT32}}, LocalError)])
def test_an_invalid_post_is_refused_without_a_pending_put(payload: bytes, more: dict[str, object],
                                                          error: type[Exception]) -> None:
    bench = Bench().start()
    queue = bench.open()
    group = PostGroup()
    with pytest.raises(error):
        bench.core.post(queue, payload, bench.now, post=Post(group=group), **more)  # type: ignore[arg-type]
    assert not bench.core.unacked and not group.outstanding


def test_each_subscription_has_its_own_options_and_messages_refer_to_theirs() -> None:
    bench = Bench().start()
    small = Subscription("n < 5", max_unconfirmed_messages=7, consumer_priority=3, context="small")
    large = Subscription("n >= 5", max_unconfirmed_bytes=99, context="large")
    bench.open(read=True, write=False, options=QueueOptions(subscriptions=(small, large)))
    sent = bench.last(schema.ConfigureStream).stream_parameters.subscriptions
    assert [(each.s_id, each.expression.text, each.expression.version) for each in sent] == [
        (1, "n < 5", 1), (2, "n >= 5", 1)]
    assert sent[0].consumers[0] == schema.ConsumerInfo(7, 32 << 20, 3, 1)
    bench.push(b"a", s_id=2)
    assert bench.messages[0].subscription is large and bench.messages[0].subscription.context == "large"


@pytest.mark.parametrize("text", ["n <", "1 < 2", "x < y < z", "n == 1 && " * 20 + "n == 1"])
def test_an_invalid_expression_is_refused_at_its_creation(text: str) -> None:
    with pytest.raises(LocalError):
        Subscription(text)


def test_a_broker_without_subscriptions_receives_the_older_request_and_expressions_are_refused() -> None:
    bench = Bench(features="PROTOCOL_ENCODING:BER,JSON").start()
    bench.open(FANOUT + "?id=a", read=True, write=False, options=QueueOptions(5, 6, 7))
    sent = bench.last(schema.ConfigureQueueStream).stream_parameters
    assert sent == schema.QueueStreamParameters(schema.SubQueueIdInfo(1, "a"), 5, 6, 7, 1)
    bench.push(b"m", s_id=1)
    assert bench.messages[0].payload == b"m"
    bench.open(URI, read=True, options=QueueOptions(subscriptions=(Subscription("n == 1"),)))
    assert bench.done[("open", URI)].result is Result.NOT_SUPPORTED


@pytest.mark.parametrize(("area", "count"), [
    (b"", 1), (encode_options([SubQueueInfos((SubQueueInfo(1),))]), 1),
    (encode_options([SubQueueInfos((SubQueueInfo(0),), True)]), 1),
    (encode_options([SubQueueIds((1, 1))]), 2), (encode_options([SubQueueIds((1, 9))]), 1), (b"\xff\0\0\2" + b"\0" * 4, 0)])
def test_a_push_with_any_form_of_options_is_delivered(area: bytes, count: int) -> None:
    bench = Bench().start()
    bench.open(read=True)
    bench.send_from_broker(events.encode_push([events.PushMessage(0, bytes(16), b"m", options=area)]))
    assert len(bench.messages) == count


def test_a_reconfigured_queue_accepts_old_ids_until_the_response_and_then_new_ones() -> None:
    bench = Bench().start()
    queue = bench.open(FANOUT + "?id=a", read=True, write=False)
    bench.silent.add("configureStream")
    bench.core.configure(queue, QueueOptions(9), "configure", bench.now)
    bench.turn()
    bench.push(b"old", s_id=1)
    bench.answer(bench.requests[-1], force=True)
    bench.push(b"new", s_id=2)
    bench.push(b"dead", s_id=1)
    assert [message.payload for message in bench.messages] == [b"old", b"new"]
    bench.messages[1].confirm()
    bench.turn()
    assert bench.last(events.ConfirmMessage).sub_queue_id == 1  # the sub-queue's, not the subscription's
    with pytest.raises(SdkError) as caught:
        bench.silent.add("configureStream")
        bench.core.configure(queue, QueueOptions(), "a", bench.now)
        bench.core.configure(queue, QueueOptions(), "b", bench.now)
    assert caught.value.result is Result.ALREADY_IN_PROGRESS


def test_a_refused_reconfiguration_keeps_the_old_options() -> None:
    bench = Bench().start()
    queue = bench.open(read=True)
    bench.refuse["configureStream"] = Category.E_INVALID_ARGUMENT
    bench.core.configure(queue, QueueOptions(9), "configure", bench.now)
    bench.turn()
    assert bench.done["configure"].result is Result.INVALID_ARGUMENT and queue.options == QueueOptions()
    bench.push(b"m", s_id=1)
    assert len(bench.messages) == 1


def test_broadcast_messages_are_not_confirmed() -> None:
    bench = Bench(routing_flags=7).start()
    bench.open(read=True)
    bench.push(b"m")
    bench.messages[0].confirm()
    bench.turn()
    assert not bench.count(events.ConfirmMessage)


def test_an_unregistered_app_causes_a_warning() -> None:
    bench = Bench(routing_flags=2 | 1 << 32).start()
    bench.open(FANOUT, read=True)
    [note] = [note for note in bench.notes if note.level == logging.WARNING]
    assert note.text == (f"{FANOUT}: the app is not registered in the domain: it receives no messages until an operator "
                         "adds it")


def test_the_block_of_a_message_confirms_it_unless_it_raises() -> None:
    bench = Bench().start()
    bench.open(read=True)
    bench.push(b"a", guid=b"a" * 16)
    bench.push(b"b", guid=b"b" * 16)
    with bench.messages[0]:
        pass
    with pytest.raises(KeyError), bench.messages[1]:
        raise KeyError
    bench.turn()
    assert [each.guid for each in bench.received if isinstance(each, events.ConfirmMessage)] == [b"a" * 16]


def test_the_block_of_a_message_ends_without_an_error_if_connection_or_queue_is_lost() -> None:
    bench = Bench().start()
    queue = bench.open(read=True)
    bench.push(b"a")
    bench.cut_connection(up=False)
    with bench.messages[0]:
        pass
    with pytest.raises(SdkError) as caught:
        bench.messages[0].confirm()
    assert caught.value.result is Result.NOT_CONNECTED and not bench.count(events.ConfirmMessage)
    bench.restore_broker()
    bench.core.close(queue, None, bench.now)
    bench.turn()
    with bench.messages[0]:
        pass
    with pytest.raises(SdkError) as caught:
        bench.messages[0].confirm()
    assert caught.value.result is Result.INVALID_QUEUE


def test_confirms_of_one_turn_are_sent_in_one_event() -> None:
    bench = Bench().start()
    bench.open(read=True)
    for number in range(3):
        bench.push(b"m", guid=bytes([number]) * 16)
    for message in bench.messages:
        message.confirm()
    assert len(bench.core.take_output()) == 1


def test_a_slow_consumer_causes_one_high_and_one_low_watermark_event() -> None:
    bench = Bench(SessionOptions(slow_consumer_high=3, slow_consumer_low=1)).start()
    bench.open(read=True)
    for _ in range(5):
        bench.push(b"m")
    assert bench.kinds()[1:] == [EventKind.SLOWCONSUMER_HIGHWATERMARK]
    bench.core.on_consumed(3)
    bench.turn()
    assert len(bench.kinds()) == 2
    bench.core.on_consumed(1)
    bench.turn()
    assert bench.kinds()[2:] == [EventKind.SLOWCONSUMER_NORMAL]


def test_a_credential_is_sent_before_the_negotiation_and_renewed_before_its_end() -> None:
    shown = []

    def credential() -> Credential:
        shown.append(len(shown))
        return Credential.basic("me", f"secret{len(shown)}")
    bench = Bench(SessionOptions(credential=credential)).start()
    assert [type(each) for each in bench.received] == [schema.AuthenticationRequest, schema.ClientIdentity]
    assert bench.received[0] == schema.AuthenticationRequest("BASIC", b"me:secret1")
    bench.advance(54.5)  # of 60 s: nine tenths
    assert bench.received[-1] == schema.AuthenticationRequest("BASIC", b"me:secret2")
    bench.advance(54.0)
    assert bench.received[-1].data == b"me:secret3" and bench.core.state is State.READY


@pytest.mark.parametrize("request_", ["authenticationRequest", "clientIdentity"])
def test_a_start_refused_by_every_broker_fails(request_: str) -> None:
    brokers = parse_brokers("tcp://a:1,tcp://b:1")
    bench = Bench(SessionOptions(credential=Credential("ANONYMOUS"), brokers=brokers))
    bench.refuse[request_] = Category.E_REFUSED
    bench.start().advance(5.0)
    assert len(bench.connects) == 2 and bench.done["start"].result is Result.REFUSED
    assert bench.core.state is State.STOPPED


def test_repeated_refusals_by_one_broker_do_not_fail_a_start_while_the_other_is_down() -> None:
    """The start fails after a refusal by each broker; a repeated refusal by the same broker does not count."""
    bench = Bench(SessionOptions(brokers=parse_brokers("tcp://a:1,tcp://b:1")))
    bench.refuse["clientIdentity"] = Category.E_REFUSED
    bench.down.add("b")
    bench.start().advance(10.0)
    assert [each.address.host for each in bench.connects].count("a") > 2
    assert "start" not in bench.done and bench.core.state is State.WAITING
    bench.down.clear()
    bench.advance(30.0)
    assert bench.connects[-1].address.host == "b" and bench.done["start"].result is Result.REFUSED


def test_an_exception_of_the_credential_function_is_reported_and_retried() -> None:
    def broken() -> Credential:
        raise OSError("vault is sealed")
    bench = Bench(SessionOptions(credential=broken, connect_timeout_s=10.0)).start()
    bench.advance(11.0)
    assert bench.done["start"].result is Result.TIMEOUT and EventKind.ERROR in bench.kinds()


def test_an_invalid_credential_is_reported_at_the_start_and_at_the_renewal() -> None:
    """For example a coroutine: time continues, and no exception reaches the loop."""
    given: list[object] = ["no credential", Credential("BASIC", b"good"), object()]
    bench = Bench(SessionOptions(credential=lambda: given.pop(0) if len(given) > 1 else given[0])).start()  # type: ignore
    assert EventKind.ERROR in bench.kinds() and bench.core.state is State.WAITING
    bench.advance(5.0)
    assert bench.core.state is State.READY
    bench.events.clear()
    bench.advance(60.0)
    assert bench.kinds() == [EventKind.ERROR] and bench.core.state is State.READY


def test_a_start_without_a_reachable_broker_times_out() -> None:
    bench = Bench(SessionOptions(connect_timeout_s=10.0))
    bench.up = False
    bench.start().advance(100.0)
    assert bench.done["start"].result is Result.TIMEOUT and bench.kinds() == [EventKind.CONNECTION_TIMEOUT]
    assert 3 < len(bench.connects) < 15


def test_a_connection_attempt_without_a_negotiation_response_times_out() -> None:
    bench = Bench(SessionOptions(attempt_timeout_s=5.0))
    bench.silent.add("clientIdentity")
    bench.start().advance(4.0)
    assert len(bench.connects) == 1
    bench.silent.clear()
    bench.advance(3.0)
    assert len(bench.connects) == 2 and bench.done["start"].result is Result.SUCCESS


def test_an_unhealthy_host_suspends_only_queues_with_the_option() -> None:
    bench = Bench().start()
    minding = QueueOptions(suspends_on_bad_host_health=True)
    reader = bench.open(read=True, options=minding)
    other = bench.open(FANOUT, read=True)
    bench.core.set_health(False, bench.now)
    bench.turn()
    assert not bench.last(schema.ConfigureStream).stream_parameters.subscriptions and reader.suspended
    with pytest.raises(SdkError) as caught:
        bench.post(reader, b"x")
    assert caught.value.result is Result.QUEUE_SUSPENDED
    bench.post(other, b"x")
    bench.core.set_health(True, bench.now)
    bench.turn()
    assert bench.kinds()[1:] == [EventKind.HOST_UNHEALTHY, EventKind.QUEUE_SUSPENDED, EventKind.QUEUE_RESUMED,
                                 EventKind.HOST_HEALTH_RESTORED]
    bench.push(b"m", s_id=3)
    assert len(bench.messages) == 1


def test_a_suspended_queue_is_reopened_without_deliveries_and_resumed_later() -> None:
    bench = Bench().start()
    queue = bench.open(read=True, options=QueueOptions(suspends_on_bad_host_health=True))
    bench.core.set_health(False, bench.now)
    bench.turn()
    bench.received.clear()
    bench.cut_connection()
    bench.restore_broker()
    assert [type(each) for each in bench.received] == [schema.ClientIdentity, schema.OpenQueue]
    bench.core.set_health(True, bench.now)
    bench.turn()
    assert isinstance(bench.received[-1], schema.ConfigureStream) and not queue.suspended
    assert bench.kinds()[-2:] == [EventKind.QUEUE_RESUMED, EventKind.HOST_HEALTH_RESTORED]


def test_a_health_change_during_a_suspension_takes_effect_after_it() -> None:
    bench = Bench().start()
    queue = bench.open(read=True, options=QueueOptions(suspends_on_bad_host_health=True))
    bench.silent.add("configureStream")
    bench.core.set_health(False, bench.now)
    bench.turn()
    bench.core.set_health(True, bench.now)
    bench.turn()
    bench.silent.clear()
    bench.answer(bench.requests[-1])
    assert not queue.suspended and bench.last(schema.ConfigureStream).stream_parameters.subscriptions


def test_queue_ids_are_shared_by_the_apps_of_a_queue_and_the_last_close_is_final() -> None:
    bench = Bench().start()
    queues = [bench.open(uri, read=read, write=not read) for uri, read in (
        (FANOUT + "?id=a", True), (FANOUT + "?id=b", True), (FANOUT, False), (URI, False))]
    assert [(queue.q_id, queue.sub_id) for queue in queues] == [(0, 1), (0, 2), (0, 0), (1, 0)]
    for queue in queues[:3]:
        bench.core.close(queue, "close", bench.now)
        bench.turn()
    assert [each.is_final for each in bench.received if isinstance(each, schema.CloseQueue)] == [False, False, True]
    assert bench.open(FANOUT).q_id == 2


def test_a_close_waits_for_the_pending_open_of_its_queue() -> None:
    bench = Bench().start()
    bench.silent.add("openQueue")
    queue = bench.open()
    bench.core.close(queue, "close", bench.now)
    bench.turn()
    assert "close" not in bench.done
    bench.answer(bench.requests[-1], force=True)
    assert bench.done["close"].result is Result.SUCCESS and queue.state is QueueState.CLOSED
    assert bench.done[("open", URI)].result is Result.SUCCESS


def test_a_response_after_the_timeout_is_ignored() -> None:
    bench = Bench().start()
    queue = bench.open(read=True)
    bench.silent.add("configureStream")
    bench.core.configure(queue, QueueOptions(9), "configure", bench.now, timeout_s=1.0)
    bench.advance(2.0)
    assert bench.done["configure"].result is Result.TIMEOUT
    late = bench.requests[-1]
    bench.answer(late, force=True)
    for s_id in (1, 2):  # the broker may have applied either
        bench.push(b"m", s_id=s_id)
    assert len(bench.messages) == 2 and queue.options == QueueOptions()


def test_requests_that_time_out_leave_no_pending_request() -> None:
    bench = Bench().start()
    queue = bench.open(read=True)
    bench.silent.add("configureStream")
    for number in range(100):
        bench.core.configure(queue, QueueOptions(number), "configure", bench.now, timeout_s=1.0)
        bench.advance(2.0)
    assert not bench.core._connection._requests.pending


@pytest.mark.parametrize("seconds", [0, 0.0, -1.0, float("nan")])
def test_a_request_with_a_timeout_of_zero_or_less_is_refused(seconds: float) -> None:
    bench = Bench().start()
    queue = bench.open(read=True)
    for call in (lambda: bench.open(FANOUT, timeout_s=seconds),
                 lambda: bench.core.configure(queue, QueueOptions(9), "configure", bench.now, seconds),
                 lambda: bench.core.close(queue, "close", bench.now, seconds)):
        with pytest.raises(SdkError, match="must be greater than 0") as raised:
            call()
        assert raised.value.result is Result.INVALID_ARGUMENT
    bench.turn()
    assert queue.state is QueueState.OPEN and list(bench.core.queues) == [URI]
    assert not bench.core._connection._requests.pending


def test_stop_waits_for_acks_then_sends_a_disconnect() -> None:
    bench = Bench(acks_at_once=False).start()
    queue = bench.open()
    bench.post(queue, b"a")
    bench.core.stop("stop", bench.now)
    bench.core.stop("again", bench.now)
    bench.turn()
    with pytest.raises(SdkError) as caught:
        bench.post(queue, b"b")
    assert caught.value.result is Result.NOT_CONNECTED and bench.core.state is State.DRAINING
    bench.ack(bench.puts()[0])
    assert [ack.status for ack in bench.acks] == [Result.SUCCESS]
    assert isinstance(bench.received[-1], schema.Disconnect) and bench.core.state is State.STOPPED
    assert bench.done["stop"].result is bench.done["again"].result is Result.SUCCESS
    with pytest.raises(SdkError):
        bench.open()


def test_the_session_is_scheduled_once_per_turn() -> None:
    bench = Bench().start()
    queue = bench.open()
    before = bench.turn_requests
    for _ in range(10):
        bench.post(queue, b"x", turn=False)
    assert bench.turn_requests == before + 1


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_input_is_decoded_independent_of_its_chunks(size: int) -> None:
    bench = Bench().start()
    bench.open(read=True)
    data = HEARTBEAT + events.encode_push([events.PushMessage(0, bytes(16), b"a", options=sub_queue_ids([1])),
                                           events.PushMessage(0, bytes(16), b"b", options=sub_queue_ids([1]))]) + HEARTBEAT
    for start in range(0, len(data), size):
        bench.core.on_data(data[start:start + size], bench.now)
    bench.turn()
    assert [message.payload for message in bench.messages] == [b"a", b"b"]


def test_broker_addresses_are_parsed_and_invalid_ones_refused() -> None:
    found = parse_brokers("tcp://a:1, tls://b ,tcp://[::1]:5")
    assert [(each.host, each.port, each.tls) for each in found] == [("a", 1, False), ("b", 30114, True), ("::1", 5, False)]
    for text in ("a:1", "http://a", "tcp://a:x", "tcp://a:70000", "tcp://"):
        with pytest.raises(LocalError):
            parse_brokers(text)
    with pytest.raises(LocalError):
        replace(SessionOptions(), open_timeout_s=0)


def test_a_health_monitor_notifies_its_listeners_of_changes() -> None:
    monitor, changes = HealthMonitor(), []
    stop_listening = monitor.listen(changes.append)
    monitor.set_healthy()
    monitor.set_unhealthy()
    monitor.set_unhealthy()
    stop_listening()
    monitor.set_healthy()
    assert changes == [False] and JsonCodec().decode(JsonCodec().encode({"a": ["ä"]})) == {"a": ["ä"]}


@pytest.mark.spec("cluster", 113)
def test_posts_during_three_minutes_without_a_broker_arrive_once_and_in_order() -> None:
    """Every message arrives once and in order of its producer, each is acknowledged once; with real processes and a real
    clock that is `python -m tests.soak restarts --away 180`."""
    bench = Bench(SessionOptions(brokers=parse_brokers("tcp://a:1,tcp://b:1"))).start()
    queues = [bench.open(f"{URI}{letter}") for letter in "abc"]
    posted: list[bytes] = []

    def load(seconds: float) -> None:
        for _ in range(int(seconds * 10)):
            for number, queue in enumerate(queues):
                posted.append(b"%d %d" % (number, len(posted)))
                bench.post(queue, posted[-1])
            bench.advance(0.1)
    load(1.0)
    bench.cut_connection(up=False)
    load(180.0)
    assert len(posted) == 3 * 1810 and len(bench.payloads()) == len(bench.acks) == 30
    assert len(bench.connects) > 10
    bench.up = True
    load(31.0)
    assert bench.payloads() == posted == [ack.token for ack in bench.acks]
    assert {ack.status for ack in bench.acks} == {Result.SUCCESS}
    assert bench.core.counters().retransmitted == 0 and bench.core.counters().reconnects == 1
