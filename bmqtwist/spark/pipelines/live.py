"""`bmq pipeline live`: statistics of queues while messages pass, by window of time: how many, how large, how late.

A fanout queue with an appId of its own leaves the work of others alone. Each window is written when the next one has come so
far that nothing of it can be late any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def statistics(rows: DataFrame, window: str = "10 seconds", late: str = "10 seconds") -> DataFrame:
    return (rows.withWatermark("received", late).groupBy(F.window("received", window), "queue", "appId").agg(
        F.count("*").alias("messages"), F.sum("size").alias("bytes"), F.max("size").alias("sizeMax"),
        F.sum(F.col("redelivered").cast("int")).alias("redelivered"), F.count("problem").alias("unreadable"))
        .select(F.col("window.start").alias("since"), F.col("window.end").alias("until"), "queue", "appId", "messages",
                "bytes", "sizeMax", "redelivered", "unreadable"))


def live(spark: SparkSession, options: dict[str, str], target: str, window: str = "10 seconds", late: str = "10 seconds",
         available_now: bool = False, trigger: str = "10 seconds") -> StreamingQuery:
    """Start it: Parquet below `target`, by day."""
    below = target.rstrip("/")
    rows = spark.readStream.format("bmq").options(**{
        "includeProperties": "false", "spoolDir": f"{below}/_spool", **options}).load()
    writer = (statistics(rows, window, late).withColumn("date", F.to_date("since")).writeStream.format("parquet")
              .partitionBy("date").option("checkpointLocation", f"{below}/_checkpoint")
              .option("path", f"{below}/windows").queryName("bmq-live"))
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=trigger)).start()
