"""Damaged file sets: the broker starts, every loss raises an alarm, and the next start finds no damage.

The file set: sync point, CREATION, 8 MESSAGEs (6 undeleted), 2 DELETIONs, 2 sync points; closed cleanly.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from crc32c import crc32c
from kit.storage_kit import (
    DEFAULT,
    KEY,
    SMALL,
    WALL,
    disk_with,
    entries,
    guids,
    journals,
    make_message,
    name_of,
    open_files,
    path_of,
    reread,
    start,
    state,
    stored,
)

from bmqtwist.storage.damage import Repair
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.partition import Partition, PartitionUnavailable, PayloadDamaged
from bmqtwist.storage.recovery import RecoveredPartition, recover

URI = "bmq://d/q"
SLOT = {"sync": 0, "creation": 1, "first": 2, "middle": 5, "last": 9, "deletion": 10, "end": 13}


class LedgerQueue:
    """The queue in the metadata ledger."""

    uri = URI
    apps = dict(DEFAULT)


def build_disk(*, stop: bool = True) -> MemoryDisk:
    """Create the file set of the table, with 1..8 padding bytes per payload."""
    disk = MemoryDisk()
    partition, _ = start(disk)
    partition.queues.create(KEY, URI, DEFAULT, WALL)
    messages = [make_message(number, b"x" * (40 + number)) for number in range(1, 9)]
    for message in messages:
        partition.append_message(KEY, message, WALL)
    for message in messages[:2]:
        partition.append_deletion(KEY, message, 0, WALL)
    partition.write_sync_point(WALL + 1)
    partition.flush(WALL + 1)
    if stop:
        partition.stop(WALL + 2)
    else:
        disk.kill()
    return disk


def overwrite(disk: MemoryDisk, kind: str, offset: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    path = path_of(disk, kind)
    content = disk.content(path)
    disk.put(path, content[:offset] + data + content[offset + len(data):])


def truncate(disk: MemoryDisk, kind: str, size: int) -> None:
    """Shorten a file."""
    path = path_of(disk, kind)
    disk.put(path, disk.content(path)[:size])


def record_offset(name: str) -> int:
    """Return the offset of a record of the table."""
    return 44 + 60 * SLOT[name]


def message_numbers(recovered: RecoveredPartition) -> list[int]:
    """Return the numbers of the outstanding messages."""
    return [int(guid, 16) & 0xFFFF for guid in guids(recovered)]


def restart_twice(disk: MemoryDisk, expected: list[int], silent: bool = False) -> list[str]:
    """Start on the damaged disk, work, stop, start again; the second start must raise no alarm.

    The alarms of the first start are returned.
    """
    files = open_files(disk)
    recovered = recover(files, {KEY: LedgerQueue()}, partition_id=0)
    partition = Partition(1, files, recovered)
    alarms = [text for _, text in partition.take_alarms()]
    assert message_numbers(recovered) == expected
    assert bool(alarms) is not silent, alarms
    partition.activate(recovered.lease + 1, WALL + 10)
    if KEY not in recovered.queues:
        partition.queues.create(KEY, URI, DEFAULT, WALL + 10)
    left = stored(recovered)
    for number, message in zip(message_numbers(recovered), left, strict=True):
        assert partition.payloads.read(message) == b"x" * (40 + number)
    partition.append_message(KEY, make_message(99, b"x" * 139), WALL + 10)
    partition.flush(WALL + 10)
    partition.stop(WALL + 11)
    again = open_files(disk, wall=WALL + 20)
    second = recover(again, {KEY: LedgerQueue()}, partition_id=0)
    assert (second.alarms, second.damaged, again.reports.take_alarms()) == ([], False, [])
    assert message_numbers(second) == [*expected, 99]
    return alarms


ALL = [3, 4, 5, 6, 7, 8]


def test_an_undamaged_file_set_starts_without_alarms() -> None:
    assert restart_twice(build_disk(), ALL, silent=True) == []


def test_the_files_of_a_killed_broker_start_without_alarms() -> None:
    assert restart_twice(build_disk(stop=False), ALL, silent=True) == []


@pytest.mark.spec("storage", 11)
@pytest.mark.parametrize("length", range(1, 60))
def test_a_journal_truncated_within_its_last_sync_point_keeps_all_messages(length: int) -> None:
    disk = build_disk()
    truncate(disk, "journal", record_offset("end") + length)
    assert "cut off" in restart_twice(disk, ALL)[0]


@pytest.mark.spec("storage", 11)
@pytest.mark.parametrize("length", range(60))
def test_a_journal_truncated_within_a_message_keeps_the_messages_before_it_with_alarms(length: int) -> None:
    disk = build_disk()
    truncate(disk, "journal", record_offset("middle") + length)
    alarms = restart_twice(disk, [1, 2, 3])
    assert any("it was truncated" in text for text in alarms)
    assert any("records are missing" in text for text in alarms)
    assert [path for path in disk.paths() if "/damaged." in path], "the damaged set is kept"


def test_a_journal_truncated_after_its_headers_raises_an_alarm_for_missing_records() -> None:
    disk = build_disk()
    truncate(disk, "journal", 44)
    alarms = restart_twice(disk, [])
    assert any("records are missing" in text for text in alarms)
    assert len([path for path in disk.paths() if "/damaged." in path]) == 3


def test_a_wrong_record_size_in_the_header_loses_no_message() -> None:
    disk = build_disk()
    overwrite(disk, "journal", 33, b"\x0e")
    assert "record words 14" in restart_twice(disk, ALL)[0]


@pytest.mark.parametrize("missing", ["data", "qlist"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_missing_or_empty_data_or_qlist_file_raises_an_alarm(missing: str, empty: bool) -> None:
    disk = build_disk()
    if empty:
        truncate(disk, missing, 0)
    else:
        disk.remove(path_of(disk, missing))
    alarms = restart_twice(disk, [] if missing == "data" else ALL)
    assert any(f"the {missing.upper()} file" in text and "missing or empty" in text for text in alarms)
    if missing == "data":
        assert any("6 message(s) are damaged" in text for text in alarms)


@pytest.mark.parametrize("empty", [True, False])
def test_a_data_file_without_journal_is_kept_as_damaged_with_an_alarm(empty: bool) -> None:
    disk = build_disk()
    data = disk.content(path_of(disk, "data"))
    if empty:
        truncate(disk, "journal", 0)
    else:
        disk.remove(path_of(disk, "journal"))
    assert "JOURNAL of file set" in restart_twice(disk, [])[0]
    kept = [path for path in disk.paths() if "/damaged." in path and path.endswith("data")]
    assert [disk.content(path) for path in kept] == [data]


def test_an_empty_directory_starts_a_new_file_set() -> None:
    disk = MemoryDisk()
    partition, recovered = start(disk)
    assert (recovered.queues, recovered.alarms, partition.take_alarms()) == ({}, [], [])


@pytest.mark.parametrize("size", [20, 33, 43])
def test_a_journal_truncated_within_its_headers_does_not_stop_the_start(size: int) -> None:
    disk = build_disk()
    truncate(disk, "journal", size)
    restart_twice(disk, [])


@pytest.mark.parametrize("kind", ["journal", "data", "qlist"])
def test_a_wrong_file_magic_loses_no_message(kind: str) -> None:
    disk = build_disk()
    overwrite(disk, kind, 0, b"?")
    assert "file magic is wrong" in restart_twice(disk, ALL)[0]


@pytest.mark.parametrize("offset, data", [(56, b"?"), (4, b"\0\0\0\xff"), (8, bytes(4)), (0, b"\0"), (0, b"\x90")])
def test_a_damaged_last_sync_point_loses_no_message(offset: int, data: bytes) -> None:
    disk = build_disk()
    overwrite(disk, "journal", record_offset("end") + offset, data)
    restart_twice(disk, ALL)


@pytest.mark.parametrize("name, lost", [("first", []), ("middle", [4]), ("last", [8])])
@pytest.mark.parametrize("offset, data", [(56, b"?"), (0, b"\0"), (0, b"\x90"), (0, bytes(60))])
def test_an_unreadable_message_record_loses_only_that_message(name: str, lost: list[int], offset: int,
                                                              data: bytes) -> None:
    disk = build_disk()
    overwrite(disk, "journal", record_offset(name) + offset, data)
    alarms = restart_twice(disk, [number for number in ALL if number not in lost])
    assert any("unreadable" in text or "unknown type" in text for text in alarms)


def test_records_after_a_page_of_zeros_are_recovered() -> None:
    disk = build_disk()
    overwrite(disk, "journal", record_offset("first") + 120, bytes(180))
    assert any("3 record(s) between" in text for text in restart_twice(disk, [6, 7, 8]))


@pytest.mark.parametrize("name", ["first", "middle", "last", "deletion"])
@pytest.mark.parametrize("offset, data", [(4, b"\0\0\0\xff"), (8, b"\0\0\0\2"), (8, bytes(4)), (2, bytes(6))])
def test_a_wrong_psn_between_valid_records_is_corrected(name: str, offset: int, data: bytes) -> None:
    disk = build_disk()
    overwrite(disk, "journal", record_offset(name) + offset, data)
    assert any("wrong PSN" in text for text in restart_twice(disk, ALL))


def test_a_queue_with_unreadable_creation_is_restored_from_the_ledger_or_qlist() -> None:
    disk = build_disk()
    overwrite(disk, "journal", record_offset("creation") + 56, b"?")
    without = reread(disk)
    assert message_numbers(without) == ALL and without.queues[KEY].uri == URI
    assert any("taken from the QLIST" in found.text for found in without.alarms)
    assert any("taken from the ledger" in text for text in restart_twice(disk, ALL))


def test_an_unreadable_deletion_restores_its_message() -> None:
    disk = build_disk()
    overwrite(disk, "journal", record_offset("deletion") + 56, b"?")
    restart_twice(disk, [1, *ALL])


def test_a_record_of_an_unknown_queue_is_ignored_with_an_alarm() -> None:
    disk = build_disk()
    overwrite(disk, "journal", record_offset("middle") + 22, b"\xffqqqq")
    alarms = restart_twice(disk, [3, 5, 6, 7, 8])
    assert any("FF71717171" in text for text in alarms)


def test_a_message_without_a_guid_is_skipped() -> None:
    disk = build_disk()
    overwrite(disk, "journal", record_offset("middle") + 36, bytes(16))
    assert any("no GUID" in text for text in restart_twice(disk, [3, 5, 6, 7, 8]))


@pytest.mark.parametrize("offset, data", [(12, bytes(8)), (0, b"\x10\x03")])
def test_a_wrong_time_or_reference_count_does_not_affect_deliveries(offset: int, data: bytes) -> None:
    disk = build_disk()
    overwrite(disk, "journal", record_offset("middle") + offset, data)
    restart_twice(disk, ALL, silent=True)


@pytest.mark.parametrize("where, offset, data", [
    ("journal", 52, b"\xff\xff"), ("journal", 32, b"\x7f"), ("journal", 32, bytes(4)), ("data", 12, b"?"),
    ("data", 0, bytes(12)), ("data", 3, b"\xff"), ("data", 6, b"\xff"), ("data", 55, b"?")])
def test_a_message_with_damaged_data_is_not_delivered(where: str, offset: int, data: bytes) -> None:
    disk = build_disk()
    message = stored(reread(disk))[1]
    overwrite(disk, where, (record_offset("middle") if where == "journal" else message.data_offset * 8) + offset, data)
    alarms = restart_twice(disk, [3, 5, 6, 7, 8])
    assert any("not delivered: " + message.guid.hex().upper() in text for text in alarms)
    assert len([path for path in disk.paths() if "/damaged." in path]) == 3


def test_checksums_that_include_the_padding_of_the_message_are_accepted() -> None:
    """Some clients compute them so, and BlazingMQ stores them as received: the messages in its files are delivered."""
    disk = build_disk()
    for number in ALL:
        payload = b"x" * (40 + number)
        pad = 4 - len(payload) % 4
        overwrite(disk, "journal", record_offset("first") + 60 * (number - 1) + 52,
                  crc32c(payload + bytes([pad]) * pad).to_bytes(4, "big"))
    partition, recovered = start(disk, lease=None)
    assert not recovered.alarms and not recovered.to_repair and guids(recovered) == guids(reread(build_disk()))
    assert [partition.payloads.read(message) for message in stored(recovered)] == [b"x" * (40 + each) for each in ALL]
    partition.stop(WALL + 20)
    restart_twice(disk, ALL, silent=True)


def test_a_quarantined_message_may_be_posted_again() -> None:
    """The producer received no ACK, so the broker must accept the same GUID again."""
    disk = build_disk()
    queue = reread(disk).queues[KEY]
    message = list(queue.messages.values())[1]
    overwrite(disk, "data", message.data_offset * 8 + 12, b"?")
    assert set(reread(disk).queues[KEY].history) == set(queue.history) - {message.guid}
    assert message.guid in set(queue.history)


def test_a_wrong_padding_byte_is_detected() -> None:
    disk = build_disk()
    message = stored(reread(disk))[1]
    end = message.data_offset * 8 + 12 + message.size
    for pad in (0, 9, 7):
        broken = build_disk()
        overwrite(broken, "data", (end & ~7) + 7, bytes([pad]))
        restart_twice(broken, [3, 5, 6, 7, 8])


def test_damage_to_a_deleted_message_is_ignored() -> None:
    disk = build_disk()
    overwrite(disk, "data", 40, bytes(20))
    restart_twice(disk, ALL, silent=True)


@pytest.mark.parametrize("short, lost", [(8, [8]), (200, [5, 6, 7, 8])])
def test_a_truncated_data_file_loses_only_the_missing_messages(short: int, lost: list[int]) -> None:
    disk = build_disk()
    truncate(disk, "data", len(disk.content(path_of(disk, "data"))) - short)
    alarms = restart_twice(disk, [number for number in ALL if number not in lost])
    assert any("the sync point" in text for text in alarms)


@pytest.mark.parametrize("offset, data", [(20, b"X"), (32, b"X"), (4, bytes(4)), (0, b"\xff\xff"), (50, b"\xff\xff")])
def test_the_ledger_takes_precedence_over_a_different_qlist(offset: int, data: bytes) -> None:
    disk = build_disk()
    overwrite(disk, "qlist", 36 + offset, data)
    restart_twice(disk, ALL)


def test_a_queue_without_a_known_name_loses_its_messages_with_an_alarm() -> None:
    disk = build_disk()
    overwrite(disk, "qlist", 36, bytes(20))
    recovered = reread(disk)
    assert recovered.queues == {} and recovered.damaged
    assert any(KEY.hex().upper() in found.text for found in recovered.alarms)


def test_a_message_with_a_damaged_magic_after_the_last_sync_point_is_dropped() -> None:
    disk = MemoryDisk()
    partition, _ = start(disk)
    partition.queues.create(KEY, URI, DEFAULT, WALL)
    for number in (1, 2):
        partition.append_message(KEY, make_message(number, b"x" * (40 + number)), WALL)
    partition.flush(WALL)
    disk.kill()
    overwrite(disk, "journal", 44 + 3 * 60 + 56, b"?")
    alarms = restart_twice(disk, [1])
    assert any("belong to no record" in text for text in alarms)


def test_an_unwritten_data_page_loses_only_its_message() -> None:
    disk = build_disk(stop=False)
    message = stored(reread(disk))[-1]
    overwrite(disk, "data", message.data_offset * 8, bytes(64))
    restart_twice(disk, [3, 4, 5, 6, 7])


def test_a_stale_record_after_the_end_is_ignored_and_overwritten_with_zeros() -> None:
    disk = build_disk(stop=False)
    path = path_of(disk, "journal")
    stale = disk.content(path)[record_offset("middle"):record_offset("middle") + 60]
    overwrite(disk, "journal", record_offset("end") + 60, stale)
    restart_twice(disk, ALL)
    assert disk.content(path_of(disk, "journal")).count(stale[36:52]) == 1


def test_a_last_message_with_a_damaged_lease_loses_only_that_message() -> None:
    disk = MemoryDisk()
    partition, _ = start(disk)
    partition.queues.create(KEY, URI, DEFAULT, WALL)
    for number in (1, 2):
        partition.append_message(KEY, make_message(number, b"x" * (40 + number)), WALL)
    partition.flush(WALL)
    disk.kill()
    overwrite(disk, "journal", 44 + 3 * 60 + 8, bytes(4))
    restart_twice(disk, [1])


@pytest.mark.spec("storage", 12)
def test_a_flip_of_any_bit_of_the_journal_is_survived() -> None:
    disk = build_disk()
    path = path_of(disk, "journal")
    content = disk.content(path)
    for offset in range(len(content)):
        damaged = bytearray(content)
        damaged[offset] ^= 1 << offset % 8
        disk.put(path, bytes(damaged))
        recovered = recover(open_files(disk), {KEY: LedgerQueue()}, partition_id=0)
        found = message_numbers(recovered)
        if not recovered.alarms:  # fields without a checksum: GUIDs, times, reference counts, reserved bytes
            slot, place = divmod(offset - 44, 60)
            assert len(found) == 6 or 36 <= place < 52 or SLOT["deletion"] <= slot, offset
        else:
            assert len(set(found) & set(ALL)) >= 5, (offset, recovered.alarms)


@pytest.mark.spec("storage", 12)
def test_a_wrong_value_of_any_byte_of_data_or_qlist_is_survived() -> None:
    for kind in ("data", "qlist"):
        disk = build_disk()
        path = path_of(disk, kind)
        content = disk.content(path)
        payloads = {message.guid: message for message in stored(reread(disk))}
        for offset in range(len(content)):
            damaged = bytearray(content)
            damaged[offset] ^= 0x41
            disk.put(path, bytes(damaged))
            files = open_files(disk)
            recovered = recover(files, {KEY: LedgerQueue()}, partition_id=0)
            partition = Partition(1, files, recovered)
            for message in recovered.queues[KEY].messages.values():
                assert partition.payloads.read(message) == b"x" * payloads[message.guid].size
            assert len(guids(recovered)) >= 5
            assert kind == "data" or len(guids(recovered)) == 6


@pytest.mark.parametrize("path", journals(archives=False), ids=name_of)
def test_a_recorded_journal_truncated_anywhere_recovers_a_prefix(path) -> None:  # type: ignore[no-untyped-def]
    disk, pid = disk_with(path), int(path.name[4])
    journal = next(p for p in disk.paths() if p.endswith("journal"))
    content = disk.content(journal)
    end = entries(content)[-1][0] + 60
    states = {}
    for count in range((end - 44) // 60 + 1):
        disk.put(journal, content[:44 + 60 * count])
        states[count] = state(recover(open_files(disk, pid)))
    for size in range(max(44, end - 200), end):
        disk.put(journal, content[:size])
        assert state(recover(open_files(disk, pid))) == states[(size - 44) // 60]


def test_data_damaged_at_run_time_is_not_delivered() -> None:
    disk = build_disk()
    partition, recovered = start(disk, lease=2)
    message = next(iter(recovered.queues[KEY].messages.values()))
    change_in_place(disk, "data", message.data_offset * 8 + 20)
    found = list[Repair]()
    partition.payloads.on_damaged = found.append
    for _ in range(2):
        with pytest.raises(PayloadDamaged):
            partition.payloads.read(message)
    assert [each.message for each in found] == [message], "one repair"
    assert "bmq_data" in found[0].where and str(message.data_offset * 8) in found[0].where


def change_in_place(disk: MemoryDisk, kind: str, offset: int) -> None:
    """Flip bits below an open file."""
    disk.flip(path_of(disk, kind), offset, 0x41)


def test_a_damaged_file_set_is_not_changed_without_space_for_a_copy() -> None:
    disk = build_disk()
    overwrite(disk, "journal", record_offset("middle") + 56, b"?")
    before = {path: disk.content(path) for path in disk.paths()}
    disk.capacity = sum(map(len, before.values())) + 1000
    files = open_files(disk)
    partition = Partition(1, files, recover(files))
    with pytest.raises(PartitionUnavailable):
        partition.activate(2, WALL)
    assert {path: disk.content(path) for path in disk.paths()} == before
    assert [kind.category for kind, _ in partition.take_alarms()] == ["RECOVERY", "ROLLOVER"]
    disk.capacity = None
    partition.activate(2, WALL + 60)
    partition.stop(WALL + 61)
    assert message_numbers(reread(disk)) == [3, 5, 6, 7, 8]


def test_a_file_set_above_the_configured_sizes_is_recovered() -> None:
    disk = build_disk()
    tiny = SMALL.__class__(1184, 300, 400)
    partition, recovered = start(disk, sizes=tiny, lease=2)
    assert message_numbers(recovered) == ALL
    with pytest.raises(PartitionUnavailable):
        partition.append_message(KEY, make_message(9, b"x" * 200), WALL)


@pytest.mark.parametrize("damage, alarm", [
    (lambda data: data.replace(b"__default", b"__dufault").replace(DEFAULT[0][1], b"1\0\0\0\0"), "the ledger is used"),
    (lambda data: data.replace(DEFAULT[0][1], bytes(5)), "an app without a key")])
def test_the_default_app_of_a_queue_is_restored_with_its_key(damage: Callable[[bytes], bytes], alarm: str) -> None:
    """A wrong key made its messages wait for an app without consumers; a key of zeros stands for the whole queue, which was
    then deleted instead of the app."""
    disk = build_disk()
    path = path_of(disk, "qlist")
    disk.put(path, damage(disk.content(path)))
    assert any(alarm in text for text in restart_twice(disk, ALL))
    assert {app.app_id: app.key for app in recover(open_files(disk), {KEY: LedgerQueue()}).queues[KEY].apps.values()} == {
        name: key for name, key in DEFAULT}
