"""twistd plug-in of a broker: options, HTTP sites, and failures of the start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.children import time_limited
from kit.config import ConfigDirectory
from kit.process import STARTED, free_port
from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins
from twisted.python.failure import Failure
from twisted.python.usage import UsageError

from bmqtwist import tap
from bmqtwist.config.broker import (
    AppConfig,
    BmqtwistConfig,
    BoundListener,
    BrokerConfig,
    Configuration,
    Http,
    Prometheus,
    StatPlugin,
    Stats,
)
from bmqtwist.config.clusters import Clusters
from bmqtwist.daemon.service import BrokerService
from bmqtwist.report import ListReport, RepeatLimiter

TWISTD = str(Path(sys.executable).parent / "twistd")


@pytest.fixture
def directory(tmp_path: Path) -> ConfigDirectory:
    """A configuration that a broker can run on."""
    return ConfigDirectory(tmp_path, free_port())


def options(*arguments: str) -> tap.Options:
    """Options as twistd parses them."""
    parsed = tap.Options()
    parsed.parseOptions(list(arguments))
    return parsed


def configuration(http: Http | None = None, plugins: tuple[StatPlugin, ...] = (),
                  listeners: tuple[BoundListener, ...] = ()) -> Configuration:
    """A configuration with the members that these tests need."""
    app = AppConfig(bmqtwist=BmqtwistConfig(http=http or Http()), stats=Stats(plugins=plugins))
    return Configuration(directory="etc", broker=BrokerConfig(app_config=app), clusters=Clusters(), self_nodes={},
                         listeners=listeners)


def test_twistd_finds_the_plugin_bmq() -> None:
    """A packaging error would hide it."""
    (maker,) = [plugin for plugin in getPlugins(IServiceMaker) if plugin.tapname == "bmq"]
    assert maker.module == "bmqtwist.tap"


def test_options_override_members_of_the_configuration_files(directory: ConfigDirectory) -> None:
    """Each option sets its member."""
    overrides = options("--config", str(directory.etc), "-i", "inst", "-p", "7", "-l", "::1", "--durability", "none",
                        "--http-port", "8", "--host-data-center", "dc").overrides
    assert (overrides.instance_id, overrides.port, overrides.listen_address, overrides.durability, overrides.http_port,
            overrides.host_data_center, overrides.host_name) == ("inst", 7, "::1", "none", 8, "dc", None)


@pytest.mark.parametrize("arguments", [[], ["--config", "/nonexistent"], ["--config", ".", "--durability", "often"],
                                       ["--config", ".", "--port", "many"], ["--config", ".", "--bogus"]])
def test_an_invalid_command_line_is_refused(arguments: list[str]) -> None:
    """Before a file is read."""
    with pytest.raises(UsageError):
        options(*arguments)


def test_the_check_option_reports_problems_without_starting_a_broker(directory: ConfigDirectory,
                                                                     capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 or 2, and a message."""
    with pytest.raises(SystemExit) as good:
        tap.makeService(options("--config", str(directory.etc), "--check"))
    assert good.value.code == 0
    assert capsys.readouterr().out.endswith("The configuration is good.\n")
    directory.domain_text("broken", "{")
    with pytest.raises(SystemExit) as bad:
        tap.makeService(options("--config", str(directory.etc), "--check"))
    assert bad.value.code == 2
    out = capsys.readouterr().out
    assert "error: " in out and "broken.json" in out and out.endswith("The configuration cannot be used.\n")


