"""The seams between what is kept and where: a disk, the files of one partition, the file of the metadata ledger.

```
   Partition, recovery           ClusterMetadata
          |                            |
    PartitionFiles                 LedgerFile
          |  (fileset.py)              |
          +------------ Disk ----------+
                    /         \\
        files.py (real)     memory.py (simulated, with faults)
```

All sizes and offsets count bytes from the start of a file. What fails raises OSError, as the real thing does;
reading past the end of a file gives what is there.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
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
AHEAD_BYTES: Final = 4 << 20  # that one turn writes of a batch whose DATA are larger: 64 MiB at once take 40 ms and more
BEGINNING_BYTES = 64 << 10  # that are read of a longer message when only its properties are asked for
ROLLOVER_CHUNK_BYTES = 4 << 20  # how much of a file is in memory at once while it is copied or read back


class DirectoryBusy(LocalError):
    """Another broker holds the directory."""

    def __init__(self, directory: str) -> None:
        super().__init__(f"Storage directory {directory} is used by another broker: stop it, or configure another"
                         " 'location' and 'archiveLocation'")


class StorageError(LocalError):
    """The storage cannot be used as configured: the text says what to change."""


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Configured maxima of the three files, bytes."""

    journal: int = 64 << 20
    data: int = 256 << 20
    qlist: int = 8 << 20

    def __post_init__(self) -> None:
        if not JOURNAL_FILE_BYTES_MIN <= self.journal <= WORD_FILE_BYTES_MAX:
            raise StorageError(f"maxJournalFileSize must be {JOURNAL_FILE_BYTES_MIN}..{WORD_FILE_BYTES_MAX} bytes,"
                               f" not {self.journal}")
        if not DATA_HEADER_BYTES < self.data <= DATA_FILE_BYTES_MAX:
            raise StorageError(f"maxDataFileSize must be {DATA_HEADER_BYTES + 1}..{DATA_FILE_BYTES_MAX} bytes,"
                               f" not {self.data}")
        if not QLIST_HEADER_BYTES < self.qlist <= WORD_FILE_BYTES_MAX:
            raise StorageError(f"maxQlistFileSize must be {QLIST_HEADER_BYTES + 1}..{WORD_FILE_BYTES_MAX} bytes,"
                               f" not {self.qlist}")

    @property
    def total(self) -> int:
        """Bytes of one full file set."""
        return self.journal + self.data + self.qlist

    def shares(self, kept: tuple[int, int, int]) -> str:
        """What `kept` bytes of JOURNAL, DATA, QLIST are of them, for a person."""
        return ", ".join(f"{name} {part} of {size} B ({part * 100 // size}%)" for name, part, size in
                         zip(("JOURNAL", "DATA", "QLIST"), kept, (self.journal, self.data, self.qlist), strict=True))


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


class Lock(Protocol):
    """A held directory."""

    def close(self) -> None:
        """Let it go; not an error if already done."""


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

    def lock(self, directory: str) -> Lock:
        """Hold the directory for this process until the result is closed; DirectoryBusy if another one has it."""


class PartitionFiles(Protocol):
    """The file set of one partition, with the next one while a rollover runs.

    The three files are written only through `append`; positions are where the next bytes go.
    """

    sizes: FileSizes
    broken: bool  # a file of the set was missing or empty when it was opened

    @property
    def journal_position(self) -> int:
        """Where the next journal record goes."""

    @property
    def data_position(self) -> int:
        """Where the next DATA record goes."""

    @property
    def qlist_position(self) -> int:
        """Where the next QLIST record goes."""

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

    def resume(self, journal: int, data: int, qlist: int) -> None:
        """Set the positions; everything behind them becomes zeros up to the configured sizes."""

    def append(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """Write DATA, then QLIST, then JOURNAL at the positions and move these. After an OSError nothing has moved."""

    def sync(self) -> None:
        """fdatasync of DATA and QLIST, then of JOURNAL; of both sets once `join_next` was called. For any thread."""

    @property
    def rolling(self) -> bool:
        """Is there a next file set?"""

    def begin_roll(self, wall: int) -> None:
        """Create the next file set, named after `wall` (UTC). OSError if it does not fit on the disk. For any thread."""

    def append_ahead(self, data: list[bytes]) -> bool:
        """Write some of the DATA that `append` will be given, where nothing refers to it yet. False: there is more."""

    def append_next(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """As `append`, into the next file set."""

    def next_positions(self) -> tuple[int, int, int]:
        """Positions in the next file set: JOURNAL, DATA, QLIST."""

    def join_next(self) -> None:
        """From now on the owner writes everything into both sets, and `sync` covers both."""

    def sync_next(self) -> None:
        """As `sync`, of the next file set. For any thread."""

    def mark_next(self, mark: int) -> None:
        """Sync the next set, write the journal offset `mark` of its sync point into its header, sync. For any thread."""

    def switch_next(self) -> None:
        """Make the next set current; the old one waits for `retire_old`."""

    def retire_old(self, damaged: bool) -> None:
        """Archive the old set, cut to its positions; a `damaged` one as it is, never to be deleted. For any thread."""

    def finish_roll(self, mark: int, damaged: bool) -> None:
        """`mark_next`, `switch_next` and `retire_old` at once."""

    def abandon_roll(self) -> None:
        """Remove what `begin_roll` created; the current set stays."""

    def close(self, truncate: bool) -> None:
        """Close the files; `truncate` cuts them to their positions first (clean stop)."""

    def take_alarms(self) -> list[tuple[str, str]]:
        """(category, text) of what went wrong without stopping the work, since the last call."""


class LedgerFile(Protocol):
    """The one append-only file of the metadata ledger."""

    def read_all(self) -> bytes:
        """The whole current file, its header included; b"" if there is none yet."""

    def append(self, data: bytes) -> None:
        """Write at the end."""

    def sync(self) -> None:
        """Return when everything appended survives a loss of power."""

    def truncate(self, size: int) -> None:
        """Cut a torn tail: `size` bytes stay."""

    def replace(self, log_id: bytes, data: bytes, wall: int) -> None:
        """Start a new file, named after `wall` (UTC) and `log_id`, holding `data`, synced; keep one previous file."""

    def close(self) -> None:
        """Let go of the file."""
