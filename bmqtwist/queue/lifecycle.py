"""Lifecycle of a queue at its primary, from its activation until its deletion or a change of primary.

`RootQueue.step_lifecycle` performs the changes. `member/queue_changes.py` (deletion), `member/retirement.py` (change of
primary) and `RootQueue.disable` (exceptions) cause them. Before its lifecycle begins, `member/activation.py` restores the
queue from its stored records; until then it has no `RootQueue`.
"""

from __future__ import annotations

from enum import Enum

from bmqtwist.machine import TransitionLog, check, table, to


class QueuePhase(Enum):
    """Phase of a queue's lifecycle."""

    SERVING = "accepts and delivers messages"
    DELETING = "its deletion waits for its commit"
    DISABLED = "disabled after repeated exceptions, until a restart"
    DISABLED_DELETING = "disabled, and its deletion waits for its commit"
    RETIRED = "another node is its primary"
    DELETED = "it is unassigned"


class QueueChange(Enum):
    """Event of a queue's lifecycle."""

    DELETION_PROPOSED = "its deletion is proposed"
    DELETION_FAILED = "its deletion is not committed"
    UNASSIGNED = "the metadata no longer contain it"
    MOVED = "its partition has another primary"
    FAILED = "repeated exceptions, or one that may have left its state inconsistent"


def enter(lifecycle: QueueLifecycle, phase: QueuePhase) -> None:
    """Enter the phase that the table names."""
    lifecycle.phase = phase


def ignore(lifecycle: QueueLifecycle, phase: QueuePhase) -> None:
    """Keep the phase: the event has no effect in it."""


_P, _C = QueuePhase, QueueChange
_END = {_C.UNASSIGNED: to(enter, _P.DELETED), _C.MOVED: to(enter, _P.RETIRED)}
TABLE = table(QueuePhase, QueueChange, {
    _P.SERVING: {
        _C.DELETION_PROPOSED: to(enter, _P.DELETING), _C.DELETION_FAILED: to(ignore),
        _C.FAILED: to(enter, _P.DISABLED), **_END},
    _P.DELETING: {
        _C.DELETION_PROPOSED: to(ignore), _C.DELETION_FAILED: to(enter, _P.SERVING),
        _C.FAILED: to(enter, _P.DISABLED_DELETING), **_END},
    _P.DISABLED: {
        _C.DELETION_PROPOSED: to(enter, _P.DISABLED_DELETING), _C.DELETION_FAILED: to(ignore),
        _C.FAILED: to(ignore), **_END},
    _P.DISABLED_DELETING: {
        _C.DELETION_PROPOSED: to(ignore), _C.DELETION_FAILED: to(enter, _P.DISABLED),
        _C.FAILED: to(ignore), **_END},
    _P.RETIRED: {change: to(ignore) for change in QueueChange},
    _P.DELETED: {change: to(ignore) for change in QueueChange},
})


class QueueLifecycle:
    """Lifecycle of one queue with its transition history."""

    def __init__(self) -> None:
        self.phase = QueuePhase.SERVING
        self.transitions = TransitionLog()

    @property
    def is_deleting(self) -> bool:
        """True while the deletion is proposed and not committed."""
        return self.phase in (QueuePhase.DELETING, QueuePhase.DISABLED_DELETING)

    @property
    def has_ended(self) -> bool:
        """True if the queue is deleted or has another primary."""
        return self.phase in (QueuePhase.RETIRED, QueuePhase.DELETED)

    def step(self, change: QueueChange, now: float, cause: str) -> None:
        """Process an event at `now`, monotonic seconds."""
        before, cell = self.phase, TABLE[self.phase][change]
        cell.action(self, *(cell.after or (before,)))
        check(TABLE, before, change, self.phase)
        if self.phase is not before:
            self.transitions.record(now, before.name, self.phase.name, cause, change.name)
