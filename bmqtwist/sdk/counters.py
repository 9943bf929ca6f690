"""What a session has done, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from bmqtwist.sdk.results import EventKind, Result


@dataclass(frozen=True, slots=True)
class Counters:
    """A snapshot of one session. Names that end in `_now` can fall, all others only grow; bytes are those of the channel.

    It is always so that posts = acked + nacked + unasked + unacked_now.
    """

    state: str  # idle, waiting, connecting, authenticating, negotiating, restoring, ready, draining, leaving, stopped
    posts: int  # accepted by the session
    acked: int  # of these, acknowledged with SUCCESS
    nacked: int  # of these, failed: refused by the broker, too old to be sent again, or their queue was closed
    nacked_by_status: Mapping[Result, int]
    unasked: int  # of these, sent and not to be acknowledged
    unacked_now: int  # of these, still without an outcome
    unacked_bytes_now: int
    retransmitted: int  # posts sent again after a reconnect
    messages: int  # deliveries
    redelivered: int  # of these, marked as delivered before
    inbox_now: int  # of these, not taken by the application yet
    confirms: int  # sent
    attempts: int  # to connect
    losses: int  # of the connection
    reconnects: int
    bytes_in: int
    bytes_out: int
    dropped: int  # events and messages from the broker that made no sense, or were for nobody
    queues_now: int  # open, connected or not
    events: Mapping[EventKind, int]  # session events by kind


@dataclass(slots=True)
class LiveCounters:
    """The counting half, mostly once per event and not per message; see `Counters` for what the numbers mean.

    Of posts only outcomes are counted: `posts` of a snapshot is their sum with what still waits for one.
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
        """A post has failed."""
        self.nacked += 1
        self.nacked_by_status[result] = self.nacked_by_status.get(result, 0) + 1

    def event(self, kind: EventKind) -> None:
        """The application is told something."""
        self.events[kind] = self.events.get(kind, 0) + 1

    def snapshot(self, state: str, unacked_now: int, unacked_bytes_now: int, inbox_now: int, queues_now: int) -> Counters:
        """The numbers, and how things stand."""
        return Counters(state=state, posts=self.acked + self.nacked + self.unasked + unacked_now, unacked_now=unacked_now,
                        unacked_bytes_now=unacked_bytes_now, inbox_now=inbox_now, queues_now=queues_now, **asdict(self))
