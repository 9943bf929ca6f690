"""HTTP connections in memory, with the parsers of twisted.web and the scheduler of the broker: places, time, work."""

from __future__ import annotations

import json
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from kit.console import ConsoleWorld
from kit.site import SiteConnection, SiteWorld

from bmqtwist.limits import (
    HTTP_ACTION_BYTES_MAX,
    HTTP_BODY_BYTES_MAX,
    HTTP_CONNECTION_SECONDS_MAX,
    HTTP_CONNECTIONS_MAX,
    HTTP_INPUT_BYTES_MAX,
    HTTP_REQUEST_SECONDS_MAX,
    HTTP_URI_BYTES_MAX,
)
from bmqtwist.loop.scheduler import Priority

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def world() -> SiteWorld:
    return SiteWorld()


# -- work in a turn ---------------------------------------------------------------------------------------------------


def test_nothing_is_parsed_or_answered_outside_of_a_turn(world: SiteWorld) -> None:
    """The event loop receives all chunks of a round before the broker's turn."""
    connection = SiteConnection(world)
    assert connection.send(LIVEZ) == b"" and not world.pages.rendered
    world.host.turn()
    assert world.pages.rendered == [b"/livez"]


def test_pipelined_requests_of_a_turn_are_limited_by_the_budget(world: SiteWorld) -> None:
    """A request takes a millisecond here, the budget of a turn, from however many connections they come."""
    connections = [SiteConnection(world) for _ in range(10)]
    render = world.pages.render

    def slow(request: Any) -> Any:
        world.host.seconds += 0.001
        return render(request)
    world.pages.render = slow  # type: ignore[method-assign]
    for each in connections:
        each.send(LIVEZ * 100)
    most = 0
    for _ in range(200):
        before = len(world.pages.rendered)
        world.host.turn()
        most = max(most, len(world.pages.rendered) - before)
    assert most == 1 and len(world.pages.rendered) >= 190


def test_connections_take_turns(world: SiteWorld) -> None:
    """One with very many requests does not delay the others."""
    first, second = SiteConnection(world), SiteConnection(world)
    render = world.pages.render

    def slow(request: Any) -> Any:
        world.host.seconds += 0.001
        return render(request)
    world.pages.render = slow  # type: ignore[method-assign]
    first.send(LIVEZ * 300)
    second.send(LIVEZ)
    for _ in range(4):
        world.host.turn()
    assert second.transport.value().startswith(b"HTTP/1.1 200 ")


def test_requests_of_a_connection_are_answered_in_order(world: SiteWorld) -> None:
    connection = SiteConnection(world)
    connection.ask(b"".join(b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number for number in range(50)))
    assert world.pages.rendered == [b"/%d" % number for number in range(50)]


