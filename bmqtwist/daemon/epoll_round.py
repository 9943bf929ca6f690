"""One round of Twisted's epoll reactor: wait, then let every connection that is ready read or write.

Twisted does the same, and makes a logging context around each event, which costs 3 us of the 20 that a small message takes
in all. Nothing here logs through it: an error names its connection itself. Other reactors go their own way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from twisted.internet.epollreactor import EPollReactor
except ImportError:  # not Linux
    EPollReactor = None  # type: ignore[assignment, misc]

Round = Callable[[float | None], object]  # waits so many seconds at most; None = until something happens


class EpollRound:
    """See above."""

    __slots__ = ("_act", "_poll", "_selectables")

    def __init__(self, reactor: Any) -> None:
        self._poll, self._act = reactor._poller.poll, reactor._doReadOrWrite
        self._selectables: dict[int, Any] = reactor._selectables

    def run(self, delay: float | None) -> None:
        """One round."""
        selectables = self._selectables
        for descriptor, event in self._poll(-1 if delay is None else delay, len(selectables)):
            selectable = selectables.get(descriptor)
            if selectable is not None:  # what came before in this round may have removed it
                self._act(selectable, descriptor, event)


def round_of(reactor: Any) -> Round:
    """What the reactor does in one round."""
    if EPollReactor is not None and type(reactor) is EPollReactor:
        return EpollRound(reactor).run
    own: Round = reactor.doIteration
    return own
