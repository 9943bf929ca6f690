"""Is the cluster well? One sentence, its level, and all reasons, from the document of the cluster. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bmqtwist.console.documents import Document

QUOTA_WARNING = 0.8  # of what a queue may hold
LAG_RECORDS_WARNING = 10_000
LOOP_LAG_MS_WARNING = 500.0
FILES_WARNING = 0.9  # of the files that a process may have open
REASONS_MAX = 20
NAMES_MAX = 4  # in one sentence
NO_HARM = {"PLUGIN_MISSING"}  # alarms that every node without plug-ins raises when it starts


def verdict(cluster: Mapping[str, Any], unsafe: Sequence[str]) -> Document:
    """`level`: good, warning or bad; `text`: one sentence; `reasons`: all of them, the worst first. `unsafe`: nodes that go
    on alone."""
    bad = [text for rule in _BAD for text in rule(cluster)]
    bad += [f"Node {name} goes on alone, and nothing is replicated" for name in unsafe]
    warnings = [text for rule in _WARNINGS for text in rule(cluster)]
    reasons = (bad + warnings)[:REASONS_MAX]
    more = len(bad) + len(warnings) - 1
    if not reasons:
        return {"level": "good", "text": _all_is_well(cluster), "reasons": []}
    rest = f", and {more} more {'thing needs' if more == 1 else 'things need'} attention" if more else ""
    return {"level": "bad" if bad else "warning", "text": f"{reasons[0]}{rest}.",
            "reasons": [f"{text}." for text in reasons]}


def _all_is_well(cluster: Mapping[str, Any]) -> str:
    nodes, partitions = len(cluster["nodes"]), len(cluster["partitions"])
    if nodes == 1:
        return f"The node is up and leads all {partitions} partitions." if partitions > 1 else "The node is up."
    return (f"All {nodes} nodes are up, and all {partitions} partitions have a primary with {nodes - 1} "
            f"{'replica' if nodes == 2 else 'replicas'}.")


def _no_quorum(cluster: Mapping[str, Any]) -> list[str]:
    nodes = cluster["nodes"]
    here = [node for node in nodes if node["state"] != "down"]
    needed = len(nodes) // 2 + 1
    if len(here) >= needed or not nodes:
        return []
    return [f"Only {len(here)} of {len(nodes)} nodes {'is' if len(here) == 1 else 'are'} there, {needed} are needed: "
            f"nothing that must be replicated is taken, until one of {_names(_in(nodes, 'down'))} is back"]


def _no_nodes(cluster: Mapping[str, Any]) -> list[str]:
    return [] if cluster["nodes"] else ["This proxy is connected with no node of the cluster that has a console"]


def _no_leader(cluster: Mapping[str, Any]) -> list[str]:
    return [] if cluster["leader"]["node"] or not cluster["partitions"] else [
        "No node leads the cluster: nodes are being elected, or too few are connected"]


def _no_primary(cluster: Mapping[str, Any]) -> list[str]:
    lost = [partition for partition in cluster["partitions"] if not partition["primary"] or partition["state"] in (
        "no primary", "closed", "failing")]
    return [f"{_partitions(lost)} no active primary: their queues take no messages"] if lost else []


def _stopped_partitions(cluster: Mapping[str, Any]) -> list[str]:
    waiting = [each for each in cluster["partitions"] if each["primary"] and each["state"] not in (
        "active", "ACTIVE", "open", "no primary", "closed", "failing")]
    return [f"Partition {each['id']} is {str(each['state']).lower()}" for each in waiting]


def _away(cluster: Mapping[str, Any]) -> list[str]:
    nodes = cluster["nodes"]
    found = []
    for state, text in (("down", "down"), ("unreachable", "connected, but {} does not answer"), ("stopping", "stopping"),
                        ("starting", "starting")):
        names = _in(nodes, state)
        if names:
            told = text.format("its console" if len(names) == 1 else "their console")
            found.append(f"Node {names[0]} is {told}" if len(names) == 1 else f"Nodes {_names(names)} are {told}")
    return found


def _replicas(cluster: Mapping[str, Any]) -> list[str]:
    down = set(_in(cluster["nodes"], "down"))
    found = []
    healing = sorted({row["node"] for each in cluster["partitions"] for row in each["replicas"]
                      if row["role"] == "healing" and row["node"] not in down})
    if healing:
        found.append(f"{_names(healing)} {'catches' if len(healing) == 1 else 'catch'} up with the primaries")
    behind = [(row["lagRecords"], row["node"], each["id"]) for each in cluster["partitions"] for row in each["replicas"]
              if (row.get("lagRecords") or 0) > LAG_RECORDS_WARNING and row["node"] not in down]
    if behind:
        records, node, number = max(behind)
        found.append(f"{node} is {records:,} records behind in partition {number}")
    return found


def _alarms(cluster: Mapping[str, Any]) -> list[str]:
    count = sum(not alarm["clearedAt"] and not alarm["acknowledgedBy"] and alarm["category"] not in NO_HARM
                for alarm in cluster["alarms"])
    return [f"{count:,} {'alarm is' if count == 1 else 'alarms are'} raised that nobody has acknowledged"] if count else []


def _quotas(cluster: Mapping[str, Any]) -> list[str]:
    full = [row for row in cluster["queuesTop"] if row["quota"] >= QUOTA_WARNING]
    if not full:
        return []
    worst = max(full, key=lambda row: row["quota"])
    return [f"Queue {worst['uri']} holds {min(1.0, worst['quota']):.0%} of what it may"]


def _busy(cluster: Mapping[str, Any]) -> list[str]:
    found = [f"The event loop of {node['name']} is {node['loopLagMs']:,.0f} ms late" for node in cluster["nodes"]
             if (node["loopLagMs"] or 0.0) > LOOP_LAG_MS_WARNING]
    return found + [f"{node['name']} has {node['openFiles']:,} of {node['openFilesMax']:,} files open"
                    for node in cluster["nodes"]
                    if node["openFilesMax"] and (node["openFiles"] or 0) > FILES_WARNING * node["openFilesMax"]]


_Rule = Callable[[Mapping[str, Any]], list[str]]
_BAD: tuple[_Rule, ...] = (_no_nodes, _no_quorum, _no_leader, _no_primary)
_WARNINGS: tuple[_Rule, ...] = (_away, _stopped_partitions, _replicas, _alarms, _quotas, _busy)


def _in(nodes: Sequence[Mapping[str, Any]], state: str) -> list[str]:
    return [node["name"] for node in nodes if node["state"] == state]


def _names(names: Sequence[str]) -> str:
    shown = list(names[:NAMES_MAX]) + ([f"{len(names) - NAMES_MAX} more"] if len(names) > NAMES_MAX else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _partitions(lost: Sequence[Mapping[str, Any]]) -> str:
    ids = [str(each["id"]) for each in lost]
    return f"Partition {ids[0]} has" if len(ids) == 1 else f"Partitions {_names(ids)} have"
