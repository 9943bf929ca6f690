"""Broker process for tests: on a free port, with files in a directory, captured output, killed at the end.

Used by `plugin.py` and `cluster_process.py`; a broker in this process is in `broker.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Self

from bmqtwist.cli.cluster.processes import broker_command
from bmqtwist.testing.config import ConfigDirectory, plain_domain, sample_domains

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
EXPECT_SECONDS_MAX = 10.0
STARTED = "BMQbrkr started successfully"
_PORT_TAKEN = "Cannot listen at"
_PORTS_TRIED_MAX = 5


class NotInTime(AssertionError):
    """A wait exceeded its deadline."""


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Started:
    """Context manager that calls `start` and `close`, also after a failed start."""

    def start(self) -> object:
        """Start and wait until the service is ready."""

    def close(self) -> None:
        """Kill all running processes."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class BrokerProcess(_Started):
    """Successive runs of the command `bmqbrkr` over one directory; `start` starts the first.

    `root`: the directory with configuration in `etc/`, storage and logs, created if missing. `port`: None = a free port.
    `app` and `cluster` replace members of the configuration (`testing.config`). `samples`: add the sample domains. As a
    context manager it starts the process, and kills it at the end.
    """

    def __init__(self, root: Path, port: int | None = None, *, app: dict[str, Any] | None = None,
                 cluster: dict[str, Any] | None = None, samples: bool = True) -> None:
        self.root, self._app, self._cluster = root, app, cluster
        self._may_move = port is None
        root.mkdir(parents=True, exist_ok=True)
        self.config = ConfigDirectory(root, port or free_port(), app=app, cluster=cluster)
        self.process: subprocess.Popen[bytes] | None = None
        self.command: list[str] | None = None  # of another release of the broker; None = this one
        self.records: list[str] = []  # output lines of all runs
        self._changed = threading.Condition()
        self._reader: threading.Thread | None = None
        if samples:
            for name, text in sample_domains():
                self.config.domain_text(name, text)

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.config.port

    @property
    def url(self) -> str:
        """Address for clients, `tcp://127.0.0.1:PORT`."""
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """True if the process runs."""
        return self.process is not None and self.process.poll() is None

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def launch(self, *arguments: str) -> None:
        """Start the process without waiting until the broker serves."""
        self._release_output()
        command = [*(self.command or broker_command()), *arguments, str(self.config.etc)]
        self.process = subprocess.Popen(command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, start_new_session=True,
                                        env={**os.environ, "PYTHONUNBUFFERED": "1"})
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def start(self, deadline: float = START_SECONDS_MAX) -> None:
        """Start the process and wait until the broker serves. Raises NotInTime, with the output, after `deadline` s."""
        for attempt in range(1, _PORTS_TRIED_MAX + 1):
            since = len(self.records)
            self.launch()
            try:
                self.expect(STARTED, since=since, deadline=deadline)
                self._may_move = False  # clients may use the port from now on
                return
            except NotInTime:
                taken = any(_PORT_TAKEN in record for record in self.records[since:])
                if not (taken and self._may_move) or attempt == _PORTS_TRIED_MAX:
                    raise
                self.wait()
                self.config = ConfigDirectory(self.root, free_port(), app=self._app, cluster=self._cluster)

    def stop(self) -> int:
        """Send SIGTERM, wait for the graceful stop, and return the exit code."""
        return self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL: unwritten data is lost."""
        self._send_signal(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the broker if it runs, and start it with the same files and port."""
        if self.running:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Send SIGSTOP: connections remain, but the broker does not respond."""
        self._running_process().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT after `pause`."""
        self._running_process().send_signal(signal.SIGCONT)

    def wait(self, deadline: float = STOP_SECONDS_MAX) -> int:
        """Wait for the end of the process and return its exit code."""
        code = self._running_process().wait(deadline)
        if self._reader is not None:
            self._reader.join(deadline)
        return code

    def close(self) -> None:
        """Kill the process if it runs."""
        if self.running:
            self.kill()
        self._release_output()

    def _send_signal(self, number: int) -> int:
        process = self._running_process()
        process.send_signal(number)
        return self.wait()

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise AssertionError("the broker was not started")
        return self.process

    def _release_output(self) -> None:
        if self._reader is not None:
            self._reader.join(STOP_SECONDS_MAX)
            if self._reader.is_alive():  # a child has the pipe open: closing the stream would block
                return
        if self.process is not None and self.process.stdout is not None:
            with contextlib.suppress(OSError):
                self.process.stdout.close()

    # -- output -----------------------------------------------------------------------------------------------------

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        stream = process.stdout
        if stream is not None:
            for line in stream:
                with self._changed:
                    self.records.append(line.decode(errors="replace").rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def log(self) -> list[str]:
        """Return the output lines of all runs."""
        return list(self.records)

    def expect(self, *texts: str, since: int = 0, deadline: float = EXPECT_SECONDS_MAX) -> str:
        """Wait for an output line that contains all texts, from line number `since` on, and return it. Raises NotInTime
        after `deadline` seconds."""
        end = time.monotonic() + deadline
        at = since
        with self._changed:
            while True:
                for record in self.records[at:]:
                    if all(text in record for text in texts):
                        return record
                at = len(self.records)
                ended = self._reader is None or not self._reader.is_alive()
                left = end - time.monotonic()
                if left <= 0 or ended:
                    tail = "\n".join(self.records[since:][-60:])
                    raise NotInTime(f"no output line with {texts}{'; the process ended' if ended else ''}:\n{tail}")
                self._changed.wait(min(left, 0.5))

    def memory(self) -> int:
        """Return the resident memory of the process in bytes."""
        pages = int(Path(f"/proc/{self._running_process().pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    # -- administration ---------------------------------------------------------------------------------------------

    def domain(self, name: str, mode: str = "priority", **options: Any) -> str:
        """Create or reconfigure a domain, and return its name; options as of `Broker.domain`."""
        self.config.domain_text(name, plain_domain(name, mode, **options))
        if self.running:
            answer = self.admin(f"DOMAINS RECONFIGURE {name}")
            if "SUCCESS" not in answer.upper():
                raise AssertionError(f"domain {name}: {answer}")
        return name

    def admin(self, command: str) -> str:
        """Run an admin command and return the text of the answer."""
        from bmqtwist.cli.adminclient import AdminClient
        with AdminClient("127.0.0.1", self.port, EXPECT_SECONDS_MAX) as client:
            client.negotiate()
            return client.run(command)
