"""Rollover of a partition: copies its live records into a new file set while the partition takes new records.

A small partition rolls over in one step, when a record does not fit. A large one begins early and copies in slices
between its turns; blocking disk operations are a `Job` for another thread:

    IDLE        until a file is so full that a rollover is worthwhile
    CREATING    job: create the next file set
    COPYING     slices of live records (compaction.LiveCopy); jobs: a sync of the next set after each 16 MiB
                at the end: a sync point of kind ROLLOVER in the old set, one with the same PSN in the next set
    MARKING     every batch is written to both sets; job: sync the next set and mark it as complete
    SWITCHING   the next set becomes the current one when no record is unwritten
    RETIRING    job: archive the old set; slices: update the DATA offsets of messages (compaction.Relocation)

Until the mark is durable, recovery uses the old set; afterwards either set is valid, as both hold the same records. If a
file is full before the copy is complete, the rest is copied in one step.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from enum import Enum
from functools import partial
from threading import Lock

from bmqtwist import alarms
from bmqtwist.machine import Cell, TransitionLog, check, table, to
from bmqtwist.storage.compaction import LiveCopy, Relocation
from bmqtwist.storage.layout import JOURNAL_OP_RECORD, MESSAGE_RECORD, QUEUE_OP_RECORD
from bmqtwist.storage.partition_log import BEGIN_PERCENT, PartitionLog
from bmqtwist.storage.records import TYPE_SHIFT, QueueOp, RecordType, SyncPoint, pack_sync_point
from bmqtwist.storage.store import SYNC_POINT_RESERVE_BYTES

REPLICA_BEGIN_PERCENT = 85  # used part of a replica's file; higher, as a replica usually follows a rollover of its primary
GAIN_PERCENT = 10  # minimum part of that file that a rollover frees
SMALL_RECORDS, SMALL_BYTES = 8192, 4 << 20  # live records and bytes of DATA up to which a rollover runs in one step
SLICE_RECORDS, SLICE_BYTES = 512, 1 << 19  # of one slice of a copy
UPDATED_RECORDS = 4096  # messages per slice of RETIRING
SYNC_BYTES = 16 << 20  # written to the next set between two syncs
RETRY_S = 5  # between two attempts in one step
RETRY_EARLY_S = 60  # between two attempts in slices

_MESSAGE_DATA = MESSAGE_RECORD.offset("data_dwords")
_QUEUE_OP_QLIST = QUEUE_OP_RECORD.offset("qlist_words")  # the operation is before it
_JOURNAL_OP_DATA, _JOURNAL_OP_QLIST = JOURNAL_OP_RECORD.offset("data_dwords"), JOURNAL_OP_RECORD.offset("qlist_words")


class Phase(Enum):
    """Phases of a rollover."""

    IDLE = "idle"
    CREATING = "creating"
    COPYING = "copying"
    MARKING = "marking"
    SWITCHING = "switching"
    RETIRING = "retiring"


class RolloverEvent(Enum):
    """Events of a rollover."""

    STEP = "time for a slice"
    DONE = "job done"
    FAILED = "job failed"
    UNMIRRORED = "batch not written to the next set"
    FINISH = "file full: finish in one step"
    ABANDON = "partition stops"
    BEGIN = "operator or primary requests a rollover"


class Job:
    """Blocking work for another thread. A cancelled job does nothing; `cancel` waits for a `run` in progress."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._guard = Lock()
        self._cancelled = False
        self.taken = self.failed = False

    def run(self) -> None:
        """Run the action unless the job is cancelled; OSError if the disk fails."""
        with self._guard:
            if not self._cancelled:
                try:
                    self._action()
                except OSError:
                    self.failed = True
                    raise

    def cancel(self) -> None:
        with self._guard:
            self._cancelled = True


