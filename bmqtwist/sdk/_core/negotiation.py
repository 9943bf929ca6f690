"""How a connection begins: credentials if there are any, then who we are. Credentials that end are shown anew."""

from __future__ import annotations

from logging import WARNING
from typing import Any

from bmqtwist.errors import Category, PeerError
from bmqtwist.sdk._core.connection import Connection
from bmqtwist.sdk._core.session_state import Shared
from bmqtwist.sdk._core.states import Input, State
from bmqtwist.sdk.options import Credential
from bmqtwist.sdk.results import EventKind, Result, result_of
from bmqtwist.wire import control, schema
from bmqtwist.wire.control import AuthenticationMessage, NegotiationMessage, encoding_of

_RENEWAL_S = 5.0  # a credential is shown again that long before it ends, or at nine tenths of its life


class Negotiation:
    """Speaks first on each connection; tells `connection` how that ended. `identity`: who we are."""

    def __init__(self, shared: Shared, identity: schema.ClientIdentity, connection: Connection) -> None:
        self._options, self._state = shared.options, shared.state
        self._outbox, self._deadlines = shared.outbox, shared.deadlines
        self._identity, self._connection = identity, connection

    def introduce(self) -> None:
        """The channel is up."""
        try:
            credential = self._credential()
            if credential is not None:
                self._authenticate(credential)
        except Exception as error:  # noqa: BLE001 - the application's own code: without a credential there is no session
            self._no_credential(error)
            self._connection.retry(str(error))
            return
        if credential is not None:
            self._state.enter(State.AUTHENTICATING)
        else:
            self._identify()

    def _identify(self) -> None:
        self._state.enter(State.NEGOTIATING)
        self._outbox.send(NegotiationMessage("clientIdentity", self._identity))

    def on_negotiation(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """From the broker: it accepts us, or not."""
        try:
            message = control.decode_negotiation(buffer[start:end], encoding_of(specific))
        except PeerError as error:
            self._connection.retry(str(error))
            return
        response = message.value
        if message.choice != "brokerResponse":
            self._connection.retry("not a brokerResponse")
        elif response.result.category != Category.E_SUCCESS:
            self._connection.refused(result_of(response.result.category), response.result.message)
        else:
            self._connection.accepted(response)

    # -- credentials ------------------------------------------------------------------------------------------------

    def _credential(self) -> Credential | None:
        credential = self._options.credential
        return credential() if callable(credential) else credential

    def _no_credential(self, error: Exception) -> None:
        self._outbox.note(WARNING, f"no credential: {error}")
        self._outbox.event(EventKind.ERROR, Result.UNKNOWN, f"no credential: {error}")

    def _authenticate(self, credential: Credential) -> None:
        self._outbox.send(AuthenticationMessage("authenticationRequest",
                                                schema.AuthenticationRequest(credential.mechanism, credential.data)))

    def _response(self, buffer: bytes, specific: int, start: int, end: int) -> Any:
        message = control.decode_authentication(buffer[start:end], encoding_of(specific))
        if message.choice != "authenticationResponse":
            raise PeerError("not an authenticationResponse", "choice", start)
        return message.value

    def on_authentication(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """From the broker: it takes the credential, or not."""
        try:
            response = self._response(buffer, specific, start, end)
        except PeerError as error:
            self._connection.retry(str(error))
            return
        if response.status.category != Category.E_SUCCESS:
            self._connection.refused(result_of(response.status.category), response.status.message)
            return
        self._identify()
        self._renew_later(response.lifetime_ms)

    def _renew_later(self, lifetime_ms: int | None) -> None:
        if lifetime_ms is not None:
            life = lifetime_ms / 1000
            self._deadlines.after(Input.REAUTHENTICATE_DUE, max(min(0.9 * life, life - _RENEWAL_S), 0.0))

    def reauthenticate_due(self) -> None:
        """The credential ends soon."""
        try:
            credential = self._credential()
            if credential is not None:
                self._authenticate(credential)
        except Exception as error:  # noqa: BLE001 - the application's own code: the broker ends the session if it stays so
            self._no_credential(error)

    def on_reauthentication(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """From the broker: it takes the new credential, or not."""
        try:
            response = self._response(buffer, specific, start, end)
        except PeerError as error:
            self._outbox.nonsense(error)
            return
        if response.status.category == Category.E_SUCCESS:
            self._renew_later(response.lifetime_ms)
        else:
            self._outbox.note(WARNING, f"{self._connection.address} refuses the new credential: {response.status.message}")
            self._outbox.event(EventKind.ERROR, result_of(response.status.category), response.status.message)
