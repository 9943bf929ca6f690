"""Burst: 640 KB of `GET /livez` at once, in ten connections, every second."""

from __future__ import annotations

import contextlib
from typing import Any

from soak.security.target import Target, rounds

CONNECTIONS, BYTES, PERIOD_S = 10, 64 << 10, 1.0
REQUEST = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Send bursts; return their number."""
    bursts = 0
    for _ in rounds(seconds, PERIOD_S):
        channels = []
        with contextlib.suppress(OSError):
            for _ in range(CONNECTIONS):
                channels.append(target.connect())
            for channel in channels:
                channel.setblocking(False)
                channel.send(REQUEST * (BYTES // len(REQUEST)))
            bursts += 1
        for channel in channels:
            channel.close()
    return {"bursts": bursts}