class NextSet:
    """The next file set while every batch is written to both sets. Its DATA records (dwords) and QLIST records (words) are
    shifted against the current set; `joined`: live key of the last record before."""

    def __init__(self, log: PartitionLog) -> None:
        self._files = log.files
        self.joined = log.state.last_key
        _, data, qlist = log.tail.positions()
        _, next_data, next_qlist = log.files.coming.positions()
        self.data_shift, self._qlist_shift = next_data - data >> 3, next_qlist - qlist >> 2

    def append(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """Write a batch, already written to the current set, to the next one. OSError."""
        self._files.coming.append([self._shifted(record) for record in journal], data, qlist)
        if not self._files.sizes.hold(self._files.coming.positions()):
            raise OSError(errno.ENOSPC, "the next file set is full")

    def _shifted(self, record: bytes) -> bytes:
        kind = int.from_bytes(record[:8], "big") >> TYPE_SHIFT
        if kind == RecordType.MESSAGE:
            return _added(record, _MESSAGE_DATA, self.data_shift)
        if kind == RecordType.QUEUE_OP and record[_QUEUE_OP_QLIST - 1] in (QueueOp.CREATION, QueueOp.ADDITION):
            return _added(record, _QUEUE_OP_QLIST, self._qlist_shift)
        if kind == RecordType.JOURNAL_OP:
            return _added(_added(record, _JOURNAL_OP_DATA, self.data_shift), _JOURNAL_OP_QLIST, self._qlist_shift)
        return record


class Rollover:
    """State machine of the rollovers of one partition. `on_switched` is called when the next file set has become current.

    copy: the copy in progress, which notes deletions. relocation: offsets of messages that are not updated yet.
    """

    def __init__(self, log: PartitionLog, on_switched: Callable[[], None]) -> None:
        self._log, self._files, self._on_switched = log, log.files, on_switched
        self.phase = Phase.IDLE
        self.transitions = TransitionLog()  # times are epoch seconds
        self.copy: LiveCopy | None = None
        self.relocation: Relocation | None = None
        self._job: Job | None = None  # in progress
        self._copied: LiveCopy | None = None  # from COPYING to SWITCHING
        self._next: NextSet | None = None  # from MARKING to SWITCHING, unless a batch failed
        self._synced_bytes = self._syncing_bytes = 0  # of the next set: at the last sync, at the sync in progress
        self._mark = 0
        self._began = (0, 0, 0)  # bytes in use of JOURNAL, DATA, QLIST when the copy began
        self.ended_at = (0, 0)  # PSN from which on the next set holds every record
        self._wall = 0  # of the last step, epoch seconds
        self._not_before = self._not_early_before = 0  # epoch seconds: no attempt before

    # ---- events --------------------------------------------------------------------------------------------------

    def _on(self, event: RolloverEvent, wall: int) -> bool:
        before = self.phase
        answer: bool = TABLE[before][event].action(self, wall)
        if self.phase is not before:
            self.transitions.note(wall, before.value, self.phase.value, event.value, event.name)
        check(TABLE, before, event, self.phase)
        return answer

    def step(self, wall: int) -> bool:
        """Run one slice, after the records of the turn are written; True if the next slice can follow at once."""
        self._wall = wall
        more = self._on(RolloverEvent.STEP, wall)
        self._log.roll_due = self.phase is not Phase.IDLE
        return more

    def take_job(self) -> Job | None:
        """Return a job to run in a thread and report to `done` or `failed`; None if there is none, or it was taken."""
        job = self._job
        if job is None or job.taken:
            return None
        job.taken = True
        return job

    def done(self, job: Job, wall: int) -> None:
        if job is self._job:
            self._job = None
            self._on(RolloverEvent.DONE, wall)

    def failed(self, job: Job, error: OSError, wall: int) -> None:
        if job is self._job:
            self._job = None
            _report_failure(self._log, f"{self.phase.value} a file set", error, RETRY_EARLY_S)
            self._on(RolloverEvent.FAILED, wall)

    def finish(self, wall: int) -> bool:
        """Complete a rollover within this call; False if the old set stays."""
        if wall < self._not_before:
            return False
        self._wall = wall
        return self._log.write_rest() and self._on(RolloverEvent.FINISH, wall)

    def begin(self, wall: int) -> None:
        """Begin a rollover in slices, however full the files are; a rollover in progress continues."""
        self._on(RolloverEvent.BEGIN, wall)

    def stop(self, wall: int) -> None:
        """Abandon a rollover in progress, because the partition stops."""
        self._on(RolloverEvent.ABANDON, wall)

    @property
    def small(self) -> bool:
        """True if the live records are so few that one step is short enough."""
        state = self._log.state
        return len(state.live) <= SMALL_RECORDS and state.outstanding()[1] <= SMALL_BYTES

    # ---- in slices -----------------------------------------------------------------------------------------------

    def _check_due(self, wall: int) -> bool:
        """Begin a rollover if a file is full enough and enough of it is garbage."""
        log = self._log
        sizes, kept = self._files.sizes, log.state.outstanding()
        begin = BEGIN_PERCENT if log.leading else REPLICA_BEGIN_PERCENT
        gain = any(end * 100 >= size * begin and (end - keeps) * 100 >= size * GAIN_PERCENT
                   for end, keeps, size in zip(log.tail.positions(), kept, sizes.each, strict=True))
        if self.small or not gain or wall < self._not_early_before:
            return False
        if not log.available or not sizes.leaves_enough(kept, (0, 0, 0)):
            return False
        return self._begin(wall)

    def _begin(self, wall: int) -> bool:
        _inform(self._log, "Initiating rollover")
        self.phase = Phase.CREATING
        self._job = Job(partial(self._files.begin_roll, wall))
        self._log.roll_due = True
        return False

    def _created(self, wall: int) -> bool:
        self.phase = Phase.COPYING
        self.copy = self._copied = LiveCopy(self._files, self._log.state)
        self._synced_bytes, self._began = 0, self._log.tail.positions()
        return True

    def _copy(self, wall: int) -> bool:
        """Copy one slice; after the last one, write to both sets from now on."""
        log, files, copy = self._log, self._files, self._copied
        if copy is None or log.broken:
            return self._abandon(wall)
        if log.tail.unwritten_bytes:  # not readable from DATA yet
            return False
        try:
            done = copy.slice(SLICE_RECORDS, SLICE_BYTES)
            written = sum(files.coming.positions())
            if self._job is None and written - self._synced_bytes >= SYNC_BYTES:
                self._syncing_bytes = written
                self._job = Job(files.coming.sync)
            if not done:
                return True
            room = log.tail.journal_end + SYNC_POINT_RESERVE_BYTES <= files.sizes.journal
            if room and self._job is None and log.write_rest():
                self._join(wall)
        except OSError as error:
            _report_failure(self._log, "rollover failed", error, RETRY_EARLY_S)
            return self._abandon(wall)
        return False

    @property
    def late(self) -> bool:
        """True if the files fill faster than the copy proceeds, or only records newer than its start remain."""
        if self._copied is None:
            return False
        if self._copied.progress == 1.0:
            return True
        used = max((end - began) / max(1, size - began) for end, began, size in zip(
            self._log.tail.positions(), self._began, self._files.sizes.each, strict=True))
        return used > self._copied.progress

    def _next_synced(self, wall: int) -> bool:
        self._synced_bytes = self._syncing_bytes
        return True

    def _join(self, wall: int) -> None:
        """End both sets with a sync point of the same PSN; from now on both receive the same records."""
        self._mark = _end_both(self._log, wall, announced=True)
        self.ended_at = self._log.state.lease, self._log.state.sequence
        self.copy, self._next = None, NextSet(self._log)
        self._log.mirror = self._mirror
        self._files.join_next()
        self.phase = Phase.MARKING
        self._job = Job(partial(self._files.mark_next, self._mark))

    def _mirror(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        try:
            if self._next is not None:
                self._next.append(journal, data, qlist)
        except OSError as error:
            _report_failure(self._log, "rollover failed", error, RETRY_EARLY_S)
            self._on(RolloverEvent.UNMIRRORED, self._wall)

    def _marked(self, wall: int) -> bool:
        self.phase = Phase.SWITCHING
        return True

    def _switch(self, wall: int) -> bool:
        log, copy = self._log, self._copied
        if not log.write_rest() and not log.broken:
            return False
        joined = self._next
        if copy is None or joined is None or log.broken:  # a batch did not reach the next set
            return self._abandon(wall)
        self._files.switch_next()
        self.relocation = Relocation(log.state, copy, joined.joined, log.state.last_key, joined.data_shift)
        self._forget()
        self._on_switched()
        _inform(self._log, "ROLLOVER COMPLETE")
        self.phase = Phase.RETIRING
        self._job = Job(partial(self._files.retire_old, False))
        return True

    def _update_offsets(self, wall: int) -> bool:
        if self.relocation is not None and self.relocation.update(UPDATED_RECORDS):
            self.relocation = None
        self._retired(wall)
        return self.relocation is not None

    def _retired(self, wall: int) -> bool:
        if self._job is None and self.relocation is None:
            self.phase = Phase.IDLE
        return False

    def _cancel_job(self) -> bool:
        """Cancel the job, if there is one; False if it has failed."""
        job, self._job = self._job, None
        if job is not None:
            job.cancel()
        return job is None or not job.failed

    # ---- abandonment ---------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self.copy = self._copied = self._next = self._log.mirror = None

    def _abandon(self, wall: int) -> bool:
        """Remove the next set; the old one stays."""
        self._cancel_job()
        self._forget()
        self.phase = Phase.IDLE
        self._files.abandon_roll()
        self._not_early_before = wall + RETRY_EARLY_S
        return False

    def _fail_at_once(self, error: OSError, wall: int, what: str = "rollover failed") -> bool:
        """Report the failure of a rollover in one step and abandon it."""
        _report_failure(self._log, what, error, RETRY_S)
        self._not_before = wall + RETRY_S
        return self._abandon(wall)

    # ---- in one step ---------------------------------------------------------------------------------------------

    def _finish(self, wall: int) -> bool:
        """Do the rest of a rollover, or all of it."""
        phase, state = self.phase, self._log.state
        if phase in (Phase.COPYING, Phase.MARKING):
            done = 100 if self._copied is None else round(100 * self._copied.progress)
            self._log.reports.alarm(
                alarms.ROLLOVER_BLOCKING,
                f": a file is full before its live records were copied in slices ({done} %):"
                " the rest is done at once. Larger files would leave more time.")
        clean = self._cancel_job()
        if phase in (Phase.IDLE, Phase.CREATING):
            return self.rewrite(wall, damaged=False, announced=True)
        copy, joined = self._copied, self._next
        if not clean or copy is None:
            return self._abandon(wall)
        if phase is Phase.COPYING:
            return self._complete(copy, wall, damaged=False, announced=True)
        if joined is None:
            return self._abandon(wall)
        try:
            if phase is Phase.MARKING:
                self._files.mark_next(self._mark)
            self._files.coming.sync()
        except OSError as error:
            return self._fail_at_once(error, wall)
        self._files.switch_next()
        self._files.retire_old(False)
        self._complete_switch(Relocation(state, copy, joined.joined, state.last_key, joined.data_shift))
        return True

    def rewrite(self, wall: int, damaged: bool, announced: bool) -> bool:
        """Copy the live records to a new set; `announced`: append ROLLOVER to the old one. False if the old set stays."""
        if self.phase is not Phase.CREATING:  # logged already
            _inform(self._log, "Initiating rollover")
        try:
            if not self._files.rolling:
                self._files.begin_roll(wall)
        except OSError as error:
            return self._fail_at_once(error, wall, "no new file set")
        return self._complete(LiveCopy(self._files, self._log.state), wall, damaged, announced)

    def _complete(self, copy: LiveCopy, wall: int, damaged: bool, announced: bool) -> bool:
        """Do the rest of a copy and switch to the next set."""
        state = self._log.state
        try:
            copy.run()
            mark = _end_both(self._log, wall, announced)
            self.ended_at = state.lease, state.sequence
            self._files.finish_roll(mark, damaged)
        except OSError as error:
            return self._fail_at_once(error, wall)
        self._complete_switch(Relocation(state, copy, state.last_key, state.last_key, 0))
        return True

    def _complete_switch(self, relocation: Relocation) -> None:
        """Update all offsets; the next set is current and durable."""
        relocation.update(1 << 62)
        self._forget()
        self.relocation = None
        self.phase = Phase.IDLE
        self._on_switched()
        _inform(self._log, "ROLLOVER COMPLETE")
        self._log.gate.mark_all_durable()

    def _retire_now(self, wall: int) -> bool:
        self._cancel_job()
        self._files.retire_old(False)
        if self.relocation is not None:
            self.relocation.update(1 << 62)
        self.relocation = None
        self.phase = Phase.IDLE
        return True

    def _restart(self, wall: int) -> bool:
        """Complete the last rollover and do another one, because a file is full again."""
        self._retire_now(wall)
        return self._finish(wall)


def _inform(log: PartitionLog, what: str) -> None:
    """Log the used bytes of the files and the number of live records."""
    sizes, (journal, data, qlist) = log.files.sizes, log.tail.positions()
    log.reports.inform(f"{what}: JOURNAL {journal} of {sizes.journal} bytes, DATA {data} of {sizes.data} bytes, QLIST "
                       f"{qlist} of {sizes.qlist} bytes; {len(log.state.live)} live records")


def _report_failure(log: PartitionLog, what: str, error: OSError, retry_s: int) -> None:
    log.reports.alarm(alarms.ROLLOVER_FAILED, f": {what}: {error}. Next try in {retry_s} s at the earliest.")


def _end_both(log: PartitionLog, wall: int, announced: bool) -> int:
    """Append a sync point to the copied records, with the PSN of the last record of the old set; return its offset."""
    files, state = log.files, log.state
    if announced and log.leading:
        log.append_sync_point(SyncPoint.ROLLOVER, wall)
        if not log.write(awaited=False):
            raise OSError(errno.EIO, "the ROLLOVER record is not written yet")
    mark, data, qlist = files.coming.positions()
    if not state.lease:
        return 0
    point = pack_sync_point(state.sequence, state.lease, wall, SyncPoint.REGULAR, log.primary_id, data, qlist)
    files.coming.append([point], [], [])
    return mark


def _added(record: bytes, offset: int, shift: int) -> bytes:
    """Return a record with `shift` added to its 32-bit field at `offset`."""
    value = int.from_bytes(record[offset:offset + 4], "big") + shift
    return record[:offset] + value.to_bytes(4, "big") + record[offset + 4:]


def _ignore(roll: Rollover, wall: int) -> bool:
    return False


_IGNORED: dict[RolloverEvent, Cell[Phase]] = dict.fromkeys(RolloverEvent, to(_ignore))
_ABANDONED = dict.fromkeys((RolloverEvent.FAILED, RolloverEvent.ABANDON, RolloverEvent.UNMIRRORED),
                           to(Rollover._abandon, Phase.IDLE))

TABLE = table(Phase, RolloverEvent, {
    Phase.IDLE: _IGNORED | {
        RolloverEvent.STEP: to(Rollover._check_due, Phase.CREATING), RolloverEvent.FINISH: to(Rollover._finish),
        RolloverEvent.BEGIN: to(Rollover._begin, Phase.CREATING)},
    Phase.CREATING: _IGNORED | _ABANDONED | {
        RolloverEvent.DONE: to(Rollover._created, Phase.COPYING),
        RolloverEvent.FINISH: to(Rollover._finish, Phase.IDLE)},
    Phase.COPYING: _IGNORED | _ABANDONED | {
        RolloverEvent.STEP: to(Rollover._copy, Phase.MARKING, Phase.IDLE), RolloverEvent.DONE: to(Rollover._next_synced),
        RolloverEvent.FINISH: to(Rollover._finish, Phase.IDLE)},
    Phase.MARKING: _IGNORED | _ABANDONED | {
        RolloverEvent.DONE: to(Rollover._marked, Phase.SWITCHING),
        RolloverEvent.FINISH: to(Rollover._finish, Phase.IDLE)},
    Phase.SWITCHING: _IGNORED | _ABANDONED | {
        RolloverEvent.STEP: to(Rollover._switch, Phase.RETIRING, Phase.IDLE),
        RolloverEvent.FINISH: to(Rollover._finish, Phase.IDLE)},
    Phase.RETIRING: _IGNORED | {
        RolloverEvent.STEP: to(Rollover._update_offsets, Phase.IDLE), RolloverEvent.DONE: to(Rollover._retired, Phase.IDLE),
        RolloverEvent.FAILED: to(Rollover._retired, Phase.IDLE), RolloverEvent.FINISH: to(Rollover._restart, Phase.IDLE),
        RolloverEvent.ABANDON: to(Rollover._retire_now, Phase.IDLE)},
})
