"""In-process broker for tests, without files, with a virtual clock and an optional TCP port.

    broker = Broker()
    async with broker.session() as session: ...                     asyncio
    session = broker.tx_session(clock)                              Twisted
    with broker.blocking_session() as session: ...                  blocking calls
    url = broker.listen()                                           any other client

It is the production broker over a disk in memory, without a reactor. The broker has processed the data of a client when the
client's write returns; the client's event loop delivers the answers. Applications and the fixtures of `plugin.py` use it.
Clock, connections and restarts are in `runner.py`, recorded events in `recorder.py`; a broker in a process is in
`process.py`.
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
_POLL_S_MIN, _POLL_S_MAX = 0.01, 1.0  # interval between two evaluations of a condition while the broker is idle


class Unmet(AssertionError):
    """A failed assertion about a broker; the text ends with the transcript."""


class Broker:
    """One running broker. `clock()`: its time in seconds; `faults` and `recorder` apply to all its connections.

    It has the domains of the sample configuration, `bmq.test.mem.{priority,fanout,broadcast}` and
    `bmq.test.persistent.{priority,fanout}` with their `.sc` variants. All methods are thread-safe.
    """

    def __init__(self) -> None:
        self._runner = runner = BrokerRunner()
        self.clock, self.faults, self.recorder = runner.clock, runner.faults, runner.recorder
        self._guids = GuidGenerator(b"tests!", 0)
        self._port: Port | None = None

    @property
    def up(self) -> bool:
        """True if the broker is running."""
        return self._runner.up

    # -- domains ----------------------------------------------------------------------------------------------------

    def domain(self, name: str, mode: Mode = "priority", *, app_ids: tuple[str, ...] | list[str] = (),
               in_memory: bool = False, max_messages: int | None = None, max_bytes: int | None = None,
               max_delivery_attempts: int = 0, ttl: float = 3600, subscriptions: Mapping[str, str] | None = None,
               consistency: Literal["eventual", "strong"] = "eventual", **parameters: Any) -> str:
        """Create or reconfigure a domain, and return its name.

        `app_ids`: the apps of a fanout domain. `max_messages`, `max_bytes`: limits of each queue; the message that exceeds
        them is accepted, the next one refused. `max_delivery_attempts`: 0 = no limit. `ttl`: seconds. `subscriptions`:
        expression by appId ("" in the other modes). `parameters`: other members of a domain's file, by their names in it
        (`deduplicationTimeMs`, `maxConsumers`, ...). Raises LocalError if the broker refuses the domain.
        """
        text = plain_domain(name, mode, app_ids=app_ids, in_memory=in_memory, max_messages=max_messages,
                            max_bytes=max_bytes, max_delivery_attempts=max_delivery_attempts, ttl=ttl,
                            subscriptions=subscriptions, consistency=consistency, **parameters)
        runner = self._runner
        with runner.lock:
            before = runner.table.texts.get(name)
            runner.table.texts[name] = text
            if self.up:
                runner.set_node_time()
                try:
                    runner.node.broker.domains.reconfigure(name)
                except BaseException:
                    runner.node.broker.domains.provider.drop_domain(name)
                    runner.table.texts.pop(name)
                    if before is not None:
                        runner.table.texts[name] = before
                    raise
                runner.node.turn_requested = True
                runner.run()
        return name

    # -- sessions ---------------------------------------------------------------------------------------------------

    def session(self, *, name: str = "", **options: Any) -> aio.Session:
        """Return an asyncio session with this broker; options as of `bmqtwist.sdk.aio.Session`."""
        from bmqtwist.sdk import aio
        return aio.Session(connect=self.connector(name), **options)

    def tx_session(self, reactor: Any, *, name: str = "", **options: Any) -> tx.Session:
        """Return a Twisted session with this broker; options as of `bmqtwist.sdk.tx.Session`. `reactor` may be a
        `twisted.internet.task.Clock`."""
        from bmqtwist.sdk import tx
        return tx.Session(reactor, endpoint=self.endpoint(reactor, name), **options)

    def blocking_session(self, *, name: str = "", **options: Any) -> simple.Session:
        """Return a blocking session with this broker; options as of `bmqtwist.sdk.simple.Session`. While the broker's clock
        is virtual, waiting takes no real time."""
        from bmqtwist.sdk import simple
        return simple.Session(pump=self.pump(name), **options)

    def official_session(self, on_session_event: Callable[[Any], None],
                         on_message: Callable[[Any, Any], None] | None = None, *, name: str = "",
                         **options: Any) -> official.Session:
        """Return a session of `bmqtwist.sdk.blazingmq` with this broker. The session has threads: from now on the broker's
        clock follows the machine's."""
        from bmqtwist.sdk import blazingmq as official
        pump = partial(self._threaded_transport, name=name)
        made = type("Session", (official.Session,), {"_make_transport": staticmethod(pump)})
        return made(on_session_event, on_message, **options)  # type: ignore[no-any-return]

    def connector(self, name: str = "") -> aio.Connector:
        """Return an argument for `bmqtwist.sdk.aio.Session(connect=...)`: every address connects to this broker. `name`: of
        the connection, for faults and the recorder."""
        import asyncio

        from bmqtwist.testing.aio import AsyncioTransport, loop_bridge

        async def connect(make_protocol: Callable[[], asyncio.BaseProtocol], address: object,
                          tls: object) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
            protocol = make_protocol()
            transport = AsyncioTransport(self._runner, loop_bridge(self._runner, asyncio.get_running_loop()), protocol)
            transport.open(name)
            return transport, protocol
        return connect

    def endpoint(self, reactor: Any, name: str = "") -> tx.MakeEndpoint:
        """Return an argument for `bmqtwist.sdk.tx.Session(endpoint=...)`: every address connects to this broker. `name`: as
        of `connector`."""
        from bmqtwist.testing.tx import endpoints
        return endpoints(self._runner, name, reactor)

    def pump(self, name: str = "") -> PumpFactory:
        """Return an argument for `bmqtwist.sdk.simple.Session(pump=...)`. `name`: as of `connector`."""
        from bmqtwist.testing.transport import MemoryTransport
        return partial(MemoryTransport, self._runner, name)

    def _threaded_transport(self, *arguments: Any, name: str = "") -> Pump:
        self.clock.follow_machine()
        return self.pump(name)(*arguments)

    def listen(self, port: int = 0) -> str:
        """Accept TCP connections at 127.0.0.1, and return the address `tcp://127.0.0.1:PORT`. From now on the broker's clock
        follows the machine's. Raises OSError if the port is in use."""
        from bmqtwist.testing.port import Port
        if self._port is None:
            self.clock.follow_machine()
            self._port = Port(self._runner, port)
        return self._port.url

    @contextlib.contextmanager
    def intercept(self) -> Iterator[Self]:
        """Connect every session of `bmqtwist.sdk` that is created within the `with` block to this broker, at any address."""
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
        """Cut all connections, or those of one client, like a network failure; return their number."""
        return self._runner.disconnect(client)

    @property
    def clients(self) -> list[str]:
        """Names of the connected clients."""
        return [connection.name for connection in self._runner.connections]

    # -- messages without a client ----------------------------------------------------------------------------------

    def put(self, uri: str, payload: bytes, properties: Mapping[str, object] | None = None,
            types: Mapping[str, PropertyType] | None = None, *, compress: bool = False) -> bytes:
        """Put a message into a queue, which is created if missing, and return its GUID, 16 bytes. Types of properties as of
        `Queue.post`. Raises LocalError if the queue refuses the message."""
        runner = self._runner
        with runner.lock:
            runner.set_node_time()
            guid = self._guids.make(int(self.clock() * 1e9))
            content = stored.put(runner.node, uri, guid, payload, properties, types, compress)
            runner.record_note(f"put       {content.uri} {content.guid.hex().upper()} {content.content}")
            runner.run()
            return guid

    def messages(self, uri: str) -> list[Stored]:
        """Return the unconfirmed messages of a queue (with `?id=`: of that app), oldest first."""
        runner = self._runner
        with runner.lock:
            runner.set_node_time()
            return stored.messages(runner.node, uri, runner.started_at)

    def drain(self, uri: str) -> list[Stored]:
        """Remove all messages from a queue (with `?id=`: for that app), delivered or not, and return them."""
        runner = self._runner
        with runner.lock:
            runner.set_node_time()
            found = stored.drain(runner.node, uri, runner.started_at)
            if found:
                runner.record_note(f"drained   {uri}: {len(found)}")
            runner.run()
            return found

    def admin(self, command: str) -> str:
        """Run an admin command and return the text of the answer."""
        runner = self._runner
        with runner.lock:
            runner.set_node_time()
            answer = runner.node.broker.commands.run_at_once(command, "test").text
            runner.node.turn_requested = True
            runner.run()
            return answer

    def log(self) -> list[str]:
        """Return the broker's log, each line with its severity."""
        return self._runner.node.log()

    # -- assertions -------------------------------------------------------------------------------------------------

    def assert_posted(self, uri: str, payload: bytes | None = None, properties: Mapping[str, object] | None = None, *,
                      count: int | None = None, client: str | None = None) -> list[Post]:
        """Assert that clients made `count` posts (None = at least one) with this payload and at least these properties, and
        return them."""
        __tracebackhide__ = True
        found = [post for post in self.recorder.posts(uri, client) if post.matches(payload, properties)]
        wanted = "at least one post" if count is None else f"{count} post(s)"
        self._check(len(found) == count if count is not None else bool(found),
                    f"{uri}: {wanted} expected, {len(found)} found")
        return found

    def assert_confirmed(self, uri: str, count: int | None = None, *, client: str | None = None) -> list[Confirm]:
        """Assert that `count` messages of the queue (of the app) are confirmed, None = all delivered ones and at least one;
        return the confirms."""
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
        """Assert that the queue has no unconfirmed messages (of the app)."""
        __tracebackhide__ = True
        left = self.messages(uri)
        self._check(not left, f"{uri} contains {len(left)} message(s):\n" + "\n".join(map(str, left[:20])))

    def _check(self, good: bool, complaint: str) -> None:
        __tracebackhide__ = True
        if not good:
            raise Unmet(f"{complaint}\n\n{self.recorder.transcript()}")

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start again after `stop` or `crash`, from the disk."""
        self._runner.start()

    def stop(self) -> None:
        """Stop gracefully; waits for unconfirmed messages for some seconds of the broker's clock."""
        self._runner.stop()

    def crash(self) -> None:
        """Simulate a loss of power: connections break, and data that is not durable is lost. Acknowledged messages are
        durable, except those of in-memory domains."""
        self._runner.crash()

    def restart(self) -> None:
        """Stop the broker gracefully and start it again from its disk."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Crash the broker, cut its connections and close its port."""
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
        """Advance the broker's clock: messages expire, delayed bytes arrive. The clocks of clients do not change."""
        self._runner.advance(seconds)

    async def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait until a condition is true; it is evaluated after each change at the broker, and at least every second. Raises
        Unmet after `timeout_s` seconds of the event loop."""
        import asyncio

        from bmqtwist.testing.aio import complete, loop_bridge
        runner, loop = self._runner, asyncio.get_running_loop()
        bridge = loop_bridge(runner, loop)
        end, pause = loop.time() + timeout_s, _POLL_S_MIN
        while not condition():
            self._check(loop.time() < end, f"condition not met within {timeout_s:g} s: {condition}")
            changed: asyncio.Future[None] = loop.create_future()

            def on_change(changed: asyncio.Future[None] = changed) -> None:
                bridge.call_soon(complete, changed)
            runner.on_change.append(on_change)
            try:
                await asyncio.wait([changed], timeout=min(pause, end - loop.time()))
            finally:
                runner.on_change.remove(on_change)
            pause = min(2 * pause, _POLL_S_MAX)

    def wait_until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Block until a condition is true, for tests without an event loop whose clients are threads or processes. Raises
        Unmet after `timeout_s` seconds."""
        end, pause = time.monotonic() + timeout_s, _POLL_S_MIN
        while not condition():  # evaluated without the lock, since it may take locks of sessions
            self._check(time.monotonic() < end, f"condition not met within {timeout_s:g} s: {condition}")
            with self._runner.changed:
                self._runner.changed.wait(min(pause, max(0.0, end - time.monotonic())))
            pause = min(2 * pause, _POLL_S_MAX)
