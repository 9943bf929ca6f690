"""Restart after `kill -9`: records in the page cache are synced before they count as durable."""

from __future__ import annotations

import errno

import pytest
from kit.storage_kit import (
    DEFAULT,
    KEY,
    WALL,
    Held,
    guids,
    make_message,
    reread,
    start,
)

from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.partition import Durability


def killed_disk(durability: Durability = "group") -> tuple[MemoryDisk, bytes]:
    """Return a disk whose process died after the write of a message and before its sync."""
    disk = MemoryDisk()
    partition, _ = start(disk, durability=durability)
    partition.queues.create(KEY, "bmq://d/q", DEFAULT, WALL)
    message = make_message(1)
    partition.append_message(KEY, message, WALL)
    partition.flush(WALL)
    disk.kill()
    return disk, message.guid


@pytest.mark.parametrize("durability", ["group", "always"])
def test_a_recovered_message_survives_a_loss_of_power_after_the_restart(durability: Durability) -> None:
    """It is delivered at once, and a repeated PUT receives an ACK."""
    disk, guid = killed_disk(durability)
    partition, recovered = start(disk, lease=None, durability=durability)
    assert guids(recovered) == [guid.hex().upper()]
    partition.hold_effect(Held("the ACK of the repeated PUT"))
    assert partition.flush(WALL) == ["the ACK of the repeated PUT"]
    disk.crash()
    assert guids(reread(disk)) == [guid.hex().upper()]


def test_with_durability_none_the_start_syncs_no_file() -> None:
    disk, _ = killed_disk("none")
    before = len(disk.log)
    start(disk, lease=None, durability="none")
    assert not [path for operation, path in disk.log[before:] if operation == "sync"]


def test_a_partition_is_unavailable_if_its_first_sync_fails() -> None:
    disk, _ = killed_disk()
    disk.fail = lambda operation, path: errno.EIO if operation == "sync" else None
    partition, _ = start(disk, lease=None, durability="group")
    assert not partition.available
    assert [kind for kind, _ in partition.take_alarms() if kind.category == "FILE_IO"]
    partition.hold_effect(Held("an ACK"))
    assert partition.flush(WALL) == []
