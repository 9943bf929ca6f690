"""How far the graceful stop of a broker is, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterProgress:
    """What is left to be done for one cluster. `partitions`: those that are still led here; `leads`: the cluster is, too;
    `seconds_left`: until confirms and answers are waited for no longer."""

    title: str
    partitions: tuple[int, ...]
    leads: bool
    unconfirmed: int
    unanswered: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class StopProgress:
    """`stage`: what is done now; `seconds`: since the stop began; `clients`: applications that are connected."""

    stage: str
    seconds: float
    clients: int
    clusters: tuple[ClusterProgress, ...]
