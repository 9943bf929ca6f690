"""Where a session stands, and what it does there: `states.SESSION` with the methods of the parts in its cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bmqtwist.sdk._core.deadlines import Deadlines
from bmqtwist.sdk._core.states import SESSION, SESSION_TIMERS, TIMERS, Input, State
from bmqtwist.wire.fast import EventType

Action = Callable[..., Any]
_EVENT_TYPES = 64  # as many as the header of an event can name
_INPUTS = {EventType.CONTROL: Input.CONTROL, EventType.AUTHENTICATION: Input.AUTHENTICATION,
           EventType.PUSH: Input.PUSH, EventType.ACK: Input.ACK, EventType.HEARTBEAT_REQ: Input.HEARTBEAT_REQ}


class SessionState:
    """The state and its row of the table. `by_type`, `post` and `confirm` are cells of it that are wanted in a hurry."""

    __slots__ = ("_deadlines", "_rows", "by_type", "confirm", "post", "row", "state")

    state: State
    row: dict[Input, Action]
    by_type: list[Action]  # by the type of an event from the broker
    post: Action
    confirm: Action

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._rows: dict[State, dict[Input, Action]] = {}

    def bind(self, actions: Mapping[str, Action]) -> None:
        """Say what the names in the table stand for, and begin."""
        self._rows = {state: {what: actions[name] for what, name in row.items()} for state, row in SESSION.items()}
        self.enter(State.IDLE)

    def enter(self, state: State) -> None:
        """From now on this is the state; timers that do not belong there are cleared."""
        self.state = state
        self.row = row = self._rows[state]
        by_type = [row[Input.OTHER]] * _EVENT_TYPES
        for kind, what in _INPUTS.items():
            by_type[kind] = row[what]
        self.by_type = by_type
        self.post, self.confirm = row[Input.POST], row[Input.CONFIRM]
        for timer in SESSION_TIMERS - TIMERS[state]:
            self._deadlines.clear(timer)

    def feed(self, what: Input, *arguments: object) -> Any:
        """Let something happen to the session."""
        return self.row[what](*arguments)

    @property
    def online(self) -> bool:
        """Is there a connection on which requests can be made?"""
        return self.state is State.READY or self.state is State.RESTORING
