"""Rollover of a partition: copies its live records into a new file set while the partition takes new records.

A small partition rolls over in one step, when a record does not fit. A large one begins early and copies in slices
between its turns; blocking disk operations are a `RolloverJob` for another thread:

    IDLE        until a file is ROLLOVER_BEGIN_PERCENT full (`partition_log.py`; at a replica REPLICA_BEGIN_PERCENT) and a
                rollover would free GAIN_PERCENT of it
    CREATING    job: create the next file set
    COPYING     slices of live records (compaction.LiveCopy); jobs: a sync of the next set after each 16 MiB
                at the end, in both sets: a sync point of kind ROLLOVER with the same PSN
    MARKING     every batch is written to both sets; job: sync the next set and mark it as complete
    SWITCHING   the next set becomes the current one when no record is unwritten
    RETIRING    job: archive the old set; slices: update the DATA offsets of messages (compaction.Relocation)

Until the mark is durable, recovery uses the old set; afterwards either set is valid, as both hold the same records. If a
file is full before the copy is complete, the rest is copied in one step.

Called by `partition.py`, `replica.py`, `room.py` and `image.py`; `broker/storage_turn.py` runs the slices and, in a
thread, the jobs. The copy is in `compaction.py`, the files in `fileset.py`.
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
from bmqtwist.storage.partition_log import ROLLOVER_BEGIN_PERCENT, PartitionLog
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


class RolloverPhase(Enum):
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


class RolloverJob:
    """Blocking work for another thread. A cancelled job does nothing; `cancel` waits for a `run` in progress."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._guard = Lock()
        self._cancelled = False
        self.started = self.failed = False

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


