"""Connections of each front: hooks for tunnels and tests, several brokers, failures at each step."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from typing import Any

import pytest
from kit.sdk_fronts_kit import FRONTS, URI, Front, w
from twisted.internet.defer import Deferred, fail

from bmqtwist.errors import LocalError
from bmqtwist.sdk import EventKind, Result, SdkError, SessionOptions, blazingmq, simple
from bmqtwist.sdk._core.outbox import Connect
from bmqtwist.sdk.pump import Pump
from bmqtwist.testing import Broker, run
from bmqtwist.testing.transport import MemoryTransport


class TwoBrokers:
    """Two brokers with two addresses; `dialled`: addresses tried."""

    def __init__(self, front: Front) -> None:
        self.brokers = {"one": front.broker, "two": Broker()}
        self.dialled: list[str] = []
        self.front = front

    def options(self) -> dict[str, Any]:
        """Return the hook of this front."""
        if self.front.name == "aio":
            return {"connect": self._connect}
        if self.front.name == "tx":
            return {"endpoint": self._endpoint}
        return {"pump": self._transport}

    def _at(self, address: Any) -> Broker:
        self.dialled.append(address.host)
        return self.brokers[address.host]

    async def _connect(self, make_protocol: Any, address: Any, tls: Any) -> Any:
        return await self._at(address).connector()(make_protocol, address, tls)

    def _endpoint(self, address: Any) -> Any:
        return self._at(address).endpoint(self.front.clock)(address)  # type: ignore[attr-defined]

    def _transport(self, options: SessionOptions, dispatch: Any, tls: Any) -> Pump:
        net = self

        class Switching(MemoryTransport):
            """Changes hosts with each attempt."""

            def dial(self, effect: Connect) -> None:
                self._runner = net._at(effect.address).pump().args[0]  # type: ignore[attr-defined]
                super().dial(effect)
        return Switching(self.front.broker.pump().args[0], "", options, dispatch, tls)  # type: ignore[attr-defined]


def session_of(front: Front, **options: Any) -> Any:
    """Return a session with hooks and addresses, not started (except for the blocking front)."""
    options = {"on_event": front.events.append, "backoff_first_s": 0.1, **options}
    if front.name == "aio":
        from bmqtwist.sdk import aio
        return aio.Session(["tcp://one", "tcp://two"], **options)
    if front.name == "tx":
        from bmqtwist.sdk import tx
        return tx.Session(front.clock, ["tcp://one", "tcp://two"], **options)  # type: ignore[attr-defined]
    from bmqtwist.sdk import simple
    session = simple.Session(["tcp://one", "tcp://two"], **options)
    front.sessions.append(session)  # type: ignore[attr-defined]
    return session


async def started(front: Front, session: Any) -> Any:
    """Start the session, if the front has this call."""
    if front.name != "simple":
        await session.start()
    return session


def test_a_session_connects_to_the_other_broker_when_one_is_down(front: Front) -> None:
    net = TwoBrokers(front)
    net.brokers["one"].crash()

    async def scenario() -> None:
        session = await started(front, session_of(front, **net.options()))
        queue = await w(session.open(URI, write=True))
        assert (await w(queue.post(b"for two"))).ok
        net.brokers["one"].start()
        net.brokers["two"].crash()
        assert (await w(queue.post(b"for one"))).ok
        await w(session.stop())
    front.run(scenario)
    assert [each.payload for each in net.brokers["one"].messages(URI)] == [b"for one"]
    net.brokers["two"].start()
    assert net.dialled[:2] == ["one", "two"] and net.dialled[-1] == "one"
    assert front.kinds() == [EventKind.CONNECTED, EventKind.CONNECTION_LOST, EventKind.RECONNECTED,
                             EventKind.QUEUE_REOPEN_RESULT, EventKind.STATE_RESTORED, EventKind.DISCONNECTED]


def test_a_session_refused_by_one_broker_connects_to_the_next(front: Front) -> None:
    net = TwoBrokers(front)
    net.brokers["one"].faults.refuse("negotiation", reason="not you")

    async def scenario() -> None:
        session = await started(front, session_of(front, **net.options()))
        assert net.dialled == ["one", "two"]
        await w(session.stop())
        net.brokers["two"].faults.refuse("negotiation", reason="nor you")
        with pytest.raises(SdkError, match="nor you") as caught:
            await started(front, session_of(front, **net.options()))
        assert caught.value.result is Result.REFUSED
    front.run(scenario)


def test_a_connection_lost_during_the_negotiation_is_retried(front: Front) -> None:
    front.broker.faults.kill("negotiation", times=3)

    async def scenario() -> None:
        session = await front.start(backoff_first_s=0.1)
        assert session.counters().attempts == 4
        await w(session.stop())
    front.run(scenario)


@pytest.mark.parametrize("mistake", ["raises", "is silent", "connects nothing"])
def test_any_failure_of_a_connect_hook_is_a_failed_attempt(mistake: str) -> None:
    front = FRONTS["aio"]()
    good = front.broker.connector()
    calls: list[Any] = []

    async def connect(make_protocol: Any, address: Any, tls: Any) -> Any:
        calls.append(address)
        if len(calls) < 3:
            if mistake == "raises":
                raise ZeroDivisionError
            if mistake == "is silent":
                await asyncio.sleep(1000.0)
            return None, None
        return await good(make_protocol, address, tls)

    async def scenario() -> None:
        session = session_of(front, connect=connect)
        await session.start()
        assert session.counters().attempts == 2 and len(calls) == 3, "an attempt tries both brokers"
        await session.stop()
    front.run(scenario)
    assert not front.unhandled


@pytest.mark.parametrize("mistake", ["raises", "fails", "is silent"])
def test_any_failure_of_a_twisted_endpoint_is_a_failed_attempt(mistake: str) -> None:
    front = FRONTS["tx"]()
    calls: list[Any] = []
    cancelled: list[Any] = []

    class Endpoint:
        def connect(self, factory: Any, /) -> Deferred[Any]:
            return fail(ZeroDivisionError()) if mistake == "fails" else Deferred(cancelled.append)

    def endpoint(address: Any) -> Any:
        calls.append(address)
        if len(calls) < 3:
            if mistake == "raises":
                raise ZeroDivisionError
            return Endpoint()
        return front.broker.endpoint(front.clock)(address)  # type: ignore[attr-defined]

    async def scenario() -> None:
        session = session_of(front, endpoint=endpoint)
        await session.start()
        assert session.counters().attempts == 2 and len(calls) == 3, "an attempt tries both brokers"
        await session.stop()
    front.run(scenario)
    assert len(cancelled) == (2 if mistake == "is silent" else 0)


def test_stop_cancels_a_pending_connection_attempt() -> None:
    front = FRONTS["aio"]()
    given_up: list[bool] = []

    async def connect(make_protocol: Any, address: Any, tls: Any) -> Any:
        try:
            await asyncio.sleep(1000.0)
        finally:
            given_up.append(True)

    async def scenario() -> None:
        session = session_of(front, connect=connect)
        starting = front.begin(session.start())
        await front.pass_time(1.0)
        await session.stop()
        with pytest.raises(SdkError) as caught:
            await starting
        assert caught.value.result is Result.CANCELED and given_up == [True, True]
    front.run(scenario)


def test_a_full_channel_raises_watermark_events_and_refuses_posts_without_waiting(front: Front) -> None:
    """With a broker that does not read, watermark events are reported and posts without waiting are refused."""
    async def scenario() -> None:
        session = await front.start(channel_high_bytes=100_000, channel_low_bytes=50_000)
        queue = await w(session.open(URI, write=True))
        with front.broker.faults.stall("post"):
            with pytest.raises(SdkError) as caught:
                for _ in range(20):
                    queue.post_nowait(b"x" * 20_000)
                    await front.pass_time(0.001)
                    if front.name == "simple" and session.core.blocked:
                        raise SdkError(Result.BW_LIMIT)  # the call would wait
            assert caught.value.result is Result.BW_LIMIT
        await w(queue.flush())
        await w(session.stop())
    front.run(scenario)
    assert front.kinds()[1:-1] == [EventKind.CHANNEL_HIGH_WATERMARK, EventKind.CHANNEL_LOW_WATERMARK]


class PullProducer:
    """Writes one message per call."""

    def __init__(self, queue: Any, count: int) -> None:
        self.queue, self.left = queue, count

    def resumeProducing(self) -> None:
        self.left -= 1
        if not self.left:
            self.queue.unregisterProducer()
        self.queue.write(b"%d" % self.left * 300)


def test_a_pull_producer_is_called_while_there_is_room() -> None:
    front = FRONTS["tx"]()

    async def scenario() -> None:
        session = await front.start(unacked_bytes_max=2000)
        queue = await session.open(URI, write=True)
        producer = PullProducer(queue, 50)
        queue.registerProducer(producer, False)
        with pytest.raises(RuntimeError):
            queue.registerProducer(producer, False)
        await front.until(lambda: not producer.left)
        await queue.flush()
        await session.stop()
    front.run(scenario)
    assert len(front.broker.messages(URI)) == 50


def test_an_iteration_over_many_messages_yields_to_the_event_loop() -> None:
    """An iteration without waits must not block timers and connections."""
    with Broker() as broker:
        for number in range(1000):
            broker.put(URI, b"%d" % number)

        async def scenario() -> list[int]:
            turns: list[int] = []
            read = 0

            async def others() -> None:
                while read < 1000:
                    turns.append(read)
                    await asyncio.sleep(0)
            async with broker.session() as session, session.open(URI, read=True) as queue:
                await asyncio.sleep(1)
                beside = asyncio.ensure_future(others())
                async for message in queue:
                    message.confirm()
                    read += 1
                    if read == 1000:
                        break
                await beside
            return turns
        turns = run(scenario())
    assert max(b - a for a, b in zip(turns, turns[1:] + [1000], strict=True)) <= 100


@pytest.mark.parametrize("high", [30_000, 124 << 20])
def test_a_twisted_connection_reads_a_bounded_number_of_bytes_at_a_time(high: int) -> None:
    """`bufferSize` is both the read size of a transport and its limit for pausing a producer."""
    front = FRONTS["tx"]()
    sizes = []

    async def scenario() -> None:
        session = await front.start(channel_high_bytes=high, channel_low_bytes=high // 2)
        sizes.append(session._channel.transport.bufferSize)
        await session.stop()
    front.run(scenario)
    assert sizes == [min(high, 1 << 16)]


# -- sockets --------------------------------------------------------------------------------------------------------


def test_an_invalid_host_name_is_an_error_of_the_caller() -> None:
    with pytest.raises(blazingmq.exceptions.Error, match=r"INVALID_ARGUMENT: broker host 'a\.\.b'"):
        blazingmq.Session(lambda event: None, broker="tcp://a..b:1")
    with pytest.raises(LocalError, match=r"broker host 'a\.\.b'"):
        simple.Session("tcp://a..b:1", connect_timeout_s=0.3)


def test_the_start_times_out_during_a_stalled_tls_handshake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        with pytest.raises(SdkError) as raised:
            simple.Session(f"tls://127.0.0.1:{silent.getsockname()[1]}", connect_timeout_s=0.3, attempt_timeout_s=8.0)
        assert raised.value.result is Result.TIMEOUT and time.monotonic() - begun < 5.0


def test_a_blocking_session_works_in_a_process_with_thousands_of_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= 1200, "needs 1200 open files: raise the hard limit (ulimit -Hn)"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    broker = Broker()
    files = []
    try:
        url = broker.listen()
        while not files or files[-1] < 1100:
            files.append(os.open(os.devnull, os.O_RDONLY))
        with simple.Session(url, connect_timeout_s=5.0) as session, session.open(URI, read=True, write=True) as queue:
            assert queue.post(b"x").ok
            message = queue.get(5.0)
            assert message is not None and message.payload == b"x"
            message.confirm()
    finally:
        for each in files:
            os.close(each)
        broker.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
