"""Attacked brokers of the campaign `security`, and connections of attackers.

A target is a broker process, or a cluster of three nodes, with a console for users. Attacks send to the console of the
first node. Called by `campaign.py` and by the attacks.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from argon2 import PasswordHasher
from kit.process import BrokerProcess, free_port

from bench.rawclient import READ, WRITE, Closed, RawClient, Refusal
from bmqtwist.testing import BrokerProcess as Node
from bmqtwist.testing import ClusterProcess
from soak.cluster_load import AVAILABLE_SECONDS_MAX

QUEUES_OF_A_SESSION = 2000
READ_SECONDS_MAX = 60.0
CLIENT_SECONDS_MAX = 5.0


class Target:
    """Brokers of one attack. `http`: port of the attacked console; `broker`: its process. `is_open`: its local users are
    administrators, else there is a user."""

    def __init__(self, root: Path, nodes: int = 1, queues: int = 0, is_open: bool = False) -> None:
        users = [{"name": "ada", "role": "admin", "passwordHash": PasswordHasher(1, 8, 1).hash("x")}]
        access = {"localRole": "admin"} if is_open else {"users": users}
        console = {**access, "metricsQueuesMax": 0}
        self.proxy_port = free_port()
        self.cluster: ClusterProcess | None = None
        self._clients: list[RawClient] = []
        if nodes > 1:
            app = {"bmqtwist": {"http": console}}
            self.cluster = ClusterProcess(root, nodes, app=app)
            self.brokers: list[Node] = [self.cluster[name] for name in self.cluster.names]
            self.http = int(self.cluster.consoles["n1"].rpartition(":")[2])
        else:
            self.http = free_port()
            app = {"bmqtwist": {"http": {"port": self.http, **console}}}
            self.brokers = [BrokerProcess(root, app=app)]
        self.broker = self.brokers[0]
        for each in self.brokers:
            each.domain("g")
            each.domain("many")
        try:
            self._start(queues)
        except BaseException:
            self.close()
            raise

    def _start(self, queues: int) -> None:
        if self.cluster is not None:
            self.cluster.start()
            for each in self.brokers:
                each.expect("Transitioning to AVAILABLE", deadline=AVAILABLE_SECONDS_MAX)
        else:
            self.broker.start()
        for start in range(0, queues, QUEUES_OF_A_SESSION):
            client = RawClient(self.broker.port, f"owner{start}", 60.0)
            for number in range(start, min(start + QUEUES_OF_A_SESSION, queues)):
                client.open(f"bmq://many/q{number}", number - start, READ | WRITE)
            self._clients.append(client)

    def close(self) -> None:
        """End all processes."""
        for client in self._clients:
            client.close()
        if self.cluster is not None:
            self.cluster.close()
        else:
            self.broker.close()

    def leader(self) -> str:
        """Return the leader with its term; "" = a single node."""
        return "" if self.cluster is None else f"{self.cluster.leader}, elections: {self.elections()}"

    def elections(self) -> int:
        """Return the number of elected leaders in the logs of all nodes."""
        return sum("LEADER" in line for each in self.brokers for line in each.log())

    def log_bytes(self) -> int:
        """Return the size of the output of the attacked broker."""
        return sum(map(len, self.broker.log()))

    def connect(self, receive_buffer: int = 0) -> socket.socket:
        """Return a connection to the console. `receive_buffer`: bytes that the kernel accepts without a reader."""
        channel = socket.socket()
        if receive_buffer:
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        channel.settimeout(READ_SECONDS_MAX)
        channel.connect(("127.0.0.1", self.http))
        return channel

    def request(self, path: str, head: bytes = b"") -> bytes:
        """Return the answer of the console to a GET; b"" = it closed the connection without one."""
        channel = self.connect()
        with channel:
            channel.sendall(get(path, head, b"Connection: close\r\n"))
            return read_all(channel)


def probe_client(target: Target, domain: str, queue: str = "probe") -> bool:
    """Connect a client, open a queue, disconnect; return whether the broker answered within CLIENT_SECONDS_MAX."""
    try:
        client = RawClient(target.broker.port, "probe", CLIENT_SECONDS_MAX)
        try:
            client.open(f"bmq://{domain}/{queue}", 0, WRITE)
        finally:
            client.close()
    except (OSError, TimeoutError, Refusal, Closed):
        return False
    return True


def get(path: str, *head: bytes) -> bytes:
    """Return a GET request."""
    return b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n" % (path.encode("latin-1"), b"".join(head))


def read_all(channel: socket.socket) -> bytes:
    """Read until the end of the connection."""
    found = b""
    with contextlib.suppress(OSError):
        while data := channel.recv(1 << 16):
            found += data
    return found


def rounds(seconds: float, period: float) -> Iterator[int]:
    """Yield numbers from 0 for `seconds`, one per `period` at most."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        began = time.monotonic()
        yield number
        number += 1
        time.sleep(max(0.0, period - (time.monotonic() - began)))
