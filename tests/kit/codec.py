"""Codec of the wire protocol for test clients, independent of bmqtwist.wire so that it finds errors of that package.

Only the schema codec (BER and JSON bodies of control messages) is that of the package; golden vectors test it. Used by
`client.py` and by tests that need exact bytes; messages as objects are in `data_events.py`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from crc32c import crc32c

from bmqtwist.wire import ber, jsoncodec
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, NegotiationMessage

CONTROL, PUT, CONFIRM, PUSH, ACK = 1, 2, 3, 4, 5
HEARTBEAT_REQ, HEARTBEAT_RSP, REJECT, AUTHENTICATION = 11, 12, 13, 15
ACK_REQUESTED, HAS_PROPERTIES, OUT_OF_ORDER = 1, 2, 4

_EVENT = struct.Struct(">IBBBB")
_PUT = struct.Struct(">IIi16sIHH")
_PUSH = struct.Struct(">IIi16sHH")
_ITEM = struct.Struct(">I16sI")  # ACK: status and correlation id, GUID, queue id; CONFIRM: queue id, GUID, sub id

TYPES = {"BOOL": 1, "CHAR": 2, "SHORT": 3, "INT32": 4, "INT64": 5, "STRING": 6, "BINARY": 7}
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8}

Value = bool | int | str | bytes | tuple[str, Any]
"""Value of a property: its Python type selects the wire type, or a tuple names it: ("SHORT", -5)."""


@dataclass
class Push:
    """A PUSH message; `payload` is decompressed and without properties, `raw` the application data as received."""

    q_id: int
    ids: list[int]
    guid: bytes
    payload: bytes
    properties: dict[str, tuple[str, Any]] | None
    out_of_order: bool
    schema_id: int
    compression: int
    raw: bytes
    option_type: int

    @property
    def values(self) -> dict[str, Any]:
        """Return the properties without their types."""
        return {name: value for name, (_, value) in (self.properties or {}).items()}


@dataclass
class Ack:
    """Decoded ACK message."""

    q_id: int
    guid: bytes
    status: int
    correlation_id: int


@dataclass
class Event:
    """A message or heartbeat from the broker; `kind` selects the member that is set."""

    kind: str  # control, authentication, push, ack, heartbeat_req, heartbeat_rsp, or the number of another type
    control: dict[str, Any] = field(default_factory=dict)
    push: Push = None  # type: ignore[assignment]
    ack: Ack = None  # type: ignore[assignment]
    encoding: str = ""


class Unreadable(AssertionError):
    """Application data do not match the header of their message; brokers do not check this, consumers do."""


# -- framing


def pad(data: bytes, unit: int = 4) -> bytes:
    """Pad to a multiple of `unit` bytes, with at least one byte; each padding byte is their number."""
    count = unit - len(data) % unit
    return data + bytes([count]) * count


def frame(kind: int, body: bytes, type_specific: int = 0) -> bytes:
    """Encode an event with its header."""
    return _EVENT.pack(8 + len(body), 0x40 | kind, 2, type_specific, 0) + body


def split_frames(data: bytes) -> tuple[list[bytes], bytes]:
    """Split off the complete events; return them and the remaining bytes."""
    frames, start = [], 0
    while len(data) - start >= 4:
        length = int.from_bytes(data[start:start + 4], "big")
        assert 8 <= length < 1 << 31, f"the broker sent a frame of length {length}"
        if len(data) - start < length:
            break
        frames.append(data[start:start + length])
        start += length
    return frames, data[start:]


def heartbeat(response: bool = False) -> bytes:
    """Encode a heartbeat request or response."""
    return frame(HEARTBEAT_RSP if response else HEARTBEAT_REQ, b"")


# -- control


def _body(schema: type, message: Mapping[str, Any], encoding: str) -> tuple[bytes, int]:
    text = json.dumps(message).encode()
    if encoding == "JSON":
        return pad(text), 0x20
    return pad(ber.encode(jsoncodec.decode(schema, text))), 0


def control_frame(message: Mapping[str, Any], encoding: str = "BER") -> bytes:
    """Encode a control message, or a negotiation message, from its JSON form."""
    schema = NegotiationMessage if "clientIdentity" in message or "brokerResponse" in message else ControlMessage
    body, type_specific = _body(schema, message, encoding)
    return frame(CONTROL, body, type_specific)


def authentication_frame(mechanism: str, data: bytes | None, encoding: str = "BER") -> bytes:
    """Encode an authenticationRequest."""
    request: dict[str, Any] = {"mechanism": mechanism}
    if data is not None:
        request["data"] = base64.b64encode(data).decode()
    body, type_specific = _body(AuthenticationMessage, {"authenticationRequest": request}, encoding)
    return frame(AUTHENTICATION, body, type_specific)


def decode_control(kind: int, body: bytes, type_specific: int, negotiated: bool) -> dict[str, Any]:
    """Decode a schema message to its JSON form, with defaults filled in."""
    schema: type = AuthenticationMessage if kind == AUTHENTICATION else (
        ControlMessage if negotiated else NegotiationMessage)
    text = body[:-body[-1]]
    decoded = jsoncodec.decode(schema, text) if type_specific & 0xE0 == 0x20 else ber.decode(schema, text)
    return json.loads(jsoncodec.encode(decoded))  # type: ignore[no-any-return]


# -- properties


def _typed(value: Value) -> tuple[int, bytes]:
    name, plain = value if isinstance(value, tuple) else (
        "BOOL" if isinstance(value, bool) else "INT64" if isinstance(value, int)
        else "STRING" if isinstance(value, str) else "BINARY", value)
    kind = TYPES[name]
    if kind in _SIZES and not isinstance(plain, bytes):
        return kind, int(plain).to_bytes(_SIZES[kind], "big", signed=kind != TYPES["BOOL"])
    return kind, plain.encode() if isinstance(plain, str) else bytes(plain)


def encode_properties(properties: Mapping[str, Value], v2: bool = True) -> bytes:
    """Encode a properties area, in the given order."""
    headers, data = b"", b""
    for name, value in properties.items():
        kind, raw = _typed(value)
        word = len(data) if v2 else len(raw)
        headers += struct.pack(">HHH", kind << 10 | word >> 16, word & 0xFFFF, len(name.encode()))
        data += name.encode() + raw
    words = (6 + len(headers) + len(data)) // 4 + 1
    return pad(struct.pack(">BBHBB", 0x1B, words >> 16, words & 0xFFFF, 0, len(properties)) + headers + data)


def decode_properties(area: bytes, v2: bool) -> tuple[dict[str, tuple[str, Any]], int]:
    """Decode a properties area; return ({name: (type, value)}, size of the area with padding)."""
    first, high, low, _, count = struct.unpack_from(">BBHBB", area)
    assert first == 0x1B
    size = (high << 16 | low) * 4
    end = size - area[size - 1]
    start = 6 + 6 * count
    names = {number: name for name, number in TYPES.items()}
    heads = [struct.unpack_from(">HHH", area, 6 + 6 * i) for i in range(count)]
    found: dict[str, tuple[str, Any]] = {}
    at = start
    for index, (top, word, length) in enumerate(heads):
        kind, x = top >> 10 & 31, (top & 0x3FF) << 16 | word
        if v2:
            assert x == at - start, "the offset of a property differs from the end of the previous one"
            upto = end if index + 1 == count else start + ((heads[index + 1][0] & 0x3FF) << 16 | heads[index + 1][1])
        else:
            upto = at + (length & 0xFFF) + x
        name = area[at:at + (length & 0xFFF)].decode()
        raw = area[at + (length & 0xFFF):upto]
        value: Any = raw if kind == TYPES["BINARY"] else raw.decode() if kind == TYPES["STRING"] else \
            bool(raw[0]) if kind == TYPES["BOOL"] else int.from_bytes(raw, "big", signed=True)
        found[name] = (names[kind], value)
        at = upto
    assert at == end, "the last property does not end at the end of the area"
    return found, size


# -- data events


def client_id(name: str) -> bytes:
    """Return the six bytes that distinguish the GUIDs of a client."""
    return hashlib.md5(name.encode()).digest()[:6]


def make_guid(counter: int, client: bytes, timer: int = 0x123456789ABC) -> bytes:
    """Create a GUID of version 1."""
    return (0x400000 | counter & 0x3FFFFF).to_bytes(3, "big") + timer.to_bytes(7, "big") + client


def application_data(payload: bytes, properties: Mapping[str, Value] | None = None, *, v2: bool = True,
                     compress: bool = False) -> tuple[bytes, bool]:
    """Encode application data; return (data, whether they contain properties)."""
    area = encode_properties(properties, v2) if properties else b""
    if not compress:
        return area + payload, bool(area)
    if v2:
        return area + zlib.compress(payload), bool(area)
    return zlib.compress(area + payload), bool(area)


def put_message(q_id: int, guid: bytes, payload: bytes = b"x", *, ack: bool = True,
                properties: Mapping[str, Value] | None = None, v2: bool = True, compress: bool = False,
                schema_id: int | None = None, crc: int | None = None, options: bytes = b"") -> bytes:
    """Encode a PUT message: header, options, application data, padding."""
    data, has_properties = application_data(payload, properties, v2=v2, compress=compress)
    if schema_id is None:
        schema_id = 1 if has_properties and v2 else 0
    flags = (ACK_REQUESTED if ack else 0) | (HAS_PROPERTIES if has_properties else 0)
    body = options + pad(data)
    words = (_PUT.size + len(body)) // 4
    return _PUT.pack(flags << 28 | words, (len(options) // 4) << 8 | (1 if compress else 0) << 5 | 9, q_id, guid,
                     crc32c(data) if crc is None else crc, schema_id, 0) + body


def put_frame(messages: list[bytes]) -> bytes:
    """Encode a PUT event."""
    return frame(PUT, b"".join(messages))


def correlation(number: int) -> bytes:
    """Encode a correlation id, which clients without GUIDs send in the place of the GUID."""
    return b"\0" + number.to_bytes(3, "big") + bytes(12)


def confirm_frame(items: list[tuple[int, bytes, int]], kind: int = CONFIRM) -> bytes:
    """Encode a CONFIRM (or REJECT) event of (queue id, GUID, sub-queue id)."""
    return frame(kind, b"\x16\0\0\0" + b"".join(_ITEM.pack(*item) for item in items))


def decode_event(data: bytes, *, negotiated: bool) -> Iterator[Event]:
    """Decode the messages of an event from the broker."""
    _, type_byte, header_words, type_specific, _ = _EVENT.unpack_from(data)
    assert type_byte >> 6 == 1 and header_words == 2, data[:8].hex()
    kind, body = type_byte & 0x3F, data[8:]
    if kind in (CONTROL, AUTHENTICATION):
        yield Event("control" if kind == CONTROL else "authentication",
                    control=decode_control(kind, body, type_specific, negotiated),
                    encoding="JSON" if type_specific & 0xE0 == 0x20 else "BER")
    elif kind == PUSH:
        yield from (Event("push", push=push) for push in decode_pushes(body))
    elif kind == ACK:
        assert body[0] == 0x16, "ACK items of another size than SDKs read"
        for first, guid, q_id in _ITEM.iter_unpack(body[4:]):
            yield Event("ack", ack=Ack(q_id, guid, first >> 24 & 15, first & 0xFFFFFF))
    else:
        assert kind not in (HEARTBEAT_REQ, HEARTBEAT_RSP) or not body
        yield Event({HEARTBEAT_REQ: "heartbeat_req", HEARTBEAT_RSP: "heartbeat_rsp"}.get(kind, str(kind)))


def decode_pushes(body: bytes) -> Iterator[Push]:
    """Decode the messages of a PUSH event; raises Unreadable."""
    at = 0
    while at < len(body):
        first, second, q_id, guid, schema_id, _ = _PUSH.unpack_from(body, at)
        flags, words = first >> 28, first & 0xFFFFFFF
        option_words, compression, header_words = second >> 8, second >> 5 & 7, second & 31
        assert header_words == 8
        options = body[at + 32:at + 32 + 4 * option_words]
        data = body[at + 32 + 4 * option_words:at + 4 * words]
        data = data[:-data[-1]]
        option_type, ids = 0, []
        if options:
            word = int.from_bytes(options[:4], "big")
            option_type = word >> 26
            assert option_type == 1 and (word & 0x1FFFFF) == option_words, "an SDK accepts only old sub-queue ids"
            ids = list(struct.unpack(f">{option_words - 1}I", options[4:]))
        has_properties, v2 = bool(flags & HAS_PROPERTIES), schema_id != 0
        try:
            payload, properties = _opened(data, has_properties, v2, compression == 1)
        except (AssertionError, LookupError, ValueError, struct.error, zlib.error) as error:
            raise Unreadable(f"message {guid.hex()}: {error}") from error
        yield Push(q_id, ids, guid, payload, properties, bool(flags & OUT_OF_ORDER), schema_id, compression, data,
                   option_type)
        at += 4 * words


def _opened(data: bytes, has_properties: bool, v2: bool, compressed: bool
            ) -> tuple[bytes, dict[str, tuple[str, Any]] | None]:
    """Decode application data; return (payload, properties)."""
    if not has_properties:
        return zlib.decompress(data) if compressed else data, None
    if compressed and not v2:
        data, compressed = zlib.decompress(data), False
    properties, size = decode_properties(data, v2)
    return zlib.decompress(data[size:]) if compressed else data[size:], properties
