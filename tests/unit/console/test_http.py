"""HTTP endpoints of a broker in memory, with real requests and parsers."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any

import pytest
from kit.statistics import exposition
from treq.testing import StubTreq
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransportWithDisconnection
from twisted.python.failure import Failure

from bmqtwist.config.broker import StatPlugin
from bmqtwist.console.http import CONNECTION_SECONDS_MAX, CONNECTIONS_MAX, HealthEndpoints, make_site
from bmqtwist.steps import at_once
from bmqtwist.view.metrics import exposition_in_steps, sample_text
from bmqtwist.view.snapshot import (
    AppState,
    BrokerState,
    ClusterSnapshot,
    DomainState,
    ElectorState,
    FileState,
    MeterSnapshot,
    PartitionSnapshot,
    QueueState,
    SessionState,
    StorageState,
)
from bmqtwist.view.statistics import Statistics

METER = MeterSnapshot("m", 21, 1000, 63, 1048576)
QUEUE = QueueState("bmq://t.fan.~lab/q", "q", "t.fan.~lab", "AABBCCDDEE", "fanout", 1, 21, 63, METER,
                   apps=(AppState("foo", "01", "alive", 0, 0),
                         AppState("baz", "02", "alive", 21, 63)),
                   readers=3, writers=1, message_limit=1000, byte_limit=1048576, history=11)
STATE = BrokerState(
    "inst", "1", "host", 10.0, 1000.0, 900.0,
    domains=(DomainState("t.fan.~lab", "c1", "fanout", "{}", METER, (QUEUE,),
                         (StorageState("bmq://t.fan.~lab/q", "AABBCCDDEE", 1, 21, 63),
                          StorageState("bmq://t.fan.~lab/idle", "BBBBCCDDEE", 1, 0, 0))),),
    sessions=(SessionState('evil"\\\n:1', "127.0.0.1:5", "client", counters={"put_msgs": 32},
                           channel={"in_bytes": 7}),),
    clusters=(ClusterSnapshot("c1", "n1", True, (), ElectorState("LEADER", "n1", 1, 2, "ACTIVE"),
                           (PartitionSnapshot(1, "n1", 1, 77, data=FileState(50, 100, 25)),)),))


class FakeBroker:
    """Broker service with fixed answers."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def state(self) -> BrokerState:
        if self.reason == "broken":
            raise RuntimeError("secret detail")
        return STATE

    def metrics(self, prefix: str, instance: str) -> Generator[None, None, str]:
        return exposition_in_steps(self.state(), Statistics(0.0), prefix, instance)

    def run_in_steps(self, work: Generator[None, None, str]) -> Deferred[str]:
        return execute(at_once, work)

    def unready_reason(self) -> str:
        return self.reason


def request(path: str, source: FakeBroker | None = None, method: str = "GET",
            log: object = None) -> tuple[int, str, dict[str, str]]:
    """Return status, body and headers of one request."""
    client = StubTreq(HealthEndpoints(source or FakeBroker(), log=log).resource())  # type: ignore[arg-type]
    response = []
    client.request(method, f"http://console.test{path}").addCallback(response.append)
    client.flush()
    body = []
    client.text_content(response[0]).addCallback(body.append)
    headers = {name.decode().lower(): values[0].decode() for name, values in response[0].headers.getAllRawHeaders()}
    return response[0].code, body[0], headers


def samples(text: str) -> dict[str, float]:
    """Return the values by sample name with labels."""
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def test_livez_answers_while_the_event_loop_runs() -> None:
    """A supervisor restarts a process that does not answer, ready or not."""
    assert request("/livez", FakeBroker("recovering"))[:2] == (200, "ok\n")


def test_readyz_has_the_reason_why_clients_are_not_served() -> None:
    """Load balancers use the status, operators the reason."""
    assert request("/readyz")[:2] == (200, "ok\n")
    assert request("/readyz", FakeBroker("recovering"))[:2] == (503, "recovering\n")


def test_status_is_short_json() -> None:
    """Operators read it first."""
    code, body, headers = request("/")
    assert code == 200 and headers["content-type"] == "application/json"
    shown = json.loads(body)
    assert shown["ready"] is True and shown["queues"] == 1 and shown["messages"] == 21
    assert shown["uptimeSeconds"] == 100.0
    assert shown["clusters"] == [{"name": "c1", "healthy": True, "self": "n1", "leader": "n1", "partitions": 1}]


def test_metrics_has_the_content_type_of_prometheus() -> None:
    """Prometheus refuses other types."""
    code, body, headers = request("/metrics")
    assert code == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    assert headers["cache-control"] == "no-store"
    assert any(line.startswith('queue_msgs_current{Cluster="c1",Domain="t.fan",Tier="lab",') and line.endswith(" 21")
               for line in body.splitlines())


@pytest.mark.parametrize(("path", "method", "code"), [("/nope", "GET", 404), ("/metrics/x", "GET", 404),
                                                      ("/", "POST", 405), ("/metrics", "DELETE", 405)])
def test_unknown_paths_and_methods_are_refused_with_a_short_text(path: str, method: str, code: int) -> None:
    """The endpoints only read."""
    found, body, _ = request(path, method=method)
    assert found == code and "<" not in body and len(body) < 40


def test_an_internal_error_is_logged_with_details_and_answered_without() -> None:
    """The traceback is written to the log, not to the answer."""
    failures: list[Failure] = []
    code, body, _ = request("/metrics", FakeBroker("broken"), log=failures.append)
    assert (code, body) == (500, "Internal Server Error\n")
    assert failures[0].getErrorMessage() == "secret detail"


