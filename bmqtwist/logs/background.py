"""A stream that may stall, such as a pipe whose reader has stopped: a thread of its own writes to it.

Whoever logs waits for nobody. What the reader has not taken is kept up to KEPT_BYTES_MAX; lines beyond that are dropped and
counted, and how many they were is said once it goes on.

From any thread: write, flush, drain, close. From the own thread: `_work`.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

KEPT_BYTES_MAX: Final = 4 << 20  # of lines that are not written yet
CLOSE_SECONDS_MAX: Final = 1.0  # for a reader to take the rest at the end


class BackgroundStream:
    """Lines for `descriptor`, which is not closed. `dropped`: lines nobody could be given, so far."""

    def __init__(self, descriptor: int, write: Callable[[int, bytes | memoryview], int] = os.write) -> None:
        self._descriptor, self._write = descriptor, write
        self._lines: deque[bytes] = deque()
        self._bytes = 0  # of `_lines`, and of what is being written
        self._missing = 0  # dropped since the last line that was kept
        self.dropped = 0
        self._closing = self._broken = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Take some lines; never waits for the reader."""
        data = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._broken or self._closing:
                return
            if self._bytes + len(data) > KEPT_BYTES_MAX:
                self._missing += 1
                self.dropped += 1
                return
            if self._missing:
                data = f"({self._missing} lines were dropped here: they were not read in time)\n".encode() + data
                self._missing = 0
            self._lines.append(data)
            self._bytes += len(data)
            if self._thread is None:  # not before: a process that goes into the background would lose it
                self._thread = threading.Thread(target=self._work, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """It is on its way."""

    def drain(self, seconds: float = CLOSE_SECONDS_MAX) -> None:
        """Wait so long for the reader to take what there is."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._broken, seconds)

    def close(self, seconds: float = CLOSE_SECONDS_MAX) -> None:
        """No more lines; wait so long for the reader to take what there is."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.drain(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closing)
                if not self._lines:
                    return
                data = b"".join(self._lines)
                self._lines.clear()
            view, size = memoryview(data), len(data)
            try:
                while view:
                    view = view[self._write(self._descriptor, view):]
            except OSError:  # the reader went away; the file has the lines
                with self._changed:
                    self._broken = True
                    self._changed.notify_all()
                return
            with self._changed:
                self._bytes -= size
                self._changed.notify_all()


Stream = TextIO | BackgroundStream


def may_stall(descriptor: int) -> bool:
    """Whether a write may wait for somebody who reads: a pipe, a socket or a terminal, but no file."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


def unblocked(stream: TextIO) -> Stream:
    """The stream, or one that never waits for who reads it; `close` it at the end."""
    try:
        descriptor = stream.fileno()
        return BackgroundStream(descriptor) if may_stall(descriptor) else stream
    except (OSError, ValueError):  # it has none
        return stream


def drain(stream: Stream) -> None:
    if isinstance(stream, BackgroundStream):
        stream.drain()


def close(stream: Stream) -> None:
    if isinstance(stream, BackgroundStream):
        stream.close()
