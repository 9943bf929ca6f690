"""HTTP endpoints of a broker in memory, with real requests and parsers."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Generator
from typing import Any

import pytest
from kit.site import SiteConnection, SiteWorld, get, parse
from kit.statistics import exposition
from msgspec.structs import replace
from twisted.internet.defer import Deferred, execute
from twisted.python.failure import Failure

from bmqtwist.config.broker import StatPlugin
from bmqtwist.console.http import HealthEndpoints
from bmqtwist.console.scrapes import PART_BYTES, CompressedText
from bmqtwist.limits import METRICS_RESPONSES_MAX, METRICS_RESPONSES_PER_ADDRESS_MAX
from bmqtwist.steps import at_once
from bmqtwist.view.metrics import WriteText, exposition_in_steps, sample_text
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
        self.reason, self.now, self.made = reason, 0.0, 0

    def present_time(self) -> tuple[float, float]:
        return self.now, self.now

    def short_status(self) -> dict[str, object]:
        return {"ready": not self.reason, "at": self.now}

    def metrics(self, write: WriteText, prefix: str, instance: str) -> Generator[None, None, None]:
        self.made += 1
        if self.reason == "broken":
            raise RuntimeError("secret detail")
        yield from exposition_in_steps(STATE, Statistics(0.0), write, prefix, instance)

    def run_in_steps(self, work: Generator[None, None, Any]) -> Deferred[Any]:
        return execute(at_once, work)

    def unready_reason(self) -> str:
        return self.reason


def request(path: str, source: FakeBroker | None = None, method: str = "GET", log: object = None,
            plugin: StatPlugin | None = None) -> tuple[int, str, dict[str, str]]:
    """Return status, body and headers of one request."""
    world = SiteWorld(HealthEndpoints(source or FakeBroker(), log, plugin).resource())  # type: ignore[arg-type]
    status, headers, body = parse(SiteConnection(world).ask(get(path).replace(b"GET", method.encode())), method)
    return status, body.decode(), headers


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


def test_the_short_status_is_created_once_in_a_second() -> None:
    """Anonymous requests cost the same, however many domains the broker has."""
    source = FakeBroker()
    connection = SiteConnection(SiteWorld(HealthEndpoints(source).resource()))  # type: ignore[arg-type]

    def ask() -> Any:
        return json.loads(parse(connection.ask(get("/")))[2])

    assert ask() == {"ready": True, "at": 0.0}
    source.reason, source.now = "stopping", 0.5
    assert ask() == {"ready": True, "at": 0.0}
    source.now = 1.0
    assert ask() == {"ready": False, "at": 1.0}


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


def test_the_prefix_of_a_metrics_plugin_precedes_every_name() -> None:
    text = request("/metrics", plugin=StatPlugin(namespace_prefix="p_"))[1]
    assert text and all(line.removeprefix("# TYPE ").startswith("p_") for line in text.splitlines())


def test_above_the_limit_of_queues_only_totals_remain() -> None:
    """The text would have about 40 lines for each queue."""
    parts: list[str] = []
    state = replace(STATE, traffic={"put_msgs": 7}, domains=(replace(STATE.domains[0], queues=(QUEUE, QUEUE)),))
    at_once(exposition_in_steps(state, Statistics(0.0), parts.append, queues_max=1))
    found = samples("".join(parts))
    assert [value for name, value in found.items() if name.startswith("brkr_summary_queues_omitted")] == [2]
    assert [value for name, value in found.items() if name.startswith("brkr_summary_put_msgs")] == [7]
    assert [value for name, value in found.items() if name.startswith("domain_msgs_current")] == [21]
    assert not any('Queue="q"' in name for name in found)
    assert any('Queue="q"' in name for name in samples(exposition(state, Statistics(0.0))))


def test_a_stored_queue_that_no_client_has_opened_has_the_metrics_of_its_contents() -> None:
    """After a restart an alert about a growing queue must not wait for its first client."""
    stored = tuple(StorageState(f"bmq://t.fan.~lab/{name}", "AABBCCDDEE", 1, 5, 70) for name in ("q", "idle"))
    cluster = STATE.clusters[0]
    cluster = replace(cluster, partitions=(replace(cluster.partitions[0], storages=stored),
                                           PartitionSnapshot(2, "n2", 1, 1, storages=(
                                               StorageState("bmq://other/r", "BBBBCCDDEE", 2, 3, 9),))))
    state = replace(STATE, clusters=(cluster,))
    found = samples(exposition(state, Statistics(0.0)))
    idle = {name.partition("{")[0]: value for name, value in found.items() if 'Queue="idle"' in name}
    assert idle == {"queue_msgs_current": 5, "queue_bytes_current": 70, "queue_content_msgs_max": 5,
                    "queue_content_bytes_max": 70}
    assert [value for name, value in found.items() if name.startswith("queue_msgs_current{") and 'Queue="q"' in name
            and "AppId" not in name] == [21], "an open queue has one series"
    label, = (name for name in found if 'Queue="r"' in name and name.startswith("queue_msgs_current"))
    assert 'Domain="other"' in label and 'Role="REPLICA"' in label and 'Cluster="c1"' in label
    parts: list[str] = []
    at_once(exposition_in_steps(state, Statistics(0.0), parts.append, queues_max=2))
    limited = samples("".join(parts))
    assert not any('Queue="idle"' in name for name in limited) and any('Queue="q"' in name for name in limited)
    assert [value for name, value in limited.items() if name.startswith("brkr_summary_queues_omitted")] == [2]


# -- responses of /metrics --------------------------------------------------------------------------------------------


class Scraped:
    """The endpoints at a site; the job of the text runs when a test says so."""

    def __init__(self) -> None:
        self.source, self.jobs = FakeBroker(), list[tuple[Deferred[Any], Any]]()
        self.source.run_in_steps = self._run  # type: ignore[method-assign]
        self.world = SiteWorld(HealthEndpoints(self.source).resource())  # type: ignore[arg-type]

    def _run(self, work: Any) -> Deferred[Any]:
        self.jobs.append((Deferred(), work))
        return self.jobs[-1][0]

    def make(self) -> None:
        """Run the pending jobs."""
        while self.jobs:
            done, work = self.jobs.pop()
            done.callback(at_once(work))

    def connect(self, address: str = "10.0.0.1") -> SiteConnection:
        return SiteConnection(self.world, address)


def test_concurrent_scrapes_share_one_text_for_a_second() -> None:
    """The text for very many queues takes several turns and memory, so it is created once for all requests."""
    scraped = Scraped()
    connections = [scraped.connect() for _ in range(3)]
    assert [each.ask(get("/metrics")) for each in connections] == [b""] * 3 and len(scraped.jobs) == 1
    scraped.make()
    texts = [parse(each.ask(b""))[2] for each in connections]
    assert texts[0] and texts == texts[:1] * 3
    scraped.source.now = 0.9
    assert parse(scraped.connect().ask(get("/metrics")))[2] == texts[0] and not scraped.jobs and scraped.source.made == 1
    scraped.source.now = 1.0
    scraped.connect().ask(get("/metrics"))
    assert len(scraped.jobs) == 1


def test_clients_that_accept_gzip_receive_it() -> None:
    """Prometheus does."""
    scraped = Scraped()
    plain, compressed = scraped.connect(), scraped.connect()
    plain.ask(get("/metrics", "Accept-Encoding: identity, gzip;q=0"))
    compressed.ask(get("/metrics", "Accept-Encoding: deflate, gzip"))
    scraped.make()
    _, headers, text = parse(plain.ask(b""))
    _, compressed_headers, data = parse(compressed.ask(b""))
    assert gzip.decompress(data) == text and len(data) < len(text) / 2
    assert "content-encoding" not in headers and compressed_headers["content-encoding"] == "gzip"
    assert headers["vary"] == "Accept-Encoding" and headers["content-type"] == compressed_headers["content-type"]


def test_a_text_is_decompressed_while_its_client_reads() -> None:
    text = CompressedText()
    for number in range(20_000):
        text.write(f"line {number} of a long text\n")
    text.close()
    parts = list(text.plain())
    assert max(map(len, parts)) <= PART_BYTES and max(map(len, text.compressed())) <= PART_BYTES
    assert b"".join(parts).decode() == "".join(f"line {number} of a long text\n" for number in range(20_000))
    assert gzip.decompress(b"".join(text.compressed())) == b"".join(parts)


def test_unread_responses_are_limited_per_address_and_in_total() -> None:
    """Each is 503 beyond, until one ends."""
    scraped = Scraped()
    unread = [scraped.connect(f"10.0.0.{number % (METRICS_RESPONSES_MAX // METRICS_RESPONSES_PER_ADDRESS_MAX)}")
              for number in range(METRICS_RESPONSES_MAX)]
    for each in unread[:-1]:
        assert each.ask(get("/metrics")) == b""
    assert parse(scraped.connect("10.0.0.0").ask(get("/metrics")))[0] == 503
    other = scraped.connect("10.0.1.1")
    assert other.ask(get("/metrics")) == b"" and parse(unread[-1].ask(get("/metrics")))[0] == 503
    other.transport.loseConnection()
    assert unread[-1].ask(get("/metrics")) == b""
    scraped.make()
    assert {parse(each.ask(b""))[0] for each in unread} == {200}
    assert parse(scraped.connect("10.0.0.0").ask(get("/metrics")))[0] == 200


def test_an_unread_response_has_one_part_in_memory() -> None:
    scraped = Scraped()
    connection = scraped.connect()
    connection.ask(get("/metrics"))
    connection.protocol.pauseProducing()  # by the transport: its buffer is full
    scraped.make()
    assert len(connection.ask(b"")) < 1000
    connection.protocol.resumeProducing()
    assert connection.ask(b"")
