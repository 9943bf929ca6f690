"""The blocking session of the official library, on our core.

Two threads belong to a session: one moves bytes, one calls the application back. So a callback may call anything here,
open queues and stop the session included; only other callbacks wait for it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from bmqtwist.errors import BmqError
from bmqtwist.ids import InvalidUri
from bmqtwist.sdk import message as sdk_message
from bmqtwist.sdk import options as sdk_options
from bmqtwist.sdk import results
from bmqtwist.sdk._adapters.sockets import SocketTransport
from bmqtwist.sdk._adapters.transport import TransportFactory
from bmqtwist.sdk._core.effects import Completed, Room
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk.blazingmq import session_events as events
from bmqtwist.sdk.blazingmq.exceptions import BrokerTimeoutError, Error
from bmqtwist.sdk.blazingmq.values import (
    Ack,
    BasicHealthMonitor,
    CompressionAlgorithmType,
    Message,
    MessageHandle,
    QueueOptions,
    SessionOptions,
    Timeouts,
    to_wire,
)
from bmqtwist.sdk.counters import Counters
from bmqtwist.sdk.results import EventKind, Result, SdkError
from bmqtwist.wire.properties import PropertyType

_PLAIN = {
    EventKind.CONNECTED: events.Connected, EventKind.DISCONNECTED: events.Disconnected,
    EventKind.CONNECTION_LOST: events.ConnectionLost, EventKind.RECONNECTED: events.Reconnected,
    EventKind.STATE_RESTORED: events.StateRestored, EventKind.CONNECTION_TIMEOUT: events.ConnectionTimeout,
    EventKind.SLOWCONSUMER_NORMAL: events.SlowConsumerNormal,
    EventKind.SLOWCONSUMER_HIGHWATERMARK: events.SlowConsumerHighWaterMark,
    EventKind.HOST_UNHEALTHY: events.HostUnhealthy, EventKind.HOST_HEALTH_RESTORED: events.HostHealthRestored,
    EventKind.ERROR: events.Error,
}
_OF_QUEUES = {
    EventKind.QUEUE_REOPEN_RESULT: (events.QueueReopened, events.QueueReopenFailed),
    EventKind.QUEUE_SUSPENDED: (events.QueueSuspended, events.QueueSuspendFailed),
    EventKind.QUEUE_RESUMED: (events.QueueResumed, events.QueueResumeFailed),
}
_RESERVED_BYTES = 4 << 20  # of a channel's high watermark, for control messages
_DEFAULT: Any = None


class _Waiter:
    """One request that a thread waits for."""

    __slots__ = ("completed", "event")

    def __init__(self) -> None:
        self.event = threading.Event()
        self.completed: Completed | None = None


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Our errors as the official ones."""
    try:
        yield
    except Error:
        raise
    except SdkError as error:
        raise (BrokerTimeoutError if error.result is Result.TIMEOUT else Error)(str(error)) from error
    except InvalidUri as error:
        raise Error(f"INVALID_URI: {error}") from error
    except BmqError as error:
        raise Error(str(error)) from error


def _seconds(value: float | None, default: float) -> float:
    if value is None:
        return default
    if not 0.0 < value < 2 ** 63:
        raise ValueError(f"a timeout must be greater than 0.0, was {value}")
    return value


def _text(uri: str | bytes) -> str:
    return uri.decode() if isinstance(uri, bytes) else uri


