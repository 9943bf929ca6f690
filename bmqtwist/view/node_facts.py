"""JSON documents of this node: its part of the cluster document, its connections, and the configuration of a domain.

The identifier of a proxy (name, host and process id) is equal at every node that the proxy is connected to and at the proxy
itself; the name alone may not be unique. All functions only read. Pure. Called by `console/collector.py` and
`console/documents_api.py`; rows are declared in `documents.py`, the merge of all nodes is in `console/merge.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from bmqtwist import __version__
from bmqtwist.config.text import plain
from bmqtwist.errors import LocalError, Refused
from bmqtwist.link.states import ConnectionState
from bmqtwist.peers.handshake import announced_name, announced_url
from bmqtwist.queue.counters import ClientStats
from bmqtwist.view import cluster_facts as facts
from bmqtwist.view import replicas, stopping
from bmqtwist.view import snapshot as state
from bmqtwist.view.documents import ClientRow, ProxyLinkRow, ProxyRow
from bmqtwist.wire.schema import ClientType

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.link.peer import PeerSession
    from bmqtwist.link.session import Session
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.view.events import NodeHistory
    from bmqtwist.view.snapshot import ProcessState

Document = dict[str, Any]
SUMS = ("queues", "messages", "bytes")
SESSIONS_MAX = 2000  # per node, in the list of clients
PROXIES_MAX = 200  # per node, in its documents
_KINDS = {ClientType.E_TCPCLIENT: "client", ClientType.E_TCPADMIN: "admin", ClientType.E_TCPBROKER: "broker"}
EVENTS_SHOWN = 50
ALARMS_SHOWN = 100


def node_document(broker: Broker, history: NodeHistory, process: ProcessState, now: float) -> Document:
    """Return this node's part of the cluster document, without rates and histories."""
    cluster, proxied, name = facts.cluster_of(broker), facts.proxied_of(broker), facts.name_of(broker)
    shown = cluster or proxied
    member_state, awaited = facts.member_state(cluster)
    return {
        "name": name, "id": cluster.node_id if cluster is not None else 0, "cluster": shown.name if shown else "",
        "proxy": proxied is not None, "ident": facts.own_ident(broker), "host": broker.identity.host_name,
        "at": round(now + broker.loop.wall_offset, 3), "version": __version__,
        "startedAt": round(broker.identity.started_wall, 3), "url": facts.own_url(broker),
        "state": facts.own_state(broker, cluster),
        "stop": stopping.progress(broker), "unsafe": cluster is not None and cluster.metadata.state.unsafe is not None,
        "memberState": member_state, "awaited": awaited,
        "sessions": broker.sessions.client_count(), "memoryBytes": process.memory_resident,
        "loopLagMs": round(process.loop_lag * 1000, 2),
        "alarms": [{**alarm.tree(), "id": f"{name}:{alarm.number}", "node": name}
                   for alarm in history.alarms.alarms()[:ALARMS_SHOWN]],
        "events": [{**event.tree(), "node": name} for event in history.events.last(EVENTS_SHOWN)],
        "members": to_builtins(facts.members(cluster, facts.peer_urls(broker))) if cluster is not None else [],
        "partitions": to_builtins(replicas.partitions(broker, now=now)) if cluster is not None else [],
        "elector": to_builtins(facts.elector(cluster)) if cluster is not None else None}


def traffic_totals(broker: Broker) -> ClientStats:
    """Return the messages and bytes of all applications and proxies since the start, disconnected ones included."""
    sums = ClientStats()
    sums.add(broker.sessions.past_traffic)
    for session in broker.sessions.open:
        if session.kind.carries_client_traffic:
            sums.add(session.stats)
    return sums


def stored_totals(broker: Broker) -> tuple[int, int]:
    """Return the messages and bytes of the queues whose primary is this node."""
    meters = [domain.meter for domain in broker.domains.by_name.values()]
    return sum(meter.messages for meter in meters), sum(meter.bytes for meter in meters)


def domain_document(broker: Broker, node: str, name: str) -> Document | None:
    """Return the configurations of a domain; None if there is no such domain. `config`: the active one, None = the domain
    is not in use; `file`: the one that a reconfigure would activate, None = it would fail with `problem`."""
    domain = broker.domains.by_name.get(name)
    loaded = broker.domains.loaded.get(domain.source if domain is not None else name)
    file: Any = None
    problem = ""
    try:
        file = plain(broker.domains.provider.preview(loaded.name if loaded is not None else name, broker.domains.loaded,
                                                    broker.loop.now))
    except (LocalError, Refused) as error:
        problem = error.message if isinstance(error, Refused) else str(error)
    if loaded is None and file is None and name not in broker.domains.provider.names():
        return None
    return {"name": name, "node": node, "config": plain(loaded.config) if loaded is not None else None, "file": file,
            "problem": problem[:2000]}


