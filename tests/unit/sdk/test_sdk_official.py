"""Interface of the official library, with a broker in memory: calls in callbacks, errors, lifetime, and additions."""

from __future__ import annotations

import contextlib
import gc
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import pytest

from bmqtwist.sdk import Result, blazingmq
from bmqtwist.sdk.blazingmq import session_events as events
from bmqtwist.testing import Broker
from bmqtwist.wire.properties import PropertyType

URI = "bmq://bmq.test.mem.priority/q"
OTHER = "bmq://bmq.test.mem.priority/other"
DEADLINE = 60.0


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the environment variable."""
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Broker in memory, in real time since these sessions have threads."""
    broker = Broker()
    yield broker
    broker.close()


def next_of_kind(queue: Queue[Any], kind: type) -> Any:
    """Return the next event of a kind."""
    while not isinstance(found := queue.get(timeout=DEADLINE), kind):
        pass
    return found


def test_all_calls_are_allowed_in_all_callbacks(broker: Broker) -> None:
    finished: Queue[str] = Queue()
    session: Any = None

    def on_event(event: events.SessionEvent) -> None:
        if isinstance(event, events.ConnectionLost):
            session.post(URI, b"z")
            session.open_queue(OTHER, write=True)
            session.close_queue(OTHER)
            finished.put("event")

    def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
        with contextlib.suppress(blazingmq.Error):  # no connection: the message is redelivered
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


def test_host_health_and_slow_consumers_cause_events(broker: Broker) -> None:
    received: Queue[Any] = Queue()
    health = blazingmq.BasicHealthMonitor()
    held: Queue[Any] = Queue()
    for number in range(20):
        broker.put(URI, b"%d" % number)

    def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
        held.get(timeout=DEADLINE)
        handle.confirm()
    session = broker.official_session(received.put, on_message, host_health_monitor=health,
                                      event_queue_watermarks=(5, 10))
    session.open_queue(URI, read=True, write=True, options=blazingmq.QueueOptions(suspends_on_bad_host_health=True))
    for _ in range(20):
        held.put(None)
    next_of_kind(received, events.SlowConsumerHighWaterMark)
    next_of_kind(received, events.SlowConsumerNormal)
    health.set_unhealthy()
    assert next_of_kind(received, events.QueueSuspended).queue_uri == URI
    with pytest.raises(blazingmq.Error, match="QUEUE_SUSPENDED"):
        session.post(URI, b"x")
    health.set_healthy()
    next_of_kind(received, events.HostHealthRestored)
    session.post(URI, b"x")
    session.stop()


def test_the_callback_of_a_refused_post_receives_its_status(broker: Broker) -> None:
    acks: Queue[blazingmq.Ack] = Queue()
    broker.faults.refuse("post", status=Result.LIMIT_BYTES)
    session = broker.official_session(lambda event: None)
    session.open_queue(URI, write=True)
    session.post(URI, b"x", on_ack=acks.put)
    assert acks.get(timeout=DEADLINE).status is blazingmq.AckStatus.LIMIT_BYTES
    session.stop()


def test_an_exception_in_a_callback_is_reported_and_the_next_callback_runs(broker: Broker) -> None:
    got: Queue[bytes] = Queue()
    seen: list[type] = []

    def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
        handle.confirm()
        got.put(message.data)
        raise ZeroDivisionError
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.excepthook", lambda kind, error, trace: seen.append(kind))
        session = broker.official_session(lambda event: None, on_message)
        session.open_queue(URI, read=True)
        broker.put(URI, b"a")
        broker.put(URI, b"b")
        assert [got.get(timeout=DEADLINE) for _ in range(2)] == [b"a", b"b"]
        session.stop()
    assert seen == [ZeroDivisionError, ZeroDivisionError]


