"""What the hot path counts: plain numbers that only grow, and maxima that a reader takes away.

Every attribute without a remark is a total since the object was made. Attributes ending in `_max` are the largest value
since the last `take_maxima`. Times are seconds; a mean is the matching `_sum` divided by the number of events. What can
be read from the queue itself (messages stored now, readers, history) is not here.
"""

from __future__ import annotations

from math import frexp
from typing import ClassVar

_APP = ("push_msgs", "push_bytes", "confirm_msgs", "confirm_time_sum", "confirm_time_max", "queue_time_sum",
        "queue_time_max", "content_msgs_max", "content_bytes_max")
_ENTRANCE = ("put_msgs", "put_bytes", "ack_msgs", "ack_time_sum", "ack_time_max", "nack_msgs", "nack_noquorum_msgs",
             "reject_msgs", "gc_msgs")
_CLIENT = ("put_msgs", "put_bytes", "push_msgs", "push_bytes", "ack_msgs", "nack_msgs", "confirm_msgs")
_CHANNEL = ("in_bytes", "out_bytes", "in_chunks", "out_chunks")


class Counters:
    """Shared reading side: totals as a mapping, maxima handed over and restarted."""

    __slots__ = ()
    NAMES: ClassVar[tuple[str, ...]] = ()

    def totals(self) -> dict[str, float]:
        """Every attribute under its name, in the order of declaration."""
        return {name: getattr(self, name) for name in self.NAMES}

    def take_maxima(self) -> dict[str, float]:
        """The maxima so far; each starts again from zero."""
        taken = {name: getattr(self, name) for name in self.NAMES if name.endswith("_max")}
        for name in taken:
            setattr(self, name, type(taken[name])())
        return taken


class AppStats(Counters):
    """Counters of one app of one queue: deliveries, confirms, and the most it held.

    Messages that came in one turn and are confirmed in one turn have taken equally long: they are counted together.
    """

    __slots__ = (*_APP, "_done", "_done_after", "_done_told")
    NAMES: ClassVar[tuple[str, ...]] = _APP

    def __init__(self) -> None:
        self.push_msgs = self.push_bytes = self.confirm_msgs = 0
        self.confirm_time_sum = self.confirm_time_max = 0.0
        self.queue_time_sum = self.queue_time_max = 0.0
        self.content_msgs_max = self.content_bytes_max = 0
        self._done: dict[int, int] = {}  # confirms by the bucket of the time since the arrival, without those that are taken
        self._done_after = -1.0  # seconds, of the last confirm
        self._done_told = 0  # confirms that are in the buckets, or were

    def pushed(self, size: int, waited: float) -> None:
        """One delivery of `size` bytes, `waited` seconds after the message arrived."""
        self.push_msgs += 1
        self.push_bytes += size
        self.queue_time_sum += waited
        if waited > self.queue_time_max:
            self.queue_time_max = waited

    def confirmed(self, held: float, after: float) -> None:
        """One confirm, `held` seconds after the delivery, `after` seconds after the message arrived."""
        if after != self._done_after:
            self._settle_done()
            self._done_after = after
        self.confirm_msgs += 1
        self.confirm_time_sum += held
        if held > self.confirm_time_max:
            self.confirm_time_max = held

    def _settle_done(self) -> None:
        count = self.confirm_msgs - self._done_told
        if count:
            self._done_told = self.confirm_msgs
            bucket = latency_bucket(self._done_after)
            self._done[bucket] = self._done.get(bucket, 0) + count

    def take_latencies(self) -> dict[int, int]:
        """Confirms by the bucket of the time since the arrival, since this was asked for last."""
        self._settle_done()
        taken, self._done = self._done, {}
        return taken

    def stored(self, messages: int, size: int) -> None:
        """So many messages and bytes are held now: remember the most."""
        self.content_msgs_max = max(self.content_msgs_max, messages)
        self.content_bytes_max = max(self.content_bytes_max, size)


LATENCY_STEPS = 8  # buckets from one power of two to the next
_LOWEST, _HIGHEST = -19, 10  # exponents of 2: from 1.9 us to 1,024 s; what is beyond counts in the first or last bucket
_LONGEST_S = 2.0 ** _HIGHEST
LATENCY_BUCKETS = (_HIGHEST - _LOWEST + 1) * LATENCY_STEPS
_OPEN_MAX = 1024  # queues whose last acknowledgements are not in the buckets yet


def latency_bucket(seconds: float) -> int:
    """In which bucket a latency counts."""
    if seconds <= 0.0:
        return 0
    if seconds >= _LONGEST_S:
        return LATENCY_BUCKETS - 1
    fraction, exponent = frexp(seconds)
    index = (exponent - _LOWEST) * LATENCY_STEPS + int((fraction - 0.5) * 2 * LATENCY_STEPS)
    return max(index, 0)


