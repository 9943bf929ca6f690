"""Statistics: what the counters say over a window of time.

The hot path only adds to counters (`queue/counters.py`), which are sampled here now and then. The window is the last
`print_interval` seconds, moved on in `SLOTS` steps, so that a delta covers between (SLOTS - 1) / SLOTS of the window and
all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping

from msgspec import Struct

from bmqtwist.errors import LocalError
from bmqtwist.queue.counters import Counters
from bmqtwist.steps import Steps, in_steps

SLOTS = 6  # steps in which the window moves
SHOWS_PER_INTERVAL_MAX = 4  # looks on demand within one snapshotInterval
INVALID_QUEUE = "bmq://invalid/queue"  # what clients post to queues that they have not opened


class TooOften(LocalError):
    """More looks at the statistics than one interval allows."""

    def __init__(self) -> None:
        super().__init__("Cannot save the recent snapshot, trying to make snapshots too often")


class Source(Struct, frozen=True):
    """Counters to look at: under which key, and how much is stored now (None = nothing is ever stored there)."""

    key: Hashable
    counters: Counters
    messages: int | None = None
    bytes: int | None = None


class Record:
    """One source: totals now, and for every slot of the window totals at its start and maxima in it."""

    __slots__ = ("peaks", "starts", "totals")

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self.starts: deque[dict[str, float]] = deque(({},), maxlen=SLOTS)
        self.peaks: deque[dict[str, float]] = deque(({},), maxlen=SLOTS)

    def look(self, source: Source) -> None:
        self.totals = source.counters.totals()
        self._raise_peaks(source.counters.take_maxima())
        if source.messages is not None and source.bytes is not None:
            self._raise_peaks({"content_msgs_max": source.messages, "content_bytes_max": source.bytes})

    def _raise_peaks(self, maxima: Mapping[str, float]) -> None:
        peaks = self.peaks[-1]
        for name, value in maxima.items():
            if value > peaks.get(name, 0):
                peaks[name] = value

    def step(self, source: Source) -> None:
        """Begin the next slot; what is stored at its start counts for its maxima."""
        self.starts.append(self.totals)
        self.peaks.append({})
        self.look(source)

    def total(self, name: str) -> float:
        """The increase of a counter since the beginning."""
        return self.totals.get(name, 0)

    def delta(self, name: str) -> float:
        """The increase of a counter in the window."""
        return self.totals.get(name, 0) - self.starts[0].get(name, 0)

    def peak(self, name: str) -> float:
        """The largest value in the window."""
        return max(peaks.get(name, 0) for peaks in self.peaks)


_NOTHING = Record()


class Statistics:
    """All records, the window, and the rule on how often one may look.

    `sampling` must be gone through at `due` (monotonic seconds) or later, and right before values are read. Sources that are
    not named any more are forgotten.
    """

    def __init__(self, now: float, snapshot_interval: float = 1.0, print_interval: float = 60.0) -> None:
        self.snapshot_interval = snapshot_interval
        self.step_seconds = max(print_interval, snapshot_interval, SLOTS * 1e-3) / SLOTS
        self.due = now + self.step_seconds
        self._records: dict[Hashable, Record] = {}
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
            record = self._records.setdefault(source.key, Record())
            record.look(source)
            for _ in range(steps):
                record.step(source)
            named.add(source.key)
        yield from in_steps(sources, look)
        for key in before - named:
            self._records.pop(key, None)

    def record(self, key: Hashable) -> Record:
        """The record of a source; an empty one for unknown keys."""
        return self._records.get(key, _NOTHING)
