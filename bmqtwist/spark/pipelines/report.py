"""`bmq pipeline report`: what a broker did, from its storage files or an archive of them: Parquet tables and one HTML page.

    TARGET/report.html, *.png
    TARGET/tables/NAME/*.parquet        throughput, backlog, latency, endings, duplicates, sizes, health, growth, replicas

Rows of whole tables stay in Spark; the page takes the busiest queues only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from bmqtwist.spark import gold, tables
from bmqtwist.spark.report import Chart, Page, Part, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

QUEUES_SHOWN = 20
LINES_SHOWN = 5
POINTS_MAX = 5000
LATENCY_HEADS = ["queue", "app", "messages", "p50", "p90", "p99", "p99.9", "max"]


def build(spark: SparkSession, source: str, replica: str = "", statistics: str = "") -> dict[str, DataFrame]:
    """The tables by name. `replica`: storage files of another node, to be compared; `statistics`: the JSON logs of
    brokers."""
    options: dict[str, Any] = {} if tables.is_archive(source) else {"includeArchive": True}
    records = tables.records(spark, source, [*tables.RECORD_COLUMNS, *tables.OF_MESSAGES], **options)
    written = tables.records(spark, source, ["partition", "fileSet", "time", "dataOffset"], **options)
    lines = tables.lifelines(spark, source, **options).persist()
    throughput = gold.throughput_minute(lines).persist()
    backlog = gold.backlog_minute(throughput)
    found = {"throughput": throughput, "backlog": backlog, "latency": gold.latency(tables.app_lifelines_of(lines)),
             "endings": gold.endings(lines), "duplicates": gold.duplicates(lines, records), "sizes": gold.sizes(lines),
             "health": gold.consumer_health(backlog, throughput), "growth": gold.growth_hour(written)}
    if replica:
        compared = tables.records(spark, replica, [*tables.RECORD_COLUMNS, *tables.OF_MESSAGES], includeArchive=True)
        found["replicas"] = gold.replica_diff(records, compared)
    if statistics:
        found["measured"] = gold.measured_latency(spark, statistics)
    return found


def report(spark: SparkSession, source: str, target: str, replica: str = "", title: str = "What the broker did",
           statistics: str = "") -> Path:
    """Write tables and page; the path of the page."""
    place = Path(target)
    made = build(spark, source, replica, statistics)
    for name, table in made.items():
        table.write.mode("overwrite").parquet(str(place / "tables" / name))
    kept = {name: spark.read.parquet(str(place / "tables" / name)) for name in made}
    path = write(page(kept, source, title), place)
    spark.catalog.clearCache()
    return path


def _top(table: DataFrame, order: str, columns: list[str], most: int = QUEUES_SHOWN) -> list[Row]:
    return table.orderBy(F.col(order).desc(), *[F.col(each) for each in columns[:1]]).select(*columns).limit(most).collect()


def _series(table: DataFrame, names: list[str], value: str) -> dict[str, tuple[list[Any], list[float]]]:
    found: dict[str, tuple[list[Any], list[float]]] = {}
    rows = table.where(F.col("queue").isin(*names)).select("queue", "minute", value).orderBy("minute").limit(POINTS_MAX)
    for row in rows.collect():
        x, y = found.setdefault(row["queue"], ([], []))
        x.append(row["minute"])
        y.append(float(row[value]))
    return {name: found[name] for name in names if name in found}


def page(kept: dict[str, DataFrame], source: str, title: str) -> Page:
    """The page from the tables."""
    endings = _top(kept["endings"], "messages", ["queue", "messages", "confirmed", "expired", "purged", "rejected",
                                                 "noQuorum", "outstanding"])
    health = _top(kept["health"], "backlog", ["queue", "backlog", "in", "out", "verdict", "minutesToDrain"])
    busiest = [row["queue"] for row in endings if row["queue"] is not None][:LINES_SHOWN]
    totals = kept["endings"].agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in (
        "messages", "expired", "rejected", "outstanding"))).first()
    span = kept["throughput"].agg(F.min("minute"), F.max("minute")).first()
    repeated = _top(kept["duplicates"], "times", ["queue", "kind", "what", "times"])
    sizes = kept["sizes"].groupBy("until").agg(F.sum("messages").alias("messages")).orderBy("until").collect()
    growth = kept["growth"].orderBy("partition", "hour").limit(POINTS_MAX).collect()
    differences = kept["replicas"].orderBy("partition", "lease", "sequence").limit(QUEUES_SHOWN).collect() \
        if "replicas" in kept else []
    bad = [row["queue"] for row in health if row["verdict"] == "STALLED"]
    slow = [row["queue"] for row in health if row["verdict"] == "SLOW"]
    verdict, mark = verdict_of(totals, bad, slow, differences)
    parts = [
        Part("Queues", "How messages ended; rejected ones had no delivery attempt left (for a queue with one app they count "
             "as confirmed: its journal does not tell).", None,
             ["queue", "messages", "confirmed", "expired", "purged", "rejected", "no quorum", "outstanding"], endings,
             "No message was found."),
        Part("Throughput", "Messages that came, by minute; the busiest queues.",
             Chart("Throughput", "messages / min", _series(kept["throughput"], busiest, "in"))),
        Part("Backlog", "Messages that are in a queue at the end of a minute.",
             Chart("Backlog", "messages", _series(kept["backlog"], busiest, "messages"))),
        *_measured(kept),
        Part("Latency", "Seconds from arrival to confirmation. Journals keep whole seconds: 0 means less than one.", None,
             LATENCY_HEADS,
             _top(kept["latency"], "messages", ["queue", "appId", "messages", *gold.PERCENTILE_NAMES, "max"]),
             "No message was confirmed."),
        Part("Consumers", "Over the last ten minutes in which the broker wrote anything.", None,
             ["queue", "backlog", "came", "done", "verdict", "minutes to drain"], health,
             "There is no queue with messages."),
        Part("Sizes", "Stored messages by size in the DATA file, up to so many bytes.",
             Chart("Sizes", "messages", labels=[f"{row['until']:,}" for row in sizes],
                   bars={"messages": [row["messages"] for row in sizes]} if sizes else {})),
        Part("Duplicates", "GUIDs stored more than once, and equal contents of one producer within a minute.", None,
             ["queue", "kind", "what", "times"], repeated, "None."),
        Part("Growth", forecast(growth), None, ["partition", "hour", "records", "bytes of DATA", "file sets"],
             [(row["partition"], f"{row['hour']:%Y-%m-%d %H:%M}", row["records"], row["dataBytes"], row["fileSets"])
              for row in growth[-QUEUES_SHOWN:]], "Nothing was written."),
    ]
    if "replicas" in kept:
        parts.append(Part("Replicas", "Records that are not the same on both nodes; the first of them.", None,
                          ["partition", "lease", "sequence", "what"],
                          [(row["partition"], row["lease"], row["sequence"], row["what"]) for row in differences],
                          "Every record is the same on both nodes."))
    about = f"{source}, {span[0]:%Y-%m-%d %H:%M} to {span[1]:%Y-%m-%d %H:%M} UTC" if span and span[0] else source
    return Page(title, about, verdict, mark, parts)


def _measured(kept: dict[str, DataFrame]) -> list[Part]:
    if "measured" not in kept:
        return []
    return [Part("Measured latency", "Milliseconds from arrival to confirmation, from the histograms that the broker keeps; "
                 "right to an eighth. Without an app: all apps of the queue.", None, LATENCY_HEADS,
                 _top(kept["measured"], "messages", ["queue", "appId", "messages", *gold.PERCENTILE_NAMES, "max"]),
                 "No message was confirmed.")]


def verdict_of(totals: Any, stalled: list[str], slow: list[str], differences: list[Any]) -> tuple[str, str]:
    """One sentence for who reads no further, and how bad it is."""
    said = f"{totals['messages']:,} messages, {totals['outstanding']:,} outstanding"
    if differences:
        return f"Replicas differ: see the last table. {said}.", "bad"
    if stalled:
        return f"{len(stalled)} queue(s) stand still, first of all {stalled[0]}. {said}.", "bad"
    if slow:
        return f"{len(slow)} queue(s) grow faster than they are read, first of all {slow[0]}. {said}.", "warn"
    if totals["rejected"] or totals["expired"]:
        return f"{totals['rejected']:,} messages were rejected, {totals['expired']:,} have expired. {said}.", "warn"
    return f"All is well: {said}.", "good"


def forecast(growth: list[Any]) -> str:
    """What a day of archive costs at the rate of the hours seen."""
    hours = {row["hour"] for row in growth}
    if not hours:
        return ""
    data = sum(row["dataBytes"] for row in growth) / len(hours)
    return (f"At the mean of {len(hours)} hour(s) with traffic, {data / 1e6:,.1f} MB of DATA an hour, a day of archive "
            f"takes {data * 24 / 1e9:,.2f} GB, thirty days {data * 720 / 1e9:,.1f} GB.")
