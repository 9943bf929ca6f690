"""Session core: batching, groups, subscriptions, credentials, health, slow consumers."""

from __future__ import annotations

import logging
import zlib
from dataclasses import replace

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
from bmqtwist.wire.application_data import open_data
from bmqtwist.wire.fast import sub_queue_ids
from bmqtwist.wire.options import SubQueueIds, SubQueueInfo, SubQueueInfos

HEARTBEAT = bytes.fromhex("000000084c020000")


def test_everything_posted_in_one_turn_leaves_in_one_event() -> None:
    bench = Bench().start()
    queue = bench.open()
    for number in range(5):
        bench.post(queue, b"%d" % number, turn=False)
    assert len(bench.core.take_output()) == 1


def test_a_batch_is_cut_at_its_limit_and_a_single_message_may_be_larger() -> None:
    bench = Bench(SessionOptions(batch_bytes_max=1000)).start()
    queue = bench.open()
    for size in (300, 300, 300, 300, 5000, 10):
        bench.post(queue, b"x" * size, turn=False)
    chunks = bench.core.take_output()
    found = [[len(put.data) for put in events.decode_put(chunk, 8, len(chunk))[0]] for chunk in chunks]
    assert found == [[300, 300], [300, 300], [5000], [10]]


def test_with_a_delay_a_batch_waits_for_its_time_its_size_or_a_flush() -> None:
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
    assert isinstance(bench.heard[-1], schema.CloseQueue) and bench.payloads()[-1] == b"d"  # never after its close


def test_an_application_may_name_its_messages_and_one_name_is_on_its_way_once() -> None:
    bench = Bench(acks_at_once=False).start()
    queue = bench.open()
    guid = b"\x40" + bytes(15)
    assert bench.core.post(queue, b"x", bench.now, post=Post(guid=guid)) == guid
    with pytest.raises(SdkError) as raised:
        bench.core.post(queue, b"x", bench.now, post=Post(guid=guid))
    assert raised.value.result is Result.ALREADY_IN_PROGRESS
    bench.turn()
    assert [put.guid for put in bench.puts()] == [guid] and len(bench.core.unacked) == 1


def test_a_group_is_settled_after_its_last_answer_and_counts_failures() -> None:
    bench = Bench(acks_at_once=False).start()
    queue = bench.open()
    group = PostGroup("settled", acks={})
    guids = [bench.core.post(queue, b"x", bench.now, post=Post(group=group, token="t")) for _ in range(3)]
    bench.core.seal(group)
    bench.turn()
    bench.ack(*bench.puts()[:2])
    assert "settled" not in bench.done
    bench.ack(bench.puts()[2], status=1)
    assert bench.log[-2:] == ["ack t LIMIT_MESSAGES", "done settled SUCCESS"]
    assert (group.failures, [ack.status for ack in group.failed]) == (1, [Result.LIMIT_MESSAGES])
    assert group.acks is not None and list(group.acks) == guids
    bench.core.seal(PostGroup("empty"))
    bench.turn()
    assert "empty" in bench.done


def test_a_failure_nobody_waits_for_is_told_all_the_same() -> None:
    bench = Bench(acks_at_once=False).start()
    queue = bench.open()
    for status in (0, 6):
        bench.core.post(queue, b"x", bench.now)
        bench.turn()
        bench.ack(bench.puts()[-1], status=status)
    assert [ack.status for ack in bench.acks] == [Result.STORAGE_FAILURE]


def test_correlation_comes_back_with_the_ack() -> None:
    bench = Bench().start()
    bench.post(bench.open(), b"x", correlation={"my": "thing"})
    assert bench.acks[0].correlation == {"my": "thing"}


@pytest.mark.parametrize("v2", [True, False])
@pytest.mark.parametrize("compress", [True, False])
def test_properties_in_either_style_compressed_or_not_are_what_was_posted(v2: bool, compress: bool) -> None:
    features = FEATURES if v2 else FEATURES.replace("MPS:MESSAGE_PROPERTIES_EX;", "")
    bench = Bench(features=features).start()
    queue = bench.open()
    values = {"b": True, "c": 65, "s": -5, "i": 1 << 30, "l": 1 << 60, "t": "täxt", "x": b"\0\xff"}
    types = {"c": PropertyType.CHAR, "s": PropertyType.SHORT, "i": PropertyType.INT32}
    bench.post(queue, b"payload " * 500, values=values, types=types, compress=compress)
    put = bench.puts()[0]
    assert bool(put.schema_id) is v2 and bool(put.compression) is compress
    area, payload = open_data(put.data, True, put.compression, put.schema_id)
    found = properties.decode(area, v2)
    assert payload == b"payload " * 500 and {name: value for name, (_, value) in found.items()} == values
    assert {name: found[name][0] for name in types} == types and list(found) == sorted(values)
    assert {name: found[name][0].name for name in "btxl"} == {"b": "BOOL", "t": "STRING", "x": "BINARY", "l": "INT64"}


