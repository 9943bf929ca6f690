"""One cluster that this node is a proxy of: the choice of the upstream node, and its messages.

`cluster.upstream` chooses the node; `relay.relays` has the queues that clients have open there. Created by
`broker/broker.py`. The relays of a member are in `member/member_relays.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from bmqtwist import alarms
from bmqtwist.cluster.election_events import Tick, TickAt
from bmqtwist.cluster.upstream import (
    NodeLost,
    NoUpstream,
    SelectorInput,
    StatusChanged,
    UpstreamSelector,
    UseNode,
)
from bmqtwist.config.engine_settings import relayed_settings, throttle
from bmqtwist.errors import PeerError, Refused
from bmqtwist.ids import QueueUri
from bmqtwist.limits import CONTROL_BYTES_MAX, CONTROL_VALUES_MAX
from bmqtwist.link.peer import PeerSession
from bmqtwist.peers.downstreams import ANNOUNCES, answer_stop, send_stop_requests
from bmqtwist.peers.handshake import LinkHost
from bmqtwist.peers.links import ProxyLinks
from bmqtwist.queue.domain import DomainRules
from bmqtwist.queue.handles import OpenRequest
from bmqtwist.queue.mode import mode_of
from bmqtwist.queue.queue import Queue, QueueContext
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.relay.moves import Moves
from bmqtwist.relay.relays import Relays, Requester
from bmqtwist.relay.upstream_queue import Upstream
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.wire.cluster_schema import NodeStatus
from bmqtwist.wire.control import ControlMessage, decode_control, encoding_of
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.schema import OpenQueueResponse

if TYPE_CHECKING:
    from bmqtwist.config.clusters import ClusterProxyDefinition


class ProxyCluster:
    """`peers.links.LinkUser` and `relay.upstream_queue.RelayUser` of one cluster."""

    def __init__(self, definition: ClusterProxyDefinition, host: LinkHost, context: QueueContext) -> None:
        self.definition, self.name, self._loop = definition, definition.name, host.loop
        self.title, self.operations = f"ClusterProxy ({self.name})", definition.queue_operations
        self.links = ProxyLinks(definition, host)
        self.links.user = self
        self.selector = UpstreamSelector({node.id: node.data_center for node in definition.nodes},
                                         host.configuration.app.host_data_center, host.loop.performer.chance, host.loop.now)
        self.relays = Relays(self, host.loop, context, host.configuration.extension.relay_bytes_max)
        self.moves = Moves(self.title, self.relays, host.loop)
        self.domains: dict[str, DomainRules] = {}  # by qualified name; known after the first open of a queue
        self._throttle = throttle(definition.message_throttle_config)
        self._upstream: Upstream | None = None
        self._started = False
        self.stop_awaited: set[int] = set()  # nodes that have not answered a stop request yet

    def open(self, session: Requester, uri: QueueUri, request: OpenRequest,
             answer: Callable[[Queue | Refused], None]) -> None:
        """Open a queue for a client; the first open dials the nodes."""
        self.dial()
        self.relays.open(session, uri, request, answer)

    def dial(self) -> None:
        """Dial all nodes of the cluster, and again after a loss; ignored after the first call."""
        if not self._started:
            self._started = True
            self.selector.started = self._loop.now
            self.links.start(self._loop.now)

    def move_domain(self, name: str, target: ProxyCluster) -> None:
        """Move the open queues of a domain to another cluster, if this node has used the domain."""
        self.domains.pop(name, None)
        if self._started:
            target.dial()
            self.moves.move(name, target)

    def adopt_domain(self, domain: DomainRules) -> DomainRules:
        """Return a domain that has moved to this cluster, with its settings until an open is answered here."""
        return self.domains.setdefault(domain.name, DomainRules(domain.name, domain.name, self.name, domain.settings,
                                                                self._throttle))

    @property
    def queues(self) -> dict[str, RelayQueue]:
        """The relays that clients have open, by URI."""
        return self.relays.queues

    # -- relay.upstream_queue.RelayUser ---------------------------------------------------------------------------------

    def upstream_of(self, uri: str) -> Upstream | None:
        """Return the upstream of all queues."""
        return self._upstream

    def domain_of(self, uri: QueueUri, response: OpenQueueResponse) -> DomainRules:
        """Return a queue's domain, as the upstream's response describes it."""
        name = uri.qualified_domain
        settings = relayed_settings(mode_of(response.routing_configuration.flags), response.deduplication_time_ms)
        domain = self.domains.get(name)
        if domain is None or domain.settings != settings:
            domain = self.domains[name] = DomainRules(name, name, self.name, settings, self._throttle)
        return domain

    def find_stored(self, uri: str, guid: bytes) -> Message | None:
        """Raise PeerError: a proxy stores no messages."""
        raise PeerError("message without its payload", "PUSH", 0)

    def payload(self, uri: str, guid: bytes) -> bytes:
        """Raise PartitionUnavailable: a proxy stores no messages."""
        raise PartitionUnavailable("nothing is stored at a proxy")

    # -- the upstream ---------------------------------------------------------------------------------------------------

    def _select(self, event: SelectorInput, now: float) -> None:
        report = self._loop.report
        for output in self.selector.step(now, event):
            match output:
                case UseNode():
                    node = self.links.name(output.node_id)
                    report.info(f"{self.title}: is healthy and using node '{node}' as active.")
                    report.info(f"{self.title} onClusterLeader: new leader: {node}, leader status: ACTIVE")
                    self._attach(output.node_id, output.generation)
                case NodeLost():
                    report.warn(f"{self.title}: node '{self.links.name(output.node_id)}' is lost as active")
                    self._upstream = None
                    self.relays.detach([*self.relays.opened.values(), *self.relays.leaving])
                case NoUpstream():
                    report.alarm(alarms.CLUSTER_ACTIVE_NODE_UNKNOWN, f"{self.title}: none is available; clients wait")
                case TickAt():
                    if output.moment is not None:
                        self._loop.timers.at(output.moment, lambda later: self._select(Tick(), later))
                case _:
                    assert_never(output)

    def _attach(self, node_id: int, generation: int) -> None:
        peer = self.links.session(node_id)
        if peer is not None and peer.upstream_batch is not None:
            upstream = self._upstream = Upstream(peer, peer.upstream_batch, generation)
            self.relays.attach(upstream)

    def on_peer_up(self, node_id: int, now: float) -> None:
        """Handle the connection of a node."""
        group, member = ANNOUNCES
        peer = self.links.session(node_id)
        announces = peer is not None and member in peer.session.remote.features.get(group, ())
        self._select(StatusChanged(node_id, NodeStatus.E_UNKNOWN if announces else NodeStatus.E_AVAILABLE), now)

    def on_peer_down(self, node_id: int, now: float) -> None:
        """Handle the loss of a connection."""
        self.stop_awaited.discard(node_id)
        self._select(StatusChanged(node_id, NodeStatus.E_UNAVAILABLE), now)

    def on_peer_event(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        """Handle an event of a node; a malformed event is logged and dropped."""
        now, active = peer.session.now, peer.node_id == self.selector.active
        try:
            if kind is EventType.CONTROL:
                self._control(peer, specific, body)
            elif not active:
                return  # sent while this node was the upstream
            elif kind is EventType.PUSH:
                self.relays.incoming.on_pushes(peer, body, now)
            elif kind is EventType.ACK:
                self.relays.incoming.on_acks(peer, body, now)
            else:
                raise PeerError(f"{kind.name} event dropped")
        except PeerError as error:
            if peer.session.log_limiter.admits(now):
                self._loop.report.error(f"#PEER_UNEXPECTED_EVENT {self.title}: node '{self.links.name(peer.node_id)}': "
                                        f"{error}")

    def _control(self, peer: PeerSession, specific: int, body: bytes) -> None:
        try:
            if len(body) > CONTROL_BYTES_MAX:
                raise PeerError(f"control message of {len(body)} bytes (limit: {CONTROL_BYTES_MAX})")
            message = decode_control(body, encoding_of(specific), CONTROL_VALUES_MAX)
        except PeerError as error:
            raise PeerError(f"failed to decode control message: {error}") from None
        if message.choice == "clusterMessage":
            self._cluster_message(peer, message)
        elif peer.node_id == self.selector.active and not self.relays.requests.on_response(
                peer, message, self.links.name(peer.node_id)):
            raise PeerError(f"unexpected control message '{message.choice}'")

    def _cluster_message(self, peer: PeerSession, message: ControlMessage) -> None:
        advisory, node_id = message.value, peer.node_id
        if advisory.choice == "nodeStatusAdvisory":
            before = self.selector.statuses[node_id]
            self._loop.report.info(f"{self.title}: change in connection state with node '{self.links.name(node_id)}', "
                                   f"status: {before.name} -> {advisory.value.status.name}")
            self._select(StatusChanged(node_id, advisory.value.status), peer.session.now)
        elif advisory.choice == "confirmReceipt":
            self.relays.on_receipt(peer, advisory.value.count)
        elif advisory.choice == "quotaAdvisory":
            self.relays.incoming.on_quota(peer, advisory.value)
        elif advisory.choice == "stopResponse":
            self.stop_awaited.discard(node_id)
        elif advisory.choice == "stopRequest":
            if node_id == self.selector.active and self._upstream is not None:
                self.relays.stop_posting(self._upstream)
            answer_stop(peer, message)

    # -- timeouts, stop -------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Expire waiting messages and requests, and continue moves; called once a second."""
        self.relays.tick(now)
        self.moves.tick(now)

    def stop(self) -> None:
        """Ask the nodes to deliver no more messages, and dial them no more."""
        self.links.stop()
        self.stop_awaited |= send_stop_requests(self.links.session(node.id) for node in self.definition.nodes)
