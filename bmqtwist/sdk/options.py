"""Options of sessions, queues and subscriptions: values, validated by their constructors.

`_adapters/identity.py` combines them with keywords of `Session` and `open`; `_core/` reads them. Options of the command
line are in `cli/connection.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from bmqtwist.addresses import host_and_port, is_host, without_credential
from bmqtwist.errors import LocalError
from bmqtwist.queue.expression import compile_expression
from bmqtwist.sdk.tracing import TraceContext
from bmqtwist.wire.application_data import COMPRESS_BYTES_MIN
from bmqtwist.wire.control import Encoding

DEFAULT_BROKER = "tcp://localhost:30114"
DEFAULT_PORT = 30114
DEFAULT_USER_AGENT = "bmqtwist-sdk"
MAX_UNCONFIRMED_MESSAGES = 1000
MAX_UNCONFIRMED_BYTES = 32 << 20
_PRIORITY_MAX = (1 << 30) - 1  # half the range of an int: the other half is reserved


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a broker: host, port, with or without TLS. LocalError for a host that cannot be resolved."""

    host: str  # name, IPv4 or IPv6 address
    port: int = DEFAULT_PORT
    tls: bool = False

    def __post_init__(self) -> None:
        if not is_host(self.host):
            raise LocalError(f"broker host {without_credential(self.host)!r}: write a name whose labels have 1 to 63 "
                             "characters, or an address")

    def __str__(self) -> str:
        return f"{'tls' if self.tls else 'tcp'}://{host_and_port(self.host, self.port)}"


def parse_brokers(text: str | Iterable[str]) -> tuple[Address, ...]:
    """Parse addresses `tcp://host[:port]` or `tls://host[:port]`, separated by commas or in a list."""
    parts = text.split(",") if isinstance(text, str) else list(text)
    found = []
    if any("@" in part for part in parts):  # not repeated in the error: it contains a credential
        raise LocalError("a broker address contains '@': write tcp://host:port, and give user and password apart from it")
    for part in parts:
        scheme, colon, rest = part.strip().partition("://")
        if not colon or scheme not in ("tcp", "tls") or not rest:
            raise LocalError(f"broker address {part!r}: write tcp://host:port or tls://host:port")
        host, port = rest.rstrip("/"), str(DEFAULT_PORT)
        if host.startswith("["):
            host, bracket, tail = host[1:].partition("]")
            if not bracket or tail[:1] not in ("", ":"):
                raise LocalError(f"broker address {part!r}: write an IPv6 address as tcp://[::1]:port")
            port = tail[1:] or port
        elif ":" in host:
            host, _, port = host.rpartition(":")
        if not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 1 << 16 or not host:
            raise LocalError(f"broker address {part!r}: the port is a number from 1 to 65535")
        found.append(Address(host, int(port), scheme == "tls"))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Credential:
    """Credential of the authentication."""

    mechanism: str  # BASIC, or the name of an authenticator of the broker
    data: bytes | None = field(default=None, repr=False)  # in the form of the mechanism; usually secret

    @classmethod
    def basic(cls, user: str, password: str) -> Credential:
        """Return a credential of user name and password."""
        return cls("BASIC", f"{user}:{password}".encode())


