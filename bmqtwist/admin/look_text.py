"""What the console shows, as text: one function for each document."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from bmqtwist.report import LogLine, shown
from bmqtwist.textformat import grouped, pretty_bytes, timestamp_text
from bmqtwist.view.alarms import AlarmState
from bmqtwist.view.events import NodeEvent

PAYLOAD_SHOWN = 1024  # bytes
_HEX_ROW = 16

Tree = dict[str, Any]


def _joined(lines: Iterable[str], empty: str = "") -> str:
    return "\n".join(lines or [empty]) + "\n" if isinstance(lines, list) else _joined(list(lines), empty)


def events(found: Iterable[NodeEvent]) -> str:
    """A line for each."""
    return _joined((f"{each.n:>6}  {timestamp_text(each.at)}  {each.kind:<8}  {shown(each.text, 400)}" for each in found),
                   "Nothing has happened.")


def alarms(found: Iterable[AlarmState]) -> str:
    """Two lines for each: what has become of it, and what it says."""
    lines = []
    for each in found:
        state = (f"over since {timestamp_text(each.cleared_at)}" if each.cleared_at else
                 f"acknowledged by {shown(each.acknowledged_by)}" if each.acknowledged_by else "open")
        lines += [f"{each.number:>5}  {each.severity} [{each.category}]  {state}; raised {each.count} time(s), first "
                  f"{timestamp_text(each.raised_at)}, last {timestamp_text(each.last_at)}",
                  f"       {shown(each.text.partition(chr(10))[0], 400)}"]
    return _joined(lines, "There are no alarms.")


def log(lines: Iterable[LogLine]) -> str:
    """As in the file, more or less."""
    return _joined((f"{timestamp_text(line.at)} {line.level} {line.category} {line.text}" for line in lines),
                   "The log is empty.")


def preflight(tree: Tree) -> str:
    """What a stop would mean."""
    lines = [f"Stop of node {tree['node']}: quorum {'survives' if tree['quorumSurvives'] else 'DOES NOT SURVIVE'}",
             f"    Clients connected: {tree['sessions']}, proxies: {tree['proxies']}, unconfirmed messages: "
             f"{tree['unconfirmed']}"]
    for cluster in tree["clusters"]:
        if cluster["leads"]:
            lines.append(f"    Cluster ({cluster['name']}): led here; {cluster['nextLeader'] or 'nobody'} is asked to lead")
    for move in tree["moves"]:
        lines.append(f"    Cluster ({move['cluster']}) Partition [{move['partition']}]: moves to {move['to'] or 'nobody'}")
    lines += [f"    WARNING: {warning}" for warning in tree["warnings"]]
    return _joined(lines)


def replicas(tree: list[Tree]) -> str:
    """A line for each node of each partition."""
    lines = []
    for partition in tree:
        lines.append(f"Partition [{partition['id']}]: primary {partition['primary'] or 'none'}, {partition['state']}, "
                     f"lease {partition['lease']}, sequence {grouped(partition['sequence'])}, messages "
                     f"{grouped(partition['messages'])}")
        for each in partition["replicas"]:
            behind = "" if each["lagRecords"] is None else (f", {grouped(each['lagRecords'])} records behind (about "
                                                            f"{pretty_bytes(each['lagBytes'] or 0)})")
            if each["lagMs"]:
                behind += f", the oldest since {grouped(round(each['lagMs']))} ms"
            lines.append(f"    {each['node']}: {each['role']}{behind}")
    return _joined(lines, "There are no partitions.")


def terms(tree: Tree) -> str:
    """Who led when."""
    standing = tree["standing"]
    lines = [f"Cluster ({tree['cluster']}): {standing['state']}, leader {standing['leader'] or 'none'}, term "
             f"{standing['term']}, quorum {standing['quorum']}, heartbeats missed {standing['heartbeatsMissed']} of "
             f"{standing['heartbeatsMissedMax']}"]
    for each in tree["terms"]:
        until = timestamp_text(each["to"]) if each["to"] is not None else "now"
        lines.append(f"    term {each['term']}: {each['leader']}, {timestamp_text(each['from'])} to {until}"
                     + (f": {each['end']}" if each["end"] else ""))
    return _joined(lines)


def _states(row: Tree) -> str:
    found = []
    for app in row["apps"]:
        to = f" to {', '.join(app['to'])}" if app["to"] else ""
        why = f" ({app['why']})" if app.get("why") else ""
        found.append(f"{app['appId']}: {app['state']}{to}{why}")
    return "; ".join(found)


def messages(tree: Tree) -> str:
    """A line for each message."""
    lines = [f"{tree['uri']}: {grouped(len(tree['messages']))} of {grouped(tree['total'])} messages, as the {tree['role']} "
             "has them"]
    for row in tree["messages"]:
        lines.append(f"    {row['guid']}  {pretty_bytes(row['bytes']):>10}  {timestamp_text(row['storedAt'])}  "
                     f"{shown(_states(row), 300)}")
    if tree["next"]:
        lines.append(f"There are more behind {tree['next']}.")
    return _joined(lines)


def message(tree: Tree) -> str:
    """All of one message, the payload up to PAYLOAD_SHOWN bytes."""
    payload = base64.b64decode(tree["payload"])
    size = "unknown" if tree["payloadBytes"] is None else f"{grouped(tree['payloadBytes'])} B"
    lines = [f"{tree['guid']} of {tree['uri']}, as the {tree['role']} has it",
             f"    Stored: {timestamp_text(tree['storedAt'])}, {grouped(tree['bytes'])} B, compression "
             f"{tree['compression']}, PSN {tree['lease']}-{tree['sequence']}", f"    Apps: {shown(_states(tree), 2000)}"]
    for name, each in tree["properties"].items():
        lines.append(f"    {shown(name)} ({each['type']}): {shown(str(each['value']), 400)}"
                     + (" ..." if each.get("truncated") else ""))
    if tree.get("problem"):
        lines.append(f"    PROBLEM: {tree['problem']}")
    lines.append(f"    Payload: {size}")
    for at in range(0, min(len(payload), PAYLOAD_SHOWN), _HEX_ROW):
        row = payload[at:at + _HEX_ROW]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"        {at:04x}  {row.hex(' '):<47}  {plain}")
    if len(payload) > PAYLOAD_SHOWN or tree["truncated"]:
        lines.append("        ...")
    return _joined(lines)


def subscription(tried: tuple[str, Tree]) -> str:
    """Which messages match an expression, and who would get them; or what is wrong."""
    expression, tree = tried
    if tree["error"]:
        error = tree["error"]
        return _joined([shown(expression, 400), " " * error["offset"] + "^" * max(1, error["length"]), error["message"]])
    lines = [f"{tree['matched']} of {tree['examined']} messages match"]
    for result in tree["results"]:
        reason = f" ({result['reason']})" if result["reason"] else ""
        routed = "; ".join(f"{each['appId']}: {_outcome(each)}" for each in result["routing"])
        lines.append(f"    {result['guid']}: {'matches' if result['matches'] else 'does not match'}{reason}"
                     + (f" [now: {shown(routed, 300)}]" if routed else ""))
    return _joined(lines)


def _outcome(each: Tree) -> str:
    return f"to {each['to']}" if each["outcome"] == "consumer" else str(each["outcome"])
