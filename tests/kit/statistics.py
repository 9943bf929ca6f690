"""Renderings of a broker's statistics, which the broker produces in steps, without interruption.

Used by tests/unit/view and tests/unit/console; the renderings are in `bmqtwist/view/metrics.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from bmqtwist.steps import at_once
from bmqtwist.view.metrics import exposition_in_steps, tables_in_steps, tree_in_steps
from bmqtwist.view.snapshot import BrokerState
from bmqtwist.view.statistics import Source, Statistics


def sample(statistics: Statistics, now: float, sources: Iterable[Source]) -> None:
    """Sample all sources."""
    at_once(statistics.sampling(now, sources))


def stats_tables(state: BrokerState, statistics: Statistics) -> str:
    """Render the tables of `STAT SHOW`."""
    return at_once(tables_in_steps(state, statistics))


def stats_tree(state: BrokerState, statistics: Statistics, *latencies: Any) -> dict[str, Any]:
    """Return the tree of `STAT SHOW` in JSON."""
    return at_once(tree_in_steps(state, statistics, *latencies))


def exposition(state: BrokerState, statistics: Statistics, prefix: str = "", instance: str = "") -> str:
    """Render the metrics in the text format of Prometheus."""
    parts: list[str] = []
    at_once(exposition_in_steps(state, statistics, parts.append, prefix, instance))
    return "".join(parts)


class Family(NamedTuple):
    """A metric with all its samples: (labels, value)."""

    name: str
    kind: str
    samples: list[tuple[dict[str, str], float]]


def families(state: BrokerState, statistics: Statistics) -> list[Family]:
    """Return the metrics in the text for Prometheus, parsed."""
    found: list[Family] = []
    for line in exposition(state, statistics).splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            found.append(Family(name, kind, []))
        else:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', line))
            found[-1].samples.append((labels, float(line.rpartition(" ")[2])))
    return found
