"""Tests of the reactor performer (`reactor/performer.py`) with its parts: admission of connections (`reactor/admission.py`),
incoming and TCP connections (`reactor/incoming.py`, `reactor/tcp.py`), and the connection limit (`daemon/service.py`)."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kit.performers import Broker, Reactor, Session

from bmqtwist.daemon.service import connections_max
from bmqtwist.link.authentication import Authenticate, Granted
from bmqtwist.link.outgoing import Outgoing
from bmqtwist.link.states import ConnectionState
from bmqtwist.reactor import admission
from bmqtwist.reactor import performer as module
from bmqtwist.reactor.incoming import Incoming
from bmqtwist.reactor.performer import ReactorPerformer
from bmqtwist.reactor.tcp import Connection
from bmqtwist.report import ListReport


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    """(reactor, broker, performer), started; the clock is the reactor's."""
    reactor, report = Reactor(), ListReport()
    broker = Broker(reactor.seconds)
    monkeypatch.setattr(module.time, "monotonic", reactor.seconds)
    monkeypatch.setattr(module.time, "thread_time", reactor.seconds)
    performer = ReactorPerformer(reactor, report, 2, (1, 1), 1.0, 5.0)
    performer.broker = broker  # type: ignore[assignment]
    broker.request_turn = performer.request_turn
    performer.start()
    yield reactor, broker, performer
    performer.stop()


def test_chunks_of_one_round_make_one_turn_at_its_end(world: Any) -> None:
    reactor, broker, performer = world
    session = Session()
    reactor.work = [lambda: performer.on_received(session, b"a"), lambda: performer.on_received(session, b"b"),
                    lambda: broker.turns == 0 or pytest.fail("a turn within the round")]
    reactor.doIteration(7.0)
    assert broker.turns == 1 and reactor.delays == [7.0]
    reactor.doIteration(7.0)
    assert broker.turns == 1, "the second round has no input"


def test_a_round_does_not_wait_while_a_turn_is_due(world: Any) -> None:
    reactor, broker, performer = world
    performer.request_turn()
    reactor.doIteration(None)
    assert reactor.delays == [0] and broker.turns == 1


def test_one_delayed_call_follows_the_next_deadline(world: Any) -> None:
    reactor, broker, performer = world
    calls = len(reactor.getDelayedCalls())
    for deadline in (5.0, 3.0, 9.0):
        broker.deadline = deadline
        performer.request_turn()
        reactor.doIteration(None)
        assert len(reactor.getDelayedCalls()) == calls + 1
    reactor.advance(8.5)
    assert broker.ticks == 0
    reactor.advance(0.5)
    assert broker.ticks == 1


def test_connections_above_the_limit_are_refused_and_logged_once_a_second(world: Any) -> None:
    reactor, broker, performer = world
    reactor.advance(10.0)
    connected = [performer.on_connected(Connection(performer), f"peer{number}", 1) for number in range(5)]
    assert [session is not None for session in connected] == [True, True, False, False, False]
    refusals = [text for _, text in performer.report.lines if "refused" in text]
    assert len(refusals) == 1 and "maxConnections: 2" in refusals[0]
    reactor.advance(1.0)
    performer.on_connected(Accepted(9), "late", 1)
    assert len([text for _, text in performer.report.lines if "refused" in text]) == 2


def test_a_stopping_broker_refuses_connections(world: Any) -> None:
    _, broker, performer = world
    broker.serving = False
    assert performer.on_connected(Accepted(9), "peer", 1) is None


def test_after_an_error_in_a_turn_later_turns_and_deadlines_run(world: Any) -> None:
    reactor, broker, performer = world
    broker.broken, broker.deadline = True, 1.0
    performer.request_turn()
    reactor.doIteration(0)
    assert any("ZeroDivisionError" in text for severity, text in performer.report.lines if severity == "ALARM")
    reactor.advance(1.0)
    assert broker.ticks == 1, "the clock was set"
    reactor.advance(1.0)
    assert broker.ticks == 2, "and set again"
    performer.request_turn()
    reactor.doIteration(0)
    assert broker.turns == 4


