"""The files of one partition: the current file set, the next one while a rollover runs, and the old one behind it."""

from __future__ import annotations

from bmqtwist.storage.open_set import KINDS, FileSet
from bmqtwist.storage.records import MARK_OFFSET, pack_mark
from bmqtwist.storage.reports import Reports
from bmqtwist.storage.set_directory import SetDirectory
from bmqtwist.storage.store import Disk, FileSizes


class FileSets:
    """`open` first; `broken` then tells that a file of the set had to be made anew.

    The current set is written only through `append`; positions are where the next bytes go.
    """

    def __init__(self, disk: Disk, location: str, archive: str, partition_id: int, sizes: FileSizes,
                 keep_archived: int = 0, preallocate: bool = True) -> None:
        self.partition_id, self.sizes, self._preallocate = partition_id, sizes, preallocate
        self.reports = Reports(partition_id)
        self.directory = SetDirectory(disk, location, archive, self.reports, partition_id, keep_archived)
        self._set: FileSet | None = None
        self._next: FileSet | None = None
        self._old: FileSet | None = None  # no longer written, not yet archived
        self._synced: tuple[FileSet, ...] = ()  # what `sync` covers; replaced as a whole, for the sake of its thread

    def open(self, wall: int) -> None:
        """Find the current set, or create it; see `SetDirectory.open`."""
        self._set = self.directory.open(wall, self.sizes, self._preallocate)
        self._synced = (self._set,)

    @property
    def broken(self) -> bool:
        """Was a file of the current set missing or empty?"""
        return self.directory.broken

    # ---- the current set -----------------------------------------------------------------------------------------

    @property
    def _current(self) -> FileSet:
        if self._set is None:
            raise OSError("the file set is closed")
        return self._set

    @property
    def journal_position(self) -> int:
        """Where the next journal record goes, bytes."""
        return self._current.journal.end

    @property
    def data_position(self) -> int:
        """Where the next DATA record goes, bytes."""
        return self._current.data.end

    @property
    def qlist_position(self) -> int:
        """Where the next QLIST record goes, bytes."""
        return self._current.qlist.end

    @property
    def base(self) -> str:
        """The timestamp in the names of the current set."""
        return self._current.base

    def read_journal(self, offset: int, size: int) -> bytes:
        """Bytes of the JOURNAL; fewer at its end."""
        return self._current.journal.file.read(offset, size)

    def journal_after(self, offset: int) -> int | None:
        """Where, from `offset` on, the JOURNAL may hold something; None: zeros follow."""
        return self._current.journal.file.data_after(offset)

    def read_data(self, offset: int, size: int) -> bytes:
        """Bytes of DATA; fewer at its end."""
        return self._current.data.file.read(offset, size)

    def read_qlist(self, offset: int, size: int) -> bytes:
        """Bytes of QLIST; fewer at its end."""
        return self._current.qlist.file.read(offset, size)

    def lengths(self) -> tuple[int, int, int]:
        """Lengths on disk of JOURNAL, DATA, QLIST."""
        journal, data, qlist = (each.file.size() for each in self._current.each)
        return journal, data, qlist

    def resume(self, journal: int, data: int, qlist: int) -> None:
        """Set the positions; everything behind them becomes zeros up to the configured sizes."""
        for kind, each, end, limit in zip(KINDS, self._current.each, (journal, data, qlist), self.sizes.each, strict=True):
            each.file.resize(end, False)
            size = max(end, limit)
            try:
                each.file.resize(size, self._preallocate)
            except OSError as error:
                self.reports.alarm("FILE_IO", f": {kind.name} cannot be preallocated to {size} B: {error}. Writing may fail"
                                              " later.")
                each.file.resize(size, False)
            each.end = end

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
        self._next = self.directory.create(wall, self.sizes, self._preallocate)

    @property
    def _coming(self) -> FileSet:
        if self._next is None:
            raise OSError("no rollover has begun")
        return self._next

    def append_next(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """As `append`, into the next file set."""
        self._coming.append(journal, data, qlist)

    def next_positions(self) -> tuple[int, int, int]:
        """Positions in the next file set: JOURNAL, DATA, QLIST."""
        return self._coming.positions()

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
        self.directory.sync()
        if mark:
            coming.journal.file.write(MARK_OFFSET, [pack_mark(mark)])
            coming.journal.file.sync()

    def switch_next(self) -> None:
        """Make the next set current; the old one waits for `retire_old`."""
        self._set, self._next, self._old = self._coming, None, self._current
        self._synced = (self._set,)
        self.directory.broken = False

    def retire_old(self, damaged: bool) -> None:
        """Cut the old set to its positions (not a `damaged` one, which is kept for good), archive it. For any thread."""
        old, self._old = self._old, None
        if old is None:
            return
        try:
            if not damaged:
                old.truncate()
        except OSError as error:
            self.reports.alarm("FILE_IO", f": old set {old.base}: {error}.")
        old.close()
        self.directory.archive(old.base, damaged)
        self.directory.thin_archive()

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
        self.directory.remove(coming.base)

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
