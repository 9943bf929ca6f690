"""Rollover in slices under traffic: copied records, crashes and disk errors at every step, no interference."""

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
from bmqtwist.storage.memory import Died, MemoryDisk
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition, PartitionUnavailable
from bmqtwist.storage.recovery import recover
from bmqtwist.storage.rollover import Job, Phase, RolloverEvent
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


class Life:
    """A partition under random traffic, with syncs and jobs that complete at random.

    states: what was stored after the last two batches. acked: messages whose effects were released and that were not
    deleted since.
    """

    def __init__(self, seed: int, durability: Any = "group", disk: MemoryDisk | None = None, live: int = 150) -> None:
        self.random = Random(seed)
        self.disk = disk or MemoryDisk()
        self.live = live  # about so many messages are kept
        self.slices = 4  # of a rollover in a turn
        self.partition: Partition = start(self.disk, SIZES, durability=durability)[0]
        self.number = 0
        self.messages: list[Message] = []
        self.acked: dict[bytes, Message] = {}
        self.states: list[Any] = [{}]
        self.job: Job | None = None
        self.token: int | None = None
        self.phases: Counter[Phase] = Counter()
        self._write, self.partition.log.write = self.partition.log.write, self.write  # type: ignore[method-assign]
        self.keys: list[bytes] = []
        self.steps: list[MessageSteps] = []  # of purges under way
        self.faulty = False  # the disk may fail, and the partition refuse
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
        self.partition.hold(effect)

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
        self._forget(key)

    def drop_queue(self) -> None:
        """Delete a queue."""
        if len(self.keys) > 1:
            key = self.keys.pop(self.random.randrange(len(self.keys)))
            self._forget(key)
            self.partition.queues.delete(key, WALL)

    def _forget(self, key: bytes) -> None:
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
                self.partition.sync_point(WALL)

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
            self.token = partition.wants_sync()
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
                self.partition.sync_failed(token, error)
            else:
                self.release(self.partition.synced(token, WALL))
        if self.job is not None and self.random.random() < likely:
            job, self.job = self.job, None
            try:
                job.run()
            except OSError as error:
                self.partition.roll.failed(job, error, WALL)
            else:
                self.partition.roll.done(job, WALL)

    def round(self) -> None:
        """Run one round of everything."""
        try:
            self.traffic()
        except PartitionUnavailable:
            assert self.faulty
        self.perform()
        self.phases[self.partition.roll.phase] += 1
        self.turn()

    def until(self, phase: Phase, rounds: int = 3000) -> None:
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
            assert self.partition.payloads.whole(message) == message.guid[-1:] * message.size
            message.payload = kept


def readable(partition: Partition, recovered: Any) -> dict[bytes, bytes]:
    """Return GUID -> payload of all recovered messages; check each payload."""
    found = {message.guid: partition.payloads.whole(message) for queue in recovered.queues.values()
             for message in queue.messages.values()}
    assert all(payload == guid[-1:] * len(payload) for guid, payload in found.items())
    return found


# -- the table


@pytest.mark.parametrize("event", RolloverEvent)
@pytest.mark.parametrize("phase", Phase)
def test_any_event_in_any_phase_leaves_a_partition_that_goes_on(phase: Phase, event: RolloverEvent) -> None:
    life = Life(3)
    life.until(phase)
    partition, roll = life.partition, life.partition.roll
    if event is RolloverEvent.STEP:
        roll.step(WALL)
    elif event is RolloverEvent.DONE:
        job, life.job = life.job or Job(lambda: None), None
        job.run()
        roll.done(job, WALL)
    elif event is RolloverEvent.FAILED:
        roll.failed(life.job or Job(lambda: None), OSError(errno.EIO, "EIO"), WALL)
    elif event is RolloverEvent.FINISH:
        assert partition.log.write() and roll.finish(WALL) and roll.phase is Phase.IDLE
    elif event is RolloverEvent.UNMIRRORED:
        roll._on(event, WALL)
        assert roll.phase is phase or not partition.files.rolling
    elif event is RolloverEvent.BEGIN:
        roll.begin(WALL)
        assert roll.phase is (Phase.CREATING if phase is Phase.IDLE else phase) and partition.log.roll_due
    else:
        roll.stop(WALL)
        assert roll.phase is Phase.IDLE and not partition.files.rolling
    for _ in range(60):
        life.round()
    life.check_payloads()
    expected = state(partition.state)  # type: ignore[arg-type]
    partition.stop(WALL)
    assert state(reread(life.disk, SIZES)) == expected


