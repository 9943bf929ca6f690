"""The judge of the kill -9 run must see what it is there for."""

from __future__ import annotations

import pytest

from soak.ledger import QueueHistory

GUID, PAYLOAD = bytes(16), b"payload"


@pytest.fixture
def history() -> QueueHistory:
    """One queue, one app, one acknowledged message."""
    history = QueueHistory("bmq://d/q", ("app",))
    history.attempt(GUID, PAYLOAD)
    history.acknowledge(GUID, 0)
    return history


def test_an_acknowledged_message_that_never_comes_is_lost(history: QueueHistory) -> None:
    """The promise of an ACK."""
    history.broker_died()
    history.judge()
    assert history.counts["lost"] == 1


def test_a_delivered_message_is_not_lost(history: QueueHistory) -> None:
    """Unconfirmed, but there."""
    history.deliver("app", GUID, PAYLOAD)
    history.judge()
    assert not any(history.counts[verdict] for verdict in ("lost", "duplicated", "resurrected", "unexpected"))


def test_a_message_delivered_twice_in_one_life_is_duplicated(history: QueueHistory) -> None:
    """Once per life is redelivery, twice is two copies."""
    history.deliver("app", GUID, PAYLOAD)
    history.broker_died()
    history.deliver("app", GUID, PAYLOAD)
    assert history.counts["duplicated"] == 0
    history.deliver("app", GUID, PAYLOAD)
    assert history.counts["duplicated"] == 1


def test_a_message_that_comes_back_after_its_confirm_was_settled_is_resurrected(history: QueueHistory) -> None:
    """A CONFIRM that the broker has seen is final."""
    history.deliver("app", GUID, PAYLOAD)
    history.settle("app", {GUID})
    history.broker_died()
    history.deliver("app", GUID, PAYLOAD)
    assert history.counts["resurrected"] == 1


def test_other_bytes_or_an_unknown_message_are_unexpected(history: QueueHistory) -> None:
    """What nobody sent must not be delivered."""
    history.deliver("app", GUID, b"other")
    history.deliver("app", b"\1" * 16, PAYLOAD)
    assert history.counts["unexpected"] == 2


def test_settled_messages_are_forgotten_in_the_end_and_unsettled_ones_are_not(history: QueueHistory) -> None:
    """Long runs need bounded memory."""
    other = b"\2" * 16
    history.attempt(other, PAYLOAD)
    history.acknowledge(other, 0)
    history.settle("app", {GUID})
    history.forget_settled(0)
    assert list(history.attempted) == [other]
