"""A broker in this process, for tests: no files, no port unless one is asked for, a clock that can be moved.

    broker = Broker()
    async with broker.session() as session: ...                     asyncio
    session = broker.tx_session(clock)                              Twisted
    with broker.blocking_session() as session: ...                  plain blocking calls
    url = broker.listen()                                           everybody else

It is the real broker with its disk in memory and without a reactor. Whatever a client sends has been dealt with when
its write returns; the answers reach it through its own loop.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from bmqtwist.node.config import Configuration
from bmqtwist.node.timers import Timers
from bmqtwist.testing import stored
from bmqtwist.testing.clock import Clock
from bmqtwist.testing.config import (
    DomainTable,
    broker_config,
    clusters_config,
    configuration,
    plain_domain,
    sample_domains,
)
from bmqtwist.testing.events import Confirm, Note, Post
from bmqtwist.testing.faults import Fault, Faults
from bmqtwist.testing.link import Link, Sink
from bmqtwist.testing.node import Node
from bmqtwist.testing.recorder import Recorder
from bmqtwist.testing.stored import Stored

if TYPE_CHECKING:
    import asyncio

    from bmqtwist.sdk import aio, simple, tx
    from bmqtwist.sdk import blazingmq as official
    from bmqtwist.sdk.pump import Pump, PumpFactory
    from bmqtwist.testing.aio import LoopDriver
    from bmqtwist.testing.port import Port
    from bmqtwist.testing.tx import ReactorDriver
    from bmqtwist.wire.properties import PropertyType

Mode = Literal["priority", "fanout", "broadcast"]
_JOURNAL_BYTES, _DATA_BYTES, _QLIST_BYTES = 2 << 20, 96 << 20, 256 << 10  # of storage files; small ones start quickly
_HEARTBEATS = {"client": 10, "downstreamBroker": 10, "upstreamBroker": 10, "clusterPeer": 10}  # missed, of 3 s each
_PORT = 30114  # nobody listens there; it only has to be named
_ADVANCE_STEPS_MAX = 1000  # of one jump of the clock: housekeeping may come late, but in order


class Unmet(AssertionError):
    """Something that a test asserted of a broker is not so; the text ends in the transcript."""


class Driver(Protocol):
    """What wakes the broker on somebody's event loop."""

    @property
    def over(self) -> bool:
        """Is the loop closed?"""
        ...

    def arm(self, seconds: float | None) -> None:
        """Call `Broker.run` after so many seconds; None = there is nothing to do."""


