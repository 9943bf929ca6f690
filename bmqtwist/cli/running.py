"""A command that talks to a broker for a while: the loop, signals, the session, and a connection that is lost.

    raise SystemExit(run(work))             # async def work(life: Life) -> int
    async with life.session(connection) as session: ...
    if await life.wait_for(queue.get(), timeout_s): ...

The first SIGINT or SIGTERM sets `life.stopping`: the command tidies up (confirms what it has printed, waits for
acknowledgements) and the process ends with 130 or 143. The second one ends it at once.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import click

from bmqtwist.cli.connection import Connection
from bmqtwist.cli.exits import EXIT_INTERRUPTED, EXIT_TERMINATED, CommandFailed, NotAllowed, Unreachable
from bmqtwist.errors import PeerError
from bmqtwist.ids import InvalidUri, parse_uri
from bmqtwist.sdk.aio import Queue, Session
from bmqtwist.sdk.options import QueueOptions
from bmqtwist.sdk.results import EventKind, Result, SdkError, SessionEvent

T = TypeVar("T")
_PATIENCE_S = 0.3  # a start that takes longer is looked into
_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


class Life:
    """One run of a command. `code`: what a signal makes of the exit code, 0 = no signal came."""

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        self.stopping = asyncio.Event()
        self.code = 0
        self.error: CommandFailed | None = None
        self._loop, self._task = loop, task
        self._patience: asyncio.TimerHandle | None = None
        for number in _CODES:
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.code:
            os._exit(_CODES[number])  # asked twice: neither acknowledgements nor the broker's farewell are waited for
        self.code = _CODES[number]
        self.stopping.set()

    def fail(self, error: CommandFailed) -> None:
        """End the command with an error, wherever it waits."""
        self.error = self.error or error
        self._task.cancel()

    async def wait_for(self, what: Awaitable[T], timeout_s: float | None = None) -> T | None:
        return await until(self.stopping, what, timeout_s)

    async def sleep(self, seconds: float) -> None:
        """Wait, unless the command is to stop."""
        await self.wait_for(asyncio.sleep(max(seconds, 0.0)))

    # -- the session ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def session(self, connection: Connection, **changes: Any) -> AsyncIterator[Session]:
        """A session that is up; Unreachable or NotAllowed if none comes up, or it is lost for too long."""
        options = connection.session_options(**changes)
        session = Session(options=options, tls=connection.context(), on_event=lambda event: self._heard(connection, event))
        await self._start(connection, session)
        try:
            yield session
        finally:
            if self._patience is not None:
                self._patience.cancel()
            with suppress(SdkError):
                await session.stop(drain=self.error is None and session.core.online)

    async def _start(self, connection: Connection, session: Session) -> None:
        """Start it. If that takes long, find out whether a broker can be reached and wants us, instead of trying on."""
        starting, looking = asyncio.ensure_future(session.start()), None
        try:
            await self.wait_for(_first(starting), _PATIENCE_S)
            if not starting.done() and not self.stopping.is_set():
                looking = in_thread(functools.partial(_reason, connection))
                await self.wait_for(_first(starting, looking))
            if looking is not None and looking.done() and not starting.done() and not connection.wait:
                reason = looking.result()
                if reason is not None:
                    raise reason
            await self.wait_for(_first(starting))
            if not starting.done():
                raise CommandFailed("interrupted before there was a connection", self.code)
            starting.result()
        except SdkError as error:
            if error.result is not Result.TIMEOUT:
                raise NotAllowed(f"broker refused us: {error.message or error.result}") from None
            if looking is not None:  # it began later, with the same patience
                await self.wait_for(_first(looking), 2 * _PATIENCE_S)
            reason = looking.result() if looking is not None and looking.done() else None
            raise reason or Unreachable(f"{connection.where}: {error.message}") from None
        finally:
            if not starting.done() or starting.exception() is not None:
                starting.cancel()
                await session.stop(drain=False)

    def _heard(self, connection: Connection, event: SessionEvent) -> None:
        if event.kind is EventKind.CONNECTION_LOST:
            note(f"the connection was lost ({event.message or 'no reason given'}), trying to come back")
            self._patience = self._loop.call_later(connection.timeout, self.fail, Unreachable(
                f"no broker at {connection.where} for {connection.timeout:g} s after the connection was lost"))
        elif event.kind is EventKind.RECONNECTED:
            note("connected again")
            if self._patience is not None:
                self._patience.cancel()
        elif event.kind is EventKind.QUEUE_REOPEN_RESULT and event.result is not Result.SUCCESS:
            self.fail(NotAllowed(f"{event.uri} could not be opened again: {event.result} {event.message}"))
        elif event.kind is EventKind.ERROR:
            note(f"the broker: {event.message or event.result}")


async def until(event: asyncio.Event, what: Awaitable[T], timeout_s: float | None = None) -> T | None:
    """The outcome of `what`; None if the event is set first, or the time is over (`what` is cancelled)."""
    work, stop = asyncio.ensure_future(what), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((work, stop), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            with suppress(asyncio.CancelledError):
                return await work  # it may be done all the same
            return None
        return work.result()
    finally:
        stop.cancel()
        work.cancel()


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of them is done; they go on when this is cancelled."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """The outcome of a call in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            settle: Callable[[], object] = functools.partial(future.set_result, call())
        except Exception as error:  # noqa: BLE001 - it is raised again where the outcome is awaited
            settle = functools.partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(lambda: future.done() or settle())

    threading.Thread(target=work, daemon=True).start()
    return future


