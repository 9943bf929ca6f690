"""Messages of a queue being activated: numbered in order of arrival, and listed for each app that has to confirm them.

A step handles RESTORED_AT_ONCE messages. Arrival times later than `wall` are corrected; expired messages stay, and
`queue/root.py` removes them later.

`member/activation.py` runs the steps; `RootQueue.restore` takes over the result. RESTORED_AT_ONCE is in
`bmqtwist/limits.py`.
"""

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
class RestoredMessages:
    """Number of messages, bytes (application data and options), undelivered messages by the bit of their app. `finished`:
    messages that all apps have confirmed, without a DELETION of the previous primary."""

    messages: int
    bytes: int
    undelivered: dict[int, deque[Message]]
    finished: list[Message]


def restore(store: StoredQueue, wall: int) -> Generator[int, None, RestoredMessages]:
    """Number the messages in order of arrival, in steps; each yields its number of messages. The queue must not change
    meanwhile.

    An arrival time later than `wall`, or than that of a later message, comes from a clock that was fast; it is replaced by
    the arrival time of the next message, so that expiry does not stop at this one.
    """
    newest_first, left, size = store.messages.newest_first(), len(store.messages), 0
    undelivered = {app.bit: deque[Message]() for app in store.apps.values()}
    places, finished = list(undelivered.items()), list[Message]()
    if left > RESTORED_AT_ONCE:
        gc.collect(1)  # promotes the deques to an old generation before they are long, because young ones are traversed
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
    return RestoredMessages(len(store.messages), size, undelivered, finished)
