"""Log output through twisted.logger: the report, and the observer that writes the file and the console.

    Report call  -->  TwistedReport  --event-->  twisted.logger  --event-->  LogObserver  -->  LogFile, console
                          |
                          +-- ALARM and PANIC: copy to the alarm channel, at most one per minute and source

The process creates one `Logs`, hands `Logs.report` to the broker and calls `Logs.close` at its end; twisted.logger
calls the observer. A line that cannot be written is dropped and counted; the next written line is preceded by the count. A
rotation that fails leaves the present file in use. Both are in `Report.failed_files` until a write succeeds.

`tap.py` and `cli/bmqbrkr.py` create `Logs`. The format of a line is in `format.py`, the statistics log in
`daemon/statistics_log.py`. Severities and files are configured (`config/broker.py: LogController`).
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from io import FileIO
from itertools import islice

from twisted.logger import ILogObserver, Logger, LogLevel, eventAsText, formatEvent
from zope.interface import implementer  # type: ignore[import-untyped]

from bmqtwist.alarms import AlarmKind
from bmqtwist.config.broker import LogController
from bmqtwist.errors import LocalError
from bmqtwist.logs.background import Stream
from bmqtwist.logs.format import SEVERITIES, FileNames, Levels, LineFormat, LogEntry, escape_controls
from bmqtwist.report import FailedFiles, LogLine, RecordedReport

RETRY_S = 1.0  # between two attempts to rotate
ROTATION_SECONDS = 86400.0  # age at which a log file is rotated, as with the original

_LEVELS = {"FATAL": LogLevel.critical, "ERROR": LogLevel.error, "WARN": LogLevel.warn, "INFO": LogLevel.info,
           "DEBUG": LogLevel.debug}
_NAMES = {level: name for name, level in _LEVELS.items()}
COPY_INTERVAL = 60.0  # seconds between two copies of one source
SOURCES_MAX = 4096  # a source is a line of code and a category, so this limit is not reached in practice
LINES_MAX = 2_000
CHARS_MAX = 1 << 20  # of all lines together
LINE_CHARS_MAX = 8_192  # per line; the file has the whole line


class TwistedReport(RecordedReport):
    """`Report` that logs through twisted.logger with the category, file and line of the caller. `lines`: the last lines of
    the whole log."""

    def __init__(self, levels: Levels, alarms: Stream, clock: Callable[[], float] = time.monotonic,
                 observer: ILogObserver | None = None, lines: LogTail | None = None) -> None:
        super().__init__()
        self._lines = lines or LogTail()
        self._levels, self._alarms, self._clock = levels, alarms, clock
        self._observer = observer
        self._loggers: dict[str, Logger] = {}
        self._throttle = AlarmThrottle()
        self.debugging = levels.highest_threshold >= SEVERITIES["DEBUG"]

    def debug(self, text: str, *args: object) -> None:
        if self.debugging:
            self._emit("DEBUG", text, args)

    def info(self, text: str, *args: object) -> None:
        self._emit("INFO", text, args)

    def warn(self, text: str, *args: object) -> None:
        self._emit("WARN", text, args)

    def error(self, text: str, *args: object) -> None:
        self._emit("ERROR", text, args)

    def alarm(self, kind: AlarmKind, text: str, *args: object) -> None:
        text = text % args if args else text
        line = f"{kind.severity} {kind.head()}{text}"
        self._emit("ERROR", line, ())
        caller = sys._getframe(1)
        if self._throttle.admits((kind.category, caller.f_code.co_filename, caller.f_lineno), self._clock()):
            _write(self._alarms, f"{kind.severity}: {line}\n")
        if self.recorder is not None:
            self.recorder.on_alarm(kind, text)

    def tail(self, count: int = 200, level: str = "TRACE", after: int = 0) -> list[LogLine]:
        return self._lines.lines(count, level, after)

    def _emit(self, severity: str, text: str, args: tuple[object, ...]) -> None:
        frame = sys._getframe(2)
        category = frame.f_globals.get("__name__", "")
        if SEVERITIES[severity] > self._levels.threshold(category):
            return
        logger = self._loggers.get(category)
        if logger is None:
            logger = self._loggers[category] = Logger(category, observer=self._observer)
        logger.emit(_LEVELS[severity], "{text}", text=text % args if args else text, file=frame.f_code.co_filename,
                    line=frame.f_lineno)


class LogFile:
    """Log file with rotation, written by any thread. `rotation_bytes`, `max_age_days` and `rotation_seconds`: 0 = never."""

    def __init__(self, pattern: str, rotation_bytes: int, max_age_days: int, wall: Callable[[], float],
                 rotation_seconds: float = ROTATION_SECONDS, failed: FailedFiles | None = None) -> None:
        self._names, self._wall = FileNames(pattern), wall
        self._failed, self._lock = failed or FailedFiles(), threading.RLock()  # a finalizer may log
        self._failed_at = float("-inf")  # of the last rotation
        self._rotation_bytes, self._max_age_days, self._rotation_seconds = rotation_bytes, max_age_days, rotation_seconds
        self.dropped_lines = 0  # lines that could not be written
        self._unreported = 0  # of them
        try:
            path = self._names.name_at(wall(), os.getpid())
            self._use(path, _open(path))
        except OSError as error:
            raise LocalError(f"The log file cannot be opened: {error}. Create the directory of '{pattern}' "
                             "first.") from None

    def _use(self, path: str, file: FileIO) -> None:
        self.path, self._file, self._opened_at, self._size = path, file, self._wall(), file.tell()

    def write(self, text: str) -> None:
        """Append text; rotate first if it is due. Without text: try again what failed."""
        with self._lock:
            try:
                rotated = self._rotate_if_due()
                if self._unreported:
                    self._append(f"({self._unreported} lines before this one could not be written)\n")
                self._unreported = 0
                self._append(text)
            except OSError as error:
                lost = text.count("\n")
                self.dropped_lines, self._unreported = self.dropped_lines + lost, self._unreported + lost
                self._fail(f"cannot be written: {error}")
                return
            if rotated:
                self._failed.discard(self._names.text)

    def _append(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        written = self._file.write(data)
        self._size += written
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _fail(self, reason: str) -> None:
        self._failed.add(self._names.text, reason, partial(self.write, ""))

    def _rotate_if_due(self) -> bool:
        """Return False if a rotation is due and has failed: the present file stays in use."""
        if not self._is_rotation_due():
            return True
        now = self._wall()
        if abs(now - self._failed_at) >= RETRY_S:
            try:
                self._rotate()
                return True
            except OSError as error:
                self._failed_at = now
                self._fail(f"cannot be rotated: {error}")
        return False

    def _is_rotation_due(self) -> bool:
        if self._rotation_bytes and self._size >= self._rotation_bytes:
            return True
        return bool(self._rotation_seconds) and self._wall() - self._opened_at >= self._rotation_seconds

    def _rotate(self) -> None:
        """Open the next file, then close the present one."""
        old, path = self._file, self._names.name_at(self._wall(), os.getpid())
        replaces = path == self.path
        new = _open(f"{path}.new" if replaces else path)
        try:
            if replaces:
                with suppress(FileNotFoundError):  # moved by another program
                    os.rename(path, self._free_name())
                os.rename(f"{path}.new", path)
        except OSError:
            new.close()
            raise
        self._use(path, new)
        with suppress(OSError):
            old.close()
        with suppress(OSError):
            self.delete_old_files()

    def _free_name(self) -> str:
        full, number = self._names.rotated_name(self.path, self._wall()), 0
        while os.path.exists(full if not number else f"{full}.{number}"):
            number += 1
        return full if not number else f"{full}.{number}"

    def delete_old_files(self) -> Iterable[str]:
        """Delete files of this log older than `max_age_days` and return their names."""
        if self._max_age_days <= 0:
            return ()
        folder = os.path.dirname(self.path) or "."
        before, matcher, gone = self._wall() - self._max_age_days * 86400, self._names.pattern(), []
        for entry in os.scandir(folder):
            if matcher.fullmatch(entry.name) and entry.path != self.path and entry.is_file(follow_symlinks=False) \
                    and entry.stat().st_mtime < before:
                os.unlink(entry.path)
                gone.append(entry.name)
        return gone

    def reopen(self) -> None:
        """Continue in a new file of the same name after an external rotation. OSError: the present file stays open."""
        with self._lock:
            old = self._file
            self._use(self.path, _open(self.path))
            with suppress(OSError):
                old.close()

    def close(self) -> None:
        self._file.close()


def _open(path: str) -> FileIO:
    return open(path, "ab", buffering=0)


@implementer(ILogObserver)
class LogObserver:
    """Renders events and writes them to the file (all) and the console (up to its threshold); `lines` stores the last
    ones."""

    def __init__(self, file: LogFile | None, file_format: LineFormat, console: Stream | None,
                 console_format: LineFormat, console_threshold: int, lines: LogTail | None = None) -> None:
        self._lines = lines
        self._file, self._file_format = file, file_format
        self._console, self._console_format, self._console_threshold = console, console_format, console_threshold
        self._process = os.getpid()

    def __call__(self, event: dict[str, object]) -> None:
        """Called by twisted.logger for every event; never raises."""
        record = self._record(event)
        if self._lines is not None:
            self._lines.add(record)
        if self._file is not None:
            self._file.write(self._file_format.render(record))
        if self._console is not None and SEVERITIES[record.severity] <= self._console_threshold:
            _write(self._console, self._console_format.render(record))

    def _record(self, event: dict[str, object]) -> LogEntry:
        text = event.get("text")
        if not isinstance(text, str):  # an event of Twisted or another library
            text = (eventAsText(event, includeTimestamp=False, includeSystem=False) if "log_failure" in event
                    else formatEvent(event))
        place, line, wall = event.get("file", "-"), event.get("line", 0), event.get("log_time")
        return LogEntry(wall if isinstance(wall, float) else time.time(),
                      _NAMES.get(event.get("log_level"), "INFO"),
                      str(event.get("log_namespace", "-")), text, str(place), line if isinstance(line, int) else 0,
                      threading.get_ident(), self._process)


class Logs:
    """Log of one process, configured by `taskConfig.logController`.

    `console` None: stdout has no reader, or twistd writes there. Raises LocalError if the file cannot be opened.
    """

    def __init__(self, settings: LogController, console: Stream | None, alarms: Stream,
                 wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        levels, lines = Levels(settings.logging_verbosity, settings.categories), LogTail()
        self.report = TwistedReport(levels, alarms, clock, None, lines)
        self.file = LogFile(settings.file_name, settings.rotation_bytes, settings.file_max_age_days, wall,
                            failed=self.report.failed_files) if settings.file_name else None
        if self.file is not None:
            self.file.delete_old_files()
        self.observer = LogObserver(self.file, LineFormat(settings.logfile_format), console,
                                    LineFormat(settings.console_format),
                                    SEVERITIES[settings.console_severity_threshold], lines)

    def reopen(self) -> None:
        """Reopen the file. OSError: the present file stays open."""
        if self.file is not None:
            self.file.reopen()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def _write(stream: Stream, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        pass  # the reader has closed; the log file has the line


class AlarmThrottle:
    """Rate limit of alarm copies: one per minute and source."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[object, float] = {}

    def admits(self, source: object, now: float) -> bool:
        """Return whether a copy of an alarm of `source` may be written at `now` (monotonic seconds), and record it."""
        last = self._last.get(source)
        if last is not None and now - last < COPY_INTERVAL:
            return False
        if len(self._last) >= SOURCES_MAX:
            self._last = {key: shown for key, shown in self._last.items() if now - shown < COPY_INTERVAL}
            if len(self._last) >= SOURCES_MAX:
                return False
        self._last[source] = now
        return True


