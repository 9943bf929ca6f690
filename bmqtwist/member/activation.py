"""Activation of stored queues in slices: a million messages, or ten thousand queues, take a second.

`member/cluster.py` activates the queues of a domain when the domain is loaded and this node is primary of their
partitions. The records of a queue do not change during its activation; opens of it wait for the end. Sizes of slices
are in `bmqtwist/limits.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from bmqtwist.cluster.state import QueueRecord
from bmqtwist.limits import RESTORED_AT_ONCE, RESTORED_QUEUE
from bmqtwist.loop.loop import Loop
from bmqtwist.loop.scheduler import Priority
from bmqtwist.machine import Cell, TransitionLog, table, to
from bmqtwist.queue.restored_messages import RestoredMessages, restore
from bmqtwist.queue.root import Domain
from bmqtwist.steps import Steps
from bmqtwist.storage.state import StoredQueue


class ActivationState(Enum):
    """State of the activation of one queue."""

    PENDING = "its messages are being restored, or their restoration has not begun"
    ACTIVATED = "the queue is created"
    FAILED = "the queue cannot be used"
    CANCELLED = "the queue is deleted, or has another primary"


class ActivationEvent(Enum):
    """Event of an activation."""

    OPEN = "a client opens the queue"
    RESTORED = "its messages are restored"
    RAISED = "its restoration or its creation raised an exception"
    CANCEL = "the queue is deleted, or gets another primary"


@dataclass(slots=True, eq=False)
class Activation:
    """Activation of one queue. `opened`: a client waits for the queue."""

    record: QueueRecord
    domain: Domain
    state: ActivationState = ActivationState.PENDING
    opened: bool = False


class Activations:
    """Pending activations of one cluster at one node. `stored(record)`: a queue's state in its partition, raises
    PartitionUnavailable; `on_activated(domain, record, store, found, opened)`: create the queue, `opened` if a client waits
    for it; `on_failed(record, opened, error)`: the activation failed."""

    def __init__(self, stored: Callable[[QueueRecord], StoredQueue],
                 on_activated: Callable[[Domain, QueueRecord, StoredQueue, RestoredMessages, bool], None],
                 on_failed: Callable[[QueueRecord, bool, Exception], None], loop: Loop) -> None:
        self._stored, self._on_activated, self._on_failed, self._loop = stored, on_activated, on_failed, loop
        self._pending: dict[str, Activation] = {}
        self.transitions = TransitionLog()  # of all queues

    def __contains__(self, uri: str) -> bool:
        return uri in self._pending

    def start(self, domain: Domain, records: Iterable[QueueRecord]) -> None:
        """Activate queues of a domain in order; a few small ones before this returns."""
        batch = [Activation(record, domain) for record in records]
        for activation in batch:
            self._pending[activation.record.uri] = activation
            domain.opening += 1  # the domain is not removed meanwhile
        self._loop.scheduler.start(Priority.ACTIVATION, domain, self._steps(batch), partial(
            self._loop.isolation.alarm, f"Domain '{domain.name}': activation of its queues"))

    def open(self, uri: str) -> None:
        """Note that a client waits for a pending queue."""
        self._feed(self._pending[uri], ActivationEvent.OPEN)

    def cancel(self, uri: str) -> bool:
        """Cancel the activation of a queue; return whether a client waits for it."""
        activation = self._pending.get(uri)
        if activation is None:
            return False
        self._feed(activation, ActivationEvent.CANCEL)
        return activation.opened

    def cancel_all(self, partition_id: int) -> list[str]:
        """Cancel the activations of a partition; return the URIs of queues that clients wait for."""
        found = [uri for uri, activation in self._pending.items() if activation.record.partition_id == partition_id]
        return [uri for uri in found if self.cancel(uri)]

    def _steps(self, batch: list[Activation]) -> Steps[None]:
        restored = 0
        for activation in batch:
            try:
                for count in self._restore(activation):
                    restored += count
                    if restored >= RESTORED_AT_ONCE:
                        yield
                        restored = 0
                    if activation.state is not ActivationState.PENDING:
                        break
            except Exception as error:
                self._feed(activation, ActivationEvent.RAISED, error)

    def _restore(self, activation: Activation) -> Generator[int, None, None]:
        """Restore and create a queue; yields the number of messages that each step restored."""
        if activation.state is ActivationState.PENDING:
            store = self._stored(activation.record)
            found = yield from restore(store, self._loop.wall(self._loop.now))
            self._feed(activation, ActivationEvent.RESTORED, store, found)
            yield RESTORED_QUEUE

    # -- state machine ------------------------------------------------------------------------------------------------

    def _feed(self, activation: Activation, event: ActivationEvent, *given: Any) -> None:
        before, cell = activation.state, TABLE[activation.state][event]
        activation.state = next(iter(cell.after), before)
        if activation.state is not before:
            self.transitions.record(self._loop.now, before.name, activation.state.name,
                                  f"{activation.record.uri}: {event.value}", event.name)
        cell.action(self, activation, *given)

    def _note_open(self, activation: Activation) -> None:
        activation.opened = True

    def _create(self, activation: Activation, store: StoredQueue, found: RestoredMessages) -> None:
        self._remove(activation)
        self._on_activated(activation.domain, activation.record, store, found, activation.opened)

    def _fail(self, activation: Activation, error: Exception) -> None:
        self._remove(activation)
        self._on_failed(activation.record, activation.opened, error)

    def _fail_created(self, activation: Activation, error: Exception) -> None:
        """Handle an exception of the creation, after which the activation is not pending any more."""
        self._on_failed(activation.record, activation.opened, error)

    def _remove(self, activation: Activation) -> None:
        del self._pending[activation.record.uri]
        activation.domain.opening -= 1

    def _ignore(self, activation: Activation, *given: Any) -> None:
        """Do nothing."""


_S, _E = ActivationState, ActivationEvent
_IGNORED: dict[ActivationEvent, Cell[ActivationState]] = {event: to(Activations._ignore) for event in ActivationEvent}
TABLE = table(ActivationState, ActivationEvent, {
    _S.PENDING: {_E.OPEN: to(Activations._note_open), _E.RESTORED: to(Activations._create, _S.ACTIVATED),
                 _E.RAISED: to(Activations._fail, _S.FAILED), _E.CANCEL: to(Activations._remove, _S.CANCELLED)},
    _S.ACTIVATED: {**_IGNORED, _E.RAISED: to(Activations._fail_created, _S.FAILED)},
    _S.FAILED: _IGNORED,
    _S.CANCELLED: _IGNORED,
})
