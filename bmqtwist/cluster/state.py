"""Cluster state: partitions with their primaries and leases, queues with their partitions and apps, active features.

Only advisories change it; every node applies them in the same order, also when it loads its ledger. Called by
`metadata_log.py` for each committed advisory; `changes.py` builds the advisories. The advisories are declared in
`wire/cluster_schema.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from bmqtwist.errors import LocalError
from bmqtwist.ids import domain_of
from bmqtwist.versions import ActiveFeatures
from bmqtwist.wire.cluster_schema import (
    NO_LSN,
    ClusterMessage,
    LeaderAdvisory,
    MemberList,
    PartitionPrimaryAdvisory,
    PartitionPrimaryInfo,
    QueueAssignmentAdvisory,
    QueueInfo,
    QueueInfoUpdate,
    QueueUnAssignmentAdvisory,
    QueueUpdateAdvisory,
    UnsafeInfo,
)


class StateMismatch(LocalError):
    """An advisory contradicts the state; no part of it was applied."""


class Primary(NamedTuple):
    """Primary of a partition, and its lease; a later lease of the partition is higher."""

    node_id: int
    lease: int


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """Immutable record of one queue. `apps`: app id -> 5-byte key, in the order of addition."""

    uri: str
    key: bytes
    partition_id: int
    apps: dict[str, bytes]

    def info(self) -> QueueInfo:
        """Return the form of the queue in advisories."""
        return QueueInfo(self.uri, self.key, self.partition_id, list(self.apps.items()))


@dataclass(slots=True)
class Changes:
    """Changes by an advisory: partitions with another primary or lease; queues in their new state (`removed`: in their
    last); `members`: the member list has changed."""

    partitions: list[int] = field(default_factory=list)
    assigned: list[QueueRecord] = field(default_factory=list)
    updated: list[QueueRecord] = field(default_factory=list)
    removed: list[QueueRecord] = field(default_factory=list)
    members: bool = False


class ClusterState:
    """State of one cluster, changed by `apply` only."""

    __slots__ = ("partitions", "queues", "keys", "queue_counts", "domain_counts", "unsafe", "features", "members")

    def __init__(self) -> None:
        self.partitions: dict[int, Primary] = {}
        self.queues: dict[str, QueueRecord] = {}
        self.keys: set[bytes] = set()  # of all queues
        self.queue_counts: dict[int, int] = {}  # partition id -> queues mapped to it
        self.domain_counts: dict[str, int] = {}  # domain -> its queues
        self.unsafe: UnsafeInfo | None = None  # this node runs alone
        self.features = ActiveFeatures()
        self.members: MemberList | None = None  # None: the cluster is not formed yet

    def snapshot(self) -> LeaderAdvisory:
        """Return the whole state as an advisory, with an empty sequence number."""
        return LeaderAdvisory(NO_LSN, partition_infos(self.partitions),
                              [queue.info() for queue in self.queues.values()], self.unsafe,
                              ",".join(self.features) or None, self.members)

    def apply(self, message: ClusterMessage) -> Changes:
        """Apply an advisory completely, or raise StateMismatch."""
        advisory = message.value
        changes = Changes()
        if isinstance(advisory, LeaderAdvisory):
            self._replace_all(advisory, changes)
        elif isinstance(advisory, PartitionPrimaryAdvisory):
            self._check_partitions(advisory.partitions)
            self._set_partitions(advisory.partitions, changes)
            self._set_members(advisory.members, changes)
        elif isinstance(advisory, QueueAssignmentAdvisory):
            for info in advisory.queues:
                queue = _queue_record(info)
                self._add_queue(queue)
                changes.assigned.append(queue)
        elif isinstance(advisory, QueueUnAssignmentAdvisory):
            self._remove_queues(advisory, changes)
        elif isinstance(advisory, QueueUpdateAdvisory):
            self._update_queues(advisory, changes)
        else:
            raise StateMismatch(f"{message.choice or 'an unknown message'} does not change the state of a cluster")
        return changes

    def _replace_all(self, advisory: LeaderAdvisory, changes: Changes) -> None:
        self.unsafe = advisory.unsafe
        self.features = ActiveFeatures(filter(None, (advisory.features or "").split(",")))
        self._set_members(advisory.members, changes)
        removed = self.partitions.keys() - {info.partition_id for info in advisory.partitions}
        changes.partitions += sorted(removed)
        for partition_id in removed:
            del self.partitions[partition_id]
        self._set_partitions(advisory.partitions, changes)
        before = self.queues
        self.queues, self.keys, self.queue_counts, self.domain_counts = {}, set(), {}, {}
        for info in advisory.queues:
            self._add_queue(_queue_record(info))
        for uri, queue in self.queues.items():
            known = before.get(uri)
            if known is None or known.key != queue.key:
                changes.assigned.append(queue)
            elif known != queue:
                changes.updated.append(queue)
        changes.removed += [known for uri, known in before.items()
                            if uri not in self.queues or self.queues[uri].key != known.key]

    def _set_members(self, members: MemberList | None, changes: Changes) -> None:
        """Set the member list; None, also in a snapshot of a leader of an earlier version, keeps the present one."""
        if members is not None and members != self.members:
            self.members, changes.members = members, True

    def _check_partitions(self, infos: Iterable[PartitionPrimaryInfo]) -> None:
        for info in infos:
            known = self.partitions.get(info.partition_id)
            if known is None:
                continue
            lease = info.primary_lease_id
            if lease < known.lease or (lease == known.lease and info.primary_node_id != known.node_id):
                raise StateMismatch(f"partition {info.partition_id} cannot move from node {known.node_id}, lease "
                                    f"{known.lease}, to node {info.primary_node_id}, lease {lease}")

    def _set_partitions(self, infos: Iterable[PartitionPrimaryInfo], changes: Changes) -> None:
        for info in infos:
            primary = Primary(info.primary_node_id, info.primary_lease_id)
            if self.partitions.get(info.partition_id) != primary:
                self.partitions[info.partition_id] = primary
                changes.partitions.append(info.partition_id)

    def _add_queue(self, queue: QueueRecord) -> None:
        known = self.queues.get(queue.uri)
        if known is not None:
            self._remove_queue(known)
        self.queues[queue.uri] = queue
        self.keys.add(queue.key)
        self.queue_counts[queue.partition_id] = self.queue_counts.get(queue.partition_id, 0) + 1
        domain = domain_of(queue.uri)
        self.domain_counts[domain] = self.domain_counts.get(domain, 0) + 1

    def _remove_queue(self, queue: QueueRecord) -> None:
        del self.queues[queue.uri]
        self.keys.discard(queue.key)
        self.queue_counts[queue.partition_id] -= 1
        domain = domain_of(queue.uri)
        self.domain_counts[domain] -= 1
        if not self.domain_counts[domain]:
            del self.domain_counts[domain]

    def _remove_queues(self, advisory: QueueUnAssignmentAdvisory, changes: Changes) -> None:
        for info in advisory.queues:
            self._find_queue(info)
        for info in advisory.queues:
            queue = self.queues.get(info.uri)
            if queue is not None:
                self._remove_queue(queue)
                changes.removed.append(queue)

    def _update_queues(self, advisory: QueueUpdateAdvisory, changes: Changes) -> None:
        found: dict[str, QueueRecord] = {}
        for update in advisory.queue_updates:
            if not update.uri:  # a domain without queues
                continue
            queue = found.get(update.uri) or self._find_queue(update)
            found[update.uri] = _with_update(queue, update)
        for queue in found.values():
            self.queues[queue.uri] = queue
            changes.updated.append(queue)

    def _find_queue(self, info: QueueInfo | QueueInfoUpdate) -> QueueRecord:
        """Return the queue with this URI, key and partition, or raise StateMismatch."""
        queue = self.queues.get(info.uri)
        if queue is None or queue.key != info.key or queue.partition_id != info.partition_id:
            found = f"has key {queue.key.hex().upper()} and partition {queue.partition_id}" if queue else "does not exist"
            raise StateMismatch(f"queue {info.uri} {found}; the record is for key {info.key.hex().upper()} and partition "
                                f"{info.partition_id}")
        return queue


def _queue_record(info: QueueInfo) -> QueueRecord:
    return QueueRecord(info.uri, info.key, info.partition_id, dict(info.app_ids))


def _with_update(queue: QueueRecord, update: QueueInfoUpdate) -> QueueRecord:
    apps = dict(queue.apps)
    for app_id, _ in update.removed_app_ids:
        if apps.pop(app_id, None) is None:
            raise StateMismatch(f"queue {queue.uri} has no app '{app_id}' to remove")
    for app_id, key in update.added_app_ids:
        if app_id in apps:
            raise StateMismatch(f"queue {queue.uri} already has the app '{app_id}'")
        apps[app_id] = key
    return QueueRecord(queue.uri, queue.key, queue.partition_id, apps)


def partition_infos(partitions: dict[int, Primary]) -> list[PartitionPrimaryInfo]:
    """Return partitions as in advisories, by id."""
    return [PartitionPrimaryInfo(number, *partitions[number]) for number in sorted(partitions)]
