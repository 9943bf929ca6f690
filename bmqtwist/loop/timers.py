"""Things to do later, on the caller's clock. Pure: somebody else waits until `next_at` and calls `run`.

An action that raises costs nothing but itself: `failed` is told, the others run, and a periodic one keeps its period.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


def _raised(error: Exception) -> None:
    raise error


class Timers:
    """A heap of (moment, action). Moments are seconds of the monotonic clock. `failed(error)`: an action raised this."""

    __slots__ = ("_heap", "_ticket", "_failed")

    def __init__(self, failed: Callable[[Exception], None] = _raised) -> None:
        self._failed = failed
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._ticket = count()

    def at(self, when: float, action: Callable[[float], None]) -> None:
        """Call `action(now)` at the first `run` at or after `when`."""
        heapq.heappush(self._heap, (when, next(self._ticket), action))

    def every(self, start: float, period: float, action: Callable[[float], None]) -> None:
        """Call `action(now)` on the grid start + n * period; ticks that were missed are skipped."""
        def tick(now: float) -> None:
            try:
                action(now)
            finally:
                missed = max(0, int((now - when[0]) / period))
                when[0] += (missed + 1) * period
                self.at(when[0], tick)

        when = [start + period]
        self.at(when[0], tick)

    @property
    def next_at(self) -> float | None:
        """The earliest moment at which there is something to do."""
        return self._heap[0][0] if self._heap else None

    def run(self, now: float) -> None:
        """Do what is due; what an action adds for now is done as well."""
        while self._heap and self._heap[0][0] <= now:
            action = heapq.heappop(self._heap)[2]
            try:
                action(now)
            except Exception as error:
                self._failed(error)
