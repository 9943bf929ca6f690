"""`bmq storage show --summary`: how many records of each kind, by queue if wanted, and what the file headers say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bmqtwist.ids import NULL_KEY
from bmqtwist.storage.journal import check_file_header
from bmqtwist.storage.layout import DATA_FILE_HEADER, FILE_HEADER, JOURNAL_FILE_HEADER
from bmqtwist.storage.records import FileType, QueueOp, SyncPoint
from bmqtwist.storage.recovery import KnownQueue
from bmqtwist.storagetool.fields import (
    NOT_APPLICABLE,
    NULL_TEXT,
    Fields,
    aligned,
    app_id_of,
    hex_key,
    texts,
    timestamp,
)
from bmqtwist.storagetool.journalview import (
    NO_KEY,
    ConfirmRecord,
    DeletionRecord,
    JournalOpRecord,
    JournalRecord,
    MessageRecord,
    QueueOpRecord,
)
from bmqtwist.storagetool.output import HumanOutput, JsonOutput, Output, Write, percent
from bmqtwist.storagetool.selection import (
    Selection,
    Story,
    is_sync_point,
    stories,
    type_of,
)
from bmqtwist.wire.declare import Layout

Read = Callable[[int, int], bytes]
_OPS = {QueueOp.PURGE: "purge", QueueOp.CREATION: "creation", QueueOp.DELETION: "deletion",
        QueueOp.ADDITION: "addition"}


@dataclass(slots=True)
class QueueCounts:
    """Records of one queue."""

    queue_ops: int = 0
    messages: int = 0
    confirms: int = 0
    deletions: int = 0
    apps: Counter[bytes] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All its records."""
        return self.queue_ops + self.messages + self.confirms + self.deletions


@dataclass(slots=True)
class Summary:
    """Counts of what a selection covers. `last`, `last_sync`, `first_sync`: of the whole file, not of the selection."""

    messages: int = 0
    partially_confirmed: int = 0
    confirmed: int = 0
    outstanding: int = 0
    purged: int = 0
    queue_ops: Counter[int] = field(default_factory=Counter)
    journal_ops: int = 0
    records: int = 0
    queues: dict[bytes, QueueCounts] = field(default_factory=dict)
    last: JournalRecord | None = None
    last_sync: JournalOpRecord | None = None
    at_mark: JournalOpRecord | None = None

    def count(self, records: Iterable[JournalRecord], selection: Selection, mark: int) -> None:
        """Take everything in; `mark`: offset of the sync point that ended the last rollover, bytes."""
        for item in stories(self._watched(records, mark)):
            if isinstance(item, Story):
                if selection.wants_story(item):
                    self._message(item)
            elif selection.wants_record(item):
                self._single(item)

    def _watched(self, records: Iterable[JournalRecord], mark: int) -> Iterable[JournalRecord]:
        for record in records:
            self.last = record
            if isinstance(record, JournalOpRecord) and is_sync_point(record):
                self.last_sync = record
                if record.offset == mark:
                    self.at_mark = record
            yield record

    def _of(self, record: JournalRecord) -> QueueCounts:
        self.records += 1
        return self.queues.setdefault(record.queue_key, QueueCounts())

    def _message(self, story: Story) -> None:
        if story.message is not None:
            self.messages += 1
            self.outstanding += story.outstanding
            self.partially_confirmed += story.partially_confirmed
            self.confirmed += story.confirmed
            self.purged += story.purged
        for record in story.records:
            counts = self._of(record)
            if isinstance(record, MessageRecord):
                counts.messages += 1
            elif isinstance(record, DeletionRecord):
                counts.deletions += 1
            elif isinstance(record, ConfirmRecord):
                counts.confirms += 1
                counts.apps[record.app_key] += 1

    def _single(self, record: JournalRecord) -> None:
        if isinstance(record, QueueOpRecord):
            counts = self._of(record)
            counts.queue_ops += 1
            self.queue_ops[record.op] += 1
            if record.app_key != NULL_KEY:
                counts.apps[record.app_key] += 1
        else:
            self.records += 1
            self.journal_ops += type_of(record) == "journal-op"

    def listed(self, least: int) -> list[tuple[bytes, QueueCounts]]:
        """Queues with at least so many records, in order of appearance; none if `least` is 0."""
        return [each for each in self.queues.items() if least and each[0] != NO_KEY and each[1].total >= least]


