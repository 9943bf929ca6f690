"""Log, alarm and event interface of the pure parts, and `ListReport`, which collects lines for tests and checks.

A line is a %-template with arguments, formatted only if its level is enabled: a disabled `debug` costs one call. Code that
runs once per message tests `report.debugging` first, or logs nothing.

>>> from bmqtwist import alarms
>>> report = ListReport()
>>> report.info("%s: open queue [queue: '%s']", "task:17", "bmq://d/q")
>>> report.alarm(alarms.QUEUE_STUCK, "Queue '%s' seems to be stuck.", "bmq://d/q")
>>> report.lines
[('INFO', "task:17: open queue [queue: 'bmq://d/q']"), ('ALARM', "[QUEUE_STUCK] Queue 'bmq://d/q' seems to be stuck.")]
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Mapping
from typing import Final, NamedTuple, Protocol

from bmqtwist.alarms import AlarmKind

NAME_CHARS_MAX: Final = 128  # shown of a name that a peer sent


def shown(text: str, chars_max: int = NAME_CHARS_MAX) -> str:
    """Make a text from a peer safe for log lines, metric names and pages: one printable line of at most `chars_max`.

    >>> shown("a\\nb"), shown("x" * 500, 4)
    ('a\\\\x0ab', 'xxxx...')
    """
    if len(text) > chars_max:
        text = text[:chars_max] + "..."
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else f"\\x{ord(each):02x}" for each in text])


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an exception, without the final line break."""
    return "".join(traceback.format_exception(error)).rstrip()


class LogLine(NamedTuple):
    """One line of the log: number, seconds since the epoch, severity, category, text."""

    n: int
    at: float
    level: str
    category: str
    text: str


class FailedFiles:
    """Files of the log, statistics and console that cannot be written or rotated at present, each with the reason and a
    function that tries again. Owners add and discard files in any thread; `daemon/housekeeping.py` raises the alarm, tries
    again every second, and clears it."""

    __slots__ = ("_failed",)

    def __init__(self) -> None:
        self._failed: dict[str, tuple[str, Callable[[], object]]] = {}

    def add(self, path: str, reason: str, retry: Callable[[], object]) -> None:
        self._failed[path] = reason, retry

    def discard(self, path: str) -> None:
        self._failed.pop(path, None)

    def items(self) -> list[tuple[str, tuple[str, Callable[[], object]]]]:
        """Return (path, (reason, retry)) of each file."""
        return list(self._failed.items())

    def has(self, subject: str) -> bool:
        """Return whether the subject of an alarm, `File 'path'`, has failed."""
        return any(subject == f"File '{path}'" for path, _ in self.items())


class EventRecorder(Protocol):
    """Records events and alarms (`view/events.py`); never raises."""

    def on_event(self, kind: str, text: str, detail: Mapping[str, object]) -> None:
        """Record an event; the arguments are those of `Report.record_event`."""

    def on_alarm(self, kind: AlarmKind, text: str) -> None:
        """Record an alarm."""


class Report(Protocol):
    """Receives log lines, alarms and events. The line is `text % args`; without args it is the text itself."""

    @property
    def debugging(self) -> bool:
        """True if `debug` lines are enabled."""

    @property
    def failed_files(self) -> FailedFiles:
        """Files that cannot be written at present."""

    def debug(self, text: str, *args: object) -> None:
        """Log a detail for the analysis of an error."""

    def info(self, text: str, *args: object) -> None:
        """Log a normal change of state."""

    def warn(self, text: str, *args: object) -> None:
        """Log a condition that an operator may want to inspect; the operation continues."""

    def error(self, text: str, *args: object) -> None:
        """Log a failed operation."""

    def alarm(self, kind: AlarmKind, text: str, *args: object) -> None:
        """Log `ALARM [CATEGORY] id: text`, or PANIC if the kind has this severity, and copy it to the alarm channel;
        `alarms.py` declares the kinds."""

    def record_event(self, kind: str, text: str, **detail: object) -> None:
        """Record an event for the event log of the node, without a log line. `kind` is one of `view.events.KINDS`; `detail`
        is for programs."""

    def set_recorder(self, recorder: EventRecorder) -> None:
        """Pass events and alarms to this recorder from now on."""

    def tail(self, count: int = 200, level: str = "TRACE", after: int = 0) -> list[LogLine]:
        """The last lines of the log of at least the severity `level`, after line number `after`, oldest first."""


class RecordedReport:
    """Base class of reports: passes events and alarms to a recorder."""

    __slots__ = ("recorder", "failed_files")

    def __init__(self) -> None:
        self.recorder: EventRecorder | None = None
        self.failed_files = FailedFiles()

    def set_recorder(self, recorder: EventRecorder) -> None:
        self.recorder = recorder

    def record_event(self, kind: str, text: str, **detail: object) -> None:
        if self.recorder is not None:
            self.recorder.on_event(kind, text, detail)


class LineLimiter:
    """Limits a source to LINES_PER_S lines in each period of `seconds`."""

    __slots__ = ("_seconds", "_since", "_lines")
    LINES_PER_S: Final = 10

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds, self._since, self._lines = seconds, float("-inf"), 0

    def admits(self, now: float) -> bool:
        """Return whether one more line is allowed at `now` (seconds, monotonic)."""
        if now - self._since >= self._seconds:
            self._since, self._lines = now, 0
        self._lines += 1
        return self._lines <= self.LINES_PER_S


class RepeatLimiter:
    """Limits repetitions of lines: the first line of a key is allowed, then one in each period of `seconds`."""

    __slots__ = ("_seconds", "_known")

    def __init__(self, seconds: float = 60.0) -> None:
        self._seconds = seconds
        self._known: dict[Hashable, tuple[float, int]] = {}  # time of the last allowed line, number of omitted ones since

    def suffix(self, key: Hashable, now: float) -> str | None:
        """Return None if the line is omitted, else its end: the number of lines omitted since the last one, if any.
        `now`: seconds, monotonic; there must be a limited number of keys."""
        since, omitted = self._known.get(key, (float("-inf"), 0))
        if now - since < self._seconds:
            self._known[key] = since, omitted + 1
            return None
        self._known[key] = now, 0
        return f" ({omitted} more times in the last {now - since:.0f} s)" if omitted else ""


class ListReport(RecordedReport):
    """Collects every line as (severity, text), for checks of a configuration and for tests."""

    __slots__ = ("lines",)
    debugging = True

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def _add(self, severity: str, text: str, *args: object) -> None:
        self.lines.append((severity, text % args if args else text))

    def debug(self, text: str, *args: object) -> None:
        self._add("DEBUG", text, *args)

    def info(self, text: str, *args: object) -> None:
        self._add("INFO", text, *args)

    def warn(self, text: str, *args: object) -> None:
        self._add("WARN", text, *args)

    def error(self, text: str, *args: object) -> None:
        self._add("ERROR", text, *args)

    def alarm(self, kind: AlarmKind, text: str, *args: object) -> None:
        text = text % args if args else text
        self._add(kind.severity, f"{kind.head()}{text}")
        if self.recorder is not None:
            self.recorder.on_alarm(kind, text)

    def tail(self, count: int = 200, level: str = "TRACE", after: int = 0) -> list[LogLine]:
        """The last lines of all severities, without their time."""
        lines = [LogLine(number, 0.0, severity, "", text) for number, (severity, text) in enumerate(self.lines, 1)]
        return lines[after:][-count:] if count > 0 else []

    def texts(self, severity: str) -> list[str]:
        return [text for kind, text in self.lines if kind == severity]
