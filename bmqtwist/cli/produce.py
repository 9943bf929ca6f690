"""`bmq produce`: posts messages and waits until each of them is acknowledged."""

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

from bmqtwist.cli.connection import Connection, connection_options
from bmqtwist.cli.exits import EXIT_GOOD, EXIT_NOT_ALL, EXIT_USAGE, Unreachable
from bmqtwist.cli.output import Watch, progress
from bmqtwist.cli.payloads import (
    BadInput,
    Post,
    Properties,
    parse_json_line,
    parse_properties,
    read_whole,
    split,
    stdin_chunks,
)
from bmqtwist.cli.running import Life, checked_uri, open_queue, run
from bmqtwist.cli.textforms import delimiter_of
from bmqtwist.errors import LocalError
from bmqtwist.sdk.aio import Queue
from bmqtwist.sdk.results import Ack, SdkError

_UNACKED_MESSAGES, _UNACKED_BYTES = 10_000, 64 << 20  # posts under way at a time
_TURN = 200  # posts between two looks at the rest of the world
_NACKS_TOLD = 10


@dataclass(frozen=True, slots=True)
class Wish:
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
              help="The content of a file as one message; '-' is the whole standard input. Repeatable.")
@click.option("--json-lines", is_flag=True, help="Each line of standard input is an object with `payload` or "
              "`payloadBase64`, and `properties`; what `bmq consume --json` prints is such a line.")
@click.option("-d", "--delimiter", default="\\n", show_default=True,
              help="What ends a message in standard input; \\n, \\t, \\0 and \\xHH are understood.")
@click.option("-p", "--property", "properties", multiple=True, metavar="NAME[:TYPE]=VALUE",
              help="A property of every message. TYPE: bool, char, short, int32, int64, string (default), binary "
                   "(hexadecimal). Repeatable.")
@click.option("-n", "--count", type=click.IntRange(1),
              help="Post so many: arguments and files are repeated, standard input is read no further.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Messages per second at most.")
@click.option("--compress", is_flag=True, help="Compress payloads of 1 KiB and more.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing if all is well.")
def produce(connection: Connection, uri: str, payload: tuple[str, ...], files: tuple[str, ...],
            properties: tuple[str, ...], delimiter: str, **more: Any) -> None:
    """Post messages to the queue URI and wait for their acknowledgements.

    \b
    bmq produce bmq://domain/queue hello world             two messages
    bmq produce bmq://domain/queue < lines.txt             one for each line
    bmq produce bmq://domain/queue -f picture.png -p kind=png -p size:int32=7
    bmq consume bmq://domain/queue --json | bmq produce bmq://domain/other --json-lines

    Exit code 1 if some were refused. Ctrl-C stops posting and waits for what is under way.
    """
    if payload and files:
        raise click.UsageError("Payloads as arguments and --file exclude each other.")
    if more["json_lines"] and (payload or files):
        raise click.UsageError("--json-lines reads standard input: leave out payloads and --file.")
    if "" in payload:
        raise click.UsageError("An empty payload cannot be posted: a message needs at least one byte.")
    if sys.stdin is None and ("-" in files or not (payload or files)):
        raise click.UsageError("Standard input is closed, and nothing else says what to post.")
    wish = Wish(checked_uri(uri), payload, files, parse_properties(properties), delimiter=delimiter_of(delimiter), **more)
    if not payload and not files and sys.stdin.isatty() and not wish.quiet:
        click.echo("bmq: every line is a message; Ctrl-D ends, Ctrl-C as well", err=True)

    async def work(life: Life) -> int:
        return await _produce(life, connection, wish)
    raise SystemExit(run(work))


async def _produce(life: Life, connection: Connection, wish: Wish) -> int:
    fixed = [Post(read_whole(path), wish.properties, path) for path in wish.files if path != "-"]
    async with life.session(connection, compression=wish.compress) as session:
        queue = await open_queue(life, session, wish.uri, write=True)
        poster = Poster(life, queue)
        begun = time.monotonic()
        problem: BadInput | None = None
        total, in_bytes = _total(wish)
        shown = not wish.quiet
        with progress("posting", total, shown) as watch:
            poster.watch = (lambda count: None) if in_bytes else watch
            posts = _posts(life, wish, fixed, poster, watch if in_bytes else lambda count: None)
            try:
                await _post_all(life, wish, posts, poster)
            except BadInput as error:
                problem = error
            await poster.settle(connection.timeout)
        _report(wish, poster, time.monotonic() - begun)
    if problem is not None:
        click.echo(f"bmq: {problem}; {poster.posted} message(s) were posted before that", err=True)
        return EXIT_USAGE
    return EXIT_NOT_ALL if poster.refused else EXIT_GOOD


