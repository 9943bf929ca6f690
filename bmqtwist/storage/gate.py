"""The durability gate of a partition: effects in order, each with the position of the record that it waits for; and marks of
the copies in other nodes.

    waiting.append(effect)      it waits for the record at `effect.position`, the newest there is
    wrote(position, matters)    the records up to there are in the files
    begin_sync ... end_sync     those that were written before it began survive a loss of power
    release_written / _durable  the effects up to that mark, in the order in which they came

Positions count the records of this process without gaps. A sync covers what was written before it began; what is written
meanwhile waits for the next one. An effect is any object with an attribute `position`; those of the hot path are `Gated`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol

from bmqtwist.compiled import mypyc_attr

COMMITTED_ALL = 1 << 62  # a position that no record reaches: the cluster has whatever this node has


@mypyc_attr(acyclic=True)
class Gated:
    """What waits. `position`: of the record it waits for."""

    __slots__ = ("position",)

    def __init__(self) -> None:
        self.position = 0


class Gate:
    """Effects come out in the order in which they went in."""

    __slots__ = ("written", "durable", "waiting", "_covers", "_token", "due", "running")

    def __init__(self) -> None:
        self.written = self.durable = 0  # marks: positions up to which records are in the files, survive a loss of power
        self.waiting: list[Any] = []  # effects whose records are not safe yet, in order
        self._covers = 0  # what the sync under way will make durable
        self._token = 0
        self.running = False
        self.due = False  # a sync is wanted, even if no effect waits for it

    def wrote(self, position: int, matters: bool) -> None:
        """Everything up to there was written. Unless it `matters`, no effect can wait for what is new: what was durable
        still is as far as anybody asks."""
        if not matters and self.durable == self.written:
            self.durable = position
        self.written = position

    def all_durable(self) -> None:
        self.durable = self._covers = self.written

    def release_written(self) -> list[Any]:
        """The effects whose records are written."""
        return self._release(self.written)

    def release_durable(self) -> list[Any]:
        """The effects whose records survive a loss of power."""
        return self._release(self.durable)

    def _release(self, mark: int) -> list[Any]:
        waiting = self.waiting
        if not waiting or waiting[0].position > mark:
            return []
        if waiting[-1].position <= mark:
            self.waiting = []
            return waiting
        low, high = 0, len(waiting)  # the first that must wait; positions never fall
        while low < high:
            middle = (low + high) // 2
            if waiting[middle].position <= mark:
                low = middle + 1
            else:
                high = middle
        self.waiting = waiting[low:]
        return waiting[:low]

    def begin_sync(self) -> int | None:
        """The token of a sync to start, None if none is needed or one is under way."""
        if self.running or not self.due and (not self.waiting or self.durable == self.written):
            return None
        self._token += 1
        self.running, self.due = True, False
        self._covers = self.written
        return self._token

    @property
    def newest(self) -> int:
        """Position of the newest record that an effect waits for; 0 = none does."""
        return int(self.waiting[-1].position) if self.waiting else 0

    def is_running(self, token: int) -> bool:
        return self.running and token == self._token

    def end_sync(self, token: int) -> bool:
        """The sync is done; False if it is not the one under way."""
        if not self.is_running(token):
            return False
        self.running = False
        self.durable = max(self.durable, self._covers)
        return True


class Copies(IntEnum):
    """Which other nodes must have a message safe, beside the primary."""

    NONE = 0
    ONE = 1  # whichever
    MAJORITY = 2  # a majority of all nodes, the primary among them
    ALL = 3  # all that are available, and a majority in any case


class Waiter(Protocol):
    """What waits for the cluster to have records of a partition (`queue.root.Uncommitted`)."""

    def committed(self, now: float) -> None:
        """It has more than before."""


class CopyMarks:
    """`marks`: for each of `Copies`, the position up to which so many nodes have the records; `waiters`: who waits for
    more."""

    __slots__ = ("marks", "counted", "pair_commits", "waiters")

    def __init__(self) -> None:
        self.marks = [COMMITTED_ALL] * len(Copies)
        self.counted = False  # a message waits for ONE or ALL
        self.pair_commits = False  # what one other node has, too, is committed: there are no more than three
        self.waiters: dict[Waiter, None] = {}

    @property
    def committed(self) -> int:
        """Up to here the cluster has the records."""
        return self.marks[Copies.MAJORITY]

    @committed.setter
    def committed(self, position: int) -> None:
        self.marks = [COMMITTED_ALL, position, position, position]
