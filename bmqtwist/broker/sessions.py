"""Sessions of one broker: negotiation, input and end of all connections.

    add_accepted, on_received, on_drained, on_lost    called by the connections, any number of times; a turn follows
    on_authenticated                                  called with the outcome of an authenticator

Input beyond a slice, or late in a turn, is deferred. `link/session.py` cuts it into slices (`SLICE_BYTES` in
`bmqtwist/limits.py`); `start_input` and `add_input` pass the rest to `loop/scheduler.py`, and the connection is not
read meanwhile. An exception closes only the session that raised it (`loop/error_isolation.py`).

Called by `reactor/performer.py`; one session is in `link/session.py`.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from bmqtwist.broker.access import QueueAccess
from bmqtwist.broker.commands import Commands
from bmqtwist.broker.output import Output
from bmqtwist.cluster.membership import PROXY
from bmqtwist.config.broker import Configuration
from bmqtwist.config.clusters import node_addresses
from bmqtwist.errors import Category
from bmqtwist.limits import UNAUTHENTICATED_BYTES_MAX
from bmqtwist.link import negotiation
from bmqtwist.link.authentication import Authenticate, Outcome
from bmqtwist.link.peer import PeerContext
from bmqtwist.link.session import Session
from bmqtwist.link.unauthenticated import UnauthenticatedConnections
from bmqtwist.loop.loop import Loop
from bmqtwist.loop.scheduler import Priority
from bmqtwist.peers import handshake
from bmqtwist.peers.downstreams import Downstreams
from bmqtwist.peers.handshake import Identity
from bmqtwist.queue.counters import ClientStats
from bmqtwist.report import shown
from bmqtwist.security.authenticators import Security
from bmqtwist.security.authorization import Action
from bmqtwist.steps import Steps
from bmqtwist.wire.frames import BufferedBytes
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity, ClientType


class Sessions:
    """`link.negotiation.NegotiationContext`. `open`: all sessions; `peers`: other members, by cluster of several nodes;
    `downstreams`: proxies, by cluster."""

    def __init__(self, configuration: Configuration, identity: Identity, security: Security, loop: Loop, output: Output,
                 queues: QueueAccess, commands: Commands) -> None:
        self.configuration, self.identity, self.security = configuration, identity, security
        self.loop, self.output, self.queues, self.commands, self.report = loop, output, queues, commands, loop.report
        self.serving = True
        self.open: dict[Session, None] = {}
        self.peers: dict[str, PeerContext] = {}
        self.downstreams: dict[str, Downstreams] = {}
        self.past_traffic = ClientStats()  # of ended sessions of clients and proxies
        self._negotiations = 0
        extension = configuration.extension
        self.unauthenticated = UnauthenticatedConnections(
            extension.unauthenticated_connections_max, UNAUTHENTICATED_BYTES_MAX,
            extension.unauthenticated_connections_per_address_max, extension.connections_per_address_and_second_max,
            [*extension.reserved_addresses, *node_addresses(configuration.clusters)])
        self.incomplete_input = BufferedBytes(extension.input_bytes_max)
        self.event_bytes_max = extension.event_bytes_max
        self.output_bytes_max = extension.outbox_bytes_max

    @property
    def now(self) -> float:
        return self.loop.now

    def wall(self, now: float) -> int:
        return self.loop.wall(now)

    def client_count(self) -> int:
        """Return the number of connected clients."""
        return sum(each.channel.negotiated_at is not None and each.remote.identity.client_type == ClientType.E_TCPCLIENT
                   for each in self.open)

    def stop(self) -> None:
        """Refuse opens, and connections of other brokers, from now on."""
        self.serving = False
        for peers in (*self.peers.values(), *self.downstreams.values()):
            peers.stop()

    # -- from the connections; a turn follows -----------------------------------------------------------------------

    def add_accepted(self, peer: str, now: float) -> Session:
        """Create the session of an accepted connection."""
        session = negotiation.create_incoming(self, peer, self.security.new_authentication(peer), now)
        self.open[session] = None
        self.unauthenticated.add(session)
        return session

    def add_dialled(self, peer: str, identity: ClientIdentity, peers: PeerContext, now: float) -> Session:
        """Create the session of a connection to another broker."""
        provider = self.security.provider
        session = negotiation.create_outgoing(self, peer, self.security.new_authentication(peer), now, identity, peers,
                                      provider.credential if provider is not None else None)
        self.open[session] = None
        self.unauthenticated.reserve(peer)
        return session

    def on_received(self, session: Session, data: bytes, now: float, later: bool = False) -> None:
        """Process received bytes; `later`: as deferred input."""
        loop = self.loop
        loop.now = now
        try:
            session.receive(data, now, loop.wall(now), later)
        except Exception as error:
            loop.isolation.isolate_session(session, "receiving", error)

    def on_lost(self, session: Session, now: float) -> None:
        """End a session whose connection is lost."""
        self.loop.now = now
        try:
            session.on_lost(now, self.loop.wall(now))
        except Exception as error:
            self.loop.isolation.isolate_session(session, "the loss of its connection", error)
            self.on_closed(session)

    def on_drained(self, session: Session, now: float) -> None:
        """Resume deliveries: all output that had to wait for the peer is sent."""
        self.loop.now = now
        try:
            session.kind.on_drained()
        except Exception as error:
            self.loop.isolation.isolate_session(session, "resuming", error)

    def on_authenticated(self, session: Session, token: int, outcome: Outcome, now: float) -> None:
        """Continue a session with the outcome of its authenticator."""
        self.loop.now = now
        try:
            session.on_authenticated(token, outcome, now, self.loop.wall(now))
        except Exception as error:
            self.loop.isolation.isolate_session(session, "authentication", error)

    # -- link.session.SessionContext --------------------------------------------------------------------------------

    def start_input(self, session: Session, steps: Steps[None], first: bool = False) -> None:
        session.has_jobs = True
        if not self.loop.scheduler.start(self._input_class(session), session, steps, partial(
                self.loop.isolation.isolate_session, session, "receiving"), partial(self._input_processed, session), first):
            self.loop.performer.set_reading(session, False)

    def add_input(self, session: Session, steps: Steps[None], first: bool = False) -> None:
        session.has_jobs = True
        self.loop.performer.set_reading(session, False)
        self.loop.scheduler.add(self._input_class(session), session, steps, partial(
            self.loop.isolation.isolate_session, session, "receiving"), partial(self._input_processed, session), first)

    def cancel_input(self, session: Session) -> None:
        self.loop.scheduler.cancel(session)
        self._input_processed(session, None)

    def _input_class(self, session: Session) -> Priority:
        """Return the class of a session's jobs: one class for all pending jobs, which run in order."""
        if session.channel.negotiated_at is None or self.loop.scheduler.has_job(Priority.UNAUTHENTICATED, session):
            return Priority.UNAUTHENTICATED
        return Priority.INPUT

    def _input_processed(self, session: Session, result: object) -> None:
        scheduler, performer = self.loop.scheduler, self.loop.performer
        if not scheduler.has_job(Priority.INPUT, session) and not scheduler.has_job(Priority.UNAUTHENTICATED, session):
            session.has_jobs = False
            # two brokers that both stop reading until their output is read would block each other
            if not session.kind.may_pause_reading or not performer.unsent_output(session)[0]:
                performer.set_reading(session, True)

    def enforce_input_limit(self) -> None:
        total, held = self.incomplete_input, Counter[str]()
        for each in self.open:
            held[each.authentication.owner] += each.frames.held_bytes
        owner, size = held.most_common(1)[0]
        session = max((each for each in self.open if each.authentication.owner == owner),
                      key=lambda each: each.frames.held_bytes)
        session.close("#TCP_READ_ERROR %s: '%s' has the most bytes of incomplete events, %d of %d (limit: %d); this is its "
                      "largest event", session.description, shown(owner), size, total.bytes, total.bytes_max)

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        self.loop.performer.authenticate(session, effect)

    def on_closed(self, session: Session) -> None:
        if session in self.open:
            del self.open[session]
            if session.kind.carries_client_traffic:
                self.past_traffic.add(session.stats)
            if session.channel.negotiated_at is not None and session.remote.identity.client_type != ClientType.E_TCPBROKER:
                self.report.record_event("session", f"{session.description} is disconnected", client=session.description,
                                         peer=session.peer, state="gone")

    # -- link.negotiation.NegotiationContext, peers.handshake.LinkHost ----------------------------------------------

    def make_response(self, session: Session, identity: ClientIdentity) -> BrokerResponse:
        """Return the response to a negotiation, and assign the number of the session."""
        self._negotiations += 1
        session.remote.session_number = self._negotiations
        return handshake.broker_response(self.identity, self.configuration.app, session.remote.session_number, identity)

    def decide(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        if identity.client_type == ClientType.E_TCPBROKER:
            return self._decide_broker(session, identity)
        response, principal = self.make_response(session, identity), session.authentication.principal
        admin = identity.client_type == ClientType.E_TCPADMIN
        most = self.configuration.extension.sessions_per_identity_max
        if not self.security.allows(principal, Action.CONNECT_ADMIN if admin else Action.CONNECT_CLIENT):
            handshake.refuse(response, "Connection not authorized")
        elif most and sum(other.authentication.principal == principal and other.channel.negotiated_at is not None
                          for other in self.open) >= most:
            handshake.refuse(response, f"Too many sessions of '{shown(principal)}' (limit: {most})")
        elif response.result.category:
            session.log("#CLIENT_SDKVERSION_UNSUPPORTED", "%s", response.result.message)
        elif response.is_deprecated_sdk:
            self.report.warn(f"#CLIENT_SDKVERSION_DEPRECATED {session.description}: version {identity.sdk_version}")
        interface = self.configuration.app.network_interfaces.tcp_interface
        name = interface.name if interface is not None else "TCPInterface"
        if response.result.category != Category.E_REFUSED:
            self.report.info(f"TCPSessionFactory '{name}': successfully authenticated and negotiated a session [session: "
                             f"'{session.description}', channel: '{session.peer}', maxMissedHeartbeat: "
                             f"{response.max_missed_heartbeats}, userAgent: '{identity.user_agent}']")
            self.report.record_event("session", f"{session.description} is connected", client=session.description,
                                     peer=session.peer, principal=principal, state="connected")
        return response

    def _decide_broker(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        peers = self.peers_for(identity)
        if peers is not None:
            return peers.admit(session, identity)
        session.log("#CONNECTION_UNEXPECTED", "a broker of cluster '%s', which has no other members here",
                    shown(identity.cluster_name), error=True)
        if not self.peers:
            return None
        refusal = handshake.broker_response(self.identity, self.configuration.app, session.remote.session_number, identity)
        handshake.refuse(refusal, f"Cluster '{shown(identity.cluster_name)}' has no other members here")
        return refusal

    def peers_for(self, identity: ClientIdentity) -> PeerContext | None:
        name, members = identity.cluster_name, self.peers.get(identity.cluster_name)
        return self.downstreams.get(name) if identity.cluster_node_id == PROXY or members is None else members
