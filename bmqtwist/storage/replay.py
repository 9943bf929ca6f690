"""Replay of journal records on a `PartitionState`, for recovery and for replicas.

This module decodes records; `state.py` defines their effects. If a record does not fit the state, a hook method decides:
`Replay` raises RecordMismatch (the replica has diverged), recovery skips or repairs the record.
"""

from __future__ import annotations

from collections.abc import Iterable

from bmqtwist.errors import LocalError
from bmqtwist.ids import NULL_GUID, NULL_KEY
from bmqtwist.steps import at_once
from bmqtwist.storage.journal import Entry
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import (
    COMPRESSION_MASK,
    CONFIRM_BODY,
    DELETION_BODY,
    FLAGS_MASK,
    FLAGS_SHIFT,
    MAGIC,
    MESSAGE_BODY,
    QUEUE_OP_BODY,
    RECORD,
    REF_COUNT_LOW_BITS,
    SEQUENCE_MASK,
    TYPE_SHIFT,
    ConfirmReason,
    QueueOp,
    RecordType,
    parse_queue_record,
)
from bmqtwist.storage.state import PartitionState, StoredQueue

_MESSAGE, _CONFIRM, _DELETION = int(RecordType.MESSAGE), int(RecordType.CONFIRM), int(RecordType.DELETION)
_QUEUE_OP, _JOURNAL_OP = int(RecordType.QUEUE_OP), int(RecordType.JOURNAL_OP)

Apps = list[tuple[str, bytes]]


class RecordMismatch(LocalError):
    """A record does not fit the state after the records before it; it was not applied."""


