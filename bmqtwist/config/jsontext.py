"""JSON that remembers where it stands: each value with its line and column.

The standard reader forgets positions, and an operator who is told "expected an integer" wants the line. This reader is
total (every text either gives a value or raises JsonError), bounded in depth, and follows RFC 8259: no comments, no
trailing commas, no NaN. A member that appears twice keeps its last value and is listed in `repeated`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TypeAlias

from bmqtwist.errors import LocalError

JSON_DEPTH_MAX = 64  # nesting of objects and arrays; the deepest member of a configuration is at 9
JSON_CHARS_MAX = 16 << 20  # one configuration file

_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_NUMBER_CHARS_MAX = 400  # longer than any double written out; keeps the conversion of digits cheap

Value: TypeAlias = "dict[str, Located] | list[Located] | str | int | float | bool | None"


class JsonError(LocalError):
    """The text is not JSON: `line` and `column` (both from 1) say where, `reason` why."""

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {reason}")
        self.reason, self.line, self.column = reason, line, column


@dataclass(slots=True)
class Located:
    """One value and the line and column (both from 1) of its first character."""

    value: Value
    line: int
    column: int
    repeated: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """What was found, in words for a message: `string "x"`, `number 3`, `an object`."""
        value = self.value
        if value is None:
            return "null"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            shown = value if len(value) <= 60 else value[:57] + "..."
            return f'string "{shown}"'
        if isinstance(value, (int, float)):
            return f"number {value}"
        return "an object" if isinstance(value, dict) else "an array"

    def plain(self) -> object:
        """The value without positions, as the standard reader would give it."""
        if isinstance(self.value, dict):
            return {name: child.plain() for name, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value


def parse(text: str) -> Located:
    """The one value that `text` holds, or JsonError."""
    if len(text) > JSON_CHARS_MAX:
        raise JsonError(f"longer than {JSON_CHARS_MAX} characters", 1, 1)
    reader = _Reader(text[1:] if text.startswith("\ufeff") else text)
    value, at = reader.value(reader.blank(0), 0)
    at = reader.blank(at)
    if at != len(reader.text):
        raise reader.error("unexpected text after the end of the document", at)
    return value


class _Reader:
    """Recursive descent; every method takes the offset to start at and returns the one behind what it read."""

    __slots__ = ("text", "_starts")

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0] + [match.end() for match in re.finditer("\n", text)]

    def position(self, at: int) -> tuple[int, int]:
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1

    def error(self, reason: str, at: int) -> JsonError:
        return JsonError(reason, *self.position(at))

    def blank(self, at: int) -> int:
        return _BLANK.match(self.text, at).end()  # type: ignore[union-attr]

    def value(self, at: int, depth: int) -> tuple[Located, int]:
        text = self.text
        if at >= len(text):
            raise self.error("unexpected end of file", at)
        if depth > JSON_DEPTH_MAX:
            raise self.error(f"nested deeper than {JSON_DEPTH_MAX} levels", at)
        line, column = self.position(at)
        first = text[at]
        if first == "{":
            return self._object(at, depth, line, column)
        if first == "[":
            return self._array(at, depth, line, column)
        if first == '"':
            string, end = self._string(at)
            return Located(string, line, column), end
        number = _NUMBER.match(text, at)
        if number:
            return Located(self._number(number, at), line, column), number.end()
        for word, meaning in _WORDS.items():
            if text.startswith(word, at):
                return Located(meaning, line, column), at + len(word)
        raise self.error(f"unexpected character {first!r}", at)

    def _number(self, match: re.Match[str], at: int) -> int | float:
        digits = match.group()
        if len(digits) > _NUMBER_CHARS_MAX:
            raise self.error("number with too many digits", at)
        if match.group(1) is None and match.group(2) is None:
            return int(digits)
        number = float(digits)
        if number - number != 0.0:
            raise self.error("number too large", at)
        return number

    def _object(self, at: int, depth: int, line: int, column: int) -> tuple[Located, int]:
        members: dict[str, Located] = {}
        here = Located(members, line, column)
        at = self.blank(at + 1)
        if self.text.startswith("}", at):
            return here, at + 1
        while True:
            if not self.text.startswith('"', at):
                raise self.error(self._expected("the name of a member in double quotes", at), at)
            name, at = self._string(at)
            at = self.blank(at)
            if not self.text.startswith(":", at):
                raise self.error(self._expected("':' after the name of a member", at), at)
            value, at = self.value(self.blank(at + 1), depth + 1)
            if name in members:
                here.repeated.append(name)
            members[name] = value
            at, more = self._separator(at, "}")
            if not more:
                return here, at

    def _array(self, at: int, depth: int, line: int, column: int) -> tuple[Located, int]:
        values: list[Located] = []
        here = Located(values, line, column)
        at = self.blank(at + 1)
        if self.text.startswith("]", at):
            return here, at + 1
        while True:
            value, at = self.value(at, depth + 1)
            values.append(value)
            at, more = self._separator(at, "]")
            if not more:
                return here, at

    def _separator(self, at: int, closing: str) -> tuple[int, bool]:
        at = self.blank(at)
        if self.text.startswith(closing, at):
            return at + 1, False
        if not self.text.startswith(",", at):
            raise self.error(self._expected(f"',' or '{closing}'", at), at)
        return self.blank(at + 1), True

    def _expected(self, what: str, at: int) -> str:
        return f"expected {what}, found {self.text[at]!r}" if at < len(self.text) else "unexpected end of file"

    def _string(self, at: int) -> tuple[str, int]:
        start, text, parts = at, self.text, []
        at += 1
        while True:
            plain = _PLAIN.match(text, at)
            parts.append(plain.group())  # type: ignore[union-attr]
            at = plain.end()  # type: ignore[union-attr]
            if at >= len(text):
                raise self.error("string without an end", start)
            if text[at] == '"':
                return "".join(parts), at + 1
            if text[at] != "\\":
                raise self.error(f"control character {text[at]!r} in a string", at)
            char, at = self._escape(at)
            parts.append(char)

    def _escape(self, at: int) -> tuple[str, int]:
        code = self.text[at + 1:at + 2]
        if code in _ESCAPES:
            return _ESCAPES[code], at + 2
        unit = self._hex(at)
        if unit is None:
            raise self.error("bad escape in a string", at)
        if 0xD800 <= unit < 0xDC00:
            low = self._hex(at + 6)
            if low is not None and 0xDC00 <= low < 0xE000:
                return chr(0x10000 + (unit - 0xD800 << 10) + low - 0xDC00), at + 12
        if 0xD800 <= unit < 0xE000:
            raise self.error("half of a surrogate pair in a string", at)
        return chr(unit), at + 6

    def _hex(self, at: int) -> int | None:
        if not self.text.startswith("\\u", at):
            return None
        digits = _HEX4.match(self.text, at + 2)
        return int(digits.group(), 16) if digits else None
