"""Inspection of this node's storage files while they are in use: sizes, records of a journal, and checksums to compare the
copies of a partition.

All functions only read, STEP_RECORDS records per step. Pure: files are read through the partition's open files. Called
by `console/documents_api.py`; files of a stopped broker are read by `storagetool/`. The fields of a record are those of
`storagetool/journalview.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from zlib import crc32

from bmqtwist.cluster.state import QueueRecord
from bmqtwist.errors import LocalError
from bmqtwist.steps import Steps
from bmqtwist.storage import records
from bmqtwist.storage.journal import Entry
from bmqtwist.storage.records import FileType
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES
from bmqtwist.storagetool.journalview import JOURNAL_OP, MESSAGE, QUEUE_OP, JournalRecord, record_fields
from bmqtwist.view.replicas import partition_files

if TYPE_CHECKING:
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.storage.fileset import FileSets
    from bmqtwist.storage.partition import Partition
    from bmqtwist.storage.store import Disk

STEP_RECORDS = 2_000  # per step: 120,000 bytes
PAGE_RECORDS_MAX = 200
SEARCHED_RECORDS_MAX = 50_000  # per page
COMPARED_RECORDS = 50_000  # the newest ones of each copy
BLOCK_RECORDS = 1_000  # sequence numbers per checksum
ARCHIVED_NAMES_MAX = 50
_KINDS = {each.name: each for each in records.RecordType if each}
_MEMBERS_OF_ROW = {"RecordType", "Index", "Offset", "PrimaryLeaseId", "SequenceNumber", "Timestamp", "Epoch", "QueueKey",
                    "QueueUri"}
Document = dict[str, Any]


def partition_of(cluster: Cluster, number: int) -> Partition:
    """Return a partition by its number. Raises LocalError."""
    if not 0 <= number < len(cluster.partitions):
        raise LocalError(f"There is no partition {number}")
    return cluster.partitions[number]


def file_rows(cluster: Cluster, disk: Disk) -> list[Document]:
    """Return for each partition its open files and its archived file sets. Raises OSError."""
    config = cluster.definition.partition_config
    archived = disk.names(config.archive_location)
    return [_files(partition, [name for name in archived if f"bmq_{partition.partition_id}." in name])
            | asdict(cluster.repairs.counts[partition.partition_id])
            for partition in cluster.partitions]


def _files(partition: Partition, archived: Sequence[str]) -> Document:
    return {"partition": partition.partition_id, "lease": partition.lease, "sequence": partition.sequence,
            "rollingOver": partition.roll.copy is not None, "archivedFiles": len(archived),
            "archived": sorted(archived)[-ARCHIVED_NAMES_MAX:],
            "files": [{"kind": kind.name.lower(), "used": file.used, "outstanding": file.outstanding, "length": length,
                       "allocated": allocated, "max": file.total} for kind, file, length, allocated in zip(
                           (FileType.JOURNAL, FileType.DATA, FileType.QLIST), partition_files(partition),
                           partition.files.lengths(), partition.files.allocated(), strict=True)]}


def _records_at(files: FileSets, first: int, count: int) -> Iterator[Entry]:
    """Yield the records in `count` slots of the journal from the offset `first`."""
    data = files.read_journal(first, count * records.RECORD_BYTES)
    for number, (head, lease, wall, body, magic) in enumerate(
            records.RECORD.iter_unpack(data[:len(data) // records.RECORD_BYTES * records.RECORD_BYTES])):
        if magic == records.MAGIC:
            yield first + number * records.RECORD_BYTES, head, lease, wall, body


def histogram_in_steps(partition: Partition) -> Steps[Document]:
    """Return the number of records of each kind in the journal, with the oldest and newest timestamp."""
    files, end = partition.files, partition.files.current.journal.end
    counts: dict[str, list[int]] = {}
    for first in range(JOURNAL_HEADER_BYTES, end, STEP_RECORDS * records.RECORD_BYTES):
        for _, head, _, wall, _ in _records_at(files, first, min(STEP_RECORDS, (end - first) // records.RECORD_BYTES)):
            kind = head >> records.TYPE_SHIFT
            row = counts.setdefault(records.RecordType(kind).name if kind in _NUMBERS else "UNKNOWN", [0, wall, wall])
            row[0] += 1
            row[1], row[2] = min(row[1], wall), max(row[2], wall)
        yield
    return {"partition": partition.partition_id, "bytes": end, "kinds": [
        {"kind": name, "records": count, "bytes": count * records.RECORD_BYTES, "oldest": oldest, "newest": newest}
        for name, (count, oldest, newest) in sorted(counts.items())]}


_NUMBERS = {int(each) for each in records.RecordType}


def journal_page_in_steps(partition: Partition, before: int, limit: int, kind: str, guid: str) -> Steps[Document]:
    """Return records of the journal before the offset `before` (0 = the end), newest first; `kind` and `guid` filter unless
    empty. `next`: `before` of the next page, None = this is the last page. LocalError: the kind is unknown."""
    if kind and kind not in _KINDS:
        raise LocalError(f"Unknown kind of record, expected one of {', '.join(_KINDS)}")
    files, wanted = partition.files, guid.strip().upper()
    end = min(before or files.current.journal.end, files.current.journal.end)
    queues = {key: QueueRecord(queue.uri, key, partition.partition_id, {app.app_id: app.key for app in queue.apps.values()})
              for key, queue in partition.state.queues.items()}
    rows: list[Document] = []
    at, searched = end - (end - JOURNAL_HEADER_BYTES) % records.RECORD_BYTES, 0
    while at > JOURNAL_HEADER_BYTES and len(rows) < limit and searched < SEARCHED_RECORDS_MAX:
        count = min(STEP_RECORDS, (at - JOURNAL_HEADER_BYTES) // records.RECORD_BYTES)
        first = at - count * records.RECORD_BYTES
        for entry in reversed(list(_records_at(files, first, count))):
            at = entry[0]
            if not kind or entry[1] >> records.TYPE_SHIFT == _KINDS[kind]:
                record = JournalRecord(entry)
                if not wanted or record.guid.hex().upper() == wanted:
                    rows.append(_row(record, queues))
                    if len(rows) == limit:
                        break
        else:
            at = first
        searched += count
        yield
    return {"partition": partition.partition_id, "records": rows, "next": at if at > JOURNAL_HEADER_BYTES else None,
            "searched": searched}


def _row(record: JournalRecord, queues: Mapping[bytes, QueueRecord]) -> Document:
    queue = queues.get(record.queue_key)
    return {"offset": record.offset, "kind": record.type_name, "lease": record.lease, "sequence": record.sequence,
            "at": record.wall, "queue": queue.uri if queue is not None else "",
            "fields": [[name, str(value)] for name, value in record_fields(record, queues) if name not in _MEMBERS_OF_ROW]}


# -- comparison of copies ---------------------------------------------------------------------------------------------

Psn = tuple[int, int]  # lease and sequence number


def comparable_range(partition: Partition) -> Document:
    """Return the first and last record that can be compared; before the first one a rollover may have omitted records."""
    files, end = partition.files, partition.files.current.journal.end
    start = _compared_from(files, COMPARED_RECORDS)
    ends = [*_records_at(files, start, 1), *_records_at(files, max(start, end - records.RECORD_BYTES), 1)]
    psns = [JournalRecord(entry).psn for entry in ends] or [(0, 0)]
    return {"partition": partition.partition_id, "first": list(psns[0]), "last": list(psns[-1])}


def _compared_from(files: FileSets, count: int) -> int:
    # offset of the sync point that ended the last rollover
    mark = int.from_bytes(files.read_journal(records.MARK_OFFSET, 8), "big") * 4
    return max(JOURNAL_HEADER_BYTES, mark, files.current.journal.end - count * records.RECORD_BYTES)


def checksums_in_steps(partition: Partition, first: Psn, last: Psn) -> Steps[Document]:
    """Return the number and a checksum of the records of each BLOCK_RECORDS sequence numbers from `first` to `last`. Offsets
    in files and sync points, which differ between nodes, are excluded."""
    files, end = partition.files, partition.files.current.journal.end
    blocks: dict[str, list[int]] = {}
    for at in range(_compared_from(files, 2 * COMPARED_RECORDS), end, STEP_RECORDS * records.RECORD_BYTES):
        for entry in _records_at(files, at, min(STEP_RECORDS, (end - at) // records.RECORD_BYTES)):
            record = JournalRecord(entry)
            if first <= record.psn <= last:
                block = blocks.setdefault(f"{record.lease}-{record.sequence // BLOCK_RECORDS}", [0, 0])
                block[0] += 1
                block[1] = crc32(_content(entry, record), block[1])
        yield
    return {"partition": partition.partition_id, "blocks": blocks}


def _content(entry: Entry, record: JournalRecord) -> bytes:
    """Return the content of a record without offsets."""
    _, head, lease, wall, body = entry
    if record.type == JOURNAL_OP:
        return b""
    if record.type == MESSAGE:
        body = record.queue_key + record.guid + record.crc.to_bytes(4, "big") + bytes((record.compression,))
    elif record.type == QUEUE_OP:
        body = record.queue_key + record.app_key + bytes((record.op,))
    return b"%d %d %d %s" % (head, lease, wall, body)
