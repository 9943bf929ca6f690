"""Declaration of schema types: a subclass of `SchemaType` is a dataclass, and the annotations of its fields are their wire
types.

Both codecs (`ber.py`, `jsoncodec.py`) use only these declarations. The wire ids are 0, 1, ... in the order of the
fields. The wire name of a field in camelCase follows from its attribute in snake_case. Annotated[X, W] is an X that is
encoded as a W. A small record may be a named tuple: any tuple of the same values is encoded like it. Messages are
declared with it in `schema.py` and `cluster_schema.py`, headers with `declare.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Self, dataclass_transform, get_args, get_origin, get_type_hints


class Kind(Enum):
    """Wire type of a value."""

    INT = "int"  # integer in the range Field.low to Field.high
    BOOL = "bool"
    TEXT = "text"  # UTF-8
    BYTES = "bytes"  # base64Binary and hexBinary: raw in BER, base64 in JSON
    ENUM = "enum"
    RECORD = "record"  # a sequence, or a named type that holds a choice
    __hash__ = object.__hash__  # faster than that of Enum, which is not compiled


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
        """Name in JSON."""
        head, *tail = self.attribute.split("_")
        return head + "".join(part.capitalize() for part in tail)


@dataclass(frozen=True, slots=True)
class Choice:
    """Anonymous choice: its field id in the enclosing sequence, and (tag, name, type) of each selection."""

    wire_id: int
    selections: tuple[tuple[int, str, type], ...]

    def name_of(self, value: object) -> str:
        """Return the name of the selection whose type the value has."""
        return next(name for _, name, type_ in self.selections if type_ is type(value))


@dataclass_transform(field_specifiers=(field,))
class SchemaType:
    """Base of schema types: each subclass becomes a dataclass whose annotations are the wire types."""

    def __init_subclass__(cls) -> None:
        dataclass(cls)


class Chosen(SchemaType):
    """Base of types that consist of a choice."""

    CHOICE: ClassVar[Choice]
    choice: str = ""
    value: Any = None

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the choice with this value, selected by its type."""
        return cls(cls.CHOICE.name_of(value), value)


I32 = Annotated[int, range(-(1 << 31), 1 << 31)]
U32 = Annotated[int, range(1 << 32)]
I64 = Annotated[int, range(-(1 << 63), 1 << 63)]
U64 = Annotated[int, range(1 << 64)]

_LOCAL = frozenset(("sender", "cause", "choice", "value"))  # attributes that are not encoded
_KINDS: dict[Any, Kind] = {bool: Kind.BOOL, str: Kind.TEXT, bytes: Kind.BYTES}


def record(type_: type) -> Any:
    """Field that is another sequence; absent = its defaults."""
    return field(default_factory=type_)


def array() -> Any:
    """Field that is a list of sequences."""
    return field(default_factory=list)


@cache
def fields_of(cls: Any) -> tuple[Field, ...]:
    """Return the wire fields of a schema type, in ascending order of their ids."""
    hints = [(name, hint) for name, hint in get_type_hints(cls, include_extras=True).items()
             if name not in _LOCAL and get_origin(hint) is not ClassVar]
    return tuple(_field(name, wire_id, hint) for wire_id, (name, hint) in enumerate(hints))


def _field(attribute: str, wire_id: int, hint: Any) -> Field:
    is_optional, is_array = type(None) in get_args(hint), False
    if is_optional:
        hint = next(each for each in get_args(hint) if each is not type(None))
    if get_origin(hint) in (list, Sequence):
        hint, is_array = get_args(hint)[0], True
    wire = hint.__metadata__[0] if get_origin(hint) is Annotated else hint
    if isinstance(wire, range):
        return Field(attribute, wire_id, Kind.INT, None, wire.start, wire.stop - 1, is_optional)
    if wire in _KINDS:
        return Field(attribute, wire_id, _KINDS[wire], None, 0, 1, is_optional)
    kind = Kind.ENUM if issubclass(wire, IntEnum) else Kind.RECORD
    return Field(attribute, wire_id, kind, wire, -(1 << 31), (1 << 31) - 1, is_optional, is_array)


def choice_of(cls: type) -> Choice | None:
    """Return the anonymous choice of a schema type, None without one."""
    return getattr(cls, "CHOICE", None)
