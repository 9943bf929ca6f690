"""Inputs and outputs of the state machine of a partition (`partition_machine.py`), and its messages on the wire.

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
    Decline,
    ImagePart,
    Keepalive,
    MetadataLogMessage,
    PartitionLogMessage,
    Prepare,
    Promise,
    Pull,
    Stale,
    Yield,
)
from bmqtwist.wire.control import cluster_event
from bmqtwist.wire.fast import EventType, event_header


class PartitionRole(Enum):
    """Role of a node in a partition; the names are those of the original's state machine."""

    UNKNOWN = "knows no primary"
    PRIMARY_HEALING_STG1 = "collects the promises of a quorum"
    PRIMARY_HEALING_STG2 = "fetches what it lacks, and waits until a quorum has its log"
    PRIMARY_HEALED = "is primary, and active"
    REPLICA_WAITING = "waits for the primary"
    REPLICA_HEALING = "gets what it lacks"
    REPLICA_HEALED = "follows the primary"
    STOPPED = "has stopped"


@dataclass(frozen=True, slots=True)
class ReplicationTiming:
    """Intervals in seconds. `lease`: a primary without answers of a quorum for so long becomes passive; `keepalive`: between
    two requests for receipts; `retry`: a healing without progress for so long restarts."""

    lease: float = 15.0
    keepalive: float = 2.0
    retry: float = 10.0


class LogView(Protocol):
    """Read access to the log of the partition at this node."""

    @property
    def summary(self) -> LogSummary:
        """Summary of all appended records."""

    @property
    def written(self) -> Psn:
        """The last record that is written to the files, and can be sent."""

    @property
    def durable(self) -> Psn:
        """The last record that is durable here, as the configured durability defines it."""

    def offers(self, after: Psn) -> bool:
        """True if the records after this one can be sent: it is in the log, or was until the last compaction."""

    @property
    def busy(self) -> bool:
        """True during a truncation or replacement: no record can be appended or read. A LogReady follows."""

    @property
    def broken(self) -> bool:
        """True if the log takes no records until a restart."""


# -- messages between nodes: outputs of the sender, inputs of the receiver; control messages: wire/cluster_schema.py --------


@dataclass(slots=True)
class Records:
    """Records that follow a common record; `committed`: the last PSN that the primary has committed."""

    sender: int
    lease: int
    committed: Psn
    run: RecordRun

    def __init__(self, sender: int, lease: int, committed: Psn, run: RecordRun) -> None:
        self.sender, self.lease, self.committed, self.run = sender, lease, committed, run


@dataclass(slots=True)
class ReplicaReceipt:
    """Receipt of a replica: its log equals the primary's up to `matched` and is durable up to `durable`; `parts`: received
    parts of an image; `stamp`: that of the newest Keepalive."""

    sender: int
    lease: int
    matched: Psn
    durable: Psn
    parts: int
    stamp: int

    def __init__(self, sender: int, lease: int, matched: Psn, durable: Psn, parts: int, stamp: int) -> None:
        self.sender, self.lease, self.matched = sender, lease, matched
        self.durable, self.parts, self.stamp = durable, parts, stamp


PartitionTalk = Prepare | Promise | Stale | Pull | Records | ImagePart | ReplicaReceipt | Keepalive


def log_of(promise: Promise) -> LogSummary:
    """Return the log that a promise reports."""
    return LogSummary(promise.last, promise.base, tuple(promise.leases))


# -- further inputs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assigned:
    """The metadata log has committed that the node `primary` is primary under this lease."""

    primary: int
    lease: int


@dataclass(frozen=True, slots=True)
class Promised:
    """This node's promise of this lease is durable."""

    lease: int


@dataclass(frozen=True, slots=True)
class LogMoved:
    """Records were written or became durable."""


@dataclass(frozen=True, slots=True)
class LogReady:
    """The log is available again; its content may have changed."""


@dataclass(frozen=True, slots=True)
class LogFailed:
    """Records could not be appended, or the log cannot be read."""

    reason: str


@dataclass(slots=True)
class Fed:
    """A Feed or FeedImage was sent, up to the record `last` (None for an image), with `size` bytes."""

    node_id: int
    last: Psn | None
    size: int
    final: bool

    def __init__(self, node_id: int, last: Psn | None, size: int, final: bool = False) -> None:
        self.node_id, self.last, self.size, self.final = node_id, last, size, final


@dataclass(frozen=True, slots=True)
class ImageLost:
    """The image for this node cannot be continued: its source files were replaced."""

    node_id: int


@dataclass(frozen=True, slots=True)
class FeedFailed:
    """The records for this node cannot be read."""

    node_id: int
    reason: str


