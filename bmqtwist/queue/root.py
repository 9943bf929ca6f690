"""Queues at their primary: acceptance, storage, release and removal of messages.

A PUT is deduplicated, checked against the quotas and turned into records of the turn's batch of the partition. Its ACK and
first delivery wait at the durability gate until the records are durable or committed. The `StoredQueue` of the partition
has the stored messages and the apps that need them; records alone change it, and `RootQueue` decides on the records.

Purges and the removal of an app append one record first and process the messages in slices afterwards; a restart in
between completes the work. From the record on, no consumer receives a purged message, and a queue purged as a whole is
empty. The slices free memory and, for one app, append a DELETION for each message that no other app needs. The requester
of the purge receives its answer after the last slice.

Called by sessions (`link/puts.py`, `link/client.py`) and by `broker/deliveries.py`; `member/cluster.py` creates it.
Quotas are checked by `meter.py`, GUIDs by `storage/history.py`; sizes of slices are in `bmqtwist/limits.py`, statuses
of ACKs in `bmqtwist/errors.py`.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol, cast

from bmqtwist.errors import AckStatus
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.limits import MESSAGES_AT_ONCE, MOVED_QUEUE
from bmqtwist.queue import delivery
from bmqtwist.queue.domain import DomainRules, DomainSettings, Throttle
from bmqtwist.queue.lifecycle import QueueChange, QueueLifecycle, QueuePhase
from bmqtwist.queue.meter import Meter
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.queue import App, MemberClient, MessageList, Put, Queue, QueueContext, Substream
from bmqtwist.queue.restored_messages import RestoredMessages
from bmqtwist.steps import Steps, clear_in_steps
from bmqtwist.storage.gate import Copies
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import COMMITTED_ALL, Partition, PartitionUnavailable
from bmqtwist.storage.records import ConfirmReason, DeletionReason
from bmqtwist.storage.state import MessageSteps, StoredQueue
from bmqtwist.storage.store import BEGINNING_BYTES

_CONFIRMED: Final = int(ConfirmReason.CONFIRMED)  # of the hot path
_DONE: Final = int(DeletionReason.NONE)
_MAJORITY: Final = Copies.MAJORITY
_DISABLED = QueuePhase.DISABLED, QueuePhase.DISABLED_DELETING, QueuePhase.RETIRED


class RootContext(QueueContext, Protocol):
    """Services of the broker for queues at their primary."""

    def report_meter(self, queue: RootQueue) -> None:
        """Report the state changes of the queue's meter and its domain's."""

    def report_poison(self, queue: RootQueue, app: App, message: Message) -> None:
        """Raise the alarm for a poison message."""

    def run_in_slices(self, queue: RootQueue, doing: str, work: Steps[Any]) -> None:
        """Run work of a queue as a job, from this turn on."""


class RootQueue(Queue):
    """A queue at its primary."""

    _convert: Callable[[RootQueue], None]

    def __init__(self, uri: str, name: str, store: StoredQueue, domain: Domain, partition: Partition,
                 context: RootContext, now: float) -> None:
        super().__init__(uri, name, domain, context)
        self.store, self.key, self.partition = store, store.key, partition
        self.partition_id, self.lease = partition.partition_id, partition.lease
        self.root_context = context
        self._domain_queues = domain.queues
        self.lifecycle = QueueLifecycle()
        self.activated_at = now  # time of its activation at this node
        self.conditions: list[App] = []  # registered apps with an application subscription
        self.messages = store.messages
        self.history = store.history
        self.history.set_window(domain.settings.deduplication_ms / 1000, now)
        self.meter = Meter(f"queue [{uri}]", domain.meter)
        self.uncommitted = Uncommitted(self)
        self._order = 0
        self.purges: list[MessageSteps] = []  # in progress
        self._purged_before = 0  # messages with a lower order may be purged
        self._new_guid = b""  # GUID of a new PUT whose `post` has not completed
        self.deferred_actions: list[Callable[[], None]] | None = None  # actions of clients deferred since `begin_conversion`

    def is_collectable(self, now: float, keepalive_s: float, started: float) -> bool:
        """True if the queue may be deleted: empty and without handles for `keepalive_s` seconds.

        A queue that was never opened here counts as unused since its activation: after a failover, clients of other nodes
        have yet to open it. `started`: start of the broker. Times are monotonic seconds.
        """
        if self.handles or self.messages or self.purges or self.domain.opening:
            return False
        return now - (self.idle_since if self.idle_since is not None else max(started, self.activated_at)) >= keepalive_s

    # -- apps -------------------------------------------------------------------------------------------------------

    def register_apps(self, first_order: int | None = None) -> None:
        """Register new apps of the store for all later messages, or for those from arrival order `first_order` on."""
        first_order = self._order if first_order is None else first_order
        for stored in self.store.apps.values():
            app = self.apps.get(stored.app_id)
            if app is None:
                app = self.apps[stored.app_id] = App(stored.app_id, stored.key, stored.ordinal, first_order)
                if self.mode != QueueMode.FANOUT:
                    app.stats = self.stats
            elif not app.registered:
                app.register(stored.key, stored.ordinal, first_order)
        self._update_active()

    def remove_app(self, app: App, wall: int) -> None:
        """Unregister an app and drop its messages; consumers stay connected. PartitionUnavailable: nothing changed."""
        work = _remove_app(self, app, wall)
        self._update_active()
        self.run_in_slices(work, "the end of an app")
        if not app.substreams:
            del self.apps[app.app_id]

    def _update_active(self) -> None:
        self.active = [app for app in self.apps.values() if app.registered]
        self.receiver_count = max(1, len(self.active))
        self.set_conditions()

    def set_conditions(self) -> None:
        """Apply the domain's application subscriptions."""
        for app in self.apps.values():
            app.condition = self.domain.conditions.get("" if app.app_id == DEFAULT_APP_ID else app.app_id)
        self.conditions = [app for app in self.active if app.condition is not None]

    # -- arriving messages ------------------------------------------------------------------------------------------

    def post(self, put: Put, now: float, wall: int) -> int:
        put.queue = self
        if self.disabled:
            deferred = put.handle is not None and self.defer_action(partial(_post_deferred, put, now, wall))
            return 0 if deferred else AckStatus.NOT_READY
        message = put.message
        guid, size = message.guid, message.size
        stats = self.stats
        if self.broadcast:
            stats.put_msgs += 1
            stats.put_bytes += size
            self.receiver_count = delivery.broadcast(self, self.apps[DEFAULT_APP_ID], message)
            if put.wants_ack:
                stats.count_ack(0.0)
                put.answer(0)
            return 0
        history = self.history
        if history.seen_or_add(guid, now) or not history.never_added and guid in self.messages:
            if self.lines.admits(now):
                self.context.report.info(f"Duplicate PUT message queue [{self.uri}] from client "
                                         f"[{put.handle.client.description if put.handle else ''}], GUID "
                                         f"[{guid.hex().upper()}]")
            if put.wants_ack:
                put.copies = self.domain.settings.copies  # the first PUT may not be committed yet
                self._hold_put(put)
            return 0
        self._new_guid = guid
        mask = self.store.mask
        if self.conditions:
            mask = self._accepting_apps(message)
        if not mask:
            stats.put_msgs += 1
            stats.put_bytes += size
            if put.wants_ack:
                self._hold_put(put)
            return 0
        counted = size + len(message.options) if message.options else size
        refused = self.meter.try_add(counted)
        if self.meter.events:
            self.root_context.report_meter(self)
        if refused:
            self.history.discard(guid)
            return refused
        message.order = self._order
        try:
            self._append(put, message, mask, wall)
        except PartitionUnavailable:
            self.meter.remove(1, counted)
            self.history.discard(guid)
            return AckStatus.STORAGE_FAILURE
        self._order += 1
        stats.put_msgs += 1
        stats.put_bytes += size
        held = len(self.messages)
        if held > stats.content_msgs_max:
            stats.content_msgs_max = held
        put.stored = True
        self._hold_put(put)
        self._new_guid = b""
        return 0

    def _append(self, put: Put, message: Message, mask: int, wall: int) -> None:
        """Store a message for the apps in `mask`. PartitionUnavailable: nothing is stored."""
        put.copies = copies = self.domain.settings.copies
        if copies and copies is not _MAJORITY:
            self.partition.copies.counts_copies = True
        if self.in_memory:
            self.store.add_message(message)
            message.pending = mask
            put.position = 0 if self.partition.replicated else COMMITTED_ALL  # never replicated
            return
        message.ref_count = len(self.store.apps) if mask == self.store.mask else mask.bit_count()
        if mask != self.store.mask:
            for app in self.conditions:
                if not mask & app.bit:
                    self.partition.append_auto_confirm(self.key, app.key, message.guid, wall)
        self.partition.append_message(self.key, message, wall)

    def _hold_put(self, put: Put) -> None:
        if self.in_memory:
            self.context.hold_until_written(put)
        else:
            self.partition.hold_effect(put)

    def _accepting_apps(self, message: Message) -> int:
        mask = self.store.mask
        for app in self.conditions:
            if not app.condition.matches(self.values(message)):  # type: ignore[union-attr]
                mask &= ~app.bit
        return mask

    # -- released by the durability gate ----------------------------------------------------------------------------

    def release(self, put: Put, now: float) -> None:
        """Acknowledge and deliver a PUT whose records are durable here, or wait for its commit, in order."""
        if self.uncommitted.puts or put.copies and put.position > self.partition.copies.marks[put.copies]:
            self.uncommitted.add(put, now)
        else:
            self.acknowledge(put, now)

    def deliver_early(self, put: Put) -> None:
        """Deliver a message before its ACK: its records await write coalescing, and its producer does not wait."""
        if put.stored:
            self.add_to_apps(put.message, ~put.early_apps)
            put.early_apps = -1

    def acknowledge(self, put: Put, now: float) -> None:
        """Acknowledge a PUT and deliver its message."""
        message, handle = put.message, put.handle
        if put.wants_ack and handle is not None:
            self.stats.count_ack(now - message.arrived)
            try:
                handle.client.ack(handle, message.guid, put.correlation_id, 0)
            except Exception as error:
                self.context.client_failed(handle.client, error)
        if put.stored:
            self.add_to_apps(message, ~put.early_apps)

    def add_to_apps(self, message: Message, apps: int = -1) -> None:
        """Add a message to the new messages of the apps in the bit mask `apps`, and request delivery."""
        pending = apps & message.pending
        if message.order < self._purged_before:
            pending &= sum(app.bit for app in self.active if self.is_pending(app, message))
        if not pending:
            return
        for app in self.active:
            if pending & app.bit:
                app.new_messages.append(message)
        if not self.delivery_requested:
            self.context.request_delivery(self)

    def undo_post(self, guid: bytes) -> None:
        if guid == self._new_guid and guid not in self.messages:
            self.history.discard(guid)

    def restore(self, found: RestoredMessages, wall: int) -> None:
        """Take over the recovered messages; all of them are delivered again, in order of arrival."""
        self._order = found.messages
        self.meter.force_add(found.messages, found.bytes)
        for app in self.active:
            app.new_messages = found.undelivered.get(app.bit) or app.new_messages
        self.run_in_slices(_remove_finished(self, found.finished, wall), "the end of messages that all have confirmed")

    @property
    def has_ample_quota(self) -> bool:
        return self.meter.has_ample_quota

    def deliver(self, now: float) -> None:
        delivery.deliver(self, now, self.uncommitted.held_apps())

    def payload(self, message: Message) -> bytes:
        return message.payload if message.payload is not None else self.partition.payloads.read(message)

    def payload_beginning(self, message: Message, size: int = BEGINNING_BYTES) -> bytes:
        """Read only the beginning of a message that is not in memory."""
        return message.payload if message.payload is not None else self.partition.payloads.read_beginning(message, size)

    # -- leaving messages -------------------------------------------------------------------------------------------

    def finish_message(self, app: App, message: Message, wall: int, reason: int = _CONFIRMED) -> None:
        if not message.pending & app.bit or message.order < self._purged_before and not self.is_pending(app, message):
            return
        if message.pending == app.bit:
            self.remove(message, _DONE, wall)
        elif message.live_key < 0:
            message.pending &= ~app.bit
        else:
            self.partition.append_confirm(self.key, app.key, message, reason, wall)

    def reject(self, app: App, message: Message, wall: int) -> None:
        self.stats.reject_msgs += 1
        self.root_context.report_poison(self, app, message)
        self.finish_message(app, message, wall, ConfirmReason.REJECTED)

    def confirm_undelivered(self, substream: Substream, guid: bytes, wall: int) -> None:
        app, message = substream.app, self.messages.get(guid)
        if message is not None and message.pending & app.bit:
            self.finish_message(app, message, wall)
            app.drop_removed([message])

    def count_failed_attempt(self, app: App, message: Message, wall: int) -> bool:
        limit = self.domain.max_attempts
        if not limit:
            message.attempts = None
            return True
        left = self.attempts_left(app, message)
        left = (left or limit) - 1
        message.attempts = {**(message.attempts or {}), app.ordinal: left}
        if left > 0:
            return True
        self.context.report.info(f"rejecting PUSH [GUID: '{message.guid.hex().upper()}', appId: {app.app_id}, "
                                 f"subQueueId: 0] with the counter: [{left}]")
        self.reject(app, message, wall)
        return False

    def remove(self, message: Message, reason: int, wall: int) -> None:
        """Remove a message, with a DELETION record if it is in the journal."""
        self.meter.remove(1, message.size + len(message.options))
        if self.meter.events:
            self.root_context.report_meter(self)
        if message.live_key < 0:
            self.store.remove_message(message)
        else:
            self.partition.append_deletion(self.key, message, reason, wall)

    def expire(self, wall: int) -> bool:
        """Remove messages older than the domain's TTL, oldest first: at most MESSAGES_AT_ONCE, fewer with many apps. True:
        there may be more."""
        ttl = self.domain.ttl_s
        most = MESSAGES_AT_ONCE * 8 // (7 + max(1, len(self.active)))
        expired = []
        for message in islice(self.messages.values(), most):
            if wall - message.wall <= ttl:
                break
            expired.append(message)
        if not expired:
            return False
        for message in expired:
            self.remove(message, DeletionReason.TTL_EXPIRATION, wall)
        for app in self.active:
            app.drop_removed(expired)
        self.stats.gc_msgs += len(expired)
        self.context.report.info(f"For storage for queue [{self.uri}] and queueKey [{self.key.hex().upper()}] configured "
                                 f"with TTL value of [{ttl}] seconds, garbage-collected [{len(expired)}] messages due to "
                                 f"TTL expiration")
        self.request_delivery()
        return len(expired) == most

    def purge(self, app: App | None, wall: int) -> Steps[tuple[int, int]]:
        """Drop all messages, or the pending messages of one app; return their number and bytes. PartitionUnavailable:
        nothing was dropped."""
        return _purge_queue(self, wall) if app is None else _purge_app(self, app, wall)

    def mark_purged(self, apps: list[App]) -> list[MessageList]:
        """Exclude all present messages from delivery to these apps. Return the apps' message lists."""
        self._purged_before = self._order
        return [each for app in apps for each in app.purge(self._order)]

    def begin_conversion(self, convert: Callable[[RootQueue], None]) -> None:
        """Stop the queue because this node is no longer its primary; PUTs and CONFIRMs are deferred. `convert(queue)` moves
        the handles to another queue object: at once for a request of a client, else in a job."""
        self.deferred_actions, self.disabled, self._convert = [], True, convert
        self._domain_queues.pop(self.name, None)

    def complete_conversion(self) -> bool:
        if self.deferred_actions is None:
            return False
        self._convert(self)
        return True

    def defer_action(self, act: Callable[[], None]) -> bool:
        """Defer an action of a client; MOVED_QUEUE deferred actions convert the queue at once."""
        if self.deferred_actions is None:
            return False
        self.deferred_actions.append(act)
        if len(self.deferred_actions) >= MOVED_QUEUE:
            self._convert(self)
        return True

    def step_lifecycle(self, change: QueueChange, now: float, cause: str) -> None:
        """Process a change of the queue's lifecycle."""
        self.lifecycle.step(change, now, cause)
        self.disabled = self.deferred_actions is not None or self.lifecycle.phase in _DISABLED
        if self.lifecycle.has_ended:
            self._domain_queues.pop(self.name, None)

    def disable(self, now: float, cause: str) -> None:
        self.step_lifecycle(QueueChange.FAILED, now, cause)

    def is_pending(self, app: App, message: Message) -> bool:
        """True if the message is pending for the app and not purged."""
        return bool(message.pending & app.bit) and message.order >= app.purged_before and self.deferred_actions is None

    def run_in_slices(self, work: Steps[Any], doing: str) -> None:
        self.root_context.run_in_slices(self, doing, work)


