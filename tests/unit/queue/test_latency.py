"""Latency histograms of `queue/counters.py`, and the percentiles that `console/samples.py` computes from them."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.admin_kit import Bench

from bmqtwist.console import samples
from bmqtwist.queue import counters
from bmqtwist.queue.counters import (
    LATENCY_BUCKETS,
    AckLatency,
    AppStats,
    ClientStats,
    QueueStats,
    latency_bounds,
    latency_bucket,
)


@given(st.floats(min_value=2e-6, max_value=1000.0))
def test_a_latency_lies_within_the_bounds_of_its_bucket(seconds: float) -> None:
    low, high = latency_bounds(latency_bucket(seconds))
    assert low <= seconds < high and high / low < 1.13


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e-300, 1e9, math.inf])
def test_latencies_outside_the_range_count_in_the_first_or_last_bucket(seconds: float) -> None:
    assert latency_bucket(seconds) == (LATENCY_BUCKETS - 1 if seconds > 1 else 0)


def test_latency_buckets_are_contiguous() -> None:
    for bucket in range(LATENCY_BUCKETS - 1):
        assert latency_bounds(bucket)[1] == latency_bounds(bucket + 1)[0]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.001, 0.002, 0.5])), max_size=60), st.data())
def test_each_ack_is_counted_once_independent_of_reads_between_them(acks: list[tuple[int, float]],
                                                                    data: st.DataObject) -> None:
    latency = AckLatency()
    queues = [QueueStats(latency) for _ in range(3)]
    for index, waited in acks:
        queues[index].count_ack(waited)
        if data.draw(st.booleans()):
            latency.counts()
        if data.draw(st.booleans()):
            queues[index].totals()
    counts = latency.counts()
    for waited in (0.0, 0.001, 0.002, 0.5):
        assert counts[latency_bucket(waited)] == sum(each == waited for _, each in acks)
    for index, queue in enumerate(queues):
        expected = [waited for each, waited in acks if each == index]
        totals = queue.totals()
        assert totals["ack_msgs"] == len(expected) and totals["ack_time_sum"] == pytest.approx(sum(expected))
    assert latency.counts() == counts


def test_taking_the_maximum_latency_resets_it() -> None:
    stats = QueueStats()
    for waited in (0.5, 0.25, 0.25):
        stats.count_ack(waited)
    assert stats.take_maxima()["ack_time_max"] == 0.5
    stats.count_ack(0.125)
    assert stats.take_maxima()["ack_time_max"] == 0.125


def test_consecutive_latencies_of_one_bucket_make_one_update() -> None:
    """Consecutive latencies of one bucket cost one bucket search."""
    updates: list[int] = []
    latency = AckLatency()

    class RecordingDict(dict[int, int]):
        def __setitem__(self, bucket: int, count: int) -> None:
            updates.append(count)

    latency.by_bucket = RecordingDict()
    stats = QueueStats(latency)
    for turn in range(10):
        for number in range(1000):
            stats.count_ack(2.0 ** -turn * (1 + number / 10_000))
    latency.counts()
    assert updates == [1000] * 10


@given(st.lists(st.floats(min_value=-1.0, max_value=2000.0), max_size=50))
def test_confirm_latencies_count_in_their_bucket(times: list[float]) -> None:
    stats = AppStats()
    for seconds in times:
        stats.count_confirm(0.0, seconds)
    assert stats.take_latencies() == Counter(latency_bucket(seconds) for seconds in times)


def test_the_number_of_queues_with_uncounted_acks_is_limited() -> None:
    latency = AckLatency()
    for _ in range(3 * counters._OPEN_MAX):
        QueueStats(latency).count_ack(0.001)
    assert len(latency._uncounted) <= counters._OPEN_MAX
    assert sum(latency.counts()) == 3 * counters._OPEN_MAX


def test_percentiles_cover_the_latencies_between_two_readings() -> None:
    latency = AckLatency()
    stats = QueueStats(latency)
    for _ in range(100):
        stats.count_ack(10.0)
    before = latency.counts()
    assert samples.percentiles([0] * len(before)) == {"p50": None, "p99": None}
    for number in range(1000):
        stats.count_ack(0.001 if number < 980 else 0.1)
    found = samples.percentiles([new - old for old, new in zip(before, latency.counts(), strict=True)])
    assert found["p50"] == pytest.approx(1.0, rel=0.13) and found["p99"] == pytest.approx(100.0, rel=0.13)
    assert samples.percentiles(before)["p50"] == pytest.approx(10_000, rel=0.13)


@given(st.lists(st.floats(min_value=1e-5, max_value=100.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_percentile_is_accurate_to_13_percent(times: list[float], share: float) -> None:
    latency = AckLatency()
    for seconds in times:
        latency.by_bucket[latency_bucket(seconds)] = latency.by_bucket.get(latency_bucket(seconds), 0) + 1
    exact = sorted(times)[math.ceil(len(times) * share) - 1]
    found = samples.percentile(latency.counts(), share)
    assert found is not None and exact / 1.13 <= found <= exact * 1.13


def test_the_broker_counts_the_ack_latencies_of_all_queues() -> None:
    bench = Bench()
    bench.write_domain()
    bench.post(bench.open(), b"1", b"2", b"3")
    assert sum(bench.broker.deliveries.ack_latency.counts()) == 3
    queue = bench.queue()
    assert queue.stats.ack_msgs == queue.stats.put_msgs == 3


def test_counters_of_closed_sessions_are_added_to_the_total() -> None:
    one, other = ClientStats(), ClientStats()
    for number, name in enumerate(ClientStats.NAMES, 1):
        setattr(one, name, number)
        setattr(other, name, 10 * number)
    one.add(other)
    assert list(one.totals().values()) == [11 * number for number in range(1, len(ClientStats.NAMES) + 1)]
