"""Log output of the shell: records on standard output in bmqtool's format, and the event file of `--log`.

| specifier | output |
|---|---|
| `%d` `%D` | time, `21NOV2026_09:36:37.123`, with microseconds |
| `%i` `%I` `%O` | time in ISO 8601, with milliseconds, with microseconds |
| `%p` `%t` `%T` | process, thread, thread in hexadecimal |
| `%s` `%c` | severity, category |
| `%f` `%F` `%l` | file with its path, file, line |
| `%m` | the message |
| `%u` | nothing |
| `%%` `\\n` `\\t` | themselves |

Times are UTC. A record that is printed during input replaces the line with the prompt, which is printed again after it.
Created by `command.py` for both modes; the texts in the records are from `printing.py`.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from typing import TextIO

from bmqtwist.sdk.results import EventKind, SessionEvent

TRACE = 5
_LEVELS = {"trace": TRACE, "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING,
           "error": logging.ERROR, "fatal": logging.CRITICAL, "silent": logging.CRITICAL + 10}
_NAMES = {TRACE: "TRACE", logging.DEBUG: "DEBUG", logging.INFO: "INFO", logging.WARNING: "WARN",
          logging.ERROR: "ERROR", logging.CRITICAL: "FATAL"}
_SPECIFIER = re.compile(r"%([dDiIOptTscfFlmu%])|\\([nt\\])")
_ESCAPED = {"n": "\n", "t": "\t", "\\": "\\"}
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FILE_FORMAT = "%I %p:%t %s %c %m \\n"
_ERASE_LINE = "\r\x1b[K"


class RecordFormat(logging.Formatter):
    """Formatter with the template language of bmqtool's logger."""

    def __init__(self, template: str) -> None:
        super().__init__()
        self._template = template

    def format(self, record: logging.LogRecord) -> str:
        return _SPECIFIER.sub(
            lambda found: _ESCAPED[found[2]] if found[2] else _format_part(found[1], record), self._template)


def _format_part(letter: str, record: logging.LogRecord) -> str:
    parts: dict[str, Callable[[], str]] = {
        "d": lambda: _old_time(record.created, 3), "D": lambda: _old_time(record.created, 6),
        "i": lambda: _iso_time(record.created, 0), "I": lambda: _iso_time(record.created, 3),
        "O": lambda: _iso_time(record.created, 6), "p": lambda: str(record.process),
        "t": lambda: str(record.thread), "T": lambda: f"{record.thread or 0:X}",
        "s": lambda: _NAMES.get(record.levelno, record.levelname), "c": lambda: record.name,
        "f": lambda: record.pathname, "F": lambda: record.filename, "l": lambda: str(record.lineno),
        "m": lambda: _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", record.getMessage()),
        "u": lambda: "", "%": lambda: "%"}
    return parts[letter]()


def _split_time(seconds: float, digits: int) -> tuple[time.struct_time, str]:
    micros = int(seconds * 1e6)
    return time.gmtime(micros // 1_000_000), f"{micros % 1_000_000:06d}"[:digits]


def _old_time(seconds: float, digits: int) -> str:
    whole, fraction = _split_time(seconds, digits)
    return f"{time.strftime('%d%b%Y_%H:%M:%S', whole).upper()}.{fraction}"


def _iso_time(seconds: float, digits: int) -> str:
    whole, fraction = _split_time(seconds, digits)
    return time.strftime("%Y-%m-%dT%H:%M:%S", whole) + (f".{fraction}" if digits else "") + "+00:00"


class LogOutput(logging.Handler):
    """Handler that writes records to standard output. `prompt_line` returns the prompt with the typed text during input,
    else None."""

    def __init__(self, template: str, stream: TextIO | None = None) -> None:
        super().__init__()
        self.setFormatter(RecordFormat(template))
        self._stream = stream or sys.stdout
        self.prompt_line: Callable[[], str | None] = lambda: None
        self.error: OSError | None = None  # error of the first failed write; later output is discarded

    def emit(self, record: logging.LogRecord) -> None:
        self.print(self.format(record))

    def print(self, text: str) -> None:
        self.acquire()
        try:
            line = self.prompt_line()
            if line is not None:
                text = f"{_ERASE_LINE}{text if text.endswith(chr(10)) else text + chr(10)}{line}"
            if self.error is None:
                self._stream.write(text)
                self._stream.flush()
        except OSError as error:
            self.error = error
        finally:
            self.release()


def make_log(output: LogOutput, verbosity: str) -> logging.Logger:
    """Return a logger that writes records from this severity on. With a severity below `info`, the client library's log is
    added."""
    level = _LEVELS[verbosity.lower()]
    log = logging.Logger("BMQ.SHELL", level)
    log.addHandler(output)
    if level < logging.INFO:
        library = logging.getLogger("bmqtwist.sdk")
        library.setLevel(level)
        library.addHandler(output)
    return log


class EventFile:
    """Event file of `--log`: one line per PUT, ACK, PUSH, CONFIRM and session event."""

    def __init__(self, path: str) -> None:
        self._handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace") if path else None
        if self._handler is not None:
            self._handler.terminator = ""
            self._handler.setFormatter(RecordFormat(_FILE_FORMAT))

    @property
    def enabled(self) -> bool:
        return self._handler is not None

    def write(self, category: str, *parts: object) -> None:
        """Write a line of parts. A GUID is written in hexadecimal; callers pass a payload as `payload_text(payload)`."""
        if self._handler is not None:
            text = "|".join(each.hex().upper() if isinstance(each, bytes) else str(each) for each in parts)
            self._handler.handle(logging.LogRecord(category, logging.INFO, __file__, 0, "%s", (text,), None))

    def write_event(self, event: SessionEvent) -> None:
        self.write("SESSION", event.kind.name, event.uri if event.kind is EventKind.QUEUE_REOPEN_RESULT else "")

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()


def payload_text(payload: bytes) -> str:
    return payload.decode("utf-8", "backslashreplace").replace("\n", "\\n")
