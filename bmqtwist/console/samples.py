"""Samples of a node's counters: rates, latency of ACKs, history of the last 15 minutes. Pure: time is an argument.

Rows of the history are lists of numbers: the time of the slot (a multiple of HISTORY_STEP_S), then

    node       put, ack, push, confirm per second; partitions of which the node is the active primary, their messages and
               bytes; messages and bytes in the node's copies of all partitions; free bytes of its storage
    cluster    put, ack, push, confirm per second; stored messages, bytes; free bytes of the fullest storage

None is an unknown value. Every rate is made by `rates.py`. Called by `collector.py`, which stores the history with
`history_file.py`; tables of many queues are sampled in `queues.py`, statistics of admin commands in `view/statistics.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from bmqtwist.broker.broker import Broker
from bmqtwist.console.documents import Document
from bmqtwist.console.rates import RateWindow, add_rates, in_tenths
from bmqtwist.queue.counters import latency_bounds
from bmqtwist.view import node_facts
from bmqtwist.view.queue_facts import Flow
from bmqtwist.view.snapshot import ProcessState, StoredTotals

HISTORY_STEP_S = 5
HISTORY_ROWS = 15 * 60 // HISTORY_STEP_S
LATENCY_WINDOW_S = 10.0
SAMPLE_SECONDS_MIN = 0.3  # between two samples
RATES = ("put", "ack", "push", "confirm", "putBytes", "pushBytes")
RATE_COLUMNS = 4  # of a row of the history
NODE_COLUMNS = 1 + RATE_COLUMNS + 6

Row = list[float | None]


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
    every HISTORY_STEP_S. `rows`: the stored history of the time before the start."""

    def __init__(self, first: Reading, rows: Iterable[Row] = ()) -> None:
        self._last = first.now
        self._rates = RateWindow()
        self._rates.sample(first.now, (*first.counted, first.cpu))
        self._latencies: deque[tuple[float, tuple[int, ...]]] = deque(((first.now, first.acks),))
        self.rates: Document = dict.fromkeys(RATES)
        self.cpu_share: float | None = None
        self.history: deque[Row] = deque(rows, maxlen=HISTORY_ROWS)

    def is_due(self, now: float) -> bool:
        """Return whether the last sample is older than SAMPLE_SECONDS_MIN."""
        return now - self._last >= SAMPLE_SECONDS_MIN

    def sample(self, reading: Reading) -> None:
        """Update the rates and latencies."""
        if not self.is_due(reading.now):
            return
        *rates, self.cpu_share = self._rates.sample(reading.now, (*reading.counted, reading.cpu))
        self.rates = dict(zip(RATES, in_tenths(rates), strict=True))
        self._last = reading.now
        window = self._latencies
        window.append((reading.now, reading.acks))
        while len(window) > 2 and window[1][0] <= reading.now - LATENCY_WINDOW_S:
            window.popleft()

    def record(self, reading: Reading, wall: float, stored: StoredTotals, free: int | None) -> None:
        """Add a row with the present rates to the history, at most one per slot of HISTORY_STEP_S. `free`: bytes of the
        storage."""
        slot = int(wall) // HISTORY_STEP_S * HISTORY_STEP_S
        if self.history and (self.history[-1][0] or 0) >= slot:
            return  # the timer fired early, as monotonic and wall clock differ a little
        self.sample(reading)
        self.history.append([slot, *(self.rates[name] for name in RATES[:RATE_COLUMNS]), stored.led, stored.led_messages,
                             stored.led_bytes, stored.messages, stored.bytes, free])

    @property
    def latencies(self) -> list[int]:
        """Histogram of the latencies of ACKs in the last LATENCY_WINDOW_S."""
        newest, oldest = self._latencies[-1][1], self._latencies[0][1]
        return [after - before for before, after in zip(oldest, newest, strict=True)]


class NodeRows(Struct, frozen=True):
    """History of one node. `answers`: the node sends its present history; else this is its last known one, and `runs` says
    whether other nodes are connected to it."""

    rows: Sequence[Sequence[float | None]]
    answers: bool = True
    runs: bool = True


def add_histories(histories: Sequence[NodeRows], partitions: int) -> list[Row]:
    """Return the history of a cluster from those of its nodes. A node that does not run has no traffic; the traffic of one
    that runs and does not answer is unknown."""
    by_slot = [{row[0]: row for row in each.rows if row[0] is not None and len(row) == NODE_COLUMNS} for each in histories]
    ends = [max(known, default=0) for known in by_slot]
    newest = max(ends, default=0)
    complete = min((end for end, each in zip(ends, histories, strict=True) if each.answers
                    and end >= newest - 2 * HISTORY_STEP_S), default=newest)  # later rows are not yet here from every node
    slots = sorted({slot for known in by_slot for slot in known if slot <= complete})[-HISTORY_ROWS:]
    rows = []
    for slot in slots:
        silent = any(each.runs and not each.answers and slot > end for each, end in zip(histories, ends, strict=True))
        rows.append(_cluster_row(slot, [known[slot] for known in by_slot if slot in known], silent, partitions))
    return rows


class ClusterHistory:
    """Last history of a cluster: it is made again only if that of a node has changed, not for each document."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._rows: list[Row] = []

    def add(self, histories: Mapping[str, NodeRows], partitions: int) -> list[Row]:
        """Return the result of `add_histories`; `histories` by name."""
        key = partitions, *[(name, each.answers, each.runs, len(each.rows), each.rows[0][0] if each.rows else None,
                             each.rows[-1][0] if each.rows else None) for name, each in sorted(histories.items())]
        if key != self._key:
            self._key, self._rows = key, add_histories(list(histories.values()), partitions)
        return self._rows


def _cluster_row(slot: float, found: Sequence[Sequence[float | None]], silent: bool, partitions: int) -> Row:
    """Return the row of a cluster from the rows of its nodes in one slot. `silent`: a running node is missing. If a
    partition has no primary, the stored messages are those of the node that has most of them."""
    rates = [None if silent else add_rates([row[column] for row in found]) for column in range(1, 1 + RATE_COLUMNS)]
    led, led_messages, led_bytes, messages, size, free = zip(*[row[1 + RATE_COLUMNS:] for row in found], strict=True)
    most = max(zip(_known(messages), _known(size), strict=False), default=(None, None))
    if partitions and sum(_known(led)) == partitions:
        most = sum(_known(led_messages)), sum(_known(led_bytes))
    return [slot, *rates, *(most if partitions else (None, None)), min(_known(free), default=None)]


def _known(values: Iterable[float | None]) -> list[float]:
    return [each for each in values if each is not None]


FLOW_RATES = ("putRate", "putBytesRate", "pushRate", "pushBytesRate")


class FlowSampler:
    """Rates of several flows (clients, subscriptions, proxies) by name."""

    def __init__(self) -> None:
        self._windows: dict[str, RateWindow] = {}

    def sample(self, now: float, counted: Mapping[str, Flow]) -> Mapping[str, Document]:
        """Return the rates of all flows; flows that are not in `counted` are forgotten."""
        self._windows = {name: self._windows.get(name) or RateWindow() for name in counted}
        return {name: dict(zip(FLOW_RATES, in_tenths(self._windows[name].sample(now, flow)), strict=True))
                for name, flow in counted.items()}


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
