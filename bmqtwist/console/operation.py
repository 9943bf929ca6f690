"""Operations of the JSON API: declaration, requests, and execution.

The node that a request concerns performs it; the node that receives the request forwards it in the name of the user. Both
write actions into their audit logs. `server.py` calls `perform`; the operations are in `documents_api.py` (read) and
`actions.py` (change), their table in `routes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace
from twisted.internet.defer import Deferred, inlineCallbacks

from bmqtwist.console.access import Caller, Logins, Refusal, UserRole
from bmqtwist.console.audit import AuditLog
from bmqtwist.console.collector import DocumentCollector
from bmqtwist.console.consoles import ACTION_SECONDS_MAX, PeerClient, as_body
from bmqtwist.console.demonstration import Demonstration
from bmqtwist.console.stops import DelayedStop, RollingRestart
from bmqtwist.console.topics import queue_uri, read_number, read_text
from bmqtwist.member.cluster import Cluster
from bmqtwist.report import shown
from bmqtwist.steps import Steps
from bmqtwist.view.cluster_facts import cluster_of, node_names

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.daemon.service import BrokerService

NAME_CHARS_MAX = 255
REASON_CHARS_MAX = 500


Run = Callable[["OperationContext", "ApiCall"], Any]


class Argument(Struct, frozen=True):
    """Argument of a query or body. `kind`: JSON type; `read` returns its value from the arguments and its name or raises
    Refusal 400, None = unchanged."""

    name: str
    text: str
    kind: str = "string"
    read: Callable[[Mapping[str, Any], str], Any] | None = None
    required: bool = False
    nullable: bool = False


class Route(Struct, frozen=True):
    """Operation. `path`: Klein's form; `run` returns a document, a Download or a Deferred; `place` returns the performing
    node (a function of this module), None = the node that receives the request; `confirm`: the argument that the user
    repeats; `between_nodes`: only for nodes; `is_action`: a POST that is written into the audit log."""

    name: str
    method: str
    path: str
    role: UserRole
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
    """Declare the decorated function as a read operation; its docstring is the description."""
    return lambda run: Route(run.__name__, "GET", f"/api/v1/{path}", UserRole.VIEWER, " ".join((run.__doc__ or "").split()),
                             run, arguments, **more)


def post(path: str, role: UserRole, *arguments: Argument, answer: Mapping[str, str] = MappingProxyType({}), **more: Any
         ) -> Callable[[Run], Route]:
    """Declare the decorated function as an operation that changes state or has a body."""
    return lambda run: replace(get(path, *arguments, answer={"ok": "boolean", **answer}, **more)(run), method="POST",
                               role=role)


class ApiCall(Struct, frozen=True):
    """Authorized request. `arguments`: of path, query or body; `path`: below the prefix, with query."""

    route: Route
    caller: Caller
    arguments: Mapping[str, Any]
    path: str
    body: bytes
    address: str


class Download(Struct, frozen=True):
    """Answer of an operation: a file to download."""

    name: str
    content: bytes


class OperationContext(Struct, frozen=True):
    """Context of every operation: broker, collector, audit log and the other parts of the console; selection of nodes."""

    host: BrokerService
    collector: DocumentCollector
    client: PeerClient
    audit: AuditLog
    logins: Logins
    demonstration: Demonstration
    restart: RollingRestart
    delayed_stop: DelayedStop
    prefix: str

    @property
    def broker(self) -> Broker:
        return self.host.node.broker

    @inlineCallbacks
    def forward(self, node: str, call: ApiCall, path: str = "") -> Any:
        """Return the answer of another node to the same request. Raises the Refusal of that node."""
        if call.caller.node:
            raise Refusal(409, f"Node {node} performs this request, but node {call.caller.node} sent it to "
                          f"{self.collector.name}.")
        url = self.collector.consoles.urls().get(node, "")
        if not url:
            raise Refusal(409, f"The console of node {node} is unknown: it is not connected, or has no http.port." if node
                               else "There is no primary or leader for this now. Try again when the cluster is healthy.")
        method = call.route.method
        body = call.body if method == "POST" else b""
        status, answer = yield self.client.request(node, url, method, path or call.path, body, call.caller,
                                                   ACTION_SECONDS_MAX)
        if status != 200:
            raise Refusal(status if 400 <= status < 500 and status != 401 else 502, str(answer.get("error") or status),
                          str(answer.get("field") or ""))
        return answer

    def is_here(self, node: str) -> bool:
        """Return whether a name is that of this node, or empty."""
        return node in ("", self.collector.name)

    def check_node(self, node: str) -> str:
        """Return the name of a node of the cluster. Raises Refusal 404."""
        if node not in node_names(self.broker) and node != self.collector.name:
            raise Refusal(404, f"There is no node '{node[:NAME_CHARS_MAX]}' in this cluster.", "node")
        return node

    def own_cluster(self) -> Cluster:
        """Return the cluster of this node. Raises Refusal 409."""
        cluster = cluster_of(self.broker)
        if cluster is None:
            raise Refusal(409, "This node is a member of no cluster.")
        return cluster

    def run_admin(self, call: ApiCall, run: Callable[..., Any], *arguments: object) -> Deferred[Any]:
        """Return the result of an admin operation when its changes are committed. Raises LocalError, Refused."""
        node, done, source = self.host.node, Deferred[Any](), f"console: {call.caller.user}"

        def work() -> Steps[Any]:
            result = run(replace(node.admin, source=source), *arguments)
            return (yield from result) if isinstance(result, Generator) else result
        command = shown(" ".join(map(str, (run.__name__, *arguments))))
        node.broker.report.info("Received command '%s' [source: %s]", command, source)
        node.broker.commands.run_job(work(), done.callback, done.errback)
        node.broker.loop.performer.request_turn()
        return done

    def stop_node(self, node: str, reason: str, caller: Caller) -> Any:
        """Stop a node for a rolling restart."""
        if self.is_here(node):
            self.host.stop_gracefully(reason, caller.user)
            return {"ok": True}
        return self.client.request(node, self.collector.consoles.urls().get(node, ""), "POST", f"/api/v1/nodes/{node}/stop",
                                   as_body({"confirm": node, "reason": reason}), caller, ACTION_SECONDS_MAX)


# -- performing node: None = this node, "" = none, else the name of another node ---------------------------------------


def _unless_here(context: OperationContext, node: str) -> str | None:
    return node if not node or not context.is_here(node) else None


def at_node(context: OperationContext, call: ApiCall) -> str | None:
    """Return the node that the request names; by default this node."""
    node = call.arguments["node"]
    return None if context.is_here(node) else context.check_node(node)


def at_named_node(context: OperationContext, call: ApiCall) -> str | None:
    """Return the node in the path."""
    return _unless_here(context, context.check_node(call.arguments["node"]))


def at_alarm(context: OperationContext, call: ApiCall) -> str | None:
    """Return the node that raised an alarm, from the id of the alarm. Raises Refusal 404."""
    node, colon, _ = call.arguments["alarm"].rpartition(":")
    if not colon:
        raise Refusal(404, "The id of an alarm has the form NODE:NUMBER.", "alarm")
    return _unless_here(context, context.check_node(node))


def at_leader(context: OperationContext, call: ApiCall) -> str | None:
    """Return the leader of the cluster."""
    return _unless_here(context, context.collector.leader)


def at_partition_primary(context: OperationContext, call: ApiCall) -> str | None:
    """Return the primary of a partition. Raises Refusal 404."""
    number, cluster = call.arguments["partition"], cluster_of(context.broker)
    if cluster is not None and not 0 <= number < len(cluster.partitions):
        raise Refusal(404, f"There is no partition {number}.", "partition")
    return _unless_here(context, context.collector.primary(number))


@inlineCallbacks
def at_queue_primary(context: OperationContext, call: ApiCall) -> Any:
    """Return the primary of a queue."""
    return _unless_here(context, (yield context.collector.find_primary(call.arguments["uri"])))


@inlineCallbacks
def at_holder(context: OperationContext, call: ApiCall) -> Any:
    """Return the node to read stored messages from: the one that the request names, else the primary, else this node."""
    uri, node = call.arguments["uri"], call.arguments.get("node")
    if node:
        return None if context.is_here(node) else context.check_node(node)
    primary = "" if call.caller.node else (yield context.collector.find_primary(uri))
    return None if context.is_here(primary) or primary not in context.collector.consoles.urls() else primary


# -- arguments --------------------------------------------------------------------------------------------------------


def integer_reader(default: int, low: int, high: int) -> Callable[[Mapping[str, Any], str], int]:
    """Return a reader of whole numbers."""
    return lambda arguments, name: read_number(arguments, name, default, low, high)


def text_reader(most: int, least: int = 0) -> Callable[[Mapping[str, Any], str], str]:
    """Return a reader of texts of `least` to `most` characters."""
    return lambda arguments, name: read_text(arguments, name, most, least)


def read_time(arguments: Mapping[str, Any], name: str) -> float | None:
    """Read seconds since the epoch. Raises Refusal 400."""
    value = arguments.get(name)
    if value is None or value == "":
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = float("nan")
    if not 0.0 <= found < 1e11:
        raise Refusal(400, f"{name} must be in seconds since the epoch.", name)
    return found


def read_psn(arguments: Mapping[str, Any], name: str) -> tuple[int, int]:
    """Read a lease and a sequence number. Raises Refusal 400."""
    lease, _, sequence = read_text(arguments, name, 40, 3).partition("-")
    if not (lease.isdecimal() and sequence.isdecimal()):
        raise Refusal(400, f"{name} must be a lease and a sequence number, as 3-120.", name)
    return int(lease), int(sequence)


def read_object(arguments: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Read a JSON object. Raises Refusal 400."""
    found = arguments.get(name)
    if found is not None and not isinstance(found, dict):
        raise Refusal(400, f"{name} must be an object.", name)
    return found


