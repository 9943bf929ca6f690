"""Thread pool for disk operations. Jobs pass through a single queue, since some hundred syncs run per second.

`performer.py` submits the threads' work of the broker to it (`run_in_thread`), for example syncs of
`broker/storage_turn.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

_Job = tuple[Callable[[], object], Callable[[], None], Callable[[BaseException], None]]


class DiskThreads:
    """Threads of one reactor. An idle thread takes the oldest job."""

    def __init__(self, reactor: Any, threads: int) -> None:
        self._reactor = reactor
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"storage-{number}", daemon=True)
                         for number in range(threads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish all queued jobs and end the threads; blocks until then."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def submit(self, work: Callable[[], object], done: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """Call `work` on a thread, then `done()`, or `failed(error)` if it raised, in the event loop."""
        self._jobs.put((work, done, failed))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done, failed = job
            try:
                work()
            except BaseException as error:  # every job needs its result, and the thread must continue
                done = partial(failed, error)
            self._reactor.callFromThread(done)
