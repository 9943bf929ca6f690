"""Rogue proxy: a connection that authenticates as a proxy, and the consoles that it announces.

Used by `federation.py` and `announced_addresses.py`; a proxy that is a broker process attacks in `large_answers.py`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from kit.client import FEATURES, Client

from bmqtwist.peers.handshake import CONSOLE_EXTENSION
from bmqtwist.testing.config import CLUSTER
from soak.security.target import Target

POLL_S = 0.05


def announce(target: Target, name: str, url: str, user: str = "proxy") -> Client:
    """Connect as a proxy, and announce its name and the URL of its console."""
    features = f"{FEATURES};{CONSOLE_EXTENSION}:{url.encode().hex()},{name.encode().hex()}"
    return target.client(user, "E_TCPBROKER", features=features, clusterName=CLUSTER, clusterNodeId=-1)


class Received(NamedTuple):
    """Request that a console has received. `arrived_at`: address of the connection; `host`: header Host."""

    arrived_at: str
    host: str
    path: str
    token: str
    is_clean: bool  # without an Authorization header


class FakeConsoles(ThreadingHTTPServer):
    """Consoles at all addresses 127.x.y.z of one port, which keep connections open. `answer(address)` returns a document."""

    daemon_threads, request_queue_size, block_on_close = True, 1024, False

    def __init__(self, answer: Callable[[str], dict[str, Any]]) -> None:
        super().__init__(("0.0.0.0", 0), _Handler)
        self.answer, self.lock = answer, threading.Lock()
        self.received: list[Received] = []
        self.connections = self.connections_max = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, address: str) -> str:
        """Return the URL of the console at an address."""
        return f"http://{address}:{self.server_address[1]}"

    def count(self, change: int) -> None:
        """Count open connections."""
        with self.lock:
            self.connections += change
            self.connections_max = max(self.connections_max, self.connections)

    def remaining_connections(self, seconds: float) -> int:
        """Wait up to `seconds` until no connection is open; return the number of open ones."""
        end = time.monotonic() + seconds
        while self.connections and time.monotonic() < end:
            time.sleep(POLL_S)
        return self.connections

    def close(self) -> None:
        """End the server."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a connection that the broker has reset."""


class _Handler(BaseHTTPRequestHandler):
    server: FakeConsoles
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server.count(1)

    def finish(self) -> None:
        self.server.count(-1)
        super().finish()

    def do_GET(self) -> None:
        address = self.connection.getsockname()[0]
        self.server.received.append(Received(address, self.headers.get("Host", ""), self.path, self.headers.get(
            "X-Bmqtwist-Node", ""), "Authorization" not in self.headers))
        body = json.dumps(self.server.answer(address)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""
