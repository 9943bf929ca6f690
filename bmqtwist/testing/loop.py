"""An asyncio event loop in virtual time: where it would wait for a timer, its time jumps there.

    from bmqtwist.testing import run
    run(main())             # `await asyncio.sleep(30)` takes no time

While a thread works for the loop, or a real socket or pipe is watched, time passes as usual: nobody can tell how long
those take.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from bmqtwist.testing.clock import START_S

SECONDS_MAX = 3600.0  # of virtual time, for one `run`
GRACE_S = 3600.0  # virtual time for cleaning up after that
T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")


class Stuck(AssertionError):
    """The virtual time that was allowed has passed and what was waited for has not come."""


class _Selector(selectors.DefaultSelector):
    """Jumps where others wait."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; with nothing ready the loop's time goes to where it would have waited until."""
        ready = super().select(0)
        if ready or timeout is not None and timeout <= 0:
            return ready
        if self.loop.threads or len(self.get_map()) > 1:  # one is the loop's own
            begun = time.monotonic()
            ready = super().select(timeout)
            self.loop.pass_time(time.monotonic() - begun)
        elif timeout is None:
            raise Stuck("nothing is scheduled and no timer is set: this would wait for ever\n" + self.loop.waiting())
        else:
            self.loop.pass_time(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 1000 s; beyond `seconds_max` seconds waiting raises Stuck."""

    def __init__(self, seconds_max: float = SECONDS_MAX) -> None:
        self._now, self._end, self._allowed = START_S, START_S + seconds_max, seconds_max
        self.threads = 0  # that work for the loop
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Time has passed, or jumps."""
        self._now += seconds
        if self._now > self._end:
            self._end = self._now + GRACE_S
            raise Stuck(f"more than {self._allowed:g} s of virtual time have passed\n" + self.waiting())

    def waiting(self) -> str:
        """Which tasks wait for what, a line each."""
        lines = []
        for task in asyncio.all_tasks(self):
            frames = task.get_stack(limit=1)
            where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "?"
            lines.append(f"  {task.get_name()}: {getattr(task.get_coro(), '__qualname__', task.get_coro())} at {where}")
        return "tasks that wait:\n" + "\n".join(sorted(lines)) if lines else "no task waits"

    def run_in_executor(self, executor: Executor | None, func: Callable[[*_Ts], T],
                        *args: *_Ts) -> asyncio.Future[T]:
        """As usual; virtual time stands until the thread is done."""
        future = super().run_in_executor(executor, func, *args)
        self.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        """As usual; it is a thread that waits for the others."""
        self.threads += 1
        try:
            await super().shutdown_default_executor(*args, **options)
        finally:
            self.threads -= 1

    def _thread_done(self, future: asyncio.Future[Any]) -> None:
        self.threads -= 1


def run(main: Coroutine[Any, Any, T], *, seconds_max: float = SECONDS_MAX, debug: bool | None = None) -> T:
    """asyncio.run in virtual time; its result. Stuck (an AssertionError) after `seconds_max` seconds of it."""
    with asyncio.Runner(debug=debug, loop_factory=lambda: VirtualLoop(seconds_max)) as runner:
        return runner.run(main)