def test_an_operator_gets_a_large_partition_rolled_in_slices_and_a_small_one_at_once(monkeypatch: Any) -> None:
    life = Life(3)
    base = life.partition.files.current.base
    life.partition.rollover(WALL)
    assert life.partition.files.current.base != base and life.partition.roll.phase is Phase.IDLE
    base = life.partition.files.current.base
    monkeypatch.setattr("bmqtwist.storage.rollover.SMALL_RECORDS", 0)
    life.partition.rollover(WALL)
    assert life.partition.files.current.base == base and life.partition.roll.phase is Phase.CREATING
    life.partition.rollover(WALL)  # once more while it is under way: nothing else happens
    life.until(Phase.IDLE)
    assert life.partition.files.current.base != base
    life.check_payloads()


# -- under traffic


@pytest.mark.parametrize("durability", ["group", "always", "none"])
@pytest.mark.parametrize("seed", range(8))
def test_the_state_survives_rollovers_in_slices_and_so_does_every_payload(seed: int, durability: Any) -> None:
    life = Life(seed, durability)
    told: list[str] = []
    life.partition.files.reports.listener = lambda text: told.append(text) if "PURGE" not in text else None
    life.slices = 16
    for _ in range(5):
        life.until(Phase.RETIRING)
        assert "Partition [0]: ROLLOVER COMPLETE: " in told[-1] and "Partition [0]: Initiating rollover: " in told[-2]
        life.check_payloads()
        life.until(Phase.IDLE)
        life.check_payloads()
    assert all("Initiating" in text for text in told[::2]) and all("COMPLETE" in text for text in told[1::2])
    assert len(told[1::2]) >= 5, "some may be done at once"
    assert set(life.phases) == set(Phase), "it went through all of them"
    life.turn()
    expected, psn = state(life.partition.state), (life.partition.lease, life.partition.sequence)  # type: ignore[arg-type]
    recovered = reread(life.disk, SIZES)
    assert state(recovered) == expected and not recovered.alarms and (recovered.lease, recovered.sequence) == psn
    while life.steps:
        at_once(life.steps.pop())
    assert not life.partition.state.leaving
    assert len(recovered.state.live) == len(life.partition.state.live)
    assert (recovered.state.data_bytes, recovered.state.qlist_bytes) == life.partition.state.outstanding()[1:]
    life.partition.stop(WALL)
    partition, recovered = start(life.disk, SIZES, lease=None)
    assert state(recovered) == expected and len(readable(partition, recovered)) == len(life.messages)
    assert not [text for category, text in life.partition.take_alarms() if "failed" in text]


@pytest.mark.parametrize("seed", range(4))
def test_behind_the_mark_every_record_has_the_next_number_and_in_front_of_it_numbers_rise(seed: int) -> None:
    life = Life(seed)
    life.until(Phase.RETIRING)
    for _ in range(30):
        life.round()
    journal = life.disk.content(path_of(life.disk, "journal"))
    mark = int.from_bytes(journal[36:44], "big") * 4
    numbers = [(offset, (lease, head & (1 << 48) - 1)) for offset, head, lease, _, _ in entries(journal)]
    copied = [psn for offset, psn in numbers if offset <= mark]
    later = [psn for offset, psn in numbers if offset >= mark]
    assert copied == sorted(set(copied))
    assert later == [(later[0][0], number) for number in range(later[0][1], later[0][1] + len(later))]


def test_both_sets_hold_the_same_records_while_both_are_written() -> None:
    life = Life(5)
    life.until(Phase.MARKING)
    for _ in range(10):
        life.traffic()
        life.turn()
    assert life.partition.roll.phase is Phase.MARKING
    found = []
    for base in sorted({path.split(".")[1] for path in life.disk.paths() if path.startswith("/l/")}):
        alone = MemoryDisk()
        for path in life.disk.paths():
            if path.split(".")[1] == base:
                alone.put(path, life.disk.content(path))
        recovered = reread(alone, SIZES)
        found.append((state(recovered), recovered.lease, recovered.sequence, recovered.alarms))
    assert len(found) == 2 and found[0] == found[1] and found[0][3] == []
    assert found[0][0] == state(life.partition.state)  # type: ignore[arg-type]


def test_what_is_acknowledged_while_both_sets_are_written_is_safe_in_both() -> None:
    """The old set may be archived before the next sync of the new one."""
    life = Life(16)
    life.until(Phase.MARKING)
    marking, life.job = life.job, None
    assert marking is not None
    marking.run()  # the mark is durable, but not reported yet
    life.put(50)
    message = life.messages[-1]
    while message.guid not in life.acked:
        life.turn()
        life.perform(1.0)
    life.partition.roll.done(marking, WALL)
    life.turn()
    retiring, life.job = life.job, None
    assert retiring is not None and life.partition.roll.phase is Phase.RETIRING
    retiring.run()
    life.disk.crash()
    partition, recovered = start(life.disk, SIZES, lease=None)
    assert not [guid for guid in life.acked if guid not in readable(partition, recovered)]


