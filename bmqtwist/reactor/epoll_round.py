"""Rounds of the reactor: wait for events, then let each ready connection read or write.

`EpollRounds` replaces the rounds of Twisted's epoll reactor: it omits the logging context of each event and, between two
rounds, the two scans of the delayed calls. `ReactorRounds` calls the `doIteration` of any other reactor.

`performer.py` chooses one at its start (`rounds_of`) and calls `run` for each round. A turn of the broker follows a round:
`broker/broker.py`.
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
READY_AT_ONCE: Final = 4  # connections served between two checks of the time
_WAIT_SECONDS_MAX: Final = 2_000_000.0  # epoll has 31 bits of milliseconds


class Rounds(ABC):
    """Runs rounds of a reactor. `exact_delay`: a round waits at most its `delay`, without the help of a delayed call."""

    __slots__ = ("exact_delay",)

    def __init__(self, exact_delay: bool) -> None:
        self.exact_delay = exact_delay

    @abstractmethod
    def run(self, delay: float | None) -> None:
        """Wait up to `delay` seconds, None = until an event, and serve the ready connections."""

    @abstractmethod
    def next_delay(self) -> float | None:
        """The delay of a next round, as for `run`; negative: the reactor must run its own loop first."""


class EpollRounds(Rounds):
    """Rounds over the epoll object and the connections of Twisted's reactor. `has_time()`: True if a round may serve further
    connections. epoll reports the connections served last after all others, so each gets its turn."""

    __slots__ = ("_reactor", "_act", "_poll", "_selectables", "_from_threads", "_seconds", "_has_time")

    def __init__(self, reactor: Any, has_time: Callable[[], bool]) -> None:
        super().__init__(True)
        self._has_time = has_time
        self._reactor, self._poll, self._act = reactor, reactor._poller.poll, reactor._doReadOrWrite
        self._selectables: dict[int, Any] = reactor._selectables
        self._from_threads: list[Any] = reactor.threadCallQueue
        self._seconds: Callable[[], float] = reactor.seconds

    def run(self, delay: float | None) -> None:
        selectables = self._selectables
        ready = self._poll(-1 if delay is None else delay, READY_AT_ONCE)
        while True:
            for descriptor, event in ready:
                selectable = selectables.get(descriptor)
                if selectable is None:  # removed by an earlier event of this round
                    continue
                if event == _READABLE:
                    self._read(selectable)
                else:
                    self._act(selectable, descriptor, event)
            if len(ready) < READY_AT_ONCE or not self._has_time():
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

    def next_delay(self) -> float | None:
        reactor = self._reactor
        if self._from_threads or reactor._newTimedCalls or reactor._justStopped or not reactor.running:
            return -1.0
        pending: list[Any] = reactor._pendingTimedCalls
        if not pending:
            return None
        due: float = pending[0].time
        return min(_WAIT_SECONDS_MAX, due - self._seconds())


class ReactorRounds(Rounds):
    """Rounds of any other reactor, which runs its own loop after each."""

    __slots__ = ("_round",)

    def __init__(self, reactor: Any) -> None:
        super().__init__(False)
        self._round: Callable[[float | None], object] = reactor.doIteration

    def run(self, delay: float | None) -> None:
        self._round(delay)

    def next_delay(self) -> float | None:
        return -1.0


def rounds_of(reactor: Any, has_time: Callable[[], bool]) -> Rounds:
    """Return the rounds of a reactor. `has_time()`: True if a round may serve further connections."""
    if EPollReactor is not None and type(reactor) is EPollReactor:
        return EpollRounds(reactor, has_time)
    return ReactorRounds(reactor)
