"""Memory of closed connections: freed without a garbage collection, because no object is part of a reference cycle."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit import codec
from kit.client import Client
from kit.connections import Transport, connect
from kit.memory import MemoryLink, MemoryWorld

from bmqtwist.link.session import Session

Peer = MemoryLink | Client


@pytest.fixture
def memory(tmp_path: Path) -> MemoryWorld:
    world = MemoryWorld(tmp_path)
    world.domain("d")
    return world


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def idle_connection(memory: MemoryWorld) -> Peer:
    """A connection without input."""
    return memory.link()


def incomplete_event(memory: MemoryWorld) -> Peer:
    link = memory.link()
    link.send((60_000).to_bytes(4, "big") + bytes(50_000))
    return link


def malformed_input(memory: MemoryWorld) -> Peer:
    """Malformed input: the broker closes the connection."""
    link = memory.link()
    link.send(b"GET / HTTP/1.1" * 1000)
    return link


def malformed_negotiation(memory: MemoryWorld) -> Peer:
    link = memory.link()
    link.send((80).to_bytes(4, "big") + b"\x41\x02\x00\x00" + b"x" * 72)
    return link


def admin_client(memory: MemoryWorld) -> Peer:
    client = memory.client(client_type="E_TCPADMIN")
    client.admin("HELP")
    return client


def busy_client(memory: MemoryWorld) -> Peer:
    """A client with a producer, a consumer with unconfirmed messages, and half an event."""
    client = memory.client()
    client.consume("bmq://d/q")
    client.open("bmq://d/q2", write=1).post_all(b"1", b"2")
    memory.producer().post_all(b"x" * 5000)
    client.send((60_000_000).to_bytes(4, "big") + bytes(500_000))
    return client


def waiting_client(memory: MemoryWorld) -> Peer:
    """A client with an unanswered open and PUTs that wait for it."""
    client = memory.client()
    memory.disk_stalled = True
    client.send_request({"openQueue": {"handleParameters": client.handle_parameters("bmq://d/new", 0, write=1)}})
    client.send(codec.put_frame([codec.put_message(0, client.new_guid(), b"x" * 1000)]))
    memory.run()
    return client


def rejected_client(memory: MemoryWorld) -> Peer:
    """A client that is closed for an event above the limit."""
    client = memory.client()
    client.send((0x7FFFFFFF).to_bytes(4, "big") + bytes(1000))
    return client


@pytest.mark.parametrize("connect_peer", [idle_connection, incomplete_event, malformed_input, malformed_negotiation,
                                          admin_client, busy_client, waiting_client, rejected_client])
@pytest.mark.parametrize("closed_by_broker", [False, True])
def test_a_session_is_freed_when_its_connection_closes(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch,
                                                       closed_by_broker: bool,
                                                       connect_peer: Callable[[MemoryWorld], Peer]) -> None:
    parts: list[weakref.ref[object]] = []
    original = Session.__init__

    def recording_init(session: Session, *args: object) -> None:
        original(session, *args)  # type: ignore[arg-type]
        parts.append(weakref.ref(session))

    monkeypatch.setattr(Session, "__init__", recording_init)
    peer = connect_peer(memory)
    for session in [part() for part in parts]:
        assert isinstance(session, Session)
        parts.append(weakref.ref(session.kind))
        if closed_by_broker:
            session.close("closed by the test")
    del session
    memory.run()
    peer.drop()
    memory.disk_stalled = False
    for client in list(memory.clients):
        client.drop()
    memory.advance(1.0)
    assert len(parts) >= 2 and [part() for part in parts if part() is not None] == []


def test_a_lost_connection_does_not_reference_its_transport(memory: MemoryWorld) -> None:
    """The delayed `abort` outlives the connection; the unsent output must not."""
    transport = Transport(room=0)
    kept = weakref.ref(transport)
    connection, driver = connect(transport)
    connection.write([bytes(1 << 20)])
    connection.finish()
    connection.connectionLost()
    del transport
    assert driver.delayed and connection.session is None and kept() is None
