"""The stop of this node as people ask for it: at once, or after a delay within which it can be aborted.

Once it has begun it cannot be aborted: clients have been taken from what they read, and other nodes have been told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bmqtwist.console.access import Refusal
from bmqtwist.console.documents import Document

DELAY_SECONDS_MAX = 3600
WAITS = "waits, and can be aborted"
BEGUN = ("The stop has begun: clients and other nodes have been told, so it cannot be aborted. Start the node again once it "
         "has stopped.")


@dataclass(frozen=True, slots=True)
class _Waiting:
    call: Any
    since: float
    until: float
    reason: str
    by: str


class DelayedStop:
    """`now`: seconds, monotonic; `begin` stops this node, with the reason and who wants it; `begun`: it stops already;
    `note` tells an event."""

    def __init__(self, reactor: Any, now: Callable[[], float], begin: Callable[[str, str], None],
                 begun: Callable[[], bool], note: Callable[[str], None]) -> None:
        self._reactor, self._now, self._begin, self._begun, self._note = reactor, now, begin, begun, note
        self._waiting: _Waiting | None = None

    def ask(self, reason: str, by: str, delay: int) -> None:
        """Stop in so many seconds. Refusal: it is to stop already; LocalError of `begin`."""
        if self._waiting is not None:
            raise Refusal(409, f"This node is to stop already, as {self._waiting.by} wants: {self._waiting.reason}")
        if delay <= 0 or self._begun():
            self._begin(reason, by)
            return
        now = self._now()
        self._waiting = _Waiting(self._reactor.callLater(delay, self._over), now, now + delay, reason, by)
        self._note(f"this node is to stop in {delay} s, by {by}: {reason}")

    def _over(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not self._begun():
            self._begin(waiting.reason, waiting.by)

    def abort(self, by: str) -> None:
        """It does not stop. Refusal: it is not to, or it is too late."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            raise Refusal(409, BEGUN if self._begun() else "This node is not to stop.")
        waiting.call.cancel()
        self._note(f"the stop of this node is aborted by {by}")

    def end(self) -> None:
        """The process ends."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.call.cancel()

    @property
    def state(self) -> Document | None:
        """As `view.stopping.progress` would have it; None = nothing waits."""
        waiting, now = self._waiting, self._now()
        if waiting is None:
            return None
        return {"stage": WAITS, "seconds": now - waiting.since, "clients": None, "reason": waiting.reason, "by": waiting.by,
                "partitions": [], "leads": False, "unconfirmed": None, "unanswered": None,
                "secondsLeft": max(0.0, waiting.until - now), "peers": [], "done": False, "report": None, "abortable": True}
