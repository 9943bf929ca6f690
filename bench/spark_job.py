"""Spark job of bench/spark_cluster.py, run by spark-submit with the arguments BROKER DIRECTORY MESSAGES STORAGE.

Reads storage files, posts a table to a queue, consumes the queue, and reports the executors of each part. It also posts a
table of which one task stalls after most of its rows: on a cluster with speculation another executor runs the task again and
posts the same rows, which the broker must deduplicate.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import bmqtwist
from bmqtwist.spark import register, session


def executors_of(rows: Any) -> list[str]:
    """Return the working directories of the executors that process `rows`."""
    from pyspark.sql import functions as F

    here = F.udf(os.getcwd, "string").asNondeterministic()
    return sorted({row["where"] for row in rows.select(here().alias("where")).distinct().collect()})


_SLOW_S = 30.0  # delay of the first attempt of one task
_ROWS, _TASKS = 20_000, 4  # rows per task; a few hundred would stay in buffers before the sink


def text_with_delay(directory: str, number: int) -> str:
    """Return a number as text; creates a file per task attempt, and delays the first attempt of a task at its last row."""
    from pyspark import TaskContext

    task: Any = TaskContext.get()
    if not number % _ROWS:
        Path(directory, f"{task.partitionId()}-{task.attemptNumber()}").touch()
    if number == _ROWS - 1 and not task.attemptNumber():
        time.sleep(_SLOW_S)
    return str(number)


def post_with_speculation(spark: Any, sink: dict[str, str], directory: str) -> tuple[list[str], dict[int, int]]:
    """Post the table; return the task attempts, and how often each number is in the queue."""
    from pyspark.sql import functions as F

    attempts = Path(directory, "attempts")
    attempts.mkdir(parents=True)
    slow = F.udf(lambda number: text_with_delay(str(attempts), number), "string").asNondeterministic()
    rows = spark.range(0, _TASKS * _ROWS, 1, _TASKS).select(slow("id").alias("value"))
    rows.write.format("bmq").options(**sink, maxUnackedMessages="100").mode("append").save()
    found: Counter[int] = Counter()
    options = {"bmq.bootstrap.servers": sink["bmq.bootstrap.servers"], "subscribe": sink["queue"],
               "spoolDir": f"{directory}/spool-twice"}
    query = spark.readStream.format("bmq").options(**options).load().writeStream.foreachBatch(
        lambda batch, number: found.update(int(row["value"]) for row in batch.select("value").collect())).option(
        "checkpointLocation", f"{directory}/checkpoint-twice").trigger(availableNow=True).start()
    query.awaitTermination()
    return sorted(each.name for each in attempts.iterdir()), dict(found)


def main(broker: str, directory: str, count: int, storage: str) -> None:
    """Run all parts and print the result."""
    spark = session(name="bmqtwist-cluster")
    register(spark)
    spark.sparkContext.setLogLevel("ERROR")
    assert ".zip" in bmqtwist.__file__, f"not the shipped package: {bmqtwist.__file__}"
    uri = f"bmq://spark/{os.path.basename(directory)}"
    records = spark.read.format("bmq-storage").options(includeArchive="true", maxPartitionRecords="20").load(storage)
    by_type = {row["type"]: row["count"] for row in records.groupBy("type").count().collect()}
    table = spark.range(0, count, 1, 4).selectExpr("cast(id as string) value", "concat('k', id) dedupKey")
    sink = {"bmq.bootstrap.servers": broker, "queue": uri}
    table.write.format("bmq").options(**sink).mode("append").save()
    options = {"bmq.bootstrap.servers": broker, "subscribe": uri, "spoolDir": f"{directory}/spool", "minPartitions": "4"}
    workers: set[str] = set()
    got: list[int] = []

    def batch(rows: Any, number: int) -> None:
        workers.update(executors_of(rows))
        got.append(rows.selectExpr("sum(cast(cast(value as string) as bigint))").first()[0] or 0)

    query = spark.readStream.format("bmq").options(**options).load().writeStream.foreachBatch(batch).option(
        "checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    attempts, times = post_with_speculation(spark, {"bmq.bootstrap.servers": broker, "queue": f"{uri}-twice"}, directory)
    print("RESULT " + json.dumps({"records": by_type, "messages": sum(got), "posted": count, "attempts": attempts,
                                  "each_once": times == dict.fromkeys(range(_TASKS * _ROWS), 1),
                                  "executors": {"storage": executors_of(records), "queue": sorted(workers)}}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
