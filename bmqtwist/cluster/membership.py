"""Links of one node to the other nodes of its cluster: connection attempts and retries. A state machine without sockets.

The node with the smaller id dials the node with the larger id: at once after the start, after a failure with a delay of 1 to
3 s. The delay of a proxy grows with each failure, up to 30 s. A second connection of a pair is refused. `TABLE` has the
action for every state of a link and every event. `peers/links.py` calls `Membership.step` and performs the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from bmqtwist.cluster.election_events import PeerDown, PeerUp, TickAt
from bmqtwist.machine import TransitionLog, check, table, to

RETRY_S = 2.0  # the first delay is 0.5 to 1.5 times this
RETRY_SECONDS_MAX = 30.0  # for proxies; the delay between members does not grow, so that a node returns fast
RETRY_AT_ONCE_S = 180.0  # after an attempt that is this old, the next one has no delay
PROXY = -1  # node id of a proxy


class LinkState(Enum):
    """State of a link to another node."""

    ABSENT = "no connection; the other node has to dial"
    WAITING = "no connection; this node dials after the delay"
    DIALLING = "this node is connecting"
    NEGOTIATING = "connected, the negotiation is in progress"
    CONNECTED = "the negotiation is complete"


class LinkEvent(Enum):
    """Event of a link."""

    JOIN = "this node has started"
    DUE = "the delay of a link may have passed"
    REACHED = "an attempt has established a connection"
    FAILED = "an attempt, or its negotiation, has failed"
    UP = "a negotiation is complete"
    DOWN = "a negotiated connection is lost"


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to this node; REACHED or FAILED follows."""

    node_id: int


LinkOutput = Dial | PeerUp | PeerDown | TickAt


@dataclass(slots=True)
class PeerLink:
    """Link to another node. `tried_at`: time of the last attempt; `delay`: seconds; `due`: time of the next attempt."""

    state: LinkState
    tried_at: float = float("-inf")
    delay: float = 0.0
    due: float = 0.0


class Membership:
    """Links of one node, by node id. `members`: ids of all nodes; `chance`: returns a random number in [0, 1)."""

    def __init__(self, node_id: int, members: Collection[int], chance: Callable[[], float]) -> None:
        self.node_id, self.members = node_id, frozenset(members)
        self.links = {other: PeerLink(LinkState.ABSENT) for other in sorted(self.members - {node_id})}
        self.transition_log = TransitionLog()
        self._chance = chance
        self._tick_at: float | None = None
        self._now = 0.0
        self._out: list[LinkOutput] = []

    def is_dialler_of(self, node_id: int) -> bool:
        """True if this node dials the other one."""
        return self.node_id < node_id

    def refusal_reason(self, node_id: int) -> str:
        """Return why a connection with the identity of this node is refused; empty = accept it."""
        link = self.links.get(node_id)
        if node_id == self.node_id:
            return f"{node_id} is the id of this node itself"
        if link is None:
            return f"no node of the cluster has the id {node_id}"
        if self.is_dialler_of(node_id):
            return f"node {node_id} must not dial node {self.node_id}: the node with the smaller id dials"
        if link.state is LinkState.CONNECTED:
            return f"node {node_id} is connected already. If it has restarted: its former connection has not ended here yet"
        return ""

    def mismatch_reason(self, dialled: int, found: int) -> str:
        """Return why a connection is closed whose node is not the dialled one; empty = it is."""
        return "" if dialled == found else f"node {found} is at the address of node {dialled}"

    def step(self, now: float, event: LinkEvent, node_id: int | None = None) -> list[LinkOutput]:
        """Handle an event of the link to a node, or of all links (None); return the outputs."""
        self._now, self._out = now, []
        for each, link in self.links.items():
            if node_id in (None, each):
                before = link.state
                TABLE[before][event].action(self, each, link)
                check(TABLE, before, event, link.state)
                if link.state is not before:
                    self.transition_log.record(now, before.name, link.state.name, f"node {each}", event.name)
        tick_at = min((link.due for link in self.links.values() if link.state is LinkState.WAITING), default=None)
        if tick_at != self._tick_at:
            self._tick_at = tick_at
            self._out.append(TickAt(tick_at))
        return self._out

    def _on_join(self, node_id: int, link: PeerLink) -> None:
        if self.is_dialler_of(node_id):
            self._dial(node_id, link)

    def _on_due(self, node_id: int, link: PeerLink) -> None:
        if link.due <= self._now:
            self._dial(node_id, link)

    def _dial(self, node_id: int, link: PeerLink) -> None:
        link.state, link.tried_at = LinkState.DIALLING, self._now
        self._out.append(Dial(node_id))

    def _on_reached(self, node_id: int, link: PeerLink) -> None:
        link.state = LinkState.NEGOTIATING

    def _on_failed(self, node_id: int, link: PeerLink) -> None:
        if self._now - link.tried_at >= RETRY_AT_ONCE_S:
            link.delay = 0.0
        elif link.delay and self.node_id == PROXY:
            link.delay = min(RETRY_SECONDS_MAX, link.delay + self._chance() * link.delay)
        else:
            link.delay = RETRY_S * (0.5 + self._chance())
        link.state, link.due = LinkState.WAITING, self._now + link.delay

    def _on_up(self, node_id: int, link: PeerLink) -> None:
        link.state, link.delay = LinkState.CONNECTED, 0.0
        self._out.append(PeerUp(node_id))

    def _on_down(self, node_id: int, link: PeerLink) -> None:
        self._out.append(PeerDown(node_id))
        if self.is_dialler_of(node_id):
            self._on_failed(node_id, link)
        else:
            link.state = LinkState.ABSENT

    def _ignore(self, node_id: int, link: PeerLink) -> None:
        """Ignore a late event, or one of a refused connection."""


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
