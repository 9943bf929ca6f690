"""The credential that this broker shows to another one: before it introduces itself, and again before it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmqtwist.errors import Category, PeerError
from bmqtwist.limits import NEGOTIATION_VALUES_MAX
from bmqtwist.link.authentication import Credential
from bmqtwist.link.session import Session
from bmqtwist.wire import control
from bmqtwist.wire.control import AuthenticationMessage, encoding_of
from bmqtwist.wire.schema import AuthenticationRequest

RENEWAL_S = 5.0  # a credential is shown again that long before it ends, or at nine tenths of its life
_NEVER = float("inf")


class CredentialProvider(Protocol):
    """A plug-in that knows the credential of this broker.

    A class of one's own is named by its dotted name in `credentialProvider.name` and made with the mapping of its settings.
    `principal`: what the authenticators of the other brokers call its owner, so that it is known that a broker which shows
    the same credential is one of us; empty = that is for the rules of authorization to say.
    """

    principal: str

    def credential(self) -> Credential:
        """Called for each connection that is made from here, and for each renewal; answers at once."""


class Presenter:
    """Shows a credential on one connection. `due`: when it has to be shown again, seconds, monotonic; `failure`: why there
    was none to be shown."""

    __slots__ = ("_credential", "due", "failure")

    def __init__(self, credential: Callable[[], Credential]) -> None:
        self._credential = credential
        self.due, self.failure = _NEVER, ""

    def show(self, session: Session) -> None:
        """Send it. The answer comes in its time, or the other side closes the connection."""
        self.due = _NEVER
        try:
            credential = self._credential()
        except Exception as error:  # noqa: BLE001 - a plug-in's mistake must not stop the broker
            self.failure = f"the credential provider fails: {type(error).__name__}: {error}"
            return
        session.send(AuthenticationMessage("authenticationRequest", AuthenticationRequest(credential.mechanism,
                                                                                          credential.identity)))

    def answered(self, body: bytes, specific: int, now: float) -> str:
        """The other side has judged: why the credential is no good; empty = it is."""
        try:
            message = control.decode_authentication(body, encoding_of(specific), NEGOTIATION_VALUES_MAX)
        except PeerError as error:
            return f"failed to decode the authentication message: {error}"
        if message.choice != "authenticationResponse":
            return f"unexpected authentication message '{message.choice}'"
        status, lifetime_ms = message.value.status, message.value.lifetime_ms
        if status.category is not Category.E_SUCCESS:
            return f"it refuses our credential: {status.message}"
        if lifetime_ms is not None:
            life = lifetime_ms / 1000
            self.due = now + max(0.0, min(0.9 * life, life - RENEWAL_S))
        return ""
