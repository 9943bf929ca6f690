"""Creation of snapshots (`snapshot.py`) from the live broker: the whole broker, domains, clusters, partitions, counters.

All functions only read. Functions that may take long return `Steps`. Called by `admin/operations.py`,
`daemon/service.py` (console, metrics, statistics log) and `daemon/assemble.py` (`sources`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from bmqtwist import __version__
from bmqtwist.config.text import pretty_json
from bmqtwist.ids import parse_uri
from bmqtwist.queue.counters import AppStats
from bmqtwist.queue.mode import QueueMode
from bmqtwist.steps import ITEMS_AT_ONCE, Steps, drain, in_steps
from bmqtwist.storage.identity import id_text
from bmqtwist.view import queue_facts as facts
from bmqtwist.view import snapshot as state
from bmqtwist.view.cluster_facts import descriptions, member_state, node_states
from bmqtwist.view.node_facts import session_state, stored_totals, traffic_totals
from bmqtwist.view.replicas import partition_files
from bmqtwist.view.statistics import Source

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.member.repairs import RepairCounts
    from bmqtwist.queue.domain import DomainRules
    from bmqtwist.queue.root import Domain
    from bmqtwist.relay.relays import Relays
    from bmqtwist.storage.partition import Partition

SUMMED_AT_ONCE = 256  # messages whose sizes are added up for one item of `in_steps`, in about 50 us
_T = TypeVar("_T")


def broker_in_steps(broker: Broker, now: float, process: state.ProcessState | None = None
                    ) -> Steps[state.BrokerState]:
    """Take a snapshot of the broker in steps, each queue and session at the time of its step. `now`: monotonic seconds."""
    identity, domains = broker.identity, list[state.DomainState]()
    for domain in list(broker.domains.by_name.values()):
        domains.append((yield from domain_in_steps(broker, domain)))
    sessions = yield from in_steps(list(broker.sessions.open),
                                   lambda session: session_state(session, broker.loop.wall_offset))
    clusters = []
    for cluster in list(broker.clusters.values()):
        clusters.append((yield from cluster_in_steps(cluster)))
    return state.BrokerState(
        broker.configuration.app.broker_instance_name, __version__, identity.host_name, now,
        now + broker.loop.wall_offset, identity.started_wall, (*domains, *_proxied_domains(broker)), tuple(sessions),
        tuple(clusters), process or state.ProcessState(), broker.queues.invalid_put_stats.totals(),
        traffic_totals(broker).totals())


def short_status(broker: Broker, now: float, unready: str) -> dict[str, object]:
    """Return the short status of the broker as JSON, from counters. `unready`: why clients are not served, "" = they are."""
    messages, size = stored_totals(broker)
    return {
        "name": "bmqtwist", "version": __version__, "instance": broker.configuration.app.broker_instance_name,
        "host": broker.identity.host_name, "ready": not unready, "reason": unready,
        "uptimeSeconds": round(max(0.0, now + broker.loop.wall_offset - broker.identity.started_wall), 3),
        "sessions": len(broker.sessions.open), "domains": len(broker.domains.by_name),
        "queues": sum(len(domain.queues) for domain in broker.domains.by_name.values()), "messages": messages, "bytes": size,
        "clusters": [_short_cluster(cluster) for cluster in broker.clusters.values()]}


def _short_cluster(cluster: Cluster) -> dict[str, object]:
    names = descriptions(cluster)
    return {"name": cluster.name, "healthy": not cluster.unavailable, "self": names.get(cluster.node_id, ""),
            "leader": elector_state(cluster, names).leader, "partitions": len(cluster.partitions)}


def snapshot_in_steps(broker: Broker, now: float, process: state.ProcessState,
                  made: Callable[[state.BrokerState], Steps[_T]]) -> Steps[_T]:
    """Return the result of `made` for a snapshot of the broker, in steps. The snapshot is freed in steps, too: freeing
    10,000 queues at once takes 20 ms."""
    seen = yield from broker_in_steps(broker, now, process)
    result = yield from made(seen)
    parts: list[Any] = list(seen.sessions)
    parts += chain.from_iterable((*domain.queues, *domain.storages) for domain in seen.domains)
    parts += chain.from_iterable(cluster.queues for cluster in seen.clusters)
    parts += chain.from_iterable(partition.storages for cluster in seen.clusters for partition in cluster.partitions)
    del seen
    for number, _ in enumerate(drain(parts), 1):
        if not number % ITEMS_AT_ONCE:
            yield
    return result


def domain_in_steps(broker: Broker, domain: Domain) -> Steps[state.DomainState]:
    """Take a snapshot of a loaded domain with its open queues and all its stored queues."""
    cluster, config = broker.clusters[domain.cluster], broker.domains.loaded[domain.source].config
    queues = yield from in_steps([queue for queue in domain.queues.values() if facts.is_active(queue)], facts.queue_state)
    stored = yield from storages_in_steps(cluster, domain.name)
    return state.DomainState(
        domain.name, domain.cluster, domain.mode, pretty_json(config), facts.meter_state(domain.meter),
        (*queues, *_relayed_of(broker, cluster.relays, domain)), tuple(stored),
        domain.settings.publish_app_metrics, domain.removing)


def storages_in_steps(cluster: Cluster, domain_name: str = "") -> Steps[list[state.StorageState]]:
    """Return the stored queues of a domain ("" = all domains), loaded or not."""
    def wanted(each: state.StorageState | None) -> state.StorageState | None:
        good = each is not None and (not domain_name or parse_uri(each.uri).qualified_domain == domain_name)
        return each if good else None
    return [each for each in (yield from in_steps(_storages(cluster), wanted)) if each is not None]


def _storages(cluster: Cluster) -> Iterable[state.StorageState | None]:
    """Yield all stored queues of a cluster, and None after every SUMMED_AT_ONCE messages of a long one."""
    for queue in list(cluster.queues.values()):
        yield state.StorageState(queue.uri, facts.hexadecimal(queue.key), queue.partition_id, *facts.stored(queue),
                                 not queue.in_memory)
    for record in list(cluster.metadata.state.queues.values()):
        if record.uri in cluster.queues or record.partition_id >= len(cluster.partitions):
            continue
        copy = cluster.partitions[record.partition_id].state.queues.get(record.key)
        count = size = 0
        for part in copy.messages.slices() if copy is not None else ():
            for start in range(0, len(part), SUMMED_AT_ONCE):
                if count or start:
                    yield None
                size += sum(message.size for message in part[start:start + SUMMED_AT_ONCE])
            count += len(part)
        yield state.StorageState(record.uri, facts.hexadecimal(record.key), record.partition_id, count, size)


def cluster_in_steps(cluster: Cluster) -> Steps[state.ClusterSnapshot]:
    """Take a snapshot of a cluster. A single node is its leader, and the primary of every partition."""
    names = descriptions(cluster)
    name = names.get(cluster.node_id, f"[{cluster.node_name}, {cluster.node_id}]")
    primaries = {partition_id: names.get(primary.node_id, "") for partition_id, primary in
                 cluster.metadata.state.partitions.items()}
    by_partition: dict[int, list[state.StorageState]] = {}
    for storage in (yield from storages_in_steps(cluster)):
        by_partition.setdefault(storage.partition_id, []).append(storage)
    active = {queue.uri for queue in cluster.queues.values() if facts.is_active(queue)}
    partitions = tuple(partition_state(each, primaries.get(each.partition_id, ""),
                                       tuple(by_partition.get(each.partition_id, ())), active,
                                       cluster.primary_status(each.partition_id), primaries.get(each.partition_id) == name,
                                       cluster.repairs.counts[each.partition_id])
                       for each in cluster.partitions)
    queues = yield from in_steps(list(cluster.metadata.state.queues.values()), lambda record: state.AssignedQueue(
        record.uri, facts.hexadecimal(record.key), record.partition_id, primaries.get(record.partition_id, ""),
        parse_uri(record.uri).qualified_domain, record.uri in active))
    log, unsafe = cluster.metadata.log, cluster.metadata.state.unsafe
    standing, awaited = member_state(cluster)
    return state.ClusterSnapshot(
        cluster.name, name, not cluster.unavailable, node_states(cluster),
        elector_state(cluster, names), partitions, tuple(queues),
        cluster.definition.partition_config.location, ledger_bytes=log.log.size, ledger_limit=log.log.max_bytes,
        unsafe_since=unsafe.since if unsafe is not None else 0, features=cluster.metadata.features,
        pending_features=cluster.features.activation.seconds_left(cluster.loop.now),
        storage_version=cluster.features.storage_version, member_state=standing, awaited=awaited,
        cluster_id=id_text(log.electorate.cluster_id), **_member_names(cluster))


def _member_names(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """Return the names of the voters and of the planned nodes."""
    members = cluster.metadata.state.members
    if members is None:
        return {}
    return {"voters": tuple(each.name for each in members.nodes if each.voting),
            "planned": tuple(each.name for each in members.planned)}


def elector_state(cluster: Cluster, names: dict[int, str]) -> state.ElectorState:
    leadership = cluster.leadership
    standing, (term, sequence) = leadership.standing, cluster.metadata.log.lsn
    leader = "** NULL **" if standing.leader is None else names.get(standing.leader, "")
    status = "UNDEFINED" if standing.leader is None else "ACTIVE" if leadership.active else "PASSIVE"
    return state.ElectorState(standing.state.name, leader, term, sequence, status)


def partition_state(partition: Partition, primary: str, stored: tuple[state.StorageState, ...], active: set[str],
                    status: str, ours: bool, repairs: RepairCounts) -> state.PartitionSnapshot:
    journal, data, qlist = partition_files(partition)
    return state.PartitionSnapshot(
        partition.partition_id, primary, partition.lease, partition.sequence, status, partition.available,
        queues=len(stored), active=sum(storage.uri in active for storage in stored),
        data_file=f"bmq_{partition.partition_id}.{partition.files.current.base}.bmq_data", data=data,
        journal=journal, qlist=qlist, records=len(partition.state.live), storages=stored,
        unreceipted=max(0, partition.position - partition.copies.committed) if ours else 0,
        damaged=repairs.damaged, repaired=repairs.repaired, discarded=repairs.discarded)


def _relayed_of(broker: Broker, relays: Relays | None, domain: DomainRules) -> Iterable[state.QueueState]:
    for opened in relays.opened.values() if relays is not None else ():
        if opened.relay is not None and opened.relay.domain is domain:
            yield facts.relay_state(broker, opened, opened.relay)


def _proxied_domains(broker: Broker) -> Iterable[state.DomainState]:
    for proxy in broker.proxies.values():
        for domain in proxy.domains.values():
            yield state.DomainState(domain.name, domain.cluster, domain.mode, "{}", facts.meter_state(domain.meter),
                                    tuple(_relayed_of(broker, proxy.relays, domain)))


def sources(broker: Broker) -> Iterable[Source]:
    """Yield all counters that statistics sample, with the stored messages and bytes. The key of an app is (queue, app id);
    apps without counters and metrics of their own are left out."""
    for domain in list(broker.domains.by_name.values()):
        by_app = domain.mode == QueueMode.FANOUT and domain.settings.publish_app_metrics
        for queue in list(domain.queues.values()):
            if not facts.is_active(queue):
                continue
            yield Source(queue.uri, queue.stats, *facts.stored(queue))
            for app in list(queue.apps.values()) if by_app else ():
                messages = facts.app_messages(queue, app)
                yield Source((queue.uri, app.app_id), app.stats, messages, facts.app_bytes(queue, app, messages))
    for relays in list(facts.all_relays(broker)):
        for relay in list(relays.queues.values()):
            yield Source(relay.uri, relay.stats, len(relay.messages), sum(
                message.size for message in relay.messages.values()))


def latencies_in_steps(broker: Broker) -> Steps[dict[Hashable, dict[int, int]]]:
    """Return and reset the histograms of the time from arrival to confirmation, by the keys of `sources`, in steps."""
    taken = yield from in_steps(sources(broker), lambda source: (source.key, source.counters.take_latencies())
                                if isinstance(source.counters, AppStats) else None)
    return dict(each for each in taken if each is not None)
