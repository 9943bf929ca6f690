"""Journal records as columns, decoded in blocks with numpy from the layouts of `storage/layout.py`.

A journal is an array of 60-byte records after a header of 44 bytes. All records have the same first 20 and last 4 bytes;
the bytes between have a layout per type, and their columns are null in rows of other types. `COLUMNS` declares the columns:
Arrow type and function of each. Called by `storage.py` and `journals.py`; printed forms of single records are in
`storagetool/journalview.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from bmqtwist.ids import DEFAULT_APP_ID, DEFAULT_APP_KEY, NULL_KEY
from bmqtwist.storage import layout
from bmqtwist.storage.records import (
    COMPRESSION_MASK,
    FLAGS_MASK,
    FLAGS_SHIFT,
    MAGIC,
    RECORD_BYTES,
    REF_COUNT_LOW_BITS,
    SEQUENCE_MASK,
    SYNC_POINT_OP,
    TYPE_SHIFT,
    ConfirmReason,
    DeletionReason,
    QueueOp,
    RecordType,
    SyncPoint,
)
from bmqtwist.wire.declare import Layout

Array = np.ndarray[Any, Any]
KEY_BYTES, GUID_BYTES = 5, 16
SECONDS_MAX = 253402300799  # the last second of the year 9999
OF_TYPE: dict[RecordType, Layout] = {
    RecordType.MESSAGE: layout.MESSAGE_RECORD, RecordType.CONFIRM: layout.CONFIRM_RECORD,
    RecordType.DELETION: layout.DELETION_RECORD, RecordType.QUEUE_OP: layout.QUEUE_OP_RECORD,
    RecordType.JOURNAL_OP: layout.JOURNAL_OP_RECORD}
TYPE_NAMES = {each.name: each for each in OF_TYPE}


def _dtype(of: Layout) -> np.dtype[Any]:
    """Return the numpy type of a record: each number and each raw field, by the name of its first field."""
    names, formats, offsets, at = [], [], [], 0
    for part in of.parts:
        if part.fields:
            names.append(part.fields[0][0])
            formats.append(f">{'i' if part.code.islower() else 'u'}{part.size}" if part.is_number else f"V{part.size}")
            offsets.append(at)
        at += part.size
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": of.size})


# `type` contains type, flags and sequence number; then `lease`, `wall`, `magic`
HEADER = _dtype(layout.JOURNAL_RECORD)
_KEY_AS_NUMBER = np.dtype({"names": ["key"], "formats": [f"V{KEY_BYTES}"], "offsets": [8 - KEY_BYTES], "itemsize": 8})
DTYPES = {kind: _dtype(each) for kind, each in OF_TYPE.items()}


@dataclass(slots=True)
class KeyNames:
    """URIs of queues by queue key, and appIds by the concatenation of queue key and app key."""

    queues: Mapping[bytes, str]
    apps: Mapping[bytes, str]


class Block:
    """Consecutive records. `data`: whole records; `offset`: file offset of the first record, or of each, bytes."""

    def __init__(self, data: bytes | memoryview | Array, offset: int | Sequence[int] | Array) -> None:
        self.raw = np.frombuffer(data, HEADER)
        self.bytes = np.frombuffer(data, np.uint8).reshape(-1, RECORD_BYTES)
        self.offsets: Array = (  # file offsets, bytes
            offset + np.arange(len(self.raw), dtype=np.int64) * RECORD_BYTES if isinstance(offset, int)
            else np.array(offset, np.int64))
        self.data_after = -1  # DATA file offset of the next record's data, bytes; -1 = unknown
        self._whole: tuple[Block, Array] | None = None  # source block and mask of a selection

    def __len__(self) -> int:
        return len(self.raw)

    def select(self, mask: Array) -> Block:
        """Return the records of a mask."""
        if mask.all():
            return self
        found = Block(self.bytes[mask], self.offsets[mask])
        found._whole = self, mask
        return found

    @cached_property
    def types(self) -> Array:
        return (self.raw["type"] >> TYPE_SHIFT).astype(np.int32)

    @cached_property
    def flags(self) -> Array:
        return (self.raw["type"] >> FLAGS_SHIFT & FLAGS_MASK).astype(np.int32)

    @property
    def sequences(self) -> Array:
        return (self.raw["type"] & SEQUENCE_MASK).astype(np.int64)

    @property
    def leases(self) -> Array:
        return self.raw["lease"].astype(np.int64)

    @cached_property
    def _masks(self) -> dict[RecordType, Array]:
        return {kind: self.types == kind for kind in OF_TYPE}

    def mask_of(self, *kinds: RecordType) -> Array:
        found = self._masks[kinds[0]]
        for kind in kinds[1:]:
            found = found | self._masks[kind]
        return found

    def in_layout_of(self, kind: RecordType) -> Array:
        """Return all records in the layout of a type."""
        return self.raw.view(DTYPES[kind])

    def field(self, kind: RecordType, name: str) -> Array:
        return self.in_layout_of(kind)[name]

    def well_formed(self) -> Array:
        """Return the mask of valid records: type, lease and sequence number above 0, and the magic."""
        return ((self.raw["magic"] == MAGIC) & (self.raw["type"] >> TYPE_SHIFT > 0) & (self.raw["lease"] > 0)
                & (self.raw["type"] & SEQUENCE_MASK > 0))

    def sync_points(self) -> Array:
        return (self.types == RecordType.JOURNAL_OP) & (self.in_layout_of(RecordType.JOURNAL_OP)["op"] == SYNC_POINT_OP)

    def is_consecutive(self, area_end: int) -> bool:
        """Return whether the PSNs are consecutive. Up to offset `area_end` they only need to rise."""
        if not self.well_formed().all():
            return False
        leases, sequences = self.leases, self.sequences
        next_of_lease = (leases[1:] == leases[:-1]) & (sequences[1:] == sequences[:-1] + 1)
        new_lease = (leases[1:] > leases[:-1]) & (sequences[1:] == 1) & self.sync_points()[1:]
        rising = (leases[1:] > leases[:-1]) | (leases[1:] == leases[:-1]) & (sequences[1:] >= sequences[:-1])
        in_area = self.offsets[1:] <= area_end
        return bool((next_of_lease | np.where(in_area, rising, new_lease)).all())

    def data_offsets(self) -> Array:
        """Return DATA file offsets, bytes: of the data of messages, and the file's end at sync points; -1 in other rows."""
        found: Array = np.full(len(self), -1, np.int64)
        for kind, mask in ((RecordType.MESSAGE, self.types == RecordType.MESSAGE),
                           (RecordType.JOURNAL_OP, self.sync_points())):
            found[mask] = self.in_layout_of(kind)["data_dwords"][mask].astype(np.int64) * 8
        return found

    def data_bytes(self) -> Array:
        """Return the size of each message in the DATA file, up to the next record's data, bytes; 0 = unknown."""
        if self._whole is not None:
            block, mask = self._whole
            return block.data_bytes()[mask]
        offsets = self.data_offsets()
        known = np.flatnonzero(offsets >= 0)
        found: Array = np.zeros(len(self), np.int64)
        found[known] = np.append(offsets[known][1:], self.data_after) - offsets[known]
        return np.where((self.types == RecordType.MESSAGE) & (found > 0), found, 0)

    def references(self) -> Array:
        """Return the number of apps of each message; undefined in rows of other types."""
        return self.field(RecordType.MESSAGE, "ref_count_high").astype(np.int32) << REF_COUNT_LOW_BITS | self.flags

    def keys(self, name: str, *of: RecordType) -> Array:
        """Return 5-byte keys as numbers, 0 in rows of other types."""
        found: Array = np.zeros(len(self), _KEY_AS_NUMBER)
        self.copy_field(found["key"], name, of)
        return found.view(">u8").astype(np.uint64)

    def copy_field(self, found: Array, name: str, kinds: Iterable[RecordType]) -> None:
        for kind in kinds:
            mask = self._masks[kind]
            if mask.any():
                np.copyto(found, self.in_layout_of(kind)[name], where=mask)


