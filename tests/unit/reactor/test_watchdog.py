"""Event-loop watchdog: counts slow turns, and logs the stack of stalled ones."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kit.performers import Broker, Reactor, Session
from kit.statistics import families, stats_tables

from bmqtwist.reactor import performer as module
from bmqtwist.reactor.performer import ReactorPerformer
from bmqtwist.reactor.watchdog import SLOW_S, STALLED_S, Watchdog
from bmqtwist.report import ListReport
from bmqtwist.view.snapshot import BrokerState, ProcessState
from bmqtwist.view.statistics import Statistics


class SlowBroker(Broker):
    """A broker with turns of a given duration."""

    def __init__(self, reactor: Reactor) -> None:
        super().__init__()
        self._reactor, self.seconds = reactor, 0.0

    def turn(self, now: float) -> None:
        super().turn(now)
        self._reactor.rightNow += self.seconds

    def on_received(self, session: Any, data: bytes, now: float, later: bool = False) -> None:
        self._reactor.rightNow += len(data) / 1000


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    """(reactor, broker, performer), started; the clock is the reactor's."""
    reactor, report = Reactor(), ListReport()
    reactor.rightNow = 1000.0
    monkeypatch.setattr(module.time, "monotonic", reactor.seconds)
    monkeypatch.setattr(module.time, "thread_time", reactor.seconds)
    performer = ReactorPerformer(reactor, report, 2, (1, 1), 0.0, 0.0)
    performer.watchdog._clock = reactor.seconds
    performer.broker = broker = SlowBroker(reactor)  # type: ignore[assignment]
    performer.start()
    yield reactor, broker, performer
    performer.stop()


def counts(performer: ReactorPerformer) -> tuple[int, int, float]:
    watchdog = performer.watchdog
    return watchdog.slow, watchdog.stalled, round(watchdog.longest, 3)


def test_a_turn_is_measured_from_its_first_input_to_its_end(world: Any) -> None:
    reactor, broker, performer = world
    for milliseconds in (40, 61, 500):
        reactor.work = [lambda size=milliseconds: performer.on_received(Session(), bytes(size)),
                        lambda: performer.on_received(Session(), bytes(30))]
        broker.seconds = 0.01
        reactor.doIteration(5.0)
    assert counts(performer) == (2, 0, 0.54) and not performer.report.texts("WARN")
    reactor.rightNow += 10.0  # without input
    reactor.work = [lambda: performer.on_received(Session(), b"x")]
    reactor.doIteration(5.0)
    assert counts(performer) == (2, 0, 0.54)


def test_the_longest_turn_is_recorded_also_below_the_threshold(world: Any) -> None:
    reactor, broker, performer = world
    for milliseconds, longest in ((20, 0.02), (10, 0.02), (50, 0.05)):
        reactor.work = [lambda size=milliseconds: performer.on_received(Session(), bytes(size))]
        reactor.doIteration(5.0)
        assert counts(performer) == (0, 0, longest)


def test_the_time_of_timers_and_jobs_is_measured(world: Any) -> None:
    reactor, broker, performer = world
    broker.seconds = SLOW_S * 2
    broker.deadline = 1001.0
    performer._arm()
    broker.deadline = None
    reactor.advance(1.0)
    assert counts(performer) == (1, 0, 0.2)


def test_a_turn_above_a_second_is_logged_with_its_stack(world: Any) -> None:
    """A second thread inspects the loop during the turn."""
    reactor, broker, performer = world

    def compare_everything_with_everything() -> None:
        reactor.rightNow += STALLED_S + 0.5
        inspector = threading.Thread(target=performer.watchdog._inspect)
        inspector.start()
        inspector.join()

    broker.on_received = lambda session, data, now: compare_everything_with_everything()
    reactor.work = [lambda: performer.on_received(Session(), b"x")]
    reactor.doIteration(5.0)
    assert counts(performer) == (1, 1, 1.5)
    (line,) = performer.report.texts("WARN")
    assert "busy for 1.500 s" in line and "compare_everything_with_everything (test_watchdog.py:" in line
    reactor.rightNow += 5.0
    broker.on_received = lambda session, data, now: None
    reactor.doIteration(5.0)
    performer.watchdog._inspect()
    assert counts(performer) == (1, 1, 1.5), "an idle loop is not busy"


def test_the_watchdog_thread_runs_and_stops() -> None:
    watchdog = Watchdog(ListReport())
    watchdog.start()
    thread = next(each for each in threading.enumerate() if each.name == "watchdog")
    watchdog.stop()
    thread.join(10)
    assert not thread.is_alive() and thread.daemon


def test_slow_and_stalled_turns_are_metrics_and_statistics() -> None:
    process = ProcessState(turns_slow=12, turns_stalled=3, turn_max=1.5)
    state = BrokerState("i", "v", "h", 1.0, 2.0, 1.0, process=process)
    found = {family.name: family.samples[0][1] for family in families(state, Statistics(0.0))}
    assert (found["brkr_system_turns_slow"], found["brkr_system_turns_stalled"], found["brkr_system_turn_seconds_max"]) \
        == (12, 3, 1.5)
    row = stats_tables(state, Statistics(0.0)).rpartition("EVENT LOOP")[2].splitlines()[-1]
    assert "12" in row and "3" in row and "1.50 s" in row