class Uncommitted:
    """PUTs of one queue that await their commit, and all later PUTs, in order."""

    __slots__ = ("puts", "_queue", "_holds_apps")

    def __init__(self, queue: RootQueue) -> None:
        self._queue = queue
        self.puts: deque[Put] = deque()
        self._holds_apps = False  # delivery to an app waits for a commit

    def add(self, put: Put, now: float) -> None:
        """Add a PUT, and send early acknowledgements where two copies are a majority."""
        partition = self._queue.partition
        if partition.copies.pair_commits:
            self._send_early(put, now)
        if not self.puts:
            partition.copies.listeners[self] = None
        self.puts.append(put)

    def _send_early(self, put: Put, now: float) -> None:
        """Send the ACK and the message to members before the commit is known. A member releases them once its own copy of
        the records is durable: with the copy here, that is a majority."""
        waiting, early = self.puts, -1
        if waiting:
            early = waiting[len(waiting) - 1].early_apps  # keep the order
        if put.stored and put.copies is _MAJORITY:
            self._ack_early(put, now)
            may = 0
            for app in self._queue.active:
                if early & app.bit and app.current_router().at_members:
                    may |= app.bit
            early = may
            if early:
                put.acknowledged_early = True
                self._queue.add_to_apps(put.message, early)
        elif put.stored:
            early = 0
        put.early_apps = early

    def _ack_early(self, put: Put, now: float) -> None:
        message, handle, queue = put.message, put.handle, self._queue
        if (put.wants_ack and handle is not None and handle.client.is_member
                and cast(MemberClient, handle.client).can_store):
            put.wants_ack, put.acknowledged_early = False, True
            queue.stats.count_ack(now - message.arrived)
            try:
                cast(MemberClient, handle.client).ack_early(handle, message, queue.partition_id)
            except Exception as error:
                queue.context.client_failed(handle.client, error)

    def held_apps(self) -> int:
        """Return the bits of apps that must wait for a commit: the first PUT was sent to them early, but not all their
        consumers are at members any more."""
        held, early = 0, self.puts[0].early_apps if self.puts else 0
        if early:
            for app in self._queue.active:
                if early & app.bit and not app.current_router().at_members:
                    held |= app.bit
        self._holds_apps = held != 0
        return held

    def on_commit(self, now: float) -> None:
        """Release PUTs after a commit, in order."""
        waiting, queue = self.puts, self._queue
        marks = queue.partition.copies.marks
        while waiting and waiting[0].position <= marks[waiting[0].copies]:
            queue.acknowledge(waiting.popleft(), now)
        if not waiting:
            queue.partition.copies.listeners.pop(self, None)
        if self._holds_apps:
            queue.request_delivery()

    def expire(self, now: float, wall: int) -> None:
        """NACK and remove PUTs without a commit for longer than the deduplication window, then release later ones. PUTs with
        an early acknowledgement stay: another node may know of their commit."""
        queue = self._queue
        patience = queue.domain.settings.deduplication_ms / 1000
        waiting, late, others = self.puts, list[Put](), list[Put]()
        while waiting and len(late) < MESSAGES_AT_ONCE and now - waiting[0].message.arrived >= patience:
            put = waiting.popleft()
            if put.acknowledged_early and put.wants_ack:
                put.wants_ack = False
                queue.answer(put, AckStatus.UNKNOWN)
            (late if put.copies and not put.acknowledged_early else others).append(put)
        waiting.extendleft(reversed(others))
        if not late:
            return
        for put in late:
            message = put.message
            if put.stored and queue.messages.get(message.guid) is message:
                queue.remove(message, DeletionReason.NO_SC_QUORUM, wall)
                queue.history.discard(message.guid)
            queue.stats.nack_noquorum_msgs += 1
            if put.wants_ack:
                queue.answer(put, AckStatus.UNKNOWN)
        self.on_commit(now)


