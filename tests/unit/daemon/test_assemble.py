"""Assembly of a node: a failed start closes all files and locks that it opened, at every failure."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import pytest
from kit.config import broker_config, clusters_config

from bmqtwist.config.broker import Configuration
from bmqtwist.daemon.assemble import StartFailure
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.testing.config import DomainTable, configuration, sample_domains
from bmqtwist.testing.node import ImmediateNode
from bmqtwist.testing.stored import messages, put

STORAGE, PORT = PurePosixPath("/memory/storage"), 30114
QUEUE = "bmq://bmq.test.persistent.priority/q"
PAYLOADS = [b"one", b"two", b"three"]


class RecordedFile:
    """A file or lock that its disk records until it is closed."""

    def __init__(self, disk: CountingDisk, file: Any, path: str) -> None:
        self._disk, self._file, self.path = disk, file, path
        disk.held.append(self)

    def size(self) -> int:
        return self._file.size()  # type: ignore[no-any-return]

    def allocated(self) -> int:
        return self._file.allocated()  # type: ignore[no-any-return]

    def drop_cached(self, offset: int, size: int) -> None:
        self._file.drop_cached(offset, size)

    def data_after(self, offset: int) -> int | None:
        return self._file.data_after(offset)  # type: ignore[no-any-return]

    def read(self, offset: int, size: int) -> bytes:
        return self._file.read(offset, size)  # type: ignore[no-any-return]

    def write(self, offset: int, parts: Sequence[bytes]) -> int:
        return self._file.write(offset, parts)  # type: ignore[no-any-return]

    def sync(self) -> None:
        self._file.sync()

    def resize(self, size: int, allocate: bool) -> None:
        self._file.resize(size, allocate)

    def close(self) -> None:
        self._file.close()
        if self in self._disk.held:
            self._disk.held.remove(self)


class CountingDisk(MemoryDisk):
    """Records open files and locks."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[RecordedFile] = []

    def create(self, path: str) -> Any:
        return RecordedFile(self, super().create(path), path)

    def open(self, path: str) -> Any:
        return RecordedFile(self, super().open(path), path)

    def lock(self, directory: str) -> Any:
        return RecordedFile(self, super().lock(directory), directory)


def configure() -> Configuration:
    return configuration(broker_config(STORAGE, PORT), clusters_config(STORAGE, PORT, partition={
        "maxJournalFileSize": 1 << 16, "maxDataFileSize": 1 << 16, "maxQlistFileSize": 1 << 14,
        "maxCSLFileSize": 1 << 14}))


def make_node(disk: CountingDisk) -> ImmediateNode:
    table = DomainTable()
    table.texts.update(sample_domains())
    node = ImmediateNode(configure, lambda _: table)
    node.disk = disk
    return node


def disk_after_kill() -> CountingDisk:
    """The disk of a broker that ended without closing its files."""
    disk = CountingDisk()
    node = make_node(disk)
    node.start()
    for number, payload in enumerate(PAYLOADS):
        put(node, QUEUE, bytes([0x40, number]) + bytes(14), payload, None, None, False)
    node.run()
    node.crash()
    disk.held.clear()
    return disk


def test_a_start_that_fails_at_any_disk_operation_leaves_no_file_open() -> None:
    """Each operation once; the disk stays usable, and the next start recovers all messages."""
    probe = disk_after_kill()
    before = probe.steps
    make_node(probe).start()
    operations = probe.steps - before
    assert operations > 10 and probe.held
    failed = 0
    for number in range(operations):
        disk = disk_after_kill()
        refused = disk.steps + number
        disk.fail = lambda operation, path, disk=disk, at=refused: (  # type: ignore[misc]
            errno.EIO if disk.steps == at else None)
        node = make_node(disk)
        try:
            node.start()
        except StartFailure as failure:
            failed += 1
            assert not disk.held, f"operation {number}: {[each.path for each in disk.held]} open after: {failure}"
            assert not disk.locked
        else:
            node.stop()
        disk.fail = lambda operation, path: None
        again = make_node(disk)
        again.start()
        assert [message.payload for message in messages(again, QUEUE, 0.0)] == PAYLOADS
    assert failed > 3


def test_a_stop_leaves_no_file_or_lock_open() -> None:
    disk = disk_after_kill()
    node = make_node(disk)
    node.start()
    assert disk.held
    node.stop()
    assert not disk.held and not disk.locked


def test_a_start_on_a_locked_directory_fails_and_keeps_the_lock_of_the_other_broker() -> None:
    disk = disk_after_kill()
    first, second = make_node(disk), make_node(disk)
    first.start()
    with pytest.raises(StartFailure, match="used by another broker"):
        second.start()
    assert disk.locked == {str(STORAGE), str(STORAGE.parent / "archive")}
