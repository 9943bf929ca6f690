"""Execution of commands with a client session: event loop, signals, start and stop of the session, reconnection.

    raise SystemExit(run_command(work))             # async def work(context: ClientCommandContext) -> int
    async with context.session(connection) as session: ...
    if await context.wait_for(queue.get(), timeout_s): ...

The first SIGINT or SIGTERM sets `context.stopping`: the command confirms the printed messages, waits for pending
acknowledgements, and exits with 130 or 143. The second signal exits at once. Used by `consume.py`, `produce.py`, `bench.py`
and `tail.py`; their connection options are in `connection.py`, admin sessions in `adminclient.py`.
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

from bmqtwist.cli.connection import ConnectionOptions
from bmqtwist.cli.exits import EXIT_INTERRUPTED, EXIT_TERMINATED, CommandFailed, NotAllowed, Unreachable
from bmqtwist.errors import PeerError
from bmqtwist.ids import InvalidUri, parse_uri
from bmqtwist.sdk.aio import Queue, Session
from bmqtwist.sdk.options import QueueOptions
from bmqtwist.sdk.results import EventKind, Result, SdkError, SessionEvent

T = TypeVar("T")
_PROBE_AFTER_S = 0.3  # a session start that takes longer is diagnosed by an admin connection
_EXIT_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


class ClientCommandContext:
    """State of a running command. `stopping` is set by a signal; `exit_code`: exit code of that signal, 0 = no signal."""

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        self.stopping = asyncio.Event()
        self.exit_code = 0
        self.error: CommandFailed | None = None
        self._loop, self._task = loop, task
        self._reconnect_timer: asyncio.TimerHandle | None = None
        for number in _EXIT_CODES:
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.exit_code:
            os._exit(_EXIT_CODES[number])  # second signal: do not wait for acknowledgements or the broker's answer
        self.exit_code = _EXIT_CODES[number]
        self.stopping.set()

    def fail(self, error: CommandFailed) -> None:
        """Cancel the command; `run_command` raises the first error."""
        self.error = self.error or error
        self._task.cancel()

    async def wait_for(self, work: Awaitable[T], timeout_s: float | None = None) -> T | None:
        return await run_unless_set(self.stopping, work, timeout_s)

    async def sleep(self, seconds: float) -> None:
        """Sleep; return early when a signal stops the command."""
        await self.wait_for(asyncio.sleep(max(seconds, 0.0)))

    # -- the session ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def session(self, connection: ConnectionOptions, **changes: Any) -> AsyncIterator[Session]:
        """Yield a started session. Raises Unreachable or NotAllowed if the start fails; `run_command` raises Unreachable if
        a lost connection is not restored within `connection.timeout` seconds."""
        options = connection.session_options(**changes)
        on_event = functools.partial(self._on_event, connection)
        session = Session(options=options, tls=connection.tls_context(), on_event=on_event)
        await self._start(connection, session)
        try:
            yield session
        finally:
            if self._reconnect_timer is not None:
                self._reconnect_timer.cancel()
            with suppress(SdkError):
                await session.stop(drain=self.error is None and session.core.online)

    async def _start(self, connection: ConnectionOptions, session: Session) -> None:
        """Start the session. After _PROBE_AFTER_S, an admin connection determines whether a broker is reachable and accepts
        the client; its error ends the start unless `connection.wait` is set."""
        starting, probe = asyncio.ensure_future(session.start()), None
        try:
            await self.wait_for(_wait_for_first(starting), _PROBE_AFTER_S)
            if not starting.done() and not self.stopping.is_set():
                probe = run_in_thread(functools.partial(_probe_error, connection))
                await self.wait_for(_wait_for_first(starting, probe))
            if probe is not None and probe.done() and not starting.done() and not connection.wait:
                reason = probe.result()
                if reason is not None:
                    raise reason
            await self.wait_for(_wait_for_first(starting))
            if not starting.done():
                raise CommandFailed("interrupted before there was a connection", self.exit_code)
            starting.result()
        except SdkError as error:
            if error.result is not Result.TIMEOUT:
                raise NotAllowed(f"broker refused the connection: {error.message or error.result}") from None
            if probe is not None:  # the probe began _PROBE_AFTER_S later, with the same timeout
                await self.wait_for(_wait_for_first(probe), 2 * _PROBE_AFTER_S)
            reason = probe.result() if probe is not None and probe.done() else None
            raise reason or Unreachable(f"{connection.broker_text}: {error.message}") from None
        finally:
            if not starting.done() or starting.exception() is not None:
                starting.cancel()
                await session.stop(drain=False)

    def _on_event(self, connection: ConnectionOptions, event: SessionEvent) -> None:
        if event.kind is EventKind.CONNECTION_LOST:
            print_note(f"connection lost ({event.message or 'no reason given'}), reconnecting")
            self._reconnect_timer = self._loop.call_later(connection.timeout, self.fail, Unreachable(
                f"no broker at {connection.broker_text} for {connection.timeout:g} s after the connection was lost"))
        elif event.kind is EventKind.RECONNECTED:
            print_note("reconnected")
            if self._reconnect_timer is not None:
                self._reconnect_timer.cancel()
        elif event.kind is EventKind.QUEUE_REOPEN_RESULT and event.result is not Result.SUCCESS:
            self.fail(NotAllowed(f"{event.uri} could not be reopened: {event.result} {event.message}"))
        elif event.kind is EventKind.ERROR:
            print_note(f"broker error: {event.message or event.result}")


async def run_unless_set(event: asyncio.Event, work: Awaitable[T], timeout_s: float | None = None) -> T | None:
    """Return the result of `work`; cancel it and return None if the event is set first or the timeout expires."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((task, stop), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                return await task  # a task may complete in spite of the cancellation
            return None
        return task.result()
    finally:
        stop.cancel()
        task.cancel()


