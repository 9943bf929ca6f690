"""Latency histogram in nanoseconds with three significant digits, and its reports.

The members of `report_tree` are those of bmqtool; `dataPoints` is the number of occurrences by latency. Used by `bench.py`
and `shell/auto.py`; throughput rows of the shell are in `shell/throughput.py`.
"""

from __future__ import annotations

from typing import Any

PERCENTILES = (95, 96, 97, 98, 99)
_DIGITS = 1000
_UNITS = (("ns", 1000), ("us", 1000), ("ms", 1000), ("s", 60), ("m", 60), ("h", 24), ("d", 7))


class Latencies:
    """Histogram of latencies. `origin`: `end2end` (post to delivery) or `ack` (post to acknowledgement); `longest`: the
    exact maximum."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.count = self.longest = 0
        self._times: dict[int, int] = {}

    def add(self, latency_ns: int) -> None:
        """Add a latency; negative ones (clocks of two machines) are ignored."""
        if latency_ns < 0:
            return
        self.longest = max(self.longest, latency_ns)
        step = 1
        while step * _DIGITS < latency_ns:
            step *= 10
        rounded = latency_ns // step * step
        self._times[rounded] = self._times.get(rounded, 0) + 1
        self.count += 1

    def percentile(self, percent: float) -> int:
        """Return the smallest latency that `percent` % of all do not exceed; 0 if the histogram is empty."""
        wanted = -(-percent * self.count // 100)
        seen = 0
        for latency in sorted(self._times):
            seen += self._times[latency]
            if seen >= wanted:
                return latency
        return 0

    @property
    def minimum(self) -> int:
        return min(self._times, default=0)

    @property
    def maximum(self) -> int:
        return max(self._times, default=0)

    @property
    def average(self) -> int:
        return sum(latency * times for latency, times in self._times.items()) // self.count if self.count else 0

    def figures_ms(self) -> dict[str, float]:
        figures = {"p50": self.percentile(50), "p99": self.percentile(99), "p99.9": self.percentile(99.9),
                   "max": self.longest}
        return {name: round(value / 1e6, 3) for name, value in figures.items()}

    def report_tree(self) -> dict[str, Any]:
        return {"origin": self.origin, "min": self.minimum, "max": self.maximum, "avg": self.average,
                "median": self.percentile(50), **{f"{each}percentile": self.percentile(each) for each in PERCENTILES},
                "dataPoints": {str(latency): self._times[latency] for latency in sorted(self._times)}}

    def summary_text(self) -> str:
        rows = [("min", self.minimum), ("avg", self.average), ("max", self.maximum), ("median", self.percentile(50)),
                *((f"{each}Percentile", self.percentile(each)) for each in PERCENTILES)]
        lines = [f"    {'origin':.<16}: {self.origin}", f"    {'totalCount':.<16}: {self.count}",
                 *(f"    {name:.<16}: {pretty_time(ns)}" for name, ns in rows)]
        return "\n".join(lines)


def pretty_time(time_ns: int) -> str:
    """Format a duration in the largest suitable unit.

    >>> pretty_time(999), pretty_time(1500), pretty_time(61_000_000_000)
    ('999 ns', '1.50 us', '1.02 m')
    """
    size = 1
    for unit, factor in _UNITS:
        if time_ns < size * factor:
            return f"{time_ns} ns" if size == 1 else f"{time_ns / size:.2f} {unit}"
        size *= factor
    return f"{time_ns / size:.2f} w"
