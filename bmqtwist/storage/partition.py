"""Writer of one partition at its primary: appends records and releases effects once their records are durable.

Each operation builds its record, applies it to the `PartitionState` and adds it to the tail of the log. `PartitionLog.write`
writes the records of a turn to the files and then passes them to the replicas (`PartitionLog.take_batches`).

CONFIRMs and DELETIONs are never refused. While the partition is disabled, full or its disk fails, they change the state at
once and become *pending records*, which are appended as soon as the partition takes records again.

`payloads.py` reads stored application data. `replica.ReplicatedPartition` extends `Partition` for cluster members. Queues
(`queue/root.py`) append messages, CONFIRMs and DELETIONs; `broker/storage_turn.py` calls `flush` and the sync methods.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.errors import LocalError
from bmqtwist.storage.availability import WriterEvent
from bmqtwist.storage.damage import PayloadDamaged
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.gate import COMMITTED_ALL, CopyMarks, Gated
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition_log import Batch, PartitionLog
from bmqtwist.storage.payloads import PayloadReader
from bmqtwist.storage.queue_records import QueueRecords
from bmqtwist.storage.records import (
    CONFIRM_HEAD,
    DATA_HEADER,
    DATA_HEADER_START,
    DATA_OPTION_BYTES_SHIFT,
    DELETION_HEAD,
    FLAGS_SHIFT,
    PADS,
    RECORD_BYTES,
    ConfirmReason,
    pack_confirm_record,
    pack_data_header,
    pack_deletion_record,
    pack_message_record,
)
from bmqtwist.storage.rollover import Rollover
from bmqtwist.storage.room import Room
from bmqtwist.storage.state import PartitionState
from bmqtwist.storage.store import (
    PAYLOAD_CACHE_BYTES,
    PREWRITE_BYTES,
    SYNC_POINT_RESERVE_BYTES,
    PartitionUnavailable,
)

if TYPE_CHECKING:
    from bmqtwist.storage.recovery import RecoveredPartition

__all__ = ["COMMITTED_ALL", "Batch", "Durability", "Message", "Partition", "PartitionUnavailable", "PayloadDamaged"]

Durability = Literal["none", "group", "always"]

_DATA_HEADER_BYTES: Final = DATA_HEADER.size


class Partition:
    """One partition at its primary. It takes records after `activate` has given it a lease."""

    def __init__(self, node_id: int, files: FileSets, recovered: RecoveredPartition | None = None,
                 durability: Durability = "group", cache_bytes: int = PAYLOAD_CACHE_BYTES) -> None:
        self.partition_id, self.files, self.durability = files.partition_id, files, durability
        self.state = PartitionState() if recovered is None else recovered.state
        self.replicated = False  # records are sent to replicas
        self.copies = CopyMarks()  # positions up to which replicas have stored the records
        if recovered is not None:
            for found in recovered.alarms:
                files.reports.alarm(found.kind, f": {found.text}")
            if not recovered.damaged:
                files.resume(recovered.journal_end, recovered.data_end, recovered.qlist_end)
        self._rewrite = recovered is not None and recovered.damaged  # copy the files before the next lease
        self.log = log = PartitionLog(node_id, files, self.state, cache_bytes)
        self.tail, self.gate = log.tail, log.gate
        self.roll = Rollover(log, self._on_switched)
        self.room = Room(log, self.roll)
        self.queues = QueueRecords(log, self.room, self.roll)
        self.payloads = PayloadReader(files, self.roll)
        log.update_journal_limit()

    @property
    def lease(self) -> int:
        """Lease of the last record; 0 if the partition never had a primary."""
        return self.state.lease

    @property
    def sequence(self) -> int:
        """Sequence number of the last record."""
        return self.state.sequence

    @property
    def position(self) -> int:
        """Number of records that this process has appended."""
        return self.log.base + self.state.sequence

    @property
    def is_primary(self) -> bool:
        return self.log.is_primary

    @property
    def available(self) -> bool:
        """True if records are taken: not disabled by an operator, not full, no failed disk."""
        return self.log.available

    def disable(self) -> None:
        self.log.on_event(WriterEvent.DISABLE)

    def enable(self) -> None:
        self.log.on_event(WriterEvent.ENABLE)

    # ---- messages ------------------------------------------------------------------------------------------------

    def append_message(self, queue_key: bytes, message: Message, wall: int) -> None:
        """Append DATA and MESSAGE records of a message with payload, CRC and ref_count; sets its offset, PSN, `pending`."""
        state, tail = self.state, self.tail
        options, payload = message.options, message.payload
        content = _DATA_HEADER_BYTES + len(options) + message.size
        size = (content & -8) + 8
        offset = tail.data_end
        if offset + size > tail.data_limit or tail.journal_end > tail.journal_limit:
            self.room.make_room(size, 0, wall)
            offset = tail.data_end
        sequence = state.sequence + 1
        lease = state.lease
        record = pack_message_record(sequence, lease, wall, queue_key, offset >> 3, message)
        header = pack_data_header(DATA_HEADER_START | size >> 2,
                                  len(options) << DATA_OPTION_BYTES_SHIFT | message.has_properties, message.schema_id)
        state.sequence = sequence
        tail.journal.append(record)
        if options:
            tail.data += (header, options, payload, PADS[size - content])  # type: ignore[arg-type]
        else:
            tail.data += (header, payload, PADS[size - content])  # type: ignore[arg-type]
        tail.journal_end += RECORD_BYTES
        tail.data_end = offset + size
        if size > PREWRITE_BYTES:
            tail.large = True
        message.data_offset = offset >> 3
        message.lease, message.sequence = lease, sequence
        message.wall = wall
        state.apply_message(state.queues[queue_key], message, size)
        if state.cached_bytes > tail.cache_max:
            tail.dropped.append(message)

    def append_confirm(self, queue_key: bytes, app_key: bytes, message: Message, reason: int, wall: int) -> None:
        """Append the CONFIRM of an app, or make it pending; the last app of a message appends its DELETION instead."""
        state, tail = self.state, self.tail
        queue = state.queues[queue_key]
        if tail.journal_end > tail.journal_limit and not self._try_make_room(wall):
            if self.log.is_primary:  # a former primary drops its decisions
                message.pending &= ~queue.app_bit(app_key)
                self.room.add_pending(partial(self._append_pending_confirm, queue_key, app_key, message, reason))
            return
        sequence = state.sequence + 1
        record = pack_confirm_record(CONFIRM_HEAD | reason << FLAGS_SHIFT | sequence, state.lease, wall, queue_key, app_key,
                                     message.guid)
        state.sequence = sequence
        tail.journal.append(record)
        tail.journal_end += RECORD_BYTES
        state.apply_confirm(queue, queue.app_bit(app_key), message, record)

    def append_auto_confirm(self, queue_key: bytes, app_key: bytes, guid: bytes, wall: int) -> None:
        """Append the CONFIRM of an app whose subscriptions do not match the message `guid`, which is appended next."""
        state, tail = self.state, self.tail
        if tail.journal_end > tail.journal_limit:
            self.room.make_room(0, 0, wall)
        queue = state.queues[queue_key]
        record = pack_confirm_record(CONFIRM_HEAD | ConfirmReason.AUTO_CONFIRMED << FLAGS_SHIFT | state.sequence + 1,
                                     state.lease, wall, queue_key, app_key, guid)
        self.log.append(record)
        state.apply_auto_confirm(queue, queue.app_bit(app_key), guid, record)

    def append_deletion(self, queue_key: bytes, message: Message, reason: int, wall: int) -> None:
        """Append the DELETION of a message, or make it pending; the message and its CONFIRMs are no longer live."""
        state, tail = self.state, self.tail
        if tail.journal_end > tail.journal_limit and not self._try_make_room(wall):
            if self.log.is_primary:
                if self.roll.copy is not None:
                    self.roll.copy.on_pending_deletion(message.live_key, message.guid)
                state.apply_deletion(state.queues[queue_key], message)
                self.room.add_pending(partial(self._append_pending_deletion, queue_key, message.guid, reason))
            return
        sequence = state.sequence + 1
        record = pack_deletion_record(DELETION_HEAD | reason << FLAGS_SHIFT | sequence, state.lease, wall, queue_key,
                                      message.guid)
        state.sequence = sequence
        tail.journal.append(record)
        tail.journal_end += RECORD_BYTES
        if self.roll.copy is not None:
            self.roll.copy.on_deletion(message.live_key, sequence, record)
        state.apply_deletion(state.queues[queue_key], message)

    def _try_make_room(self, wall: int) -> bool:
        """Return whether a record without DATA and QLIST fits, after a rollover if necessary."""
        try:
            self.room.make_room(0, 0, wall)
        except PartitionUnavailable:
            return False
        return True

    def _append_pending_deletion(self, queue_key: bytes, guid: bytes, reason: int, wall: int) -> None:
        self.room.make_room(0, 0, wall)
        state = self.state
        record = pack_deletion_record(DELETION_HEAD | reason << FLAGS_SHIFT | state.sequence + 1, state.lease, wall,
                                      queue_key, guid)
        self.log.append(record)
        if self.roll.copy is not None:
            self.roll.copy.on_deletion_appended(guid, state.sequence, record)

    def _append_pending_confirm(self, queue_key: bytes, app_key: bytes, message: Message, reason: int, wall: int) -> None:
        """Append a pending CONFIRM unless its message or queue was deleted meanwhile."""
        state = self.state
        if message.live_key < 0 or queue_key not in state.queues:
            return
        self.room.make_room(0, 0, wall)
        queue = state.queues[queue_key]
        record = pack_confirm_record(CONFIRM_HEAD | reason << FLAGS_SHIFT | state.sequence + 1, state.lease, wall, queue_key,
                                     app_key, message.guid)
        self.log.append(record)
        state.apply_confirm(queue, queue.app_bit(app_key), message, record)

    # ---- the turn ------------------------------------------------------------------------------------------------

    def hold_effect(self, effect: Gated) -> None:
        """Hold an effect until the records appended so far are written or durable, as `durability` says; sets `position`."""
        effect.position = self.log.base + self.state.sequence
        self.gate.effects.append(effect)

    def has_work(self) -> bool:
        """True if `flush` has work, or replicas wait for the sync of a record written outside of a turn (first record of a
        lease)."""
        log, gate = self.log, self.gate
        return bool(self.tail.journal or gate.effects or log.pending_records) or (
            log.has_replicas and gate.sync_due and self.durability == "group")

    def flush(self, wall: int) -> list[Any]:
        """Write the turn's records with one write per file; return the released effects in order of `hold_effect`.

        After a failed write the partition takes no new records; the next flush writes the same records again.
        """
        log, tail, gate = self.log, self.tail, self.gate
        log.wall = wall
        tail.large = tail.large and not log.closed and not self.files.prewrite(tail.data)
        if tail.large or log.closed or tail.journal and not log.write():
            return []
        if log.pending_records:
            self.room.write_pending(wall)
        if self.durability == "none":
            return gate.release_written() if gate.effects else []
        if self.durability == "always" and gate.durable != gate.written:
            if not log.sync():
                return []
            gate.mark_all_durable()
        return gate.release_durable()

    def begin_sync(self) -> int | None:
        """Return the token of a `sync` to run now (durability `group`); None if none is due or one is in progress."""
        return self.gate.begin_sync() if self.durability == "group" and not self.log.closed else None

    def sync(self) -> None:
        """fdatasync DATA, then JOURNAL. Blocks: run it in a thread and pass an OSError to `on_sync_failed`."""
        self.files.sync()

    def on_synced(self, token: int, wall: int) -> list[Any]:
        """Handle the end of the sync `token`; return the effects that it releases."""
        return self.gate.release_durable() if self.gate.end_sync(token) else []

    def on_sync_failed(self, token: int, error: OSError) -> None:
        """Handle a failed sync: the content of the disk is unknown, so the partition closes until a restart."""
        if self.gate.is_current_sync(token):
            self.log.close(WriterEvent.SYNC_FAILS, error)

    def on_exception(self) -> None:
        """Close the partition until a restart, after an unexpected exception in its code."""
        self.log.close(WriterEvent.EXCEPTION)

    # ---- primary, rollover, stop ---------------------------------------------------------------------------------

    def activate(self, lease: int, wall: int) -> None:
        """Become primary with `lease`, greater than any before: rewrite a damaged set, append the lease's first sync point.

        PartitionUnavailable if the rewrite fails; the old set is unchanged then, and the call may be repeated.
        """
        log = self.log
        if lease <= self.lease:
            raise LocalError(f"Partition [{self.partition_id}]: lease {lease} is not newer than {self.lease}")
        self.roll.stop(wall)
        if self._rewrite or self.tail.journal_end + SYNC_POINT_RESERVE_BYTES > self.files.sizes.journal:
            self._begin_rewrite(wall)
        log.on_event(WriterEvent.ACTIVATE)
        log.base += self.sequence
        self.state.begin_lease(lease)
        log.write_sync_point(wall, force=True)
        if self.durability != "none" and not (log.closed or log.has_replicas):
            log.sync()  # recovered records may be in the page cache only

    def _begin_rewrite(self, wall: int) -> None:
        """Copy the live records into a new set; the old set gets no ROLLOVER record, because its lease has ended.

        A damaged old set stays in the archive for inspection.
        """
        if not self.roll.rewrite(wall, self._rewrite, announced=False):
            raise PartitionUnavailable(f"Partition [{self.partition_id}]: its files cannot be copied: see its alarms")
        self._rewrite = False

    def write_sync_point(self, wall: int, force: bool = False) -> None:
        """Append a REGULAR sync point if this node is primary, see `PartitionLog.write_sync_point`."""
        if self.log.is_primary:
            self.log.write_sync_point(wall, force)

    def rollover(self, wall: int) -> None:
        """Roll over (admin command): at once, or in slices from the next turn on if the live records are many.

        PartitionUnavailable on a replica, if too little space would become free, or if the disk fails.
        """
        if not self.is_primary:
            text = f"Partition [{self.partition_id}]: Rollover rejected: node is not primary for this partition"
            raise PartitionUnavailable(text)
        self.room.check_available()
        if not self.room.can_roll_over():
            raise PartitionUnavailable(self.room.usage_text(f"Partition [{self.partition_id}] cannot roll over."))
        if not self.roll.is_small:
            self.roll.begin(wall)
        elif not self.room.roll_over(wall):
            raise PartitionUnavailable(f"Partition [{self.partition_id}]: the rollover failed")

    def _on_switched(self) -> None:
        self.log.reset_positions()
        self.room.full_alarmed = False

    def stop(self, wall: int, sync: bool = True) -> list[Any]:
        """Append the last sync point of a primary, write (and sync) all records, close the files; return the effects."""
        log = self.log
        self.roll.stop(wall)
        self.room.write_pending(wall)
        self.write_sync_point(wall, force=True)
        written = log.write_rest()
        released: list[Any] = []
        if written and not log.closed and (not sync or log.sync()):
            self.gate.mark_all_durable()
            released = self.gate.release_durable()
        if log.pending_records or self.tail.journal:
            log.reports.alarm(
                alarms.RECORDS_NOT_WRITTEN,
                f" stops with {len(log.pending_records)} confirm(s) and deletion(s) and "
                f"{len(self.tail.journal)} record(s) that could not be written: their messages"
                " are restored at the next start.")
        # recovery treats a truncated file without a sync point at its end as damaged by a crash
        self.files.close(truncate=written and not self._rewrite and self.is_primary)
        return released if self.is_primary else []

    def hold_payload(self, message: Message, payload: bytes) -> None:
        """Keep the payload of a live message in memory, if the cache has room."""
        if message.payload is None and self.state.cached_bytes + message.size <= self.tail.cache_max:
            message.payload = payload
            self.state.cached_bytes += message.size

    # ---- monitoring ----------------------------------------------------------------------------------------------

    def check_space(self, wall: int) -> None:
        """Raise the soft alarm if a file's outstanding part is large; call it every 20 s."""
        self.room.check_usage(wall)

    def take_alarms(self) -> list[tuple[AlarmKind, str]]:
        """Return the alarms since the last call as (category, text)."""
        return self.log.reports.take_alarms()
