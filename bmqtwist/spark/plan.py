"""Batches of a streaming query, without I/O: assignment of messages to batches, confirmations, repeated deliveries.

    delivered --> waiting --> planned (in a segment) --> committed: confirmed, its GUIDs are stored
                     |             |                         |
          dropped when the    a repeated delivery       a repeated delivery
          connection is lost  is ignored                is confirmed again

A position is the number of messages in earlier batches of the query. A segment, a range of positions, is planned when Spark
receives its end, and committed when Spark requests the next batch: the segment's batch is then in Spark's commit log.
Messages are confirmed only then. `engine.py` calls `BatchPlan`; the planned batches are stored by `spool.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from bmqtwist.errors import LocalError
from bmqtwist.sdk.message import Message

Key = bytes  # number of the queue in the source, one byte; then the GUID
Waiting = tuple[Any, float, int]  # message, time of its first delivery, number of the receiver of its last delivery


def keys_of(queue: int, messages: Iterable[Message[Any]]) -> list[Key]:
    prefix = bytes((queue,))
    return [prefix + message.guid for message in messages]


class OffsetError(LocalError):
    """Checkpoint and spool do not match; the text names the remedy."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Position of a query. `epoch` names its checkpoint."""

    epoch: str
    seq: int

    def as_json(self) -> dict[str, Any]:
        return {"v": 1, "epoch": self.epoch, "seq": self.seq}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Offset:
        if value.get("v") != 1 or not isinstance(value.get("seq"), int):
            raise OffsetError(f"the checkpoint holds {value!r}, which is not the offset of a queue: it is of another source")
        return cls(str(value["epoch"]), value["seq"])


@dataclass(slots=True)
class Segment:
    """Planned batch: positions from `start` to before `end`. `items`: its messages, None = not in memory."""

    start: int
    end: int
    keys: list[Key]
    items: list[Any] | None = None


class CommittedKeys:
    """Keys of the latest committed messages, at least `retention` of them; older segments are dropped as a whole."""

    def __init__(self, retention: int) -> None:
        self._retention = retention
        self.keys: set[Key] = set()
        self._segments: deque[Segment] = deque()

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, segment: Segment) -> list[Segment]:
        self.keys.update(segment.keys)
        self._segments.append(segment)
        expired = []
        while len(self.keys) - len(self._segments[0].keys) >= self._retention:
            oldest = self._segments.popleft()
            self.keys.difference_update(oldest.keys)
            expired.append(oldest)
        return expired


@dataclass(slots=True)
class CommitResult:
    """Result of a commit: keys to confirm, the committed segments, and those whose keys are dropped (`expired`)."""

    confirm: list[Key] = field(default_factory=list)
    committed: list[Segment] = field(default_factory=list)
    expired: list[Segment] = field(default_factory=list)


class BatchPlan:
    """Batches of one query. `end`: position after the last planned message."""

    def __init__(self, retention: int) -> None:
        self.end = 0
        self.committed = CommittedKeys(retention)
        self._segments: deque[Segment] = deque()
        self._planned: set[Key] = set()
        self._waiting: dict[Key, Waiting] = {}  # not in a batch yet
        self.repeated = 0  # repeated deliveries

    # -- restart ------------------------------------------------------------------------------------------------------

    def restore(self, segments: Iterable[Segment], start: int) -> CommitResult:
        """Restore the segments of the spool, in order, when Spark continues at `start`; segments before it are committed."""
        done = CommitResult()
        for segment in segments:
            if segment.start < self.end:
                raise OffsetError(f"the spool has two segments for position {segment.start}: it was used by two queries")
            if segment.end > start:
                if segment.start < start:
                    raise OffsetError(f"the spool has a segment from {segment.start} to {segment.end}, and the checkpoint "
                                      f"continues at {start}, inside of it: they do not match")
                self._segments.append(segment)
                self._planned.update(segment.keys)
            else:
                done.committed.append(segment)
                done.confirm += segment.keys
                done.expired += self.committed.add(segment)
            self.end = segment.end
        self.end = max(self.end, start)
        return done

    # -- deliveries ---------------------------------------------------------------------------------------------------

    def deliver(self, keys: Iterable[Key], items: Iterable[Any], receiver: int, now: float) -> list[Key]:
        """Record deliveries. Return the keys of committed messages, which must be confirmed again."""
        committed, planned, waiting = self.committed.keys, self._planned, self._waiting
        repeated = []
        for key, item in zip(keys, items, strict=True):
            if key in committed:
                repeated.append(key)
            elif key in planned:
                self.repeated += 1
            elif key in waiting:
                waiting[key] = *waiting[key][:2], receiver
            else:
                waiting[key] = item, now, receiver
        self.repeated += len(repeated)
        return repeated

    def drop_waiting(self, receiver: int) -> None:
        """Drop the waiting messages of a receiver whose connection is lost: the broker delivers them again."""
        self._waiting = {key: each for key, each in self._waiting.items() if each[2] != receiver}

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def unconfirmed_count(self) -> int:
        return len(self._planned) + len(self._waiting)

    def oldest_time(self) -> float | None:
        """Return the time of delivery of the oldest waiting message, None = none is waiting."""
        return next(iter(self._waiting.values()))[1] if self._waiting else None

    # -- batches ------------------------------------------------------------------------------------------------------

    def segment_at(self, start: int) -> Segment | None:
        """Return the planned segment that starts at a position, None = there is none."""
        return next((each for each in self._segments if each.start == start), None)

    def segments_between(self, start: int, end: int) -> list[Segment] | None:
        """Return the planned segments of a range; None if a part of it is unknown."""
        found, at = [], start
        for segment in self._segments:
            if segment.start == at and segment.end <= end:
                found.append(segment)
                at = segment.end
        return found if at == end else None

    def plan_segment(self, start: int, messages_max: int) -> Segment | None:
        """Plan a segment of waiting messages, oldest first; None if none is waiting."""
        if start != self.end:
            raise OffsetError(f"Spark continues at {start}, but {self.end} messages are planned: the checkpoint was changed")
        if not self._waiting or messages_max < 1:
            return None
        chosen = dict(islice(self._waiting.items(), messages_max))
        if len(chosen) == len(self._waiting):
            self._waiting = {}
        for key in chosen if self._waiting else ():
            del self._waiting[key]
        segment = Segment(start, start + len(chosen), list(chosen), [item for item, _, _ in chosen.values()])
        self._segments.append(segment)
        self._planned.update(segment.keys)
        self.end = segment.end
        return segment

    def skip_to(self, start: int) -> None:
        """Continue at `start`; the broker redelivers the messages of unknown earlier batches."""
        self.end = max(self.end, start)

    def commit(self, until: int) -> CommitResult:
        """Commit the segments up to a position."""
        done = CommitResult()
        while self._segments and self._segments[0].end <= until:
            segment = self._segments.popleft()
            segment.items = None
            self._planned.difference_update(segment.keys)
            done.confirm += segment.keys
            done.committed.append(segment)
            done.expired += self.committed.add(segment)
        return done
