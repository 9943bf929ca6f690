"""Fixtures: a session of each front against a scripted broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit.sdk_fronts_kit import FRONTS, Front


@pytest.fixture(params=FRONTS)
def front(request: pytest.FixtureRequest) -> Iterator[Front]:
    """Each front."""
    made = FRONTS[request.param]()
    yield made
    assert not made.unhandled


@pytest.fixture(params=["aio", "tx"])
def loop_front(request: pytest.FixtureRequest) -> Iterator[Front]:
    """Each front with an event loop."""
    made = FRONTS[request.param]()
    yield made
    assert not made.unhandled