def test_metrics_follow_the_prometheus_text_format() -> None:
    """Samples of one metric follow its type line, and quotes in labels are escaped."""
    text = exposition(STATE, Statistics(0.0), "my.prefix_", "other")
    seen: list[str] = []
    for line in text.splitlines():
        typed = re.fullmatch(r"# TYPE (my_prefix_[a-z_0-9]+) (counter|gauge)", line)
        if typed:
            assert typed[1] not in seen
            seen.append(typed[1])
            continue
        sample = re.fullmatch(r'([a-z_0-9]+)\{(?:[A-Za-z]+="(?:[^"\\\n]|\\["\\n])*",?)+\} -?[0-9.e+-]+', line)
        assert sample and sample[1] == seen[-1], line
    assert 'Instance="other"' in text and 'Client="evil\\"\\\\\\n:1"' in text


def test_samples_without_labels_have_no_braces_and_integers_no_decimal_point() -> None:
    """Both are the usual notation."""
    assert sample_text("a", (), 2.0) + sample_text("a", (("L", ""),), 2.5) == "a 2\na 2.5\n"


def test_a_site_shows_no_tracebacks_and_closes_idle_connections() -> None:
    """Settings of the site of a listener."""
    site = make_site(HealthEndpoints(FakeBroker()).resource())
    assert site.displayTracebacks is False and site.timeOut == 30


class SiteConnection:
    """Connection to a site in memory, with its own clock."""

    def __init__(self, site: Any) -> None:
        self.transport: Any = StringTransportWithDisconnection()
        self.transport.abortConnection = self.transport.loseConnection
        self.protocol = site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 5))
        if self.protocol is not None:
            self.transport.protocol = self.protocol
            self.protocol.makeConnection(self.transport)

    def send(self, data: bytes) -> bytes:
        self.protocol.dataReceived(data)
        return self.transport.value()


@pytest.fixture
def site_and_clock() -> tuple[Any, Clock]:
    site, clock = make_site(HealthEndpoints(FakeBroker()).resource()), Clock()
    site.reactor = clock
    return site, clock


@pytest.mark.parametrize("head", [b"Content-Length: 5000", b"Transfer-Encoding: chunked"])
def test_a_large_request_body_is_refused_before_it_arrives(site_and_clock: tuple[Any, Clock], head: bytes) -> None:
    visit = SiteConnection(site_and_clock[0])
    answer = visit.send(b"GET /livez HTTP/1.1\r\nHost: h\r\n" + head + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ") and not visit.transport.connected


def test_a_small_request_body_is_ignored(site_and_clock: tuple[Any, Clock]) -> None:
    visit = SiteConnection(site_and_clock[0])
    answer = visit.send(b"GET /livez HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc")
    assert answer.startswith(b"HTTP/1.1 200 ") and visit.transport.connected


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 3000,
                                  b"GET / HTTP/1.1\r\nA: " + b"b" * 20000 + b"\r\n", b"GET /" + b"x" * 20000])
def test_headers_above_the_size_limit_close_the_connection(site_and_clock: tuple[Any, Clock], data: bytes) -> None:
    visit = SiteConnection(site_and_clock[0])
    for line in data.splitlines(keepends=True):
        if visit.transport.connected:
            visit.send(line)
    assert not visit.transport.connected


def test_connections_are_limited_in_number_and_lifetime(site_and_clock: tuple[Any, Clock]) -> None:
    site, clock = site_and_clock
    visits = [SiteConnection(site) for _ in range(CONNECTIONS_MAX)]
    assert SiteConnection(site).protocol is None
    visits[0].transport.loseConnection()
    assert SiteConnection(site).protocol is not None and SiteConnection(site).protocol is None
    visits[1].send(b"GET / HTTP/1.1\r\n")
    for _ in range(CONNECTION_SECONDS_MAX // 10 - 1):  # a header line every 10 s prevents the idle timeout
        clock.advance(10)
        visits[1].send(b"A: b\r\n")
    assert visits[1].transport.connected
    clock.advance(11)
    assert not visits[1].transport.connected and SiteConnection(site).protocol is not None


def test_concurrent_scrapes_share_one_text() -> None:
    """The text for very many queues takes several turns and memory, so it is created once for all requests."""
    source, made = FakeBroker(), list[Deferred[str]]()
    source.run_in_steps = lambda work: made.append(Deferred()) or made[-1]  # type: ignore[method-assign, func-returns-value]
    client = StubTreq(HealthEndpoints(source).resource())  # type: ignore[arg-type]
    texts: list[str] = []
    for _ in range(3):
        client.request("GET", "http://console.test/metrics").addCallback(client.text_content).addCallback(texts.append)
    client.flush()
    assert len(made) == 1 and not texts
    made[0].callback("a 1\n")
    client.flush()
    assert texts == ["a 1\n"] * 3
    client.request("GET", "http://console.test/metrics")
    client.flush()
    assert len(made) == 2


def test_the_prefix_of_a_metrics_plugin_precedes_every_name() -> None:
    plugin = StatPlugin(namespace_prefix="p_")
    client = StubTreq(HealthEndpoints(FakeBroker(), plugin=plugin).resource())  # type: ignore[arg-type]
    texts: list[str] = []
    client.request("GET", "http://console.test/metrics").addCallback(client.text_content).addCallback(texts.append)
    client.flush()
    assert texts and all(line.removeprefix("# TYPE ").startswith("p_") for line in texts[0].splitlines())
