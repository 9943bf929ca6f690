"""Posts and acknowledgements. Each accepted post is stored until it has its outcome, exactly one. After a reconnect all
unacknowledged posts are retransmitted in order of posting, with identical bytes: a post is packed once.

`session.py` calls it for posts of the application and ACK events of the broker; deliveries are in `deliveries.py`, PUT
events are encoded in `outbox.py`. Limits of unacknowledged posts are declared in `options.py`, the size of a message in
`bmqtwist/limits.py`, statuses in `results.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import WARNING

from crc32c import crc32c

from bmqtwist.errors import PeerError
from bmqtwist.limits import APPLICATION_DATA_BYTES_MAX
from bmqtwist.sdk._core.outbox import PostGroup, RoomAvailable, SharedParts
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk._core.states import Input, State
from bmqtwist.sdk.message import typed
from bmqtwist.sdk.results import ACK_RESULTS, Ack, EventKind, Result, SdkError
from bmqtwist.sdk.tracing import inject
from bmqtwist.wire import events, properties
from bmqtwist.wire.application_data import SCHEMA_ANONYMOUS, pack_data, unpack_data
from bmqtwist.wire.fast import ACK_MESSAGE, ITEM_BYTES, MESSAGE_PROPERTIES, put_message

_EXPIRY_STEP_S = 0.1  # minimum interval between two searches for posts older than the deduplication time
_GUID = slice(12, 28)  # of a packed message


@dataclass(eq=False, slots=True)
class Post:
    """Options of a post; after acceptance the packed post. With `token`, an Ack effect follows."""

    ack: bool = True  # request an acknowledgement
    token: object = None
    correlation: object = None
    group: PostGroup | None = None
    compress: bool | None = None  # None: as in the session options
    guid: bytes = b""  # set by the application; b"": a new one
    queue: Queue = field(init=False)
    packed: bytes = field(init=False)
    posted_at: float = field(init=False)


class Posts:
    """Sends posts and assigns outcomes. `unacked`: posts without an outcome, by GUID, in order of posting; `unacked_bytes`:
    their packed size. `blocked`: the channel's unsent bytes exceed its high watermark."""

    unacked: dict[bytes, Post]
    unacked_bytes: int

    def __init__(self, shared: SharedParts, make_guid: Callable[[], bytes]) -> None:
        self._options, self._state, self._outbox = shared.options, shared.state, shared.outbox
        self._deadlines, self._counters = shared.deadlines, shared.counters
        self._make_guid = make_guid
        self.unacked, self.unacked_bytes = {}, 0
        self.blocked: bool = False
        self.room_requested: bool = False  # a caller is waiting for a RoomAvailable effect
        self._v2_properties = False  # the broker supports new-style properties
        self._sent: set[bytes] = set()  # GUIDs that were sent on a lost connection
        self._logged: set[Result] = set()  # results of failed posts that were logged since the last connection

    # -- posting ----------------------------------------------------------------------------------------------------

    def has_room(self, size: int = 0) -> bool:
        held = self.unacked_bytes
        return not self.blocked and (not held or held + size <= self._options.unacked_bytes_max)

    def post(self, queue: Queue, payload: bytes, now: float, values: Mapping[str, object] | None = None,
             types: Mapping[str, properties.PropertyType] | None = None, post: Post | None = None) -> bytes:
        """Post a message and return its GUID. `post` has further options; it is stored in `unacked`.

        Raises SdkError: INVALID_QUEUE, QUEUE_SUSPENDED, PAYLOAD_EMPTY, PAYLOAD_TOO_BIG, and BW_LIMIT if there is no
        room: the adapter then waits for a RoomAvailable effect. LocalError: invalid properties.
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
            self.room_requested = True
            raise SdkError(Result.BW_LIMIT, "the limit of unsent and unacknowledged bytes is reached")
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
            data, cat = pack_data(area, payload, schema_id != 0, size >= session_options.compression_threshold_bytes)
        if len(data) > APPLICATION_DATA_BYTES_MAX:
            raise SdkError(Result.PAYLOAD_TOO_BIG, f"{len(data)} bytes, more than {APPLICATION_DATA_BYTES_MAX}")
        guid = post.guid or self._make_guid()
        if post.guid and guid in self.unacked:
            raise SdkError(Result.ALREADY_IN_PROGRESS, f"a post with GUID {guid.hex().upper()} has no acknowledgement yet")
        packed = put_message(queue.q_id, guid, data, crc32c(data), (1 if post.ack else 0) | (2 if area else 0), cat,
                             schema_id)
        post.queue, post.guid, post.packed, post.posted_at = queue, guid, packed, now
        self._state.post(post)
        if post.group is not None:
            post.group.outstanding += 1
        return guid

    def store(self, post: Post) -> None:
        """Store a post until the connection is restored; `retransmit` sends it."""
        self.unacked[post.guid] = post
        self.unacked_bytes += len(post.packed)
        if Input.EXPIRY_DUE not in self._deadlines:
            self._deadlines.set_after(Input.EXPIRY_DUE, post.queue.deduplication_s)

    def send(self, post: Post) -> None:
        """Add a post to the batch, which is written at the end of the turn, when it is full, or after `batch_delay_s`."""
        options, outbox = self._options, self._outbox
        self.unacked[post.guid] = post
        self.unacked_bytes += len(post.packed)
        self._append(post)
        if options.batch_delay_s:
            if outbox.batch_bytes < options.batch_bytes_max:
                if Input.BATCH_DUE not in self._deadlines:
                    self._deadlines.set_after(Input.BATCH_DUE, options.batch_delay_s)
                    outbox.notify()
                return
            self._deadlines.clear(Input.BATCH_DUE)
        if not outbox.notified:
            outbox.notify()

    def _append(self, post: Post) -> None:
        outbox, packed = self._outbox, post.packed
        outbox.posts.append(packed)
        outbox.batch_bytes += len(packed)
        if not post.ack:
            outbox.no_ack.append(post.guid)

    def on_batch_due(self) -> None:
        self._outbox.notify()

    def refuse_post(self, post: Post) -> None:
        raise SdkError(Result.NOT_CONNECTED, "the session is stopped")

    def seal(self, group: PostGroup) -> None:
        """Close a group: it is reported when its last post is acknowledged."""
        group.sealed = True
        if not group.outstanding:
            self._outbox.complete(group.token)

    # -- outcomes ---------------------------------------------------------------------------------------------------

    def on_ack(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        if end - start < 4:
            self._outbox.report_invalid(PeerError("event cut short", "ACK", start))
            return
        step = (buffer[start] & 15) * 4
        position = start + (buffer[start] >> 4) * 4
        if step < ITEM_BYTES or position == start:
            self._outbox.report_invalid(PeerError("bad sizes", "ACK", start))
            return
        unpack, remove = ACK_MESSAGE.unpack_from, self._remove
        unacked, counters = self.unacked, self._counters
        before = len(unacked) + counters.nacked
        while position + step <= end:
            word, guid, _ = unpack(buffer, position)
            position += step
            post = remove(guid)
            if post is not None:
                self._complete(post, ACK_RESULTS[word >> 24 & 15])
        counters.acked += before - len(unacked) - counters.nacked
        self.signal_room()

    def _remove(self, guid: bytes) -> Post | None:
        """Remove and return a post; None if the GUID is unknown (a duplicate, or of another session)."""
        post = self.unacked.pop(guid, None)
        if post is not None:
            self.unacked_bytes -= len(post.packed)
        return post

    def on_sent(self) -> None:
        """Complete the posts without acknowledgement when they are written to the channel."""
        outbox = self._outbox
        guids, outbox.encoded_no_ack = outbox.encoded_no_ack, []
        for guid in guids:
            post = self._remove(guid)
            if post is not None:
                self._counters.sent_without_ack += 1
                self._complete(post, Result.SUCCESS, True)
        self.signal_room()

    def fail_all(self, queue: Queue) -> None:
        self._fail_posts([post for post in self.unacked.values() if post.queue is queue])
        self.signal_room()

    def on_expiry_due(self) -> None:
        """Fail the posts older than the deduplication time, whose retransmission the broker could store twice."""
        now, expired, due = self._deadlines.now, [], None
        for post in self.unacked.values():
            end = post.posted_at + post.queue.deduplication_s
            if end <= now:
                expired.append(post)
            else:
                due = end if due is None else min(due, end)
        if due is not None:
            self._deadlines.set(Input.EXPIRY_DUE, max(due, now + _EXPIRY_STEP_S))
        if expired:
            self._outbox.log(WARNING, f"{len(expired)} posts failed: not acknowledged within the deduplication time")
            self._fail_posts(expired)
            self.signal_room()

    def _fail_posts(self, posts: list[Post]) -> None:
        for post in posts:
            self._remove(post.guid)
            self._complete(post, Result.UNKNOWN)

    def _complete(self, post: Post, result: Result, only_group: bool = False) -> None:
        group = post.group
        failed = result is not Result.SUCCESS
        if failed:
            self._counters.fail(result)
            if result not in self._logged:
                self._logged.add(result)
                self._outbox.log(WARNING, f"a post to {post.queue.uri} failed: {result} (further ones with this status are "
                                           "only counted)")
        if group is not None and (failed or group.acks is not None):
            group.record(Ack(post.queue, post.guid, result, post.correlation, post.token))
        if not only_group and (post.token is not None or failed and (group is None or group.acks is None)):
            self._outbox.add(Ack(post.queue, post.guid, result, post.correlation, post.token))
        if group is not None:
            group.outstanding -= 1
            if group.sealed and not group.outstanding:
                self._outbox.complete(group.token)

    # -- the connection ---------------------------------------------------------------------------------------------

    def on_connected(self, v2_properties: bool) -> None:
        """Set the property format of the broker; convert stored posts if it supports only old-style properties."""
        if self._v2_properties and not v2_properties:
            for post in self.unacked.values():
                message = events.decode_put(post.packed, 0, len(post.packed))[0][0]
                if not message.flags & MESSAGE_PROPERTIES or not message.schema_id:
                    continue
                area, payload = unpack_data(message.data, True, message.compression, message.schema_id)
                message.data, message.compression = pack_data(properties.to_v1(area), payload, False,
                                                              bool(message.compression))
                message.schema_id, message.crc = 0, None
                self.unacked_bytes -= len(post.packed)
                post.packed = events.encode_put([message])[8:]
                self.unacked_bytes += len(post.packed)
        self._v2_properties = v2_properties
        self._logged.clear()

    def retransmit(self) -> int:
        """Send all unacknowledged posts in order of posting; return their number."""
        unacked = self.unacked
        if unacked:
            self._counters.retransmitted += len(unacked.keys() & self._sent)
            self._sent = set()
            for post in unacked.values():
                self._append(post)
            self._outbox.notify()
        return len(unacked)

    def on_connection_lost(self, sent: bool) -> None:
        """Record which posts were sent, before the outbox is cleared. `sent`: posts were sent on this connection."""
        if sent:
            self._sent = set(self.unacked)
            self._sent.difference_update(packed[_GUID] for packed in (*self._outbox.encoded_posts, *self._outbox.posts))
        self.blocked = False

    def pause(self) -> None:
        if not self.blocked:
            self.blocked = True
            self._outbox.event(EventKind.CHANNEL_HIGH_WATERMARK)

    def resume(self) -> None:
        if self.blocked:
            self.blocked = False
            self._outbox.event(EventKind.CHANNEL_LOW_WATERMARK)
            self.signal_room()

    def signal_room(self) -> None:
        """Add a RoomAvailable effect for waiting callers if there is room or the session has ended."""
        if self.room_requested and (self.has_room(1) or self._state.state is State.STOPPED):
            self.room_requested = False
            self._outbox.add(RoomAvailable())
