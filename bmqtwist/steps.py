"""Work in steps: generators that pause about every millisecond; the scheduler spreads long work over several turns.

`loop/scheduler.py` runs them as jobs. Sessions, queues and admin commands write them; `at_once` runs all steps where no
scheduler is needed. FREED_AT_ONCE is in `bmqtwist/limits.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from bmqtwist.limits import FREED_AT_ONCE

ITEMS_AT_ONCE = 32  # items of 10 to 50 us in one step

_T = TypeVar("_T")
Steps = Generator[None, None, _T]  # a job of loop/scheduler.py: pauses after each step, and returns a result
_U = TypeVar("_U")
_END = object()


class Awaited(Generic[_T]):
    """Result of a command that depends on other nodes. `begin(done)` starts the command; `done(result)` is called once, now
    or later."""

    def __init__(self, begin: Callable[[Callable[[_T], None]], None]) -> None:
        self.begin = begin

    def map(self, change: Callable[[_T], _U]) -> Awaited[_U]:
        """Return this command with the result `change(result)`."""
        return Awaited(lambda done: self.begin(lambda result: done(change(result))))


def in_steps(items: Iterable[_U], make: Callable[[_U], _T], pause_after: int = ITEMS_AT_ONCE) -> Steps[list[_T]]:
    """Return `make(item)` for each item, with a pause after each `pause_after` items."""
    found: list[_T] = []
    for item in items:
        found.append(make(item))
        if not len(found) % pause_after:
            yield
    return found


def drain(items: list[_T]) -> Iterator[_T]:
    """Yield the items in order and remove each: freeing a long list as a whole would exceed a slice."""
    items.reverse()
    while items:
        yield items.pop()


def at_once(steps: Generator[object, None, _T]) -> _T:
    """Run all steps without a pause; return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


def clear_in_steps(places: Iterable[dict[Any, Any] | deque[Any]]) -> Steps[None]:
    """Empty large containers in steps before they are freed."""
    for place in places:
        while len(place) > FREED_AT_ONCE:
            take = place.popitem if isinstance(place, dict) else place.pop
            for _ in islice(iter(take, _END), FREED_AT_ONCE):
                pass
            yield
