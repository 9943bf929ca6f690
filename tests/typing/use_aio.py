"""The asyncio front as an application uses it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, assert_type

from values import ANY, OWN, STRUCT, Order

from bmqtwist.sdk import (
    Ack,
    Address,
    Credential,
    EventKind,
    HealthMonitor,
    Message,
    PostRefused,
    PostsFailed,
    PropertyType,
    QueueOptions,
    Result,
    SdkError,
    SessionEvent,
    SessionOptions,
    Subscription,
    parse_brokers,
)
from bmqtwist.sdk.aio import Opening, Queue, Session, connect_tcp
from bmqtwist.sdk.counters import Counters
from bmqtwist.sdk.rpc import Requester, Responder

URI = "bmq://domain/queue"


def on_event(event: SessionEvent) -> None:
    """Check the members of a session event."""
    assert_type(event.kind, EventKind)
    assert_type(event.result, Result)
    print(event.uri, event.message)


async def on_message(message: Message) -> None:
    """Process a message: a callback may be a coroutine function."""
    async with message:
        assert_type(message.payload, bytes)


def on_order(message: Message[Order]) -> None:
    """Process a message of a queue with a codec."""
    assert_type(message.value, Order)


async def tunnel(make: Callable[[], asyncio.BaseProtocol], address: Address,
                 tls: ssl.SSLContext | None) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
    """Connect through a proxy: a connector of the application."""
    return await connect_tcp(make, Address("proxy", address.port), tls)


async def sessions() -> None:
    """Use all arguments and methods of a session."""
    health = HealthMonitor()
    options = SessionOptions(brokers=parse_brokers("tcp://a:1,tls://b"), credential=Credential.basic("me", "secret"))
    async with Session(options=options, tls=ssl.create_default_context(), on_event=on_event,
                       on_nack=lambda ack: print(ack.guid), health=health, connect=tunnel) as session:
        assert_type(session, Session)
        assert_type(session.options, SessionOptions)
        assert_type(session.counters(), Counters)
        assert_type(await session.room(1.0, size=100), bool)
    session = Session(["tcp://a", "tcp://b"], post_wait_s=1.0)
    await session.start()
    assert_type(await session.stop(drain=False), None)
    health.listen(print)()


async def queues(session: Session) -> None:
    """Use all methods of a queue of bytes."""
    opening = session.open(URI, write=True, on_message=on_message)
    assert_type(opening, Opening[bytes])
    queue = await opening
    assert_type(queue, Queue[bytes])
    ack = await queue.post(b"x", {"a": 1}, {"a": PropertyType.SHORT}, correlation=7, compress=True)
    assert_type(ack, Ack)
    assert_type(ack.status, Result)
    assert_type(ack.correlation, object)
    assert_type(queue.post_nowait(b"x", on_ack=lambda ack: print(ack.ok)), bytes)
    assert_type(await queue.post_many([b"a", (b"b", {"k": "v"}), (b"c", None)]), list[Ack])
    try:
        await queue.flush()
    except PostsFailed as error:
        assert_type(error.acks, list[Ack])
        assert_type(error.failures, int)
    async for message in queue:
        assert_type(message, Message[bytes])
        assert_type(message.value, bytes)
        assert_type(message.properties, dict[str, int | str | bool | bytes])
        assert_type(message.property_types, dict[str, PropertyType])
        message.confirm()
        queue.confirm(message)
        with message:
            break
    assert_type(await queue.get(), Message[bytes])
    assert_type(queue.get_nowait(), Message[bytes])
    await queue.configure(QueueOptions(10, subscriptions=(Subscription("a > 1", context="big"),)), timeout_s=1)
    await queue.configure(consumer_priority=1, subscriptions=[])
    assert_type(await queue.post_many([b"x"], return_exceptions=True), list[Ack | PostRefused])
    try:
        await queue.post(b"x")
    except PostRefused as refused:
        assert_type(refused.status, Result)
        assert_type(refused.guid, bytes)
    await queue.pause(1.0)
    await queue.resume()
    await queue.drain(timeout_s=1.0)
    assert_type(queue.options, QueueOptions)
    assert_type(queue.is_open, bool)
    assert_type(queue.error, SdkError | None)
    await queue.close(timeout_s=5.0)


async def values(session: Session) -> None:
    """Use queues with codecs: the codec determines the types of values."""
    async with session.open(URI, read=True, write=True, codec=OWN, on_message=on_order) as orders:
        assert_type(orders, Queue[Order])
        await orders.post(Order(1, ["a"]))
        await orders.post_many([Order(2, []), (Order(3, []), {"k": 1})])
        assert_type((await orders.get()).value, Order)
    packed = await session.open(URI, read=True, codec=STRUCT)
    assert_type((await packed.get()).value, Order)
    anything = await session.open(URI, read=True, write=True, codec=ANY)
    assert_type(anything, Queue[Any])
    await anything.post({"a": [1, 2]})


async def requests(session: Session, queue: Queue, orders: Queue[Order]) -> None:
    """Use requesters and responders."""
    async with Requester(session, "domain") as plain:
        assert_type((await plain.request(queue, b"x", timeout_s=1.0)).payload, bytes)
    async with Requester(session, "domain", OWN) as typed:
        assert_type((await typed.request(orders, Order(1, []))).value, Order)

    async def handler(message: Message[Order]) -> Order:
        return message.value
    async with Responder(session, OWN) as responder:
        await responder.serve(orders, handler)
        await responder.reply(await orders.get(), Order(1, []))
