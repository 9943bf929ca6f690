"""Availability of the members of a cluster: the status that each member reports, and this node's own.

A member is AVAILABLE when all its partitions are healed and each partition has an active primary. It reports changes to
the other members, and to proxies, which choose their upstream by them; a stopping member reports that it stops. To
members it also reports why it cannot be leader or primary (`unable`), and to how many members it is connected
(`reach`). The statuses of two members decide which message types one may send to the other (`cluster/gates.py`). The
statuses are declared in `wire/cluster_schema.py`. `dispatch.py` passes it the messages of members,
`partition_runner.py` sets this node's own status, `disk_health.py` its ability.
"""

from __future__ import annotations

from collections.abc import Callable

from bmqtwist.cluster.gates import CLOSED, GATES, Gates
from bmqtwist.config.clusters import ClusterDefinition
from bmqtwist.link.peer import PeerSession
from bmqtwist.peers.downstreams import answer_stop, send_stop_requests
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import Report, shown
from bmqtwist.wire.cluster_schema import NodeStatus, NodeStatusAdvisory
from bmqtwist.wire.control import ControlMessage, cluster_event

REASON_CHARS_MAX = 300  # shown of a reason that a member reports
_STOPPING = (NodeStatus.E_STOPPING, NodeStatus.E_UNAVAILABLE)
_MEANS = {NodeStatus.E_UNKNOWN: "is connected", NodeStatus.E_STARTING: "is starting: not all of its partitions are healed",
          NodeStatus.E_AVAILABLE: "is available", NodeStatus.E_STOPPING: "reports that it stops",
          NodeStatus.E_UNAVAILABLE: "is down: it has stopped, or the connection is lost"}