def _reason(connection: Connection) -> CommandFailed | None:
    """Why no session comes up; None if a broker would have us."""
    try:
        with connection.admin(as_client=True):
            return None
    except CommandFailed as error:
        return error
    except PeerError as error:
        return Unreachable(f"{connection.where} is no broker: {error}")


def note(text: str) -> None:
    with suppress(OSError):
        click.echo(f"bmq: {text}", err=True)


def run(work: Callable[[Life], Awaitable[int]]) -> int:
    """Run a command to its end; the exit code. Raises what `Life.fail` was told, and everything `work` raises."""
    async def main() -> int:
        task = asyncio.current_task()
        assert task is not None
        life = Life(asyncio.get_running_loop(), task)
        try:
            code = await work(life)
        except (asyncio.CancelledError, SdkError) as error:
            if life.error is not None:
                raise life.error from None
            if isinstance(error, SdkError):
                raise
            return life.code
        return life.code or code
    return asyncio.run(main())


# -- queues -----------------------------------------------------------------------------------------------------------

def checked_uri(text: str) -> str:
    try:
        parse_uri(text)
    except InvalidUri as error:
        meant = _meant(text)
        raise click.UsageError(f"'{text}' is no queue URI: {error}. A URI is bmq://domain/queue or "
                               f"bmq://domain/queue?id=app." + (f" Did you mean {meant}?" if meant else "")) from None
    return text


def _meant(text: str) -> str:
    """A valid URI near the text, or nothing."""
    rest = text.strip().partition("://")[2] if "://" in text else text.strip().removeprefix("bmq:").lstrip("/")
    rest = rest.replace("?app=", "?id=").replace("?appId=", "?id=").replace("?appid=", "?id=")
    for guess in (f"bmq://{rest}", f"bmq://{rest.rstrip('/')}"):
        with suppress(InvalidUri):
            parse_uri(guess)
            return guess
    return ""


async def open_queue(life: Life, session: Session, uri: str, *, read: bool = False, write: bool = False,
                     options: QueueOptions | None = None) -> Queue:
    """An open queue; NotAllowed with the broker's words, Unreachable if it does not answer."""
    try:
        queue = await life.wait_for(session.open(uri, read=read, write=write, options=options))
    except SdkError as error:
        if error.result in (Result.TIMEOUT, Result.NOT_CONNECTED, Result.CANCELED):
            raise Unreachable(f"{uri} was not opened in time: {error.message or error.result}") from None
        raise NotAllowed(f"the broker does not open {uri}: {error.message or error.result}") from None
    if queue is None:
        raise CommandFailed("interrupted before the queue was open", life.code)
    return queue
