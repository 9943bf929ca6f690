"""Sessions of every kind against a broker that the test plays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit.sdk_fronts_kit import FRONTS, Front


@pytest.fixture(params=FRONTS)
def front(request: pytest.FixtureRequest) -> Iterator[Front]:
    """Each kind of session."""
    made = FRONTS[request.param]()
    yield made
    assert not made.unhandled


@pytest.fixture(params=["aio", "tx"])
def loop_front(request: pytest.FixtureRequest) -> Iterator[Front]:
    """Each kind with an event loop."""
    made = FRONTS[request.param]()
    yield made
    assert not made.unhandled
