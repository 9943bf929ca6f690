"""Counters of the hot path: totals, maxima, and histograms of latencies, for statistics and metrics.

    QueueStats   one queue: PUTs, ACKs, removals, and the deliveries of all its apps
    AppStats     one app of a fanout queue: PUSHes, CONFIRMs
    ClientStats  one client session
    AckLatency   one node: histogram of the time from PUT to ACK, with LATENCY_STEPS buckets per power of two

Queues, delivery and sessions count; the modules of `view` read. Attributes are totals since the creation of the object;
those ending in `_max` are maxima since the last `take_maxima`. Times are seconds; a mean is the `_sum` divided by the number
of events. The present content of a queue (stored messages, readers, GUID history) is read from the queue, not from here.

`view/statistics.py` and `view/snapshots.py` read them; `view/metrics.py` declares the metrics that show them.
"""

from __future__ import annotations

from math import frexp, inf, ldexp
from typing import ClassVar, Final

_APP = ("push_msgs", "push_bytes", "confirm_msgs", "confirm_time_sum", "confirm_time_max", "queue_time_sum",
        "queue_time_max", "content_msgs_max", "content_bytes_max")
_ENTRANCE = ("put_msgs", "put_bytes", "ack_msgs", "ack_time_sum", "ack_time_max", "nack_msgs", "nack_noquorum_msgs",
             "reject_msgs", "gc_msgs", "wrong_crc_msgs")
_CLIENT = ("put_msgs", "put_bytes", "push_msgs", "push_bytes", "ack_msgs", "nack_msgs", "confirm_msgs")


class Counters:
    """Base class of counters: readers of totals and maxima."""

    __slots__ = ()
    NAMES: ClassVar[tuple[str, ...]] = ()

    def totals(self) -> dict[str, float]:
        """Return all counters by name, in order of declaration."""
        return {name: getattr(self, name) for name in self.NAMES}

    def take_maxima(self) -> dict[str, float]:
        """Return the maxima and reset them to zero."""
        taken = {name: getattr(self, name) for name in self.NAMES if name.endswith("_max")}
        for name in taken:
            setattr(self, name, type(taken[name])())
        return taken


LATENCY_STEPS: Final = 8  # buckets from one power of two to the next
_LOWEST: Final = -19  # exponents of 2: from 1.9 us ...
_HIGHEST: Final = 10  # ... to 1,024 s; values outside count in the first or last bucket
_LONGEST_S: Final = 1024.0
LATENCY_BUCKETS: Final = (_HIGHEST - _LOWEST + 1) * LATENCY_STEPS
_frexp: Final = frexp  # imported names are slow to look up
_OPEN_MAX = 1024  # queues with ACKs that are not in the buckets yet


def latency_bucket(seconds: float) -> int:
    """Return the bucket of a latency."""
    if seconds <= 0.0:
        return 0
    if seconds >= _LONGEST_S:
        return LATENCY_BUCKETS - 1
    fraction, exponent = _frexp(seconds)
    index = (exponent - _LOWEST) * LATENCY_STEPS + int((fraction - 0.5) * 2 * LATENCY_STEPS)
    return max(index, 0)


def latency_bounds(bucket: int) -> tuple[float, float]:
    """Return the bounds of a bucket, seconds."""
    octave, step = divmod(bucket, LATENCY_STEPS)
    low = ldexp(1.0, octave + _LOWEST - 1)
    return low * (1 + step / LATENCY_STEPS), low * (1 + (step + 1) / LATENCY_STEPS)


_BOUNDS: Final[list[tuple[float, float]]] = [latency_bounds(bucket) for bucket in range(LATENCY_BUCKETS)]


class Streak:
    """Run-length counter of latencies by bucket. Consecutive latencies of one bucket cost a comparison each and are added to
    `counts` together; `low` and `high` are the bounds of the present bucket, seconds."""

    __slots__ = ("bucket", "high", "low", "counts", "_counted")

    def __init__(self, counts: dict[int, int]) -> None:
        self.counts = counts
        self.bucket = self._counted = 0
        self.low = self.high = 0.0

    def enter_bucket(self, seconds: float, total: int) -> None:
        """Change to the bucket of a latency; `total`: number of latencies before it."""
        self.flush(total)
        self.bucket = latency_bucket(seconds)
        low, high = _BOUNDS[self.bucket]
        self.low = low if self.bucket else -inf
        self.high = high if self.bucket < LATENCY_BUCKETS - 1 else inf

    def flush(self, total: int) -> None:
        """Add the present run to `counts`; `total`: number of all latencies."""
        count = total - self._counted
        if count:
            self._counted = total
            self.counts[self.bucket] = self.counts.get(self.bucket, 0) + count


