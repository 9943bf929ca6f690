"""Scrub of a partition on a simulated disk, and repair of its records in place."""

from __future__ import annotations

import pytest
from kit.storage_kit import DEFAULT, KEY, SMALL, WALL, make_message, path_of, reread, start, stored

from bmqtwist.storage.damage import Repair
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition, PayloadDamaged
from bmqtwist.storage.scrub import BATCH_BYTES, BATCH_RECORDS, DAMAGED_MAX, ScrubBatch, ScrubPass


def filled(count: int = 10, size: int = 100, cache: bool = False) -> tuple[MemoryDisk, Partition, list[Message]]:
    """Return a partition with `count` written messages, in memory only with `cache`."""
    disk = MemoryDisk()
    partition, _ = start(disk, SMALL)
    partition.queues.create(KEY, "bmq://d/q", DEFAULT, WALL)
    messages = [make_message(number, bytes([number & 255]) * size) for number in range(count)]
    for message in messages:
        partition.append_message(KEY, message, WALL)
    partition.flush(WALL)
    if not cache:
        for message in messages:
            partition.state.drop_payload(message)
    return disk, partition, messages


def scrub(partition: Partition) -> tuple[int, list[ScrubBatch]]:
    """Run a whole pass; return the number of damaged messages and the batches."""
    scrub_pass, damaged, batches = ScrubPass(partition), 0, list[ScrubBatch]()
    while (batch := scrub_pass.next_batch()) is not None:
        batch.read()
        damaged += batch.confirm()
        batches.append(batch)
    return damaged, batches


def flip(disk: MemoryDisk, message: Message, at: int = 20) -> None:
    disk.flip(path_of(disk, "data"), message.data_offset * 8 + at)


def test_a_pass_over_intact_messages_finds_nothing_in_bounded_batches() -> None:
    _, partition, _ = filled(40, 60_000)
    damaged, batches = scrub(partition)
    assert not damaged and not partition.payloads.damaged and len(batches) >= 2
    assert all(batch.cost < BATCH_BYTES + 60_024 for batch in batches)


@pytest.mark.parametrize("at", [0, 3, 7, 8, 12, 50, 111, 119], ids=str)
def test_each_byte_of_a_record_is_compared(at: int) -> None:
    disk, partition, messages = filled()
    flip(disk, messages[4], at)
    found = list[Repair]()
    partition.payloads.on_damaged = found.append
    assert scrub(partition)[0] == 1 and [each.message for each in found] == [messages[4]]
    copy = partition.payloads.own_copy(messages[4])
    assert (copy is None) == (12 <= at < 112), "only the data need another copy"
    partition.payloads.write_payload(messages[4], bytes([4]) * 100)
    partition.payloads.damaged.clear()
    assert scrub(partition)[0] == 0
    assert len(stored(reread(disk))) == len(messages), "recovery reads the repaired record"


def test_a_message_in_memory_is_its_own_copy() -> None:
    disk, partition, messages = filled(cache=True)
    flip(disk, messages[4])
    assert scrub(partition)[0] == 1 and partition.payloads.own_copy(messages[4]) == messages[4].payload


def test_messages_removed_between_read_and_confirmation_are_ignored() -> None:
    disk, partition, messages = filled()
    flip(disk, messages[4])
    batch = ScrubPass(partition).next_batch()
    assert batch is not None
    batch.read()
    partition.append_deletion(KEY, messages[4], 0, WALL)
    assert batch.suspects == [messages[4]] and not batch.confirm()


def test_records_that_are_not_written_yet_are_not_read() -> None:
    _, partition, _ = filled()
    partition.append_message(KEY, make_message(99), WALL)
    assert scrub(partition)[0] == 0


def test_a_pass_waits_while_too_many_repairs_are_in_progress_and_ends_with_its_partition() -> None:
    disk, partition, messages = filled(DAMAGED_MAX + 500, 16)
    for message in messages:
        flip(disk, message)
    scrub_pass = ScrubPass(partition)
    while len(partition.payloads.damaged) < DAMAGED_MAX:
        batch = scrub_pass.next_batch()
        assert batch is not None
        batch.read()
        batch.confirm()
    before = len(partition.payloads.damaged)
    waiting = scrub_pass.next_batch()
    assert waiting is not None and not waiting.cost and len(partition.payloads.damaged) == before
    partition.payloads.closed = True
    assert scrub_pass.next_batch() is None


def test_a_batch_visits_a_bounded_number_of_live_records() -> None:
    _, partition, messages = filled(1)
    for _ in range(2 * BATCH_RECORDS):
        partition.state.last_key += 1
        partition.state.live.add(partition.state.last_key, b"record")
    scrub_pass, batches = ScrubPass(partition), 0
    while scrub_pass.next_batch() is not None:
        batches += 1
    assert batches >= 2


def test_nothing_is_written_after_the_partition_was_replaced() -> None:
    disk, partition, messages = filled()
    flip(disk, messages[4])
    partition.payloads.closed = True
    with pytest.raises(PayloadDamaged) as raised:
        partition.payloads.read(messages[4])
    assert raised.value.repair is None
    with pytest.raises(OSError):
        partition.payloads.write_payload(messages[4], bytes([4]) * 100)


def test_a_rollover_after_the_repair_copies_the_intact_record() -> None:
    disk, partition, messages = filled()
    flip(disk, messages[4])
    partition.payloads.write_payload(messages[4], bytes([4]) * 100)
    partition.rollover(WALL + 1)
    partition.flush(WALL + 1)
    assert partition.payloads.read(messages[4]) == bytes([4]) * 100 and scrub(partition)[0] == 0
