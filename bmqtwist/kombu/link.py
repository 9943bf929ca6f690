"""One connection to the broker: a session core, a thread that moves its bytes, and calls that wait.

The thread answers heartbeats while the program works or sleeps, and reconnects. What comes in is left in the inboxes of
readers; `news` counts that, and `fileno` is readable until somebody has looked (`calm`), for event loops.

A connection that only posts survives: the core reconnects and posts again what was not acknowledged, and the broker
knows repetitions. One that reads ends with its channel (`LinkLost`): the broker gives unconfirmed messages to others,
so what is held here must be forgotten, and kombu and Celery do that when they connect again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from bmqtwist.kombu.errors import LinkLost, refusal, translated
from bmqtwist.kombu.settings import Settings
from bmqtwist.sdk._adapters.threaded import ThreadedCore, Waiter
from bmqtwist.sdk._core.effects import Completed
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk._core.unacked import Post
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import QueueOptions
from bmqtwist.sdk.results import Ack, EventKind, Result, SdkError, SessionEvent

_links: weakref.WeakSet[Link] = weakref.WeakSet()


class Reader:
    """A queue that is read: `inbox` holds what came and was not taken, `unconfirmed` counts what was taken."""

    __slots__ = ("configuring", "inbox", "options", "queue", "unconfirmed", "uri", "wanted")

    def __init__(self, uri: str, options: QueueOptions, inbox_max: int | None) -> None:
        self.uri = uri
        self.options = self.wanted = options  # the broker's, and ours
        self.configuring = False
        self.inbox: deque[Message] = deque(maxlen=inbox_max)
        self.unconfirmed = 0
        self.queue: Queue


class Link:
    """Connects when it is made. LinkLost or Refused from every call that cannot be done."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lost = ""  # why this connection is of no use any more
        self.told = False  # has somebody heard of that?
        self.news = 0
        self._readers: dict[str, Reader] = {}
        self._queues: dict[str, Queue] = {}  # what is open, by URI
        self._opening = threading.RLock()
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._signalled = False
        itself = weakref.WeakMethod(self._on_effect)

        def on_effect(effect: object) -> None:
            target = itself()
            if target is not None:
                target(effect)

        self._threaded = ThreadedCore(settings.session, on_effect, settings.tls, name="bmqtwist-kombu")
        self._core, self._changed = self._threaded.core, self._threaded.changed
        weakref.finalize(self, self._threaded.end).atexit = False
        _links.add(self)
        self._threaded.start()
        address = settings.session.brokers[0]
        try:
            self._request(f"no connection to {address}", self._core.start, settings.session.connect_timeout_s + 1.0)
        except BaseException:
            self.abandon()
            raise

    # -- waiting ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """LinkLost if this connection is of no use any more."""
        if self.lost:
            self.told = True
            raise LinkLost(self.lost)

    def wait(self, done: Callable[[], object], timeout_s: float | None) -> bool:
        """Wait until something is so, under the lock; whether it is. LinkLost if the connection ends before."""
        self._here()
        if self._threaded.wait(lambda: done() or self.lost, timeout_s) and done():
            return True
        self.check()
        return False

    def wait_news(self, seen: int, timeout_s: float | None) -> bool:
        """Wait until `news` is more than what was seen."""
        return self.wait(lambda: self.news != seen, timeout_s)

    def _here(self) -> None:
        """Before any lock is taken: those of the parent process are not ours."""
        if self.forked:
            self.check()

    def _request(self, what: str, make: Callable[[object, float], object], timeout_s: float) -> None:
        """Make a request of the core and wait for its end. One without answer leaves the broker's state unknown, and the
        connection useless."""
        self.check()
        try:
            answered = self._threaded.request(make, timeout_s)
        except SdkError as error:
            raise translated(what, error) from error
        if not answered:
            self._fail(f"{what}: no answer in {timeout_s:g} s")
            self.check()

    # -- posting ----------------------------------------------------------------------------------------------------

    def post(self, uris: Iterable[str], payload: bytes, properties: Mapping[str, object], *, confirm: bool,
             timeout_s: float) -> None:
        """Post to several queues. With `confirm`, until the broker has acknowledged all of them."""
        self.check()
        end = time.monotonic() + timeout_s
        waiters = []
        for uri in uris:
            queue = self._writable(uri)
            waiters.append(Waiter())
            post = Post(token=waiters[-1] if confirm else None)
            if not self._post(queue, payload, properties, post, max(end - time.monotonic(), 0.0)):
                raise LinkLost(f"post to {uri}: no room in {timeout_s:g} s")
        if not confirm:
            return
        if not self.wait(lambda: all(each.outcome is not None for each in waiters), max(end - time.monotonic(), 0.0)):
            self._fail(f"post: no acknowledgement in {timeout_s:g} s")
            self.check()
        for waiter in waiters:
            ack = waiter.outcome
            assert isinstance(ack, Ack)
            if ack.status is Result.UNKNOWN:  # it is not known whether the broker has it
                raise LinkLost(f"post to {ack.uri}: no acknowledgement")
            if not ack.ok:
                raise refusal(f"post to {ack.uri}", ack.status)

    def cast(self, uri: str, payload: bytes, properties: Mapping[str, object]) -> None:
        """Post to a broadcast queue: whoever reads it now may hear it. Void if there is no room."""
        self.check()
        self._post(self._writable(uri), payload, properties, Post(ack=False), 0.0)

    def _post(self, queue: Queue, payload: bytes, properties: Mapping[str, object], post: Post, wait_s: float) -> bool:
        """False if there is no room in time."""
        with self._changed:
            try:
                self._threaded.post(queue, payload, properties, None, post, wait_s, self.check)
            except SdkError as error:
                if error.result is Result.BW_LIMIT:
                    return False
                raise translated(f"post to {queue.uri}", error) from error
            self._threaded.transport.perform()
        return True

    # -- queues -----------------------------------------------------------------------------------------------------

    def _open(self, uri: str, options: QueueOptions | None, owner: object = None) -> Queue:
        """Open a queue for writing, and with `options` for reading as well."""
        opened: list[Queue] = []

        def make(token: object, now: float) -> None:
            opened.append(self._core.open(uri, token, now, read=options is not None, write=True, queue_options=options))
            opened[0].owner = owner
        self._request(f"open {uri}", make, self.settings.request_timeout_s)
        self._queues[uri] = opened[0]
        return opened[0]

    def _writable(self, uri: str) -> Queue:
        queue = self._queues.get(uri)
        if queue is None or not queue.is_open:
            with self._opening:
                queue = self._queues.get(uri)
                if queue is None or not queue.is_open:
                    queue = self._open(uri, None)
        return queue

    def _close(self, uri: str) -> None:
        queue = self._queues.pop(uri, None)
        if queue is not None and queue.is_open:
            self._request(f"close {uri}", lambda token, now: self._core.close(queue, token, now),
                          self.settings.request_timeout_s)

    def read(self, uri: str, options: QueueOptions, inbox_max: int | None = None) -> Reader:
        """Begin to read a queue. With `inbox_max` the oldest messages make room for new ones."""
        self._here()
        with self._opening:
            self._close(uri)  # open for writing only
            reader = Reader(uri, options, inbox_max)
            self._readers[uri] = reader
            try:
                reader.queue = self._open(uri, options, reader)
            except BaseException:
                self._readers.pop(uri, None)
                raise
        return reader

    def unread(self, reader: Reader) -> None:
        """Read a queue no longer: what was not confirmed goes to others."""
        self._here()
        with self._opening:
            self._readers.pop(reader.uri, None)
            self._close(reader.uri)

    def tune(self, reader: Reader, options: QueueOptions, wait: bool = False) -> None:
        """Change how a queue is read. While one change is under way only the newest wish is kept; `wait` until it is so."""
        self._here()
        with self._changed:
            reader.wanted = options
            self._tune(reader)
            self._threaded.transport.perform()
            timeout_s = self.settings.request_timeout_s
            if wait and not self.wait(lambda: not reader.configuring, timeout_s):
                self._fail(f"configure {reader.uri}: no answer in {timeout_s:g} s")
                self.check()

    def _tune(self, reader: Reader) -> None:
        if reader.configuring or reader.wanted == reader.options or self.lost or not reader.queue.is_open:
            return
        reader.configuring, reader.options = True, reader.wanted
        try:
            self._core.configure(reader.queue, reader.options, reader, self._threaded.clock())
        except SdkError as error:
            self._fail(str(translated(f"configure {reader.uri}", error)))

    def take(self, reader: Reader) -> Message:
        """The next message of an inbox; IndexError if there is none."""
        self._here()
        with self._changed:
            message = reader.inbox.popleft()
            reader.unconfirmed += 1
            return message

    def confirm(self, message: Message) -> None:
        """Done with a message that was taken."""
        self._here()
        with self._changed:
            self.check()
            try:
                self._core.confirm(message)
            except SdkError as error:
                raise translated(f"confirm in {message.uri}", error) from error
            message.queue.owner.unconfirmed -= 1
            self._threaded.transport.perform()

    # -- news -------------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """A descriptor that is readable while there may be something to take."""
        return self._far.fileno()

    def alarm(self) -> None:
        """There may be something to take, or something is different: wake who waits."""
        if self.forked:
            return
        with self._changed:
            self.news += 1
            if not self._signalled:
                self._signalled = True
                with contextlib.suppress(OSError):
                    self._near.send(b"\0")
            self._changed.notify_all()

    def calm(self, seen: int) -> None:
        """All news up to `seen` led to nothing that could be taken."""
        self._here()
        with self._changed:
            if self._signalled and self.news == seen and not self.lost:
                self._signalled = False
                with contextlib.suppress(OSError):
                    self._far.recv(64)

    def _on_effect(self, effect: object) -> None:
        """An effect of the core, under the lock."""
        if isinstance(effect, Message):
            self._core.consumed(1)
            effect.queue.owner.inbox.append(effect)
            self.alarm()
        elif isinstance(effect, Completed) and isinstance(effect.token, Reader):
            self._tuned(effect.token, effect)
        elif isinstance(effect, SessionEvent):
            self._event(effect)

    def _tuned(self, reader: Reader, outcome: Completed) -> None:
        reader.configuring = False
        self._changed.notify_all()
        if outcome.result is Result.SUCCESS or not reader.queue.is_open:
            self._tune(reader)
        else:
            self._fail(str(refusal(f"configure {reader.uri}", outcome.result, outcome.message)))

    def _event(self, event: SessionEvent) -> None:
        if event.kind is EventKind.CONNECTION_LOST and self._readers:
            self._fail(f"the connection to {self._core.options.brokers[0]} was lost: {event.message}")
        elif event.kind is EventKind.DISCONNECTED:
            self._fail(event.message or "the connection is closed")

    def _fail(self, reason: str) -> None:
        if not self.lost:
            self.lost = reason
            self._threaded.end()
            self.alarm()

    # -- the end ----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Disconnect: what was posted is acknowledged before, what was not confirmed goes to others."""
        if not self.lost:
            with contextlib.suppress(LinkLost):
                self._request("disconnect", self._core.stop, self.settings.request_timeout_s)
        self.abandon()
        self._threaded.join(self.settings.request_timeout_s)

    def abandon(self) -> None:
        """Let go of everything, without a word to the broker."""
        if self.forked:
            return
        self._fail("the connection is closed")
        with self._changed:
            self._near.close()
            self._far.close()

    @property
    def forked(self) -> bool:
        """Was this made by the process that this one was forked from?"""
        return self.lost == _FORKED

    def forget(self) -> None:
        """In a child process, right after the fork: the thread is not here, locks may be held by nobody. Only the
        descriptors are closed, so that the broker sees the parent go when it goes."""
        self.lost = _FORKED
        self._threaded.transport.hang_up()
        self._near.close()
        self._far.close()


_FORKED = "the connection belongs to the parent process"


def _after_fork() -> None:
    for link in list(_links):
        link.forget()


os.register_at_fork(after_in_child=_after_fork)
