"""Downstream brokers of one cluster: proxies that are connected to this node.

This node is a member of the cluster, or a proxy itself.

Any number of proxies may connect. A proxy uses queues as a client does (`link/peer.py`) and receives this node's status, if
it supports that. `broker/sessions.py` passes it each connection of a proxy; connections of members are in `links.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bmqtwist.cluster.membership import PROXY
from bmqtwist.link.peer import PeerRole, PeerSession
from bmqtwist.link.receipts import ConfirmReceipts
from bmqtwist.link.session import Session
from bmqtwist.peers import handshake
from bmqtwist.report import shown
from bmqtwist.security.authorization import Action
from bmqtwist.wire.cluster_schema import NodeStatus, NodeStatusAdvisory, StopRequest, StopResponse
from bmqtwist.wire.control import ControlMessage, cluster_event, decode_control, encoding_of
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity

ANNOUNCES = ("HA", "BROADCAST_TO_PROXIES")  # feature group and member: the broker sends and accepts status advisories
STOPS = "HA"  # feature group of brokers that support stop requests
STOP_VERSIONS = {"GRACEFUL_SHUTDOWN_V2": 2, "GRACEFUL_SHUTDOWN": 1}  # member -> version of the request, best first
STOP_ANSWER_S = 5.0  # timeout of stop requests of version 2


def stop_version(peer: PeerSession) -> int:
    """Return the version of stop requests that a broker supports. 2: it answers at once, and sends only CONFIRMs from then
    on; 1: it stops consuming, closes its queues once its messages are confirmed, then answers; 0: none."""
    features = peer.session.remote.features.get(STOPS, ())
    return next((version for member, version in STOP_VERSIONS.items() if member in features), 0)


def stop_request(number: int, version: int = 2, cluster: str = "") -> bytes:
    """Return a stop request event; version 2 names no cluster, as in BlazingMQ."""
    return cluster_event(StopRequest(cluster if version == 1 else "", version), number)


def send_stop_requests(peers: Iterable[PeerSession | None]) -> set[int]:
    """Send stop requests of version 2; return the ids of the nodes that will answer."""
    asked = set()
    for number, peer in enumerate(peers, 1):
        if peer is not None and stop_version(peer) == 2:
            asked.add(peer.node_id)
            peer.send(stop_request(number))
    return asked


def answer_stop(peer: PeerSession, message: ControlMessage) -> None:
    """Answer the stop request of another broker."""
    peer.send(cluster_event(StopResponse(message.value.value.cluster_name), message.r_id))


def is_stop_response(specific: int, body: bytes) -> bool:
    """Return whether a control message is a stop response; raises PeerError."""
    message = decode_control(body, encoding_of(specific))
    return message.choice == "clusterMessage" and message.value.choice == "stopResponse"


class Downstreams:
    """`link.peer.PeerContext` of one cluster's proxies. `introduce(session number)`: this node's identity in it;
    `has_alternatives`: proxies may use other nodes of the cluster instead of this one."""

    def __init__(self, name: str, status: NodeStatus, introduce: Callable[[int], ClientIdentity],
                 host: handshake.LinkHost) -> None:
        self.name, self.status = name, status
        self._introduce, self._host = introduce, host
        self.peers: dict[PeerSession, None] = {}
        self.stop_awaited: set[PeerSession] = set()  # have not answered a stop request yet
        self.drains = False  # a proxy supports version 1 only and drains its queues first
        self.has_alternatives = False
        self._leaving: set[PeerSession] = set()  # stop to use this node before they answer the stop request
        self._stopped = False
        self.receipts = ConfirmReceipts(host.loop.call_later)  # a proxy stores nothing; a member replaces this

    def admit(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Admit an authorized broker unless it claims to be a node of the cluster."""
        host = self._host
        response = host.make_response(session, identity)
        response.broker_identity = self._introduce(session.remote.session_number)
        response.max_missed_heartbeats = host.configuration.app.network_interfaces.heartbeats.downstream_broker
        refusal = host.security.broker_refusal(session.authentication.principal, Action.CONNECT_PROXY)
        if refusal:
            handshake.refuse(response, f"Cluster ({self.name}): {refusal}")
        elif self._stopped:
            handshake.refuse(response, f"Cluster ({self.name}): this node is stopping")
        elif identity.cluster_node_id != PROXY:
            handshake.refuse(response, f"Cluster ({self.name}): this node knows no member with the id "
                                     f"{identity.cluster_node_id}; a proxy has the id {PROXY}")
        return response

    def on_connected(self, peer: PeerSession) -> None:
        """Handle the connection of a proxy."""
        peer.role = PeerRole.DOWNSTREAM
        peer.accept_requests(self.receipts if handshake.wants_receipts(peer.session.remote.features) else None)
        self.peers[peer] = None
        self._host.report.info(f"Cluster ({self.name}): proxy '{peer.session.description}' is connected [channel: "
                               f"'{peer.session.peer}', userAgent: '{peer.session.remote.identity.user_agent}']")
        self._host.report.record_event("node", f"proxy {shown(peer.session.description)} is connected", cluster=self.name,
                               about=shown(peer.session.description), status="proxy")
        self._send_status(peer, self.status)

    def on_event(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        """Handle an event that is no client request: a stop response; another event is logged and dropped."""
        session = peer.session
        if kind is EventType.CONTROL and peer in self.stop_awaited and is_stop_response(specific, body):
            self.stop_awaited.discard(peer)
            if peer in self._leaving:
                peer.drop_handles(crashed=False)  # its CONFIRMs and PUTs go to another node now
        elif session.log_limiter.admits(session.now):
            self._host.report.error(f"#PEER_UNEXPECTED_EVENT {session.description}: {kind.name} event of a proxy dropped")

    def on_disconnected(self, peer: PeerSession) -> None:
        """Handle the loss of a connection."""
        self.stop_awaited.discard(peer)
        self._leaving.discard(peer)
        if peer in self.peers:
            del self.peers[peer]
            self._host.report.info(f"Cluster ({self.name}): proxy '{shown(peer.session.description)}' is not connected any "
                                   "more")
            self._host.report.record_event("node", f"proxy {shown(peer.session.description)} is not connected any more",
                                   cluster=self.name, about=shown(peer.session.description), status="proxy gone")

    def on_negotiation_failed(self, session: Session) -> None:
        """Do nothing: this node dials no proxies."""

    def stop(self) -> None:
        """Send every proxy a stop request: it sends no more PUTs to this node. If it can, it uses another node from then on,
        and receives nothing more from this one."""
        self._stopped = True
        for number, peer in enumerate(self.peers, 1):
            version = stop_version(peer)
            if version == 2 and self.has_alternatives and self._accepts_statuses(peer):
                self._leaving.add(peer)
                peer.stop_deliveries(broadcasts=True)
                self._send_status(peer, NodeStatus.E_STOPPING)
            if version:
                self.stop_awaited.add(peer)
                self.drains = self.drains or version == 1
                peer.send(stop_request(number, version, self.name))

    def announce_unavailable(self) -> None:
        """Report to proxies that this node closes its connections."""
        self.announce(NodeStatus.E_UNAVAILABLE)

    def announce(self, status: NodeStatus) -> None:
        """Set this node's status and report it to the proxies. A node that is cut off from the cluster closes their
        connections, so that they use another upstream, and receive no more messages from this node."""
        if status is not self.status:
            is_cut_off = self.status is NodeStatus.E_AVAILABLE and status is NodeStatus.E_STARTING
            self.status = status
            for peer in list(self.peers):
                self._send_status(peer, status)
                if is_cut_off:
                    peer.session.close("#PROXY_DROPPED Cluster (%s): %s: this node is cut off from the leader and a primary",
                                       self.name, peer.session.description)

    def _accepts_statuses(self, peer: PeerSession) -> bool:
        group, member = ANNOUNCES
        return member in peer.session.remote.features.get(group, ())

    def _send_status(self, peer: PeerSession, status: NodeStatus) -> None:
        if self._accepts_statuses(peer):
            peer.send(cluster_event(NodeStatusAdvisory(status)))
