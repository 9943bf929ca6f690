"""This node as a document: its contribution to the document of the cluster, and the clients that are connected with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bmqtwist import __version__
from bmqtwist.view import proxy_facts, replicas, session_facts, stopping
from bmqtwist.view.cluster_facts import (
    cluster_of,
    elector,
    members,
    name_of,
    own_ident,
    own_state,
    own_url,
    peer_urls,
    proxied_of,
    wall_offset,
)
from bmqtwist.wire.schema import ClientType

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.view.node_history import NodeHistory
    from bmqtwist.view.snapshot import ProcessState

EVENTS_SHOWN = 50
ALARMS_SHOWN = 100
SESSIONS_MAX = 2000  # of one node, in the list of clients
Document = dict[str, Any]


def node_document(broker: Broker, history: NodeHistory, process: ProcessState, now: float) -> Document:
    """Everything that this node contributes to the document of the cluster, but what is measured over time."""
    cluster, proxied, name = cluster_of(broker), proxied_of(broker), name_of(broker)
    shown = cluster or proxied
    return {
        "name": name, "id": cluster.node_id if cluster is not None else 0, "cluster": shown.name if shown else "",
        "proxy": proxied is not None, "ident": own_ident(broker), "host": broker.identity.host_name,
        "at": round(now + wall_offset(broker), 3), "version": __version__,
        "startedAt": round(broker.identity.started_wall, 3), "url": own_url(broker), "state": own_state(broker, cluster),
        "stop": stopping.progress(broker), "unsafe": cluster is not None and cluster.metadata.state.unsafe is not None,
        "sessions": broker.sessions.applications(), "memoryBytes": process.memory_resident,
        "loopLagMs": round(process.loop_lag * 1000, 2),
        "alarms": [{**alarm.tree(), "id": f"{name}:{alarm.number}", "node": name}
                   for alarm in history.alarms.alarms()[:ALARMS_SHOWN]],
        "events": [{**event.tree(), "node": name} for event in history.events.last(EVENTS_SHOWN)],
        "members": members(cluster, peer_urls(broker)) if cluster is not None else [],
        "partitions": replicas.partitions(broker, now=now) if cluster is not None else [],
        "elector": elector(cluster) if cluster is not None else None}


def stored_here(broker: Broker) -> tuple[int, int]:
    """Messages and bytes of the queues that this node leads."""
    meters = [domain.meter for domain in broker.domains.by_name.values()]
    return sum(meter.messages for meter in meters), sum(meter.bytes for meter in meters)


def clients(broker: Broker) -> list[Document]:
    """Applications and administrators that are connected here."""
    name, offset, proxied = name_of(broker), wall_offset(broker), proxied_of(broker) is not None
    found: list[Document] = []
    for number, session in enumerate(broker.sessions.open):
        if len(found) == SESSIONS_MAX:
            break
        identity = session.identity
        if session.negotiated_at is None or identity.client_type == ClientType.E_TCPBROKER:
            continue
        state = session_facts.session_state(session, offset)
        found.append({"id": f"{name}:{session.session_number}:{number}", "client": state.description, "node": name,
                      "proxy": proxied, "host": state.host, "address": state.address, "kind": state.kind, "sdk": state.sdk,
                      "since": round(state.since_wall, 3), "queues": state.queues, "unconfirmed": state.unconfirmed,
                      "state": "connected", "putMessages": state.counters.get("put_msgs", 0),
                      "pushMessages": state.counters.get("push_msgs", 0),
                      "bytesIn": state.channel.get("in_bytes", 0), "bytesOut": state.channel.get("out_bytes", 0)})
    return found


def clients_part(broker: Broker) -> Document:
    """They, and the proxies that are connected here."""
    return {"clients": clients(broker), "proxies": proxy_facts.proxies(broker, cluster_of(broker))}
