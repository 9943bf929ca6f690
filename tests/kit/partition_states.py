"""The states of the writer of a partition as a table: which event leads where.

`storage.partition.Partition` keeps a flag for each reason why it takes no records; a state is a set of such reasons.
tests/table/test_partition_states.py drives a real Partition through every cell, docs/make_pictures.py draws the table.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Why no records are taken; the reasons add up."""

    OPEN = "open"
    DISABLED = "disabled"
    FULL = "full"
    FAILING = "failing"
    DISABLED_FULL = "disabled, full"
    DISABLED_FAILING = "disabled, failing"
    FULL_FAILING = "full, failing"
    DISABLED_FULL_FAILING = "disabled, full, failing"
    CLOSED = "closed until a restart"


class Event(Enum):
    """What happens to a partition."""

    ACTIVATE = "a newer lease"
    DISABLE = "DISABLE command"
    ENABLE = "ENABLE command"
    NO_ROOM = "JOURNAL full, a rollover would not help"
    PURGE = "a whole queue is purged"
    WRITE_FAILS = "a write fails"
    WRITTEN = "a write succeeds"
    SYNC_FAILS = "a sync fails"
    MISTAKE = "an unexpected exception"


def _row(stays: State, **leads: State) -> dict[Event, State]:
    closed = dict.fromkeys((Event.SYNC_FAILS, Event.MISTAKE), State.CLOSED)
    return {**dict.fromkeys(Event, stays), **closed, **{Event[name]: state for name, state in leads.items()}}


TABLE: dict[State, dict[Event, State]] = {
    State.OPEN: _row(State.OPEN, DISABLE=State.DISABLED, NO_ROOM=State.FULL, WRITE_FAILS=State.FAILING),
    State.DISABLED: _row(State.DISABLED, ENABLE=State.OPEN, WRITE_FAILS=State.DISABLED_FAILING),
    State.FULL: _row(State.FULL, DISABLE=State.DISABLED_FULL, PURGE=State.OPEN, WRITE_FAILS=State.FULL_FAILING),
    State.FAILING: _row(State.FAILING, DISABLE=State.DISABLED_FAILING, WRITTEN=State.OPEN),
    State.DISABLED_FULL: _row(State.DISABLED_FULL, ENABLE=State.FULL, WRITE_FAILS=State.DISABLED_FULL_FAILING),
    State.DISABLED_FAILING: _row(State.DISABLED_FAILING, ENABLE=State.FAILING, WRITTEN=State.DISABLED),
    State.FULL_FAILING: _row(State.FULL_FAILING, DISABLE=State.DISABLED_FULL_FAILING, WRITTEN=State.FULL),
    State.DISABLED_FULL_FAILING: _row(State.DISABLED_FULL_FAILING, ENABLE=State.FULL_FAILING,
                                      WRITTEN=State.DISABLED_FULL),
    State.CLOSED: _row(State.CLOSED),
}
