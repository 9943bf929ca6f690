"""Counters of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from bmqtwist.sdk.results import EventKind, Result


@dataclass(frozen=True, slots=True)
class Counters:
    """Snapshot of one session. Names ending in `_now` are gauges, all others counters; bytes are bytes of the channel.

    Invariant: posts = acked + nacked + unasked + unacked_now.
    """

    state: str  # idle, waiting, connecting, authenticating, negotiating, restoring, ready, draining, leaving, stopped
    posts: int  # accepted by the session
    acked: int  # of these, acknowledged with SUCCESS
    nacked: int  # of these, failed: refused by the broker, older than the deduplication time, or their queue was closed
    nacked_by_status: Mapping[Result, int]
    unasked: int  # of these, sent without acknowledgement
    unacked_now: int  # of these, without an outcome
    unacked_bytes_now: int
    retransmitted: int  # posts sent again after a reconnect
    messages: int  # deliveries
    redelivered: int  # of these, marked as delivered before
    inbox_now: int  # of these, not taken by the application
    confirms: int  # sent
    attempts: int  # to connect
    losses: int  # of the connection
    reconnects: int
    bytes_in: int
    bytes_out: int
    dropped: int  # invalid events, and messages without a queue
    queues_now: int  # open, connected or not
    events: Mapping[EventKind, int]  # session events by kind


@dataclass(slots=True)
class LiveCounters:
    """Counters of a running session, mostly updated once per event; `Counters` documents the fields.

    Outcomes of posts are counted: `posts` of a snapshot is their sum plus the posts without an outcome.
    """

    acked: int = 0
    nacked: int = 0
    nacked_by_status: dict[Result, int] = field(default_factory=dict)
    unasked: int = 0
    retransmitted: int = 0
    messages: int = 0
    redelivered: int = 0
    confirms: int = 0
    attempts: int = 0
    losses: int = 0
    reconnects: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    dropped: int = 0
    events: dict[EventKind, int] = field(default_factory=dict)

    def fail(self, result: Result) -> None:
        """Count a failed post."""
        self.nacked += 1
        self.nacked_by_status[result] = self.nacked_by_status.get(result, 0) + 1

    def event(self, kind: EventKind) -> None:
        """Count a session event."""
        self.events[kind] = self.events.get(kind, 0) + 1

    def snapshot(self, state: str, unacked_now: int, unacked_bytes_now: int, inbox_now: int, queues_now: int) -> Counters:
        """Return the counters with the current gauges."""
        return Counters(state=state, posts=self.acked + self.nacked + self.unasked + unacked_now, unacked_now=unacked_now,
                        unacked_bytes_now=unacked_bytes_now, inbox_now=inbox_now, queues_now=queues_now, **asdict(self))
