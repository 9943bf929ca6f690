"""File sets of one partition: names, selection at the start, creation, rollover to the next set, archive.

    <location>/bmq_<pid>.<YYYYMMDD_HHMMSS>.bmq_journal | .bmq_data | .bmq_qlist

The directory holds several sets only after a crash during a rollover. The set whose journal has the highest PSN is used; if
two are equal, the one whose header is marked as complete. The mark is written when everything before it is durable. A set
without a mark that is not the oldest one is the copy of an unfinished rollover; it may have gaps and is used only if there
is no other.

    FileSet        three open files, with their write positions
    SetDirectory   selection, creation and removal of sets; the archive with `keep` old sets
    FileSets       the current, next and old set of a partition, used by `PartitionLog` and `Rollover`
    Reports        log lines and alarms of the partition

This module deletes files of a failed creation and the next set of an abandoned rollover; all other sets move to the archive,
where the oldest ones beyond `keep` are deleted. Damaged sets get a prefix and are never deleted.

`daemon/assemble.py` makes one `FileSets` for each partition, with sizes and `keep` from `config/clusters.py`;
`partition_log.py` writes to them, `rollover.py` creates the next set.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from threading import Lock
from typing import NoReturn

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.storage.journal import JournalScan, check_file_header
from bmqtwist.storage.records import MARK_OFFSET, FileType, file_headers, pack_mark
from bmqtwist.storage.store import DATA_HEADER_BYTES, PREWRITE_BYTES, Disk, File, FileSizes

Read = Callable[[int, int], bytes]  # offset and size
KINDS = FileType.JOURNAL, FileType.DATA, FileType.QLIST
DAMAGED_PREFIX = "damaged."
_JOURNAL_LAST = FileType.DATA, FileType.QLIST, FileType.JOURNAL  # so a set without a journal is an incomplete creation
_EXTENSION = {FileType.JOURNAL: "bmq_journal", FileType.DATA: "bmq_data", FileType.QLIST: "bmq_qlist"}
_KIND = {extension: kind for kind, extension in _EXTENSION.items()}
_STAMP = r"\d{8}_\d{6}"


def stamp(wall: int) -> str:
    """Format epoch seconds as `YYYYMMDD_HHMMSS`, UTC."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y%m%d_%H%M%S")


class Reports:
    """Log lines and alarms of one partition. Any thread may add alarms."""

    def __init__(self, partition_id: int) -> None:
        self.subject = f"Partition [{partition_id}]"
        self.on_line: Callable[[str], None] = lambda text: None  # receives log lines
        self._alarms: list[tuple[AlarmKind, str]] = []
        self._write_failure = ""

    def info(self, text: str) -> None:
        self.on_line(f"{self.subject}: {text}")

    def alarm(self, kind: AlarmKind, text: str) -> None:
        """Raise an alarm; `text` follows the name of the partition."""
        self._alarms.append((kind, self.subject + text))

    def on_write_failed(self, error: OSError) -> None:
        """Record a failed write or sync, or that a file could not be created."""
        self._write_failure = str(error)

    @property
    def write_failed(self) -> bool:
        """True if a write or sync has failed since the last `take_write_failure`."""
        return bool(self._write_failure)

    def take_write_failure(self) -> str:
        """Return the last failure since the last call; "" = there was none."""
        failure, self._write_failure = self._write_failure, ""
        return failure

    def take_alarms(self) -> list[tuple[AlarmKind, str]]:
        """Return the alarms since the last call as (kind, text)."""
        alarms, self._alarms = self._alarms, []
        return alarms


def _cut_parts(parts: list[bytes], start: int, size: int) -> list[bytes]:
    """Return up to `size` bytes from offset `start` of the concatenated parts."""
    found: list[bytes] = []
    for part in parts:
        if start >= len(part):
            start -= len(part)
            continue
        piece = part[start:start + size]
        found.append(piece)
        start, size = 0, size - len(piece)
        if not size:
            break
    return found


