"""What one node counts, looked at now and then: rates, the latency of ACKs, the last 15 minutes.

Pure: time and counters are arguments.
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
LOOK_SECONDS_MIN = 0.3  # between two looks that a rate is made of
RATES = ("put", "ack", "push", "confirm", "putBytes", "pushBytes")


class Reading(Struct, frozen=True):
    """The counters of a node at one moment. `counted`: in the order of RATES; `acks`: of the histogram of latencies;
    `cpu`: seconds."""

    now: float
    counted: tuple[float, ...]
    acks: tuple[int, ...]
    cpu: float


def reading(broker: Broker, now: float, process: ProcessState) -> Reading:
    sums = node_facts.totals(broker)
    return Reading(now, (sums.put_msgs, sums.ack_msgs, sums.push_msgs, sums.confirm_msgs, sums.put_bytes, sums.push_bytes),
                   broker.deliveries.ack_latency.counts(), process.cpu_user + process.cpu_system)


class NodeSampler:
    """Rates of one node, made of readings that come when somebody looks, and every HISTORY_STEP_S."""

    def __init__(self, first: Reading) -> None:
        self._last = self._kept = first
        self._window: deque[tuple[float, tuple[int, ...]]] = deque(((first.now, first.acks),))
        self.rates: Document = dict.fromkeys(RATES, 0.0)
        self.cpu_share = 0.0
        self.history: deque[list[float]] = deque(maxlen=HISTORY_ROWS)

    def wants(self, now: float) -> bool:
        return now - self._last.now >= LOOK_SECONDS_MIN

    def look(self, reading: Reading) -> None:
        seconds = reading.now - self._last.now
        if seconds < LOOK_SECONDS_MIN:
            return
        self.rates = dict(zip(RATES, _per_second(self._last, reading), strict=True))
        self.cpu_share = max(0.0, (reading.cpu - self._last.cpu) / seconds)
        self._last = reading
        window = self._window
        window.append((reading.now, reading.acks))
        while len(window) > 2 and window[1][0] <= reading.now - LATENCY_WINDOW_S:
            window.popleft()

    def keep(self, reading: Reading, wall: float, messages: int, size: int) -> None:
        """A row for the history, one for each slot: rates since the row before."""
        slot = int(wall) // HISTORY_STEP_S * HISTORY_STEP_S
        if self.history and self.history[-1][0] == slot:
            return  # clocks differ a little: the delay was over too early
        put, ack, push, confirm, *_ = _per_second(self._kept, reading)
        self.history.append([slot, put, ack, push, confirm, messages, size])
        self._kept = reading

    @property
    def latencies(self) -> list[int]:
        """How many ACKs there were of each latency in the last seconds."""
        newest, oldest = self._window[-1][1], self._window[0][1]
        return [after - before for before, after in zip(oldest, newest, strict=True)]


def _per_second(before: Reading, after: Reading) -> list[float]:
    seconds = max(after.now - before.now, 1e-3)
    return [round(max(0.0, new - old) / seconds, 1) for old, new in zip(before.counted, after.counted, strict=True)]


def add_histories(histories: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """The histories of several nodes as one: rows of one time are added up."""
    rows: dict[float, list[float]] = {}
    for history in histories:
        for slot, *values in history:
            known = rows.get(slot)
            rows[slot] = [slot, *values] if known is None else [
                slot, *(round(one + other, 1) for one, other in zip(known[1:], values, strict=True))]
    return [rows[slot] for slot in sorted(rows)[-HISTORY_ROWS:]]


FLOW_RATES = ("putRate", "putBytesRate", "pushRate", "pushBytesRate")


class FlowSampler:
    """Rates of several things that count what flows through them, by whatever names them."""

    def __init__(self) -> None:
        self._last: Mapping[str, Flow] = {}
        self._at = float("-inf")
        self._rates: Mapping[str, Document] = {}

    def look(self, now: float, counted: Mapping[str, Flow]) -> Mapping[str, Document]:
        """Rates since the look before; None for what was not there then."""
        seconds = now - self._at
        if seconds >= LOOK_SECONDS_MIN:
            self._rates = {name: dict(zip(FLOW_RATES, [round(max(0.0, new - old) / seconds, 1) for old, new in zip(
                self._last[name], flow, strict=True)], strict=True)) for name, flow in counted.items() if name in self._last}
            self._last, self._at = dict(counted), now
        nothing: Document = dict.fromkeys(FLOW_RATES)
        return {name: self._rates.get(name, nothing) for name in counted}


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


def percentiles(counts: Sequence[int]) -> dict[str, float | None]:
    """p50 and p99 in milliseconds, None = nothing was counted."""
    found = {name: percentile(counts, share) for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {name: None if seconds is None else seconds * 1000.0 for name, seconds in found.items()}
