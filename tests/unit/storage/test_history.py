"""GUID history: every GUID is held for the window, and dropped soon afterwards."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmqtwist.storage import history as module
from bmqtwist.storage.history import GuidHistory

CLIENT = b"client"


def guid(tick, client=CLIENT, counter=0):
    return (1 << 22 | counter).to_bytes(3, "big") + tick.to_bytes(7, "big") + client


def test_a_guid_is_seen_the_second_time():
    history = GuidHistory(300)
    assert not history.seen_or_add(guid(5), 0.0)
    assert history.seen_or_add(guid(5), 1.0)
    assert len(history) == 1


def test_guids_of_one_tick_with_different_counters_are_different():
    history = GuidHistory(300)
    assert [history.seen_or_add(guid(5, counter=n), 0.0) for n in (0, 1, 1, 0)] == [False, False, True, True]


def test_an_older_tick_that_was_never_seen_is_new():
    history = GuidHistory(300)
    assert [history.seen_or_add(guid(tick), 0.0) for tick in (9, 3, 3, 9)] == [False, False, True, True]


def test_a_guid_is_remembered_through_the_whole_window_and_forgotten_an_eighth_later():
    for quiet in (True, False):
        history = GuidHistory(8)
        history.seen_or_add(guid(1), 100.0)
        if not quiet:
            for second in range(101, 108):
                history.seen_or_add(guid(second), float(second))
        assert history.seen_or_add(guid(1), 108.0)
        assert not history.seen_or_add(guid(1), 109.1)


def test_expire_frees_what_an_idle_queue_remembers():
    history = GuidHistory(8)
    for tick in range(50):
        history.seen_or_add(guid(tick), 0.0)
    history.expire(7.0)
    assert len(history) == 50 and history.seen_or_add(guid(3), 7.0)
    history.expire(16.0)
    assert len(history) == 0


def test_a_window_of_zero_remembers_nothing():
    history = GuidHistory(0)
    assert not history.seen_or_add(guid(1), 0.0) and not history.seen_or_add(guid(1), 0.0)
    assert len(history) == 0


def test_a_discarded_guid_is_new_again():
    history = GuidHistory(300)
    history.seen_or_add(guid(5), 0.0)
    history.discard(guid(5))
    assert not history.seen_or_add(guid(5), 0.0)
    assert history.seen_or_add(guid(5), 0.0)


def test_recovered_guids_are_seen_even_before_the_clock_started_and_out_of_order():
    history = GuidHistory(300)
    for tick, arrived in ((1, -200.0), (2, -250.0), (3, -10.0)):
        history.add(guid(tick), arrived)
    assert [history.seen_or_add(guid(tick), 20.0) for tick in (1, 2, 3, 4)] == [True, True, True, False]


def test_old_guids_cost_sixteen_bytes_each():
    history = GuidHistory(300)
    count = 3 * module.BUCKET_GUIDS_MAX
    for tick in range(count):
        history.seen_or_add(guid(tick), 0.0)
    history.expire(299.0)
    assert len(history) == count and not history._open
    assert sum(sys.getsizeof(bucket.keys) for bucket in history._buckets) < 16.1 * count
    assert all(history.seen_or_add(guid(tick), 300.0) for tick in range(0, count, 997))


def test_a_guid_that_two_others_hold_across_their_border_is_found_only_if_it_was_added():
    low, high = b"\1" * 8 + b"\5" * 8, b"\7" * 16
    across = low[8:] + high[:8]
    for added in (False, True):
        history = GuidHistory(300)
        for each in (low, high, *([across] if added else ()), b"\xff" * 16):
            history.seen_or_add(each, 0.0)
        history.expire(299.0)
        assert [history.seen_or_add(each, 300.0) for each in (low, high, b"\xff" * 16)] == [True] * 3
        assert history.seen_or_add(across, 300.0) is added


def test_a_higher_tick_was_never_added_and_a_lower_one_may_have_been_long_ago():
    history = GuidHistory(8)
    for tick in (5, 7):
        assert not history.seen_or_add(guid(tick), 0.0) and history.never_added
    assert not history.seen_or_add(guid(6), 0.0) and not history.never_added
    assert not history.seen_or_add(guid(5), 100.0) and not history.never_added, "forgotten, but added once"
    assert not history.seen_or_add(guid(1, b"others"), 100.0) and history.never_added, "each client has its own"
    assert history.was_never_added(guid(8)) and not history.was_never_added(guid(7))


def test_a_client_id_that_was_let_go_may_have_added_all_up_to_the_highest_tick(monkeypatch):
    monkeypatch.setattr(module, "CLIENTS_MAX", 2)
    history = GuidHistory(8)
    for tick, client in ((1000, b"clienA"), (5, b"clienB"), (7, b"clienC")):
        history.seen_or_add(guid(tick, client), 0.0)
    assert not history.seen_or_add(guid(1000, b"clienA"), 100.0) and not history.never_added
    assert not history.seen_or_add(guid(1001, b"clienA"), 100.0) and history.never_added


def test_a_window_of_zero_knows_nothing_and_what_was_added_meanwhile_may_come_again():
    history = GuidHistory(0)
    assert not history.seen_or_add(guid(5), 0.0) and not history.never_added
    history.set_window(8, 1.0)
    assert not history.seen_or_add(guid(5), 1.0) and not history.never_added


def test_a_client_id_that_was_let_go_cannot_slip_a_repetition_through(monkeypatch):
    monkeypatch.setattr(module, "CLIENTS_MAX", 4)
    history = GuidHistory(300)
    history.seen_or_add(guid(1000), 0.0)
    for other in range(10):
        history.seen_or_add(guid(5, client=b"other%d" % other), 0.0)
    assert not history.seen_or_add(guid(50), 1.0)
    assert history.seen_or_add(guid(1000), 1.0)
    assert len(history._ticks) <= 4


class Model:
    """Model of the history: a plain dict."""

    def __init__(self, window):
        self.window, self.arrived, self.ever = window, {}, set()

    def check(self, history, guid, now):
        certain = history.was_never_added(guid)
        seen = history.seen_or_add(guid, now)
        assert not (certain and guid in self.ever)
        assert seen or history.never_added == certain
        self.ever.add(guid)
        if guid in self.arrived:
            age = now - self.arrived[guid]
            if age <= self.window:
                assert seen
            elif age > self.window * 9 / 8 + 1e-9:
                assert not seen
        else:
            assert not seen
        if not seen:
            self.arrived[guid] = now


STEPS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 1), st.integers(0, 3)), max_size=120)


@pytest.mark.parametrize("bucket, clients", [(3, 2), (16384, 4096)])
@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_history_agrees_with_a_plain_dict(bucket, clients, steps):
    saved = module.BUCKET_GUIDS_MAX, module.CLIENTS_MAX
    module.BUCKET_GUIDS_MAX, module.CLIENTS_MAX = bucket, clients
    try:
        history, model, now = GuidHistory(8.0), Model(8.0), 0.0
        for tick, client, counter, wait in steps:
            now += wait / 2
            if counter and tick == 0:
                history.expire(now)
            model.check(history, guid(tick, b"clien%d" % client, counter), now)
            assert len(history) <= len(steps)
    finally:
        module.BUCKET_GUIDS_MAX, module.CLIENTS_MAX = saved
