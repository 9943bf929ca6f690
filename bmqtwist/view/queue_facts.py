"""State of one queue at this node: depth, apps, handles, clients. Admin commands (`admin/operations.py`),
statistics, metrics and the console read each value through the same function; stored messages are in `stored_queue.py`.

Rows are declared in `documents.py`, snapshots in `snapshot.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace

from bmqtwist.cluster.state import QueueRecord
from bmqtwist.ids import DEFAULT_APP_ID, domain_of
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.root import Domain, RootQueue
from bmqtwist.steps import Steps, in_steps
from bmqtwist.storage.state import StoredQueue
from bmqtwist.view import snapshot as state
from bmqtwist.view.cluster_facts import cluster_of, name_of, own_ident, proxied_of
from bmqtwist.view.documents import ConsumerRow, DomainRow, ProxyRow, QueueAppRow, QueueClientRow, SubscriptionRow
from bmqtwist.view.node_facts import downstream_broker

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.queue.meter import Meter
    from bmqtwist.queue.queue import App, ConsumerSubscription, Handle, Queue, Substream
    from bmqtwist.queue.relay import RelayQueue
    from bmqtwist.relay.relays import Relays
    from bmqtwist.relay.upstream_queue import UpstreamQueue

EXACT_MESSAGES_MAX = 20_000  # up to this number messages of an app are counted one by one, beyond it estimated
HANDLES_MAX = 500  # shown per queue
STUCK_S = 30.0  # a consumer is stuck when its oldest unconfirmed message is older than this
Document = dict[str, Any]
Flow = tuple[float, float, float, float]  # messages posted, their bytes, messages delivered, their bytes


def stored(queue: RootQueue) -> tuple[int, int]:
    """Return the messages and bytes of a queue at this node."""
    return len(queue.messages), queue.meter.bytes


class StoredCopy(Struct, frozen=True):
    """Queue as this node stores it, while its primary is another node, or no client has opened it since the start: it has no
    clients and no counters here. `store` None: nothing is stored here. `mode`: "" = its domain is not loaded here;
    `may_have_clients`: at another node."""

    record: QueueRecord
    store: StoredQueue | None
    mode: str
    may_have_clients: bool

    @property
    def uri(self) -> str:
        return self.record.uri


AnyQueue = RootQueue | StoredCopy


def queue_view(queue: AnyQueue, now: float = 0.0) -> state.QueueView:
    """Return depth, limits and counters of a queue, without apps and clients; takes 3 us."""
    if isinstance(queue, StoredCopy):
        return _copy_view(queue, now)
    (messages, size), meter, stats = stored(queue), queue.meter, queue.stats
    oldest = next(iter(queue.messages.values()), None)
    return state.QueueView(
        queue.uri, queue.domain.name, queue.mode, queue.partition_id, messages, size, meter.messages_max, meter.bytes_max,
        None if oldest is None else float(oldest.wall), queue.reader_count(), queue.writer_count(),
        (stats.put_msgs, stats.push_msgs, stats.confirm_msgs), now)


def _copy_view(copy: StoredCopy, now: float) -> state.QueueView:
    store, has_clients = copy.store, copy.may_have_clients
    oldest = next(iter(store.messages.values()), None) if store is not None else None
    messages, size = (len(store.messages), store.bytes) if store is not None else (None, None)
    clients = None if has_clients else 0
    return state.QueueView(
        copy.uri, domain_of(copy.uri), copy.mode, copy.record.partition_id, messages, size, None, None,
        None if oldest is None else float(oldest.wall), clients, clients, None if has_clients else (0, 0, 0), now)


def is_active(queue: RootQueue) -> bool:
    """Return whether a client has opened the queue since the broker started or the queue was created."""
    return bool(queue.handles) or queue.idle_since is not None


def meter_state(meter: Meter) -> state.MeterSnapshot:
    return state.MeterSnapshot(meter.name, meter.messages, meter.messages_max, meter.bytes, meter.bytes_max, meter.disabled,
                            parent=meter_state(meter.parent) if meter.parent is not None else None)


def hexadecimal(key: bytes) -> str:
    return key.hex().upper()


def queue_state(queue: RootQueue) -> state.QueueState:
    (messages, size), meter, domain = stored(queue), queue.meter, queue.domain
    return state.QueueState(
        queue.uri, queue.name, domain.name, hexadecimal(queue.key), queue.mode, queue.partition_id, messages, size,
        meter_state(meter), tuple(app_state(queue, app) for app in queue.apps.values()),
        tuple(handle_state(handle) for handle in queue.handles), history=max(0, len(queue.history) - messages),
        readers=queue.reader_count(), writers=queue.writer_count(), max_consumers=domain.max_consumers,
        message_limit=meter.messages_max, byte_limit=meter.bytes_max)


def app_messages(queue: RootQueue, app: App) -> int:
    """Return the number of messages that an app has not confirmed. Up to EXACT_MESSAGES_MAX unconfirmed messages, purged and
    expired ones, which consumers still hold, are not counted."""
    if queue.mode != QueueMode.FANOUT:
        return len(queue.messages) if app.registered else 0
    app.trim()
    here = len(app.new_messages) + app.put_aside_count() + len(app.redelivery)
    held = sum(len(substream.unconfirmed) for substream in app.substreams)
    if held > EXACT_MESSAGES_MAX:
        return min(here + held, len(queue.messages))
    return here + sum(1 for substream in app.substreams for message, *_ in substream.unconfirmed.values()
                      if message.pending & app.bit)


def app_bytes(queue: RootQueue, app: App, messages: int) -> int:
    """Return the bytes of the app's `messages`; in a long queue an estimate from the mean size."""
    stored = len(queue.messages)
    if not messages or messages >= stored:
        return queue.meter.bytes if messages else 0
    if stored <= EXACT_MESSAGES_MAX:
        return sum(message.size for message in queue.messages.values() if message.pending & app.bit)
    return queue.meter.bytes * messages // stored


