"""Processes of `bmq shell` for tests: with pipes or in a pseudo-terminal; a thread collects the output.

Used by `integration/test_shell_*.py`; the other commands of `bmq` run in `cli_kit.py`.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.client import Expired

DEADLINE = 60.0
BMQ = str(Path(sys.executable).parent / "bmq")


class ShellProcess:
    """A process of `bmq shell`. `capture` searches the output from the end of the previous match on."""

    def __init__(self, *arguments: str, terminal: bool = False, environment: dict[str, str] | None = None,
                 program: tuple[str, ...] = (BMQ, "shell")) -> None:
        command = [*program, *arguments]
        variables = {**os.environ, "BMQ_SHELL_HISTORY": "", "TERM": "dumb", **(environment or {})}
        self.output = ""
        self._at = 0
        self._changed = threading.Condition()
        self._at_end = False
        if terminal:
            self._end, child_end = pty.openpty()
            self.process = subprocess.Popen(command, stdin=child_end, stdout=child_end, stderr=child_end, env=variables,
                                            start_new_session=True, preexec_fn=_take_terminal)  # noqa: PLW1509
            os.close(child_end)
            reading = writing = self._end
        else:
            self._end = -1
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT, env=variables, start_new_session=True)
            assert self.process.stdin is not None and self.process.stdout is not None
            reading, writing = self.process.stdout.fileno(), self.process.stdin.fileno()
        self._writing = writing
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    def _read(self, reading: int) -> None:
        while True:
            try:
                data = os.read(reading, 1 << 16)
            except OSError:  # the child has closed the pseudo-terminal
                data = b""
            with self._changed:
                self.output += data.decode("utf-8", "backslashreplace")
                self._at_end = not data
                self._changed.notify_all()
            if not data:
                return

    def send(self, *lines: str) -> None:
        """Write lines to the standard input of the shell."""
        self.type("".join(f"{line}\n" for line in lines))

    def type(self, text: str) -> None:
        """Write text to the standard input of the shell, without a newline."""
        os.write(self._writing, text.encode())

    def capture(self, pattern: str, deadline: float = DEADLINE) -> re.Match[str]:
        """Wait for a match of the pattern (`.` matches no newline); raises Expired after `deadline` seconds."""
        end = time.monotonic() + deadline
        with self._changed:
            while True:
                found = re.compile(pattern).search(self.output, self._at)
                if found is not None:
                    self._at = found.end()
                    return found
                remaining = end - time.monotonic()
                if self._at_end or remaining <= 0:
                    raise Expired(f"no match of {pattern!r} in {self.output[self._at:]!r}, after "
                                  f"{self.output[:self._at]!r}")
                self._changed.wait(remaining)

    def interrupt(self, pattern: str) -> None:
        """Send Ctrl-C until the pattern matches: readline misses a signal that arrives while it handles a key."""
        for _ in range(20):
            self.type("\x03")
            with contextlib.suppress(Expired):
                self.capture(pattern, DEADLINE / 20)
                return
        raise Expired(f"no match of {pattern!r} after Ctrl-C")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Close the standard input, wait for the end of the process and return its exit code."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        code = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        return code

    def cleanup(self) -> None:
        """Kill the process if it still runs, and close all descriptors."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        if self._end >= 0:
            os.close(self._end)


def _take_terminal() -> None:
    """Make standard input the controlling terminal of the child, so that Ctrl-C sends a signal to it."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true; raises Expired after `DEADLINE` seconds."""
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise Expired("the condition is still false")


@contextmanager
def shell(*arguments: str, terminal: bool = False, environment: dict[str, str] | None = None,
          program: tuple[str, ...] = (BMQ, "shell")) -> Iterator[ShellProcess]:
    """Run `bmq shell`; the process is ended with the `with` block."""
    process = ShellProcess(*arguments, terminal=terminal, environment=environment, program=program)
    try:
        yield process
    finally:
        process.cleanup()


def run(*arguments: str, text: str = "", environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run `bmq shell` with a script as standard input; return exit code and output."""
    with shell(*arguments, environment=environment) as process:
        threading.Thread(target=_feed, args=(process, text), daemon=True).start()
        code = process.wait()
        return code, process.output


def _feed(process: ShellProcess, text: str) -> None:
    assert process.process.stdin is not None
    try:
        process.process.stdin.write(text.encode())
        process.process.stdin.close()
    except BrokenPipeError:
        pass
