"""The file sets of one partition in its directories: names, choice at the start, creation, archive.

    <location>/bmq_<pid>.<YYYYMMDD_HHMMSS>.bmq_journal | .bmq_data | .bmq_qlist

Several sets lie in the directory only after a crash within a rollover. The one whose journal reaches furthest (lease,
sequence) is right; of two that reach equally far, the one whose header says that its rollover was finished. That mark is
written when everything before it is safe; a set without it that is not the oldest one is the copy of an unfinished
rollover, which may have holes, and is right only if there is no other. Nothing is ever deleted here but what a failed
creation made; sets leave by archiving, and only the archive is thinned out. A damaged set gets a name the thinning does
not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from bmqtwist.storage.journal import JournalScan, check_file_header
from bmqtwist.storage.open_set import KINDS, FileSet
from bmqtwist.storage.records import FileType, file_headers
from bmqtwist.storage.reports import Reports
from bmqtwist.storage.store import DATA_HEADER_BYTES, Disk, File, FileSizes

DAMAGED_PREFIX = "damaged."
_JOURNAL_LAST = FileType.DATA, FileType.QLIST, FileType.JOURNAL  # a set without a journal is known to be a leftover
_EXTENSION = {FileType.JOURNAL: "bmq_journal", FileType.DATA: "bmq_data", FileType.QLIST: "bmq_qlist"}
_KIND = {extension: kind for kind, extension in _EXTENSION.items()}
_STAMP = r"\d{8}_\d{6}"


def stamp(wall: int) -> str:
    """`YYYYMMDD_HHMMSS`, UTC."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y%m%d_%H%M%S")


class SetDirectory:
    """`open` first. broken: a file of the chosen set had to be made anew. created: there was no set."""

    def __init__(self, disk: Disk, location: str, archive: str, reports: Reports, partition_id: int, keep: int) -> None:
        self._disk, self._location, self._archive, self._reports = disk, location, archive, reports
        self._partition_id, self._keep = partition_id, keep
        self.broken = self.created = False
        self._pattern = re.compile(rf"bmq_{partition_id}\.({_STAMP})\.({'|'.join(_KIND)})")

    def open(self, wall: int, sizes: FileSizes, preallocate: bool) -> FileSet:
        """Choose the set by content, archive the others; create one if there is none.

        A set without DATA or QLIST gets an empty one (`broken`); a set without a journal is put aside as damaged.
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
                self._put_aside(base, found[base], chosen, usable.get(base))
        if chosen is None:
            opened, self.created = self.create(wall, sizes, preallocate), True
            opened.sync()
            self.sync()
        else:
            opened = self._open_set(chosen, found[chosen])
        self.thin_archive()
        return opened

    def _rank(self, base: str, alone: bool) -> tuple[int, int, bool] | None:
        """How far a set reaches: (lease, sequence, rollover finished); None if there is nothing in it.

        The only set there is (`alone`) is not read through.
        """
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

    def _put_aside(self, base: str, kinds: set[FileType], chosen: str | None,
                   rank: tuple[int, int, bool] | None) -> None:
        holds_messages = False
        if FileType.DATA in kinds and rank is None:
            data = self._disk.open(self.path(base, FileType.DATA))
            holds_messages = any(data.read(40, 4096))
            data.close()
        lost = holds_messages and (chosen is None or base > chosen)
        if lost:
            self._reports.alarm("RECOVERY", f": the journal of file set {base} is missing or empty, its DATA cannot be read"
                                            f" without it. The set is kept as {DAMAGED_PREFIX}* in the archive.")
        elif rank is not None:
            self._reports.alarm("RECOVERY", f": file set {base} was left by an unfinished rollover; {chosen} is used, the"
                                            " other is archived.")
        self.archive(base, lost, kinds)

    def _open_set(self, base: str, kinds: set[FileType]) -> FileSet:
        files = {}
        for kind in KINDS:
            path = self.path(base, kind)
            files[kind] = self._disk.open(path) if kind in kinds else self._disk.create(path)
            if not files[kind].size():
                files[kind].write(0, [file_headers(kind, self._partition_id)])
                self.broken = True
                self._reports.alarm("RECOVERY", f": the {kind.name} file of set {base} is missing or empty; an empty one"
                                                " takes its place.")
        return FileSet(base, files)

    def path(self, base: str, kind: FileType) -> str:
        """Of a file in use."""
        return f"{self._location}/bmq_{self._partition_id}.{base}.{_EXTENSION[kind]}"

    def _free_stamp(self, wall: int) -> str:
        taken = {*self._disk.names(self._location), *self._disk.names(self._archive)}
        while any(self.path(stamp(wall), kind).rpartition("/")[2] in taken for kind in KINDS):
            wall += 1
        return stamp(wall)

    def create(self, wall: int, sizes: FileSizes, preallocate: bool) -> FileSet:
        """A new set, named after `wall` (UTC). OSError if it does not fit on the disk; then nothing of it is left."""
        base, files = self._free_stamp(wall), dict[FileType, File]()
        headers = {kind: file_headers(kind, self._partition_id) for kind in KINDS}
        limits = dict(zip(KINDS, sizes.each, strict=True))
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
        for kind, each in zip(KINDS, created.each, strict=True):
            each.end = len(headers[kind])
        return created

    def sync(self) -> None:
        """Make the names survive a loss of power."""
        self._disk.sync_directory(self._location)

    def remove(self, base: str) -> None:
        """Delete a set that was never used."""
        for kind in _JOURNAL_LAST:
            try:
                self._disk.remove(self.path(base, kind))
            except OSError as error:
                self._reports.alarm("FILE_IO", f": new set {base} cannot be removed: {error}.")

    # ---- archive -------------------------------------------------------------------------------------------------

    def archive(self, base: str, damaged: bool, kinds: Iterable[FileType] = KINDS) -> None:
        """Move a set into the archive; a `damaged` one is never deleted there."""
        prefix = DAMAGED_PREFIX if damaged else ""
        try:
            for kind in _JOURNAL_LAST:
                if kind in kinds:
                    path = self.path(base, kind)
                    self._disk.rename(path, f"{self._archive}/{prefix}{path.rpartition('/')[2]}")
            self._disk.sync_directory(self._archive)
            self.sync()
        except OSError as error:
            self._reports.alarm("ROLLOVER", f": file set {base} cannot be archived: {error}.")

    def thin_archive(self) -> None:
        """Delete the oldest sets in the archive but those that are to be kept."""
        try:
            names = [name for name in self._disk.names(self._archive) if self._pattern.fullmatch(name)]
            bases = sorted({name.split(".")[1] for name in names})
            doomed = set(bases[:max(0, len(bases) - self._keep)])
            for name in names:
                if name.split(".")[1] in doomed and self._is_ours(name):
                    self._disk.remove(f"{self._archive}/{name}")
        except OSError as error:
            self._reports.alarm("ROLLOVER", f": the archive cannot be thinned out: {error}.")

    def _is_ours(self, name: str) -> bool:
        """Whether a file of the archive is one of an archived set of this partition, by what it holds."""
        file = self._disk.open(f"{self._archive}/{name}")
        try:
            return not check_file_header(file.read(0, DATA_HEADER_BYTES), _KIND[name.rpartition(".")[2]], self._partition_id)
        finally:
            file.close()
