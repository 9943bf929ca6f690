"""What the parts of a cluster's member need of the broker, and replication of its cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from bmqtwist.cluster.state import QueueRecord
from bmqtwist.loop.performer import Performer
from bmqtwist.loop.timers import Timers
from bmqtwist.report import Report
from bmqtwist.storage.partition import Partition


class NodeHost(Protocol):
    """The broker."""

    report: Report
    performer: Performer
    timers: Timers
    now: float

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""

    def in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """Run `work` off the reactor's thread, then `done(now)` or `failed(error, now)`, and a turn."""


class ReplicationHost(NodeHost, Protocol):
    """The broker, as a member that replicates partitions needs it."""

    def replace_partition(self, old: Partition, new: Partition) -> None:
        """Another object stands for a partition now."""


class ReplicatedCluster(Protocol):
    """`member.cluster.Cluster`."""

    partitions: list[Partition]

    def queue_records(self, partition_id: int) -> Mapping[bytes, QueueRecord]:
        """The queues that the metadata have in a partition, by key."""

    def serve(self, partition_id: int, now: float, wall: int) -> None:
        """This node is active primary of a partition: its queues are activated."""

    def retire(self, partition_id: int, cause: str, now: float, wall: int) -> None:
        """It is no longer: they go away."""

    def committed(self, partition: Partition, now: float) -> None:
        """The cluster has more of a partition's records."""

    def primary_changed(self, partition_id: int) -> None:
        """Another node may be active primary of a partition, or none."""

    def held_in_memory(self, partition_id: int) -> int:
        """How many messages the queues in memory hold that are led here."""

    def records_came(self, now: float) -> None:
        """A partition that another node leads has written more."""
