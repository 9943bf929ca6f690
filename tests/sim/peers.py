"""A test double for the part of a node that speaks with the other nodes of its cluster."""

from __future__ import annotations

from bmqtwist.errors import Category
from bmqtwist.link.peer import PeerSession
from bmqtwist.link.session import Session
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.network import ConnectionEnd
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.fast import EventType, event_header
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity, ClientType, Status

REDIAL_S = 0.1


class PeerDouble:
    """`link.peer.PeerContext` of one node, in all its lives. It dials the node at `dials`, whenever it is not
    connected with it; whoever introduces himself as a broker is taken."""

    def __init__(self, node: SimulatedNode, dials: str = "") -> None:
        self.node, self._dials = node, dials
        self.peers: list[PeerSession] = []
        self.end: ConnectionEnd | None = None  # of the connection that was dialled last
        self.got: list[tuple[EventType, bytes]] = []  # what other nodes sent
        self.dialled = self.failed = 0  # sessions that were negotiated, connections that came to nothing
        node.on_boot = self._begin
        self._begin()

    def send(self, kind: EventType, body: bytes) -> None:
        """One event to whoever is connected."""
        for peer in self.peers:
            peer.send(event(kind, body))
        self.node.turn_due()

    def _begin(self) -> None:
        self.peers = []
        self.node.broker.sessions.peers[CLUSTER] = self
        if self._dials:
            self._dial()

    def _dial(self) -> None:
        self.node.dial(self._dials, self._came)

    def _came(self, end: ConnectionEnd | None) -> None:
        if end is None:
            self._try_again()
            return
        self.end, node = end, self.node
        node.attach(end, node.broker.sessions.dialled(self._dials, self._identity, self, node.local_now))
        node.turn_due()

    def _try_again(self) -> None:
        self.failed += 1
        self.node.at(self.node.simulation.now + REDIAL_S, self._dial)

    @property
    def _identity(self) -> ClientIdentity:
        ours = self.node.broker.clusters[CLUSTER]
        return ClientIdentity(protocol_version=1, sdk_version=999999, client_type=ClientType.E_TCPBROKER,
                              process_name=ours.node_name, pid=1, session_id=1, cluster_name=CLUSTER,
                              cluster_node_id=ours.node_id)

    # -- link.peer.PeerContext -----------------------------------------------------------------------------------

    def admit(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Everybody is welcome."""
        return BrokerResponse(Status(Category.E_SUCCESS, 0, ""), 1, 999999, False, self._identity)

    def connected(self, peer: PeerSession) -> None:
        """Negotiated."""
        self.peers.append(peer)
        self.dialled += peer.dialled

    def received(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        """An event."""
        self.got.append((kind, body))

    def disconnected(self, peer: PeerSession) -> None:
        """A session is over."""
        self.peers.remove(peer)
        if peer.dialled:
            self._try_again()

    def not_connected(self, session: Session) -> None:
        """A connection came to nothing."""
        self._try_again()

    def stop(self) -> None:
        """The broker goes away; its node is told by other means."""


def event(kind: EventType, body: bytes) -> bytes:
    """A whole event."""
    return event_header(kind, len(body)) + body
