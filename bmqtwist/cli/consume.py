"""`bmq consume`: prints messages and confirms what was printed.

A message counts as printed when its last byte was taken by standard output; only then it is confirmed. What was
delivered and not printed goes back to the queue when the command ends.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import click

from bmqtwist.cli.connection import Connection, connection_options
from bmqtwist.cli.exits import EXIT_CLOSED_PIPE, EXIT_GOOD, EXIT_NOT_ALL
from bmqtwist.cli.optiongroups import gathered
from bmqtwist.cli.output import Output, Watch, progress
from bmqtwist.cli.running import Life, checked_uri, open_queue, run
from bmqtwist.cli.textforms import FIELD_NAMES, Form, form_of
from bmqtwist.errors import LocalError
from bmqtwist.queue.expression import ExpressionError, compile_expression
from bmqtwist.sdk.aio import Queue
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import MAX_UNCONFIRMED_BYTES, MAX_UNCONFIRMED_MESSAGES, QueueOptions, Subscription
from bmqtwist.sdk.results import SdkError

_BATCH = 100  # messages printed, and then confirmed, at a time


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop; None = not for that reason. Times in seconds."""

    count: int | None = None
    duration: float | None = None
    idle: float | None = None


@dataclass(frozen=True, slots=True)
class Printing:
    as_json: bool
    as_hex: bool
    template: str | None
    delimiter: str

    @property
    def shows_content(self) -> bool:
        """Does it take more than is known without reading a message?"""
        return self.as_hex or self.template is not None

    def form(self) -> Form:
        if self.as_json + self.as_hex + (self.template is not None) > 1:
            raise click.UsageError("Choose one of --json, --hex and --format.")
        after = self.delimiter.replace("{", "{{").replace("}", "}}")
        template = "{json}\\n" if self.as_json else "{hex}\\n" if self.as_hex else self.template
        return form_of(f"{{payload}}{after}" if template is None else template,
                       lambda text: click.echo(f"bmq: {text}", err=True))


printing_options = gathered(
    "printing", Printing,
    click.option("--json", "as_json", is_flag=True, help="One JSON object a line: guid, properties with their "
                 "types, payload as text or base64."),
    click.option("--hex", "as_hex", is_flag=True, help="Payloads as hexadecimal digits, one a line."),
    click.option("-F", "--format", "template", metavar="TEMPLATE", help="For instance '{guid} {p.kind} "
                 f"{{payload}}\\n'. Fields: {', '.join(FIELD_NAMES)}, and p.NAME for a property."),
    click.option("-d", "--delimiter", default="\\n", show_default=True, help="What follows each payload; \\n, "
                 "\\t, \\0 and \\xHH are understood."))


@dataclass(frozen=True, slots=True)
class Reading:
    """How a queue is read."""

    expressions: tuple[str, ...]
    priority: int = 0
    max_unconfirmed: int = MAX_UNCONFIRMED_MESSAGES
    max_unconfirmed_bytes: int = MAX_UNCONFIRMED_BYTES

    def options(self, count: int | None = None) -> QueueOptions:
        """For at most so many messages; UsageError with the place marked if an expression is wrong."""
        for text in self.expressions:
            try:
                compile_expression(text)
            except ExpressionError as error:
                raise click.UsageError(marked(text, error)) from None
        window = min(self.max_unconfirmed, count or self.max_unconfirmed)
        try:
            return QueueOptions(window, self.max_unconfirmed_bytes, self.priority, subscriptions=tuple(
                Subscription(text, window, self.max_unconfirmed_bytes, self.priority) for text in self.expressions))
        except LocalError as error:
            raise click.UsageError(str(error)) from None


@click.command()
@connection_options
@click.argument("uri")
@gathered("limits", Limits,
          click.option("-n", "--count", type=click.IntRange(1), help="Stop after so many messages."),
          click.option("--duration", type=click.FloatRange(0, min_open=True), help="Stop after so many seconds."),
          click.option("--idle", type=click.FloatRange(0, min_open=True),
                       help="Stop when no message came for so many seconds."))
@click.option("--no-confirm", "--peek", "peek", is_flag=True,
              help="Look without consuming: nothing is confirmed, everything goes back. Shows --max-unconfirmed "
                   "messages at most.")
@gathered("reading", Reading,
          click.option("-s", "--subscription", "expressions", multiple=True, metavar="EXPRESSION",
                       help="Only messages whose properties fulfil it. Repeatable: one of them must."),
          click.option("--priority", default=0, show_default=True, help="Priority as a consumer."),
          click.option("--max-unconfirmed", default=MAX_UNCONFIRMED_MESSAGES, show_default=True, type=click.IntRange(1),
                       help="Messages delivered and not confirmed at a time."),
          click.option("--max-unconfirmed-bytes", default=MAX_UNCONFIRMED_BYTES, show_default=True,
                       type=click.IntRange(1), help="The same in bytes."))
