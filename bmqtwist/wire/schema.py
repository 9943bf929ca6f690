"""Schema types between clients and brokers, with their defaults.

Integers are plain ints, enumerations IntEnums, arrays lists, absent optionals None. `cluster_schema.py` has the types
between brokers.

A type that holds a choice has the attributes `choice` (wire name of the selection, e.g. "openQueue"; "" = unset, also
for unknown selections) and `value` (the selection's dataclass, None if unset).

`link/requests.py` handles the requests of queues, `link/negotiation.py` and `link/authentication.py` the messages
before them; the order of fields is their wire id (`fields.py`).
"""

from enum import IntEnum
from typing import Any, ClassVar

from bmqtwist.errors import Category
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.wire.cluster_schema import ClusterMessage
from bmqtwist.wire.fields import I32, I64, U32, U64, Choice, Chosen, SchemaType, array, record

INVALID_PRIORITY = -(1 << 31)  # consumer priority that says "deconfigure" in configureQueueStream
DEVELOPMENT_VERSION = 999999


class ClientType(IntEnum):
    """Kind of the negotiating process."""

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


class Status(SchemaType):
    """Outcome of a request; `code` is opaque, `message` is for operators."""

    category: Category = Category.E_SUCCESS
    code: I32 = 0
    message: str = ""


# -- negotiation and authentication ------------------------------------------------------------------------------


class GuidInfo(SchemaType):
    """Origin of a client's message GUIDs; an empty client_id = the broker makes the GUIDs."""

    client_id: str = ""
    nano_seconds_from_epoch: I64 = 0


class ClientIdentity(SchemaType):
    """Identity of the sender: a client, an administrator or another broker."""

    protocol_version: I32 = 0
    sdk_version: I32 = DEVELOPMENT_VERSION
    client_type: ClientType = ClientType.E_UNKNOWN
    process_name: str = ""
    pid: I32 = 0
    session_id: I32 = 1
    host_name: str = ""
    features: str = ""
    cluster_name: str = ""
    cluster_node_id: I32 = -1
    sdk_language: SdkLanguage = SdkLanguage.E_CPP
    guid_info: GuidInfo = record(GuidInfo)
    user_agent: str = ""


class BrokerResponse(SchemaType):
    """Answer to ClientIdentity; result category 0 = accepted."""

    result: Status = record(Status)
    protocol_version: I32 = 0
    broker_version: I32 = 0
    is_deprecated_sdk: bool = False
    broker_identity: ClientIdentity = record(ClientIdentity)
    heartbeat_interval_ms: I32 = 3000
    max_missed_heartbeats: I32 = 10


class AuthenticationRequest(SchemaType):
    """A credential; the name of the mechanism is case-insensitive."""

    mechanism: str = ""
    data: bytes | None = None


class AuthenticationResponse(SchemaType):
    """Outcome, and its validity in milliseconds (None = unlimited)."""

    status: Status = record(Status)
    lifetime_ms: U64 | None = None


# -- client requests ---------------------------------------------------------------------------------------------


class SubQueueIdInfo(SchemaType):
    """Substream of a handle: the client's number of an app."""

    sub_id: U32 = 0
    app_id: str = DEFAULT_APP_ID


class QueueHandleParameters(SchemaType):
    """Handle to open or close; flags: 1 ADMIN, 2 READ, 4 WRITE, 8 ACK."""

    uri: str = ""
    q_id: U32 = 0
    sub_id_info: SubQueueIdInfo | None = None
    flags: U64 = 0
    read_count: I32 = 0
    write_count: I32 = 0
    admin_count: I32 = 0


class OpenQueue(SchemaType):
    """Request to open a queue, or to add counts to its handle."""

    handle_parameters: QueueHandleParameters = record(QueueHandleParameters)


class RoutingConfiguration(SchemaType):
    """Flags: 1 AT_MOST_ONCE, 2 DELIVER_CONSUMER_PRIORITY, 4 DELIVER_ALL, 8 HAS_MULTIPLE_SUB_STREAMS."""

    flags: U64 = 0


class OpenQueueResponse(SchemaType):
    """Answer to an OpenQueue: a copy of the request, and the properties of the queue."""

    original_request: OpenQueue = record(OpenQueue)
    routing_configuration: RoutingConfiguration = record(RoutingConfiguration)
    deduplication_time_ms: I32 = 300000