class AppStats(Counters):
    """Counters of one app of one queue: deliveries, confirms, and maxima of its content."""

    __slots__ = (*_APP, "_confirms")
    NAMES: ClassVar[tuple[str, ...]] = _APP

    def __init__(self) -> None:
        self.push_msgs = self.push_bytes = self.confirm_msgs = 0
        self.confirm_time_sum = self.confirm_time_max = 0.0
        self.queue_time_sum = self.queue_time_max = 0.0
        self.content_msgs_max = self.content_bytes_max = 0
        self._confirms = Streak({})  # time from arrival to confirm, since the last `take_latencies`

    def count_push(self, size: int, waited: float) -> None:
        """Count a delivery of `size` bytes, `waited` seconds after the message arrived."""
        self.push_msgs += 1
        self.push_bytes += size
        self.queue_time_sum += waited
        if waited > self.queue_time_max:
            self.queue_time_max = waited

    def count_confirm(self, held: float, after: float) -> None:
        """Count a confirm, `held` seconds after the delivery, `after` seconds after the message arrived."""
        streak = self._confirms
        if not streak.low <= after < streak.high:
            streak.enter_bucket(after, self.confirm_msgs)
        self.confirm_msgs += 1
        self.confirm_time_sum += held
        if held > self.confirm_time_max:
            self.confirm_time_max = held

    def take_latencies(self) -> dict[int, int]:
        """Return and reset the numbers of confirms by bucket of the time since the message arrived."""
        streak = self._confirms
        streak.flush(self.confirm_msgs)
        taken, streak.counts = streak.counts, {}
        return taken

    def update_content_maxima(self, messages: int, size: int) -> None:
        """Update the maxima with the present content."""
        self.content_msgs_max = max(self.content_msgs_max, messages)
        self.content_bytes_max = max(self.content_bytes_max, size)


class AckLatency:
    """Histogram of the ACK latency of one node. Queues add to `by_bucket` with their streaks."""

    __slots__ = ("by_bucket", "_uncounted")

    def __init__(self) -> None:
        self.by_bucket: dict[int, int] = {}
        self._uncounted: list[QueueStats] = []  # with ACKs that are not counted yet

    def add_uncounted(self, stats: QueueStats) -> None:
        """Add a queue with ACKs that are not counted yet."""
        if len(self._uncounted) >= _OPEN_MAX:
            self._flush()
        self._uncounted.append(stats)

    def _flush(self) -> None:
        waiting, self._uncounted = self._uncounted, []
        for stats in waiting:
            stats.flush()

    def counts(self) -> tuple[int, ...]:
        """Return the number of ACKs of each bucket since the start of the node."""
        self._flush()
        return tuple([self.by_bucket.get(bucket, 0) for bucket in range(LATENCY_BUCKETS)])


class QueueStats(AppStats):
    """Counters of one queue: those of its apps together, and PUTs, ACKs and removals."""

    __slots__ = (*_ENTRANCE, "_latency", "_acks", "_has_uncounted")
    NAMES: ClassVar[tuple[str, ...]] = _APP + _ENTRANCE

    def __init__(self, latency: AckLatency | None = None) -> None:
        super().__init__()
        self._latency = latency
        self._acks = Streak({} if latency is None else latency.by_bucket)
        self._has_uncounted = False  # `_latency` has this queue in its list
        self.put_msgs = self.put_bytes = 0
        self.ack_msgs = self.nack_msgs = self.nack_noquorum_msgs = 0
        self.ack_time_sum = self.ack_time_max = 0.0
        self.reject_msgs = self.gc_msgs = self.wrong_crc_msgs = 0

    def count_ack(self, waited: float) -> None:
        """Count an ACK with status 0, `waited` seconds after the PUT."""
        streak = self._acks
        if not streak.low <= waited < streak.high:
            streak.enter_bucket(waited, self.ack_msgs)
        if not self._has_uncounted:
            self._has_uncounted = True
            if self._latency is not None:
                self._latency.add_uncounted(self)
        self.ack_msgs += 1
        self.ack_time_sum += waited
        if waited > self.ack_time_max:
            self.ack_time_max = waited

    def flush(self) -> None:
        """Add the present run to the histogram."""
        self._acks.flush(self.ack_msgs)
        self._has_uncounted = False


class ClientStats(Counters):
    """Counters of one client session over all its queues."""

    __slots__ = _CLIENT
    NAMES: ClassVar[tuple[str, ...]] = _CLIENT

    def __init__(self) -> None:
        self.put_msgs = self.put_bytes = self.push_msgs = self.push_bytes = 0
        self.ack_msgs = self.nack_msgs = self.confirm_msgs = 0

    def add(self, other: ClientStats) -> None:
        """Add the counters of another session."""
        for name in self.NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
