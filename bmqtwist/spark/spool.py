"""Spool of planned batches on disk: after a restart any process can return an unfinished batch unchanged.

    spoolDir/
        epoch                           one line: id of the checkpoint
        lock                            locked while a query runs
        <start>-<end>.arrow             a planned batch, Arrow IPC; deleted when it is committed
        <start>-<end>.guids             its keys, 17 bytes each; deleted after the GUID retention (`plan.CommittedKeys`)

A batch is written before Spark receives its end: content, then keys; each file is synced and renamed, then the directory is
synced. Therefore the files of a batch show its state after a restart:

    keys without content    the batch is committed
    content without keys    the write was interrupted: Spark does not know the batch, and `segments` removes the content

`engine.py` owns the spool.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
import uuid
from pathlib import Path

from bmqtwist.spark.plan import OffsetError, Segment

_NAME = re.compile(r"(\d{20})-(\d{20})\.(arrow|guids)")
KEY_BYTES = 17
LOCK_SECONDS_MAX = 30.0  # wait for the lock, which the process of a killed query may still have
_LOCK_RETRY_S = 0.1


def _name(start: int, end: int, kind: str) -> str:
    return f"{start:020}-{end:020}.{kind}"


class Spool:
    """One directory, locked until `close`."""

    def __init__(self, directory: str, wait_s: float = LOCK_SECONDS_MAX) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    os.close(self._lock)
                    raise OffsetError(f"spool {directory} has been locked by another query for {wait_s:g} s: each query "
                                      "needs its own spoolDir") from None
                time.sleep(_LOCK_RETRY_S)
        path = self.directory / "epoch"
        self.epoch = path.read_text(encoding="ascii").strip() if path.exists() else ""

    def set_epoch(self, epoch: str) -> None:
        self._write_file("epoch", epoch.encode() + b"\n")
        self.epoch = epoch

    def segments(self) -> list[Segment]:
        found: dict[tuple[int, int], set[str]] = {}
        for path in self.directory.iterdir():
            match = _NAME.fullmatch(path.name)
            if match:
                found.setdefault((int(match[1]), int(match[2])), set()).add(match[3])
            elif path.name.endswith(".tmp"):
                path.unlink()
        segments = []
        for (start, end), kinds in sorted(found.items()):
            if "guids" not in kinds:
                (self.directory / _name(start, end, "arrow")).unlink()
                continue
            data = (self.directory / _name(start, end, "guids")).read_bytes()
            if len(data) != (end - start) * KEY_BYTES:
                raise OffsetError(f"spool {self.directory}: {_name(start, end, 'guids')} has {len(data)} bytes, not "
                                  f"{(end - start) * KEY_BYTES}: it is damaged")
            segments.append(Segment(start, end, [data[at:at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)]))
        return segments

    def has_content(self, segment: Segment) -> bool:
        return (self.directory / _name(segment.start, segment.end, "arrow")).exists()

    def write(self, segment: Segment, content: bytes) -> None:
        """Write a planned batch; it is durable on return."""
        self._write_file(_name(segment.start, segment.end, "arrow"), content)
        self._write_file(_name(segment.start, segment.end, "guids"), b"".join(segment.keys))

    def read(self, segment: Segment) -> bytes | None:
        try:
            return (self.directory / _name(segment.start, segment.end, "arrow")).read_bytes()
        except FileNotFoundError:
            return None

    def remove_content(self, segment: Segment) -> None:
        (self.directory / _name(segment.start, segment.end, "arrow")).unlink(missing_ok=True)

    def remove(self, segment: Segment) -> None:
        self.remove_content(segment)
        (self.directory / _name(segment.start, segment.end, "guids")).unlink(missing_ok=True)

    def _write_file(self, name: str, data: bytes) -> None:
        target = self.directory / name
        temporary = self.directory / f"{name}.tmp"
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def close(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def new_epoch() -> str:
    return str(uuid.uuid4())
