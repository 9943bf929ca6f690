"""Durable promises of this node for all partitions of a cluster: one file, written in a thread.

A promise is the lease of an appointed primary: this node no longer supports primaries with an older lease. The primary
receives the promise once it is durable (`cluster/take_over.py`). The file also has the doubt about the log of each
partition: durable records, or files, may be missing. Called by `partition_runner.py`; the format of the file is in
`storage/slot_file.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bmqtwist import alarms
from bmqtwist.loop.loop import Loop
from bmqtwist.report import RepeatLimiter
from bmqtwist.storage.slot_file import Doubt, PromiseFile, StoredPromise

RETRY_S = 1.0  # from a failed write to the next attempt


class Promises:
    """Promises of one cluster. `on_saved(partition, lease, now)`: the promise of a newer lease is durable. `wanted`: the
    latest promises, by partition, of which a write may be pending; `lost`: earlier promises are unknown, until this node
    follows a leader."""

    def __init__(self, title: str, file: PromiseFile, loop: Loop,
                 on_saved: Callable[[int, int, float], None]) -> None:
        self._title, self._file, self._loop, self._on_saved = title, file, loop, on_saved
        self.wanted: list[StoredPromise] = []
        self._durable: list[StoredPromise] = []
        self._saving = self.lost = False
        self._repeats = RepeatLimiter()
        self.on_write_failed: Callable[[str, str], None] = lambda what, error: None  # for `disk_health`

    def load(self, partitions: int) -> None:
        """Take the promises that were read from the file."""
        stored = self._file.value
        self._durable = [*stored, *[StoredPromise()] * partitions][:max(partitions, len(stored))]
        self.wanted = list(self._durable)

    @property
    def are_saved(self) -> bool:
        """True if all promises are known and durable."""
        return not self.lost and self.wanted == self._durable

    def mark_doubtful(self, index: int, doubt: Doubt) -> None:
        """Store a doubt about the log of a partition at once; raises OSError."""
        known = self.wanted[index]
        self._durable[index] = self.wanted[index] = StoredPromise(known.lease, max(doubt, known.doubt))
        self._file.write(self._durable)

    def save(self, index: int, lease: int, doubt: Doubt) -> None:
        """Store a promise, and the doubt about the log, in a thread."""
        self.wanted[index] = StoredPromise(max(lease, self.wanted[index].lease), doubt)
        self._write(self._loop.now)

    def _write(self, now: float) -> None:
        if self._saving or self.wanted == self._durable:
            return
        self._saving = True
        wanted = list(self.wanted)
        self._loop.run_in_thread(partial(self._file.write, wanted), partial(self._on_written, wanted), self._on_failed)

    def _on_written(self, wanted: list[StoredPromise], now: float) -> None:
        self._saving, before, self._durable = False, self._durable, wanted
        for index, (old, new) in enumerate(zip(before, wanted, strict=True)):
            if new.lease > old.lease:
                self._on_saved(index, new.lease, now)
        self._write(now)

    def _on_failed(self, error: OSError, now: float) -> None:
        self._saving = False
        self.on_write_failed("its promises", str(error))
        times = self._repeats.suffix("", now)
        if times is not None:
            self._loop.report.alarm(alarms.PROMISE_NOT_WRITTEN, "%s",
                                    f"{self._title}: a promise cannot be written: {error}{times}")
        self._loop.timers.at(now + RETRY_S, self._write)
