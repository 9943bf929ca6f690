"""Options, messages, acknowledgements and properties of the official library's interface.

`session.py` converts them to and from the values of `options.py`, `message.py` and `results.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from bmqtwist.sdk import message as sdk_message
from bmqtwist.sdk import options as sdk_options
from bmqtwist.sdk import results
from bmqtwist.sdk.blazingmq.exceptions import Error
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.results import Result
from bmqtwist.wire.properties import PropertyType, Value

_BITS = {PropertyType.SHORT: 16, PropertyType.INT32: 32, PropertyType.INT64: 64}


def _default_type(value: object) -> PropertyType:
    kind = sdk_message.default_type(value)
    if kind is not None:
        return kind
    raise Error(f"Property values of type {type(value).__name__!r} are not supported")


def _name_text(name: object) -> str:
    if isinstance(name, (str, bytes)):
        return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")
    raise TypeError(f"not expecting type '{type(name)}'")


def _to_wire_value(name: str, value: object, kind: PropertyType) -> Value:
    """Convert the value of a property for the core: CHAR to int, STRING to text."""
    expected: type = bytes
    if kind in _BITS:
        expected = int
    elif kind is PropertyType.BOOL:
        expected = bool
    elif kind is PropertyType.STRING and isinstance(value, str):
        return value
    if not isinstance(value, expected):
        raise TypeError(f"'{name}' value is of the incorrect type, '{type(value).__name__}' provided, "
                        f"'{expected.__name__}' expected.")
    if kind is PropertyType.CHAR and isinstance(value, bytes):
        if len(value) != 1:
            raise TypeError(f"'{name}' value does not have exactly 1 byte, {len(value)} bytes provided.")
        return int.from_bytes(value, "big", signed=True)
    if kind is PropertyType.STRING and isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if kind in _BITS and isinstance(value, int):
        end = 1 << _BITS[kind] - 1
        if not -end <= value < end:
            raise ValueError(f"Property {name} value must be between [{-end}, {end - 1}], inclusive")
        return int(value)
    return value  # type: ignore[return-value] # a bool, or bytes


def to_wire(values: Mapping[str, object] | None,
            overrides: Mapping[str, PropertyType] | None) -> tuple[dict[str, object], dict[str, PropertyType]]:
    given: dict[str, object] = {}
    types: dict[str, PropertyType] = {}
    for name, value in (values or {}).items():
        given[_name_text(name)] = value
        types[_name_text(name)] = _default_type(value)
    for name, kind in (overrides or {}).items():
        if _name_text(name) not in types:
            raise Error(f"Received override for non-existent property {name!r}")
        types[_name_text(name)] = kind
    return {name: _to_wire_value(name, value, types[name]) for name, value in given.items()}, types


def from_wire(message: sdk_message.Message) -> dict[str, Value]:
    types = message.property_types
    return {name: value.to_bytes(1, "big", signed=True) if types[name] is PropertyType.CHAR
            and isinstance(value, int) else value for name, value in message.properties.items()}


PropertyValueDict = dict[str, Value]
PropertyTypeDict = dict[str, PropertyType]


class _NotConstructible:
    """Base of values that sessions create; the constructor raises Error."""

    def __init__(self) -> None:
        raise Error(f"The {type(self).__name__} class does not have a public constructor.")


class AckStatus(Enum):
    """Status of an acknowledgement."""

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
    """Compression of posts."""

    NONE = "none"
    ZLIB = "zlib"

    def __repr__(self) -> str:
        return f"<CompressionAlgorithmType.{self.name}>"


class Ack(_NotConstructible):
    """Acknowledgement of a post: `guid`, `status`, `queue_uri`. Not created by applications."""

    guid: bytes | None
    queue_uri: str
    status: AckStatus
    _status_description: str

    def __repr__(self) -> str:
        guid = "" if self.guid is None else f"[{self.guid.hex().upper()}]"
        return f"<Ack{guid} {self._status_description} for {self.queue_uri}>"


def make_ack(ack: results.Ack) -> Ack:
    made = Ack.__new__(Ack)
    made.guid, made.queue_uri, made._status_description = ack.guid, ack.uri, ack.status.value
    try:
        made.status = AckStatus(ack.status.value)
    except ValueError:
        made.status = AckStatus.UNRECOGNIZED
    return made


class Message(_NotConstructible):
    """A message: `data`, `guid`, `queue_uri`, `properties`, `property_types`. Not created by applications."""

    data: bytes
    guid: bytes
    queue_uri: str
    properties: dict[str, Value]
    property_types: dict[str, PropertyType]
    _message: sdk_message.Message

    def __repr__(self) -> str:
        return f"<Message[{self.guid.hex().upper()}] for {self.queue_uri}>"


def make_message(message: sdk_message.Message) -> Message:
    """Return the message for a callback; PeerError if it is malformed."""
    made = Message.__new__(Message)
    made._message = message
    made.data, made.guid, made.queue_uri = message.payload, message.guid, message.uri
    made.properties, made.property_types = from_wire(message), message.property_types
    return made


class MessageHandle(_NotConstructible):
    """Confirms a message. Not created by applications."""

    _message: Message
    _confirm: Callable[[Message], None]

    def confirm(self) -> None:
        """Confirm the message."""
        self._confirm(self._message)

    def __repr__(self) -> str:
        return f"<MessageHandle[{self._message.guid.hex().upper()}] for {self._message.queue_uri}>"


def make_handle(message: Message, confirm: Callable[[Message], None]) -> MessageHandle:
    made = MessageHandle.__new__(MessageHandle)
    made._message, made._confirm = message, confirm
    return made


class _Record:
    """Base of dataclasses whose repr omits members that are None."""

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

    def apply_to(self, base: sdk_options.QueueOptions) -> sdk_options.QueueOptions:
        """Return `base`, with the members replaced that are not None here."""
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
    """Health state of the host, set by the application; initially healthy."""

    def __init__(self) -> None:
        self.monitor: HealthMonitor = HealthMonitor()

    def set_healthy(self) -> None:
        """Set the host healthy."""
        self.monitor.set_healthy()

    def set_unhealthy(self) -> None:
        """Set the host unhealthy."""
        self.monitor.set_unhealthy()

    def __repr__(self) -> str:
        return "BasicHealthMonitor()"


@dataclass(repr=False)
class SessionOptions(_Record):
    """Options of a session; None = the default. Options for threads, buffers and statistics of the official library are
    accepted and ignored."""

    message_compression_algorithm: CompressionAlgorithmType | None = None
    timeouts: Timeouts | None = None
    host_health_monitor: BasicHealthMonitor | None = None
    num_processing_threads: int | None = None
    blob_buffer_size: int | None = None
    channel_high_watermark: int | None = None
    event_queue_watermarks: tuple[int, int] | None = None
    stats_dump_interval: float | None = None
