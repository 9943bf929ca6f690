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
class _Sleeper:
    record: QueueRecord
    domain: Domain
    opened: bool = False
    over: bool = False


class Waking:
    """Of one cluster at one node. `stored(record)`: what its partition has of a queue, PartitionUnavailable if nothing;
    `woken(domain, record, store, found, opened)`: the queue is active, `opened` if a client waits for it;
    `not_woken(record, opened, error)`: it cannot be activated."""

    def __init__(self, stored: Callable[[QueueRecord], StoredQueue],
                 woken: Callable[[Domain, QueueRecord, StoredQueue, Restored, bool], None],
                 not_woken: Callable[[QueueRecord, bool, Exception], None], host: Loop) -> None:
        self._stored, self._on_woken, self._not_woken, self._host = stored, woken, not_woken, host
        self._sleepers: dict[str, _Sleeper] = {}

    def __contains__(self, uri: str) -> bool:
        return uri in self._sleepers

    def wake(self, domain: Domain, records: Iterable[QueueRecord]) -> None:
        """Queues of a domain come to life, one after the other; few and small ones before this returns."""
        sleepers = [_Sleeper(record, domain) for record in records]
        for sleeper in sleepers:
            self._sleepers[sleeper.record.uri] = sleeper
            domain.opening += 1  # it is not removed meanwhile
        self._host.scheduler.start(Priority.ACTIVATION, domain, self._steps(sleepers), partial(
            self._host.contain.told, f"Domain '{domain.name}': its queues come to life"))

    def open(self, uri: str) -> None:
        """Somebody waits for a queue that is about to come to life."""
        self._sleepers[uri].opened = True

    def end(self, uri: str) -> bool:
        """A queue is not to come to life any more; whether somebody waits for it."""
        sleeper = self._sleepers.pop(uri, None)
        if sleeper is None:
            return False
        sleeper.over = True
        sleeper.domain.opening -= 1
        return sleeper.opened

    def end_all(self, partition_id: int) -> list[str]:
        """The same of all queues of a partition; those that somebody waits for."""
        found = [uri for uri, sleeper in self._sleepers.items() if sleeper.record.partition_id == partition_id]
        return [uri for uri in found if self.end(uri)]

    def _steps(self, sleepers: list[_Sleeper]) -> Steps[None]:
        taken = 0
        for sleeper in sleepers:
            try:
                for count in self._woken(sleeper):
                    taken += count
                    if taken >= RESTORED_AT_ONCE:
                        yield
                        taken = 0
                    if sleeper.over:
                        break
            except Exception as error:
                self.end(sleeper.record.uri)
                self._not_woken(sleeper.record, sleeper.opened, error)

    def _woken(self, sleeper: _Sleeper) -> Generator[int, None, None]:
        """Gives how many messages each step took."""
        if sleeper.over:
            return
        store = self._stored(sleeper.record)
        found = yield from restore(store, self._host.wall(self._host.now))
        self.end(sleeper.record.uri)
        self._on_woken(sleeper.domain, sleeper.record, store, found, sleeper.opened)
        yield RESTORED_QUEUE
