# mypy: disable-error-code="no-untyped-call"
"""kombu's Transport (one broker link per connection) and Channel (operations on queues and messages).

Exchanges and bindings work as in kombu's virtual transports: each process has a table of the exchanges and bindings that it
declared. Messages between processes that have not declared each other's queues (fanout, events, remote control and its
replies) go through a broadcast queue with the exchange's name; each receiving process selects messages by its own bindings.

A *mailbox* is the list of messages of a private queue in this process. Shared queues have a reader instead. kombu
creates `Transport` for bmq:// URLs, which `kombu/__init__.py` registers; connections, posts and errors are in
`link.py`. Default domains and timeouts are in `link.py`, the length of queue names is limited in `bmqtwist/limits.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from hashlib import sha256
from queue import Empty
from typing import Any

from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from bmqtwist import __version__
from bmqtwist.errors import BmqError
from bmqtwist.kombu.link import BrokerLink, LinkLost, Reader, Refused, TransportSettings, transport_settings
from bmqtwist.limits import QUEUE_NAME_CHARS_MAX
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import DEFAULT_PORT, QueueOptions, Subscription

_FORBIDDEN = re.compile(r"[^-a-zA-Z0-9_.]")
_DIGEST_CHARS = 12


def queue_name(name: str) -> str:
    """Return `name` if it is a valid queue name. If it is invalid, replace invalid characters by `_`, truncate the name, and
    append a digest, so that names stay distinct."""
    clean = _FORBIDDEN.sub("_", name)
    if clean == name and 0 < len(name) <= QUEUE_NAME_CHARS_MAX:
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{clean[:QUEUE_NAME_CHARS_MAX - _DIGEST_CHARS - 1]}-{digest}"


def queue_uri(domain: str, name: str, prefix: str = "") -> str:
    return f"bmq://{domain}/{queue_name(prefix + name)}"


def is_private(kind: str, exchange_durable: bool, queue_durable: bool, queue_transient: bool) -> bool:
    """Return whether a binding makes a queue private to its connection: it then receives from the exchange's broadcast
    queue.

    `kind`: direct, topic or fanout; `queue_transient`: exclusive or auto-deleted. A transient queue of a fanout
    exchange is private, and so is a transient, non-durable queue of a topic exchange or of a non-durable direct exchange.
    Therefore the queues of event receivers, of remote control and of replies are private, and task queues are shared.
    """
    if not queue_transient:
        return False
    return kind == "fanout" or not queue_durable and (kind == "topic" or not exchange_durable)


MAILBOX_MESSAGES_MAX = 10_000  # per private queue or exchange; the oldest are dropped
_MESSAGES_PER_CALL = 100  # messages per call from the event loop
_ORIGIN_PROPERTY = "kombu"  # property of messages posted by this transport
_NO_DELIVERIES = QueueOptions(subscriptions=(Subscription("", 0, 0, -(1 << 30) + 1),))
_PURGE_IDLE_S = 0.5  # a purge ends after this time without a delivery
_EARLIER_MESSAGES_MAX = 10_000
_EXCHANGE_TYPES = frozenset(("direct", "topic"))
Raw = dict[str, Any]  # a message in kombu's form
_tags = itertools.count(1)
# GUIDs of messages that were unacknowledged when their channel closed -> acknowledged afterwards
_earlier_messages: OrderedDict[bytes, bool] = OrderedDict()


class QoS(virtual.QoS):
    """Confirms acknowledged messages; the prefetch count is also the limit of unconfirmed messages at the broker."""

    restore_at_shutdown = False  # the broker redelivers unconfirmed messages

    def ack(self, delivery_tag: str) -> None:
        self.channel.confirm_delivery(delivery_tag)
        super().ack(delivery_tag)
        self.channel.notify_if_pending()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Confirm a message; with `requeue`, post it again first."""
        if requeue:
            self.channel.requeue(delivery_tag)
        self.ack(delivery_tag)


