"""`bmq config`, `check`, `password`, `completion`, `admin`, help and exit codes, with the installed command."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.certificates import certificate
from kit.cli_kit import BMQ, Cli, running_broker
from kit.config import ConfigDirectory
from kit.process import BrokerProcess, free_port

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.process


@pytest.fixture
def cli() -> Cli:
    """Return the command, without a broker."""
    return Cli("tcp://127.0.0.1:1")


@pytest.fixture
def config(tmp_path: Path) -> ConfigDirectory:
    """Return a configuration directory with two domains."""
    made = ConfigDirectory(tmp_path / "one", 30114)
    made.domain("d", "fanout")
    made.domain("e")
    return made


def line_of(path: Path, text: str) -> int:
    """Return the number of the line with a text."""
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def test_config_show_lists_every_value_with_its_origin(cli: Cli, config: ConfigDirectory) -> None:
    """The line of a file, a default, the environment, or derived from another value."""
    done = cli("config", "show", str(config.etc), "--json", env={"BMQ_HOST_NAME": "host2", "BMQ_PORT": "31000"})
    assert done.code == 0, done.err
    values = {(each["file"], each["path"]): each for each in done.tree["values"]}
    broker, tcp = "bmqbrkrcfg.json", "appConfig.networkInterfaces.tcpInterface"
    name = values[broker, "appConfig.brokerInstanceName"]
    assert name["value"] == "test"
    assert name["origin"] == {"kind": "file", "line": line_of(config.etc / broker, "brokerInstanceName")}
    assert values[broker, "appConfig.hostName"]["value"] == "host2"
    assert values[broker, "appConfig.hostName"]["origin"] == {"kind": "environment", "variable": "BMQ_HOST_NAME"}
    assert values[broker, f"{tcp}.listeners[TCPInterface].port"]["origin"]["variable"] == "BMQ_PORT"
    assert values[broker, f"{tcp}.port"] == {"file": broker, "path": f"{tcp}.port", "value": 31000,
                                             "origin": {"kind": "derived"}}
    assert values[broker, "appConfig.bmqtwist.durability"]["origin"] == {"kind": "default"}
    assert values[broker, f"{tcp}.ioThreads"]["ignored"]
    assert values["clusters.json", "myClusters[c3].nodes[n1].dataCenter"]["value"] == "dc1"
    assert values["(at the start)", "listener[TCPInterface]"]["value"] == "tcp://127.0.0.1:31000"
    assert values["domains/d.json", "definition.parameters.mode.fanout.appIDs"]["value"] == ["foo", "bar", "baz"]


def test_config_show_can_be_limited_to_a_path(cli: Cli, config: ConfigDirectory) -> None:
    """By path, domain and origin. The default directory is `etc`; the environment can be excluded."""
    none = cli("config", "show", "-k", "nope.*", cwd=config.root)
    assert (none.code, none.out) == (0, b"") and "no member matches nope.*" in none.err
    done = cli("config", "show", "-k", "*.messageTtl", "--domain", "e", cwd=config.root)
    number = line_of(config.etc / "domains" / "e.json", "messageTtl")
    assert re.fullmatch(rf"domains/e.json\n  definition.parameters.messageTtl = 3600 +line {number}\n", done.out.decode())
    everything, changed = (cli("config", "show", str(config.etc), *more).lines for more in ((), ("--changed",)))
    assert len(changed) < len(everything) and not [line for line in changed if line.endswith("default")]
    plain = cli("config", "show", str(config.etc), "--no-environment", "-k", "appConfig.hostName",
                env={"BMQ_HOST_NAME": "host2"})
    assert '"n1"' in plain.out.decode()
    assert cli("config", "show", str(config.etc), "--domain", "nope").code == 2


def test_config_show_masks_secrets_and_reports_corrected_values(cli: Cli, config: ConfigDirectory) -> None:
    """A strong broadcast domain is changed to eventual."""
    config.broker["appConfig"]["authentication"] = {"authenticators": [{"name": "BasicAuthenticator", "settings": [
        {"key": "ann", "value": {"stringVal": "s3cret"}}]}]}
    config.write()
    config.domain("b", "broadcast", in_memory=True, strong=True)
    done = cli("config", "show", str(config.etc))
    assert done.code == 0 and b"s3cret" not in done.out and b'"***"' in done.out
    assert re.search(rb"consistency.eventual = \{\} +derived", done.out)


def test_config_show_reports_the_position_of_an_invalid_value(cli: Cli, config: ConfigDirectory) -> None:
    """With exit code 2."""
    config.domain_text("d", '{"definition": {}}')
    done = cli("config", "show", str(config.etc))
    assert done.code == 2 and b"domains/e.json" in done.out and "d.json:1: definition.location: is missing" in done.err
    config.broker["appConfig"]["hostName"] = 5
    config.write()
    done = cli("config", "show", str(config.etc))
    assert done.code == 2 and "appConfig.hostName: found number 5" in done.err
    assert cli("config", "show", str(config.root / "nowhere")).code == 2


def test_config_diff_compares_effective_values(cli: Cli, config: ConfigDirectory, tmp_path: Path) -> None:
    """An explicit default, another order and a member without effect are no differences."""
    other = ConfigDirectory(tmp_path / "two", 30114, app={"routeCommandTimeoutMs": 3000})
    shutil.copytree(config.etc / "domains", other.etc / "domains", dirs_exist_ok=True)
    app = other.broker["appConfig"]
    other.broker["appConfig"] = dict(reversed(app.items()))
    app["networkInterfaces"]["tcpInterface"]["ioThreads"] = 99
    other.clusters = json.loads(json.dumps(other.clusters).replace(str(other.root), str(config.root)))
    for part in ("taskConfig", "appConfig"):
        other.broker[part] = json.loads(json.dumps(other.broker[part]).replace(str(other.root), str(config.root)))
    other.write()
    done = cli("config", "diff", str(config.etc), str(other.etc))
    assert (done.code, done.out) == (0, b"No difference.\n")
    done = cli("config", "diff", "--all", "--json", str(config.etc), str(other.etc))
    assert done.code == 1
    change, = done.tree["changes"]
    assert change["path"].endswith("tcpInterface.ioThreads")
    assert (change["left"]["value"], change["right"]["value"]) == (4, 99)


def test_config_diff_lists_different_domains_and_values(cli: Cli, config: ConfigDirectory, tmp_path: Path) -> None:
    """With exit code 1; different passwords are masked."""
    secret = {"authenticators": [{"name": "BasicAuthenticator", "settings": [
        {"key": "ann", "value": {"stringVal": "one"}}]}]}
    config.broker["appConfig"].update(authentication=secret, hostTags="")
    config.write()
    other = tmp_path / "other"
    shutil.copytree(config.etc, other)
    text = (other / "bmqbrkrcfg.json").read_text()
    (other / "bmqbrkrcfg.json").write_text(text.replace('"one"', '"two"').replace('"hostTags": ""', '"hostTags": "x"'))
    (other / "domains" / "e.json").rename(other / "domains" / "f.json")
    domain = (other / "domains" / "d.json").read_text()
    (other / "domains" / "d.json").write_text(domain.replace('"messageTtl": 3600', '"messageTtl": 60'))
    done = cli("config", "diff", str(config.etc), str(other))
    assert done.code == 1 and done.lines == [
        "- domain e", "+ domain f", "bmqbrkrcfg.json", '  appConfig.hostTags: "" -> "x"',
        '  appConfig.authentication.authenticators[BasicAuthenticator].settings[ann].value.stringVal: "***" -> "***"',
        "domains/d.json", "  definition.parameters.messageTtl: 3600 -> 60"]
    tree = cli("config", "diff", "--json", str(config.etc), str(other)).tree
    assert (tree["same"], tree["domainsAdded"], tree["domainsRemoved"], len(tree["changes"])) == (False, ["f"], ["e"], 3)


def test_config_check_prints_the_same_as_json(cli: Cli, config: ConfigDirectory) -> None:
    """With the same exit code."""
    good = cli("check", "--json", str(config.etc), env={"BMQ_PORT": str(free_port())})  # which it tries
    assert good.code == 0 and good.tree["good"]
    config.domain_text("d", "{")
    bad = cli("check", "--json", str(config.etc))
    finding = next(each for each in bad.tree["findings"] if each["severity"] == "error")
    assert bad.code == 2 and finding["file"].endswith("domains/d.json") and finding["line"] == 1
    assert cli("check", str(config.etc)).lines[-1] == "The configuration cannot be used."


def test_a_password_from_standard_input_is_hashed(cli: Cli) -> None:
    """With text and JSON output."""
    assert cli("password", "--stdin", stdin=b"s3cret\n").out.startswith(b"$scrypt$")
    assert cli("password", "--stdin", "--json", stdin=b"s3cret\n").tree["hash"].startswith("$scrypt$")
    assert cli("password", "--stdin", stdin=b"\n").code == 2


def test_storage_commands_have_the_same_options_and_exit_codes(tmp_path: Path) -> None:
    """JSON output, exit codes, a closed pipe, and progress for large files."""
    with running_broker(tmp_path / "broker") as (broker, cli):
        cli("produce", "bmq://d.priority/stored", "-n", "500", "x")
        broker.terminate()
    storage = str(broker.config.storage)
    verified = cli("storage", "verify", "--json", storage)
    assert verified.code == 0 and verified.tree["Good"] and verified.out.count(b"\n") == 1
    assert cli("storage", "verify", str(tmp_path)).code == 2
    journal = next(path for path in broker.config.storage.glob("*.bmq_journal") if path.stat().st_size > 10_000)
    pipe = subprocess.run(["bash", "-c", f"{BMQ} storage show {journal} --details | head -1; echo ${{PIPESTATUS[0]}}"],
                          capture_output=True, env=cli.environment, timeout=30, check=False)
    assert pipe.stdout.splitlines()[-1] == b"141" and pipe.stderr == b""
    large = tmp_path / journal.name
    shutil.copy(journal, large)
    os.truncate(large, 64 << 20)
    done, seen = cli.run_on_terminal("storage", "show", str(large), "--summary")
    assert done.code == 0 and b"reading" in seen and b"100%" in seen


# -- the command as a whole -------------------------------------------------------------------------------------------

def test_help_lists_every_command_and_every_exit_code(cli: Cli) -> None:
    """The help of commands whose modules are not imported is complete, too; docs/cli.md has the table."""
    from bmqtwist.cli.exits import EXIT_CODES
    from bmqtwist.cli.main import COMMANDS, main
    done = cli("--help")
    assert done.code == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", done.out.decode(), re.MULTILINE)
        command = main.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None and command.name == name and command.help
    document = (ROOT / "docs" / "cli.md").read_text()
    for code, text in EXIT_CODES.items():
        assert re.search(rf"^    {code} ", done.out.decode(), re.MULTILINE)
        assert f"| {code} | {text} |" in document


def test_a_misspelt_command_is_answered_with_the_nearest(cli: Cli) -> None:
    """With exit code 2."""
    done = cli("cosnume")
    assert done.code == 2 and "Did you mean 'consume'?" in done.err


def test_help_does_not_import_slow_modules() -> None:
    """Neither the SDK nor the broker nor an event loop."""
    script = ("import sys; sys.argv[1:] = ['--help']\nfrom bmqtwist.cli.main import main\n"
              "try:\n    main()\nexcept SystemExit:\n    pass\n"
              "slow = {'asyncio', 'ssl', 'twisted', 'construct', 'bmqtwist.sdk', 'bmqtwist.wire', 'bmqtwist.broker'}\n"
              "sys.exit(str(slow & set(sys.modules)) if slow & set(sys.modules) else 0)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_a_closed_output_pipe_is_no_error_of_any_command(cli: Cli, config: ConfigDirectory) -> None:
    """With `head -1` as the reader of the pipe."""
    done = subprocess.run(["bash", "-c", f"{BMQ} config show {config.etc} | head -1; echo ${{PIPESTATUS[0]}}"],
                          capture_output=True, env=cli.environment, timeout=30, check=False)
    first, code = done.stdout.decode().splitlines()
    assert first == "bmqbrkrcfg.json" and code in ("0", "141") and done.stderr == b""
    with Path("/dev/full").open("wb") as full:
        disk = subprocess.run([BMQ, "config", "show", str(config.etc)], stdout=full, stderr=subprocess.PIPE,
                              env=cli.environment, timeout=30, check=False)
    assert disk.returncode == 5 and b"Traceback" not in disk.stderr and b"No space left" in disk.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(cli: Cli, shell: str) -> None:
    """The script calls the command back."""
    script = cli("completion", shell).out.decode()
    assert f"_BMQ_COMPLETE={shell}_complete" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script.encode(), capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(("words", "wanted"), [("bmq con", {"config", "consume"}), ("bmq config ", {"show", "diff"}),
                                               ("bmq produce --json", {"--json", "--json-lines"})])
def test_commands_and_options_are_completed(cli: Cli, words: str, wanted: set[str]) -> None:
    """With the request of the script for bash."""
    parts = words.split(" ")
    done = cli(env={"_BMQ_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(parts) - 1)})
    assert {line.partition(",")[2] for line in done.lines} == wanted


def test_completion_refuses_an_unknown_shell(cli: Cli) -> None:
    """With exit code 2."""
    assert cli("completion", "tcsh").code == 2


@pytest.mark.parametrize(("command", "code"), [
    ("HELP", 0), ("CLUSTERS LIST", 0), ("CLUSTERS CLUSTER c3 STATUS", 0), ("STAT LIST_TUNABLES", 0),
    ("CLUSTERS CLUSTER c3 STORAGE REPLICATION GET QUORUM", 0), ("DOMAINS RESOLVER CACHE_CLEAR ALL", 0),
    ("CLUSTERS CLUSTER c3 STORAGE REPLICATION SET QUORUM 0", 0), ("DOMAINS DOMAIN d.fanout INFOS", 0),
    ("DOMAINS DOMAIN nope INFOS", 1), ("CLUSTERS CLUSTER nope STATUS", 1), ("BOGUS", 1),
    ("DOMAINS DOMAIN d.fanout QUEUE nope LIST 0 1", 1), ("CLUSTERS CLUSTER c3 STORAGE PARTITION 99 ENABLE", 1),
])
def test_admin_reports_failures_by_its_exit_code(secured: tuple[BrokerProcess, Cli], command: str, code: int) -> None:
    """With text and JSON output."""
    environment = {"BMQ_USER": "ann", "BMQ_PASSWORD": "s3cret"}
    for options in ((), ("--json",)):
        assert secured[1].run_in_process("admin", *options, *command.split(), env=environment).code == code


# -- connections ------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Cli]]:
    """Yield a broker that requires a password."""
    hashed = Cli("")("password", "--stdin", stdin=b"s3cret\n").out.decode().strip()
    authentication = {
        "authenticators": [{"name": "BasicAuthenticator", "settings": [{"key": "ann", "value": {"stringVal": hashed}}]}],
        "anonymousCredential": {"disallow": {}}}
    with running_broker(tmp_path_factory.mktemp("secured"), app={"authentication": authentication}) as both:
        yield both


def test_a_password_comes_from_a_file_or_the_environment(secured: tuple[BrokerProcess, Cli], tmp_path: Path) -> None:
    """For all commands."""
    cli = secured[1]
    (tmp_path / "secret").write_text("s3cret\n")
    file = ("--user", "ann", "--password-file", str(tmp_path / "secret"))
    environment = {"BMQ_USER": "ann", "BMQ_PASSWORD": "s3cret"}
    uri = "bmq://d.priority/secured"
    assert cli("produce", *file, uri, "x").code == 0
    assert cli("consume", uri, "-n", "1", env=environment).out == b"x\n"
    assert cli("admin", *file, "CLUSTERS", "LIST").code == 0
    assert cli("tail", uri, "--no-follow", env=environment).code == 0
    assert cli("bench", uri, "-n", "10", "-q", env=environment).code == 0


@pytest.mark.parametrize("command", [("produce", "bmq://d.priority/q", "x"), ("admin", "HELP"),
                                     ("tail", "bmq://d.priority/q")])
def test_a_refused_login_is_reported_with_its_reason(secured: tuple[BrokerProcess, Cli], command: tuple[str, ...]) -> None:
    """With exit code 4, before the timeout."""
    cli = secured[1]
    none = cli(*command)
    assert none.code == 4 and none.err
    wrong = cli(*command, env={"BMQ_USER": "ann", "BMQ_PASSWORD": "wrong"})
    assert wrong.code == 4 and "password" in wrong.err
    asked = cli(*command, "--user", "ann")
    assert asked.code == 2 and "--password-file" in asked.err


def test_a_server_that_is_no_broker_is_reported_as_such(cli: Cli) -> None:
    """With exit code 3 after the timeout, if the server sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(listener.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        where = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        for command in (("produce", "bmq://d/q", "x"), ("consume", "bmq://d/q"), ("admin", "HELP")):
            done = cli(*command, "-b", where, "--timeout", "0.7")
            assert done.code == 3 and "Is it a broker?" in done.err
        listener.close()


def test_the_older_options_for_host_and_port_still_work(cli: Cli) -> None:
    """They override the address in the environment."""
    port = free_port()
    for done in (cli("admin", "--host", "127.0.0.1", "--port", str(port), "HELP"),
                 cli("admin", "-b", f"tcp://127.0.0.1:{port}", "HELP", env={"BMQ_PORT": "2"}),
                 cli("admin", "-b", f"tcp://127.0.0.1:{port}", "HELP", env={"BMQ_PORT": "x"}),
                 cli("admin", "--host", "127.0.0.1", "--port", str(port), "HELP", env={"BMQ_PORT": "tcp://10.0.0.1:1"})):
        assert done.code == 3 and f"127.0.0.1:{port}" in done.err


def test_the_tls_certificate_is_verified_unless_disabled(tmp_path: Path) -> None:
    """With the certificates of a file; a failure is reported at once."""
    cert, key = certificate(tmp_path)
    port = free_port()
    tcp = {"listeners": [{"name": "secure", "address": "127.0.0.1", "port": port, "tls": True}]}
    with running_broker(tmp_path / "broker", port=port, app={"tcp": tcp, "tlsConfig": {
            "certificateAuthority": str(cert), "certificate": str(cert), "key": str(key)}}) as (_, cli):
        uri, where = "bmq://d.priority/tls", ("-b", f"tls://localhost:{port}")
        assert cli("produce", *where, "--ca", str(cert), uri, "x").code == 0
        assert cli("consume", "-b", f"tcp://localhost:{port}", "--insecure", uri, "-n", "1").out == b"x\n"
        assert cli("admin", *where, "--ca", str(cert), "CLUSTERS", "LIST").code == 0
        for command in (("produce", uri, "x"), ("admin", "HELP")):
            done = cli(*command, *where)
            assert done.code == 3 and "CERTIFICATE_VERIFY_FAILED" in done.err
        plain = cli("produce", "-b", f"tcp://localhost:{port}", uri, "x", "--timeout", "5")
        assert plain.code in (3, 4) and "TLS" in plain.err


def test_invalid_certificates_and_a_peer_without_tls_are_reported(cli: Cli) -> None:
    assert cli("admin", "--ca", os.devnull, "HELP").code == 2
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def answer() -> None:
            for _ in range(2):
                connection = listener.accept()[0]
                connection.recv(1000)
                connection.sendall(b"not TLS at all")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        done = cli("admin", "-b", f"tls://127.0.0.1:{listener.getsockname()[1]}", "--insecure", "HELP")
        assert done.code == 3 and "no TLS with" in done.err
