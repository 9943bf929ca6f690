"""Counters of a session: posts, messages, bytes, errors and events.

The parts of `_core/` increment `LiveCounters`; `Session.counters` returns a copy, which `prometheus.py` exports with a
text for each field. A new counter is a field of both classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from bmqtwist.sdk.results import EventKind, Result


@dataclass(frozen=True, slots=True)
class Counters:
    """Snapshot of one session. Names ending in `_now` are gauges; `bytes_in`, `bytes_out`: bytes of the channel.

    Invariant: posts = acked + nacked + sent_without_ack + unacked_now.
    """

    state: str  # idle, waiting, connecting, authenticating, negotiating, restoring, ready, draining, disconnecting, stopped
    posts: int  # accepted by the session
    acked: int  # posts acknowledged with SUCCESS
    nacked: int  # failed posts: refused by the broker, older than the deduplication time, or their queue was closed
    nacked_by_status: Mapping[Result, int]
    sent_without_ack: int  # posts that requested no acknowledgement, and were sent
    unacked_now: int  # posts without an outcome
    unacked_bytes_now: int
    retransmitted: int  # posts sent again after a reconnect
    messages: int  # messages delivered
    redelivered: int  # messages marked as delivered before
    inbox_now: int  # messages that the application has not taken
    confirms: int  # confirmations sent
    attempts: int  # attempts to connect
    losses: int  # connections lost
    reconnects: int
    bytes_in: int
    bytes_out: int
    dropped: int  # invalid events, and messages without an open queue
    queues_now: int  # open queues, with or without a connection
    events: Mapping[EventKind, int]  # session events by kind


@dataclass(slots=True)
class LiveCounters:
    """Counters of a running session; `Counters` documents the fields. `posts` is computed for each snapshot."""

    acked: int = 0
    nacked: int = 0
    nacked_by_status: dict[Result, int] = field(default_factory=dict)
    sent_without_ack: int = 0
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
        posts = unacked_now + self.acked + self.nacked + self.sent_without_ack
        return Counters(state=state, posts=posts, unacked_now=unacked_now, unacked_bytes_now=unacked_bytes_now,
                        inbox_now=inbox_now, queues_now=queues_now, **asdict(self))
