"""The console over HTTP, in memory: a real request through a real parser, and no port."""

from __future__ import annotations

import json
import re

import pytest
from treq.testing import StubTreq
from twisted.python.failure import Failure

from bmqtwist.console.http import Console, Labels, make_site
from bmqtwist.console.prometheus import exposition
from bmqtwist.monitor.prometheus import Family, families
from bmqtwist.monitor.snapshot import (
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
from bmqtwist.monitor.statistics import Statistics

METER = MeterSnapshot("m", 21, 1000, 63, 1048576)
QUEUE = QueueState("bmq://t.fan.~lab/q", "q", "t.fan.~lab", "AABBCCDDEE", "fanout", 1, 21, 63, METER,
                   apps=(AppState("foo", "01", "alive", 0, 0),
                         AppState("baz", "02", "alive", 21, 63)),
                   cluster="c1", readers=3, writers=1, message_limit=1000, byte_limit=1048576, history=11)
STATE = BrokerState(
    "inst", "1", "host", 10.0, 1000.0, 900.0,
    domains=(DomainState("t.fan.~lab", "c1", "fanout", "{}", METER, (QUEUE,),
                         (StorageState("bmq://t.fan.~lab/q", "AABBCCDDEE", 1, 21, 63),
                          StorageState("bmq://t.fan.~lab/idle", "BBBBCCDDEE", 1, 0, 0))),),
    sessions=(SessionState('evil"\\\n:1', "127.0.0.1:5", "client", port=30114, counters={"put_msgs": 32},
                           channel={"in_bytes": 7}),),
    clusters=(ClusterSnapshot("c1", "n1", True, (), ElectorState("LEADER", "n1", 1, 2, "ACTIVE"),
                           (PartitionSnapshot(1, "n1", 1, 77, data=FileState(50, 100, 25)),)),))


class Stub:
    """A broker to look at."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def state(self) -> BrokerState:
        if self.reason == "broken":
            raise RuntimeError("secret detail")
        return STATE

    def families(self) -> list[Family]:
        return families(self.state(), Statistics(0.0))

    def unready(self) -> str:
        return self.reason


def get(path: str, source: Stub | None = None, method: str = "GET", log: object = None
        ) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers of one request."""
    client = StubTreq(Console(source or Stub(), log=log).resource())  # type: ignore[arg-type]
    response = []
    client.request(method, f"http://console.test{path}").addCallback(response.append)
    client.flush()
    body = []
    client.text_content(response[0]).addCallback(body.append)
    headers = {name.decode().lower(): values[0].decode() for name, values in response[0].headers.getAllRawHeaders()}
    return response[0].code, body[0], headers


def samples(text: str) -> dict[str, float]:
    """Sample with its labels -> value."""
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def test_livez_answers_while_the_loop_turns() -> None:
    """A supervisor restarts what does not answer, ready or not."""
    assert get("/livez", Stub("recovering"))[:2] == (200, "ok\n")


def test_readyz_tells_why_clients_are_not_served() -> None:
    """Load balancers look at the code, people at the reason."""
    assert get("/readyz")[:2] == (200, "ok\n")
    assert get("/readyz", Stub("recovering"))[:2] == (503, "recovering\n")


def test_status_is_short_json() -> None:
    """What a person asks first."""
    code, body, headers = get("/")
    assert code == 200 and headers["content-type"] == "application/json"
    shown = json.loads(body)
    assert shown["ready"] is True and shown["queues"] == 1 and shown["messages"] == 21
    assert shown["uptimeSeconds"] == 100.0
    assert shown["clusters"] == [{"name": "c1", "healthy": True, "self": "n1", "leader": "n1", "partitions": 1}]


def test_metrics_has_the_content_type_scrapers_want() -> None:
    """Prometheus refuses anything else."""
    code, body, headers = get("/metrics")
    assert code == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    assert headers["cache-control"] == "no-store"
    assert any(line.startswith('queue_msgs_current{Cluster="c1",Domain="t.fan",Tier="lab",') and line.endswith(" 21")
               for line in body.splitlines())


@pytest.mark.parametrize(("path", "method", "code"), [("/nope", "GET", 404), ("/metrics/x", "GET", 404),
                                                      ("/", "POST", 405), ("/metrics", "DELETE", 405)])
def test_what_is_not_offered_is_refused_in_a_word(path: str, method: str, code: int) -> None:
    """Nothing here changes anything."""
    found, body, _ = get(path, method=method)
    assert found == code and "<" not in body and len(body) < 40


def test_our_own_mistake_is_logged_in_full_and_told_in_short() -> None:
    """A traceback is for the log, not for whoever asks."""
    failures: list[Failure] = []
    code, body, _ = get("/metrics", Stub("broken"), log=failures.append)
    assert (code, body) == (500, "Internal Server Error\n")
    assert failures[0].getErrorMessage() == "secret detail"


def test_the_text_follows_the_format() -> None:
    """Samples of one metric stand together below its type, and labels cannot break out of their quotes."""
    text = exposition(families(STATE, Statistics(0.0)), "my.prefix_", "other")
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


def test_a_sample_without_labels_has_no_braces_and_whole_numbers_no_point() -> None:
    """Both are as people write them."""
    assert exposition([Family("a", "gauge", [((), 2.0), ((("L", ""),), 2.5)])]) == "# TYPE a gauge\na 2\na 2.5\n"
    assert exposition([]) == ""


def test_a_site_shows_no_tracebacks_and_lets_idle_connections_go() -> None:
    """What stands behind a port."""
    site = make_site(Stub(), Labels("p"))
    assert site.displayTracebacks is False and site.timeOut == 30
