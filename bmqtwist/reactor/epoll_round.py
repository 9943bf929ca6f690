"""Rounds of Twisted's epoll reactor: wait, then let every connection that is ready read or write.

Twisted does the same, and between two rounds looks twice through its delayed calls; around each event and each round it
makes a logging context. Nothing here logs through one: an error names its connection itself. Other reactors go their own
way.
"""

from __future__ import annotations

import select
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from twisted.python import log

try:
    from twisted.internet.epollreactor import EPollReactor
except ImportError:  # not Linux
    EPollReactor = None  # type: ignore[assignment, misc]

_READABLE: Final = getattr(select, "EPOLLIN", 1)
READY_AT_ONCE: Final = 4  # connections that are served before it is asked whether there is time for more
_WAIT_SECONDS_MAX: Final = 2_000_000.0  # epoll counts milliseconds in 31 bits


class Rounds(ABC):
    """What a reactor does in one round, and whether the next may follow at once. `as_long`: it waits no longer than it is
    told to, and needs no delayed call to end that."""

    __slots__ = ("as_long",)

    def __init__(self, as_long: bool) -> None:
        self.as_long = as_long

    @abstractmethod
    def run(self, delay: float | None) -> None:
        """Wait so many seconds at most, None = until something happens; then serve what is ready."""

    @abstractmethod
    def more(self) -> float | None:
        """How long the next round may wait, as for `run`; negative: the reactor has something else to do first."""


class EpollRounds(Rounds):
    """See above. `goes_on()`: whether a round in which few connections were served has time for more. The system tells of
    those that were told last again after all others, so each has its turn."""

    __slots__ = ("_reactor", "_act", "_poll", "_selectables", "_from_threads", "_seconds", "_goes_on")

    def __init__(self, reactor: Any, goes_on: Callable[[], bool]) -> None:
        super().__init__(True)
        self._goes_on = goes_on
        self._reactor, self._poll, self._act = reactor, reactor._poller.poll, reactor._doReadOrWrite
        self._selectables: dict[int, Any] = reactor._selectables
        self._from_threads: list[Any] = reactor.threadCallQueue
        self._seconds: Callable[[], float] = reactor.seconds

    def run(self, delay: float | None) -> None:
        """One round."""
        selectables = self._selectables
        ready = self._poll(-1 if delay is None else delay, READY_AT_ONCE)
        while True:
            for descriptor, event in ready:
                selectable = selectables.get(descriptor)
                if selectable is None:  # what came before in this round has removed it
                    continue
                if event == _READABLE:
                    self._read(selectable)
                else:
                    self._act(selectable, descriptor, event)
            if len(ready) < READY_AT_ONCE or not self._goes_on():
                return
            ready = self._poll(0, READY_AT_ONCE)

    def _read(self, selectable: Any) -> None:
        try:
            why = selectable.doRead()
        except BaseException:
            why = sys.exc_info()[1]
            log.err()
        if why:
            self._reactor._disconnectSelectable(selectable, why, True)

    def more(self) -> float | None:
        """Whatever was asked of the reactor meanwhile comes first."""
        reactor = self._reactor
        if self._from_threads or reactor._newTimedCalls or reactor._justStopped or not reactor.running:
            return -1.0
        pending: list[Any] = reactor._pendingTimedCalls
        if not pending:
            return None
        due: float = pending[0].time
        return min(_WAIT_SECONDS_MAX, due - self._seconds())


class OwnRounds(Rounds):
    """Those of any other reactor."""

    __slots__ = ("_round",)

    def __init__(self, reactor: Any) -> None:
        super().__init__(False)
        self._round: Callable[[float | None], object] = reactor.doIteration

    def run(self, delay: float | None) -> None:
        """One round."""
        self._round(delay)

    def more(self) -> float | None:
        """It goes its own way after each."""
        return -1.0


def rounds_of(reactor: Any, goes_on: Callable[[], bool]) -> Rounds:
    """What the reactor does in one round; `goes_on` as of `EpollRounds`."""
    if EPollReactor is not None and type(reactor) is EPollReactor:
        return EpollRounds(reactor, goes_on)
    return OwnRounds(reactor)
