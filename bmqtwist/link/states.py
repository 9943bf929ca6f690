"""Connection lifecycle: the states of a connection, and what it receives in them.

Each kind of session (`link/negotiation.py`, `client.py`, `admin.py`, `peer.py`) has a table (`bmqtwist/machine.py`) of the
states it can be in: for each type of event the action, a function of the kind, and the states it may lead to. An action may
go on in steps; its state changes come then.
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
    """What a connection is doing."""

    NEGOTIATING = "negotiating"  # nothing but authentication and clientIdentity is understood
    HOLDING = "holding"  # a credential is being looked at: frames wait for the outcome
    PRESENTING = "presenting"  # we have shown another broker our credential: its authenticationResponse is awaited
    DIALLING = "dialling"  # we have introduced ourselves to another broker: its brokerResponse is awaited
    SERVING = "serving"  # what it is there for
    LEAVING = "leaving"  # disconnect was answered; whatever still comes is ignored
    CLOSED = "closed"  # nothing is read any more


class SessionEvent(Enum):
    """What happens to a connection. The value of a frame is its event type."""

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
    INVALID = DROPPED  # a frame whose header makes no sense
    OUTCOME = "the authentication has effects"  # action(kind, effects)
    ENDED = "the connection is closed or lost"  # action(kind, crashed)


def ignore(kind: object, *arguments: object) -> None:
    """Nothing to do."""


Row = Mapping[SessionEvent, Cell[State]]
IGNORED: Cell[State] = to(ignore)


def row(default: Cell[State], **cells: Cell[State]) -> Row:
    """The cells of one state: `default`, unless named."""
    return {event: cells.get(event.name, default) for event in SessionEvent}


class Lifecycle:
    """The table of one kind of session. `rows`: its actions by state and event type; the last one is of invalid frames."""

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
        """Compare a transition with the row of the state before; raises IllegalTransition when STRICT."""
        if machine.STRICT and not any(after in cell.after for cell in self.table[before].values()):
            raise IllegalTransition(f"{before.name} --> {after.name}")