class Broker:
    """One broker. `clock()` is its time in seconds; `faults` and `recorder` concern all its connections.

    Ready when made: the domains `bmq.test.mem.{priority,fanout,broadcast}` and `bmq.test.persistent.{priority,fanout}`
    (and their `.sc` variants) are those of the sample configuration. Calls from several threads are safe.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.clock = Clock()
        self.began = self.clock()
        self.recorder = Recorder()
        self.faults = Faults(self._fault_ended)
        self.up = False
        self._table = DomainTable()
        self._timers = Timers()
        self._links: dict[Link, None] = {}
        self._drivers: dict[Any, Driver] = {}
        self._names: dict[str, str] = {}
        self._ports = 0
        self._port: Port | None = None
        self._running = False
        self._changed = threading.Condition(self.lock)
        self._waiters: list[Callable[[], None]] = []
        self.node = Node(_default_configuration, lambda _: self._table)
        self._table.texts.update(sample_domains())
        self.start()

    # -- domains ----------------------------------------------------------------------------------------------------

    def domain(self, name: str, mode: Mode = "priority", *, app_ids: tuple[str, ...] | list[str] = (),
               in_memory: bool = False, max_messages: int | None = None, max_bytes: int | None = None,
               max_delivery_attempts: int = 0, ttl: float = 3600, subscriptions: Mapping[str, str] | None = None,
               consistency: Literal["eventual", "strong"] = "eventual", **parameters: Any) -> str:
        """Make a domain, or change one; its name.

        `app_ids`: of a fanout domain. `max_messages`, `max_bytes`: of each queue; the message that exceeds them is
        still taken, the next one refused. `max_delivery_attempts`: 0 = no limit. `ttl`: seconds. `subscriptions`:
        expression by appId ("" for a domain that is no fanout). `parameters`: other members of a domain's file, by their
        names there (`deduplicationTimeMs`, `maxConsumers`, ...). LocalError if the broker would not take the domain.
        """
        text = plain_domain(name, mode, app_ids=app_ids, in_memory=in_memory, max_messages=max_messages,
                            max_bytes=max_bytes, max_delivery_attempts=max_delivery_attempts, ttl=ttl,
                            subscriptions=subscriptions, consistency=consistency, **parameters)
        with self.lock:
            before = self._table.texts.get(name)
            self._table.texts[name] = text
            if self.up:
                self._tick_node()
                try:
                    self.node.broker.reconfigure(name)
                except BaseException:
                    self.node.broker.provider.forget(name)
                    self._table.texts.pop(name)
                    if before is not None:
                        self._table.texts[name] = before
                    raise
                self.node.due = True
                self.run()
        return name

    # -- sessions ---------------------------------------------------------------------------------------------------

    def session(self, *, name: str = "", **options: Any) -> aio.Session:
        """An asyncio session with this broker; options as of `bmqtwist.sdk.aio.Session`."""
        from bmqtwist.sdk import aio
        return aio.Session(connect=self.connector(name), **options)

    def tx_session(self, reactor: Any, *, name: str = "", **options: Any) -> tx.Session:
        """A Twisted session with this broker; options as of `bmqtwist.sdk.tx.Session`. `reactor` may be a
        `twisted.internet.task.Clock`."""
        from bmqtwist.sdk import tx
        return tx.Session(reactor, endpoint=self.endpoint(reactor, name), **options)

    def blocking_session(self, *, name: str = "", **options: Any) -> simple.Session:
        """A blocking session with this broker; options as of `bmqtwist.sdk.simple.Session`. Waiting takes no real time
        while the broker's clock is virtual."""
        from bmqtwist.sdk import simple
        return simple.Session(pump=self.pump(name), **options)

    def official_session(self, on_session_event: Callable[[Any], None],
                         on_message: Callable[[Any, Any], None] | None = None, *, name: str = "",
                         **options: Any) -> official.Session:
        """A session of `bmqtwist.sdk.blazingmq` with this broker; options as of that. It has threads, so the broker's
        clock runs with the machine's from now on."""
        from bmqtwist.sdk import blazingmq as official
        pump = partial(self._threaded_pump, name=name)
        made = type("Session", (official.Session,), {"_make_pump": staticmethod(pump)})
        return made(on_session_event, on_message, **options)  # type: ignore[no-any-return]

    def connector(self, name: str = "") -> aio.Connector:
        """What `bmqtwist.sdk.aio.Session(connect=...)` wants: every address leads here. `name`: as of `connect`."""
        import asyncio

        from bmqtwist.testing.aio import MemoryTransport

        async def connect(make_protocol: Callable[[], asyncio.Protocol], address: object,
                          tls: object) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
            protocol = make_protocol()
            transport = MemoryTransport(self, self.loop_driver(asyncio.get_running_loop()), protocol)
            transport.open(name)
            return transport, protocol
        return connect

    def endpoint(self, reactor: Any, name: str = "") -> tx.MakeEndpoint:
        """What `bmqtwist.sdk.tx.Session(endpoint=...)` wants: every address leads here. `name`: as of `connect`."""
        from bmqtwist.testing.tx import endpoints
        return endpoints(self, name, reactor)

    def pump(self, name: str = "") -> PumpFactory:
        """What `bmqtwist.sdk.simple.Session(pump=...)` wants. `name`: as of `connect`."""
        from bmqtwist.testing.pump import MemoryPump
        return partial(MemoryPump, self, name)

    def _threaded_pump(self, *arguments: Any, name: str = "") -> Pump:
        self.clock.follow_machine()
        return self.pump(name)(*arguments)

    def listen(self, port: int = 0) -> str:
        """Take TCP connections at 127.0.0.1, too; the address `tcp://127.0.0.1:PORT`. The broker's clock runs with the
        machine's from now on. OSError if the port is taken."""
        from bmqtwist.testing.port import Port
        if self._port is None:
            self.clock.follow_machine()
            self._port = Port(self, port)
        return self._port.url

    @contextlib.contextmanager
    def intercept(self) -> Iterator[Self]:
        """Within the `with` block every session of `bmqtwist.sdk` that is made connects to this broker, whatever
        address it is given."""
        from unittest import mock

        from bmqtwist.sdk import aio, simple, tx
        from bmqtwist.sdk import blazingmq as official

        def endpoint(session: Any, address: Any) -> Any:
            return self.endpoint(session.reactor)(address)
        with contextlib.ExitStack() as stack:
            for front, changes in ((aio.Session, {"connect": self.connector()}), (simple.Session, {"pump": self.pump()})):
                stack.enter_context(mock.patch.dict(front.__init__.__kwdefaults__, changes))
            stack.enter_context(mock.patch.object(official.Session, "_make_pump", staticmethod(self._threaded_pump)))
            stack.enter_context(mock.patch.object(tx.Session, "_hostname_endpoint", endpoint))
            yield self

    def connect(self, name: str, sink: Sink) -> Link:
        """A connection; whoever has an event loop of his own hands in a Sink. ConnectionRefusedError if the broker is
        down or a fault says so. `name` is what faults and the recorder call it; "" = client1, client2, ... in the order of
        their first negotiation."""
        with self.lock:
            if not self.up or not self.node.broker.serving:
                raise ConnectionRefusedError("the broker is down")
            if self.faults.find("connection", name):
                self.note("connection refused by the test", name)
                raise ConnectionRefusedError("refused by the test")
            self._tick_node()
            link = Link(self, name, sink)
            self._links[link] = None
            if name:
                self.note("connected", name)
            return link

    def disconnect(self, client: str | None = None) -> int:
        """Cut the connections (of one client), as a network does; how many."""
        with self.lock:
            self._tick_node()
            links = [link for link in self._links if client in (None, link.name)]
            for link in links:
                link.cut("cut by the test")
            self.run()
            return len(links)

    @property
    def clients(self) -> list[str]:
        """Names of those who are connected."""
        return [link.name for link in self._links]

    # -- messages without a client ----------------------------------------------------------------------------------

    def put(self, uri: str, payload: bytes, properties: Mapping[str, object] | None = None,
            types: Mapping[str, PropertyType] | None = None, *, compress: bool = False) -> bytes:
        """Put a message into a queue, which is created if need be; its GUID, 16 bytes. Types of properties as of
        `Queue.post`. LocalError if the queue does not take it."""
        with self.lock:
            self._tick_node()
            content = stored.put(self.node, uri, payload, properties, types, compress)
            self.note(f"put       {content.uri} {content.guid.hex().upper()} {content.content}")
            self.run()
            return content.guid

    def messages(self, uri: str) -> list[Stored]:
        """What is outstanding in a queue (with `?id=`: for that app), oldest first."""
        with self.lock:
            self._tick_node()
            return stored.messages(self.node, uri, self.began)

    def drain(self, uri: str) -> list[Stored]:
        """Take everything out of a queue (with `?id=`: for that app), delivered or not; what it was."""
        with self.lock:
            self._tick_node()
            found = stored.drain(self.node, uri, self.began)
            if found:
                self.note(f"drained   {uri}: {len(found)}")
            self.run()
            return found

    def admin(self, command: str) -> str:
        """Run an admin command; the answer's text."""
        with self.lock:
            self._tick_node()
            answer = self.node.broker.admin(command, "test")
            self.node.due = True
            self.run()
            return answer

    def log(self) -> list[str]:
        """The broker's log, severity before the text."""
        return self.node.log()

    # -- assertions -------------------------------------------------------------------------------------------------

    def assert_posted(self, uri: str, payload: bytes | None = None, properties: Mapping[str, object] | None = None, *,
                      count: int | None = None, client: str | None = None) -> list[Post]:
        """Posts to the queue with that payload and at least those properties: `count`, or at least one. Those."""
        __tracebackhide__ = True
        found = [post for post in self.recorder.posts(uri, client) if post.matches(payload, properties)]
        wanted = "at least one post" if count is None else f"{count} post(s)"
        self._check(len(found) == count if count is not None else bool(found),
                    f"{uri}: {wanted} like that expected, {len(found)} made")
        return found

    def assert_confirmed(self, uri: str, count: int | None = None, *, client: str | None = None) -> list[Confirm]:
        """`count` messages of the queue (of the app) are confirmed; without it all that were delivered, at least one."""
        __tracebackhide__ = True
        found = self.recorder.confirms(uri, client)
        guids = {(confirm.app, confirm.guid) for confirm in found}
        delivered = {(delivery.app, delivery.guid) for delivery in self.recorder.deliveries(uri, client)}
        if count is None:
            self._check(bool(delivered) and delivered <= guids,
                        f"{uri}: {len(delivered)} message(s) delivered, {len(delivered & guids)} of them confirmed")
        else:
            self._check(len(guids) == count, f"{uri}: {count} message(s) expected to be confirmed, {len(guids)} are")
        return found

    def assert_empty(self, uri: str) -> None:
        """Nothing is outstanding in the queue (for the app)."""
        __tracebackhide__ = True
        left = self.messages(uri)
        self._check(not left, f"{uri} holds {len(left)} message(s):\n" + "\n".join(map(str, left[:20])))

    def _check(self, good: bool, complaint: str) -> None:
        __tracebackhide__ = True
        if not good:
            raise Unmet(f"{complaint}\n\n{self.recorder.transcript()}")

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start again after `stop` or `crash`, with what is on the disk."""
        with self.lock:
            if not self.up:
                self.node.now = self.clock()
                self.node.start()
                self.up = True
                self.note("broker started")
                self.run()

    def stop(self) -> None:
        """Stop gracefully: up to some seconds of the broker's clock for consumers that hold messages."""
        with self.lock:
            if self.up:
                self.note("broker stops")
                self._tick_node()
                self.node.stop()
                self.clock.reach(self.node.now)
                self.up = False
                for link in list(self._links):
                    link.abandon("the broker stopped")
                self.run()

    def crash(self) -> None:
        """The machine loses power: connections break, and what was not durable is lost. What was acknowledged is
        durable, unless its domain is in memory."""
        with self.lock:
            if self.up:
                self.note("broker crashes")
                self.up = False
                for link in list(self._links):
                    link.abandon("the broker crashed")
                self.node.disk.crash()
                self.run()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def close(self) -> None:
        """The end: connections are cut, a port is closed."""
        port, self._port = self._port, None
        with self.lock:
            self.faults.clear()
            self.crash()
            self._drivers.clear()
        if port is not None:
            port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- time -------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let the broker's clock jump: messages expire, consumers are given up, delayed bytes arrive. The clocks of
        clients do not notice."""
        with self.lock:
            step = seconds / _ADVANCE_STEPS_MAX
            target = self.clock() + seconds
            while (deadline := self.next_deadline()) is not None and deadline < target:
                self.clock.reach(min(target, max(deadline, self.clock() + step)))
                self._nobody_is_silent()
                self.run()
            self.clock.reach(target)
            self._nobody_is_silent()
            self.run()

    def _nobody_is_silent(self) -> None:
        """Clients that could not know that time has passed are not missing a heartbeat."""
        for link in self._links:
            link.session.last_received, link.session.missed_heartbeats = self.clock(), 0

    def jump(self, seconds: float | None) -> float:
        """Let the clock jump to when the broker has something to do next, at most so many seconds; how many."""
        with self.lock:
            now, deadline = self.clock(), self.next_deadline()
            passed = max(0.0, min(each for each in (seconds, deadline and deadline - now, 1.0) if each is not None))
            self.clock.advance(passed)
            self.run()
            return passed

    def next_deadline(self) -> float | None:
        """When there is something to do next, on the broker's clock."""
        moments = [self._timers.next_at, self.node.broker.next_deadline() if self.up else None]
        return min((moment for moment in moments if moment is not None), default=None)

    async def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait until a condition is true; it is asked whenever something happened at the broker. AssertionError with the
        transcript after `timeout_s` seconds of the event loop."""
        import asyncio

        from bmqtwist.testing.aio import settle
        loop = asyncio.get_running_loop()
        driver = self.loop_driver(loop)
        end = loop.time() + timeout_s
        while not condition():
            changed = loop.create_future()

            def wake(changed: asyncio.Future[None] = changed) -> None:
                driver.soon(settle, changed)
            self._waiters.append(wake)
            try:
                await asyncio.wait_for(changed, end - loop.time())
            except TimeoutError:
                self._check(bool(condition()), f"not so within {timeout_s:g} s: {condition}")
            finally:
                self._waiters.remove(wake)

    def wait_until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """The same for tests without an event loop whose clients are threads or processes: blocks up to `timeout_s`
        seconds."""
        with self.lock:
            so = self._changed.wait_for(condition, timeout_s)
        self._check(bool(so), f"not so within {timeout_s:g} s: {condition}")

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Let the broker do what is due."""
        with self.lock:
            if self._running:
                return
            self._running = True
            try:
                while True:
                    self._tick_node()
                    self._timers.run(self.node.now)
                    if self.up:
                        deadline = self.node.broker.next_deadline()
                        if deadline is not None and deadline <= self.node.now:
                            self.node.broker.tick(self.node.now)
                            self.node.due = True
                        self.node.run()
                    due = self.next_deadline()
                    if due is None or due > self.node.now:
                        break
            finally:
                self._running = False
            self._changed.notify_all()
            for wake in list(self._waiters):
                wake()
            for key in [key for key, driver in self._drivers.items() if driver.over]:
                del self._drivers[key]
            for driver in self._drivers.values():
                driver.arm(None if due is None else due - self.clock())

    def _tick_node(self) -> None:
        self.node.now = max(self.node.now, self.clock())

    def at(self, when: float, action: Callable[[], None]) -> None:
        """From links: call it at a moment of the clock."""
        self._timers.at(when, lambda now: action())

    def loop_driver(self, loop: asyncio.AbstractEventLoop) -> LoopDriver:
        """What wakes the broker on an asyncio loop; its clock follows that of the loop from now on."""
        from bmqtwist.testing.aio import LoopDriver
        from bmqtwist.testing.loop import VirtualLoop
        with self.lock:
            driver = self._drivers.get(loop)
            if driver is None:
                virtual = isinstance(loop, VirtualLoop)
                if not self.clock.real or not virtual:
                    self.clock.follow(loop.time, not virtual)
                driver = self._drivers[loop] = LoopDriver(self, loop)
            return driver  # type: ignore[return-value]

    def reactor_driver(self, reactor: Any) -> ReactorDriver:
        """What wakes the broker on a reactor; its clock follows that of the reactor from now on."""
        from bmqtwist.testing.tx import ReactorDriver
        with self.lock:
            driver = self._drivers.get(reactor)
            if driver is None:
                virtual = not hasattr(reactor, "run")
                if not self.clock.real or not virtual:
                    self.clock.follow(reactor.seconds, not virtual)
                driver = self._drivers[reactor] = ReactorDriver(self, reactor)
            return driver  # type: ignore[return-value]

    def new_port(self) -> int:
        """From links: what a client's address ends in."""
        self._ports += 1
        return 40000 + self._ports % 20000

    def name_of(self, process: str) -> str:
        """From links: the name of a client that was given none, by how it introduces itself."""
        return self._names.setdefault(process, f"client{len(self._names) + 1}")

    def forget(self, link: Link, reason: str) -> None:
        """From links: it is closed."""
        self._links.pop(link, None)
        self.note(reason, link.name)

    def note(self, what: str, client: str = "") -> None:
        """Have it in the recorder."""
        self.recorder.add(Note(time=self.clock() - self.began, client=client, what=what))

    def _fault_ended(self, fault: Fault) -> None:
        with self.lock:
            if fault.action == "stall" and not self._running:
                self._tick_node()
                for link in list(self._links):
                    link.release()
                self.run()


@lru_cache(maxsize=1)
def _default_configuration() -> Configuration:
    storage = PurePosixPath("/memory/storage")
    return configuration(broker_config(storage, _PORT, heartbeats=_HEARTBEATS), clusters_config(
        storage, _PORT, 1, partition={"maxJournalFileSize": _JOURNAL_BYTES, "maxDataFileSize": _DATA_BYTES,
                                      "maxQlistFileSize": _QLIST_BYTES}))
