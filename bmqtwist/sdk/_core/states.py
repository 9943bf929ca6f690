"""States and inputs of sessions and queues, and the current state of a session. The transition tables are `session.SESSION`
and `queue_machine.QUEUE`.

`session.py` feeds inputs to `CurrentState`; the other parts of the core read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from types import MethodType
from typing import Any

from bmqtwist.machine import Cell, TransitionLog, check
from bmqtwist.sdk._core.deadlines import Deadlines
from bmqtwist.wire.fast import EventType


class State(Enum):
    """States of a session."""

    IDLE = "idle"  # not started
    WAITING = "waiting"  # between two attempts to connect
    CONNECTING = "connecting"  # an attempt is in progress
    AUTHENTICATING = "authenticating"  # the credential was sent
    NEGOTIATING = "negotiating"  # clientIdentity was sent
    RESTORING = "restoring"  # connected; queues are being reopened, posts wait
    READY = "ready"
    DRAINING = "draining"  # stop was called: waiting for acknowledgements
    DISCONNECTING = "disconnecting"  # disconnect was sent
    STOPPED = "stopped"  # final


class Input(Enum):
    """Inputs of a session. States that ignore a timer input clear the timer."""

    START = "start"
    STOP = "stop"
    CONNECTED = "connected"  # the channel is connected
    FAILED = "failed"  # the attempt failed
    LOST = "lost"  # the channel is closed
    CONTROL = "control"  # events from the broker
    AUTHENTICATION = "authentication"
    PUSH = "push"
    ACK = "ack"
    HEARTBEAT_REQ = "heartbeat request"
    OTHER = "other event"
    RESTORED = "restored"  # the last queue is reopened, or closed instead
    SENT = "sent"  # posts without acknowledgement were written to the channel
    REQUEST = "request"  # of the application: open, configure
    CLOSE = "close"
    POST = "post"
    CONFIRM = "confirm"
    START_DUE = "start due"  # timers; this one: all attempts of the first connection
    ATTEMPT_DUE = "attempt due"
    PAUSE_DUE = "pause due"
    HEARTBEAT_DUE = "heartbeat due"
    REAUTHENTICATE_DUE = "reauthenticate due"
    BATCH_DUE = "batch due"
    EXPIRY_DUE = "expiry due"  # deduplication time of posts without a connection
    DRAIN_DUE = "drain due"
    DISCONNECT_DUE = "disconnect due"

    __hash__ = object.__hash__  # Enum.__hash__ hashes the name at each call


class QueueState(Enum):
    """States of an opened queue."""

    OPEN_PENDING = "open pending"  # open requested without a connection
    OPENING = "opening"  # openQueue is in progress
    CONFIGURING = "configuring"  # second phase: configureStream is in progress
    OPEN = "open"
    REOPEN_PENDING = "reopen pending"  # to be reopened on the next connection
    REOPENING = "reopening"
    RECONFIGURING = "reconfiguring"  # second phase of reopening
    DECONFIGURING = "deconfiguring"  # first phase of closing
    CLOSING = "closing"  # closeQueue is in progress
    CLOSED = "closed"


class QueueInput(Enum):
    """Inputs of a queue, from the application, the broker's answers and the session."""

    CONNECTED = "connected"  # the session is connected: send deferred open requests
    GRANTED = "granted"  # the pending request succeeded
    REFUSED = "refused"  # the broker answered it with an error status
    TIMED_OUT = "timed out"  # no answer in time
    LOST = "lost"  # the connection is lost
    CLOSE = "close"  # requested by the application, with a connection
    CLOSE_LOCALLY = "close locally"  # requested by the application, without a connection


Action = Callable[..., Any]
Table = Mapping[State, Mapping[Input, Cell[State]]]
_EVENT_TYPES = 64  # number of values of the type field of an event header
_INPUTS = {EventType.CONTROL: Input.CONTROL, EventType.AUTHENTICATION: Input.AUTHENTICATION,
           EventType.PUSH: Input.PUSH, EventType.ACK: Input.ACK, EventType.HEARTBEAT_REQ: Input.HEARTBEAT_REQ}


def ignore(*_: object) -> None:
    """Do nothing."""


def _bind_action(action: Action, parts: tuple[object, ...]) -> Action:
    """Bind an action to the part whose class defines it."""
    owner = next((part for part in parts if vars(type(part)).get(action.__name__) is action), None)
    return action if owner is None else MethodType(action, owner)


class CurrentState:
    """Current state with its row of the transition table. `by_type`, `post` and `confirm`: actions of frequent inputs; those
    that cannot change the state are called without `feed`. `history`: transition history."""

    __slots__ = ("_cause", "_deadlines", "_rows", "_table", "by_type", "confirm", "history", "post", "row", "state")

    row: dict[Input, Action]
    by_type: list[Action]  # by the event type of the header
    post: Action
    confirm: Action

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self.history: TransitionLog = TransitionLog()
        self.state: State = State.IDLE
        self._cause = Input.START

    def bind(self, table: Table, *parts: object) -> None:
        """Set the table; its actions are methods of these parts."""
        self._table = table
        self._rows = {state: {event: _bind_action(cell.action, parts) for event, cell in cells.items()}
                      for state, cells in table.items()}
        self._select_row()

    def enter(self, state: State, why: str = "") -> None:
        """Enter a state; clear the timers that it ignores."""
        self.history.record(self._deadlines.now, self.state.value, state.value, why or self._cause.value, self._cause.value)
        self.state = state
        self._select_row()
        for event, action in self.row.items():
            if action is ignore:
                self._deadlines.clear(event)

    def _select_row(self) -> None:
        cells = self._table[self.state]
        self.row = row = self._rows[self.state]
        by_type = [row[Input.OTHER]] * _EVENT_TYPES
        for kind, event in _INPUTS.items():
            by_type[kind] = partial(self.feed, event) if cells[event].after else row[event]
        self.by_type = by_type
        self.post, self.confirm = row[Input.POST], row[Input.CONFIRM]

    def feed(self, event: Input, *arguments: object) -> Any:
        """Execute the transition for the state and this input; return the action's result."""
        before, outer, self._cause = self.state, self._cause, event
        try:
            return self.row[event](*arguments)
        finally:
            self._cause = outer
            check(self._table, before, event, self.state)

    @property
    def online(self) -> bool:
        return self.state is State.READY or self.state is State.RESTORING
