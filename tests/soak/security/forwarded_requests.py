"""Forwarded requests: a reverse proxy without configuration forwards requests from the network to a console without users.

It is a TCP forwarder that connects from loopback and adds no header. The requests have the Host of the public name, or, for
a console without `localRole`, also that of the console. None has a right.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from typing import Any

from bmqtwist.console.access import OPEN_SECRET, NodeRequest, NodeTokens, receiver_of
from soak.security.target import Target

PUBLIC = "broker.example.com"
STOP = "/api/v1/nodes/n1/stop"
REQUESTS = {"page": ("GET", "/"), "documents": ("GET", "/api/v1/cluster"), "log": ("GET", "/api/v1/log"),
            "stop": ("POST", STOP), "purge": ("POST", "/api/v1/queues/purge"), "WebSocket": ("GET", "/api/v1/live"),
            "token": ("POST", STOP)}
REFUSED = (403, 421)


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Send each request with each Host; return the statuses."""
    port = _forward(target.http)
    own = [f"127.0.0.1:{target.http}"] if target.access == "closed" else []
    statuses = {f"{name}, {host}": _status(port, name, host, target.http) for name in REQUESTS for host in [PUBLIC, *own]}
    found = [f"{name}: {status}" for name, status in statuses.items() if status not in REFUSED]
    if _status(port, "page", f"127.0.0.1:{target.http}", target.http, "/livez") != 200:
        found.append("the forwarder does not work")
    if not target.broker.running:
        found.append("the broker was stopped")
    return {"statuses": statuses, "violations": found}


def _status(port: int, name: str, host: str, http_port: int, path: str = "") -> int:
    method, own_path = REQUESTS[name]
    headers = {"Host": host, "Accept": "text/html", "Content-Type": "application/json", "Origin": f"http://{host}"}
    if name == "WebSocket":
        headers |= {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
                    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    if name == "token":  # the key of consoles without users is no secret
        receiver = receiver_of("n1", f"http://127.0.0.1:{http_port}")
        headers["X-Bmqtwist-Node"] = NodeTokens(OPEN_SECRET).make(
            NodeRequest("n2", receiver, method, own_path, b"{}", "x", "admin"), 0.0, "nonce")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path or own_path, b"{}" if method == "POST" else None, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def _forward(to_port: int) -> int:
    """Forward connections to a port of this machine; return the port of the forwarder."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            client, upstream = listener.accept()[0], socket.create_connection(("127.0.0.1", to_port))
            for pair in ((client, upstream), (upstream, client)):
                threading.Thread(target=_copy, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])


def _copy(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)
