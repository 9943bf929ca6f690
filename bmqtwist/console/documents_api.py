"""Operations of the JSON API that read: documents of the cluster and of this node, storage files, stored messages.

`routes.py` collects the decorated functions; `operation.perform` calls them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace
from twisted.internet.defer import inlineCallbacks

from bmqtwist.alarms import CATALOGUE
from bmqtwist.config.text import plain
from bmqtwist.console import operation as api
from bmqtwist.console.access import Refusal, UserRole
from bmqtwist.console.consoles import ACTION_SECONDS_MAX, with_query
from bmqtwist.console.documents import Document
from bmqtwist.console.merge import events_page, merge_domains
from bmqtwist.console.topics import QueueTopic, queues_topic, read_partitions
from bmqtwist.storage.partition import Partition
from bmqtwist.view import node_facts, stopping, storage_files, subscriptions
from bmqtwist.view import stored_queue as stored
from bmqtwist.view.events import RETAINED_MAX
from bmqtwist.view.node_facts import domain_document
from bmqtwist.view.queue_facts import domain_rows_in_steps
from bmqtwist.view.replicas import led_partitions

MESSAGES_MAX = 200
LOG_LINES_MAX = 2000
EVENTS_MAX = 1000
EXPRESSION_CHARS_MAX = 4096
PAYLOAD_PART_BYTES = 4 << 20  # of a payload in one answer between nodes
DIFFERENCES_MAX = 100  # blocks shown one by one
_PARTITION = api.Argument("partition", "number of a partition", "integer", api.integer_reader(-1, 0, 1_000_000),
                          required=True)
_GUID = api.Argument("guid", "GUID of a message, 32 hexadecimal digits", read=api.text_reader(32, 32), required=True)
_PAGE = (api.Argument("filter", "part of the URI, case-insensitive"),
         api.Argument("sort", "messages, bytes, oldestSeconds, quota, putRate, pushRate, confirmRate, consumers, producers, "
                          "partition, domain, mode or uri"),
         api.Argument("order", "asc or desc"))


@api.get("cluster", answer={
    "at": "number", "servedBy": "string", "name": "string", "version": "string", "verdict": "object", "leader": "object",
    "rates": "object", "rateSeconds": "number", "ackLatencyMs": "object", "stored": "object",
    "history": "array", "nodes": "array", "partitions": "array", "proxies": "array", "queuesTop": "array",
    "alarms": "array", "events": "array"})
def cluster(context: api.OperationContext, call: api.ApiCall) -> Any:
    """State of the whole cluster: verdict, leader, rates, nodes, partitions, proxies, the deepest queues, alarms, last
    events."""
    return context.collector.cluster()


@api.get("node")
def node(context: api.OperationContext, call: api.ApiCall) -> Any:
    """This node's part of the cluster document."""
    return context.collector.own_part()


