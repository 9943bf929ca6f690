"""Clocks of brokers in this process: one that stands still, follows another one and jumps when told to; and what a node
in simulated time is told."""

from __future__ import annotations

import time
from collections.abc import Callable

START_S = 1000.0  # what a new clock shows
WALL_S = 1_790_000_000.0  # seconds since the epoch at the moment 0 of a simulated clock


class Clock:
    """Seconds that never go back.

    A new clock stands still. `follow` lets it run with another one: that of an event loop, a reactor, the machine. What
    `advance` adds is added for good, whatever is followed.
    """

    def __init__(self) -> None:
        self._base = START_S
        self._source: Callable[[], float] | None = None
        self._since = 0.0
        self.real = False  # does it run with the machine's clock?

    def __call__(self) -> float:
        """Now, seconds."""
        if self._source is None:
            return self._base
        return self._base + max(0.0, self._source() - self._since)

    def advance(self, seconds: float) -> None:
        """Jump ahead."""
        self._base += max(0.0, seconds)

    def reach(self, moment: float) -> None:
        """Jump ahead to a moment, unless it is past."""
        self.advance(moment - self())

    def follow(self, source: Callable[[], float], real: bool) -> None:
        """Run with `source` from now on; `real`: nobody but the machine moves that one."""
        self._base = self()
        self._source, self._since, self.real = source, source(), real

    def follow_machine(self) -> None:
        """Run with the machine's monotonic clock from now on, unless it does already."""
        if not self.real:
            self.follow(time.monotonic, True)


class SimulatedClock:
    """`loop.performer.Clock` of a node whose time is what `moment` says."""

    def __init__(self, moment: Callable[[], float], wall_offset: float = WALL_S) -> None:
        self.now, self.wall_offset = moment, wall_offset
        self._asked = 0

    def timer_ns(self) -> int:
        """Nanoseconds; a real timer never shows the same twice either."""
        self._asked += 1
        return int(self.now() * 1e9) + self._asked

    def sleep(self, seconds: float) -> None:
        """There is no thread to hold up."""
