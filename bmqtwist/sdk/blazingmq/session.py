"""Blocking session of the official library's interface, with its errors and texts.

A `CallbackEngine` runs the core: one thread moves bytes, another runs callbacks. A callback may call any method of the
session, including opening queues and stopping the session; other callbacks wait for it. The threads reference the engine
but not the session, so that an unreferenced session is garbage-collected: its engine then delivers posts and stops
(`abandon`). At the exit of the program an exit handler stops each running engine. The I/O thread is
`_adapters/threaded.py`; values and events of the interface are in `values.py` and `session_events.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any, Self

from bmqtwist.errors import BmqError
from bmqtwist.ids import InvalidUri
from bmqtwist.sdk import message as sdk_message
from bmqtwist.sdk import options as sdk_options
from bmqtwist.sdk import results
from bmqtwist.sdk._adapters import forks
from bmqtwist.sdk._adapters.threaded import ThreadedCore
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk._core.states import State
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
    make_ack,
    make_handle,
    make_message,
    to_wire,
)
from bmqtwist.sdk.counters import Counters
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.pump import PumpFactory, SocketPump
from bmqtwist.sdk.results import EventKind, Result, SdkError
from bmqtwist.wire.properties import PropertyType

STOPPED = "Method called after session was stopped"
NOT_OPENED = "Queue not opened"
_MESSAGE_ERRORS = {Result.PAYLOAD_EMPTY, Result.PAYLOAD_TOO_BIG, Result.QUEUE_SUSPENDED}  # independent of the connection


@contextlib.contextmanager
def translate_errors(operation: str) -> Iterator[None]:
    """Raise errors of a request as `Failed to <operation>: CODE: why`."""
    try:
        yield
    except Error:
        raise
    except BmqError as error:
        if isinstance(error, SdkError):
            late = error.result is Result.TIMEOUT
            raise (BrokerTimeoutError if late else Error)(f"Failed to {operation}: {error}") from error
        code = "INVALID_URI" if isinstance(error, InvalidUri) else "INVALID_ARGUMENT"
        raise Error(f"Failed to {operation}: {code}: {error}") from error


@contextlib.contextmanager
def translated_post(uri: str) -> Iterator[None]:
    try:
        yield
    except Error:
        raise
    except SdkError as error:
        if error.result in _MESSAGE_ERRORS:
            raise Error(f"Failed to construct message: {error}") from error
        raise Error(f"Failed to post message to {uri} queue: {error}") from error
    except BmqError as error:
        raise ValueError(str(error)) from error


LOG = logging.getLogger("blazingmq.session")
LOG.addHandler(logging.NullHandler())
_EVENTS = {
    EventKind.CONNECTED: events.Connected, EventKind.DISCONNECTED: events.Disconnected,
    EventKind.CONNECTION_LOST: events.ConnectionLost, EventKind.RECONNECTED: events.Reconnected,
    EventKind.STATE_RESTORED: events.StateRestored, EventKind.CONNECTION_TIMEOUT: events.ConnectionTimeout,
    EventKind.SLOWCONSUMER_NORMAL: events.SlowConsumerNormal,
    EventKind.SLOWCONSUMER_HIGHWATERMARK: events.SlowConsumerHighWaterMark,
    EventKind.HOST_UNHEALTHY: events.HostUnhealthy, EventKind.HOST_HEALTH_RESTORED: events.HostHealthRestored,
    EventKind.ERROR: events.Error,
}
_QUEUE_EVENTS = {
    EventKind.QUEUE_REOPEN_RESULT: (events.QueueReopened, events.QueueReopenFailed),
    EventKind.QUEUE_SUSPENDED: (events.QueueSuspended, events.QueueSuspendFailed),
    EventKind.QUEUE_RESUMED: (events.QueueResumed, events.QueueResumeFailed),
}
UNSTOPPED = "stop() not invoked before destruction of Session<{}> object"


class CallbackEngine(ThreadedCore):
    """Runs one session core and the application's callbacks. `started`: the application has not stopped the session."""

    def __init__(self, options: sdk_options.SessionOptions, make_transport: PumpFactory,
                 on_session_event: Callable[[events.SessionEvent], object],
                 on_message: Callable[[Message, MessageHandle], object] | None, health: HealthMonitor | None) -> None:
        self._on_session_event, self._on_message = on_session_event, on_message
        self._calls: SimpleQueue[tuple[Callable[[Any], object], Any] | None] = SimpleQueue()
        super().__init__(options, self._queue_callback, make_transport=make_transport, on_step=self._stop_if_abandoned)
        self.transport.logger = LOG
        self.started: bool = True
        self.end_text = STOPPED  # text of errors after the end of the session
        self._abandoned = self._stopping = False
        self._remove_health_listener: Callable[[], None] = lambda: None
        if health is not None:
            self._set_health(health.healthy)
            self._remove_health_listener = health.listen(self._set_health)
        self._callback_thread = threading.Thread(target=self._run_callbacks, name="bmqtwist-callbacks", daemon=True)
        self.start()
        self._callback_thread.start()
        try:
            self.request(self.core.start)
        except BaseException:
            self.started = False
            self._end_threads()
            raise
        self._exit_handler = partial(_at_exit, weakref.ref(self))
        atexit.register(self._exit_handler)

    # -- for the session --------------------------------------------------------------------------------------------

    def wait_for_callbacks(self) -> None:
        """Wait until all pending callbacks have returned; return at once if called by a callback."""
        if threading.current_thread() is not self._callback_thread:
            called = threading.Event()
            self._calls.put((lambda _: called.set(), None))
            while not called.wait(1.0) and self._callback_thread.is_alive():
                pass

    def stop(self) -> None:
        """Wait up to 5 s for acknowledgements, then disconnect. On return no callback runs, except the caller itself."""
        with self.lock:
            started, self.started = self.started, False
            self.changed.notify_all()
        if started:
            self.request(self.core.stop)
            self._end_threads()

    def on_forked(self, core: Any) -> None:
        super().on_forked(core)
        self.started, self.end_text = False, f"Session not usable: {forks.FORKED}"

    def abandon(self) -> None:
        """Stop in the thread after the session was garbage-collected. Runs in any thread, so it takes no lock."""
        if self.started:
            self._abandoned, self.started = True, False
            warnings.warn(UNSTOPPED.format(hex(id(self))), UserWarning, stacklevel=3)
            self.transport.interrupt_step()

    def stop_at_exit(self) -> None:
        """Deliver posts and stop at the end of the program."""
        if self.started:
            warnings.warn(UNSTOPPED.format(hex(id(self))), UserWarning, stacklevel=2)
        failed = self.core.counters().nacked
        if self._abandoned:
            self.join()
            self._callback_thread.join()
        else:
            self.stop()
        lost = self.core.counters().nacked - failed
        if lost:
            warnings.warn(f"{lost} posts were not acknowledged before the program ended", UserWarning, stacklevel=2)

    def _set_health(self, healthy: bool) -> None:
        with self.lock:
            self.core.set_health(healthy, self.clock())

    def _end_threads(self) -> None:
        self._remove_health_listener()
        self.end_thread()
        self._calls.put(None)
        self.join()
        if threading.current_thread() is not self._callback_thread:
            self._callback_thread.join()
        if hasattr(self, "_exit_handler"):
            atexit.unregister(self._exit_handler)

    # -- the threads ------------------------------------------------------------------------------------------------

    def _stop_if_abandoned(self) -> None:
        if self._abandoned and not self._stopping:
            self._stopping = True
            with self.lock:
                self.core.stop(None, self.clock())
                self.transport.perform()
        if self._stopping and self.core.state is State.STOPPED:
            self._end_threads()

    def _queue_callback(self, effect: object) -> None:
        if isinstance(effect, sdk_message.Message):
            self._calls.put((self._deliver_message, effect))
        elif isinstance(effect, results.Ack):
            if effect.token is not None:
                self._calls.put((effect.token, make_ack(effect)))  # type: ignore[arg-type]
        elif isinstance(effect, results.SessionEvent):
            self._calls.put((self._deliver_event, effect))

    def _run_callbacks(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call[0](call[1])
            except Exception as error:  # noqa: BLE001 - application error: printed like an uncaught exception
                sys.excepthook(type(error), error, error.__traceback__)
                del error
            del call  # it may hold the last reference to a session

    def _deliver_message(self, message: sdk_message.Message) -> None:
        with self.lock:
            self.core.on_consumed(1)
        if self._on_message is not None:
            try:
                given = make_message(message)
            except BmqError as error:  # malformed: an Error event, as in the official library
                self._on_session_event(events.Error(f"message {message.guid.hex().upper()}: {error}"))
                return
            self._on_message(given, make_handle(given, self.confirm))

    def confirm(self, message: Message) -> None:
        with self.lock:
            if self.core.state is State.STOPPED:
                raise Error(self.end_text)
            try:
                self.core.confirm(message._message)
            except SdkError as error:
                raise Error(NOT_OPENED if error.result is Result.INVALID_QUEUE else
                            f"Failed to confirm message [{message.guid.hex().upper()}]: {error}") from error

    def _deliver_event(self, event: results.SessionEvent) -> None:
        failed = event.result is not Result.SUCCESS
        text = None
        if failed or event.kind is EventKind.ERROR:
            text = ": ".join(part for part in (event.result.value if failed else "", event.message) if part)
        if event.kind in _QUEUE_EVENTS:
            self._on_session_event(_QUEUE_EVENTS[event.kind][failed](event.uri, text))
        elif event.kind in _EVENTS:
            self._on_session_event(_EVENTS[event.kind](text))


def _at_exit(reference: weakref.ref[CallbackEngine]) -> None:
    engine = reference()
    if engine is not None:
        with contextlib.suppress(SdkError):
            engine.stop_at_exit()


_RESERVED_BYTES = 4 << 20  # of a channel's high watermark, for control messages


class _DefaultTimeout(float):
    """Default value of timeouts: the session's timeout."""

    def __repr__(self) -> str:
        return "..."


_DEFAULT: Any = _DefaultTimeout()


def _checked_timeout(value: float | None, default: float) -> float:
    if value is None or value is _DEFAULT:
        return default
    if not 0.0 < value < 2 ** 63:
        raise ValueError(f"timeout must be greater than 0.0, was {value}")
    return value


def _uri_text(uri: str | bytes) -> str:
    return uri.decode() if isinstance(uri, bytes) else uri


class Session:
    """One session; the constructor connects, or raises Error or BrokerTimeoutError.

    `on_session_event` receives session events, `on_message` (message, handle) for each message of queues opened for
    reading. `timeout`: of requests, seconds, or Timeouts. The environment variable BMQ_BROKER_URI overrides `broker`.
    """

    _make_transport: PumpFactory = SocketPump  # a class attribute, since the official constructor has no such parameter
    _engine: CallbackEngine

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
            raise TypeError("host_health_monitor must be None or an instance of blazingmq.BasicHealthMonitor")
        if stats_dump_interval is not None and not 0.0 <= stats_dump_interval < 2 ** 63:
            raise ValueError(f"stats_dump_interval must be nonnegative, was {stats_dump_interval}")
        times = timeout if isinstance(timeout, Timeouts) else Timeouts(None, None, timeout, timeout, timeout)
        defaults = sdk_options.SessionOptions()
        high = defaults.channel_high_bytes
        if channel_high_watermark is not None:
            high = max(channel_high_watermark - _RESERVED_BYTES, 1)
        low, many = event_queue_watermarks or (defaults.slow_consumer_low, defaults.slow_consumer_high)
        self._readable, self._monitored = on_message is not None, host_health_monitor is not None
        with translate_errors("start session"):
            self._options = options = sdk_options.SessionOptions(
                connect_timeout_s=_checked_timeout(times.connect_timeout, defaults.connect_timeout_s),
                disconnect_timeout_s=_checked_timeout(times.disconnect_timeout, defaults.disconnect_timeout_s),
                open_timeout_s=_checked_timeout(times.open_queue_timeout, defaults.open_timeout_s),
                configure_timeout_s=_checked_timeout(times.configure_queue_timeout, defaults.configure_timeout_s),
                close_timeout_s=_checked_timeout(times.close_queue_timeout, defaults.close_timeout_s),
                compression=message_compression_algorithm is CompressionAlgorithmType.ZLIB,
                channel_high_bytes=high, channel_low_bytes=high // 2, slow_consumer_low=low, slow_consumer_high=many,
                brokers=sdk_options.parse_brokers(os.environ.get("BMQ_BROKER_URI") or _uri_text(broker)))  # after the times
            monitor = host_health_monitor.monitor if host_health_monitor is not None else None
            self._engine = CallbackEngine(options, self._make_transport, on_session_event, on_message, monitor)

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.abandon()

    @classmethod
    def with_options(cls, on_session_event: Callable[[events.SessionEvent], None],
                     on_message: Callable[[Message, MessageHandle], None] | None = None,
                     broker: str = sdk_options.DEFAULT_BROKER,
                     session_options: SessionOptions = SessionOptions()) -> Session:  # noqa: B008 - never changed
        """Return a session from a SessionOptions object."""
        given = session_options
        return cls(on_session_event, on_message, broker,
                   given.message_compression_algorithm or CompressionAlgorithmType.NONE, given.timeouts,
                   given.host_health_monitor, given.num_processing_threads, given.blob_buffer_size,
                   given.channel_high_watermark, given.event_queue_watermarks, given.stats_dump_interval)

    # -- queues -----------------------------------------------------------------------------------------------------

    def open_queue(self, queue_uri: str, read: bool = False, write: bool = False,
                   options: QueueOptions = QueueOptions(),  # noqa: B008 - never changed
                   timeout: float | None = _DEFAULT) -> None:
        """Open a queue and wait for the result."""
        uri = _uri_text(queue_uri)
        if read and not self._readable:
            raise Error(f"Can't open queue {uri} in read mode: no on_message callback was provided at Session construction")
        self._check_health_option(options)
        seconds = _checked_timeout(timeout, self._options.open_timeout_s)
        self._check_started()
        core = self._engine.core
        with translate_errors(f"open {uri} queue"):
            if not (read or write):
                raise Error(f"Failed to open {uri} queue: INVALID_FLAGS: open it for reading, for writing, or both")
            wanted = options.apply_to(sdk_options.QueueOptions())
            self._engine.request(lambda token, now: core.open(uri, token, now, read=read, write=write,
                                                              queue_options=wanted, timeout_s=seconds))

    def close_queue(self, queue_uri: str, timeout: float | None = _DEFAULT) -> None:
        """Close a queue, and wait for the result and for the callbacks of its acknowledgements."""
        uri = _uri_text(queue_uri)
        seconds = _checked_timeout(timeout, self._options.close_timeout_s)
        self._check_started()
        core = self._engine.core
        with translate_errors(f"close {uri} queue"):
            self._engine.request(lambda token, now: core.close(self._find_queue(uri), token, now, seconds))
        self._engine.wait_for_callbacks()

    def configure_queue(self, queue_uri: str, options: QueueOptions, timeout: float | None = _DEFAULT) -> None:
        """Change the given options of a queue and wait for the result."""
        uri = _uri_text(queue_uri)
        self._check_health_option(options)
        seconds = _checked_timeout(timeout, self._options.configure_timeout_s)
        self._check_started()

        def configure(token: object, now: float) -> None:
            queue = self._find_queue(uri)
            self._engine.core.configure(queue, options.apply_to(queue.options), token, now, seconds)
        with translate_errors(f"configure {uri} queue"):
            self._engine.request(configure)

    def get_queue_options(self, queue_uri: str) -> QueueOptions:
        """Return the options of an open queue."""
        self._check_started()
        with self._engine.lock:
            queue = self._find_queue(_uri_text(queue_uri))
            options = queue.options if queue.readable else sdk_options.QueueOptions(
                suspends_on_bad_host_health=queue.options.suspends_on_bad_host_health)
        return QueueOptions(options.max_unconfirmed_messages, options.max_unconfirmed_bytes,
                            options.consumer_priority, options.suspends_on_bad_host_health)

    # -- messages ---------------------------------------------------------------------------------------------------

    def post(self, queue_uri: str, message: bytes, properties: Mapping[str, object] | None = None,
             property_type_overrides: Mapping[str, PropertyType] | None = None,
             on_ack: Callable[[Ack], None] | None = None) -> None:
        """Post; `on_ack` is called with the acknowledgement. Without `on_ack` no acknowledgement is requested.

        Waits up to five seconds for room.
        """
        uri = _uri_text(queue_uri)
        if not isinstance(message, bytes):
            raise TypeError(f"Argument 'message' has incorrect type (expected bytes, got {type(message).__name__})")
        values, types = to_wire(properties, property_type_overrides) if properties or property_type_overrides else (
            None, None)
        engine = self._engine
        with translated_post(uri), engine.lock:
            queue = self._find_queue(uri)
            if not queue.writable:
                raise Error("Failed to construct message: QUEUE_READONLY")
            engine.post(queue, message, values, types, Post(on_ack is not None, on_ack), self._options.post_wait_s,
                        self._check_started)

    def confirm(self, message: Message) -> None:
        """Confirm a message."""
        self._engine.confirm(message)

    # -- the session ------------------------------------------------------------------------------------------------

    def counters(self) -> Counters:
        """Return a snapshot of the counters (an addition to the official interface)."""
        with self._engine.lock:
            return self._engine.core.counters()

    def stop(self) -> None:
        """Wait up to 5 s for acknowledgements, then disconnect. On return no callback runs, except the caller itself."""
        self._engine.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _check_started(self) -> None:
        if not self._engine.started:
            raise Error(self._engine.end_text)

    def _find_queue(self, uri: str) -> Queue:
        self._check_started()  # again, with the lock: another thread may have stopped the session
        queue = self._engine.core.queues.get(uri)
        if queue is None:
            raise Error(NOT_OPENED)
        return queue

    def _check_health_option(self, options: QueueOptions) -> None:
        if options.suspends_on_bad_host_health and not self._monitored:
            raise Error("Queues cannot use suspends_on_bad_host_health if host health monitoring was disabled when the "
                        "Session was created")
