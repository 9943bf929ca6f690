"""How much passes through a node, and how long acknowledgements take: numbers that only grow, whose differences are rates.

Cheap: sessions are counted together, no queue is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bmqtwist.queue.counters import LATENCY_BUCKETS, ClientStats, latency_bounds

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker

_MS = 1000.0


def totals(broker: Broker) -> ClientStats:
    """Messages and bytes since the node began to count: of its applications and proxies, those that have gone included."""
    sums = ClientStats()
    sums.add(broker.sessions.past_traffic)
    for session in broker.sessions.open:
        if session.kind.is_from_outside:
            sums.add(session.stats)
    return sums


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Below how many seconds this share of what was counted lies; None: nothing was counted.

    `counts`: of each bucket of `queue.counters.AckLatency`. Within its bucket what was counted is taken to be spread evenly,
    so the answer is right to an eighth of itself.
    """
    wanted, passed = sum(counts) * share, 0
    for bucket, count in enumerate(counts):
        if count and passed + count >= wanted:
            low, high = latency_bounds(bucket)
            return low + (high - low) * (wanted - passed) / count
        passed += count
    return None


def percentiles(before: Sequence[int], after: Sequence[int]) -> dict[str, float | None]:
    """p50 and p99, in milliseconds, of what came between two times of `AckLatency.counts`; `before` may be empty."""
    counts = [new - old for old, new in zip(before or (0,) * LATENCY_BUCKETS, after, strict=True)]
    found = {name: percentile(counts, share) for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {name: None if seconds is None else seconds * _MS for name, seconds in found.items()}
