"""What nodes say to each other about the metadata log, as events of the wire: control messages that are ours, with records
as the original writes them. Only members that know METADATA_LOG are sent any.
"""

from __future__ import annotations

from bmqtwist.cluster.log_events import Acknowledged, CatchUp, Entries, Lsn, Message, Snapshot
from bmqtwist.errors import PeerError
from bmqtwist.wire.cluster_events import decode_cluster_state, encode_cluster_state_record, read_cluster_state_record
from bmqtwist.wire.cluster_schema import (
    ClusterMessage,
    LeaderMessageSequence,
    MetadataAcknowledgement,
    MetadataCatchUp,
    MetadataEntries,
    MetadataLogMessage,
    MetadataSnapshot,
)
from bmqtwist.wire.control import ControlMessage, encode_event


def encode_log_message(message: Message) -> bytes:
    """A whole event."""
    if isinstance(message, Entries):
        records = b"".join(map(encode_cluster_state_record, message.records))
        body = MetadataLogMessage("entries", MetadataEntries(message.term, _sequence(message.previous), records))
    elif isinstance(message, Snapshot):
        snapshot = MetadataSnapshot(message.term, encode_cluster_state_record(message.record))
        body = MetadataLogMessage("snapshot", snapshot)
    elif isinstance(message, Acknowledged):
        acknowledgement = MetadataAcknowledgement(message.term, _sequence(message.lsn))
        body = MetadataLogMessage("acknowledgement", acknowledgement)
    else:
        body = MetadataLogMessage("catchUp", MetadataCatchUp(message.term, _sequence(message.last)))
    return encode_event(ControlMessage(None, "clusterMessage", ClusterMessage("metadataLogMessage", body)))


def log_message_of(sender: int, message: ClusterMessage) -> Message | None:
    """The same, read; None = it is about something else. PeerError if its records cannot be read."""
    value = message.value.value if message.choice == "metadataLogMessage" else None
    if isinstance(value, MetadataEntries):
        records, error = decode_cluster_state(value.records, 0, len(value.records))
        if error is not None:
            raise error
        return Entries(sender, value.term, _lsn(value.previous), tuple(records))
    if isinstance(value, MetadataSnapshot):
        record, end = read_cluster_state_record(value.snapshot, 0, len(value.snapshot))
        if end != len(value.snapshot):
            raise PeerError("more than one record", "snapshot", end)
        return Snapshot(sender, value.term, record)
    if isinstance(value, MetadataAcknowledgement):
        return Acknowledged(sender, value.term, _lsn(value.last))
    return CatchUp(sender, value.term, _lsn(value.last)) if isinstance(value, MetadataCatchUp) else None


def _sequence(lsn: Lsn) -> LeaderMessageSequence:
    return LeaderMessageSequence(*lsn)


def _lsn(sequence: LeaderMessageSequence) -> Lsn:
    return sequence.elector_term, sequence.sequence_number
