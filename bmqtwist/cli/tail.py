"""`bmq tail`: follow a queue without taking anything from its consumers.

A broadcast queue is read as any other reader reads it. Of the other queues a reader cannot see a message without
keeping it from the consumers, so `tail` looks at what the broker has stored, again and again, with the admin command
LIST: it shows which messages arrive, when, and how large they are, but not what is in them, and not those that
arrive and are confirmed between two looks.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from bmqtwist.cli.adminclient import AdminClient
from bmqtwist.cli.connection import Connection, connection_options
from bmqtwist.cli.consume import Limits, Printer, form_of, form_options, read_options
from bmqtwist.cli.exits import EXIT_CLOSED_PIPE, EXIT_GOOD, EXIT_NOT_ALL, NotAllowed
from bmqtwist.cli.output import Output
from bmqtwist.cli.running import Life, checked_uri, in_thread, open_queue, run
from bmqtwist.ids import QueueUri, parse_uri
from bmqtwist.sdk.options import MAX_UNCONFIRMED_BYTES, MAX_UNCONFIRMED_MESSAGES

_LISTED_MAX = 1000  # messages looked at each time


@click.command()
@connection_options
@click.argument("uri")
@click.option("-n", "--lines", default=10, show_default=True, type=click.IntRange(0, _LISTED_MAX),
              help="Begin with that many stored messages.")
@click.option("--follow/--no-follow", default=True, help="Go on, or end after those.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--duration", type=click.FloatRange(0, min_open=True), help="Stop after so many seconds.")
@click.option("--idle", type=click.FloatRange(0, min_open=True), help="Stop when none came for so many seconds.")
@click.option("--interval", default=0.5, show_default=True, type=click.FloatRange(0.01),
              help="Seconds between two looks at a stored queue.")
@click.option("-s", "--subscription", "expressions", multiple=True, metavar="EXPRESSION",
              help="Broadcast: only messages whose properties fulfil it. Repeatable.")
@form_options
def tail(connection: Connection, uri: str, lines: int, follow: bool, count: int | None, duration: float | None,
         idle: float | None, interval: float, expressions: tuple[str, ...], as_json: bool, as_hex: bool,
         template: str | None, delimiter: str) -> None:
    """Follow the queue URI without consuming anything.

    Broadcast: messages as `bmq consume` prints them, from now on. Priority and fanout: time of arrival, GUID and size
    of each message that gets stored (of those that `?id=app` has not confirmed). What is in them cannot be had without
    consuming: `bmq consume --peek` borrows them for a moment.
    """
    form = form_of(as_json, as_hex, template, delimiter)
    options = read_options(expressions, 0, MAX_UNCONFIRMED_MESSAGES, MAX_UNCONFIRMED_BYTES)
    target = parse_uri(checked_uri(uri))
    limits = Limits(count, duration, idle)
    wants_content = as_hex or template is not None or bool(expressions)

    async def work(life: Life) -> int:
        with Output() as output:
            client = await life.wait_for(_await(in_thread(connection.admin)))
            if client is None:
                return EXIT_GOOD
            with client:
                broadcast = await life.wait_for(_is_broadcast(client, target))
                if not broadcast:
                    if wants_content:
                        raise click.UsageError(
                            f"{uri} keeps its messages, and what is in them cannot be read without consuming: leave "
                            "out --hex, --format and --subscription, or use `bmq consume --peek`.")
                    return await Follower(life, client, target, output, as_json).run(lines, follow, limits, interval)
            if not follow:
                raise click.UsageError(f"{uri} is a broadcast queue: it keeps nothing that could be shown without "
                                       "following it.")
            async with life.session(connection) as session:
                queue = await open_queue(life, session, uri, read=True, options=options)
                return await Printer(life, queue, output, form, limits, 0, lambda done: None).run()
    raise SystemExit(run(work))


async def _await(future: asyncio.Future[Any]) -> Any:
    return await future


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
        return "broadcast" in json.loads(tree["domainInfo"]["configJson"], strict=False)["mode"]
    except (KeyError, TypeError, ValueError):
        raise NotAllowed(f"the broker tells nothing about the domain {target.qualified_domain}: "
                         f"{_error_of(tree)}") from None


def _error_of(tree: dict[str, Any]) -> str:
    error = tree.get("error")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error or tree)


@dataclass(frozen=True, slots=True)
class Listed:
    """One stored message as LIST tells of it."""

    guid: str
    size: int
    time: str


class Follower:
    """Looks at a stored queue again and again."""

    def __init__(self, life: Life, client: AdminClient, target: QueueUri, output: Output, as_json: bool) -> None:
        self._life, self._client, self._output, self._json = life, client, output, as_json
        self._uri = target.canonical
        app = f"{target.app_id} " if target.app_id else ""
        self._command = (f"DOMAINS DOMAIN {target.qualified_domain} QUEUE {target.queue} LIST {app}"
                         f"-{_LISTED_MAX} {_LISTED_MAX}")
        self._seen: set[str] = set()
        self._said = False

    async def run(self, lines: int, follow: bool, limits: Limits, interval: float) -> int:
        """Print what is there, then what comes; the exit code."""
        shown, begun = 0, time.monotonic()
        last = begun
        news = await self._look()
        fresh = news[len(news) - min(lines, len(news)):]
        while True:
            if limits.count is not None:
                fresh = fresh[:limits.count - shown]
            await self._output.write(b"".join(map(self._line, fresh)), self._life.stopping)
            shown += len(fresh)
            now = time.monotonic()
            last = now if fresh else last
            if self._output.gone.is_set():
                return EXIT_CLOSED_PIPE
            if self._life.stopping.is_set() or not follow or limits.count == shown:
                return EXIT_GOOD
            if limits.duration and now - begun >= limits.duration or limits.idle and now - last >= limits.idle:
                return EXIT_GOOD if limits.count is None else EXIT_NOT_ALL
            await self._life.sleep(interval)
            fresh = await self._look()

    async def _look(self) -> list[Listed]:
        """What is stored and was not there at the last look."""
        tree = await self._life.wait_for(_ask(self._client, self._command))
        if tree is None:
            return []
        contents = tree.get("queueContents")
        if not isinstance(contents, dict):
            self._note(f"{_error_of(tree)}; waiting for it")
            return []
        found = [Listed(each["guid"], each["sizeBytes"], each["arrivalTimestamp"]) for each in contents["messages"]]
        fresh = [each for each in found if each.guid not in self._seen]
        if self._seen and len(fresh) == len(found) == _LISTED_MAX:
            self._note(f"more than {_LISTED_MAX} messages arrived since the last look: some are not shown", again=True)
        self._seen = {each.guid for each in found}
        return fresh

    def _note(self, text: str, again: bool = False) -> None:
        if again or not self._said:
            click.echo(f"bmq: {text}", err=True)
            self._said = True

    def _line(self, message: Listed) -> bytes:
        if self._json:
            return json.dumps({"guid": message.guid, "uri": self._uri, "time": message.time,
                               "size": message.size}).encode() + b"\n"
        return f"{message.time}  {message.guid}  {message.size}\n".encode()

