"""Requests to the consoles of other nodes, and their answers.

A request takes PEER_SECONDS_MAX at most; a node that did not answer the last request is polled in the background, and
documents do not wait for it. Called by `collector.py` for documents and by `operation.py` to forward actions; requests
to proxies are in `proxies.py`. The size of an answer of a proxy is limited in `bmqtwist/limits.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

from treq.client import HTTPClient
from twisted.internet.defer import Deferred, DeferredList, DeferredLock, inlineCallbacks, succeed
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool

from bmqtwist.broker.broker import Broker
from bmqtwist.console.access import Caller, NodeRequest, NodeTokens, Refusal, receiver_of
from bmqtwist.console.answers import Collector, TooLong, UndecodedAgent, parse_in_steps, weigh
from bmqtwist.console.documents import Document, compact
from bmqtwist.console.proxies import ProxyConsoles, RequestBudget
from bmqtwist.limits import PROXY_ANSWER_BYTES_MAX, PROXY_ANSWERS_WEIGHT_PER_SECOND
from bmqtwist.steps import Steps
from bmqtwist.view import cluster_facts

PEER_SECONDS_MAX = 1.0
ACTION_SECONDS_MAX = 30.0
RETRY_S = 2.0  # between requests to a node that did not answer
IDLE_SECONDS_MAX = 3  # of a connection: nodes and proxies are requested once per second
ANSWER_BYTES_MAX = 16 << 20
TOKEN_HEADER = "X-Bmqtwist-Node"
NO_KEY = "http.keyFile is not configured: consoles with users need it to authenticate each other"


_Factory: Any = HTTPConnectionPool._factory


class _ConnectionFactory(_Factory):  # type: ignore[misc]
    """Factory of connections to other consoles, without a line of the log for each."""

    noisy = False


class PeerClient:
    """HTTP client for other consoles. `name`: this node; `tokens`: to authenticate it, None = no key is configured; `wall`
    returns the present time (seconds since the epoch); `run` runs a job."""

    def __init__(self, reactor: Any, name: str, tokens: NodeTokens | None, wall: Callable[[], float],
                 run: Callable[[Steps[Any]], Deferred[Any]]) -> None:
        self._reactor, self._name, self._tokens, self._wall, self._run = reactor, name, tokens, wall, run
        self._parsing = DeferredLock()  # one answer at a time
        self._proxies = RequestBudget(wall(), PROXY_ANSWERS_WEIGHT_PER_SECOND, 2 * PROXY_ANSWERS_WEIGHT_PER_SECOND)
        self._pool: Any = HTTPConnectionPool(reactor, persistent=True)
        self._pool.maxPersistentPerHost, self._pool.cachedConnectionTimeout = 4, IDLE_SECONDS_MAX
        self._pool._factory = _ConnectionFactory
        self._pool.retryAutomatically = False
        agent: Any = Agent(reactor, connectTimeout=PEER_SECONDS_MAX, pool=self._pool)
        self._client: Any = HTTPClient(UndecodedAgent(agent))  # type: ignore[arg-type]

    def close(self) -> Deferred[Any]:
        closed: Deferred[Any] = self._pool.closeCachedConnections()
        return closed

    def request(self, node: str, url: str, method: str, path: str, body: bytes = b"", caller: Caller | None = None,
                seconds: float = PEER_SECONDS_MAX) -> Deferred[Any]:
        """Return the status and JSON that a node answers. `path`: below its URL, with query. Refusal 502: no answer."""
        user, role = (caller.user, caller.role.label) if caller is not None else ("", "")
        content = NodeRequest(self._name, receiver_of(node, url), method, path, body, user, role)
        sent: Deferred[Any] = self._send(content, url, seconds)
        return sent

    def request_proxy(self, name: str, url: str, path: str) -> Deferred[Any]:
        """Return the status and JSON that a proxy answers, of PROXY_ANSWER_BYTES_MAX. Refusal 502: no answer."""
        content = NodeRequest(self._name, receiver_of(name, url), "GET", path, b"")
        sent: Deferred[Any] = self._send(content, url, PEER_SECONDS_MAX, True)
        return sent

    @inlineCallbacks
    def _send(self, content: NodeRequest, url: str, seconds: float, to_proxy: bool = False) -> Any:
        if self._tokens is None:
            raise Refusal(502, NO_KEY)
        if to_proxy:
            yield self._run(_pause())
        headers = {TOKEN_HEADER: self._tokens.make(content, self._wall(), os.urandom(12).hex()),
                   "Content-Type": "application/json"}
        sent = self._client.request(content.method, (url + content.path).encode(), headers=headers,
                                    data=content.body or None, allow_redirects=False, unbuffered=True)
        sent.addTimeout(seconds, self._reactor)
        try:
            response = yield sent
            collector = Collector(PROXY_ANSWER_BYTES_MAX if to_proxy else ANSWER_BYTES_MAX)
            response.deliverBody(collector)
            text = yield collector.body.addTimeout(seconds, self._reactor)
            if to_proxy and not self._proxies.take(self._wall(), weigh(text)):
                raise TooLong("the answers of proxies are too long")
            return response.code, (yield self._parsing.run(self._run, parse_in_steps(text)))
        except Refusal:
            raise
        except Exception as error:
            raise Refusal(502, f"{content.receiver} does not answer: {_reason(error)}.") from None


def _pause() -> Steps[None]:
    """Wait for a share of a turn: up to PROXIES_ASKED_MAX requests begin at a time, and each takes 1 ms or more."""
    yield


def _reason(error: Exception) -> str:
    reasons = getattr(error, "reasons", None)  # failures below an error of twisted.web
    if reasons:
        error = reasons[0].value
    name = type(error).__name__
    return {"TimeoutError": "no answer in time", "ConnectionRefusedError": "connection refused",
            "CancelledError": "no answer in time"}.get(name, f"{error}" or name)


class PeerView:
    """Last part of a node, and the problem of its last request ("" = it answered, or the answer to the first one is
    awaited)."""

    def __init__(self) -> None:
        self.part: Document | None = None  # "at": time of this node's clock when it arrived
        self.problem = ""
        self.requested_at = float("-inf")
        self.url = ""
        self.pending: Deferred[None] | None = None


class Peers:
    """Parts of all other nodes. `wall` returns the present time (seconds since the epoch)."""

    def __init__(self, client: PeerClient, wall: Callable[[], float]) -> None:
        self._client, self._wall = client, wall
        self.views: dict[str, PeerView] = {}

    def poll(self, urls: Mapping[str, str], now: float) -> Deferred[Any]:
        """Request the parts of all nodes in `urls`; fires when the nodes that answered the last request have answered."""
        waiting = []
        for name, url in urls.items():
            view = self.views.setdefault(name, PeerView())
            if url != view.url:
                view.url, view.problem, view.requested_at = url, "", float("-inf")
            if view.pending is None and (not view.problem or now - view.requested_at >= RETRY_S):
                view.requested_at = now
                self._request_part(name, view)
            if view.pending is not None and not view.problem:
                done: Deferred[None] = Deferred()
                view.pending.addCallback(partial(_fire, done))
                waiting.append(done)
        return DeferredList(waiting) if waiting else succeed(None)

    def _request_part(self, name: str, view: PeerView) -> None:
        def on_answer(answer: tuple[int, Document]) -> None:
            status, part = answer
            if status != 200 or part.get("name") != name:
                raise Refusal(502, str(part.get("error")) if status != 200
                              else f"node {part.get('name')} answers in its place")
            view.part, view.problem = {**part, "at": round(self._wall(), 3)}, ""

        def on_failed(failure: Failure) -> None:
            view.problem = str(failure.value) or type(failure.value).__name__

        def on_end(ignored: object) -> None:
            view.pending = None

        view.pending = request = self._client.request(name, view.url, "GET", "/api/v1/node")
        request.addCallback(on_answer).addErrback(on_failed).addBoth(on_end)  # may be called immediately

    def on_failed(self, problems: Mapping[str, str]) -> None:
        """Record that nodes do not answer, from failures of other requests; `poll` requests their parts again."""
        for name, problem in problems.items():
            if name in self.views:
                self.views[name].problem = problem

    def parts(self, urls: Mapping[str, str]) -> tuple[dict[str, Document], dict[str, str], dict[str, Document]]:
        """Return by node name the parts of the nodes that answer, the reason for each that does not, and its last part if it
        has ever answered."""
        parts, missing, past = {}, {}, {}
        for name in urls:
            view = self.views.get(name)
            if view is not None and view.part is not None and not view.problem:
                parts[name] = view.part
                continue
            missing[name] = view.problem if view is not None else ""
            if view is not None and view.part is not None:
                past[name] = view.part
        return parts, missing, past


def _fire(done: Deferred[None], result: None) -> None:
    done.callback(None)


def with_query(path: str, arguments: Mapping[str, str]) -> str:
    """Return a path with a query."""
    return f"{path}?{urlencode(arguments)}" if arguments else path


def as_body(document: Mapping[str, Any]) -> bytes:
    """Return a document as the body of a request."""
    return compact(document).encode()


class OtherConsoles:
    """Consoles of other nodes and of proxies. `now` returns monotonic seconds, `wall` seconds since the epoch."""

    def __init__(self, broker: Broker, client: PeerClient, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self._broker, self._client = broker, client
        self.peers = Peers(client, wall)
        self._urls: dict[str, str] = {}  # by node name, disconnected nodes included
        self.proxies = ProxyConsoles(client, now)

    def urls(self) -> dict[str, str]:
        """Return the URLs of the consoles of other nodes, also of disconnected ones."""
        self._urls.update(cluster_facts.peer_urls(self._broker))
        return {**{name: view.url for name, view in self.peers.views.items()}, **self._urls}

    def request_all(self, path: str, body: bytes | None = None, seconds: float = PEER_SECONDS_MAX) -> Deferred[Any]:
        """Send the same request to the consoles of all other nodes. Returns the documents, and the reasons for missing ones,
        by node name."""
        asked: Deferred[Any] = self.request_each(dict.fromkeys(self.urls(), (path, body)), seconds)
        return asked

    @inlineCallbacks
    def request_each(self, requests: Mapping[str, tuple[str, bytes | None]], seconds: float = PEER_SECONDS_MAX) -> Any:
        """Send each of some nodes its own path and body (None = a GET). Returns as `request_all`."""
        urls, names = self.urls(), list(requests)
        answers = yield DeferredList([
            self._client.request(name, urls.get(name, ""), "GET" if body is None else "POST", path, body or b"",
                                 seconds=seconds) for name, (path, body) in requests.items()], consumeErrors=True)
        found, missing = _answers(names, answers)
        return {names[at]: answer for at, answer in found.items()}, missing

    def request_proxies(self, path: str, documents: Sequence[Document]) -> Deferred[Any]:
        """Send a request to the proxies that `documents` name, and to proxies connected to them: `ProxyConsoles.request`."""
        names = {*self.urls(), *cluster_facts.node_names(self._broker)}
        asked: Deferred[Any] = self.proxies.request(path, documents, cluster_facts.own_ident(self._broker), names)
        return asked


def _answers(names: Sequence[str], answers: Sequence[tuple[bool, Any]]
             ) -> tuple[dict[int, Document], dict[str, str]]:
    """Return the documents by index of the request, and the reasons of failed requests by name."""
    found: dict[int, Document] = {}
    missing: dict[str, str] = {}
    for at, (name, (good, answer)) in enumerate(zip(names, answers, strict=True)):
        if not good:
            missing[name] = str(answer.value)
        elif answer[0] != 200 or not isinstance(answer[1], dict):
            error = answer[1].get("error", answer[0]) if isinstance(answer[1], dict) else answer[0]
            missing[name] = f"Node {name}: {error}"
        else:
            found[at] = answer[1]
    return found, missing
