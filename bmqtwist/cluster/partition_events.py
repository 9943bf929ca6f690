"""Inputs and outputs of the state machine of a partition (`partition_machine.py`), and its messages on the wire, which
`wire/layout.py` (records, receipts) and `wire/cluster_schema.py` declare.

Events that occur with every message define `__init__` themselves: mypyc does not compile the one of a dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from crc32c import crc32c

from bmqtwist.cluster.election_events import PeerDown, PeerUp, Stop, Tick, TickAt
from bmqtwist.cluster.log_events import Alarm
from bmqtwist.errors import PeerError
from bmqtwist.storage.psn import LogSummary, Psn, RecordRun
from bmqtwist.wire import layout
from bmqtwist.wire.cluster_schema import (
    ClusterMessage,
    Copy,
    Decline,
    Fetch,
    ImagePart,
    Keepalive,
    MetadataLogMessage,
    PartitionLogMessage,
    Prepare,
    Promise,
    Pull,
    Renewal,
    Stale,
    Yield,
)
from bmqtwist.wire.control import cluster_event
from bmqtwist.wire.fast import EventType, event_header


class PartitionRole(Enum):
    """Role of a node in a partition; the names are those of the original's state machine."""

    UNKNOWN = "no primary is known"
    PRIMARY_HEALING_STG1 = "primary, collects the promises of a quorum"
    PRIMARY_HEALING_STG2 = "primary, pulls missing records, then waits until a quorum has its log"
    PRIMARY_HEALED = "active primary"
    REPLICA_WAITING = "replica, waits for the Prepare of the primary"
    REPLICA_HEALING = "replica, receives missing records"
    REPLICA_HEALED = "replica, has all committed records"
    STOPPED = "the node stops"


@dataclass(frozen=True, slots=True)
class ReplicationTiming:
    """Times in seconds. `lease`: without answers of a quorum, after which a primary becomes passive; `keepalive`: between
    two requests for receipts; `retry`: without progress of a healing, after which it restarts; `lease_max`: of a lease on
    slow links."""

    lease: float = 15.0
    keepalive: float = 2.0
    retry: float = 10.0
    lease_max: float = 20.0


class LogView(Protocol):
    """Read access to the log of the partition at this node."""

    @property
    def summary(self) -> LogSummary:
        """Summary of all appended records."""

    @property
    def written(self) -> Psn:
        """PSN of the last record that is written to the files; later ones cannot be sent yet."""

    @property
    def durable(self) -> Psn:
        """PSN of the last record that is durable at this node, as the configured durability defines it."""

    def can_send_after(self, after: Psn) -> bool:
        """True if the records after this one can be sent: it is in the log, or was in it until the last
        rollover and is still in memory."""

    @property
    def busy(self) -> bool:
        """True during a truncation or replacement: records can be neither appended nor read. A LogReady follows."""

    @property
    def broken(self) -> bool:
        """True after a failure of the files: no record can be appended until a restart of the node."""


# -- messages between nodes: outputs of the sender, inputs of the receiver; control messages: wire/cluster_schema.py --------


@dataclass(slots=True)
class Records:
    """Records to append after a record that both logs have; `committed`: the last PSN that the primary has committed."""

    sender: int
    lease: int
    committed: Psn
    run: RecordRun

    def __init__(self, sender: int, lease: int, committed: Psn, run: RecordRun) -> None:
        self.sender, self.lease, self.committed, self.run = sender, lease, committed, run


@dataclass(slots=True)
class ReplicaReceipt:
    """Receipt of a replica: its log equals the primary's up to `matched` and is durable up to `durable`; `parts`: received
    parts of an image; `stamp`: of the newest Keepalive received."""

    sender: int
    lease: int
    matched: Psn
    durable: Psn
    parts: int
    stamp: int

    def __init__(self, sender: int, lease: int, matched: Psn, durable: Psn, parts: int, stamp: int) -> None:
        self.sender, self.lease, self.matched = sender, lease, matched
        self.durable, self.parts, self.stamp = durable, parts, stamp


PartitionMessage = Prepare | Promise | Stale | Pull | Records | ImagePart | ReplicaReceipt | Keepalive | Renewal


def summary_of(promise: Promise) -> LogSummary:
    """Return the summary of a replica's log in its promise."""
    return LogSummary(promise.last, promise.base, tuple(promise.leases))


# -- further inputs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assigned:
    """The metadata log has committed that the node `primary` is primary under this lease."""

    primary: int
    lease: int


