"""Clients of proxies: requests to the consoles of proxies, and validation of their responses."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from kit.console import ConsoleWorld
from twisted.internet.defer import Deferred, fail, succeed

from bmqtwist.console import proxies as module
from bmqtwist.console.access import Refusal
from bmqtwist.console.proxies import ANSWER_AGE_S_MAX, RETRY_S, ProxyConsoles
from bmqtwist.limits import PROXIES_ASKED_MAX, PROXY_REQUESTS_AT_ONCE, PROXY_REQUESTS_PER_SECOND
from bmqtwist.view import node_facts

URI = "bmq://d/q"


def proxy(name: str, host: str = "h", url: str | None = None) -> dict[str, Any]:
    return {"ident": f"{name}@{host}:1", "name": name, "url": f"http://{host}:1" if url is None else url}


class FakeConsoles:
    """Other consoles by URL: answers and received requests."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.asked = answers, list[tuple[str, str, str]]()

    def request_proxy(self, name: str, url: str, path: str) -> Deferred[Any]:
        self.asked.append((name, url, path))
        answer = self.answers[url]
        if isinstance(answer, Exception):
            return fail(answer)
        return succeed((200, answer) if isinstance(answer, dict) else answer)


def ask_proxies_of(tmp_path: Path, answers: dict[str, Any], known: list[dict[str, Any]]) -> tuple[Any, FakeConsoles]:
    """Return the result of requests of node n1 to the proxies in `known`."""
    console, consoles = ConsoleWorld(tmp_path), FakeConsoles(answers)
    console.service.collector.consoles.proxies.client = consoles  # type: ignore[assignment]
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
    assert found == [] and missing == {**dict.fromkeys(("p1", "p2", "p4"), module.NO_ANSWER),
                                       **dict.fromkeys(("p3", "p5"), module.NO_CONSOLE)}
    assert len(consoles.asked) == 3


def test_a_proxy_that_did_not_answer_is_not_asked_again_for_a_time(tmp_path: Path) -> None:
    """Pages must not wait a second at each request for an unreachable console."""
    console, consoles = ConsoleWorld(tmp_path), FakeConsoles({"http://h:1": Refusal(502, "no answer in time")})
    collector = console.service.collector
    collector.consoles.proxies.client = consoles  # type: ignore[assignment]
    found: list[Any] = []

    def ask() -> Any:
        collector.consoles.request_proxies("/x", [{"proxies": [proxy("p1")]}]).addBoth(found.append)
        return found[-1]

    assert ask() == ask() == ([], {"p1": module.NO_ANSWER}) and len(consoles.asked) == 1
    console.advance(RETRY_S)
    consoles.answers["http://h:1"] = {"x": 1}
    assert ask() == ([(proxy("p1"), {"x": 1})], {}) and len(consoles.asked) == 2


def test_no_token_is_made_for_a_proxy_with_the_name_of_a_node(tmp_path: Path) -> None:
    """Its token would be valid at that node."""
    (found, missing), consoles = ask_proxies_of(tmp_path, {}, [proxy("n1")])
    assert consoles.asked == [] and missing == {"n1": module.NAMED_AS_A_NODE}


# -- announced proxies that do not exist ---------------------------------------------------------------------------------


def test_one_inspection_asks_a_limited_number_of_proxies(tmp_path: Path) -> None:
    """One proxy announces 200 proxies that announce 50 each: 10,200 requests without the limit."""
    level = [proxy(f"a{at}", f"a{at}") for at in range(200)]
    answers = {each["url"]: {"proxies": [proxy(f"b{at}", f"{each['name']}-{at}") for at in range(50)]} for each in level}
    answers.update({below["url"]: {} for each in list(answers.values()) for below in each["proxies"]})
    (found, missing), consoles = ask_proxies_of(tmp_path, {"http://r:1": {"proxies": level}, **answers}, [proxy("r", "r")])
    assert len(consoles.asked) == len(found) == PROXIES_ASKED_MAX and module.TOO_MANY in missing.values()
    assert len(missing) <= PROXIES_ASKED_MAX


def test_each_origin_is_asked_once(tmp_path: Path) -> None:
    known = [proxy("p1", "h"), {**proxy("p2", "h"), "ident": "other"}, {**proxy("p3", "h"), "ident": "third"}]
    (found, missing), consoles = ask_proxies_of(tmp_path, {"http://h:1": {}}, known)
    assert len(consoles.asked) == len(found) == 1 and missing == dict.fromkeys(("p2", "p3"), module.SAME_CONSOLE)


