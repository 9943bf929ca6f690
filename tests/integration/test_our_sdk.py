"""The SDK of this project with a broker process, on asyncio."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kit.process import ProcessWorld, free_port

from bmqtwist.errors import LocalError
from bmqtwist.sdk import (
    EventKind,
    HealthMonitor,
    JsonCodec,
    PropertyType,
    QueueOptions,
    Result,
    SdkError,
    SessionEvent,
    Subscription,
    aio,
    simple,
)

PRIORITY, FANOUT, BROADCAST = "bmq://d/q", "bmq://f/q", "bmq://b/q"
DEADLINE = 120.0

pytestmark = pytest.mark.process


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario with a time limit."""
    asyncio.run(asyncio.wait_for(scenario(), DEADLINE))  # type: ignore[arg-type]


def test_post_and_consume_with_asyncio(node: ProcessWorld) -> None:
    async def scenario() -> None:
        async with aio.Session(node.broker.uri) as session, session.open(PRIORITY, read=True, write=True) as queue:
            ack = await queue.post(b"hello", {"n": 1, "s": "x"}, {"n": PropertyType.SHORT}, correlation="mine")
            assert ack.ok and ack.correlation == "mine" and ack.uri == PRIORITY
            async for message in queue:
                async with message:
                    assert (message.payload, message.guid) == (b"hello", ack.guid)
                    assert message.properties == {"n": 1, "s": "x"}
                    assert message.property_types["n"] is PropertyType.SHORT
                break
            assert [each.ok for each in await queue.post_many([b"a", (b"b", {"k": True}), b"c"])] == [True] * 3
            for number in range(1000):
                queue.post_nowait(b"%d" % number)
            await queue.flush()
            got = []
            for _ in range(1003):
                message = await queue.get()
                message.confirm()
                got.append(message.payload)
            assert got == [b"a", b"b", b"c", *(b"%d" % number for number in range(1000))]
        assert node.stored(PRIORITY) == 0
    run(scenario)


def test_iteration_ends_when_the_session_stops_and_a_failed_block_does_not_confirm(node: ProcessWorld) -> None:
    async def scenario() -> None:
        session = aio.Session(node.broker.uri)
        await session.start()
        queue = await session.open(PRIORITY, read=True, write=True)
        await queue.post(b"m")
        seen = []
        with pytest.raises(ZeroDivisionError):
            async with await queue.get():
                raise ZeroDivisionError
        asyncio.get_running_loop().call_later(0.05, lambda: asyncio.ensure_future(session.stop()))
        async for message in queue:
            seen.append(message)
        assert not seen
        with pytest.raises(SdkError):
            await queue.get()
        assert node.stored(PRIORITY) == 1
    run(scenario)


def test_fanout_subscriptions_and_reconfiguration(node: ProcessWorld) -> None:
    async def scenario() -> None:
        async with aio.Session(node.broker.uri) as session:
            small, large = Subscription("n < 10", context="small"), Subscription("n >= 10", context="large")
            queue = await session.open(PRIORITY, read=True, write=True,
                                       options=QueueOptions(subscriptions=(small, large)))
            for n in (1, 20, 2):
                await queue.post(b"x", {"n": n})
            got = [await queue.get() for _ in range(3)]
            assert sorted((m.properties["n"], m.subscription.context) for m in got) == [
                (1, "small"), (2, "small"), (20, "large")]
            for message in got:
                message.confirm()
            await queue.configure(QueueOptions(max_unconfirmed_messages=1))
            await queue.post_many([b"1", b"2"])
            first = await queue.get()
            assert first.subscription.expression == ""
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(queue.get(), 0.3)
            first.confirm()
            (await queue.get()).confirm()
            await queue.close()
            readers = [await session.open(f"{FANOUT}?id={app}", read=True) for app in ("foo", "bar")]
            writer = await session.open(FANOUT, write=True)
            ack = await writer.post(b"to all")
            for reader in readers:
                async with await reader.get() as message:
                    assert (message.payload, message.guid) == (b"to all", ack.guid)
            for queue in (*readers, writer):
                await queue.close()
    run(scenario)


