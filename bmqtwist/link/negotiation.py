"""Negotiation of connections: authentication and exchange of identities, before a session has its role.

`accepted` creates the session of an incoming connection, `dialled` that of an outgoing connection to another broker. The
broker accepts or refuses identities (`NegotiationContext.welcome`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmqtwist.errors import PeerError
from bmqtwist.limits import NEGOTIATION_VALUES_MAX
from bmqtwist.link.admin import AdminSession, CommandContext
from bmqtwist.link.authentication import Authentication, Credential, Effect
from bmqtwist.link.client import ClientSession
from bmqtwist.link.credentials import CredentialSender
from bmqtwist.link.peer import PeerContext, PeerSession
from bmqtwist.link.requests import QueueRequestsContext
from bmqtwist.link.session import Session, SessionContext, SessionKind
from bmqtwist.link.states import IGNORED, Lifecycle, State, row
from bmqtwist.machine import to
from bmqtwist.wire import control
from bmqtwist.wire.control import NegotiationMessage, encoding_of
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity, ClientType

_DEFERRED_FRAMES_MAX = 1024  # frames deferred during authentication
_RESPONSE_S_MAX = 10  # until the brokerResponse, authentication included


class NegotiationContext(SessionContext, Protocol):
    """Services of the broker for negotiations and the sessions that follow them."""

    @property
    def queues(self) -> QueueRequestsContext:
        """Services for sessions of clients."""

    @property
    def commands(self) -> CommandContext:
        """Services for sessions of administrators."""

    def welcome(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Decide on a negotiation; None = close without a response (the reason is logged)."""

    def peers_for(self, identity: ClientIdentity) -> PeerContext | None:
        """Return the cluster of a peer with this identity; None = refuse it."""


class Negotiating(SessionKind):
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


