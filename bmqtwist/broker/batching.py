"""Sync batching for durability `group` and write coalescing for durability `none`. Pure.

**Syncs**. A sync costs about the same for one message as for a hundred. If messages arrived during the last sync, the
next one is delayed by SYNC_DELAY_S. A delay was useless if no message arrived in its second half: the producers block
on their ACKs. After several useless delays the delay is suspended (`link/batching.py: DelaySuspension`). Records stored
during a delay are written at its end, in one write.

**Writes**. Delayed ACKs of a producer (`link/batching.py`) leave BATCH_MIN_S or more after its PUT; its messages are
written shortly before, in one write for several turns. Consumers may receive a message before it is written; if a crash
then loses it, it was not acknowledged, and its producer posts it again. If another client waits for an answer of the
partition, all records are written in the same turn.

`storage_turn.py` asks it for each partition.
"""

from __future__ import annotations

from typing import Any, Final

from bmqtwist.link.batching import BATCH_MIN_S, DELAYED_ACKS_MAX, DelaySuspension
from bmqtwist.link.client import ClientSession
from bmqtwist.queue.queue import Put

SYNC_DELAY_S: Final = 0.004  # delay of a sync


class SyncBatching:
    """Delay of the syncs of one partition. `until`: end of the present delay, 0 = none. `delays_next`: another delay follows
    the sync in progress. `synced_to`: end of DATA, in bytes, when the last sync began."""

    __slots__ = ("until", "delays_next", "synced_to", "_newest", "_newest_at", "_arrivals_during_sync", "_suspension")

    def __init__(self) -> None:
        self.until = 0.0
        self.delays_next = False
        self.synced_to = 0
        self._newest = 0
        self._newest_at = float("-inf")
        self._arrivals_during_sync = False
        self._suspension = DelaySuspension()

    def delays(self, now: float, newest: int, syncing: bool) -> bool:
        """Return whether the next sync is delayed. `newest`: position of the last unsynced message, 0 = none; `syncing`: a
        sync is in progress."""
        if newest > self._newest:
            self._newest, self._newest_at = newest, now
            self._arrivals_during_sync = self._arrivals_during_sync or syncing
        if syncing or not newest:
            return False
        if not self.until:
            self.delays_next = self._arrivals_during_sync and self._suspension.allows_delay(now)
            if self.delays_next:
                self.until = now + SYNC_DELAY_S
                return True
        elif now < self.until:
            return True
        else:
            self.delays_next = self._suspension.on_delay_end(now, now - self._newest_at > SYNC_DELAY_S / 2)
        self.until, self._arrivals_during_sync = 0.0, False
        return False


class WriteCoalescing:
    """Write coalescing of one partition. `since`: arrival of the oldest unwritten message, 0.0 = none. `inspected`: number
    of waiting PUTs that were inspected."""

    __slots__ = ("since", "inspected", "_clients")

    def __init__(self) -> None:
        self.since, self.inspected = 0.0, 0
        self._clients: dict[ClientSession, None] = {}  # with delayed ACKs

    def may_delay(self, waiting: list[Any], now: float) -> bool:
        """Return whether the write of all waiting PUTs may be left to a later turn."""
        count = len(waiting)
        if count > DELAYED_ACKS_MAX or self.since and now - self.since >= BATCH_MIN_S:
            return False
        for index in range(self.inspected, count):
            put: Put = waiting[index]
            client = None if put.handle is None or not put.wants_ack else put.handle.client
            if not isinstance(client, ClientSession) or not client.session.delays_acks:
                return False
            self._clients[client] = None
        self.inspected = count
        if not self.since:
            self.since = now
        return True

    def on_write(self, now: float) -> None:
        """Send the delayed ACKs in this turn, in which all records are written."""
        if self.since:
            waited = now - self.since >= BATCH_MIN_S
            for client in self._clients:
                client.flush_delayed_acks(now, waited)
        self.since, self.inspected = 0.0, 0
        self._clients.clear()
