"""Connections between the nodes of one cluster, at one of them.

`cluster/membership.py` decides which nodes are dialled and admitted. This module performs its decisions, and passes
connections and events of other nodes to its user. A member with another configuration, or whose versions do not fit
(`versions.py`), is refused on both sides, with an alarm; the refusal stays visible until the node is connected.

`ProxyLinks` are the connections of a proxy, which dials all nodes of the cluster; no node dials a proxy.
`broker/sessions.py` passes them accepted connections, `link/peer.py` their events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, assert_never

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.cluster.election_events import PeerDown, PeerUp, TickAt
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.membership import PROXY, Dial, LinkEvent, Membership
from bmqtwist.config.clusters import ClusterDefinition, ClusterProxyDefinition
from bmqtwist.link.peer import PeerRole, PeerSession
from bmqtwist.link.receipts import ConfirmReceipts
from bmqtwist.link.session import Session
from bmqtwist.link.unauthenticated import address_of
from bmqtwist.link.upstream_batch import UpstreamBatch
from bmqtwist.peers import handshake
from bmqtwist.security.authorization import Action
from bmqtwist.storage.identity import id_text
from bmqtwist.versions import MEMBER_LIST, active_announcement, announced_versions, member_conflict
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity

DUPLICATE_S = 30.0  # for which two brokers must claim one node id before the alarm; a lost connection ends earlier
AWAITED_S = 6.0  # after the start: two connection attempts of the nodes that dial this one


class LinkUser(Protocol):
    """Receiver of connections and events of other nodes."""

    def on_peer_up(self, node_id: int, now: float) -> None:
        """Handle the connection of a node."""

    def on_peer_down(self, node_id: int, now: float) -> None:
        """Handle the loss of a connection."""

    def on_peer_event(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        """Handle one event of a node."""


class ClusterLinks:
    """`link.peer.PeerContext` of one cluster. `user` is set before `start`."""

    user: LinkUser
    receipts: ConfirmReceipts | None = None  # sent to the other members for their CONFIRMs
    role = PeerRole.MEMBER  # of the peers

    def __init__(self, definition: ClusterDefinition | ClusterProxyDefinition, electorate: Electorate,
                 host: handshake.LinkHost) -> None:
        self.definition, self.electorate, self._host = definition, electorate, host
        self.node_id = node_id = electorate.node_id
        self._nodes = {node.id: node for node in definition.nodes}
        self.membership = Membership(node_id, self._nodes, host.loop.performer.chance)
        self._sessions: dict[int, PeerSession] = {}  # negotiated, by node id
        self._dialled: dict[Session, int] = {}  # in negotiation, with the id of the dialled node
        self._logged_failures: set[int] = set()  # nodes whose failed connection was logged
        self._stopped = False
        self._awaited: set[int] = set()  # nodes that have not connected since the start
        self._awaited_until = float("-inf")
        self._refused: dict[int, float] = {}  # node id -> first refusal of another broker during the present connection
        self._alarmed: dict[tuple[int, str], str] = {}  # node id, kind of an alarm about it -> its text
        self.refusals: dict[int, str] = {}  # node id -> reason why its versions do not fit
        self.active_features: Callable[[], Collection[str]] = tuple  # features that the cluster uses

    def start(self, now: float) -> None:
        """Connect to all other nodes; lost connections are established again until `stop`."""
        self._awaited, self._awaited_until = set(self.membership.links), now + AWAITED_S
        self._step(now, LinkEvent.JOIN)

    def awaited_nodes(self, now: float) -> str:
        """Return the names of the nodes that have not connected yet, within AWAITED_S after the start; empty = none."""
        return ", ".join(map(self.name, sorted(self._awaited))) if now < self._awaited_until else ""

    def session(self, node_id: int) -> PeerSession | None:
        """Return the connection with a node, or None."""
        return self._sessions.get(node_id)

    def stop(self) -> None:
        """Stop dialling and admitting nodes."""
        self._stopped = True

    @property
    def _announces_storage(self) -> bool:
        return isinstance(self.definition, ClusterDefinition) and MEMBER_LIST in self._host.identity.versions.features

    def reconnect(self) -> None:
        """Close all connections if they announce the identity of the storage, which has changed; they are dialled again."""
        for peer in list(self._sessions.values()) if self._announces_storage else ():
            peer.session.close("Cluster (%s): %s: the identity of the storage has changed", self.definition.name,
                               peer.session.description)

    def name(self, node_id: int) -> str:
        """Return name and id of a node, as shown in log lines."""
        node = self._nodes.get(node_id)
        return f"[{node.name if node is not None else '?'}, {node_id}]"

    def node_name(self, node_id: int) -> str:
        """Return the name of a node."""
        node = self._nodes.get(node_id)
        return node.name if node is not None else str(node_id)

    def send(self, node_id: int, event: bytes, urgent: bool = True) -> None:
        """Send an event to a node; dropped if it is not connected. Without `urgent` it shares a write with later output."""
        peer = self._sessions.get(node_id)
        if peer is not None:
            peer.send(event, urgent)

    def send_control(self, node_id: int, event: bytes, in_order: bool = False) -> None:
        """Send an event to a node that overtakes data, see `Outbox.control_event`; dropped if it is not connected."""
        peer = self._sessions.get(node_id)
        if peer is not None:
            peer.send_control(event, in_order)

    def puts_control_first(self, node_id: int) -> bool:
        """Return whether a node is connected and has announced CONTROL_FIRST."""
        peer = self._sessions.get(node_id)
        return peer is not None and peer.outbox.lane is not None

    def data_received_at(self, node_id: int) -> float:
        """Return the time at which the last fragment of a node's data arrived; -inf = none."""
        peer = self._sessions.get(node_id)
        return peer.data_received_at if peer is not None else float("-inf")

    def data_sent_at(self, node_id: int) -> float:
        """Return the time at which the last fragment of data was sent to a node; -inf = none."""
        peer = self._sessions.get(node_id)
        return peer.outbox.lane.sent_at if peer is not None and peer.outbox.lane is not None else float("-inf")

    def announced_features(self) -> Sequence[Collection[str]] | None:
        """Return the features that each other member has announced; None while a member is not connected."""
        sessions = [self._sessions.get(node_id) for node_id in self.membership.links]
        found = [announced_versions(peer.session.remote.features).features for peer in sessions if peer is not None]
        return found if len(found) == len(sessions) else None

    def refuse_older_members(self) -> None:
        """Close the connections of members that lack an active feature: it became active after their negotiation."""
        for peer in list(self._sessions.values()):
            conflict = self._incompatibility(peer.session)
            if conflict:
                peer.session.close("#SESSION_NEGOTIATION Cluster (%s): %s: %s", self.definition.name,
                                   peer.session.description, conflict)

    def is_up(self, node_id: int) -> bool:
        """Return whether a node is connected."""
        return node_id in self._sessions

    # -- link.peer.PeerContext -----------------------------------------------------------------------------------

    def admit(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Admit or refuse a broker after its identity."""
        host = self._host
        response = host.make_response(session, identity)
        response.broker_identity = self._introduction(session.remote.session_number)
        response.max_missed_heartbeats = host.configuration.app.network_interfaces.heartbeats.cluster_peer
        reason = "it is stopping" if self._stopped else (  # only an authorized peer raises alarms about nodes
            host.security.broker_refusal(session.authentication.principal, Action.CONNECT_CLUSTER_NODE, self.definition.name)
            or self._accepted_refusal(session, identity.cluster_node_id))
        known = self._sessions.get(identity.cluster_node_id)
        if not reason and known is not None:  # the same process: it has closed this connection, which has not ended here yet
            known.session.close("#PEER_RECONNECTED %s: connects again from '%s'", known.session.description, session.peer)
        if reason:
            handshake.refuse(response, f"Cluster ({self.definition.name}): node {self.name(self.node_id)} refuses: {reason}")
        return response

    def on_connected(self, peer: PeerSession) -> None:
        """Handle a completed negotiation."""
        session = peer.session
        peer.role, peer.upstream_batch = self.role, UpstreamBatch(session.outbox)
        if peer.dialled:
            wanted = self._dialled.pop(session)
            wrong = self._dialled_refusal(wanted, peer)
            if wrong or self._stopped:
                self._step(session.now, LinkEvent.FAILED, wanted)
                session.close("#SESSION_NEGOTIATION Cluster (%s): %s: %s", self.definition.name, session.description,
                              wrong or "this node is stopping")
                return
        host, title = self._host, "ClusterProxy" if self.role is PeerRole.UPSTREAM else "Cluster"
        host.report.info(f"{title} ({self.definition.name}): negotiated with node {self.name(peer.node_id)} [channel: "
                         f"'{session.peer}', userAgent: '{session.remote.identity.user_agent}']")
        if self.role is PeerRole.MEMBER:
            peer.accept_requests(self.receipts if handshake.wants_receipts(session.remote.features) else None)
        self._sessions[peer.node_id] = peer
        self.electorate.announced[peer.node_id] = handshake.announced_storage(session.remote.features)
        self.electorate.configurations[peer.node_id] = handshake.announced_nodes(session.remote.features)
        self._logged_failures.discard(peer.node_id)
        self.refusals.pop(peer.node_id, None)
        self._alarmed = {key: text for key, text in self._alarmed.items() if key[0] != peer.node_id}
        self._step(session.now, LinkEvent.UP, peer.node_id)

    def on_event(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        """Pass an event of a node to the user."""
        if self._sessions.get(peer.node_id) is peer:
            self.user.on_peer_event(peer, kind, specific, body)

    def on_disconnected(self, peer: PeerSession) -> None:
        """Handle the end of a negotiated connection."""
        if self._sessions.get(peer.node_id) is peer:
            del self._sessions[peer.node_id]
            self._refused.pop(peer.node_id, None)
            self._step(peer.session.now, LinkEvent.DOWN, peer.node_id)

    def on_negotiation_failed(self, session: Session) -> None:
        """Handle a dialled connection that ended during negotiation."""
        node_id = self._dialled.pop(session)
        if self.role is PeerRole.MEMBER and session.remote.identity.cluster_name == self.definition.name:
            self._incompatibility(session)  # the other node refused this one: raise the alarm here, too
        if node_id not in self._logged_failures:
            self._logged_failures.add(node_id)
            presented = self._host.security.provider is not None
            self._host.report.warn(
                f"Cluster ({self.definition.name}): no connection to node {self.name(node_id)}: the negotiation with "
                f"'{session.peer}' failed. This node sent {'a' if presented else 'no'} credential; the logs of both nodes "
                "have the reason")
        self._step(session.now, LinkEvent.FAILED, node_id)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _dialled_refusal(self, wanted: int, peer: PeerSession) -> str:
        """Return why a dialled broker is refused; empty if it is the dialled node and compatible."""
        return self.membership.mismatch_reason(wanted, peer.node_id) or self._incompatibility(peer.session)

    def _accepted_refusal(self, session: Session, node_id: int) -> str:
        reason = self.membership.refusal_reason(node_id)
        known = self._sessions.get(node_id)
        if reason and known is not None:
            if handshake.is_same_process(known.session.remote.identity, session.remote.identity):
                return self._incompatibility(session)
            if known.session.channel.last_received > self._refused.setdefault(node_id, session.now) + DUPLICATE_S:
                self._alarm(
                    alarms.DUPLICATE_NODE_ID,
                    node_id, f"two brokers have the identity of node {self.name(node_id)}: '{known.session.peer}', which "
                    f"stays connected, and one at '{address_of(session.peer)}', which is refused")
        return reason or self._incompatibility(session)

    def _alarm(self, kind: AlarmKind, node_id: int, text: str) -> None:
        """Raise an alarm about a node, again only with another text or after a connection of the node."""
        if node_id in self._nodes and self._alarmed.get((node_id, kind.id)) != text:
            self._alarmed[node_id, kind.id] = text
            self._host.report.alarm(kind, f"Cluster ({self.definition.name}): {text}")

    def _incompatibility(self, session: Session) -> str:
        if session.remote.identity.cluster_name != self.definition.name:
            return f"its cluster is '{session.remote.identity.cluster_name}'"
        node_id = session.remote.identity.cluster_node_id
        conflict = member_conflict(self._host.identity.versions, self.active_features(), session.remote.features)
        if conflict:
            if node_id in self._nodes:
                self.refusals[node_id] = conflict
            self._alarm(alarms.NODE_VERSION_DIFFERS, node_id, f"node {self.name(node_id)}: {conflict}. It is refused")
            return conflict
        members = self.electorate.lists[0] if self.electorate.lists else None
        differs = (handshake.configuration_difference(session.remote.features, self.definition, members)
                   if isinstance(self.definition, ClusterDefinition) else "")
        if not differs:
            return self._history_difference(session)
        self._alarm(
            alarms.NODE_CONFIGURATION_DIFFERS,
            node_id, f"node {self.name(node_id)}: {differs}. It is refused: all members need the same definition of the "
            "cluster")
        return differs

    def _history_difference(self, session: Session) -> str:
        """Return why a node with the storage of another cluster is refused; empty if it has none."""
        ours, storage = self.electorate.cluster_id, handshake.announced_storage(session.remote.features)
        node_id = session.remote.identity.cluster_node_id
        if not self.electorate.is_foreign(node_id, storage):
            return ""
        theirs = f"the cluster with the id {id_text(storage.cluster_id)}" if storage.cluster_id else "an unknown cluster"
        text = (f"its storage belongs to {theirs}, that of this node to the cluster with the id {id_text(ours)}: their "
                "messages cannot be merged")
        self._alarm(alarms.CLUSTER_ID_DIFFERS, node_id, f"node {self.name(node_id)} is refused: {text}. Keep one of the two "
                    "histories, and start the nodes of the other one with empty directories")
        return text

    def _introduction(self, session_number: int) -> ClientIdentity:
        definition = self.definition if isinstance(self.definition, ClusterDefinition) else None
        found = handshake.member_identity(self._host.identity, self._host.configuration.app, session_number,
                                          self.definition.name, self.node_id, definition)
        found.features += active_announcement(self.active_features())
        if self._announces_storage:
            own = replace(self.electorate.storage(self.node_id), cluster_id=self.electorate.cluster_id)
            found.features += handshake.storage_feature(own)
        return found

    def _step(self, now: float, event: LinkEvent, node_id: int | None = None) -> None:
        title, report = f"Cluster ({self.definition.name})", self._host.report
        for output in self.membership.step(now, event, node_id):
            match output:
                case Dial():
                    self._dial(output.node_id)
                case TickAt():
                    if output.moment is not None:
                        self._host.loop.timers.at(output.moment, self._tick)
                case PeerUp():
                    self._awaited.discard(output.node_id)
                    report.info(f"{title}: node {self.name(output.node_id)} is connected")
                    self.user.on_peer_up(output.node_id, now)
                case PeerDown():
                    report.warn(f"{title}: node {self.name(output.node_id)} is not connected any more")
                    self.user.on_peer_down(output.node_id, now)
                case _:
                    assert_never(output)

    def _tick(self, now: float) -> None:
        if not self._stopped:
            self._step(now, LinkEvent.DUE)

    def _dial(self, node_id: int) -> None:
        node = self._nodes[node_id]
        host, port = node.dialled or ("", 0)
        failed: Callable[[str, float], None] = partial(self._on_unreachable, node_id)
        self._host.loop.performer.dial(host, port, node.tls, partial(self._on_reached, node_id), failed)

    def _on_reached(self, node_id: int, peer: str, now: float) -> Session:
        session = self._host.add_dialled(peer, self._introduction(1), self, now)
        self._dialled[session] = node_id
        self._step(now, LinkEvent.REACHED, node_id)
        return session

    def _on_unreachable(self, node_id: int, reason: str, now: float) -> None:
        self._host.report.debug(f"Cluster ({self.definition.name}): node {self.name(node_id)} cannot be reached: {reason}")
        self._step(now, LinkEvent.FAILED, node_id)


class ProxyLinks(ClusterLinks):
    """Connections of a proxy with the nodes of a cluster. A node may be a proxy itself, then without a node id."""

    role = PeerRole.UPSTREAM

    def __init__(self, definition: ClusterProxyDefinition, host: handshake.LinkHost) -> None:
        super().__init__(definition, Electorate(PROXY, ()), host)

    def _dialled_refusal(self, wanted: int, peer: PeerSession) -> str:
        if peer.node_id == PROXY:
            peer.node_id = wanted
        return self.membership.mismatch_reason(wanted, peer.node_id)

    def _introduction(self, session_number: int) -> ClientIdentity:
        return handshake.proxy_identity(self._host.identity, self._host.configuration.app, session_number,
                                      self.definition.name, upwards=True)
