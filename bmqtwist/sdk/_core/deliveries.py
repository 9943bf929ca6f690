"""Deliveries of a session: PUSH events become messages with queue and subscription; confirmations are sent to the broker.

`session.py` calls it for each PUSH event; posts and ACKs are in `posts.py`, the target of each subscription id in
`requests.py`. Limits of the inbox and of unconfirmed messages are declared in `options.py`.
"""

from __future__ import annotations

from bmqtwist.errors import PeerError
from bmqtwist.sdk._core.outbox import SharedParts
from bmqtwist.sdk._core.queue import Queue, Routes
from bmqtwist.sdk._core.states import QueueState
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Subscription
from bmqtwist.sdk.results import EventKind, Result, SdkError
from bmqtwist.wire import options
from bmqtwist.wire.fast import (
    CONFIRM_MESSAGE,
    OPTION_ONE_ID_HEAD,
    OPTION_SUB_QUEUE_ID,
    PUSH_HEADER,
    PUSH_HEADER_BYTES,
    WORDS_MASK,
)

_PUSH_BYTES_MIN = PUSH_HEADER_BYTES - 4  # a header without the schema word is accepted
_REDELIVERED = 4  # flag of PUSH
_OPEN, _DECONFIGURING = QueueState.OPEN, QueueState.DECONFIGURING  # module globals: faster than enum attributes


class Deliveries:
    """Adds messages as effects. `routes`: targets of deliveries; `unconsumed`: messages not yet taken by the application."""

    def __init__(self, shared: SharedParts) -> None:
        self._options, self._state = shared.options, shared.state
        self._outbox, self._counters = shared.outbox, shared.counters
        self.routes: Routes = {}
        self.unconsumed = 0
        self._slow = False  # SLOWCONSUMER_HIGHWATERMARK was reported

    def on_push(self, buffer: bytes, specific: int, position: int, end: int) -> None:
        outbox = self._outbox
        unpack, routes, effects = PUSH_HEADER.unpack_from, self.routes, outbox.effects
        before = len(effects)
        count = seen = 0
        while position < end:
            if end - position < PUSH_HEADER_BYTES:
                outbox.report_invalid(PeerError("message cut short", "PUSH", position))
                break
            first, second, q_id, guid, schema_id, _ = unpack(buffer, position)
            header = (second & 31) << 2
            start = position + header + (second >> 8 << 2)
            stop = position + ((first & WORDS_MASK) << 2)
            seen |= first
            if stop > end or start >= stop or header < _PUSH_BYTES_MIN or not 1 <= buffer[stop - 1] <= 4:
                outbox.report_invalid(PeerError("bad sizes", "PUSH", position))
                break
            if header < PUSH_HEADER_BYTES:
                schema_id = 0
            data = buffer[start:stop - buffer[stop - 1]]
            at, position = position + header, stop
            if start - at == 8:
                head, sub_id = OPTION_SUB_QUEUE_ID.unpack_from(buffer, at)
                if head == OPTION_ONE_ID_HEAD:
                    found = routes.get(q_id << 32 | sub_id)
                    if found is not None:
                        effects.append(Message(found[0], found[1], guid, data, first >> 28,
                                               schema_id << 3 | second >> 5 & 7))
                        count += 1
                    else:
                        self._counters.dropped += 1
                    continue
            count += self._deliver_many(q_id, buffer[at:start], guid, data, first >> 28,
                                        schema_id << 3 | second >> 5 & 7)
        if count:
            self.unconsumed += count
            self._counters.messages += count
            if seen >> 28 & _REDELIVERED:
                self._counters.redelivered += sum(isinstance(each, Message) and each.redelivered
                                                  for each in effects[before:])
            if self.unconsumed >= self._options.slow_consumer_high and not self._slow:
                self._slow = True
                self._outbox.event(EventKind.SLOWCONSUMER_HIGHWATERMARK)
            self._outbox.notify()

    def _deliver_many(self, q_id: int, area: bytes, guid: bytes, data: bytes, flags: int, form: int) -> int:
        """Deliver a PUSH whose options are not exactly one subscription id: once per id, without ids to id 0. Return the
        number of deliveries."""
        ids: list[int] = []
        count = 0
        try:
            for option in options.decode(area):
                if isinstance(option, options.SubQueueIds):
                    ids += option.ids
                elif isinstance(option, options.SubQueueInfos):
                    ids += [item.id for item in option.items]
        except PeerError as error:
            self._outbox.report_invalid(error)
            return 0
        for sub_id in ids or [0]:
            found = self.routes.get(q_id << 32 | sub_id)
            if found is None and not sub_id:
                found = self._only_route(q_id)
            if found is not None:
                self._outbox.effects.append(Message(found[0], found[1], guid, data, flags, form))
                count += 1
            else:
                self._counters.dropped += 1
        return count

    def _only_route(self, q_id: int) -> tuple[Queue, Subscription] | None:
        """Return the route of a queue for id 0: its only route, None if it has several."""
        found = [route for key, route in self.routes.items() if key >> 32 == q_id]
        return found[0] if len(found) == 1 else None

    def on_consumed(self, count: int) -> None:
        """Count messages that the application has taken."""
        self.unconsumed -= count
        if self._slow and self.unconsumed <= self._options.slow_consumer_low:
            self._slow = False
            self._outbox.event(EventKind.SLOWCONSUMER_NORMAL)

    # -- confirmations ----------------------------------------------------------------------------------------------

    def confirm(self, message: Message) -> None:
        """Confirm a message. SdkError NOT_CONNECTED without a connection: the broker then redelivers the message."""
        self._state.confirm(message)

    def give_back(self, message: Message) -> None:
        """Release a message without confirmation. Nothing is sent; the broker redelivers it after the queue is closed."""

    def send_confirm(self, message: Message) -> None:
        queue = message.queue
        if queue.at_most_once:
            return
        if queue.state is not _OPEN and queue.state is not _DECONFIGURING:
            if queue.is_open:
                raise SdkError(Result.NOT_CONNECTED, f"{queue.uri} is not reopened yet")
            raise SdkError(Result.INVALID_QUEUE, f"{queue.uri} is closed")
        outbox = self._outbox
        outbox.confirms.append(CONFIRM_MESSAGE.pack(queue.q_id, message.guid, queue.sub_id))
        if not outbox.notified:
            outbox.notify()

    def refuse_confirm(self, message: Message) -> None:
        if message.queue.at_most_once:
            return
        raise SdkError(Result.NOT_CONNECTED, "not confirmed: the broker redelivers the message")
