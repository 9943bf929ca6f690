"""The page of a report: one HTML file with its plots inside, as SVG, for a person who asks what the broker did; the plots as
PNG files beside it. No network, no script.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

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
    """(SVG element, PNG file)."""
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
class Part:
    """A section: some words, a plot, a table."""

    title: str
    words: str = ""
    chart: Chart | None = None
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    empty: str = ""  # what stands there instead of a table without rows


@dataclass(slots=True)
class Page:
    """A report. `mark`: good, warn or bad."""

    title: str
    about: str
    verdict: str
    mark: str
    parts: list[Part] = field(default_factory=list)


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
    """(the page, its plots as PNG files by name)."""
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
            svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>c{number}-", svg)  # names of several plots in one page
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
    """`report.html` and the plots below a directory; the path of the page."""
    directory.mkdir(parents=True, exist_ok=True)
    text, pictures = render(page)
    for name, data in pictures.items():
        (directory / name).write_bytes(data)
    path = directory / "report.html"
    path.write_text(text, encoding="utf-8")
    return path
