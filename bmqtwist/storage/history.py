"""Which GUIDs were stored lately: what makes a repeated PUT harmless.

Every GUID is remembered for `window` seconds from its arrival, and forgotten at most an eighth of the window later:

    newest                                                                                        oldest
    open: GUIDs in a dict  ->  closed bucket  ->  closed bucket  ->  ...  ->  closed bucket  ->  dropped
    up to 16384 GUIDs       16 bytes for each GUID, sorted, with the arrival of its newest;
    or window / 8 seconds   every 128th GUID as a mark to find the place of another by

    GUID      0      3                    10                 16
              +------+--------------------+-------------------+
              | v, # | timer tick         | client id         |      v: version, #: counter
              +------+--------------------+-------------------+

Producers make their GUIDs with a rising timer, so most need no look-up at all: for each client id the highest tick
seen is kept, and a GUID with a higher one is new. Others (retransmissions, GUIDs of the same tick or made by other
threads) are looked up in every bucket whose range they fall into.

The client ids kept are bounded. When there are too many, all are let go and their highest tick becomes a `floor`:
for as long as GUIDs seen before can be remembered, a client met again starts at least there, so that "higher" still
means "never seen".

A tick above all that were ever met of a client also tells that the GUID was never added, however long ago: a queue that
holds a million messages need not look whether it is one of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Final

BUCKET_GUIDS_MAX: Final = 16384  # the open bucket costs about six times as much for a GUID as a closed one
CLIENTS_MAX: Final = 4096  # client ids with a remembered tick
_SPANS: Final = 8  # a bucket covers at most this fraction of the window
SPAN_SECONDS_MAX: Final = 30.0  # ... and at most this, so that a window can be made shorter
_GUID_BYTES: Final = 16
_MARK_GUIDS: Final = 128  # between two marks of a closed bucket
_MARK_BYTES: Final = _MARK_GUIDS * _GUID_BYTES
_ABOVE_ALL: Final = b"\xff" * 8  # compares above every tick


class _Bucket:
    """Closed: keys sorted in one blob. A look-up finds the stretch between two marks, then lets `bytes.find` compare."""

    __slots__ = ("keys", "first", "last", "newest", "_marks")

    def __init__(self, guids: dict[bytes, None], newest: float) -> None:
        keys = sorted(guids)  # GUIDs of one producer come almost in order: this is nearly linear
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
        while at > 0 and at % _GUID_BYTES:  # the end of one GUID and the beginning of the next look like it
            at = self.keys.find(guid, at + 1, end)
        return at >= 0


class GuidHistory:
    """The GUIDs of one queue. `now` and `arrived` are seconds of one monotonic clock; a window of 0 keeps nothing.

    never_added: of the GUID that `seen_or_add` has just added, as of `was_never_added` before that.
    """

    __slots__ = ("window", "never_added", "_open", "_newest", "_due", "_buckets", "_closed", "_ticks", "_let_go", "_floor",
                 "_floor_until")

    def __init__(self, window: float) -> None:
        self.window = window
        self._open: dict[bytes, None] = {}
        self._newest = float("-inf")  # latest arrival
        self._due = float("-inf")  # when the open bucket closes
        self._buckets: deque[_Bucket] = deque()
        self._closed = 0  # GUIDs in closed buckets
        self._ticks: dict[bytes, bytes] = {}  # client id -> highest tick seen
        self._let_go = b""  # the highest tick of those whose client id is not kept any more
        self.never_added = False
        self._floor = b""
        self._floor_until = 0.0

    def __len__(self) -> int:
        return len(self._open) + self._closed

    def __iter__(self) -> Iterator[bytes]:
        return chain(*self._buckets, self._open)

    def seen_or_add(self, guid: bytes, now: float) -> bool:
        """Whether this GUID was added within the window; if not, it is now."""
        window = self.window
        if window <= 0:
            self._let_go, self.never_added = _ABOVE_ALL, False
            return False
        opened = self._open
        if now >= self._due or len(opened) >= BUCKET_GUIDS_MAX:
            self._turn(now)
            opened = self._open
        client, tick = guid[10:], guid[3:10]
        last = self._ticks.get(client)
        if last is not None and tick > last:
            self._ticks[client] = tick
            self.never_added = tick > self._let_go
        elif guid in opened or self._in_buckets(guid, now):
            return True
        elif last is None:
            self.never_added = tick > self._let_go
            self._meet(client, tick, now)
        else:
            self.never_added = False
        opened[guid] = None
        self._newest = now
        return False

    def was_never_added(self, guid: bytes) -> bool:
        """Whether it is certain, without a look-up, that this GUID was never added, however long ago."""
        tick = guid[3:10]
        return tick > self._ticks.get(guid[10:], b"") and tick > self._let_go

    def add(self, guid: bytes, arrived: float) -> None:
        """Remember a GUID found in storage; oldest first: one out of order counts as arrived with its predecessor."""
        self.seen_or_add(guid, max(arrived, self._newest))

    def discard(self, guid: bytes) -> None:
        """Forget a GUID that was added just now and not stored after all. An older one stays."""
        self._open.pop(guid, None)

    def shift(self, seconds: float) -> None:
        """Everything arrived so much later: what was added before was told by another clock."""
        self._newest, self._due, self._floor_until = self._newest + seconds, self._due + seconds, self._floor_until + seconds
        for bucket in self._buckets:
            bucket.newest += seconds

    def set_window(self, window: float, now: float) -> None:
        """Remember for `window` seconds from now on, also what was added before."""
        self.window = window
        self._turn(now)

    def forget(self, guids: set[bytes]) -> None:
        """Forget GUIDs of any age; slow, for what should never happen."""
        for guid in guids & self._open.keys():
            del self._open[guid]
        buckets, self._buckets, self._closed = self._buckets, deque(), 0
        for bucket in buckets:
            kept = {key: None for key in bucket if key not in guids}
            if kept:
                self._buckets.append(_Bucket(kept, bucket.newest))
                self._closed += len(kept)

    def expire(self, now: float) -> None:
        """Forget what is too old; for idle queues, since adding does it too."""
        if now >= self._due:
            self._turn(now)

    def _turn(self, now: float) -> None:
        """Close the open bucket, drop old buckets."""
        if self._open:
            self._buckets.append(_Bucket(self._open, self._newest))
            self._closed += len(self._open)
            self._open = {}
        while self._buckets and self._buckets[0].newest + self.window < now:
            self._closed -= len(self._buckets.popleft().keys) // _GUID_BYTES
        self._due = now + min(self.window / _SPANS, SPAN_SECONDS_MAX)

    def _in_buckets(self, guid: bytes, now: float) -> bool:
        return any(guid in bucket for bucket in reversed(self._buckets) if bucket.newest + self.window >= now)

    def _meet(self, client: bytes, tick: bytes, now: float) -> None:
        """A client id without a remembered tick."""
        if len(self._ticks) >= CLIENTS_MAX:
            highest = max(self._ticks.values())
            self._floor = max(self._floor, highest) if now <= self._floor_until else highest
            self._floor_until = now + self.window * (_SPANS + 1) / _SPANS
            self._let_go = max(self._let_go, highest)
            self._ticks.clear()
        self._ticks[client] = tick if now > self._floor_until else max(tick, self._floor)
