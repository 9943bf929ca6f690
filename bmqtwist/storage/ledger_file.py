"""The file of the metadata ledger: `bmq_csl_*` in the storage directory, the newest of which counts.

A new file is written whole under a temporary name, synced and renamed, so that the newest one is never half of one. One
older file is kept for people.
"""

from __future__ import annotations

from bmqtwist.storage.ledger_format import LEDGER_SUFFIX, ledger_file_name, parse_ledger_file_name
from bmqtwist.storage.store import Disk, File

_TEMPORARY = ".new"
_STAMP_END = len("bmq_csl_YYYYMMDD_HHMMSS")
OLD_FILES_KEPT = 1


class LedgerFile:
    """The ledger of one node in `directory`. `open` first; all methods may raise OSError."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk, self._directory = disk, directory
        self._file: File | None = None
        self._name = ""
        self._end = 0

    def open(self) -> None:
        """Find the newest file; there may be none. What an unfinished replacement left is removed.

        A process that was killed may have written what it did not come to sync. Whoever reads the file counts on what it
        says, so that is made durable first.
        """
        names = self._disk.names(self._directory)
        for name in names:
            if name.endswith(LEDGER_SUFFIX + _TEMPORARY):
                self._disk.remove(f"{self._directory}/{name}")
        ledgers = self._ledgers(names)
        if ledgers:
            self._use(ledgers[-1])
            try:
                self.sync()
                self._disk.sync_directory(self._directory)
            except OSError:
                self.close()
                raise

    def _ledgers(self, names: list[str]) -> list[str]:
        return sorted(name for name in names if parse_ledger_file_name(name) is not None)

    def _use(self, name: str) -> None:
        file = self._disk.open(f"{self._directory}/{name}")
        self.close()
        self._file, self._name, self._end = file, name, file.size()

    def read_all(self) -> bytes:
        """The whole current file; b"" if there is none."""
        return self._file.read(0, self._end) if self._file is not None else b""

    def append(self, data: bytes) -> None:
        """Write at the end."""
        file = self._current()
        file.write(self._end, [data])
        self._end += len(data)

    def sync(self) -> None:
        """Return when everything appended survives a loss of power."""
        self._current().sync()

    def truncate(self, size: int) -> None:
        """Cut a torn tail."""
        self._current().resize(size, False)
        self._end = size

    def replace(self, log_id: bytes, data: bytes, wall: int) -> None:
        """Start a new file that holds `data`, synced; one with a later stamp than the current, even in one second."""
        name = ledger_file_name(log_id, wall)
        while self._name and name[:_STAMP_END] <= self._name[:_STAMP_END]:
            wall += 1
            name = ledger_file_name(log_id, wall)
        path = f"{self._directory}/{name}"
        if name + _TEMPORARY in self._disk.names(self._directory):
            self._disk.remove(path + _TEMPORARY)
        file = self._disk.create(path + _TEMPORARY)
        try:
            file.write(0, [data])
            file.sync()
        finally:
            file.close()
        self._disk.rename(path + _TEMPORARY, path)
        self._disk.sync_directory(self._directory)
        self._use(name)
        for old in self._ledgers(self._disk.names(self._directory))[:-1 - OLD_FILES_KEPT]:
            self._disk.remove(f"{self._directory}/{old}")

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _current(self) -> File:
        if self._file is None:
            raise FileNotFoundError(f"no ledger in {self._directory}")
        return self._file
