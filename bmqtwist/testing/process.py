"""A broker in a process of its own: on a free port, with its files in a directory, watched, never left over."""

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
    """What was waited for did not come within its deadline."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens at now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Started:
    """A context manager over `start` and `close`: a start that fails is closed, too."""

    def start(self) -> object:
        """Start; what is useful to know then."""

    def close(self) -> None:
        """Leave nothing running."""

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
    """One run after another of the command `bmqbrkr` over one directory; not started yet when made.

    `root`: the directory, made if need be: configuration below `etc/`, storage, logs. `port` None = a free one. `app` and
    `cluster` replace members of the configuration (`testing.config`). `samples`: have the sample domains. As a context
    manager it is started, and gone in the end.
    """

    def __init__(self, root: Path, port: int | None = None, *, app: dict[str, Any] | None = None,
                 cluster: dict[str, Any] | None = None, samples: bool = True) -> None:
        self.root, self._app, self._cluster = root, app, cluster
        self._may_move = port is None
        root.mkdir(parents=True, exist_ok=True)
        self.config = ConfigDirectory(root, port or free_port(), app=app, cluster=cluster)
        self.process: subprocess.Popen[bytes] | None = None
        self.records: list[str] = []  # lines of output, of all lives
        self._news = threading.Condition()
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
        """What clients connect to."""
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Is there a process?"""
        return self.process is not None and self.process.poll() is None

    # -- life -------------------------------------------------------------------------------------------------------

    def launch(self, *arguments: str) -> None:
        """Run the command; does not wait for it to serve."""
        self._release_output()
        self.process = subprocess.Popen([*broker_command(), *arguments, str(self.config.etc)], cwd=self.root,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                        start_new_session=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def start(self, deadline: float = START_SECONDS_MAX) -> None:
        """Run the command and wait until it serves; NotInTime with its output if it does not."""
        for attempt in range(1, _PORTS_TRIED_MAX + 1):
            since = len(self.records)
            self.launch()
            try:
                self.expect(STARTED, since=since, deadline=deadline)
                self._may_move = False  # clients know the port now
                return
            except NotInTime:
                taken = any(_PORT_TAKEN in record for record in self.records[since:])
                if not (taken and self._may_move) or attempt == _PORTS_TRIED_MAX:
                    raise
                self.wait()
                self.config = ConfigDirectory(self.root, free_port(), app=self._app, cluster=self._cluster)

    def stop(self) -> int:
        """SIGTERM, then wait until all is closed; the exit code."""
        return self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: nothing that it has not written survives."""
        self._signal(signal.SIGKILL)

    def restart(self) -> None:
        """Stop, if it runs, and start again with the same files on the same port."""
        if self.running:
            self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and says nothing."""
        self._running_process().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on after `pause`."""
        self._running_process().send_signal(signal.SIGCONT)

    def wait(self, deadline: float = STOP_SECONDS_MAX) -> int:
        """Wait for the process to end; its exit code."""
        code = self._running_process().wait(deadline)
        if self._reader is not None:
            self._reader.join(deadline)
        return code

    def close(self) -> None:
        """Leave nothing running."""
        if self.running:
            self.kill()
        self._release_output()

    def _signal(self, number: int) -> int:
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
            if self._reader.is_alive():  # somebody else holds the other end: to close what is being read would wait, too
                return
        if self.process is not None and self.process.stdout is not None:
            with contextlib.suppress(OSError):
                self.process.stdout.close()

    # -- what it says -----------------------------------------------------------------------------------------------

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        stream = process.stdout
        if stream is not None:
            for line in stream:
                with self._news:
                    self.records.append(line.decode(errors="replace").rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def log(self) -> list[str]:
        """Its output so far, of all lives, a line each."""
        return list(self.records)

    def expect(self, *texts: str, since: int = 0, deadline: float = EXPECT_SECONDS_MAX) -> str:
        """Wait for an output line with all the texts, from line number `since` on; that line. NotInTime if none comes
        within `deadline` seconds."""
        end = time.monotonic() + deadline
        at = since
        with self._news:
            while True:
                for record in self.records[at:]:
                    if all(text in record for text in texts):
                        return record
                at = len(self.records)
                over = self._reader is None or not self._reader.is_alive()
                left = end - time.monotonic()
                if left <= 0 or over:
                    tail = "\n".join(self.records[since:][-60:])
                    raise NotInTime(f"no output line with {texts}{'; the process ended' if over else ''}:\n{tail}")
                self._news.wait(min(left, 0.5))

    def memory(self) -> int:
        """Resident bytes of the process."""
        pages = int(Path(f"/proc/{self._running_process().pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    # -- administration ---------------------------------------------------------------------------------------------

    def domain(self, name: str, mode: str = "priority", **options: Any) -> str:
        """Make a domain, or change one; options as of `Broker.domain`. Its name."""
        self.config.domain_text(name, plain_domain(name, mode, **options))
        if self.running:
            answer = self.admin(f"DOMAINS RECONFIGURE {name}")
            if "SUCCESS" not in answer.upper():
                raise AssertionError(f"domain {name}: {answer}")
        return name

    def admin(self, command: str) -> str:
        """Run an admin command; the answer's text."""
        from bmqtwist.cli.adminclient import AdminClient
        with AdminClient("127.0.0.1", self.port, EXPECT_SECONDS_MAX) as client:
            client.negotiate()
            return client.run(command)
