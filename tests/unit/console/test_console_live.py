"""WebSocket of the console, with the real parsers and without a port: access, and messages over time."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from kit.console import ConsoleWorld, users
from kit.merge_patch import apply_patch
from kit.websocket import CLOSE, Frames, frame, request, text_frame
from twisted.internet.address import IPv4Address
from twisted.internet.testing import StringTransport

from bmqtwist.console.hub import SUBSCRIBERS_MAX
from bmqtwist.console.live import ENDED, GOING_AWAY, MESSAGE_BYTES_MAX, MESSAGES_PER_SECOND_MAX, POLICY
from bmqtwist.console.service import PERIOD_S
from bmqtwist.limits import HTTP_CONNECTION_SECONDS_MAX, HTTP_CONNECTIONS_MAX

HOST = "127.0.0.1:1"
LOCAL_HEADERS = {"Host": HOST, "Origin": f"http://{HOST}"}


class FakeTab:
    """Page with a WebSocket."""

    def __init__(self, console: ConsoleWorld, headers: dict[str, str] | None = None, address: str = "127.0.0.1") -> None:
        self.console, self.frames, self.document = console, Frames(), dict[str, Any]()
        self.transport = StringTransport(peerAddress=IPv4Address("TCP", address, 5))
        self.transport.abortConnection = self.lose  # type: ignore[attr-defined]
        self.transport.setTcpNoDelay = lambda on: None  # type: ignore[attr-defined]
        site: Any = console.service.site
        site.reactor = console.host.reactor
        self.channel = site.buildProtocol(IPv4Address("TCP", address, 5))
        self.open = self.channel is not None
        self.answer = b""
        if self.open:
            self.transport.protocol = self.channel
            self.channel.makeConnection(self.transport)
            cookie = "; ".join(f"{name}={value}" for name, value in console.cookies.items())
            cookies = {"Cookie": cookie} if cookie else {}
            self.send(request("/api/v1/live", {**LOCAL_HEADERS, **cookies, **(headers or {})}))
            self.answer = self.transport.value()
            self.transport.clear()

    @property
    def status(self) -> int:
        """Status of the answer to the request."""
        return int(self.answer.split()[1])

    def lose(self) -> None:
        """Close the connection without a close frame."""
        from twisted.internet.error import ConnectionDone
        from twisted.python.failure import Failure
        self.transport.protocol.connectionLost(Failure(ConnectionDone()))

    def send(self, data: bytes) -> None:
        """Send bytes to the console."""
        self.transport.protocol.dataReceived(data)

    def take_messages(self) -> list[dict[str, Any]]:
        """Return the messages received since the last call."""
        found = [json.loads(payload) for opcode, payload in self.take() if opcode != CLOSE]
        for message in found:
            if "snapshot" in message:
                self.document = message["snapshot"]
            elif "patch" in message:
                self.document = apply_patch(self.document, message["patch"])
        return found

    def take(self) -> list[tuple[int, bytes]]:
        data = self.transport.value()
        self.transport.clear()
        return self.frames.feed(data)

    def closed_by(self) -> int:
        """Return the close code of the console; 0 = not closed."""
        return next((struct.unpack(">H", payload[:2])[0] for opcode, payload in self.take() if opcode == CLOSE), 0)


@pytest.fixture
def console(tmp_path: Path) -> ConsoleWorld:
    console = ConsoleWorld(tmp_path)
    console.world.domain("d")
    return console


@pytest.fixture
def guarded(tmp_path: Path) -> ConsoleWorld:
    return ConsoleWorld(tmp_path, {"users": list(users())})


def test_a_websocket_receives_a_snapshot_and_then_patches(console: ConsoleWorld) -> None:
    tab = FakeTab(console)
    assert tab.status == 101
    tab.send(text_frame(id=3, subscribe="cluster"))
    console.advance()
    (first,) = tab.take_messages()
    assert first["id"] == 3 and first["seq"] == 1 and first["snapshot"]["nodes"]["n1"]["state"] == "up"
    console.world.producer("bmq://d/q").post(b"x")
    for _ in range(12):
        console.advance(PERIOD_S)
    later = tab.take_messages()
    assert later and all("patch" in message for message in later)
    assert [message["seq"] for message in later] == list(range(2, 2 + len(later)))
    assert tab.document["queuesTop"]["order"] == ["bmq://d/q"]
    assert tab.document["queuesTop"]["rows"]["bmq://d/q"]["messages"] == 1
    assert len(later) <= 13  # one for each period


def test_subscriptions_of_queue_pages_and_single_queues_receive_updates(console: ConsoleWorld) -> None:
    for number in range(5):
        console.world.producer(f"bmq://d/q{number}").post(b"x")
    console.world.run()
    tab = FakeTab(console)
    tab.send(text_frame(id=1, subscribe="queues", sort="uri", order="asc", offset=1, limit=2))
    console.advance()
    tab.take_messages()
    assert tab.document["order"] == ["bmq://d/q1", "bmq://d/q2"] and tab.document["total"] == 5
    one = FakeTab(console)
    one.send(text_frame(id=1, subscribe="queue", uri="bmq://d/q4"))
    console.advance(PERIOD_S)
    console.advance()
    one.take_messages()
    assert one.document["messages"] == 1 and one.document["primary"] == "n1"
    none = FakeTab(console)
    none.send(text_frame(id=1, subscribe="queue", uri="bmq://d/none"))
    console.advance(PERIOD_S)
    console.advance()
    assert "There is no queue" in none.take_messages()[0]["error"]


def test_a_document_may_exceed_the_size_limit_of_received_messages(console: ConsoleWorld) -> None:
    for number in range(40):
        console.world.producer(f"bmq://d/q{number}").post(b"x")
    console.world.run()
    tab = FakeTab(console)
    tab.send(text_frame(id=1, subscribe="queues"))
    console.advance()
    assert len(tab.transport.value()) > 2 * MESSAGE_BYTES_MAX
    tab.take_messages()
    assert len(tab.document["order"]) == 40 and not console.host.failures


def test_a_closed_websocket_does_not_affect_other_websockets(console: ConsoleWorld) -> None:
    tab, other = FakeTab(console), FakeTab(console)
    for each in (tab, other):
        each.send(text_frame(id=1, subscribe="cluster"))
    console.advance()
    tab.send(frame(struct.pack(">H", 1000), CLOSE))
    other.take_messages()
    console.advance(PERIOD_S)
    console.advance()
    assert other.take_messages() and not console.host.failures


def test_without_subscriptions_no_queue_is_sampled(console: ConsoleWorld) -> None:
    tab = FakeTab(console)
    tab.send(text_frame(id=1, subscribe="cluster"))
    console.advance()
    tab.lose()
    for _ in range(100):
        console.advance(0.1)
    book = console.service.collector.local.book
    visited = book.visited
    for _ in range(100):
        console.advance(0.1)
    assert book.visited == visited and not console.service.hub.subscribers


def test_a_websocket_that_does_not_read_receives_no_more_patches(console: ConsoleWorld) -> None:
    tab, other = FakeTab(console), FakeTab(console)
    for each in (tab, other):
        each.send(text_frame(id=1, subscribe="cluster"))
    console.advance()
    tab.take_messages()
    tab.transport.producer.pauseProducing()  # type: ignore[union-attr]
    for _ in range(50):
        console.advance(PERIOD_S)
    assert tab.transport.value() == b"" and len(other.take_messages()) >= 49
    tab.transport.producer.resumeProducing()  # type: ignore[union-attr]
    console.advance(PERIOD_S)
    console.advance()
    assert len(tab.take_messages()) == 1
    console.advance(PERIOD_S)
    console.advance()
    tab.take_messages()
    other.take_messages()
    assert tab.document["at"] == other.document["at"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:2", "http://127.0.0.1:1.evil.example"])
def test_a_websocket_of_another_origin_is_refused(console: ConsoleWorld, origin: str) -> None:
    tab = FakeTab(console, {"Origin": origin})
    assert tab.status in (400, 403) and not console.service.hub.subscribers


def test_without_users_websockets_of_other_machines_are_refused(console: ConsoleWorld) -> None:
    assert FakeTab(console, address="10.0.0.5").status == 403
    assert FakeTab(console, {"Host": "evil.example", "Origin": "http://evil.example"}).status == 421
    assert FakeTab(console, {"X-Forwarded-For": "10.0.0.5"}).status == 403


def test_with_users_a_websocket_requires_a_login(guarded: ConsoleWorld) -> None:
    assert FakeTab(guarded).status == 401
    guarded.log_in("vera")
    assert FakeTab(guarded).status == 101
    assert FakeTab(guarded, {"Cookie": "bmq_session=forged.x"}).status == 401
    assert FakeTab(guarded, {"Origin": "http://evil.example"}).status == 403


def test_a_websocket_closes_when_its_login_expires(guarded: ConsoleWorld) -> None:
    guarded.log_in("vera")
    tab = FakeTab(guarded)
    tab.send(text_frame(id=1, subscribe="cluster"))
    guarded.advance()
    assert tab.take_messages()
    guarded.host.reactor.advance(3600.0)
    guarded.advance(PERIOD_S)
    guarded.advance()
    assert tab.closed_by() == ENDED


def test_a_websocket_closes_at_the_logout(guarded: ConsoleWorld) -> None:
    guarded.log_in("vera")
    tab = FakeTab(guarded)
    tab.send(text_frame(id=1, subscribe="cluster"))
    guarded.advance()
    tab.take_messages()
    guarded.ask("/logout", "POST", f"csrf={guarded.csrf}".encode(), {"Content-Type": "application/x-www-form-urlencoded"})
    guarded.advance(PERIOD_S)
    guarded.advance()
    assert tab.closed_by() == ENDED


@pytest.mark.parametrize("data", [frame(b"nonsense"), frame(b"[]"), frame(b"\xff\xfe", 2), frame(b"[" * 4000),
                                  text_frame(id=1)],
                         ids=["no JSON", "no object", "no text", "deep", "no topic"])
def test_an_invalid_websocket_message_is_answered_with_an_error(console: ConsoleWorld, data: bytes) -> None:
    tab = FakeTab(console)
    tab.send(data)
    assert tab.take_messages()[0]["error"]


def test_a_too_long_message_or_too_many_messages_close_the_websocket(console: ConsoleWorld) -> None:
    tab = FakeTab(console)
    tab.send(frame(b"x" * (MESSAGE_BYTES_MAX + 1)))
    assert not console.service.hub.subscribers or tab.transport.disconnecting
    tab = FakeTab(console)
    for _ in range(MESSAGES_PER_SECOND_MAX + 1):
        tab.send(text_frame(unsubscribe=1))
    assert tab.closed_by() == POLICY


def test_a_websocket_has_no_lifetime_limit(console: ConsoleWorld) -> None:
    """The lifetime of a WebSocket is not limited, unlike that of a request's connection."""
    tab = FakeTab(console)
    tab.send(text_frame(id=1, subscribe="cluster"))
    console.advance()
    tab.take_messages()
    for _ in range(3):
        console.host.reactor.advance(HTTP_CONNECTION_SECONDS_MAX)
    console.advance(PERIOD_S)
    assert tab.take_messages() and tab.transport.protocol is not tab.channel


