"""Monitor of pauses of the machine itself, which limit the turn times of any broker.

One process per processor, with real-time priority, sleeps for 2 ms at a time; the delay of its wake-up is a pause of the
machine: of a virtual machine by its host, or by the first access to memory. Without the permission for SCHED_FIFO the
delays would include other processes, and the monitor reports None. Used by `run.py`, `rollover.py`, `catch_up.py` and
`take_over.py`; CPU of one process is measured by `gauge.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any, Self

_TICK_S = 0.002
_PRIORITY = 1  # lowest of SCHED_FIFO


def _measure_delays(processor: int, longest: Any, ready: Any) -> None:
    os.sched_setaffinity(0, {processor})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    except PermissionError:
        return
    finally:
        ready.release()
    longest.value = 0.0
    while True:
        due = time.monotonic() + _TICK_S
        time.sleep(_TICK_S)
        late = time.monotonic() - due
        if late > longest.value:
            longest.value = late


class HostPauseMonitor:
    """Measures pauses while its context is active."""

    def __init__(self) -> None:
        context, processors = multiprocessing.get_context("fork"), os.sched_getaffinity(0)
        self._ready = context.Semaphore(0)
        self._longest = [context.RawValue("d", -1.0) for _ in processors]
        self._processes = [context.Process(target=_measure_delays, args=(processor, longest, self._ready), daemon=True)
                           for processor, longest in zip(processors, self._longest, strict=True)]

    def longest_ms(self) -> float | None:
        """Return the longest pause of a processor since the last call; None = unknown."""
        found = max(each.value for each in self._longest)
        for each in self._longest:
            each.value = min(each.value, 0.0)
        return None if found < 0 else round(found * 1000, 1)

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
            self._ready.acquire()
        self.longest_ms()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()
