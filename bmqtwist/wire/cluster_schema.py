"""Schema types that only brokers send to each other: the metadata log, partitions, the elector; and the records of the
metadata log, which are the body of CLUSTER_STATE events and the content of the ledger file.

A type that holds a choice has the attributes `choice` (wire name of the selection, "" = unset) and `value`.
Types with a `sender` or `partition_id` are inputs of machines, too: the receiver sets the sender, the encoder the partition.

The optional fields of the elector's messages are ours: they are absent in what the original writes, and it skips them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, ClassVar, NamedTuple

from crc32c import crc32c

from bmqtwist.errors import PeerError
from bmqtwist.wire import ber, layout
from bmqtwist.wire.fast import PAD4
from bmqtwist.wire.fields import I32, U32, U64, Choice, Chosen, SchemaType, array


class NodeStatus(IntEnum):
    """State of a cluster member as it announces it."""

    E_UNKNOWN = 0
    E_STARTING = 10
    E_AVAILABLE = 20
    E_STOPPING = 30
    E_UNAVAILABLE = 40


class PrimaryStatus(IntEnum):
    """State of a partition's primary."""

    E_UNDEFINED = 0
    E_PASSIVE = 1
    E_ACTIVE = 5


# -- cluster metadata --------------------------------------------------------------------------------------------


class LeaderMessageSequence(NamedTuple):
    """Position in the metadata log: an LSN."""

    elector_term: U64 = 0
    sequence_number: U64 = 0


Lsn = Annotated[tuple[int, int], LeaderMessageSequence]  # term, sequence number
NO_LSN: Lsn = (0, 0)  # before the first record


class PartitionPrimaryInfo(SchemaType):
    """Who leads a partition, under which lease."""

    partition_id: I32 = 0
    primary_node_id: I32 = 0
    primary_lease_id: U32 = 0


class AppIdInfo(NamedTuple):
    """An app and its 5-byte storage key."""

    app_id: str = ""
    app_key: bytes = b""


App = Annotated[tuple[str, bytes], AppIdInfo]


class QueueInfo(SchemaType):
    """A queue, its 5-byte storage key, its partition and its apps."""

    uri: str = ""
    key: bytes = b""
    partition_id: I32 = 0
    app_ids: list[App] = array()


class QueueInfoUpdate(SchemaType):
    """Apps that a queue gained and lost."""

    uri: str = ""
    key: bytes = b""
    partition_id: I32 = 0
    added_app_ids: list[App] = array()
    removed_app_ids: list[App] = array()
    domain: str = ""


class Advisory(SchemaType):
    """Base of what a leader says about its state."""

    sequence_number: Lsn = NO_LSN


class PartitionPrimaryAdvisory(Advisory):
    """New primaries."""

    partitions: list[PartitionPrimaryInfo] = array()


class UnsafeInfo(SchemaType):
    """The node that goes on alone, because a person has said so, and since when: seconds since the epoch. Ours."""

    node_id: I32 = 0
    since: U64 = 0


class LeaderAdvisory(Advisory):
    """A snapshot of everything."""

    partitions: list[PartitionPrimaryInfo] = array()
    queues: list[QueueInfo] = array()
    unsafe: UnsafeInfo | None = None


class QueueAssignmentAdvisory(Advisory):
    """New queues."""

    queues: list[QueueInfo] = array()


class QueueUnAssignmentAdvisory(Advisory):
    """Queues that are gone."""

    partition_id: I32 = 0
    primary_lease_id: U32 = 0
    primary_node_id: I32 = 0
    queues: list[QueueInfo] = array()


class QueueUpdateAdvisory(Advisory):
    """Queues whose apps changed."""

    queue_updates: list[QueueInfoUpdate] = array()


class LeaderAdvisoryAck(SchemaType):
    """A follower has written it."""

    sequence_number_acked: Lsn = NO_LSN


class LeaderAdvisoryCommit(Advisory):
    """A quorum has written it."""

    sequence_number_committed: Lsn = NO_LSN


class NodeStatusAdvisory(SchemaType):
    """A member's state has changed."""

    status: NodeStatus = NodeStatus.E_UNKNOWN


class StopRequest(SchemaType):
    """The sender is about to stop."""

    cluster_name: str = ""
    version: I32 = 1


class ConfirmReceipt(SchemaType):
    """So many CONFIRMs of this connection are safe. Ours."""

    count: U64 = 0


