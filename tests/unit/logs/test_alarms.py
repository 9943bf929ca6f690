"""Alarms and their copies."""

from __future__ import annotations

from bmqtwist.logs.alarms import SOURCES_MAX, AlarmThrottle, alarm_text, copy_text


def test_an_alarm_reads_as_operators_know_it() -> None:
    """Monitoring matches on these words."""
    record = alarm_text("ALARM", "QUEUE_STUCK", "Queue 'q' seems to be stuck.")
    assert record == "ALARM [QUEUE_STUCK] Queue 'q' seems to be stuck."
    assert copy_text("ALARM", record) == "ALARM: ALARM [QUEUE_STUCK] Queue 'q' seems to be stuck."
    assert copy_text("PANIC", alarm_text("PANIC", "C", "t")) == "PANIC: PANIC [C] t"


def test_copies_of_one_source_pass_once_a_minute() -> None:
    """A storm in one place must not hide the others."""
    throttle = AlarmThrottle()
    assert throttle.passes("a", 0.0)
    assert not throttle.passes("a", 59.9)
    assert throttle.passes("b", 59.9)
    assert throttle.passes("a", 60.0)
    assert not throttle.passes("a", 100.0)


def test_memory_of_sources_is_bounded() -> None:
    """Old sources are forgotten first; beyond the ceiling copies are withheld rather than kept for ever."""
    throttle = AlarmThrottle()
    assert all(throttle.passes(number, 0.0) for number in range(SOURCES_MAX))
    assert not throttle.passes("one more", 1.0)
    assert throttle.passes("one more", 61.0)
