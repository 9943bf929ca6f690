# ruff: noqa: RUF009 - the calls in the class bodies are field declarations of fields.py
"""Schema types that clients and brokers exchange, as data: field ids, types and defaults.

Integers are plain ints, enumerations IntEnums, arrays lists, absent optionals None. What only brokers say to each
other is in `cluster_schema.py`; the top levels, which hold the choices, are in `control.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from bmqtwist.errors import Category
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.wire.fields import (
    array,
    blob,
    boolean,
    enum,
    i32,
    i64,
    optional,
    record,
    text,
    u32,
    u64,
)

INVALID_PRIORITY = -(1 << 31)  # consumer priority that says "deconfigure" in configureQueueStream
DEVELOPMENT_VERSION = 999999


class ClientType(IntEnum):
    """Who negotiates."""

    E_UNKNOWN = 0
    E_TCPCLIENT = 1
    E_TCPBROKER = 2
    E_TCPADMIN = 3


class SdkLanguage(IntEnum):
    """Implementation of the client."""

    E_UNKNOWN = 0
    E_CPP = 1
    E_JAVA = 2


class ExpressionVersion(IntEnum):
    """Dialect of a subscription expression; undefined = no expression."""

    E_UNDEFINED = 0
    E_VERSION_1 = 1


@dataclass(slots=True)
class Status:
    """Outcome of a request; `code` is opaque, `message` is for people."""

    category: Category = enum(0, Category, Category.E_SUCCESS)
    code: int = i32(1)
    message: str = text(2)


# -- negotiation and authentication ------------------------------------------------------------------------------


@dataclass(slots=True)
class GuidInfo:
    """What makes a client's message GUIDs readable; an empty client_id = the broker makes the GUIDs."""

    client_id: str = text(0)
    nano_seconds_from_epoch: int = i64(1)


@dataclass(slots=True)
class ClientIdentity:
    """Who speaks: a client, an administrator or another broker."""

    protocol_version: int = i32(0)
    sdk_version: int = i32(1, DEVELOPMENT_VERSION)
    client_type: ClientType = enum(2, ClientType, ClientType.E_UNKNOWN)
    process_name: str = text(3)
    pid: int = i32(4)
    session_id: int = i32(5, 1)
    host_name: str = text(6)
    features: str = text(7)
    cluster_name: str = text(8)
    cluster_node_id: int = i32(9, -1)
    sdk_language: SdkLanguage = enum(10, SdkLanguage, SdkLanguage.E_CPP)
    guid_info: GuidInfo = record(11, GuidInfo)
    user_agent: str = text(12)


@dataclass(slots=True)
class BrokerResponse:
    """Answer to ClientIdentity; result category 0 = accepted."""

    result: Status = record(0, Status)
    protocol_version: int = i32(1)
    broker_version: int = i32(2)
    is_deprecated_sdk: bool = boolean(3)
    broker_identity: ClientIdentity = record(4, ClientIdentity)
    heartbeat_interval_ms: int = i32(5, 3000)
    max_missed_heartbeats: int = i32(6, 10)


@dataclass(slots=True)
class AuthenticationRequest:
    """A credential; the mechanism's name is compared without case."""

    mechanism: str = text(0)
    data: bytes | None = blob(1, optional=True)


@dataclass(slots=True)
class AuthenticationResponse:
    """Outcome, and for how many milliseconds it holds (None = for ever)."""

    status: Status = record(0, Status)
    lifetime_ms: int | None = u64(1, None)


# -- client requests ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SubQueueIdInfo:
    """One substream of a handle: the client's number for an app."""

    sub_id: int = u32(0)
    app_id: str = text(1, DEFAULT_APP_ID)


@dataclass(slots=True)
class QueueHandleParameters:
    """What is opened or closed; flags: 1 ADMIN, 2 READ, 4 WRITE, 8 ACK."""

    uri: str = text(0)
    q_id: int = u32(1)
    sub_id_info: SubQueueIdInfo | None = optional(2, SubQueueIdInfo)
    flags: int = u64(3)
    read_count: int = i32(4)
    write_count: int = i32(5)
    admin_count: int = i32(6)