def queue_fields(key: bytes, counts: QueueCounts, queue: KnownQueue | None) -> Fields:
    """What is printed of one queue."""
    found: Fields = [("Queue Key", hex_key(key))]
    if queue is not None:
        found.append(("Queue URI", queue.uri))
    found += [("Total Records", counts.total), ("Num Queue Op Records", counts.queue_ops),
              ("Num Message Records", counts.messages), ("Num Confirm Records", counts.confirms)]
    if len(counts.apps) > 1:
        names = []
        for app_key, number in counts.apps.most_common():
            app_id = app_id_of(queue, app_key)
            names.append(f"{hex_key(app_key) if app_id == NULL_TEXT else app_id}={number}")
        found.append(("Num Records Per App", " ".join(names)))
    return [*found, ("Num Delete Records", counts.deletions)]


def file_header_fields(read: Read) -> Fields:
    """The header all files begin with."""
    data = read(0, FILE_HEADER.size)
    if len(data) < FILE_HEADER.size:
        return [("Problem", "the file ends within its header")]
    header = FILE_HEADER.parse(data)
    known = header.type in set(FileType)
    name = FileType(header.type).name if known else f"UNKNOWN ({header.type})"
    found: Fields = [("Protocol Version", header.version), ("Bitness", 64 if header.wide else 32), ("FileType", name),
                     ("HeaderWords", header.header_words), ("PartitionId", header.partition_id)]
    wrong = check_file_header(data, FileType(header.type), None) if known else None
    return [*found, ("Problem", wrong)] if wrong else found


def journal_header_fields(read: Read, at_mark: JournalOpRecord | None) -> Fields:
    """The journal's own header, with the sync point it points at."""
    header = JOURNAL_FILE_HEADER.parse(_padded(read, JOURNAL_FILE_HEADER))
    values: list[object] = [NOT_APPLICABLE] * 7
    if at_mark is not None:
        values = [SyncPoint(at_mark.kind).name if at_mark.kind in set(SyncPoint) else at_mark.kind, at_mark.node,
                  at_mark.inner_lease, at_mark.inner_sequence, at_mark.data_dwords, timestamp(at_mark.wall),
                  at_mark.wall]
    names = ("type", "primaryNodeId", "primaryLeaseId", "sequenceNumber", "dataFileOffset", "timestamp", "epoch")
    return [("HeaderWords", header.header_words), ("RecordWords", header.record_words),
            ("First SyncPointRecord offset words", header.mark),
            *((f"First SyncPointRecord {name}", value) for name, value in zip(names, values, strict=True))]


def end_fields(summary: Summary) -> Fields:
    """The last record and the last sync point."""
    last, sync = summary.last, summary.last_sync
    ends: list[object] = [NOT_APPLICABLE] * 4
    if last is not None:
        ends = [last.offset, last.type_name, timestamp(last.wall), last.wall]
    points: list[object] = [NOT_APPLICABLE] * 8
    if sync is not None:
        points = [sync.offset, timestamp(sync.wall), sync.wall, sync.inner_sequence, sync.node, sync.inner_lease,
                  sync.data_dwords, sync.qlist_words]
    names = ("Last Valid Record Offset", "Record Type", "Record Timestamp", "Record Epoch",
             "Last Valid SyncPoint Offset", "SyncPoint Timestamp", "SyncPoint Epoch", "SyncPoint SeqNum",
             "SyncPoint Primary NodeId", "SyncPoint Primary LeaseId", "SyncPoint DataFileOffset (DWORDS)",
             "SyncPoint QlistFileOffset (WORDS)")
    return list(zip(names, ends + points, strict=True))


def data_header_fields(read: Read) -> Fields:
    """The DATA file's own header."""
    header = DATA_FILE_HEADER.parse(_padded(read, DATA_FILE_HEADER))
    return [("HeaderWords", header.header_words), ("FileId (FileKey)", hex_key(header.file_key))]


