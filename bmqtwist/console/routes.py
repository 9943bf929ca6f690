"""Everything that the JSON API offers, in one table: by it requests are served, roles are asked for, and the OpenAPI
description is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from bmqtwist import __version__
from bmqtwist.console import actions
from bmqtwist.console import documents_api as reads
from bmqtwist.console.access import Role
from bmqtwist.console.actions import ALARM_CHARS_MAX, PAYLOAD_CHARS_MAX
from bmqtwist.console.documents import Document
from bmqtwist.console.documents_api import EXPRESSION_CHARS_MAX
from bmqtwist.console.operation import (
    Argument,
    Asked,
    Operations,
    Route,
    at_alarm,
    at_holder,
    at_leader,
    at_named_node,
    at_node,
    at_partition_primary,
    at_queue_primary,
)
from bmqtwist.console.topics import QueueTopic, queue_uri, queues_topic

Run = Callable[[Operations, Asked], Any]


def _get(name: str, run: Run, path: str, text: str, *arguments: Argument, **more: Any) -> Route:
    return Route(name, "GET", f"/api/v1/{path}", Role.VIEWER, text, run, arguments, **more)


def _post(name: str, run: Run, path: str, role: Role, text: str, *arguments: Argument,
          answer: tuple[tuple[str, str], ...] = (), **more: Any) -> Route:
    return Route(name, "POST", f"/api/v1/{path}", role, text, run, arguments, (("ok", "boolean"), *answer), **more)


def describe(operations: Operations, asked: Asked) -> Document:
    """What the API offers."""
    return openapi(operations.prefix)


_URI = Argument("uri", "URI of a queue, as bmq://domain/queue", required=True)
_NODE = Argument("node", "name of the node that is asked; absent = the one that serves, or the primary of the queue")
_PARTITION = Argument("partition", "number of a partition", "integer", required=True)
_REASON = Argument("reason", "why, for the audit log", required=True)
_WHY = Argument("reason", "why, for the audit log")
_GUID = Argument("guid", "GUID of a message, 32 hexadecimal digits", required=True)
_PAGE = (Argument("filter", "text that is part of the URI, in any case"),
         Argument("sort", "messages, bytes, oldestSeconds, quota, putRate, pushRate, confirmRate, consumers, producers, "
                          "partition, domain, mode or uri"),
         Argument("order", "asc or desc"))
_ROWS = (("total", "integer"), ("offset", "integer"), ("rows", "array"))

ROUTES: tuple[Route, ...] = (
    _get("description", describe, "openapi.json", "This description."),
    _get("cluster", lambda on, asked: on.collector.cluster(), "cluster",
         "The whole cluster, as all its nodes see it: verdict, leader, rates, nodes, partitions, "
                               "proxies, the deepest queues, alarms, last events.",
         answer=(("at", "number"), ("servedBy", "string"), ("name", "string"), ("version", "string"), ("verdict", "object"),
                 ("leader", "object"), ("rates", "object"), ("ackLatencyMs", "object"), ("history", "array"),
                 ("nodes", "array"), ("partitions", "array"), ("proxies", "array"), ("queuesTop", "array"),
                 ("alarms", "array"), ("events", "array"))),
    _get("node", lambda on, asked: on.collector.own_part(), "node", "What this node contributes to that."),
    _get("queues", lambda on, asked: on.collector.queues(queues_topic(asked.arguments)), "queues",
         "A page of the queues of the cluster.", *_PAGE,
         Argument("offset", "rows to leave out", "integer"), Argument("limit", "rows at most, 1 to 500", "integer"),
         answer=_ROWS),
    _get("node_queues", reads.node_queues, "node/queues",
         "The first queues of those that this node leads, as pairs of what is sorted by and URI.",
         *_PAGE, Argument("upto", "so many", "integer"), answer=(("total", "integer"), ("entries", "array")),
         between_nodes=True),
    _post("node_rows", reads.node_rows, "node/rows", Role.VIEWER, "Rows of queues that this node leads.",
          Argument("uris", "their URIs", "array", required=True), answer=(("rows", "array"),), between_nodes=True),
    _get("queue", lambda on, asked: on.collector.queue(QueueTopic(queue_uri(asked.arguments))), "queue",
         "One queue: its apps, consumers, producers, history and distribution tree.", _URI,
         answer=(("apps", "array"), ("consumers", "array"), ("producers", "array"), ("history", "array"),
                 ("tree", "object"))),
    _get("node_queue", lambda on, asked: on.collector.own_queue(queue_uri(asked.arguments)), "node/queue",
         "What this node knows of one queue.", _URI, between_nodes=True),
    _get("elections", lambda on, asked: on.collector.elections(), "elections",
         "Terms with their leaders, and what happened in elections.",
         answer=(("terms", "array"), ("events", "array"))),
    _get("messages", reads.list_messages, "messages", "Stored messages of a queue; nothing is consumed.", _URI, _NODE,
         Argument("after", "GUID of the message behind which to begin"),
         Argument("limit", "messages at most, 1 to 200", "integer"),
         Argument("guid", "GUID of the one message that is wanted"),
         Argument("since", "seconds since the epoch: only what came then or later", "number"),
         Argument("until", "seconds since the epoch: only what came before", "number"),
         Argument("newest", "1 = the newest first", "integer"), answer=(("messages", "array"), ("next", "string")),
         place=at_holder),
    _get("message", reads.message, "message",
         "One whole message: payload (base64, at most 1 MiB), properties with their types, its state for "
                               "each app.", _URI, _GUID, _NODE, answer=(("payload", "string"), ("truncated", "boolean")),
         place=at_holder),
    _get("payload", reads.payload, "message/payload",
         "The payload of a message, to be kept as a file.", _URI, _GUID, _NODE, download=True),
    _get("clients", lambda on, asked: on.collector.clients(), "clients",
         "Applications and administrators that are connected, of all nodes and of the proxies that "
                               "have a console; missing says why others are not told.",
         answer=(("clients", "array"), ("missing", "object"))),
    _get("node_clients", reads.node_clients, "node/clients",
         "Those of this node, and the proxies that are connected with it.",
         answer=(("clients", "array"), ("proxies", "array")), between_nodes=True),
    _get("alarms", reads.alarms, "alarms",
         "Alarms of all nodes: open ones first, then the newest.", answer=(("alarms", "array"),)),
    _get("events", reads.events, "events", "Events of all nodes, oldest first.",
         Argument("after", "seconds since the epoch: only those that came later", "number"), answer=(("events", "array"),)),
    _get("audit", lambda on, asked: {"entries": list(on.audit.entries)[::-1]}, "audit",
         "Who has done what in the console of this node, newest first.", answer=(("entries", "array"),)),
    _get("log", reads.log, "log", "The last lines of the log of a node, oldest first.", _NODE,
         Argument("level", "FATAL, ERROR, WARN, INFO, DEBUG or TRACE: that severe, or more"),
         Argument("lines", "lines at most, 1 to 2000", "integer"), answer=(("lines", "array"),), place=at_node),
    _get("config", reads.config, "config", "The configuration of a node that is in force, secrets masked.", _NODE,
         answer=(("node", "string"), ("config", "object")), place=at_node),
    _get("domains", reads.domains, "domains",
         "The domains of all nodes: those in use with what is stored in them, and those that have a file.",
         answer=(("domains", "array"), ("missing", "object"))),
    _get("node_domains", reads.node_domains, "node/domains",
         "Those of this node.", answer=(("domains", "array"),), between_nodes=True),
    _get("domain", reads.domain, "domain",
         "The configuration of a domain at a node: what is in force, and what its file says.",
         Argument("name", "name of the domain", required=True), _NODE,
         answer=(("name", "string"), ("node", "string"), ("config", "object"), ("file", "object"),
                 ("problem", "string")), place=at_node),
    _get("storage", reads.list_files, "storage",
         "The storage files of a node.", _NODE, answer=(("node", "string"), ("partitions", "array")), place=at_node),
    _get("records", reads.records, "storage/records", "How many records of each kind a journal holds.", _PARTITION, _NODE,
         answer=(("bytes", "integer"), ("kinds", "array")), place=at_node),
    _get("journal", reads.journal, "storage/journal", "Records of a journal, the newest first.", _PARTITION, _NODE,
         Argument("before", "offset in the file: only records that begin before it", "integer"),
         Argument("limit", "records at most, 1 to 200", "integer"),
         Argument("kind", "MESSAGE, CONFIRM, DELETION, QUEUE_OP or JOURNAL_OP"),
         Argument("guid", "GUID of the message whose records are wanted"),
         answer=(("records", "array"), ("next", "integer"), ("searched", "integer")), place=at_node),
    _get("compare", reads.compare, "storage/compare",
         "Whether the copies of a partition say the same, by checks of their newest records.",
         _PARTITION, answer=(("nodes", "array"), ("comparedRecords", "integer"), ("differing", "array"),
                             ("missing", "object"))),
    _get("node_reach", reads.node_reach, "node/reach", "How far the copy of this node goes.", _PARTITION,
         answer=(("first", "array"), ("last", "array")), between_nodes=True),
    _get("node_checks", reads.node_checks, "node/checks", "The checks of this node.", _PARTITION,
         Argument("first", "lease and sequence number of the first record, as 3-120", required=True),
         Argument("last", "of the last one", required=True), answer=(("blocks", "object"),), between_nodes=True),
    _get("preflight", reads.preflight, "nodes/<node>/preflight", "What would happen if that node stopped.",
         answer=(("quorumSurvives", "boolean"), ("moves", "array"), ("sessions", "integer"), ("warnings", "array")),
         place=at_named_node),
    _post("stop", actions.stop, "nodes/<node>/stop", Role.OPERATOR, "Stop a node gracefully.",
          Argument("confirm", "the name of the node, once more", required=True), _REASON,
          Argument("delay", "seconds until it begins, 0 to 3600; until then it can be aborted", "integer"),
         place=at_named_node, confirm="node"),
    _post("abort_stop", actions.abort_stop, "nodes/<node>/abort-stop", Role.OPERATOR,
          "Abort the stop of a node that has not begun yet.", place=at_named_node),
    _post("move", actions.move, "partitions/<int:partition>/move", Role.OPERATOR,
          "Let another node be primary of a partition.",
          Argument("to", "name of that node", required=True), _WHY, place=at_leader),
    _post("rollover", actions.rollover, "partitions/<int:partition>/rollover", Role.OPERATOR,
          "Begin a new file set of a partition.", _WHY, place=at_partition_primary),
    _post("purge", actions.purge, "queues/purge", Role.ADMIN, "Drop all messages of a queue, or of one of its apps.", _URI,
          Argument("app", "the app; null = all", nullable=True), Argument("confirm", "the URI, once more", required=True),
          _REASON,
          answer=(("messages", "integer"), ("bytes", "integer")), place=at_queue_primary, confirm="uri"),
    _post("publish", actions.publish, "publish", Role.OPERATOR, "Post test messages.", _URI,
          Argument("payload", f"at most {PAYLOAD_CHARS_MAX} characters"), Argument("encoding", "text or base64"),
          Argument("properties", "by name: {type, value}", "object", nullable=True),
          Argument("count", "1 to 100", "integer"), answer=(("results", "array"),)),
    _post("test_subscription", reads.test_subscription, "subscriptions/test", Role.VIEWER,
          "Evaluate an expression against stored messages, or against "
                                                                  "properties.", _URI,
          Argument("expression", f"at most {EXPRESSION_CHARS_MAX} characters"),
          Argument("properties", "by name, instead of stored messages", "object", nullable=True),
          Argument("last", "so many of the last messages, 1 to 200", "integer"), place=at_holder, is_action=False),
    _post("raise_alarm", actions.raise_alarm, "alarms", Role.OPERATOR,
          "Raise an alarm, as the broker raises its own: it is logged and listed.",
          Argument("category", "capital letters, digits and _, 64 at most; absent = OPERATOR. Not one that the broker "
                               "clears by itself"),
          Argument("severity", "ALARM, or PANIC for what cannot wait; absent = ALARM"),
          Argument("text", f"what somebody has to know, 1 to {ALARM_CHARS_MAX} characters", required=True), _NODE,
         place=at_node),
    _post("acknowledge", actions.acknowledge, "alarms/<alarm>/acknowledge", Role.OPERATOR,
          "Say that somebody looks after an alarm.", place=at_alarm),
    _post("clear", actions.clear, "alarms/<alarm>/clear", Role.OPERATOR,
          "Say that what an alarm is about is over.", place=at_alarm),
    _post("reconfigure", actions.reconfigure, "domains/<domain>/reconfigure", Role.ADMIN,
          "Read the file of a domain again, at every node.", _WHY,
          answer=(("nodes", "array"),)),
    _post("rolling_restart", actions.rolling_restart, "rolling-restart", Role.ADMIN,
          "Stop all nodes, one at a time, each once the one before is back; "
                                                            "something must start them again.", _REASON,
          answer=(("order", "array"),)),
    _post("abort_restart", actions.abort_restart, "rolling-restart/abort", Role.ADMIN,
          "Stop no further node; one that stops does so."),
    _post("start_demo", actions.start_demo, "demo/start", Role.OPERATOR,
          "Begin demonstration traffic at this node, where its configuration offers it."),
    _post("stop_demo", actions.stop_demo, "demo/stop", Role.OPERATOR, "End it."),
    _post("end_login", actions.end_login, "node/logout", Role.VIEWER, "A login is over, here as elsewhere.",
          Argument("nonce", "of the login", required=True), between_nodes=True),
)


def openapi(prefix: str = "") -> Document:
    """The description of the API by OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        if not route.between_nodes:
            path, names = _path(route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, names)
    return {"openapi": "3.1.0", "info": {"title": "bmqtwist console", "version": __version__},
            "servers": [{"url": prefix or "/"}], "paths": paths,
            "components": {"securitySchemes": {"login": {"type": "apiKey", "in": "cookie", "name": "bmq_session"},
                                               "csrf": {"type": "apiKey", "in": "header", "name": "X-CSRF-Token"}},
                           "schemas": {"Error": {"type": "object", "required": ["error"], "properties": {
                               "error": {"type": "string"}, "field": {"type": "string"}}}}}}


