"""This node as a document: its contribution to the document of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bmqtwist import __version__
from bmqtwist.view import cluster_facts as facts
from bmqtwist.view import replicas, stopping

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.view.events import NodeHistory
    from bmqtwist.view.snapshot import ProcessState

EVENTS_SHOWN = 50
ALARMS_SHOWN = 100
Document = dict[str, Any]


def node_document(broker: Broker, history: NodeHistory, process: ProcessState, now: float) -> Document:
    """Everything that this node contributes to the document of the cluster, but what is measured over time."""
    cluster, proxied, name = facts.cluster_of(broker), facts.proxied_of(broker), facts.name_of(broker)
    shown = cluster or proxied
    return {
        "name": name, "id": cluster.node_id if cluster is not None else 0, "cluster": shown.name if shown else "",
        "proxy": proxied is not None, "ident": facts.own_ident(broker), "host": broker.identity.host_name,
        "at": round(now + broker.loop.wall_offset, 3), "version": __version__,
        "startedAt": round(broker.identity.started_wall, 3), "url": facts.own_url(broker),
        "state": facts.own_state(broker, cluster),
        "stop": stopping.progress(broker), "unsafe": cluster is not None and cluster.metadata.state.unsafe is not None,
        "sessions": broker.sessions.applications(), "memoryBytes": process.memory_resident,
        "loopLagMs": round(process.loop_lag * 1000, 2),
        "alarms": [{**alarm.tree(), "id": f"{name}:{alarm.number}", "node": name}
                   for alarm in history.alarms.alarms()[:ALARMS_SHOWN]],
        "events": [{**event.tree(), "node": name} for event in history.events.last(EVENTS_SHOWN)],
        "members": facts.members(cluster, facts.peer_urls(broker)) if cluster is not None else [],
        "partitions": replicas.partitions(broker, now=now) if cluster is not None else [],
        "elector": facts.elector(cluster) if cluster is not None else None}


def stored_here(broker: Broker) -> tuple[int, int]:
    """Messages and bytes of the queues that this node leads."""
    meters = [domain.meter for domain in broker.domains.by_name.values()]
    return sum(meter.messages for meter in meters), sum(meter.bytes for meter in meters)
