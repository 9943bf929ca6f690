"""Connection state machine: states and events of sessions, and the transition table of a session kind.

Each kind (`link/negotiation.py`, `client.py`, `admin.py`, `peer.py`) has a table (`bmqtwist/machine.py`): for each state and
event type the action, a method of the kind, and the states it may lead to. An action may continue in steps and change the
state in a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from bmqtwist import machine
from bmqtwist.machine import Cell, IllegalTransition, table, to
from bmqtwist.steps import Steps
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.frames import DROPPED

EVENT_TYPES = 64  # six bits
Handler = Callable[[Any, int, bytes, int, int, int], Steps[None] | None]  # kind, event, buffer, specific byte, start, end


class State(Enum):
    """State of a session."""

    NEGOTIATING = "negotiating"  # incoming: authenticationRequest or clientIdentity is expected
    HOLDING = "holding"  # incoming: an authenticator runs, frames are deferred
    PRESENTING = "presenting"  # outgoing: this broker's credential is sent, authenticationResponse is expected
    DIALLING = "dialling"  # outgoing: this broker's identity is sent, brokerResponse is expected
    SERVING = "serving"  # the negotiation is complete
    LEAVING = "leaving"  # the disconnect is answered; further events are ignored
    CLOSED = "closed"  # input is ignored


class SessionEvent(Enum):
    """Events of a session. The value of a frame is its event type."""

    CONTROL = EventType.CONTROL.value
    PUT = EventType.PUT.value
    CONFIRM = EventType.CONFIRM.value
    PUSH = EventType.PUSH.value
    ACK = EventType.ACK.value
    CLUSTER_STATE = EventType.CLUSTER_STATE.value
    ELECTOR = EventType.ELECTOR.value
    STORAGE = EventType.STORAGE.value
    RECOVERY = EventType.RECOVERY.value
    PARTITION_SYNC = EventType.PARTITION_SYNC.value
    HEARTBEAT_REQ = EventType.HEARTBEAT_REQ.value
    HEARTBEAT_RSP = EventType.HEARTBEAT_RSP.value
    REJECT = EventType.REJECT.value
    REPLICATION_RECEIPT = EventType.REPLICATION_RECEIPT.value
    AUTHENTICATION = EventType.AUTHENTICATION.value
    UNNAMED = EventType.UNDEFINED.value  # every event type without a name
    INVALID = DROPPED  # a frame with an invalid header
    OUTCOME = "the authentication has effects"  # action(kind, effects)
    ENDED = "the connection is closed or lost"  # action(kind, crashed)


def ignore(kind: object, *arguments: object) -> None:
    """Do nothing."""


Row = Mapping[SessionEvent, Cell[State]]
IGNORED: Cell[State] = to(ignore)


def row(default: Cell[State], **cells: Cell[State]) -> Row:
    """Build the row of one state: `cells` by event name, `default` for all other events."""
    return {event: cells.get(event.name, default) for event in SessionEvent}


class Lifecycle:
    """Transition table of one session kind. `rows`: actions by state and event type; the last one is for invalid frames."""

    __slots__ = ("table", "rows")

    def __init__(self, cells: Mapping[State, Row]) -> None:
        self.table = table([*cells, State.CLOSED], SessionEvent, {**cells, State.CLOSED: row(IGNORED)})
        self.rows: dict[State, list[Handler]] = {}
        for state, made in self.table.items():
            handlers = [made[SessionEvent.UNNAMED].action] * EVENT_TYPES
            for kind in EventType:
                handlers[kind] = made[SessionEvent(kind.value)].action
            self.rows[state] = [*handlers, made[SessionEvent.INVALID].action]

    def check(self, before: State, after: State) -> None:
        """Check a transition against the table. Raise IllegalTransition if STRICT."""
        if machine.STRICT and not any(after in cell.after for cell in self.table[before].values()):
            raise IllegalTransition(f"{before.name} --> {after.name}")
