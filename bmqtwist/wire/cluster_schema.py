# ruff: noqa: RUF009 - the calls in the class bodies are field declarations of fields.py
"""Schema types that only brokers say to each other: the metadata log, partitions, the elector.

A type that holds a choice has the attributes `choice` (wire name of the selection, "" = unset) and `value`.

The optional fields of the elector's messages are ours: they are absent in what the original writes, and it skips them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

from bmqtwist.wire.fields import (
    Choice,
    array,
    blob,
    boolean,
    enum,
    i32,
    optional,
    record,
    text,
    u32,
    u64,
)
from bmqtwist.wire.partition_schema import PartitionLogMessage


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


@dataclass(slots=True)
class LeaderMessageSequence:
    """Position in the metadata log: term, then number."""

    elector_term: int = u64(0)
    sequence_number: int = u64(1)


@dataclass(slots=True)
class PartitionPrimaryInfo:
    """Who leads a partition, under which lease."""

    partition_id: int = i32(0)
    primary_node_id: int = i32(1)
    primary_lease_id: int = u32(2)


@dataclass(slots=True)
class AppIdInfo:
    """An app and its 5-byte storage key."""

    app_id: str = text(0)
    app_key: bytes = blob(1)


@dataclass(slots=True)
class QueueInfo:
    """A queue, its 5-byte storage key, its partition and its apps."""

    uri: str = text(0)
    key: bytes = blob(1)
    partition_id: int = i32(2)
    app_ids: list[AppIdInfo] = array(3, AppIdInfo)


@dataclass(slots=True)
class QueueInfoUpdate:
    """Apps that a queue gained and lost."""

    uri: str = text(0)
    key: bytes = blob(1)
    partition_id: int = i32(2)
    added_app_ids: list[AppIdInfo] = array(3, AppIdInfo)
    removed_app_ids: list[AppIdInfo] = array(4, AppIdInfo)
    domain: str = text(5)


@dataclass(slots=True)
class PartitionPrimaryAdvisory:
    """New primaries."""

    sequence_number: LeaderMessageSequence = record(0, LeaderMessageSequence)
    partitions: list[PartitionPrimaryInfo] = array(1, PartitionPrimaryInfo)


@dataclass(slots=True)
class UnsafeInfo:
    """The node that goes on alone, because a person has said so, and since when: seconds since the epoch. Ours."""

    node_id: int = i32(0)
    since: int = u64(1)


@dataclass(slots=True)
class LeaderAdvisory:
    """A snapshot of everything."""

    sequence_number: LeaderMessageSequence = record(0, LeaderMessageSequence)
    partitions: list[PartitionPrimaryInfo] = array(1, PartitionPrimaryInfo)
    queues: list[QueueInfo] = array(2, QueueInfo)
    unsafe: UnsafeInfo | None = optional(3, UnsafeInfo)


@dataclass(slots=True)
class QueueAssignmentAdvisory:
    """New queues."""

    sequence_number: LeaderMessageSequence = record(0, LeaderMessageSequence)
    queues: list[QueueInfo] = array(1, QueueInfo)


@dataclass(slots=True)
class QueueUnAssignmentAdvisory:
    """Queues that are gone."""

    sequence_number: LeaderMessageSequence = record(0, LeaderMessageSequence)
    partition_id: int = i32(1)
    primary_lease_id: int = u32(2)
    primary_node_id: int = i32(3)
    queues: list[QueueInfo] = array(4, QueueInfo)


@dataclass(slots=True)
class QueueUpdateAdvisory:
    """Queues whose apps changed."""

    sequence_number: LeaderMessageSequence = record(0, LeaderMessageSequence)
    queue_updates: list[QueueInfoUpdate] = array(1, QueueInfoUpdate)


@dataclass(slots=True)
class LeaderAdvisoryAck:
    """A follower has written it."""

    sequence_number_acked: LeaderMessageSequence = record(0, LeaderMessageSequence)


@dataclass(slots=True)
class LeaderAdvisoryCommit:
    """A quorum has written it."""

    sequence_number: LeaderMessageSequence = record(0, LeaderMessageSequence)
    sequence_number_committed: LeaderMessageSequence = record(1, LeaderMessageSequence)


@dataclass(slots=True)
class NodeStatusAdvisory:
    """A member's state has changed."""

    status: NodeStatus = enum(0, NodeStatus, NodeStatus.E_UNKNOWN)


