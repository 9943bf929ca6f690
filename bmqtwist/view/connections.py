"""Connections of this node: applications, administrators, and proxies.

The ident of a proxy (its name, host and process) is the same at every node that the proxy is connected with, and at the
proxy itself; names alone need not differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bmqtwist.link.states import State
from bmqtwist.peers.welcome import announced_name, announced_url
from bmqtwist.view import snapshot as state
from bmqtwist.view.cluster_facts import cluster_of, ident_of, name_of, proxied_of
from bmqtwist.wire.schema import ClientType

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.link.peer import PeerSession
    from bmqtwist.link.session import Session
    from bmqtwist.member.cluster import Cluster

SESSIONS_MAX = 2000  # of one node, in the list of clients
PROXIES_MAX = 200  # of one node, in its documents
Document = dict[str, Any]
_KINDS = {ClientType.E_TCPCLIENT: "client", ClientType.E_TCPADMIN: "admin", ClientType.E_TCPBROKER: "broker"}


def proxy_of(session: Session) -> Document:
    """Who a proxy is, and where its console is; url "" = it has none, or does not say."""
    identity, features = session.remote.identity, session.remote.features
    name = announced_name(features) or session.description
    return {"ident": ident_of(name, identity.host_name, identity.pid), "name": name, "url": announced_url(features)}


def connected(broker: Broker, cluster: Cluster | None) -> list[PeerSession]:
    """The proxies of the cluster that is shown; of a broker that is a member of none, those behind it."""
    downstreams = broker.sessions.downstreams
    found = [each for each in [downstreams.get(cluster.name)] if each] if cluster else downstreams.values()
    return [peer for downstreams in found for peer in downstreams.peers][:PROXIES_MAX]


def proxies(broker: Broker, cluster: Cluster | None) -> list[Document]:
    return [proxy_of(peer.session) for peer in connected(broker, cluster)]


def proxy_rows(broker: Broker, cluster: Cluster | None) -> list[tuple[Document, tuple[int, int, int, int]]]:
    """What is known here of each of them, and what flows through it: messages and bytes posted and delivered. It costs a
    look at every queue that they have open."""
    offset = broker.loop.wall_offset
    rows = []
    for peer in connected(broker, cluster):
        seen, stats = session_state(peer.session, offset), peer.session.stats
        rows.append(({**proxy_of(peer.session), "host": seen.host, "address": seen.address,
                      "since": round(seen.since_wall, 3), "queues": seen.queues, "unconfirmed": seen.unconfirmed,
                      "unacked": peer.unacked,
                      "unread": broker.loop.performer.unread(peer.session)[0], "state": _state(peer)},
                     (stats.put_msgs, stats.put_bytes, stats.push_msgs, stats.push_bytes)))
    return rows


def _state(peer: PeerSession) -> str:
    if peer.session.state is not State.SERVING:
        return "leaving"
    return "behind" if peer.window.behind else "connected"


def broker_behind(client: Any, cluster: Cluster | None) -> Document:
    """Which broker a client of a queue is: `ident` and `name`; `proxy`, of a proxy. Empty: an application."""
    if not client.is_broker:
        return {}
    if client.is_member:
        identity = client.session.remote.identity
        nodes = cluster.definition.nodes if cluster is not None and cluster.name == identity.cluster_name else ()
        name = next((node.name for node in nodes if node.id == identity.cluster_node_id), client.description)
        return {"ident": name, "name": name}
    found = proxy_of(client.session)
    return {"ident": found["ident"], "name": found["name"], "proxy": found}


def session_state(session: Session, offset: float) -> state.SessionState:
    identity = session.remote.identity
    kind = _KINDS.get(identity.client_type, "unknown") if session.channel.negotiated_at is not None else "unknown"
    unconfirmed = sum(len(substream.unconfirmed) for handle in session.kind.handles.values()
                      for substream in handle.substreams.values())
    return state.SessionState(
        session.description, session.peer, kind, identity.host_name,
        f"{identity.sdk_language.name.removeprefix('E_')} {identity.sdk_version}", session.channel.connected_at + offset,
        len(session.kind.handles), unconfirmed, session.stats.totals(), session.channel.totals())


def clients(broker: Broker) -> list[Document]:
    """Applications and administrators that are connected here."""
    name, offset, proxied = name_of(broker), broker.loop.wall_offset, proxied_of(broker) is not None
    found: list[Document] = []
    for number, session in enumerate(broker.sessions.open):
        if len(found) == SESSIONS_MAX:
            break
        identity = session.remote.identity
        if session.channel.negotiated_at is None or identity.client_type == ClientType.E_TCPBROKER:
            continue
        state = session_state(session, offset)
        found.append({"id": f"{name}:{session.remote.session_number}:{number}", "client": state.description, "node": name,
                      "proxy": proxied, "host": state.host, "address": state.address, "kind": state.kind, "sdk": state.sdk,
                      "since": round(state.since_wall, 3), "queues": state.queues, "unconfirmed": state.unconfirmed,
                      "state": "connected", "putMessages": state.counters.get("put_msgs", 0),
                      "pushMessages": state.counters.get("push_msgs", 0),
                      "bytesIn": state.channel.get("in_bytes", 0), "bytesOut": state.channel.get("out_bytes", 0)})
    return found


def clients_part(broker: Broker) -> Document:
    return {"clients": clients(broker), "proxies": proxies(broker, cluster_of(broker))}
