"""Interface by which the pure parts report to the operator, and a list of lines that serves as one.

Lines are templates with arguments in the manner of `%`: the text is put together only when some reader wants the
line, so a switched-off `debug` costs one call. What runs once per message asks `report.debugging` first, or says
nothing at all.

>>> report = ListReport()
>>> report.info("%s: open queue [queue: '%s']", "task:17", "bmq://d/q")
>>> report.alarm("QUEUE_STUCK", "Queue '%s' seems to be stuck.", "bmq://d/q")
>>> report.lines
[('INFO', "task:17: open queue [queue: 'bmq://d/q']"), ('ALARM', "[QUEUE_STUCK] Queue 'bmq://d/q' seems to be stuck.")]
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

INTERNAL_ERROR: Final = "INTERNAL_ERROR"  # category of an alarm about a mistake in this program


NAME_CHARS_MAX: Final = 128  # of a name that a peer has given, where it is shown


def shown(text: str, chars_max: int = NAME_CHARS_MAX) -> str:
    """What a peer has sent, fit for a line of a log, a name of a metric, a page: one line, and not longer than that.

    >>> shown("a\\nb"), shown("x" * 500, 4)
    ('a\\\\x0ab', 'xxxx...')
    """
    if len(text) > chars_max:
        text = text[:chars_max] + "..."
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else f"\\x{ord(each):02x}" for each in text])


def stack(error: BaseException) -> str:
    """Where an exception was raised, for the end of an alarm."""
    return "".join(traceback.format_exception(error)).rstrip()


class LogLine(NamedTuple):
    """One line of the log: its number, when (seconds since the epoch), how severe, who, what."""

    n: int
    at: float
    level: str
    category: str
    text: str


class Watcher(Protocol):
    """Who keeps what happened, for those who look back. It never raises."""

    def happened(self, kind: str, text: str, detail: Mapping[str, object]) -> None:
        """See `Report.note`."""

    def alarmed(self, severity: str, category: str, text: str) -> None:
        """An alarm was raised; `severity` is ALARM or PANIC."""


class Report(Protocol):
    """Where a part says what it did. `text % args` is the line; without args the text is taken as it is."""

    @property
    def debugging(self) -> bool:
        """Whether anybody would see a `debug` line."""

    def debug(self, text: str, *args: object) -> None:
        """For somebody who looks for a mistake."""

    def info(self, text: str, *args: object) -> None:
        """A change of state in a normal life."""

    def warn(self, text: str, *args: object) -> None:
        """Something an operator may want to look into; work goes on."""

    def error(self, text: str, *args: object) -> None:
        """Something failed."""

    def alarm(self, category: str, text: str, *args: object) -> None:
        """A person has to act: logged as `ALARM [CATEGORY] text`, and copied to the alarm channel."""

    def panic(self, category: str, text: str, *args: object) -> None:
        """A person has to act now: logged as `PANIC [CATEGORY] text`, and copied to the alarm channel."""

    def note(self, kind: str, text: str, **detail: object) -> None:
        """An event that people look back for: kept, and not logged. `kind` is one of `view.events.KINDS`; `detail` is for
        programs."""

    def watch(self, watcher: Watcher) -> None:
        """From now on tell this watcher of events and alarms."""

    def tail(self, count: int = 200, level: str = "TRACE", after: int = 0) -> list[LogLine]:
        """The last lines of the log that are as severe as `level` and younger than line `after`, oldest first."""


class Watched:
    """The part of a report that concerns a watcher."""

    __slots__ = ("watcher",)

    def __init__(self) -> None:
        self.watcher: Watcher | None = None

    def watch(self, watcher: Watcher) -> None:
        self.watcher = watcher

    def note(self, kind: str, text: str, **detail: object) -> None:
        if self.watcher is not None:
            self.watcher.happened(kind, text, detail)


class LineLimiter:
    """At most LINES_PER_S lines a second, or in `seconds`, from a source that could say one per message."""

    __slots__ = ("_seconds", "_since", "_lines")
    LINES_PER_S: Final = 10

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds, self._since, self._lines = seconds, float("-inf"), 0

    def admits(self, now: float) -> bool:
        """May one more line be said at `now` (seconds, monotonic)?"""
        if now - self._since >= self._seconds:
            self._since, self._lines = now, 0
        self._lines += 1
        return self._lines <= self.LINES_PER_S


class ListReport(Watched):
    """Keeps every line as (severity, text), for checks of a configuration and for tests."""

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

    def _raise(self, severity: str, category: str, text: str, *args: object) -> None:
        text = text % args if args else text
        self._add(severity, f"[{category}] {text}")
        if self.watcher is not None:
            self.watcher.alarmed(severity, category, text)

    def alarm(self, category: str, text: str, *args: object) -> None:
        self._raise("ALARM", category, text, *args)

    def panic(self, category: str, text: str, *args: object) -> None:
        self._raise("PANIC", category, text, *args)

    def tail(self, count: int = 200, level: str = "TRACE", after: int = 0) -> list[LogLine]:
        """The last lines of whatever severity; when they were said is not known."""
        lines = [LogLine(number, 0.0, severity, "", text) for number, (severity, text) in enumerate(self.lines, 1)]
        return lines[after:][-count:] if count > 0 else []

    def texts(self, severity: str) -> list[str]:
        return [text for kind, text in self.lines if kind == severity]
