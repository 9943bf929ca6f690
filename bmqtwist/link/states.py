"""The life of a connection as a table: for every state and every type of event, what is done.

`ANSWERS[state][event type]` names a method of the session. The table is total: every state has a cell for every type a
frame can have (6 bits), and one for frames whose header made no sense (DROPPED).
"""

from __future__ import annotations

from enum import Enum

from bmqtwist.wire.fast import EventType
from bmqtwist.wire.frames import DROPPED

EVENT_TYPES = 64  # six bits


class State(Enum):
    """What a connection is doing."""

    NEGOTIATING = "negotiating"  # nothing but authentication and clientIdentity is understood
    HOLDING = "holding"  # a credential is being looked at: frames wait for the outcome
    SERVING = "serving"  # an application
    ADMINISTERING = "administering"  # an admin session: commands and nothing else
    LEAVING = "leaving"  # disconnect was answered; whatever still comes is ignored
    CLOSED = "closed"  # nothing is read any more


def _row(default: str, **cells: str) -> dict[int, str]:
    row = dict.fromkeys(range(EVENT_TYPES), default)
    row[DROPPED] = "on_invalid_packet" if default == "on_unexpected" else default
    row.update((EventType[name], action) for name, action in cells.items())
    return row


ANSWERS: dict[State, dict[int, str]] = {
    State.NEGOTIATING: _row("on_too_early", CONTROL="on_negotiation", AUTHENTICATION="on_authentication"),
    State.HOLDING: _row("on_held", AUTHENTICATION="on_authentication"),
    State.SERVING: _row("on_unexpected", CONTROL="on_control", PUT="on_puts", CONFIRM="on_confirms",
                        HEARTBEAT_REQ="on_heartbeat", HEARTBEAT_RSP="on_ignored",
                        AUTHENTICATION="on_authentication"),
    State.ADMINISTERING: _row("on_unexpected", CONTROL="on_admin", HEARTBEAT_REQ="on_heartbeat",
                              HEARTBEAT_RSP="on_ignored", AUTHENTICATION="on_authentication"),
    State.LEAVING: _row("on_ignored"),
    State.CLOSED: _row("on_ignored"),
}
