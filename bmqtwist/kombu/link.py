"""Link to the broker: a session core with an I/O thread, blocking calls, settings and errors.

The thread answers heartbeats independently of the program, and reconnects. Deliveries go to the inboxes of readers.
`notifications` counts deliveries and other events for callers; `fileno` is readable until an event loop has processed them
(`reset_fileno`).

A link without readers survives a connection loss: the core reconnects and retransmits unacknowledged posts, and the broker
drops duplicates. A link with readers ends with its connection (`LinkLost`), since the broker then delivers unconfirmed
messages to other consumers; kombu and Celery connect again, and discard the inboxes. Used by `transport.py`, which maps
exchanges, queues and messages of kombu; the thread is `sdk/_adapters/threaded.py`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from kombu.exceptions import OperationalError

from bmqtwist.errors import LocalError
from bmqtwist.ids import parse_uri
from bmqtwist.sdk._adapters import forks
from bmqtwist.sdk._adapters.threaded import Completion, ThreadedCore
from bmqtwist.sdk._core.outbox import Completed
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import DEFAULT_PORT, Address, Credential, QueueOptions, SessionOptions
from bmqtwist.sdk.results import Ack, EventKind, Result, SdkError, SessionEvent


class LinkLost(ConnectionError):
    """The connection is lost or does not answer: kombu and Celery reconnect."""


class Refused(OperationalError):
    """The broker refused a request: no such domain, wrong password, queue full. An immediate retry fails again."""


_RETRYABLE = frozenset((Result.TIMEOUT, Result.NOT_CONNECTED, Result.CANCELED, Result.NOT_READY,
                        Result.ALREADY_IN_PROGRESS))


def error_of_result(operation: str, result: Result, message: str = "") -> LinkLost | Refused:
    """Return the error for a result other than SUCCESS: LinkLost if a new connection may help."""
    text = f"{operation}: {result.value} {message}".rstrip()
    return LinkLost(text) if result in _RETRYABLE else Refused(text)


def error_of_request(operation: str, error: SdkError) -> LinkLost | Refused:
    return error_of_result(operation, error.result, error.message)


DOMAIN = "bmq.test.persistent.priority"
BROADCAST_DOMAIN = "bmq.test.mem.broadcast"
CONNECT_TIMEOUT_S = 5.0
_BACKOFF_MAX_S = 2.0  # short, since publishers wait for their posts
_UNACKED_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Settings of a transport, from its URL and its transport_options. `_s`: seconds."""

    session: SessionOptions
    tls: ssl.SSLContext | None = None
    domain: str = DOMAIN
    broadcast_domain: str | None = BROADCAST_DOMAIN  # None: no fanout, no events, no remote control
    queue_name_prefix: str = ""
    max_unconfirmed: int = 1000  # unconfirmed messages per queue without a prefetch count
    max_unconfirmed_bytes: int = 256 << 20
    confirm_publish: bool = True  # a publish waits for the acknowledgement
    post_timeout_s: float = 10.0
    request_timeout_s: float = 10.0
    get_wait_s: float = 0.2  # maximum wait of a get without a consumer

    def __post_init__(self) -> None:
        for domain in (self.domain, self.broadcast_domain):
            if domain:
                parse_uri(f"bmq://{domain}/q")
        for name in ("max_unconfirmed", "max_unconfirmed_bytes", "post_timeout_s", "request_timeout_s", "get_wait_s"):
            if not getattr(self, name) > 0:
                raise LocalError(f"transport_options: {name} must be greater than 0")


def transport_settings(client: Any, secure: bool = False) -> TransportSettings:
    """Return the settings of a kombu.Connection. LocalError for invalid values.

    The member `session` of `transport_options` replaces members of SessionOptions; members of kombu itself are ignored.
    """
    given: Mapping[str, Any] = client.transport_options or {}
    tls = tls_context(client.ssl)
    timeout = float(client.connect_timeout or CONNECT_TIMEOUT_S)
    credential = Credential.basic(client.userid, client.password or "") if client.userid else None
    address = Address(client.hostname or "localhost", int(client.port or DEFAULT_PORT), secure or tls is not None)
    session: dict[str, Any] = {
        "brokers": (address,), "connect_timeout_s": timeout, "connect_rounds_max": 1, "attempt_timeout_s": timeout,
        "credential": credential, "backoff_max_s": _BACKOFF_MAX_S, "unacked_bytes_max": _UNACKED_BYTES_MAX,
        "compression": bool(given.get("compression", False))}
    session.update(given.get("session", {}))
    options = {each.name: given[each.name] for each in fields(TransportSettings)[2:] if each.name in given}
    host = (client.virtual_host or "").strip("/")
    if host:
        options["domain"] = host
    return TransportSettings(SessionOptions(**session), tls, **options)


