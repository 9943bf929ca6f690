"""The SDK of this project with a broker process, on Twisted; each test has its own reactor."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kit.process import ProcessWorld, free_port
from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.threads import deferToThreadPool

from bmqtwist.sdk import EventKind, QueueOptions, Result, SdkError
from bmqtwist.sdk.tx import Session

URI = "bmq://d/q"
DEADLINE = 120.0

pytestmark = pytest.mark.process


def run(scenario: Callable[[Any], Coroutine[Deferred[Any], Any, None]]) -> None:
    """Run a scenario on a reactor with a time limit."""
    reactor: Any = EPollReactor()
    outcome: list[Any] = []

    def ended(result: Any) -> None:
        outcome.append(result)
        reactor.stop()

    def begin() -> None:
        Deferred.fromCoroutine(scenario(reactor)).addTimeout(DEADLINE, reactor).addBoth(ended)
    reactor.callWhenRunning(begin)
    reactor.run(installSignalHandlers=False)
    if outcome[0] is not None:
        outcome[0].raiseException()


def test_post_and_consume_with_deferreds(node: ProcessWorld) -> None:
    async def scenario(reactor: Any) -> None:
        session = Session(reactor, node.broker.uri)
        await session.start()
        queue = await session.open(URI, read=True, write=True)
        ack = await queue.post(b"hello", {"n": 1}, correlation=7)
        assert ack.ok and ack.correlation == 7
        message = await queue.get()
        with message:
            assert (message.payload, message.guid, message.properties) == (b"hello", ack.guid, {"n": 1})
        assert [each.ok for each in await queue.post_many([b"a", (b"b", {"k": True})])] == [True, True]
        for number in range(1000):
            queue.post_nowait(b"%d" % number)
        await queue.flush()
        await queue.configure(QueueOptions(max_unconfirmed_messages=10))
        got = []
        async for message in queue:
            message.confirm()
            got.append(message.payload)
            if len(got) == 1002:
                break
        assert got == [b"a", b"b", *(b"%d" % number for number in range(1000))]
        with pytest.raises(SdkError) as caught:
            await session.open(URI, read=True)
        assert caught.value.result is Result.ALREADY_OPENED
        waiting = queue.get()
        await queue.close()
        with pytest.raises(SdkError):
            await waiting
        with pytest.raises(SdkError) as caught:
            await queue.post(b"x")
        assert caught.value.result is Result.INVALID_QUEUE
        await session.stop()
    run(scenario)
    assert node.stored(URI) == 0


def test_a_session_reconnects_after_a_kill_of_the_broker(node: ProcessWorld) -> None:
    kinds = []

    async def scenario(reactor: Any) -> None:
        session = Session(reactor, [f"tcp://127.0.0.1:{free_port()}", node.broker.uri], backoff_first_s=0.1,
                          on_event=lambda event: kinds.append(event.kind))
        await session.start()
        queue = await session.open(URI, write=True)
        acks: list[Any] = []
        for number in range(500):
            queue.post_nowait(b"%d" % number, on_ack=acks.append)
        node.crash()
        for number in range(500, 600):
            queue.post_nowait(b"%d" % number, on_ack=acks.append)
        await deferToThreadPool(reactor, reactor.getThreadPool(), node.start)
        await queue.flush()
        assert len({ack.guid for ack in acks if ack.ok}) == len(acks) == 600
        await session.stop()
    run(scenario)
    assert kinds == [EventKind.CONNECTED, EventKind.CONNECTION_LOST, EventKind.RECONNECTED,
                     EventKind.QUEUE_REOPEN_RESULT, EventKind.STATE_RESTORED, EventKind.DISCONNECTED]
    assert node.stored(URI) == 600


class Producer:
    """A push producer that writes until it is paused."""

    def __init__(self, reactor: Any, queue: Any, count: int) -> None:
        self.reactor, self.queue, self.left = reactor, queue, count
        self.pauses, self.running = 0, False
        self.done: Deferred[None] = Deferred()

    def pauseProducing(self) -> None:
        self.pauses += 1
        self.running = False

    def resumeProducing(self) -> None:
        self.running = True
        while self.running and self.left:
            self.left -= 1
            self.queue.write(b"x" * 1000)
        if not self.left and not self.done.called:
            self.queue.unregisterProducer()
            self.done.callback(None)


def test_a_twisted_push_producer_is_paused_while_the_buffer_is_full(node: ProcessWorld) -> None:
    async def scenario(reactor: Any) -> None:
        session = Session(reactor, node.broker.uri, unacked_bytes_max=20_000)
        await session.start()
        queue = await session.open(URI, write=True)
        producer = Producer(reactor, queue, 200)
        queue.registerProducer(producer, True)
        producer.resumeProducing()
        await producer.done
        await queue.flush()
        assert producer.pauses >= 5
        assert [ack.ok for ack in await queue.post_many([b"y" * 1000] * 100)] == [True] * 100  # these wait for room
        await session.stop()
    run(scenario)
    assert node.stored(URI) == 300
