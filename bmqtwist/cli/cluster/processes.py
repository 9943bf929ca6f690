"""Broker processes by directory: lookup, signals, and free TCP ports for them.

A pid may be reused after its process has ended. A broker is recognized by its command line and by its working directory,
which no other broker shares. Used by `local.py`, and by `testing/process.py` to start brokers for tests.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from bmqtwist.cli.bmqbrkr import PID_FILE
from bmqtwist.config.compose import ENVIRONMENT
from bmqtwist.errors import LocalError

_COMMANDS = (b"bmqbrkr", b"twistd")
_POLL_S, _RECOGNIZE_POLL_S = 0.05, 0.002


def broker_command() -> list[str]:
    """Return the command line of `bmqbrkr`: the program beside this Python, else an equivalent `python -c`."""
    program = Path(sys.executable).parent / "bmqbrkr"
    return [str(program)] if program.exists() else [sys.executable, "-c", "from bmqtwist.tap import bmqbrkr; bmqbrkr()"]


def start_broker(directory: Path, configuration: Path, output: Path) -> subprocess.Popen[bytes]:
    """Start a broker in its working directory, and append its output to `output`. Environment variables that override the
    configuration are removed: they would give all brokers one port."""
    environment = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    with open(output, "ab") as file:
        process = subprocess.Popen([*broker_command(), str(configuration)], cwd=directory, stdout=file,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                                   env=environment)
    wait_until_recognizable(process)
    return process


def wait_until_recognizable(process: subprocess.Popen[bytes]) -> None:
    """Wait until the kernel shows the command line of a new process, by which `is_broker` recognizes it."""
    while process.poll() is None:
        with suppress(OSError), open(f"/proc/{process.pid}/cmdline", "rb") as file:
            if file.read():
                return
        time.sleep(_RECOGNIZE_POLL_S)


def is_broker(pid: int, directory: Path) -> bool:
    """Return whether the process is a broker with this working directory."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
        return any(name in line for name in _COMMANDS) and os.readlink(f"/proc/{pid}/cwd") == os.path.realpath(directory)
    except OSError:
        return False


def find_pid(directory: Path, recorded: int) -> int:
    """Return the pid of the directory's running broker, 0 = none. `recorded`: its last known pid."""
    try:
        written = int((directory / PID_FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        written = 0
    return next((pid for pid in (recorded, written) if pid > 0 and is_broker(pid, directory)), 0)


def send_signal(pid: int, directory: Path, number: signal.Signals) -> bool:
    """Send a signal to the broker of the directory. Return False if it has ended, also if its pid is reused."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_broker(pid, directory):
            return False
        signal.pidfd_send_signal(process, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(process)


def wait_until_ended(pid: int, directory: Path, seconds: float) -> bool:
    """Return whether the broker ends within this number of seconds."""
    end = time.monotonic() + seconds
    while is_broker(pid, directory):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


LOOPBACK = "127.0.0.1"
# Below the ephemeral ports: no outgoing connection takes the port of a stopped broker.
_RANGE = range(20000, 30000)
_ATTEMPTS_MAX = 100


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Return `count` consecutive free ports."""
    for _ in range(_ATTEMPTS_MAX):
        first = random.choice(_RANGE)
        ports = list(range(first, first + count))
        if all(map(is_free, ports)):
            return ports
    raise LocalError(f"no {count} consecutive free ports were found from {_RANGE.start} to {_RANGE.stop}: give the first "
                     "port with --base-port")
