"""How the members of a cluster are, as each of them says, and what this one says of itself.

A member is AVAILABLE from the moment when all its partitions are healed and each partition has an active primary. It says
so to the other members and to proxies, which choose by it; and it says when it goes.
"""

from __future__ import annotations

from collections.abc import Callable

from bmqtwist.cluster.gates import CLOSED, GATES, Gates
from bmqtwist.config.clusters import ClusterDefinition
from bmqtwist.link.peer import PeerSession
from bmqtwist.peers.downstreams import answer_stop, ask_to_stop
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import Report
from bmqtwist.wire.cluster_schema import NodeStatus, NodeStatusAdvisory
from bmqtwist.wire.control import ControlMessage, cluster_event

_GOING = (NodeStatus.E_STOPPING, NodeStatus.E_UNAVAILABLE)
_MEANS = {NodeStatus.E_UNKNOWN: "is connected", NodeStatus.E_STARTING: "is starting: something of it is not healed",
          NodeStatus.E_AVAILABLE: "is available", NodeStatus.E_STOPPING: "stops, as it says",
          NodeStatus.E_UNAVAILABLE: "is down: it has stopped, or its connection is lost"}


class NodeStatuses:
    """Of one cluster. `changed()`: a status is another one now. `announce_to_proxies`: they are told of ours."""

    def __init__(self, definition: ClusterDefinition, node_id: int, links: ClusterLinks, report: Report) -> None:
        self.name, self.node_id, self._links, self._report = definition.name, node_id, links, report
        self._title = f"Cluster ({definition.name})"
        self.members = [node.id for node in definition.nodes]
        self.own = NodeStatus.E_STARTING
        self.others = dict.fromkeys([each for each in self.members if each != node_id], NodeStatus.E_UNAVAILABLE)
        self._going: set[int] = set()  # they have said so
        self.changed: Callable[[], None] = lambda: None
        self.announce_to_proxies: Callable[[NodeStatus], None] = lambda status: None
        self._usable = True  # for proxies
        self.stop_awaited: set[int] = set()  # members that we have told that we go, and that have not answered

    def up(self, node_id: int) -> None:
        """A node is connected: it will say how it is, and is told how we are."""
        self._set(node_id, NodeStatus.E_UNKNOWN)
        self._tell(node_id)

    def down(self, node_id: int) -> None:
        """A node is not connected any more."""
        self._going.discard(node_id)
        self._set(node_id, NodeStatus.E_UNAVAILABLE)

    def announced(self, node_id: int, status: NodeStatus) -> None:
        """A node has said how it is."""
        if status in _GOING:
            self._going.add(node_id)
        self._set(node_id, status)

    def ask_to_stop(self) -> None:
        """This node goes: the others are to send it nothing more."""
        self.stop_awaited |= ask_to_stop(map(self._links.session, self.others))

    def asked_to_stop(self, peer: PeerSession, message: ControlMessage) -> None:
        """A member goes: it is sent nothing more."""
        peer.stop_deliveries()
        if self.others[peer.node_id] is not NodeStatus.E_UNAVAILABLE:
            self.announced(peer.node_id, NodeStatus.E_STOPPING)
        answer_stop(peer, message)

    def _set(self, node_id: int, status: NodeStatus) -> None:
        before = self.others[node_id]
        if before is not status:
            self.others[node_id] = status
            self._report.info(f"{self._title}: node {self._links.name(node_id)}: {before.name} -> {status.name}")
            name = self._links.node_name(node_id)
            self._report.note("node", f"node {name} {_MEANS[status]}", about=name, before=before.name, status=status.name)
            self.changed()

    def become(self, status: NodeStatus) -> None:
        """We are different from now on; who goes does not come back."""
        if status is self.own or self.is_stopping and status not in _GOING:
            return
        self._report.info(f"{self._title}: Transitioning to {status.name.removeprefix('E_')}.")
        self._report.note("node", f"this node {_MEANS[status]}", before=self.own.name, status=status.name)
        self.own = status
        for node_id in self.others:
            self._tell(node_id)
        self.announce_to_proxies(status)
        self.changed()

    def set_usable_by_proxies(self, usable: bool) -> None:
        """Whether proxies are served as well here as elsewhere."""
        if self.own is NodeStatus.E_AVAILABLE and usable is not self._usable:
            self._usable = usable
            self._report.info(f"{self._title}: proxies are told that this node is {'' if usable else 'not '}available")
            self.announce_to_proxies(self.own if usable else NodeStatus.E_STARTING)

    def status(self, node_id: int) -> NodeStatus:
        """How a member is."""
        return self.own if node_id == self.node_id else self.others[node_id]

    @property
    def is_stopping(self) -> bool:
        """Whether this node has begun to stop."""
        return self.own in _GOING

    def stays(self, node_id: int) -> bool:
        """Whether another node is connected, and has not said that it goes."""
        return self._links.is_up(node_id) and node_id not in self._going

    def gates(self, node_id: int) -> Gates:
        """What a node may be sent."""
        return GATES.get((self.own, self.others[node_id]), CLOSED)

    def _tell(self, node_id: int) -> None:
        self._links.send(node_id, cluster_event(NodeStatusAdvisory(self.own)))
