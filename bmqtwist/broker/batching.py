"""When records are written and synced: at once, or together with the records of one of the next turns. Pure.

**Syncs** (durability `group`). A sync costs about the same for one message as for a hundred. Where messages came during the
last sync, more will come however long their ACKs take, as a rule: then the next sync waits for PAUSE_S. If none comes in
the second halves of such pauses, producers wait for their ACKs: there is no pause for a while. Nothing is acknowledged
before the pause is over, so that records stored meanwhile are written then, at once.

**Writes** (durability `none`). A producer whose ACKs may wait for each other (`link/pace.py`) gets none before SHARE_S is
over. Its messages may be written then, with all that came meanwhile. Consumers get them before: a message that is lost with
the process then was not acknowledged, and its producer sends it again. Where another client waits for something of the
partition, all records are written in that turn.
"""

from __future__ import annotations

from typing import Any, Final

from bmqtwist.link.client import ClientSession
from bmqtwist.link.pace import HELD_ACKS_MAX, SHARE_S, Trial
from bmqtwist.queue.queue import Put

PAUSE_S: Final = 0.004  # before a sync


class SyncPace:
    """Of one partition. `until`: the end of the pause, 0 = there is none. `calm`: another one follows the sync under way.
    `synced_to`: where DATA ended when the last one began."""

    __slots__ = ("until", "calm", "synced_to", "_newest", "_came_at", "_flows", "_trial")

    def __init__(self) -> None:
        self.until = 0.0
        self.calm = False
        self.synced_to = 0
        self._newest = 0
        self._came_at = float("-inf")
        self._flows = False  # something has come while a sync was under way
        self._trial = Trial()

    def pauses(self, now: float, newest: int, syncing: bool) -> bool:
        """Whether a sync has to wait. `newest`: position of the last message that waits for one, 0 = none does; `syncing`:
        one is under way."""
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
    """Of one partition. `since`: when the oldest message came that is not written, 0.0 = there is none. `seen`: how many of
    the PUTs that wait for it have been looked at."""

    __slots__ = ("since", "seen", "_clients")

    def __init__(self) -> None:
        self.since, self.seen = 0.0, 0
        self._clients: dict[ClientSession, None] = {}  # whose ACKs wait

    def goes_on(self, waiting: list[Any], now: float) -> bool:
        """Whether all the PUTs that wait may wait for another turn."""
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
        """All of it is written in this turn, which acknowledges what has waited, too."""
        if self.since:
            waited = now - self.since >= SHARE_S
            for client in self._clients:
                client.acks_are_due(now, waited)
        self.since, self.seen = 0.0, 0
        self._clients.clear()
