"""Campaign `security`: attacks on the ports of the console and of clients, while a producer's ACK times are measured.

    python -m tests.soak security [--attack NAME] [--seconds N]

Each attack runs for `--seconds` against its own broker or cluster. A producer posts a message every 5 ms, first without the
attack, then during it. Limits: the 99th percentile of its ACK times is at most P99_RATIO_MAX times that without the attack
and below P99_MS_MAX, the peak of memory exceeds that without the attack by at most GROWTH_BYTES_MAX (statistics that the
broker prints each minute need memory for a second), the log grows by at most LOG_BYTES_PER_S_MAX, and no leader is elected.
An attack returns its own violations, too; one that is no load (`is_load`) returns no others, and is not measured. The list
of attacks is in docs/testing.md. Called by `soak/command.py`; the short forms are in tests/integration/test_http_attacks.py
and test_security_attacks.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from soak.hostile import NICE, ReferenceClient, summary
from soak.security import (
    administration,
    announced_addresses,
    federation,
    forwarded_requests,
    guessed_passwords,
    http_burst,
    http_flood,
    large_answers,
    malformed_requests,
    many_queues,
    refused_requests,
    silent_connections,
    slow_connections,
    stolen_logins,
    unread_responses,
    watched_pages,
)
from soak.security.target import Access, Target

SECONDS = 10
P99_RATIO_MAX, P99_MS_MAX = 3.0, 100.0
P99_QUIET_MS, AUTHENTICATED_QUIET_MS = 4.0, 10.0  # a shorter time without the attack counts as this one, not for a flood
GROWTH_BYTES_MAX = 64 << 20
LOG_BYTES_PER_S_MAX = 4 << 10
CLIENT_LOG_BYTES_PER_S_MAX = 1 << 20  # at most 1,000 B for each queue that it opens
SAMPLE_PERIOD_S = 0.1


class Attack(NamedTuple):
    """One attack: `run(target, seconds)` returns counts, and violations as "violations". `queues`: open queues;
    `seconds_min`: duration; `log_bytes_per_s_max`: growth of the log; `is_load`: the producer is measured; `p99_quiet_ms`:
    least time without the attack that counts."""

    run: Callable[[Target, float], dict[str, Any]]
    nodes: int = 1
    queues: int = 0
    access: Access = "users"
    seconds_min: int = 0
    log_bytes_per_s_max: int = LOG_BYTES_PER_S_MAX
    is_load: bool = True
    p99_quiet_ms: float = P99_QUIET_MS


ATTACKS = {
    "flood": Attack(http_flood.run, 3, p99_quiet_ms=0.0),
    "flood of many queues": Attack(http_flood.run, 1, 14_000, seconds_min=60, p99_quiet_ms=0.0),
    "burst": Attack(http_burst.run, 3, p99_quiet_ms=0.0),
    "unread responses": Attack(unread_responses.run, 1, 14_000, seconds_min=60),
    "slow connections": Attack(slow_connections.run), "malformed requests": Attack(malformed_requests.run),
    "large answers": Attack(large_answers.run, access="open"), "silent connections": Attack(silent_connections.run),
    "many queues": Attack(many_queues.run, log_bytes_per_s_max=CLIENT_LOG_BYTES_PER_S_MAX,
                          p99_quiet_ms=AUTHENTICATED_QUIET_MS),
    "guessed passwords": Attack(guessed_passwords.run),
    "administration": Attack(administration.run, 3, access="locked", is_load=False),
    "federation": Attack(federation.run, access="locked", p99_quiet_ms=AUTHENTICATED_QUIET_MS),
    "announced addresses": Attack(announced_addresses.run, access="locked", is_load=False),
    "refused requests": Attack(refused_requests.run, seconds_min=70),
    "stolen logins": Attack(stolen_logins.run, 3, is_load=False),
    "forwarded requests": Attack(forwarded_requests.run, access="closed", is_load=False),
    "forwarded requests, open console": Attack(forwarded_requests.run, access="open", is_load=False),
    "watched pages": Attack(watched_pages.run)}


def run(name: str, seconds: int) -> dict[str, Any]:
    """Run one attack; return its measurements."""
    attack = ATTACKS[name]
    with tempfile.TemporaryDirectory(prefix="bmq-security-") as root:
        target = Target(Path(root), attack.nodes, attack.queues, attack.access)
        try:
            run_it = _measure if attack.is_load else _run_only
            return {"run": "security", "attack": name, **run_it(target, attack, max(seconds, attack.seconds_min))}
        finally:
            target.close()


def _measure(target: Target, attack: Attack, seconds: int) -> dict[str, Any]:
    with ThreadPoolExecutor(1) as waiting:
        reading = waiting.submit(ReferenceClient(target.broker.port, seconds).result)
        quiet_memory = _peak_memory(target, reading)
        quiet = summary(reading.result())
    logged, leader = target.log_bytes(), target.leader()
    reference = ReferenceClient(target.broker.port, seconds)
    with ThreadPoolExecutor(1, initializer=os.nice, initargs=(NICE,)) as attackers:  # nice value of this thread only
        time.sleep(0.5)
        attacking = attackers.submit(attack.run, target, seconds - 1.0)
        memory = _peak_memory(target, attacking)
        counts = attacking.result()
    attacked = _acks(reference)
    result = {**counts, "quiet_ms": quiet, "attacked_ms": attacked, "rss_mib": [quiet_memory >> 20, memory >> 20],
              "log_bytes": target.log_bytes() - logged, "leader": [leader, target.leader()]}
    found = violations(result, attack, seconds)
    return {**result, "violations": [*counts.get("violations", ()), *found]}


def _peak_memory(target: Target, working: Future[Any]) -> int:
    """Wait until the work ends; return the largest resident memory of the broker meanwhile, in bytes."""
    peak = 0
    while not working.done():
        peak = max(peak, target.broker.memory())
        time.sleep(SAMPLE_PERIOD_S)
    return peak


def _run_only(target: Target, attack: Attack, seconds: int) -> dict[str, Any]:
    return attack.run(target, float(seconds))


def _acks(reference: ReferenceClient) -> dict[str, float]:
    """Return the summary of the ACK times; infinite = the producer got no answer in a minute."""
    try:
        return summary(reference.result())
    except (ValueError, IndexError):
        return {"posts": 0, "p99": math.inf}


def violations(result: dict[str, Any], attack: Attack, seconds: int) -> list[str]:
    """Return the exceeded limits."""
    found, log_bytes_max = [], attack.log_bytes_per_s_max * seconds
    before, p99 = result["quiet_ms"]["p99"], result["attacked_ms"]["p99"]
    if p99 > P99_RATIO_MAX * max(before, attack.p99_quiet_ms) or p99 >= P99_MS_MAX:
        found.append(f"p99 of the producer {p99} ms, without the attack {before} ms")
    quiet_mib, peak_mib = result["rss_mib"]
    if peak_mib - quiet_mib > GROWTH_BYTES_MAX >> 20:
        found.append(f"at most {peak_mib} MiB of memory, without the attack {quiet_mib} MiB")
    if result["log_bytes"] > log_bytes_max:
        found.append(f"{result['log_bytes']} bytes of log, expected at most {log_bytes_max}")
    if result["leader"][0] != result["leader"][1]:
        found.append(f"leader {result['leader'][0]}, afterwards {result['leader'][1]}")
    return found


def main(arguments: list[str]) -> int:
    """Run the command line; return the number of attacks with violations."""
    parser = argparse.ArgumentParser(prog="tests.soak security", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attack", choices=list(ATTACKS), action="append")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.attack or ATTACKS:
        result = run(name, options.seconds)
        print(json.dumps(result), flush=True)
        failed += bool(result["violations"])
        print(*result["violations"], sep="\n", end="\n" if result["violations"] else "", file=sys.stderr)
    return failed
