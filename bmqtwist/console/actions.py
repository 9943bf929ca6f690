"""Operations of the JSON API that change something. Each is done by the node that it concerns."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks

from bmqtwist.admin import operations as admin
from bmqtwist.broker import local_producer
from bmqtwist.console import operation as api
from bmqtwist.console.access import Refusal, Role
from bmqtwist.console.documents import Document
from bmqtwist.console.stops import DELAY_SECONDS_MAX
from bmqtwist.console.topics import text
from bmqtwist.errors import LocalError, Refused
from bmqtwist.ids import parse_uri
from bmqtwist.report import shown
from bmqtwist.view import alarms, typed_properties

PAYLOAD_CHARS_MAX = 48 << 10  # of a test message, as it is sent
ALARM_CHARS_MAX = 1000
ALARM_CATEGORY_CHARS_MAX = 64
_CATEGORY = re.compile("[A-Z][A-Z0-9_]*")
REFUSALS = (LocalError, Refused)


def reason_of(error: Exception) -> str:
    """What a refusal of the broker says."""
    return error.message if isinstance(error, Refused) else str(error)


def _done(operations: api.Operations) -> Document:
    operations.collector.outdate()
    return {"ok": True}


@api.post("nodes/<node>/stop", Role.OPERATOR, api.Argument("confirm", "the name of the node, once more", required=True),
      api.REASON,
      api.Argument("delay", "seconds until it begins, 0 to 3600; until then it can be aborted", "integer",
               api.whole(0, 0, DELAY_SECONDS_MAX)), place=api.at_named_node, confirm="node")
def stop(operations: api.Operations, asked: api.Asked) -> Document:
    """Stop a node gracefully."""
    operations.delayed_stop.ask(asked.arguments["reason"], asked.who.user, asked.arguments["delay"])
    return _done(operations)


@api.post("nodes/<node>/abort-stop", Role.OPERATOR, place=api.at_named_node)
def abort_stop(operations: api.Operations, asked: api.Asked) -> Document:
    """Abort the stop of a node that has not begun yet."""
    operations.delayed_stop.abort(asked.who.user)
    return _done(operations)


@api.post("partitions/<int:partition>/move", Role.OPERATOR,
      api.Argument("to", "name of that node", read=api.words(api.NAME_CHARS_MAX, 1), required=True), api.WHY,
      place=api.at_leader)
@inlineCallbacks
def move(operations: api.Operations, asked: api.Asked) -> Any:
    """Let another node be primary of a partition."""
    yield operations.operate(asked, admin.move_partition, operations.member_of().name,
                             asked.arguments["partition"], operations.known(asked.arguments["to"]))
    return {"ok": True}


@api.post("partitions/<int:partition>/rollover", Role.OPERATOR, api.WHY, place=api.at_partition_primary)
@inlineCallbacks
def rollover(operations: api.Operations, asked: api.Asked) -> Any:
    """Begin a new file set of a partition."""
    yield operations.operate(asked, admin.roll_over, operations.member_of().name, asked.arguments["partition"])
    return {"ok": True}


@api.post("queues/purge", Role.ADMIN, api.URI,
      api.Argument("app", "the app; null = all", read=api.words(api.NAME_CHARS_MAX), nullable=True),
      api.Argument("confirm", "the URI, once more", required=True), api.REASON,
      answer={"messages": "integer", "bytes": "integer"}, place=api.at_queue_primary, confirm="uri")
@inlineCallbacks
def purge(operations: api.Operations, asked: api.Asked) -> Any:
    """Drop all messages of a queue, or of one of its apps."""
    uri = parse_uri(asked.arguments["uri"])
    report = yield operations.operate(asked, admin.purge_queue, uri.qualified_domain, uri.queue,
                                      asked.arguments["app"] or admin.WHOLE_QUEUE)
    if report.errors:
        raise Refusal(409, report.errors[0])
    return {"ok": True, "messages": sum(each.messages for each in report.purged),
            "bytes": sum(each.bytes for each in report.purged)}


@api.post("publish", Role.OPERATOR, api.URI,
      api.Argument("payload", f"at most {PAYLOAD_CHARS_MAX} characters", read=api.words(PAYLOAD_CHARS_MAX)),
      api.Argument("encoding", "text or base64"), api.PROPERTIES,
      api.Argument("count", "1 to 100", "integer", api.whole(1, 1, local_producer.COUNT_MAX)), answer={"results": "array"})
@inlineCallbacks
def publish(operations: api.Operations, asked: api.Asked) -> Any:
    """Post test messages."""
    given, done = asked.arguments, Deferred[local_producer.Published]()
    local_producer.publish(operations.broker, given["uri"], _payload(given["payload"], given.get("encoding") or "text"),
                           typed_properties.from_tree(given["properties"] or {}), given["count"], asked.who.user,
                           done.callback)
    result = yield done
    if result.error:
        raise Refusal(409, result.error)
    return {"ok": True, **result.tree()}


def _payload(payload: str, encoding: object) -> bytes:
    if encoding == "text":
        return payload.encode("utf-8", "surrogatepass")
    if encoding != "base64":
        raise Refusal(400, "The encoding is text or base64.", "encoding")
    try:
        return b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(400, "The payload is no base64.", "payload") from None


@api.post("alarms", Role.OPERATOR,
      api.Argument("category", "capital letters, digits and _, 64 at most; absent = OPERATOR. Not one that the broker "
                   "clears by itself", read=api.words(ALARM_CATEGORY_CHARS_MAX)),
      api.Argument("severity", "ALARM, or PANIC for what cannot wait; absent = ALARM",
                   read=api.words(api.NAME_CHARS_MAX)),
      api.Argument("text", f"what somebody has to know, 1 to {ALARM_CHARS_MAX} characters",
                   read=api.words(ALARM_CHARS_MAX, 1), required=True), api.NODE, place=api.at_node)
def raise_alarm(operations: api.Operations, asked: api.Asked) -> Document:
    """Raise an alarm, as the broker raises its own: it is logged and listed."""
    given, report = asked.arguments, operations.host.report
    category, severity, said = given["category"] or "OPERATOR", given["severity"] or "ALARM", given["text"].strip()
    if not said:
        raise Refusal(400, "An alarm says something.", "text")
    if _CATEGORY.fullmatch(category) is None:
        raise Refusal(400, "A category is made of capital letters, digits and _, and begins with a letter.", "category")
    if category in alarms.CONDITIONS:
        raise Refusal(400, f"Alarms of category {category} are the broker's own: it would clear this one by itself.",
                      "category")
    if severity not in ("ALARM", "PANIC"):
        raise Refusal(400, "The severity is ALARM or PANIC.", "severity")
    (report.panic if severity == "PANIC" else report.alarm)(
        category, "%s", f"{shown(said, ALARM_CHARS_MAX)} (raised by {shown(asked.who.user)})")
    return _done(operations)


@api.post("alarms/<alarm>/acknowledge", Role.OPERATOR, place=api.at_alarm)
def acknowledge(operations: api.Operations, asked: api.Asked) -> Document:
    """Say that somebody looks after an alarm."""
    operations.host.node.alarms.acknowledge(asked.arguments["alarm"].rpartition(":")[2], asked.who.user)
    return {"ok": True}


@api.post("alarms/<alarm>/clear", Role.OPERATOR, place=api.at_alarm)
def clear(operations: api.Operations, asked: api.Asked) -> Document:
    """Say that what an alarm is about is over."""
    operations.host.node.alarms.clear(asked.arguments["alarm"].rpartition(":")[2], asked.who.user)
    return {"ok": True}


@api.post("domains/<domain>/reconfigure", Role.ADMIN, api.WHY, answer={"nodes": "array"})
@inlineCallbacks
def reconfigure(operations: api.Operations, asked: api.Asked) -> Any:
    """Read the file of a domain again, at every node."""
    name, own = text(asked.arguments, "domain", api.NAME_CHARS_MAX, 1), operations.collector.name
    rows = []
    for node in (own, *(operations.collector.consoles.urls() if not asked.who.node else ())):
        try:
            if node == own:
                yield operations.operate(asked, admin.reconfigure_domain, name)
            else:
                yield operations.forward(node, asked)
            rows.append({"node": node, "ok": True, "error": ""})
        except (Refusal, *REFUSALS) as refused:
            if asked.who.node:
                raise
            rows.append({"node": node, "ok": False, "error": reason_of(refused)})
    return {"ok": all(row["ok"] for row in rows), "nodes": rows}


@api.post("rolling-restart", Role.ADMIN, api.REASON, answer={"order": "array"})
@inlineCallbacks
def rolling_restart(operations: api.Operations, asked: api.Asked) -> Any:
    """Stop all nodes, one at a time, each once the one before is back; something must start them again."""
    cluster = yield operations.collector.cluster()
    return {"ok": True, "order": operations.restart.begin(cluster, asked.arguments["reason"], asked.who)}


@api.post("rolling-restart/abort", Role.ADMIN)
def abort_restart(operations: api.Operations, asked: api.Asked) -> Document:
    """Stop no further node; one that stops does so."""
    operations.restart.abort(asked.who.user)
    return _done(operations)


@api.post("demo/start", Role.OPERATOR)
def start_demo(operations: api.Operations, asked: api.Asked) -> Document:
    """Begin demonstration traffic at this node, where its configuration offers it."""
    operations.demonstration.start(asked.who.user)
    return _done(operations)


@api.post("demo/stop", Role.OPERATOR)
def stop_demo(operations: api.Operations, asked: api.Asked) -> Document:
    """End it."""
    operations.demonstration.stop(asked.who.user)
    return _done(operations)


@api.post("node/logout", Role.VIEWER,
      api.Argument("nonce", "of the login", read=api.words(64, 1), required=True), between_nodes=True)
def end_login(operations: api.Operations, asked: api.Asked) -> Document:
    """A login is over, here as elsewhere."""
    operations.doorkeeper.cookies.end(asked.arguments["nonce"], operations.host.moment()[1])
    return {"ok": True}
