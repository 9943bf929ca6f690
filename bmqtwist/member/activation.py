"""Activation of stored queues in slices: a million messages, or ten thousand queues, take a second.

A queue being activated already has this node as its primary. Its records do not change meanwhile, and opens of it wait.
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
    cancelled: bool = False


class Activations:
    """Pending activations of one cluster at one node. `stored(record)`: a queue's state in its partition, raises
    PartitionUnavailable; `on_activated(domain, record, store, found, opened)`: create the queue, `opened` if a client waits
    for it; `on_failed(record, opened, error)`: the activation failed."""

    def __init__(self, stored: Callable[[QueueRecord], StoredQueue],
                 on_activated: Callable[[Domain, QueueRecord, StoredQueue, Restored, bool], None],
                 on_failed: Callable[[QueueRecord, bool, Exception], None], host: Loop) -> None:
        self._stored, self._on_activated, self._on_failed, self._host = stored, on_activated, on_failed, host
        self._pending: dict[str, _PendingActivation] = {}

    def __contains__(self, uri: str) -> bool:
        return uri in self._pending

    def start(self, domain: Domain, records: Iterable[QueueRecord]) -> None:
        """Activate queues of a domain in order; a few small ones before this returns."""
        batch = [_PendingActivation(record, domain) for record in records]
        for pending in batch:
            self._pending[pending.record.uri] = pending
            domain.opening += 1  # it is not removed meanwhile
        self._host.scheduler.start(Priority.ACTIVATION, domain, self._steps(batch), partial(
            self._host.isolation.alarm, f"Domain '{domain.name}': activation of its queues"))

    def open(self, uri: str) -> None:
        """Note that a client waits for a pending queue."""
        self._pending[uri].opened = True

    def cancel(self, uri: str) -> bool:
        """Cancel the activation of a queue; return whether a client waits for it."""
        pending = self._pending.pop(uri, None)
        if pending is None:
            return False
        pending.cancelled = True
        pending.domain.opening -= 1
        return pending.opened

    def cancel_all(self, partition_id: int) -> list[str]:
        """Cancel the activations of a partition; return the URIs of queues that clients wait for."""
        found = [uri for uri, pending in self._pending.items() if pending.record.partition_id == partition_id]
        return [uri for uri in found if self.cancel(uri)]

    def _steps(self, batch: list[_PendingActivation]) -> Steps[None]:
        taken = 0
        for pending in batch:
            try:
                for count in self._activate(pending):
                    taken += count
                    if taken >= RESTORED_AT_ONCE:
                        yield
                        taken = 0
                    if pending.cancelled:
                        break
            except Exception as error:
                self.cancel(pending.record.uri)
                self._on_failed(pending.record, pending.opened, error)

    def _activate(self, pending: _PendingActivation) -> Generator[int, None, None]:
        """Activate a queue; yields the number of messages that each step restored."""
        if pending.cancelled:
            return
        store = self._stored(pending.record)
        found = yield from restore(store, self._host.wall(self._host.now))
        self.cancel(pending.record.uri)
        self._on_activated(pending.domain, pending.record, store, found, pending.opened)
        yield RESTORED_QUEUE