class OpenFile:
    """An open file. `end`: offset of the next write."""

    __slots__ = ("end", "file")

    def __init__(self, file: File) -> None:
        self.file, self.end = file, file.size()


class FileSet:
    """One open file set. Any thread may call `sync`. `base`: the timestamp in the names."""

    def __init__(self, base: str, files: dict[FileType, File]) -> None:
        self.base = base
        self.journal, self.data, self.qlist = (OpenFile(files[kind]) for kind in KINDS)
        self.files = self.journal, self.data, self.qlist  # in the order of KINDS
        self._guard = Lock()  # excludes a sync in another thread while the set is closed
        self._closed = False
        self._unsynced_qlist = True  # QLIST changes rarely, so most syncs omit it
        self._prewritten = 0  # bytes written after the end of DATA, part of the next `append`

    def positions(self) -> tuple[int, int, int]:
        """Return the write positions of JOURNAL, DATA, QLIST, bytes."""
        return self.journal.end, self.data.end, self.qlist.end

    def prewrite(self, data: list[bytes]) -> bool:
        """Write the next PREWRITE_BYTES of `data`; False if more remain. `append` repeats a failed write, and raises."""
        done = self._prewritten
        try:
            self._prewritten += self.data.file.write(self.data.end + done, _cut_parts(data, done, PREWRITE_BYTES))
        except OSError:
            return True
        return sum(map(len, data)) - self._prewritten <= PREWRITE_BYTES

    def append(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """Write DATA, QLIST, JOURNAL; positions advance only when all are written."""
        done, self._prewritten = self._prewritten, 0
        if done:
            data = _cut_parts(data, done, sum(map(len, data)))
        data_bytes = done + self.data.file.write(self.data.end + done, data) if data else done
        qlist_bytes = 0
        if qlist:
            self._unsynced_qlist = True
            qlist_bytes = self.qlist.file.write(self.qlist.end, qlist)
        if journal:
            self.journal.end += self.journal.file.write(self.journal.end, journal)
        self.data.end += data_bytes
        self.qlist.end += qlist_bytes

    def sync(self) -> None:
        """fdatasync DATA, QLIST and at last JOURNAL, which refers to both."""
        with self._guard:
            if self._closed:
                return
            self.data.file.sync()
            if self._unsynced_qlist:
                self._unsynced_qlist = False
                self.qlist.file.sync()
            self.journal.file.sync()

    def truncate(self) -> None:
        with self._guard:
            for each in self.files:
                each.file.resize(each.end, False)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            for each in self.files:
                each.file.close()


class SetDirectory:
    """Directory and archive of the sets of one partition; call `open` first. file_missing: a missing file was created
    empty."""

    def __init__(self, disk: Disk, location: str, archive: str, reports: Reports, partition_id: int, keep: int) -> None:
        self._disk, self._location, self._archive, self._reports = disk, location, archive, reports
        self._partition_id, self._keep = partition_id, keep
        self.file_missing = False
        self._pattern = re.compile(rf"bmq_{partition_id}\.({_STAMP})\.({'|'.join(_KIND)})")

    def open(self, wall: int, sizes: FileSizes, preallocate: bool) -> FileSet:
        """Select the set by content and archive the others; create one if there is none.

        A set without DATA or QLIST gets an empty one (`file_missing`); a set without a journal is archived as damaged.
        """
        found: dict[str, set[FileType]] = {}
        for name in self._disk.names(self._location):
            match = self._pattern.fullmatch(name)
            if match:
                found.setdefault(match[1], set()).add(_KIND[match[2]])
        bases = [base for base, kinds in found.items() if FileType.JOURNAL in kinds]
        candidates = {base: self._rank(base, alone=len(bases) == 1) for base in bases}
        usable = {base: rank for base, rank in candidates.items() if rank is not None}
        oldest = min(usable, default=None)
        chosen = max(usable, key=lambda base: (usable[base][2] or base == oldest, usable[base], base), default=None)
        for base in sorted(found):
            if base != chosen:
                self._archive_unused(base, found[base], chosen, usable.get(base))
        if chosen is None:
            opened = self.create(wall, sizes, preallocate)
            opened.sync()
            self.sync()
        else:
            opened = self._open_set(chosen, found[chosen])
        self.trim_archive()
        return opened

    def _rank(self, base: str, alone: bool) -> tuple[int, int, bool] | None:
        """Return (lease, sequence, marked complete) of a set; None if it is empty. An only set (`alone`) is not scanned."""
        journal = self._disk.open(self.path(base, FileType.JOURNAL))
        try:
            size = journal.size()
            if not size:
                return None
            if alone and any(journal.read(0, 104)):
                return 0, 0, False
            scan = JournalScan(journal.read, size, journal.data_after)
            for _ in scan:
                pass
            if scan.lease == 0 and not any(journal.read(0, 104)):
                return None
            return scan.lease, scan.sequence, scan.marked
        finally:
            journal.close()

    def _archive_unused(self, base: str, kinds: set[FileType], chosen: str | None,
                        rank: tuple[int, int, bool] | None) -> None:
        holds_messages = False
        if FileType.DATA in kinds and rank is None:
            data = self._disk.open(self.path(base, FileType.DATA))
            holds_messages = any(data.read(40, 4096))
            data.close()
        lost = holds_messages and (chosen is None or base > chosen)
        if lost:
            self._reports.alarm(
                alarms.JOURNAL_MISSING,
                f": the JOURNAL of file set {base} is missing or empty; its DATA cannot be read"
                f" without it. The set is kept as {DAMAGED_PREFIX}* in the archive.")
        elif rank is not None:
            self._reports.alarm(
                alarms.ROLLOVER_UNFINISHED,
                f": file set {base} was left by an unfinished rollover; {chosen} is used, the"
                " unfinished set is archived.")
        self.archive(base, lost, kinds)

    def _open_set(self, base: str, kinds: set[FileType]) -> FileSet:
        files = {}
        for kind in KINDS:
            path = self.path(base, kind)
            files[kind] = self._disk.open(path) if kind in kinds else self._disk.create(path)
            if not files[kind].size():
                files[kind].write(0, [file_headers(kind, self._partition_id)])
                self.file_missing = True
                self._reports.alarm(
                    alarms.FILE_MISSING,
                    f": the {kind.name} file of set {base} is missing or empty; an empty"
                    " file replaces it.")
        return FileSet(base, files)

    def path(self, base: str, kind: FileType) -> str:
        """Return the path of a file in the location directory."""
        return f"{self._location}/bmq_{self._partition_id}.{base}.{_EXTENSION[kind]}"

    def _unused_stamp(self, wall: int) -> str:
        taken = {*self._disk.names(self._location), *self._disk.names(self._archive)}
        while any(self.path(stamp(wall), kind).rpartition("/")[2] in taken for kind in KINDS):
            wall += 1
        return stamp(wall)

    def create(self, wall: int, sizes: FileSizes, preallocate: bool) -> FileSet:
        """Create a set named after `wall` (UTC). OSError if it does not fit on the disk; its files are removed then."""
        base, files = self._unused_stamp(wall), dict[FileType, File]()
        headers = {kind: file_headers(kind, self._partition_id) for kind in KINDS}
        limits = dict(zip(KINDS, sizes.as_tuple, strict=True))
        try:
            for kind in _JOURNAL_LAST:
                files[kind] = self._disk.create(self.path(base, kind))
                files[kind].resize(limits[kind], preallocate)
                files[kind].write(0, [headers[kind]])
        except OSError:
            for kind, file in files.items():
                file.close()
                self._disk.remove(self.path(base, kind))
            raise
        created = FileSet(base, files)
        for kind, each in zip(KINDS, created.files, strict=True):
            each.end = len(headers[kind])
        return created

    def sync(self) -> None:
        """Make the file names durable."""
        self._disk.sync_directory(self._location)

    def remove(self, base: str) -> None:
        for kind in _JOURNAL_LAST:
            try:
                self._disk.remove(self.path(base, kind))
            except OSError as error:
                self._reports.alarm(alarms.FILE_SET_NOT_REMOVED, f": new set {base} cannot be removed: {error}.")

    # ---- archive -------------------------------------------------------------------------------------------------

    def archive(self, base: str, damaged: bool, kinds: Iterable[FileType] = KINDS) -> None:
        """Move a set to the archive; a `damaged` one is never deleted there."""
        prefix = DAMAGED_PREFIX if damaged else ""
        try:
            for kind in _JOURNAL_LAST:
                if kind in kinds:
                    path = self.path(base, kind)
                    self._disk.rename(path, f"{self._archive}/{prefix}{path.rpartition('/')[2]}")
            self._disk.sync_directory(self._archive)
            self.sync()
        except OSError as error:
            self._reports.alarm(alarms.FILE_SET_NOT_ARCHIVED, f": file set {base} cannot be archived: {error}.")

    def trim_archive(self) -> None:
        """Delete the oldest archived sets beyond the configured number."""
        try:
            names = [name for name in self._disk.names(self._archive) if self._pattern.fullmatch(name)]
            bases = sorted({name.split(".")[1] for name in names})
            doomed = set(bases[:max(0, len(bases) - self._keep)])
            for name in names:
                if name.split(".")[1] in doomed and self._is_of_partition(name):
                    self._disk.remove(f"{self._archive}/{name}")
        except OSError as error:
            self._reports.alarm(alarms.ARCHIVE_NOT_CLEANED, f": old file sets cannot be deleted from the archive: {error}.")

    def _is_of_partition(self, name: str) -> bool:
        """Return whether an archived file belongs to this partition, by its header."""
        file = self._disk.open(f"{self._archive}/{name}")
        try:
            return not check_file_header(file.read(0, DATA_HEADER_BYTES), _KIND[name.rpartition(".")[2]], self._partition_id)
        finally:
            file.close()


def _raise_closed(offset: int, size: int = 0) -> NoReturn:
    raise OSError("the file set is closed")


class FileSets:
    """Current, next and old file set of one partition; call `open` first. file_missing: a missing file was created empty.

    The current set is written only through `append`. read_*: read bytes of a file, fewer at its end; journal_after:
    `File.data_after` of the JOURNAL.
    """

    def __init__(self, disk: Disk, location: str, archive: str, partition_id: int, sizes: FileSizes,
                 keep_archived: int = 0, preallocate: bool = True) -> None:
        self.partition_id, self.sizes, self._preallocate = partition_id, sizes, preallocate
        self.reports = Reports(partition_id)
        self.directory = SetDirectory(disk, location, archive, self.reports, partition_id, keep_archived)
        self.file_missing = False
        self.read_journal: Read = _raise_closed
        self.read_data: Read = _raise_closed
        self.read_qlist: Read = _raise_closed
        self.journal_after: Callable[[int], int | None] = _raise_closed
        self._set: FileSet | None = None
        self._next: FileSet | None = None
        self._old: FileSet | None = None  # waits for its archiving
        self._synced: tuple[FileSet, ...] = ()  # sets that `sync` covers; a tuple, since a thread reads it

    def open(self, wall: int) -> None:
        """Select or create the current set, see `SetDirectory.open`."""
        self._set_current(self.directory.open(wall, self.sizes, self._preallocate))
        self.file_missing = self.directory.file_missing

    def _set_current(self, opened: FileSet) -> None:
        self._set, self._synced = opened, (opened,)
        self.read_journal, self.read_data, self.read_qlist = (each.file.read for each in opened.files)
        self.journal_after = opened.journal.file.data_after

    # ---- the current set -----------------------------------------------------------------------------------------

    @property
    def current(self) -> FileSet:
        """The set that is written; OSError if it is closed."""
        if self._set is None:
            raise OSError("the file set is closed")
        return self._set

    def lengths(self) -> tuple[int, int, int]:
        """Return the lengths of JOURNAL, DATA, QLIST on disk, bytes."""
        journal, data, qlist = (each.file.size() for each in self.current.files)
        return journal, data, qlist

    def allocated(self) -> tuple[int, int, int]:
        """Return the bytes that JOURNAL, DATA, QLIST occupy on the disk."""
        journal, data, qlist = (each.file.allocated() for each in self.current.files)
        return journal, data, qlist

    def resume(self, journal: int, data: int, qlist: int) -> None:
        """Set the write positions and zero the files from there to the configured sizes."""
        for kind, each, end, limit in zip(KINDS, self.current.files, (journal, data, qlist), self.sizes.as_tuple,
                                          strict=True):
            each.file.resize(end, False)
            size = max(end, limit)
            try:
                each.file.resize(size, self._preallocate)
            except OSError as error:
                self.reports.alarm(
                    alarms.PREALLOCATION_FAILED,
                    f": {kind.name} cannot be preallocated to {size} B: {error}. Later writes may"
                    " fail.")
                each.file.resize(size, False)
            each.end = end

    def append(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """Write DATA, QLIST, JOURNAL at the write positions and advance these. OSError: no position has changed."""
        self.current.append(journal, data, qlist)

    def prewrite(self, data: list[bytes]) -> bool:
        """Write the next PREWRITE_BYTES of the DATA of the next `append`; False if more remain."""
        return self._set is None or self._set.prewrite(data)  # `append` raises if the set is closed

    def sync(self) -> None:
        """fdatasync the current set, and the next one after `sync_both`. For any thread."""
        for each in self._synced:
            each.sync()

    # ---- rollover ------------------------------------------------------------------------------------------------

    @property
    def has_next(self) -> bool:
        return self._next is not None

    def create_next(self, wall: int) -> None:
        """Create the next file set, named after `wall` (UTC). OSError if it does not fit on the disk. For any thread."""
        self._next = self.directory.create(wall, self.sizes, self._preallocate)

    @property
    def next_set(self) -> FileSet:
        """The next file set; OSError if there is none."""
        if self._next is None:
            raise OSError("no rollover has begun")
        return self._next

    def sync_both(self) -> None:
        """Let `sync` cover both sets: the owner writes every batch to both from now on."""
        self._synced = (self.current, self.next_set)

    def mark_next_complete(self, mark: int) -> None:
        """Sync the next set, write the journal offset `mark` of its sync point into its header, sync. For any thread."""
        next_set = self.next_set
        next_set.sync()
        self.directory.sync()
        if mark:
            next_set.journal.file.write(MARK_OFFSET, [pack_mark(mark)])
            next_set.journal.file.sync()

    def switch_to_next(self) -> None:
        """Make the next set current; call `archive_old` afterwards."""
        self._old = self.current
        self._set_current(self.next_set)
        self._next = None
        self.file_missing = False

    def archive_old(self, damaged: bool) -> None:
        """Truncate the old set to its positions (not a `damaged` one) and archive it. For any thread."""
        old, self._old = self._old, None
        if old is None:
            return
        try:
            if not damaged:
                old.truncate()
        except OSError as error:
            self.reports.alarm(alarms.FILE_SET_NOT_TRUNCATED, f": old set {old.base}: {error}.")
        old.close()
        self.directory.archive(old.base, damaged)
        self.directory.trim_archive()

    def complete_rollover(self, mark: int, damaged: bool) -> None:
        """Mark the next set, make it current and archive the old one."""
        self.mark_next_complete(mark)
        self.switch_to_next()
        self.archive_old(damaged)

    def discard_next(self) -> None:
        """Remove the next set; the current set stays."""
        next_set, self._next = self._next, None
        if next_set is None:
            return
        self._synced = (self.current,)
        next_set.close()
        self.directory.remove(next_set.base)

    def close(self, truncate: bool) -> None:
        """Close the files; `truncate` them to their positions first (clean stop)."""
        current, self._set, self._synced = self._set, None, ()
        self.read_journal = self.read_data = self.read_qlist = self.journal_after = _raise_closed
        if current is None:
            return
        try:
            if truncate:
                current.truncate()
        finally:
            current.close()
