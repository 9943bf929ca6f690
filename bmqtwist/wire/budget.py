"""What it may cost to read one schema message: a few bytes can stand for a value, and each takes its time.

A value costs one, a record RECORD_VALUES more: that is how long they take, about 1 and 5 us.

Readers are generators: after SLICE_VALUES they pause, so that a long message can be read over several turns. `at_once` reads
it without.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

RECORD_VALUES = 4
SLICE_VALUES = 1024  # about 2 ms

ITEMS_AT_ONCE = 32  # of 10 to 50 us each

_T = TypeVar("_T")
_U = TypeVar("_U")


class Budget:
    """What is `left`; a reader that finds it below zero gives up. 0 = there is no end of it. When it is below `pause` a
    reader calls `next_pause`, then pauses."""

    __slots__ = ("left", "pause")

    def __init__(self, values_max: int) -> None:
        self.left = values_max or sys.maxsize
        self.next_pause()

    def next_pause(self) -> None:
        """Pause again after SLICE_VALUES."""
        self.pause = max(0, self.left - SLICE_VALUES)


def in_steps(items: Iterable[_U], made: Callable[[_U], _T], pause_after: int = ITEMS_AT_ONCE
             ) -> Generator[None, None, list[_T]]:
    """What is made of each item, with a pause after so many."""
    found: list[_T] = []
    for item in items:
        found.append(made(item))
        if not len(found) % pause_after:
            yield
    return found


def taken(items: list[_T]) -> Iterator[_T]:
    """Each of them, the first one first, none of them kept: to free very many at once takes time, too."""
    items.reverse()
    while items:
        yield items.pop()


def at_once(steps: Generator[object, None, _T]) -> _T:
    """Read without a pause; do whatever is done in steps."""
    while True:
        try:
            next(steps)
        except StopIteration as over:
            result: _T = over.value
            return result