class LogTail:
    """Ring of the last log lines, numbered from 1."""

    __slots__ = ("_lines", "_chars", "newest")

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque()
        self._chars = self.newest = 0

    def add(self, record: LogEntry) -> None:
        """Add a line; the oldest lines beyond the limits are dropped."""
        text = record.message
        if len(text) > LINE_CHARS_MAX:
            text = f"{text[:LINE_CHARS_MAX]}... ({len(text)} characters)"
        self.newest += 1
        self._lines.append(LogLine(self.newest, record.wall, record.severity, record.category, escape_controls(text)))
        self._chars += len(self._lines[-1].text)
        while self._lines and (len(self._lines) > LINES_MAX or self._chars > CHARS_MAX):
            self._chars -= len(self._lines.popleft().text)

    def lines(self, count: int, level: str, after: int = 0) -> list[LogLine]:
        """Return the last `count` lines after line `after` with at least the severity `level` (an unknown name means all),
        oldest first."""
        threshold = SEVERITIES.get(level.upper(), max(SEVERITIES.values()))
        lines = list(self._lines)  # other threads may add lines
        wanted = (line for line in reversed(lines) if line.n > after
                  and SEVERITIES.get(line.level, 0) <= threshold)
        return list(islice(wanted, max(0, count)))[::-1]
