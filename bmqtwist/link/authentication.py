"""Authentication of one connection, from its first message to its close.

`TABLE` (`bmqtwist/machine.py`) holds every (state, event) pair; its actions are methods of `Authentication`. The session
feeds events and performs the returned effects:

    session                          Authentication
    authenticationRequest     ->     request(mechanism, data, now)
    clientIdentity            ->     identity(now)
    tick                      ->     tick(now), due at `deadline`
    outcome of an Authenticate ->    done(token, outcome, now)

    Authenticate            run `attempt(...)` off the reactor's thread and bring its outcome back to `done`
    AuthenticationResponse  send it in the encoding of the request
    Proceed                 continue the negotiation as `principal`: the clientIdentity is accepted
    Drop                    ignore the request; log the reason
    Close                   close the connection; log the reason

While `holding` is true, the session defers later frames until the outcome is known. An authenticator that never blocks
(`blocking` false) is called directly, so that an anonymous client needs no thread.

A client that starts with clientIdentity is authenticated with the broker's anonymous credential. That credential has no
lifetime, whatever its authenticator returns, because the client cannot renew it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from bmqtwist.errors import Category
from bmqtwist.machine import Cell, TransitionLog, check, table, to
from bmqtwist.report import shown
from bmqtwist.wire.control import Encoding
from bmqtwist.wire.schema import AuthenticationResponse, Status

MECHANISM_CHARS_MAX = 64  # of an unknown mechanism, in the answer


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
    """Effect: run `attempt(authenticator, data, peer)` on a worker thread, then `done(token, outcome, now)`."""

    token: int
    authenticator: Authenticator
    data: bytes
    peer: str


@dataclass(frozen=True, slots=True)
class Proceed:
    """Effect: continue the negotiation."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Effect: ignore the request and log the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """Effect: close the connection after the output is sent."""

    reason: str


Effect = Authenticate | AuthenticationResponse | Proceed | Drop | Close


class State(Enum):
    """State of the authentication."""

    START = "nothing received"
    AUTHENTICATING = "first request runs"
    AUTHENTICATED = "first request granted, identity expected"
    IMPLICIT = "anonymous credential runs on behalf of the client"
    SERVING = "negotiated with a credential of its own"
    SERVING_IMPLICIT = "negotiated with the anonymous credential"
    REAUTHENTICATING = "negotiated, another request runs"
    CLOSED = "over"


class Event(Enum):
    """Events of the authentication."""

    REQUEST = "authenticationRequest"
    IDENTITY = "clientIdentity"
    GRANTED = "credential is good"
    DENIED = "credential is bad"
    LIFETIME = "lifetime is over"


def attempt(authenticator: Authenticator, data: bytes, peer: str) -> Outcome:
    """Run an authenticator; an exception counts as Denied. Safe to run on any thread."""
    try:
        outcome = authenticator.authenticate(data, peer)
    except Exception as error:  # noqa: BLE001 - an error in a plug-in must neither admit a client nor stop the broker
        return Denied(f"Authentication failed: {type(error).__name__} in the authenticator.", -3)
    return outcome if isinstance(outcome, (Granted, Denied)) else Denied("Authentication failed: no outcome.", -3)


class Authentication:
    """Authentication of one connection. `authenticators`: by upper-case mechanism; `anonymous` None: anonymous clients are
    refused. `encoding`: of the last authenticationRequest and its response."""

    __slots__ = ("deadline", "encoding", "principal", "state", "transitions", "_anonymous", "_asked", "_authenticators",
                 "_data", "_mechanism", "_outcome", "_peer", "_token")

    def __init__(self, authenticators: Mapping[str, Authenticator], anonymous: Credential | None,
                 peer: str = "") -> None:
        self.state = State.START
        self.transitions = TransitionLog()
        self.principal = ""
        self.encoding = Encoding.BER
        self.deadline: float | None = None  # end of the credential's lifetime, monotonic seconds
        self._authenticators, self._anonymous, self._peer = authenticators, anonymous, peer
        self._mechanism = ""  # of the credential in force, upper case
        self._token = 0
        self._asked, self._data = "", b""  # of the request in progress
        self._outcome: Outcome = Denied("")

    @property
    def holding(self) -> bool:
        """True while the session must defer frames until the outcome is known."""
        return self.state is State.AUTHENTICATING or self.state is State.IMPLICIT

    def request(self, mechanism: str, data: bytes, now: float) -> list[Effect]:
        """Process an authenticationRequest."""
        if self.state in (State.START, State.SERVING):
            self._asked, self._data = mechanism.upper(), data
        return self._feed(Event.REQUEST, now)

    def identity(self, now: float) -> list[Effect]:
        """Process the first clientIdentity."""
        return self._feed(Event.IDENTITY, now)

    def done(self, token: int, outcome: Outcome, now: float) -> list[Effect]:
        """Process the outcome of `Authenticate(token, ...)`; a late one is ignored."""
        if token != self._token:
            return []
        self._token += 1
        self._outcome = outcome
        return self._feed(Event.GRANTED if isinstance(outcome, Granted) else Event.DENIED, now)

    def tick(self, now: float) -> list[Effect]:
        """Close the connection if the lifetime of its credential is over."""
        if self.deadline is None or now < self.deadline:
            return []
        self.deadline = None
        return self._feed(Event.LIFETIME, now)

    def closed(self) -> None:
        """End the authentication; later outcomes are ignored."""
        self.state, self.deadline = State.CLOSED, None
        self._token += 1

    def _feed(self, event: Event, now: float) -> list[Effect]:
        before = self.state
        effects: list[Effect] = TABLE[before][event].action(self, now)
        check(TABLE, before, event, self.state)
        if self.state is not before:
            self.transitions.note(now, before.name, self.state.name, event.value, event.name)
        return effects

    # -- actions of the table -----------------------------------------------------------------------------------------

    def _first(self, now: float) -> list[Effect]:
        authenticator = self._authenticators.get(self._asked)
        if authenticator is None:
            name = shown(self._asked, MECHANISM_CHARS_MAX)
            return self._refuse(Denied(f"Authentication mechanism '{name}' not supported.", -2))
        self.state = State.AUTHENTICATING
        return self._run(authenticator, self._data, now)

    def _implicit(self, now: float) -> list[Effect]:
        credential = self._anonymous
        if credential is None:
            return self._close("Anonymous connections are not allowed: an authenticationRequest must come first")
        self._asked = credential.mechanism.upper()
        authenticator = self._authenticators.get(self._asked)
        if authenticator is None:
            return self._close(f"No authenticator for the anonymous credential's mechanism '{self._asked}'")
        self.state = State.IMPLICIT
        return self._run(authenticator, credential.identity, now)

    def _again(self, now: float) -> list[Effect]:
        if self._asked != self._mechanism:
            return self._close("Authentication mechanism mismatch")
        self.state = State.REAUTHENTICATING
        return self._run(self._authenticators[self._asked], self._data, now)

    def _run(self, authenticator: Authenticator, data: bytes, now: float) -> list[Effect]:
        self._token += 1
        self._data = b""
        if authenticator.blocking:
            return [Authenticate(self._token, authenticator, data, self._peer)]
        return self.done(self._token, attempt(authenticator, data, self._peer), now)

    def _granted(self, now: float) -> list[Effect]:
        return self._accept(State.AUTHENTICATED, now)

    def _granted_again(self, now: float) -> list[Effect]:
        if isinstance(self._outcome, Granted) and self._outcome.principal != self.principal:
            return self._refuse(Denied("Principal cannot change during reauthentication"))
        return self._accept(State.SERVING, now)

    def _accept(self, state: State, now: float) -> list[Effect]:
        outcome = self._outcome
        assert isinstance(outcome, Granted)
        self.state, self.principal, self._mechanism = state, outcome.principal, self._asked
        self.deadline = None if outcome.lifetime_ms is None else now + outcome.lifetime_ms / 1000
        return [AuthenticationResponse(Status(), outcome.lifetime_ms)]

    def _granted_implicitly(self, now: float) -> list[Effect]:
        assert isinstance(self._outcome, Granted)
        self.state, self.principal, self._mechanism = State.SERVING_IMPLICIT, self._outcome.principal, self._asked
        return [Proceed()]

    def _denied(self, now: float) -> list[Effect]:
        assert isinstance(self._outcome, Denied)
        return self._refuse(self._outcome)

    def _denied_implicitly(self, now: float) -> list[Effect]:
        assert isinstance(self._outcome, Denied)
        return self._close(f"Anonymous credential refused: {self._outcome.reason}")

    def _negotiate(self, now: float) -> list[Effect]:
        self.state = State.SERVING
        return [Proceed()]

    def _expired(self, now: float) -> list[Effect]:
        return self._close("Reauthentication timeout")

    def _out_of_turn(self, now: float) -> list[Effect]:
        return self._close("Unexpected message during the initial connection")

    def _busy(self, now: float) -> list[Effect]:
        return [Drop("Dropping Authentication event since authentication is in progress")]

    def _ignore(self, now: float) -> list[Effect]:
        return []

    def _refuse(self, denied: Denied) -> list[Effect]:
        answer = AuthenticationResponse(Status(Category.E_REFUSED, denied.code or -1, denied.reason))
        return [answer, *self._close(f"Authentication failed: {denied.reason}")]

    def _close(self, reason: str) -> list[Effect]:
        self.closed()
        return [Close(reason)]


_A = Authentication
_IGNORED: Cell[State] = to(_A._ignore)
_BUSY: Cell[State] = to(_A._busy)
_CLOSE: Cell[State] = to(_A._out_of_turn, State.CLOSED)
_EXPIRED: Cell[State] = to(_A._expired, State.CLOSED)
_NO_OUTCOME = {Event.GRANTED: _IGNORED, Event.DENIED: _IGNORED}

# With an authenticator that never blocks, a request leads directly to the state of its outcome.
TABLE = table(State, Event, {
    State.START: {
        Event.REQUEST: to(_A._first, State.AUTHENTICATING, State.AUTHENTICATED, State.CLOSED),
        Event.IDENTITY: to(_A._implicit, State.IMPLICIT, State.SERVING_IMPLICIT, State.CLOSED),
        **_NO_OUTCOME, Event.LIFETIME: _IGNORED},
    State.AUTHENTICATING: {
        Event.REQUEST: _BUSY, Event.IDENTITY: _CLOSE, Event.GRANTED: to(_A._granted, State.AUTHENTICATED),
        Event.DENIED: to(_A._denied, State.CLOSED), Event.LIFETIME: _IGNORED},
    State.AUTHENTICATED: {
        Event.REQUEST: _CLOSE, Event.IDENTITY: to(_A._negotiate, State.SERVING), **_NO_OUTCOME, Event.LIFETIME: _EXPIRED},
    State.IMPLICIT: {
        Event.REQUEST: _BUSY, Event.IDENTITY: _CLOSE, Event.GRANTED: to(_A._granted_implicitly, State.SERVING_IMPLICIT),
        Event.DENIED: to(_A._denied_implicitly, State.CLOSED), Event.LIFETIME: _IGNORED},
    State.SERVING: {  # the session itself drops a second clientIdentity
        Event.REQUEST: to(_A._again, State.REAUTHENTICATING, State.SERVING, State.CLOSED), Event.IDENTITY: _IGNORED,
        **_NO_OUTCOME, Event.LIFETIME: _EXPIRED},
    State.SERVING_IMPLICIT: {  # as in BlazingMQ, which drops requests of anonymous clients as in progress
        Event.REQUEST: _BUSY, Event.IDENTITY: _IGNORED, **_NO_OUTCOME, Event.LIFETIME: _IGNORED},
    State.REAUTHENTICATING: {  # the previous credential remains in force until its lifetime ends
        Event.REQUEST: _BUSY, Event.IDENTITY: _IGNORED, Event.GRANTED: to(_A._granted_again, State.SERVING, State.CLOSED),
        Event.DENIED: to(_A._denied, State.CLOSED), Event.LIFETIME: _EXPIRED},
    State.CLOSED: dict.fromkeys(Event, _IGNORED),
})
