"""`bmq storage show`: selected records of a journal in order, each message as one block, or a summary with counts, also by
queue, and file headers; and `bmq storage qlist`.

Called by `cli/storage.py`; records are decoded in `journalview.py`, written by `output.py`. Printed fields are declared
in `journalview.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bmqtwist.ids import NULL_KEY
from bmqtwist.storage.fileset import Read
from bmqtwist.storage.journal import check_file_header
from bmqtwist.storage.layout import DATA_FILE_HEADER, FILE_HEADER, JOURNAL_FILE_HEADER
from bmqtwist.storage.records import QUEUE_RECORD_HEADER, FileType, QueueOp, SyncPoint, queue_records
from bmqtwist.storage.recovery import KnownQueue
from bmqtwist.storage.store import QLIST_HEADER_BYTES
from bmqtwist.storagetool.datafile import DataError, DataFile, content_of
from bmqtwist.storagetool.inputs import ReadOnlyFile
from bmqtwist.storagetool.journalview import (
    CONFIRM,
    DELETION,
    MESSAGE,
    NO_KEY,
    NULL_TEXT,
    QUEUE_OP,
    Fields,
    JournalRecord,
    app_id_of,
    hex_key,
    name_of,
    record_fields,
    timestamp,
)
from bmqtwist.storagetool.output import Payload, ToolOutput, aligned, texts
from bmqtwist.storagetool.selection import MessageRecords, RecordSelection, by_message, type_of
from bmqtwist.wire.declare import Layout

_COUNTED = {"message": "message", "queue-op": "queueOp", "journal-op": "journalOp"}
_OPS = {QueueOp.PURGE: "purge", QueueOp.CREATION: "creation", QueueOp.DELETION: "deletion",
        QueueOp.ADDITION: "addition"}
_STATUSES = ("partially_confirmed", "confirmed", "purged", "outstanding")  # of messages
NOT_APPLICABLE = " ** NA ** "


@dataclass(slots=True)
class RecordPrinter:
    """Printer of selected records, with payloads if `data` is given."""

    selection: RecordSelection
    queues: Mapping[bytes, KnownQueue]
    output: ToolOutput
    data: DataFile | None = None

    def run(self, records: Iterable[JournalRecord]) -> bool:
        """Print the selected records; False if a GUID, PSN or offset of the selection was not found."""
        return self._print_exact(records) if self.selection.exact_records else self._print_matching(records)

    def _print_matching(self, records: Iterable[JournalRecord]) -> bool:
        selection, output = self.selection, self.output
        counts = {name: 0 for kind, name in _COUNTED.items() if kind in selection.types}
        outstanding = total = 0
        seen: set[bytes] = set()
        for item in by_message(records):
            if not isinstance(item, MessageRecords):
                if selection.wants_record(item):
                    output.write_record(record_fields(item, self.queues))
                    counts[_COUNTED[type_of(item)]] += 1
                continue
            if item.message is not None and selection.status and selection.covers(item):
                total += 1
                outstanding += item.outstanding
            if selection.wants_message(item):
                counts["message"] += item.message is not None
                seen.add(self._print_message(item))
        output.write_counts(counts)
        if selection.status and total:
            output.write_ratio(outstanding, total)
        missing = [hex_key(guid) for guid in selection.guids if guid not in seen]
        if selection.guids:
            output.write_missing("GUID", missing)
        output.finish()
        return not missing

    def _print_message(self, found: MessageRecords) -> bytes:
        guid = found.records[0].guid
        self.output.write_message(hex_key(guid), [record_fields(record, self.queues) for record in found.records],
                                  self._payload(found.message))
        return guid

    def _payload(self, message: JournalRecord | None) -> Payload:
        if self.data is None or message is None:
            return None
        try:
            record = self.data.record(message.data_dwords * 8, numbered=True)
        except DataError as error:
            return f"Failed to retrieve message from DATA file: {error}"
        return record, content_of(record, message.compression)

    def _print_exact(self, records: Iterable[JournalRecord]) -> bool:
        selection, output = self.selection, self.output
        counts = dict.fromkeys(("confirm", "deletion", "message", "queueOp", "journalOp"), 0)
        offsets, seqnums = set(selection.offsets), set(selection.seqnums)
        for record in records:
            if not selection.wants_exactly(record):
                continue
            offsets.discard(record.offset)
            seqnums.discard(record.psn)
            fields = record_fields(record, self.queues)
            counts["confirm" if record.type == CONFIRM else "deletion" if record.type == DELETION
                   else _COUNTED[type_of(record)]] += 1
            if record.type == MESSAGE:
                output.write_message(hex_key(record.guid), [fields], self._payload(record))
            else:
                output.write_record(fields)
        output.write_counts(counts)
        if selection.offsets:
            output.write_missing("offset", [str(each) for each in sorted(offsets)])
        if selection.seqnums:
            output.write_missing("sequence number", [f"{lease}-{sequence}" for lease, sequence in sorted(seqnums)])
        output.finish()
        return not offsets and not seqnums


def show_qlist(file: ReadOnlyFile, output: ToolOutput) -> str:
    """Print all records of a QLIST file; return the error before its end, or ""."""
    content = file.read_all()
    records, end, problem = queue_records(content, QLIST_HEADER_BYTES)
    for index, (offset, uri, key, apps) in enumerate(records):
        fields: Fields = [("Index", index), ("Offset", offset), ("OffsetWords", offset >> 2), ("QueueUri", uri),
                          ("QueueKey", hex_key(key))]
        output.write_item(aligned([*fields, *(("App", f"{name} [{hex_key(app)}]") for name, app in apps)], 12) + "\n",
                          {**texts(fields), "Apps": [{"AppId": name, "AppKey": hex_key(app)} for name, app in apps]})
    output.write_members(f"{len(records) or 'No'} queue record(s) found.\n", {"QueueRecords": str(len(records))})
    output.finish()
    damaged = any(content[end:end + QUEUE_RECORD_HEADER.size])
    return f"there is no record at offset {end}: {problem}" if problem and damaged else ""


@dataclass(slots=True)
class Summary:
    """Counts of a selection. `last`, `last_sync`, `at_mark`: records of the whole file.

    messages: total, and by status. queues: by queue key, the records of each type, and of each app.
    """

    messages: Counter[str] = field(default_factory=Counter)
    queue_ops: Counter[int] = field(default_factory=Counter)
    journal_ops: int = 0
    records: int = 0
    queues: dict[bytes, tuple[Counter[int], Counter[bytes]]] = field(default_factory=dict)
    last: JournalRecord | None = None
    last_sync: JournalRecord | None = None
    at_mark: JournalRecord | None = None

    def count(self, records: Iterable[JournalRecord], selection: RecordSelection, mark: int) -> None:
        """Count the selected records; `mark`: offset of the sync point that ended the last rollover, bytes."""
        for item in by_message(self._store_ends(records, mark)):
            if isinstance(item, MessageRecords):
                if selection.wants_message(item):
                    if item.message is not None:
                        self.messages.update({name: getattr(item, name) for name in _STATUSES}, total=1)
                    for record in item.records:
                        self._count_record(record)
            elif selection.wants_record(item):
                self._count_record(item)

    def _store_ends(self, records: Iterable[JournalRecord], mark: int) -> Iterable[JournalRecord]:
        for record in records:
            self.last = record
            if record.is_sync_point:
                self.last_sync = record
                if record.offset == mark:
                    self.at_mark = record
            yield record

    def _count_record(self, record: JournalRecord) -> None:
        self.records += 1
        if record.queue_key == NO_KEY:
            self.journal_ops += 1
            return
        types, apps = self.queues.setdefault(record.queue_key, (Counter(), Counter()))
        types[record.type] += 1
        if record.type == CONFIRM or record.type == QUEUE_OP and record.app_key != NULL_KEY:
            apps[record.app_key] += 1
        if record.type == QUEUE_OP:
            self.queue_ops[record.op] += 1

    def queue_fields(self, least: int, known: Mapping[bytes, KnownQueue]) -> list[Fields]:
        """Return the fields of the queues with at least `least` records, in order of appearance; [] if `least` is 0."""
        return [_queue_fields(key, types, apps, known.get(key)) for key, (types, apps) in self.queues.items()
                if least and types.total() >= least]


def _queue_fields(key: bytes, types: Counter[int], apps: Counter[bytes], queue: KnownQueue | None) -> Fields:
    found: Fields = [("Queue Key", hex_key(key))]
    if queue is not None:
        found.append(("Queue URI", queue.uri))
    found += [("Total Records", types.total()), ("Num Queue Op Records", types[QUEUE_OP]),
              ("Num Message Records", types[MESSAGE]), ("Num Confirm Records", types[CONFIRM])]
    if len(apps) > 1:
        names = []
        for app_key, number in apps.most_common():
            app_id = app_id_of(queue, app_key)
            names.append(f"{hex_key(app_key) if app_id == NULL_TEXT else app_id}={number}")
        found.append(("Num Records Per App", " ".join(names)))
    return [*found, ("Num Delete Records", types[DELETION])]


def _file_header(read: Read) -> Fields:
    """Return the fields of the general file header."""
    data = read(0, FILE_HEADER.size)
    if len(data) < FILE_HEADER.size:
        return [("Problem", "the file ends within its header")]
    header = FILE_HEADER.parse(data)
    found: Fields = [("Protocol Version", header.version), ("Bitness", 64 if header.wide else 32),
                     ("FileType", name_of(FileType, header.type)), ("HeaderWords", header.header_words),
                     ("PartitionId", header.partition_id)]
    known = header.type in set(FileType)
    wrong = check_file_header(data, FileType(header.type), None) if known else None
    return [*found, ("Problem", wrong)] if wrong else found


def _journal_header(read: Read, at_mark: JournalRecord | None) -> Fields:
    """Return the fields of the journal's own header and of the sync point at its mark."""
    header = JOURNAL_FILE_HEADER.parse(_padded(read, JOURNAL_FILE_HEADER))
    point = None if at_mark is None else (
        SyncPoint(at_mark.kind).name if at_mark.kind in set(SyncPoint) else at_mark.kind, at_mark.node, at_mark.inner_lease,
        at_mark.inner_sequence, at_mark.data_dwords, timestamp(at_mark.wall), at_mark.wall)
    names = ("type", "primaryNodeId", "primaryLeaseId", "sequenceNumber", "dataFileOffset", "timestamp", "epoch")
    return [("HeaderWords", header.header_words), ("RecordWords", header.record_words),
            ("First SyncPointRecord offset words", header.mark),
            *_named([f"First SyncPointRecord {name}" for name in names], point)]


