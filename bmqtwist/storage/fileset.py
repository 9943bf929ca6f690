"""The file sets of one partition on a disk: names, choice at the start, rollover, archive.

    <location>/bmq_<pid>.<YYYYMMDD_HHMMSS>.bmq_journal | .bmq_data | .bmq_qlist

Several sets lie in the directory only after a crash within a rollover. The one whose journal reaches furthest (lease,
sequence) is right; of two that reach equally far, the one whose header says that its rollover was finished. That mark is
written when everything before it is safe; a set without it that is not the oldest one is the copy of an unfinished
rollover, which may have holes, and is right only if there is no other. Nothing is ever deleted here but what a failed
`begin_roll` made; sets leave by archiving, and only the archive is thinned out. A damaged set gets a name the thinning does
not know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from threading import Lock

from bmqtwist.storage.journal import JournalScan, check_file_header
from bmqtwist.storage.records import MARK_OFFSET, FileType, file_headers, pack_mark
from bmqtwist.storage.store import AHEAD_BYTES, DATA_HEADER_BYTES, Disk, File, FileSizes

KINDS = FileType.JOURNAL, FileType.DATA, FileType.QLIST
DAMAGED_PREFIX = "damaged."
_EXTENSION = {FileType.JOURNAL: "bmq_journal", FileType.DATA: "bmq_data", FileType.QLIST: "bmq_qlist"}
_STAMP = r"\d{8}_\d{6}"


def _part_of(parts: list[bytes], start: int, size: int) -> list[bytes]:
    """`size` bytes of all parts from `start` on, or as many as there are."""
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


def stamp(wall: int) -> str:
    """`YYYYMMDD_HHMMSS`, UTC."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y%m%d_%H%M%S")


class _Open:
    """An open file. `end`: where the next write begins."""

    __slots__ = ("end", "file")

    def __init__(self, file: File) -> None:
        self.file, self.end = file, file.size()