def test_the_number_of_websockets_is_limited_below_that_of_connections(console: ConsoleWorld) -> None:
    tabs = [FakeTab(console) for _ in range(SUBSCRIBERS_MAX // 2)]  # of one user
    assert {tab.status for tab in tabs} == {101} and FakeTab(console).status == 503
    assert console.ask("/livez").status == 200
    assert SUBSCRIBERS_MAX + 30 <= HTTP_CONNECTIONS_MAX
    tabs[0].lose()
    assert FakeTab(console).status == 101


def test_closed_and_refused_websockets_are_not_counted_as_connections(console: ConsoleWorld) -> None:
    """A refused WebSocket is not counted either."""
    for _ in range(3):
        for each in [FakeTab(console) for _ in range(SUBSCRIBERS_MAX // 2)]:
            each.lose()
    refused = [FakeTab(console, {"Origin": "http://evil.example"}) for _ in range(HTTP_CONNECTIONS_MAX)]
    for each in refused:
        assert each.status == 403
        each.lose()
    assert console.service.site.connections == 0


def test_a_stopping_node_notifies_its_websockets(console: ConsoleWorld) -> None:
    tab = FakeTab(console)
    tab.send(text_frame(id=1, subscribe="cluster"))
    console.advance()
    tab.take_messages()
    console.host.reactor.advance(0.01)
    console.service.send_stop_result()
    console.advance()
    assert tab.take_messages()
    console.service.stop()
    assert tab.closed_by() == GOING_AWAY
