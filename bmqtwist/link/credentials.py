"""Credentials of this broker for outgoing connections: sent before the negotiation and renewed before they expire.

`negotiation.py` sends them on each connection that this broker opens, `peer.py` renews them. The check of received
credentials is in `authentication.py`; providers are configured in `security/authenticators.py`.
"""

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

RENEWAL_S = 5.0  # before the end of its lifetime a credential is renewed, or at 90 % of the lifetime
_NEVER = float("inf")


class CredentialProvider(Protocol):
    """Plug-in that provides the credential of this broker.

    `credentialProvider.name` is the dotted name of a custom class. The broker creates it with the mapping of its settings.
    `principal`: the credential's owner according to the authenticators of the other brokers; a broker with the same
    principal is a node of the same installation. Empty = the authorization rules decide.
    """

    principal: str

    def credential(self) -> Credential:
        """Return the credential, without blocking; called for each outgoing connection and each renewal."""


class CredentialSender:
    """Sender of the credential on one connection. `due`: time of its renewal, monotonic seconds; `failure`: why the provider
    returned no credential."""

    __slots__ = ("_credential", "due", "failure")

    def __init__(self, credential: Callable[[], Credential]) -> None:
        self._credential = credential
        self.due, self.failure = _NEVER, ""

    def send(self, session: Session) -> None:
        """Send the credential."""
        self.due = _NEVER
        try:
            credential = self._credential()
        except Exception as error:  # noqa: BLE001 - an error in a plug-in must not stop the broker
            self.failure = f"the credential provider fails: {type(error).__name__}: {error}"
            return
        session.send(AuthenticationMessage("authenticationRequest", AuthenticationRequest(credential.mechanism,
                                                                                          credential.identity)))

    def on_response(self, body: bytes, specific: int, now: float) -> str:
        """Process the authentication response. Return why the credential was refused; empty = accepted."""
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
            lifetime_s = lifetime_ms / 1000
            self.due = now + max(0.0, min(0.9 * lifetime_s, lifetime_s - RENEWAL_S))
        return ""
