"""Limits of repeated log lines."""

from __future__ import annotations

from bmqtwist.report import RepeatLimiter


def test_a_repeated_line_is_allowed_once_per_period_with_the_number_of_omitted_ones() -> None:
    limiter = RepeatLimiter(60.0)
    assert limiter.suffix("a", 0.0) == "" and limiter.suffix("b", 0.0) == ""
    assert [limiter.suffix("a", 0.1 * number) for number in range(463)] == [None] * 463
    assert limiter.suffix("a", 60.0) == " (463 more times in the last 60 s)"
    assert limiter.suffix("a", 61.0) is None and limiter.suffix("b", 70.0) == ""