class CloseQueue(SchemaType):
    """Release the counts; is_final = last handle of this client on the URI."""

    handle_parameters: QueueHandleParameters = record(QueueHandleParameters)
    is_final: bool = False


class CloseQueueResponse(SchemaType):
    """Answer to a CloseQueue: the counts are subtracted."""


class Expression(SchemaType):
    """Filter expression of a subscription."""

    version: ExpressionVersion = ExpressionVersion.E_UNDEFINED
    text: str = ""


class ConsumerInfo(SchemaType):
    """Limits of unconfirmed messages and bytes, priority, and number of consumers that share them."""

    max_unconfirmed_messages: I64 = 0
    max_unconfirmed_bytes: I64 = 0
    consumer_priority: I32 = INVALID_PRIORITY
    consumer_priority_count: I32 = 0


class Subscription(SchemaType):
    """Subscription; a PUSH names its s_id."""

    s_id: U32 = 0
    expression: Expression = record(Expression)
    consumers: list[ConsumerInfo] = array()


class StreamParameters(SchemaType):
    """All subscriptions of one app; none = deconfigure."""

    app_id: str = DEFAULT_APP_ID
    subscriptions: list[Subscription] = array()


class ConfigureStream(SchemaType):
    """Replace the subscriptions of a substream."""

    q_id: U32 = 0
    stream_parameters: StreamParameters = record(StreamParameters)


class ConfigureStreamResponse(SchemaType):
    """Answer to a ConfigureStream, with a copy of the request."""

    request: ConfigureStream = record(ConfigureStream)


class QueueStreamParameters(SchemaType):
    """Older form of StreamParameters: one unnamed subscription per substream; INVALID_PRIORITY = deconfigure."""

    sub_id_info: SubQueueIdInfo | None = None
    max_unconfirmed_messages: I64 = 0
    max_unconfirmed_bytes: I64 = 0
    consumer_priority: I32 = INVALID_PRIORITY
    consumer_priority_count: I32 = 0


class ConfigureQueueStream(SchemaType):
    """Older form of ConfigureStream."""

    q_id: U32 = 0
    stream_parameters: QueueStreamParameters = record(QueueStreamParameters)


class ConfigureQueueStreamResponse(SchemaType):
    """Answer to a ConfigureQueueStream, with a copy of the request."""

    request: ConfigureQueueStream = record(ConfigureQueueStream)


class Disconnect(SchemaType):
    """The client is about to disconnect."""


class DisconnectResponse(SchemaType):
    """The last message of a connection."""


class AdminCommand(SchemaType):
    """Command line of an administrator."""

    command: str = ""


class AdminCommandResponse(SchemaType):
    """Text that answers an AdminCommand."""

    text: str = ""


# -- top levels ---------------------------------------------------------------------------------------------------


class NegotiationMessage(Chosen):
    """First message in each direction."""

    CHOICE = Choice(0, (
        (0, "clientIdentity", ClientIdentity),
        (1, "brokerResponse", BrokerResponse),
    ))


class AuthenticationMessage(Chosen):
    """Body of an AUTHENTICATION event."""

    CHOICE = Choice(0, (
        (0, "authenticationRequest", AuthenticationRequest),
        (1, "authenticationResponse", AuthenticationResponse),
    ))


class ControlMessage(SchemaType):
    """Every later message; r_id: equal in a request and its response, None = unsolicited."""

    CHOICE: ClassVar[Choice] = Choice(1, (
        (0, "status", Status),
        (1, "disconnect", Disconnect),
        (2, "disconnectResponse", DisconnectResponse),
        (7, "adminCommand", AdminCommand),
        (8, "adminCommandResponse", AdminCommandResponse),
        (9, "clusterMessage", ClusterMessage),
        (10, "openQueue", OpenQueue),
        (11, "openQueueResponse", OpenQueueResponse),
        (12, "closeQueue", CloseQueue),
        (13, "closeQueueResponse", CloseQueueResponse),
        (14, "configureQueueStream", ConfigureQueueStream),
        (15, "configureQueueStreamResponse", ConfigureQueueStreamResponse),
        (16, "configureStream", ConfigureStream),
        (17, "configureStreamResponse", ConfigureStreamResponse),
    ))
    r_id: I32 | None = None
    choice: str = ""
    value: Any = None
