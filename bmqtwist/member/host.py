"""What the parts of a cluster's member need of the cluster, and of the broker's domains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from bmqtwist.cluster.state import QueueRecord
from bmqtwist.config.clusters import ClusterDefinition
from bmqtwist.loop.loop import Loop
from bmqtwist.member.retirement import Retirement
from bmqtwist.queue.root import Domain, RootContext
from bmqtwist.storage.partition import Partition


class DomainSource(Protocol):
    """`broker.access.Domains`."""

    def domain(self, name: str) -> Domain:
        """A domain by its qualified name, loaded at the first call; raises Refused."""

    def activate(self, cluster: ReplicatedCluster) -> None:
        """Activate the dormant queues of a cluster whose domains can be loaded."""


class ReplicatedCluster(Protocol):
    """`member.cluster.Cluster`."""

    definition: ClusterDefinition
    loop: Loop
    context: RootContext
    domains: DomainSource
    partitions: list[Partition]
    retirement: Retirement
    dormant: dict[str, QueueRecord]

    def adopt_domain(self, domain: Domain) -> None:
        """A domain was loaded: its dormant queues are activated."""

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
