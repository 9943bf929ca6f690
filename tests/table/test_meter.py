"""Meter (queue/meter.py): state and reported category after each change of its value, from every state."""

from __future__ import annotations

import pytest

from bmqtwist.queue.meter import Meter, MeterState

LIMIT, HIGH, LOW = 100, 80, 40
N, W, F = MeterState.STATE_NORMAL, MeterState.STATE_HIGH_WATERMARK, MeterState.STATE_FULL
VALUE_IN_STATE = {N: 0, W: 80, F: 100}

# state before, value: (state after, category of the event)
TABLE = {
    (N, 1): (N, ""), (N, LOW): (N, ""), (N, HIGH - 1): (N, ""), (N, HIGH): (W, "HIGH_WATERMARK"),
    (N, LIMIT - 1): (W, "HIGH_WATERMARK"), (N, LIMIT): (F, "FULL"), (N, LIMIT + 1): (F, "FULL"),
    (W, 0): (N, "NORMAL"), (W, LOW): (N, "NORMAL"), (W, LOW + 1): (W, ""), (W, LIMIT - 1): (W, ""),
    (W, LIMIT): (F, "FULL"), (F, 0): (N, "NORMAL"), (F, LOW): (N, "NORMAL"), (F, LOW + 1): (W, ""), (F, HIGH): (W, ""),
    (F, HIGH + 1): (F, ""), (F, LIMIT): (F, ""), (F, LIMIT + 1): (F, ""),
}


@pytest.mark.parametrize("quantity", ["messages", "bytes"])
@pytest.mark.parametrize("before, value", TABLE, ids=str)
def test_a_change_of_the_value_has_the_expected_state_and_reported_category(
        before: MeterState, value: int, quantity: str) -> None:
    after, category = TABLE[before, value]
    meter = Meter("m", None, *((LIMIT, 1 << 40) if quantity == "messages" else (1 << 40, LIMIT)))
    unit = (lambda n: (n, 0)) if quantity == "messages" else (lambda n: (0, n))
    meter.force_add(*unit(VALUE_IN_STATE[before]))
    assert meter.state is before
    change = value - VALUE_IN_STATE[before]
    if change < 0:
        meter.remove(*unit(-change))
    elif quantity == "bytes":
        meter.try_add(change)
    else:
        for _ in range(change):
            meter.try_add(0)
    events = [event.state.name.removeprefix("STATE_") for event in meter.take_events()]
    reported = events[-1] if events else ""
    assert (meter.state, reported) == (after, category)
    assert all(event in ("HIGH_WATERMARK", "FULL", "NORMAL") for event in events)