class StopResponse(SchemaType):
    """The receiver no longer depends on the sender."""

    cluster_name: str = ""


class LedgerRecordType(IntEnum):
    """Kind of a record of the metadata log."""

    SNAPSHOT = 1
    UPDATE = 2
    COMMIT = 3
    ACK = 4


@dataclass(slots=True)
class ClusterStateRecord:
    """A record of the metadata log; `timestamp`: seconds since the epoch."""

    type: LedgerRecordType
    term: int
    sequence_number: int
    timestamp: int
    message: "ClusterMessage"


class LogMessage(SchemaType):
    """Base of messages about the metadata log."""

    sender: int = 0
    term: U64 = 0


class Entries(LogMessage):
    """Ours, from a leader: records that follow the one with the LSN `previous` in its log, none left out; on the wire as in
    CLUSTER_STATE events (`cluster/log_events.py` converts)."""

    previous: Lsn = NO_LSN
    records: Annotated[tuple[ClusterStateRecord, ...], bytes] = ()


class Snapshot(LogMessage):
    """Ours, from a leader: a SNAPSHOT record that stands for its committed log up to the record's LSN; as in Entries."""

    record: Annotated[ClusterStateRecord, bytes] = b""  # type: ignore[assignment]


class Acknowledged(LogMessage):
    """Ours, from a follower: the leader's log up to `last` survives a loss of power here."""

    last: Lsn = NO_LSN


class CatchUp(LogMessage):
    """Ours, from a follower that begins to follow, or lacks what precedes the entries it got: requests what follows `last`,
    the newest record it has before those. Also from a node that may not lead, since others have newer logs, to those."""

    last: Lsn = NO_LSN


# -- partitions --------------------------------------------------------------------------------------------------


class PrimaryStatusAdvisory(SchemaType):
    """A partition's primary is (not) ready."""

    partition_id: I32 = 0
    primary_lease_id: U32 = 0
    status: PrimaryStatus = PrimaryStatus.E_UNDEFINED


class LeaseEnd(NamedTuple):
    """Ours: a lease, and its last sequence number in a log; a PSN."""

    lease: U32 = 0
    sequence: U64 = 0


Psn = Annotated[tuple[int, int], LeaseEnd]


class AboutPartition(SchemaType):
    """Base of messages about a partition, which the encoder sets: equal messages may differ in it."""

    partition_id: U32 = field(default=0, compare=False, kw_only=True)


class LeaseMessage(AboutPartition):
    """Base of messages from one machine of a partition to another; `lease`: the primacy of the sender."""

    sender: int = 0
    lease: U32 = 0


class Prepare(LeaseMessage):
    """Ours, from a primary: accept no record of an older lease any more, and report your log."""


class Promise(LeaseMessage):
    """Ours: the sender accepts no record of a lease below this one, which survives a loss of power; with its log, as in
    LogSummary. Also later, when records of a primary do not fit. `doubtful`: durable records may be missing."""

    last: Psn = (0, 0)
    base: Psn = (0, 0)
    leases: Sequence[Psn] = array()
    committed: Psn = (0, 0)
    doubtful: bool = False


class Stale(LeaseMessage):
    """Ours: the sender has promised this lease, which is newer than the receiver's."""


class Pull(LeaseMessage):
    """Ours, from a primary: send your records behind `after`; None: all that is live."""

    after: Psn | None = None


class ImagePart(LeaseMessage):
    """Ours: part `number` (from 0 on) of all that is live, as of the record `at`; then the log begins behind `at`. The
    sender's encoder sets the CRC32-C of the records."""

    number: U32 = 0
    at: Psn = (0, 0)
    final: bool = False
    journal: bytes = b""
    data: bytes = b""
    qlist: bytes = b""
    crc: U32 = field(default=0, compare=False)


class Keepalive(LeaseMessage):
    """Ours, from a primary: asks for a receipt. `previous`: the last record sent, None while an image is in progress;
    `parts`: of it, sent so far; `stamp`: milliseconds of the primary's own clock, to be returned."""

    previous: Psn | None = None
    parts: U32 = 0
    committed: Psn = (0, 0)
    stamp: U64 = 0


class Decline(AboutPartition):
    """Ours, for the leader: the sender cannot be primary under the lease that it was given, or is not to be: assign a newer
    one above `used`; not to the sender, unless it is `able`; to `successor`, unless that is 0. `cause` stays here."""

    lease: U32 = 0
    able: bool = False
    used: U32 = 0
    cause: str = ""
    successor: U32 = 0


