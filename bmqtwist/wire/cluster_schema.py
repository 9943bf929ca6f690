"""Schema types between brokers: metadata log, partitions and elector; and the records of the metadata log, which are the
body of CLUSTER_STATE events and the content of the ledger file.

A type that holds a choice has the attributes `choice` (wire name of the selection, "" = unset) and `value`.
Types with a `sender` or `partition_id` are also inputs of state machines: the receiver sets the sender, the encoder the
partition. "Extension" marks messages of this broker alone; the optional fields of the elector's messages are extensions,
too, which the original omits and skips.

Used by `cluster/` (state machines) and `member/dispatch.py`, whose table CLUSTER_MESSAGES has the handler of each
message; `control.py` encodes the messages. Messages between clients and brokers are in `schema.py`.
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
    """Status that a cluster member announces."""

    E_UNKNOWN = 0
    E_STARTING = 10
    E_AVAILABLE = 20
    E_STOPPING = 30
    E_UNAVAILABLE = 40


class PrimaryStatus(IntEnum):
    """Status of a partition's primary."""

    E_UNDEFINED = 0
    E_PASSIVE = 1
    E_ACTIVE = 5


# -- cluster metadata --------------------------------------------------------------------------------------------


class LeaderMessageSequence(NamedTuple):
    """LSN: position in the metadata log."""

    elector_term: U64 = 0
    sequence_number: U64 = 0


Lsn = Annotated[tuple[int, int], LeaderMessageSequence]  # term, sequence number
NO_LSN: Lsn = (0, 0)  # before the first record


class PartitionPrimaryInfo(SchemaType):
    """Primary of a partition and its lease."""

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
    """Added and removed apps of a queue."""

    uri: str = ""
    key: bytes = b""
    partition_id: I32 = 0
    added_app_ids: list[App] = array()
    removed_app_ids: list[App] = array()
    domain: str = ""


class Advisory(SchemaType):
    """Base of a leader's messages about the cluster state."""

    sequence_number: Lsn = NO_LSN


class MemberInfo(SchemaType):
    """Extension: a node of a cluster. `voting`: False for a learner; `incarnation`: of its storage, 0 = not registered."""

    node_id: I32 = 0
    name: str = ""
    endpoint: str = ""
    voting: bool = False
    incarnation: U64 = 0


class MemberList(SchemaType):
    """Extension: identity and nodes of a cluster. `cluster_id`: random, made when the cluster is formed; `version`: counts
    the changes; `partitions`: their number; `planned`: the next nodes, which configurations may have already."""

    cluster_id: U64 = 0
    version: U32 = 0
    partitions: I32 = 0
    nodes: list[MemberInfo] = array()
    planned: list[MemberInfo] = array()


class PartitionPrimaryAdvisory(Advisory):
    """New primaries or leases of partitions, or a new member list: an update of the cluster state."""

    partitions: list[PartitionPrimaryInfo] = array()
    members: MemberList | None = None


class UnsafeInfo(SchemaType):
    """Extension: the node that an operator lets run alone; `since`: seconds since the epoch."""

    node_id: I32 = 0
    since: U64 = 0


class LeaderAdvisory(Advisory):
    """Snapshot of the whole cluster state. Extensions: `unsafe`, `features` (names, separated by commas), `members`."""

    partitions: list[PartitionPrimaryInfo] = array()
    queues: list[QueueInfo] = array()
    unsafe: UnsafeInfo | None = None
    features: str | None = None
    members: MemberList | None = None


class QueueAssignmentAdvisory(Advisory):
    """Queues assigned to partitions: an update of the cluster state."""

    queues: list[QueueInfo] = array()


class QueueUnAssignmentAdvisory(Advisory):
    """Queues of one partition that are removed: an update of the cluster state."""

    partition_id: I32 = 0
    primary_lease_id: U32 = 0
    primary_node_id: I32 = 0
    queues: list[QueueInfo] = array()


class QueueUpdateAdvisory(Advisory):
    """Queues with added or removed apps: an update of the cluster state."""

    queue_updates: list[QueueInfoUpdate] = array()


class LeaderAdvisoryAck(SchemaType):
    """A follower has written the record with this LSN."""

    sequence_number_acked: Lsn = NO_LSN


class LeaderAdvisoryCommit(Advisory):
    """A quorum has written the record with this LSN."""

    sequence_number_committed: Lsn = NO_LSN


class NodeStatusAdvisory(SchemaType):
    """The status of the sender has changed. Extensions: `unable`: the reason why it cannot be leader or primary; `reach`:
    the number of members that it is connected to, itself included."""

    EXTENSIONS: ClassVar[tuple[str, ...]] = ("unable", "reach")
    status: NodeStatus = NodeStatus.E_UNKNOWN
    unable: str | None = None
    reach: U32 | None = None


