"""The documents: of this node, and of the cluster with what the other nodes' consoles say.

Nothing is looked at while nobody asks, but for one row of the history every HISTORY_STEP_S. While somebody does, queues are
looked at in steps of their own, a few each second where there are very many.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred, DeferredList, inlineCallbacks, succeed

from bmqtwist.console import behind, facts
from bmqtwist.console.access import Refusal
from bmqtwist.console.documents import Document
from bmqtwist.console.merge import merge, merge_queue, queue_tree
from bmqtwist.console.peers import PEER_SECONDS_MAX, RETRY_S, PeerClient, Peers, as_body, with_query
from bmqtwist.console.queues import Key, Order, QueueBook, first_of
from bmqtwist.console.samples import HISTORY_ROWS, HISTORY_STEP_S, FlowSampler, NodeSampler
from bmqtwist.console.topics import ClusterTopic, ElectionsTopic, QueuesTopic, QueueTopic, Topic
from bmqtwist.daemon.assemble import Node
from bmqtwist.view import elections, traffic
from bmqtwist.view.snapshot import ProcessState

WANTED_S = 5.0  # after the last request that queues are looked at
STEPS_PAUSE_S = 0.2  # between two steps of a look at all queues, but for the first
SWEEP_S = 1.0  # from the beginning of a look at all queues to that of the next one, at least
FRESH_S = 0.2  # a document of that age is as good as a new one
RANKS_MAX = 64  # orders of queues that are kept until the next look at all
RANK_UPTO = 200  # an order is kept of a multiple of so many queues
HISTORIES_MAX = 50  # queues of which depths are kept, for as long as somebody has asked
HISTORY_FORGET_S = 900.0

Ranking = tuple[str, str, bool]  # a text in the URI, what is sorted by, and whether the greatest come first


class CollectorHost(Protocol):
    """The broker, as far as documents need it: `daemon.service.BrokerService`."""

    @property
    def node(self) -> Node:
        """What runs."""

    @property
    def reactor(self) -> Any:
        """For delays."""

    def moment(self) -> tuple[float, float]:
        """Seconds now: monotonic, and since the epoch."""

    def process(self) -> ProcessState:
        """What the operating system says."""


class Collector:
    """Makes all documents. `open_files`: of this process."""

    def __init__(self, host: CollectorHost, client: PeerClient, open_files: Callable[[], facts.OpenFiles]) -> None:
        self._host, self._client, self._open_files = host, client, open_files
        self.peers = Peers(client)
        broker = host.node.broker
        self.book = QueueBook(lambda: facts.living_queues(broker))
        self.sampler = NodeSampler(facts.reading(broker, host.moment()[0], host.process()))
        self._files, self._files_at = facts.OpenFiles(), float("-inf")
        self._wanted_until = float("-inf")
        self._sweeping: Any = None  # the next step
        self._swept: list[Deferred[None]] = []  # wait for the end of a look at all queues
        self._sweep_began = 0.0
        self._ranks: OrderedDict[Ranking, tuple[float, int, int, list[Key]]] = OrderedDict()
        self._histories: OrderedDict[str, tuple[float, deque[list[float]]]] = OrderedDict()
        self._flows: OrderedDict[str, FlowSampler] = OrderedDict()  # of queues that somebody has asked for
        self._behind = FlowSampler()  # of the proxies that are connected here
        self._proxies, self._proxies_at = list[Document](), float("-inf")
        self._silent: dict[str, tuple[float, str]] = {}  # proxies that did not answer: until when they are left alone, why
        self._leader: tuple[str, int, float] = ("", -1, 0.0)
        self._stops: dict[str, Document] = {}
        self._urls: dict[str, str] = {}  # of the others' consoles, also of those that are gone
        self._cluster: tuple[float, Document] | None = None
        self._collecting: list[Deferred[Document]] | None = None
        self._tick: Any = None
        self.restart: Callable[[], Document | None] = lambda: None  # how far a rolling restart is that goes on from here
        self.delayed_stop: Callable[[], Document | None] = lambda: None  # the stop of this node that has not begun
        self.demonstration: Callable[[], Document | None] = lambda: None  # traffic that is there to be looked at

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Keep a history from now on."""
        _, wall = self._host.moment()
        self._tick = self._host.reactor.callLater(HISTORY_STEP_S - wall % HISTORY_STEP_S, self._keep)

    def stop(self) -> None:
        """Nothing more."""
        for call in (self._tick, self._sweeping):
            if call is not None and call.active():
                call.cancel()

    def _keep(self) -> None:
        self.start()
        self.urls()  # remembered: pages of a node that dies come here, and are let in only if it is known
        broker, (now, wall) = self._host.node.broker, self._host.moment()
        messages, size = facts.stored(broker)
        self.sampler.keep(facts.reading(broker, now, self._host.process()), wall, messages, size)
        self._see_leader(wall)
        for uri, (asked, rows) in list(self._histories.items()):
            root, _ = facts.queue_here(broker, uri)
            if now - asked > HISTORY_FORGET_S:
                del self._histories[uri]
            elif root is not None:
                rows.append([int(wall), len(root.messages), root.meter.bytes])

    def _see_leader(self, wall: float) -> None:
        cluster = facts.cluster_of(self._host.node.broker)
        if cluster is not None:
            standing = cluster.leadership.standing
            seen = str(standing.leader), standing.term
            if seen != self._leader[:2]:
                self._leader = (*seen, round(wall, 3))

    # -- queues are looked at ---------------------------------------------------------------------------------------

    def _want_queues(self) -> Deferred[None]:
        """Somebody wants to see queues; fires when all were looked at once."""
        now, _ = self._host.moment()
        self._wanted_until = now + WANTED_S
        if self._sweeping is None:
            self._next_step(0.0)
        if self.book.swept > float("-inf"):
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._swept.append(done)
        return done

    def _next_step(self, pause: float) -> None:
        self._sweeping = self._host.reactor.callLater(pause, self._step)

    def _step(self) -> None:
        now, _ = self._host.moment()
        if now > self._wanted_until and not self._swept:
            self._sweeping = None
            self.book.forget()
            self._ranks.clear()
            return
        first = self.book.swept == float("-inf")
        if self.book.begin(lambda: self._host.moment()[0]):
            self._sweep_began = now
        more = self.book.step()
        rest = STEPS_PAUSE_S if more else max(STEPS_PAUSE_S, self._sweep_began + SWEEP_S - now)
        self._next_step(0.0 if first and more else rest)
        if not more:
            waiting, self._swept = self._swept, []
            for done in waiting:
                done.callback(None)

    # -- this node --------------------------------------------------------------------------------------------------

    @inlineCallbacks
    def own_part(self) -> Any:
        """What this node contributes to the document of the cluster."""
        yield self._want_queues()
        node, (now, wall) = self._host.node, self._host.moment()
        proxied = facts.proxied_of(node.broker)
        if proxied is not None:
            proxied.dial()  # the nodes say where their consoles are
            node.broker.performer.turn_due()
        self.urls()
        process = self._host.process()
        if self.sampler.wants(now):
            self.sampler.look(facts.reading(node.broker, now, process))
        if now - self._files_at >= HISTORY_STEP_S:
            self._files, self._files_at = self._open_files(), now
        self._see_leader(wall)
        if now - self._proxies_at >= SWEEP_S:
            self._proxies, self._proxies_at = facts.proxies_here(node.broker, self._behind, now), now
        part = facts.node_part(node, self.sampler, process, self._files, now, self.book.rows(self.book.top, now, wall),
                               self._proxies)
        if part["elector"] is not None:
            part["elector"]["since"] = self._leader[2]
        part["restart"] = self.restart()
        part["stop"] = part["stop"] or self.delayed_stop()
        part["demo"] = self.demonstration()
        return part

    @inlineCallbacks
    def own_rank(self, topic: QueuesTopic) -> Any:
        """How many queues of this node there are, and the first of them: (total, entries)."""
        yield self._want_queues()
        ranking = topic.text, topic.sort, topic.descending
        known = self._ranks.get(ranking)
        if known is None or known[0] != self.book.swept or known[1] < topic.upto:
            swept, (_, wall) = self.book.swept, self._host.moment()
            upto = -(-topic.upto // RANK_UPTO) * RANK_UPTO  # pages that differ a little are made of one order
            total, entries = yield self._slowly(self.book.rank(topic.text, Order(topic.sort, topic.descending), upto, wall))
            known = self._ranks[ranking] = swept, upto, total, entries
            while len(self._ranks) > RANKS_MAX:
                self._ranks.popitem(last=False)
        return known[2], known[3][:topic.upto]

    def _slowly(self, work: Any) -> Deferred[Any]:
        """The result of work in steps, one in each turn."""
        done: Deferred[Any] = Deferred()

        def step() -> None:
            try:
                next(work)
            except StopIteration as end:
                done.callback(end.value)
            except Exception:
                done.errback()
            else:
                self._host.reactor.callLater(0, step)

        step()
        return done

    @inlineCallbacks
    def own_rows(self, uris: list[str]) -> Any:
        """Rows of queues that this node leads."""
        yield self._want_queues()
        now, wall = self._host.moment()
        return self.book.rows(uris, now, wall)

    @inlineCallbacks
    def own_queue(self, uri: str) -> Any:
        """What this node knows of one queue."""
        yield self._want_queues()
        now, wall = self._host.moment()
        broker = self._host.node.broker
        part = facts.queue_part(broker, uri, now)
        sampler = self._flows.pop(uri, None) or FlowSampler()
        self._flows[uri] = sampler
        while len(self._flows) > HISTORIES_MAX:
            self._flows.popitem(last=False)
        flows = sampler.look(now, part.pop("flows"))
        part["rates"] = flows[""]
        for each in (*part["consumers"], *part["producers"]):
            each.update(flows.get(facts.flow_name(each), {}))
            for subscription in each.get("subscriptions", ()):
                subscription["givenRate"] = flows[subscription.pop("flow")]["pushRate"]
        rows = self.book.rows([uri], now, wall)
        root, _ = facts.queue_here(broker, uri)
        history: deque[list[float]] = deque(maxlen=HISTORY_ROWS)
        if root is not None:
            _, history = self._histories.pop(uri, (now, deque([[int(wall), len(root.messages), root.meter.bytes]],
                                                              maxlen=HISTORY_ROWS)))
            self._histories[uri] = now, history
            while len(self._histories) > HISTORIES_MAX:
                self._histories.popitem(last=False)
        return {**part, "row": rows[0] if rows and part["leads"] else None, "history": list(history),
                "primary": self.primary_of(uri)}

    # -- the cluster ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """This node."""
        return facts.name_of(self._host.node.broker)

    def urls(self) -> dict[str, str]:
        """Where the consoles of the others are, also of those that are not connected any more."""
        self._urls.update(facts.peer_urls(self._host.node.broker))
        return {**{name: view.url for name, view in self.peers.views.items()}, **self._urls}

    def document(self, topic: Topic) -> Deferred[Document]:
        """The document of a topic."""
        if isinstance(topic, ClusterTopic):
            return self.cluster()
        if isinstance(topic, QueuesTopic):
            return self.queues(topic)
        if isinstance(topic, QueueTopic):
            return self.queue(topic)
        assert isinstance(topic, ElectionsTopic)
        return succeed(self.elections())

    def outdate(self) -> None:
        """The next document of the cluster is made anew, however young the last one is."""
        self._cluster = None

    def cluster(self) -> Deferred[Document]:
        """The whole cluster; who asks while it is made gets the same."""
        done: Deferred[Document] = Deferred()
        if self._cluster is not None and self._host.moment()[0] - self._cluster[0] < FRESH_S:
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
        now, wall = self._host.moment()
        urls = self.urls()
        asked = self.peers.look(urls, now, wall)
        own = yield self.own_part()
        yield asked
        parts, missing = self.peers.parts(urls)
        for name, part in parts.items():
            if part["stop"] is not None and not part["stop"].get("abortable"):
                self._stops[name] = part["stop"]
            elif part["state"] == "up":
                self._stops.pop(name, None)
        now, wall = self._host.moment()
        ended = {name: {**stop, "done": True} for name, stop in self._stops.items() if name in missing}
        document = merge(own["name"], wall, {own["name"]: own, **parts}, missing, _percentiles, ended)
        self._add_urls(document, urls)
        self._cluster = now, document
        return document

    def _add_urls(self, document: Document, urls: Mapping[str, str]) -> None:
        """A node that is down is still somewhere."""
        for node in document["nodes"]:
            node["url"] = node["url"] or urls.get(node["name"], "")

    @inlineCallbacks
    def ask_all(self, path: str, body: bytes | None = None, seconds: float = PEER_SECONDS_MAX) -> Any:
        """What the consoles of all other nodes answer to the same: documents by name, and why the rest does not."""
        _, wall = self._host.moment()
        urls = self.urls()
        method = "GET" if body is None else "POST"
        answers = yield DeferredList([self._client.ask(name, url, method, path, wall, body or b"", seconds=seconds)
                                      for name, url in urls.items()], consumeErrors=True)
        names = list(urls)
        found, missing = _answers("Node", names, answers)
        return {names[at]: answer for at, answer in found.items()}, missing

    @inlineCallbacks
    def ask_proxies(self, path: str, told: Sequence[Document]) -> Any:
        """What the consoles of proxies answer: pairs of a proxy, as `behind.proxy_of` has it, and its answer; and why the
        others have none, by name. Asked are the proxies that the answers `told` name, and those that are behind them. Who
        does not answer is left alone for RETRY_S."""
        broker, (now, wall) = self._host.node.broker, self._host.moment()
        silent = self._silent
        for ident in [ident for ident, (until, _) in silent.items() if until <= now]:
            del silent[ident]
        # a token for the name of a node would be good there: no proxy gets one
        seen, names = {facts.own_ident(broker)}, {*self.urls(), *facts.node_names(broker)}
        found: list[tuple[Document, Document]] = []
        missing: dict[str, str] = {}
        for _ in range(behind.LEVELS_MAX):
            next_ones = {proxy["ident"]: proxy for document in told for proxy in behind.proxies_told(document)
                         if proxy["ident"] not in seen}
            seen.update(next_ones)
            asked = []
            for proxy in next_ones.values():
                if not proxy["url"] or proxy["name"] in names:
                    missing[proxy["name"]] = behind.NAMED_AS_A_NODE if proxy["url"] else behind.NO_CONSOLE
                elif proxy["ident"] in silent:
                    missing[proxy["name"]] = silent[proxy["ident"]][1]
                else:
                    asked.append(proxy)
            requests = [self._client.ask(proxy["name"], proxy["url"], "GET", path, wall) for proxy in asked]
            answers = yield DeferredList(requests, consumeErrors=True)
            good, bad = _answers("Proxy", [proxy["name"] for proxy in asked], answers)
            missing.update(bad)
            until = self._host.moment()[0] + RETRY_S
            silent.update((proxy["ident"], (until, bad[proxy["name"]])) for at, proxy in enumerate(asked) if at not in good)
            found += [(asked[at], answer) for at, answer in good.items()]
            told = list(good.values())
        return found, missing

    @inlineCallbacks
    def queues(self, topic: QueuesTopic) -> Any:
        """A page of the queues of all nodes."""
        own = yield self.own_rank(topic)
        found, missing = yield self.ask_all(with_query("/api/v1/node/queues", topic.query()))
        total, runs, home = own[0], [own[1]], {uri: self.name for _, uri in own[1]}
        for name, answer in found.items():
            total += answer["total"]
            run = [(value, uri) for value, uri in answer["entries"] if uri not in home]
            home.update((uri, name) for _, uri in run)
            runs.append(run)
        shown = [uri for _, uri in first_of(runs, Order(topic.sort, topic.descending), topic.upto)][topic.offset:]
        wanted: dict[str, list[str]] = {}
        for uri in shown:
            wanted.setdefault(home[uri], []).append(uri)
        rows = {row["uri"]: row for row in (yield self.own_rows(wanted.pop(self.name, [])))}
        urls, (_, wall) = self.urls(), self._host.moment()
        answers = yield DeferredList([self._client.ask(name, urls[name], "POST", "/api/v1/node/rows", wall,
                                                       as_body({"uris": uris})) for name, uris in wanted.items()],
                                     consumeErrors=True)
        for good, answer in answers:
            if good and answer[0] == 200:
                rows.update((row["uri"], row) for row in answer[1]["rows"])
        return {"at": round(wall, 3), "total": total, "offset": topic.offset, "missing": missing,
                "rows": [rows[uri] for uri in shown if uri in rows]}

    @inlineCallbacks
    def queue(self, topic: QueueTopic) -> Any:
        """One queue; Refusal 404 if nobody knows it."""
        own = yield self.own_queue(topic.uri)
        path = with_query("/api/v1/node/queue", {"uri": topic.uri})
        found, missing = yield self.ask_all(path)
        parts = [own, *found.values()]
        leading = next((part for part in parts if part["leads"]), None)
        primary = leading["node"] if leading is not None else next(
            (part["primary"] for part in parts if part.get("primary")), "")
        if leading is None and not primary:
            raise Refusal(404, f"There is no queue '{topic.uri}' in this cluster.", "uri")
        answers, silent = yield self.ask_proxies(path, parts)
        parts += [behind.queue_told(answer, proxy) for proxy, answer in answers]
        row = leading["row"] if leading is not None else {"uri": topic.uri}
        document = merge_queue(row, parts, leading["history"] if leading is not None else (),
                               queue_tree(leading["row"] if leading is not None else None, parts, primary))
        document.update(at=round(self._host.moment()[1], 3), primary=primary, missing=missing | silent)
        return document

    @inlineCallbacks
    def clients(self) -> Any:
        """Who is connected, of all nodes and of the proxies whose consoles answer."""
        path, own = "/api/v1/node/clients", facts.clients_part(self._host.node.broker)
        found, missing = yield self.ask_all(path)
        parts = [own, *found.values()]
        answers, silent = yield self.ask_proxies(path, parts)
        rows = [row for part in parts for row in part["clients"]]
        for proxy, answer in answers:
            rows += behind.clients_told(answer, proxy)
        return {"clients": rows, "missing": missing | silent}

    @inlineCallbacks
    def find_primary(self, uri: str) -> Any:
        """Which node leads a queue, also where this is a proxy, which has to ask."""
        if facts.cluster_of(self._host.node.broker) is not None:
            return self.primary_of(uri)
        return (yield self.queue(QueueTopic(uri)))["primary"]

    def elections(self) -> Document:
        """Terms, as this node has seen them."""
        node = self._host.node
        return {**elections.elections(node.broker, node.events), "at": round(self._host.moment()[1], 3)}

    def primary_of(self, uri: str) -> str:
        """Which node leads a queue, as the metadata have it; "" = the queue is not known, or nobody does."""
        cluster = facts.cluster_of(self._host.node.broker)
        record = cluster.metadata.state.queues.get(uri) if cluster is not None else None
        return self.primary(record.partition_id) if record is not None else ""

    def primary(self, partition: int) -> str:
        """Which node leads a partition."""
        cluster = facts.cluster_of(self._host.node.broker)
        if cluster is None and self._cluster is not None:  # a proxy knows what the nodes say
            return next((each["primary"] for each in self._cluster[1]["partitions"] if each["id"] == partition), "")
        primary = cluster.metadata.state.partitions.get(partition) if cluster is not None else None
        return self.node_name(primary.node_id) if primary is not None else ""

    @property
    def leader(self) -> str:
        """Which node leads the cluster."""
        cluster = facts.cluster_of(self._host.node.broker)
        if cluster is None:
            return str(self._cluster[1]["leader"]["node"]) if self._cluster is not None else ""
        return self.node_name(cluster.leadership.standing.leader)

    def node_name(self, node_id: int | None) -> str:
        """A node by its id."""
        cluster = facts.cluster_of(self._host.node.broker)
        nodes = cluster.definition.nodes if cluster is not None else ()
        return next((node.name for node in nodes if node.id == node_id), "")


def _answers(kind: str, names: Sequence[str], answers: Sequence[tuple[bool, Any]]
             ) -> tuple[dict[int, Document], dict[str, str]]:
    """What those answered that were asked, by their places, and why the others did not, by name."""
    found: dict[int, Document] = {}
    missing: dict[str, str] = {}
    for at, (name, (good, answer)) in enumerate(zip(names, answers, strict=True)):
        if not good:
            missing[name] = str(answer.value)
        elif answer[0] != 200 or not isinstance(answer[1], dict):
            error = answer[1].get("error", answer[0]) if isinstance(answer[1], dict) else answer[0]
            missing[name] = f"{kind} {name}: {error}"
        else:
            found[at] = answer[1]
    return found, missing


def _percentiles(counts: Any) -> Document:
    if not counts:
        return {"p50": None, "p99": None}
    return traffic.percentiles((0,) * len(counts), tuple(counts))
