"""Tables over storage files and archives, and report tables: functions from paths or DataFrames to DataFrames. They start no
job.

*Records* are the rows of `format("bmq-storage")`, or of an archive in Parquet. *Lifelines* have one row per message: time of
arrival, confirmations by app, time and reason of the deletion.

Records contain less than the events in the broker:

- The last app's confirmation is a DELETION without a CONFIRM, so its time is that of the deletion.
- A rejected message of a queue with one app appears as confirmed.
- The purge of a whole queue is one record.
- Times are whole seconds; only the brokers' statistics logs contain latencies below one second.

Called by programs and by `pipelines/report.py`; the format itself is in `storage.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from bmqtwist.ids import DEFAULT_APP_ID, NULL_KEY
from bmqtwist.storage.records import ConfirmReason, DeletionReason, QueueOp, RecordType
from bmqtwist.view.snapshot import NodeRole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_POSITION = ["partition", "fileSet", "offset", "lease", "sequence", "time"]
_QUEUE = ["queueKey", "queue"]
_APP = ["appKey", "appId"]
OF_MESSAGES = ["crc", "dataBytes"]
RECORD_COLUMNS = [*_POSITION, "type", *_QUEUE, *_APP, "guid", "reason", "op", "startLease", "startSequence", "refCount"]


def records(spark: SparkSession, path: str, columns: Sequence[str] = (), **options: Any) -> DataFrame:
    """Return the records of storage files, or of an archive (Parquet). `options`: of `bmq-storage`."""
    if is_archive(path):
        found = spark.read.parquet(path)
        return found.select(*columns) if columns else found
    reader = spark.read.format("bmq-storage").options(**{name: _option_text(value) for name, value in options.items()})
    return (reader.option("columns", ",".join(columns)) if columns else reader).load(path)


def is_archive(path: str) -> bool:
    from pathlib import Path

    directory = Path(path)
    return (directory / "_spark_metadata").is_dir() or any(directory.glob("*/*.parquet")) or any(directory.glob("*.parquet"))


def _option_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _reader_of(kind: RecordType, columns: Sequence[str]) -> Any:
    def read(spark: SparkSession, path: str, **options: Any) -> DataFrame:
        return records(spark, path, options.pop("columns", columns), recordTypes=kind.name, **options)
    read.__doc__ = f"Return the {kind.name} records of storage files. `options`: of `bmq-storage`."
    return read


messages = _reader_of(RecordType.MESSAGE, [*_POSITION, *_QUEUE, "guid", "refCount", "compression", "crc", "dataOffset"])
confirms = _reader_of(RecordType.CONFIRM, [*_POSITION, *_QUEUE, *_APP, "guid", "reason"])
deletions = _reader_of(RecordType.DELETION, [*_POSITION, *_QUEUE, "guid", "reason"])
queue_ops = _reader_of(RecordType.QUEUE_OP, [*_POSITION, *_QUEUE, *_APP, "op", "qlistOffset", "startLease", "startSequence"])
sync_points = _reader_of(RecordType.JOURNAL_OP, [*_POSITION, "op", "syncPointType", "syncPointLease", "syncPointSequence",
                                                 "node", "dataOffset", "qlistOffset"])


def lifelines(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    """Return one row per message of storage files or of an archive. `options`: of `bmq-storage`."""
    if is_archive(path):
        return lifelines_of(records(spark, path), OF_MESSAGES)
    return records(spark, path, lifelines=True, **options)


def lifelines_of(given: DataFrame, more: Sequence[str] = ()) -> DataFrame:
    """Return one row per message of these records, with the columns `more` of its MESSAGE record.

    `removed`: time at which the message was deleted or purged; `duplicate`: the GUID was stored more than once; `confirms`:
    the CONFIRM records, by time; `state`: outstanding, confirmed (deleted after the confirmation of all apps), expired,
    no-quorum, purged (with its queue).
    """
    kind = F.col("type")
    rows = given.where(kind.isin(RecordType.MESSAGE.name, RecordType.CONFIRM.name, RecordType.DELETION.name))
    is_message, is_confirm = kind == RecordType.MESSAGE.name, kind == RecordType.CONFIRM.name
    is_deletion = kind == RecordType.DELETION.name
    known_time = F.when(F.unix_seconds("time") > 0, F.col("time"))  # a rejection has no time
    by_message = rows.groupBy("partition", "queueKey", "guid").agg(
        F.max("queue").alias("queue"),
        F.min(F.when(is_message, F.struct("lease", "sequence", "time", "refCount", *more))).alias("message"),
        F.max(F.when(is_message, F.struct("lease", "sequence"))).alias("last"),
        F.collect_set(F.when(is_confirm, F.struct(known_time.alias("time"), "appId", "appKey", "reason"))).alias("confirms"),
        F.min(F.when(is_deletion, F.struct("lease", "sequence", "time", "reason"))).alias("deletion"),
    ).where(F.col("message").isNotNull())
    ends = _queue_endings(given)
    own = F.struct(F.col("message.lease"), F.col("message.sequence"))
    after_message = F.filter("ends", lambda end: F.struct(end["lease"], end["sequence"]) > own)
    joined = by_message.join(F.broadcast(ends), ["partition", "queueKey"], "left").withColumn(
        "ended", F.array_min(after_message))
    reason = F.col("deletion.reason")
    state = (F.when(F.col("deletion").isNotNull(), F.when(reason == DeletionReason.TTL_EXPIRATION.name, "expired")
                    .when(reason == DeletionReason.NO_SC_QUORUM.name, "no-quorum").otherwise("confirmed"))
             .when(F.col("ended").isNotNull(), "purged").otherwise("outstanding"))
    return joined.select(
        "partition", "queueKey", "queue", "guid", F.col("message.lease").alias("lease"),
        F.col("message.sequence").alias("sequence"), F.col("message.time").alias("arrived"),
        F.col("message.refCount").alias("refCount"), F.sort_array("confirms").alias("confirms"),
        F.coalesce("deletion.time", "ended.time").alias("removed"), reason.alias("deletionReason"), state.alias("state"),
        (F.col("last") > own).alias("duplicate"), *(F.col(f"message.{name}").alias(name) for name in more))


def _queue_endings(given: DataFrame) -> DataFrame:
    """Return the purges and deletions of whole queues."""
    ops = given.where((F.col("type") == RecordType.QUEUE_OP.name) & F.col("op").isin(
        QueueOp.PURGE.name, QueueOp.DELETION.name) & (F.col("appKey") == F.lit(NULL_KEY)))
    return ops.groupBy("partition", "queueKey").agg(F.collect_set(F.struct("lease", "sequence", "time")).alias("ends"))


def app_lifelines_of(lines: DataFrame) -> DataFrame:
    """Return one row per message and app that confirmed or rejected it. The last app has no CONFIRM record: its time is that
    of the deletion, and `appId` is null unless the queue has one app."""
    each = ["partition", "queueKey", "queue", "guid", "lease", "sequence", "arrived"]
    confirmed = lines.select(*each, F.explode("confirms").alias("confirm")).where(
        F.col("confirm.reason") != ConfirmReason.AUTO_CONFIRMED.name).select(
        *each, F.col("confirm.appId").alias("appId"), F.col("confirm.time").alias("done"),
        F.col("confirm.reason").alias("reason"))
    last = lines.where(F.col("state") == "confirmed").select(
        *each, F.when(F.col("refCount") == 1, F.lit(DEFAULT_APP_ID)).alias("appId"), F.col("removed").alias("done"),
        F.lit(ConfirmReason.CONFIRMED.name).alias("reason"))
    return confirmed.unionByName(last)


# -- reports -------------------------------------------------------------------------------------------------------------

PERCENTILES = (0.5, 0.9, 0.99, 0.999)
PERCENTILE_NAMES = ("p50", "p90", "p99", "p999")


def _to_minute(column: str) -> Column:
    return F.date_trunc("minute", F.col(column))


def throughput_minute(lines: DataFrame) -> DataFrame:
    """Return the number of arrived (`in`) and deleted (`out`) messages by queue and minute."""
    added = lines.select("queue", _to_minute("arrived").alias("minute"), F.lit(1).alias("in"), F.lit(0).alias("out"))
    removed = lines.where(F.col("removed").isNotNull()).select(
        "queue", _to_minute("removed").alias("minute"), F.lit(0).alias("in"), F.lit(1).alias("out"))
    return added.unionByName(removed).groupBy("queue", "minute").agg(F.sum("in").alias("in"), F.sum("out").alias("out"))


def backlog_minute(throughput: DataFrame) -> DataFrame:
    """Return the number of messages in the queue at the end of each minute with traffic."""
    until = Window.partitionBy("queue").orderBy("minute").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return throughput.select("queue", "minute", F.sum(F.col("in") - F.col("out")).over(until).alias("messages"))


def latency(done: DataFrame) -> DataFrame:
    """Return the seconds from arrival to confirmation by queue and app, with a mergeable KLL sketch."""
    seconds = F.unix_seconds("done") - F.unix_seconds("arrived")
    known = done.where((F.col("reason") == ConfirmReason.CONFIRMED.name) & F.col("done").isNotNull()).select(
        "queue", "appId", F.greatest(seconds, F.lit(0)).alias("seconds"))
    sketched = known.groupBy("queue", "appId").agg(F.count("*").alias("messages"), F.max("seconds").alias("max"),
                                                   F.expr("kll_sketch_agg_bigint(seconds)").alias("sketch"))
    return sketched.select("queue", "appId", "messages", *(
        F.expr(f"kll_sketch_get_quantile_bigint(sketch, {share}D)").alias(name)
        for share, name in zip(PERCENTILES, PERCENTILE_NAMES, strict=True)), "max", "sketch")


def measured_latency(spark: SparkSession, logs: str) -> DataFrame:
    """Return the milliseconds from arrival to confirmation by queue and app, from the brokers' histograms. `logs`: their
    statistics logs as JSON, separated by commas. The relative error of percentiles is at most 1/8; `appId` is null for all
    apps of a queue together. In a cluster only the primary of a queue counts its confirmations."""
    histogram = "confirmLatency: map<string, bigint>"
    app = f"struct<{histogram}>"
    queue = f"struct<{histogram}, appIds: map<string, {app}>, values: struct<queue_role: bigint>>"
    rows = spark.read.schema(f"domainQueues struct<domains: map<string, map<string, {queue}>>>").json(logs.split(","))
    by_queue = rows.select(F.explode("domainQueues.domains").alias("domain", "queues")).select(
        F.explode("queues").alias("queue", "of")).where(F.col("of.values.queue_role") == int(NodeRole.PRIMARY))
    whole = by_queue.select("queue", F.lit(None).cast("string").alias("appId"), F.col("of.confirmLatency").alias("counts"))
    apps = by_queue.select("queue", F.explode("of.appIds").alias("appId", "app")).select(
        "queue", "appId", F.col("app.confirmLatency").alias("counts"))
    counted = whole.unionByName(apps).select("queue", "appId", F.explode("counts").alias("below", "count")).groupBy(
        "queue", "appId", F.col("below").cast("bigint").alias("below")).agg(F.sum("count").alias("count"))
    own = Window.partitionBy("queue", "appId")
    rising = own.orderBy("below").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    passed = counted.withColumn("passed", F.sum("count").over(rising)).withColumn("messages", F.sum("count").over(own))
    return passed.groupBy("queue", "appId").agg(F.max("messages").alias("messages"), *(
        (F.min(F.when(F.col("passed") >= F.col("messages") * share, F.col("below"))) / 1e6).alias(name)
        for share, name in zip(PERCENTILES, PERCENTILE_NAMES, strict=True)), (F.max("below") / 1e6).alias("max"))


def endings(lines: DataFrame) -> DataFrame:
    """Return the number of messages per queue and state; rejections (poison messages) are counted per app."""
    rejected = F.size(F.filter("confirms", lambda each: each["reason"] == ConfirmReason.REJECTED.name))
    counted = [F.sum((F.col("state") == state).cast("int")).alias(name) for state, name in (
        ("confirmed", "confirmed"), ("expired", "expired"), ("purged", "purged"), ("no-quorum", "noQuorum"),
        ("outstanding", "outstanding"))]
    return lines.groupBy("queue").agg(F.count("*").alias("messages"), *counted, F.sum(rejected).alias("rejected"),
                                      F.min(F.when(F.col("state") == "outstanding", F.col("arrived"))).alias("oldest"))


def duplicates(lines: DataFrame, records: DataFrame) -> DataFrame:
    """Return GUIDs stored more than once (`guid`), and equal contents of one producer within one minute (`content`).
    `lines`: lifelines with `crc`; `records`: their records."""
    key = ["partition", "queueKey", "guid"]
    stored = records.where(F.col("type") == RecordType.MESSAGE.name).select(*key, "lease", "sequence")
    by_guid = stored.join(F.broadcast(lines.where("duplicate").select(*key, "queue")), key).distinct().groupBy(
        "queue", F.hex("guid").alias("what")).agg(F.count("*").alias("times")).withColumn("kind", F.lit("guid"))
    minute, client = _to_minute("arrived"), F.substring("guid", 11, 6)
    contents = lines.select("queue", minute.alias("minute"), client.alias("client"), "crc",
                            F.xxhash64("queueKey", minute, client, "crc").alias("hash"))
    suspects = contents.groupBy("hash").count().where("count > 1").select("hash")  # usually few
    by_content = contents.join(suspects, "hash", "left_semi").groupBy("queue", "minute", "client", "crc").agg(
        F.count("*").alias("times")).where("times > 1").select(
        "queue", F.concat_ws(" ", F.lit("crc"), F.hex("crc"), F.lit("client"), F.hex("client")).alias("what"), "times",
        F.lit("content").alias("kind"))
    return by_guid.unionByName(by_content)


def sizes(lines: DataFrame) -> DataFrame:
    """Return a histogram of message sizes in the DATA file, bytes, by powers of two: `until` is the upper bound. `lines`:
    lifelines with `dataBytes`."""
    until = F.pow(F.lit(2), F.ceil(F.log2("dataBytes"))).cast("bigint")
    return lines.where("dataBytes > 0").groupBy("queue", until.alias("until")).agg(
        F.count("*").alias("messages"), F.sum("dataBytes").alias("bytes"))


def consumer_health(backlog: DataFrame, throughput: DataFrame, minutes: int = 10) -> DataFrame:
    """Return a verdict per queue over the last `minutes` with traffic. OK: the queue was empty at least once, or shrinks;
    SLOW: fewer messages are removed than arrive; STALLED: messages are outstanding, and none is removed."""
    last = throughput.agg(F.max("minute").alias("last"))
    since = F.expr(f"last - interval {int(minutes)} minutes")
    rates = throughput.crossJoin(F.broadcast(last)).where(F.col("minute") > since).groupBy("queue").agg(
        F.sum("in").alias("in"), F.sum("out").alias("out"))
    recent = backlog.crossJoin(F.broadcast(last)).where(F.col("minute") > since).groupBy("queue").agg(
        F.min("messages").alias("least"))
    now = backlog.groupBy("queue").agg(F.max_by("messages", "minute").alias("backlog"))
    joined = now.join(rates, "queue", "left").join(recent, "queue", "left").fillna(0, ["in", "out"])
    idle = F.coalesce(F.col("least"), F.col("backlog"))
    verdict = (F.when((F.col("backlog") == 0) | (idle == 0), "OK").when(F.col("out") == 0, "STALLED")
               .when(F.col("in") > F.col("out"), "SLOW").otherwise("OK"))
    drain = F.when((F.col("backlog") > 0) & (F.col("out") > F.col("in")),
                   F.ceil(F.col("backlog") * int(minutes) / (F.col("out") - F.col("in"))))
    return joined.select("queue", "backlog", "in", "out", verdict.alias("verdict"), drain.alias("minutesToDrain"))


def growth_hour(records: DataFrame) -> DataFrame:
    """Return the bytes written by partition and hour, the growth of the archive."""
    return records.where(F.col("dataOffset").isNotNull()).groupBy(
        "partition", "fileSet", F.date_trunc("hour", F.col("time")).alias("hour")).agg(
        F.count("*").alias("records"), (F.max("dataOffset") - F.min("dataOffset")).alias("dataBytes")).groupBy(
        "partition", "hour").agg(F.sum("records").alias("records"), F.sum("dataBytes").alias("dataBytes"),
                                 F.count("*").alias("fileSets"))


def replica_diff(left: DataFrame, right: DataFrame) -> DataFrame:
    """Return the records of two nodes, by (partition, lease, sequence), that differ or are missing at one node. Consistent
    nodes differ at most at the end: one is a prefix of the other."""
    key = ["partition", "lease", "sequence"]
    compared = ["type", "time", "queueKey", "appKey", "guid", "reason", "op", "crc", "refCount"]

    def digest(rows: DataFrame, name: str) -> DataFrame:
        return rows.dropDuplicates(key).select(*key, F.struct("type", F.hex("guid").alias("guid"), "time").alias(name),
                                               F.xxhash64(*compared).alias(f"{name}Hash"))
    both = digest(left, "left").join(digest(right, "right"), key, "full_outer")
    what = (F.when(F.col("left").isNull(), "missing left").when(F.col("right").isNull(), "missing right")
            .otherwise("different"))
    return both.where(~F.col("leftHash").eqNullSafe(F.col("rightHash"))).select(*key, what.alias("what"), "left", "right")
