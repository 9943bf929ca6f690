"""Columns of messages, and messages as columns: what a delivered message becomes in Arrow."""

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
# What a queue gives. `problem`: why `value` or `properties` cannot be read, null if all is well.
COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("queue", pa.string(), "string"),
    ("appId", pa.string(), "string"),
    ("guid", pa.binary(), "binary"),
    ("value", pa.binary(), "binary"),
    ("properties", STRING_MAP, "map<string,string>"),
    ("propertyTypes", STRING_MAP, "map<string,string>"),
    ("received", TIME, "timestamp"),
    ("size", pa.int32(), "int"),
    ("redelivered", pa.bool_(), "boolean"),
    ("seq", pa.int64(), "bigint"),
    ("problem", pa.string(), "string"),
)
SCHEMA = pa.schema([pa.field(name, kind) for name, kind, _ in COLUMNS])
_OF_PROPERTIES = ("properties", "propertyTypes")


def ddl(include_properties: bool = True) -> str:
    """The columns as Spark writes a schema."""
    return ", ".join(f"{name} {kind}" for name, _, kind in COLUMNS if include_properties or name not in _OF_PROPERTIES)


def texts_of(properties: Properties) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(name, value as text) and (name, type) of each property. Bytes become hexadecimal digits."""
    return ([(name, value_text(value)) for name, (_, value) in properties.items()],
            [(name, kind.name) for name, (kind, _) in properties.items()])


class Batch:
    """Messages on their way into columns. `wanted`: (canonical URI, appId) of each queue."""

    def __init__(self, wanted: Sequence[tuple[str, str]], include_properties: bool) -> None:
        self._wanted, self._with = wanted, include_properties
        self._columns: dict[str, list[object]] = {name: [] for name, _, _ in COLUMNS}

    def add(self, number: int, message: Message[bytes], arrived: float, seq: int) -> None:
        """One message of the queue of that number."""
        to = self._columns
        uri, app_id = self._wanted[number]
        value, properties, types, problem = None, None, None, None
        try:
            value = message.payload
            if self._with:
                given = message.property_types
                properties, types = texts_of({name: (given[name], each) for name, each in message.properties.items()})
        except PeerError as error:
            problem = str(error)
        to["queue"].append(uri)
        to["appId"].append(app_id or None)
        to["guid"].append(message.guid)
        to["value"].append(value)
        to["properties"].append(properties)
        to["propertyTypes"].append(types)
        to["received"].append(int(arrived * 1e6))
        to["size"].append(None if value is None else len(value))
        to["redelivered"].append(message.redelivered)
        to["seq"].append(seq)
        to["problem"].append(problem)

    def finish(self) -> pa.RecordBatch:
        """All of them."""
        return pa.RecordBatch.from_arrays([pa.array(self._columns[name], kind) for name, kind, _ in COLUMNS], schema=SCHEMA)


def to_ipc(batch: pa.RecordBatch) -> bytes:
    """A batch as bytes, to go into a file or a task."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def from_ipc(data: bytes) -> pa.RecordBatch:
    """What `to_ipc` has made."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def slices(batch: pa.RecordBatch, parts_min: int, rows_max: int, bytes_max: int) -> list[pa.RecordBatch]:
    """A batch cut into at least so many parts of at most so many rows (0 = any number) and bytes, as far as rows allow."""
    rows = batch.num_rows
    if not rows:
        return []
    parts = max(min(parts_min, rows), -(-batch.nbytes // bytes_max), -(-rows // rows_max) if rows_max else 1)
    parts = min(parts, rows)
    edges = [rows * number // parts for number in range(parts + 1)]
    return [batch.slice(start, stop - start) for start, stop in zip(edges, edges[1:], strict=False)]
