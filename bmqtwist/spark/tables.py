"""Tables over storage files and archives, as functions from paths or DataFrames to DataFrames: nothing runs here.

*Records* are what `format("bmq-storage")` gives, or an archive of them in Parquet. *Life lines* have one row for each
message: when it came, which apps confirmed it, when and why it went.

What the records do not say: the confirmation of the last app leaves a DELETION only, so the app without a CONFIRM is the one
that confirmed when the message was deleted; a rejected message of a queue with one app looks confirmed; a purge of a whole
queue leaves one record; times are whole seconds. Rows say `state` accordingly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from bmqtwist.ids import DEFAULT_APP_ID, NULL_KEY
from bmqtwist.storage.records import ConfirmReason, DeletionReason, QueueOp, RecordType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PLACE = ["partition", "fileSet", "offset", "lease", "sequence", "time"]
_QUEUE = ["queueKey", "queue"]
_APP = ["appKey", "appId"]
OF_MESSAGES = ["crc", "dataBytes"]
RECORD_COLUMNS = [*_PLACE, "type", *_QUEUE, *_APP, "guid", "reason", "op", "startLease", "startSequence", "refCount"]


def records(spark: SparkSession, path: str, columns: Sequence[str] = (), **options: Any) -> DataFrame:
    """The records of storage files; options of `bmq-storage`. A path of an archive (Parquet) gives those of the archive."""
    if is_archive(path):
        found = spark.read.parquet(path)
        return found.select(*columns) if columns else found
    reader = spark.read.format("bmq-storage").options(**{name: _text(value) for name, value in options.items()})
    return (reader.option("columns", ",".join(columns)) if columns else reader).load(path)


def is_archive(path: str) -> bool:
    """Is it a directory of Parquet files that the archive pipeline made?"""
    from pathlib import Path

    place = Path(path)
    return (place / "_spark_metadata").is_dir() or any(place.glob("*/*.parquet")) or any(place.glob("*.parquet"))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _of(kind: RecordType, columns: Sequence[str]) -> Any:
    def read(spark: SparkSession, path: str, **options: Any) -> DataFrame:
        return records(spark, path, options.pop("columns", columns), recordTypes=kind.name, **options)
    read.__doc__ = f"The {kind.name} records of storage files; options of `bmq-storage`."
    return read


messages = _of(RecordType.MESSAGE, [*_PLACE, *_QUEUE, "guid", "refCount", "compression", "crc", "dataOffset"])
confirms = _of(RecordType.CONFIRM, [*_PLACE, *_QUEUE, *_APP, "guid", "reason"])
deletions = _of(RecordType.DELETION, [*_PLACE, *_QUEUE, "guid", "reason"])
queue_ops = _of(RecordType.QUEUE_OP, [*_PLACE, *_QUEUE, *_APP, "op", "qlistOffset", "startLease", "startSequence"])
sync_points = _of(RecordType.JOURNAL_OP, [*_PLACE, "op", "syncPointType", "syncPointLease", "syncPointSequence", "node",
                                          "dataOffset", "qlistOffset"])


def lifelines(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    """One row for each message of storage files or of an archive; options of `bmq-storage`."""
    if is_archive(path):
        return lifelines_of(records(spark, path), OF_MESSAGES)
    return records(spark, path, lifelines=True, **options)


def lifelines_of(given: DataFrame, more: Sequence[str] = ()) -> DataFrame:
    """One row for each message of these records, with `more` of the columns of its MESSAGE record. `again`: its GUID was
    stored more than once; `confirms`: of each app that left a record, by time; `state`: outstanding,
    confirmed (deleted because every app was done), expired, no-quorum, purged (with its queue)."""
    kind = F.col("type")
    rows = given.where(kind.isin(RecordType.MESSAGE.name, RecordType.CONFIRM.name, RecordType.DELETION.name))
    is_message, is_confirm = kind == RecordType.MESSAGE.name, kind == RecordType.CONFIRM.name
    is_deletion = kind == RecordType.DELETION.name
    by_message = rows.groupBy("partition", "queueKey", "guid").agg(
        F.max("queue").alias("queue"),
        F.min(F.when(is_message, F.struct("lease", "sequence", "time", "refCount", *more))).alias("message"),
        F.max(F.when(is_message, F.struct("lease", "sequence"))).alias("last"),
        F.collect_set(F.when(is_confirm, F.struct(_known_time().alias("time"), "appId", "appKey", "reason"))).alias(
            "confirms"),
        F.min(F.when(is_deletion, F.struct("lease", "sequence", "time", "reason"))).alias("deletion"),
    ).where(F.col("message").isNotNull())
    ends = _endings(given)
    own = F.struct(F.col("message.lease"), F.col("message.sequence"))
    later = F.filter("ends", lambda end: F.struct(end["lease"], end["sequence"]) > own)
    joined = by_message.join(F.broadcast(ends), ["partition", "queueKey"], "left").withColumn(
        "ended", F.array_min(later))
    reason = F.col("deletion.reason")
    state = (F.when(F.col("deletion").isNotNull(), F.when(reason == DeletionReason.TTL_EXPIRATION.name, "expired")
                    .when(reason == DeletionReason.NO_SC_QUORUM.name, "no-quorum").otherwise("confirmed"))
             .when(F.col("ended").isNotNull(), "purged").otherwise("outstanding"))
    return joined.select(
        "partition", "queueKey", "queue", "guid", F.col("message.lease").alias("lease"),
        F.col("message.sequence").alias("sequence"), F.col("message.time").alias("arrived"),
        F.col("message.refCount").alias("refCount"), F.sort_array("confirms").alias("confirms"),
        F.coalesce("deletion.time", "ended.time").alias("gone"), reason.alias("deletionReason"), state.alias("state"),
        (F.col("last") > own).alias("again"), *(F.col(f"message.{name}").alias(name) for name in more))


def _known_time() -> Column:
    """The time of a record; a rejection is written without one."""
    return F.when(F.unix_seconds("time") > 0, F.col("time"))


def _endings(given: DataFrame) -> DataFrame:
    """When all messages of a queue went at once."""
    ops = given.where((F.col("type") == RecordType.QUEUE_OP.name) & F.col("op").isin(
        QueueOp.PURGE.name, QueueOp.DELETION.name) & (F.col("appKey") == F.lit(NULL_KEY)))
    return ops.groupBy("partition", "queueKey").agg(F.collect_set(F.struct("lease", "sequence", "time")).alias("ends"))


def app_lifelines_of(lines: DataFrame) -> DataFrame:
    """One row for each message and app that is done with it. The app that was last has no CONFIRM: it is named where the
    queue has one app, else `appId` is null, and its time is that of the deletion."""
    each = ["partition", "queueKey", "queue", "guid", "lease", "sequence", "arrived"]
    said = lines.select(*each, F.explode("confirms").alias("confirm")).where(
        F.col("confirm.reason") != ConfirmReason.AUTO_CONFIRMED.name).select(
        *each, F.col("confirm.appId").alias("appId"), F.col("confirm.time").alias("done"),
        F.col("confirm.reason").alias("reason"))
    last = lines.where(F.col("state") == "confirmed").select(
        *each, F.when(F.col("refCount") == 1, F.lit(DEFAULT_APP_ID)).alias("appId"), F.col("gone").alias("done"),
        F.lit(ConfirmReason.CONFIRMED.name).alias("reason"))
    return said.unionByName(last)