def test_compression_starts_at_its_threshold_and_only_where_asked_for() -> None:
    bench = Bench(SessionOptions(compression=True, compression_threshold_bytes=2000)).start()
    queue = bench.open()
    for size, more in ((1999, {}), (2000, {}), (2000, {"compress": False})):
        bench.post(queue, b"x" * size, **more)
    assert [put.compression for put in bench.puts()] == [0, 1, 0]
    assert zlib.decompress(bench.puts()[1].data) == b"x" * 2000


def test_posts_kept_for_a_new_style_broker_are_rewritten_for_an_old_style_one() -> None:
    bench = Bench(acks_at_once=False).start()
    queue = bench.open()
    guid = bench.post(queue, b"payload", values={"n": 1})
    bench.features = "PROTOCOL_ENCODING:BER,JSON"
    bench.lose()
    bench.come_back()
    put = bench.puts()[-1]
    area, payload = open_data(put.data, True, put.compression, put.schema_id)
    assert (put.guid, put.schema_id, payload) == (guid, 0, b"payload")
    assert properties.decode(area, False) == {"n": (PropertyType.INT64, 1)}


@pytest.mark.parametrize(("payload", "more", "error"), [
    (b"", {}, SdkError), (b"x", {"values": {"_x": 1}}, LocalError), (b"x", {"values": {"x": 1.5}}, LocalError),
    (b"x", {"types": {"x": PropertyType.BOOL}}, LocalError), (b"x" * ((64 << 20) + 1), {}, SdkError),
    (b"x", {"values": {"x": 1 << 40}, "types": {"x": PropertyType.INT32}}, LocalError)])
def test_what_cannot_be_posted_is_refused_and_leaves_nothing_behind(payload: bytes, more: dict[str, object],
                                                                     error: type[Exception]) -> None:
    bench = Bench().start()
    queue = bench.open()
    group = PostGroup()
    with pytest.raises(error):
        bench.core.post(queue, payload, bench.now, post=Post(group=group), **more)  # type: ignore[arg-type]
    assert not bench.core.unacked and not group.outstanding


def test_each_subscription_has_its_own_options_and_messages_say_which_they_are_for() -> None:
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
def test_a_bad_expression_is_refused_before_anything_is_sent(text: str) -> None:
    with pytest.raises(LocalError):
        Subscription(text)


def test_a_broker_without_subscriptions_gets_the_older_request_and_refuses_expressions() -> None:
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
def test_a_push_is_understood_whatever_its_options(area: bytes, count: int) -> None:
    bench = Bench().start()
    bench.open(read=True)
    bench.say(events.encode_push([events.PushMessage(0, bytes(16), b"m", options=area)]))
    assert len(bench.messages) == count


def test_a_reconfigured_queue_takes_old_ids_before_the_answer_and_new_ones_after() -> None:
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


def test_a_refused_reconfiguration_leaves_the_old_one_in_force() -> None:
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


def test_an_app_that_the_domain_does_not_name_is_warned_about() -> None:
    bench = Bench(routing_flags=2 | 1 << 32).start()
    bench.open(FANOUT, read=True)
    [note] = [note for note in bench.notes if note.level == logging.WARNING]
    assert note.text == (f"{FANOUT}: the app is not registered in the domain: it receives no messages until an operator "
                         "adds it")


def test_a_message_confirms_itself_unless_its_block_raises() -> None:
    bench = Bench().start()
    bench.open(read=True)
    bench.push(b"a", guid=b"a" * 16)
    bench.push(b"b", guid=b"b" * 16)
    with bench.messages[0]:
        pass
    with pytest.raises(KeyError), bench.messages[1]:
        raise KeyError
    bench.turn()
    assert [each.guid for each in bench.heard if isinstance(each, events.ConfirmMessage)] == [b"a" * 16]


def test_the_block_of_a_message_ends_quietly_without_a_connection_and_without_a_queue() -> None:
    bench = Bench().start()
    queue = bench.open(read=True)
    bench.push(b"a")
    bench.lose(up=False)
    with bench.messages[0]:
        pass
    with pytest.raises(SdkError) as caught:
        bench.messages[0].confirm()
    assert caught.value.result is Result.NOT_CONNECTED and not bench.count(events.ConfirmMessage)
    bench.come_back()
    bench.core.close(queue, None, bench.now)
    bench.turn()
    with bench.messages[0]:
        pass
    with pytest.raises(SdkError) as caught:
        bench.messages[0].confirm()
    assert caught.value.result is Result.INVALID_QUEUE