@dataclass(frozen=True, slots=True)
class PromiseWritten:
    """This node's promise of this lease is durable."""

    lease: int


@dataclass(frozen=True, slots=True)
class LogAdvanced:
    """Records were written or became durable."""


@dataclass(frozen=True, slots=True)
class LogReady:
    """The log can be read and appended to again; a truncation or replacement may have changed its content."""


@dataclass(frozen=True, slots=True)
class LogFailed:
    """Records could not be appended, or the log cannot be read."""

    reason: str


@dataclass(slots=True)
class SendCompleted:
    """A SendRecords or SendImagePart was performed. `last`: the last record sent, None for an image; `size`: bytes; `final`:
    it was the last part of the image."""

    node_id: int
    last: Psn | None
    size: int
    final: bool

    def __init__(self, node_id: int, last: Psn | None, size: int, final: bool = False) -> None:
        self.node_id, self.last, self.size, self.final = node_id, last, size, final


@dataclass(frozen=True, slots=True)
class ImageLost:
    """The image for this node cannot be completed: its source files were replaced."""

    node_id: int


@dataclass(frozen=True, slots=True)
class SendFailed:
    """The records for this node cannot be read."""

    node_id: int
    reason: str


PartitionInput = (Assigned | PeerUp | PeerDown | PromiseWritten | LogAdvanced | LogReady | LogFailed | SendCompleted
                  | ImageLost | SendFailed | Tick | Stop | PartitionMessage)


class PartitionEvent(Enum):
    """Columns of the table: the class names of the inputs; assignments to this node and to another one are distinct."""

    ASSIGNED_SELF = "AssignedSelf"
    ASSIGNED_OTHER = "AssignedOther"
    PEER_UP = "PeerUp"
    PEER_DOWN = "PeerDown"
    PROMISE_WRITTEN = "PromiseWritten"
    LOG_ADVANCED = "LogAdvanced"
    LOG_READY = "LogReady"
    LOG_FAILED = "LogFailed"
    SEND_COMPLETED = "SendCompleted"
    IMAGE_LOST = "ImageLost"
    SEND_FAILED = "SendFailed"
    TICK = "Tick"
    STOP = "Stop"
    PREPARE = "Prepare"
    PROMISE = "Promise"
    STALE = "Stale"
    PULL = "Pull"
    RECORDS = "Records"
    IMAGE_PART = "ImagePart"
    RECEIPT = "ReplicaReceipt"
    KEEPALIVE = "Keepalive"
    RENEWAL = "Renewal"


# -- outputs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavePromise:
    """Make the promise durable that this node accepts no records of lower leases; a PromiseWritten follows."""

    lease: int


@dataclass(slots=True)
class SendMessage:
    """Send a message to another node."""

    node_id: int
    message: PartitionMessage

    def __init__(self, node_id: int, message: PartitionMessage) -> None:
        self.node_id, self.message = node_id, message


@dataclass(slots=True)
class SendRecords:
    """Send a node one event of Records after the record `after`; a SendCompleted follows."""

    node_id: int
    after: Psn

    def __init__(self, node_id: int, after: Psn) -> None:
        self.node_id, self.after = node_id, after


@dataclass(frozen=True, slots=True)
class SendImagePart:
    """Send a node part `number` of an image; 0 begins a new image. A SendCompleted follows. The image must end after the
    record `ends_after`: it replaces the node's log, and must contain all records that both logs have."""

    node_id: int
    number: int
    ends_after: Psn


@dataclass(slots=True)
class Append:
    """Append the records of `run` that follow `after`, the last record of the log. A LogAdvanced or LogFailed follows."""

    run: RecordRun
    after: Psn

    def __init__(self, run: RecordRun, after: Psn) -> None:
        self.run, self.after = run, after


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log after this record. A LogReady follows."""

    psn: Psn


@dataclass(frozen=True, slots=True)
class StoreImagePart:
    """Store a part of an image. The final part replaces the log by the image; a LogReady or LogFailed follows it."""

    part: ImagePart


@dataclass(frozen=True, slots=True)
class BeginLease:
    """Append the first record of the lease. A LogAdvanced follows."""

    lease: int


@dataclass(slots=True)
class Committed:
    """All records up to this one are committed."""

    psn: Psn

    def __init__(self, psn: Psn) -> None:
        self.psn = psn


@dataclass(frozen=True, slots=True)
class SetActive:
    """Accept messages of clients from now on (`active`), or stop accepting them."""

    lease: int
    active: bool
    cause: str


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The role of this node in the partition has changed."""

    event: str
    before: PartitionRole
    after: PartitionRole


