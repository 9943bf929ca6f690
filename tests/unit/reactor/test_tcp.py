"""Twisted protocol of a connection, over transports that send slowly, stop reading, or are closed."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
from kit.connections import Driver, Tls, Transport, connect

from bmqtwist.limits import TRANSPORT_BYTES_MAX
from bmqtwist.reactor.tcp import CLOSE_TIMEOUT_S
from bmqtwist.wire.fast import EventType, event_header


def test_a_connection_reports_its_peer_and_passes_on_received_bytes() -> None:
    transport, driver = Transport(), Driver()
    session = driver.session = SimpleNamespace(remote=SimpleNamespace(sends_at_once=False), delays_acks=False)
    connect(transport, driver)[0].dataReceived(b"abc")
    assert driver.calls == [("connected", "127.0.0.1:5", 30114), ("received", session, b"abc")] and transport.no_delay


def test_a_quick_tcp_ack_is_requested_before_the_input_is_processed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "TCP_QUICKACK", 12, raising=False)  # also on kernels without this option
    transport = Transport()
    quickacks = transport.socket.options
    driver = Driver()
    session = driver.session = SimpleNamespace(remote=SimpleNamespace(sends_at_once=False), delays_acks=False)
    connection, _ = connect(transport, driver)
    seen: list[int] = []
    monkeypatch.setattr(driver, "on_received", lambda session, data: seen.append(len(quickacks)))
    connection.dataReceived(b"abc")
    connection.dataReceived(b"def")
    assert quickacks == 2 * [(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)] and seen == [1, 2]
    session.remote.sends_at_once = True  # another broker, with TCP_NODELAY
    connection.dataReceived(b"ghi")
    assert seen == [1, 2, 2]


def put_event(body: bytes) -> bytes:
    return event_header(EventType.PUT, len(body)) + body


@pytest.mark.parametrize("data, quickacks", [
    (put_event(b"x" * 100), 0), (put_event(b""), 0), (put_event(b"x" * 4088), 0),
    (put_event(b"x" * 4089), 1),  # the peer has more than fits into a packet
    (put_event(b"x") + put_event(b"y"), 1), (put_event(b"x" * 100)[:-1], 1), (b"abc", 1)])  # it delayed or delays messages
def test_a_small_event_gets_no_quick_tcp_ack_if_the_last_one_was_answered_at_once(
        monkeypatch: pytest.MonkeyPatch, data: bytes, quickacks: int) -> None:
    monkeypatch.setattr(socket, "TCP_QUICKACK", 12, raising=False)
    transport, driver = Transport(), Driver()
    driver.session = SimpleNamespace(remote=SimpleNamespace(sends_at_once=False), delays_acks=False)
    connection, _ = connect(transport, driver)
    assert not connection.outgoing.answered_at_once
    connection.dataReceived(data)
    assert len(transport.socket.options) == 1
    connection.outgoing.answered_at_once = True
    connection.dataReceived(data)
    assert len(transport.socket.options) == 1 + quickacks


def test_a_refused_connection_is_aborted_without_further_events() -> None:
    transport = Transport()
    connection, driver = connect(transport, Driver(accepts=False))
    connection.dataReceived(b"abc")
    connection.connectionLost()
    assert transport.aborted and [what for what, *_ in driver.calls] == ["connected"]


def test_the_output_of_a_turn_is_one_write_to_the_socket() -> None:
    transport = Transport()
    connection, _ = connect(transport)
    assert connection.write([b"ab", b"c"]) == 3
    assert transport.direct == [b"abc"] and not transport.later and connection.waiting_bytes == 0


@pytest.mark.parametrize("room", [0, 2])
def test_unsent_output_is_kept_in_the_transport_in_order(room: int) -> None:
    transport = Transport(room)
    connection, driver = connect(transport)
    assert connection.write([b"abcde"]) == 5 and connection.waiting_bytes == 5 - room
    assert connection.write([b"fg"]) == 2 and connection.waiting_bytes == 7 - room
    assert b"abcdefg".startswith(transport.everything) and len(transport.direct) == 1
    assert transport.producer is connection and transport.streaming is False
    connection.resumeProducing()
    assert transport.everything == b"abcdefg" and connection.waiting_bytes == 2 and driver.calls[-1][0] == "connected"
    connection.resumeProducing()
    assert transport.producer is None and connection.waiting_bytes == 0 and driver.calls[-1] == ("drained", "session")
    transport.room = None
    connection.write([b"h"])
    assert transport.everything.endswith(b"h") or transport.direct[-1] == b"h"


@pytest.mark.parametrize("kind", [Transport, Tls])
def test_the_waiting_bytes_of_a_steady_reader_are_those_unread_at_present(kind: type[Transport]) -> None:
    """A steady reader with some unread output at all times: each second it reads as much as is written."""
    transport = kind(0)
    connection, driver = connect(transport)
    whole = write = b"x" * TRANSPORT_BYTES_MAX
    if kind is Tls:
        transport.write = lambda data: (transport.later.append(data), connection.pauseProducing())[0]  # type: ignore
    connection.write([whole, b"y"])
    for turn in range(100):
        connection.resumeProducing()
        write = bytes([turn]) * TRANSPORT_BYTES_MAX
        whole += write
        connection.write([write])
        assert connection.waiting_bytes <= 2 * TRANSPORT_BYTES_MAX + 1
        assert connection.drained_bytes >= turn * TRANSPORT_BYTES_MAX
    assert driver.calls[-1][0] == "connected", "its output was not drained"
    connection.finish()
    assert len(transport.everything) == len(whole) + 1 and transport.everything.replace(b"y", b"", 1) == whole


def test_resume_producing_without_unsent_output_reports_no_event() -> None:
    connection, driver = connect(Transport())
    connection.resumeProducing()
    assert [what for what, *_ in driver.calls] == ["connected"]


def test_a_write_error_of_the_socket_is_left_to_the_transport() -> None:
    transport = Transport()
    connection, _ = connect(transport)
    transport.lost = True
    assert connection.write([b"abc"]) == 3 and transport.later == [b"abc"]


def test_reading_paused_by_the_broker_resumes_when_all_output_is_sent() -> None:
    transport = Transport(0)
    connection, _ = connect(transport)
    connection.write([b"abc"])
    connection.read(False)
    connection.read(False)
    assert transport.producerState == "paused"
    connection.resumeProducing()
    assert transport.producerState == "producing"


def test_a_close_follows_the_output_and_aborts_a_lingering_peer() -> None:
    transport = Transport(1)
    connection, driver = connect(transport)
    connection.write([b"abc"])
    connection.finish()
    assert transport.disconnecting and transport.producer is None
    ((seconds, abort),) = driver.delayed
    assert seconds == CLOSE_TIMEOUT_S
    abort()
    assert transport.aborted
    connection.connectionLost()
    assert driver.calls[-1] == ("lost", "session") and connection.waiting_bytes == 0


def test_a_peer_that_closes_in_time_is_not_aborted() -> None:
    transport = Transport()
    connection, driver = connect(transport)
    connection.finish()
    connection.connectionLost()
    driver.delayed[0][1]()
    connection.finish()
    connection.read(False)
    connection.dataReceived(b"late")
    assert not transport.aborted and driver.calls[-1] == ("lost", "session") and len(driver.delayed) == 1


def test_over_tls_all_output_is_written_to_the_transport() -> None:
    transport = Tls()
    connection, driver = connect(transport)
    assert transport.producer is connection and transport.streaming is True
    connection.write([b"a", b"b"])
    assert transport.later == [b"ab"] and connection.waiting_bytes == 0
    connection.pauseProducing()
    connection.write([b"cd"])
    assert connection.waiting_bytes == 2
    connection.resumeProducing()
    assert transport.later == [b"ab", b"cd"]
    assert connection.waiting_bytes == 0 and transport.producer is connection and driver.calls[-1][0] == "drained"
    connection.finish()
    assert transport.producer is None and transport.disconnecting