def test_refused_requests_raise_errors_with_a_result(node: ProcessWorld) -> None:
    async def scenario() -> None:
        async with aio.Session(node.broker.uri) as session:
            with pytest.raises(SdkError):
                await session.open("bmq://nowhere/q", write=True)
            with pytest.raises(LocalError):
                QueueOptions(subscriptions=(Subscription("n <"),))
            with pytest.raises(LocalError):
                await session.open("bmq:/x", write=True)
            queue = await session.open(PRIORITY, write=True)
            with pytest.raises(SdkError) as caught:
                await session.open(PRIORITY, write=True)
            assert caught.value.result is Result.ALREADY_OPENED
            with pytest.raises(SdkError) as caught:
                await queue.post(b"")
            assert caught.value.result is Result.PAYLOAD_EMPTY
            await queue.close()
            with pytest.raises(SdkError) as caught:
                await queue.post(b"x")
            assert caught.value.result is Result.INVALID_QUEUE
    run(scenario)


def test_a_connection_to_a_closed_port_fails(node: ProcessWorld) -> None:
    async def scenario() -> None:
        session = aio.Session(f"tcp://127.0.0.1:{free_port()}", connect_timeout_s=0.5, backoff_first_s=0.1)
        with pytest.raises(SdkError) as caught:
            await session.start()
        assert caught.value.result is Result.TIMEOUT
    run(scenario)


def test_a_session_connects_to_the_second_broker_if_the_first_is_down(node: ProcessWorld) -> None:
    async def scenario() -> None:
        async with aio.Session([f"tcp://127.0.0.1:{free_port()}", node.broker.uri]) as session:
            assert (await (await session.open(PRIORITY, write=True)).post(b"x")).ok
    run(scenario)


def test_payloads_are_compressed_and_encoded_by_a_codec(node: ProcessWorld) -> None:
    async def scenario() -> None:
        async with (aio.Session(node.broker.uri, compression=True) as session,
                    session.open(PRIORITY, read=True, write=True, codec=JsonCodec()) as queue):
            value = {"list": [1, "zwei"] * 1000}
            await queue.post(value, {"k": "v" * 2000})
            async with await queue.get() as message:
                assert message.value == value and len(message._data) < 3000
                assert message.properties == {"k": "v" * 2000}
    run(scenario)


