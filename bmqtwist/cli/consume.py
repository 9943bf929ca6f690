"""`bmq consume`: print messages and confirm the printed ones.

On a terminal, control characters of messages are escaped. A message is confirmed after standard output has accepted its
last byte. Messages that are delivered but not printed return
to the queue when the command ends. Started by `main.py`; `tail.py` uses the same options and the same `Printer`. Signals
and reconnection are in `client_command.py`, output forms in `textforms.py`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import click

from bmqtwist.cli.client_command import ClientCommandContext, check_uri, open_queue, run_command
from bmqtwist.cli.connection import ConnectionOptions, connection_options
from bmqtwist.cli.exits import EXIT_CLOSED_PIPE, EXIT_GOOD, EXIT_NOT_ALL
from bmqtwist.cli.optiongroups import grouped_options
from bmqtwist.cli.output import OnProgress, StandardOutput, progress
from bmqtwist.cli.textforms import FIELD_NAMES, MessageFormatter, compile_template
from bmqtwist.errors import LocalError
from bmqtwist.queue.expression import ExpressionError, compile_expression
from bmqtwist.sdk.aio import Queue
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import MAX_UNCONFIRMED_BYTES, MAX_UNCONFIRMED_MESSAGES, QueueOptions, Subscription
from bmqtwist.sdk.results import SdkError

_BATCH = 100  # messages per write, confirmed together


@dataclass(frozen=True, slots=True)
class ConsumeLimits:
    """Conditions that end the command; None = no limit. Times in seconds."""

    count: int | None = None
    duration: float | None = None
    idle: float | None = None


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Values of the options for the output of messages."""

    as_json: bool
    as_hex: bool
    template: str | None
    delimiter: str

    @property
    def shows_content(self) -> bool:
        """True if the output needs the payload of messages."""
        return self.as_hex or self.template is not None

    def compile(self) -> MessageFormatter:
        """Return the formatter. Raises UsageError if several formats are given."""
        if self.as_json + self.as_hex + (self.template is not None) > 1:
            raise click.UsageError("Choose one of --json, --hex and --format.")
        after = self.delimiter.replace("{", "{{").replace("}", "}}")
        template = "{json}\\n" if self.as_json else "{hex}\\n" if self.as_hex else self.template
        return compile_template(f"{{payload}}{after}" if template is None else template,
                                lambda text: click.echo(f"bmq: {text}", err=True), sys.stdout is not None and
                                sys.stdout.isatty())


