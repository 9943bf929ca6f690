"""`bmq produce`: post messages and wait for the acknowledgement of each.

Started by `main.py`; `payloads.py` reads the messages, `client_command.py` runs the session.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import click

from bmqtwist.cli.client_command import ClientCommandContext, check_uri, open_queue, run_command
from bmqtwist.cli.connection import ConnectionOptions, connection_options
from bmqtwist.cli.exits import EXIT_GOOD, EXIT_NOT_ALL, EXIT_USAGE, Unreachable
from bmqtwist.cli.output import OnProgress, progress
from bmqtwist.cli.payloads import (
    BadInput,
    InputMessage,
    Properties,
    parse_json_line,
    parse_properties,
    read_file,
    split_stream,
    stdin_chunks,
)
from bmqtwist.cli.textforms import parse_delimiter
from bmqtwist.errors import LocalError
from bmqtwist.sdk.aio import Queue
from bmqtwist.sdk.results import Ack, SdkError

_UNACKED_MESSAGES, _UNACKED_BYTES = 10_000, 64 << 20  # limits of unacknowledged posts
_POSTS_PER_TURN = 200  # posts between two turns of the event loop
_NACKS_SHOWN_MAX = 10


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """Values of the command line. `rate`: messages/s; `count`, `rate`: None = no limit."""

    uri: str
    payloads: tuple[str, ...]
    files: tuple[str, ...]
    properties: Properties
    json_lines: bool
    delimiter: bytes
    count: int | None
    rate: float | None
    compress: bool
    as_json: bool
    quiet: bool


@click.command()
@connection_options
@click.argument("uri")
@click.argument("payload", nargs=-1)
@click.option("-f", "--file", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True),
              help="Post the content of a file as one message; '-' is the whole standard input. Repeatable.")
@click.option("--json-lines", is_flag=True, help="Each line of standard input is an object with `payload` or "
              "`payloadBase64`, and `properties`, as `bmq consume --json` prints it.")
@click.option("-d", "--delimiter", default="\\n", show_default=True,
              help="Delimiter of messages in standard input; \\n, \\t, \\0 and \\xHH are escapes.")
@click.option("-p", "--property", "properties", multiple=True, metavar="NAME[:TYPE]=VALUE",
              help="A property of every message. TYPE: bool, char, short, int32, int64, string (default), binary "
                   "(hexadecimal). Repeatable.")
@click.option("-n", "--count", type=click.IntRange(1),
              help="Number of messages: arguments and files are repeated, standard input is read up to it.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Maximum number of messages per second.")
@click.option("--compress", is_flag=True, help="Compress payloads of 1 KiB and more.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def produce(connection: ConnectionOptions, uri: str, payload: tuple[str, ...], files: tuple[str, ...],
            properties: tuple[str, ...], delimiter: str, **more: Any) -> None:
    """Post messages to the queue URI and wait for their acknowledgements.

    \b
    bmq produce bmq://domain/queue hello world             two messages
    bmq produce bmq://domain/queue < lines.txt             one message per line
    bmq produce bmq://domain/queue -f picture.png -p kind=png -p size:int32=7
    bmq consume bmq://domain/queue --json | bmq produce bmq://domain/other --json-lines

    Exit code 1 if posts were refused. Ctrl-C stops posting and waits for pending acknowledgements.
    """
    if payload and files:
        raise click.UsageError("Payload arguments and --file exclude each other.")
    if more["json_lines"] and (payload or files):
        raise click.UsageError("--json-lines reads standard input: omit payloads and --file.")
    if "" in payload:
        raise click.UsageError("An empty payload cannot be posted: a message needs at least one byte.")
    if sys.stdin is None and ("-" in files or not (payload or files)):
        raise click.UsageError("Standard input is closed, and there are no payloads or files to post.")
    options = ProduceOptions(check_uri(uri), payload, files, parse_properties(properties),
                             delimiter=parse_delimiter(delimiter), **more)
    if not payload and not files and sys.stdin.isatty() and not options.quiet:
        click.echo("bmq: each line is a message; Ctrl-D or Ctrl-C ends the input", err=True)

    async def work(context: ClientCommandContext) -> int:
        return await _produce(context, connection, options)
    raise SystemExit(run_command(work))


async def _produce(context: ClientCommandContext, connection: ConnectionOptions, options: ProduceOptions) -> int:
    fixed = [InputMessage(read_file(path), options.properties, path) for path in options.files if path != "-"]
    async with context.session(connection, compression=options.compress) as session:
        queue = await open_queue(context, session, options.uri, write=True)
        poster = CountingPoster(context, queue)
        begun = time.monotonic()
        problem: BadInput | None = None
        total, in_bytes = _work_size(options)
        shown = not options.quiet
        with progress("posting", total, shown) as on_progress:
            poster.on_progress = (lambda count: None) if in_bytes else on_progress
            posts = _read_messages(context, options, fixed, poster, on_progress if in_bytes else lambda count: None)
            try:
                await _post_all(context, options, posts, poster)
            except BadInput as error:
                problem = error
            await poster.wait_for_acks(connection.timeout)
        _print_result(options, poster, time.monotonic() - begun)
    if problem is not None:
        click.echo(f"bmq: {problem}; {poster.posted} message(s) were posted before this error", err=True)
        return EXIT_USAGE
    return EXIT_NOT_ALL if poster.refused else EXIT_GOOD


def _work_size(options: ProduceOptions) -> tuple[int | None, bool]:
    """Return the amount of work, None if unknown, and whether it is in bytes of standard input."""
    if options.count:
        return options.count, False
    if options.payloads or options.files:
        return len(options.payloads) + len(options.files), False
    status = os.fstat(0)
    return (status.st_size, True) if stat.S_ISREG(status.st_mode) else (None, False)


async def _read_messages(context: ClientCommandContext, options: ProduceOptions, files: list[InputMessage],
                         poster: CountingPoster, on_progress: OnProgress) -> AsyncIterator[InputMessage]:
    """Yield the messages to post."""
    if options.payloads or options.files:
        fixed = files + [InputMessage(os.fsencode(text), options.properties, f"payload {number}")
                         for number, text in enumerate(options.payloads, 1)]
        if "-" in options.files:
            whole = b"".join([chunk async for chunk in stdin_chunks(context.stopping, on_progress)])
            if not whole:
                raise BadInput("standard input is empty: a message needs at least one byte")
            fixed.insert(options.files.index("-"), InputMessage(whole, options.properties, "standard input"))
        for post in itertools.cycle(fixed) if options.count else fixed:
            yield post
        return
    async for number, piece in split_stream(stdin_chunks(context.stopping, on_progress), options.delimiter):
        if not piece:
            poster.skipped += 1
        elif options.json_lines:
            yield parse_json_line(piece, options.properties, f"line {number}")
        else:
            yield InputMessage(piece, options.properties, f"line {number}")


async def _post_all(context: ClientCommandContext, options: ProduceOptions, posts: AsyncIterator[InputMessage],
                    poster: CountingPoster) -> None:
    begun = time.monotonic()
    async for post in posts:
        if options.rate:
            due = begun + poster.tried / options.rate
            if due > time.monotonic():
                await context.sleep(due - time.monotonic())
        await poster.wait_for_room()
        if context.stopping.is_set():
            return
        poster.post(post)
        if options.count and poster.tried >= options.count:
            return
        if not poster.tried % _POSTS_PER_TURN:
            await asyncio.sleep(0)


@dataclass
class CountingPoster:
    """Posts messages and counts their acknowledgements. `tried`: all posts, also refused ones; `pending`:
    posts without an acknowledgement; `on_progress` receives the number of new acknowledgements."""

    context: ClientCommandContext
    queue: Queue
    on_progress: Callable[[int], None] = lambda count: None
    tried: int = 0
    posted: int = 0
    acknowledged: int = 0
    bytes: int = 0
    skipped: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    pending: int = 0
    _pending_bytes: int = 0
    _acked: asyncio.Event = field(default_factory=asyncio.Event)

    def post(self, post: InputMessage) -> None:
        """Post a message; a refusal by the SDK is counted. Raises BadInput for properties that cannot be sent."""
        self.tried += 1
        size = len(post.payload)
        try:
            self.queue.post_nowait(post.payload, post.properties.values, post.properties.types, on_ack=self._on_ack,
                                   correlation=(post.location, size))
        except SdkError as error:
            self._refuse(post.location, error.result.value, error.message)
            return
        except LocalError as error:
            raise BadInput(f"{post.location}: {error}") from None
        self.posted += 1
        self.pending += 1
        self.bytes += size
        self._pending_bytes += size

    def _on_ack(self, ack: Ack) -> None:
        location, size = cast(tuple[str, int], ack.correlation)
        self.pending -= 1
        self._pending_bytes -= size
        if ack.ok:
            self.acknowledged += 1
        else:
            self._refuse(location, ack.status.value, ack.guid.hex().upper())
        self.on_progress(1)
        self._acked.set()

    def _refuse(self, location: str, status: str, more: str) -> None:
        self.refused[status] += 1
        count = sum(self.refused.values())
        if count <= _NACKS_SHOWN_MAX:
            click.echo(f"bmq: {location} was refused: {status}{f' ({more})' if more else ''}", err=True)
        if count == _NACKS_SHOWN_MAX:
            click.echo("bmq: further refusals are only counted", err=True)

    async def wait_for_room(self) -> None:
        while (self.pending >= _UNACKED_MESSAGES or self._pending_bytes >= _UNACKED_BYTES) \
                and not self.context.stopping.is_set():
            self._acked.clear()
            await self.context.wait_for(self._acked.wait())

    async def wait_for_acks(self, timeout_s: float) -> None:
        """Wait for all pending acknowledgements. Raises Unreachable if none arrives for `timeout_s` seconds."""
        while self.pending:
            self._acked.clear()
            try:
                await asyncio.wait_for(self._acked.wait(), timeout_s)
            except TimeoutError:
                raise Unreachable(f"{self.pending} of {self.posted} posts were not acknowledged within {timeout_s:g} s; "
                                  f"{self.acknowledged} were acknowledged") from None


def _print_result(options: ProduceOptions, poster: CountingPoster, seconds: float) -> None:
    if options.as_json:
        click.echo(json.dumps({"uri": options.uri, "posted": poster.posted, "acknowledged": poster.acknowledged,
                               "refused": dict(poster.refused), "skippedEmpty": poster.skipped, "bytes": poster.bytes,
                               "seconds": round(seconds, 6)}))
    elif not options.quiet:
        empty = f", {poster.skipped} empty one(s) skipped" if poster.skipped else ""
        refused = "".join(f", {count} refused ({status})" for status, count in sorted(poster.refused.items()))
        click.echo(f"bmq: {poster.acknowledged} message(s) posted and acknowledged{refused}{empty}", err=True)
