"""The files to look at: opened for reading only, found by name, by directory or by a prefix with an asterisk."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bmqtwist.errors import LocalError

JOURNAL, DATA, QLIST, LEDGER = "journal", "data", "qlist", "csl"
_SUFFIXES = {f".bmq_{kind}": kind for kind in (JOURNAL, DATA, QLIST, LEDGER)}
_SET_NAME = re.compile(r"(?:damaged\.)?bmq_(\d+)\.(.+)\.bmq_(journal|data|qlist)")

Watch = Callable[[int], None]  # is told how many bytes were read


class InputError(LocalError):
    """A file cannot be read, or it is not clear which one is meant."""


class ReadOnlyFile:
    """One file; nothing here can change it."""

    def __init__(self, path: str, watch: Watch | None = None) -> None:
        self.path, self._watch = path, watch
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"{path} cannot be opened: {error.strerror}") from None

    @property
    def size(self) -> int:
        """Length on disk, bytes. A live file is as long as its configured maximum."""
        return os.fstat(self._fd).st_size

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        parts = []
        try:
            while size > 0:
                data = os.pread(self._fd, min(size, 1 << 30), offset)
                if not data:
                    break
                parts.append(data)
                offset += len(data)
                size -= len(data)
                if self._watch:
                    self._watch(len(data))
        except OSError as error:
            raise InputError(f"{self.path} cannot be read at offset {offset}: {error.strerror}") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_all(self) -> bytes:
        """The whole content."""
        return self.read(0, self.size)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(slots=True)
class Paths:
    """The files of one partition and the ledger, as far as they were named or found."""

    journal: str = ""
    data: str = ""
    qlist: str = ""
    csl: str = ""

    def put(self, kind: str, path: str) -> None:
        """Set one; LocalError if another one is set already."""
        known = getattr(self, kind)
        if known and known != path:
            raise InputError(f"two {kind} files: {known} and {path}. Name the one you mean.")
        setattr(self, kind, path)


@dataclass(slots=True)
class SetFiles:
    """One file set; a path is "" if the file is missing, the partition -1 if the names do not tell it."""

    partition_id: int
    stamp: str
    journal: str = ""
    data: str = ""
    qlist: str = ""


def kind_of(path: str) -> str:
    """journal, data, qlist or csl, by the end of the name; InputError for any other."""
    for suffix, kind in _SUFFIXES.items():
        if path.endswith(suffix):
            return kind
    if not os.path.lexists(path):
        raise InputError(f"there is no {path}")
    raise InputError(f"{path} is no storage file: its name should end with {', '.join(_SUFFIXES)}")


def set_name(path: str) -> tuple[int, str]:
    """(partition id, stamp) in the name of a file of a set; (-1, "") if the name is another one."""
    match = _SET_NAME.fullmatch(os.path.basename(path))
    return (int(match[1]), match[2]) if match else (-1, "")


def resolve(paths: Iterable[str], partition: int | None = None) -> Paths:
    """Which files `paths` mean: files by name, a directory (with `partition` if it holds several), or 'prefix*'."""
    found = Paths()
    for path in paths:
        if path.endswith("*"):
            names = [name for name in sorted(glob.glob(glob.escape(path[:-1]) + "*"))
                     if name.endswith(tuple(_SUFFIXES)) and os.path.isfile(name)]
            if not names:
                raise InputError(f"no storage file begins with {path[:-1]}")
            for name in names:
                found.put(kind_of(name), name)
        elif os.path.isdir(path):
            _from_directory(path, partition, found)
        else:
            found.put(kind_of(path), path)
    return found


def with_siblings(paths: Paths) -> Paths:
    """The same with those files of the set that lie beside the named ones under the same name."""
    named = paths.journal or paths.data or paths.qlist
    stem = named.rpartition(".bmq_")[0]
    for kind in (JOURNAL, DATA, QLIST):
        sibling = f"{stem}.bmq_{kind}"
        if named and not getattr(paths, kind) and os.path.isfile(sibling):
            paths.put(kind, sibling)
    return paths


def _from_directory(directory: str, partition: int | None, found: Paths) -> None:
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
                found.put(kind, path)
    ledgers = ledger_files(directory)
    if ledgers:
        found.put(LEDGER, ledgers[-1])
    if not journals and (partition is not None or not ledgers):
        raise InputError(f"{directory} holds no journal" + ("" if partition is None else f" of partition {partition}"))


def file_sets(directory: str) -> list[SetFiles]:
    """All file sets in a directory, by partition and age."""
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
    """All ledger files of a directory, the newest (by name) last: that is the one a broker uses."""
    return [f"{directory}/{name}" for name in _names(directory) if name.endswith(".bmq_csl")]


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        raise InputError(f"{directory} cannot be read: {error.strerror}") from None
