"""Notifications to systemd, over a real datagram socket, and the directory of the control pipe."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.config import ConfigDirectory
from kit.process import free_port

from bmqtwist.cli.cluster.processes import broker_command
from bmqtwist.daemon.preflight import check
from bmqtwist.daemon.systemd import SERVING, Systemd

DEADLINE = 120.0


class Manager:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{path[1:]}" if path.startswith("@") else path)
        self.lines: list[str] = []

    def receive(self) -> list[str]:
        """Return the lines of the datagrams that have arrived."""
        found = []
        while True:
            try:
                found += self.socket.recv(4096, socket.MSG_DONTWAIT).decode().split("\n")
            except BlockingIOError:
                self.lines += found
                return found

    def expect(self, line: str) -> None:
        """Wait for a line that has not arrived yet."""
        end = time.monotonic() + DEADLINE
        while not any(each.startswith(line) for each in self.receive()):
            assert time.monotonic() < end, f"no {line!r} in {self.lines}"
            time.sleep(0.02)


@pytest.mark.parametrize("abstract", [False, True])
def test_each_state_is_one_datagram(tmp_path: Path, abstract: bool) -> None:
    manager = Manager(f"@bmq-test-{os.getpid()}-{time.monotonic_ns()}" if abstract else f"{tmp_path}/notify")
    systemd = Systemd({"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "400000", "WATCHDOG_PID": str(os.getpid())})
    assert systemd.enabled and systemd.check_s == 0.2
    systemd.starting()
    systemd.ready("partitions not available: c3\n(0)")
    systemd.tick("partitions not available: c3\n(0)")
    systemd.tick("")
    systemd.stopping()
    assert manager.receive() == [
        "STATUS=starting: reads the stored data", "READY=1", "STATUS=partitions not available: c3 (0)", "WATCHDOG=1",
        "WATCHDOG=1", f"STATUS={SERVING}", "STOPPING=1"]
    systemd.reloading()
    first, second = manager.receive()
    assert first == "RELOADING=1" and abs(int(second.removeprefix("MONOTONIC_USEC=")) / 1e6 - time.monotonic()) < DEADLINE
    manager.socket.close()
    systemd.tick("stopping")  # the manager restarts: no error
    systemd.close()
    systemd.tick("closed")


@pytest.mark.parametrize("environment", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": ""}, {"WATCHDOG_USEC": "x"}, {}])
def test_the_watchdog_of_another_process_is_not_reset(tmp_path: Path, environment: dict[str, str]) -> None:
    manager = Manager(f"{tmp_path}/notify")
    systemd = Systemd({"NOTIFY_SOCKET": manager.path, **({"WATCHDOG_USEC": "1000"} if "WATCHDOG_PID" in environment else {}),
                       **environment})
    systemd.tick("x")
    systemd.tick("x")
    assert manager.receive() == ["STATUS=x"]
    systemd.close()


def test_nothing_is_sent_without_a_service_manager() -> None:
    systemd = Systemd({"WATCHDOG_USEC": "1000"})
    assert not systemd.enabled
    systemd.ready("x")


@contextmanager
def broker(config: ConfigDirectory, cwd: str | Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*broker_command(), str(config.etc)], cwd=cwd, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
def test_a_broker_process_reports_its_states_and_resets_the_watchdog(tmp_path: Path) -> None:
    """Start, reload by SIGHUP, and graceful stop, as `systemctl status` shows them."""
    manager = Manager(f"{tmp_path}/notify")
    config = ConfigDirectory(tmp_path, free_port())
    with broker(config, tmp_path, NOTIFY_SOCKET=manager.path, WATCHDOG_USEC="200000") as process:
        manager.expect("STATUS=starting")
        manager.expect("READY=1")
        assert "WATCHDOG=1" not in manager.lines[:manager.lines.index("READY=1")]
        manager.expect("WATCHDOG=1")
        manager.expect("WATCHDOG=1")
        process.send_signal(signal.SIGHUP)
        manager.expect("RELOADING=1")
        assert "READY=1" in manager.lines[manager.lines.index("RELOADING=1"):] or manager.expect("READY=1") is None
        process.send_signal(signal.SIGTERM)
        manager.expect("STOPPING=1")
        assert process.wait(DEADLINE) == 0
        manager.receive()
        assert f"STATUS={SERVING}" in manager.lines


@pytest.mark.process
def test_a_stopped_event_loop_resets_no_watchdog(tmp_path: Path) -> None:
    """The timer belongs to the event loop, so that systemd restarts a broker whose loop hangs."""
    manager = Manager(f"{tmp_path}/notify")
    config = ConfigDirectory(tmp_path, free_port())
    with broker(config, tmp_path, NOTIFY_SOCKET=manager.path, WATCHDOG_USEC="200000") as process:
        manager.expect("WATCHDOG=1")
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        manager.receive()
        time.sleep(0.5)  # five periods
        assert manager.receive() == []
        process.send_signal(signal.SIGCONT)
        manager.expect("WATCHDOG=1")


def started(process: subprocess.Popen[str]) -> str:
    """Return the output of a broker until it has started or ended."""
    seen = ""
    assert process.stdout is not None
    for line in process.stdout:
        seen += line
        if "STARTED bmqbrkr" in line:
            break
    return seen


@pytest.mark.process
def test_pipe_history_and_pid_file_are_in_the_control_directory(tmp_path: Path) -> None:
    """/proc stands for a read-only working directory, in which a privileged user cannot create files either."""
    run = tmp_path / "run" / "bmq"
    config = ConfigDirectory(tmp_path, free_port(), app=_app(controlDirectory=str(run)))
    with broker(config, "/proc") as process:
        assert "STARTED" in started(process)
        assert (run / "bmqbrkr.ctl").is_fifo() and (run / "bmqbrkr.pid").read_text() == f"{process.pid}\n"
        (run / "bmqbrkr.ctl").write_text("CMD HELP\n")
        end = time.monotonic() + DEADLINE
        while not (run / "bmqbrkr.hist").exists() and time.monotonic() < end:
            time.sleep(0.02)
        assert "CMD HELP" in (run / "bmqbrkr.hist").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0 and not list(run.glob("*.pid")) and not list(run.glob("*.ctl"))


@pytest.mark.process
def test_a_read_only_working_directory_costs_the_pipe_and_not_the_start(tmp_path: Path) -> None:
    with broker(ConfigDirectory(tmp_path, free_port()), "/proc") as process:
        seen = started(process)
        assert "STARTED" in seen and "this broker has none. Set appConfig.bmqtwist.controlDirectory." in seen


def test_an_unusable_control_directory_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = ConfigDirectory(tmp_path, free_port(), app=_app(controlDirectory=f"{tmp_path}/file"))
    problem, = check(str(config.etc), environment={})[0]
    assert problem.path == "appConfig.bmqtwist.controlDirectory" and "it is not a directory" in problem.text


def _app(**members: Any) -> dict[str, Any]:
    return {"bmqtwist": members}
