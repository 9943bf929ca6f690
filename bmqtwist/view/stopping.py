"""Graceful stop of this node as JSON: preflight, progress and report, for the console and the admin commands.

Called by `console/documents_api.py` and `admin/operations.py`; the stop itself is in `broker/graceful_stop.py`. The
rules of the preflight are in `cluster/stop_preflight.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bmqtwist.broker.graceful_stop import Stage, StopProgress, queues_of, unconfirmed_of
from bmqtwist.cluster.stop_preflight import ClusterView, MemberView, PartitionView, StopPreflight, stop_preflight
from bmqtwist.storage.psn import Psn
from bmqtwist.view.replicas import lag_records
from bmqtwist.view.typed_properties import plain_text
from bmqtwist.wire.cluster_schema import NodeStatus
from bmqtwist.wire.schema import ClientType

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.member.cluster import Cluster

Tree = dict[str, Any]
# Stages of a stop from the console, in order; in the first one the stop can be aborted.
STAGES = ["scheduled, can be aborted", *(stage.value for stage in Stage)]


def _cluster_view(cluster: Cluster) -> ClusterView:
    known, leadership, replication = cluster.metadata.state.partitions, cluster.leadership, cluster.replication
    others: list[MemberView] = []
    if cluster.members is not None:
        statuses = cluster.members.statuses
        for node in cluster.definition.nodes:
            if node.id != cluster.node_id:
                stays = statuses.is_staying(node.id)
                others.append(MemberView(node.id, node.name, stays,
                                         stays and statuses.other_nodes[node.id] is NodeStatus.E_AVAILABLE))
    partitions = []
    for partition in cluster.partitions:
        index = partition.partition_id
        primary = known.get(index)
        durable: dict[int, Psn] = {}
        lag: dict[int, int] = {}
        if replication is not None and index < len(replication.hosted):
            hosted = replication.hosted[index]
            durable = {node_id: target.durable for node_id, target in hosted.machine.targets.by_node.items()}
            lag = {node_id: lag_records(hosted, psn) or 0 for node_id, psn in durable.items()}
        partitions.append(PartitionView(
            index, primary.node_id if primary is not None else None, cluster.primary_status(index) == "ACTIVE", lag, durable,
            cluster.count_in_memory(index) if primary is not None and primary.node_id == cluster.node_id else 0))
    majority = len(cluster.definition.nodes) // 2 + 1
    return ClusterView(
        cluster.name, cluster.node_id, cluster.node_name, tuple(others), leadership.standing.leader,
        leadership.elector.quorum, max(cluster.replication_factor, majority),
        replication.appointments.algorithm if replication is not None else "", tuple(partitions), known,
        unconfirmed_of(cluster), cluster.definition.queue_operations.shutdown_timeout_ms / 1000)


def preflight(broker: Broker) -> Tree:
    """Return the effects of a stop of this node: moves of primaries, loss of quorum, affected clients, warnings."""
    clusters = [stop_preflight(_cluster_view(cluster)) for cluster in broker.clusters.values()]
    warnings = [text for each in clusters for text in each.warnings]
    proxies = sum(len(each.peers) for each in broker.sessions.downstreams.values())
    if proxies:
        warnings.append(f"{proxies} connected proxies will reconnect to other nodes")
    if broker.shutdown is not None:
        warnings.insert(0, "this node is already stopping")
    names = {node.id: node.name for cluster in broker.clusters.values() for node in cluster.definition.nodes}
    return {
        "node": next((cluster.node_name for cluster in broker.clusters.values()), broker.identity.host_name),
        "quorumSurvives": all(each.quorum_survives for each in clusters), "sessions": broker.sessions.client_count(),
        "proxies": proxies, "unconfirmed": sum(unconfirmed_of(cluster) for cluster in broker.clusters.values()),
        "moves": [{"cluster": each.cluster, "partition": move.partition_id, "to": names.get(move.to) if move.to else None,
                   "quorumSurvives": move.quorum_survives} for each in clusters for move in each.moves],
        "clusters": [_cluster(each, names) for each in clusters], "warnings": warnings}


def _cluster(each: StopPreflight, names: dict[int, str]) -> Tree:
    return {"name": each.cluster, "quorumSurvives": each.quorum_survives, "leads": each.leads,
            "nextLeader": names.get(each.next_leader) if each.next_leader is not None else None,
            "partitionsWithoutQuorum": list(each.partitions_without_quorum)}


def progress(broker: Broker) -> Tree | None:
    """Return the progress of this node's stop; None if it is not stopping."""
    if broker.shutdown is None:
        return None
    now: StopProgress = broker.shutdown.progress()
    return {
        "stage": now.stage, "stages": STAGES, "seconds": now.seconds, "clients": now.clients,
        "reason": now.reason, "by": now.by,
        "partitions": [number for each in now.clusters for number in each.partitions],
        "leads": any(each.leads for each in now.clusters),
        "unconfirmed": sum(each.unconfirmed for each in now.clusters),
        "unanswered": sum(each.unanswered for each in now.clusters),
        "secondsLeft": max((each.seconds_left for each in now.clusters), default=0.0), "peers": _peers(broker),
        "done": now.report is not None, "report": now.report.tree() if now.report is not None else None}


def _peers(broker: Broker) -> list[Tree]:
    """Return for each connected broker the messages that it has not confirmed and the PUTs that it has not answered."""
    rows: dict[str, list[int]] = {}
    for session in broker.sessions.open:
        if session.remote.identity.client_type == ClientType.E_TCPBROKER and session.channel.negotiated_at is not None:
            rows.setdefault(plain_text(session.description), [0, 0])
    for cluster in broker.clusters.values():
        for queue in queues_of(cluster):
            for handle in queue.handles:
                if handle.client.is_broker:
                    row = rows.setdefault(plain_text(handle.client.description), [0, 0])
                    row[0] += sum(len(substream.unconfirmed) for substream in handle.substreams.values())
    for relays in (*(cluster.relays for cluster in broker.clusters.values()),
                   *(proxy.relays for proxy in broker.proxies.values())):
        for opened in relays.opened.values() if relays is not None else ():
            if opened.relay is not None and opened.upstream is not None and opened.relay.pending:
                row = rows.setdefault(plain_text(opened.upstream.peer.session.description), [0, 0])
                row[1] += len(opened.relay.pending)
    return [{"name": name, "unconfirmed": unconfirmed, "unanswered": unanswered}
            for name, (unconfirmed, unanswered) in sorted(rows.items())]
