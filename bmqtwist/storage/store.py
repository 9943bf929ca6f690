"""The seams between what is kept and where: a disk, the files of one partition, the file of the metadata ledger.

```
   Partition, recovery           ClusterMetadata
          |                            |
       FileSets                   LedgerFile
          |                            |
          +------------ Disk ----------+
                    /         \\
        files.py (real)     memory.py (simulated, with faults)
```

All sizes and offsets count bytes from the start of a file. What fails raises OSError, as the real thing does;
reading past the end of a file gives what is there.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Protocol

from bmqtwist.errors import LocalError
from bmqtwist.storage import layout

JOURNAL_HEADER_BYTES, DATA_HEADER_BYTES, QLIST_HEADER_BYTES = (  # what a file begins with, before its first record
    layout.FILE_HEADER.size + each.size for each in (layout.JOURNAL_FILE_HEADER, layout.DATA_FILE_HEADER,
                                                     layout.QLIST_FILE_HEADER))
_RECORD_BYTES = layout.JOURNAL_RECORD.size
SYNC_POINT_RESERVE_BYTES = 2 * _RECORD_BYTES  # journal space that only sync points may use
PURGE_RESERVE_BYTES = 16 * _RECORD_BYTES  # journal space that only sync points and purges of whole queues may use
JOURNAL_FILE_BYTES_MIN = JOURNAL_HEADER_BYTES + _RECORD_BYTES + SYNC_POINT_RESERVE_BYTES + PURGE_RESERVE_BYTES
DATA_FILE_BYTES_MAX = ((1 << 32) - 1) * 8  # offsets are u32 dwords
WORD_FILE_BYTES_MAX = ((1 << 32) - 1) * 4  # journal and QLIST offsets are u32 words
PAYLOAD_CACHE_BYTES = 64 << 20  # application data one partition keeps in memory
PREWRITE_BYTES: Final = 4 << 20  # that one turn writes of a batch whose DATA are larger: 64 MiB at once take 40 ms and more
BEGINNING_BYTES = 64 << 10  # that are read of a longer message when only its properties are asked for
AVAILABLE_PERCENT_MIN = 20  # of every file, for a rollover to be worth it
ROLLOVER_CHUNK_BYTES = 4 << 20  # how much of a file is in memory at once while it is copied or read back


class DirectoryBusy(LocalError):
    """Another broker holds the directory."""

    def __init__(self, directory: str) -> None:
        super().__init__(f"Storage directory {directory} is used by another broker: stop it, or configure another"
                         " 'location' and 'archiveLocation'")


class StorageError(LocalError):
    """The storage cannot be used as configured: the text says what to change."""


class PartitionUnavailable(LocalError):
    """The partition takes no records now: producers are answered STORAGE_FAILURE."""


class PayloadDamaged(PartitionUnavailable):
    """The stored application data of a message is not what was written: it must not be delivered."""


Bytes = tuple[int, int, int]  # of JOURNAL, DATA, QLIST


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Configured maxima of the three files, bytes."""

    journal: int = 64 << 20
    data: int = 256 << 20
    qlist: int = 8 << 20

    def __post_init__(self) -> None:
        for name, size, low, high in (("Journal", self.journal, JOURNAL_FILE_BYTES_MIN, WORD_FILE_BYTES_MAX),
                                      ("Data", self.data, DATA_HEADER_BYTES + 1, DATA_FILE_BYTES_MAX),
                                      ("Qlist", self.qlist, QLIST_HEADER_BYTES + 1, WORD_FILE_BYTES_MAX)):
            if not low <= size <= high:
                raise StorageError(f"max{name}FileSize must be {low}..{high} bytes, not {size}")

    @property
    def each(self) -> Bytes:
        """Of JOURNAL, DATA, QLIST."""
        return self.journal, self.data, self.qlist

    def shares(self, kept: Bytes) -> str:
        """What `kept` bytes are of them, for a person."""
        return ", ".join(f"{name} {part} of {size} B ({part * 100 // size}%)" for name, part, size in
                         zip(("JOURNAL", "DATA", "QLIST"), kept, self.each, strict=True))

    def hold(self, positions: Bytes) -> bool:
        """Do the files reach up to there?"""
        return all(position <= size for position, size in zip(positions, self.each, strict=True))

    def leaves_enough(self, kept: Bytes, needed: Bytes) -> bool:
        """Would a rollover that keeps `kept` leave enough of every file free, `needed` bytes of each taken?"""
        return all((size - part - more) * 100 // size >= AVAILABLE_PERCENT_MIN
                   for size, part, more in zip(self.each, kept, needed, strict=True))

    def passes(self, kept: Bytes, percent: int) -> bool:
        """Is so much of a file kept?"""
        return any(part * 100 >= size * percent for part, size in zip(kept, self.each, strict=True))


class File(Protocol):
    """One open file."""

    def size(self) -> int:
        """Length on disk, bytes."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def data_after(self, offset: int) -> int | None:
        """Where, from `offset` on, the first byte may lie that was ever written; None: all that follows are zeros."""

    def write(self, offset: int, parts: Sequence[bytes]) -> int:
        """All of `parts`, one behind the other, starting at `offset`; how many bytes that was."""

    def sync(self) -> None:
        """Return when everything written so far survives a loss of power."""

    def resize(self, size: int, allocate: bool) -> None:
        """Cut or grow with zeros to `size`; `allocate` reserves the blocks so that later writes cannot lack space."""

    def close(self) -> None:
        """Let go of the file; not an error if already closed."""


class Disk(Protocol):
    """Directories of files. Paths are text with `/`."""

    def names(self, directory: str) -> list[str]:
        """Sorted names in a directory."""

    def create(self, path: str) -> File:
        """A new empty file; FileExistsError if the name is taken."""

    def open(self, path: str) -> File:
        """An existing file, for reading and writing."""

    def rename(self, old: str, new: str) -> None:
        """Move a file; both names are on one file system."""

    def remove(self, path: str) -> None:
        """Delete a file."""

    def sync_directory(self, directory: str) -> None:
        """Make creations, renames and removals in a directory survive a loss of power."""

    def free_bytes(self, directory: str) -> int:
        """Space an unprivileged writer may still use."""

    def identify(self, directory: str) -> Hashable:
        """Which directory that is: equal for all of its names. OSError if there is none."""

    def lock(self, directory: str) -> ExitStack:
        """Hold the directory for this process until the result is closed; DirectoryBusy if another one has it."""


class PartitionReader(Protocol):
    """The files of a partition to be read: its own ones (`fileset.FileSets`), or those that a tool was given."""

    @property
    def broken(self) -> bool:
        """Was a file missing or empty?"""

    def read_journal(self, offset: int, size: int) -> bytes:
        """Bytes of the JOURNAL; fewer at its end."""

    def journal_after(self, offset: int) -> int | None:
        """As `File.data_after`, of the JOURNAL."""

    def read_data(self, offset: int, size: int) -> bytes:
        """Bytes of DATA; fewer at its end."""

    def read_qlist(self, offset: int, size: int) -> bytes:
        """Bytes of QLIST; fewer at its end."""

    def lengths(self) -> tuple[int, int, int]:
        """Lengths on disk of JOURNAL, DATA, QLIST."""