@dataclass(frozen=True, slots=True)
class Subscription:
    """Filter expression, limits of unconfirmed messages, and priority. `expression` "" = all messages. `context`: an object
    that is available as `message.subscription.context`."""

    expression: str = ""
    max_unconfirmed_messages: int = MAX_UNCONFIRMED_MESSAGES  # delivered and not confirmed yet
    max_unconfirmed_bytes: int = MAX_UNCONFIRMED_BYTES  # of payload and properties
    consumer_priority: int = 0  # only consumers with the highest priority receive messages
    context: object = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.expression:
            compile_expression(self.expression)
        if abs(self.consumer_priority) > _PRIORITY_MAX:
            raise LocalError(f"consumer_priority {self.consumer_priority}: use {-_PRIORITY_MAX} to {_PRIORITY_MAX}")
        if self.max_unconfirmed_messages < 0 or self.max_unconfirmed_bytes < 0:
            raise LocalError("max_unconfirmed_messages and max_unconfirmed_bytes cannot be negative")


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Consumer options of a queue. Without `subscriptions` the first three members define its only subscription.

    `suspends_on_bad_host_health`: no deliveries and no posts while the health monitor reports an unhealthy host.
    """

    max_unconfirmed_messages: int = MAX_UNCONFIRMED_MESSAGES  # delivered and not confirmed yet
    max_unconfirmed_bytes: int = MAX_UNCONFIRMED_BYTES  # of payload and properties
    consumer_priority: int = 0  # only consumers with the highest priority receive messages
    suspends_on_bad_host_health: bool = False
    subscriptions: Sequence[Subscription] = ()  # stored as a tuple

    def __post_init__(self) -> None:
        if not isinstance(self.subscriptions, tuple):
            object.__setattr__(self, "subscriptions", tuple(self.subscriptions))
        self.effective()

    def effective(self) -> tuple[Subscription, ...]:
        """Return the subscriptions to configure, at least one."""
        return tuple(self.subscriptions) or (Subscription("", self.max_unconfirmed_messages, self.max_unconfirmed_bytes,
                                                          self.consumer_priority),)


class QueueMembers(TypedDict, total=False):
    """Members of QueueOptions, keyword arguments of `Queue.configure`."""

    max_unconfirmed_messages: int
    max_unconfirmed_bytes: int
    consumer_priority: int
    suspends_on_bad_host_health: bool
    subscriptions: Sequence[Subscription]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of a session. `_s`: seconds, `_bytes`: bytes."""

    brokers: tuple[Address, ...] = (Address("localhost"),)  # tried 250 ms apart; the first that answers is used
    connect_timeout_s: float = 60.0  # of the first connection; reconnects have no timeout
    connect_rounds_max: int = 0  # attempts per address for the first connection; 0 = no limit
    attempt_timeout_s: float = 15.0  # one attempt: TCP, TLS, authentication, negotiation
    disconnect_timeout_s: float = 30.0  # of the disconnect request; then the connection is closed
    open_timeout_s: float = 300.0  # includes time without a connection
    configure_timeout_s: float = 300.0
    close_timeout_s: float = 300.0
    backoff_first_s: float = 0.5  # pause between attempts; doubled by each round, half of it is random
    backoff_max_s: float = 30.0  # maximum pause
    drain_s: float = 5.0  # maximum wait of stop for acknowledgements
    post_wait_s: float = 5.0  # maximum wait of a post for room
    unacked_bytes_max: int = 256 << 20  # limit of posts that wait for their acknowledgement
    channel_high_bytes: int = 124 << 20  # unsent bytes above which posts wait
    channel_low_bytes: int = 62 << 20  # unsent bytes at which posts continue
    batch_bytes_max: int = 1 << 20  # maximum size of one PUT event
    batch_delay_s: float = 0.0  # wait for further posts of a batch; 0 = posts are sent at the end of their turn
    slow_consumer_high: int = 100_000  # messages in the inbox that cause SLOWCONSUMER_HIGHWATERMARK
    slow_consumer_low: int = 50_000  # messages in the inbox that cause SLOWCONSUMER_NORMAL afterwards
    compression: bool = False  # zlib, if it makes a message smaller
    compression_threshold_bytes: int = COMPRESS_BYTES_MIN  # smaller messages are not compressed
    credential: Credential | Callable[[], Credential] | None = None  # called for each connection and each renewal
    encoding: Encoding = Encoding.BER  # of control messages
    trace: Callable[[], TraceContext | None] | None = None  # called for each post: see `tracing`
    user_agent: str = DEFAULT_USER_AGENT  # name of the application in the broker's log

    def __post_init__(self) -> None:
        if not self.brokers:
            raise LocalError("a session needs at least one broker address")
        for name in self.__slots__:
            value = getattr(self, name)
            if name.endswith("_timeout_s") and not value > 0:
                raise LocalError(f"{name} {value}: must be greater than 0")
            if name.endswith(("_s", "_bytes", "_bytes_max", "_rounds_max")) and value < 0:
                raise LocalError(f"{name} {value}: cannot be negative")
        if self.channel_low_bytes > self.channel_high_bytes or self.slow_consumer_low > self.slow_consumer_high:
            raise LocalError("a low watermark cannot be above its high watermark")
        if self.compression_threshold_bytes < COMPRESS_BYTES_MIN:
            raise LocalError(f"compression_threshold_bytes: at least {COMPRESS_BYTES_MIN}; smaller messages are never "
                             "compressed")


class SessionMembers(TypedDict, total=False):
    """Members of SessionOptions, keyword arguments of `Session`."""

    brokers: tuple[Address, ...]
    connect_timeout_s: float
    connect_rounds_max: int
    attempt_timeout_s: float
    disconnect_timeout_s: float
    open_timeout_s: float
    configure_timeout_s: float
    close_timeout_s: float
    backoff_first_s: float
    backoff_max_s: float
    drain_s: float
    post_wait_s: float
    unacked_bytes_max: int
    channel_high_bytes: int
    channel_low_bytes: int
    batch_bytes_max: int
    batch_delay_s: float
    slow_consumer_high: int
    slow_consumer_low: int
    compression: bool
    compression_threshold_bytes: int
    credential: Credential | Callable[[], Credential] | None
    encoding: Encoding
    trace: Callable[[], TraceContext | None] | None
    user_agent: str
