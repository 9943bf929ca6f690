"""Posts on their way: every one is kept from `keep` until its acknowledgement, whatever the connection does.

    keep       a new post
    send       it goes into the batch: the session is ready
    cut        the batch becomes PUT events; posts that want no acknowledgement are forgotten once these are taken
    again      after a reconnect: everything kept goes into the batch, in the order it was posted, byte for byte
    answer     an acknowledgement; None if nobody waits for it (a duplicate, or not ours)
    expired    posts that are too old to be sent again without the risk of a duplicate

One dictionary in order of posting is all there is; a post is packed once, when it is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bmqtwist.sdk._core.effects import Group
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.wire import events, properties
from bmqtwist.wire.application_data import close_data, open_data
from bmqtwist.wire.fast import MESSAGE_PROPERTIES, EventType, event_header

_GUID = slice(12, 28)  # of a packed message


@dataclass(eq=False, slots=True)
class Post:
    """What is asked for with a post; once it is accepted, the post itself, packed. `token`: an Ack effect follows."""

    ack: bool = True  # is an acknowledgement asked for?
    token: object = None
    correlation: object = None
    group: Group | None = None
    compress: bool | None = None  # None = as the session's options say
    guid: bytes = b""  # chosen by the application; else a new one
    queue: Queue = field(init=False)
    packed: bytes = field(init=False)
    posted_at: float = field(init=False)


class UnackedPosts:
    """The posts of a session. `held_bytes`: packed bytes of all that are kept."""

    __slots__ = ("_batch", "_cut", "_forget", "_limit_bytes", "_sent", "batch_bytes", "held_bytes", "kept", "leaving")

    batch_bytes: int
    held_bytes: int

    def __init__(self, batch_bytes_max: int) -> None:
        self.kept: dict[bytes, Post] = {}  # by GUID, in order of posting
        self.held_bytes = 0
        self.batch_bytes = 0
        self._batch: list[bytes] = []
        self._cut: list[bytes] = []  # what was in the batch and is not with the channel yet
        self._forget: list[bytes] = []  # GUIDs in the batch that want no acknowledgement
        self.leaving: list[bytes] = []  # the same of what was cut and not taken yet
        self._sent: set[bytes] = set()  # GUIDs that were sent on a connection that is gone
        self._limit_bytes = batch_bytes_max

    def keep(self, post: Post) -> None:
        """Keep a post."""
        self.kept[post.guid] = post
        self.held_bytes += len(post.packed)

    def send(self, post: Post) -> None:
        """Put a kept post into the batch."""
        packed = post.packed
        self._batch.append(packed)
        self.batch_bytes += len(packed)
        if not post.ack:
            self._forget.append(post.guid)

    def again(self) -> int:
        """Put everything that is kept into the batch; how many of these were sent before."""
        kept = self.kept
        repeated = len(kept.keys() & self._sent)
        self._sent = set()
        for post in kept.values():
            self.send(post)
        return repeated

    def lost(self, sent: bool) -> None:
        """The connection is gone: what is kept stays, the batch is void. `sent`: were posts sent on it?"""
        if sent:
            self._sent = set(self.kept)
            self._sent.difference_update(packed[_GUID] for packed in (*self._cut, *self._batch))
        self._batch, self._cut, self._forget, self.leaving, self.batch_bytes = [], [], [], [], 0

    def cut(self) -> Iterator[bytes]:
        """The batch as PUT events of about the limit; a single message may be larger."""
        batch, self._batch, self.batch_bytes = self._batch, [], 0
        self._cut += batch
        self.leaving += self._forget
        self._forget = []
        start, size = 0, 0
        for index, packed in enumerate(batch):
            if size and size + len(packed) > self._limit_bytes:
                yield b"".join((event_header(EventType.PUT, size), *batch[start:index]))
                start, size = index, 0
            size += len(packed)
        if size:
            yield b"".join((event_header(EventType.PUT, size), *batch[start:]))

    def handed_over(self) -> None:
        """Everything cut is with the channel."""
        if self._cut:
            self._cut = []

    def taken(self) -> list[Post]:
        """Everything cut is with the channel: forget, and give, what wants no acknowledgement."""
        if not self.leaving:
            return []
        forget, self.leaving = self.leaving, []
        return [post for guid in forget if (post := self.answer(guid)) is not None]

    def answer(self, guid: bytes) -> Post | None:
        """Take a post out; None if there is none of that GUID."""
        post = self.kept.pop(guid, None)
        if post is not None:
            self.held_bytes -= len(post.packed)
        return post

    def of(self, queue: Queue) -> list[Post]:
        """What is kept of one queue, in order."""
        return [post for post in self.kept.values() if post.queue is queue]

    def expired(self, now: float) -> tuple[list[Post], float | None]:
        """Posts older than the deduplication time of their queue, and when the next one will be."""
        old: list[Post] = []
        due: float | None = None
        for post in self.kept.values():
            end = post.posted_at + post.queue.deduplication_s
            if end <= now:
                old.append(post)
            elif due is None or end < due:
                due = end
        return old, due

    def restyle(self) -> None:
        """The new broker reads only old-style properties: rewrite what has new-style ones."""
        for post in self.kept.values():
            message = events.decode_put(post.packed, 0, len(post.packed))[0][0]
            if not message.flags & MESSAGE_PROPERTIES or not message.schema_id:
                continue
            area, payload = open_data(message.data, True, message.compression, message.schema_id)
            message.data, message.compression = close_data(properties.to_v1(area), payload, False,
                                                           bool(message.compression))
            message.schema_id, message.crc = 0, None
            self.held_bytes -= len(post.packed)
            post.packed = events.encode_put([message])[8:]
            self.held_bytes += len(post.packed)