def discard_damaged(queue: RootQueue, message: Message, wall: int) -> None:
    """Reject a message whose stored data are lost for all apps, as a poison message; consumers get its credit back."""
    for app in queue.active:
        for substream in app.substreams:
            if message.guid in substream.unconfirmed:
                queue.take_back(substream, message.guid)
        if queue.is_pending(app, message):
            queue.stats.reject_msgs += 1
            queue.finish_message(app, message, wall, ConfirmReason.REJECTED)
        app.drop_removed([message])


def route_again(queue: RootQueue, message: Message) -> None:
    """Route a message again whose stored data, and so its properties, were damaged until now."""
    message.properties = None
    for app in queue.active:
        if message.guid in app.put_aside or message.guid in app.waiting:
            app.recheck_put_aside = app.recheck_waiting = True
            queue.request_delivery()


def _purge_queue(queue: RootQueue, wall: int) -> Steps[tuple[int, int]]:
    """Drop all messages. PartitionUnavailable: none was dropped."""
    steps = (queue.partition.state.empty_queue(queue.store) if queue.in_memory
             else queue.partition.queues.purge(queue.key, None, None, wall))
    queue.messages = queue.store.messages
    if queue.in_memory:
        queue.meter.remove(queue.meter.messages, queue.meter.bytes)
    queue.meter.clear()
    return (yield from _process_purge(queue, steps, queue.mark_purged(queue.active), None))


