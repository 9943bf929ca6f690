"""The blocking front as an application uses it."""

from __future__ import annotations

import ssl
from typing import assert_type

from values import OWN, Order

from bmqtwist.sdk import Ack, HealthMonitor, Message, QueueOptions, SessionEvent
from bmqtwist.sdk.pump import Dispatch, Pump
from bmqtwist.sdk.rpc import BlockingRequester, BlockingResponder
from bmqtwist.sdk.simple import Queue, Session
from bmqtwist.sdk.sockets import SocketPump

URI = "bmq://domain/queue"


def on_event(event: SessionEvent) -> None:
    """Ignore a session event."""


def sessions() -> None:
    """Use all arguments and methods of a session."""
    def pump(options: object, dispatch: Dispatch, tls: ssl.SSLContext | None) -> Pump:
        raise OSError("no network")
    with Session("tcp://a", on_event=on_event, on_nack=print, health=HealthMonitor(), pump=SocketPump,
                 connect_timeout_s=3) as session:
        assert_type(session, Session)
        session.step(1.0)
        session.wait(lambda: True, 1.0, quiet=True)
    Session(pump=pump).stop(drain=False)


def queues(session: Session) -> None:
    """Use all methods of queues, with and without a codec."""
    with session.open(URI, read=True, write=True) as queue:
        assert_type(queue, Queue[bytes])
        assert_type(queue.post(b"x"), Ack)
        assert_type(queue.post_nowait(b"x", on_ack=print), bytes)
        assert_type(queue.post_many([b"x"]), list[Ack])
        queue.flush()
        assert_type(queue.get(1.0), Message[bytes] | None)
        assert_type(queue.poll(10, 1.0), list[Message[bytes]])
        for message in queue:
            with message:
                assert_type(message, Message[bytes])
        queue.configure(QueueOptions(), timeout_s=1.0)
        queue.configure(max_unconfirmed_messages=1, timeout_s=1.0)
        queue.pause()
        queue.resume(timeout_s=1.0)
        queue.drain(timeout_s=1.0)
    orders = session.open(URI, codec=OWN, on_message=lambda message: print(message.value.number))
    orders.post(Order(1, []))
    for each in orders:
        assert_type(each.value, Order)


def requests(session: Session, queue: Queue) -> None:
    """Use requesters and responders."""
    with BlockingRequester(session, "domain") as requester:
        assert_type(requester.request(queue, b"x", timeout_s=1.0), Message[bytes])
    with BlockingResponder(session) as responder:
        responder.serve(queue, lambda message: message.payload)
