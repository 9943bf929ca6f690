"""States and inputs of a session and of a queue, and the current state of a session with its row of the table. The tables
are `session.SESSION` and `queue_machine.QUEUE`."""

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
    IDLE = "idle"  # not started
    WAITING = "waiting"  # between two attempts to connect
    CONNECTING = "connecting"  # an attempt is under way
    AUTHENTICATING = "authenticating"  # a credential was shown
    NEGOTIATING = "negotiating"  # clientIdentity was sent
    RESTORING = "restoring"  # connected; queues are being reopened, posts wait
    READY = "ready"
    DRAINING = "draining"  # stop was called: acknowledgements are awaited
    LEAVING = "leaving"  # disconnect was sent
    STOPPED = "stopped"  # for good


class Input(Enum):
    """Inputs of a session. A timer runs in the states with an action for it; other states clear it."""

    START = "start"
    STOP = "stop"
    CONNECTED = "connected"  # the channel of the attempt is up
    FAILED = "failed"  # it did not come up
    LOST = "lost"  # it is gone
    CONTROL = "control"  # events from the broker
    AUTHENTICATION = "authentication"
    PUSH = "push"
    ACK = "ack"
    HEARTBEAT_REQ = "heartbeat request"
    OTHER = "other event"
    RESTORED = "restored"  # the last queue is reopened, or given up
    SENT = "sent"  # posts that want no acknowledgement are with the channel
    REQUEST = "request"  # the application: open, configure
    CLOSE = "close"
    POST = "post"
    CONFIRM = "confirm"
    START_DUE = "start due"  # timers: the first connection, all attempts together
    ATTEMPT_DUE = "attempt due"
    PAUSE_DUE = "pause due"
    HEARTBEAT_DUE = "heartbeat due"
    REAUTHENTICATE_DUE = "reauthenticate due"
    BATCH_DUE = "batch due"
    EXPIRY_DUE = "expiry due"  # of posts that wait for a connection
    DRAIN_DUE = "drain due"
    LEAVE_DUE = "leave due"

    __hash__ = object.__hash__  # Enum's hashes the name each time


class QueueState(Enum):
    OPEN_HELD = "open held"  # asked for; there is no connection
    OPENING = "opening"  # openQueue is under way
    CONFIGURING = "configuring"  # its second phase: configureStream is under way
    OPEN = "open"
    REOPEN_HELD = "reopen held"  # open, but for the lost connection
    REOPENING = "reopening"
    RECONFIGURING = "reconfiguring"  # the second phase of reopening
    DECONFIGURING = "deconfiguring"  # the first phase of closing
    CLOSING = "closing"  # closeQueue is under way
    CLOSED = "closed"


class QueueInput(Enum):
    CONNECTED = "connected"  # the session is up: send what was held
    GRANTED = "granted"  # the request under way succeeded
    REFUSED = "refused"  # it was answered with a status
    TIMED_OUT = "timed out"  # it was not answered in time
    LOST = "lost"  # the connection is gone
    CLOSE = "close"  # the application, with a connection
    CLOSE_LOCALLY = "close locally"  # the application, without one


Action = Callable[..., Any]
Table = Mapping[State, Mapping[Input, Cell[State]]]
_EVENT_TYPES = 64  # as many as the header of an event can name
_INPUTS = {EventType.CONTROL: Input.CONTROL, EventType.AUTHENTICATION: Input.AUTHENTICATION,
           EventType.PUSH: Input.PUSH, EventType.ACK: Input.ACK, EventType.HEARTBEAT_REQ: Input.HEARTBEAT_REQ}


def ignore(*_: object) -> None:
    """Nothing to do."""


def _bound(action: Action, parts: tuple[object, ...]) -> Action:
    """Bind an action to the part whose class has it."""
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
        """Enter a state; clear the timers that it ignores."""
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
        before, outer, self._cause = self.state, self._cause, what
        try:
            return self.row[what](*arguments)
        finally:
            self._cause = outer
            check(self._table, before, what, self.state)

    @property
    def online(self) -> bool:
        return self.state is State.READY or self.state is State.RESTORING
