"""Choice of the upstream node of a proxy among the members of a cluster. A state machine without sockets and clock.

A proxy connects to all members of a cluster and uses one of them, the *active* one, until its connection is lost or it
announces another status than AVAILABLE; then the proxy chooses another one at once. It never leaves an available node for a
better one. Nodes of the proxy's own data centre come first: during the first LOCAL_WAIT_S seconds the proxy chooses only
these. Later, or once a node has been in use, it chooses any available node if no local one is available. Every choice has a
*generation*, a number; answers of an older generation are ignored.

`relay/proxy.py` calls `UpstreamSelector.step` and performs the outputs. `streams.py` has the queues that are open upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from bmqtwist.cluster.election_events import Tick, TickAt
from bmqtwist.machine import TransitionLog, check, table, to
from bmqtwist.wire.cluster_schema import NodeStatus

LOCAL_WAIT_S = 10.0  # wait for a node of the own data centre after the start
ANYWHERE = ("", "UNSPECIFIED")  # data centres of a proxy for which all nodes are local


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """Status of a node: as it announced it, or E_UNAVAILABLE after a lost connection."""

    node_id: int
    status: NodeStatus


@dataclass(frozen=True, slots=True)
class UseNode:
    """Use this node as the upstream."""

    node_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Stop using this node: its connection is lost, or it is no longer AVAILABLE."""

    node_id: int


@dataclass(frozen=True, slots=True)
class NoUpstream:
    """The upstream is lost, and no other node is available."""


SelectorInput = StatusChanged | Tick
SelectorOutput = UseNode | NodeLost | NoUpstream | TickAt


class SelectorState(Enum):
    """State of the choice."""

    INITIAL = "no event yet"
    LOCAL_ONLY = "no node has been in use, and only nodes of the own data centre are eligible"
    SELECTED = "a node is in use"
    NONE = "no node is available"


class UpstreamSelector:
    """Upstream of one proxy. `nodes`: data centre by node id; `chance`: a random number in [0, 1); `started`: time of the
    first connection attempt, seconds, monotonic."""

    def __init__(self, nodes: Mapping[int, str], data_centre: str, chance: Callable[[], float], started: float) -> None:
        near = [node_id for node_id, place in nodes.items() if place == data_centre and data_centre not in ANYWHERE]
        self.local = frozenset(near or nodes)
        self.statuses = dict.fromkeys(sorted(nodes), NodeStatus.E_UNAVAILABLE)
        self.state = SelectorState.INITIAL
        self.active: int | None = None
        self.generation = 0  # of the present or last choice
        self.transition_log = TransitionLog()
        self._chance, self.started = chance, started
        self._outputs: list[SelectorOutput] = []

    def step(self, now: float, event: SelectorInput) -> list[SelectorOutput]:
        """Process an event at `now`, seconds, monotonic; return the outputs in order."""
        if isinstance(event, StatusChanged) and event.node_id in self.statuses:
            self.statuses[event.node_id] = event.status
        before, kind = self.state, type(event)
        self._outputs = outputs = list[SelectorOutput]()
        TABLE[before][kind].action(self, now)
        check(TABLE, before, kind, self.state)
        if self.state is not before:
            cause = f"node {event.node_id} is {event.status.name}" if isinstance(event, StatusChanged) else "time"
            self.transition_log.record(now, before.name, self.state.name, cause, kind.__name__)
        return outputs

    def _choose(self, now: float) -> None:
        """Choose an eligible node; until LOCAL_WAIT_S after the start only local ones are eligible for the first choice."""
        local_only = not self.generation and now < self.started + LOCAL_WAIT_S
        available = [node_id for node_id, status in self.statuses.items() if status is NodeStatus.E_AVAILABLE]
        near = [node_id for node_id in available if node_id in self.local]
        eligible = near if near or local_only else available
        if eligible:
            self.active, self.generation = eligible[int(self._chance() * len(eligible))], self.generation + 1
            self.state = SelectorState.SELECTED
            self._outputs.append(UseNode(self.active, self.generation))
        elif not local_only:
            self.state = SelectorState.NONE
        elif self.state is SelectorState.INITIAL:
            self.state = SelectorState.LOCAL_ONLY
            self._outputs.append(TickAt(self.started + LOCAL_WAIT_S))

    def _replace_lost(self, now: float) -> None:
        """Replace the node in use if it is not available any more."""
        if self.active is not None and self.statuses[self.active] is not NodeStatus.E_AVAILABLE:
            self._outputs.append(NodeLost(self.active))
            self.active = None
            self._choose(now)
            if self.active is None:
                self._outputs.append(NoUpstream())

    def _ignore(self, now: float) -> None:
        """Ignore a tick: the wait for a local node has ended."""


_S = SelectorState
TABLE = table(SelectorState, (StatusChanged, Tick), {
    _S.INITIAL: dict.fromkeys((StatusChanged, Tick), to(UpstreamSelector._choose, _S.LOCAL_ONLY, _S.SELECTED, _S.NONE)),
    _S.LOCAL_ONLY: dict.fromkeys((StatusChanged, Tick), to(UpstreamSelector._choose, _S.SELECTED, _S.NONE)),
    _S.SELECTED: {StatusChanged: to(UpstreamSelector._replace_lost, _S.NONE), Tick: to(UpstreamSelector._ignore)},
    _S.NONE: {StatusChanged: to(UpstreamSelector._choose, _S.SELECTED), Tick: to(UpstreamSelector._ignore)},
})
