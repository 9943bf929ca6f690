"""Input of `bmq produce`: properties on the command line, JSON lines, delimited messages in standard input.

Called by `produce.py`; output forms of `bmq consume` are in `textforms.py`. The size of a message is limited in
`bmqtwist/limits.py`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import select
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from bmqtwist.cli.output import wait_for_any
from bmqtwist.errors import LocalError
from bmqtwist.limits import APPLICATION_DATA_BYTES_MAX
from bmqtwist.sdk.message import typed
from bmqtwist.wire.properties import PropertyType, encode

_READ_BYTES = 1 << 16
_STDIN = 0
_ALIASES = {"int": PropertyType.INT64, "str": PropertyType.STRING, "bytes": PropertyType.BINARY}
TYPE_NAMES = [each.name.lower() for each in PropertyType]


class BadInput(LocalError):
    """Input that cannot be posted; the text names the line or file and the reason."""


@dataclass(slots=True)
class Properties:
    """Properties of a message: values and types by name. A property without a type has the type of its value."""

    values: dict[str, object] = field(default_factory=dict)
    types: dict[str, PropertyType] = field(default_factory=dict)

    def check(self) -> None:
        """Raise LocalError if the properties cannot be encoded: a name or a number is out of range."""
        if self.values:
            encode(typed(self.values, self.types), True)

    def merged_over(self, base: Properties) -> Properties:
        """Return these properties combined with those of `base`. A property of `base` with an equal name is replaced."""
        types = {name: kind for name, kind in base.types.items() if name not in self.values}
        return Properties({**base.values, **self.values}, {**types, **self.types})


@dataclass(frozen=True, slots=True)
class InputMessage:
    """One message to post. `location`: its origin, for error messages."""

    payload: bytes
    properties: Properties
    location: str


def property_type(name: str) -> PropertyType:
    lower = name.lower()
    if lower in _ALIASES:
        return _ALIASES[lower]
    if lower not in TYPE_NAMES:
        raise LocalError(f"'{name}' is not a property type, use one of {', '.join(TYPE_NAMES)}")
    return PropertyType[name.upper()]


def parse_properties(texts: tuple[str, ...]) -> Properties:
    """Parse `name=value` (a string) or `name:type=value`; binary values are hexadecimal digits. Raises LocalError."""
    found = Properties()
    for text in texts:
        key, equals, value = text.partition("=")
        name, colon, kind_name = key.partition(":")
        if not equals or not name:
            raise LocalError(f"'{text}': a property is name=value or name:type=value")
        try:
            kind = property_type(kind_name) if colon else PropertyType.STRING
            found.values[name], found.types[name] = _from_text(value, kind), kind
        except LocalError as error:
            raise LocalError(f"property '{text}': {error}") from None
    found.check()
    return found


def _from_text(text: str, kind: PropertyType) -> object:
    if kind is PropertyType.STRING:
        return text
    if kind is PropertyType.BINARY:
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise LocalError("a binary value is written as hexadecimal digits") from None
    if kind is PropertyType.BOOL:
        if text.lower() not in ("true", "false", "1", "0"):
            raise LocalError("a bool is true or false")
        return text.lower() in ("true", "1")
    try:
        return int(text if "_" not in text else "", 0)  # Python's own separator is not part of a number
    except ValueError:
        raise LocalError(f"'{text[:40]}' is not an integer") from None


def parse_json_line(line: bytes, base: Properties, location: str) -> InputMessage:
    """Parse an object with `payload` (text, or any JSON, which is posted as JSON) or `payloadBase64`, and `properties`.

    `bmq consume --json` prints such lines; other members are ignored. Raises BadInput, which names the line.
    """
    try:
        tree = json.loads(line)
    except ValueError as error:
        raise BadInput(f"{location}: not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise BadInput(f"{location}: an object is expected, for instance {{\"payload\": \"text\"}}")
    try:
        own = _json_properties(tree.get("properties"))
        own.check()
        return InputMessage(_json_payload(tree), own.merged_over(base), location)
    except LocalError as error:
        raise BadInput(f"{location}: {error}") from None


def _json_payload(tree: dict[str, Any]) -> bytes:
    if ("payload" in tree) == ("payloadBase64" in tree):
        raise LocalError("exactly one of \"payload\" and \"payloadBase64\" is expected")
    if "payloadBase64" in tree:
        return _decode_base64(tree["payloadBase64"], "payloadBase64")
    payload = tree["payload"]
    text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _decode_base64(text: object, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error):
        raise LocalError(f"\"{name}\" is not base64") from None


def _json_properties(tree: object) -> Properties:
    """Parse an object of values, or of objects with `type` and `value` (`valueBase64` for binary values)."""
    found = Properties()
    if tree is None:
        return found
    if not isinstance(tree, dict):
        raise LocalError("\"properties\" is not an object")
    for name, value in tree.items():
        if isinstance(value, dict):
            kind = property_type(str(value.get("type", "")))
            found.types[name] = kind
            if "valueBase64" in value:
                raw = _decode_base64(value["valueBase64"], f"properties.{name}.valueBase64")
                value = raw if kind is PropertyType.BINARY else raw.decode("utf-8", "surrogateescape")
            else:
                value = value.get("value")
        if not isinstance(value, (bool, int, str, bytes)):
            raise LocalError(f"property \"{name}\": a value is a string, an integer, true, false, or an object with "
                             "\"type\" and \"value\"")
        _check_kind(name, value, found.types.get(name))
        found.values[name] = value
    return found


def _check_kind(name: str, value: object, kind: PropertyType | None) -> None:
    wanted: type = {None: object, PropertyType.BOOL: bool, PropertyType.STRING: str,
                    PropertyType.BINARY: bytes}.get(kind, int)
    if not isinstance(value, wanted) or wanted is int and isinstance(value, bool):
        raise LocalError(f"property \"{name}\": {json.dumps(value, default=repr)[:40]} is not of type "
                         f"{kind.name if kind else 'value'}")


# -- standard input -----------------------------------------------------------------------------------------------------

async def stdin_chunks(stopping: asyncio.Event, on_read: Callable[[int], None]) -> AsyncIterator[bytes]:
    """Yield chunks of standard input until its end or until `stopping` is set. `on_read` receives the size of each."""
    poll = select.poll()
    poll.register(_STDIN, select.POLLIN)
    while not stopping.is_set():
        if not poll.poll(0):
            await _wait_for_input(stopping)
            continue
        try:
            data = os.read(_STDIN, _READ_BYTES)
        except OSError as error:
            raise BadInput(f"standard input cannot be read: {error.strerror}") from None
        if not data:
            return
        on_read(len(data))
        yield data


async def _wait_for_input(stopping: asyncio.Event) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(_STDIN, ready.set)
    try:
        await wait_for_any(ready, stopping)
    finally:
        loop.remove_reader(_STDIN)


async def split_stream(chunks: AsyncIterator[bytes], delimiter: bytes) -> AsyncIterator[tuple[int, bytes]]:
    """Yield (number from 1, piece) for each piece between delimiters; the last one needs no delimiter."""
    rest, number = b"", 0
    async for chunk in chunks:
        pieces = (rest + chunk).split(delimiter)
        rest = pieces.pop()
        for piece in pieces:
            number += 1
            yield number, piece
        if len(rest) > APPLICATION_DATA_BYTES_MAX:
            raise BadInput(f"line {number + 1}: more than {APPLICATION_DATA_BYTES_MAX} bytes without a delimiter")
    if rest:
        yield number + 1, rest


def read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(APPLICATION_DATA_BYTES_MAX + 1)
    if not data:
        raise BadInput(f"{path} is empty: a message needs at least one byte")
    if len(data) > APPLICATION_DATA_BYTES_MAX:
        raise BadInput(f"{path} has more than the {APPLICATION_DATA_BYTES_MAX} bytes that a message may have")
    return data
