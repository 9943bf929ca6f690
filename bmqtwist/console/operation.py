"""Operations of the JSON API: their declaration, a request for one, and what they work on.

A request is done by the node that it concerns, this one or another one that is asked in the name of the user. Both write an
action into their audit logs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace
from twisted.internet.defer import Deferred, inlineCallbacks

from bmqtwist.console.access import Doorkeeper, Refusal, Role, Who
from bmqtwist.console.audit import AuditLog
from bmqtwist.console.collector import Collector
from bmqtwist.console.consoles import ACTION_SECONDS_MAX, PeerClient, as_body
from bmqtwist.console.demonstration import Demonstration
from bmqtwist.console.stops import DelayedStop, RollingRestart
from bmqtwist.console.topics import number, queue_uri, text
from bmqtwist.member.cluster import Cluster
from bmqtwist.report import shown
from bmqtwist.steps import Steps
from bmqtwist.view.cluster_facts import cluster_of, node_names

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.daemon.service import BrokerService

NAME_CHARS_MAX = 255
REASON_CHARS_MAX = 500


Run = Callable[["Operations", "Asked"], Any]


class Argument(Struct, frozen=True):
    """One argument, of a query or of a body. `kind`: its type in JSON; `read`: its value, by the arguments and its name, or
    Refusal 400; None = as it came."""

    name: str
    text: str
    kind: str = "string"
    read: Callable[[Mapping[str, Any], str], Any] | None = None
    required: bool = False
    nullable: bool = False


class Route(Struct, frozen=True):
    """One operation. `path`: as Klein has it; `run` gives a document, a Download or a Deferred of one; `place`: the node
    that does it, as a function of this module, None = the one that is asked; `confirm`: the argument that is typed again;
    `between_nodes`: nodes alone ask for it; `is_action`: a POST of a user that is written into the audit log."""

    name: str
    method: str
    path: str
    role: Role
    text: str
    run: Run
    arguments: tuple[Argument, ...] = ()
    answer: Mapping[str, str] = field(default_factory=dict)
    place: Run | None = None
    confirm: str = ""
    between_nodes: bool = False
    download: bool = False
    is_action: bool = True


def get(path: str, *arguments: Argument, **more: Any) -> Callable[[Run], Route]:
    """Declares the decorated function as an operation that reads; its docstring is the description."""
    return lambda run: Route(run.__name__, "GET", f"/api/v1/{path}", Role.VIEWER, " ".join((run.__doc__ or "").split()), run,
                             arguments, **more)


def post(path: str, role: Role, *arguments: Argument, answer: Mapping[str, str] = MappingProxyType({}), **more: Any
         ) -> Callable[[Run], Route]:
    """Likewise, one that changes something, or has a body."""
    return lambda run: replace(get(path, *arguments, answer={"ok": "boolean", **answer}, **more)(run), method="POST",
                               role=role)


class Asked(Struct, frozen=True):
    """One request that was admitted. `arguments`: of its path, its query or its body; `path`: below the prefix, with its
    query; `body`: as it came."""

    route: Route
    who: Who
    arguments: Mapping[str, Any]
    path: str
    body: bytes
    address: str


class Download(Struct, frozen=True):
    name: str
    content: bytes


class Operations(Struct, frozen=True):
    host: BrokerService
    collector: Collector
    client: PeerClient
    audit: AuditLog
    doorkeeper: Doorkeeper
    demonstration: Demonstration
    restart: RollingRestart
    delayed_stop: DelayedStop
    prefix: str

    @property
    def broker(self) -> Broker:
        return self.host.node.broker

    @inlineCallbacks
    def forward(self, node: str, asked: Asked, path: str = "") -> Any:
        """The answer of another node to the same request. Refusal as that one refuses."""
        if asked.who.node:
            raise Refusal(409, f"This is for node {node} to do; {self.collector.name} was asked by {asked.who.node}.")
        url = self.collector.consoles.urls().get(node, "")
        if not url:
            raise Refusal(409, f"Node {node or '?'} cannot be asked: its console is not known here. It is not connected, or "
                               "has no http.port." if node
                               else "No node leads that now. Try it again when the cluster is well.")
        method = asked.route.method
        body = asked.body if method == "POST" else b""
        status, answer = yield self.client.ask(node, url, method, path or asked.path, body, asked.who, ACTION_SECONDS_MAX)
        if status != 200:
            raise Refusal(status if 400 <= status < 500 and status != 401 else 502, str(answer.get("error") or status),
                          str(answer.get("field") or ""))
        return answer

    def is_here(self, node: str) -> bool:
        """Whether a node is this one; "" is."""
        return node in ("", self.collector.name)

    def known(self, node: str) -> str:
        """The name of a node; Refusal 404."""
        if node not in node_names(self.broker) and node != self.collector.name:
            raise Refusal(404, f"There is no node '{node[:NAME_CHARS_MAX]}' in this cluster.", "node")
        return node

    def member_of(self) -> Cluster:
        """The cluster of this node; Refusal 409."""
        cluster = cluster_of(self.broker)
        if cluster is None:
            raise Refusal(409, "This node is a member of no cluster.")
        return cluster

    def operate(self, asked: Asked, run: Callable[..., Any], *arguments: object) -> Deferred[Any]:
        """The result of an admin operation, once what it changed is committed. LocalError, Refused."""
        node, done, source = self.host.node, Deferred[Any](), f"console: {asked.who.user}"

        def work() -> Steps[Any]:
            result = run(replace(node.admin, source=source), *arguments)
            return (yield from result) if isinstance(result, Generator) else result
        words = shown(" ".join(map(str, (run.__name__, *arguments))))
        node.broker.report.info("Received command '%s' [source: %s]", words, source)
        node.broker.commands.carry_out(work(), done.callback, done.errback)
        node.broker.loop.performer.turn_due()
        return done

    def stop_node(self, node: str, reason: str, who: Who) -> Any:
        """For a rolling restart: stop one node."""
        if self.is_here(node):
            self.host.stop_gracefully(reason, who.user)
            return {"ok": True}
        return self.client.ask(node, self.collector.consoles.urls().get(node, ""), "POST", f"/api/v1/nodes/{node}/stop",
                               as_body({"confirm": node, "reason": reason}), who, ACTION_SECONDS_MAX)


# -- places: None = here, "" = nowhere, else the name of another node --------------------------------------------------


def _unless_here(operations: Operations, node: str) -> str | None:
    return node if not node or not operations.is_here(node) else None


def at_node(operations: Operations, asked: Asked) -> str | None:
    """The node that the request names; none = here."""
    node = asked.arguments["node"]
    return None if operations.is_here(node) else operations.known(node)


def at_named_node(operations: Operations, asked: Asked) -> str | None:
    return _unless_here(operations, operations.known(asked.arguments["node"]))


def at_alarm(operations: Operations, asked: Asked) -> str | None:
    node, colon, _ = asked.arguments["alarm"].rpartition(":")
    if not colon:
        raise Refusal(404, "An alarm is named NODE:NUMBER.", "alarm")
    return _unless_here(operations, operations.known(node))


def at_leader(operations: Operations, asked: Asked) -> str | None:
    return _unless_here(operations, operations.collector.leader)


def at_partition_primary(operations: Operations, asked: Asked) -> str | None:
    """The primary of a partition; Refusal 404."""
    number_of, cluster = asked.arguments["partition"], cluster_of(operations.broker)
    if cluster is not None and not 0 <= number_of < len(cluster.partitions):
        raise Refusal(404, f"There is no partition {number_of}.", "partition")
    return _unless_here(operations, operations.collector.primary(number_of))


@inlineCallbacks
def at_queue_primary(operations: Operations, asked: Asked) -> Any:
    return _unless_here(operations, (yield operations.collector.find_primary(asked.arguments["uri"])))


@inlineCallbacks
def at_holder(operations: Operations, asked: Asked) -> Any:
    """The node that is asked for stored messages: the one that the request names, else the primary, else this one."""
    uri, node = asked.arguments["uri"], asked.arguments.get("node")
    if node:
        return None if operations.is_here(node) else operations.known(node)
    primary = "" if asked.who.node else (yield operations.collector.find_primary(uri))
    return None if operations.is_here(primary) or primary not in operations.collector.consoles.urls() else primary


# -- arguments --------------------------------------------------------------------------------------------------------


def whole(default: int, low: int, high: int) -> Callable[[Mapping[str, Any], str], int]:
    """Reads a whole number."""
    return lambda arguments, name: number(arguments, name, default, low, high)


def words(most: int, least: int = 0) -> Callable[[Mapping[str, Any], str], str]:
    """Reads a text of so many characters."""
    return lambda arguments, name: text(arguments, name, most, least)


def moment(arguments: Mapping[str, Any], name: str) -> float | None:
    """Seconds since the epoch; Refusal 400."""
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


def psn(arguments: Mapping[str, Any], name: str) -> tuple[int, int]:
    """A lease and a sequence number; Refusal 400."""
    lease, _, sequence = text(arguments, name, 40, 3).partition("-")
    if not (lease.isdecimal() and sequence.isdecimal()):
        raise Refusal(400, f"{name} is a lease and a sequence number, as 3-120.", name)
    return int(lease), int(sequence)


def mapping(arguments: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """An object of JSON; Refusal 400."""
    found = arguments.get(name)
    if found is not None and not isinstance(found, dict):
        raise Refusal(400, f"{name} is an object.", name)
    return found


URI = Argument("uri", "URI of a queue, as bmq://domain/queue", read=queue_uri, required=True)
NODE = Argument("node", "name of the node that is asked; absent = the one that serves, or the primary of the queue",
                read=words(NAME_CHARS_MAX))
REASON = Argument("reason", "why, for the audit log", read=words(REASON_CHARS_MAX, 1), required=True)
WHY = Argument("reason", "why, for the audit log", read=words(REASON_CHARS_MAX))
PROPERTIES = Argument("properties", "by name: {type, value}", "object", mapping, nullable=True)


# -- requests ---------------------------------------------------------------------------------------------------------


@inlineCallbacks
def perform(operations: Operations, asked: Asked) -> Any:
    """Do what was asked for, at the node that it concerns: a document or a Download; Refusal, LocalError or Refused: it is
    not done."""
    route, given = asked.route, asked.arguments
    read = {each.name: each.read(given, each.name) for each in route.arguments if each.read is not None}
    if route.confirm and given.get("confirm") != given.get(route.confirm):
        raise Refusal(400, f"To confirm, type {given.get(route.confirm)}.", "confirm")
    asked = replace(asked, arguments={**given, **read})
    node = (yield route.place(operations, asked)) if route.place is not None else None
    if node is not None:
        return (yield operations.forward(node, asked))
    return (yield route.run(operations, asked))


def log_action(operations: Operations, asked: Asked, outcome: str) -> None:
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
    note(operations, asked.who, asked.address, name, target, outcome, str(given.get("reason") or given.get("text") or ""))


def note(operations: Operations, who: Who, address: str, action: str, target: str, outcome: str, reason: str = "") -> None:
    source = f"{address}, by {who.node}" if who.node else address
    operations.audit.add({
        "at": round(operations.host.moment()[1], 3), "user": shown(who.user), "role": who.role.word, "from": shown(source),
        "node": operations.collector.name, "action": action, "target": target, "reason": reason, "outcome": outcome})
