"""Disk of the operating system: preallocated files, pwrite, fdatasync, directory sync, and a lock on the directory.

`daemon/service.py` gives it to the node; tests and simulation use `memory.py`, a trial start `daemon/overlay.py`. The
interfaces are in `store.py`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from bmqtwist.storage.store import DirectoryBusy, File

LOCK_NAME = ".bmqtwist.lock"
FILE_MODE = 0o600  # only the broker's user may read messages
STAT_BLOCK_BYTES: Final = 512  # unit of st_blocks
_JOIN_BYTES_MAX: Final = 1 << 16  # of parts joined into one pwrite; single writes and larger copies take longer


class RealFile:
    """`store.File` over a descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def allocated(self) -> int:
        return os.fstat(self._fd).st_blocks * STAT_BLOCK_BYTES

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if 0 < len(data) < size:
            data += self.read(offset + len(data), size - len(data))
        return data

    def drop_cached(self, offset: int, size: int) -> None:
        """Drop synced pages from the page cache; macOS has no such call."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)

    def data_after(self, offset: int) -> int | None:
        """Return the first offset that may have been written; unwritten preallocated blocks are holes."""
        try:
            return os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            return None if error.errno == errno.ENXIO else offset  # the file system does not support SEEK_DATA

    def write(self, offset: int, parts: Sequence[bytes]) -> int:
        total = 0
        for part in parts:
            total += len(part)
        if total <= _JOIN_BYTES_MAX:
            self._write(offset, b"".join(parts))
        else:
            self._write_large(offset, parts)
        return total

    def _write_large(self, offset: int, parts: Sequence[bytes]) -> None:
        first, size = 0, 0
        for index, part in enumerate(parts):
            more = size + len(part)
            if more > _JOIN_BYTES_MAX and index > first:
                self._write(offset, b"".join(parts[first:index]))
                offset += size
                first, more = index, len(part)
            size = more
        self._write(offset, b"".join(parts[first:]))

    def _write(self, offset: int, data: bytes | memoryview) -> None:
        written = os.pwrite(self._fd, data, offset)
        if written < len(data):
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._write(offset + written, memoryview(data)[written:])

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def resize(self, size: int, allocate: bool) -> None:
        if allocate and size > 0:
            os.posix_fallocate(self._fd, 0, size)
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """`store.Disk` over the operating system."""

    __slots__ = ()

    def names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def create(self, path: str) -> File:
        return RealFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))

    def open(self, path: str) -> File:
        return RealFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, directory: str) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self, directory: str) -> tuple[int, int]:
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def identify(self, directory: str) -> tuple[int, int]:
        """Return device and inode, equal for all names, symbolic links and mounts of a directory."""
        status = os.stat(directory)
        return status.st_dev, status.st_ino

    def unusable_reason(self, directory: str) -> str:
        """Return why the broker cannot create files in a directory, or create it; empty if it can."""
        if not os.path.exists(directory):
            parent = directory
            while not os.path.exists(parent):
                parent = os.path.dirname(parent.rstrip("/")) or "."
            creatable = os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK)
            return "" if creatable else f"it does not exist, and this user cannot create it in '{parent}'"
        if not os.path.isdir(directory):
            return "it is not a directory"
        return "" if os.access(directory, os.R_OK | os.W_OK | os.X_OK) else "this user cannot read and write it"

    def lock(self, directory: str) -> ExitStack:
        """Lock the lock file and the directory itself, since the lock file can be deleted while it is locked."""
        held = ExitStack()
        try:
            file = os.open(f"{directory}/{LOCK_NAME}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            held.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            _lock_directory(descriptor)
        except OSError as error:
            held.close()
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise DirectoryBusy(directory) from error
        return held


def is_locked(directory: str) -> bool:
    """Return whether another process holds the lock of a directory, without creating a lock file."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


def _lock_directory(descriptor: int) -> None:
    """Lock a directory; network file systems support only the lock of the file, so their errors are ignored."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
