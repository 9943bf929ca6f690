"""Kills of a broker with durability `none` while a producer posts: acknowledged messages are stored."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kit.process import BrokerProcess

from bench.rawclient import READ, WRITE, Closed, RawClient, acks, pushes
from bmqtwist.wire.fast import EventType

pytestmark = pytest.mark.process

RUNS = 6
RUN_S = 0.3
OFTEN_S = 0.0002  # between two messages
PATIENCE_S = 30.0
URI = "bmq://d/q"


def acked(client: RawClient, seconds: float) -> list[list[bytes]]:
    """Return the GUIDs of received ACKs, by event; wait a short time for them."""
    return [[guid for status, guid in acks(buffer, start, end) if not status]
            for buffer, (kind, _, start, end) in client.events(seconds) if kind == EventType.ACK]


def post_until_killed(broker: BrokerProcess, after: float) -> list[list[bytes]]:
    """Post until the broker is killed; return the acknowledged GUIDs, by event."""
    client = RawClient(broker.port, "producer", PATIENCE_S)
    client.open(URI, 0, WRITE)
    events, begun = list[list[bytes]](), time.monotonic()
    while time.monotonic() - begun < after:
        client.send(client.put_event(0, [b"x" * 100])[0])
        events += acked(client, 0.0)
        time.sleep(OFTEN_S)
    broker.kill()
    try:
        while True:
            events += acked(client, PATIENCE_S)
    except (Closed, OSError):
        client.socket.close()
    return events


def test_messages_acknowledged_with_write_coalescing_survive_a_kill(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, app={"bmqtwist": {"durability": "none"}})
    broker.domain("d")
    expected, together = set[bytes](), 0
    try:
        for run in range(RUNS):
            broker.start()
            events = post_until_killed(broker, RUN_S + 0.0007 * run)
            together += sum(len(guids) > 1 for guids in events)
            expected.update(guid for guids in events for guid in guids)
        assert together > 10 * RUNS, "ACKs share turns"
        broker.start()
        client = RawClient(broker.port, "consumer", PATIENCE_S)
        client.open(URI, 0, READ)
        client.consume(0, 1)
        deadline = time.monotonic() + PATIENCE_S
        while expected and time.monotonic() < deadline:
            for buffer, (kind, _, start, end) in client.events(1.0):
                if kind == EventType.PUSH:
                    expected.difference_update(guid for guid, _ in pushes(buffer, start, end))
        assert not expected, f"{len(expected)} messages were acknowledged and are lost"
        client.close()
    finally:
        broker.close()
