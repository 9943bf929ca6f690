"""The queues of a session, and the ids they have.

Ids, as the other SDKs give them: one queue id per canonical URI, kept over reconnects; one sub-queue id per reader with
an application id; a new subscription id for each subscription in each configure request (`queue_requests`).
"""

from __future__ import annotations

from typing import Any

from bmqtwist.ids import QueueUri
from bmqtwist.sdk._core.queue import FLAG_READ, Handle, Queue
from bmqtwist.sdk.options import QueueOptions


class QueueRegistry:
    """Queues by URI, and by canonical URI what those of one share. `restoring`: not reopened yet since a reconnect."""

    __slots__ = ("_next_q_id", "by_uri", "handles", "restoring")

    def __init__(self) -> None:
        self.by_uri: dict[str, Queue] = {}
        self.handles: dict[str, Handle] = {}
        self.restoring: set[Queue] = set()
        self._next_q_id = 0

    def make(self, uri: str, target: QueueUri, flags: int, options: QueueOptions, owner: Any, token: object) -> Queue:
        """A queue that waits to be opened, with its ids."""
        handle = self.handles.get(target.canonical)
        if handle is None:
            handle = self.handles[target.canonical] = Handle(self._next_q_id)
            self._next_q_id += 1
        sub_id = 0
        if flags & FLAG_READ and target.app_id:
            sub_id, handle.next_sub_id = handle.next_sub_id, handle.next_sub_id + 1
        queue = self.by_uri[uri] = Queue(uri, target, flags, options, handle, sub_id, owner, token)
        handle.users.add(queue)
        return queue

    def release(self, queue: Queue) -> None:
        """A queue does not use its ids any more."""
        handle = queue.handle
        handle.users.discard(queue)
        if not handle.users and self.handles.get(queue.target.canonical) is handle:
            del self.handles[queue.target.canonical]

    def forget(self, queue: Queue) -> None:
        """A queue is closed."""
        self.release(queue)
        if self.by_uri.get(queue.uri) is queue:
            del self.by_uri[queue.uri]

    def all(self) -> list[Queue]:
        """All queues, in a list of its own: what is done with them may change the registry."""
        return list(self.by_uri.values())
