"""Admin operations on clusters, partitions and tunables: status, rollover, primaries, elections, quorums, intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from bmqtwist.admin.commands import Transitions, Tunable, TunableConfirmation, Value
from bmqtwist.admin.context import Quorum
from bmqtwist.cluster.election_events import ElectionMode
from bmqtwist.errors import LocalError
from bmqtwist.member.appointments import Appointments
from bmqtwist.steps import Steps
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.view import snapshots
from bmqtwist.view.snapshot import ClusterSnapshot, StorageState

if TYPE_CHECKING:
    from bmqtwist.admin.context import AdminContext
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.storage.partition import Partition

ALL_PARTITIONS = -1


def find_cluster(context: AdminContext, name: str) -> Cluster:
    cluster = context.broker.clusters.get(name)
    if cluster is None:
        raise LocalError(f"cluster '{name}' not found !")
    return cluster


def _partition(cluster: Cluster, number: int) -> Partition:
    if number >= len(cluster.partitions):
        raise LocalError(f"Too high partitionId value: '{number}'")
    if number < 0:
        raise LocalError(f"Too low partitionId value: '{number}'")
    return cluster.partitions[number]


def _node_id(cluster: Cluster, node: str) -> int:
    """A node by its name or id."""
    for each in cluster.definition.nodes:
        if node in (each.name, str(each.id)):
            return each.id
    raise LocalError(f"Cluster '{cluster.name}' has no node '{node}'")


def _appointments(cluster: Cluster) -> Appointments:
    if cluster.replication is None:
        raise LocalError(f"Cluster '{cluster.name}' has one node, which is primary of everything")
    return cluster.replication.appointments


def _check(refused: str) -> None:
    if refused:
        raise LocalError(refused)


def list_clusters(context: AdminContext) -> Steps[list[ClusterSnapshot]]:
    found = []
    for cluster in list(context.broker.clusters.values()):
        found.append((yield from snapshots.cluster_in_steps(cluster)))
    return found


def show_cluster(context: AdminContext, name: str) -> Steps[ClusterSnapshot]:
    return snapshots.cluster_in_steps(find_cluster(context, name))


def collect_queues(context: AdminContext, name: str) -> None:
    """Delete the queues of a cluster that are empty and open nowhere."""
    cluster, broker = find_cluster(context, name), context.broker
    for queue in list(cluster.queues.values()):
        if queue.is_collectable(broker.loop.now, 0, broker.identity.started):
            cluster.changes.delete_queue(queue, broker.loop.wall(broker.loop.now))


def show_partition(context: AdminContext, name: str, number: int) -> Steps[ClusterSnapshot]:
    """A cluster with one of its partitions."""
    _partition(find_cluster(context, name), number)
    cluster = yield from show_cluster(context, name)
    return replace(cluster, partitions=(cluster.partitions[number],))


def switch_partition(context: AdminContext, name: str, number: int, switch: str) -> None:
    """ENABLE or DISABLE a partition."""
    partition, enabled = _partition(find_cluster(context, name), number), switch == "ENABLE"
    (partition.enable if enabled else partition.disable)()
    context.broker.report.note("config", f"Partition [{number}] is {'enabled' if enabled else 'disabled'}", cluster=name,
                               partition=number, enabled=enabled)


def roll_over(context: AdminContext, name: str, number: int | None) -> None:
    """Begin a new file set of a partition; None or -1: of all."""
    cluster = find_cluster(context, name)
    partitions = cluster.partitions if number in (None, ALL_PARTITIONS) else [_partition(cluster, number or 0)]
    failures = []
    for partition in partitions:
        try:
            partition.rollover(context.broker.loop.wall(context.broker.loop.now))
        except PartitionUnavailable as error:
            failures.append(f"Rollover failed on partition {partition.partition_id}, rc: -1 ({error})")
    _check("\n".join(failures))


def show_stored_queues(context: AdminContext, name: str, domain: str) -> Steps[list[StorageState]]:
    stored = yield from snapshots.storages_in_steps(find_cluster(context, name), domain)
    if not stored and domain not in context.broker.domains.by_name:
        raise LocalError(f"Unknown domain '{domain}'")
    return stored


def move_partition(context: AdminContext, name: str, number: int, node: str) -> None:
    cluster = find_cluster(context, name)
    _partition(cluster, number)
    node_id = _node_id(cluster, node)
    _check(_appointments(cluster).move(number, node_id))


def rebalance(context: AdminContext, name: str) -> None:
    _check(_appointments(find_cluster(context, name)).rebalance())


def show_partition_history(context: AdminContext, name: str, number: int) -> Transitions:
    cluster = find_cluster(context, name)
    _partition(cluster, number)
    if cluster.replication is None:
        raise LocalError(f"Cluster '{name}' has no other nodes: this one is always primary")
    return Transitions(context.broker.loop.now, cluster.replication.cells[number].machine.story.transitions)


def show_elector_history(context: AdminContext, name: str) -> Transitions:
    return Transitions(context.broker.loop.now, find_cluster(context, name).leadership.elector.story.transitions)


def transfer_leadership(context: AdminContext, name: str, node: str) -> None:
    cluster = find_cluster(context, name)
    _check(cluster.leadership.transfer(_node_id(cluster, node)))


def set_election_mode(context: AdminContext, name: str, word: str) -> None:
    """Whether this node stands as leader."""
    modes = {mode.name: mode for mode in ElectionMode if mode is not ElectionMode.LEAVING}
    mode = modes.get(word.upper())
    if mode is None:
        raise LocalError(f"MODE is one of {', '.join(modes)}, not '{word}'")
    find_cluster(context, name).leadership.set_mode(mode)
    context.broker.report.note("config", f"Cluster ({name}): this node {mode.value}", cluster=name, mode=mode.name)


# The kinds of quorums, as LIST_TUNABLES describes them.
REPLICATION = "non-negative integer count of the number of peers required to persist each message"
ELECTOR = "non-negative integer count of the number of votes required to become leader, 0 = more than half of the nodes"


def set_interval(context: AdminContext, name: str, value: Value) -> TunableConfirmation:
    return context.intervals.set(name, value)


def show_interval(context: AdminContext, name: str) -> Tunable:
    return context.intervals.get(name)


def list_intervals(context: AdminContext) -> tuple[Tunable, ...]:
    return context.intervals.list()


def _quorum(kind: str, context: AdminContext, name: str) -> Quorum:
    cluster, known = find_cluster(context, name), context.quorums.get((kind, name))
    if known is None:
        known = context.quorums[kind, name] = (
            Quorum(cluster.replication_factor, kind, cluster.set_replication_factor)
            if kind == REPLICATION else Quorum(cluster.definition.elector.quorum, kind, cluster.leadership.set_quorum))
    return known


def set_quorum(kind: str, context: AdminContext, cluster: str, scope: str, name: str, value: Value) -> TunableConfirmation:
    """Change it at this node, whatever the `scope`."""
    changed = _quorum(kind, context, cluster).set(name, value)
    context.broker.report.note("config", f"Cluster ({cluster}): {changed.name} is {changed.new}, was {changed.old}",
                               cluster=cluster, tunable=changed.name, value=str(changed.new), before=str(changed.old))
    return changed


def show_quorum(kind: str, context: AdminContext, cluster: str, scope: str, name: str) -> Tunable:
    return _quorum(kind, context, cluster).get(name)


def list_quorums(kind: str, context: AdminContext, cluster: str) -> tuple[Tunable]:
    return _quorum(kind, context, cluster).list()
