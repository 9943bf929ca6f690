"""Creation of the console's documents: of this node, and of the cluster from the parts of all nodes.

Without requests the broker is sampled only for one row of the history every HISTORY_STEP_S (`samples.py`). Documents
are requested by `service.py` for the subscriptions of `hub.py`, and by `documents_api.py` for single requests. The
parts are merged in `merge.py`; values of this node are read through `view/`; fields of rows are declared in
`view/documents.py`.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import replace
from twisted.internet.defer import Deferred, inlineCallbacks, succeed

from bmqtwist.console.access import Refusal
from bmqtwist.console.consoles import OtherConsoles, PeerClient, as_body, with_query
from bmqtwist.console.documents import Document
from bmqtwist.console.history_file import HistoryFile
from bmqtwist.console.local_queues import SWEEP_S, LocalQueues
from bmqtwist.console.merge import coverage, merge, merge_queue, queue_source, queue_tree
from bmqtwist.console.proxies import PROCESS_NUMBERS, valid_clients, valid_process, valid_queue
from bmqtwist.console.queues import Order, merge_first
from bmqtwist.console.samples import HISTORY_STEP_S, ClusterHistory, FlowSampler, NodeSampler, take_reading
from bmqtwist.console.topics import ClusterTopic, ElectionsTopic, QueuesTopic, QueueTopic, Topic
from bmqtwist.view import cluster_facts, node_facts, replicas

if TYPE_CHECKING:
    from bmqtwist.daemon.service import BrokerService

CLUSTER_AGE_S_MAX = 0.2  # a cluster document up to this age is reused
COVERING_ATTEMPTS = 3  # requests of the queues of all partitions


class DocumentCollector:
    """Creates the documents of the console. `folder`: of the stored history, "" = it is not stored."""

    def __init__(self, host: BrokerService, client: PeerClient, folder: str = "") -> None:
        self._host, broker = host, host.node.broker
        self.consoles = OtherConsoles(broker, client, lambda: host.present_time()[0], lambda: host.present_time()[1])
        self.local = LocalQueues(host)
        self._file = HistoryFile(folder, host.report)
        self.sampler = NodeSampler(take_reading(broker, host.present_time()[0], host.process()),
                                   self._file.read(host.present_time()[1]))
        self._history = ClusterHistory()
        self._resources: Document = {}  # of the process and its storage, sampled every HISTORY_STEP_S
        self._resources_at = float("-inf")
        self._proxy_flows = FlowSampler()
        self._proxies, self._proxies_at = list[Document](), float("-inf")
        self._processes: dict[str, Document] = {}  # values of the processes of proxies, by ident
        self._processes_at = float("-inf")
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
            self._file.write(self.sampler.history)
        self.local.stop()

    def _record(self) -> None:
        self.start()
        self.consoles.proxies.remove_expired()
        self.consoles.urls()  # stored: pages of a stopped node reconnect here and are accepted only if its URL is known
        broker, (now, wall) = self._host.node.broker, self._host.present_time()
        space = self._sample_resources(now)["storage"]
        self.sampler.record(take_reading(broker, now, self._host.process()), wall,
                            replicas.stored_totals(cluster_facts.cluster_of(broker)), space and space["freeBytes"])
        self._file.write_if_due(self.sampler.history, now)
        self._record_leader(wall)
        self.local.record_history()

    def _record_leader(self, wall: float) -> None:
        """Store since when the present leader has been known: the time of its election event."""
        cluster = cluster_facts.cluster_of(self._host.node.broker)
        if cluster is not None:
            seen = cluster_facts.elector(cluster)
            if (seen.leader, seen.term) != self._leader[:2]:
                since = cluster_facts.leader_since(self._host.node.events, cluster.name, seen)
                self._leader = seen.leader, seen.term, round(wall if since is None else since, 3)

    def _sample_resources(self, now: float) -> Document:
        """Return the open files and the space of the storage, at most HISTORY_STEP_S old."""
        if now - self._resources_at >= HISTORY_STEP_S - 0.5:  # the timer fires a little early
            node, (files, limit) = self._host.node, open_files()
            space = replicas.storage_space(cluster_facts.cluster_of(node.broker), node.disk)
            self._resources, self._resources_at = {
                "openFiles": files, "openFilesMax": limit, "storage": to_builtins(space)}, now
        return self._resources

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
        self._record_leader(wall)
        if now - self._proxies_at >= SWEEP_S:
            self._proxies, self._proxies_at = self._proxy_rows(now), now
        sampler = self.sampler
        part: Document = node_facts.node_document(node.broker, node.history, process, now)
        part |= {"proxies": self._proxies, "rates": sampler.rates, "latencies": sampler.latencies,
                 "cpuShare": None if sampler.cpu_share is None else round(sampler.cpu_share, 4),
                 "history": list(sampler.history), "top": self.local.top(), **self._sample_resources(now)}
        if part["elector"] is not None:
            part["elector"]["since"] = self._leader[2]
        actions = self.action_states()
        return part | actions | {"stop": part["stop"] or actions["stop"]}

    @inlineCallbacks
    def own_process(self) -> Any:
        """Return the values of this process, and the proxies connected to it."""
        part = yield self.own_part()
        return {name: part[name] for name in ("version", *PROCESS_NUMBERS, "proxies")}

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
        parts, missing, past = peers.parts(urls)
        for name, part in parts.items():
            if part["stop"] is not None and not part["stop"].get("abortable"):
                self._stops[name] = part["stop"]
            elif part["state"] == "up":
                self._stops.pop(name, None)
        now, wall = self._host.present_time()
        ended = {name: {**stop, "done": True} for name, stop in self._stops.items() if name in missing}
        document = merge(own["name"], wall, {own["name"]: own, **parts}, missing, ended, past,
                         self._history)
        for node in document["nodes"]:
            node["url"] = node["url"] or urls.get(node["name"], "")  # also for a node that is down
        for proxy in document["proxies"]:
            proxy.update(self._processes.get(proxy["ident"], {}))
        if document["proxies"] and now - self._processes_at >= HISTORY_STEP_S:
            self._processes_at = now
            self.consoles.request_proxies("/api/v1/node/process", list(parts.values()) + [own]).addCallback(
                self._on_processes).addErrback(self._host.log_failure)
        self._cluster = now, document
        return document

    def _on_processes(self, result: tuple[list[tuple[Document, Document]], Document]) -> None:
        """Store the values of the processes of proxies."""
        self._processes = {proxy["ident"]: valid_process(answer) for proxy, answer in result[0]}

    @inlineCallbacks
    def request_covering(self, path: str, query: Mapping[str, str]) -> Any:
        """Request from each node the queues of the partitions that it reports: as primary, or from its copy if the primary
        does not answer; if a node fails meanwhile, from the other ones again. Returns the documents and the reasons for
        missing ones by name, and this node's partitions."""
        for _ in range(COVERING_ATTEMPTS):
            covered = coverage((yield self.cluster()))
            own = tuple(covered.pop(self.name, ()))
            found, missing = yield self.consoles.request_each({
                name: (with_query(path, {**query, "partitions": ",".join(map(str, partitions))}), None)
                for name, partitions in covered.items()})
            if not missing:
                break
            self.consoles.peers.on_failed(missing)
            self.invalidate()
        return found, missing, own

    @inlineCallbacks
    def queues(self, topic: QueuesTopic) -> Any:
        """Return a page of the queues of all nodes: first the ranks of each node, then the rows of the page."""
        found, missing, partitions = yield self.request_covering("/api/v1/node/queues", topic.query())
        own = yield self.local.rank(replace(topic, partitions=partitions))
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
        answers, _ = yield self.consoles.request_each(
            {name: ("/api/v1/node/rows", as_body({"uris": uris})) for name, uris in wanted.items()})
        rows.update((row["uri"], row) for answer in answers.values() for row in answer["rows"])
        cluster = yield self.cluster()
        primaries = {each["id"]: each["primary"] for each in cluster["partitions"]}
        unknown = [each["id"] for each in cluster["partitions"] if each["source"] not in {self.name, *found}]
        _, wall = self._host.present_time()
        return {"at": round(wall, 3), "total": total, "offset": topic.offset, "missing": missing, "unknown": unknown,
                "rows": [{**rows[uri], "copyAt": home[uri] if home[uri] != primaries.get(rows[uri]["partition"]) else None}
                         for uri in shown if uri in rows]}

    @inlineCallbacks
    def queue(self, topic: QueueTopic) -> Any:
        """Return the document of a queue; Refusal 404 if no node knows it."""
        cluster = yield self.cluster()
        own = yield self.own_queue(topic.uri)
        path = with_query("/api/v1/node/queue", {"uri": topic.uri})
        found, missing = yield self.consoles.request_all(path)
        parts = [own, *found.values()]
        source = queue_source(parts, cluster)
        if source is None:
            raise Refusal(404, f"There is no queue '{topic.uri}' in this cluster.", "uri")
        primary = source["node"] if source["leads"] else next(
            (part["primary"] for part in parts if part.get("primary")), "")
        answers, unresponsive = yield self.consoles.request_proxies(path, parts)
        parts += [valid_queue(answer, proxy) for proxy, answer in answers]
        document = merge_queue(source, parts, queue_tree(source["row"] if source["leads"] else None, parts, primary))
        document.update(at=round(self._host.present_time()[1], 3), primary=primary, missing=missing | unresponsive,
                        copyAt=None if source["leads"] else source["node"])
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
        """Return the document of the elections. The present term begins at the time that the cluster document has, too."""
        node = self._host.node
        document = {**cluster_facts.elections(node.broker, node.events), "at": round(self._host.present_time()[1], 3)}
        leader = self._cluster[1]["leader"] if self._cluster is not None else {}
        document["terms"] = [
            {**each, "from": leader["since"]} if each["to"] is None and leader.get("since") and
            (each["leader"], each["term"]) == (leader["node"], leader["term"]) else each for each in document["terms"]]
        return document

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
