"""One turn of a broker: writes records, releases PUTs, delivers messages and sends output, each once for all input since the
last turn.

    partitions            `broker/storage_turn.py`
    queues in memory      release their PUTs
    touched queues        deliver, until no queue is touched
    sessions with output  write; close the connections of ended sessions; stop reading from clients that do not read, and
                          disconnect them beyond the output limit. After TURN_WRITE_S the others wait for a turn
    rollovers             continue within their budget

Errors are isolated: an exception in one partition, PUT, queue or session does not affect the others
(`loop/error_isolation.py`).
"""

from __future__ import annotations

import math
from functools import partial

from bmqtwist.broker.storage_turn import StorageTurn
from bmqtwist.limits import PUT_MESSAGE_BYTES_MAX, TURN_WRITE_S, UNREAD_SECONDS_MAX
from bmqtwist.link.session import Session
from bmqtwist.loop.error_isolation import Containment
from bmqtwist.loop.performer import Performer
from bmqtwist.loop.scheduler import BUDGETS, Priority, Scheduler
from bmqtwist.loop.timers import Timers
from bmqtwist.queue.queue import Put, Queue
from bmqtwist.queue.window import lagging_bytes
from bmqtwist.steps import Steps

_DELIVERY_S = BUDGETS[Priority.DELIVERY]


class Turn:
    """The lists of one broker's turn. `touch`, `hold_until_written` and `flush_later` put something on them."""

    def __init__(self, storage: StorageTurn, performer: Performer, contain: Containment, scheduler: Scheduler,
                 timers: Timers, outbox_bytes_max: int) -> None:
        self.storage, self._performer, self._contain = storage, performer, contain
        self._scheduler, self._timers, self._outbox_max = scheduler, timers, outbox_bytes_max
        self._touched: list[Queue] = []
        self._in_memory: list[Put] = []
        self._writers: list[Session] = []
        self._now = 0.0  # of the turn that runs, or ran last

    def touch(self, queue: Queue) -> None:
        """Deliver from the queue in this turn."""
        queue.touched = True
        self._touched.append(queue)

    def touch_next(self, queue: Queue) -> None:
        """Continue the delivery from the queue in the next turn."""
        if not queue.touched:
            queue.touched = True
            self._deliver_later(queue)

    def hold_until_written(self, put: Put) -> None:
        """A PUT to a queue that lives in memory: released with what is written in this turn."""
        self._in_memory.append(put)

    def flush_later(self, session: Session) -> None:
        """Write for the session at the end of the turn."""
        session.waiting = True
        self._writers.append(session)

    def run(self, now: float) -> None:
        """The whole turn."""
        self._now = now
        self.storage.run(now)
        if self._in_memory:
            released, self._in_memory = self._in_memory, []
            self.storage.release(released, now)
        self._deliver(now)
        while self._contain.failed:
            self._contain.close_failed()
            self._deliver(now)  # what they held goes to others
        self.write(now + TURN_WRITE_S)
        self.storage.run_rollovers()

    def close(self, wall: int, sync: bool) -> None:
        """The last turn: every partition stopped, nothing delivered any more. The first OSError is raised at its end."""
        failed = self.storage.close(wall, sync)
        for queue in self._touched:
            queue.touched = False
        self._touched.clear()
        self.write()
        if failed is not None:
            raise failed

    # -- queues -----------------------------------------------------------------------------------------------------

    def _deliver(self, now: float) -> None:
        clock, until = self._performer.clock, now + _DELIVERY_S
        self._scheduler.run(Priority.DELIVERY)
        while self._touched:
            touched, self._touched = self._touched, []
            for index, queue in enumerate(touched):
                if index and clock() >= until:  # one queue at least, whatever the clock says
                    for left in touched[index:]:
                        self._deliver_later(left)
                    break
                self._deliver_from(queue, now)

    def _deliver_later(self, queue: Queue) -> None:
        self._scheduler.add(Priority.DELIVERY, queue, self._delivery(queue),
                            partial(self._contain.queue_failed, queue, "delivery"))

    def _delivery(self, queue: Queue) -> Steps[None]:
        self._deliver_from(queue, self._now)
        yield from ()

    def _deliver_from(self, queue: Queue, now: float) -> None:
        if queue.disabled:
            queue.touched = False
            return
        try:
            queue.deliver(now)
        except Exception as error:
            queue.touched = False
            self._contain.queue_failed(queue, "delivery", error)

    # -- sessions ---------------------------------------------------------------------------------------------------

    def write(self, until: float = math.inf) -> None:
        """One write for each session that has output. Those that are left at that moment get theirs in the next turn."""
        clock = self._performer.clock
        writers, self._writers = self._writers, []
        for index, session in enumerate(writers):
            if index and clock() >= until:  # one session at least, whatever the clock says
                self._writers = writers[index:] + self._writers
                self._performer.turn_due()
                return
            try:
                self._write(session)
            except Exception as error:
                self._contain.output_failed(session, error)

    def _write(self, session: Session) -> None:
        performer = self._performer
        behind = performer.write(session, session.take())
        if session.written(behind):
            self._timers.at(self._now, partial(self._resume, session))
        if session.closing:
            performer.finish(session)
        elif behind:
            self._slow(session, behind)

    def _slow(self, session: Session, behind: int) -> None:
        performer = self._performer
        limit = session.kind.output_bytes_max or self._outbox_max and self._outbox_max + PUT_MESSAGE_BYTES_MAX
        if limit and behind > limit:
            self._cut_off(session, behind)
        elif session.kind.may_be_slowed:
            performer.read(session, False)  # a producer that does not read its ACKs is slowed down

    def check_unread(self, session: Session, now: float) -> None:
        """Close a session that lags and has taken nothing of its output for a long time."""
        waiting, taken = self._performer.unread(session)
        limit = session.kind.output_bytes_max or self._outbox_max
        if not limit or waiting <= lagging_bytes(limit) or taken != session.taken or session.closing:
            session.taken, session.taken_at = taken, now
        elif now - session.taken_at >= UNREAD_SECONDS_MAX:
            self._cut_off(session, waiting)

    def _cut_off(self, session: Session, behind: int) -> None:
        performer = self._performer
        session.cut_off(session.kind.unread + ": %d bytes wait for it (limit: %d)", session.description, behind,
                        session.kind.output_bytes_max or self._outbox_max)
        performer.finish(session)
        performer.turn_due()  # for what it held

    def _resume(self, session: Session, now: float) -> None:
        try:
            session.resume()
        except Exception as error:
            self._contain.session_failed(session, "resuming", error)
