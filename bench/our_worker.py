"""One client process of a run, on our asyncio SDK: what bench.sdk_worker is for the official one, with the same fields.

`style` says how a producer posts:
    single  `post_nowait`, then a turn of the loop: every message is an event and a write of its own
    tasks   `TASKS` tasks, each awaiting `post` again and again: a turn's posts share an event
    many    `await post_many` of `MANY` messages at a time
The report also says how long the loop was blocked: the longest that a single callback took, by the wall and in CPU time.
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

from bench.gauge import ACKED, DONE, GO, POSTED, READY, RECEIVED, STAMP, STOP, Board
from bmqtwist.sdk import Message, QueueOptions
from bmqtwist.sdk.aio import Queue, Session

TASKS, MANY = 100, 100
_PAUSE_SECONDS = 0.001  # a full window is looked at again after so long
_GIVE_UP_SECONDS = 60


class LoopGauge:
    """The longest callback of an event loop, in seconds: wall and CPU."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        run = asyncio.events.Handle._run
        gauge = self

        def timed(handle: asyncio.Handle) -> None:
            cpu, wall = time.thread_time(), time.perf_counter()
            run(handle)
            gauge.wall = max(gauge.wall, time.perf_counter() - wall)
            gauge.cpu = max(gauge.cpu, time.thread_time() - cpu)

        asyncio.events.Handle._run = timed  # type: ignore[method-assign]


class Consumer:
    """One queue open for reading."""

    def __init__(self, board: Board, session: Session, slot: int, uri: str, app_id: str, samples: str,
                 confirms: bool) -> None:
        self.samples, self.path, self.received, self._confirms = array("Q"), Path(samples), 0, confirms
        self._board, self._slot, self._session = board, RECEIVED + slot, session
        self._uri = f"{uri}?id={app_id}" if app_id else uri

    async def open(self) -> None:
        """Open it; messages come from now on."""
        await self._session.open(self._uri, read=True, on_message=self._on_message, options=QueueOptions(
            max_unconfirmed_messages=100_000, max_unconfirmed_bytes=1 << 30))

    def _on_message(self, message: Message) -> None:
        self.samples.extend((STAMP.unpack_from(message.payload)[0], time.monotonic_ns()))
        if self._confirms:
            message.confirm()
        self.received += 1
        self._board.set(self._slot, self.received)

    def leave(self) -> None:
        """Leave the samples."""
        self.path.write_bytes(self.samples.tobytes())


class Producer:
    """One queue open for writing."""

    queue: Queue

    def __init__(self, board: Board, session: Session, style: str, slot: int, uri: str, size: int, rate: float,
                 window: int, consumers: list[int], seconds: float) -> None:
        self._board, self._session, self._style, self._slot, self._uri = board, session, style, slot, uri
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

    async def _may_post(self) -> bool:
        """Wait for the window and the rate; False when the time is up."""
        board, slots = self._board, self._consumers
        while True:
            now = time.monotonic_ns()
            if now >= self._end_ns:
                return False
            if self.posted - min(board.get(RECEIVED + slot) for slot in slots) >= self._window:
                await asyncio.sleep(_PAUSE_SECONDS)
            elif self._rate and (due := self._start_ns + self.posted * 1e9 / self._rate) > now:
                await asyncio.sleep((due - now) / 1e9)
            else:
                return True

    async def _single(self) -> None:
        while await self._may_post():
            self.queue.post_nowait(self._payload(), on_ack=self._on_ack)
            await asyncio.sleep(0)

    async def _task(self) -> None:
        while await self._may_post():
            self._on_ack(await self.queue.post(self._payload()))

    async def _tasks(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(self._task())

    async def _many(self) -> None:
        while await self._may_post():
            for ack in await self.queue.post_many([self._payload() for _ in range(MANY)]):
                self._on_ack(ack)

    async def run(self) -> None:
        """Post until the time is up, at most a window ahead of the slowest consumer."""
        self._start_ns = time.monotonic_ns()
        self._end_ns = self._start_ns + int(self._seconds * 1e9)
        await {"single": self._single, "tasks": self._tasks, "many": self._many}[self._style]()
        self._board.set(POSTED + self._slot, self.posted)
        self._board.set(DONE + self._slot, self.posted or 1)
        give_up = time.monotonic() + _GIVE_UP_SECONDS
        while self.acked + self.refused < self.posted and time.monotonic() < give_up:
            await asyncio.sleep(_PAUSE_SECONDS)
        self._board.set(ACKED + self._slot, self.acked)


async def _run(spec: dict[str, Any]) -> None:
    board = Board(Path(spec["board"]))
    sessions = [Session(spec["broker"]) for _ in (*spec["consumers"], *spec["producers"])]
    for session in sessions:
        await session.start()
    free = iter(sessions)
    consumers = [Consumer(board, next(free), **fields) for fields in spec["consumers"]]
    producers = [Producer(board, next(free), spec["style"], **fields) for fields in spec["producers"]]
    for each in (*consumers, *producers):
        await each.open()
    gc.collect()
    gc.freeze()  # or a full collection looks at everything that was imported, for some 10 ms
    board.set(READY + spec["worker"], 1)
    while not board.get(GO):
        await asyncio.sleep(0.0005)
    gauge = LoopGauge() if spec["gauge"] else None
    begun = time.process_time()
    await asyncio.gather(*(producer.run() for producer in producers))
    while not board.get(STOP):
        await asyncio.sleep(_PAUSE_SECONDS)
    cpu = time.process_time() - begun
    blocked = {"wall": round(gauge.wall * 1e3, 2), "cpu": round(gauge.cpu * 1e3, 2)} if gauge else None
    for consumer in consumers:
        consumer.leave()
    for session in sessions:
        await session.stop()
    print(json.dumps({"posted": sum(p.posted for p in producers), "acked": sum(p.acked for p in producers),
                      "nacked": sum(p.refused for p in producers), "received": sum(c.received for c in consumers),
                      "cpu_seconds": cpu, "blocked_ms": blocked}))


if __name__ == "__main__":
    asyncio.run(_run(json.loads(sys.argv[1])))
