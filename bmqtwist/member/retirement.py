"""Queues of partitions that this node leads no longer: their clients go on with relays, in slices of the turns that follow.

    begin       all queues of a partition take and deliver nothing from now on
    job         converts one queue after the other (`queue.handover`), first those with unacknowledged PUTs, which are kept
                with their payloads
    convert     a queue for which a client makes a request before its turn, or that this node is to lead again; PUTs and
                CONFIRMs wait
    released    no queue reads the log of the partition any more: until then it is not cut, and no records are appended to it
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
class _Leaver:
    """A queue that is to be converted. `unread`: its unacknowledged PUTs in order, behind those that are `kept`."""

    queue: RootQueue
    cause: str
    unread: deque[Put]
    kept: list[Put] = field(default_factory=list)

    def keep_next(self) -> None:
        """Keep an unacknowledged PUT; another member posts its own ones again."""
        put = self.unread.popleft()
        if put.handle is not None and _is_of_member(put.handle):
            put.answer(AckStatus.NOT_READY)
        elif put.handle is not None and not put.handle.closing and handover.keep(self.queue, put):
            self.kept.append(put)


class Retirement:
    """Of one cluster at one node. `relays`: of a cluster of several nodes."""

    relays: Relays | None = None

    def __init__(self, title: str, loop: Loop) -> None:
        self._loop = loop
        self._failed = partial(loop.isolation.alarm, f"{title}: queues get another primary")
        self._left: dict[str, _Leaver] = {}  # by URI
        self._reading = Counter[int]()  # jobs that need the log, by partition
        self._then: dict[int, list[Callable[[float], None]]] = {}  # what waits until none does

    @property
    def in_progress(self) -> bool:
        """Whether queues are still to be converted."""
        return bool(self._left)

    def begin(self, partition: Partition, queues: list[RootQueue], cause: str) -> None:
        """This node leads a partition no longer, these are its queues; a few are converted before this returns."""
        waiting: dict[Queue, list[Put]] = {}
        for put in partition.gate.waiting if isinstance(partition, ReplicatedPartition) else ():
            waiting.setdefault(put.queue, []).append(put)
        first, others = list[_Leaver](), list[_Leaver]()
        for queue in queues:
            leaver = _Leaver(queue, cause, deque((*queue.uncommitted.puts, *waiting.get(queue, ()))))
            self._left[queue.uri] = leaver
            queue.move(self.convert)
            (first if leaver.unread or queue.purges else others).append(leaver)
        partition.copies.waiters.clear()
        index = partition.partition_id
        self._reading[index] += 1
        self._loop.scheduler.start(Priority.ACTIVATION, self, self._steps(index, first, others), self._failed)

    def reads_log(self, partition_id: int) -> bool:
        """Whether queues still need what the log of a partition has."""
        return self._reading[partition_id] > 0

    def released(self, partition_id: int, then: Callable[[float], None]) -> None:
        """Call `then(now)` when no queue needs the log of a partition any more: now or later."""
        if self._reading[partition_id]:
            self._then.setdefault(partition_id, []).append(then)
        else:
            then(self._loop.now)

    def convert_now(self, uri: str) -> None:
        """Convert a queue now, if it is to be."""
        leaver = self._left.get(uri)
        if leaver is not None:
            self.convert(leaver.queue)

    def convert(self, queue: RootQueue) -> None:
        """Nothing, if it was done."""
        leaver = self._left.get(queue.uri)
        if leaver is None or leaver.queue is not queue:
            return
        del self._left[queue.uri]
        acts, queue.moving = queue.moving or (), None
        for steps in list(queue.purges):  # what they mean is part of what a replica has; they need no records here
            at_once(steps)
        while leaver.unread:
            leaver.keep_next()
        queue.feed(QueueChange.MOVED, self._loop.now, leaver.cause)
        for handle in list(queue.handles):
            if isinstance(handle.client, PeerSession) and handle.client.is_member:
                handle.client.leave(handle)  # it opens the queue at the next primary
        if self.relays is not None and queue.handles:
            relay = RelayQueue(queue.uri, queue.name, queue.domain, queue.context, self.relays.uplink)
            asked = {substream: [each.spec for each in substream.subscriptions]
                     for handle in queue.handles for substream in handle.substreams.values()}
            handover.to_relay(queue, relay, queue.handles, leaver.kept)
            self.relays.add(parse_uri(queue.uri), relay, asked)
        queue.meter.clear()
        queue.in_slices(clear_in_steps([place for app in queue.apps.values() for place in app.unregister()]),
                        "freeing what was kept for its apps")
        for act in acts:
            act()

    # -- the job --------------------------------------------------------------------------------------------------------

    def _steps(self, partition_id: int, first: list[_Leaver], others: list[_Leaver]) -> Steps[None]:
        taken = 0
        for leavers in (first, others):
            for leaver in leavers:
                try:
                    for count in self._convert_slowly(leaver):
                        taken += count
                        if taken >= MOVED_AT_ONCE:
                            yield
                            taken = 0
                except Exception as error:  # the other queues continue
                    self._failed(error)
            if leavers is first:
                self._reading[partition_id] -= 1
                while not self._reading[partition_id] and self._then.get(partition_id):
                    self._then[partition_id].pop(0)(self._loop.now)

    def _convert_slowly(self, leaver: _Leaver) -> Generator[int, None, None]:
        """Gives how much each step took, in PUTs."""
        for steps in list(leaver.queue.purges):
            for _ in steps:
                yield MOVED_AT_ONCE
        while leaver.unread:
            leaver.keep_next()
            yield 1
        self.convert(leaver.queue)
        yield MOVED_QUEUE


def _is_of_member(handle: Handle) -> bool:
    return isinstance(handle.client, PeerSession) and handle.client.is_member
