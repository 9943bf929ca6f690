"""Posts and their acknowledgements: every post that is accepted has exactly one outcome, whatever the connection does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from logging import WARNING

from bmqtwist.errors import PeerError
from bmqtwist.limits import APPLICATION_DATA_BYTES_MAX
from bmqtwist.sdk._core.effects import Group, Room, Settled
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk._core.session_state import Shared
from bmqtwist.sdk._core.states import Input, State
from bmqtwist.sdk._core.unacked import Post, UnackedPosts
from bmqtwist.sdk.message import typed
from bmqtwist.sdk.results import ACK_RESULTS, Ack, EventKind, Result, SdkError
from bmqtwist.sdk.tracing import inject
from bmqtwist.wire import properties
from bmqtwist.wire.application_data import SCHEMA_ANONYMOUS, close_data
from bmqtwist.wire.checksum import crc32c
from bmqtwist.wire.fast import ACK_MESSAGE, ITEM_BYTES, put_message

_EXPIRY_STEP_S = 0.1  # posts that grow too old are looked for at most that often


class Posts:
    """Makes posts, settles them. `blocked`: the channel has more to write than its high watermark."""

    def __init__(self, shared: Shared, make_guid: Callable[[], bytes], unacked: UnackedPosts) -> None:
        self._options, self._state, self._outbox = shared.options, shared.state, shared.outbox
        self._deadlines, self._counters = shared.deadlines, shared.counters
        self._make_guid, self.unacked = make_guid, unacked
        self.blocked = False
        self.room_wanted = False  # somebody waits for a Room effect
        self._v2_properties = False  # does the broker read new-style properties?
        self._told: set[Result] = set()  # kinds of failed posts that the log has heard of since the last connection

    # -- posting ----------------------------------------------------------------------------------------------------

    def has_room(self, size: int = 0) -> bool:
        """May a post of so many bytes be made now?"""
        held = self.unacked.held_bytes
        return not self.blocked and (not held or held + size <= self._options.unacked_bytes_max)

    def post(self, queue: Queue, payload: bytes, now: float, values: Mapping[str, object] | None = None,
             types: Mapping[str, properties.PropertyType] | None = None, post: Post | None = None) -> bytes:
        """Post a message; its GUID. `post` says what else is asked for, and is kept once this has returned.

        Raises SdkError: INVALID_QUEUE, QUEUE_SUSPENDED, PAYLOAD_EMPTY, PAYLOAD_TOO_BIG, and BW_LIMIT if there is no
        room: an adapter waits then for a Room effect. LocalError: properties that cannot be sent.
        """
        if not queue.writable or not queue.is_open:
            raise SdkError(Result.INVALID_QUEUE, f"{queue.uri} is not open for writing: open it with write=True"
                           if queue.is_open else f"{queue.uri} is closed")
        if queue.suspended:
            raise SdkError(Result.QUEUE_SUSPENDED, queue.uri)
        if not payload:
            raise SdkError(Result.PAYLOAD_EMPTY, "a message needs at least one byte of payload")
        if post is None:
            post = Post()
        session_options = self._options
        if not self.has_room(len(payload)):
            self.room_wanted = True
            raise SdkError(Result.BW_LIMIT, "too much is waiting to be sent or acknowledged")
        self._deadlines.now = now
        if session_options.trace is not None:
            values = inject(values, session_options.trace())
        area, schema_id, cat = b"", 0, 0
        data = payload
        if values or types:
            area = properties.encode(typed(values or {}, types), self._v2_properties)
            schema_id = SCHEMA_ANONYMOUS if self._v2_properties else 0
            data = area + payload
        if session_options.compression if post.compress is None else post.compress:
            size = len(payload) if schema_id else len(data)
            data, cat = close_data(area, payload, schema_id != 0, size >= session_options.compression_threshold_bytes)
        if len(data) > APPLICATION_DATA_BYTES_MAX:
            raise SdkError(Result.PAYLOAD_TOO_BIG, f"{len(data)} bytes, more than {APPLICATION_DATA_BYTES_MAX}")
        guid = post.guid or self._make_guid()
        if post.guid and guid in self.unacked.kept:
            raise SdkError(Result.ALREADY_IN_PROGRESS, f"a post with GUID {guid.hex().upper()} has no acknowledgement yet")
        packed = put_message(queue.q_id, guid, data, crc32c(data), (1 if post.ack else 0) | (2 if area else 0), cat,
                             schema_id)
        post.queue, post.guid, post.packed, post.posted_at = queue, guid, packed, now
        self._state.post(post)
        if post.group is not None:
            post.group.outstanding += 1
        return guid

    def keep(self, post: Post) -> None:
        """No connection, or not restored yet: it is sent with all others."""
        self.unacked.keep(post)
        if Input.EXPIRY_DUE not in self._deadlines:
            self._deadlines.after(Input.EXPIRY_DUE, post.queue.deduplication_s)

    def send(self, post: Post) -> None:
        """Into the batch, which leaves with the turn, when it is full, or after its delay."""
        unacked, options = self.unacked, self._options
        unacked.keep(post)
        unacked.send(post)
        if options.batch_delay_s:
            if unacked.batch_bytes < options.batch_bytes_max:
                if Input.BATCH_DUE not in self._deadlines:
                    self._deadlines.after(Input.BATCH_DUE, options.batch_delay_s)
                    self._outbox.wake()
                return
            self._deadlines.clear(Input.BATCH_DUE)
        if not self._outbox.woken:
            self._outbox.wake()

    def batch_due(self) -> None:
        self._outbox.wake()

    def refuse(self, post: Post) -> None:
        raise SdkError(Result.NOT_CONNECTED, "the session is stopped")

    def seal(self, group: Group) -> None:
        """No more posts of this group: report it when the last one is answered."""
        group.sealed = True
        if not group.outstanding:
            self._outbox.add(Settled(group))

    # -- outcomes ---------------------------------------------------------------------------------------------------

    def on_ack(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """From the broker: acknowledgements."""
        if end - start < 4:
            self._outbox.nonsense(PeerError("event cut short", "ACK", start))
            return
        step = (buffer[start] & 15) * 4
        position = start + (buffer[start] >> 4) * 4
        if step < ITEM_BYTES or position == start:
            self._outbox.nonsense(PeerError("bad sizes", "ACK", start))
            return
        unpack, answer = ACK_MESSAGE.unpack_from, self.unacked.answer
        kept, counters = self.unacked.kept, self._counters
        settled = len(kept) + counters.nacked
        while position + step <= end:
            word, guid, _ = unpack(buffer, position)
            position += step
            post = answer(guid)
            if post is not None:
                self._settle(post, ACK_RESULTS[word >> 24 & 15])
        counters.acked += settled - len(kept) - counters.nacked
        self.give_room()

    def sent(self) -> None:
        """What was to be written is with the channel: posts that want no acknowledgement have their outcome."""
        taken = self.unacked.taken()
        if taken:
            self._counters.unasked += len(taken)
            for post in taken:
                self._settle(post, Result.SUCCESS, True)
            self.give_room()

    def fail_all(self, queue: Queue) -> None:
        """The queue is closed: nobody will acknowledge these any more."""
        for post in self.unacked.of(queue):
            self.unacked.answer(post.guid)
            self._settle(post, Result.UNKNOWN)
        self.give_room()

    def expiry_due(self) -> None:
        """Without a connection: posts too old to be sent again safely fail."""
        old, due = self.unacked.expired(self._deadlines.now)
        if old:
            self._outbox.note(WARNING, f"{len(old)} posts failed: without acknowledgement for longer than the "
                                       "deduplication time")
        for post in old:
            self.unacked.answer(post.guid)
            self._settle(post, Result.UNKNOWN)
        if due is not None:
            self._deadlines.set(Input.EXPIRY_DUE, max(due, self._deadlines.now + _EXPIRY_STEP_S))
        if old:
            self.give_room()

    def _settle(self, post: Post, result: Result, only_group: bool = False) -> None:
        """Tell whoever waits for a post what became of it; failures that nobody waits for become acks all the same."""
        group = post.group
        failed = result is not Result.SUCCESS
        if failed:
            self._failed(post, result)
        if group is not None and (failed or group.acks is not None):
            group.settle(Ack(post.queue, post.guid, result, post.correlation, post.token))
        if not only_group and (post.token is not None or failed and (group is None or group.acks is None)):
            self._outbox.add(Ack(post.queue, post.guid, result, post.correlation, post.token))
        if group is not None:
            group.outstanding -= 1
            if group.sealed and not group.outstanding:
                self._outbox.add(Settled(group))

    def _failed(self, post: Post, result: Result) -> None:
        self._counters.fail(result)
        if result not in self._told:
            self._told.add(result)
            self._outbox.note(WARNING, f"a post to {post.queue.uri} failed: {result} (more of this kind are only counted)")

    # -- the connection ---------------------------------------------------------------------------------------------

    def connected(self, v2_properties: bool) -> None:
        """There is a broker again, perhaps an older one."""
        if self._v2_properties and not v2_properties and self.unacked.kept:
            self.unacked.restyle()
        self._v2_properties = v2_properties
        self._told.clear()

    def send_kept(self) -> int:
        """All queues are back: send what waited, in the order it was posted; the number of posts."""
        kept = len(self.unacked.kept)
        if kept:
            self._counters.retransmitted += self.unacked.again()
            self._outbox.wake()
        return kept

    def lost(self, sent: bool) -> None:
        """The connection is gone. `sent`: were posts sent on it?"""
        self.unacked.lost(sent)
        self.blocked = False

    def pause(self) -> None:
        """The channel has more to write than its high watermark."""
        if not self.blocked:
            self.blocked = True
            self._outbox.event(EventKind.CHANNEL_HIGH_WATERMARK)

    def resume(self) -> None:
        """It is below its low watermark again."""
        if self.blocked:
            self.blocked = False
            self._outbox.event(EventKind.CHANNEL_LOW_WATERMARK)
            self.give_room()

    def give_room(self) -> None:
        """Tell whoever waits for room, if there is some or never will be."""
        if self.room_wanted and (self.has_room(1) or self._state.state is State.STOPPED):
            self.room_wanted = False
            self._outbox.add(Room())
