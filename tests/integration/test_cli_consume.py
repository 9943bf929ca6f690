"""`bmq consume`, with the installed command and a broker process."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kit.cli_kit import BMQ, Cli, in_pipe, running_broker

pytestmark = pytest.mark.process


def post(cli: Cli, uri: str, *payloads: str) -> None:
    """Post messages to a queue."""
    done = cli("produce", "-q", uri, *payloads)
    assert done.code == 0, done.err


def test_consume_prints_payloads_one_per_line_and_confirms_them(cli: Cli) -> None:
    """The delimiter can be changed."""
    uri = "bmq://d.priority/plain"
    post(cli, uri, "one", "two", "three")
    first = cli("consume", uri, "-n", "2")
    assert (first.code, first.out, first.err) == (0, b"one\ntwo\n", "")
    assert cli.stored(uri) == 1
    assert cli("consume", uri, "--idle", "0.5", "-d", "\\0").out == b"three\0"
    assert cli.stored(uri) == 0


def test_consume_with_a_count_receives_no_further_message(cli: Cli) -> None:
    """The next consumer sees no redelivered message, with windows larger and smaller than the count."""
    uri = "bmq://d.priority/count"
    cli("produce", "-q", uri, stdin=b"".join(b"%d\n" % number for number in range(500)))
    for start, end, options in ((0, 10, ()), (10, 250, ("--max-unconfirmed", "100"))):
        done = cli("consume", uri, "-n", str(end - start), *options, "-F", "{payload} {redelivered}\n")
        assert done.code == 0 and done.lines == [f"{number} false" for number in range(start, end)]
    rest = cli("consume", uri, "--idle", "0.5", "-F", "{payload} {redelivered}\n")
    assert rest.lines == [f"{number} false" for number in range(250, 500)]


def test_fewer_messages_than_the_count_give_their_own_exit_code(cli: Cli) -> None:
    """The received messages are printed and confirmed."""
    uri = "bmq://d.priority/fewer"
    post(cli, uri, "only")
    done = cli("consume", uri, "-n", "5", "--duration", "0.5")
    assert (done.code, done.out) == (1, b"only\n") and "bmq: 1 of 5 message(s) arrived" in done.err
    assert cli.stored(uri) == 0
    assert cli("consume", uri, "--duration", "0.3").code == 0


def test_peek_prints_messages_without_confirming_them(cli: Cli) -> None:
    """The next consumer gets them in the same order."""
    uri = "bmq://d.priority/peek"
    post(cli, uri, "one", "two", "three")
    for _ in range(2):
        assert cli("consume", uri, "--peek", "--idle", "0.5").lines == ["one", "two", "three"]
    assert cli("consume", uri, "--no-confirm", "-n", "2").lines == ["one", "two"]
    assert cli.stored(uri) == 3


def test_consume_prints_hexadecimal_templates_and_json(cli: Cli) -> None:
    uri = "bmq://d.fanout/forms"
    done = cli("produce", "-q", uri, "-p", "kind=a", "-p", "n:int64=5", "-p", "t:bool=true", "x{y}")
    assert done.code == 0
    assert cli("consume", f"{uri}?id=foo", "-n", "1", "--hex").out == b"x{y}".hex().encode() + b"\n"
    shown = cli("consume", f"{uri}?id=bar", "-n", "1", "-F",
                "{domain} {queue} {app} {size} {p.kind}{p.n}{p.t}{p.none} {{{payload}}} {base64}\\t{properties}\\x21\\n")
    assert shown.out == (b"d.fanout forms bar 4 a5true {x{y}} eHt5fQ==\t"
                         b'{"kind": {"type": "STRING", "value": "a"}, "n": {"type": "INT64", "value": 5}, '
                         b'"t": {"type": "BOOL", "value": true}}!\n')
    tree = cli("consume", f"{uri}?id=baz", "-n", "1", "--json", "-s", "n == 5").tree
    assert len(tree.pop("guid")) == 32
    assert tree == {"uri": f"{uri}?id=baz", "subscription": "n == 5", "payload": "x{y}", "properties": {
        "kind": {"type": "STRING", "value": "a"}, "n": {"type": "INT64", "value": 5},
        "t": {"type": "BOOL", "value": True}}}


def test_a_subscription_consumes_only_matching_messages(cli: Cli) -> None:
    """With several subscriptions: messages that match one of them."""
    uri = "bmq://d.priority/subscriptions"
    lines = "".join(json.dumps({"payload": f"message {n}", "properties": {"n": n}}) + "\n" for n in range(5))
    assert cli("produce", "-q", uri, "--json-lines", stdin=lines.encode()).code == 0
    done = cli("consume", uri, "-s", "n == 1", "-s", "n > 3", "--idle", "0.5", "--max-unconfirmed-bytes", "1000")
    assert done.lines == ["message 1", "message 4"]
    assert cli.stored(uri) == 3


def test_an_invalid_expression_is_shown_with_its_error_position(cli: Cli) -> None:
    """Without a connection to the broker."""
    done = cli("consume", "bmq://d.priority/q", "-s", 'kind == "ä" && =+ 3', "-b", "tcp://127.0.0.1:1")
    assert done.code == 2
    expression, mark = done.err.splitlines()[-2:]
    assert expression.endswith('kind == "ä" && =+ 3') and expression[mark.index("^")] == "="


@pytest.mark.parametrize(("arguments", "text"), [
    (("--json", "--hex"), "Choose one of"),
    (("-F", "{pay}"), "'{pay}' is not a field"),
    (("-F", "{payload"), "write a brace"),
    (("-F", "\\y"), "'\\y' is not an escape"),
    (("--priority", "5000000000"), "consumer_priority"),
    (("-n", "0"), "-n"),
    (("?id=",), "not a queue URI"),
])
def test_an_invalid_command_line_is_answered_with_a_hint(cli: Cli, arguments: tuple[str, ...], text: str) -> None:
    """With exit code 2."""
    uri = "bmq://d.priority/q"
    done = cli.run_in_process("consume", *([uri + arguments[0]] if arguments[0].startswith("?") else [uri, *arguments]))
    assert done.code == 2 and text in done.err


def test_a_refused_open_is_reported_with_the_message_of_the_broker(cli: Cli) -> None:
    """With exit code 4."""
    done = cli("consume", "bmq://nope/q")
    assert done.code == 4 and "doesn't exist" in done.err


def test_an_interrupt_confirms_the_printed_messages(cli: Cli) -> None:
    """Exit code 130 for Ctrl-C, 143 for SIGTERM."""
    uri = "bmq://d.priority/interrupt"
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        post(cli, uri, "one", "two")
        started = cli.start("consume", uri, "-n", "100")
        started.expect(b"two\n")
        started.signal(number)
        done = started.end()
        assert (done.code, done.err) == (code, "")
        assert cli.stored(uri) == 0


def test_consume_ends_when_the_reader_of_its_output_closes(cli: Cli) -> None:
    """As in `| head -1`: without an error, with the exit code of a closed pipe."""
    uri = "bmq://d.priority/leaves"
    post(cli, uri, "one")
    started = cli.start("consume", uri)
    started.expect(b"one\n")
    assert started.process.stdout is not None
    started.process.stdout.close()
    assert started.process.wait(20) == 141
    assert started.process.stderr is not None and started.process.stderr.read() == b""


def test_messages_that_the_output_pipe_did_not_accept_are_not_confirmed(cli: Cli) -> None:
    """With a full pipe: unwritten messages return to the queue, and the next consumer gets them once."""
    uri = "bmq://d.priority/slow"
    payload = "x" * 10_000
    cli("produce", "-q", uri, "-n", "300", payload)
    started = cli.start("consume", uri)
    assert started.process.stdout is not None
    end = time.monotonic() + 20
    while in_pipe(started.process.stdout) < 60_000:  # without a reader the pipe fills
        assert time.monotonic() < end
    started.signal()
    assert started.process.wait(20) == 130
    printed = started.end().out.count(b"\n")
    assert 0 < printed < 10  # a pipe holds 64 KiB
    assert cli.stored(uri) == 300 - printed


def test_output_to_a_full_disk_ends_consume_without_confirms(cli: Cli) -> None:
    """With exit code 5."""
    uri = "bmq://d.priority/disk"
    post(cli, uri, "one", "two")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([BMQ, "consume", uri], stdout=full, stderr=subprocess.PIPE, env=cli.environment, timeout=30,
                              check=False)
    assert done.returncode == 5 and b"No space left" in done.stderr and b"Traceback" not in done.stderr
    assert cli.stored(uri) == 2


def test_large_amounts_pass_through_files_unchanged(cli: Cli, tmp_path: Path) -> None:
    """All bytes are compared."""
    uri = "bmq://d.priority/file"
    lines = b"".join(b"line %d %s\n" % (number, b"y" * (number % 700)) for number in range(3000))
    assert cli("produce", "-q", uri, stdin=lines).code == 0
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run([BMQ, "consume", uri, "-n", "3000"], stdout=out, env=cli.environment, timeout=60, check=False)
    assert done.returncode == 0
    assert (tmp_path / "out").read_bytes() == lines


def test_produce_consume_and_admin_reconnect_to_a_restarted_broker(tmp_path: Path) -> None:
    """Exit code 3 if the broker does not return in time, 4 if a queue cannot be opened again."""
    with running_broker(tmp_path) as (broker, cli):
        uri = "bmq://d.priority/restart"
        started = cli.start("consume", uri, "--timeout", "20")
        post(cli, uri, "before")
        started.expect(b"before\n")
        removed = cli.start("consume", "bmq://d.small/gone", "--timeout", "20")
        post(cli, "bmq://d.small/gone", "x")
        removed.expect(b"x\n")
        producer = cli.start("produce", "bmq://d.priority/produced", "--json")
        producer.write_input(b"1\n")
        assert cli("consume", "bmq://d.priority/produced", "-n", "1").out == b"1\n"
        broker.terminate()
        started.expect(b"connection lost", "stderr")
        producer.write_input(b"2\n")
        (broker.config.etc / "domains" / "d.small.json").unlink()
        waiting = [cli.start(*command) for command in (("admin", "--wait", "CLUSTERS", "LIST"),
                                                       ("produce", "--wait", "bmq://d.priority/waiting", "x"))]
        broker.start()
        post(cli, uri, "after")
        started.expect(b"after\n")
        assert [each.end().code for each in waiting] == [0, 0]
        done = producer.end()
        assert done.code == 0 and done.tree["acknowledged"] == 2 and "reconnected" in done.err
        assert cli("consume", "bmq://d.priority/produced", "--idle", "0.5").out == b"2\n"
        done = removed.end()
        assert done.code == 4 and "could not be reopened" in done.err
        impatient = cli.start("consume", "bmq://d.priority/impatient", "--timeout", "1")
        post(cli, "bmq://d.priority/impatient", "x")
        impatient.expect(b"x\n")
        post(cli, "bmq://d.fanout/kept", "x")
        tail = cli.start("tail", "bmq://d.fanout/kept")
        tail.expect(b"  1\n")
        broker.kill()
        done = impatient.end()
        assert done.code == 3 and "for 1 s after the connection was lost" in done.err
        assert tail.end().code == 3
