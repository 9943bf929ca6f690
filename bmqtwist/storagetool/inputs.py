"""Input files of the storage tool: found by name, by directory or by a prefix with an asterisk; opened for reading only.

The files may belong to a running broker. `bmq tail` and the Spark data source open files with this module, too. Called by
`cli/storage.py`; brokers open files with `storage/files.py`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from bmqtwist.errors import LocalError
from bmqtwist.storage.files import RealFile
from bmqtwist.storage.ledger_file import LedgerContents, read_ledger
from bmqtwist.storage.records import RECORD_BYTES, FileType
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES

JOURNAL, DATA, QLIST, LEDGER = "journal", "data", "qlist", "csl"
_SUFFIXES = {f".bmq_{kind}": kind for kind in (JOURNAL, DATA, QLIST, LEDGER)}
_CHUNK_BYTES = 4 << 20
_SET_NAME = re.compile(r"(?:damaged\.)?bmq_(\d+)\.(.+)\.bmq_(journal|data|qlist)")

OnRead = Callable[[int], None]  # receives the number of bytes of each read


class InputError(LocalError):
    """A file cannot be read, or a path is ambiguous."""


class ReadOnlyFile:
    """One file, opened for reading only."""

    def __init__(self, path: str, on_read: OnRead | None = None) -> None:
        self.path, self._on_read = path, on_read
        try:
            self._file = RealFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise InputError(f"{path} cannot be opened: {error.strerror}") from None
        self.data_after, self.close = self._file.data_after, self._file.close

    @property
    def size(self) -> int:
        """Length on disk, bytes; the file of a running broker has its configured maximum."""
        return self._file.size()

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        try:
            data = self._file.read(offset, size)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read at offset {offset}: {error.strerror}") from None
        if self._on_read:
            self._on_read(len(data))
        return data

    def read_all(self) -> bytes:
        return self.read(0, self.size)


class JournalSnapshot(ReadOnlyFile):
    """Snapshot of a journal: records that a running broker appends later read as zeros.

    Open it before the other files: a broker writes ledger and DATA before the JOURNAL, so they hold all that it refers to.
    """

    def __init__(self, path: str, on_read: OnRead | None = None) -> None:
        super().__init__(path, on_read)
        self._size = self._end = super().size
        while self._end > 0:  # find the end of the last record that is not zero; it may be incomplete
            start = max(0, self._end - _CHUNK_BYTES)
            written = super().read(start, self._end - start).rstrip(b"\0")
            self._end = start
            if written:
                records = -(-(start + len(written) - JOURNAL_HEADER_BYTES) // RECORD_BYTES)
                self._end = JOURNAL_HEADER_BYTES + records * RECORD_BYTES
                break

    @property
    def size(self) -> int:
        """Length on disk, bytes."""
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        data = super().read(offset, min(size, max(0, self._size - offset)))
        beyond = offset + len(data) - max(offset, self._end)
        return data[:-beyond] + bytes(beyond) if beyond > 0 else data

    def has_grown(self) -> bool:
        """Return whether records were appended since the snapshot."""
        return any(super().read(self._end, RECORD_BYTES))


@dataclass(slots=True)
class SetFiles:
    """Paths of a file set and a ledger, "" if absent. partition_id: from a file name, -1 if unknown."""

    partition_id: int = -1
    stamp: str = ""
    journal: str = ""
    data: str = ""
    qlist: str = ""
    csl: str = ""

    def set_path(self, kind: str, path: str) -> None:
        """Set a path; InputError if another one is set already."""
        known = getattr(self, kind)
        if known and known != path:
            raise InputError(f"two {kind} files: {known} and {path}. Name one of them.")
        setattr(self, kind, path)


class SetView:
    """`PartitionReader` over up to three files, closed with `stack`; the journal is a snapshot."""

    file_missing = False

    def __init__(self, files: SetFiles, stack: ExitStack, on_read: OnRead | None = None) -> None:
        self.sources: dict[FileType, ReadOnlyFile | None] = {}
        for kind, path in ((FileType.JOURNAL, files.journal), (FileType.DATA, files.data), (FileType.QLIST, files.qlist)):
            file = self.sources[kind] = (
                None if not path else (JournalSnapshot if kind is FileType.JOURNAL else ReadOnlyFile)(path, on_read))
            if file is not None:
                stack.callback(file.close)
        self.read_journal, self.read_data, self.read_qlist = (
            (lambda offset, size: b"") if file is None else file.read for file in self.sources.values())

    def lengths(self) -> tuple[int, int, int]:
        journal, data, qlist = (source.size if source is not None else 0 for source in self.sources.values())
        return journal, data, qlist

    def journal_after(self, offset: int) -> int | None:
        """Return `offset`: the tool reads holes, too."""
        return offset


def kind_of(path: str) -> str:
    """Return journal, data, qlist or csl, by the end of the name; InputError for other names."""
    for suffix, kind in _SUFFIXES.items():
        if path.endswith(suffix):
            return kind
    if not os.path.lexists(path):
        raise InputError(f"there is no {path}")
    raise InputError(f"{path} is not a storage file: its name must end with {', '.join(_SUFFIXES)}")


def set_name(path: str) -> tuple[int, str]:
    """Return (partition id, stamp) of a file name; (-1, "") if it is not the name of a file of a set."""
    match = _SET_NAME.fullmatch(os.path.basename(path))
    return (int(match[1]), match[2]) if match else (-1, "")


def resolve(paths: Iterable[str], partition: int | None = None) -> SetFiles:
    """Return the files of `paths`: file names, a directory (with `partition` if it holds several), or 'prefix*'."""
    found = SetFiles()
    for path in paths:
        if path.endswith("*"):
            names = [name for name in sorted(glob.glob(glob.escape(path[:-1]) + "*"))
                     if name.endswith(tuple(_SUFFIXES)) and os.path.isfile(name)]
            if not names:
                raise InputError(f"no storage file begins with {path[:-1]}")
            for name in names:
                found.set_path(kind_of(name), name)
        elif os.path.isdir(path):
            _from_directory(path, partition, found)
        else:
            found.set_path(kind_of(path), path)
    return found


def with_siblings(paths: SetFiles) -> SetFiles:
    """Add the other files of the set in the same directory."""
    named = paths.journal or paths.data or paths.qlist
    stem = named.rpartition(".bmq_")[0]
    for kind in (JOURNAL, DATA, QLIST):
        sibling = f"{stem}.bmq_{kind}"
        if named and not getattr(paths, kind) and os.path.isfile(sibling):
            paths.set_path(kind, sibling)
    return paths


def _from_directory(directory: str, partition: int | None, found: SetFiles) -> None:
    sets = [each for each in file_sets(directory) if partition is None or each.partition_id == partition]
    journals = [each for each in sets if each.journal]
    if len(journals) > 1:
        which = ", ".join(os.path.basename(each.journal) for each in journals)
        hint = "Name one" if partition is not None else "Choose with --partition, or name one"
        raise InputError(f"{directory} holds several journals ({which}). {hint}.")
    for each in journals:
        for kind in (JOURNAL, DATA, QLIST):
            path = getattr(each, kind)
            if path:
                found.set_path(kind, path)
    ledgers = ledger_files(directory)
    if ledgers:
        found.set_path(LEDGER, ledgers[-1])
    if not journals and (partition is not None or not ledgers):
        raise InputError(f"{directory} holds no journal" + ("" if partition is None else f" of partition {partition}"))


def file_sets(directory: str) -> list[SetFiles]:
    """Return all file sets in a directory, by partition and age."""
    found: dict[tuple[int, str, bool], SetFiles] = {}
    for name in _names(directory):
        match = _SET_NAME.fullmatch(name)
        if match:
            partition_id, stamp = int(match[1]), match[2]
            key = partition_id, stamp, name.startswith("damaged.")
            each = found.setdefault(key, SetFiles(partition_id, stamp))
            setattr(each, match[3], f"{directory}/{name}")
    return [found[key] for key in sorted(found)]


def ledger_files(directory: str) -> list[str]:
    """Return all ledger files of a directory; the last one, the newest by name, is used by a broker."""
    return [f"{directory}/{name}" for name in _names(directory) if name.endswith(".bmq_csl")]


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        raise InputError(f"{directory} cannot be read: {error.strerror}") from None


@dataclass(slots=True)
class StorageTarget:
    """File sets and at most one ledger to verify together. `whole`: a directory, which must be complete."""

    name: str
    sets: list[SetFiles]
    ledger: str = ""
    whole: bool = False
    older_ledgers: list[str] = field(default_factory=list)

    def paths(self) -> Iterable[str]:
        """Iterate over the paths of all files."""
        for each in self.sets:
            yield from (path for path in (each.journal, each.data, each.qlist) if path)
        if self.ledger:
            yield self.ledger


def directory_target(directory: str) -> StorageTarget:
    """Return the target of all files in a directory."""
    ledgers = ledger_files(directory)
    return StorageTarget(directory, file_sets(directory), ledgers[-1] if ledgers else "", True, ledgers[:-1])


def open_ledger(path: str, on_read: OnRead | None = None) -> LedgerContents:
    """Read and decode a ledger file; InputError if it cannot be read."""
    with closing(ReadOnlyFile(path, on_read)) as file:
        return read_ledger(file.read_all())
