"""Alarm lines and the rate limit of their copies."""

from __future__ import annotations

import io

from bmqtwist.logs.format import Levels
from bmqtwist.logs.observer import SOURCES_MAX, AlarmThrottle, TwistedReport


def test_an_alarm_reads_as_operators_know_it() -> None:
    """Monitoring systems match on this format."""
    copies, lines = io.StringIO(), list[object]()
    report = TwistedReport(Levels("INFO"), copies, lambda: 0.0, lambda event: lines.append(event["text"]))
    report.alarm("QUEUE_STUCK", "Queue '%s' seems to be stuck.", "q")
    report.panic("C", "t")
    assert lines == ["ALARM [QUEUE_STUCK] Queue 'q' seems to be stuck.", "PANIC [C] t"]
    assert copies.getvalue() == "ALARM: ALARM [QUEUE_STUCK] Queue 'q' seems to be stuck.\nPANIC: PANIC [C] t\n"


def test_copies_of_one_source_pass_once_a_minute() -> None:
    """Many alarms of one source must not hide alarms of other sources."""
    throttle = AlarmThrottle()
    assert throttle.passes("a", 0.0)
    assert not throttle.passes("a", 59.9)
    assert throttle.passes("b", 59.9)
    assert throttle.passes("a", 60.0)
    assert not throttle.passes("a", 100.0)


def test_memory_of_sources_is_bounded() -> None:
    """Old sources are dropped first; beyond SOURCES_MAX copies are suppressed."""
    throttle = AlarmThrottle()
    assert all(throttle.passes(number, 0.0) for number in range(SOURCES_MAX))
    assert not throttle.passes("one more", 1.0)
    assert throttle.passes("one more", 61.0)
