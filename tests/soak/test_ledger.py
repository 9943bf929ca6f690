"""Tests of the violations that the history of the kill -9 run reports.

The history is `tests/soak/ledger.py`.
"""

from __future__ import annotations

import pytest

from soak.ledger import VERDICTS, QueueHistory

GUID, PAYLOAD = bytes(16), b"payload"


@pytest.fixture
def history() -> QueueHistory:
    """Create the history of a queue with one app and one acknowledged message."""
    history = QueueHistory("bmq://d/q", ("app",))
    history.attempt(GUID, PAYLOAD)
    history.acknowledge(GUID, 0)
    return history


def test_an_acknowledged_message_that_is_never_delivered_is_lost(history: QueueHistory) -> None:
    history.on_broker_restart()
    history.check_lost()
    assert history.counts["lost"] == 1


def test_a_delivered_message_is_not_lost(history: QueueHistory) -> None:
    history.deliver("app", GUID, PAYLOAD)
    history.check_lost()
    assert not any(history.counts[verdict] for verdict in VERDICTS)


def test_a_message_delivered_twice_in_one_run_is_duplicated(history: QueueHistory) -> None:
    history.deliver("app", GUID, PAYLOAD)
    history.on_broker_restart()
    history.deliver("app", GUID, PAYLOAD)
    assert history.counts["duplicated"] == 0
    history.deliver("app", GUID, PAYLOAD)
    assert history.counts["duplicated"] == 1


def test_a_message_delivered_after_its_processed_confirm_is_resurrected(history: QueueHistory) -> None:
    history.deliver("app", GUID, PAYLOAD)
    history.on_confirmed("app", {GUID})
    history.on_broker_restart()
    history.deliver("app", GUID, PAYLOAD)
    assert history.counts["resurrected"] == 1


def test_another_payload_or_an_unknown_message_is_unexpected(history: QueueHistory) -> None:
    history.deliver("app", GUID, b"other")
    history.deliver("app", b"\1" * 16, PAYLOAD)
    assert history.counts["unexpected"] == 2


def test_only_confirmed_messages_are_removed_from_the_ledger(history: QueueHistory) -> None:
    other = b"\2" * 16
    history.attempt(other, PAYLOAD)
    history.acknowledge(other, 0)
    history.on_confirmed("app", {GUID})
    history.drop_confirmed(0)
    assert list(history.attempted) == [other]


OTHER = b"\3" * 16


def violations(history: QueueHistory) -> dict[str, int]:
    """Return the violations with their counts."""
    return {verdict: history.counts[verdict] for verdict in VERDICTS if history.counts[verdict]}


@pytest.mark.parametrize("certain", [True, False])
def test_only_messages_sent_before_a_purge_may_be_missing(history: QueueHistory, certain: bool) -> None:
    history.purge("app", certain)
    history.on_broker_restart()
    history.check_lost()
    assert not violations(history)
    history.attempt(OTHER, PAYLOAD)
    history.acknowledge(OTHER, 0)
    history.check_lost()
    assert violations(history) == {"lost": 1}


@pytest.mark.parametrize("certain, expected", [(True, {"resurrected": 1}), (False, {})])
def test_a_message_purged_for_certain_is_resurrected_if_delivered_in_a_later_run(
        history: QueueHistory, certain: bool, expected: dict[str, int]) -> None:
    history.purge("app", certain)
    history.deliver("app", GUID, PAYLOAD)
    assert not violations(history)
    history.on_broker_restart()
    history.deliver("app", GUID, PAYLOAD)
    assert violations(history) == expected


def test_a_message_unacknowledged_at_a_purge_may_be_delivered_later(history: QueueHistory) -> None:
    history.attempt(OTHER, PAYLOAD)
    history.purge("app", True)
    history.acknowledge(OTHER, 0)
    history.on_broker_restart()
    history.deliver("app", OTHER, PAYLOAD)
    history.check_lost()
    assert not violations(history)


def test_a_purge_of_one_app_excuses_no_loss_of_another_app() -> None:
    history = QueueHistory("bmq://d/q", ("one", "two"))
    history.attempt(GUID, PAYLOAD)
    history.acknowledge(GUID, 0)
    history.purge("one", True)
    history.check_lost()
    assert violations(history) == {"lost": 1}


@pytest.fixture
def extra() -> QueueHistory:
    """Create the history of a queue without apps, an unregistered app, and one acknowledged message."""
    history = QueueHistory("bmq://d/q", (), ("extra",))
    history.attempt(GUID, PAYLOAD)
    history.acknowledge(GUID, 0)
    return history


def test_an_unregistered_app_must_not_receive_messages_and_misses_none(extra: QueueHistory) -> None:
    extra.check_lost()
    assert not violations(extra)
    extra.deliver("extra", GUID, PAYLOAD)
    assert violations(extra) == {"unexpected": 1}


def test_an_added_app_receives_only_messages_sent_after_its_registration(extra: QueueHistory) -> None:
    extra.add("extra")
    extra.check_lost()
    assert not violations(extra)
    extra.attempt(OTHER, PAYLOAD)
    extra.acknowledge(OTHER, 0)
    extra.on_broker_restart()
    extra.check_lost()
    assert violations(extra) == {"lost": 1}
    extra.deliver("extra", GUID, PAYLOAD)
    assert violations(extra) == {"lost": 1, "resurrected": 1}


def test_messages_sent_before_a_restart_that_adds_an_app_may_be_missing_there(extra: QueueHistory) -> None:
    extra.add("extra")
    extra.attempt(OTHER, PAYLOAD)
    extra.acknowledge(OTHER, 0)
    extra.on_broker_restart()
    extra.restarted_unanswered("extra")
    extra.check_lost()
    assert not violations(extra)


def test_an_app_that_is_added_again_receives_no_message_from_before_its_removal(extra: QueueHistory) -> None:
    extra.add("extra")
    extra.attempt(OTHER, PAYLOAD)
    extra.acknowledge(OTHER, 0)
    extra.remove("extra")
    extra.on_broker_restart()
    extra.check_lost()
    assert not violations(extra)
    extra.add("extra")
    extra.on_broker_restart()
    extra.check_lost()
    assert not violations(extra)
    extra.deliver("extra", OTHER, PAYLOAD)
    assert violations(extra) == {"resurrected": 1}
