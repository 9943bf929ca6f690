"""Durability gate of a partition: releases effects in order once their records are written or durable; replication marks.

    effects.append(effect)      hold an effect until the record at `effect.position`, the newest one, is written or durable
    mark_written(position, ..)  the records up to `position` are in the files
    begin_sync ... end_sync     records written before the sync began are durable when it ends
    release_written / _durable  return the effects up to that mark, in the order in which they were added

Positions count the records of this process without gaps. A sync covers the records written before it began; later ones
need the next sync. An effect is any object with an attribute `position`; effects of the hot path derive from `Gated`.

Used by `partition_log.py` (effects) and `partition.py` (replication marks). Durability is configured in
`config/broker.py`, the number of copies in `config/domain.py`. The gates of `cluster/gates.py` are unrelated: they
limit the message types between two members.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol

from bmqtwist.compiled import mypyc_attr

COMMITTED_ALL = 1 << 62  # a position that no record reaches: every record counts as committed


@mypyc_attr(acyclic=True)
class Gated:
    """Effect held by a gate. `position`: position of the record that it needs."""

    __slots__ = ("position",)

    def __init__(self) -> None:
        self.position = 0


class Gate:
    """Effects in order, with the marks up to which records are written and durable."""

    __slots__ = ("written", "durable", "effects", "_covers", "_token", "sync_due", "sync_running")

    def __init__(self) -> None:
        self.written = self.durable = 0  # positions up to which records are in the files, survive a loss of power
        self.effects: list[Any] = []  # effects held, in order of position
        self._covers = 0  # position that the sync in progress will make durable
        self._token = 0
        self.sync_running = False
        self.sync_due = False  # a sync is needed although no effect waits for it

    def mark_written(self, position: int, awaited: bool) -> None:
        """Mark the records up to `position` as written. `awaited` False: no effect depends on the new records, so they also
        count as durable if all earlier ones are."""
        if not awaited and self.durable == self.written:
            self.durable = position
        self.written = position

    def mark_all_durable(self) -> None:
        self.durable = self._covers = self.written

    def release_written(self) -> list[Any]:
        """Return the effects whose records are written."""
        return self._release(self.written)

    def release_durable(self) -> list[Any]:
        """Return the effects whose records are durable."""
        return self._release(self.durable)

    def _release(self, mark: int) -> list[Any]:
        waiting = self.effects
        if not waiting or waiting[0].position > mark:
            return []
        if waiting[-1].position <= mark:
            self.effects = []
            return waiting
        low, high = 0, len(waiting)  # binary search: positions never decrease
        while low < high:
            middle = (low + high) // 2
            if waiting[middle].position <= mark:
                low = middle + 1
            else:
                high = middle
        self.effects = waiting[low:]
        return waiting[:low]

    def begin_sync(self) -> int | None:
        """Return the token of a sync to start; None if none is needed or one is in progress."""
        if self.sync_running or not self.sync_due and (not self.effects or self.durable == self.written):
            return None
        self._token += 1
        self.sync_running, self.sync_due = True, False
        self._covers = self.written
        return self._token

    @property
    def newest_position(self) -> int:
        """Position of the last held effect; 0 if no effect is held."""
        return int(self.effects[-1].position) if self.effects else 0

    def is_current_sync(self, token: int) -> bool:
        return self.sync_running and token == self._token

    def end_sync(self, token: int) -> bool:
        """Mark the records of the sync as durable; False if `token` is not the sync in progress."""
        if not self.is_current_sync(token):
            return False
        self.sync_running = False
        self.durable = max(self.durable, self._covers)
        return True


class Copies(IntEnum):
    """Which replicas must have stored a message, in addition to the primary."""

    NONE = 0
    ONE = 1  # any replica
    MAJORITY = 2  # a majority of the members, the primary included
    ALL = 3  # all available members, and at least a majority


class CommitListener(Protocol):
    """Queue that is notified of commits of its partition (`queue.root.Uncommitted`)."""

    def on_commit(self, now: float) -> None:
        """Handle an increase of a mark."""


class CopyMarks:
    """Marks of replication. `marks`: for each of `Copies`, the position up to which these nodes have the records;
    `listeners`: queues to notify of commits."""

    __slots__ = ("marks", "counts_copies", "pair_commits", "listeners")

    def __init__(self) -> None:
        self.marks = [COMMITTED_ALL] * len(Copies)
        self.counts_copies = False  # a message waits for ONE or ALL
        self.pair_commits = False  # a record stored by one replica is committed: the cluster has at most three members
        self.listeners: dict[CommitListener, None] = {}

    @property
    def committed(self) -> int:
        """Position up to which a majority has stored the records."""
        return self.marks[Copies.MAJORITY]

    @committed.setter
    def committed(self, position: int) -> None:
        self.marks = [COMMITTED_ALL, position, position, position]