def _end_fields(summary: Summary) -> Fields:
    last, sync = summary.last, summary.last_sync
    return _named(("Last Valid Record Offset", "Record Type", "Record Timestamp", "Record Epoch"),
                  None if last is None else (last.offset, last.type_name, timestamp(last.wall), last.wall)) + _named(
        ("Last Valid SyncPoint Offset", "SyncPoint Timestamp", "SyncPoint Epoch", "SyncPoint SeqNum",
         "SyncPoint Primary NodeId", "SyncPoint Primary LeaseId", "SyncPoint DataFileOffset (DWORDS)",
         "SyncPoint QlistFileOffset (WORDS)"),
        None if sync is None else (sync.offset, timestamp(sync.wall), sync.wall, sync.inner_sequence, sync.node,
                                   sync.inner_lease, sync.data_dwords, sync.qlist_words))


def _named(names: Sequence[str], values: Sequence[object] | None) -> Fields:
    """Return named values, or placeholders for an absent record."""
    return list(zip(names, values or [NOT_APPLICABLE] * len(names), strict=True))


def _data_header(read: Read) -> Fields:
    header = DATA_FILE_HEADER.parse(_padded(read, DATA_FILE_HEADER))
    return [("HeaderWords", header.header_words), ("FileId (FileKey)", hex_key(header.file_key))]


