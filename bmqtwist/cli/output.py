"""Non-blocking standard output of commands with an event loop, and progress bars.

`StandardOutput.write` discards the rest of the data when the command stops; `written` is the number of bytes that standard
output has accepted. A write ends at once when the reader of a pipe closes it. Used by `consume.py`, `tail.py`, `produce.py`
and `bench.py`; the forms of printed messages are in `textforms.py`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import click

from bmqtwist.cli.exits import EXIT_OUTPUT, CommandFailed

_WRITE_BYTES = 4096  # PIPE_BUF: a writable pipe accepts this much without blocking
OnProgress = Callable[[int], None]


class StandardOutput:
    """Standard output in an event loop; a context manager. `reader_closed` is set when the reader has closed the pipe."""

    def __init__(self) -> None:
        self.written = 0
        self.reader_closed = asyncio.Event()
        self._pipe = False
        if sys.stdout is None:
            raise CommandFailed("standard output is closed", EXIT_OUTPUT)
        sys.stdout.flush()
        self._fd = sys.stdout.fileno()

    def __enter__(self) -> Self:
        kind = os.fstat(self._fd).st_mode
        self._pipe = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
        if self._pipe:  # the writing end of a pipe becomes readable when its last reader closes it
            asyncio.get_running_loop().add_reader(self._fd, self._on_readable)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pipe:
            asyncio.get_running_loop().remove_reader(self._fd)

    def _on_readable(self) -> None:
        poll = select.poll()
        poll.register(self._fd, 0)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
            self.reader_closed.set()
        asyncio.get_running_loop().remove_reader(self._fd)
        self._pipe = False

    async def write(self, data: bytes, stopping: asyncio.Event) -> None:
        """Write all data, or a part of it once `stopping` is set. Raises BrokenPipeError if the reader closes the pipe."""
        view = memoryview(data)
        while view:
            if not await self._wait_until_writable(stopping):
                return
            try:
                count = os.write(self._fd, view[:_WRITE_BYTES])
            except BlockingIOError:
                await asyncio.sleep(0.01)
                continue
            self.written += count
            view = view[count:]

    async def _wait_until_writable(self, stopping: asyncio.Event) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        if poll.poll(0):
            return True
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_writer(self._fd, ready.set)
        try:
            await wait_for_any(ready, stopping, self.reader_closed)
        finally:
            loop.remove_writer(self._fd)
        if self.reader_closed.is_set():
            raise BrokenPipeError(errno.EPIPE, "the reader closed the pipe")
        return ready.is_set()


async def wait_for_any(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


@contextmanager
def progress(label: str, total: int | None, shown: bool) -> Iterator[OnProgress]:
    """Show progress on standard error, if `shown` is set and standard error is a terminal. Yields a function that takes
    increments. `total` None = unknown; a counter is shown instead of a bar."""
    if not shown or sys.stderr is None or not sys.stderr.isatty():
        yield lambda count: None
        return
    if total is not None:
        with click.progressbar(length=total, label=label, file=sys.stderr, show_pos=True) as bar:
            yield bar.update
        return
    done = last = 0

    def count_up(count: int) -> None:
        nonlocal done, last
        done += count
        if done - last >= 100 or done < 100:
            last = done
            sys.stderr.write(f"\r{label}: {done}")
            sys.stderr.flush()

    try:
        yield count_up
    finally:
        if done:
            sys.stderr.write(f"\r{label}: {done}\n")
