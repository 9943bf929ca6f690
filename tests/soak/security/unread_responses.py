"""Unread responses: 40 scrapes and 100 pipelines of a static file whose answers are not read."""

from __future__ import annotations

import contextlib
from typing import Any

from soak.security.target import Target, get, rounds

SCRAPES, PIPELINES, PIPELINED = 40, 100, 500


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Request and do not read; return the number of connections that remain."""
    channels = []
    for number in range(SCRAPES + PIPELINES):
        with contextlib.suppress(OSError):
            channel = target.connect(4096)
            channels.append(channel)
            channel.setblocking(False)
            channel.send(get("/metrics") if number < SCRAPES else get("/static/style.css") * PIPELINED)
    for _ in rounds(seconds, 1.0):
        pass
    for channel in channels:
        channel.close()
    return {"connections": len(channels)}
