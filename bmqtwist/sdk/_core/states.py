"""The life of a session and of a queue as tables: for every state and every input, what is done.

A cell of SESSION names an action that `session.actions` says the method of, one of QUEUE a method of
`queue_machine.QueueMachine`. Both tables are total, a test says so. `ignore` is a decision like any other.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """What a session is doing."""

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
    """What can happen to a session."""

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
    REQUEST = "request"  # the application: open, configure
    CLOSE = "close"
    POST = "post"
    CONFIRM = "confirm"


def _row(default: str, **cells: str) -> dict[Input, str]:
    row = dict.fromkeys(Input, default)
    row.update((Input[name], action) for name, action in cells.items())
    return row


_DOWN = {"REQUEST": "hold", "CLOSE": "close_locally", "POST": "keep", "CONFIRM": "refuse_confirm"}
_GONE = {"REQUEST": "refuse_request", "CLOSE": "close_locally", "POST": "refuse_post", "CONFIRM": "refuse_confirm"}
_TALKING = {"HEARTBEAT_REQ": "on_heartbeat"}

SESSION: dict[State, dict[Input, str]] = {
    State.IDLE: _row("ignore", **_DOWN, START="begin", STOP="stop_now"),
    State.WAITING: _row("ignore", **_DOWN, START="refuse_start", STOP="stop_now"),
    State.CONNECTING: _row("ignore", **_DOWN, START="refuse_start", STOP="stop_now", CONNECTED="introduce",
                           FAILED="retry"),
    State.AUTHENTICATING: _row("ignore", **_DOWN, **_TALKING, START="refuse_start", STOP="stop_now", LOST="retry",
                               AUTHENTICATION="on_authentication", CONTROL="on_unexpected", PUSH="on_unexpected",
                               ACK="on_unexpected"),
    State.NEGOTIATING: _row("ignore", **_DOWN, **_TALKING, START="refuse_start", STOP="stop_now", LOST="retry",
                            CONTROL="on_negotiation", PUSH="on_unexpected", ACK="on_unexpected"),
    State.RESTORING: _row("ignore", **_TALKING, START="refuse_start", STOP="drain", LOST="reconnect",
                          CONTROL="on_control", AUTHENTICATION="on_reauthentication", PUSH="on_push", ACK="on_ack",
                          REQUEST="transmit", CLOSE="close_remotely", POST="keep", CONFIRM="send_confirm",
                          RESTORED="ready"),
    State.READY: _row("ignore", **_TALKING, START="refuse_start", STOP="drain", LOST="reconnect",
                      CONTROL="on_control", AUTHENTICATION="on_reauthentication", PUSH="on_push", ACK="on_ack",
                      REQUEST="transmit", CLOSE="close_remotely", POST="send_post", CONFIRM="send_confirm"),
    State.DRAINING: _row("ignore", **_TALKING, START="refuse_start", STOP="stop_again", LOST="finish",
                         CONTROL="on_control", AUTHENTICATION="on_reauthentication", ACK="on_ack_draining",
                         REQUEST="refuse_request", CLOSE="close_locally", POST="refuse_post", CONFIRM="send_confirm"),
    State.LEAVING: _row("ignore", **_GONE, **_TALKING, START="refuse_start", STOP="stop_again", LOST="finish",
                        CONTROL="on_control", ACK="on_ack"),
    State.STOPPED: _row("ignore", **_GONE, START="refuse_start", STOP="stop_again"),
}

TIMERS: dict[State, frozenset[str]] = {  # which of the session's timers live on in a state; entering clears others
    State.IDLE: frozenset(),
    State.WAITING: frozenset({"start", "pause", "expiry"}),
    State.CONNECTING: frozenset({"start", "attempt", "expiry"}),
    State.AUTHENTICATING: frozenset({"start", "attempt", "expiry"}),
    State.NEGOTIATING: frozenset({"start", "attempt", "expiry", "reauthenticate"}),
    State.RESTORING: frozenset({"heartbeat", "batch", "expiry", "reauthenticate"}),
    State.READY: frozenset({"heartbeat", "batch", "reauthenticate"}),
    State.DRAINING: frozenset({"heartbeat", "batch", "reauthenticate", "drain"}),
    State.LEAVING: frozenset({"leave"}),
    State.STOPPED: frozenset(),
}
SESSION_TIMERS: frozenset[str] = frozenset().union(*TIMERS.values())


class QueueState(Enum):
    """What is known of a queue."""

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
    """What can happen to a queue."""

    CONNECTED = "connected"  # the session is up: send what was held
    GRANTED = "granted"  # the request under way succeeded
    REFUSED = "refused"  # it was answered with a status
    TIMED_OUT = "timed out"  # it was not answered in time
    LOST = "lost"  # the connection is gone
    CLOSE = "close"  # the application, with a connection
    CLOSE_LOCALLY = "close locally"  # the application, without one


def _queue_row(**cells: str) -> dict[QueueInput, str]:
    row = dict.fromkeys(QueueInput, "ignore")
    row.update((QueueInput[name], action) for name, action in cells.items())
    return row


QUEUE: dict[QueueState, dict[QueueInput, str]] = {
    QueueState.OPEN_HELD: _queue_row(CONNECTED="send_open", TIMED_OUT="fail_open", CLOSE="cancel_open",
                                     CLOSE_LOCALLY="cancel_open"),
    QueueState.OPENING: _queue_row(GRANTED="opened", REFUSED="fail_open", TIMED_OUT="fail_open_and_reset",
                                   LOST="hold_open", CLOSE="close_later", CLOSE_LOCALLY="cancel_open"),
    QueueState.CONFIGURING: _queue_row(GRANTED="open_complete", REFUSED="roll_back_open",
                                       TIMED_OUT="fail_open_and_reset", LOST="hold_open", CLOSE="close_later",
                                       CLOSE_LOCALLY="cancel_open"),
    QueueState.OPEN: _queue_row(LOST="hold_reopen", CLOSE="start_close", CLOSE_LOCALLY="closed"),
    QueueState.REOPEN_HELD: _queue_row(CONNECTED="send_reopen", CLOSE="closed", CLOSE_LOCALLY="closed"),
    QueueState.REOPENING: _queue_row(GRANTED="reopened", REFUSED="fail_reopen", TIMED_OUT="reset", LOST="hold_reopen",
                                     CLOSE="close_later", CLOSE_LOCALLY="closed"),
    QueueState.RECONFIGURING: _queue_row(GRANTED="reopen_complete", REFUSED="roll_back_reopen", TIMED_OUT="reset",
                                         LOST="hold_reopen", CLOSE="close_later", CLOSE_LOCALLY="closed"),
    QueueState.DECONFIGURING: _queue_row(GRANTED="send_close", REFUSED="send_close", TIMED_OUT="fail_close_and_reset",
                                         LOST="closed", CLOSE="refuse_close", CLOSE_LOCALLY="refuse_close"),
    QueueState.CLOSING: _queue_row(GRANTED="closed", REFUSED="close_refused", TIMED_OUT="fail_close_and_reset",
                                   LOST="closed", CLOSE="refuse_close", CLOSE_LOCALLY="refuse_close"),
    QueueState.CLOSED: _queue_row(CLOSE="already_closed", CLOSE_LOCALLY="already_closed"),
}