def test_confirms_of_one_turn_leave_in_one_event() -> None:
    bench = Bench().start()
    bench.open(read=True)
    for number in range(3):
        bench.push(b"m", guid=bytes([number]) * 16)
    for message in bench.messages:
        message.confirm()
    assert len(bench.core.take_output()) == 1


def test_a_slow_consumer_is_told_once_and_again_when_it_has_caught_up() -> None:
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


def test_a_credential_comes_first_and_is_shown_again_before_it_ends() -> None:
    shown = []

    def credential() -> Credential:
        shown.append(len(shown))
        return Credential.basic("me", f"secret{len(shown)}")
    bench = Bench(SessionOptions(credential=credential)).start()
    assert [type(each) for each in bench.heard] == [schema.AuthenticationRequest, schema.ClientIdentity]
    assert bench.heard[0] == schema.AuthenticationRequest("BASIC", b"me:secret1")
    bench.advance(54.5)  # of 60 s: nine tenths
    assert bench.heard[-1] == schema.AuthenticationRequest("BASIC", b"me:secret2")
    bench.advance(54.0)
    assert bench.heard[-1].data == b"me:secret3" and bench.core.state is State.READY


@pytest.mark.parametrize("request_", ["authenticationRequest", "clientIdentity"])
def test_a_session_that_every_broker_refuses_does_not_start(request_: str) -> None:
    brokers = parse_brokers("tcp://a:1,tcp://b:1")
    bench = Bench(SessionOptions(credential=Credential("ANONYMOUS"), brokers=brokers))
    bench.refuse[request_] = Category.E_REFUSED
    bench.start().advance(5.0)
    assert len(bench.connects) == 2 and bench.done["start"].result is Result.REFUSED
    assert bench.core.state is State.STOPPED


def test_a_credential_that_cannot_be_made_is_an_error_and_tried_again() -> None:
    def broken() -> Credential:
        raise OSError("vault is sealed")
    bench = Bench(SessionOptions(credential=broken, connect_timeout_s=10.0)).start()
    bench.advance(11.0)
    assert bench.done["start"].result is Result.TIMEOUT and EventKind.ERROR in bench.kinds()


def test_a_credential_that_is_none_is_an_error_too_now_and_at_its_renewal() -> None:
    """For example a coroutine: time continues, and no exception reaches the loop."""
    given: list[object] = ["no credential", Credential("BASIC", b"good"), object()]
    bench = Bench(SessionOptions(credential=lambda: given.pop(0) if len(given) > 1 else given[0])).start()  # type: ignore
    assert EventKind.ERROR in bench.kinds() and bench.core.state is State.WAITING
    bench.advance(5.0)
    assert bench.core.state is State.READY
    bench.events.clear()
    bench.advance(60.0)
    assert bench.kinds() == [EventKind.ERROR] and bench.core.state is State.READY


def test_a_start_without_any_broker_times_out_and_stops_trying() -> None:
    bench = Bench(SessionOptions(connect_timeout_s=10.0))
    bench.up = False
    bench.start().advance(100.0)
    assert bench.done["start"].result is Result.TIMEOUT and bench.kinds() == [EventKind.CONNECTION_TIMEOUT]
    assert 3 < len(bench.connects) < 15


def test_a_broker_that_says_nothing_is_given_up_after_the_attempts_time() -> None:
    bench = Bench(SessionOptions(attempt_timeout_s=5.0))
    bench.silent.add("clientIdentity")
    bench.start().advance(4.0)
    assert len(bench.connects) == 1
    bench.silent.clear()
    bench.advance(3.0)
    assert len(bench.connects) == 2 and bench.done["start"].result is Result.SUCCESS


def test_an_unhealthy_host_suspends_queues_that_mind_and_them_only() -> None:
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
    bench.heard.clear()
    bench.lose()
    bench.come_back()
    assert [type(each) for each in bench.heard] == [schema.ClientIdentity, schema.OpenQueue]
    bench.core.set_health(True, bench.now)
    bench.turn()
    assert isinstance(bench.heard[-1], schema.ConfigureStream) and not queue.suspended
    assert bench.kinds()[-2:] == [EventKind.QUEUE_RESUMED, EventKind.HOST_HEALTH_RESTORED]


def test_health_that_changes_while_a_suspension_is_under_way_ends_as_it_should() -> None:
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
    assert [each.is_final for each in bench.heard if isinstance(each, schema.CloseQueue)] == [False, False, True]
    assert bench.open(FANOUT).q_id == 2


