"""One scenario, written once with `await`, on each front that waits: asyncio, Twisted, blocking; all in virtual time.

Calls of the blocking front give values, not awaitables: a scenario writes `await w(queue.post(...))`.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from bmqtwist.sdk import EventKind, SessionEvent, rpc
from bmqtwist.testing import Broker, outcome, run

URI = "bmq://bmq.test.mem.priority/q"
DOMAIN = "bmq.test.mem.priority"
SECONDS_MAX = 600.0

Scenario = Callable[[], Coroutine[Any, Any, None]]


async def w(value: Any) -> Any:
    """What an awaitable gives; a plain value as it is."""
    return await value if inspect.isawaitable(value) else value


class Front(ABC):
    """A broker and sessions of one front with it; `events` are those of all sessions, in order."""

    name: str

    def __init__(self) -> None:
        self.broker = Broker()
        self.events: list[SessionEvent] = []
        self.unhandled: list[Any] = []  # types of what was reported to the loop, asyncio only

    @abstractmethod
    def run(self, scenario: Scenario) -> None:
        """Run a scenario to its end."""

    @abstractmethod
    def make(self, **options: Any) -> Any:
        """A session; the blocking one is started with that."""

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Let time pass."""

    @abstractmethod
    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine beside; what it gives can be awaited and cancelled."""

    async def start(self, **options: Any) -> Any:
        """A session that is connected."""
        session = self.make(**{"on_event": self.events.append, **options})
        if self.name != "simple":
            await session.start()
        return session

    async def until(self, condition: Callable[[], object], seconds: float = 120.0) -> None:
        """Let time pass until something is so."""
        for _ in range(int(seconds * 100)):
            if condition():
                return
            await self.pass_time(0.01)
        raise AssertionError("it has not come so")

    def kinds(self) -> list[EventKind]:
        """Kinds of all events."""
        return [event.kind for event in self.events]

    def requester(self, session: Any, **more: Any) -> Any:
        """A requester of this front."""
        return rpc.Requester(session, DOMAIN, **more)

    def responder(self, session: Any) -> Any:
        """A responder of this front."""
        return rpc.Responder(session)


class Asyncio(Front):
    """The asyncio front."""

    name = "aio"

    def run(self, scenario: Scenario) -> None:
        """In a virtual loop; what is left over there is a leak."""
        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(
                lambda _, context: self.unhandled.append(type(context.get("exception"))))
            await scenario()
            await asyncio.sleep(0)
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left
        run(main(), seconds_max=SECONDS_MAX)

    def make(self, **options: Any) -> Any:
        """A session."""
        return self.broker.session(**options)

    async def pass_time(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """A task."""
        return asyncio.ensure_future(coroutine)


class Twisted(Front):
    """The Twisted front."""

    name = "tx"

    def run(self, scenario: Scenario) -> None:
        """On a clock."""
        self.clock = Clock()
        outcome(Deferred.fromCoroutine(scenario()), self.clock, SECONDS_MAX)

    def make(self, **options: Any) -> Any:
        """A session."""
        return self.broker.tx_session(self.clock, **options)

    async def pass_time(self, seconds: float) -> None:
        """A delayed call."""
        promise: Deferred[None] = Deferred()
        self.clock.callLater(seconds, promise.callback, None)
        await promise

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """A Deferred."""
        return Deferred.fromCoroutine(coroutine)


class Blocking(Front):
    """The blocking front: a scenario never really waits, its calls do."""

    name = "simple"

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Any] = []

    def run(self, scenario: Scenario) -> None:
        """At one go."""
        coroutine = scenario()
        try:
            coroutine.send(None)
        except StopIteration:
            return
        raise AssertionError("a scenario of the blocking front has awaited something")

    def make(self, **options: Any) -> Any:
        """A session."""
        session = self.broker.blocking_session(**options)
        self.sessions.append(session)
        return session

    async def pass_time(self, seconds: float) -> None:
        """Let all sessions work."""
        for session in self.sessions:
            if session.running:
                session.wait(lambda: False, seconds, quiet=True)

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Not without a loop."""
        coroutine.close()
        raise AssertionError("the blocking front does one thing at a time")

    def requester(self, session: Any, **more: Any) -> Any:
        """A requester of this front."""
        return rpc.BlockingRequester(session, DOMAIN, **more)

    def responder(self, session: Any) -> Any:
        """A responder of this front."""
        return rpc.BlockingResponder(session)


FRONTS: dict[str, type[Front]] = {"aio": Asyncio, "tx": Twisted, "simple": Blocking}
