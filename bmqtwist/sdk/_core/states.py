"""The states of a session and of a queue, and what can happen to them. What is done then: `session.SESSION`,
`queue_machine.QUEUE`."""

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
    """What can happen to a session. A timer runs in the states that do something when it is due; others clear it."""

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
