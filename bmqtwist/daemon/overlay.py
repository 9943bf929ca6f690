"""Overlay disk: reads another disk and holds all writes in memory, for a trial start over the files of a broker.

Used by `trial_start.py` over `storage/files.py`.
"""

from __future__ import annotations

import errno
from collections.abc import Hashable, Sequence
from contextlib import ExitStack

from bmqtwist.storage.store import Disk, File

WRITTEN_BYTES_MAX = 256 << 20  # of all writes; further ones fail as on a full disk


class OverlayFile:
    """A file whose changes are in memory. `base`: the original file, None for a new one."""

    def __init__(self, base: File | None, disk: OverlayDisk) -> None:
        self._base, self._disk = base, disk
        self._size = self._base_size = 0 if base is None else base.size()
        self._written: list[tuple[int, bytes]] = []  # (offset, data), in order

    def size(self) -> int:
        return self._size

    def allocated(self) -> int:
        """Return the bytes of the original file; the changes are on no disk."""
        return 0 if self._base is None else self._base.allocated()

    def read(self, offset: int, size: int) -> bytes:
        size = max(0, min(size, self._size - offset))
        below = min(size, self._base_size - offset)
        data = self._base.read(offset, below) if self._base is not None and below > 0 else b""
        if len(data) == size and not self._written:
            return data
        found = bytearray(data.ljust(size, b"\0"))
        for at, piece in self._written:
            first, last = max(at, offset), min(at + len(piece), offset + size)
            if first < last:
                found[first - offset:last - offset] = piece[first - at:last - at]
        return bytes(found)

    def drop_cached(self, offset: int, size: int) -> None:
        """Do nothing: a trial start reads once."""

    def data_after(self, offset: int) -> int | None:
        found = [at for at, piece in self._written if at + len(piece) > offset]
        if self._base is not None and offset < self._base_size:
            there = self._base.data_after(offset)
            found += [there] if there is not None else []
        return max(offset, min(found)) if found else None

    def write(self, offset: int, parts: Sequence[bytes]) -> int:
        data = b"".join(parts)
        if self._disk.written_bytes + len(data) > WRITTEN_BYTES_MAX:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._disk.written_bytes += len(data)
        self._written.append((offset, data))
        self._size = max(self._size, offset + len(data))
        return len(data)

    def sync(self) -> None: ...

    def resize(self, size: int, allocate: bool) -> None:
        self._base_size, self._size = min(self._base_size, size), size
        before = sum(len(data) for _, data in self._written)
        self._written = [(at, data[:size - at]) for at, data in self._written if at < size]
        self._disk.written_bytes += sum(len(data) for _, data in self._written) - before

    def close(self) -> None:
        """Do nothing: a further `open` returns this file; the disk closes the original file."""


class OverlayDisk:
    """`storage.store.Disk` over `base`."""

    def __init__(self, base: Disk) -> None:
        self._base, self.written_bytes = base, 0  # of all files
        self._files: dict[str, OverlayFile] = {}
        self._removed: set[str] = set()  # removed paths, and old names of renamed files
        self._opened: list[File] = []

    def names(self, directory: str) -> list[str]:
        below = {name for name in self._base.names(directory) if f"{directory}/{name}" not in self._removed}
        return sorted(below | {path.rpartition("/")[2] for path in self._files if path.rpartition("/")[0] == directory})

    def create(self, path: str) -> File:
        if path.rpartition("/")[2] in self.names(path.rpartition("/")[0]):
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self._files[path] = file = OverlayFile(None, self)
        return file

    def open(self, path: str) -> File:
        if path not in self._files:
            if path in self._removed:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            below = self._base.open(path)
            self._opened.append(below)
            self._files[path] = OverlayFile(below, self)
        return self._files[path]

    def rename(self, old: str, new: str) -> None:
        self.open(old)
        self._files[new] = self._files.pop(old)
        self._removed.add(old)
        self._removed.discard(new)

    def remove(self, path: str) -> None:
        self.open(path)
        del self._files[path]
        self._removed.add(path)

    def sync_directory(self, directory: str) -> None: ...

    def space(self, directory: str) -> tuple[int, int]:
        return self._base.space(directory)

    def identify(self, directory: str) -> Hashable:
        return self._base.identify(directory)

    def lock(self, directory: str) -> ExitStack:
        """Check that the directory exists; do not lock it."""
        self._base.names(directory)
        return ExitStack()

    def close(self) -> None:
        """Close the original files."""
        for file in self._opened:
            file.close()
