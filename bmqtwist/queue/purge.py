"""Purges, and apps that leave: the record comes first, and what it means for a million messages follows in steps.

The record says all: a restart in the midst completes it. From then on nobody is given a purged message, and a queue that was
purged as a whole is empty. What takes long is to let go of all of it, and for one app to find the messages that nobody else
needs, each of which has a DELETION of its own. Whoever asked for the purge is answered at the end.
"""

from __future__ import annotations

from typing import Protocol

from bmqtwist.queue.meter import Meter
from bmqtwist.queue.queue import App, Place
from bmqtwist.steps import Steps, let_go
from bmqtwist.storage.long_dict import LongDict
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.records import DeletionReason
from bmqtwist.storage.state import MessageSteps, StoredQueue


class PurgedQueue(Protocol):
    """What a purge needs of its queue (`queue.root.RootQueue`)."""

    key: bytes
    in_memory: bool
    store: StoredQueue
    partition: Partition
    messages: LongDict[bytes, Message]
    meter: Meter
    active: list[App]
    purges: list[MessageSteps]  # under way

    def mark_purged(self, apps: list[App]) -> list[Place]:
        """Nothing of what is here now is given to these apps any more; where it was kept for them."""

    def remove(self, message: Message, reason: int, wall: int) -> None:
        """Take a message out of the store; records say so."""

    def touch(self) -> None:
        """Deliver at the end of the turn."""


def purge_queue(queue: PurgedQueue, wall: int) -> Steps[tuple[int, int]]:
    """Drop all messages. PartitionUnavailable: none was dropped, because nothing could be recorded."""
    steps = (queue.partition.state.empty(queue.store) if queue.in_memory
             else queue.partition.queues.purge(queue.key, None, None, wall))
    queue.messages = queue.store.messages
    if queue.in_memory:
        queue.meter.remove(queue.meter.messages, queue.meter.bytes)
    queue.meter.clear()
    places = queue.mark_purged(queue.active)
    count = size = 0
    queue.purges.append(steps)
    for number, step in enumerate(steps):
        if number:
            yield
        count += len(step)
        size += sum([message.size for message in step])
    queue.purges.remove(steps)
    yield from let_go(places)
    return count, size


def purge_app(queue: PurgedQueue, app: App, wall: int) -> Steps[tuple[int, int]]:
    """Drop the messages that one app has not finished with. PartitionUnavailable: none was dropped."""
    seen = _first_of(queue, app)
    steps = (queue.store.done_with(app.bit) if seen is None or queue.in_memory
             else queue.partition.queues.purge(queue.key, app.key, seen, wall))
    places = queue.mark_purged([app])
    purged = yield from _without(queue, steps, places, wall)
    queue.touch()
    return purged


def remove_app(queue: PurgedQueue, app: App, wall: int) -> Steps[tuple[int, int]]:
    """An app leaves, and its messages are gone for it: the rest of that. PartitionUnavailable: it stays."""
    seen = _first_of(queue, app)
    if seen is not None and not queue.in_memory:
        queue.partition.queues.purge(queue.key, app.key, seen, wall)  # what it means is part of what the deletion means
    steps = queue.partition.queues.delete_app(queue.key, app.key, wall)
    return _without(queue, steps, app.unregister(), wall)


def _first_of(queue: PurgedQueue, app: App) -> Message | None:
    """The first message that an app has seen."""
    return next((message for message in queue.messages.values() if message.order >= app.first_order), None)


def _without(queue: PurgedQueue, steps: MessageSteps, places: list[Place], wall: int) -> Steps[tuple[int, int]]:
    """An app is done with messages: those that no other app needs are removed."""
    count = size = 0
    queue.purges.append(steps)
    for number, step in enumerate(steps):
        if number:
            yield
        for message in step:
            count, size = count + 1, size + message.size
            if not message.pending:
                queue.remove(message, DeletionReason.NONE, wall)
    queue.purges.remove(steps)
    yield from let_go(places)
    return count, size
