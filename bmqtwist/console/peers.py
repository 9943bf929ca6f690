"""The consoles of the other nodes: their parts of the documents, and requests that are for them.

A node is waited for PEER_SECONDS_MAX at most; one that has not answered lately is asked in the background and not waited
for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

import treq
from treq.client import HTTPClient
from twisted.internet.defer import Deferred, DeferredList, inlineCallbacks, succeed
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool

from bmqtwist.console.access import Refusal, Who
from bmqtwist.console.documents import Document, compact
from bmqtwist.console.tokens import NodeRequest, NodeTokens

PEER_SECONDS_MAX = 1.0
ACTION_SECONDS_MAX = 30.0
RETRY_S = 2.0  # until a node that did not answer is asked again
ANSWER_BYTES_MAX = 16 << 20
TOKEN_HEADER = "X-Bmqtwist-Node"
NO_KEY = "http.keyFile is not configured: with users, the nodes' consoles know each other by it"


class TooLong(Exception):
    """An answer is longer than any that makes sense."""


class PeerClient:
    """Asks other consoles. `name`: this node; `tokens`: what shows that; None = the others would not believe it; `wall`:
    seconds since the epoch, now."""

    def __init__(self, reactor: Any, name: str, tokens: NodeTokens | None, wall: Callable[[], float]) -> None:
        self._reactor, self._name, self._tokens, self._wall = reactor, name, tokens, wall
        self._pool: Any = HTTPConnectionPool(reactor, persistent=True)
        self._pool.maxPersistentPerHost = 4
        self._pool.retryAutomatically = False
        agent: Any = Agent(reactor, connectTimeout=PEER_SECONDS_MAX, pool=self._pool)
        self._client: Any = HTTPClient(agent)

    def close(self) -> Deferred[Any]:
        """Close the connections that are kept."""
        closed: Deferred[Any] = self._pool.closeCachedConnections()
        return closed

    @inlineCallbacks
    def ask(self, node: str, url: str, method: str, path: str, body: bytes = b"", who: Who | None = None,
            seconds: float = PEER_SECONDS_MAX) -> Any:
        """What a node answers: (status, JSON). `path`: below its URL, with its query. Refusal 502 if it does not."""
        if self._tokens is None:
            raise Refusal(502, NO_KEY)
        user, role = (who.user, who.role.word) if who is not None else ("", "")
        token = self._tokens.make(NodeRequest(self._name, node, method, path, body, user, role), self._wall(),
                                  os.urandom(12).hex())
        headers = {TOKEN_HEADER: token, "Content-Type": "application/json"}
        asked = self._client.request(method, (url + path).encode(), headers=headers, data=body or None,
                                     allow_redirects=False, unbuffered=True)
        asked.addTimeout(seconds, self._reactor)
        try:
            response = yield asked
            text = yield _collect(response).addTimeout(seconds, self._reactor)
            return response.code, json.loads(text)
        except Refusal:
            raise
        except Exception as error:
            raise Refusal(502, f"Node {node} does not answer at {url}: {_reason(error)}.") from None


def _collect(response: Any) -> Deferred[bytes]:
    found: list[bytes] = []
    size = 0

    def more(data: bytes) -> None:
        nonlocal size
        size += len(data)
        if size > ANSWER_BYTES_MAX:
            raise TooLong
        found.append(data)

    collected: Deferred[Any] = treq.collect(response, more)
    return collected.addCallback(lambda ignored: b"".join(found))


def _reason(error: Exception) -> str:
    reasons = getattr(error, "reasons", None)  # of twisted.web: what went wrong below
    if reasons:
        error = reasons[0].value
    name = type(error).__name__
    return {"TimeoutError": "no answer in time", "ConnectionRefusedError": "the connection is refused",
            "CancelledError": "no answer in time", "TooLong": "its answer is too long"}.get(name, f"{error}" or name)


class PeerView:
    """What one node said last, and whether it is worth waiting for its next answer."""

    def __init__(self) -> None:
        self.part: Document | None = None
        self.problem = ""
        self.asked_at = float("-inf")
        self.url = ""
        self.asking: Deferred[None] | None = None


class Peers:
    """The parts of all other nodes."""

    def __init__(self, client: PeerClient) -> None:
        self._client = client
        self.views: dict[str, PeerView] = {}

    def look(self, urls: Mapping[str, str], now: float) -> Deferred[Any]:
        """Ask all nodes of which the URL is known; fires when those have answered that did so last time, too."""
        waiting = []
        for name, url in urls.items():
            view = self.views.setdefault(name, PeerView())
            if url != view.url:
                view.url, view.problem, view.asked_at = url, "", float("-inf")
            if view.asking is None and (not view.problem or now - view.asked_at >= RETRY_S):
                view.asked_at = now
                self._ask(name, view)
            if view.asking is not None and not view.problem:
                done: Deferred[None] = Deferred()
                view.asking.addCallback(partial(_pass_on, done))
                waiting.append(done)
        return DeferredList(waiting) if waiting else succeed(None)

    def _ask(self, name: str, view: PeerView) -> None:
        def answered(answer: tuple[int, Document]) -> None:
            status, part = answer
            if status != 200 or part.get("name") != name:
                raise Refusal(502, str(part.get("error")) if status != 200
                              else f"node {part.get('name')} answers in its place")
            view.part, view.problem = part, ""

        def failed(failure: Failure) -> None:
            view.part = None
            view.problem = str(failure.value) or type(failure.value).__name__

        def over(ignored: object) -> None:
            view.asking = None

        view.asking = self._client.ask(name, view.url, "GET", "/api/v1/node").addCallback(answered).addErrback(failed)
        view.asking.addBoth(over)  # at once, perhaps

    def parts(self, urls: Mapping[str, str]) -> tuple[dict[str, Document], dict[str, str]]:
        """The newest parts by name, and why the others have none."""
        parts, missing = {}, {}
        for name in urls:
            view = self.views.get(name)
            if view is not None and view.part is not None:
                parts[name] = view.part
            else:
                missing[name] = view.problem if view is not None else ""
        return parts, missing


def _pass_on(done: Deferred[None], result: None) -> None:
    done.callback(None)


def with_query(path: str, arguments: Mapping[str, str]) -> str:
    """A path with its query."""
    return f"{path}?{urlencode(arguments)}" if arguments else path


def as_body(document: Mapping[str, Any]) -> bytes:
    """JSON, as bytes."""
    return compact(document).encode()
