"""Which node of a cluster a proxy uses as its upstream. A machine without sockets and clock.

A proxy is connected with all members of a cluster and uses one of them, the *active* one, until that one is lost: its
connection is gone, or it says that it is not available any more. Then another one is chosen at once. What is in use is never
left for something better.

```
   UNAVAILABLE   not connected, or it has said so         STARTING    it has said so
   UNKNOWN       connected; it will say how it is         AVAILABLE   may be chosen
   STOPPING      it has said so
```

Nodes of the proxy's own data centre come first. During the first LOCAL_WAIT_S nobody else is chosen; later, and once a node
has been in use, anybody who is available if no node of the own data centre is. Every choice has a *generation* of its own:
what was said in an older one does not count any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bmqtwist.cluster.election_events import Tick, WakeAt
from bmqtwist.wire.cluster_schema import NodeStatus

LOCAL_WAIT_S = 10.0  # for a node of the own data centre, after the start
ANYWHERE = ("", "UNSPECIFIED")  # of the proxy: then all nodes are as near


@dataclass(frozen=True, slots=True)
class Connected:
    """A node is connected. `announces`: it tells proxies how it is."""

    node_id: int
    announces: bool


@dataclass(frozen=True, slots=True)
class Announced:
    """A node has said how it is."""

    node_id: int
    status: NodeStatus


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection of a node is gone."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Use:
    """This node is the upstream from now on."""

    node_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class Lost:
    """This node is the upstream no longer."""

    node_id: int


@dataclass(frozen=True, slots=True)
class NobodyLeft:
    """The upstream is lost, and there is no other."""


SelectorInput = Connected | Announced | Disconnected | Tick
SelectorOutput = Use | Lost | NobodyLeft | WakeAt


class UpstreamSelector:
    """The choice of one proxy. `nodes`: data centre by id; `chance`: a number in [0, 1), drawn at each call. `started`: when
    the nodes were dialled first."""

    def __init__(self, nodes: Mapping[int, str], data_centre: str, chance: Callable[[], float], started: float) -> None:
        near = [node_id for node_id, place in nodes.items() if place == data_centre and data_centre not in ANYWHERE]
        self.local = frozenset(near or nodes)
        self.statuses = dict.fromkeys(sorted(nodes), NodeStatus.E_UNAVAILABLE)
        self.active: int | None = None
        self.generation = 0  # of the present choice, or of the last one
        self._chance, self.started = chance, started
        self._woken = False

    def step(self, now: float, event: SelectorInput) -> list[SelectorOutput]:
        """One input; what follows from it."""
        if not isinstance(event, Tick) and event.node_id in self.statuses:
            self.statuses[event.node_id] = _status(self.statuses[event.node_id], event)
        found: list[SelectorOutput] = []
        lost = self.active
        if lost is not None and self.statuses[lost] is not NodeStatus.E_AVAILABLE:
            self.active = None
            found.append(Lost(lost))
        if self.active is None:
            chosen = self._choice(now)
            if chosen is not None:
                self.active, self.generation = chosen, self.generation + 1
                found.append(Use(chosen, self.generation))
            elif found:
                found.append(NobodyLeft())
            elif not self._woken and self._waits(now):
                self._woken = True
                found.append(WakeAt(self.started + LOCAL_WAIT_S))
        return found

    def _choice(self, now: float) -> int | None:
        available = [node_id for node_id, status in self.statuses.items() if status is NodeStatus.E_AVAILABLE]
        near = [node_id for node_id in available if node_id in self.local]
        if not near and self._waits(now):
            return None
        eligible = near or available
        return eligible[int(self._chance() * len(eligible))] if eligible else None

    def _waits(self, now: float) -> bool:
        """Whether only the own data centre will do."""
        return not self.generation and now < self.started + LOCAL_WAIT_S


def _status(before: NodeStatus, event: Connected | Announced | Disconnected) -> NodeStatus:
    """How a node is after an event."""
    if isinstance(event, Disconnected):
        return NodeStatus.E_UNAVAILABLE
    if isinstance(event, Connected):
        return NodeStatus.E_UNKNOWN if event.announces else NodeStatus.E_AVAILABLE
    return event.status
