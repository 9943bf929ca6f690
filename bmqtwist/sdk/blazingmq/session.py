"""The blocking session of the official library, on our core. What works for it is an `Engine`.

A callback may call anything here, open queues and stop the session included; only other callbacks wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Self

from bmqtwist.sdk import options as sdk_options
from bmqtwist.sdk._adapters.sockets import SocketTransport
from bmqtwist.sdk._adapters.transport import TransportFactory
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk._core.unacked import Post
from bmqtwist.sdk.blazingmq import session_events as events
from bmqtwist.sdk.blazingmq.engine import Engine
from bmqtwist.sdk.blazingmq.errors import NOT_OPENED, STOPPED, translated, translated_post
from bmqtwist.sdk.blazingmq.exceptions import Error
from bmqtwist.sdk.blazingmq.properties import to_wire
from bmqtwist.sdk.blazingmq.values import (
    Ack,
    BasicHealthMonitor,
    CompressionAlgorithmType,
    Message,
    MessageHandle,
    QueueOptions,
    SessionOptions,
    Timeouts,
)
from bmqtwist.sdk.counters import Counters
from bmqtwist.wire.properties import PropertyType

_RESERVED_BYTES = 4 << 20  # of a channel's high watermark, for control messages


class _DefaultTimeout(float):
    """The timeout that stands for the session's own."""

    def __repr__(self) -> str:
        return "..."


_DEFAULT: Any = _DefaultTimeout()


def _seconds(value: float | None, default: float) -> float:
    if value is None or value is _DEFAULT:
        return default
    if not 0.0 < value < 2 ** 63:
        raise ValueError(f"timeout must be greater than 0.0, was {value}")
    return value


def _text(uri: str | bytes) -> str:
    return uri.decode() if isinstance(uri, bytes) else uri


