"""Wire encoding of the messages of the metadata log."""

from __future__ import annotations

import pytest

from bmqtwist.cluster.log_events import Message, encode_log_message, log_message_of
from bmqtwist.errors import PeerError
from bmqtwist.wire import control
from bmqtwist.wire.cluster_schema import (
    Acknowledged,
    CatchUp,
    ClusterMessage,
    ClusterStateRecord,
    Entries,
    LeaderAdvisory,
    LeaderAdvisoryCommit,
    LeaderMessageSequence,
    LedgerRecordType,
    MetadataLogMessage,
    NodeStatusAdvisory,
    Snapshot,
)
from bmqtwist.wire.control import Encoding
from bmqtwist.wire.fast import EventType

SNAPSHOT = ClusterStateRecord(LedgerRecordType.SNAPSHOT, 3, 1, 1000, ClusterMessage(
    "leaderAdvisory", LeaderAdvisory(LeaderMessageSequence(3, 1))))
COMMIT = ClusterStateRecord(LedgerRecordType.COMMIT, 3, 2, 1000, ClusterMessage(
    "leaderAdvisoryCommit", LeaderAdvisoryCommit(LeaderMessageSequence(3, 2), LeaderMessageSequence(3, 1))))
MESSAGES: list[Message] = [Entries(2, 3, (2, 9), (SNAPSHOT, COMMIT)), Snapshot(2, 3, SNAPSHOT), Acknowledged(2, 3, (3, 2)),
                           CatchUp(2, 3, (0, 0))]


def decode(event: bytes) -> Message | None:
    assert event[4] & 0x3F == EventType.CONTROL and int.from_bytes(event[:4], "big") == len(event)
    return log_message_of(2, control.decode_control(event[8:], Encoding.BER).value)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_metadata_log_message_is_unchanged_by_a_round_trip(message: Message) -> None:
    assert decode(encode_log_message(message)) == message


def test_other_cluster_messages_decode_to_none() -> None:
    assert log_message_of(2, ClusterMessage("nodeStatusAdvisory", NodeStatusAdvisory())) is None
    assert log_message_of(2, ClusterMessage("", None)) is None
    assert log_message_of(2, ClusterMessage("metadataLogMessage", MetadataLogMessage())) is None


@pytest.mark.parametrize("body", [
    MetadataLogMessage("entries", Entries(0, 3, LeaderMessageSequence(), b"")),
    MetadataLogMessage("entries", Entries(0, 3, LeaderMessageSequence(), b"nonsense")),
    MetadataLogMessage("snapshot", Snapshot(0, 3, b"nonsense" * 9)),
    MetadataLogMessage("snapshot", Snapshot(0, 3, b""))], ids=repr)
def test_unreadable_records_are_a_peer_error(body: MetadataLogMessage) -> None:
    with pytest.raises(PeerError):
        log_message_of(2, ClusterMessage("metadataLogMessage", body))


def test_bytes_after_a_snapshot_record_are_a_peer_error() -> None:
    event = encode_log_message(Entries(2, 3, (0, 0), (SNAPSHOT, COMMIT)))
    records = control.decode_control(event[8:], Encoding.BER).value.value.value.records
    with pytest.raises(PeerError):
        log_message_of(2, ClusterMessage("metadataLogMessage", MetadataLogMessage("snapshot", Snapshot(0, 3, records))))