def app_state(queue: RootQueue, app: App) -> state.AppState:
    consumers = app.reader_count()
    status = "unauthorized" if not app.registered else "alive" if consumers else "registered"
    router = tuple(state.RouterEntry(each.priority, each.substream.handle.client.description, each.count, each.text)
                   for each in sorted(app.current_router().subscriptions, key=lambda each: -each.priority))
    messages = app_messages(queue, app)
    return state.AppState(app.app_id, hexadecimal(app.key), status, messages, app_bytes(queue, app, messages), consumers,
                          len(app.redelivery), app.put_aside_count(), not app.new_messages, router,
                          sum(len(each.unconfirmed) for each in app.substreams))


def handle_state(handle: Handle) -> state.HandleState:
    """Return the state of a handle; a handle that only writes has one unconfigured substream."""
    substreams = tuple(map(substream_state, handle.substreams.values())) or (state.SubstreamState(0, DEFAULT_APP_ID),)
    return state.HandleState(id(handle) & 0xFFFFFFFFFFFF, handle.client.description, handle.queue.uri, handle.q_id,
                             handle.flags, handle.read_count, handle.write_count, substreams)


def substream_state(substream: Substream) -> state.SubstreamState:
    return state.SubstreamState(substream.sub_id, substream.app_id or DEFAULT_APP_ID, substream.read_count,
                                len(substream.unconfirmed), tuple(map(_subscription, substream.subscriptions)))


def _subscription(each: ConsumerSubscription) -> state.SubscriptionState:
    version = "E_VERSION_1" if each.text else "E_UNDEFINED"
    return state.SubscriptionState(each.s_id, each.text, version, each.priority, each.count, each.max_messages,
                                   each.max_bytes, each.messages, each.bytes,
                                   each.full or not each.window.open)


def domain_rows_in_steps(broker: Broker, partitions: Collection[int]) -> Steps[list[DomainRow]]:
    """Return a row for each domain that is loaded here, has a file, or has queues in `partitions`, with the queues, messages
    and bytes in these partitions."""
    shown = cluster_of(broker)
    sums: dict[str, list[int]] = {}

    def add(queue: AnyQueue) -> None:
        seen = queue_view(queue)
        total = sums.setdefault(seen.domain, [0, 0, 0])
        for at, value in enumerate((1, seen.messages, seen.bytes)):
            total[at] += value or 0

    yield from in_steps(queues_of(broker, partitions), add)
    rows = {name: DomainRow(name=name) for name in broker.domains.provider.names()}
    rows.update((name, DomainRow(name=name, in_use=True)) for name in sums)
    for name, domain in broker.domains.by_name.items():
        rows[name] = _domain_row(domain)
        if shown is None or domain.cluster != shown.name:  # of another cluster: the queues of this node
            sums[name] = [len(domain.queues), domain.meter.messages, domain.meter.bytes]
    found = []
    for name in sorted(rows):
        queues, messages, size = sums.get(name, (0, 0, 0))
        found.append(replace(rows[name], queues=queues, messages=messages, bytes=size))
    return found


