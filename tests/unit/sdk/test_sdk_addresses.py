"""Several addresses of a broker, some of them dead: every front connects, and a running session reconnects (RFC 8305).

A dead address is 127.0.0.2 with a full listen queue: the kernel ignores further attempts, as a firewall does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from kombu import Connection
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.interfaces import IHostnameResolver
from zope.interface import implementer  # type: ignore[import-untyped]

import bmqtwist.kombu  # noqa: F401 - registers the transport
from bmqtwist.cli.main import main
from bmqtwist.dialing import ATTEMPT_DELAY_S, CANDIDATES_MAX, Race, interleave
from bmqtwist.sdk import aio, blazingmq, simple, tx
from bmqtwist.sdk._adapters.dialing import ConnectFailed, connect_first
from bmqtwist.sdk.options import Address
from bmqtwist.testing import Broker

URI = "bmq://d/q"
PROMPT_S = 8.0  # an attempt at a dead address alone takes 15 s or more


@contextlib.contextmanager
def dead_address(port: int) -> Iterator[None]:
    """Listen at 127.0.0.2 with a full queue."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.2", port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.2", port))
        with socket.socket() as probe, pytest.raises(TimeoutError):
            probe.settimeout(0.3)
            probe.connect(("127.0.0.2", port))
        yield


class Names:
    """A resolver with the names of these tests."""

    def __init__(self, port: int) -> None:
        self._real = socket.getaddrinfo
        self.places = {"dead-first.test": ["127.0.0.2", "127.0.0.1"], "dead.test": ["127.0.0.2"], "live.test": ["127.0.0.1"],
                       "six.test": ["::1"], "mixed.test": ["::1", "127.0.0.2", "127.0.0.1"]}
        self.calls = 0

    def __call__(self, host: Any, port: Any, *arguments: Any, **more: Any) -> Any:
        self.calls += 1
        name = host.decode() if isinstance(host, bytes) else host
        if name not in self.places:
            return self._real(host, port, *arguments, **more)
        return [(socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "",
                 (each, port, 0, 0) if ":" in each else (each, port)) for each in self.places[name]]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Port of a broker at 127.0.0.1; at 127.0.0.2 it is dead."""
    with Broker() as broker:
        broker.domain("d")
        number = int(broker.listen().rpartition(":")[2])
        with dead_address(number):
            monkeypatch.setattr(socket, "getaddrinfo", Names(number))
            yield number


def post_aio(brokers: str) -> None:
    async def work() -> None:
        async with aio.Session(brokers) as session, session.open(URI, write=True) as queue:
            assert (await queue.post(b"x")).ok
    asyncio.run(work())


def post_simple(brokers: str) -> None:
    with simple.Session(brokers) as session, session.open(URI, write=True) as queue:
        queue.post(b"x")


def post_official(brokers: str) -> None:
    with blazingmq.Session(lambda event: None, broker=brokers) as session:
        session.open_queue(URI, write=True)


def post_kombu(brokers: str) -> None:
    with Connection(brokers.replace("tcp://", "bmq://")) as connection:
        connection.connect()


def post_command(brokers: str) -> None:
    result = CliRunner().invoke(main, ["produce", "-b", brokers, URI, "x"])
    assert result.exit_code == 0, result.output


def admin_command(brokers: str) -> None:
    result = CliRunner().invoke(main, ["admin", "-b", brokers, "CLUSTERS LIST"])
    assert result.exit_code == 0, result.output


FRONTS = {"aio": post_aio, "simple": post_simple, "official": post_official, "kombu": post_kombu, "produce": post_command,
          "admin": admin_command}


NAMES, SEVERAL_NAMES = ("dead-first.test", "mixed.test"), ("dead.test,live.test", "dead.test,dead-first.test")
ATTEMPTS = [(front, names) for front in FRONTS for names in (*NAMES, *SEVERAL_NAMES)
            if front != "kombu" or names in NAMES]  # kombu itself tries several URLs in turn


@pytest.mark.parametrize(("front", "names"), ATTEMPTS)
def test_a_dead_address_delays_a_front_by_a_fraction_of_a_second(port: int, front: str, names: str) -> None:
    begun = time.monotonic()
    FRONTS[front](",".join(f"tcp://{name}:{port}" for name in names.split(",")))
    assert time.monotonic() - begun < PROMPT_S


def test_a_running_session_reconnects_past_a_dead_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name has a second, dead address since the session started; it comes first."""
    with Broker() as broker:
        broker.domain("d")
        number = int(broker.listen().rpartition(":")[2])
        names = Names(number)
        monkeypatch.setattr(socket, "getaddrinfo", names)
        with dead_address(number), simple.Session(f"tcp://live.test:{number}") as session, \
                session.open(URI, write=True) as queue:
            queue.post(b"first")
            names.places["live.test"] = ["127.0.0.2", "127.0.0.1"]
            before, begun = names.calls, time.monotonic()
            assert broker.disconnect()
            queue.post(b"second")
            assert names.calls > before and time.monotonic() - begun < PROMPT_S


