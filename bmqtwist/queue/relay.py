"""One queue on the way to its primary: what its clients post goes up, what comes from above goes to its consumers.

    post        keeps each PUT until the primary has answered, and sends it when the upstream is open
    pushed      a message from above: the same apps, routing and windows as at the primary hand it on
    finish      a consumer is done with it: a CONFIRM goes up, or waits until it can

The upstream may be lost and another take its place. `posts_stopped` and `confirms_stopped` then hold everything back,
`confirms_open` and `posts_open` send what has waited: CONFIRMs in their order, PUTs in the order of their arrival, once for
each generation of the upstream. The primary knows a PUT that it is given twice by its GUID.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from bmqtwist.errors import AckStatus
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.limits import HELD_CONFIRMS_MAX
from bmqtwist.queue import delivery
from bmqtwist.queue.domain import DomainRules
from bmqtwist.queue.meter import PLENTY
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.queue import App, Put, Queue, QueueContext, Substream
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import SEQUENCE_BITS

NOT_READY_RETRY_S = 0.25  # before PUTs are sent again that the primary was not ready for


class Uplink(Protocol):
    """What a queue sends to the upstream; it leaves with the turn."""

    def put(self, queue: RelayQueue, put: Put) -> None:
        """A PUT."""

    def confirm(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        """A CONFIRM."""

    def reject(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        """A consumer was lost with the message: that costs an attempt."""

    def give_back(self, queue: RelayQueue, app_id: str, guids: list[bytes]) -> bool:
        """Nobody here wants these messages any more; False = those above do not take them back, or not now."""

    def payload(self, queue: RelayQueue, message: Message) -> bytes:
        """The application data of a message that is here without them. PartitionUnavailable or OSError: they are gone."""

    def keep(self, put: Put) -> None:
        """A PUT is kept until the primary has answered."""

    def let_go(self, put: Put) -> None:
        """It is kept no longer."""

    def post_again_at(self, queue: RelayQueue, when: float) -> None:
        """Call `post_again` then."""


class RelayQueue(Queue):
    """State and rules of one queue at a node that is not its primary."""

    def __init__(self, uri: str, name: str, domain: DomainRules, context: QueueContext, uplink: Uplink) -> None:
        super().__init__(uri, name, domain, context)
        self.uplink = uplink
        self.pending: dict[bytes, Put] = {}  # without an answer, by GUID, in the order of arrival
        self.repeated: dict[bytes, list[Put]] = {}  # of these, PUTs that were posted again
        self.generation = 0  # of the upstream that takes PUTs; 0 = none does
        self.open_apps: set[str] = set()  # whose CONFIRMs the upstream takes
        self.held_confirms: dict[str, deque[bytes]] = {}  # by app: GUIDs that wait until it does
        self.messages: dict[bytes, Message] = {}  # that a consumer here has, or is to have
        self._order = 0
        self._ordinals = 0
        self._retry_due = False
        self.stopped = False  # the upstream is lost: nothing is delivered until `confirms_stopped`

    # -- PUT ----------------------------------------------------------------------------------------------------------

    def post(self, put: Put, now: float, wall: int) -> int:
        """Keep a PUT until it is answered, and send it if that can be done now."""
        put.queue = self
        if self.disabled:
            return AckStatus.NOT_READY
        message = put.message
        if message.guid in self.pending:  # its client has connected anew, and is to be answered there
            self.repeated.setdefault(message.guid, []).append(put)
            return 0
        self.stats.put_msgs += 1
        self.stats.put_bytes += message.size
        if not self.broadcast or not self.generation:
            self.keep(put)
        elif put.wants_ack:  # what is delivered at most once is sent once, and nobody above answers
            self.stats.acked(now - message.arrived)
            self.answer(put, 0)
        if self.generation:
            self.uplink.put(self, put)
        return 0

    def acked(self, guid: bytes, status: int, now: float) -> None:
        """The primary has answered a PUT."""
        if guid not in self.pending:
            return
        if status == AckStatus.NOT_READY:  # what follows must not overtake it, so everything waits for a while
            if not self._retry_due:
                self._retry_due = True
                self.uplink.post_again_at(self, now + NOT_READY_RETRY_S)
            self.generation = 0
            return
        if not status:
            self.stats.acked(now - self.pending[guid].message.arrived)
        self._answer_pending(guid, status)

    def post_again(self, generation: int) -> None:
        """The pause is over; `generation` of the upstream that takes PUTs, 0 = none."""
        if self._retry_due:
            self._retry_due = False
            if generation:
                self._send_pending(generation)

    def posts_open(self, generation: int) -> None:
        """The upstream takes PUTs: send those without an answer, in the order of their arrival."""
        if generation == self.generation:
            return
        self._retry_due = False
        if not self.writers():  # those above would take nothing
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

    def posts_stopped(self) -> None:
        """The upstream takes no PUTs any more."""
        self.generation = 0

    def expire(self, now: float) -> None:
        """Give up what has waited so long that the primary might not know it again."""
        patience = self.domain.settings.deduplication_ms / 1000
        while self.pending:
            guid, put = next(iter(self.pending.items()))
            if now - put.message.arrived < patience:
                return
            self._answer_pending(guid, AckStatus.UNKNOWN)

    def forget_released(self) -> None:
        """For handles that are gone nobody is to be answered any more: their sessions say nothing, and forget the PUTs."""
        for put in (*self.pending.values(), *(put for puts in self.repeated.values() for put in puts)):
            if put.handle is not None and put.handle.closing:
                self.answer(put, AckStatus.UNKNOWN)
                put.handle = None

    def posts_closed(self) -> None:
        """Those above know of no producer any more, and answer nothing that was posted before."""
        for guid, put in list(self.pending.items()):
            if put.handle is None and not any(each.handle for each in self.repeated.get(guid, ())):
                self.take_pending(guid)

    def forget_all(self) -> None:
        """Nobody has the queue open any more, here or above."""
        for guid in list(self.pending):
            self._answer_pending(guid, AckStatus.UNKNOWN)
        self.messages.clear()

    def number(self, message: Message) -> None:
        """Its place among all that come: where it is stored, if those above say so; else it is behind what came before."""
        if message.lease:
            message.order = message.lease << SEQUENCE_BITS | message.sequence
        elif not message.order:
            self._order = message.order = self._order + 1

    def keep(self, put: Put) -> None:
        """A PUT waits for the answer of the primary."""
        self.pending[put.message.guid] = put
        self.uplink.keep(put)

    def take_pending(self, guid: bytes) -> Put | None:
        """A PUT waits no longer."""
        put = self.pending.pop(guid, None)
        if put is not None:
            self.repeated.pop(guid, None)
            self.uplink.let_go(put)
        return put

    def _answer_pending(self, guid: bytes, status: int) -> None:
        """A PUT waits no longer: tell everybody who has posted it."""
        repeated = self.repeated.get(guid, ())
        put = self.take_pending(guid)
        if put is not None:
            for each in (put, *repeated):
                self.answer(each, status)

    def forget_post(self, guid: bytes) -> None:
        self.take_pending(guid)

    def release(self, put: Put, now: float) -> None:
        """Nothing waits for a file here."""

    # -- PUSH ---------------------------------------------------------------------------------------------------------

    def pushed(self, message: Message, targets: list[tuple[str, int | None]], late: bool) -> None:
        """A message from above for some apps, each with the delivery attempts that are left (None: any number)."""
        if self.broadcast:
            if DEFAULT_APP_ID in self.apps:
                delivery.broadcast(self, self.apps[DEFAULT_APP_ID], message)
            return
        message = self.messages.setdefault(message.guid, message)
        for app_id, attempts in targets:
            app = self.apps.get(app_id)
            if app is None or message.pending & app.bit:
                continue  # its last consumer has just left; or it is a repetition of what is still here
            message.pending |= app.bit
            if attempts is not None:
                message.attempts = {**(message.attempts or {}), app.ordinal: attempts}
            self.number(message)
            if late or app.overtaken(message):
                app.redelivery.add(message)
            else:
                app.fresh.append(message)
        if not message.pending:
            del self.messages[message.guid]
        elif not self.touched:
            self.context.touch(self)

    @property
    def has_plenty(self) -> bool:
        """By what its consumers here have to confirm, if the limit is known here; the rest is the primary's to know."""
        limit = self.domain.settings.queue_limits.messages
        return not limit or PLENTY * len(self.messages) <= limit

    def deliver(self, now: float) -> None:
        """As at the primary. What nobody here wants is given back."""
        if self.stopped:
            self.touched = False
            return
        delivery.deliver(self, now)
        for app in self.active:
            suspended = bool(app.substreams) and not app.router.groups  # all its consumers
            if not app.aside and not suspended:
                continue
            unwanted = list(app.aside.values())
            if not app.router.groups:
                unwanted += [*app.redelivery.values(), *app.waiting.values(), *(
                    message for message in app.fresh if message.pending & app.bit)]
            if not unwanted or not self.uplink.give_back(self, app.app_id, [message.guid for message in unwanted]):
                continue
            for message in unwanted:
                self._drop(app, message)
            app.aside = {}
            if not app.router.groups:
                app.register(app.key, app.ordinal, app.first_order)

    def settled(self, app_id: str) -> None:
        """Those above know what the consumers of the app want."""
        app = self.apps.get(app_id)
        if app is not None and (app.aside or not app.routes().groups):
            self.touch()

    def payload(self, message: Message) -> bytes:
        """It came with the message, unless this node was primary then."""
        return message.payload if message.payload is not None else self.uplink.payload(self, message)

    # -- CONFIRM, REJECT ----------------------------------------------------------------------------------------------

    def finish(self, app: App, message: Message, wall: int) -> None:
        if message.pending & app.bit:
            self._drop(app, message)
            self._confirm(app.app_id, message.guid)

    def confirm_undelivered(self, substream: Substream, guid: bytes, wall: int) -> None:
        """A node below us has confirmed what it was given before we lost each other: those above may wait for it."""
        app, message = substream.app, self.messages.get(guid)
        if message is not None and message.pending & app.bit:
            self._drop(app, message)
            app.forget([message])
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
        held.append(guid)  # the oldest goes if there are too many: its message comes again

    def confirm_again(self, app_id: str, guid: bytes) -> None:
        """Nobody knows what became of a CONFIRM that was sent: it waits again, before those that have waited since. Called
        with the newest first."""
        self.held_confirms.setdefault(app_id, deque(maxlen=HELD_CONFIRMS_MAX)).appendleft(guid)

    def confirms_open(self, app_id: str) -> None:
        """The upstream takes the CONFIRMs of an app: send those that have waited, in order."""
        self.open_apps.add(app_id)
        for guid in self.held_confirms.pop(app_id, ()):
            self.uplink.confirm(self, app_id, guid)

    def confirms_stopped(self, app_id: str) -> None:
        """The upstream is lost. What no consumer here has been given yet, those above deliver again, here or elsewhere."""
        self.open_apps.discard(app_id)
        app = self.apps.get(app_id)
        if app is None:
            return
        kept = {guid for substream in app.substreams for guid in substream.unconfirmed}
        for message in [each for each in self.messages.values() if each.pending & app.bit and each.guid not in kept]:
            self._drop(app, message)
        app.register(app.key, app.ordinal, app.first_order)

    def attempt_failed(self, app: App, message: Message, wall: int) -> bool:
        """A consumer was lost with a message: the nodes above count as well."""
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
        """No delivery attempt is left; the primary tells the operator."""
        self.stats.reject_msgs += 1
        self._drop(app, message)

    def attempts_left(self, app: App, message: Message) -> int | None:
        return None if message.attempts is None else message.attempts.get(app.ordinal)

    # -- consumers ----------------------------------------------------------------------------------------------------

    def app_for_reader(self, app_id: str) -> App:
        """Whether its domain knows the app is for the primary to say."""
        app = self.apps.get(app_id)
        if app is None:
            app = self.apps[app_id] = App(app_id, b"", self._ordinals)
            self._ordinals += 1
            if self.mode != QueueMode.FANOUT:
                app.stats = self.stats
            self.active.append(app)
        return app

    def forget_app(self, app: App) -> None:
        """Its last consumer is gone. What is here for it waits: for the next one, or until those above have it back."""

    def app_closed(self, app_id: str) -> None:
        """Those above know of no consumer of the app any more, and have taken back what was here for it."""
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
