"""Tests of the promise file of a node (`storage/slot_file.py`) and of the encoding of partition messages between nodes
(`cluster/partition_events.py`)."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest
from crc32c import crc32c

from bmqtwist.cluster.partition_events import (
    PartitionMessage,
    Records,
    ReplicaReceipt,
    encode_partition_message,
    partition_event_of,
    partition_message_of,
)
from bmqtwist.errors import PeerError
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.psn import NO_PSN, LogSummary, RecordRun
from bmqtwist.storage.slot_file import Doubt, PromiseFile, StoredPromise
from bmqtwist.wire import layout
from bmqtwist.wire.cluster_schema import Decline, ImagePart, Keepalive, Prepare, Promise, Pull, Renewal, Stale, Yield
from bmqtwist.wire.control import Encoding, decode_control
from bmqtwist.wire.fast import EVENT_TYPE_MASK, EventType

DIRECTORY = "/storage"


def stored_promises(*leases: int) -> list[StoredPromise]:
    return [StoredPromise(lease, list(Doubt)[lease % 3]) for lease in leases]


def test_without_a_file_there_are_no_promises() -> None:
    assert PromiseFile(MemoryDisk(), DIRECTORY).read() == ((), False)


@pytest.mark.spec("cluster", 81)
def test_the_last_written_promises_are_read() -> None:
    disk = MemoryDisk()
    file = PromiseFile(disk, DIRECTORY)
    file.read()
    for lease in range(5):
        file.write(stored_promises(lease, 2 * lease, 7))
    file.close()
    again = PromiseFile(disk, DIRECTORY)
    assert again.read() == (stored_promises(4, 8, 7), False)
    again.write(stored_promises(5))
    assert PromiseFile(disk, DIRECTORY).read() == (stored_promises(5), False)


@pytest.mark.spec("cluster", 81)
@pytest.mark.parametrize("seed", range(30))
def test_a_write_torn_by_a_loss_of_power_leaves_the_previous_promises(seed: int) -> None:
    random, disk = Random(seed), MemoryDisk()
    file = PromiseFile(disk, DIRECTORY)
    many = [*range(300)]
    file.write(stored_promises(*many))
    disk.fail = lambda operation, path: errno.EIO if operation == "sync" else None
    with pytest.raises(OSError, match="."):
        file.write(stored_promises(*(each + 1 for each in many)))
    disk.fail = lambda operation, path: None
    disk.crash(random)
    found, lost = PromiseFile(disk, DIRECTORY).read()
    assert not lost and found in (stored_promises(*many), stored_promises(*(each + 1 for each in many)))


@pytest.mark.spec("cluster", 81)
@pytest.mark.parametrize("fails", ["write", "sync", "sync_directory"])
def test_after_a_failed_first_write_the_next_write_makes_the_file_name_durable(fails: str) -> None:
    disk = MemoryDisk()
    file = PromiseFile(disk, DIRECTORY)
    disk.fail = lambda operation, path: errno.ENOSPC if operation == fails else None
    with pytest.raises(OSError, match="."):
        file.write(stored_promises(1))
    disk.fail = lambda operation, path: None
    file.write(stored_promises(2))
    disk.crash()
    assert PromiseFile(disk, DIRECTORY).read() == (stored_promises(2), False)


@pytest.mark.spec("cluster", 81)
@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
def test_promises_read_by_a_new_process_are_durable_though_the_killed_one_had_not_synced(operation: str) -> None:
    disk = MemoryDisk()
    file = PromiseFile(disk, DIRECTORY)
    disk.fail = lambda what, path: errno.EIO if what == operation else None  # the process is killed there
    with pytest.raises(OSError, match="."):
        file.write(stored_promises(3))
    disk.fail = lambda what, path: None
    disk.kill()
    found = PromiseFile(disk, DIRECTORY).read()
    disk.crash()
    assert PromiseFile(disk, DIRECTORY).read() == found == (stored_promises(3), False)


def test_two_damaged_slots_are_reported() -> None:
    disk = MemoryDisk()
    file = PromiseFile(disk, DIRECTORY)
    file.write(stored_promises(1))
    file.write(stored_promises(2))
    disk.flip(f"{DIRECTORY}/{PromiseFile.name}", 24)
    assert PromiseFile(disk, DIRECTORY).read()[1] is False
    disk.flip(f"{DIRECTORY}/{PromiseFile.name}", PromiseFile.slot_distance + 24)
    assert PromiseFile(disk, DIRECTORY).read() == ((), True)


LOG = LogSummary((5, 9), (4, 2), ((4, 7), (5, 9)))
RUN = RecordRun((5, 8), (5, 9), b"journal", b"data", b"qlist")
MESSAGES: list[PartitionMessage | Decline | Yield] = [
    Prepare(2, 7), Promise(2, 7, LOG.last, LOG.base, list(LOG.leases), (4, 7)),
    Promise(2, 7, doubtful=True), Promise(2, 7, doubtful=True, lost=True), Stale(2, 9), Pull(2, 7, (4, 7)),
    Pull(2, 7, None), Records(2, 7, (4, 7), RUN),
    ImagePart(2, 7, 3, (5, 9), True, b"j", b"d", b"q"),
    ReplicaReceipt(2, 7, (5, 9), (4, 7), 4, 1 << 40), Keepalive(2, 7, (5, 9), 0, (4, 7), 1 << 40),
    Keepalive(2, 7, None, 5, NO_PSN, 0), Renewal(2, 7, 1 << 40), Decline(7, True, 9),
    Decline(7, True, 9, successor=3), Yield(7, 3)]


def decode_event(event: bytes) -> Any:
    """Decode an event as a member does."""
    kind = EventType(event[4] & EVENT_TYPE_MASK)
    if kind is EventType.CONTROL:
        return partition_message_of(2, decode_control(event[8:], Encoding.BER).value)
    return partition_event_of(2, kind, event[8:])


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_partition_message_is_unchanged_by_a_round_trip(message: PartitionMessage | Decline | Yield) -> None:
    assert decode_event(encode_partition_message(31, message)) == (31, message)


@pytest.mark.spec("cluster", 72)
@pytest.mark.parametrize("message", [
    Records(2, 7, (4, 7), RUN), ImagePart(2, 7, 3, (5, 9), True, b"journal", b"data", b"qlist")],
                         ids=lambda each: type(each).__name__)
def test_records_with_a_wrong_checksum_are_refused(message: PartitionMessage) -> None:
    with pytest.raises(PeerError, match="checksum"):
        decode_event(encode_partition_message(31, message).replace(b"data", b"dato"))


def test_partition_messages_have_the_declared_layout() -> None:
    """The declared layout parses the bytes of the struct."""
    event = encode_partition_message(31, Records(2, 7, (4, 7), RUN))
    assert layout.EVENT_HEADER.parse(event).length == len(event)
    head = layout.RECORD_RUN.parse(event[8:])
    assert (head.partition_id, head.lease, head.previous_lease, head.previous_sequence, head.last_lease, head.last_sequence,
            head.committed_lease, head.committed_sequence) == (31, 7, 5, 8, 5, 9, 4, 7)
    assert (head.journal_bytes, head.data_bytes, head.qlist_bytes) == (7, 4, 5)
    assert head.crc == crc32c(b"journaldataqlist")
    head = layout.REPLICA_RECEIPT.parse(encode_partition_message(31, ReplicaReceipt(2, 7, (5, 9), (4, 7), 4, 1 << 40))[8:])
    assert (head.partition_id, head.lease, head.matched_lease, head.matched_sequence, head.durable_lease,
            head.durable_sequence, head.parts, head.stamp) == (31, 7, 5, 9, 4, 7, 4, 1 << 40)


@pytest.mark.parametrize("message", [Records(2, 7, (4, 7), RUN), ReplicaReceipt(2, 7, (5, 9), (4, 7), 4, 1 << 40)],
                         ids=lambda each: type(each).__name__)
def test_a_partition_message_of_a_wrong_size_is_refused(message: PartitionMessage) -> None:
    event = encode_partition_message(31, message)
    for size in range(8, len(event)):
        with pytest.raises(PeerError):
            decode_event(event[:size])
    with pytest.raises(PeerError):
        decode_event(event + bytes(4))


def test_records_with_inconsistent_sizes_are_refused() -> None:
    """The checksum covers only the records."""
    event = bytearray(encode_partition_message(31, Records(2, 7, (4, 7), RUN)))
    at = 8 + layout.RECORD_RUN.offset("qlist_bytes")
    event[at:at + 4] = (1000).to_bytes(4, "big")
    with pytest.raises(PeerError, match="sizes do not fit"):
        decode_event(bytes(event))
