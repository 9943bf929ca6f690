"""Sessions that post, kept from task to task: Spark uses a Python worker again, and so does its session with the broker.

A child that is forked has none: the session belongs to the process that made it.
"""

from __future__ import annotations

import atexit
import contextlib
import os

from bmqtwist.errors import LocalError
from bmqtwist.sdk.results import Ack, Result, SdkError
from bmqtwist.sdk.simple import Queue, Session
from bmqtwist.spark.options import SinkOptions
from bmqtwist.spark.receiver import session_options, tls_of

_kept: dict[SinkOptions, Producer] = {}


class Refusal(LocalError):
    """A message was not accepted by the broker: the task fails with this."""


class Producer:
    """One session and the queues it posts to."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._session = Session(options=session_options(
            options.broker, post_wait_s=options.delivery_timeout_s, unacked_bytes_max=options.unacked_bytes_max,
            compression=options.compression), tls=tls_of(options.broker))
        self._queues: dict[str, Queue[bytes]] = {}
        self._waiting: set[tuple[str, bytes]] = set()  # without an acknowledgement
        self._refused: Ack | None = None

    @property
    def usable(self) -> bool:
        """Is the session still there? (It finds another connection by itself.)"""
        return self._session.running

    def begin(self) -> None:
        """Of a task: see what has become of the connection meanwhile."""
        self._session.step()

    def post(self, uri: str, guid: bytes, value: bytes, properties: dict[str, object] | None) -> None:
        """Post, and go on; Refusal if an earlier message was refused. The same GUID once at a time."""
        if (uri, guid) in self._waiting:
            return
        queue = self._queues.get(uri)
        if queue is None or not queue.is_open:
            queue = self._queues[uri] = self._session.open(uri, write=True)
        if len(self._waiting) >= self._options.unacked_messages_max:
            self._wait(self._options.unacked_messages_max // 2)
        self._waiting.add((uri, guid))
        try:
            queue.post_nowait(value, properties or None, on_ack=self._on_ack, guid=guid)
        except SdkError as error:
            self._waiting.discard((uri, guid))
            raise Refusal(f"the message {guid.hex().upper()} for {uri} could not be posted: {error}") from None
        self._check()

    def finish(self) -> None:
        """Return when every message is acknowledged; Refusal if one is not."""
        self._wait(0)

    def _wait(self, left: int) -> None:
        options = self._options
        try:
            self._session.wait(lambda: len(self._waiting) <= left or self._refused is not None, options.delivery_timeout_s)
        except SdkError as error:
            if error.result is not Result.TIMEOUT:
                raise
            uri, guid = next(iter(self._waiting))
            raise Refusal(f"{len(self._waiting)} messages have no acknowledgement after {options.delivery_timeout_s:g} s, "
                          f"one of them {guid.hex().upper()} for {uri}") from None
        self._check()

    def _on_ack(self, ack: Ack) -> None:
        self._waiting.discard((ack.uri, ack.guid))
        if not ack.ok and self._refused is None:
            self._refused = ack

    def _check(self) -> None:
        ack = self._refused
        if ack is not None:
            raise Refusal(f"the broker has refused the message {ack.guid.hex().upper()} for {ack.uri}: {ack.status.value}")

    def close(self) -> None:
        """Disconnect."""
        with contextlib.suppress(SdkError):
            self._session.stop(False)


def producer(options: SinkOptions) -> Producer:
    """The session for these options in this process."""
    found = _kept.get(options)
    if found is None or not found.usable:
        found = _kept[options] = Producer(options)
    return found


def discard(options: SinkOptions) -> None:
    """A task has failed: what it has left under way is not to meet its next attempt."""
    found = _kept.pop(options, None)
    if found is not None:
        found.close()


def close_all() -> None:
    """Let go of all sessions of this process."""
    while _kept:
        _kept.popitem()[1].close()


os.register_at_fork(after_in_child=_kept.clear)
atexit.register(close_all)
