"""`bmq shell` driven through pipes and through a pseudo-terminal, with a broker process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.process import ProcessWorld, free_port, running_world
from kit.shell import BMQ, ShellProcess, run, shell, until

from bmqtwist import __version__
from bmqtwist.cli.shell import command, commands
from bmqtwist.queue.describe import message_dump
from bmqtwist.wire import properties
from bmqtwist.wire.properties import PropertyType

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessWorld]:
    """Yield a broker process for all tests of this module; each has its own queues."""
    with running_world(tmp_path_factory.mktemp("node")) as world:
        world.domain("small", queue_messages=2)
        world.domain("bmq.test.persistent.priority")
        yield world


def started(process: ShellProcess, uri: str, flags: str = "read,write,ack") -> None:
    """Start the session and open a queue; wait for each, as scripts for the original do."""
    process.send("start")
    assert process.capture(r"session.start.*\((-?\d+)\)")[1] == "0"
    process.send(f'open uri="{uri}" flags="{flags}"')
    assert process.capture(rf"<--.*openQueue.*uri = {re.escape(uri)}.*\((-?\d+)\)")[1] == "0"


def listed(process: ShellProcess, uri: str) -> list[tuple[str, ...]]:
    """Return GUID, URI, correlation and payload of each message in the output of `list`."""
    process.send(f'list uri="{uri}"')
    count = int(process.capture(r"Unconfirmed message listing: (-?\d+) messages")[1])
    pattern = r"\[([0-9a-fA-F]+)\] Queue: '\[ uri = (\S+) correlationId = \[ autoValue = (-?\d+) \] \]' = '([^']*)'"
    return [process.capture(pattern).groups() for _ in range(count)]


def test_shell_commands_of_the_original_work_with_the_same_output(node: ProcessWorld) -> None:
    uri = "bmq://d/all-commands"
    with shell("-b", node.broker.uri, "-d") as process:
        started(process, uri)
        process.send(f'post uri="{uri}" payload=["one", "two = 2", "drei"] messageProperties='
                     '[{"name": "x", "value": "10", "type": "E_INT"}, {"name": "s", "value": "foo", "type": "E_STRING"}]')
        assert process.capture(r"<--.*post.*\((-?\d+)\)")[1] == "0"
        ack = process.capture(rf"ACK #.* type = ACK.*queue = \[ uri = {re.escape(uri)} ")
        assert "status = SUCCESS" in ack[0]
        assert process.capture(r"PUSH #0: (?:.*\n)*?.*with properties: (.*)")[1] == '[ s (STRING) = "foo" x (INT32) = 10 ]'
        process.capture("PUSH #")
        process.send("wait messages=3")
        process.capture("3 messages have arrived")

        found = listed(process, uri)
        assert [(each[1], each[3]) for each in found] == [(uri, "one"), (uri, "two = 2"), (uri, "drei")]
        process.send(f'confirm uri="{uri}" guid="+1"')
        assert process.capture(r"Confirming message with GUID (\w+)")[1] == found[0][0]
        assert process.capture(r"<--.*confirmMessage.*\((-?\d+)\)")[1] == "0"
        process.send(f'confirm uri="{uri}" guid="{found[2][0]}"')
        assert process.capture(r"<--.*confirmMessage.*\((-?\d+)\)")[1] == "0"
        assert listed(process, uri) == [found[1]]
        process.send(f'confirm uri="{uri}" guid="*"', f'confirm uri="{uri}" guid="*"')
        process.capture("No messages to confirm")

        process.send(f'configure uri="{uri}" consumerPriority=3 maxUnconfirmedMessages=1')
        assert process.capture(rf"<--.*configureQueue.*uri = {re.escape(uri)}.*\((-?\d+)\)")[1] == "0"
        process.send(f'batch-post uri="{uri}" msgSize=10 eventSize=2 eventsCount=3 postInterval=1')
        process.capture("All messages have been posted")
        process.send("wait")
        process.capture("1 messages have arrived")  # the window is one message now
        assert [each[3] for each in listed(process, uri)] == ["ABCDEFGHIJ"]

        process.send(f'close uri="{uri}"')
        assert process.capture(rf"<--.*closeQueue.*uri = {re.escape(uri)}.*\((-?\d+)\)")[1] == "0"
        process.send("stop")
        process.capture(r"EVENT received:.*DISCONNECTED")
        process.capture(r"<--.*stop\(\)")
        process.send("bye")
        assert process.wait() == 0
    assert node.stored(uri) == 6


def test_asynchronous_commands_do_not_wait_for_their_response(node: ProcessWorld) -> None:
    uri = "bmq://d/async"
    with shell("-b", node.broker.uri) as process:
        process.send("start async=true")
        assert process.capture(r"session.start.*\((-?\d+)\)")[1] == "0"
        process.capture("EVENT received:.*CONNECTED")
        process.send(f'open uri="{uri}" flags="write" async=true')
        process.capture(r"==> OPEN_QUEUE_RESULT received: .*SUCCESS")
        assert process.capture(rf"<-- session.openQueueAsync.*uri = {re.escape(uri)}.*\((-?\d+)\)")[1] == "0"
        process.send(f'configure uri="{uri}" async=true')
        assert process.capture(r"<-- session.configureQueueAsync.*\((-?\d+)\)")[1] == "0"
        process.send(f'close uri="{uri}" async=true')
        assert process.capture(r"<-- session.closeQueueAsync.*\((-?\d+)\)")[1] == "0"
        process.send("stop async=true")
        process.capture(r"<--.*stop\(\)")
        process.capture("EVENT received:.*DISCONNECTED")
        assert process.end() == 0


def test_a_refused_command_prints_an_error_number_and_the_shell_continues(node: ProcessWorld) -> None:
    uri, readonly = "bmq://d/refused", "bmq://d/readonly"
    with shell("-b", node.broker.uri) as process:
        process.send(f'open uri="{uri}" flags="write"')
        assert process.capture(r"ERROR.*<--.*openQueue.*\((-?\d+)\)")[1] == "-3"
        started(process, uri)
        process.send(f'open uri="{uri}" flags="write"')
        assert process.capture(r"ERROR.*openQueueSync\(\) => ALREADY_OPENED.*\((-?\d+)\)")[1] == "100"
        process.send('open uri="bmq://d/x" flags="ack"')
        assert process.capture(r"ERROR.*openQueueSync\(\) => INVALID_FLAGS.*\((-?\d+)\)")[1] == "-101"
        process.send('open uri="bmq://nowhere/x" flags="read"')
        assert int(process.capture(r"ERROR.*openQueueSync\(\) => .*\((-?\d+)\)")[1]) < 0
        process.send(f'open uri="{readonly}" flags="read"', f'post uri="{readonly}" payload=["x"]')
        process.capture("ERROR.*Failed to pack message. rc: QUEUE_READONLY")
        process.send(f'post uri="{uri}" payload=["x", ""]')
        process.capture("ERROR.*Failed to pack message. rc: PAYLOAD_EMPTY")
        process.send(f'post uri="{uri}" payload=["x"] messageProperties=[{{"name": "-", "value": "1"}}]')
        process.capture("ERROR.*property name '-'")
        process.send(f'configure uri="{uri}" subscriptions=[{{"expression": "x >"}}]')
        process.capture("ERROR.*Invalid subscription 'x >'")
        process.send(f'configure uri="{uri}" subscriptions=[{{"correlationId": 1, "expression": ""}}]')
        process.capture("ERROR.*Invalid subscription '': its expression is empty")
        process.send('close uri="bmq://d/never"', 'list uri="bmq://d/never"', f'confirm uri="{uri}" guid="zz"')
        process.capture("ERROR.*unknown queue 'bmq://d/never'")
        process.capture("ERROR.*unknown queue 'bmq://d/never'")
        process.capture("ERROR.*'zz' is not a valid GUID")
        process.send("foo", "open uri", "wait timeout=0.01", 'load-post uri="{uri}" file="/nowhere"', "openStorage path=x")
        process.capture("ERROR.*Unknown command: foo")
        process.capture("ERROR.*Unable to decode: open uri\n'uri' has no value")
        process.capture("ERROR.*0 of 1 messages within 0.01 s")
        process.capture("ERROR.*unknown queue")
        process.capture("ERROR.*`bmq storage`")
        process.send(f'load-post uri="{uri}" file="/nowhere"', f'load-post uri="{uri}" file="a\\u0000b"')
        process.capture("ERROR.*/nowhere: No such file")
        process.capture("ERROR.*null")
        process.send("start", f'post uri="{uri}" payload="still there"', "wait")
        process.capture(r"<-- session.start\(5.0\) => SUCCESS")
        process.capture("1 messages have arrived")
        assert process.end() == 1


def test_a_post_over_the_quota_is_an_error(node: ProcessWorld) -> None:
    uri = "bmq://small/q"
    code, output = run("-b", node.broker.uri, text=f"""start
        open uri="{uri}" flags="write,ack"
        post uri="{uri}" payload=["1", "2", "3", "4"]
        stop
        """)
    assert code == 1
    assert re.search(r"ERROR.*ACK #\d: \[ type = ACK status = LIMIT_MESSAGES correlationId = \[ autoValue = \d+ \]", output)
    assert output.count("LIMIT_MESSAGES") == 1  # a limit of n admits n + 1
    assert "status = SUCCESS" not in output  # successful ones are shown with -d only


def test_a_failed_script_gives_a_nonzero_exit_code(node: ProcessWorld, tmp_path: Path) -> None:
    uri = "bmq://d/script"
    good = f"""
        # post something
        start
        open uri="{uri}" flags="write,ack"
        post uri="{uri}" payload=["x"]
        bye
        this is never read
        """
    assert run("-b", node.broker.uri, text=good)[0] == 0
    assert node.stored(uri) == 1
    bad = tmp_path / "script"
    bad.write_text(f'start\nnonsense\nopen uri="{uri}" flags="write,ack"\npost uri="{uri}" payload=["x"]\n')
    assert run("-b", node.broker.uri, "--script", str(bad))[0] == 1
    assert node.stored(uri) == 2
    code, output = run("-b", node.broker.uri, "--script", str(bad), "--stop-on-error")
    assert code == 1 and node.stored(uri) == 2 and "Goodbye." in output


def test_messages_are_listed_with_their_matching_subscription(node: ProcessWorld) -> None:
    uri = "bmq://d/subscriptions"
    with shell("-b", node.broker.uri, "-d") as process:
        process.send("start", f'open uri="{uri}" flags="read,write" subscriptions='
                     '[{"expression": "x > 0", "correlationId": 7}, {"expression": "x <= 0", "correlationId": 8}]')
        process.capture(r"<--.*openQueue.*\(0\)")
        for value, correlation in ((5, 7), (-5, 8)):
            process.send(f'post uri="{uri}" payload=["p"] '
                         f'messageProperties=[{{"name":"x","value":"{value}","type":"E_INT"}}]')
            process.capture(rf"PUSH #0: .*subscriptionHandle = \[ CorrelationId = \[ numeric = {correlation} \] \]")
        process.send(f'configure uri="{uri}" subscriptions=[{{"expression": "x == 1", "correlationId": 9}}]')
        process.capture(r"<--.*configureQueue.*\(0\)")
        process.send(*(f'post uri="{uri}" payload=["p"] messageProperties=[{{"name":"x","value":"{value}","type":"E_INT"}}]'
                       for value in (2, 1)))
        process.capture(r"PUSH #0: .*CorrelationId = \[ numeric = 9 \]")
        assert [each[3] for each in listed(process, uri)] == ["p"] * 3


def test_close_waits_for_pending_acks(node: ProcessWorld) -> None:
    uri = "bmq://d/close"
    code, output = run("-b", node.broker.uri, "-d", text=f"""start
        open uri="{uri}" flags="write,ack"
        post uri="{uri}" payload=["x", "y"]
        close uri="{uri}"
        """)
    assert code == 0 and output.count("type = ACK status = SUCCESS") == 2


def test_a_queue_is_removed_even_if_its_close_is_not_answered(node: ProcessWorld) -> None:
    uri = "bmq://d/unanswered-close"
    with shell("-b", node.broker.uri, "--timeout=1") as process:
        started(process, uri, "write,ack")
        node.broker.process.send_signal(signal.SIGSTOP)
        try:
            process.send(f'close uri="{uri}"')
            process.capture(r"<--.*closeQueueSync.*TIMEOUT")
        finally:
            node.broker.process.send_signal(signal.SIGCONT)
        process.send(f'post uri="{uri}" payload=["x"]')
        process.capture(f"unknown queue '{uri}'")
        process.capture("RECONNECTED")
        process.send(f'open uri="{uri}" flags="write,ack"')
        assert process.capture(r"<--.*openQueue.*\((-?\d+)\)")[1] == "0"


def test_confirmmsg_confirms_messages_on_arrival(node: ProcessWorld) -> None:
    uri = "bmq://d/confirmmsg"
    with shell("-b", node.broker.uri, "--confirm-msg", "-d") as process:
        started(process, uri)
        process.send(f'post uri="{uri}" payload=["a", "b"] compressionAlgorithmType="ZLIB"')
        process.capture("PUSH #")
        process.capture("PUSH #")
        assert listed(process, uri) == []
        assert process.end() == 0
    assert node.stored(uri) == 0


def test_a_broadcast_message_is_listed_and_confirming_it_prints_nothing(node: ProcessWorld) -> None:
    uri = "bmq://b/q"
    with shell("-b", node.broker.uri) as process:
        started(process, uri)
        process.send(f'post uri="{uri}" payload=["a"]', "wait", f'confirm uri="{uri}" guid="-1"')
        process.capture(r"<--.*confirmMessage.*\(0\)")
        assert listed(process, uri) == []


def test_the_message_of_a_dump_file_is_posted(node: ProcessWorld, tmp_path: Path) -> None:
    uri = "bmq://d/dump"
    area = properties.encode({"x": (PropertyType.INT32, 10)}, True)
    (tmp_path / "dump").write_text(message_dump(area + b"hello world!", True, 0, 1))
    with shell("-b", node.broker.uri) as process:
        started(process, uri)
        process.send(f'load-post uri="{uri}" file="{tmp_path / "dump"}"', "wait", "list")
        process.capture(r"= 'hello world!', with properties: \[ x \(INT32\) = 10 \]")
        process.send(f'load-post uri="{uri}" file="{__file__}"')
        process.capture("ERROR.*no dump of a message")


def test_batch_post_numbers_messages_and_cycles_through_payloads(node: ProcessWorld) -> None:
    uri = "bmq://d/batch"
    with shell("-b", node.broker.uri) as process:
        started(process, uri)
        process.send(f'batch-post uri="{uri}" payload=["a", "b"] eventsCount=3 postInterval=0 autoIncremented="n"',
                     "wait messages=3", "list")
        for payload, number in (("a", 0), ("b", 1), ("a", 2)):
            process.capture(rf"= '{payload}', with properties: \[ n \(INT64\) = {number} \]")
        process.send(f'batch-post uri="{uri}" eventSize=0')
        process.capture("ERROR.*nothing is posted")


def test_records_have_the_requested_format(node: ProcessWorld, tmp_path: Path) -> None:
    uri = "bmq://d/format"
    separator = "~@~"
    template = separator.join(["%c", "%d", "%t", "%s", "%F:%l", "%m"]) + r"\n"
    log = tmp_path / "log"
    code, output = run("-b", node.broker.uri, f"--logFormat={template}", "--log", str(log), "-d", text=f"""start
        open uri="{uri}" flags="read,write,ack"
        post uri="{uri}" payload=["msg1"]
        wait
        confirm uri="{uri}" guid="*"
        """)
    assert code == 0
    record = separator.join([r"(\w+(?:\.\w+)*)", r"(\w{9}_\d{2}:\d{2}:\d{2})\.(\d{3})", r"(\d+)", r"([A-Z]+)",
                             r"(\w+(?:\.\w+)+):(\d+)", r"(.*)"])
    lines = [line for line in output.splitlines() if separator in line]
    assert len(lines) > 8 and all(re.match(record, line) for line in lines)
    text = log.read_text(encoding="ascii")
    guid = re.search(rf" PUT {uri}\|\[ autoValue = (\d+) \]\|([0-9A-F]{{32}})\|msg\s*1", text)
    assert guid is not None
    assert re.search(rf" ACK {uri}\|\[ autoValue = {guid[1]} \]\|{guid[2]}\|0\|", text)
    assert re.search(rf" PUSH {uri}\|{guid[2]}\|msg\s*1", text)
    assert re.search(rf" CONFIRM {uri}\|{guid[2]}\|", text)
    assert re.search(r" SESSION CONNECTED\|", text)


@pytest.mark.parametrize(("verbosity", "shown"), [("silent", ()), ("error", ("ERROR",)), ("info", ("ERROR", "INFO"))])
def test_verbosity_selects_the_shown_events(node: ProcessWorld, verbosity: str, shown: tuple[str, ...]) -> None:
    code, output = run("-b", node.broker.uri, "-v", verbosity, "--log-format", "%s %m\\n", text="start\nnonsense\n")
    assert code == 1
    assert {*re.findall(r"^([A-Z]+) ", output, re.MULTILINE)} == {*shown}


def test_debug_verbosity_shows_log_lines_of_the_client_library(node: ProcessWorld) -> None:
    arguments = ("-b", node.broker.uri, "--log-format", "%c %m\\n")
    assert "bmqtwist.sdk connected" in run(*arguments, "-v", "debug", text="start\n")[1]
    assert "bmqtwist.sdk" not in run(*arguments, text="start\n")[1]


def test_session_events_are_shown_while_the_shell_waits_for_input(tmp_path: Path) -> None:
    """After a kill and start of the broker the events are shown, the message is delivered again, and the queue is usable."""
    uri = "bmq://d/lost"
    with running_world(tmp_path) as world:
        with shell("-b", world.broker.uri, "-d") as process:
            started(process, uri)
            process.send(f'post uri="{uri}" payload=["before"]')
            process.capture("PUSH #")
            world.crash()
            process.capture("EVENT received:.*CONNECTION_LOST")
            process.send(f'confirm uri="{uri}" guid="*"')
            assert process.capture(r"ERROR.*<--.*confirmMessage.*\((-?\d+)\)")[1] == "-3"
            process.send(f'post uri="{uri}" payload=["meanwhile"]')
            assert process.capture(r"<--.*post.*\((-?\d+)\)")[1] == "0"
            world.broker.launch()
            for event in ("RECONNECTED", rf"QUEUE_REOPEN_RESULT.*queue = {re.escape(uri)}", "STATE_RESTORED"):
                process.capture(f"EVENT received:.*{event}")
            process.send("wait messages=2")
            process.capture("2 messages have arrived")
            assert [each[3] for each in listed(process, uri)] == ["before", "meanwhile"]
            process.send(f'confirm uri="{uri}" guid="*"')
            process.capture(r"INFO.*<--.*confirmMessage.*\(0\)")
            process.send("stop")
            process.capture(r"stop\(\)")
            process.end()
        assert world.stored(uri) == 0


def test_start_without_a_broker_times_out_and_can_be_repeated(node: ProcessWorld, tmp_path: Path) -> None:
    with shell("-b", f"tcp://127.0.0.1:{free_port()}") as process:
        process.send("start")
        assert process.capture(r"ERROR.*session.start.*\((-?\d+)\)")[1] == "-2"
        process.send("start async=true", "stop")
        process.capture(r"stop\(\)")
        assert process.end() == 1


def test_a_session_can_be_stopped_and_started_again(node: ProcessWorld) -> None:
    uri = "bmq://d/again"
    with shell("-b", node.broker.uri) as process:
        for _ in range(3):
            started(process, uri)
            process.send("stop")
            process.capture(r"stop\(\)")
        assert process.end() == 0


def test_the_environment_names_the_broker(node: ProcessWorld) -> None:
    uri = node.broker.uri
    for environment in ({"BMQ_BROKER_URI": uri}, {"BMQ_BROKER": uri}, {"BMQ_PORT": str(node.broker.port)}):
        assert run(text="start\n", environment=environment)[0] == 0


@pytest.mark.parametrize(("arguments", "words"), [
    (("--mode", "storage"), "`bmq storage`"), (("-s", "x"), "`bmq storage`"), (("-b", "nonsense"), "tcp://host:port"),
    (("--verbosity", "loud"), "loud"), (("--messageProperties", "{"), "messageProperties: not JSON"),
    (("--subscriptions", '[{"expression": "x >"}]'), "Invalid subscription"), (("--script", "/nowhere"), "/nowhere"),
    (("--profile", "/nowhere"), "/nowhere"), (("-b", "tls://x", "--tls-versions", "SSL"), "TLSv1.3"),
    (("--log", "/nowhere/log"), "/nowhere/log"),
])
def test_an_invalid_command_line_gives_exit_code_2_and_a_message(arguments: tuple[str, ...], words: str) -> None:
    code, output = run(*arguments)
    assert code == 2 and words in output and "Traceback" not in output


def test_options_of_the_original_without_effect_are_accepted(node: ProcessWorld) -> None:
    assert run("-b", node.broker.uri, "-D", "-t", "4", "--nosessioneventhandler", "--timeout", "30", text="start\n")[0] == 0


def test_the_commands_of_the_documentation_work(node: ProcessWorld) -> None:
    text = (Path(__file__).parents[2] / "docs" / "shell.md").read_text(encoding="utf-8")
    example = text.partition("## Commands")[2].split("```")[1]
    assert "confirm uri=" in example
    code, output = run("-b", node.broker.uri, text=example.replace("list\n", "wait\nlist\n"))
    assert code == 0 and "confirmMessage() => SUCCESS" in output
    assert "= 'hello', with properties: [ x (INT32) = 10 ]" in output
    assert node.stored("bmq://bmq.test.persistent.priority/qqq") == 0


def test_the_documentation_names_every_command_and_option() -> None:
    text = (Path(__file__).parents[2] / "docs" / "shell.md").read_text(encoding="utf-8")
    for name, members in commands.COMMANDS.items():
        assert f"`{name}`" in text or f"{name} " in text, name
        for member in members:
            assert f"`{member}`" in text, member
    for option in set(re.findall(r"`[^`\n]*?(--[a-zA-Z-]+)", text)):
        assert option in {name for parameter in command.shell.params for name in parameter.opts} | {"--help"}, option


def test_help_shows_the_commands() -> None:
    code, output = run(text="help\n")
    assert code == 0
    for verb in ("start", "stop", "open", "configure", "close", "post", "batch-post", "load-post", "list", "confirm", "bye"):
        assert re.search(rf"^  {verb}\b", output, re.MULTILINE)


def test_the_shell_ends_when_the_reader_of_its_output_closes() -> None:
    process = subprocess.Popen([BMQ, "shell"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.close()
        process.stdin.write(b"help\n" * 3)
        process.stdin.flush()
        assert process.wait(60) == 141
    finally:
        process.kill()
        process.communicate()


# -- in a terminal -----------------------------------------------------------------------------------------------------

def test_in_a_terminal_events_do_not_damage_typed_input(node: ProcessWorld) -> None:
    uri = "bmq://d/terminal"
    with shell("-b", node.broker.uri, terminal=True) as process:
        process.capture("'help' shows the commands")
        process.capture("> ")
        started(process, uri, "read")
        process.capture("> ")
        process.type("lis")
        process.capture("lis")
        assert run("-b", node.broker.uri, text=f'start\nopen uri="{uri}" flags="write,ack"\npost uri="{uri}" payload="x"\n'
                   )[0] == 0
        process.capture("INFO ==> EVENT received:.*PUSH.*")
        process.capture("> lis")  # the incomplete input is shown again
        process.type("t\n")
        process.capture("Unconfirmed message listing: 1 messages")
        process.send("nonsense")
        process.capture("ERROR Unknown command")
        process.type("\x1b[A\x1b[A\n")  # two lines up: list
        process.capture("Unconfirmed message listing: 1 messages")
        process.capture("> ")
        process.type("to be discarded")
        process.capture("to be discarded")
        process.interrupt("\n> ")
        process.send("help")
        process.capture("batch-post")
        process.capture("> ")
        process.type("\x04")
        process.capture("Goodbye.")
        assert process.wait() == 0  # errors in interactive use do not change the exit code


def test_in_a_terminal_ctrl_c_ends_a_command_and_not_the_shell(node: ProcessWorld) -> None:
    uri = "bmq://d/interrupted"
    with shell("-b", node.broker.uri, terminal=True) as process:
        started(process, uri, "write")
        process.send(f'batch-post uri="{uri}" postInterval=1 eventsCount=0 msgSize=10')
        until(lambda: node.stored(uri))
        process.type("\x03")
        process.capture("Interrupted")
        process.send(f'close uri="{uri}"')
        process.capture(r"<--.*closeQueue.*\(0\)")
        process.send("quit")
        assert process.wait() == 0


def test_in_a_terminal_the_history_is_kept_and_commands_are_completed(node: ProcessWorld, tmp_path: Path) -> None:
    environment = {"BMQ_SHELL_HISTORY": str(tmp_path / "history")}
    with shell("-b", node.broker.uri, terminal=True, environment=environment) as process:
        process.capture("> ")
        process.type("batc\t")
        process.capture("batch-post")
        process.interrupt("\n> ")
        process.send("sta" + "\t")
        process.capture(r"session.start.*\(0\)")
        process.capture("> ")
        process.type("\x04")
        assert process.wait() == 0
    with shell("-b", node.broker.uri, terminal=True, environment=environment) as process:
        process.capture("> ")
        process.type("\x1b[A\n")
        process.capture(r"session.start.*\(0\)")


def test_sigint_ends_a_script_with_130(node: ProcessWorld) -> None:
    uri = "bmq://d/sigint"
    with shell("-b", node.broker.uri) as process:
        started(process, uri, "write")
        process.send(f'batch-post uri="{uri}" postInterval=1')
        until(lambda: node.stored(uri))
        process.signal(signal.SIGINT)
        process.capture("Interrupted")
        process.capture("Goodbye")
        assert process.wait() == 130


def test_command_line_options_override_a_profile(node: ProcessWorld, tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    profile.write_text(json.dumps({"broker": node.broker.uri, "dumpMsg": True, "logFormat": "%s %m\\n", "unknown": 1}))
    code, output = run("--profile", str(profile), "--log-format", "%c %m\\n", text="start\n")
    assert code == 0 and "BMQ.SHELL <-- session.start" in output
    code, output = run("--profile", str(profile), "--dumpprofile")
    tree = json.loads(output)
    assert code == 0 and tree["broker"] == node.broker.uri and tree["dumpMsg"] is True and tree["eventsCount"] == "0"


@pytest.mark.parametrize("name", ["bmqtool", "bmqtool.tsk"])
def test_the_program_started_as_bmqtool_behaves_as_bmqtool(node: ProcessWorld, tmp_path: Path, name: str) -> None:
    """It needs no `shell`, identifies itself as bmqtool, and its exit code does not depend on its commands."""
    link = tmp_path / name
    link.symlink_to(BMQ)
    for program in ((str(link),), (str(link), "shell")):
        with shell("-b", node.broker.uri, program=program) as process:
            started(process, "bmq://d/tool")
            process.send('open uri="bmq://nowhere/x" flags="read"')
            assert int(process.capture(r"ERROR.*openQueueSync\(\) => .*\((-?\d+)\)")[1]) < 0
            process.send("quit")
            assert process.wait() == 0
    assert len(node.logged(f"userAgent: 'bmqtool libbmq:{__version__}'", name)) >= 2
    with shell("-b", node.broker.uri, "--stop-on-error", program=(str(link),)) as process:
        process.send('open uri="bmq://nowhere/x" flags="read"')
        assert process.wait() == 1