async def _wait_for_first(*futures: asyncio.Future[Any]) -> None:
    """Wait until one future is done; cancelling the wait does not cancel the futures."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def run_in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Run a blocking call in a daemon thread, which does not delay the exit of the process; return a future of its
    outcome."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            complete: Callable[[], object] = functools.partial(future.set_result, call())
        except Exception as error:  # noqa: BLE001 - raised again by the future
            complete = functools.partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: future.done() or complete())

    threading.Thread(target=work, daemon=True).start()
    return future


def _probe_error(connection: ConnectionOptions) -> CommandFailed | None:
    """Connect and negotiate as a client. Return the error, None if a broker accepts the client."""
    try:
        with connection.open_admin(as_client=True):
            return None
    except CommandFailed as error:
        return error
    except PeerError as error:
        return Unreachable(f"{connection.broker_text} is not a broker: {error}")


def print_note(text: str) -> None:
    """Print a line about the progress of the command to standard error."""
    with suppress(OSError):
        click.echo(f"bmq: {text}", err=True)


def run_command(work: Callable[[ClientCommandContext], Awaitable[int]]) -> int:
    """Run a command and return its exit code. Raises the error of `ClientCommandContext.fail` and those of `work`."""
    async def main() -> int:
        task = asyncio.current_task()
        assert task is not None
        context = ClientCommandContext(asyncio.get_running_loop(), task)
        try:
            code = await work(context)
        except (asyncio.CancelledError, SdkError) as error:
            if context.error is not None:
                raise context.error from None
            if isinstance(error, SdkError):
                raise
            return context.exit_code
        return context.exit_code or code
    return asyncio.run(main())


# -- queues -----------------------------------------------------------------------------------------------------------

def check_uri(text: str) -> str:
    """Return a queue URI unchanged. Raises UsageError, with a similar valid URI if there is one, if it is invalid."""
    try:
        parse_uri(text)
    except InvalidUri as error:
        close = _similar_uri(text)
        raise click.UsageError(f"'{text}' is not a queue URI: {error}. A URI is bmq://domain/queue or "
                               f"bmq://domain/queue?id=app." + (f" Did you mean {close}?" if close else "")) from None
    return text


def _similar_uri(text: str) -> str:
    """Return a valid URI similar to the text, "" if there is none."""
    rest = text.strip().partition("://")[2] if "://" in text else text.strip().removeprefix("bmq:").lstrip("/")
    rest = rest.replace("?app=", "?id=").replace("?appId=", "?id=").replace("?appid=", "?id=")
    for guess in (f"bmq://{rest}", f"bmq://{rest.rstrip('/')}"):
        with suppress(InvalidUri):
            parse_uri(guess)
            return guess
    return ""


async def open_queue(context: ClientCommandContext, session: Session, uri: str, *, read: bool = False, write: bool = False,
                     options: QueueOptions | None = None) -> Queue:
    """Open a queue. Raises NotAllowed with the broker's message if it refuses, Unreachable if it does not answer in time."""
    try:
        queue = await context.wait_for(session.open(uri, read=read, write=write, options=options))
    except SdkError as error:
        if error.result in (Result.TIMEOUT, Result.NOT_CONNECTED, Result.CANCELED):
            raise Unreachable(f"{uri} was not opened in time: {error.message or error.result}") from None
        raise NotAllowed(f"the broker refused to open {uri}: {error.message or error.result}") from None
    if queue is None:
        raise CommandFailed("interrupted before the queue was open", context.exit_code)
    return queue
