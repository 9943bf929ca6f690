"""Merge of the parts of all nodes into the cluster document, with its verdict. Pure.

    parts     by node name: the document of `DocumentCollector.own_part` of each node that answers
    missing   by node name: the reason why a node does not answer
    past      by node name: the last part of a node that does not answer

The owner of a value wins: a node for its own state, the primary for a partition, the leader for the term. Between
contradictory values the highest lease or term wins. If the owner does not answer:

    a replica knows the value            its value; `source` names the replica
    the value was known before           the last one, with its time: `sampledAt` of a row, `asOf` of an alarm
    else                                 None: unknown, never 0

Called by `collector.py`; rows of one node are made in `view/node_facts.py`, the verdict in `verdict.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from bmqtwist.cluster.electorate import MemberState
from bmqtwist.console.documents import Document
from bmqtwist.console.queues import TOP_ROWS
from bmqtwist.console.rates import RATE_WINDOW_S, add_rates
from bmqtwist.console.samples import HISTORY_ROWS, RATES, ClusterHistory, NodeRows, percentiles
from bmqtwist.console.verdict import verdict
from bmqtwist.view.node_facts import SUMS

EVENTS_SHOWN = 50
ALARMS_SHOWN = 200
CONTINUED_S = 120.0  # from the end of an alarm at one node to its repetition at another one
Parts = Mapping[str, Document]
_NO_LAG_KNOWN: Document = dict.fromkeys(("lagRecords", "lagBytes", "lagMs"))
_OWN = ("version", "startedAt", "url", "sessions", "memoryBytes", "cpuShare", "loopLagMs", "openFiles", "openFilesMax",
        "stop")
_OF_PROXIES = ("ident", "name", "host", "url")


def merge(served_by: str, at: float, parts: Parts, missing: Mapping[str, str],
          last_stops: Mapping[str, Document] = {}, past: Mapping[str, Document] = {},
          history: ClusterHistory | None = None) -> Document:
    """Return the cluster document. `last_stops`: last known progress of the stops of nodes that no longer answer; `history`:
    of the previous document."""
    own = parts[served_by]
    listed = {view["name"] for part in parts.values() for view in part["members"]}
    past = {name: part for name, part in past.items() if name in listed or not listed}  # not those of removed nodes
    nodes = merge_nodes(parts, missing, last_stops, past)
    leader = merge_leader(parts)
    for node in nodes:
        node["leader"] = node["name"] == leader["node"]
    partitions = merge_partitions(parts, nodes, past)
    primary_for: dict[str, list[int]] = {}
    for partition in partitions:
        if partition["primary"]:
            primary_for.setdefault(partition["primary"], []).append(partition["id"])
    for node in nodes:
        node["primaryFor"] = primary_for.get(node["name"], [])
    members = [part for part in parts.values() if not part.get("proxy")]
    document: Document = {
        "at": round(at, 3), "servedBy": served_by, "name": own["cluster"], "version": own["version"], "leader": leader,
        "rates": {name: add_rates([part["rates"].get(name) for part in members]) for name in RATES},
        "rateSeconds": RATE_WINDOW_S,
        "ackLatencyMs": percentiles(add_counts([part["latencies"] for part in members])),
        "stored": merge_stored(partitions), "history": merge_histories(parts, nodes, past, history or ClusterHistory()),
        "nodes": nodes, "partitions": partitions, "queuesTop": merge_top(parts, past),
        "alarms": merge_alarms(parts, past), "events": merge_events({**past, **parts})[-EVENTS_SHOWN:],
        "restart": next((part["restart"] for part in parts.values() if part.get("restart")), None), "demo": own.get("demo"),
        "proxies": merge_proxies(parts)}
    document["verdict"] = verdict(document, [text for name, part in parts.items() for text in _standing(name, part)])
    return document


def merge_stored(partitions: Sequence[Document]) -> Document:
    """Return the stored messages and bytes of the cluster; None = those of a partition are unknown. `sampledAt`: of the
    oldest value."""
    found: Document = {"sampledAt": min((each["sampledAt"] for each in partitions), default=None)}
    for name in ("messages", "bytes"):
        values = [each.get(name) for each in partitions]
        found[name] = None if None in values or not values else sum(values)
    return found


def merge_histories(parts: Parts, nodes: Sequence[Document], past: Parts, history: ClusterHistory) -> list[Any]:
    """Return the history of the cluster."""
    states = {node["name"]: node["state"] for node in nodes}
    histories = {name: NodeRows(part["history"], False, states.get(name) != "down") for name, part in past.items()}
    histories |= {name: NodeRows(part["history"]) for name, part in parts.items() if not part.get("proxy")}
    counts = [len(part["partitions"]) for part in (*parts.values(), *past.values())]
    return history.add(histories, max(counts, default=0))


def merge_top(parts: Parts, past: Parts) -> list[Document]:
    """Return the deepest queues: each from the node that knows its quota, the primary, if it answers."""
    rows: dict[str, Document] = {}
    for part in (*parts.values(), *past.values()):
        for row in part["top"]:
            known = rows.setdefault(row["uri"], row)
            if known["quota"] is None:
                rows[row["uri"]] = row
    return sorted(rows.values(), key=lambda row: (-(row["messages"] or 0), row["uri"]))[:TOP_ROWS]


def coverage(cluster: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return for each node that answers the partitions whose queues it reports: those for which the cluster document has its
    values."""
    answering = {node["name"] for node in cluster["nodes"] if node["answers"]}
    found: dict[str, list[int]] = {}
    for partition in cluster["partitions"]:
        if partition["source"] in answering:
            found.setdefault(partition["source"], []).append(partition["id"])
    return found


