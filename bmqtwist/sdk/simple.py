"""A session for tools and workers: no reactor, no threads. Calls block, and nothing happens between them.

While no call is made heartbeats go unanswered: a program that works on messages for long calls `session.step(0)` now
and then, or sets the broker's patience accordingly.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from bmqtwist.sdk import queues
from bmqtwist.sdk.counters import Counters
from bmqtwist.sdk.effects import Completed, Group
from bmqtwist.sdk.identity import session_options
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import QueueOptions, SessionOptions
from bmqtwist.sdk.pump import PumpFactory
from bmqtwist.sdk.queues import Codec
from bmqtwist.sdk.results import Ack, EventKind, PostsFailed, Result, SdkError, SessionEvent
from bmqtwist.sdk.sockets import SocketPump
from bmqtwist.wire.properties import PropertyType


class _Waiter:
    """Where the outcome of one request is put."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: Any = None


class Queue:
    """One opened queue."""

    core: queues.Queue  # what the session core knows of it

    def __init__(self, session: Session, uri: str, codec: Codec | None) -> None:
        self.session, self.uri = session, uri
        self.error: SdkError | None = None  # why it is closed, if that was not our wish
        self._codec = codec
        self._inbox: deque[Message] = deque()
        self._group = Group()

    def post(self, payload: Any, properties: Mapping[str, object] | None = None,
             types: Mapping[str, PropertyType] | None = None, *, correlation: object = None,
             compress: bool | None = None) -> Ack:
        """Post and wait for the acknowledgement."""
        waiter = _Waiter()
        self._put(payload, properties, types, token=waiter, correlation=correlation, compress=compress)
        self.session.wait(lambda: waiter.outcome is not None)
        ack: Ack = waiter.outcome
        return ack

    def post_nowait(self, payload: Any, properties: Mapping[str, object] | None = None,
                    types: Mapping[str, PropertyType] | None = None, *, ack: bool = True,
                    compress: bool | None = None) -> bytes:
        """Post and go on; the GUID. `flush` waits for the acknowledgements."""
        guid = self._put(payload, properties, types, ack=ack, group=self._group, compress=compress)
        if self.session.core.puts.batch_bytes >= self.session.options.batch_bytes_max:
            self.session.step()
        return guid

    def post_many(self, payloads: Iterable[Any]) -> list[Ack]:
        """Post payloads, or pairs of payload and properties; their acknowledgements in the same order."""
        group = Group(keep_acks=True)
        guids = []
        for each in payloads:
            payload, properties = each if isinstance(each, tuple) else (each, None)
            guids.append(self._put(payload, properties, None, group=group))
        self._settle(group)
        assert group.acks is not None
        return [group.acks[guid] for guid in guids]

    def flush(self) -> None:
        """Wait until everything posted without waiting is acknowledged; PostsFailed if some of it is refused."""
        group, self._group = self._group, Group()
        self._settle(group)
        if group.failures:
            raise PostsFailed(group.failures, group.failed)

    def _settle(self, group: Group) -> None:
        self.session.core.seal(group)
        self.session.wait(lambda: group.outstanding == 0)

    def _put(self, payload: Any, properties: Mapping[str, object] | None, types: Mapping[str, PropertyType] | None,
             **more: Any) -> bytes:
        """Post; wait for room if there is none, not longer than the options say."""
        if self._codec is not None:
            payload = self._codec.encode(payload)
        session = self.session
        end: float | None = None
        while True:
            now = session.clock()
            try:
                return session.core.post(self.core, payload, now, properties, types, **more)
            except SdkError as error:
                end = now + session.options.post_wait_s if end is None else end
                if error.result is not Result.BW_LIMIT or now >= end:
                    raise
            session.step(min(end - now, 0.5))

    def get(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None if none comes in time."""
        if not self._inbox:
            self.session.wait(lambda: bool(self._inbox) or not self.core.is_open, timeout_s, quiet=True)
        if self._inbox:
            self.session.core.consumed(1)
            return self._inbox.popleft()
        if self.error is not None:
            raise self.error
        return None

    def poll(self, count_max: int, timeout_s: float = 0.0) -> list[Message]:
        """Up to so many messages: what is there, or what comes first within the timeout."""
        if not self._inbox:
            self.session.wait(lambda: bool(self._inbox) or not self.core.is_open, timeout_s, quiet=True)
        found = [self._inbox.popleft() for _ in range(min(count_max, len(self._inbox)))]
        self.session.core.consumed(len(found))
        if not found and self.error is not None:
            raise self.error
        return found

    def __iter__(self) -> Iterator[Message]:
        while (message := self.get()) is not None:
            yield message

    def confirm(self, message: Message) -> None:
        """Confirm a message."""
        self.session.core.confirm(message)

    def configure(self, options: QueueOptions) -> None:
        """Change how the queue is read."""
        self.session.request(lambda token, now: self.session.core.configure(self.core, options, token, now))

    def close(self) -> None:
        """Close it; what was posted without waiting is flushed first."""
        self.flush()
        self.session.request(lambda token, now: self.session.core.close(self.core, token, now))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.core.is_open and self.session.running:
            self.close()

    def deliver(self, message: Message) -> None:
        """From the session: a message."""
        self._inbox.append(message)


class Session:
    """A session that starts when it is made. Options as in SessionOptions; `on_event` hears session events.

    `pump` makes what moves the bytes, by default a SocketPump: see `pump.Pump` for tunnels and in-memory brokers.
    """

    def __init__(self, broker: str | list[str] | None = None, *, options: SessionOptions | None = None,
                 tls: ssl.SSLContext | None = None, on_event: Callable[[SessionEvent], None] | None = None,
                 pump: PumpFactory = SocketPump, **changes: Any) -> None:
        self.options = session_options(broker, options, changes)
        self.running = True
        self._on_event = on_event
        self._pump = pump(self.options, self._dispatch, tls)
        self.core, self.clock = self._pump.core, self._pump.clock
        try:
            self.request(self.core.start)
        except BaseException:
            self.running = False
            self._pump.dispose()
            raise

    def _dispatch(self, effect: object) -> None:
        if isinstance(effect, Message):
            effect.queue.owner.deliver(effect)
        elif isinstance(effect, (Ack, Completed)):
            if isinstance(effect.token, _Waiter):
                effect.token.outcome = effect
        elif isinstance(effect, SessionEvent):
            if effect.kind is EventKind.QUEUE_REOPEN_RESULT and effect.queue and effect.result is not Result.SUCCESS:
                effect.queue.owner.error = SdkError(effect.result, effect.message)
            if self._on_event is not None:
                self._on_event(effect)

    def counters(self) -> Counters:
        """What this session has done so far, and how things stand."""
        return self.core.counters()

    def step(self, timeout_s: float = 0.0) -> None:
        """Do what is due; wait that long if nothing is."""
        self._pump.perform()
        self._pump.step(timeout_s)

    def wait(self, done: Callable[[], bool], timeout_s: float | None = None, quiet: bool = False) -> None:
        """Work until something is so; SdkError TIMEOUT if it is not in time (unless `quiet`)."""
        end = None if timeout_s is None else self.clock() + timeout_s
        self._pump.perform()
        while not done():
            left = None if end is None else end - self.clock()
            if left is not None and left < 0:
                if quiet:
                    return
                raise SdkError(Result.TIMEOUT, "not in time")
            self._pump.step(left)

    def request(self, make: Callable[[object, float], object]) -> None:
        """Make a request of the core and wait for its end; SdkError if it fails."""
        waiter = _Waiter()
        make(waiter, self.clock())
        self.wait(lambda: waiter.outcome is not None)
        if waiter.outcome.result is not Result.SUCCESS:
            raise SdkError(waiter.outcome.result, waiter.outcome.message)

    def open(self, uri: str, *, read: bool = False, write: bool = False, options: QueueOptions | None = None,
             codec: Codec | None = None) -> Queue:
        """Open a queue."""
        queue = Queue(self, uri, codec)
        self.request(lambda token, now: self._open(queue, token, now, read, write, options, codec))
        return queue

    def _open(self, queue: Queue, token: object, now: float, read: bool, write: bool,
              options: QueueOptions | None, codec: Codec | None) -> None:
        queue.core = self.core.open(queue.uri, token, now, read=read, write=write, queue_options=options, owner=queue)
        queue.core.codec = codec

    def stop(self) -> None:
        """Wait for acknowledgements, disconnect."""
        if self.running:
            self.running = False
            try:
                self.request(self.core.stop)
            finally:
                self._pump.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()
