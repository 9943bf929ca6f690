"""Child processes that tests talk to: however such a process behaves, whoever waits for it comes to an end."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import AnyStr


@contextmanager
def mortal(process: subprocess.Popen[AnyStr], seconds_max: float) -> Iterator[subprocess.Popen[AnyStr]]:
    """A process that is killed after so many seconds, so that its output ends, and killed in the end if it still runs."""
    timer = threading.Timer(seconds_max, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.communicate(timeout=seconds_max)
