"""The fuzz campaigns at smoke size, and proof that they would notice."""

from __future__ import annotations

import pytest

from bmqtwist.errors import PeerError
from fuzz import codecs, corpus, sessions
from fuzz.configurations import Configurations
from fuzz.findings import Finding
from fuzz.storage_tails import Tails

SEED = 20261121


def test_decoders_answer_mutated_input_with_an_event_or_a_declared_error() -> None:
    """Any bytes may come from a peer or a disk."""
    counted = codecs.run(5_000, SEED)
    assert sum(counted.values()) == 5_000
    assert min(counted.values()) > 0


def test_sessions_survive_mutated_conversations_and_leave_nothing_behind() -> None:
    """A hostile client costs itself its connection and nobody anything."""
    counted = sessions.main(5_000, SEED)
    assert counted["mutated"] >= 5_000
    assert counted["probes"] > 10
    assert counted["closed by the broker"] > 0
    assert counted["answers"] > counted["conversations"]


def test_recovery_survives_damaged_file_sets_and_delivers_nothing_that_was_never_stored() -> None:
    """A torn or rotten disk costs messages at worst, never the broker or the truth."""
    counted = Tails(SEED).run(200)
    assert counted["recovered"] + counted["refused"] == 200
    assert counted["exact states checked"] > 30
    assert counted["messages"] > 1000


def test_mutated_configurations_load_or_are_refused_with_words() -> None:
    """A typing error must not look like a bug."""
    configurations = Configurations(SEED)
    try:
        counted = configurations.run(100)
    finally:
        configurations.close()
    assert counted["loaded"] > 0
    assert counted["refused"] > 0


def test_a_decoder_that_raises_anything_else_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A campaign that cannot fail proves nothing."""
    def careless(data: bytes) -> None:
        if len(data) % 7 == 3:
            data[len(data)]

    monkeypatch.setitem(codecs.TARGETS, "uris", (careless, *codecs.TARGETS["uris"][1:]))
    with pytest.raises(Finding, match=r"uris: IndexError"):
        codecs.run(1_000, SEED)


def test_an_exception_out_of_a_session_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the sessions."""
    def careless(self: object, *arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("bmqtwist.link.client.ClientSession._take_confirms", careless)
    with pytest.raises(Finding, match="ZeroDivisionError"):
        sessions.main(5_000, SEED)


def test_the_corpus_holds_every_event_type_a_client_sends() -> None:
    """Seeds decide what mutations can reach."""
    assert {1, 2, 3, 11, 12, 13, 15} <= corpus.by_type().keys()
    assert len(corpus.conversations()) > 50


def test_an_empty_error_text_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are for people."""
    def mute(data: bytes) -> None:
        raise PeerError("")

    monkeypatch.setitem(codecs.TARGETS, "uris", (mute, *codecs.TARGETS["uris"][1:]))
    with pytest.raises(Finding, match="without a sentence"):
        codecs.feed("uris", b"x")
