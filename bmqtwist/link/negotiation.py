"""Negotiation of connections: authentication and exchange of identities, before a session has its role.

`create_incoming` creates the session of an accepted connection, `create_outgoing` that of a connection to another
broker. The broker accepts or refuses identities (`NegotiationContext.decide`). Timeouts: `OutgoingNegotiation.tick`
here, that of accepted connections in `broker/periodic_jobs.py`. Called by `broker/sessions.py`. Sizes are limited in
`bmqtwist/limits.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmqtwist.errors import Category, PeerError
from bmqtwist.limits import NEGOTIATION_VALUES_MAX
from bmqtwist.link.admin import AdminSession, CommandContext
from bmqtwist.link.authentication import Authentication, Credential, Effect
from bmqtwist.link.client import ClientSession
from bmqtwist.link.credentials import CredentialSender
from bmqtwist.link.peer import PeerContext, PeerSession
from bmqtwist.link.requests import QueueRequestsContext
from bmqtwist.link.session import Session, SessionContext, SessionKind
from bmqtwist.link.states import IGNORED, ConnectionState, LifecycleTable, row
from bmqtwist.machine import to
from bmqtwist.wire import control
from bmqtwist.wire.control import NegotiationMessage, encoding_of
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity, ClientType

_DEFERRED_FRAMES_MAX = 1024  # frames deferred during authentication
_RESPONSE_TIMEOUT_S = 10  # of an outgoing connection, from its start to the brokerResponse


class NegotiationContext(SessionContext, Protocol):
    """Services of the broker for negotiations and the sessions that follow them."""

    @property
    def queues(self) -> QueueRequestsContext:
        """Services for sessions of clients."""

    @property
    def commands(self) -> CommandContext:
        """Services for sessions of administrators."""

    def decide(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Accept or refuse a negotiation; None = close without a response (the reason is logged)."""

    def peers_for(self, identity: ClientIdentity) -> PeerContext | None:
        """Return the cluster of a peer with this identity; None = refuse it."""


