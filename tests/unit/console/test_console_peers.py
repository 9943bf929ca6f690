"""Consoles of other nodes: URLs, waiting times, validation of responses, and rolling restarts."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, execute, fail, succeed
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock, StringTransportWithDisconnection
from twisted.python.failure import Failure

from bmqtwist.config.broker import Http
from bmqtwist.console.access import Caller, NodeTokens, Refusal, UserRole
from bmqtwist.console.answers import parse_in_steps
from bmqtwist.console.consoles import NO_KEY, RETRY_S, PeerClient, Peers
from bmqtwist.console.stops import POLL_S, SETTLE_POLLS, STARTED_POLLS, RollingRestart
from bmqtwist.limits import PROXY_ANSWER_BYTES_MAX
from bmqtwist.peers.handshake import (
    CONSOLE_EXTENSION,
    Identity,
    announced_name,
    announced_url,
    console_url,
    member_identity,
    proxy_identity,
)
from bmqtwist.report import ListReport
from bmqtwist.steps import at_once
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
    return Peers(client, lambda: 50.0), client  # type: ignore[arg-type]


def test_a_poll_waits_for_the_response_of_a_node() -> None:
    book, client = peers()
    polled = book.poll(N2, 0.0)
    assert not polled.called and book.parts(N2) == ({}, {"n2": ""}, {})
    again = book.poll(N2, 0.1)
    assert len(client.asked) == 1  # one request at a time
    client.asked[0][1].callback((200, {"name": "n2", "x": 1}))
    assert polled.called and again.called and book.parts(N2) == ({"n2": {"name": "n2", "x": 1, "at": 50.0}}, {}, {})
    book.poll(N2, 0.5)
    assert len(client.asked) == 2


def test_a_poll_does_not_wait_for_a_node_that_failed_before() -> None:
    """Pages must not wait a second at each request for a lost node."""
    book, client = peers()
    polled = book.poll(N2, 0.0)
    client.asked[0][1].errback(Refusal(502, "no answer in time"))
    assert polled.called and book.parts(N2) == ({}, {"n2": "no answer in time"}, {})
    assert book.poll(N2, 0.5).called and len(client.asked) == 1
    assert book.poll(N2, RETRY_S).called and len(client.asked) == 2
    client.asked[1][1].callback((200, {"name": "n2"}))
    assert book.parts(N2)[0] and not book.poll(N2, RETRY_S + 0.5).called


def test_a_node_with_a_new_url_is_asked_at_once() -> None:
    book, client = peers()
    book.poll(N2, 0.0)
    client.asked[0][1].errback(Refusal(502, "no"))
    book.poll({"n2": "http://otherhost:1"}, 0.1)
    assert len(client.asked) == 2


@pytest.mark.parametrize("answer", [(200, {"name": "n3"}), (403, {"error": "no"}), (500, {}), (200, {})])
def test_a_refusal_or_a_response_of_another_node_is_ignored(answer: Any) -> None:
    book, client = peers()
    book.poll(N2, 0.0)
    client.asked[0][1].callback(answer)
    parts, missing, past = book.parts(N2)
    assert not parts and missing["n2"] and not past


def test_the_last_part_of_a_node_that_no_longer_answers_is_kept_with_its_time() -> None:
    book, client = peers()
    book.poll(N2, 0.0)
    client.asked[0][1].callback((200, {"name": "n2", "at": 1.0}))
    book.poll(N2, 0.5)
    client.asked[1][1].errback(Refusal(502, "no answer in time"))
    assert book.parts(N2) == ({}, {"n2": "no answer in time"}, {"n2": {"name": "n2", "at": 50.0}})


def test_an_immediate_response_completes_the_poll() -> None:
    book, client = peers()
    client.at_once = Refusal(502, NO_KEY)
    assert book.poll(N2, 0.0).called and book.parts(N2)[1] == {"n2": NO_KEY}
    client.at_once = 200, {"name": "n2"}
    assert book.poll(N2, RETRY_S).called and book.parts(N2)[0]


def test_without_a_key_other_nodes_are_not_asked() -> None:
    found: list[Any] = []
    client = PeerClient(Clock(), "n1", None, lambda: 0.0, run)
    client.request("n2", "http://n2:1", "GET", "/").addErrback(found.append)
    assert found[0].value.reason == NO_KEY


class Server:
    """Console of a proxy that answers every request of a client with the same bytes."""

    def __init__(self, body: bytes, *head: str) -> None:
        self.reactor: Any = MemoryReactorClock()
        self.client = PeerClient(self.reactor, "n1", NodeTokens(b"k" * 32), self.reactor.seconds, run)
        self._answer = "\r\n".join(("HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *head, "", "")).encode() + body
        self.sent = 0  # bytes of answers that the client has received

    def ask(self) -> Any:
        """Return the answer to a request, or the reason of the refusal."""
        found: list[Any] = []
        self.client.request_proxy("p1", "http://10.0.0.9:1", "/api/v1/node/clients").addBoth(found.append)
        factory, transport = self.reactor.tcpClients.pop()[2], StringTransportWithDisconnection()
        transport.protocol = protocol = factory.buildProtocol(None)
        transport.abortConnection = transport.loseConnection  # type: ignore[attr-defined]
        protocol.makeConnection(transport)
        for start in range(0, len(self._answer), 1 << 16):
            if not found:
                protocol.dataReceived(self._answer[start:start + (1 << 16)])
                self.sent += 1 << 16
        if transport.connected:
            transport.loseConnection()
        return found[0].value.reason if isinstance(found[0], Failure) else found[0]


def run(work: Any) -> Deferred[Any]:
    return execute(at_once, work)


def test_a_response_of_a_proxy_is_parsed() -> None:
    assert Server(b'{"clients": [{"id": "a"}]}').ask() == (200, {"clients": [{"id": "a"}]})


def test_a_response_above_the_size_limit_is_refused_before_its_end() -> None:
    server = Server(b"x" * (4 * PROXY_ANSWER_BYTES_MAX))
    assert "too long" in server.ask() and server.sent < 2 * PROXY_ANSWER_BYTES_MAX


def test_a_compressed_response_is_not_inflated() -> None:
    """15 KB inflate to 15 MB, and parsed to 400 MB."""
    bomb = gzip.compress(b'{"clients":[' + b"[]," * (5 << 20) + b"[]]}")
    tracemalloc.start()
    try:
        assert "does not answer" in Server(bomb, "Content-Encoding: gzip", "Content-Type: application/json").ask()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_the_memory_of_all_responses_of_proxies_is_limited_per_second() -> None:
    """A document of empty lists takes twenty times its size."""
    server = Server(b'{"clients":[' + b"[]," * 300_000 + b"[]]}")
    answers = [server.ask() for _ in range(4)]
    assert answers[0][0] == 200 and "too long" in answers[-1]
    server.reactor.advance(2)
    assert server.ask()[0] == 200


def test_a_long_document_is_parsed_in_steps() -> None:
    document = {"clients": [{"id": str(number), "n": number} for number in range(5000)], "missing": {}, "x": "y" * 50_000}
    steps, count = parse_in_steps(json.dumps(document).encode()), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assert end.value == document
            break
        count += 1
    assert count > 5000 // 64


@pytest.mark.parametrize("text", [b"[" * 100_000, b"{" * 40_000, b'{"a":' * 20_000, b"nonsense" * 10_000, b"",
                                  b"\xff" * 50_000, b'{"a":' + b"9" * 50_000 + b"}"])
def test_malformed_answers_are_refused(text: bytes) -> None:
    assert isinstance(Server(text).ask(), (str, tuple))


@pytest.mark.parametrize("http, host, url", [
    (Http(port=0), "h", ""), (Http(port=0, url="http://x"), "h", ""), (Http(port=8), "h", "http://127.0.0.1:8"),
    (Http(address="0.0.0.0", port=8), "node2.example", "http://node2.example:8"), (Http(address="::", port=8), "", "http://127.0.0.1:8"),
    (Http(address="fe80::1", port=8), "h", "http://[fe80::1]:8"), (Http(address="10.0.0.1", port=8, prefix="/b"), "h", "http://10.0.0.1:8/b"),
    (Http(address="0.0.0.0", port=8, url="https://ops/b"), "h", "https://ops/b")])
def test_the_console_url_is_derived_from_configuration_and_host(http: Http, host: str, url: str) -> None:
    assert console_url(http, host) == url


def test_a_node_announces_its_console_url_to_other_nodes() -> None:
    configuration = member_configuration(2, 3, 30114, app={"bmqtwist": {"http": {"port": 8080, "address": "0.0.0.0"}}})
    definition = configuration.clusters.my_clusters[0]
    identity = Identity("bmqbrkr", 1, "n2", b"123456", 0.0, 0.0)

    def announced(definition: Any, app: Any = configuration.app) -> dict[str, list[str]]:
        features = member_identity(identity, app, 1, "c", 2, definition).features
        return {name: values.split(",") for name, _, values in (section.partition(":") for section in features.split(";"))}

    assert announced_url(announced(definition)) == "http://n2:8080"
    assert announced_url(announced(None)) == ""  # not announced to proxies
    silent = replace(configuration.app, bmqtwist=replace(configuration.app.bmqtwist, http=Http()))
    assert CONSOLE_EXTENSION not in announced(definition, silent)


@pytest.mark.parametrize("http, url", [(Http(port=8080, address="0.0.0.0"), "http://p1.example:8080"), (Http(), "")])
def test_a_proxy_announces_its_name_and_console_url_upstream(http: Http, url: str) -> None:
    app = member_configuration(1, 1, 30114, app={"brokerInstanceName": "edge, 1"}).app
    app = replace(app, bmqtwist=replace(app.bmqtwist, http=http))
    identity = Identity("bmqbrkr", 1, "p1.example", b"123456", 0.0, 0.0)

    def announced(upwards: bool) -> dict[str, list[str]]:
        features = proxy_identity(identity, app, 1, "c", upwards=upwards).features
        return {name: values.split(",") for name, _, values in (section.partition(":") for section in features.split(";"))}

    assert (announced_name(announced(True)), announced_url(announced(True))) == ("edge, 1", url)
    assert (announced_name(announced(False)), announced_url(announced(False))) == ("", "")  # to its own proxies


@pytest.mark.parametrize("values", [[], [""], ["", "zz"], ["", b"\xff".hex()], ["", b"a\nb".hex()],
                                    ["", (b"x" * 300).hex()]])
def test_an_invalid_announced_name_is_ignored(values: list[str]) -> None:
    assert announced_name({CONSOLE_EXTENSION: values}) == ""


@pytest.mark.parametrize("values", [[], ["zz"], ["f"], [b"javascript:x".hex()], [b"http://\xff".hex()], [b"http://a\nb".hex()],
                                    [(b"http://" + b"x" * 2000).hex()], [b"file:///etc".hex()]])
def test_an_invalid_announced_url_is_ignored(values: list[str]) -> None:
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


ADA = Caller("ada", UserRole.ADMIN)


@pytest.fixture
def rolling() -> tuple[RollingRestart, FakeCluster, Clock]:
    cluster, clock = FakeCluster(), Clock()
    return RollingRestart(clock, cluster, cluster.stop, ListReport()), cluster, clock


def advance_polls(clock: Clock, polls: int) -> None:
    for _ in range(polls):
        clock.advance(POLL_S)


def test_a_rolling_restart_restarts_one_node_at_a_time_and_the_own_node_last(rolling: Any) -> None:
    restart, cluster, clock = rolling
    assert restart.start(cluster.document(), "new kernel", ADA) == ["n2", "n3", "n1"]
    for number, name in enumerate(("n2", "n3", "n1"), 1):
        advance_polls(clock, SETTLE_POLLS + 1)
        assert [each[0] for each in cluster.stopped] == ["n2", "n3", "n1"][:number] and restart.state["node"] == name
        advance_polls(clock, 20)
        assert len(cluster.stopped) == number and restart.state["paused"] == f"{name} is not up"
        cluster.nodes[name].update(state="up", startedAt=5.0 + number)
    advance_polls(clock, SETTLE_POLLS + 1)
    assert restart.state["done"] and restart.state["text"] == "done" and not clock.getDelayedCalls()
    assert cluster.stopped[0][1:] == ("rolling restart: new kernel", "ada")


def test_a_rolling_restart_pauses_while_the_cluster_is_not_healthy(rolling: Any) -> None:
    restart, cluster, clock = rolling
    restart.start(cluster.document(), "r", ADA)
    cluster.nodes["n3"]["state"] = "down"
    advance_polls(clock, 20)
    assert not cluster.stopped and restart.state["paused"] == "n3 is not up"
    cluster.nodes["n3"]["state"] = "up"
    advance_polls(clock, SETTLE_POLLS - 1)
    assert not cluster.stopped
    advance_polls(clock, 1)
    assert len(cluster.stopped) == 1


def test_a_rolling_restart_waits_until_a_node_has_stopped(rolling: Any) -> None:
    """Its old process is still up and reports a healthy state."""
    restart, cluster, clock = rolling
    restart.start(cluster.document(), "r", ADA)
    advance_polls(clock, SETTLE_POLLS)
    cluster.nodes["n2"]["state"] = "up"
    advance_polls(clock, 20)
    assert len(cluster.stopped) == 1 and restart.state["paused"] == "n2 has not stopped yet"


def test_a_rolling_restart_ends_when_a_node_refuses_to_stop(rolling: Any) -> None:
    restart, cluster, clock = rolling
    cluster.answer = 409, {"error": "it stops already"}
    restart.start(cluster.document(), "r", ADA)
    advance_polls(clock, 20)
    assert restart.state["done"] and restart.state["text"] == "given up: it stops already" and len(cluster.stopped) == 1


def test_a_rolling_restart_started_during_a_poll_of_an_aborted_one_polls_once(rolling: Any) -> None:
    """The answer to the poll of the aborted restart arrives after the start of the new one."""
    restart, cluster, clock = rolling
    answers: list[Deferred[Any]] = []

    def ask() -> Deferred[Any]:
        answers.append(Deferred())
        return answers[-1]
    cluster.cluster = ask
    restart.start(cluster.document(), "first", ADA)
    advance_polls(clock, 1)
    restart.abort("ada")
    restart.start(cluster.document(), "second", ADA)
    answers[0].callback(cluster.document())
    assert len(clock.getDelayedCalls()) == 1
    advance_polls(clock, 1)
    assert len(answers) == 2


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


def test_a_rolling_restart_reports_a_node_that_is_not_started_again(rolling: Any) -> None:
    restart, cluster, clock = rolling
    restart.start(cluster.document(), "r", ADA)
    advance_polls(clock, SETTLE_POLLS)
    cluster.nodes["n2"]["state"] = "down"
    advance_polls(clock, STARTED_POLLS)
    assert restart.state["paused"] == "n2 is not up"
    advance_polls(clock, 10)
    assert "s ago and has not been started again" in restart.state["paused"] and len(cluster.stopped) == 1
    cluster.nodes["n2"].update(state="up", startedAt=9.0)
    advance_polls(clock, SETTLE_POLLS + 1)
    assert len(cluster.stopped) == 2


def test_an_aborted_rolling_restart_stops_no_further_node(rolling: Any) -> None:
    restart, cluster, clock = rolling
    with pytest.raises(Refusal, match="No rolling restart"):
        restart.abort("ada")
    restart.start(cluster.document(), "r", ADA)
    advance_polls(clock, SETTLE_POLLS)
    restart.abort("eve")
    cluster.nodes["n2"].update(state="up", startedAt=9.0)
    advance_polls(clock, 20)
    assert len(cluster.stopped) == 1 and restart.state["text"] == "aborted by eve" and restart.state["done"]
    assert restart.start(cluster.document(), "r", ADA)
