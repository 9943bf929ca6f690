"""What bench/spark_cluster.py runs on a cluster and here, under spark-submit: BROKER DIRECTORY MESSAGES STORAGE.

Reads storage files, posts a table to a queue, consumes the queue, and says for each of them which executors had a part.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import bmqtwist
from bmqtwist.spark import register, session


def who(rows: Any) -> list[str]:
    """The directories of the executors that worked on it."""
    from pyspark.sql import functions as F

    here = F.udf(os.getcwd, "string").asNondeterministic()
    return sorted({row["where"] for row in rows.select(here().alias("where")).distinct().collect()})


def main(broker: str, directory: str, count: int, storage: str) -> None:
    """All of it."""
    spark = session(name="bmqtwist-cluster")
    register(spark)
    spark.sparkContext.setLogLevel("ERROR")
    assert ".zip" in bmqtwist.__file__, f"the package is not the one that was shipped: {bmqtwist.__file__}"
    uri = f"bmq://spark/{os.path.basename(directory)}"
    records = spark.read.format("bmq-storage").options(includeArchive="true", maxPartitionRecords="100").load(storage)
    by_type = {row["type"]: row["count"] for row in records.groupBy("type").count().collect()}
    table = spark.range(0, count, 1, 4).selectExpr("cast(id as string) value", "concat('k', id) dedupKey")
    sink = {"bmq.bootstrap.servers": broker, "queue": uri}
    table.write.format("bmq").options(**sink).mode("append").save()
    options = {"bmq.bootstrap.servers": broker, "subscribe": uri, "spoolDir": f"{directory}/spool", "minPartitions": "4"}
    workers: set[str] = set()
    got: list[int] = []

    def batch(rows: Any, number: int) -> None:
        workers.update(who(rows))
        got.append(rows.selectExpr("sum(cast(cast(value as string) as bigint))").first()[0] or 0)

    query = spark.readStream.format("bmq").options(**options).load().writeStream.foreachBatch(batch).option(
        "checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    print("RESULT " + json.dumps({"records": by_type, "messages": sum(got), "posted": count,
                                  "executors": {"storage": who(records), "queue": sorted(workers)}}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
