"""GUID history: each GUID is held for the deduplication time, and dropped at most an eighth of it later."""

import hashlib
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmqtwist.storage import guid_table
from bmqtwist.storage import history as module
from bmqtwist.storage.guid_table import PART_ENTRIES
from bmqtwist.storage.history import GuidHistory

CLIENT = b"client"


def guid(tick, client=CLIENT, counter=0):
    return (1 << 22 | counter).to_bytes(3, "big") + tick.to_bytes(7, "big") + client


def test_a_repeated_guid_is_reported_as_seen():
    history = GuidHistory(300)
    assert not history.seen_or_add(guid(5), 0.0)
    assert history.seen_or_add(guid(5), 1.0)
    assert len(history) == 1


def test_guids_of_one_tick_with_different_counters_are_distinct():
    history = GuidHistory(300)
    assert [history.seen_or_add(guid(5, counter=n), 0.0) for n in (0, 1, 1, 0)] == [False, False, True, True]


def test_a_guid_with_an_older_tick_is_new():
    history = GuidHistory(300)
    assert [history.seen_or_add(guid(tick), 0.0) for tick in (9, 3, 3, 9)] == [False, False, True, True]


def test_a_guid_is_held_for_the_whole_time_and_dropped_an_eighth_later():
    for idle in (True, False):
        history = GuidHistory(8)
        history.seen_or_add(guid(1), 100.0)
        if not idle:
            for second in range(101, 108):
                history.seen_or_add(guid(second), float(second))
        assert history.seen_or_add(guid(1), 108.0)
        assert not history.seen_or_add(guid(1), 109.1)


def test_expire_drops_the_guids_of_an_idle_queue():
    history = GuidHistory(8)
    for tick in range(50):
        history.seen_or_add(guid(tick), 0.0)
    history.expire(7.0)
    assert len(history) == 50 and history.seen_or_add(guid(3), 7.0)
    history.expire(16.0)
    assert len(history) == 0


def test_a_deduplication_time_of_zero_holds_no_guid():
    history = GuidHistory(0)
    assert not history.seen_or_add(guid(1), 0.0) and not history.seen_or_add(guid(1), 0.0)
    assert len(history) == 0


def test_a_discarded_guid_is_new():
    history = GuidHistory(300)
    history.seen_or_add(guid(5), 0.0)
    history.discard(guid(5))
    assert not history.seen_or_add(guid(5), 0.0)
    assert history.seen_or_add(guid(5), 0.0)


def test_recovered_guids_with_earlier_times_in_any_order_are_seen():
    history = GuidHistory(300)
    for tick, arrived in ((1, -200.0), (2, -250.0), (3, -10.0)):
        history.add(guid(tick), arrived)
    assert [history.seen_or_add(guid(tick), 20.0) for tick in (1, 2, 3, 4)] == [True, True, True, False]


def test_old_guids_take_sixteen_bytes_each():
    history = GuidHistory(300)
    count = 3 * module.BUCKET_GUIDS_MAX
    for tick in range(count):
        history.seen_or_add(guid(tick), 0.0)
    history.expire(299.0)
    assert len(history) == count and not history._open
    assert sum(sys.getsizeof(bucket.keys) for bucket in history._buckets) < 16.1 * count
    assert all(history.seen_or_add(guid(tick), 300.0) for tick in range(0, count, 997))


def digest(number):
    return hashlib.md5(b"%d" % number).digest()


def test_guids_without_a_rising_timer_take_at_most_thirty_bytes_each():
    history, count = GuidHistory(300), 30_000
    for number in range(count):
        history.seen_or_add(digest(number), number / 1000)
    assert len(history) == count == len(set(history))
    assert sum(sys.getsizeof(part) for part in history._table._parts) < 30 * count
    assert all(history.seen_or_add(digest(number), 300.0) for number in range(0, count, 97))


def test_a_lookup_searches_a_part_of_bounded_size():
    history = GuidHistory(300)
    for number in range(30_000):
        history.seen_or_add(digest(number), 0.0)
    assert max(map(len, history._table._parts)) < 20 * 5 * PART_ENTRIES


def test_with_steady_traffic_at_most_an_eighth_of_the_guids_is_expired():
    history, rate = GuidHistory(10), 1000
    for number in range(40 * rate):
        history.seen_or_add(digest(number), number / rate)
        assert number < 15 * rate or 10 * rate <= len(history) <= 11.5 * rate


def test_expire_drops_the_guids_of_a_large_table_in_steps(monkeypatch):
    monkeypatch.setattr(guid_table, "SWEPT_PARTS_MAX", 4)
    history = GuidHistory(8)
    for number in range(1000):
        history.seen_or_add(digest(number), 0.0)
    sizes = []
    for second in range(9, 20):
        history.expire(float(second))
        sizes.append(len(history))
    assert sizes == sorted(sizes, reverse=True) and 0 < sizes[0] < 1000 and sizes[-1] == 0
    assert not history.seen_or_add(digest(1), 20.0) and history.seen_or_add(digest(1), 21.0)


def test_a_shorter_window_takes_effect_for_earlier_guids():
    history = GuidHistory(300)
    for tick in (1, 2, 1):
        history.seen_or_add(guid(tick), 0.0)
    history.set_window(5, 10.0)
    assert not history.seen_or_add(guid(1), 10.0) and not history.seen_or_add(guid(2), 10.0)


def test_removed_guids_of_any_age_are_new():
    history = GuidHistory(300)
    guids = [*map(digest, range(500)), *map(guid, range(500))]
    for each in guids:
        history.seen_or_add(each, 0.0)
    history.expire(100.0)
    history.remove({digest(7), guid(7)})
    assert [each for each in guids if not history.seen_or_add(each, 100.0)] == [digest(7), guid(7)]


