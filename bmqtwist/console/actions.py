"""Operations of the JSON API that change something. Each is done by the node that it concerns."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks

from bmqtwist.admin import cluster_operations, domain_operations
from bmqtwist.broker import local_producer
from bmqtwist.console.access import Refusal
from bmqtwist.console.documents import Document
from bmqtwist.console.operation import NAME_CHARS_MAX, Asked, Operations, properties_of
from bmqtwist.console.stops import DELAY_SECONDS_MAX
from bmqtwist.console.topics import number, queue_uri, text
from bmqtwist.errors import LocalError, Refused
from bmqtwist.ids import parse_uri
from bmqtwist.report import shown
from bmqtwist.view import alarm_conditions, typed_properties

PAYLOAD_CHARS_MAX = 48 << 10  # of a test message, as it is sent
ALARM_CHARS_MAX = 1000
ALARM_CATEGORY_CHARS_MAX = 64
_CATEGORY = re.compile("[A-Z][A-Z0-9_]*")
REFUSALS = (LocalError, Refused)


def reason_of(error: Exception) -> str:
    """What a refusal of the broker says."""
    return error.message if isinstance(error, Refused) else str(error)


def _done(operations: Operations) -> Document:
    operations.collector.outdate()
    return {"ok": True}


def stop(operations: Operations, asked: Asked) -> Document:
    """Stop this node."""
    operations.delayed_stop.ask(str(asked.arguments["reason"]), asked.by,
                                number(asked.arguments, "delay", 0, 0, DELAY_SECONDS_MAX))
    return _done(operations)


def abort_stop(operations: Operations, asked: Asked) -> Document:
    """Abort a stop that has not begun."""
    operations.delayed_stop.abort(asked.by)
    return _done(operations)


@inlineCallbacks
def move(operations: Operations, asked: Asked) -> Any:
    """Move the primary of a partition, as leader."""
    to = operations.known(text(asked.arguments, "to", NAME_CHARS_MAX, 1))
    yield operations.operate(asked, cluster_operations.move_partition, operations.member_of().name,
                             asked.arguments["partition"], to)
    return {"ok": True}


@inlineCallbacks
def rollover(operations: Operations, asked: Asked) -> Any:
    """Begin a new file set, as primary."""
    yield operations.operate(asked, cluster_operations.roll_over, operations.member_of().name, asked.arguments["partition"])
    return {"ok": True}


@inlineCallbacks
def purge(operations: Operations, asked: Asked) -> Any:
    """Drop messages, as primary."""
    app, uri = text(asked.arguments, "app", NAME_CHARS_MAX), parse_uri(queue_uri(asked.arguments))
    report = yield operations.operate(asked, domain_operations.purge_queue, uri.qualified_domain, uri.queue,
                                      app or domain_operations.WHOLE_QUEUE)
    if report.errors:
        raise Refusal(409, report.errors[0])
    return {"ok": True, "messages": sum(each.messages for each in report.purged),
            "bytes": sum(each.bytes for each in report.purged)}


@inlineCallbacks
def publish(operations: Operations, asked: Asked) -> Any:
    """Post test messages from here."""
    given, done = asked.arguments, Deferred[local_producer.Published]()
    local_producer.publish(operations.host.node.broker, queue_uri(given), _payload(given),
                           typed_properties.from_tree(properties_of(given) or {}),
                           number(given, "count", 1, 1, local_producer.COUNT_MAX), asked.by, done.callback)
    result = yield done
    if result.error:
        raise Refusal(409, result.error)
    return {"ok": True, **result.tree()}


def _payload(arguments: Mapping[str, Any]) -> bytes:
    payload, encoding = text(arguments, "payload", PAYLOAD_CHARS_MAX), arguments.get("encoding") or "text"
    if encoding == "text":
        return payload.encode("utf-8", "surrogatepass")
    if encoding != "base64":
        raise Refusal(400, "The encoding is text or base64.", "encoding")
    try:
        return b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(400, "The payload is no base64.", "payload") from None


def raise_alarm(operations: Operations, asked: Asked) -> Document:
    """An alarm that an operator raises; it names who."""
    given, report = asked.arguments, operations.host.report
    category = text(given, "category", ALARM_CATEGORY_CHARS_MAX) or "OPERATOR"
    severity = text(given, "severity", NAME_CHARS_MAX) or "ALARM"
    words = text(given, "text", ALARM_CHARS_MAX, 1).strip()
    if not words:
        raise Refusal(400, "An alarm says something.", "text")
    if _CATEGORY.fullmatch(category) is None:
        raise Refusal(400, "A category is made of capital letters, digits and _, and begins with a letter.", "category")
    if alarm_conditions.is_watched(category):
        raise Refusal(400, f"Alarms of category {category} are the broker's own: it would clear this one by itself.",
                      "category")
    if severity not in ("ALARM", "PANIC"):
        raise Refusal(400, "The severity is ALARM or PANIC.", "severity")
    (report.panic if severity == "PANIC" else report.alarm)(
        category, "%s", f"{shown(words, ALARM_CHARS_MAX)} (raised by {shown(asked.by)})")
    return _done(operations)


def acknowledge(operations: Operations, asked: Asked) -> Document:
    """Acknowledge an alarm."""
    operations.host.node.alarms.acknowledge(asked.arguments["alarm"].rpartition(":")[2], asked.by)
    return {"ok": True}


def clear(operations: Operations, asked: Asked) -> Document:
    """Clear an alarm."""
    operations.host.node.alarms.clear(asked.arguments["alarm"].rpartition(":")[2], asked.by)
    return {"ok": True}


@inlineCallbacks
def reconfigure(operations: Operations, asked: Asked) -> Any:
    """Read the file of a domain again, at every node."""
    name, own = text(asked.arguments, "domain", NAME_CHARS_MAX, 1), operations.collector.name
    rows = []
    for node in (own, *(operations.collector.consoles.urls() if not asked.who.node else ())):
        try:
            if node == own:
                yield operations.operate(asked, domain_operations.reconfigure_domain, name)
            else:
                yield operations.forward(node, asked)
            rows.append({"node": node, "ok": True, "error": ""})
        except (Refusal, *REFUSALS) as refused:
            if asked.who.node:
                raise
            rows.append({"node": node, "ok": False, "error": reason_of(refused)})
    return {"ok": all(row["ok"] for row in rows), "nodes": rows}


@inlineCallbacks
def rolling_restart(operations: Operations, asked: Asked) -> Any:
    """Stop all nodes, one after the other."""
    cluster = yield operations.collector.cluster()
    return {"ok": True, "order": operations.restart.begin(cluster, str(asked.arguments["reason"]), asked.who)}


def abort_restart(operations: Operations, asked: Asked) -> Document:
    """Stop no further node."""
    operations.restart.abort(asked.by)
    return _done(operations)


def start_demo(operations: Operations, asked: Asked) -> Document:
    """Begin demonstration traffic."""
    operations.demonstration.start(asked.by)
    return _done(operations)


def stop_demo(operations: Operations, asked: Asked) -> Document:
    """End demonstration traffic."""
    operations.demonstration.stop(asked.by)
    return _done(operations)


def end_login(operations: Operations, asked: Asked) -> Document:
    """End a login, as another node says."""
    operations.doorkeeper.cookies.end(text(asked.arguments, "nonce", 64, 1), operations.host.moment()[1])
    return {"ok": True}