def tls_context(given: Any) -> ssl.SSLContext | None:
    """Return the TLS context for kombu's `ssl` or Celery's `broker_use_ssl`: a context, True, or a mapping with `ca_certs`,
    `certfile`, `keyfile`, `cert_reqs`, `check_hostname`."""
    if not given or isinstance(given, ssl.SSLContext):
        return given or None
    values: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    context = ssl.create_default_context(cafile=values.get("ca_certs"))
    if values.get("certfile"):
        context.load_cert_chain(values["certfile"], values.get("keyfile"))
    required = values.get("cert_reqs", ssl.CERT_REQUIRED)
    context.check_hostname = values.get("check_hostname", required != ssl.CERT_NONE)
    context.verify_mode = required
    return context


class Reader:
    """Consumer of a queue. `inbox`: delivered messages; `unconfirmed`: number of messages taken from it and not confirmed;
    `configuring`: a configure request is in progress."""

    __slots__ = ("configuring", "inbox", "options", "queue", "requested", "unconfirmed", "uri")

    def __init__(self, uri: str, options: QueueOptions, inbox_max: int | None) -> None:
        self.uri = uri
        self.options = self.requested = options  # in force at the broker, and requested
        self.configuring = False
        self.inbox: deque[Message] = deque(maxlen=inbox_max)
        self.unconfirmed = 0
        self.queue: Queue


