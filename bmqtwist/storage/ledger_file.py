"""File of the metadata ledger: `bmq_csl_*` in the storage directory; the newest file is used.

A file holds a header, then records up to its end or to zeros, encoded as brokers exchange them (`wire/cluster_schema.py`).
Reading never fails: a torn record at the end is cut off, a damaged one is skipped up to the next valid record; both raise
an alarm.

A new file is written under a temporary name, synced and renamed, so the newest file is always complete. One older file
stays for the operator. `cluster/record_log.py` decides when records are appended and when the file is replaced.
`layout.py` declares the header of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bmqtwist.errors import LocalError, PeerError
from bmqtwist.storage.layout import LEDGER_HEADER
from bmqtwist.storage.store import Disk, File
from bmqtwist.wire.cluster_schema import ClusterStateRecord, encode_cluster_state_record, read_cluster_state_record
from bmqtwist.wire.layout import CLUSTER_STATE_HEADER

LEDGER_HEADER_BYTES = LEDGER_HEADER.size
LEDGER_SUFFIX = ".bmq_csl"
DAMAGE_REPORTS_MAX = 16  # damaged ranges of one file reported one by one
SYNCED_S = 2  # seconds after which a record is durable: the next write begins after the sync

_TEMPORARY = ".new"
_STAMP_END = len("bmq_csl_YYYYMMDD_HHMMSS")
OLD_FILES_KEPT = 1
_VERSION = 1
_RECORD_START = re.compile(rb"[\x81-\x84]\0\0\0")  # header words, type; reserved
_NAME = re.compile(r"bmq_csl_\d{8}_\d{6}_([0-9A-F]{10})\.bmq_csl")


@dataclass(slots=True)
class LedgerEntry:
    """A record with its offset in bytes and the sizes of its header and body in words."""

    offset: int
    record: ClusterStateRecord
    header_words: int
    advisory_words: int

    @property
    def lsn(self) -> tuple[int, int]:
        return self.record.term, self.record.sequence_number

    @property
    def type_name(self) -> str:
        """Name of the type: snapshot, update, commit, ack."""
        return self.record.type.name.lower()


@dataclass(slots=True)
class LedgerContents:
    """Content of a ledger file.

    `entries`: all readable records; `end`: offset after the last one, the write position; `log_id`: b"" if the file header
    is unreadable; `damaged`: bytes before `end` are unreadable, so the file should be replaced; `alarms`: a sentence per
    error; `tail_zeros`: number of zero bytes after `end` if no other bytes follow: a file in use, or one left by a crash;
    `durable_lost`: durable records are unreadable: the header, or records that are followed by ones SYNCED_S newer. Others
    may have been in the last write before a loss of power, which no node has acknowledged.
    """

    log_id: bytes = b""
    entries: list[LedgerEntry] = field(default_factory=list)
    end: int = 0
    damaged: bool = False
    alarms: list[str] = field(default_factory=list)
    tail_zeros: int = 0
    durable_lost: bool = False


def pack_ledger_header(log_id: bytes) -> bytes:
    """Encode the first 8 bytes of a file."""
    if len(log_id) != 5 or not any(log_id):
        raise LocalError(f"a ledger's log id is 5 bytes, not all zero; not {log_id.hex()!r}")
    return LEDGER_HEADER.build(version=_VERSION, header_words=LEDGER_HEADER.words, log_id=log_id)


def encode_ledger(log_id: bytes, records: Iterable[ClusterStateRecord]) -> bytes:
    """Encode the whole content of a ledger file: its header, then the records."""
    return b"".join((pack_ledger_header(log_id), *map(encode_cluster_state_record, records)))


def read_ledger(data: bytes) -> LedgerContents:
    """Read a file; b"" stands for an absent file."""
    found = LedgerContents()
    if not data:
        return found
    pos = LEDGER_HEADER_BYTES
    if len(data) >= LEDGER_HEADER_BYTES:
        header = LEDGER_HEADER.parse(data[:LEDGER_HEADER_BYTES])
        if header.version == _VERSION and header.header_words >= LEDGER_HEADER.words and any(header.log_id):
            found.log_id, pos = header.log_id, header.header_words * 4  # a later version may have a longer header
    if not found.log_id:
        found.damaged = found.durable_lost = True
        found.alarms.append("the header of the ledger file cannot be read")
    _read_records(data, min(pos, len(data)), found)
    return found


def _read_records(data: bytes, pos: int, found: LedgerContents) -> None:
    ranges, intact = 0, 0
    while True:
        try:
            record, stop = read_cluster_state_record(data, pos, len(data))
        except PeerError as error:
            following = _next_record(data, pos + 4)
            if following is None:
                break
            found.damaged = True
            ranges += 1
            intact = intact or len(found.entries)
            if ranges <= DAMAGE_REPORTS_MAX:
                found.alarms.append(f"{following - pos} bytes of the ledger at offset {pos} cannot be read "
                                    f"({error.reason}) and are skipped")
            pos = following
            continue
        header_words = data[pos] >> CLUSTER_STATE_HEADER.shift("header_words")
        found.entries.append(LedgerEntry(pos, record, header_words, (stop - pos >> 2) - header_words))
        pos = stop
    found.end = pos
    later = [each.record.timestamp for each in found.entries[intact:]] if ranges else []
    found.durable_lost |= bool(later) and max(later) - later[0] >= SYNCED_S
    torn = len(data[pos:].rstrip(b"\0"))
    if torn:
        found.alarms.append(f"the ledger ends with an incomplete record of {torn} bytes at offset {pos}, "
                            "which is cut off")
    else:
        found.tail_zeros = len(data) - pos


def _next_record(data: bytes, pos: int) -> int | None:
    """Return the offset of the first valid record at or after `pos`; records are aligned to words."""
    for match in _RECORD_START.finditer(data, pos):
        if not match.start() & 3:
            try:
                read_cluster_state_record(data, match.start(), len(data))
            except PeerError:
                continue
            return match.start()
    return None


def ledger_file_name(log_id: bytes, wall: int) -> str:
    """Return `bmq_csl_<UTC date>_<time>_<log id>.bmq_csl` for a file created at `wall` (seconds since the epoch)."""
    return f"bmq_csl_{datetime.fromtimestamp(wall, UTC):%Y%m%d_%H%M%S}_{log_id.hex().upper()}{LEDGER_SUFFIX}"


def parse_ledger_file_name(name: str) -> bytes | None:
    """Return the log id in a file name, None if it is not the name of a ledger."""
    match = _NAME.fullmatch(name)
    return bytes.fromhex(match.group(1)) if match else None


class LedgerFile:
    """Ledger of one node in `directory`; call `open` first. Methods raise OSError."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk, self._directory = disk, directory
        self._file: File | None = None
        self._name = ""
        self._end = 0

    def open(self) -> None:
        """Open the newest file, if there is one; remove temporary files of an unfinished replacement.

        The file is synced first: a killed process may have written records without a sync, and readers rely on them.
        """
        names = self._disk.names(self._directory)
        for name in names:
            if name.endswith(LEDGER_SUFFIX + _TEMPORARY):
                self._disk.remove(f"{self._directory}/{name}")
        ledgers = self._ledgers(names)
        if ledgers:
            self._set_current(ledgers[-1])
            try:
                self.sync()
                self._disk.sync_directory(self._directory)
            except OSError:
                self.close()
                raise

    def _ledgers(self, names: list[str]) -> list[str]:
        return sorted(name for name in names if parse_ledger_file_name(name) is not None)

    def _set_current(self, name: str) -> None:
        file = self._disk.open(f"{self._directory}/{name}")
        self.close()
        self._file, self._name, self._end = file, name, file.size()

    def read_all(self) -> bytes:
        """Return the content of the current file; b"" if there is none."""
        return self._file.read(0, self._end) if self._file is not None else b""

    def append(self, data: bytes) -> None:
        file = self._open_file()
        file.write(self._end, [data])
        self._end += len(data)

    def sync(self) -> None:
        """Return when all appended records are durable."""
        self._open_file().sync()

    def truncate(self, size: int) -> None:
        self._open_file().resize(size, False)
        self._end = size

    def replace(self, log_id: bytes, data: bytes, wall: int) -> None:
        """Create a new file with `data`, synced, with a later timestamp in its name than the current file."""
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
        self._set_current(name)
        for old in self._ledgers(self._disk.names(self._directory))[:-1 - OLD_FILES_KEPT]:
            self._disk.remove(f"{self._directory}/{old}")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_file(self) -> File:
        if self._file is None:
            raise FileNotFoundError(f"no ledger in {self._directory}")
        return self._file
