"""Execution of shell commands, and logging of session events, messages and acknowledgements, in one asyncio loop.

Errors of users and brokers are logged with severity ERROR and counted in `failures`; `run` does not raise them.
`command.py` passes each line to `Shell.run`; the grammar is in `commands.py`, the printed texts in `printing.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bmqtwist.cli.shell.commands import (
    HELP,
    Flags,
    ShellCommandError,
    UnparsableCommand,
    parse,
    parse_dump,
    parse_flags,
    select_guids,
)
from bmqtwist.cli.shell.log_output import EventFile, payload_text
from bmqtwist.cli.shell.message_series import SeriesParameters, SeriesPoster, next_number
from bmqtwist.cli.shell.printing import (
    ack_text,
    command_text,
    correlation_text,
    format_unconfirmed,
    message_event_text,
    name_and_code,
    outcome_text,
    push_text,
    session_event_text,
    status_text,
)
from bmqtwist.cli.shell.settings import ShellSettings, queue_options, session_options, tls_context
from bmqtwist.errors import BmqError, PeerError
from bmqtwist.sdk import aio
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.results import Ack, EventKind, PostsFailed, Result, SdkError, SessionEvent
from bmqtwist.wire.properties import PropertyType

START_TIMEOUT_S = 5.0
LISTED_MAX = 100_000  # unconfirmed messages stored per queue; a broadcast queue has no window that limits them
_ROOM_WAIT_S = 5.0
_ACKS_WAIT_S = 5.0


class _OpenedQueue:
    """A queue that is open or being opened, with its unconfirmed messages."""

    def __init__(self, uri: str, flags: Flags) -> None:
        self.uri, self.flags, self.number = uri, flags, next_number()
        self.queue: aio.Queue | None = None  # None while it is being opened
        self.messages: dict[bytes, Message] = {}  # unconfirmed, in order of arrival
        self.overflowed = False

    @property
    def opened(self) -> aio.Queue:
        """The open queue. Raises ShellCommandError while it is being opened."""
        if self.queue is None:
            raise ShellCommandError(f"'{self.uri}' is not open yet")
        return self.queue


class _ResultLog:
    """Logs the outcome of requests and counts failures."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self.failures = 0

    def error(self, text: str) -> None:
        self.failures += 1
        self._log.error("%s", text, stacklevel=2)

    def log_result(self, text: str, result: Result | str) -> None:
        if result is not Result.SUCCESS:
            self.failures += 1
        self._log.log(logging.INFO if result is Result.SUCCESS else logging.ERROR, "<-- session.%s", text, stacklevel=2)


class _ReceivedItems:
    """Batches received messages and ACKs, logs them in the next turn of the loop, and stores messages with their queues.
    `arrived` is set when messages are stored."""

    def __init__(self, settings: ShellSettings, log: logging.Logger, event_file: EventFile, results: _ResultLog,
                 entries: dict[str, _OpenedQueue]) -> None:
        self._settings, self._log, self._event_file = settings, log, event_file
        self._results, self._entries = results, entries
        self._messages: list[Message] = []
        self._acks: list[Ack] = []
        self._reporting = False
        self.arrived = asyncio.Event()

    def on_ack(self, ack: Ack) -> None:
        self._acks.append(ack)
        self._schedule_report()

    def on_message(self, message: Message) -> None:
        self._messages.append(message)
        self._schedule_report()

    def _schedule_report(self) -> None:
        if not self._reporting:
            self._reporting = True
            asyncio.get_running_loop().call_soon(self.report)

    def report(self) -> None:
        """Log the messages and ACKs received since the last call, and store the messages."""
        self._reporting = False
        acks, self._acks = self._acks, []
        if acks:
            self._report_acks(acks)
        messages, self._messages = self._messages, []
        if messages:
            self._report_messages(messages)
            self.arrived.set()

    def _report_acks(self, acked: list[Ack]) -> None:
        self._log.info("==> EVENT received: %s", message_event_text("ACK", (ack.uri for ack in acked)))
        for index, ack in enumerate(acked):
            entry = self._entries.get(ack.uri)
            number = entry.number if entry else 0
            _, code = name_and_code(ack.status)
            self._event_file.write("ACK", ack.uri, correlation_text(ack.correlation), ack.guid, code, "")
            if not ack.ok:
                self._results.error(f"ACK #{index}: {ack_text(ack, number)}")
            elif self._settings.dump_msg:
                self._log.info("ACK #%d: %s", index, ack_text(ack, number))

    def _report_messages(self, arrived: list[Message]) -> None:
        self._log.info("==> EVENT received: %s", message_event_text("PUSH", (message.uri for message in arrived)))
        for index, message in enumerate(arrived):
            entry = self._entries.get(message.uri)
            if entry is None:
                continue  # the queue is closed: the broker redelivers the message
            if self._event_file.enabled:
                self._event_file.write("PUSH", message.uri, message.guid, payload_text(_decoded_payload(message)))
            if self._settings.dump_msg:
                self._log.info("PUSH #%d: %s", index, push_text(message, entry.number))
            if self._settings.confirm_msg:
                self._confirm_one(message)
            else:
                self._store(entry, message)

    def _store(self, entry: _OpenedQueue, message: Message) -> None:
        entry.messages[message.guid] = message
        if len(entry.messages) > LISTED_MAX:
            del entry.messages[next(iter(entry.messages))]
            if not entry.overflowed:
                entry.overflowed = True
                self._log.warning("more than %d messages of %s: the oldest are no longer listed", LISTED_MAX, entry.uri)

    def _confirm_one(self, message: Message) -> None:
        try:
            message.confirm()
        except SdkError as error:
            self._results.error(f"Failed to confirm {message.guid.hex().upper()}: {error}")
        else:
            self._event_file.write("CONFIRM", message.uri, message.guid, "")


