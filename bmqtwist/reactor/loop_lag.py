"""Event-loop delay, measured each second, and garbage collection while the loop is idle.

Started by `performer.py`. What ran in slow turns is recorded by `watchdog.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from bmqtwist import alarms
from bmqtwist.report import Report

LAG_PERIOD_S = 1.0  # between two measurements
IDLE_BUSY_S = 0.05  # the oldest generation (0.1 s and more) is collected only after a period with less time in turns
COLLECT_AFTER = 300  # collections of the middle generation between two of the oldest, after one below SHORT_COLLECTION_S
SHORT_COLLECTION_S = 0.005  # each further unit of the last duration adds COLLECT_AFTER


class LoopLag:
    """Delay of one loop. `last`, `longest`: delay in seconds; `busy`: seconds spent in turns since the last measurement."""

    def __init__(self, reactor: Any, report: Report, clock: Callable[[], float], warn_after_s: float,
                 alarm_after_s: float) -> None:
        self._reactor, self._report, self._clock = reactor, report, clock
        self._warn_after, self._alarm_after = warn_after_s, alarm_after_s
        self.last = self.longest = self.busy = 0.0
        self._call: Any = None
        self._running = False
        self._collect_after = COLLECT_AFTER

    def start(self) -> None:
        self._running = True
        self.measure(self._clock())

    def stop(self) -> None:
        self._running = False
        if self._call is not None and self._call.active():
            self._call.cancel()

    def measure(self, due: float) -> None:
        """Record the delay of this call, which was due at `due`."""
        now = self._clock()
        self.last = max(0.0, now - due)
        self.longest = max(self.longest, self.last)
        if self._alarm_after and self.last >= self._alarm_after:
            self._report.alarm(alarms.DISPATCHER, "The event loop was busy for %.3f s", self.last)
        elif self._warn_after and self.last >= self._warn_after:
            self._report.warn("The event loop was busy for %.3f s", self.last)
        gc.collect(1)  # promotes new containers while they are small: the cost of a traversal grows with their size
        if self.busy < IDLE_BUSY_S and gc.get_count()[2] >= self._collect_after:
            begun = self._clock()
            gc.collect()
            self._collect_after = COLLECT_AFTER * (1 + int((self._clock() - begun) / SHORT_COLLECTION_S))
        self.busy = 0.0
        if self._running:
            self._call = self._reactor.callLater(LAG_PERIOD_S, self.measure, now + LAG_PERIOD_S)
