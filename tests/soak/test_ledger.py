"""The judge of the kill -9 run must see what it is there for."""

from __future__ import annotations

import pytest

from soak.ledger import VERDICTS, QueueHistory

GUID, PAYLOAD = bytes(16), b"payload"


@pytest.fixture
def history() -> QueueHistory:
    """One queue, one app, one acknowledged message."""
    history = QueueHistory("bmq://d/q", ("app",))
    history.attempt(GUID, PAYLOAD)
    history.acknowledge(GUID, 0)
    return history


def test_an_acknowledged_message_that_is_never_delivered_is_lost(history: QueueHistory) -> None:
    """The promise of an ACK."""
    history.broker_died()
    history.judge()
    assert history.counts["lost"] == 1


def test_a_delivered_message_is_not_lost(history: QueueHistory) -> None:
    """Unconfirmed, but there."""
    history.deliver("app", GUID, PAYLOAD)
    history.judge()
    assert not any(history.counts[verdict] for verdict in VERDICTS)


def test_a_message_delivered_twice_in_one_run_is_duplicated(history: QueueHistory) -> None:
    """Once per life is redelivery, twice is two copies."""
    history.deliver("app", GUID, PAYLOAD)
    history.broker_died()
    history.deliver("app", GUID, PAYLOAD)
    assert history.counts["duplicated"] == 0
    history.deliver("app", GUID, PAYLOAD)
    assert history.counts["duplicated"] == 1


def test_a_message_delivered_after_its_processed_confirm_is_resurrected(history: QueueHistory) -> None:
    """A CONFIRM that the broker has seen is final."""
    history.deliver("app", GUID, PAYLOAD)
    history.settle("app", {GUID})
    history.broker_died()
    history.deliver("app", GUID, PAYLOAD)
    assert history.counts["resurrected"] == 1


def test_another_payload_or_an_unknown_message_is_unexpected(history: QueueHistory) -> None:
    """What nobody sent must not be delivered."""
    history.deliver("app", GUID, b"other")
    history.deliver("app", b"\1" * 16, PAYLOAD)
    assert history.counts["unexpected"] == 2


def test_only_confirmed_messages_are_removed_from_the_ledger(history: QueueHistory) -> None:
    """Long runs need bounded memory."""
    other = b"\2" * 16
    history.attempt(other, PAYLOAD)
    history.acknowledge(other, 0)
    history.settle("app", {GUID})
    history.forget_settled(0)
    assert list(history.attempted) == [other]


OTHER = b"\3" * 16


def wrong(history: QueueHistory) -> dict[str, int]:
    """What was found."""
    return {verdict: history.counts[verdict] for verdict in VERDICTS if history.counts[verdict]}


@pytest.mark.parametrize("certain", [True, False])
def test_only_messages_sent_before_a_purge_may_be_missing(history: QueueHistory, certain: bool) -> None:
    """Whether the command was answered or not."""
    history.purge("app", certain)
    history.broker_died()
    history.judge()
    assert not wrong(history)
    history.attempt(OTHER, PAYLOAD)
    history.acknowledge(OTHER, 0)
    history.judge()
    assert wrong(history) == {"lost": 1}


@pytest.mark.parametrize("certain, accused", [(True, {"resurrected": 1}), (False, {})])
def test_a_message_purged_for_certain_is_resurrected_if_delivered_in_a_later_run(
        history: QueueHistory, certain: bool, accused: dict[str, int]) -> None:
    """In the same life it may have been under way; without an answer it may be there still."""
    history.purge("app", certain)
    history.deliver("app", GUID, PAYLOAD)
    assert not wrong(history)
    history.broker_died()
    history.deliver("app", GUID, PAYLOAD)
    assert wrong(history) == accused


def test_a_message_unacknowledged_at_a_purge_may_be_delivered_later(history: QueueHistory) -> None:
    """It was on its way when the command was sent."""
    history.attempt(OTHER, PAYLOAD)
    history.purge("app", True)
    history.acknowledge(OTHER, 0)
    history.broker_died()
    history.deliver("app", OTHER, PAYLOAD)
    history.judge()
    assert not wrong(history)


def test_a_purge_of_one_app_excuses_no_loss_of_another_app() -> None:
    """Each app has its own."""
    history = QueueHistory("bmq://d/q", ("one", "two"))
    history.attempt(GUID, PAYLOAD)
    history.acknowledge(GUID, 0)
    history.purge("one", True)
    history.judge()
    assert wrong(history) == {"lost": 1}


@pytest.fixture
def guest() -> QueueHistory:
    """A queue whose domain may get an app, and a message from before."""
    history = QueueHistory("bmq://d/q", (), ("guest",))
    history.attempt(GUID, PAYLOAD)
    history.acknowledge(GUID, 0)
    return history


def test_an_unregistered_app_must_not_receive_messages_and_misses_none(guest: QueueHistory) -> None:
    """Before it was added."""
    guest.judge()
    assert not wrong(guest)
    guest.deliver("guest", GUID, PAYLOAD)
    assert wrong(guest) == {"unexpected": 1}


def test_an_added_app_receives_only_messages_sent_after_its_registration(guest: QueueHistory) -> None:
    """The message from before must not come, later ones must."""
    guest.add("guest")
    guest.judge()
    assert not wrong(guest)
    guest.attempt(OTHER, PAYLOAD)
    guest.acknowledge(OTHER, 0)
    guest.broker_died()
    guest.judge()
    assert wrong(guest) == {"lost": 1}
    guest.deliver("guest", GUID, PAYLOAD)
    assert wrong(guest) == {"lost": 1, "resurrected": 1}


def test_messages_sent_before_a_restart_that_adds_an_app_may_be_missing_there(guest: QueueHistory) -> None:
    """The command was not answered; the next life reads the same file."""
    guest.add("guest")
    guest.attempt(OTHER, PAYLOAD)
    guest.acknowledge(OTHER, 0)
    guest.broker_died()
    guest.restarted_unanswered("guest")
    guest.judge()
    assert not wrong(guest)


def test_an_app_that_is_added_again_receives_no_message_from_before_its_removal(guest: QueueHistory) -> None:
    """Neither is anything missing for it."""
    guest.add("guest")
    guest.attempt(OTHER, PAYLOAD)
    guest.acknowledge(OTHER, 0)
    guest.remove("guest")
    guest.broker_died()
    guest.judge()
    assert not wrong(guest)
    guest.add("guest")
    guest.broker_died()
    guest.judge()
    assert not wrong(guest)
    guest.deliver("guest", OTHER, PAYLOAD)
    assert wrong(guest) == {"resurrected": 1}