def latency_bounds(bucket: int) -> tuple[float, float]:
    """From how many seconds to how many a bucket counts."""
    octave, step = divmod(bucket, LATENCY_STEPS)
    low: float = 2.0 ** (octave + _LOWEST - 1)
    return low * (1 + step / LATENCY_STEPS), low * (1 + (step + 1) / LATENCY_STEPS)


class AckLatency:
    """How long the acknowledgements of one node took, all queues together: how many there were in each bucket.

    Messages that came in one turn and are acknowledged in one turn have waited equally long: a queue counts them, and tells
    here when the next one has waited for another time, or when somebody asks.
    """

    __slots__ = ("_buckets", "_open")

    def __init__(self) -> None:
        self._buckets = [0] * LATENCY_BUCKETS
        self._open: list[QueueStats] = []

    def add(self, seconds: float, count: int) -> None:
        """So many have waited so long."""
        self._buckets[latency_bucket(seconds)] += count

    def opened(self, stats: QueueStats) -> None:
        """A queue has acknowledgements that are not told yet."""
        if len(self._open) >= _OPEN_MAX:
            self._settle()
        self._open.append(stats)

    def _settle(self) -> None:
        waiting, self._open = self._open, []
        for stats in waiting:
            stats.close()

    def counts(self) -> tuple[int, ...]:
        """Of each bucket, since the node began."""
        self._settle()
        return tuple(self._buckets)


class QueueStats(AppStats):
    """Counters of one queue: those of an app over all its apps, and what happens at its entrance. `ack_time_*` are right
    once `settle` was called."""

    __slots__ = (*_ENTRANCE, "_latency", "_waited", "_told", "_open")
    NAMES: ClassVar[tuple[str, ...]] = _APP + _ENTRANCE

    def __init__(self, latency: AckLatency | None = None) -> None:
        super().__init__()
        self._latency = latency
        self._waited = -1.0  # seconds, of the last acknowledgement
        self._told = 0  # acknowledgements that are in the sums
        self._open = False  # `_latency` knows that there may be others
        self.put_msgs = self.put_bytes = 0
        self.ack_msgs = self.nack_msgs = self.nack_noquorum_msgs = 0
        self.ack_time_sum = self.ack_time_max = 0.0
        self.reject_msgs = self.gc_msgs = 0

    def acked(self, waited: float) -> None:
        """One positive acknowledgement, `waited` seconds after the PUT."""
        if waited != self._waited:
            self._waits_differently(waited)
        self.ack_msgs += 1

    def _waits_differently(self, waited: float) -> None:
        self.settle()
        self._waited = waited
        if self._latency is not None and not self._open:
            self._open = True
            self._latency.opened(self)

    def close(self) -> None:
        """From `AckLatency`: settle, and be told of again with the next acknowledgement."""
        self.settle()
        self._open, self._waited = False, -1.0

    def settle(self) -> None:
        """Add the times of the last acknowledgements to the sums."""
        count, waited = self.ack_msgs - self._told, self._waited
        if not count:
            return
        self._told = self.ack_msgs
        self.ack_time_sum += waited * count
        if waited > self.ack_time_max:
            self.ack_time_max = waited
        if self._latency is not None:
            self._latency.add(waited, count)

    def totals(self) -> dict[str, float]:
        """As of any counters."""
        self.settle()
        return super().totals()

    def take_maxima(self) -> dict[str, float]:
        """Likewise."""
        self.settle()
        return super().take_maxima()


class ClientStats(Counters):
    """Counters of one client session, all queues together."""

    __slots__ = _CLIENT
    NAMES: ClassVar[tuple[str, ...]] = _CLIENT

    def __init__(self) -> None:
        self.put_msgs = self.put_bytes = self.push_msgs = self.push_bytes = 0
        self.ack_msgs = self.nack_msgs = self.confirm_msgs = 0

    def add(self, other: ClientStats) -> None:
        """What another session has counted counts here as well."""
        self.put_msgs += other.put_msgs
        self.put_bytes += other.put_bytes
        self.push_msgs += other.push_msgs
        self.push_bytes += other.push_bytes
        self.ack_msgs += other.ack_msgs
        self.nack_msgs += other.nack_msgs
        self.confirm_msgs += other.confirm_msgs


class ChannelStats(Counters):
    """Counters of one connection: bytes and chunks as the socket saw them."""

    __slots__ = _CHANNEL
    NAMES: ClassVar[tuple[str, ...]] = _CHANNEL

    def __init__(self) -> None:
        self.in_bytes = self.out_bytes = self.in_chunks = self.out_chunks = 0
