"""Sampling schedule and caches for the queues that this node reports: sorted pages, histories of depths, rates.

These are the queues of the partitions that requests name; without names those of which this node is the primary.

`queues.py` has the sampled table, its sort keys and the size of a page; this module runs its steps on the reactor, for
WANTED_S after each request of a console client. `collector.py` calls it to create documents.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred, inlineCallbacks, succeed

from bmqtwist.console.documents import Document
from bmqtwist.console.queues import Key, Order, QueueBook, SampledQueue
from bmqtwist.console.samples import HISTORY_ROWS, FlowSampler
from bmqtwist.console.topics import QueuesTopic
from bmqtwist.view.queue_facts import AnyQueue, flow_name, queue_named, queue_part, queue_view, queues_of
from bmqtwist.view.replicas import led_partitions

if TYPE_CHECKING:
    from bmqtwist.daemon.service import BrokerService

WANTED_S = 5.0  # queues are sampled this long after the last request
STEPS_PAUSE_S = 0.2  # between two steps of a sweep over all queues; none in the first sweep
SWEEP_S = 1.0  # minimum time from the beginning of a sweep to the beginning of the next one
RANKS_MAX = 64  # orders of queues that are cached until the next sweep
RANK_UPTO = 200  # a cached order has a multiple of this number of queues
HISTORIES_MAX = 50  # queues with a history of depths
HISTORY_IDLE_S_MAX = 900.0  # a history is dropped this long after the last request

_T = TypeVar("_T")
Ranking = tuple[str, str, bool, frozenset[int]]  # text in the URI, sort key, True for descending order, partitions


class LocalQueues:
    """Sampler of the queues that this node reports."""

    def __init__(self, host: BrokerService) -> None:
        self._broker, self._reactor, self._present_time, self._in_steps = (
            host.node.broker, host.reactor, host.present_time, host.run_in_steps)
        self.book = QueueBook(self._present_queues)
        self._sampled = set[int]()  # partitions of the last sweep
        self._named: dict[int, float] = {}  # partitions that requests named, until this time
        self._wanted_until = float("-inf")
        self._next_call: Any = None  # the delayed call of the next step
        self._sweep_waiters: list[Deferred[None]] = []  # fire at the end of the sweep
        self._sweep_began = 0.0
        self._ranks: OrderedDict[Ranking, tuple[float, int, int, list[Key]]] = OrderedDict()
        self._histories: OrderedDict[str, tuple[float, deque[list[float | None]]]] = OrderedDict()
        self._flows: OrderedDict[str, FlowSampler] = OrderedDict()  # of requested queues

    def stop(self) -> None:
        if self._next_call is not None and self._next_call.active():
            self._next_call.cancel()

    def _reported(self) -> set[int]:
        """Return the partitions whose queues are sampled."""
        now, _ = self._present_time()
        self._named = {number: until for number, until in self._named.items() if until >= now}
        return led_partitions(self._broker).union(self._named)

    def _present_queues(self) -> Iterator[AnyQueue]:
        """Begin a sweep: return the queues to sample."""
        self._sampled = self._reported()
        return queues_of(self._broker, self._sampled)

    def request_sampling(self, partitions: Collection[int] = ()) -> Deferred[None]:
        """Request sampling for WANTED_S, also of the queues in `partitions`; fires when all have been sampled once."""
        now, _ = self._present_time()
        self._wanted_until = now + WANTED_S
        if not self._sampled.issuperset(partitions):  # such as a partition of which this node has just become primary
            self.book.restart()
            if self._next_call is not None:
                self._next_call.reset(0.0)
        self._named.update(dict.fromkeys(partitions, self._wanted_until))
        if self._next_call is None:
            self._next_step(0.0)
        if self.book.sweep_end > float("-inf"):
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._sweep_waiters.append(done)
        return done

    def _next_step(self, pause: float) -> None:
        self._next_call = self._reactor.callLater(pause, self._step)

    def _step(self) -> None:
        now, _ = self._present_time()
        if now > self._wanted_until and not self._sweep_waiters:
            self._next_call = None
            self.book.clear()
            self._ranks.clear()
            return
        first = self.book.sweep_end == float("-inf")
        if self.book.begin_sweep(lambda: self._present_time()[0]):
            self._sweep_began = now
        more = self.book.step()
        pause = STEPS_PAUSE_S if more else max(STEPS_PAUSE_S, self._sweep_began + SWEEP_S - now)
        self._next_step(0.0 if first and more else pause)
        if not more:
            waiting, self._sweep_waiters = self._sweep_waiters, []
            for done in waiting:
                done.callback(None)

    @inlineCallbacks
    def rank(self, topic: QueuesTopic) -> Any:
        """Return the number of queues of a ranking at this node, and its first entries."""
        partitions = frozenset(led_partitions(self._broker) if topic.partitions is None else topic.partitions)
        yield self.request_sampling(partitions)
        ranking = topic.text, topic.sort, topic.descending, partitions
        known = self._ranks.get(ranking)
        if known is None or known[0] != self.book.sweep_end or known[1] < topic.upto:
            sweep_end, (_, wall) = self.book.sweep_end, self._present_time()
            upto = -(-topic.upto // RANK_UPTO) * RANK_UPTO  # neighbouring pages share one order
            order = Order(topic.sort, topic.descending)
            total, entries = yield self._in_steps(self.book.rank(topic.text, order, upto, wall, partitions))
            known = self._ranks[ranking] = sweep_end, upto, total, entries
            while len(self._ranks) > RANKS_MAX:
                self._ranks.popitem(last=False)
        return known[2], known[3][:topic.upto]

    @inlineCallbacks
    def rows(self, uris: list[str]) -> Any:
        yield self.request_sampling()
        return self.book.rows(uris, *self._present_time())

    def top(self) -> list[Document]:
        return self.book.rows(self.book.top, *self._present_time())

    def record_history(self) -> None:
        """Add a row to the history of each requested queue."""
        now, wall = self._present_time()
        for uri, (requested_at, rows) in list(self._histories.items()):
            queue = queue_named(self._broker, uri)
            if now - requested_at > HISTORY_IDLE_S_MAX:
                del self._histories[uri]
            elif queue is not None:
                rows.append(_depth(queue, wall))

    @inlineCallbacks
    def queue(self, uri: str) -> Any:
        """Return this node's part of the document of a queue, with rates and the history of its depth here. `row`: None =
        the queue is unknown to this node."""
        yield self.request_sampling()
        now, wall = self._present_time()
        queue = queue_named(self._broker, uri)
        part = queue_part(self._broker, uri, now)
        flows = _cached(self._flows, uri, FlowSampler).sample(now, part.pop("flows"))
        part["rates"] = flows[""]
        for each in (*part["consumers"], *part["producers"]):
            each.update(flows.get(flow_name(each["ident"], each["client"]), {}))
            for subscription in each.get("subscriptions", ()):
                subscription["givenRate"] = flows[subscription.pop("flow")]["pushRate"]
        rows = self.book.rows([uri], now, wall)
        history: deque[list[float | None]] = deque(maxlen=HISTORY_ROWS)
        if queue is not None:
            _, history = _cached(self._histories, uri, lambda: (now, deque([_depth(queue, wall)], maxlen=HISTORY_ROWS)))
            self._histories[uri] = now, history
        if queue is not None and not rows:  # a copy, or a new queue
            rows = [SampledQueue(queue, now).row(wall)]
        return {**part, "row": rows[0] if rows else None, "history": list(history)}


def _depth(queue: AnyQueue, wall: float) -> list[float | None]:
    seen = queue_view(queue)
    return [int(wall), seen.messages, seen.bytes]


def _cached(known: OrderedDict[str, _T], uri: str, make: Callable[[], _T]) -> _T:
    """Return the cached value of a queue, or create it; the least recently requested values are dropped."""
    found = known.pop(uri) if uri in known else make()
    known[uri] = found
    while len(known) > HISTORIES_MAX:
        known.popitem(last=False)
    return found
