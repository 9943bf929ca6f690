"""Which nodes of a cluster are connected, who dials whom, and when it is tried again. A machine without sockets and clock.

The node with the smaller id dials the one with the larger, for ever: at once after the start, later after 1 to 3 s. A proxy
waits longer with each failure. There is one connection for each pair; a second one is refused.

```
   ABSENT      the other node dials, and has not        DIALLING   an attempt is under way
   WAITING     until the next attempt                   CONNECTED  negotiated
```
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from bmqtwist.cluster.election_events import PeerDown, PeerUp, Tick, WakeAt

RETRY_S = 2.0  # of the first delay, which is half of it to one and a half
RETRY_SECONDS_MAX = 30.0  # of a proxy; between members it does not grow, since one that is back is of use once it is dialled
RETRY_AT_ONCE_S = 180.0  # since the last attempt: then the next one needs no delay
PROXY = -1  # instead of a node's id


class LinkState(Enum):
    """What this node has of another one."""

    ABSENT = "waits to be dialled by it"
    WAITING = "dials again after a while"
    DIALLING = "dials"
    CONNECTED = "can speak with it"


@dataclass(frozen=True, slots=True)
class Join:
    """The node has started."""


@dataclass(frozen=True, slots=True)
class LinkFailed:
    """An attempt to connect has come to nothing."""

    node_id: int


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A connection is negotiated."""

    node_id: int


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A negotiated connection is gone."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to this node; a LinkUp or LinkFailed follows."""

    node_id: int


LinkInput = Join | LinkFailed | LinkUp | LinkDown | Tick
LinkOutput = Dial | PeerUp | PeerDown | WakeAt


@dataclass(slots=True)
class Link:
    """To another node. `tried_at`: of the last attempt; `delay`: before the present one, seconds; `due`: of the next one."""

    state: LinkState
    tried_at: float = float("-inf")
    delay: float = 0.0
    due: float = 0.0


class Membership:
    """The links of one node. `members`: ids of all nodes; `chance`: a number in [0, 1), drawn at each call."""

    def __init__(self, node_id: int, members: Collection[int], chance: Callable[[], float]) -> None:
        self.node_id, self.members = node_id, frozenset(members)
        self.links = {other: Link(LinkState.ABSENT) for other in sorted(self.members - {node_id})}
        self._chance = chance
        self._wake: float | None = None
        self._now = 0.0
        self._out: list[LinkOutput] = []

    def dials(self, node_id: int) -> bool:
        """Whether it is this node that connects to the other one."""
        return self.node_id < node_id

    def refusal(self, node_id: int) -> str:
        """Why a connection of whoever says to be that node is refused; empty = it is welcome."""
        link = self.links.get(node_id)
        if node_id == self.node_id:
            return f"{node_id} is the id of this node itself"
        if link is None:
            return f"no node of the cluster has the id {node_id}"
        if self.dials(node_id):
            return f"node {self.node_id} dials node {node_id}, not the other way round"
        if link.state is LinkState.CONNECTED:
            return f"node {node_id} is connected already"
        return ""

    def mismatch(self, dialled: int, found: int) -> str:
        """Why the node that was found at the address of another one is left alone; empty = it is the right one."""
        return "" if dialled == found else f"node {found} is at the address of node {dialled}"

    def step(self, now: float, event: LinkInput) -> list[LinkOutput]:
        """One input; what follows from it."""
        self._now, self._out = now, []
        if isinstance(event, Tick):
            for node_id, link in self.links.items():
                if link.state is LinkState.WAITING and link.due <= now:
                    self._dial(node_id, link)
        elif isinstance(event, Join):
            for node_id, link in self.links.items():
                if link.state is LinkState.ABSENT and self.dials(node_id):
                    self._dial(node_id, link)
        elif event.node_id in self.links:
            link = self.links[event.node_id]
            getattr(self, ACTIONS[link.state][type(event)])(event.node_id, link)
        wake = min((link.due for link in self.links.values() if link.state is LinkState.WAITING), default=None)
        if wake != self._wake:
            self._wake = wake
            self._out.append(WakeAt(wake))
        return self._out

    def _dial(self, node_id: int, link: Link) -> None:
        link.state, link.tried_at = LinkState.DIALLING, self._now
        self._out.append(Dial(node_id))

    def _failed(self, node_id: int, link: Link) -> None:
        if self._now - link.tried_at >= RETRY_AT_ONCE_S:
            link.delay = 0.0
        elif link.delay and self.node_id == PROXY:
            link.delay = min(RETRY_SECONDS_MAX, link.delay + self._chance() * link.delay)
        else:
            link.delay = RETRY_S * (0.5 + self._chance())
        link.state, link.due = LinkState.WAITING, self._now + link.delay

    def _connected(self, node_id: int, link: Link) -> None:
        link.state, link.delay = LinkState.CONNECTED, 0.0
        self._out.append(PeerUp(node_id))

    def _lost(self, node_id: int, link: Link) -> None:
        self._out.append(PeerDown(node_id))
        if self.dials(node_id):
            self._failed(node_id, link)
        else:
            link.state = LinkState.ABSENT

    def _ignore(self, node_id: int, link: Link) -> None:
        """Too late, or of a connection that was refused."""


ACTIONS: dict[LinkState, dict[type, str]] = {
    LinkState.ABSENT: {LinkFailed: "_ignore", LinkUp: "_connected", LinkDown: "_ignore"},
    LinkState.WAITING: {LinkFailed: "_ignore", LinkUp: "_connected", LinkDown: "_ignore"},
    LinkState.DIALLING: {LinkFailed: "_failed", LinkUp: "_connected", LinkDown: "_ignore"},
    LinkState.CONNECTED: {LinkFailed: "_ignore", LinkUp: "_ignore", LinkDown: "_lost"},
}
