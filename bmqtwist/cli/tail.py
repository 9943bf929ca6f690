"""`bmq tail`: follow a queue without consuming its messages.

A broadcast queue is consumed, because each consumer receives every message. In the other modes a consumer would withhold
messages from the queue's consumers. Instead `tail` polls one of two sources: the broker's storage files (`--storage`),
which contain every stored message with its payload; or the admin command LIST, which shows GUID, arrival time and size
of the stored messages, without payload, and misses messages that arrive and are confirmed between two polls.

Each poll of storage files reads the records appended since the last one. The first records of a file set are copies made by
the rollover; they have the same PSN (lease, sequence number) and are not printed again. Started by `main.py`;
`consume.Printer` prints the messages of broadcast queues, `storagetool/inputs.py` opens storage files.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import click

from bmqtwist.cli.adminclient import AdminClient
from bmqtwist.cli.client_command import ClientCommandContext, check_uri, open_queue, print_note, run_command, run_in_thread
from bmqtwist.cli.connection import ConnectionOptions, connection_options
from bmqtwist.cli.consume import ConsumeLimits, ConsumerOptions, OutputFormat, Printer, printing_options
from bmqtwist.cli.exits import EXIT_CLOSED_PIPE, EXIT_GOOD, EXIT_NOT_ALL, NotAllowed
from bmqtwist.cli.optiongroups import grouped_options
from bmqtwist.cli.output import StandardOutput
from bmqtwist.cli.textforms import MessageFormatter
from bmqtwist.ids import QueueUri, parse_uri
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Subscription
from bmqtwist.storage.journal import JournalScan
from bmqtwist.storage.records import MAGIC, RECORD, RECORD_BYTES, TYPE_SHIFT
from bmqtwist.storagetool.datafile import DataError, DataFile
from bmqtwist.storagetool.inputs import InputError, ReadOnlyFile, SetFiles, file_sets, ledger_files, open_ledger
from bmqtwist.storagetool.journalview import MESSAGE, JournalRecord, records
from bmqtwist.storagetool.ledgerview import LedgerQueue, queues_of
from bmqtwist.wire.fast import MESSAGE_PROPERTIES

_READ_BYTES = RECORD_BYTES << 12
POLL_MESSAGES_MAX, _POLL_BYTES_MAX = 1000, 64 << 20  # limits of one poll; the next poll continues from there


class StoredMessage(Message):
    """A message read from a file; `wall`: arrival time, seconds since the epoch."""

    __slots__ = ("wall",)

    def __init__(self, uri: str, record: JournalRecord, data: bytes, flags: int, schema_wire_id: int) -> None:
        queue: Any = SimpleNamespace(uri=uri, codec=None)
        super().__init__(queue, Subscription(), record.guid, data, flags, schema_wire_id << 3 | record.compression)
        self.wall = record.wall


class StorageFollower:
    """Follows the queue `uri` through the files of `directory`, beginning with the last `lines` stored messages.

    `queue` is None until the ledger contains the queue.
    """

    def __init__(self, directory: str, uri: str, lines: int) -> None:
        self._directory, self._uri, self._lines = directory, uri, lines
        self.queue: LedgerQueue | None = None
        self._stamp = ""
        self._end = 0  # read position in the present journal
        self._last = (0, 0)  # PSN of the last message read, of any queue
        self.problems: list[str] = []
        self.waiting = False  # the ledger does not contain the queue yet, and the user was notified

    def poll(self) -> list[StoredMessage]:
        """Return the messages stored since the last poll. Raises InputError if the files cannot be read."""
        if self.queue is None or self.queue.removed:
            self.queue = self._find_queue()
        if self.queue is None:
            return []
        found: list[StoredMessage] = []
        sets = [each for each in file_sets(self._directory) if each.journal and each.data
                and each.partition_id == self.queue.partition_id and "damaged." not in each.journal]
        for each in sets:
            if each.stamp >= self._stamp and len(found) < POLL_MESSAGES_MAX:
                found += self._read_files(each, self.queue.key)
        return found

    def _find_queue(self) -> LedgerQueue | None:
        ledgers = ledger_files(self._directory)
        if not ledgers:
            raise InputError(f"{self._directory} contains no ledger (.bmq_csl): is it the storage directory of a broker?")
        queues = queues_of(open_ledger(ledgers[-1]).entries)
        return next((each for each in queues.values() if each.uri == self._uri and not each.removed), None)

    def _read_files(self, files: SetFiles, key: bytes) -> list[StoredMessage]:
        with ExitStack() as stack:
            try:
                journal, data = ReadOnlyFile(files.journal), ReadOnlyFile(files.data)
            except InputError:
                return []  # archived: the rollover copied its live records to the next file set
            stack.callback(journal.close)
            stack.callback(data.close)
            payloads = DataFile(data.read, data.size)
            new = (record for record in self._new_records(journal, files.stamp)
                   if record.type == MESSAGE and self._is_new(record) and record.queue_key == key)
            if not self._stamp:
                return self._read_messages(deque(new, maxlen=self._lines), payloads)
            return self._read_messages(new, payloads)

    def _is_new(self, record: JournalRecord) -> bool:
        new = record.psn > self._last
        if new:
            self._last = record.psn
        return new

    def _read_messages(self, found: Iterable[JournalRecord], payloads: DataFile) -> list[StoredMessage]:
        messages: list[StoredMessage] = []
        size = 0
        for record in found:
            try:
                stored = payloads.record(record.data_dwords << 3)
            except DataError as error:
                self.problems.append(f"message {record.guid.hex().upper()}: {error}")
                continue
            flags = MESSAGE_PROPERTIES if stored.has_properties else 0
            messages.append(StoredMessage(self._uri, record, stored.data, flags, stored.schema_wire_id))
            size += len(stored.data)
            if len(messages) >= POLL_MESSAGES_MAX or size >= _POLL_BYTES_MAX:
                break
        return messages

    def _new_records(self, journal: ReadOnlyFile, stamp: str) -> Iterator[JournalRecord]:
        if stamp != self._stamp:
            scan = JournalScan(journal.read, journal.size)
            yield from records(scan)
            self._stamp, self._end = stamp, scan.end
        while chunk := journal.read(self._end, _READ_BYTES):
            for record in RECORD.iter_unpack(chunk[:len(chunk) // RECORD_BYTES * RECORD_BYTES]):
                head, lease, wall, body, magic = record
                if magic != MAGIC or not head >> TYPE_SHIFT:
                    return
                yield JournalRecord((self._end, head, lease, wall, body))
                self._end += RECORD_BYTES
            if len(chunk) < RECORD_BYTES:
                return


@dataclass(frozen=True, slots=True)
class TailLimits(ConsumeLimits):
    """Conditions that end the command, and `lines`: number of stored messages to print first; `follow`: continue after them;
    `interval`: seconds between two polls."""

    lines: int = 10
    follow: bool = True
    interval: float = 0.5


@click.command()
@connection_options
@click.argument("uri")
@grouped_options(
    "limits", TailLimits,
    click.option("-n", "--lines", default=10, show_default=True, type=click.IntRange(0, POLL_MESSAGES_MAX),
                 help="Number of stored messages to print first."),
    click.option("--follow/--no-follow", default=True, help="Follow the queue, or exit after the stored messages."),
    click.option("--count", type=click.IntRange(1), help="Stop after this number of messages."),
    click.option("--duration", type=click.FloatRange(0, min_open=True), help="Stop after this number of seconds."),
    click.option("--idle", type=click.FloatRange(0, min_open=True),
                 help="Stop when no message has arrived for this number of seconds."),
    click.option("--interval", default=0.5, show_default=True, type=click.FloatRange(0.01),
                 help="Seconds between two polls."))
@click.option("-s", "--subscription", "expressions", multiple=True, metavar="EXPRESSION",
              help="Broadcast queues: print only messages whose properties match. Repeatable.")
@click.option("--storage", "directory", type=click.Path(exists=True, file_okay=False), metavar="DIR",
              help="Read the broker's storage files in DIR instead of connecting to the broker.")
@printing_options
def tail(connection: ConnectionOptions, uri: str, limits: TailLimits, expressions: tuple[str, ...], directory: str | None,
         printing: OutputFormat) -> None:
    """Follow the queue URI without consuming its messages.

    Broadcast: prints new messages as `bmq consume` does. Priority and fanout: prints arrival time, GUID and size of each
    stored message (with `?id=app`: messages that the app has not confirmed). The broker delivers payloads to consumers
    only; on the broker's machine `--storage DIR` reads them from its files.
    """
    formatter, options, target = printing.compile(), ConsumerOptions(expressions).queue_options(), parse_uri(check_uri(uri))
    if directory is not None and (expressions or target.app_id):
        raise click.UsageError("The files contain the messages of all apps: omit --subscription and ?id=.")

    async def from_storage(context: ClientCommandContext) -> int:
        with StandardOutput() as output:
            files = StorageFollower(directory or "", target.canonical, limits.lines)
            return await print_messages(context, output, lambda: _poll_storage(context, files, formatter), limits)

    async def from_broker(context: ClientCommandContext) -> int:
        with StandardOutput() as output:
            client = await context.wait_for(run_in_thread(connection.open_admin))
            if client is None:
                return EXIT_GOOD
            with client:
                if not await context.wait_for(_is_broadcast(client, target)):
                    if printing.shows_content or expressions:
                        raise click.UsageError(
                            f"{uri} is not a broadcast queue: its payloads cannot be read without consuming. Omit --hex, "
                            "--format and --subscription, use --storage on the broker's machine, or `bmq consume --peek`.")
                    listing = QueueListing(context, client, target, printing.as_json)
                    return await print_messages(context, output, listing.poll, limits)
            if not limits.follow:
                raise click.UsageError(f"{uri} is a broadcast queue: it stores no messages, so --no-follow shows none.")
            async with context.session(connection) as session:
                queue = await open_queue(context, session, uri, read=True, options=options)
                return await Printer(context, queue, output, formatter, limits, 0, lambda done: None).run()
    raise SystemExit(run_command(from_broker if directory is None else from_storage))


async def _run_command(client: AdminClient, command: str) -> dict[str, Any]:
    answer = await run_in_thread(partial(client.run, f"ENCODING JSON_COMPACT {command}"))
    try:
        tree = json.loads(answer, strict=False)
    except ValueError:
        tree = {"error": {"message": answer}}
    return tree if isinstance(tree, dict) else {}


async def _is_broadcast(client: AdminClient, target: QueueUri) -> bool:
    """Return whether the queue's domain is a broadcast domain. Raises NotAllowed, with the broker's message, on an error."""
    tree = await _run_command(client, f"DOMAINS DOMAIN {target.qualified_domain} INFOS")
    try:
        return "broadcast" in json.loads(_find_member(tree, "domainInfo")["configJson"], strict=False)["mode"]
    except (KeyError, TypeError, ValueError):
        raise NotAllowed(f"the broker does not describe the domain {target.qualified_domain}: "
                         f"{_error_of(tree)}") from None


def _find_member(tree: Any, name: str) -> Any:
    """Return the first member of that name at any depth: answers of several nodes are nested."""
    if isinstance(tree, dict):
        return tree[name] if name in tree else _find_member(list(tree.values()), name)
    found = (_find_member(each, name) for each in tree) if isinstance(tree, list) else ()
    return next((each for each in found if each is not None), None)


def _error_of(tree: dict[str, Any]) -> str:
    error = _find_member(tree, "error")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error or tree)


async def print_messages(context: ClientCommandContext, output: StandardOutput, poll: Callable[[], Awaitable[list[bytes]]],
                         limits: TailLimits) -> int:
    """Print the stored messages, then new ones, and return the exit code. `poll` returns the new messages, formatted."""
    shown, begun = 0, time.monotonic()
    last = begun
    new = await poll()
    new = new[max(len(new) - limits.lines, 0):]
    while True:
        if limits.count is not None:
            new = new[:limits.count - shown]
        await output.write(b"".join(new), context.stopping)
        shown += len(new)
        now = time.monotonic()
        last = now if new else last
        if output.reader_closed.is_set():
            return EXIT_CLOSED_PIPE
        if context.stopping.is_set() or not limits.follow or limits.count == shown:
            return EXIT_GOOD
        if limits.duration and now - begun >= limits.duration or limits.idle and now - last >= limits.idle:
            return EXIT_GOOD if limits.count is None else EXIT_NOT_ALL
        if len(new) < POLL_MESSAGES_MAX:  # after a full poll, poll again at once
            await context.sleep(limits.interval)
        new = await poll()


class QueueListing:
    """Lists the messages of a queue by polling with the admin command LIST. `poll` returns a line for each new message."""

    def __init__(self, context: ClientCommandContext, client: AdminClient, target: QueueUri, as_json: bool) -> None:
        self._context, self._client, self._json = context, client, as_json
        self._uri = target.canonical
        app = f"{target.app_id} " if target.app_id else ""
        self._command = (f"DOMAINS DOMAIN {target.qualified_domain} QUEUE {target.queue} LIST {app}"
                         f"-{POLL_MESSAGES_MAX} {POLL_MESSAGES_MAX}")
        self._seen: set[str] = set()
        self._waiting = False

    async def poll(self) -> list[bytes]:
        tree = await self._context.wait_for(_run_command(self._client, self._command))
        if tree is None:
            return []
        contents = _find_member(tree, "queueContents")
        if not isinstance(contents, dict):
            if not self._waiting:
                print_note(f"{_error_of(tree)}; waiting for the queue")
            self._waiting = True
            return []
        found = {each["guid"]: self._format_line(each["guid"], each["arrivalTimestamp"], each["sizeBytes"])
                 for each in contents["messages"]}
        new = [line for guid, line in found.items() if guid not in self._seen]
        if self._seen and len(new) == POLL_MESSAGES_MAX:
            print_note(f"more than {POLL_MESSAGES_MAX} messages arrived since the last poll: some are not shown")
        self._seen = set(found)
        return new

    def _format_line(self, guid: str, arrived: str, size: int) -> bytes:
        if self._json:
            return json.dumps({"guid": guid, "uri": self._uri, "time": arrived, "size": size}).encode() + b"\n"
        return f"{arrived}  {guid}  {size}\n".encode()


async def _poll_storage(context: ClientCommandContext, follower: StorageFollower,
                        formatter: MessageFormatter) -> list[bytes]:
    """Return the messages stored since the last poll, formatted."""
    waiting = follower.waiting
    found = await context.wait_for(run_in_thread(follower.poll))
    follower.waiting = waiting or follower.queue is None
    if follower.waiting and not waiting:
        print_note("the ledger contains no such queue; waiting for it")
    for problem in follower.problems:
        print_note(problem)
    follower.problems.clear()
    return [line for message in found or () if (line := formatter(message)) is not None]
