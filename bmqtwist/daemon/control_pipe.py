"""Control pipe: a named pipe that takes admin commands, and a file that records them.

    CMD <admin command>      the answer goes to the log

Only the operating system user of the broker may write to it. The reactor calls doRead. Opened by `service.py`;
`broker/commands.py` runs the commands. Administrators with a connection are in `link/admin.py`. The commands are
declared in `admin/table.py`.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.abstract import FileDescriptor
from twisted.python.failure import Failure

from bmqtwist import alarms
from bmqtwist.errors import LocalError
from bmqtwist.link.admin import AdminAnswer
from bmqtwist.logs.format import date_text
from bmqtwist.report import Report, shown, traceback_text
from bmqtwist.view.metrics import interval_text

LINE_BYTES_MAX = 65536  # longer lines are dropped
Run = Callable[[str, str, Callable[[AdminAnswer], None]], None]
SOURCE = "MTRAP"  # source of the commands in the log


class ControlPipe(FileDescriptor):
    """The pipe at `path`; commands are recorded in `history_path`. `run(command, source, done)` executes one."""

    def __init__(self, reactor: Any, path: str, history_path: str, run: Run, report: Report) -> None:
        super().__init__(reactor)
        self.path, self._history_path = path, history_path
        self._run, self._report = run, report
        self._buffer = b""
        self._descriptor = -1

    def open(self) -> None:
        """Create the pipe and read from it, unless another running broker has it. LocalError if `path` is no pipe; OSError
        if it cannot be created."""
        if _has_reader(self.path):
            self._report.warn("'%s' is the control pipe of another running broker: this broker has none. Start each "
                              "broker in a directory of its own.", self.path)
            return
        if os.path.lexists(self.path):
            if not stat.S_ISFIFO(os.lstat(self.path).st_mode):
                raise LocalError(f"'{self.path}' exists and is no named pipe: remove it.")
            os.unlink(self.path)
        os.mkfifo(self.path, 0o600)
        # also opened for writing: the pipe stays open when a writer closes it
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.startReading()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the pipe and remove its file."""
        if self._descriptor >= 0:
            self.stopReading()  # type: ignore[no-untyped-call]
            mine = os.fstat(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            try:
                if os.path.samestat(mine, os.lstat(self.path)):
                    os.unlink(self.path)
            except OSError:
                pass  # already removed

    def fileno(self) -> int:
        return self._descriptor

    def connectionLost(self, reason: Failure) -> None:
        self.close()

    def doRead(self) -> None:
        """Read commands and run them; called by the reactor."""
        try:
            self._buffer += os.read(self._descriptor, LINE_BYTES_MAX)
        except BlockingIOError:
            return
        *lines, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > LINE_BYTES_MAX:
            self._report.error("Error processing command [rc: -1]: a line of more than %d bytes", LINE_BYTES_MAX)
            self._buffer = b""
        for line in lines:
            text = shown(line.decode("utf-8", "replace").strip(), LINE_BYTES_MAX)
            if text:
                try:
                    self._run_line(text)
                except Exception as error:  # the reactor would close the pipe
                    self._report.alarm(
                        alarms.INTERNAL_ERROR,
                        "Error processing command [rc: -1]: '%s': %s", text, traceback_text(error))

    def _run_line(self, text: str) -> None:
        self._record(text)
        verb, _, command = text.partition(" ")
        if verb.upper() != "CMD" or not command.strip():
            self._report.error("Error processing command [rc: -1]: '%s' is not of the form 'CMD <command>'", text)
            return
        self._run(command.strip(), SOURCE, partial(self._on_answer, text, time.monotonic()))

    def _on_answer(self, text: str, begun: float, answer: AdminAnswer) -> None:
        taken = interval_text(round((time.monotonic() - begun) * 1e9))
        if answer.failed:
            self._report.error("Error processing command '%s' in %s [rc: -1]:\n%s", text, taken, answer.text)
        else:
            self._report.info("Command '%s' processed successfully in %s:\n%s", text, taken, answer.text)

    def _record(self, text: str) -> None:
        try:
            with open(self._history_path, "a", encoding="utf-8") as file:
                file.write(f"{date_text(time.time())} {text}\n")
        except OSError as error:
            self._report.warn("'%s' cannot be written: %s", self._history_path, error)


def _has_reader(path: str) -> bool:
    """Return whether the path is a pipe that a process reads."""
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            return False
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        return True
    except OSError:  # no pipe, or ENXIO: no reader
        return False