def _standing(name: str, part: Document) -> list[str]:
    """Return what prevents a node from being a member with intact storage. Nodes of earlier versions do not report it."""
    found = [f"Node {name} runs alone, and nothing is replicated"] if part["unsafe"] else []
    state, awaited = part.get("memberState", ""), part.get("awaited", "")
    if state and state != MemberState.MEMBER.name:
        found.append(f"Node {name} is {state}{awaited and f' and waits for {awaited}'}")
    return found


def merge_nodes(parts: Parts, missing: Mapping[str, str], last_stops: Mapping[str, Document], past: Parts
                ) -> list[Document]:
    """Return a row for each node that any part mentions, by id. `answers`: its console answers; `sampledAt`: time of its own
    values, `lastAnswerAt`: of its last answer. A node that is down has no values of its process."""
    reported: dict[str, list[Document]] = {}
    for each in parts.values():
        for view in each["members"]:
            reported.setdefault(view["name"], []).append(view)
    rows = []
    for name in dict.fromkeys((*reported, *(name for name, part in {**parts, **past}.items() if not part.get("proxy")))):
        views, part, last = reported.get(name, []), parts.get(name), past.get(name)
        known = part or last
        member: Document = views[0] if views else {"id": known["id"] if known else 0, "dataCenter": ""}
        row: Document = {"name": name, "id": member["id"], "dataCenter": member["dataCenter"], "answers": part is not None,
                         "problem": next((view["unable"] for view in views if view.get("unable")), ""),
                         "state": part["state"] if part is not None else _reported_state(views),
                         "lastAnswerAt": known["at"] if known else None, "sampledAt": None, "storage": None,
                         **dict.fromkeys(_OWN)}
        if known is not None and row["state"] != "down":
            row.update({key: known[key] for key in _OWN}, sampledAt=known["at"], storage=known.get("storage"))
        if part is None:
            row.update(url=_first(views, "url") or row["url"] or (last or {}).get("url"), stop=last_stops.get(name),
                       version=(last or {}).get("version"),
                       problem=missing.get(name, row["problem"]) or _first(views, "refused"))
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
        return "down" if views else "unreachable"
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


def merge_partitions(parts: Parts, nodes: Sequence[Document], past: Parts) -> list[Document]:
    """Return a row for each partition from its primary, with the role of each replica from that replica. Without its primary
    the row has the values of the most advanced replica, without any copy that answers the last known ones. `source`: the
    node that has the values, `sampledAt`: their time."""
    present, last = _views(parts), _views(past)
    rows = []
    for number in sorted({*present, *last}):
        row = _partition(number, present.get(number) or last[number], nodes)
        rows.append({**row, "sampledAt": (parts.get(row["source"]) or past[row["source"]])["at"]})
    return rows