class MirroredSet:
    """The next file set while every batch is written to both sets. Its DATA records (dwords) and QLIST records (words) are
    shifted against the current set; `last_key_before`: live key of the last record of the
    current set alone."""

    def __init__(self, log: PartitionLog) -> None:
        self._files = log.files
        self.last_key_before = log.state.last_key
        _, data, qlist = log.tail.positions()
        _, next_data, next_qlist = log.files.next_set.positions()
        self.data_shift, self._qlist_shift = next_data - data >> 3, next_qlist - qlist >> 2

    def append(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """Write a batch, already written to the current set, to the next one. OSError."""
        self._files.next_set.append([self._shifted(record) for record in journal], data, qlist)
        if not self._files.sizes.fits(self._files.next_set.positions()):
            raise OSError(errno.ENOSPC, "the next file set is full")

    def _shifted(self, record: bytes) -> bytes:
        kind = int.from_bytes(record[:8], "big") >> TYPE_SHIFT
        if kind == RecordType.MESSAGE:
            return _with_shifted_field(record, _MESSAGE_DATA, self.data_shift)
        if kind == RecordType.QUEUE_OP and record[_QUEUE_OP_QLIST - 1] in (QueueOp.CREATION, QueueOp.ADDITION):
            return _with_shifted_field(record, _QUEUE_OP_QLIST, self._qlist_shift)
        if kind == RecordType.JOURNAL_OP:
            return _with_shifted_field(_with_shifted_field(record, _JOURNAL_OP_DATA, self.data_shift),
                                       _JOURNAL_OP_QLIST, self._qlist_shift)
        return record


class Rollover:
    """State machine of the rollovers of one partition. `on_switched` is called when the next file set has become current.

    copy: the copy in progress, which notes deletions. relocation: offsets of messages that are not updated yet.
    """

    def __init__(self, log: PartitionLog, on_switched: Callable[[], None]) -> None:
        self._log, self._files, self._on_switched = log, log.files, on_switched
        self.phase = RolloverPhase.IDLE
        self.transitions = TransitionLog()  # times are epoch seconds
        self.copy: LiveCopy | None = None
        self.relocation: Relocation | None = None
        self._job: RolloverJob | None = None  # in progress
        self._copied: LiveCopy | None = None  # from COPYING to SWITCHING
        self._next: MirroredSet | None = None  # from MARKING to SWITCHING, unless a batch failed
        self._synced_bytes = self._syncing_bytes = 0  # of the next set: at the last sync, at the sync in progress
        self._mark = 0
        self._began = (0, 0, 0)  # bytes in use of JOURNAL, DATA, QLIST when the copy began
        self.base = (0, 0)  # PSN from which on the next set holds every record
        self._wall = 0  # of the last step, epoch seconds
        self._not_before = self._not_early_before = 0  # epoch seconds: no attempt before

    # ---- events --------------------------------------------------------------------------------------------------

    def _process(self, event: RolloverEvent, wall: int) -> bool:
        before = self.phase
        answer: bool = TABLE[before][event].action(self, wall)
        if self.phase is not before:
            self.transitions.record(wall, before.value, self.phase.value, event.value, event.name)
        check(TABLE, before, event, self.phase)
        return answer

    def step(self, wall: int) -> bool:
        """Run one slice, after the records of the turn are written; True if the next slice can follow at once."""
        self._wall = wall
        more = self._process(RolloverEvent.STEP, wall)
        self._log.roll_due = self.phase is not RolloverPhase.IDLE
        return more

    def take_job(self) -> RolloverJob | None:
        """Return a job to run in a thread and report to `on_job_done` or `on_job_failed`; None if there is none, or it
        was started."""
        job = self._job
        if job is None or job.started:
            return None
        job.started = True
        return job

    def on_job_done(self, job: RolloverJob, wall: int) -> None:
        if job is self._job:
            self._job = None
            self._process(RolloverEvent.DONE, wall)

    def on_job_failed(self, job: RolloverJob, error: OSError, wall: int) -> None:
        if job is self._job:
            self._job = None
            _report_failure(self._log, f"{self.phase.value} a file set", error, RETRY_EARLY_S)
            self._process(RolloverEvent.FAILED, wall)

    def finish_at_once(self, wall: int) -> bool:
        """Complete a rollover within this call; False if the old set stays."""
        if wall < self._not_before:
            return False
        self._wall = wall
        return self._log.write_rest() and self._process(RolloverEvent.FINISH, wall)

    def begin(self, wall: int) -> None:
        """Begin a rollover in slices, however full the files are; a rollover in progress continues."""
        self._process(RolloverEvent.BEGIN, wall)

    def stop(self, wall: int) -> None:
        """Abandon a rollover in progress, because the partition stops."""
        self._process(RolloverEvent.ABANDON, wall)

    @property
    def is_small(self) -> bool:
        """True if the live records are so few that one step is short enough."""
        state = self._log.state
        return len(state.live) <= SMALL_RECORDS and state.outstanding()[1] <= SMALL_BYTES

    # ---- in slices -----------------------------------------------------------------------------------------------

    def _begin_if_due(self, wall: int) -> bool:
        """Begin a rollover if a file is full enough and enough of it is garbage."""
        log = self._log
        sizes, kept = self._files.sizes, log.state.outstanding()
        begin = ROLLOVER_BEGIN_PERCENT if log.is_primary else REPLICA_BEGIN_PERCENT
        gain = any(end * 100 >= size * begin and (end - keeps) * 100 >= size * GAIN_PERCENT
                   for end, keeps, size in zip(log.tail.positions(), kept, sizes.as_tuple, strict=True))
        if self.is_small or not gain or wall < self._not_early_before:
            return False
        if not log.available or not sizes.leaves_enough(kept, (0, 0, 0)):
            return False
        return self._begin(wall)

    def _begin(self, wall: int) -> bool:
        _log_usage(self._log, "Initiating rollover")
        self.phase = RolloverPhase.CREATING
        self._job = RolloverJob(partial(self._files.create_next, wall))
        self._log.roll_due = True
        return False

    def _on_created(self, wall: int) -> bool:
        self.phase = RolloverPhase.COPYING
        self.copy = self._copied = LiveCopy(self._files, self._log.state)
        self._synced_bytes, self._began = 0, self._log.tail.positions()
        return True

    def _copy(self, wall: int) -> bool:
        """Copy one slice; after the last one, write to both sets from now on."""
        log, files, copy = self._log, self._files, self._copied
        if copy is None or log.closed:
            return self._abandon(wall)
        if log.tail.unwritten_bytes:  # not readable from DATA yet
            return False
        try:
            done = copy.copy_slice(SLICE_RECORDS, SLICE_BYTES)
            written = sum(files.next_set.positions())
            if self._job is None and written - self._synced_bytes >= SYNC_BYTES:
                self._syncing_bytes = written
                self._job = RolloverJob(files.next_set.sync)
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
    def is_late(self) -> bool:
        """True if the files fill faster than the copy proceeds, or only records newer than its start remain."""
        if self._copied is None:
            return False
        if self._copied.progress == 1.0:
            return True
        used = max((end - began) / max(1, size - began) for end, began, size in zip(
            self._log.tail.positions(), self._began, self._files.sizes.as_tuple, strict=True))
        return used > self._copied.progress

    def _next_synced(self, wall: int) -> bool:
        self._synced_bytes = self._syncing_bytes
        return True

    def _join(self, wall: int) -> None:
        """End both sets with a sync point of the same PSN; from now on both receive the same records."""
        self._mark = _write_end_points(self._log, wall, announced=True)
        self.base = self._log.state.lease, self._log.state.sequence
        self.copy, self._next = None, MirroredSet(self._log)
        self._log.mirror = self._mirror
        self._files.sync_both()
        self.phase = RolloverPhase.MARKING
        self._job = RolloverJob(partial(self._files.mark_next_complete, self._mark))

    def _mirror(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        try:
            if self._next is not None:
                self._next.append(journal, data, qlist)
        except OSError as error:
            _report_failure(self._log, "rollover failed", error, RETRY_EARLY_S)
            self._process(RolloverEvent.UNMIRRORED, self._wall)

    def _on_marked(self, wall: int) -> bool:
        self.phase = RolloverPhase.SWITCHING
        return True

    def _switch(self, wall: int) -> bool:
        log, copy = self._log, self._copied
        if not log.write_rest() and not log.closed:
            return False
        joined = self._next
        if copy is None or joined is None or log.closed:  # a batch did not reach the next set
            return self._abandon(wall)
        self._files.switch_to_next()
        self.relocation = Relocation(log.state, copy, joined.last_key_before, log.state.last_key, joined.data_shift)
        self._clear_copy()
        self._on_switched()
        _log_usage(self._log, "ROLLOVER COMPLETE")
        self.phase = RolloverPhase.RETIRING
        self._job = RolloverJob(partial(self._files.archive_old, False))
        return True

    def _update_offsets(self, wall: int) -> bool:
        if self.relocation is not None and self.relocation.update(UPDATED_RECORDS):
            self.relocation = None
        self._on_retired(wall)
        return self.relocation is not None

    def _on_retired(self, wall: int) -> bool:
        if self._job is None and self.relocation is None:
            self.phase = RolloverPhase.IDLE
        return False

    def _cancel_job(self) -> bool:
        """Cancel the job, if there is one; False if it has failed."""
        job, self._job = self._job, None
        if job is not None:
            job.cancel()
        return job is None or not job.failed

    # ---- abandonment ---------------------------------------------------------------------------------------------

    def _clear_copy(self) -> None:
        self.copy = self._copied = self._next = self._log.mirror = None

    def _abandon(self, wall: int) -> bool:
        """Remove the next set; the old one stays."""
        self._cancel_job()
        self._clear_copy()
        self.phase = RolloverPhase.IDLE
        self._files.discard_next()
        self._not_early_before = wall + RETRY_EARLY_S
        return False

    def _fail_at_once(self, error: OSError, wall: int, what: str = "rollover failed") -> bool:
        """Report the failure of a rollover in one step and abandon it."""
        _report_failure(self._log, what, error, RETRY_S)
        self._not_before = wall + RETRY_S
        return self._abandon(wall)

    # ---- in one step ---------------------------------------------------------------------------------------------

    def _finish(self, wall: int) -> bool:
        """Complete a rollover in one step, from its present phase on."""
        phase, state = self.phase, self._log.state
        if phase in (RolloverPhase.COPYING, RolloverPhase.MARKING):
            done = 100 if self._copied is None else round(100 * self._copied.progress)
            self._log.reports.alarm(
                alarms.ROLLOVER_BLOCKING,
                f": a file is full before its live records were copied in slices ({done} %):"
                " the rest is copied in one step. Larger files avoid this.")
        clean = self._cancel_job()
        if phase in (RolloverPhase.IDLE, RolloverPhase.CREATING):
            return self.rewrite(wall, damaged=False, announced=True)
        copy, joined = self._copied, self._next
        if not clean or copy is None:
            return self._abandon(wall)
        if phase is RolloverPhase.COPYING:
            return self._complete(copy, wall, damaged=False, announced=True)
        if joined is None:
            return self._abandon(wall)
        try:
            if phase is RolloverPhase.MARKING:
                self._files.mark_next_complete(self._mark)
            self._files.next_set.sync()
        except OSError as error:
            return self._fail_at_once(error, wall)
        self._files.switch_to_next()
        self._files.archive_old(False)
        self._complete_switch(Relocation(state, copy, joined.last_key_before, state.last_key, joined.data_shift))
        return True

    def rewrite(self, wall: int, damaged: bool, announced: bool) -> bool:
        """Copy the live records to a new set; `announced`: append ROLLOVER to the old one. False if the old set stays."""
        if self.phase is not RolloverPhase.CREATING:  # logged already
            _log_usage(self._log, "Initiating rollover")
        try:
            if not self._files.has_next:
                self._files.create_next(wall)
        except OSError as error:
            return self._fail_at_once(error, wall, "no new file set")
        return self._complete(LiveCopy(self._files, self._log.state), wall, damaged, announced)

    def _complete(self, copy: LiveCopy, wall: int, damaged: bool, announced: bool) -> bool:
        """Copy the remaining records and switch to the next set."""
        state = self._log.state
        try:
            copy.copy_rest()
            mark = _write_end_points(self._log, wall, announced)
            self.base = state.lease, state.sequence
            self._files.complete_rollover(mark, damaged)
        except OSError as error:
            return self._fail_at_once(error, wall)
        self._complete_switch(Relocation(state, copy, state.last_key, state.last_key, 0))
        return True

    def _complete_switch(self, relocation: Relocation) -> None:
        """Update all offsets; the next set is current and durable."""
        relocation.update(1 << 62)
        self._clear_copy()
        self.relocation = None
        self.phase = RolloverPhase.IDLE
        self._on_switched()
        _log_usage(self._log, "ROLLOVER COMPLETE")
        self._log.gate.mark_all_durable()

    def _retire_now(self, wall: int) -> bool:
        self._cancel_job()
        self._files.archive_old(False)
        if self.relocation is not None:
            self.relocation.update(1 << 62)
        self.relocation = None
        self.phase = RolloverPhase.IDLE
        return True

    def _restart(self, wall: int) -> bool:
        """Complete the last rollover and roll over again, because a file is full again."""
        self._retire_now(wall)
        return self._finish(wall)


def _log_usage(log: PartitionLog, what: str) -> None:
    """Log the used bytes of the files and the number of live records."""
    sizes, (journal, data, qlist) = log.files.sizes, log.tail.positions()
    log.reports.info(f"{what}: JOURNAL {journal} of {sizes.journal} bytes, DATA {data} of {sizes.data} bytes, QLIST "
                     f"{qlist} of {sizes.qlist} bytes; {len(log.state.live)} live records")


def _report_failure(log: PartitionLog, what: str, error: OSError, retry_s: int) -> None:
    log.reports.on_write_failed(error)
    log.reports.alarm(alarms.ROLLOVER_FAILED, f": {what}: {error}. Next attempt in {retry_s} s at the earliest.")


def _write_end_points(log: PartitionLog, wall: int, announced: bool) -> int:
    """Append a sync point to the copied records, with the PSN of the last record of the old set; return its offset."""
    files, state = log.files, log.state
    if announced and log.is_primary:
        log.append_sync_point(SyncPoint.ROLLOVER, wall)
        if not log.write(awaited=False):
            raise OSError(errno.EIO, "the ROLLOVER record is not written yet")
    mark, data, qlist = files.next_set.positions()
    if not state.lease:
        return 0
    point = pack_sync_point(state.sequence, state.lease, wall, SyncPoint.REGULAR, log.primary_id, data, qlist)
    files.next_set.append([point], [], [])
    return mark


def _with_shifted_field(record: bytes, offset: int, shift: int) -> bytes:
    """Return a record with `shift` added to its 32-bit field at `offset`."""
    value = int.from_bytes(record[offset:offset + 4], "big") + shift
    return record[:offset] + value.to_bytes(4, "big") + record[offset + 4:]


def _ignore(roll: Rollover, wall: int) -> bool:
    return False


_IGNORED: dict[RolloverEvent, Cell[RolloverPhase]] = dict.fromkeys(RolloverEvent, to(_ignore))
_ABANDONED = dict.fromkeys((RolloverEvent.FAILED, RolloverEvent.ABANDON, RolloverEvent.UNMIRRORED),
                           to(Rollover._abandon, RolloverPhase.IDLE))

TABLE = table(RolloverPhase, RolloverEvent, {
    RolloverPhase.IDLE: _IGNORED | {
        RolloverEvent.STEP: to(Rollover._begin_if_due, RolloverPhase.CREATING), RolloverEvent.FINISH: to(Rollover._finish),
        RolloverEvent.BEGIN: to(Rollover._begin, RolloverPhase.CREATING)},
    RolloverPhase.CREATING: _IGNORED | _ABANDONED | {
        RolloverEvent.DONE: to(Rollover._on_created, RolloverPhase.COPYING),
        RolloverEvent.FINISH: to(Rollover._finish, RolloverPhase.IDLE)},
    RolloverPhase.COPYING: _IGNORED | _ABANDONED | {
        RolloverEvent.STEP: to(Rollover._copy, RolloverPhase.MARKING, RolloverPhase.IDLE),
        RolloverEvent.DONE: to(Rollover._next_synced),
        RolloverEvent.FINISH: to(Rollover._finish, RolloverPhase.IDLE)},
    RolloverPhase.MARKING: _IGNORED | _ABANDONED | {
        RolloverEvent.DONE: to(Rollover._on_marked, RolloverPhase.SWITCHING),
        RolloverEvent.FINISH: to(Rollover._finish, RolloverPhase.IDLE)},
    RolloverPhase.SWITCHING: _IGNORED | _ABANDONED | {
        RolloverEvent.STEP: to(Rollover._switch, RolloverPhase.RETIRING, RolloverPhase.IDLE),
        RolloverEvent.FINISH: to(Rollover._finish, RolloverPhase.IDLE)},
    RolloverPhase.RETIRING: _IGNORED | {
        RolloverEvent.STEP: to(Rollover._update_offsets, RolloverPhase.IDLE),
        RolloverEvent.DONE: to(Rollover._on_retired, RolloverPhase.IDLE),
        RolloverEvent.FAILED: to(Rollover._on_retired, RolloverPhase.IDLE),
        RolloverEvent.FINISH: to(Rollover._restart, RolloverPhase.IDLE),
        RolloverEvent.ABANDON: to(Rollover._retire_now, RolloverPhase.IDLE)},
})