def test_an_unreferenced_session_warns_and_stops_consuming(broker: Broker) -> None:
    received: Queue[Any] = Queue()
    got: Queue[bytes] = Queue()

    def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
        handle.confirm()
        got.put(message.data)
    session = broker.official_session(received.put, on_message)
    session.open_queue(URI, read=True, write=True)
    gone = weakref.ref(session)
    with pytest.warns(UserWarning, match=r"stop\(\) not invoked before destruction of Session"):
        del session
    assert gone() is None
    next_of_kind(received, events.Disconnected)
    broker.put(URI, b"x")
    other = broker.official_session(lambda event: None, on_message)
    other.open_queue(URI, read=True)
    assert got.get(timeout=DEADLINE) == b"x"
    other.stop()
    assert got.empty()


def test_sessions_in_a_reference_cycle_are_collected(broker: Broker) -> None:
    received: Queue[Any] = Queue()
    one, two = (broker.official_session(received.put) for _ in range(2))
    one.other, two.other = two, one  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="not invoked"):
        del one, two
        gc.collect()
    next_of_kind(received, events.Disconnected)
    next_of_kind(received, events.Disconnected)


def test_posts_of_an_unreferenced_session_are_delivered(broker: Broker) -> None:
    received: Queue[Any] = Queue()
    session = broker.official_session(received.put)
    session.open_queue(URI, write=True)
    for number in range(1000):
        session.post(URI, b"%d" % number)
    with pytest.warns(UserWarning):
        del session
    next_of_kind(received, events.Disconnected)
    assert len(broker.messages(URI)) == 1000


def test_the_threads_of_a_session_end_at_its_stop(broker: Broker) -> None:
    before = set(threading.enumerate())
    session = broker.official_session(lambda event: None)
    own_threads = set(threading.enumerate()) - before
    assert len(own_threads) == 2
    session.stop()
    session.stop()
    assert not any(thread.is_alive() for thread in own_threads)


def test_the_ack_callbacks_of_a_closed_queue_are_not_called(broker: Broker) -> None:
    begun = threading.Event()
    calls: list[blazingmq.AckStatus] = []

    def on_ack(ack: blazingmq.Ack) -> None:
        begun.wait(DEADLINE)
        calls.append(ack.status)
    session = broker.official_session(lambda event: None)
    session.open_queue(URI, write=True)
    session.post(URI, b"1", on_ack=on_ack)
    session.post(URI, b"2", on_ack=on_ack)
    held = weakref.ref(on_ack)
    del on_ack
    assert held() is not None
    while session.counters().acked < 2:
        time.sleep(0.001)
    begun.set()
    session.close_queue(URI)
    assert calls == [blazingmq.AckStatus.SUCCESS] * 2
    for _ in range(1000):  # the thread that moves bytes may be in the middle of its turn
        if held() is None:
            break
        time.sleep(0.001)
    assert held() is None
    session.stop()