class Negotiation(Negotiating):
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
            self.session.introduce(message.value)
            self.perform(self.session.guard.identity(self.session.now))

    def perform(self, effects: list[Effect]) -> None:
        """Perform the effects of the authentication; defer frames while the first authenticator runs."""
        session = self.session
        super().perform(effects)
        if session.guard.holding:
            if session.state is State.NEGOTIATING:
                session.enter(State.HOLDING, "a credential is judged")
        elif self._deferred or session.state is State.HOLDING:
            if session.state is State.HOLDING:
                session.enter(State.NEGOTIATING, "the credential is good")
            held, self._deferred = self._deferred, []
            if held:
                session.process_deferred(held)

    def on_deferred(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Defer a frame until the authentication is complete."""
        if len(self._deferred) >= _DEFERRED_FRAMES_MAX:
            self.session.close("#AUTHENTICATION %s: more than %d events before the answer", self.session.description,
                               _DEFERRED_FRAMES_MAX)
            return
        self._deferred.append((event, buffer, specific, start, end))

    def proceed(self) -> None:
        """Complete the negotiation after authentication: send the broker's decision and set the kind of the session."""
        session = self.session
        response = self._broker.welcome(session, session.remote.identity)
        if response is None:
            session.close("#SESSION_NEGOTIATION %s: refused", session.description)
            return
        session.send(NegotiationMessage("brokerResponse", response))
        if response.result.category:
            session.close("#SESSION_NEGOTIATION %s: %s", session.description, response.result.message)
            return
        session.negotiated()
        if session.remote.identity.client_type == ClientType.E_TCPADMIN:
            session.become(AdminSession(session, self._broker.commands), State.SERVING, "an administrator")
        elif session.remote.identity.client_type == ClientType.E_TCPBROKER:
            peers = self._broker.peers_for(session.remote.identity)
            if peers is not None:
                peer = PeerSession(session, self._broker.queues, peers, dialled=False)
                session.become(peer, State.SERVING, "a broker")
                peer.start()
        else:
            session.become(ClientSession(session, self._broker.queues), State.SERVING, "a client")


class Dialling(Negotiating):
    """Kind of an outgoing connection to another broker until its negotiation is complete."""

    __slots__ = ("_queues", "_peers", "_identity", "_credential_sender")

    def __init__(self, session: Session, queues: QueueRequestsContext, peers: PeerContext, identity: ClientIdentity,
                 sender: CredentialSender | None) -> None:
        super().__init__(session, DIALLED_LIFECYCLE)
        self._queues = queues
        self._peers, self._identity, self._credential_sender = peers, identity, sender

    def introduce(self) -> None:
        """Send the identity of this broker."""
        self.session.send(NegotiationMessage("clientIdentity", self._identity))

    def on_authentication_response(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Handle the response to this broker's credential."""
        session, sender = self.session, self._credential_sender
        why = sender.on_response(buffer[start:end], specific, session.now) if sender is not None else ""
        if why:
            session.close("#AUTHENTICATION %s: %s", session.peer, why)
            return
        session.enter(State.DIALLING, "the credential is good")
        self.introduce()

    def on_response(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Handle the brokerResponse."""
        session = self.session
        message = self.decode(buffer, specific, start, end, "brokerResponse")
        if message is None:
            return
        session.introduce(message.value.broker_identity)
        if message.value.result.category:
            session.close("#SESSION_NEGOTIATION %s: %s", session.description, message.value.result.message)
            return
        session.negotiated()
        peer = PeerSession(session, self._queues, self._peers, dialled=True, sender=self._credential_sender)
        session.become(peer, State.SERVING, "a broker")
        peer.start()

    def tick(self, now: float) -> None:
        if self._credential_sender is not None and self._credential_sender.failure:
            self.session.close("#AUTHENTICATION %s: %s", self.session.peer, self._credential_sender.failure)
        elif now - self.session.channel.connected_at >= _RESPONSE_S_MAX:
            self.session.close("#SESSION_NEGOTIATION %s: no brokerResponse within %d s", self.session.peer, _RESPONSE_S_MAX)

    def on_ended(self, crashed: bool) -> None:
        self._peers.not_connected(self.session)


def accepted(context: NegotiationContext, peer: str, guard: Authentication, now: float) -> Session:
    """Create the session of an incoming connection; `guard` authenticates it."""
    session = Session(context, peer, guard, now)
    session.become(Negotiation(session, context), State.NEGOTIATING, "a connection is accepted")
    return session


def dialled(context: NegotiationContext, peer: str, guard: Authentication, now: float, identity: ClientIdentity,
            peers: PeerContext, credential: Callable[[], Credential] | None = None) -> Session:
    """Create the session of an outgoing connection to another broker; it sends this broker's `credential`, if there is one,
    and then its identity."""
    session = Session(context, peer, guard, now)
    guard.closed()  # only the accepting side authenticates
    sender = CredentialSender(credential) if credential is not None else None
    kind = Dialling(session, context.queues, peers, identity, sender)
    if sender is None:
        session.become(kind, State.DIALLING, "a connection is made")
        kind.introduce()
    else:
        session.become(kind, State.PRESENTING, "a connection is made")
        sender.send(session)
    return session


LIFECYCLE = Lifecycle({
    State.NEGOTIATING: row(
        to(Negotiation.on_premature_event, State.CLOSED),
        CONTROL=to(Negotiation.on_negotiation, State.HOLDING, State.SERVING),
        AUTHENTICATION=to(Negotiation.on_authentication, State.HOLDING), OUTCOME=to(Negotiation.perform, State.CLOSED),
        ENDED=to(Negotiation.on_ended, State.CLOSED)),
    State.HOLDING: row(
        to(Negotiation.on_deferred, State.CLOSED), AUTHENTICATION=to(Negotiation.on_authentication, State.CLOSED),
        OUTCOME=to(Negotiation.perform, State.NEGOTIATING, State.SERVING, State.CLOSED),
        ENDED=to(Negotiation.on_ended, State.CLOSED)),
})
DIALLED_LIFECYCLE = Lifecycle({
    State.PRESENTING: row(
        to(Dialling.on_premature_event, State.CLOSED),
        AUTHENTICATION=to(Dialling.on_authentication_response, State.DIALLING, State.CLOSED),
        HEARTBEAT_REQ=to(Dialling.on_heartbeat), HEARTBEAT_RSP=IGNORED, OUTCOME=to(Dialling.perform),
        ENDED=to(Dialling.on_ended, State.CLOSED)),
    State.DIALLING: row(
        to(Dialling.on_premature_event, State.CLOSED), CONTROL=to(Dialling.on_response, State.SERVING, State.CLOSED),
        HEARTBEAT_REQ=to(Dialling.on_heartbeat), HEARTBEAT_RSP=IGNORED, OUTCOME=to(Dialling.perform),
        ENDED=to(Dialling.on_ended, State.CLOSED)),
})
