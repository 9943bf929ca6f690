"""Time limit for child processes of tests, so that no test waits for output of a process that hangs.

Used by `sdk.py`; hung tests in the test process are ended by `watchdog.py`.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import AnyStr


@contextmanager
def time_limited(process: subprocess.Popen[AnyStr], seconds_max: float) -> Iterator[subprocess.Popen[AnyStr]]:
    """Kill a process at the end of the `with` block, or after `seconds_max`, which ends its output."""
    timer = threading.Timer(seconds_max, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.communicate(timeout=seconds_max)
