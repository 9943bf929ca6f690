"""When the next sync of a partition begins (durability `group`): at once, or after a pause in which more messages join it.

A sync costs about the same for one message as for a hundred. Where messages came while the last one was under way, others
will come however long their ACKs take, as a rule: then the next one waits for PAUSE_S. If nothing more comes in the second
halves of such pauses, producers wait for their ACKs: there is no pause for a while. Pure.

Nobody is answered before the pause is over, so that what is stored meanwhile is written then, at once.
"""

from __future__ import annotations

from typing import Final

from bmqtwist.link.pace import Trial

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
