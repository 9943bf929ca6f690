"""Availability of a partition: state machine of the reasons why it takes no records.

Reasons are added and removed independently; a closed partition opens again only with a restart. `PartitionLog.on_event`
processes the events. For a new reason, add its states and events here, and its text in `Room.check_available`. Part of
`partition_log.py`; the status of a member in its cluster is in `member/node_status.py`.
"""

from __future__ import annotations

from enum import Enum

from bmqtwist.machine import Cell, TransitionLog, check, table, to


class WriterState(Enum):
    """Set of the present reasons why the partition takes no records."""

    OPEN = "open"
    DISABLED = "disabled"
    FULL = "full"
    FAILING = "failing"
    DISABLED_FULL = "disabled, full"
    DISABLED_FAILING = "disabled, failing"
    FULL_FAILING = "full, failing"
    DISABLED_FULL_FAILING = "disabled, full, failing"
    CLOSED = "closed until a restart"


class WriterEvent(Enum):
    """Events that add or remove reasons."""

    ACTIVATE = "a newer lease"
    FOLLOW = "another node has the lease"
    DISABLE = "DISABLE command"
    ENABLE = "ENABLE command"
    NO_ROOM = "JOURNAL full, a rollover would not help"
    PURGE = "a whole queue is purged"
    WRITE_FAILS = "a write fails"
    WRITTEN = "a write succeeds"
    SYNC_FAILS = "a sync fails"
    EXCEPTION = "an unexpected exception"


class Availability:
    """Availability of one partition's writer."""

    def __init__(self) -> None:
        self.state = WriterState.OPEN
        self.transitions = TransitionLog()  # times are epoch seconds

    def step(self, event: WriterEvent, wall: int, cause: str = "") -> None:
        """Handle an event; `cause` is noted in the transition history."""
        before = self.state
        TABLE[before][event].action(self, event)
        if self.state is not before:
            self.transitions.record(wall, before.value, self.state.value, cause or event.value, event.name)
        check(TABLE, before, event, self.state)

    def _enter(self, event: WriterEvent) -> None:
        self.state, = TABLE[self.state][event].after

    def _stay(self, event: WriterEvent) -> None:
        """Keep the present reasons: the event changes none."""

    def has_reason(self, reason: WriterState) -> bool:
        """Return whether `reason` is one of the present reasons."""
        return reason.value in self.state.value


_OPEN, _DISABLED, _FULL, _FAILING, _CLOSED = (
    WriterState.OPEN, WriterState.DISABLED, WriterState.FULL, WriterState.FAILING, WriterState.CLOSED)
_DISABLED_FULL, _DISABLED_FAILING, _FULL_FAILING, _ALL = (
    WriterState.DISABLED_FULL, WriterState.DISABLED_FAILING, WriterState.FULL_FAILING, WriterState.DISABLED_FULL_FAILING)
Row = dict[WriterEvent, Cell[WriterState]]


def _row(**after: WriterState) -> Row:
    """Build a row from the events that change the state; SYNC_FAILS and EXCEPTION close every state."""
    return dict.fromkeys(WriterEvent, to(Availability._stay)) | {
        event: to(Availability._enter, _CLOSED) for event in (WriterEvent.SYNC_FAILS, WriterEvent.EXCEPTION)} | {
        WriterEvent[name]: to(Availability._enter, state) for name, state in after.items()}


TABLE: dict[WriterState, Row] = table(WriterState, WriterEvent, {
    _OPEN: _row(DISABLE=_DISABLED, NO_ROOM=_FULL, WRITE_FAILS=_FAILING),
    _DISABLED: _row(ENABLE=_OPEN, WRITE_FAILS=_DISABLED_FAILING),
    _FULL: _row(DISABLE=_DISABLED_FULL, PURGE=_OPEN, FOLLOW=_OPEN, WRITE_FAILS=_FULL_FAILING),
    _FAILING: _row(DISABLE=_DISABLED_FAILING, WRITTEN=_OPEN),
    _DISABLED_FULL: _row(ENABLE=_FULL, PURGE=_DISABLED, FOLLOW=_DISABLED, WRITE_FAILS=_ALL),
    _DISABLED_FAILING: _row(ENABLE=_FAILING, WRITTEN=_DISABLED),
    _FULL_FAILING: _row(DISABLE=_ALL, PURGE=_FAILING, FOLLOW=_FAILING, WRITTEN=_FULL),
    _ALL: _row(ENABLE=_FULL_FAILING, PURGE=_DISABLED_FAILING, FOLLOW=_DISABLED_FAILING, WRITTEN=_DISABLED_FULL),
    _CLOSED: _row() | dict.fromkeys((WriterEvent.SYNC_FAILS, WriterEvent.EXCEPTION), to(Availability._stay)),
})
