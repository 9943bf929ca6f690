"""`bmq tail`: follow a queue without taking anything from its consumers.

A broadcast queue is read as any other reader reads it. Of the other queues a reader cannot see a message without
keeping it from the consumers. So `tail` either reads the broker's storage files (`--storage`), which hold every message
that arrives with what is in it; or it looks again and again at what the broker has stored, with the admin command LIST:
that shows which messages arrive, when, and how large they are, but not what is in them, and not those that arrive and
are confirmed between two looks.

Of storage files each look reads the records that were appended since the last one. A rollover begins a new file set whose
first records are copies; they keep their numbers (lease, sequence), and so none is shown twice.
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
from bmqtwist.cli.connection import Connection, connection_options
from bmqtwist.cli.consume import Limits, Printer, Printing, Reading, printing_options
from bmqtwist.cli.exits import EXIT_CLOSED_PIPE, EXIT_GOOD, EXIT_NOT_ALL, NotAllowed
from bmqtwist.cli.optiongroups import gathered
from bmqtwist.cli.output import Output
from bmqtwist.cli.running import Life, checked_uri, in_thread, note, open_queue, run
from bmqtwist.cli.textforms import Form
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
LOOK_MESSAGES_MAX, _LOOK_BYTES_MAX = 1000, 64 << 20  # what one look gives at most; the next one goes on from there


class StoredMessage(Message):
    """A message as it lies in a file; `wall`: when it arrived, seconds since the epoch."""

    __slots__ = ("wall",)

    def __init__(self, uri: str, record: JournalRecord, data: bytes, flags: int, schema_wire_id: int) -> None:
        queue: Any = SimpleNamespace(uri=uri, codec=None)
        super().__init__(queue, Subscription(), record.guid, data, flags, schema_wire_id << 3 | record.compression)
        self.wall = record.wall


class StorageFollower:
    """Follows the queue `uri` through the files of `directory`, beginning with the last `lines` messages they hold.

    `known` is None until the ledger knows the queue.
    """

    def __init__(self, directory: str, uri: str, lines: int) -> None:
        self._directory, self._uri, self._lines = directory, uri, lines
        self.known: LedgerQueue | None = None
        self._stamp = ""
        self._end = 0  # of what was read in the present journal
        self._last = (0, 0)  # lease and sequence of the last message that was read, of whatever queue
        self.problems: list[str] = []
        self.waiting = False  # for the ledger, which was said

    def look(self) -> list[StoredMessage]:
        """What arrived since the last look. InputError if the files cannot be read."""
        if self.known is None or self.known.removed:
            self.known = self._find()
        if self.known is None:
            return []
        found: list[StoredMessage] = []
        sets = [each for each in file_sets(self._directory) if each.journal and each.data
                and each.partition_id == self.known.partition_id and "damaged." not in each.journal]
        for each in sets:
            if each.stamp >= self._stamp and len(found) < LOOK_MESSAGES_MAX:
                found += self._read(each, self.known.key)
        return found

    def _find(self) -> LedgerQueue | None:
        ledgers = ledger_files(self._directory)
        if not ledgers:
            raise InputError(f"{self._directory} holds no ledger (.bmq_csl): is it the storage directory of a broker?")
        queues = queues_of(open_ledger(ledgers[-1]).entries)
        return next((queue for queue in queues.values() if queue.uri == self._uri and not queue.removed), None)

    def _read(self, files: SetFiles, key: bytes) -> list[StoredMessage]:
        with ExitStack() as stack:
            try:
                journal, data = ReadOnlyFile(files.journal), ReadOnlyFile(files.data)
            except InputError:
                return []  # archived meanwhile: what it held last was copied to the next one
            stack.callback(journal.close)
            stack.callback(data.close)
            payloads = DataFile(data.read, data.size)
            news = (record for record in self._records(journal, files.stamp)
                    if record.type == MESSAGE and self._is_new(record) and record.queue_key == key)
            if not self._stamp:
                return self._messages(deque(news, maxlen=self._lines), payloads)
            return self._messages(news, payloads)

    def _is_new(self, record: JournalRecord) -> bool:
        new = record.psn > self._last
        if new:
            self._last = record.psn
        return new

    def _messages(self, found: Iterable[JournalRecord], payloads: DataFile) -> list[StoredMessage]:
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
            if len(messages) >= LOOK_MESSAGES_MAX or size >= _LOOK_BYTES_MAX:
                break
        return messages

    def _records(self, journal: ReadOnlyFile, stamp: str) -> Iterator[JournalRecord]:
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
class Plan(Limits):
    """`lines`: of what is there at first; `follow`: go on; `interval`: seconds between two looks."""

    lines: int = 10
    follow: bool = True
    interval: float = 0.5


@click.command()
@connection_options
@click.argument("uri")
@gathered("plan", Plan,
          click.option("-n", "--lines", default=10, show_default=True, type=click.IntRange(0, LOOK_MESSAGES_MAX),
                       help="Begin with that many stored messages."),
          click.option("--follow/--no-follow", default=True, help="Go on, or end after those."),
          click.option("--count", type=click.IntRange(1), help="Stop after so many messages."),
          click.option("--duration", type=click.FloatRange(0, min_open=True), help="Stop after so many seconds."),
          click.option("--idle", type=click.FloatRange(0, min_open=True), help="Stop when none came for so many seconds."),
          click.option("--interval", default=0.5, show_default=True, type=click.FloatRange(0.01),
                       help="Seconds between two looks."))
@click.option("-s", "--subscription", "expressions", multiple=True, metavar="EXPRESSION",
              help="Broadcast: only messages whose properties fulfil it. Repeatable.")
@click.option("--storage", "directory", type=click.Path(exists=True, file_okay=False), metavar="DIR",
              help="Read the storage files of the broker in DIR instead of asking the broker.")
@printing_options
def tail(connection: Connection, uri: str, plan: Plan, expressions: tuple[str, ...], directory: str | None,
         printing: Printing) -> None:
    """Follow the queue URI without consuming anything.

    Broadcast: messages as `bmq consume` prints them, from now on. Priority and fanout: time of arrival, GUID and size
    of each message that gets stored (of those that `?id=app` has not confirmed). What is in them cannot be had from the
    broker without consuming; on its own machine `--storage DIR` reads it from the files.
    """
    form, options, target = printing.form(), Reading(expressions).options(), parse_uri(checked_uri(uri))
    if directory is not None and (expressions or target.app_id):
        raise click.UsageError("The files hold what arrives for all apps: leave out --subscription and ?id=.")

    async def from_storage(life: Life) -> int:
        with Output() as output:
            files = StorageFollower(directory or "", target.canonical, plan.lines)
            return await follow(life, output, lambda: _stored(life, files, form), plan)

    async def from_broker(life: Life) -> int:
        with Output() as output:
            client = await life.wait_for(in_thread(connection.admin))
            if client is None:
                return EXIT_GOOD
            with client:
                if not await life.wait_for(_is_broadcast(client, target)):
                    if printing.shows_content or expressions:
                        raise click.UsageError(
                            f"{uri} keeps its messages, and what is in them cannot be read without consuming: leave out "
                            "--hex, --format and --subscription, use --storage on the broker's machine, or `bmq consume "
                            "--peek`.")
                    return await follow(life, output, Listing(life, client, target, printing.as_json).look, plan)
            if not plan.follow:
                raise click.UsageError(f"{uri} is a broadcast queue: it keeps nothing that could be shown without "
                                       "following it.")
            async with life.session(connection) as session:
                queue = await open_queue(life, session, uri, read=True, options=options)
                return await Printer(life, queue, output, form, plan, 0, lambda done: None).run()
    raise SystemExit(run(from_broker if directory is None else from_storage))


async def _ask(client: AdminClient, command: str) -> dict[str, Any]:
    answer = await in_thread(partial(client.run, f"ENCODING JSON_COMPACT {command}"))
    try:
        tree = json.loads(answer, strict=False)
    except ValueError:
        tree = {"error": {"message": answer}}
    return tree if isinstance(tree, dict) else {}


async def _is_broadcast(client: AdminClient, target: QueueUri) -> bool:
    """Is it a queue that keeps nothing? NotAllowed with the broker's words if it does not say."""
    tree = await _ask(client, f"DOMAINS DOMAIN {target.qualified_domain} INFOS")
    try:
        return "broadcast" in json.loads(_member(tree, "domainInfo")["configJson"], strict=False)["mode"]
    except (KeyError, TypeError, ValueError):
        raise NotAllowed(f"the broker tells nothing about the domain {target.qualified_domain}: "
                         f"{_error_of(tree)}") from None


