"""Samples of a node's counters: rates, latency of ACKs, history of the last 15 minutes. Pure: time is an argument.

Called by `collector.py`; tables of many queues are sampled in `queues.py`, statistics of admin commands in
`view/statistics.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct

from bmqtwist.broker.broker import Broker
from bmqtwist.console.documents import Document
from bmqtwist.queue.counters import latency_bounds
from bmqtwist.view import node_facts
from bmqtwist.view.queue_facts import Flow
from bmqtwist.view.snapshot import ProcessState

HISTORY_STEP_S = 5
HISTORY_ROWS = 15 * 60 // HISTORY_STEP_S
LATENCY_WINDOW_S = 10.0
SAMPLE_SECONDS_MIN = 0.3  # between two samples for a rate
RATES = ("put", "ack", "push", "confirm", "putBytes", "pushBytes")


class Reading(Struct, frozen=True):
    """Counters of a node at the time `now`. `counted`: in the order of RATES; `acks`: histogram of latencies; `cpu`:
    seconds."""

    now: float
    counted: tuple[float, ...]
    acks: tuple[int, ...]
    cpu: float


def take_reading(broker: Broker, now: float, process: ProcessState) -> Reading:
    """Return the present counters of a node."""
    sums = node_facts.traffic_totals(broker)
    return Reading(now, (sums.put_msgs, sums.ack_msgs, sums.push_msgs, sums.confirm_msgs, sums.put_bytes, sums.push_bytes),
                   broker.deliveries.ack_latency.counts(), process.cpu_user + process.cpu_system)


class NodeSampler:
    """Rates, ACK latencies and history of one node: `sample` updates the rates at requests, `record` adds to the history
    every HISTORY_STEP_S."""

    def __init__(self, first: Reading) -> None:
        self._last = self._recorded = first
        self._window: deque[tuple[float, tuple[int, ...]]] = deque(((first.now, first.acks),))
        self.rates: Document = dict.fromkeys(RATES, 0.0)
        self.cpu_share = 0.0
        self.history: deque[list[float]] = deque(maxlen=HISTORY_ROWS)

    def is_due(self, now: float) -> bool:
        """Return whether the last sample is older than SAMPLE_SECONDS_MIN."""
        return now - self._last.now >= SAMPLE_SECONDS_MIN

    def sample(self, reading: Reading) -> None:
        seconds = reading.now - self._last.now
        if seconds < SAMPLE_SECONDS_MIN:
            return
        self.rates = dict(zip(RATES, _per_second(self._last, reading), strict=True))
        self.cpu_share = max(0.0, (reading.cpu - self._last.cpu) / seconds)
        self._last = reading
        window = self._window
        window.append((reading.now, reading.acks))
        while len(window) > 2 and window[1][0] <= reading.now - LATENCY_WINDOW_S:
            window.popleft()

    def record(self, reading: Reading, wall: float, messages: int, size: int) -> None:
        """Add a row with the rates since the previous row to the history, at most one per slot of HISTORY_STEP_S."""
        slot = int(wall) // HISTORY_STEP_S * HISTORY_STEP_S
        if self.history and self.history[-1][0] == slot:
            return  # the timer fired early, as monotonic and wall clock differ a little
        put, ack, push, confirm, *_ = _per_second(self._recorded, reading)
        self.history.append([slot, put, ack, push, confirm, messages, size])
        self._recorded = reading

    @property
    def latencies(self) -> list[int]:
        """Histogram of the latencies of ACKs in the last LATENCY_WINDOW_S."""
        newest, oldest = self._window[-1][1], self._window[0][1]
        return [after - before for before, after in zip(oldest, newest, strict=True)]


def _per_second(before: Reading, after: Reading) -> list[float]:
    seconds = max(after.now - before.now, 1e-3)
    return [round(max(0.0, new - old) / seconds, 1) for old, new in zip(before.counted, after.counted, strict=True)]


def add_histories(histories: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Return the sum of the histories of several nodes, by time."""
    rows: dict[float, list[float]] = {}
    for history in histories:
        for slot, *values in history:
            known = rows.get(slot)
            rows[slot] = [slot, *values] if known is None else [
                slot, *(round(one + other, 1) for one, other in zip(known[1:], values, strict=True))]
    return [rows[slot] for slot in sorted(rows)[-HISTORY_ROWS:]]


FLOW_RATES = ("putRate", "putBytesRate", "pushRate", "pushBytesRate")


class FlowSampler:
    """Rates of several flows (clients, subscriptions, proxies) by name."""

    def __init__(self) -> None:
        self._last: Mapping[str, Flow] = {}
        self._at = float("-inf")
        self._rates: Mapping[str, Document] = {}

    def sample(self, now: float, counted: Mapping[str, Flow]) -> Mapping[str, Document]:
        """Return the rates since the previous sample; None for flows that were not in it."""
        seconds = now - self._at
        if seconds >= SAMPLE_SECONDS_MIN:
            self._rates = {name: dict(zip(FLOW_RATES, [round(max(0.0, new - old) / seconds, 1) for old, new in zip(
                self._last[name], flow, strict=True)], strict=True)) for name, flow in counted.items() if name in self._last}
            self._last, self._at = dict(counted), now
        nothing: Document = dict.fromkeys(FLOW_RATES)
        return {name: self._rates.get(name, nothing) for name in counted}


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Return the percentile `share` of a histogram in seconds; None if it is empty.

    `counts`: of each bucket of `queue.counters.AckLatency`. Linear interpolation within a bucket gives an error of at most
    an eighth of the result.
    """
    wanted, passed = sum(counts) * share, 0
    for bucket, count in enumerate(counts):
        if count and passed + count >= wanted:
            low, high = latency_bounds(bucket)
            return low + (high - low) * (wanted - passed) / count
        passed += count
    return None


def percentiles(counts: Sequence[int]) -> dict[str, float | None]:
    """Return p50 and p99 in milliseconds, None = the histogram is empty."""
    found = {name: percentile(counts, share) for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {name: None if seconds is None else seconds * 1000.0 for name, seconds in found.items()}
