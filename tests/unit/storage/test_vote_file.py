"""File of a node's votes: a written vote is durable."""

from __future__ import annotations

import errno
from random import Random

import pytest

from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.slot_file import SLOT, VOTE, VoteFile

DIRECTORY = "/storage"


def open_vote_file(disk: MemoryDisk) -> VoteFile:
    return VoteFile(disk, DIRECTORY)


def test_without_a_file_there_is_no_vote() -> None:
    assert open_vote_file(MemoryDisk()).read() == ((0, None), False)


@pytest.mark.parametrize("vote", [None, 0, 3, (1 << 31) - 1])
def test_the_last_written_vote_is_read(vote: int | None) -> None:
    disk = MemoryDisk()
    file = open_vote_file(disk)
    file.read()
    for term in range(1, 5):
        file.write((term, 1))
    file.write((1 << 62, vote))
    file.close()
    assert open_vote_file(disk).read() == ((1 << 62, vote), False)
    again = open_vote_file(disk)
    again.read()
    again.write(((1 << 62) + 1, 2))
    assert open_vote_file(disk).read() == (((1 << 62) + 1, 2), False)


def test_a_slot_has_the_literal_bytes() -> None:
    disk = MemoryDisk()
    file = open_vote_file(disk)
    file.write((7, 2))
    slot = disk.open(f"{DIRECTORY}/{VoteFile.name}").read(VoteFile.slot_distance, SLOT.size + VOTE.size)
    assert slot.hex(" ", 4) == "424d5156 00000001 00000000 00000001 00000000 00000007 00000002"


@pytest.mark.spec("cluster", 26)
@pytest.mark.parametrize("seed", range(30))
def test_a_write_torn_by_a_loss_of_power_leaves_the_previous_vote(seed: int) -> None:
    random, disk = Random(seed), MemoryDisk()
    file = open_vote_file(disk)
    count = random.randrange(1, 5)
    for term in range(1, count + 1):
        file.write((term, term))
    disk.fail = lambda operation, path: errno.EIO if operation == "sync" else None
    with pytest.raises(OSError, match="."):
        file.write((count + 1, 9))
    disk.fail = lambda operation, path: None
    disk.crash(random)
    assert open_vote_file(disk).read() in (((count, count), False), ((count + 1, 9), False))


def test_a_file_without_a_valid_slot_reports_lost_votes() -> None:
    disk = MemoryDisk()
    file = open_vote_file(disk)
    for term in (1, 2):
        file.write((term, 3))
    content = disk.open(f"{DIRECTORY}/{VoteFile.name}")
    content.write(0, [b"\x01"])
    assert open_vote_file(disk).read() == ((1, 3), False)
    content.write(VoteFile.slot_distance + 10, [b"\x01"])
    assert open_vote_file(disk).read() == ((0, None), True)


def test_a_failed_first_write_is_no_vote_and_can_be_repeated() -> None:
    disk = MemoryDisk()
    file = open_vote_file(disk)
    disk.fail = lambda operation, path: errno.ENOSPC if operation == "write" else None
    with pytest.raises(OSError, match="."):
        file.write((1, 1))
    disk.fail = lambda operation, path: None
    assert open_vote_file(disk).read() == ((0, None), False)
    file.write((2, 2))
    assert open_vote_file(disk).read() == ((2, 2), False)


@pytest.mark.spec("cluster", 26)
@pytest.mark.parametrize("fails", ["write", "sync", "sync_directory"])
def test_after_a_failed_first_write_the_next_write_makes_the_file_name_durable(fails: str) -> None:
    disk = MemoryDisk()
    file = open_vote_file(disk)
    disk.fail = lambda operation, path: errno.ENOSPC if operation == fails else None
    with pytest.raises(OSError, match="."):
        file.write((1, 1))
    disk.fail = lambda operation, path: None
    file.write((2, 2))
    disk.crash()
    assert open_vote_file(disk).read() == ((2, 2), False)


@pytest.mark.spec("cluster", 26)
@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
def test_a_vote_read_by_a_new_process_is_durable_though_the_killed_one_had_not_synced(operation: str) -> None:
    disk = MemoryDisk()
    file = open_vote_file(disk)
    disk.fail = lambda what, path: errno.EIO if what == operation else None  # the process is killed there
    with pytest.raises(OSError, match="."):
        file.write((1, 3))
    disk.fail = lambda what, path: None
    disk.kill()
    found = open_vote_file(disk).read()
    disk.crash()
    assert open_vote_file(disk).read() == found == ((1, 3), False)
