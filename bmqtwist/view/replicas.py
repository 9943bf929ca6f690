"""Partitions of a cluster at this node: role and lag of each copy, stored messages, space on the disk.

A primary knows the durable position of each replica; every node knows its own role. Called by `node_facts.py` and
`admin/operations.py`; replication itself is in `member/replication.py`. Rows are declared in `documents.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from bmqtwist.cluster.partition_events import PartitionRole
from bmqtwist.errors import LocalError
from bmqtwist.storage.availability import WriterState
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.psn import NO_PSN, Psn
from bmqtwist.view.documents import CopyRow, PartitionRow, StorageRow
from bmqtwist.view.snapshot import FileState, StoredTotals

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.member.partition_logs import HostedPartition
    from bmqtwist.storage.store import Disk

_ROLES = {PartitionRole.PRIMARY_HEALED: "primary", PartitionRole.REPLICA_HEALED: "replica", PartitionRole.STOPPED: "down"}


def cluster_named(broker: Broker, name: str = "") -> Cluster:
    """Return a cluster of this node; without a name its first cluster of several nodes, else its first one. Raises
    LocalError."""
    clusters = broker.clusters
    if name:
        if name not in clusters:
            raise LocalError(f"cluster '{name}' not found !")
        return clusters[name]
    found = next((each for each in clusters.values() if each.replication is not None), next(iter(clusters.values()), None))
    if found is None:
        raise LocalError("This node is a member of no cluster")
    return found


def partition_files(partition: Partition) -> tuple[FileState, FileState, FileState]:
    """Return the space of the JOURNAL, DATA and QLIST file."""
    sizes = partition.files.sizes
    journal, data, qlist = (
        FileState(used, total, kept) for used, total, kept in
        zip(partition.tail.positions(), sizes.as_tuple, partition.state.outstanding(), strict=True))
    return journal, data, qlist


def leads(cluster: Cluster, index: int) -> bool:
    """Return whether this node is the active primary of a partition."""
    return cluster.replication is None or cluster.replication.is_active_primary(index)


def led_partitions(broker: Broker) -> set[int]:
    """Return the partitions of the shown cluster of which this node is the active primary."""
    cluster = cluster_named(broker) if broker.clusters else None
    return {each.partition_id for each in cluster.partitions if leads(cluster, each.partition_id)} if cluster else set()


def stored_in(partition: Partition) -> tuple[int, int]:
    """Return the messages and bytes in this node's copy of a partition."""
    messages = size = 0
    for queue in partition.state.queues.values():
        messages += len(queue.messages)
        size += queue.bytes
    return messages, size


def stored_totals(cluster: Cluster | None) -> StoredTotals:
    """Return the messages and bytes in this node's copies of all partitions; a proxy (None) has none."""
    messages = size = led = led_messages = led_bytes = 0
    for partition in cluster.partitions if cluster is not None else ():
        found = stored_in(partition)
        messages, size = messages + found[0], size + found[1]
        if cluster is not None and leads(cluster, partition.partition_id):
            led, led_messages, led_bytes = led + 1, led_messages + found[0], led_bytes + found[1]
    return StoredTotals(messages, size, led, led_messages, led_bytes)


def storage_space(cluster: Cluster | None, disk: Disk) -> StorageRow | None:
    """Return the space of this node's storage; None = it has none, or it cannot be read."""
    if cluster is None:
        return None
    location = cluster.definition.partition_config.location
    try:
        free, total = disk.space(location)
        allocated = sum([sum(partition.files.allocated()) for partition in cluster.partitions])
    except OSError:
        return None
    return StorageRow(location=location, free_bytes=free, total_bytes=total, allocated_bytes=allocated,
                      used_bytes=sum([sum(partition.tail.positions()) for partition in cluster.partitions]))


def write_problem(cluster: Cluster) -> str:
    """Return why this node cannot write its files; "" = it can."""
    if cluster.release is not None:
        return cluster.release.health.reason
    return next((f"cannot write partition {each.partition_id}: {_cause(each)}" for each in cluster.partitions
                 if each.log.availability.has_reason(WriterState.FAILING) or each.log.closed), "")


