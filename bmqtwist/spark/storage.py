"""Storage reader, `format("bmq-storage")`: journal records, and their messages, as a table or as a replayable stream. Reads
live, archived and copied files of this broker or of the original, and never writes to them.

Each task reads a range of whole records. Filters are options; with option pushFilters=true the reader also applies the
filters of a query (requires `spark.sql.python.filterPushdown.enabled`, which `bmqtwist.spark.session` sets). Files are
found by `filesets.py`, split by `journals.py` and decoded by `records.py`; `positions.py` has the offsets of streams;
options are declared in `options.py`, columns in `records.py`; queues are in `source.py`, tables over the records in
`tables.py`.
"""

from __future__ import annotations

import datetime
import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from bmqtwist.errors import LocalError
from bmqtwist.spark import payloads, records
from bmqtwist.spark.filesets import Journal, find_journals, header_problem
from bmqtwist.spark.journals import Range, blocks, data_offset_after, ranges
from bmqtwist.spark.lifeline_table import SCHEMA, LifelineRecords
from bmqtwist.spark.options import OptionError, StorageOptions, storage_options
from bmqtwist.spark.payloads import DataFileReader
from bmqtwist.spark.positions import StoragePosition, advance, parts_between
from bmqtwist.spark.records import TYPE_NAMES, Block, KeyNames, Origin, columns_of
from bmqtwist.spark.tasks import freeze_imports
from bmqtwist.storage.records import RECORD_BYTES
from bmqtwist.storagetool.inputs import ReadOnlyFile

LOG = logging.getLogger("bmqtwist.spark")
_TYPES = {**records.ARROW_TYPES, **payloads.ARROW_TYPES}


class DamagedFile(LocalError):
    """A file contains unreadable data, in mode FAILFAST."""


@dataclass
class JournalPart(InputPartition):
    """A range of one journal."""

    path: str
    data: str
    origin: Origin
    names: KeyNames
    span: Range


def _part(journal: Journal, span: Range) -> JournalPart:
    return JournalPart(journal.path, journal.data, Origin(journal.partition, journal.file_set),
                       KeyNames(journal.queues, journal.apps), span)


def wanted_columns(options: StorageOptions) -> list[str]:
    """Return the column names of the table for these options."""
    if options.columns:
        for name in options.columns:
            if name not in _TYPES:
                raise OptionError(f"the storage reader has no column {name!r}: it has {', '.join(_TYPES)}")
        return list(options.columns)
    of_payload = [name for name in payloads.ARROW_TYPES if options.payload and (name != "crcGood" or options.verify_crc)]
    return [*records.ARROW_TYPES, *of_payload]


