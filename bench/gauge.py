"""What is measured and how: the board shared by the processes of a run, CPU and memory of a process, percentiles."""

from __future__ import annotations

import mmap
import os
import struct
import time
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# Slots of the board, each a 64-bit native integer; rabbit_client.c has the same numbers.
GO, STOP, READY, POSTED, ACKED, RECEIVED, DONE = 0, 1, 8, 136, 200, 264, 328
SLOTS = 512
_SLOT = struct.Struct("=Q")
STAMP = struct.Struct("=Q")  # the first bytes of a payload: when it was posted (monotonic, ns)
_TICKS = os.sysconf("SC_CLK_TCK")


class Board:
    """A page of counters shared by every process of one run, so that a producer can see how far consumers are."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        self.page = mmap.mmap(self._file.fileno(), SLOTS * 8)

    @classmethod
    def create(cls, path: Path) -> Board:
        """A fresh board, all zero."""
        path.write_bytes(bytes(SLOTS * 8))
        return cls(path)

    def get(self, slot: int) -> int:
        """Read one counter."""
        return _SLOT.unpack_from(self.page, slot * 8)[0]

    def set(self, slot: int, value: int) -> None:
        """Write one counter."""
        _SLOT.pack_into(self.page, slot * 8, value)

    def wait(self, slots: Sequence[int], seconds: float, processes: Sequence[Any] = ()) -> None:
        """Wait until every given slot is non-zero; TimeoutError, or RuntimeError when a process has died meanwhile."""
        deadline = time.monotonic() + seconds
        while not all(self.get(slot) for slot in slots):
            dead = [p.args for p in processes if p.poll() not in (None, 0)]
            if dead:
                raise RuntimeError(f"a client process died: {dead[0]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing in slots {[s for s in slots if not self.get(s)]} after {seconds:.0f} s")
            time.sleep(0.002)


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


def cpu_seconds_of(pids: Iterable[int]) -> tuple[float, float]:
    """User and system time of several processes together."""
    spent = [cpu_seconds(pid) for pid in pids]
    return sum(user for user, _ in spent), sum(system for _, system in spent)


def memory_mib(pid: int) -> dict[str, float]:
    """Resident memory of a process in MiB: `peak` (VmHWM) and `now` (VmRSS), `anon` without mapped files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    table = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("Vm", "Rss"))}
    return {name: round(int(table[key]) / 1024, 1)
            for name, key in (("peak", "VmHWM"), ("now", "VmRSS"), ("anon", "RssAnon"))}


def busy_seconds() -> float:
    """What all processors of the machine have worked so far, time stolen by a hypervisor included."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS


class Samples:
    """End-to-end times: pairs of nanoseconds (posted, received), one file per consumer."""

    def __init__(self) -> None:
        self.pairs = array("Q")

    def load(self, path: Path) -> None:
        """Append the samples a consumer has left."""
        with path.open("rb") as file:
            self.pairs.frombytes(file.read())

    def percentiles_ms(self, since_ns: int) -> dict[str, float | None]:
        """p50, p99, p99.9 and maximum in milliseconds of messages posted at `since_ns` or later."""
        posted, received = self.pairs[0::2], self.pairs[1::2]
        taken = sorted(b - a for a, b in zip(posted, received, strict=True) if a >= since_ns)
        if not taken:
            return {"p50": None, "p99": None, "p99.9": None, "max": None}
        at = {name: taken[min(len(taken) - 1, int(len(taken) * share))]
              for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))}
        return {name: round(value / 1e6, 3) for name, value in at.items()}

    def rate(self, since_ns: int, until_ns: int) -> float:
        """Messages received per second between two moments."""
        count = sum(1 for moment in self.pairs[1::2] if since_ns <= moment < until_ns)
        return count / ((until_ns - since_ns) / 1e9)
