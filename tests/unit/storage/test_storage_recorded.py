"""Files of the original broker: recovery restores their state, and the same operations write the same bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from construct import Container
from kit.storage_kit import (
    DATA_RECORD,
    KINDS,
    RECORDED,
    SMALL,
    TINY,
    disk_with,
    entries,
    guids,
    journals,
    name_of,
    open_files,
    parse_record,
    path_of,
    reread,
    state,
    stored,
)

from bmqtwist.steps import at_once
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.partition import Message, Partition
from bmqtwist.storage.records import parse_queue_record
from bmqtwist.storage.recovery import recover
from bmqtwist.storage.store import FileSizes


@pytest.mark.spec("storage", 15)
@pytest.mark.parametrize("path", journals(), ids=name_of)
def test_a_recorded_file_set_recovers_without_alarms_up_to_its_end(path: Path) -> None:
    pid = int(path.name[4])
    disk = disk_with(path)
    files = open_files(disk, pid)
    recovered = recover(files, partition_id=pid)
    assert (recovered.alarms, recovered.damaged, files.reports.take_alarms()) == ([], False, [])
    ends = recovered.journal_end, recovered.data_end, recovered.qlist_end
    for kind, end in zip(KINDS, ends, strict=True):
        content = path.with_suffix(f".bmq_{kind}").read_bytes()
        assert not any(content[end:])
        assert "crash" in str(path) or "live" in str(path) or len(content) == end


def purged_guids(path: Path) -> set[str]:
    """Return the GUIDs removed by purges of whole queues, read without the code under test."""
    gone, stored = set(), {}
    for offset, head, _, _, _ in entries(path.read_bytes()):
        record = parse_record(path.read_bytes()[offset:offset + 60])
        if head >> 60 == 1:
            stored.setdefault(record.queue_key, []).append(record.guid.hex().upper())
        elif head >> 60 == 4 and record.op == 1 and record.app_key == bytes(5):
            gone |= set(stored.pop(record.queue_key, []))
    return gone


@pytest.mark.parametrize("path", [p for p in journals(archives=False) if "golden" not in str(p)
                                  and (p.parent / f"p{p.name[4]}.outstanding.human.txt").exists()], ids=name_of)
def test_outstanding_messages_equal_the_output_of_the_original_tool(path: Path) -> None:
    text = (path.parent / f"p{path.name[4]}.outstanding.human.txt").read_text()
    printed = re.findall(r"^([0-9A-F]{32})$", text, re.M)
    found = guids(recover(open_files(disk_with(path), int(path.name[4]))))
    assert len(printed) == len(set(printed))
    assert set(found) == set(printed) - purged_guids(path)
    assert len(found) == len(set(found))


def pending_apps(case: str) -> dict[str, tuple[list[str], list[list[str]]]]:
    path = next(RECORDED.joinpath(case).glob("bmq_0*.bmq_journal"))
    found = state(recover(open_files(disk_with(path))))
    return {uri: (apps, [waiting for _, waiting in messages]) for uri, (apps, messages) in found.items()}


def test_recovery_restores_the_unconfirmed_messages_of_each_app() -> None:
    assert pending_apps("fanout-partial/n1") == {
        "bmq://d.fan/f": (["foo", "bar", "baz"], [["baz"]] * 2 + [["bar", "baz"]] * 3)}
    assert pending_apps("app-added-removed/n1") == {"bmq://d.fan/f": (["b", "c"], [["b"]] + [["b", "c"]] * 3)}
    assert pending_apps("auto-confirm/n1") == {"bmq://d.sub/s": (["foo", "bar"], [["bar"], ["foo"]])}
    assert pending_apps("poison/n1") == {"bmq://d.poi/x": (["__default"], [["__default"]]),
                                         "bmq://d.poif/y": (["foo", "bar"], [["bar"]])}
    assert pending_apps("purge/n1") == {"bmq://d.fan/f": (["foo", "bar", "baz"], [["baz"]] * 3 + [["bar", "baz"]]),
                                        "bmq://d.prio/a": (["__default"], []),
                                        "bmq://d.prio/b": (["__default"], [["__default"]])}
    assert pending_apps("rollover/n1") == {"bmq://d.prio/r": (["__default"], [["__default"]] * 2),
                                           "bmq://d.fan/f": (["a", "b"], [["b"], ["a", "b"], ["a", "b"]])}
    assert pending_apps("in-memory/n1") == {"bmq://d.mem/m": (["__default"], []), "bmq://d.bc/b": (["__default"], [])}


def test_recovered_payloads_and_properties_are_as_stored() -> None:
    path = next(RECORDED.joinpath("payload-60k/n1").glob("*.bmq_journal"))
    files = open_files(disk_with(path))
    recovered = recover(files)
    partition = Partition(1, files, recovered)
    big, small = stored(recovered)
    assert (big.size, len(partition.payloads.read(big)), len(partition.payloads.read(small))) == (61440, 61440, 5)
    path = next(RECORDED.joinpath("props-zlib/n1").glob("*.bmq_journal"))
    recovered = recover(open_files(disk_with(path)))
    messages = stored(recovered)
    assert {message.schema_id for message in messages} >= {0, 2, 3}
    assert {message.compression for message in messages} == {0, 1}
    assert any(message.has_properties for message in messages)


# ---- the same operations give the same bytes -------------------------------------------------------------------------

class JournalReplay:
    """Repeats the operations of recorded journals with a Partition."""

    def __init__(self, paths: list[Path], sizes: FileSizes) -> None:
        first = paths[0].read_bytes()
        self.disk = MemoryDisk()
        self.partition = Partition(parse_record(first[44:104]).node,
                                   open_files(self.disk, int(paths[0].name[4]), sizes), durability="none")
        self.messages: dict[bytes, Message] = {}
        self.uris: dict[bytes, str] = {}
        for number, path in enumerate(paths):
            self.replay(path, last=number == len(paths) - 1)

    def replay(self, path: Path, last: bool) -> None:
        journal, self.data = path.read_bytes(), path.with_suffix(".bmq_data").read_bytes()
        self.qlist = path.with_suffix(".bmq_qlist").read_bytes()
        accepted = entries(journal)
        mark = int.from_bytes(journal[36:44], "big") * 4
        for entry in accepted:
            offset, head, lease, wall, _ = entry
            psn = lease, head & (1 << 48) - 1
            if (self.partition.lease, self.partition.sequence) >= psn or mark and offset <= mark + 60:
                continue  # appended by the rollover
            record = parse_record(journal[offset:offset + 60])
            if last and entry is accepted[-1]:
                self.partition.stop(wall)
            else:
                self.step(record, lease, wall)

    def step(self, record: Container, lease: int, wall: int) -> None:
        partition, kind, flags = self.partition, record.type, record.flags
        if kind == 1:
            stored = DATA_RECORD.parse(self.data[record.data_dwords * 8:])
            message = Message(record.guid, stored.data, stored.options, bool(stored.header.flags & 1),
                              record.compression, stored.header.schema_wire_id, record.crc)
            message.ref_count = flags
            self.messages[record.guid] = message
            partition.append_message(record.queue_key, message, wall)
        elif kind == 2 and flags == 2:
            partition.append_auto_confirm(record.queue_key, record.app_key, record.guid, wall)
        elif kind == 2:
            partition.append_confirm(record.queue_key, record.app_key, self.messages[record.guid], flags, wall)
        elif kind == 3:
            partition.append_deletion(record.queue_key, self.messages.pop(record.guid), flags, wall)
        elif kind == 5 and lease > partition.lease:
            partition.activate(lease, wall)
        elif kind == 5 and record.sync_point_type == 1:
            partition.write_sync_point(wall, force=True)
        elif kind == 5:
            partition.flush(wall)
            return  # the next append detects that the journal is full
        else:
            self.queue_op(record, wall)
        partition.flush(wall)

    def queue_op(self, record: Container, wall: int) -> None:
        partition, key, app = self.partition, record.queue_key, record.app_key if any(record.app_key) else None
        if record.op in (2, 4):
            uri, _, apps, _ = parse_queue_record(self.qlist, record.qlist_words * 4)
            (partition.queues.create if record.op == 2 else partition.queues.add_apps)(key, uri, apps, wall)
        elif record.op == 3:
            if app is None:
                partition.queues.delete(key, wall)
            else:
                at_once(partition.queues.delete_app(key, app, wall))
        else:
            start = next((m for m in self.messages.values() if (m.lease, m.sequence) == (record.start_lease,
                                                                                         record.start_sequence)), None)
            at_once(partition.queues.purge(key, app, start, wall))


ONE_SET = ["props-zlib/n1", "fanout-partial/n1", "purge/n1", "ttl/n1", "poison/n1", "app-added-removed/n1",
           "queue-gc-recreated/n1", "payload-60k/n1", "in-memory/n1", "auto-confirm/n1", "no-quorum-deletion/n1",
           "crash-single/n1-after-restart", "three-nodes/n1"]


@pytest.mark.spec("storage", 8)
@pytest.mark.parametrize("path", [p for case in ONE_SET for p in sorted(RECORDED.joinpath(case).glob("*.bmq_journal"))],
                         ids=name_of)
def test_replayed_operations_write_the_same_files(path: Path) -> None:
    replay = JournalReplay([path], SMALL)
    for kind in KINDS:
        assert replay.disk.content(path_of(replay.disk, kind)) == path.with_suffix(f".bmq_{kind}").read_bytes(), kind
    assert replay.partition.take_alarms() == []


def test_replayed_rollovers_happen_at_the_same_records_and_write_the_same_files() -> None:
    case = RECORDED / "rollover/n1"
    paths = [*sorted((case / "archive").glob("*.bmq_journal")), *case.glob("*.bmq_journal")]
    replay = JournalReplay(paths, TINY)
    assert replay.partition.take_alarms() == []
    for kind in KINDS:
        replayed = sorted(path for path in replay.disk.paths() if path.startswith("/a/") and path.endswith(kind))
        replayed.append(path_of(replay.disk, kind))
        assert len(replayed) == 3
        for mine, theirs in zip(replayed, paths, strict=True):
            assert sections(replay.disk.content(mine), kind) == sections(
                theirs.with_suffix(f".bmq_{kind}").read_bytes(), kind), mine


def sections(content: bytes, kind: str) -> list[bytes]:
    """Split into records, for a readable difference. A copied sync point has the timestamp of the writer."""
    if kind != "journal":
        return [content]
    return [content[:44]] + [content[offset:offset + 60] for offset in range(44, len(content), 60)]


def test_a_recorded_crash_image_can_be_continued() -> None:
    path = next(RECORDED.joinpath("crash-single/n1").glob("*.bmq_journal"))
    after = next(RECORDED.joinpath("crash-single/n1-after-restart").glob("*.bmq_journal"))
    disk = disk_with(path)
    files = open_files(disk)
    partition = Partition(1, files, recover(files))
    partition.activate(2, entries(after.read_bytes())[-2][3])
    partition.stop(entries(after.read_bytes())[-1][3])
    for kind in KINDS:
        assert disk.content(path_of(disk, kind)) == after.with_suffix(f".bmq_{kind}").read_bytes(), kind


def test_a_queue_missing_in_the_ledger_is_restored_with_the_names_of_qlist() -> None:
    path = next(RECORDED.joinpath("fanout-partial/n1").glob("*.bmq_journal"))
    recovered = reread(disk_with(path), known={})
    queue = next(iter(recovered.queues.values()))
    assert (queue.uri, recovered.unlisted) == ("bmq://d.fan/f", {queue.key})
    assert [app.app_id for app in queue.apps.values()] == ["foo", "bar", "baz"]
    assert len(queue.history) == 6
