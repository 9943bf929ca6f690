"""`format("bmq-storage")`: journals, and the messages they tell of, as a table of records or as a stream that can be
replayed. Live, archived and copied files, ours or the original's; nothing is ever written to them.

Each task reads a range of whole records. Filters are options; with option pushFilters=true those of a query are used, too
(Spark has to allow it: `spark.sql.python.filterPushdown.enabled`, which `bmqtwist.spark.session` sets).
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
from bmqtwist.spark.filesets import Journal, check, find
from bmqtwist.spark.journals import Range, blocks, data_offset_after, ranges
from bmqtwist.spark.lifeline_table import SCHEMA, Gathered
from bmqtwist.spark.options import OptionError, StorageOptions, storage_options
from bmqtwist.spark.payloads import Payloads
from bmqtwist.spark.records import TYPE_NAMES, Block, Names, Place, columns_of
from bmqtwist.spark.tail import StoragePosition, advance, parts_between
from bmqtwist.spark.tasks import keep_imports
from bmqtwist.storage.records import RECORD_BYTES
from bmqtwist.storagetool.inputs import ReadOnlyFile

LOG = logging.getLogger("bmqtwist.spark")
_TYPES = {**records.ARROW_TYPES, **payloads.ARROW_TYPES}


class Damaged(LocalError):
    """A file holds what cannot be read, and mode FAILFAST was asked for."""


@dataclass
class JournalPart(InputPartition):
    """A range of one journal."""

    path: str
    data: str
    place: Place
    names: Names
    wanted: Range


def _part(journal: Journal, wanted: Range) -> JournalPart:
    return JournalPart(journal.path, journal.data, Place(journal.partition, journal.file_set),
                       Names(journal.queues, journal.apps), wanted)


def wanted_columns(options: StorageOptions) -> list[str]:
    """The names of the columns of a table."""
    if options.columns:
        for name in options.columns:
            if name not in _TYPES:
                raise OptionError(f"the storage reader has no column {name!r}: it has {', '.join(_TYPES)}")
        return list(options.columns)
    of_payload = [name for name in payloads.ARROW_TYPES if options.payload and (name != "crcGood" or options.verify_crc)]
    return [*records.ARROW_TYPES, *of_payload]


class StorageReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: StorageOptions, schema: StructType) -> None:
        self.options, self.columns = options, schema.fieldNames()
        for name in self.columns:
            if name not in _TYPES:
                raise OptionError(f"the storage reader has no column {name!r}: it has {', '.join(_TYPES)}")

    def partitions(self) -> list[InputPartition]:
        return [part for journal in self.journals() for part in self.parts(journal)]

    def journals(self) -> list[Journal]:
        """Those that options name."""
        return [each for each in find(self.options.paths, self.options.include_archive)
                if not self.options.partition_ids or each.partition in self.options.partition_ids]

    def parts(self, journal: Journal) -> list[InputPartition]:
        """The ranges of one journal."""
        with closing(ReadOnlyFile(journal.path)) as file:
            wrong = check(file)
            if wrong:
                self.complain(f"{journal.path}: {wrong}; read as if the header were right")
            return [_part(journal, each) for each in ranges(file, self.options.partition_records_max)]

    def complain(self, text: str) -> None:
        """Something is wrong with a file."""
        if self.options.mode == "FAILFAST":
            raise Damaged(text)
        LOG.warning("%s", text)

    def read(self, partition: JournalPart) -> Iterator[pa.RecordBatch]:
        """In a task: the rows of a range."""
        keep_imports()
        file = ReadOnlyFile(partition.path)
        of_payload = set(self.columns) & set(payloads.ARROW_TYPES)
        data = Payloads(partition.data, self.options.verify_crc or "crcGood" in of_payload) if of_payload else None
        problems: list[str] = []
        try:
            for block in blocks(file, partition.wanted, self.options.batch_records, problems):
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
            self.complain(f"{partition.path}: {problem}")

    def batch(self, block: Block, part: JournalPart, data: Payloads | None, of_payload: set[str]) -> pa.RecordBatch:
        """The wanted rows and columns of a block."""
        rows = block.select(wanted_rows(block, self.options, part.names))
        made = columns_of(rows, self.columns, part.place, part.names)
        if data is not None:
            made |= data.columns(rows, of_payload | {"problem"})
            bad = made["problem"].is_valid()
            if self.options.mode == "FAILFAST" and bad.true_count:
                raise Damaged(f"{part.path}: {made['problem'].drop_null()[0].as_py()}")
        batch = pa.RecordBatch.from_arrays([made[name] for name in self.columns], schema=pa.schema(
            [pa.field(name, _TYPES[name]) for name in self.columns]))
        if data is not None and self.options.mode == "DROPMALFORMED" and bad.true_count:
            batch = batch.filter(pa.array(~bad.to_numpy(zero_copy_only=False)))
        return batch


def wanted_rows(block: Block, options: StorageOptions, names: Names) -> np.ndarray[Any, Any]:
    """Which records of a block pass the filters."""
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
                own = rows.of(kind)["guid"]
                for guid in options.guids:
                    found |= rows.are(kind) & (own == np.void(guid))
            mask &= found
    return mask


@dataclass
class SharePart(InputPartition):
    """A share of the messages of one partition of the broker: all its journals."""

    journals: list[JournalPart]
    share: int
    shares: int


class LifelineReader(StorageReader):
    """Life lines instead of records (lifeline_table.py)."""

    def __init__(self, options: StorageOptions, schema: StructType) -> None:
        self.options, self.columns = options, schema.fieldNames()

    def partitions(self) -> list[InputPartition]:
        """The shares of each partition of the broker."""
        parts: dict[int, list[JournalPart]] = {}
        for each in super().partitions():
            assert isinstance(each, JournalPart)
            parts.setdefault(each.place.partition, []).append(each)
        found: list[InputPartition] = []
        for journals in parts.values():
            count = sum((each.wanted.stop - each.wanted.start) // RECORD_BYTES for each in journals)
            shares = -(-count // self.options.share_records_max)
            found += [SharePart(journals, share, shares) for share in range(shares)]
        return found

    def read(self, partition: SharePart) -> Iterator[pa.RecordBatch]:
        """In a task: the life lines of a share."""
        keep_imports()
        gathered, names = Gathered(), Names({}, {})
        for each in partition.journals:
            names = Names({**names.queues, **each.names.queues}, {**names.apps, **each.names.apps})
            problems: list[str] = []
            with closing(ReadOnlyFile(each.path)) as file:
                for block in blocks(file, each.wanted, self.options.batch_records, problems):
                    block.data_after = data_offset_after(file, int(block.offsets[-1]) + RECORD_BYTES)
                    gathered.add(block, wanted_rows(block, self.options, each.names), partition.share, partition.shares)
            for problem in problems:
                self.complain(f"{each.path}: {problem}")
        lines = gathered.lines(partition.journals[0].place.partition, names).select(self.columns)
        for start in range(0, lines.num_rows, self.options.batch_records):
            yield lines.slice(start, self.options.batch_records)


class PushingReader(StorageReader):
    """With the filters of the query. Spark refuses readers that can take them unless its setting allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use what can be used; give back what Spark has to see to."""
        for each in filters:
            narrowed = narrow(self.options, each)
            if narrowed is not None:
                self.options = narrowed
            if narrowed is None or each.attribute == ("time",):
                yield each


_MEMBERS = {"type": "record_types", "queue": "queues", "partition": "partition_ids", "guid": "guids"}


def narrow(options: StorageOptions, given: Filter) -> StorageOptions | None:
    """Options with one more filter; None if it cannot be expressed."""
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
    """Journals know whole seconds: a little more than asked for is read, and Spark looks again."""
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
    """Journals as they grow; each record once."""

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
        """Nothing is to be released."""


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
            raise OptionError("the storage reader: a stream has no life lines, they are made of all records together")
        return StorageStreamReader(self._read(), schema)
