"""Arrow schema of messages, and conversion of delivered messages to record batches.

Called by `engine.py` and `source.py`; records of storage files become columns in `records.py`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa

from bmqtwist.errors import PeerError
from bmqtwist.sdk.message import Message
from bmqtwist.storagetool.datafile import value_text
from bmqtwist.wire.properties import Properties

STRING_MAP = pa.map_(pa.string(), pa.string())
TIME = pa.timestamp("us", tz="UTC")
# Columns of the queue source. `problem`: error in `value` or `properties`, null if both are readable.
SCHEMA = pa.schema([
    ("queue", pa.string()), ("appId", pa.string()), ("guid", pa.binary()), ("value", pa.binary()),
    ("properties", STRING_MAP), ("propertyTypes", STRING_MAP), ("received", TIME), ("size", pa.int32()),
    ("redelivered", pa.bool_()), ("seq", pa.int64()), ("problem", pa.string())])
OF_PROPERTIES = ("properties", "propertyTypes")


def property_texts(properties: Properties) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return (name, value as text) and (name, type) of each property. Bytes are converted to hexadecimal digits."""
    return ([(name, value_text(value)) for name, (_, value) in properties.items()],
            [(name, kind.name) for name, (kind, _) in properties.items()])


def record_batch(rows: Sequence[tuple[int, Message[bytes], float]], first: int, wanted: Sequence[tuple[str, str]],
                 include_properties: bool) -> pa.RecordBatch:
    """Convert rows (number of the queue, message, arrival in epoch seconds) to columns, `seq` from `first`. `wanted`:
    (canonical URI, appId) of each queue."""
    messages, numbers = [message for _, message, _ in rows], pa.array([number for number, _, _ in rows], pa.int32())
    values, problems = list[bytes | None](), dict[int, str]()
    for at, message in enumerate(messages):
        try:
            values.append(message.payload)
        except PeerError as error:
            values.append(None)
            problems[at] = str(error)
    properties = types = pa.nulls(len(rows), STRING_MAP)
    if include_properties:
        properties, types = _properties(messages, problems)
    made = {
        "queue": pa.array([uri for uri, _ in wanted], pa.string()).take(numbers),
        "appId": pa.array([app_id or None for _, app_id in wanted], pa.string()).take(numbers),
        "guid": [message.guid for message in messages], "value": values, "properties": properties,
        "propertyTypes": types, "received": [int(arrived * 1e6) for _, _, arrived in rows],
        "size": [None if value is None else len(value) for value in values],
        "redelivered": [message.redelivered for message in messages], "seq": range(first, first + len(rows)),
        "problem": [problems.get(at) for at in range(len(rows))]}
    columns = ((made[each.name], each.type) for each in SCHEMA)
    return pa.RecordBatch.from_arrays([each if isinstance(each, pa.Array) else pa.array(each, kind)
                                       for each, kind in columns], schema=SCHEMA)


def _properties(messages: Sequence[Message[bytes]], problems: dict[int, str]) -> tuple[object, object]:
    """Return values and types of the properties."""
    if not problems and not any(message.has_properties for message in messages):
        empty = pa.MapArray.from_arrays(pa.array([0] * (len(messages) + 1), pa.int32()), pa.array([], pa.string()),
                                        pa.array([], pa.string()))
        return empty, empty
    values, types = list[object](), list[object]()
    for at, message in enumerate(messages):
        found: tuple[object, object] = (None, None)
        if at not in problems:
            try:
                given = message.property_types
                found = property_texts({name: (given[name], each) for name, each in message.properties.items()})
            except PeerError as error:
                problems[at] = str(error)
        values.append(found[0])
        types.append(found[1])
    return values, types


def to_ipc(batch: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def from_ipc(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def split_batch(batch: pa.RecordBatch, parts_min: int, rows_max: int, bytes_max: int) -> list[pa.RecordBatch]:
    """Cut a batch into at least `parts_min` parts of at most `rows_max` rows (0 = no limit) and about `bytes_max` bytes."""
    rows = batch.num_rows
    if not rows:
        return []
    parts = max(min(parts_min, rows), -(-batch.nbytes // bytes_max), -(-rows // rows_max) if rows_max else 1)
    parts = min(parts, rows)
    edges = [rows * number // parts for number in range(parts + 1)]
    return [batch.slice(start, stop - start) for start, stop in zip(edges, edges[1:], strict=False)]
