"""A real broker process: started from a generated configuration directory on free ports, watched, never left over."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kit.client import DEADLINE, Client, Expired
from kit.config import ConfigDirectory
from kit.world import World

START_DEADLINE = 30.0
STOP_DEADLINE = 30.0
STARTED = "BMQbrkr started successfully"


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SocketLink:
    """A TCP connection to the broker."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self.socket.settimeout(DEADLINE)
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def receive(self, deadline: float) -> bytes:
        """What comes within the deadline."""
        if self.closed:
            return b""
        self.socket.settimeout(deadline)
        try:
            data = self.socket.recv(1 << 20)
        except TimeoutError:
            return b""
        except ConnectionError:
            data = b""
        if not data:
            self.closed = True
            self.socket.close()
        return data

    def drop(self) -> None:
        """Close at once."""
        self.closed = True
        self.socket.close()


class BrokerProcess:
    """One run after another of the broker command over one directory."""

    def __init__(self, root: Path, port: int | None = None, *, app: dict[str, Any] | None = None,
                 cluster: dict[str, Any] | None = None) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.config = ConfigDirectory(root, port or free_port(), app=app, cluster=cluster)
        self.process: subprocess.Popen[bytes] | None = None
        self.records: list[str] = []
        self._news = threading.Condition()
        self._reader: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.config.port

    @property
    def uri(self) -> str:
        """What the official SDK connects to."""
        return f"tcp://127.0.0.1:{self.port}"

    def launch(self, *arguments: str) -> None:
        """Run the command; does not wait for it to serve."""
        command = Path(sys.executable).parent / "bmqbrkr"
        self.process = subprocess.Popen([str(command), *arguments, str(self.config.etc)], cwd=self.root,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                        start_new_session=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def start(self, deadline: float = START_DEADLINE) -> None:
        """Run the command and wait until it serves."""
        since = len(self.records)
        self.launch()
        self.expect(STARTED, since=since, deadline=deadline)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._news:
                self.records.append(line.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def expect(self, *texts: str, since: int = 0, deadline: float = DEADLINE) -> str:
        """Wait for an output line with all the texts; a line."""
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
                    raise Expired(f"no output line with {texts}{'; the process ended' if over else ''}:\n{tail}")
                self._news.wait(min(left, 0.5))

    def wait(self, deadline: float = STOP_DEADLINE) -> int:
        """Wait for the process to end; its exit code."""
        assert self.process is not None
        code = self.process.wait(deadline)
        if self._reader is not None:
            self._reader.join(deadline)
        return code

    def terminate(self) -> int:
        """SIGTERM, then wait; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        """SIGKILL, then wait."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.wait()

    def cleanup(self) -> None:
        """Leave nothing running."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def memory(self) -> int:
        """Resident bytes of the process."""
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class ProcessWorld(World):
    """A world around a real process."""

    def __init__(self, root: Path, *, app: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None,
                 start: bool = True) -> None:
        super().__init__()
        self.broker = BrokerProcess(root, app=app, cluster=cluster)
        self.config, self.root = self.broker.config, root
        if start:
            self.start()

    def start(self) -> None:
        """Start the process."""
        self.broker.start()

    def stop(self) -> None:
        """SIGTERM."""
        assert self.broker.terminate() == 0

    def crash(self) -> None:
        """SIGKILL."""
        self.broker.kill()

    def link(self, listener: int = 0) -> SocketLink:
        """A TCP connection."""
        listeners = self.config.broker["appConfig"]["networkInterfaces"]["tcpInterface"]["listeners"]
        return SocketLink(listeners[listener]["port"])

    def log(self) -> list[str]:
        """All output lines, without the copies that the alarm channel adds to the log."""
        return [record for record in self.broker.records if not record.startswith(("ALARM: ", "PANIC: "))]

    def expect_log(self, *texts: str, since: int = 0, deadline: float = DEADLINE) -> str:
        """Wait for an output line."""
        return self.broker.expect(*texts, since=since, deadline=deadline)

    def gone(self, client: Client) -> None:
        """Ask until the broker counts one client less under that name."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            if not self._knows(client):
                return
        raise Expired(f"the broker still knows {client.name}")

    def _knows(self, client: Client) -> bool:
        if client is self._admin or not client.broker_response:
            return False
        return any(client.description in self.admin(f"DOMAINS DOMAIN {uri[6:].partition('/')[0]} QUEUE "
                                                    f"{uri.rpartition('/')[2]} INTERNALS")
                   for queues in client.queues.values() for uri in {queue.uri for queue in queues})

    def cleanup(self) -> None:
        """Leave nothing open and nothing running."""
        for client in self.clients:
            client.link.drop()
        self.broker.cleanup()


