"""Which journal records are wanted, and the messages they make up: a MESSAGE with its CONFIRMs and its DELETION."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bmqtwist.ids import NULL_KEY
from bmqtwist.storage.records import ConfirmReason, QueueOp
from bmqtwist.storagetool.journalview import (
    NO_KEY,
    ConfirmRecord,
    DeletionRecord,
    JournalOpRecord,
    JournalRecord,
    MessageRecord,
    QueueOpRecord,
)

OUTSTANDING, CONFIRMED, PARTIALLY_CONFIRMED = "outstanding", "confirmed", "partially-confirmed"
RECORD_TYPES = ("message", "queue-op", "journal-op")


@dataclass(slots=True)
class RecordRange:
    """Bounds, all exclusive; None = none. Timestamps in epoch seconds, offsets in bytes, PSNs or LSNs as pairs."""

    timestamp_gt: int | None = None
    timestamp_lt: int | None = None
    seqnum_gt: tuple[int, int] | None = None
    seqnum_lt: tuple[int, int] | None = None
    offset_gt: int | None = None
    offset_lt: int | None = None

    def holds(self, wall: int, offset: int, seqnum: tuple[int, int]) -> bool:
        """Is a record within all bounds?"""
        return ((self.timestamp_gt is None or wall > self.timestamp_gt)
                and (self.timestamp_lt is None or wall < self.timestamp_lt)
                and (self.offset_gt is None or offset > self.offset_gt)
                and (self.offset_lt is None or offset < self.offset_lt)
                and (self.seqnum_gt is None or seqnum > self.seqnum_gt)
                and (self.seqnum_lt is None or seqnum < self.seqnum_lt))


@dataclass(slots=True)
class Story:
    """Everything about one message. `purged`: a later record removed all messages of its queue.

    `message` is None if CONFIRMs or a DELETION name a message that is not in the file.
    """

    message: MessageRecord | None
    confirms: list[ConfirmRecord] = field(default_factory=list)
    deletion: DeletionRecord | None = None
    purged: bool = False
    first: int = 0  # offset of the record it begins with

    @property
    def records(self) -> Iterator[JournalRecord]:
        """MESSAGE, CONFIRMs, DELETION: those there are."""
        if self.message is not None:
            yield self.message
        yield from self.confirms
        if self.deletion is not None:
            yield self.deletion

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
        """It has a DELETION: all apps are done with it, or its time was over."""
        return self.message is not None and self.deletion is not None

    def has_status(self, status: str) -> bool:
        """Is the message outstanding, confirmed or partially confirmed?"""
        if status == OUTSTANDING:
            return self.outstanding
        return self.confirmed if status == CONFIRMED else self.partially_confirmed


def stories(records: Iterable[JournalRecord]) -> Iterator[Story | JournalRecord]:
    """QUEUE_OPs, JOURNAL_OPs and unknown records as they come; a message when it is deleted, the others at the end.

    Within the whole journal: what is wanted is decided afterwards, so that the status of a message is always right.
    """
    waiting: dict[bytes, dict[bytes, Story]] = {}  # queueKey -> GUID -> a story that goes on
    done: list[Story] = []  # stories that ended without a DELETION
    for record in records:
        if isinstance(record, MessageRecord):
            queue = waiting.setdefault(record.queue_key, {})
            story = queue.get(record.guid)
            if story is None or story.message is not None:
                if story is not None:
                    done.append(story)  # its GUID is used again: a damaged file
                story = queue[record.guid] = Story(None)
            story.message, story.first = record, record.offset
        elif isinstance(record, ConfirmRecord):
            queue = waiting.setdefault(record.queue_key, {})
            story = queue.get(record.guid)
            if story is None:
                story = queue[record.guid] = Story(None, first=record.offset)
            story.confirms.append(record)
        elif isinstance(record, DeletionRecord):
            story = waiting.get(record.queue_key, {}).pop(record.guid, None) or Story(None, first=record.offset)
            story.deletion = record
            yield story
        else:
            if (isinstance(record, QueueOpRecord) and record.app_key == NULL_KEY
                    and record.op in (QueueOp.PURGE, QueueOp.DELETION)):
                for story in waiting.pop(record.queue_key, {}).values():
                    story.purged = True
                    done.append(story)
            yield record
    for queue in waiting.values():
        done.extend(queue.values())
    yield from sorted(done, key=lambda story: story.first)


@dataclass(slots=True)
class Selection:
    """What the user asked for. GUIDs, PSNs and offsets are exact and exclude everything else."""

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

    def wants_story(self, story: Story) -> bool:
        """Is this message wanted? Its MESSAGE decides; its other records come along."""
        if "message" not in self.types:
            return False
        record = story.message or next(story.records)
        if self.guids:
            return getattr(record, "guid", b"") in self.guids
        return self._in_queue_and_range(record) and (not self.status or story.has_status(self.status))

    def covers(self, story: Story) -> bool:
        """Is it wanted, but for its status?"""
        record = story.message or next(story.records)
        return self._in_queue_and_range(record)

    def wants_exactly(self, record: JournalRecord) -> bool:
        """Is this record one of those asked for?"""
        return record.offset in self.offsets or record.psn in self.seqnums

    def _in_queue_and_range(self, record: JournalRecord) -> bool:
        if self.queue_keys and record.queue_key != NO_KEY and record.queue_key not in self.queue_keys:
            return False
        return self.range.holds(record.wall, record.offset, record.psn)


def type_of(record: JournalRecord) -> str:
    """The record type a user names; unknown records count as journal-op."""
    if isinstance(record, QueueOpRecord):
        return "queue-op"
    return "message" if isinstance(record, MessageRecord | ConfirmRecord | DeletionRecord) else "journal-op"


def is_sync_point(record: JournalRecord) -> bool:
    """Is it a JOURNAL_OP of op SYNCPOINT?"""
    return isinstance(record, JournalOpRecord) and record.op == 2
