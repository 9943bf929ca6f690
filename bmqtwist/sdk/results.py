"""How things ended, in one vocabulary: results, the error that carries one, acknowledgements and session events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from bmqtwist.errors import AckStatus, BmqError, Category
from bmqtwist.sdk._core.queue import Queue


class Result(StrEnum):
    """Outcome of a request, a post or a connection."""

    SUCCESS = "SUCCESS"  # done; of a post: the broker has it
    UNKNOWN = "UNKNOWN"  # nobody can say, or the broker gave no reason; of an open: no such domain
    TIMEOUT = "TIMEOUT"  # no answer in time
    NOT_CONNECTED = "NOT_CONNECTED"  # no connection, or the session is stopped
    CANCELED = "CANCELED"  # the session was stopped before the answer came
    NOT_SUPPORTED = "NOT_SUPPORTED"  # the broker is too old for that
    REFUSED = "REFUSED"  # the broker does not want it: no right, a wrong password, too many of them
    INVALID_ARGUMENT = "INVALID_ARGUMENT"  # the broker, or this library, can make no sense of it
    NOT_READY = "NOT_READY"  # the broker cannot do it now
    LIMIT_MESSAGES = "LIMIT_MESSAGES"  # the queue or the domain holds as many messages as it may
    LIMIT_BYTES = "LIMIT_BYTES"  # or as many bytes
    STORAGE_FAILURE = "STORAGE_FAILURE"  # the broker could not write
    BW_LIMIT = "BW_LIMIT"  # no room for a post, and none came in time
    ALREADY_OPENED = "ALREADY_OPENED"  # this session has the queue open
    ALREADY_IN_PROGRESS = "ALREADY_IN_PROGRESS"  # a request like this is under way, or the session was started before
    INVALID_QUEUE = "INVALID_QUEUE"  # not open, or not open for that
    QUEUE_SUSPENDED = "QUEUE_SUSPENDED"  # no posts while the host is unhealthy
    PAYLOAD_EMPTY = "PAYLOAD_EMPTY"  # a message has at least one byte
    PAYLOAD_TOO_BIG = "PAYLOAD_TOO_BIG"  # more than 64 MiB with its properties


_STATUSES = {int(each): Result[each.name] for each in AckStatus}
ACK_RESULTS: tuple[Result, ...] = tuple(_STATUSES.get(status, Result.UNKNOWN) for status in range(16))


def result_of(category: Category) -> Result:
    """The result with the name of a broker's status."""
    return Result[category.name.removeprefix("E_")]


class SdkError(BmqError):
    """A request, a post or a confirmation that did not succeed: `result` for programs, the text for people."""

    result: Result
    message: str

    def __init__(self, result: Result, message: str = "") -> None:
        super().__init__(f"{result.value}: {message}" if message else result.value)
        self.result, self.message = result, message


@dataclass(eq=False, slots=True, repr=False)
class Ack:
    """What became of one post: `status`, a Result; `guid`, the 16 bytes that name the message; `queue`, where it was
    posted; `correlation`, what was given with it."""

    queue: Queue
    guid: bytes
    status: Result
    correlation: object
    token: object

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

    CONNECTED = 1  # the first connection is up
    DISCONNECTED = 2  # the session has ended; nothing comes after this
    CONNECTION_LOST = 3  # another connection is being tried for
    RECONNECTED = 4  # there is one; queues are being reopened
    STATE_RESTORED = 5  # all queues are reopened, posts that were kept are sent again
    CONNECTION_TIMEOUT = 6  # no first connection in time: the session has ended
    QUEUE_REOPEN_RESULT = 8  # with `queue`; a `result` other than SUCCESS means that it is closed now
    SLOWCONSUMER_NORMAL = 10  # the application has caught up
    SLOWCONSUMER_HIGHWATERMARK = 11  # many messages wait for the application
    HOST_UNHEALTHY = 13  # the health monitor says so
    HOST_HEALTH_RESTORED = 14  # healthy, and all suspended queues are resumed
    QUEUE_SUSPENDED = 15  # with `queue`; neither deliveries nor posts
    QUEUE_RESUMED = 16  # with `queue`
    CHANNEL_LOW_WATERMARK = 17  # posts go on
    CHANNEL_HIGH_WATERMARK = 18  # too much waits for the socket: posts wait
    ERROR = -1  # what `message` says; the session goes on


@dataclass(eq=False, slots=True, repr=False)
class SessionEvent:
    """One thing that happened: `kind`; `result` and `message`, for requests; `queue`, None unless it concerns one."""

    kind: EventKind
    result: Result = Result.SUCCESS
    message: str = ""
    queue: Queue | None = None

    @property
    def uri(self) -> str:
        """URI of the queue it concerns, or nothing."""
        return self.queue.uri if self.queue else ""

    def __repr__(self) -> str:
        parts = [self.kind.name, self.uri, "" if self.result is Result.SUCCESS else self.result.value, self.message]
        return f"<SessionEvent {' '.join(part for part in parts if part)}>"


class PostRefused(SdkError):
    """A post that the broker has not taken into its care: `status` says why, `guid` names the message, `ack` is the whole
    acknowledgement. With UNKNOWN nobody can say: the message may have arrived."""

    ack: Ack

    def __init__(self, ack: Ack, message: str = "") -> None:
        super().__init__(ack.status, message or f"the post {ack.guid.hex().upper()} to {ack.uri} was not accepted")
        self.ack = ack

    @property
    def status(self) -> Result:
        """Why."""
        return self.ack.status

    @property
    def guid(self) -> bytes:
        """The 16 bytes that name the message."""
        return self.ack.guid

    @property
    def ok(self) -> bool:
        """No: as of an acknowledgement, for those who look through a list of both."""
        return False


class PostsFailed(PostRefused):
    """Some of many posts were not accepted: `failures` counts them, `acks` holds the first of them."""

    failures: int
    acks: list[Ack]

    def __init__(self, failures: int, acks: list[Ack]) -> None:
        super().__init__(acks[0], f"{failures} post(s) failed, the first of them {acks[0].guid.hex().upper()} to "
                                  f"{acks[0].uri}")
        self.failures, self.acks = failures, acks
