"""Properties as the official library takes them: names may be bytes, a CHAR is one byte, a wrong value is told at once."""

from __future__ import annotations

from collections.abc import Mapping

from bmqtwist.sdk import message as sdk_message
from bmqtwist.sdk.blazingmq.exceptions import Error
from bmqtwist.wire.properties import PropertyType, Value

_BITS = {PropertyType.SHORT: 16, PropertyType.INT32: 32, PropertyType.INT64: 64}


def _default(value: object) -> PropertyType:
    if isinstance(value, bool):
        return PropertyType.BOOL
    if isinstance(value, int):
        return PropertyType.INT64
    if isinstance(value, str):
        return PropertyType.STRING
    if isinstance(value, bytes):
        return PropertyType.BINARY
    raise Error(f"Property values of type {type(value).__name__!r} are not supported")


def _text(name: object) -> str:
    if isinstance(name, (str, bytes)):
        return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")
    raise TypeError(f"not expecting type '{type(name)}'")


def _wire(name: str, value: object, kind: PropertyType) -> Value:
    """A value as the core takes it: an int for a CHAR, text for a STRING."""
    expected: type = bytes
    if kind in _BITS:
        expected = int
    elif kind is PropertyType.BOOL:
        expected = bool
    elif kind is PropertyType.STRING and isinstance(value, str):
        return value
    if not isinstance(value, expected):
        raise TypeError(f"'{name}' value is of the incorrect type, '{type(value).__name__}' provided, "
                        f"'{expected.__name__}' expected.")
    if kind is PropertyType.CHAR and isinstance(value, bytes):
        if len(value) != 1:
            raise TypeError(f"'{name}' value does not have exactly 1 byte, {len(value)} bytes provided.")
        return int.from_bytes(value, "big", signed=True)
    if kind is PropertyType.STRING and isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if kind in _BITS and isinstance(value, int):
        end = 1 << _BITS[kind] - 1
        if not -end <= value < end:
            raise ValueError(f"Property {name} value must be between [{-end}, {end - 1}], inclusive")
        return int(value)
    return value  # type: ignore[return-value] # a bool, or bytes


def to_wire(values: Mapping[str, object] | None,
            overrides: Mapping[str, PropertyType] | None) -> tuple[dict[str, object], dict[str, PropertyType]]:
    """Values and types as the core takes them."""
    given: dict[str, object] = {}
    types: dict[str, PropertyType] = {}
    for name, value in (values or {}).items():
        given[_text(name)] = value
        types[_text(name)] = _default(value)
    for name, kind in (overrides or {}).items():
        if _text(name) not in types:
            raise Error(f"Received override for non-existent property {name!r}")
        types[_text(name)] = kind
    return {name: _wire(name, value, types[name]) for name, value in given.items()}, types


def from_wire(message: sdk_message.Message) -> dict[str, Value]:
    """Values as the official library gives them."""
    types = message.property_types
    return {name: value.to_bytes(1, "big", signed=True) if types[name] is PropertyType.CHAR
            and isinstance(value, int) else value for name, value in message.properties.items()}