ERRORS: dict[str, tuple[type[Exception], str, Callable[[blazingmq.Session], object]]] = {
    "no payload": (TypeError, "expected bytes, got NoneType", lambda s: s.post(URI, None)),  # type: ignore[arg-type]
    "text": (TypeError, "expected bytes, got str", lambda s: s.post(URI, "x")),  # type: ignore[arg-type]
    "empty": (blazingmq.Error, "^Failed to construct message: PAYLOAD_EMPTY", lambda s: s.post(URI, b"")),
    "read only": (blazingmq.Error, "^Failed to construct message: QUEUE_READONLY$", lambda s: s.post(OTHER, b"x")),
    "not open": (blazingmq.Error, "^Queue not opened$", lambda s: s.post(URI + "2", b"x")),
    "configure closed": (blazingmq.Error, "^Queue not opened$",
                         lambda s: s.configure_queue(URI + "2", blazingmq.QueueOptions())),
    "options of closed": (blazingmq.Error, "^Queue not opened$", lambda s: s.get_queue_options(URI + "2")),
    "close closed": (blazingmq.Error, "^Queue not opened$", lambda s: s.close_queue(URI + "2")),
    "flags": (blazingmq.Error, "^Failed to open .+/q2 queue: INVALID_FLAGS: .", lambda s: s.open_queue(URI + "2")),
    "uri": (blazingmq.Error, "^Failed to open tcp://x queue: INVALID_URI: .", lambda s: s.open_queue("tcp://x", True)),
    "priority": (blazingmq.Error, "^Failed to configure .+ queue: INVALID_ARGUMENT: .", lambda s: s.configure_queue(
        URI, blazingmq.QueueOptions(consumer_priority=2 ** 31 - 1))),
    "domain": (blazingmq.Error, "^Failed to open bmq://nowhere/q queue: [A-Z_]+: .",
               lambda s: s.open_queue("bmq://nowhere/q", write=True)),
    "char of two": (TypeError, "'a' value does not have exactly 1 byte, 2 bytes provided",
                    lambda s: s.post(URI, b"x", {"a": b"xy"}, {"a": PropertyType.CHAR})),
    "int32": (ValueError, "Property a value must be between", lambda s: s.post(
        URI, b"x", {"a": 2 ** 31}, {"a": PropertyType.INT32})),
    "int64": (ValueError, "Property a value must be between", lambda s: s.post(URI, b"x", {"a": 2 ** 63})),
    "bool": (TypeError, "'a' value is of the incorrect type, 'int' provided, 'bool' expected",
             lambda s: s.post(URI, b"x", {"a": 1}, {"a": PropertyType.BOOL})),
    "kind": (blazingmq.Error, "Property values of type 'float' are not supported", lambda s: s.post(URI, b"x", {"a": 1.5})),
    "override": (blazingmq.Error, "Received override for non-existent property 'b'",
                 lambda s: s.post(URI, b"x", {"a": 1}, {"b": PropertyType.BOOL})),
    "name": (TypeError, "not expecting type", lambda s: s.post(URI, b"x", {1: 1})),  # type: ignore[dict-item]
    "empty name": (ValueError, "property", lambda s: s.post(URI, b"x", {"": 1})),
    "unmonitored": (blazingmq.Error, "^Queues cannot use suspends_on_bad_host_health if host health monitoring was ",
                    lambda s: s.configure_queue(URI, blazingmq.QueueOptions(suspends_on_bad_host_health=True))),
    "timeout": (ValueError, "^timeout must be greater than 0.0, was -1", lambda s: s.close_queue(URI, timeout=-1)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_invalid_calls_raise_the_exceptions_of_the_official_library(broker: Broker, name: str) -> None:
    kind, text, call = ERRORS[name]
    with broker.official_session(lambda event: None, lambda message, handle: None) as session:
        session.open_queue(URI, write=True)
        session.open_queue(OTHER, read=True)
        with pytest.raises(kind, match=text) as raised:
            call(session)
        assert raised.type is kind
    with pytest.raises(blazingmq.Error, match="^Method called after session was stopped$"):
        session.open_queue(URI, write=True)


def test_property_names_may_be_bytes(broker: Broker) -> None:
    with broker.official_session(lambda event: None) as session:
        session.open_queue(URI, write=True)
        session.post(URI, b"x", {b"key": 1, "c": b"z"}, {b"key": PropertyType.SHORT,  # type: ignore[dict-item]
                                                         "c": PropertyType.CHAR})
    [stored] = broker.messages(URI)
    assert stored.properties == {"key": 1, "c": ord("z")}


@pytest.mark.parametrize("kind", [blazingmq.Message, blazingmq.Ack, blazingmq.MessageHandle])
def test_objects_given_by_a_session_have_no_public_constructor(kind: type) -> None:
    with pytest.raises(blazingmq.Error, match=f"^The {kind.__name__} class does not have a public constructor.$"):
        kind()


def test_reprs_equal_those_of_the_official_library() -> None:
    assert repr(PropertyType.BOOL) == "<PropertyType.BOOL>"
    assert "timeout: 'float | None' = ..." in str(inspect.signature(blazingmq.Session.open_queue))


def test_loggers_have_names_of_the_official_library(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "blazingmq"), broker.official_session(events.log_session_event):
        pass
    assert {record.name for record in caplog.records} == {"blazingmq.session", "blazingmq.session_events"}


@pytest.mark.parametrize("timeout", [-1.0, 2.0 ** 63, float("inf")])
def test_an_invalid_timeout_is_refused_before_the_address_is_parsed(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be greater than 0.0, was"):
        blazingmq.Session(lambda event: None, broker="some_uri", timeout=timeout)