def test_an_unhealthy_host_suspends_queues_that_are_configured_so(node: ProcessWorld) -> None:
    async def scenario() -> None:
        events: list[SessionEvent] = []
        health = HealthMonitor()
        async with aio.Session(node.broker.uri, health=health, on_event=events.append) as session:
            queue = await session.open(PRIORITY, read=True, write=True,
                                       options=QueueOptions(suspends_on_bad_host_health=True))
            other = await session.open("bmq://d/other", write=True)
            health.set_unhealthy()
            await until(lambda: any(event.kind is EventKind.QUEUE_SUSPENDED for event in events))
            with pytest.raises(SdkError) as caught:
                await queue.post(b"x")
            assert caught.value.result is Result.QUEUE_SUSPENDED
            assert (await other.post(b"x")).ok
            health.set_healthy()
            await until(lambda: events[-1].kind is EventKind.HOST_HEALTH_RESTORED)
            assert [event.kind for event in events[-4:]] == [
                EventKind.HOST_UNHEALTHY, EventKind.QUEUE_SUSPENDED, EventKind.QUEUE_RESUMED,
                EventKind.HOST_HEALTH_RESTORED]
            await queue.post(b"x")
            (await queue.get()).confirm()
    run(scenario)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true; the time limit of the scenario applies."""
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("crash", [False, True])
def test_a_broker_restart_during_posts_loses_and_duplicates_no_message(node: ProcessWorld, crash: bool) -> None:
    """With a kill and a graceful stop: one ACK per post; redelivered messages have the flag."""
    events: list[EventKind] = []
    count = 3000

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with aio.Session(node.broker.uri, on_event=lambda event: events.append(event.kind),
                               backoff_first_s=0.1) as session:
            queue = await session.open(PRIORITY, write=True)
            acks = []
            for number in range(count):
                queue.post_nowait(b"%d" % number, on_ack=acks.append)
                if number == count // 3:
                    await loop.run_in_executor(None, node.crash if crash else node.stop)
                    restart = loop.run_in_executor(None, node.start)
                if number % 100 == 0:
                    await asyncio.sleep(0.001)
            await restart
            await queue.flush()
            assert len(acks) == count and all(ack.ok for ack in acks)
            assert len({ack.guid for ack in acks}) == count
            reader = await aio.Session(node.broker.uri).__aenter__()
            consumer = await reader.open(PRIORITY, read=True)
            got = []
            for _ in range(count):
                message = await consumer.get()
                message.confirm()
                got.append(int(message.payload))
            assert got == list(range(count))
            await reader.stop()
        assert node.stored(PRIORITY) == 0
    asyncio.run(asyncio.wait_for(scenario(), 240))
    assert events == [EventKind.CONNECTED, EventKind.CONNECTION_LOST, EventKind.RECONNECTED,
                      EventKind.QUEUE_REOPEN_RESULT, EventKind.STATE_RESTORED, EventKind.DISCONNECTED]


def test_post_and_consume_without_a_reactor(node: ProcessWorld) -> None:
    with simple.Session(node.broker.uri) as session, session.open(PRIORITY, read=True, write=True) as queue:
        ack = queue.post(b"hello", {"n": 1})
        assert ack.ok
        message = queue.get(DEADLINE)
        assert message is not None and (message.guid, message.properties) == (ack.guid, {"n": 1})
        with message:
            pass
        for number in range(5000):
            queue.post_nowait(b"%d" % number)
        queue.flush()
        got = []
        while len(got) < 5000:
            found = queue.poll(100, DEADLINE)
            assert found
            for message in found:
                got.append(int(message.payload))
                message.confirm()
        assert got == list(range(5000))
        assert queue.get(0.0) is None
        assert all(ack.ok for ack in queue.post_many([b"a", b"b"]))
    assert node.stored(PRIORITY) == 2


def test_a_session_without_a_reactor_reconnects_after_a_restart(node: ProcessWorld) -> None:
    events: list[Any] = []
    with simple.Session(node.broker.uri, on_event=lambda event: events.append(event.kind),
                        backoff_first_s=0.1) as session, session.open(PRIORITY, write=True) as queue:
        assert queue.post(b"before").ok
        node.crash()
        queue.post_nowait(b"while down")
        session.step(0.5)
        restart = threading.Thread(target=node.start, daemon=True)
        restart.start()
        assert queue.post(b"after").ok
        queue.flush()
        restart.join(DEADLINE)
    assert events[1:5] == [EventKind.CONNECTION_LOST, EventKind.RECONNECTED, EventKind.QUEUE_REOPEN_RESULT,
                           EventKind.STATE_RESTORED]
    assert node.stored(PRIORITY) == 3


def test_a_post_into_a_full_buffer_fails_with_bw_limit_after_its_timeout(node: ProcessWorld) -> None:
    """The broker is paused, so no message is acknowledged; later all accepted messages arrive."""
    process = node.broker.process
    assert process is not None

    async def scenario() -> None:
        async with aio.Session(node.broker.uri, unacked_bytes_max=100_000, post_wait_s=0.3) as session:
            queue = await session.open(PRIORITY, write=True)
            process.send_signal(signal.SIGSTOP)
            try:
                taken = [asyncio.ensure_future(queue.post(b"x" * 40_000)) for _ in range(2)]
                await asyncio.sleep(0)
                before = session.loop.time()
                with pytest.raises(SdkError) as caught:
                    await queue.post(b"x" * 40_000)
                assert caught.value.result is Result.BW_LIMIT and session.loop.time() - before >= 0.3
                with pytest.raises(SdkError):
                    queue.post_nowait(b"x" * 40_000)
                room = asyncio.ensure_future(session.room(DEADLINE))
            finally:
                process.send_signal(signal.SIGCONT)
            await room
            assert all(ack.ok for ack in await asyncio.gather(*taken))
            assert (await queue.post(b"y")).ok
    run(scenario)
    assert node.stored(PRIORITY) == 3