class NodeStatuses:
    """Statuses of one cluster's members. `on_changed()`: a status has changed; `announce_to_proxies(status)`: report this
    node's status to its proxies."""

    def __init__(self, definition: ClusterDefinition, node_id: int, links: ClusterLinks, report: Report) -> None:
        self.name, self.node_id, self._links, self._report = definition.name, node_id, links, report
        self._title = f"Cluster ({definition.name})"
        self.members = [node.id for node in definition.nodes]
        self.own = NodeStatus.E_STARTING
        self.other_nodes = dict.fromkeys([each for each in self.members if each != node_id], NodeStatus.E_UNAVAILABLE)
        self._stopping: set[int] = set()  # members that reported that they stop
        self.unable: dict[int, str] = {}  # node -> the reason why it cannot be leader or primary, this node included
        self._reach: dict[int, int] = {}  # node -> number of members that it is connected to, itself included
        self.on_changed: Callable[[], None] = lambda: None
        self.announce_to_proxies: Callable[[NodeStatus], None] = lambda status: None
        self._usable = True  # by proxies
        self.stop_awaited: set[int] = set()  # members that have not answered a stop request yet

    def on_connected(self, node_id: int) -> None:
        """Handle a connection: the node's status is unknown until it reports it; it receives this node's."""
        self._set(node_id, NodeStatus.E_UNKNOWN)
        self._send_status(node_id)

    def on_disconnected(self, node_id: int) -> None:
        """Handle the loss of a connection."""
        self._stopping.discard(node_id)
        self._reach.pop(node_id, None)
        self.unable.pop(node_id, None)
        self._set(node_id, NodeStatus.E_UNAVAILABLE)

    def on_advisory(self, node_id: int, advisory: NodeStatusAdvisory) -> None:
        """Handle the report of a node."""
        unable, reach = shown(advisory.unable or "", REASON_CHARS_MAX), advisory.reach
        changed = unable != self.unable.get(node_id, "") or reach != self._reach.get(node_id)
        self._set_unable(node_id, unable)
        if reach is not None:
            self._reach[node_id] = reach
        self._on_status(node_id, advisory.status)
        if changed:
            self.on_changed()

    def _on_status(self, node_id: int, status: NodeStatus) -> None:
        if status in _STOPPING:
            self._stopping.add(node_id)
        self._set(node_id, status)

    def ask_to_stop(self) -> None:
        """Ask the other members to send no more messages to this node, which stops."""
        self.stop_awaited |= send_stop_requests(map(self._links.session, self.other_nodes))

    def on_stop_request(self, peer: PeerSession, message: ControlMessage) -> None:
        """Handle a stop request: this node sends no more messages to that member."""
        peer.stop_deliveries()
        if self.other_nodes[peer.node_id] is not NodeStatus.E_UNAVAILABLE:
            self._on_status(peer.node_id, NodeStatus.E_STOPPING)
        answer_stop(peer, message)

    def _set(self, node_id: int, status: NodeStatus) -> None:
        before = self.other_nodes[node_id]
        if before is not status:
            self.other_nodes[node_id] = status
            self._report.info(f"{self._title}: node {self._links.name(node_id)}: {before.name} -> {status.name}")
            name = self._links.node_name(node_id)
            self._report.record_event("node", f"node {name} {_MEANS[status]}", about=name, before=before.name,
                                      status=status.name)
            if NodeStatus.E_UNAVAILABLE in (before, status):
                self._report_status()  # the reach of this node has changed
            self.on_changed()

    def set_own(self, status: NodeStatus) -> None:
        """Set and report this node's status. A stopping node stays so."""
        if status is self.own or self.is_stopping and status not in _STOPPING:
            return
        self._report.info(f"{self._title}: Transitioning to {status.name.removeprefix('E_')}.")
        self._report.record_event("node", f"this node {_MEANS[status]}", before=self.own.name, status=status.name)
        self.own = status
        self._report_status()
        self.announce_to_proxies(status)
        self.on_changed()

    def set_own_unable(self, reason: str) -> None:
        """Set and report why this node cannot be leader or primary; "" = it can."""
        if reason != self.unable.get(self.node_id, ""):
            self._set_unable(self.node_id, reason)
            self._report_status()
            self.on_changed()

    def _set_unable(self, node_id: int, reason: str) -> None:
        if bool(reason) is not (node_id in self.unable):
            name = self._links.node_name(node_id)
            text = f"node {name} {reason}: it hands its roles over" if reason else f"node {name} can write again"
            self._report.info(f"{self._title}: {text}")
            self._report.record_event("node", text, about=name, reason=reason)
        peer = self._links.session(node_id)
        if peer is not None:
            peer.can_store = not reason
        if reason:
            self.unable[node_id] = reason
        else:
            self.unable.pop(node_id, None)

    def set_usable_by_proxies(self, usable: bool) -> None:
        """Report to proxies whether this node can serve them; not while it is cut off from leader and primary."""
        if self.own is NodeStatus.E_AVAILABLE and usable is not self._usable:
            self._usable = usable
            self._report.info(f"{self._title}: reporting to proxies: this node is {'' if usable else 'not '}available")
            self.announce_to_proxies(self.own if usable else NodeStatus.E_STARTING)

    def status_of(self, node_id: int) -> NodeStatus:
        """Return the status of a member."""
        return self.own if node_id == self.node_id else self.other_nodes[node_id]

    def reach_of(self, node_id: int) -> int:
        """Return the number of members that a node is connected to, itself included; a majority if it does not report it."""
        if node_id == self.node_id:
            return 1 + sum(status is not NodeStatus.E_UNAVAILABLE for status in self.other_nodes.values())
        return self._reach.get(node_id, self.majority)

    @property
    def majority(self) -> int:
        return len(self.members) // 2 + 1

    @property
    def able_other_nodes(self) -> list[int]:
        """The other nodes that are connected, do not stop, and can be leader or primary."""
        return [node_id for node_id in self.other_nodes if node_id not in self.unable and self.is_staying(node_id)]

    @property
    def is_stopping(self) -> bool:
        """True once this node has begun to stop."""
        return self.own in _STOPPING

    def is_staying(self, node_id: int) -> bool:
        """Return whether another node is connected and has not reported that it stops."""
        return self._links.is_up(node_id) and node_id not in self._stopping

    def gates(self, node_id: int) -> Gates:
        """Return the kinds of messages that may be sent to a node."""
        return GATES.get((self.own, self.other_nodes[node_id]), CLOSED)

    def _send_status(self, node_id: int) -> None:
        self._links.send(node_id, cluster_event(NodeStatusAdvisory(
            self.own, self.unable.get(self.node_id), self.reach_of(self.node_id))))

    def _report_status(self) -> None:
        for node_id in self.other_nodes:
            self._send_status(node_id)
