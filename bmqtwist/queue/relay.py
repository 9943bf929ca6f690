"""Relays: queues at a node that is not their primary. PUTs and CONFIRMs go upstream, PUSHes and ACKs to the clients.

    post            keeps a PUT until the primary has answered it; sends it when the upstream accepts PUTs
    on_push         delivers a message from the upstream, with the same apps, routing and windows as at a primary
    finish_message  sends a CONFIRM upstream, or keeps it until the upstream accepts CONFIRMs

After the loss of the upstream, `suspend_posts` and `suspend_confirms` keep PUTs and CONFIRMs; `resume_confirms` and
`resume_posts` send them to the next upstream, in order of arrival and once per generation of the upstream. The primary
recognizes a repeated PUT by its GUID.

Called by sessions as any queue; `relay/relays.py` creates it, and its `Uplink` is in `relay/messages.py`. The number of
kept CONFIRMs is limited in `bmqtwist/limits.py`.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from bmqtwist.errors import AckStatus
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.limits import HELD_CONFIRMS_MAX
from bmqtwist.queue import delivery
from bmqtwist.queue.domain import DomainRules
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.queue import App, Put, Queue, QueueContext, Substream
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import SEQUENCE_BITS

NOT_READY_RETRY_S = 0.25  # until PUTs that the primary refused as not ready are sent again


class Uplink(Protocol):
    """Output of relays to the upstream broker; it is written at the end of the turn."""

    def put(self, queue: RelayQueue, put: Put) -> None:
        """Send a PUT."""

    def confirm(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        """Send a CONFIRM."""

    def reject(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        """Send a REJECT: a lost consumer has used one delivery attempt of the message."""

    def return_messages(self, queue: RelayQueue, app_id: str, guids: list[bytes]) -> bool:
        """Return messages that no consumer here can receive. False: the upstream takes none back, or not now."""

    def payload(self, queue: RelayQueue, message: Message) -> bytes:
        """Read the application data of a message from the replica. PartitionUnavailable or OSError: it is unreadable."""

    def count_pending(self, put: Put) -> None:
        """Count a PUT that is kept until the primary has answered."""

    def uncount_pending(self, put: Put) -> None:
        """Stop counting a kept PUT."""

    def retry_pending_at(self, queue: RelayQueue, when: float) -> None:
        """Call `queue.retry_pending` at `when`, monotonic seconds."""


class RelayQueue(Queue):
    """A queue at a node that is not its primary."""

    def __init__(self, uri: str, name: str, domain: DomainRules, context: QueueContext, uplink: Uplink) -> None:
        super().__init__(uri, name, domain, context)
        self.uplink = uplink
        self.pending: dict[bytes, Put] = {}  # PUTs without an answer, by GUID, in order of arrival
        self.repeated: dict[bytes, list[Put]] = {}  # repetitions of pending PUTs
        self.generation = 0  # of the upstream that accepts PUTs; 0 = none
        self.open_apps: set[str] = set()  # apps whose CONFIRMs the upstream accepts
        self.held_confirms: dict[str, deque[bytes]] = {}  # GUIDs of kept CONFIRMs by app
        self.messages: dict[bytes, Message] = {}  # delivered or to be delivered to a consumer here
        self._order = 0
        self._ordinals = 0
        self._retry_due = False
        self.ample_quota = False  # the upstream reports that the free quota is ample
        self.suspended = False  # the upstream is lost; nothing is delivered until `suspend_confirms`

    # -- PUT ----------------------------------------------------------------------------------------------------------

    def post(self, put: Put, now: float, wall: int) -> int:
        """Keep a PUT until the primary answers it; send it if the upstream accepts PUTs."""
        put.queue = self
        if self.disabled:
            return AckStatus.NOT_READY
        message = put.message
        if message.guid in self.pending:  # repeated on a new connection of the client
            self.repeated.setdefault(message.guid, []).append(put)
            return 0
        self.stats.put_msgs += 1
        self.stats.put_bytes += message.size
        if not self.broadcast or not self.generation:
            self.keep_pending(put)
        elif put.wants_ack:  # broadcast: sent once, and the upstream does not answer
            self.stats.count_ack(now - message.arrived)
            self.answer(put, 0)
        if self.generation:
            self.uplink.put(self, put)
        return 0

    def on_ack(self, guid: bytes, status: int, now: float) -> None:
        """Process the primary's answer to a PUT."""
        if guid not in self.pending:
            return
        if status == AckStatus.NOT_READY:  # stop all PUTs, to keep their order
            if not self._retry_due:
                self._retry_due = True
                self.uplink.retry_pending_at(self, now + NOT_READY_RETRY_S)
            self.generation = 0
            return
        if not status:
            self.stats.count_ack(now - self.pending[guid].message.arrived)
        self._answer_pending(guid, status)

    def retry_pending(self, generation: int) -> None:
        """Send the pending PUTs again after the primary was not ready. `generation`: of the upstream that accepts PUTs,
        0 = none."""
        if self._retry_due:
            self._retry_due = False
            if generation:
                self._send_pending(generation)

    def resume_posts(self, generation: int) -> None:
        """Send the pending PUTs to an upstream that accepts PUTs, in order of arrival."""
        if generation == self.generation:
            return
        self._retry_due = False
        if not self.writer_count():  # the upstream would refuse them
            for guid in list(self.pending):
                self._answer_pending(guid, AckStatus.UNKNOWN)
        self._send_pending(generation)

    def _send_pending(self, generation: int) -> None:
        self.generation = generation
        for put in list(self.pending.values()):
            if self.broadcast:
                self.uplink.put(self, put)
                self._answer_pending(put.message.guid, 0)
            else:
                self.uplink.put(self, put)

    def suspend_posts(self) -> None:
        """Keep PUTs from now on: the upstream is lost or closed."""
        self.generation = 0

    def expire(self, now: float) -> None:
        """NACK PUTs that are pending longer than the deduplication window: the primary might store a repetition twice."""
        patience = self.domain.settings.deduplication_ms / 1000
        while self.pending:
            guid, put = next(iter(self.pending.items()))
            if now - put.message.arrived < patience:
                return
            self._answer_pending(guid, AckStatus.UNKNOWN)

    def detach_closed_handles(self) -> None:
        """Detach pending PUTs from closed handles; they receive no answer."""
        for put in (*self.pending.values(), *(put for puts in self.repeated.values() for put in puts)):
            if put.handle is not None and put.handle.closing:
                self.answer(put, AckStatus.UNKNOWN)
                put.handle = None

    def drop_closed_posts(self) -> None:
        """Drop PUTs of closed handles: the upstream has no producer any more and will not answer."""
        for guid, put in list(self.pending.items()):
            if put.handle is None and not any(each.handle for each in self.repeated.get(guid, ())):
                self.take_pending(guid)

    def drop_all(self) -> None:
        """Drop all PUTs and messages: the queue is closed here and upstream."""
        for guid in list(self.pending):
            self._answer_pending(guid, AckStatus.UNKNOWN)
        self.messages.clear()

    def set_order(self, message: Message) -> None:
        """Set the message's arrival order: by its PSN if it is known, else after all earlier messages."""
        if message.lease:
            message.order = message.lease << SEQUENCE_BITS | message.sequence
        elif not message.order:
            self._order = message.order = self._order + 1

    def keep_pending(self, put: Put) -> None:
        """Keep a PUT until the primary answers it."""
        self.pending[put.message.guid] = put
        self.uplink.count_pending(put)

    def take_pending(self, guid: bytes) -> Put | None:
        """Remove and return a pending PUT."""
        put = self.pending.pop(guid, None)
        if put is not None:
            self.repeated.pop(guid, None)
            self.uplink.uncount_pending(put)
        return put

    def _answer_pending(self, guid: bytes, status: int) -> None:
        repeated = self.repeated.get(guid, ())
        put = self.take_pending(guid)
        if put is not None:
            for each in (put, *repeated):
                self.answer(each, status)

    def undo_post(self, guid: bytes) -> None:
        self.take_pending(guid)

    def release(self, put: Put, now: float) -> None:
        """Do nothing: PUTs of a relay do not pass a durability gate."""

    # -- PUSH ---------------------------------------------------------------------------------------------------------

    def on_push(self, message: Message, targets: list[tuple[str, int | None]], late: bool) -> None:
        """Deliver a message from the upstream. `targets`: app ids with the remaining delivery attempts, None = unlimited;
        `late`: a redelivery or, from an original upstream, a message to an app that has fallen behind other apps: it must
        not overtake messages that arrived for its app before."""
        if self.broadcast:
            if DEFAULT_APP_ID in self.apps:
                delivery.broadcast(self, self.apps[DEFAULT_APP_ID], message)
            return
        message = self.messages.setdefault(message.guid, message)
        for app_id, attempts in targets:
            app = self.apps.get(app_id)
            if app is None or message.pending & app.bit:
                continue  # the app's last consumer has left, or the message is a repetition
            message.pending |= app.bit
            if attempts is not None:
                message.attempts = {**(message.attempts or {}), app.ordinal: attempts}
            self.set_order(message)
            if app.is_late(message) or late and (message.lease or not app.new_messages):
                app.redelivery.add(message)
            else:
                app.new_messages.append(message)
        if not message.pending:
            del self.messages[message.guid]
        elif not self.delivery_requested:
            self.context.request_delivery(self)

    @property
    def has_ample_quota(self) -> bool:
        return self.ample_quota

    def deliver(self, now: float) -> None:
        """Deliver as at a primary; return messages that no consumer here can receive to the upstream."""
        if self.suspended:
            self.delivery_requested = False
            return
        delivery.deliver(self, now)
        for app in self.active:
            unsubscribed = bool(app.substreams) and not app.router.groups  # no consumer has subscriptions
            if not app.put_aside and not unsubscribed:
                continue
            unwanted = list(app.put_aside.values())
            if not app.router.groups:
                unwanted += [*app.redelivery.values(), *app.waiting.values(), *(
                    message for message in app.new_messages if message.pending & app.bit)]
            if not unwanted or not self.uplink.return_messages(self, app.app_id, [message.guid for message in unwanted]):
                continue
            for message in unwanted:
                self._drop(app, message)
            app.put_aside = {}
            if not app.router.groups:
                app.register(app.key, app.ordinal, app.first_order)

    def on_parameters_confirmed(self, app_id: str) -> None:
        """Deliver after the upstream has confirmed the app's stream parameters: it now takes messages back."""
        app = self.apps.get(app_id)
        if app is not None and (app.put_aside or not app.current_router().groups):
            self.request_delivery()

    def payload(self, message: Message) -> bytes:
        """Return the application data that came with the message, or read it from the replica."""
        return message.payload if message.payload is not None else self.uplink.payload(self, message)

    # -- CONFIRM, REJECT ----------------------------------------------------------------------------------------------

    def finish_message(self, app: App, message: Message, wall: int) -> None:
        if message.pending & app.bit:
            self._drop(app, message)
            self._confirm(app.app_id, message.guid)

    def confirm_undelivered(self, substream: Substream, guid: bytes, wall: int) -> None:
        """Forward a CONFIRM of a downstream broker for a message of an earlier connection."""
        app, message = substream.app, self.messages.get(guid)
        if message is not None and message.pending & app.bit:
            self._drop(app, message)
            app.drop_removed([message])
        self._confirm(app.app_id, guid)

    def _drop(self, app: App, message: Message) -> None:
        message.pending &= ~app.bit
        if not message.pending:
            self.messages.pop(message.guid, None)

    def _confirm(self, app_id: str, guid: bytes) -> None:
        if app_id in self.open_apps:
            self.uplink.confirm(self, app_id, guid)
            return
        held = self.held_confirms.setdefault(app_id, deque(maxlen=HELD_CONFIRMS_MAX))
        held.append(guid)  # drops the oldest above the limit; its message is then redelivered

    def requeue_confirm(self, app_id: str, guid: bytes) -> None:
        """Keep a CONFIRM that was sent but has no receipt, before all kept ones. Call with the newest first."""
        self.held_confirms.setdefault(app_id, deque(maxlen=HELD_CONFIRMS_MAX)).appendleft(guid)

    def resume_confirms(self, app_id: str) -> None:
        """Send the kept CONFIRMs of an app, in order: the upstream accepts them."""
        self.open_apps.add(app_id)
        for guid in self.held_confirms.pop(app_id, ()):
            self.uplink.confirm(self, app_id, guid)

    def suspend_confirms(self, app_id: str) -> None:
        """Keep CONFIRMs of an app after the loss of the upstream, and drop its undelivered messages: the primary delivers
        them again."""
        self.open_apps.discard(app_id)
        app = self.apps.get(app_id)
        if app is None:
            return
        kept = {guid for substream in app.substreams for guid in substream.unconfirmed}
        for message in [each for each in self.messages.values() if each.pending & app.bit and each.guid not in kept]:
            self._drop(app, message)
        app.register(app.key, app.ordinal, app.first_order)

    def count_failed_attempt(self, app: App, message: Message, wall: int) -> bool:
        """Count a delivery attempt here and, by a REJECT, upstream."""
        attempts = message.attempts
        if attempts is None or app.ordinal not in attempts:
            return True
        left = attempts[app.ordinal] = attempts[app.ordinal] - 1
        if app.app_id in self.open_apps:
            self.uplink.reject(self, app.app_id, message.guid)
        if left > 0:
            return True
        self.reject(app, message, wall)
        return False

    def reject(self, app: App, message: Message, wall: int) -> None:
        """Drop a poison message; the primary raises the alarm."""
        self.stats.reject_msgs += 1
        self._drop(app, message)

    def attempts_left(self, app: App, message: Message) -> int | None:
        return None if message.attempts is None else message.attempts.get(app.ordinal)

    # -- consumers ----------------------------------------------------------------------------------------------------

    def app_for_reader(self, app_id: str) -> App:
        """Return the app of a consumer; the primary decides whether it is registered."""
        app = self.apps.get(app_id)
        if app is None:
            app = self.apps[app_id] = App(app_id, b"", self._ordinals)
            self._ordinals += 1
            if self.mode != QueueMode.FANOUT:
                app.stats = self.stats
            self.active.append(app)
        return app

    def drop_unused_app(self, app: App) -> None:
        """Keep the messages of an app without consumers until the next consumer or `on_app_closed`."""

    def on_app_closed(self, app_id: str) -> None:
        """Remove an app that is closed at the upstream, which has taken its messages back."""
        app = self.apps.get(app_id)
        if app is None or app.substreams:
            return
        del self.apps[app_id]
        self.active.remove(app)
        for message in [message for message in self.messages.values() if message.pending & app.bit]:
            self._drop(app, message)
        app.unregister()
        if not self.active:
            self._ordinals = 0
