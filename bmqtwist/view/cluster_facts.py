"""State of this node and its cluster: names, members, leader and elections, primaries, URLs of consoles.

Read by `admin/operations.py` and `console/collector.py`; values of one queue are in `queue_facts.py`, documents of the
node in `node_facts.py`. Rows are declared in `documents.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bmqtwist.cluster.electorate import MemberState
from bmqtwist.peers.handshake import EVERY_ADDRESS, announced_url, console_url
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.view import snapshot as state
from bmqtwist.view.documents import ElectorRow, MemberRow
from bmqtwist.view.events import EventLog, NodeEvent
from bmqtwist.view.replicas import cluster_named, write_problem
from bmqtwist.wire.cluster_schema import NodeStatus

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.relay.proxy import ProxyCluster

_STATES = {NodeStatus.E_STARTING: "starting", NodeStatus.E_AVAILABLE: "up", NodeStatus.E_STOPPING: "stopping",
           NodeStatus.E_UNAVAILABLE: "down", NodeStatus.E_UNKNOWN: "starting"}
EVENTS_MAX = 200
Document = dict[str, Any]


def cluster_of(broker: Broker) -> Cluster | None:
    """Return the cluster that the console shows: the node's first cluster of several nodes, else its first cluster."""
    return cluster_named(broker) if broker.clusters else None


def name_of(broker: Broker) -> str:
    """Return the name of this node in its cluster, else the name of the instance."""
    cluster = cluster_of(broker)
    return cluster.node_name if cluster is not None else broker.configuration.app.broker_instance_name


def own_ident(broker: Broker) -> str:
    """Return the identifier of this proxy; "" = this broker is not a proxy."""
    identity = broker.identity
    return ident_of(name_of(broker), identity.host_name, identity.pid) if proxied_of(broker) is not None else ""


def ident_of(name: str, host: str, pid: int) -> str:
    return f"{name}@{host}:{pid}"


def own_url(broker: Broker) -> str:
    cluster = cluster_of(broker)
    if cluster is None:
        return console_url(broker.configuration.extension.http, broker.identity.host_name if broker.proxies else "")
    node = next((each for each in cluster.definition.nodes if each.id == cluster.node_id), None)
    return console_url(broker.configuration.extension.http, (node.host_and_port or ("", 0))[0] if node else "")


def listener_uri(broker: Broker) -> str:
    """Return the URI of a listener without TLS for applications on this machine; "" = none."""
    found = next((each for each in broker.configuration.listeners if not each.tls), None)
    if found is None:
        return ""
    host = "127.0.0.1" if found.address in EVERY_ADDRESS else found.address
    return f"tcp://{f'[{host}]' if ':' in host else host}:{found.port}"


def proxied_of(broker: Broker) -> ProxyCluster | None:
    """Return the cluster that the console of a proxy shows: the first one; None = this broker is a member of a cluster."""
    return next(iter(broker.proxies.values()), None) if not broker.clusters else None


def node_names(broker: Broker) -> list[str]:
    shown = cluster_of(broker) or proxied_of(broker)
    return [node.name for node in shown.definition.nodes] if shown is not None else []


def peer_urls(broker: Broker) -> dict[str, str]:
    """Return the URLs of the consoles of the connected nodes, by name, as the nodes announced them."""
    return {name: url for name, url in _announced_urls(broker).items() if url}


def nodes_without_console(broker: Broker) -> set[str]:
    """Return the names of the connected nodes that announced no console."""
    return {name for name, url in _announced_urls(broker).items() if not url}


def _announced_urls(broker: Broker) -> dict[str, str]:
    """Return what each connected node announced as the URL of its console; "" = none."""
    cluster, proxied = cluster_of(broker), proxied_of(broker)
    links = (broker.sessions.peers.get(cluster.name) if cluster is not None
             else proxied.links if proxied is not None else None)
    if not isinstance(links, ClusterLinks):
        return {}
    connected = ((node.name, links.session(node.id)) for node in links.definition.nodes)
    return {name: announced_url(peer.session.remote.features) for name, peer in connected if peer is not None}


def node_states(cluster: Cluster) -> tuple[state.NodeState, ...]:
    names, statuses = descriptions(cluster), cluster.members.statuses if cluster.members is not None else None
    primaries: dict[int, list[int]] = {}
    for number, primary in sorted(cluster.metadata.state.partitions.items()):
        primaries.setdefault(primary.node_id, []).append(number)
    found, refusals, problem = [], cluster.features.refusals(), write_problem(cluster)
    for node in cluster.definition.nodes:
        ours = node.id == cluster.node_id
        if statuses is None:
            started = bool(cluster.partitions) and member_state(cluster) == (MemberState.MEMBER.name, "")
            status = NodeStatus.E_AVAILABLE if started else NodeStatus.E_STARTING
        else:
            status = statuses.own if ours else statuses.other_nodes[node.id]
        connected = "self" if ours else str(cluster.leadership.is_up(node.id)).lower()
        found.append(state.NodeState(names[node.id], node.name, node.id, node.data_center, connected, status.name,
                                     tuple(primaries.get(node.id, ())),
                                     problem if ours else statuses.unable.get(node.id, "") if statuses is not None else "",
                                     refusals.get(node.name, "")))
    return tuple(found)


