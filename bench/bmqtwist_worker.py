"""Client process of a run with the asyncio SDK of bmqtwist; its JSON argument has the fields of bench.sdk_worker, and
`style`.

`style`: how a producer posts:
    single  `post_nowait`, then a turn of the loop: one event and one write per message
    tasks   `TASKS` tasks that await `post` repeatedly: the posts of a turn share an event
    many    `await post_many` of `MANY` messages at a time
With `measure_loop` the report contains the longest callback of the event loop, in elapsed and in CPU time.

Started by `load.py`; the official SDK runs in `sdk_worker.py`, the raw client in `raw_worker.py`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from bench.gauge import ACKED, DONE, GO, POSTED, READY, RECEIVED, STAMP, STOP, SharedCounters
from bmqtwist.sdk import Message, QueueOptions
from bmqtwist.sdk.aio import Queue, Session

TASKS, MANY = 100, 100
_PAUSE_SECONDS = 0.001  # delay before a full window is checked again
_ACK_TIMEOUT_SECONDS = 60


class CallbackTimer:
    """Measures the longest callback of the event loop in seconds, elapsed and CPU."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        run = asyncio.events.Handle._run
        timer = self

        def timed(handle: asyncio.Handle) -> None:
            cpu, wall = time.thread_time(), time.perf_counter()
            run(handle)
            timer.wall = max(timer.wall, time.perf_counter() - wall)
            timer.cpu = max(timer.cpu, time.thread_time() - cpu)

        asyncio.events.Handle._run = timed  # type: ignore[method-assign]


class Consumer:
    """A consumer of one queue."""

    def __init__(self, counters: SharedCounters, session: Session, slot: int, uri: str, app_id: str, samples: str,
                 confirms: bool) -> None:
        self.samples, self.path, self.received, self._confirms = array("Q"), Path(samples), 0, confirms
        self._counters, self._slot, self._session = counters, RECEIVED + slot, session
        self._uri = f"{uri}?id={app_id}" if app_id else uri

    async def open(self) -> None:
        """Open the queue; deliveries start."""
        await self._session.open(self._uri, read=True, on_message=self._on_message, options=QueueOptions(
            max_unconfirmed_messages=100_000, max_unconfirmed_bytes=1 << 30))

    def _on_message(self, message: Message) -> None:
        self.samples.extend((STAMP.unpack_from(message.payload)[0], time.monotonic_ns()))
        if self._confirms:
            message.confirm()
        self.received += 1
        self._counters.set(self._slot, self.received)

    def write_samples(self) -> None:
        """Write the latency samples to the file."""
        self.path.write_bytes(self.samples.tobytes())


class Producer:
    """A producer of one queue."""

    queue: Queue

    def __init__(self, counters: SharedCounters, session: Session, style: str, slot: int, uri: str, size: int, rate: float,
                 window: int, consumers: list[int], seconds: float) -> None:
        self._counters, self._session, self._style, self._slot, self._uri = counters, session, style, slot, uri
        self._rate, self._window, self._consumers, self._seconds = rate, window, consumers, seconds
        self._filler = b"x" * (size - 8)
        self._start_ns = self._end_ns = 0
        self.posted = self.acked = self.refused = 0

    async def open(self) -> None:
        """Open it."""
        self.queue = await self._session.open(self._uri, write=True)

    def _payload(self) -> bytes:
        self.posted += 1
        return STAMP.pack(time.monotonic_ns()) + self._filler

    def _on_ack(self, ack: Any) -> None:
        if ack.ok:
            self.acked += 1
        else:
            self.refused += 1

    async def _wait_to_post(self) -> bool:
        """Wait for the window and the rate; return False after the end of the posting time."""
        counters, slots = self._counters, self._consumers
        while True:
            now = time.monotonic_ns()
            if now >= self._end_ns:
                return False
            if self.posted - min(counters.get(RECEIVED + slot) for slot in slots) >= self._window:
                await asyncio.sleep(_PAUSE_SECONDS)
            elif self._rate and (due := self._start_ns + self.posted * 1e9 / self._rate) > now:
                await asyncio.sleep((due - now) / 1e9)
            else:
                return True

    async def _single(self) -> None:
        while await self._wait_to_post():
            self.queue.post_nowait(self._payload(), on_ack=self._on_ack)
            await asyncio.sleep(0)

    async def _task(self) -> None:
        while await self._wait_to_post():
            self._on_ack(await self.queue.post(self._payload()))

    async def _tasks(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(self._task())

    async def _many(self) -> None:
        while await self._wait_to_post():
            for ack in await self.queue.post_many([self._payload() for _ in range(MANY)]):
                self._on_ack(ack)

    async def run(self) -> None:
        """Post until the end of the posting time, at most a window ahead of the slowest consumer."""
        self._start_ns = time.monotonic_ns()
        self._end_ns = self._start_ns + int(self._seconds * 1e9)
        await {"single": self._single, "tasks": self._tasks, "many": self._many}[self._style]()
        self._counters.set(POSTED + self._slot, self.posted)
        self._counters.set(DONE + self._slot, self.posted or 1)
        deadline = time.monotonic() + _ACK_TIMEOUT_SECONDS
        while self.acked + self.refused < self.posted and time.monotonic() < deadline:
            await asyncio.sleep(_PAUSE_SECONDS)
        self._counters.set(ACKED + self._slot, self.acked)


async def _run(spec: dict[str, Any]) -> None:
    counters = SharedCounters(Path(spec["counters"]))
    sessions = [Session(spec["broker"]) for _ in (*spec["consumers"], *spec["producers"])]
    for session in sessions:
        await session.start()
    free = iter(sessions)
    consumers = [Consumer(counters, next(free), **fields) for fields in spec["consumers"]]
    producers = [Producer(counters, next(free), spec["style"], **fields) for fields in spec["producers"]]
    for each in (*consumers, *producers):
        await each.open()
    gc.collect()
    gc.freeze()  # else a full garbage collection takes about 10 ms
    counters.set(READY + spec["worker"], 1)
    while not counters.get(GO):
        await asyncio.sleep(0.0005)
    timer = CallbackTimer() if spec["measure_loop"] else None
    begun = time.process_time()
    await asyncio.gather(*(producer.run() for producer in producers))
    while not counters.get(STOP):
        await asyncio.sleep(_PAUSE_SECONDS)
    cpu = time.process_time() - begun
    longest = {"wall": round(timer.wall * 1e3, 2), "cpu": round(timer.cpu * 1e3, 2)} if timer else None
    for consumer in consumers:
        consumer.write_samples()
    for session in sessions:
        await session.stop()
    print(json.dumps({"posted": sum(p.posted for p in producers), "acked": sum(p.acked for p in producers),
                      "nacked": sum(p.refused for p in producers), "received": sum(c.received for c in consumers),
                      "cpu_seconds": cpu, "longest_callback_ms": longest}))


if __name__ == "__main__":
    asyncio.run(_run(json.loads(sys.argv[1])))
