"""What the parts of a cluster's member need of the cluster, and of the broker's domains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from bmqtwist.cluster.state import QueueRecord
from bmqtwist.config.clusters import ClusterDefinition
from bmqtwist.errors import Refused
from bmqtwist.loop.loop import Loop
from bmqtwist.member.activation import Activations
from bmqtwist.member.leadership import Leadership
from bmqtwist.member.metadata import ClusterMetadata
from bmqtwist.member.proposals import Proposals
from bmqtwist.member.retirement import Retirement
from bmqtwist.queue.root import Domain, RootContext, RootQueue
from bmqtwist.report import Report
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.state import StoredQueue


class DomainSource(Protocol):
    """`broker.access.Domains`."""

    def domain(self, name: str) -> Domain:
        """A domain by its qualified name, loaded at the first call; raises Refused."""

    def activate(self, cluster: ReplicatedCluster) -> None:
        """Activate the dormant queues of a cluster whose domains can be loaded."""


class ReplicatedCluster(Protocol):
    """`member.cluster.Cluster`."""

    name: str
    definition: ClusterDefinition
    report: Report
    loop: Loop
    context: RootContext
    domains: DomainSource
    metadata: ClusterMetadata
    leadership: Leadership
    proposals: Proposals | None  # None: this node is the only member
    partitions: list[Partition]
    queues: dict[str, RootQueue]  # those that are led here, by URI
    activations: Activations
    retirement: Retirement
    dormant: dict[str, QueueRecord]
    timer_ns: Callable[[], int]  # feeds storage keys

    def refusal_of(self, uri: str) -> Refused | None:
        """Why a queue cannot be used at this node."""

    def make_queue(self, domain: Domain, uri: str, store: StoredQueue, partition: Partition, now: float) -> RootQueue:
        """The queue, registered."""

    def take_over(self, queue: RootQueue, now: float, wall: int) -> None:
        """Clients here may have waited for this queue to have a primary, which is this node now."""

    def record(self, append: Callable[..., None], *args: object) -> None:
        """Write a record; what its partition does not take is logged."""

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

    def on_records(self, now: float) -> None:
        """A partition that another node leads has written more."""
