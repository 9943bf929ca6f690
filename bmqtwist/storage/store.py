"""Interfaces of the storage: a disk and its files, the files of one partition; sizes, limits and errors.

```
   Partition, recovery           ClusterMetadata
          |                            |
       FileSets                   LedgerFile
          |                            |
          +------------ Disk ----------+
                    /         \\
        files.py (real)     memory.py (simulated, with faults)
```

All sizes and offsets count bytes from the start of a file. Operations raise OSError; a read beyond the end of a file returns
fewer bytes. The modules of this package use them; `daemon/assemble.py` receives the disk.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Protocol

from bmqtwist.errors import LocalError
from bmqtwist.storage import layout

JOURNAL_HEADER_BYTES, DATA_HEADER_BYTES, QLIST_HEADER_BYTES = (  # headers before the first record
    layout.FILE_HEADER.size + each.size for each in (layout.JOURNAL_FILE_HEADER, layout.DATA_FILE_HEADER,
                                                     layout.QLIST_FILE_HEADER))
_RECORD_BYTES = layout.JOURNAL_RECORD.size
SYNC_POINT_RESERVE_BYTES = 2 * _RECORD_BYTES  # journal space that only sync points may use
PURGE_RESERVE_BYTES = 16 * _RECORD_BYTES  # journal space that only sync points and purges of whole queues may use
JOURNAL_FILE_BYTES_MIN = JOURNAL_HEADER_BYTES + _RECORD_BYTES + SYNC_POINT_RESERVE_BYTES + PURGE_RESERVE_BYTES
DATA_FILE_BYTES_MAX = ((1 << 32) - 1) * 8  # offsets are u32 dwords
WORD_FILE_BYTES_MAX = ((1 << 32) - 1) * 4  # journal and QLIST offsets are u32 words
PAYLOAD_CACHE_BYTES = 64 << 20  # application data in memory, per partition
PREWRITE_BYTES: Final = 4 << 20  # DATA per turn of a larger batch: 64 MiB at once take 40 ms and more
BEGINNING_BYTES = 64 << 10  # read of a longer message if only its properties are needed
AVAILABLE_PERCENT_MIN = 20  # free part of every file after a rollover, for it to be worthwhile
ROLLOVER_CHUNK_BYTES = 4 << 20  # of a file in memory while it is copied or read


class DirectoryBusy(LocalError):
    """Another broker has locked the directory."""

    def __init__(self, directory: str) -> None:
        super().__init__(f"Storage directory {directory} is used by another broker: stop it, or configure another"
                         " 'location' and 'archiveLocation'")


class StorageError(LocalError):
    """The configured storage is invalid; the text names the setting to change."""


class PartitionUnavailable(LocalError):
    """The partition takes no records now; producers receive STORAGE_FAILURE."""


FileBytes = tuple[int, int, int]  # of JOURNAL, DATA, QLIST


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
    def as_tuple(self) -> FileBytes:
        """Sizes of JOURNAL, DATA, QLIST."""
        return self.journal, self.data, self.qlist

    def usage_text(self, kept: FileBytes) -> str:
        """Return a text with `kept` bytes and their percentage of each file."""
        return ", ".join(f"{name} {part} of {size} B ({part * 100 // size}%)" for name, part, size in
                         zip(("JOURNAL", "DATA", "QLIST"), kept, self.as_tuple, strict=True))

    def fits(self, positions: FileBytes) -> bool:
        """Return whether no position exceeds the size of its file."""
        return all(position <= size for position, size in zip(positions, self.as_tuple, strict=True))

    def leaves_enough(self, kept: FileBytes, needed: FileBytes) -> bool:
        """Return whether a rollover that copies `kept` leaves enough of every file free, with `needed` bytes in use."""
        return all((size - part - more) * 100 // size >= AVAILABLE_PERCENT_MIN
                   for size, part, more in zip(self.as_tuple, kept, needed, strict=True))

    def exceeds_percent(self, kept: FileBytes, percent: int) -> bool:
        """Return whether `kept` is at least `percent` of any file."""
        return any(part * 100 >= size * percent for part, size in zip(kept, self.as_tuple, strict=True))


class File(Protocol):
    """One open file."""

    def size(self) -> int:
        """Length on disk, bytes."""

    def allocated(self) -> int:
        """Return the bytes that the file occupies on the disk; a sparse file is longer."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def drop_cached(self, offset: int, size: int) -> None:
        """Let the next read of these bytes come from the disk, where the operating system supports that."""

    def data_after(self, offset: int) -> int | None:
        """Return the first offset from `offset` on that may have been written; None if only zeros follow."""

    def write(self, offset: int, parts: Sequence[bytes]) -> int:
        """Write all `parts` consecutively from `offset` on; return the number of bytes."""

    def sync(self) -> None:
        """Return when all writes so far are durable."""

    def resize(self, size: int, allocate: bool) -> None:
        """Truncate or extend with zeros to `size`; `allocate` reserves the blocks, so that later writes have space."""

    def close(self) -> None:
        """Close the file; closing it twice is no error."""


class Disk(Protocol):
    """Directories of files. Paths are text with `/`."""

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory."""

    def create(self, path: str) -> File:
        """Create an empty file; FileExistsError if it exists."""

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file within one file system."""

    def remove(self, path: str) -> None:
        """Delete a file."""

    def sync_directory(self, directory: str) -> None:
        """Make creations, renames and removals in a directory durable."""

    def space(self, directory: str) -> tuple[int, int]:
        """Return the space of the file system of a directory, bytes: free for an unprivileged user, and total."""

    def identify(self, directory: str) -> Hashable:
        """Return an identity that is equal for all names of a directory. OSError if it does not exist."""

    def lock(self, directory: str) -> ExitStack:
        """Lock a directory until the result is closed; DirectoryBusy if another process has locked it."""


class PartitionReader(Protocol):
    """Read access to the files of a partition, for recovery (`fileset.FileSets`) and for tools."""

    @property
    def file_missing(self) -> bool:
        """True if a file was missing or empty."""

    def read_journal(self, offset: int, size: int) -> bytes:
        """Read bytes of the JOURNAL; fewer at its end."""

    def journal_after(self, offset: int) -> int | None:
        """`File.data_after` of the JOURNAL."""

    def read_data(self, offset: int, size: int) -> bytes:
        """Read bytes of DATA; fewer at its end."""

    def read_qlist(self, offset: int, size: int) -> bytes:
        """Read bytes of QLIST; fewer at its end."""

    def lengths(self) -> tuple[int, int, int]:
        """Return the lengths of JOURNAL, DATA, QLIST on disk, bytes."""
