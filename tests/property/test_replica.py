"""Replica built from the batches of its primary: its state equals the primary's after any operations.

The follower acts as a replica: it writes each batch to its own files, applies its records, and rolls over where the primary
did. It checks that positions and PSNs are unique and without gaps. It tests `bmqtwist/storage/partition.py` and
`replay.py`; images and cuts are tested by `test_replicated_partition.py`.
"""

from __future__ import annotations

import errno
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kit.partition_work import work
from kit.storage_kit import WALL, open_files

from bmqtwist.storage.compaction import LiveCopy, Relocation
from bmqtwist.storage.journal import Entry
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Batch, Partition, PartitionUnavailable
from bmqtwist.storage.records import (
    JOURNAL_OP_BODY,
    RECORD,
    RECORD_BYTES,
    SEQUENCE_MASK,
    SyncPoint,
    check_messages,
    pack_sync_point,
)
from bmqtwist.storage.recovery import recover
from bmqtwist.storage.replay import Apps, Replay, qlist_entry
from bmqtwist.storage.state import PartitionState, StoredQueue
from bmqtwist.storage.store import FileSizes

SIZES = FileSizes(6000, 1 << 14, 1 << 12)
OPERATION = st.tuples(
    st.sampled_from(["put", "put", "put", "put", "half put", "confirm", "confirm", "delete", "purge", "purge app",
                     "remove app", "add app", "drop queue", "flush", "flush", "tick", "roll", "disk fails", "disk works",
                     "disable", "enable", "kill primary", "stop primary", "restart follower"]), st.integers(0, 1 << 16))


class Follower(Replay):
    """Replica: its files, and its state from the primary's batches."""

    def __init__(self) -> None:
        super().__init__(PartitionState())
        self.disk = MemoryDisk()
        self.files = open_files(self.disk, sizes=SIZES)
        self.position = 0

    def take(self, batch: Batch) -> None:
        """Write a batch, then apply it."""
        assert batch.first == self.position + 1, "positions have no gaps"
        self.position += len(batch.journal)
        self.files.append(batch.journal, batch.data, batch.qlist)
        for record in batch.journal:
            head, lease, wall, body, _ = RECORD.unpack(record)
            entry = 0, head, lease, wall, body
            sequence, state = head & SEQUENCE_MASK, self.state
            assert sequence == state.sequence + 1 if lease == state.lease else lease > state.lease and sequence == 1, (
                "PSNs have no gaps; a lease begins with 1")
            self.run([entry])
            state.sequence = sequence

    def apply_journal_op(self, entry: Entry) -> None:
        """Roll over where the primary did."""
        super().apply_journal_op(entry)
        self.state.sequence = entry[1] & SEQUENCE_MASK
        if JOURNAL_OP_BODY.unpack(entry[4])[0] == SyncPoint.ROLLOVER:
            self.roll()

    def roll(self) -> None:
        """Copy the live records to a new file set."""
        state, files = self.state, self.files
        files.create_next(WALL)
        copy = LiveCopy(files, state)
        copy.copy_rest()
        mark, data, qlist = files.next_set.positions()
        point = pack_sync_point(state.sequence, state.lease, WALL, SyncPoint.REGULAR, 1, data, qlist)
        files.next_set.append([point], [], [])
        files.complete_rollover(mark, False)
        Relocation(state, copy, state.last_key, state.last_key, 0).update(1 << 62)

    def restart(self) -> None:
        """Restart from the files."""
        self.files.close(truncate=False)
        self.disk.kill()
        self.files = open_files(self.disk, sizes=SIZES)
        found = recover(self.files)
        assert not found.quarantined and not found.damaged, found.alarms
        self.files.resume(found.journal_end, found.data_end, found.qlist_end)
        self.state = found.state

    def read_data(self, queue: StoredQueue, message: Message) -> int:
        good, damaged = check_messages(self.files.read_data, [message])
        assert not damaged, damaged
        return good

    def read_queue_record(self, offset: int) -> tuple[str, bytes, Apps, bytes]:
        return qlist_entry(self.files.read_qlist(offset, 1 << 16))


