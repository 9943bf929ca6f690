"""File of a node's votes: a written vote is durable."""

from __future__ import annotations

import errno
from random import Random

import pytest

from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.slot_file import SLOT, VOTE, VoteFile

PLACE = "/storage"


def votes(disk: MemoryDisk) -> VoteFile:
    return VoteFile(disk, PLACE)


def test_without_a_file_there_was_no_vote() -> None:
    assert votes(MemoryDisk()).read() == ((0, None), False)


@pytest.mark.parametrize("vote", [None, 0, 3, (1 << 31) - 1])
def test_what_was_written_last_is_read(vote: int | None) -> None:
    disk = MemoryDisk()
    file = votes(disk)
    file.read()
    for term in range(1, 5):
        file.write((term, 1))
    file.write((1 << 62, vote))
    file.close()
    assert votes(disk).read() == ((1 << 62, vote), False)
    again = votes(disk)
    again.read()
    again.write(((1 << 62) + 1, 2))
    assert votes(disk).read() == (((1 << 62) + 1, 2), False)


def test_the_bytes_of_a_slot() -> None:
    disk = MemoryDisk()
    file = votes(disk)
    file.write((7, 2))
    slot = disk.open(f"{PLACE}/{VoteFile.name}").read(VoteFile.distance, SLOT.size + VOTE.size)
    assert slot.hex(" ", 4) == "424d5156 00000001 00000000 00000001 00000000 00000007 00000002"


@pytest.mark.spec("cluster", 26)
@pytest.mark.parametrize("seed", range(30))
def test_a_write_that_a_loss_of_power_tears_leaves_the_one_before(seed: int) -> None:
    random, disk = Random(seed), MemoryDisk()
    file = votes(disk)
    count = random.randrange(1, 5)
    for term in range(1, count + 1):
        file.write((term, term))
    disk.fail = lambda operation, path: errno.EIO if operation == "sync" else None
    with pytest.raises(OSError, match="."):
        file.write((count + 1, 9))
    disk.fail = lambda operation, path: None
    disk.crash(random)
    assert votes(disk).read() in (((count, count), False), ((count + 1, 9), False))


def test_a_file_without_a_whole_slot_says_that_the_votes_are_lost() -> None:
    disk = MemoryDisk()
    file = votes(disk)
    for term in (1, 2):
        file.write((term, 3))
    content = disk.open(f"{PLACE}/{VoteFile.name}")
    content.write(0, [b"\x01"])
    assert votes(disk).read() == ((1, 3), False)
    content.write(VoteFile.distance + 10, [b"\x01"])
    assert votes(disk).read() == ((0, None), True)


def test_a_first_write_that_failed_is_no_vote_and_can_be_made_again() -> None:
    disk = MemoryDisk()
    file = votes(disk)
    disk.fail = lambda operation, path: errno.ENOSPC if operation == "write" else None
    with pytest.raises(OSError, match="."):
        file.write((1, 1))
    disk.fail = lambda operation, path: None
    assert votes(disk).read() == ((0, None), False)
    file.write((2, 2))
    assert votes(disk).read() == ((2, 2), False)


@pytest.mark.spec("cluster", 26)
@pytest.mark.parametrize("fails", ["write", "sync", "sync_directory"])
def test_a_first_write_that_failed_leaves_a_file_whose_name_the_next_write_makes_durable(fails: str) -> None:
    disk = MemoryDisk()
    file = votes(disk)
    disk.fail = lambda operation, path: errno.ENOSPC if operation == fails else None
    with pytest.raises(OSError, match="."):
        file.write((1, 1))
    disk.fail = lambda operation, path: None
    file.write((2, 2))
    disk.crash()
    assert votes(disk).read() == ((2, 2), False)


@pytest.mark.spec("cluster", 26)
@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
def test_what_a_process_reads_it_may_rely_on_though_the_one_before_was_killed_before_it_was_synced(operation: str) -> None:
    disk = MemoryDisk()
    file = votes(disk)
    disk.fail = lambda what, path: errno.EIO if what == operation else None  # the process dies there
    with pytest.raises(OSError, match="."):
        file.write((1, 3))
    disk.fail = lambda what, path: None
    disk.kill()
    found = votes(disk).read()
    disk.crash()
    assert votes(disk).read() == found == ((1, 3), False)
