"""Consoles of other nodes: URLs, waiting, validation of answers; rolling restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from bmqtwist.config.broker import Http
from bmqtwist.console.access import Caller, Refusal, Role
from bmqtwist.console.consoles import ANSWER_BYTES_MAX, NO_KEY, RETRY_S, PeerClient, Peers, TooLong, _collect
from bmqtwist.console.stops import POLL_S, SETTLE_POLLS, STARTED_POLLS, RollingRestart
from bmqtwist.peers.welcome import (
    CONSOLE_EXTENSION,
    Identity,
    announced_name,
    announced_url,
    console_url,
    member_identity,
    proxy_identity,
)
from bmqtwist.report import ListReport
from bmqtwist.testing.config import member_configuration

N2 = {"n2": "http://n2:1"}


class FakeClient:
    """Client whose requests the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Deferred[Any]]] = []
        self.at_once: Any = None

    def request(self, node: str, url: str, method: str, path: str, *rest: Any) -> Deferred[Any]:
        if self.at_once is not None:
            return succeed(self.at_once) if not isinstance(self.at_once, Exception) else fail(self.at_once)
        self.asked.append((node, Deferred()))
        return self.asked[-1][1]


def peers() -> tuple[Peers, FakeClient]:
    client = FakeClient()
    return Peers(client), client  # type: ignore[arg-type]


def test_a_node_is_waited_for_until_it_answers() -> None:
    book, client = peers()
    looked = book.poll(N2, 0.0)
    assert not looked.called and book.parts(N2) == ({}, {"n2": ""})
    again = book.poll(N2, 0.1)
    assert len(client.asked) == 1  # one request at a time
    client.asked[0][1].callback((200, {"name": "n2", "x": 1}))
    assert looked.called and again.called and book.parts(N2) == ({"n2": {"name": "n2", "x": 1}}, {})
    book.poll(N2, 0.5)
    assert len(client.asked) == 2


def test_a_node_that_did_not_answer_is_asked_again_and_not_waited_for() -> None:
    """Pages must not wait a second at each request for a lost node."""
    book, client = peers()
    looked = book.poll(N2, 0.0)
    client.asked[0][1].errback(Refusal(502, "no answer in time"))
    assert looked.called and book.parts(N2) == ({}, {"n2": "no answer in time"})
    assert book.poll(N2, 0.5).called and len(client.asked) == 1
    assert book.poll(N2, RETRY_S).called and len(client.asked) == 2
    client.asked[1][1].callback((200, {"name": "n2"}))
    assert book.parts(N2)[0] and not book.poll(N2, RETRY_S + 0.5).called


def test_a_node_that_has_moved_is_asked_at_once() -> None:
    book, client = peers()
    book.poll(N2, 0.0)
    client.asked[0][1].errback(Refusal(502, "no"))
    book.poll({"n2": "http://elsewhere:1"}, 0.1)
    assert len(client.asked) == 2


@pytest.mark.parametrize("answer", [(200, {"name": "n3"}), (403, {"error": "no"}), (500, {}), (200, {})])
def test_an_answer_of_somebody_else_or_a_refusal_does_not_count(answer: Any) -> None:
    book, client = peers()
    book.poll(N2, 0.0)
    client.asked[0][1].callback(answer)
    parts, missing = book.parts(N2)
    assert not parts and missing["n2"]


def test_an_answer_that_comes_at_once_is_not_waited_for_for_ever() -> None:
    book, client = peers()
    client.at_once = Refusal(502, NO_KEY)
    assert book.poll(N2, 0.0).called and book.parts(N2)[1] == {"n2": NO_KEY}
    client.at_once = 200, {"name": "n2"}
    assert book.poll(N2, RETRY_S).called and book.parts(N2)[0]


def test_without_a_key_nobody_is_asked() -> None:
    found: list[Any] = []
    client = PeerClient(Clock(), "n1", None, lambda: 0.0)
    client.request("n2", "http://n2:1", "GET", "/").addErrback(found.append)
    assert found[0].value.reason == NO_KEY


