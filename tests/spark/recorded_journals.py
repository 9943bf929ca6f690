"""Recorded journals, and their records in the storage tool's form.

Used by `test_records.py` and `test_storage.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bmqtwist.storage.journal import JournalScan
from bmqtwist.storage.records import RECORD_BYTES
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES
from bmqtwist.storagetool.inputs import ReadOnlyFile
from bmqtwist.storagetool.journalview import record_fields, records, timestamp

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
SETS, TOOL_OUTPUT = VECTORS / "storage-recorded", VECTORS / "storage-tool"


def as_tool_row(row: dict[str, Any]) -> dict[str, str]:
    """Convert a row to the storage tool's form."""
    found = {"RecordType": row["type"], "Index": (row["offset"] - JOURNAL_HEADER_BYTES) // RECORD_BYTES,
             "Offset": row["offset"], "PrimaryLeaseId": row["lease"], "SequenceNumber": row["sequence"],
             "Timestamp": timestamp(int(row["time"].timestamp())), "Epoch": int(row["time"].timestamp())}
    if row["queueKey"] is not None:
        found["QueueKey"] = row["queueKey"].hex().upper()
    if row["type"] == "MESSAGE":
        found |= {"FileKey": "0" * 10, "RefCount": row["refCount"], "MsgOffsetDwords": row["dataOffset"] // 8,
                  "GUID": row["guid"].hex().upper(), "Crc32c": row["crc"]}
    elif row["type"] == "CONFIRM":
        found |= {"AppKey": row["appKey"].hex().upper(), "GUID": row["guid"].hex().upper()}
    elif row["type"] == "DELETION":
        found |= {"DeletionFlag": row["reason"], "GUID": row["guid"].hex().upper()}
    elif row["type"] == "QUEUE_OP":
        found |= {"AppKey": row["appKey"].hex().upper(), "QueueOpType": row["op"]}
        if row["op"] in ("CREATION", "ADDITION"):
            found["QLIST OffsetWords"] = row["qlistOffset"] // 4
    elif row["type"] == "JOURNAL_OP":
        found |= {"JournalOpType": row["op"], "SyncPointType": row["syncPointType"],
                  "SyncPtPrimaryLeaseId": row["syncPointLease"], "SyncPtSequenceNumber": row["syncPointSequence"],
                  "PrimaryNodeId": row["node"], "DataFileOffsetDwords": row["dataOffset"] // 8}
    return {name: str(value) for name, value in found.items()}


def tool_rows(path: Path) -> list[dict[str, str]]:
    """Return the records of a journal as shown by `bmq storage`."""
    file = ReadOnlyFile(str(path))
    try:
        return [{name: str(value) for name, value in record_fields(record, {})} for record in records(
            JournalScan(file.read, file.size))]
    finally:
        file.close()
