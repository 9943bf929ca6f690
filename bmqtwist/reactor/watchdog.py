"""Event-loop watchdog: counts turns above SLOW_S and logs what ran in turns above STALLED_S.

A turn begins with the first received bytes (or a timer, or the result of a thread) and ends when its output is written. A
thread inspects the loop every _PERIOD_S and records the stack of a turn that already exceeds STALLED_S.

The loop sets `began` and calls `record_turn`; the thread calls `_inspect`. `performer.py` owns it. The delay of the loop is
measured in `loop_lag.py`, the processor time in `processor_time.py`.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bmqtwist.report import Report

SLOW_S: Final = 0.1  # duration above which a turn is counted
STALLED_S: Final = 1.0  # duration above which a turn is logged with its stack
_PERIOD_S: Final = 0.25  # between two inspections of the loop
_FRAMES: Final = 6  # innermost calls that are logged


class Watchdog:
    """Watchdog of the event loop that runs in the thread of `start`. All times in seconds, monotonic."""

    __slots__ = ("began", "slow", "stalled", "longest", "_report", "_clock", "_loop", "_stopped", "_where", "_seen")

    def __init__(self, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self.began = 0.0  # beginning of the present turn; 0 = none
        self.slow = self.stalled = 0  # turns longer than SLOW_S, and longer than STALLED_S
        self.longest = 0.0
        self._loop = 0
        self._stopped: threading.Event | None = None
        self._where, self._seen = "", 0.0  # the recorded stack, and the beginning of its turn

    def start(self) -> None:
        self._loop, self._stopped = threading.get_ident(), threading.Event()
        threading.Thread(target=self._watch, args=(self._stopped,), name="watchdog", daemon=True).start()

    def stop(self) -> None:
        if self._stopped is not None:
            self._stopped.set()

    def record_turn(self, took: float) -> None:
        """Record a finished turn of `took` seconds that exceeds SLOW_S or all earlier turns."""
        self.longest = max(self.longest, took)
        self.slow += took > SLOW_S
        if took >= STALLED_S:
            self.stalled += 1
            where = self._where if self._seen == self.began else "no stack was recorded"
            self._report.warn("The event loop was busy for %.3f s in one turn: %s", took, where)

    def _watch(self, stopped: threading.Event) -> None:
        while not stopped.wait(_PERIOD_S):
            self._inspect()

    def _inspect(self) -> None:
        began = self.began
        if not began or began == self._seen or self._clock() - began < STALLED_S:
            return
        frame = sys._current_frames().get(self._loop)
        where = place(traceback.extract_stack(frame, limit=None)) if frame is not None else "the loop has ended"
        if self.began == began:
            self._where, self._seen = where, began


def place(stack: traceback.StackSummary) -> str:
    """The innermost calls in one line, `function (file:line)`, innermost first."""
    return " < ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in reversed(stack[-_FRAMES:]))
