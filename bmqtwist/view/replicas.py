"""Partitions of a cluster at this node as JSON: role and lag of each copy.

A primary knows the durable position of each replica; every node knows its own role.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bmqtwist.cluster.partition_events import PartitionRole
from bmqtwist.cluster.replication_targets import Target
from bmqtwist.errors import LocalError
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.psn import NO_PSN, Psn
from bmqtwist.view.snapshot import FileState

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.member.partition_logs import HostedPartition

Tree = dict[str, Any]
_NO_LAG: Tree = {"lagRecords": 0, "lagBytes": 0, "lagMs": 0.0}
_UNKNOWN_LAG: Tree = dict.fromkeys(_NO_LAG)
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
        zip(partition.tail.positions(), sizes.each, partition.state.outstanding(), strict=True))
    return journal, data, qlist


def partitions(broker: Broker, cluster_name: str = "", now: float | None = None) -> list[Tree]:
    """Return every partition of a cluster. `now`: monotonic seconds, None = start of the present turn. Raises LocalError."""
    cluster, moment = cluster_named(broker, cluster_name), broker.loop.now if now is None else now
    return [_partition(cluster, partition, moment) for partition in cluster.partitions]


def _partition(cluster: Cluster, partition: Partition, now: float) -> Tree:
    names = {node.id: node.name for node in cluster.definition.nodes}
    index = partition.partition_id
    known = cluster.metadata.state.partitions.get(index)
    journal, data, _ = partition_files(partition)
    status = cluster.primary_status(index)
    tree: Tree = {
        "id": index, "primary": names.get(known.node_id) if known is not None else None,
        "lease": partition.lease, "sequence": partition.sequence, "state": status.lower(),
        "available": partition.available, "queues": len(partition.state.queues),
        "messages": sum([len(queue.messages) for queue in partition.state.queues.values()]),
        "journal": {"used": journal.used, "total": journal.total, "outstanding": journal.outstanding},
        "data": {"used": data.used, "total": data.total, "outstanding": data.outstanding},
        "rollingOver": partition.roll.copy is not None}
    replication = cluster.replication
    if replication is None or index >= len(replication.hosted):
        own = {"node": cluster.node_name, "role": "primary", "lease": partition.lease, "sequence": partition.sequence,
               **_NO_LAG}
        return tree | {"self": own, "replicas": [own]}
    hosted = replication.hosted[index]
    own = _self(cluster.node_name, hosted)
    others = [_other(names[node_id], node_id, hosted, now) for node_id in hosted.machine.others if node_id in names]
    return tree | {"self": own, "replicas": [own, *(others if hosted.machine.leads else ())]}


def _self(name: str, hosted: HostedPartition) -> Tree:
    """Return the row of this node; only the primary knows the lag of a replica."""
    machine, (lease, sequence) = hosted.machine, hosted.partition.durable
    role = _ROLES.get(machine.role, "healing")
    why = machine.transition_log.cause_of(machine.role.name)
    return {"node": name, "role": role, "machine": machine.role.name, "why": why,
            "lease": lease, "sequence": sequence, "committedSequence": machine.committed[1], "busy": hosted.busy,
            **(_NO_LAG if role == "primary" else _UNKNOWN_LAG)}


def _other(name: str, node_id: int, hosted: HostedPartition, now: float) -> Tree:
    machine, target = hosted.machine, hosted.machine.targets.get(node_id)
    if node_id not in machine.up:
        return _row(name, "down", target)
    if target is None or target.image:
        return _row(name, "healing", target)
    return _row(name, "replica", target) | lag(hosted, target.durable, now) | {"inFlightBytes": target.unreceived_bytes}


def _row(name: str, role: str, target: Target | None) -> Tree:
    lease, sequence = target.durable if target is not None else NO_PSN
    return {"node": name, "role": role, "lease": lease or None, "sequence": sequence or None, **_UNKNOWN_LAG}


def lag_records(hosted: HostedPartition, durable: Psn) -> int | None:
    """Return the number of records after `durable`; None if the log no longer contains `durable`."""
    summary = hosted.partition.summary
    return summary.distance(durable) if summary.holds(durable) else None


def lag(hosted: HostedPartition, durable: Psn, now: float) -> Tree:
    """Return the records after `durable`, their approximate bytes, and the age of the first of them."""
    records = lag_records(hosted, durable)
    if records is None:
        return _UNKNOWN_LAG
    seconds = hosted.times.lag(durable, now) if records else 0.0
    return {"lagRecords": records, "lagBytes": hosted.partition.bytes_after(durable),
            "lagMs": None if seconds is None else round(seconds * 1000, 1)}
