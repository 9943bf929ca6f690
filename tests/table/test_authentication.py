"""link/authentication.py TABLE: every (state, event) cell, against a second account of it."""

from __future__ import annotations

from typing import Any

import pytest

from bmqtwist.link.authentication import (
    TABLE,
    Authenticate,
    Authentication,
    Close,
    Credential,
    Denied,
    Drop,
    Event,
    Granted,
    Proceed,
    State,
)
from bmqtwist.wire.schema import AuthenticationResponse

S, E = State, Event
BUSY, OUT, QUIET = ("Drop",), ("Close",), ()

# (effects, state afterwards) where something happens; every other cell is quiet and stays where it is.
EXPECTED: dict[tuple[State, Event], tuple[tuple[str, ...], State]] = {
    (S.START, E.REQUEST): (("Authenticate",), S.AUTHENTICATING),
    (S.START, E.IDENTITY): (("Authenticate",), S.IMPLICIT),
    (S.AUTHENTICATING, E.REQUEST): (BUSY, S.AUTHENTICATING),
    (S.AUTHENTICATING, E.IDENTITY): (OUT, S.CLOSED),
    (S.AUTHENTICATING, E.GRANTED): (("Answer",), S.AUTHENTICATED),
    (S.AUTHENTICATING, E.DENIED): (("Answer", "Close"), S.CLOSED),
    (S.AUTHENTICATED, E.REQUEST): (OUT, S.CLOSED),
    (S.AUTHENTICATED, E.IDENTITY): (("Proceed",), S.SERVING),
    (S.AUTHENTICATED, E.LIFETIME): (OUT, S.CLOSED),
    (S.IMPLICIT, E.REQUEST): (BUSY, S.IMPLICIT),
    (S.IMPLICIT, E.IDENTITY): (OUT, S.CLOSED),
    (S.IMPLICIT, E.GRANTED): (("Proceed",), S.SERVING_IMPLICIT),
    (S.IMPLICIT, E.DENIED): (OUT, S.CLOSED),
    (S.SERVING, E.REQUEST): (("Authenticate",), S.REAUTHENTICATING),
    (S.SERVING, E.LIFETIME): (OUT, S.CLOSED),
    (S.SERVING_IMPLICIT, E.REQUEST): (BUSY, S.SERVING_IMPLICIT),
    (S.REAUTHENTICATING, E.REQUEST): (BUSY, S.REAUTHENTICATING),
    (S.REAUTHENTICATING, E.GRANTED): (("Answer",), S.SERVING),
    (S.REAUTHENTICATING, E.DENIED): (("Answer", "Close"), S.CLOSED),
    (S.REAUTHENTICATING, E.LIFETIME): (OUT, S.CLOSED),
}
NAMES = {Authenticate: "Authenticate", AuthenticationResponse: "Answer", Proceed: "Proceed", Drop: "Drop", Close: "Close"}


class Slow:
    """An authenticator that is asked on another thread."""

    mechanism, blocking = "SLOW", True


def bring(state: State) -> tuple[Authentication, int]:
    """An Authentication in a state, reached by events, and the token of what runs."""
    slow: Any = Slow()
    made = Authentication({"SLOW": slow}, Credential("SLOW", b""))
    good = Granted("me", 10_000)
    token = 0
    if state in (S.IMPLICIT, S.SERVING_IMPLICIT):
        token = made.identity(0.0)[0].token  # type: ignore[union-attr]
        if state is S.SERVING_IMPLICIT:
            made.done(token, good, 0.0)
    elif state is not S.START:
        token = made.request("slow", b"", 0.0)[0].token  # type: ignore[union-attr]
        if state is not S.AUTHENTICATING:
            made.done(token, good, 0.0)
        if state in (S.SERVING, S.REAUTHENTICATING):
            made.identity(0.0)
        if state is S.REAUTHENTICATING:
            token = made.request("SLOW", b"", 1.0)[0].token  # type: ignore[union-attr]
        if state is S.CLOSED:
            made.closed()
    assert made.state is state
    return made, token


def feed(made: Authentication, event: Event, token: int) -> list[Any]:
    """The event, as the session brings it."""
    if event is E.REQUEST:
        return made.request("SLOW", b"", 2.0)
    if event is E.IDENTITY:
        return made.identity(2.0)
    if event is E.LIFETIME:
        return made.tick(100.0)
    return made.done(token, Granted("me", 10_000) if event is E.GRANTED else Denied("no"), 2.0)


def test_the_table_is_total() -> None:
    assert set(TABLE) == set(State)
    assert all(set(row) == set(Event) for row in TABLE.values())


@pytest.mark.parametrize("state, event", [(state, event) for state in State for event in Event],
                         ids=lambda value: value.name)
def test_every_event_in_every_state(state: State, event: Event) -> None:
    made, token = bring(state)
    effects = feed(made, event, token)
    expected, after = EXPECTED.get((state, event), (QUIET, state))
    assert (tuple(NAMES[type(effect)] for effect in effects), made.state) == (expected, after)
    assert made.holding == (after in (S.AUTHENTICATING, S.IMPLICIT))
    if after is S.CLOSED:
        assert made.deadline is None and made.done(token, Granted("me"), 3.0) == []


@pytest.mark.parametrize("state, event", [(state, event) for state in State for event in Event],
                         ids=lambda value: value.name)
def test_every_cell_can_be_called_directly(state: State, event: Event) -> None:
    """Also those that no session reaches: none raises, none lets a client in without a grant."""
    made, _ = bring(state)
    made._outcome = Granted("me") if event is not E.DENIED else Denied("no")
    made._asked = made._mechanism or "SLOW"
    effects = TABLE[state][event].action(made, 2.0)
    if any(isinstance(effect, Proceed) for effect in effects):
        assert (state, event) in ((S.AUTHENTICATED, E.IDENTITY), (S.IMPLICIT, E.GRANTED))


@pytest.mark.parametrize("state", [S.START, S.AUTHENTICATED, S.SERVING, S.CLOSED])
def test_an_outcome_nobody_waits_for_means_nothing(state: State) -> None:
    made, token = bring(state)
    assert made.done(token, Granted("intruder"), 3.0) == [] and made.state is state
    assert made.principal in ("", "me")
