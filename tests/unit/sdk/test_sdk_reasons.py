"""Failed connections: their errors name the reason for each address, and attempts leave time for the next address."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import pytest
from kit.sdk_fronts_kit import FRONTS, Front
from kit.sdk_kit import Bench
from twisted.internet import error as twisted_errors

from bmqtwist.errors import Category
from bmqtwist.sdk import Result, SdkError, SessionOptions, aio, blazingmq, parse_brokers, simple
from bmqtwist.sdk._adapters.log import reason_of
from bmqtwist.sdk.blazingmq.exceptions import BrokerTimeoutError

DEADLINE = 30.0


def closed_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize(("error", "words"), [
    (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
    (socket.gaierror(-2, "Name or service not known"), "unknown host"),
    (ConnectionResetError(104, "Connection reset by peer"), "connection reset by peer"),
    (TimeoutError("timed out"), "no answer"),
    (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 9, 0, 0), [Errno 111] Connect call failed "
             "('127.0.0.1', 9)"), "connection refused"),
    (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "TLS: "),
    (twisted_errors.ConnectionRefusedError(osError=111), "connection refused"),
    (twisted_errors.DNSLookupError("no"), "unknown host"),
    (twisted_errors.ConnectionDone(), "closed by the broker"),
    (ValueError("other"), "other"), (ValueError(), "ValueError")])
def test_connection_errors_have_readable_reasons(error: Exception, words: str) -> None:
    assert reason_of(error).startswith(words)


def test_the_time_of_the_first_connection_is_divided_among_all_addresses() -> None:
    """The first address does not answer; the second is tried within the same timeout."""
    bench = Bench(SessionOptions(brokers=parse_brokers("tcp://hole:1,tcp://good:2"), connect_timeout_s=10.0,
                                 attempt_timeout_s=15.0))
    bench.silent.add("clientIdentity")
    bench.start()
    bench.advance(4.9)
    assert [each.address.host for each in bench.connects] == ["hole"] and bench.connects[0].timeout_s == 5.0
    bench.silent.clear()
    bench.advance(0.2)
    assert [each.address.host for each in bench.connects] == ["hole", "good"]
    assert bench.done["start"].result is Result.SUCCESS


def test_the_limit_of_rounds_applies_only_to_the_first_connection() -> None:
    options = SessionOptions(brokers=parse_brokers("tcp://a:1,tcp://b:2"), connect_rounds_max=1)
    bench = Bench(options)
    bench.up = False
    bench.start()
    assert [each.address.host for each in bench.connects] == ["a", "b"]
    assert bench.done["start"].result is Result.NOT_CONNECTED
    assert bench.done["start"].message == "tcp://a:1: connection refused; tcp://b:2: connection refused"
    bench = Bench(options).start()
    bench.cut_connection(up=False)
    bench.advance(100.0)
    assert len(bench.connects) > 5
    bench.restore_broker()
    assert bench.core.online


def test_a_start_refused_by_all_brokers_names_each_with_its_reason() -> None:
    bench = Bench(SessionOptions(brokers=parse_brokers("tcp://a:1,tcp://b:2")))
    bench.refuse["clientIdentity"] = Category.E_REFUSED
    bench.start()
    assert bench.done["start"].result is Result.REFUSED
    assert bench.done["start"].message == "tcp://a:1: refused; tcp://b:2: refused"


def test_a_start_without_a_response_names_the_broker() -> None:
    bench = Bench(SessionOptions(connect_timeout_s=3.0))
    bench.silent.add("clientIdentity")
    bench.start()
    bench.advance(3.0)
    assert bench.done["start"].result is Result.TIMEOUT
    assert bench.done["start"].message == "no connection within 3 s: tcp://localhost:30114: no answer"


@pytest.mark.parametrize("name", FRONTS)
def test_every_front_raises_with_the_reasons(name: str) -> None:
    front: Front = FRONTS[name]()
    front.broker.faults.kill("negotiation", times=100)

    async def scenario() -> None:
        with pytest.raises(SdkError, match=r"^TIMEOUT: no connection within 2 s: tcp://localhost:30114: .") as raised:
            await front.start(connect_timeout_s=2.0)
        assert raised.value.result is Result.TIMEOUT
    front.run(scenario)


def test_real_sockets_give_the_same_reasons() -> None:
    refused, unknown = f"tcp://127.0.0.1:{closed_port()}", "tcp://no-such-host.invalid:1"
    expected = f"{refused}: connection refused; {unknown}: unknown host"
    with pytest.raises(SdkError) as raised:
        simple.Session([refused, unknown], connect_rounds_max=1)
    assert raised.value.message == expected

    async def main() -> None:
        await aio.Session([refused, unknown], connect_rounds_max=1).start()
    import asyncio
    with pytest.raises(SdkError) as raised:
        asyncio.run(main())
    assert raised.value.message == expected


def test_the_official_interface_raises_with_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    address = f"tcp://127.0.0.1:{closed_port()}"
    with pytest.raises(BrokerTimeoutError, match=f"^Failed to start session: TIMEOUT: no connection .+{address}: "
                                                 "connection refused$"):
        blazingmq.Session(lambda event: None, broker=address, timeout=blazingmq.Timeouts(connect_timeout=0.2))


def test_tls_to_a_port_without_tls_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        import threading

        def answer() -> None:
            channel, _ = server.accept()
            with channel:
                channel.settimeout(DEADLINE)
                channel.sendall(b"no TLS here")
                channel.recv(1000)
        server.settimeout(DEADLINE)
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(SdkError, match=r"tls://127.0.0.1:\d+: TLS: "):
            simple.Session(f"tls://127.0.0.1:{server.getsockname()[1]}", connect_rounds_max=1)
        thread.join(DEADLINE)


def test_kombu_fails_at_once_for_a_refused_address() -> None:
    """kombu then tries the next address of its list."""
    from kombu import Connection

    from bmqtwist.kombu import LinkLost
    connection = Connection(f"bmq://127.0.0.1:{closed_port()}/d", connect_timeout=4)
    began = time.monotonic()
    with pytest.raises(LinkLost, match="connection refused"):
        connection.transport.establish_connection()
    assert time.monotonic() - began < 2.0