URI = Argument("uri", "URI of a queue, as bmq://domain/queue", read=queue_uri, required=True)
NODE = Argument("node", "name of the node; absent = the node that serves the request, or the primary of the queue",
                read=text_reader(NAME_CHARS_MAX))
REASON = Argument("reason", "reason, for the audit log", read=text_reader(REASON_CHARS_MAX, 1), required=True)
OPTIONAL_REASON = Argument("reason", "reason, for the audit log", read=text_reader(REASON_CHARS_MAX))
PROPERTIES = Argument("properties", "by name: {type, value}", "object", read_object, nullable=True)


# -- requests ---------------------------------------------------------------------------------------------------------


@inlineCallbacks
def perform(context: OperationContext, call: ApiCall) -> Any:
    """Perform a request at the node that it concerns and return a document or a Download. Raises Refusal, LocalError or
    Refused."""
    route, given = call.route, call.arguments
    read = {each.name: each.read(given, each.name) for each in route.arguments if each.read is not None}
    if route.confirm and given.get("confirm") != given.get(route.confirm):
        raise Refusal(400, f"To confirm, type {given.get(route.confirm)}.", "confirm")
    call = replace(call, arguments={**given, **read})
    node = (yield route.place(context, call)) if route.place is not None else None
    if node is not None:
        return (yield context.forward(node, call))
    return (yield route.run(context, call))


