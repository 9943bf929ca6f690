"""The performer of a broker: one turn per round, one delayed call, refusals at the limit, unexpected exceptions."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kit.performers import Broker, Reactor, Session

from bmqtwist.daemon.service import connections_max
from bmqtwist.link.authentication import Authenticate, Granted
from bmqtwist.link.outgoing import Outgoing
from bmqtwist.link.states import State
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
    performer = ReactorPerformer(reactor, report, 2, (1, 1), 1.0, 5.0)
    performer.broker = broker  # type: ignore[assignment]
    broker.turn_due = performer.turn_due
    performer.start()
    yield reactor, broker, performer
    performer.stop()


def test_many_chunks_in_one_round_make_one_turn_at_its_end(world: Any) -> None:
    reactor, broker, performer = world
    session = Session()
    reactor.work = [lambda: performer.received(session, b"a"), lambda: performer.received(session, b"b"),
                    lambda: broker.turns == 0 or pytest.fail("a turn within the round")]
    reactor.doIteration(7.0)
    assert broker.turns == 1 and reactor.delays == [7.0]
    reactor.doIteration(7.0)
    assert broker.turns == 1, "nothing happened in the second round"


def test_a_round_does_not_sleep_while_a_turn_is_due(world: Any) -> None:
    reactor, broker, performer = world
    performer.turn_due()
    reactor.doIteration(None)
    assert reactor.delays == [0] and broker.turns == 1


def test_the_clock_is_one_delayed_call_that_follows_the_next_deadline(world: Any) -> None:
    reactor, broker, performer = world
    calls = len(reactor.getDelayedCalls())
    for deadline in (5.0, 3.0, 9.0):
        broker.deadline = deadline
        performer.turn_due()
        reactor.doIteration(None)
        assert len(reactor.getDelayedCalls()) == calls + 1
    reactor.advance(8.5)
    assert broker.ticks == 0
    reactor.advance(0.5)
    assert broker.ticks == 1


def test_connections_beyond_the_limit_are_refused_and_said_once_a_second(world: Any) -> None:
    reactor, broker, performer = world
    reactor.advance(10.0)
    connected = [performer.connected(Connection(performer), f"peer{number}", 1) for number in range(5)]
    assert [session is not None for session in connected] == [True, True, False, False, False]
    refusals = [text for _, text in performer.report.lines if "refused" in text]
    assert len(refusals) == 1 and "maxConnections: 2" in refusals[0]
    reactor.advance(1.0)
    performer.connected(Accepted(9), "late", 1)
    assert len([text for _, text in performer.report.lines if "refused" in text]) == 2


def test_a_stopping_broker_takes_no_connections(world: Any) -> None:
    _, broker, performer = world
    broker.serving = False
    assert performer.connected(Accepted(9), "peer", 1) is None


def test_a_turn_that_raises_costs_neither_the_next_turn_nor_the_clock(world: Any) -> None:
    reactor, broker, performer = world
    broker.broken, broker.deadline = True, 1.0
    performer.turn_due()
    reactor.doIteration(0)
    assert any("ZeroDivisionError" in text for severity, text in performer.report.lines if severity == "ALARM")
    reactor.advance(1.0)
    assert broker.ticks == 1, "the clock was set"
    reactor.advance(1.0)
    assert broker.ticks == 2, "and set again"
    performer.turn_due()
    reactor.doIteration(0)
    assert broker.turns == 4


@pytest.mark.parametrize("error", [None, OSError(5, "EIO"), ValueError("not of the disk")])
def test_the_outcome_of_work_on_a_thread_that_raises_leaves_the_clock_set(world: Any, error: Exception | None) -> None:
    reactor, broker, performer = world
    broker.broken, broker.deadline = True, 1.0
    outcomes: list[tuple[Any, ...]] = []

    def outcome(*what: Any) -> None:
        outcomes.append(what)
        raise ZeroDivisionError

    def work() -> None:
        if error is not None:
            raise error

    performer.in_thread(work, outcome, outcome)
    reactor.from_threads.get(timeout=10)()
    assert len(outcomes[0]) == (1 if error is None else 2)
    if error is not None:
        assert isinstance(outcomes[0][0], OSError)
    alarms = [text for severity, text in performer.report.lines if severity == "ALARM"]
    assert any("ZeroDivisionError" in text for text in alarms)
    assert any("Internal error on a thread" in text for text in alarms) is isinstance(error, ValueError)
    reactor.advance(1.0)
    assert broker.ticks == 1


def test_a_lost_connection_leaves_a_turn_due(world: Any) -> None:
    reactor, broker, performer = world
    session = Session()
    performer.lost(session)
    reactor.doIteration(0)
    assert session.closed == ["lost"] and broker.turns == 1


@pytest.mark.parametrize("late, severity", [(0.5, None), (2.0, "WARN"), (6.0, "ALARM")])
def test_a_loop_that_is_late_is_measured_and_said(world: Any, late: float, severity: str | None) -> None:
    reactor, _, performer = world
    performer.lag.measure(reactor.seconds() - late)
    assert performer.lag.last == late and performer.lag.longest >= late
    said = [found for found, text in performer.report.lines if "event loop was busy" in text]
    assert said == ([severity] if severity else [])


@pytest.mark.parametrize("busy, collections, wanted", [(0.0, 300, 1), (0.04, 500, 1), (0.06, 500, 0), (0.0, 299, 0)])
def test_all_objects_are_looked_at_while_there_is_little_to_do(world: Any, monkeypatch: pytest.MonkeyPatch, busy: float,
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


def test_the_longer_that_takes_the_more_seldom_it_is_done(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_is_young_is_looked_at_each_second(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The traversal of a deque with a million entries takes 40 ms: it must be in the oldest generation by then."""
    reactor, _, _ = world
    seen: list[int] = []
    monkeypatch.setattr("bmqtwist.reactor.loop_lag.gc.collect", seen.append)
    for _ in range(3):
        reactor.advance(1.0)
    assert seen == [1, 1, 1]