PartitionInput = (Assigned | PeerUp | PeerDown | Promised | LogMoved | LogReady | LogFailed | Fed | ImageLost | FeedFailed
                  | Tick | Stop | PartitionTalk)


class PartitionEvent(Enum):
    """Columns of the table: the class names of the inputs; assignments to this node and to another one are distinct."""

    ASSIGNED_SELF = "AssignedSelf"
    ASSIGNED_OTHER = "AssignedOther"
    PEER_UP = "PeerUp"
    PEER_DOWN = "PeerDown"
    PROMISED = "Promised"
    LOG_MOVED = "LogMoved"
    LOG_READY = "LogReady"
    LOG_FAILED = "LogFailed"
    FED = "Fed"
    IMAGE_LOST = "ImageLost"
    FEED_FAILED = "FeedFailed"
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


# -- outputs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavePromise:
    """Make the promise durable that this node takes no records of lower leases; a Promised follows."""

    lease: int


@dataclass(slots=True)
class Say:
    """Send a message to another node."""

    node_id: int
    message: PartitionTalk

    def __init__(self, node_id: int, message: PartitionTalk) -> None:
        self.node_id, self.message = node_id, message


@dataclass(slots=True)
class Feed:
    """Send a node one event of Records after the record `after`; a Fed follows."""

    node_id: int
    after: Psn

    def __init__(self, node_id: int, after: Psn) -> None:
        self.node_id, self.after = node_id, after


@dataclass(frozen=True, slots=True)
class FeedImage:
    """Send a node part `number` of an image; 0 begins a new image; a Fed follows. The image ends after the record `behind`,
    so that the node loses no record that both logs have."""

    node_id: int
    number: int
    behind: Psn


@dataclass(slots=True)
class Append:
    """Append the records of `run` that follow `behind`, the last record of the log. A LogMoved or LogFailed follows."""

    run: RecordRun
    behind: Psn

    def __init__(self, run: RecordRun, behind: Psn) -> None:
        self.run, self.behind = run, behind


@dataclass(frozen=True, slots=True)
class Cut:
    """Truncate the log after this record. A LogReady follows."""

    psn: Psn


@dataclass(frozen=True, slots=True)
class TakeImage:
    """Store a part of an image; after the final one the image replaces the log. A LogReady or LogFailed follows then."""

    part: ImagePart


@dataclass(frozen=True, slots=True)
class Activate:
    """Append the first record of the lease. A LogMoved follows."""

    lease: int


@dataclass(slots=True)
class Committed:
    """All records up to this one are committed."""

    psn: Psn

    def __init__(self, psn: Psn) -> None:
        self.psn = psn


@dataclass(frozen=True, slots=True)
class Serve:
    """Accept the messages of clients from now on, or stop accepting them (`active` False)."""

    lease: int
    active: bool
    cause: str


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The role of this node in the partition has changed."""

    event: str
    before: PartitionRole
    after: PartitionRole


PartitionOutput = (SavePromise | Say | Feed | FeedImage | Append | Cut | TakeImage | Activate | Committed | Serve | Decline
                   | RoleChanged | TickAt | Alarm)


# -- on the wire ---------------------------------------------------------------------------------------------------------
#
# Records and receipts, the frequent messages, are STORAGE and REPLICATION_RECEIPT events with a layout of this broker; the
# others are control messages. Records have the bytes of the files. Only members that support the extensions receive them.

_RUN: Final = layout.RECORD_RUN.struct  # partition, lease, PSNs before, at the end and committed, bytes of each file, CRC
_RECEIPT: Final = layout.TAKEN_RECEIPT.struct  # partition, lease, PSNs matched and durable, parts, stamp
_RECEIPT_HEADER: Final = event_header(EventType.REPLICATION_RECEIPT, layout.TAKEN_RECEIPT.size)


def encode_partition_message(partition_id: int, message: PartitionTalk | Decline | Yield) -> bytes:
    if isinstance(message, Records):
        return _record_run(partition_id, message)
    if isinstance(message, ReplicaReceipt):
        return _RECEIPT_HEADER + _RECEIPT.pack(partition_id, message.lease, *message.matched, *message.durable,
                                               message.parts, message.stamp)
    message.partition_id = partition_id
    if isinstance(message, ImagePart):
        message.crc = _crc(message)
    return cluster_event(MetadataLogMessage.of(PartitionLogMessage.of(message)))


def partition_message_of(sender: int, message: ClusterMessage) -> tuple[int, PartitionTalk | Decline | Yield] | None:
    """Return (partition, message) of a control message, None for other messages. PeerError if the checksum of its records is
    wrong."""
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
