"""When a primary add which records: what the age of a replica's lag is told by. Pure.

Each entry is (the last record written by then, when). At most one is added in STEP_S, however many records are written. When
there are ENTRIES_MAX of them, those are left out without which no time is wrong by more than SLACK of itself: less than half
remain, however long ago the first one is.
"""

from __future__ import annotations

from bisect import bisect_right

from bmqtwist.storage.psn import Psn

STEP_S = 0.01
ENTRIES_MAX = 800
SLACK = 1 / 8


class WriteTimes:
    """Those of one lease. Ask `is_due` first: `add` is worth it once in STEP_S."""

    __slots__ = ("_ends", "_times", "_due")

    def __init__(self) -> None:
        self._ends: list[Psn] = []
        self._times: list[float] = []
        self._due = float("-inf")

    def is_due(self, now: float) -> bool:
        """Whether an entry is wanted for what was written just now."""
        return now >= self._due

    def add(self, end: Psn, now: float) -> None:
        self._ends.append(end)
        self._times.append(now)
        self._due = now + STEP_S
        if len(self._ends) > ENTRIES_MAX:
            self._thin(now)

    def _thin(self, now: float) -> None:
        """Leave out each entry whose neighbours are close to each other, for their age."""
        times, kept = self._times, [0]
        for at in range(1, len(times) - 1):
            if times[at + 1] - times[kept[-1]] > (now - times[at]) * SLACK:
                kept.append(at)
        kept.append(len(times) - 1)
        self._ends, self._times = [self._ends[at] for at in kept], [times[at] for at in kept]

    def lag(self, safe: Psn, now: float) -> float | None:
        """Seconds since the oldest record behind `safe` was written, of a log that has some there; None: nothing was written
        under this lease."""
        if not self._ends:
            return None
        at = min(bisect_right(self._ends, safe), len(self._ends) - 1)
        return max(0.0, now - self._times[at])
