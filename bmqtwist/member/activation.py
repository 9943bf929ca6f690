"""Queues come to life: a million messages, or ten thousand queues, take a second, in slices of the turns meanwhile.

A queue that is about to is led here already. Nothing changes what is stored of it, and opens of it wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial

from bmqtwist.cluster.state import QueueRecord
from bmqtwist.limits import RESTORED_AT_ONCE, RESTORED_QUEUE
from bmqtwist.loop.loop import Loop
from bmqtwist.loop.scheduler import Priority
from bmqtwist.queue.restored import Restored, restore
from bmqtwist.queue.root import Domain
from bmqtwist.steps import Steps
from bmqtwist.storage.state import StoredQueue


@dataclass(slots=True)
class _PendingActivation:
    record: QueueRecord
    domain: Domain
    opened: bool = False
    over: bool = False


class Activations:
    """Of one cluster at one node. `stored(record)`: what its partition has of a queue, PartitionUnavailable if nothing;
    `woken(domain, record, store, found, opened)`: the queue is active, `opened` if a client waits for it;
    `on_activation_failed(record, opened, error)`: it cannot be activated."""

    def __init__(self, stored: Callable[[QueueRecord], StoredQueue],
                 woken: Callable[[Domain, QueueRecord, StoredQueue, Restored, bool], None],
                 on_activation_failed: Callable[[QueueRecord, bool, Exception], None], host: Loop) -> None:
        self._stored, self._on_woken, self._not_woken, self._host = stored, woken, on_activation_failed, host
        self._pending: dict[str, _PendingActivation] = {}

    def __contains__(self, uri: str) -> bool:
        return uri in self._pending

    def start(self, domain: Domain, records: Iterable[QueueRecord]) -> None:
        """Queues of a domain come to life, one after the other; few and small ones before this returns."""
        batch = [_PendingActivation(record, domain) for record in records]
        for pending in batch:
            self._pending[pending.record.uri] = pending
            domain.opening += 1  # it is not removed meanwhile
        self._host.scheduler.start(Priority.ACTIVATION, domain, self._steps(batch), partial(
            self._host.isolation.alarm, f"Domain '{domain.name}': its queues come to life"))

    def open(self, uri: str) -> None:
        """Somebody waits for a queue that is about to come to life."""
        self._pending[uri].opened = True

    def cancel(self, uri: str) -> bool:
        """A queue is not to come to life any more; whether somebody waits for it."""
        pending = self._pending.pop(uri, None)
        if pending is None:
            return False
        pending.over = True
        pending.domain.opening -= 1
        return pending.opened

    def cancel_all(self, partition_id: int) -> list[str]:
        """The same of all queues of a partition; those that somebody waits for."""
        found = [uri for uri, pending in self._pending.items() if pending.record.partition_id == partition_id]
        return [uri for uri in found if self.cancel(uri)]

    def _steps(self, batch: list[_PendingActivation]) -> Steps[None]:
        taken = 0
        for pending in batch:
            try:
                for count in self._woken(pending):
                    taken += count
                    if taken >= RESTORED_AT_ONCE:
                        yield
                        taken = 0
                    if pending.over:
                        break
            except Exception as error:
                self.cancel(pending.record.uri)
                self._not_woken(pending.record, pending.opened, error)

    def _woken(self, pending: _PendingActivation) -> Generator[int, None, None]:
        """Gives how many messages each step took."""
        if pending.over:
            return
        store = self._stored(pending.record)
        found = yield from restore(store, self._host.wall(self._host.now))
        self.cancel(pending.record.uri)
        self._on_woken(pending.domain, pending.record, store, found, pending.opened)
        yield RESTORED_QUEUE
