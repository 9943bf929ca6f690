"""Inputs and outputs of the machine of a partition at one of several nodes (`partition_machine.py`), as values.

Those of every message have an `__init__` of their own: the one that a dataclass makes is not compiled.
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
    """What a node is for a partition; the names are those of the original's machine."""

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
    """In seconds. `lease`: a primary that a quorum has not answered for so long is active no longer; `keepalive`: how often
    it asks; `retry`: a healing that does not come forward for so long begins anew."""

    lease: float = 15.0
    keepalive: float = 2.0
    retry: float = 10.0


class LogView(Protocol):
    """The log of the partition at this node, to be looked at."""

    @property
    def summary(self) -> LogSummary:
        """Everything that was appended."""

    @property
    def written(self) -> Psn:
        """The last record that is in the files, and can be sent."""

    @property
    def durable(self) -> Psn:
        """The last record that is safe here by policy."""

    def offers(self, after: Psn) -> bool:
        """Whether what follows this record can be sent: it is in the log, or was just before a compaction."""

    @property
    def busy(self) -> bool:
        """Whether it is being cut or replaced: nothing is appended then, and nothing is read. A LogReady follows."""

    @property
    def broken(self) -> bool:
        """Whether it takes nothing any more until a restart."""


# -- messages between nodes: outputs of one, inputs of the other; those in control messages: wire/cluster_schema.py ---------


@dataclass(slots=True)
class Records:
    """Records that follow a common one; `committed`: what the primary knows to be committed."""

    sender: int
    lease: int
    committed: Psn
    run: RecordRun

    def __init__(self, sender: int, lease: int, committed: Psn, run: RecordRun) -> None:
        self.sender, self.lease, self.committed, self.run = sender, lease, committed, run


@dataclass(slots=True)
class ReplicaReceipt:
    """The sender's log is mine up to `matched`, and safe here up to `durable`; `parts`: of an image, taken so far; `stamp`:
    of the newest Keepalive."""

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
    """The log that a promise reports."""
    return LogSummary(promise.last, promise.base, tuple(promise.leases))


# -- further inputs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assigned:
    """It is committed that this node is primary under this lease."""

    primary: int
    lease: int


@dataclass(frozen=True, slots=True)
class Promised:
    """It survives a loss of power that this node has promised this lease."""

    lease: int


@dataclass(frozen=True, slots=True)
class LogMoved:
    """Records were written, or more of them are safe."""


@dataclass(frozen=True, slots=True)
class LogReady:
    """The log can be used again; it is another one, perhaps."""


@dataclass(frozen=True, slots=True)
class LogFailed:
    """The log did not take what was to be appended, or cannot be read."""

    reason: str


@dataclass(slots=True)
class Fed:
    """A Feed or FeedImage was sent: up to which record (of an image: None), and how many bytes."""

    node_id: int
    last: Psn | None
    size: int
    final: bool

    def __init__(self, node_id: int, last: Psn | None, size: int, final: bool = False) -> None:
        self.node_id, self.last, self.size, self.final = node_id, last, size, final


@dataclass(frozen=True, slots=True)
class ImageLost:
    """An image for this node cannot be continued: what it was made from has moved."""

    node_id: int


@dataclass(frozen=True, slots=True)
class FeedFailed:
    """What this node was to be sent cannot be read."""

    node_id: int
    reason: str


PartitionInput = (Assigned | PeerUp | PeerDown | Promised | LogMoved | LogReady | LogFailed | Fed | ImageLost | FeedFailed
                  | Tick | Stop | PartitionTalk)


class PartitionEvent(Enum):
    """The columns of the table: an input by the name of its class, an assignment by whom it is for."""

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
    """Make it durable that this node takes nothing below this lease; then say so with a Promised."""

    lease: int


@dataclass(slots=True)
class Say:
    """A message for another node."""

    node_id: int
    message: PartitionTalk

    def __init__(self, node_id: int, message: PartitionTalk) -> None:
        self.node_id, self.message = node_id, message


@dataclass(slots=True)
class Feed:
    """Send a node Records with what follows `after`, one event of it, and say how much that was with a Fed."""

    node_id: int
    after: Psn

    def __init__(self, node_id: int, after: Psn) -> None:
        self.node_id, self.after = node_id, after


@dataclass(frozen=True, slots=True)
class FeedImage:
    """Send a node part `number` of an image, and say so with a Fed; 0 begins a new one. It ends behind the record `behind`,
    so that the node keeps all that its log has in common with ours."""

    node_id: int
    number: int
    behind: Psn


@dataclass(slots=True)
class Append:
    """Append what `run` holds behind the record `behind`, the last one of the log. A LogMoved or LogFailed follows."""

    run: RecordRun
    behind: Psn

    def __init__(self, run: RecordRun, behind: Psn) -> None:
        self.run, self.behind = run, behind


@dataclass(frozen=True, slots=True)
class Cut:
    """Take away what follows a record of the log. A LogReady follows."""

    psn: Psn


@dataclass(frozen=True, slots=True)
class TakeImage:
    """Put a part beside the log; the final one makes all of them the log, and a LogReady follows; or a LogFailed."""

    part: ImagePart


@dataclass(frozen=True, slots=True)
class Activate:
    """Begin the lease: its first record is appended. A LogMoved follows."""

    lease: int


@dataclass(slots=True)
class Committed:
    """Everything up to this record is committed."""

    psn: Psn

    def __init__(self, psn: Psn) -> None:
        self.psn = psn


@dataclass(frozen=True, slots=True)
class Serve:
    """Take clients' messages from now on, or no longer (`active` False)."""

    lease: int
    active: bool
    cause: str


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The node is something else for the partition now."""

    event: str
    before: PartitionRole
    after: PartitionRole


PartitionOutput = (SavePromise | Say | Feed | FeedImage | Append | Cut | TakeImage | Activate | Committed | Serve | Decline
                   | RoleChanged | TickAt | Alarm)


# -- on the wire ---------------------------------------------------------------------------------------------------------
#
# Records and receipts, of which every message needs some, are STORAGE and REPLICATION_RECEIPT events with a layout of our
# own; the rest are control messages. Records are sent as they lie in the files. Only members with our extensions get any.

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
    """(partition, message) of a control message; None = it is about something else. PeerError if its records are not what
    was sent."""
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
    """(partition, message) of a STORAGE or REPLICATION_RECEIPT event. PeerError if it is not what was sent."""
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
