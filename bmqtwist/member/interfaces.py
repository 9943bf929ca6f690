"""Interfaces that the parts of a member need: of their cluster (`ReplicatedCluster`) and of the domains (`DomainSource`).

`cluster.py: Cluster` implements the first for `replication.py`, `partition_runner.py`, `member_relays.py` and
`queue_changes.py`; `broker/access.py` implements the second.
"""

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
from bmqtwist.member.repairs import Repairs
from bmqtwist.member.retirement import Retirement
from bmqtwist.queue.root import Domain, RootContext, RootQueue
from bmqtwist.report import Report
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.state import StoredQueue


class DomainSource(Protocol):
    """`broker.access.Domains`."""

    def get_or_load(self, name: str) -> Domain:
        """Return a domain by its qualified name, loaded at the first call; raises Refused."""

    def activate_queues(self, cluster: ReplicatedCluster) -> None:
        """Activate the dormant queues of a cluster whose domains can be loaded."""

    def deduplication_s(self, name: str) -> float | None:
        """Return the deduplication time of a domain without loading it, None if its file is invalid."""


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
    queues: dict[str, RootQueue]  # queues of which this node is primary, by URI
    activations: Activations
    retirement: Retirement
    repairs: Repairs
    dormant: dict[str, QueueRecord]
    timer_ns: Callable[[], int]  # feeds storage keys

    def refusal_of(self, uri: str) -> Refused | None:
        """Return the refusal if this node is not the active primary of a queue's partition, else None."""

    def make_queue(self, domain: Domain, uri: str, store: StoredQueue, partition: Partition, now: float) -> RootQueue:
        """Create and register a queue."""

    def take_over_relay(self, queue: RootQueue, now: float, wall: int) -> None:
        """Move the relay of a queue, with its clients and pending opens, to the queue itself."""

    def try_append(self, append: Callable[..., None], *args: object) -> None:
        """Append a record; a PartitionUnavailable is logged."""

    def adopt_domain(self, domain: Domain) -> None:
        """Activate the dormant queues of a domain that was loaded."""

    def queue_records(self, partition_id: int) -> Mapping[bytes, QueueRecord]:
        """Return the records of a partition's queues in the metadata, by queue key."""

    def activate_queues(self, partition_id: int, now: float, wall: int) -> None:
        """Activate the queues of a partition whose active primary is this node."""

    def retire_queues(self, partition_id: int, cause: str, now: float, wall: int) -> None:
        """Retire the queues of a partition that has lost this node as primary."""

    def on_committed(self, partition: Partition, now: float) -> None:
        """Notify waiters that more records of a partition are committed."""

    def on_primary_changed(self, partition_id: int) -> None:
        """Handle a change of a partition's active primary."""

    def count_in_memory(self, partition_id: int) -> int:
        """Return the number of messages in this node's queues in memory of a partition."""

    def on_records(self, now: float) -> None:
        """Handle new records in a partition that another node leads."""
