"""Command input of the shell: a script (file or pipe), or a terminal with history and completion.

`command.py` reads each line from it and passes it to `interactive.py`; `commands.py` parses the line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from bmqtwist.cli.shell.commands import LINE_CHARS_MAX, VERBS

PROMPT = "> "
_HISTORY_LINES = 1000


class ScriptInput:
    """Commands from a pipe or file. Bytes that are not UTF-8 are preserved. `is_interactive`: the input is interactive."""

    is_interactive = False

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

    def prompt_line(self) -> str | None:
        return None

    def close(self) -> None:
        self._stream.close()


class TerminalInput:
    """Commands from a terminal. With readline: history, and completion of commands and of the URIs that `uris` returns.

    Ctrl-C clears the line, Ctrl-D on an empty line ends the input.
    """

    is_interactive = True

    def __init__(self, uris: Callable[[], list[str]]) -> None:
        self._is_reading = False
        self._uris = uris
        self._readline: Any = None
        self._history = _history_path()
        with suppress(ImportError):
            import readline

            self._readline = readline
            self._configure_readline(readline)

    def _configure_readline(self, readline: Any) -> None:
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
        self._is_reading = True
        try:
            return input(PROMPT)
        except EOFError:
            sys.stdout.write("\n")
            return None
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            return ""
        finally:
            self._is_reading = False

    def prompt_line(self) -> str | None:
        if not self._is_reading:
            return None
        return PROMPT + (self._readline.get_line_buffer() if self._readline is not None else "")

    def close(self) -> None:
        if self._readline is not None and self._history is not None:
            with suppress(OSError):
                self._readline.write_history_file(self._history)


CommandInput = ScriptInput | TerminalInput


def _history_path() -> Path | None:
    name = os.environ.get("BMQ_SHELL_HISTORY")
    if name is not None:
        return Path(name) if name else None
    with suppress(RuntimeError):
        return Path.home() / ".bmq_shell_history"
    return None
