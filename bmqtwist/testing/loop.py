"""asyncio event loop in virtual time: instead of waiting for a timer, its clock advances to the timer.

    from bmqtwist.testing import run
    run(main())             # `await asyncio.sleep(30)` takes no real time

While a thread works for the loop, or a socket or pipe is watched, the clock follows real time. Used by applications,
through `run`. The clock of a broker is in `clock.py`; `aio.py` connects both.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from bmqtwist.testing.clock import START_S

SECONDS_MAX = 3600.0  # limit of virtual time of one `run`
GRACE_S = 3600.0  # virtual time for cleanup after the limit
T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")


class Stuck(AssertionError):
    """The limit of virtual time has passed, or a wait would never end."""


class _Selector(selectors.DefaultSelector):
    """Advances virtual time instead of waiting."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready files; if none is ready, advance the loop's time by `timeout`."""
        ready = super().select(0)
        if ready or timeout is not None and timeout <= 0:
            return ready
        if self.loop.threads or len(self.get_map()) > 1:  # one file belongs to the loop
            begun = time.monotonic()
            ready = super().select(timeout)
            self.loop.pass_time(time.monotonic() - begun)
        elif timeout is None:
            raise Stuck("no callback and no timer is scheduled: this wait would never end\n"
                        + self.loop.waiting_tasks_text())
        else:
            self.loop.pass_time(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Loop whose `time()` begins at 1000 s; waiting beyond `seconds_max` seconds raises Stuck."""

    def __init__(self, seconds_max: float = SECONDS_MAX) -> None:
        self._now, self._end, self._allowed = START_S, START_S + seconds_max, seconds_max
        self.threads = 0  # number of threads that work for the loop
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Advance the virtual time."""
        self._now += seconds
        if self._now > self._end:
            self._end = self._now + GRACE_S
            raise Stuck(f"more than {self._allowed:g} s of virtual time have passed\n" + self.waiting_tasks_text())

    def waiting_tasks_text(self) -> str:
        """Describe the waiting tasks, a line each."""
        lines = []
        for task in asyncio.all_tasks(self):
            frames = task.get_stack(limit=1)
            where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "?"
            lines.append(f"  {task.get_name()}: {getattr(task.get_coro(), '__qualname__', task.get_coro())} at {where}")
        return "waiting tasks:\n" + "\n".join(sorted(lines)) if lines else "no task is waiting"

    def run_in_executor(self, executor: Executor | None, func: Callable[[*_Ts], T],
                        *args: *_Ts) -> asyncio.Future[T]:
        """Run a function in a thread; until it returns, the clock follows real time."""
        future = super().run_in_executor(executor, func, *args)
        self.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        """Shut the executor down; the thread that waits for it is counted, too."""
        self.threads += 1
        try:
            await super().shutdown_default_executor(*args, **options)
        finally:
            self.threads -= 1

    def _thread_done(self, future: asyncio.Future[Any]) -> None:
        self.threads -= 1


def run(main: Coroutine[Any, Any, T], *, seconds_max: float = SECONDS_MAX, debug: bool | None = None) -> T:
    """Run a coroutine as `asyncio.run`, in virtual time. Raises Stuck (an AssertionError) after `seconds_max` seconds."""
    with asyncio.Runner(debug=debug, loop_factory=lambda: VirtualLoop(seconds_max)) as runner:
        return runner.run(main)