def _member(tree: Any, name: str) -> Any:
    """The first member of that name: answers of several nodes come wrapped."""
    if isinstance(tree, dict):
        return tree[name] if name in tree else _member(list(tree.values()), name)
    found = (_member(each, name) for each in tree) if isinstance(tree, list) else ()
    return next((each for each in found if each is not None), None)


def _error_of(tree: dict[str, Any]) -> str:
    error = _member(tree, "error")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error or tree)


async def follow(life: Life, output: Output, look: Callable[[], Awaitable[list[bytes]]], plan: Plan) -> int:
    """Print what is there, then what comes; the exit code. `look` gives the new messages, ready to be printed."""
    shown, begun = 0, time.monotonic()
    last = begun
    fresh = await look()
    fresh = fresh[max(len(fresh) - plan.lines, 0):]
    while True:
        if plan.count is not None:
            fresh = fresh[:plan.count - shown]
        await output.write(b"".join(fresh), life.stopping)
        shown += len(fresh)
        now = time.monotonic()
        last = now if fresh else last
        if output.gone.is_set():
            return EXIT_CLOSED_PIPE
        if life.stopping.is_set() or not plan.follow or plan.count == shown:
            return EXIT_GOOD
        if plan.duration and now - begun >= plan.duration or plan.idle and now - last >= plan.idle:
            return EXIT_GOOD if plan.count is None else EXIT_NOT_ALL
        if len(fresh) < LOOK_MESSAGES_MAX:  # else there may be more already
            await life.sleep(plan.interval)
        fresh = await look()


