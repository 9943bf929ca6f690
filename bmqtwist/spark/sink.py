"""Queue sink, `write.format("bmq")`: posts rows as messages. A task succeeds when all its messages are acknowledged.

| column | |
|---|---|
| `value` | payload: binary or string; required, not null, not empty |
| `queue` | URI; default: option `queue` |
| `properties` | map of strings, or a struct whose members have types (boolean, integers, string, binary); optional |
| `guid` | 16 bytes, the GUID of the message; optional |
| `dedupKey` | string or binary from which the GUID is derived; optional |

Created by `source.py`; posts (`Producer.post`), sessions and GUIDs are in `producers.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, MapType, StringType, StructType

from bmqtwist.errors import LocalError
from bmqtwist.ids import parse_uri
from bmqtwist.spark.options import OptionError, SinkOptions
from bmqtwist.spark.producers import Guids, check_guid, discard_producer, producer_of

_COLUMNS = ("value", "queue", "properties", "guid", "dedupKey")
_BATCH, _QUERY = "streaming.sql.batchId", "sql.streaming.queryId"  # local properties of a streaming task


@dataclass
class Posted(WriterCommitMessage):
    """Result of a task: number of messages that it posted."""

    partition: int
    messages: int


class _Sink:
    """Base of the writers: checks options and columns, and posts the rows of a task. LocalError for an invalid row."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = options
        kinds = {field.name: field.dataType for field in schema.fields}
        for name in kinds:
            if name not in _COLUMNS:
                raise OptionError(f"the queue sink has no column {name!r}: it takes {', '.join(_COLUMNS)}. Select these, "
                                  "and put other values into properties")
        if not isinstance(kinds.get("value"), BinaryType | StringType):
            raise OptionError("the queue sink needs a column value of type binary or string")
        if not options.queue and "queue" not in kinds:
            raise OptionError("the queue sink needs the target queue: option queue, or a column queue")
        if "guid" in kinds and "dedupKey" in kinds:
            raise OptionError("the queue sink takes a column guid or a column dedupKey, not both")
        if not isinstance(kinds.get("properties", StructType([])), MapType | StructType):
            raise OptionError("the queue sink needs column properties to be a map of strings or a struct")
        self.write_id = options.write_id or uuid.uuid4().hex

    def post_all(self, batches: Iterator[pa.RecordBatch], scope: tuple[str | int, ...]) -> int:
        """Post all rows of a task, wait for their acknowledgements, return their number."""
        try:
            return self._post_all(batches, Guids(scope))
        except BaseException:
            discard_producer(self.options)
            raise

    def _post_all(self, batches: Iterator[pa.RecordBatch], made: Guids) -> int:
        producer, count = producer_of(self.options), 0
        producer.start_task()
        known: dict[str, str] = {}
        for batch in batches:
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
            nothing = [None] * batch.num_rows
            for value, queue, properties, guid, key in zip(*(columns.get(name, nothing) for name in _COLUMNS), strict=True):
                uri = self.options.queue if queue is None else known.get(queue)
                if not uri:
                    if queue is None:
                        raise LocalError("a row has no queue, and there is no option queue")
                    uri = known[queue] = parse_uri(queue).canonical
                if not value:
                    raise LocalError(f"a row for {uri} has no value: a message needs at least one byte")
                data = value.encode() if isinstance(value, str) else bytes(value)
                given = _properties(properties)
                if guid is not None:
                    name = check_guid(guid)
                elif key is not None:
                    name = made.for_key(uri, key.encode() if isinstance(key, str) else bytes(key))
                else:
                    name = made.for_content(uri, data, ((each, repr(text)) for each, text in given.items()))
                producer.post(uri, name, data, given)
                count += 1
        producer.wait_for_acks()
        return count


def _properties(value: Any) -> dict[str, object]:
    """Convert a map or a struct to properties; nulls are omitted."""
    if not value:
        return {}
    items = value.items() if isinstance(value, dict) else value
    return {name: each for name, each in items if each is not None}


class BatchSink(_Sink, DataSourceArrowWriter):
    """Writer of `df.write`. The scope of GUIDs without a key is the write id and the partition."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        partition = _task().partitionId()
        return Posted(partition, self.post_all(iterator, (self.write_id, partition)))


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Writer of a streaming query. The scope of GUIDs without a key is query, batch and partition."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        partition = task.partitionId()
        query, batch = task.getLocalProperty(_QUERY) or self.write_id, task.getLocalProperty(_BATCH) or ""
        return Posted(partition, self.post_all(iterator, (query, batch, partition)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Have no effect: all messages are acknowledged when the tasks end."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Have no effect: posted messages stay in the queue; when they are posted again the broker drops the duplicates."""


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise LocalError("the queue sink posts only from Spark tasks")
    return task