class Session:
    """Connects when it is made; Error or BrokerTimeoutError if that does not work.

    `on_session_event` hears session events; `on_message` gets (message, handle) for each message of queues opened for
    reading. `timeout`: seconds for requests, or Timeouts. The environment's BMQ_BROKER_URI overrides `broker`.
    """

    _make_transport: TransportFactory = SocketTransport  # a class attribute, since the official calls have no room for it
    _engine: Engine

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
        with translated("start session"):
            self._options = options = sdk_options.SessionOptions(
                connect_timeout_s=_seconds(times.connect_timeout, defaults.connect_timeout_s),
                disconnect_timeout_s=_seconds(times.disconnect_timeout, defaults.disconnect_timeout_s),
                open_timeout_s=_seconds(times.open_queue_timeout, defaults.open_timeout_s),
                configure_timeout_s=_seconds(times.configure_queue_timeout, defaults.configure_timeout_s),
                close_timeout_s=_seconds(times.close_queue_timeout, defaults.close_timeout_s),
                compression=message_compression_algorithm is CompressionAlgorithmType.ZLIB,
                channel_high_bytes=high, channel_low_bytes=high // 2, slow_consumer_low=low, slow_consumer_high=many,
                brokers=sdk_options.parse_brokers(os.environ.get("BMQ_BROKER_URI") or _text(broker)))  # after the times
            self._engine = Engine(options, self._make_transport, on_session_event, on_message,
                                  host_health_monitor.monitor if host_health_monitor is not None else None)

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.abandon()

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

    # -- queues -----------------------------------------------------------------------------------------------------

    def open_queue(self, queue_uri: str, read: bool = False, write: bool = False,
                   options: QueueOptions = QueueOptions(),  # noqa: B008 - never changed
                   timeout: float | None = _DEFAULT) -> None:
        """Open a queue and wait for that."""
        uri = _text(queue_uri)
        if read and not self._readable:
            raise Error(f"Can't open queue {uri} in read mode: no on_message callback was provided at Session construction")
        self._check_health_option(options)
        seconds = _seconds(timeout, self._options.open_timeout_s)
        self._check_started()
        core = self._engine.core
        with translated(f"open {uri} queue"):
            if not (read or write):
                raise Error(f"Failed to open {uri} queue: INVALID_FLAGS: open it for reading, for writing, or both")
            wanted = options.over(sdk_options.QueueOptions())
            self._engine.request(lambda token, now: core.open(uri, token, now, read=read, write=write,
                                                              queue_options=wanted, timeout_s=seconds))

    def close_queue(self, queue_uri: str, timeout: float | None = _DEFAULT) -> None:
        """Close a queue and wait for that, and for the callbacks of its acknowledgements."""
        uri = _text(queue_uri)
        seconds = _seconds(timeout, self._options.close_timeout_s)
        self._check_started()
        core = self._engine.core
        with translated(f"close {uri} queue"):
            self._engine.request(lambda token, now: core.close(self._queue(uri), token, now, seconds))
        self._engine.wait_for_callbacks()

    def configure_queue(self, queue_uri: str, options: QueueOptions, timeout: float | None = _DEFAULT) -> None:
        """Change what is given of a queue's options and wait for that."""
        uri = _text(queue_uri)
        self._check_health_option(options)
        seconds = _seconds(timeout, self._options.configure_timeout_s)
        self._check_started()

        def configure(token: object, now: float) -> None:
            queue = self._queue(uri)
            self._engine.core.configure(queue, options.over(queue.options), token, now, seconds)
        with translated(f"configure {uri} queue"):
            self._engine.request(configure)

    def get_queue_options(self, queue_uri: str) -> QueueOptions:
        """The options of an open queue."""
        self._check_started()
        with self._engine.lock:
            queue = self._queue(_text(queue_uri))
            options = queue.options if queue.readable else sdk_options.QueueOptions(
                suspends_on_bad_host_health=queue.options.suspends_on_bad_host_health)
        return QueueOptions(options.max_unconfirmed_messages, options.max_unconfirmed_bytes,
                            options.consumer_priority, options.suspends_on_bad_host_health)

    # -- messages ---------------------------------------------------------------------------------------------------

    def post(self, queue_uri: str, message: bytes, properties: Mapping[str, object] | None = None,
             property_type_overrides: Mapping[str, PropertyType] | None = None,
             on_ack: Callable[[Ack], None] | None = None) -> None:
        """Post; `on_ack` is called with the acknowledgement, without it none is asked for.

        Waits for room if there is none, up to five seconds.
        """
        uri = _text(queue_uri)
        if not isinstance(message, bytes):
            raise TypeError(f"Argument 'message' has incorrect type (expected bytes, got {type(message).__name__})")
        values, types = to_wire(properties, property_type_overrides) if properties or property_type_overrides else (
            None, None)
        engine = self._engine
        with translated_post(uri), engine.lock:
            queue = self._queue(uri)
            if not queue.writable:
                raise Error("Failed to construct message: QUEUE_READONLY")
            engine.post(queue, message, values, types, Post(on_ack is not None, on_ack), self._options.post_wait_s,
                        self._check_started)

    def confirm(self, message: Message) -> None:
        """Done with a message."""
        self._engine.confirm(message)

    # -- the session ------------------------------------------------------------------------------------------------

    def counters(self) -> Counters:
        """What this session has done so far, and how things stand (the official library has no such call)."""
        with self._engine.lock:
            return self._engine.core.counters()

    def stop(self) -> None:
        """Wait for acknowledgements a little, disconnect; no callback is running after this, but the one it is called
        from."""
        self._engine.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _check_started(self) -> None:
        if not self._engine.started:
            raise Error(STOPPED)

    def _queue(self, uri: str) -> Queue:
        self._check_started()  # again: it may have been stopped before we had the lock
        queue = self._engine.core.queues.get(uri)
        if queue is None:
            raise Error(NOT_OPENED)
        return queue

    def _check_health_option(self, options: QueueOptions) -> None:
        if options.suspends_on_bad_host_health and not self._monitored:
            raise Error("Queues cannot use suspends_on_bad_host_health if host health monitoring was disabled when the "
                        "Session was created")
