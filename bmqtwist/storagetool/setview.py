"""One file set as recovery reads it, and the findings of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bmqtwist.storage.records import RECORD_BYTES, FileType
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES

_CHUNK_BYTES = 4 << 20
ERROR, WARNING, NOTE = "error", "warning", "note"


class ReadableFile(Protocol):
    """A file that can be read."""

    @property
    def size(self) -> int:
        """Length on disk, bytes."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""


class JournalSnapshot:
    """A journal as it is now: what a running broker appends to it from now on reads as zeros.

    A broker writes ledger and DATA before the JOURNAL, so whoever takes the snapshot first finds all it refers to.
    """

    def __init__(self, source: ReadableFile) -> None:
        self._source, self.size = source, source.size
        self._end = self._written_end()

    def _written_end(self) -> int:
        """Offset behind the last record that holds a byte that is not zero: it may be being written."""
        at = self.size
        while at > 0:
            start = max(0, at - _CHUNK_BYTES)
            written = self._source.read(start, at - start).rstrip(b"\0")
            if written:
                records = -(-(start + len(written) - JOURNAL_HEADER_BYTES) // RECORD_BYTES)
                return JOURNAL_HEADER_BYTES + records * RECORD_BYTES
            at = start
        return 0

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        data = self._source.read(offset, min(size, max(0, self.size - offset)))
        beyond = offset + len(data) - max(offset, self._end)
        return data[:-beyond] + bytes(beyond) if beyond > 0 else data

    def grown(self) -> bool:
        """Has something been appended since?"""
        return any(self._source.read(self._end, RECORD_BYTES))


@dataclass(frozen=True, slots=True)
class FileFinding:
    """What a check found. error: data or their references are damaged; warning: something should not be so, though all
    data are there; note: good to know."""

    severity: str
    text: str


class SetView:
    """A `PartitionReader` over up to three files; None = the file is not there."""

    broken = False

    def __init__(self, journal: ReadableFile | None, data: ReadableFile | None, qlist: ReadableFile | None) -> None:
        self.sources = {FileType.JOURNAL: journal, FileType.DATA: data, FileType.QLIST: qlist}

    def lengths(self) -> tuple[int, int, int]:
        """Lengths on disk of JOURNAL, DATA, QLIST."""
        journal, data, qlist = (source.size if source is not None else 0 for source in self.sources.values())
        return journal, data, qlist

    def journal_after(self, offset: int) -> int | None:
        """Nothing is known of holes: a reader looks at everything."""
        return offset

    def read_journal(self, offset: int, size: int) -> bytes:
        """Bytes of the JOURNAL; fewer at its end."""
        return self._read(FileType.JOURNAL, offset, size)

    def read_data(self, offset: int, size: int) -> bytes:
        """Bytes of DATA; fewer at its end."""
        return self._read(FileType.DATA, offset, size)

    def read_qlist(self, offset: int, size: int) -> bytes:
        """Bytes of QLIST; fewer at its end."""
        return self._read(FileType.QLIST, offset, size)

    def _read(self, kind: FileType, offset: int, size: int) -> bytes:
        source = self.sources[kind]
        return source.read(offset, size) if source is not None else b""
