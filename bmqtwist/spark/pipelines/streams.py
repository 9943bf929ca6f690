"""Streams of journals and queues into Parquet: `bmq pipeline archive`, `bmq pipeline live`, and for programs `drain`, which
consumes the current messages of a queue.

    PATH/cluster=NAME/date=YYYY-MM-DD/*.parquet         archive: records, with payload and properties of messages

An archive contains the records of journals that a rollover completed, each record once, also after repeated or killed runs:
its position is in the checkpoint, and an unfinished batch is written again under the same number. Live statistics have one
row per time window and queue, written when the watermark has passed the window. To leave the messages to other consumers,
use a fanout queue with a separate appId. Called by `cli/pipeline.py`; the sources are in `spark/source.py` and
`spark/storage.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

_PROGRESS_MAX = "spark.sql.streaming.numRecentProgressUpdates"  # batches in `recentProgress`; default: 100


@contextmanager
def _progress_of_all_batches(spark: SparkSession) -> Iterator[None]:
    """Let queries of a session keep the progress of all their batches; at the end, restore the setting."""
    before = spark.conf.get(_PROGRESS_MAX, None)
    spark.conf.set(_PROGRESS_MAX, str((1 << 31) - 1))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_PROGRESS_MAX)
        else:
            spark.conf.set(_PROGRESS_MAX, before)


def _writer(rows: DataFrame, target: str, name: str, *columns: str) -> DataStreamWriter:
    """Return a stream writer into Parquet files in `target`/`name`, with its checkpoint in `target`."""
    made = rows.writeStream.format("parquet").option("checkpointLocation", f"{target}/_checkpoint").option(
        "path", f"{target}/{name}")
    return made.partitionBy(*columns) if columns else made


def archive(spark: SparkSession, sources: str, target: str, cluster: str = "local", payload: bool = True,
            live: bool = False, records_max: int = 10_000_000) -> int:
    """Archive new records; return their number. `live`: include journals that are still written."""
    rows = (spark.readStream.format("bmq-storage")
            .option("payload", str(payload).lower()).option("includeArchive", "true")
            .option("finishedOnly", str(not live).lower()).option("maxRecordsPerTrigger", str(records_max)).load(sources)
            .withColumn("cluster", F.lit(cluster)).withColumn("date", F.to_date("time")))
    with _progress_of_all_batches(spark):
        query = _writer(rows, target.rstrip("/"), "records", "cluster", "date").trigger(availableNow=True).start()
        query.awaitTermination()
    return sum(int(progress["numInputRows"]) for progress in query.recentProgress)


def statistics(rows: DataFrame, window: str = "10 seconds", late: str = "10 seconds") -> DataFrame:
    return (rows.withWatermark("received", late).groupBy(F.window("received", window), "queue", "appId").agg(
        F.count("*").alias("messages"), F.sum("size").alias("bytes"), F.max("size").alias("sizeMax"),
        F.sum(F.col("redelivered").cast("int")).alias("redelivered"), F.count("problem").alias("unreadable"))
        .select(F.col("window.start").alias("since"), F.col("window.end").alias("until"), "queue", "appId", "messages",
                "bytes", "sizeMax", "redelivered", "unreadable"))


def live(spark: SparkSession, options: dict[str, str], target: str, window: str = "10 seconds", late: str = "10 seconds",
         available_now: bool = False, trigger: str = "10 seconds") -> StreamingQuery:
    """Start a query that writes statistics of queues below `target`, by day."""
    below = target.rstrip("/")
    rows = spark.readStream.format("bmq").options(**{
        "includeProperties": "false", "spoolDir": f"{below}/_spool", **options}).load()
    dated = statistics(rows, window, late).withColumn("date", F.to_date("since"))
    writer = _writer(dated, below, "windows", "date").queryName("bmq-live")
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=trigger)).start()


def drain(spark: SparkSession, options: dict[str, str], path: str) -> DataFrame:
    """Consume the current messages of a queue into Parquet files below `path`. Return the messages of all drains to that
    path, each once: checkpoint and spool are in the same directory."""
    below = path.rstrip("/")
    rows = spark.readStream.format("bmq").options(**{"spoolDir": f"{below}/_spool", **options}).load()
    _writer(rows, below, "messages").trigger(availableNow=True).start().awaitTermination()
    return spark.read.parquet(f"{below}/messages")
