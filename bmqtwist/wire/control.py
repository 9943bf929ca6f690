"""Schema messages as whole events, in either encoding.

The event type determines the top-level type of its message; for CONTROL, the state of the connection: the first message in
each direction is a NegotiationMessage, every later one a ControlMessage. Called by `link/session.py`, `member/dispatch.py`
and the SDK. `ber.py` and `jsoncodec.py` encode the values that `schema.py` and `cluster_schema.py` declare.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

from bmqtwist.errors import PeerError
from bmqtwist.steps import at_once
from bmqtwist.wire import ber, jsoncodec
from bmqtwist.wire.cluster_schema import ClusterMessage, ElectorMessage
from bmqtwist.wire.fast import PAD4, EventType, event_header
from bmqtwist.wire.schema import AuthenticationMessage, ControlMessage, NegotiationMessage

__all__ = [
    "AuthenticationMessage", "ClusterMessage", "ControlMessage", "ElectorMessage", "Encoding", "NegotiationMessage",
    "cluster_event", "decode_authentication", "decode_control", "decode_control_in_steps", "decode_elector",
    "decode_negotiation", "encode_body", "encode_event", "encoding_of",
]


class Encoding(IntEnum):
    """Encoding of a schema message: the top three bits of an event's type-specific byte."""

    BER = 0
    JSON = 1


_M = TypeVar("_M")


def encoding_of(type_specific: int) -> Encoding:
    """Return the encoding that an event header declares; PeerError if it is unknown."""
    value = type_specific >> 5
    if value > Encoding.JSON:
        raise PeerError(f"unknown encoding {value}", "TypeSpecific", 6)
    return Encoding(value)


def _decode(cls: type[_M], body: bytes, encoding: int = Encoding.BER, values_max: int = 0) -> _M:
    return at_once(_decode_in_steps(cls, body, encoding, values_max))


def _decode_in_steps(cls: type[_M], body: bytes, encoding: int, values_max: int = 0) -> Generator[None, None, _M]:
    return (ber.decode_in_steps(cls, body, values_max=values_max) if encoding == Encoding.BER
            else jsoncodec.decode_in_steps(cls, body, values_max))


# Decoders of the body of an event with its padding: (body, encoding, values_max = 0); PeerError if it is malformed. Elector
# messages are always BER. `in_steps`: a generator with pauses, for large messages.
decode_control = partial(_decode, ControlMessage)
decode_control_in_steps = partial(_decode_in_steps, ControlMessage)
decode_negotiation = partial(_decode, NegotiationMessage)
decode_authentication = partial(_decode, AuthenticationMessage)
decode_elector = partial(_decode, ElectorMessage)

TopLevel = ControlMessage | NegotiationMessage | AuthenticationMessage | ElectorMessage

_EVENT_TYPES = {
    ControlMessage: EventType.CONTROL,
    NegotiationMessage: EventType.CONTROL,
    AuthenticationMessage: EventType.AUTHENTICATION,
    ElectorMessage: EventType.ELECTOR,
}


def encode_body(message: TopLevel | ClusterMessage, encoding: int) -> bytes:
    """Encode the message with its word padding, without an event header."""
    raw = ber.encode(message) if encoding == Encoding.BER else jsoncodec.encode(message)
    return raw + PAD4[len(raw) & 3]


def encode_event(message: TopLevel, encoding: int = Encoding.BER) -> bytes:
    """Encode the message as one whole event; an ElectorMessage always in BER."""
    kind = _EVENT_TYPES[type(message)]
    if kind == EventType.ELECTOR:
        encoding = Encoding.BER
    body = encode_body(message, encoding)
    return event_header(kind, len(body), encoding << 5) + body


def cluster_event(value: Any, r_id: int | None = None) -> bytes:
    """Encode a message to another broker, the value of a ClusterMessage, as one whole event."""
    return encode_event(ControlMessage(r_id, "clusterMessage", ClusterMessage.of(value)))