def _padded(read: Read, declared: Layout) -> bytes:
    """Read the second header of a file; zeros if it is incomplete."""
    data = read(FILE_HEADER.size, declared.size)
    return data if len(data) == declared.size else bytes(declared.size)


@dataclass(slots=True)
class SummaryPrinter:
    """Printer of a summary. `data` reads the DATA file, if any; `least`: minimum records of a listed queue."""

    summary: Summary
    types: frozenset[str]
    queues: Mapping[bytes, KnownQueue]
    journal: Read
    data: Read | None = None
    least: int = 0

    def print(self, output: ToolOutput) -> None:
        """Print the summary as text or as members of the JSON object."""
        found = self.summary
        if "message" in self.types:
            output.write_members(*self._message_counts())
            if found.messages:
                output.write_ratio(found.messages["outstanding"], found.messages["total"])
        if "queue-op" in self.types:
            total, ops = found.queue_ops.total(), {name: found.queue_ops[op] for op, name in _OPS.items()}
            output.write_members(f"\nTotal number of queueOp records: {total}\n" + aligned(
                [(f"Number of '{name}' operations", count) for name, count in ops.items()])
                if total else "\nNo queueOp records found.\n",
                {"TotalQueueOperationsNumber": str(total), **{f"{name.capitalize()}OperationsNumber": str(count)
                                                              for name, count in ops.items()}})
        if "journal-op" in self.types:
            output.write_members(f"\nNumber of journalOp records: {found.journal_ops}\n" if found.journal_ops
                                 else "\nNo journalOp records found.\n", {"JournalOperationsNumber": str(found.journal_ops)})
        output.write_members(f"Total number of records: {found.records}\n", {"TotalRecordsNumber": str(found.records)})
        listed = found.queue_fields(self.least, self.queues)
        output.write_members("Number of records per Queue:\n" + "\n".join(map(aligned, listed)) if listed else "",
                             {"PerQueueRecordsNumber": [texts(each) for each in listed]})
        for name, parts in self._file_details():
            output.write_members(f"\nDetails of {name} file:{' ' if name == 'data' else ''}\n" + "".join(
                f"    {title:<23}: \n{aligned(fields)}\n" for title, fields in parts),
                {f"{name.capitalize()}FileDetails": {title: texts(fields) for title, fields in parts}})
        output.finish()

    def _message_counts(self) -> tuple[str, dict[str, object]]:
        count = self.summary.messages
        members: dict[str, object] = {f"{name}MessagesNumber": str(count[status]) for name, status in (
            ("Total", "total"), ("PartiallyConfirmed", "partially_confirmed"), ("Confirmed", "confirmed"),
            ("Outstanding", "outstanding"))}
        if count["purged"]:
            members["PurgedMessagesNumber"] = str(count["purged"])
        if not count:
            return "\nNo messages found.\n", members
        return f"\nTotal number of messages: {count['total']}\n" + "".join(
            f"Number of {name.replace('_', ' ')} messages: {count[name]}\n"
            for name in _STATUSES if name != "purged" or count[name]), members

    def _file_details(self) -> list[tuple[str, list[tuple[str, Fields]]]]:
        files = [("journal", [("BlazingMQ File Header", _file_header(self.journal)),
                              ("Journal File Header", _journal_header(self.journal, self.summary.at_mark)),
                              ("Journal SyncPoint", _end_fields(self.summary))])]
        if self.data is not None:
            files.append(("data", [("BlazingMQ File Header", _file_header(self.data)),
                                   ("Data File Header", _data_header(self.data))]))
        return files