def test_strict_refuses_a_configuration_with_warnings(directory: ConfigDirectory,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown members are warnings otherwise."""
    directory.broker["mystery"] = 1
    directory.write()
    with pytest.raises(SystemExit) as refused:
        tap.makeService(options("--config", str(directory.etc), "--strict"))
    assert refused.value.code == 2
    assert "mystery" in capsys.readouterr().err
    tap.makeService(options("--config", str(directory.etc)))


class FakeService:
    """The attributes that make_sites reads."""

    def __init__(self, found: Configuration) -> None:
        self.configuration, self.report = found, ListReport()
        self.log_failure = self.run_in_steps = self.report.error
        self.companions: list[object] = []


class FakeConsoleService:
    """A console that shows nothing."""

    def __init__(self, service: FakeService) -> None:
        self.site = object()


def test_the_console_and_each_metrics_plugin_have_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console by the member `bmqtwist`, metrics by the original plug-in."""
    monkeypatch.setattr("bmqtwist.console.service.ConsoleService", FakeConsoleService)
    monkeypatch.setattr("bmqtwist.tap.make_site", lambda resource, service: object())
    plugins = (StatPlugin(name="a", namespace_prefix="p_", prometheus_specific=Prometheus(host="h", port=1)),
               StatPlugin(name="off", publish_interval=0, prometheus_specific=Prometheus()),
               StatPlugin(name="push", prometheus_specific=Prometheus(mode="E_PUSH")), StatPlugin(name="none"))
    service: Any = FakeService(configuration(Http(address="127.0.0.1", port=5), plugins))
    assert [(what, address, port) for what, _, address, port in tap.make_sites(service)] == [
        ("Console", "127.0.0.1", 5), ("Metrics plug-in 'a'", "h", 1)]
    assert [type(each) for each in service.companions] == [FakeConsoleService]
    assert "E_PUSH is not offered" in service.report.texts("WARN")[0] % ()
    assert tap.make_sites(FakeService(configuration())) == []  # type: ignore[arg-type]


def test_an_exception_of_the_console_is_logged_once_per_minute_for_each_line_of_code() -> None:
    """A request of which each copy raises must not fill the log."""
    now, report = [0.0], ListReport()
    service: Any = SimpleNamespace(_failures=RepeatLimiter(), clock=SimpleNamespace(now=lambda: now[0]), report=report)

    def fail(text: str) -> None:
        try:
            int(text)
        except ValueError:
            BrokerService.log_failure(service, Failure())
    for number in range(1000):
        fail(f"x{number}")
    assert len(report.lines) == 1 and "ValueError" in report.lines[0][1]
    now[0] = 61.0
    fail("y")
    assert len(report.lines) == 2 and "999 more times" in report.lines[1][1]


@pytest.mark.process
def test_twistd_runs_a_broker_with_pipe_and_console_and_stops_it_on_sigterm(directory: ConfigDirectory) -> None:
    """Start, command by the pipe, ready over HTTP, graceful end."""
    port = free_port()
    process = subprocess.Popen([TWISTD, "-n", "--pidfile=", "bmq", "--config", "etc", "--http-port", str(port)],
                               cwd=directory.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with time_limited(process, 120.0):
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if STARTED in line:
                break
        assert lines and STARTED in lines[-1], "".join(lines)
        pipe = directory.root / "bmqbrkr.ctl"
        assert pipe.is_fifo() and pipe.stat().st_mode & 0o777 == 0o600
        pipe.write_text("CMD CLUSTERS LIST\nnonsense\n")
        seen = ""
        for line in process.stdout:
            seen += line
            if "Error processing command" in line:
                break
        assert "Command 'CMD CLUSTERS LIST' processed successfully in " in seen
        assert "[source: MTRAP]" in seen and "[LOCAL ] c3:" in seen
        from urllib.request import urlopen
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20) as answer:
            assert answer.read() == b"ok\n"
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=30)[0]
        assert "BMQbrkr stopped (shutdown took " in rest
        assert process.returncode == -signal.SIGTERM  # twistd ends by the signal that it received
        assert not pipe.exists()
        history = (directory.root / "bmqbrkr.hist").read_text()
        assert [line.split(" ", 1)[1] for line in history.splitlines()] == ["CMD CLUSTERS LIST", "nonsense"]


@pytest.mark.process
def test_a_failed_start_under_twistd_has_an_exit_code_and_a_log_line(directory: ConfigDirectory) -> None:
    """In the foreground the exit code of bmqbrkr; as a daemon that of twistd."""
    directory.storage.rmdir()
    directory.storage.symlink_to(directory.root / "nowhere" / "at all")
    run = subprocess.run([TWISTD, "-n", "--pidfile=", "bmq", "--config", "etc"], cwd=directory.root, timeout=60,
                         capture_output=True, text=True, check=False)
    assert run.returncode == 6
    assert "PANIC [STARTUP] (1): Failed to start application" in run.stdout + run.stderr
    run = subprocess.run([TWISTD, "bmq", "--config", "etc"], cwd=directory.root, timeout=60, capture_output=True,
                         text=True, check=False)
    assert run.returncode == 1
    assert "Failed to open cluster state ledger" in run.stdout + run.stderr


@pytest.mark.process
def test_twistd_runs_a_broker_as_a_daemon(directory: ConfigDirectory) -> None:
    """The pid file contains the pid of the daemon."""
    subprocess.run([TWISTD, "bmq", "--config", "etc"], cwd=directory.root, timeout=60, check=True)
    pid = int((directory.root / "twistd.pid").read_text())
    try:
        log = directory.root / "twistd.log"
        end = time.monotonic() + 30
        while time.monotonic() < end and STARTED not in log.read_text():
            time.sleep(0.05)
        assert STARTED in log.read_text()
    finally:
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + 30
    while time.monotonic() < end and (directory.root / "twistd.pid").exists():
        time.sleep(0.05)
    assert "BMQbrkr stopped" in (directory.root / "twistd.log").read_text()


EAGER = """
import os, signal, sys
from bmqtwist import tap
from bmqtwist.logs.observer import TwistedReport
from twisted.scripts.twistd import run

original_info = TwistedReport.info

def info(self, text, *arguments):
    original_info(self, text, *arguments)
    if text == "%s":
        os.kill(os.getpid(), signal.SIGTERM)

TwistedReport.info = info
sys.exit((run if sys.argv[1] == "-n" else tap.bmqbrkr)())
"""


@pytest.mark.process
@pytest.mark.parametrize("arguments, code", [
    (["-n", "--pidfile=", "bmq", "--config", "etc"], -signal.SIGTERM), (["etc"], 0)])
def test_a_signal_after_the_start_line_stops_the_broker_gracefully(directory: ConfigDirectory, arguments: list[str],
                                                                   code: int) -> None:
    """The line follows the installation of signal handlers: a signal before it killed a broker on a busy machine."""
    run = subprocess.run([sys.executable, "-c", EAGER % STARTED, *arguments], cwd=directory.root, timeout=60,
                         capture_output=True, text=True, check=False)
    log = run.stdout + run.stderr + "".join(each.read_text() for each in directory.root.glob("**/*.log"))
    assert STARTED in log and "BMQbrkr stopped (shutdown took " in log, log
    assert run.returncode == code
