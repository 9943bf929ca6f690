"""`bmq pipeline replay`: post archived messages again. New GUIDs, derived from the old ones and the name of the replay, so
that a replay that is run twice within the broker's deduplication time posts nothing twice.

What is posted keeps its properties (as strings) and says where it comes from: `replay.guid`, `replay.queue`,
`replay.arrived` (seconds) and `replay.name`.
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

_SHARES = 1 << 16  # the messages are dealt into so many shares, to post them little by little


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages. `since`, `until`: ISO times; `expression`: a condition on the properties in SQL, where each property
    is `p['name']`."""

    queues: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    expression: str = ""


def selected(spark: SparkSession, source: str, wanted: Selection) -> DataFrame:
    columns = ["type", "queue", "guid", "time", "lease", "sequence", "partition", "value", "properties"]
    rows = records(spark, source, columns, payload=True, recordTypes="MESSAGE", includeArchive=True).where(
        (F.col("type") == "MESSAGE") & F.col("value").isNotNull())
    if wanted.queues:
        rows = rows.where(F.col("queue").isin(*wanted.queues))
    if wanted.since:
        rows = rows.where(F.col("time") >= F.lit(wanted.since).cast("timestamp"))
    if wanted.until:
        rows = rows.where(F.col("time") < F.lit(wanted.until).cast("timestamp"))
    if wanted.expression:
        rows = rows.withColumn("p", F.coalesce("properties", F.create_map().cast("map<string,string>"))).where(
            F.expr(wanted.expression)).drop("p")
    return rows.dropDuplicates(["partition", "lease", "sequence"])


def to_post(rows: DataFrame, target: str, name: str) -> DataFrame:
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
class Posting:
    """How they are posted. `target` "" = each where it was; `rate`: messages a second, 0 = as fast as it goes."""

    target: str = ""
    name: str = "replay"
    rate: float = 0.0
    dry_run: bool = False


def replay(spark: SparkSession, source: str, broker: dict[str, str], wanted: Selection, how: Posting,
           progress: Callable[[int, int], Any] = lambda done, total: None) -> int:
    """Post the selected messages; how many they are. `progress` is told how many of how many are posted."""
    rows, rate = to_post(selected(spark, source, wanted), how.target, how.name), how.rate
    total = rows.count()
    if how.dry_run or not total:
        return total
    if rate < 0:
        raise LocalError("the rate is a number of messages a second, 0 for no limit")
    started, done = time.monotonic(), 0
    shares = max(min(int(total / rate) or 1, _SHARES), 1) if rate else 1
    share = F.pmod(F.xxhash64("dedupKey"), F.lit(shares))
    dealt = rows.withColumn("share", share).persist() if shares > 1 else rows
    sizes = {row["share"]: row["count"] for row in dealt.groupBy("share").count().collect()} if shares > 1 else {0: total}
    for number, size in sorted(sizes.items()):
        part = dealt.where(F.col("share") == number).drop("share") if shares > 1 else dealt
        part.write.format("bmq").options(**broker).mode("append").save()
        done += size
        progress(done, total)
        ahead = done / rate - (time.monotonic() - started) if rate else 0.0
        if ahead > 0 and done < total:
            time.sleep(ahead)
    if shares > 1:
        dealt.unpersist()
    return total