@api.get("node/process", answer={"version": "string", "sessions": "integer", "proxies": "array"}, between_nodes=True)
def node_process(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Values of this node's or proxy's process."""
    return context.collector.own_process()


@api.get("queues", *_PAGE, api.Argument("offset", "rows to skip", "integer"),
     api.Argument("limit", "maximum number of rows, 1 to 500", "integer"),
     answer={"total": "integer", "offset": "integer", "rows": "array", "missing": "object", "unknown": "array"})
def queues(context: api.OperationContext, call: api.ApiCall) -> Any:
    """A page of the queues of the cluster. `missing`: reasons of nodes that did not answer; `unknown`: partitions of unknown
    queues; `copyAt` of a row: the node whose copy has the values, because the primary does not answer."""
    return context.collector.queues(queues_topic(call.arguments))


_PARTITIONS = api.Argument("partitions", "numbers of partitions, as 0,2,3; absent = those of which the node is the primary",
                           read=read_partitions)


@api.get("node/queues", *_PAGE, _PARTITIONS,
         api.Argument("upto", "number of queues", "integer", api.integer_reader(100, 1, 10_000_000)),
     answer={"total": "integer", "entries": "array"}, between_nodes=True)
@inlineCallbacks
def node_queues(context: api.OperationContext, call: api.ApiCall) -> Any:
    """The first queues of some partitions at this node, as pairs of sort key and URI."""
    given = call.arguments
    page = replace(queues_topic({name: given.get(name) for name in ("filter", "sort", "order")}),
                   offset=given["upto"] - 1, limit=1, partitions=given["partitions"])
    total, entries = yield context.collector.local.rank(page)
    return {"total": total, "entries": entries}


@api.post("node/rows", UserRole.VIEWER, api.Argument("uris", "URIs of queues", "array", required=True),
          answer={"rows": "array"}, between_nodes=True)
@inlineCallbacks
def node_rows(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Rows of queues that this node reports."""
    uris = call.arguments["uris"]
    if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
        raise Refusal(400, "uris must be an array of strings.", "uris")
    return {"rows": (yield context.collector.local.rows(uris))}


@api.get("queue", api.URI, answer={"apps": "array", "consumers": "array", "producers": "array", "history": "array",
                           "tree": "object"})
def queue(context: api.OperationContext, call: api.ApiCall) -> Any:
    """One queue: its apps, consumers, producers, history and distribution tree."""
    return context.collector.queue(QueueTopic(call.arguments["uri"]))


@api.get("node/queue", api.URI, between_nodes=True)
def node_queue(context: api.OperationContext, call: api.ApiCall) -> Any:
    """This node's part of the document of a queue."""
    return context.collector.own_queue(call.arguments["uri"])


@api.get("elections", answer={"terms": "array", "events": "array"})
def elections(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Terms with their leaders, and events of elections."""
    return context.collector.elections()


@api.get("clients", answer={"clients": "array", "missing": "object"})
def clients(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Connected applications and administrators of all nodes and of the proxies with a console; `missing` has the reasons
    for absent nodes and proxies."""
    return context.collector.clients()


@api.get("node/clients", answer={"clients": "array", "proxies": "array"}, between_nodes=True)
def node_clients(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Connected applications, administrators and proxies of this node."""
    return node_facts.clients_part(context.broker)


@api.get("alarms", answer={"alarms": "array"})
@inlineCallbacks
def alarms(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Alarms of all nodes: active ones first, then the newest."""
    return {"alarms": (yield context.collector.cluster())["alarms"]}


@api.get("alarms/catalogue", answer={"alarms": "array"})
def alarm_catalogue(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Declarations of all alarms: id, category, severity, meaning, effect, remedy, and the condition of clearing."""
    return {"alarms": [kind.tree() for kind in CATALOGUE.values()]}


@api.get("events", api.Argument("after", "seconds since the epoch: the first events later than this; default: the last ones",
                                "number", api.read_time),
         api.Argument("limit", "number of events, 1 to 1000", "integer", api.integer_reader(200, 1, EVENTS_MAX)),
         answer={"events": "array", "next": "number"})
@inlineCallbacks
def events(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Events of all nodes, oldest first. `next` is `after` of the next page, null at the end."""
    after, limit, name = call.arguments["after"], call.arguments["limit"], context.collector.name
    own = {name: {"events": [{**event.tree(), "node": name} for event in context.host.node.events.last(RETAINED_MAX)]}}
    if call.caller.node:  # another node requests the events of this one
        return events_page(own, after, limit)
    query = {"limit": str(limit), **({} if after is None else {"after": repr(after)})}
    found, _ = yield context.collector.consoles.request_all(with_query("/api/v1/events", query))
    return events_page({**own, **found}, after, limit)


@api.get("node/logouts", between_nodes=True, answer={"generations": "object"})
def login_generations(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Generations of the logins of all users."""
    return {"generations": context.logins.cookies.generations.numbers}


@api.get("audit", answer={"entries": "array"})
def audit(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Audit log of this node's console, newest entry first."""
    return {"entries": list(context.audit.entries)[::-1]}


@api.get("log", api.NODE,
         api.Argument("level", "minimum severity: FATAL, ERROR, WARN, INFO, DEBUG or TRACE", read=api.text_reader(10)),
         api.Argument("lines", "maximum number of lines, 1 to 2000", "integer", api.integer_reader(200, 1, LOG_LINES_MAX)),
         answer={"lines": "array"}, place=api.at_node)
def log(context: api.OperationContext, call: api.ApiCall) -> Document:
    """The last lines of the log of a node, oldest first."""
    lines = context.host.report.tail(call.arguments["lines"], call.arguments["level"] or "TRACE")
    return {"lines": [{**line._asdict(), "node": context.collector.name} for line in lines]}


@api.get("config", api.NODE, answer={"node": "string", "config": "object"}, place=api.at_node)
def config(context: api.OperationContext, call: api.ApiCall) -> Document:
    """The active configuration of a node, with secrets masked."""
    return {"node": context.collector.name, "config": plain(context.broker.configuration.app)}


@api.get("domains", answer={"domains": "array", "missing": "object"})
@inlineCallbacks
def domains(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Domains of all nodes: domains in use with their stored messages, and domains with a configuration file."""
    found, missing, partitions = yield context.collector.request_covering("/api/v1/node/domains", {})
    own = yield context.host.run_in_steps(domain_rows_in_steps(context.broker, partitions))
    parts = {context.collector.name: to_builtins(own), **{name: answer["domains"] for name, answer in found.items()}}
    return {"domains": merge_domains(parts), "missing": missing}


@api.get("node/domains", _PARTITIONS, answer={"domains": "array"}, between_nodes=True)
@inlineCallbacks
def node_domains(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Domains of this node, with its queues and messages of some partitions."""
    partitions = call.arguments["partitions"]
    wanted = led_partitions(context.broker) if partitions is None else partitions
    return {"domains": to_builtins((yield context.host.run_in_steps(domain_rows_in_steps(context.broker, wanted))))}


@api.get("domain", api.Argument("name", "name of the domain", read=api.text_reader(api.NAME_CHARS_MAX, 1), required=True),
     api.NODE, place=api.at_node,
     answer={"name": "string", "node": "string", "config": "object", "file": "object", "problem": "string"})
def domain(context: api.OperationContext, call: api.ApiCall) -> Document:
    """The active configuration of a domain at a node, and the content of its file."""
    name = call.arguments["name"]
    found = domain_document(context.broker, context.collector.name, name)
    if found is None:
        raise Refusal(404, f"There is no domain '{name}'.", "name")
    return found


@api.get("nodes/<node>/preflight", answer={"quorumSurvives": "boolean", "moves": "array", "sessions": "integer",
                                       "warnings": "array"}, place=api.at_named_node)
def preflight(context: api.OperationContext, call: api.ApiCall) -> Document:
    """Effects of a stop of a node: moves, quorum, warnings."""
    return stopping.preflight(context.broker)


# -- storage files ----------------------------------------------------------------------------------------------------


@api.get("storage", api.NODE, answer={"node": "string", "partitions": "array"}, place=api.at_node)
def storage(context: api.OperationContext, call: api.ApiCall) -> Document:
    """The storage files of a node."""
    try:
        rows = storage_files.file_rows(context.own_cluster(), context.host.node.disk)
    except OSError as error:
        raise Refusal(409, f"The files cannot be read: {error.strerror or error}") from None
    return {"node": context.collector.name, "partitions": rows}


def _partition(context: api.OperationContext, call: api.ApiCall) -> Partition:
    return storage_files.partition_of(context.own_cluster(), call.arguments["partition"])


@api.get("storage/records", _PARTITION, api.NODE, answer={"bytes": "integer", "kinds": "array"}, place=api.at_node)
def records(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Number of records of each kind in a journal."""
    return context.host.run_in_steps(storage_files.histogram_in_steps(_partition(context, call)))


@api.get("storage/journal", _PARTITION, api.NODE,
         api.Argument("before", "offset in the file: only records before it", "integer", api.integer_reader(0, 0, 1 << 40)),
         api.Argument("limit", "maximum number of records, 1 to 200", "integer",
                      api.integer_reader(50, 1, storage_files.PAGE_RECORDS_MAX)),
         api.Argument("kind", "MESSAGE, CONFIRM, DELETION, QUEUE_OP or JOURNAL_OP", read=api.text_reader(20)),
         api.Argument("guid", "GUID of a message: only its records", read=api.text_reader(32)),
         answer={"records": "array", "next": "integer", "searched": "integer"}, place=api.at_node)
def journal(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Records of a journal, the newest first."""
    given = call.arguments
    return context.host.run_in_steps(storage_files.journal_page_in_steps(
        _partition(context, call), given["before"], given["limit"], given["kind"], given["guid"]))


@api.get("storage/compare", _PARTITION, answer={"nodes": "array", "comparedRecords": "integer", "differing": "array",
                                            "missing": "object"})
@inlineCallbacks
def compare(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Comparison of the copies of a partition by checksums of their newest records."""
    partition, own = _partition(context, call), context.collector.name
    request_all = context.collector.consoles.request_all
    query = {"partition": str(partition.partition_id)}
    reached, missing = yield request_all(with_query("/api/v1/node/reach", query))
    reached[own] = storage_files.comparable_range(partition)
    first, last = common_range(reached.values())
    query |= {"first": f"{first[0]}-{first[1]}", "last": f"{last[0]}-{last[1]}"}
    found, unresponsive = yield request_all(with_query("/api/v1/node/checks", query), seconds=ACTION_SECONDS_MAX)
    found[own] = yield context.host.run_in_steps(storage_files.checksums_in_steps(partition, first, last))
    compared, differing = differing_blocks(found)
    return {"partition": partition.partition_id, "missing": missing | unresponsive, "first": list(first), "last": list(last),
            "comparedRecords": compared, "differing": differing,
            "nodes": [{"node": node, "first": each["first"], "last": each["last"]}
                      for node, each in sorted(reached.items())]}


def common_range(reached: Iterable[Document]) -> tuple[storage_files.Psn, storage_files.Psn]:
    """Return the first and the last record that all copies have."""
    ranges = list(reached)
    firsts, lasts = ([(each[name][0], each[name][1]) for each in ranges] for name in ("first", "last"))
    return max(firsts), min(lasts)


def differing_blocks(found: Mapping[str, Document]) -> tuple[int, list[Document]]:
    """Return the number of compared records, and the blocks that differ between nodes."""
    blocks = sorted({block for each in found.values() for block in each["blocks"]}, key=_block_key)
    differing = [block for block in blocks if len({tuple(each["blocks"].get(block, ())) for each in found.values()}) > 1]
    compared = max((sum(count for count, _ in each["blocks"].values()) for each in found.values()), default=0)
    size = storage_files.BLOCK_RECORDS
    return compared, [{"lease": lease, "from": number * size, "to": (number + 1) * size - 1}
                      for lease, number in map(_block_key, differing[:DIFFERENCES_MAX])]


def _block_key(block: str) -> storage_files.Psn:
    lease, number = block.split("-")
    return int(lease), int(number)


@api.get("node/reach", _PARTITION, answer={"first": "array", "last": "array"}, between_nodes=True)
def node_reach(context: api.OperationContext, call: api.ApiCall) -> Document:
    """First and last comparable record of this node's copy."""
    return storage_files.comparable_range(_partition(context, call))


@api.get("node/checks", _PARTITION,
         api.Argument("first", "lease and sequence number of the first record, as 3-120", read=api.read_psn, required=True),
         api.Argument("last", "lease and sequence number of the last record", read=api.read_psn, required=True),
         answer={"blocks": "object"}, between_nodes=True)
def node_checks(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Checksums of this node's copy."""
    given = call.arguments
    return context.host.run_in_steps(storage_files.checksums_in_steps(
        _partition(context, call), given["first"], given["last"]))


# -- stored messages --------------------------------------------------------------------------------------------------


@api.get("messages", api.URI, api.NODE,
         api.Argument("after", "begin after the message with this GUID", read=api.text_reader(32)),
         api.Argument("limit", "maximum number of messages, 1 to 200", "integer", api.integer_reader(50, 1, MESSAGES_MAX)),
         api.Argument("guid", "only the message with this GUID", read=api.text_reader(32)),
         api.Argument("since", "seconds since the epoch: only messages stored then or later", "number", api.read_time),
         api.Argument("until", "seconds since the epoch: only messages stored earlier", "number", api.read_time),
         api.Argument("newest", "1 = the newest first", "integer"),
         answer={"messages": "array", "next": "string"}, place=api.at_holder)
def messages(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Stored messages of a queue; reading consumes nothing."""
    given = call.arguments
    return context.host.run_in_steps(stored.messages_in_steps(context.broker, given["uri"], stored.Selection(
        given["after"], given["limit"], given["guid"], given["since"], given["until"], given["newest"] in ("1", "true"))))


@api.get("message", api.URI, _GUID, api.NODE, answer={"payload": "string", "truncated": "boolean"}, place=api.at_holder)
def message(context: api.OperationContext, call: api.ApiCall) -> Any:
    """One message: payload (base64, at most 1 MiB), properties with their types, state for each app."""
    return context.host.run_in_steps(stored.message_in_steps(
        context.broker, call.arguments["uri"], call.arguments["guid"]))


@api.get("message/payload", api.URI, _GUID, api.NODE, download=True)
@inlineCallbacks
def payload(context: api.OperationContext, call: api.ApiCall) -> Any:
    """The payload of a message as a file."""
    uri, guid = call.arguments["uri"], call.arguments["guid"]
    holder = yield api.at_holder(context, call)
    if holder is None:
        steps = stored.payload_in_steps(context.broker, uri, guid)
        return api.Download(f"{guid}.bin", (yield context.host.run_in_steps(steps)))
    data, size = bytearray(), 1
    while len(data) < size:
        found = yield context.forward(holder, call, with_query("/api/v1/node/payload", {
            "uri": uri, "guid": guid, "offset": str(len(data))}))
        part, size = b64decode(found["part"]), found["size"]
        data += part
        if not part:
            break
    return api.Download(f"{guid}.bin", bytes(data))


@api.get("node/payload", api.URI, _GUID, api.Argument("offset", "first byte of the part", "integer", api.integer_reader(
    0, 0, 1 << 40)), answer={"part": "string", "size": "integer"}, between_nodes=True)
@inlineCallbacks
def node_payload(context: api.OperationContext, call: api.ApiCall) -> Any:
    """A part of the payload of a message (base64, of 4 MiB at most), and the size of the payload."""
    given = call.arguments
    found = yield context.host.run_in_steps(stored.payload_in_steps(context.broker, given["uri"], given["guid"]))
    part = found[given["offset"]:given["offset"] + PAYLOAD_PART_BYTES]
    return {"part": b64encode(part).decode(), "size": len(found)}


@api.post("subscriptions/test", UserRole.VIEWER, api.URI,
          api.Argument("expression", f"at most {EXPRESSION_CHARS_MAX} characters",
                       read=api.text_reader(EXPRESSION_CHARS_MAX)),
          replace(api.PROPERTIES, text="by name, instead of stored messages"),
          api.Argument("last", "number of newest messages, 1 to 200", "integer", api.integer_reader(50, 1, MESSAGES_MAX)),
          place=api.at_holder, is_action=False)
@inlineCallbacks
def test_subscription(context: api.OperationContext, call: api.ApiCall) -> Any:
    """Evaluate an expression against stored messages, or against properties."""
    given = call.arguments
    result = yield context.host.run_in_steps(subscriptions.evaluate_in_steps(
        context.broker, given["uri"], given["expression"], given["properties"], given["last"]))
    return {"ok": True, **result}
