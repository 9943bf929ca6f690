"""Processor time of the event loop's thread, for the budgets of a turn.

Budgets count work, not time in which other processes had the processor: on a machine that clients share, a budget of the
clock splits input into more turns, and a turn costs system calls. The system is asked at most once per `ASK_AFTER_S`; in
between the clock is added, so a value exceeds the work by at most that time. Created by `performer.py`; `loop/scheduler.py`
reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

ASK_AFTER_S: Final = 0.001  # the system call takes 1.7 us, the clock 0.05


class ProcessorTime:
    """Seconds of work of the calling thread, which must be the same in each call. `clock` and `processor`: seconds."""

    __slots__ = ("_clock", "_processor", "_asked_at", "_worked")

    def __init__(self, clock: Callable[[], float], processor: Callable[[], float]) -> None:
        self._clock, self._processor = clock, processor
        self._asked_at, self._worked = float("-inf"), 0.0

    def __call__(self) -> float:
        now = self._clock()
        since = now - self._asked_at
        if since < ASK_AFTER_S:
            return self._worked + since
        self._asked_at, self._worked = now, self._processor()
        return self._worked
