"""The consoles of the other nodes and of proxies: where they are, and their answers to one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import DeferredList, inlineCallbacks

from bmqtwist.broker.broker import Broker
from bmqtwist.console import behind
from bmqtwist.console.documents import Document
from bmqtwist.console.peers import PEER_SECONDS_MAX, RETRY_S, PeerClient, Peers
from bmqtwist.view import cluster_facts


class OtherConsoles:
    """`now`: seconds, monotonic."""

    def __init__(self, broker: Broker, client: PeerClient, now: Callable[[], float]) -> None:
        self._broker, self._client, self._now = broker, client, now
        self.peers = Peers(client)
        self._urls: dict[str, str] = {}  # of the others' consoles, also of those that are gone
        self._silent: dict[str, tuple[float, str]] = {}  # proxies that did not answer: until when they are left alone, why

    def urls(self) -> dict[str, str]:
        """Where the consoles of the others are, also of those that are not connected any more."""
        self._urls.update(cluster_facts.peer_urls(self._broker))
        return {**{name: view.url for name, view in self.peers.views.items()}, **self._urls}

    @inlineCallbacks
    def ask_all(self, path: str, body: bytes | None = None, seconds: float = PEER_SECONDS_MAX) -> Any:
        """What the consoles of all other nodes answer to the same: documents by name, and why the rest does not."""
        urls = self.urls()
        method, names = "GET" if body is None else "POST", list(urls)
        answers = yield DeferredList([self._client.ask(name, url, method, path, body or b"", seconds=seconds)
                                      for name, url in urls.items()], consumeErrors=True)
        found, missing = _answers("Node", names, answers)
        return {names[at]: answer for at, answer in found.items()}, missing

    @inlineCallbacks
    def ask_some(self, path: str, bodies: dict[str, bytes]) -> Any:
        """What nodes answer, each to a body of its own: those documents that there are."""
        urls = self.urls()
        answers = yield DeferredList([self._client.ask(name, urls[name], "POST", path, body)
                                      for name, body in bodies.items()], consumeErrors=True)
        return list(_answers("Node", list(bodies), answers)[0].values())

    @inlineCallbacks
    def ask_proxies(self, path: str, told: Sequence[Document]) -> Any:
        """What the consoles of proxies answer: pairs of a proxy, as `proxy_facts.proxy_of` has it, and its answer; and why
        the others have none, by name. Asked are the proxies that the answers `told` name, and those behind them. One that
        does not answer is left alone for RETRY_S."""
        now, silent = self._now(), self._silent
        for ident in [ident for ident, (until, _) in silent.items() if until <= now]:
            del silent[ident]
        seen = {cluster_facts.own_ident(self._broker)}
        # a token for the name of a node would be good there: no proxy gets one
        names = {*self.urls(), *cluster_facts.node_names(self._broker)}
        found: list[tuple[Document, Document]] = []
        missing: dict[str, str] = {}
        for _ in range(behind.LEVELS_MAX):
            next_ones = {proxy["ident"]: proxy for document in told for proxy in behind.proxies_told(document)
                         if proxy["ident"] not in seen}
            seen.update(next_ones)
            asked = []
            for proxy in next_ones.values():
                if not proxy["url"] or proxy["name"] in names:
                    missing[proxy["name"]] = behind.NAMED_AS_A_NODE if proxy["url"] else behind.NO_CONSOLE
                elif proxy["ident"] in silent:
                    missing[proxy["name"]] = silent[proxy["ident"]][1]
                else:
                    asked.append(proxy)
            requests = [self._client.ask(proxy["name"], proxy["url"], "GET", path) for proxy in asked]
            answers = yield DeferredList(requests, consumeErrors=True)
            good, bad = _answers("Proxy", [proxy["name"] for proxy in asked], answers)
            missing.update(bad)
            until = self._now() + RETRY_S
            silent.update((proxy["ident"], (until, bad[proxy["name"]])) for at, proxy in enumerate(asked) if at not in good)
            found += [(asked[at], answer) for at, answer in good.items()]
            told = list(good.values())
        return found, missing


def _answers(kind: str, names: Sequence[str], answers: Sequence[tuple[bool, Any]]
             ) -> tuple[dict[int, Document], dict[str, str]]:
    """What those answered that were asked, by their places, and why the others did not, by name."""
    found: dict[int, Document] = {}
    missing: dict[str, str] = {}
    for at, (name, (good, answer)) in enumerate(zip(names, answers, strict=True)):
        if not good:
            missing[name] = str(answer.value)
        elif answer[0] != 200 or not isinstance(answer[1], dict):
            error = answer[1].get("error", answer[0]) if isinstance(answer[1], dict) else answer[0]
            missing[name] = f"{kind} {name}: {error}"
        else:
            found[at] = answer[1]
    return found, missing
