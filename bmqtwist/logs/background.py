"""Nonblocking stream for a descriptor that may block, such as a pipe whose reader has stopped: a thread writes to it.

A caller that logs never waits. Up to BUFFERED_BYTES_MAX of unread lines are buffered; further lines are dropped, and their
number precedes the next line.

`write`, `flush`, `drain` and `close` may be called by any thread; `_work` runs in the thread of the stream.

`tap.py` and `cli/bmqbrkr.py` wrap standard output and the alarm channel in it. Log files are written directly, by
`observer.py`.
"""

from __future__ import annotations

import io
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

BUFFERED_BYTES_MAX: Final = 4 << 20  # of lines that are not written yet
CLOSE_SECONDS_MAX: Final = 1.0  # for the reader to read the rest at the end


class BackgroundStream:
    """Stream of lines to `descriptor`, which stays open. `dropped`: number of dropped lines."""

    def __init__(self, descriptor: int, write: Callable[[int, bytes | memoryview], int] = os.write) -> None:
        self._descriptor, self._write = descriptor, write
        self._lines: deque[bytes] = deque()
        self._bytes = 0  # of `_lines` and of the write in progress
        self._missing = 0  # dropped since the last buffered line
        self.dropped = 0
        self._closing = self._broken = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Buffer the lines of `text` without waiting for the reader."""
        data = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._broken or self._closing:
                return
            if self._bytes + len(data) > BUFFERED_BYTES_MAX:
                self._missing += 1
                self.dropped += 1
                return
            if self._missing:
                data = f"({self._missing} lines dropped: the reader was too slow)\n".encode() + data
                self._missing = 0
            self._lines.append(data)
            self._bytes += len(data)
            if self._thread is None:  # started here, because a fork into the background would not keep it
                self._thread = threading.Thread(target=self._work, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Do nothing: the thread writes lines at once."""

    def drain(self, seconds: float = CLOSE_SECONDS_MAX) -> None:
        """Wait up to `seconds` until all buffered lines are written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._broken, seconds)

    def close(self, seconds: float = CLOSE_SECONDS_MAX) -> None:
        """Refuse further lines and wait up to `seconds` until all buffered lines are written."""
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
            except OSError:  # the reader has closed; the log file has the lines
                with self._changed:
                    self._broken = True
                    self._changed.notify_all()
                return
            with self._changed:
                self._bytes -= size
                self._changed.notify_all()


Stream = TextIO | BackgroundStream


def may_block(descriptor: int) -> bool:
    """Return whether a write may wait for a reader: True for a pipe, socket or terminal, False for a file."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


def nonblocking_stream(stream: TextIO | None) -> Stream:
    """Return the stream, or a BackgroundStream for it if writes may wait for a reader; `close` it at the end. None, of a
    process that was started with the descriptor closed: a stream that discards."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # a name that is not UTF-8 may be printed
    try:
        descriptor = stream.fileno()
        return BackgroundStream(descriptor) if may_block(descriptor) else stream
    except (OSError, ValueError):  # a stream without descriptor
        return stream


def drain(stream: Stream) -> None:
    if isinstance(stream, BackgroundStream):
        stream.drain()


def close(stream: Stream) -> None:
    if isinstance(stream, BackgroundStream):
        stream.close()