class Session:
    """Connects when it is made; Error or BrokerTimeoutError if that does not work.

    `on_session_event` hears session events; `on_message` gets (message, handle) for each message of queues opened for
    reading. `timeout`: seconds for requests, or Timeouts. The environment's BMQ_BROKER_URI overrides `broker`.
    """

    _make_transport: TransportFactory = SocketTransport  # a class attribute, since the official calls have no room for it

    def __init__(self, on_session_event: Callable[[events.SessionEvent], None],
                 on_message: Callable[[Message, MessageHandle], None] | None = None,
                 broker: str = sdk_options.DEFAULT_BROKER,
                 message_compression_algorithm: CompressionAlgorithmType = CompressionAlgorithmType.NONE,
                 timeout: Timeouts | float | None = _DEFAULT,
                 host_health_monitor: BasicHealthMonitor | None = None,
                 num_processing_threads: int | None = None, blob_buffer_size: int | None = None,
                 channel_high_watermark: int | None = None, event_queue_watermarks: tuple[int, int] | None = None,
                 stats_dump_interval: float | None = None) -> None:
        if host_health_monitor is not None and not isinstance(host_health_monitor, BasicHealthMonitor):
            raise TypeError("host_health_monitor must be None or a BasicHealthMonitor")
        if stats_dump_interval is not None and stats_dump_interval < 0:
            raise ValueError(f"stats_dump_interval must be nonnegative, was {stats_dump_interval}")
        times = timeout if isinstance(timeout, Timeouts) else Timeouts(None, None, timeout, timeout, timeout)
        defaults = sdk_options.SessionOptions()
        high = defaults.channel_high_bytes
        if channel_high_watermark is not None:
            high = max(channel_high_watermark - _RESERVED_BYTES, 1)
        low, many = event_queue_watermarks or (defaults.slow_consumer_low, defaults.slow_consumer_high)
        with _translated():
            options = sdk_options.SessionOptions(
                brokers=sdk_options.parse_brokers(os.environ.get("BMQ_BROKER_URI") or _text(broker)),
                connect_timeout_s=_seconds(times.connect_timeout, defaults.connect_timeout_s),
                disconnect_timeout_s=_seconds(times.disconnect_timeout, defaults.disconnect_timeout_s),
                open_timeout_s=_seconds(times.open_queue_timeout, defaults.open_timeout_s),
                configure_timeout_s=_seconds(times.configure_queue_timeout, defaults.configure_timeout_s),
                close_timeout_s=_seconds(times.close_queue_timeout, defaults.close_timeout_s),
                compression=message_compression_algorithm is CompressionAlgorithmType.ZLIB,
                channel_high_bytes=high, channel_low_bytes=high // 2, slow_consumer_low=low, slow_consumer_high=many)
        self._on_session_event, self._on_message = on_session_event, on_message
        self._monitored = host_health_monitor is not None
        self._options = options
        self._calls: SimpleQueue[tuple[Callable[..., object], Any] | None] = SimpleQueue()
        self._transport = self._make_transport(options, self._dispatch, None)
        self._core, self._lock = self._transport.core, self._transport.lock
        self._room = threading.Condition(self._lock)
        self._running = True
        self._deaf: Callable[[], None] = lambda: None
        if host_health_monitor is not None:
            monitor = host_health_monitor.monitor
            self._health(monitor.healthy)
            self._deaf = monitor.listen(self._health)
        self._mover = threading.Thread(target=self._move, name="bmqtwist-io", daemon=True)
        self._caller = threading.Thread(target=self._call, name="bmqtwist-callbacks", daemon=True)
        self._mover.start()
        self._caller.start()
        try:
            with _translated():
                self._request(self._core.start)
        except BaseException:
            self._end()
            raise

    @classmethod
    def with_options(cls, on_session_event: Callable[[events.SessionEvent], None],
                     on_message: Callable[[Message, MessageHandle], None] | None = None,
                     broker: str = sdk_options.DEFAULT_BROKER,
                     session_options: SessionOptions = SessionOptions()) -> Session:  # noqa: B008 - never changed
        """A session from a SessionOptions object."""
        given = session_options
        return cls(on_session_event, on_message, broker,
                   given.message_compression_algorithm or CompressionAlgorithmType.NONE, given.timeouts,
                   given.host_health_monitor, given.num_processing_threads, given.blob_buffer_size,
                   given.channel_high_watermark, given.event_queue_watermarks, given.stats_dump_interval)

    # -- the application --------------------------------------------------------------------------------------------

    def open_queue(self, queue_uri: str, read: bool = False, write: bool = False,
                   options: QueueOptions = QueueOptions(),  # noqa: B008 - never changed
                   timeout: float | None = _DEFAULT) -> None:
        """Open a queue and wait for that."""
        uri = _text(queue_uri)
        if read and self._on_message is None:
            raise Error(f"{uri} cannot be opened for reading: the session has no on_message callback")
        self._check_health_option(options)
        seconds = _seconds(timeout, self._options.open_timeout_s)
        with _translated():
            wanted = options.over(sdk_options.QueueOptions())
            self._request(lambda token, now: self._core.open(uri, token, now, read=read, write=write,
                                                             queue_options=wanted, timeout_s=seconds))

    def close_queue(self, queue_uri: str, timeout: float | None = _DEFAULT) -> None:
        """Close a queue and wait for that."""
        seconds = _seconds(timeout, self._options.close_timeout_s)
        with _translated():
            self._request(lambda token, now: self._core.close(self._queue(queue_uri), token, now, seconds))

    def configure_queue(self, queue_uri: str, options: QueueOptions, timeout: float | None = _DEFAULT) -> None:
        """Change what is given of a queue's options and wait for that."""
        self._check_health_option(options)
        seconds = _seconds(timeout, self._options.configure_timeout_s)

        def configure(token: object, now: float) -> None:
            queue = self._queue(queue_uri)
            self._core.configure(queue, options.over(queue.options), token, now, seconds)
        with _translated():
            self._request(configure)

    def get_queue_options(self, queue_uri: str) -> QueueOptions:
        """The options of an open queue."""
        with self._lock:
            queue = self._queue(queue_uri)
            options = queue.options if queue.readable else sdk_options.QueueOptions(
                suspends_on_bad_host_health=queue.options.suspends_on_bad_host_health)
        return QueueOptions(options.max_unconfirmed_messages, options.max_unconfirmed_bytes,
                            options.consumer_priority, options.suspends_on_bad_host_health)

    def post(self, queue_uri: str, message: bytes, properties: Mapping[str, object] | None = None,
             property_type_overrides: Mapping[str, PropertyType] | None = None,
             on_ack: Callable[[Ack], None] | None = None) -> None:
        """Post; `on_ack` is called with the acknowledgement, without it none is asked for.

        Waits for room if there is none, up to five seconds.
        """
        core = self._core
        if property_type_overrides:
            properties = to_wire(properties or {}, property_type_overrides)
        with _translated(), self._lock:
            queue = self._queue(queue_uri)
            end = 0.0
            while True:
                now = self._transport.clock()
                try:
                    core.post(queue, message, now, properties, property_type_overrides, ack=on_ack is not None,
                              token=on_ack)
                    return
                except SdkError as error:
                    end = end or now + self._options.post_wait_s
                    if error.result is not Result.BW_LIMIT or now >= end:
                        raise
                self._room.wait(end - now)

    def confirm(self, message: Message) -> None:
        """Done with a message."""
        with _translated(), self._lock:
            self._core.confirm(message._message)

    def counters(self) -> Counters:
        """What this session has done so far, and how things stand (the official library has no such call)."""
        with self._lock:
            return self._core.counters()

    def stop(self) -> None:
        """Wait for acknowledgements a little, disconnect; no callback is running after this, but the one it is called
        from."""
        if self._running:
            self._request(self._core.stop)
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()

    # -- requests ---------------------------------------------------------------------------------------------------

    def _queue(self, uri: str | bytes) -> Queue:
        queue = self._core.queues.get(_text(uri))
        if queue is None:
            raise Error(f"{_text(uri)} is not open")
        return queue

    def _check_health_option(self, options: QueueOptions) -> None:
        if options.suspends_on_bad_host_health and not self._monitored:
            raise Error("suspends_on_bad_host_health needs a session that was made with a host_health_monitor")

    def _request(self, make: Callable[[object, float], object]) -> None:
        """Make a request, wait for its end; SdkError if it fails."""
        waiter = _Waiter()
        with self._lock:
            if not self._running:
                raise SdkError(Result.NOT_CONNECTED, "the session is stopped")
            make(waiter, self._transport.clock())
            self._transport.perform()
        waiter.event.wait()
        completed = waiter.completed
        if completed is not None and completed.result is not Result.SUCCESS:
            raise SdkError(completed.result, completed.message)

    def _health(self, healthy: bool) -> None:
        with self._lock:
            self._core.set_health(healthy, self._transport.clock())

    def _end(self) -> None:
        """Nothing moves any more."""
        self._running = False
        self._deaf()
        self._transport.poke()
        self._calls.put(None)
        current = threading.current_thread()
        if current is not self._mover:
            self._mover.join()
        if current is not self._caller:
            self._caller.join()

    # -- the threads ------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        while self._running:
            self._transport.step()
        self._transport.dispose()

    def _dispatch(self, effect: object) -> None:
        """An effect, under the lock: callbacks go to their thread, waiters are woken."""
        if isinstance(effect, sdk_message.Message):
            self._calls.put((self._give_message, effect))
        elif isinstance(effect, results.Ack):
            if effect.token is not None:
                self._calls.put((self._give_ack, effect))
        elif isinstance(effect, Completed):
            if isinstance(effect.token, _Waiter):
                effect.token.completed = effect
                effect.token.event.set()
        elif isinstance(effect, results.SessionEvent):
            self._calls.put((self._give_event, effect))
        elif isinstance(effect, Room):
            self._room.notify_all()

    def _call(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call[0](call[1])
            except Exception as error:  # noqa: BLE001 - the application's own: threading prints it, callbacks go on
                threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, self._caller)))

    def _give_message(self, message: sdk_message.Message) -> None:
        with self._lock:
            self._core.consumed(1)
        if self._on_message is not None:
            try:
                given = Message(message)
            except BmqError as error:  # it cannot be read: as the official library, say so and go on
                self._on_session_event(events.Error(f"message {message.guid.hex().upper()}: {error}"))
                return
            self._on_message(given, MessageHandle(given, self))

    def _give_ack(self, ack: results.Ack) -> None:
        ack.token(Ack(ack))  # type: ignore[operator]

    def _give_event(self, event: results.SessionEvent) -> None:
        failed = event.result is not Result.SUCCESS
        text = None
        if failed or event.kind is EventKind.ERROR:
            text = ": ".join(part for part in (event.result.value if failed else "", event.message) if part)
        if event.kind in _OF_QUEUES:
            self._on_session_event(_OF_QUEUES[event.kind][failed](event.uri, text))
        elif event.kind in _PLAIN:
            self._on_session_event(_PLAIN[event.kind](text))
