"""Replay of archived messages, `bmq pipeline replay`. GUIDs are derived from the old ones and the replay's name, so that a
second run within the broker's deduplication time posts no duplicates.

Messages keep their properties, as strings; the properties `replay.guid`, `replay.queue`, `replay.arrived` (epoch seconds)
and `replay.name` describe their origin. Called by `cli/pipeline.py`; `spark/sink.py` posts the messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from bmqtwist.errors import LocalError
from bmqtwist.spark.tables import records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHARES_MAX = 1 << 16  # writes of a replay with a rate limit


@dataclass(frozen=True, slots=True)
class MessageSelection:
    """Selects messages. `since`, `until`: ISO times; `expression`: an SQL condition on the properties, `p['name']`."""

    queues: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    expression: str = ""


def select_messages(spark: SparkSession, source: str, selection: MessageSelection) -> DataFrame:
    columns = ["type", "queue", "guid", "time", "lease", "sequence", "partition", "value", "properties"]
    rows = records(spark, source, columns, payload=True, recordTypes="MESSAGE", includeArchive=True).where(
        (F.col("type") == "MESSAGE") & F.col("value").isNotNull())
    if selection.queues:
        rows = rows.where(F.col("queue").isin(*selection.queues))
    if selection.since:
        rows = rows.where(F.col("time") >= F.lit(selection.since).cast("timestamp"))
    if selection.until:
        rows = rows.where(F.col("time") < F.lit(selection.until).cast("timestamp"))
    if selection.expression:
        rows = rows.withColumn("p", F.coalesce("properties", F.create_map().cast("map<string,string>"))).where(
            F.expr(selection.expression)).drop("p")
    return rows.dropDuplicates(["partition", "lease", "sequence"])


def posts_of(rows: DataFrame, target: str, name: str) -> DataFrame:
    """Return the rows as columns of the queue sink."""
    provenance = F.create_map(
        F.lit("replay.guid"), F.hex("guid"), F.lit("replay.queue"), F.coalesce("queue", F.lit("")),
        F.lit("replay.arrived"), F.unix_seconds("time").cast("string"), F.lit("replay.name"), F.lit(name))
    old = F.map_filter(F.coalesce("properties", F.create_map().cast("map<string,string>")), lambda key, _: ~key.startswith(
        "replay."))
    return rows.select(
        F.coalesce(F.lit(target or None).cast("string"), F.col("queue")).alias("queue"), "value",
        F.map_concat(old, provenance).alias("properties"),
        F.concat(F.lit(name.encode() + b"\0"), F.col("guid")).alias("dedupKey"))


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of posting. `target` "" = the original queue; `rate`: messages/s, 0 = no limit."""

    target: str = ""
    name: str = "replay"
    rate: float = 0.0
    dry_run: bool = False


def replay(spark: SparkSession, source: str, broker: dict[str, str], selection: MessageSelection, options: ReplayOptions,
           progress: Callable[[int, int], Any] = lambda done, total: None) -> int:
    """Post the selected messages; return their number. Calls `progress` with the number of posted messages and the total."""
    rows, rate = posts_of(select_messages(spark, source, selection), options.target, options.name), options.rate
    total = rows.count()
    if options.dry_run or not total:
        return total
    if rate < 0:
        raise LocalError("the rate must be 0 (no limit) or a number of messages per second")
    started, done = time.monotonic(), 0
    shares = max(min(int(total / rate) or 1, _SHARES_MAX), 1) if rate else 1
    share = F.pmod(F.xxhash64("dedupKey"), F.lit(shares))
    divided = rows.withColumn("share", share).persist() if shares > 1 else rows
    sizes = {row["share"]: row["count"] for row in divided.groupBy("share").count().collect()} if shares > 1 else {0: total}
    for number, size in sorted(sizes.items()):
        part = divided.where(F.col("share") == number).drop("share") if shares > 1 else divided
        part.write.format("bmq").options(**broker).mode("append").save()
        done += size
        progress(done, total)
        wait_s = done / rate - (time.monotonic() - started) if rate else 0.0
        if wait_s > 0 and done < total:
            time.sleep(wait_s)
    if shares > 1:
        divided.unpersist()
    return total
