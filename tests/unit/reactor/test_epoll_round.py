"""Rounds without logging contexts: ready connections are served, and a failing one is closed alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.posixbase import PosixReactorBase
from twisted.logger import globalLogPublisher

from bmqtwist.reactor.epoll_round import READY_AT_ONCE, rounds_of


@pytest.fixture
def reactor() -> Iterator[Any]:
    made = EPollReactor()
    yield made
    made._poller.close()


class PipeReader:
    """One end of a pipe."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.read, self.lost = fails, list[bytes](), list[Any]()
        self._out, self._in = os.pipe()
        os.write(self._in, b"x")

    def fileno(self) -> int:
        return self._out

    def logPrefix(self) -> str:
        return "reader"

    def doRead(self) -> None:
        self.read.append(os.read(self._out, 10))
        if self.fails:
            raise ValueError("a mistake")

    def connectionLost(self, reason: Any) -> None:
        self.lost.append(reason.value)

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)


def test_ready_connections_are_read_and_a_failing_one_is_closed_alone(reactor: Any) -> None:
    logged: list[Any] = []
    observer = logged.append
    globalLogPublisher.addObserver(observer)
    good, bad, gone = PipeReader(), PipeReader(fails=True), PipeReader()
    try:
        for each in (bad, good, gone):
            reactor.addReader(each)
        reactor.removeReader(gone)
        rounds = rounds_of(reactor, bool)
        rounds.run(0)
        rounds.run(0.0)
        assert good.read == [b"x"] and not good.lost and not gone.read
        assert bad.read == [b"x"] and isinstance(bad.lost[0], ValueError)
        assert [event["failure"].value for event in logged if "failure" in event] == bad.lost
    finally:
        globalLogPublisher.removeObserver(observer)
        reactor.removeAll()
        for each in (good, bad, gone):
            each.close()


def test_a_reader_removed_within_the_round_is_not_read(reactor: Any) -> None:
    readers = [PipeReader(), PipeReader()]
    served: list[Any] = []
    for each, other in zip(readers, reversed(readers), strict=True):
        each.doRead = lambda other=other: (served.append(other), reactor.removeReader(other))[1]  # type: ignore[method-assign]
        reactor.addReader(each)
    try:
        rounds_of(reactor, bool).run(0)
        assert len(served) == 1
    finally:
        reactor.removeAll()
        for each in readers:
            each.close()


def test_a_round_without_input_time_serves_some_readers_and_the_next_one_the_rest(reactor: Any) -> None:
    readers = [PipeReader() for _ in range(2 * READY_AT_ONCE + 1)]
    served = []
    for number, each in enumerate(readers):
        each.doRead = lambda number=number: served.append(number)  # type: ignore[method-assign]
        reactor.addReader(each)
    try:
        rounds = rounds_of(reactor, lambda: False)
        for _ in range(2 * len(readers)):
            rounds.run(0)
        assert [served.count(number) for number in range(len(readers))] == [2 * READY_AT_ONCE] * len(readers)
        assert all(sorted(served[at:at + len(readers)]) == list(range(len(readers)))
                   for at in range(0, len(served), len(readers))), "each before any of them again"
        served.clear()
        left = [True, True, False]
        rounds_of(reactor, lambda: left.pop(0)).run(0)
        assert len(served) == 3 * READY_AT_ONCE and not left
    finally:
        reactor.removeAll()
        for each in readers:
            each.close()


def test_reactors_without_epoll_use_their_own_iteration() -> None:
    class OtherReactor(PosixReactorBase):
        def __init__(self) -> None:
            """Do not install a waker."""

            self.delays: list[float | None] = []

        def doIteration(self, delay: float | None) -> None:
            self.delays.append(delay)

    other = OtherReactor()
    rounds = rounds_of(other, bool)
    rounds.run(0.5)
    assert other.delays == [0.5] and rounds.next_delay() == -1 and not rounds.exact_delay


def test_the_delay_of_the_next_round_depends_on_delayed_calls_and_the_reactor_state(reactor: Any) -> None:
    rounds = rounds_of(reactor, bool)
    assert rounds.next_delay() == -1, "the reactor does not run"
    reactor.running = True
    assert rounds.next_delay() is None
    call = reactor.callLater(5, int)
    assert rounds.next_delay() == -1, "a new delayed call"
    reactor.timeout()
    assert 4 < rounds.next_delay() <= 5
    call.reset(1)
    assert 0 < rounds.next_delay() <= 1
    call.cancel()
    reactor._pendingTimedCalls.clear()
    reactor.callLater(1e9, int)
    reactor.timeout()
    assert rounds.next_delay() == 2e6
    rounds.run(0)
    reactor.callFromThread(int)
    assert rounds.next_delay() == -1
    reactor.runUntilCurrent()
    reactor._justStopped = True
    assert rounds.next_delay() == -1