def test_an_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def collect(response: Any, more: Any) -> Deferred[None]:
        def feed(ignored: None) -> None:
            for _ in range(3):
                more(b"x" * (ANSWER_BYTES_MAX // 2))
        return succeed(None).addCallback(feed)

    monkeypatch.setattr("bmqtwist.console.consoles.treq.collect", collect)
    found: list[Any] = []
    _collect(None).addErrback(found.append)
    assert found[0].type is TooLong


@pytest.mark.parametrize("http, host, url", [
    (Http(port=0), "h", ""), (Http(port=0, url="http://x"), "h", ""), (Http(port=8), "h", "http://127.0.0.1:8"),
    (Http(address="0.0.0.0", port=8), "node2.example", "http://node2.example:8"), (Http(address="::", port=8), "", "http://127.0.0.1:8"),
    (Http(address="fe80::1", port=8), "h", "http://[fe80::1]:8"), (Http(address="10.0.0.1", port=8, prefix="/b"), "h", "http://10.0.0.1:8/b"),
    (Http(address="0.0.0.0", port=8, url="https://ops/b"), "h", "https://ops/b")])
def test_where_a_console_is_found(http: Http, host: str, url: str) -> None:
    assert console_url(http, host) == url


def test_a_node_tells_the_others_where_its_console_is() -> None:
    configuration = member_configuration(2, 3, 30114, app={"bmqtwist": {"http": {"port": 8080, "address": "0.0.0.0"}}})
    definition = configuration.clusters.my_clusters[0]
    identity = Identity("bmqbrkr", 1, "n2", b"123456", 0.0, 0.0)

    def told(definition: Any, app: Any = configuration.app) -> dict[str, list[str]]:
        said = member_identity(identity, app, 1, "c", 2, definition).features
        return {name: values.split(",") for name, _, values in (section.partition(":") for section in said.split(";"))}

    assert announced_url(told(definition)) == "http://n2:8080"
    assert announced_url(told(None)) == ""  # not announced to proxies
    silent = replace(configuration.app, bmqtwist=replace(configuration.app.bmqtwist, http=Http()))
    assert CONSOLE_EXTENSION not in told(definition, silent)


@pytest.mark.parametrize("http, url", [(Http(port=8080, address="0.0.0.0"), "http://p1.example:8080"), (Http(), "")])
def test_a_proxy_tells_the_nodes_its_name_and_where_its_console_is(http: Http, url: str) -> None:
    app = member_configuration(1, 1, 30114, app={"brokerInstanceName": "edge, 1"}).app
    app = replace(app, bmqtwist=replace(app.bmqtwist, http=http))
    identity = Identity("bmqbrkr", 1, "p1.example", b"123456", 0.0, 0.0)

    def told(upwards: bool) -> dict[str, list[str]]:
        said = proxy_identity(identity, app, 1, "c", upwards=upwards).features
        return {name: values.split(",") for name, _, values in (section.partition(":") for section in said.split(";"))}

    assert (announced_name(told(True)), announced_url(told(True))) == ("edge, 1", url)
    assert (announced_name(told(False)), announced_url(told(False))) == ("", "")  # to its own proxies


@pytest.mark.parametrize("values", [[], [""], ["", "zz"], ["", b"\xff".hex()], ["", b"a\nb".hex()],
                                    ["", (b"x" * 300).hex()]])
def test_what_is_no_name_is_none(values: list[str]) -> None:
    assert announced_name({CONSOLE_EXTENSION: values}) == ""


@pytest.mark.parametrize("values", [[], ["zz"], ["f"], [b"javascript:x".hex()], [b"http://\xff".hex()], [b"http://a\nb".hex()],
                                    [(b"http://" + b"x" * 2000).hex()], [b"file:///etc".hex()]])
def test_what_is_no_url_is_none(values: list[str]) -> None:
    assert announced_url({CONSOLE_EXTENSION: values}) == ""


class FakeCluster:
    """Collector of three nodes that stop and start again."""

    name = "n1"

    def __init__(self) -> None:
        self.nodes = {f"n{number}": {"name": f"n{number}", "state": "up", "startedAt": 1.0} for number in (1, 2, 3)}
        self.stopped: list[tuple[str, str, str]] = []
        self.answer: Any = (200, {"ok": True})

    def document(self) -> dict[str, Any]:
        return {"nodes": [dict(node) for node in self.nodes.values()], "leader": {"node": "n1"}, "partitions": []}

    def cluster(self) -> Deferred[Any]:
        return succeed(self.document())

    def stop(self, node: str, reason: str, who: Caller) -> Any:
        self.stopped.append((node, reason, who.user))
        if self.answer[0] == 200:
            self.nodes[node]["state"] = "stopping"
        return self.answer


ADA = Caller("ada", Role.ADMIN)


@pytest.fixture
def rolling() -> tuple[RollingRestart, FakeCluster, Clock]:
    cluster, clock = FakeCluster(), Clock()
    return RollingRestart(clock, cluster, cluster.stop, ListReport()), cluster, clock


def pass_by(clock: Clock, polls: int) -> None:
    for _ in range(polls):
        clock.advance(POLL_S)


def test_nodes_are_restarted_one_after_the_other_and_the_own_one_last(rolling: Any) -> None:
    restart, cluster, clock = rolling
    assert restart.start(cluster.document(), "new kernel", ADA) == ["n2", "n3", "n1"]
    for number, name in enumerate(("n2", "n3", "n1"), 1):
        pass_by(clock, SETTLE_POLLS + 1)
        assert [each[0] for each in cluster.stopped] == ["n2", "n3", "n1"][:number] and restart.state["node"] == name
        pass_by(clock, 20)
        assert len(cluster.stopped) == number and restart.state["paused"] == f"{name} is not up"
        cluster.nodes[name].update(state="up", startedAt=5.0 + number)
    pass_by(clock, SETTLE_POLLS + 1)
    assert restart.state["done"] and restart.state["text"] == "done" and not clock.getDelayedCalls()
    assert cluster.stopped[0][1:] == ("rolling restart: new kernel", "ada")


def test_it_pauses_while_anything_is_not_well(rolling: Any) -> None:
    restart, cluster, clock = rolling
    restart.start(cluster.document(), "r", ADA)
    cluster.nodes["n3"]["state"] = "down"
    pass_by(clock, 20)
    assert not cluster.stopped and restart.state["paused"] == "n3 is not up"
    cluster.nodes["n3"]["state"] = "up"
    pass_by(clock, SETTLE_POLLS - 1)
    assert not cluster.stopped
    pass_by(clock, 1)
    assert len(cluster.stopped) == 1


def test_a_node_that_has_not_stopped_yet_is_waited_for(rolling: Any) -> None:
    """Its old process is still up and reports a healthy state."""
    restart, cluster, clock = rolling
    restart.start(cluster.document(), "r", ADA)
    pass_by(clock, SETTLE_POLLS)
    cluster.nodes["n2"]["state"] = "up"
    pass_by(clock, 20)
    assert len(cluster.stopped) == 1 and restart.state["paused"] == "n2 has not stopped yet"


def test_it_ends_when_a_node_refuses(rolling: Any) -> None:
    restart, cluster, clock = rolling
    cluster.answer = 409, {"error": "it stops already"}
    restart.start(cluster.document(), "r", ADA)
    pass_by(clock, 20)
    assert restart.state["done"] and restart.state["text"] == "given up: it stops already" and len(cluster.stopped) == 1


def test_one_rolling_restart_runs_at_a_time_and_only_in_a_healthy_cluster(rolling: Any) -> None:
    restart, cluster, clock = rolling
    cluster.nodes["n2"]["state"] = "down"
    with pytest.raises(Refusal, match="n2 is not up"):
        restart.start(cluster.document(), "r", ADA)
    cluster.nodes["n2"]["state"] = "up"
    restart.start(cluster.document(), "r", ADA)
    with pytest.raises(Refusal, match="is in progress"):
        restart.start(cluster.document(), "r", ADA)
    restart.stop()
    assert not clock.getDelayedCalls()


def test_a_node_that_is_not_started_again_is_reported(rolling: Any) -> None:
    restart, cluster, clock = rolling
    restart.start(cluster.document(), "r", ADA)
    pass_by(clock, SETTLE_POLLS)
    cluster.nodes["n2"]["state"] = "down"
    pass_by(clock, STARTED_POLLS)
    assert restart.state["paused"] == "n2 is not up"
    pass_by(clock, 10)
    assert "s ago and has not been started again" in restart.state["paused"] and len(cluster.stopped) == 1
    cluster.nodes["n2"].update(state="up", startedAt=9.0)
    pass_by(clock, SETTLE_POLLS + 1)
    assert len(cluster.stopped) == 2


def test_it_is_aborted_and_no_further_node_stops(rolling: Any) -> None:
    restart, cluster, clock = rolling
    with pytest.raises(Refusal, match="No rolling restart"):
        restart.abort("ada")
    restart.start(cluster.document(), "r", ADA)
    pass_by(clock, SETTLE_POLLS)
    restart.abort("eve")
    cluster.nodes["n2"].update(state="up", startedAt=9.0)
    pass_by(clock, 20)
    assert len(cluster.stopped) == 1 and restart.state["text"] == "aborted by eve" and restart.state["done"]
    assert restart.start(cluster.document(), "r", ADA)
