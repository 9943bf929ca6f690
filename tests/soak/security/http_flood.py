"""Flood: 100 connections, each with 20 pipelined requests for the short status, again and again."""

from __future__ import annotations

import contextlib
from typing import Any

from soak.security.target import Target, get, rounds

CONNECTIONS, PIPELINED, PERIOD_S = 100, 20, 0.5


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Flood the console; return the number of requests."""
    sent = 0
    for _ in rounds(seconds, PERIOD_S):
        channels = []
        with contextlib.suppress(OSError):
            for _ in range(CONNECTIONS):
                channels.append(target.connect())
        for channel in channels:
            with contextlib.suppress(OSError):
                channel.sendall(get("/") * PIPELINED)
                sent += PIPELINED
        for channel in channels:
            channel.close()
    return {"requests": sent}