class Yield(AboutPartition):
    """Ours, from the leader, for the primary under this lease: give the partition to another node."""

    lease: U32 = 0
    successor: U32 = 0


class PartitionLogMessage(Chosen):
    """Ours: replication of the partitions, but for records and receipts, which are events of their own."""

    CHOICE = Choice(0, (
        (0, "prepare", Prepare),
        (1, "promise", Promise),
        (2, "stale", Stale),
        (3, "pull", Pull),
        (5, "image", ImagePart),
        (7, "keepalive", Keepalive),
        (8, "decline", Decline),
        (9, "yield", Yield),
    ))


class MetadataRequest(SchemaType):
    """Ours, for the leader: assign a queue with the apps `added_app_ids`; `update`: add and remove apps of it; `unassign`:
    forget it, unless it has another key by now."""

    number: U64 = 0
    uri: str = ""
    update: bool = False
    unassign: bool = False
    added_app_ids: list[App] = array()
    removed_app_ids: list[App] = array()
    key: bytes = b""


class MetadataAnswer(SchemaType):
    """Ours, from the leader: the request with this number is committed, at this LSN or before; or it is refused with a
    reason and its code."""

    number: U64 = 0
    refused: bool = False
    reason: str = ""
    code: I32 = 0
    elector_term: U64 = 0
    sequence_number: U64 = 0


class MetadataLogMessage(Chosen):
    """Ours: replication of the metadata log, and, since no tag behind this one is left, of the partitions."""

    CHOICE = Choice(0, (
        (0, "entries", Entries),
        (1, "snapshot", Snapshot),
        (2, "acknowledgement", Acknowledged),
        (3, "catchUp", CatchUp),
        (4, "partition", PartitionLogMessage),
        (5, "request", MetadataRequest),
        (6, "answer", MetadataAnswer),
    ))


class ClusterMessage(Chosen):
    """Any message from one broker to another; also the body of a record of the metadata log. Of the original's messages
    those that this broker ignores have the tags 4 to 15, 23, 26, 28 and 29."""

    CHOICE = Choice(0, (
        (0, "partitionPrimaryAdvisory", PartitionPrimaryAdvisory),
        (1, "leaderAdvisory", LeaderAdvisory),
        (2, "queueAssignmentAdvisory", QueueAssignmentAdvisory),
        (3, "nodeStatusAdvisory", NodeStatusAdvisory),
        (16, "primaryStatusAdvisory", PrimaryStatusAdvisory),
        (19, "confirmReceipt", ConfirmReceipt),  # beyond 30 a tag takes more than one byte
        (20, "queueUnAssignmentAdvisory", QueueUnAssignmentAdvisory),
        (21, "leaderAdvisoryAck", LeaderAdvisoryAck),
        (22, "leaderAdvisoryCommit", LeaderAdvisoryCommit),
        (24, "stopRequest", StopRequest),
        (25, "stopResponse", StopResponse),
        (27, "queueUpdateAdvisory", QueueUpdateAdvisory),
        (30, "metadataLogMessage", MetadataLogMessage),
    ))


# -- elector -----------------------------------------------------------------------------------------------------


class ElectionProposal(SchemaType):
    """Vote for me. `last`: of the newest metadata record of the sender; `ceded_by`: the leader that told it to stand."""

    last: Lsn | None = None
    ceded_by: I32 | None = None


class ElectionResponse(SchemaType):
    """You have my vote; or not, for the sake of the node `refused_for`, which leads (-1: nobody is known to)."""

    refused_for: I32 | None = None


class LeaderHeartbeat(SchemaType):
    """I lead. `stamp`: milliseconds of the leader's own clock; nobody else can tell what it means."""

    stamp: U64 | None = None


class ElectorNodeStatus(SchemaType):
    """I can (not) take part."""

    is_available: bool = False


class HeartbeatResponse(SchemaType):
    """I have heard you, in this term: with a higher one than that of the heartbeat, you lead no longer.

    `stamp`: that of the heartbeat; `last`: of the newest metadata record that the sender has.
    """

    stamp: U64 | None = None
    last: Lsn | None = None


class ScoutingRequest(ElectionProposal):
    """Would you vote for me?"""


class ScoutingResponse(SchemaType):
    """I would, or would not; `leader`: the node that leads, -1 if none is known."""

    will_vote: bool = False
    leader: I32 | None = None


