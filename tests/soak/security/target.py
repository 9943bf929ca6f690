"""Attacked brokers of the campaign `security`, and connections of attackers.

A target is a broker process, or a cluster of three nodes. Attacks send to the console of the first node, and to its port of
clients. Called by `campaign.py` and by the attacks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from kit.client import Client
from kit.console import users
from kit.console_client import Tab
from kit.process import BrokerProcess, SocketLink, free_port
from kit.roles import documented_rules, secured_app

from bench.rawclient import READ, WRITE, Closed, RawClient, Refusal
from bmqtwist.testing import BrokerProcess as Node
from bmqtwist.testing import ClusterProcess
from soak.cluster_load import AVAILABLE_SECONDS_MAX

QUEUES_OF_A_SESSION = 2000
READ_SECONDS_MAX = 60.0
CLIENT_SECONDS_MAX = 5.0
ORDERS = "bmq.orders"  # the domain of the applications of `kit.roles`
PASSWORD = "x"  # of each user of `kit.roles`

# users: the console has users and a key file, clients need no credential; locked: users, and the rules of
# docs/configuration.md for clients, where the reference producer is anonymous and may use the domain `g`; open: local users
# of the console are administrators; closed: the console has neither users nor a role for local users.
Access = Literal["users", "locked", "open", "closed"]


class Target:
    """Brokers of one attack. `http`: port of the attacked console; `broker`: its process; `secret`: the key of consoles;
    `settings`: members of `appConfig.bmqtwist`; `tls`: `tlsConfig` of a second listener, at `tls_port`."""

    def __init__(self, root: Path, nodes: int = 1, queues: int = 0, access: Access = "users",
                 settings: dict[str, Any] | None = None, tls: dict[str, Any] | None = None) -> None:
        self.tls_port = free_port() if tls else 0
        self.access, self.secret = access, os.urandom(32).hex().encode()
        self.proxy_port = free_port()
        self.cluster: ClusterProcess | None = None
        self._clients: list[RawClient] = []
        app, console = _locked() if access == "locked" else {"bmqtwist": {}}, self._console(root)
        app["bmqtwist"] |= settings or {}
        if tls:
            app["tlsConfig"] = tls
        if nodes > 1:
            app["bmqtwist"]["http"] = console
            self.cluster = ClusterProcess(root, nodes, app=app)
            self.brokers: list[Node] = [self.cluster[name] for name in self.cluster.names]
            self.http = int(self.cluster.consoles["n1"].rpartition(":")[2])
        else:
            self.http = free_port()
            app["bmqtwist"]["http"] = {"port": self.http, **console}
            self.brokers = [BrokerProcess(root, app=app)]
        self.broker = self.brokers[0]
        if tls:
            interface = self.broker.config.broker["appConfig"]["networkInterfaces"]["tcpInterface"]
            interface["listeners"].append({"name": "tls", "address": "127.0.0.1", "port": self.tls_port, "tls": True})
            self.broker.config.write()
        for each in self.brokers:
            for domain in ("g", "many", ORDERS):
                each.domain(domain)
        try:
            self._start(queues)
        except BaseException:
            self.close()
            raise

    def _console(self, root: Path) -> dict[str, Any]:
        console: dict[str, Any] = {"metricsQueuesMax": 0}
        if self.access in ("open", "closed"):
            return console | ({"localRole": "admin"} if self.access == "open" else {})
        root.mkdir(exist_ok=True)
        key = root / "console.key"
        key.touch(0o600)
        key.write_bytes(self.secret)
        return {**console, "users": list(users()), "keyFile": str(key)}

    def _start(self, queues: int) -> None:
        if self.cluster is not None:
            for each in self.brokers:
                each.launch()
            for each in self.brokers:
                each.expect("Transitioning to AVAILABLE", deadline=AVAILABLE_SECONDS_MAX)
            if self.access != "locked":
                self.cluster.elect()
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
        """Return the leader and the number of elections; "" = a single node."""
        if self.cluster is None:
            return ""
        name = self.cluster.leader if self.access != "locked" else ""
        return f"{name}, elections: {self.elections()}"

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


    def tab(self, user: str = "", node: str = "") -> Tab:
        """Return a client of the console, logged in as a user; `node`: of another node."""
        url = self.cluster.consoles[node] if self.cluster is not None and node else f"http://127.0.0.1:{self.http}"
        tab = Tab(url)
        if user and (status := tab.log_in(user)) != 303:
            raise RuntimeError(f"{user} cannot log in: {status}")
        return tab

    def client(self, user: str = "", client_type: str = "E_TCPCLIENT", **identity: Any) -> Client:
        """Connect, authenticate as a user of `kit.roles` and negotiate; "" = anonymous. `identity`: other members of the
        identity. The answer is `broker_response`, empty = the broker closed the connection."""
        client = Client(SocketLink(self.broker.port), user or "attacker", client_type=client_type)
        client.identity |= identity
        with contextlib.suppress(AssertionError):  # closed without an answer
            if user:
                client.authenticate("BASIC", f"{user}:{PASSWORD}".encode())
            client.negotiate()
        return client


def is_admitted(client: Client) -> bool:
    """Return whether the broker has accepted the identity of a client."""
    return bool(client.broker_response) and client.broker_response["result"]["category"] == "E_SUCCESS"


def _locked() -> dict[str, Any]:
    """Return members of appConfig: the users and rules of the documentation, and a domain for the reference producer."""
    rules = documented_rules()
    rules["rules"].append({"principal": "anonymous", "domain": "g", "effect": "allow"})
    app = secured_app(rules)
    own = {"username": "node", "password": PASSWORD}
    settings = [{"key": name, "value": {"stringVal": value}} for name, value in own.items()]
    app["authentication"] |= {
        "anonymousCredential": {"credential": {"mechanism": "ANONYMOUS", "identity": ""}},
        "credentialProvider": {"name": "BasicCredentialProvider", "settings": settings}}
    return app


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
