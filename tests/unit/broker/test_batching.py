"""Adaptive batching: delays follow the traffic of a client, and end for a client that blocks on them."""

from __future__ import annotations

import pytest

from bmqtwist.broker.batching import SYNC_DELAY_S, SyncBatching
from bmqtwist.link.batching import (
    BATCH_MAX_S,
    BATCH_MIN_S,
    IDLE_S,
    PUT_GAP_S,
    RUN_EVENTS,
    SUSPEND_MAX_S,
    SUSPEND_S,
    USELESS_DELAYS_MAX,
    AckBatching,
    ConfirmBatching,
)

OFTEN = PUT_GAP_S / 4


def post(batching: AckBatching, now: float, count: int, every: float = OFTEN) -> float:
    """Report `count` PUT events to the batching; return the time after them."""
    for _ in range(count):
        now += every
        batching.on_puts(now)
    return now


def test_acks_are_delayed_after_a_run_of_frequent_puts() -> None:
    batching = AckBatching()
    now = post(batching, 0.0, RUN_EVENTS)
    assert not batching.delays, "the first event has no gap before it"
    now = post(batching, now, 1)
    assert batching.delays
    batching.on_acks_sent(now)
    assert batching.delays, "the producer posted until its ACKs were sent"


def test_puts_received_at_the_same_time_count_as_one_event() -> None:
    batching = AckBatching()
    for _ in range(10 * RUN_EVENTS):
        batching.on_puts(1.0)
    assert not batching.delays


def test_acks_are_not_delayed_after_a_long_gap_between_puts() -> None:
    batching = AckBatching()
    now = post(batching, 0.0, 2 * RUN_EVENTS)
    batching.on_puts(now + 2 * PUT_GAP_S)
    assert batching.delays, "gaps up to BATCH_MAX_S are allowed now"
    batching.on_puts(now + 3 * PUT_GAP_S + BATCH_MAX_S)
    assert not batching.delays


def test_a_producer_that_blocks_on_its_acks_has_few_of_them_delayed() -> None:
    """The producer posts again after its ACK: at once, or after the whole delay."""
    batching, now, delayed_at = AckBatching(), 0.0, list[float]()
    while now < 100.0:
        now += OFTEN
        batching.on_puts(now)
        if batching.delays:
            delayed_at.append(now)
            now += BATCH_MAX_S
            batching.on_acks_sent(now)
    gaps = [later - sooner for sooner, later in zip(delayed_at, delayed_at[1:], strict=False)]
    suspensions = [gap for gap in gaps if gap > SUSPEND_S]
    assert len(delayed_at) % USELESS_DELAYS_MAX == 0 and len(delayed_at) * BATCH_MAX_S < 0.5
    assert all(later > sooner - 0.001 for sooner, later in zip(suspensions, suspensions[1:], strict=False))
    assert SUSPEND_MAX_S < suspensions[-1] < SUSPEND_MAX_S + 0.1


def test_acks_are_not_delayed_for_a_producer_that_posts_only_after_they_are_sent() -> None:
    """Turns of other clients send its ACKs early; the producer never posts before them."""
    batching = AckBatching()
    now = post(batching, 0.0, 2 * RUN_EVENTS)
    for _ in range(USELESS_DELAYS_MAX):
        assert batching.delays
        now += BATCH_MIN_S
        batching.on_acks_sent(now)
        batching.on_puts(now + OFTEN)
    assert not batching.delays


def test_acks_stay_delayed_for_a_producer_that_posts_in_bursts() -> None:
    batching = AckBatching()
    now = post(batching, 0.0, 2 * RUN_EVENTS)
    for number in range(1000):
        now = post(batching, now, 4)
        batching.on_acks_sent(now + (2 * IDLE_S if number % 3 == 0 else 0.0))
        assert batching.delays