def test_a_request_waits_for_the_answer_to_the_previous_one(world: SiteWorld) -> None:
    connection = SiteConnection(world)
    connection.ask(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n" + LIVEZ)
    assert world.pages.rendered == [b"/wait"]
    world.pages.waiting[0].write(b"late")
    world.pages.waiting[0].finish()
    answer = connection.ask(b"")
    assert answer.count(b"HTTP/1.1 200 ") == 2 and world.pages.rendered == [b"/wait", b"/livez"]


def test_input_above_the_limit_is_not_read(world: SiteWorld) -> None:
    connection = SiteConnection(world)
    connection.send(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
    connection.send(LIVEZ * (2 * HTTP_INPUT_BYTES_MAX // len(LIVEZ)))
    assert connection.transport.producerState == "paused"
    for _ in range(100):
        world.host.turn()
    assert connection.transport.producerState == "paused"
    world.pages.waiting[0].finish()
    connection.ask(b"")
    assert connection.transport.producerState == "producing"


def test_pipelined_requests_are_not_answered_while_the_client_does_not_read(world: SiteWorld) -> None:
    """Each answer would stay in memory."""
    connection = SiteConnection(world)
    connection.protocol.pauseProducing()  # by the transport: its buffer is full
    connection.ask(LIVEZ * 100)
    assert not world.pages.rendered
    connection.protocol.resumeProducing()
    connection.ask(b"")
    assert len(world.pages.rendered) == 100


def test_a_long_response_is_produced_while_the_client_reads(world: SiteWorld) -> None:
    connection, produced = SiteConnection(world), []

    def parts() -> Generator[bytes, None, None]:
        for number in range(5):
            produced.append(number)
            if number == 2:
                connection.protocol.pauseProducing()
            yield b"part"
    connection.ask(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
    connection.protocol.stream(parts())
    assert not produced
    connection.ask(b"")
    assert produced == [0, 1, 2]
    connection.protocol.resumeProducing()
    answer = connection.ask(LIVEZ)
    assert produced == [0, 1, 2, 3, 4] and answer.count(b"HTTP/1.1 200 ") == 1


def test_a_lost_connection_has_no_more_work(world: SiteWorld) -> None:
    connection = SiteConnection(world)
    connection.send(LIVEZ * 100)
    connection.transport.loseConnection()
    for _ in range(10):
        world.host.turn()
    assert not world.pages.rendered and not world.host.scheduler.has_job(Priority.HTTP, connection.protocol)
    assert world.site.connections == 0 and not world.host.reactor.getDelayedCalls()


# -- malformed and foreign requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [
    b"GET /%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: a=\xff\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b"nonsense\r\n",
    b"GET / HTTP/1.1\r\nA b: c\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: x\r\n\r\n"])
def test_malformed_requests_are_answered_with_400_and_logged_once_per_minute(world: SiteWorld, data: bytes) -> None:
    for _ in range(20):
        assert SiteConnection(world).ask(data).startswith(b"HTTP/1.1 400 ")
    assert world.host.report.texts("WARN") == ["#HTTP malformed requests are refused"] and not world.pages.rendered
    world.host.reactor.advance(61)
    SiteConnection(world).ask(data)
    assert world.host.report.texts("WARN")[1].endswith("more times in the last 61 s)") and not world.host.failures


@pytest.mark.parametrize("path", [b"/", b"/metrics", b"/livez"])
@pytest.mark.parametrize("host", [b"evil.example", b"127.0.0.1.evil.example", b"evil.example:80", b"[", b"a@localhost", b""])
def test_a_foreign_host_is_refused_at_every_path(world: SiteWorld, path: bytes, host: bytes) -> None:
    """A web page can send requests to its own name, which it resolves to the address of a console."""
    answer = SiteConnection(world).ask(b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 421 ") and not world.pages.rendered and b"http.hosts" in answer


@pytest.mark.parametrize("host", [b"localhost", b"localhost:80", b"127.0.0.1:1", b"10.1.2.3", b"[::1]:80", b"[fe80::1]",
                                  b"console.example:443", b"n1", b"N1:8080"])
def test_own_names_and_addresses_are_accepted(world: SiteWorld, host: bytes) -> None:
    assert SiteConnection(world).ask(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_a_request_without_host_is_accepted(world: SiteWorld) -> None:
    """Probes of HTTP/1.0 send none, browsers always send one."""
    assert SiteConnection(world).ask(b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 ")


def test_an_exception_is_answered_without_details(world: SiteWorld) -> None:
    answer = SiteConnection(world).ask(b"GET /raise HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ") and b"secret" not in answer and b"<" not in answer
    assert world.host.failures[0].getErrorMessage() == "secret detail"


@pytest.mark.parametrize("head", [b"Content-Length: %d" % (HTTP_BODY_BYTES_MAX + 1), b"Transfer-Encoding: chunked",
                                  b"X-CSRF-Token: x\r\nContent-Length: %d" % (HTTP_ACTION_BYTES_MAX + 1)])
def test_a_large_request_body_is_refused_before_it_arrives(world: SiteWorld, head: bytes) -> None:
    connection = SiteConnection(world)
    answer = connection.ask(b"POST /livez HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ") and not connection.is_open


def test_the_fields_of_a_request_are_few(world: SiteWorld) -> None:
    """Thousands of them take milliseconds."""
    most = b"GET /?%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert SiteConnection(world).ask(most % (b"a=b&" * (HTTP_URI_BYTES_MAX // 4 - 1))).startswith(b"HTTP/1.1 200 ")
    assert SiteConnection(world).ask(most % (b"a=b&" * (HTTP_URI_BYTES_MAX // 4))).startswith(b"HTTP/1.1 400 ")
    connection, body = SiteConnection(world), b"a=b&" * (HTTP_ACTION_BYTES_MAX // 4)
    head = (b"POST /wait HTTP/1.1\r\nHost: localhost\r\nX-CSRF-Token: x\r\nContent-Length: %d\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n\r\n")
    connection.ask(head % len(body) + body)
    assert world.pages.waiting[0].args == {} and world.pages.waiting[0].content.read() == body


@pytest.mark.parametrize("path", ["/livez", "/none", "/"])
def test_no_answer_names_the_server_and_its_version(world: SiteWorld, path: str) -> None:
    answer = SiteConnection(world).ask(LIVEZ.replace(b"/livez", path.encode()))
    assert answer.startswith(b"HTTP/1.1 ") and b"\r\nserver:" not in answer.lower()


def test_a_small_request_body_is_ignored(world: SiteWorld) -> None:
    connection = SiteConnection(world)
    assert connection.ask(LIVEZ[:-2] + b"Content-Length: 3\r\n\r\nabc").startswith(b"HTTP/1.1 200 ") and connection.is_open


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 3000,
                                  b"GET / HTTP/1.1\r\nA: " + b"b" * 20000 + b"\r\n", b"GET /" + b"x" * 20000])
def test_headers_above_the_size_limit_close_the_connection(world: SiteWorld, data: bytes) -> None:
    connection = SiteConnection(world)
    connection.ask(data)
    assert not connection.is_open


# -- places and time --------------------------------------------------------------------------------------------------


def test_a_new_connection_takes_the_place_of_the_oldest_one_of_the_largest_address(world: SiteWorld) -> None:
    few = [SiteConnection(world, "10.0.0.2") for _ in range(4)]
    many = [SiteConnection(world, "10.0.0.1") for _ in range(HTTP_CONNECTIONS_MAX - 4)]
    probe = SiteConnection(world, "10.0.0.3")
    assert probe.ask(LIVEZ).startswith(b"HTTP/1.1 200 ")
    assert [each.is_open for each in many[:3]] == [False, True, True] and all(each.is_open for each in few)
    assert world.site.connections == HTTP_CONNECTIONS_MAX
    assert SiteConnection(world, "10.0.0.1").is_open and not many[1].is_open


def test_a_connection_with_a_request_in_progress_keeps_its_place(world: SiteWorld) -> None:
    busy = SiteConnection(world)
    busy.ask(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for _ in range(2 * HTTP_CONNECTIONS_MAX):
        SiteConnection(world)
    assert busy.is_open
    world.pages.waiting[0].finish()
    assert b" 200 " in busy.transport.value()
    for _ in range(HTTP_CONNECTIONS_MAX):
        SiteConnection(world)
    assert not busy.is_open


def test_connections_are_refused_while_all_places_have_requests_in_progress(world: SiteWorld) -> None:
    connections = [SiteConnection(world) for _ in range(HTTP_CONNECTIONS_MAX)]
    for each in connections:
        each.ask(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert not SiteConnection(world).is_open
    connections[0].transport.loseConnection()
    assert SiteConnection(world).is_open


def test_a_request_must_arrive_in_time_however_often_its_client_sends(world: SiteWorld) -> None:
    """A header line per second is no progress."""
    connection = SiteConnection(world)
    connection.ask(b"GET / HTTP/1.1\r\n")
    for _ in range(HTTP_REQUEST_SECONDS_MAX - 1):
        world.host.reactor.advance(1)
        connection.ask(b"A: b\r\n")
    assert connection.is_open
    world.host.reactor.advance(1)
    assert not connection.is_open and world.site.connections == 0


def test_the_time_of_a_request_begins_with_the_previous_response(world: SiteWorld) -> None:
    connection = SiteConnection(world)
    for _ in range(3):
        world.host.reactor.advance(HTTP_REQUEST_SECONDS_MAX - 1)
        assert connection.ask(LIVEZ)
    world.host.reactor.advance(HTTP_REQUEST_SECONDS_MAX)
    assert not connection.is_open


def test_a_connection_ends_after_its_longest_duration(world: SiteWorld) -> None:
    connection = SiteConnection(world)
    connection.ask(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
    world.host.reactor.advance(HTTP_CONNECTION_SECONDS_MAX - 1)
    assert connection.is_open
    world.host.reactor.advance(1)
    assert not connection.is_open


# -- the console of a broker ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [
    b"GET /login?next=//[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nOrigin: http://[\r\n\r\n",
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[\r\nContent-Length: 0\r\n\r\n",
    b"GET /api/v1/node HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: [\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\nX-Forwarded-Prefix: //[\r\n\r\n"])
def test_no_anonymous_request_causes_an_internal_error(tmp_path: Path, data: bytes) -> None:
    console = ConsoleWorld(tmp_path, {"localRole": "none"})
    world: Any = SiteWorld()
    world.site, world.host.turn = console.service.site, lambda: None
    answer = SiteConnection(world).ask(data)
    assert answer.startswith(b"HTTP/1.1 ") and not answer.startswith(b"HTTP/1.1 5")
    assert not console.host.failures and not console.world.report.texts("ERROR")


def test_the_names_of_the_console_are_those_of_machine_configuration_and_url(tmp_path: Path) -> None:
    site = ConsoleWorld(tmp_path, {"url": "https://ops.example/bmq", "hosts": ["Scrape.example"]}).service.site
    names = ("ops.example", "ops", "scrape.example", "localhost:80", socket.gethostname(), "127.0.0.1")
    assert all(site.serves(name) for name in names) and not site.serves("evil.example")


def test_the_short_status_is_made_of_counters(tmp_path: Path) -> None:
    console = ConsoleWorld(tmp_path)
    console.world.domain("d")
    producer = console.world.producer("bmq://d/q")
    for _ in range(3):
        producer.post(b"x")
    console.world.run()
    shown = json.loads(console.ask("/").text)
    assert shown["ready"] and (shown["domains"], shown["queues"], shown["messages"], shown["bytes"]) == (1, 1, 3, 3)
    (cluster,) = shown["clusters"]
    assert cluster["healthy"] and cluster["self"] == cluster["leader"] != "" and cluster["partitions"] == 2
