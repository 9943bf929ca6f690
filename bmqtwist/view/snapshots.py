"""From the living broker to the plain data of `snapshot`: the only place that knows both.

Everything is read, nothing is changed. What costs more than a look at a counter is said at the function.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from bmqtwist import __version__
from bmqtwist.config.text import pretty_json
from bmqtwist.ids import DEFAULT_APP_ID, parse_uri
from bmqtwist.queue.counters import AppStats
from bmqtwist.queue.mode import QueueMode
from bmqtwist.steps import ITEMS_AT_ONCE, at_once, in_steps, taken
from bmqtwist.view import snapshot as state
from bmqtwist.view.statistics import Source
from bmqtwist.wire.schema import ClientType

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.link.session import Session
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.queue.domain import DomainRules
    from bmqtwist.queue.meter import Meter
    from bmqtwist.queue.queue import App, Handle, Subscription, Substream
    from bmqtwist.queue.relay import RelayQueue
    from bmqtwist.queue.root import Domain, RootQueue
    from bmqtwist.relay.relays import Relays
    from bmqtwist.relay.upstream_queue import UpstreamQueue
    from bmqtwist.storage.partition import Partition

EXACT_MESSAGES_MAX = 20_000  # of an app that are looked at; how much more of them are is estimated
SUMMED_AT_ONCE = 256  # messages whose sizes are added up for one item of `in_steps`, in about 50 us
_T = TypeVar("_T")
_KINDS = {ClientType.E_TCPCLIENT: "client", ClientType.E_TCPADMIN: "admin", ClientType.E_TCPBROKER: "broker"}


def broker_state(broker: Broker, now: float, process: state.ProcessState | None = None) -> state.BrokerState:
    """Everything, at the moment `now` of the monotonic clock."""
    return at_once(broker_in_steps(broker, now, process))


def broker_in_steps(broker: Broker, now: float, process: state.ProcessState | None = None
                    ) -> Generator[None, None, state.BrokerState]:
    """Likewise in steps; each queue and session as it is when it is looked at."""
    identity, domains = broker.identity, list[state.DomainState]()
    for domain in list(broker.domains.values()):
        domains.append((yield from domain_in_steps(broker, domain)))
    sessions = yield from in_steps(list(broker.sessions), lambda session: session_state(session, wall_offset(broker)))
    clusters = []
    for cluster in list(broker.clusters.values()):
        clusters.append((yield from cluster_in_steps(cluster)))
    return state.BrokerState(
        broker.configuration.app.broker_instance_name, __version__, identity.host_name, now,
        now + wall_offset(broker), identity.started_wall, (*domains, *_proxied_domains(broker)), tuple(sessions),
        tuple(clusters), process or state.ProcessState(), broker.invalid_queue.totals())


def seen_in_steps(broker: Broker, now: float, process: state.ProcessState,
                  made: Callable[[state.BrokerState], Generator[None, None, _T]]) -> Generator[None, None, _T]:
    """What is made of such a state of the broker, in steps. The state is freed in steps, too: at once that takes 20 ms with
    10,000 queues."""
    seen = yield from broker_in_steps(broker, now, process)
    result = yield from made(seen)
    parts: list[Any] = list(seen.sessions)
    parts += chain.from_iterable((*domain.queues, *domain.storages) for domain in seen.domains)
    parts += chain.from_iterable(cluster.queues for cluster in seen.clusters)
    parts += chain.from_iterable(partition.storages for cluster in seen.clusters for partition in cluster.partitions)
    del seen
    for number, _ in enumerate(taken(parts), 1):
        if not number % ITEMS_AT_ONCE:
            yield
    return result


def wall_offset(broker: Broker) -> float:
    """What turns the monotonic clock into seconds since the epoch."""
    return broker.identity.started_wall - broker.identity.started


def is_active(queue: RootQueue) -> bool:
    """Whether a client has opened the queue since the broker started (and it was not deleted since)."""
    return bool(queue.handles) or queue.idle_since is not None


def meter_state(meter: Meter) -> state.MeterSnapshot:
    """A meter and those above it."""
    return state.MeterSnapshot(meter.name, meter.messages, meter.messages_max, meter.bytes, meter.bytes_max, meter.disabled,
                            parent=meter_state(meter.parent) if meter.parent is not None else None)


def domain_state(broker: Broker, domain: Domain) -> state.DomainState:
    """A loaded domain, its open queues, and all its stored ones."""
    return at_once(domain_in_steps(broker, domain))


def domain_in_steps(broker: Broker, domain: Domain) -> Generator[None, None, state.DomainState]:
    """Likewise in steps."""
    cluster, config = broker.clusters[domain.cluster], broker.loaded[domain.source].config
    queues = yield from in_steps([queue for queue in domain.queues.values() if is_active(queue)], queue_state)
    stored = yield from in_steps(_storages(cluster), lambda storage: storage if _is_of(storage, domain.name) else None)
    return state.DomainState(
        domain.name, domain.cluster, domain.mode, pretty_json(config), meter_state(domain.meter),
        (*queues, *_relayed_of(broker, cluster.relays, domain)), tuple(each for each in stored if each is not None),
        domain.settings.publish_app_metrics, domain.removing)


def storages(cluster: Cluster, domain_name: str) -> list[state.StorageState]:
    """The stored queues of a domain, loaded or not."""
    return [storage for storage in _storages(cluster) if storage is not None and _is_of(storage, domain_name)]


def _is_of(storage: state.StorageState | None, domain_name: str) -> bool:
    return storage is not None and parse_uri(storage.uri).qualified_domain == domain_name


def _storages(cluster: Cluster) -> Iterable[state.StorageState | None]:
    """All of a cluster; None now and then, where a queue has very many messages that have to be looked at."""
    for queue in list(cluster.queues.values()):
        yield state.StorageState(queue.uri, hexadecimal(queue.key), queue.partition_id, len(queue.messages),
                                 queue.meter.bytes, not queue.in_memory)
    for record in list(cluster.metadata.state.queues.values()):
        if record.uri in cluster.queues or record.partition_id >= len(cluster.partitions):
            continue
        stored = cluster.partitions[record.partition_id].state.queues.get(record.key)
        count = size = 0
        for part in stored.messages.slices() if stored is not None else ():
            for start in range(0, len(part), SUMMED_AT_ONCE):
                if count or start:
                    yield None
                size += sum(message.size for message in part[start:start + SUMMED_AT_ONCE])
            count += len(part)
        yield state.StorageState(record.uri, hexadecimal(record.key), record.partition_id, count, size)


def hexadecimal(key: bytes) -> str:
    """A key or GUID as it is printed."""
    return key.hex().upper()


def queue_state(queue: RootQueue) -> state.QueueState:
    """One queue in full."""
    domain, meter = queue.domain, queue.meter
    return state.QueueState(
        queue.uri, queue.name, domain.name, hexadecimal(queue.key), queue.mode, queue.partition_id, len(queue.messages),
        meter.bytes, meter_state(meter), tuple(app_state(queue, app) for app in queue.apps.values()),
        tuple(handle_state(handle) for handle in queue.handles), cluster=domain.cluster,
        persistent=not queue.in_memory, history=max(0, len(queue.history) - len(queue.messages)),
        readers=queue.readers(), writers=queue.writers(), max_consumers=domain.max_consumers,
        message_limit=meter.messages_max, byte_limit=meter.bytes_max,
        oldest_wall=float(next(iter(queue.messages.values())).wall) if queue.messages else None)


def app_messages(queue: RootQueue, app: App) -> int:
    """How many messages an app has not finished with. Looks at the messages its consumers hold, unless they are very many:
    those that were purged or have expired are still held there, and do not count."""
    if queue.mode != QueueMode.FANOUT:
        return len(queue.messages) if app.registered else 0
    app.trim()
    here = len(app.fresh) + app.put_aside_count() + len(app.redelivery)
    held = sum(len(substream.unconfirmed) for substream in app.substreams)
    if held > EXACT_MESSAGES_MAX:
        return min(here + held, len(queue.messages))
    return here + sum(1 for substream in app.substreams for message, *_ in substream.unconfirmed.values()
                      if message.pending & app.bit)


def app_bytes(queue: RootQueue, app: App, messages: int) -> int:
    """Their bytes; for an app that lags behind others in a long queue an estimate by the mean size."""
    stored = len(queue.messages)
    if not messages or messages >= stored:
        return queue.meter.bytes if messages else 0
    if stored <= EXACT_MESSAGES_MAX:
        return sum(message.size for message in queue.messages.values() if message.pending & app.bit)
    return queue.meter.bytes * messages // stored


def app_state(queue: RootQueue, app: App) -> state.AppState:
    """One app: what it holds, who consumes it."""
    consumers = app.consumers()
    status = "unauthorized" if not app.registered else "alive" if consumers else "registered"
    router = tuple(state.RouterEntry(each.priority, each.substream.handle.client.description, each.count, each.text)
                   for each in sorted(app.routes().subscriptions, key=lambda each: -each.priority))
    messages = app_messages(queue, app)
    return state.AppState(app.app_id, hexadecimal(app.key), status, messages, app_bytes(queue, app, messages), consumers,
                          len(app.redelivery), app.put_aside_count(), not app.fresh, router)


def handle_state(handle: Handle) -> state.HandleState:
    """One handle; one that only writes counts as a substream that was never configured."""
    substreams = tuple(map(substream_state, handle.substreams.values())) or (state.SubstreamState(0, DEFAULT_APP_ID),)
    return state.HandleState(id(handle) & 0xFFFFFFFFFFFF, handle.client.description, handle.queue.uri, handle.q_id,
                             handle.flags, handle.read_count, handle.write_count, substreams)


def substream_state(substream: Substream) -> state.SubstreamState:
    """One substream with its windows."""
    return state.SubstreamState(substream.sub_id, substream.app_id or DEFAULT_APP_ID, substream.read_count,
                                len(substream.unconfirmed), tuple(map(_subscription, substream.subscriptions)))


def _subscription(each: Subscription) -> state.SubscriptionState:
    version = "E_VERSION_1" if each.text else "E_UNDEFINED"
    return state.SubscriptionState(each.s_id, each.text, version, each.priority, each.count, each.max_messages,
                                   each.max_bytes, each.messages, each.bytes,
                                   each.full or not each.window.open)


def session_state(session: Session, offset: float) -> state.SessionState:
    """One connection."""
    identity = session.identity
    kind = _KINDS.get(identity.client_type, "unknown") if session.negotiated_at is not None else "unknown"
    unconfirmed = sum(len(substream.unconfirmed) for handle in session.handles.values()
                      for substream in handle.substreams.values())
    return state.SessionState(
        session.description, session.peer, kind, identity.host_name,
        f"{identity.sdk_language.name.removeprefix('E_')} {identity.sdk_version}", 0, session.connected_at + offset,
        len(session.handles), unconfirmed, session.stats.totals(), session.channel.totals())


def cluster_state(cluster: Cluster) -> state.ClusterSnapshot:
    """A cluster as this node sees it; if it is the only member, it leads, and is primary of every partition."""
    return at_once(cluster_in_steps(cluster))


def cluster_in_steps(cluster: Cluster) -> Generator[None, None, state.ClusterSnapshot]:
    """Likewise in steps."""
    names = {node.id: f"[{node.name}, {node.id}]" for node in cluster.definition.nodes}
    name = names.get(cluster.node_id, f"[{cluster.node_name}, {cluster.node_id}]")
    leadership = cluster.leadership
    primaries = {partition_id: names.get(primary.node_id, "") for partition_id, primary in
                 cluster.metadata.state.partitions.items()}
    stored: dict[int, list[state.StorageState]] = {}
    for storage in (yield from in_steps(_storages(cluster), lambda storage: storage)):
        if storage is not None:
            stored.setdefault(storage.partition_id, []).append(storage)
    active = {queue.uri for queue in cluster.queues.values() if is_active(queue)}
    partitions = tuple(partition_state(each, primaries.get(each.partition_id, ""),
                                       tuple(stored.get(each.partition_id, ())), active,
                                       cluster.primary_status(each.partition_id), primaries.get(each.partition_id) == name)
                       for each in cluster.partitions)
    nodes = []
    statuses = cluster.members.statuses if cluster.members is not None else None
    for node in cluster.definition.nodes:
        ours, up = node.id == cluster.node_id, leadership.is_up(node.id)
        if statuses is None:
            status = "E_STARTING" if cluster.unavailable else "E_AVAILABLE"
        else:
            status = (statuses.own if ours else statuses.others[node.id]).name
        nodes.append(state.NodeState(
            names[node.id], node.name, node.id, node.data_center, "self" if ours else str(up).lower(), status,
            tuple(sorted(number for number, primary in primaries.items() if primary == names[node.id]))))
    queues = yield from in_steps(list(cluster.metadata.state.queues.values()), lambda record: state.AssignedQueue(
        record.uri, hexadecimal(record.key), record.partition_id, primaries.get(record.partition_id, ""),
        "PRIMARY" if record.uri in active else "UNASSIGNED", parse_uri(record.uri).qualified_domain, record.uri in active))
    log, unsafe = cluster.metadata.log, cluster.metadata.state.unsafe
    return state.ClusterSnapshot(
        cluster.name, name, not cluster.unavailable, tuple(nodes),
        elector_state(cluster, names), partitions, tuple(queues),
        cluster.definition.partition_config.location, ledger_bytes=log.log.size, ledger_limit=log.log.max_bytes,
        unsafe_since=unsafe.since if unsafe is not None else 0)


def elector_state(cluster: Cluster, names: dict[int, str]) -> state.ElectorState:
    """Who leads, as this node sees it."""
    leadership = cluster.leadership
    standing, (term, sequence) = leadership.standing, cluster.metadata.log.lsn
    leader = "** NULL **" if standing.leader is None else names.get(standing.leader, "")
    status = "UNDEFINED" if standing.leader is None else "ACTIVE" if leadership.active else "PASSIVE"
    return state.ElectorState(standing.state.name, leader, term, sequence, status)


def partition_state(partition: Partition, primary: str, stored: tuple[state.StorageState, ...], active: set[str],
                    status: str = "ACTIVE", ours: bool = True) -> state.PartitionSnapshot:
    """One partition with its files and the queues stored in it."""
    sizes = partition.files.sizes
    journal, data, qlist = (
        state.FileState(used, total, kept) for used, total, kept in
        zip(partition.positions(), (sizes.journal, sizes.data, sizes.qlist), partition.outstanding(), strict=True))
    return state.PartitionSnapshot(
        partition.partition_id, primary, partition.lease, partition.sequence, status, partition.available, ours,
        queues=len(stored), active=sum(storage.uri in active for storage in stored),
        data_file=f"bmq_{partition.partition_id}.{getattr(partition.files, 'base', '')}.bmq_data", data=data,
        journal=journal, qlist=qlist, records=len(partition.live), storages=stored,
        unreceipted=max(0, partition.position - partition.committed) if ours else 0)


# -- queues that are led elsewhere ------------------------------------------------------------------------------------


def _all_relays(broker: Broker) -> Iterable[Relays]:
    yield from (cluster.relays for cluster in broker.clusters.values() if cluster.relays is not None)
    yield from (proxy.relays for proxy in broker.proxies.values())


def relayed_queue(broker: Broker, domain: str, name: str) -> UpstreamQueue | None:
    """A queue that clients here have open at another node."""
    uri = f"bmq://{domain}/{name}"
    return next((relays.opened[uri] for relays in _all_relays(broker) if uri in relays.opened), None)


def relay_state(broker: Broker, opened: UpstreamQueue, queue: RelayQueue) -> state.QueueState:
    """One of them in full: what is here of it is on its way, in one of the two directions."""
    confirms = sum(map(len, queue.held_confirms.values()))
    upstream = state.UpstreamState(
        len(queue.pending), confirms, opened.upstream.generation if opened.upstream is not None else 0,
        tuple((stream.sub_id, stream.state.name, stream.generation) for stream in opened.streams.values()))
    role = state.NodeRole.PROXY if queue.domain.cluster in broker.proxies else state.NodeRole.REPLICA
    messages, apps = queue.messages.values(), tuple(_relayed_app(queue, app) for app in queue.apps.values())
    return state.QueueState(
        queue.uri, queue.name, queue.domain.name, "", queue.mode, -1, len(messages), sum(each.size for each in messages),
        state.MeterSnapshot(f"queue [{queue.uri}]", 0, 0, 0, 0), apps, tuple(map(handle_state, queue.handles)), role,
        opened.q_id, upstream, queue.domain.cluster, False, readers=queue.readers(), writers=queue.writers())


def _relayed_app(queue: RelayQueue, app: App) -> state.AppState:
    waiting = [message for message in queue.messages.values() if message.pending & app.bit]
    consumers = app.consumers()
    return state.AppState(app.app_id, hexadecimal(app.key), "alive" if consumers else "registered", len(waiting),
                          sum(message.size for message in waiting), consumers, len(app.redelivery), app.put_aside_count(),
                          not app.fresh)


def _relayed_of(broker: Broker, relays: Relays | None, domain: DomainRules) -> Iterable[state.QueueState]:
    for opened in relays.opened.values() if relays is not None else ():
        if opened.relay is not None and opened.relay.domain is domain:
            yield relay_state(broker, opened, opened.relay)


def _proxied_domains(broker: Broker) -> Iterable[state.DomainState]:
    for proxy in broker.proxies.values():
        for domain in proxy.domains.values():
            yield state.DomainState(domain.name, domain.cluster, domain.mode, "{}", meter_state(domain.meter),
                                    tuple(_relayed_of(broker, proxy.relays, domain)))


def sources(broker: Broker) -> Iterable[Source]:
    """All counters that statistics look at, with what is stored when it is its turn. Apps count under (queue, app id), and
    only where they have counters and metrics of their own."""
    for domain in list(broker.domains.values()):
        by_app = domain.mode == QueueMode.FANOUT and domain.settings.publish_app_metrics
        for queue in list(domain.queues.values()):
            if not is_active(queue):
                continue
            yield Source(queue.uri, queue.stats, len(queue.messages), queue.meter.bytes)
            for app in list(queue.apps.values()) if by_app else ():
                messages = app_messages(queue, app)
                yield Source((queue.uri, app.app_id), app.stats, messages, app_bytes(queue, app, messages))
    for relays in list(_all_relays(broker)):
        for relay in list(relays.queues.values()):
            yield Source(relay.uri, relay.stats, len(relay.messages), sum(
                message.size for message in relay.messages.values()))


def latencies_in_steps(broker: Broker) -> Generator[None, None, dict[Hashable, dict[int, int]]]:
    """Of queues and apps, by the keys of `sources`: how many messages took how long from arrival to confirmation, since this
    was asked for last. In steps."""
    taken = yield from in_steps(sources(broker), lambda source: (source.key, source.counters.take_latencies())
                                if isinstance(source.counters, AppStats) else None)
    return dict(each for each in taken if each is not None)
