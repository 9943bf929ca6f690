"""How long a partition keeps the event loop busy while it rolls over a million live messages, on real files.

    python -m bench.rollover [--messages 1000000] [--size 100] [--directory DIR]

Fills one partition, goes on posting and deleting until it rolls over in slices, and takes the time of every turn
meanwhile: by the clock; what of it this thread worked, the rest being waiting for the disk and for other processes; and how
long the machine was away at most (`bench.machine`), which counts as work where a page of memory is waited for. Then it rolls
over once more in one step; then it reads the file set as a start would. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from crc32c import crc32c

from bench.machine import Machine
from bmqtwist.loop.scheduler import BUDGETS, ROLLOVER_LATE_S, STEPS_MAX, Priority
from bmqtwist.storage.files import RealDisk
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.recovery import recover
from bmqtwist.storage.rollover import Job, Phase
from bmqtwist.storage.store import FileSizes

KEY, URI, APPS = b"bench", "bmq://bench/q", [("__default", b"0\0\0\0\0")]
BATCH = 50  # messages posted, and as many deleted, in a turn


class Bench:
    """One partition, and what performs for it: the slices of `node.turn`, and one thread for its jobs."""

    def __init__(self, directory: str, live: int, size: int) -> None:
        self._payload, self._number = b"x" * size, 0
        self._crc = crc32c(self._payload)
        sizes = FileSizes(live * 160, live * (size + 40) * 3, 1 << 20)
        archive = os.path.join(directory, "archive")
        os.mkdir(archive)
        files = FileSets(RealDisk(), directory, archive, 0, sizes)
        files.open(int(time.time()))
        self.partition = Partition(1, files, recover(files), "none", cache_bytes=0)
        self.partition.activate(1, int(time.time()))
        self.partition.queues.create(KEY, URI, APPS, 0)
        self.messages: list[Message] = []
        self._thread = ThreadPoolExecutor(1)
        self._jobs: list[tuple[Job, Future[None]]] = []

    def post(self, count: int) -> None:
        """Messages."""
        for _ in range(count):
            self._number += 1
            guid = b"\x40\0\0" + self._number.to_bytes(7, "big") + b"client"
            message = Message(guid, self._payload, crc=self._crc)
            message.ref_count = 1
            self.partition.append_message(KEY, message, 1)
            self.messages.append(message)

    def delete(self, count: int) -> None:
        """Half of them old, half new ones."""
        for _ in range(count // 2):
            for at in (self._number * 7919 % len(self.messages), -1):
                self.messages[at], self.messages[-1] = self.messages[-1], self.messages[at]
                self.partition.append_deletion(KEY, self.messages.pop(), 0, 1)

    def turn(self) -> None:
        """What a turn of the broker does with a partition."""
        self.partition.flush(1)
        roll = self.partition.roll
        for job, future in self._jobs:
            if future.done():
                future.result()
                self._jobs.remove((job, future))
                roll.done(job, 1)
                break
        begun, more, slices = time.perf_counter(), True, 0
        while more and slices < STEPS_MAX:
            more, slices = roll.step(1), slices + 1
            asked = roll.take_job()
            if asked is not None:
                self._jobs.append((asked, self._thread.submit(asked.run)))
            if time.perf_counter() - begun >= (ROLLOVER_LATE_S if roll.late else BUDGETS[Priority.ROLLOVER]):
                break


def in_slices(bench: Bench, machine: Machine) -> dict[str, Any]:
    """A rollover under traffic."""
    turns: list[tuple[float, float, float | None, str]] = []  # seconds by the clock, of work, ms of the machine; phases
    began = 0.0
    roll = bench.partition.roll
    while not began or roll.phase is not Phase.IDLE:
        phase = roll.phase
        if phase is not Phase.IDLE and not began:
            began = time.perf_counter()
        machine.longest_ms()
        start, worked = time.perf_counter(), time.thread_time()
        bench.post(BATCH)
        bench.delete(BATCH)
        bench.turn()
        if began:
            clock, work = time.perf_counter() - start, time.thread_time() - worked
            turns.append((clock, work, machine.longest_ms(), f"{phase.value} > {roll.phase.value}"))
    longest = sorted(turns, key=lambda turn: turn[0], reverse=True)
    alarms = bench.partition.take_alarms()
    return {"turns": len(turns), "seconds": round(time.perf_counter() - began, 2),
            "longest_ms": [{"clock": round(clock * 1000, 2), "work": round(work * 1000, 2), "machine": away, "phase": phase}
                           for clock, work, away, phase in longest[:5]],
            "p99_ms": round(longest[len(longest) // 100][0] * 1000, 2),
            "median_ms": round(longest[len(longest) // 2][0] * 1000, 2), "alarms": alarms}


class WithoutHoles:
    """Files on a file system that does not know its holes: the whole preallocated journal is read."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def journal_after(self, offset: int) -> int:
        """Where the next bytes are that were ever written."""
        return offset


def timed(action: Any) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    action()
    return round((time.perf_counter() - start) * 1000, 1)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--directory", help="where the files are made; default: the usual place of temporary files")
    options = parser.parse_args()
    gc.disable()
    with tempfile.TemporaryDirectory(prefix="bmq-rollover-", dir=options.directory) as name, Machine() as machine:
        bench = Bench(name, options.messages, options.size)
        while len(bench.messages) < options.messages:
            bench.post(1000)
            bench.partition.flush(1)
        gc.freeze()
        row: dict[str, Any] = {"messages": len(bench.messages), "size": options.size, "in_slices": in_slices(bench, machine)}
        row["in_one_step_ms"] = timed(lambda: bench.partition.roll.finish(2))
        files = bench.partition.files
        whole: Any = WithoutHoles(files)
        for _ in range(2):
            row.setdefault("recovery_of_the_whole_file_ms", []).append(timed(lambda: recover(whole)))
            row.setdefault("recovery_ms", []).append(timed(lambda: recover(files)))
        bench.partition.stop(3)
        print(json.dumps(row, indent=1), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
