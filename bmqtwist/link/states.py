"""Connection state machine: states and events of connections, and the transition table of a session kind.

Each kind (`link/negotiation.py`, `client.py`, `admin.py`, `peer.py`) has a table (`bmqtwist/machine.py`). For each state and
event type it names the action, a method of the kind, and the states to which the action may lead, possibly in a later step.
`session.negotiated_lifecycle` builds the rows that all kinds share after the negotiation.
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


class ConnectionState(Enum):
    """State of a connection."""

    NEGOTIATING = "negotiating"  # incoming: authenticationRequest or clientIdentity is expected
    AUTHENTICATING = "authenticating"  # incoming: an authenticator runs, frames are deferred
    AWAITING_AUTHENTICATION = "awaiting authentication"  # outgoing: this broker has sent its credential
    AWAITING_RESPONSE = "awaiting response"  # outgoing: this broker has sent its identity, brokerResponse is expected
    SERVING = "serving"  # the negotiation is complete
    DISCONNECTING = "disconnecting"  # the disconnect is answered; further events are ignored
    CLOSED = "closed"  # input is ignored


class ConnectionEvent(Enum):
    """Events of a connection. For a frame, the value is the event type in the header of the frame."""

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
    FRAGMENT = EventType.FRAGMENT.value
    UNNAMED = EventType.UNDEFINED.value  # every event type without a name
    INVALID = DROPPED  # a frame with an invalid header
    OUTCOME = "the authentication has effects"  # action(kind, effects)
    ENDED = "the connection is closed or lost"  # action(kind, crashed)


def ignore(kind: object, *arguments: object) -> None:
    """Do nothing."""


Row = Mapping[ConnectionEvent, Cell[ConnectionState]]
IGNORED: Cell[ConnectionState] = to(ignore)


def row(default: Cell[ConnectionState], **cells: Cell[ConnectionState]) -> Row:
    """Build the row of one state: `cells` by event name, `default` for all other events."""
    return {event: cells.get(event.name, default) for event in ConnectionEvent}


class LifecycleTable:
    """Transition table of one session kind. `rows[state][type]` is the action for an event type, and
    `rows[state][EVENT_TYPES]` the action for invalid frames."""

    __slots__ = ("table", "rows")

    def __init__(self, cells: Mapping[ConnectionState, Row]) -> None:
        rows = {**cells, ConnectionState.CLOSED: row(IGNORED)}
        self.table = table(list(rows), ConnectionEvent, rows)
        self.rows: dict[ConnectionState, list[Handler]] = {}
        for state, made in self.table.items():
            handlers = [made[ConnectionEvent.UNNAMED].action] * EVENT_TYPES
            for kind in EventType:
                handlers[kind] = made[ConnectionEvent(kind.value)].action
            self.rows[state] = [*handlers, made[ConnectionEvent.INVALID].action]

    def check(self, before: ConnectionState, after: ConnectionState) -> None:
        """Check a transition against the table. Raise IllegalTransition if STRICT."""
        if machine.STRICT and not any(after in cell.after for cell in self.table[before].values()):
            raise IllegalTransition(f"{before.name} --> {after.name}")
