"""One queue: what it stores, for whom, and when a message is gone.

A PUT is checked, deduplicated, metered and turned into a Message whose records join the turn's batch of the partition.
The ACK and the first delivery wait at the gate until those records are safe. Each message carries a bit mask of the
apps that have not finished with it; at zero it is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from bmqtwist.errors import AckStatus, PeerError
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.queue.app import App
from bmqtwist.queue.counters import QueueStats
from bmqtwist.queue.handle import Client, Handle, Substream
from bmqtwist.queue.history import GuidHistory
from bmqtwist.queue.meter import Meter
from bmqtwist.report import LineLimiter, Report
from bmqtwist.storage.partition import Message, Partition, PartitionUnavailable
from bmqtwist.wire import properties

if TYPE_CHECKING:
    from bmqtwist.queue.domain import Domain

CONFIRMED, REJECTED, AUTO_CONFIRMED = 0, 1, 2  # reasons of a CONFIRM record
DELETED, EXPIRED, NO_QUORUM = 0, 2, 4  # reasons of a DELETION record

ROUTING_FLAGS = {"priority": 2, "fanout": 10, "broadcast": 7}

Effect = tuple["Queue", Message | None, Handle | None, bytes, int, float]


class QueueContext(Protocol):
    """What a queue asks of the broker around it."""

    report: Report

    def touch(self, queue: Queue) -> None:
        """Deliver from this queue at the end of the turn."""

    def wake_at(self, when: float, queue: Queue) -> None:
        """Deliver from this queue again at a moment of the monotonic clock."""

    def gate_memory(self, effect: Effect) -> None:
        """Effects of in-memory queues: released at the end of the turn."""

    def metered(self, queue: Queue) -> None:
        """A meter changed its state: its events are to be taken."""

    def poisoned(self, queue: Queue, app: App, message: Message) -> None:
        """A message ran out of delivery attempts."""

    def client_failed(self, client: Client, error: Exception) -> None:
        """A client raised when it was spoken to: it is closed when nothing is in the middle of a delivery."""


class Queue:
    """State and rules of one queue at its primary."""

    def __init__(self, uri: str, name: str, key: bytes, domain: Domain, partition: Partition, context: QueueContext,
                 history_seconds: float) -> None:
        self.uri, self.name, self.key, self.domain, self.partition = uri, name, key, domain, partition
        self.partition_id = partition.partition_id
        self.mode, self.in_memory = domain.mode, domain.in_memory
        self.context = context
        self.gate: Callable[[Effect], None] = context.gate_memory if self.in_memory else partition.gate
        self.apps: dict[str, App] = {}
        self.active: list[App] = []  # the registered ones
        self.mask = 0  # bits of the registered apps
        self.conditions: list[App] = []  # registered apps with an application subscription
        self.handles: dict[Handle, None] = {}
        self.messages: dict[bytes, Message] = {}
        self.history = GuidHistory(history_seconds)
        self.meter = Meter(f"queue [{uri}]", domain.meter)
        self.stats = QueueStats()
        self.lines = LineLimiter()
        self.touched = False
        self.disabled = False  # it failed too often: nothing is taken or delivered until a restart
        self.idle_since: float | None = None
        self.holding = False  # strong consistency, and fewer nodes than the replication factor: effects wait
        self.unreceipted: list[Effect] = []
        self._order = 0
        self._ordinal = 0

    # -- apps -------------------------------------------------------------------------------------------------------

    def add_app(self, app_id: str, key: bytes, born: int | None = None) -> App:
        """Register an app for the messages from now on (or from arrival order `born`)."""
        app = self.apps.get(app_id)
        born = self._order if born is None else born
        if app is None:
            app = self.apps[app_id] = App(app_id, key, self._ordinal, born)
            if self.mode != "fanout":
                app.stats = self.stats
        else:
            app.register(key, self._ordinal, born)
        self._ordinal += 1
        self._index_apps()
        return app

    def restore_app(self, app_id: str, key: bytes, ordinal: int) -> App:
        """An app found in storage keeps the bit that the recovered messages know it by."""
        self._ordinal = ordinal
        app = self.add_app(app_id, key, born=0)
        self._ordinal = max(each.ordinal for each in self.active) + 1
        return app

    def app_for_reader(self, app_id: str) -> App:
        """The app a consumer named, registered or not."""
        app = self.apps.get(app_id)
        if app is None:
            app = self.apps[app_id] = App(app_id, b"", -1)
        return app

    def remove_app(self, app: App, wall: int) -> None:
        """Unregister: its messages are gone for it; consumers stay and get nothing."""
        seen = next((message for message in self.messages.values() if message.order >= app.born), None)
        key, bit = app.key, app.bit
        if seen is not None and not self.in_memory:
            self.record(self.partition.purge, self.key, key, seen, wall)
        self.record(self.partition.delete_queue, self.key, key, wall)
        app.unregister()
        self._index_apps()
        for message in list(self.messages.values()):
            if message.pending & bit:
                message.pending &= ~bit
                if not message.pending:
                    self.remove(message, DELETED, wall)
        if not app.substreams:
            del self.apps[app.app_id]

    def forget_app(self, app: App) -> None:
        """An unregistered app whose last consumer left leaves nothing behind."""
        if not app.registered and not app.substreams:
            self.apps.pop(app.app_id, None)

    def _index_apps(self) -> None:
        self.active = [app for app in self.apps.values() if app.registered]
        self.mask = 0
        for app in self.active:
            self.mask |= app.bit
        self.set_conditions()

    def set_conditions(self) -> None:
        """Take the application subscriptions of the domain as they are now."""
        for app in self.apps.values():
            app.condition = self.domain.conditions.get("" if app.app_id == DEFAULT_APP_ID else app.app_id)
        self.conditions = [app for app in self.active if app.condition is not None]

    # -- arriving messages ------------------------------------------------------------------------------------------

    def post(self, handle: Handle, guid: bytes, correlation_id: int, wants_ack: bool, payload: bytes,
             has_properties: bool, compression: int, schema_id: int, crc: int, options: bytes, now: float,
             wall: int) -> int:
        """Take one PUT; 0 = accepted (the ACK follows through the gate if wanted), else the status of the NACK."""
        if self.disabled:
            return AckStatus.NOT_READY
        size = len(payload)
        stats = self.stats
        acked = handle if wants_ack else None
        if self.mode == "broadcast":
            stats.put_msgs += 1
            stats.put_bytes += size
            self._broadcast(Message(guid, payload, options, has_properties, compression, schema_id, crc, now, wall))
            if wants_ack:
                stats.acked(0.0)
                handle.client.ack(handle, guid, correlation_id, 0)
            return 0
        if self.history.seen_or_add(guid, now) or guid in self.messages:
            if self.lines.admits(now):
                self.context.report.info(f"Duplicate PUT message queue [{self.uri}] from client "
                                        f"[{handle.client.description}], GUID [{guid.hex().upper()}]")
            if wants_ack:
                self.gate((self, None, acked, guid, correlation_id, now))
            return 0
        mask = self.mask
        message = Message(guid, payload, options, has_properties, compression, schema_id, crc, now, wall)
        if self.conditions:
            mask = self._accepting(message)
        if not mask:
            stats.put_msgs += 1
            stats.put_bytes += size
            if wants_ack:
                self.gate((self, None, acked, guid, correlation_id, now))
            return 0
        refused = self.meter.try_add(size)
        if self.meter.events:
            self.context.metered(self)
        if refused:
            self.history.discard(guid)
            return refused
        message.pending = mask
        message.order = self._order
        if not self.in_memory:
            message.ref_count = mask.bit_count()
            try:
                if mask != self.mask:
                    for app in self.conditions:
                        if not mask & app.bit:
                            self.partition.append_auto_confirm(self.key, app.key, guid, wall)
                self.partition.append_message(self.key, message, wall)
            except PartitionUnavailable:
                self.meter.remove(1, size)
                self.history.discard(guid)
                return AckStatus.STORAGE_FAILURE
        self._order += 1
        self.messages[guid] = message
        stats.put_msgs += 1
        stats.put_bytes += size
        held = len(self.messages)
        if held > stats.content_msgs_max:
            stats.content_msgs_max = held
        self.gate((self, message, acked, guid, correlation_id, now))
        return 0

    def _accepting(self, message: Message) -> int:
        mask = self.mask
        for app in self.conditions:
            if not app.condition.matches(self.values(message)):  # type: ignore[union-attr]
                mask &= ~app.bit
        return mask

    def _broadcast(self, message: Message) -> None:
        app = self.apps[DEFAULT_APP_ID]
        if app.condition is not None and not app.condition.matches(self.values(message)):
            return
        chosen = app.router.eligible(self.values(message) if message.has_properties else {})
        for subscription in chosen:
            handle = subscription.substream.handle
            if handle.client.lagging:  # at most once, and no credit bounds what would pile up
                if self.lines.admits(message.arrived):
                    self.context.report.warn(f"#CLIENT_SEND_FAILURE {handle.client.description}: does not read, a message "
                                            f"of queue '{self.uri}' is not delivered to it")
                continue
            try:
                handle.client.push(handle, subscription.s_id, message, False)
            except Exception as error:
                self.context.client_failed(handle.client, error)
                continue
            self.stats.pushed(message.size, 0.0)

    def forget_post(self, guid: bytes) -> None:
        """A `post` raised: unless the message is stored, it must be new when it is posted again."""
        if guid not in self.messages:
            self.history.discard(guid)

    def require_receipts(self, wanted: bool) -> None:
        """Hold what is posted from now on until enough nodes have it, or stop doing so; what waits keeps waiting."""
        self.holding = wanted

    def take_receipted(self) -> list[Effect]:
        """Enough nodes have everything again: the effects that waited, in order."""
        taken, self.unreceipted = self.unreceipted, []
        return taken

    def expire_unreceipted(self, now: float, wall: int) -> None:
        """NACK and remove what has waited for receipts longer than the deduplication window."""
        patience = self.domain.settings.deduplication_ms / 1000
        late = [effect for effect in self.unreceipted if now - effect[5] >= patience]
        if not late:
            return
        self.unreceipted = [effect for effect in self.unreceipted if now - effect[5] < patience]
        for _, message, handle, guid, correlation_id, _ in late:
            if message is not None and message.pending:
                self.remove(message, NO_QUORUM, wall)
                self.history.discard(guid)
            self.stats.nack_noquorum_msgs += 1
            if handle is not None:
                try:
                    handle.client.ack(handle, guid, correlation_id, AckStatus.UNKNOWN)
                except Exception as error:
                    self.context.client_failed(handle.client, error)

    def released(self, message: Message) -> None:
        """The records of a message are safe: its apps may have it."""
        pending = message.pending
        for app in self.active:
            if pending & app.bit:
                app.fresh.append(message)
        if not self.touched:
            self.context.touch(self)

    def restore(self, messages: list[Message]) -> None:
        """Take over recovered messages (pending masks and arrival times set), in arrival order."""
        for order, message in enumerate(messages, self._order):
            message.order = order
            self.messages[message.guid] = message
        self._order += len(messages)
        self.meter.force_add(len(messages), sum([message.size for message in messages]))
        for app in self.active:
            app.fresh.extend([message for message in messages if message.pending & app.bit])

    def values(self, message: Message) -> Mapping[str, object]:
        """The property values of a message, read once; what cannot be read counts as absent."""
        found: Mapping[str, object] | None = message.properties
        if found is None:
            found = {}
            if message.has_properties:
                try:
                    found = properties.values(self.payload(message), message.schema_id != 0)
                except (PeerError, PartitionUnavailable, OSError):
                    found = {}
            message.properties = found
        return found

    def payload(self, message: Message) -> bytes:
        """The application data, from memory or from the partition."""
        return message.payload if message.payload is not None else self.partition.read_payload(message)

    # -- leaving messages -------------------------------------------------------------------------------------------

    def confirm(self, substream: Substream, guid: bytes, now: float, wall: int) -> None:
        """A consumer is done with a message; unknown, late and repeated confirms are ignored."""
        entry = substream.unconfirmed.pop(guid, None)
        if entry is None:
            return
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
        stats = app.stats
        stats.confirmed(now - pushed_at)
        if stats is not self.stats:
            self.stats.confirmed(now - pushed_at)
        if message.pending & app.bit:
            self._finish(app, message, CONFIRMED, wall)

    def _finish(self, app: App, message: Message, reason: int, wall: int) -> None:
        pending = message.pending = message.pending & ~app.bit
        if not pending:
            self.remove(message, DELETED, wall)
        elif not self.in_memory:
            self.record(self.partition.append_confirm, self.key, app.key, message, reason, wall)

    def reject(self, app: App, message: Message, wall: int) -> None:
        """No delivery attempt is left: the app loses the message, the operator is told."""
        self.stats.reject_msgs += 1
        self.context.poisoned(self, app, message)
        self._finish(app, message, REJECTED, wall)

    def remove(self, message: Message, reason: int, wall: int) -> None:
        """Take a message out of the store; records say so."""
        del self.messages[message.guid]
        message.pending = 0
        self.meter.remove(1, message.size)
        if self.meter.events:
            self.context.metered(self)
        if not self.in_memory:
            try:
                self.partition.append_deletion(self.key, message, reason, wall)
            except PartitionUnavailable:
                self.partition.release(message)  # the next rollover leaves it out

    def record(self, append: Callable[..., None], *args: object) -> None:
        """Append a record that changes nothing for anyone if it is lost; the partition has raised its alarm."""
        try:
            append(*args)
        except PartitionUnavailable:
            pass

    def expire(self, wall: int) -> None:
        """Remove what is older than the domain's TTL, oldest first."""
        ttl = self.domain.ttl_s
        gone = []
        for message in self.messages.values():
            if wall - message.wall <= ttl:
                break
            gone.append(message)
        if not gone:
            return
        for message in gone:
            self.remove(message, EXPIRED, wall)
            for app in self.active:
                app.forget(message)
        self.stats.gc_msgs += len(gone)
        self.context.report.info(f"For storage for queue [{self.uri}] and queueKey [{self.key.hex().upper()}] configured "
                                f"with TTL value of [{ttl}] seconds, garbage-collected [{len(gone)}] messages due to "
                                f"TTL expiration")
        self.touch()

    def purge(self, app: App | None, wall: int) -> tuple[int, int]:
        """Drop all messages, or those one app has not finished with; returns how many and how many bytes."""
        if app is None:
            count, size = len(self.messages), sum(message.size for message in self.messages.values())
            if not self.in_memory:
                self.record(self.partition.purge, self.key, None, None, wall)
            for message in self.messages.values():
                message.pending = 0
                if not self.in_memory:
                    self.partition.release(message)
            self.messages.clear()
            self.meter.clear()
            for each in self.active:
                each.register(each.key, each.ordinal, each.born)
            return count, size
        seen = [message for message in self.messages.values() if message.order >= app.born]
        if seen and not self.in_memory:
            self.record(self.partition.purge, self.key, app.key, seen[0], wall)
        count = size = 0
        for message in seen:
            if message.pending & app.bit:
                count += 1
                size += message.size
                message.pending &= ~app.bit
                if not message.pending:
                    self.remove(message, DELETED, wall)
        app.register(app.key, app.ordinal, app.born)
        self.touch()
        return count, size

    # -- the rest ----------------------------------------------------------------------------------------------------

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

    def attempts_left(self, app: App, message: Message) -> int | None:
        """Remaining delivery attempts of a message for an app; None = unlimited."""
        if not self.domain.max_attempts or message.attempts is None:
            return self.domain.max_attempts or None
        return message.attempts.get(app.ordinal, message.attempts.get(-1, self.domain.max_attempts))

    def freeze_attempts(self, limit: int) -> None:
        """Messages stored so far keep `limit` attempts although the domain's number changes."""
        for message in self.messages.values():
            if message.attempts is None:
                message.attempts = {-1: limit}
