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
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from bmqtwist.ids import GuidGenerator
from bmqtwist.testing import stored
from bmqtwist.testing.config import plain_domain
from bmqtwist.testing.events import Confirm, Post
from bmqtwist.testing.runner import BrokerRunner
from bmqtwist.testing.stored import Stored

if TYPE_CHECKING:
    import asyncio

    from bmqtwist.sdk import aio, simple, tx
    from bmqtwist.sdk import blazingmq as official
    from bmqtwist.sdk.pump import Pump, PumpFactory
    from bmqtwist.testing.port import Port
    from bmqtwist.wire.properties import PropertyType

Mode = Literal["priority", "fanout", "broadcast"]
_ASK_FIRST_S, _ASK_S_MAX = 0.01, 1.0  # how often conditions are asked when nothing happens at the broker


class Unmet(AssertionError):
    """Something that a test asserted of a broker is not so; the text ends in the transcript."""


class Broker:
    """One broker. `clock()` is its time in seconds; `faults` and `recorder` concern all its connections.

    Ready when made: the domains `bmq.test.mem.{priority,fanout,broadcast}` and `bmq.test.persistent.{priority,fanout}`
    (and their `.sc` variants) are those of the sample configuration. Calls from several threads are safe.
    """

    def __init__(self) -> None:
        self._runner = runner = BrokerRunner()
        self.clock, self.faults, self.recorder = runner.clock, runner.faults, runner.recorder
        self._guids = GuidGenerator(b"tests!", 0)
        self._port: Port | None = None

    @property
    def up(self) -> bool:
        """Is it running?"""
        return self._runner.up

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
        runner = self._runner
        with runner.lock:
            before = runner.table.texts.get(name)
            runner.table.texts[name] = text
            if self.up:
                runner.touch()
                try:
                    runner.node.broker.domains.reconfigure(name)
                except BaseException:
                    runner.node.broker.domains.provider.forget(name)
                    runner.table.texts.pop(name)
                    if before is not None:
                        runner.table.texts[name] = before
                    raise
                runner.node.due = True
                runner.run()
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
        pump = partial(self._threaded_transport, name=name)
        made = type("Session", (official.Session,), {"_make_transport": staticmethod(pump)})
        return made(on_session_event, on_message, **options)  # type: ignore[no-any-return]

    def connector(self, name: str = "") -> aio.Connector:
        """What `bmqtwist.sdk.aio.Session(connect=...)` wants: every address leads here. `name`: as of `connect`."""
        import asyncio

        from bmqtwist.testing.aio import AsyncioTransport, loop_waker

        async def connect(make_protocol: Callable[[], asyncio.BaseProtocol], address: object,
                          tls: object) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
            protocol = make_protocol()
            transport = AsyncioTransport(self._runner, loop_waker(self._runner, asyncio.get_running_loop()), protocol)
            transport.open(name)
            return transport, protocol
        return connect

    def endpoint(self, reactor: Any, name: str = "") -> tx.MakeEndpoint:
        """What `bmqtwist.sdk.tx.Session(endpoint=...)` wants: every address leads here. `name`: as of `connect`."""
        from bmqtwist.testing.tx import endpoints
        return endpoints(self._runner, name, reactor)

    def pump(self, name: str = "") -> PumpFactory:
        """What `bmqtwist.sdk.simple.Session(pump=...)` wants. `name`: as of `connect`."""
        from bmqtwist.testing.transport import MemoryTransport
        return partial(MemoryTransport, self._runner, name)

    def _threaded_transport(self, *arguments: Any, name: str = "") -> Pump:
        self.clock.follow_machine()
        return self.pump(name)(*arguments)

    def listen(self, port: int = 0) -> str:
        """Take TCP connections at 127.0.0.1, too; the address `tcp://127.0.0.1:PORT`. The broker's clock runs with the
        machine's from now on. OSError if the port is taken."""
        from bmqtwist.testing.port import Port
        if self._port is None:
            self.clock.follow_machine()
            self._port = Port(self._runner, port)
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
            stack.enter_context(mock.patch.object(official.Session, "_make_transport",
                                                  staticmethod(self._threaded_transport)))
            stack.enter_context(mock.patch.object(tx.Session, "_hostname_endpoint", endpoint))
            yield self

    def disconnect(self, client: str | None = None) -> int:
        """Cut the connections (of one client), as a network does; how many."""
        return self._runner.disconnect(client)

    @property
    def clients(self) -> list[str]:
        """Names of those who are connected."""
        return [connection.name for connection in self._runner.connections]

    # -- messages without a client ----------------------------------------------------------------------------------

    def put(self, uri: str, payload: bytes, properties: Mapping[str, object] | None = None,
            types: Mapping[str, PropertyType] | None = None, *, compress: bool = False) -> bytes:
        """Put a message into a queue, which is created if need be; its GUID, 16 bytes. Types of properties as of
        `Queue.post`. LocalError if the queue does not take it."""
        runner = self._runner
        with runner.lock:
            runner.touch()
            guid = self._guids.make(int(self.clock() * 1e9))
            content = stored.put(runner.node, uri, guid, payload, properties, types, compress)
            runner.note(f"put       {content.uri} {content.guid.hex().upper()} {content.content}")
            runner.run()
            return guid

    def messages(self, uri: str) -> list[Stored]:
        """What is outstanding in a queue (with `?id=`: for that app), oldest first."""
        runner = self._runner
        with runner.lock:
            runner.touch()
            return stored.messages(runner.node, uri, runner.began)

    def drain(self, uri: str) -> list[Stored]:
        """Take everything out of a queue (with `?id=`: for that app), delivered or not; what it was."""
        runner = self._runner
        with runner.lock:
            runner.touch()
            found = stored.drain(runner.node, uri, runner.began)
            if found:
                runner.note(f"drained   {uri}: {len(found)}")
            runner.run()
            return found

    def admin(self, command: str) -> str:
        """Run an admin command; the answer's text."""
        runner = self._runner
        with runner.lock:
            runner.touch()
            answer = runner.node.broker.commands.run_at_once(command, "test").text
            runner.node.due = True
            runner.run()
            return answer

    def log(self) -> list[str]:
        """The broker's log, severity before the text."""
        return self._runner.node.log()

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
        self._runner.start()

    def stop(self) -> None:
        """Stop gracefully: up to some seconds of the broker's clock for consumers that hold messages."""
        self._runner.stop()

    def crash(self) -> None:
        """The machine loses power: connections break, and what was not durable is lost. What was acknowledged is
        durable, unless its domain is in memory."""
        self._runner.crash()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def close(self) -> None:
        """The end: connections are cut, a port is closed."""
        port, self._port = self._port, None
        self._runner.close()
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
        self._runner.advance(seconds)

    async def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait until a condition is true; it is asked whenever something happened at the broker, and now and then. Unmet
        after `timeout_s` seconds of the event loop."""
        import asyncio

        from bmqtwist.testing.aio import loop_waker, settle
        runner, loop = self._runner, asyncio.get_running_loop()
        waker = loop_waker(runner, loop)
        end, pause = loop.time() + timeout_s, _ASK_FIRST_S
        while not condition():
            self._check(loop.time() < end, f"not so within {timeout_s:g} s: {condition}")
            changed: asyncio.Future[None] = loop.create_future()

            def wake(changed: asyncio.Future[None] = changed) -> None:
                waker.soon(settle, changed)
            runner.waiters.append(wake)
            try:
                await asyncio.wait([changed], timeout=min(pause, end - loop.time()))
            finally:
                runner.waiters.remove(wake)
            pause = min(2 * pause, _ASK_S_MAX)

    def wait_until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """The same for tests without an event loop whose clients are threads or processes: blocks up to `timeout_s`
        seconds."""
        end, pause = time.monotonic() + timeout_s, _ASK_FIRST_S
        while not condition():  # without the lock: it may ask sessions, which have locks of their own
            self._check(time.monotonic() < end, f"not so within {timeout_s:g} s: {condition}")
            with self._runner.changed:
                self._runner.changed.wait(min(pause, max(0.0, end - time.monotonic())))
            pause = min(2 * pause, _ASK_S_MAX)
