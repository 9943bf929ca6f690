"""Sync batching for durability `group` and write coalescing for durability `none`. Pure.

**Syncs**. A sync costs about the same for one message as for a hundred. If messages arrived during the last sync, the next
one is delayed by PAUSE_S. If no message arrives in the second halves of such delays, the producers block on their ACKs, and
the delay is suspended (`link/pace.py: Trial`). Records stored during a delay are written at its end, in one write.

**Writes**. Delayed ACKs of a producer (`link/pace.py`) leave SHARE_S or more after its PUT; its messages are written
shortly before, in one write for several turns. Consumers receive them earlier: a message that a crash loses was not
acknowledged, and its producer posts it again. If another client waits for an answer of the partition, all records are
written in the same turn.
"""

from __future__ import annotations

from typing import Any, Final

from bmqtwist.link.client import ClientSession
from bmqtwist.link.pace import HELD_ACKS_MAX, SHARE_S, Trial
from bmqtwist.queue.queue import Put

PAUSE_S: Final = 0.004  # delay of a sync


class SyncPace:
    """Delay of the syncs of one partition. `until`: end of the present delay, 0 = none. `calm`: the sync in progress is
    followed by another delay. `synced_to`: end of DATA, in bytes, when the last sync began."""

    __slots__ = ("until", "calm", "synced_to", "_newest", "_came_at", "_flows", "_trial")

    def __init__(self) -> None:
        self.until = 0.0
        self.calm = False
        self.synced_to = 0
        self._newest = 0
        self._came_at = float("-inf")
        self._flows = False  # messages have arrived during a sync
        self._trial = Trial()

    def pauses(self, now: float, newest: int, syncing: bool) -> bool:
        """Return whether the next sync is delayed. `newest`: position of the last unsynced message, 0 = none; `syncing`: a
        sync is in progress."""
        if newest > self._newest:
            self._newest, self._came_at = newest, now
            self._flows = self._flows or syncing
        if syncing or not newest:
            return False
        if not self.until:
            self.calm = self._flows and self._trial.allows(now)
            if self.calm:
                self.until = now + PAUSE_S
                return True
        elif now < self.until:
            return True
        else:
            self.calm = self._trial.ended(now, now - self._came_at > PAUSE_S / 2)
        self.until, self._flows = 0.0, False
        return False


class Gathering:
    """Write coalescing of one partition. `since`: arrival of the oldest unwritten message, 0.0 = none. `seen`: the number of
    waiting PUTs that were inspected."""

    __slots__ = ("since", "seen", "_clients")

    def __init__(self) -> None:
        self.since, self.seen = 0.0, 0
        self._clients: dict[ClientSession, None] = {}  # with delayed ACKs

    def goes_on(self, waiting: list[Any], now: float) -> bool:
        """Return whether the write of all waiting PUTs may be left to a later turn."""
        count = len(waiting)
        if count > HELD_ACKS_MAX or self.since and now - self.since >= SHARE_S:
            return False
        for index in range(self.seen, count):
            put: Put = waiting[index]
            client = None if put.handle is None or not put.wants_ack else put.handle.client
            if not isinstance(client, ClientSession) or not client.session.holds_acks:
                return False
            self._clients[client] = None
        self.seen = count
        if not self.since:
            self.since = now
        return True

    def end(self, now: float) -> None:
        """All records are written in this turn: send the delayed ACKs in it."""
        if self.since:
            waited = now - self.since >= SHARE_S
            for client in self._clients:
                client.acks_are_due(now, waited)
        self.since, self.seen = 0.0, 0
        self._clients.clear()
