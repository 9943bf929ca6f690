"""Clocks of in-process brokers: `Clock`, which follows another clock and can be advanced, and `SimulatedClock`.

`runner.py` advances `Clock`, the nodes of `node.py` read `SimulatedClock`; the event queue of a simulation is in
`simulation.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

START_S = 1000.0  # initial time of a clock
WALL_S = 1_790_000_000.0  # seconds since the epoch at time 0 of a simulated clock


class Clock:
    """Monotonic clock in seconds. A new clock is stopped; `follow` couples it to the clock of an event loop, a reactor or
    the machine; `advance` shifts it permanently."""

    def __init__(self) -> None:
        self._base = START_S
        self._source: Callable[[], float] | None = None
        self._since = 0.0
        self.real = False  # True if it follows the machine's clock

    def __call__(self) -> float:
        """Return the time in seconds."""
        if self._source is None:
            return self._base
        return self._base + max(0.0, self._source() - self._since)

    def advance(self, seconds: float) -> None:
        """Advance the clock by seconds; negative values are ignored."""
        self._base += max(0.0, seconds)

    def advance_to(self, moment: float) -> None:
        """Advance to a time, unless it has passed."""
        self.advance(moment - self())

    def follow(self, source: Callable[[], float], real: bool) -> None:
        """Follow `source` from now on; `real`: it is driven by the machine's clock."""
        self._base = self()
        self._source, self._since, self.real = source, source(), real

    def follow_machine(self) -> None:
        """Follow the machine's monotonic clock from now on."""
        if not self.real:
            self.follow(time.monotonic, True)


class SimulatedClock:
    """`loop.performer.Clock` of a node; `moment` returns its time."""

    def __init__(self, moment: Callable[[], float], wall_offset: float = WALL_S) -> None:
        self.now, self.wall_offset = moment, wall_offset
        self._calls = 0

    def timer_ns(self) -> int:
        """Return nanoseconds, different at each call as those of a real timer."""
        self._calls += 1
        return int(self.now() * 1e9) + self._calls

    def sleep(self, seconds: float) -> None:
        """Return at once: no thread waits in simulated time."""
