"""File of the storage version of a directory."""

from __future__ import annotations

import pytest

from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.slot_file import StorageVersionFile


def test_without_a_file_the_version_is_0() -> None:
    assert StorageVersionFile(MemoryDisk(), "/s").read() == (0, False)


@pytest.mark.parametrize("versions", [[1], [1, 2, 3], [7, (1 << 32) - 1]])
def test_the_last_written_version_is_read_after_a_loss_of_power(versions: list[int]) -> None:
    disk = MemoryDisk()
    file = StorageVersionFile(disk, "/s")
    file.read()
    for version in versions:
        file.write(version)
    disk.kill()
    assert StorageVersionFile(disk, "/s").read() == (versions[-1], False)


def test_the_bytes_of_a_slot() -> None:
    disk = MemoryDisk()
    StorageVersionFile(disk, "/s").write(3)
    slot = disk.open("/s/bmqtwist_version").read(4096, 20)
    assert slot == bytes.fromhex("424d5153 00000001 0000000000000001 00000003")
