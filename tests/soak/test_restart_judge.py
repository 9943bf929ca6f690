"""Tests of `restart_judge.judge`: violations in the records of the clients of a restart or failover run."""

from __future__ import annotations

import pytest

from soak.restart_clients import parse, payload
from soak.restart_judge import Consumed, Produced, judge

URI = "bmq://d/q"
GUIDS = ["a", "b", "c", "d"]
ACKS = [(number, guid, "SUCCESS") for number, guid in enumerate(GUIDS)]
ALL = [(0, guid, "p", number, False) for number, guid in enumerate(GUIDS)]
EVENTS = ("p", "CLROLRLROSD", 1)


def violations(acks: object = ACKS, deliveries: object = ALL, events: tuple[str, str, int] = EVENTS) -> set[str]:
    """Return the kinds of the reported violations."""
    verdict = judge([Produced("p", URI, 4, acks)], [Consumed(URI, "", deliveries)], [events])  # type: ignore[arg-type]
    return set(verdict.violations)


def test_a_correct_sequence_of_events_is_accepted() -> None:
    assert not violations()
    redelivered = [*ALL[:3], *((1, guid, "p", number, True) for number, guid in enumerate(GUIDS) if number)]
    assert not violations(deliveries=redelivered)  # on another connection, from the first unconfirmed message on


@pytest.mark.parametrize(("acks", "kind"), [
    (ACKS[:3], "unanswered"), ([*ACKS, ACKS[0]], "answered twice"), ([*ACKS[:3], (3, "d", "UNKNOWN")], "refused"),
    ([*ACKS[:3], (3, "c", "SUCCESS")], "duplicated")])
def test_wrong_acks_are_violations(acks: object, kind: str) -> None:
    assert kind in violations(acks=acks)


def test_a_refused_post_is_not_lost() -> None:
    assert violations([*ACKS[:3], (3, "d", "STORAGE_FAILURE")], ALL[:3]) == {"refused"}


@pytest.mark.parametrize(("deliveries", "kind"), [
    (ALL[:3], "lost"), ([*ALL, (0, "x", "p", 4, False)], "unexpected"), ([*ALL, (0, "x", "p", 3, False)], "unexpected"),
    ([*ALL, ALL[3]], "redelivered"), ([ALL[1], ALL[0], *ALL[2:]], "out of order"),
    ([*ALL, (1, "c", "p", 2, True), (1, "b", "p", 1, True)], "out of order")])
def test_wrong_deliveries_are_violations(deliveries: object, kind: str) -> None:
    assert kind in violations(deliveries=deliveries)


def test_with_changing_primaries_only_redelivery_on_one_connection_is_allowed() -> None:
    redelivered = [*ALL, ALL[3], ALL[2]]
    produced = [Produced("p", URI, 4, ACKS)]
    assert not judge(produced, [Consumed(URI, "", redelivered)], [EVENTS], moves=True).violations
    reordered = [ALL[1], ALL[0], *ALL[2:]]
    assert set(judge(produced, [Consumed(URI, "", reordered)], [EVENTS], moves=True).violations) == {"out of order"}
    flagged = [ALL[1], (*ALL[0][:4], True), *ALL[2:]]  # another consumer had it and was lost
    assert not judge(produced, [Consumed(URI, "", flagged)], [EVENTS], moves=True).violations
    assert set(judge(produced, [Consumed(URI, "", flagged)], [EVENTS]).violations) == {"out of order"}
    assert set(judge(produced, [Consumed(URI, "", [ALL[1], *ALL[2:]])], [EVENTS], moves=True).violations) == {"lost"}


@pytest.mark.parametrize("letters", ["CD", "CLROSD", "CLRLRLROSLROSD"])
def test_permitted_orders_of_session_events(letters: str) -> None:
    assert not violations(events=("p", letters, 1))


@pytest.mark.parametrize("letters", ["", "CLD", "CLRSOD", "CLRSD", "CLROOSD", "CROSD", "CLLROSD", "CLROS", "CLOROSD"])
def test_forbidden_orders_of_session_events_are_violations(letters: str) -> None:
    assert violations(events=("p", letters, 1)) == {"events"}


def test_a_payload_identifies_its_message_and_shows_damage() -> None:
    made = payload("producer1", 12345)
    assert parse(made) == ("producer1", 12345) and parse(made[:-1] + b"?") == ("damaged", -1)
