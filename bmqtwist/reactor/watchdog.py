"""How long the event loop is busy at a time: turns that take too long are counted, and it is told what they did.

A turn begins with the first bytes that arrive (or a timer, or a job that is done) and ends when all of it is written. A
thread looks now and then; in the midst of a turn that takes longer than STALLED_S it takes down where the loop is.

From the loop: `began` is set, `over` is called. From the thread: `_look`.
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

SLOW_S: Final = 0.1  # a turn that takes longer is counted
STALLED_S: Final = 1.0  # one that takes longer is logged with what it was doing
_LOOK_S: Final = 0.25  # how often the thread looks
_FRAMES: Final = 6  # innermost calls that are told


class Watchdog:
    """Of one loop, which is the thread that starts it. Seconds of the monotonic clock."""

    __slots__ = ("began", "slow", "stalled", "longest", "_report", "_clock", "_loop", "_over", "_where", "_seen")

    def __init__(self, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self.began = 0.0  # of the turn that runs; 0 = none does
        self.slow = self.stalled = 0  # turns longer than SLOW_S, and longer than STALLED_S
        self.longest = 0.0
        self._loop = 0
        self._over: threading.Event | None = None
        self._where, self._seen = "", 0.0  # what was seen, and the beginning of the turn that it was seen in

    def start(self) -> None:
        """Look from now on."""
        self._loop, self._over = threading.get_ident(), threading.Event()
        threading.Thread(target=self._watch, args=(self._over,), name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        if self._over is not None:
            self._over.set()

    def over(self, took: float) -> None:
        """The turn that began at `began` has taken so many seconds: more than SLOW_S, or more than any other."""
        self.longest = max(self.longest, took)
        self.slow += took > SLOW_S
        if took >= STALLED_S:
            self.stalled += 1
            where = self._where if self._seen == self.began else "nobody knows where"
            self._report.warn("The event loop was busy for %.3f s in one turn: %s", took, where)

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        began = self.began
        if not began or began == self._seen or self._clock() - began < STALLED_S:
            return
        frame = sys._current_frames().get(self._loop)
        where = place(traceback.extract_stack(frame, limit=None)) if frame is not None else "the loop has ended"
        if self.began == began:
            self._where, self._seen = where, began


def place(stack: traceback.StackSummary) -> str:
    """The innermost calls in one line, `function (file:line)`, from the inside out."""
    return " < ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in reversed(stack[-_FRAMES:]))
