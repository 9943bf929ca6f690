"""Results of requests and posts, errors, acknowledgements and session events.

`_core/` creates them, the fronts raise or return them. `_core/requests.py` and `_core/connection.py` convert statuses
of the broker with `result_of`, `_core/posts.py` with ACK_RESULTS. The names equal those of `Category` and `AckStatus`
in `errors.py`: a new status there needs a `Result` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from bmqtwist.errors import AckStatus, BmqError, Category
from bmqtwist.sdk._core.queue import Queue


class Result(StrEnum):
    """Outcome of a request, a post or a connection."""

    SUCCESS = "SUCCESS"  # done; of a post: accepted by the broker
    UNKNOWN = "UNKNOWN"  # outcome unknown, or the broker gave no reason; of an open: no such domain
    TIMEOUT = "TIMEOUT"  # no answer in time
    NOT_CONNECTED = "NOT_CONNECTED"  # no connection, or the session is stopped
    CANCELED = "CANCELED"  # the session was stopped before the answer
    NOT_SUPPORTED = "NOT_SUPPORTED"  # not supported by the broker's version
    REFUSED = "REFUSED"  # by the broker: no permission, wrong password, a limit
    INVALID_ARGUMENT = "INVALID_ARGUMENT"  # invalid for the broker or for this library
    NOT_READY = "NOT_READY"  # temporarily impossible at the broker
    LIMIT_MESSAGES = "LIMIT_MESSAGES"  # the queue or domain contains its maximum number of messages
    LIMIT_BYTES = "LIMIT_BYTES"  # the queue or domain contains its maximum number of bytes
    STORAGE_FAILURE = "STORAGE_FAILURE"  # the broker could not write
    BW_LIMIT = "BW_LIMIT"  # the buffer of the session had no room for a post in time
    ALREADY_OPENED = "ALREADY_OPENED"  # the queue is open in this session
    ALREADY_IN_PROGRESS = "ALREADY_IN_PROGRESS"  # such a request is pending, or the session was started before
    INVALID_QUEUE = "INVALID_QUEUE"  # the queue is not open, or not open for reading or writing
    QUEUE_SUSPENDED = "QUEUE_SUSPENDED"  # no posts while the host is unhealthy
    PAYLOAD_EMPTY = "PAYLOAD_EMPTY"  # a message needs at least one byte
    PAYLOAD_TOO_BIG = "PAYLOAD_TOO_BIG"  # more than 64 MiB with its properties


_STATUSES = {int(each): Result[each.name] for each in AckStatus}
ACK_RESULTS: tuple[Result, ...] = tuple(_STATUSES.get(status, Result.UNKNOWN) for status in range(16))


def result_of(category: Category) -> Result:
    """Return the result with the name of a broker's status."""
    return Result[category.name.removeprefix("E_")]


class SdkError(BmqError):
    """A request, post or confirmation failed: `result` is the reason, `message` a text."""

    result: Result
    message: str

    def __init__(self, result: Result, message: str = "") -> None:
        super().__init__(f"{result.value}: {message}" if message else result.value)
        self.result, self.message = result, message


@dataclass(eq=False, slots=True, repr=False)
class Ack:
    """Acknowledgement of one post: `status`, a Result; `guid`, 16 bytes; `queue`; `correlation`, the object passed with the
    post."""

    queue: Queue
    guid: bytes
    status: Result
    correlation: object
    token: object

    @property
    def ok(self) -> bool:
        """True if the broker accepted the message."""
        return self.status is Result.SUCCESS

    @property
    def uri(self) -> str:
        """URI of the queue."""
        return self.queue.uri

    def __repr__(self) -> str:
        return f"<Ack {self.guid.hex().upper()} {self.status.value} for {self.queue.uri}>"


class EventKind(Enum):
    """Kinds of session events; values are those of the other SDKs."""

    CONNECTED = 1  # first connection
    DISCONNECTED = 2  # the session has ended; the last event
    CONNECTION_LOST = 3  # the session reconnects
    RECONNECTED = 4  # queues are being reopened
    STATE_RESTORED = 5  # all queues are reopened, unacknowledged posts are retransmitted
    CONNECTION_TIMEOUT = 6  # no first connection in time; the session has ended
    QUEUE_REOPEN_RESULT = 8  # with `queue`, which is closed if `result` is not SUCCESS
    SLOWCONSUMER_NORMAL = 10  # `slow_consumer_low` or fewer messages in the inbox
    SLOWCONSUMER_HIGHWATERMARK = 11  # `slow_consumer_high` messages in the inbox
    HOST_UNHEALTHY = 13  # reported by the health monitor
    HOST_HEALTH_RESTORED = 14  # healthy, and all suspended queues are resumed
    QUEUE_SUSPENDED = 15  # with `queue`; no deliveries and no posts
    QUEUE_RESUMED = 16  # with `queue`
    CHANNEL_LOW_WATERMARK = 17  # posts continue
    CHANNEL_HIGH_WATERMARK = 18  # unsent bytes above `channel_high_bytes`: posts wait
    ERROR = -1  # an error that `message` describes; the session continues


@dataclass(eq=False, slots=True, repr=False)
class SessionEvent:
    """An event of a session: `kind`; `result` and `message` of requests; `queue`, None for events of the whole session."""

    kind: EventKind
    result: Result = Result.SUCCESS
    message: str = ""
    queue: Queue | None = None

    @property
    def uri(self) -> str:
        """URI of the queue, or ''."""
        return self.queue.uri if self.queue else ""

    def __repr__(self) -> str:
        parts = [self.kind.name, self.uri, "" if self.result is Result.SUCCESS else self.result.value, self.message]
        return f"<SessionEvent {' '.join(part for part in parts if part)}>"


class PostRefused(SdkError):
    """The broker did not accept a post: `status` is the reason, `guid` identifies the message, `ack` is the acknowledgement.
    With UNKNOWN the outcome is unknown: the message may be stored."""

    ack: Ack

    def __init__(self, ack: Ack, message: str = "") -> None:
        super().__init__(ack.status, message or f"the post {ack.guid.hex().upper()} to {ack.uri} was not accepted")
        self.ack = ack

    @property
    def status(self) -> Result:
        """Reason of the refusal."""
        return self.ack.status

    @property
    def guid(self) -> bytes:
        """GUID of the message, 16 bytes."""
        return self.ack.guid

    @property
    def ok(self) -> bool:
        """False; for lists that contain acknowledgements and refusals."""
        return False


class PostsFailed(PostRefused):
    """Some of several posts were not accepted: `failures` is their number, `acks` their acknowledgements, at most 100."""

    failures: int
    acks: list[Ack]

    def __init__(self, failures: int, acks: list[Ack]) -> None:
        super().__init__(acks[0], f"{failures} post(s) failed, the first of them {acks[0].guid.hex().upper()} to "
                                  f"{acks[0].uri}")
        self.failures, self.acks = failures, acks
