"""Queues come to life: a million messages, or ten thousand queues, take a second, in slices of the turns meanwhile.

A queue that is about to is led here already. Nothing changes what is stored of it, and opens of it wait.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from bmqtwist.cluster.state import QueueRecord
from bmqtwist.limits import RESTORED_AT_ONCE, RESTORED_QUEUE
from bmqtwist.loop.loop import Loop
from bmqtwist.loop.scheduler import Priority
from bmqtwist.queue.restored import Restored, restore
from bmqtwist.queue.root import Domain
from bmqtwist.steps import Steps
from bmqtwist.storage.state import StoredQueue


class WakingUser(Protocol):
    """Whose queues they are (`member.cluster.Cluster`)."""

    def stored(self, record: QueueRecord) -> StoredQueue:
        """What its partition has of a queue that is to come to life. PartitionUnavailable: it cannot."""

    def woken(self, domain: Domain, record: QueueRecord, store: StoredQueue, found: Restored, opened: bool) -> None:
        """It lives from now on; `opened`: somebody waits for it."""

    def not_woken(self, record: QueueRecord, opened: bool, error: Exception) -> None:
        """It cannot, or we have made a mistake."""


@dataclass(slots=True)
class _Sleeper:
    record: QueueRecord
    domain: Domain
    opened: bool = False
    over: bool = False


class Waking:
    """Of one cluster at one node."""

    def __init__(self, user: WakingUser, host: Loop) -> None:
        self._user, self._host = user, host
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
                self._user.not_woken(sleeper.record, sleeper.opened, error)

    def _woken(self, sleeper: _Sleeper) -> Generator[int, None, None]:
        """Gives how many messages each step took."""
        if sleeper.over:
            return
        store = self._user.stored(sleeper.record)
        found = yield from restore(store, self._host.wall(self._host.now))
        self.end(sleeper.record.uri)
        self._user.woken(sleeper.domain, sleeper.record, store, found, sleeper.opened)
        yield RESTORED_QUEUE
