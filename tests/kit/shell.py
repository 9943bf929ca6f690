"""`bmq shell` as a user runs it: a process with pipes, or in a terminal of its own; its output is read as it comes."""

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
    """One run. `capture` waits for the next place in the output that a pattern fits, behind the one found before."""

    def __init__(self, *arguments: str, terminal: bool = False, environment: dict[str, str] | None = None,
                 program: tuple[str, ...] = (BMQ, "shell")) -> None:
        command = [*program, *arguments]
        known = {**os.environ, "BMQ_SHELL_HISTORY": "", "TERM": "dumb", **(environment or {})}
        self.output = ""
        self._at = 0
        self._news = threading.Condition()
        self._over = False
        if terminal:
            self._end, theirs = pty.openpty()
            self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=known,
                                            start_new_session=True, preexec_fn=_take_terminal)  # noqa: PLW1509
            os.close(theirs)
            reading = writing = self._end
        else:
            self._end = -1
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT, env=known, start_new_session=True)
            assert self.process.stdin is not None and self.process.stdout is not None
            reading, writing = self.process.stdout.fileno(), self.process.stdin.fileno()
        self._writing = writing
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    def _read(self, reading: int) -> None:
        while True:
            try:
                data = os.read(reading, 1 << 16)
            except OSError:  # a terminal whose other end is closed
                data = b""
            with self._news:
                self.output += data.decode("utf-8", "backslashreplace")
                self._over = not data
                self._news.notify_all()
            if not data:
                return

    def send(self, *lines: str) -> None:
        """Type lines."""
        self.type("".join(f"{line}\n" for line in lines))

    def type(self, text: str) -> None:
        """Type text as it is."""
        os.write(self._writing, text.encode())

    def capture(self, pattern: str, deadline: float = DEADLINE) -> re.Match[str]:
        """Wait for the pattern; `.` fits no end of line."""
        end = time.monotonic() + deadline
        with self._news:
            while True:
                found = re.compile(pattern).search(self.output, self._at)
                if found is not None:
                    self._at = found.end()
                    return found
                left = end - time.monotonic()
                if self._over or left <= 0:
                    raise Expired(f"nothing fits {pattern!r} in {self.output[self._at:]!r}, behind "
                                  f"{self.output[:self._at]!r}")
                self._news.wait(left)

    def interrupt(self, pattern: str) -> None:
        """Ctrl-C until the pattern comes: Python's line editor misses a signal that comes while it handles a key."""
        for _ in range(20):
            self.type("\x03")
            with contextlib.suppress(Expired):
                self.capture(pattern, DEADLINE / 20)
                return
        raise Expired(f"nothing fits {pattern!r} after Ctrl-C")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Close its input; the exit code."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        return self.wait()

    def wait(self) -> int:
        """Wait until it ends; the exit code."""
        code = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        return code

    def cleanup(self) -> None:
        """Leave nothing running and nothing open."""
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
    """In the child: standard input is the terminal that Ctrl-C comes from."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def until(condition: Callable[[], object]) -> None:
    """Ask again and again until it is so."""
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise Expired("it has not become so")


@contextmanager
def shell(*arguments: str, terminal: bool = False, environment: dict[str, str] | None = None,
          program: tuple[str, ...] = (BMQ, "shell")) -> Iterator[ShellProcess]:
    """A run that is over in the end."""
    process = ShellProcess(*arguments, terminal=terminal, environment=environment, program=program)
    try:
        yield process
    finally:
        process.cleanup()


def run(*arguments: str, text: str = "", environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run with a script as its input; exit code and output."""
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
