"""`bmq tail` and `bmq bench`, with the installed command and a broker process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.cli_kit import Cli, running_broker
from kit.process import BrokerProcess, free_port

pytestmark = pytest.mark.process


def test_tail_reads_a_broadcast_queue_as_a_consumer(cli: Cli) -> None:
    """Also with an expression."""
    uri = "bmq://d.broadcast/news"
    started = cli.start("tail", uri, "-s", "n > 0", "-F", "{p.n} {payload}\n")
    while b"1 wanted" not in started.seen:  # earlier messages are not delivered
        cli("produce", "-q", uri, "-p", "n:int32=0", "not wanted")
        cli("produce", "-q", uri, "-p", "n:int32=1", "wanted")
        started.expect(b"\n")
    started.signal()
    done = started.end()
    assert done.code == 130 and set(done.lines) == {"1 wanted"}


def test_tail_follows_a_stored_queue_without_consuming(cli: Cli) -> None:
    """A consumer gets all messages as first deliveries."""
    uri = "bmq://d.priority/follow"
    cli("produce", "-q", uri, "1", "22", "333")
    started = cli.start("tail", uri, "--json", "-n", "2", "--interval", "0.05")
    started.expect(b'"size": 3}\n')
    cli("produce", "-q", uri, "4444")
    started.expect(b'"size": 4}\n')
    started.signal()
    done = started.end()
    assert done.code == 130 and done.err == ""
    assert [line.rpartition(" ")[2] for line in done.lines] == ["2}", "3}", "4}"]
    assert cli("consume", uri, "-n", "4", "-F", "{payload} {redelivered}\n").lines == [
        "1 false", "22 false", "333 false", "4444 false"]


def test_tail_can_end_after_a_count_or_time(cli: Cli) -> None:
    """After the stored messages, a number of messages, or a time without messages."""
    uri = "bmq://d.fanout/ends"
    cli("produce", "-q", uri, "1", "22", "333")
    assert [line.split()[2] for line in cli("tail", f"{uri}?id=foo", "--no-follow", "-n", "1").lines] == ["3"]
    assert cli("consume", f"{uri}?id=foo", "-n", "3").code == 0
    assert cli("tail", f"{uri}?id=foo", "--no-follow").out == b""  # foo has confirmed them, bar has not
    assert len(cli("tail", f"{uri}?id=bar", "--count", "2", "--interval", "0.05").lines) == 2
    assert len(cli("tail", uri, "--idle", "0.1", "--interval", "0.05").lines) == 3
    assert cli("tail", uri, "--count", "9", "--duration", "0.1").code == 1


def test_tail_of_storage_files_shows_every_message_with_its_content(running: tuple[BrokerProcess, Cli]) -> None:
    """Also messages that are consumed at once, after a rollover, and of a queue created later; each message once."""
    broker, cli = running
    uri, other = "bmq://d.priority/files", "bmq://d.priority/others"
    consumer = cli.start("consume", uri)
    consumer_of_both = cli.start("consume", other)
    started = cli.start("tail", uri, "--storage", str(broker.config.storage), "--json", "--interval", "0.05", "-b",
                        "tcp://127.0.0.1:1")  # no broker is asked
    wanted = []

    def post(payload: str, *options: str) -> None:
        wanted.append(payload)
        assert cli("produce", "-q", uri, *options, payload).code == 0
        assert cli("produce", "-q", other, "of another queue").code == 0
        started.expect(f'"payload": "{payload}"'.encode())

    post("first", "-p", "n:int32=5")
    post("y" * 5000, "--compress", "-p", "s=x")
    post("plain")
    consumer.signal()
    consumer.end()
    post("kept")
    assert cli("admin", "CLUSTERS", "CLUSTER", "c3", "STORAGE", "PARTITION", "ALL", "ROLLOVER").code == 0
    post("after the rollover")
    started.signal()
    consumer_of_both.signal()
    done = started.end()
    trees = [json.loads(line) for line in done.lines]
    assert done.code == 130 and [tree["payload"] for tree in trees] == wanted
    assert trees[0]["properties"] == {"n": {"type": "INT32", "value": 5}} and trees[0]["uri"] == uri
    assert trees[1]["properties"] == {"s": {"type": "STRING", "value": "x"}}
    assert trees[0]["time"].startswith("20")


def test_tail_reads_storage_files_of_a_stopped_broker(tmp_path: Path) -> None:
    """The last messages, in all output forms; a directory without storage files is an error."""
    with running_broker(tmp_path / "broker") as (broker, cli):
        cli("produce", "-q", "bmq://d.fanout/q", "one", "two", "three")
        broker.terminate()
        where = ("--storage", str(broker.config.storage))
        assert cli("tail", "bmq://d.fanout/q", *where, "--no-follow", "-n", "2").lines == ["two", "three"]
        assert cli("tail", "bmq://d.fanout/q", *where, "--count", "1", "--hex").lines == [b"one".hex()]
        assert cli("tail", "bmq://d.fanout/q?id=foo", *where).code == 2
        absent = cli("tail", "bmq://d.fanout/none", *where, "--no-follow")
        assert absent.code == 0 and "no such queue" in absent.err
        empty = cli("tail", "bmq://d.fanout/q", "--storage", str(tmp_path), "--no-follow")
        assert empty.code == 2 and "contains no ledger" in empty.err


def test_tail_waits_for_a_queue_that_does_not_exist_yet(cli: Cli) -> None:
    """With one message about it."""
    uri = "bmq://d.priority/later"
    started = cli.start("tail", uri, "--count", "1", "--interval", "0.05")
    started.expect(b"waiting for the queue", "stderr")
    cli("produce", "-q", uri, "now")
    done = started.end()
    assert done.code == 0 and done.lines[0].endswith("  3")


@pytest.mark.parametrize(("arguments", "code", "text"), [
    (("bmq://d.priority/q", "--hex"), 2, "bmq consume --peek"),
    (("bmq://d.priority/q", "-F", "{payload}"), 2, "cannot be read without consuming"),
    (("bmq://d.broadcast/q", "--no-follow"), 2, "stores no messages"),
    (("bmq://nope/q",), 4, "nope"),
    (("bmq://d.priority/q", "-b", "tcp://127.0.0.1:1"), 3, "no broker at 127.0.0.1:1"),
])
def test_tail_refuses_impossible_requests_with_a_reason(cli: Cli, arguments: tuple[str, ...], code: int, text: str) -> None:
    done = cli("tail", *arguments)
    assert done.code == code and text in done.err and done.out == b""


# -- bench ------------------------------------------------------------------------------------------------------------

def test_bench_counts_all_posted_and_received_messages(cli: Cli) -> None:
    """All messages are acknowledged and delivered; percentiles of latencies ascend."""
    done = cli("bench", "bmq://d.priority/bench", "-n", "500", "-P", "2", "-C", "2", "--size", "100",
               "--batch", "7", "--json")
    assert done.code == 0 and done.err == ""
    result = done.tree
    assert [result[name] for name in ("posted", "acknowledged", "consumed", "refused", "missing", "otherMessages")] == [
        500, 500, 500, 0, 0, 0]
    for times in (result["ackMs"], result["deliveryMs"]):
        assert 0 < times["p50"] <= times["p99"] <= times["p99.9"] <= times["max"]
    assert result["postedPerSecond"] > 0 and result["clientCpuPercent"] > 0
    assert cli.stored("bmq://d.priority/bench") == 0


def test_bench_of_a_broadcast_queue_reaches_every_consumer(cli: Cli) -> None:
    done = cli("bench", "bmq://d.broadcast/bench", "-n", "50", "-C", "3", "--json")
    assert done.code == 0 and done.tree["consumed"] == 150


def test_bench_keeps_its_rate_and_duration(cli: Cli) -> None:
    """With text output, too."""
    done = cli("bench", "bmq://d.fanout/bench?id=foo", "--rate", "100", "--duration", "0.5")
    assert done.code == 0
    posted = int(done.lines[1].split()[1])
    assert 20 <= posted <= 51
    assert [line.split()[0] for line in done.lines[1:]] == ["posted", "to", "consumed", "to", "client"]


def test_bench_and_consume_show_progress_on_a_terminal(cli: Cli) -> None:
    """On standard error, with results on standard output."""
    done, seen = cli.run_on_terminal("bench", "bmq://d.priority/watched", "-n", "200", "-C", "0", "--size", "16", "--json")
    assert done.code == 0 and done.tree["posted"] == 200 and b"200/200" in seen
    done, seen = cli.run_on_terminal("consume", "bmq://d.priority/watched", "-n", "200", "--hex")
    assert done.code == 0 and len(done.lines) == 200 and b"200/200" in seen
    done, seen = cli.run_on_terminal("consume", "bmq://d.priority/watched", "--idle", "0.2")
    assert done.code == 0 and seen == b""


def test_bench_does_not_consume_messages_of_other_producers(cli: Cli) -> None:
    """They are not confirmed, and their number is reported."""
    uri = "bmq://d.priority/shared"
    cli("produce", "-q", uri, "precious")
    done = cli("bench", uri, "-n", "10", "--json")
    assert done.code == 0 and done.tree["otherMessages"] == 1
    assert cli("consume", uri, "-n", "1").out == b"precious\n"


def test_bench_reports_refused_messages(cli: Cli) -> None:
    """With their status and exit code 1."""
    done = cli("bench", "bmq://d.small/bench", "-n", "20", "-C", "0", "--json")
    assert done.code == 1 and done.tree["refused"] == 17 and done.tree["refusals"] == {"LIMIT_MESSAGES": 17}
    assert b"\n  5 refused: LIMIT_MESSAGES\n" in cli("bench", "bmq://d.small/bench", "-n", "5", "-C", "0").out


def test_an_interrupted_bench_reports_its_partial_results(cli: Cli) -> None:
    """With exit code 130."""
    started = cli.start("bench", "bmq://d.priority/long", "--duration", "600", "--rate", "200", "--json")
    tail = cli("tail", "bmq://d.priority/long", "--no-follow")
    while "waiting" in tail.err:
        tail = cli("tail", "bmq://d.priority/long", "--no-follow")
    started.signal()
    done = started.end()
    assert done.code == 130 and "posted" in done.tree


def test_bench_without_a_broker_fails_at_once(cli: Cli) -> None:
    """With exit code 3."""
    done = cli("bench", "-b", f"tcp://127.0.0.1:{free_port()}", "bmq://d.priority/q")
    assert done.code == 3 and "Is it running" in done.err
    assert cli("bench", "bmq://d.priority/q", "-P", "0").code == 2
