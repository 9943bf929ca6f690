"""`bmq produce`, with the installed command and a broker process."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kit.cli_kit import BMQ, DEADLINE, Cli, in_pipe
from kit.process import BrokerProcess, free_port

pytestmark = pytest.mark.process


def consume_all(cli: Cli, uri: str) -> list[dict[str, object]]:
    """Consume and return all messages of a queue."""
    return [json.loads(line) for line in cli("consume", uri, "--idle", "0.5", "--json").lines]


def test_payloads_of_the_command_line_are_posted_in_order(cli: Cli) -> None:
    done = cli("produce", "bmq://d.priority/arguments", "hello", "wörld")
    assert (done.code, done.out) == (0, b"") and "2 message(s) posted and acknowledged" in done.err
    assert [each["payload"] for each in consume_all(cli, "bmq://d.priority/arguments")] == ["hello", "wörld"]


def test_each_line_of_standard_input_is_posted_with_the_given_properties(cli: Cli) -> None:
    """Empty lines are skipped; the last line needs no newline."""
    done = cli("produce", "bmq://d.priority/lines", "-p", "kind=greeting", "-p", "n:int32=0x10", "-p", "on:bool=true",
               "-p", "raw:binary=00ff", "--json", stdin=b"a\n\nb c\n\xff\x00d")
    assert done.code == 0 and done.err == ""
    summary = done.tree
    assert (summary["posted"], summary["acknowledged"], summary["refused"], summary["skippedEmpty"]) == (3, 3, {}, 1)
    found = consume_all(cli, "bmq://d.priority/lines")
    assert [each.get("payload") for each in found] == ["a", "b c", None]
    assert base64.b64decode(str(found[2]["payloadBase64"])) == b"\xff\x00d"
    assert found[0]["properties"] == {
        "kind": {"type": "STRING", "value": "greeting"}, "n": {"type": "INT32", "value": 16},
        "on": {"type": "BOOL", "value": True}, "raw": {"type": "BINARY", "valueBase64": "AP8="}}


def test_files_and_all_of_standard_input_are_posted_as_one_message_each(cli: Cli, tmp_path: Path) -> None:
    """A file can be given several times."""
    (tmp_path / "one").write_bytes(b"1\n2\n" * 1000)
    done = cli("produce", "bmq://d.priority/files", "-f", str(tmp_path / "one"), "-f", "-", "-n", "4", "--compress", "-q",
               stdin=b"all\nof it")
    assert (done.code, done.out, done.err) == (0, b"", "")
    assert [each["payload"] for each in consume_all(cli, "bmq://d.priority/files")] == ["1\n2\n" * 1000, "all\nof it"] * 2


def test_json_output_of_consume_can_be_posted_again(cli: Cli) -> None:
    """Payloads, properties and types of properties are unchanged."""
    cli("produce", "bmq://d.priority/copy-from", "-p", "n:short=7", "-p", "s=ü", "-p", "b:binary=ff", "text")
    cli("produce", "bmq://d.priority/copy-from", "-d", "\\0", stdin=b"\xfe\xff\0two\nlines")
    printed = cli("consume", "bmq://d.priority/copy-from", "--idle", "0.5", "--json")
    assert cli("produce", "bmq://d.priority/copy-to", "--json-lines", stdin=printed.out).code == 0
    copied = consume_all(cli, "bmq://d.priority/copy-to")
    wanted = [json.loads(line) for line in printed.lines]
    for each in (*copied, *wanted):
        each.pop("guid")
        each.pop("uri")
    assert copied == wanted and len(copied) == 3


def test_invalid_json_lines_are_reported_with_their_position(cli: Cli) -> None:
    """Earlier lines are posted; the exit code is 2."""
    good = b'{"payload": {"any": [1]}, "properties": {"n": 1, "s": "x", "t": true, "c": {"type": "CHAR", "value": -1}}}\n'
    done = cli("produce", "bmq://d.priority/json", "--json-lines", "-p", "s=over", "-p", "d=1",
               stdin=good + b'{"paylod": 1}')
    assert done.code == 2 and "line 2: exactly one of \"payload\" and \"payloadBase64\"" in done.err
    assert "1 message(s) were posted before this error" in done.err
    found = consume_all(cli, "bmq://d.priority/json")[0]
    assert found["payload"] == '{"any":[1]}'
    assert found["properties"] == {"c": {"type": "CHAR", "value": -1}, "d": {"type": "STRING", "value": "1"},
                                   "n": {"type": "INT64", "value": 1}, "s": {"type": "STRING", "value": "x"},
                                   "t": {"type": "BOOL", "value": True}}


def test_refused_messages_are_listed_and_counted(cli: Cli) -> None:
    """With exit code 1; the queue has a limit of two messages, so three are accepted."""
    done = cli("produce", "bmq://d.small/full", "-n", "20", "x", "--json")
    assert done.code == 1
    assert (done.tree["acknowledged"], done.tree["refused"]) == (3, {"LIMIT_MESSAGES": 17})
    assert done.err.count("payload 1 was refused: LIMIT_MESSAGES") == 10 and "only counted" in done.err
    human = cli("produce", "bmq://d.small/full", "x")
    assert human.code == 1 and "0 message(s) posted and acknowledged, 1 refused (LIMIT_MESSAGES)" in human.err


def test_produce_keeps_the_given_rate(cli: Cli) -> None:
    done = cli("produce", "bmq://d.priority/rate", "-n", "5", "--rate", "10", "x", "--json")
    assert done.code == 0 and 0.4 <= done.tree["seconds"] < 5


def test_lines_are_posted_as_soon_as_they_arrive(cli: Cli) -> None:
    """From an open pipe, as with `tail -f`; Ctrl-C waits for outstanding ACKs and ends with 130."""
    started = cli.start("produce", "bmq://d.priority/slow", "--json")
    reader = cli.start("consume", "bmq://d.priority/slow")
    for line in (b"one", b"two"):
        started.write_input(line + b"\n")
        reader.expect(line)
    started.signal()
    done = started.end()
    assert done.code == 130 and done.tree["acknowledged"] == 2
    reader.signal()
    assert reader.end().code == 130


@pytest.mark.parametrize(("arguments", "text"), [
    (("d.priority/q", "x"), "Did you mean bmq://d.priority/q?"),
    (("http://d.priority/q", "x"), "Did you mean bmq://d.priority/q?"),
    (("bmq://d.priority", "x"), "Missing queue"),
    (("bmq://d.priority/q", ""), "at least one byte"),
    (("bmq://d.priority/q", "-p", "novalue", "x"), "name=value"),
    (("bmq://d.priority/q", "-p", "n:int32=99999999999", "x"), "does not fit into INT32"),
    (("bmq://d.priority/q", "-p", "n:number=1", "x"), "'number' is not a property type"),
    (("bmq://d.priority/q", "-p", "n:int64=one", "x"), "'one' is not an integer"),
    (("bmq://d.priority/q", "-p", "n:int32=1_0", "x"), "'1_0' is not an integer"),
    (("bmq://d.priority/q", "-d", "\\q"), "'\\q' is not an escape"),
    (("bmq://d.priority/q", "-f", "nowhere.bin"), "nowhere.bin"),
    (("bmq://d.priority/q", "-f", os.devnull), "is empty"),
    (("bmq://d.priority/q", "-b", "localhost:30114", "x"), "did you mean tcp://localhost:30114?"),
    (("bmq://d.priority/q", "--jsn", "x"), "--json"),
])
def test_an_invalid_command_line_is_answered_with_a_hint(cli: Cli, arguments: tuple[str, ...], text: str) -> None:
    """With exit code 2, and no message is posted."""
    done = cli.run_in_process("produce", *arguments)
    assert done.code == 2 and text in done.err


def test_produce_to_an_unknown_domain_is_refused(cli: Cli) -> None:
    """With exit code 4 and the message of the broker."""
    done = cli("produce", "bmq://nope/q", "x")
    assert done.code == 4 and "the broker refused to open bmq://nope/q" in done.err and "doesn't exist" in done.err


def test_produce_without_a_broker_fails_at_once(cli: Cli) -> None:
    """With exit code 3, the address and the reason; all addresses are tried."""
    port = free_port()
    done = cli("produce", "-b", f"tcp://127.0.0.1:{port}", "bmq://d.priority/q", "x")
    assert done.code == 3 and f"no broker at 127.0.0.1:{port}: Connection refused" in done.err
    there = cli.environment["BMQ_BROKER_URI"]
    both = cli("produce", "-b", f"tcp://127.0.0.1:{port},{there}", "bmq://d.priority/second", "x")
    assert both.code == 0
    for command in (("produce", "bmq://d.priority/q", "x"), ("admin", "HELP")):
        begun = time.monotonic()
        patient = cli(*command, "-b", f"tcp://127.0.0.1:{port}", "--wait", "--timeout", "1")
        assert patient.code == 3 and "Connection refused" in patient.err and time.monotonic() - begun > 1


def test_closed_standard_input_is_reported(cli: Cli) -> None:
    """With exit code 2."""
    done = subprocess.run(["bash", "-c", f"{BMQ} produce bmq://d.priority/q <&-"], capture_output=True,
                          env=cli.environment, timeout=DEADLINE, check=False)
    assert done.returncode == 2 and b"Standard input is closed" in done.stderr


def test_a_second_signal_ends_produce_at_once(running: tuple[BrokerProcess, Cli]) -> None:
    """Also during the wait for outstanding ACKs after the first signal."""
    broker, cli = running
    assert broker.process is not None
    started = cli.start("produce", "bmq://d.priority/stuck")
    started.write_input(b"one\n")
    assert cli("consume", "bmq://d.priority/stuck", "-n", "1").out == b"one\n"
    broker.process.send_signal(signal.SIGSTOP)
    try:
        started.write_input(b"two\n")
        end = time.monotonic() + DEADLINE
        while in_pipe(started.process.stdin):  # until it is read, and so posted
            assert time.monotonic() < end
        started.signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):  # it waits
            started.process.wait(0.5)
        started.signal(signal.SIGTERM)
        assert started.end(3).code == 143
    finally:
        broker.process.send_signal(signal.SIGCONT)


def test_a_terminal_shows_progress_and_a_pipe_does_not(cli: Cli) -> None:
    """Progress goes to standard error."""
    done, seen = cli.run_on_terminal("produce", "bmq://d.priority/bar", "-n", "300", "x")
    assert done.code == 0
    assert b"posting" in seen and b"300/300" in seen and b"300 message(s) posted and acknowledged" in seen
    assert "posting" not in cli("produce", "bmq://d.priority/bar", "-n", "300", "x").err
