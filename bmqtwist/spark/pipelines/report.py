"""Report over storage files or an archive, `bmq pipeline report`: Parquet tables and one HTML page.

    TARGET/report.html, *.png
    TARGET/tables/NAME/*.parquet        throughput, backlog, latency, endings, duplicates, sizes, health, growth;
                                        replicas (with --replica), measured (latency, with --statistics)

Whole tables are computed in Spark; the page shows the queues with most messages only. It contains its plots as SVG, without
scripts or external files; the plots are also written as PNG files. Called by `cli/pipeline.py`; the tables are computed in
`spark/tables.py`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from bmqtwist.spark import tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

QUEUES_SHOWN = 20
LINES_SHOWN = 5
POINTS_MAX = 5000
LATENCY_HEADS = ["queue", "app", "messages", "p50", "p90", "p99", "p99.9", "max"]


def build(spark: SparkSession, source: str, replica: str = "", statistics: str = "") -> dict[str, DataFrame]:
    """Return the tables by name. `replica`: storage files of another node, to compare; `statistics`: JSON statistics logs of
    brokers."""
    options: dict[str, Any] = {} if tables.is_archive(source) else {"includeArchive": True}
    records = tables.records(spark, source, [*tables.RECORD_COLUMNS, *tables.OF_MESSAGES], **options)
    written = tables.records(spark, source, ["partition", "fileSet", "time", "dataOffset"], **options)
    lines = tables.lifelines(spark, source, **options).persist()
    throughput = tables.throughput_minute(lines).persist()
    backlog = tables.backlog_minute(throughput)
    found = {"throughput": throughput, "backlog": backlog, "latency": tables.latency(tables.app_lifelines_of(lines)),
             "endings": tables.endings(lines), "duplicates": tables.duplicates(lines, records), "sizes": tables.sizes(lines),
             "health": tables.consumer_health(backlog, throughput), "growth": tables.growth_hour(written)}
    if replica:
        compared = tables.records(spark, replica, [*tables.RECORD_COLUMNS, *tables.OF_MESSAGES], includeArchive=True)
        found["replicas"] = tables.replica_diff(records, compared)
    if statistics:
        found["measured"] = tables.measured_latency(spark, statistics)
    return found


def report(spark: SparkSession, source: str, target: str, replica: str = "", title: str = "Broker report",
           statistics: str = "") -> Path:
    directory = Path(target)
    made = build(spark, source, replica, statistics)
    for name, table in made.items():
        table.write.mode("overwrite").parquet(str(directory / "tables" / name))
    stored = {name: spark.read.parquet(str(directory / "tables" / name)) for name in made}
    path = write(page(stored, source, title), directory)
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


def page(stored: dict[str, DataFrame], source: str, title: str) -> Page:
    endings = _top(stored["endings"], "messages", ["queue", "messages", "confirmed", "expired", "purged", "rejected",
                                                 "noQuorum", "outstanding"])
    health = _top(stored["health"], "backlog", ["queue", "backlog", "in", "out", "verdict", "minutesToDrain"])
    busiest = [row["queue"] for row in endings if row["queue"] is not None][:LINES_SHOWN]
    totals = stored["endings"].agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in (
        "messages", "expired", "rejected", "outstanding"))).first()
    span = stored["throughput"].agg(F.min("minute"), F.max("minute")).first()
    repeated = _top(stored["duplicates"], "times", ["queue", "kind", "what", "times"])
    sizes = stored["sizes"].groupBy("until").agg(F.sum("messages").alias("messages")).orderBy("until").collect()
    growth = stored["growth"].orderBy("partition", "hour").limit(POINTS_MAX).collect()
    differences = stored["replicas"].orderBy("partition", "lease", "sequence").limit(QUEUES_SHOWN).collect() \
        if "replicas" in stored else []
    bad = [row["queue"] for row in health if row["verdict"] == "STALLED"]
    slow = [row["queue"] for row in health if row["verdict"] == "SLOW"]
    verdict, mark = summarize(totals, bad, slow, differences)
    parts = [
        ReportSection("Queues", "Messages by final state. Rejected: delivery attempts used up (in a queue with one app "
                      "counted as confirmed, since its journal does not distinguish them).", None,
                      ["queue", "messages", "confirmed", "expired", "purged", "rejected", "no quorum", "outstanding"],
                      endings, "No messages."),
        ReportSection("Throughput", "Arrived messages per minute; the queues with most messages.",
                      Chart("Throughput", "messages / min", _series(stored["throughput"], busiest, "in"))),
        ReportSection("Backlog", "Messages in the queue at the end of each minute.",
                      Chart("Backlog", "messages", _series(stored["backlog"], busiest, "messages"))),
        *_measured(stored),
        ReportSection("Latency", "Seconds from arrival to confirmation. Journals have whole seconds: 0 is less than one.",
                      None, LATENCY_HEADS,
                      _top(stored["latency"], "messages", ["queue", "appId", "messages", *tables.PERCENTILE_NAMES, "max"]),
                      "No message was confirmed."),
        ReportSection("Consumers", "Over the last ten minutes with traffic.", None,
                      ["queue", "backlog", "arrived", "removed", "verdict", "minutes to drain"], health,
                      "No queues with messages."),
        ReportSection("Sizes", "Stored messages by upper bound of the size in the DATA file, bytes.",
                      Chart("Sizes", "messages", labels=[f"{row['until']:,}" for row in sizes],
                            bars={"messages": [row["messages"] for row in sizes]} if sizes else {})),
        ReportSection("Duplicates", "GUIDs stored more than once, and equal contents of one producer within a minute.", None,
                      ["queue", "kind", "what", "times"], repeated, "None."),
        ReportSection("Growth", forecast(growth), None, ["partition", "hour", "records", "bytes of DATA", "file sets"],
                      [(row["partition"], f"{row['hour']:%Y-%m-%d %H:%M}", row["records"], row["dataBytes"], row["fileSets"])
                       for row in growth[-QUEUES_SHOWN:]], "No records."),
    ]
    if "replicas" in stored:
        parts.append(ReportSection("Replicas", "First records that differ between the nodes.", None,
                                   ["partition", "lease", "sequence", "what"],
                                   [(row["partition"], row["lease"], row["sequence"], row["what"]) for row in differences],
                                   "All records are equal."))
    about = f"{source}, {span[0]:%Y-%m-%d %H:%M} to {span[1]:%Y-%m-%d %H:%M} UTC" if span and span[0] else source
    return Page(title, about, verdict, mark, parts)


def _measured(stored: dict[str, DataFrame]) -> list[ReportSection]:
    if "measured" not in stored:
        return []
    return [ReportSection("Measured latency", "Milliseconds from arrival to confirmation, from the broker's histograms; "
                          "relative error up to 1/8. Rows without an app contain all apps of the queue.", None,
                          LATENCY_HEADS, _top(stored["measured"], "messages",
                                              ["queue", "appId", "messages", *tables.PERCENTILE_NAMES, "max"]),
                          "No message was confirmed.")]


def summarize(totals: Any, stalled: list[str], slow: list[str], differences: list[Any]) -> tuple[str, str]:
    """Return a sentence about the broker, and its mark: good, warn or bad."""
    summary = f"{totals['messages']:,} messages, {totals['outstanding']:,} outstanding"
    if differences:
        return f"Replicas differ: see the last table. {summary}.", "bad"
    if stalled:
        return f"{len(stalled)} queue(s) are stalled, first {stalled[0]}. {summary}.", "bad"
    if slow:
        return f"{len(slow)} queue(s) grow faster than they are consumed, first {slow[0]}. {summary}.", "warn"
    if totals["rejected"] or totals["expired"]:
        return f"{totals['rejected']:,} messages were rejected, {totals['expired']:,} expired. {summary}.", "warn"
    return f"No problems: {summary}.", "good"


def forecast(growth: list[Any]) -> str:
    hours = {row["hour"] for row in growth}
    if not hours:
        return ""
    data = sum(row["dataBytes"] for row in growth) / len(hours)
    return (f"At the mean rate of {len(hours)} hour(s) with traffic, {data / 1e6:,.1f} MB of DATA per hour, the "
            f"archive grows by {data * 24 / 1e9:,.2f} GB per day and {data * 720 / 1e9:,.1f} GB in thirty days.")


# -- the page ------------------------------------------------------------------------------------------------------------

_INK, _GRID = "#444b54", "#d0d7de"
_COLOURS = ("#0969da", "#bf5b04", "#1a7f37", "#8250df", "#cf222e", "#57606a")
_LINES_MAX = 6


@dataclass(slots=True)
class Chart:
    """One plot. `lines`: name -> (x, y); `bars`: name -> heights over `labels`."""

    title: str
    unit: str
    lines: Mapping[str, tuple[Sequence[Any], Sequence[float]]] = field(default_factory=dict)
    labels: Sequence[str] = ()
    bars: Mapping[str, Sequence[float]] = field(default_factory=dict)


def draw(chart: Chart) -> tuple[str, bytes]:
    from matplotlib import dates
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 2.7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for (name, (x, y)), colour in zip(list(chart.lines.items())[:_LINES_MAX], _COLOURS, strict=False):
        axes.plot(x, y, label=name, color=colour, linewidth=1.6, marker="o" if len(x) < 3 else None)
    if chart.lines:
        locator = dates.AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    if chart.bars:
        width = 0.8 / len(chart.bars)
        for number, (name, heights) in enumerate(chart.bars.items()):
            at = [index - 0.4 + width * (number + 0.5) for index in range(len(chart.labels))]
            axes.bar(at, heights, width, label=name, color=_COLOURS[number % len(_COLOURS)])
        axes.set_xticks(range(len(chart.labels)), chart.labels)
    axes.set_ylabel(chart.unit, color=_INK)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=8)
    if len(chart.lines) + len(chart.bars) > 1:
        axes.legend(fontsize=8, frameon=False)
    text, picture = io.StringIO(), io.BytesIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    figure.savefig(picture, format="png", dpi=110)
    svg = text.getvalue()
    return svg[svg.index("<svg"):], picture.getvalue()


_STYLE = """
:root{color-scheme:light dark;--ink:#1f2328;--soft:#57606a;--line:#d0d7de;--back:#fff;--bad:#cf222e;--warn:#9a6700;
--good:#1a7f37}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--back:#0d1117;--bad:#ff7b72;
--warn:#d29922;--good:#3fb950}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:62rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .3rem}p{margin:.3rem 0;color:var(--soft)}
.verdict{font-size:1.05rem;color:var(--ink);border-left:4px solid var(--good);padding:.2rem .8rem;margin:1rem 0}
.verdict.bad{border-color:var(--bad)}.verdict.warn{border-color:var(--warn)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal;overflow-wrap:anywhere}
th{color:var(--soft);font-weight:600}.scroll{overflow-x:auto}
td.bad{color:var(--bad);font-weight:600}td.warn{color:var(--warn);font-weight:600}td.good{color:var(--good)}
figure{margin:.5rem 0;background:#fff;border-radius:6px}figure svg{width:100%;height:auto;display:block}
"""
_MARKS = {"OK": "good", "SLOW": "warn", "STALLED": "bad"}


@dataclass(slots=True)
class ReportSection:
    """Section of the report: text, then a chart, a table, or both. `heads`, `rows`: of the table."""

    title: str
    words: str = ""
    chart: Chart | None = None
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    empty: str = ""  # text instead of a table without rows


@dataclass(slots=True)
class Page:
    """A report. `mark`: good, warn or bad."""

    title: str
    about: str
    verdict: str
    mark: str
    parts: list[ReportSection] = field(default_factory=list)


def _cell(value: Any) -> str:
    mark = _MARKS.get(value, "") if isinstance(value, str) else ""
    if value is None:
        text = "-"
    elif isinstance(value, bool) or not isinstance(value, int | float):
        text = str(value)
    else:
        text = f"{value:,.1f}" if isinstance(value, float) and value != int(value) else f"{int(value):,}"
    return f'<td{f" class={mark}" if mark else ""}>{escape(text)}</td>'


def render(page: Page) -> tuple[str, dict[str, bytes]]:
    """Return (page, its plots as PNG by file name)."""
    pictures: dict[str, bytes] = {}
    out = ["<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
           f"<title>{escape(page.title)}</title><style>{_STYLE}</style>",
           f"<h1>{escape(page.title)}</h1><p>{escape(page.about)}</p>",
           f'<div class="verdict {page.mark}">{escape(page.verdict)}</div>']
    for number, part in enumerate(page.parts):
        out.append(f"<h2>{escape(part.title)}</h2>")
        if part.words:
            out.append(f"<p>{escape(part.words)}</p>")
        if part.chart is not None and (part.chart.lines or part.chart.bars):
            svg, png = draw(part.chart)
            svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>c{number}-", svg)  # unique ids for several plots in one page
            out.append(f'<figure role="img" aria-label="{escape(part.chart.title)}">{svg}</figure>')
            pictures[f"{re.sub('[^a-z0-9]+', '-', part.chart.title.lower())}.png"] = png
        if part.rows:
            head = "".join(f"<th scope=col>{escape(each)}</th>" for each in part.heads)
            body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in part.rows)
            out.append(f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>")
        elif part.empty:
            out.append(f"<p>{escape(part.empty)}</p>")
    return "\n".join(out) + "\n", pictures


def write(page: Page, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    text, pictures = render(page)
    for name, data in pictures.items():
        (directory / name).write_bytes(data)
    path = directory / "report.html"
    path.write_text(text, encoding="utf-8")
    return path
