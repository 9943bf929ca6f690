"""The Twisted front as an application uses it."""

from __future__ import annotations

from typing import Any, assert_type

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import UNIXClientEndpoint
from values import OWN, Order

from bmqtwist.sdk import Ack, Address, HealthMonitor, Message, QueueOptions
from bmqtwist.sdk.rpc import Requester, Responder
from bmqtwist.sdk.tx import Queue, Session

URI = "bmq://domain/queue"


async def sessions(reactor: Any) -> None:
    """Use all arguments and methods of a session."""
    def endpoint(address: Address) -> UNIXClientEndpoint:
        return UNIXClientEndpoint(reactor, f"/run/{address.host}")
    session = Session(reactor, "tcp://a", on_event=print, on_nack=print, health=HealthMonitor(), endpoint=endpoint,
                      post_wait_s=1.0)
    assert_type(session.start(), Deferred[None])
    assert_type(session.room(1.0), Deferred[bool])
    assert_type(session.stop(drain=False), Deferred[None])
    async with session as entered:
        assert_type(entered, Session)


def deferreds(session: Session) -> None:
    """Use chains of callbacks."""
    def opened(queue: Queue) -> Deferred[Ack]:
        return queue.post(b"hello")

    def acknowledged(ack: Ack) -> bool:
        return ack.ok
    waiting = session.open(URI, write=True)
    assert_type(waiting, Deferred[Queue[bytes]])
    assert_type(waiting.addCallback(opened).addCallback(acknowledged), Deferred[bool])


async def coroutines(session: Session) -> None:
    """Use all methods of queues, with and without a codec."""
    async with await session.open(URI, read=True, write=True) as queue:
        assert_type(queue, Queue[bytes])
        assert_type(await queue.post(b"x", {"a": 1}), Ack)
        assert_type(queue.post_nowait(b"x"), bytes)
        assert_type(await queue.post_many([b"x", (b"y", {"k": True})]), list[Ack])
        assert_type(queue.flush(), Deferred[None])
        assert_type(queue.get(), Deferred[Message[bytes]])
        async for message in queue:
            async with message:
                assert_type(message, Message[bytes])
        assert_type(queue.configure(QueueOptions()), Deferred[None])
        assert_type(queue.configure(max_unconfirmed_messages=1), Deferred[None])
        assert_type(queue.pause(), Deferred[None])
        assert_type(queue.resume(), Deferred[None])
        assert_type(queue.drain(timeout_s=1.0), Deferred[None])
        assert_type(queue.close(), Deferred[None])

    async def on_order(message: Message[Order]) -> None:
        assert_type(message.value, Order)
    orders = await session.open(URI, read=True, codec=OWN, on_message=on_order)
    assert_type(await orders.post(Order(1, [])), Ack)
    assert_type((await orders.get()).value, Order)


async def requests(session: Session, queue: Queue) -> None:
    """Use requesters and responders."""
    async def handler(message: Message) -> bytes:
        return message.payload
    async with Requester(session, "domain") as requester, Responder(session) as responder:
        assert_type(await requester.request(queue, b"x"), Message[bytes])
        await responder.serve(queue, handler)