@dataclass(slots=True)
class Origin:
    """Broker partition and file set of a journal: values of the columns `partition` and `fileSet`."""

    partition: int
    file_set: str


def binary_column(values: Array, present: Array | None = None) -> pa.Array:
    """Convert rows of equal length to a binary column, without a Python object per row."""
    count, width = values.shape
    offsets = np.arange(count + 1, dtype=np.int32) * width
    valid, nulls = None, 0
    if present is not None and not present.all():
        valid, nulls = pa.py_buffer(np.packbits(present, bitorder="little").tobytes()), int(count - present.sum())
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.binary(), count, [valid, pa.py_buffer(offsets), data], nulls)


def text_column(codes: Array, text_of: Callable[[int], str | None]) -> pa.Array:
    """Convert numbers with few distinct values to texts."""
    found = pa.array(codes).dictionary_encode()
    return pa.array([text_of(code) for code in found.dictionary.to_pylist()], pa.string()).take(found.indices)


def enum_text(values: Iterable[Any]) -> Callable[[int], str | None]:
    """Return a function from numbers to names of an enumeration; None below 0."""
    names = {int(each): each.name for each in values}
    return lambda code: None if code < 0 else names.get(code, f"UNKNOWN ({code})")


_M, _C, _D, _Q, _J = (RecordType.MESSAGE, RecordType.CONFIRM, RecordType.DELETION, RecordType.QUEUE_OP,
                      RecordType.JOURNAL_OP)
