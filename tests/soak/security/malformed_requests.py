"""Malformed requests: inputs that parsers below the console refuse. Each answer must be 400, and the log must stay short."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

from soak.security.target import Target, get, read_all, rounds

INPUTS = {
    "next": get("/login?next=//["), "origin": get("/api/v1/live", b"Upgrade: websocket\r\nOrigin: http://[\r\n"),
    "cookie": get("/api/v1/cluster", b"Cookie: bmq_session=\xff\r\n"), "path": get("/%ff"),
    "node token": get("/api/v1/node", b"X-Bmqtwist-Node: " + b"W" * 4000 + b".x.y\r\n"),
    "length": get("/", b"Content-Length: " + b"9" * 5000 + b"\r\n"), "accept": get("/", b"Accept: \xff\xfe\r\n"),
    "host": b"GET / HTTP/1.1\r\nHost: [\r\n\r\n", "forwarded": get("/login", b"X-Forwarded-For: \xff\r\n")}
SMALL = 0.01


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Send the inputs in turn; return the number of answers by input and status."""
    answers = Counter[str]()
    names = list(INPUTS)
    for number in rounds(seconds, SMALL):
        name = names[number % len(names)]
        with contextlib.suppress(OSError), target.connect() as channel:
            channel.sendall(INPUTS[name].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            answers[f"{name}: {read_all(channel)[9:12].decode() or 'closed'}"] += 1
    bad = [each for each in answers if each.endswith((": 500", ": closed"))]
    return {"answers": dict(answers), "violations": [f"answers {bad}"] if bad else []}
