"""One node of a cluster that goes on alone, because a person has said so: what its ledger says of that.

Whoever starts with such a ledger is a cluster of one, whatever the configuration says, until it is said that it is not.
What the other nodes have acknowledged and this one does not have is lost with that, so it is recorded.
"""

from __future__ import annotations

from bmqtwist.cluster.metadata_log import MetadataLog
from bmqtwist.cluster.record_log import snapshot_record
from bmqtwist.errors import PeerError
from bmqtwist.storage.ledger_file import LEDGER_HEADER_BYTES, encode_ledger
from bmqtwist.wire.cluster_events import LedgerRecordType, read_cluster_state_record
from bmqtwist.wire.cluster_schema import LeaderAdvisory, UnsafeInfo


def unsafe_of(data: bytes) -> UnsafeInfo | None:
    """Whether the node with this ledger goes on alone. A ledger that says so begins with it, as does each one after it."""
    if len(data) <= LEDGER_HEADER_BYTES:
        return None
    try:
        record, _ = read_cluster_state_record(data, LEDGER_HEADER_BYTES, len(data))
    except PeerError:
        return None
    advisory = record.message.value
    return advisory.unsafe if record.type is LedgerRecordType.SNAPSHOT and isinstance(advisory, LeaderAdvisory) else None


def rewritten(data: bytes, node_id: int, name: str, log_id: bytes, unsafe: UnsafeInfo | None, wall: int) -> bytes:
    """The ledger that takes the place of one: all that it says, committed or not, and whether the node goes on alone."""
    log = MetadataLog(node_id, name, [node_id], len(data) + 1)
    log.open(data)
    log.state.unsafe = unsafe
    # the sequence number is not that of a leader's first record: nothing of this waits for a commit
    return encode_ledger(log_id, [snapshot_record(log.state, (log.term + 1, 2), wall)])
