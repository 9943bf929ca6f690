"""How schema types declare themselves: each dataclass field carries its wire id and its wire type as data.

The codecs (`ber.py`, `jsoncodec.py`) read nothing but these declarations, so one table serves both encodings.
A field of the wire is named in camelCase there and in snake_case here; the one follows from the other.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from dataclasses import fields as dataclass_fields
from enum import Enum, IntEnum
from functools import cache
from typing import Any


class Kind(Enum):
    """Wire type of a value."""

    INT = "int"  # any integer; its range is in Field.low and Field.high
    BOOL = "bool"
    TEXT = "text"  # UTF-8
    BYTES = "bytes"  # base64Binary and hexBinary: raw in BER, base64 in JSON
    ENUM = "enum"
    RECORD = "record"  # a sequence, or a named type that holds a choice


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a sequence: `wire_id` in BER, `wire_name` in JSON."""

    attribute: str
    wire_id: int
    kind: Kind
    type: type | None = None  # of ENUM and RECORD
    low: int = 0
    high: int = 0
    optional: bool = False  # may be absent: None
    array: bool = False

    @property
    def wire_name(self) -> str:
        """The name in JSON."""
        head, *tail = self.attribute.split("_")
        return head + "".join(part.capitalize() for part in tail)


@dataclass(frozen=True, slots=True)
class Choice:
    """An anonymous choice: its field id in the sequence that holds it, and (tag, name, type) of each selection."""

    wire_id: int
    selections: tuple[tuple[int, str, type], ...]


def i32(wire_id: int, default: int | None = 0) -> Any:
    """A signed 32-bit integer; default None makes it optional."""
    return _integer(wire_id, -(1 << 31), (1 << 31) - 1, default)


def u32(wire_id: int, default: int | None = 0) -> Any:
    """An unsigned 32-bit integer."""
    return _integer(wire_id, 0, (1 << 32) - 1, default)


def i64(wire_id: int, default: int | None = 0) -> Any:
    """A signed 64-bit integer."""
    return _integer(wire_id, -(1 << 63), (1 << 63) - 1, default)


def u64(wire_id: int, default: int | None = 0) -> Any:
    """An unsigned 64-bit integer; default None makes it optional."""
    return _integer(wire_id, 0, (1 << 64) - 1, default)


def boolean(wire_id: int, default: bool = False) -> Any:
    """True or false."""
    return field(default=default, metadata={"wire": (wire_id, Kind.BOOL, {})})


def text(wire_id: int, default: str = "") -> Any:
    """A string."""
    return field(default=default, metadata={"wire": (wire_id, Kind.TEXT, {})})


def blob(wire_id: int, optional: bool = False) -> Any:
    """Raw bytes."""
    default = None if optional else b""
    return field(default=default, metadata={"wire": (wire_id, Kind.BYTES, {"optional": optional})})


def enum(wire_id: int, type_: type[IntEnum], default: IntEnum) -> Any:
    """A value of an enumeration; one that is not in it fails the message."""
    return field(default=default, metadata={"wire": (wire_id, Kind.ENUM, {"type": type_})})


def record(wire_id: int, type_: type) -> Any:
    """Another sequence; absent means one made of defaults."""
    return field(default_factory=type_, metadata={"wire": (wire_id, Kind.RECORD, {"type": type_})})


def optional(wire_id: int, type_: type) -> Any:
    """Another sequence, or None."""
    return field(default=None, metadata={"wire": (wire_id, Kind.RECORD, {"type": type_, "optional": True})})


def array(wire_id: int, type_: type) -> Any:
    """A list of sequences."""
    return field(default_factory=list, metadata={"wire": (wire_id, Kind.RECORD, {"type": type_, "array": True})})


def _integer(wire_id: int, low: int, high: int, default: int | None) -> Any:
    extra = {"low": low, "high": high, "optional": default is None}
    return field(default=default, metadata={"wire": (wire_id, Kind.INT, extra)})


@cache
def fields_of(cls: type) -> tuple[Field, ...]:
    """The wire fields of a schema type, in ascending order of their ids."""
    found = []
    for entry in dataclass_fields(cls):
        if "wire" in entry.metadata:
            wire_id, kind, extra = entry.metadata["wire"]
            found.append(Field(entry.name, wire_id, kind, **extra))
        elif entry.default is MISSING:
            raise TypeError(f"{cls.__name__}.{entry.name} has neither a wire declaration nor a default")
    return tuple(sorted(found, key=lambda each: each.wire_id))


def choice_of(cls: type) -> Choice | None:
    """The anonymous choice of a schema type, if it holds one."""
    return getattr(cls, "CHOICE", None)
