"""Rollover in one step: copied records, crashes at each step, and the file set that recovery selects afterwards."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest
from kit.storage_kit import (
    DEFAULT,
    FANOUT,
    KEY,
    OTHER,
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
    stored,
)

from bmqtwist.steps import at_once
from bmqtwist.storage.memory import MemoryDisk, ProcessKilled
from bmqtwist.storage.partition import Partition, PartitionUnavailable
from bmqtwist.storage.recovery import recover


def prepare_partition() -> tuple[MemoryDisk, Partition]:
    """Create two queues with live and deleted messages, partial confirms, a removed app; all durable."""
    disk = MemoryDisk()
    partition, _ = start(disk, TINY)
    partition.queues.create(KEY, "bmq://d/q", DEFAULT, WALL)
    partition.queues.create(b"goner", "bmq://d/gone", DEFAULT, WALL)
    partition.queues.create(OTHER, "bmq://d/f", FANOUT, WALL)
    for number in range(1, 21):
        message = make_message(number, b"x" * number)
        partition.append_message(KEY, message, WALL)
        if number % 3:
            partition.append_deletion(KEY, message, 0, WALL)
    for number in range(21, 27):
        message = make_message(number, b"y" * number, ref_count=3, options=b"opti")
        partition.append_message(OTHER, message, WALL)
        if number % 2:
            partition.append_confirm(OTHER, FANOUT[0][1], message, 0, WALL)
    at_once(partition.queues.delete_app(OTHER, FANOUT[1][1], WALL))
    partition.queues.delete(b"goner", WALL)
    partition.queues.add_apps(OTHER, "bmq://d/f", [("late", b"lllll")], WALL)
    partition.flush(WALL)
    partition.sync()
    return disk, partition


def payloads_by_guid(partition: Partition, recovered: Any) -> dict[bytes, bytes]:
    """Return GUID -> payload of the outstanding messages."""
    return {message.guid: partition.payloads.read(message) for message in stored(recovered)}


def test_a_rollover_copies_only_live_records() -> None:
    disk, partition = prepare_partition()
    before = state(reread(disk, TINY))
    sequence = partition.sequence
    partition.rollover(WALL + 1)
    partition.flush(WALL + 1)
    recovered = reread(disk, TINY)
    assert state(recovered) == before and recovered.alarms == []
    journal = disk.content(path_of(disk, "journal"))
    kinds = [head >> 60 for _, head, _, _, _ in entries(journal)]
    assert 3 not in kinds and kinds.count(5) == 2 and kinds[-2:] == [5, 5]
    assert (partition.sequence, recovered.sequence) == (sequence + 2, sequence + 2)
    assert partition.tail.positions() == (recovered.journal_end, recovered.data_end, recovered.qlist_end)
    live, data, qlist = partition.state.outstanding()
    assert (live + 120, data, qlist) == partition.tail.positions()
    assert (recovered.state.data_bytes, recovered.state.qlist_bytes) == (data, qlist)
    payloads = payloads_by_guid(partition, recovered)
    assert all(payload == bytes([payload[0]]) * (guid[-1]) for guid, payload in payloads.items())


def test_payloads_are_readable_at_their_new_offsets_after_a_rollover() -> None:
    disk, partition = prepare_partition()
    partition.stop(WALL)
    partition, recovered = start(disk, TINY, lease=2)
    expected = payloads_by_guid(partition, recovered)
    partition.rollover(WALL + 1)
    assert payloads_by_guid(partition, recovered) == expected
    for queue in recovered.queues.values():
        for message in list(queue.messages.values()):
            partition.append_deletion(queue.key, message, 0, WALL)
    partition.flush(WALL + 1)
    assert guids(reread(disk, TINY)) == []
    assert partition.state.outstanding()[1] == 40


def test_unwritten_records_are_part_of_the_rollover() -> None:
    disk, partition = prepare_partition()
    message = make_message(99, b"z" * 30)
    partition.append_message(KEY, message, WALL)
    partition.hold_effect(Held("ack"))
    partition.rollover(WALL + 1)
    assert partition.flush(WALL + 1) == ["ack"], "a rollover syncs"
    disk.crash()
    assert message.guid.hex().upper() in guids(reread(disk, TINY))


def steps_of_a_rollover() -> list[tuple[str, str]]:
    disk, partition = prepare_partition()
    begin = disk.steps
    partition.rollover(WALL + 1)
    return disk.log[begin:]


STEPS = steps_of_a_rollover()


def disk_after_crash(step: int) -> MemoryDisk:
    disk, partition = prepare_partition()
    disk.stop_after = disk.steps + step
    with pytest.raises(ProcessKilled):
        partition.rollover(WALL + 1)
    return disk


@pytest.mark.spec("storage", 10)
@pytest.mark.parametrize("step", range(len(STEPS)), ids=lambda step: f"{step}-{STEPS[step][0]}")
@pytest.mark.parametrize("how", ["killed", "power", "torn1", "torn2", "torn3"])
def test_a_crash_before_any_step_of_a_rollover_keeps_the_state(step: int, how: str) -> None:
    expected = state(reread(prepare_partition()[0], TINY))
    disk = disk_after_crash(step)
    if how == "killed":
        disk.kill()
    else:
        disk.crash(Random(int(how[-1])) if how != "power" else None)
    for attempt in range(2):
        partition, recovered = start(disk, TINY, lease=None, wall=WALL + 10 + attempt)
        assert state(recovered) == expected
        assert not recovered.quarantined and payloads_by_guid(partition, recovered)
        kept = payloads_by_guid(partition, recovered)
        assert all(payload == bytes([payload[0]]) * guid[-1] for guid, payload in kept.items())
        partition.append_message(KEY, message := make_message(99, b"z" * 99), WALL)
        partition.append_deletion(KEY, message, 0, WALL)
        partition.rollover(WALL + 10 + attempt)
        partition.stop(WALL + 20 + attempt)
    assert len([path for path in disk.paths() if path.startswith("/l/")]) == 3
    final = reread(disk, TINY)
    assert state(final) == expected and final.alarms == []


def test_the_rollover_mark_is_written_after_the_sync_of_the_copied_records() -> None:
    done = [(operation, path.rpartition("_")[2]) for operation, path in STEPS]
    mark = len(done) - 1 - done[::-1].index(("rename", "data"))
    before = done[:mark]
    last_write = max(index for index, entry in enumerate(before) if entry == ("write", "journal"))
    assert [entry for entry in before[:last_write] if entry[0] == "sync"][-3:] == [
        ("sync", "data"), ("sync", "qlist"), ("sync", "journal")]
    assert before[last_write + 1] == ("sync", "journal")


@pytest.mark.parametrize("step", range(len(STEPS)), ids=lambda step: f"{step}-{STEPS[step][0]}")
def test_a_disk_error_at_any_step_of_a_rollover_keeps_the_state(step: int) -> None:
    expected = state(reread(prepare_partition()[0], TINY))
    disk, partition = prepare_partition()
    count = iter(range(10000))
    disk.fail = lambda operation, path: errno.EIO if next(count) == step else None
    try:
        partition.rollover(WALL + 1)
    except PartitionUnavailable:
        assert [kind.category for kind, _ in partition.take_alarms()][-1:] == ["ROLLOVER"]
    disk.fail = lambda operation, path: None
    partition.flush(WALL)
    partition.append_message(KEY, make_message(99, b"z" * 99), WALL)
    partition.flush(WALL)
    partition.stop(WALL)
    recovered = reread(disk, TINY)
    found = state(recovered)
    assert found["bmq://d/q"][1].pop()[0] == make_message(99).guid
    assert found == expected and not recovered.quarantined


def test_the_archive_keeps_the_configured_number_of_file_sets() -> None:
    for keep in (0, 1, 3):
        disk = MemoryDisk()
        files = open_files(disk, sizes=TINY, keep=keep)
        partition = Partition(1, files, recover(files))
        partition.activate(1, WALL)
        for turn in range(5):
            partition.rollover(WALL + turn)
        archived = [path for path in disk.paths() if path.startswith("/a/")]
        assert len(archived) == 3 * keep
        assert len(disk.paths()) == 3 * keep + 3


def test_file_sets_of_the_same_second_have_different_names() -> None:
    disk = MemoryDisk()
    partition, _ = start(disk, TINY)
    partition.rollover(WALL)
    partition.rollover(WALL)
    names = {path.split(".")[1] for path in disk.paths()}
    assert names == {"20261121_050206", "20261121_050207", "20261121_050208"}


def test_file_names_contain_the_calendar_year() -> None:
    disk = MemoryDisk()
    open_files(disk, wall=1735516800)  # 30 December 2024, in the first ISO week of 2025
    assert disk.names("/l")[0].startswith("bmq_0.20241230_000000.")


def test_opening_a_partition_does_not_change_the_files_of_others() -> None:
    disk = MemoryDisk()
    for partition_id in (0, 1, 11):
        open_files(disk, partition_id, TINY)
    assert len(disk.paths()) == 9
    open_files(disk, 1, TINY)
    assert len(disk.paths()) == 9


def test_a_rollover_that_would_free_too_little_is_refused() -> None:
    disk = MemoryDisk()
    partition, _ = start(disk, TINY)
    partition.queues.create(KEY, "bmq://d/q", DEFAULT, WALL)
    for number in range(1, 230):
        partition.append_message(KEY, make_message(number), WALL)
    with pytest.raises(PartitionUnavailable, match="JOURNAL"):
        partition.rollover(WALL)