def test_writing_to_what_is_no_connection_takes_everything(world: Any) -> None:
    _, _, performer = world
    session = Session()
    assert performer.write(session, [b"x"]) == 0
    performer.finish(session)
    performer.read(session, False)


def test_an_answer_is_at_once_in_the_turn_that_took_the_question(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    performer.received(session, b"x")
    for _ in range(2):
        reactor.doIteration(0.0)
        reactor.rightNow += 0.001
        performer.turn_due()
    assert found == [True, False]


def test_after_the_stop_the_reactor_has_its_own_rounds_back_and_nothing_is_pending() -> None:
    reactor = Reactor()
    performer = ReactorPerformer(reactor, ListReport(), 0, (0, 1), 0.0, 0.0)
    performer.broker = Broker()  # type: ignore[assignment]
    original = reactor.doIteration
    performer.start()
    assert reactor.doIteration != original
    performer.stop()
    assert reactor.doIteration == original and not reactor.getDelayedCalls()


def test_the_credential_of_a_client_that_is_gone_is_not_looked_at() -> None:
    """Jobs of disconnected clients would delay the others: 400 of them took 50 s."""
    class Slow:
        looked: list[bytes] = []

        def authenticate(self, data: bytes, peer: str) -> Granted:
            self.looked.append(data)
            return Granted("somebody")

    gone, there = Session(), Session()
    gone.state, there.state = State.CLOSED, State.HOLDING  # type: ignore[attr-defined]
    for session, data in ((gone, b"gone"), (there, b"there")):
        module._authenticate(session, Authenticate(1, Slow(), data, "a:1"))  # type: ignore[arg-type]
    assert Slow.looked == [b"there"]


@pytest.mark.parametrize("wanted, files_max, taken", [
    (10_000, 65_536, 10_000), (10_000, 1024, 768), (0, 1024, 768), (10_000, 100, 1), (10_000, -1, 10_000), (0, -1, 0)])
def test_connections_leave_open_files_to_the_storage(wanted: int, files_max: int, taken: int) -> None:
    """-1 = no limit of open files."""
    assert connections_max(wanted, files_max) == taken


class Slow(Session):
    """An authenticator that takes a millisecond for each byte and records its input."""

    def __init__(self, reactor: Reactor, heard: list[bytes], negotiated: bool) -> None:
        super().__init__()
        self._reactor, self._heard = reactor, heard
        self.channel = SimpleNamespace(negotiated_at=0.0 if negotiated else None)

    def receive(self, data: bytes, now: float, wall: int) -> None:
        self._heard.append(data)
        self._reactor.rightNow += len(data) / 1000


def rounds_until_still(reactor: Reactor, heard: list[bytes]) -> list[list[bytes]]:
    """The input processed in each round until none is pending."""
    found = []
    for _ in range(1000):
        before = len(heard)
        reactor.doIteration(5.0)
        if reactor.delays[-1] == 5.0 and not heard[before:]:
            return found
        found.append(heard[before:])
    raise AssertionError("it never ends")


def test_strangers_get_a_few_milliseconds_of_each_turn_and_others_go_first(world: Any) -> None:
    reactor, broker, performer = world
    reactor.rightNow = 1000.0
    heard: list[bytes] = []
    strangers = [Slow(reactor, heard, False) for _ in range(10)]
    good = Slow(reactor, heard, True)
    reactor.work = [partial(performer.received, stranger, b"ss") for stranger in strangers]
    reactor.work.append(partial(performer.received, good, b"g"))
    assert rounds_until_still(reactor, heard) == [[b"g", b"ss", b"ss"], *[[b"ss"] * 2] * 4]
    assert round(performer.watchdog.longest, 3) == 0.005 and performer.watchdog.slow == 0 and broker.turns == 5


def test_a_turn_that_has_taken_long_takes_no_more_and_the_order_of_each_session_stays(world: Any) -> None:
    reactor, broker, performer = world
    reactor.rightNow = 1000.0
    heard: list[bytes] = []
    greedy, good = Slow(reactor, heard, True), Slow(reactor, heard, True)
    reactor.work = [partial(performer.received, greedy, b"G" * 51), partial(performer.received, good, b"1"),
                    partial(performer.received, greedy, b"H" * 40), partial(performer.received, good, b"2"),
                    lambda: reactor.work.append(partial(performer.received, good, b"3"))]
    assert rounds_until_still(reactor, heard) == [[b"G" * 51, b"1", b"H" * 40], [b"2", b"3"]]
    assert broker.turns == 2 and performer.watchdog.slow == 0


def test_a_few_bytes_are_taken_in_a_turn_that_has_taken_long_and_many_are_not(world: Any) -> None:
    """A client with a small request is not delayed by a client with more than one turn of input."""
    reactor, broker, performer = world
    reactor.rightNow = 1000.0
    heard: list[bytes] = []
    greedy, other, good = (Slow(reactor, heard, True) for _ in range(3))
    reactor.work = [partial(performer.received, greedy, b"G" * 30), partial(performer.received, other, b"O" * 3000),
                    partial(performer.received, good, b"g")]
    assert rounds_until_still(reactor, heard) == [[b"G" * 30, b"g", b"O" * 3000]]


def test_what_waits_has_a_step_of_each_turn_whatever_else_comes(world: Any) -> None:
    """Otherwise the first ready connections would use every turn."""
    reactor, _, performer = world
    reactor.rightNow = 1000.0
    heard: list[bytes] = []
    first, second, late, good = (Slow(reactor, heard, True) for _ in range(4))
    reactor.work = [partial(performer.received, first, b"1" * 7), partial(performer.received, second, b"2" * 3000),
                    partial(performer.received, late, b"3" * 3000)]
    reactor.work.append(lambda: reactor.work.extend([partial(performer.received, first, b"4" * 3000),
                                                     partial(performer.received, good, b"g")]))
    assert [[each[:1] for each in heard] for heard in rounds_until_still(reactor, heard)] == [
        [b"1", b"2"], [b"4", b"3"], [b"g"]]


def test_a_stranger_who_is_let_in_keeps_its_order_and_what_waits_of_a_lost_one_is_heard(world: Any) -> None:
    reactor, _, performer = world
    reactor.rightNow = 1000.0
    heard: list[bytes] = []
    stranger = Slow(reactor, heard, False)
    performer.received(stranger, b"a")
    stranger.channel.negotiated_at = 1.0
    performer.received(stranger, b"b")
    reactor.doIteration(0)
    assert heard == [b"a", b"b"]
    leaving = Slow(reactor, heard, False)
    performer.received(leaving, b"last words")
    performer.lost(leaving)
    reactor.doIteration(0)
    reactor.doIteration(0)
    assert heard[-1] == b"last words" and leaving.closed == ["lost"]
    reactor.doIteration(0)
    assert len(heard) == 3


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


def test_without_files_for_the_storage_nobody_is_accepted_for_a_while(world: Any) -> None:
    reactor, broker, performer = world
    reactor.advance(10.0)
    port = Port()
    performer.admission.files_max, performer.admission.ports = 1024, [port]
    assert performer.connected(Accepted(1024 - admission.FILES_LEFT_MIN - 1), "peer", 1) is not None and port.reading
    for _ in range(3):
        assert performer.connected(Accepted(1024 - admission.FILES_LEFT_MIN), "peer", 1) is None and not port.reading
    lines = [text for _, text in performer.report.lines if "open files" in text]
    assert len(lines) == 1 and "fewer than 128 of 1024" in lines[0]
    reactor.advance(admission.ACCEPT_PAUSE_S)
    assert port.reading
    performer.connected(Accepted(1000), "peer", 1)
    assert not port.reading
    port.connected = False  # the broker stops
    reactor.advance(admission.ACCEPT_PAUSE_S)
    assert not port.reading
