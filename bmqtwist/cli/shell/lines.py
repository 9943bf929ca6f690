"""Where commands come from. `read` blocks until there is a line; None at the end. `typed`: see Console."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from bmqtwist.cli.shell.commands import VERBS
from bmqtwist.cli.shell.grammar import LINE_CHARS_MAX

PROMPT = "> "
_HISTORY_LINES = 1000


class Source(Protocol):
    """Commands, one a line. `attended`: somebody types them and sees what becomes of them."""

    attended: bool

    def read(self) -> str | None:
        """The next line."""

    def typed(self) -> str | None:
        """What is being typed."""

    def close(self) -> None:
        """No more lines are wanted."""


class Script:
    """A pipe or a file. Bytes that are no UTF-8 are kept as they are."""

    attended = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def read(self) -> str | None:
        """The next line; of one that is too long only as much as shows that."""
        line = self._stream.readline(LINE_CHARS_MAX + 2)
        if not line:
            return None
        rest = line
        while rest and not rest.endswith(b"\n") and len(line) > LINE_CHARS_MAX:
            rest = self._stream.readline(1 << 20)
        return line.decode("utf-8", "surrogateescape")

    def typed(self) -> str | None:
        """Nothing."""
        return None

    def close(self) -> None:
        """Close it."""
        self._stream.close()


class Terminal:
    """A terminal, with a history, and completion of commands and of the URIs that `uris` gives, where readline is there.

    Ctrl-C empties the line, Ctrl-D on an empty one is the end.
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
        """The next line."""
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
        """The prompt and the line so far, while a line is being typed."""
        if not self._typing:
            return None
        return PROMPT + (self._readline.get_line_buffer() if self._readline is not None else "")

    def close(self) -> None:
        """Keep the history."""
        if self._readline is not None and self._history is not None:
            with suppress(OSError):
                self._readline.write_history_file(self._history)


def _history_path() -> Path | None:
    name = os.environ.get("BMQ_SHELL_HISTORY")
    if name is not None:
        return Path(name) if name else None
    with suppress(RuntimeError):
        return Path.home() / ".bmq_shell_history"
    return None