@pytest.mark.parametrize("error", [None, OSError(5, "EIO"), ValueError("not of the disk")])
def test_after_an_error_in_a_thread_result_deadlines_still_run(world: Any, error: Exception | None) -> None:
    reactor, broker, performer = world
    broker.broken, broker.deadline = True, 1.0
    outcomes: list[tuple[Any, ...]] = []

    def outcome(*what: Any) -> None:
        outcomes.append(what)
        raise ZeroDivisionError

    def work() -> None:
        if error is not None:
            raise error

    performer.run_in_thread(work, outcome, outcome)
    reactor.from_threads.get(timeout=10)()
    assert len(outcomes[0]) == (1 if error is None else 2)
    if error is not None:
        assert isinstance(outcomes[0][0], OSError)
    alarms = [text for severity, text in performer.report.lines if severity == "ALARM"]
    assert any("ZeroDivisionError" in text for text in alarms)
    assert any("Internal error on a thread" in text for text in alarms) is isinstance(error, ValueError)
    reactor.advance(1.0)
    assert broker.ticks == 1


def test_a_lost_connection_causes_a_turn(world: Any) -> None:
    reactor, broker, performer = world
    session = Session()
    performer.on_lost(session)
    reactor.doIteration(0)
    assert session.closed == ["lost"] and broker.turns == 1


@pytest.mark.parametrize("late, severity", [(0.5, None), (2.0, "WARN"), (6.0, "ALARM")])
def test_the_lag_of_the_event_loop_is_measured_and_logged(world: Any, late: float, severity: str | None) -> None:
    reactor, _, performer = world
    performer.lag.measure(reactor.seconds() - late)
    assert performer.lag.last == late and performer.lag.longest >= late
    severities = [found for found, text in performer.report.lines if "event loop was busy" in text]
    assert severities == ([severity] if severity else [])


@pytest.mark.parametrize("busy, collections, wanted", [(0.0, 300, 1), (0.04, 500, 1), (0.06, 500, 0), (0.0, 299, 0)])
def test_a_full_garbage_collection_runs_while_the_loop_is_idle(world: Any, monkeypatch: pytest.MonkeyPatch, busy: float,
                                                               collections: int, wanted: int) -> None:
    reactor, _, performer = world
    seen: list[int] = []
    monkeypatch.setattr("bmqtwist.reactor.loop_lag.gc.get_count", lambda: (0, 0, collections))
    monkeypatch.setattr("bmqtwist.reactor.loop_lag.gc.collect", lambda *young: young or seen.append(1))
    reactor.advance(1.0)
    seen.clear()
    performer.lag.busy = 0.0
    performer._perform(lambda now: setattr(performer.watchdog, "began", performer.watchdog.began - busy))
    reactor.advance(1.0)
    assert len(seen) == wanted


