"""Process of the streaming query in the Spark soak test, which kills it repeatedly.

    python -m soak.spark_query run|drain ROOT BROKER QUEUE COUNT BATCH MASTER SINK

`run` continues until it is killed and prints a line for each batch; `drain` ends when the queue is empty and prints counts
of the rows in the sink. Started by `tests/soak/spark.py`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from bmqtwist.spark import session

_SMALL = {"spark.sql.shuffle.partitions": 2, "spark.default.parallelism": 2, "spark.driver.memory": "512m",
          "spark.executor.memory": "512m", "spark.executor.cores": 1, "spark.sql.adaptive.enabled": "false",
          "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
          "spark.ui.showConsoleProgress": "false", "spark.task.maxFailures": 8,
          "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
          "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def stream(spark: Any, root: Path, broker: str, queue: str, batch: str) -> Any:
    """Return the stream of messages of the queue."""
    return spark.readStream.format("bmq").options(**{
        "bmq.bootstrap.servers": broker, "subscribe": queue, "spoolDir": str(root / "spool"), "maxOffsetsPerTrigger": batch,
        "minPartitions": "2", "availableNow.idle": "3s"}).load()


def writer(rows: Any, root: Path, sink: str) -> Any:
    """Write to Parquet files: with the file sink, or with one overwritten directory per batch."""
    if sink == "parquet":
        return rows.writeStream.format("parquet").option("path", str(root / "sink")).option(
            "checkpointLocation", str(root / "checkpoint"))
    return rows.writeStream.foreachBatch(lambda part, number: part.write.mode("overwrite").parquet(
        str(root / "sink" / f"batch={number}"))).option("checkpointLocation", str(root / "checkpoint"))


def count_rows(spark: Any, root: Path, count: int) -> dict[str, int]:
    """Count the rows in the sink; return counts of rows, GUIDs, numbers and lost messages."""
    from pyspark.sql import functions as F

    rows = spark.read.parquet(str(root / "sink"))
    numbers = rows.select(F.col("value").cast("string").cast("bigint").alias("number"), "guid")
    found = numbers.agg(F.count("*").alias("rows"), F.countDistinct("guid").alias("guids"),
                        F.countDistinct("number").alias("numbers")).first()
    missing = spark.range(count).join(numbers, F.col("id") == F.col("number"), "left_anti").count()
    return {**found.asDict(), "lost": missing}


def main(mode: str, root: Path, broker: str, queue: str, count: int, batch: str, master: str, sink: str) -> None:
    """Run the query."""
    spark = session(master, "campaign", **{**_SMALL, "spark.local.dir": str(root / "local"),
                                           "spark.sql.warehouse.dir": str(root / "warehouse")})
    spark.sparkContext.setLogLevel("ERROR")
    print("session", flush=True)
    started = writer(stream(spark, root, broker, queue, batch), root, sink)
    query = (started.trigger(availableNow=True) if mode == "drain" else started).start()
    seen = -1
    while not query.awaitTermination(0.2):
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != seen and progress["numInputRows"]:
            seen = progress["batchId"]
            print(f"batch {seen} {progress['numInputRows']}", flush=True)
    if mode == "drain":
        print("result " + json.dumps(count_rows(spark, root, count)), flush=True)
    spark.stop()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    arguments = sys.argv[1:]
    main(arguments[0], Path(arguments[1]), arguments[2], arguments[3], int(arguments[4]), *arguments[5:8])
