"""Operations of the JSON API that change state: stops, moves, purges, test messages, alarms, demonstration traffic.

Each is performed by the node that owns the state. `routes.py` collects the decorated functions; `operation.perform`
calls them. Each declares its role and arguments with the decorators of `operation.py`.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks

from bmqtwist import alarms
from bmqtwist.admin import operations as admin
from bmqtwist.broker import local_producer
from bmqtwist.console import operation as api
from bmqtwist.console.access import Refusal, UserRole
from bmqtwist.console.documents import Document
from bmqtwist.console.stops import DELAY_SECONDS_MAX
from bmqtwist.console.topics import read_text
from bmqtwist.errors import LocalError, Refused
from bmqtwist.ids import parse_uri
from bmqtwist.report import shown
from bmqtwist.view import typed_properties

PAYLOAD_CHARS_MAX = 48 << 10  # of a test message, in its encoding
ALARM_CHARS_MAX = 1000
ALARM_CATEGORY_CHARS_MAX = 64
_CATEGORY = re.compile("[A-Z][A-Z0-9_]*")
REFUSALS = (LocalError, Refused)


def reason_of(error: Exception) -> str:
    """Return the reason of a refusal by the broker."""
    return error.message if isinstance(error, Refused) else str(error)


def _ok(context: api.OperationContext) -> Document:
    """Discard the cached cluster document, and return the answer of a successful action."""
    context.collector.invalidate()
    return {"ok": True}


@api.post("nodes/<node>/stop", UserRole.OPERATOR, api.Argument("confirm", "the name of the node again", required=True),
      api.REASON,
      api.Argument("delay", "seconds until the stop begins, 0 to 3600; until then it can be aborted", "integer",
                   api.integer_reader(0, 0, DELAY_SECONDS_MAX)), place=api.at_named_node, confirm="node")
def stop(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Stop a node gracefully."""
    context.delayed_stop.request(call.arguments["reason"], call.caller.user, call.arguments["delay"])
    return _ok(context)