class NegotiationKind(SessionKind):
    """Base class of both sides of a negotiation."""

    __slots__ = ()

    def decode(self, buffer: bytes, specific: int, start: int, end: int, expected: str) -> NegotiationMessage | None:
        """Decode the expected negotiation message; None = the session is closed."""
        session = self.session
        try:
            message = control.decode_negotiation(buffer[start:end], encoding_of(specific), NEGOTIATION_VALUES_MAX)
        except PeerError as error:
            session.close("#SESSION_NEGOTIATION %s: failed to decode the negotiation message: %s", session.peer, error)
            return None
        if message.choice != expected or expected == "clientIdentity" and message.value.client_type == ClientType.E_UNKNOWN:
            session.close("#SESSION_NEGOTIATION %s: unexpected negotiation message '%s'", session.peer, message.choice)
            return None
        return message

    def on_premature_event(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Close the connection: the first event is not a negotiation message."""
        self.session.close("#UNEXPECTED_STATE %s: data before the negotiation", self.session.peer)


class IncomingNegotiation(NegotiationKind):
    """Kind of an incoming connection until its negotiation is complete."""

    __slots__ = ("_broker", "_deferred")

    def __init__(self, session: Session, context: NegotiationContext) -> None:
        super().__init__(session, LIFECYCLE)
        self._broker = context
        self._deferred: list[tuple[int, bytes, int, int, int]] = []

    def on_ended(self, crashed: bool) -> None:
        self._deferred.clear()

    def on_negotiation(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Handle the clientIdentity."""
        message = self.decode(buffer, specific, start, end, "clientIdentity")
        if message is not None:
            self.session.set_identity(message.value)
            self.perform(self.session.authentication.on_identity(self.session.now))

    def perform(self, effects: list[Effect]) -> None:
        """Perform the effects of the authentication; defer frames while the first authenticator runs."""
        session = self.session
        super().perform(effects)
        if session.authentication.defers_frames:
            if session.state is ConnectionState.NEGOTIATING:
                session.change_state(ConnectionState.AUTHENTICATING, "a credential is being checked")
        elif self._deferred or session.state is ConnectionState.AUTHENTICATING:
            if session.state is ConnectionState.AUTHENTICATING:
                session.change_state(ConnectionState.NEGOTIATING, "the credential is granted")
            deferred, self._deferred = self._deferred, []
            if deferred:
                session.process_deferred(deferred)

    def on_deferred(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Defer a frame until the authentication is complete."""
        if len(self._deferred) >= _DEFERRED_FRAMES_MAX:
            self.session.close("#AUTHENTICATION %s: more than %d events before its authentication is complete",
                               self.session.description, _DEFERRED_FRAMES_MAX)
            return
        self._deferred.append((event, buffer, specific, start, end))

    def proceed(self) -> None:
        """Complete the negotiation after the authentication: send the broker's decision, set the kind of the session."""
        session = self.session
        response = self._broker.decide(session, session.remote.identity)
        if response is None:
            session.close("#SESSION_NEGOTIATION %s: refused", session.description)
            return
        session.send(NegotiationMessage("brokerResponse", response))
        if response.result.category == Category.E_REFUSED:  # E_NOT_SUPPORTED is advice: the client decides
            session.close("#SESSION_NEGOTIATION %s: %s", session.description, response.result.message)
            return
        session.on_negotiated()
        if session.remote.identity.client_type == ClientType.E_TCPADMIN:
            session.set_kind(AdminSession(session, self._broker.commands), ConnectionState.SERVING,
                             "negotiated with an administrator")
        elif session.remote.identity.client_type == ClientType.E_TCPBROKER:
            peers = self._broker.peers_for(session.remote.identity)
            if peers is not None:
                peer = PeerSession(session, self._broker.queues, peers, dialled=False)
                session.set_kind(peer, ConnectionState.SERVING, "negotiated with a broker")
                peer.start()
        else:
            session.set_kind(ClientSession(session, self._broker.queues), ConnectionState.SERVING,
                             "negotiated with a client")


class OutgoingNegotiation(NegotiationKind):
    """Kind of an outgoing connection to another broker until its negotiation is complete."""

    __slots__ = ("_queues", "_peers", "_identity", "_credential_sender")

    def __init__(self, session: Session, queues: QueueRequestsContext, peers: PeerContext, identity: ClientIdentity,
                 sender: CredentialSender | None) -> None:
        super().__init__(session, DIALLED_LIFECYCLE)
        self._queues = queues
        self._peers, self._identity, self._credential_sender = peers, identity, sender

    def send_identity(self) -> None:
        """Send the identity of this broker."""
        self.session.send(NegotiationMessage("clientIdentity", self._identity))

    def on_authentication_response(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Handle the response to this broker's credential."""
        session, sender = self.session, self._credential_sender
        why = sender.on_response(buffer[start:end], specific, session.now) if sender is not None else ""
        if why:
            session.close("#AUTHENTICATION %s: %s", session.peer, why)
            return
        session.change_state(ConnectionState.AWAITING_RESPONSE, "the credential is granted")
        self.send_identity()

    def on_response(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Handle the brokerResponse."""
        session = self.session
        message = self.decode(buffer, specific, start, end, "brokerResponse")
        if message is None:
            return
        session.set_identity(message.value.broker_identity)
        if message.value.result.category:
            session.close("#SESSION_NEGOTIATION %s: %s", session.description, message.value.result.message)
            return
        session.on_negotiated()
        peer = PeerSession(session, self._queues, self._peers, dialled=True, sender=self._credential_sender)
        session.set_kind(peer, ConnectionState.SERVING, "negotiated with a broker")
        peer.start()

    def tick(self, now: float) -> None:
        if self._credential_sender is not None and self._credential_sender.failure:
            self.session.close("#AUTHENTICATION %s: %s", self.session.peer, self._credential_sender.failure)
        elif now - self.session.channel.connected_at >= _RESPONSE_TIMEOUT_S:
            self.session.close("#SESSION_NEGOTIATION %s: no brokerResponse within %d s", self.session.peer,
                               _RESPONSE_TIMEOUT_S)

    def on_ended(self, crashed: bool) -> None:
        self._peers.on_negotiation_failed(self.session)


def create_incoming(context: NegotiationContext, peer: str, authentication: Authentication, now: float) -> Session:
    """Create the session of an incoming connection; `authentication` authenticates it."""
    session = Session(context, peer, authentication, now)
    session.set_kind(IncomingNegotiation(session, context), ConnectionState.NEGOTIATING, "the connection is accepted")
    return session


def create_outgoing(context: NegotiationContext, peer: str, authentication: Authentication, now: float,
                    identity: ClientIdentity, peers: PeerContext,
                    credential: Callable[[], Credential] | None = None) -> Session:
    """Create the session of an outgoing connection to another broker; it sends this broker's `credential`, if there is one,
    and then its identity."""
    session = Session(context, peer, authentication, now)
    authentication.close()  # only the accepting side authenticates
    sender = CredentialSender(credential) if credential is not None else None
    kind = OutgoingNegotiation(session, context.queues, peers, identity, sender)
    if sender is None:
        session.set_kind(kind, ConnectionState.AWAITING_RESPONSE, "the connection is established")
        kind.send_identity()
    else:
        session.set_kind(kind, ConnectionState.AWAITING_AUTHENTICATION, "the connection is established")
        sender.send(session)
    return session


_S, _IN, _OUT = ConnectionState, IncomingNegotiation, OutgoingNegotiation
LIFECYCLE = LifecycleTable({
    _S.NEGOTIATING: row(
        to(_IN.on_premature_event, _S.CLOSED), CONTROL=to(_IN.on_negotiation, _S.AUTHENTICATING, _S.SERVING),
        AUTHENTICATION=to(_IN.on_authentication, _S.AUTHENTICATING), OUTCOME=to(_IN.perform, _S.CLOSED),
        ENDED=to(_IN.on_ended, _S.CLOSED)),
    _S.AUTHENTICATING: row(
        to(_IN.on_deferred, _S.CLOSED), AUTHENTICATION=to(_IN.on_authentication, _S.CLOSED),
        OUTCOME=to(_IN.perform, _S.NEGOTIATING, _S.SERVING, _S.CLOSED), ENDED=to(_IN.on_ended, _S.CLOSED)),
})
DIALLED_LIFECYCLE = LifecycleTable({
    _S.AWAITING_AUTHENTICATION: row(
        to(_OUT.on_premature_event, _S.CLOSED),
        AUTHENTICATION=to(_OUT.on_authentication_response, _S.AWAITING_RESPONSE, _S.CLOSED),
        HEARTBEAT_REQ=to(_OUT.on_heartbeat), HEARTBEAT_RSP=IGNORED, OUTCOME=to(_OUT.perform),
        ENDED=to(_OUT.on_ended, _S.CLOSED)),
    _S.AWAITING_RESPONSE: row(
        to(_OUT.on_premature_event, _S.CLOSED), CONTROL=to(_OUT.on_response, _S.SERVING, _S.CLOSED),
        HEARTBEAT_REQ=to(_OUT.on_heartbeat), HEARTBEAT_RSP=IGNORED, OUTCOME=to(_OUT.perform),
        ENDED=to(_OUT.on_ended, _S.CLOSED)),
})
