"""JSON encoding of schema messages, driven by the same declarations as `ber.py`.

One compact UTF-8 object. An anonymous choice is flattened into the object that contains it; enumerations are written as
names and also read as integers; bytes are base64; empty arrays and absent optionals are omitted. A slash is written `\\/`,
as in the other implementations. Every input gives a value or a PeerError; unknown keys are skipped. Called by `control.py`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator
from enum import IntEnum
from functools import cache
from typing import Any

from bmqtwist.errors import LocalError, PeerError
from bmqtwist.limits import BER_DEPTH_MAX
from bmqtwist.steps import at_once
from bmqtwist.wire.ber import RECORD_VALUES, Budget
from bmqtwist.wire.fields import Field, Kind, choice_of, fields_of

_TYPES: dict[Kind, tuple[Any, str]] = {
    Kind.INT: (int, "an integer of its type"), Kind.BOOL: (bool, "a boolean"), Kind.TEXT: (str, "a string"),
    Kind.BYTES: (str, "a string")}
_PADDING = b"\x00\x01\x02\x03\x04"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def decode(cls: type, data: bytes, values_max: int = 0) -> Any:
    """Decode a message of type `cls`, with or without word padding. `values_max`: see `ber.Budget`."""
    return at_once(decode_in_steps(cls, data, values_max))


def decode_in_steps(cls: type, data: bytes, values_max: int = 0) -> Generator[None, None, Any]:
    """Decode like `decode`, with the pauses of `ber.Budget`."""
    name = cls.__name__
    if values_max and data.count(b"{") + data.count(b"[") > values_max:  # each costs at least one value
        raise PeerError("too many values", name)
    try:
        tree = _DECODER.decode(data.rstrip(_PADDING).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise PeerError("not UTF-8", name, error.start) from None
    except RecursionError:
        raise PeerError("nested too deeply", name) from None
    except ValueError as error:
        raise PeerError("not JSON", name, getattr(error, "pos", 0)) from None
    return (yield from _codec(cls).read(tree, BER_DEPTH_MAX, Budget(values_max), name))


def encode(message: Any) -> bytes:
    """Encode the message as compact JSON, without padding."""
    text = _ENCODER.encode(_codec(type(message)).write(message))
    return text.replace("/", "\\/").encode("utf-8", "replace")


class _JsonCodec:
    """Reader and writer of one schema type, compiled from its declarations."""

    __slots__ = ("by_name", "cls", "fields", "has_choice", "selections")

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.fields = [(entry, entry.wire_name) for entry in fields_of(cls)]
        self.by_name = {name: entry for entry, name in self.fields}
        choice = choice_of(cls)
        self.has_choice = choice is not None
        self.selections: dict[str, type] = {name: type_ for _, name, type_ in choice.selections} if choice else {}

    def read(self, tree: Any, depth: int, budget: Budget, path: str) -> Generator[None, None, Any]:
        """Return the value of a parsed JSON object; `path`: its name in errors."""
        if not isinstance(tree, dict):
            raise PeerError("not an object", path)
        if depth <= 0:
            raise PeerError("nested too deeply", path)
        budget.left -= RECORD_VALUES + len(tree)
        if budget.left < budget.pause:
            if budget.left < 0:
                raise PeerError("too many values", path)
            budget.set_next_pause()
            yield
        values: dict[str, Any] = {}
        for key, item in tree.items():
            entry = self.by_name.get(key)
            if entry is not None:
                if item is not None:
                    values[entry.attribute] = yield from _read(entry, item, depth - 1, budget, f"{path}.{key}")
            elif key in self.selections:
                values["choice"] = key
                values["value"] = yield from _codec(self.selections[key]).read(item, depth - 1, budget, f"{path}.{key}")
        return self.cls(**values)

    def write(self, message: Any) -> dict[str, Any]:
        """Return a tree of plain values, in the order of the declarations."""
        tree: dict[str, Any] = {}
        if issubclass(self.cls, tuple):
            message = self.cls(*message)
        for entry, name in self.fields:
            value = getattr(message, entry.attribute)
            if value is None:
                if not entry.optional:
                    raise LocalError(f"{self.cls.__name__}.{entry.attribute} is not optional: give it a value")
            elif not entry.array:
                tree[name] = _write(entry, value)
            elif value:
                tree[name] = [_write(entry, item) for item in value]
        if self.has_choice:
            type_ = self.selections.get(message.choice)
            if type_ is None or type(message.value) is not type_:
                raise LocalError(f"{self.cls.__name__} cannot hold {message.choice!r} = {message.value!r}: "
                                 f"choose one of {', '.join(self.selections)} with a value of its type")
            tree[message.choice] = _codec(type_).write(message.value)
        return tree


def _read(entry: Field, item: Any, depth: int, budget: Budget, path: str) -> Generator[None, None, Any]:
    if entry.kind is not Kind.RECORD:
        return _read_primitive(entry, item, path)
    assert entry.type is not None
    codec = _codec(entry.type)
    if not entry.array:
        return (yield from codec.read(item, depth, budget, path))
    if not isinstance(item, list):
        raise PeerError("not an array", path)
    items = []
    for each in item:
        items.append((yield from codec.read(each, depth - 1, budget, path)))
    return items


def _read_primitive(entry: Field, item: Any, path: str) -> Any:
    if entry.type is not None:
        value = _enum_members(entry.type).get(item) if isinstance(item, str) or type(item) is int else None
        if value is None:
            raise PeerError(f"not a value of {entry.type.__name__}", path)
        return value
    type_, name = _TYPES[entry.kind]
    if type(item) is not type_ or entry.kind is Kind.INT and not entry.low <= item <= entry.high:
        raise PeerError(f"not {name}", path)
    if entry.kind is Kind.TEXT and not item.isascii():
        # JSON can have lone surrogates, which UTF-8 cannot encode: they become the replacement character
        return item.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if entry.kind is Kind.BYTES:
        try:
            return b64decode(item, validate=True)
        except ValueError:
            raise PeerError("not base64", path) from None
    return item


def _write(entry: Field, value: Any) -> Any:
    if entry.type is not None and entry.kind is Kind.RECORD:
        return _codec(entry.type).write(value)
    if entry.kind is Kind.ENUM:
        return value.name
    if entry.kind is Kind.BYTES:
        return b64encode(value).decode("ascii")
    return value


@cache
def _enum_members(cls: type[IntEnum]) -> dict[str | int, IntEnum]:
    return {**{member.name: member for member in cls}, **{member.value: member for member in cls}}


_codec: Callable[[Any], _JsonCodec] = cache(_JsonCodec)
