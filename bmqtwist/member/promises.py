"""Promises of this node for all partitions of a cluster: one file, written in a thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bmqtwist.loop.loop import Loop
from bmqtwist.storage.slot_file import PromiseFile, StoredPromise

SAVE_AGAIN_S = 1.0  # after a promise could not be written


class Promises:
    """`on_saved(partition, lease, now)`: the promise of a newer lease is durable.
    `lost`: it is not known what was promised."""

    def __init__(self, title: str, file: PromiseFile, host: Loop,
                 on_saved: Callable[[int, int, float], None]) -> None:
        self._title, self._file, self._host, self._on_saved = title, file, host, on_saved
        self.wanted: list[StoredPromise] = []
        self._durable: list[StoredPromise] = []
        self._saving = self.lost = False

    def read(self, partitions: int) -> None:
        """Read the file. OSError."""
        stored, self.lost = self._file.read()
        self._durable = [*stored, *[StoredPromise()] * partitions][:max(partitions, len(stored))]
        self.wanted = list(self._durable)
        if self.lost:
            self._host.report.alarm("CLUSTER", "%s", f"{self._title}: it is not known what this node has promised: it takes "
                                                     "part in no partition until it follows a leader")

    def doubt(self, index: int) -> None:
        """Records of a partition that were durable may be missing: this is durable at once. OSError."""
        self._durable[index] = self.wanted[index] = StoredPromise(self.wanted[index].lease, True)
        self._file.write(self._durable)

    def save(self, index: int, lease: int, doubtful: bool) -> None:
        """Make a promise durable, and whether records may be missing."""
        self.wanted[index] = StoredPromise(max(lease, self.wanted[index].lease), doubtful)
        self._write(self._host.now)

    def _write(self, now: float) -> None:
        if self._saving or self.wanted == self._durable:
            return
        self._saving = True
        wanted = list(self.wanted)
        self._host.in_thread(partial(self._file.write, wanted), partial(self._on_written, wanted),
                                       self._on_failed)

    def _on_written(self, wanted: list[StoredPromise], now: float) -> None:
        self._saving, before, self._durable = False, self._durable, wanted
        for index, (old, new) in enumerate(zip(before, wanted, strict=True)):
            if new.lease > old.lease:
                self._on_saved(index, new.lease, now)
        self._write(now)

    def _on_failed(self, error: OSError, now: float) -> None:
        self._saving = False
        self._host.report.alarm("CLUSTER", "%s", f"{self._title}: a promise cannot be written: {error}")
        self._host.timers.at(now + SAVE_AGAIN_S, self._write)
