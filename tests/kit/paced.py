"""Clients that post often enough for a session to collect ACKs and CONFIRMs before it sends them.

Used by `unit/broker/test_delays.py` and `test_write_coalescing.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bmqtwist.link.batching import (
    BATCH_MIN_S,
    PUT_GAP_S,
)
from bmqtwist.link.session import Session
from kit.client import Queue
from kit.memory import MemoryWorld

OFTEN = PUT_GAP_S / 4  # s between posts that make a session collect
SHARED = int(BATCH_MIN_S / OFTEN)  # posts in one collection


@pytest.fixture
def memory(tmp_path: Path) -> MemoryWorld:
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"durability": "none"}})
    world.domain("d")
    return world


def session_of(queue: Queue) -> Session:
    session = queue.client.link.session  # type: ignore[attr-defined]
    assert isinstance(session, Session)
    return session


def count_received(queue: Queue, kind: str) -> int:
    """Return the number of received events of a kind."""
    queue.client.pump(0)
    return len([event for event in queue.client.events if event.kind == kind])


def acked(queue: Queue) -> int:
    """Return the number of received ACKs."""
    return count_received(queue, "ack")


def post_often(memory: MemoryWorld, queue: Queue, count: int, every: float = OFTEN) -> None:
    for _ in range(count):
        queue.put()
        memory.advance(every)