def _views(parts: Parts) -> dict[int, list[tuple[str, Document]]]:
    """Return the rows of each partition with the names of their nodes."""
    views: dict[int, list[tuple[str, Document]]] = {}
    for name, part in parts.items():
        for partition in part["partitions"]:
            views.setdefault(partition["id"], []).append((name, partition))
    return views


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
            "source": best_name, "primary": "" if state == "no primary" else best["primary"] or "",
            "replicas": [rows[node["name"]] for node in nodes if node["name"] in rows]}


def merge_alarms(parts: Parts, past: Parts) -> list[Document]:
    """Return the alarms of all nodes: active ones first, then the newest. `asOf`: time of the last answer of a node that no
    longer answers."""
    alarms = [alarm for part in parts.values() for alarm in part["alarms"]]
    alarms += [{**alarm, "asOf": part["at"]} for part in past.values() for alarm in part["alarms"]]
    found, acknowledged = list[Document](), dict[tuple[object, ...], Document]()
    for alarm in sorted(alarms, key=lambda each: float(each["raisedAt"])):
        key = alarm.get("kind"), alarm["category"], alarm.get("subject")
        before = acknowledged.get(key)
        if before is not None and _continues(alarm, before):
            alarm = {**alarm, **{name: before[name] for name in ("acknowledgedBy", "acknowledgedAt")}}
        if alarm["acknowledgedBy"]:
            acknowledged[key] = alarm
        found.append(alarm)
    return sorted(found, key=lambda each: (bool(each["clearedAt"]), bool(each["acknowledgedBy"]), -each["raisedAt"],
                                           each["id"]))[:ALARMS_SHOWN]


def _continues(alarm: Document, before: Document) -> bool:
    """Return whether an alarm continues an acknowledged one of another node, because the partition moved: the broker has not
    cleared that one, or cleared it when this one was raised."""
    return (not alarm["acknowledgedBy"] and alarm["node"] != before["node"] and not before["clearedBy"]
            and (not before["clearedAt"] or abs(before["clearedAt"] - alarm["raisedAt"]) < CONTINUED_S))


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


def queue_source(parts: Sequence[Document], cluster: Mapping[str, Any]) -> Document | None:
    """Return the part that has the row of a queue: that of the primary, else of the node whose copy of the partition is
    shown, else of any node that knows the queue; None = no node knows it."""
    known = [part for part in parts if part["row"] is not None]
    sources = {each["id"]: each["source"] for each in cluster["partitions"]}
    return max(known, key=lambda part: (part["leads"], sources.get(part["row"]["partition"]) == part["node"]), default=None)


def merge_queue(source: Document, parts: Sequence[Document], tree: Document) -> Document:
    """Return the document of a queue: its row from `source`, its clients from every node. The history has the rows of
    `source`, and for other times those of the copies."""
    document: Document = dict(source["row"])
    rows = {row[0]: row for part in (*parts, source) for row in part.get("history", ())}
    document.update(apps=[], consumers=[], producers=[], tree=tree,
                    history=[rows[at] for at in sorted(rows)][-HISTORY_ROWS:])
    for part in parts:
        document["apps"] += part["apps"]
        document["consumers"] += [each for each in part["consumers"] if not each["broker"]]
        document["producers"] += [each for each in part["producers"] if not each["broker"]]
    return document


def merge_domains(parts: Mapping[str, Iterable[Document]]) -> list[Document]:
    """Return the domains of all nodes. Queues, messages and bytes are summed, because each node counts those of the
    partitions that it reports. `nodes`: nodes that use the domain; other members are those of a node that has loaded it."""
    rows: dict[str, Document] = {}
    for node, part in parts.items():
        for row in part:
            known = rows.setdefault(row["name"], {**row, **dict.fromkeys(SUMS, 0), "nodes": []})
            if row["mode"]:
                known.update({key: value for key, value in row.items() if key not in SUMS})
            if row["inUse"]:
                known["inUse"] = True
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
