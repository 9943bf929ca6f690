"""Timers: order, periods and isolation of actions."""

from __future__ import annotations

from bmqtwist.loop.loop import Timers


def test_actions_run_at_their_time_and_not_before() -> None:
    timers, done = Timers(), list[tuple[str, float]]()
    timers.at(2.0, lambda now: done.append(("two", now)))
    timers.at(1.0, lambda now: done.append(("one", now)))
    assert timers.next_at == 1.0
    timers.run(0.9)
    assert done == []
    timers.run(2.0)
    assert done == [("one", 2.0), ("two", 2.0)] and timers.next_at is None


def test_actions_with_the_same_time_run_in_the_order_of_their_addition() -> None:
    timers, done = Timers(), list[int]()
    for number in range(5):
        timers.at(1.0, lambda now, number=number: done.append(number))  # type: ignore[misc]
    timers.run(1.0)
    assert done == [0, 1, 2, 3, 4]


def test_an_action_may_add_another_one_for_the_present_time() -> None:
    timers, done = Timers(), list[str]()
    timers.at(1.0, lambda now: timers.at(now, lambda again: done.append("second")))
    timers.run(1.0)
    assert done == ["second"]


def test_an_error_in_an_action_affects_no_other_action_and_keeps_its_period() -> None:
    failed: list[Exception] = []
    timers, done = Timers(failed.append), list[float]()

    def failing_action(now: float) -> None:
        done.append(now)
        raise ZeroDivisionError(now)

    timers.every(0.0, 1.0, failing_action)
    timers.at(1.0, lambda now: done.append(-now))
    for now in (1.0, 2.0):
        timers.run(now)
    assert done == [1.0, -1.0, 2.0] and [type(error) for error in failed] == [ZeroDivisionError] * 2


def test_a_periodic_action_keeps_its_phase_and_skips_missed_times() -> None:
    timers, done = Timers(), list[float]()
    timers.every(10.0, 2.0, done.append)
    for now in (11.9, 12.0, 14.5, 21.0, 22.0):
        timers.run(now)
    assert done == [12.0, 14.5, 21.0, 22.0] and timers.next_at == 24.0
