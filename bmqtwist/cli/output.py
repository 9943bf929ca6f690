"""Where messages go: standard output, without ever blocking the event loop on a slow reader.

`Output.write` gives up what is left when the command stops, and `written` says how many bytes got through: a message
counts as printed only if its last byte did. A reader that goes away ends the wait at once.
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

_AT_A_TIME = 4096  # a pipe that is writable takes so much without blocking (PIPE_BUF)
Watch = Callable[[int], None]


class Output:
    """Standard output of a command in an event loop; a context manager. `gone` is set when its reader has left."""

    def __init__(self) -> None:
        self.written = 0
        self.gone = asyncio.Event()
        self._pipe = False
        if sys.stdout is None:
            raise CommandFailed("standard output is closed", EXIT_OUTPUT)
        sys.stdout.flush()
        self._fd = sys.stdout.fileno()

    def __enter__(self) -> Self:
        kind = os.fstat(self._fd).st_mode
        self._pipe = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
        if self._pipe:  # the writing end of a pipe gets readable when there is no reader any more
            asyncio.get_running_loop().add_reader(self._fd, self._left)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pipe:
            asyncio.get_running_loop().remove_reader(self._fd)

    def _left(self) -> None:
        poll = select.poll()
        poll.register(self._fd, 0)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
            self.gone.set()
        asyncio.get_running_loop().remove_reader(self._fd)
        self._pipe = False

    async def write(self, data: bytes, stopping: asyncio.Event) -> None:
        """Write all of it, or less once `stopping` is set; BrokenPipeError if the reader is gone."""
        view = memoryview(data)
        while view:
            if not await self._writable(stopping):
                return
            try:
                count = os.write(self._fd, view[:_AT_A_TIME])
            except BlockingIOError:
                await asyncio.sleep(0.01)
                continue
            self.written += count
            view = view[count:]

    async def _writable(self, stopping: asyncio.Event) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        if poll.poll(0):
            return True
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_writer(self._fd, ready.set)
        try:
            await any_of(ready, stopping, self.gone)
        finally:
            loop.remove_writer(self._fd)
        if self.gone.is_set():
            raise BrokenPipeError(errno.EPIPE, "the reader is gone")
        return ready.is_set()


async def any_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


@contextmanager
def progress(label: str, total: int | None, shown: bool) -> Iterator[Watch]:
    """A progress bar on standard error if `shown` and it is a terminal; what it gives is told of every step.

    `total` None: nobody knows how much there is, the number is shown.
    """
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