@api.post("nodes/<node>/abort-stop", UserRole.OPERATOR, place=api.at_named_node)
def abort_stop(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Abort the stop of a node before it begins."""
    context.delayed_stop.abort(call.caller.user)
    return _ok(context)


@api.post("partitions/<int:partition>/move", UserRole.OPERATOR,
          api.Argument("to", "name of the new primary", read=api.text_reader(api.NAME_CHARS_MAX, 1), required=True),
          api.OPTIONAL_REASON, place=api.at_leader)
@inlineCallbacks
def move(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Move a partition to another primary."""
    reason = yield context.run_admin(call, admin.move_partition, context.own_cluster().name,
                                     call.arguments["partition"], context.check_node(call.arguments["to"]))
    if reason:
        raise Refusal(409, reason)
    return _ok(context)


@api.post("partitions/<int:partition>/rollover", UserRole.OPERATOR, api.OPTIONAL_REASON, place=api.at_partition_primary)
@inlineCallbacks
def rollover(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Start a rollover of a partition to a new file set."""
    yield context.run_admin(call, admin.roll_over, context.own_cluster().name, call.arguments["partition"])
    return {"ok": True}


@api.post("queues/purge", UserRole.ADMIN, api.URI,
          api.Argument("app", "the app; null = all", read=api.text_reader(api.NAME_CHARS_MAX), nullable=True),
          api.Argument("confirm", "the URI again", required=True), api.REASON,
          answer={"messages": "integer", "bytes": "integer"}, place=api.at_queue_primary, confirm="uri")
@inlineCallbacks
def purge(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Purge all messages of a queue, or of one of its apps."""
    uri = parse_uri(call.arguments["uri"])
    report = yield context.run_admin(call, admin.purge_queue, uri.qualified_domain, uri.queue,
                                     call.arguments["app"] or admin.WHOLE_QUEUE)
    if report.errors:
        raise Refusal(409, report.errors[0])
    return {"ok": True, "messages": sum(each.messages for each in report.purged),
            "bytes": sum(each.bytes for each in report.purged)}


@api.post("publish", UserRole.OPERATOR, api.URI,
          api.Argument("payload", f"at most {PAYLOAD_CHARS_MAX} characters", read=api.text_reader(PAYLOAD_CHARS_MAX)),
          api.Argument("encoding", "text or base64"), api.PROPERTIES,
          api.Argument("count", "1 to 100", "integer", api.integer_reader(1, 1, local_producer.COUNT_MAX)),
          answer={"results": "array"})
@inlineCallbacks
def publish(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Post test messages to a queue, and return the status of each ACK."""
    given, done = call.arguments, Deferred[local_producer.Published]()
    local_producer.publish(context.broker, given["uri"], _payload(given["payload"], given.get("encoding") or "text"),
                           typed_properties.from_tree(given["properties"] or {}), given["count"], call.caller.user,
                           done.callback)
    result = yield done
    if result.error:
        raise Refusal(409, result.error)
    return {"ok": True, **result.tree()}


def _payload(payload: str, encoding: object) -> bytes:
    if encoding == "text":
        return payload.encode("utf-8", "surrogatepass")
    if encoding != "base64":
        raise Refusal(400, "The encoding must be text or base64.", "encoding")
    try:
        return b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(400, "The payload is not base64.", "payload") from None


@api.post("alarms", UserRole.OPERATOR,
      api.Argument("category", "capital letters, digits and _, 64 at most; absent = OPERATOR. Must not be a category "
                   "that the broker clears", read=api.text_reader(ALARM_CATEGORY_CHARS_MAX)),
      api.Argument("severity", "ALARM, or PANIC if urgent; absent = ALARM",
                   read=api.text_reader(api.NAME_CHARS_MAX)),
      api.Argument("text", f"text of the alarm, 1 to {ALARM_CHARS_MAX} characters",
                   read=api.text_reader(ALARM_CHARS_MAX, 1), required=True), api.NODE, place=api.at_node)
def raise_alarm(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Raise an alarm; it is logged and listed like an alarm of the broker."""
    given, report = call.arguments, context.host.report
    category, severity, message = given["category"] or "OPERATOR", given["severity"] or "ALARM", given["text"].strip()
    if not message:
        raise Refusal(400, "The text of an alarm must not be empty.", "text")
    if _CATEGORY.fullmatch(category) is None:
        raise Refusal(400, "A category consists of capital letters, digits and _, and begins with a letter.", "category")
    if any(each.category == category and each.clears for each in alarms.CATALOGUE.values()):
        raise Refusal(400, f"Category {category} is reserved: the broker raises and clears its alarms.",
                      "category")
    if severity not in ("ALARM", "PANIC"):
        raise Refusal(400, "The severity must be ALARM or PANIC.", "severity")
    report.alarm(alarms.operator_alarm(category, severity == "PANIC"), "%s",
                 f"{shown(message, ALARM_CHARS_MAX)} (raised by {shown(call.caller.user)})")
    return _ok(context)


@api.post("alarms/<alarm>/acknowledge", UserRole.OPERATOR, place=api.at_alarm)
def acknowledge(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Acknowledge an alarm: an operator has taken note of it. It stays active."""
    context.host.node.alarms.acknowledge(call.arguments["alarm"].rpartition(":")[2], call.caller.user)
    return {"ok": True}


@api.post("alarms/<alarm>/clear", UserRole.OPERATOR, place=api.at_alarm)
def clear(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Clear an alarm. The broker raises it again if its condition recurs."""
    context.host.node.alarms.clear(call.arguments["alarm"].rpartition(":")[2], call.caller.user)
    return {"ok": True}


@api.post("domains/<domain>/reconfigure", UserRole.ADMIN, api.OPTIONAL_REASON, answer={"nodes": "array"})
@inlineCallbacks
def reconfigure(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Reload the configuration file of a domain at every node."""
    name, own = read_text(call.arguments, "domain", api.NAME_CHARS_MAX, 1), context.collector.name
    rows = []
    for node in (own, *(context.collector.consoles.urls() if not call.caller.node else ())):
        try:
            if node == own:
                yield context.run_admin(call, admin.reconfigure_domain, name)
            else:
                yield context.forward(node, call)
            rows.append({"node": node, "ok": True, "error": ""})
        except (Refusal, *REFUSALS) as refused:
            if call.caller.node:
                raise
            rows.append({"node": node, "ok": False, "error": reason_of(refused)})
    return {"ok": all(row["ok"] for row in rows), "nodes": rows}


@api.post("rolling-restart", UserRole.ADMIN, api.REASON, answer={"order": "array"})
@inlineCallbacks
def rolling_restart(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Stop all nodes one at a time, each when the previous one is up again; a supervisor must restart them."""
    cluster = yield context.collector.cluster()
    return {"ok": True, "order": context.restart.start(cluster, call.arguments["reason"], call.caller)}


@api.post("rolling-restart/abort", UserRole.ADMIN)
def abort_restart(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Abort the rolling restart; a stop in progress continues."""
    context.restart.abort(call.caller.user)
    return _ok(context)


@api.post("demo/start", UserRole.OPERATOR)
def start_demo(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Start demonstration traffic at this node, if its configuration allows it."""
    context.demonstration.start(call.caller.user)
    return _ok(context)


@api.post("demo/stop", UserRole.OPERATOR)
def stop_demo(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Stop demonstration traffic at this node."""
    context.demonstration.stop(call.caller.user)
    return _ok(context)


@api.post("node/logouts", UserRole.VIEWER,
          api.Argument("generations", "by user", "object", api.read_object, required=True), between_nodes=True)
def end_logins(context: api.OperationContext, call: api.ApiCall) -> Document:
    """End the logins of users whose generation is higher at another node."""
    context.logins.cookies.generations.merge(call.arguments["generations"])
    return {"ok": True}
