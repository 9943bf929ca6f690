"""Silent connections: 500 connections from each of four addresses to the port of clients, none of which sends a byte.

Connections that the broker closes are opened again. Meanwhile a new client must be served.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import Any

from soak.security.target import Target, probe_client, rounds

ADDRESSES, CONNECTIONS = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"), 500


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Hold the connections, and connect a client each second; return the number of clients without service."""
    held = list[tuple[str, socket.socket]]()
    opened = clients = unserved = 0
    for _ in rounds(seconds, 1.0):
        closed = {channel for _, channel in held if _is_closed(channel)}
        for channel in closed:
            channel.close()
        held = [each for each in held if each[1] not in closed]
        for address in ADDRESSES:
            for _ in range(CONNECTIONS - sum(own == address for own, _ in held)):
                with contextlib.suppress(OSError):
                    held.append((address, socket.create_connection(("127.0.0.1", target.broker.port), 5.0, (address, 0))))
                    opened += 1
        clients += 1
        unserved += not probe_client(target, "g")
    for _, channel in held:
        channel.close()
    return {"connections": opened, "clients": clients, "unserved": unserved,
            "violations": [f"{unserved} of {clients} clients were not served"] if unserved else []}


def _is_closed(channel: socket.socket) -> bool:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(0))  # the broker sends nothing to a silent connection: readable = closed
