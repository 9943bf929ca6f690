"""One queue as its consumers and producers see it, wherever it is led.

    storage/state.py StoredQueue    what is stored and who still needs it; fed by records alone, on every replica
    queue/root.py    RootQueue      who gets what next: the engine of the primary
    Queue (here)                    handles, apps, windows: what both the primary and a node on the way to it need
    queue/relay.py RelayQueue       on the way to the primary: `post` and `finish` go upstream
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from bmqtwist.errors import PeerError
from bmqtwist.queue.app import App
from bmqtwist.queue.counters import AckLatency, QueueStats
from bmqtwist.queue.handle import Client, Handle, Substream
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.put import Put
from bmqtwist.report import LineLimiter, Report
from bmqtwist.steps import Work
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.storage.store import BEGINNING_BYTES
from bmqtwist.wire import properties

if TYPE_CHECKING:
    from bmqtwist.queue.domain import Domain


class QueueContext(Protocol):
    """What a queue asks of the broker around it."""

    report: Report
    ack_latency: AckLatency  # of all queues

    def touch(self, queue: Queue) -> None:
        """Deliver from this queue at the end of the turn."""

    def touch_next(self, queue: Queue) -> None:
        """Go on with delivering from this queue in the next turn."""

    def wake_at(self, when: float, queue: Queue) -> None:
        """Deliver from this queue again at a moment of the monotonic clock."""

    def hold_until_written(self, put: Put) -> None:
        """A PUT to a queue that lives in memory: released at the end of the turn."""

    def client_failed(self, client: Client, error: Exception) -> None:
        """A client raised when it was spoken to: it is closed when nothing is in the middle of a delivery."""


class Queue(ABC):
    """Who uses a queue, and what was delivered to whom."""

    reach = 1  # to how many apps, or consumers at once, a PUT goes

    def __init__(self, uri: str, name: str, domain: Domain, context: QueueContext) -> None:
        self.uri, self.name, self.domain, self.context = uri, name, domain, context
        self.mode, self.in_memory = domain.mode, domain.in_memory
        self.broadcast = domain.mode == QueueMode.BROADCAST
        self.apps: dict[str, App] = {}
        self.active: list[App] = []  # the registered ones
        self.handles: dict[Handle, None] = {}
        self.stats = QueueStats(context.ack_latency)
        self.lines = LineLimiter()
        self.stop_lines = LineLimiter(60.0)  # a queue whose consumers are busy stops behind every message
        self.touched = False
        self.disabled = False  # it failed too often: nothing is taken or delivered until a restart
        self.idle_since: float | None = None

    # -- what depends on where the queue is led ---------------------------------------------------------------------

    @abstractmethod
    def post(self, put: Put, now: float, wall: int) -> int:
        """Take one PUT; 0 = accepted (the ACK follows later if it is wanted), else the status of the NACK."""

    @abstractmethod
    def release(self, put: Put, now: float) -> None:
        """What a PUT was held back for has come: acknowledge it, hand its message on."""

    @abstractmethod
    def forget_post(self, guid: bytes) -> None:
        """A `post` raised: unless the message is stored, it must be new when it is posted again."""

    @abstractmethod
    def finish(self, app: App, message: Message, wall: int) -> None:
        """A consumer is done with a message of its app."""

    @abstractmethod
    def reject(self, app: App, message: Message, wall: int) -> None:
        """No delivery attempt is left: the app loses the message, the operator is told."""

    @abstractmethod
    def confirm_undelivered(self, substream: Substream, guid: bytes, wall: int) -> None:
        """A node below us is done with a message that it was not given on this connection, but on an earlier one."""

    @abstractmethod
    def attempt_failed(self, app: App, message: Message, wall: int) -> bool:
        """A consumer was lost with a message: take one attempt off. False = it was the last one, the message is rejected."""

    @property
    @abstractmethod
    def has_plenty(self) -> bool:
        """Whether it may hold PLENTY times what it holds: no producer is refused if CONFIRMs count a moment later."""

    @abstractmethod
    def deliver(self, now: float) -> None:
        """Hand out whatever the consumers have room for."""

    @abstractmethod
    def payload(self, message: Message) -> bytes:
        """The application data of a message."""

    def beginning(self, message: Message, size: int = BEGINNING_BYTES) -> bytes:
        """At least so many bytes of it, or all there are."""
        return self.payload(message)

    def holds(self, app: App, message: Message) -> bool:
        """Whether an app still needs a message."""
        return bool(message.pending & app.bit)

    def in_slices(self, work: Work, doing: str) -> None:
        """Do what may take long: here at once."""
        for _ in work:
            pass

    # -- consumers --------------------------------------------------------------------------------------------------

    def app_for_reader(self, app_id: str) -> App:
        """The app a consumer named, registered or not."""
        app = self.apps.get(app_id)
        if app is None:
            app = self.apps[app_id] = App(app_id, b"", -1)
        return app

    def forget_app(self, app: App) -> None:
        """An unregistered app whose last consumer left leaves nothing behind."""
        if not app.registered and not app.substreams:
            self.apps.pop(app.app_id, None)

    def confirm(self, substream: Substream, guid: bytes, now: float, wall: int) -> None:
        """A consumer is done with a message; unknown, late and repeated confirms are ignored."""
        unconfirmed = substream.unconfirmed
        entry = unconfirmed.get(guid)
        if entry is None:
            if substream.handle.client.is_broker:
                self.confirm_undelivered(substream, guid, wall)
            return
        del unconfirmed[guid]
        message, subscription, pushed_at = entry
        messages = subscription.messages = subscription.messages - 1
        held = subscription.bytes = subscription.bytes - message.size
        if subscription.full and messages <= subscription.low_messages and held <= subscription.low_bytes:
            subscription.full = False  # 80 % of both limits
            substream.app.recheck_waiting = True
            self.touch()
        if substream.redelivered is not None and substream.redelivered[0] == guid:
            substream.redelivered = None
            self.touch()
        app = substream.app
        stats, after = app.stats, now - message.arrived
        stats.confirmed(now - pushed_at, after)
        if stats is not self.stats:
            self.stats.confirmed(now - pushed_at, after)
        self.finish(app, message, wall)

    def rejected(self, substream: Substream, guid: bytes, wall: int) -> None:
        """A node below us has lost a consumer with a message: it goes on trying while attempts are left."""
        entry = substream.unconfirmed.get(guid)
        if entry is None or self.attempt_failed(substream.app, entry[0], wall):
            return
        self._take_from(substream, guid)

    def returned(self, substream: Substream, guid: bytes) -> None:
        """A node below us has nobody for a message any more: somebody else is given it."""
        if guid in substream.unconfirmed:
            message = self._take_from(substream, guid)
            if self.holds(substream.app, message):
                substream.app.give_back([message])

    def _take_from(self, substream: Substream, guid: bytes) -> Message:
        """A consumer has one of its messages no longer, and room for another one."""
        message, subscription, _ = substream.unconfirmed.pop(guid)
        subscription.carry_over(subscription.messages - 1, subscription.bytes - message.size)
        substream.app.recheck_waiting = True
        self.touch()
        return message

    def values(self, message: Message) -> Mapping[str, object]:
        """The property values of a message, read once; what cannot be read counts as absent."""
        found: Mapping[str, object] | None = message.properties
        if found is None:
            found = {}
            if message.has_properties:
                try:
                    found = self._values(message)
                except (PeerError, PartitionUnavailable, OSError):
                    found = {}
            message.properties = found
        return found

    def _values(self, message: Message) -> Mapping[str, object]:
        data = self.beginning(message)
        if len(data) < (size := properties.announced_length(data)) <= message.size:
            data = self.beginning(message, size)
        return properties.values(data, message.schema_id != 0)

    def attempts_left(self, app: App, message: Message) -> int | None:
        """Remaining delivery attempts of a message for an app; None = unlimited."""
        if not self.domain.max_attempts or message.attempts is None:
            return self.domain.max_attempts or None
        return message.attempts.get(app.ordinal, message.attempts.get(-1, self.domain.max_attempts))

    def touch(self) -> None:
        """Deliver at the end of the turn."""
        if not self.touched:
            self.context.touch(self)

    def readers(self) -> int:
        """Sum of the read counts of all clients."""
        return sum(handle.read_count for handle in self.handles)

    def writers(self) -> int:
        """Sum of the write counts of all clients."""
        return sum(handle.write_count for handle in self.handles)
