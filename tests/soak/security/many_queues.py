"""Very many queues: one application opens new queues as fast as the broker answers.

Meanwhile a client of another domain must be served, and no partition may become read-only.
"""

from __future__ import annotations

import time
from typing import Any

from bench.rawclient import WRITE, RawClient, Refusal
from soak.security.target import Target, probe_client

PROBE_PERIOD_S, OPEN_SECONDS_MAX = 1.0, 5.0


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Open queues, and open a queue of the other domain each second; return the counts."""
    end, next_probe = time.monotonic() + seconds, 0.0
    greedy = RawClient(target.broker.port, "greedy", OPEN_SECONDS_MAX)
    created = refused = clients = unserved = 0
    while (now := time.monotonic()) < end:
        try:
            greedy.open(f"bmq://many/greedy{created}", created, WRITE)
            created += 1
        except (Refusal, TimeoutError):  # opens beyond the rate wait
            refused += 1
        if now >= next_probe:
            next_probe = now + PROBE_PERIOD_S
            clients += 1
            unserved += not probe_client(target, "g", f"q{clients}")
    greedy.close()
    found = [f"{unserved} of {clients} clients were not served"] if unserved else []
    if any("PANIC" in line for line in target.broker.log()):
        found.append("a partition is read-only")
    return {"queues": created, "refused": refused, "clients": clients, "unserved": unserved, "violations": found}
