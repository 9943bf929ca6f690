"""Selection of journal records, and their grouping by message: a MESSAGE with its CONFIRMs and its DELETION.

`cli/storage.py` makes the selection of its options; `show.py` and `ledgerview.py` apply it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bmqtwist.ids import NULL_KEY
from bmqtwist.storage.records import ConfirmReason, QueueOp
from bmqtwist.storagetool.journalview import CONFIRM, DELETION, MESSAGE, NO_KEY, QUEUE_OP, JournalRecord

RECORD_TYPES = ("message", "queue-op", "journal-op")


Bounds = tuple[Any, Any]  # low and high, both exclusive; None = unlimited


@dataclass(slots=True)
class RecordRange:
    """Bounds of timestamps in epoch seconds, of PSNs or LSNs as pairs, and of offsets in bytes."""

    timestamp: Bounds = (None, None)
    seqnum: Bounds = (None, None)
    offset: Bounds = (None, None)

    def contains(self, wall: int, offset: int, seqnum: tuple[int, int]) -> bool:
        return all((low is None or value > low) and (high is None or value < high) for value, (low, high) in (
            (wall, self.timestamp), (seqnum, self.seqnum), (offset, self.offset)))


@dataclass(slots=True)
class MessageRecords:
    """MESSAGE, CONFIRMs and DELETION of one message. `purged`: a later record removed all messages of its queue."""

    records: list[JournalRecord] = field(default_factory=list)
    purged: bool = False

    @property
    def message(self) -> JournalRecord | None:
        """None if CONFIRMs or a DELETION name a message that is not in the file."""
        return self.records[0] if self.records[0].type == MESSAGE else None

    @property
    def confirms(self) -> list[JournalRecord]:
        """CONFIRMs of all apps, auto-confirms included."""
        return [record for record in self.records if record.type == CONFIRM]

    @property
    def deletion(self) -> JournalRecord | None:
        """DELETION, after the last CONFIRM or the expiry of the message."""
        return self.records[-1] if self.records[-1].type == DELETION else None

    @property
    def outstanding(self) -> bool:
        """True if the message is pending for an app."""
        return self.message is not None and self.deletion is None and not self.purged

    @property
    def partially_confirmed(self) -> bool:
        """True if outstanding, and an app has confirmed or rejected the message. Auto-confirms do not count."""
        return self.outstanding and any(each.flags != ConfirmReason.AUTO_CONFIRMED for each in self.confirms)

    @property
    def confirmed(self) -> bool:
        return self.message is not None and self.deletion is not None


def by_message(records: Iterable[JournalRecord]) -> Iterator[MessageRecords | JournalRecord]:
    """Group records: yield QUEUE_OPs, JOURNAL_OPs and unknown records in order, a message at its DELETION or at the end.

    Pass the whole journal and select afterwards, so that the status of each message is right.
    """
    open_messages: dict[bytes, dict[bytes, MessageRecords]] = {}  # queueKey -> GUID -> message without a DELETION so far
    done: list[MessageRecords] = []  # complete messages without a DELETION
    for record in records:
        if record.type in (MESSAGE, CONFIRM, DELETION):
            queue = open_messages.setdefault(record.queue_key, {})
            found = queue.get(record.guid)
            if found is not None and found.message is not None and record.type == MESSAGE:
                done.append(found)  # the GUID occurs twice: the file is damaged
                found = None
            if found is None:
                found = queue[record.guid] = MessageRecords()
            found.records.insert(0 if record.type == MESSAGE else len(found.records), record)
            if record.type == DELETION:
                yield queue.pop(record.guid)
            continue
        if record.type == QUEUE_OP and record.app_key == NULL_KEY and record.op in (QueueOp.PURGE, QueueOp.DELETION):
            for found in open_messages.pop(record.queue_key, {}).values():
                found.purged = True
                done.append(found)
        yield record
    for queue in open_messages.values():
        done.extend(queue.values())
    yield from sorted(done, key=lambda found: found.records[0].offset)


@dataclass(slots=True)
class RecordSelection:
    """Filters of the command line. GUIDs, PSNs and offsets select exactly these records or messages.

    status: a property of `MessageRecords` that messages must have, "" = any.
    """

    types: frozenset[str] = frozenset(RECORD_TYPES)
    queue_keys: frozenset[bytes] = frozenset()
    range: RecordRange = field(default_factory=RecordRange)
    status: str = ""
    guids: tuple[bytes, ...] = ()
    seqnums: tuple[tuple[int, int], ...] = ()
    offsets: tuple[int, ...] = ()

    @property
    def exact_records(self) -> bool:
        """True if single records are selected, without the other records of their message."""
        return bool(self.seqnums or self.offsets)

    def wants_record(self, record: JournalRecord) -> bool:
        """Return whether a QUEUE_OP, JOURNAL_OP or unknown record is selected."""
        if self.guids or type_of(record) not in self.types:
            return False
        return self._in_queue_and_range(record)

    def wants_message(self, found: MessageRecords) -> bool:
        """Return whether a message, with all its records, is selected by its MESSAGE."""
        if "message" not in self.types:
            return False
        record = found.records[0]
        if self.guids:
            return record.guid in self.guids
        return self._in_queue_and_range(record) and (not self.status or bool(getattr(found, self.status)))

    def covers(self, found: MessageRecords) -> bool:
        """Return whether a message is selected if its status is ignored."""
        return self._in_queue_and_range(found.records[0])

    def wants_exactly(self, record: JournalRecord) -> bool:
        """Return whether a record is selected by PSN or offset."""
        return record.offset in self.offsets or record.psn in self.seqnums

    def _in_queue_and_range(self, record: JournalRecord) -> bool:
        if self.queue_keys and record.queue_key != NO_KEY and record.queue_key not in self.queue_keys:
            return False
        return self.range.contains(record.wall, record.offset, record.psn)


def type_of(record: JournalRecord) -> str:
    """Return the record type of the command line; journal-op for unknown records."""
    if record.type == QUEUE_OP:
        return "queue-op"
    return "message" if record.type in (MESSAGE, CONFIRM, DELETION) else "journal-op"
