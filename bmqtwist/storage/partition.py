"""The writer of one partition, at its primary: operations in, records out, effects released when records are safe.

Each operation makes its record, applies it to the `PartitionState` and adds it to the batch of the turn. Batches leave
by one door, `write_batch`: the files first, then whoever replicates (`take_batches`).

Every record has a position, the number of records this process has appended before it and one, and a PSN (lease,
sequence). Neither is ever given twice, and none is left out: a record that could not be written stays in the batch.

What may not be refused is *owed* when it cannot be appended, because the partition is disabled, full, or its disk fails:
the state changes at once, and the record is appended as soon as the partition takes records again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from bmqtwist.errors import LocalError
from bmqtwist.ids import NULL_KEY
from bmqtwist.storage import payloads
from bmqtwist.storage.batch import Batch
from bmqtwist.storage.copies import COMMITTED_ALL, CopyMarks
from bmqtwist.storage.gate import Gate, Gated
from bmqtwist.storage.long_dict import RisingDict
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import (
    CONFIRM_HEAD,
    DATA_HEADER,
    DATA_HEADER_START,
    DATA_OPTION_BYTES_SHIFT,
    DELETION_HEAD,
    FLAGS_MASK,
    FLAGS_SHIFT,
    MESSAGE_HEAD,
    PADS,
    RECORD_BYTES,
    REF_COUNT_LOW_BITS,
    ConfirmReason,
    QueueOp,
    SyncPoint,
    pack_confirm_record,
    pack_data_header,
    pack_deletion_record,
    pack_message_record,
    pack_queue_op,
    pack_queue_record,
    pack_sync_point,
)
from bmqtwist.storage.rollover import BEGIN_PERCENT, Rollover
from bmqtwist.storage.space import AVAILABLE_PERCENT_MIN, SOFT_LIMIT_PERCENT, SoftLimit, leaves_enough
from bmqtwist.storage.state import Live, PartitionState, Steps, StoredQueue
from bmqtwist.storage.store import (
    AHEAD_BYTES,
    BEGINNING_BYTES,
    PAYLOAD_CACHE_BYTES,
    PURGE_RESERVE_BYTES,
    SYNC_POINT_RESERVE_BYTES,
    PartitionFiles,
)
from bmqtwist.storage.unavailable import PartitionUnavailable, PayloadDamaged

if TYPE_CHECKING:
    from bmqtwist.storage.recovery import RecoveredPartition

__all__ = ["COMMITTED_ALL", "Batch", "Durability", "Message", "Partition", "PartitionUnavailable", "PayloadDamaged"]

Durability = Literal["none", "group", "always"]

_NORMAL_RESERVE: Final = RECORD_BYTES + SYNC_POINT_RESERVE_BYTES + PURGE_RESERVE_BYTES
_DATA_HEADER_BYTES: Final = DATA_HEADER.size


class Partition(CopyMarks):
    """The primary's side of one partition. It takes records once it has a lease (`activate`)."""

    leading = True  # as of `storage.rollover.RolledPartition`

    def __init__(self, partition_id: int, node_id: int, files: PartitionFiles,
                 recovered: RecoveredPartition | None = None, durability: Durability = "group",
                 cache_bytes: int = PAYLOAD_CACHE_BYTES) -> None:
        self.partition_id, self.files, self.durability = partition_id, files, durability
        self.node_id = self.primary_id = node_id
        self.state = PartitionState() if recovered is None else recovered.state
        self.replicated = False  # keep batches for `take_batches`
        self.waiters = {}
        self.committed = COMMITTED_ALL  # position up to which the cluster has the records
        self._base = 0  # position = _base + sequence
        self._journal, self._data, self._qlist = list[bytes](), list[bytes](), list[bytes]()
        self._batches: list[Batch] = []
        self._owed: deque[Callable[[int], None]] = deque()
        self._paying = False
        self._cache_max, self._drop = cache_bytes, list[Message]()
        self._gate = Gate()
        self.large = False  # the batch is written over several turns
        self._unmarked = False  # records since the last sync point
        self.broken = False  # a sync has failed: nothing is taken until a restart
        self._disabled = self._full = self._write_failed = self._readonly_alarmed = self._rewrite = False
        self._soft_limit = SoftLimit()
        self._alarms: list[tuple[str, str]] = []
        self.listener: Callable[[str], None] = lambda text: None  # who is told what the partition does
        self.watcher: Callable[[], None] | None = None  # who looks at it after it has written or synced in a turn
        if recovered is not None:
            self._adopt(recovered)
        self.roll = Rollover(self)
        self.roll_due = False  # `roll.step` has something to do
        sizes = files.sizes
        self._roll_journal, self._roll_data, self._roll_qlist = (
            size * BEGIN_PERCENT // 100 for size in (sizes.journal, sizes.data, sizes.qlist))
        self._take_positions()
        self._data_limit = sizes.data
        self._set_journal_limit()

    def _take_positions(self) -> None:
        self._journal_end, self._qlist_end = self.files.journal_position, self.files.qlist_position
        self._data_end = self._data_written = self.files.data_position

    def _adopt(self, recovered: RecoveredPartition) -> None:
        self._alarms += [("RECOVERY", f"Partition [{self.partition_id}]: {text}") for text in recovered.alarms]
        self._rewrite = recovered.damaged
        if not recovered.damaged:
            self.files.resume(recovered.journal_end, recovered.data_end, recovered.qlist_end)

    @property
    def lease(self) -> int:
        """Of the last record; 0 = this partition was never led."""
        return self.state.lease

    @property
    def sequence(self) -> int:
        """Of the last record."""
        return self.state.sequence

    @property
    def position(self) -> int:
        """How many records this process has appended."""
        return self._base + self.state.sequence

    @property
    def live(self) -> RisingDict[Live]:
        """The records that a rollover would keep, see `PartitionState.live`."""
        return self.state.live

    # ---- what may be written -------------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        """Whether records are taken: not disabled by an operator, not full, no failed disk."""
        return not (self._disabled or self._full or self._write_failed or self.broken)

    def disable(self) -> None:
        """Take no more records (admin command)."""
        self._disabled = True
        self._set_journal_limit()

    def enable(self) -> None:
        """Take records again (admin command)."""
        self._disabled = False
        self._set_journal_limit()

    def outstanding(self) -> tuple[int, int, int]:
        """Bytes of JOURNAL, DATA, QLIST that a rollover would keep."""
        return self.state.outstanding()

    def positions(self) -> tuple[int, int, int]:
        """Bytes of JOURNAL, DATA, QLIST in use, the unwritten turn included."""
        return self._journal_end, self._data_end, self._qlist_end

    def _set_journal_limit(self) -> None:
        """Hot paths compare one number: below 0 sends every append the slow way, which says why or pays what is owed."""
        free = self.available and self.leading and not self._owed
        self._journal_limit = self.files.sizes.journal - _NORMAL_RESERVE if free else -1

    def _refuse(self) -> None:
        if not (self.available and self.leading):
            why = ("led by another node, or by none" if not self.leading else "disabled by an operator" if self._disabled
                   else "full: purge a queue" if self._full else "failing to write its files")
            raise PartitionUnavailable(f"Partition [{self.partition_id}] is {why}")

    def may_roll(self, needed: tuple[int, int, int]) -> bool:
        """Would a rollover leave enough of every file free, `needed` bytes of each taken?"""
        return leaves_enough(self.files.sizes, self.outstanding(), needed)

    def _make_room(self, data: int, qlist: int, wall: int) -> None:
        """Pay what is owed and roll over, so that one record with `data` and `qlist` bytes fits: or PartitionUnavailable."""
        self._refuse()
        if self._owed and not self._paying:
            self._pay(wall)
        sizes = self.files.sizes
        if self._data_end + data > sizes.data:
            name, needed = "DATA", (0, data, 0)
        elif self._qlist_end + qlist > sizes.qlist:
            name, needed = "QLIST", (0, 0, qlist)
        elif self._journal_end > sizes.journal - _NORMAL_RESERVE:
            name, needed = "JOURNAL", (_NORMAL_RESERVE, 0, 0)
        else:
            return
        if self.may_roll(needed):
            if self._roll(wall):
                return
            raise PartitionUnavailable(f"Partition [{self.partition_id}] cannot roll over: see its alarms")
        if self.state.leaving:
            raise PartitionUnavailable(f"Partition [{self.partition_id}] has no room until a purge is over")
        if not self._readonly_alarmed:
            self._readonly_alarmed = True
            self._alarms.append(("PARTITION_READONLY", self._space_text(
                f"cannot take more: its {name} file is full and a rollover would not free {AVAILABLE_PERCENT_MIN}%."
                " Purge a queue as a whole.")))
        if name == "JOURNAL":
            self._full = True
            self._set_journal_limit()
        raise PartitionUnavailable(f"Partition [{self.partition_id}] is full ({name} file)")

    def _pay(self, wall: int) -> None:
        """Append the records that are owed, oldest first; what finds no room stays owed."""
        self._paying = True
        try:
            while self._owed:
                self._owed[0](wall)
                self._owed.popleft()
        finally:
            self._paying = False
            self._set_journal_limit()

    def _owe(self, record: Callable[[int], None]) -> None:
        self._owed.append(record)
        self._set_journal_limit()

    def _space_text(self, what: str) -> str:
        return f"Partition [{self.partition_id}] {what} Outstanding: {self.files.sizes.shares(self.outstanding())}."

    # ---- messages ------------------------------------------------------------------------------------------------

    def append_message(self, queue_key: bytes, message: Message, wall: int) -> None:
        """DATA and MESSAGE of a message whose `payload`, `crc`, `ref_count`, … are set; sets offset, PSN, `pending`."""
        state = self.state
        options, payload = message.options, message.payload
        content = _DATA_HEADER_BYTES + len(options) + message.size
        size = (content & -8) + 8
        offset = self._data_end
        if offset + size > self._data_limit or self._journal_end > self._journal_limit:
            self._make_room(size, 0, wall)
            offset = self._data_end
        ref_count = message.ref_count
        sequence = state.sequence + 1
        lease = state.lease
        record = pack_message_record(
            MESSAGE_HEAD | (ref_count & FLAGS_MASK) << FLAGS_SHIFT | sequence, lease, wall, ref_count >> REF_COUNT_LOW_BITS,
            message.compression, queue_key, offset >> 3, message.guid, message.crc)
        header = pack_data_header(DATA_HEADER_START | size >> 2,
                                  len(options) << DATA_OPTION_BYTES_SHIFT | message.has_properties, message.schema_id)
        state.sequence = sequence
        self._journal.append(record)
        if options:
            self._data += (header, options, payload, PADS[size - content])  # type: ignore[arg-type]
        else:
            self._data += (header, payload, PADS[size - content])  # type: ignore[arg-type]
        self._journal_end += RECORD_BYTES
        self._data_end = offset + size
        if size > AHEAD_BYTES:
            self.large = True
        message.data_offset = offset >> 3
        message.lease, message.sequence = lease, sequence
        message.wall = wall
        state.message(state.queues[queue_key], message, size)
        if state.cached_bytes > self._cache_max:
            self._drop.append(message)

    def append_confirm(self, queue_key: bytes, app_key: bytes, message: Message, reason: int, wall: int) -> None:
        """One app of several is done with a message (the last one writes only the DELETION). Owed if need be."""
        state = self.state
        queue = state.queues[queue_key]
        if self._journal_end > self._journal_limit:
            try:
                self._make_room(0, 0, wall)
            except PartitionUnavailable:
                message.pending &= ~queue.bit(app_key)
                self._owe(partial(self._owed_confirm, queue_key, app_key, message, reason))
                return
        sequence = state.sequence + 1
        record = pack_confirm_record(CONFIRM_HEAD | reason << FLAGS_SHIFT | sequence, state.lease, wall, queue_key, app_key,
                                     message.guid)
        state.sequence = sequence
        self._journal.append(record)
        self._journal_end += RECORD_BYTES
        state.confirm(queue, queue.bit(app_key), message, record)

    def append_auto_confirm(self, queue_key: bytes, app_key: bytes, guid: bytes, wall: int) -> None:
        """An app does not want the message `guid`, which is appended next."""
        if self._journal_end > self._journal_limit:
            self._make_room(0, 0, wall)
        state = self.state
        queue = state.queues[queue_key]
        sequence = state.sequence + 1
        record = pack_confirm_record(CONFIRM_HEAD | ConfirmReason.AUTO_CONFIRMED << FLAGS_SHIFT | sequence, state.lease,
                                     wall, queue_key, app_key, guid)
        state.sequence = sequence
        self._journal.append(record)
        self._journal_end += RECORD_BYTES
        state.auto_confirm(queue, queue.bit(app_key), guid, record)

    def append_deletion(self, queue_key: bytes, message: Message, reason: int, wall: int) -> None:
        """The message is gone; it and its CONFIRMs are no longer live. Owed if need be."""
        state = self.state
        if self._journal_end > self._journal_limit:
            try:
                self._make_room(0, 0, wall)
            except PartitionUnavailable:
                if self.roll.copy is not None:
                    self.roll.copy.ended_unsaid(message.live_key, message.guid)
                state.deletion(state.queues[queue_key], message)
                self._owe(partial(self._owed_deletion, queue_key, message.guid, reason))
                return
        sequence = state.sequence + 1
        record = pack_deletion_record(DELETION_HEAD | reason << FLAGS_SHIFT | sequence, state.lease, wall, queue_key,
                                      message.guid)
        state.sequence = sequence
        self._journal.append(record)
        self._journal_end += RECORD_BYTES
        if self.roll.copy is not None:
            self.roll.copy.ended(message.live_key, sequence, record)
        state.deletion(state.queues[queue_key], message)

    def _owed_deletion(self, queue_key: bytes, guid: bytes, reason: int, wall: int) -> None:
        """A DELETION that was owed."""
        self._make_room(0, 0, wall)
        state = self.state
        record = pack_deletion_record(DELETION_HEAD | reason << FLAGS_SHIFT | state.sequence + 1, state.lease, wall,
                                      queue_key, guid)
        self._append(record)
        if self.roll.copy is not None:
            self.roll.copy.said(guid, state.sequence, record)

    def _owed_confirm(self, queue_key: bytes, app_key: bytes, message: Message, reason: int, wall: int) -> None:
        """A CONFIRM that was owed, if it still says something."""
        if message.live_key < 0 or queue_key not in self.state.queues:
            return
        self._make_room(0, 0, wall)
        state = self.state
        record = pack_confirm_record(CONFIRM_HEAD | reason << FLAGS_SHIFT | state.sequence + 1, state.lease, wall, queue_key,
                                     app_key, message.guid)
        queue = state.queues[queue_key]
        self._append(record)
        state.confirm(queue, queue.bit(app_key), message, record)

    # ---- queues --------------------------------------------------------------------------------------------------

    def create_queue(self, queue_key: bytes, uri: str, apps: list[tuple[str, bytes]], wall: int) -> StoredQueue:
        """QLIST record and CREATION of a queue with its apps (appId, appKey) in order of creation."""
        record, entry = self._queue_records(QueueOp.CREATION, queue_key, uri, apps, wall)
        return self.state.create(queue_key, uri, apps, record, entry)

    def add_apps(self, queue_key: bytes, uri: str, apps: list[tuple[str, bytes]], wall: int) -> None:
        """QLIST record with the added apps, and ADDITION."""
        record, entry = self._queue_records(QueueOp.ADDITION, queue_key, uri, apps, wall)
        self.state.add_apps(self.state.queues[queue_key], apps, record, entry)

    def _queue_records(self, op: QueueOp, queue_key: bytes, uri: str, apps: list[tuple[str, bytes]],
                       wall: int) -> tuple[bytes, bytes]:
        entry = pack_queue_record(uri, queue_key, apps)
        if self._qlist_end + len(entry) > self.files.sizes.qlist or self._journal_end > self._journal_limit:
            self._make_room(0, len(entry), wall)
        record = pack_queue_op(self.sequence + 1, self.lease, wall, queue_key, NULL_KEY, op, self._qlist_end)
        self._append(record)
        self._qlist.append(entry)
        self._qlist_end += len(entry)
        return record, entry

    def _append(self, record: bytes) -> None:
        """A record made with the next sequence number joins the batch."""
        self.state.sequence += 1
        self._journal.append(record)
        self._journal_end += RECORD_BYTES

    def purge(self, queue_key: bytes, app_key: bytes | None, start: Message | None, wall: int) -> Steps:
        """PURGE of a whole queue (`app_key` None), or of one app from the message `start` on; the caller has the rest done.

        It calls `append_deletion` for the messages that no app needs any more. The purge of a whole queue is taken even
        when the partition is full, and reopens it at its end.
        """
        whole = app_key is None
        if self._journal_end > self._journal_limit:
            try:
                self._make_room(0, 0, wall)
            except PartitionUnavailable:
                room = self._journal_end + RECORD_BYTES + SYNC_POINT_RESERVE_BYTES <= self.files.sizes.journal
                if not (whole and room and self.leading) or self._disabled or self._write_failed or self.broken:
                    raise
        start_psn = (start.lease, start.sequence) if start else (0, 0)
        record = pack_queue_op(self.sequence + 1, self.lease, wall, queue_key, app_key or NULL_KEY, QueueOp.PURGE, 0,
                               start_psn[1], start_psn[0])
        queue = self.state.queues[queue_key]
        self.inform(f"Writing PURGE record [{self.lease}, {self.sequence + 1}] of queue '{queue.uri}' [queueKey: "
                    f"{queue_key.hex().upper()}, appKey: {'*' if app_key is None else app_key.hex().upper()}]")
        self._append(record)
        if app_key is None:
            return self._reopening(self.state.purge(queue, record))
        return self.state.purge_app(queue, app_key, start_psn, record)

    def _reopening(self, steps: Steps) -> Steps:
        yield from steps
        if self._full:
            self._full = False  # the next append tries a rollover
            self._set_journal_limit()

    def delete_app(self, queue_key: bytes, app_key: bytes, wall: int) -> Steps:
        """DELETION of one app of a queue; the caller has the rest done, as for `purge`."""
        if self._journal_end > self._journal_limit:
            self._make_room(0, 0, wall)
        record = pack_queue_op(self.sequence + 1, self.lease, wall, queue_key, app_key, QueueOp.DELETION)
        self._append(record)
        return self.state.remove_app(self.state.queues[queue_key], app_key, record)

    def delete_queue(self, queue_key: bytes, wall: int) -> None:
        """DELETION of a queue: nothing of it is live any more."""
        if self._journal_end > self._journal_limit:
            self._make_room(0, 0, wall)
        record = pack_queue_op(self.sequence + 1, self.lease, wall, queue_key, NULL_KEY, QueueOp.DELETION)
        self._append(record)
        queue = self.state.queues.get(queue_key)
        if queue is not None:
            if self.roll.copy is not None and queue.live_keys:
                self.roll.copy.ended(queue.live_keys[0], self.sequence, record)
            self.state.delete(queue)

    # ---- reading back --------------------------------------------------------------------------------------------

    def read_payload(self, message: Message) -> bytes:
        """The application data of a message. PayloadDamaged: DATA has something else; OSError: it cannot be read."""
        if message.payload is not None:
            return message.payload
        try:
            return payloads.whole(self.files, message, self.roll.moved)
        except PayloadDamaged as error:
            self._alarms.append(("STORAGE", f"Partition [{self.partition_id}]: {error}; it is not delivered."))
            raise

    def read_beginning(self, message: Message, size: int = BEGINNING_BYTES) -> bytes:
        """The first bytes of the application data; unchecked, unless it is all there is."""
        if message.payload is not None or message.size <= size:
            return self.read_payload(message)
        return payloads.part(self.files, message, self.roll.moved, size)

    # ---- the turn ------------------------------------------------------------------------------------------------

    def hold(self, effect: Gated) -> None:
        """Keep an effect back until the records appended so far are safe by policy; sets its `position`."""
        effect.position = self._base + self.state.sequence
        self._gate.waiting.append(effect)

    @property
    def waiting(self) -> list[Any]:
        """What waits for records to be safe here, in order."""
        return self._gate.waiting

    def busy(self) -> bool:
        """Whether `flush` has anything to do."""
        return bool(self._journal or self._gate.waiting or self._owed)

    def flush(self, wall: int) -> list[Any]:
        """Write the turn's records, one write per file; the released effects, in order of `hold`.

        After a failed write its records are kept for the next flush, what waits for them goes on waiting, and no new
        ones are taken.
        """
        self.large = self.large and not self.broken and not self.files.append_ahead(self._data)
        if self.large or self.broken or self._journal and not self.write_batch():
            return []
        if self._owed and self.available:
            self._pay_late(wall)
        if self.durability == "none":
            return self._gate.release_written() if self._gate.waiting else []
        if self.durability == "always" and self._gate.durable != self._gate.written:
            try:
                self.files.sync()
            except OSError as error:
                self._sync_broke(error)
                return []
            self._gate.all_durable()
        return self._gate.release_durable()

    def _pay_late(self, wall: int) -> None:
        """Records that were owed are written in a turn that needs none of its own."""
        try:
            self._pay(wall)
        except PartitionUnavailable:
            pass  # said already; the rest stays owed
        if self._journal:
            self.write_batch()

    def write_batch(self, matters: bool = True) -> bool:
        """The one door of a batch; `matters` False if no effect can wait for what is in it."""
        self.large = False
        try:
            self.files.append(self._journal, self._data, self._qlist)
        except OSError as error:
            if not self._write_failed:
                self._alarms.append(("FILE_IO", f"Partition [{self.partition_id}] cannot be written: {error}."
                                                " Producers are refused until a retry succeeds."))
                self._write_failed = True
                self._set_journal_limit()
            return False
        position = self._base + self.state.sequence
        if self.replicated:
            self._batches.append(Batch(position - len(self._journal) + 1, self._journal, self._data, self._qlist))
        if self.roll.mirrors:
            self.roll.mirror(self._journal, self._data, self._qlist)
        self._journal, self._data, self._qlist = [], [], []
        self._data_written = self._data_end
        self._gate.wrote(position, matters)
        self._unmarked = True
        if (self._journal_end >= self._roll_journal or self._data_end >= self._roll_data
                or self._qlist_end >= self._roll_qlist):
            self.roll_due = True
        if self._write_failed:
            self._write_failed = False
            self._set_journal_limit()
        for message in self._drop:
            self.state.drop_payload(message)
        self._drop.clear()
        return True

    def take_batches(self) -> list[Batch]:
        """What was written since the last call, oldest first; nothing unless `replicated`."""
        batches, self._batches = self._batches, []
        return batches

    def wants_sync(self) -> int | None:
        """The token of a `sync` to run now (durability `group`), None if none is due or one is under way."""
        return self._gate.begin_sync() if self.durability == "group" and not self.broken else None

    @property
    def unwritten_bytes(self) -> int:
        """Of messages that are not written."""
        return self._data_end - self._data_written

    @property
    def awaited(self) -> tuple[int, bool]:
        """Position of the newest record that an effect waits for, 0 = none does; and whether a sync is under way."""
        return self._gate.newest, self._gate.running

    def sync(self) -> None:
        """fdatasync DATA, then JOURNAL: blocks, meant for a thread. An OSError must be reported to `sync_failed`."""
        self.files.sync()

    def synced(self, token: int, wall: int) -> list[Any]:
        """The sync `token` is done: the effects it releases."""
        return self._gate.release_durable() if self._gate.end_sync(token) else []

    def sync_failed(self, token: int, error: OSError) -> None:
        """The sync `token` failed: what the disk holds is unknown, so nothing more is taken until a restart."""
        if self._gate.is_running(token):
            self._sync_broke(error)

    def fail(self) -> None:
        """Something in here raised what nobody expected: nothing more is taken or written until a restart."""
        self.broken = True
        self._set_journal_limit()

    def _sync_broke(self, error: OSError) -> None:
        self.fail()
        self._alarms.append(("FILE_IO", f"Partition [{self.partition_id}] cannot be synced: {error}. It is closed to"
                                        " producers; check the disk and restart."))

    # ---- sync points, primary, stop ------------------------------------------------------------------------------

    def activate(self, lease: int, wall: int) -> None:
        """Become primary with `lease`, greater than any before: sync point 1 of the lease; a damaged set is rewritten.

        PartitionUnavailable if that copy fails (the old set is untouched); it may be called again.
        """
        if lease <= self.lease:
            raise LocalError(f"Partition [{self.partition_id}]: lease {lease} is not newer than {self.lease}")
        self.roll.stop(wall)
        if self._rewrite or self._journal_end + SYNC_POINT_RESERVE_BYTES > self.files.sizes.journal:
            self._begin_rewrite(wall)
        self._base += self.sequence
        self.state.begin_lease(lease)
        self.sync_point(wall, force=True)
        self._secure_recovered()

    def _secure_recovered(self) -> None:
        """What was recovered may be in the page cache alone, if only the process died: now it counts as safe."""
        if self.durability == "none" or self.broken:
            return
        try:
            self.files.sync()
        except OSError as error:
            self._sync_broke(error)

    def _begin_rewrite(self, wall: int) -> None:
        """Copy what is live into a new set, without a record in the present one: a lease that is over gives no numbers.

        A damaged set is kept as evidence.
        """
        if not self.roll.rewrite(wall, self._rewrite, announced=False):
            raise PartitionUnavailable(f"Partition [{self.partition_id}]: its files cannot be copied: see its alarms")
        self._rewrite = False

    def sync_point(self, wall: int, force: bool = False) -> None:
        """A REGULAR sync point if anything was written since the last one (the 1 s tick), or always with `force`."""
        if not force and not self._unmarked and not self._journal or self.broken or not self.lease:
            return
        if self._journal_end + SYNC_POINT_RESERVE_BYTES > self.files.sizes.journal:
            return
        matters = bool(self._journal)
        self.append_sync_point(SyncPoint.REGULAR, wall)
        if (force or not self.large) and self.write_batch(matters):  # that of a large batch goes out with it
            self._unmarked = False
            self._gate.want_sync()

    def append_sync_point(self, kind: SyncPoint, wall: int) -> None:
        """A sync point joins the batch."""
        self._append(pack_sync_point(self.sequence + 1, self.lease, wall, kind, self.node_id, self._data_end,
                                     self._qlist_end))

    def stop(self, wall: int, sync: bool = True) -> list[Any]:
        """Last sync point, everything written (and synced), files closed at their lengths; the released effects."""
        self.roll.stop(wall)
        if self._owed and self.available:
            self._pay_late(wall)
        self.sync_point(wall, force=True)
        written = not self._journal or self.write_batch()
        released: list[Any] = []
        if written and not self.broken:
            try:
                if sync:
                    self.files.sync()
                self._gate.all_durable()
                released = self._gate.release_durable()
            except OSError as error:
                self._sync_broke(error)
        if self._owed or self._journal:
            self._alarms.append(("FILE_IO", f"Partition [{self.partition_id}] stops with {len(self._owed)} confirm(s) and "
                                            f"deletion(s) and {len(self._journal)} record(s) that it could not write: their "
                                            "messages come back at the next start."))
        # a file that lacks its end, or ends with another record than a sync point, looks like one after a crash
        self.files.close(truncate=written and not self._rewrite and self.leading)
        return released

    # ---- rollover ------------------------------------------------------------------------------------------------

    def rollover(self, wall: int) -> None:
        """Roll over (admin command): at once, or in slices from the next turn on if there is much to be copied.

        PartitionUnavailable if the policy or the disk forbids it.
        """
        self._refuse()
        if not self.may_roll((0, 0, 0)):
            raise PartitionUnavailable(self._space_text("cannot roll over."))
        if not self.roll.small:
            self.roll.begin(wall)
        elif not self._roll(wall):
            raise PartitionUnavailable(f"Partition [{self.partition_id}]: the rollover failed")

    def _roll(self, wall: int) -> bool:
        """Roll over within this call; False = the old set stays."""
        if not self.roll.finish(wall):
            return False
        self.sync_point(wall, force=True)
        return True

    def moved_to_next(self) -> None:
        """From `roll`: the next file set is the current one."""
        self._take_positions()
        self._readonly_alarmed = False

    def all_is_durable(self) -> None:
        """From `roll`: everything written so far was synced."""
        self._gate.all_durable()

    @property
    def batch_waits(self) -> bool:
        """Are there records that are not written?"""
        return bool(self._journal)

    def inform(self, text: str) -> None:
        """Something an operator may want to see in the log."""
        self.listener(f"Partition [{self.partition_id}]: {text}")

    def alarm(self, category: str, text: str) -> None:
        """Something an operator must know."""
        self._alarms.append((category, f"Partition [{self.partition_id}]: {text}"))

    # ---- watching ------------------------------------------------------------------------------------------------

    def check_space(self, wall: int) -> None:
        """Raise the soft alarm if a file's outstanding part is large; call it every 20 s."""
        if self._soft_limit.is_told(self.files.sizes, self.outstanding(), wall):
            text = self._space_text(f"has passed {SOFT_LIMIT_PERCENT}% of a file.")
            self._alarms.append(("PARTITION_AVAILABLESPACE_SOFTLIMIT", f"{text} {self.state.biggest_text()}"))

    def take_alarms(self) -> list[tuple[str, str]]:
        """(category, text) of what an operator must know, since the last call."""
        alarms, self._alarms = self._alarms + self.files.take_alarms(), []
        return alarms
