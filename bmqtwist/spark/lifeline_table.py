"""Lifelines of messages, computed with numpy where journals are read, without a shuffle.

A task reads all journals of one broker partition and selects the records whose GUIDs are in its share, so all records of a
message are in one task and a share fits into its memory. The cost: each task reads all records of its partition. Columns
and states are those of `tables.lifelines_of`. Called by `storage.py`; the same from a table of records is computed in
`tables.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from bmqtwist.spark.messages import TIME
from bmqtwist.spark.records import (
    GUID_BYTES,
    KEY_BYTES,
    OF_TYPE,
    SECONDS_MAX,
    WITH_GUID,
    Array,
    Block,
    KeyNames,
    binary_column,
    enum_text,
    text_column,
)
from bmqtwist.storage.records import ConfirmReason, DeletionReason, QueueOp, RecordType

_STATES = ("outstanding", "confirmed", "expired", "no-quorum", "purged")
_STATE_OF_REASON = {DeletionReason.TTL_EXPIRATION: 2, DeletionReason.NO_SC_QUORUM: 3}
_CONFIRM = pa.struct([("time", TIME), ("appId", pa.string()), ("appKey", pa.binary()), ("reason", pa.string())])
SCHEMA = pa.schema([
    ("partition", pa.int32()), ("queueKey", pa.binary()), ("queue", pa.string()), ("guid", pa.binary()),
    ("lease", pa.int64()), ("sequence", pa.int64()), ("arrived", TIME), ("refCount", pa.int32()),
    ("confirms", pa.list_(_CONFIRM)), ("removed", TIME), ("deletionReason", pa.string()), ("state", pa.string()),
    ("duplicate", pa.bool_()), ("crc", pa.int64()), ("dataBytes", pa.int64())])
_NUMBERS = ("high", "low", "queue", "kind", "flags", "lease", "sequence", "wall", "references", "crc", "size", "app")
_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


def _hash_guids(high: Array, low: Array, queue: Array | None = None) -> Array:
    """Return a 64-bit hash of each GUID, or of GUID and queue."""
    found = high * _MIX[0] ^ low * _MIX[1]
    if queue is not None:
        found ^= queue * _MIX[2]
    return (found ^ found >> np.uint64(29)) * _MIX[0]


def _guid_bytes(bytes_of: Array, types: Array) -> Array:
    found: Array = np.zeros((len(types), GUID_BYTES), np.uint8)
    for kind in WITH_GUID:
        mask, at = types == kind, OF_TYPE[kind].offset("guid")
        found[mask] = bytes_of[mask, at:at + GUID_BYTES]
    return found.view(">u8").astype(np.uint64)


@dataclass(slots=True)
class LifelineRecords:
    """Records of one share. `endings`: (queue key, lease, sequence, seconds) of purges and deletions of whole queues."""

    parts: dict[str, list[Array]] = field(default_factory=lambda: {name: [] for name in _NUMBERS})
    endings: list[tuple[int, int, int, int]] = field(default_factory=list)

    def add(self, block: Block, wanted: Array, share: int, shares: int) -> None:
        """Add the records of this share. `wanted`: mask of the records that pass the filters."""
        types = block.types
        self._add_endings(block.select(wanted & (types == RecordType.QUEUE_OP)))
        halves = _guid_bytes(block.bytes, types)
        mask = wanted & np.isin(types, [int(each) for each in WITH_GUID])
        if shares > 1:
            mask &= (_hash_guids(halves[:, 0], halves[:, 1]) >> np.uint64(32)) % np.uint64(shares) == np.uint64(share)
        rows = block.select(mask)
        wall = np.minimum(rows.raw["wall"], np.uint64(SECONDS_MAX)).astype(np.int64)
        found = {"high": halves[mask, 0], "low": halves[mask, 1], "queue": rows.keys("queue_key", *WITH_GUID),
                 "kind": rows.types.astype(np.int8), "flags": rows.flags, "lease": rows.raw["lease"].astype(np.int64),
                 "sequence": rows.sequences, "references": rows.references(), "wall": wall,
                 "crc": rows.field(RecordType.MESSAGE, "crc").astype(np.int64), "size": block.data_bytes()[mask],
                 "app": rows.keys("app_key", RecordType.CONFIRM)}
        for name, values in found.items():
            self.parts[name].append(values)

    def _add_endings(self, rows: Block) -> None:
        if not len(rows):
            return
        ops = rows.field(RecordType.QUEUE_OP, "op")
        apps, queues = rows.keys("app_key", RecordType.QUEUE_OP), rows.keys("queue_key", RecordType.QUEUE_OP)
        for at in np.flatnonzero(np.isin(ops, [int(QueueOp.PURGE), int(QueueOp.DELETION)]) & (apps == 0)):
            self.endings.append((int(queues[at]), int(rows.raw["lease"][at]), int(rows.sequences[at]),
                                 int(rows.raw["wall"][at])))

    def make_lines(self, partition: int, names: KeyNames) -> pa.RecordBatch:
        columns = {name: np.concatenate(parts) if parts else np.zeros(0, np.int64) for name, parts in self.parts.items()}
        self.parts = {}
        order = _order(columns)
        columns = {name: values[order] for name, values in columns.items()}
        same_message = _equals_previous(columns, "high", "low", "queue")
        kept = ~(same_message & _equals_previous(columns, "lease", "sequence"))  # a rollover copies records with their PSNs
        columns = {name: values[kept] for name, values in columns.items()}
        starts = np.flatnonzero(~_equals_previous(columns, "high", "low", "queue"))
        return _make_lines(columns, starts, partition, names, self.endings)


def _order(columns: Mapping[str, Array]) -> Array:
    """Return the order that groups the records of a message, by lease and sequence number."""
    mixed = _hash_guids(*(columns[name].astype(np.uint64) for name in ("high", "low", "queue")))
    order: Array = np.lexsort((columns["sequence"], columns["lease"], mixed))
    ordered = {name: columns[name][order] for name in ("high", "low", "queue")}
    mixed = mixed[order]
    same = _equals_previous(ordered, "high", "low", "queue")
    if (~same[1:] & (mixed[1:] == mixed[:-1])).any():  # hash collision of two messages
        order = np.lexsort((columns["sequence"], columns["lease"], columns["queue"], columns["low"], columns["high"]))
    return order


def _equals_previous(columns: Mapping[str, Array], *names: str) -> Array:
    """Return the mask of rows that are equal to the previous row."""
    found: Array = np.ones(len(columns[names[0]]), bool)
    found[:1] = False
    for name in names:
        found[1:] &= columns[name][1:] == columns[name][:-1]
    return found


def _make_lines(columns: Mapping[str, Array], starts: Array, partition: int, names: KeyNames,
                endings: list[tuple[int, int, int, int]]) -> pa.RecordBatch:
    count = len(columns["kind"])
    if not count:
        return pa.RecordBatch.from_pylist([], SCHEMA)
    places: Array = np.arange(count)
    is_message, is_confirm = columns["kind"] == RecordType.MESSAGE, columns["kind"] == RecordType.CONFIRM
    first = np.minimum.reduceat(np.where(is_message, places, count), starts)
    last = np.maximum.reduceat(np.where(is_message, places, -1), starts)
    deletion = np.minimum.reduceat(np.where(columns["kind"] == RecordType.DELETION, places, count), starts)
    confirms = np.add.reduceat(is_confirm.astype(np.int64), starts)
    known = first < count  # without a MESSAGE record the message is older than these files
    group_of: Array = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, count)))
    rows_of_confirms = np.flatnonzero(is_confirm & known[group_of])
    first, last, deletion, confirms = first[known], last[known], deletion[known], confirms[known]
    at = {name: values[first] for name, values in columns.items()}
    deleted = deletion < count
    reasons = np.where(deleted, columns["flags"][np.minimum(deletion, count - 1)], -1)
    removed = np.where(deleted, columns["wall"][np.minimum(deletion, count - 1)], -1)
    states = deleted.astype(np.int64)
    for reason, state in _STATE_OF_REASON.items():
        states[reasons == reason] = state
    for queue, lease, sequence, wall in sorted(endings, reverse=True):
        before = (at["lease"] < lease) | (at["lease"] == lease) & (at["sequence"] < sequence)
        ended = ~deleted & (at["queue"] == queue) & before
        states[ended], removed[ended] = 4, wall
    made: dict[str, pa.Array] = {
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), len(first)),
        "queueKey": _key_column(at["queue"]),
        "queue": text_column(at["queue"], lambda key: names.queues.get(key.to_bytes(KEY_BYTES, "big"))),
        "guid": binary_column(np.stack([at["high"], at["low"]], axis=1).astype(">u8").view(np.uint8)),
        "lease": pa.array(at["lease"]), "sequence": pa.array(at["sequence"]), "arrived": _times_column(at["wall"]),
        "refCount": pa.array(at["references"].astype(np.int32)),
        "confirms": pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(confirms)), pa.int32()),
                                             _confirms_column(columns, rows_of_confirms, names)),
        "removed": _times_column(removed), "deletionReason": text_column(reasons, enum_text(DeletionReason)),
        "state": pa.array(_STATES).take(pa.array(states)), "duplicate": pa.array(last > first), "crc": pa.array(at["crc"]),
        "dataBytes": pa.array(at["size"], mask=at["size"] == 0)}
    return pa.RecordBatch.from_arrays([made[name] for name in SCHEMA.names], schema=SCHEMA)


def _confirms_column(columns: Mapping[str, Array], rows: Array, names: KeyNames) -> pa.Array:
    queues, apps, times_s = columns["queue"][rows], columns["app"][rows], columns["wall"][rows]
    pairs, places = np.unique(np.stack([queues, apps], axis=1), axis=0, return_inverse=True)
    texts = [names.apps.get(b"".join(int(each).to_bytes(KEY_BYTES, "big") for each in pair)) for pair in pairs]
    return pa.StructArray.from_arrays(
        [_times_column(np.where(times_s > 0, times_s, -1)), pa.array(texts, pa.string()).take(pa.array(places.reshape(-1))),
         _key_column(apps), text_column(columns["flags"][rows], enum_text(ConfirmReason))], fields=list(_CONFIRM))


def _times_column(times_s: Array) -> pa.Array:
    return pa.array(times_s * 1_000_000, TIME, mask=times_s < 0)


def _key_column(keys: Array) -> pa.Array:
    return binary_column(np.ascontiguousarray(keys.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - KEY_BYTES:]))
