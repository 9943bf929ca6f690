"""How long the machine itself stood still: no turn of a broker is shorter, whatever it does.

One process for each processor, with precedence over all others, sleeps for two milliseconds at a time. How much later than
that it wakes up is what the machine was away: a virtual one waits for its host, or for the memory that it touches for the
first time. Without the permission for SCHED_FIFO the processes would wait for other processes as well; then None is told.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any, Self

_TICK_S = 0.002
_PRIORITY = 1  # of SCHED_FIFO, the least


def _watch(processor: int, longest: Any, ready: Any) -> None:
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


class Machine:
    """Watched while the context lasts."""

    def __init__(self) -> None:
        context, processors = multiprocessing.get_context("fork"), os.sched_getaffinity(0)
        self._ready = context.Semaphore(0)
        self._longest = [context.RawValue("d", -1.0) for _ in processors]
        self._processes = [context.Process(target=_watch, args=(processor, longest, self._ready), daemon=True)
                           for processor, longest in zip(processors, self._longest, strict=True)]

    def longest_ms(self) -> float | None:
        """The longest time that a processor was away since the last call; None: nobody knows."""
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
