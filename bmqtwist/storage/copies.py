"""How many nodes must have a message before it counts as stored, and up to which record each number of them has the log."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

COMMITTED_ALL = 1 << 62  # a position that no record reaches: the cluster has whatever this node has


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