PartitionOutput = (SavePromise | SendMessage | SendRecords | SendImagePart | Append | Truncate | StoreImagePart | BeginLease
                   | Committed | SetActive | Decline | RoleChanged | TickAt | Alarm)


# -- on the wire ---------------------------------------------------------------------------------------------------------
#
# Records and receipts, the frequent messages, are STORAGE and REPLICATION_RECEIPT events with a layout of this broker; the
# other messages are control messages. Records have the same bytes as in the files. Only members with the feature
# METADATA_LOG receive these messages.

_RUN: Final = layout.RECORD_RUN.struct  # partition, lease, PSNs before, at the end and committed, bytes of each file, CRC
_RECEIPT: Final = layout.REPLICA_RECEIPT.struct  # partition, lease, PSNs matched and durable, parts, stamp
_RECEIPT_HEADER: Final = event_header(EventType.REPLICATION_RECEIPT, layout.REPLICA_RECEIPT.size)


AnyPartitionMessage = PartitionMessage | Decline | Yield | Fetch | Copy


def encode_partition_message(partition_id: int, message: AnyPartitionMessage) -> bytes:
    """Return a message as a whole event."""
    if isinstance(message, Records):
        return _record_run(partition_id, message)
    if isinstance(message, ReplicaReceipt):
        return _RECEIPT_HEADER + _RECEIPT.pack(partition_id, message.lease, *message.matched, *message.durable,
                                               message.parts, message.stamp)
    message.partition_id = partition_id
    if isinstance(message, ImagePart):
        message.crc = _crc(message)
    return cluster_event(MetadataLogMessage.of(PartitionLogMessage.of(message)))


def partition_message_of(sender: int, message: ClusterMessage) -> tuple[int, AnyPartitionMessage] | None:
    """Return (partition, message) of a control message, None if it is none of a partition. PeerError if the checksum of its
    records is wrong."""
    body = message.value.value if message.choice == "metadataLogMessage" else None
    value = body.value if isinstance(body, PartitionLogMessage) else None
    if value is None:
        return None
    if isinstance(value, ImagePart) and value.crc != _crc(value):
        raise PeerError("wrong checksum", "records", 0)
    if not isinstance(value, (Decline, Yield)):
        value.sender = sender
    return value.partition_id, value


def partition_event_of(sender: int, kind: EventType, body: bytes) -> tuple[int, Records | ReplicaReceipt]:
    """Return (partition, message) of a STORAGE or REPLICATION_RECEIPT event. PeerError if sizes or checksum are wrong."""
    if kind is EventType.REPLICATION_RECEIPT:
        if len(body) != _RECEIPT.size:
            raise PeerError(f"{len(body)} B are no receipt", "REPLICATION_RECEIPT", 0)
        (partition_id, lease, matched_lease, matched, durable_lease, durable, parts, stamp) = _RECEIPT.unpack(body)
        return partition_id, ReplicaReceipt(sender, lease, (matched_lease, matched), (durable_lease, durable), parts, stamp)
    if len(body) < _RUN.size:
        raise PeerError("cut short", "STORAGE", len(body))
    (partition_id, lease, previous_lease, previous, last_lease, last, committed_lease, committed, journal_bytes, data_bytes,
     qlist_bytes, crc) = _RUN.unpack_from(body)
    data_at = _RUN.size + journal_bytes
    qlist_at = data_at + data_bytes
    if qlist_at + qlist_bytes != len(body):
        raise PeerError("sizes do not fit the event", "STORAGE", layout.RECORD_RUN.offset("journal_bytes"))
    if crc32c(memoryview(body)[_RUN.size:]) != crc:
        raise PeerError("wrong checksum", "STORAGE", layout.RECORD_RUN.offset("crc"))
    run = RecordRun((previous_lease, previous), (last_lease, last), body[_RUN.size:data_at], body[data_at:qlist_at],
                    body[qlist_at:])
    return partition_id, Records(sender, lease, (committed_lease, committed), run)


def _record_run(partition_id: int, message: Records) -> bytes:
    run = message.run
    records = b"".join((run.journal, run.data, run.qlist))
    return b"".join((event_header(EventType.STORAGE, _RUN.size + len(records)),
                     _RUN.pack(partition_id, message.lease, *run.previous, *run.last, *message.committed, len(run.journal),
                               len(run.data), len(run.qlist), crc32c(records)), records))


def _crc(part: ImagePart) -> int:
    return crc32c(b"".join((part.journal, part.data, part.qlist)))
