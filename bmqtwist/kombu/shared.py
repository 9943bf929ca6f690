# mypy: disable-error-code="no-untyped-call"
"""What the channels of one kombu connection share: its link to the broker, the queues that are read, their mailboxes."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from kombu.transport import virtual

from bmqtwist import __version__
from bmqtwist.kombu import names
from bmqtwist.kombu.errors import LinkLost, Refused
from bmqtwist.kombu.link import Link, Reader
from bmqtwist.kombu.settings import Settings, settings_of
from bmqtwist.sdk.options import DEFAULT_PORT, QueueOptions

MAILBOX_MESSAGES_MAX = 10_000  # of a private queue, or broadcast by one exchange and not looked at; then the oldest go
_BURST = 100  # messages delivered before an event loop gets its turn
Raw = dict[str, Any]  # a message as kombu has it
_KINDS = frozenset(("direct", "topic"))


class SharedTransport(virtual.Transport):
    """The transport but for its channels (transport.py)."""

    default_port: Any = DEFAULT_PORT
    driver_type = driver_name = "bmq"
    secure = False
    connection_errors: Any = (*virtual.Transport.connection_errors, LinkLost)
    channel_errors: Any = (*virtual.Transport.channel_errors, Refused)
    recoverable_connection_errors = (LinkLost,)
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(asynchronous=True, exchange_type=_KINDS | {"fanout"})

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.settings: Settings = settings_of(client, self.secure)
        if not self.settings.broadcast_domain:
            self.implements = self.implements.extend(exchange_type=_KINDS)
        self.readers: dict[str, Reader] = {}  # shared queues that are read, by name
        self.names: dict[str, str] = {}  # their names, by URI
        self.consumed: dict[str, tuple[bool, Mapping[str, Any]]] = {}  # those with a consumer: (no_ack, its arguments)
        self.declared: dict[str, tuple[bool, bool]] = {}  # queue -> (durable, exclusive or auto-deleted)
        self.mailboxes: dict[str, deque[Raw]] = {}  # private queues
        self.heard: dict[str, tuple[Reader, set[str]]] = {}  # exchange -> (its broadcast queue, private queues bound to it)
        self._link: Link | None = None
        self._loop: Any = None

    def driver_version(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Ours."""
        return __version__

    # -- the connection ---------------------------------------------------------------------------------------------

    def establish_connection(self) -> Any:
        """Connect; LinkLost if that does not work in time, Refused if the broker does not want us."""
        self._collect(self)
        self._link = Link(self.settings)
        return super().establish_connection()

    @property
    def link(self) -> Link:
        """The connection to the broker; LinkLost if there is none."""
        if self._link is None:
            raise LinkLost("not connected")
        return self._link

    def verify_connection(self, connection: Any) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Is this connection of use? It is taken for that until its loss was raised somewhere: kombu would replace it
        without a word, and its consumers would wait for ever."""
        return self._link is not None and not self._link.told

    def close_connection(self, connection: Any) -> None:
        """Close channels, disconnect."""
        super().close_connection(connection)
        self._leave_loop()
        if self._link is not None:
            self._link.stop()

    def _collect(self, connection: Any) -> None:
        """After an error, or in a child process: let go of everything without a word to the broker."""
        link = self._link
        if link is not None:
            self._leave_loop()
            link.abandon()
            super().close_connection(connection)
            for each in (self.readers, self.names, self.consumed, self.declared, self.mailboxes, self.heard, self.state):
                each.clear()

    # -- queues -----------------------------------------------------------------------------------------------------

    def queue_uri(self, name: str) -> str:
        """The queue of that name."""
        return names.queue_uri(self.settings.domain, name, self.settings.queue_name_prefix)

    def exchange_uri(self, name: str) -> str:
        """The broadcast queue of that exchange."""
        return names.queue_uri(self.settings.broadcast_domain or "", name, self.settings.queue_name_prefix)

    def read(self, name: str, options: QueueOptions) -> Reader:
        """Read a shared queue, or read it otherwise."""
        reader = self.readers.get(name)
        if reader is None:
            uri = self.queue_uri(name)
            reader = self.readers[name] = self.link.read(uri, options)
            self.names[uri] = name
        else:
            self.link.tune(reader, options)
        return reader

    def unread(self, name: str) -> None:
        """Read it no longer."""
        reader = self.readers.pop(name, None)
        if reader is not None:
            self.link.unread(reader)

    def listen(self, queue: str, exchange: str, kind: str) -> None:
        """A queue was bound: hear what is broadcast for the exchange if that makes it private."""
        durable, passing = self.declared.get(queue, (True, False))
        exchanges: Any = self.state.exchanges
        if not names.is_private(kind, exchanges[exchange]["durable"], durable, passing):
            return
        self.mailboxes.setdefault(queue, deque(maxlen=MAILBOX_MESSAGES_MAX))
        if exchange not in self.heard:
            reader = self.link.read(self.exchange_uri(exchange), QueueOptions(), MAILBOX_MESSAGES_MAX)
            self.heard[exchange] = reader, set()
        self.heard[exchange][1].add(queue)

    def hush(self, queue: str) -> None:
        """A private queue is gone."""
        self.mailboxes.pop(queue, None)
        for exchange, (reader, queues) in list(self.heard.items()):
            queues.discard(queue)
            if not queues:
                del self.heard[exchange]
                self.link.unread(reader)

    # -- deliveries -------------------------------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Deliver one message to its consumer; TimeoutError if none comes in time."""
        link, cycle = self.link, self.cycle
        assert cycle is not None
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            link.check()
            seen = link.news
            with contextlib.suppress(virtual.Empty):
                cycle.get(self._deliver)
                return
            link.calm(seen)
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0 or not link.wait_news(seen, left):
                raise TimeoutError("no message in time")

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have an event loop look after us."""
        self._loop = loop
        loop.add_reader(self.link.fileno(), self.on_readable, connection, loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """And no longer."""
        self._leave_loop()

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._link is not None and self._link.fileno() >= 0:
            with contextlib.suppress(KeyError, ValueError, OSError):
                loop.remove_reader(self._link.fileno())

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Deliver what there is; the descriptor stays readable if that is not all."""
        with contextlib.suppress(TimeoutError):
            for _ in range(_BURST):
                self.drain_events(connection, timeout=0)
