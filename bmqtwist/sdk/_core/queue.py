"""Records of opened queues, and the registry of a session's queues. `queue_machine` and `queue_settings` change them.

Ids are assigned as in the other SDKs: one queue id per canonical URI, stable over reconnects; one sub-queue id per reader
with an app id; a new subscription id for each subscription in each configure request (`requests`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from bmqtwist.ids import QueueUri
from bmqtwist.machine import TransitionLog
from bmqtwist.sdk._core.states import QueueState
from bmqtwist.sdk.codecs import Codec
from bmqtwist.sdk.options import QueueOptions, Subscription
from bmqtwist.wire import schema

FLAG_READ, FLAG_WRITE = 2, 4
_DEDUPLICATION_S = 300.0  # default until the broker's openQueue response
_USABLE = frozenset((QueueState.OPEN, QueueState.REOPEN_HELD, QueueState.REOPENING, QueueState.RECONFIGURING))


@dataclass(eq=False, slots=True)
class Handle:
    """Ids shared by all queues of one canonical URI."""

    q_id: int
    next_sub_id: int = 1
    users: set[Queue] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Setting:
    """One configure request: new options, deliveries stopped, or deliveries resumed. The application pauses a queue, an
    unhealthy host suspends it. The result completes `token`."""

    kind: str  # configure, pause, unpause, suspend, resume
    options: QueueOptions
    token: object = None
    r_id: int = 0  # id of the request, once it is sent


@dataclass(eq=False, slots=True, repr=False)
class Queue:
    """One opened URI. `owner` and `codec` belong to the adapter; Message.confirm calls `owner.confirm(message)`."""

    uri: str
    target: QueueUri
    flags: int
    options: QueueOptions
    handle: Handle
    sub_id: int
    owner: Any
    token: object  # of the open
    q_id: int = field(init=False)
    codec: Codec[Any] | None = None
    state: QueueState = QueueState.OPEN_HELD
    history: TransitionLog = field(default_factory=TransitionLog)
    close_tokens: list[object] = field(default_factory=list)
    at_most_once: bool = False
    deduplication_s: float = _DEDUPLICATION_S
    suspended: bool = False
    paused: bool = False
    setting: Setting | None = None  # in progress
    settings: deque[Setting] = field(default_factory=deque)  # to be sent next, in order
    routes: dict[int, Subscription] = field(default_factory=dict)  # of the accepted configuration; keys as in Routes
    routes_new: dict[int, Subscription] = field(default_factory=dict)  # of the unanswered configuration

    def __post_init__(self) -> None:
        self.q_id = self.handle.q_id

    @property
    def readable(self) -> bool:
        return bool(self.flags & FLAG_READ)

    @property
    def writable(self) -> bool:
        return bool(self.flags & FLAG_WRITE)

    @property
    def is_open(self) -> bool:
        return self.state in _USABLE

    @property
    def deliveries_off(self) -> bool:
        return self.suspended or self.paused

    @property
    def pending_settings(self) -> list[Setting]:
        return [*([self.setting] if self.setting else []), *self.settings]

    @property
    def sub_id_info(self) -> schema.SubQueueIdInfo | None:
        """Return the app of a reader as a schema object."""
        return schema.SubQueueIdInfo(self.sub_id, self.target.app_id) if self.sub_id else None

    def __repr__(self) -> str:
        return f"<Queue {self.uri} {self.state.value}>"


Routes = dict[int, tuple[Queue, Subscription]]  # target of a delivery, by queue id << 32 | subscription id of a PUSH


class QueueRegistry:
    """Queues by URI, and handles by canonical URI. `restoring`: queues not reopened yet after a reconnect."""

    __slots__ = ("_next_q_id", "by_uri", "handles", "restoring")

    def __init__(self) -> None:
        self.by_uri: dict[str, Queue] = {}
        self.handles: dict[str, Handle] = {}
        self.restoring: set[Queue] = set()
        self._next_q_id = 0

    def make(self, uri: str, target: QueueUri, flags: int, options: QueueOptions, owner: Any, token: object) -> Queue:
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
        handle = queue.handle
        handle.users.discard(queue)
        if not handle.users and self.handles.get(queue.target.canonical) is handle:
            del self.handles[queue.target.canonical]

    def remove(self, queue: Queue) -> None:
        self.release(queue)
        if self.by_uri.get(queue.uri) is queue:
            del self.by_uri[queue.uri]

    def all(self) -> list[Queue]:
        """Return a copy: operations on the queues may change the registry."""
        return list(self.by_uri.values())
