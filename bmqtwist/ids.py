"""Identifiers: queue URIs, message GUIDs and storage keys. Clocks and randomness are arguments.

`link/requests.py` parses the URIs of opens, `cluster/changes.py` makes the keys of queues and apps, the SDK and
`broker/access.py` make GUIDs. Sequence numbers of records are in `storage/psn.py`. Lengths of names are limited in
`bmqtwist/limits.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import md5
from typing import Final

from bmqtwist.errors import LocalError
from bmqtwist.limits import DOMAIN_NAME_CHARS_MAX, QUEUE_NAME_CHARS_MAX
from bmqtwist.report import shown

SCHEME = "bmq://"
DEFAULT_APP_ID = "__default"
DEFAULT_APP_KEY = bytes.fromhex("3000000000")
NULL_KEY = bytes(5)
NULL_GUID: Final = bytes(16)

_DOMAIN = re.compile(r"[-a-zA-Z0-9._]*")
_TIER = re.compile(r"[-a-zA-Z0-9]*")
_NAME = re.compile(r"[-a-zA-Z0-9_.]*")


class InvalidUri(LocalError):
    """The text is not a queue URI; the message is BlazingMQ's."""


@dataclass(frozen=True, slots=True)
class QueueUri:
    """Parts of `bmq://<domain>[.~<tier>]/<queue>[?id=<appId>]`."""

    domain: str
    tier: str
    queue: str
    app_id: str = ""

    @property
    def qualified_domain(self) -> str:
        """The domain with its tier: the name of the domain's file."""
        return f"{self.domain}.~{self.tier}" if self.tier else self.domain

    @property
    def canonical(self) -> str:
        """The URI without its query: the identity of the queue."""
        return f"{SCHEME}{self.qualified_domain}/{self.queue}"


def domain_of(uri: str) -> str:
    """Return the qualified domain of a canonical URI, without validation."""
    return uri[len(SCHEME):].partition("/")[0]


def parse_uri(text: str) -> QueueUri:
    """Parse a queue URI, or raise InvalidUri with BlazingMQ's text."""
    if not text.startswith(SCHEME):
        raise InvalidUri('Invalid scheme: uri must start with "bmq://"')
    rest = text[len(SCHEME):]
    authority, slash, path = rest.partition("/")
    domain, tilde, tier = authority.partition(".~")
    if not domain:
        raise InvalidUri("Missing domain")
    _check(_DOMAIN, domain, "Domain")
    if tilde and not tier:
        raise InvalidUri("Empty tier")
    _check(_TIER, tier, "Tier")
    queue, question, query = path.partition("?")
    if len(authority) > DOMAIN_NAME_CHARS_MAX:
        raise InvalidUri(f"Domain name exceeds {DOMAIN_NAME_CHARS_MAX} characters")
    if not slash or not queue:
        raise InvalidUri("Missing queue")
    _check(_NAME, queue, "Path")
    if len(queue) > QUEUE_NAME_CHARS_MAX:
        raise InvalidUri(f"Queue name exceeds {QUEUE_NAME_CHARS_MAX} characters")
    app_id = ""
    if question:
        key, equals, app_id = query.partition("=")
        if key != "id":
            raise InvalidUri(f'Query parsing failed: unsupported query "{shown(key)}"')
        if not app_id:
            raise InvalidUri('Query parsing failed: missing value after "="')
        _check(_NAME, app_id, "Query")
    return QueueUri(domain, tier, queue, app_id)


def _check(allowed: re.Pattern[str], text: str, part: str) -> None:
    end = allowed.match(text).end()  # type: ignore[union-attr]
    if end != len(text):
        raise InvalidUri(f"{part} parsing failed: unsupported char (int){ord(text[end])}")


def make_storage_key(value: str, timer_ns: int, taken: set[bytes] | frozenset[bytes] = frozenset()) -> bytes:
    """Return a 5-byte key not in `taken`: MD5 over the value and a monotonic timer, re-hashed on collision."""
    digest = md5(value.encode() + timer_ns.to_bytes(8, "little"), usedforsecurity=False).digest()
    while digest[:5] in taken or digest[:5] == NULL_KEY:
        timer_ns += 1
        digest = md5(digest + timer_ns.to_bytes(8, "little"), usedforsecurity=False).digest()
    return digest[:5]


class GuidGenerator:
    """Version 1 message GUIDs: 2 bits version, 22 bits counter, 56 bits timer (ns), 48 bits client id."""

    __slots__ = ("client_id", "_start_ns", "_counter")

    def __init__(self, client_id: bytes, start_ns: int) -> None:
        self.client_id, self._start_ns, self._counter = client_id, start_ns, 0

    def make(self, now_ns: int) -> bytes:
        """Return the next GUID; `now_ns`: of the same clock as `start_ns`."""
        head = 1 << 22 | self._counter
        self._counter = self._counter + 1 & 0x3FFFFF
        return head.to_bytes(3, "big") + (now_ns - self._start_ns & (1 << 56) - 1).to_bytes(7, "big") + self.client_id


def make_client_id(host: str, now_ns: int, pid: int, session_id: int) -> bytes:
    """Return the 6 bytes that make the GUIDs of one client unique."""
    text = host.encode() + now_ns.to_bytes(8, "big") + pid.to_bytes(4, "big") + session_id.to_bytes(4, "big")
    return md5(text, usedforsecurity=False).digest()[:6]
