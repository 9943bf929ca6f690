"""Write times of a primary's records, from which the age of a replica's lag follows. Pure.

Each entry is (last record written, time in seconds), at most one in STEP_S. Above ENTRIES_MAX entries those are dropped
without which no lag is wrong by more than the share SLACK of itself: less than half remain.
"""

from __future__ import annotations

from bisect import bisect_right

from bmqtwist.storage.psn import Psn

STEP_S = 0.01
ENTRIES_MAX = 800
SLACK = 1 / 8


class WriteTimes:
    """Write times of one lease. Callers add an entry only if `is_due`."""

    __slots__ = ("_ends", "_times", "_due")

    def __init__(self) -> None:
        self._ends: list[Psn] = []
        self._times: list[float] = []
        self._due = float("-inf")

    def is_due(self, now: float) -> bool:
        """True if the last entry is at least STEP_S old."""
        return now >= self._due

    def add(self, end: Psn, now: float) -> None:
        self._ends.append(end)
        self._times.append(now)
        self._due = now + STEP_S
        if len(self._ends) > ENTRIES_MAX:
            self._thin(now)

    def _thin(self, now: float) -> None:
        """Drop each entry whose neighbours are close to each other relative to their age."""
        times, kept = self._times, [0]
        for at in range(1, len(times) - 1):
            if times[at + 1] - times[kept[-1]] > (now - times[at]) * SLACK:
                kept.append(at)
        kept.append(len(times) - 1)
        self._ends, self._times = [self._ends[at] for at in kept], [times[at] for at in kept]

    def lag(self, safe: Psn, now: float) -> float | None:
        """Return the age in seconds of the oldest record after `safe`; None if the lease has no record."""
        if not self._ends:
            return None
        at = min(bisect_right(self._ends, safe), len(self._ends) - 1)
        return max(0.0, now - self._times[at])
