"""Audit log of the console: actions of users as JSON lines in files of bounded size and age, in the directory of the log.

    console-audit.jsonl       present file; at FILE_BYTES_MAX it becomes .1, .1 becomes .2, and so on
    console-audit.jsonl.N     kept for AGE_S_MAX, at most FILES_MAX of them

Entries that a user can cause without a right (`limited`: refusals, logins and logouts) are limited per principal, so
that they cannot displace others: AUDIT_BURST at once, then one per AUDIT_INTERVAL_S; the next entry has the number of
omitted ones. `operation.py` adds the entries; events of the node are in `view/events.py`. AUDIT_BURST and
AUDIT_INTERVAL_S are in `bmqtwist/limits.py`.
"""

from __future__ import annotations

import errno
import json
import os
from collections import OrderedDict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bmqtwist.console.documents import Document, compact
from bmqtwist.limits import AUDIT_BURST, AUDIT_INTERVAL_S
from bmqtwist.report import FailedFiles, shown

FILE = "console-audit.jsonl"
FILE_BYTES_MAX = 4 << 20
FILES_MAX = 16  # previous files
AGE_S_MAX = 90 * 86400.0  # of a previous file, since its last entry
PRINCIPALS_MAX = 1000  # principals with a limit; the one that was least recently refused is dropped
ENTRIES_MAX = 500  # in memory and in the console
TAIL_BYTES = 256 << 10  # of the file that are read at the start
TEXT_CHARS_MAX = 500


class AuditLog:
    """Entries, newest last. `folder`: "" = no file. `failed`: contains the file while it cannot be written; the last
    ENTRIES_MAX entries of that time are written later."""

    def __init__(self, folder: str, failed: FailedFiles) -> None:
        self._path = Path(folder) / FILE if folder else None
        self._failed = failed
        self._unwritten: deque[Document] = deque(maxlen=ENTRIES_MAX)
        self._limits: OrderedDict[str, _Limit] = OrderedDict()
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

    def add(self, entry: Document, limited: str = "") -> None:
        """Add an action of a user, or the refusal of one. `limited`: the principal whose limit applies."""
        if limited:
            omitted = self._limit_of(limited, entry["at"]).take(entry["at"])
            if omitted is None:
                return
            if omitted:
                entry = {**entry, "outcome": f"{entry['outcome']} ({omitted} similar entries before were left out)"}
        entry = {name: shown(value, TEXT_CHARS_MAX) if isinstance(value, str) else value for name, value in entry.items()}
        self.entries.append(entry)
        if self._path is not None:
            self._unwritten.append(entry)
            self._write_all()

    def _write_all(self) -> None:
        """Write the entries that are not written yet."""
        if self._path is None:
            return
        try:
            while self._unwritten:
                self._write(self._path, self._unwritten[0])
                self._unwritten.popleft()
            self._failed.discard(str(self._path))
        except OSError as error:
            self._failed.add(str(self._path), f"the audit log cannot be written: {error.strerror or error}", self._write_all)

    def _limit_of(self, principal: str, at: float) -> _Limit:
        limit = self._limits.setdefault(principal, _Limit(at))
        self._limits.move_to_end(principal)
        while len(self._limits) > PRINCIPALS_MAX:
            self._limits.popitem(last=False)
        return limit

    def _write(self, path: Path, entry: Mapping[str, Any]) -> None:
        line = f"{compact(entry)}\n".encode()
        descriptor = _open(path)
        try:
            size = os.fstat(descriptor).st_size
            if size + len(line) > FILE_BYTES_MAX:
                full, descriptor, size = descriptor, _open(path.with_name(f"{FILE}.new")), 0
                os.close(full)
                _rotate(path, entry["at"])
            if os.write(descriptor, line) < len(line):
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)


class _Limit:
    """Entries of one principal: AUDIT_BURST at once, then one per AUDIT_INTERVAL_S."""

    def __init__(self, at: float) -> None:
        self._left, self._at, self._omitted = float(AUDIT_BURST), at, 0

    def take(self, at: float) -> int | None:
        """Return the number of entries left out before this one; None = this one is left out, too."""
        self._left = min(AUDIT_BURST, self._left + max(0.0, at - self._at) / AUDIT_INTERVAL_S)
        self._at = at
        if self._left < 1.0:
            self._omitted += 1
            return None
        self._left -= 1.0
        omitted, self._omitted = self._omitted, 0
        return omitted


def _rotate(path: Path, at: float) -> None:
    """Rename the new file, the present one and the previous ones; delete files above AGE_S_MAX and FILES_MAX."""
    for number in range(FILES_MAX, 0, -1):
        old = path.with_name(f"{FILE}.{number}")
        try:
            if number == FILES_MAX or at - old.stat().st_mtime > AGE_S_MAX:
                old.unlink()
            else:
                os.replace(old, path.with_name(f"{FILE}.{number + 1}"))
        except FileNotFoundError:
            continue
    os.replace(path, path.with_name(f"{FILE}.1"))
    os.replace(path.with_name(f"{FILE}.new"), path)
