"""Measurements: counters shared by the processes of a run, CPU and memory of a process, latency percentiles.

`rabbit_client.c` has the same slots. Used by `load.py`, the clients (`bmqtwist_worker.py`, `raw_worker.py`,
`sdk_worker.py`), and other benchmarks (`Samples`, CPU, memory); pauses of the machine are measured by `machine.py`.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# Slots of the shared counters, each a 64-bit native integer; rabbit_client.c has the same numbers.
GO, STOP, READY, POSTED, ACKED, RECEIVED, DONE = 0, 1, 8, 136, 200, 264, 328
SLOTS = 512
_SLOT = struct.Struct("=Q")
STAMP = struct.Struct("=Q")  # first bytes of a payload: time of the PUT (monotonic, ns)
_TICKS = os.sysconf("SC_CLK_TCK")


class SharedCounters:
    """Counters in a memory-mapped page, shared by all processes of a run; producers read the progress of consumers."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        self.page = mmap.mmap(self._file.fileno(), SLOTS * 8)

    @classmethod
    def create(cls, path: Path) -> SharedCounters:
        """Create the page with all counters 0."""
        path.write_bytes(bytes(SLOTS * 8))
        return cls(path)

    def get(self, slot: int) -> int:
        """Return a counter."""
        return _SLOT.unpack_from(self.page, slot * 8)[0]

    def set(self, slot: int, value: int) -> None:
        """Set a counter."""
        _SLOT.pack_into(self.page, slot * 8, value)

    def wait(self, slots: Sequence[int], seconds: float, processes: Sequence[Any] = ()) -> None:
        """Wait until all given counters are not 0; TimeoutError after `seconds`, RuntimeError if a process has failed."""
        deadline = time.monotonic() + seconds
        while not all(self.get(slot) for slot in slots):
            failed = [p.args for p in processes if p.poll() not in (None, 0)]
            if failed:
                raise RuntimeError(f"a client process failed: {failed[0]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing in slots {[s for s in slots if not self.get(s)]} after {seconds:.0f} s")
            time.sleep(0.002)


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Return user and system time of a process with all its threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


def cpu_seconds_of(pids: Iterable[int]) -> tuple[float, float]:
    """Return user and system time of several processes together, in seconds."""
    spent = [cpu_seconds(pid) for pid in pids]
    return sum(user for user, _ in spent), sum(system for _, system in spent)


def memory_mib(pid: int) -> dict[str, float]:
    """Return the resident memory of a process in MiB: `peak` (VmHWM), `now` (VmRSS), `anon` without mapped files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    table = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("Vm", "Rss"))}
    return {name: round(int(table[key]) / 1024, 1)
            for name, key in (("peak", "VmHWM"), ("now", "VmRSS"), ("anon", "RssAnon"))}


def busy_seconds() -> float:
    """Return the busy time of all processors since boot, in seconds, with time stolen by a hypervisor."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS


class Samples:
    """End-to-end latencies: pairs (posted, received) in nanoseconds, one file per consumer."""

    def __init__(self) -> None:
        self.pairs = array("Q")

    def load(self, path: Path) -> None:
        """Append the samples of a consumer's file."""
        with path.open("rb") as file:
            self.pairs.frombytes(file.read())

    def percentiles_ms(self, since_ns: int) -> dict[str, float | None]:
        """Return p50, p99, p99.9 and maximum in milliseconds, of messages posted at `since_ns` or later."""
        posted, received = self.pairs[0::2], self.pairs[1::2]
        latencies = sorted(b - a for a, b in zip(posted, received, strict=True) if a >= since_ns)
        if not latencies:
            return {"p50": None, "p99": None, "p99.9": None, "max": None}
        at = {name: latencies[min(len(latencies) - 1, int(len(latencies) * share))]
              for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))}
        return {name: round(value / 1e6, 3) for name, value in at.items()}

    def rate(self, since_ns: int, until_ns: int) -> float:
        """Return the messages received per second between two times."""
        count = sum(1 for moment in self.pairs[1::2] if since_ns <= moment < until_ns)
        return count / ((until_ns - since_ns) / 1e9)