printing_options = grouped_options(
    "printing", OutputFormat,
    click.option("--json", "as_json", is_flag=True, help="Print a JSON object per message and line: guid, properties with "
                 "their types, payload as text or base64."),
    click.option("--hex", "as_hex", is_flag=True, help="Print payloads as hexadecimal digits, one per line."),
    click.option("-F", "--format", "template", metavar="TEMPLATE", help="Print messages by a template, for instance "
                 f"'{{guid}} {{p.kind}} {{payload}}\\n'. Fields: {', '.join(FIELD_NAMES)}, and p.NAME for a property."),
    click.option("-d", "--delimiter", default="\\n", show_default=True, help="Bytes written after each payload; \\n, "
                 "\\t, \\0 and \\xHH are escapes."))


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Subscription expressions, priority and limits of unconfirmed messages."""

    expressions: tuple[str, ...]
    priority: int = 0
    max_unconfirmed: int = MAX_UNCONFIRMED_MESSAGES
    max_unconfirmed_bytes: int = MAX_UNCONFIRMED_BYTES

    def queue_options(self, count: int | None = None) -> QueueOptions:
        """Return the queue options, with a window of at most `count` messages. Raises UsageError, with the position marked,
        for an invalid expression."""
        for text in self.expressions:
            try:
                compile_expression(text)
            except ExpressionError as error:
                raise click.UsageError(mark_error_position(text, error)) from None
        window = min(self.max_unconfirmed, count or self.max_unconfirmed)
        try:
            return QueueOptions(window, self.max_unconfirmed_bytes, self.priority, subscriptions=tuple(
                Subscription(text, window, self.max_unconfirmed_bytes, self.priority) for text in self.expressions))
        except LocalError as error:
            raise click.UsageError(str(error)) from None


@click.command()
@connection_options
@click.argument("uri")
@grouped_options(
    "limits", ConsumeLimits,
    click.option("-n", "--count", type=click.IntRange(1), help="Stop after this number of messages."),
    click.option("--duration", type=click.FloatRange(0, min_open=True), help="Stop after this number of seconds."),
    click.option("--idle", type=click.FloatRange(0, min_open=True),
                 help="Stop when no message has arrived for this number of seconds."))
@click.option("--no-confirm", "--peek", "peek", is_flag=True,
              help="Print without confirming: all messages return to the queue. Prints at most --max-unconfirmed messages.")
@grouped_options(
    "consumer", ConsumerOptions,
    click.option("-s", "--subscription", "expressions", multiple=True, metavar="EXPRESSION",
                 help="Consume only messages whose properties match. Repeatable: a message must match one of them."),
    click.option("--priority", default=0, show_default=True, help="Consumer priority."),
    click.option("--max-unconfirmed", default=MAX_UNCONFIRMED_MESSAGES, show_default=True, type=click.IntRange(1),
                 help="Maximum number of unconfirmed messages."),
    click.option("--max-unconfirmed-bytes", default=MAX_UNCONFIRMED_BYTES, show_default=True,
                 type=click.IntRange(1), help="Maximum size of unconfirmed messages, in bytes."))
@printing_options
@click.option("-q", "--quiet", is_flag=True, help="Print no progress and no summary.")
def consume(connection: ConnectionOptions, uri: str, limits: ConsumeLimits, peek: bool, consumer: ConsumerOptions,
            printing: OutputFormat, quiet: bool) -> None:
    """Print the messages of the queue URI, and confirm the printed ones.

    \b
    bmq consume bmq://domain/queue                          until Ctrl-C
    bmq consume bmq://domain/queue?id=app -n 10 --json      ten messages of a fanout app
    bmq consume bmq://domain/queue --peek --idle 1          show the messages in the queue
    bmq consume bmq://domain/queue -s 'size > 100 && kind == "png"'

    Exit code 1 if --duration or --idle ended the command before --count messages arrived.
    """
    formatter, options, uri = printing.compile(), consumer.queue_options(limits.count), check_uri(uri)
    window = options.max_unconfirmed_messages

    async def work(context: ClientCommandContext) -> int:
        with StandardOutput() as output:
            async with context.session(connection) as session:
                queue = await open_queue(context, session, uri, read=True, options=options)
                with progress("consuming", limits.count, not quiet and not sys.stdout.isatty()) as on_progress:
                    printer = Printer(context, queue, output, formatter, limits, 0 if peek else window, on_progress)
                    try:
                        return await printer.run()
                    finally:
                        printer.confirm(everything=True)
    raise SystemExit(run_command(work))


def mark_error_position(text: str, error: ExpressionError) -> str:
    """Return the error message, with the expression below it and the position marked."""
    before = text.encode("utf-8", "surrogateescape")[:error.offset].decode("utf-8", "replace")
    mark = f"\n\n    {text}\n    {' ' * len(before)}^" if "\n" not in text else ""
    return f"bad subscription expression: {error.message}{mark}"


class Printer:
    """Prints the messages of a queue until a limit is reached.

    `window`: maximum number of unconfirmed messages, 0 = messages are not confirmed. With `limits.count`, the last `window`
    messages are confirmed only at the end, so that the broker delivers no message beyond the count.
    """

    def __init__(self, context: ClientCommandContext, queue: Queue, output: StandardOutput, formatter: MessageFormatter,
                 limits: ConsumeLimits, window: int, on_progress: OnProgress) -> None:
        self._context, self._queue, self._output, self._formatter = context, queue, output, formatter
        self._limits, self._window, self._on_progress = limits, window, on_progress
        self.printed = self.unreadable = 0
        self._confirmed = 0
        self._unconfirmed: list[tuple[int, Message]] = []  # (end offset in the output, message)

    async def run(self) -> int:
        """Print until a limit is reached and return the exit code. The caller then calls `confirm(everything=True)`."""
        limits, context = self._limits, self._context
        end = None if limits.duration is None else time.monotonic() + limits.duration
        monitor = asyncio.ensure_future(self._stop_when_reader_closes())
        try:
            while not context.stopping.is_set() and (limits.count is None or self.printed < limits.count):
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    break
                timeouts = [each for each in (limits.idle, left) if each is not None]
                first = await context.wait_for(self._queue.get(), min(timeouts, default=None))
                if first is not None:
                    await self._print(self._take_batch(first))
                    await self._confirm_printed()
                elif left is None or limits.idle is not None and limits.idle < left:
                    break
        finally:
            monitor.cancel()
        if self._output.reader_closed.is_set():
            return EXIT_CLOSED_PIPE
        missing = limits.count is not None and self.printed < limits.count
        if missing and not context.stopping.is_set():
            click.echo(f"bmq: {self.printed} of {limits.count} message(s) arrived", err=True)
        return EXIT_NOT_ALL if missing or self.unreadable else EXIT_GOOD

    async def _confirm_printed(self) -> None:
        """Confirm the printed messages. A broker resumes delivery to a full window when a fifth of it is free, or after a
        configure request, which follows the last early confirmation: it may free less."""
        before = self._confirmed
        self.confirm()
        if self._confirmed > before and self._confirmed == self._early_confirms_max():
            with suppress(SdkError):
                await self._queue.configure(self._queue.options)

    def _early_confirms_max(self) -> int | None:
        """Number of messages that may be confirmed before the last one is printed, None = all."""
        count = self._limits.count
        return None if count is None else max(count - self._window, 0)

    async def _stop_when_reader_closes(self) -> None:
        await self._output.reader_closed.wait()
        self._context.stopping.set()

    def _take_batch(self, first: Message) -> list[Message]:
        batch = [first]
        count_max = _BATCH if self._limits.count is None else min(_BATCH, self._limits.count - self.printed)
        with suppress(IndexError):
            while len(batch) < count_max:
                batch.append(self._queue.get_nowait())
        return batch

    async def _print(self, batch: list[Message]) -> None:
        at = self._output.written
        texts = []
        ends = []
        for message in batch:
            text = self._formatter(message)
            if text is None:
                self.unreadable += 1
                continue
            texts.append(text)
            at += len(text)
            ends.append((at, message))
        if self._window:
            self._unconfirmed += ends
        await self._output.write(b"".join(texts), self._context.stopping)
        done = sum(end <= self._output.written for end, _ in ends)
        self.printed += done
        self._on_progress(done)

    def confirm(self, everything: bool = False) -> None:
        """Confirm the printed messages, at most as many as the count permits unless `everything`."""
        if not self._window:
            return
        printed = [message for end, message in self._unconfirmed if end <= self._output.written]
        early = None if everything else self._early_confirms_max()
        if early is not None:
            printed = printed[:early - self._confirmed]
        for done, message in enumerate(printed):
            try:
                message.confirm()
            except SdkError as error:
                click.echo(f"bmq: {len(printed) - done} printed message(s) could not be confirmed and will be redelivered "
                           f"({error})", err=True)
                break
        del self._unconfirmed[:len(printed)]
        self._confirmed += len(printed)