def test_a_close_while_the_queue_is_being_opened_waits_for_that() -> None:
    bench = Bench().start()
    bench.silent.add("openQueue")
    queue = bench.open()
    bench.core.close(queue, "close", bench.now)
    bench.turn()
    assert "close" not in bench.done
    bench.answer(bench.requests[-1], force=True)
    assert bench.done["close"].result is Result.SUCCESS and queue.state is QueueState.CLOSED
    assert bench.done[("open", URI)].result is Result.SUCCESS


def test_a_late_answer_is_ignored() -> None:
    bench = Bench().start()
    queue = bench.open(read=True)
    bench.silent.add("configureStream")
    bench.core.configure(queue, QueueOptions(9), "configure", bench.now, timeout_s=1.0)
    bench.advance(2.0)
    assert bench.done["configure"].result is Result.TIMEOUT
    late = bench.requests[-1]
    bench.answer(late, force=True)
    for s_id in (1, 2):  # either may be in force at the broker
        bench.push(b"m", s_id=s_id)
    assert len(bench.messages) == 2 and queue.options == QueueOptions()


def test_a_broker_that_never_answers_costs_no_memory() -> None:
    bench = Bench().start()
    queue = bench.open(read=True)
    bench.silent.add("configureStream")
    for number in range(100):
        bench.core.configure(queue, QueueOptions(number), "configure", bench.now, timeout_s=1.0)
        bench.advance(2.0)
    assert not bench.core._connection._requests.pending


@pytest.mark.parametrize("seconds", [0, 0.0, -1.0, float("nan")])
def test_a_request_that_may_take_no_time_is_refused_and_changes_nothing(seconds: float) -> None:
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


def test_stop_drains_first_and_then_says_goodbye() -> None:
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
    assert isinstance(bench.heard[-1], schema.Disconnect) and bench.core.state is State.STOPPED
    assert bench.done["stop"].result is bench.done["again"].result is Result.SUCCESS
    with pytest.raises(SdkError):
        bench.open()


def test_a_wake_comes_once_per_turn() -> None:
    bench = Bench().start()
    queue = bench.open()
    before = bench.wakes
    for _ in range(10):
        bench.post(queue, b"x", turn=False)
    assert bench.wakes == before + 1


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_answers_in_any_slices_are_the_same_answers(size: int) -> None:
    bench = Bench().start()
    bench.open(read=True)
    data = HEARTBEAT + events.encode_push([events.PushMessage(0, bytes(16), b"a", options=sub_queue_ids([1])),
                                           events.PushMessage(0, bytes(16), b"b", options=sub_queue_ids([1]))]) + HEARTBEAT
    for start in range(0, len(data), size):
        bench.core.on_data(data[start:start + size], bench.now)
    bench.turn()
    assert [message.payload for message in bench.messages] == [b"a", b"b"]


def test_brokers_are_read_from_text_and_nonsense_is_refused() -> None:
    found = parse_brokers("tcp://a:1, tls://b ,tcp://[::1]:5")
    assert [(each.host, each.port, each.tls) for each in found] == [("a", 1, False), ("b", 30114, True), ("::1", 5, False)]
    for text in ("a:1", "http://a", "tcp://a:x", "tcp://a:70000", "tcp://"):
        with pytest.raises(LocalError):
            parse_brokers(text)
    with pytest.raises(LocalError):
        replace(SessionOptions(), open_timeout_s=0)


def test_a_health_monitor_tells_changes_to_those_who_listen() -> None:
    monitor, heard = HealthMonitor(), []
    forget = monitor.listen(heard.append)
    monitor.set_healthy()
    monitor.set_unhealthy()
    monitor.set_unhealthy()
    forget()
    monitor.set_healthy()
    assert heard == [False] and JsonCodec().decode(JsonCodec().encode({"a": ["ä"]})) == {"a": ["ä"]}


@pytest.mark.spec("cluster", 113)
def test_three_minutes_without_a_broker_under_posting_load_lose_double_and_reorder_nothing() -> None:
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
    bench.lose(up=False)
    load(180.0)
    assert len(posted) == 3 * 1810 and len(bench.payloads()) == len(bench.acks) == 30
    assert len(bench.connects) > 10
    bench.up = True
    load(31.0)
    assert bench.payloads() == posted == [ack.token for ack in bench.acks]
    assert {ack.status for ack in bench.acks} == {Result.SUCCESS}
    assert bench.core.counters().retransmitted == 0 and bench.core.counters().reconnects == 1
