"""The official library's interface, with a broker in memory: calls in callbacks, several brokers, and other additions."""

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


def until(queue: Queue[Any], kind: type) -> Any:
    """Return the next event of a kind."""
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
        patch.setattr("sys.excepthook", lambda kind, error, trace: seen.append(kind))
        session = broker.official_session(lambda event: None, on_message)
        session.open_queue(URI, read=True)
        broker.put(URI, b"a")
        broker.put(URI, b"b")
        assert [got.get(timeout=DEADLINE) for _ in range(2)] == [b"a", b"b"]
        session.stop()
    assert seen == [ZeroDivisionError, ZeroDivisionError]


def test_a_session_that_nobody_holds_is_collected_warns_and_consumes_no_more(broker: Broker) -> None:
    heard: Queue[Any] = Queue()
    got: Queue[bytes] = Queue()

    def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
        handle.confirm()
        got.put(message.data)
    session = broker.official_session(heard.put, on_message)
    session.open_queue(URI, read=True, write=True)
    gone = weakref.ref(session)
    with pytest.warns(UserWarning, match=r"stop\(\) not invoked before destruction of Session"):
        del session
    assert gone() is None
    until(heard, events.Disconnected)
    broker.put(URI, b"x")
    other = broker.official_session(lambda event: None, on_message)
    other.open_queue(URI, read=True)
    assert got.get(timeout=DEADLINE) == b"x"
    other.stop()
    assert got.empty()


def test_sessions_that_only_hold_each_other_are_collected(broker: Broker) -> None:
    heard: Queue[Any] = Queue()
    one, two = (broker.official_session(heard.put) for _ in range(2))
    one.other, two.other = two, one  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="not invoked"):
        del one, two
        gc.collect()
    until(heard, events.Disconnected)
    until(heard, events.Disconnected)


def test_what_was_posted_before_the_session_was_dropped_is_delivered(broker: Broker) -> None:
    heard: Queue[Any] = Queue()
    session = broker.official_session(heard.put)
    session.open_queue(URI, write=True)
    for number in range(1000):
        session.post(URI, b"%d" % number)
    with pytest.warns(UserWarning):
        del session
    until(heard, events.Disconnected)
    assert len(broker.messages(URI)) == 1000


def test_threads_of_a_session_end_with_it(broker: Broker) -> None:
    before = set(threading.enumerate())
    session = broker.official_session(lambda event: None)
    mine = set(threading.enumerate()) - before
    assert len(mine) == 2
    session.stop()
    session.stop()
    assert not any(thread.is_alive() for thread in mine)


def test_a_callback_of_an_acknowledgement_is_forgotten_when_its_queue_is_closed(broker: Broker) -> None:
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
def test_a_mistake_raises_what_the_official_library_raises(broker: Broker, name: str) -> None:
    kind, text, call = ERRORS[name]
    with broker.official_session(lambda event: None, lambda message, handle: None) as session:
        session.open_queue(URI, write=True)
        session.open_queue(OTHER, read=True)
        with pytest.raises(kind, match=text) as raised:
            call(session)
        assert raised.type is kind
    with pytest.raises(blazingmq.Error, match="^Method called after session was stopped$"):
        session.open_queue(URI, write=True)


def test_names_of_properties_may_be_bytes(broker: Broker) -> None:
    with broker.official_session(lambda event: None) as session:
        session.open_queue(URI, write=True)
        session.post(URI, b"x", {b"key": 1, "c": b"z"}, {b"key": PropertyType.SHORT,  # type: ignore[dict-item]
                                                         "c": PropertyType.CHAR})
    [stored] = broker.messages(URI)
    assert stored.properties == {"key": 1, "c": ord("z")}


@pytest.mark.parametrize("kind", [blazingmq.Message, blazingmq.Ack, blazingmq.MessageHandle])
def test_what_a_session_gives_is_not_made_by_applications(kind: type) -> None:
    with pytest.raises(blazingmq.Error, match=f"^The {kind.__name__} class does not have a public constructor.$"):
        kind()


def test_reprs_are_those_of_the_official_library() -> None:
    assert repr(PropertyType.BOOL) == "<PropertyType.BOOL>"
    assert "timeout: 'float | None' = ..." in str(inspect.signature(blazingmq.Session.open_queue))


def test_loggers_are_below_the_name_of_the_official_library(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "blazingmq"), broker.official_session(events.log_session_event):
        pass
    assert {record.name for record in caplog.records} == {"blazingmq.session", "blazingmq.session_events"}


def test_in_a_forked_child_the_exit_of_the_parents_session_does_nothing(broker: Broker) -> None:
    session = broker.official_session(lambda event: None)
    engine = session._engine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        engine.stop_at_exit()
        engine.abandon()
    assert engine.started
    session.stop()


@pytest.mark.parametrize("timeout", [-1.0, 2.0 ** 63, float("inf")])
def test_a_timeout_that_makes_no_sense_is_said_before_the_address_is_looked_at(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be greater than 0.0, was"):
        blazingmq.Session(lambda event: None, broker="some_uri", timeout=timeout)