class _Set:
    """One open file set. Another thread may call `sync`."""

    def __init__(self, base: str, files: dict[FileType, File]) -> None:
        self.base = base
        self.open = {kind: _Open(file) for kind, file in files.items()}
        self._journal, self._data, self._qlist = (self.open[kind] for kind in KINDS)
        self._guard = Lock()  # a sync in another thread must not meet a set that is being closed
        self._closed = False
        self.unsynced_qlist = True  # it changes seldom: most syncs can leave it out
        self._ahead = 0  # bytes that are written behind the end of DATA, of what `append` is given next

    def append_ahead(self, data: list[bytes]) -> bool:
        """Write the next AHEAD_BYTES of it; False: there is more. What fails here fails again in `append`."""
        try:
            self._ahead += self._data.file.write(self._data.end + self._ahead, _part_of(data, self._ahead, AHEAD_BYTES))
        except OSError:
            return True
        return sum(map(len, data)) - self._ahead <= AHEAD_BYTES

    def append(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """DATA, QLIST, JOURNAL; positions move only when all is written."""
        ahead, self._ahead = self._ahead, 0
        if ahead:
            data = _part_of(data, ahead, sum(map(len, data)))
        data_bytes = ahead + self._data.file.write(self._data.end + ahead, data) if data else ahead
        qlist_bytes = 0
        if qlist:
            self.unsynced_qlist = True
            qlist_bytes = self._qlist.file.write(self._qlist.end, qlist)
        if journal:
            self._journal.end += self._journal.file.write(self._journal.end, journal)
        self._data.end += data_bytes
        self._qlist.end += qlist_bytes

    def sync(self) -> None:
        """The journal last: what it refers to is safe by then."""
        with self._guard:
            if self._closed:
                return
            self._data.file.sync()
            if self.unsynced_qlist:
                self.unsynced_qlist = False
                self._qlist.file.sync()
            self._journal.file.sync()

    def truncate(self) -> None:
        """Cut the files to their positions."""
        with self._guard:
            for each in self.open.values():
                each.file.resize(each.end, False)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            for each in self.open.values():
                each.file.close()


class FileSets:
    """PartitionFiles over a Disk. `open` first; `broken` then tells that a file of the set had to be made anew."""

    def __init__(self, disk: Disk, location: str, archive: str, partition_id: int, sizes: FileSizes,
                 keep_archived: int = 0, preallocate: bool = True) -> None:
        self._disk, self._location, self._archive, self.partition_id = disk, location, archive, partition_id
        self.sizes, self._keep, self._preallocate = sizes, keep_archived, preallocate
        self._limits = {FileType.JOURNAL: sizes.journal, FileType.DATA: sizes.data, FileType.QLIST: sizes.qlist}
        self._alarms: list[tuple[str, str]] = []
        self._set: _Set | None = None
        self._next: _Set | None = None
        self._old: _Set | None = None  # no longer written, not yet archived
        self._synced: tuple[_Set, ...] = ()  # what `sync` covers; replaced as a whole, for the sake of its thread
        self.broken = self.created = False
        extensions = "|".join(_EXTENSION.values())
        self._pattern = re.compile(rf"bmq_{partition_id}\.({_STAMP})\.({extensions})")

    # ---- opening -------------------------------------------------------------------------------------------------

    def open(self, wall: int) -> None:
        """Choose the set by content, archive the others; create one if there is none.

        A set without DATA or QLIST gets an empty one (`broken`); a set without a journal is put aside as damaged.
        """
        found: dict[str, set[FileType]] = {}
        for name in self._disk.names(self._location):
            match = self._pattern.fullmatch(name)
            if match:
                kind = next(kind for kind in KINDS if _EXTENSION[kind] == match[2])
                found.setdefault(match[1], set()).add(kind)
        bases = [base for base, kinds in found.items() if FileType.JOURNAL in kinds]
        candidates = {base: self._rank(base, alone=len(bases) == 1) for base in bases}
        usable = {base: rank for base, rank in candidates.items() if rank is not None}
        oldest = min(usable, default=None)
        chosen = max(usable, key=lambda base: (usable[base][2] or base == oldest, usable[base], base), default=None)
        for base in sorted(found):
            if base != chosen:
                self._put_aside(base, found[base], chosen, usable.get(base))
        if chosen is None:
            self._set, self.created = self._create(self._free_stamp(wall), self._location), True
            self._set.sync()
            self._disk.sync_directory(self._location)
        else:
            self._set = self._open_set(chosen, found[chosen])
        self._synced = (self._set,)
        self._thin_archive()

    def _rank(self, base: str, alone: bool) -> tuple[int, int, bool] | None:
        """How far a set reaches: (lease, sequence, rollover finished); None if there is nothing in it.

        The only set there is (`alone`) is not read through.
        """
        journal = self._disk.open(self._path(base, FileType.JOURNAL))
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

    def _put_aside(self, base: str, kinds: set[FileType], chosen: str | None,
                   rank: tuple[int, int, bool] | None) -> None:
        holds_messages = False
        if FileType.DATA in kinds and rank is None:
            data = self._disk.open(self._path(base, FileType.DATA))
            holds_messages = any(data.read(40, 4096))
            data.close()
        lost = holds_messages and (chosen is None or base > chosen)
        if lost:
            self._alarms.append(("RECOVERY", f"Partition [{self.partition_id}]: the journal of file set {base} is"
                                             " missing or empty, its DATA cannot be read without it. The set is kept as"
                                             f" {DAMAGED_PREFIX}* in the archive."))
        elif rank is not None:
            self._alarms.append(("RECOVERY", f"Partition [{self.partition_id}]: file set {base} was left by an"
                                             f" unfinished rollover; {chosen} is used, the other is archived."))
        self._move(base, kinds, DAMAGED_PREFIX if lost else "")

    def _open_set(self, base: str, kinds: set[FileType]) -> _Set:
        files = {}
        for kind in KINDS:
            path = self._path(base, kind)
            if kind not in kinds:
                files[kind] = self._disk.create(path)
            else:
                files[kind] = self._disk.open(path)
            if not files[kind].size():
                files[kind].write(0, [file_headers(kind, self.partition_id)])
                self.broken = True
                self._alarms.append(("RECOVERY", f"Partition [{self.partition_id}]: the {kind.name} file of set {base}"
                                                 " is missing or empty; an empty one takes its place."))
        return _Set(base, files)

    def _path(self, base: str, kind: FileType, directory: str | None = None, prefix: str = "") -> str:
        return f"{directory or self._location}/{prefix}bmq_{self.partition_id}.{base}.{_EXTENSION[kind]}"

    def _free_stamp(self, wall: int) -> str:
        taken = {*self._disk.names(self._location), *self._disk.names(self._archive)}
        while any(self._path(stamp(wall), kind).rpartition("/")[2] in taken for kind in KINDS):
            wall += 1
        return stamp(wall)

    def _create(self, base: str, directory: str) -> _Set:
        files: dict[FileType, File] = {}
        try:
            for kind in (FileType.DATA, FileType.QLIST, FileType.JOURNAL):
                files[kind] = self._disk.create(self._path(base, kind, directory))
                files[kind].resize(self._limits[kind], self._preallocate)
                files[kind].write(0, [file_headers(kind, self.partition_id)])
        except OSError:
            for kind, file in files.items():
                file.close()
                self._disk.remove(self._path(base, kind, directory))
            raise
        created = _Set(base, files)
        for kind, each in created.open.items():
            each.end = len(file_headers(kind, self.partition_id))
        return created

    # ---- the current set -----------------------------------------------------------------------------------------

    @property
    def _current(self) -> _Set:
        if self._set is None:
            raise OSError("the file set is closed")
        return self._set

    @property
    def journal_position(self) -> int:
        """Where the next journal record goes, bytes."""
        return self._current.open[FileType.JOURNAL].end

    @property
    def data_position(self) -> int:
        """Where the next DATA record goes, bytes."""
        return self._current.open[FileType.DATA].end

    @property
    def qlist_position(self) -> int:
        """Where the next QLIST record goes, bytes."""
        return self._current.open[FileType.QLIST].end

    @property
    def base(self) -> str:
        """The timestamp in the names of the current set."""
        return self._current.base

    def read_journal(self, offset: int, size: int) -> bytes:
        """Bytes of the JOURNAL; fewer at its end."""
        return self._current.open[FileType.JOURNAL].file.read(offset, size)

    def journal_after(self, offset: int) -> int | None:
        """Where, from `offset` on, the JOURNAL may hold something; None: zeros follow."""
        return self._current.open[FileType.JOURNAL].file.data_after(offset)

    def read_data(self, offset: int, size: int) -> bytes:
        """Bytes of DATA; fewer at its end."""
        return self._current.open[FileType.DATA].file.read(offset, size)

    def read_qlist(self, offset: int, size: int) -> bytes:
        """Bytes of QLIST; fewer at its end."""
        return self._current.open[FileType.QLIST].file.read(offset, size)

    def lengths(self) -> tuple[int, int, int]:
        """Lengths on disk of JOURNAL, DATA, QLIST."""
        journal, data, qlist = (self._current.open[kind].file.size() for kind in KINDS)
        return journal, data, qlist

    def resume(self, journal: int, data: int, qlist: int) -> None:
        """Set the positions; everything behind them becomes zeros up to the configured sizes."""
        current = self._current
        for kind, end in zip(KINDS, (journal, data, qlist), strict=True):
            file = current.open[kind].file
            file.resize(end, False)
            size = max(end, self._limits[kind])
            try:
                file.resize(size, self._preallocate)
            except OSError as error:
                self._alarms.append(("FILE_IO", f"Partition [{self.partition_id}]: {kind.name} cannot be preallocated"
                                                f" to {size} B: {error}. Writing may fail later."))
                file.resize(size, False)
            current.open[kind].end = end

    def append(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """Write DATA, then QLIST, then JOURNAL at the positions and move these. After an OSError nothing has moved."""
        self._current.append(journal, data, qlist)

    def append_ahead(self, data: list[bytes]) -> bool:
        """Write the next AHEAD_BYTES of what `append` will be given, where nothing refers to it. False: there is more."""
        return self._set is None or self._set.append_ahead(data)  # `append` says that it is closed

    def sync(self) -> None:
        """fdatasync of DATA and QLIST, then of JOURNAL; of both sets once `join_next` was called. For any thread."""
        for each in self._synced:
            each.sync()

    # ---- rollover ------------------------------------------------------------------------------------------------

    @property
    def rolling(self) -> bool:
        """Is there a next file set?"""
        return self._next is not None

    def begin_roll(self, wall: int) -> None:
        """Create the next file set, named after `wall` (UTC). OSError if it does not fit on the disk. For any thread."""
        self._next = self._create(self._free_stamp(wall), self._location)

    @property
    def _coming(self) -> _Set:
        if self._next is None:
            raise OSError("no rollover has begun")
        return self._next

    def append_next(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """As `append`, into the next file set."""
        self._coming.append(journal, data, qlist)

    def next_positions(self) -> tuple[int, int, int]:
        """Positions in the next file set: JOURNAL, DATA, QLIST."""
        journal, data, qlist = (self._coming.open[kind].end for kind in KINDS)
        return journal, data, qlist

    def join_next(self) -> None:
        """From now on the owner writes everything into both sets, and `sync` covers both."""
        self._synced = (self._current, self._coming)

    def sync_next(self) -> None:
        """As `sync`, of the next file set. For any thread."""
        self._coming.sync()

    def mark_next(self, mark: int) -> None:
        """Sync the next set, write the journal offset `mark` of its sync point into its header, sync. For any thread."""
        coming = self._coming
        coming.sync()
        self._disk.sync_directory(self._location)
        if mark:
            coming.open[FileType.JOURNAL].file.write(MARK_OFFSET, [pack_mark(mark)])
            coming.open[FileType.JOURNAL].file.sync()

    def switch_next(self) -> None:
        """Make the next set current; the old one waits for `retire_old`."""
        self._set, self._next, self._old = self._coming, None, self._current
        self._synced = (self._set,)
        self.broken = False

    def retire_old(self, damaged: bool) -> None:
        """Cut the old set to its positions (not a `damaged` one, which is kept for good), archive it. For any thread."""
        old, self._old = self._old, None
        if old is None:
            return
        try:
            if not damaged:
                old.truncate()
        except OSError as error:
            self._alarms.append(("FILE_IO", f"Partition [{self.partition_id}]: old set {old.base}: {error}."))
        old.close()
        self._move(old.base, set(KINDS), DAMAGED_PREFIX if damaged else "")
        self._thin_archive()

    def finish_roll(self, mark: int, damaged: bool) -> None:
        """All that is left of a rollover at once."""
        self.mark_next(mark)
        self.switch_next()
        self.retire_old(damaged)

    def abandon_roll(self) -> None:
        """Remove what `begin_roll` created; the current set stays."""
        coming, self._next = self._next, None
        if coming is None:
            return
        self._synced = (self._current,)
        coming.close()
        for kind in (FileType.JOURNAL, FileType.DATA, FileType.QLIST):
            try:
                self._disk.remove(self._path(coming.base, kind))
            except OSError as error:
                self._alarms.append(("FILE_IO", f"Partition [{self.partition_id}]: new set {coming.base} cannot be"
                                                f" removed: {error}."))

    def close(self, truncate: bool) -> None:
        """Close the files; `truncate` cuts them to their positions first (clean stop)."""
        current, self._set, self._synced = self._set, None, ()
        if current is None:
            return
        try:
            if truncate:
                current.truncate()
        finally:
            current.close()

    # ---- archive -------------------------------------------------------------------------------------------------

    def _move(self, base: str, kinds: Sequence[FileType] | set[FileType], prefix: str) -> None:
        """Into the archive, the journal last: a set without a journal is known to be a leftover."""
        try:
            for kind in (FileType.DATA, FileType.QLIST, FileType.JOURNAL):
                if kind in kinds:
                    self._disk.rename(self._path(base, kind), self._path(base, kind, self._archive, prefix))
            self._disk.sync_directory(self._archive)
            self._disk.sync_directory(self._location)
        except OSError as error:
            self._alarms.append(("ROLLOVER", f"Partition [{self.partition_id}]: file set {base} cannot be archived:"
                                             f" {error}."))

    def _thin_archive(self) -> None:
        try:
            names = [name for name in self._disk.names(self._archive) if self._pattern.fullmatch(name)]
            bases = sorted({name.split(".")[1] for name in names})
            doomed = set(bases[:max(0, len(bases) - self._keep)])
            for name in names:
                if name.split(".")[1] in doomed and self._is_ours(name):
                    self._disk.remove(f"{self._archive}/{name}")
        except OSError as error:
            self._alarms.append(("ROLLOVER", f"Partition [{self.partition_id}]: the archive cannot be thinned out:"
                                             f" {error}."))

    def _is_ours(self, name: str) -> bool:
        """Whether a file of the archive is one of an archived set of this partition, by what it holds."""
        kind = next(kind for kind in KINDS if name.endswith(_EXTENSION[kind]))
        file = self._disk.open(f"{self._archive}/{name}")
        try:
            return not check_file_header(file.read(0, DATA_HEADER_BYTES), kind, self.partition_id)
        finally:
            file.close()

    def take_alarms(self) -> list[tuple[str, str]]:
        """(category, text) of what went wrong without stopping the work, since the last call."""
        alarms, self._alarms = self._alarms, []
        return alarms
