"""What is known of one opened queue. A record: `queue_machine` changes it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from bmqtwist.ids import QueueUri
from bmqtwist.sdk._core.states import QueueState
from bmqtwist.sdk.codecs import Codec
from bmqtwist.sdk.options import QueueOptions, Subscription
from bmqtwist.wire import schema

FLAG_READ, FLAG_WRITE = 2, 4
_DEDUPLICATION_S = 300.0  # until the broker has said something else
_USABLE = frozenset((QueueState.OPEN, QueueState.REOPEN_HELD, QueueState.REOPENING, QueueState.RECONFIGURING))


@dataclass(eq=False, slots=True)
class Handle:
    """What all queues of one canonical URI share."""

    q_id: int
    next_sub_id: int = 1
    users: set[Queue] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Setting:
    """One configuration to send: new options, or no deliveries, or deliveries again. A pause is the application's wish,
    a suspension that of its host's health. `token` is completed when it is done."""

    kind: str  # configure, pause, unpause, suspend, resume
    options: QueueOptions
    token: object = None
    r_id: int = 0  # of its request, once that is sent


class Queue:
    """One opened URI. `owner` and `codec` belong to the adapter; `owner.confirm(message)` is what Message.confirm calls."""

    __slots__ = ("at_most_once", "close_tokens", "codec", "deduplication_s", "flags", "handle", "options", "owner", "paused",
                 "q_id", "routes", "routes_new", "setting", "settings", "state", "sub_id", "suspended", "target", "token",
                 "uri")

    uri: str
    target: QueueUri
    flags: int
    options: QueueOptions
    handle: Handle
    q_id: int
    sub_id: int
    owner: Any
    token: object

    def __init__(self, uri: str, target: QueueUri, flags: int, options: QueueOptions, handle: Handle, sub_id: int,
                 owner: Any, token: object) -> None:
        self.uri, self.target, self.flags, self.options, self.handle = uri, target, flags, options, handle
        self.q_id, self.sub_id = handle.q_id, sub_id
        self.owner, self.token = owner, token
        self.codec: Codec[Any] | None = None
        self.state: QueueState = QueueState.OPEN_HELD
        self.close_tokens: list[object] = []
        self.at_most_once: bool = False
        self.deduplication_s: float = _DEDUPLICATION_S
        self.suspended: bool = False
        self.paused: bool = False
        self.setting: Setting | None = None  # under way
        self.settings: deque[Setting] = deque()  # to be sent after it
        self.routes: dict[int, Subscription] = {}  # keys as in Routes: of the configuration that was accepted
        self.routes_new: dict[int, Subscription] = {}  # and of the one that is not answered yet

    @property
    def readable(self) -> bool:
        """Opened for reading?"""
        return bool(self.flags & FLAG_READ)

    @property
    def writable(self) -> bool:
        """Opened for writing?"""
        return bool(self.flags & FLAG_WRITE)

    @property
    def is_open(self) -> bool:
        """Can the application use it, connected or not?"""
        return self.state in _USABLE

    @property
    def silent(self) -> bool:
        """Is it to have no deliveries now?"""
        return self.suspended or self.paused

    @property
    def pending_settings(self) -> list[Setting]:
        """The configuration under way and those after it."""
        return [*([self.setting] if self.setting else []), *self.settings]

    @property
    def sub_id_info(self) -> schema.SubQueueIdInfo | None:
        """How the wire names the application of a reader."""
        return schema.SubQueueIdInfo(self.sub_id, self.target.app_id) if self.sub_id else None

    def __repr__(self) -> str:
        return f"<Queue {self.uri} {self.state.value}>"


Routes = dict[int, tuple[Queue, Subscription]]  # whom a delivery is for, by queue id << 32 | id in a PUSH