@dataclass(slots=True)
class IgnoredMessage:
    """A message of the original's that this broker never acts on: its fields are skipped."""


@dataclass(slots=True)
class StopRequest:
    """The sender is about to stop."""

    cluster_name: str = text(0)
    version: int = i32(1, 1)


@dataclass(slots=True)
class ConfirmReceipt:
    """So many CONFIRMs of this connection are safe. Ours."""

    count: int = u64(0)


@dataclass(slots=True)
class StopResponse:
    """The receiver no longer depends on the sender."""

    cluster_name: str = text(0)


@dataclass(slots=True)
class MetadataEntries:
    """Ours: a leader's records behind the one at `previous`, as they are in CLUSTER_STATE events."""

    term: int = u64(0)
    previous: LeaderMessageSequence = record(1, LeaderMessageSequence)
    records: bytes = blob(2)


@dataclass(slots=True)
class MetadataSnapshot:
    """Ours: one record that stands for all of a leader's log up to its position."""

    term: int = u64(0)
    snapshot: bytes = blob(1)


@dataclass(slots=True)
class MetadataAcknowledgement:
    """Ours: the leader's log is durable here up to `last`."""

    term: int = u64(0)
    last: LeaderMessageSequence = record(1, LeaderMessageSequence)


@dataclass(slots=True)
class MetadataCatchUp:
    """Ours: what is behind `last`, please."""

    term: int = u64(0)
    last: LeaderMessageSequence = record(1, LeaderMessageSequence)


# -- partitions --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PrimaryStatusAdvisory:
    """A partition's primary is (not) ready."""

    partition_id: int = i32(0)
    primary_lease_id: int = u32(1)
    status: PrimaryStatus = enum(2, PrimaryStatus, PrimaryStatus.E_UNDEFINED)


@dataclass(slots=True)
class MetadataRequest:
    """Ours, for the leader: assign a queue with the apps `added_app_ids`; `update`: add and remove apps of it; `unassign`:
    forget it, unless it has another key by now."""

    number: int = u64(0)
    uri: str = text(1)
    update: bool = boolean(2)
    unassign: bool = boolean(3)
    added_app_ids: list[AppIdInfo] = array(4, AppIdInfo)
    removed_app_ids: list[AppIdInfo] = array(5, AppIdInfo)
    key: bytes = blob(6)


@dataclass(slots=True)
class MetadataAnswer:
    """Ours, from the leader: the request with this number is committed, at this LSN or before; or it is refused with a
    reason and its code."""

    number: int = u64(0)
    refused: bool = boolean(1)
    reason: str = text(2)
    code: int = i32(3)
    elector_term: int = u64(4)
    sequence_number: int = u64(5)


@dataclass(slots=True)
class MetadataLogMessage:
    """Ours: replication of the metadata log, and, since no tag behind this one is left, of the partitions."""

    CHOICE: ClassVar[Choice] = Choice(0, (
        (0, "entries", MetadataEntries),
        (1, "snapshot", MetadataSnapshot),
        (2, "acknowledgement", MetadataAcknowledgement),
        (3, "catchUp", MetadataCatchUp),
        (4, "partition", PartitionLogMessage),
        (5, "request", MetadataRequest),
        (6, "answer", MetadataAnswer),
    ))
    choice: str = ""
    value: Any = None


