"""Slow connections: 400 connections send a header line per second and no complete request. `/livez` must be answered."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from soak.security.target import Target, rounds

CONNECTIONS, ANSWER_SECONDS_MAX = 400, 1.0


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Hold the connections and probe `/livez`; return the number of unanswered probes."""
    channels = []
    for _ in range(CONNECTIONS):
        with contextlib.suppress(OSError):
            channel = target.connect()
            channel.sendall(b"GET / HTTP/1.1\r\n")
            channels.append(channel)
    probes = unanswered = 0
    for _ in rounds(seconds, 1.0):
        for channel in channels:
            with contextlib.suppress(OSError):
                channel.sendall(b"A: b\r\n")
        began = time.monotonic()
        answer = b""
        with contextlib.suppress(OSError):
            answer = target.request("/livez")
        probes += 1
        unanswered += not answer.startswith(b"HTTP/1.1 200 ") or time.monotonic() - began > ANSWER_SECONDS_MAX
    for channel in channels:
        channel.close()
    return {"probes": probes, "unanswered": unanswered,
            "violations": [f"{unanswered} of {probes} probes of /livez without an answer"] if unanswered else []}
