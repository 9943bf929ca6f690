"""The turn: what was collected since the last one is written, released, delivered and sent, each of them once.

    for each partition    flush, or gather more and deliver what is there; release their PUTs; send what was written to other
                          nodes, if there are any; ask for a sync if somebody still waits for one
    queues in memory      release their PUTs
    touched queues        deliver, until no queue is touched any more
    sessions with output  write; close those that are to be closed; slow down or cut off those that do not read. Those that
                          are left after some milliseconds get theirs in the next turn
    partitions            go on with a rollover in slices, as long as there is time

A part that raises does not cost the others their turn: each partition, PUT, queue and session stands behind a wall
of its own (`loop/error_isolation.py` says what becomes of it).
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from bmqtwist.broker.sync_pace import PAUSE_S, SyncPace
from bmqtwist.broker.write_coalescing import Gathering
from bmqtwist.limits import PUT_MESSAGE_BYTES_MAX, TURN_DELIVERY_S, TURN_WRITE_S, UNREAD_SECONDS_MAX
from bmqtwist.link.pace import WAIT_S
from bmqtwist.link.session import Session
from bmqtwist.queue.queue import Put, Queue
from bmqtwist.queue.root import RootQueue
from bmqtwist.queue.window import lagging_bytes
from bmqtwist.storage.partition import Partition

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker

ROLL_SECONDS = 0.005  # of a turn that rollovers may take; what else there is to do comes first
ROLL_SECONDS_LATE = 0.008  # the same while a file fills faster than its rollover gets on
GATHERED_BYTES_MAX = 128 << 10  # of DATA that are not written while more is waited for: they are in the cache still
UNSYNCED_BYTES_MAX = 1 << 20  # of DATA: when there are more, a sync waits for nothing else
ROLL_SLICES_MAX = 16  # of each rollover in one turn, whatever the clock says


def _nothing(now: float) -> None:
    """A turn follows."""


def _may_gather(partition: Partition) -> bool:
    """Whether what is stored may be written later, with what else comes until then."""
    return not (partition.tail.unwritten_bytes > GATHERED_BYTES_MAX or partition.log.roll_due or partition.files.rolling)


class Turn:
    """The lists of one broker's turn. `touch`, `hold_until_written` and `flush_later` put something on them."""

    def __init__(self, broker: Broker, outbox_bytes_max: int) -> None:
        self._broker, self._contain, self._outbox_max = broker, broker.contain, outbox_bytes_max
        self.partitions: list[Partition] = []
        self._touched: list[Queue] = []
        self._touched_next: list[Queue] = []  # in the next turn
        self._in_memory: list[Put] = []
        self._writers: list[Session] = []
        self._paces: dict[Partition, SyncPace] = {}  # of the syncs of each partition
        self._gatherings: dict[Partition, Gathering] = {}
        self.write_by = 0.0  # when something that is gathered has to be written; 0.0 = nothing is
        self._writes_now = False

    def touch(self, queue: Queue) -> None:
        """Deliver from the queue in this turn."""
        queue.touched = True
        self._touched.append(queue)

    def touch_next(self, queue: Queue) -> None:
        """Go on with delivering from the queue in the next turn."""
        if not queue.touched:
            queue.touched = True
            self._touched_next.append(queue)

    def hold_until_written(self, put: Put) -> None:
        """A PUT to a queue that lives in memory: released with what is written in this turn."""
        self._in_memory.append(put)

    def write_now(self) -> None:
        """Whatever is stored is written in this turn, before its output."""
        self._writes_now = True

    def flush_later(self, session: Session) -> None:
        """Write for the session at the end of the turn."""
        session.waiting = True
        self._writers.append(session)

    def run(self, now: float) -> None:
        """The whole turn."""
        wall = self._broker.wall(now)
        if self._touched_next:
            self._touched, self._touched_next = self._touched_next + self._touched, []
        for partition in self.partitions:
            try:
                if not partition.busy():
                    continue
                pauses = self._pauses(partition)
                if pauses and _may_gather(partition) or self._gathers(partition, now):
                    continue
                released = partition.flush(wall)
                if partition.tail.large:
                    self._broker.performer.turn_due()
            except Exception as error:
                self._contain.partition_failed(partition, "writing the turn", error)
                continue
            if released:
                self.release(released)
            self._looked_at(partition)
            if not pauses:
                self.sync(partition)
        if self._in_memory:
            released, self._in_memory = self._in_memory, []
            self.release(released)
        self._writes_now = False
        self._deliver(now)
        while self._contain.failed:
            self._contain.close_failed()
            self._deliver(now)  # what they held goes to others
        self.write(now + TURN_WRITE_S)
        self._roll(wall)

    def close(self, wall: int, sync: bool) -> None:
        """The last turn: every partition stopped, nothing delivered any more. The first OSError is raised at its end."""
        failed: OSError | None = None
        for partition in self.partitions:
            try:
                self.release(partition.stop(wall, sync))
            except OSError as error:
                failed = failed or error
            except Exception as error:
                self._contain.partition_failed(partition, "stop", error)
                partition.files.close(truncate=False)
        for queue in self._touched + self._touched_next:
            queue.touched = False
        self._touched.clear()
        self._touched_next.clear()
        self.write()
        if failed is not None:
            raise failed

    # -- partitions -------------------------------------------------------------------------------------------------

    def sync(self, partition: Partition) -> None:
        """Ask for a sync if one is due."""
        token = None
        try:
            token = partition.wants_sync()
            if token is not None:
                if (pace := self._paces.get(partition)) is not None:
                    pace.synced_to = partition.files.data_position
                self._broker.performer.sync(partition, token)
        except Exception as error:
            self._contain.partition_failed(partition, "asking for a sync", error)

    def _pauses(self, partition: Partition) -> bool:
        """Whether the next sync waits for more messages; the turn at the end of its pause goes on."""
        if partition.durability != "group" or partition.replicated:
            return False
        pace = self._paces.setdefault(partition, SyncPace())
        pausing = pace.until
        newest, syncing = partition.awaited
        pauses = pace.pauses(self._broker.now, newest, syncing)
        if pauses and not pausing:
            self._broker.later(PAUSE_S, _nothing)
        unsynced = partition.files.data_position - pace.synced_to + partition.tail.unwritten_bytes
        return (pauses or syncing and pace.calm) and unsynced <= UNSYNCED_BYTES_MAX

    def _gathers(self, partition: Partition, now: float) -> bool:
        """Whether what is stored is written in one of the next turns; its messages are delivered in this one."""
        if partition.durability != "none" or partition.replicated:
            return False
        gathering = self._gatherings.get(partition)
        if gathering is None:
            gathering = self._gatherings[partition] = Gathering()
        waiting, seen, since = partition.gate.waiting, gathering.seen, gathering.since
        goes_on = bool(waiting) and partition.available and not self._writes_now and _may_gather(
            partition) and gathering.goes_on(waiting, now)
        if goes_on:
            self._hand_on(waiting, seen)
        else:
            gathering.end(now)
        if gathering.since != since:
            self.write_by = min([each.since + WAIT_S for each in self._gatherings.values() if each.since], default=0.0)
        return goes_on

    def _hand_on(self, puts: list[Any], first: int) -> None:
        """The messages of these PUTs may be delivered, from that one on; they are acknowledged when they are written."""
        for index in range(first, len(puts)):
            put: Put = puts[index]
            try:
                cast(RootQueue, put.queue).hand_on(put)
            except Exception as error:
                self._contain.queue_failed(put.queue, "delivery of a message", error)

    def _roll(self, wall: int) -> None:
        """One slice of each rollover at least, then more as long as there is time."""
        performer = self._broker.performer
        rolling = [each for each in self.partitions if each.log.roll_due and self._roll_slice(each, wall)]
        if not rolling:
            return
        begun = performer.clock()
        for _ in range(ROLL_SLICES_MAX):
            late = any(partition.roll.late for partition in rolling)
            if performer.clock() - begun >= (ROLL_SECONDS_LATE if late else ROLL_SECONDS):
                break
            rolling = [partition for partition in rolling if self._roll_slice(partition, wall)]
        if rolling:
            performer.turn_due()

    def _roll_slice(self, partition: Partition, wall: int) -> bool:
        try:
            more = partition.roll.step(wall)
            job = partition.roll.take_job()
            if job is not None:
                self._broker.performer.roll(partition, job)
            return more
        except Exception as error:
            self._contain.partition_failed(partition, "rolling over", error)
            return False

    def synced(self, partition: Partition, token: int, wall: int) -> None:
        """A sync has come through: release what waited for it, ask for the next."""
        try:
            released = partition.synced(token, wall)
        except Exception as error:
            self._contain.partition_failed(partition, "after a sync", error)
            return
        self.release(released)
        self._looked_at(partition)
        if not self._pauses(partition):
            self.sync(partition)

    def _looked_at(self, partition: Partition) -> None:
        """Other nodes are sent what was written, before it is synced here, and told what is safe."""
        if partition.watcher is None:
            return
        try:
            partition.watcher()
        except Exception as error:
            self._contain.partition_failed(partition, "replication", error)

    def written(self, partition: Partition) -> None:
        """Something was written outside of a turn."""
        self._looked_at(partition)
        self.sync(partition)

    def release(self, puts: list[Put]) -> None:
        """The records of these PUTs are safe: acknowledge, and hand their messages on for delivery."""
        now = self._broker.now
        for put in puts:
            try:
                put.queue.release(put, now)
            except Exception as error:
                self._contain.queue_failed(put.queue, "release of a message", error)

    # -- queues -----------------------------------------------------------------------------------------------------

    def _deliver(self, now: float) -> None:
        clock, until = self._broker.performer.clock, now + TURN_DELIVERY_S
        while self._touched:
            touched, self._touched = self._touched, []
            for index, queue in enumerate(touched):
                if queue.disabled:
                    queue.touched = False
                    continue
                if index and clock() >= until:  # one queue at least, whatever the clock says
                    self._touched_next += touched[index:]
                    break
                try:
                    queue.deliver(now)
                except Exception as error:
                    queue.touched = False
                    self._contain.queue_failed(queue, "delivery", error)
        if self._touched_next:
            self._broker.performer.turn_due()

    # -- sessions ---------------------------------------------------------------------------------------------------

    def write(self, until: float = math.inf) -> None:
        """One write for each session that has output. Those that are left at that moment get theirs in the next turn."""
        clock = self._broker.performer.clock
        writers, self._writers = self._writers, []
        for index, session in enumerate(writers):
            if index and clock() >= until:  # one session at least, whatever the clock says
                self._writers = writers[index:] + self._writers
                self._broker.performer.turn_due()
                return
            try:
                self._write(session)
            except Exception as error:
                self._contain.output_failed(session, error)

    def _write(self, session: Session) -> None:
        performer = self._broker.performer
        behind = performer.write(session, session.take())
        if session.written(behind):
            self._broker.timers.at(self._broker.now, partial(self._resume, session))
        if session.closing:
            performer.finish(session)
        elif behind:
            self._slow(session, behind)

    def _slow(self, session: Session, behind: int) -> None:
        performer = self._broker.performer
        limit = session.kind.output_bytes_max or self._outbox_max and self._outbox_max + PUT_MESSAGE_BYTES_MAX
        if limit and behind > limit:
            self._cut_off(session, behind)
        elif session.kind.may_be_slowed:
            performer.read(session, False)  # a producer that does not read its ACKs is slowed down

    def check_unread(self, session: Session, now: float) -> None:
        """Close a session that lags and has taken nothing of its output for a long time."""
        waiting, taken = self._broker.performer.unread(session)
        limit = session.kind.output_bytes_max or self._outbox_max
        if not limit or waiting <= lagging_bytes(limit) or taken != session.taken or session.closing:
            session.taken, session.taken_at = taken, now
        elif now - session.taken_at >= UNREAD_SECONDS_MAX:
            self._cut_off(session, waiting)

    def _cut_off(self, session: Session, behind: int) -> None:
        performer = self._broker.performer
        session.cut_off(session.kind.unread + ": %d bytes wait for it (limit: %d)", session.description, behind,
                        session.kind.output_bytes_max or self._outbox_max)
        performer.finish(session)
        performer.turn_due()  # for what it held

    def _resume(self, session: Session, now: float) -> None:
        try:
            session.resume()
        except Exception as error:
            self._contain.session_failed(session, "resuming", error)
