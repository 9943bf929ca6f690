"""`--mode auto`: a producer, a consumer, or both, with statistics every second. `--mode syschk`: test of the broker.

A producer ends when all messages are posted and, if the queue was opened with ack, acknowledged; a consumer ends
`shutdown_grace` seconds after its last message; otherwise a signal ends them. The fifth signal exits at once. Run by
`command.py`; commands from a terminal or a script are executed in `interactive.py`. The rows of the statistics are
formatted in `throughput.py`, the report of latencies in `bmqtwist/cli/latencies.py`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

from bmqtwist.cli.client_command import run_unless_set
from bmqtwist.cli.exits import EXIT_GOOD, EXIT_NOT_ALL
from bmqtwist.cli.latencies import Latencies
from bmqtwist.cli.shell.log_output import EventFile, LogOutput, payload_text
from bmqtwist.cli.shell.message_series import SeriesParameters, SeriesPoster, latency_clock, next_number
from bmqtwist.cli.shell.printing import STAMP_BYTES, ack_text, name_and_code, push_text, session_event_text
from bmqtwist.cli.shell.settings import ShellSettings, session_options, tls_context
from bmqtwist.cli.shell.throughput import Throughput, format_header
from bmqtwist.errors import LocalError, PeerError
from bmqtwist.sdk import aio
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.results import Ack, EventKind, Result, SdkError, SessionEvent

STATISTICS_S = 1.0
_SIGNALS_MAX = 5


class AutoMode:
    """One run of the automatic mode."""

    def __init__(self, settings: ShellSettings, log: logging.Logger, output: LogOutput, event_file: EventFile) -> None:
        self._settings, self._log, self._output, self._event_file = settings, log, output, event_file
        self._flags = settings.flags
        self._timed = settings.latency != "none"
        self._clock = latency_clock(settings.latency)
        self._silent = settings.verbosity.lower() == "silent"
        self._number = next_number()
        self._consumed = Throughput("consumed", self._timed)
        self._produced = Throughput("produced", self._timed and self._flags.ack)
        self._directions = [each for each, wanted in ((self._consumed, self._flags.read),
                                                      (self._produced, self._flags.write)) if wanted]
        self._delivery, self._acknowledgement = Latencies("end2end"), Latencies("ack")
        self._refused: dict[Result, int] = {}
        self._poster: SeriesPoster | None = None
        self._all_posted = False
        self._acks_received = 0
        self._last_message: float | None = None
        self._bytes_in = 0
        self._received: list[Message] = []
        self._error: SdkError | None = None
        self._stop, self._signalled = asyncio.Event(), asyncio.Event()
        self._signals = 0

    # -- the run ------------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        self._install_signal_handlers()
        settings = self._settings
        session = aio.Session(options=session_options(settings), tls=tls_context(settings), on_event=self._on_event)
        try:
            queue = await run_unless_set(self._signalled, self._connect_and_open(session))
            if queue is not None:
                self._bytes_in = session.counters().bytes_in
                await run_unless_set(self._stop, self._run_tasks(session, queue))
                if settings.shutdown_grace:
                    await run_unless_set(self._signalled, asyncio.sleep(settings.shutdown_grace))
                if self._error is not None:
                    raise self._error
                if queue.core.is_open and not session.core.unacked:
                    await queue.close()
        finally:
            await session.stop()
        return self._print_results()

    async def _connect_and_open(self, session: aio.Session) -> aio.Queue:
        await session.start()
        self._log.info("Session started.")
        return await session.open(self._settings.queue_uri, read=self._flags.read, write=self._flags.write,
                                  options=self._settings.queue_options(), on_message=self._on_message)

    async def _run_tasks(self, session: aio.Session, queue: aio.Queue) -> None:
        producing = [self._produce(session, queue)] if self._flags.write else []
        await asyncio.gather(self._print_statistics(session), *producing)

    async def _produce(self, session: aio.Session, queue: aio.Queue) -> None:
        settings, (events, seconds) = self._settings, self._settings.count
        plan = SeriesParameters(
            events, seconds, settings.event_size, settings.msg_size, settings.post_rate, settings.post_interval,
            pattern=settings.sequential_message_pattern, latency=settings.latency,
            properties=settings.message_properties, pub_sub_modulo=settings.auto_pub_sub_modulo)
        self._poster = SeriesPoster(plan, queue, self._on_ack if self._flags.ack else None, self._event_file, self._produced)
        await self._poster.run(lambda: session.core.online, lambda: not self._stop.is_set())
        self._all_posted = True
        if not self._flags.ack:
            self._stop.set()
        self._stop_when_acknowledged()

    def _stop_when_acknowledged(self) -> None:
        if self._all_posted and self._flags.ack and self._poster is not None and self._acks_received == self._poster.posted:
            self._log.info("All posted messages have been acknowledged")
            self._stop.set()

    async def _print_statistics(self, session: aio.Session) -> None:
        """Print statistics every second, and stop a consumer that is idle for `shutdown_grace` seconds."""
        loop, before = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        shown = False
        while True:
            await asyncio.sleep(STATISTICS_S)
            now = loop.time()
            if self._output.error is not None:
                raise self._output.error
            if session.core.online and not self._silent:
                if not shown:
                    self._output.print(format_header(any(each.with_latency for each in self._directions)) + "\n")
                shown = True
                for each in self._directions:
                    self._output.print(each.format_row(now - before) + "\n")
            before = now
            grace = self._settings.shutdown_grace
            if grace and self._flags.read and self._last_message is not None and now - self._last_message >= grace:
                self._stop.set()

    # -- events, acknowledgements, messages ---------------------------------------------------------------------------

    def _on_event(self, event: SessionEvent) -> None:
        if not self._silent:
            self._log.info("==> EVENT received: %s", session_event_text(event))
        self._event_file.write_event(event)
        if event.kind is EventKind.QUEUE_REOPEN_RESULT and event.result is not Result.SUCCESS:
            self._error = SdkError(event.result, f"{event.uri} could not be reopened: {event.message}")
            self._stop.set()

    def _on_ack(self, ack: Ack) -> None:
        self._acks_received += 1
        if self._settings.dump_msg:
            self._log.info("ACK #%d: %s", self._acks_received - 1, ack_text(ack, self._number))
        if self._event_file.enabled and self._poster is not None:
            self._event_file.write("ACK", ack.uri, self._poster.correlation(ack.correlation), ack.guid,
                                   name_and_code(ack.status)[1], "")
        if not ack.ok:
            self._refused[ack.status] = self._refused.get(ack.status, 0) + 1
        elif self._timed and isinstance(ack.correlation, int):
            latency = self._clock() - ack.correlation
            if latency >= 0:
                self._acknowledgement.add(latency)
                self._produced.add_latency(latency)
        self._stop_when_acknowledged()

    def _on_message(self, message: Message) -> None:
        if not self._received:
            asyncio.get_running_loop().call_soon(self._process_received)
        self._received.append(message)

    def _process_received(self) -> None:
        arrived, self._received = self._received, []
        now_ns = self._clock()
        self._last_message = asyncio.get_running_loop().time()
        for index, message in enumerate(arrived):
            try:
                payload = message.payload
            except PeerError as error:
                self._log.error("%s cannot be read: %s", message.guid.hex().upper(), error)
                continue
            self._consumed.add_message(len(payload))
            if self._timed:
                self._record_latency(payload, now_ns)
            if self._event_file.enabled:
                self._event_file.write("PUSH", message.uri, message.guid, payload_text(payload))
            if self._settings.dump_msg:
                self._log.info("PUSH #%d: %s", index, push_text(message, self._number))
            if self._settings.confirm_msg:
                self._confirm(message)
        total = arrived[0].queue.owner.session.counters().bytes_in
        self._consumed.add_event(total - self._bytes_in)
        self._bytes_in = total

    def _record_latency(self, payload: bytes, now_ns: int) -> None:
        posted_ns = int.from_bytes(payload[:STAMP_BYTES], "big", signed=True) if len(payload) >= STAMP_BYTES else 0
        if posted_ns and now_ns >= posted_ns:
            self._delivery.add(now_ns - posted_ns)
            self._consumed.add_latency(now_ns - posted_ns)

    def _confirm(self, message: Message) -> None:
        try:
            message.confirm()
        except SdkError as error:
            self._log.warning("%s was not confirmed and will be redelivered: %s", message.guid.hex().upper(), error)
            return
        self._event_file.write("CONFIRM", message.uri, message.guid, "")

    # -- signals ------------------------------------------------------------------------------------------------------

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        self._signalled.set()
        if self._signals >= _SIGNALS_MAX:
            os._exit(128 + number)
        print(f"bmq: {number.name}, shutting down; {_SIGNALS_MAX - self._signals} more end it at once", file=sys.stderr)
        self._stop.set()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _print_results(self) -> int:
        """Print the final statistics and the latency report, and return the exit code."""
        if not self._silent:
            self._output.print("\n" + "".join(f"{each.final_line()}\n" for each in self._directions))
        latencies = self._delivery if self._delivery.count else self._acknowledgement
        if latencies.count:
            self._write_latency_report(latencies)
        for status, count in self._refused.items():
            self._log.error("%d posts were refused: %s", count, status)
        self._log.info("Goodbye.")
        return EXIT_NOT_ALL if self._refused else EXIT_GOOD

    def _write_latency_report(self, latencies: Latencies) -> None:
        path = self._settings.latency_report
        if not self._silent:
            title = f"Latency Report: {path}" if path else "Latency Report"
            self._output.print(f"====================\n{title}\n====================\n"
                               f"{latencies.summary_text()}\n\n")
        if path:
            Path(path).write_text(json.dumps(latencies.report_tree(), indent=2) + "\n", encoding="utf-8")


async def check_system(settings: ShellSettings) -> int:
    """Connect, then open and close the queue if one is configured; return the exit code. Raises SdkError on failure."""
    async with aio.Session(options=session_options(settings), tls=tls_context(settings)) as session:
        if settings.queue_uri:
            queue = await session.open(settings.queue_uri, write=True)
            await queue.close()
    return EXIT_GOOD


def check_report(path: str) -> None:
    """Raise LocalError if the directory of the report is not writable."""
    parent = Path(path).resolve().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise LocalError(f"latency report '{path}': {parent} is not a writable directory")
