"""Plots of a report as SVG inside the page, and as PNG files beside it. No network, no script."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