class BrokerLink:
    """One connection to a broker; the constructor connects. Calls that fail raise LinkLost or Refused."""

    def __init__(self, settings: TransportSettings) -> None:
        self.settings = settings
        self.loss_reason = ""  # reason of the end of the connection
        self.loss_raised = False  # LinkLost was raised
        self.notifications = 0
        self._readers: dict[str, Reader] = {}
        self._queues: dict[str, Queue] = {}  # open queues, by URI
        self._queues_lock = threading.RLock()
        self._wakeup_writer, self._wakeup_reader = socket.socketpair()
        self._wakeup_writer.setblocking(False)
        self._wakeup_reader.setblocking(False)
        self._signalled = False
        itself = weakref.WeakMethod(self._on_effect)

        def on_effect(effect: object) -> None:
            target = itself()
            if target is not None:
                target(effect)

        self._threaded = ThreadedCore(settings.session, on_effect, settings.tls, name="bmqtwist-kombu")
        self._core, self._changed = self._threaded.core, self._threaded.changed
        weakref.finalize(self, self._threaded.end_thread).atexit = False
        forks.register(self)
        self._threaded.start()
        address = settings.session.brokers[0]
        try:
            self._request(f"no connection to {address}", self._core.start, settings.session.connect_timeout_s + 1.0)
        except BaseException:
            self.abandon()
            raise

    # -- waiting ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise LinkLost if the connection has ended."""
        if self.loss_reason:
            self.loss_raised = True
            raise LinkLost(self.loss_reason)

    def wait(self, done: Callable[[], object], timeout_s: float | None) -> bool:
        """Wait for a condition, evaluated under the lock; return its value. LinkLost if the connection ends first."""
        self._check_process()
        if self._threaded.wait(lambda: done() or self.loss_reason, timeout_s) and done():
            return True
        self.check()
        return False

    def wait_for_notification(self, seen: int, timeout_s: float | None) -> bool:
        return self.wait(lambda: self.notifications != seen, timeout_s)

    def _check_process(self) -> None:
        """Raise LinkLost in a child process, which cannot use the locks of its parent."""
        if self.is_forked:
            self.check()

    def _request(self, operation: str, make: Callable[[object, float], object], timeout_s: float) -> None:
        """Start a request of the core and wait for its result. Without an answer the link ends, since the state at the
        broker is unknown."""
        self.check()
        try:
            answered = self._threaded.request(make, timeout_s)
        except SdkError as error:
            raise error_of_request(operation, error) from error
        if not answered:
            self._end_connection(f"{operation}: no answer in {timeout_s:g} s")
            self.check()

    # -- posting ----------------------------------------------------------------------------------------------------

    def post(self, uris: Iterable[str], payload: bytes, properties: Mapping[str, object], *, confirm: bool,
             timeout_s: float) -> None:
        """Post to several queues; with `confirm`, wait for all acknowledgements."""
        self.check()
        end = time.monotonic() + timeout_s
        completions = []
        for uri in uris:
            queue = self._find_or_open(uri)
            completions.append(Completion())
            post = Post(token=completions[-1] if confirm else None)
            if not self._post(queue, payload, properties, post, max(end - time.monotonic(), 0.0)):
                raise LinkLost(f"post to {uri}: no room in {timeout_s:g} s")
        if not confirm:
            return
        if not self.wait(lambda: all(each.outcome is not None for each in completions), max(end - time.monotonic(), 0.0)):
            self._end_connection(f"post: no acknowledgement in {timeout_s:g} s")
            self.check()
        for completion in completions:
            ack = completion.outcome
            assert isinstance(ack, Ack)
            if ack.status is Result.UNKNOWN:  # the message may be stored
                raise LinkLost(f"post to {ack.uri}: no acknowledgement")
            if not ack.ok:
                raise error_of_result(f"post to {ack.uri}", ack.status)

    def broadcast(self, uri: str, payload: bytes, properties: Mapping[str, object]) -> None:
        """Post to a broadcast queue without acknowledgement; drop the message if there is no room."""
        self.check()
        self._post(self._find_or_open(uri), payload, properties, Post(ack=False), 0.0)

    def _post(self, queue: Queue, payload: bytes, properties: Mapping[str, object], post: Post, wait_s: float) -> bool:
        """Post; False if there is no room in time."""
        with self._changed:
            try:
                self._threaded.post(queue, payload, properties, None, post, wait_s, self.check)
            except SdkError as error:
                if error.result is Result.BW_LIMIT:
                    return False
                raise error_of_request(f"post to {queue.uri}", error) from error
            self._threaded.transport.perform()
        return True

    # -- queues -----------------------------------------------------------------------------------------------------

    def _open(self, uri: str, options: QueueOptions | None, owner: object = None) -> Queue:
        opened: list[Queue] = []

        def make(token: object, now: float) -> None:
            opened.append(self._core.open(uri, token, now, read=options is not None, write=True, queue_options=options))
            opened[0].owner = owner
        self._request(f"open {uri}", make, self.settings.request_timeout_s)
        self._queues[uri] = opened[0]
        return opened[0]

    def _find_or_open(self, uri: str) -> Queue:
        queue = self._queues.get(uri)
        if queue is None or not queue.is_open:
            with self._queues_lock:
                queue = self._queues.get(uri)
                if queue is None or not queue.is_open:
                    queue = self._open(uri, None)
        return queue

    def _close(self, uri: str) -> None:
        queue = self._queues.pop(uri, None)
        if queue is not None and queue.is_open:
            self._request(f"close {uri}", lambda token, now: self._core.close(queue, token, now),
                          self.settings.request_timeout_s)

    def open_reader(self, uri: str, options: QueueOptions, inbox_max: int | None = None) -> Reader:
        """Open a queue for reading. With `inbox_max`, new messages replace the oldest ones in a full inbox."""
        self._check_process()
        with self._queues_lock:
            self._close(uri)  # it may be open for writing only
            reader = Reader(uri, options, inbox_max)
            self._readers[uri] = reader
            try:
                reader.queue = self._open(uri, options, reader)
            except BaseException:
                self._readers.pop(uri, None)
                raise
        return reader

    def close_reader(self, reader: Reader) -> None:
        """Close a reader: its unconfirmed messages go to other consumers."""
        self._check_process()
        with self._queues_lock:
            self._readers.pop(reader.uri, None)
            self._close(reader.uri)

    def configure(self, reader: Reader, options: QueueOptions, wait: bool = False) -> None:
        """Change the options of a reader. While a configure request is in progress, only the latest further change is
        stored. `wait`: wait until the change is in force."""
        self._check_process()
        with self._changed:
            reader.requested = options
            self._send_configuration(reader)
            self._threaded.transport.perform()
            timeout_s = self.settings.request_timeout_s
            if wait and not self.wait(lambda: not reader.configuring, timeout_s):
                self._end_connection(f"configure {reader.uri}: no answer in {timeout_s:g} s")
                self.check()

    def _send_configuration(self, reader: Reader) -> None:
        if reader.configuring or reader.requested == reader.options or self.loss_reason or not reader.queue.is_open:
            return
        reader.configuring, reader.options = True, reader.requested
        try:
            self._core.configure(reader.queue, reader.options, reader, self._threaded.clock())
        except SdkError as error:
            self._end_connection(str(error_of_request(f"configure {reader.uri}", error)))

    def pop_message(self, reader: Reader) -> Message:
        """Take the next message of an inbox, or raise IndexError."""
        self._check_process()
        with self._changed:
            message = reader.inbox.popleft()
            reader.unconfirmed += 1
            return message

    def confirm(self, message: Message) -> None:
        self._check_process()
        with self._changed:
            self.check()
            try:
                self._core.confirm(message)
            except SdkError as error:
                raise error_of_request(f"confirm in {message.uri}", error) from error
            message.queue.owner.unconfirmed -= 1
            self._threaded.transport.perform()

    # -- notification -----------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._wakeup_reader.fileno()

    def notify(self) -> None:
        """Notify waiting callers and the event loop."""
        if self.is_forked:
            return
        with self._changed:
            self.notifications += 1
            if not self._signalled:
                self._signalled = True
                with contextlib.suppress(OSError):
                    self._wakeup_writer.send(b"\0")
            self._changed.notify_all()

    def reset_fileno(self, seen: int) -> None:
        """Make `fileno` unreadable until the next notification. Has no effect if there was one after number `seen`."""
        self._check_process()
        with self._changed:
            if self._signalled and self.notifications == seen and not self.loss_reason:
                self._signalled = False
                with contextlib.suppress(OSError):
                    self._wakeup_reader.recv(64)

    def _on_effect(self, effect: object) -> None:
        if isinstance(effect, Message):
            self._core.on_consumed(1)
            effect.queue.owner.inbox.append(effect)
            self.notify()
        elif isinstance(effect, Completed) and isinstance(effect.token, Reader):
            self._on_configured(effect.token, effect)
        elif isinstance(effect, SessionEvent):
            self._on_session_event(effect)

    def _on_configured(self, reader: Reader, outcome: Completed) -> None:
        reader.configuring = False
        self._changed.notify_all()
        if outcome.result is Result.SUCCESS or not reader.queue.is_open:
            self._send_configuration(reader)
        else:
            self._end_connection(str(error_of_result(f"configure {reader.uri}", outcome.result, outcome.message)))

    def _on_session_event(self, event: SessionEvent) -> None:
        if event.kind is EventKind.CONNECTION_LOST and self._readers:
            self._end_connection(f"the connection to {self._core.options.brokers[0]} was lost: {event.message}")
        elif event.kind is EventKind.DISCONNECTED:
            self._end_connection(event.message or "the connection is closed")

    def _end_connection(self, reason: str) -> None:
        if not self.loss_reason:
            self.loss_reason = reason
            self._threaded.end_thread()
            self.notify()

    # -- the end ----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        if not self.loss_reason:
            with contextlib.suppress(LinkLost):
                self._request("disconnect", self._core.stop, self.settings.request_timeout_s)
        self.abandon()
        self._threaded.join(self.settings.request_timeout_s)

    def abandon(self) -> None:
        """Close without a disconnect request."""
        if self.is_forked:
            return
        self._end_connection("the connection is closed")
        with self._changed:
            self._wakeup_writer.close()
            self._wakeup_reader.close()

    @property
    def is_forked(self) -> bool:
        """True if the connection belongs to the parent process."""
        return self.loss_reason == forks.FORKED

    def on_forked(self, core: Any) -> None:
        """Called in a child process: end this copy of the connection."""
        self.loss_reason = forks.FORKED
        self._wakeup_writer.close()
        self._wakeup_reader.close()
