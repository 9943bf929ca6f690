"""Answers of other consoles: received up to a size, and parsed in steps.

An answer is read as sent: `UndecodedAgent` removes its Content-Encoding, because a compressed answer can expand a
thousandfold. `weigh` estimates the memory of the parsed document before it is parsed. Called by `consoles.py`, which limits
size and weight.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec.json import Decoder
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent
from zope.interface import classImplements  # type: ignore[import-untyped]

from bmqtwist.errors import LocalError
from bmqtwist.steps import ITEMS_AT_ONCE, Steps, in_steps

VALUE_BYTES = 32  # of the smallest value of a document in memory, besides its text
STEP_BYTES = 32 << 10  # a value up to this size is parsed in one step
_ANY, _ROWS, _MEMBERS = Decoder(), Decoder(list[Raw]), Decoder(dict[str, Raw])


class UndecodedAgent:
    """Agent of treq's client whose responses are not decompressed."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def request(self, method: bytes, uri: bytes, headers: Headers, body: Any = None) -> Deferred[Any]:
        headers.removeHeader("Accept-Encoding")
        sent: Deferred[Any] = self._agent.request(method, uri, headers, body)
        return sent.addCallback(_remove_encoding)


def _remove_encoding(response: Any) -> Any:
    response.headers.removeHeader("Content-Encoding")
    return response


classImplements(UndecodedAgent, IAgent)


class TooLong(LocalError):
    """Answer above its limit."""


class Collector(Protocol):
    """Body of a response of up to `most` bytes."""

    transport: Any

    def __init__(self, most: int) -> None:
        self._most, self._parts, self._size = most, list[bytes](), 0
        self.body: Deferred[bytes] = Deferred(lambda ignored: self._stop())

    def dataReceived(self, data: bytes) -> None:
        """Called by twisted.web."""
        self._size += len(data)
        if self._size <= self._most:
            self._parts.append(data)
        elif not self.body.called:
            self.body.errback(TooLong("the answer is too long"))
            self._stop()

    def connectionLost(self, reason: Any = None) -> None:
        """Called by twisted.web at the end of the body."""
        if self.body.called:
            return
        if isinstance(reason, Failure) and reason.check(ResponseDone):
            self.body.callback(b"".join(self._parts))
        else:
            self.body.errback(reason)

    def _stop(self) -> None:
        self._parts.clear()
        if self.transport is not None:
            self.transport.loseConnection()


def weigh(text: bytes) -> int:
    """Return an upper estimate of the bytes that a JSON document takes in memory.

    >>> weigh(b'{"a":[1,2]}')
    139
    """
    return len(text) + VALUE_BYTES * (1 + sum(map(text.count, (b",", b"[", b"{"))))


def parse_in_steps(text: bytes) -> Steps[Any]:
    """Parse a JSON document, with a pause after some rows of its long lists. Raises msgspec.DecodeError."""
    if len(text) <= STEP_BYTES:
        return _ANY.decode(text)
    document: dict[str, Any] = {}
    for name, value in _MEMBERS.decode(text).items():
        yield
        if len(memoryview(value)) > STEP_BYTES and bytes(memoryview(value)[:1]) == b"[":
            document[name] = yield from in_steps(_ROWS.decode(value), _ANY.decode, ITEMS_AT_ONCE)
        else:
            document[name] = _ANY.decode(value)
    return document
