"""The life of a connection as tables: for every kind, state and type of event, what is done.

Each kind of session (`link/negotiation.py`, `client.py`, `admin.py`, `peer.py`) has a table of the states it can be in;
`table[state][event type]` names a method of the kind. Rows are total: they have a cell for every type a frame can have
(6 bits), and one for frames whose header made no sense (DROPPED).
"""

from __future__ import annotations

from enum import Enum

from bmqtwist.wire.fast import EventType
from bmqtwist.wire.frames import DROPPED

EVENT_TYPES = 64  # six bits
TYPED = frozenset({"on_held", "on_frame"})  # methods that are told the type of the event, too


class State(Enum):
    """What a connection is doing."""

    NEGOTIATING = "negotiating"  # nothing but authentication and clientIdentity is understood
    HOLDING = "holding"  # a credential is being looked at: frames wait for the outcome
    PRESENTING = "presenting"  # we have shown another broker our credential: its authenticationResponse is awaited
    DIALLING = "dialling"  # we have introduced ourselves to another broker: its brokerResponse is awaited
    SERVING = "serving"  # what it is there for
    LEAVING = "leaving"  # disconnect was answered; whatever still comes is ignored
    CLOSED = "closed"  # nothing is read any more


def row(default: str, **cells: str) -> dict[int, str]:
    """What is done with each type of event: `default`, unless named."""
    made = dict.fromkeys(range(EVENT_TYPES), default)
    made[DROPPED] = "on_invalid_packet" if default == "on_unexpected" else default
    made.update((EventType[name], action) for name, action in cells.items())
    return made


IGNORED = row("on_ignored")  # of every kind when the connection is closed
