"""Statistics: what the counters say over a window of time.

The hot path only adds to counters (`queue/counters.py`). Here the counters are looked at now and then: a metric `X` is
what was added in the window, `X_abs` what was added since the beginning. The window is the last `print_interval`
seconds, moved on in `SLOTS` steps, so that a delta covers between (SLOTS - 1) / SLOTS of the window and all of it.
Times are nanoseconds here, as in the original's metrics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from bmqtwist.errors import LocalError
from bmqtwist.queue.counters import Counters
from bmqtwist.steps import Steps, in_steps
from bmqtwist.view.snapshot import AppState, QueueState

SLOTS = 6  # steps in which the window moves
SHOWS_PER_INTERVAL_MAX = 4  # looks on demand within one snapshotInterval
INVALID_QUEUE = "bmq://invalid/queue"  # what clients post to queues that they have not opened

COUNTED = ("put_msgs", "put_bytes", "push_msgs", "push_bytes", "ack_msgs", "nack_msgs", "nack_noquorum_msgs",
           "confirm_msgs", "reject_msgs", "gc_msgs")
TIMED = {"ack_time": "ack_msgs", "confirm_time": "confirm_msgs", "queue_time": "push_msgs"}  # time -> its events
APP_TIMED = ("confirm_time", "queue_time")
STORED = ("queue_msgs_current", "queue_bytes_current", "queue_content_msgs", "queue_content_bytes")
GAUGES = ("queue_producers_count", "queue_consumers_count", "queue_cfg_msgs", "queue_cfg_bytes",
          "queue_msgs_utilization_max", "queue_bytes_utilization_max", "queue_role", "queue_history_abs")
QUEUE_METRICS: tuple[str, ...] = tuple(sorted(
    [f"queue_{name}" for name in COUNTED] + [f"queue_{name}_abs" for name in COUNTED]
    + [f"queue_{name}_{kind}" for name in TIMED for kind in ("avg", "max")] + list(STORED) + list(GAUGES)))


class TooOften(LocalError):
    """More looks at the statistics than one interval allows."""

    def __init__(self) -> None:
        super().__init__("Cannot save the recent snapshot, trying to make snapshots too often")


@dataclass(frozen=True, slots=True)
class Source:
    """Counters to look at: under which key, and how much is stored now (None = nothing is ever stored there)."""

    key: Hashable
    counters: Counters
    messages: int | None = None
    bytes: int | None = None


class _Record:
    """One source: totals now, and for every slot of the window totals at its start and maxima in it."""

    __slots__ = ("peaks", "starts", "totals")

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self.starts: deque[dict[str, float]] = deque(({},), maxlen=SLOTS)
        self.peaks: deque[dict[str, float]] = deque(({},), maxlen=SLOTS)

    def look(self, source: Source) -> None:
        """Take the totals and the maxima of now."""
        self.totals = source.counters.totals()
        self.raise_peaks(source.counters.take_maxima())
        if source.messages is not None and source.bytes is not None:
            self.raise_peaks({"content_msgs_max": source.messages, "content_bytes_max": source.bytes})

    def raise_peaks(self, maxima: Mapping[str, float]) -> None:
        peaks = self.peaks[-1]
        for name, value in maxima.items():
            if value > peaks.get(name, 0):
                peaks[name] = value

    def step(self, source: Source) -> None:
        """Begin the next slot; what is stored at its start counts for its maxima."""
        self.starts.append(self.totals)
        self.peaks.append({})
        self.look(source)

    def delta(self, name: str) -> float:
        return self.totals.get(name, 0) - self.starts[0].get(name, 0)

    def peak(self, name: str) -> float:
        return max(peaks.get(name, 0) for peaks in self.peaks)


_NOTHING = _Record()


class Statistics:
    """All records, the window, and the rule on how often one may look.

    `sampling` must be gone through at `due` (monotonic seconds) or later, and right before values are read. Sources that are
    not named any more are forgotten.
    """

    def __init__(self, now: float, snapshot_interval: float = 1.0, print_interval: float = 60.0) -> None:
        self.snapshot_interval = snapshot_interval
        self.step_seconds = max(print_interval, snapshot_interval, SLOTS * 1e-3) / SLOTS
        self.due = now + self.step_seconds
        self._records: dict[Hashable, _Record] = {}
        self._shows: deque[float] = deque(maxlen=SHOWS_PER_INTERVAL_MAX)

    @property
    def enabled(self) -> bool:
        """A snapshotInterval of 0 switches statistics off."""
        return self.snapshot_interval > 0

    def admit(self, now: float) -> None:
        """Account for one look on demand, or raise TooOften."""
        shows = self._shows
        if len(shows) == SHOWS_PER_INTERVAL_MAX and now - shows[0] < self.snapshot_interval:
            raise TooOften
        shows.append(now)

    def sampling(self, now: float, sources: Iterable[Source]) -> Steps[None]:
        """Look at every source, in steps; move the window on when it is due."""
        steps, before, named = 0, set(self._records), set[Hashable]()
        if now >= self.due:
            steps = min(SLOTS, 1 + int((now - self.due) / self.step_seconds))
            self.due += (1 + int((now - self.due) / self.step_seconds)) * self.step_seconds

        def look(source: Source) -> None:
            record = self._records.setdefault(source.key, _Record())
            record.look(source)
            for _ in range(steps):
                record.step(source)
            named.add(source.key)
        yield from in_steps(sources, look)
        for key in before - named:
            self._records.pop(key, None)

    def _record(self, key: Hashable) -> _Record:
        return self._records.get(key, _NOTHING)

    def delta(self, key: Hashable, name: str) -> int:
        """What a counter gained in the window; 0 for unknown keys."""
        return int(self._record(key).delta(name))

    def total(self, key: Hashable, name: str) -> int:
        """What a counter gained since the beginning; 0 for unknown keys."""
        return int(self._record(key).totals.get(name, 0))

    def peak(self, key: Hashable, name: str) -> int:
        """The largest value in the window; 0 for unknown keys."""
        return int(self._record(key).peak(name))

    def _times(self, key: Hashable, names: Iterable[str]) -> dict[str, int]:
        record, values = self._record(key), dict[str, int]()
        for name in names:
            events = record.delta(TIMED[name])
            values[f"queue_{name}_avg"] = round((record.delta(f"{name}_sum") / events if events else 0.0) * 1e9)
            values[f"queue_{name}_max"] = round(record.peak(f"{name}_max") * 1e9)
        return values

    def queue_values(self, queue: QueueState) -> dict[str, int]:
        """Every metric of a queue, by name."""
        key = queue.uri
        values = {f"queue_{name}": self.delta(key, name) for name in COUNTED}
        values |= {f"queue_{name}_abs": self.total(key, name) for name in COUNTED}
        values |= self._times(key, TIMED)
        messages = max(self.peak(key, "content_msgs_max"), queue.messages)
        size = max(self.peak(key, "content_bytes_max"), queue.bytes)
        values |= {
            "queue_producers_count": queue.writers, "queue_consumers_count": queue.readers,
            "queue_msgs_current": queue.messages, "queue_bytes_current": queue.bytes,
            "queue_content_msgs": messages, "queue_content_bytes": size,
            "queue_cfg_msgs": queue.message_limit, "queue_cfg_bytes": queue.byte_limit,
            "queue_msgs_utilization_max": _percent(messages, queue.message_limit),
            "queue_bytes_utilization_max": _percent(size, queue.byte_limit),
            "queue_role": int(queue.role), "queue_history_abs": queue.history}
        return {name: values[name] for name in QUEUE_METRICS}

    def app_values(self, queue: QueueState, app: AppState) -> dict[str, int]:
        """Every metric of one app of a queue; those that are not tracked per app are 0."""
        key = (queue.uri, app.app_id)
        values = dict.fromkeys(QUEUE_METRICS, 0)
        values |= self._times(key, APP_TIMED)
        values |= {"queue_msgs_current": app.messages, "queue_bytes_current": app.bytes,
                   "queue_content_msgs": max(self.peak(key, "content_msgs_max"), app.messages),
                   "queue_content_bytes": max(self.peak(key, "content_bytes_max"), app.bytes)}
        return values


def _percent(value: int, limit: int) -> int:
    return value * 100 // limit if limit else 0
