"""JSON decoder based on that of the standard library, which records the line of each value.

Nesting, size of the text and digits of numbers are limited; NaN, infinite numbers and halves of surrogate pairs are refused.
Of a repeated member the last value is used, and its name is listed in `repeated`. Called by `declare.py`, which decodes the
values to classes.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from json.decoder import JSONArray, JSONDecodeError, JSONObject, scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, TypeAlias

JSON_DEPTH_MAX = 64  # nesting of objects and arrays; configurations need 9
JSON_CHARS_MAX = 16 << 20  # size of one configuration file
_NUMBER_CHARS_MAX = 400  # longer than any double; limits the cost of the conversion


class Members(dict[str, "Located"]):
    """Members of an object. `repeated`: names that occur more than once."""

    __slots__ = ("repeated",)

    def __init__(self, pairs: list[tuple[str, Located]]) -> None:
        super().__init__(pairs)
        names = [_text(name) for name, _ in pairs]
        self.repeated = [name for at, name in enumerate(names) if name in names[:at]] if len(self) < len(names) else []


Value: TypeAlias = Members | list["Located"] | str | int | float | bool | None


@dataclass(slots=True)
class Located:
    """One value and the line (from 1) of its first character."""

    value: Value
    line: int

    def describe(self) -> str:
        """Describe the value for an error text: `string "x"`, `number 3`, `an object`."""
        value = self.value
        if isinstance(value, (dict, list)):
            return "an object" if isinstance(value, dict) else "an array"
        if isinstance(value, str):
            return f'string "{value if len(value) <= 60 else value[:57] + "..."}"'
        return json.dumps(value) if value is None or isinstance(value, bool) else f"number {value}"


def parse(text: str) -> Located:
    """Decode a JSON text. Raises JSONDecodeError."""
    if len(text) > JSON_CHARS_MAX:
        raise JSONDecodeError(f"Longer than {JSON_CHARS_MAX} characters", "", 0)
    text = text.removeprefix("\ufeff")
    found: Located = _LocatingDecoder(text).decode(text)
    return found


class _LocatingDecoder(json.JSONDecoder):
    def __init__(self, text: str) -> None:
        super().__init__(parse_int=_number(int), parse_float=_number(float), parse_constant=_number(float))
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._depth = -1
        self.parse_object = lambda at, strict, *_: JSONObject(at, strict, self._located, None, Members)
        self.parse_array = lambda at, _: JSONArray(at, self._located)
        self.parse_string = lambda *at: (_text((found := scanstring(*at))[0]), found[1])
        self._scan, self.scan_once = py_make_scanner(self), self._located

    def _located(self, text: str, at: int) -> tuple[Located, int]:
        self._depth += 1
        try:
            if self._depth > JSON_DEPTH_MAX:
                raise ValueError(f"Nested deeper than {JSON_DEPTH_MAX} levels")
            value, end = self._scan(text, at)
        except JSONDecodeError:
            raise
        except ValueError as error:
            raise JSONDecodeError(str(error), text, at) from None
        self._depth -= 1
        return Located(value, bisect_right(self._starts, at)), end


def _number(kind: type[int] | type[float]) -> Any:
    def convert(digits: str) -> int | float:
        if len(digits) > _NUMBER_CHARS_MAX or not digits.isascii():
            raise ValueError("Number with too many digits, or with characters other than 0 to 9")
        number = kind(digits)
        if number - number != 0:
            raise ValueError("Number too large")
        return number
    return convert


def _text(text: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("Half of a surrogate pair in a string")
    return text