@dataclass(slots=True)
class ClusterMessage:
    """Anything one broker says to another; also the body of a record of the metadata log."""

    CHOICE: ClassVar[Choice] = Choice(0, (
        (0, "partitionPrimaryAdvisory", PartitionPrimaryAdvisory),
        (1, "leaderAdvisory", LeaderAdvisory),
        (2, "queueAssignmentAdvisory", QueueAssignmentAdvisory),
        (3, "nodeStatusAdvisory", NodeStatusAdvisory),
        (4, "leaderSyncStateQuery", IgnoredMessage),
        (5, "leaderSyncStateQueryResponse", IgnoredMessage),
        (6, "leaderSyncDataQuery", IgnoredMessage),
        (7, "leaderSyncDataQueryResponse", IgnoredMessage),
        (8, "queueAssignmentRequest", IgnoredMessage),
        (9, "storageSyncRequest", IgnoredMessage),
        (10, "storageSyncResponse", IgnoredMessage),
        (11, "partitionSyncStateQuery", IgnoredMessage),
        (12, "partitionSyncStateQueryResponse", IgnoredMessage),
        (13, "partitionSyncDataQuery", IgnoredMessage),
        (14, "partitionSyncDataQueryResponse", IgnoredMessage),
        (15, "partitionSyncDataQueryStatus", IgnoredMessage),
        (16, "primaryStatusAdvisory", PrimaryStatusAdvisory),
        (19, "confirmReceipt", ConfirmReceipt),  # beyond 30 a tag takes more than one byte
        (20, "queueUnAssignmentAdvisory", QueueUnAssignmentAdvisory),
        (21, "leaderAdvisoryAck", LeaderAdvisoryAck),
        (22, "leaderAdvisoryCommit", LeaderAdvisoryCommit),
        (23, "stateNotification", IgnoredMessage),
        (24, "stopRequest", StopRequest),
        (25, "stopResponse", StopResponse),
        (26, "queueUnassignmentRequest", IgnoredMessage),
        (27, "queueUpdateAdvisory", QueueUpdateAdvisory),
        (28, "clusterStateFSMMessage", IgnoredMessage),
        (29, "partitionMessage", IgnoredMessage),
        (30, "metadataLogMessage", MetadataLogMessage),
    ))
    choice: str = ""
    value: Any = None


# -- elector -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ElectionProposal:
    """Vote for me. `last`: of the newest metadata record of the sender; `ceded_by`: the leader that told it to stand."""

    last: LeaderMessageSequence | None = optional(0, LeaderMessageSequence)
    ceded_by: int | None = i32(1, None)


@dataclass(slots=True)
class ElectionResponse:
    """You have my vote; or not, for the sake of the node `refused_for`, which leads (-1: nobody is known to)."""

    refused_for: int | None = i32(0, None)


@dataclass(slots=True)
class LeaderHeartbeat:
    """I lead. `stamp`: milliseconds of the leader's own clock; nobody else can tell what it means."""

    stamp: int | None = u64(0, None)


@dataclass(slots=True)
class ElectorNodeStatus:
    """I can (not) take part."""

    is_available: bool = boolean(0)


@dataclass(slots=True)
class HeartbeatResponse:
    """I have heard you, in this term: with a higher one than that of the heartbeat, you lead no longer.

    `stamp`: that of the heartbeat; `last`: of the newest metadata record that the sender has.
    """

    stamp: int | None = u64(0, None)
    last: LeaderMessageSequence | None = optional(1, LeaderMessageSequence)


@dataclass(slots=True)
class ScoutingRequest:
    """Would you vote for me? The fields are those of a proposal."""

    last: LeaderMessageSequence | None = optional(0, LeaderMessageSequence)
    ceded_by: int | None = i32(1, None)


@dataclass(slots=True)
class ScoutingResponse:
    """I would, or would not; `leader`: the node that leads, -1 if none is known."""

    will_vote: bool = boolean(0)
    leader: int | None = i32(1, None)


@dataclass(slots=True)
class LeadershipCessionNotification:
    """I no longer lead. `successor`: the node that should stand at once."""

    successor: int | None = i32(0, None)
