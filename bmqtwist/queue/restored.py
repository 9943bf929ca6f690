"""What a queue finds of itself when it comes to life: the messages that are stored, a million perhaps."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from itertools import islice

from bmqtwist.limits import RESTORED_AT_ONCE
from bmqtwist.storage.message import Message
from bmqtwist.storage.state import StoredQueue


@dataclass(frozen=True, slots=True)
class Restored:
    """How many messages and bytes (application data and options); what is to be delivered to each app, by its bit; finished:
    confirmed by all, but the last primary died before it wrote that down."""

    messages: int
    bytes: int
    fresh: dict[int, deque[Message]]
    finished: list[Message]


def restore(store: StoredQueue, wall: int) -> Generator[int, None, Restored]:
    """Number the messages in the order of their arrival, in steps: each gives how many it took. Nobody changes the queue
    meanwhile.

    A message that claims to be younger than `wall`, or than one that came after it, was stored by a clock that was ahead; it
    counts as having arrived with the next one, so that expiry does not stop at it.
    """
    newest_first, left, size = store.messages.newest_first(), len(store.messages), 0
    fresh = {app.bit: deque[Message]() for app in store.apps.values()}
    places, finished = list(fresh.items()), list[Message]()
    if left > RESTORED_AT_ONCE:
        gc.collect(1)  # so the places are old before they are long: of young ones it looks at all that is in them
    while left:
        step = list(islice(newest_first, RESTORED_AT_ONCE))
        for message in step:
            left -= 1
            message.order = left
            if message.wall > wall:
                message.wall = wall
            wall = message.wall
            size += message.size + len(message.options)
            pending = message.pending
            if not pending:
                finished.append(message)
            for bit, place in places:
                if pending & bit:
                    place.appendleft(message)
        yield len(step)
    return Restored(len(store.messages), size, fresh, finished)
