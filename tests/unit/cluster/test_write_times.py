"""Write times: the age of a replica's lag, computed from the times at which the primary wrote records."""

from __future__ import annotations

import pytest

from bmqtwist.cluster.write_times import ENTRIES_MAX, SLACK, STEP_S, WriteTimes


def add_if_due(times: WriteTimes, sequence: int, now: float) -> None:
    """Add an entry like `member.partition_runner`."""
    if times.is_due(now):
        times.add((1, sequence), now)


def test_the_lag_is_the_age_of_the_oldest_missing_record() -> None:
    times = WriteTimes()
    for sequence, at in ((1, 10.0), (5, 11.0), (9, 12.0)):
        add_if_due(times, sequence, at)
    assert times.lag((0, 7), 13.0) == 3.0, "the replica lacks the first record of the lease"
    assert times.lag((1, 1), 13.0) == 2.0 == times.lag((1, 4), 13.0)
    assert times.lag((1, 5), 13.0) == 1.0


def test_the_lag_in_a_lease_without_records_is_none() -> None:
    assert WriteTimes().lag((1, 1), 5.0) is None


def test_records_within_one_step_share_the_time_of_one_entry() -> None:
    times = WriteTimes()
    add_if_due(times, 1, 10.0)
    add_if_due(times, 2, 10.0 + STEP_S / 2)
    assert len(times._ends) == 1
    assert times.lag((1, 1), 12.0) == 2.0
    add_if_due(times, 3, 10.5)
    assert times.lag((1, 1), 12.0) == 1.5, "the next entry has the record"


@pytest.mark.parametrize("pause_s", [STEP_S * 1.01, 1.0, 60.0])
def test_the_number_of_entries_is_limited_and_the_lag_stays_accurate(pause_s: float) -> None:
    times, written = WriteTimes(), 40 * ENTRIES_MAX
    for sequence in range(written):
        add_if_due(times, sequence, sequence * pause_s)
        assert len(times._ends) <= ENTRIES_MAX
    now = written * pause_s
    for lacking in range(1, written, 97):
        age, found = now - lacking * pause_s, times.lag((1, lacking - 1), now)
        assert found is not None and age * (1 - SLACK) - pause_s <= found <= age + 1e-6, lacking
