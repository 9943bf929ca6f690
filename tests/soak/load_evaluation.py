"""Checks of a cluster that ran under load, and the times without acknowledgements.

`restart_judge` checks that each post was acknowledged exactly once, is in its queue exactly once, and in order; sessions at
the proxy must have no connection events unless the proxy was restarted. All files of the nodes must be equal at the end. The
time without acknowledgements of a fault is the longest time from a post of the probe to its acknowledgement, of the posts
from one second before the fault until the next one; it must stay below ACK_SECONDS_MAX while a majority of the nodes can
serve. Called by `failover.py` and `upgrade.py`.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from itertools import combinations
from typing import Any

from soak.cluster_load import CONSUMERS, LATE, PRODUCERS, LoadedCluster, Span
from soak.restart_judge import Consumed, Produced, Verdict, judge

ACK_SECONDS_MAX = 20.0
BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10)
BEFORE_S = 1.0  # posts before a fault that may be unacknowledged when it begins
_COMPARE = "from bmqtwist.cli.main import main; main()"


def evaluate(load: LoadedCluster, without_majority: Collection[str] = ()) -> tuple[Verdict, dict[str, dict[str, Any]]]:
    """Return the verdict, and the times without acknowledgements by fault, in s. `without_majority`: faults during which no
    majority of the nodes serves."""
    records = [load.clients.record(name) for name in PRODUCERS.values()]
    verdict = _judge(load, records)
    posted = sum(each["posts"][LATE] - sum(status != "SUCCESS" for _, _, status in each["acks"][LATE]) for each in records)
    if load.late_stored != posted:
        verdict.report("duplicated" if load.late_stored > posted else "lost",
                       f"{LATE} holds {load.late_stored} messages of {posted} accepted posts")
    for text in load.silent:
        verdict.report("unexpected", text)
    waits = _waits(load, verdict, without_majority)
    _compare(load, verdict)
    brokers = {**load.former, **{name: load.cluster[name] for name in (*load.cluster.names, *load.cluster.proxies)}}
    for name, broker in brokers.items():
        for line in broker.log():
            if "Traceback" in line or "INTERNAL_ERROR" in line:
                verdict.report("unexpected", f"{name}: {line}")
    return verdict, waits


def _judge(load: LoadedCluster, records: list[dict[str, Any]]) -> Verdict:
    produced = [Produced(each["name"], uri, each["posts"][uri], [tuple(ack) for ack in acks])
                for each in records for uri, acks in each["acks"].items()]
    consumers = [load.clients.record(name) for name in CONSUMERS]
    consumed = []
    for each in consumers:
        for uri, deliveries in each["deliveries"].items():
            base, _, app = uri.partition("?id=")
            consumed.append(Consumed(base, app, [tuple(delivery) for delivery in deliveries]))
    verdict = judge(produced, consumed, [(each["name"], each["letters"], each["queues"])
                                         for each in (*records, *consumers)], moves=True)
    for each in (*records, *consumers):
        if not load.proxy_restarts and each["name"] in ("producer0", "live", "late") and each["letters"] != "CD":
            verdict.report("events", f"{each['name']}, at the proxy: {each['letters']}")
    return verdict


def _waits(load: LoadedCluster, verdict: Verdict, without_majority: Collection[str]) -> dict[str, dict[str, Any]]:
    posts = [tuple(post) for taken in load.clients.record("probe").values() for post in taken]
    verdict.numbers["probes"] += len(posts)
    for _, _, status in posts:
        if status != "SUCCESS":
            verdict.report("refused", f"probe: {status}")
    found: dict[str, list[float]] = {}
    ends = [each.at - BEFORE_S for each in load.spans[1:]] + [float("inf")]
    for span, end in zip(load.spans, ends, strict=True):
        worst = max((duration for began, duration, _ in posts if span.at - BEFORE_S <= began < end), default=0.0)
        found.setdefault(_title(span), []).append(worst)
        if worst > ACK_SECONDS_MAX and span.kind not in without_majority:
            at = span.at - load.started
            verdict.report("unanswered", f"{_title(span)} at {at:.1f} s: no acknowledgement for {worst:.1f} s")
    return {title: distribution(waits) for title, waits in sorted(found.items())}


def _title(span: Span) -> str:
    return f"{span.kind} of {span.role}" if span.role else span.kind


def distribution(waits: list[float]) -> dict[str, Any]:
    """Return number, percentiles in s, and the histogram of times: the number below each bound, and not below the one
    before."""
    ordered = sorted(waits)
    counts = Counter(next((title for title, bound in zip(titles(), BUCKETS_S, strict=False) if wait < bound), titles()[-1])
                     for wait in ordered)
    return {"faults": len(ordered), "p50": round(ordered[len(ordered) // 2], 3),
            "p99": round(ordered[int(len(ordered) * 0.99)], 3), "max": round(ordered[-1], 3),
            "histogram": {title: counts[title] for title in titles()}}


def titles() -> list[str]:
    """Return the titles of the histogram's buckets, in s."""
    return [*(f"<{bound:g}" for bound in BUCKETS_S), f">={BUCKETS_S[-1]:g}"]


def table(waits: dict[str, dict[str, Any]]) -> str:
    """Return the times without acknowledgements as a table in Markdown."""
    head = ["fault", "faults", *(f"{each} s" for each in titles()), "p50 s", "p99 s", "max s"]
    rows = [[name, each["faults"], *each["histogram"].values(), each["p50"], each["p99"], each["max"]]
            for name, each in waits.items()]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows))


def _compare(load: LoadedCluster, verdict: Verdict) -> None:
    """Check that all replicas have equal files; count the images sent to nodes whose missing records were compacted."""
    cluster = load.cluster
    verdict.numbers["images"] = sum((load.root / name / "logs" / "bmqbrkr.log").read_text(errors="replace").count(
        "gets an image") for name in cluster.names)
    for name in (*cluster.proxies, *cluster.names):
        if cluster[name].stop():
            verdict.report("unexpected", f"{name} did not stop with exit code 0")
    for left, right in combinations(cluster.names, 2):
        result = subprocess.run([sys.executable, "-c", _COMPARE, "storage", "compare",
                                 *(str(cluster[name].config.storage) for name in (left, right))],
                                capture_output=True, text=True, check=False)
        verdict.numbers["comparisons"] += 1
        if result.returncode:
            verdict.report("unexpected", f"{left} and {right} differ: {result.stdout[-500:]}{result.stderr[-500:]}")
