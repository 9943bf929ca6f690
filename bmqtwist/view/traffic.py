"""How much passes through a node, and how long acknowledgements take: numbers that only grow, whose differences are rates.

Cheap: sessions are counted together, no queue is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bmqtwist.queue.counters import LATENCY_BUCKETS, ClientStats, latency_bounds

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.queue.queue import Queue

_MS = 1000.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Messages and bytes since the node, or the queue, began to count. Of a node: those of applications here and behind its
    proxies."""

    put: int = 0
    ack: int = 0
    push: int = 0
    confirm: int = 0
    nack: int = 0
    put_bytes: int = 0
    push_bytes: int = 0


def totals(broker: Broker) -> Totals:
    """Of the applications and proxies of a node, those that have gone included."""
    sums = ClientStats()
    sums.add(broker.past_traffic)
    for session in broker.sessions:
        if session.kind.is_from_outside:
            sums.add(session.stats)
    return Totals(sums.put_msgs, sums.ack_msgs, sums.push_msgs, sums.confirm_msgs, sums.nack_msgs, sums.put_bytes,
                  sums.push_bytes)


def queue_totals(queue: Queue) -> Totals:
    """Of one queue at this node."""
    stats = queue.stats
    return Totals(stats.put_msgs, stats.ack_msgs, stats.push_msgs, stats.confirm_msgs, stats.nack_msgs, stats.put_bytes,
                  stats.push_bytes)


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
