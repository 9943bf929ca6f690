"""GUID history of a queue: detects repeated PUTs (deduplication).

Every GUID is held for `window` seconds from its arrival, and dropped at most an eighth of the window later, but not before
1/8 s later. GUIDs of producers whose timer increases are in buckets, in the order of arrival:

    newest                                                                                        oldest
    open: GUIDs in a dict  ->  closed bucket  ->  closed bucket  ->  ...  ->  closed bucket  ->  dropped
    up to 16384 GUIDs       16 bytes for each GUID, sorted, with the arrival of its newest;
    or window / 8 seconds   every 128th GUID is a mark for the search

    GUID      0      3                    10                 16
              +------+--------------------+-------------------+
              | v, # | timer tick         | client id         |      v: version, #: counter
              +------+--------------------+-------------------+

Most GUIDs need no lookup: the history stores the highest tick of each client id, and a GUID with a higher tick is new. Other
GUIDs (retransmissions, same tick, other threads, digests) are searched in a table (`guid_table.py`), to which new ones are
added, and in every bucket whose range includes them.

Client ids are dropped when they have sent nothing for longer than their GUIDs are held, except for CLIENTS_KEPT. They are in
two dicts: `ticks` since the last turn, `earlier` before. At a turn `earlier` is dropped, and `ticks` becomes `earlier`.

The number of client ids is limited. When it is exceeded, all are dropped and their highest tick becomes a `floor`: while
earlier GUIDs are held, a client id seen again starts at least there, so that a higher tick still proves a new GUID.

A tick above all earlier ticks of a client also proves that the GUID was never added, at any time: a queue with a million
messages needs no lookup of the GUID among them.

`state.py` has one for each stored queue; `queue/root.py` asks it for each PUT. `config/domain.py` declares the window
(`deduplicationTimeMs`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Final

from bmqtwist.storage.guid_table import GuidTable

BUCKET_GUIDS_MAX: Final = 16384  # an open bucket needs about six times the memory of a closed one
CLIENTS_MAX: Final = 4096  # client ids with a stored tick
CLIENTS_KEPT: Final = 16  # client ids that are not dropped because of their age
_SPANS: Final = 8  # a bucket covers at most window / _SPANS
SPAN_SECONDS_MAX: Final = 30.0  # and at most this, so that a shorter window takes effect
_MARGIN_S: Final = 2.0  # replicas round arrivals up to whole seconds
_GUID_BYTES: Final = 16
_MARK_GUIDS: Final = 128  # between two marks of a closed bucket
_MARK_BYTES: Final = _MARK_GUIDS * _GUID_BYTES
_ABOVE_ALL: Final = b"\xff" * 8  # compares above every tick


class _Bucket:
    """Closed bucket: sorted keys in one bytes object. A lookup bisects the marks, then uses `bytes.find` between two."""

    __slots__ = ("keys", "first", "last", "newest", "_marks")

    def __init__(self, guids: dict[bytes, None], newest: float) -> None:
        keys = sorted(guids)  # nearly linear: GUIDs of one producer arrive almost in order
        self.keys, self.first, self.last, self.newest = b"".join(keys), keys[0], keys[-1], newest
        self._marks = keys[::_MARK_GUIDS]

    def __iter__(self) -> Iterator[bytes]:
        return (self.keys[at:at + _GUID_BYTES] for at in range(0, len(self.keys), _GUID_BYTES))

    def __contains__(self, guid: bytes) -> bool:
        if guid < self.first or guid > self.last:
            return False
        at = (bisect_right(self._marks, guid) - 1) * _MARK_BYTES
        end = at + _MARK_BYTES
        at = self.keys.find(guid, at, end)
        while at > 0 and at % _GUID_BYTES:  # a match across the boundary of two GUIDs
            at = self.keys.find(guid, at + 1, end)
        return at >= 0


class GuidHistory:
    """GUIDs of one queue. `now` and `arrived` are seconds of one monotonic clock; a window of 0 disables the history.

    never_added: result of `was_never_added` for the last GUID that `seen_or_add` added, before it was added.
    """

    __slots__ = ("window", "never_added", "_open", "_newest", "_due", "_buckets", "_closed", "_table", "_sweeping", "_ticks",
                 "_earlier", "_turn_due", "_dropped", "_floor", "_floor_until")

    def __init__(self, window: float) -> None:
        self.window = window
        self._open: dict[bytes, None] = {}
        self._newest = float("-inf")  # latest arrival
        self._due = float("-inf")  # when the open bucket closes
        self._buckets: deque[_Bucket] = deque()
        self._closed = 0  # GUIDs in closed buckets
        self._table = GuidTable(window)  # of the GUIDs that were not above all earlier ticks of their client
        self._sweeping = False  # `expire` drops expired GUIDs of the table
        self._ticks: dict[bytes, bytes] = {}  # client id -> highest tick seen
        self._earlier: dict[bytes, bytes] = {}  # the same of other client ids, seen before the last turn
        self._turn_due = float("-inf")  # no GUID of an id in `_earlier` is held from then on
        self._dropped = b""  # highest tick of the dropped client ids
        self.never_added = False
        self._floor = b""
        self._floor_until = 0.0

    def __len__(self) -> int:
        return len(self._open) + self._closed + len(self._table)

    def __iter__(self) -> Iterator[bytes]:
        return chain(*self._buckets, self._open, self._table)

    @property
    def client_count(self) -> int:
        """Number of stored client ids."""
        return len(self._ticks) + len(self._earlier)

    def seen_or_add(self, guid: bytes, now: float) -> bool:
        """Return whether the GUID was added within the window; add it otherwise."""
        window = self.window
        if window <= 0:
            self._dropped, self.never_added = _ABOVE_ALL, False
            return False
        opened = self._open
        if now >= self._due or len(opened) >= BUCKET_GUIDS_MAX:
            self._rotate(now)
            opened = self._open
        client, tick = guid[10:], guid[3:10]
        last = self._ticks.get(client)
        if last is None and client in self._earlier:
            last = self._ticks[client] = self._earlier.pop(client)
        if last is not None and tick > last:
            self._ticks[client] = tick
            self.never_added = tick > self._dropped
            opened[guid] = None
            self._newest = now
            return False
        if guid in opened or self._table.holds(guid, now) or self._in_buckets(guid, now):
            return True
        self.never_added = last is None and tick > self._dropped
        if last is None:
            self._add_client(client, tick, now)
        self._table.add(guid, now)
        self._newest = now
        return False

    def was_never_added(self, guid: bytes) -> bool:
        """Return whether the tick proves, without a lookup, that the GUID was never added at any time."""
        client, tick = guid[10:], guid[3:10]
        last = self._ticks.get(client) or self._earlier.get(client, b"")
        return tick > last and tick > self._dropped

    def add(self, guid: bytes, arrived: float) -> None:
        """Add a GUID found in storage, oldest first; arrival times that decrease are raised to the last one."""
        self.seen_or_add(guid, max(arrived, self._newest))

    def discard(self, guid: bytes) -> None:
        """Remove a GUID that is in no closed bucket: one that was just added, whose message was refused after all."""
        self._open.pop(guid, None)
        self._table.discard(guid)

    def shift_times(self, seconds: float) -> None:
        """Add `seconds` to all arrival times, because the GUIDs so far were added with another clock."""
        self._newest, self._due, self._floor_until = self._newest + seconds, self._due + seconds, self._floor_until + seconds
        self._turn_due += seconds
        self._table.shift_times(seconds)
        for bucket in self._buckets:
            bucket.newest += seconds

    def set_window(self, window: float, now: float) -> None:
        """Change the window, also for the GUIDs added before."""
        self.window = self._table.window = window
        self._rotate(now)
        self._turn_due = now + self._held_s

    def remove(self, guids: set[bytes]) -> None:
        """Remove GUIDs of any age; slow, for rare repairs."""
        for guid in guids:
            self.discard(guid)
        buckets, self._buckets, self._closed = self._buckets, deque(), 0
        for bucket in buckets:
            kept = {key: None for key in bucket if key not in guids}
            if kept:
                self._buckets.append(_Bucket(kept, bucket.newest))
                self._closed += len(kept)

    def expire(self, now: float, window: float | None = None) -> bool:
        """Drop old GUIDs of an idle queue, those of a large table in steps; return True if another call is due. Adding GUIDs
        drops old ones, too. `window`: the new window, None = unchanged."""
        if window is not None and window != self.window:
            self.set_window(window, now)
        elif now >= self._due:
            self._rotate(now)
        if self._sweeping:
            self._sweeping = not self._table.expire(now)
        return self._sweeping

    @property
    def _span(self) -> float:
        """Time that a bucket covers at most, in seconds."""
        return min(self.window / _SPANS, SPAN_SECONDS_MAX)

    @property
    def _held_s(self) -> float:
        """Time after which a GUID is no longer held, in seconds."""
        return self.window + self._span + _MARGIN_S

    def _rotate(self, now: float) -> None:
        """Close the open bucket, drop old buckets and client ids."""
        self._sweeping = True
        if self._open:
            self._buckets.append(_Bucket(self._open, self._newest))
            self._closed += len(self._open)
            self._open = {}
        while self._buckets and self._buckets[0].newest + self.window < now:
            self._closed -= len(self._buckets.popleft().keys) // _GUID_BYTES
        self._due = now + self._span
        if now >= self._turn_due and self.client_count > CLIENTS_KEPT:
            self._dropped = max(self._dropped, max(self._earlier.values(), default=b""))
            self._earlier, self._ticks = self._ticks, {}
            self._turn_due = now + self._held_s

    def _in_buckets(self, guid: bytes, now: float) -> bool:
        return any(guid in bucket for bucket in reversed(self._buckets) if bucket.newest + self.window >= now)

    def _add_client(self, client: bytes, tick: bytes, now: float) -> None:
        """Store the tick of a new client id; drop all others first if they are too many."""
        if self.client_count >= CLIENTS_MAX:
            highest = max(chain(self._ticks.values(), self._earlier.values()))
            self._floor = max(self._floor, highest) if now <= self._floor_until else highest
            self._floor_until = now + self.window * (_SPANS + 1) / _SPANS
            self._dropped = max(self._dropped, highest)
            self._ticks.clear()
            self._earlier.clear()
        self._ticks[client] = tick if now > self._floor_until else max(tick, self._floor)
