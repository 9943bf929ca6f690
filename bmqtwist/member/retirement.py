"""Retirement of queues of which this node is no longer primary: they become relays, and their clients continue.

    begin               stop all queues of a partition: they accept and deliver no messages
    job                 convert the queues in order (`queue.handover`), first those with unacknowledged PUTs, whose payloads
                        are read from the log
    convert             convert a queue at once: a client makes a request, or this node becomes its primary again; PUTs and
                        CONFIRMs of clients wait for the conversion
    call_when_log_read  call an action after these reads. Before them the log must not change: the next primary may replace
                        uncommitted records, whose payloads may be only in the files

`member/cluster.py` calls it when this node is no longer primary of a partition. The conversion of one queue is in
`queue/handover.py`; the reverse is in `activation.py`. Sizes of slices are in `bmqtwist/limits.py`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial

from bmqtwist.errors import AckStatus
from bmqtwist.ids import parse_uri
from bmqtwist.limits import MOVED_AT_ONCE, MOVED_QUEUE
from bmqtwist.link.peer import PeerSession
from bmqtwist.loop.loop import Loop
from bmqtwist.loop.scheduler import Priority
from bmqtwist.queue import handover
from bmqtwist.queue.lifecycle import QueueChange
from bmqtwist.queue.queue import Handle, Put, Queue
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.queue.root import RootQueue
from bmqtwist.relay.relays import Relays
from bmqtwist.steps import Steps, at_once, clear_in_steps
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.replica import ReplicatedPartition


@dataclass(slots=True, eq=False)
class _RetiredQueue:
    """A queue to be converted. `unread`: its unacknowledged PUTs, in order; `posts`: PUTs whose payloads are read."""

    queue: RootQueue
    cause: str
    unread: deque[Put]
    posts: list[Put] = field(default_factory=list)

    def read_next(self) -> None:
        """Read an unacknowledged PUT. PUTs of another member are answered NOT_READY: it posts them again."""
        put = self.unread.popleft()
        if put.handle is not None and _is_of_member(put.handle):
            put.answer(AckStatus.NOT_READY)
        elif put.handle is not None and not put.handle.closing and handover.copy_payload(self.queue, put):
            self.posts.append(put)


class Retirement:
    """Retired queues of one cluster at one node. `relays`: None in a cluster of one node."""

    relays: Relays | None = None

    def __init__(self, title: str, loop: Loop) -> None:
        self._loop = loop
        self._failed = partial(loop.isolation.alarm, f"{title}: queues get another primary")
        self._retired: dict[str, _RetiredQueue] = {}  # by URI
        self._reading = Counter[int]()  # jobs that read the log, by partition
        self._after_reading: dict[int, list[Callable[[float], None]]] = {}  # by partition

    @property
    def in_progress(self) -> bool:
        """True while queues remain to be converted."""
        return bool(self._retired)

    def begin(self, partition: Partition, queues: list[RootQueue], cause: str) -> None:
        """Retire the queues of a partition; a few are converted before this returns."""
        waiting: dict[Queue, list[Put]] = {}
        for put in partition.gate.effects if isinstance(partition, ReplicatedPartition) else ():
            waiting.setdefault(put.queue, []).append(put)
        first, others = list[_RetiredQueue](), list[_RetiredQueue]()
        for queue in queues:
            retired = _RetiredQueue(queue, cause, deque((*queue.uncommitted.puts, *waiting.get(queue, ()))))
            self._retired[queue.uri] = retired
            queue.begin_conversion(self.convert)
            (first if retired.unread or queue.purges else others).append(retired)
        partition.copies.listeners.clear()
        index = partition.partition_id
        self._reading[index] += 1
        self._loop.scheduler.start(Priority.ACTIVATION, self, self._steps(index, first, others), self._failed)

    def reads_log(self, partition_id: int) -> bool:
        """Return whether retired queues still read the log of a partition."""
        return self._reading[partition_id] > 0

    def call_when_log_read(self, partition_id: int, action: Callable[[float], None]) -> None:
        """Call `action(now)`, now or later, when no retired queue reads the log of a partition any more."""
        if self.reads_log(partition_id):
            self._after_reading.setdefault(partition_id, []).append(action)
        else:
            action(self._loop.now)

    def convert_now(self, uri: str) -> None:
        """Convert the retired queue of a URI; ignored if there is none."""
        retired = self._retired.get(uri)
        if retired is not None:
            self.convert(retired.queue)

    def convert(self, queue: RootQueue) -> None:
        """Replace a retired queue by a relay; ignored if that is done."""
        retired = self._retired.get(queue.uri)
        if retired is None or retired.queue is not queue:
            return
        del self._retired[queue.uri]
        acts, queue.deferred_actions = queue.deferred_actions or (), None
        for steps in list(queue.purges):  # a replica has their records already
            at_once(steps)
        while retired.unread:
            retired.read_next()
        queue.step_lifecycle(QueueChange.MOVED, self._loop.now, retired.cause)
        for handle in list(queue.handles):
            if isinstance(handle.client, PeerSession) and handle.client.is_member:
                handle.client.close_handle(handle)  # it opens the queue at the next primary
        if self.relays is not None and queue.handles:
            relay = RelayQueue(queue.uri, queue.name, queue.domain, queue.context, self.relays.uplink)
            requested = {substream: [each.spec for each in substream.subscriptions]
                         for handle in queue.handles for substream in handle.substreams.values()}
            handover.to_relay(queue, relay, queue.handles, retired.posts)
            self.relays.add(parse_uri(queue.uri), relay, requested)
        queue.meter.clear()
        queue.run_in_slices(clear_in_steps([place for app in queue.apps.values() for place in app.unregister()]),
                        "freeing its apps' messages")
        for act in acts:
            act()

    # -- the job --------------------------------------------------------------------------------------------------------

    def _steps(self, partition_id: int, first: list[_RetiredQueue], others: list[_RetiredQueue]) -> Steps[None]:
        cost = 0
        for batch in (first, others):
            for retired in batch:
                try:
                    for count in self._convert_in_steps(retired):
                        cost += count
                        if cost >= MOVED_AT_ONCE:
                            yield
                            cost = 0
                except Exception as error:  # the other queues continue
                    self._failed(error)
            if batch is first:
                self._reading[partition_id] -= 1
                while not self._reading[partition_id] and self._after_reading.get(partition_id):
                    self._after_reading[partition_id].pop(0)(self._loop.now)

    def _convert_in_steps(self, retired: _RetiredQueue) -> Generator[int, None, None]:
        """Convert a queue; yields the cost of each step, in PUTs."""
        for steps in list(retired.queue.purges):
            for _ in steps:
                yield MOVED_AT_ONCE
        while retired.unread:
            retired.read_next()
            yield 1
        self.convert(retired.queue)
        yield MOVED_QUEUE


def _is_of_member(handle: Handle) -> bool:
    return isinstance(handle.client, PeerSession) and handle.client.is_member
