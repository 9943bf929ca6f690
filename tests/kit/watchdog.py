"""Pytest plugin that ends a test process whose timeout had no effect, and prints the stacks of all threads.

The timeout of a test (pytest-timeout) raises in the main thread, once. That ends most waits, but not a call into C that
does not return, not a loop that catches all exceptions, and not a teardown that hangs afterwards. `GRACE_S` seconds later,
the watchdog of `faulthandler`, a thread that needs neither the main thread nor the interpreter's lock, ends the process:
with pytest-xdist the test is reported as failed and another worker continues; without it the run ends with exit code 1.
Registered by tests/conftest.py; children of tests are limited by `children.py`.
"""

from __future__ import annotations

import faulthandler
import os
import time
from typing import Any

import pytest

GRACE_S = 60.0  # after the timeout of a test, so that the timeout acts first


class Watchdog:
    """Arms the watchdog of `faulthandler` for each test; prints stacks to `stderr_fd`, also while output is captured."""

    def __init__(self, stderr_fd: int) -> None:
        self._stderr_fd = os.dup(stderr_fd)
        self._deadline = 0.0

    def _end_after(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._stderr_fd)

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, settings: Any) -> None:
        """Arm the watchdog when a test starts, for its timeout and `GRACE_S` more."""
        self._end_after(settings.timeout + GRACE_S)

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        """Arm the watchdog again after a failure, for the teardown: pytest has disarmed it."""
        self._end_after(max(self._deadline - time.monotonic(), 2 * GRACE_S))

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self) -> None:
        """Disarm the watchdog at the end of a test."""
        faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Arm the watchdog for the exit of the interpreter.

        Not in a worker of pytest-xdist, which may wait for other workers here; its controller ends it.
        """
        if not hasattr(config, "workerinput"):
            self._end_after(GRACE_S)
