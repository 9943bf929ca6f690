"""Context of admin operations: the broker and what is remembered about its node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bmqtwist.admin.tunables import PublishIntervals, Quorum
from bmqtwist.view.node_history import NodeHistory
from bmqtwist.view.snapshot import ProcessState
from bmqtwist.view.statistics import Statistics

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker


@dataclass(frozen=True, slots=True)
class AdminContext:
    """`process`: reads the state of the process; `quorums`: by tunable and cluster; `source`: who asks."""

    broker: Broker
    statistics: Statistics
    history: NodeHistory
    process: Callable[[], ProcessState]
    intervals: PublishIntervals
    quorums: dict[tuple[str, str], Quorum] = field(default_factory=dict)
    source: str = ""