def descriptions(cluster: Cluster) -> dict[int, str]:
    """Return the printed form of each member of a cluster, by node id."""
    return {node.id: f"[{node.name}, {node.id}]" for node in cluster.definition.nodes}


def members(cluster: Cluster, urls: dict[str, str]) -> list[MemberRow]:
    """Return the members of a cluster. `urls`: of their consoles, by name."""
    return [MemberRow(name=node.name, id=node.node_id, data_center=node.data_center,
                      state=_STATES[NodeStatus[node.status]], connected=node.connected != "false",
                      primary_for=list(node.primary_for), unable=node.unable, url=urls.get(node.name, ""),
                      refused=node.refused) for node in node_states(cluster)]


def member_state(cluster: Cluster | None) -> tuple[str, str]:
    """Return the name of this node's `MemberState`, and the nodes that it waits for; empty for a proxy."""
    if cluster is None:
        return "", ""
    state, awaited = cluster.leadership.member_state
    return state.name, awaited


def own_state(broker: Broker, cluster: Cluster | None) -> str:
    if broker.shutdown is not None:
        return "stopping"
    if cluster is None:
        return "up"
    return next(each.state for each in members(cluster, {}) if each.id == cluster.node_id)


def elector(cluster: Cluster) -> ElectorRow:
    leadership, standing = cluster.leadership, cluster.leadership.standing
    return ElectorRow(state=standing.state.name, term=standing.term, active=leadership.active, leads=leadership.leads,
                      leader=node_name(cluster, standing.leader))


def node_name(cluster: Cluster, node_id: int | None) -> str:
    """Return the name of a node by its id; "" = none."""
    return next((node.name for node in cluster.definition.nodes if node.id == node_id), "")


def partition_primary(cluster: Cluster, partition: int) -> str:
    """Return the primary of a partition in the metadata; "" = none."""
    primary = cluster.metadata.state.partitions.get(partition)
    return node_name(cluster, primary.node_id) if primary is not None else ""


def queue_primary(cluster: Cluster, uri: str) -> str:
    """Return the primary of a queue in the metadata; "" = the queue is unknown or has no primary."""
    record = cluster.metadata.state.queues.get(uri)
    return partition_primary(cluster, record.partition_id) if record is not None else ""


def terms(events: Iterable[NodeEvent]) -> list[Document]:
    """Return the terms with their leaders from election events, oldest first. `to` None: present; `end`: why it ended."""
    found: list[Document] = []
    for event in events:
        term, leader = event.detail.get("term"), event.detail.get("leader")
        last = found[-1] if found else None
        if last is not None and last["to"] is None and (last["term"], last["leader"]) != (term, leader):
            last["to"], last["end"] = event.at, event.text
            last = None
        if leader is not None and (last is None or last["to"] is not None):
            found.append({"term": term, "leader": leader, "from": event.at, "to": None,
                          "reason": event.detail.get("cause", ""), "end": ""})
    return found


def leader_since(events: EventLog, cluster: str, seen: ElectorRow) -> float | None:
    """Return when the present leader was elected, as this node's events say; None = they do not."""
    known = terms(_election_events(events, cluster))
    last = known[-1] if known else None
    return last["from"] if last is not None and (last["leader"], last["term"]) == (seen.leader, seen.term) else None


def _election_events(events: EventLog, cluster: str) -> list[NodeEvent]:
    return [event for event in events.last(EVENTS_MAX, ("election",)) if event.detail.get("cluster", cluster) == cluster]


def elections(broker: Broker, events: EventLog, cluster_name: str = "") -> Document:
    """Return terms, events and elector state of a cluster ("" = `cluster_named`'s default). Raises LocalError."""
    cluster = cluster_named(broker, cluster_name)
    seen = _election_events(events, cluster.name)
    elector, offset = cluster.leadership.elector, broker.loop.wall_offset
    names = {node.id: node.name for node in cluster.definition.nodes}
    seconds = elector.seconds_since_heartbeat(broker.loop.now)
    return {
        "cluster": cluster.name, "terms": terms(seen), "events": [event.tree() for event in seen],
        "story": [{"at": each.at + offset, "before": each.before, "state": each.after, "cause": each.cause}
                  for each in elector.transition_log.transitions],
        "standing": {
            "state": elector.state.name, "leader": names.get(elector.leader) if elector.leader is not None else None,
            "term": elector.term, "active": cluster.leadership.active, "quorum": elector.quorum, "mode": elector.mode.name,
            "supporters": sorted(names.get(each, str(each)) for each in elector.supporters),
            "leaderSilentSeconds": seconds, "heartbeatsMissed": int(seconds / elector.timing.beat_period),
            "heartbeatsMissedMax": elector.timing.miss_count}}