@implementer(IHostnameResolver)
class TwistedNames:
    """A resolver of Twisted with the names of these tests."""

    def __init__(self, port: int) -> None:
        self.places, self.calls = Names(port).places, 0

    def resolveHostName(self, receiver: Any, name: str, portNumber: int = 0, **more: Any) -> Any:
        self.calls += 1
        receiver.resolutionBegan(None)
        for host in self.places[name]:
            receiver.addressResolved(IPv4Address("TCP", host, portNumber))
        receiver.resolutionComplete()
        return receiver


def on_reactor(scenario: Callable[[Any, TwistedNames], Coroutine[Deferred[Any], Any, None]], port: int) -> None:
    """Run a scenario on a reactor with the names of these tests."""
    reactor: Any = EPollReactor()
    names, outcome = TwistedNames(port), list[Any]()

    def begin() -> None:
        deferred = Deferred.fromCoroutine(scenario(reactor, names)).addTimeout(60.0, reactor)
        deferred.addBoth(outcome.append).addBoth(lambda _: reactor.stop())
    reactor.installNameResolver(names)
    reactor.callWhenRunning(begin)
    reactor.run(installSignalHandlers=False)
    if outcome[0] is not None:
        outcome[0].raiseException()


@pytest.mark.parametrize("names", ["dead-first.test", "dead.test,live.test"])
def test_a_dead_address_does_not_delay_the_front_for_twisted(port: int, names: str) -> None:
    async def scenario(reactor: Any, _: TwistedNames) -> None:
        session = tx.Session(reactor, ",".join(f"tcp://{name}:{port}" for name in names.split(",")))
        await session.start()
        await session.stop()
    begun = time.monotonic()
    on_reactor(scenario, port)
    assert time.monotonic() - begun < PROMPT_S


def test_a_running_session_for_twisted_reconnects_past_a_dead_address() -> None:
    """As with the blocking front above."""
    async def scenario(reactor: Any, names: TwistedNames) -> None:
        session = tx.Session(reactor, f"tcp://live.test:{number}")
        await session.start()
        queue = await session.open(URI, write=True)
        assert (await queue.post(b"first")).ok
        names.places["live.test"] = ["127.0.0.2", "127.0.0.1"]
        before, begun = names.calls, time.monotonic()
        assert broker.disconnect()
        assert (await queue.post(b"second")).ok
        assert names.calls > before and time.monotonic() - begun < PROMPT_S
        await session.stop()

    with Broker() as broker:
        broker.domain("d")
        number = int(broker.listen().rpartition(":")[2])
        with dead_address(number):
            on_reactor(scenario, number)
        broker.assert_posted(URI, b"second")


def test_a_name_with_an_ipv6_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        number = listener.getsockname()[1]
        monkeypatch.setattr(socket, "getaddrinfo", Names(number))
        made, broker = connect_first([Address("dead.test", 1), Address("six.test", number)], 5.0)
        with made:
            assert made.getpeername()[:2] == ("::1", number) and broker.host == "six.test"


def test_the_error_names_each_reason_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    brokers = [Address("127.0.0.1", free), Address("127.0.0.3", free)]
    with pytest.raises(ConnectFailed, match="^Connection refused$") as raised:
        connect_first(brokers, 5.0)
    assert list(raised.value.causes) == brokers


# -- the race -----------------------------------------------------------------------------------------------------------


def started(race: Race[str], now: float) -> list[str]:
    found: list[str] = []
    take: Callable[[float], str | None] = race.take
    while (each := take(now)) is not None:
        found.append(each)
    return found


def test_attempts_start_one_after_the_other_or_when_one_fails() -> None:
    race = Race(["a", "b", "c", "d"])
    assert started(race, 10.0) == ["a"] and race.next_at == 10.0 + ATTEMPT_DELAY_S
    assert started(race, 10.1) == []
    race.on_failed("refused")
    assert started(race, 10.1) == ["b"]
    assert started(race, 10.1 + ATTEMPT_DELAY_S) == ["c"]
    assert started(race, 11.0) == ["d"] and race.next_at is None and not race.is_lost
    for reason in ("refused", "no route", "refused"):
        race.on_failed(reason)
    assert race.is_lost and race.reason == "refused; no route"


def test_a_race_waits_for_names_that_are_resolved_later() -> None:
    race = Race[str](resolving=2)
    assert not race.is_lost and race.next_at is None
    race.add([], "unknown")
    assert not race.is_lost
    race.add(["a"])
    assert started(race, 0.0) == ["a"] and not race.is_lost
    race.on_failed("refused")
    assert race.is_lost and race.reason == "unknown; refused"


def test_the_number_of_candidates_is_bounded_and_families_alternate() -> None:
    race = Race(map(str, range(1000)))
    assert len([race.take(float(now)) for now in range(1000) if race.next_at is not None]) == CANDIDATES_MAX
    found = [(6, "a"), (6, "b"), (6, "a"), (4, "c"), (4, "d"), (6, "e")]
    assert interleave(found) == [(6, "a"), (4, "c"), (6, "b"), (4, "d"), (6, "e")]
    assert interleave([]) == []
