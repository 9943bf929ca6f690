"""Benchmark of a rollover: turn times of the event loop while a partition copies a million live messages, on real files.

    python -m bench.rollover [--messages 1000000] [--size 100] [--directory DIR]

Fills one partition, then posts and deletes messages until the partition rolls over in slices, and measures each turn
meanwhile: `clock`, the elapsed time; `work`, the CPU time of the thread; `host_pause`, the longest pause of the machine
(`bench.machine`). Then it measures a rollover in one step, and a recovery from the file set. Prints one JSON object.
Limits of the rollover are in `bmqtwist/storage/rollover.py`."""

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

from bench.machine import HostPauseMonitor
from bmqtwist.loop.scheduler import BUDGETS, ROLLOVER_LATE_S, STEPS_MAX, Priority
from bmqtwist.storage.files import RealDisk
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.recovery import recover
from bmqtwist.storage.rollover import RolloverJob, RolloverPhase
from bmqtwist.storage.store import FileSizes

KEY, URI, APPS = b"bench", "bmq://bench/q", [("__default", b"0\0\0\0\0")]
BATCH = 50  # messages posted, and messages deleted, per turn


class PartitionRunner:
    """One partition with its turns and the thread for the jobs of its rollover."""

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
        self._jobs: list[tuple[RolloverJob, Future[None]]] = []

    def post(self, count: int) -> None:
        """Post `count` messages."""
        for _ in range(count):
            self._number += 1
            guid = b"\x40\0\0" + self._number.to_bytes(7, "big") + b"client"
            message = Message(guid, self._payload, crc=self._crc)
            message.ref_count = 1
            self.partition.append_message(KEY, message, 1)
            self.messages.append(message)

    def delete(self, count: int) -> None:
        """Delete `count` messages, half of them old, half new."""
        for _ in range(count // 2):
            for at in (self._number * 7919 % len(self.messages), -1):
                self.messages[at], self.messages[-1] = self.messages[-1], self.messages[at]
                self.partition.append_deletion(KEY, self.messages.pop(), 0, 1)

    def turn(self) -> None:
        """Run a turn: flush, and step the rollover within its budget."""
        self.partition.flush(1)
        roll = self.partition.roll
        for job, future in self._jobs:
            if future.done():
                future.result()
                self._jobs.remove((job, future))
                roll.on_job_done(job, 1)
                break
        begun, more, slices = time.perf_counter(), True, 0
        while more and slices < STEPS_MAX:
            more, slices = roll.step(1), slices + 1
            requested = roll.take_job()
            if requested is not None:
                self._jobs.append((requested, self._thread.submit(requested.run)))
            if time.perf_counter() - begun >= (ROLLOVER_LATE_S if roll.is_late else BUDGETS[Priority.ROLLOVER]):
                break


def measure_in_slices(bench: PartitionRunner, pauses: HostPauseMonitor) -> dict[str, Any]:
    """Measure the turns of a rollover in slices under traffic."""
    turns: list[tuple[float, float, float | None, str]] = []  # elapsed s, CPU s, host pause ms, phases
    began = 0.0
    roll = bench.partition.roll
    while not began or roll.phase is not RolloverPhase.IDLE:
        phase = roll.phase
        if phase is not RolloverPhase.IDLE and not began:
            began = time.perf_counter()
        pauses.longest_ms()
        start, worked = time.perf_counter(), time.thread_time()
        bench.post(BATCH)
        bench.delete(BATCH)
        bench.turn()
        if began:
            clock, work = time.perf_counter() - start, time.thread_time() - worked
            turns.append((clock, work, pauses.longest_ms(), f"{phase.value} > {roll.phase.value}"))
    longest = sorted(turns, key=lambda turn: turn[0], reverse=True)
    alarms = bench.partition.take_alarms()
    return {"turns": len(turns), "seconds": round(time.perf_counter() - began, 2),
            "longest_ms": [{"clock": round(clock * 1000, 2), "work": round(work * 1000, 2), "host_pause": pause,
                            "phase": phase}
                           for clock, work, pause, phase in longest[:5]],
            "p99_ms": round(longest[len(longest) // 100][0] * 1000, 2),
            "median_ms": round(longest[len(longest) // 2][0] * 1000, 2), "alarms": alarms}


class FilesWithoutHoles:
    """Files on a file system that does not report holes: recovery reads the whole preallocated journal."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def journal_after(self, offset: int) -> int:
        """Return the offset of the next written bytes."""
        return offset


def measure_ms(action: Any) -> float:
    """Run an action and return its duration in milliseconds."""
    start = time.perf_counter()
    action()
    return round((time.perf_counter() - start) * 1000, 1)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000, help="live messages (default: %(default)s)")
    parser.add_argument("--size", type=int, default=100, help="payload bytes (default: %(default)s)")
    parser.add_argument("--directory", help="directory for the files (default: that of temporary files)")
    options = parser.parse_args()
    gc.disable()
    with tempfile.TemporaryDirectory(prefix="bmq-rollover-", dir=options.directory) as name, HostPauseMonitor() as pauses:
        bench = PartitionRunner(name, options.messages, options.size)
        while len(bench.messages) < options.messages:
            bench.post(1000)
            bench.partition.flush(1)
        gc.freeze()
        row: dict[str, Any] = {"messages": len(bench.messages), "size": options.size,
                               "in_slices": measure_in_slices(bench, pauses)}
        row["in_one_step_ms"] = measure_ms(lambda: bench.partition.roll.finish_at_once(2))
        files = bench.partition.files
        whole: Any = FilesWithoutHoles(files)
        for _ in range(2):
            row.setdefault("recovery_of_the_whole_file_ms", []).append(measure_ms(lambda: recover(whole)))
            row.setdefault("recovery_ms", []).append(measure_ms(lambda: recover(files)))
        bench.partition.stop(3)
        print(json.dumps(row, indent=1), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
