"""What is made of a broker's statistics in steps, at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bmqtwist.console.prometheus import exposition_in_steps
from bmqtwist.steps import at_once
from bmqtwist.view.prometheus import Family, families_in_steps
from bmqtwist.view.snapshot import BrokerState
from bmqtwist.view.statistics import Source, Statistics
from bmqtwist.view.tables import tables_in_steps, tree_in_steps


def sample(statistics: Statistics, now: float, sources: Iterable[Source]) -> None:
    """Look at every source."""
    at_once(statistics.sampling(now, sources))


def stats_tables(state: BrokerState, statistics: Statistics) -> str:
    """As of `STAT SHOW`."""
    return at_once(tables_in_steps(state, statistics))


def stats_tree(state: BrokerState, statistics: Statistics, *latencies: Any) -> dict[str, Any]:
    """Likewise, in JSON."""
    return at_once(tree_in_steps(state, statistics, *latencies))


def families(state: BrokerState, statistics: Statistics) -> list[Family]:
    """For Prometheus."""
    return at_once(families_in_steps(state, statistics))


def exposition(found: Iterable[Family], prefix: str = "", instance: str = "") -> str:
    """Their text."""
    return at_once(exposition_in_steps(found, prefix, instance))
