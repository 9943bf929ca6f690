"""Ends the process of a test that its timeout could not end, with the stacks of all threads.

The timeout of a test (pytest-timeout) raises in the main thread, once. That ends most waits, but not a call into C that does
not return, not a loop that catches everything, and not a teardown that hangs afterwards. Then the interpreter's own
watchdog, a thread that needs neither the main thread nor the interpreter's lock, ends the process: with pytest-xdist the
test is reported as failed and another worker goes on; without it the run ends with exit code 1.
"""

from __future__ import annotations

import faulthandler
import os
import time
from typing import Any

import pytest

GRACE_S = 60.0  # more than the timeout of a test, which comes first


class Watchdog:
    """A pytest plugin; `stderr_fd` is where stacks go, also while output is captured."""

    def __init__(self, stderr_fd: int) -> None:
        self._stderr_fd = os.dup(stderr_fd)
        self._due = 0.0

    def _end_after(self, seconds: float) -> None:
        self._due = time.monotonic() + seconds
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._stderr_fd)

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, settings: Any) -> None:
        """A test begins, and its timeout."""
        self._end_after(settings.timeout + GRACE_S)

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        """It has failed, and pytest has disarmed the interpreter's watchdog; the teardown is to come."""
        self._end_after(max(self._due - time.monotonic(), 2 * GRACE_S))

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self) -> None:
        """It is over."""
        faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Only the exit of the interpreter is to come, and what hangs there. A worker may have to wait for others here; its
        controller ends it."""
        if not hasattr(config, "workerinput"):
            self._end_after(GRACE_S)