class Primary:
    """A primary with random operations on the queues of its state."""

    def __init__(self, follower: Follower) -> None:
        self.disk, self.follower, self.number = MemoryDisk(), follower, 0
        self.partition: Partition
        self.begin()

    def begin(self) -> None:
        """Start from the written records."""
        files = open_files(self.disk, sizes=SIZES)
        recovered = recover(files)
        self.partition = Partition(1, files, recovered)
        self.partition.log.retains_batches = True
        self.follower.position = self.partition.position  # positions count the records of a process
        self.partition.activate(recovered.lease + 1, WALL)
        self.handover()

    def handover(self) -> None:
        """Pass the batches to the replica."""
        for batch in self.partition.log.take_batches():
            self.follower.take(batch)

    def work(self, name: str, value: int) -> None:
        """Run one operation."""
        self.number += 1
        work(self.partition, name, value, self.number)

    def run(self, name: str, value: int) -> None:
        """Run one step of a schedule."""
        partition, disk = self.partition, self.disk
        try:
            if name == "flush":
                partition.flush(WALL)
            elif name == "tick":
                partition.write_sync_point(WALL)
            elif name == "roll":
                partition.rollover(WALL)
            elif name == "disk fails":
                disk.fail = lambda operation, path: errno.EIO if operation == "write" else None
            elif name == "disk works":
                disk.fail = lambda operation, path: None
            elif name in ("disable", "enable"):
                getattr(partition, name)()
            elif name in ("kill primary", "stop primary"):
                disk.fail = lambda operation, path: None
                partition.enable()
                if name == "stop primary":
                    partition.stop(WALL)
                else:
                    disk.kill()
                self.handover()
                self.begin()
            elif name == "restart follower":
                self.handover()
                self.follower.restart()
            else:
                self.work(name, value)
        except PartitionUnavailable:
            pass
        self.handover()


def comparable_state(state: PartitionState) -> Any:
    """Return all comparable parts of a state; live keys may differ. Checks the counted bytes of each queue."""
    assert all(queue.bytes == sum(message.size for message in queue.messages.values()) for queue in state.queues.values())

    def live(item: Any) -> Any:
        if isinstance(item, tuple):
            return item[0][:36], item[0][40:], item[1]  # a rollover moves the QLIST record
        return message(item) if isinstance(item, Message) else item

    def message(item: Message) -> Any:
        return (item.guid, item.pending, item.size, item.options, item.crc, item.lease, item.sequence, item.wall,
                item.ref_count, item.data_offset, item.queue_key)

    queues = {key: (queue.uri, [(app.app_id, app.key, app.bit) for app in queue.apps.values()], queue.mask,
                    queue.app_count, [message(each) for each in queue.messages.values()])
              for key, queue in state.queues.items()}
    return (state.lease, state.sequence, queues, [live(item) for item in state.live.values()],
            state.data_bytes, state.qlist_bytes)


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATION, max_size=90))
def test_a_replica_built_from_batches_has_the_state_of_its_primary(operations: list[tuple[str, int]]) -> None:
    follower = Follower()
    primary = Primary(follower)
    for name, value in operations:
        primary.run(name, value)
    primary.run("disk works", 0)
    primary.run("enable", 0)
    primary.run("flush", 0)  # writes the records that waited for the failing disk
    primary.run("flush", 0)  # ... and then the pending records
    assert comparable_state(follower.state) == comparable_state(primary.partition.state)
    follower.restart()
    assert comparable_state(follower.state) == comparable_state(primary.partition.state)
    primary.run("kill primary", 0)
    follower.restart()
    assert comparable_state(follower.state) == comparable_state(primary.partition.state)


def test_the_journals_of_primary_and_replica_have_the_same_records() -> None:
    """After the same rollovers the files are equal, except for node id and mark of a sync point."""
    follower = Follower()
    primary = Primary(follower)
    for number in range(400):
        primary.run("put" if number % 2 else "delete", number // 2 * 7)
        primary.run("flush", 0)
    assert any(path.startswith("/a/") for path in primary.disk.paths()), "the primary rolled over"
    primary_journals, replica_journals = ([disk.content(path) for path in sorted(disk.paths()) if path.endswith("journal")]
                                          for disk in (primary.disk, follower.disk))
    for one, other in zip(primary_journals, replica_journals, strict=True):
        assert [one[at:at + RECORD_BYTES] for at in range(44, len(one), RECORD_BYTES)] == [
            other[at:at + RECORD_BYTES] for at in range(44, len(other), RECORD_BYTES)]
