"""Authentication of one connection, from its first message to its close.

`TABLE` (`bmqtwist/machine.py`) holds every (state, event) pair; its actions are methods of `Authentication`. The session
feeds events and performs the returned effects:

    session                          Authentication
    authenticationRequest      ->    on_request(mechanism, data, now)
    clientIdentity             ->    on_identity(now)
    tick                       ->    tick(now), due at `deadline`
    outcome of an Authenticate ->    on_outcome(token, outcome, now)

    Authenticate            run `attempt(...)` on a worker thread, then call `on_outcome`
    AuthenticationResponse  send it in the encoding of the request
    Proceed                 continue the negotiation as `principal`: the clientIdentity is accepted
    DropRequest             ignore the request; log the reason
    CloseConnection         close the connection; log the reason

While `defers_frames` is true, the session defers later frames until the outcome is known. An authenticator that never blocks
(`blocking` false) is called directly, so that an anonymous client needs no thread.

A client that starts with clientIdentity is authenticated with the broker's anonymous credential. That credential has no
lifetime, whatever its authenticator returns, because the client cannot renew it. Called by `session.py` and
`negotiation.py`; authenticators and their lifetimes are in `security/authenticators.py`, this broker's own credentials
for other brokers in `credentials.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from bmqtwist.errors import Category
from bmqtwist.link.unauthenticated import address_of, network_of
from bmqtwist.machine import Cell, TransitionLog, check, table, to
from bmqtwist.report import shown
from bmqtwist.wire.control import Encoding
from bmqtwist.wire.schema import AuthenticationResponse, Status

MECHANISM_CHARS_MAX = 64  # of an unknown mechanism, in the answer
ANONYMOUS = "ANONYMOUS"  # mechanism without a secret


@dataclass(frozen=True, slots=True)
class Granted:
    """Outcome of a valid credential: its owner and its lifetime in milliseconds (None = unlimited)."""

    principal: str
    lifetime_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """Outcome of an invalid credential: the reason, which is sent to the peer, and a code other than 0."""

    reason: str
    code: int = -1


Outcome = Granted | Denied


class Authenticator(Protocol):
    """Plug-in for one authentication mechanism.

    `authenticators[].name` is the dotted name of a custom class. The broker creates it with the mapping of its settings,
    starts it before it listens and stops it after it has closed.
    """

    mechanism: str
    blocking: bool

    def start(self) -> None:
        """Acquire resources. Raise LocalError on failure."""

    def stop(self) -> None:
        """Release all resources."""

    def authenticate(self, data: bytes, peer: str) -> Outcome:
        """Check a credential sent by `peer` (its address); called on a worker thread if `blocking`."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Credential of this broker, or of anonymous clients: mechanism and data of an authenticationRequest."""

    mechanism: str
    identity: bytes


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Effect: run `attempt(authenticator, data, peer)` on a worker thread, then call `on_outcome(token, outcome, now)`."""

    token: int
    authenticator: Authenticator
    data: bytes
    peer: str


@dataclass(frozen=True, slots=True)
class Proceed:
    """Effect: continue the negotiation."""


@dataclass(frozen=True, slots=True)
class DropRequest:
    """Effect: ignore the request and log the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Effect: close the connection after the output is sent."""

    reason: str


Effect = Authenticate | AuthenticationResponse | Proceed | DropRequest | CloseConnection


class AuthenticationState(Enum):
    """State of the authentication."""

    START = "no message received yet"
    AUTHENTICATING = "the client's first credential is being checked"
    AUTHENTICATED = "the first credential is granted, the clientIdentity is expected"
    AUTHENTICATING_ANONYMOUS = "the anonymous credential is being checked for the client"
    NEGOTIATED = "negotiated with the client's credential"
    NEGOTIATED_ANONYMOUS = "negotiated with the anonymous credential"
    REAUTHENTICATING = "negotiated, a new credential of the client is being checked"
    CLOSED = "the connection is closed"


class AuthenticationEvent(Enum):
    """Events of the authentication."""

    REQUEST = "authenticationRequest received"
    IDENTITY = "clientIdentity received"
    GRANTED = "credential granted"
    DENIED = "credential denied"
    LIFETIME = "credential expired"


def attempt(authenticator: Authenticator, data: bytes, peer: str) -> Outcome:
    """Run an authenticator, on any thread; an exception counts as Denied."""
    try:
        outcome = authenticator.authenticate(data, peer)
    except Exception as error:  # noqa: BLE001 - an error in a plug-in must neither admit a client nor stop the broker
        return Denied(f"Authentication failed: {type(error).__name__} in the authenticator.", -3)
    return outcome if isinstance(outcome, (Granted, Denied)) else Denied("Authentication failed: no outcome.", -3)


class Authentication:
    """Authentication of one connection. `authenticators`: by upper-case mechanism; `anonymous` None: anonymous clients are
    refused. `encoding`: of the last authenticationRequest and its response."""

    __slots__ = ("deadline", "encoding", "principal", "state", "transitions", "_anonymous", "_authenticators", "_data",
                 "_mechanism", "_outcome", "_peer", "_requested_mechanism", "_token", "_used_anonymous")

    def __init__(self, authenticators: Mapping[str, Authenticator], anonymous: Credential | None,
                 peer: str = "") -> None:
        self.state = AuthenticationState.START
        self.transitions = TransitionLog()
        self.principal = ""
        self.encoding = Encoding.BER
        self.deadline: float | None = None  # end of the credential's lifetime, monotonic seconds
        self._authenticators, self._anonymous, self._peer = authenticators, anonymous, peer
        self._mechanism = ""  # of the credential in force, upper case
        self._used_anonymous = False  # the credential in force is that of anonymous clients
        self._token = 0
        self._requested_mechanism, self._data = "", b""  # of the request in progress
        self._outcome: Outcome = Denied("")

    @property
    def owner(self) -> str:
        """Party to which limits charge this connection: its principal; a peer without a credential of its own, by its
        address."""
        anonymous = not self.principal or self._mechanism == ANONYMOUS or self._used_anonymous
        return network_of(address_of(self._peer)) if anonymous else self.principal

    @property
    def defers_frames(self) -> bool:
        """True while the session must defer frames until the outcome is known."""
        return self.state is AuthenticationState.AUTHENTICATING or self.state is AuthenticationState.AUTHENTICATING_ANONYMOUS

    def on_request(self, mechanism: str, data: bytes, now: float) -> list[Effect]:
        """Process an authenticationRequest."""
        if self.state in (AuthenticationState.START, AuthenticationState.NEGOTIATED):
            self._requested_mechanism, self._data = mechanism.upper(), data
        return self._dispatch(AuthenticationEvent.REQUEST, now)

    def on_identity(self, now: float) -> list[Effect]:
        """Process the first clientIdentity."""
        return self._dispatch(AuthenticationEvent.IDENTITY, now)

    def on_outcome(self, token: int, outcome: Outcome, now: float) -> list[Effect]:
        """Process the outcome of `Authenticate(token, ...)`; an outcome of an earlier token is ignored."""
        if token != self._token:
            return []
        self._token += 1
        self._outcome = outcome
        granted = isinstance(outcome, Granted)
        return self._dispatch(AuthenticationEvent.GRANTED if granted else AuthenticationEvent.DENIED, now)

    def tick(self, now: float) -> list[Effect]:
        """Close the connection if its credential has expired."""
        if self.deadline is None or now < self.deadline:
            return []
        self.deadline = None
        return self._dispatch(AuthenticationEvent.LIFETIME, now)

    def close(self) -> None:
        """End the authentication; later outcomes are ignored."""
        self.state, self.deadline = AuthenticationState.CLOSED, None
        self._token += 1

    def _dispatch(self, event: AuthenticationEvent, now: float) -> list[Effect]:
        before = self.state
        effects: list[Effect] = TABLE[before][event].action(self, now)
        check(TABLE, before, event, self.state)
        if self.state is not before:
            self.transitions.record(now, before.name, self.state.name, event.value, event.name)
        return effects

    # -- actions of the table -----------------------------------------------------------------------------------------

    def _start_first(self, now: float) -> list[Effect]:
        authenticator = self._authenticators.get(self._requested_mechanism)
        if authenticator is None:
            name = shown(self._requested_mechanism, MECHANISM_CHARS_MAX)
            return self._refuse(Denied(f"Authentication mechanism '{name}' not supported.", -2))
        self.state = AuthenticationState.AUTHENTICATING
        return self._run(authenticator, self._data, now)

    def _start_anonymous(self, now: float) -> list[Effect]:
        credential = self._anonymous
        if credential is None:
            return self._close_connection("Anonymous connections are not allowed: an authenticationRequest must come first")
        self._requested_mechanism = credential.mechanism.upper()
        authenticator = self._authenticators.get(self._requested_mechanism)
        if authenticator is None:
            return self._close_connection(
                f"No authenticator for the anonymous credential's mechanism '{self._requested_mechanism}'")
        self.state = AuthenticationState.AUTHENTICATING_ANONYMOUS
        return self._run(authenticator, credential.identity, now)

    def _start_renewal(self, now: float) -> list[Effect]:
        if self._requested_mechanism != self._mechanism:
            return self._close_connection("Authentication mechanism mismatch")
        self.state = AuthenticationState.REAUTHENTICATING
        return self._run(self._authenticators[self._requested_mechanism], self._data, now)

    def _run(self, authenticator: Authenticator, data: bytes, now: float) -> list[Effect]:
        self._token += 1
        self._data = b""
        if authenticator.blocking:
            return [Authenticate(self._token, authenticator, data, self._peer)]
        return self.on_outcome(self._token, attempt(authenticator, data, self._peer), now)

    def _on_granted(self, now: float) -> list[Effect]:
        return self._accept(AuthenticationState.AUTHENTICATED, now)

    def _on_renewal_granted(self, now: float) -> list[Effect]:
        if isinstance(self._outcome, Granted) and self._outcome.principal != self.principal:
            return self._refuse(Denied("Principal cannot change during reauthentication"))
        return self._accept(AuthenticationState.NEGOTIATED, now)

    def _accept(self, state: AuthenticationState, now: float) -> list[Effect]:
        outcome = self._outcome
        assert isinstance(outcome, Granted)
        self.state, self.principal, self._mechanism = state, outcome.principal, self._requested_mechanism
        self.deadline = None if outcome.lifetime_ms is None else now + outcome.lifetime_ms / 1000
        return [AuthenticationResponse(Status(), outcome.lifetime_ms)]

    def _on_anonymous_granted(self, now: float) -> list[Effect]:
        assert isinstance(self._outcome, Granted)
        self.state, self._used_anonymous = AuthenticationState.NEGOTIATED_ANONYMOUS, True
        self.principal, self._mechanism = self._outcome.principal, self._requested_mechanism
        return [Proceed()]

    def _on_denied(self, now: float) -> list[Effect]:
        assert isinstance(self._outcome, Denied)
        return self._refuse(self._outcome)

    def _on_anonymous_denied(self, now: float) -> list[Effect]:
        assert isinstance(self._outcome, Denied)
        return self._close_connection(f"Anonymous credential refused: {self._outcome.reason}")

    def _accept_identity(self, now: float) -> list[Effect]:
        self.state = AuthenticationState.NEGOTIATED
        return [Proceed()]

    def _on_expired(self, now: float) -> list[Effect]:
        return self._close_connection("Reauthentication timeout")

    def _refuse_early_message(self, now: float) -> list[Effect]:
        return self._close_connection("Unexpected message during the initial connection")

    def _drop_request(self, now: float) -> list[Effect]:
        return [DropRequest("Dropping Authentication event since authentication is in progress")]

    def _ignore(self, now: float) -> list[Effect]:
        return []

    def _refuse(self, denied: Denied) -> list[Effect]:
        answer = AuthenticationResponse(Status(Category.E_REFUSED, denied.code or -1, denied.reason))
        return [answer, *self._close_connection(f"Authentication failed: {denied.reason}")]

    def _close_connection(self, reason: str) -> list[Effect]:
        self.close()
        return [CloseConnection(reason)]


S, E, A = AuthenticationState, AuthenticationEvent, Authentication
_IGNORED: Cell[AuthenticationState] = to(A._ignore)
_DROPPED: Cell[AuthenticationState] = to(A._drop_request)
_CLOSED: Cell[AuthenticationState] = to(A._refuse_early_message, S.CLOSED)
_EXPIRED: Cell[AuthenticationState] = to(A._on_expired, S.CLOSED)
_NO_OUTCOME = {E.GRANTED: _IGNORED, E.DENIED: _IGNORED}

# With an authenticator that never blocks, a request leads directly to the state of its outcome.
TABLE = table(AuthenticationState, AuthenticationEvent, {
    S.START: {
        E.REQUEST: to(A._start_first, S.AUTHENTICATING, S.AUTHENTICATED, S.CLOSED),
        E.IDENTITY: to(A._start_anonymous, S.AUTHENTICATING_ANONYMOUS, S.NEGOTIATED_ANONYMOUS, S.CLOSED),
        **_NO_OUTCOME, E.LIFETIME: _IGNORED},
    S.AUTHENTICATING: {
        E.REQUEST: _DROPPED, E.IDENTITY: _CLOSED, E.GRANTED: to(A._on_granted, S.AUTHENTICATED),
        E.DENIED: to(A._on_denied, S.CLOSED), E.LIFETIME: _IGNORED},
    S.AUTHENTICATED: {
        E.REQUEST: _CLOSED, E.IDENTITY: to(A._accept_identity, S.NEGOTIATED), **_NO_OUTCOME, E.LIFETIME: _EXPIRED},
    S.AUTHENTICATING_ANONYMOUS: {
        E.REQUEST: _DROPPED, E.IDENTITY: _CLOSED, E.GRANTED: to(A._on_anonymous_granted, S.NEGOTIATED_ANONYMOUS),
        E.DENIED: to(A._on_anonymous_denied, S.CLOSED), E.LIFETIME: _IGNORED},
    S.NEGOTIATED: {  # the session itself drops a second clientIdentity
        E.REQUEST: to(A._start_renewal, S.REAUTHENTICATING, S.NEGOTIATED, S.CLOSED), E.IDENTITY: _IGNORED,
        **_NO_OUTCOME, E.LIFETIME: _EXPIRED},
    S.NEGOTIATED_ANONYMOUS: {  # as in BlazingMQ, which drops requests of anonymous clients as in progress
        E.REQUEST: _DROPPED, E.IDENTITY: _IGNORED, **_NO_OUTCOME, E.LIFETIME: _IGNORED},
    S.REAUTHENTICATING: {  # the previous credential remains in force until its lifetime ends
        E.REQUEST: _DROPPED, E.IDENTITY: _IGNORED, E.GRANTED: to(A._on_renewal_granted, S.NEGOTIATED, S.CLOSED),
        E.DENIED: to(A._on_denied, S.CLOSED), E.LIFETIME: _EXPIRED},
    S.CLOSED: dict.fromkeys(AuthenticationEvent, _IGNORED),
})
