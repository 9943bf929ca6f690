"""Queue records of a primary: CREATION, ADDITION, PURGE and DELETION of queues and apps.

`member/cluster.py` and `member/queue_changes.py` (creation, deletion) and `queue/root.py` (purges) call it through
`Partition.queues`. Message records are appended by `partition.py`. `layout.py` declares the bytes of the records,
`records.py` their kinds (`QueueOp`).
"""

from __future__ import annotations

from bmqtwist.ids import NULL_KEY, domain_of
from bmqtwist.storage.availability import WriterEvent, WriterState
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition_log import PartitionLog
from bmqtwist.storage.records import RECORD_BYTES, QueueOp, pack_queue_op, pack_queue_record
from bmqtwist.storage.rollover import Rollover
from bmqtwist.storage.room import Room
from bmqtwist.storage.state import MessageSteps, StoredQueue
from bmqtwist.storage.store import SYNC_POINT_RESERVE_BYTES, PartitionUnavailable

Apps = list[tuple[str, bytes]]  # (appId, appKey) in order of creation


class QueueRecords:
    """Queue records of one partition. Methods raise PartitionUnavailable if the record does not fit."""

    def __init__(self, log: PartitionLog, room: Room, roll: Rollover) -> None:
        self._log, self._room, self._roll = log, room, roll

    def create(self, queue_key: bytes, uri: str, apps: Apps, wall: int) -> StoredQueue:
        """Append the QLIST record and CREATION of a queue with its apps."""
        self._room.check_share(domain_of(uri), len(pack_queue_record(uri, queue_key, apps)), wall)
        record, entry = self._append_with_qlist(QueueOp.CREATION, queue_key, uri, apps, wall)
        return self._log.state.apply_creation(queue_key, uri, apps, record, entry)

    def add_apps(self, queue_key: bytes, uri: str, apps: Apps, wall: int) -> None:
        """Append the QLIST record of added apps, and the ADDITION."""
        record, entry = self._append_with_qlist(QueueOp.ADDITION, queue_key, uri, apps, wall)
        self._log.state.apply_addition(self._log.state.queues[queue_key], apps, record, entry)

    def _append_with_qlist(self, op: QueueOp, queue_key: bytes, uri: str, apps: Apps, wall: int) -> tuple[bytes, bytes]:
        tail, entry = self._log.tail, pack_queue_record(uri, queue_key, apps)
        if tail.qlist_end + len(entry) > self._log.files.sizes.qlist:
            self._room.make_room(0, len(entry), wall)
        record = self._append(op, queue_key, NULL_KEY, wall, qlist_bytes=len(entry))
        tail.qlist.append(entry)
        tail.qlist_end += len(entry)
        return record, entry

    def _append(self, op: QueueOp, queue_key: bytes, app_key: bytes, wall: int, qlist_bytes: int = 0) -> bytes:
        """Append a QUEUE_OP; with `qlist_bytes` it refers to a QLIST record at the present end of QLIST."""
        tail, state = self._log.tail, self._log.state
        if tail.journal_end > tail.journal_limit:
            self._room.make_room(0, qlist_bytes, wall)
        record = pack_queue_op((state.lease, state.sequence + 1), wall, queue_key, app_key, op,
                               tail.qlist_end if qlist_bytes else 0)
        self._log.append(record)
        return record

    def purge(self, queue_key: bytes, app_key: bytes | None, start: Message | None, wall: int) -> MessageSteps:
        """Append the PURGE of a queue (`app_key` None), or of one app from the message `start` on; return its steps.

        The caller runs the steps and calls `append_deletion` for messages that no app needs any more. The purge of a whole
        queue is accepted even when the partition is full, and reopens it at its end.
        """
        log, tail, state = self._log, self._log.tail, self._log.state
        if tail.journal_end > tail.journal_limit:
            try:
                self._room.make_room(0, 0, wall)
            except PartitionUnavailable:
                room = tail.journal_end + RECORD_BYTES + SYNC_POINT_RESERVE_BYTES <= log.files.sizes.journal
                if not (app_key is None and room and log.is_primary) or log.availability.state not in (
                        WriterState.OPEN, WriterState.FULL):
                    raise
        first = (start.lease, start.sequence) if start else (0, 0)
        record = pack_queue_op((state.lease, state.sequence + 1), wall, queue_key, app_key or NULL_KEY, QueueOp.PURGE,
                               start=first)
        queue = state.queues[queue_key]
        log.reports.info(f"Writing PURGE record [{state.lease}, {state.sequence + 1}] of queue '{queue.uri}' [queueKey: "
                         f"{queue_key.hex().upper()}, appKey: {'*' if app_key is None else app_key.hex().upper()}]")
        log.append(record)
        if app_key is None:
            return self._reopen_after(state.apply_purge(queue, record))
        return state.apply_app_purge(queue, app_key, first, record)

    def _reopen_after(self, steps: MessageSteps) -> MessageSteps:
        """Run the steps of a purge, then reopen a full partition."""
        yield from steps
        self._log.on_event(WriterEvent.PURGE)  # the next append tries a rollover

    def delete_app(self, queue_key: bytes, app_key: bytes, wall: int) -> MessageSteps:
        """Append the DELETION of one app of a queue; return its steps, which the caller runs as for `purge`."""
        record = self._append(QueueOp.DELETION, queue_key, app_key, wall)
        return self._log.state.apply_app_deletion(self._log.state.queues[queue_key], app_key, record)

    def delete(self, queue_key: bytes, wall: int) -> None:
        """Append the DELETION of a queue; none of its records stays live."""
        record = self._append(QueueOp.DELETION, queue_key, NULL_KEY, wall)
        queue = self._log.state.queues.get(queue_key)
        if queue is not None:
            if self._roll.copy is not None and queue.live_keys:
                self._roll.copy.on_deletion(queue.live_keys[0], self._log.state.sequence, record)
            self._log.state.apply_queue_deletion(queue)
