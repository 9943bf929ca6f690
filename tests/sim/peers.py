"""Test double of the part of a node that communicates with other nodes of its cluster.

Used by `test_peers.py`, which tests `bmqtwist/link/peer.py`. A scripted upstream node is in `upstreams.py`.
"""

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
    """`link.peer.PeerContext` of one node, in all its runs.

    It dials the address `dials` while it is not connected with it, and admits every broker that connects.
    """

    def __init__(self, node: SimulatedNode, dials: str = "") -> None:
        self.node, self._dials = node, dials
        self.peers: list[PeerSession] = []
        self.end: ConnectionEnd | None = None  # of the last dialled connection
        self.got: list[tuple[EventType, bytes]] = []  # events of other nodes
        self.dialled = self.failed = 0  # negotiated dialled sessions; failed attempts
        node.on_boot = self._on_boot
        self._on_boot()

    def send(self, kind: EventType, body: bytes) -> None:
        """Send one event to all connected peers."""
        for peer in self.peers:
            peer.send(event(kind, body))
        self.node.request_turn()

    def _on_boot(self) -> None:
        self.peers = []
        self.node.broker.sessions.peers[CLUSTER] = self
        if self._dials:
            self._dial()

    def _dial(self) -> None:
        self.node.dial(self._dials, self._on_dialled)

    def _on_dialled(self, end: ConnectionEnd | None) -> None:
        if end is None:
            self._schedule_dial()
            return
        self.end, node = end, self.node
        node.attach(end, node.broker.sessions.add_dialled(self._dials, self._identity, self, node.local_now))
        node.request_turn()

    def _schedule_dial(self) -> None:
        self.failed += 1
        self.node.at(self.node.simulation.now + REDIAL_S, self._dial)

    @property
    def _identity(self) -> ClientIdentity:
        cluster = self.node.broker.clusters[CLUSTER]
        return ClientIdentity(protocol_version=1, sdk_version=999999, client_type=ClientType.E_TCPBROKER,
                              process_name=cluster.node_name, pid=1, session_id=1, cluster_name=CLUSTER,
                              cluster_node_id=cluster.node_id)

    # -- link.peer.PeerContext -----------------------------------------------------------------------------------

    def admit(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Admit every broker."""
        return BrokerResponse(Status(Category.E_SUCCESS, 0, ""), 1, 999999, False, self._identity)

    def on_connected(self, peer: PeerSession) -> None:
        """A session was negotiated."""
        self.peers.append(peer)
        self.dialled += peer.dialled

    def on_event(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        """Store an event of a peer."""
        self.got.append((kind, body))

    def on_disconnected(self, peer: PeerSession) -> None:
        """A session ended; dial again if it was dialled."""
        self.peers.remove(peer)
        if peer.dialled:
            self._schedule_dial()

    def on_negotiation_failed(self, session: Session) -> None:
        """A dialled connection failed before negotiation; dial again."""
        self._schedule_dial()

    def stop(self) -> None:
        """Do nothing: the node closes its connections."""


def event(kind: EventType, body: bytes) -> bytes:
    """Return an event with its header."""
    return event_header(kind, len(body)) + body
