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
SCHEMA = pa.schema([
    ("queue", pa.string()), ("appId", pa.string()), ("guid", pa.binary()), ("value", pa.binary()),
    ("properties", STRING_MAP), ("propertyTypes", STRING_MAP), ("received", TIME), ("size", pa.int32()),
    ("redelivered", pa.bool_()), ("seq", pa.int64()), ("problem", pa.string())])
OF_PROPERTIES = ("properties", "propertyTypes")


def texts_of(properties: Properties) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(name, value as text) and (name, type) of each property. Bytes become hexadecimal digits."""
    return ([(name, value_text(value)) for name, (_, value) in properties.items()],
            [(name, kind.name) for name, (kind, _) in properties.items()])


class Batch:
    """Messages on their way into columns. `wanted`: (canonical URI, appId) of each queue."""

    def __init__(self, wanted: Sequence[tuple[str, str]], include_properties: bool) -> None:
        self._wanted, self._with = wanted, include_properties
        self._numbers: list[int] = []
        self._messages: list[Message[bytes]] = []
        self._arrived: list[float] = []
        self._seq: list[int] = []

    def add(self, number: int, message: Message[bytes], arrived: float, seq: int) -> None:
        self._numbers.append(number)
        self._messages.append(message)
        self._arrived.append(arrived)
        self._seq.append(seq)

    def finish(self) -> pa.RecordBatch:
        messages = self._messages
        values, problems = list[bytes | None](), dict[int, str]()
        for at, message in enumerate(messages):
            try:
                values.append(message.payload)
            except PeerError as error:
                values.append(None)
                problems[at] = str(error)
        properties, types = self._properties(problems)
        apps = [app_id or None for _, app_id in self._wanted]
        made = {
            "queue": self._of_queue([uri for uri, _ in self._wanted]), "appId": self._of_queue(apps),
            "guid": [message.guid for message in messages], "value": values, "properties": properties,
            "propertyTypes": types, "received": [int(each * 1e6) for each in self._arrived],
            "size": [None if value is None else len(value) for value in values],
            "redelivered": [message.redelivered for message in messages], "seq": self._seq,
            "problem": [problems.get(at) for at in range(len(messages))]}
        columns = ((made[each.name], each.type) for each in SCHEMA)
        return pa.RecordBatch.from_arrays([each if isinstance(each, pa.Array) else pa.array(each, kind)
                                           for each, kind in columns], schema=SCHEMA)

    def _of_queue(self, texts: Sequence[str | None]) -> pa.Array:
        return pa.array(texts, pa.string()).take(pa.array(self._numbers, pa.int32()))

    def _properties(self, problems: dict[int, str]) -> tuple[object, object]:
        messages, nothing = self._messages, pa.nulls(len(self._messages), STRING_MAP)
        if not self._with:
            return nothing, nothing
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
                    found = texts_of({name: (given[name], each) for name, each in message.properties.items()})
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


def slices(batch: pa.RecordBatch, parts_min: int, rows_max: int, bytes_max: int) -> list[pa.RecordBatch]:
    """A batch cut into at least so many parts of at most so many rows (0 = any number) and bytes, as far as rows allow."""
    rows = batch.num_rows
    if not rows:
        return []
    parts = max(min(parts_min, rows), -(-batch.nbytes // bytes_max), -(-rows // rows_max) if rows_max else 1)
    parts = min(parts, rows)
    edges = [rows * number // parts for number in range(parts + 1)]
    return [batch.slice(start, stop - start) for start, stop in zip(edges, edges[1:], strict=False)]
