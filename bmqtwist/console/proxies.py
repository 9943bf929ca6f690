"""Requests to the consoles of proxies: limited in number, rate, depth and time, whatever proxies announce.

A request reaches scheme, host and port of the URL that a proxy announced, each such origin once per inspection.
Announced text decides nothing else: the path is fixed, the node token is valid at that origin alone, and every failure
has the same reason, so that an announced URL cannot be used to scan ports. Answers are validated, invalid rows are
dropped. Called by `collector.py` for documents; requests to nodes are in `consoles.py`. Limits are in
`bmqtwist/limits.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, Protocol

from twisted.internet.defer import Deferred, DeferredList, inlineCallbacks

from bmqtwist.console.access import Refusal, origin_of
from bmqtwist.console.documents import Document
from bmqtwist.limits import PROXIES_ASKED_MAX, PROXY_REQUESTS_AT_ONCE, PROXY_REQUESTS_PER_SECOND
from bmqtwist.peers.handshake import is_console_url
from bmqtwist.view.node_facts import PROXIES_MAX

RETRY_S = 2.0  # between requests to a proxy that did not answer
LEVELS_MAX = 4  # of proxies connected to proxies
INSPECTION_SECONDS_MAX = 3.0  # of all requests for one document
ANSWER_AGE_S_MAX = 0.9  # an answer up to this age is reused: proxies are sampled once per second
ROWS_MAX = 2000  # of each kind, per answer of a proxy
VERSION_CHARS_MAX = 40
PROCESS_NUMBERS = ("startedAt", "sessions", "memoryBytes", "cpuShare", "loopLagMs", "openFiles", "openFilesMax")
NO_CONSOLE = "it has no console"
NO_ANSWER = "its console gives no valid answer"
NAMED_AS_A_NODE = "it has the name of a node"
SAME_CONSOLE = "its console is that of another proxy"
TOO_MANY = "too many proxies or requests"


class ConsoleClient(Protocol):
    """HTTP client for other consoles: `consoles.PeerClient`."""

    def request_proxy(self, name: str, url: str, path: str) -> Deferred[Any]:
        """Return the status and JSON that a console answers. Fails with Refusal."""


class RequestBudget:
    """Budget of requests or of the weight of answers: `per_second`, and `most` after an idle time."""

    def __init__(self, now: float, per_second: float, most: float) -> None:
        self._left, self._at, self._per_second, self._most = most, now, per_second, most

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Return whether the budget has this amount, and take it."""
        self._left = min(self._most, self._left + max(0.0, now - self._at) * self._per_second)
        self._at = now
        if self._left < amount:
            return False
        self._left -= amount
        return True


class RequestSlots:
    """At most `most` calls in progress; further ones wait in order. Calls that end at once do not nest, as they would with a
    DeferredSemaphore."""

    def __init__(self, most: int) -> None:
        self._free, self._is_starting = most, False
        self._waiting: deque[tuple[Deferred[Any], Callable[[], Deferred[Any]]]] = deque()

    def run(self, call: Callable[[], Deferred[Any]]) -> Deferred[Any]:
        """Call when a slot is free; fires with the result."""
        done: Deferred[Any] = Deferred()
        self._waiting.append((done, call))
        self._start_next()
        return done

    def _start_next(self) -> None:
        if self._is_starting:
            return
        self._is_starting = True
        while self._waiting and self._free:
            done, call = self._waiting.popleft()
            self._free -= 1
            call().addBoth(self._on_ended, done)
        self._is_starting = False

    def _on_ended(self, result: object, done: Deferred[Any]) -> None:
        self._free += 1
        done.callback(result)
        self._start_next()


