"""Latencies in bounded memory: a count for each step of one percent. Pure."""

from __future__ import annotations

from math import exp, log

_STEPS = 1 / log(1.01)


class Histogram:
    """Counts of nanoseconds; a percentile is exact to one percent, the maximum is exact."""

    def __init__(self) -> None:
        self.count = self.max = 0
        self._counts: dict[int, int] = {}

    def add(self, nanoseconds: int) -> None:
        """Count one."""
        self.count += 1
        if nanoseconds > self.max:
            self.max = nanoseconds
        step = int(log(nanoseconds) * _STEPS) if nanoseconds > 0 else 0
        self._counts[step] = self._counts.get(step, 0) + 1

    def percentile(self, share: float) -> float:
        """Nanoseconds that `share` (0 to 1) of them do not exceed; 0 without any."""
        wanted, seen = share * self.count, 0
        for step in sorted(self._counts):
            seen += self._counts[step]
            if seen >= wanted:
                return min(exp((step + 1) / _STEPS), self.max)
        return 0.0

    def tree(self) -> dict[str, float]:
        """The usual percentiles in milliseconds."""
        figures = {"p50": self.percentile(0.5), "p99": self.percentile(0.99), "p99.9": self.percentile(0.999),
                   "max": float(self.max)}
        return {name: round(value / 1e6, 3) for name, value in figures.items()}
