"""Merge of the parts of all nodes into the cluster document, with its verdict. Pure.

    parts     by node name: the document of `DocumentCollector.own_part` of each node that answered
    missing   by node name: the reason why a node did not answer

The owner of a value wins: a node for its own state, the primary for a partition, the leader for the term. Between
contradictory values the highest lease or term wins. Called by `collector.py`; rows of one node are made in
`view/node_facts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from bmqtwist.cluster.electorate import MemberState
from bmqtwist.console.documents import Document
from bmqtwist.console.queues import TOP_ROWS
from bmqtwist.console.samples import RATES, add_histories, percentiles
from bmqtwist.view.node_facts import SUMS

EVENTS_SHOWN = 50
ALARMS_SHOWN = 200
Parts = Mapping[str, Document]
_NO_LAG_KNOWN: Document = dict.fromkeys(("lagRecords", "lagBytes", "lagMs"))
_OWN = ("version", "startedAt", "url", "sessions", "memoryBytes", "cpuShare", "loopLagMs", "openFiles", "openFilesMax",
        "stop")
_OF_PROXIES = ("ident", "name", "host", "url")
QUOTA_WARNING = 0.8  # of a queue's quota
LAG_RECORDS_WARNING = 10_000
LOOP_LAG_MS_WARNING = 500.0
FILES_WARNING = 0.9  # of the limit of open files
REASONS_MAX = 20
NAMES_MAX = 4  # per sentence
HARMLESS = {"PLUGIN_MISSING"}  # every node without plug-ins raises this alarm at its start


def merge(served_by: str, at: float, parts: Parts, missing: Mapping[str, str],
          last_stops: Mapping[str, Document] = {}) -> Document:
    """Return the cluster document. `last_stops`: last known progress of the stops of nodes that no longer answer."""
    own = parts[served_by]
    nodes = merge_nodes(parts, missing, last_stops)
    leader = merge_leader(parts)
    for node in nodes:
        node["leader"] = node["name"] == leader["node"]
    partitions = merge_partitions(parts, nodes)
    primary_for: dict[str, list[int]] = {}
    for partition in partitions:
        if partition["primary"]:
            primary_for.setdefault(partition["primary"], []).append(partition["id"])
    for node in nodes:
        node["primaryFor"] = primary_for.get(node["name"], [])
    document: Document = {
        "at": round(at, 3), "servedBy": served_by, "name": own["cluster"], "version": own["version"], "leader": leader,
        "rates": {name: round(sum(part["rates"].get(name, 0.0) for part in parts.values()), 1) for name in RATES},
        "ackLatencyMs": percentiles(add_counts([part["latencies"] for part in parts.values()])),
        "history": add_histories([part["history"] for part in parts.values()]),
        "nodes": nodes, "partitions": partitions,
        "queuesTop": sorted((row for part in parts.values() for row in part["top"]),
                            key=lambda row: (-row["messages"], row["uri"]))[:TOP_ROWS],
        "alarms": merge_alarms(parts), "events": merge_events(parts)[-EVENTS_SHOWN:],
        "restart": next((part["restart"] for part in parts.values() if part.get("restart")), None), "demo": own.get("demo"),
        "proxies": merge_proxies(parts)}
    document["verdict"] = verdict(document, [text for name, part in parts.items() for text in _standing(name, part)])
    return document


def _standing(name: str, part: Document) -> list[str]:
    """Return what prevents a node from being a member with intact storage. Nodes of earlier versions do not report it."""
    found = [f"Node {name} runs alone, and nothing is replicated"] if part["unsafe"] else []
    state, awaited = part.get("memberState", ""), part.get("awaited", "")
    if state and state != MemberState.MEMBER.name:
        found.append(f"Node {name} is {state}{awaited and f' and waits for {awaited}'}")
    return found


def merge_nodes(parts: Parts, missing: Mapping[str, str], last_stops: Mapping[str, Document]) -> list[Document]:
    """Return a row for each node that any part mentions, by id."""
    reported: dict[str, list[Document]] = {}
    for each in parts.values():
        for view in each["members"]:
            reported.setdefault(view["name"], []).append(view)
    rows = []
    for name in dict.fromkeys((*reported, *(name for name, part in parts.items() if not part.get("proxy")))):
        views, part = reported.get(name, []), parts.get(name)
        member: Document = views[0] if views else {"id": part["id"] if part else 0, "dataCenter": ""}
        row: Document = {"name": name, "id": member["id"], "dataCenter": member["dataCenter"],
                         "problem": next((view["unable"] for view in views if view.get("unable")), "")}
        if part is not None:
            row.update({key: part[key] for key in _OWN}, state=part["state"], sampledAt=part["at"])
        else:
            row.update(dict.fromkeys(_OWN), sampledAt=None, url=_first(views, "url"), state=_reported_state(views),
                       problem=missing.get(name, row["problem"]) or _first(views, "refused"), stop=last_stops.get(name))
        rows.append(row)
    return sorted(rows, key=lambda row: (row["id"], row["name"]))


def merge_proxies(parts: Parts) -> list[Document]:
    """Return a row for each proxy that is connected to a node or serves this document. `links`: its connections, one for
    each node; values that only the proxy itself knows are
    None in the rows that nodes report."""
    rows: dict[str, Document] = {part["ident"]: {**{key: part[key] for key in ("ident", "name", "host", "state", *_OWN)},
                                                 "links": []} for part in parts.values() if part.get("proxy")}
    for name, part in parts.items():
        for proxy in part.get("proxies", ()):
            row = rows.setdefault(proxy["ident"], {**dict.fromkeys(_OWN), **{key: proxy[key] for key in _OF_PROXIES},
                                                   "state": "connected", "links": []})
            row["links"].append({"node": name, **{key: value for key, value in proxy.items() if key not in _OF_PROXIES}})
    for row in rows.values():
        row["links"].sort(key=lambda link: link["node"])
    return sorted(rows.values(), key=lambda row: (row["name"], row["ident"]))


def _first(views: Sequence[Document], key: str) -> str:
    """Return the first text with this key that is not empty; nodes of earlier releases do not send all keys."""
    return next((str(view[key]) for view in views if view.get(key)), "")


def _reported_state(views: Sequence[Document]) -> str:
    """Return the state of a node whose console does not answer, from the reports of other nodes."""
    connected = [view for view in views if view["connected"]]
    if not connected:
        return "down"
    states = [view["state"] for view in connected]
    return next((state for state in ("stopping", "starting") if state in states), "unreachable")


def merge_leader(parts: Parts) -> Document:
    """Return the leader: from the leader's own part, else the one that most nodes report."""
    views = [(name, part["elector"]) for name, part in parts.items() if part["elector"] is not None]
    leading = [(name, view) for name, view in views if view["leads"]]
    if leading:
        name, view = max(leading, key=lambda each: each[1]["term"])
        return {"node": name, "term": view["term"], "since": view.get("since"),
                "state": "active" if view["active"] else "passive"}
    term = max((view["term"] for _, view in views), default=0)
    named = [view for _, view in views if view["leader"] and view["term"] == term]
    if named:
        names = [view["leader"] for view in named]
        chosen = max(sorted(set(names)), key=names.count)
        return {"node": chosen, "term": term, "since": named[0].get("since"),
                "state": "active" if any(view["active"] for view in named) else "passive"}
    return {"node": "", "term": term, "since": None, "state": "none"}


