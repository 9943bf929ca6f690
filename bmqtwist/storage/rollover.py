"""Rollover: the live records of a partition move into a new file set while it goes on taking records.

A small partition moves in one step, at the moment when a record does not fit. A large one begins early and moves in
slices between its turns; whatever waits for the disk is a `Job` for another thread:

    RESTING     until a file is so full that a rollover is worth it
    CREATING    job: the next file set
    COPYING     slices of live records (compaction.LiveCopy); jobs: a sync of the next set now and then
                nothing is left: a sync point of kind ROLLOVER into the old set, one with the same PSN into the next set
    MARKING     every batch is written into both sets; job: the next set is synced and marked as complete
    SWITCHING   the next set becomes the current one when no record waits to be written
    RETIRING    job: the old set is archived; slices: messages learn where they are now (compaction.Moved)

Until the mark is safe the old set is right after a crash, from then on both are: they hold the same records. If a file is
full before a copy is through, the rest of it is done in one step, too.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from enum import Enum
from functools import partial
from threading import Lock

from bmqtwist.machine import Cell, TransitionLog, check, table, to
from bmqtwist.storage.compaction import LiveCopy, Moved
from bmqtwist.storage.layout import JOURNAL_OP_RECORD, MESSAGE_RECORD, QUEUE_OP_RECORD
from bmqtwist.storage.partition_log import BEGIN_PERCENT, PartitionLog
from bmqtwist.storage.records import TYPE_SHIFT, QueueOp, RecordType, SyncPoint, pack_sync_point
from bmqtwist.storage.store import SYNC_POINT_RESERVE_BYTES

REPLICA_BEGIN_PERCENT = 85  # of a replica, which repeats what its primary does, whose files are as full as its own
GAIN_PERCENT = 10  # of that file must be garbage then
SMALL_RECORDS, SMALL_BYTES = 8192, 4 << 20  # live records and bytes of DATA up to which one step is short enough
SLICE_RECORDS, SLICE_BYTES = 512, 1 << 19  # of one slice of a copy
SETTLED_RECORDS = 4096  # of one slice of RETIRING
SYNC_BYTES = 16 << 20  # written to the next set before it is synced once more
RETRY_S = 5  # between two tries in one step when the disk does not take a new file set
RETRY_EARLY_S = 60  # between two tries in slices

_MESSAGE_DATA = MESSAGE_RECORD.offset("data_dwords")
_QUEUE_OP_QLIST = QUEUE_OP_RECORD.offset("qlist_words")  # behind the operation
_JOURNAL_OP_DATA, _JOURNAL_OP_QLIST = JOURNAL_OP_RECORD.offset("data_dwords"), JOURNAL_OP_RECORD.offset("qlist_words")


class Phase(Enum):
    """How far a rollover is."""

    RESTING = "resting"
    CREATING = "creating"
    COPYING = "copying"
    MARKING = "marking"
    SWITCHING = "switching"
    RETIRING = "retiring"


class RolloverEvent(Enum):
    """What happens to a rollover."""

    STEP = "there is time for a slice"
    DONE = "the job was done"
    FAILED = "the job failed"
    UNMIRRORED = "a batch cannot be written into the next set"
    FINISH = "there is no room left: whatever it takes, now"
    ABANDON = "the partition stops"
    BEGIN = "an operator wants one"


class Job:
    """Blocking work for another thread. Nothing is done once it was cancelled; `cancel` waits for a `run` in progress."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._guard = Lock()
        self._cancelled = False
        self.taken = self.failed = False

    def run(self) -> None:
        """Do it; OSError if the disk fails."""
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
    """The next file set while every batch is written into both: how far its DATA (dwords) and QLIST (words) records lie from
    those of the present one, and the live key of the last record before."""

    def __init__(self, log: PartitionLog) -> None:
        self._files = log.files
        self.joined = log.state.last_key
        _, data, qlist = log.tail.positions()
        _, next_data, next_qlist = log.files.coming.positions()
        self.data_shift, self._qlist_shift = next_data - data >> 3, next_qlist - qlist >> 2

    def append(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """A batch was written into the present set. OSError."""
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
    """The rollovers of one partition, one after the other. `on_moved`: the next file set is the current one.

    copy: notes what dies while it runs. moved: tells the DATA offsets of messages that do not know their own yet.
    """

    def __init__(self, log: PartitionLog, on_moved: Callable[[], None]) -> None:
        self._log, self._files, self._on_moved = log, log.files, on_moved
        self.phase = Phase.RESTING
        self.transitions = TransitionLog()  # times are epoch seconds
        self.copy: LiveCopy | None = None
        self.moved: Moved | None = None
        self._job: Job | None = None  # the one in progress
        self._copied: LiveCopy | None = None  # from COPYING to SWITCHING
        self._next: NextSet | None = None  # from MARKING to SWITCHING, unless a batch could not be written into it
        self._synced_bytes = self._syncing_bytes = 0  # of the next set: at the last sync, and at the one under way
        self._mark = 0
        self._began = (0, 0, 0)  # bytes in use of JOURNAL, DATA, QLIST when the copy began
        self.ended_at = (0, 0)  # PSN of the last record that was copied: from there on the next set holds every record
        self._wall = 0  # of the last step, epoch seconds
        self._not_before = self._not_early_before = 0  # epoch seconds: when a rollover that failed may be tried again

    # ---- events --------------------------------------------------------------------------------------------------

    def _on(self, event: RolloverEvent, wall: int) -> bool:
        before = self.phase
        answer: bool = TABLE[before][event].action(self, wall)
        if self.phase is not before:
            self.transitions.note(wall, before.value, self.phase.value, event.value, event.name)
        check(TABLE, before, event, self.phase)
        return answer

    def step(self, wall: int) -> bool:
        """Do one slice of what is to be done, when the records of the turn are written; True: there is more."""
        self._wall = wall
        more = self._on(RolloverEvent.STEP, wall)
        self._log.roll_due = self.phase is not Phase.RESTING
        return more

    def take_job(self) -> Job | None:
        """The job that nobody has taken yet: to be run, then to be reported to `done` or `failed`."""
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
        """Roll over within this call, whatever it takes; False: the old set stays."""
        if wall < self._not_before:
            return False
        self._wall = wall
        return self._log.write_rest() and self._on(RolloverEvent.FINISH, wall)

    def begin(self, wall: int) -> None:
        """Roll over in slices, however full the files are; one that is under way goes on."""
        self._on(RolloverEvent.BEGIN, wall)

    def stop(self, wall: int) -> None:
        """The partition stops: what was begun is forgotten."""
        self._on(RolloverEvent.ABANDON, wall)

    @property
    def small(self) -> bool:
        """Is so little live that one step is short enough?"""
        state = self._log.state
        return len(state.live) <= SMALL_RECORDS and state.outstanding()[1] <= SMALL_BYTES

    # ---- in slices -----------------------------------------------------------------------------------------------

    def _watch(self, wall: int) -> bool:
        """Begin if it is time to, and worth it."""
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
        """One slice; when nothing is left and most of the next set is synced, both sets are written."""
        log, files, copy = self._log, self._files, self._copied
        if copy is None or log.broken:
            return self._gave_up(wall)
        if log.tail.unwritten_bytes:  # they cannot be read back yet
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
            return self._gave_up(wall)
        return False

    @property
    def late(self) -> bool:
        """Do the files fill faster than the copy gets on? Or is it at its end, where it runs after the last records?"""
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
        """Both sets end with a sync point of one PSN; from here on they get the same records."""
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
        if copy is None or joined is None or log.broken:  # that batch did not go into the next set
            return self._gave_up(wall)
        self._files.switch_next()
        self.moved = Moved(log.state, copy, joined.joined, log.state.last_key, joined.data_shift)
        self._forget()
        self._on_moved()
        _inform(self._log, "ROLLOVER COMPLETE")
        self.phase = Phase.RETIRING
        self._job = Job(partial(self._files.retire_old, False))
        return True

    def _settle(self, wall: int) -> bool:
        if self.moved is not None and self.moved.settle(SETTLED_RECORDS):
            self.moved = None
        self._retired(wall)
        return self.moved is not None

    def _retired(self, wall: int) -> bool:
        if self._job is None and self.moved is None:
            self.phase = Phase.RESTING
        return False

    def _cancel_job(self) -> bool:
        """End the job, if there is one; False: it has failed."""
        job, self._job = self._job, None
        if job is not None:
            job.cancel()
        return job is None or not job.failed

    # ---- giving up -----------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self.copy = self._copied = self._next = self._log.mirror = None

    def _gave_up(self, wall: int) -> bool:
        """Whatever there is of a next set goes; the old one stays."""
        self._cancel_job()
        self._forget()
        self.phase = Phase.RESTING
        self._files.abandon_roll()
        self._not_early_before = wall + RETRY_EARLY_S
        return False

    def _fail_at_once(self, error: OSError, wall: int, what: str = "rollover failed") -> bool:
        """Something of a rollover in one step failed."""
        _report_failure(self._log, what, error, RETRY_S)
        self._not_before = wall + RETRY_S
        return self._gave_up(wall)

    # ---- in one step ---------------------------------------------------------------------------------------------

    def _finish(self, wall: int) -> bool:
        """The rest of a rollover, or all of it."""
        phase, state = self.phase, self._log.state
        if phase in (Phase.COPYING, Phase.MARKING):
            done = 100 if self._copied is None else round(100 * self._copied.progress)
            self._log.reports.alarm("ROLLOVER", f": a file is full before its live records were copied in slices ({done} %):"
                                                " the rest is done at once. Larger files would leave more time.")
        clean = self._cancel_job()
        if phase in (Phase.RESTING, Phase.CREATING):
            return self.rewrite(wall, damaged=False, announced=True)
        copy, joined = self._copied, self._next
        if not clean or copy is None:
            return self._gave_up(wall)
        if phase is Phase.COPYING:
            return self._complete(copy, wall, damaged=False, announced=True)
        if joined is None:
            return self._gave_up(wall)
        try:
            if phase is Phase.MARKING:
                self._files.mark_next(self._mark)
            self._files.coming.sync()
        except OSError as error:
            return self._fail_at_once(error, wall)
        self._files.switch_next()
        self._files.retire_old(False)
        self._arrived(Moved(state, copy, joined.joined, state.last_key, joined.data_shift))
        return True

    def rewrite(self, wall: int, damaged: bool, announced: bool) -> bool:
        """The live records into a new set; `announced`: by a ROLLOVER record in the old one. False: the old set stays."""
        if self.phase is not Phase.CREATING:  # that one has been told of
            _inform(self._log, "Initiating rollover")
        try:
            if not self._files.rolling:
                self._files.begin_roll(wall)
        except OSError as error:
            return self._fail_at_once(error, wall, "no new file set")
        return self._complete(LiveCopy(self._files, self._log.state), wall, damaged, announced)

    def _complete(self, copy: LiveCopy, wall: int, damaged: bool, announced: bool) -> bool:
        """The rest of a copy, and everything behind it."""
        state = self._log.state
        try:
            copy.run()
            mark = _end_both(self._log, wall, announced)
            self.ended_at = state.lease, state.sequence
            self._files.finish_roll(mark, damaged)
        except OSError as error:
            return self._fail_at_once(error, wall)
        self._arrived(Moved(state, copy, state.last_key, state.last_key, 0))
        return True

    def _arrived(self, moved: Moved) -> None:
        """The next set is the current one, and synced as a whole."""
        moved.settle(1 << 62)
        self._forget()
        self.moved = None
        self.phase = Phase.RESTING
        self._on_moved()
        _inform(self._log, "ROLLOVER COMPLETE")
        self._log.gate.all_durable()

    def _retire_now(self, wall: int) -> bool:
        self._cancel_job()
        self._files.retire_old(False)
        if self.moved is not None:
            self.moved.settle(1 << 62)
        self.moved = None
        self.phase = Phase.RESTING
        return True

    def _again(self, wall: int) -> bool:
        """Full before the last rollover was through."""
        self._retire_now(wall)
        return self._finish(wall)


def _inform(log: PartitionLog, what: str) -> None:
    """A line with what is in the files."""
    sizes, (journal, data, qlist) = log.files.sizes, log.tail.positions()
    log.reports.inform(f"{what}: JOURNAL {journal} of {sizes.journal} bytes, DATA {data} of {sizes.data} bytes, QLIST "
                       f"{qlist} of {sizes.qlist} bytes; {len(log.state.live)} live records")


def _report_failure(log: PartitionLog, what: str, error: OSError, retry_s: int) -> None:
    log.reports.alarm("ROLLOVER", f": {what}: {error}. Next try in {retry_s} s at the earliest.")


def _end_both(log: PartitionLog, wall: int, announced: bool) -> int:
    """A sync point behind the copied records, with the PSN of the last record of the old set; its offset."""
    files, state = log.files, log.state
    if announced and log.leading:
        log.append_sync_point(SyncPoint.ROLLOVER, wall)
        if not log.write(matters=False):
            raise OSError(errno.EIO, "its ROLLOVER record waits to be written")
    mark, data, qlist = files.coming.positions()
    if not state.lease:
        return 0
    point = pack_sync_point(state.sequence, state.lease, wall, SyncPoint.REGULAR, log.primary_id, data, qlist)
    files.coming.append([point], [], [])
    return mark


def _added(record: bytes, offset: int, shift: int) -> bytes:
    """A record with `shift` added to its 32-bit field at `offset`."""
    value = int.from_bytes(record[offset:offset + 4], "big") + shift
    return record[:offset] + value.to_bytes(4, "big") + record[offset + 4:]


def _ignore(roll: Rollover, wall: int) -> bool:
    return False


_IGNORED: dict[RolloverEvent, Cell[Phase]] = dict.fromkeys(RolloverEvent, to(_ignore))
_GIVEN_UP = dict.fromkeys((RolloverEvent.FAILED, RolloverEvent.ABANDON, RolloverEvent.UNMIRRORED),
                          to(Rollover._gave_up, Phase.RESTING))

TABLE = table(Phase, RolloverEvent, {
    Phase.RESTING: _IGNORED | {
        RolloverEvent.STEP: to(Rollover._watch, Phase.CREATING), RolloverEvent.FINISH: to(Rollover._finish),
        RolloverEvent.BEGIN: to(Rollover._begin, Phase.CREATING)},
    Phase.CREATING: _IGNORED | _GIVEN_UP | {
        RolloverEvent.DONE: to(Rollover._created, Phase.COPYING),
        RolloverEvent.FINISH: to(Rollover._finish, Phase.RESTING)},
    Phase.COPYING: _IGNORED | _GIVEN_UP | {
        RolloverEvent.STEP: to(Rollover._copy, Phase.MARKING, Phase.RESTING), RolloverEvent.DONE: to(Rollover._next_synced),
        RolloverEvent.FINISH: to(Rollover._finish, Phase.RESTING)},
    Phase.MARKING: _IGNORED | _GIVEN_UP | {
        RolloverEvent.DONE: to(Rollover._marked, Phase.SWITCHING),
        RolloverEvent.FINISH: to(Rollover._finish, Phase.RESTING)},
    Phase.SWITCHING: _IGNORED | _GIVEN_UP | {
        RolloverEvent.STEP: to(Rollover._switch, Phase.RETIRING, Phase.RESTING),
        RolloverEvent.FINISH: to(Rollover._finish, Phase.RESTING)},
    Phase.RETIRING: _IGNORED | {
        RolloverEvent.STEP: to(Rollover._settle, Phase.RESTING), RolloverEvent.DONE: to(Rollover._retired, Phase.RESTING),
        RolloverEvent.FAILED: to(Rollover._retired, Phase.RESTING), RolloverEvent.FINISH: to(Rollover._again, Phase.RESTING),
        RolloverEvent.ABANDON: to(Rollover._retire_now, Phase.RESTING)},
})
