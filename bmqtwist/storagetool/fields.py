"""Names and values of everything that is printed, in the order in which it is printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from bmqtwist.ids import NULL_KEY
from bmqtwist.storage.records import SYNC_POINT_OP, DeletionReason, QueueOp, SyncPoint
from bmqtwist.storage.recovery import KnownQueue
from bmqtwist.storagetool.journalview import (
    ConfirmRecord,
    DeletionRecord,
    JournalOpRecord,
    JournalRecord,
    MessageRecord,
    QueueOpRecord,
)

Fields = list[tuple[str, object]]

_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MAX = 253402300799  # the last second of the year 9999
NULL_TEXT = "** NULL **"
NOT_APPLICABLE = " ** NA ** "
RECORD_COLUMN = 16  # characters of a field name in the details of a record


def timestamp(wall: int) -> str:
    """Epoch seconds as `29OCT2024_14:01:24.000000`, UTC."""
    if not 0 <= wall <= _SECONDS_MAX:
        return f"** INVALID ({wall}) **"
    when = _EPOCH + timedelta(seconds=wall)
    return f"{when.day:02}{_MONTHS[when.month - 1]}{when.year:04}_{when:%H:%M:%S}.000000"


def hex_key(key: bytes) -> str:
    """Ten hexadecimal digits."""
    return key.hex().upper()


def app_id_of(queue: KnownQueue | None, app_key: bytes) -> str:
    """The appId of a key among the apps the queue has in the end."""
    names = [app_id for app_id, key in queue.apps.items() if key == app_key] if queue and app_key != NULL_KEY else []
    return names[0] if names else NULL_TEXT


def record_fields(record: JournalRecord, queues: Mapping[bytes, KnownQueue]) -> Fields:
    """Details of one journal record; URIs and appIds if the ledger (`queues`) tells them."""
    found: Fields = [
        ("RecordType", record.type_name), ("Index", record.index), ("Offset", record.offset),
        ("PrimaryLeaseId", record.lease), ("SequenceNumber", record.sequence),
        ("Timestamp", timestamp(record.wall)), ("Epoch", record.wall),
    ]
    queue = queues.get(record.queue_key)
    if record.queue_key:
        found.append(("QueueKey", hex_key(record.queue_key)))
        if queue is not None:
            found.append(("QueueUri", queue.uri))
    specific = _SPECIFIC.get(type(record))
    if specific is not None:
        found += specific(record, queue)
    return found


def _app(app_key: bytes, queue: KnownQueue | None) -> Fields:
    found: Fields = [("AppKey", hex_key(app_key))]
    return found if queue is None else [*found, ("AppId", app_id_of(queue, app_key))]


def _message(record: MessageRecord, queue: KnownQueue | None) -> Fields:
    return [("FileKey", hex_key(record.file_key)), ("RefCount", record.ref_count),
            ("MsgOffsetDwords", record.data_dwords), ("GUID", record.guid.hex().upper()), ("Crc32c", record.crc)]


def _confirm(record: ConfirmRecord, queue: KnownQueue | None) -> Fields:
    return [*_app(record.app_key, queue), ("GUID", record.guid.hex().upper())]


def _deletion(record: DeletionRecord, queue: KnownQueue | None) -> Fields:
    return [("DeletionFlag", _name(DeletionReason, record.flags)), ("GUID", record.guid.hex().upper())]


def _queue_op(record: QueueOpRecord, queue: KnownQueue | None) -> Fields:
    found: Fields = [*_app(record.app_key, queue), ("QueueOpType", _name(QueueOp, record.op))]
    if record.op in (QueueOp.CREATION, QueueOp.ADDITION):
        found.append(("QLIST OffsetWords", record.qlist_words))
    return found


def _journal_op(record: JournalOpRecord, queue: KnownQueue | None) -> Fields:
    op = "SYNCPOINT" if record.op == SYNC_POINT_OP else f"UNKNOWN ({record.op})"
    return [("JournalOpType", op), ("SyncPointType", _name(SyncPoint, record.kind)),
            ("SyncPtPrimaryLeaseId", record.inner_lease), ("SyncPtSequenceNumber", record.inner_sequence),
            ("PrimaryNodeId", record.node), ("DataFileOffsetDwords", record.data_dwords)]


_SPECIFIC: dict[type, Callable[..., Fields]] = {
    MessageRecord: _message, ConfirmRecord: _confirm, DeletionRecord: _deletion, QueueOpRecord: _queue_op,
    JournalOpRecord: _journal_op,
}


def _name(kind: type[DeletionReason | QueueOp | SyncPoint], value: int) -> str:
    try:
        return kind(value).name
    except ValueError:
        return f"UNKNOWN ({value})"


def aligned(fields: Fields, column: int | None = None) -> str:
    """Lines `    name   : value`; `column`: characters for the name, None = two more than the longest."""
    width = column if column is not None else max(len(name) for name, _ in fields) + 2
    return "".join(f"    {name:<{width}}: {value}\n" for name, value in fields)


def texts(fields: Fields) -> dict[str, str]:
    """For JSON, where every value of a record is a string."""
    return {name: str(value) for name, value in fields}
