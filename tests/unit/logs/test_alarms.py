"""Alarm lines: their format, and the rate limit of their copies on standard error."""

from __future__ import annotations

import io

from bmqtwist import alarms
from bmqtwist.logs.format import Levels
from bmqtwist.logs.observer import SOURCES_MAX, AlarmThrottle, TwistedReport


def test_an_alarm_has_the_format_of_the_original() -> None:
    """Monitoring systems match on this format."""
    copies, lines = io.StringIO(), list[object]()
    report = TwistedReport(Levels("INFO"), copies, lambda: 0.0, lambda event: lines.append(event["text"]))
    report.alarm(alarms.QUEUE_STUCK, "Queue '%s' seems to be stuck.", "q")
    report.alarm(alarms.STORAGE_NOT_CLOSED, "t")
    assert lines == ["ALARM [QUEUE_STUCK] Queue 'q' seems to be stuck.", "PANIC [FILE_IO] storage-not-closed: t"]
    assert copies.getvalue() == ("ALARM: ALARM [QUEUE_STUCK] Queue 'q' seems to be stuck.\n"
                                 "PANIC: PANIC [FILE_IO] storage-not-closed: t\n")


def test_a_line_names_the_id_of_its_alarm_unless_the_category_identifies_it() -> None:
    assert alarms.QUEUE_STUCK.head() == "[QUEUE_STUCK] " and alarms.DISPATCHER.head() == "[DISPATCHER] "
    assert alarms.BROADCAST_DOMAIN_STRONG.head() == "[DOMAIN] ", "the line of BlazingMQ"
    assert alarms.DOMAIN_NOT_LOADED.head() == "[DOMAIN] domain-not-loaded: "
    assert alarms.operator_alarm("FIRE", True).head() == "[FIRE] operator: "


def test_alarm_copies_of_one_source_are_limited_to_one_per_minute() -> None:
    """Many alarms of one source must not hide alarms of other sources."""
    throttle = AlarmThrottle()
    assert throttle.admits("a", 0.0)
    assert not throttle.admits("a", 59.9)
    assert throttle.admits("b", 59.9)
    assert throttle.admits("a", 60.0)
    assert not throttle.admits("a", 100.0)


def test_the_number_of_remembered_alarm_sources_is_limited() -> None:
    """Old sources are dropped first; beyond SOURCES_MAX copies are suppressed."""
    throttle = AlarmThrottle()
    assert all(throttle.admits(number, 0.0) for number in range(SOURCES_MAX))
    assert not throttle.admits("one more", 1.0)
    assert throttle.admits("one more", 61.0)
