"""Links of one node with the other nodes of its cluster: who dials whom, and when again. A machine without sockets.

The node with the smaller id dials the one with the larger, for ever: at once after the start, later after 1 to 3 s. A proxy
waits longer with each failure. There is one connection for each pair; a second one is refused. `TABLE` says for every state
of a link and every event what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from bmqtwist.cluster.election_events import PeerDown, PeerUp, TickAt
from bmqtwist.machine import TransitionLog, check, table, to

RETRY_S = 2.0  # of the first delay, which is half of it to one and a half
RETRY_SECONDS_MAX = 30.0  # of a proxy; between members it does not grow, since one that is back is of use once it is dialled
RETRY_AT_ONCE_S = 180.0  # since the last attempt: then the next one needs no delay
PROXY = -1  # instead of a node's id


class LinkState(Enum):
    """What this node has of another one."""

    ABSENT = "the other node dials, and has not yet"
    WAITING = "until the next attempt"
    DIALLING = "an attempt is in progress"
    NEGOTIATING = "connected, and not negotiated yet"
    CONNECTED = "negotiated"


class LinkEvent(Enum):
    """What happens to a link."""

    JOIN = "the node has started"
    DUE = "it is time for the next attempt"
    REACHED = "an attempt has led to a connection"
    FAILED = "an attempt, or its negotiation, has failed"
    UP = "a connection is negotiated"
    DOWN = "a negotiated connection is gone"


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to this node; LinkEvent.REACHED or FAILED follows."""

    node_id: int


LinkOutput = Dial | PeerUp | PeerDown | TickAt


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
        self.transition_log = TransitionLog()
        self._chance = chance
        self._tick_at: float | None = None
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

    def step(self, now: float, event: LinkEvent, node_id: int | None = None) -> list[LinkOutput]:
        """One event of a link, None = of all links; what follows from it."""
        self._now, self._out = now, []
        for each, link in self.links.items():
            if node_id in (None, each):
                before = link.state
                TABLE[before][event].action(self, each, link)
                check(TABLE, before, event, link.state)
                if link.state is not before:
                    self.transition_log.note(now, before.name, link.state.name, f"node {each}", event.name)
        tick_at = min((link.due for link in self.links.values() if link.state is LinkState.WAITING), default=None)
        if tick_at != self._tick_at:
            self._tick_at = tick_at
            self._out.append(TickAt(tick_at))
        return self._out

    def _on_join(self, node_id: int, link: Link) -> None:
        if self.dials(node_id):
            self._dial(node_id, link)

    def _on_due(self, node_id: int, link: Link) -> None:
        if link.due <= self._now:
            self._dial(node_id, link)

    def _dial(self, node_id: int, link: Link) -> None:
        link.state, link.tried_at = LinkState.DIALLING, self._now
        self._out.append(Dial(node_id))

    def _on_reached(self, node_id: int, link: Link) -> None:
        link.state = LinkState.NEGOTIATING

    def _on_failed(self, node_id: int, link: Link) -> None:
        if self._now - link.tried_at >= RETRY_AT_ONCE_S:
            link.delay = 0.0
        elif link.delay and self.node_id == PROXY:
            link.delay = min(RETRY_SECONDS_MAX, link.delay + self._chance() * link.delay)
        else:
            link.delay = RETRY_S * (0.5 + self._chance())
        link.state, link.due = LinkState.WAITING, self._now + link.delay

    def _on_up(self, node_id: int, link: Link) -> None:
        link.state, link.delay = LinkState.CONNECTED, 0.0
        self._out.append(PeerUp(node_id))

    def _on_down(self, node_id: int, link: Link) -> None:
        self._out.append(PeerDown(node_id))
        if self.dials(node_id):
            self._on_failed(node_id, link)
        else:
            link.state = LinkState.ABSENT

    def _ignore(self, node_id: int, link: Link) -> None:
        """Too late, or of a connection that was refused."""


S, E, M = LinkState, LinkEvent, Membership
TABLE = table(LinkState, LinkEvent, {
    S.ABSENT: dict.fromkeys(E, to(M._ignore)) | {E.JOIN: to(M._on_join, S.DIALLING), E.UP: to(M._on_up, S.CONNECTED)},
    S.WAITING: dict.fromkeys(E, to(M._ignore)) | {
        E.DUE: to(M._on_due, S.DIALLING), E.UP: to(M._on_up, S.CONNECTED)},
    S.DIALLING: dict.fromkeys(E, to(M._ignore)) | {
        E.REACHED: to(M._on_reached, S.NEGOTIATING), E.FAILED: to(M._on_failed, S.WAITING), E.UP: to(M._on_up, S.CONNECTED)},
    S.NEGOTIATING: dict.fromkeys(E, to(M._ignore)) | {
        E.FAILED: to(M._on_failed, S.WAITING), E.UP: to(M._on_up, S.CONNECTED)},
    S.CONNECTED: dict.fromkeys(E, to(M._ignore)) | {E.DOWN: to(M._on_down, S.WAITING, S.ABSENT)},
})
