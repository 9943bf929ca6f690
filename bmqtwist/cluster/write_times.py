"""Write times of a primary's records, to compute the lag of replicas in seconds. Pure.

An entry has the last record written and the time; there is at most one entry in STEP_S. Above ENTRIES_MAX entries are
thinned out to less than half, so that the error of a lag is at most its share SLACK. Used by `member/partition_logs.py`, one
for each partition of which this node is primary; `view/replicas.py` shows the lags.
"""

from __future__ import annotations

from bisect import bisect_right

from bmqtwist.storage.psn import Psn

STEP_S = 0.01  # seconds between two entries
ENTRIES_MAX = 800
SLACK = 1 / 8  # of a lag: its largest error


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
        """Drop each entry whose neighbours are closer to each other than the share SLACK of its age."""
        times, kept = self._times, [0]
        for at in range(1, len(times) - 1):
            if times[at + 1] - times[kept[-1]] > (now - times[at]) * SLACK:
                kept.append(at)
        kept.append(len(times) - 1)
        self._ends, self._times = [self._ends[at] for at in kept], [times[at] for at in kept]

    def lag(self, durable: Psn, now: float) -> float | None:
        """Return the age in seconds of the oldest record after `durable`, the last record that is durable at a replica; None
        if the lease has no record."""
        if not self._ends:
            return None
        at = min(bisect_right(self._ends, durable), len(self._ends) - 1)
        return max(0.0, now - self._times[at])
