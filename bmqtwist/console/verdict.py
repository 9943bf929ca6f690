"""Verdict on the health of a cluster: one sentence, and its reasons, worst first. Pure.

A rule returns texts about one kind of problem of the cluster document. `_BAD` has the rules for problems that refuse or
endanger messages, causes before effects, `_WARNINGS` the other ones. Called by `merge.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bmqtwist.console.documents import Document
from bmqtwist.textformat import pretty_bytes

QUOTA_WARNING = 0.8  # of a queue's quota
LAG_RECORDS_WARNING = 10_000
LOOP_LAG_MS_WARNING = 500.0
FILES_WARNING = 0.9  # of the limit of open files
SPACE_WARNING, SPACE_BAD = 0.15, 0.05  # free part of the file system of a storage
REASONS_MAX = 20
NAMES_MAX = 4  # per sentence
_CLOSED = ("failing", "closed", "full", "disabled")  # parts of the state of a partition that takes no records


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
    if any(node["answers"] for node in cluster["nodes"]):
        return []
    return ["This proxy is connected to no node of the cluster whose console answers"]


def _full_disks(cluster: Mapping[str, Any]) -> list[str]:
    return _scarce_space(cluster, 0.0, SPACE_BAD, "full")


def _nearly_full_disks(cluster: Mapping[str, Any]) -> list[str]:
    return _scarce_space(cluster, SPACE_BAD, SPACE_WARNING, "nearly full")


def _scarce_space(cluster: Mapping[str, Any], low: float, high: float, adjective: str) -> list[str]:
    """Return a text for each node whose free part of the disk is from `low` to less than `high`."""
    found = []
    for node in cluster["nodes"]:
        space = node.get("storage")
        if space and space["totalBytes"] and low <= space["freeBytes"] / space["totalBytes"] < high:
            found.append(f"The disk of node {node['name']} is {adjective}: {_size(space['freeBytes'])} of "
                         f"{_size(space['totalBytes'])} are free at {space['location']}")
    return found


def _no_leader(cluster: Mapping[str, Any]) -> list[str]:
    return [] if cluster["leader"]["node"] or not cluster["partitions"] else [
        "The cluster has no leader: an election is in progress, or too few nodes are connected"]


def _no_primary(cluster: Mapping[str, Any]) -> list[str]:
    lost = [each for each in cluster["partitions"] if not each["primary"] or each["state"] == "no primary"]
    return [f"{_partitions(lost)} no active primary: their queues accept no messages"] if lost else []


def _closed_partitions(cluster: Mapping[str, Any]) -> list[str]:
    return [f"Partition {each['id']} at {each['primary']} is {each['state']}, its queues accept no messages"
            f"{': ' + each['problem'] if each.get('problem') else ''}"
            for each in cluster["partitions"] if _is_closed(each)]


def _is_closed(partition: Mapping[str, Any]) -> bool:
    return any(word in partition["state"] for word in _CLOSED)


def _stopped_partitions(cluster: Mapping[str, Any]) -> list[str]:
    waiting = [each for each in cluster["partitions"] if each["primary"] and not _is_closed(each) and each["state"] not in (
        "active", "ACTIVE", "open", "no primary")]
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
    count = sum(not alarm["clearedAt"] and not alarm["acknowledgedBy"] for alarm in cluster["alarms"])
    return [f"{count:,} {'alarm is' if count == 1 else 'alarms are'} unacknowledged"] if count else []


def _quotas(cluster: Mapping[str, Any]) -> list[str]:
    full = [row for row in cluster["queuesTop"] if (row["quota"] or 0.0) >= QUOTA_WARNING]
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
_BAD: tuple[_Rule, ...] = (_no_nodes, _full_disks, _no_quorum, _no_leader, _no_primary, _closed_partitions)
_WARNINGS: tuple[_Rule, ...] = (_not_up, _unable, _nearly_full_disks, _stopped_partitions, _replicas, _alarms, _quotas,
                                _overloaded_nodes)


def _in(nodes: Sequence[Mapping[str, Any]], state: str) -> list[str]:
    return [node["name"] for node in nodes if node["state"] == state]


def _names(names: Sequence[str]) -> str:
    shown = list(names[:NAMES_MAX]) + ([f"{len(names) - NAMES_MAX} more"] if len(names) > NAMES_MAX else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _partitions(lost: Sequence[Mapping[str, Any]]) -> str:
    ids = [str(each["id"]) for each in lost]
    return f"Partition {ids[0]} has" if len(ids) == 1 else f"Partitions {_names(ids)} have"


def _size(count: int) -> str:
    return pretty_bytes(count).replace("  ", " ")