def merge_partitions(parts: Parts, nodes: Sequence[Document]) -> list[Document]:
    """Return a row for each partition from its primary, with the role of each replica from that replica."""
    views: dict[int, list[tuple[str, Document]]] = {}
    for name, part in parts.items():
        for partition in part["partitions"]:
            views.setdefault(partition["id"], []).append((name, partition))
    return [_partition(number, views[number], nodes) for number in sorted(views)]


def _partition(number: int, views: Sequence[tuple[str, Document]], nodes: Sequence[Document]) -> Document:
    def weight(view: tuple[str, Document]) -> tuple[Any, ...]:
        name, partition = view
        return partition["lease"], partition["primary"] == name, partition["sequence"], name

    best_name, best = max(views, key=weight)
    led = best["primary"] == best_name
    rows = {row["node"]: dict(row) for row in best["replicas"]} if led else {}
    for name, view in views:
        own = view.get("self") or {}
        row = rows.setdefault(name, {"node": name, **_NO_LAG_KNOWN})
        row["sequence"] = own.get("sequence", view["sequence"])
        row["lease"] = own.get("lease", view["lease"])
        row["role"] = own.get("role") or ("primary" if led and name == best_name else "replica")
        if own.get("why"):
            row["why"] = own["why"]
        if led and row["lagRecords"] is None and row["lease"] == best["lease"]:
            row["lagRecords"] = max(0, best["sequence"] - row["sequence"])
    states = {node["name"]: node["state"] for node in nodes}
    for node in nodes:
        row = rows.setdefault(node["name"], {"node": node["name"], "sequence": None, "role": "replica", **_NO_LAG_KNOWN})
        if states[node["name"]] == "down":
            row["role"] = "down"
    state = best["state"]
    if not led and states.get(best["primary"]) == "down":
        state = "no primary"
    return {**{key: value for key, value in best.items() if key not in ("self", "by")}, "id": number, "state": state,
            "primary": "" if state == "no primary" else best["primary"] or "",
            "replicas": [rows[node["name"]] for node in nodes if node["name"] in rows]}


