"""Rates per second of counters over a window of RATE_WINDOW_S. Pure: time is an argument.

Every rate of the console comes from `RateWindow`, so that one fact has one number on all pages and in the API:

    window    from the newest stored sample of an age of RATE_WINDOW_S, give or take half a SAMPLE_STEP_S, to the present
    shorter   after the first sample, from RATE_SECONDS_MIN on; before that the rate is unknown, None
    longer    if the counters are sampled less often: from the last sample

Called by `samples.py` (nodes, clients, subscriptions, proxies) and `queues.py` (queues).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

RATE_WINDOW_S = 5.0
RATE_SECONDS_MIN = 2.0
SAMPLE_STEP_S = 1.0  # between two stored samples

Rates = tuple[float | None, ...]


class RateWindow:
    """Samples of the counters of one source, at most RATE_WINDOW_S / SAMPLE_STEP_S + 2 of them."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Sequence[float]]] = deque()

    def sample(self, now: float, counted: Sequence[float]) -> Rates:
        """Return the rates of the present counters, and store them if the last sample is older than SAMPLE_STEP_S."""
        samples = self._samples
        if samples and any(new < old for old, new in zip(samples[-1][1], counted, strict=True)):
            samples.clear()  # the counters began again
        while len(samples) > 1 and now - samples[1][0] >= RATE_WINDOW_S - SAMPLE_STEP_S / 2:
            samples.popleft()
        if not samples or now - samples[-1][0] >= SAMPLE_STEP_S:
            samples.append((now, counted))
        begin, before = samples[0]
        seconds = now - begin
        if seconds < RATE_SECONDS_MIN:
            return (None,) * len(counted)
        return tuple([(new - old) / seconds for old, new in zip(before, counted, strict=True)])


def in_tenths(rates: Sequence[float | None]) -> Rates:
    """Return rates in the precision that documents have."""
    return tuple([None if each is None else round(each, 1) for each in rates])


def add_rates(rates: Sequence[float | None]) -> float | None:
    """Return the sum of the known rates; None if none is known."""
    known = [each for each in rates if each is not None]
    return round(sum(known), 1) if known else None
