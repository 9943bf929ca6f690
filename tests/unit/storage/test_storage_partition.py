"""Partition of a single node: batches, durability gate and syncs, space, payload cache, disk errors."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from kit.storage_kit import (
    DEFAULT,
    FANOUT,
    KEY,
    OTHER,
    SMALL,
    TINY,
    WALL,
    Held,
    entries,
    guids,
    make_message,
    open_files,
    path_of,
    reread,
    start,
    state,
)

from bmqtwist.errors import LocalError
from bmqtwist.steps import at_once
from bmqtwist.storage import fileset
from bmqtwist.storage import partition as partition_module
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.partition import Partition, PartitionUnavailable
from bmqtwist.storage.store import FileSizes


def started_partition(disk: MemoryDisk, sizes: FileSizes = SMALL, **options: Any) -> Partition:
    """Return a partition with one queue."""
    partition, _ = start(disk, sizes, **options)
    partition.queues.create(KEY, "bmq://d/q", DEFAULT, WALL)
    partition.flush(WALL)
    return partition


def append(partition: Partition, number: int, payload: bytes = b"payload", key: bytes = KEY) -> Any:
    """Append one message."""
    message = make_message(number, payload)
    partition.append_message(key, message, WALL)
    return message


def take_operations(disk: MemoryDisk) -> list[str]:
    """Return the operations on each kind of file since the last call."""
    done = [f"{operation} {path.rpartition('_')[2]}" for operation, path in disk.log]
    disk.log.clear()
    return done


# ---- turns and gates -------------------------------------------------------------------------------------------------

def test_a_flush_makes_one_write_per_file_data_before_journal() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, durability="none")
    take_operations(disk)
    for number in range(50):
        append(partition, number)
    assert take_operations(disk) == []
    partition.flush(WALL)
    assert take_operations(disk) == ["write data", "write journal"]
    partition.flush(WALL)
    assert take_operations(disk) == []


def test_with_durability_none_the_flush_releases_effects() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, durability="none")
    append(partition, 1)
    partition.hold_effect(Held("a"))
    partition.hold_effect(Held("b"))
    assert partition.flush(WALL) == ["a", "b"]
    assert partition.flush(WALL) == []
    assert partition.begin_sync() is None


def test_with_durability_always_the_flush_syncs_data_before_journal() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, durability="always")
    take_operations(disk)
    append(partition, 1)
    partition.hold_effect(Held("a"))
    assert partition.flush(WALL) == ["a"]
    assert take_operations(disk) == ["write data", "write journal", "sync data", "sync journal"]
    partition.hold_effect(Held("nothing to write"))
    assert partition.flush(WALL) == ["nothing to write"]
    assert take_operations(disk) == []


def test_with_durability_group_effects_wait_for_a_sync_started_after_their_write() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk)
    append(partition, 1)
    partition.hold_effect(Held("first"))
    assert partition.flush(WALL) == []
    token = partition.begin_sync()
    assert token is not None and partition.begin_sync() is None, "one sync at a time"
    append(partition, 2)
    partition.hold_effect(Held("second"))
    assert partition.flush(WALL) == [] and partition.begin_sync() is None
    partition.sync()
    assert partition.on_synced(token, WALL) == ["first"]
    assert partition.on_synced(token, WALL) == []
    second = partition.begin_sync()
    assert second is not None and second != token
    partition.sync()
    assert partition.on_synced(second, WALL) == ["second"]
    assert partition.begin_sync() is None
    partition.hold_effect(Held("no records"))
    assert partition.flush(WALL) == ["no records"]


def test_an_effect_without_records_waits_for_the_sync_of_earlier_records() -> None:
    partition = started_partition(MemoryDisk())
    append(partition, 1)
    partition.flush(WALL)
    partition.hold_effect(Held("later"))
    assert partition.flush(WALL) == []
    token = partition.begin_sync()
    assert partition.on_synced(token or 0, WALL) == ["later"]


def test_acknowledged_messages_survive_a_loss_of_power() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk)
    for number in range(1, 6):
        append(partition, number)
    partition.hold_effect(Held("acks"))
    partition.flush(WALL)
    token = partition.begin_sync()
    partition.sync()
    assert partition.on_synced(token or 0, WALL) == ["acks"]
    append(partition, 6)
    partition.flush(WALL)
    disk.crash()
    assert len(guids(reread(disk))) == 5


def test_a_sync_point_is_written_only_after_other_records() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk)
    append(partition, 1)
    partition.flush(WALL)
    before = partition.sequence
    partition.write_sync_point(WALL + 1)
    partition.write_sync_point(WALL + 2)
    assert partition.sequence == before + 1
    partition.write_sync_point(WALL + 3, force=True)
    assert partition.sequence == before + 2
    assert partition.begin_sync() is not None, "a sync point makes what it covers durable"


def test_a_lease_must_be_newer_than_the_last_one() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, lease=4)
    partition.stop(WALL)
    for lease in (3, 4):
        with pytest.raises(LocalError):
            start(disk, lease=lease)
    partition, recovered = start(disk, lease=None)
    assert (recovered.lease, partition.lease, partition.sequence) == (4, 5, 1)


def test_a_stop_truncates_the_files_and_ends_the_journal_with_a_sync_point() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk)
    append(partition, 1)
    partition.hold_effect(Held("ack"))
    assert partition.stop(WALL) == ["ack"]
    journal = disk.content(path_of(disk, "journal"))
    assert entries(journal)[-1][1] >> 60 == 5
    assert entries(journal)[-1][0] + 60 == len(journal)
    recovered = reread(disk)
    assert not recovered.alarms and len(guids(recovered)) == 1


# ---- live records ----------------------------------------------------------------------------------------------------

def test_outstanding_bytes_include_only_live_records() -> None:
    partition = started_partition(MemoryDisk())
    empty = partition.state.outstanding()
    message = make_message(1, b"x" * 100, ref_count=2, options=b"opts")
    partition.append_message(KEY, message, WALL)
    partition.append_confirm(KEY, b"aaaaa", message, 0, WALL)
    assert partition.state.outstanding() == (empty[0] + 120, empty[1] + 120, empty[2])
    partition.append_deletion(KEY, message, 0, WALL)
    assert partition.state.outstanding() == empty and message.live_key == -1
    append(partition, 2)
    at_once(partition.queues.purge(KEY, None, None, WALL))
    assert partition.state.outstanding() == (empty[0] + 60, *empty[1:]), "the PURGE record itself"
    partition.queues.delete(KEY, WALL)
    assert partition.state.outstanding() == (44, 40, 36) and not partition.state.live


def test_auto_confirms_belong_to_the_following_message() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk)
    partition.queues.create(OTHER, "bmq://d/f", FANOUT, WALL)
    partition.append_auto_confirm(OTHER, FANOUT[0][1], b"g" * 16, WALL)  # without its message
    message = make_message(2, ref_count=1)
    partition.append_auto_confirm(OTHER, FANOUT[0][1], message.guid, WALL)
    partition.append_auto_confirm(OTHER, FANOUT[2][1], message.guid, WALL)
    partition.append_message(OTHER, message, WALL)
    assert len(partition.state.live) == 5 and len(message.confirms or ()) == 2
    partition.flush(WALL)
    assert state(reread(disk))["bmq://d/f"][1] == [(message.guid, ["bar"])]
    partition.append_deletion(OTHER, message, 0, WALL)
    assert len(partition.state.live) == 2


def test_payloads_beyond_the_cache_limit_are_dropped_and_read_from_data() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, cache_bytes=250)
    messages = [make_message(number, bytes([number]) * 100, options=b"opt!") for number in range(5)]
    for message in messages:
        partition.append_message(KEY, message, WALL)
    assert [partition.payloads.read(message)[0] for message in messages] == [0, 1, 2, 3, 4], "before the flush"
    partition.flush(WALL)
    assert [message.payload is None for message in messages] == [False, False, True, True, True]
    assert [partition.payloads.read(message) for message in messages] == [bytes([n]) * 100 for n in range(5)]
    for message in messages:
        partition.append_deletion(KEY, message, 0, WALL)
    again = append(partition, 9, b"z" * 250)
    partition.flush(WALL)
    assert again.payload is not None, "deleted messages no longer count"


def test_a_message_deleted_before_the_flush_frees_its_cache_bytes_once() -> None:
    partition = started_partition(MemoryDisk(), cache_bytes=10)
    message = append(partition, 1, b"x" * 100)
    partition.append_deletion(KEY, message, 0, WALL)
    partition.flush(WALL)
    kept = append(partition, 2, b"y" * 10)
    partition.flush(WALL)
    assert kept.payload == b"y" * 10


# ---- space -----------------------------------------------------------------------------------------------------------

def fill_partition(partition: Partition, keys: list[bytes], size: int = 8) -> dict[bytes, list[Any]]:
    """Append messages to the queues alternately until the partition refuses one."""
    stored: dict[bytes, list[Any]] = {key: [] for key in keys}
    number = 0
    try:
        while True:
            number += 1
            key = keys[number % len(keys)]
            stored[key].append(append(partition, number, b"x" * size, key))
            partition.flush(WALL)
    except PartitionUnavailable:
        return stored


def test_a_journal_full_of_live_records_is_read_only_until_a_queue_is_purged() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, TINY, durability="none")
    partition.queues.create(OTHER, "bmq://d/o", DEFAULT, WALL)
    stored = fill_partition(partition, [KEY, OTHER])
    assert [kind.category for kind, _ in partition.take_alarms()] == ["PARTITION_READONLY"]
    assert not partition.available
    with pytest.raises(PartitionUnavailable):
        append(partition, 9999)
    with pytest.raises(PartitionUnavailable):
        at_once(partition.queues.purge(KEY, DEFAULT[0][1], stored[KEY][0], WALL))
    gone = stored[KEY].pop(0)
    partition.append_deletion(KEY, gone, 0, WALL)
    partition.flush(WALL)
    assert gone.guid not in partition.state.queues[KEY].messages, "its record is not written, but it is deleted"
    assert partition.take_alarms() == [], "once per file set"
    assert partition.tail.positions()[0] <= TINY.journal - 1140 + 60
    at_once(partition.queues.purge(KEY, None, None, WALL))
    assert partition.available
    append(partition, 10000)
    partition.flush(WALL)
    assert partition.take_alarms() == []
    assert partition.tail.positions()[0] < TINY.journal // 2 + 400
    recovered = reread(disk, TINY)
    assert len(recovered.queues[OTHER].messages) == len(stored[OTHER]) and len(recovered.queues[KEY].messages) == 1


def test_a_full_data_file_refuses_messages_and_accepts_deletions() -> None:
    partition = started_partition(MemoryDisk(), FileSizes(1 << 20, 10000, 1 << 16), durability="none")
    stored = fill_partition(partition, [KEY], 500)[KEY]
    assert [kind.category for kind, _ in partition.take_alarms()] == ["PARTITION_READONLY"]
    assert partition.available
    for message in stored[:len(stored) // 2]:
        partition.append_deletion(KEY, message, 0, WALL)
    append(partition, 777, b"x" * 500)
    assert partition.take_alarms() == []


def test_a_message_larger_than_the_data_file_is_refused() -> None:
    partition = started_partition(MemoryDisk(), FileSizes(1 << 20, 10000, 1 << 16))
    with pytest.raises(PartitionUnavailable):
        append(partition, 1, b"x" * 20000)
    append(partition, 2)


def test_a_full_qlist_rolls_over_if_queues_were_deleted() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, FileSizes(1 << 20, 1 << 16, 2000), durability="none")
    for number in range(100):
        partition.queues.create(OTHER, f"bmq://d/{number}", DEFAULT, WALL + number)
        partition.queues.delete(OTHER, WALL + number)
    partition.flush(WALL)
    assert partition.take_alarms() == []
    assert [queue.uri for queue in reread(disk).queues.values()] == ["bmq://d/q"]


def create_queues(partition: Partition, domain: str, count: int) -> int:
    """Create queues until one is refused; return the number of created ones."""
    for number in range(count):
        try:
            partition.queues.create(b"%s%04d" % (domain[:1].encode(), number), f"bmq://{domain}/{number}", DEFAULT, WALL)
        except PartitionUnavailable:
            return number
    return count


def test_the_queues_of_one_domain_leave_room_for_other_domains_and_for_rollovers() -> None:
    """Neither messages nor the queues of other domains are refused, and the partition stays writable after a restart."""
    disk, sizes = MemoryDisk(), FileSizes(1 << 20, 1 << 16, 100_000)
    partition = started_partition(disk, sizes, durability="none")
    greedy = create_queues(partition, "greedy", 5000)
    assert 500 < greedy < 5000
    assert [kind.id for kind, _ in partition.take_alarms()] == ["queue-list-share"]
    assert create_queues(partition, "modest", 50) == 50
    other = create_queues(partition, "other", 5000)
    assert 50 < other < greedy // 2 and create_queues(partition, "last", 10) == 10
    append(partition, 1)
    assert partition.room.can_roll_over() and partition.room.roll_over(WALL)
    partition.flush(WALL)
    assert not [kind for kind, _ in partition.take_alarms() if kind.id != "queue-list-share"]
    restarted = reread(disk, sizes)
    assert restarted.state.domain_qlist_bytes == partition.state.domain_qlist_bytes
    assert len(restarted.queues) == greedy + 50 + other + 10 + 1


def test_deleted_queues_return_their_share() -> None:
    partition = started_partition(MemoryDisk(), FileSizes(1 << 20, 1 << 16, 100_000), durability="none")
    count = create_queues(partition, "greedy", 5000)
    for number in range(10):
        partition.queues.delete(b"g%04d" % number, WALL)
    partition.queues.create(b"gnew1", "bmq://greedy/new", DEFAULT, WALL)
    assert len(partition.state.queues) == count - 10 + 1 + 1


def test_the_space_alarm_names_the_largest_queues_and_is_repeated_after_15_minutes() -> None:
    partition = started_partition(MemoryDisk(), FileSizes(1 << 20, 10000, 1 << 16))
    partition.check_space(WALL)
    assert partition.take_alarms() == []
    for number in range(12):
        append(partition, number, b"x" * 500)
    partition.check_space(WALL)
    partition.check_space(WALL + 899)
    (kind, text), = partition.take_alarms()
    assert kind.id == "partition-availablespace-softlimit" and "bmq://d/q: 12 messages" in text
    partition.check_space(WALL + 900)
    assert len(partition.take_alarms()) == 1


def test_a_partition_can_be_disabled_and_enabled() -> None:
    partition = started_partition(MemoryDisk())
    partition.disable()
    with pytest.raises(PartitionUnavailable, match="operator"):
        append(partition, 1)
    with pytest.raises(PartitionUnavailable):
        at_once(partition.queues.purge(KEY, None, None, WALL))
    partition.enable()
    append(partition, 1)


# ---- failing disks ---------------------------------------------------------------------------------------------------

def fail_operations(disk: MemoryDisk, *operations: str, code: int = errno.EIO) -> None:
    """Let operations fail from now on; without arguments, stop the faults."""
    disk.fail = lambda operation, path: code if operation in operations else None


@pytest.mark.spec("storage", 13)
def test_effects_wait_for_the_retry_of_a_failed_write() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, durability="none")
    message = append(partition, 1)
    partition.hold_effect(Held("ack"))
    fail_operations(disk, "write", code=errno.ENOSPC)
    assert partition.flush(WALL) == [] and partition.flush(WALL) == []
    assert [kind.category for kind, _ in partition.take_alarms()] == ["FILE_IO"]
    with pytest.raises(PartitionUnavailable):
        append(partition, 2)
    assert partition.payloads.read(message) == b"payload"
    fail_operations(disk)
    assert partition.flush(WALL) == ["ack"]
    append(partition, 2)
    partition.flush(WALL)
    assert len(guids(reread(disk))) == 2


def test_a_failed_journal_write_after_a_data_write_is_repeated_at_the_same_offset() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, durability="none")
    append(partition, 1)
    disk.fail = lambda operation, path: errno.EIO if operation == "write" and path.endswith("journal") else None
    partition.flush(WALL)
    fail_operations(disk)
    partition.flush(WALL)
    partition.stop(WALL)
    recovered = reread(disk)
    assert (recovered.alarms, len(guids(recovered))) == ([], 1)


def test_after_a_failed_sync_no_effect_is_released() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk)
    append(partition, 1)
    partition.hold_effect(Held("ack"))
    partition.flush(WALL)
    token = partition.begin_sync()
    fail_operations(disk, "sync")
    with pytest.raises(OSError) as caught:
        partition.sync()
    partition.on_sync_failed(token or 0, caught.value)
    fail_operations(disk)
    assert partition.flush(WALL) == [] and partition.begin_sync() is None
    assert not partition.available
    assert [kind.category for kind, _ in partition.take_alarms()] == ["FILE_IO"]
    assert partition.stop(WALL) == []


def test_with_durability_always_a_failed_sync_closes_the_partition() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, durability="always")
    append(partition, 1)
    partition.hold_effect(Held("ack"))
    fail_operations(disk, "sync")
    assert partition.flush(WALL) == []
    fail_operations(disk)
    assert partition.flush(WALL) == [] and not partition.available


@pytest.mark.spec("storage", 13)
def test_a_rollover_without_disk_space_keeps_the_old_file_set() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, TINY, durability="none")
    disk.capacity = 2 * sum(TINY.as_tuple) - 1
    message, refused_at = None, 0
    for number in range(1, 1000):
        try:
            if message is not None:
                partition.append_deletion(KEY, message, 0, WALL)
            message = append(partition, number)
        except PartitionUnavailable:
            refused_at = number
            break
        partition.flush(WALL)
    assert refused_at and [kind.category for kind, _ in partition.take_alarms()] == ["ROLLOVER"]
    assert len(disk.paths()) == 3 and partition.available
    disk.capacity = None
    with pytest.raises(PartitionUnavailable):
        append(partition, 5000)
    assert partition.take_alarms() == [], "not tried again at once"
    late = make_message(5000)
    partition.append_message(KEY, late, WALL + 5)
    partition.flush(WALL + 5)
    assert late.guid.hex().upper() in guids(reread(disk, TINY))


def test_a_second_broker_cannot_lock_the_directory() -> None:
    disk = MemoryDisk()
    lock = disk.lock("/l")
    with pytest.raises(LocalError, match="another broker"):
        disk.lock("/l")
    lock.close()
    disk.lock("/l").close()
    open_files(disk)


# ---- batches that are written over several turns -----------------------------------------------------------------------

@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (partition_module, fileset):
        monkeypatch.setattr(module, "PREWRITE_BYTES", 1000)


def test_a_large_message_is_written_in_slices_and_its_record_last(small_steps: None) -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, durability="none")
    take_operations(disk)
    append(partition, 1)
    append(partition, 2, b"x" * 3500)
    partition.hold_effect(Held("a"))
    assert partition.flush(WALL) == [] and partition.tail.large and take_operations(disk) == ["write data"]
    append(partition, 3)  # while the large batch is in progress
    partition.hold_effect(Held("b"))
    assert partition.flush(WALL) == [] and take_operations(disk) == ["write data"]
    while not (released := partition.flush(WALL)):
        assert partition.has_work() and partition.tail.large
    assert released == ["a", "b"] and not partition.tail.large
    assert take_operations(disk)[-2:] == ["write data", "write journal"]
    assert guids(reread(disk)) == [make_message(number, b"").guid.hex().upper() for number in (1, 2, 3)]
    assert partition.payloads.read(next(iter(reread(disk).queues[KEY].messages.values()))) == b"payload"


def test_a_sync_point_waits_for_a_large_batch_in_progress(small_steps: None) -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, durability="none")
    append(partition, 1, b"x" * 3500)
    assert partition.flush(WALL) == [] and partition.tail.large
    take_operations(disk)
    partition.write_sync_point(WALL)
    assert take_operations(disk) == [] and partition.tail.large
    while partition.has_work():
        partition.flush(WALL)
    assert take_operations(disk)[-2:] == ["write data", "write journal"]
    partition.write_sync_point(WALL)
    assert take_operations(disk) == ["write journal"]
    assert guids(reread(disk)) == [make_message(1, b"").guid.hex().upper()]


@pytest.mark.parametrize("turns", range(6))
def test_a_crash_or_error_during_a_large_batch_loses_no_other_message(small_steps: None, turns: int) -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, durability="none")
    append(partition, 1)
    partition.flush(WALL)
    append(partition, 2, b"x" * 3500)
    for _ in range(turns):
        partition.flush(WALL)
    found = guids(reread(disk))
    assert found in ([make_message(each, b"").guid.hex().upper() for each in range(1, 2 + count)] for count in (0, 1))
    fail_operations(disk, "write")
    append(partition, 3)
    partition.flush(WALL)
    fail_operations(disk)
    while partition.has_work():
        partition.flush(WALL)
    assert len(guids(reread(disk))) == 3


def test_a_stop_writes_the_rest_of_a_large_batch_at_once(small_steps: None) -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, durability="none")
    append(partition, 1, b"x" * 3500)
    partition.flush(WALL)
    partition.stop(WALL, True)
    assert len(guids(reread(disk))) == 1


def test_only_the_requested_beginning_of_a_long_message_is_read() -> None:
    disk = MemoryDisk()
    partition = started_partition(disk, durability="none", cache_bytes=0)
    long, short = append(partition, 1, b"x" * 3500), append(partition, 2, b"y" * 100)
    partition.flush(WALL)
    assert long.payload is None and short.payload is None
    assert partition.payloads.read_beginning(long, 100) == b"x" * 100
    assert partition.payloads.read_beginning(short, 101) == b"y" * 100
