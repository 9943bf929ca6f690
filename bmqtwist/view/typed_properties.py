"""Conversion of message properties to and from JSON: `{"name": {"type": "int32", "value": 7}}`.

Integers beyond 2**53 - 1 are decimal strings, binary values are base64. Text that is not UTF-8 is shown with replacement
characters. Called by `console/actions.py` for posted test messages and by `stored_queue.py` for shown ones; the wire form
is in `wire/properties.py`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from bmqtwist.errors import LocalError
from bmqtwist.limits import PROPERTIES_MAX
from bmqtwist.wire.properties import Properties, PropertyType, Value

EXACT_INT_MAX = (1 << 53) - 1  # every JSON parser represents integers up to this exactly
_LOSSLESS = "surrogateescape"
_TYPES = {each.name.lower(): each for each in PropertyType}
_WHOLE_TEXT = re.compile(r"[+-]?[0-9]{1,20}")
_WHOLE = (PropertyType.CHAR, PropertyType.SHORT, PropertyType.INT32, PropertyType.INT64)


def plain_text(text: str) -> str:
    """Return a string from the wire as valid UTF-8, with replacement characters."""
    return text.encode("utf-8", _LOSSLESS).decode("utf-8", "replace")


def _shown(value: Value, chars_max: int) -> tuple[Any, bool]:
    """Return a value as JSON, and True if it is truncated."""
    if isinstance(value, bool):
        return value, False
    if isinstance(value, int):
        return (value if abs(value) <= EXACT_INT_MAX else str(value)), False
    if isinstance(value, bytes):
        return base64.b64encode(value[:chars_max]).decode(), len(value) > chars_max
    return plain_text(value[:chars_max]), len(value) > chars_max


def as_tree(properties: Properties, chars_max: int) -> tuple[dict[str, Any], bool]:
    """Return properties as JSON of about `chars_max` characters at most, and True if a value is omitted or truncated."""
    tree: dict[str, Any] = {}
    left, cut = chars_max, False
    for name, (kind, value) in properties.items():
        if left <= 0:
            return tree, True
        shown, part = _shown(value, left)
        tree[plain_text(name)] = {"type": kind.name.lower(), "value": shown, **({"truncated": True} if part else {})}
        left -= len(name) + (len(shown) if isinstance(shown, str) else 8)
        cut = cut or part
    return tree, cut


def from_tree(tree: Mapping[str, Any]) -> Properties:
    """Return properties from JSON; a value without a type becomes bool, int64 or string. Raises LocalError."""
    if len(tree) > PROPERTIES_MAX:
        raise LocalError(f"{len(tree)} properties: a message takes at most {PROPERTIES_MAX}")
    return {str(name): _read(str(name), given) for name, given in tree.items()}


def _read(name: str, given: object) -> tuple[PropertyType, Value]:
    if isinstance(given, bool):
        return PropertyType.BOOL, given
    if isinstance(given, int):
        return PropertyType.INT64, given
    if isinstance(given, str):
        return PropertyType.STRING, given
    if not isinstance(given, Mapping) or "value" not in given:
        raise LocalError(f"property {name[:40]!r}: expected a value, or an object with 'type' and 'value'")
    value, named = given["value"], str(given.get("type", "string")).lower()
    kind = _TYPES.get(named)
    if kind is None:
        raise LocalError(f"property {name[:40]!r}: unknown type '{named[:20]}', expected one of {', '.join(_TYPES)}")
    try:
        return kind, _typed(kind, value)
    except (ValueError, TypeError, binascii.Error):
        raise LocalError(f"property {name[:40]!r}: {str(value)[:40]!r} is not a value of type {named}") from None


def _typed(kind: PropertyType, value: object) -> Value:
    if kind is PropertyType.BOOL:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if isinstance(value, bool):
            return value
    elif kind in _WHOLE:
        if isinstance(value, int) and not isinstance(value, bool) or isinstance(value, str) and _WHOLE_TEXT.fullmatch(value):
            return int(value)
    elif isinstance(value, str):
        return value if kind is PropertyType.STRING else base64.b64decode(value, validate=True)
    raise ValueError(value)