def merge_alarms(parts: Parts) -> list[Document]:
    """Return the alarms of all nodes: active ones first, then the newest."""
    alarms = [alarm for part in parts.values() for alarm in part["alarms"]]
    return sorted(alarms, key=lambda each: (bool(each["clearedAt"]), bool(each["acknowledgedBy"]), -each["raisedAt"],
                                            each["id"]))[:ALARMS_SHOWN]


def merge_events(parts: Parts) -> list[Document]:
    """Return the events of all nodes, in order of time."""
    events = [event for part in parts.values() for event in part["events"]]
    return sorted(events, key=lambda each: (each["at"], each["node"], each["n"]))


def events_page(parts: Parts, after: float | None, limit: int) -> Document:
    """Return a page of the events of all nodes. Without `after`: the last `limit` events. With it: the first `limit` events
    later than this time, and those of the same moment as the last one; `next`: `after` of the next page, None at the end."""
    events = merge_events(parts)
    if after is None:
        return {"events": events[-limit:], "next": None}
    later = [event["at"] for event in events if event["at"] > after]
    ends = [part["next"] for part in parts.values() if part.get("next") is not None]  # the part lacks later events
    if len(later) > limit and later[limit - 1] < later[-1]:
        ends.append(later[limit - 1])
    end = min(ends, default=None)
    return {"events": [event for event in events if after < event["at"] <= (end or inf)], "next": end}


def add_counts(histograms: Sequence[Sequence[int]]) -> list[int]:
    """Return the sum of histograms with equal buckets."""
    size = max(map(len, histograms), default=0)
    return [sum(each[at] for each in histograms if at < len(each)) for at in range(size)]


def merge_queue(row: Document | None, parts: Sequence[Document], history: Sequence[Sequence[float]],
                tree: Document) -> Document:
    """Return the document of a queue: its row from the primary, its clients from every node."""
    document: Document = dict(row or {})
    document.update(apps=[], consumers=[], producers=[], history=list(history), tree=tree)
    for part in parts:
        document["apps"] += part["apps"]
        document["consumers"] += [each for each in part["consumers"] if not each["broker"]]
        document["producers"] += [each for each in part["producers"] if not each["broker"]]
    return document


def merge_domains(parts: Mapping[str, Iterable[Document]]) -> list[Document]:
    """Return the domains of all nodes. Queues, messages and bytes are summed, because each node counts those of which it is
    the primary. `nodes`: nodes that use the domain."""
    rows: dict[str, Document] = {}
    for node, part in parts.items():
        for row in part:
            known = rows.setdefault(row["name"], {**row, **dict.fromkeys(SUMS, 0), "nodes": []})
            if row["inUse"]:
                known.update({key: value for key, value in row.items() if key not in SUMS})
                known["nodes"].append(node)
            for key in SUMS:
                known[key] += row[key]
    return [rows[name] for name in sorted(rows)]


_LEAF_RATES = (("pushRate", "pushRate"), ("bytesRate", "pushBytesRate"), ("putRate", "putRate"))


