"""`bmq shell --mode auto` and `--mode syschk`, with the installed command and a broker process."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.process import ProcessWorld, free_port, running_world
from kit.shell import run, shell, until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessWorld]:
    """Yield a broker process for all tests of this module; each has its own queue."""
    with running_world(tmp_path_factory.mktemp("node")) as world:
        world.domain("small", queue_messages=2)
        yield world


def auto(node: ProcessWorld, uri: str, flags: str, *more: str) -> tuple[str, ...]:
    """Return the arguments of a run."""
    return "--mode", "auto", "-b", node.broker.uri, "-q", uri, "-f", flags, *more


def payloads(node: ProcessWorld, uri: str) -> list[bytes]:
    """Return the stored payloads, the oldest first."""
    consumer = node.consumer(uri, m=10_000)
    return [consumer.next_push().payload for _ in range(node.stored(uri))]


def test_auto_producer_posts_the_configured_messages_and_waits_for_acks(node: ProcessWorld) -> None:
    uri = "bmq://d/producer"
    code, output = run(*auto(node, uri, "write,ack", "--eventscount", "6", "--postrate", "2", "--postinterval", "10",
                             "--eventsize", "5", "--msgsize", "30"))
    assert code == 0
    assert "All posted messages have been acknowledged" in output
    assert re.search(r"Final stats: produced 30 messages \[900  B\] in 6 events \[[\d.]+ KB\] \(Protocol: [\d.]+%\)", output)
    assert node.stored(uri) == 30
    assert payloads(node, uri)[0] == b"ABCDEFGHIJKLMNOPQRSTUVWXYZABCD"


def test_auto_producer_without_acks_ends_when_all_messages_are_sent(node: ProcessWorld) -> None:
    uri = "bmq://d/unacknowledged"
    code, output = run(*auto(node, uri, "write", "--events-count", "100", "--post-interval", "0"))
    assert code == 0 and "produced 100 messages" in output and "acknowledged" not in output
    assert node.stored(uri) == 100


def test_the_number_of_events_can_be_given_as_a_duration(node: ProcessWorld) -> None:
    uri = "bmq://d/seconds"
    assert run(*auto(node, uri, "write,ack", "--eventscount", "1s", "-i", "10", "-r", "2"))[0] == 0
    assert node.stored(uri) == 200
    assert run(*auto(node, "bmq://d/seconds-flat-out", "write", "--eventscount", "1S", "-i", "0"))[0] == 0


def test_auto_messages_follow_a_pattern_and_have_properties(node: ProcessWorld) -> None:
    uri = "bmq://d/pattern"
    assert run(*auto(node, uri, "write,ack", "--eventscount", "3", "-i", "1", "--messagepattern", "msg",
                     '--messageProperties=[{"name": "p1", "value": "s1", "type": "E_STRING"}]'))[0] == 0
    code, output = run("-b", node.broker.uri, text=f'start\nopen uri="{uri}" flags="read"\nwait messages=3\nlist\n')
    assert code == 0
    assert re.findall(r"= '(\w+)', with properties: \[ p1 \(STRING\) = \"s1\" \]", output) == [
        "msg000000000", "msg000000001", "msg000000002"]


def test_auto_consumer_reports_messages_and_latencies(node: ProcessWorld, tmp_path: Path) -> None:
    """A consumer measures from post to delivery, a producer from post to ACK."""
    uri, consumer_report, producer_report = "bmq://d/latency", tmp_path / "consumer.json", tmp_path / "producer.json"
    with shell(*auto(node, uri, "read", "-c", "--latency", "epoch", "--latency-report", str(consumer_report),
                     "--shutdownGrace", "1",
                     "-u", "500:1000000")) as consumer:
        consumer.capture("Session started")
        code, output = run(*auto(node, uri, "write,ack", "--latency", "epoch", "--latency-report", str(producer_report),
                                 "--eventscount", "250", "-i", "10", "-m", "100"))
        assert code == 0
        assert re.search(r"^Mode     \| Msg/s .*\|\|Latency$", output, re.MULTILINE)
        rows = re.findall(r"^produced \|.*\| +(\d+) \|", output, re.MULTILINE)
        assert len(rows) >= 2 and 0 < sum(int(row) for row in rows) <= 250  # none in a second without a turn
        assert f"Latency Report: {producer_report}" in output
        assert consumer.wait() == 0
        seen = consumer.output
    assert re.search(r"^consumed \|.*\|\| +[\d.]+ [mu]?s < +[\d.]+ [mu]?s < +[\d.]+ [mu]?s$", seen, re.MULTILINE)
    assert re.search(r"Final stats: consumed 250 messages .* ~ latency \{ .* < .* \}", seen)
    for name in ("totalCount......: 250", "min....", "avg....", "max....", "median....", "95Percentile....",
                 "99Percentile...."):
        assert name in seen
    for path, origin in ((consumer_report, "end2end"), (producer_report, "ack")):
        report = json.loads(path.read_text())
        assert list(report) == ["origin", "min", "max", "avg", "median", "95percentile", "96percentile", "97percentile",
                                "98percentile", "99percentile", "dataPoints"]
        assert report["origin"] == origin and sum(report["dataPoints"].values()) == 250
        assert 0 < report["min"] <= report["median"] <= report["99percentile"] <= report["max"] < 60_000_000_000
    assert node.stored(uri) == 0


def test_one_auto_run_can_produce_and_consume(node: ProcessWorld, tmp_path: Path) -> None:
    uri, log = "bmq://d/both", tmp_path / "log"
    code, output = run(*auto(node, uri, "read,write,ack", "-c", "--eventscount", "50", "-i", "1", "--shutdown-grace", "1",
                             "--latency", "hires", "--log", str(log), "-d"))
    assert code == 0
    assert "Final stats: consumed 50 messages" in output and "Final stats: produced 50 messages" in output
    assert output.count("PUSH #") == output.count("ACK #") == 50
    text = log.read_text()
    assert [text.count(f" {kind} {uri}|") for kind in ("PUT", "ACK", "PUSH", "CONFIRM")] == [50] * 4
    assert node.stored(uri) == 0


def test_an_unlimited_auto_run_ends_at_a_signal(node: ProcessWorld) -> None:
    uri = "bmq://d/signal"
    for number in (signal.SIGINT, signal.SIGTERM):
        with shell(*auto(node, uri, "write,ack", "-i", "1")) as process:
            process.capture(r"produced \|")
            process.signal(number)
            process.capture(f"{number.name}, shutting down")
            assert process.wait() == 0
            produced = re.search(r"Final stats: produced ([\d,]+) messages", process.output)
            assert produced is not None and "refused" not in process.output
    with shell(*auto(node, uri, "read", "-c", "-v", "silent")) as process:
        until(lambda: not node.stored(uri))
        process.signal(signal.SIGINT)
        assert process.wait() == 0
        assert process.output.startswith("bmq: SIGINT, shutting down")


def test_an_auto_run_continues_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    uri = "bmq://d/restart"
    with running_world(tmp_path) as world:
        with shell("--mode", "auto", "-b", world.broker.uri, "-q", uri, "-f", "write,ack", "--eventscount", "300",
                   "-i", "10", "--messagepattern", "msg") as process:
            process.capture(r"produced \|")
            world.crash()
            process.capture("CONNECTION_LOST")
            world.broker.launch()
            process.capture("STATE_RESTORED")
            process.capture("All posted messages have been acknowledged")
            assert process.wait() == 0
        assert payloads(world, uri) == [b"msg%09d" % number for number in range(300)]


def test_refused_posts_give_the_exit_code_1(node: ProcessWorld) -> None:
    code, output = run(*auto(node, "bmq://small/q", "write,ack", "--eventscount", "10", "-i", "1"))
    assert code == 1 and "7 posts were refused: LIMIT_MESSAGES" in output


def test_messages_are_reported_per_numbered_subscription(node: ProcessWorld) -> None:
    uri = "bmq://d/pubsub"
    code, output = run(*auto(node, uri, "read,write,ack", "-c", "-d", "--eventscount", "6", "-i", "1",
                             "--shutdownGrace", "1", "--autoPubSubModulo", "3"))
    assert code == 0 and "consumed 6 messages" in output
    assert re.findall(r"AUTO_PUBSUB_PROPERTY \(INT64\) = (\d)", output) == ["0", "1", "2", "0", "1", "2"]


def test_a_subscription_selects_the_consumed_messages(node: ProcessWorld) -> None:
    uri = "bmq://d/subscribed"
    properties = '--messageProperties=[{"name": "x", "value": "1", "type": "E_INT"}]'
    code, output = run(*auto(node, uri, "read,write,ack", "-c", "--eventscount", "3", "-i", "1", "--shutdownGrace", "1",
                             properties, "--subscriptions", '[{"expression": "x == 2"}]'))
    assert code == 0 and "consumed 0 messages" in output
    assert node.stored(uri) == 3


def test_an_auto_run_can_be_configured_by_a_profile(node: ProcessWorld, tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    profile.write_text(json.dumps({"mode": "auto", "queueUri": "bmq://d/profile", "queueFlags": "write,ack",
                                   "eventsCount": 5, "postInterval": 1, "broker": node.broker.uri, "verbosity": "silent"}))
    assert run("--profile", str(profile)) == (0, "")
    assert node.stored("bmq://d/profile") == 5


def test_syschk_reports_whether_broker_and_queue_are_reachable(node: ProcessWorld) -> None:
    assert run("--mode", "syschk", "-b", node.broker.uri) == (0, "")
    assert run("--mode", "SYSCHK", "-b", node.broker.uri, "-q", "bmq://d/syschk") == (0, "")
    code, output = run("--mode", "syschk", "-b", node.broker.uri, "-q", "bmq://nowhere/q")
    assert code == 4 and "nowhere" in output
    code, output = run("--mode", "syschk", "-b", f"tcp://127.0.0.1:{free_port()}", "--timeout", "1")
    assert code == 3 and "Traceback" not in output


def test_an_auto_run_without_broker_or_queue_reports_no_results(node: ProcessWorld) -> None:
    code, output = run(*auto(node, "bmq://nowhere/q", "read"))
    assert code == 4 and "Final stats" not in output and "Traceback" not in output
    code, output = run("--mode", "auto", "-b", f"tcp://127.0.0.1:{free_port()}", "-q", "bmq://d/q", "-f", "read",
                       "--timeout", "1")
    assert code == 3 and "Final stats" not in output and "Traceback" not in output


@pytest.mark.parametrize(("arguments", "words"), [
    ((), "--queueuri"), (("-q", "bmq://d/q"), "--queueflags"), (("-q", "bmq://d/q", "-f", "foo"), "Invalid flag"),
    (("-q", "bmq://d/q", "-f", "write", "-l", "epoch", "-m", "5"), "at least 8"),
    (("-q", "bmq://d/q", "-f", "write", "-l", "epoch", "--latency-report", "/nowhere/x"), "not a writable directory"),
    (("-q", "bmq://d/q", "-f", "write", "--eventscount", "5x"), "as in 30s"),
])
def test_missing_options_are_reported_before_the_connection(arguments: tuple[str, ...], words: str) -> None:
    code, output = run("--mode", "auto", *arguments)
    assert code == 2 and words in output and "Traceback" not in output
