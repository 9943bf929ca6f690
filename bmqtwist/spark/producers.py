"""Producers of the queue sink: sessions that the tasks of a Python worker share, and GUIDs derived from the row, so that a
repeated task posts the same messages and the broker drops duplicates. A forked child process starts without sessions.

    with a key:     digest of (queue, key)
    without a key:  digest of (query or write, batch, partition, queue, content, number of equal rows before it)

The row number is not part of the digest: after a shuffle a second attempt of a task reads its rows in another order; two
different rows would then share a GUID, and the broker would drop one of them. The digest replaces counter and timer of a
GUID:

    2 bits version (1)   78 bits digest        48 bits client id: a digest of the common part

Called by `sink.py`; the sessions of the source are in `receiver.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b

from bmqtwist.errors import LocalError
from bmqtwist.ids import NULL_GUID
from bmqtwist.sdk.results import Ack, Result, SdkError
from bmqtwist.sdk.simple import Queue, Session
from bmqtwist.spark.options import SinkOptions
from bmqtwist.spark.receiver import session_options, tls_context

_VERSION = 1 << 78
_MASK = _VERSION - 1


def _framed(parts: Iterable[bytes]) -> bytes:
    """Prefix each part with its length, so that different lists result in different bytes."""
    return b"".join([len(part).to_bytes(8, "big") + part for part in parts])


def _guid(common: bytes, parts: Iterable[bytes]) -> bytes:
    digest = int.from_bytes(blake2b(_framed(parts), digest_size=10, key=common).digest(), "big")
    return (_VERSION | digest & _MASK).to_bytes(10, "big") + common[:6]


class Guids:
    """GUIDs for one attempt of a task. `scope` identifies the write (query or write id, batch, partition)."""

    def __init__(self, scope: Iterable[str | int]) -> None:
        self._common = blake2b(_framed(str(each).encode() for each in scope), digest_size=16).digest()
        self._by_key: dict[str, bytes] = {}
        self._seen: Counter[bytes] = Counter()

    def for_key(self, queue: str, key: bytes) -> bytes:
        common = self._by_key.get(queue)
        if common is None:
            common = self._by_key[queue] = blake2b(queue.encode(), digest_size=16, person=b"bmq key").digest()
        return _guid(common, [key])

    def for_content(self, queue: str, value: bytes, properties: Iterable[tuple[str, str]]) -> bytes:
        parts = [queue.encode(), value]
        for name, text in sorted(properties):
            parts += (name.encode(), text.encode())
        content = blake2b(_framed(parts), digest_size=16).digest()
        self._seen[content] += 1
        return _guid(self._common, [content, self._seen[content].to_bytes(8, "big")])


def check_guid(value: bytes) -> bytes:
    """Return a GUID as bytes. LocalError if it is not a GUID."""
    if len(value) != len(NULL_GUID) or value[0] >> 6 != 1:
        raise LocalError(f"{value.hex().upper()} is not a GUID: 16 bytes, the first bits are 01. Use column dedupKey for "
                         "other keys")
    return bytes(value)


_producers: dict[SinkOptions, Producer] = {}


class MessageRefused(LocalError):
    """The broker did not accept a message: the task fails."""


class Producer:
    """A session with its open queues and unacknowledged posts, used by one task at a time."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._session = Session(options=session_options(
            options.broker, post_wait_s=options.delivery_timeout_s, unacked_bytes_max=options.unacked_bytes_max,
            compression=options.compression), tls=tls_context(options.broker))
        self._queues: dict[str, Queue[bytes]] = {}
        self._unacked: set[tuple[str, bytes]] = set()  # (queue, GUID) without acknowledgement
        self._refused: Ack | None = None

    @property
    def is_running(self) -> bool:
        return self._session.running

    def start_task(self) -> None:
        """Process input since the last task, so that a lost connection is detected before the first post."""
        self._session.step()

    def post(self, uri: str, guid: bytes, value: bytes, properties: dict[str, object] | None) -> None:
        """Post without waiting for the acknowledgement. MessageRefused if an earlier message was refused. A message with the
        GUID of an unacknowledged message is skipped."""
        if (uri, guid) in self._unacked:
            return
        queue = self._queues.get(uri)
        if queue is None or not queue.is_open:
            queue = self._queues[uri] = self._session.open(uri, write=True)
        if len(self._unacked) >= self._options.unacked_messages_max:
            self._wait(self._options.unacked_messages_max // 2)
        self._unacked.add((uri, guid))
        try:
            queue.post_nowait(value, properties or None, on_ack=self._on_ack, guid=guid)
        except SdkError as error:
            self._unacked.discard((uri, guid))
            raise MessageRefused(f"the message {guid.hex().upper()} for {uri} could not be posted: {error}") from None
        self._check()

    def wait_for_acks(self) -> None:
        """Wait until all messages are acknowledged. MessageRefused if one was refused, or after the delivery timeout."""
        self._wait(0)

    def _wait(self, left: int) -> None:
        options = self._options
        try:
            self._session.wait(lambda: len(self._unacked) <= left or self._refused is not None, options.delivery_timeout_s)
        except SdkError as error:
            if error.result is not Result.TIMEOUT:
                raise
            uri, guid = next(iter(self._unacked))
            raise MessageRefused(f"{len(self._unacked)} messages are not acknowledged after {options.delivery_timeout_s:g} "
                                 f"s, one of them {guid.hex().upper()} for {uri}") from None
        self._check()

    def _on_ack(self, ack: Ack) -> None:
        self._unacked.discard((ack.uri, ack.guid))
        if not ack.ok and self._refused is None:
            self._refused = ack

    def _check(self) -> None:
        ack = self._refused
        if ack is not None:
            raise MessageRefused(f"the broker refused the message {ack.guid.hex().upper()} for {ack.uri}: "
                                 f"{ack.status.value}")

    def close(self) -> None:
        with contextlib.suppress(SdkError):
            self._session.stop(False)


def producer_of(options: SinkOptions) -> Producer:
    """Return the producer of this process for these options, a new one if there is none or its session is stopped."""
    found = _producers.get(options)
    if found is None or not found.is_running:
        found = _producers[options] = Producer(options)
    return found


def discard_producer(options: SinkOptions) -> None:
    """Close the session of a failed task, so that its posts do not affect the next attempt."""
    found = _producers.pop(options, None)
    if found is not None:
        found.close()


def close_producers() -> None:
    while _producers:
        _producers.popitem()[1].close()


os.register_at_fork(after_in_child=_producers.clear)
atexit.register(close_producers)
