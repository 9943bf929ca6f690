"""Refused requests: a viewer requests purges again and again, logs in with mistyped names, and sends forged node tokens.

Earlier entries of the audit log must remain. The refusals of one user are few entries, which count the omitted ones and name
the queue; a mistyped name, which may be a password, is in no file; forged tokens are recorded.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from typing import Any

from bmqtwist.console.access import NodeRequest, NodeTokens, receiver_of
from bmqtwist.console.audit import FILE
from bmqtwist.limits import AUDIT_BURST, AUDIT_INTERVAL_S
from soak.security.target import Target, read_all, rounds

CONNECTIONS, PIPELINED, PERIOD_S = 20, 100, 0.2
COUNTED_MIN = 0.3  # those after the last entry are counted by the next one, up to AUDIT_INTERVAL_S later
QUEUE, MISTYPED = "bmq://g/valuable", "correct-horse-battery"
_OMITTED = re.compile(r"\((\d+) similar entries before were left out\)")


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Send the requests; return the number of answers, and of entries of the audit log."""
    admin, viewer = target.tab("ada"), target.tab("vera")
    assert admin.post("/api/v1/domains/g/reconfigure", {"reason": "before the attack"})[0] == 200
    body = json.dumps({"uri": QUEUE, "confirm": QUEUE, "reason": "x"}).encode()
    head = f"X-CSRF-Token: {viewer.csrf()}\r\nCookie: {viewer.cookie}\r\nContent-Type: application/json\r\n"
    purge = b"POST /api/v1/queues/purge HTTP/1.1\r\nHost: 127.0.0.1\r\n%sContent-Length: %d\r\n\r\n%s" % (
        head.encode(), len(body), body)
    refused = 0
    for _ in rounds(seconds, PERIOD_S):
        refused += _pipeline(target, purge)
    statuses = {target.tab().log_in(MISTYPED, f"guess{number}") for number in range(3)}
    forged = NodeTokens(b"another key " * 4).make(
        NodeRequest("n1", receiver_of("n1", f"http://127.0.0.1:{target.http}"), "GET", "/api/v1/node", b""), 0.0, "nonce")
    statuses.add(target.tab().ask("/api/v1/node", headers={"X-Bmqtwist-Node": forged})[0])
    entries = [json.loads(line) for line in _files(target).splitlines()]
    purges = [each for each in entries if each["action"] == "purge"]
    most = AUDIT_BURST + seconds / AUDIT_INTERVAL_S + 2
    found = []
    if not any(each["reason"] == "before the attack" for each in entries):
        found.append("an earlier entry is lost")
    if not AUDIT_BURST <= len(purges) <= most:
        found.append(f"{len(purges)} entries of refused purges, expected {AUDIT_BURST} to {most:.0f}")
    if any((each["target"], each["user"]) != (QUEUE, "vera") for each in purges):
        found.append(f"the entries name the targets {({each['target'] for each in purges})}")
    if MISTYPED in _files(target) or any(MISTYPED in line for line in target.broker.log()):
        found.append("a mistyped name is recorded")
    if not any(each["action"] == "node token" and each["target"] == "/api/v1/node" for each in entries):
        found.append("a forged node token is not recorded")
    omitted = sum(int(each[1]) for each in _OMITTED.finditer(_files(target)))
    if seconds > 2 * AUDIT_INTERVAL_S and not refused * COUNTED_MIN < omitted + len(purges) <= refused:
        found.append(f"{len(purges)} entries count {omitted} omitted ones of {refused} refusals")
    return {"refused": refused, "entries": [len(purges), round(most)], "omitted": omitted, "statuses": sorted(statuses),
            "violations": found}


def _pipeline(target: Target, request: bytes) -> int:
    """Send pipelines of a request on several connections; return the number of refusals."""
    channels = list[socket.socket]()
    for _ in range(CONNECTIONS):
        with contextlib.suppress(OSError):
            channels.append(target.connect())
            last = request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            channels[-1].sendall(request * (PIPELINED - 1) + last)
    refused = 0
    for channel in channels:
        with channel:
            refused += read_all(channel).count(b"HTTP/1.1 403 ")
    return refused


def _files(target: Target) -> str:
    return "".join(path.read_text() for path in sorted((target.broker.root / "logs").glob(f"{FILE}*")))