def test_a_guid_formed_by_two_adjacent_stored_guids_is_not_reported_as_seen():
    low, high = b"\1" * 8 + b"\5" * 8, b"\7" * 16
    across = low[8:] + high[:8]
    for added in (False, True):
        history = GuidHistory(300)
        for each in (low, high, *([across] if added else ()), b"\xff" * 16):
            history.seen_or_add(each, 0.0)
        history.expire(299.0)
        assert [history.seen_or_add(each, 300.0) for each in (low, high, b"\xff" * 16)] == [True] * 3
        assert history.seen_or_add(across, 300.0) is added


def test_only_a_guid_above_the_highest_tick_of_its_client_was_never_added():
    history = GuidHistory(8)
    for tick in (5, 7):
        assert not history.seen_or_add(guid(tick), 0.0) and history.never_added
    assert not history.seen_or_add(guid(6), 0.0) and not history.never_added
    assert not history.seen_or_add(guid(5), 100.0) and not history.never_added, "dropped, but added before"
    assert not history.seen_or_add(guid(1, b"others"), 100.0) and history.never_added, "ticks are compared within one client"
    assert history.was_never_added(guid(8)) and not history.was_never_added(guid(7))


def test_an_evicted_client_id_may_have_added_any_guid_up_to_the_highest_tick(monkeypatch):
    monkeypatch.setattr(module, "CLIENTS_MAX", 2)
    history = GuidHistory(8)
    for tick, client in ((1000, b"clienA"), (5, b"clienB"), (7, b"clienC")):
        history.seen_or_add(guid(tick, client), 0.0)
    assert not history.seen_or_add(guid(1000, b"clienA"), 100.0) and not history.never_added
    assert not history.seen_or_add(guid(1001, b"clienA"), 100.0) and history.never_added


def test_no_guid_counts_as_never_added_after_a_deduplication_time_of_zero():
    history = GuidHistory(0)
    assert not history.seen_or_add(guid(5), 0.0) and not history.never_added
    history.set_window(8, 1.0)
    assert not history.seen_or_add(guid(5), 1.0) and not history.never_added


def test_a_repeated_guid_of_an_evicted_client_id_is_seen(monkeypatch):
    monkeypatch.setattr(module, "CLIENTS_MAX", 4)
    history = GuidHistory(300)
    history.seen_or_add(guid(1000), 0.0)
    for other in range(10):
        history.seen_or_add(guid(5, client=b"other%d" % other), 0.0)
    assert not history.seen_or_add(guid(50), 1.0)
    assert history.seen_or_add(guid(1000), 1.0)
    assert history.client_count <= 4


@pytest.mark.parametrize("idle", [True, False])
def test_client_ids_are_dropped_when_none_of_their_guids_is_held(idle):
    history = GuidHistory(8)
    for second in range(500):
        history.seen_or_add(guid(1000 + second, b"id%04d" % second), float(second))
        assert history.client_count <= module.CLIENTS_KEPT + 3 * 12
    for second in range(500, 540):
        if idle:
            history.expire(float(second))
        else:
            history.seen_or_add(guid(1000 + second), float(second))
    assert history.client_count <= module.CLIENTS_KEPT + 1
    assert not history.seen_or_add(guid(1000, b"id0000"), 540.0) and not history.never_added, "it was added before"


def test_the_client_ids_of_few_clients_are_kept():
    history = GuidHistory(8)
    for client in range(module.CLIENTS_KEPT):
        history.seen_or_add(guid(1000 * client, b"id%04d" % client), 0.0)
    history.expire(1e6)
    assert not history.seen_or_add(guid(1, b"id0000"), 1e6) and history.never_added


def test_a_repeated_guid_is_seen_after_the_window_was_extended():
    history = GuidHistory(8)
    for client in range(20):
        history.seen_or_add(guid(1000, b"id%04d" % client), 0.0)
    history.set_window(300, 8.0)
    for second in range(9, 300):
        history.expire(float(second))
    assert not history.seen_or_add(guid(50, b"id0000"), 299.0), "a lower tick"
    assert history.seen_or_add(guid(1000, b"id0000"), 299.0)


class ReferenceHistory:
    """Model of the history: a plain dict."""

    def __init__(self, window):
        self.window, self.arrived, self.ever = window, {}, set()

    def check(self, history, guid, now):
        certain = history.was_never_added(guid)
        seen = history.seen_or_add(guid, now)
        assert not (certain and guid in self.ever)
        assert seen or certain or not history.never_added
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


STEPS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 1), st.integers(0, 3)), max_size=150)


@pytest.mark.parametrize("bucket, clients, kept, entries", [
    (3, 2, 16, 1), (16384, 4096, 16, 64), (3, 4096, 0, 1), (16384, 4096, 1, 64)])
@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_history_agrees_with_a_plain_dict(bucket, clients, kept, entries, steps):
    saved = module.BUCKET_GUIDS_MAX, module.CLIENTS_MAX, module.CLIENTS_KEPT
    module.BUCKET_GUIDS_MAX, module.CLIENTS_MAX, module.CLIENTS_KEPT = bucket, clients, kept
    guid_table.PART_ENTRIES = entries
    try:
        history, model, now = GuidHistory(8.0), ReferenceHistory(8.0), 0.0
        for tick, client, counter, wait in steps:
            now += wait / 2
            if counter and tick == 0:
                history.expire(now)
            model.check(history, guid(tick, b"clien%d" % client, counter), now)
            assert len(history) <= len(steps)
    finally:
        module.BUCKET_GUIDS_MAX, module.CLIENTS_MAX, module.CLIENTS_KEPT = saved
        guid_table.PART_ENTRIES = PART_ENTRIES