class Listing:
    """What the admin command LIST tells of a queue."""

    def __init__(self, life: Life, client: AdminClient, target: QueueUri, as_json: bool) -> None:
        self._life, self._client, self._json = life, client, as_json
        self._uri = target.canonical
        app = f"{target.app_id} " if target.app_id else ""
        self._command = (f"DOMAINS DOMAIN {target.qualified_domain} QUEUE {target.queue} LIST {app}"
                         f"-{LOOK_MESSAGES_MAX} {LOOK_MESSAGES_MAX}")
        self._seen: set[str] = set()
        self._waiting = False

    async def look(self) -> list[bytes]:
        tree = await self._life.wait_for(_ask(self._client, self._command))
        if tree is None:
            return []
        contents = _member(tree, "queueContents")
        if not isinstance(contents, dict):
            if not self._waiting:
                note(f"{_error_of(tree)}; waiting for it")
            self._waiting = True
            return []
        found = {each["guid"]: self._line(each["guid"], each["arrivalTimestamp"], each["sizeBytes"])
                 for each in contents["messages"]}
        fresh = [line for guid, line in found.items() if guid not in self._seen]
        if self._seen and len(fresh) == LOOK_MESSAGES_MAX:
            note(f"more than {LOOK_MESSAGES_MAX} messages arrived since the last look: some are not shown")
        self._seen = set(found)
        return fresh

    def _line(self, guid: str, arrived: str, size: int) -> bytes:
        if self._json:
            return json.dumps({"guid": guid, "uri": self._uri, "time": arrived, "size": size}).encode() + b"\n"
        return f"{arrived}  {guid}  {size}\n".encode()


async def _stored(life: Life, follower: StorageFollower, form: Form) -> list[bytes]:
    """The messages that were stored since the last look."""
    waiting = follower.waiting
    found = await life.wait_for(in_thread(follower.look))
    follower.waiting = waiting or follower.known is None
    if follower.waiting and not waiting:
        note("the files know no such queue; waiting for it")
    for problem in follower.problems:
        note(problem)
    follower.problems.clear()
    return [line for message in found or () if (line := form(message)) is not None]
