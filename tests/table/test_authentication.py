"""Authentication of a connection (link/authentication.py): effects and next state of every event in every state."""

from __future__ import annotations

from typing import Any

import pytest

from bmqtwist.link.authentication import (
    TABLE,
    Authenticate,
    Authentication,
    AuthenticationEvent,
    AuthenticationState,
    CloseConnection,
    Credential,
    Denied,
    DropRequest,
    Granted,
    Proceed,
)
from bmqtwist.wire.schema import AuthenticationResponse

S, E = AuthenticationState, AuthenticationEvent
DROP, CLOSE, NO_EFFECT = ("Drop",), ("Close",), ()

# (effects, next state); in all other cells there is no effect, and the state stays.
EXPECTED: dict[tuple[AuthenticationState, AuthenticationEvent], tuple[tuple[str, ...], AuthenticationState]] = {
    (S.START, E.REQUEST): (("Authenticate",), S.AUTHENTICATING),
    (S.START, E.IDENTITY): (("Authenticate",), S.AUTHENTICATING_ANONYMOUS),
    (S.AUTHENTICATING, E.REQUEST): (DROP, S.AUTHENTICATING),
    (S.AUTHENTICATING, E.IDENTITY): (CLOSE, S.CLOSED),
    (S.AUTHENTICATING, E.GRANTED): (("Answer",), S.AUTHENTICATED),
    (S.AUTHENTICATING, E.DENIED): (("Answer", "Close"), S.CLOSED),
    (S.AUTHENTICATED, E.REQUEST): (CLOSE, S.CLOSED),
    (S.AUTHENTICATED, E.IDENTITY): (("Proceed",), S.NEGOTIATED),
    (S.AUTHENTICATED, E.LIFETIME): (CLOSE, S.CLOSED),
    (S.AUTHENTICATING_ANONYMOUS, E.REQUEST): (DROP, S.AUTHENTICATING_ANONYMOUS),
    (S.AUTHENTICATING_ANONYMOUS, E.IDENTITY): (CLOSE, S.CLOSED),
    (S.AUTHENTICATING_ANONYMOUS, E.GRANTED): (("Proceed",), S.NEGOTIATED_ANONYMOUS),
    (S.AUTHENTICATING_ANONYMOUS, E.DENIED): (CLOSE, S.CLOSED),
    (S.NEGOTIATED, E.REQUEST): (("Authenticate",), S.REAUTHENTICATING),
    (S.NEGOTIATED, E.LIFETIME): (CLOSE, S.CLOSED),
    (S.NEGOTIATED_ANONYMOUS, E.REQUEST): (DROP, S.NEGOTIATED_ANONYMOUS),
    (S.REAUTHENTICATING, E.REQUEST): (DROP, S.REAUTHENTICATING),
    (S.REAUTHENTICATING, E.GRANTED): (("Answer",), S.NEGOTIATED),
    (S.REAUTHENTICATING, E.DENIED): (("Answer", "Close"), S.CLOSED),
    (S.REAUTHENTICATING, E.LIFETIME): (CLOSE, S.CLOSED),
}
NAMES = {Authenticate: "Authenticate", AuthenticationResponse: "Answer", Proceed: "Proceed",
         DropRequest: "Drop", CloseConnection: "Close"}


class SlowAuthenticator:
    """A blocking authenticator: the test supplies its outcome."""

    mechanism, blocking = "SLOW", True


def authentication_in(state: AuthenticationState) -> tuple[Authentication, int]:
    """An authentication brought into a state by events, and the token of the request in progress."""
    slow: Any = SlowAuthenticator()
    made = Authentication({"SLOW": slow}, Credential("SLOW", b""))
    good = Granted("me", 10_000)
    token = 0
    if state in (S.AUTHENTICATING_ANONYMOUS, S.NEGOTIATED_ANONYMOUS):
        token = made.on_identity(0.0)[0].token  # type: ignore[union-attr]
        if state is S.NEGOTIATED_ANONYMOUS:
            made.on_outcome(token, good, 0.0)
    elif state is not S.START:
        token = made.on_request("slow", b"", 0.0)[0].token  # type: ignore[union-attr]
        if state is not S.AUTHENTICATING:
            made.on_outcome(token, good, 0.0)
        if state in (S.NEGOTIATED, S.REAUTHENTICATING):
            made.on_identity(0.0)
        if state is S.REAUTHENTICATING:
            token = made.on_request("SLOW", b"", 1.0)[0].token  # type: ignore[union-attr]
        if state is S.CLOSED:
            made.close()
    assert made.state is state
    return made, token


def send_event(made: Authentication, event: AuthenticationEvent, token: int) -> list[Any]:
    """Send an event as the session does; return the effects."""
    if event is E.REQUEST:
        return made.on_request("SLOW", b"", 2.0)
    if event is E.IDENTITY:
        return made.on_identity(2.0)
    if event is E.LIFETIME:
        return made.tick(100.0)
    return made.on_outcome(token, Granted("me", 10_000) if event is E.GRANTED else Denied("no"), 2.0)


def test_the_table_has_a_cell_for_every_state_and_event() -> None:
    assert set(TABLE) == set(AuthenticationState)
    assert all(set(row) == set(AuthenticationEvent) for row in TABLE.values())


@pytest.mark.parametrize("state, event", [(state, event) for state in AuthenticationState for event in AuthenticationEvent],
                         ids=lambda value: value.name)
def test_every_event_in_every_state_has_the_expected_effects(state: AuthenticationState, event: AuthenticationEvent) -> None:
    made, token = authentication_in(state)
    effects = send_event(made, event, token)
    expected, after = EXPECTED.get((state, event), (NO_EFFECT, state))
    assert (tuple(NAMES[type(effect)] for effect in effects), made.state) == (expected, after)
    assert made.defers_frames == (after in (S.AUTHENTICATING, S.AUTHENTICATING_ANONYMOUS))
    if after is S.CLOSED:
        assert made.deadline is None and made.on_outcome(token, Granted("me"), 3.0) == []


@pytest.mark.parametrize("state, event", [(state, event) for state in AuthenticationState for event in AuthenticationEvent],
                         ids=lambda value: value.name)
def test_no_action_raises_or_proceeds_without_a_grant_in_any_state(state: AuthenticationState,
                                                                  event: AuthenticationEvent) -> None:
    """Also in cells that no session reaches."""
    made, _ = authentication_in(state)
    made._outcome = Granted("me") if event is not E.DENIED else Denied("no")
    made._requested_mechanism = made._mechanism or "SLOW"
    effects = TABLE[state][event].action(made, 2.0)
    if any(isinstance(effect, Proceed) for effect in effects):
        assert (state, event) in ((S.AUTHENTICATED, E.IDENTITY), (S.AUTHENTICATING_ANONYMOUS, E.GRANTED))


@pytest.mark.parametrize("state", [S.START, S.AUTHENTICATED, S.NEGOTIATED, S.CLOSED])
def test_an_outcome_without_a_request_in_progress_is_ignored(state: AuthenticationState) -> None:
    made, token = authentication_in(state)
    assert made.on_outcome(token, Granted("intruder"), 3.0) == [] and made.state is state
    assert made.principal in ("", "me")
