"""Messages of a session: posts and their acknowledgements, deliveries and their confirmations. The hot half."""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING

from bmqtwist.errors import PeerError
from bmqtwist.limits import APPLICATION_DATA_BYTES_MAX
from bmqtwist.sdk.effects import Group, Room, Settled
from bmqtwist.sdk.ground import Ground
from bmqtwist.sdk.message import Message, typed
from bmqtwist.sdk.options import Subscription
from bmqtwist.sdk.puts import Put
from bmqtwist.sdk.queues import Queue
from bmqtwist.sdk.results import ACK_RESULTS, Ack, EventKind, Result, SdkError
from bmqtwist.sdk.states import QueueState, State
from bmqtwist.sdk.tracing import inject
from bmqtwist.wire import options, properties
from bmqtwist.wire.application_data import SCHEMA_ANONYMOUS, close_data
from bmqtwist.wire.checksum import crc32c
from bmqtwist.wire.fast import (
    ACK_MESSAGE,
    CONFIRM_MESSAGE,
    ITEM_BYTES,
    OPTION_ONE_ID_HEAD,
    OPTION_SUB_QUEUE_ID,
    PUSH_HEADER,
    PUSH_HEADER_BYTES,
    WORDS_MASK,
    put_message,
)

_PUSH_BYTES_MIN = PUSH_HEADER_BYTES - 4  # a header without the schema word is accepted
_REDELIVERED = 4  # flag of PUSH
_EXPIRY_STEP_S = 0.1  # posts that grow too old are looked for at most that often


