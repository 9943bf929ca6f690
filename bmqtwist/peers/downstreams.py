"""The brokers behind us: proxies of a cluster that we are a member or a proxy of.

Any number of them may connect, whatever they are. Each uses queues as a client does (`link/peer.py`), and is told how
we are, if it listens to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bmqtwist.cluster.membership import PROXY
from bmqtwist.link.peer import PeerRole, PeerSession
from bmqtwist.link.receipts import ConfirmReceipts
from bmqtwist.link.session import Session
from bmqtwist.peers import welcome
from bmqtwist.report import shown
from bmqtwist.security.authorization import Action
from bmqtwist.wire.cluster_schema import NodeStatus, NodeStatusAdvisory, StopRequest, StopResponse
from bmqtwist.wire.control import ControlMessage, cluster_event, decode_control, encoding_of
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity

ANNOUNCES = ("HA", "BROADCAST_TO_PROXIES")  # group and member of the features of a proxy that listens, and of who tells


STOPS = "HA"  # group of the features of who understands a stop request
STOP_VERSIONS = {"GRACEFUL_SHUTDOWN_V2": 2, "GRACEFUL_SHUTDOWN": 1}  # member of that group -> what is asked for, best first
STOP_ANSWER_S = 5.0  # that are waited for the answers to stop requests of version 2


def stop_version(peer: PeerSession) -> int:
    """How another broker can be told that we stop: 2 = it sends nothing more here but CONFIRMs, and says so at once; 1 = it
    asks for no more messages, closes its queues here when it has confirmed what it has, and then says so; 0 = not at all."""
    told = peer.session.remote.features.get(STOPS, ())
    return next((version for member, version in STOP_VERSIONS.items() if member in told), 0)


def stop_request(number: int, version: int = 2, cluster: str = "") -> bytes:
    """We go away. With version 2 the original names no cluster."""
    return cluster_event(StopRequest(cluster if version == 1 else "", version), number)


def ask_to_stop(peers: Iterable[PeerSession | None]) -> set[int]:
    """We go away: the nodes of these connections are to send us nothing more; those of them that will answer."""
    asked = set()
    for number, peer in enumerate(peers, 1):
        if peer is not None and stop_version(peer) == 2:
            asked.add(peer.node_id)
            peer.send(stop_request(number))
    return asked


def answer_stop(peer: PeerSession, message: ControlMessage) -> None:
    """Another broker goes away, and knows now that we know."""
    peer.send(cluster_event(StopResponse(message.value.value.cluster_name), message.r_id))


def is_stop_response(specific: int, body: bytes) -> bool:
    """Whether a control message that could be decoded is the answer."""
    message = decode_control(body, encoding_of(specific))
    return message.choice == "clusterMessage" and message.value.choice == "stopResponse"


class Downstreams:
    """`link.peer.PeerContext` for the proxies of one cluster. `introduce(session number)`: who we are in it."""

    def __init__(self, name: str, status: NodeStatus, introduce: Callable[[int], ClientIdentity],
                 host: welcome.LinkHost) -> None:
        self.name, self.status = name, status
        self._introduce, self._host = introduce, host
        self.peers: dict[PeerSession, None] = {}
        self.stop_awaited: set[PeerSession] = set()  # asked to stop, and have not answered
        self.drains = False  # some of them finish their work here first: they know version 1 alone
        self._stopped = False
        self.receipts = ConfirmReceipts(host.loop.later)  # nothing is stored here, unless somebody says otherwise

    def admit(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Everybody is welcome who does not say to be a node of the cluster."""
        host = self._host
        response = host.answer(session, identity)
        response.broker_identity = self._introduce(session.remote.session_number)
        response.max_missed_heartbeats = host.configuration.app.network_interfaces.heartbeats.downstream_broker
        refusal = host.security.broker_refusal(session.guard.principal, Action.CONNECT_PROXY)
        if refusal:
            welcome.refuse(response, f"Cluster ({self.name}): {refusal}")
        elif self._stopped:
            welcome.refuse(response, f"Cluster ({self.name}): this node is stopping")
        elif identity.cluster_node_id != PROXY:
            welcome.refuse(response, f"Cluster ({self.name}): no node of it with the id {identity.cluster_node_id} is "
                                     f"known here; a proxy has the id {PROXY}")
        return response

    def connected(self, peer: PeerSession) -> None:
        """A proxy is here."""
        peer.role = PeerRole.DOWNSTREAM
        peer.serve(self.receipts if welcome.wants_receipts(peer.session.remote.features) else None)
        self.peers[peer] = None
        self._host.report.info(f"Cluster ({self.name}): proxy '{peer.session.description}' is connected [channel: "
                               f"'{peer.session.peer}', userAgent: '{peer.session.remote.identity.user_agent}']")
        self._host.report.note("node", f"proxy {shown(peer.session.description)} is connected", cluster=self.name,
                               about=shown(peer.session.description), status="proxy")
        self._tell(peer)

    def received(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        """Whatever a client would not say: nothing that is known."""
        session = peer.session
        if kind is EventType.CONTROL and peer in self.stop_awaited and is_stop_response(specific, body):
            self.stop_awaited.discard(peer)
        elif session.lines.admits(session.now):
            self._host.report.error(f"#PEER_UNEXPECTED_EVENT {session.description}: {kind.name} event of a proxy dropped")

    def disconnected(self, peer: PeerSession) -> None:
        """A proxy is gone."""
        self.stop_awaited.discard(peer)
        if peer in self.peers:
            del self.peers[peer]
            self._host.report.info(f"Cluster ({self.name}): proxy '{shown(peer.session.description)}' is not connected any "
                                   "more")
            self._host.report.note("node", f"proxy {shown(peer.session.description)} is not connected any more",
                                   cluster=self.name, about=shown(peer.session.description), status="proxy gone")

    def not_connected(self, session: Session) -> None:
        """Nobody is dialled."""

    def stop(self) -> None:
        """The broker goes away: every proxy is asked to send no more PUTs here."""
        self._stopped = True
        for number, peer in enumerate(self.peers, 1):
            version = stop_version(peer)
            if version:
                self.stop_awaited.add(peer)
                self.drains = self.drains or version == 1
                peer.send(stop_request(number, version, self.name))

    def gone(self) -> None:
        """The broker is about to close its connections."""
        self.announce(NodeStatus.E_UNAVAILABLE)

    def announce(self, status: NodeStatus) -> None:
        """We are different from now on. Who uses queues of a node that can do nothing for it would be given messages there,
        and has gone elsewhere: its connection ends."""
        if status is not self.status:
            of_no_use = self.status is NodeStatus.E_AVAILABLE and status is NodeStatus.E_STARTING
            self.status = status
            for peer in list(self.peers):
                self._tell(peer)
                if of_no_use:
                    peer.session.close("#PROXY_DROPPED Cluster (%s): %s: this node is cut off from the leader and a primary",
                                       self.name, peer.session.description)

    def _tell(self, peer: PeerSession) -> None:
        group, member = ANNOUNCES
        if member in peer.session.remote.features.get(group, ()):
            peer.send(cluster_event(NodeStatusAdvisory(self.status)))
