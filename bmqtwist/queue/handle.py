"""What a client holds of a queue: a handle, its substreams (one per appId), and what was delivered to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from bmqtwist.queue.routing import Subscription
from bmqtwist.queue.window import DeliveryWindow

if TYPE_CHECKING:
    from bmqtwist.queue.app import App
    from bmqtwist.queue.queue import Queue
    from bmqtwist.storage.partition import Message

FLAG_ADMIN: Final = 1
FLAG_READ: Final = 2
FLAG_WRITE: Final = 4
FLAG_ACK: Final = 8


class Client(Protocol):
    """The session core at the other end of a handle, as far as a queue needs it."""

    description: str
    window: DeliveryWindow
    is_broker: bool  # with clients of its own behind it
    is_member: bool  # such a broker that has the records of the queue itself

    def push(self, handle: Handle, sub_id: int, message: Message, redelivered: bool) -> None: ...

    def ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None: ...


class MemberClient(Client, Protocol):
    """A client with `is_member`."""

    def ack_ahead(self, handle: Handle, message: Message, partition_id: int) -> None:
        """A PUT is acknowledged as soon as its record is safe there."""


Unconfirmed = tuple["Message", Subscription, float]  # a message, against which window it counts, when it was pushed


class Substream:
    """One consumer of one app: (handle, subId)."""

    __slots__ = ("handle", "app", "sub_id", "app_id", "read_count", "subscriptions", "counting", "unconfirmed",
                 "redelivered")

    def __init__(self, handle: Handle, app: App, sub_id: int, app_id: str) -> None:
        self.handle, self.app, self.sub_id, self.app_id = handle, app, sub_id, app_id
        self.read_count = 0
        self.subscriptions: list[Subscription] = []
        self.counting: list[Subscription] = []  # these, or those before a pause: what is unconfirmed counts against them
        self.unconfirmed: dict[bytes, Unconfirmed] = {}  # by GUID
        self.redelivered: tuple[bytes, float] | None = None  # the last redelivered message sent here, and when


class Handle:
    """One client's use of one queue under one queue id."""

    __slots__ = ("client", "queue", "q_id", "flags", "read_count", "write_count", "substreams", "closing", "merges",
                 "acks_failed_at")

    def __init__(self, client: Client, queue: Queue, q_id: int) -> None:
        self.client, self.queue, self.q_id = client, queue, q_id
        self.flags = self.read_count = self.write_count = 0
        self.substreams: dict[int, Substream] = {}
        self.closing = False  # the final close was asked for: no ACK, no PUSH any more
        self.merges = False  # several substreams: one PUSH may name several of them
        self.acks_failed_at = float("-inf")  # when a refused PUT of this handle was last logged, monotonic seconds

    def resume(self) -> None:
        """The window of its client is open again: what waited for it is delivered."""
        for substream in self.substreams.values():
            if substream.subscriptions:
                substream.app.recheck_waiting = True
                self.queue.touch()