def test_slow_full_garbage_collections_run_less_often(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reactor, _, performer = world
    made, seen = [0, 0, 0], []

    def collect(*young: int) -> None:
        if not young:
            seen.append(made[2])
            reactor.rightNow += 0.042

    monkeypatch.setattr("bmqtwist.reactor.loop_lag.gc.get_count", lambda: made)
    monkeypatch.setattr("bmqtwist.reactor.loop_lag.gc.collect", collect)
    for made[2] in (300, 300, 2699, 2700, 2699):
        reactor.advance(1.0)
    assert seen == [300, 2700]


def test_the_younger_generations_are_collected_each_second(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The traversal of a deque with a million entries takes 40 ms: it must be in the oldest generation by then."""
    reactor, _, _ = world
    seen: list[int] = []
    monkeypatch.setattr("bmqtwist.reactor.loop_lag.gc.collect", seen.append)
    for _ in range(3):
        reactor.advance(1.0)
    assert seen == [1, 1, 1]


def test_writing_to_a_session_without_connection_drops_the_output(world: Any) -> None:
    _, _, performer = world
    session = Session()
    assert performer.write(session, [b"x"]) == 0
    performer.close_when_sent(session)
    performer.set_reading(session, False)


def test_a_write_in_the_turn_of_its_request_is_marked_as_answered_at_once(world: Any,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    reactor, broker, performer = world
    session: Any = Session()
    connection = session.transport = Connection(performer)
    connection.session, connection.incoming = session, Incoming(performer, None, connection.outgoing)
    session.outgoing = connection.outgoing
    session.outgoing.send = len
    session.channel = SimpleNamespace(out_bytes=0, negotiated_at=0.0)
    found = []

    def write(now: float) -> None:
        performer.write(session, [b"x"])
        found.append(connection.outgoing.answered_at_once)

    monkeypatch.setattr(broker, "turn", write)
    performer.on_received(session, b"x")
    for _ in range(2):
        reactor.doIteration(0.0)
        reactor.rightNow += 0.001
        performer.request_turn()
    assert found == [True, False]


def test_a_stop_restores_the_iteration_of_the_reactor_and_cancels_delayed_calls() -> None:
    reactor = Reactor()
    performer = ReactorPerformer(reactor, ListReport(), 0, (0, 1), 0.0, 0.0)
    performer.broker = Broker()  # type: ignore[assignment]
    original = reactor.doIteration
    performer.start()
    assert reactor.doIteration != original
    performer.stop()
    assert reactor.doIteration == original and not reactor.getDelayedCalls()


def test_the_credential_of_a_disconnected_client_is_not_checked() -> None:
    """Jobs of disconnected clients would delay the others: 400 of them took 50 s."""
    class Slow:
        checked: list[bytes] = []

        def authenticate(self, data: bytes, peer: str) -> Granted:
            self.checked.append(data)
            return Granted("a principal")

    gone, there = Session(), Session()
    gone.state, there.state = ConnectionState.CLOSED, ConnectionState.AUTHENTICATING  # type: ignore[attr-defined]
    for session, data in ((gone, b"gone"), (there, b"there")):
        module._authenticate(session, Authenticate(1, Slow(), data, "a:1"))  # type: ignore[arg-type]
    assert Slow.checked == [b"there"]


@pytest.mark.parametrize("wanted, files_max, taken", [
    (10_000, 65_536, 10_000), (10_000, 1024, 768), (0, 1024, 768), (10_000, 100, 1), (10_000, -1, 10_000), (0, -1, 0)])
def test_the_connection_limit_leaves_open_files_to_the_storage(wanted: int, files_max: int, taken: int) -> None:
    """-1 = no limit of open files."""
    assert connections_max(wanted, files_max) == taken


class SlowSession(Session):
    """A session that takes a millisecond for each received byte and records its input."""

    def __init__(self, reactor: Reactor, processed: list[bytes], negotiated: bool) -> None:
        super().__init__()
        self._reactor, self._processed = reactor, processed
        self.channel = SimpleNamespace(negotiated_at=0.0 if negotiated else None)

    def receive(self, data: bytes, now: float, wall: int) -> None:
        self._processed.append(data)
        self._reactor.rightNow += len(data) / 1000


def input_per_round(reactor: Reactor, processed: list[bytes]) -> list[list[bytes]]:
    """The input processed in each round until none is pending."""
    found = []
    for _ in range(1000):
        before = len(processed)
        reactor.doIteration(5.0)
        if reactor.delays[-1] == 5.0 and not processed[before:]:
            return found
        found.append(processed[before:])
    raise AssertionError("it never ends")


def test_unauthenticated_connections_get_a_few_milliseconds_of_each_turn_after_other_clients(world: Any) -> None:
    reactor, broker, performer = world
    reactor.rightNow = 1000.0
    processed: list[bytes] = []
    sessions = [SlowSession(reactor, processed, False) for _ in range(10)]
    good = SlowSession(reactor, processed, True)
    reactor.work = [partial(performer.on_received, session, b"ss") for session in sessions]
    reactor.work.append(partial(performer.on_received, good, b"g"))
    assert input_per_round(reactor, processed) == [[b"g", b"ss"], *[[b"ss"]] * 9]
    assert round(performer.watchdog.longest, 3) == 0.003 and performer.watchdog.slow == 0 and broker.turns == 10


def test_after_the_input_time_of_a_turn_input_is_deferred_in_the_order_of_each_session(world: Any) -> None:
    reactor, broker, performer = world
    reactor.rightNow = 1000.0
    processed: list[bytes] = []
    greedy, good = SlowSession(reactor, processed, True), SlowSession(reactor, processed, True)
    reactor.work = [partial(performer.on_received, greedy, b"G" * 51), partial(performer.on_received, good, b"1"),
                    partial(performer.on_received, greedy, b"H" * 40), partial(performer.on_received, good, b"2"),
                    lambda: reactor.work.append(partial(performer.on_received, good, b"3"))]
    assert input_per_round(reactor, processed) == [[b"G" * 51, b"1", b"H" * 40], [b"2", b"3"]]
    assert broker.turns == 2 and performer.watchdog.slow == 0


def test_after_the_input_time_of_a_turn_only_small_chunks_are_processed(world: Any) -> None:
    """A client with a small request is not delayed by a client with more than one turn of input."""
    reactor, broker, performer = world
    reactor.rightNow = 1000.0
    processed: list[bytes] = []
    greedy, other, good = (SlowSession(reactor, processed, True) for _ in range(3))
    reactor.work = [partial(performer.on_received, greedy, b"G" * 30), partial(performer.on_received, other, b"O" * 3000),
                    partial(performer.on_received, good, b"g")]
    assert input_per_round(reactor, processed) == [[b"G" * 30, b"g", b"O" * 3000]]


def test_deferred_input_has_a_step_in_each_turn(world: Any) -> None:
    """Otherwise the first ready connections would use every turn."""
    reactor, _, performer = world
    reactor.rightNow = 1000.0
    processed: list[bytes] = []
    first, second, late, good = (SlowSession(reactor, processed, True) for _ in range(4))
    reactor.work = [partial(performer.on_received, first, b"1" * 7), partial(performer.on_received, second, b"2" * 3000),
                    partial(performer.on_received, late, b"3" * 3000)]
    reactor.work.append(lambda: reactor.work.extend([partial(performer.on_received, first, b"4" * 3000),
                                                     partial(performer.on_received, good, b"g")]))
    assert [[each[:1] for each in chunks] for chunks in input_per_round(reactor, processed)] == [
        [b"1", b"2"], [b"4", b"3"], [b"g"]]


def test_deferred_input_keeps_its_order_after_negotiation_and_is_processed_after_a_loss(world: Any) -> None:
    reactor, _, performer = world
    reactor.rightNow = 1000.0
    processed: list[bytes] = []
    session = SlowSession(reactor, processed, False)
    performer.on_received(session, b"a")
    session.channel.negotiated_at = 1.0
    performer.on_received(session, b"b")
    reactor.doIteration(0)
    assert processed == [b"a", b"b"]
    leaving = SlowSession(reactor, processed, False)
    performer.on_received(leaving, b"last words")
    performer.on_lost(leaving)
    reactor.doIteration(0)
    reactor.doIteration(0)
    assert processed[-1] == b"last words" and leaving.closed == ["lost"]
    reactor.doIteration(0)
    assert len(processed) == 3


class Port:
    """A listening port."""

    connected, reading = True, True

    def stopReading(self) -> None:
        self.reading = False

    def startReading(self) -> None:
        self.reading = True


class Accepted:
    """A connection whose socket has this file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.outgoing = Outgoing()


def test_without_open_files_left_for_the_storage_connections_are_refused_for_a_time(world: Any) -> None:
    reactor, broker, performer = world
    reactor.advance(10.0)
    port = Port()
    performer.admission.files_max, performer.admission.ports = 1024, [port]
    assert performer.on_connected(Accepted(1024 - admission.FILES_LEFT_MIN - 1), "peer", 1) is not None and port.reading
    for _ in range(3):
        assert performer.on_connected(Accepted(1024 - admission.FILES_LEFT_MIN), "peer", 1) is None and not port.reading
    lines = [text for _, text in performer.report.lines if "open files" in text]
    assert len(lines) == 1 and "fewer than 128 of 1024" in lines[0]
    reactor.advance(admission.ACCEPT_PAUSE_S)
    assert port.reading
    performer.on_connected(Accepted(1000), "peer", 1)
    assert not port.reading
    port.connected = False  # the broker stops
    reactor.advance(admission.ACCEPT_PAUSE_S)
    assert not port.reading


def test_the_clock_is_the_time_of_the_reactor_and_processor_time_counts_only_work(
        world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliveries and writes of a turn end at a moment of the clock; the budgets of the scheduler count work."""
    reactor, _, performer = world
    reactor.rightNow = 1000.0
    start = performer.processor_time()
    monkeypatch.setattr(performer._processor_time, "_processor", lambda: start)
    reactor.rightNow += 0.5
    assert performer.clock() == reactor.seconds()
    assert performer.processor_time() - start < 0.001
