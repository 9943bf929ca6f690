"""Fuzz campaigns with few inputs, and tests that they detect errors.

`python -m tests.soak` (`tests/soak/command.py`) runs them at full size.
"""

from __future__ import annotations

import pytest

from bmqtwist.errors import PeerError
from fuzz import codecs, corpus, sessions
from fuzz.command_lines import CommandLines
from fuzz.configurations import Configurations
from fuzz.findings import Finding
from fuzz.starts import Starts
from fuzz.storage_tails import Tails

SEED = 20261121


def test_decoders_answer_mutated_input_with_an_event_or_a_declared_error() -> None:
    """Any bytes may come from a peer or a disk."""
    counted = codecs.run(5_000, SEED)
    assert sum(counted.values()) == 5_000
    assert min(counted.values()) > 0


def test_mutated_conversations_leave_no_session_and_valid_clients_are_served() -> None:
    """A malformed client affects only its own connection."""
    counted = sessions.main(5_000, SEED)
    assert counted["mutated"] >= 5_000
    assert counted["probes"] > 10
    assert counted["closed by the broker"] > 0
    assert counted["answers"] > counted["conversations"]


def test_damaged_file_sets_recover_without_messages_that_were_not_stored() -> None:
    """Damage may lose messages; it must neither stop the broker nor create messages."""
    counted = Tails(SEED).run(200)
    assert counted["recovered"] + counted["refused"] == 200
    assert counted["exact states checked"] > 30
    assert counted["messages"] > 1000


def test_mutated_configurations_load_or_are_refused_with_findings() -> None:
    """A typing error must not raise an exception."""
    configurations = Configurations(SEED)
    try:
        counted = configurations.run(100)
    finally:
        configurations.close()
    assert counted["loaded"] > 0
    assert counted["refused"] > 0


def test_mutated_command_lines_end_without_a_traceback_or_a_credential() -> None:
    """Arguments, environment and input come from scripts and from typing errors."""
    command_lines = CommandLines(SEED)
    try:
        counted = command_lines.run(150)
    finally:
        command_lines.close()
    assert counted["cases"] == 150
    assert counted["exit 0"] > 0 and counted["exit 2"] > 0


@pytest.mark.process
def test_mutated_starts_of_the_broker_end_with_an_exit_code_and_a_sentence() -> None:
    """Files, arguments and environment of a start come from templates and scripts."""
    starts = Starts(SEED)
    try:
        counted = starts.run(20)
    finally:
        starts.close()
    assert counted["cases"] == 20 and counted["started"] > 0 and counted["refused"] + counted["usage"] > 0


def test_a_traceback_of_a_command_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign of commands must be able to fail."""
    monkeypatch.setattr("bmqtwist.sdk.options.is_host", lambda text: True)
    command_lines = CommandLines(SEED)
    try:
        with pytest.raises(Finding, match=r"idna|not a valid|Error"):
            command_lines.run(5_000)
    finally:
        command_lines.close()


def test_an_undeclared_exception_of_a_decoder_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign must be able to fail."""
    def raise_undeclared(data: bytes) -> None:
        if len(data) % 7 == 3:
            data[len(data)]

    monkeypatch.setitem(codecs.TARGETS, "uris", (raise_undeclared, *codecs.TARGETS["uris"][1:]))
    with pytest.raises(Finding, match=r"uris: IndexError"):
        codecs.run(1_000, SEED)


def test_an_exception_in_a_session_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign of sessions must be able to fail."""
    def raise_undeclared(self: object, *arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("bmqtwist.link.client.ClientSession._process_confirms", raise_undeclared)
    with pytest.raises(Finding, match="ZeroDivisionError"):
        sessions.main(5_000, SEED)


def test_the_corpus_contains_every_event_type_of_clients() -> None:
    """The seeds determine which code the mutations reach."""
    assert {1, 2, 3, 11, 12, 13, 15} <= corpus.by_type().keys()
    assert len(corpus.conversations()) > 50


def test_an_error_without_a_text_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Error texts are read by operators."""
    def raise_without_text(data: bytes) -> None:
        raise PeerError("")

    monkeypatch.setitem(codecs.TARGETS, "uris", (raise_without_text, *codecs.TARGETS["uris"][1:]))
    with pytest.raises(Finding, match="without a sentence"):
        codecs.feed("uris", b"x")