def proxy_of(session: Session) -> ProxyRow:
    identity, features = session.remote.identity, session.remote.features
    name = announced_name(features) or session.description
    return ProxyRow(ident=facts.ident_of(name, identity.host_name, identity.pid), name=name, url=announced_url(features))


def connected_proxies(broker: Broker, cluster: Cluster | None) -> list[PeerSession]:
    """Return the downstream proxies of `cluster`; of all clusters if it is None (this broker is a proxy)."""
    downstreams = broker.sessions.downstreams
    found = [each for each in [downstreams.get(cluster.name)] if each] if cluster else downstreams.values()
    return [peer for downstreams in found for peer in downstreams.peers][:PROXIES_MAX]


def proxies(broker: Broker, cluster: Cluster | None) -> list[ProxyRow]:
    return [proxy_of(peer.session) for peer in connected_proxies(broker, cluster)]


def proxy_rows(broker: Broker, cluster: Cluster | None) -> list[tuple[ProxyLinkRow, tuple[int, int, int, int]]]:
    """Return for each connected proxy a row, and its posted messages and bytes and delivered messages and bytes. Visits
    every queue that the proxies have open."""
    offset = broker.loop.wall_offset
    rows = []
    for peer in connected_proxies(broker, cluster):
        proxy, seen, stats = proxy_of(peer.session), session_state(peer.session, offset), peer.session.stats
        rows.append((ProxyLinkRow(ident=proxy.ident, name=proxy.name, url=proxy.url, host=seen.host, address=seen.address,
                                  since=round(seen.since_wall, 3), queues=seen.queues, unconfirmed=seen.unconfirmed,
                                  unacked=peer.unacked, unread=broker.sessions.output.unsent_output(peer.session)[0],
                                  state=_state(peer)),
                     (stats.put_msgs, stats.put_bytes, stats.push_msgs, stats.push_bytes)))
    return rows


def _state(peer: PeerSession) -> str:
    if peer.session.state is not ConnectionState.SERVING:
        return "leaving"
    return "behind" if peer.window.lagging else "connected"


def downstream_broker(client: Any, cluster: Cluster | None) -> tuple[str, str, ProxyRow | None]:
    """Return identifier and name of a client, and its row if it is a proxy. An application has no identifier, ""."""
    if not client.is_broker:
        return "", client.description, None
    if client.is_member:
        identity = client.session.remote.identity
        nodes = cluster.definition.nodes if cluster is not None and cluster.name == identity.cluster_name else ()
        name = next((node.name for node in nodes if node.id == identity.cluster_node_id), client.description)
        return name, name, None
    found = proxy_of(client.session)
    return found.ident, found.name, found


def session_state(session: Session, offset: float) -> state.SessionState:
    identity = session.remote.identity
    kind = _KINDS.get(identity.client_type, "unknown") if session.channel.negotiated_at is not None else "unknown"
    unconfirmed = sum(len(substream.unconfirmed) for handle in session.kind.handles.values()
                      for substream in handle.substreams.values())
    return state.SessionState(
        session.description, session.peer, kind, identity.host_name,
        f"{identity.sdk_language.name.removeprefix('E_')} {identity.sdk_version}", session.channel.connected_at + offset,
        len(session.kind.handles), unconfirmed, session.stats.totals(), session.channel.totals())


def clients(broker: Broker) -> list[ClientRow]:
    """Return a row for each connected application and administrator."""
    name, offset, proxied = facts.name_of(broker), broker.loop.wall_offset, facts.proxied_of(broker) is not None
    found: list[ClientRow] = []
    for number, session in enumerate(broker.sessions.open):
        if len(found) == SESSIONS_MAX:
            break
        identity = session.remote.identity
        if session.channel.negotiated_at is None or identity.client_type == ClientType.E_TCPBROKER:
            continue
        state = session_state(session, offset)
        found.append(ClientRow(
            id=f"{name}:{session.remote.session_number}:{number}", client=state.description, node=name, proxy=proxied,
            host=state.host, address=state.address, kind=state.kind, sdk=state.sdk, since=round(state.since_wall, 3),
            queues=state.queues, unconfirmed=state.unconfirmed, put_messages=state.counters.get("put_msgs", 0),
            push_messages=state.counters.get("push_msgs", 0), bytes_in=state.channel.get("in_bytes", 0),
            bytes_out=state.channel.get("out_bytes", 0)))
    return found


def clients_part(broker: Broker) -> Document:
    return {"clients": to_builtins(clients(broker)), "proxies": to_builtins(proxies(broker, facts.cluster_of(broker)))}
