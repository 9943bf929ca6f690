"""What a session has done, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
