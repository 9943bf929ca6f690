"""`bmq pipeline archive`: what rollovers have finished, into Parquet: each record once, however often it is run or killed.

    PATH/cluster=NAME/date=YYYY-MM-DD/*.parquet         records, with payload and properties of messages

It is a stream over the journals into Spark's file sink, run until there is nothing new: where it stopped is in its
checkpoint, and a batch that was begun is written again under the same number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def archive(spark: SparkSession, sources: str, target: str, cluster: str = "local", payload: bool = True,
            live: bool = False, records_max: int = 10_000_000) -> int:
    """Archive what is new; how many records that were. `live`: journals that are still written, too."""
    below = target.rstrip("/")
    rows = (spark.readStream.format("bmq-storage")
            .option("payload", str(payload).lower()).option("includeArchive", "true")
            .option("finishedOnly", str(not live).lower()).option("maxRecordsPerTrigger", str(records_max)).load(sources)
            .withColumn("cluster", F.lit(cluster)).withColumn("date", F.to_date("time")))
    query = (rows.writeStream.format("parquet").partitionBy("cluster", "date")
             .option("checkpointLocation", f"{below}/_checkpoint").option("path", f"{below}/records")
             .trigger(availableNow=True).start())
    query.awaitTermination()
    return sum(int(progress["numInputRows"]) for progress in query.recentProgress)