class ProxyConsoles:
    """Consoles of proxies. `now` returns monotonic seconds."""

    def __init__(self, client: ConsoleClient, now: Callable[[], float]) -> None:
        self.client, self._now = client, now
        self._budget = RequestBudget(now(), PROXY_REQUESTS_PER_SECOND, PROXIES_ASKED_MAX)
        self._slots = RequestSlots(PROXY_REQUESTS_AT_ONCE)
        self._unresponsive: dict[str, float] = {}  # time of the next request, by ident
        self._answers: dict[tuple[str, str, str], tuple[float, Document]] = {}  # by origin, name and path

    @inlineCallbacks
    def request(self, path: str, documents: Sequence[Document], own: str, nodes: Collection[str]) -> Any:
        """Send a request to the proxies that `documents` name, and to proxies connected to them. `own`: ident of this
        broker; `nodes`: names of nodes, whose tokens a proxy must not receive. Returns pairs of a proxy (as of
        `node_facts.proxy_of`) and its answer, and the reasons for missing ones by name."""
        begin = self._now()
        self.remove_expired()
        seen, origins = {own}, set[str]()
        found: list[tuple[Document, Document]] = []
        missing: dict[str, str] = {}
        for _ in range(LEVELS_MAX):
            level = {proxy["ident"]: proxy for document in documents for proxy in valid_proxies(document)
                     if proxy["ident"] not in seen}
            seen.update(level)
            requested = []
            for proxy in level.values():
                reason = self._refusal(proxy, origins, nodes)
                if reason:
                    if len(missing) < PROXIES_ASKED_MAX:
                        missing[proxy["name"]] = reason
                    continue
                origins.add(proxy["url"])
                requested.append(proxy)
            answers = yield DeferredList([self._slots.run(partial(self._ask, proxy, path, begin + INSPECTION_SECONDS_MAX))
                                          for proxy in requested], consumeErrors=True)
            documents = []
            for proxy, (good, answer) in zip(requested, answers, strict=True):
                if good and isinstance(answer, dict):
                    found.append((proxy, answer))
                    documents.append(answer)
                else:
                    missing[proxy["name"]] = answer if good else NO_ANSWER
        return found, missing

    def _refusal(self, proxy: Document, origins: set[str], nodes: Collection[str]) -> str:
        """Return why a proxy gets no request; empty = it gets one."""
        if not proxy["url"]:
            return NO_CONSOLE
        if proxy["name"] in nodes:
            return NAMED_AS_A_NODE
        if proxy["url"] in origins:
            return SAME_CONSOLE
        if len(origins) >= PROXIES_ASKED_MAX:
            return TOO_MANY
        return NO_ANSWER if proxy["ident"] in self._unresponsive else ""

    @inlineCallbacks
    def _ask(self, proxy: Document, path: str, deadline: float) -> Any:
        """Return the document that a proxy answers, or the text TOO_MANY. Raises Refusal."""
        now, key = self._now(), (proxy["url"], proxy["name"], path)
        if key in self._answers:
            return self._answers[key][1]
        if now >= deadline or not self._budget.take(now):
            return TOO_MANY
        try:
            status, answer = yield self.client.request_proxy(proxy["name"], proxy["url"], path)
            if status != 200 or not isinstance(answer, dict):
                raise Refusal(502, NO_ANSWER)
        except Refusal:
            self._unresponsive[proxy["ident"]] = self._now() + RETRY_S
            raise
        self._answers[key] = self._now() + ANSWER_AGE_S_MAX, answer
        return answer

    def remove_expired(self) -> None:
        """Remove answers and refusals that are too old. Called for each document, and every 5 s by `collector.py`."""
        now = self._now()
        self._unresponsive = {ident: until for ident, until in self._unresponsive.items() if until > now}
        self._answers = {key: each for key, each in self._answers.items() if each[0] > now}


def valid_proxies(document: Mapping[str, Any]) -> list[Document]:
    """Return the proxies that a document names; `url`: scheme, host and port of the console, "" = none."""
    return [{"ident": each["ident"], "name": each["name"],
             "url": origin_of(each["url"]) if is_console_url(each["url"]) else ""}
            for each in _rows(document, "proxies", ("ident", "name", "url"))][:PROXIES_MAX]


def valid_clients(answer: Mapping[str, Any], proxy: Document) -> list[Document]:
    return [{**row, "id": f"{proxy['ident']} {row['id']}", "node": proxy["name"], "proxy": True}
            for row in _rows(answer, "clients", ("id", "client"))]


def valid_process(answer: Mapping[str, Any]) -> Document:
    """Return a proxy's values of its process: numbers, and short texts; other values are unknown, None."""
    found: Document = {}
    for name in PROCESS_NUMBERS:
        value = answer.get(name)
        found[name] = value if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) else None
    version = answer.get("version")
    return {**found, "version": version[:VERSION_CHARS_MAX] if isinstance(version, str) else None}


def valid_queue(answer: Mapping[str, Any], proxy: Document) -> Document:
    """Return a proxy's part of the document of a queue, as of `queue_facts.queue_part`."""
    rates = answer.get("rates")
    return {"node": proxy["name"], "ident": proxy["ident"], "proxy": True, "leads": False, "apps": [],
            "rates": rates if isinstance(rates, dict) else {}, "proxies": valid_proxies(answer),
            **{kind: [{**row, "node": proxy["name"], "proxy": True, "broker": bool(row.get("broker")),
                       "subscriptions": _rows(row, "subscriptions", ("expression",))}
                      for row in _rows(answer, kind, ("client", "ident")) if _is_whole(row.get("unconfirmed", 0))]
               for kind in ("consumers", "producers")}}


def _rows(answer: Mapping[str, Any], name: str, texts: Iterable[str]) -> list[Document]:
    rows = answer.get(name)
    return [row for row in rows[:ROWS_MAX] if isinstance(row, dict) and all(
        isinstance(row.get(each), str) for each in texts)] if isinstance(rows, list) else []


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
