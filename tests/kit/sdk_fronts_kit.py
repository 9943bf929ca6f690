"""Runs one scenario, written with `await`, on the asyncio, Twisted and blocking fronts of the SDK, in virtual time.

Calls of the blocking front return values, not awaitables: a scenario writes `await w(queue.post(...))`. Used by
tests/unit/sdk; the core without a front is in `sdk_kit.py`.
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
    """Return the result of an awaitable, or the value itself if it is none."""
    return await value if inspect.isawaitable(value) else value


class Front(ABC):
    """A broker and sessions of one front; `events` has the events of all sessions, in order."""

    name: str

    def __init__(self) -> None:
        self.broker = Broker()
        self.events: list[SessionEvent] = []
        self.unhandled: list[Any] = []  # types of exceptions reported to the loop; asyncio only

    @abstractmethod
    def run(self, scenario: Scenario) -> None:
        """Run a scenario to its end."""

    @abstractmethod
    def make(self, **options: Any) -> Any:
        """Create a session; a blocking one is started, too."""

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Advance the virtual time."""

    @abstractmethod
    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Start a coroutine in the background; the result can be awaited and cancelled."""

    async def start(self, **options: Any) -> Any:
        """Create a session and connect it."""
        session = self.make(**{"on_event": self.events.append, **options})
        if self.name != "simple":
            await session.start()
        return session

    async def until(self, condition: Callable[[], object], seconds: float = 120.0) -> None:
        """Advance the virtual time until a condition is true, at most `seconds`."""
        for _ in range(int(seconds * 100)):
            if condition():
                return
            await self.pass_time(0.01)
        raise AssertionError("the condition is still false")

    def kinds(self) -> list[EventKind]:
        """Return the kinds of all events, in order."""
        return [event.kind for event in self.events]

    def requester(self, session: Any, **more: Any) -> Any:
        """Create a requester of this front."""
        return rpc.Requester(session, DOMAIN, **more)

    def responder(self, session: Any) -> Any:
        """Create a responder of this front."""
        return rpc.Responder(session)


class Asyncio(Front):
    """The asyncio front."""

    name = "aio"

    def run(self, scenario: Scenario) -> None:
        """Run a scenario in a loop with virtual time; a remaining task fails the test."""
        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(
                lambda _, context: self.unhandled.append(type(context.get("exception"))))
            await scenario()
            await asyncio.sleep(0)
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left
        run(main(), seconds_max=SECONDS_MAX)

    def make(self, **options: Any) -> Any:
        """Create a session."""
        return self.broker.session(**options)

    async def pass_time(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await asyncio.sleep(seconds)

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Start the coroutine as a task."""
        return asyncio.ensure_future(coroutine)


class Twisted(Front):
    """The Twisted front."""

    name = "tx"

    def run(self, scenario: Scenario) -> None:
        """Run a scenario on a `twisted.internet.task.Clock`."""
        self.clock = Clock()
        outcome(Deferred.fromCoroutine(scenario()), self.clock, SECONDS_MAX)

    def make(self, **options: Any) -> Any:
        """Create a session."""
        return self.broker.tx_session(self.clock, **options)

    async def pass_time(self, seconds: float) -> None:
        """Wait for a delayed call of the clock."""
        timer: Deferred[None] = Deferred()
        self.clock.callLater(seconds, timer.callback, None)
        await timer

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Start the coroutine as a Deferred."""
        return Deferred.fromCoroutine(coroutine)


class Blocking(Front):
    """The blocking front: the calls of a scenario block, `await` never suspends it."""

    name = "simple"

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Any] = []

    def run(self, scenario: Scenario) -> None:
        """Run a scenario without suspension."""
        coroutine = scenario()
        try:
            coroutine.send(None)
        except StopIteration:
            return
        raise AssertionError("a scenario of the blocking front has awaited something")

    def make(self, **options: Any) -> Any:
        """Create a session."""
        session = self.broker.blocking_session(**options)
        self.sessions.append(session)
        return session

    async def pass_time(self, seconds: float) -> None:
        """Run all sessions for a time."""
        for session in self.sessions:
            if session.running:
                session.wait(lambda: False, seconds, quiet=True)

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Fail: the blocking front has no loop for a second coroutine."""
        coroutine.close()
        raise AssertionError("the blocking front cannot run two coroutines")

    def requester(self, session: Any, **more: Any) -> Any:
        """Create a requester of this front."""
        return rpc.BlockingRequester(session, DOMAIN, **more)

    def responder(self, session: Any) -> Any:
        """Create a responder of this front."""
        return rpc.BlockingResponder(session)


FRONTS: dict[str, type[Front]] = {"aio": Asyncio, "tx": Twisted, "simple": Blocking}
