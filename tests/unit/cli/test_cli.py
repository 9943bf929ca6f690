"""Commands `bmq` and `bmqbrkr`: output and exit codes."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kit.config import ConfigDirectory
from kit.process import BrokerProcess, free_port

from bmqtwist.cli import bmqbrkr
from bmqtwist.cli.main import main
from bmqtwist.security.passwords import StoredPassword


def bmq(*arguments: str, stdin: str = "", env: dict[str, str] | None = None) -> Result:
    """Run `bmq` with these arguments."""
    return CliRunner().invoke(main, list(arguments), input=stdin, env=env)


@contextlib.contextmanager
def serve_once(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Accept one connection and serve it with a function instead of a broker; yields the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                serve(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield int(listener.getsockname()[1])
    listener.close()
    thread.join(10)


def test_bmq_password_prints_a_hash_that_matches_only_the_password() -> None:
    """Each run makes a different hash."""
    first, second = bmq("password", "--stdin", stdin="s3cret\n"), bmq("password", "--stdin", stdin="s3cret\n")
    assert first.exit_code == 0 and first.output != second.output
    stored = StoredPassword(first.output.strip())
    assert stored.is_hash and stored.matches(b"s3cret") and not stored.matches(b"s3cret\n")
    assert bmq("password", "--stdin", stdin="\n").exit_code == 2


def test_bmq_check_prints_findings_and_sets_its_exit_code(tmp_path: Path) -> None:
    """Scripts that deploy configurations depend on the exit code."""
    config = ConfigDirectory(tmp_path, free_port())
    config.domain("d")
    good = bmq("check", str(config.etc))
    assert good.exit_code == 0 and good.output.endswith("The configuration is good.\n")
    assert bmq("check", "--strict", str(config.etc)).exit_code == 2  # the original's members without effect here
    (config.etc / "clusters.json").unlink()
    bad = bmq("check", str(config.etc))
    assert bad.exit_code == 2 and "clusters.json" in bad.output
    assert bmq("check", str(tmp_path / "nowhere")).exit_code == 2


def test_bmq_admin_without_a_broker_prints_advice() -> None:
    """The exit code is 3."""
    result = bmq("admin", "--port", str(free_port()), "HELP")
    assert result.exit_code == 3
    assert "Is it running" in result.output


def test_bmq_admin_reports_a_peer_that_is_not_a_broker() -> None:
    """Peers that send nothing, close the connection, or send invalid data."""
    done = threading.Event()
    with serve_once(lambda connection: done.wait(10) and None) as port:
        result = bmq("admin", "--port", str(port), "--timeout", "0.2", "HELP")
        done.set()
    assert result.exit_code == 3 and "within 0.2 s" in result.output

    def closing(connection: socket.socket) -> None:
        connection.recv(1000)

    with serve_once(closing) as port:
        result = bmq("admin", "--port", str(port), "HELP")
    assert result.exit_code == 4 and "authentication" in result.output

    def nonsense(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"\x80\x00\x00\x00 400 Bad Request\r\n\r\n")

    with serve_once(nonsense) as port:
        result = bmq("admin", "--port", str(port), "HELP")
    assert result.exit_code == 3 and "protocol" in result.output


@pytest.mark.process
def test_bmq_admin_runs_commands_at_a_broker(broker_process: BrokerProcess) -> None:
    """A single command, several from standard input, JSON output, and the exit code of errors."""
    broker_process.config.domain("d")
    broker_process.start()
    port = ("--port", str(broker_process.port))
    listing = bmq("admin", *port, "clusters", "list")
    assert listing.exit_code == 0 and "[LOCAL ] c3:" in listing.output
    assert json.loads(bmq("admin", *port, "--json", "DOMAINS DOMAIN d INFOS").output)["domainInfo"]["name"] == "d"
    pretty = bmq("admin", "--pretty", env={"BMQ_PORT": str(broker_process.port)}, stdin="CLUSTERS LIST\n\nHELP\n")
    assert "clusterList" in pretty.output and '"help"' in pretty.output
    assert bmq("admin", *port, "BOGUS").exit_code == 1
    assert bmq("admin", *port, "--json", "DOMAINS DOMAIN nope INFOS").exit_code == 1


@pytest.mark.process
def test_bmq_admin_authenticates_if_the_broker_requires_it(broker_process: BrokerProcess, tmp_path: Path) -> None:
    """The password is in the environment or a file; without it, the exit code is 4."""
    hashed = bmq("password", "--stdin", stdin="s3cret\n").output.strip()
    broker_process.config.broker["appConfig"]["authentication"] = {
        "authenticators": [{"name": "BasicAuthenticator", "settings": [{"key": "ann", "value": {"stringVal": hashed}}]}],
        "anonymousCredential": {"disallow": {}}}
    broker_process.config.write()
    broker_process.start()
    assert not [line for line in broker_process.records if hashed in line]  # the configuration it prints is masked
    command = ("admin", "--port", str(broker_process.port), "CLUSTERS", "LIST")
    assert bmq(*command).exit_code == 4
    assert bmq(*command, env={"BMQ_USER": "ann", "BMQ_PASSWORD": "s3cret"}).exit_code == 0
    wrong = bmq(*command, env={"BMQ_USER": "ann", "BMQ_PASSWORD": "wrong"})
    assert wrong.exit_code == 4 and "Invalid username or password" in wrong.output
    (tmp_path / "secret").write_text("s3cret\n")
    assert bmq("admin", "--user", "ann", "--password-file", str(tmp_path / "secret"), *command[1:]).exit_code == 0


@pytest.mark.parametrize("arguments", [[], ["-p", "x", "etc"], ["-p", "70000", "etc"], ["--bogus", "etc"], ["a", "b"]])
def test_an_invalid_command_line_of_bmqbrkr_prints_a_panic_line(arguments: list[str],
                                                                capsys: pytest.CaptureFixture[str]) -> None:
    """The error is on stderr; the exit code is 1."""
    with pytest.raises(SystemExit) as failed:
        bmqbrkr.main(arguments, None, lambda *rest: pytest.fail("started"))
    assert failed.value.code == 1
    assert capsys.readouterr().err.startswith("PANIC [STARTUP] (-1): ")


def test_bmqbrkr_has_the_options_of_the_original() -> None:
    """Short and long options."""
    parser = bmqbrkr.make_parser()
    short = parser.parse_args(["-i", "I", "-h", "H", "-t", "T", "-d", "D", "-p", "5", "etc"])
    long = parser.parse_args(["--instanceId", "I", "--hostName", "H", "--hostTags", "T", "--hostDataCenter", "D",
                              "--port", "5", "etc"])
    assert short == long
    assert (short.instanceId, short.hostName, short.hostTags, short.hostDataCenter, short.port, short.config) == (
        "I", "H", "T", "D", 5, "etc")


@pytest.mark.process
def test_connections_above_the_limit_are_refused_until_one_closes(broker_process: BrokerProcess) -> None:
    """The limit is maxConnections."""
    tcp = broker_process.config.broker["appConfig"]["networkInterfaces"]["tcpInterface"]
    tcp["maxConnections"] = 2
    broker_process.config.write()
    broker_process.start()
    held = [socket.create_connection(("127.0.0.1", broker_process.port)) for _ in range(2)]
    command = ("admin", "--port", str(broker_process.port), "--timeout", "20", "HELP")
    assert bmq(*command).exit_code in (3, 4)
    broker_process.expect("refused [connections: 2, maxConnections: 2")
    held[0].close()
    for _ in range(100):
        if bmq(*command).exit_code == 0:
            break
    else:
        pytest.fail("a free place is not granted")
    held[1].close()


@pytest.mark.process
def test_a_second_broker_on_a_used_storage_directory_does_not_start(broker_process: BrokerProcess, tmp_path: Path) -> None:
    """The second broker prints the reason and does not change the files."""
    broker_process.start()
    second = BrokerProcess(tmp_path / "second", free_port())
    partition = second.config.clusters["myClusters"][0]["partitionConfig"]
    partition["location"] = str(broker_process.config.storage)
    second.config.write()
    second.launch()
    assert second.wait() == 6
    assert any("used by another broker" in line for line in second.records)
    second.cleanup()


@pytest.mark.process
def test_signals_other_than_stop_signals_do_not_end_the_broker(broker_process: BrokerProcess) -> None:
    """SIGHUP reopens a moved log file; other signals are logged and ignored."""
    broker_process.start()
    process = broker_process._running_process()
    [log] = (broker_process.config.root / "logs").glob("bmqbrkr.log")
    log.rename(log.with_suffix(".old"))
    process.send_signal(signal.SIGHUP)
    broker_process.expect("SIGHUP: logs reopened")
    assert "SIGHUP: logs reopened" in log.read_text()
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        process.send_signal(number)
        broker_process.expect(f"{number.name}: ignored")
    assert broker_process.stop() == 0


@pytest.mark.process
def test_a_used_port_fails_the_start(broker_process: BrokerProcess) -> None:
    """The exit code is 6, and the error names the address."""
    with socket.create_server(("127.0.0.1", broker_process.port)):
        broker_process.launch()
        assert broker_process.wait() == 6
    assert any("Cannot listen at '127.0.0.1:" in line for line in broker_process.records)
