"""When the next sync of a partition begins (durability `group`): at once, or after a pause in which more messages join it.

A sync costs about the same for one message as for a hundred. Where messages came while the last one was under way, others
will come however long their ACKs take, as a rule: then the next one waits for PAUSE_S. If nothing more comes in the second
halves of such pauses, producers wait for their ACKs: there is no pause for a while. Pure.

Nobody is answered before the pause is over, so that what is stored meanwhile is written then, at once.
"""

from __future__ import annotations

from typing import Final

PAUSE_S: Final = 0.004  # before a sync
QUIET_PAUSES: Final = 3  # one after the other, each with nothing new in its second half: producers wait
TRY_AGAIN_S: Final = 0.25  # where producers wait there is none for so long, then for twice as long each time,
TRY_AGAIN_MAX_S: Final = 16.0  # up to this


class SyncPace:
    """Of one partition. `until`: the end of the pause, 0 = there is none. `calm`: another one follows the sync under way."""

    __slots__ = ("until", "calm", "_newest", "_came_at", "_flows", "_quiet", "_not_before", "_rest")

    def __init__(self) -> None:
        self.until = 0.0
        self.calm = False
        self._newest = 0
        self._came_at = float("-inf")
        self._flows = False  # something has come while a sync was under way
        self._quiet = 0  # pauses in which little has come
        self._not_before, self._rest = float("-inf"), TRY_AGAIN_S

    def pauses(self, now: float, newest: int, syncing: bool) -> bool:
        """Whether a sync has to wait. `newest`: position of the last message that waits for one, 0 = none does; `syncing`:
        one is under way."""
        if newest > self._newest:
            self._newest, self._came_at = newest, now
            self._flows = self._flows or syncing
        if syncing or not newest:
            return False
        if not self.until:
            self.calm = self._flows and now >= self._not_before
            if self.calm:
                self.until = now + PAUSE_S
                return True
        elif now < self.until:
            return True
        elif now - self._came_at <= PAUSE_S / 2:
            self._quiet, self._rest = 0, TRY_AGAIN_S
        else:
            self._quiet += 1
            if self._quiet >= QUIET_PAUSES:
                self._quiet, self.calm = 0, False
                self._not_before, self._rest = now + self._rest, min(2 * self._rest, TRY_AGAIN_MAX_S)
        self.until, self._flows = 0.0, False
        return False
