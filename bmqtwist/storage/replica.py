"""Replicated partition of a cluster: the primary writes its log, the replicas append the same records.

    primary    appends as a single broker does
    replica    `append_run` checks received records, sets the offsets of its own files and applies them; it rolls over where
               its primary does, or when a file is full, without records of its own
    both       keep the last RECENT_BYTES (8 MiB, objects included) of records in memory, to send them to replicas
               (`recent_run`); older ones are read from the files (`read_run`)
    cut        `journal_end_at` returns the end of JOURNAL without the records after a PSN; then the files are read again

After a cut or an image (`image.py`), a new `ReplicatedPartition` replaces this one over the same files.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections import deque
from itertools import islice

from bmqtwist.errors import PeerError
from bmqtwist.storage.availability import WriterEvent
from bmqtwist.storage.exchange import READ_BYTES, Applier, ReadAhead, build_run, divide_run, records_of, run_after
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.found_log import FoundLog
from bmqtwist.storage.gate import Copies
from bmqtwist.storage.journal import is_sync_point
from bmqtwist.storage.layout import JOURNAL_OP_RECORD, MESSAGE_RECORD, QUEUE_OP_RECORD
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Durability, Partition, PayloadDamaged
from bmqtwist.storage.partition_log import merge_batches
from bmqtwist.storage.psn import LogSummary, Psn, RecordRun, join_runs
from bmqtwist.storage.records import (
    MAGIC,
    RECORD,
    RECORD_BYTES,
    SEQUENCE_MASK,
    TYPE_SHIFT,
    QueueOp,
    RecordType,
    SyncPoint,
    with_offsets,
)
from bmqtwist.storage.store import PAYLOAD_CACHE_BYTES, SYNC_POINT_RESERVE_BYTES

RUN_BYTES, RUN_RECORDS_MAX = 1 << 20, 4096  # limits of a written batch for it to stay in memory
MESSAGE_RECORDS_MAX = 128  # per message to another node, which applies it in one turn
RECENT_BYTES = 8 << 20  # of the last runs, in memory
_RUN_OVERHEAD_BYTES = 320  # of one run: its object, PSNs and byte strings; counted, since most runs hold one or two records
DELAYED_BATCHES_MAX = 16  # that replication may delay

_MESSAGE, _QUEUE_OP, _JOURNAL_OP = int(RecordType.MESSAGE), int(RecordType.QUEUE_OP), int(RecordType.JOURNAL_OP)
_KEY_AT, _GUID_AT = MESSAGE_RECORD.offset("queue_key"), MESSAGE_RECORD.offset("guid")
_OP_AT = QUEUE_OP_RECORD.offset("qlist_words") - 1
_KIND_AT, _NODE_AT = JOURNAL_OP_RECORD.offset("sync_point_type"), JOURNAL_OP_RECORD.offset("node")


def _previous(run: RecordRun) -> Psn:
    return run.previous


class ReplicatedPartition(Partition):
    """Partition of a cluster member, `found` in its files. It is a replica before `activate` and after `become_replica`."""

    def __init__(self, node_id: int, files: FileSets, found: FoundLog, durability: Durability = "group",
                 cache_bytes: int = PAYLOAD_CACHE_BYTES, epoch: float = 0.0, wall: int = 0) -> None:
        super().__init__(node_id, files, found.recovered, durability, cache_bytes)
        self._set_primary(False)
        self.log.has_replicas = True
        self._summary, self._to_repair = found.summary, found.recovered.to_repair
        self._lease_starts: deque[tuple[int, int]] = deque([(0, self.lease)])  # (position before a lease, the lease)
        self._recent: deque[RecordRun] = deque()
        self._recent_bytes = 0
        self._applier = Applier(self.state, self.roll, self.begin_lease, epoch)
        if self._rewrite:
            self._begin_rewrite(wall)
        self.files.sync()  # recovered records may be in the page cache only
        self.gate.written = self.position
        self.gate.mark_all_durable()
        self.copies.committed = 0

    def _set_primary(self, is_primary: bool) -> None:
        """Set whether this node is the primary."""
        self.log.is_primary = self.log.retains_batches = self.replicated = is_primary
        self.log.update_journal_limit()

    # ---- PSNs ----------------------------------------------------------------------------------------------------

    @property
    def summary(self) -> LogSummary:
        """Summary of the log, unwritten records included."""
        last = self.state.lease, self.state.sequence
        if last != self._summary.last:
            self._summary = self._summary.extended(last)
        return self._summary

    def psn_at(self, position: int) -> Psn:
        """Return the PSN of the record at a position."""
        for before, lease in reversed(self._lease_starts):
            if position > before:
                return lease, position - before
        return self._lease_starts[0][1], position - self._lease_starts[0][0]

    @property
    def written_psn(self) -> Psn:
        """PSN of the last record in the files."""
        return self.psn_at(self.gate.written)

    @property
    def durable_psn(self) -> Psn:
        """PSN of the last record that is durable, or written if durability is `none`."""
        return self.psn_at(self.gate.written if self.durability == "none" else self.gate.durable)

    def mark_committed(self, psn: Psn) -> None:
        """Mark the records of this primary's lease up to `psn` as committed."""
        if psn[0] == self.lease and self.is_primary:
            self.copies.marks[Copies.MAJORITY] = self.log.base + psn[1]

    def update_copy_marks(self, one: Psn, every: Psn) -> bool:
        """Raise the marks: one replica has the records of the present lease up to `one`, all have them up to `every`. True
        if a mark rose."""
        majority, before = self.copies.marks[Copies.MAJORITY], self.copies.marks
        some = self.log.base + one[1] if one[0] == self.lease else 0
        whole = self.log.base + every[1] if every[0] == self.lease else 0
        self.copies.marks = [before[Copies.NONE], max(before[Copies.ONE], some, majority), majority,
                      max(before[Copies.ALL], min(whole, majority))]
        return self.copies.marks != before

    def begin_lease(self, lease: int) -> None:
        self._summary = self.summary
        self.log.base += self.sequence
        self.state.begin_lease(lease)
        self._lease_starts.append((self.log.base, lease))

    # ---- the primary ---------------------------------------------------------------------------------------------

    def activate(self, lease: int, wall: int) -> None:
        """Become primary, see `Partition.activate`; the records appended as a replica must be written."""
        self._summary = self.summary
        self._set_primary(True)
        self.log.primary_id = self.log.node_id
        super().activate(lease, wall)
        self._lease_starts.append((self.log.base, lease))

    def become_replica(self) -> bool:
        """Become a replica. False: decisions of the queues are not in the files, so the log must be cut and read again."""
        self._set_primary(False)
        self.log.on_event(WriterEvent.FOLLOW)
        self.copies.counts_copies = False
        self.copies.committed = self._recent_bytes = 0
        self.drop_effects()
        self._recent.clear()
        self.log.take_batches()
        for queue in [queue for queue in self.state.queues.values() if queue.in_memory]:
            for message in [message for message in queue.messages.values() if message.live_key < 0]:
                queue.remove_message(message)
        clean = not self.log.pending_records and not self.tail.journal
        self.log.pending_records.clear()
        return clean

    def drop_effects(self) -> None:
        self.gate.effects = []

    def _on_switched(self) -> None:
        super()._on_switched()
        self._summary = self.summary.rebased(self.roll.base)

    # ---- reading for other nodes -----------------------------------------------------------------------------------

    @property
    def may_delay_replication(self) -> bool:
        """True if replication of the batches since `collect_runs` may be delayed: no effect depends on them (CONFIRMs)."""
        batches, waiting = self.log.batches, self.gate.effects
        if not batches or len(batches) > DELAYED_BATCHES_MAX or waiting and waiting[-1].position >= batches[0].first:
            return False
        return not any(batch.data or batch.qlist for batch in batches)

    @property
    def collected_psn(self) -> Psn:
        """PSN of the last written record that `collect_runs` has processed."""
        return self.psn_at(self.log.batches[0].first - 1) if self.log.batches else self.written_psn

    def collect_runs(self) -> bool:
        """Turn the batches written since the last call into runs for the replicas; True if there were any."""
        batches = merge_batches(self.log.take_batches(), RUN_RECORDS_MAX)
        for batch in batches:
            previous, last = self.psn_at(batch.first - 1), self.psn_at(batch.first + len(batch.journal) - 1)
            run = RecordRun(previous, last, b"".join(batch.journal), b"".join(batch.data), b"".join(batch.qlist))
            if run.size <= RUN_BYTES and len(batch.journal) <= RUN_RECORDS_MAX:
                for part in divide_run(run, MESSAGE_RECORDS_MAX):
                    self._add_recent(part)
        return bool(batches)

    def _add_recent(self, run: RecordRun) -> None:
        """Add a run to the last ones in memory; a replica may need it after a rollover has removed its records."""
        self._recent.append(run)
        self._recent_bytes += run.size + _RUN_OVERHEAD_BYTES
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= self._recent.popleft().size + _RUN_OVERHEAD_BYTES

    def can_send_after(self, after: Psn) -> bool:
        """Return whether the records after `after` are, or will be, available from `recent_run` or `read_run`."""
        return self.summary.contains(after) or after == self.collected_psn or self._recent_at(after) >= 0

    def bytes_after(self, after: Psn) -> int:
        """Estimate the bytes of the records after `after`: exact for runs in memory, by the average size for older ones."""
        wanted, counted, size = self.summary.distance(after), 0, 0
        for run in reversed(self._recent):
            if run.last <= after or counted >= wanted:
                break
            size += run.size
            counted += len(run.journal) // RECORD_BYTES
        if counted > wanted:
            return size * wanted // counted
        journal, data, _ = self.tail.positions()
        return size + (wanted - counted) * (journal + data) // max(1, journal // RECORD_BYTES)

    def recent_run(self, after: Psn) -> RecordRun | None:
        """Return records that follow `after`, for one message to a replica; None if they are not in memory."""
        if self._recent and self._recent[-1].previous == after:
            return self._recent[-1]
        at = self._recent_at(after)
        if at < 0:
            return None
        runs = islice(self._recent, at, None)
        found = [run_after(next(runs), after)]
        size, room = found[0].size, RECORD_BYTES * MESSAGE_RECORDS_MAX - len(found[0].journal)
        for run in runs:
            size, room = size + run.size, room - len(run.journal)
            if run.previous != found[-1].last or size > READ_BYTES or room < 0:
                break
            found.append(run)
        return join_runs(found)

    def _recent_at(self, after: Psn) -> int:
        """Return the index of the run in memory that continues after `after`; -1 if there is none."""
        at = bisect_right(self._recent, after, key=_previous) - 1
        return at if at >= 0 and self._recent[at].continues(after) else -1

    def read_run(self, after: Psn) -> RecordRun | None:
        """Read records that follow `after` from the files, for one message; None if the log has none. OSError."""
        summary = self.summary
        count = summary.distance(after) - len(self.tail.journal)
        if count <= 0 or not summary.contains(after):
            return None
        start = self.files.current.journal.end - RECORD_BYTES * count
        journal = self.files.read_journal(start, RECORD_BYTES * min(count, MESSAGE_RECORDS_MAX))
        if len(journal) < RECORD_BYTES:
            raise OSError(errno.EIO, "JOURNAL is shorter than its records")
        reader = ReadAhead(self.files, self.files.current.data.end)
        try:
            return build_run(reader, journal, after, start)
        except OSError:
            self.find_damage(journal)
            raise

    def find_damage(self, journal: bytes) -> None:
        """Begin the repair of each damaged message that is live and among these JOURNAL records."""
        for at in range(0, len(journal), RECORD_BYTES):
            record = journal[at:at + RECORD_BYTES]
            queue = self.state.queues.get(record[_KEY_AT:_KEY_AT + 5]) if record[0] >> 4 == _MESSAGE else None
            message = queue.messages.get(record[_GUID_AT:_GUID_AT + 16]) if queue is not None else None
            if message is not None:
                self._check_message(message)

    def begin_repairs(self) -> None:
        """Begin the repair of the messages whose data were damaged when the files were read."""
        for message in self._to_repair:
            self._check_message(message)
        self._to_repair = []

    def _check_message(self, message: Message) -> None:
        """Begin the repair of a message if its stored data is damaged."""
        try:
            self.payloads.read_record(message)
        except PayloadDamaged:
            return  # its repair has begun

    # ---- the replica -----------------------------------------------------------------------------------------------

    def append_run(self, run: RecordRun, after: Psn, wall: int) -> None:
        """Append the records of `run` after `after`, the last PSN of this log. PeerError or RecordMismatch: a record does
        not fit; the records before it are appended. OSError: the files are full."""
        self._applier.wall = wall
        state, tail = self.state, self.tail
        head: int
        lease: int
        recorded: int
        for record, attached in records_of(run):
            head, lease, recorded, body, magic = RECORD.unpack(record)
            psn = lease, head & SEQUENCE_MASK
            if psn <= after:
                continue
            follows = (psn == (state.lease, state.sequence + 1) or lease > state.lease and psn[1] == 1
                       and is_sync_point((head, lease, recorded, body, magic)))
            if magic != MAGIC or not follows:
                raise PeerError(f"record {lease}-{psn[1]} does not follow {state.lease}-{state.sequence}", "journal", 0)
            kind = head >> TYPE_SHIFT
            self._make_room(len(attached) if kind == _MESSAGE else 0, len(attached) if kind == _QUEUE_OP else 0, wall)
            own = with_offsets(record, head, tail.data_end, tail.qlist_end)
            self._applier.apply(own, attached)
            state.sequence = psn[1]
            tail.journal.append(own)
            tail.journal_end += RECORD_BYTES
            if kind == _MESSAGE:
                tail.data.append(attached)
                tail.data_end += len(attached)
            elif attached:
                tail.qlist.append(attached)
                tail.qlist_end += len(attached)
            if kind == _QUEUE_OP:
                self.log.reports.info(
                    f"Received QueueOpRecord of type [{QueueOp(own[_OP_AT]).name}], PSN {psn[0]}-{psn[1]}")
            elif kind == _JOURNAL_OP:
                self._on_sync_point(own, wall)
        self._add_recent(run)

    def _on_sync_point(self, record: bytes, wall: int) -> None:
        """Roll over where the primary did, so that the files stay equal."""
        self.log.primary_id = int.from_bytes(record[_NODE_AT:_NODE_AT + 4], "big", signed=True)
        if record[_KIND_AT] == SyncPoint.ROLLOVER:
            if self.roll.is_small:
                self.roll.finish_at_once(wall)
            else:
                self.roll.begin(wall)

    def _make_room(self, data: int, qlist: int, wall: int) -> None:
        if not self._has_room(data, qlist) and (not self.roll.finish_at_once(wall) or not self._has_room(data, qlist)):
            raise OSError(errno.ENOSPC, f"Partition [{self.partition_id}] is full")

    def _has_room(self, data: int, qlist: int) -> bool:
        """Return whether one more record fits, with `data` bytes in DATA and `qlist` bytes in QLIST."""
        tail, sizes = self.tail, self.files.sizes
        return (tail.data_end + data <= sizes.data and tail.qlist_end + qlist <= sizes.qlist
                and tail.journal_end + RECORD_BYTES + SYNC_POINT_RESERVE_BYTES <= sizes.journal)

    def journal_end_at(self, psn: Psn | None) -> int | None:
        """Return the end of JOURNAL, bytes, if `psn` were the last record of the log; None for its present end."""
        if psn is None:
            return None
        return self.files.current.journal.end - RECORD_BYTES * max(0, self.summary.distance(psn) - len(self.tail.journal))

    def abandon(self, wall: int) -> None:
        """Stop all work before another partition replaces this one; the log ends with the last record in the files."""
        self.payloads.closed = True
        self.roll.stop(wall)
        unwritten = len(self.tail.journal)
        if 0 < unwritten < self.sequence:
            self._summary = self.summary.truncated((self.lease, self.sequence - unwritten))
            self.state.sequence -= unwritten
        self.tail.clear()