class Channel(virtual.Channel):
    """kombu channel over the link of its transport. Unacknowledged messages return to their queues when it is closed."""

    QoS = QoS
    do_restore = False
    connection: Transport

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.supports_fanout = bool(connection.settings.broadcast_domain)
        self._unacknowledged: dict[str, Message] = {}  # messages neither acknowledged nor rejected, by delivery tag

    # -- publishing -------------------------------------------------------------------------------------------------

    def basic_publish(self, message: Raw, exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Post to the queues bound to the exchange in this process, and to its broadcast queue."""
        self._inplace_augment_message(message, exchange, routing_key)
        queues, broadcasts = [routing_key], False
        if exchange:
            queues, broadcasts = self._route(exchange, routing_key)
        self._post(queues, message, kwargs.get("timeout"))
        if broadcasts:
            transport = self.connection
            transport.link.broadcast(transport.exchange_uri(exchange), *_encode_message(message))

    def _route(self, exchange: str, routing_key: str) -> tuple[list[str], bool]:
        """Return the bound shared queues, and whether the message is broadcast, too. Refused if no queue can receive it.

        Messages for an exchange that this connection has not declared are broadcast, as Celery's Broadcast queues require.
        """
        entry = self.state.exchanges.get(exchange, {"durable": False, "table": []})
        kind = self.typeof(exchange)
        mailboxes = self.connection.mailboxes
        queues = sorted(name for name in kind.lookup(entry["table"], exchange, routing_key, None) if name not in mailboxes)
        broadcasts = self.supports_fanout and (kind.type != "direct" or not entry["durable"])
        if not queues and not broadcasts and kind.type == "direct":
            raise Refused(f"no queue known to this connection is bound to exchange {exchange!r} with routing key "
                          f"{routing_key!r}: declare the queue before publishing (declare=[queue])")
        return queues, broadcasts

    def _post(self, queues: list[str], message: Raw, timeout_s: float | None = None) -> None:
        transport, settings = self.connection, self.connection.settings
        if queues:
            transport.link.post([transport.queue_uri(name) for name in queues], *_encode_message(message),
                                confirm=settings.confirm_publish, timeout_s=timeout_s or settings.post_timeout_s)

    def _put(self, queue: str, message: Raw, **kwargs: Any) -> None:
        self._post([queue], message)

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Encode bytes as base64; leave text unchanged."""
        return super().encode_body(body, "base64" if isinstance(body, bytes) else None)  # type: ignore[no-any-return]

    # -- declaring --------------------------------------------------------------------------------------------------

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        declared = super().queue_declare(queue=queue, passive=passive, **kwargs)
        if not passive:
            self.connection.declared[declared.queue] = (
                bool(kwargs.get("durable")), bool(kwargs.get("exclusive") or kwargs.get("auto_delete")))
        return declared

    def queue_bind(self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None,
                   **kwargs: Any) -> None:
        """Bind a queue; a private queue then receives from the exchange's broadcast queue."""
        super().queue_bind(queue, exchange, routing_key, arguments, **kwargs)
        exchange = exchange or "amq.direct"
        if self.supports_fanout:
            self.connection.add_mailbox(queue, exchange, self.typeof(exchange).type)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        """Have no effect: the base class has added the binding to its table."""

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Remove a queue and its bindings in this process. Without `if_unused` and `if_empty`, also purge a shared queue. A
        shared queue stays at the broker, which removes unused queues."""
        private = queue in self.connection.mailboxes
        if not private and not if_unused and not if_empty:
            self._purge(queue)
        for exchange in self.state.exchanges.values():
            exchange["table"][:] = [row for row in exchange["table"] if row[2] != queue]
        self.state.queue_bindings_delete(queue)
        self.connection.declared.pop(queue, None)
        if private:
            self.connection.remove_mailbox(queue)

    def after_reply_message_received(self, queue: str) -> None:
        if queue in self.connection.mailboxes:
            self.queue_delete(queue)

    def _size(self, queue: str) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the number of messages received and not delivered: a broker does not report the length of a queue to
        clients."""
        transport = self.connection
        if queue in transport.mailboxes:
            self._distribute_broadcasts()
            return len(transport.mailboxes[queue])
        reader = transport.readers.get(queue)
        return len(reader.inbox) if reader else 0

    def _purge(self, queue: str) -> int:
        """Confirm deliveries until there is none for _PURGE_IDLE_S seconds; return their number."""
        transport, count = self.connection, self._size(queue)
        if queue in transport.mailboxes:
            transport.mailboxes[queue].clear()
            return count
        link, count = transport.link, 0
        reader = transport.open_reader(queue, self._options(queue, True))
        while link.wait(lambda: reader.inbox, _PURGE_IDLE_S):
            while reader.inbox:
                link.confirm(link.pop_message(reader))
                count += 1
        self._stop_deliveries(queue)
        return count

    # -- consuming --------------------------------------------------------------------------------------------------

    def _options(self, queue: str, no_ack: bool = False) -> QueueOptions:
        settings = self.connection.settings
        window = settings.max_unconfirmed if no_ack else self.qos.prefetch_count or settings.max_unconfirmed
        arguments = self.connection.consumers.get(queue, (no_ack, {}))[1]
        return QueueOptions(subscriptions=(Subscription(
            str(arguments.get("x-expression", "")), window, settings.max_unconfirmed_bytes,
            int(arguments.get("x-priority", 0))),))

    def basic_consume(self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str,
                      **kwargs: Any) -> None:
        if queue not in self.connection.mailboxes:
            self.connection.consumers[queue] = bool(no_ack), kwargs.get("arguments") or {}
            self.connection.open_reader(queue, self._options(queue, bool(no_ack)))
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self.notify_if_pending()

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or queue in self._active_queues:
            return
        self.connection.consumers.pop(queue, None)
        if queue in self.connection.mailboxes:
            self.queue_delete(queue)
        else:
            self._stop_deliveries(queue)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set the limit of unconfirmed messages, also during consumption; 0 = `max_unconfirmed`."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        transport = self.connection
        for queue in self._active_queues:
            if not transport.consumers.get(queue, (True,))[0]:
                transport.link.configure(transport.readers[queue], self._options(queue))
        self.notify_if_pending()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        transport = self.connection
        if queue in transport.mailboxes or queue in transport.consumers:
            return self._get_message(queue, no_ack)
        held = transport.readers[queue].unconfirmed if queue in transport.readers else 0
        options = QueueOptions(held + 1, transport.settings.max_unconfirmed_bytes)
        reader = transport.open_reader(queue, options)
        try:
            transport.link.wait(lambda: reader.inbox, transport.settings.get_wait_s)
            return self._get_message(queue, no_ack)
        finally:
            self._stop_deliveries(queue)

    def _get_message(self, queue: str, no_ack: bool) -> Any:
        message = super().basic_get(queue, no_ack)
        if message is not None and no_ack:
            self.confirm_delivery(str(message.delivery_tag))
        return message

    def _stop_deliveries(self, queue: str) -> None:
        """If a queue has no consumer, close it or, while it has unconfirmed messages, stop its deliveries."""
        transport = self.connection
        reader = transport.readers.get(queue)
        if reader is None or queue in transport.consumers:
            return
        if reader.unconfirmed:
            transport.link.configure(reader, _NO_DELIVERIES, wait=True)
        else:
            transport.close_reader(queue)

    def _get(self, queue: str, timeout: float | None = None) -> Raw:
        transport = self.connection
        mailbox = transport.mailboxes.get(queue)
        if mailbox is not None:
            self._distribute_broadcasts()
            if not mailbox:
                raise Empty
            return _with_delivery_tag(mailbox.popleft())
        reader = transport.readers.get(queue)
        while reader is not None and reader.inbox:
            message = transport.link.pop_message(reader)
            acknowledged = _earlier_messages.pop(message.guid, None)
            if acknowledged:
                transport.link.confirm(message)
                continue
            raw = _with_delivery_tag(_decode_message(message, queue, acknowledged is not None))
            if transport.consumers.get(queue, (False,))[0]:
                transport.link.confirm(message)
            else:
                self._unacknowledged[raw["properties"]["delivery_tag"]] = message
            return raw
        raise Empty

    def _distribute_broadcasts(self) -> None:
        """Distribute broadcast messages to the private queues whose bindings match."""
        transport = self.connection
        for exchange, (reader, _) in transport.broadcast_readers.items():
            while reader.inbox:
                raw = _decode_message(transport.link.pop_message(reader), "")
                reader.unconfirmed -= 1  # broadcast messages are not confirmed
                key = raw["properties"]["delivery_info"].get("routing_key") or ""
                for name in self.typeof(exchange).lookup(self.get_table(exchange), exchange, key, None):
                    if name in transport.mailboxes:
                        transport.mailboxes[name].append(raw)

    def notify_if_pending(self) -> None:
        """Notify the event loop if messages are waiting; called after a change of the limit or of consumers."""
        if any(self._size(queue) for queue in self._active_queues):
            self.connection.link.notify()

    # -- confirmation -----------------------------------------------------------------------------------------------

    def confirm_delivery(self, delivery_tag: str) -> None:
        """Confirm the message of a tag. If there is no connection, store the acknowledgement, which confirms the message
        when it is redelivered to this process, and raise LinkLost."""
        message = self._unacknowledged.get(delivery_tag)
        if self.closed:
            if message is not None:
                _record_earlier_message(message, True)
            raise LinkLost("the channel is closed: the broker redelivers the message")
        if message is not None:
            try:
                self.connection.link.confirm(message)
            except LinkLost:
                _record_earlier_message(message, True)
                raise
            finally:
                del self._unacknowledged[delivery_tag]
            reader: Reader = message.queue.owner
            if not reader.unconfirmed:
                self._stop_deliveries(self.connection.queue_names[reader.uri])

    def requeue(self, delivery_tag: str) -> None:
        """Post the message of a tag again, to the end of its queue and marked as redelivered."""
        message = self._unacknowledged.get(delivery_tag)
        if message is not None and not self.closed:
            transport = self.connection
            transport.link.post([message.uri], message.payload, {**message.properties, "redelivered": True},
                                confirm=True, timeout_s=transport.settings.post_timeout_s)

    def _restore(self, message: Any) -> None:
        self.requeue(message.delivery_tag)
        self.confirm_delivery(message.delivery_tag)

    def close(self) -> None:
        """Cancel all consumers; the broker delivers unconfirmed messages to other consumers."""
        if self.closed:
            return
        readers: list[Reader] = [message.queue.owner for message in self._unacknowledged.values()]
        for message in self._unacknowledged.values():
            message.queue.owner.unconfirmed -= 1
            _record_earlier_message(message, False)
        for tag in list(self._consumers):
            with contextlib.suppress(LinkLost, Refused):
                self.basic_cancel(tag)
        for reader in readers:
            with contextlib.suppress(LinkLost, Refused):
                self._stop_deliveries(self.connection.queue_names[reader.uri])
        super().close()


def _encode_message(message: Raw) -> tuple[bytes, dict[str, object]]:
    """Return the message as JSON, and its properties, which subscriptions can select."""
    properties: dict[str, object] = {_ORIGIN_PROPERTY: True}
    task = message["headers"].get("task")
    key = message["properties"]["delivery_info"].get("routing_key")
    for name, value in (("task", task), ("routing_key", key)):
        if value and isinstance(value, str):
            properties[name] = value
    return dumps(message).encode(), properties


def _record_earlier_message(message: Message, acknowledged: bool) -> None:
    _earlier_messages[message.guid] = acknowledged
    while len(_earlier_messages) > _EARLIER_MESSAGES_MAX:
        _earlier_messages.popitem(last=False)


def _decode_message(message: Message, queue: str, known: bool = False) -> Raw:
    """Convert a message to kombu's form. If another program posted it, its payload becomes the body, and its properties
    become the headers. `known`: this process received it before, although the broker may not mark it as redelivered."""
    headers: dict[str, Any] = {}
    payload = b""
    with contextlib.suppress(BmqError):
        headers = message.properties
        payload = message.payload
    redelivered = headers.pop("redelivered", False) is True or message.redelivered or known
    if headers.get(_ORIGIN_PROPERTY) is True:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            raw: Raw = loads(payload)
            raw["properties"]["delivery_info"]["redelivered"] = redelivered
            return raw
    info = {"exchange": "", "routing_key": queue, "redelivered": redelivered}
    return {"body": virtual.Base64().encode(payload), "content-type": "application/data", "content-encoding": "binary",
            "headers": headers, "properties": {"body_encoding": "base64", "delivery_info": info}}


def _with_delivery_tag(raw: Raw) -> Raw:
    return {**raw, "properties": {**raw["properties"], "delivery_tag": str(next(_tags))}}


class Transport(virtual.Transport):
    """Transport for bmq://[user:password@]host[:port][/domain]. Its channels share a link, readers and mailboxes."""

    Channel = Channel
    default_port: Any = DEFAULT_PORT
    driver_type = driver_name = "bmq"
    secure = False
    connection_errors: Any = (*virtual.Transport.connection_errors, LinkLost)
    channel_errors: Any = (*virtual.Transport.channel_errors, Refused)
    recoverable_connection_errors = (LinkLost,)
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(asynchronous=True, exchange_type=_EXCHANGE_TYPES | {"fanout"})

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.settings: TransportSettings = transport_settings(client, self.secure)
        if not self.settings.broadcast_domain:
            self.implements = self.implements.extend(exchange_type=_EXCHANGE_TYPES)
        self.readers: dict[str, Reader] = {}  # readers of shared queues, by name
        self.queue_names: dict[str, str] = {}  # names of these queues, by URI
        self.consumers: dict[str, tuple[bool, Mapping[str, Any]]] = {}  # queues with a consumer -> (no_ack, arguments)
        self.declared: dict[str, tuple[bool, bool]] = {}  # queue -> (durable, exclusive or auto-deleted)
        self.mailboxes: dict[str, deque[Raw]] = {}  # messages of private queues
        self.broadcast_readers: dict[str, tuple[Reader, set[str]]] = {}  # exchange -> (reader, bound private queues)
        self._link: BrokerLink | None = None
        self._loop: Any = None

    def driver_version(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return __version__

    # -- the connection ---------------------------------------------------------------------------------------------

    def establish_connection(self) -> Any:
        """Connect. Raise LinkLost if no connection is made in time, Refused if the broker refuses the session."""
        self._collect(self)
        self._link = BrokerLink(self.settings)
        return super().establish_connection()

    @property
    def link(self) -> BrokerLink:
        if self._link is None:
            raise LinkLost("not connected")
        return self._link

    def verify_connection(self, connection: Any) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return True until LinkLost was raised. If it returned False as soon as the connection is lost, kombu would replace
        the connection silently, and the consumers of the lost connection would wait forever."""
        return self._link is not None and not self._link.loss_raised

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        self._remove_from_loop()
        if self._link is not None:
            self._link.stop()

    def _collect(self, connection: Any) -> None:
        """Release all resources without a disconnect request, after an error or in a child process."""
        link = self._link
        if link is not None:
            self._remove_from_loop()
            link.abandon()
            super().close_connection(connection)
            for each in (self.readers, self.queue_names, self.consumers, self.declared, self.mailboxes,
                         self.broadcast_readers, self.state):
                each.clear()

    # -- queues -----------------------------------------------------------------------------------------------------

    def queue_uri(self, name: str) -> str:
        return queue_uri(self.settings.domain, name, self.settings.queue_name_prefix)

    def exchange_uri(self, name: str) -> str:
        return queue_uri(self.settings.broadcast_domain or "", name, self.settings.queue_name_prefix)

    def open_reader(self, name: str, options: QueueOptions) -> Reader:
        reader = self.readers.get(name)
        if reader is None:
            uri = self.queue_uri(name)
            reader = self.readers[name] = self.link.open_reader(uri, options)
            self.queue_names[uri] = name
        else:
            self.link.configure(reader, options)
        return reader

    def close_reader(self, name: str) -> None:
        reader = self.readers.pop(name, None)
        if reader is not None:
            self.link.close_reader(reader)

    def add_mailbox(self, queue: str, exchange: str, kind: str) -> None:
        """Add a mailbox if the bound queue is private, and open the broadcast queue of its exchange."""
        durable, transient = self.declared.get(queue, (True, False))
        exchanges: Any = self.state.exchanges
        if not is_private(kind, exchanges[exchange]["durable"], durable, transient):
            return
        self.mailboxes.setdefault(queue, deque(maxlen=MAILBOX_MESSAGES_MAX))
        if exchange not in self.broadcast_readers:
            reader = self.link.open_reader(self.exchange_uri(exchange), QueueOptions(), MAILBOX_MESSAGES_MAX)
            self.broadcast_readers[exchange] = reader, set()
        self.broadcast_readers[exchange][1].add(queue)

    def remove_mailbox(self, queue: str) -> None:
        self.mailboxes.pop(queue, None)
        for exchange, (reader, queues) in list(self.broadcast_readers.items()):
            queues.discard(queue)
            if not queues:
                del self.broadcast_readers[exchange]
                self.link.close_reader(reader)

    # -- deliveries -------------------------------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> None:
        link, cycle = self.link, self.cycle
        assert cycle is not None
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            link.check()
            seen = link.notifications
            with contextlib.suppress(virtual.Empty):
                cycle.get(self._deliver)
                return
            link.reset_fileno(seen)
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0 or not link.wait_for_notification(seen, left):
                raise TimeoutError("no message in time")

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self._loop = loop
        loop.add_reader(self.link.fileno(), self.on_readable, connection, loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        self._remove_from_loop()

    def _remove_from_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._link is not None and self._link.fileno() >= 0:
            with contextlib.suppress(KeyError, ValueError, OSError):
                loop.remove_reader(self._link.fileno())

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Deliver received messages; the descriptor stays readable if some remain."""
        with contextlib.suppress(TimeoutError):
            for _ in range(_MESSAGES_PER_CALL):
                self.drain_events(connection, timeout=0)


class SecureTransport(Transport):
    """Transport for bmqs://, with TLS."""

    secure = True