class StopRequest(SchemaType):
    """The sender is about to stop."""

    cluster_name: str = ""
    version: I32 = 1


class ConfirmReceipt(SchemaType):
    """Extension: number of CONFIRMs of this connection that are committed."""

    count: U64 = 0


class QuotaAdvisory(SchemaType):
    """Extension: whether the free quota of a queue is ample, so that its CONFIRMs may be delayed."""

    q_id: U32 = 0
    ample: bool = False


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
    """Extension, from a leader: records that follow the LSN `previous` in its log, without gaps; on the wire as in
    CLUSTER_STATE events (`cluster/log_events.py` converts)."""

    previous: Lsn = NO_LSN
    records: Annotated[tuple[ClusterStateRecord, ...], bytes] = ()


class Snapshot(LogMessage):
    """Extension, from a leader: a SNAPSHOT record of its committed state at the record's LSN, encoded as in Entries."""

    record: Annotated[ClusterStateRecord, bytes] = b""  # type: ignore[assignment]


class Acknowledged(LogMessage):
    """Extension, from a follower: it has the leader's log durable up to `last`."""

    last: Lsn = NO_LSN


class CatchUp(LogMessage):
    """Extension: request for the records after `last`, the newest record of the sender that both logs may have: from a new
    follower, after a gap, or from a node that did not get enough votes, to nodes whose logs may be newer."""

    last: Lsn = NO_LSN


# -- partitions --------------------------------------------------------------------------------------------------


class PrimaryStatusAdvisory(SchemaType):
    """The primary of a partition is active or passive. Extension `reason`: why a passive primary cannot serve, or why an
    active one did not hand over the partition as the leader asked."""

    EXTENSIONS: ClassVar[tuple[str, ...]] = ("reason",)
    partition_id: I32 = 0
    primary_lease_id: U32 = 0
    status: PrimaryStatus = PrimaryStatus.E_UNDEFINED
    reason: str | None = None


class LeaseEnd(NamedTuple):
    """Extension: PSN, a lease and a sequence number; in a log summary, the last one of the lease."""

    lease: U32 = 0
    sequence: U64 = 0


Psn = Annotated[tuple[int, int], LeaseEnd]


class AboutPartition(SchemaType):
    """Base of messages about a partition, which the encoder sets and comparisons ignore."""

    partition_id: U32 = field(default=0, compare=False, kw_only=True)


class LeaseMessage(AboutPartition):
    """Base of messages between the state machines of a partition; `lease`: that of the primary."""

    sender: int = 0
    lease: U32 = 0


class Prepare(LeaseMessage):
    """Extension, from a primary: request to promise its lease and to report the log."""


class Promise(LeaseMessage):
    """Extension: durable promise to accept no record of a lower lease, with the log as in LogSummary. Sent again when
    records of a primary do not follow the log. `doubtful`: durable records may be missing; `lost`: files are, too."""

    last: Psn = (0, 0)
    base: Psn = (0, 0)
    leases: Sequence[Psn] = array()
    committed: Psn = (0, 0)
    doubtful: bool = False
    lost: bool = False


class Stale(LeaseMessage):
    """Extension: the sender has promised this lease, which is newer than the receiver's."""


class Pull(LeaseMessage):
    """Extension, from a primary: request for the records after `after`; None: for an image."""

    after: Psn | None = None


class ImagePart(LeaseMessage):
    """Extension: part `number` (from 0) of an image, the live records as of `at`; the log of the receiver continues after
    `at`. The encoder sets the CRC32-C of the records."""

    number: U32 = 0
    at: Psn = (0, 0)
    final: bool = False
    journal: bytes = b""
    data: bytes = b""
    qlist: bytes = b""
    crc: U32 = field(default=0, compare=False)


class Keepalive(LeaseMessage):
    """Extension, from a primary: request for a receipt. `previous`: the last record sent, None during an image; `parts`:
    parts of the image sent so far; `stamp`: milliseconds of the primary's own clock, which the receipt returns."""

    previous: Psn | None = None
    parts: U32 = 0
    committed: Psn = (0, 0)
    stamp: U64 = 0


class Renewal(LeaseMessage):
    """Extension, from a primary: request for a receipt with this stamp. It overtakes records, a Keepalive does not."""

    stamp: U64 = 0


class Decline(AboutPartition):
    """Extension, to the leader: the sender declines a lease. The leader assigns a lease above `used`: to `successor` unless
    0, to the sender only if it is `able`. `cause` is not sent."""

    lease: U32 = 0
    able: bool = False
    used: U32 = 0
    cause: str = ""
    successor: U32 = 0


class Yield(AboutPartition):
    """Extension, from the leader to the primary under this lease: hand the partition over to `successor`."""

    lease: U32 = 0
    successor: U32 = 0


