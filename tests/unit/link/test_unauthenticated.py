"""Unauthenticated connections: limits of their number and input, and of incomplete events of all connections."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from kit import codec
from kit.calls import count_calls
from kit.client import Client
from kit.memory import MemoryWorld

from bmqtwist.limits import CONTROL_BYTES_MAX, NEGOTIATION_BYTES_MAX
from bmqtwist.link.unauthenticated import UnauthenticatedConnections
from bmqtwist.report import LineLimiter
from bmqtwist.wire.fast import EventType, event_header

LIMIT = NEGOTIATION_BYTES_MAX


def make(tmp_path: Path, **extension: Any) -> MemoryWorld:
    world = MemoryWorld(tmp_path, app={"bmqtwist": extension})
    world.domain("d")
    return world


def send(client: Client, data: bytes) -> None:
    client.send(data)
    client.pump(0)


def is_closed(client: Client) -> bool:
    client.pump(0)
    return client.link.closed


def event_prefix(size: int, length: int) -> bytes:
    """Return the first `size` bytes of an event of `length` bytes."""
    return event_header(EventType.CONTROL, length - 8) + bytes(size - 8)


def empty_fields(size: int) -> bytes:
    """Return a negotiation message of unknown fields without values."""
    body = b"\x30\x80\xa0\x80\xa0\x80" + b"\x9e\x00" * ((size - 20) // 2)
    return event_header(EventType.CONTROL, len(body)) + body


@pytest.mark.parametrize("announced", [LIMIT + 4, 64 << 20])
def test_a_too_long_event_before_the_negotiation_closes_the_connection_at_its_header(tmp_path: Path, announced: int) -> None:
    world = make(tmp_path)
    client = world.connect("eager")
    send(client, event_prefix(8, announced))
    assert is_closed(client) and world.broker.sessions.incomplete_input.bytes == 0


def test_all_input_before_the_negotiation_counts_against_the_limit(tmp_path: Path) -> None:
    world = make(tmp_path)
    client = world.connect("eager")
    send(client, event_prefix(LIMIT // 2, LIMIT))
    sessions = world.broker.sessions
    assert not is_closed(client) and sessions.incomplete_input.bytes == LIMIT // 2 == sessions.unauthenticated.bytes
    send(client, bytes(LIMIT // 2 + 1))
    assert is_closed(client)
    assert (world.broker.sessions.incomplete_input.bytes, world.broker.sessions.unauthenticated.bytes) == (0, 0)
    assert world.logged("#SESSION_NEGOTIATION", f"limit: {LIMIT}")


def test_a_negotiation_of_very_many_empty_fields_is_refused_quickly(tmp_path: Path) -> None:
    world = make(tmp_path)
    client = world.connect("odd")
    calls = count_calls(lambda: send(client, empty_fields(LIMIT)))
    assert is_closed(client) and calls.total() < LIMIT // 8, "the reader stops after some fields"


def test_after_the_negotiation_only_control_messages_have_a_fixed_size_limit(tmp_path: Path) -> None:
    world = make(tmp_path)
    producer = world.producer()
    assert producer.status_of(b"x" * (2 * LIMIT)) == 0
    send(producer.client, empty_fields(CONTROL_BYTES_MAX + 100))
    assert world.logged("#CORRUPTED_EVENT", f"limit: {CONTROL_BYTES_MAX}") and not is_closed(producer.client)
    assert producer.status_of(b"y") == 0 and world.broker.sessions.unauthenticated.bytes == 0


def test_a_control_message_of_very_many_small_values_is_rejected(tmp_path: Path) -> None:
    """The client receives no response, as to every undecodable control message, and stays connected."""
    world = make(tmp_path)
    producer = world.producer()
    body = b"\x30\x80" + b"\x9e\x00" * (CONTROL_BYTES_MAX // 2 - 100) + b"\0\0"
    send(producer.client, event_header(EventType.CONTROL, len(body)) + body)
    assert world.logged("#CORRUPTED_EVENT", "too many values") and not is_closed(producer.client)
    for _ in range(100):
        send(producer.client, empty_fields(100))
    assert len(world.logged("#CORRUPTED_EVENT")) <= LineLimiter.LINES_PER_S and producer.status_of(b"y") == 0


class FakeConnection:
    """A session, reduced to its address."""

    def __init__(self, address: str) -> None:
        self.peer = f"{address}:1"


def test_unauthenticated_connections_are_limited_in_number_and_bytes() -> None:
    limits: Any = UnauthenticatedConnections(3, 1000, 2, 4)
    one, two, three = FakeConnection("a"), FakeConnection("a"), FakeConnection("b")
    for each in (one, two):
        assert limits.refusal_reason(each.peer, 1.0) == ""
        limits.add(each)
    assert "2 unauthenticated connections from one address" in limits.refusal_reason("a:7", 1.0)
    assert not limits.refusal_reason("b:7", 1.0)
    limits.add(three)
    assert "3 unauthenticated connections" in limits.refusal_reason("c:7", 1.0)
    assert limits.count_received(one, 600) == "" and "1100 bytes" in limits.count_received(two, 500)
    limits.remove(two)
    limits.remove(two)
    assert limits.bytes == 600 and not limits.refusal_reason("a:8", 1.0)
    assert "more than 4 connections a second" in limits.refusal_reason("a:9", 1.9) and not limits.refusal_reason("b:9", 1.9)
    assert not limits.refusal_reason("a:9", 2.0), "another second"
    assert not UnauthenticatedConnections(0, 1).refusal_reason("a:1", 1.0)


def test_above_the_input_limit_the_connection_with_the_largest_incomplete_event_is_closed(tmp_path: Path) -> None:
    world = make(tmp_path, inputBytesMax=1000_000)
    clients = [world.client(f"c{n}") for n in range(3)]
    for client, size in zip(clients, (300_000, 450_000, 200_000), strict=True):
        send(client, event_prefix(size, 50 << 20))
    assert world.broker.sessions.incomplete_input.bytes == 950_000 and not any(map(is_closed, clients))
    send(clients[2], bytes(60_000))
    assert [is_closed(client) for client in clients] == [False, True, False]
    assert world.broker.sessions.incomplete_input.bytes == 560_000
    assert world.logged("#TCP_READ_ERROR c1:4242", "450000 of 1010000 bytes")


@pytest.mark.parametrize("by", ["us", "them"])
def test_input_of_a_closed_connection_is_freed_without_a_garbage_collection(tmp_path: Path, by: str) -> None:
    world = make(tmp_path)
    clients = [world.client(f"c{n}") for n in range(5)]
    piece = bytes(1 << 20)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for client in clients:
            send(client, event_prefix(8, 50 << 20))
            for _ in range(10):
                send(client, piece)
        assert tracemalloc.get_traced_memory()[0] > 50 << 20
        for client in clients:
            if by == "us":
                client.link.session.close("enough")  # type: ignore[attr-defined]
                send(client, piece)
            else:
                client.kill()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    print(f"left of 50 MiB: {left / 2**20:.1f} MiB")
    assert left < 2 << 20 and world.broker.sessions.incomplete_input.bytes == 0


def test_events_sent_with_the_negotiation_are_processed(tmp_path: Path) -> None:
    """Input that arrives together with the clientIdentity is processed if it is within the limit."""
    world = make(tmp_path)
    client = world.client("polite")
    send(client, codec.put_frame([codec.put_message(0, client.new_guid(), b"x")]))
    assert not is_closed(client)


def test_client_names_in_log_lines_are_escaped_and_truncated(tmp_path: Path) -> None:
    world = make(tmp_path)
    forged = "nice\nERROR forged \x1b[2J" + "x" * 10_000
    client = world.client(forged, user_agent=forged)
    session = client.link.session  # type: ignore[attr-defined]
    assert session.description == "nice\\x0aERROR forged \\x1b[2J" + "x" * 106 + "...:4242"
    lines = [line for line in world.log() if "forged" in line]
    assert lines and all("\n" not in line and len(line) < 1000 for line in lines)
