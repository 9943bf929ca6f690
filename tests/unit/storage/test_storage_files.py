"""Disk of the operating system: file lengths, preallocation, locks, partial reads, and agreement with the simulated disk."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from kit.storage_kit import DEFAULT, KEY, TINY, WALL, guids, make_message, open_files, path_of, start

from bmqtwist.storage.files import LOCK_NAME, RealDisk, RealFile
from bmqtwist.storage.journal import JournalScan
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.recovery import recover
from bmqtwist.storage.store import DirectoryBusy, FileSizes, StorageError


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "archive").mkdir()
    return str(tmp_path)


def open_real(root: str, **options: int) -> Partition:
    files = open_files(RealDisk(), sizes=TINY, location=root, archive=f"{root}/archive", keep=3)
    recovered = recover(files)
    partition = Partition(1, files, recovered)
    partition.activate(recovered.lease + 1, WALL)
    return partition


def test_open_files_are_preallocated_and_closed_files_are_truncated(root: str) -> None:
    partition = open_real(root)
    sizes = {path.suffix: path.stat().st_size for path in Path(root).glob("bmq_0*")}
    assert sizes == {".bmq_journal": TINY.journal, ".bmq_data": TINY.data, ".bmq_qlist": TINY.qlist}
    assert sum(path.stat().st_blocks for path in Path(root).glob("*.bmq_data")) * 512 >= TINY.data
    partition.stop(WALL)
    sizes = {path.suffix: path.stat().st_size for path in Path(root).glob("bmq_0*")}
    assert sizes == {".bmq_journal": 44 + 120, ".bmq_data": 40, ".bmq_qlist": 36}


def test_the_real_and_the_simulated_disk_hold_the_same_bytes_after_the_same_operations(root: str) -> None:
    memory = MemoryDisk()
    contents = []
    for disk, place in ((RealDisk(), root), (memory, "/l")):
        archive = f"{root}/archive" if place == root else "/a"
        files = open_files(disk, sizes=TINY, location=place, archive=archive)
        partition = Partition(1, files, recover(files), durability="always")
        partition.activate(1, WALL)
        partition.queues.create(KEY, "bmq://d/q", DEFAULT, WALL)
        random, stored = Random(7), []
        for number in range(1, 900):
            stored.append(make_message(number, random.randbytes(random.randrange(300))))
            partition.append_message(KEY, stored[-1], WALL)
            if len(stored) > 20:
                partition.append_deletion(KEY, stored.pop(random.randrange(len(stored))), 0, WALL)
            if number % 7 == 0:
                partition.flush(WALL)
        partition.stop(WALL)
        contents.append(files_of(root) if place == root else
                        {path.rpartition("/")[2]: memory.content(path) for path in memory.paths()})
    assert contents[0] == contents[1] and len(contents[0]) > 6


def files_of(root: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(root).rglob("bmq_*") if path.is_file()}


def test_messages_survive_a_restart(root: str) -> None:
    partition = open_real(root)
    partition.queues.create(KEY, "bmq://d/q", DEFAULT, WALL)
    for number in range(1, 101):
        partition.append_message(KEY, make_message(number, b"p" * number), WALL)
    partition.flush(WALL)
    partition.files.close(truncate=False)  # killed
    files = open_files(RealDisk(), sizes=TINY, location=root, archive=f"{root}/archive")
    recovered = recover(files)
    assert len(guids(recovered)) == 100 and recovered.alarms == []


def test_a_write_of_thousands_of_parts_is_complete(root: str) -> None:
    file = RealDisk().create(f"{root}/x")
    parts = [bytes([n % 251]) * (n % 97) for n in range(5000)]
    file.write(10, parts)
    assert file.read(10, 1 << 20) == b"".join(parts)
    assert file.read(0, 10) == bytes(10)
    assert file.size() == 10 + sum(map(len, parts))
    file.resize(20, False)
    assert file.read(0, 100) == bytes(10) + b"".join(parts)[:10]
    file.resize(100, True)
    assert file.read(20, 100) == bytes(80)
    file.close()
    file.close()


def test_a_short_write_is_continued(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk().create(f"{root}/x")
    whole = os.pwrite
    monkeypatch.setattr("bmqtwist.storage.files.os.pwrite", lambda fd, data, offset: whole(fd, data[:7777], offset))
    data = Random(1).randbytes(200_000)
    file.write(3, [data[:100_000], data[100_000:]])
    assert file.read(3, 200_000) == data


def test_a_write_of_zero_bytes_is_a_disk_full_error(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk().create(f"{root}/x")
    monkeypatch.setattr("bmqtwist.storage.files.os.pwrite", lambda fd, data, offset: 0)
    with pytest.raises(OSError) as caught:
        file.write(0, [b"abc"])
    assert caught.value.errno == errno.ENOSPC


def test_a_directory_is_locked_against_brokers_of_other_processes(root: str) -> None:
    lock = RealDisk().lock(root)
    with pytest.raises(DirectoryBusy, match="another broker"):
        RealDisk().lock(root)
    program = ("import sys\nfrom bmqtwist.storage.files import RealDisk\n"
               "from bmqtwist.storage.store import DirectoryBusy\n"
               "try:\n    RealDisk().lock(sys.argv[1])\nexcept DirectoryBusy:\n    sys.exit(7)\n")
    run = [sys.executable, "-c", program, root]
    assert subprocess.run(run, check=False).returncode == 7
    lock.close()
    assert subprocess.run(run, check=False).returncode == 0


def test_a_directory_stays_locked_when_its_lock_file_is_deleted(root: str) -> None:
    """A new lock file in its place does not either."""
    lock = RealDisk().lock(root)
    os.unlink(f"{root}/{LOCK_NAME}")
    for _ in range(2):  # the first attempt creates the file again
        with pytest.raises(DirectoryBusy, match="another broker"):
            RealDisk().lock(root)
    lock.close()
    lock.close()
    RealDisk().lock(root).close()


def test_the_lock_file_is_locked_where_directories_cannot_be(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EBADF, "as network file systems say")
        real(descriptor, operation)

    real = fcntl.flock
    monkeypatch.setattr("bmqtwist.storage.files.fcntl.flock", flock)
    lock = RealDisk().lock(root)
    with pytest.raises(DirectoryBusy, match="another broker"):
        RealDisk().lock(root)
    lock.close()
    open_descriptors = os.listdir("/proc/self/fd")
    RealDisk().lock(root).close()
    assert os.listdir("/proc/self/fd") == open_descriptors


def test_storage_files_are_readable_only_by_the_user_of_the_broker(root: str) -> None:
    open_real(root).rollover(WALL)
    RealDisk().lock(root).close()
    modes = {path.name: path.stat().st_mode & 0o777 for path in Path(root).rglob("*") if path.is_file()}
    assert len(modes) == 7 and set(modes.values()) == {0o600}


def test_free_space_is_a_number_of_bytes(root: str) -> None:
    free, total = RealDisk().space(root)
    assert 0 < free <= total
    assert MemoryDisk(1000).space("/l") == (1000, 1000)
    assert isinstance(RealDisk().open(__file__), RealFile)


def test_creating_an_existing_file_is_an_error(root: str) -> None:
    for disk, place in ((RealDisk(), root), (MemoryDisk(), "/l")):
        disk.create(f"{place}/x")
        with pytest.raises(FileExistsError):
            disk.create(f"{place}/x")
        with pytest.raises(FileNotFoundError):
            disk.open(f"{place}/y")
        disk.rename(f"{place}/x", f"{place}/y")
        disk.remove(f"{place}/y")
        disk.sync_directory(place)


@pytest.mark.parametrize("sizes", [(1183, 1 << 20, 1 << 20), (1 << 20, 40, 1 << 20), (1 << 20, 1 << 20, 36),
                                   (1 << 35, 1 << 20, 1 << 20), (1 << 20, 1 << 36, 1 << 20)])
def test_file_sizes_beyond_the_format_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(StorageError):
        FileSizes(*sizes)


def test_data_after_skips_preallocated_unwritten_ranges(tmp_path: Path) -> None:
    file = RealDisk().create(str(tmp_path / "f"))
    file.resize(8 << 20, True)
    file.write(0, [b"head"])
    file.write(3 << 20, [b"later"])
    after = file.data_after(1 << 20)
    assert after is not None and 1 << 20 <= after <= 3 << 20, "not after the written data"
    assert file.data_after((3 << 20) + 8192) in (None, (3 << 20) + 8192), "the same offset without holes"
    file.close()


def test_a_scan_reads_all_written_ranges_and_skips_holes() -> None:
    """Bytes far after the end are found although the holes between are skipped."""
    disk = MemoryDisk()
    partition, _ = start(disk, TINY)
    partition.queues.create(KEY, "bmq://d/q", DEFAULT, WALL)
    partition.flush(WALL)
    path = path_of(disk, "journal")
    content = disk.content(path)
    read: list[int] = []

    def recording_read(offset: int, size: int) -> bytes:
        read.append(offset)
        return content[offset:offset + size]

    end = 44 + 60 * 2
    scan = JournalScan(recording_read, len(content), lambda offset: offset if offset < end else None)
    assert len(list(scan)) == 2 and not scan.stale and max(read) <= end + 60
    far = content[:9004] + b"x" + content[9005:]
    scan = JournalScan(lambda offset, size: far[offset:offset + size], len(far),
                       lambda offset: max(offset, 8192) if offset >= end else offset)
    assert len(list(scan)) == 2 and scan.stale
