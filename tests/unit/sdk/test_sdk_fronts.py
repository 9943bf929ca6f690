"""Behaviour of the fronts beyond the core: each scenario on each front, with a broker in memory and in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from dataclasses import fields
from typing import Any

import pytest
from kit.sdk_fronts_kit import FRONTS, URI, Front, w
from twisted.internet.defer import CancelledError

from bmqtwist import sdk
from bmqtwist.errors import LocalError
from bmqtwist.sdk import (
    Ack,
    Credential,
    EventKind,
    HealthMonitor,
    Message,
    PostRefused,
    PostsFailed,
    QueueOptions,
    Result,
    SdkError,
    SessionEvent,
    SessionOptions,
)
from bmqtwist.sdk.options import SessionMembers

OTHER = "bmq://bmq.test.mem.priority/other"
LATE = Result.BW_LIMIT


# -- callbacks ----------------------------------------------------------------------------------------------------------


def test_on_message_may_confirm_post_flush_open_and_close(front: Front) -> None:
    """Calls without a wait directly, others from a task that the callback starts."""
    seen: list[bytes] = []

    async def scenario() -> None:
        session = await front.start()
        made: dict[str, Any] = {}

        async def more(payload: bytes) -> None:
            other = await w(session.open(OTHER, read=True, write=True))
            assert (await w(other.post(payload))).ok
            (await w(other.get())).confirm()
            await w(other.close())
            seen.append(payload)

        def on_message(message: Message) -> Any:
            message.confirm()
            if message.payload == b"first":
                made["queue"].post_nowait(b"second")
                return None
            if front.name == "simple":
                other = session.open(OTHER, read=True, write=True)
                assert other.post(message.payload).ok
                other.get().confirm()
                other.close()
                seen.append(message.payload)
                return None
            return more(message.payload)
        made["queue"] = queue = await w(session.open(URI, read=True, write=True, on_message=on_message))
        await w(queue.post(b"first"))
        await front.until(lambda: seen)
        await w(queue.flush())
        await w(session.stop())
    front.run(scenario)
    assert seen == [b"second"]
    front.broker.assert_empty(URI)
    front.broker.assert_empty(OTHER)


def test_on_ack_may_post_again_without_recursion(front: Front) -> None:
    acks: list[Ack] = []

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, write=True))

        def on_ack(ack: Ack) -> None:
            acks.append(ack)
            if len(acks) < 500:  # deeper than the recursion limit if the calls were nested
                queue.post_nowait(b"x", on_ack=on_ack)
        queue.post_nowait(b"x", on_ack=on_ack)
        await front.until(lambda: len(acks) == 500)
        await w(session.stop())
    front.run(scenario)
    assert len({ack.guid for ack in acks}) == 500 and all(ack.ok for ack in acks)


def test_blocking_calls_in_many_callbacks_do_not_nest() -> None:
    front = FRONTS["simple"]()
    posted: list[Ack] = []

    async def scenario() -> None:
        session = await front.start()
        other = session.open(OTHER, write=True)

        def on_message(message: Message) -> None:
            message.confirm()
            posted.append(other.post(message.payload))
        queue = session.open(URI, read=True, write=True, on_message=on_message)
        queue.post_many([b"%d" % number for number in range(1000)])
        await front.until(lambda: len(posted) == 1000)
        session.stop()
    front.run(scenario)
    assert [each.payload for each in front.broker.messages(OTHER)] == [b"%d" % number for number in range(1000)]


def test_on_event_may_stop_the_session(front: Front) -> None:
    """A stop in the callback of a lost connection: no reconnect, and waiting calls end."""
    async def scenario() -> None:
        made: list[Any] = []

        def on_event(event: SessionEvent) -> Any:
            front.events.append(event)
            return made[0].stop() if event.kind is EventKind.CONNECTION_LOST else None
        session = await front.start(on_event=on_event)
        made.append(session)
        queue = await w(session.open(URI, read=True))
        front.broker.crash()
        await front.until(lambda: queue.closed)
        front.broker.start()
        with pytest.raises(SdkError):
            await w(queue.post(b"x"))
    front.run(scenario)
    assert front.kinds() == [EventKind.CONNECTED, EventKind.CONNECTION_LOST, EventKind.DISCONNECTED]
    assert not front.broker.clients


def test_an_exception_in_a_callback_is_reported_and_later_callbacks_run(front: Front) -> None:
    got: list[bytes] = []

    def on_message(message: Message) -> None:
        got.append(message.payload)
        message.confirm()
        if message.payload == b"bad":
            raise ZeroDivisionError

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, read=True, write=True, on_message=on_message))
        await w(queue.post_many([b"bad", b"good"]))
        await front.until(lambda: len(got) == 2)
        await w(session.stop())
    if front.name == "aio":
        front.run(scenario)
        assert front.unhandled == [ZeroDivisionError]
        front.unhandled.clear()
    elif front.name == "tx":
        from twisted.logger import globalLogPublisher
        events: list[Any] = []
        globalLogPublisher.addObserver(events.append)
        front.run(scenario)
        globalLogPublisher.removeObserver(events.append)
        assert [each["log_failure"].type for each in events if "log_failure" in each] == [ZeroDivisionError]
    else:
        front.run(scenario)
    assert got == [b"bad", b"good"]


def test_a_cancelled_error_in_a_callback_does_not_stop_later_callbacks(loop_front: Front) -> None:
    """Such as `future.result()` of a cancelled future: other callbacks of the turn still run."""
    front = loop_front

    def on_ack(ack: Ack) -> None:
        raise asyncio.CancelledError

    async def scenario() -> None:
        session = await front.start()
        queue = await session.open(URI, write=True)
        queue.post_nowait(b"a", on_ack=on_ack)
        assert (await queue.post(b"b")).ok
        await session.stop()
    front.run(scenario)
    assert EventKind.CONNECTION_LOST not in front.kinds()
    if front.name == "aio":
        assert front.unhandled == [asyncio.CancelledError]
        front.unhandled.clear()


def test_a_message_that_arrives_during_a_cancelled_close_is_dropped(loop_front: Front) -> None:
    front = loop_front

    async def scenario() -> None:
        session = await front.start()
        queue = await session.open(URI, read=True)
        with front.broker.faults.stall("configure"):
            closing = front.begin(w(queue.close()))
            await front.pass_time(0.01)
            closing.cancel()
            with contextlib.suppress(BaseException):
                await closing
            front.broker.put(URI, b"x")
            await front.until(lambda: session.counters().messages == 1)
            assert not queue._inbox and session.counters().inbox_now == 0
        await session.stop()
    front.run(scenario)
    assert len(front.broker.drain(URI)) == 1


def test_a_callback_may_be_a_coroutine_function(loop_front: Front) -> None:
    front, done = loop_front, []

    async def scenario() -> None:
        session = await front.start()

        async def on_message(message: Message) -> None:
            async with message:
                await front.pass_time(1.0)
                done.append(message.payload)
        queue = await session.open(URI, read=True, write=True, on_message=on_message)
        await queue.post_many([b"a", b"b"])
        await front.until(lambda: len(done) == 2)
        await session.stop()
    front.run(scenario)
    front.broker.assert_confirmed(URI, 2)


# -- posts --------------------------------------------------------------------------------------------------------------


def test_on_nack_receives_refused_posts_without_a_waiting_caller(front: Front) -> None:
    nacks: list[Ack] = []

    async def scenario() -> None:
        session = await front.start(on_nack=nacks.append)
        queue = await w(session.open(URI, write=True))
        front.broker.faults.refuse("post", status=Result.LIMIT_MESSAGES)
        with pytest.raises(PostRefused) as refused:
            await w(queue.post(b"awaited"))
        assert refused.value.status is Result.LIMIT_MESSAGES
        acks: list[Ack] = []
        queue.post_nowait(b"with on_ack", on_ack=acks.append)
        guid = queue.post_nowait(b"not awaited", correlation="c")
        with pytest.raises(PostsFailed) as caught:
            await w(queue.flush())
        assert caught.value.failures == 2 and caught.value.result is Result.LIMIT_MESSAGES
        assert [(ack.guid, ack.correlation) for ack in nacks] == [(guid, "c")]
        assert [ack.status for ack in acks] == [Result.LIMIT_MESSAGES]
        await w(queue.flush())  # reported once
        await w(session.stop())
    front.run(scenario)


def test_a_refused_post_of_a_cancelled_caller_goes_to_on_nack(loop_front: Front) -> None:
    front, nacks = loop_front, []

    async def scenario() -> None:
        session = await front.start(on_nack=nacks.append)
        queue = await session.open(URI, write=True)
        front.broker.faults.refuse("post", times=1)

        async def post() -> None:
            await queue.post(b"x")
        waiting = front.begin(post())
        await front.pass_time(0)
        waiting.cancel()
        with pytest.raises((asyncio.CancelledError, CancelledError)):
            await waiting
        await queue.flush()
        await front.until(lambda: nacks)
        assert (await queue.post(b"y")).ok
        await session.stop()
    front.run(scenario)
    assert [ack.status for ack in nacks] == [Result.LIMIT_MESSAGES]


def test_posts_that_wait_for_room_are_sent_in_order_or_time_out(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start(unacked_bytes_max=10_000, post_wait_s=2.0)
        queue = await w(session.open(URI, write=True))
        acks = await w(queue.post_many([b"%04d" % number * 1000 for number in range(50)]))
        assert all(ack.ok for ack in acks) and len(acks) == 50
        with front.broker.faults.stall("post"):
            queue.post_nowait(b"x" * 9000)
            before = session.clock()
            with pytest.raises(SdkError) as caught:
                await w(queue.post(b"y" * 9000))
            assert caught.value.result is LATE and 2.0 <= session.clock() - before < 3.0
        await w(queue.flush())
        await w(session.stop())
    front.run(scenario)
    assert [each.payload[:4] for each in front.broker.messages(URI)] == [*(b"%04d" % n for n in range(50)), b"xxxx"]


def test_posts_without_ack_release_their_room_when_sent(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start(unacked_bytes_max=10_000, batch_delay_s=10.0)
        queue = await w(session.open(URI, write=True))
        before = session.clock()
        for _ in range(20):
            if front.name != "simple":
                assert await session.room(size=9000)
            queue.post_nowait(b"x" * 9000, ack=False)
        assert session.clock() - before < 1.0
        await w(session.stop())
    front.run(scenario)
    assert len(front.broker.messages(URI)) == 20


def test_the_next_flush_waits_for_posts_made_before_an_error_of_post_many(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, write=True))
        front.broker.faults.refuse("post", times=1)
        with pytest.raises(TypeError, match="a payload is bytes, not str"):
            await w(queue.post_many([b"a", b"b", "c"]))
        with pytest.raises(PostsFailed) as caught:
            await w(queue.flush())
        assert caught.value.failures == 1
        await w(session.stop())
    front.run(scenario)
    assert [each.payload for each in front.broker.messages(URI)] == [b"b"]


def test_bytes_like_payloads_are_copied_and_others_are_refused_with_a_hint(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, read=True, write=True))
        buffer = bytearray(b"as it was")
        queue.post_nowait(buffer)
        buffer[:] = b"changed!!"
        queue.post_nowait(memoryview(b"view"))
        await w(queue.flush())
        assert [(await w(queue.get())).payload for _ in range(2)] == [b"as it was", b"view"]
        for wrong in ("text", None, 7, {"a": 1}):
            with pytest.raises(TypeError, match="encode it, or open the queue with a codec"):
                await w(queue.post(wrong))
        with pytest.raises(LocalError, match="on_ack"):
            queue.post_nowait(b"x", ack=False, on_ack=print)
        await w(session.stop(drain=False))
    front.run(scenario)


def test_stop_without_drain_reports_the_lost_posts(front: Front) -> None:
    acks: list[Ack] = []

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, write=True))
        with front.broker.faults.delay(1.0, "ack"):
            queue.post_nowait(b"drained", on_ack=acks.append)
            await w(session.stop())
            assert [ack.ok for ack in acks] == [True]
        with front.broker.faults.drop("ack"):
            session = await front.start()
            queue = await w(session.open(URI, write=True))
            queue.post_nowait(b"not waited for", on_ack=acks.append)
            if front.name == "simple":
                session.step()
            else:
                await front.pass_time(0)
            await w(session.stop(drain=False))
    front.run(scenario)
    assert [ack.status for ack in acks] == [Result.SUCCESS, Result.UNKNOWN]


# -- queues -------------------------------------------------------------------------------------------------------------


def test_the_errors_of_a_wrongly_opened_queue_name_the_missing_flag(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        assert "ready" in repr(session)
        writer = await w(session.open(URI, write=True))
        assert writer.is_open and repr(writer) == f"<Queue {URI} open>"
        with pytest.raises(SdkError, match="open it with read=True") as caught:
            await w(writer.get())
        assert caught.value.result is Result.INVALID_QUEUE
        reader = await w(session.open(OTHER, read=True, on_message=print, options=QueueOptions(7)))
        assert reader.options.max_unconfirmed_messages == 7
        await w(reader.configure(QueueOptions(8)))
        assert reader.options.max_unconfirmed_messages == 8
        with pytest.raises(SdkError, match="on_message"):
            await w(reader.get())
        with pytest.raises(SdkError) as caught:
            await w(reader.post(b"x"))
        assert caught.value.result is Result.INVALID_QUEUE
        await w(reader.close())
        assert not reader.is_open and repr(reader) == f"<Queue {OTHER} closed>"
        with pytest.raises(SdkError):
            await w(reader.close())
        await w(session.stop())
        assert not writer.is_open and "stopped" in repr(session)
    front.run(scenario)


def test_unread_messages_of_a_closed_queue_are_redelivered_to_the_next_reader(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, read=True, write=True))
        await w(queue.post_many([b"a", b"b"]))
        await front.until(lambda: session.counters().inbox_now == 2)
        (await w(queue.get())).confirm()
        await w(queue.close())
        assert session.counters().inbox_now == 0
        with pytest.raises(IndexError):
            queue.get_nowait()
        queue = await w(session.open(URI, read=True))
        message = await w(queue.get())
        assert message.payload == b"b"
        message.confirm()
        await w(session.stop())
    front.run(scenario)
    front.broker.assert_empty(URI)


def test_an_iteration_continues_over_a_reconnect_and_ends_with_the_queue(loop_front: Front) -> None:
    front = loop_front
    got: list[bytes] = []

    async def scenario() -> None:
        session = await front.start(backoff_first_s=0.1)
        queue = await session.open(URI, read=True, write=True)

        async def consume() -> None:
            async for message in queue:
                async with message:
                    got.append(message.payload)
        consuming = front.begin(consume())
        await queue.post(b"before")
        await front.until(lambda: not front.broker.messages(URI))
        front.broker.disconnect()
        assert (await queue.post(b"after")).ok
        await front.until(lambda: len(got) == 2)
        await queue.close()
        await consuming
        await session.stop()
    front.run(scenario)
    assert got == [b"before", b"after"]


def test_an_iteration_raises_if_its_queue_is_refused_after_a_reconnect(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start(backoff_first_s=0.1)
        queue = await w(session.open(URI, read=True))
        front.broker.faults.refuse("open", reason="not any more")
        front.broker.disconnect()
        with pytest.raises(SdkError, match="not any more"):
            if front.name == "simple":
                for _ in queue:
                    pass
            else:
                async for _ in queue:
                    pass
        assert not queue.is_open
        await w(session.stop())
    front.run(scenario)
    assert front.kinds()[-3:] == [EventKind.QUEUE_REOPEN_RESULT, EventKind.STATE_RESTORED, EventKind.DISCONNECTED]


def test_the_block_of_a_message_confirms_on_success_only(loop_front: Front) -> None:
    front = loop_front

    async def scenario() -> None:
        async with front.make() as session:
            async with await session.open(URI, read=True, write=True) as queue:
                await queue.post_many([b"good", b"bad"])
                async with await queue.get() as message:
                    assert message.payload == b"good"
                with pytest.raises(ZeroDivisionError):
                    async with await queue.get():
                        raise ZeroDivisionError
            assert not queue.is_open
    front.run(scenario)
    assert [each.payload for each in front.broker.messages(URI)] == [b"bad"]


def test_the_block_of_a_queue_closes_it_without_hiding_an_exception(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        front.broker.faults.refuse("close")
        with pytest.raises(ZeroDivisionError):
            if front.name == "simple":
                with session.open(URI, read=True, write=True) as queue:
                    raise ZeroDivisionError
            else:
                async with await session.open(URI, read=True, write=True) as queue:
                    raise ZeroDivisionError
        assert not queue.is_open
        await w(session.stop())
    front.run(scenario)


def test_the_block_of_a_queue_with_refused_posts_closes_it(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        front.broker.faults.refuse("post")
        with pytest.raises(PostsFailed):
            if front.name == "simple":
                with session.open(URI, write=True) as queue:
                    queue.post_nowait(b"x")
            else:
                async with await session.open(URI, write=True) as queue:
                    queue.post_nowait(b"x")
        assert not queue.is_open
        await w(session.stop())
    front.run(scenario)


# -- the session --------------------------------------------------------------------------------------------------------


def test_the_health_monitor_suspends_and_resumes_queues(front: Front) -> None:
    health = HealthMonitor()

    async def scenario() -> None:
        session = await front.start(health=health)
        queue = await w(session.open(URI, read=True, write=True,
                                     options=QueueOptions(suspends_on_bad_host_health=True)))
        health.set_unhealthy()
        await front.until(lambda: EventKind.QUEUE_SUSPENDED in front.kinds())
        with pytest.raises(SdkError) as caught:
            await w(queue.post(b"x"))
        assert caught.value.result is Result.QUEUE_SUSPENDED
        health.set_healthy()
        await front.until(lambda: EventKind.HOST_HEALTH_RESTORED in front.kinds())
        await w(queue.post(b"x"))
        (await w(queue.get())).confirm()
        await w(session.stop())
        health.set_unhealthy()  # no listener is left
        assert not health._listeners
    front.run(scenario)
    assert front.kinds()[1:-1] == [EventKind.HOST_UNHEALTHY, EventKind.QUEUE_SUSPENDED, EventKind.QUEUE_RESUMED,
                                   EventKind.HOST_HEALTH_RESTORED]


def test_a_host_that_is_unhealthy_at_the_start_receives_no_messages(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start(health=HealthMonitor(healthy=False))
        await w(session.open(URI, read=True, options=QueueOptions(suspends_on_bad_host_health=True)))
        front.broker.put(URI, b"x")
        await front.pass_time(1.0)
        assert session.counters().messages == 0
        await w(session.stop())
    front.run(scenario)
    assert EventKind.QUEUE_SUSPENDED in front.kinds()


def test_a_slow_consumer_receives_one_high_and_one_low_watermark_event(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start(slow_consumer_high=10, slow_consumer_low=5)
        for number in range(20):
            front.broker.put(URI, b"%d" % number)
        queue = await w(session.open(URI, read=True))
        await front.until(lambda: EventKind.SLOWCONSUMER_HIGHWATERMARK in front.kinds())
        for _ in range(20):
            (await w(queue.get())).confirm()
        await front.until(lambda: EventKind.SLOWCONSUMER_NORMAL in front.kinds())
        await w(session.stop())
    front.run(scenario)
    assert front.kinds()[1:-1] == [EventKind.SLOWCONSUMER_HIGHWATERMARK, EventKind.SLOWCONSUMER_NORMAL]


def test_a_session_reconnects_when_the_broker_sends_nothing(front: Front) -> None:
    """Without any data, including heartbeats, the session reports a loss and reconnects."""
    async def scenario() -> None:
        session = await front.start(backoff_first_s=0.1)
        queue = await w(session.open(URI, write=True))
        silence = [front.broker.faults.drop("answer", "ack", "delivery", "heartbeat")]
        queue.post_nowait(b"into the silence")
        await front.until(lambda: EventKind.CONNECTION_LOST in front.kinds())
        silence.pop().end()
        await w(queue.flush())
        await w(session.stop())
    front.run(scenario)
    assert front.kinds() == [EventKind.CONNECTED, EventKind.CONNECTION_LOST, EventKind.RECONNECTED,
                             EventKind.QUEUE_REOPEN_RESULT, EventKind.STATE_RESTORED, EventKind.DISCONNECTED]
    assert len(front.broker.messages(URI)) == 1


def test_session_keywords_equal_session_options_and_a_typo_gets_a_suggestion(front: Front) -> None:
    assert {each.name: each.type for each in fields(SessionOptions)} == {
        name: hint.__forward_arg__ for name, hint in SessionMembers.__annotations__.items()}

    async def scenario() -> None:
        with pytest.raises(TypeError, match="no option 'post_wait', did you mean 'post_wait_s'"):
            front.make(post_wait=1.0)
        with pytest.raises(TypeError, match="no option 'zzz': see SessionOptions"):
            front.make(zzz=1.0)
        session = await front.start(post_wait_s=1.0, options=SessionOptions(drain_s=2.0))
        assert (session.options.post_wait_s, session.options.drain_s) == (1.0, 2.0)
        await w(session.stop())
    front.run(scenario)


def test_a_session_must_be_started_and_starts_only_once(loop_front: Front) -> None:
    async def scenario() -> None:
        session = loop_front.make()
        with pytest.raises(SdkError, match="not started") as caught:
            await session.open(URI, write=True)
        assert caught.value.result is Result.NOT_CONNECTED
        await session.start()
        with pytest.raises(SdkError, match="create a new one"):
            await session.start()
        assert (await (await session.open(URI, write=True)).post(b"x")).ok  # the session continues
        await session.stop()
        with pytest.raises(SdkError, match="create a new one"):
            await session.start()
    loop_front.run(scenario)


def test_reprs_contain_no_password() -> None:
    options = SessionOptions(credential=Credential.basic("me", "sesame"))
    assert "sesame" not in repr(options) + repr(options.credential) + str(options)
    assert repr(HealthMonitor(False)) == "<HealthMonitor unhealthy>"


def test_a_start_without_a_broker_times_out_and_removes_its_listeners(front: Front) -> None:
    front.broker.crash()

    async def scenario() -> None:
        with pytest.raises(SdkError) as caught:
            await front.start(connect_timeout_s=3.0, health=(health := HealthMonitor()))
        assert caught.value.result is Result.TIMEOUT and not health._listeners
    front.run(scenario)
    assert front.kinds() == [EventKind.CONNECTION_TIMEOUT]


def test_calls_on_a_stopped_session_raise(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, read=True, write=True))
        await w(session.stop())
        await w(session.stop())
        for call in (lambda: queue.post(b"x"), queue.get, lambda: session.open(OTHER, write=True), queue.close,
                     lambda: queue.configure(QueueOptions())):
            with pytest.raises(SdkError) as caught:
                assert await w(call()) is not None
            assert caught.value.result in (Result.NOT_CONNECTED, Result.INVALID_QUEUE)
    if front.name == "simple":
        front.run(_stopped_blocking(front))
    else:
        front.run(scenario)


def _stopped_blocking(front: Front) -> Any:
    async def scenario() -> None:
        session = await front.start()
        queue = session.open(URI, read=True, write=True)
        session.stop()
        session.stop()
        for call in (lambda: queue.post(b"x"), lambda: session.open(OTHER, write=True), queue.close, session.step,
                     lambda: queue.configure(QueueOptions())):
            with pytest.raises(SdkError):
                call()
        assert queue.get() is None
    return scenario


# -- rare events ---------------------------------------------------------------------------------------------------


def test_a_blocking_session_detects_a_lost_connection_before_a_confirm() -> None:
    """During long processing the broker has redelivered the message to another consumer."""
    front = FRONTS["simple"]()

    async def scenario() -> None:
        session = await front.start()
        queue = session.open(URI, read=True, write=True)
        queue.post(b"x")
        message = queue.get()
        front.broker.disconnect()
        front.broker.advance(45.0)
        with pytest.raises(SdkError, match="NOT_CONNECTED"):
            message.confirm()
        with queue.get() as again:
            assert again.payload == b"x" and again.redelivered
        session.stop()
    front.run(scenario)
    front.broker.assert_empty(URI)


def test_a_post_to_a_closed_or_read_only_queue_raises(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, write=True))
        reader = await w(session.open(OTHER, read=True))
        with pytest.raises(SdkError, match="INVALID_QUEUE: .*/other is not open for writing: open it with write=True"):
            await w(reader.post(b"x"))
        await w(queue.close())
        with pytest.raises(SdkError, match="INVALID_QUEUE: .*/q is closed$"):
            await w(queue.post(b"x"))
        await w(session.stop())
    front.run(scenario)


def test_an_open_that_is_not_awaited_warns() -> None:
    front = FRONTS["aio"]()

    async def scenario() -> None:
        session = await front.start()
        with pytest.warns(RuntimeWarning, match=r"`session.open\(...\)` was never awaited"):
            session.open(URI, write=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await session.open(URI, write=True)
            async with session.open(OTHER, write=True):
                pass
        await session.stop()
    front.run(scenario)


def test_exceptions_of_the_package_are_exported_and_wrong_arguments_are_value_errors() -> None:
    for name in ("BmqError", "LocalError", "PeerError", "InvalidUri"):
        assert name in sdk.__all__ and issubclass(getattr(sdk, name), sdk.BmqError)
    with pytest.raises(ValueError, match="broker address"):
        sdk.parse_brokers("nonsense")
    assert issubclass(sdk.InvalidUri, ValueError) and not issubclass(SdkError, ValueError)
