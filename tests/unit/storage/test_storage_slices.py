"""Rollover in slices under traffic: copied records, and crashes and disk errors at every step."""

from __future__ import annotations

import errno
from collections import Counter
from functools import cache
from random import Random
from typing import Any

import pytest
from kit.storage_kit import FANOUT, WALL, Held, entries, make_message, open_files, path_of, reread, start, state

from bmqtwist.steps import at_once
from bmqtwist.storage import rollover
from bmqtwist.storage import state as stored_state
from bmqtwist.storage.compaction import LiveCopy
from bmqtwist.storage.fileset import FileSet
from bmqtwist.storage.memory import MemoryDisk, ProcessKilled
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition, PartitionUnavailable
from bmqtwist.storage.recovery import recover
from bmqtwist.storage.rollover import RolloverEvent, RolloverJob, RolloverPhase
from bmqtwist.storage.state import MessageSteps
from bmqtwist.storage.store import FileSizes

SIZES = FileSizes(1 << 15, 1 << 18, 1 << 13)  # 546 records
QUEUES_MAX = 12
DEFAULT = [("__default", b"0\0\0\0\0")]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that small partitions roll over in slices."""
    for name, value in (("SMALL_RECORDS", 20), ("SMALL_BYTES", 4000), ("SLICE_RECORDS", 9), ("SLICE_BYTES", 900),
                        ("UPDATED_RECORDS", 11), ("SYNC_BYTES", 6000)):
        monkeypatch.setattr(rollover, name, value)
    monkeypatch.setattr(stored_state, "MESSAGES_AT_ONCE", 2)


class Workload:
    """A partition under random traffic, with syncs and jobs that complete at random.

    states: what was stored after the last two batches. acked: messages whose effects were released and that were not
    deleted since.
    """

    def __init__(self, seed: int, durability: Any = "group", disk: MemoryDisk | None = None, live: int = 150) -> None:
        self.random = Random(seed)
        self.disk = disk or MemoryDisk()
        self.live = live  # target number of live messages
        self.slices = 4  # slices of a rollover in each turn
        self.partition: Partition = start(self.disk, SIZES, durability=durability)[0]
        self.number = 0
        self.messages: list[Message] = []
        self.acked: dict[bytes, Message] = {}
        self.states: list[Any] = [{}]
        self.job: RolloverJob | None = None
        self.token: int | None = None
        self.phases: Counter[RolloverPhase] = Counter()
        self._write, self.partition.log.write = self.partition.log.write, self.write  # type: ignore[method-assign]
        self.keys: list[bytes] = []
        self.steps: list[MessageSteps] = []  # of purges in progress
        self.faulty = False  # disk errors and refusals are allowed
        self.queue()
        self.turn()

    def queue(self) -> None:
        """Create a queue with one app or three."""
        self.number += 1
        key = b"%05d" % self.number
        apps = FANOUT if self.random.random() < 0.5 else DEFAULT
        self.partition.queues.create(key, f"bmq://d/{self.number}", apps, WALL)
        self.keys.append(key)

    def put(self, size: int | None = None) -> None:
        """Append a message, sometimes a large one, sometimes with an auto-confirm of an app."""
        self.number += 1
        key = self.random.choice(self.keys)
        stored = self.partition.state.queues[key]
        size = size if size is not None else self.random.choice((0, 10, 100, 100, 400, 3000))
        message = make_message(self.number, bytes([self.number % 256]) * size, len(stored.apps))
        if len(stored.apps) > 1 and self.random.random() < 0.2:
            self.partition.append_auto_confirm(key, next(iter(stored.apps)), message.guid, WALL)
        self.partition.append_message(key, message, WALL)
        self.messages.append(message)
        effect = Held(message.guid.hex())
        effect.message = message  # type: ignore[attr-defined]
        self.partition.hold_effect(effect)

    def delete(self) -> None:
        """Delete a message."""
        message = self.messages.pop(self.random.randrange(len(self.messages)))
        self.partition.append_deletion(message.queue_key, message, 0, WALL)
        self.acked.pop(message.guid, None)

    def confirm(self) -> None:
        """Confirm a message for one app."""
        message = self.random.choice(self.messages)
        apps = [app for app in self.partition.state.queues[message.queue_key].apps.values() if message.pending & app.bit]
        if len(apps) > 1:
            self.partition.append_confirm(message.queue_key, apps[0].key, message, 0, WALL)

    def purge(self) -> None:
        """Purge a queue."""
        key = self.random.choice(self.keys)
        self.steps.append(self.partition.queues.purge(key, None, None, WALL))
        self._drop_expected(key)

    def drop_queue(self) -> None:
        """Delete a queue."""
        if len(self.keys) > 1:
            key = self.keys.pop(self.random.randrange(len(self.keys)))
            self._drop_expected(key)
            self.partition.queues.delete(key, WALL)

    def _drop_expected(self, key: bytes) -> None:
        for message in [message for message in self.messages if message.queue_key == key]:
            self.acked.pop(message.guid, None)
        self.messages = [message for message in self.messages if message.queue_key != key]

    def traffic(self) -> None:
        """Run random operations."""
        for _ in range(self.random.randint(0, 6)):
            drawn = self.random.random()
            if drawn < 0.02 and len(self.keys) < QUEUES_MAX:
                self.queue()
            elif drawn < 0.03:
                self.drop_queue()
            elif drawn < 0.035:
                self.purge()
            elif drawn < 0.2 and self.messages:
                self.confirm()
            elif len(self.messages) > self.live and drawn < 0.7:
                self.delete()
            else:
                self.put()
            if drawn > 0.98:
                self.partition.write_sync_point(WALL)

    def write(self, awaited: bool = True) -> bool:
        """Write a batch, and note the state before and after it."""
        end = self.disk.stop_after
        if not self.faulty and (end is None or end - self.disk.steps < 200):  # only where a test compares states
            self.states = [self.states[-1], state(self.partition.state)]  # type: ignore[arg-type]
        return self._write(awaited)

    def turn(self) -> None:
        """Write, release effects, and continue the rollover."""
        partition = self.partition
        self.release(partition.flush(WALL))
        if self.token is None:
            self.token = partition.begin_sync()
        for _ in range(self.slices):
            more = partition.roll.step(WALL)
            self.job = partition.roll.take_job() or self.job
            if not more:
                break
        self.phases[partition.roll.phase] += 1
        self.steps = [each for each in self.steps if next(each, None) is not None]

    def release(self, effects: list[Any]) -> None:
        """Note the messages whose producers received ACKs."""
        for effect in effects:
            if effect.message in self.messages:  # neither deleted nor purged
                self.acked[effect.message.guid] = effect.message

    def perform(self, likely: float = 0.3) -> None:
        """Complete syncs and jobs at random."""
        if self.token is not None and self.random.random() < likely:
            token, self.token = self.token, None
            try:
                self.partition.sync()
            except OSError as error:
                self.partition.on_sync_failed(token, error)
            else:
                self.release(self.partition.on_synced(token, WALL))
        if self.job is not None and self.random.random() < likely:
            job, self.job = self.job, None
            try:
                job.run()
            except OSError as error:
                self.partition.roll.on_job_failed(job, error, WALL)
            else:
                self.partition.roll.on_job_done(job, WALL)

    def round(self) -> None:
        """Run one round of everything."""
        try:
            self.traffic()
        except PartitionUnavailable:
            assert self.faulty
        self.perform()
        self.phases[self.partition.roll.phase] += 1
        self.turn()

    def until(self, phase: RolloverPhase, rounds: int = 3000) -> None:
        """Run until the rollover has reached a phase."""
        for _ in range(rounds):
            if self.partition.roll.phase is phase:
                return
            self.traffic()
            self.perform()
            if self.partition.roll.phase is phase:
                return
            self.phases[self.partition.roll.phase] += 1
            self.turn()
        raise AssertionError(f"not {phase} within {rounds} rounds: {self.phases}")

    def check_payloads(self) -> None:
        """Check that the payload of every message can be read."""
        if self.partition.tail.unwritten_bytes:
            self.partition.log.write()
        for message in self.messages:
            message.payload, kept = None, message.payload
            assert self.partition.payloads.read(message) == message.guid[-1:] * message.size
            message.payload = kept


def payloads_by_guid(partition: Partition, recovered: Any) -> dict[bytes, bytes]:
    """Return GUID -> payload of all recovered messages; check each payload."""
    found = {message.guid: partition.payloads.read(message) for queue in recovered.queues.values()
             for message in queue.messages.values()}
    assert all(payload == guid[-1:] * len(payload) for guid, payload in found.items())
    return found


# -- the table


@pytest.mark.parametrize("event", RolloverEvent)
@pytest.mark.parametrize("phase", RolloverPhase)
def test_the_partition_continues_after_any_rollover_event_in_any_phase(phase: RolloverPhase, event: RolloverEvent) -> None:
    workload = Workload(3)
    workload.until(phase)
    partition, roll = workload.partition, workload.partition.roll
    if event is RolloverEvent.STEP:
        roll.step(WALL)
    elif event is RolloverEvent.DONE:
        job, workload.job = workload.job or RolloverJob(lambda: None), None
        job.run()
        roll.on_job_done(job, WALL)
    elif event is RolloverEvent.FAILED:
        roll.on_job_failed(workload.job or RolloverJob(lambda: None), OSError(errno.EIO, "EIO"), WALL)
    elif event is RolloverEvent.FINISH:
        assert partition.log.write() and roll.finish_at_once(WALL) and roll.phase is RolloverPhase.IDLE
    elif event is RolloverEvent.UNMIRRORED:
        roll._process(event, WALL)
        assert roll.phase is phase or not partition.files.has_next
    elif event is RolloverEvent.BEGIN:
        roll.begin(WALL)
        assert roll.phase is (RolloverPhase.CREATING if phase is RolloverPhase.IDLE else phase) and partition.log.roll_due
    else:
        roll.stop(WALL)
        assert roll.phase is RolloverPhase.IDLE and not partition.files.has_next
    for _ in range(60):
        workload.round()
    workload.check_payloads()
    expected = state(partition.state)  # type: ignore[arg-type]
    partition.stop(WALL)
    assert state(reread(workload.disk, SIZES)) == expected


def test_a_requested_rollover_runs_in_slices_only_for_a_large_partition(monkeypatch: Any) -> None:
    workload = Workload(3)
    base = workload.partition.files.current.base
    workload.partition.rollover(WALL)
    assert workload.partition.files.current.base != base and workload.partition.roll.phase is RolloverPhase.IDLE
    base = workload.partition.files.current.base
    monkeypatch.setattr("bmqtwist.storage.rollover.SMALL_RECORDS", 0)
    workload.partition.rollover(WALL)
    assert workload.partition.files.current.base == base and workload.partition.roll.phase is RolloverPhase.CREATING
    workload.partition.rollover(WALL)  # a second request during the rollover has no effect
    workload.until(RolloverPhase.IDLE)
    assert workload.partition.files.current.base != base
    workload.check_payloads()


# -- under traffic


@pytest.mark.parametrize("durability", ["group", "always", "none"])
@pytest.mark.parametrize("seed", range(8))
def test_state_and_payloads_are_unchanged_by_rollovers_in_slices(seed: int, durability: Any) -> None:
    workload = Workload(seed, durability)
    lines: list[str] = []
    workload.partition.files.reports.on_line = lambda text: lines.append(text) if "PURGE" not in text else None
    workload.slices = 16
    for _ in range(5):
        workload.until(RolloverPhase.RETIRING)
        assert "Partition [0]: ROLLOVER COMPLETE: " in lines[-1] and "Partition [0]: Initiating rollover: " in lines[-2]
        workload.check_payloads()
        workload.until(RolloverPhase.IDLE)
        workload.check_payloads()
    assert all("Initiating" in text for text in lines[::2]) and all("COMPLETE" in text for text in lines[1::2])
    assert len(lines[1::2]) >= 5, "a rollover may be complete at once"
    assert set(workload.phases) == set(RolloverPhase), "every phase occurred"
    workload.turn()
    expected, psn = state(workload.partition.state), (workload.partition.lease, workload.partition.sequence)  # type: ignore[arg-type]
    recovered = reread(workload.disk, SIZES)
    assert state(recovered) == expected and not recovered.alarms and (recovered.lease, recovered.sequence) == psn
    while workload.steps:
        at_once(workload.steps.pop())
    assert not workload.partition.state.purging
    assert len(recovered.state.live) == len(workload.partition.state.live)
    assert (recovered.state.data_bytes, recovered.state.qlist_bytes) == workload.partition.state.outstanding()[1:]
    workload.partition.stop(WALL)
    partition, recovered = start(workload.disk, SIZES, lease=None)
    assert state(recovered) == expected and len(payloads_by_guid(partition, recovered)) == len(workload.messages)
    assert not [text for category, text in workload.partition.take_alarms() if "failed" in text]


@pytest.mark.parametrize("seed", range(4))
def test_sequence_numbers_increase_before_the_mark_and_are_contiguous_after_it(seed: int) -> None:
    workload = Workload(seed)
    workload.until(RolloverPhase.RETIRING)
    for _ in range(30):
        workload.round()
    journal = workload.disk.content(path_of(workload.disk, "journal"))
    mark = int.from_bytes(journal[36:44], "big") * 4
    numbers = [(offset, (lease, head & (1 << 48) - 1)) for offset, head, lease, _, _ in entries(journal)]
    copied = [psn for offset, psn in numbers if offset <= mark]
    later = [psn for offset, psn in numbers if offset >= mark]
    assert copied == sorted(set(copied))
    assert later == [(later[0][0], number) for number in range(later[0][1], later[0][1] + len(later))]


def test_both_file_sets_hold_the_same_state_while_both_are_written() -> None:
    workload = Workload(5)
    workload.until(RolloverPhase.MARKING)
    for _ in range(10):
        workload.traffic()
        workload.turn()
    assert workload.partition.roll.phase is RolloverPhase.MARKING
    found = []
    for base in sorted({path.split(".")[1] for path in workload.disk.paths() if path.startswith("/l/")}):
        alone = MemoryDisk()
        for path in workload.disk.paths():
            if path.split(".")[1] == base:
                alone.put(path, workload.disk.content(path))
        recovered = reread(alone, SIZES)
        found.append((state(recovered), recovered.lease, recovered.sequence, recovered.alarms))
    assert len(found) == 2 and found[0] == found[1] and found[0][3] == []
    assert found[0][0] == state(workload.partition.state)  # type: ignore[arg-type]


def test_messages_acknowledged_during_marking_are_durable_in_both_file_sets() -> None:
    """The old set may be archived before the next sync of the new one."""
    workload = Workload(16)
    workload.until(RolloverPhase.MARKING)
    marking, workload.job = workload.job, None
    assert marking is not None
    marking.run()  # the mark is durable, but not reported yet
    workload.put(50)
    message = workload.messages[-1]
    while message.guid not in workload.acked:
        workload.turn()
        workload.perform(1.0)
    workload.partition.roll.on_job_done(marking, WALL)
    workload.turn()
    retiring, workload.job = workload.job, None
    assert retiring is not None and workload.partition.roll.phase is RolloverPhase.RETIRING
    retiring.run()
    workload.disk.crash()
    partition, recovered = start(workload.disk, SIZES, lease=None)
    assert not [guid for guid in workload.acked if guid not in payloads_by_guid(partition, recovered)]


def test_a_small_partition_rolls_over_in_one_step_when_a_record_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollover, "SMALL_BYTES", 1 << 20)
    monkeypatch.setattr(rollover, "SMALL_RECORDS", 400)
    workload = Workload(6, live=8)
    for _ in range(2000):
        workload.round()
    assert set(workload.phases) == {RolloverPhase.IDLE}
    assert [path for path in workload.disk.paths() if path.startswith("/a/")]


def test_a_rollover_that_would_free_too_little_does_not_start() -> None:
    workload = Workload(7, live=100_000)
    with pytest.raises(PartitionUnavailable):
        for _ in range(100_000):
            workload.put(10)
            if workload.number % 7 == 0:
                workload.turn()
    assert workload.partition.roll.phase is RolloverPhase.IDLE
    assert not [path for path in workload.disk.paths() if path.startswith("/a/")]


def test_a_slice_is_limited_in_records_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload(8)
    workload.until(RolloverPhase.CREATING)
    written: list[tuple[int, int]] = []
    append = FileSet.append

    def recording_step(files: FileSet, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        if workload.partition.files.has_next and files is workload.partition.files.next_set:
            written.append((len(journal), sum(map(len, data))))
        append(files, journal, data, qlist)

    monkeypatch.setattr(FileSet, "append", recording_step)
    workload.put(3000)
    workload.slices = 1
    for _ in range(400):
        workload.perform()
        before = len(written)
        workload.turn()
        if workload.partition.roll.phase is RolloverPhase.MARKING:
            break
        assert sum(records for records, _ in written[before:]) <= 9 + 1, "a slice and the sync point after the last one"
        assert sum(size for _, size in written[before:]) < 900 + 900 + 32
    assert workload.partition.roll.phase is RolloverPhase.MARKING
    assert any(size == 900 for _, size in written), "a large message is written in parts"


def test_a_large_message_deleted_during_its_copy_leaves_a_complete_data_record() -> None:
    workload = Workload(9, live=60)
    workload.until(RolloverPhase.CREATING)
    workload.put(20_000)
    large, workload.slices = workload.messages[-1], 1
    while not (workload.partition.roll.copy is not None and workload.partition.roll.copy._large is not None
               and workload.partition.roll.copy._large[0] is large):
        workload.perform()
        workload.turn()
    workload.messages.remove(large)
    workload.acked.pop(large.guid, None)
    workload.partition.append_deletion(large.queue_key, large, 0, WALL)
    workload.slices = 16
    workload.until(RolloverPhase.RETIRING)
    workload.turn()
    recovered = reread(workload.disk, SIZES)
    assert state(recovered) == workload.states[-1] and not recovered.alarms


# -- in the way of it


@pytest.mark.parametrize("phase", [RolloverPhase.CREATING, RolloverPhase.COPYING, RolloverPhase.MARKING,
                                   RolloverPhase.SWITCHING, RolloverPhase.RETIRING])
def test_a_file_full_during_a_rollover_in_slices_is_rolled_over_at_once(phase: RolloverPhase) -> None:
    workload = Workload(10)
    workload.until(phase)
    archived = len([path for path in workload.disk.paths() if path.startswith("/a/")])
    while workload.partition.roll.phase is phase:
        workload.put(100)  # without turns and jobs the rollover does not continue
        if len(workload.messages) > 150:
            workload.delete()
    assert workload.partition.roll.phase is RolloverPhase.IDLE
    assert len([path for path in workload.disk.paths() if path.startswith("/a/")]) > archived
    if phase in (RolloverPhase.COPYING, RolloverPhase.MARKING):
        assert any("in one step" in text for _, text in workload.partition.take_alarms())
    job, workload.job = workload.job, None
    if job is not None:  # its result is ignored
        steps = workload.disk.steps
        job.run()
        workload.partition.roll.on_job_done(job, WALL)
        assert workload.disk.steps == steps and workload.partition.roll.phase is RolloverPhase.IDLE
    workload.turn()
    workload.check_payloads()
    assert state(reread(workload.disk, SIZES)) == workload.states[-1]


@pytest.mark.parametrize("phase", [RolloverPhase.CREATING, RolloverPhase.COPYING, RolloverPhase.MARKING,
                                   RolloverPhase.SWITCHING, RolloverPhase.RETIRING])
def test_a_partition_can_stop_in_any_phase_of_a_rollover(phase: RolloverPhase) -> None:
    workload = Workload(11)
    workload.until(phase)
    expected = state(workload.partition.state)  # type: ignore[arg-type]
    workload.partition.stop(WALL)  # with a batch that is not written yet
    steps = workload.disk.steps
    if workload.job is not None:
        workload.job.run()
    assert workload.disk.steps == steps and len([path for path in workload.disk.paths() if path.startswith("/l/")]) == 3
    recovered = reread(workload.disk, SIZES)
    assert state(recovered) == expected and not recovered.alarms


def compute_rollover_steps(seed: int) -> tuple[int, int]:
    """Return the first and last disk operation of a rollover in slices, traffic included."""
    workload = Workload(seed, live=90)
    workload.until(RolloverPhase.CREATING)
    first = workload.disk.steps
    workload.until(RolloverPhase.IDLE)
    return first, workload.disk.steps


@cache
def rollover_steps(seed: int) -> tuple[int, int]:
    """Cache `steps_of_a_rollover`."""
    return compute_rollover_steps(seed)


@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("how", ["killed", "power", "torn1", "torn2"])
def test_a_crash_before_any_step_of_a_rollover_in_slices_keeps_the_state(part: int, how: str) -> None:
    first, last = rollover_steps(12)
    assert last - first > 100
    for step in range(first + part, last, 10):
        disk = MemoryDisk()
        disk.stop_after = step
        workload = None
        try:
            workload = Workload(12, disk=disk, live=90)
            workload.until(RolloverPhase.CREATING)
            workload.until(RolloverPhase.IDLE)
        except ProcessKilled:
            pass
        assert workload is not None
        if how == "killed":
            disk.kill()
        else:
            disk.crash(Random(int(how[-1]) * 1000 + step) if how != "power" else None)
        partition, recovered = start(disk, SIZES, lease=None)
        found = payloads_by_guid(partition, recovered)
        assert how.startswith("torn") or not recovered.quarantined, step
        assert not [guid for guid in workload.acked if guid not in found], f"step {step}: acknowledged, and lost"
        if how == "killed":
            assert state(recovered) in workload.states, step
        kept = state(recovered)
        partition.stop(WALL)
        again = reread(disk, SIZES)
        assert state(again) == kept and not again.damaged
        assert len([path for path in disk.paths() if path.startswith("/l/")]) == 3


@pytest.mark.parametrize("part", range(10))
def test_a_disk_error_at_any_step_of_a_rollover_in_slices_keeps_the_state(part: int) -> None:
    first, last = rollover_steps(13)
    for step in range(first + part, last, 20):
        workload = Workload(13, live=90)
        failed: list[str] = []

        def fail(operation: str, path: str, failed: list[str] = failed, disk: MemoryDisk = workload.disk,
                 step: int = step) -> int | None:
            if disk.steps < step or failed:
                return None
            failed.append(operation)
            return errno.EIO

        workload.disk.fail, workload.faulty = fail, True
        while not failed:
            workload.round()
        for _ in range(100):
            workload.round()
        workload.check_payloads()
        acked = dict(workload.acked)
        workload.partition.stop(WALL)
        alarms = [text for _, text in workload.partition.take_alarms()]
        interrupted = workload.partition.log.closed or any("could not write" in text for text in alarms)
        partition, recovered = start(workload.disk, SIZES, lease=None)
        found = payloads_by_guid(partition, recovered)
        assert not [guid for guid in acked if guid not in found] and not recovered.quarantined, (step, failed)
        if not interrupted:
            assert state(recovered) == state(workload.partition.state), step  # type: ignore[arg-type]


# -- the copier by itself


def test_a_copy_of_few_live_records_lists_their_keys() -> None:
    workload = Workload(14)
    state_ = workload.partition.state
    for _ in range(400):
        workload.put(0)
        workload.delete()
        workload.turn()
    workload.partition.files.create_next(WALL)
    copy = LiveCopy(workload.partition.files, state_)
    assert isinstance(copy._keys, list) and len(copy._keys) == len(state_.live)
    copy.copy_rest()
    assert copy.progress == 1.0
    workload.partition.files.discard_next()


def test_recovery_prefers_the_current_file_set_until_the_next_one_is_marked() -> None:
    """The last record of the current set is copied, too: both sets have the same PSN, but only one is complete."""
    workload = Workload(15)
    workload.until(RolloverPhase.COPYING)
    while len(entries(workload.disk.content(next(path for path in workload.disk.paths() if path.endswith("journal"))))) < 2:
        workload.turn()
    copy = workload.partition.roll.copy
    assert copy is not None
    workload.put(10)
    workload.turn()
    copy.copy_rest()
    journals = sorted(path for path in workload.disk.paths() if path.endswith("journal") and path.startswith("/l/"))
    reach = [entries(workload.disk.content(path))[-1][1] & (1 << 48) - 1 for path in journals]
    assert reach[0] == reach[1]
    expected = state(workload.partition.state)  # type: ignore[arg-type]
    data = journals[1].replace("journal", "data")
    workload.disk.put(data, bytes(len(workload.disk.content(data))))  # as after a loss of power without a sync
    recovered = recover(open_files(workload.disk, sizes=SIZES))
    assert state(recovered) == expected and not recovered.quarantined