def _domain_row(domain: Domain) -> DomainRow:
    settings, meter = domain.settings, domain.meter
    return DomainRow(name=domain.name, in_use=True, cluster=domain.cluster, mode=str(domain.mode),
                     storage="memory" if domain.in_memory else "files", copies=settings.copies.name.lower(),
                     messages_max=meter.messages_max, bytes_max=meter.bytes_max, ttl_seconds=settings.ttl_s)


# -- queues whose primary is another node --------------------------------------------------------------------------------


def all_relays(broker: Broker) -> Iterable[Relays]:
    """Yield the relays of this node, as member and as proxy."""
    yield from (cluster.relays for cluster in broker.clusters.values() if cluster.relays is not None)
    yield from (proxy.relays for proxy in broker.proxies.values())


def relayed_queue(broker: Broker, domain: str, name: str) -> UpstreamQueue | None:
    uri = f"bmq://{domain}/{name}"
    return next((relays.opened[uri] for relays in all_relays(broker) if uri in relays.opened), None)


def relay_state(broker: Broker, opened: UpstreamQueue, queue: RelayQueue) -> state.QueueState:
    """Return the state of a queue whose primary is another node; its messages here are in transit."""
    confirms = sum(map(len, queue.held_confirms.values()))
    upstream = state.UpstreamState(
        len(queue.pending), confirms, opened.upstream.generation if opened.upstream is not None else 0,
        tuple((stream.sub_id, stream.state.name, stream.generation) for stream in opened.streams.values()))
    role = state.NodeRole.PROXY if queue.domain.cluster in broker.proxies else state.NodeRole.REPLICA
    messages, apps = queue.messages.values(), tuple(_relayed_app(queue, app) for app in queue.apps.values())
    return state.QueueState(
        queue.uri, queue.name, queue.domain.name, "", queue.mode, -1, len(messages), sum(each.size for each in messages),
        state.MeterSnapshot(f"queue [{queue.uri}]", 0, 0, 0, 0), apps, tuple(map(handle_state, queue.handles)), role,
        opened.q_id, upstream, readers=queue.reader_count(), writers=queue.writer_count())


def _relayed_app(queue: RelayQueue, app: App) -> state.AppState:
    waiting = [message for message in queue.messages.values() if message.pending & app.bit]
    consumers = app.reader_count()
    return state.AppState(app.app_id, hexadecimal(app.key), "alive" if consumers else "registered", len(waiting),
                          sum(message.size for message in waiting), consumers, len(app.redelivery), app.put_aside_count(),
                          not app.new_messages)


# -- the clients of a queue ---------------------------------------------------------------------------------------------


def local_queue(broker: Broker, uri: str) -> tuple[RootQueue | None, list[Queue]]:
    """Return the queue if this node is its primary (else None), and the relays through which clients have it open here."""
    root = next((cluster.queues[uri] for cluster in broker.clusters.values() if uri in cluster.queues), None)
    relayed: list[Queue] = []
    for relays in all_relays(broker):
        opened = relays.opened.get(uri)
        if opened is not None and opened.relay is not None:
            relayed.append(opened.relay)
    return root, relayed


