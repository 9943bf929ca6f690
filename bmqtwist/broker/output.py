"""Output of a turn: one write for each session that has output, for at most TURN_WRITE_S.

The connections of ended sessions are closed. If a client does not read its output, the broker stops reading from it. It
disconnects a client whose unsent output exceeds its limit, or exceeds the lagging limit (`queue/window.py`) while the
client reads nothing for UNREAD_SECONDS_MAX. The limit of a client is configured, that of another broker is in
`link/peer.py`; TURN_WRITE_S and UNREAD_SECONDS_MAX are in `bmqtwist/limits.py`.

Called by `broker.py` at the end of a turn, by `periodic_jobs.py` (`check_unread`), and by `link/session.py` and
`link/client.py` (`flush_*`). The bytes of a session come from `link/outbox.py`; `queue/window.py` limits the output of
one turn.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial

from bmqtwist.limits import PUT_MESSAGE_BYTES_MAX, UNREAD_SECONDS_MAX
from bmqtwist.link.batching import BATCH_MAX_S, BATCH_MIN_S
from bmqtwist.link.data_lane import DataLane
from bmqtwist.link.session import Session
from bmqtwist.loop.loop import Loop
from bmqtwist.queue.window import lagging_bytes

FLUSH_DELAY_S = 0.005  # delay of output that no client waits for, so that it shares a write with later output


class Output:
    """`link.session.OutputContext` of one broker. `storage_first`: write all records in this turn, without coalescing."""

    def __init__(self, loop: Loop, outbox_bytes_max: int) -> None:
        self._loop, self._outbox_max = loop, outbox_bytes_max
        self.storage_first = False
        self._writers: list[Session] = []
        self._delayed: deque[tuple[float, Session]] = deque()  # (since, session) with delayed output

    # -- link.session.OutputContext ---------------------------------------------------------------------------------

    def flush_at_turn_end(self, session: Session) -> None:
        session.flush_due = True
        self._writers.append(session)

    def write_records_first(self) -> None:
        self.storage_first = True

    def flush_soon(self, session: Session) -> None:
        self._loop.call_later(FLUSH_DELAY_S, session.on_flush_due)

    def flush_with_turn(self, session: Session) -> None:
        self._delayed.append((self._loop.now, session))

    # -- the turn ---------------------------------------------------------------------------------------------------

    @property
    def delayed_until(self) -> float:
        """The moment at which a turn must write delayed output; infinite = there is none."""
        return self._delayed[0][0] + BATCH_MAX_S if self._delayed else math.inf

    def flush_delayed(self, now: float) -> None:
        """Include output that is delayed for at least BATCH_MIN_S in this turn."""
        while self._delayed and now - self._delayed[0][0] >= BATCH_MIN_S:
            self._delayed.popleft()[1].on_flush_due(now)

    def write(self, until: float = math.inf) -> None:
        """Write once for each session that has output; sessions that remain at `until` are written in the next turn."""
        clock = self._loop.performer.clock
        writers, self._writers = self._writers, []
        for index, session in enumerate(writers):
            if index and clock() >= until:  # at least one session in each turn
                self._writers = writers[index:] + self._writers
                self._loop.performer.request_turn()
                return
            try:
                self._write(session, until)
            except Exception as error:
                self._loop.isolation.isolate_output(session, error)

    def _write(self, session: Session, until: float) -> None:
        performer, lane = self._loop.performer, session.outbox.lane
        parts = session.take_output()
        unsent = performer.write(session, parts) if parts or lane is None else 0
        if lane is not None:
            unsent = self._write_lane(session, lane, unsent, until)
        if session.kind.on_written(unsent):
            self._loop.timers.at(self._loop.now, partial(self._resume, session))
        if session.closing:
            performer.close_when_sent(session)
        elif unsent:
            self._slow_down(session, unsent)

    def _write_lane(self, session: Session, lane: DataLane, unsent: int, until: float) -> int:
        """Write the data of a lane until the connection is congested, all of it if the session ends. Return the unsent
        bytes, those in the lane included."""
        performer = self._loop.performer
        lane.blocked = lane.blocked or unsent > 0
        while lane.bytes and (session.closing or not lane.blocked):
            if not session.closing and performer.clock() >= until:
                self.flush_at_turn_end(session)
                performer.request_turn()
                break
            lane.sent_at = self._loop.now
            unsent = performer.write(session, lane.next_fragment())
            lane.blocked = unsent > 0
        return unsent + lane.bytes

    def _slow_down(self, session: Session, unsent: int) -> None:
        """Stop reading from a client that does not read its output; disconnect it above the limit of unsent output."""
        limit = session.kind.output_bytes_max or self._outbox_max and self._outbox_max + PUT_MESSAGE_BYTES_MAX
        if limit and unsent > limit:
            self._disconnect(session, unsent)
        elif session.kind.may_pause_reading:
            self._loop.performer.set_reading(session, False)  # slows down a producer that does not read its ACKs

    def unsent_output(self, session: Session) -> tuple[int, int]:
        """Return the unsent bytes of a session, and the total of the bytes that were sent after a wait."""
        waiting, drained = self._loop.performer.unsent_output(session)
        lane = session.outbox.lane
        return waiting + (lane.bytes if lane is not None else 0), drained

    def check_unread(self, session: Session, now: float) -> None:
        """Close a session above its lagging limit that has read none of its output for UNREAD_SECONDS_MAX."""
        waiting, drained = self.unsent_output(session)
        limit = session.kind.output_bytes_max or self._outbox_max
        if not limit or waiting <= lagging_bytes(limit) or drained != session.channel.drained_bytes or session.closing:
            session.channel.drained_bytes, session.channel.drained_at = drained, now
        elif now - session.channel.drained_at >= UNREAD_SECONDS_MAX:
            self._disconnect(session, waiting)

    def _disconnect(self, session: Session, unsent: int) -> None:
        performer = self._loop.performer
        session.close(session.kind.unread_text + ": %d unsent bytes (limit: %d)", session.description, unsent,
                      session.kind.output_bytes_max or self._outbox_max, crashed=False)
        performer.close_when_sent(session)
        performer.request_turn()  # redelivers its unconfirmed messages

    def _resume(self, session: Session, now: float) -> None:
        try:
            session.kind.resume_deliveries()
        except Exception as error:
            self._loop.isolation.isolate_session(session, "resuming", error)