def _purge_app(queue: RootQueue, app: App, wall: int) -> Steps[tuple[int, int]]:
    """Drop the pending messages of one app. PartitionUnavailable: none was dropped."""
    seen = _first_message_of(queue, app)
    steps = (queue.store.clear_pending(app.bit) if seen is None or queue.in_memory
             else queue.partition.queues.purge(queue.key, app.key, seen, wall))
    places = queue.mark_purged([app])
    purged = yield from _process_purge(queue, steps, places, wall)
    queue.request_delivery()
    return purged


def _remove_app(queue: RootQueue, app: App, wall: int) -> Steps[tuple[int, int]]:
    """Record the removal of an app and return the remaining work. PartitionUnavailable: nothing changed."""
    seen = _first_message_of(queue, app)
    if seen is not None and not queue.in_memory:
        queue.partition.queues.purge(queue.key, app.key, seen, wall)  # the deletion includes its effects
    steps = queue.partition.queues.delete_app(queue.key, app.key, wall)
    return _process_purge(queue, steps, app.unregister(), wall)


def _first_message_of(queue: RootQueue, app: App) -> Message | None:
    return next((message for message in queue.messages.values() if message.order >= app.first_order), None)


def _process_purge(queue: RootQueue, steps: MessageSteps, lists: list[MessageList],
                   wall: int | None) -> Steps[tuple[int, int]]:
    """Process the messages of a purge; at `wall`, remove messages that all apps are done with (None: already removed).
    Return their number and bytes."""
    count = size = 0
    queue.purges.append(steps)
    for number, step in enumerate(steps):
        if number:
            yield
        count += len(step)
        size += sum([message.size for message in step])
        if wall is not None:
            for message in step:
                if not message.pending and queue.deferred_actions is None:
                    queue.remove(message, DeletionReason.NONE, wall)
    queue.purges.remove(steps)
    yield from clear_in_steps(lists)
    return count, size