def queue_part(broker: Broker, uri: str, now: float) -> Document:
    """Return this node's part of the document of a queue: its apps, if this node is the primary, and its clients here."""
    name = name_of(broker)
    root, relayed = local_queue(broker, uri)
    cluster, proxied = cluster_of(broker), proxied_of(broker) is not None
    consumers: list[ConsumerRow] = []
    producers: list[QueueClientRow] = []
    proxies: dict[str, ProxyRow] = {}
    flows: dict[str, Flow] = {"": _flow_of(queue.stats for queue in [root, *relayed] if queue is not None)}
    for queue in ([root] if root is not None else []) + relayed:
        for handle in list(queue.handles)[:HANDLES_MAX]:
            ident, client_name, proxy = downstream_broker(handle.client, cluster)
            if proxy is not None:
                proxies[ident] = proxy
            user = QueueClientRow(client=client_name, ident=ident, node=name, proxy=proxied, broker=handle.client.is_broker,
                                  queues=len(getattr(handle.client, "handles", (handle,))))
            stats = getattr(handle.client, "stats", None)  # the producer of test messages has no session
            if stats is not None:
                flows[flow_name(ident, client_name)] = _flow_of([stats])
            for substream in handle.substreams.values():
                if substream.read_count:
                    consumers.append(_consumer(user, substream, now))
                    flows.update((_subscription_flow(each), (0, 0, each.delivered, 0)) for each in substream.subscriptions)
            if handle.write_count:
                producers.append(user)
    apps = [_app(app_state(root, app)) for app in root.apps.values()] if root is not None else []
    return {"node": name, "ident": own_ident(broker), "proxy": proxied, "leads": root is not None,
            "consumers": to_builtins(consumers), "producers": to_builtins(producers), "flows": flows,
            "proxies": to_builtins(list(proxies.values())), "apps": to_builtins(apps)}


def queues_of(broker: Broker, partitions: Collection[int]) -> Iterator[AnyQueue]:
    """Yield the queues of some partitions in the metadata of the cluster that the console shows."""
    cluster = cluster_of(broker)
    if cluster is not None:
        for record in list(cluster.metadata.state.queues.values()):
            if record.partition_id in partitions:
                yield _known_queue(broker, cluster, record)


def queue_named(broker: Broker, uri: str) -> AnyQueue | None:
    """Return a queue of the cluster that the console shows; None = it is not in the metadata."""
    cluster = cluster_of(broker)
    record = cluster.metadata.state.queues.get(uri) if cluster is not None else None
    return _known_queue(broker, cluster, record) if cluster is not None and record is not None else None


def _known_queue(broker: Broker, cluster: Cluster, record: QueueRecord) -> AnyQueue:
    """Return a queue as this node knows it: as its primary, or from its copy."""
    root = cluster.queues.get(record.uri)
    if root is not None:
        return root
    domain = broker.domains.by_name.get(domain_of(record.uri))
    known = record.partition_id < len(cluster.partitions)  # else this node is starting
    return StoredCopy(record, cluster.partitions[record.partition_id].state.queues.get(record.key) if known else None,
                      str(domain.mode) if domain is not None else "", record.uri not in cluster.dormant)


def flow_name(ident: str, client: str) -> str:
    """Return the key of the flow of a client."""
    return ident or client


def _flow_of(stats: Iterable[Any]) -> Flow:
    found = list(stats)
    return (sum(each.put_msgs for each in found), sum(each.put_bytes for each in found),
            sum(each.push_msgs for each in found), sum(each.push_bytes for each in found))


def _app(app: state.AppState) -> QueueAppRow:
    return QueueAppRow(app=app.app_id, messages=app.messages, bytes=app.bytes, unconfirmed=app.unconfirmed,
                       consumers=app.consumers, redelivery=app.redelivery, put_aside=app.put_aside,
                       registered=app.status != "unauthorized")


def _consumer(user: QueueClientRow, substream: Substream, now: float) -> ConsumerRow:
    oldest = next(iter(substream.unconfirmed.values()), None)
    subscriptions = substream.subscriptions
    return ConsumerRow(**asdict(user), app=substream.app_id or DEFAULT_APP_ID, unconfirmed=len(substream.unconfirmed),
                       unconfirmed_max=sum(each.max_messages for each in subscriptions),
                       priority=max((each.priority for each in subscriptions), default=0),
                       stuck=oldest is not None and now - oldest[2] > STUCK_S,
                       subscriptions=[SubscriptionRow(expression=each.text, unconfirmed=each.messages, full=each.full,
                                                      given=each.delivered, flow=_subscription_flow(each))
                                      for each in subscriptions])


def _subscription_flow(subscription: ConsumerSubscription) -> str:
    """Return the key of the flow of a subscription; it contains newlines, which keys of clients do not."""
    substream = subscription.substream
    return f"{substream.handle.client.description}\n{substream.sub_id}\n{subscription.s_id}"
