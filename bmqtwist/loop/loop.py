"""Time, timers, jobs, threads and error isolation of one broker: what each of its parts holds. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bmqtwist.loop.error_isolation import Containment
from bmqtwist.loop.performer import Performer
from bmqtwist.loop.scheduler import Scheduler
from bmqtwist.loop.timers import Timers
from bmqtwist.report import Report


class Loop:
    """`now`: the moment of this turn, seconds, monotonic; `wall_offset` makes it seconds since the epoch. `turn(now)`
    follows each result of a thread."""

    def __init__(self, performer: Performer, report: Report, now: float, wall_offset: float,
                 turn: Callable[[float], None]) -> None:
        self.performer, self.report, self.now = performer, report, now
        self._wall_offset, self._turn = wall_offset, turn
        self.contain = Containment(report, performer, lambda: self.now)
        self.timers = Timers(partial(self.contain.told, "A timer"))
        self.scheduler = Scheduler(lambda: performer.clock(), lambda: performer.turn_due())

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""
        return int(now + self._wall_offset)

    def later(self, seconds: float, action: Callable[[float], None]) -> None:
        """Call `action(now)` after a while."""
        self.timers.at(self.now + seconds, action)

    def in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """Run `work` off the reactor's thread, then `done(now)` or `failed(error, now)`, and a turn."""
        self.performer.in_thread(work, partial(self._done, done), partial(self._failed, failed))

    def _done(self, done: Callable[[float], None], now: float) -> None:
        self.now = now
        done(now)
        self._turn(now)

    def _failed(self, failed: Callable[[OSError, float], None], error: OSError, now: float) -> None:
        self._done(partial(failed, error), now)