class Replay:
    """One method for each type of record, one hook for each kind of mismatch.

    `epoch`: wall minus monotonic clock, seconds, for `Message.arrived`. `wall_max`: upper bound of arrival times, epoch
    seconds.
    """

    def __init__(self, state: PartitionState, epoch: float = 0.0, wall_max: int = 1 << 62) -> None:
        self.state, self.epoch, self.wall_max = state, epoch, wall_max

    def run(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            kind = entry[1] >> TYPE_SHIFT
            if kind == _MESSAGE:
                self.apply_message(entry)
            elif kind == _DELETION:
                self.apply_deletion(entry)
            elif kind == _CONFIRM:
                self.apply_confirm(entry)
            elif kind == _QUEUE_OP:
                self.apply_queue_op(entry)
            elif kind == _JOURNAL_OP:
                self.apply_journal_op(entry)
            else:
                self.on_unknown_record(entry, f"has the unknown type {kind}")

    # ---- messages ------------------------------------------------------------------------------------------------

    def apply_message(self, entry: Entry) -> None:
        _, head, lease, wall, body = entry
        ref_high: int
        compression: int
        data_offset: int
        crc: int
        ref_high, compression, key, data_offset, guid, crc = MESSAGE_BODY.unpack(body)
        queue = self.state.queues.get(key) or self.on_unknown_queue(key, entry)
        if queue is None or guid == NULL_GUID or not queue.history.was_never_added(guid) and guid in queue.messages:
            self.on_invalid_message(queue, guid, entry)
            return
        arrived = (wall if wall < self.wall_max else self.wall_max) - self.epoch
        message = Message(guid, None, b"", False, compression & COMPRESSION_MASK, 0, crc, arrived, wall)
        message.ref_count = ref_high << REF_COUNT_LOW_BITS | head >> FLAGS_SHIFT & FLAGS_MASK
        message.data_offset = data_offset
        message.lease, message.sequence = lease, head & SEQUENCE_MASK
        self.state.apply_message(queue, message, self.read_data(queue, message))
        self.on_stored(queue, message)

    def apply_deletion(self, entry: Entry) -> None:
        """Apply the DELETION of a message; ignore an absent one, since a rollover omits deleted messages."""
        key, guid = DELETION_BODY.unpack(entry[4])
        queue = self.state.queues.get(key)
        if queue is not None:
            message = queue.messages.get(guid)
            if message is not None:
                self.state.apply_deletion(queue, message)

    def apply_confirm(self, entry: Entry) -> None:
        """Apply a CONFIRM: of a stored message, or (auto-confirmed) of the message that follows."""
        _, head, lease, wall, body = entry
        key, app_key, guid = CONFIRM_BODY.unpack(body)
        queue = self.state.queues.get(key) or self.on_unknown_queue(key, entry)
        if queue is None:
            return
        bit, message = queue.app_bit(app_key), queue.messages.get(guid)
        auto = head >> FLAGS_SHIFT & FLAGS_MASK == ConfirmReason.AUTO_CONFIRMED
        if not bit or message is None and not auto:
            self.on_unmatched_confirm(entry, "names an absent message or app")
            return
        record = RECORD.pack(head, lease, wall, body, MAGIC)
        if message is None:
            self.state.apply_auto_confirm(queue, bit, guid, record)
        else:
            self.state.apply_confirm(queue, bit, message, record)

    # ---- queues --------------------------------------------------------------------------------------------------

    def apply_queue_op(self, entry: Entry) -> None:
        _, head, lease, wall, body = entry
        key, app_key, op, qlist_words, start_sequence, start_lease = QUEUE_OP_BODY.unpack(body)
        record = RECORD.pack(head, lease, wall, body, MAGIC)
        if op in (QueueOp.CREATION, QueueOp.ADDITION):
            self.apply_declaration(key, QueueOp(op), qlist_words * 4, record, entry)
            return
        queue = self.state.queues.get(key)
        if op == QueueOp.DELETION and app_key == NULL_KEY:
            self.apply_queue_deletion(queue, key)
            return
        queue = queue or self.on_unknown_queue(key, entry)
        if queue is None:
            return
        if op == QueueOp.PURGE and app_key == NULL_KEY:
            at_once(self.state.apply_purge(queue, record))
        elif op == QueueOp.PURGE:
            start = (start_lease, start_sequence) if start_lease <= lease else (0, 0)
            at_once(self.state.apply_app_purge(queue, app_key, start, record))
        elif op == QueueOp.DELETION:
            at_once(self.state.apply_app_deletion(queue, app_key, record))
        else:
            self.on_unknown_record(entry, f"is a QUEUE_OP with the unknown operation {op}")

    def apply_declaration(self, key: bytes, op: QueueOp, qlist_offset: int, record: bytes, entry: Entry) -> None:
        """Apply a CREATION or ADDITION, with URI and apps from QLIST."""
        uri, listed_key, apps, qlist = self.read_queue_record(qlist_offset)
        queue = self.state.queues.get(key)
        if listed_key != key or (queue is None) != (op is QueueOp.CREATION):
            self.on_unknown_record(entry, f"is a {op.name} of {uri}, which does not fit")
        elif queue is None:
            self.state.apply_creation(key, uri, apps, record, qlist)
        else:
            self.state.apply_addition(queue, apps, record, qlist)

    def apply_queue_deletion(self, queue: StoredQueue | None, key: bytes) -> None:
        """Apply the DELETION of a whole queue; None if it does not exist."""
        if queue is not None:
            self.state.apply_queue_deletion(queue)

    def apply_journal_op(self, entry: Entry) -> None:
        """Begin a new lease with its first sync point; other sync points change nothing."""
        if entry[2] > self.state.lease:
            self.state.begin_lease(entry[2])

    # ---- DATA, QLIST and history ---------------------------------------------------------------------------------

    def read_data(self, queue: StoredQueue, message: Message) -> int:
        """Complete a message from its DATA record; return the size of that record, bytes."""
        raise RecordMismatch(f"no DATA record for message {message.guid.hex().upper()} of {queue.uri}")

    def read_queue_record(self, offset: int) -> tuple[str, bytes, Apps, bytes]:
        """Return (URI, key, apps, record) of the QLIST record at `offset`; ValueError if there is none."""
        raise ValueError(f"no QLIST record at offset {offset}")

    def on_stored(self, queue: StoredQueue, message: Message) -> None:
        """Add the GUID of an applied message to the history."""
        queue.history.add(message.guid, self.arrival_time(message))

    def arrival_time(self, message: Message) -> float:
        """Return when this node received a message, seconds of the monotonic clock."""
        return message.arrived

    # ---- mismatches ----------------------------------------------------------------------------------------------

    def on_unknown_queue(self, key: bytes, entry: Entry) -> StoredQueue | None:
        """Handle a record of a queue without CREATION; return the queue, or None to skip the record."""
        raise RecordMismatch(f"{_psn_text(entry)} belongs to queue key {key.hex().upper()}, which has no CREATION")

    def on_invalid_message(self, queue: StoredQueue | None, guid: bytes, entry: Entry) -> None:
        """Handle a MESSAGE without queue or GUID, or with a GUID that is stored already."""
        raise RecordMismatch(f"{_psn_text(entry)} is a MESSAGE with GUID {guid.hex().upper()}, which cannot be stored")

    def on_unmatched_confirm(self, entry: Entry, why: str) -> None:
        """Handle a CONFIRM of an absent message or app."""
        raise RecordMismatch(f"{_psn_text(entry)} {why}")

    def on_unknown_record(self, entry: Entry, why: str) -> None:
        """Handle a record of unknown type or operation, or an unexpected CREATION or ADDITION."""
        raise RecordMismatch(f"{_psn_text(entry)} {why}")


def _psn_text(entry: Entry) -> str:
    return f"record {entry[2]}-{entry[1] & SEQUENCE_MASK}"


def qlist_entry(data: bytes) -> tuple[str, bytes, Apps, bytes]:
    """Return (URI, key, apps, record) of the QLIST record at the start of `data`; ValueError if it is invalid."""
    uri, key, apps, size = parse_queue_record(data)
    if any(app_key == NULL_KEY for _, app_key in apps):  # the null key stands for the whole queue
        raise ValueError("an app without a key")
    return uri, key, apps, data[:size]
