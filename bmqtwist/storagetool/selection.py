"""Which journal records are wanted, and the messages they make up: a MESSAGE with its CONFIRMs and its DELETION."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bmqtwist.ids import NULL_KEY
from bmqtwist.storage.records import ConfirmReason, QueueOp
from bmqtwist.storagetool.journalview import CONFIRM, DELETION, MESSAGE, NO_KEY, QUEUE_OP, JournalRecord

RECORD_TYPES = ("message", "queue-op", "journal-op")


Bounds = tuple[Any, Any]  # both exclusive; None = none


@dataclass(slots=True)
class RecordRange:
    """Bounds of timestamps in epoch seconds, of PSNs or LSNs as pairs, and of offsets in bytes."""

    timestamp: Bounds = (None, None)
    seqnum: Bounds = (None, None)
    offset: Bounds = (None, None)

    def holds(self, wall: int, offset: int, seqnum: tuple[int, int]) -> bool:
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
        """Of all apps, those included that never wanted it."""
        return [record for record in self.records if record.type == CONFIRM]

    @property
    def deletion(self) -> JournalRecord | None:
        """All apps are done with it, or its time was over."""
        return self.records[-1] if self.records[-1].type == DELETION else None

    @property
    def outstanding(self) -> bool:
        """Some app must still confirm it."""
        return self.message is not None and self.deletion is None and not self.purged

    @property
    def partially_confirmed(self) -> bool:
        """Outstanding, and an app has confirmed or rejected it. (Apps that never wanted it do not count.)"""
        return self.outstanding and any(each.flags != ConfirmReason.AUTO_CONFIRMED for each in self.confirms)

    @property
    def confirmed(self) -> bool:
        return self.message is not None and self.deletion is not None


def by_message(records: Iterable[JournalRecord]) -> Iterator[MessageRecords | JournalRecord]:
    """QUEUE_OPs, JOURNAL_OPs and unknown records as they come; a message when it is deleted, the others at the end.

    Within the whole journal: what is wanted is decided afterwards, so that the status of a message is always right.
    """
    waiting: dict[bytes, dict[bytes, MessageRecords]] = {}  # queueKey -> GUID -> a message without a DELETION so far
    done: list[MessageRecords] = []  # those that never get one
    for record in records:
        if record.type in (MESSAGE, CONFIRM, DELETION):
            queue = waiting.setdefault(record.queue_key, {})
            found = queue.get(record.guid)
            if found is not None and found.message is not None and record.type == MESSAGE:
                done.append(found)  # its GUID is used again: a damaged file
                found = None
            if found is None:
                found = queue[record.guid] = MessageRecords()
            found.records.insert(0 if record.type == MESSAGE else len(found.records), record)
            if record.type == DELETION:
                yield queue.pop(record.guid)
            continue
        if record.type == QUEUE_OP and record.app_key == NULL_KEY and record.op in (QueueOp.PURGE, QueueOp.DELETION):
            for found in waiting.pop(record.queue_key, {}).values():
                found.purged = True
                done.append(found)
        yield record
    for queue in waiting.values():
        done.extend(queue.values())
    yield from sorted(done, key=lambda found: found.records[0].offset)


@dataclass(slots=True)
class Selection:
    """What the user asked for. GUIDs, PSNs and offsets are exact and exclude everything else.

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
        """Single records are asked for, whatever message they belong to."""
        return bool(self.seqnums or self.offsets)

    def wants_record(self, record: JournalRecord) -> bool:
        """Is this QUEUE_OP, JOURNAL_OP or unknown record wanted?"""
        if self.guids or type_of(record) not in self.types:
            return False
        return self._in_queue_and_range(record)

    def wants_message(self, found: MessageRecords) -> bool:
        """Is this message wanted? Its MESSAGE decides; its other records come along."""
        if "message" not in self.types:
            return False
        record = found.records[0]
        if self.guids:
            return record.guid in self.guids
        return self._in_queue_and_range(record) and (not self.status or bool(getattr(found, self.status)))

    def covers(self, found: MessageRecords) -> bool:
        """Is it wanted, but for its status?"""
        return self._in_queue_and_range(found.records[0])

    def wants_exactly(self, record: JournalRecord) -> bool:
        """Is this record one of those asked for?"""
        return record.offset in self.offsets or record.psn in self.seqnums

    def _in_queue_and_range(self, record: JournalRecord) -> bool:
        if self.queue_keys and record.queue_key != NO_KEY and record.queue_key not in self.queue_keys:
            return False
        return self.range.holds(record.wall, record.offset, record.psn)


def type_of(record: JournalRecord) -> str:
    """The record type a user names; unknown records count as journal-op."""
    if record.type == QUEUE_OP:
        return "queue-op"
    return "message" if record.type in (MESSAGE, CONFIRM, DELETION) else "journal-op"