class StorageReader(DataSourceReader):
    """Batch reader of journal records."""

    def __init__(self, options: StorageOptions, schema: StructType) -> None:
        self.options, self.columns = options, schema.fieldNames()
        for name in self.columns:
            if name not in _TYPES:
                raise OptionError(f"the storage reader has no column {name!r}: it has {', '.join(_TYPES)}")

    def partitions(self) -> list[InputPartition]:
        return [part for journal in self.journals() for part in self.parts(journal)]

    def journals(self) -> list[Journal]:
        """Return the journals that the options select."""
        return [each for each in find_journals(self.options.paths, self.options.include_archive)
                if not self.options.partition_ids or each.partition in self.options.partition_ids]

    def parts(self, journal: Journal) -> list[InputPartition]:
        """Return the ranges of one journal."""
        with closing(ReadOnlyFile(journal.path)) as file:
            wrong = header_problem(file)
            if wrong:
                self.report_problem(f"{journal.path}: {wrong}; the header is ignored")
            return [_part(journal, each) for each in ranges(file, self.options.partition_records_max)]

    def report_problem(self, text: str) -> None:
        """Raise in mode FAILFAST, else log."""
        if self.options.mode == "FAILFAST":
            raise DamagedFile(text)
        LOG.warning("%s", text)

    def read(self, partition: JournalPart) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; runs in a task."""
        freeze_imports()
        file = ReadOnlyFile(partition.path)
        of_payload = set(self.columns) & set(payloads.ARROW_TYPES)
        data = DataFileReader(partition.data, self.options.verify_crc or "crcGood" in of_payload) if of_payload else None
        problems: list[str] = []
        try:
            for block in blocks(file, partition.span, self.options.batch_records, problems):
                if "dataBytes" in self.columns:
                    block.data_after = data_offset_after(file, int(block.offsets[-1]) + RECORD_BYTES)
                batch = self.batch(block, partition, data, of_payload)
                if batch.num_rows:
                    yield batch
        finally:
            file.close()
            if data is not None:
                data.close()
        for problem in problems:
            self.report_problem(f"{partition.path}: {problem}")

    def batch(self, block: Block, part: JournalPart, data: DataFileReader | None, of_payload: set[str]) -> pa.RecordBatch:
        """Return the selected rows and columns of a block."""
        rows = block.select(wanted_rows(block, self.options, part.names))
        made = columns_of(rows, self.columns, part.origin, part.names)
        if data is not None:
            made |= data.columns(rows, of_payload | {"problem"})
            bad = made["problem"].is_valid()
            if self.options.mode == "FAILFAST" and bad.true_count:
                raise DamagedFile(f"{part.path}: {made['problem'].drop_null()[0].as_py()}")
        batch = pa.RecordBatch.from_arrays([made[name] for name in self.columns], schema=pa.schema(
            [pa.field(name, _TYPES[name]) for name in self.columns]))
        if data is not None and self.options.mode == "DROPMALFORMED" and bad.true_count:
            batch = batch.filter(pa.array(~bad.to_numpy(zero_copy_only=False)))
        return batch


def wanted_rows(block: Block, options: StorageOptions, names: KeyNames) -> np.ndarray[Any, Any]:
    """Return the mask of records that pass the filters."""
    mask: np.ndarray[Any, Any] = np.ones(len(block), bool)
    if options.record_types:
        mask &= np.isin(block.types, [int(TYPE_NAMES[each]) for each in options.record_types])
    if options.since is not None:
        mask &= block.raw["wall"] >= max(options.since, 0)
    if options.until is not None:
        mask &= block.raw["wall"] < max(options.until, 0)
    if options.queues or options.guids:
        rows = block.select(np.ones(len(block), bool))
        if options.queues:
            keys = [int.from_bytes(key, "big") for key, uri in names.queues.items() if uri in options.queues]
            mask &= np.isin(rows.keys("queue_key", *records.WITH_QUEUE), np.array(keys, np.uint64))
        if options.guids:
            found: np.ndarray[Any, Any] = np.zeros(len(block), bool)
            for kind in records.WITH_GUID:
                own = rows.in_layout_of(kind)["guid"]
                for guid in options.guids:
                    found |= rows.mask_of(kind) & (own == np.void(guid))
            mask &= found
    return mask


@dataclass
class SharePart(InputPartition):
    """A share of the messages of one broker partition, with all journals of the partition."""

    journals: list[JournalPart]
    share: int
    shares: int


class LifelineReader(StorageReader):
    """Batch reader of lifelines, one row per message (lifeline_table.py)."""

    def __init__(self, options: StorageOptions, schema: StructType) -> None:
        self.options, self.columns = options, schema.fieldNames()

    def partitions(self) -> list[InputPartition]:
        """Return the shares of each broker partition."""
        parts: dict[int, list[JournalPart]] = {}
        for each in super().partitions():
            assert isinstance(each, JournalPart)
            parts.setdefault(each.origin.partition, []).append(each)
        found: list[InputPartition] = []
        for journals in parts.values():
            count = sum((each.span.stop - each.span.start) // RECORD_BYTES for each in journals)
            shares = -(-count // self.options.share_records_max)
            found += [SharePart(journals, share, shares) for share in range(shares)]
        return found

    def read(self, partition: SharePart) -> Iterator[pa.RecordBatch]:
        """Yield the lifelines of a share; runs in a task."""
        freeze_imports()
        collected, names = LifelineRecords(), KeyNames({}, {})
        for each in partition.journals:
            names = KeyNames({**names.queues, **each.names.queues}, {**names.apps, **each.names.apps})
            problems: list[str] = []
            with closing(ReadOnlyFile(each.path)) as file:
                for block in blocks(file, each.span, self.options.batch_records, problems):
                    block.data_after = data_offset_after(file, int(block.offsets[-1]) + RECORD_BYTES)
                    collected.add(block, wanted_rows(block, self.options, each.names), partition.share, partition.shares)
            for problem in problems:
                self.report_problem(f"{each.path}: {problem}")
        lines = collected.make_lines(partition.journals[0].origin.partition, names).select(self.columns)
        for start in range(0, lines.num_rows, self.options.batch_records):
            yield lines.slice(start, self.options.batch_records)


class PushingReader(StorageReader):
    """Reader that accepts query filters; separate, since Spark refuses `pushFilters` unless its setting allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Add filters to the options; yield the filters that Spark must still apply."""
        for each in filters:
            narrowed = narrow(self.options, each)
            if narrowed is not None:
                self.options = narrowed
            if narrowed is None or each.attribute == ("time",):
                yield each


_MEMBERS = {"type": "record_types", "queue": "queues", "partition": "partition_ids", "guid": "guids"}


def narrow(options: StorageOptions, given: Filter) -> StorageOptions | None:
    """Return options with one more filter; None if it cannot be expressed."""
    name = given.attribute[0] if len(given.attribute) == 1 else ""
    if name == "time":
        return _narrow_time(options, given)
    if name not in _MEMBERS or not isinstance(given, EqualTo | In):
        return None
    listed = [given.value] if isinstance(given, EqualTo) else given.value
    values = {bytes(each) if name == "guid" else each for each in listed}
    if name == "type" and not values <= TYPE_NAMES.keys() or not values:
        return None
    before = getattr(options, _MEMBERS[name])
    both = values & set(before) if before else values
    if not both:
        return None
    member: dict[str, Any] = {_MEMBERS[name]: tuple(sorted(both))}
    return replace(options, **member)


def _narrow_time(options: StorageOptions, given: Filter) -> StorageOptions | None:
    """Return options with a filter by time; None if it has no effect. Records have times in whole seconds: up to one second
    more is read, which Spark filters."""
    value = getattr(given, "value", None)
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return None
    second = value.timestamp()
    since, until = options.since, options.until
    if isinstance(given, GreaterThan | GreaterThanOrEqual | EqualTo):
        since = max(math.floor(second), since or 0)
    if isinstance(given, LessThan | LessThanOrEqual | EqualTo):
        until = min(math.floor(second) + 1, until if until is not None else 1 << 62)
    return replace(options, since=since, until=until) if (since, until) != (options.since, options.until) else None


class StorageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of growing journals; each record is read once."""

    def __init__(self, options: StorageOptions, schema: StructType) -> None:
        self._reader = StorageReader(options, schema)
        self._target: dict[str, Any] | None = None

    def getDefaultReadLimit(self) -> ReadMaxRows:
        return ReadMaxRows(self._reader.options.trigger_records_max)

    def initialOffset(self) -> dict[str, Any]:
        return StoragePosition().as_json()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        target = StoragePosition.from_json(self._target) if self._target is not None else None
        return advance(StoragePosition.from_json(start), self._reader.journals(), most, target,
                       self._reader.options.finished_only).as_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = advance(StoragePosition(), self._reader.journals(), None, None,
                               self._reader.options.finished_only).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        options = self._reader.options
        return [_part(*each) for each in parts_between(
            StoragePosition.from_json(start), StoragePosition.from_json(end), self._reader.journals(),
            options.partition_records_max, options.fail_on_data_loss)]

    def read(self, partition: JournalPart) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Have no effect: the reader has no resources to release."""


class StorageDataSource(DataSource):
    """Storage files of a BlazingMQ broker."""

    @classmethod
    def name(cls) -> str:
        return "bmq-storage"

    def _read(self) -> StorageOptions:
        return storage_options(dict(self.options), TYPE_NAMES)

    def schema(self) -> StructType:
        options = self._read()
        return from_arrow_schema(SCHEMA if options.lifelines else pa.schema(
            [(name, _TYPES[name]) for name in wanted_columns(options)]))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read()
        if options.lifelines:
            return LifelineReader(options, schema)
        return (PushingReader if options.push_filters else StorageReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self._read().lifelines:
            raise OptionError("the storage reader: a stream has no lifelines, which need all records of a message")
        return StorageStreamReader(self._read(), schema)