class LeadershipCessionNotification(SchemaType):
    """I no longer lead. `successor`: the node that should stand at once."""

    successor: I32 | None = None


class ElectorMessage(SchemaType):
    """Body of an ELECTOR event; always BER."""

    CHOICE: ClassVar[Choice] = Choice(1, (
        (0, "electionProposal", ElectionProposal),
        (1, "electionResponse", ElectionResponse),
        (2, "leaderHeartbeat", LeaderHeartbeat),
        (3, "electorNodeStatus", ElectorNodeStatus),
        (4, "heartbeatResponse", HeartbeatResponse),
        (5, "scoutingRequest", ScoutingRequest),
        (6, "scoutingResponse", ScoutingResponse),
        (7, "leadershipCessionNotification", LeadershipCessionNotification),
    ))
    term: U64 = 0
    choice: str = ""
    value: Any = None


# -- records of the metadata log -----------------------------------------------------------------------------------

CLUSTER_STATE_HEADER_BYTES = layout.CLUSTER_STATE_HEADER.size
_CLUSTER_STATE = layout.CLUSTER_STATE_HEADER.struct  # header words and type; body words; term; sequence number; time
_LEDGER_HEADER_WORDS_SHIFT = layout.CLUSTER_STATE_HEADER.shift("header_words")
_LEDGER_TYPE_MASK = layout.CLUSTER_STATE_HEADER.mask("type")
_LEDGER_BODY_WORDS_MASK = layout.CLUSTER_STATE_HEADER.mask("body_words")
_CRC_BYTES = 4
_LEDGER_TYPES = {int(each): each for each in LedgerRecordType}


def decode_cluster_state(buffer: bytes, start: int, end: int) -> tuple[list[ClusterStateRecord], PeerError | None]:
    """Records of a CLUSTER_STATE event whose body is buffer[start:end], or of a ledger file's records."""
    found: list[ClusterStateRecord] = []
    pos = start
    try:
        while pos < end:
            record, pos = read_cluster_state_record(buffer, pos, end)
            found.append(record)
    except PeerError as error:
        return found, error
    return found, None if found else PeerError("no records", "CLUSTER_STATE", start)


def read_cluster_state_record(buffer: bytes, pos: int, end: int) -> tuple[ClusterStateRecord, int]:
    """The record at `pos` and the position after it."""
    if end - pos < CLUSTER_STATE_HEADER_BYTES:
        raise PeerError("record header cut short", "CLUSTER_STATE", pos)
    sizes, words, term, sequence_number, timestamp = _CLUSTER_STATE.unpack_from(buffer, pos)
    header_words = sizes >> _LEDGER_HEADER_WORDS_SHIFT
    body = pos + header_words * 4
    stop = body + (words & _LEDGER_BODY_WORDS_MASK) * 4
    if stop > end:
        raise PeerError("record cut short", "CLUSTER_STATE", pos)
    if header_words < layout.CLUSTER_STATE_HEADER.words or stop - body <= _CRC_BYTES:
        raise PeerError("sizes do not fit", "CLUSTER_STATE", pos)
    kind = _LEDGER_TYPES.get(sizes & _LEDGER_TYPE_MASK)
    if kind is None:
        raise PeerError(f"unknown type {sizes & _LEDGER_TYPE_MASK}", "CLUSTER_STATE", pos)
    crc_at = stop - _CRC_BYTES
    record = buffer[pos:crc_at]
    if crc32c(record) != int.from_bytes(buffer[crc_at:stop], "big"):
        raise PeerError("wrong checksum", "CLUSTER_STATE", crc_at)
    try:
        message = ber.decode(ClusterMessage, record, body - pos)
    except PeerError as error:
        raise PeerError(error.reason, error.field, pos + error.offset) from None
    return ClusterStateRecord(kind, term, sequence_number, timestamp, message), stop


def encode_cluster_state_record(record: ClusterStateRecord) -> bytes:
    """One record, as it is sent and as it is written to the ledger file."""
    raw = ber.encode(record.message)
    body = raw + PAD4[len(raw) & 3]
    words = (len(body) + _CRC_BYTES) // 4
    sizes = layout.CLUSTER_STATE_HEADER.words << _LEDGER_HEADER_WORDS_SHIFT | record.type
    head = _CLUSTER_STATE.pack(sizes, words, record.term, record.sequence_number, record.timestamp)
    return head + body + crc32c(head + body).to_bytes(_CRC_BYTES, "big")
