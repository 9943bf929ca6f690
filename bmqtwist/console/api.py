"""The JSON API: a request is done by the node it concerns, this one or another one that is asked in the name of the user.
Both write an action into their audit logs.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import inlineCallbacks

from bmqtwist.console.access import Who
from bmqtwist.console.audit import AuditEntry
from bmqtwist.console.operation import Asked, Operations, check_common


@inlineCallbacks
def perform(operations: Operations, asked: Asked) -> Any:
    """Do what was asked for: a document or a Download; Refusal, LocalError or Refused: it is not done."""
    check_common(asked)
    place = asked.route.place
    node = (yield place(operations, asked)) if place is not None else None
    if node is not None:
        return (yield operations.forward(node, asked))
    return (yield asked.route.run(operations, asked))


def log_action(operations: Operations, asked: Asked, outcome: str) -> None:
    """Into the audit log: the outcome of an action."""
    if asked.route.method != "POST" or asked.route.between_nodes or not asked.route.is_action:
        return
    given, name = asked.arguments, asked.route.name
    target = next((str(given[each]) for each in ("node", "partition", "uri", "alarm", "domain")
                   if given.get(each) is not None), "")
    if name == "move":
        target += f" to {given.get('to')}"
    if name == "purge" and given.get("app"):
        target += f" app {given['app']}"
    if name == "raise_alarm":
        target = f"{given.get('severity') or 'ALARM'} {given.get('category') or 'OPERATOR'} {target}".rstrip()
    note(operations, asked.who, asked.address, AuditEntry(name, target, outcome,
                                                          str(given.get("reason") or given.get("text") or "")))


def note(operations: Operations, who: Who, address: str, entry: AuditEntry) -> None:
    """Into the audit log."""
    source = f"{address}, by {who.node}" if who.node else address
    operations.audit.add(operations.host.moment()[1], who, source, operations.collector.name, entry)