@dataclass(slots=True)
class OpenQueue:
    """Open or extend a handle."""

    handle_parameters: QueueHandleParameters = record(0, QueueHandleParameters)


@dataclass(slots=True)
class RoutingConfiguration:
    """Flags: 1 AT_MOST_ONCE, 2 DELIVER_CONSUMER_PRIORITY, 4 DELIVER_ALL, 8 HAS_MULTIPLE_SUB_STREAMS."""

    flags: int = u64(0)


@dataclass(slots=True)
class OpenQueueResponse:
    """The request echoed, and how the queue behaves."""

    original_request: OpenQueue = record(0, OpenQueue)
    routing_configuration: RoutingConfiguration = record(1, RoutingConfiguration)
    deduplication_time_ms: int = i32(2, 300000)


@dataclass(slots=True)
class CloseQueue:
    """Release what the counts say; is_final = last handle of this client on the URI."""

    handle_parameters: QueueHandleParameters = record(0, QueueHandleParameters)
    is_final: bool = boolean(1)


@dataclass(slots=True)
class CloseQueueResponse:
    """Done."""


@dataclass(slots=True)
class Expression:
    """Which messages a subscription wants."""

    version: ExpressionVersion = enum(0, ExpressionVersion, ExpressionVersion.E_UNDEFINED)
    text: str = text(1)


@dataclass(slots=True)
class ConsumerInfo:
    """Credit (messages and bytes outstanding), priority, and how many consumers share it."""

    max_unconfirmed_messages: int = i64(0)
    max_unconfirmed_bytes: int = i64(1)
    consumer_priority: int = i32(2, INVALID_PRIORITY)
    consumer_priority_count: int = i32(3)


@dataclass(slots=True)
class Subscription:
    """One subscription; s_id is what a PUSH names."""

    s_id: int = u32(0)
    expression: Expression = record(1, Expression)
    consumers: list[ConsumerInfo] = array(2, ConsumerInfo)


@dataclass(slots=True)
class StreamParameters:
    """All subscriptions of one app; none = deconfigure."""

    app_id: str = text(0, DEFAULT_APP_ID)
    subscriptions: list[Subscription] = array(1, Subscription)


@dataclass(slots=True)
class ConfigureStream:
    """Replace the subscriptions of a substream."""

    q_id: int = u32(0)
    stream_parameters: StreamParameters = record(1, StreamParameters)


@dataclass(slots=True)
class ConfigureStreamResponse:
    """The request echoed completely."""

    request: ConfigureStream = record(0, ConfigureStream)


@dataclass(slots=True)
class QueueStreamParameters:
    """The older form: one nameless subscription per substream; priority INVALID_PRIORITY = deconfigure."""

    sub_id_info: SubQueueIdInfo | None = optional(0, SubQueueIdInfo)
    max_unconfirmed_messages: int = i64(1)
    max_unconfirmed_bytes: int = i64(2)
    consumer_priority: int = i32(3, INVALID_PRIORITY)
    consumer_priority_count: int = i32(4)


@dataclass(slots=True)
class ConfigureQueueStream:
    """The older form of ConfigureStream."""

    q_id: int = u32(0)
    stream_parameters: QueueStreamParameters = record(1, QueueStreamParameters)


@dataclass(slots=True)
class ConfigureQueueStreamResponse:
    """The request echoed completely."""

    request: ConfigureQueueStream = record(0, ConfigureQueueStream)


@dataclass(slots=True)
class Disconnect:
    """The client is about to leave."""


@dataclass(slots=True)
class DisconnectResponse:
    """The last message of a connection."""


@dataclass(slots=True)
class AdminCommand:
    """A line typed by an administrator."""

    command: str = text(0)


@dataclass(slots=True)
class AdminCommandResponse:
    """The text that answers it."""

    text: str = text(0)
