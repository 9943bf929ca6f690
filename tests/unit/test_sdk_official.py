"""The interface of the official library: what its programs never could do, with a broker in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest

from bmqtwist.sdk import Result, blazingmq
from bmqtwist.sdk.blazingmq import session_events as events
from bmqtwist.testing import Broker

URI = "bmq://bmq.test.mem.priority/q"
OTHER = "bmq://bmq.test.mem.priority/other"
DEADLINE = 60.0


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has no say."""
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker in memory, in real time since these sessions have threads."""
    broker = Broker()
    yield broker
    broker.close()


def until(queue: Queue[Any], kind: type) -> Any:
    """The next of a kind."""
    while not isinstance(found := queue.get(timeout=DEADLINE), kind):
        pass
    return found


def test_every_callback_may_make_every_call(broker: Broker) -> None:
    finished: Queue[str] = Queue()
    session: Any = None

    def on_event(event: events.SessionEvent) -> None:
        if isinstance(event, events.ConnectionLost):
            session.post(URI, b"z")
            session.open_queue(OTHER, write=True)
            session.close_queue(OTHER)
            finished.put("event")

    def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
        with contextlib.suppress(blazingmq.Error):  # no connection: it comes again
            handle.confirm()
        if message.data == b"x":
            session.configure_queue(URI, blazingmq.QueueOptions(max_unconfirmed_messages=3))
            session.post(URI, b"y", on_ack=on_ack)
        elif message.data == b"z":
            session.stop()
            finished.put("message")

    def on_ack(ack: blazingmq.Ack) -> None:
        broker.disconnect()
    session = broker.official_session(on_event, on_message)
    session.open_queue(URI, read=True, write=True)
    session.post(URI, b"x")
    assert {finished.get(timeout=DEADLINE) for _ in range(2)} == {"event", "message"}


def test_host_health_and_slow_consumers_are_told(broker: Broker) -> None:
    heard: Queue[Any] = Queue()
    health = blazingmq.BasicHealthMonitor()
    held: Queue[Any] = Queue()
    for number in range(20):
        broker.put(URI, b"%d" % number)

    def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
        held.get(timeout=DEADLINE)
        handle.confirm()
    session = broker.official_session(heard.put, on_message, host_health_monitor=health,
                                      event_queue_watermarks=(5, 10))
    session.open_queue(URI, read=True, write=True, options=blazingmq.QueueOptions(suspends_on_bad_host_health=True))
    for _ in range(20):
        held.put(None)
    until(heard, events.SlowConsumerHighWaterMark)
    until(heard, events.SlowConsumerNormal)
    health.set_unhealthy()
    assert until(heard, events.QueueSuspended).queue_uri == URI
    with pytest.raises(blazingmq.Error, match="QUEUE_SUSPENDED"):
        session.post(URI, b"x")
    health.set_healthy()
    until(heard, events.HostHealthRestored)
    session.post(URI, b"x")
    session.stop()


def test_a_refused_post_is_told_to_its_callback(broker: Broker) -> None:
    acks: Queue[blazingmq.Ack] = Queue()
    broker.faults.refuse("post", status=Result.LIMIT_BYTES)
    session = broker.official_session(lambda event: None)
    session.open_queue(URI, write=True)
    session.post(URI, b"x", on_ack=acks.put)
    assert acks.get(timeout=DEADLINE).status is blazingmq.AckStatus.LIMIT_BYTES
    session.stop()


def test_a_callback_that_raises_is_reported_and_the_next_one_comes(broker: Broker) -> None:
    got: Queue[bytes] = Queue()
    seen: list[type] = []

    def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
        handle.confirm()
        got.put(message.data)
        raise ZeroDivisionError
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threading.excepthook", lambda args: seen.append(args.exc_type))
        session = broker.official_session(lambda event: None, on_message)
        session.open_queue(URI, read=True)
        broker.put(URI, b"a")
        broker.put(URI, b"b")
        assert [got.get(timeout=DEADLINE) for _ in range(2)] == [b"a", b"b"]
        session.stop()
    assert seen == [ZeroDivisionError, ZeroDivisionError]
