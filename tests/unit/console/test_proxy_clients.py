"""Clients of proxies: requests to the consoles of proxies, and validation of their responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.console import ConsoleWorld
from twisted.internet.defer import Deferred, fail, succeed

from bmqtwist.console import consoles as module
from bmqtwist.console.access import Caller, Refusal
from bmqtwist.console.consoles import RETRY_S
from bmqtwist.view import node_facts

URI = "bmq://d/q"


def proxy(name: str, host: str = "h", url: str | None = None) -> dict[str, Any]:
    return {"ident": f"{name}@{host}:1", "name": name, "url": f"http://{host}:1" if url is None else url}


class FakeConsoles:
    """Other consoles by URL: answers and received requests."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.asked = answers, list[tuple[str, str, str, Caller | None]]()

    def request(self, node: str, url: str, method: str, path: str, body: bytes = b"", caller: Caller | None = None,
                seconds: float = 1.0) -> Deferred[Any]:
        self.asked.append((node, url, path, caller))
        answer = self.answers[url]
        if isinstance(answer, Exception):
            return fail(answer)
        return succeed((200, answer) if isinstance(answer, dict) else answer)


def ask_proxies_of(tmp_path: Path, answers: dict[str, Any], known: list[dict[str, Any]]) -> tuple[Any, FakeConsoles]:
    """Return the result of requests of node n1 to the proxies in `known`."""
    console, consoles = ConsoleWorld(tmp_path), FakeConsoles(answers)
    console.service.collector.consoles._client = consoles  # type: ignore[assignment]
    found: list[Any] = []
    console.service.collector.consoles.request_proxies("/x", [{"proxies": known}]).addBoth(found.append)
    return found[0], consoles


def test_each_proxy_and_the_proxies_downstream_of_it_are_asked_once(tmp_path: Path) -> None:
    first, second = proxy("p1", "a"), proxy("p2", "b")
    (found, missing), consoles = ask_proxies_of(tmp_path, {
        "http://a:1": {"x": 1, "proxies": [second, first]}, "http://b:1": {"x": 2, "proxies": [first]}}, [first, first])
    assert [(each["name"], answer["x"]) for each, answer in found] == [("p1", 1), ("p2", 2)] and missing == {}
    assert [each[:3] for each in consoles.asked] == [("p1", "http://a:1", "/x"), ("p2", "http://b:1", "/x")]


def test_proxies_with_the_same_name_are_all_asked(tmp_path: Path) -> None:
    answers = {"http://a:1": {"x": 1}, "http://b:1": {"x": 2}}
    (found, _), _ = ask_proxies_of(tmp_path, answers, [proxy("p", "a"), proxy("p", "b")])
    assert [answer["x"] for _, answer in found] == [1, 2]


def test_the_response_has_the_reason_for_each_missing_proxy(tmp_path: Path) -> None:
    (found, missing), consoles = ask_proxies_of(tmp_path, {
        "http://a:1": Refusal(502, "no answer in time"), "http://b:1": (403, {"error": "no"}), "http://c:1": (200, [1])},
        [proxy("p1", "a"), proxy("p2", "b"), proxy("p3", url=""), proxy("p4", "c"), proxy("p5", url="javascript:x")])
    assert found == [] and missing == {"p1": "no answer in time", "p2": "Proxy p2: no", "p3": module.NO_CONSOLE,
                                       "p4": "Proxy p4: 200", "p5": module.NO_CONSOLE}
    assert len(consoles.asked) == 3


def test_a_proxy_that_did_not_answer_is_not_asked_again_for_a_time(tmp_path: Path) -> None:
    """Pages must not wait a second at each request for an unreachable console."""
    console, consoles = ConsoleWorld(tmp_path), FakeConsoles({"http://h:1": Refusal(502, "no answer in time")})
    collector = console.service.collector
    collector.consoles._client = consoles  # type: ignore[assignment]
    found: list[Any] = []

    def ask() -> Any:
        collector.consoles.request_proxies("/x", [{"proxies": [proxy("p1")]}]).addBoth(found.append)
        return found[-1]

    assert ask() == ask() == ([], {"p1": "no answer in time"}) and len(consoles.asked) == 1
    console.advance(RETRY_S)
    consoles.answers["http://h:1"] = {"x": 1}
    assert ask() == ([(proxy("p1"), {"x": 1})], {}) and len(consoles.asked) == 2


def test_no_token_is_made_for_a_proxy_with_the_name_of_a_node(tmp_path: Path) -> None:
    """Its token would be valid at that node."""
    (found, missing), consoles = ask_proxies_of(tmp_path, {}, [proxy("n1")])
    assert consoles.asked == [] and missing == {"n1": module.NAMED_AS_A_NODE}


@pytest.mark.parametrize("rows", [None, 1, [1, None, {}, {"client": 1, "id": "a"}, {"client": "a"}],
                                  {"client": "a", "id": "b"}])
def test_a_malformed_response_of_a_proxy_has_no_clients(rows: Any) -> None:
    assert module.valid_clients({"clients": rows}, proxy("p")) == []
    known = module.valid_queue({"consumers": rows, "producers": rows, "rates": rows, "proxies": rows}, proxy("p"))
    assert known["consumers"] == known["producers"] == known["proxies"] == [] and known["rates"] in ({}, rows)


def test_the_response_of_a_proxy_is_restricted_to_its_own_clients() -> None:
    row = {"client": "app:1", "ident": "", "node": "n1", "id": "n1:1", "unconfirmed": 2,
           "subscriptions": [None, {"expression": "x"}]}
    known = module.valid_queue({"leads": True, "node": "n1", "apps": [1], "consumers": [row, {**row, "unconfirmed": "x"}]},
                             proxy("p"))
    assert not known["leads"] and known["apps"] == [] and known["node"] == "p" and known["ident"] == "p@h:1"
    assert [(each["node"], each["proxy"], each["subscriptions"]) for each in known["consumers"]] == [
        ("p", True, [{"expression": "x"}])]
    [client] = module.valid_clients({"clients": [row]}, proxy("p"))
    assert (client["node"], client["proxy"], client["id"]) == ("p", True, "p@h:1 n1:1")


def test_the_list_of_clients_names_the_missing_proxies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = ConsoleWorld(tmp_path)
    console.world.domain("d")
    console.world.producer(URI)
    part = node_facts.clients_part
    monkeypatch.setattr(node_facts, "clients_part", lambda broker: {**part(broker), "proxies": [proxy("p3", url="")]})
    found = console.ask("/api/v1/clients").json
    assert found["missing"] == {"p3": module.NO_CONSOLE} and [row["proxy"] for row in found["clients"]] == [False]
