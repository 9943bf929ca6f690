"""`bmq bench`: throughput and latency of one queue, measured by a client.

Each message contains the id of the run and a time: with --rate its scheduled time, so that latencies include stalls of
the producer. Messages of other producers are neither counted nor confirmed. Started by `main.py`; `latencies.py` has
the histogram and the choice of the percentiles shown (`figures_ms`). Benchmarks of the project, next to RabbitMQ, are
in `bench/run.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any, cast

import click

from bmqtwist.cli.client_command import ClientCommandContext, check_uri, open_queue, run_command
from bmqtwist.cli.connection import ConnectionOptions, connection_options
from bmqtwist.cli.exits import EXIT_GOOD, EXIT_NOT_ALL
from bmqtwist.cli.latencies import Latencies
from bmqtwist.cli.output import OnProgress, progress
from bmqtwist.ids import parse_uri
from bmqtwist.limits import APPLICATION_DATA_BYTES_MAX
from bmqtwist.sdk.aio import Queue
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import QueueOptions
from bmqtwist.sdk.results import Ack, SdkError

STAMP = struct.Struct(">8sQ")  # id of the run, nanoseconds of the monotonic clock
_DURATION_S = 5.0
_STEP_S = 0.1  # progress of a run that lasts a given time
_BUSY_PERCENT = 90


@dataclass(frozen=True, slots=True)
class BenchParameters:
    """Parameters of a run. `count` and `rate` (messages/s) are of all producers together, `in_flight` of each."""

    producers: int
    consumers: int
    size: int
    count: int | None
    duration: float | None
    batch: int
    rate: float | None
    in_flight: int
    compress: bool


@click.command()
@connection_options
@click.argument("uri")
@click.option("-P", "--producers", default=1, show_default=True, type=click.IntRange(0, 1000), help="Sessions that post.")
@click.option("-C", "--consumers", default=1, show_default=True, type=click.IntRange(0, 1000),
              help="Sessions that read and confirm.")
@click.option("--size", default=1024, show_default=True, type=click.IntRange(STAMP.size, APPLICATION_DATA_BYTES_MAX),
              help="Bytes of a payload.")
@click.option("-n", "--count", type=click.IntRange(1), help="Total number of messages.")
@click.option("--duration", type=click.FloatRange(0, min_open=True),
              help=f"Seconds to post for.  [default: {_DURATION_S:g}, without --count]")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1), help="Messages per batch.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Messages per second of all producers together.")
@click.option("--in-flight", default=500, show_default=True, type=click.IntRange(1),
              help="Maximum number of unacknowledged messages per producer.")
@click.option("--max-unconfirmed", default=10_000, show_default=True, type=click.IntRange(1),
              help="Maximum number of unconfirmed messages per consumer.")
@click.option("--compress", is_flag=True, help="Compress payloads of 1 KiB and more.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress bar.")
def bench(connection: ConnectionOptions, uri: str, max_unconfirmed: int, as_json: bool, quiet: bool, **plan: Any) -> None:
    """Post to the queue URI and consume from it, and print throughput and latency.

    \b
    bmq bench bmq://bmq.test.persistent.priority/bench
    bmq bench bmq://bmq.test.mem.fanout/bench?id=foo --rate 1000 --duration 30 --json
    bmq bench bmq://bmq.test.mem.priority/bench -P 2 -C 0 --size 65536 -n 10000

    Producers and consumers share one process and one core: at a client CPU near 100 % the client is the bottleneck. Exit
    code 1 if messages were refused or did not arrive.
    """
    if plan["duration"] is None and plan["count"] is None:
        plan["duration"] = _DURATION_S
    parameters = BenchParameters(**plan)
    if not parameters.producers:
        raise click.UsageError("At least one producer is needed.")
    check_uri(uri)
    options = QueueOptions(max_unconfirmed, max(32 << 20, max_unconfirmed * parameters.size))

    async def work(context: ClientCommandContext) -> int:
        async with AsyncExitStack() as stack:
            async def open_one(to: str, read: bool) -> Queue:
                session = await stack.enter_async_context(context.session(connection, compression=parameters.compress))
                return await open_queue(context, session, to, read=read, write=not read, options=options)
            readers = [await open_one(uri, True) for _ in range(parameters.consumers)]
            writers = [await open_one(parse_uri(uri).canonical, False) for _ in range(parameters.producers)]
            result = await Bench(context, parameters, readers, writers, connection.timeout).run(not quiet)
        click.echo(json.dumps(result) if as_json else result_text(uri, result))
        good = not result["refused"] and not result["missing"]
        return EXIT_GOOD if good else EXIT_NOT_ALL
    raise SystemExit(run_command(work))


class Bench:
    """One run: posts with all producers, reads and confirms with all consumers, and measures latencies."""

    def __init__(self, context: ClientCommandContext, plan: BenchParameters, readers: list[Queue], writers: list[Queue],
                 timeout_s: float) -> None:
        self._context, self._plan, self._timeout_s = context, plan, timeout_s
        self._readers, self._writers = readers, writers
        self._run_id = os.urandom(8)
        self._filler = b"x" * (plan.size - STAMP.size)
        self._acks, self._deliveries = Latencies("ack"), Latencies("end2end")
        self._posted = self._answered = self._other_messages = 0
        self._refusals: Counter[str] = Counter()
        self._last_ack = self._last_delivery = 0
        self._in_flight = [0] * len(writers)  # unacknowledged posts, by producer
        self._changed = asyncio.Event()
        self._on_progress: OnProgress = lambda count: None

    async def run(self, shown: bool) -> dict[str, Any]:
        """Post, wait for acknowledgements and deliveries, and return the results."""
        plan = self._plan
        readers = [asyncio.ensure_future(self._read_queue(queue)) for queue in self._readers]
        total = plan.count or int((plan.duration or 0) / _STEP_S)
        with progress("bench", total, shown) as on_progress:
            self._on_progress = on_progress if plan.count else self._on_progress
            progress_task = None if plan.count else asyncio.ensure_future(_show_progress(total, on_progress))
            cpu, begun = time.process_time(), time.monotonic_ns()
            await asyncio.gather(*(self._post(index, queue, begun) for index, queue in enumerate(self._writers)))
            await self._wait_until(lambda: self._answered == self._posted)
            expected = self._count_expected()
            await self._wait_until(lambda: self._deliveries.count >= expected)
            cpu = time.process_time() - cpu
            wall = (time.monotonic_ns() - begun) / 1e9
            if progress_task is not None:
                progress_task.cancel()
        for reader in readers:
            reader.cancel()
        return self._make_result(begun, cpu, wall, expected)

    def _count_expected(self) -> int:
        """Number of expected deliveries: per message one to each consumer of a broadcast queue, else one."""
        if not self._readers:
            return 0
        times = len(self._readers) if self._readers[0].core.at_most_once else 1
        return self._acks.count * times

    async def _post(self, index: int, queue: Queue, begun: int) -> None:
        plan, clock, context = self._plan, time.monotonic_ns, self._context
        share = None if plan.count is None else plan.count // plan.producers + (index < plan.count % plan.producers)
        end = None if plan.duration is None else begun + int(plan.duration * 1e9)
        interval = plan.producers * 1e9 / plan.rate if plan.rate else 0.0
        done = 0
        while (share is None or done < share) and (end is None or clock() < end) and not context.stopping.is_set():
            due = begun + int((done + index / plan.producers) * interval) if interval else clock()
            if due > clock():
                await context.sleep((due - clock()) / 1e9)
            while self._in_flight[index] + plan.batch > max(plan.in_flight, plan.batch) and not context.stopping.is_set():
                self._changed.clear()
                await context.wait_for(self._changed.wait())
            for _ in range(plan.batch if share is None else min(plan.batch, share - done)):
                stamp = begun + int((done + index / plan.producers) * interval) if interval else clock()
                queue.post_nowait(STAMP.pack(self._run_id, stamp) + self._filler, on_ack=self._on_ack,
                                  correlation=(index, stamp))
                done += 1
                self._in_flight[index] += 1
                self._posted += 1
            await asyncio.sleep(0)

    def _on_ack(self, ack: Ack) -> None:
        index, stamp = cast("tuple[int, int]", ack.correlation)
        self._in_flight[index] -= 1
        self._answered += 1
        if ack.ok:
            self._last_ack = now = time.monotonic_ns()
            self._acks.add(now - stamp)
        else:
            self._refusals[ack.status.name] += 1
        self._on_progress(1)
        self._changed.set()

    async def _read_queue(self, queue: Queue) -> None:
        while True:
            message = await queue.get()
            self._on_message(message)
            try:
                while True:
                    self._on_message(queue.get_nowait())
            except IndexError:
                await asyncio.sleep(0)

    def _on_message(self, message: Message) -> None:
        payload = message.payload
        if len(payload) < STAMP.size or not payload.startswith(self._run_id):
            self._other_messages += 1
            return
        self._last_delivery = now = time.monotonic_ns()
        self._deliveries.add(now - STAMP.unpack_from(payload)[1])
        try:
            message.confirm()
        except SdkError:
            pass  # the connection is lost: the broker redelivers the message
        self._changed.set()

    async def _wait_until(self, done: Any) -> None:
        """Wait for the condition, at most until 10 s (or the connection timeout) have passed without an ACK or a
        delivery."""
        while not done() and not self._context.stopping.is_set():
            self._changed.clear()
            if await self._context.wait_for(self._changed.wait(), min(self._timeout_s, 10.0)) is None:
                return

    def _make_result(self, begun: int, cpu: float, wall: float, expected: int) -> dict[str, Any]:
        plan = self._plan
        posting, reading = (self._last_ack - begun) / 1e9, (self._last_delivery - begun) / 1e9
        consumed = self._deliveries.count
        return {
            "plan": asdict(plan), "posted": self._posted, "acknowledged": self._acks.count,
            "refused": self._refusals.total(), "refusals": self._refusals,
            "consumed": consumed, "missing": max(expected - consumed, 0) + self._posted - self._answered,
            "otherMessages": self._other_messages, "seconds": round(wall, 3),
            "postedPerSecond": round(self._acks.count / posting) if posting > 0 else 0,
            "consumedPerSecond": round(consumed / reading) if reading > 0 else 0,
            "ackMs": self._acks.figures_ms(), "deliveryMs": self._deliveries.figures_ms(),
            "clientCpuPercent": round(100 * cpu / wall) if wall else 0}


async def _show_progress(total: int, on_progress: OnProgress) -> None:
    for _ in range(total):
        await asyncio.sleep(_STEP_S)
        on_progress(1)


def result_text(uri: str, result: dict[str, Any]) -> str:
    plan = result["plan"]
    lines = [f"{uri}: {plan['producers']} producer(s), {plan['consumers']} consumer(s), {plan['size']} B, "
             f"{result['seconds']:g} s"]
    for what, count, rate, times in (("posted", result["acknowledged"], result["postedPerSecond"], result["ackMs"]),
                                     ("consumed", result["consumed"], result["consumedPerSecond"],
                                      result["deliveryMs"])):
        if what == "consumed" and not plan["consumers"]:
            continue
        figures = "   ".join(f"{name} {value:g}" for name, value in times.items())
        lines += [f"  {what:<9} {count} messages   {rate} msg/s   {rate * plan['size'] / (1 << 20):.1f} MiB/s",
                  f"  {'to ack' if what == 'posted' else 'to reader':<9} {figures}   (ms)"]
    lines.append(f"  client    {result['clientCpuPercent']} % of a core"
                 + ("; the client is the limit here" if result["clientCpuPercent"] >= _BUSY_PERCENT else ""))
    lines += [f"  {count} refused: {status}" for status, count in result["refusals"].items()]
    unexpected = ((result["missing"], "did not arrive"),
                  (result["otherMessages"], "messages of other producers, not confirmed"))
    lines += [f"  {count} {text}" for count, text in unexpected if count]
    return "\n".join(lines)
