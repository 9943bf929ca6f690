"""Repeated kills and restarts of a broker process with client processes of the SDK.

A short run of `python -m tests.soak restarts`.
"""

from __future__ import annotations

import json

import pytest
from soak.restarts import run

pytestmark = pytest.mark.process
SEED = 7


@pytest.mark.spec("cluster", 114)
@pytest.mark.parametrize(("front", "durability", "count"), [("aio", "none", 4), ("tx", "group", 3)])
def test_restarts_of_the_broker_lose_duplicate_and_reorder_no_message(front: str, durability: str, count: int) -> None:
    """Three producers, three queues, and their consumers; the order of session events is checked, too."""
    found = run(count, front, durability, SEED, run_seconds=0.4)
    assert not found["violations"], json.dumps(found, indent=1)
    assert found["posts"] == found["acknowledged"] > 100
    assert found["killed"] and found["killed"] + found["stopped"] == count
    assert found["reconnects"] >= 5  # each client at least once: the next restart may come before its next reconnect