def _padded(read: Read, declared: Layout) -> bytes:
    """The second header of a file; zeros if the file ends before it does."""
    data = read(FILE_HEADER.size, declared.size)
    return data if len(data) == declared.size else bytes(declared.size)


@dataclass(slots=True)
class SummaryPrinter:
    """Prints a summary. `data` reads the DATA file if there is one; `least`: records a queue must have to be listed."""

    summary: Summary
    types: frozenset[str]
    queues: Mapping[bytes, KnownQueue]
    journal: Read
    data: Read | None = None
    least: int = 0

    def print(self, output: Output, write: Write) -> None:
        """As text or as members of the JSON object."""
        if isinstance(output, HumanOutput):
            self._human(output, write)
        else:
            self._json(output)
        output.finish()

    def _details(self) -> list[tuple[str, list[tuple[str, Fields]]]]:
        files = [("journal", [("BlazingMQ File Header", file_header_fields(self.journal)),
                              ("Journal File Header", journal_header_fields(self.journal, self.summary.at_mark)),
                              ("Journal SyncPoint", end_fields(self.summary))])]
        if self.data is not None:
            files.append(("data", [("BlazingMQ File Header", file_header_fields(self.data)),
                                   ("Data File Header", data_header_fields(self.data))]))
        return files

    def _human(self, output: HumanOutput, write: Write) -> None:
        found = self.summary
        if "message" in self.types:
            if found.messages:
                write(f"\nTotal number of messages: {found.messages}\n"
                      f"Number of partially confirmed messages: {found.partially_confirmed}\n"
                      f"Number of confirmed messages: {found.confirmed}\n")
                if found.purged:
                    write(f"Number of purged messages: {found.purged}\n")
                write(f"Number of outstanding messages: {found.outstanding}\n")
                output.ratio(found.outstanding, found.messages)
            else:
                write("\nNo messages found.\n")
        if "queue-op" in self.types:
            if found.queue_ops:
                write(f"\nTotal number of queueOp records: {found.queue_ops.total()}\n")
                write(aligned([(f"Number of '{name}' operations", found.queue_ops[op]) for op, name in _OPS.items()]))
            else:
                write("\nNo queueOp records found.\n")
        if "journal-op" in self.types:
            write(f"\nNumber of journalOp records: {found.journal_ops}\n" if found.journal_ops
                  else "\nNo journalOp records found.\n")
        write(f"Total number of records: {found.records}\n")
        listed = found.listed(self.least)
        if listed:
            write("Number of records per Queue:\n")
            write("\n".join(aligned(queue_fields(key, counts, self.queues.get(key))) for key, counts in listed))
        for name, parts in self._details():
            write(f"\nDetails of {name} file:{' ' if name == 'data' else ''}\n")
            for title, fields in parts:
                write(f"    {title:<23}: \n{aligned(fields)}\n")

    def _json(self, output: JsonOutput) -> None:
        found = self.summary
        counts: dict[str, int] = {}
        if "message" in self.types:
            counts = {"TotalMessagesNumber": found.messages,
                      "PartiallyConfirmedMessagesNumber": found.partially_confirmed,
                      "ConfirmedMessagesNumber": found.confirmed, "OutstandingMessagesNumber": found.outstanding}
            if found.purged:
                counts["PurgedMessagesNumber"] = found.purged
            if found.messages:
                counts |= {"OutstandingRatio": percent(found.outstanding, found.messages),
                           "OutstandingMessages": found.outstanding}
        if "queue-op" in self.types:
            counts["TotalQueueOperationsNumber"] = found.queue_ops.total()
            counts |= {f"{name.capitalize()}OperationsNumber": found.queue_ops[op] for op, name in _OPS.items()}
        if "journal-op" in self.types:
            counts["JournalOperationsNumber"] = found.journal_ops
        for member, number in counts.items():
            output.member(member, str(number))
        output.member("TotalRecordsNumber", str(found.records))
        output.member("PerQueueRecordsNumber", [texts(queue_fields(key, each, self.queues.get(key)))
                                                for key, each in found.listed(self.least)])
        for name, parts in self._details():
            tree: dict[str, Any] = {title: texts(fields) for title, fields in parts}
            output.member(f"{name.capitalize()}FileDetails", tree)
