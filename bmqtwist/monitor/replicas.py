"""The partitions of a cluster as this node sees them, as JSON: who is what, and how far behind.

A primary knows how much of its log each replica has safe; every node knows what it is itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bmqtwist.cluster.partition_events import PartitionRole
from bmqtwist.cluster.replication_target import Target
from bmqtwist.errors import LocalError
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.psn import NO_PSN, Psn

if TYPE_CHECKING:
    from bmqtwist.node.broker import Broker
    from bmqtwist.node.cell import Cell
    from bmqtwist.node.cluster import Cluster

Tree = dict[str, Any]
_ROLES = {PartitionRole.PRIMARY_HEALED: "primary", PartitionRole.REPLICA_HEALED: "replica", PartitionRole.STOPPED: "down"}


def cluster_named(broker: Broker, name: str = "") -> Cluster:
    """A cluster of this node; without a name its first one of several nodes, else its first one. LocalError."""
    clusters = broker.clusters
    if name:
        if name not in clusters:
            raise LocalError(f"cluster '{name}' not found !")
        return clusters[name]
    found = next((each for each in clusters.values() if each.replication is not None), next(iter(clusters.values()), None))
    if found is None:
        raise LocalError("This node is a member of no cluster")
    return found


def partitions(broker: Broker, cluster_name: str = "") -> list[Tree]:
    """Every partition of a cluster; LocalError."""
    cluster = cluster_named(broker, cluster_name)
    return [_partition(cluster, partition) for partition in cluster.partitions]


def _partition(cluster: Cluster, partition: Partition) -> Tree:
    names = {node.id: node.name for node in cluster.definition.nodes}
    index = partition.partition_id
    known = cluster.metadata.state.partitions.get(index)
    sizes, (journal, data, _), (kept_journal, kept_data, _) = (
        partition.files.sizes, partition.positions(), partition.outstanding())
    status = cluster.primary_status(index)
    tree: Tree = {
        "id": index, "primary": names.get(known.node_id) if known is not None else None,
        "lease": partition.lease, "sequence": partition.sequence, "state": status.lower(),
        "available": partition.available, "queues": len(partition.state.queues),
        "messages": sum([len(queue.messages) for queue in partition.state.queues.values()]),
        "journal": {"used": journal, "total": sizes.journal, "outstanding": kept_journal},
        "data": {"used": data, "total": sizes.data, "outstanding": kept_data},
        "rollingOver": partition.roll.copy is not None}
    replication = cluster.replication
    if replication is None or index >= len(replication.cells):
        own = {"node": cluster.node_name, "role": "primary", "lease": partition.lease, "sequence": partition.sequence,
               "lagRecords": 0, "lagBytes": 0}
        return tree | {"self": own, "replicas": [own]}
    cell = replication.cells[index]
    own = _self(cluster.node_name, cell)
    others = [_other(names[node_id], node_id, cell) for node_id in cell.machine.others if node_id in names]
    return tree | {"self": own, "replicas": [own, *(others if cell.machine.leads else ())]}


def _self(name: str, cell: Cell) -> Tree:
    """What this node says of itself; how far behind it is only its primary knows."""
    machine, (lease, sequence) = cell.machine, cell.partition.durable
    role = _ROLES.get(machine.role, "healing")
    leads = role == "primary"
    return {"node": name, "role": role, "machine": machine.role.name, "why": machine.story.cause_of(machine.role.name),
            "lease": lease, "sequence": sequence, "committedSequence": machine.committed[1], "busy": cell.busy,
            "lagRecords": 0 if leads else None, "lagBytes": 0 if leads else None}


def _other(name: str, node_id: int, cell: Cell) -> Tree:
    """What the primary knows of another node."""
    machine, target = cell.machine, cell.machine.targets.get(node_id)
    if node_id not in machine.up:
        return _row(name, "down", target)
    if target is None or target.image:
        return _row(name, "healing", target)
    records, size = lag(cell, target.durable)
    return _row(name, "replica", target) | {"lagRecords": records, "lagBytes": size, "inFlightBytes": target.flying}


def _row(name: str, role: str, target: Target | None) -> Tree:
    lease, sequence = target.durable if target is not None else NO_PSN
    return {"node": name, "role": role, "lease": lease or None, "sequence": sequence or None, "lagRecords": None,
            "lagBytes": None}


def lag(cell: Cell, safe: Psn) -> tuple[int | None, int | None]:
    """How many records, and about how many bytes, follow what a node has safe; None: more than the log holds one by one."""
    if not cell.partition.summary.holds(safe):
        return None, None
    return cell.partition.summary.distance(safe), cell.partition.bytes_behind(safe)
