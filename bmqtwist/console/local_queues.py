"""The queues that this node leads, for as long as they are watched: rows, orders, depths and rates over time.

Queues are inspected in steps, a few each second where there are very many, and not at all while nobody asks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred, inlineCallbacks, succeed

from bmqtwist.console.documents import Document
from bmqtwist.console.queues import Key, Order, QueueBook
from bmqtwist.console.samples import HISTORY_ROWS, FlowSampler
from bmqtwist.console.topics import QueuesTopic
from bmqtwist.queue.root import RootQueue
from bmqtwist.view.queue_facts import flow_name, living_queues, queue_here, queue_part, stored

if TYPE_CHECKING:
    from bmqtwist.daemon.service import BrokerService

WANTED_S = 5.0  # after the last request that queues are looked at
STEPS_PAUSE_S = 0.2  # between two steps of a look at all queues, but for the first
SWEEP_S = 1.0  # from the beginning of a look at all queues to that of the next one, at least
RANKS_MAX = 64  # orders of queues that are kept until the next look at all
RANK_UPTO = 200  # an order is kept of a multiple of so many queues
HISTORIES_MAX = 50  # queues of which depths are kept, for as long as somebody has asked
HISTORY_FORGET_S = 900.0

_T = TypeVar("_T")
Ranking = tuple[str, str, bool]  # a text in the URI, what is sorted by, and whether the greatest come first


class LocalQueues:
    def __init__(self, host: BrokerService) -> None:
        self._broker, self._reactor, self._moment, self._in_steps = (
            host.node.broker, host.reactor, host.moment, host.in_steps)
        self.book = QueueBook(lambda: living_queues(self._broker))
        self._wanted_until = float("-inf")
        self._sweeping: Any = None  # the next step
        self._swept: list[Deferred[None]] = []  # wait for the end of a look at all queues
        self._sweep_began = 0.0
        self._ranks: OrderedDict[Ranking, tuple[float, int, int, list[Key]]] = OrderedDict()
        self._histories: OrderedDict[str, tuple[float, deque[list[float]]]] = OrderedDict()
        self._flows: OrderedDict[str, FlowSampler] = OrderedDict()  # of queues that somebody has asked for

    def stop(self) -> None:
        if self._sweeping is not None and self._sweeping.active():
            self._sweeping.cancel()

    def want(self) -> Deferred[None]:
        """Somebody wants to see queues; fires when all were looked at once."""
        now, _ = self._moment()
        self._wanted_until = now + WANTED_S
        if self._sweeping is None:
            self._next_step(0.0)
        if self.book.swept > float("-inf"):
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._swept.append(done)
        return done

    def _next_step(self, pause: float) -> None:
        self._sweeping = self._reactor.callLater(pause, self._step)

    def _step(self) -> None:
        now, _ = self._moment()
        if now > self._wanted_until and not self._swept:
            self._sweeping = None
            self.book.forget()
            self._ranks.clear()
            return
        first = self.book.swept == float("-inf")
        if self.book.begin(lambda: self._moment()[0]):
            self._sweep_began = now
        more = self.book.step()
        rest = STEPS_PAUSE_S if more else max(STEPS_PAUSE_S, self._sweep_began + SWEEP_S - now)
        self._next_step(0.0 if first and more else rest)
        if not more:
            waiting, self._swept = self._swept, []
            for done in waiting:
                done.callback(None)

    @inlineCallbacks
    def rank(self, topic: QueuesTopic) -> Any:
        """How many queues of this node there are, and the first of them: (total, entries)."""
        yield self.want()
        ranking = topic.text, topic.sort, topic.descending
        known = self._ranks.get(ranking)
        if known is None or known[0] != self.book.swept or known[1] < topic.upto:
            swept, (_, wall) = self.book.swept, self._moment()
            upto = -(-topic.upto // RANK_UPTO) * RANK_UPTO  # pages that differ a little are made of one order
            order = Order(topic.sort, topic.descending)
            total, entries = yield self._in_steps(self.book.rank(topic.text, order, upto, wall))
            known = self._ranks[ranking] = swept, upto, total, entries
            while len(self._ranks) > RANKS_MAX:
                self._ranks.popitem(last=False)
        return known[2], known[3][:topic.upto]

    @inlineCallbacks
    def rows(self, uris: list[str]) -> Any:
        yield self.want()
        return self.book.rows(uris, *self._moment())

    def top(self) -> list[Document]:
        return self.book.rows(self.book.top, *self._moment())

    def keep_history(self) -> None:
        """A row for the history of each queue that somebody has asked for."""
        now, wall = self._moment()
        for uri, (asked, rows) in list(self._histories.items()):
            root, _ = queue_here(self._broker, uri)
            if now - asked > HISTORY_FORGET_S:
                del self._histories[uri]
            elif root is not None:
                rows.append(_depth(root, wall))

    @inlineCallbacks
    def queue(self, uri: str) -> Any:
        """What this node knows of one queue, with rates and the history of its depth."""
        yield self.want()
        now, wall = self._moment()
        part = queue_part(self._broker, uri, now)
        flows = _kept(self._flows, uri, FlowSampler).look(now, part.pop("flows"))
        part["rates"] = flows[""]
        for each in (*part["consumers"], *part["producers"]):
            each.update(flows.get(flow_name(each), {}))
            for subscription in each.get("subscriptions", ()):
                subscription["givenRate"] = flows[subscription.pop("flow")]["pushRate"]
        rows = self.book.rows([uri], now, wall)
        root, _ = queue_here(self._broker, uri)
        history: deque[list[float]] = deque(maxlen=HISTORY_ROWS)
        if root is not None:
            _, history = _kept(self._histories, uri, lambda: (now, deque([_depth(root, wall)], maxlen=HISTORY_ROWS)))
            self._histories[uri] = now, history
        return {**part, "row": rows[0] if rows and part["leads"] else None, "history": list(history)}


def _depth(queue: RootQueue, wall: float) -> list[float]:
    return [int(wall), *stored(queue)]


def _kept(known: OrderedDict[str, _T], uri: str, made: Callable[[], _T]) -> _T:
    """What is kept for a queue, or what is made for it; of the others those that were asked for last stay."""
    found = known.pop(uri) if uri in known else made()
    known[uri] = found
    while len(known) > HISTORIES_MAX:
        known.popitem(last=False)
    return found
