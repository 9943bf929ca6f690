"""What a session counts while it works: plain integers, counted mostly once per event and not per message.

Of posts only outcomes are counted: `posts` of a snapshot is their sum with what still waits for one.
"""

from __future__ import annotations

from bmqtwist.sdk.counters import Counters
from bmqtwist.sdk.results import EventKind, Result


class LiveCounters:
    """The counting half; see `Counters` for what the numbers mean."""

    __slots__ = ("acked", "attempts", "bytes_in", "bytes_out", "confirms", "dropped", "events", "failed", "failures",
                 "losses", "messages", "reconnects", "redelivered", "retransmitted", "unasked")

    acked: int
    unasked: int
    retransmitted: int
    messages: int
    redelivered: int
    confirms: int
    attempts: int
    losses: int
    reconnects: int
    bytes_in: int
    bytes_out: int
    dropped: int
    failures: int

    def __init__(self) -> None:
        self.acked = self.unasked = self.failures = self.retransmitted = 0
        self.messages = self.redelivered = self.confirms = self.dropped = 0
        self.attempts = self.losses = self.reconnects = 0
        self.bytes_in = self.bytes_out = 0
        self.failed: dict[Result, int] = {}
        self.events: dict[EventKind, int] = {}

    def fail(self, result: Result) -> None:
        """A post has failed."""
        self.failures += 1
        self.failed[result] = self.failed.get(result, 0) + 1

    def event(self, kind: EventKind) -> None:
        """The application is told something."""
        self.events[kind] = self.events.get(kind, 0) + 1

    def snapshot(self, state: str, unacked_now: int, unacked_bytes_now: int, inbox_now: int, queues_now: int) -> Counters:
        """The numbers, and how things stand."""
        return Counters(
            state=state, posts=self.acked + self.failures + self.unasked + unacked_now, acked=self.acked,
            nacked=self.failures, nacked_by_status=dict(self.failed), unasked=self.unasked, unacked_now=unacked_now,
            unacked_bytes_now=unacked_bytes_now, retransmitted=self.retransmitted, messages=self.messages,
            redelivered=self.redelivered, inbox_now=inbox_now, confirms=self.confirms, attempts=self.attempts,
            losses=self.losses, reconnects=self.reconnects, bytes_in=self.bytes_in, bytes_out=self.bytes_out,
            dropped=self.dropped, queues_now=queues_now, events=dict(self.events))
