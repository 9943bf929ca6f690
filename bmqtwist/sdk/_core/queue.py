"""Queues of a session: the record of each opened queue, and the registry of all. `queue_machine` and `queue_configuration`
change both; `queue_machine.Queues` checks a request of the application before it changes them.

Ids are assigned as in the other SDKs: one queue id per canonical URI, stable over reconnects; one sub-queue id per reader
with an app id; a new subscription id for each subscription in each configure request (`requests.py`, which sends the
requests).
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
_USABLE = frozenset((QueueState.OPEN, QueueState.REOPEN_PENDING, QueueState.REOPENING, QueueState.RECONFIGURING))


@dataclass(eq=False, slots=True)
class QueueIds:
    """Ids shared by all queues of one canonical URI."""

    q_id: int
    next_sub_id: int = 1
    users: set[Queue] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class ConfigureRequest:
    """One configure request: new options, or deliveries off or on. The application pauses a queue, an unhealthy host
    suspends it. The result completes `token`."""

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
    ids: QueueIds
    sub_id: int
    owner: Any
    token: object  # the result of the open completes it
    q_id: int = field(init=False)
    codec: Codec[Any] | None = None
    state: QueueState = QueueState.OPEN_PENDING
    history: TransitionLog = field(default_factory=TransitionLog)
    close_tokens: list[object] = field(default_factory=list)
    at_most_once: bool = False
    deduplication_s: float = _DEDUPLICATION_S
    suspended: bool = False
    paused: bool = False
    configure_request: ConfigureRequest | None = None  # in progress
    configure_backlog: deque[ConfigureRequest] = field(default_factory=deque)  # to be sent next, in order
    routes: dict[int, Subscription] = field(default_factory=dict)  # of the accepted configuration; keys as in Routes
    routes_new: dict[int, Subscription] = field(default_factory=dict)  # of the unanswered configuration

    def __post_init__(self) -> None:
        self.q_id = self.ids.q_id

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
    def pending_configure_requests(self) -> list[ConfigureRequest]:
        return [*([self.configure_request] if self.configure_request else []), *self.configure_backlog]

    @property
    def sub_id_info(self) -> schema.SubQueueIdInfo | None:
        """Return the app of a reader as a schema object."""
        return schema.SubQueueIdInfo(self.sub_id, self.target.app_id) if self.sub_id else None

    def __repr__(self) -> str:
        return f"<Queue {self.uri} {self.state.value}>"


Routes = dict[int, tuple[Queue, Subscription]]  # target of a delivery, by queue id << 32 | subscription id of a PUSH


class QueueRegistry:
    """Queues by URI, and their ids by canonical URI. `restoring`: queues not reopened yet after a reconnect."""

    __slots__ = ("_next_q_id", "by_uri", "ids_by_uri", "restoring")

    def __init__(self) -> None:
        self.by_uri: dict[str, Queue] = {}
        self.ids_by_uri: dict[str, QueueIds] = {}
        self.restoring: set[Queue] = set()
        self._next_q_id = 0

    def add(self, uri: str, target: QueueUri, flags: int, options: QueueOptions, owner: Any, token: object) -> Queue:
        """Add a queue and assign its ids."""
        ids = self.ids_by_uri.get(target.canonical)
        if ids is None:
            ids = self.ids_by_uri[target.canonical] = QueueIds(self._next_q_id)
            self._next_q_id += 1
        sub_id = 0
        if flags & FLAG_READ and target.app_id:
            sub_id, ids.next_sub_id = ids.next_sub_id, ids.next_sub_id + 1
        queue = self.by_uri[uri] = Queue(uri, target, flags, options, ids, sub_id, owner, token)
        ids.users.add(queue)
        return queue

    def release_ids(self, queue: Queue) -> None:
        """Remove a queue from the users of its ids; ids without users are removed."""
        ids = queue.ids
        ids.users.discard(queue)
        if not ids.users and self.ids_by_uri.get(queue.target.canonical) is ids:
            del self.ids_by_uri[queue.target.canonical]

    def remove(self, queue: Queue) -> None:
        self.release_ids(queue)
        if self.by_uri.get(queue.uri) is queue:
            del self.by_uri[queue.uri]

    def all(self) -> list[Queue]:
        """Return a copy: operations on the queues may change the registry."""
        return list(self.by_uri.values())