def queue_tree(row: Document | None, parts: Sequence[Document], primary: str) -> Document:
    """Return the distribution tree of a queue: the primary, its downstream nodes and proxies, and the clients of each."""
    proxies = {part["ident"]: part for part in parts if part.get("proxy")}
    members = {part["node"] for part in parts if not part.get("proxy")}
    placed: set[str] = set()

    def clients(part: Document) -> list[Document]:
        found: dict[str, Document] = {}
        for each in (*part["consumers"], *part["producers"]):
            leaf = found.setdefault(each.get("ident") or each["client"], {
                "name": each["client"], "state": "connected", "unconfirmed": 0, "children": [],
                "kind": "client" if not each["broker"] else "replica" if each.get("ident") == each["client"] else "proxy",
                "pushRate": None, "bytesRate": None, "putRate": None})
            leaf["unconfirmed"] += each.get("unconfirmed", 0)
            if each.get("queues") == 1:  # else its rates cover several queues
                leaf.update(pushRate=each.get("pushRate"), bytesRate=each.get("pushBytesRate"), putRate=each.get("putRate"))
            if each.get("stuck"):
                leaf["state"] = "stuck"
        for ident, leaf in found.items():
            if ident in proxies and ident not in placed:
                placed.add(ident)
                leaf.update({name: proxies[ident].get("rates", {}).get(rate) for name, rate in _LEAF_RATES})
                leaf["children"] = clients(proxies[ident])
        return list(found.values())

    def broker(part: Document, kind: str, leaves: list[Document]) -> Document:
        return {"name": part["node"], "kind": kind, "state": "connected", "children": leaves,
                "unconfirmed": sum(leaf["unconfirmed"] for leaf in leaves),
                **{name: part.get("rates", {}).get(rate) for name, rate in _LEAF_RATES}}

    root: Document = {"name": primary, "kind": "primary", "state": "active" if row else "unknown", "unconfirmed": 0,
                      "pushRate": row["pushRate"] if row else None, "bytesRate": None,
                      "putRate": row.get("putRate") if row else None, "children": []}
    for part in parts:
        if part.get("proxy"):
            continue
        leaves = clients(part)
        if part["node"] == primary:
            root["children"] += [leaf for leaf in leaves if leaf["kind"] != "replica" or leaf["name"] not in members]
            root.update(unconfirmed=sum(leaf["unconfirmed"] for leaf in leaves),
                        bytesRate=part.get("rates", {}).get("pushBytesRate"))
        elif leaves:
            root["children"].append(broker(part, "replica", leaves))
    for ident, part in proxies.items():  # proxies that no node reported
        leaves = clients(part) if ident not in placed else []
        if leaves:
            root["children"].append(broker(part, "proxy", leaves))
    return root


def verdict(cluster: Mapping[str, Any], standings: Sequence[str]) -> Document:
    """Return the health of the cluster. `level`: good, warning or bad; `text`: one sentence; `reasons`: worst first.
    `standings`: texts about nodes that are not members with intact storage."""
    bad = [text for rule in _BAD for text in rule(cluster)]
    bad += standings
    warnings = [text for rule in _WARNINGS for text in rule(cluster)]
    reasons = (bad + warnings)[:REASONS_MAX]
    more = len(bad) + len(warnings) - 1
    if not reasons:
        return {"level": "good", "text": _healthy_text(cluster), "reasons": []}
    rest = f", and {more} more problem{'' if more == 1 else 's'}" if more else ""
    return {"level": "bad" if bad else "warning", "text": f"{reasons[0]}{rest}.",
            "reasons": [f"{text}." for text in reasons]}


def _healthy_text(cluster: Mapping[str, Any]) -> str:
    nodes, partitions = len(cluster["nodes"]), len(cluster["partitions"])
    if nodes == 1:
        return f"The node is up and leads all {partitions} partitions." if partitions > 1 else "The node is up."
    return (f"All {nodes} nodes are up, and all {partitions} partitions have a primary with {nodes - 1} "
            f"{'replica' if nodes == 2 else 'replicas'}.")


def _no_quorum(cluster: Mapping[str, Any]) -> list[str]:
    nodes = cluster["nodes"]
    up = [node for node in nodes if node["state"] != "down"]
    needed = len(nodes) // 2 + 1
    if len(up) >= needed or not nodes:
        return []
    return [f"Only {len(up)} of {len(nodes)} nodes {'is' if len(up) == 1 else 'are'} up, {needed} are required: replicated "
            f"queues accept no messages until one of {_names(_in(nodes, 'down'))} is up"]


def _no_nodes(cluster: Mapping[str, Any]) -> list[str]:
    return [] if cluster["nodes"] else ["This proxy is connected to no node of the cluster that has a console"]


def _no_leader(cluster: Mapping[str, Any]) -> list[str]:
    return [] if cluster["leader"]["node"] or not cluster["partitions"] else [
        "The cluster has no leader: an election is in progress, or too few nodes are connected"]


