"""Queue lifecycle at its primary: from its activation until it is deleted, or another node is its primary.

A queue whose activation is not over has no `RootQueue` yet (`member/activation.py`).
"""

from __future__ import annotations

from enum import Enum

from bmqtwist.machine import TransitionLog, check, table, to


class QueuePhase(Enum):
    """Where a queue is in its lifecycle."""

    SERVING = "takes and delivers messages"
    DELETING = "its deletion waits for its commit"
    DISABLED = "it failed too often: nothing is taken or delivered until a restart"
    DISABLED_DELETING = "both"
    RETIRED = "this node is its primary no longer"
    DELETED = "it is no longer assigned"


class QueueChange(Enum):
    """What happens to it."""

    DELETE = "its deletion is proposed"
    KEEP = "its deletion is not committed"
    UNASSIGNED = "the metadata do not name it any more"
    MOVED = "this node leads its partition no longer"
    FAILED = "it raised too often, or where its state cannot be relied on afterwards"


def enter(lifecycle: QueueLifecycle, phase: QueuePhase) -> None:
    """Go where the cell leads."""
    lifecycle.phase = phase


def ignore(lifecycle: QueueLifecycle, phase: QueuePhase) -> None:
    """It makes no difference any more, or not yet."""


_P, _C = QueuePhase, QueueChange
_END = {_C.UNASSIGNED: to(enter, _P.DELETED), _C.MOVED: to(enter, _P.RETIRED)}
TABLE = table(QueuePhase, QueueChange, {
    _P.SERVING: {_C.DELETE: to(enter, _P.DELETING), _C.KEEP: to(ignore), _C.FAILED: to(enter, _P.DISABLED), **_END},
    _P.DELETING: {_C.DELETE: to(ignore), _C.KEEP: to(enter, _P.SERVING), _C.FAILED: to(enter, _P.DISABLED_DELETING), **_END},
    _P.DISABLED: {_C.DELETE: to(enter, _P.DISABLED_DELETING), _C.KEEP: to(ignore), _C.FAILED: to(ignore), **_END},
    _P.DISABLED_DELETING: {_C.DELETE: to(ignore), _C.KEEP: to(enter, _P.DISABLED), _C.FAILED: to(ignore), **_END},
    _P.RETIRED: {change: to(ignore) for change in QueueChange},
    _P.DELETED: {change: to(ignore) for change in QueueChange},
})


class QueueLifecycle:
    """The lifecycle of one queue, with its history."""

    def __init__(self) -> None:
        self.phase = QueuePhase.SERVING
        self.transitions = TransitionLog()

    @property
    def is_deleting(self) -> bool:
        """Whether its deletion waits for its commit."""
        return self.phase in (QueuePhase.DELETING, QueuePhase.DISABLED_DELETING)

    @property
    def is_over(self) -> bool:
        """Whether this node has the queue no longer."""
        return self.phase in (QueuePhase.RETIRED, QueuePhase.DELETED)

    def feed(self, change: QueueChange, now: float, cause: str) -> None:
        """Something happens to the queue at `now` (seconds, monotonic)."""
        before, cell = self.phase, TABLE[self.phase][change]
        cell.action(self, *(cell.after or (before,)))
        check(TABLE, before, change, self.phase)
        if self.phase is not before:
            self.transitions.note(now, before.name, self.phase.name, cause, change.name)
