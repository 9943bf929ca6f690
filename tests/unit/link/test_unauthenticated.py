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

from bmqtwist.errors import LocalError
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


def authenticated(world: MemoryWorld, user: str) -> Client:
    client = world.connect(user)
    client.authenticate("BASIC", f"{user}:x".encode())
    client.negotiate()
    return client


class FakeConnection:
    """A session, reduced to its address."""

    def __init__(self, address: str, port: int = 1) -> None:
        self.peer = f"{address}:{port}"


def test_unauthenticated_connections_are_limited_in_bytes_and_per_second() -> None:
    limits: Any = UnauthenticatedConnections(0, 1000, 0, 4)
    one, two = FakeConnection("10.0.0.1"), FakeConnection("10.0.0.1")
    for each in (one, two):
        assert limits.refusal_reason(each.peer, 1.0) == ""
        limits.add(each)
    assert limits.count_received(one, 600) == "" and "1100 bytes" in limits.count_received(two, 500)
    limits.remove(two)
    limits.remove(two)
    assert limits.bytes == 600
    assert not limits.refusal_reason("10.0.0.1:8", 1.0) and not limits.refusal_reason("10.0.0.1:8", 1.0)
    assert "more than 4 connections a second" in limits.refusal_reason("10.0.0.1:9", 1.9)
    assert not limits.refusal_reason("10.0.0.2:9", 1.9) and not limits.refusal_reason("10.0.0.1:9", 2.0), "another second"


def test_a_new_connection_replaces_the_oldest_silent_one_of_the_largest_address() -> None:
    limits: Any = UnauthenticatedConnections(4, 1000)
    greedy = [FakeConnection("10.0.0.1", port) for port in range(3)]
    for each in (*greedy, FakeConnection("10.0.0.2")):
        assert not limits.is_full(each.peer)
        limits.add(each)
    limits.count_received(greedy[0], 10)
    assert limits.is_full("10.0.0.3:1")
    assert limits.replaced_by("10.0.0.3:1") is greedy[1], "the oldest one has sent something"
    assert limits.replaced_by("10.0.0.1:9") is None, "not by one of its own"
    limits.remove(greedy[1])
    assert not limits.is_full("10.0.0.3:1")
    limits.add(FakeConnection("10.0.0.3"))
    assert limits.replaced_by("10.0.0.4:1") is greedy[2]


def test_connections_that_start_at_the_same_time_on_many_machines_do_not_displace_each_other() -> None:
    """Else each would be closed before its negotiation is complete, and they would try again for ever."""
    limits: Any = UnauthenticatedConnections(6, 1000)
    for number in range(6):
        limits.add(FakeConnection(f"10.0.0.{number % 3}", number))
    assert limits.is_full("10.0.0.9:1") and limits.replaced_by("10.0.0.1:9") is None
    assert limits.replaced_by("10.0.0.9:1") is not None
    limits.remove(next(iter(limits._sent)))
    limits.add(FakeConnection("10.0.0.9"))
    assert limits.replaced_by("10.0.0.9:2") is None


def test_connections_of_one_address_are_limited() -> None:
    limits: Any = UnauthenticatedConnections(100, 1000, 2)
    for number in range(2):
        assert not limits.refusal_reason("2001:db8::1:5", 1.0)
        limits.add(FakeConnection(f"2001:db8::{number}"))
    assert "2 unauthenticated connections from one address" in limits.refusal_reason("2001:db8::3:5", 1.0), "one network"
    assert not limits.refusal_reason("2001:db8:1::3:5", 1.0)


def test_reserved_addresses_have_places_of_their_own_and_no_limits_per_address() -> None:
    limits: Any = UnauthenticatedConnections(2, 1000, 1, 1, ["10.1.0.0/16", "2001:db8::7"])
    others = [FakeConnection("10.0.0.1"), FakeConnection("10.0.0.2")]
    nodes = [FakeConnection("10.1.2.3", port) for port in range(2)]
    for each in (*others, *nodes):
        assert not limits.is_full(each.peer) and not limits.refusal_reason(each.peer, 1.0)
        limits.add(each)
    assert limits.is_full("10.1.9.9:1") and limits.replaced_by("10.1.9.9:1") is nodes[0]
    assert limits.replaced_by("10.1.9.9:1", full=True) is others[0]
    assert limits.replaced_by("10.0.0.9:1", full=True) is None
    assert limits.is_reserved("2001:db8::7:1") and not limits.is_reserved("10.2.0.1:1")
    limits.reserve("10.2.0.1:1")
    assert limits.is_reserved("10.2.0.1:77")


def test_an_invalid_reserved_address_is_refused() -> None:
    with pytest.raises(LocalError, match="reservedAddresses: found \"10.0.0\""):
        UnauthenticatedConnections(2, 1000, reserved=["10.0.0"])


def test_above_the_input_limit_the_party_with_the_most_incomplete_events_loses_a_connection(tmp_path: Path) -> None:
    """A party with many connections would otherwise make others lose theirs, whose events are larger."""
    users = [{"key": name, "value": {"stringVal": "x"}} for name in ("ada", "eve")]
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"inputBytesMax": 1000_000}, "authentication": {
        "authenticators": [{"name": "BasicAuthenticator", "settings": users}]}})
    world.domain("d")
    honest, *greedy = [authenticated(world, name) for name in ("ada", "eve", "eve", "eve")]
    send(honest, event_prefix(400_000, 50 << 20))
    for client in greedy:
        send(client, event_prefix(210_000, 50 << 20))
    assert not is_closed(honest) and [is_closed(client) for client in greedy].count(True) == 1
    assert world.logged("'BASIC_USER-eve' has the most bytes of incomplete events, 630000 of 1030000")


def test_above_the_input_limit_the_connection_with_the_largest_incomplete_event_is_closed(tmp_path: Path) -> None:
    world = make(tmp_path, inputBytesMax=1000_000)
    clients = [world.client(f"c{n}") for n in range(3)]
    for client, size in zip(clients, (300_000, 450_000, 200_000), strict=True):
        send(client, event_prefix(size, 50 << 20))
    assert world.broker.sessions.incomplete_input.bytes == 950_000 and not any(map(is_closed, clients))
    send(clients[2], bytes(60_000))
    assert [is_closed(client) for client in clients] == [False, True, False]
    assert world.broker.sessions.incomplete_input.bytes == 560_000
    assert world.logged("#TCP_READ_ERROR c1:4242", "'127.0.0.1' has the most bytes of incomplete events, 1010000 of 1010000")


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


def test_all_unauthenticated_connections_together_write_a_few_lines_per_second(tmp_path: Path) -> None:
    world = make(tmp_path)
    inputs = (event_prefix(8, LIMIT + 4), bytes(8), b"GET / HTTP/1.1\r\n\r\n", empty_fields(40))
    for number in range(40):
        send(world.connect(f"c{number}"), inputs[number % len(inputs)])
    lines = world.logged("127.0.0.1:", "#")
    assert 1 <= len(lines) <= LineLimiter.LINES_PER_S, lines
    world.advance(1.0)
    send(world.connect("later"), bytes(8))
    assert len(world.logged("127.0.0.1:", "#")) == len(lines) + 1
