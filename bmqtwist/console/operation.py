"""Declaration of an operation of the JSON API, a request for one, and what operations work on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, inlineCallbacks

from bmqtwist.console.access import Doorkeeper, Refusal, Role, Who
from bmqtwist.console.audit import AuditLog
from bmqtwist.console.collector import Collector
from bmqtwist.console.demonstration import Demonstration
from bmqtwist.console.peers import ACTION_SECONDS_MAX, PeerClient, as_body
from bmqtwist.console.restarts import RollingRestart
from bmqtwist.console.stops import DelayedStop
from bmqtwist.console.topics import number, queue_uri, text
from bmqtwist.loop.scheduler import Priority
from bmqtwist.member.cluster import Cluster
from bmqtwist.report import shown
from bmqtwist.steps import Steps
from bmqtwist.view.cluster_facts import cluster_of, node_names

if TYPE_CHECKING:
    from bmqtwist.daemon.service import BrokerService

NAME_CHARS_MAX = 255
REASON_CHARS_MAX = 500


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument, of a query or of a body. `kind`: string, integer, boolean or object."""

    name: str
    text: str
    kind: str = "string"
    required: bool = False
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One operation. `path`: as Klein has it; `run` gives a document, a Download or a Deferred of one; `place`: the node
    that does it, as a function of this module, None = the one that is asked; `confirm`: the argument that is typed again;
    `between_nodes`: nodes alone ask for it; `is_action`: a POST of a user that is written into the audit log."""

    name: str
    method: str
    path: str
    role: Role
    text: str
    run: Callable[[Operations, Asked], Any]
    arguments: tuple[Argument, ...] = ()
    answer: tuple[tuple[str, str], ...] = ()
    place: Callable[[Operations, Asked], Any] | None = None
    confirm: str = ""
    between_nodes: bool = False
    download: bool = False
    is_action: bool = True


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
        """The user, for events."""
        return self.who.user


@dataclass(frozen=True, slots=True)
class Download:
    """An answer that is a file."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Operations:
    """What operations work on."""

    host: BrokerService
    collector: Collector
    client: PeerClient
    audit: AuditLog
    doorkeeper: Doorkeeper
    demonstration: Demonstration
    restart: RollingRestart
    delayed_stop: DelayedStop
    prefix: str

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
        if node not in node_names(self.host.node.broker) and node != self.collector.name:
            raise Refusal(404, f"There is no node '{node[:NAME_CHARS_MAX]}' in this cluster.", "node")
        return node

    def member_of(self) -> Cluster:
        """The cluster of this node; Refusal 409."""
        cluster = cluster_of(self.host.node.broker)
        if cluster is None:
            raise Refusal(409, "This node is a member of no cluster.")
        return cluster

    def in_steps(self, work: Steps[Any]) -> Deferred[Any]:
        """The result of work that pauses now and then."""
        done: Deferred[Any] = Deferred()
        self.host.node.broker.loop.scheduler.start(Priority.COMMAND, done, work, done.errback, done.callback)
        return done

    def operate(self, asked: Asked, run: Callable[..., Any], *arguments: object) -> Deferred[Any]:
        """The result of an admin operation, once what it changed is committed. LocalError, Refused."""
        node, done, source = self.host.node, Deferred[Any](), f"console: {asked.by}"

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
    node = text(asked.arguments, "node", NAME_CHARS_MAX)
    return None if operations.is_here(node) else operations.known(node)


def at_named_node(operations: Operations, asked: Asked) -> str | None:
    """The node in the path."""
    return _unless_here(operations, operations.known(asked.arguments["node"]))


def at_alarm(operations: Operations, asked: Asked) -> str | None:
    """The node of an alarm."""
    node, colon, _ = asked.arguments["alarm"].rpartition(":")
    if not colon:
        raise Refusal(404, "An alarm is named NODE:NUMBER.", "alarm")
    return _unless_here(operations, operations.known(node))


def at_leader(operations: Operations, asked: Asked) -> str | None:
    """The leader of the cluster."""
    return _unless_here(operations, operations.collector.leader)


def at_partition_primary(operations: Operations, asked: Asked) -> str | None:
    """The primary of a partition; Refusal 404."""
    number_of, cluster = asked.arguments["partition"], cluster_of(operations.host.node.broker)
    if cluster is not None and not 0 <= number_of < len(cluster.partitions):
        raise Refusal(404, f"There is no partition {number_of}.", "partition")
    return _unless_here(operations, operations.collector.primary(number_of))


@inlineCallbacks
def at_queue_primary(operations: Operations, asked: Asked) -> Any:
    """The primary of a queue."""
    return _unless_here(operations, (yield operations.collector.find_primary(queue_uri(asked.arguments))))


@inlineCallbacks
def at_holder(operations: Operations, asked: Asked) -> Any:
    """The node that is asked for stored messages: the one that the request names, else the primary, else this one."""
    uri, node = queue_uri(asked.arguments), text(asked.arguments, "node", NAME_CHARS_MAX)
    if node:
        return None if operations.is_here(node) else operations.known(node)
    primary = "" if asked.who.node else (yield operations.collector.find_primary(uri))
    return None if operations.is_here(primary) or primary not in operations.collector.consoles.urls() else primary


# -- arguments --------------------------------------------------------------------------------------------------------




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


def psn(asked: Asked, name: str) -> tuple[int, int]:
    """A lease and a sequence number; Refusal 400."""
    lease, _, sequence = text(asked.arguments, name, 40, 3).partition("-")
    if not (lease.isdecimal() and sequence.isdecimal()):
        raise Refusal(400, f"{name} is a lease and a sequence number, as 3-120.", name)
    return int(lease), int(sequence)


def properties_of(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Message properties as JSON; Refusal 400."""
    properties = arguments.get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise Refusal(400, "properties is an object.", "properties")
    return properties


def check_common(asked: Asked) -> None:
    """The reason and the confirmation of an action; Refusal 400."""
    reason = next((each for each in asked.route.arguments if each.name == "reason"), None)
    if reason is not None:
        text(asked.arguments, "reason", REASON_CHARS_MAX, int(reason.required))
    confirm = asked.route.confirm
    if confirm and asked.arguments.get("confirm") != asked.arguments.get(confirm):
        raise Refusal(400, f"To confirm, type {asked.arguments.get(confirm)}.", "confirm")


def partition_number(asked: Asked) -> int:
    """The number of a partition; Refusal 400."""
    return number(asked.arguments, "partition", -1, 0, 1_000_000)
