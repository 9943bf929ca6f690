"""What this node says of itself: the part of the cluster's document that its peers fetch, and what is known of one queue
here.

From the living broker to plain documents; everything is read, nothing is changed. It costs a look at each partition, member
and alarm; no queue is looked at but those that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bmqtwist import __version__
from bmqtwist.broker.broker import Broker
from bmqtwist.console import behind
from bmqtwist.console.documents import Document
from bmqtwist.console.samples import Flow, FlowSampler, NodeSampler, Reading
from bmqtwist.daemon.assemble import Node
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.member.cluster import Cluster
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.peers.welcome import EVERY_ADDRESS, announced_url, console_url
from bmqtwist.queue.queue import App, Handle, Queue, Subscription, Substream
from bmqtwist.queue.root import RootQueue
from bmqtwist.relay.proxy import ProxyCluster
from bmqtwist.view import replicas, snapshots, stopping, traffic
from bmqtwist.view.snapshot import ProcessState
from bmqtwist.wire.cluster_schema import NodeStatus
from bmqtwist.wire.schema import ClientType

EVENTS_SHOWN = 50
ALARMS_SHOWN = 100
SESSIONS_MAX = 2000  # of one node, in the list of clients
HANDLES_MAX = 500  # of one queue
STUCK_S = 30.0  # a consumer that has confirmed nothing of what it holds for so long
_STATES = {NodeStatus.E_STARTING: "starting", NodeStatus.E_AVAILABLE: "up", NodeStatus.E_STOPPING: "stopping",
           NodeStatus.E_UNAVAILABLE: "down", NodeStatus.E_UNKNOWN: "starting"}


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """Of this process; 0 = that is not known."""

    count: int = 0
    most: int = 0


def cluster_of(broker: Broker) -> Cluster | None:
    """The cluster that is shown: the first one of several nodes that this node is a member of, else its first one."""
    return replicas.cluster_named(broker) if broker.clusters else None


def name_of(broker: Broker) -> str:
    """This node, as the others call it."""
    cluster = cluster_of(broker)
    return cluster.node_name if cluster is not None else broker.configuration.app.broker_instance_name


def own_ident(broker: Broker) -> str:
    """This proxy, as `behind` tells it from others; "" = this is no proxy."""
    identity = broker.identity
    return behind.ident_of(name_of(broker), identity.host_name, identity.pid) if proxied_of(broker) is not None else ""


def proxies_here(broker: Broker, sampler: FlowSampler, now: float) -> list[Document]:
    """The proxies that are connected here."""
    return behind.proxy_facts(broker, cluster_of(broker), sampler, now)


def own_url(broker: Broker) -> str:
    """Where this console is found."""
    cluster = cluster_of(broker)
    if cluster is None:
        return console_url(broker.configuration.extension.http, broker.identity.host_name if broker.proxies else "")
    node = next((each for each in cluster.definition.nodes if each.id == cluster.node_id), None)
    return console_url(broker.configuration.extension.http, (node.host_and_port or ("", 0))[0] if node else "")


def listener_uri(broker: Broker) -> str:
    """Where an application on this machine connects to without TLS; "" = nowhere."""
    found = next((each for each in broker.configuration.listeners if not each.tls), None)
    if found is None:
        return ""
    host = "127.0.0.1" if found.address in EVERY_ADDRESS else found.address
    return f"tcp://{f'[{host}]' if ':' in host else host}:{found.port}"


def proxied_of(broker: Broker) -> ProxyCluster | None:
    """The cluster that is shown by a broker that is a member of none: the first one that it is a proxy of."""
    return next(iter(broker.proxies.values()), None) if not broker.clusters else None


def node_names(broker: Broker) -> list[str]:
    """The nodes of the cluster that is shown."""
    shown = cluster_of(broker) or proxied_of(broker)
    return [node.name for node in shown.definition.nodes] if shown is not None else []


def peer_urls(broker: Broker) -> dict[str, str]:
    """Where the consoles of the nodes of the cluster are, by name, as those say that are connected."""
    cluster, proxied = cluster_of(broker), proxied_of(broker)
    links = broker.peers.get(cluster.name) if cluster is not None else proxied.links if proxied is not None else None
    if not isinstance(links, ClusterLinks):
        return {}
    found = {}
    for node in links.definition.nodes:
        peer = links.session(node.id)
        url = announced_url(peer.session.features) if peer is not None else ""
        if url:
            found[node.name] = url
    return found


def reading(broker: Broker, now: float, process: ProcessState) -> Reading:
    """The counters now."""
    totals = traffic.totals(broker)
    return Reading(now, (totals.put, totals.ack, totals.push, totals.confirm, totals.put_bytes, totals.push_bytes),
                   broker.ack_latency.counts(), process.cpu_user + process.cpu_system)


def stored(broker: Broker) -> tuple[int, int]:
    """Messages and bytes of the queues that this node leads."""
    meters = [domain.meter for domain in broker.domains.values()]
    return sum(meter.messages for meter in meters), sum(meter.bytes for meter in meters)


def node_part(node: Node, sampler: NodeSampler, process: ProcessState, files: OpenFiles, now: float,
              top: list[Document], proxies: list[Document]) -> Document:
    """Everything that this node contributes to the document of the cluster. `proxies`: those of `proxies_here`."""
    broker, wall = node.broker, now + snapshots.wall_offset(node.broker)
    cluster = cluster_of(broker)
    stop = stopping.progress(broker)
    name = name_of(broker)
    proxied = proxied_of(broker)
    shown = cluster or proxied
    part: Document = {
        "name": name, "id": cluster.node_id if cluster is not None else 0, "cluster": shown.name if shown else "",
        "proxy": proxied is not None, "ident": own_ident(broker), "host": broker.identity.host_name, "proxies": proxies,
        "at": round(wall, 3), "version": __version__, "startedAt": round(broker.identity.started_wall, 3),
        "url": own_url(broker), "state": _own_state(broker, cluster), "stop": stop,
        "unsafe": bool(cluster is not None and cluster.metadata.state.unsafe is not None),
        "sessions": broker.applications(), "memoryBytes": process.memory_resident,
        "cpuShare": round(sampler.cpu_share, 4), "loopLagMs": round(process.loop_lag * 1000, 2),
        "openFiles": files.count, "openFilesMax": files.most,
        "rates": sampler.rates, "latencies": sampler.latencies, "history": list(sampler.history), "top": top,
        "alarms": [{**alarm.tree(), "id": f"{name}:{alarm.number}", "node": name}
                   for alarm in node.alarms.alarms()[:ALARMS_SHOWN]],
        "events": [{**event.tree(), "node": name} for event in node.events.last(EVENTS_SHOWN)],
        "members": [], "partitions": [], "elector": None}
    if cluster is not None:
        part.update(members=members(cluster, peer_urls(broker)), elector=_elector(cluster),
                    partitions=replicas.partitions(broker, now=now))
    return part


def _own_state(broker: Broker, cluster: Cluster | None) -> str:
    if broker.shutdown is not None:
        return "stopping"
    if cluster is None:
        return "up"
    return str(next(each["state"] for each in members(cluster, {}) if each["id"] == cluster.node_id))


def members(cluster: Cluster, urls: dict[str, str]) -> list[Document]:
    """All members, as this node sees them."""
    statuses = cluster.members.statuses if cluster.members is not None else None
    primaries: dict[int, list[int]] = {}
    for number, primary in sorted(cluster.metadata.state.partitions.items()):
        primaries.setdefault(primary.node_id, []).append(number)
    found = []
    for node in cluster.definition.nodes:
        ours = node.id == cluster.node_id
        if statuses is None:
            state = "starting" if cluster.unavailable else "up"
        else:
            state = _STATES[statuses.own if ours else statuses.others[node.id]]
        found.append({"name": node.name, "id": node.id, "dataCenter": node.data_center, "state": state,
                      "connected": ours or cluster.leadership.is_up(node.id),
                      "primaryFor": primaries.get(node.id, []), "url": urls.get(node.name, "")})
    return found


def _elector(cluster: Cluster) -> Document:
    leadership = cluster.leadership
    standing = leadership.standing
    names = {node.id: node.name for node in cluster.definition.nodes}
    return {"state": standing.state.name, "term": standing.term, "active": leadership.active, "leads": leadership.leads,
            "leader": names.get(standing.leader, "") if standing.leader is not None else ""}


# -- one queue --------------------------------------------------------------------------------------------------------


def queue_here(broker: Broker, uri: str) -> tuple[RootQueue | None, list[Queue]]:
    """A queue: as this node leads it, and as clients have it open here on the way to its primary."""
    root = next((cluster.queues[uri] for cluster in broker.clusters.values() if uri in cluster.queues), None)
    relayed: list[Queue] = []
    for relays in [each.relays for each in broker.clusters.values()] + [each.relays for each in broker.proxies.values()]:
        opened = relays.opened.get(uri) if relays is not None else None
        if opened is not None and opened.relay is not None:
            relayed.append(opened.relay)
    return root, relayed


def queue_part(broker: Broker, uri: str, now: float) -> Document:
    """What this node knows of one queue: its apps, if it leads it, and who uses it here."""
    name, wall = name_of(broker), now + snapshots.wall_offset(broker)
    root, relayed = queue_here(broker, uri)
    cluster, proxied = cluster_of(broker), proxied_of(broker) is not None
    consumers: list[Document] = []
    producers: list[Document] = []
    proxies: dict[str, Document] = {}
    flows: dict[str, Flow] = {"": _flow_of([traffic.queue_totals(queue) for queue in [root, *relayed] if queue is not None])}
    for queue in ([root] if root is not None else []) + relayed:
        for handle in list(queue.handles)[:HANDLES_MAX]:
            other = behind.broker_behind(handle.client, cluster)
            if "proxy" in other:
                proxies[other["ident"]] = other["proxy"]
            user: Document = {"client": other.get("name", handle.client.description), "ident": other.get("ident", ""),
                              "node": name, "proxy": proxied, "broker": handle.client.is_broker,
                              "queues": _queues_of(handle)}
            stats = getattr(handle.client, "stats", None)  # test messages come from no session
            if stats is not None:
                flows[flow_name(user)] = stats.put_msgs, stats.put_bytes, stats.push_msgs, stats.push_bytes
            for substream in handle.substreams.values():
                if substream.read_count:
                    consumers.append({**user, **_consumer(substream, now)})
                    flows.update((_subscription_flow(each), (0, 0, each.given, 0)) for each in substream.subscriptions)
            if handle.write_count:
                producers.append(user)
    return {"node": name, "ident": own_ident(broker), "proxy": proxied, "leads": root is not None, "consumers": consumers,
            "producers": producers, "flows": flows, "proxies": list(proxies.values()),
            "apps": [_app(root, app, wall) for app in root.apps.values()] if root is not None else []}


def flow_name(user: Document) -> str:
    """What the rates of a consumer or a producer are found by."""
    return str(user["ident"] or user["client"])


def _flow_of(totals: list[traffic.Totals]) -> Flow:
    return (sum(each.put for each in totals), sum(each.put_bytes for each in totals), sum(each.push for each in totals),
            sum(each.push_bytes for each in totals))


def _queues_of(handle: Handle) -> int:
    """How many queues the client of a handle has open: its rates are those of all of them."""
    return len(getattr(handle.client, "handles", (handle,)))


def _app(queue: RootQueue, app: App, wall: float) -> Document:
    messages = snapshots.app_messages(queue, app)
    return {"app": app.app_id, "messages": messages, "bytes": snapshots.app_bytes(queue, app, messages),
            "unconfirmed": sum(len(each.unconfirmed) for each in app.substreams), "consumers": app.consumers(),
            "redelivery": len(app.redelivery), "aside": app.put_aside_count(), "registered": app.registered}


def _consumer(substream: Substream, now: float) -> Document:
    oldest = next(iter(substream.unconfirmed.values()), None)
    subscriptions = substream.subscriptions
    return {"app": substream.app_id or DEFAULT_APP_ID, "unconfirmed": len(substream.unconfirmed),
            "unconfirmedMax": sum(each.max_messages for each in subscriptions),
            "priority": max((each.priority for each in subscriptions), default=0),
            "stuck": oldest is not None and now - oldest[2] > STUCK_S,
            "subscriptions": [{"expression": each.text, "unconfirmed": each.messages, "full": each.full,
                               "given": each.given, "flow": _subscription_flow(each)} for each in subscriptions]}


def _subscription_flow(subscription: Subscription) -> str:
    """What names the flow of a subscription beside those of clients, in which no such character is."""
    substream = subscription.substream
    return f"{substream.handle.client.description}\n{substream.sub_id}\n{subscription.s_id}"


# -- who is connected -------------------------------------------------------------------------------------------------


def clients(broker: Broker) -> list[Document]:
    """Applications and administrators that are connected here."""
    name, offset, proxied = name_of(broker), snapshots.wall_offset(broker), proxied_of(broker) is not None
    found: list[Document] = []
    for number, session in enumerate(broker.sessions):
        if len(found) == SESSIONS_MAX:
            break
        identity = session.identity
        if session.negotiated_at is None or identity.client_type == ClientType.E_TCPBROKER:
            continue
        state = snapshots.session_state(session, offset)
        found.append({"id": f"{name}:{session.session_number}:{number}", "client": state.description, "node": name,
                      "proxy": proxied, "host": state.host, "address": state.address, "kind": state.kind, "sdk": state.sdk,
                      "since": round(state.since_wall, 3), "queues": state.queues, "unconfirmed": state.unconfirmed,
                      "state": "connected", "putMessages": state.counters.get("put_msgs", 0),
                      "pushMessages": state.counters.get("push_msgs", 0),
                      "bytesIn": state.channel.get("in_bytes", 0), "bytesOut": state.channel.get("out_bytes", 0)})
    return found


def clients_part(broker: Broker) -> Document:
    """They, and the proxies that are connected here."""
    return {"clients": clients(broker), "proxies": behind.proxies(broker, cluster_of(broker))}


def log_lines(report: Any, count: int, level: str, node: str) -> list[Document]:
    """The last lines of the log."""
    return [{**line._asdict(), "node": node} for line in report.tail(count, level)]


def living_queues(broker: Broker) -> Iterable[RootQueue]:
    """The queues that this node leads, of the cluster that is shown."""
    cluster = cluster_of(broker)
    return cluster.queues.values() if cluster is not None else ()
