"""A disk over another one that is only read: what is written is kept in memory, and forgotten at the end.

With it a start can be rehearsed over the files of a broker without a change to any of them.
"""

from __future__ import annotations

import errno
from collections.abc import Hashable, Sequence

from bmqtwist.storage.store import Disk, File, Lock

PAGE_BYTES = 64 << 10  # of a file that are copied when one of them is written
KEPT_BYTES_MAX = 256 << 20  # of all files; a write beyond it fails as on a full disk


class _Kept:
    """How many bytes are kept of all files."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class OverlayFile:
    """A file whose changes are in memory. `base` is what it was before, None for a new one."""

    def __init__(self, base: File | None, kept: _Kept) -> None:
        self._base, self._kept = base, kept
        self._size = self._base_size = 0 if base is None else base.size()
        self._pages: dict[int, bytearray] = {}

    def size(self) -> int:
        """Length, bytes."""
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        size = max(0, min(size, self._size - offset))
        if not self._pages and self._base is not None and offset + size <= self._base_size:
            return self._base.read(offset, size)
        parts = []
        for page in range(offset // PAGE_BYTES, -(-(offset + size) // PAGE_BYTES)):
            start = page * PAGE_BYTES
            content = self._pages.get(page) or self._original(page)
            parts.append(bytes(content[max(0, offset - start):max(0, offset + size - start)]))
        return b"".join(parts)

    def _original(self, page: int) -> bytes:
        start = page * PAGE_BYTES
        size = min(PAGE_BYTES, max(0, self._base_size - start))
        return (self._base.read(start, size) if self._base is not None and size else b"").ljust(PAGE_BYTES, b"\0")

    def data_after(self, offset: int) -> int | None:
        """Where the first byte may lie that was ever written."""
        found = [page * PAGE_BYTES for page in self._pages if (page + 1) * PAGE_BYTES > offset]
        if self._base is not None and offset < self._base_size:
            there = self._base.data_after(offset)
            found += [there] if there is not None else []
        return max(offset, min(found)) if found else None

    def write(self, offset: int, parts: Sequence[bytes]) -> int:
        """All of `parts`, one behind the other."""
        data = b"".join(parts)
        for page in range(offset // PAGE_BYTES, -(-(offset + len(data)) // PAGE_BYTES)):
            if page not in self._pages:
                if self._kept.bytes + PAGE_BYTES > KEPT_BYTES_MAX:
                    raise OSError(errno.ENOSPC, "No space left on device")
                self._kept.bytes += PAGE_BYTES
                self._pages[page] = bytearray(self._original(page))
            start = page * PAGE_BYTES
            piece = data[max(0, start - offset):start + PAGE_BYTES - offset]
            at = max(0, offset - start)
            self._pages[page][at:at + len(piece)] = piece
        self._size = max(self._size, offset + len(data))
        return len(data)

    def sync(self) -> None:
        """Nothing of it is to survive."""

    def resize(self, size: int, allocate: bool) -> None:
        """Cut or grow with zeros."""
        if size < self._size:
            self._base_size = min(self._base_size, size)
            for page, content in list(self._pages.items()):
                left = size - page * PAGE_BYTES
                if left <= 0:
                    del self._pages[page]
                    self._kept.bytes -= PAGE_BYTES
                elif left < PAGE_BYTES:
                    content[left:] = bytes(PAGE_BYTES - left)
        self._size = size

    def close(self) -> None:
        """Another `open` finds it as it is; what is below is closed with the disk."""


class _NoLock:
    """A directory that was free; nobody is kept out of it."""

    def close(self) -> None:
        """Nothing to let go of."""


class OverlayDisk:
    """Disk over `base`; `close` it at the end."""

    def __init__(self, base: Disk) -> None:
        self._base, self._kept = base, _Kept()
        self._files: dict[str, OverlayFile] = {}
        self._gone: set[str] = set()  # paths that were removed, or moved away
        self._opened: list[File] = []

    def names(self, directory: str) -> list[str]:
        """Sorted names in a directory."""
        below = {name for name in self._base.names(directory) if f"{directory}/{name}" not in self._gone}
        return sorted(below | {path.rpartition("/")[2] for path in self._files if path.rpartition("/")[0] == directory})

    def create(self, path: str) -> File:
        """A new empty file; FileExistsError if the name is taken."""
        if path.rpartition("/")[2] in self.names(path.rpartition("/")[0]):
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self._files[path] = file = OverlayFile(None, self._kept)
        return file

    def open(self, path: str) -> File:
        """An existing file."""
        if path not in self._files:
            if path in self._gone:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            below = self._base.open(path)
            self._opened.append(below)
            self._files[path] = OverlayFile(below, self._kept)
        return self._files[path]

    def rename(self, old: str, new: str) -> None:
        """Move a file."""
        self.open(old)
        self._files[new] = self._files.pop(old)
        self._gone.add(old)
        self._gone.discard(new)

    def remove(self, path: str) -> None:
        """Delete a file."""
        self.open(path)
        del self._files[path]
        self._gone.add(path)

    def sync_directory(self, directory: str) -> None:
        """Nothing of it is to survive."""

    def free_bytes(self, directory: str) -> int:
        """Of the disk below."""
        return self._base.free_bytes(directory)

    def identify(self, directory: str) -> Hashable:
        """As below."""
        return self._base.identify(directory)

    def lock(self, directory: str) -> Lock:
        """Nobody else is kept out; who has it already is for others to see."""
        self._base.names(directory)
        return _NoLock()

    def close(self) -> None:
        """Let go of the files below."""
        for file in self._opened:
            file.close()
