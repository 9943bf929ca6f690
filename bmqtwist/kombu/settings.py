"""What a kombu connection says about itself, as options for a session: URL, `ssl`, `transport_options`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bmqtwist.errors import LocalError
from bmqtwist.ids import parse_uri
from bmqtwist.sdk.options import DEFAULT_PORT, Address, Credential, SessionOptions

DOMAIN = "bmq.test.persistent.priority"
BROADCAST_DOMAIN = "bmq.test.mem.broadcast"
CONNECT_TIMEOUT_S = 5.0
_BACKOFF_MAX_S = 2.0  # a publisher waits for its post: try often
_UNACKED_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """One connection. `_s` seconds, `_bytes` bytes."""

    session: SessionOptions
    tls: ssl.SSLContext | None = None
    domain: str = DOMAIN
    broadcast_domain: str | None = BROADCAST_DOMAIN  # None: no fanout, no events, no remote control
    queue_name_prefix: str = ""
    max_unconfirmed: int = 1000  # messages of one queue held at once where no prefetch count is set
    max_unconfirmed_bytes: int = 256 << 20
    confirm_publish: bool = True  # a publish waits until the broker has taken the message into its care
    post_timeout_s: float = 10.0
    request_timeout_s: float = 10.0
    get_wait_s: float = 0.2  # a get without consumer waits that long for a message

    def __post_init__(self) -> None:
        for domain in (self.domain, self.broadcast_domain):
            if domain:
                parse_uri(f"bmq://{domain}/q")
        for name in ("max_unconfirmed", "max_unconfirmed_bytes", "post_timeout_s", "request_timeout_s", "get_wait_s"):
            if not getattr(self, name) > 0:
                raise LocalError(f"transport_options: {name} must be greater than 0")


_OPTIONS = ("domain", "broadcast_domain", "queue_name_prefix", "max_unconfirmed", "max_unconfirmed_bytes",
            "confirm_publish", "post_timeout_s", "request_timeout_s", "get_wait_s")


def settings_of(client: Any, secure: bool = False) -> Settings:
    """Settings from a kombu.Connection. LocalError if something of it makes no sense.

    Members of `transport_options` that are not ours are left to kombu; `session` there replaces members of
    SessionOptions.
    """
    given: Mapping[str, Any] = client.transport_options or {}
    tls = tls_of(client.ssl)
    timeout = float(client.connect_timeout or CONNECT_TIMEOUT_S)
    credential = Credential.basic(client.userid, client.password or "") if client.userid else None
    address = Address(client.hostname or "localhost", int(client.port or DEFAULT_PORT), secure or tls is not None)
    session: dict[str, Any] = {
        "brokers": (address,), "connect_timeout_s": timeout, "connect_rounds_max": 1, "attempt_timeout_s": timeout,
        "credential": credential, "backoff_max_s": _BACKOFF_MAX_S, "unacked_bytes_max": _UNACKED_BYTES_MAX,
        "compression": bool(given.get("compression", False))}
    session.update(given.get("session", {}))
    options = {name: given[name] for name in _OPTIONS if name in given}
    host = (client.virtual_host or "").strip("/")
    if host:
        options["domain"] = host
    return Settings(SessionOptions(**session), tls, **options)


def tls_of(given: Any) -> ssl.SSLContext | None:
    """A TLS context from what kombu calls `ssl` and Celery `broker_use_ssl`: a context, True, or a mapping with
    `ca_certs`, `certfile`, `keyfile`, `cert_reqs`, `check_hostname`."""
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
