"""Choice of the upstream node of a proxy among the members of a cluster. A state machine without sockets and clock.

A proxy connects to all members of a cluster and uses one of them, the *active* one, until its connection is lost or it
announces another status than AVAILABLE; then the proxy chooses another one at once. It never leaves an available node for a
better one. Nodes of the proxy's own data centre come first: during the first LOCAL_WAIT_S seconds the proxy chooses only
these; later, or once a node has been in use, any available node if no local one is. Every choice has a *generation*, a
number; answers of an older generation are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bmqtwist.cluster.election_events import Tick, TickAt
from bmqtwist.wire.cluster_schema import NodeStatus

LOCAL_WAIT_S = 10.0  # wait for a node of the own data centre after the start
ANYWHERE = ("", "UNSPECIFIED")  # data centres of a proxy for which all nodes are local


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """Status of a node: as it announced it, or E_UNAVAILABLE after a lost connection."""

    node_id: int
    status: NodeStatus


@dataclass(frozen=True, slots=True)
class Use:
    """Use this node as the upstream."""

    node_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The upstream node is lost."""

    node_id: int


@dataclass(frozen=True, slots=True)
class NoUpstream:
    """The upstream is lost, and no other node is available."""


SelectorInput = StatusChanged | Tick
SelectorOutput = Use | Lost | NoUpstream | TickAt


class UpstreamSelector:
    """Upstream of one proxy. `nodes`: data centre by node id; `chance`: a random number in [0, 1); `started`: time of the
    first connection attempt, seconds, monotonic."""

    def __init__(self, nodes: Mapping[int, str], data_centre: str, chance: Callable[[], float], started: float) -> None:
        near = [node_id for node_id, place in nodes.items() if place == data_centre and data_centre not in ANYWHERE]
        self.local = frozenset(near or nodes)
        self.statuses = dict.fromkeys(sorted(nodes), NodeStatus.E_UNAVAILABLE)
        self.active: int | None = None
        self.generation = 0  # of the present or last choice
        self._chance, self.started = chance, started
        self._tick_requested = False

    def step(self, now: float, event: SelectorInput) -> list[SelectorOutput]:
        if isinstance(event, StatusChanged) and event.node_id in self.statuses:
            self.statuses[event.node_id] = event.status
        found: list[SelectorOutput] = []
        lost = self.active
        if lost is not None and self.statuses[lost] is not NodeStatus.E_AVAILABLE:
            self.active = None
            found.append(Lost(lost))
        if self.active is None:
            chosen = self._choose(now)
            if chosen is not None:
                self.active, self.generation = chosen, self.generation + 1
                found.append(Use(chosen, self.generation))
            elif found:
                found.append(NoUpstream())
            elif not self._tick_requested and self._is_local_only(now):
                self._tick_requested = True
                found.append(TickAt(self.started + LOCAL_WAIT_S))
        return found

    def _choose(self, now: float) -> int | None:
        available = [node_id for node_id, status in self.statuses.items() if status is NodeStatus.E_AVAILABLE]
        near = [node_id for node_id in available if node_id in self.local]
        if not near and self._is_local_only(now):
            return None
        eligible = near or available
        return eligible[int(self._chance() * len(eligible))] if eligible else None

    def _is_local_only(self, now: float) -> bool:
        """True while only nodes of the own data centre are eligible."""
        return not self.generation and now < self.started + LOCAL_WAIT_S