def test_a_small_partition_rolls_over_in_one_step_when_a_record_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollover, "SMALL_BYTES", 1 << 20)
    monkeypatch.setattr(rollover, "SMALL_RECORDS", 400)
    life = Life(6, live=8)
    for _ in range(2000):
        life.round()
    assert set(life.phases) == {Phase.IDLE} and [path for path in life.disk.paths() if path.startswith("/a/")]


def test_a_rollover_does_not_begin_where_it_would_free_too_little() -> None:
    life = Life(7, live=100_000)
    with pytest.raises(PartitionUnavailable):
        for _ in range(100_000):
            life.put(10)
            if life.number % 7 == 0:
                life.turn()
    assert life.partition.roll.phase is Phase.IDLE and not [path for path in life.disk.paths() if path.startswith("/a/")]


def test_a_slice_is_bounded_in_records_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(8)
    life.until(Phase.CREATING)
    written: list[tuple[int, int]] = []
    append = FileSet.append

    def counted(files: FileSet, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        if life.partition.files.rolling and files is life.partition.files.coming:
            written.append((len(journal), sum(map(len, data))))
        append(files, journal, data, qlist)

    monkeypatch.setattr(FileSet, "append", counted)
    life.put(3000)
    life.slices = 1
    for _ in range(400):
        life.perform()
        before = len(written)
        life.turn()
        if life.partition.roll.phase is Phase.MARKING:
            break
        assert sum(records for records, _ in written[before:]) <= 9 + 1, "a slice, and the sync point behind the last one"
        assert sum(size for _, size in written[before:]) < 900 + 900 + 32
    assert life.partition.roll.phase is Phase.MARKING
    assert any(size == 900 for _, size in written), "a large message goes in pieces"


def test_a_large_message_that_dies_while_it_is_copied_leaves_a_whole_data_record() -> None:
    life = Life(9, live=60)
    life.until(Phase.CREATING)
    life.put(20_000)
    large, life.slices = life.messages[-1], 1
    while not (life.partition.roll.copy is not None and life.partition.roll.copy._large is not None
               and life.partition.roll.copy._large[0] is large):
        life.perform()
        life.turn()
    life.messages.remove(large)
    life.acked.pop(large.guid, None)
    life.partition.append_deletion(large.queue_key, large, 0, WALL)
    life.slices = 16
    life.until(Phase.RETIRING)
    life.turn()
    recovered = reread(life.disk, SIZES)
    assert state(recovered) == life.states[-1] and not recovered.alarms


# -- in the way of it


@pytest.mark.parametrize("phase", [Phase.CREATING, Phase.COPYING, Phase.MARKING, Phase.SWITCHING, Phase.RETIRING])
def test_a_file_that_is_full_before_the_copy_is_through_is_rolled_over_at_once(phase: Phase) -> None:
    life = Life(10)
    life.until(phase)
    archived = len([path for path in life.disk.paths() if path.startswith("/a/")])
    while life.partition.roll.phase is phase:
        life.put(100)  # with neither turns nor jobs: nothing goes on
        if len(life.messages) > 150:
            life.delete()
    assert life.partition.roll.phase is Phase.IDLE
    assert len([path for path in life.disk.paths() if path.startswith("/a/")]) > archived
    if phase in (Phase.COPYING, Phase.MARKING):
        assert any("done at once" in text for _, text in life.partition.take_alarms())
    job, life.job = life.job, None
    if job is not None:  # its result is ignored
        steps = life.disk.steps
        job.run()
        life.partition.roll.done(job, WALL)
        assert life.disk.steps == steps and life.partition.roll.phase is Phase.IDLE
    life.turn()
    life.check_payloads()
    assert state(reread(life.disk, SIZES)) == life.states[-1]


@pytest.mark.parametrize("phase", [Phase.CREATING, Phase.COPYING, Phase.MARKING, Phase.SWITCHING, Phase.RETIRING])
def test_a_partition_may_stop_at_any_time(phase: Phase) -> None:
    life = Life(11)
    life.until(phase)
    expected = state(life.partition.state)  # type: ignore[arg-type]
    life.partition.stop(WALL)  # with a batch that is not written yet
    steps = life.disk.steps
    if life.job is not None:
        life.job.run()
    assert life.disk.steps == steps and len([path for path in life.disk.paths() if path.startswith("/l/")]) == 3
    recovered = reread(life.disk, SIZES)
    assert state(recovered) == expected and not recovered.alarms


def steps_of_a_rollover(seed: int) -> tuple[int, int]:
    """Return the first and last disk operation of a rollover in slices, traffic included."""
    life = Life(seed, live=90)
    life.until(Phase.CREATING)
    first = life.disk.steps
    life.until(Phase.IDLE)
    return first, life.disk.steps


@cache
def steps_of(seed: int) -> tuple[int, int]:
    """Cache `steps_of_a_rollover`."""
    return steps_of_a_rollover(seed)


@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("how", ["killed", "power", "torn1", "torn2"])
def test_a_broker_may_die_before_every_step_of_a_rollover_in_slices(part: int, how: str) -> None:
    first, last = steps_of(12)
    assert last - first > 100
    for step in range(first + part, last, 10):
        disk = MemoryDisk()
        disk.stop_after = step
        life = None
        try:
            life = Life(12, disk=disk, live=90)
            life.until(Phase.CREATING)
            life.until(Phase.IDLE)
        except Died:
            pass
        assert life is not None
        if how == "killed":
            disk.kill()
        else:
            disk.crash(Random(int(how[-1]) * 1000 + step) if how != "power" else None)
        partition, recovered = start(disk, SIZES, lease=None)
        found = readable(partition, recovered)
        assert how.startswith("torn") or not recovered.quarantined, step
        assert not [guid for guid in life.acked if guid not in found], f"step {step}: acknowledged, and lost"
        if how == "killed":
            assert state(recovered) in life.states, step
        kept = state(recovered)
        partition.stop(WALL)
        again = reread(disk, SIZES)
        assert state(again) == kept and not again.damaged
        assert len([path for path in disk.paths() if path.startswith("/l/")]) == 3


@pytest.mark.parametrize("part", range(10))
def test_a_disk_may_fail_at_every_step_of_a_rollover_in_slices(part: int) -> None:
    first, last = steps_of(13)
    for step in range(first + part, last, 20):
        life = Life(13, live=90)
        failed: list[str] = []

        def fail(operation: str, path: str, failed: list[str] = failed, disk: MemoryDisk = life.disk,
                 step: int = step) -> int | None:
            if disk.steps < step or failed:
                return None
            failed.append(operation)
            return errno.EIO

        life.disk.fail, life.faulty = fail, True
        while not failed:
            life.round()
        for _ in range(100):
            life.round()
        life.check_payloads()
        acked = dict(life.acked)
        life.partition.stop(WALL)
        left = life.partition.log.broken or any("could not write" in text for _, text in life.partition.take_alarms())
        partition, recovered = start(life.disk, SIZES, lease=None)
        found = readable(partition, recovered)
        assert not [guid for guid in acked if guid not in found] and not recovered.quarantined, (step, failed)
        if not left:
            assert state(recovered) == state(life.partition.state), step  # type: ignore[arg-type]


# -- the copier by itself


def test_a_copy_of_few_among_many_dead_keys_lists_them_instead_of_counting_through() -> None:
    life = Life(14)
    state_ = life.partition.state
    for _ in range(400):
        life.put(0)
        life.delete()
        life.turn()
    life.partition.files.begin_roll(WALL)
    copy = LiveCopy(life.partition.files, state_)
    assert isinstance(copy._keys, list) and len(copy._keys) == len(state_.live)
    copy.run()
    assert copy.progress == 1.0
    life.partition.files.abandon_roll()


def test_a_next_set_never_outranks_the_current_one_before_it_is_marked() -> None:
    """The last record of the current set is copied, too: both sets have the same PSN, but only one is complete."""
    life = Life(15)
    life.until(Phase.COPYING)
    while len(entries(life.disk.content(next(path for path in life.disk.paths() if path.endswith("journal"))))) < 2:
        life.turn()
    copy = life.partition.roll.copy
    assert copy is not None
    life.put(10)
    life.turn()
    copy.run()
    journals = sorted(path for path in life.disk.paths() if path.endswith("journal") and path.startswith("/l/"))
    reach = [entries(life.disk.content(path))[-1][1] & (1 << 48) - 1 for path in journals]
    assert reach[0] == reach[1]
    expected = state(life.partition.state)  # type: ignore[arg-type]
    data = journals[1].replace("journal", "data")
    life.disk.put(data, bytes(len(life.disk.content(data))))  # as after a loss of power without a sync
    recovered = recover(open_files(life.disk, sizes=SIZES))
    assert state(recovered) == expected and not recovered.quarantined
