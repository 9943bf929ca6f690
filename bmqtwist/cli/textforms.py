"""Output forms of messages, of `bmq consume` and `bmq tail`: templates and JSON. Escapes, also in the delimiters of
`bmq produce`.

Used by `consume.py` and `tail.py`; input forms of `bmq produce` are in `payloads.py`.
"""

from __future__ import annotations

import base64
import json
import string
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from bmqtwist.errors import LocalError, PeerError
from bmqtwist.ids import parse_uri
from bmqtwist.sdk.message import Message
from bmqtwist.wire.properties import PropertyType

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
MessageFormatter = Callable[[Message], bytes | None]


def unescape(text: str) -> bytes:
    r"""Decode the escapes `\n`, `\t`, `\r`, `\0`, `\\` and `\xHH`. Raises LocalError for other escapes."""
    out, at = bytearray(), 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\":
            out += char.encode("utf-8", "surrogateescape")
            continue
        after = text[at:at + 1]
        at += 1
        if after in _ESCAPES and after:
            out += _ESCAPES[after].encode()
            continue
        digits = text[at:at + 2]
        try:
            out.append(int(digits, 16) if after == "x" and len(digits) == 2 else int("no"))
        except ValueError:
            raise LocalError(f"'\\{after}' is not an escape: use \\n, \\t, \\r, \\0, \\\\ or \\xHH") from None
        at += 2
    return bytes(out)


def parse_delimiter(text: str) -> bytes:
    """Decode a delimiter. Raises LocalError if it is empty."""
    found = unescape(text)
    if not found:
        raise LocalError("a delimiter needs at least one byte")
    return found


def message_tree(message: Message) -> dict[str, Any]:
    """Return a message as plain data. Bytes that are not UTF-8 are base64, in members named `...Base64`."""
    tree: dict[str, Any] = {"guid": message.guid.hex().upper(), "uri": message.uri}
    if arrival := _arrival_text(message):
        tree["time"] = arrival
    if message.redelivered:
        tree["redelivered"] = True
    if message.subscription is not None and message.subscription.expression:
        tree["subscription"] = message.subscription.expression
    values, types = message.properties, message.property_types
    if values:
        tree["properties"] = {name: _property_tree(types[name], value) for name, value in values.items()}
    try:
        tree["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        tree["payloadBase64"] = base64.b64encode(message.payload).decode()
    return tree


def _arrival_text(message: Message) -> str:
    """Return the arrival time of a stored message, in seconds; "" for a delivered one, which has none."""
    wall = getattr(message, "wall", 0)
    return datetime.fromtimestamp(wall, UTC).isoformat() if wall else ""


def _property_tree(kind: PropertyType, value: object) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            value = value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return {"type": kind.name, "valueBase64": base64.b64encode(value).decode()}
    return {"type": kind.name, "value": value}


_FIELDS: dict[str, Callable[[Message], bytes]] = {
    "payload": lambda message: message.payload,
    "hex": lambda message: message.payload.hex().encode(),
    "base64": lambda message: base64.b64encode(message.payload),
    "json": lambda message: json.dumps(message_tree(message), ensure_ascii=False).encode(),
    "guid": lambda message: message.guid.hex().upper().encode(),
    "size": lambda message: b"%d" % len(message.payload),
    "time": lambda message: _arrival_text(message).encode(),
    "uri": lambda message: message.uri.encode(),
    "domain": lambda message: parse_uri(message.uri).qualified_domain.encode(),
    "queue": lambda message: parse_uri(message.uri).queue.encode(),
    "app": lambda message: parse_uri(message.uri).app_id.encode(),
    "redelivered": lambda message: b"true" if message.redelivered else b"false",
    "properties": lambda message: json.dumps({name: _property_tree(message.property_types[name], value) for name, value
                                              in message.properties.items()}, ensure_ascii=False).encode(),
}
FIELD_NAMES = tuple(_FIELDS)


def for_terminal(data: bytes) -> bytes:
    r"""Return content of a message without control characters, which could command the terminal: each other than line breaks
    and tabs becomes an escape as `\x1b`, as do bytes that are not UTF-8."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join([each if each in "\n\t" or each.isprintable() else ascii(each)[1:-1] for each in text]).encode()


def compile_template(template: str, on_unreadable: Callable[[str], None], to_terminal: bool = False) -> MessageFormatter:
    r"""Compile a template: `{payload}`, `{guid}` and the other fields, `{p.NAME}` for a property, `{{` for a brace; escapes
    as in `unescape`. Raises LocalError for an unknown field. The formatter returns None for an unreadable message, and
    passes the error to `on_unreadable`. `to_terminal`: fields are escaped by `for_terminal`."""
    parts: list[bytes | Callable[[Message], bytes]] = []
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise LocalError(f"template '{template}': {error}; write a brace as {{{{ or }}}}") from None
    for literal, name, spec, conversion in pieces:
        parts.append(unescape(literal))
        if name is None:
            continue
        if spec or conversion or not (name in _FIELDS or name.startswith("p.") and name[2:]):
            raise LocalError(f"template '{template}': '{{{name}}}' is not a field; the fields are {', '.join(FIELD_NAMES)}, "
                             "and p.NAME for a property")
        parts.append(_FIELDS[name] if name in _FIELDS else _property_formatter(name[2:]))

    shown = for_terminal if to_terminal else bytes

    def rendered(message: Message) -> bytes | None:
        try:
            return b"".join(part if isinstance(part, bytes) else shown(part(message)) for part in parts)
        except PeerError as error:
            on_unreadable(f"message {message.guid.hex().upper()} cannot be read: {error}")
            return None
    return rendered


def _property_formatter(name: str) -> Callable[[Message], bytes]:
    def value(message: Message) -> bytes:
        found = message.properties.get(name, "")
        if isinstance(found, bytes):
            return found
        if isinstance(found, bool):
            return b"true" if found else b"false"
        return str(found).encode("utf-8", "surrogateescape")
    return value
