"""Creation of the console's documents: of this node, and of the cluster from the parts of all nodes.

Without requests the broker is sampled only for one row of the history every HISTORY_STEP_S (`samples.py`). Documents
are requested by `service.py` for the subscriptions of `hub.py`, and by `documents_api.py` for single requests. The
parts are merged in `merge.py`; values of this node are read through `view/`; fields of rows are declared in
`view/documents.py`.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from twisted.internet.defer import Deferred, inlineCallbacks, succeed

from bmqtwist.console.access import Refusal
from bmqtwist.console.consoles import OtherConsoles, PeerClient, as_body, with_query
from bmqtwist.console.documents import Document
from bmqtwist.console.local_queues import SWEEP_S, LocalQueues
from bmqtwist.console.merge import merge, merge_queue, queue_tree
from bmqtwist.console.proxies import valid_clients, valid_queue
from bmqtwist.console.queues import Order, merge_first
from bmqtwist.console.samples import HISTORY_STEP_S, FlowSampler, NodeSampler, take_reading
from bmqtwist.console.topics import ClusterTopic, ElectionsTopic, QueuesTopic, QueueTopic, Topic
from bmqtwist.view import cluster_facts, node_facts

if TYPE_CHECKING:
    from bmqtwist.daemon.service import BrokerService

CLUSTER_AGE_S_MAX = 0.2  # a cluster document up to this age is reused


class DocumentCollector:
    """Creates the documents of the console."""

    def __init__(self, host: BrokerService, client: PeerClient) -> None:
        self._host, broker = host, host.node.broker
        self.consoles = OtherConsoles(broker, client, lambda: host.present_time()[0])
        self.local = LocalQueues(host)
        self.sampler = NodeSampler(take_reading(broker, host.present_time()[0], host.process()))
        self._files, self._files_at = (0, 0), float("-inf")
        self._proxy_flows = FlowSampler()
        self._proxies, self._proxies_at = list[Document](), float("-inf")
        self._leader: tuple[str, int, float] = ("", -1, 0.0)
        self._stops: dict[str, Document] = {}
        self._cluster: tuple[float, Document] | None = None
        self._collecting: list[Deferred[Document]] | None = None
        self._tick: Any = None
        self.action_states: Callable[[], Document] = dict  # state of restart, stop and demo

    # -- history ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to record the history."""
        _, wall = self._host.present_time()
        self._tick = self._host.reactor.callLater(HISTORY_STEP_S - wall % HISTORY_STEP_S, self._record)

    def stop(self) -> None:
        if self._tick is not None and self._tick.active():
            self._tick.cancel()
        self.local.stop()

    def _record(self) -> None:
        self.start()
        self.consoles.proxies.remove_expired()
        self.consoles.urls()  # stored: pages of a stopped node reconnect here and are accepted only if its URL is known
        broker, (now, wall) = self._host.node.broker, self._host.present_time()
        messages, size = node_facts.stored_totals(broker)
        self.sampler.record(take_reading(broker, now, self._host.process()), wall, messages, size)
        self._record_leader(wall)
        self.local.record_history()

    def _record_leader(self, wall: float) -> None:
        """Store since when the present leader has been known."""
        cluster = cluster_facts.cluster_of(self._host.node.broker)
        if cluster is not None:
            seen = cluster_facts.elector(cluster)
            if (seen.leader, seen.term) != self._leader[:2]:
                self._leader = seen.leader, seen.term, round(wall, 3)

    # -- this node --------------------------------------------------------------------------------------------------

    @inlineCallbacks
    def own_part(self) -> Any:
        """Return this node's part of the cluster document."""
        yield self.local.request_sampling()
        node, (now, wall) = self._host.node, self._host.present_time()
        proxied = cluster_facts.proxied_of(node.broker)
        if proxied is not None:
            proxied.dial()  # nodes announce the URLs of their consoles
            node.broker.loop.performer.request_turn()
        self.consoles.urls()
        process = self._host.process()
        if self.sampler.is_due(now):
            self.sampler.sample(take_reading(node.broker, now, process))
        if now - self._files_at >= HISTORY_STEP_S:
            self._files, self._files_at = open_files(), now
        self._record_leader(wall)
        if now - self._proxies_at >= SWEEP_S:
            self._proxies, self._proxies_at = self._proxy_rows(now), now
        sampler = self.sampler
        part: Document = node_facts.node_document(node.broker, node.history, process, now)
        part |= {"proxies": self._proxies, "cpuShare": round(sampler.cpu_share, 4), "openFiles": self._files[0],
                 "openFilesMax": self._files[1], "rates": sampler.rates, "latencies": sampler.latencies,
                 "history": list(sampler.history), "top": self.local.top()}
        if part["elector"] is not None:
            part["elector"]["since"] = self._leader[2]
        actions = self.action_states()
        return part | actions | {"stop": part["stop"] or actions["stop"]}

    def _proxy_rows(self, now: float) -> list[Document]:
        broker = self._host.node.broker
        rows = node_facts.proxy_rows(broker, cluster_facts.cluster_of(broker))
        rates = self._proxy_flows.sample(now, {row.ident: flow for row, flow in rows})
        return [{**to_builtins(row), **rates[row.ident]} for row, _ in rows]

    @inlineCallbacks
    def own_queue(self, uri: str) -> Any:
        return {**(yield self.local.queue(uri)), "primary": self.primary_of(uri)}

    # -- the cluster ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return cluster_facts.name_of(self._host.node.broker)

    def document(self, topic: Topic) -> Deferred[Document]:
        """Return the document of a topic. Fails with Refusal."""
        if isinstance(topic, ClusterTopic):
            return self.cluster()
        if isinstance(topic, QueuesTopic):
            return self.queues(topic)
        if isinstance(topic, QueueTopic):
            return self.queue(topic)
        assert isinstance(topic, ElectionsTopic)
        return succeed(self.elections())

    def invalidate(self) -> None:
        """Discard the cluster document, so that the next request creates a new one."""
        self._cluster = None

    def cluster(self) -> Deferred[Document]:
        """Return the cluster document; requests during its creation share the result."""
        done: Deferred[Document] = Deferred()
        if self._cluster is not None and self._host.present_time()[0] - self._cluster[0] < CLUSTER_AGE_S_MAX:
            return succeed(self._cluster[1])
        if self._collecting is not None:
            self._collecting.append(done)
            return done
        waiting = self._collecting = [done]

        def made(document: Any) -> None:
            self._collecting = None
            for each in waiting:
                each.callback(document) if isinstance(document, dict) else each.errback(document)

        self._collect().addBoth(made)
        return done

    @inlineCallbacks
    def _collect(self) -> Any:
        now, _ = self._host.present_time()
        urls, peers = self.consoles.urls(), self.consoles.peers
        polled = peers.poll(urls, now)
        own = yield self.own_part()
        yield polled
        parts, missing = peers.parts(urls)
        for name, part in parts.items():
            if part["stop"] is not None and not part["stop"].get("abortable"):
                self._stops[name] = part["stop"]
            elif part["state"] == "up":
                self._stops.pop(name, None)
        now, wall = self._host.present_time()
        ended = {name: {**stop, "done": True} for name, stop in self._stops.items() if name in missing}
        document = merge(own["name"], wall, {own["name"]: own, **parts}, missing, ended)
        for node in document["nodes"]:
            node["url"] = node["url"] or urls.get(node["name"], "")  # also for a node that is down
        self._cluster = now, document
        return document

    @inlineCallbacks
    def queues(self, topic: QueuesTopic) -> Any:
        """Return a page of the queues of all nodes: first the ranks of each node, then the rows of the page."""
        own = yield self.local.rank(topic)
        found, missing = yield self.consoles.request_all(with_query("/api/v1/node/queues", topic.query()))
        total, runs, home = own[0], [own[1]], {uri: self.name for _, uri in own[1]}
        for name, answer in found.items():
            total += answer["total"]
            run = [(value, uri) for value, uri in answer["entries"] if uri not in home]
            home.update((uri, name) for _, uri in run)
            runs.append(run)
        shown = [uri for _, uri in merge_first(runs, Order(topic.sort, topic.descending), topic.upto)][topic.offset:]
        wanted: dict[str, list[str]] = {}
        for uri in shown:
            wanted.setdefault(home[uri], []).append(uri)
        rows = {row["uri"]: row for row in (yield self.local.rows(wanted.pop(self.name, [])))}
        _, wall = self._host.present_time()
        for answer in (yield self.consoles.request_each("/api/v1/node/rows", {name: as_body({"uris": uris})
                                                                          for name, uris in wanted.items()})):
            rows.update((row["uri"], row) for row in answer["rows"])
        return {"at": round(wall, 3), "total": total, "offset": topic.offset, "missing": missing,
                "rows": [rows[uri] for uri in shown if uri in rows]}

    @inlineCallbacks
    def queue(self, topic: QueueTopic) -> Any:
        """Return the document of a queue; Refusal 404 if no node knows it."""
        own = yield self.own_queue(topic.uri)
        path = with_query("/api/v1/node/queue", {"uri": topic.uri})
        found, missing = yield self.consoles.request_all(path)
        parts = [own, *found.values()]
        leading = next((part for part in parts if part["leads"]), None)
        primary = leading["node"] if leading is not None else next(
            (part["primary"] for part in parts if part.get("primary")), "")
        if leading is None and not primary:
            raise Refusal(404, f"There is no queue '{topic.uri}' in this cluster.", "uri")
        answers, unresponsive = yield self.consoles.request_proxies(path, parts)
        parts += [valid_queue(answer, proxy) for proxy, answer in answers]
        row = leading["row"] if leading is not None else {"uri": topic.uri}
        document = merge_queue(row, parts, leading["history"] if leading is not None else (),
                               queue_tree(leading["row"] if leading is not None else None, parts, primary))
        document.update(at=round(self._host.present_time()[1], 3), primary=primary, missing=missing | unresponsive)
        return document

    @inlineCallbacks
    def clients(self) -> Any:
        """Return the connections of all nodes and of the proxies whose consoles answer."""
        path, own = "/api/v1/node/clients", node_facts.clients_part(self._host.node.broker)
        found, missing = yield self.consoles.request_all(path)
        parts = [own, *found.values()]
        answers, unresponsive = yield self.consoles.request_proxies(path, parts)
        rows = [row for part in parts for row in part["clients"]]
        for proxy, answer in answers:
            rows += valid_clients(answer, proxy)
        return {"clients": rows, "missing": missing | unresponsive}

    @inlineCallbacks
    def find_primary(self, uri: str) -> Any:
        """Return the primary of a queue; a proxy requests it from the nodes."""
        if cluster_facts.cluster_of(self._host.node.broker) is not None:
            return self.primary_of(uri)
        return (yield self.queue(QueueTopic(uri)))["primary"]

    def elections(self) -> Document:
        node = self._host.node
        return {**cluster_facts.elections(node.broker, node.events), "at": round(self._host.present_time()[1], 3)}

    def primary_of(self, uri: str) -> str:
        """Return the primary of a queue in the metadata; "" = the queue is unknown or has no primary."""
        cluster = cluster_facts.cluster_of(self._host.node.broker)
        return cluster_facts.queue_primary(cluster, uri) if cluster is not None else ""

    def primary(self, partition: int) -> str:
        cluster = cluster_facts.cluster_of(self._host.node.broker)
        if cluster is None and self._cluster is not None:  # a proxy has the reports of the nodes
            return next((each["primary"] for each in self._cluster[1]["partitions"] if each["id"] == partition), "")
        return cluster_facts.partition_primary(cluster, partition) if cluster is not None else ""

    @property
    def leader(self) -> str:
        cluster = cluster_facts.cluster_of(self._host.node.broker)
        if cluster is None:
            return str(self._cluster[1]["leader"]["node"]) if self._cluster is not None else ""
        return cluster_facts.elector(cluster).leader


def open_files() -> tuple[int, int]:
    """Return the number of open files of this process and its limit; 0 = unknown."""
    try:
        return len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except OSError:
        return 0, 0
