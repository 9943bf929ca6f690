"""Clock of the machine, and resource usage of this process.

Used by `service.py`; simulated clocks are in `testing/clock.py`, the processor time of turns in `reactor/processor_time.py`.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from bmqtwist.reactor.watchdog import Watchdog
from bmqtwist.view.snapshot import ProcessState


class MachineClock:
    """`loop.performer.Clock` of this machine."""

    def __init__(self) -> None:
        self.wall_offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic()

    def timer_ns(self) -> int:
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def process_state(loop_lag: float, loop_lag_max: float, turns: Watchdog) -> ProcessState:
    """Return the present state of the process; memory is 0 on systems without /proc."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
        virtual, resident = (int(number) * os.sysconf("SC_PAGE_SIZE") for number in pages[:2])
    except (OSError, ValueError):
        virtual = resident = 0
    return ProcessState(usage.ru_utime, usage.ru_stime, resident, virtual, usage.ru_minflt, usage.ru_majflt,
                        usage.ru_nswap, usage.ru_nvcsw, usage.ru_nivcsw, loop_lag, loop_lag_max, turns.slow,
                        turns.stalled, turns.longest)