def _path(path: str) -> tuple[str, list[tuple[str, str]]]:
    """As OpenAPI writes it, and the arguments in it with their types."""
    names = [(name, "integer" if kind == "int:" else "string") for kind, name in re.findall(r"<(int:)?(\w+)>", path)]
    return re.sub(r"<(?:int:)?(\w+)>", r"{\1}", path), names


def _operation(route: Route, names: list[tuple[str, str]]) -> Document:
    refused = {"description": "Refused", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    made: Document = {
        "operationId": route.name, "summary": route.text, "x-role": route.role.word,
        "security": [{"login": []} if route.method == "GET" else {"login": [], "csrf": []}],
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": kind}} for name, kind in names],
        "responses": {"200": {"description": "Done", "content": _answer(route)},
                      **dict.fromkeys(("400", "401", "403", "409"), refused)}}
    if route.method == "GET":
        made["parameters"] += [{"name": each.name, "in": "query", "required": each.required, "description": each.text,
                                "schema": {"type": each.kind}} for each in route.arguments]
    else:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": {
            "type": "object", "required": [each.name for each in route.arguments if each.required],
            "properties": {each.name: {"type": [each.kind, "null"] if each.nullable else each.kind, "description": each.text}
                           for each in route.arguments}}}}}
    return made


def _answer(route: Route) -> Document:
    if route.download:
        return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {"application/json": {"schema": {"type": "object", "required": [name for name, _ in route.answer],
                                            "properties": {name: {"type": kind} for name, kind in route.answer}}}}
