"""Clients and proxies of the scripted cluster. The first proxy is connected to every node and has a console; the second one
does not read its input and has none.

Called by `scripted.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

NO_CONSOLE = "it has no console"


def proxies(at: float, began: float, names: Sequence[str], nodes: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows of proxies of the cluster document."""
    rates = {"putRate": 40 + math.sin(at), "putBytesRate": 36_000.0, "pushRate": 80.0, "pushBytesRate": 72_000.0}
    idle = dict.fromkeys(rates, 0.0)
    return [
        {
            "ident": f"{name}@10.0.1.{k}:77",
            "name": name,
            "host": f"10.0.1.{k}",
            "url": "" if k else "http://10.0.1.0:8080",
            "state": "connected",
            "links": [
                {
                    "node": node,
                    "address": f"10.0.1.{k}:5{n}{k}",
                    "state": "behind" if k else "connected",
                    "since": began,
                    "unread": 20 << 20 if k else 0,
                    "queues": 0 if n else 7,
                    "unconfirmed": 0 if n else 130,
                    "unacked": 0 if n else 4,
                    **(idle if n else rates),
                }
                for n, node in enumerate(list(nodes)[k:])
            ],
        }
        for k, name in enumerate(names)
    ]


def clients(began: float, name: str) -> list[dict[str, Any]]:
    """Return the rows of clients: 11 connected to nodes, one to a proxy."""
    return [
        {
            "id": n,
            "client": f"{name}-{n}",
            "node": "p1" if n == 7 else f"n{1 + n % 3}",
            "proxy": n == 7,
            "host": f"10.0.0.{n}:40{n:02}",
            "sdk": "python 1.2",
            "since": began + n,
            "queues": 2,
            "unconfirmed": 3 * n,
            "state": "connected",
        }
        for n in range(12)
    ]
