"""Recovery of a member's log: alarms name the situation in which bytes were cut off."""

from __future__ import annotations

from kit.storage_kit import FANOUT, KEY, WALL, make_message, open_files, path_of

from bmqtwist import alarms
from bmqtwist.storage.found_log import RecoveryClock, find_log
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.recovery import recover
from bmqtwist.storage.replica import ReplicatedPartition


def written_partition(disk: MemoryDisk, messages: int = 3) -> ReplicatedPartition:
    """Return a partition with sync point 1-1, CREATION 1-2 and MESSAGEs from 1-3 on."""
    files = open_files(disk)
    partition = ReplicatedPartition(1, files, find_log(files, None, RecoveryClock(), 0, WALL), wall=WALL)
    partition.activate(1, WALL)
    partition.queues.create(KEY, "bmq://d/q", FANOUT, WALL)
    for number in range(1, messages + 1):
        partition.append_message(KEY, make_message(number, b"payload"), WALL)
    partition.log.write()
    return partition


def test_a_running_node_that_cuts_records_off_raises_no_alarm() -> None:
    """A new primary lacks the records after 1-3, so this node removes them: it has not crashed."""
    partition = written_partition(MemoryDisk())
    limit = partition.journal_end_at((1, 3))
    found = find_log(partition.files, None, RecoveryClock(), 0, WALL, limit)
    assert found.summary.last == (1, 3) and not found.doubtful
    assert ReplicatedPartition(1, partition.files, found, wall=WALL).take_alarms() == []


def test_an_interrupted_write_and_records_that_the_journal_lost_are_two_alarms() -> None:
    """The same bytes of DATA lie after the last record in both cases."""
    for lost, kind in ((False, alarms.UNFINISHED_WRITE), (True, alarms.RECOVERY_DAMAGE)):
        disk = MemoryDisk()
        written_partition(disk)
        disk.kill()
        path = path_of(disk, "journal")
        content = disk.content(path)
        third = content[44 + 120:44 + 180]
        rest = bytes(60) + third if lost else bytes(120)  # instead of 1-4 and 1-5
        disk.put(path, content[:44 + 180] + rest + content[44 + 300:])
        files = open_files(disk)
        found = recover(files, partition_id=0)
        (data,) = [each for each in found.alarms if each.text.startswith("DATA: ")]
        assert data.kind is kind and found.damaged is lost, found.alarms
        assert ("interrupted write" in data.text) is not lost


def test_damage_of_any_one_record_of_an_idle_log_is_no_torn_write() -> None:
    """Either all messages are found, or the log knows that durable records are missing."""
    disk = MemoryDisk()
    partition = written_partition(disk)
    for second in range(5):
        partition.write_sync_point(WALL + second)
    partition.log.sync()
    last = partition.written_psn
    assert last == (1, 7), "two sync points, and none after them"
    path = path_of(disk, "journal")
    for offset in range(partition.journal_end_at((1, 1)), partition.journal_end_at(last), 60):
        disk.flip(path, offset + 7, 0xFF)
        disk.kill()
        found = find_log(open_files(disk), None, RecoveryClock(), 0, WALL)
        assert found.summary.last >= (1, 5) or found.doubtful, (offset, found.summary)
        disk.flip(path, offset + 7, 0xFF)
