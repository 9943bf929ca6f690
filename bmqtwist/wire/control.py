"""Control messages: the top-level types, and whole events of them in either encoding.

Which top-level type an event holds is known from its event type and, for CONTROL, from the state of the connection:
the first message each way is a NegotiationMessage, every later one a ControlMessage.

A type that holds a choice has the attributes `choice` (wire name of the selection, e.g. "openQueue"; "" = unset, which
is what an unknown selection decodes to) and `value` (the selection's dataclass, None if unset).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, TypeVar

from bmqtwist.errors import PeerError
from bmqtwist.steps import at_once
from bmqtwist.wire import ber, jsoncodec
from bmqtwist.wire.cluster_schema import (
    ClusterMessage,
    ElectionProposal,
    ElectionResponse,
    ElectorNodeStatus,
    HeartbeatResponse,
    LeaderHeartbeat,
    LeadershipCessionNotification,
    ScoutingRequest,
    ScoutingResponse,
)
from bmqtwist.wire.fast import PAD4, EventType, event_header
from bmqtwist.wire.fields import Choice, i32, u64
from bmqtwist.wire.schema import (
    AdminCommand,
    AdminCommandResponse,
    AuthenticationRequest,
    AuthenticationResponse,
    BrokerResponse,
    ClientIdentity,
    CloseQueue,
    CloseQueueResponse,
    ConfigureQueueStream,
    ConfigureQueueStreamResponse,
    ConfigureStream,
    ConfigureStreamResponse,
    Disconnect,
    DisconnectResponse,
    OpenQueue,
    OpenQueueResponse,
    Status,
)

__all__ = [
    "AuthenticationMessage", "ClusterMessage", "ControlMessage", "ElectorMessage", "Encoding", "NegotiationMessage",
    "decode_authentication", "decode_control", "decode_control_slowly", "decode_elector", "decode_negotiation",
    "encode_body", "encode_event", "encoding_of",
]


class Encoding(IntEnum):
    """How a schema message is written; the top three bits of an event's type-specific byte."""

    BER = 0
    JSON = 1


@dataclass(slots=True)
class NegotiationMessage:
    """The first message each way."""

    CHOICE: ClassVar[Choice] = Choice(0, (
        (0, "clientIdentity", ClientIdentity),
        (1, "brokerResponse", BrokerResponse),
    ))
    choice: str = ""
    value: Any = None


@dataclass(slots=True)
class AuthenticationMessage:
    """Body of an AUTHENTICATION event."""

    CHOICE: ClassVar[Choice] = Choice(0, (
        (0, "authenticationRequest", AuthenticationRequest),
        (1, "authenticationResponse", AuthenticationResponse),
    ))
    choice: str = ""
    value: Any = None


@dataclass(slots=True)
class ControlMessage:
    """Every later message: r_id joins a request and its answer, None = unsolicited."""

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
    r_id: int | None = i32(0, None)
    choice: str = ""
    value: Any = None


@dataclass(slots=True)
class ElectorMessage:
    """Body of an ELECTOR event; always BER."""

    CHOICE: ClassVar[Choice] = Choice(1, (
        (0, "electionProposal", ElectionProposal),
        (1, "electionResponse", ElectionResponse),
        (2, "leaderHeartbeat", LeaderHeartbeat),
        (3, "electorNodeStatus", ElectorNodeStatus),
        (4, "heartbeatResponse", HeartbeatResponse),
        (5, "scoutingRequest", ScoutingRequest),
        (6, "scoutingResponse", ScoutingResponse),
        (7, "leadershipCessionNotification", LeadershipCessionNotification),
    ))
    term: int = u64(0)
    choice: str = ""
    value: Any = None


_M = TypeVar("_M")


def encoding_of(type_specific: int) -> Encoding:
    """The encoding that an event header declares, or PeerError if it is none we know."""
    value = type_specific >> 5
    if value > Encoding.JSON:
        raise PeerError(f"unknown encoding {value}", "TypeSpecific", 6)
    return Encoding(value)


def decode_control(body: bytes, encoding: int, values_max: int = 0) -> ControlMessage:
    """A ControlMessage from the body of a CONTROL event, padding included; PeerError if it is not one."""
    return _decode(ControlMessage, body, encoding, values_max)


def decode_control_slowly(body: bytes, encoding: int, values_max: int = 0) -> Generator[None, None, ControlMessage]:
    """The same with pauses, for a message that may take long to read."""
    return _decode_slowly(ControlMessage, body, encoding, values_max)


def decode_negotiation(body: bytes, encoding: int, values_max: int = 0) -> NegotiationMessage:
    """A NegotiationMessage from the body of a CONTROL event, padding included; PeerError if it is not one."""
    return _decode(NegotiationMessage, body, encoding, values_max)


def decode_authentication(body: bytes, encoding: int, values_max: int = 0) -> AuthenticationMessage:
    """An AuthenticationMessage from the body of an AUTHENTICATION event, padding included."""
    return _decode(AuthenticationMessage, body, encoding, values_max)


def decode_elector(body: bytes) -> ElectorMessage:
    """An ElectorMessage from the body of an ELECTOR event, padding included."""
    return _decode(ElectorMessage, body, Encoding.BER)


def _decode(cls: type[_M], body: bytes, encoding: int, values_max: int = 0) -> _M:
    return at_once(_decode_slowly(cls, body, encoding, values_max))


def _decode_slowly(cls: type[_M], body: bytes, encoding: int, values_max: int) -> Generator[None, None, _M]:
    return (ber.decode_slowly(cls, body, values_max=values_max) if encoding == Encoding.BER
            else jsoncodec.decode_slowly(cls, body, values_max))


TopLevel = ControlMessage | NegotiationMessage | AuthenticationMessage | ElectorMessage

_EVENT_TYPES = {
    ControlMessage: EventType.CONTROL,
    NegotiationMessage: EventType.CONTROL,
    AuthenticationMessage: EventType.AUTHENTICATION,
    ElectorMessage: EventType.ELECTOR,
}


def encode_body(message: TopLevel | ClusterMessage, encoding: int) -> bytes:
    """The message and its word padding, without an event header."""
    raw = ber.encode(message) if encoding == Encoding.BER else jsoncodec.encode(message)
    return raw + PAD4[len(raw) & 3]


def encode_event(message: TopLevel, encoding: int = Encoding.BER) -> bytes:
    """The message as one whole event; an ElectorMessage is always written in BER."""
    kind = _EVENT_TYPES[type(message)]
    if kind == EventType.ELECTOR:
        encoding = Encoding.BER
    body = encode_body(message, encoding)
    return event_header(kind, len(body), encoding << 5) + body
