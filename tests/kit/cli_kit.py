"""Runs the installed command `bmq` against a broker process, for tests of the command line.

Fixtures of `integration/conftest.py` and the `test_cli_*.py` tests; sessions of `bmq shell` are in `shell.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from click.testing import CliRunner

from bmqtwist.cli.main import main
from kit.process import BrokerProcess

BMQ = str(Path(sys.executable).parent / "bmq")
DEADLINE = 30.0


def in_pipe(pipe: IO[bytes] | None) -> int:
    """Return the number of unread bytes in a pipe."""
    assert pipe is not None
    return int(struct.unpack("i", fcntl.ioctl(pipe.fileno(), termios.FIONREAD, b"1234"))[0])


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        """Return the lines of standard output."""
        return self.out.decode().splitlines()

    @property
    def tree(self) -> Any:
        """Return standard output, decoded from JSON."""
        return json.loads(self.out)


class Started:
    """A running command."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.seen = b""

    def write_input(self, data: bytes) -> None:
        """Write to the standard input of the command."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def expect(self, text: bytes, stream: str = "stdout") -> bytes:
        """Wait until the output contains `text`; return the output read by this call."""
        pipe = getattr(self.process, stream)
        end = time.monotonic() + DEADLINE
        seen = b""
        while text not in seen:
            remaining = end - time.monotonic()
            ready = select.select([pipe], [], [], max(remaining, 0.0))[0]
            data = os.read(pipe.fileno(), 1 << 16) if ready else b""
            assert data, f"no {text!r} in {seen!r}"
            seen += data
        if stream == "stdout":
            self.seen += seen
        return seen

    def signal(self, number: int = signal.SIGINT) -> None:
        """Send a signal to the command."""
        self.process.send_signal(number)

    def end(self, deadline: float = DEADLINE) -> Done:
        """Wait for the end of the command; return exit code and all output."""
        out, err = self.process.communicate(timeout=deadline)
        return Done(self.process.returncode, self.seen + (out or b""), (err or b"").decode())


class Cli:
    """Runs commands; `broker` is the address of the broker, unless a command has the option for it."""

    def __init__(self, broker: str) -> None:
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("BMQ_")}
        self.environment["BMQ_BROKER_URI"] = broker
        self._started: list[subprocess.Popen[bytes]] = []

    def __call__(self, *arguments: str, stdin: bytes | None = b"", env: dict[str, str] | None = None,
                 cwd: Path | None = None, seconds_max: float = DEADLINE) -> Done:
        """Run a command and return its exit code and output."""
        done = subprocess.run([BMQ, *arguments], input=stdin, capture_output=True, timeout=seconds_max, cwd=cwd,
                              env={**self.environment, **(env or {})}, check=False)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return Done(done.returncode, done.stdout, done.stderr.decode())

    def run_in_process(self, *arguments: str, env: dict[str, str] | None = None) -> Done:
        """Run a command in this process, which is faster, for tables of command lines."""
        removed = {name: None for name in os.environ if name.startswith("BMQ_")}
        added = {name: value for name, value in self.environment.items() if name.startswith("BMQ_")}
        result = CliRunner().invoke(main, list(arguments), env={**removed, **added, **(env or {})})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Done(result.exit_code, result.stdout_bytes, result.stderr)

    def start(self, *arguments: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE) -> Started:
        """Start a command."""
        process = subprocess.Popen([BMQ, *arguments], stdin=subprocess.PIPE, stdout=stdout, stderr=stderr,
                                   env=self.environment, start_new_session=True)
        self._started.append(process)
        return Started(process)

    def run_on_terminal(self, *arguments: str) -> tuple[Done, bytes]:
        """Run a command whose standard error is a terminal; return its outcome and the bytes written to the terminal.

        Standard output must fit into a pipe.
        """
        controller, terminal = pty.openpty()
        started = self.start(*arguments, stderr=terminal)
        os.close(terminal)
        seen = b""
        with contextlib.suppress(OSError):  # the command has closed the terminal
            while select.select([controller], [], [], DEADLINE)[0]:
                seen += os.read(controller, 1 << 16)
        os.close(controller)
        return started.end(), seen

    def cleanup(self) -> None:
        """Kill the commands that still run."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            with contextlib.suppress(ValueError):
                process.communicate()

    def stored(self, uri: str) -> int:
        """Return the number of messages stored for a queue."""
        domain, _, queue = uri.removeprefix("bmq://").partition("/")
        answer = self("admin", "--json", "DOMAINS", "DOMAIN", domain, "QUEUE", queue, "LIST", "0", "0")
        return int(answer.tree["queueContents"]["totalQueueMessages"])


@contextlib.contextmanager
def running_broker(root: Path, **parameters: Any) -> Iterator[tuple[BrokerProcess, Cli]]:
    """Run a broker with a domain of each mode; yield it, and the command with its address."""
    broker = BrokerProcess(root, **parameters)
    for mode in ("priority", "fanout"):
        broker.config.domain(f"d.{mode}", mode)
    broker.config.domain("d.broadcast", "broadcast", in_memory=True)
    broker.config.domain("d.small", "priority", queue_messages=2)
    cli = Cli(broker.uri)
    try:
        broker.start()
        yield broker, cli
    finally:
        cli.cleanup()
        broker.cleanup()
