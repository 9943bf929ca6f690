"""The replica core of one partition: operations in, records out, effects released when their records are safe.

A turn's records collect in lists; `flush` writes each file once. Every journal record takes the next *slot*, a number
that never repeats in the life of this object; `live` maps the slots of all records that are still needed, in journal
order, to what is needed to write them again at a rollover:

    Message             a MESSAGE with its DATA record
    bytes               a CONFIRM, PURGE or app-level DELETION, verbatim
    (bytes, bytes)      a CREATION or ADDITION with its QLIST record

Outstanding bytes, the basis of the rollover policy, follow from `live`, not from the write positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from bmqtwist.errors import LocalError
from bmqtwist.ids import NULL_KEY
from bmqtwist.storage.compaction import Live, LiveCopy
from bmqtwist.storage.gate import Gate
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import (
    CONFIRM,
    CONFIRM_HEAD,
    DATA_HEADER,
    DELETION,
    DELETION_HEAD,
    MAGIC,
    MESSAGE,
    MESSAGE_HEAD,
    PADS,
    RECORD_BYTES,
    QueueOp,
    SyncPoint,
    data_record_bytes,
    pack_queue_op,
    pack_queue_record,
    pack_sync_point,
)
from bmqtwist.storage.store import (
    DATA_HEADER_BYTES,
    JOURNAL_HEADER_BYTES,
    PAYLOAD_CACHE_BYTES,
    PURGE_RESERVE_BYTES,
    QLIST_HEADER_BYTES,
    SYNC_POINT_RESERVE_BYTES,
    PartitionFiles,
)
from bmqtwist.wire.checksum import crc32c

if TYPE_CHECKING:
    from bmqtwist.storage.recovery import RecoveredPartition

__all__ = ["Durability", "Message", "Partition", "PartitionUnavailable", "PayloadDamaged"]

Durability = Literal["none", "group", "always"]

AVAILABLE_PERCENT_MIN = 20  # of every file, for a rollover to be worth it
SOFT_LIMIT_PERCENT = 60  # outstanding part of a file that raises the soft alarm
SOFT_ALARM_PERIOD = 15 * 60  # seconds between two soft alarms
ROLLOVER_RETRY = 5  # seconds between two tries when the disk does not take a new file set
BIGGEST_QUEUES = 10  # listed in the soft alarm
_NORMAL_RESERVE = RECORD_BYTES + SYNC_POINT_RESERVE_BYTES + PURGE_RESERVE_BYTES

_pack_message = MESSAGE.pack
_pack_confirm = CONFIRM.pack
_pack_deletion = DELETION.pack
_pack_data_header = DATA_HEADER.pack


class PartitionUnavailable(LocalError):
    """The partition takes no records now: producers are answered STORAGE_FAILURE."""


class PayloadDamaged(PartitionUnavailable):
    """The stored application data of a message is not what was written: it must not be delivered."""


class Partition:
    """Writer of one partition. `lease` and `sequence` are the PSN of the last record; `lease` 0 = not yet primary."""

    def __init__(self, partition_id: int, node_id: int, files: PartitionFiles,
                 recovered: RecoveredPartition | None = None, durability: Durability = "group",
                 cache_bytes: int = PAYLOAD_CACHE_BYTES) -> None:
        self.partition_id, self.node_id, self.files, self.durability = partition_id, node_id, files, durability
        self.lease = self.sequence = 0
        self.live: dict[int, Live] = {}
        self._slot_base = 0  # slot = _slot_base + sequence
        self._queue_slots: dict[bytes, list[int]] = {}
        self._uris: dict[bytes, str] = {}
        self._data_outstanding, self._qlist_outstanding = DATA_HEADER_BYTES, QLIST_HEADER_BYTES
        self._journal: list[bytes] = []
        self._data: list[bytes] = []
        self._qlist: list[bytes] = []
        self._auto_slots: list[int] = []
        self._auto_guid = b""
        self._cache_max, self._cached, self._drop = cache_bytes, 0, list[Message]()
        self._gate = Gate()
        self.gate = self._gate.add  # gate(effect): it comes back when all records appended so far are safe by policy
        self._unmarked = False  # records since the last sync point
        self._disabled = self._full = self._write_failed = self._broken = self._readonly_alarmed = False
        self._soft_alarm_at: int | None = None
        self._alarms: list[tuple[str, str]] = []
        self._rewrite = False
        self._finished: list[Message] = []
        self._no_roll_before = 0  # epoch seconds: when a rollover that failed for lack of disk may be tried again
        if recovered is not None:
            self._adopt(recovered)
        self._journal_end, self._data_end = files.journal_position, files.data_position
        self._qlist_end = files.qlist_position
        self._data_limit = files.sizes.data
        self._set_journal_limit()

    def _adopt(self, recovered: RecoveredPartition) -> None:
        self.lease, self.sequence, self.live = recovered.lease, recovered.sequence, recovered.live
        self._slot_base = recovered.next_slot - recovered.sequence
        self._queue_slots = recovered.queue_slots
        self._uris = {key: queue.uri for key, queue in recovered.queues.items()}
        self._data_outstanding, self._qlist_outstanding = recovered.data_outstanding, recovered.qlist_outstanding
        self._alarms += [("RECOVERY", f"Partition [{self.partition_id}]: {text}") for text in recovered.alarms]
        self._finished = recovered.finished
        self._rewrite = recovered.damaged
        if not recovered.damaged:
            self.files.resume(recovered.journal_end, recovered.data_end, recovered.qlist_end)

    # ---- what may be written -------------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        """Whether records are taken: not disabled by an operator, not full, no failed disk."""
        return not (self._disabled or self._full or self._write_failed or self._broken)

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
        return (JOURNAL_HEADER_BYTES + RECORD_BYTES * len(self.live), self._data_outstanding,
                self._qlist_outstanding)

    def positions(self) -> tuple[int, int, int]:
        """Bytes of JOURNAL, DATA, QLIST in use, the unwritten turn included."""
        return self._journal_end, self._data_end, self._qlist_end

    def _set_journal_limit(self) -> None:
        """Hot paths compare one number: below 0 sends every append the slow way, which says why."""
        self._journal_limit = self.files.sizes.journal - _NORMAL_RESERVE if self.available else -1

    def _refuse(self) -> None:
        if not self.available:
            why = ("disabled by an operator" if self._disabled else "full: purge a queue" if self._full
                   else "failing to write its files")
            raise PartitionUnavailable(f"Partition [{self.partition_id}] is {why}")

    def _may_roll(self, needed: tuple[int, int, int]) -> bool:
        sizes = self.files.sizes
        return all((size - kept - more) * 100 // size >= AVAILABLE_PERCENT_MIN for size, kept, more
                   in zip((sizes.journal, sizes.data, sizes.qlist), self.outstanding(), needed, strict=True))

    def _make_room(self, data: int, qlist: int, wall: int) -> None:
        """Roll over so that one record with `data` and `qlist` bytes fits, or raise PartitionUnavailable."""
        self._refuse()
        sizes = self.files.sizes
        if self._data_end + data > sizes.data:
            name, needed = "DATA", (0, data, 0)
        elif self._qlist_end + qlist > sizes.qlist:
            name, needed = "QLIST", (0, 0, qlist)
        elif self._journal_end > self._journal_limit:
            name, needed = "JOURNAL", (_NORMAL_RESERVE, 0, 0)
        else:
            return
        if self._may_roll(needed):
            if wall >= self._no_roll_before and self._roll(wall):
                return
            raise PartitionUnavailable(f"Partition [{self.partition_id}] cannot roll over: see its alarms")
        if not self._readonly_alarmed:
            self._readonly_alarmed = True
            self._alarms.append(("PARTITION_READONLY", self._space_text(
                f"cannot take more: its {name} file is full and a rollover would not free {AVAILABLE_PERCENT_MIN}%."
                " Purge a queue as a whole.")))
        if name == "JOURNAL":
            self._full = True
            self._set_journal_limit()
        raise PartitionUnavailable(f"Partition [{self.partition_id}] is full ({name} file)")

    def _space_text(self, what: str) -> str:
        sizes = self.files.sizes
        parts = [f"{name} {kept} of {size} B ({kept * 100 // size}%)" for name, kept, size in
                 zip(("JOURNAL", "DATA", "QLIST"), self.outstanding(), (sizes.journal, sizes.data, sizes.qlist),
                     strict=True)]
        return f"Partition [{self.partition_id}] {what} Outstanding: {', '.join(parts)}."

    # ---- the hot path --------------------------------------------------------------------------------------------

    def append_message(self, queue_key: bytes, message: Message, wall: int) -> None:
        """DATA and MESSAGE of a message whose `payload`, `crc`, `ref_count`, … are set; sets slot, offset and PSN."""
        options, payload = message.options, message.payload
        content = 12 + len(options) + message.size
        size = (content & -8) + 8
        offset = self._data_end
        if offset + size > self._data_limit or self._journal_end > self._journal_limit:
            self._make_room(size, 0, wall)
            offset = self._data_end
        self.sequence = sequence = self.sequence + 1
        ref_count = message.ref_count
        self._journal.append(_pack_message(
            MESSAGE_HEAD | (ref_count & 0xFFF) << 48 | sequence, self.lease, wall, ref_count >> 12,
            message.compression, queue_key, offset >> 3, message.guid, message.crc, MAGIC))
        header = _pack_data_header(0x60000000 | size >> 2, len(options) << 6 | message.has_properties,
                                   message.schema_id, 0)
        if options:
            self._data += (header, options, payload, PADS[size - content])  # type: ignore[arg-type]
        else:
            self._data += (header, payload, PADS[size - content])  # type: ignore[arg-type]
        self._journal_end += RECORD_BYTES
        self._data_end = offset + size
        self._data_outstanding += size
        message.slot = slot = self._slot_base + sequence
        message.data_offset = offset >> 3
        message.lease, message.sequence = self.lease, sequence
        message.queue_key, message.wall = queue_key, wall
        if self._auto_slots:
            self._take_auto(message)
        self.live[slot] = message
        self._cached += message.size
        if self._cached > self._cache_max:
            self._drop.append(message)

    def append_confirm(self, queue_key: bytes, app_key: bytes, message: Message, reason: int, wall: int) -> None:
        """One app of several is done with a message (the last one writes only the DELETION)."""
        if self._journal_end > self._journal_limit:
            self._make_room(0, 0, wall)
        self.sequence = sequence = self.sequence + 1
        record = _pack_confirm(CONFIRM_HEAD | reason << 48 | sequence, self.lease, wall, queue_key, app_key,
                               message.guid, MAGIC)
        self._journal.append(record)
        self._journal_end += RECORD_BYTES
        slot = self._slot_base + sequence
        self.live[slot] = record
        if message.confirms is None:
            message.confirms = [slot]
        else:
            message.confirms.append(slot)

    def append_auto_confirm(self, queue_key: bytes, app_key: bytes, guid: bytes, wall: int) -> None:
        """An app does not want the message `guid`, which is appended next."""
        if self._journal_end > self._journal_limit:
            self._make_room(0, 0, wall)
        if guid != self._auto_guid:
            self._drop_auto()
            self._auto_guid = guid
        self.sequence = sequence = self.sequence + 1
        record = _pack_confirm(CONFIRM_HEAD | 2 << 48 | sequence, self.lease, wall, queue_key, app_key, guid, MAGIC)
        self._journal.append(record)
        self._journal_end += RECORD_BYTES
        self.live[self._slot_base + sequence] = record
        self._auto_slots.append(self._slot_base + sequence)

    def append_deletion(self, queue_key: bytes, message: Message, reason: int, wall: int) -> None:
        """The message is gone; it and its CONFIRMs are no longer live."""
        if self._journal_end > self._journal_limit:
            self._make_room(0, 0, wall)
        self.sequence = sequence = self.sequence + 1
        self._journal.append(_pack_deletion(DELETION_HEAD | reason << 48 | sequence, self.lease, wall, queue_key,
                                            message.guid, MAGIC))
        self._journal_end += RECORD_BYTES
        del self.live[message.slot]
        message.slot = -1
        size = message.size
        self._data_outstanding -= (12 + len(message.options) + size & -8) + 8
        if message.payload is not None:
            self._cached -= size
        if message.confirms is not None:
            for slot in message.confirms:
                del self.live[slot]

    def release(self, message: Message) -> None:
        """As `append_deletion` without a record: after the purge of a whole queue, or when a DELETION found no room."""
        del self.live[message.slot]
        message.slot = -1
        self._data_outstanding -= data_record_bytes(12 + len(message.options) + message.size)
        if message.payload is not None:
            self._cached -= message.size
        for slot in message.confirms or ():
            del self.live[slot]

    def _take_auto(self, message: Message) -> None:
        if message.guid == self._auto_guid:
            message.confirms = self._auto_slots
            self._auto_slots, self._auto_guid = [], b""
        else:
            self._drop_auto()

    def _drop_auto(self) -> None:
        """Auto-confirms whose message never came: readers ignore them, and so do we."""
        for slot in self._auto_slots:
            del self.live[slot]
        self._auto_slots, self._auto_guid = [], b""

    # ---- queues --------------------------------------------------------------------------------------------------

    def create_queue(self, queue_key: bytes, uri: str, apps: list[tuple[str, bytes]], wall: int) -> None:
        """QLIST record and CREATION of a queue with its apps (appId, appKey) in order of creation."""
        self._uris[queue_key] = uri
        self._append_queue(QueueOp.CREATION, queue_key, uri, apps, wall)

    def add_apps(self, queue_key: bytes, uri: str, apps: list[tuple[str, bytes]], wall: int) -> None:
        """QLIST record with the added apps, and ADDITION."""
        self._append_queue(QueueOp.ADDITION, queue_key, uri, apps, wall)

    def _append_queue(self, op: QueueOp, queue_key: bytes, uri: str, apps: list[tuple[str, bytes]],
                      wall: int) -> None:
        entry = pack_queue_record(uri, queue_key, apps)
        if self._qlist_end + len(entry) > self.files.sizes.qlist or self._journal_end > self._journal_limit:
            self._make_room(0, len(entry), wall)
        self.sequence += 1
        record = pack_queue_op(self.sequence, self.lease, wall, queue_key, NULL_KEY, op, self._qlist_end)
        self._qlist.append(entry)
        self._qlist_end += len(entry)
        self._qlist_outstanding += len(entry)
        self._keep_queue_op(queue_key, record, (record, entry))

    def purge(self, queue_key: bytes, app_key: bytes | None, start: Message | None, wall: int) -> None:
        """PURGE of a whole queue (`app_key` None), or of one app from the message `start` on.

        The caller then calls `release` for the messages of the purged queue, or `append_deletion` for those no app
        needs any more. The purge of a whole queue is taken even when the partition is full, and reopens it.
        """
        whole = app_key is None
        if self._journal_end > self._journal_limit:
            try:
                self._make_room(0, 0, wall)
            except PartitionUnavailable:
                room = self._journal_end + RECORD_BYTES + SYNC_POINT_RESERVE_BYTES <= self.files.sizes.journal
                if not whole or not room or self._disabled or self._write_failed or self._broken:
                    raise
        self.sequence += 1
        record = pack_queue_op(self.sequence, self.lease, wall, queue_key, app_key or NULL_KEY, QueueOp.PURGE, 0,
                               start.sequence if start else 0, start.lease if start else 0)
        self._keep_queue_op(queue_key, record, record)
        if whole and self._full:
            self._full = False  # the next append tries a rollover
            self._set_journal_limit()

    def delete_queue(self, queue_key: bytes, app_key: bytes | None, wall: int) -> None:
        """DELETION of a queue (`app_key` None: its QUEUE_OPs are no longer live), or of one app.

        The messages of a deleted queue must have been released before.
        """
        if self._journal_end > self._journal_limit:
            self._make_room(0, 0, wall)
        self.sequence += 1
        record = pack_queue_op(self.sequence, self.lease, wall, queue_key, app_key or NULL_KEY, QueueOp.DELETION)
        if app_key is not None:
            self._keep_queue_op(queue_key, record, record)
            return
        self._journal.append(record)
        self._journal_end += RECORD_BYTES
        self._uris.pop(queue_key, None)
        for slot in self._queue_slots.pop(queue_key, ()):
            item = self.live.pop(slot)
            if type(item) is tuple:
                self._qlist_outstanding -= len(item[1])

    def _keep_queue_op(self, queue_key: bytes, record: bytes, item: Live) -> None:
        self._journal.append(record)
        self._journal_end += RECORD_BYTES
        slot = self._slot_base + self.sequence
        self.live[slot] = item
        self._queue_slots.setdefault(queue_key, []).append(slot)

    # ---- reading back --------------------------------------------------------------------------------------------

    def read_payload(self, message: Message) -> bytes:
        """The application data of a message, from memory or from DATA.

        PayloadDamaged if DATA no longer holds what was written; OSError if it cannot be read.
        """
        if message.payload is not None:
            return message.payload
        offset = message.data_offset * 8 + 12 + len(message.options)
        payload = self.files.read_data(offset, message.size)
        if len(payload) != message.size or crc32c(payload) != message.crc:
            guid = message.guid.hex().upper()
            self._alarms.append(("STORAGE", f"Partition [{self.partition_id}]: the stored data of message {guid} at"
                                            f" offset {offset} is damaged; it is not delivered."))
            raise PayloadDamaged(f"Stored data of message {guid} is damaged")
        return payload

    # ---- the turn ------------------------------------------------------------------------------------------------

    def busy(self) -> bool:
        """Whether `flush` has anything to do."""
        return bool(self._journal or self._gate.gated)

    def flush(self, wall: int) -> list[Any]:
        """Write the turn's records, one write per file; the released effects, in order of `gate`.

        After a failed write nothing is released, the records are kept for the next flush and no new ones are taken.
        """
        if self._broken or self._journal and not self._write():
            return []
        if self.durability == "always" and not self._gate.durable:
            try:
                self.files.sync()
            except OSError as error:
                self._sync_broke(error)
                return []
            self._gate.all_durable()
        return self._gate.turn(wait=self.durability != "none")

    def _write(self, counts: bool = True) -> bool:
        """Write the batch; `counts` False if no effect can wait for what is in it."""
        try:
            self.files.append(self._journal, self._data, self._qlist)
        except OSError as error:
            if not self._write_failed:
                self._alarms.append(("FILE_IO", f"Partition [{self.partition_id}] cannot be written: {error}."
                                                " Producers are refused until a retry succeeds."))
                self._write_failed = True
                self._set_journal_limit()
            return False
        self._journal, self._data, self._qlist = [], [], []
        if counts:
            self._gate.wrote()
        self._unmarked = True
        if self._write_failed:
            self._write_failed = False
            self._set_journal_limit()
        if self._drop:
            for message in self._drop:
                if message.payload is not None and message.slot >= 0:
                    message.payload = None
                    self._cached -= message.size
            self._drop.clear()
        return True

    def wants_sync(self) -> int | None:
        """The token of a `sync` to run now (durability `group`), None if none is due or one is under way."""
        return self._gate.begin_sync() if self.durability == "group" and not self._broken else None

    def sync(self) -> None:
        """fdatasync DATA, then JOURNAL: blocks, meant for a thread. An OSError must be reported to `sync_failed`."""
        self.files.sync()

    def synced(self, token: int, wall: int) -> list[Any]:
        """The sync `token` is done: the effects it releases."""
        return self._gate.end_sync(token)

    def sync_failed(self, token: int, error: OSError) -> None:
        """The sync `token` failed: what the disk holds is unknown, so nothing more is taken until a restart."""
        if self._gate.is_running(token):
            self._sync_broke(error)

    def fail(self) -> None:
        """Something in here raised what nobody expected: nothing more is taken or written until a restart."""
        self._broken = True
        self._set_journal_limit()

    def _sync_broke(self, error: OSError) -> None:
        self._broken = True
        self._set_journal_limit()
        self._alarms.append(("FILE_IO", f"Partition [{self.partition_id}] cannot be synced: {error}. It is closed to"
                                        " producers; check the disk and restart."))

    # ---- sync points, primary, stop ------------------------------------------------------------------------------

    def activate(self, lease: int, wall: int) -> None:
        """Become primary with `lease`, greater than any before: sync point 1 of the lease; a damaged set is rewritten.

        PartitionUnavailable if that copy fails (the old set is untouched); it may be called again.
        """
        if lease <= self.lease:
            raise LocalError(f"Partition [{self.partition_id}]: lease {lease} is not newer than {self.lease}")
        if self._rewrite or self._journal_end + SYNC_POINT_RESERVE_BYTES > self.files.sizes.journal:
            self._begin_rewrite(wall)
        self._slot_base += self.sequence
        self.lease, self.sequence = lease, 0
        self.sync_point(wall, force=True)
        for message in self._finished:  # confirmed by all, but the last broker died before it wrote that down
            self.append_deletion(message.queue_key, message, 0, wall)
        self._finished = []
        self._secure_recovered()

    def _secure_recovered(self) -> None:
        """What was recovered may be in the page cache alone, if only the process died: now it counts as safe."""
        if self.durability == "none" or self._broken:
            return
        try:
            self.files.sync()
        except OSError as error:
            self._sync_broke(error)

    def _begin_rewrite(self, wall: int) -> None:
        """Copy what is live into a new set without touching the present one, which is kept as evidence."""
        damaged = self._rewrite
        if not self._copy_live(wall, damaged):
            raise PartitionUnavailable(f"Partition [{self.partition_id}]: its files cannot be copied: see its alarms")
        self._rewrite = False

    def sync_point(self, wall: int, force: bool = False) -> None:
        """A REGULAR sync point if anything was written since the last one (the 1 s tick), or always with `force`."""
        if not force and not self._unmarked and not self._journal or self._broken or not self.lease:
            return
        if self._journal_end + SYNC_POINT_RESERVE_BYTES > self.files.sizes.journal:
            return
        counts = bool(self._journal)
        self._append_sync_point(SyncPoint.REGULAR, wall)
        if self._write(counts):
            self._unmarked = False
            self._gate.want_sync()

    def _append_sync_point(self, kind: SyncPoint, wall: int) -> None:
        self.sequence += 1
        self._journal.append(pack_sync_point(self.sequence, self.lease, wall, kind, self.node_id, self._data_end,
                                             self._qlist_end))
        self._journal_end += RECORD_BYTES

    def stop(self, wall: int, sync: bool = True) -> list[Any]:
        """Last sync point, everything written (and synced), files closed at their lengths; the released effects."""
        self.sync_point(wall, force=True)
        written = not self._journal or self._write()
        released: list[Any] = []
        if written and not self._broken:
            try:
                if sync:
                    self.files.sync()
                released = self._gate.release_all()
            except OSError as error:
                self._sync_broke(error)
        self.files.close(truncate=not self._rewrite)
        return released

    # ---- rollover ------------------------------------------------------------------------------------------------

    def rollover(self, wall: int) -> None:
        """Roll over now (admin command); PartitionUnavailable if the policy or the disk forbids it."""
        self._refuse()
        if not self._may_roll((0, 0, 0)):
            raise PartitionUnavailable(self._space_text("cannot roll over."))
        if not self._roll(wall):
            raise PartitionUnavailable(f"Partition [{self.partition_id}]: the rollover failed")

    def _roll(self, wall: int) -> bool:
        """ROLLOVER record into the old set, live records into a new one, sync point; False = the old set stays."""
        if self._journal and not self._write():
            return False
        if not self._copy_live(wall, damaged=False):
            return False
        self._readonly_alarmed = False
        self.sync_point(wall, force=True)
        return True

    def _copy_live(self, wall: int, damaged: bool) -> bool:
        files = self.files
        try:
            files.begin_roll(wall)
        except OSError as error:
            return self._roll_failed("no new file set", error, wall)
        try:
            if not damaged:
                self._append_sync_point(SyncPoint.ROLLOVER, wall)
                try:
                    files.append(self._journal, [], [])
                except OSError:
                    self.sequence -= 1
                    self._journal_end -= RECORD_BYTES
                    raise
                finally:
                    self._journal = []
            offsets = LiveCopy(files).run(self.live)
            mark, data_end, qlist_end = files.next_positions()
            if damaged and self.lease:
                self.sequence += 1  # no ROLLOVER record whose PSN the sync point could repeat
            if self.lease:
                files.append_next([pack_sync_point(self.sequence, self.lease, wall, SyncPoint.REGULAR, self.node_id,
                                                   data_end, qlist_end)], [], [])
            files.finish_roll(mark if self.lease else 0, damaged)
        except OSError as error:
            files.abandon_roll()
            return self._roll_failed("rollover failed", error, wall)
        offset = iter(offsets)
        for item in self.live.values():
            if type(item) is Message:
                item.data_offset = next(offset)
        self._journal_end, self._data_end = files.journal_position, files.data_position
        self._qlist_end = files.qlist_position
        self._gate.all_durable()
        return True

    def _roll_failed(self, what: str, error: OSError, wall: int) -> bool:
        self._no_roll_before = wall + ROLLOVER_RETRY
        self._alarms.append(("ROLLOVER", f"Partition [{self.partition_id}]: {what}: {error}. Next try in"
                                         f" {ROLLOVER_RETRY} s at the earliest."))
        return False

    # ---- watching ------------------------------------------------------------------------------------------------

    def check_space(self, wall: int) -> None:
        """Raise the soft alarm if a file's outstanding part is large; call it every 20 s."""
        sizes = self.files.sizes
        full = [kept * 100 >= size * SOFT_LIMIT_PERCENT for kept, size in
                zip(self.outstanding(), (sizes.journal, sizes.data, sizes.qlist), strict=True)]
        if not any(full) or self._soft_alarm_at is not None and wall - self._soft_alarm_at < SOFT_ALARM_PERIOD:
            return
        self._soft_alarm_at = wall
        queues = ", ".join(f"{uri}: {count} messages, {size} B" for uri, count, size in self.biggest_queues())
        self._alarms.append(("PARTITION_AVAILABLESPACE_SOFTLIMIT", self._space_text(
            f"has passed {SOFT_LIMIT_PERCENT}% of a file.") + f" Biggest queues: {queues or 'none'}."))

    def biggest_queues(self, limit: int = BIGGEST_QUEUES) -> list[tuple[str, int, int]]:
        """(URI, messages, DATA bytes) of the queues that hold most; walks all live records."""
        totals: dict[bytes, list[int]] = {}
        for item in self.live.values():
            if type(item) is Message:
                total = totals.setdefault(item.queue_key, [0, 0])
                total[0] += 1
                total[1] += data_record_bytes(12 + len(item.options) + item.size)
        ranked = sorted(totals.items(), key=lambda entry: entry[1][1], reverse=True)[:limit]
        return [(self._uris.get(key, key.hex().upper()), count, size) for key, (count, size) in ranked]

    def take_alarms(self) -> list[tuple[str, str]]:
        """(category, text) of what an operator must know, since the last call."""
        alarms, self._alarms = self._alarms + self.files.take_alarms(), []
        return alarms
