"""A partition at one of several nodes: the log that its primary writes and its replicas repeat.

    primary    appends as any partition does; what it wrote is kept for a while as it is sent to the others (`read_run`)
    replica    `append_run`: checks records that came from another node, gives them the places of its own files, and applies
               them; it compacts its files when it has to, without a PSN of its own
    cut        `cut_at`: what follows a record is taken away; the state is read again from what is left
    image      `ImageSource`: all that is live, as of one record, for a node that cannot be given records;
               `ImageFiles`: puts it beside the present files, which stay until it is complete

After a cut or an image there is another `ReplicatedPartition` over the same files.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import Any

from bmqtwist.errors import PeerError
from bmqtwist.storage.datacheck import check_messages
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.found_log import FoundLog
from bmqtwist.storage.journal import Entry, is_sync_point
from bmqtwist.storage.layout import JOURNAL_OP_RECORD, MESSAGE_RECORD, QUEUE_OP_RECORD
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Durability, Partition
from bmqtwist.storage.psn import LogSummary, Psn, RecordRun
from bmqtwist.storage.records import (
    DATA_HEADER,
    DATA_WORDS_MASK,
    FLAGS_MASK,
    FLAGS_SHIFT,
    MAGIC,
    MESSAGE,
    MESSAGE_HEAD,
    QUEUE_RECORD_HEADER,
    QUEUE_RECORD_WORDS_MASK,
    RECORD,
    RECORD_BYTES,
    REF_COUNT_LOW_BITS,
    REF_COUNT_MAX,
    SEQUENCE_MASK,
    TYPE_SHIFT,
    DeletionReason,
    QueueOp,
    RecordType,
    SyncPoint,
    data_record_bytes,
    pack_sync_point,
)
from bmqtwist.storage.replay import Apps, RecordMismatch, Replay, qlist_entry
from bmqtwist.storage.state import StoredQueue
from bmqtwist.storage.store import PAYLOAD_CACHE_BYTES, SYNC_POINT_RESERVE_BYTES, PartitionFiles

RUN_BYTES = 1 << 20  # of the records of one message to another node, unless a single one is larger
RUN_RECORDS_MAX = 4096
RECENT_BYTES = 8 << 20  # of what was written last, kept in memory as it is sent

_MESSAGE, _QUEUE_OP, _JOURNAL_OP = int(RecordType.MESSAGE), int(RecordType.QUEUE_OP), int(RecordType.JOURNAL_OP)
_DATA_AT = MESSAGE_RECORD.offset("data_dwords")
_QLIST_AT = QUEUE_OP_RECORD.offset("qlist_words")
_MARKS_AT = JOURNAL_OP_RECORD.offset("data_dwords")
_LISTED = (QueueOp.CREATION, QueueOp.ADDITION)


class ReplicatedPartition(Partition):
    """See above; `found` is what its files hold. Before `activate` and after `follow` it is a replica's."""

    files: FileSets

    def __init__(self, partition_id: int, node_id: int, files: FileSets, found: FoundLog, durability: Durability = "group",
                 cache_bytes: int = PAYLOAD_CACHE_BYTES, epoch: float = 0.0, wall: int = 0) -> None:
        self.leading = False
        super().__init__(partition_id, node_id, files, found.recovered, durability, cache_bytes)
        self._known = found.summary
        self._starts: deque[tuple[int, int]] = deque([(0, self.lease)])  # (position before a lease, the lease)
        self._recent: deque[RecordRun] = deque()
        self._recent_bytes = 0
        self._applier = _Applier(self, epoch)
        if self._rewrite:
            self._begin_rewrite(wall)
        self.files.sync()  # what was found may be in the page cache alone
        self._gate.written = self.position
        self._gate.all_durable()
        self.committed = 0

    # ---- PSNs ----------------------------------------------------------------------------------------------------

    @property
    def summary(self) -> LogSummary:
        """Of everything that was appended."""
        last = self.state.lease, self.state.sequence
        if last != self._known.last:
            self._known = self._known.extended(last)
        return self._known

    def psn_at(self, position: int) -> Psn:
        """Which record has this position."""
        for before, lease in reversed(self._starts):
            if position > before:
                return lease, position - before
        return self._starts[0][1], position - self._starts[0][0]

    @property
    def written(self) -> Psn:
        """Up to here the records are in the files."""
        return self.psn_at(self._gate.written)

    @property
    def durable(self) -> Psn:
        """Up to here they are safe by policy."""
        return self.psn_at(self._gate.written if self.durability == "none" else self._gate.durable)

    def commit(self, psn: Psn) -> None:
        """The cluster has the records of our own lease up to here."""
        if psn[0] == self.lease and self.leading:
            self.committed = self._base + psn[1]

    def begin_lease(self, lease: int) -> None:
        """Records of a newer lease follow."""
        self._known = self.summary
        self._base += self.sequence
        self.state.begin_lease(lease)
        self._starts.append((self._base, lease))

    # ---- the primary ---------------------------------------------------------------------------------------------

    def activate(self, lease: int, wall: int) -> None:
        """As `Partition.activate`; what this node has appended as a replica is in its files by then."""
        self._known = self.summary
        self.leading = self.replicated = True
        super().activate(lease, wall)
        self._starts.append((self._base, lease))

    def sync_point(self, wall: int, force: bool = False) -> None:
        """Of a primary only."""
        if self.leading:
            super().sync_point(wall, force)

    def _secure_recovered(self) -> None:
        """Nobody relies on it before a sync has come through."""

    def write_batch(self, matters: bool = True) -> bool:
        """Every record is waited for, by other nodes."""
        return super().write_batch(True)

    def follow(self) -> bool:
        """This node is primary no longer. False: what its queues have decided is not in its files, and has to be forgotten
        (cut)."""
        self.leading = self.replicated = self._full = False
        self.committed = self._recent_bytes = 0
        self.forget_waiting()
        self._recent.clear()
        self.take_batches()
        for queue in self.state.queues.values():
            for message in [message for message in queue.messages.values() if message.live_key < 0]:
                queue.drop(message)  # it lived in memory only
        clean = not self._owed and not self._journal
        self._owed.clear()
        self._set_journal_limit()
        return clean

    def forget_waiting(self) -> None:
        """Whoever waited for records has gone."""
        self._gate.waiting = []

    @property
    def waiting(self) -> list[Any]:
        """What waits for records to be safe here, in order."""
        return self._gate.waiting

    def append_confirm(self, queue_key: bytes, app_key: bytes, message: Message, reason: int, wall: int) -> None:
        """As `Partition.append_confirm`, of a primary only: who is none any more decides nothing."""
        if self.leading:
            super().append_confirm(queue_key, app_key, message, reason, wall)

    def append_deletion(self, queue_key: bytes, message: Message, reason: int, wall: int) -> None:
        """Likewise."""
        if self.leading:
            super().append_deletion(queue_key, message, reason, wall)

    def stop(self, wall: int, sync: bool = True) -> list[Any]:
        """As `Partition.stop`; a replica adds nothing."""
        released = super().stop(wall, sync)
        return released if self.leading else []

    def moved_to_next(self) -> None:
        """From `roll`: what is before the copy's end is compacted now."""
        super().moved_to_next()
        self._known = self.summary.rebased(self.roll.ended_at)

    # ---- reading for other nodes -----------------------------------------------------------------------------------

    def keep_batches(self) -> None:
        """What the turn has written, as it is sent."""
        for batch in self.take_batches():
            previous, last = self.psn_at(batch.first - 1), self.psn_at(batch.first + len(batch.journal) - 1)
            run = RecordRun(previous, last, b"".join(batch.journal), b"".join(batch.data), b"".join(batch.qlist))
            if run.size > RUN_BYTES or len(batch.journal) > RUN_RECORDS_MAX:
                continue
            self._recent.append(run)
            self._recent_bytes += run.size
            while self._recent_bytes > RECENT_BYTES:
                self._recent_bytes -= self._recent.popleft().size

    def read_run(self, after: Psn) -> RecordRun | None:
        """Some of the written records behind one that the log holds; None: there are none. OSError."""
        for run in reversed(self._recent):
            if run.previous == after:
                return run
            if run.previous < after:
                break
        summary = self.summary
        count = summary.distance(after) - len(self._journal)
        if count <= 0 or not summary.holds(after):
            return None
        start = self.files.journal_position - RECORD_BYTES * count
        journal = self.files.read_journal(start, RECORD_BYTES * min(count, RUN_RECORDS_MAX))
        if len(journal) < RECORD_BYTES:
            raise OSError(errno.EIO, "JOURNAL is shorter than its records")
        last, end, data, qlist, size = after, 0, list[bytes](), list[bytes](), 0
        for at in range(0, len(journal) // RECORD_BYTES * RECORD_BYTES, RECORD_BYTES):
            record = journal[at:at + RECORD_BYTES]
            head, lease, _, _, magic = RECORD.unpack(record)
            if magic != MAGIC:
                raise OSError(errno.EIO, f"JOURNAL holds no record at offset {start + at}")
            belongs = _attachment(self.files, record, head)
            if end and size + len(belongs) > RUN_BYTES:
                break
            (data if head >> TYPE_SHIFT == _MESSAGE else qlist).append(belongs)
            last, end = (lease, head & SEQUENCE_MASK), at + RECORD_BYTES
            size += RECORD_BYTES + len(belongs)
        return RecordRun(after, last, journal[:end], b"".join(data), b"".join(qlist))

    # ---- the replica -----------------------------------------------------------------------------------------------

    def append_run(self, run: RecordRun, behind: Psn, wall: int) -> None:
        """Append the records of `run` that follow `behind`, the last one here. PeerError or RecordMismatch: one of them does
        not fit, those before it are appended. OSError: there is no room."""
        taken = False
        for record, belongs in records_of(run):
            head, lease, recorded, body, magic = RECORD.unpack(record)
            psn = lease, head & SEQUENCE_MASK
            if psn <= behind:
                continue
            state = self.state
            follows = (psn == (state.lease, state.sequence + 1) or lease > state.lease and psn[1] == 1
                       and is_sync_point((head, lease, recorded, body, magic)))
            if magic != MAGIC or not follows:
                raise PeerError(f"record {lease}-{psn[1]} does not follow {state.lease}-{state.sequence}", "journal", 0)
            kind = head >> TYPE_SHIFT
            self._make_room_for(len(belongs) if kind == _MESSAGE else 0, len(belongs) if kind == _QUEUE_OP else 0, wall)
            own = _placed(record, head, self._data_end, self._qlist_end)
            self._applier.apply(own, belongs)
            self.state.sequence = psn[1]
            self._journal.append(own)
            self._journal_end += RECORD_BYTES
            if kind == _MESSAGE:
                self._data.append(belongs)
                self._data_end += len(belongs)
            elif belongs:
                self._qlist.append(belongs)
                self._qlist_end += len(belongs)
            taken = True
        if taken:
            self._gate.want_sync()

    def _make_room_for(self, data: int, qlist: int, wall: int) -> None:
        sizes = self.files.sizes

        def fits() -> bool:
            return (self._data_end + data <= sizes.data and self._qlist_end + qlist <= sizes.qlist
                    and self._journal_end + RECORD_BYTES + SYNC_POINT_RESERVE_BYTES <= sizes.journal)
        if not fits() and (not self.roll.finish(wall) or not fits()):
            raise OSError(errno.ENOSPC, f"Partition [{self.partition_id}] is full")

    def cut_at(self, psn: Psn | None) -> int | None:
        """Where JOURNAL ends if the record is the last one of the log; None: where it ends now."""
        if psn is None:
            return None
        return self.files.journal_position - RECORD_BYTES * max(0, self.summary.distance(psn) - len(self._journal))

    def abandon(self, wall: int) -> None:
        """Another partition takes its place: nothing is under way any more."""
        self.roll.stop(wall)
        self._journal, self._data, self._qlist = [], [], []


class _Applier(Replay):
    """Applies the records that come from another node."""

    def __init__(self, partition: ReplicatedPartition, epoch: float) -> None:
        super().__init__(partition.state, epoch)
        self._partition = partition
        self._belongs, self._record = b"", b""

    def apply(self, record: bytes, belongs: bytes) -> None:
        """One record in our own places, with the DATA or QLIST record that belongs to it."""
        head, lease, wall, body, _ = RECORD.unpack(record)
        self._belongs, self._record = belongs, record
        self.run([(0, head, lease, wall, body)])

    def read_data(self, queue: StoredQueue, message: Message) -> int:
        """From what came with the record."""
        return checked(message, self._belongs)

    def read_queue_record(self, offset: int) -> tuple[str, bytes, Apps, bytes]:
        """From what came with the record."""
        return qlist_entry(self._belongs)

    def stored(self, queue: StoredQueue, message: Message) -> None:
        """Its application data are in DATA alone."""
        super().stored(queue, message)
        self.state.cached_bytes -= message.size

    def journal_op(self, entry: Entry) -> None:
        """A newer lease may begin."""
        if entry[2] > self.state.lease:
            self._partition.begin_lease(entry[2])

    def deletion(self, entry: Entry) -> None:
        """A copy that is under way is told; a message that the cluster did not get may be posted again."""
        copy = self._partition.roll.copy
        key, guid = self._record[23:28], self._record[28:44]
        queue = self.state.queues.get(key)
        message = queue.messages.get(guid) if queue is not None else None
        if copy is not None and message is not None:
            copy.ended(message.live_key, entry[1] & SEQUENCE_MASK, self._record)
        super().deletion(entry)
        if queue is not None and entry[1] >> FLAGS_SHIFT & FLAGS_MASK == DeletionReason.NO_SC_QUORUM:
            queue.history.forget({guid})

    def delete_queue(self, queue: StoredQueue | None, key: bytes) -> None:
        """Likewise."""
        copy = self._partition.roll.copy
        if copy is not None and queue is not None and queue.live_keys:
            sequence = int.from_bytes(self._record[:8], "big") & SEQUENCE_MASK
            copy.ended(queue.live_keys[0], sequence, self._record)
        super().delete_queue(queue, key)


# ---- images ----------------------------------------------------------------------------------------------------------


class ImageSource:
    """All that is live in a partition as of its last record, in parts. The partition may go on; `OSError` once it has moved
    to another file set."""

    def __init__(self, partition: ReplicatedPartition) -> None:
        if partition.batch_waits and not partition.write_batch():
            raise OSError(errno.EIO, "its last records cannot be written")
        if partition.roll.moved is not None:
            partition.roll.moved.settle(1 << 62)
        self._files, self._set = partition.files, partition.files.base
        self.at = partition.summary.last
        self._items = list(partition.state.live.values())
        self._next = 0
        self.parts = 0  # so far

    def part(self) -> tuple[RecordRun, bool]:
        """The next one, and whether it is the last."""
        if self._files.base != self._set:
            raise OSError(errno.ESTALE, "the partition has rolled over")
        journal, data, qlist, size = list[bytes](), list[bytes](), list[bytes](), 0
        while self._next < len(self._items) and len(journal) < RUN_RECORDS_MAX:
            item = self._items[self._next]
            if isinstance(item, Message):
                length = data_record_bytes(DATA_HEADER.size + len(item.options) + item.size)
                if journal and size + length > RUN_BYTES:
                    break
                content = self._files.read_data(item.data_offset * 8, length)
                if len(content) < length:
                    raise OSError(errno.EIO, "DATA is shorter than its records")
                journal.append(_message_record(item))
                data.append(content)
                size += length
            elif isinstance(item, tuple):
                journal.append(item[0])
                qlist.append(item[1])
                size += len(item[1])
            else:
                journal.append(item)
            size += RECORD_BYTES
            self._next += 1
        self.parts += 1
        return (RecordRun(self.at, self.at, b"".join(journal), b"".join(data), b"".join(qlist)),
                self._next == len(self._items))


class ImageFiles:
    """The next file set of a partition, as it is filled with an image. OSError, PeerError: it is of no use."""

    def __init__(self, partition: ReplicatedPartition, wall: int) -> None:
        partition.roll.stop(wall)
        partition.roll_due = False
        self._files, self._node_id = partition.files, partition.node_id
        if self._files.rolling:
            self._files.abandon_roll()
        self._files.begin_roll(wall)

    def take(self, run: RecordRun) -> None:
        """One part, in order."""
        _, data_end, qlist_end = self._files.next_positions()
        journal = []
        for record, belongs in records_of(run):
            head = int.from_bytes(record[:8], "big")
            journal.append(_placed(record, head, data_end, qlist_end))
            if head >> TYPE_SHIFT == _MESSAGE:
                message = Message(b"", None, crc=int.from_bytes(record[52:56], "big"))
                checked(message, belongs)
                data_end += len(belongs)
            else:
                qlist_end += len(belongs)
        self._files.append_next(journal, [run.data], [run.qlist])
        ends, sizes = self._files.next_positions(), self._files.sizes
        if any(end > size for end, size in zip(ends, (sizes.journal, sizes.data, sizes.qlist), strict=True)):
            raise OSError(errno.ENOSPC, "an image is larger than the files may be")

    def complete(self, at: Psn, wall: int) -> Callable[[], None]:
        """All parts are here. What makes them the current file set, for a thread: the old one goes to the archive."""
        mark, data, qlist = self._files.next_positions()
        self._files.append_next([pack_sync_point(at[1], at[0], wall, SyncPoint.REGULAR, self._node_id, data, qlist)], [], [])
        return lambda: self._files.finish_roll(mark, damaged=False)

    def abandon(self) -> None:
        """It does not come to its end."""
        self._files.abandon_roll()


# ---- records on their way ----------------------------------------------------------------------------------------------


def records_of(run: RecordRun) -> list[tuple[bytes, bytes]]:
    """The JOURNAL records of a run, each with the DATA or QLIST record that belongs to it. PeerError if they do not fit."""
    found, data_at, qlist_at = list[tuple[bytes, bytes]](), 0, 0
    journal, data, qlist = run.journal, run.data, run.qlist
    if len(journal) % RECORD_BYTES:
        raise PeerError("no whole records", "journal", len(journal))
    for at in range(0, len(journal), RECORD_BYTES):
        record = journal[at:at + RECORD_BYTES]
        kind, belongs = record[0] >> 4, b""
        if kind == _MESSAGE:
            if data_at + DATA_HEADER.size > len(data):
                raise PeerError("a DATA record is missing", "data", data_at)
            size = (DATA_HEADER.unpack_from(data, data_at)[0] & DATA_WORDS_MASK) << 2
            belongs = data[data_at:data_at + size]
            data_at += size
            if size <= DATA_HEADER.size or data_at > len(data):
                raise PeerError("a DATA record is cut short", "data", data_at)
        elif kind == _QUEUE_OP and record[_QLIST_AT - 1] in _LISTED:
            if qlist_at + QUEUE_RECORD_HEADER.size > len(qlist):
                raise PeerError("a QLIST record is missing", "qlist", qlist_at)
            size = (QUEUE_RECORD_HEADER.unpack_from(qlist, qlist_at)[2] & QUEUE_RECORD_WORDS_MASK) << 2
            belongs = qlist[qlist_at:qlist_at + size]
            qlist_at += size
            if not size or qlist_at > len(qlist):
                raise PeerError("a QLIST record is cut short", "qlist", qlist_at)
        found.append((record, belongs))
    if data_at != len(data) or qlist_at != len(qlist):
        raise PeerError("more DATA or QLIST than records", "data", data_at)
    return found


def checked(message: Message, data: bytes) -> int:
    """Complete a message from its DATA record; the bytes of that. RecordMismatch if the record is not what was written."""
    offset = message.data_offset * 8
    probe = offset or DATA_HEADER.size * 8
    message.data_offset = probe >> 3
    good, damaged = check_messages(lambda at, size: data[at - probe:at - probe + size], [message])
    message.data_offset = offset >> 3
    if damaged or good != len(data):
        raise RecordMismatch(f"the data of message {message.guid.hex().upper()}: {', '.join(damaged) or 'wrong size'}")
    return good


def _placed(record: bytes, head: int, data_end: int, qlist_end: int) -> bytes:
    """A record with the offsets of our own files."""
    kind = head >> TYPE_SHIFT
    if kind == _MESSAGE:
        return record[:_DATA_AT] + (data_end >> 3).to_bytes(4, "big") + record[_DATA_AT + 4:]
    if kind == _QUEUE_OP and record[_QLIST_AT - 1] in _LISTED:
        return record[:_QLIST_AT] + (qlist_end >> 2).to_bytes(4, "big") + record[_QLIST_AT + 4:]
    if kind == _JOURNAL_OP:
        return (record[:_MARKS_AT] + (data_end >> 3).to_bytes(4, "big") + (qlist_end >> 2).to_bytes(4, "big")
                + record[_MARKS_AT + 8:])
    return record


def _attachment(files: PartitionFiles, record: bytes, head: int) -> bytes:
    """The DATA or QLIST record of a JOURNAL record, from the same files."""
    kind = head >> TYPE_SHIFT
    if kind == _MESSAGE:
        offset = int.from_bytes(record[_DATA_AT:_DATA_AT + 4], "big") * 8
        header = files.read_data(offset, DATA_HEADER.size)
        size = (DATA_HEADER.unpack(header)[0] & DATA_WORDS_MASK) << 2 if len(header) == DATA_HEADER.size else 0
        data = files.read_data(offset, size)
        if size <= DATA_HEADER.size or len(data) != size:
            raise OSError(errno.EIO, f"DATA holds no record at offset {offset}")
        return data
    if kind == _QUEUE_OP and record[_QLIST_AT - 1] in _LISTED:
        offset = int.from_bytes(record[_QLIST_AT:_QLIST_AT + 4], "big") * 4
        header = files.read_qlist(offset, QUEUE_RECORD_HEADER.size)
        if len(header) < QUEUE_RECORD_HEADER.size:
            raise OSError(errno.EIO, f"QLIST holds no record at offset {offset}")
        return files.read_qlist(offset, (QUEUE_RECORD_HEADER.unpack(header)[2] & QUEUE_RECORD_WORDS_MASK) << 2)
    return b""


def _message_record(message: Message) -> bytes:
    ref_count = min(message.ref_count, REF_COUNT_MAX)
    return MESSAGE.pack(MESSAGE_HEAD | (ref_count & FLAGS_MASK) << FLAGS_SHIFT | message.sequence, message.lease,
                        message.wall, ref_count >> REF_COUNT_LOW_BITS, message.compression, message.queue_key,
                        message.data_offset, message.guid, message.crc, MAGIC)
