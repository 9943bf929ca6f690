"""Threads for what waits for the disk: the loop hands work over and is handed back what became of it.

A sync passes through here some hundred times a second, so there is no more between loop and thread than a queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

_Job = tuple[Callable[[], object], Callable[[], None], Callable[[BaseException], None]]


class DiskThreads:
    """So many threads of one reactor. Whoever is idle takes the work that has waited longest."""

    def __init__(self, reactor: Any, threads: int) -> None:
        self._reactor = reactor
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"storage-{number}", daemon=True)
                         for number in range(threads)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take nothing more; returns when all that was taken is done."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def do(self, work: Callable[[], object], done: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """Call `work` on a thread, then `done` in the loop, or `failed` with what it raised."""
        self._jobs.put((work, done, failed))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done, failed = job
            try:
                work()
            except BaseException as error:  # whatever it is: somebody waits, and the thread goes on
                done = partial(failed, error)
            self._reactor.callFromThread(done)
