"""The brokers behind us: proxies of a cluster that we are a member or a proxy of.

Any number of them may connect, whatever they are. Each uses queues as a client does (`link/downstream.py`), and is told how
we are, if it listens to that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmqtwist.cluster.membership import PROXY
from bmqtwist.config.broker import Configuration
from bmqtwist.link.peer import PeerRole, PeerSession
from bmqtwist.link.receipts import ConfirmReceipts
from bmqtwist.link.session import Session
from bmqtwist.node import welcome
from bmqtwist.node.identity import Identity
from bmqtwist.report import Report, shown
from bmqtwist.security.authenticators import Security
from bmqtwist.security.authorization import Action
from bmqtwist.wire.cluster_schema import ClusterMessage, NodeStatus, NodeStatusAdvisory, StopRequest
from bmqtwist.wire.control import ControlMessage, decode_control, encode_event, encoding_of
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity

ANNOUNCES = ("HA", "BROADCAST_TO_PROXIES")  # group and member of the features of a proxy that listens, and of who tells


STOPS = ("HA", "GRACEFUL_SHUTDOWN_V2")  # the same of who understands a stop request
STOP_VERSION = 2
STOP_ANSWER_S = 5.0  # that are waited for the answers to stop requests


def can_be_asked_to_stop(peer: PeerSession) -> bool:
    """Whether another broker understands a stop request as we mean it."""
    group, member = STOPS
    return member in peer.session.features.get(group, ())


def stop_request(number: int) -> bytes:
    """We go away: nothing more is to be sent here but CONFIRMs."""
    return encode_event(ControlMessage(number, "clusterMessage", ClusterMessage("stopRequest", StopRequest(
        "", STOP_VERSION))))


def is_stop_response(specific: int, body: bytes) -> bool:
    """Whether a control message that could be decoded is the answer."""
    message = decode_control(body, encoding_of(specific))
    return message.choice == "clusterMessage" and message.value.choice == "stopResponse"


class DownstreamHost(Protocol):
    """The broker, as far as brokers behind it need it."""

    configuration: Configuration
    identity: Identity
    report: Report
    security: Security
    negotiations: int


class Downstreams:
    """`link.context.PeerContext` for the proxies of one cluster. `introduce(session number)`: who we are in it."""

    def __init__(self, name: str, status: NodeStatus, introduce: Callable[[int], ClientIdentity],
                 host: DownstreamHost) -> None:
        self.name, self.status = name, status
        self._introduce, self._host = introduce, host
        self.peers: dict[PeerSession, None] = {}
        self.stop_awaited: set[PeerSession] = set()  # asked to stop, and have not answered
        self._stopped = False
        self.receipts = ConfirmReceipts()  # nothing is stored here, unless somebody says otherwise

    def admit(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Everybody is welcome who does not say to be a node of the cluster."""
        host = self._host
        host.negotiations += 1
        session.session_number = host.negotiations
        response = welcome.answer(host.identity, host.configuration.app, session.session_number, identity)
        response.broker_identity = self._introduce(session.session_number)
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
        peer.serve(self.receipts if welcome.wants_receipts(peer.session.features) else None)
        self.peers[peer] = None
        self._host.report.info(f"Cluster ({self.name}): proxy '{peer.session.description}' is connected [channel: "
                               f"'{peer.session.peer}', userAgent: '{peer.session.identity.user_agent}']")
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

    def not_connected(self, session: Session) -> None:
        """Nobody is dialled."""

    def stop(self) -> None:
        """The broker goes away: every proxy is asked to send no more PUTs here."""
        self._stopped = True
        for number, peer in enumerate(self.peers, 1):
            if can_be_asked_to_stop(peer):
                self.stop_awaited.add(peer)
                peer.send(stop_request(number))

    def gone(self) -> None:
        """The broker is about to close its connections."""
        self.announce(NodeStatus.E_UNAVAILABLE)

    def announce(self, status: NodeStatus) -> None:
        """We are different from now on."""
        if status is not self.status:
            self.status = status
            for peer in self.peers:
                self._tell(peer)

    def _tell(self, peer: PeerSession) -> None:
        group, member = ANNOUNCES
        if member in peer.session.features.get(group, ()):
            peer.send(encode_event(ControlMessage(None, "clusterMessage", ClusterMessage(
                "nodeStatusAdvisory", NodeStatusAdvisory(self.status)))))
