"""Statistics: values of the counters over a sliding window of time.

The hot path only increments counters and raises their maxima (`queue/counters.py`); `Statistics` samples both. The window
covers the last `print_interval` seconds and advances in `SLOTS` steps, so a delta covers at least (SLOTS - 1) / SLOTS of
the window. `daemon/assemble.py` creates the Statistics; `metrics.py` renders the values. The interval is configured
(`config/broker.py: StatsPrinter`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping

from msgspec import Struct

from bmqtwist.errors import LocalError
from bmqtwist.queue.counters import Counters
from bmqtwist.steps import Steps, in_steps

SLOTS = 6  # steps in which the window moves
SHOWS_PER_INTERVAL_MAX = 4  # samples on demand within one snapshotInterval
INVALID_QUEUE = "bmq://invalid/queue"  # counts the PUTs of clients to queues that they have not opened


class TooManyStatisticsRequests(LocalError):
    """More statistics requests than SHOWS_PER_INTERVAL_MAX in one interval."""

    def __init__(self) -> None:
        super().__init__("Cannot save the recent snapshot, trying to make snapshots too often")


class Source(Struct, frozen=True):
    """Counters to sample, their key, and the messages and bytes stored now (None = the source stores nothing)."""

    key: Hashable
    counters: Counters
    messages: int | None = None
    bytes: int | None = None


class Record:
    """Samples of one source: its totals now, and for each slot of the window the totals at its start and its maxima."""

    __slots__ = ("peaks", "starts", "totals")

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self.starts: deque[dict[str, float]] = deque(({},), maxlen=SLOTS)
        self.peaks: deque[dict[str, float]] = deque(({},), maxlen=SLOTS)

    def sample(self, source: Source) -> None:
        self.totals = source.counters.totals()
        self._raise_peaks(source.counters.take_maxima())
        if source.messages is not None and source.bytes is not None:
            self._raise_peaks({"content_msgs_max": source.messages, "content_bytes_max": source.bytes})

    def _raise_peaks(self, maxima: Mapping[str, float]) -> None:
        peaks = self.peaks[-1]
        for name, value in maxima.items():
            if value > peaks.get(name, 0):
                peaks[name] = value

    def begin_slot(self, source: Source) -> None:
        """Begin the next slot; the messages and bytes stored at its start count for its maxima."""
        self.starts.append(self.totals)
        self.peaks.append({})
        self.sample(source)

    def total(self, name: str) -> float:
        """Return the value of a counter since the broker started."""
        return self.totals.get(name, 0)

    def delta(self, name: str) -> float:
        """Return the increase of a counter in the window."""
        return self.totals.get(name, 0) - self.starts[0].get(name, 0)

    def peak(self, name: str) -> float:
        """Return the largest value in the window."""
        return max(peaks.get(name, 0) for peaks in self.peaks)


_NOTHING = Record()


class Statistics:
    """Records of all sources, the window, and the rate limit of requests on demand.

    Run `sampling` at `due` (monotonic seconds) or later, and before values are read. It removes the records of sources that
    no longer exist.
    """

    def __init__(self, now: float, snapshot_interval: float = 1.0, print_interval: float = 60.0) -> None:
        self.snapshot_interval = snapshot_interval
        self.step_seconds = max(print_interval, snapshot_interval, SLOTS * 1e-3) / SLOTS
        self.due = now + self.step_seconds
        self._records: dict[Hashable, Record] = {}
        self._shows: deque[float] = deque(maxlen=SHOWS_PER_INTERVAL_MAX)

    @property
    def enabled(self) -> bool:
        """True unless snapshotInterval is 0."""
        return self.snapshot_interval > 0

    def admit(self, now: float) -> None:
        """Count one request on demand, or raise TooManyStatisticsRequests."""
        shows = self._shows
        if len(shows) == SHOWS_PER_INTERVAL_MAX and now - shows[0] < self.snapshot_interval:
            raise TooManyStatisticsRequests
        shows.append(now)

    def sampling(self, now: float, sources: Iterable[Source]) -> Steps[None]:
        """Sample every source, in steps; advance the window when it is due."""
        steps, before, named = 0, set(self._records), set[Hashable]()
        if now >= self.due:
            steps = min(SLOTS, 1 + int((now - self.due) / self.step_seconds))
            self.due += (1 + int((now - self.due) / self.step_seconds)) * self.step_seconds

        def sample(source: Source) -> None:
            record = self._records.setdefault(source.key, Record())
            record.sample(source)
            for _ in range(steps):
                record.begin_slot(source)
            named.add(source.key)
        yield from in_steps(sources, sample)
        for key in before - named:
            self._records.pop(key, None)

    def record(self, key: Hashable) -> Record:
        """Return the record of a source, an empty one for an unknown key."""
        return self._records.get(key, _NOTHING)