def _remove_finished(queue: RootQueue, messages: list[Message], wall: int) -> Steps[Any]:
    while messages and not queue.disabled:
        for message in messages[-MESSAGES_AT_ONCE:]:
            if queue.messages.get(message.guid) is message:
                queue.remove(message, _DONE, wall)
        del messages[-MESSAGES_AT_ONCE:]
        yield


def _post_deferred(put: Put, now: float, wall: int) -> None:
    if put.handle is not None and not put.handle.closing:
        queue = put.handle.queue
        refused = queue.post(put, now, wall)
        if refused:
            queue.answer(put, refused)


def _freeze_attempts(queue: RootQueue, limit: int) -> None:
    """Keep `limit` delivery attempts for the messages stored so far."""
    frozen = {-1: limit}  # shared by all messages, never modified
    for message in queue.messages.values():
        if message.attempts is None:
            message.attempts = frozen


class Domain(DomainRules):
    """A domain with the queues that have this node as their primary."""

    def __init__(self, name: str, source: str, cluster: str, settings: DomainSettings, throttle: Throttle) -> None:
        super().__init__(name, source, cluster, settings, throttle)
        self.queues: dict[str, RootQueue] = {}
        self.removing = False  # the first phase of DOMAINS REMOVE was run

    def adopt_queue(self, queue: RootQueue) -> None:
        """Add an activated queue."""
        self.queues[queue.name] = queue
        queue.meter.reconfigure(*self.settings.queue_limits)
        if self.mode == QueueMode.BROADCAST:
            queue.meter.disabled = True

    def reconfigure(self, settings: DomainSettings) -> None:
        """Apply validated settings (same mode and storage); the broker adds and removes apps."""
        before = self.max_attempts
        self.apply_settings(settings)
        for queue in self.queues.values():
            queue.meter.reconfigure(*settings.queue_limits)
            if before and self.max_attempts and before != self.max_attempts:
                _freeze_attempts(queue, before)
            queue.set_conditions()
            queue.end_confirm_delays()
            queue.request_delivery()
