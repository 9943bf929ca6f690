"""What waits until the records before it are safe: effects, batches and at most one sync under way.

```
 add --> gated --turn--> waiting --begin_sync--> syncing --end_sync--> released
           '------- everything before is durable already -------------^
```

A sync covers what was written before it began; what is written meanwhile waits for the next one.
"""

from __future__ import annotations

from typing import Any


class Gate:
    """Effects come out in the order in which they went in."""

    __slots__ = ("add", "gated", "_covers", "_durable", "_due", "_running", "_syncing", "_token", "_waiting", "_writes")

    def __init__(self) -> None:
        self.gated: list[Any] = []  # of this turn
        self.add = self.gated.append  # hold an effect back until everything appended so far is safe
        self._waiting: list[Any] = []  # their records are written
        self._syncing: list[Any] = []  # their records are covered by the sync under way
        self._writes = self._durable = self._covers = 0  # batches written, durable, covered by the sync under way
        self._token = 0
        self._running = self._due = False

    @property
    def durable(self) -> bool:
        """Whether everything written is durable."""
        return self._durable == self._writes

    def wrote(self) -> None:
        """A batch was written."""
        self._writes += 1

    def all_durable(self) -> None:
        """Everything written was synced."""
        self._durable = self._covers = self._writes

    def want_sync(self) -> None:
        """Sync soon, even if no effect waits for it."""
        self._due = True

    def turn(self, wait: bool) -> list[Any]:
        """The turn is written: the effects to release now; with `wait` none while something is not durable."""
        gated = self.gated
        if wait and self._durable != self._writes:
            self._waiting += gated
            gated.clear()
            return []
        released = gated.copy()
        gated.clear()
        if self._syncing or self._waiting:
            released = self._syncing + self._waiting + released
            self._syncing, self._waiting = [], []
        return released

    def begin_sync(self) -> int | None:
        """The token of a sync to start, None if none is needed or one is under way."""
        if self._running or not self._waiting and not self._due:
            return None
        self._token += 1
        self._running, self._due = True, False
        self._covers = self._writes
        self._syncing, self._waiting = self._waiting, []
        return self._token

    def is_running(self, token: int) -> bool:
        """Is this the sync under way?"""
        return self._running and token == self._token

    def end_sync(self, token: int) -> list[Any]:
        """The sync is done: the effects it releases."""
        if not self.is_running(token):
            return []
        self._running = False
        self._durable = max(self._durable, self._covers)
        released, self._syncing = self._syncing, []
        return released

    def release_all(self) -> list[Any]:
        """Everything is durable: all effects."""
        self.all_durable()
        return self.turn(wait=False)
