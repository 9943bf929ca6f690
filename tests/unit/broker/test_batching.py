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


def post(pace: AckBatching, now: float, count: int, every: float = OFTEN) -> float:
    """Post `count` PUT events; return the time after them."""
    for _ in range(count):
        now += every
        pace.on_puts(now)
    return now


def test_acks_are_held_once_a_producer_has_posted_often_enough() -> None:
    pace = AckBatching()
    now = post(pace, 0.0, RUN_EVENTS)
    assert not pace.delays, "the first event follows none"
    now = post(pace, now, 1)
    assert pace.delays
    pace.on_acks_sent(now)
    assert pace.delays, "the producer posted until its ACKs were sent"


def test_events_of_one_chunk_count_once() -> None:
    pace = AckBatching()
    for _ in range(10 * RUN_EVENTS):
        pace.on_puts(1.0)
    assert not pace.delays


def test_a_producer_that_slows_down_gets_its_acks_at_once() -> None:
    pace = AckBatching()
    now = post(pace, 0.0, 2 * RUN_EVENTS)
    pace.on_puts(now + 2 * PUT_GAP_S)
    assert pace.delays, "gaps up to BATCH_MAX_S are allowed now"
    pace.on_puts(now + 3 * PUT_GAP_S + BATCH_MAX_S)
    assert not pace.delays


def test_a_producer_that_waits_for_its_acks_loses_little_time() -> None:
    """The producer posts again after its ACK: at once, or after the whole delay."""
    pace, now, lost = AckBatching(), 0.0, list[float]()
    while now < 100.0:
        now += OFTEN
        pace.on_puts(now)
        if pace.delays:
            lost.append(now)
            now += BATCH_MAX_S
            pace.on_acks_sent(now)
    gaps = [later - sooner for sooner, later in zip(lost, lost[1:], strict=False)]
    rests = [gap for gap in gaps if gap > SUSPEND_S]
    assert len(lost) % USELESS_DELAYS_MAX == 0 and len(lost) * BATCH_MAX_S < 0.5
    assert all(later > sooner - 0.001 for sooner, later in zip(rests, rests[1:], strict=False))
    assert SUSPEND_MAX_S < rests[-1] < SUSPEND_MAX_S + 0.1


def test_a_producer_that_waits_for_others_turns_is_given_up_as_well() -> None:
    """Turns of other clients send its ACKs early; the producer never posts before them."""
    pace = AckBatching()
    now = post(pace, 0.0, 2 * RUN_EVENTS)
    for _ in range(USELESS_DELAYS_MAX):
        assert pace.delays
        now += BATCH_MIN_S
        pace.on_acks_sent(now)
        pace.on_puts(now + OFTEN)
    assert not pace.delays


def test_a_producer_that_goes_on_by_fits_and_starts_is_no_other() -> None:
    pace = AckBatching()
    now = post(pace, 0.0, 2 * RUN_EVENTS)
    for number in range(1000):
        now = post(pace, now, 4)
        pace.on_acks_sent(now + (2 * IDLE_S if number % 3 == 0 else 0.0))
        assert pace.delays


def test_confirms_may_wait_once_they_have_come_often_enough_and_not_behind_anything_else() -> None:
    pace = ConfirmBatching()
    assert [pace.on_confirms(n * OFTEN) for n in range(RUN_EVENTS + 2)] == [False] * RUN_EVENTS + [True] * 2
    assert pace.on_confirms((RUN_EVENTS + 1) * OFTEN + BATCH_MAX_S), "the gap includes a read pause"
    pace.reset()
    assert not pace.on_confirms((RUN_EVENTS + 2) * OFTEN + BATCH_MAX_S)
    late = ConfirmBatching()
    assert not any(late.on_confirms(n * 3 * PUT_GAP_S) for n in range(10 * RUN_EVENTS))


class Syncs:
    """One partition whose syncs take `takes` seconds; records how many messages each covers."""

    def __init__(self, takes: float = 0.001) -> None:
        self.pace, self.takes, self.now = SyncBatching(), takes, 10.0
        self.position = self.done = 0
        self.ends: float | None = None
        self.began: list[tuple[float, int]] = []

    def turn(self, posts: int = 0) -> None:
        """Run a turn in which `posts` messages arrive."""
        self.position += posts
        if self.ends is not None and self.now >= self.ends:
            self.ends, self.done = None, self.began[-1][1]
        newest = self.position if self.position > self.done else 0
        if not self.pace.delays(self.now, newest, self.ends is not None) and newest and self.ends is None:
            self.began.append((self.now, self.position))
            self.ends = self.now + self.takes

    def go(self, seconds: float, every: float) -> None:
        """Post a message at a fixed interval, with turns in between."""
        step, due, end = every / 4, self.now, self.now + seconds
        while self.now < end:
            posts = self.now >= due
            due += every if posts else 0.0
            self.turn(posts)
            self.now += step


def test_syncs_of_a_flow_wait_for_more_messages() -> None:
    syncs = Syncs()
    syncs.go(0.1, 0.0002)
    between = [later - sooner for (sooner, _), (later, _) in zip(syncs.began[2:], syncs.began[3:], strict=False)]
    assert min(between) >= SYNC_DELAY_S and max(between) <= SYNC_DELAY_S + syncs.takes + 0.001
    assert syncs.pace.delays_next and syncs.position - syncs.done < 60


def test_a_producer_that_waits_for_its_ack_does_not_wait_for_a_pause() -> None:
    syncs = Syncs()
    for _ in range(100):
        syncs.turn(1)
        while syncs.done < syncs.position:
            syncs.now += 0.0001
            syncs.turn()
    assert len(syncs.began) == 100 and not syncs.pace.delays_next
    assert syncs.now < 10.0 + 100 * (syncs.takes + 0.0002)


@pytest.mark.parametrize("producers", [2, 5, 20])
def test_producers_that_all_wait_are_found_out(producers: int) -> None:
    """Messages arrive during a sync, but none during a delay."""
    syncs, waiting = Syncs(), list[float]()
    while syncs.now < 12.0:
        free = producers - (syncs.position - syncs.done)
        syncs.turn(min(free, 1))
        syncs.now += 0.0001
        if syncs.pace.until and not waiting or waiting and syncs.pace.until not in (0.0, waiting[-1]):
            waiting.append(syncs.pace.until)
    assert USELESS_DELAYS_MAX <= len(waiting) <= 4 * USELESS_DELAYS_MAX, "at first, and after 0.25 s, 0.5 s and so on"
    assert syncs.done > 0.8 * producers * 2.0 / (syncs.takes + 0.0001 * (producers + 2)) / 2


def test_after_the_flow_has_ended_a_message_is_synced_at_once() -> None:
    syncs = Syncs()
    syncs.go(0.05, 0.0002)
    for _ in range(100):
        syncs.now += 0.001
        syncs.turn()
    assert syncs.done == syncs.position
    count = len(syncs.began)
    syncs.turn(1)
    assert len(syncs.began) == count + 1 and not syncs.pace.delays_next
