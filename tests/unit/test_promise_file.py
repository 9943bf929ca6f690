"""The file of a node's promises, and what nodes say to each other about partitions, in bytes."""

from __future__ import annotations

import errno
from random import Random

import pytest

from bmqtwist.cluster.partition_events import (
    Decline,
    ImagePart,
    Keepalive,
    PartitionTalk,
    Prepare,
    Promise,
    Pull,
    Records,
    ReplicaReceipt,
    Stale,
    Yield,
)
from bmqtwist.cluster.partition_wire import encode_partition_message, partition_message_of
from bmqtwist.errors import PeerError
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.promise_file import NAME, SLOT_DISTANCE_BYTES, PromiseFile, StoredPromise
from bmqtwist.storage.psn import NO_PSN, LogSummary, RecordRun
from bmqtwist.wire.control import Encoding, decode_control

PLACE = "/storage"


def promises(*leases: int) -> list[StoredPromise]:
    return [StoredPromise(lease, lease % 2 == 1) for lease in leases]


def test_without_a_file_nothing_was_promised() -> None:
    assert PromiseFile(MemoryDisk(), PLACE).read() == ([], False)


@pytest.mark.spec("cluster", 81)
def test_what_was_promised_last_is_read() -> None:
    disk = MemoryDisk()
    file = PromiseFile(disk, PLACE)
    file.read()
    for lease in range(5):
        file.write(promises(lease, 2 * lease, 7))
    file.close()
    again = PromiseFile(disk, PLACE)
    assert again.read() == (promises(4, 8, 7), False)
    again.write(promises(5))
    assert PromiseFile(disk, PLACE).read() == (promises(5), False)


@pytest.mark.spec("cluster", 81)
@pytest.mark.parametrize("seed", range(30))
def test_a_write_that_a_loss_of_power_tears_leaves_the_one_before(seed: int) -> None:
    random, disk = Random(seed), MemoryDisk()
    file = PromiseFile(disk, PLACE)
    many = [*range(300)]
    file.write(promises(*many))
    disk.fail = lambda operation, path: errno.EIO if operation == "sync" else None
    with pytest.raises(OSError, match="."):
        file.write(promises(*(each + 1 for each in many)))
    disk.fail = lambda operation, path: None
    disk.crash(random)
    found, lost = PromiseFile(disk, PLACE).read()
    assert not lost and found in (promises(*many), promises(*(each + 1 for each in many)))


@pytest.mark.spec("cluster", 81)
@pytest.mark.parametrize("fails", ["write", "sync", "sync_directory"])
def test_a_first_write_that_failed_leaves_a_file_whose_name_the_next_write_makes_durable(fails: str) -> None:
    disk = MemoryDisk()
    file = PromiseFile(disk, PLACE)
    disk.fail = lambda operation, path: errno.ENOSPC if operation == fails else None
    with pytest.raises(OSError, match="."):
        file.write(promises(1))
    disk.fail = lambda operation, path: None
    file.write(promises(2))
    disk.crash()
    assert PromiseFile(disk, PLACE).read() == (promises(2), False)


@pytest.mark.spec("cluster", 81)
@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
def test_what_a_process_reads_it_may_rely_on_though_the_one_before_was_killed_before_it_was_synced(operation: str) -> None:
    disk = MemoryDisk()
    file = PromiseFile(disk, PLACE)
    disk.fail = lambda what, path: errno.EIO if what == operation else None  # it dies there
    with pytest.raises(OSError, match="."):
        file.write(promises(3))
    disk.fail = lambda what, path: None
    disk.kill()
    found = PromiseFile(disk, PLACE).read()
    disk.crash()
    assert PromiseFile(disk, PLACE).read() == found == (promises(3), False)


def test_two_damaged_slots_are_told() -> None:
    disk = MemoryDisk()
    file = PromiseFile(disk, PLACE)
    file.write(promises(1))
    file.write(promises(2))
    disk.flip(f"{PLACE}/{NAME}", 24)
    assert PromiseFile(disk, PLACE).read()[1] is False
    disk.flip(f"{PLACE}/{NAME}", SLOT_DISTANCE_BYTES + 24)
    assert PromiseFile(disk, PLACE).read() == ([], True)


LOG = LogSummary((5, 9), (4, 2), ((4, 7), (5, 9)))
RUN = RecordRun((5, 8), (5, 9), b"journal", b"data", b"qlist")
MESSAGES: list[PartitionTalk | Decline | Yield] = [
    Prepare(2, 7), Promise(2, 7, LOG, (4, 7)), Promise(2, 7, LogSummary(), NO_PSN, True), Stale(2, 9), Pull(2, 7, (4, 7)),
    Pull(2, 7, None), Records(2, 7, (4, 7), RUN),
    ImagePart(2, 7, 3, (5, 9), True, RecordRun((5, 9), (5, 9), b"j", b"d", b"q")),
    ReplicaReceipt(2, 7, (5, 9), (4, 7), 4, 1 << 40), Keepalive(2, 7, (5, 9), 0, (4, 7), 1 << 40),
    Keepalive(2, 7, None, 5, NO_PSN, 0), Decline(7, True, 9, "node 2 declines"),
    Decline(7, True, 9, "node 2 declines", 3), Yield(7, 3)]


def body_of(message: PartitionTalk | Decline | Yield) -> bytes:
    return encode_partition_message(31, message)[8:]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_message_comes_as_it_was_said(message: PartitionTalk | Decline | Yield) -> None:
    control = decode_control(body_of(message), Encoding.BER)
    assert partition_message_of(2, control.value) == (31, message)


@pytest.mark.spec("cluster", 72)
def test_records_that_changed_on_their_way_are_refused() -> None:
    body = body_of(Records(2, 7, (4, 7), RUN)).replace(b"data", b"dato")
    with pytest.raises(PeerError, match="checksum"):
        partition_message_of(2, decode_control(body, Encoding.BER).value)
