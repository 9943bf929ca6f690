"""A broker process killed and restarted again and again under client processes of our own library.

The full length is `python -m tests.soak restarts`; this is as much of it as fits into a run of the suite.
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
    """Three producers, three queues, consumers of their own; the judge also looks at the order of session events."""
    found = run(count, front, durability, SEED, life_seconds=0.4)
    assert not found["wrong"], json.dumps(found, indent=1)
    assert found["posts"] == found["acknowledged"] > 100
    assert found["killed"] and found["killed"] + found["stopped"] == count
    assert found["reconnects"] >= 5  # each client, once at least: the next restart may come before it is back
