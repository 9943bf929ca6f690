"""How things ended, in one vocabulary: results, the error that carries one, acknowledgements and session events."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from bmqtwist.errors import AckStatus, BmqError, Category

if TYPE_CHECKING:
    from bmqtwist.sdk.queues import Queue


class Result(str, Enum):
    """Outcome of a request, a post or a connection."""

    SUCCESS = "SUCCESS"
    UNKNOWN = "UNKNOWN"
    TIMEOUT = "TIMEOUT"
    NOT_CONNECTED = "NOT_CONNECTED"
    CANCELED = "CANCELED"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    REFUSED = "REFUSED"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_READY = "NOT_READY"
    LIMIT_MESSAGES = "LIMIT_MESSAGES"
    LIMIT_BYTES = "LIMIT_BYTES"
    STORAGE_FAILURE = "STORAGE_FAILURE"
    BW_LIMIT = "BW_LIMIT"  # no room for a post, and none came in time
    ALREADY_OPENED = "ALREADY_OPENED"
    ALREADY_IN_PROGRESS = "ALREADY_IN_PROGRESS"
    INVALID_QUEUE = "INVALID_QUEUE"  # not open, or not open for that
    QUEUE_SUSPENDED = "QUEUE_SUSPENDED"
    PAYLOAD_EMPTY = "PAYLOAD_EMPTY"
    PAYLOAD_TOO_BIG = "PAYLOAD_TOO_BIG"

    def __str__(self) -> str:
        return self.value


_BY_CATEGORY = {
    Category.E_SUCCESS: Result.SUCCESS, Category.E_UNKNOWN: Result.UNKNOWN, Category.E_TIMEOUT: Result.TIMEOUT,
    Category.E_NOT_CONNECTED: Result.NOT_CONNECTED, Category.E_CANCELED: Result.CANCELED,
    Category.E_NOT_SUPPORTED: Result.NOT_SUPPORTED, Category.E_REFUSED: Result.REFUSED,
    Category.E_INVALID_ARGUMENT: Result.INVALID_ARGUMENT, Category.E_NOT_READY: Result.NOT_READY,
}
_BY_STATUS = {
    AckStatus.SUCCESS: Result.SUCCESS, AckStatus.LIMIT_MESSAGES: Result.LIMIT_MESSAGES,
    AckStatus.LIMIT_BYTES: Result.LIMIT_BYTES, AckStatus.STORAGE_FAILURE: Result.STORAGE_FAILURE,
    AckStatus.NOT_READY: Result.NOT_READY,
}
ACK_RESULTS = tuple(_BY_STATUS.get(status, Result.UNKNOWN) for status in range(16))  # type: ignore[call-overload]


def result_of(category: Category) -> Result:
    """The result that a broker's status stands for."""
    return _BY_CATEGORY[category]


class SdkError(BmqError):
    """A request, a post or a confirmation that did not succeed: `result` for programs, the text for people."""

    def __init__(self, result: Result, message: str = "") -> None:
        super().__init__(f"{result.value}: {message}" if message else result.value)
        self.result, self.message = result, message


class Ack:
    """What became of one post. `correlation` is what was given with it."""

    __slots__ = ("correlation", "guid", "queue", "status", "token")

    def __init__(self, queue: Queue, guid: bytes, status: Result, correlation: object, token: object) -> None:
        self.queue, self.guid, self.status = queue, guid, status
        self.correlation, self.token = correlation, token

    @property
    def ok(self) -> bool:
        """Has the broker taken the message into its care?"""
        return self.status is Result.SUCCESS

    @property
    def uri(self) -> str:
        """The queue's URI."""
        return self.queue.uri

    def __repr__(self) -> str:
        return f"<Ack {self.guid.hex().upper()} {self.status.value} for {self.queue.uri}>"


class EventKind(Enum):
    """What a session has to say on its own; values are those of the other SDKs."""

    CONNECTED = 1
    DISCONNECTED = 2
    CONNECTION_LOST = 3
    RECONNECTED = 4
    STATE_RESTORED = 5
    CONNECTION_TIMEOUT = 6
    QUEUE_REOPEN_RESULT = 8
    SLOWCONSUMER_NORMAL = 10
    SLOWCONSUMER_HIGHWATERMARK = 11
    HOST_UNHEALTHY = 13
    HOST_HEALTH_RESTORED = 14
    QUEUE_SUSPENDED = 15
    QUEUE_RESUMED = 16
    CHANNEL_LOW_WATERMARK = 17
    CHANNEL_HIGH_WATERMARK = 18
    ERROR = -1


class SessionEvent:
    """One thing that happened; `queue` only where it concerns one."""

    __slots__ = ("kind", "message", "queue", "result")

    def __init__(self, kind: EventKind, result: Result = Result.SUCCESS, message: str = "",
                 queue: Queue | None = None) -> None:
        self.kind, self.result, self.message, self.queue = kind, result, message, queue

    @property
    def uri(self) -> str:
        """URI of the queue it concerns, or nothing."""
        return self.queue.uri if self.queue else ""

    def __repr__(self) -> str:
        parts = [self.kind.name, self.uri, "" if self.result is Result.SUCCESS else self.result.value, self.message]
        return f"<SessionEvent {' '.join(part for part in parts if part)}>"


class PostsFailed(SdkError):
    """Some posts of a flush were not accepted: `failures` counts them, `acks` holds the first of them."""

    def __init__(self, failures: int, acks: list[Ack]) -> None:
        super().__init__(acks[0].status if acks else Result.UNKNOWN, f"{failures} post(s) failed")
        self.failures, self.acks = failures, acks