@printing_options
@click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
def consume(connection: Connection, uri: str, limits: Limits, peek: bool, reading: Reading, printing: Printing,
            quiet: bool) -> None:
    """Print the messages of the queue URI, and confirm what was printed.

    \b
    bmq consume bmq://domain/queue                          for ever, Ctrl-C ends it
    bmq consume bmq://domain/queue?id=app -n 10 --json      ten messages of a fanout app
    bmq consume bmq://domain/queue --peek --idle 1          look at what is there
    bmq consume bmq://domain/queue -s 'size > 100 && kind == "png"'

    Exit code 1 if fewer than --count came before --duration or --idle ended it.
    """
    form, options, uri = printing.form(), reading.options(limits.count), checked_uri(uri)
    window = options.max_unconfirmed_messages

    async def work(life: Life) -> int:
        with Output() as output:
            async with life.session(connection) as session:
                queue = await open_queue(life, session, uri, read=True, options=options)
                with progress("consuming", limits.count, not quiet and not sys.stdout.isatty()) as watch:
                    printer = Printer(life, queue, output, form, limits, 0 if peek else window, watch)
                    try:
                        return await printer.run()
                    finally:
                        printer.confirm(everything=True)
    raise SystemExit(run(work))


def marked(text: str, error: ExpressionError) -> str:
    """The complaint with the expression below it, and the place marked."""
    before = text.encode("utf-8", "surrogateescape")[:error.offset].decode("utf-8", "replace")
    mark = f"\n\n    {text}\n    {' ' * len(before)}^" if "\n" not in text else ""
    return f"bad subscription expression: {error.message}{mark}"


class Printer:
    """Prints what a queue delivers until a limit is reached.

    `window`: messages delivered and not confirmed at a time, 0 = nothing is ever confirmed. With a count, messages are
    confirmed early only as far as nothing beyond the count can be delivered; the last `window` of them at the end.
    """

    def __init__(self, life: Life, queue: Queue, output: Output, form: Form, limits: Limits, window: int,
                 watch: Watch) -> None:
        self._life, self._queue, self._output, self._form = life, queue, output, form
        self._limits, self._window, self._watch = limits, window, watch
        self.printed = self.unreadable = 0
        self._confirmed = 0
        self._waiting: list[tuple[int, Message]] = []  # (end in the output, message), not confirmed yet

    async def run(self) -> int:
        """Print; the exit code. What was printed has to be confirmed after it (`confirm`)."""
        limits, life = self._limits, self._life
        end = None if limits.duration is None else time.monotonic() + limits.duration
        leaving = asyncio.ensure_future(self._reader_leaves())
        try:
            while not life.stopping.is_set() and (limits.count is None or self.printed < limits.count):
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    break
                timeouts = [each for each in (limits.idle, left) if each is not None]
                first = await life.wait_for(self._queue.get(), min(timeouts, default=None))
                if first is not None:
                    await self._print(self._batch(first))
                    await self._settle()
                elif left is None or limits.idle is not None and limits.idle < left:
                    break
        finally:
            leaving.cancel()
        if self._output.gone.is_set():
            return EXIT_CLOSED_PIPE
        missing = limits.count is not None and self.printed < limits.count
        if missing and not life.stopping.is_set():
            click.echo(f"bmq: {self.printed} of {limits.count} message(s) came", err=True)
        return EXIT_NOT_ALL if missing or self.unreadable else EXIT_GOOD

    async def _settle(self) -> None:
        """Confirm. A broker whose window was full goes on when a fifth of it is free, or after a configure: with the last
        confirmation before the end less than that may be."""
        before = self._confirmed
        self.confirm()
        if self._confirmed > before and self._confirmed == self._early():
            with suppress(SdkError):
                await self._queue.configure(self._queue.options)

    def _early(self) -> int | None:
        """How many may be confirmed before the last is printed, None = all."""
        count = self._limits.count
        return None if count is None else max(count - self._window, 0)

    async def _reader_leaves(self) -> None:
        """Nobody reads any more: stop, even if no message comes."""
        await self._output.gone.wait()
        self._life.stopping.set()

    def _batch(self, first: Message) -> list[Message]:
        batch = [first]
        most = _BATCH if self._limits.count is None else min(_BATCH, self._limits.count - self.printed)
        with suppress(IndexError):
            while len(batch) < most:
                batch.append(self._queue.get_nowait())
        return batch

    async def _print(self, batch: list[Message]) -> None:
        at = self._output.written
        texts = []
        ends = []
        for message in batch:
            text = self._form(message)
            if text is None:
                self.unreadable += 1
                continue
            texts.append(text)
            at += len(text)
            ends.append((at, message))
        if self._window:
            self._waiting += ends
        await self._output.write(b"".join(texts), self._life.stopping)
        done = sum(end <= self._output.written for end, _ in ends)
        self.printed += done
        self._watch(done)

    def confirm(self, everything: bool = False) -> None:
        """Confirm what was printed, or as much of it as the count allows."""
        if not self._window:
            return
        printed = [message for end, message in self._waiting if end <= self._output.written]
        early = None if everything else self._early()
        if early is not None:
            printed = printed[:early - self._confirmed]
        for done, message in enumerate(printed):
            try:
                message.confirm()
            except SdkError as error:
                click.echo(f"bmq: {len(printed) - done} printed message(s) could not be confirmed and come again "
                           f"({error})", err=True)
                break
        del self._waiting[:len(printed)]
        self._confirmed += len(printed)

