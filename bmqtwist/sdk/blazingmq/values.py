"""Values with the names of the official library: options, messages, acknowledgements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from bmqtwist.sdk import message as sdk_message
from bmqtwist.sdk import options as sdk_options
from bmqtwist.sdk import results
from bmqtwist.sdk.blazingmq.exceptions import Error
from bmqtwist.sdk.blazingmq.properties import from_wire
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.results import Result
from bmqtwist.wire.properties import PropertyType, Value

PropertyValueDict = dict[str, Value]
PropertyTypeDict = dict[str, PropertyType]


class AckStatus(Enum):
    """What became of a post."""

    SUCCESS = Result.SUCCESS.value
    UNKNOWN = Result.UNKNOWN.value
    TIMEOUT = Result.TIMEOUT.value
    NOT_CONNECTED = Result.NOT_CONNECTED.value
    CANCELED = Result.CANCELED.value
    NOT_SUPPORTED = Result.NOT_SUPPORTED.value
    REFUSED = Result.REFUSED.value
    INVALID_ARGUMENT = Result.INVALID_ARGUMENT.value
    NOT_READY = Result.NOT_READY.value
    LIMIT_BYTES = Result.LIMIT_BYTES.value
    LIMIT_MESSAGES = Result.LIMIT_MESSAGES.value
    STORAGE_FAILURE = Result.STORAGE_FAILURE.value
    UNRECOGNIZED = "UNRECOGNIZED"

    def __repr__(self) -> str:
        return f"<AckStatus.{self.name}>"


class CompressionAlgorithmType(Enum):
    """How posts are compressed."""

    NONE = "none"
    ZLIB = "zlib"

    def __repr__(self) -> str:
        return f"<CompressionAlgorithmType.{self.name}>"


class Ack:
    """The outcome of a post: `guid`, `status`, `queue_uri`. Never made by applications."""

    guid: bytes | None
    queue_uri: str
    status: AckStatus
    _status_description: str

    def __init__(self) -> None:
        raise Error("The Ack class does not have a public constructor.")

    def __repr__(self) -> str:
        guid = "" if self.guid is None else f"[{self.guid.hex().upper()}]"
        return f"<Ack{guid} {self._status_description} for {self.queue_uri}>"


def make_ack(ack: results.Ack) -> Ack:
    """What a callback is given."""
    made = Ack.__new__(Ack)
    made.guid, made.queue_uri, made._status_description = ack.guid, ack.uri, ack.status.value
    try:
        made.status = AckStatus(ack.status.value)
    except ValueError:
        made.status = AckStatus.UNRECOGNIZED
    return made


class Message:
    """A message: `data`, `guid`, `queue_uri`, `properties`, `property_types`. Never made by applications."""

    data: bytes
    guid: bytes
    queue_uri: str
    properties: dict[str, Value]
    property_types: dict[str, PropertyType]
    _message: sdk_message.Message

    def __init__(self) -> None:
        raise Error("The Message class does not have a public constructor.")

    def __repr__(self) -> str:
        return f"<Message[{self.guid.hex().upper()}] for {self.queue_uri}>"


def make_message(message: sdk_message.Message) -> Message:
    """What a callback is given; PeerError if it cannot be read."""
    made = Message.__new__(Message)
    made._message = message
    made.data, made.guid, made.queue_uri = message.payload, message.guid, message.uri
    made.properties, made.property_types = from_wire(message), message.property_types
    return made


class MessageHandle:
    """What can be done with a message. Never made by applications."""

    _message: Message
    _confirm: Callable[[Message], None]

    def __init__(self) -> None:
        raise Error("The MessageHandle class does not have a public constructor.")

    def confirm(self) -> None:
        """Done with the message."""
        self._confirm(self._message)

    def __repr__(self) -> str:
        return f"<MessageHandle[{self._message.guid.hex().upper()}] for {self._message.queue_uri}>"


def make_handle(message: Message, confirm: Callable[[Message], None]) -> MessageHandle:
    """What a callback is given."""
    made = MessageHandle.__new__(MessageHandle)
    made._message, made._confirm = message, confirm
    return made


class _Record:
    """A few members, compared and printed by them; None = not given."""

    def __repr__(self) -> str:
        given = ((each.name, getattr(self, each.name)) for each in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given if value is not None)})"


@dataclass(repr=False)
class QueueOptions(_Record):
    """Options of a queue; None = the default when opening, unchanged when configuring."""

    DEFAULT_MAX_UNCONFIRMED_MESSAGES = sdk_options.MAX_UNCONFIRMED_MESSAGES
    DEFAULT_MAX_UNCONFIRMED_BYTES = sdk_options.MAX_UNCONFIRMED_BYTES
    DEFAULT_CONSUMER_PRIORITY = 0
    DEFAULT_SUSPENDS_ON_BAD_HOST_HEALTH = False
    max_unconfirmed_messages: int | None = None
    max_unconfirmed_bytes: int | None = None
    consumer_priority: int | None = None
    suspends_on_bad_host_health: bool | None = None

    def over(self, base: sdk_options.QueueOptions) -> sdk_options.QueueOptions:
        """`base` with what is given here."""
        given: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return sdk_options.QueueOptions(**{name: getattr(base, name) if value is None else value
                                           for name, value in given.items()})


@dataclass(repr=False)
class Timeouts(_Record):
    """Seconds to wait for each kind of request; None = the default."""

    connect_timeout: float | None = None
    disconnect_timeout: float | None = None
    open_queue_timeout: float | None = None
    configure_queue_timeout: float | None = None
    close_queue_timeout: float | None = None


class BasicHealthMonitor:
    """A switch that says whether this host is well; it begins well."""

    def __init__(self) -> None:
        self.monitor: HealthMonitor = HealthMonitor()

    def set_healthy(self) -> None:
        """It is well."""
        self.monitor.set_healthy()

    def set_unhealthy(self) -> None:
        """It is not."""
        self.monitor.set_unhealthy()

    def __repr__(self) -> str:
        return "BasicHealthMonitor()"


@dataclass(repr=False)
class SessionOptions(_Record):
    """Options of a session; None = the default. Threads, buffers and statistics of the official library are accepted
    and mean nothing here."""

    message_compression_algorithm: CompressionAlgorithmType | None = None
    timeouts: Timeouts | None = None
    host_health_monitor: BasicHealthMonitor | None = None
    num_processing_threads: int | None = None
    blob_buffer_size: int | None = None
    channel_high_watermark: int | None = None
    event_queue_watermarks: tuple[int, int] | None = None
    stats_dump_interval: float | None = None