def _cause(partition: Partition) -> str:
    """Return the cause of the present availability of a partition."""
    availability = partition.log.availability
    return availability.transitions.cause_of(availability.state.value)


def partitions(broker: Broker, cluster_name: str = "", now: float | None = None) -> list[PartitionRow]:
    """Return every partition of a cluster. `now`: monotonic seconds, None = start of the present turn. Raises LocalError."""
    cluster, moment = cluster_named(broker, cluster_name), broker.loop.now if now is None else now
    return [_partition(cluster, partition, moment) for partition in cluster.partitions]


def _partition(cluster: Cluster, partition: Partition, now: float) -> PartitionRow:
    names = {node.id: node.name for node in cluster.definition.nodes}
    index, replication = partition.partition_id, cluster.replication
    known = cluster.metadata.state.partitions.get(index)
    serves = partition.available or not leads(cluster, index)
    (journal, data, _), (messages, size) = partition_files(partition), stored_in(partition)
    replicas: list[CopyRow] = []
    if replication is None or index >= len(replication.hosted):
        own = CopyRow(node=cluster.node_name, role="primary", lease=partition.lease, sequence=partition.sequence,
                      lag_records=0, lag_bytes=0, lag_ms=0.0)
    else:
        hosted = replication.hosted[index]
        own = _own_copy(cluster.node_name, hosted)
        if hosted.machine.leads:
            replicas = [_replica(names[node_id], node_id, hosted, now) for node_id in hosted.machine.other_nodes
                        if node_id in names]
    return PartitionRow(
        id=index, primary=names.get(known.node_id) if known is not None else None, lease=partition.lease,
        sequence=partition.sequence, available=partition.available,
        state=cluster.primary_status(index).lower() if serves else partition.log.availability.state.value,
        problem="" if serves else _cause(partition), queues=cluster.metadata.state.queue_counts.get(index, 0),
        messages=messages, bytes=size, journal=journal, data=data, rolling_over=partition.roll.copy is not None, own=own,
        replicas=[own, *replicas])


def _own_copy(name: str, hosted: HostedPartition) -> CopyRow:
    """Return the copy of this node; only the primary knows the lag of a replica."""
    machine, (lease, sequence) = hosted.machine, hosted.partition.durable_psn
    copy = CopyRow(node=name, role=_ROLES.get(machine.role, "healing"), machine=machine.role.name,
                   why=machine.transition_log.cause_of(machine.role.name), lease=lease, sequence=sequence,
                   committed_sequence=machine.committed[1], busy=hosted.busy)
    return replace(copy, lag_records=0, lag_bytes=0, lag_ms=0.0) if copy.role == "primary" else copy


def _replica(name: str, node_id: int, hosted: HostedPartition, now: float) -> CopyRow:
    """Return the copy of another node, as the primary knows it."""
    target = hosted.machine.targets.by_node.get(node_id)
    lease, sequence = target.durable if target is not None else NO_PSN
    up = node_id in hosted.machine.connected_nodes
    copy = CopyRow(node=name, role="healing" if up else "down", lease=lease or None, sequence=sequence or None)
    if not up or target is None or target.image:
        return copy
    records = lag_records(hosted, target.durable)
    copy = replace(copy, role="replica", in_flight_bytes=target.unreceived_bytes)
    if records is None:
        return copy
    seconds = hosted.write_times.lag(target.durable, now) if records else 0.0
    return replace(copy, lag_records=records, lag_bytes=hosted.partition.bytes_after(target.durable),
                   lag_ms=None if seconds is None else round(seconds * 1000, 1))


def lag_records(hosted: HostedPartition, durable: Psn) -> int | None:
    """Return the number of records after `durable`; None if the log no longer contains `durable`."""
    summary = hosted.partition.summary
    return summary.distance(durable) if summary.contains(durable) else None