WITH_QUEUE, WITH_APP, WITH_GUID = (_M, _C, _D, _Q), (_C, _Q), (_M, _C, _D)
Maker = Callable[[Block, Origin, KeyNames], pa.Array]
Column = tuple[pa.DataType, Maker]
_TIME = pa.timestamp("us", tz="UTC")
_SEQUENCE_BITS = (1 << 63) - 1


def _number_column(kind: pa.DataType, name: str, *of: RecordType, times: int = 1, mask: int = -1) -> Column:
    """Return a number column, null in rows of other types."""
    def make(rows: Block, origin: Origin, names: KeyNames) -> pa.Array:
        found: Array = np.zeros(len(rows), np.int64)
        for each in of:
            np.copyto(found, rows.field(each, name), "unsafe", rows.mask_of(each))
        return pa.array(((found & mask) * times).astype(kind.to_pandas_dtype()), kind, mask=~rows.mask_of(*of))
    return kind, make


def _bytes_column(width: int, name: str, *of: RecordType) -> Column:
    """Return a binary column, null in rows of other types."""
    def make(rows: Block, origin: Origin, names: KeyNames) -> pa.Array:
        found: Array = np.zeros(len(rows), f"V{width}")
        rows.copy_field(found, name, of)
        return binary_column(found.view(np.uint8).reshape(-1, width), rows.mask_of(*of))
    return pa.binary(), make


def _time_column(rows: Block, origin: Origin, names: KeyNames) -> pa.Array:
    wall = np.minimum(rows.raw["wall"], np.uint64(SECONDS_MAX)).astype(np.int64) * 1_000_000
    return pa.array(wall, _TIME)


def _reason_column(rows: Block, origin: Origin, names: KeyNames) -> pa.Array:
    codes = np.where(rows.mask_of(_C), rows.flags, np.where(rows.mask_of(_D), rows.flags | 1 << 16, -1))
    of_confirm, of_deletion = enum_text(ConfirmReason), enum_text(DeletionReason)
    return text_column(codes, lambda code: of_deletion(code & 0xFFFF) if code >= 1 << 16 else of_confirm(code))


def _queue_column(rows: Block, origin: Origin, names: KeyNames) -> pa.Array:
    return text_column(rows.keys("queue_key", *WITH_QUEUE),
                        lambda key: names.queues.get(key.to_bytes(KEY_BYTES, "big")) if key else None)


