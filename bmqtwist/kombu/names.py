"""Names and rules: what a queue or an exchange of kombu is called in BlazingMQ, and which queues are private."""

from __future__ import annotations

import re
from hashlib import sha256

from bmqtwist.limits import QUEUE_NAME_CHARS_MAX

_FORBIDDEN = re.compile(r"[^-a-zA-Z0-9_.]")
_DIGEST_CHARS = 12


def queue_name(name: str) -> str:
    """`name` where BlazingMQ permits it; else with `_` for what is not permitted, cut to length, and a digest of `name`
    after it, so that different names stay different."""
    clean = _FORBIDDEN.sub("_", name)
    if clean == name and 0 < len(name) <= QUEUE_NAME_CHARS_MAX:
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{clean[:QUEUE_NAME_CHARS_MAX - _DIGEST_CHARS - 1]}-{digest}"


def queue_uri(domain: str, name: str, prefix: str = "") -> str:
    """The URI of a queue or, in a broadcast domain, of an exchange."""
    return f"bmq://{domain}/{queue_name(prefix + name)}"


def is_private(kind: str, exchange_durable: bool, queue_durable: bool, queue_passing: bool) -> bool:
    """Does a binding make a queue private to its connection, fed by the exchange's broadcast queue?

    `kind` direct, topic or fanout; `queue_passing`: exclusive or auto-deleted. Everything bound to a fanout exchange that
    does not outlive its reader; for the other kinds it must not be durable either, for a direct exchange neither may the
    exchange. So event receivers, mailboxes and reply queues are private, and queues of tasks are not.
    """
    if not queue_passing:
        return False
    return kind == "fanout" or not queue_durable and (kind == "topic" or not exchange_durable)