def _total(wish: Wish) -> tuple[int | None, bool]:
    """How much there is to do, if that is known, and whether it counts bytes of standard input."""
    if wish.count:
        return wish.count, False
    if wish.payloads or wish.files:
        return len(wish.payloads) + len(wish.files), False
    status = os.fstat(0)
    return (status.st_size, True) if stat.S_ISREG(status.st_mode) else (None, False)


async def _posts(life: Life, wish: Wish, files: list[Post], poster: Poster, watch: Watch) -> AsyncIterator[Post]:
    """What is to be posted, one after the other."""
    if wish.payloads or wish.files:
        fixed = files + [Post(os.fsencode(text), wish.properties, f"payload {number}")
                         for number, text in enumerate(wish.payloads, 1)]
        if "-" in wish.files:
            whole = b"".join([chunk async for chunk in stdin_chunks(life.stopping, watch)])
            if not whole:
                raise BadInput("standard input is empty: a message needs at least one byte")
            fixed.insert(wish.files.index("-"), Post(whole, wish.properties, "standard input"))
        for post in itertools.cycle(fixed) if wish.count else fixed:
            yield post
        return
    async for number, piece in split(stdin_chunks(life.stopping, watch), wish.delimiter):
        if not piece:
            poster.skipped += 1
        elif wish.json_lines:
            yield parse_json_line(piece, wish.properties, f"line {number}")
        else:
            yield Post(piece, wish.properties, f"line {number}")


async def _post_all(life: Life, wish: Wish, posts: AsyncIterator[Post], poster: Poster) -> None:
    begun = time.monotonic()
    async for post in posts:
        if wish.rate:
            due = begun + poster.tried / wish.rate
            if due > time.monotonic():
                await life.sleep(due - time.monotonic())
        await poster.room()
        if life.stopping.is_set():
            return
        poster.post(post)
        if wish.count and poster.tried >= wish.count:
            return
        if not poster.tried % _TURN:
            await asyncio.sleep(0)


@dataclass
class Poster:
    """Posts and counts what becomes of them. `tried` includes those that cannot be sent at all, `under_way` are those
    without an answer yet."""

    life: Life
    queue: Queue
    watch: Callable[[int], None] = lambda count: None
    tried: int = 0
    posted: int = 0
    acknowledged: int = 0
    bytes: int = 0
    skipped: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    under_way: int = 0
    _held_bytes: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def post(self, post: Post) -> None:
        """Post one; what cannot be sent is a refusal, properties that cannot be sent are BadInput."""
        self.tried += 1
        size = len(post.payload)
        try:
            self.queue.post_nowait(post.payload, post.properties.values, post.properties.types, on_ack=self._answered,
                                   correlation=(post.where, size))
        except SdkError as error:
            self._refuse(post.where, error.result.value, error.message)
            return
        except LocalError as error:
            raise BadInput(f"{post.where}: {error}") from None
        self.posted += 1
        self.under_way += 1
        self.bytes += size
        self._held_bytes += size

    def _answered(self, ack: Ack) -> None:
        where, size = cast(tuple[str, int], ack.correlation)
        self.under_way -= 1
        self._held_bytes -= size
        if ack.ok:
            self.acknowledged += 1
        else:
            self._refuse(where, ack.status.value, ack.guid.hex().upper())
        self.watch(1)
        self._news.set()

    def _refuse(self, where: str, status: str, more: str) -> None:
        self.refused[status] += 1
        told = sum(self.refused.values())
        if told <= _NACKS_TOLD:
            click.echo(f"bmq: {where} was refused: {status}{f' ({more})' if more else ''}", err=True)
        if told == _NACKS_TOLD:
            click.echo("bmq: further refusals are only counted", err=True)

    async def room(self) -> None:
        while (self.under_way >= _UNACKED_MESSAGES or self._held_bytes >= _UNACKED_BYTES) \
                and not self.life.stopping.is_set():
            self._news.clear()
            await self.life.wait_for(self._news.wait())

    async def settle(self, patience_s: float) -> None:
        """Wait for the answers; Unreachable if none comes for so long."""
        while self.under_way:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), patience_s)
            except TimeoutError:
                raise Unreachable(f"{self.under_way} of {self.posted} posts got no answer for {patience_s:g} s; "
                                  f"{self.acknowledged} were acknowledged") from None


def _report(wish: Wish, poster: Poster, seconds: float) -> None:
    if wish.as_json:
        click.echo(json.dumps({"uri": wish.uri, "posted": poster.posted, "acknowledged": poster.acknowledged,
                               "refused": dict(poster.refused), "skippedEmpty": poster.skipped, "bytes": poster.bytes,
                               "seconds": round(seconds, 6)}))
    elif not wish.quiet:
        empty = f", {poster.skipped} empty one(s) passed over" if poster.skipped else ""
        refused = "".join(f", {count} refused ({status})" for status, count in sorted(poster.refused.items()))
        click.echo(f"bmq: {poster.acknowledged} message(s) posted and acknowledged{refused}{empty}", err=True)