class Traffic(Ground):
    """Posts, acknowledgements, deliveries, confirmations."""

    now: float
    room_wanted: bool
    untaken: int
    dropped: int

    # -- posts ------------------------------------------------------------------------------------------------------

    def has_room(self, size: int = 0) -> bool:
        """May a post of so many bytes be made now?"""
        held = self.puts.held_bytes
        return not self.blocked and (not held or held + size <= self.options.unacked_bytes_max)

    def post(self, queue: Queue, payload: bytes, now: float, values: Mapping[str, object] | None = None,
             types: Mapping[str, properties.PropertyType] | None = None, *, ack: bool = True, token: object = None,
             correlation: object = None, group: Group | None = None, compress: bool | None = None) -> bytes:
        """Post a message; its GUID. With `token` an Ack effect follows, with `group` the group is told.

        Raises SdkError: INVALID_QUEUE, QUEUE_SUSPENDED, PAYLOAD_EMPTY, PAYLOAD_TOO_BIG, and BW_LIMIT if there is no
        room: a front waits then for a Room effect. LocalError: properties that cannot be sent.
        """
        if not queue.writable or not queue.is_open:
            raise SdkError(Result.INVALID_QUEUE, f"{queue.uri} is not open for writing")
        if queue.suspended:
            raise SdkError(Result.QUEUE_SUSPENDED, queue.uri)
        if not payload:
            raise SdkError(Result.PAYLOAD_EMPTY, "a message needs at least one byte of payload")
        session_options = self.options
        if not self.has_room(len(payload)):
            self.room_wanted = True
            raise SdkError(Result.BW_LIMIT, "too much is waiting to be sent or acknowledged")
        self.now = now
        if session_options.trace is not None:
            values = inject(values, session_options.trace())
        area, schema_id, cat = b"", 0, 0
        data = payload
        if values or types:
            area = properties.encode(typed(values or {}, types), self.v2_properties)
            schema_id = SCHEMA_ANONYMOUS if self.v2_properties else 0
            data = area + payload
        if session_options.compression if compress is None else compress:
            size = len(payload) if schema_id else len(data)
            data, cat = close_data(area, payload, schema_id != 0, size >= session_options.compression_threshold_bytes)
        if len(data) > APPLICATION_DATA_BYTES_MAX:
            raise SdkError(Result.PAYLOAD_TOO_BIG, f"{len(data)} bytes, more than {APPLICATION_DATA_BYTES_MAX}")
        guid = self.make_guid()
        packed = put_message(queue.q_id, guid, data, crc32c(data), (1 if ack else 0) | (2 if area else 0), cat,
                             schema_id)
        put = Put(queue, guid, packed, now, ack, token, correlation, group)
        self._post(put)
        if group is not None:
            group.outstanding += 1
        return guid

    def _keep(self, put: Put) -> None:
        """No connection, or not restored yet: it is sent with all others."""
        self.puts.keep(put)
        if "expiry" not in self.deadlines:
            self.deadlines.set("expiry", self.now + put.queue.deduplication_s)

    def _send_post(self, put: Put) -> None:
        self.puts.keep(put)
        self.puts.send(put)
        if self.options.batch_delay_s:
            if self.puts.batch_bytes < self.options.batch_bytes_max:
                if "batch" not in self.deadlines:
                    self.deadlines.set("batch", self.now + self.options.batch_delay_s)
                    self._has_output()
                return
            self.deadlines.clear("batch")
        if not self._woken:
            self._woken = True
            self.wake()

    def _batch_due(self) -> None:
        self._has_output()

    def _refuse_post(self, put: Put) -> None:
        raise SdkError(Result.NOT_CONNECTED, "the session is stopped")

    def _on_ack(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        if end - start < 4:
            self._nonsense(PeerError("event cut short", "ACK", start))
            return
        step = (buffer[start] & 15) * 4
        position = start + (buffer[start] >> 4) * 4
        if step < ITEM_BYTES or position == start:
            self._nonsense(PeerError("bad sizes", "ACK", start))
            return
        unpack, answer = ACK_MESSAGE.unpack_from, self.puts.answer
        kept, tally = self.puts.kept, self.tally
        settled = len(kept) + tally.failures
        while position + step <= end:
            word, guid, _ = unpack(buffer, position)
            position += step
            put = answer(guid)
            if put is not None:
                self._settle(put, ACK_RESULTS[word >> 24 & 15])
        tally.acked += settled - len(kept) - tally.failures
        if self.room_wanted:
            self._give_room()
        self._answered()

    def _settle(self, put: Put, result: Result, only_group: bool = False) -> None:
        """Tell whoever waits for a post what became of it; failures that nobody waits for become acks all the same."""
        group = put.group
        failed = result is not Result.SUCCESS
        if failed:
            self._failed(put, result)
        if group is not None and (failed or group.acks is not None):
            group.settle(Ack(put.queue, put.guid, result, put.correlation, put.token))
        if not only_group and (put.token is not None or failed and (group is None or group.acks is None)):
            self.effect(Ack(put.queue, put.guid, result, put.correlation, put.token))
        if group is not None:
            group.outstanding -= 1
            if group.sealed and not group.outstanding:
                self.effect(Settled(group))

    def _failed(self, put: Put, result: Result) -> None:
        self.tally.fail(result)
        if result not in self._told:
            self._told.add(result)
            self.note(WARNING, f"a post to {put.queue.uri} failed: {result} (more of this kind are only counted)")

    def fail_puts(self, queue: Queue) -> None:
        """The queue is closed: nobody will acknowledge these any more."""
        for put in self.puts.of(queue):
            self.puts.answer(put.guid)
            self._settle(put, Result.UNKNOWN)
        self._give_room()

    def seal(self, group: Group) -> None:
        """No more posts of this group: report it when the last one is answered."""
        group.sealed = True
        if not group.outstanding:
            self.effect(Settled(group))

    def _expiry_due(self) -> None:
        """Without a connection: posts too old to be sent again safely fail."""
        old, due = self.puts.expired(self.now)
        if old:
            self.note(WARNING, f"{len(old)} posts failed: without acknowledgement for longer than the deduplication time")
        for put in old:
            self.puts.answer(put.guid)
            self._settle(put, Result.UNKNOWN)
        if due is not None:
            self.deadlines.set("expiry", max(due, self.now + _EXPIRY_STEP_S))
        if old:
            self._give_room()

    def _give_room(self) -> None:
        if self.room_wanted and (self.has_room(1) or self.state is State.STOPPED):
            self.room_wanted = False
            self.effect(Room())

    # -- deliveries -------------------------------------------------------------------------------------------------

    def _on_push(self, buffer: bytes, specific: int, position: int, end: int) -> None:
        unpack, routes, effects = PUSH_HEADER.unpack_from, self.routes, self._effects
        before = len(effects)
        count = seen = 0
        while position < end:
            if end - position < PUSH_HEADER_BYTES:
                self._nonsense(PeerError("message cut short", "PUSH", position))
                break
            first, second, q_id, guid, schema_id, _ = unpack(buffer, position)
            header = (second & 31) << 2
            start = position + header + (second >> 8 << 2)
            stop = position + ((first & WORDS_MASK) << 2)
            seen |= first
            if stop > end or start >= stop or header < _PUSH_BYTES_MIN or not 1 <= buffer[stop - 1] <= 4:
                self._nonsense(PeerError("bad sizes", "PUSH", position))
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
                        self.dropped += 1
                    continue
            count += self._deliver_many(q_id, buffer[at:start], guid, data, first >> 28,
                                        schema_id << 3 | second >> 5 & 7)
        if count:
            self.untaken += count
            self.tally.messages += count
            if seen >> 28 & _REDELIVERED:
                self.tally.redelivered += sum(isinstance(each, Message) and each.redelivered for each in effects[before:])
            if self.untaken >= self.options.slow_consumer_high and not self._slow:
                self._slow = True
                self.event(EventKind.SLOWCONSUMER_HIGHWATERMARK)
            self._has_output()

    def _deliver_many(self, q_id: int, area: bytes, guid: bytes, data: bytes, flags: int, form: int) -> int:
        """A PUSH with other options than one subscription: one delivery for each it names; none named means id 0.
        Gives the number of deliveries."""
        ids: list[int] = []
        count = 0
        try:
            for option in options.decode(area):
                if isinstance(option, options.SubQueueIds):
                    ids += option.ids
                elif isinstance(option, options.SubQueueInfos):
                    ids += [item.id for item in option.items]
        except PeerError as error:
            self._nonsense(error)
            return 0
        for sub_id in ids or [0]:
            found = self.routes.get(q_id << 32 | sub_id)
            if found is None and not sub_id:
                found = self._only_route(q_id)
            if found is not None:
                self._effects.append(Message(found[0], found[1], guid, data, flags, form))
                count += 1
            else:
                self.dropped += 1
        return count

    def _only_route(self, q_id: int) -> tuple[Queue, Subscription] | None:
        """Id 0 with subscriptions: right if there is but one."""
        found = [route for key, route in self.routes.items() if key >> 32 == q_id]
        return found[0] if len(found) == 1 else None

    def consumed(self, count: int) -> None:
        """The application has taken so many messages."""
        self.untaken -= count
        if self._slow and self.untaken <= self.options.slow_consumer_low:
            self._slow = False
            self.event(EventKind.SLOWCONSUMER_NORMAL)

    def confirm(self, message: Message) -> None:
        """Confirm a message; SdkError NOT_CONNECTED if that cannot be said now: the message comes again then."""
        self._confirm(message)

    def _send_confirm(self, message: Message) -> None:
        queue = message.queue
        if queue.at_most_once:
            return
        if queue.state is not QueueState.OPEN and queue.state is not QueueState.DECONFIGURING:
            if queue.is_open:
                raise SdkError(Result.NOT_CONNECTED, f"{queue.uri} is not reopened yet")
            raise SdkError(Result.INVALID_QUEUE, f"{queue.uri} is closed")
        self._confirms.append(CONFIRM_MESSAGE.pack(queue.q_id, message.guid, queue.sub_id))
        if not self._woken:
            self._woken = True
            self.wake()

    def _refuse_confirm(self, message: Message) -> None:
        if message.queue.at_most_once:
            return
        raise SdkError(Result.NOT_CONNECTED, "confirms are not kept: the message will be delivered again")