def test_open_requests_are_limited_and_the_inspection_of_the_most_proxies_ends(tmp_path: Path) -> None:
    console, waiting = ConsoleWorld(tmp_path), list[Deferred[Any]]()

    class SilentConsoles:
        def request_proxy(self, *given: Any) -> Deferred[Any]:
            waiting.append(Deferred())
            return waiting[-1]

    console.service.collector.consoles.proxies.client = SilentConsoles()  # type: ignore[assignment]
    done: list[Any] = []
    known = [proxy(f"p{at}", f"h{at}") for at in range(PROXIES_ASKED_MAX)]
    console.service.collector.consoles.request_proxies("/x", [{"proxies": known}]).addBoth(done.append)
    assert len(waiting) == PROXY_REQUESTS_AT_ONCE
    console.advance(module.INSPECTION_SECONDS_MAX)
    for each in list(waiting):
        each.callback((200, {}))
    assert len(waiting) == PROXY_REQUESTS_AT_ONCE, "the time of the inspection is over"
    [(found, missing)] = done
    assert len(found) == PROXY_REQUESTS_AT_ONCE and len(missing) == PROXIES_ASKED_MAX - PROXY_REQUESTS_AT_ONCE


def test_requests_that_end_at_once_do_not_nest(tmp_path: Path) -> None:
    """They would exceed the stack, and the inspection would never end."""
    depths, waiting, times = list[int](), list[Deferred[Any]](), [0.0]

    class SilentConsoles:
        def request_proxy(self, *given: Any) -> Deferred[Any]:
            waiting.append(Deferred())
            return waiting[-1]

    def now() -> float:
        depths.append(len(inspect.stack(0)))
        return times[0]

    known = [proxy(f"p{at}", f"h{at}") for at in range(PROXIES_ASKED_MAX)]
    done: list[Any] = []
    ProxyConsoles(SilentConsoles(), now).request("/x", [{"proxies": known}], "", []).addBoth(done.append)
    times[0] = module.INSPECTION_SECONDS_MAX
    waiting[0].callback((200, {}))
    assert len(depths) > PROXIES_ASKED_MAX and max(depths) - min(depths) < 50
    assert len(waiting) == PROXY_REQUESTS_AT_ONCE and not done


def test_a_watched_page_sends_a_limited_number_of_requests_per_second(tmp_path: Path) -> None:
    console, consoles = ConsoleWorld(tmp_path), FakeConsoles({f"http://h{at}:1": {} for at in range(150)})
    console.service.collector.consoles.proxies.client = consoles  # type: ignore[assignment]
    known = [proxy(f"p{at}", f"h{at}") for at in range(150)]
    for tick in range(100):
        console.service.collector.consoles.request_proxies(f"/x{tick % 3}", [{"proxies": known}])
        console.host.reactor.advance(0.1)
    assert len(consoles.asked) <= PROXIES_ASKED_MAX + 10 * PROXY_REQUESTS_PER_SECOND


def test_a_recent_answer_of_a_proxy_is_reused(tmp_path: Path) -> None:
    console, consoles = ConsoleWorld(tmp_path), FakeConsoles({"http://h:1": {"x": 1}})
    console.service.collector.consoles.proxies.client = consoles  # type: ignore[assignment]
    for _ in range(3):
        console.service.collector.consoles.request_proxies("/x", [{"proxies": [proxy("p1")]}])
    assert len(consoles.asked) == 1
    console.host.reactor.advance(ANSWER_AGE_S_MAX)
    console.service.collector.consoles.request_proxies("/x", [{"proxies": [proxy("p1")]}])
    assert len(consoles.asked) == 2


@pytest.mark.parametrize("url", [
    "http://h:1/?", "http://h:1?x=", "http://h:1/a#", "http://h:1#", "http://u:p@h:1", "http://u@h", "http://h:1/../x",
    "http://h:1/a/..", "http://h:1/%2e", "http://h:1/\\x", "http://", "http://h:1 ", "ftp://h:1", "http://h:123456",
    "http://h\r\nX: y", "http://\u4e00:1"])
def test_an_announced_url_that_could_change_the_request_is_refused(tmp_path: Path, url: str) -> None:
    (found, missing), consoles = ask_proxies_of(tmp_path, {}, [proxy("p1", url=url)])
    assert consoles.asked == [] and missing == {"p1": module.NO_CONSOLE}


def test_only_scheme_host_and_port_of_an_announced_url_are_used(tmp_path: Path) -> None:
    _, consoles = ask_proxies_of(tmp_path, {"https://h:1": {}}, [proxy("p1", url="https://h:1/admin/delete")])
    assert [each[1:3] for each in consoles.asked] == [("https://h:1", "/x")]


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


def test_values_of_the_process_of_a_proxy_are_numbers_and_a_short_version() -> None:
    answer = {"sessions": 3, "memoryBytes": True, "cpuShare": float("nan"), "loopLagMs": 0.5, "openFiles": "7",
              "openFilesMax": [1], "version": "1" * 1000, "startedAt": None, "state": "<b>", "more": 1}
    assert module.valid_process(answer) == {
        "sessions": 3, "memoryBytes": None, "cpuShare": None, "loopLagMs": 0.5, "openFiles": None, "openFilesMax": None,
        "startedAt": None, "version": "1" * module.VERSION_CHARS_MAX}
    assert module.valid_process({"version": 7})["version"] is None
