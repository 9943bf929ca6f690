"""Audit log of the console: actions of users as JSON lines in a file of bounded size, in the directory of the log.

`operation.py` adds the entries; events of the node are in `view/events.py`.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from bmqtwist.console.documents import Document, compact
from bmqtwist.report import shown

FILE = "console-audit.jsonl"  # the previous file has the suffix .1
FILE_BYTES_MAX = 4 << 20
ENTRIES_MAX = 500  # in memory and in the console
TAIL_BYTES = 256 << 10  # of the file that are read at the start
TEXT_CHARS_MAX = 500


class AuditLog:
    """Entries, newest last. `folder`: "" = no file; `failed` is called at the first failed write after a success."""

    def __init__(self, folder: str, failed: Callable[[str], None]) -> None:
        self._path = Path(folder) / FILE if folder else None
        self._on_failed, self._failure_reported = failed, False
        self.entries: deque[Document] = deque(maxlen=ENTRIES_MAX)
        if self._path is not None:
            self._read(self._path)

    def _read(self, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the first line may be incomplete
            if isinstance(entry, dict):
                self.entries.append(entry)

    def add(self, entry: Document) -> None:
        """Add an action of a user, or the refusal of one."""
        entry = {name: shown(value, TEXT_CHARS_MAX) if isinstance(value, str) else value for name, value in entry.items()}
        self.entries.append(entry)
        if self._path is not None:
            self._write(self._path, entry)

    def _write(self, path: Path, entry: Mapping[str, object]) -> None:
        try:
            line = f"{compact(entry)}\n".encode()
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
            try:
                if os.fstat(descriptor).st_size + len(line) > FILE_BYTES_MAX:
                    os.replace(path, path.with_name(f"{FILE}.1"))
                    os.close(descriptor)
                    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
            self._failure_reported = False
        except OSError as error:
            if not self._failure_reported:
                self._failure_reported = True
                self._on_failed(f"The audit log '{path}' cannot be written: {error.strerror or error}")
