"""Replica built from the files of its primary: its state equals the primary's after any operations, also if it began with
an image, or if its log was cut and continued by another node.

Tests `bmqtwist/storage/replica.py` and `bmqtwist/storage/image.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.partition_work import KEYS, work
from kit.storage_kit import WALL, open_files

from bmqtwist.steps import at_once
from bmqtwist.storage import exchange, long_dict
from bmqtwist.storage import image as image_module
from bmqtwist.storage import replica as replica_module
from bmqtwist.storage.found_log import RecoveryClock, find_log
from bmqtwist.storage.image import ImageFiles, ImageSource
from bmqtwist.storage.memory import MemoryDisk, ProcessKilled
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.storage.psn import NO_PSN, common_prefix
from bmqtwist.storage.records import DATA_HEADER, RECORD_BYTES, SyncPoint
from bmqtwist.storage.replica import ReplicatedPartition
from bmqtwist.storage.state import PartitionState
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES, FileSizes

SIZES = FileSizes(6000, 1 << 14, 1 << 12)
OPERATION = st.tuples(
    st.sampled_from(["put", "put", "put", "put", "half put", "confirm", "confirm", "delete", "purge", "purge app",
                     "remove app", "add app", "drop queue", "flush", "flush", "flush", "tick", "roll", "kill", "power",
                     "other leads", "other leads", "strand", "feed", "feed", "feed", "sync"]), st.integers(0, 1 << 16))


class Machine:
    """One node with its disk and its partition."""

    def __init__(self, number: int) -> None:
        self.number, self.disk = number, MemoryDisk()
        self.boot()

    def boot(self) -> None:
        """Restart from the files."""
        self.files = open_files(self.disk, sizes=SIZES)
        self.partition = self.made(find_log(self.files, None, RecoveryClock(), 0, WALL))

    def made(self, found: Any) -> ReplicatedPartition:
        assert not found.set_damaged, found.recovered.alarms
        return ReplicatedPartition(self.number, self.files, found, "group", wall=WALL)

    def sync(self) -> None:
        """Complete a sync."""
        self.partition.flush(WALL)
        token = self.partition.begin_sync()
        if token is not None:
            self.partition.sync()
            self.partition.on_synced(token, WALL)

    def cut(self, psn: Any) -> None:
        """Cut the log after a record."""
        where = self.partition.journal_end_at(psn)
        self.partition.abandon(WALL)
        self.partition = self.made(find_log(self.files, None, RecoveryClock(), 0, WALL, where))

    def end(self, power: Random | None) -> None:
        """Kill the node, or simulate a loss of power."""
        before = self.partition.durable_psn
        self.files.close(truncate=False)
        if power is not None:
            self.disk.crash(power)
        else:
            self.disk.kill()
        last = self.partition.written_psn
        self.boot()
        assert self.partition.summary.last >= before, "a durable record is lost"
        assert power is not None or self.partition.summary.last == last


class Pair:
    """Two nodes, primary and replica."""

    def __init__(self) -> None:
        self.machines = [Machine(1), Machine(2)]
        self.lease = self.number = self.images = self.cuts = 0
        self.lead(0)

    def lead(self, index: int) -> None:
        """Make the other node primary under a new lease, with the same log."""
        self.primary, self.replica = self.machines[index], self.machines[1 - index]
        if self.primary.partition.is_primary:
            self.primary.partition.become_replica()
        if self.replica.partition.is_primary and not self.replica.partition.become_replica():
            self.replica.cut(None)
        self.lease += 1
        self.primary.partition.activate(self.lease, WALL)
        self.primary.partition.flush(WALL)

    def feed(self) -> None:
        """Send all written records to the replica."""
        source = self.primary.partition
        source.flush(WALL)
        source.collect_runs()
        last = self.replica.partition.summary.last
        common = last if source.can_send_after(last) else common_prefix(self.replica.partition.summary, source.summary)
        if common is None:
            self.image()
            common = self.replica.partition.summary.last
        elif self.replica.partition.summary.last > common:
            self.cuts += 1
            self.replica.cut(common)
        while common != source.written_psn:
            if not source.can_send_after(common):  # older records are neither in memory nor in the compacted files
                self.image()
                common = self.replica.partition.summary.last
                continue
            run = source.recent_run(common) or source.read_run(common)
            assert run is not None and run.previous == common
            self.replica.partition.append_run(run, self.replica.partition.summary.last, WALL)
            common = run.last
        self.replica.partition.flush(WALL)

    def image(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Send an image, with operations of the primary between its parts."""
        self.images += 1
        compacted = self.replica.partition.summary.base
        image, target = ImageSource(self.primary.partition, compacted), ImageFiles(self.replica.partition, WALL)
        final = False
        while not final:
            run, final = image.next_part()
            target.write_part(run)
            meanwhile()
        target.complete(image.at, WALL)()
        self.replica.partition.abandon(WALL)
        self.replica.partition = self.replica.made(find_log(self.replica.files, None, RecoveryClock(), 0, WALL))
        assert self.replica.partition.summary.base == image.at > compacted

    def work(self, name: str, value: int) -> None:
        """Run one operation at the primary."""
        self.number += 1
        work(self.primary.partition, name, value, self.number)

    def run(self, name: str, value: int) -> None:
        """Run one step of a schedule."""
        machine = self.machines[value % 2]
        try:
            if name == "flush":
                self.primary.partition.flush(WALL)
                if value % 3:
                    self.primary.partition.collect_runs()
            elif name == "sync":
                machine.sync()
            elif name == "tick":
                self.primary.partition.write_sync_point(WALL)
            elif name == "roll":
                if value % 2:
                    self.primary.partition.rollover(WALL)
                else:
                    self.replica.partition.roll.finish_at_once(WALL)
            elif name in ("kill", "power"):
                led = machine.partition.is_primary
                machine.end(Random(value) if name == "power" else None)
                if led:
                    self.lead(value // 2 % 2)
            elif name == "other leads":
                self.feed()
                self.lead(self.machines.index(self.replica))
            elif name == "strand":  # records since the last feed are lost: the other node leads
                self.primary.partition.flush(WALL)
                self.lead(self.machines.index(self.replica))
            elif name == "feed":
                self.feed()
            else:
                self.work(name, value)
        except PartitionUnavailable:
            pass


def comparable_state(state: PartitionState) -> Any:
    """Return all comparable parts of a state; live keys and file offsets may differ."""
    def live(item: Any) -> Any:
        if isinstance(item, tuple):
            return item[0][:36], item[0][40:], item[1]
        return message(item) if isinstance(item, Message) else item

    def message(item: Message) -> Any:
        return (item.guid, item.pending, item.size, item.options, item.crc, item.lease, item.sequence, item.wall,
                item.ref_count, item.queue_key)

    queues = {key: (queue.uri, [(app.app_id, app.key, app.bit) for app in queue.apps.values()], queue.mask,
                    queue.app_count, [message(each) for each in queue.messages.values()])
              for key, queue in state.queues.items()}
    return (state.lease, state.sequence, queues, [live(item) for item in state.live.values()],
            state.data_bytes, state.qlist_bytes)


def assert_equal(pair: Pair) -> None:
    """Check that both have the same state and all payloads."""
    primary = pair.primary.partition
    if not primary.available:  # full, with pending records: a purge of whole queues makes room
        for key in list(primary.state.queues):
            at_once(primary.queues.purge(key, None, None, WALL))
        primary.rollover(WALL)
        primary.flush(WALL)
        primary.flush(WALL)
    pair.feed()
    one, other = (machine.partition for machine in pair.machines)
    assert one.summary.last == other.summary.last
    assert comparable_state(one.state) == comparable_state(other.state)
    for key, queue in one.state.queues.items():
        for guid, message in queue.messages.items():
            assert one.payloads.read(message) == other.payloads.read(other.state.queues[key].messages[guid])


def run_operations(operations: list[tuple[str, int]]) -> Pair:
    """Run all steps, then let the replica catch up."""
    pair = Pair()
    for name, value in operations:
        pair.run(name, value)
    assert_equal(pair)
    for machine in pair.machines:
        if not machine.partition.is_primary:
            machine.end(None)
    assert_equal(pair)
    return pair


@settings(max_examples=200, deadline=None)
@given(st.lists(OPERATION, max_size=90), st.sampled_from([200, 2000, 1 << 20]), st.sampled_from([1, 3, 128]))
def test_a_replica_equals_its_primary(operations: list[tuple[str, int]], run_bytes: int, records: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("RUN_BYTES", run_bytes), ("READ_BYTES", run_bytes), ("MESSAGE_RECORDS_MAX", records)):
            patch.setattr(replica_module, name, value)
        patch.setattr(exchange, "READ_BYTES", run_bytes)
        run_operations(operations)


def test_an_image_has_the_state_at_its_first_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The primary stores and deletes messages before the last part."""
    monkeypatch.setattr(image_module, "MESSAGE_RECORDS_MAX", 2)
    monkeypatch.setattr(long_dict, "PART_MAX", 5)
    random, pair = Random(3), Pair()
    for _ in range(60):
        pair.run("put", random.randrange(1 << 16))
    pair.primary.partition.flush(WALL)
    before, parts = comparable_state(pair.primary.partition.state), 0

    def meanwhile() -> None:
        nonlocal parts
        parts += 1
        for name in ("put", "delete", "delete"):
            pair.run(name, random.randrange(1 << 16))

    pair.image(meanwhile)
    assert parts > 10 and comparable_state(pair.primary.partition.state) != before
    assert comparable_state(pair.replica.partition.state) == before
    assert_equal(pair)


def test_a_large_batch_is_sent_in_messages_of_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "MESSAGE_RECORDS_MAX", 8)
    pair, records = Pair(), []
    pair.feed()
    source, after = pair.primary.partition, pair.primary.partition.written_psn
    for number in range(30):
        pair.run("put", number)
    source.flush(WALL)
    source.collect_runs()
    while after != source.written_psn:
        run = source.recent_run(after)
        assert run is not None and run.previous == after and run.leases() == (run.last,)
        records.append(len(run.journal) // RECORD_BYTES)
        after = run.last
    assert len(records) > 3 and set(records[:-1]) == {8}


def test_the_random_operations_include_images_and_truncations() -> None:
    """Checks that the property test covers both cases."""
    random = Random(1)
    names = ["put", "put", "put", "put", "confirm", "delete", "flush", "flush", "roll", "strand", "feed", "other leads"]
    pair = run_operations([(random.choice(names), random.randrange(1 << 16)) for _ in range(1500)])
    assert pair.images > 3 and pair.cuts > 3, (pair.images, pair.cuts)
    assert pair.primary.partition.summary.base > NO_PSN


def pair_with_missed_rollover(seed: int) -> Pair:
    """The primary has rolled over after the records that the replica lacks."""
    random, pair = Random(seed), Pair()
    for _ in range(30):
        pair.run(random.choice(["put", "put", "confirm"]), random.randrange(1 << 16))
    pair.feed()
    pair.replica.sync()
    for _ in range(30):
        pair.run(random.choice(["put", "put", "delete"]), random.randrange(1 << 16))
    pair.primary.partition.flush(WALL)
    pair.primary.partition.rollover(WALL)
    pair.primary.sync()
    return pair


def file_records(machine: Machine) -> list[bytes]:
    """Return the records of JOURNAL, DATA and QLIST, without file headers."""
    files = machine.partition.files
    return [read(JOURNAL_HEADER_BYTES, end - JOURNAL_HEADER_BYTES) for read, end in (
        (files.read_journal, files.current.journal.end), (files.read_data, files.current.data.end),
        (files.read_qlist, files.current.qlist.end))]


def test_a_replica_rolls_over_at_the_record_of_its_primary() -> None:
    """The replica receives only records; its files are equal afterwards."""
    random, pair = Random(5), Pair()
    for _ in range(40):
        pair.run(random.choice(["put", "put", "confirm", "delete", "feed"]), random.randrange(1 << 16))
    pair.feed()
    pair.primary.partition.rollover(WALL)
    pair.feed()
    for _ in range(10):
        pair.run(random.choice(["put", "put", "confirm", "delete"]), random.randrange(1 << 16))
    pair.feed()
    assert pair.replica.partition.summary == pair.primary.partition.summary and not pair.images
    assert pair.replica.partition.summary.base > NO_PSN
    assert file_records(pair.replica) == file_records(pair.primary)


def test_a_replica_that_missed_a_rollover_receives_the_files_of_its_primary() -> None:
    pair = pair_with_missed_rollover(1)
    pair.run("put", 3)
    pair.image()
    pair.feed()
    assert file_records(pair.replica) == file_records(pair.primary)


def test_a_replica_refuses_to_start_a_rollover() -> None:
    with pytest.raises(PartitionUnavailable, match="Rollover rejected: node is not primary for this partition"):
        Pair().replica.partition.rollover(WALL)


@pytest.mark.spec("cluster", 78)
@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_step_of_an_image_leaves_the_old_or_the_new_log(power: bool) -> None:
    steps, old, new = 0, 0, 0
    while True:
        pair = pair_with_missed_rollover(1)
        replica, before = pair.replica, pair.replica.partition.summary
        replica.disk.stop_after = replica.disk.steps + steps
        try:
            pair.image()
        except ProcessKilled:
            pass
        else:
            break
        if power:
            replica.disk.crash(Random(steps))
        else:
            replica.disk.kill()
        replica.boot()
        found = replica.partition.summary
        assert found == before or found.last == pair.primary.partition.summary.base, (steps, found, before)
        old, new = old + (found == before), new + (found != before)
        assert_equal(pair)
        steps += 1
    assert old > 5 and new > 2, (old, new)


@pytest.mark.spec("cluster", 74)
@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_step_of_a_truncation_loses_no_earlier_record(power: bool) -> None:
    for steps in range(1000):
        pair = Pair()
        random = Random(2)
        for _ in range(30):
            pair.run(random.choice(["put", "put", "confirm"]), random.randrange(1 << 16))
        pair.feed()
        pair.primary.sync()
        common = pair.replica.partition.summary.last
        for _ in range(10):
            pair.run("put", random.randrange(1 << 16))
        pair.run("strand", 0)
        former = pair.replica
        former.disk.stop_after = former.disk.steps + steps
        try:
            former.cut(common)
            pair.feed()
        except ProcessKilled:
            pass
        else:
            assert steps > 5
            return
        if power:
            former.disk.crash(Random(steps))
        else:
            former.disk.kill()
        former.boot()
        assert former.partition.summary.contains(common), (steps, former.partition.summary)
        assert_equal(pair)
    raise AssertionError("it does not end")


def test_a_replica_syncs_records_that_it_appended_during_a_sync() -> None:
    pair = Pair()
    replica = pair.replica.partition
    pair.feed()
    first = replica.begin_sync()
    assert first is not None
    pair.work("put", 0)
    pair.primary.partition.flush(WALL)
    run = pair.primary.partition.read_run(replica.summary.last)
    assert run is not None
    replica.append_run(run, replica.summary.last, WALL)
    replica.sync()
    replica.on_synced(first, WALL)
    assert replica.begin_sync() is None, "the files have no unsynced record"
    pair.replica.sync()
    assert replica.durable_psn == replica.written_psn == run.last


@pytest.mark.parametrize("points", [0, 1, 2])
def test_a_possibly_unsynced_log_ends_before_an_incomplete_message(points: int) -> None:
    """The message is deleted by a later record, but replicas need both. Records before two sync points are not checked."""
    pair = Pair()
    machine, partition = pair.machines[0], pair.primary.partition
    for name in ("put", "put"):  # the first PUT creates the queue
        pair.work(name, 0)
    partition.flush(WALL)
    complete = partition.summary.last
    place = partition.tail.positions()[1]
    pair.work("put", 0)
    deleted = partition.summary.last
    partition.append_deletion(KEYS[0], list(partition.state.queues[KEYS[0]].messages.values())[-1], 2, WALL)
    for _ in range(points):
        partition.log.append_sync_point(SyncPoint.REGULAR, WALL)
    partition.flush(WALL)
    last = partition.summary.last
    assert partition.read_run(complete) is not None
    machine.files.close(truncate=False)
    machine.disk.kill()
    path = next(path for path in machine.disk.paths() if path.endswith(".bmq_data"))
    machine.disk.flip(path, place + DATA_HEADER.size)
    machine.boot()
    assert machine.partition.summary.last == (last if points == 2 else (deleted[0], deleted[1] - 1))
    if points == 2:
        with pytest.raises(OSError, match="does not match its checksum"):
            machine.partition.read_run(complete)


def test_an_abandoned_partition_reports_only_written_records() -> None:
    partition = Pair().primary.partition
    written = partition.written_psn
    partition.log.append_sync_point(SyncPoint.REGULAR, WALL)
    assert partition.summary.last > written
    partition.abandon(WALL)
    assert partition.summary.last == partition.written_psn == written


def test_records_for_other_nodes_are_read_up_to_the_written_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preallocated rest would make the kernel create pages of zeros, megabytes at a time."""
    pair = Pair()
    partition, ends = pair.primary.partition, list[int]()
    for number in range(5):
        pair.work("put", number)
    partition.flush(WALL)
    read_data = partition.files.read_data

    def recording_read(offset: int, size: int) -> bytes:
        ends.append(offset + size)
        return read_data(offset, size)
    monkeypatch.setattr(partition.files, "read_data", recording_read)
    assert partition.read_run(NO_PSN) is not None
    run, final = ImageSource(partition).next_part()
    assert final and run.data and len(ends) >= 2
    assert max(ends) <= partition.files.current.data.end < SIZES.data
