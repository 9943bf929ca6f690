"""Format of log lines, names of log files, and severity thresholds. Times are arguments; this module writes nothing.

Patterns of a line:

    %d %D %i %I   time as 21NOV2026_05:00:37.248, with microseconds, ISO 8601 without and with milliseconds (all UTC)
    %p %t %T      process, thread, thread in hexadecimal        %f %F  file, its last part        %l  line
    %s %c         severity, category     %m  message            %a %A %u  attributes (none here)  %%  a percent sign
    %x %X         message as the hexadecimal digits of its UTF-8 form, in lower and upper case
    %n            end of line; so are the two characters \\n; \\t is a tab

Patterns of a file name: %T = 20261121_050037, %Y %M %D %h %m %s its parts, %p = process, %% = a percent sign.

Called by `observer.py`; `daemon/preflight.py` checks patterns with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from msgspec import Struct

from bmqtwist.errors import LocalError

# Smaller numbers are more severe; a line is logged if its number does not exceed the threshold.
SEVERITIES = {"OFF": 0, "FATAL": 32, "ERROR": 64, "WARN": 96, "INFO": 128, "DEBUG": 160, "TRACE": 192}
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
MESSAGE_CHARS_MAX = 1 << 16  # of one record; longer messages are truncated
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class LogEntry(Struct, frozen=True):
    """One log line before its formatting. `wall`: seconds since the epoch."""

    wall: float
    severity: str
    category: str
    message: str
    file: str = "-"
    line: int = 0
    thread: int = 0
    process: int = 0


def date_text(wall: float, digits: int = 3) -> str:
    """Return a time as `21NOV2026_05:00:37.248`, UTC, with `digits` of the fraction of the second."""
    micros = round(wall * 1_000_000)
    at = datetime.fromtimestamp(micros // 1_000_000, UTC)
    fraction = f"{micros % 1_000_000:06}"[:digits]
    return f"{at.day:02}{_MONTHS[at.month - 1]}{at.year:04}_{at:%H:%M:%S}.{fraction}"


def _iso(wall: float, digits: int) -> str:
    at = datetime.fromtimestamp(wall, UTC)
    fraction = f".{at.microsecond // 1000:03}" if digits else ""
    return f"{at:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def escape_controls(text: str) -> str:
    """Escape directional marks and control characters except line ends and tabs, so that text of a peer cannot control a
    terminal or hide parts of a line."""
    return _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _bounded(text: str) -> str:
    if len(text) <= MESSAGE_CHARS_MAX:
        return text
    return f"{text[:MESSAGE_CHARS_MAX]}... ({len(text)} characters)"


_FIELDS: dict[str, Callable[[LogEntry], str]] = {
    "d": lambda record: date_text(record.wall),
    "D": lambda record: date_text(record.wall, 6),
    "i": lambda record: _iso(record.wall, 0),
    "I": lambda record: _iso(record.wall, 3),
    "p": lambda record: str(record.process),
    "t": lambda record: str(record.thread),
    "T": lambda record: f"{record.thread:X}",
    "s": lambda record: record.severity,
    "f": lambda record: record.file,
    "F": lambda record: record.file.rpartition("/")[2],
    "l": lambda record: str(record.line),
    "c": lambda record: record.category,
    "m": lambda record: escape_controls(_bounded(record.message)),
    "a": lambda record: "",
    "A": lambda record: "",
    "u": lambda record: "",
    "x": lambda record: _bounded(record.message).encode().hex(),
    "X": lambda record: _bounded(record.message).encode().hex().upper(),
    "n": lambda record: "\n",
    "%": lambda record: "%",
}


class LineFormat:
    """Parsed pattern of a log line."""

    __slots__ = ("_parts",)

    def __init__(self, pattern: str) -> None:
        self._parts: list[str | Callable[[LogEntry], str]] = []
        pattern = pattern.replace("\\n", "\n").replace("\\t", "\t")
        for literal, field in re.findall(r"([^%]+)|%(.?)", pattern, re.DOTALL):
            if literal:
                self._parts.append(literal)
            else:
                self._parts.append(_FIELDS.get(field, f"%{field}"))

    def render(self, record: LogEntry) -> str:
        """Return the line, with the line end of the pattern."""
        return "".join([part if isinstance(part, str) else part(record) for part in self._parts])


_DIGITS = {"T": r"\d{8}_\d{6}", "Y": r"\d{4}", "M": r"\d\d", "D": r"\d\d", "h": r"\d\d", "m": r"\d\d", "s": r"\d\d",
           "p": r"\d+", "%": "%"}


class FileNames:
    """Log file names of a pattern."""

    __slots__ = ("text",)

    def __init__(self, pattern: str) -> None:
        self.text = pattern

    def name_at(self, wall: float, process: int) -> str:
        """Return the name of a file that begins at `wall`."""
        at = datetime.fromtimestamp(wall, UTC)
        values = {"T": f"{at:%Y%m%d_%H%M%S}", "Y": f"{at:%Y}", "M": f"{at:%m}", "D": f"{at:%d}", "h": f"{at:%H}",
                  "m": f"{at:%M}", "s": f"{at:%S}", "p": str(process), "%": "%"}
        return re.sub(r"%(.)", lambda found: values.get(found[1], found[0]), self.text)

    @staticmethod
    def rotated_name(name: str, wall: float) -> str:
        """Return the new name of a full file whose successor has the same name."""
        return f"{name}.{datetime.fromtimestamp(wall, UTC):%Y%m%d_%H%M%S}"

    def pattern(self) -> re.Pattern[str]:
        """Return an expression for the last path component of every name of this pattern, rotated ones included."""
        parts = re.split(r"(%.)", self.text.rpartition("/")[2])
        expression = "".join(_DIGITS.get(part[1], re.escape(part)) if len(part) == 2 and part[0] == "%"
                             else re.escape(part) for part in parts)
        return re.compile(expression + r"(\.\d{8}_\d{6}(\.\d+)?)?")


class Levels:
    """Severity thresholds by category (case-insensitive); later entries take precedence."""

    __slots__ = ("_known", "_rules", "default")

    def __init__(self, default: str, categories: Sequence[str] = ()) -> None:
        self.default = _severity(default)
        self._rules: list[tuple[str, int]] = []
        for entry in categories:
            expression, _, rest = entry.partition(":")
            if not expression or not rest:
                raise LocalError(f"The log category '{entry}' is not of the form EXPR:SEVERITY:COLOR.")
            self._rules.append((expression.upper(), _severity(rest.partition(":")[0])))
        self._known: dict[str, int] = {}

    def threshold(self, category: str) -> int:
        """Return the number of the least severe lines logged for a category."""
        known = self._known.get(category)
        if known is None:
            known = self.default
            for expression, level in self._rules:
                if fnmatchcase(category.upper(), expression):
                    known = level
            self._known[category] = known
        return known

    @property
    def highest_threshold(self) -> int:
        """The largest threshold of all categories."""
        return max([self.default, *(level for _, level in self._rules)])


def _severity(name: str) -> int:
    try:
        return SEVERITIES[name.strip().upper()]
    except KeyError:
        raise LocalError(f"'{name}' is not a severity; expected one of {', '.join(SEVERITIES)}.") from None
