"""Where a session stands and what it does there, and what else its parts share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

from bmqtwist.machine import Cell, TransitionLog, check
from bmqtwist.sdk._core.deadlines import Deadlines
from bmqtwist.sdk._core.outbox import Outbox
from bmqtwist.sdk._core.states import Input, State
from bmqtwist.sdk.counters import LiveCounters
from bmqtwist.sdk.options import SessionOptions
from bmqtwist.wire.fast import EventType

Action = Callable[..., Any]
Table = Mapping[State, Mapping[Input, Cell[State]]]
_EVENT_TYPES = 64  # as many as the header of an event can name
_INPUTS = {EventType.CONTROL: Input.CONTROL, EventType.AUTHENTICATION: Input.AUTHENTICATION,
           EventType.PUSH: Input.PUSH, EventType.ACK: Input.ACK, EventType.HEARTBEAT_REQ: Input.HEARTBEAT_REQ}


def ignore(*_: object) -> None:
    """Nothing to do."""


def _bound(action: Action, parts: tuple[object, ...]) -> Action:
    """The action as a method of the part whose class has it."""
    owner = next((part for part in parts if vars(type(part)).get(action.__name__) is action), None)
    return action if owner is None else MethodType(action, owner)


class SessionState:
    """The state and its row of the table. `by_type`, `post` and `confirm` are the cells for what happens often; cells that
    cannot change the state are called without bookkeeping. `history`: the last transitions."""

    __slots__ = ("_cause", "_deadlines", "_rows", "_table", "by_type", "confirm", "history", "post", "row", "state")

    row: dict[Input, Action]
    by_type: list[Action]  # by the type of an event from the broker
    post: Action
    confirm: Action

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self.history: TransitionLog = TransitionLog()
        self.state: State = State.IDLE
        self._cause = Input.START

    def bind(self, table: Table, *parts: object) -> None:
        """Take the table, whose actions are methods of these parts."""
        self._table = table
        self._rows = {state: {what: _bound(cell.action, parts) for what, cell in cells.items()}
                      for state, cells in table.items()}
        self._take_row()

    def enter(self, state: State, why: str = "") -> None:
        """From now on this is the state; timers that mean nothing there are cleared."""
        self.history.note(self._deadlines.now, self.state.value, state.value, why or self._cause.value, self._cause.value)
        self.state = state
        self._take_row()
        for what, action in self.row.items():
            if action is ignore:
                self._deadlines.clear(what)

    def _take_row(self) -> None:
        cells = self._table[self.state]
        self.row = row = self._rows[self.state]
        by_type = [row[Input.OTHER]] * _EVENT_TYPES
        for kind, what in _INPUTS.items():
            by_type[kind] = partial(self.feed, what) if cells[what].after else row[what]
        self.by_type = by_type
        self.post, self.confirm = row[Input.POST], row[Input.CONFIRM]

    def feed(self, what: Input, *arguments: object) -> Any:
        """Let something happen to the session."""
        before, outer, self._cause = self.state, self._cause, what
        try:
            return self.row[what](*arguments)
        finally:
            self._cause = outer
            check(self._table, before, what, self.state)

    @property
    def online(self) -> bool:
        return self.state is State.READY or self.state is State.RESTORING


@dataclass(frozen=True, slots=True)
class Shared:
    """What every part of one session is given."""

    options: SessionOptions
    state: SessionState
    outbox: Outbox
    deadlines: Deadlines
    counters: LiveCounters