class Shell:
    """An optional session and its queues."""

    def __init__(self, settings: ShellSettings, log: logging.Logger, event_file: EventFile) -> None:
        self._settings, self._log, self._event_file = settings, log, event_file
        self._session: aio.Session | None = None
        self._entries: dict[str, _OpenedQueue] = {}
        self._results = _ResultLog(log)
        self._received = _ReceivedItems(settings, log, event_file, self._results, self._entries)
        self._tasks: set[asyncio.Task[None]] = set()
        self._actions: dict[str, Callable[[dict[str, Any]], Awaitable[None]]] = {
            "start": self._start, "stop": self._stop, "open": self._open, "configure": self._configure,
            "close": self._close, "post": self._post, "batch-post": self._batch_post, "load-post": self._load_post,
            "list": self._list, "confirm": self._confirm, "wait": self._wait, "help": self._help}

    @property
    def failures(self) -> int:
        return self._results.failures

    # -- commands -----------------------------------------------------------------------------------------------------

    def uris(self) -> list[str]:
        return sorted(self._entries)

    async def run(self, line: str) -> bool:
        """Execute a command line; return False for `bye`."""
        try:
            command = parse(line)
            if command is not None and command[0] == "bye":
                return False
            if command is not None:
                await self._actions[command[0]](command[1])
        except UnparsableCommand as error:
            self._results.error(f"Unable to decode: {line.strip()[:300]}\n{error}")
        except BmqError as error:
            self._results.error(str(error))
        except OSError as error:
            self._results.error(f"{error.filename or 'file'}: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001 - the following commands can still be executed
            self._results.error(f"{type(error).__name__}: {error}")
        return True

    async def finish(self) -> None:
        if self._session is not None:
            await self._stop_session()
        for task in self._tasks:
            task.cancel()
        self._log.info("Goodbye.")

    def _start_task(self, work: Callable[[], Awaitable[None]]) -> None:
        async def guarded() -> None:
            try:
                await work()
            except BmqError as error:
                self._results.error(str(error))
        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the session --------------------------------------------------------------------------------------------------

    async def _start(self, command: dict[str, Any]) -> None:
        self._log.info("--> Starting session: %s", command_text(command))
        result = Result.SUCCESS
        if self._session is None:
            self._session = session = aio.Session(
                options=session_options(self._settings, START_TIMEOUT_S), tls=tls_context(self._settings),
                on_event=self._on_event)
            if command["async"]:
                self._start_task(lambda: self._connect(session))
            else:
                try:
                    await self._connect(session)
                except SdkError as error:
                    result = error.result
        self._results.log_result(f"start({START_TIMEOUT_S}) => {outcome_text(result)}", result)

    async def _connect(self, session: aio.Session) -> None:
        connected = False
        try:
            await session.start()
            connected = True
        finally:
            if not connected and self._session is session:
                self._session = None

    async def _stop(self, command: dict[str, Any]) -> None:
        self._log.info("--> Stopping session: %s", command_text(command))
        if command["async"]:
            self._start_task(self._stop_session)
        else:
            await self._stop_session()
        self._results.log_result("stop()", Result.SUCCESS)

    async def _stop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.stop()
            self._received.report()
        self._entries.clear()

    def _on_event(self, event: SessionEvent) -> None:
        self._received.report()
        self._log.info("==> EVENT received: %s", session_event_text(event))
        self._event_file.write_event(event)
        if event.kind is EventKind.QUEUE_REOPEN_RESULT and event.result is not Result.SUCCESS:
            self._entries.pop(event.uri, None)

    # -- queues -------------------------------------------------------------------------------------------------------

    def _find_entry(self, uri: str) -> _OpenedQueue:
        entry = self._entries.get(uri)
        if entry is None:
            raise ShellCommandError(f"unknown queue '{uri}'")
        return entry

    async def _request(self, name: str, entry: _OpenedQueue, send: Callable[[], Awaitable[Any]], asynchronous: bool,
                       on_success: Callable[[Any], None], on_failure: Callable[[], None] = lambda: None) -> None:
        """Send a request for a queue and log its outcome; if `asynchronous`, do not wait for the answer."""
        kind = name.removesuffix("Queue")

        async def work() -> None:
            result, message, value = Result.UNKNOWN, "", None
            try:
                value = await send()
                result = Result.SUCCESS
            except SdkError as error:
                result, message = error.result, error.message
            finally:
                if result is not Result.SUCCESS:
                    on_failure()
            if result is Result.SUCCESS:
                on_success(value)
            if asynchronous:
                status = status_text(entry.uri, entry.number, kind, result, message)
                self._log.info("==> %s_QUEUE_RESULT received: %s", kind.upper(), status)
            self._log_outcome(name, entry, asynchronous, result, message)

        if asynchronous:
            self._start_task(work)
        else:
            await work()

    def _log_outcome(self, name: str, entry: _OpenedQueue, asynchronous: bool, result: Result | str,
                     message: str = "") -> None:
        kind = name.removesuffix("Queue")
        status = status_text(entry.uri, entry.number, kind, result, message)
        form = "Async" if asynchronous else "Sync"
        self._results.log_result(f"{name}{form}() => {name_and_code(result, kind)[0]} ({status})", result)

    async def _open(self, command: dict[str, Any]) -> None:
        flags = parse_flags(command["flags"])
        options = queue_options(command)
        self._log.info("--> Opening queue: %s", command_text(command))
        uri, session, known = command["uri"], self._session, self._entries.get(command["uri"])
        entry = known or _OpenedQueue(uri, flags)
        refusal: Result | str = ""
        if session is None:
            refusal = Result.NOT_CONNECTED
        elif known is not None:
            refusal = Result.ALREADY_IN_PROGRESS if known.queue is None else Result.ALREADY_OPENED
        elif not flags.any:
            refusal = "INVALID_FLAGS"
        if refusal or session is None:
            self._log_outcome("openQueue", entry, command["async"], refusal)
            return
        self._entries[uri] = entry

        def send() -> Awaitable[Any]:
            return session.open(uri, read=flags.read, write=flags.write, options=options,
                                on_message=self._received.on_message)

        def on_success(queue: aio.Queue) -> None:
            entry.queue = queue

        await self._request("openQueue", entry, send, command["async"], on_success, lambda: self._remove_entry(entry))

    def _remove_entry(self, entry: _OpenedQueue) -> None:
        if self._entries.get(entry.uri) is entry:
            del self._entries[entry.uri]

    async def _configure(self, command: dict[str, Any]) -> None:
        entry = self._find_entry(command["uri"])
        options = queue_options(command)
        queue = entry.opened
        self._log.info("--> Configuring queue: %s", command_text(command))
        await self._request("configureQueue", entry, lambda: queue.configure(options), command["async"], lambda _: None)

    async def _close(self, command: dict[str, Any]) -> None:
        entry = self._find_entry(command["uri"])
        queue = entry.opened
        self._log.info("--> Closing queue: %s", command_text(command))
        # the entry is removed even if the request fails
        await self._request("closeQueue", entry, lambda: _flush_and_close(queue), command["async"],
                            lambda _: self._remove_entry(entry), lambda: self._remove_entry(entry))

    # -- posting ------------------------------------------------------------------------------------------------------

    async def _post(self, command: dict[str, Any]) -> None:
        entry = self._find_entry(command["uri"])
        entry.opened  # noqa: B018 - raises if the queue is not open
        compression = command["compressionAlgorithmType"].lower()
        if compression not in ("none", "zlib", ""):
            self._log.warning("'%s' is not a valid compression type, message will be sent uncompressed.",
                              command["compressionAlgorithmType"])
        self._log.info("--> Posting message: %s", command_text(command))
        await self._send(entry, [each.encode("utf-8", "surrogateescape") for each in command["payload"]],
                         {each.name: each.value for each in command["messageProperties"]},
                         {each.name: each.kind for each in command["messageProperties"]}, compression == "zlib")

    async def _load_post(self, command: dict[str, Any]) -> None:
        entry = self._find_entry(command["uri"])
        entry.opened  # noqa: B018
        self._log.info("--> Loading and posting message: %s", command_text(command))
        payload, properties = parse_dump(Path(command["file"]).read_text(encoding="utf-8", errors="replace"))
        await self._send(entry, [payload], {name: value for name, (_, value) in properties.items()},
                         {name: kind for name, (kind, _) in properties.items()}, False)

    async def _send(self, entry: _OpenedQueue, payloads: list[bytes], values: dict[str, Any], types: dict[str, PropertyType],
                    compress: bool) -> None:
        """Post messages in one event."""
        session = entry.opened.session
        refusal: Result | str = ""
        if not entry.flags.write:
            refusal = "QUEUE_READONLY"
        elif not all(payloads):
            refusal = Result.PAYLOAD_EMPTY
        if refusal:
            raise ShellCommandError(f"Failed to pack message. rc: {outcome_text(refusal, 'pack')}")
        result = Result.SUCCESS
        try:
            for payload in payloads:
                await self._post_one(entry, payload, values, types, compress)
        except SdkError as error:
            result = error.result
        session.turn(flush=True)
        self._results.log_result(f"post() => {outcome_text(result)}", result)

    async def _post_one(self, entry: _OpenedQueue, payload: bytes, values: dict[str, Any], types: dict[str, PropertyType],
                        compress: bool) -> None:
        """Post a message, and wait up to 5 s for room in the output buffer."""
        queue, loop, number = entry.opened, asyncio.get_running_loop(), next_number()
        end = loop.time() + _ROOM_WAIT_S
        while True:
            try:
                guid = queue.post_nowait(payload, values, types, ack=entry.flags.ack, compress=compress,
                                         on_ack=self._received.on_ack if entry.flags.ack else None, correlation=number)
                break
            except SdkError as error:
                if error.result is not Result.BW_LIMIT or loop.time() >= end:
                    raise
            await queue.session.room(max(end - loop.time(), 0.0), size=len(payload))
        if self._event_file.enabled:
            self._event_file.write("PUT", entry.uri, correlation_text(number), guid, payload_text(payload))

    async def _batch_post(self, command: dict[str, Any]) -> None:
        entry = self._find_entry(command["uri"])
        payloads = tuple(each.encode("utf-8", "surrogateescape") for each in command["payload"])
        plan = SeriesParameters(command["eventsCount"], 0.0, command["eventSize"], command["msgSize"], command["postRate"],
                                command["postInterval"], payloads, auto_incremented=command["autoIncremented"])
        if not entry.flags.write:
            raise ShellCommandError(f"Failed to pack message. rc: {outcome_text('QUEUE_READONLY', 'pack')}")
        poster = SeriesPoster(plan, entry.opened, self._received.on_ack if entry.flags.ack else None, self._event_file)
        session = entry.opened.session
        await poster.run(lambda: session.core.online, lambda: True)
        self._log.info("All messages have been posted")

    # -- consuming ----------------------------------------------------------------------------------------------------

    async def _list(self, command: dict[str, Any]) -> None:
        self._log.info("%s", format_unconfirmed([(message, entry.number) for entry in self._select_entries(command["uri"])
                                                 for message in entry.messages.values()]))

    async def _confirm(self, command: dict[str, Any]) -> None:
        entry = self._find_entry(command["uri"])
        guids = select_guids(command["guid"], list(entry.messages))
        if not guids:
            self._log.info("No messages to confirm")
        for guid in guids:
            self._log.info("--> Confirming message with GUID %s", guid.hex().upper())
            message, result = entry.messages[guid], Result.SUCCESS
            try:
                message.confirm()
            except SdkError as error:
                result = error.result
            else:
                self._event_file.write("CONFIRM", message.uri, message.guid, "")
                del entry.messages[guid]
            self._results.log_result(f"confirmMessage() => {outcome_text(result)}", result)

    async def _wait(self, command: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + command["timeout"]
        while (count := sum(len(entry.messages) for entry in self._select_entries(command["uri"]))) < command["messages"]:
            self._received.arrived.clear()
            try:
                await asyncio.wait_for(self._received.arrived.wait(), end - loop.time())
            except TimeoutError:
                raise ShellCommandError(
                    f"{count} of {command['messages']} messages within {command['timeout']:g} s") from None
        self._log.info("%d messages have arrived", count)

    def _select_entries(self, uri: str | None) -> list[_OpenedQueue]:
        return list(self._entries.values()) if uri is None else [self._find_entry(uri)]

    async def _help(self, _: dict[str, Any]) -> None:
        self._log.info("\n%s", HELP)


async def _flush_and_close(queue: aio.Queue) -> None:
    """Close a queue after waiting up to 5 s for pending acknowledgements; the remaining posts fail."""
    if queue.core.is_open and queue.session.core.online:
        with suppress(TimeoutError, PostsFailed):
            await asyncio.wait_for(queue.flush(), _ACKS_WAIT_S)
    await queue.close()


def _decoded_payload(message: Message) -> bytes:
    try:
        return message.payload
    except PeerError:
        return b""