def test_reads_may_pause_after_a_run_of_frequent_confirms_and_not_after_a_reset() -> None:
    batching = ConfirmBatching()
    assert [batching.on_confirms(n * OFTEN) for n in range(RUN_EVENTS + 2)] == [False] * RUN_EVENTS + [True] * 2
    assert batching.on_confirms((RUN_EVENTS + 1) * OFTEN + BATCH_MAX_S), "the gap includes a read pause"
    batching.reset()
    assert not batching.on_confirms((RUN_EVENTS + 2) * OFTEN + BATCH_MAX_S)
    late = ConfirmBatching()
    assert not any(late.on_confirms(n * 3 * PUT_GAP_S) for n in range(10 * RUN_EVENTS))


class SyncSimulation:
    """One partition whose syncs take `takes` seconds; records how many messages each covers."""

    def __init__(self, takes: float = 0.001) -> None:
        self.batching, self.takes, self.now = SyncBatching(), takes, 10.0
        self.position = self.done = 0
        self.ends: float | None = None
        self.started_syncs: list[tuple[float, int]] = []

    def turn(self, posts: int = 0) -> None:
        """Run a turn in which `posts` messages arrive."""
        self.position += posts
        if self.ends is not None and self.now >= self.ends:
            self.ends, self.done = None, self.started_syncs[-1][1]
        newest = self.position if self.position > self.done else 0
        if not self.batching.delays(self.now, newest, self.ends is not None) and newest and self.ends is None:
            self.started_syncs.append((self.now, self.position))
            self.ends = self.now + self.takes

    def run_traffic(self, seconds: float, every: float) -> None:
        """Post a message at a fixed interval, with turns in between."""
        step, due, end = every / 4, self.now, self.now + seconds
        while self.now < end:
            posts = self.now >= due
            due += every if posts else 0.0
            self.turn(posts)
            self.now += step


def test_syncs_under_steady_traffic_are_delayed_to_cover_more_messages() -> None:
    syncs = SyncSimulation()
    syncs.run_traffic(0.1, 0.0002)
    times = [time for time, _ in syncs.started_syncs[2:]]
    between = [later - sooner for sooner, later in zip(times, times[1:], strict=False)]
    assert min(between) >= SYNC_DELAY_S and max(between) <= SYNC_DELAY_S + syncs.takes + 0.001
    assert syncs.batching.delays_next and syncs.position - syncs.done < 60


def test_syncs_are_not_delayed_for_one_producer_that_blocks_on_its_acks() -> None:
    syncs = SyncSimulation()
    for _ in range(100):
        syncs.turn(1)
        while syncs.done < syncs.position:
            syncs.now += 0.0001
            syncs.turn()
    assert len(syncs.started_syncs) == 100 and not syncs.batching.delays_next
    assert syncs.now < 10.0 + 100 * (syncs.takes + 0.0002)


@pytest.mark.parametrize("producers", [2, 5, 20])
def test_sync_delays_end_when_all_producers_block_on_their_acks(producers: int) -> None:
    """Messages arrive during a sync, but none during a delay."""
    syncs, waiting = SyncSimulation(), list[float]()
    while syncs.now < 12.0:
        free = producers - (syncs.position - syncs.done)
        syncs.turn(min(free, 1))
        syncs.now += 0.0001
        if syncs.batching.until and not waiting or waiting and syncs.batching.until not in (0.0, waiting[-1]):
            waiting.append(syncs.batching.until)
    assert USELESS_DELAYS_MAX <= len(waiting) <= 4 * USELESS_DELAYS_MAX, "at first, and after 0.25 s, 0.5 s and so on"
    assert syncs.done > 0.8 * producers * 2.0 / (syncs.takes + 0.0001 * (producers + 2)) / 2


def test_the_first_message_after_the_traffic_ended_is_synced_at_once() -> None:
    syncs = SyncSimulation()
    syncs.run_traffic(0.05, 0.0002)
    for _ in range(100):
        syncs.now += 0.001
        syncs.turn()
    assert syncs.done == syncs.position
    count = len(syncs.started_syncs)
    syncs.turn(1)
    assert len(syncs.started_syncs) == count + 1 and not syncs.batching.delays_next
