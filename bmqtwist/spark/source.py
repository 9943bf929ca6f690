"""Data source `format("bmq")`: queues as a streaming source, as a table (browsing), and as a sink.

Constructors run in several processes and open no connection. The planning methods of the stream reader run in one
process for the lifetime of the query; `read` runs in tasks, which receive their part of the batch and do not connect to
the broker. Spark creates `QueueDataSource`, which `local.py` or `discovery/` registers. The calls of the stream reader
go to `engine.py`, writes to `sink.py`; storage files are in `storage.py`. Options are declared in `options.py`, columns
in `messages.py`.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from bmqtwist.sdk.message import Message
from bmqtwist.spark.engine import QueryEngine
from bmqtwist.spark.messages import OF_PROPERTIES, SCHEMA, from_ipc, record_batch
from bmqtwist.spark.options import SourceOptions, parse_flag, sink_options, source_options
from bmqtwist.spark.plan import Key, Offset, keys_of
from bmqtwist.spark.tasks import freeze_imports

GC_THRESHOLDS = 100_000, 20, 20  # with many messages in memory the default thresholds cost a third of the time


@dataclass
class BatchPart(InputPartition):
    """Part of a batch for one task: `content` is a record batch as Arrow IPC."""

    content: bytes


def _select_columns(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    return batch if batch.schema.names == names else batch.select(names)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of a running query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._names = options, schema.fieldNames()
        self._engine: QueryEngine | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None}

    def _started_engine(self) -> QueryEngine:
        if self._engine is None:
            _exit_on_sigterm()
            gc.set_threshold(*GC_THRESHOLDS)
            self._engine = QueryEngine(self._options)
        return self._engine

    def getDefaultReadLimit(self) -> ReadMaxRows:
        return ReadMaxRows(self._options.batch_messages_max)

    def initialOffset(self) -> dict[str, Any]:
        return self._started_engine().initial_offset().as_json()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Return the end of the next batch; confirm messages before `start`."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._started_engine().latest_offset(Offset.from_json(start), most).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [BatchPart(each) for each in self._started_engine().parts(Offset.from_json(start), Offset.from_json(end))]

    def read(self, partition: BatchPart) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        yield _select_columns(from_ipc(partition.content), self._names)

    def commit(self, end: dict[str, Any]) -> None:
        self._started_engine().commit(Offset.from_json(end))

    def prepareForTriggerAvailableNow(self) -> None:
        self._started_engine().start_drain()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._engine.progress() if self._engine is not None else None

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.stop()


def _exit_on_sigterm() -> None:
    """Convert SIGTERM, which ends a query, to SystemExit, so that `stop` runs: unconfirmed messages then return to their
    queues and do not count as delivery attempts."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        def leave(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Spark sends it twice
            raise SystemExit(128 + number)
        signal.signal(signal.SIGTERM, leave)


class BrowseReader(DataSourceReader):
    """Batch reader. It does not confirm messages, since Spark may repeat or abandon a read without notice."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._names = options, schema.fieldNames()

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]  # one consumer

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read up to `maxMessages` messages within `maxWait`; all return to their queues."""
        from bmqtwist.spark.receiver import Receiver

        options = self._options
        receiver = Receiver(options)
        receiver.start()
        try:
            until = time.monotonic() + options.browse_max_s
            seen: dict[Key, tuple[int, Message[bytes], float]] = {}
            while len(seen) < options.browse_messages_max and time.monotonic() < until:
                receiver.wait(min(until - time.monotonic(), options.drain_idle_s))
                receiver.raise_error()
                deliveries = [each for each in receiver.take_messages() if each.messages]
                if not deliveries and seen:
                    break
                for each in deliveries:
                    for key, message in zip(keys_of(each.queue, each.messages), each.messages, strict=True):
                        if len(seen) < options.browse_messages_max:
                            seen.setdefault(key, (each.queue, message, each.arrived))
        finally:
            receiver.stop()
        batch = record_batch(list(seen.values()), 0, options.canonical_queues, options.include_properties)
        yield _select_columns(batch, self._names)


class QueueDataSource(DataSource):
    """Queues of a BlazingMQ broker."""

    @classmethod
    def name(cls) -> str:
        return "bmq"

    def schema(self) -> StructType:
        with_properties = parse_flag(self.options.get("includeProperties", "true"))
        return from_arrow_schema(pa.schema([each for each in SCHEMA if with_properties or each.name not in OF_PROPERTIES]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BrowseReader(source_options(dict(self.options)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return QueueStreamReader(source_options(dict(self.options)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from bmqtwist.spark.sink import BatchSink

        return BatchSink(sink_options(dict(self.options)), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from bmqtwist.spark.sink import StreamSink

        return StreamSink(sink_options(dict(self.options)), schema)
