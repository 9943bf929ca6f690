"""Operations of the JSON API that read: documents of the cluster and of this node, storage files, stored messages."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from twisted.internet.defer import inlineCallbacks

from bmqtwist.config.text import plain
from bmqtwist.console import copies
from bmqtwist.console.access import Refusal
from bmqtwist.console.documents import Document
from bmqtwist.console.merge import merge_domains, merge_events
from bmqtwist.console.operation import (
    NAME_CHARS_MAX,
    Asked,
    Download,
    Operations,
    at_holder,
    moment,
    partition_number,
    properties_of,
    psn,
)
from bmqtwist.console.peers import ACTION_SECONDS_MAX, with_query
from bmqtwist.console.topics import number, queue_uri, queues_topic, text
from bmqtwist.storage.partition import Partition
from bmqtwist.view import messages, node_facts, stopping, storage_files, subscriptions
from bmqtwist.view.domain_facts import domain_document, domain_rows

MESSAGES_MAX = 200
LOG_LINES_MAX = 2000
EVENTS_MAX = 1000
EXPRESSION_CHARS_MAX = 4096


@inlineCallbacks
def node_queues(operations: Operations, asked: Asked) -> Any:
    """The first queues of this node."""
    upto = number(asked.arguments, "upto", 100, 1, 10_000_000)
    page = queues_topic({name: asked.arguments.get(name) for name in ("filter", "sort", "order")} | {
        "offset": max(0, upto - 1), "limit": 1})
    total, entries = yield operations.collector.local.rank(page)
    return {"total": total, "entries": entries}


@inlineCallbacks
def node_rows(operations: Operations, asked: Asked) -> Any:
    """Rows of queues of this node."""
    uris = asked.arguments.get("uris")
    if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
        raise Refusal(400, "uris is an array of strings.", "uris")
    return {"rows": (yield operations.collector.local.rows(uris))}


def node_clients(operations: Operations, asked: Asked) -> Document:
    """Connected clients of this node."""
    return node_facts.clients_part(operations.host.node.broker)


@inlineCallbacks
def alarms(operations: Operations, asked: Asked) -> Any:
    """Alarms of all nodes."""
    return {"alarms": (yield operations.collector.cluster())["alarms"]}


@inlineCallbacks
def events(operations: Operations, asked: Asked) -> Any:
    """Events of all nodes; or all that this one remembers, for another one."""
    after, name = moment(asked.arguments, "after") or 0.0, operations.collector.name
    own = [{**event.tree(), "node": name} for event in operations.host.node.events.last(500) if event.at > after]
    if asked.who.node:
        return {"events": own}
    found, _ = yield operations.collector.consoles.ask_all(with_query("/api/v1/events", {"after": repr(after)}))
    return {"events": merge_events({name: {"events": own}, **found})[-EVENTS_MAX:]}


def log(operations: Operations, asked: Asked) -> Document:
    """The end of the log."""
    lines = number(asked.arguments, "lines", 200, 1, LOG_LINES_MAX)
    level, name = text(asked.arguments, "level", 10) or "TRACE", operations.collector.name
    return {"lines": [{**line._asdict(), "node": name} for line in operations.host.report.tail(lines, level)]}


def config(operations: Operations, asked: Asked) -> Document:
    """The configuration."""
    return {"node": operations.collector.name, "config": plain(operations.host.node.broker.configuration.app)}


@inlineCallbacks
def domains(operations: Operations, asked: Asked) -> Any:
    """The domains of all nodes."""
    found, missing = yield operations.collector.consoles.ask_all("/api/v1/node/domains")
    parts = {operations.collector.name: domain_rows(operations.host.node.broker),
             **{name: answer["domains"] for name, answer in found.items()}}
    return {"domains": merge_domains(parts), "missing": missing}


def node_domains(operations: Operations, asked: Asked) -> Document:
    """The domains of this node."""
    return {"domains": domain_rows(operations.host.node.broker)}


def domain(operations: Operations, asked: Asked) -> Document:
    """The configuration of a domain."""
    name = text(asked.arguments, "name", NAME_CHARS_MAX, 1)
    found = domain_document(operations.host.node.broker, operations.collector.name, name)
    if found is None:
        raise Refusal(404, f"There is no domain '{name}'.", "name")
    return found


def preflight(operations: Operations, asked: Asked) -> Document:
    """What the stop of this node would mean."""
    return stopping.preflight(operations.host.node.broker)


# -- storage files ----------------------------------------------------------------------------------------------------


def list_files(operations: Operations, asked: Asked) -> Document:
    """The storage files."""
    try:
        rows = storage_files.file_rows(operations.member_of(), operations.host.node.disk)
    except OSError as error:
        raise Refusal(409, f"The files cannot be looked at: {error.strerror or error}") from None
    return {"node": operations.collector.name, "partitions": rows}


def _partition(operations: Operations, asked: Asked) -> Partition:
    return storage_files.partition_of(operations.member_of(), partition_number(asked))


def records(operations: Operations, asked: Asked) -> Any:
    """How many records of each kind there are."""
    return operations.in_steps(storage_files.histogram(_partition(operations, asked)))


def journal(operations: Operations, asked: Asked) -> Any:
    """Records one by one."""
    given = asked.arguments
    return operations.in_steps(storage_files.journal_page(
        _partition(operations, asked), number(given, "before", 0, 0, 1 << 40),
        number(given, "limit", 50, 1, storage_files.PAGE_RECORDS_MAX), text(given, "kind", 20), text(given, "guid", 32)))


@inlineCallbacks
def compare(operations: Operations, asked: Asked) -> Any:
    """Whether all copies of a partition say the same, as far as all of them go."""
    partition, own, ask_all = _partition(operations, asked), operations.collector.name, operations.collector.consoles.ask_all
    query = {"partition": str(partition.partition_id)}
    reached, missing = yield ask_all(with_query("/api/v1/node/reach", query))
    reached[own] = storage_files.reach(partition)
    first, last = copies.common(reached.values())
    query |= {"first": f"{first[0]}-{first[1]}", "last": f"{last[0]}-{last[1]}"}
    found, silent = yield ask_all(with_query("/api/v1/node/checks", query), seconds=ACTION_SECONDS_MAX)
    found[own] = yield operations.in_steps(storage_files.checks(partition, first, last))
    compared, differing = copies.differences(found)
    return {"partition": partition.partition_id, "missing": missing | silent, "first": list(first), "last": list(last),
            "comparedRecords": compared, "differing": differing,
            "nodes": [{"node": node, "first": each["first"], "last": each["last"]}
                      for node, each in sorted(reached.items())]}


def node_reach(operations: Operations, asked: Asked) -> Document:
    """How far this copy goes."""
    return storage_files.reach(_partition(operations, asked))


def node_checks(operations: Operations, asked: Asked) -> Any:
    """The checks of this node."""
    return operations.in_steps(storage_files.checks(_partition(operations, asked), psn(asked, "first"), psn(asked, "last")))


# -- stored messages --------------------------------------------------------------------------------------------------


def list_messages(operations: Operations, asked: Asked) -> Any:
    """Stored messages of a queue."""
    given = asked.arguments
    return operations.in_steps(messages.listing(operations.host.node.broker, queue_uri(given), messages.Selection(
        text(given, "after", 32), number(given, "limit", 50, 1, MESSAGES_MAX), text(given, "guid", 32),
        moment(given, "since"), moment(given, "until"), given.get("newest") in ("1", "true"))))


def message(operations: Operations, asked: Asked) -> Any:
    """One whole message."""
    guid = text(asked.arguments, "guid", 32, 32)
    return operations.in_steps(messages.whole(operations.host.node.broker, queue_uri(asked.arguments), guid))


@inlineCallbacks
def payload(operations: Operations, asked: Asked) -> Any:
    """The payload of one, from this node or, cut to what fits in an answer between nodes, from another one."""
    uri, guid = queue_uri(asked.arguments), text(asked.arguments, "guid", 32, 32)
    holder = yield at_holder(operations, asked)
    if holder is None:
        found = yield operations.in_steps(messages.payload(operations.host.node.broker, uri, guid))
        return Download(f"{guid}.bin", found)
    found = yield operations.forward(holder, asked, asked.path.replace("/message/payload", "/message", 1))
    if found["truncated"]:
        raise Refusal(409, f"The payload is long, and stored at {holder}: load it from the console of that node.")
    return Download(f"{guid}.bin", b64decode(found["payload"]))


@inlineCallbacks
def test_subscription(operations: Operations, asked: Asked) -> Any:
    """An expression against stored messages, or against given properties."""
    given = asked.arguments
    result = yield operations.in_steps(subscriptions.test(
        operations.host.node.broker, queue_uri(given), text(given, "expression", EXPRESSION_CHARS_MAX), properties_of(given),
        number(given, "last", 50, 1, MESSAGES_MAX)))
    return {"ok": True, **result}