def audit_call(context: OperationContext, call: ApiCall, outcome: str) -> None:
    """Write a call and its outcome into the audit log if it is an action of a user."""
    if call.route.method != "POST" or call.route.between_nodes or not call.route.is_action:
        return
    given, name = call.arguments, call.route.name
    target = target_of(given)
    if name == "move":
        target += f" to {given.get('to')}"
    if name == "purge" and given.get("app"):
        target += f" app {given['app']}"
    if name == "raise_alarm":
        target = f"{given.get('severity') or 'ALARM'} {given.get('category') or 'OPERATOR'} {target}".rstrip()
    reason = str(given.get("reason") or given.get("text") or "")
    add_audit_entry(context, call.caller, call.address, name, target, outcome, reason)


def target_of(arguments: Mapping[str, Any]) -> str:
    """Return what an action concerns, from its arguments."""
    return next((str(arguments[each]) for each in ("node", "partition", "uri", "alarm", "domain")
                 if isinstance(arguments.get(each), (str, int))), "")


def add_audit_entry(context: OperationContext, caller: Caller, address: str, action: str, target: str, outcome: str,
                    reason: str = "") -> None:
    """Write an action into the audit log; an action that another node forwarded names that node. Refusals, logins and
    logouts are limited per user, because they need no right."""
    source = f"{address}, by {caller.node}" if caller.node else address
    kind = "refused" if outcome != "ok" else action if action in ("login", "logout") else ""
    context.audit.add({
        "at": round(context.host.present_time()[1], 3), "user": shown(caller.user), "role": caller.role.label,
        "from": shown(source), "node": context.collector.name, "action": action, "target": target, "reason": reason,
        "outcome": outcome}, f"{caller.user} {kind}" if kind else "")
