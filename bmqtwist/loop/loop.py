"""Event loop services of one broker: time, timers, jobs, threads and error isolation. Pure.

Created by `broker/broker.py`, which runs the turn; the parts of the broker and of its clusters use it. It wires
`scheduler.py`, `error_isolation.py` and a `Performer` (`performer.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count

from bmqtwist.loop.error_isolation import ErrorIsolation
from bmqtwist.loop.performer import Performer
from bmqtwist.loop.scheduler import Scheduler
from bmqtwist.report import Report


def _raised(error: Exception) -> None:
    raise error


class Timers:
    """A heap of (moment, action). Moments are in seconds, monotonic; the caller waits until `next_at`, then calls `run`.
    An exception of an action goes to `failed(error)`; the other actions run, and a periodic action keeps its period."""

    __slots__ = ("_heap", "_ticket", "_failed")

    def __init__(self, failed: Callable[[Exception], None] = _raised) -> None:
        self._failed = failed
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._ticket = count()

    def at(self, when: float, action: Callable[[float], None]) -> None:
        """Call `action(now)` at the first `run` at or after `when`."""
        heapq.heappush(self._heap, (when, next(self._ticket), action))

    def every(self, start: float, period: float, action: Callable[[float], None]) -> None:
        """Call `action(now)` at start + n * period, n >= 1; missed calls are skipped."""
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
        """The moment of the next action; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def run(self, now: float) -> None:
        """Call all actions that are due, including actions that these add for `now`."""
        while self._heap and self._heap[0][0] <= now:
            action = heapq.heappop(self._heap)[2]
            try:
                action(now)
            except Exception as error:
                self._failed(error)


class Loop:
    """`now`: the moment of this turn, in seconds, monotonic; `now + wall_offset`: seconds since the epoch. `turn(now)` is
    called after each result of a thread."""

    def __init__(self, performer: Performer, report: Report, now: float, wall_offset: float,
                 turn: Callable[[float], None]) -> None:
        self.performer, self.report, self.now = performer, report, now
        self.wall_offset, self._turn = wall_offset, turn
        self.isolation = ErrorIsolation(report, performer, lambda: self.now)
        self.timers = Timers(partial(self.isolation.alarm, "A timer"))
        self.scheduler = Scheduler(lambda: performer.processor_time(), lambda: performer.request_turn())

    def wall(self, now: float) -> int:
        """Convert a moment of the monotonic clock to seconds since the epoch."""
        return int(now + self.wall_offset)

    def call_later(self, seconds: float, action: Callable[[float], None]) -> None:
        self.timers.at(self.now + seconds, action)

    def run_in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """Run `work` on a thread, then `done(now)` or `failed(error, now)` in the event loop, and a turn."""
        self.performer.run_in_thread(work, partial(self._done, done), partial(self._failed, failed))

    def _done(self, done: Callable[[float], None], now: float) -> None:
        self.now = now
        done(now)
        self._turn(now)

    def _failed(self, failed: Callable[[OSError, float], None], error: OSError, now: float) -> None:
        self._done(partial(failed, error), now)
