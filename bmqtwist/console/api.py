"""What the operations of `routes.py` do: documents, and actions that are carried to the node that can do them.

An action is done by the node it concerns: this one, or another one that is asked in the name of whoever asked here. Both
write it into their audit logs.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from twisted.internet.defer import Deferred, inlineCallbacks

from bmqtwist.broker import local_producer
from bmqtwist.config.text import plain
from bmqtwist.console import facts, storage
from bmqtwist.console.access import Doorkeeper, Refusal, Who
from bmqtwist.console.audit import AuditLog
from bmqtwist.console.collector import Collector, CollectorHost
from bmqtwist.console.demonstration import Demonstration
from bmqtwist.console.documents import Document
from bmqtwist.console.domains import domain_document, domain_rows, merge_domains
from bmqtwist.console.merge import merge_events
from bmqtwist.console.peers import ACTION_SECONDS_MAX, PeerClient, as_body, with_query
from bmqtwist.console.restarts import RollingRestart
from bmqtwist.console.routes import (
    ALARM_CHARS_MAX,
    EXPRESSION_CHARS_MAX,
    PAYLOAD_CHARS_MAX,
    REASON_CHARS_MAX,
    Route,
    openapi,
)
from bmqtwist.console.stops import DELAY_SECONDS_MAX, DelayedStop
from bmqtwist.console.topics import QueueTopic, number, queue_uri, queues_topic, text
from bmqtwist.errors import LocalError, Refused
from bmqtwist.ids import parse_uri
from bmqtwist.link.admin import AdminAnswer
from bmqtwist.member.cluster import Cluster
from bmqtwist.report import shown
from bmqtwist.storage.partition import Partition
from bmqtwist.view import alarm_conditions, messages, stopping, subscriptions, typed_properties

MESSAGES_MAX = 200
LOG_LINES_MAX = 2000
PARTITIONS_MAX = 1_000_000
NAME_CHARS_MAX = 255
ALARM_CATEGORY_CHARS_MAX = 64
_CATEGORY = re.compile("[A-Z][A-Z0-9_]*")


class ApiHost(CollectorHost, Protocol):
    """The broker, as far as actions need it: `daemon.service.BrokerService`."""

    @property
    def report(self) -> Any:
        """The log."""

    def stop_gracefully(self, reason: str, by: str) -> None:
        """Begin the stop of the process; LocalError: it stops already."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that was admitted. `arguments`: of its path, its query or its body; `path`: below the prefix, with its
    query; `body`: as it came."""

    route: Route
    who: Who
    arguments: Mapping[str, Any]
    path: str
    body: bytes
    address: str

    @property
    def by(self) -> str:
        """Who is to blame, for events."""
        return self.who.user


@dataclass(frozen=True, slots=True)
class Download:
    """An answer that is a file."""

    name: str
    content: bytes


class Api:
    """One method for each route, by its name."""

    def __init__(self, host: ApiHost, collector: Collector, client: PeerClient, audit: AuditLog, doorkeeper: Doorkeeper,
                 prefix: str, demonstration: Demonstration) -> None:
        self._host, self._collector, self._client, self._audit = host, collector, client, audit
        self._doorkeeper, self._prefix, self._demonstration = doorkeeper, prefix, demonstration
        self.restart = RollingRestart(host.reactor, collector, self._stop_node, host.report)
        self.delayed_stop = DelayedStop(
            host.reactor, lambda: host.moment()[0], lambda reason, by: host.stop_gracefully(reason, by),
            lambda: host.node.broker.shutdown is not None, lambda text: host.report.note("stop", text))
        collector.restart = lambda: self.restart.state
        collector.delayed_stop = lambda: self.delayed_stop.state
        collector.demonstration = lambda: demonstration.state

    # -- how --------------------------------------------------------------------------------------------------------

    def perform(self, asked: Asked) -> Any:
        """Do what was asked for: a document, a Download, or a Deferred of one; Refusal, LocalError or Refused: it is not
        done."""
        return getattr(self, asked.route.name)(asked)

    def log_action(self, asked: Asked, outcome: str) -> None:
        """Into the audit log: what became of an action."""
        if asked.route.method != "POST" or asked.route.between_nodes or asked.route.name == "test_subscription":
            return
        given = asked.arguments
        target = next((str(given[name]) for name in ("node", "partition", "uri", "alarm", "domain")
                       if given.get(name) is not None),
                      "")
        if asked.route.name == "move":
            target += f" to {given.get('to')}"
        if asked.route.name == "purge" and given.get("app"):
            target += f" app {given['app']}"
        if asked.route.name == "raise_alarm":
            target = f"{given.get('severity') or 'ALARM'} {given.get('category') or 'OPERATOR'} {target}".rstrip()
        self.note(asked.who, asked.address, asked.route.name, target, str(given.get("reason") or given.get("text") or ""),
                  outcome)

    def note(self, who: Who, address: str, action: str, target: str, reason: str, outcome: str) -> None:
        """Into the audit log."""
        _, wall = self._host.moment()
        source = f"{address}, by {who.node}" if who.node else address
        self._audit.add(wall, who.user, who.role.word, source, self._collector.name, action, target, reason, outcome)

    @inlineCallbacks
    def _at(self, node: str, asked: Asked, arguments: Mapping[str, Any] | None = None) -> Any:
        """Have another node do what was asked for: its answer. Refusal as that one refuses."""
        if asked.who.node:
            raise Refusal(409, f"This is for node {node} to do; {self._collector.name} was asked by {asked.who.node}.")
        url = self._collector.urls().get(node, "")
        if not url:
            raise Refusal(409, f"Node {node or '?'} cannot be asked: its console is not known here. It is not connected, or "
                               "has no http.port." if node
                               else "No node leads that now. Try it again when the cluster is well.")
        _, wall = self._host.moment()
        body = asked.body if arguments is None else as_body(arguments)
        status, answer = yield self._client.ask(node, url, asked.route.method, asked.path, wall,
                                                body if asked.route.method == "POST" else b"", asked.who, ACTION_SECONDS_MAX)
        if status != 200:
            raise Refusal(status if 400 <= status < 500 and status != 401 else 502, str(answer.get("error") or status),
                          str(answer.get("field") or ""))
        return answer

    def _here(self, node: str) -> bool:
        return node in ("", self._collector.name)

    def _known(self, node: str) -> str:
        if node not in facts.node_names(self._host.node.broker) and node != self._collector.name:
            raise Refusal(404, f"There is no node '{node[:NAME_CHARS_MAX]}' in this cluster.", "node")
        return node

    @property
    def _cluster(self) -> Cluster | None:
        return facts.cluster_of(self._host.node.broker)

    def _member_of(self) -> Cluster:
        if self._cluster is None:
            raise Refusal(409, "This node is a member of no cluster.")
        return self._cluster

    def _in_steps(self, work: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self._host.node.broker.in_steps(work, done.callback, done.errback)
        return done

    @inlineCallbacks
    def _command(self, tree: Mapping[str, Any], asked: Asked) -> Any:
        """Run an admin command that is given as JSON: its answer. Refusal 409 if it is not carried out."""
        done: Deferred[AdminAnswer] = Deferred()
        broker = self._host.node.broker
        broker.run_command(json.dumps({**tree, "encoding": "JSON_COMPACT"}), f"console: {asked.by}", done.callback)
        broker.performer.turn_due()
        answer = yield done
        try:
            found = json.loads(answer.text)
        except ValueError:
            found = {}
        if answer.failed:
            error = found.get("error") if isinstance(found, dict) else None
            raise Refusal(409, str(error.get("message") if isinstance(error, dict) else answer.text)[:1000])
        return found

    # -- documents --------------------------------------------------------------------------------------------------

    def description(self, asked: Asked) -> Document:
        """What the API offers."""
        return openapi(self._prefix)

    def cluster(self, asked: Asked) -> Deferred[Document]:
        """All of it."""
        return self._collector.cluster()

    def node(self, asked: Asked) -> Any:
        """The part of this node."""
        return self._collector.own_part()

    def queues(self, asked: Asked) -> Any:
        """A page of queues."""
        return self._collector.queues(queues_topic(asked.arguments))

    @inlineCallbacks
    def node_queues(self, asked: Asked) -> Any:
        """The first queues of this node."""
        upto = number(asked.arguments, "upto", 100, 1, 10_000_000)
        page = queues_topic({name: asked.arguments.get(name) for name in ("filter", "sort", "order")} | {
            "offset": max(0, upto - 1), "limit": 1})
        total, entries = yield self._collector.own_rank(page)
        return {"total": total, "entries": entries}

    @inlineCallbacks
    def node_rows(self, asked: Asked) -> Any:
        """Rows of queues of this node."""
        uris = asked.arguments.get("uris")
        if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
            raise Refusal(400, "uris is an array of strings.", "uris")
        return {"rows": (yield self._collector.own_rows(uris))}

    def queue(self, asked: Asked) -> Any:
        """One queue."""
        return self._collector.queue(QueueTopic(queue_uri(asked.arguments)))

    def node_queue(self, asked: Asked) -> Any:
        """What this node knows of one queue."""
        return self._collector.own_queue(queue_uri(asked.arguments))

    def elections(self, asked: Asked) -> Document:
        """Terms and events."""
        return self._collector.elections()

    def clients(self, asked: Asked) -> Any:
        """Who is connected, of all nodes and proxies."""
        return self._collector.clients()

    def node_clients(self, asked: Asked) -> Document:
        """Who is connected here."""
        return facts.clients_part(self._host.node.broker)

    @inlineCallbacks
    def alarms(self, asked: Asked) -> Any:
        """Alarms of all nodes."""
        cluster = yield self._collector.cluster()
        return {"alarms": cluster["alarms"]}

    @inlineCallbacks
    def events(self, asked: Asked) -> Any:
        """Events of all nodes; or all that this one remembers, for another one."""
        after = _moment(asked.arguments, "after") or 0.0
        node = self._host.node
        own = [{**event.tree(), "node": self._collector.name} for event in node.events.last(500) if event.at > after]
        parts = {self._collector.name: {"events": own}}
        if not asked.who.node:
            found, _ = yield self._collector.ask_all(with_query("/api/v1/events", {"after": repr(after)}))
            parts.update(found)
        return {"events": merge_events(parts)[-1000:] if asked.who.node == "" else own}

    def audit(self, asked: Asked) -> Document:
        """Who has done what here."""
        return {"entries": list(self._audit.entries)[::-1]}

    def log(self, asked: Asked) -> Any:
        """The end of the log of a node."""
        node = text(asked.arguments, "node", NAME_CHARS_MAX)
        lines = number(asked.arguments, "lines", 200, 1, LOG_LINES_MAX)
        level = text(asked.arguments, "level", 10) or "TRACE"
        if not self._here(node):
            return self._at(self._known(node), asked)
        return {"lines": facts.log_lines(self._host.report, lines, level, self._collector.name)}

    def config(self, asked: Asked) -> Any:
        """The configuration of a node."""
        node = text(asked.arguments, "node", NAME_CHARS_MAX)
        if not self._here(node):
            return self._at(self._known(node), asked)
        configuration = self._host.node.broker.configuration
        return {"node": self._collector.name, "config": plain(configuration.app)}

    @inlineCallbacks
    def domains(self, asked: Asked) -> Any:
        """The domains of all nodes."""
        parts = {self._collector.name: domain_rows(self._host.node.broker)}
        found, missing = yield self._collector.ask_all("/api/v1/node/domains")
        parts.update({name: answer["domains"] for name, answer in found.items()})
        return {"domains": merge_domains(parts), "missing": missing}

    def node_domains(self, asked: Asked) -> Document:
        """Those of this node."""
        return {"domains": domain_rows(self._host.node.broker)}

    def domain(self, asked: Asked) -> Any:
        """The configuration of a domain at a node."""
        name, node = text(asked.arguments, "name", NAME_CHARS_MAX, 1), text(asked.arguments, "node", NAME_CHARS_MAX)
        if not self._here(node):
            return self._at(self._known(node), asked)
        found = domain_document(self._host.node.broker, self._collector.name, name)
        if found is None:
            raise Refusal(404, f"There is no domain '{name}'.", "name")
        return found

    # -- storage files ------------------------------------------------------------------------------------------------

    def storage(self, asked: Asked) -> Any:
        """The files of a node."""
        node = text(asked.arguments, "node", NAME_CHARS_MAX)
        if not self._here(node):
            return self._at(self._known(node), asked)
        try:
            return {"node": self._collector.name, "partitions": storage.file_rows(self._member_of(), self._host.node.disk)}
        except OSError as error:
            raise Refusal(409, f"The files cannot be looked at: {error.strerror or error}") from None

    def _partition(self, asked: Asked) -> Partition:
        return storage.partition_of(self._member_of(), number(asked.arguments, "partition", -1, 0, PARTITIONS_MAX))

    def records(self, asked: Asked) -> Any:
        """How many records of each kind there are."""
        node = text(asked.arguments, "node", NAME_CHARS_MAX)
        if not self._here(node):
            return self._at(self._known(node), asked)
        return self._in_steps(storage.histogram(self._partition(asked)))

    def journal(self, asked: Asked) -> Any:
        """Records one by one."""
        given, node = asked.arguments, text(asked.arguments, "node", NAME_CHARS_MAX)
        if not self._here(node):
            return self._at(self._known(node), asked)
        return self._in_steps(storage.journal_page(
            self._partition(asked), number(given, "before", 0, 0, 1 << 40),
            number(given, "limit", 50, 1, storage.PAGE_RECORDS_MAX), text(given, "kind", 20), text(given, "guid", 32)))

    @inlineCallbacks
    def compare(self, asked: Asked) -> Any:
        """Whether all copies of a partition say the same, as far as all of them go."""
        partition, own = self._partition(asked), self._collector.name
        query = {"partition": str(partition.partition_id)}
        reached, missing = yield self._collector.ask_all(with_query("/api/v1/node/reach", query))
        reached[own] = storage.reach(partition)
        first, last = storage.common(reached.values())
        query |= {"first": f"{first[0]}-{first[1]}", "last": f"{last[0]}-{last[1]}"}
        found, silent = yield self._collector.ask_all(with_query("/api/v1/node/checks", query),
                                                          seconds=ACTION_SECONDS_MAX)
        found[own] = yield self._in_steps(storage.checks(partition, first, last))
        compared, differing = storage.differences(found)
        return {"partition": partition.partition_id, "missing": missing | silent, "first": list(first), "last": list(last),
                "comparedRecords": compared, "differing": differing,
                "nodes": [{"node": node, "first": each["first"], "last": each["last"]}
                          for node, each in sorted(reached.items())]}

    def node_reach(self, asked: Asked) -> Document:
        """How far this copy goes."""
        return storage.reach(self._partition(asked))

    def node_checks(self, asked: Asked) -> Any:
        """The checks of this node."""
        return self._in_steps(storage.checks(self._partition(asked), _psn(asked, "first"), _psn(asked, "last")))

    # -- stored messages --------------------------------------------------------------------------------------------

    @inlineCallbacks
    def _holder(self, asked: Asked, uri: str) -> Any:
        """The node that is asked for stored messages; "" = this one."""
        node = text(asked.arguments, "node", NAME_CHARS_MAX)
        if node:
            return "" if self._here(node) else self._known(node)
        primary = "" if asked.who.node else (yield self._collector.find_primary(uri))
        return "" if self._here(primary) or primary not in self._collector.urls() else primary

    @inlineCallbacks
    def messages(self, asked: Asked) -> Any:
        """Stored messages of a queue."""
        given, uri = asked.arguments, queue_uri(asked.arguments)
        holder = yield self._holder(asked, uri)
        if holder:
            return (yield self._at(holder, asked))
        return (yield self._in_steps(messages.listing(self._host.node.broker, uri, messages.Selection(
            text(given, "after", 32), number(given, "limit", 50, 1, MESSAGES_MAX), text(given, "guid", 32),
            _moment(given, "since"), _moment(given, "until"), given.get("newest") in ("1", "true")))))

    @inlineCallbacks
    def message(self, asked: Asked) -> Any:
        """One whole message."""
        uri, guid = queue_uri(asked.arguments), text(asked.arguments, "guid", 32, 32)
        holder = yield self._holder(asked, uri)
        if holder:
            return (yield self._at(holder, asked))
        return (yield self._in_steps(messages.whole(self._host.node.broker, uri, guid)))

    @inlineCallbacks
    def payload(self, asked: Asked) -> Any:
        """The payload of one, from this node or, cut to what fits in an answer between nodes, from another one."""
        uri, guid = queue_uri(asked.arguments), text(asked.arguments, "guid", 32, 32)
        holder = yield self._holder(asked, uri)
        if holder:
            found = yield self._at(holder, Asked(asked.route, asked.who, asked.arguments,
                                                 asked.path.replace("/message/payload", "/message", 1), asked.body,
                                                 asked.address))
            if found["truncated"]:
                raise Refusal(409, f"The payload is long, and stored at {holder}: load it from the console of that node.")
            return Download(f"{guid}.bin", b64decode(found["payload"]))
        return Download(f"{guid}.bin", (yield self._in_steps(messages.payload(self._host.node.broker, uri, guid))))

    # -- actions ----------------------------------------------------------------------------------------------------

    def preflight(self, asked: Asked) -> Any:
        """What would happen if a node stopped."""
        node = self._known(asked.arguments["node"])
        return stopping.preflight(self._host.node.broker) if self._here(node) else self._at(node, asked)

    def stop(self, asked: Asked) -> Any:
        """Stop a node."""
        node, reason = self._known(asked.arguments["node"]), _reason(asked)
        _confirmed(asked, node)
        if not self._here(node):
            return self._at(node, asked)
        self.delayed_stop.ask(reason, asked.by, number(asked.arguments, "delay", 0, 0, DELAY_SECONDS_MAX))
        self._collector.outdate()
        return {"ok": True}

    def abort_stop(self, asked: Asked) -> Any:
        """A stop does not begin."""
        node = self._known(asked.arguments["node"])
        if not self._here(node):
            return self._at(node, asked)
        self.delayed_stop.abort(asked.by)
        self._collector.outdate()
        return {"ok": True}

    def _stop_node(self, node: str, reason: str, who: Who) -> Any:
        """For a rolling restart: stop one node."""
        if self._here(node):
            self._host.stop_gracefully(reason, who.user)
            return {"ok": True}
        _, wall = self._host.moment()
        body = as_body({"confirm": node, "reason": reason})
        return self._client.ask(node, self._collector.urls().get(node, ""), "POST", f"/api/v1/nodes/{node}/stop", wall, body,
                                who,
                                ACTION_SECONDS_MAX)

    @inlineCallbacks
    def move(self, asked: Asked) -> Any:
        """Move the primary of a partition: said to the leader."""
        number_of, to = asked.arguments["partition"], self._known(text(asked.arguments, "to", NAME_CHARS_MAX, 1))
        text(asked.arguments, "reason", REASON_CHARS_MAX)
        leader = self._collector.leader
        if not self._here(leader) or not leader:
            return (yield self._at(leader, asked))
        yield self._command(_partition_command(self._member_of().name, number_of, {"move": to}), asked)
        return {"ok": True}

    @inlineCallbacks
    def rollover(self, asked: Asked) -> Any:
        """Begin a new file set: done by the primary."""
        number_of, cluster = asked.arguments["partition"], self._cluster
        primary = self._collector.primary(number_of)
        if cluster is not None and not 0 <= number_of < len(cluster.partitions):
            raise Refusal(404, f"There is no partition {number_of}.", "partition")
        if not self._here(primary) or not primary:
            return (yield self._at(primary, asked))
        yield self._command(_partition_command(self._member_of().name, number_of, {"rollover": {}}), asked)
        return {"ok": True}

    @inlineCallbacks
    def purge(self, asked: Asked) -> Any:
        """Drop messages: done by the primary."""
        uri = queue_uri(asked.arguments)
        _reason(asked)
        _confirmed(asked, uri)
        app = text(asked.arguments, "app", NAME_CHARS_MAX)
        primary = yield self._collector.find_primary(uri)
        if not self._here(primary) or not primary:
            return (yield self._at(primary, asked))
        parsed = parse_uri(uri)
        answer = yield self._command({"domains": {"domain": {"name": parsed.qualified_domain, "command": {
            "queue": {"name": parsed.queue, "command": {"purgeAppId": app or "*"}}}}}}, asked)
        rows = answer.get("purgedQueues", {}).get("queues", [])
        errors = [row["error"]["message"] for row in rows if "error" in row]
        if errors:
            raise Refusal(409, errors[0])
        purged = [row["queue"] for row in rows]
        return {"ok": True, "messages": sum(each["numMessagesPurged"] for each in purged),
                "bytes": sum(each["numBytesPurged"] for each in purged)}

    @inlineCallbacks
    def publish(self, asked: Asked) -> Any:
        """Post test messages from here."""
        given, uri = asked.arguments, queue_uri(asked.arguments)
        payload = _payload(given)
        done: Deferred[local_producer.Published] = Deferred()
        local_producer.publish(self._host.node.broker, uri, payload, typed_properties.from_tree(_properties(given) or {}),
                               number(given, "count", 1, 1, local_producer.COUNT_MAX), asked.by, done.callback)
        result = yield done
        if result.error:
            raise Refusal(409, result.error)
        return {"ok": True, **result.tree()}

    @inlineCallbacks
    def test_subscription(self, asked: Asked) -> Any:
        """Evaluate an expression at the primary, or here against given properties."""
        given, uri = asked.arguments, queue_uri(asked.arguments)
        expression, properties = text(given, "expression", EXPRESSION_CHARS_MAX), _properties(given)
        last = number(given, "last", 50, 1, MESSAGES_MAX)
        holder = yield self._holder(asked, uri)
        if holder:
            return (yield self._at(holder, asked))
        result = yield self._in_steps(subscriptions.test(self._host.node.broker, uri, expression, properties, last))
        return {"ok": True, **result}

    def raise_alarm(self, asked: Asked) -> Any:
        """Somebody raises an alarm by hand; it names who."""
        given, node = asked.arguments, text(asked.arguments, "node", NAME_CHARS_MAX)
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
        if not self._here(node):
            return self._at(self._known(node), asked)
        report = self._host.report
        (report.panic if severity == "PANIC" else report.alarm)(
            category, "%s", f"{shown(words, ALARM_CHARS_MAX)} (raised by {shown(asked.by)})")
        self._collector.outdate()
        return {"ok": True}

    def acknowledge(self, asked: Asked) -> Any:
        """Somebody has seen an alarm."""
        return self._alarm(asked, "acknowledge")

    def clear(self, asked: Asked) -> Any:
        """What an alarm is about is over."""
        return self._alarm(asked, "clear")

    def _alarm(self, asked: Asked, what: str) -> Any:
        node, colon, ident = asked.arguments["alarm"].rpartition(":")
        if not colon:
            raise Refusal(404, "An alarm is named NODE:NUMBER.", "alarm")
        if not self._here(self._known(node)):
            return self._at(node, asked)
        getattr(self._host.node.alarms, what)(ident, asked.by)
        return {"ok": True}

    @inlineCallbacks
    def reconfigure(self, asked: Asked) -> Any:
        """Read the file of a domain again, at every node."""
        name = asked.arguments["domain"]
        text(asked.arguments, "domain", NAME_CHARS_MAX, 1)
        rows = []
        try:
            yield self._command({"domains": {"reconfigure": {"domain": name}}}, asked)
            rows.append({"node": self._collector.name, "ok": True, "error": ""})
        except Refusal as refusal:
            if asked.who.node:
                raise
            rows.append({"node": self._collector.name, "ok": False, "error": refusal.reason})
        if not asked.who.node:
            for node in self._collector.urls():
                try:
                    yield self._at(node, asked)
                    rows.append({"node": node, "ok": True, "error": ""})
                except Refusal as refusal:
                    rows.append({"node": node, "ok": False, "error": refusal.reason})
        return {"ok": all(row["ok"] for row in rows), "nodes": rows}

    @inlineCallbacks
    def rolling_restart(self, asked: Asked) -> Any:
        """Stop all nodes, one after the other."""
        reason = _reason(asked)
        cluster = yield self._collector.cluster()
        return {"ok": True, "order": self.restart.begin(cluster, reason, asked.who)}

    def abort_restart(self, asked: Asked) -> Document:
        """Nodes that have not been stopped go on."""
        self.restart.abort(asked.by)
        self._collector.outdate()
        return {"ok": True}

    def start_demo(self, asked: Asked) -> Document:
        """Begin traffic that is there to be looked at."""
        self._demonstration.start(asked.by)
        self._collector.outdate()
        return {"ok": True}

    def stop_demo(self, asked: Asked) -> Document:
        """End it."""
        self._demonstration.stop(asked.by)
        self._collector.outdate()
        return {"ok": True}

    def end_login(self, asked: Asked) -> Document:
        """A login is over: from the node where somebody has logged out."""
        _, wall = self._host.moment()
        self._doorkeeper.cookies.end(text(asked.arguments, "nonce", 64, 1), wall)
        return {"ok": True}


def _partition_command(cluster: str, number_of: int, command: Document) -> Document:
    return {"clusters": {"cluster": {"name": cluster, "command": {"storage": {"partition": {
        "partitionId": number_of, "command": command}}}}}}


def _psn(asked: Asked, name: str) -> tuple[int, int]:
    lease, _, sequence = text(asked.arguments, name, 40, 3).partition("-")
    if not (lease.isdecimal() and sequence.isdecimal()):
        raise Refusal(400, f"{name} is a lease and a sequence number, as 3-120.", name)
    return int(lease), int(sequence)


def _reason(asked: Asked) -> str:
    return text(asked.arguments, "reason", REASON_CHARS_MAX, 1)


def _confirmed(asked: Asked, wanted: str) -> None:
    if asked.arguments.get("confirm") != wanted:
        raise Refusal(400, f"To confirm, type {wanted}.", "confirm")


def _moment(arguments: Mapping[str, Any], name: str) -> float | None:
    value = arguments.get(name)
    if value is None or value == "":
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = float("nan")
    if not 0.0 <= found < 1e11:
        raise Refusal(400, f"{name} is in seconds since the epoch.", name)
    return found


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


def _properties(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    properties = arguments.get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise Refusal(400, "properties is an object.", "properties")
    return properties


REFUSALS = (LocalError, Refused)


def reason_of(error: Exception) -> str:
    """What a refusal of the broker says."""
    return error.message if isinstance(error, Refused) else str(error)