class Fetch(AboutPartition):
    """Extension: request for the application data of the message `guid`, of the MESSAGE record with the PSN `at`, whose copy
    at the sender is damaged."""

    sender: int = 0
    at: Psn = (0, 0)
    queue_key: bytes = b""
    guid: bytes = b""


class Copy(AboutPartition):
    """Extension: answer to a Fetch, with the application data, or without `intact`: the sender has no intact copy."""

    sender: int = 0
    guid: bytes = b""
    intact: bool = False
    data: bytes = b""


class PartitionLogMessage(Chosen):
    """Extension: replication of partitions, except records and receipts, which are separate events."""

    CHOICE = Choice(0, (
        (0, "prepare", Prepare),
        (1, "promise", Promise),
        (2, "stale", Stale),
        (3, "pull", Pull),
        (5, "image", ImagePart),
        (7, "keepalive", Keepalive),
        (8, "decline", Decline),
        (9, "yield", Yield),
        (10, "fetch", Fetch),
        (11, "copy", Copy),
        (12, "renewal", Renewal),
    ))


class MetadataRequest(SchemaType):
    """Extension, to the leader: assign a queue with the apps `added_app_ids`; `update`: add and remove apps of it;
    `unassign`: remove it if its key is still `key`."""

    number: U64 = 0
    uri: str = ""
    update: bool = False
    unassign: bool = False
    added_app_ids: list[App] = array()
    removed_app_ids: list[App] = array()
    key: bytes = b""


class MetadataAnswer(SchemaType):
    """Extension, from the leader: the request with this number is committed, at this LSN or before, or refused with a
    reason and a code."""

    number: U64 = 0
    refused: bool = False
    reason: str = ""
    code: I32 = 0
    elector_term: U64 = 0
    sequence_number: U64 = 0


class MetadataLogMessage(Chosen):
    """Extension: replication of the metadata log and, since no higher one-byte tag is free, of the partitions."""

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
    """Message between brokers; also the body of a record of the metadata log. The tags 4 to 15, 23, 26, 28 and 29 are
    messages of the original that this broker ignores."""

    CHOICE = Choice(0, (
        (0, "partitionPrimaryAdvisory", PartitionPrimaryAdvisory),
        (1, "leaderAdvisory", LeaderAdvisory),
        (2, "queueAssignmentAdvisory", QueueAssignmentAdvisory),
        (3, "nodeStatusAdvisory", NodeStatusAdvisory),
        (16, "primaryStatusAdvisory", PrimaryStatusAdvisory),
        (18, "quotaAdvisory", QuotaAdvisory),
        (19, "confirmReceipt", ConfirmReceipt),  # tags above 30 take more than one byte
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
    """Request for a vote. `last`: LSN of the sender's newest metadata record; `ceded_by`: leader that hands over to it."""

    last: Lsn | None = None
    ceded_by: I32 | None = None


class ElectionResponse(SchemaType):
    """Vote, or refusal with the known leader `refused_for` (-1: no leader is known)."""

    refused_for: I32 | None = None


class LeaderHeartbeat(SchemaType):
    """Heartbeat of a leader. `stamp`: milliseconds of the leader's own clock, which responses return."""

    stamp: U64 | None = None


class ElectorNodeStatus(SchemaType):
    """The sender takes part in elections, or stops."""

    is_available: bool = False


class HeartbeatResponse(SchemaType):
    """Response to a heartbeat; a higher term than that of the heartbeat ends the leadership.

    `stamp`: that of the heartbeat; `last`: LSN of the sender's newest metadata record.
    """

    stamp: U64 | None = None
    last: Lsn | None = None


class ScoutingRequest(ElectionProposal):
    """Question whether the receiver would vote for the sender in this term."""


class ScoutingResponse(SchemaType):
    """Answer to a ScoutingRequest; `leader`: the known leader, -1 without one."""

    will_vote: bool = False
    leader: I32 | None = None


class LeadershipCessionNotification(SchemaType):
    """The sender has stopped leading. `successor`: the node that becomes a candidate at once."""

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
    """Decode the records of a CLUSTER_STATE event or a ledger file in buffer[start:end]."""
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
    """Return the record at `pos` and the position after it."""
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
    """Encode a record for a message or the ledger file."""
    raw = ber.encode(record.message)
    body = raw + PAD4[len(raw) & 3]
    words = (len(body) + _CRC_BYTES) // 4
    sizes = layout.CLUSTER_STATE_HEADER.words << _LEDGER_HEADER_WORDS_SHIFT | record.type
    head = _CLUSTER_STATE.pack(sizes, words, record.term, record.sequence_number, record.timestamp)
    return head + body + crc32c(head + body).to_bytes(_CRC_BYTES, "big")
