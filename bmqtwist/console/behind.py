"""The proxies that are connected here, and what their consoles answer about the clients behind them. Pure.

A proxy is known by its ident: its name, host and process. It is the same at every node that the proxy is connected with, and
at the proxy itself; names alone need not differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bmqtwist.broker.broker import Broker
from bmqtwist.console.documents import Document
from bmqtwist.console.samples import FlowSampler
from bmqtwist.link.downstream import DownstreamClient
from bmqtwist.link.peer import PeerSession
from bmqtwist.link.session import Session
from bmqtwist.link.states import State
from bmqtwist.member.cluster import Cluster
from bmqtwist.peers.welcome import announced_name, announced_url, is_console_url
from bmqtwist.view import snapshots

PROXIES_MAX = 200  # of one node, in its documents
LEVELS_MAX = 4  # of proxies behind proxies whose consoles are asked
ROWS_MAX = 2000  # of each kind, that are taken from the answer of one proxy
NO_CONSOLE = "it has no console"
NAMED_AS_A_NODE = "it has the name of a node"


def ident_of(name: str, host: str, pid: int) -> str:
    """What tells a proxy from all others."""
    return f"{name}@{host}:{pid}"


def proxy_of(session: Session) -> Document:
    """Who a proxy is, and where its console is; url "" = it has none, or does not say."""
    identity = session.identity
    name = announced_name(session.features) or session.description
    return {"ident": ident_of(name, identity.host_name, identity.pid), "name": name, "url": announced_url(session.features)}


def connected(broker: Broker, cluster: Cluster | None) -> list[PeerSession]:
    """The proxies of the cluster that is shown; of a broker that is a member of none, those behind it."""
    found = [each for each in [broker.downstreams.get(cluster.name)] if each] if cluster else broker.downstreams.values()
    return [peer for downstreams in found for peer in downstreams.peers][:PROXIES_MAX]


def proxies(broker: Broker, cluster: Cluster | None) -> list[Document]:
    """Where their consoles are."""
    return [proxy_of(peer.session) for peer in connected(broker, cluster)]


def proxy_facts(broker: Broker, cluster: Cluster | None, sampler: FlowSampler, now: float) -> list[Document]:
    """What is known here of each of them. It costs a look at every queue that they have open."""
    peers, offset = connected(broker, cluster), snapshots.wall_offset(broker)
    found = [(proxy_of(peer.session), peer) for peer in peers]
    rates = sampler.look(now, {each["ident"]: (stats.put_msgs, stats.put_bytes, stats.push_msgs, stats.push_bytes)
                               for each, peer in found for stats in [peer.session.stats]})
    rows = []
    for each, peer in found:
        state = snapshots.session_state(peer.session, offset)
        client = peer.downstream
        rows.append({**each, **rates[each["ident"]], "host": state.host, "address": state.address,
                     "since": round(state.since_wall, 3), "queues": state.queues, "unconfirmed": state.unconfirmed,
                     "unacked": client.unacked if client is not None else 0,
                     "unread": broker.performer.unread(peer.session)[0], "state": _state(peer.session, client)})
    return rows


def _state(session: Session, client: DownstreamClient | None) -> str:
    if session.state is not State.SERVING:
        return "leaving"
    return "behind" if client is not None and client.window.behind else "connected"


def broker_behind(client: Any, cluster: Cluster | None) -> Document:
    """Which broker a client of a queue is: `ident` and `name`; `proxy`, of a proxy. Empty: an application."""
    if not client.is_broker:
        return {}
    if client.is_member:
        identity = client.session.identity
        nodes = cluster.definition.nodes if cluster is not None and cluster.name == identity.cluster_name else ()
        name = next((node.name for node in nodes if node.id == identity.cluster_node_id), client.description)
        return {"ident": name, "name": name}
    found = proxy_of(client.session)
    return {"ident": found["ident"], "name": found["name"], "proxy": found}


# -- what proxies answer: believed no further than it is sound ------------------------------------------------------------


def proxies_told(document: Mapping[str, Any]) -> list[Document]:
    """The proxies that an answer names."""
    return [{"ident": each["ident"], "name": each["name"], "url": each["url"] if is_console_url(each["url"]) else ""}
            for each in _rows(document, "proxies", ("ident", "name", "url"))][:PROXIES_MAX]


def clients_told(answer: Mapping[str, Any], proxy: Document) -> list[Document]:
    """The clients of a proxy."""
    return [{**row, "id": f"{proxy['ident']} {row['id']}", "node": proxy["name"], "proxy": True}
            for row in _rows(answer, "clients", ("id", "client"))]


def queue_told(answer: Mapping[str, Any], proxy: Document) -> Document:
    """What a proxy knows of a queue, as `facts.queue_part` has it."""
    rates = answer.get("rates")
    return {"node": proxy["name"], "ident": proxy["ident"], "proxy": True, "leads": False, "apps": [],
            "rates": rates if isinstance(rates, dict) else {}, "proxies": proxies_told(answer),
            **{kind: [{**row, "node": proxy["name"], "proxy": True, "broker": bool(row.get("broker")),
                       "subscriptions": _rows(row, "subscriptions", ("expression",))}
                      for row in _rows(answer, kind, ("client", "ident")) if _is_whole(row.get("unconfirmed", 0))]
               for kind in ("consumers", "producers")}}


def _rows(answer: Mapping[str, Any], name: str, texts: Iterable[str]) -> list[Document]:
    rows = answer.get(name)
    return [row for row in rows[:ROWS_MAX] if isinstance(row, dict) and all(
        isinstance(row.get(each), str) for each in texts)] if isinstance(rows, list) else []


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
