"""Input and output of the shell: command sources (script, terminal), log records on standard output in bmqtool's format,
and the event file of `--log`.

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

Times are UTC. A record printed during input erases the prompt and the typed text, and prints them again after it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from bmqtwist.cli.shell.commands import LINE_CHARS_MAX, VERBS
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
        return _SPECIFIER.sub(lambda found: _ESCAPED[found[2]] if found[2] else _part(found[1], record), self._template)


def _part(letter: str, record: logging.LogRecord) -> str:
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


def _fraction(seconds: float, digits: int) -> tuple[time.struct_time, str]:
    micros = int(seconds * 1e6)
    return time.gmtime(micros // 1_000_000), f"{micros % 1_000_000:06d}"[:digits]


def _old_time(seconds: float, digits: int) -> str:
    whole, fraction = _fraction(seconds, digits)
    return f"{time.strftime('%d%b%Y_%H:%M:%S', whole).upper()}.{fraction}"


def _iso_time(seconds: float, digits: int) -> str:
    whole, fraction = _fraction(seconds, digits)
    return time.strftime("%Y-%m-%dT%H:%M:%S", whole) + (f".{fraction}" if digits else "") + "+00:00"


class Console(logging.Handler):
    """Standard output. `typed` returns the prompt with the typed text during input, else None."""

    def __init__(self, template: str, stream: TextIO | None = None) -> None:
        super().__init__()
        self.setFormatter(RecordFormat(template))
        self._stream = stream or sys.stdout
        self.typed: Callable[[], str | None] = lambda: None
        self.failed: OSError | None = None  # error of the first failed write; later output is discarded

    def emit(self, record: logging.LogRecord) -> None:
        self.say(self.format(record))

    def say(self, text: str) -> None:
        self.acquire()
        try:
            typed = self.typed()
            if typed is not None:
                text = f"{_ERASE_LINE}{text if text.endswith(chr(10)) else text + chr(10)}{typed}"
            if self.failed is None:
                self._stream.write(text)
                self._stream.flush()
        except OSError as error:
            self.failed = error
        finally:
            self.release()


def make_log(console: Console, verbosity: str) -> logging.Logger:
    """Return a logger that writes to the console from this severity on; below `info`, the client library's log is added."""
    level = _LEVELS[verbosity.lower()]
    log = logging.Logger("BMQ.SHELL", level)
    log.addHandler(console)
    if level < logging.INFO:
        library = logging.getLogger("bmqtwist.sdk")
        library.setLevel(level)
        library.addHandler(console)
    return log


class FileLog:
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
        """Write a line of parts. A GUID is written in hexadecimal; callers pass a payload as `shown(payload)`."""
        if self._handler is not None:
            text = "|".join(each.hex().upper() if isinstance(each, bytes) else str(each) for each in parts)
            self._handler.handle(logging.LogRecord(category, logging.INFO, __file__, 0, "%s", (text,), None))

    def event(self, event: SessionEvent) -> None:
        self.write("SESSION", event.kind.name, event.uri if event.kind is EventKind.QUEUE_REOPEN_RESULT else "")

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()


def shown(payload: bytes) -> str:
    return payload.decode("utf-8", "backslashreplace").replace("\n", "\\n")


PROMPT = "> "
_HISTORY_LINES = 1000


class Script:
    """Commands from a pipe or file. Bytes that are not UTF-8 are preserved. `attended`: the input is interactive."""

    attended = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def read(self) -> str | None:
        """Return the next line, None at the end; a line above LINE_CHARS_MAX is truncated behind that length."""
        line = self._stream.readline(LINE_CHARS_MAX + 2)
        if not line:
            return None
        rest = line
        while rest and not rest.endswith(b"\n") and len(line) > LINE_CHARS_MAX:
            rest = self._stream.readline(1 << 20)
        return line.decode("utf-8", "surrogateescape")

    def typed(self) -> str | None:
        return None

    def close(self) -> None:
        self._stream.close()


class Terminal:
    """Commands from a terminal. With readline: history, and completion of commands and of the URIs that `uris` returns.

    Ctrl-C clears the line, Ctrl-D on an empty line ends the input.
    """

    attended = True

    def __init__(self, uris: Callable[[], list[str]]) -> None:
        self._typing = False
        self._uris = uris
        self._readline: Any = None
        self._history = _history_path()
        with suppress(ImportError):
            import readline

            self._readline = readline
            self._prepare(readline)

    def _prepare(self, readline: Any) -> None:
        if self._history is not None:
            with suppress(OSError):
                readline.read_history_file(self._history)
        readline.set_history_length(_HISTORY_LINES)
        readline.set_completer_delims(' \t"')
        readline.set_completer(self._complete)
        readline.parse_and_bind("tab: complete")

    def _complete(self, text: str, state: int) -> str | None:
        first = not self._readline.get_line_buffer()[:self._readline.get_begidx()].strip()
        found = [each for each in (VERBS if first else self._uris()) if each.startswith(text)]
        return found[state] if state < len(found) else None

    def read(self) -> str | None:
        self._typing = True
        try:
            return input(PROMPT)
        except EOFError:
            sys.stdout.write("\n")
            return None
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            return ""
        finally:
            self._typing = False

    def typed(self) -> str | None:
        if not self._typing:
            return None
        return PROMPT + (self._readline.get_line_buffer() if self._readline is not None else "")

    def close(self) -> None:
        if self._readline is not None and self._history is not None:
            with suppress(OSError):
                self._readline.write_history_file(self._history)


Source = Script | Terminal


def _history_path() -> Path | None:
    name = os.environ.get("BMQ_SHELL_HISTORY")
    if name is not None:
        return Path(name) if name else None
    with suppress(RuntimeError):
        return Path.home() / ".bmq_shell_history"
    return None