def _no_primary(cluster: Mapping[str, Any]) -> list[str]:
    lost = [partition for partition in cluster["partitions"] if not partition["primary"] or partition["state"] in (
        "no primary", "closed", "failing")]
    return [f"{_partitions(lost)} no active primary: their queues accept no messages"] if lost else []


def _stopped_partitions(cluster: Mapping[str, Any]) -> list[str]:
    waiting = [each for each in cluster["partitions"] if each["primary"] and each["state"] not in (
        "active", "ACTIVE", "open", "no primary", "closed", "failing")]
    return [f"Partition {each['id']} is {str(each['state']).lower()}" for each in waiting]


def _not_up(cluster: Mapping[str, Any]) -> list[str]:
    nodes = cluster["nodes"]
    found = []
    for state, text in (("down", "down"), ("unreachable", "connected, but {} does not answer"), ("stopping", "stopping"),
                        ("starting", "starting")):
        names = _in(nodes, state)
        if names:
            problem = text.format("its console" if len(names) == 1 else "their console")
            found.append(f"Node {names[0]} is {problem}" if len(names) == 1 else f"Nodes {_names(names)} are {problem}")
    return found


def _unable(cluster: Mapping[str, Any]) -> list[str]:
    return [f"Node {node['name']} {node['problem']}" for node in cluster["nodes"]
            if node["state"] == "up" and node["problem"]]


def _replicas(cluster: Mapping[str, Any]) -> list[str]:
    down = set(_in(cluster["nodes"], "down"))
    found = []
    healing = sorted({row["node"] for each in cluster["partitions"] for row in each["replicas"]
                      if row["role"] == "healing" and row["node"] not in down})
    if healing:
        found.append(f"{_names(healing)} {'is' if len(healing) == 1 else 'are'} catching up with the primaries")
    behind = [(row["lagRecords"], row["node"], each["id"]) for each in cluster["partitions"] for row in each["replicas"]
              if (row.get("lagRecords") or 0) > LAG_RECORDS_WARNING and row["node"] not in down]
    if behind:
        records, node, number = max(behind)
        found.append(f"Replica {node} lags by {records:,} records in partition {number}")
    return found


def _alarms(cluster: Mapping[str, Any]) -> list[str]:
    count = sum(not alarm["clearedAt"] and not alarm["acknowledgedBy"] and alarm["category"] not in HARMLESS
                for alarm in cluster["alarms"])
    return [f"{count:,} {'alarm is' if count == 1 else 'alarms are'} unacknowledged"] if count else []


def _quotas(cluster: Mapping[str, Any]) -> list[str]:
    full = [row for row in cluster["queuesTop"] if row["quota"] >= QUOTA_WARNING]
    if not full:
        return []
    worst = max(full, key=lambda row: row["quota"])
    return [f"Queue {worst['uri']} has used {min(1.0, worst['quota']):.0%} of its quota"]


def _overloaded_nodes(cluster: Mapping[str, Any]) -> list[str]:
    found = [f"The event loop of {node['name']} lags by {node['loopLagMs']:,.0f} ms" for node in cluster["nodes"]
             if (node["loopLagMs"] or 0.0) > LOOP_LAG_MS_WARNING]
    return found + [f"{node['name']} has {node['openFiles']:,} of {node['openFilesMax']:,} files open"
                    for node in cluster["nodes"]
                    if node["openFilesMax"] and (node["openFiles"] or 0) > FILES_WARNING * node["openFilesMax"]]


_Rule = Callable[[Mapping[str, Any]], list[str]]
_BAD: tuple[_Rule, ...] = (_no_nodes, _no_quorum, _no_leader, _no_primary)
_WARNINGS: tuple[_Rule, ...] = (_not_up, _unable, _stopped_partitions, _replicas, _alarms, _quotas, _overloaded_nodes)


def _in(nodes: Sequence[Mapping[str, Any]], state: str) -> list[str]:
    return [node["name"] for node in nodes if node["state"] == state]


def _names(names: Sequence[str]) -> str:
    shown = list(names[:NAMES_MAX]) + ([f"{len(names) - NAMES_MAX} more"] if len(names) > NAMES_MAX else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _partitions(lost: Sequence[Mapping[str, Any]]) -> str:
    ids = [str(each["id"]) for each in lost]
    return f"Partition {ids[0]} has" if len(ids) == 1 else f"Partitions {_names(ids)} have"
