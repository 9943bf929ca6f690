"""The clock of an in-process broker: it stands still, follows another clock, and jumps when told to."""

from __future__ import annotations

import time
from collections.abc import Callable

START_S = 1000.0  # what a new clock shows


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