def _app_column(rows: Block, origin: Origin, names: KeyNames) -> pa.Array:
    queues, apps = rows.keys("queue_key", *WITH_APP), rows.keys("app_key", *WITH_APP)
    of_queues, of_apps = pa.array(queues).dictionary_encode(), pa.array(apps).dictionary_encode()
    known_queues, known_apps = of_queues.dictionary.to_pylist(), of_apps.dictionary.to_pylist()

    def text(pair: int) -> str | None:
        queue, app = known_queues[pair // len(known_apps)], known_apps[pair % len(known_apps)]
        return names.apps.get(queue.to_bytes(KEY_BYTES, "big") + app.to_bytes(KEY_BYTES, "big")) if app else None
    return text_column(of_queues.indices.to_numpy().astype(np.int64) * len(known_apps) + of_apps.indices.to_numpy(), text)


def _op_column(rows: Block, origin: Origin, names: KeyNames) -> pa.Array:
    codes = np.where(rows.mask_of(_Q), rows.field(_Q, "op").astype(np.int64), np.where(
        rows.mask_of(_J), rows.field(_J, "op").astype(np.int64) + (1 << 32), 1 << 48))
    of_queue = enum_text(QueueOp)

    def text(code: int) -> str | None:
        if code >= 1 << 48:
            return None
        if code >= 1 << 31:
            op = code - (1 << 32)
            return "SYNCPOINT" if op == SYNC_POINT_OP else f"UNKNOWN ({op})"
        return of_queue(code)
    return text_column(codes, text)


def _data_bytes(rows: Block, origin: Origin, names: KeyNames) -> pa.Array:
    found = rows.data_bytes()
    return pa.array(found, pa.int64(), mask=found == 0)


def _sync_point_type(rows: Block, origin: Origin, names: KeyNames) -> pa.Array:
    codes = np.where(rows.mask_of(_J), rows.field(_J, "sync_point_type").astype(np.int64), -1)
    return text_column(codes, enum_text(SyncPoint))


# Arrow type and function of each column, in table order.
COLUMNS: dict[str, Column] = {
    "partition": (pa.int32(), lambda rows, origin, names: pa.repeat(pa.scalar(origin.partition, pa.int32()), len(rows))),
    "fileSet": (pa.string(), lambda rows, origin, names: pa.repeat(pa.scalar(origin.file_set, pa.string()), len(rows))),
    "offset": (pa.int64(), lambda rows, origin, names: pa.array(rows.offsets)),
    "type": (pa.string(), lambda rows, origin, names: text_column(rows.types, enum_text(OF_TYPE))),
    "lease": (pa.int64(), lambda rows, origin, names: pa.array(rows.leases)),
    "sequence": (pa.int64(), lambda rows, origin, names: pa.array(rows.sequences)),
    "time": (_TIME, _time_column),
    "queueKey": _bytes_column(KEY_BYTES, "queue_key", *WITH_QUEUE),
    "queue": (pa.string(), _queue_column),
    "appKey": _bytes_column(KEY_BYTES, "app_key", *WITH_APP),
    "appId": (pa.string(), _app_column),
    "guid": _bytes_column(GUID_BYTES, "guid", *WITH_GUID),
    "reason": (pa.string(), _reason_column),
    "op": (pa.string(), _op_column),
    "refCount": (pa.int32(), lambda rows, origin, names: pa.array(rows.references(), pa.int32(), mask=~rows.mask_of(_M))),
    "compression": _number_column(pa.int32(), "compression", _M, mask=COMPRESSION_MASK),
    "crc": _number_column(pa.int64(), "crc", _M),
    "dataOffset": _number_column(pa.int64(), "data_dwords", _M, _J, times=8),
    "dataBytes": (pa.int64(), _data_bytes),
    "qlistOffset": _number_column(pa.int64(), "qlist_words", _Q, _J, times=4),
    "startLease": _number_column(pa.int64(), "start_lease", _Q),
    "startSequence": _number_column(pa.int64(), "start_sequence", _Q, mask=_SEQUENCE_BITS),
    "syncPointType": (pa.string(), _sync_point_type),
    "syncPointLease": _number_column(pa.int64(), "inner_lease", _J),
    "syncPointSequence": _number_column(pa.int64(), "inner_sequence", _J, mask=_SEQUENCE_BITS),
    "node": _number_column(pa.int32(), "node", _J),
}
ARROW_TYPES = {name: kind for name, (kind, _) in COLUMNS.items()}


def columns_of(rows: Block, wanted: Sequence[str], origin: Origin, names: KeyNames) -> dict[str, pa.Array]:
    return {name: COLUMNS[name][1](rows, origin, names) for name in wanted if name in COLUMNS}


def default_apps(queues: Mapping[bytes, str]) -> dict[bytes, str]:
    return {key + DEFAULT_APP_KEY: DEFAULT_APP_ID for key in queues if key != NULL_KEY}
