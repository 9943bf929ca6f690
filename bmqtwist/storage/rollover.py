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
from typing import Protocol

from bmqtwist.storage.compaction import LiveCopy, Moved
from bmqtwist.storage.layout import JOURNAL_OP_RECORD, MESSAGE_RECORD, QUEUE_OP_RECORD
from bmqtwist.storage.long_dict import RisingDict
from bmqtwist.storage.records import TYPE_SHIFT, QueueOp, RecordType, SyncPoint, pack_sync_point
from bmqtwist.storage.state import Live, PartitionState
from bmqtwist.storage.store import SYNC_POINT_RESERVE_BYTES, PartitionFiles

BEGIN_PERCENT = 70  # used part of a file at which a large partition begins to roll over
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

    STEP = "step"  # there is time for a slice
    DONE = "done"  # the job was done
    FAILED = "failed"  # the job failed
    FINISH = "finish"  # there is no room left: whatever it takes, now
    ABANDON = "abandon"  # the partition stops
    BEGIN = "begin"  # an operator wants one


# What is done with which event in which phase: names of methods of `Rollover`.
TABLE: dict[Phase, dict[RolloverEvent, str]] = {
    phase: dict(zip(RolloverEvent, actions.split(), strict=True)) for phase, actions in {
        # STEP            DONE            FAILED          FINISH          ABANDON         BEGIN
        Phase.RESTING: "_watch          _ignore         _ignore         _at_once        _ignore         _begin",
        Phase.CREATING: "_ignore         _created        _gave_up        _at_once        _gave_up        _ignore",
        Phase.COPYING: "_copy           _next_synced    _gave_up        _copy_the_rest  _gave_up        _ignore",
        Phase.MARKING: "_ignore         _marked         _gave_up        _mark_now       _gave_up        _ignore",
        Phase.SWITCHING: "_switch         _ignore         _ignore         _switch_now     _gave_up        _ignore",
        Phase.RETIRING: "_settle         _retired        _retired        _again          _retire_now     _ignore",
    }.items()}


class RolledPartition(Protocol):
    """What a rollover needs of its partition (`storage.partition.Partition`)."""

    files: PartitionFiles
    state: PartitionState
    primary_id: int  # the node whose sync points these are
    leading: bool  # this node writes the partition; a replica gives out no PSNs
    roll_due: bool  # a file is so full that a rollover may be worth it, or one is under way

    @property
    def live(self) -> RisingDict[Live]:
        """The records that are needed."""

    @property
    def available(self) -> bool:
        """Are records taken?"""

    @property
    def broken(self) -> bool:
        """Is nothing taken until a restart?"""

    @property
    def batch_waits(self) -> bool:
        """Are there records that are not written?"""

    @property
    def unwritten_bytes(self) -> int:
        """Of messages that are not written."""

    def positions(self) -> tuple[int, int, int]:
        """Bytes of JOURNAL, DATA, QLIST in use."""

    def outstanding(self) -> tuple[int, int, int]:
        """Bytes of them that are needed."""

    def may_roll(self, needed: tuple[int, int, int]) -> bool:
        """Would a rollover leave enough of every file free?"""

    def write_batch(self, matters: bool = True) -> bool:
        """Write what waits."""

    def append_sync_point(self, kind: SyncPoint, wall: int) -> None:
        """A sync point joins the batch."""

    def moved_to_next(self) -> None:
        """The next file set is the current one."""

    def all_is_durable(self) -> None:
        """Everything written so far was synced."""

    def inform(self, text: str) -> None:
        """Something for the log."""

    def alarm(self, category: str, text: str) -> None:
        """Something an operator must know."""


class Job:
    """Blocking work for another thread. Nothing is done once it was cancelled; `cancel` waits for a `run` under way."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._guard = Lock()
        self._cancelled = False
        self.failed = False

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
        """It is not wanted any more."""
        with self._guard:
            self._cancelled = True


class Rollover:
    """The rollovers of one partition, one after the other.

    copy: notes what dies while it runs. moved: tells the DATA offsets of messages that do not know their own yet.
    mirrors: every batch goes to `mirror` once it is written.
    """

    def __init__(self, partition: RolledPartition) -> None:
        self._partition = partition
        self.phase = Phase.RESTING
        self.copy: LiveCopy | None = None
        self.moved: Moved | None = None
        self.mirrors = False
        self._job: Job | None = None
        self._offered: Job | None = None  # the same until somebody has taken it
        self._copied: LiveCopy | None = None  # from COPYING to SWITCHING
        self._synced_bytes = self._syncing_bytes = 0  # of the next set: at the last sync, and at the one under way
        self._joined = self._mark = self._data_shift = self._qlist_shift = 0
        self._began = (0, 0, 0)  # bytes in use of JOURNAL, DATA, QLIST when the copy began
        self.ended_at = (0, 0)  # PSN of the last record that was copied: from there on the next set holds every record
        self._wall = 0  # of the last step, epoch seconds
        self._not_before = self._not_early_before = 0  # epoch seconds: when a rollover that failed may be tried again

    # ---- events --------------------------------------------------------------------------------------------------

    def _on(self, event: RolloverEvent, wall: int) -> bool:
        answer: bool = getattr(self, TABLE[self.phase][event])(wall)
        return answer

    def step(self, wall: int) -> bool:
        """Do one slice of what is to be done, when the records of the turn are written; True: there is more."""
        self._wall = wall
        more = self._on(RolloverEvent.STEP, wall)
        self._partition.roll_due = self.phase is not Phase.RESTING
        return more

    def take_job(self) -> Job | None:
        """The job that nobody has taken yet: to be run, then to be reported to `done` or `failed`."""
        job, self._offered = self._offered, None
        return job

    def done(self, job: Job, wall: int) -> None:
        """A job has been run."""
        if job is self._job:
            self._job = None
            self._on(RolloverEvent.DONE, wall)

    def failed(self, job: Job, error: OSError, wall: int) -> None:
        """A job has failed."""
        if job is self._job:
            self._job = None
            self._said(f"{self.phase.value} a file set", error, RETRY_EARLY_S)
            self._on(RolloverEvent.FAILED, wall)

    def finish(self, wall: int) -> bool:
        """Roll over within this call, whatever it takes; False: the old set stays."""
        if wall < self._not_before:
            return False
        self._wall = wall
        if self._partition.batch_waits and not self._partition.write_batch():
            return False
        return self._on(RolloverEvent.FINISH, wall)

    @property
    def small(self) -> bool:
        """Is so little live that one step is short enough?"""
        return len(self._partition.live) <= SMALL_RECORDS and self._partition.outstanding()[1] <= SMALL_BYTES

    def begin(self, wall: int) -> None:
        """Roll over in slices, however full the files are; one that is under way goes on."""
        self._on(RolloverEvent.BEGIN, wall)

    def stop(self, wall: int) -> None:
        """The partition stops: what was begun is forgotten."""
        self._on(RolloverEvent.ABANDON, wall)

    def _begins(self) -> None:
        self._partition.inform(f"Initiating rollover: {self._filling()}")

    def _ended(self) -> None:
        self._partition.inform(f"ROLLOVER COMPLETE: {self._filling()}")

    def _filling(self) -> str:
        sizes, (journal, data, qlist) = self._partition.files.sizes, self._partition.positions()
        return (f"JOURNAL {journal} of {sizes.journal} bytes, DATA {data} of {sizes.data} bytes, QLIST {qlist} of "
                f"{sizes.qlist} bytes; {len(self._partition.live)} live records")

    def _ignore(self, wall: int) -> bool:
        return False

    def _said(self, what: str, error: OSError, retry_s: int) -> None:
        self._partition.alarm("ROLLOVER", f"{what}: {error}. Next try in {retry_s} s at the earliest.")

    def _ask(self, action: Callable[[], None]) -> None:
        self._job = self._offered = Job(action)

    def _cancel(self) -> bool:
        """Get rid of the job, if there is one; False: it has failed."""
        job, self._job, self._offered = self._job, None, None
        if job is not None:
            job.cancel()
        return job is None or not job.failed

    # ---- in slices -----------------------------------------------------------------------------------------------

    def _watch(self, wall: int) -> bool:
        """Begin if it is time to, and worth it."""
        partition = self._partition
        sizes, begin = partition.files.sizes, BEGIN_PERCENT if partition.leading else REPLICA_BEGIN_PERCENT
        gain = any(end * 100 >= size * begin and (end - keeps) * 100 >= size * GAIN_PERCENT
                   for end, keeps, size in zip(partition.positions(), partition.outstanding(),
                                               (sizes.journal, sizes.data, sizes.qlist), strict=True))
        if self.small or not gain or wall < self._not_early_before:
            return False
        if not partition.available or not partition.may_roll((0, 0, 0)):
            return False
        return self._begin(wall)

    def _begin(self, wall: int) -> bool:
        self._begins()
        self.phase = Phase.CREATING
        self._ask(partial(self._partition.files.begin_roll, wall))
        self._partition.roll_due = True
        return False

    def _created(self, wall: int) -> bool:
        self.phase = Phase.COPYING
        self.copy = self._copied = LiveCopy(self._partition.files, self._partition.state)
        self._synced_bytes, self._began = 0, self._partition.positions()
        return True

    def _copy(self, wall: int) -> bool:
        """One slice; when nothing is left and most of the next set is synced, both sets are written."""
        partition, copy = self._partition, self._copied
        if copy is None or partition.broken:
            return self._gave_up(wall)
        if partition.unwritten_bytes:  # they cannot be read back yet
            return False
        try:
            done = copy.slice(SLICE_RECORDS, SLICE_BYTES)
            written = sum(partition.files.next_positions())
            if self._job is None and written - self._synced_bytes >= SYNC_BYTES:
                self._syncing_bytes = written
                self._ask(partition.files.sync_next)
            if not done:
                return True
            room = partition.positions()[0] + SYNC_POINT_RESERVE_BYTES <= partition.files.sizes.journal
            if room and self._job is None and (not partition.batch_waits or partition.write_batch()):
                self._join(wall)
        except OSError as error:
            return self._fail(error)
        return False

    @property
    def late(self) -> bool:
        """Do the files fill faster than the copy gets on? Or is it at its end, where it runs after the last records?"""
        if self._copied is None:
            return False
        if self._copied.progress == 1.0:
            return True
        sizes = self._partition.files.sizes
        used = max((end - began) / max(1, size - began) for end, began, size in zip(
            self._partition.positions(), self._began, (sizes.journal, sizes.data, sizes.qlist), strict=True))
        return used > self._copied.progress

    def _next_synced(self, wall: int) -> bool:
        self._synced_bytes = self._syncing_bytes
        return True

    def _join(self, wall: int) -> None:
        """Both sets end with a sync point of one PSN; from here on they get the same records."""
        partition, files = self._partition, self._partition.files
        self._mark = self._end_both(wall, announced=True)
        self.copy, self.mirrors = None, True
        self._joined = partition.state.last_key
        _, data, qlist = partition.positions()
        _, next_data, next_qlist = files.next_positions()
        self._data_shift, self._qlist_shift = next_data - data >> 3, next_qlist - qlist >> 2
        files.join_next()
        self.phase = Phase.MARKING
        self._ask(partial(files.mark_next, self._mark))

    def mirror(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """A batch was written into the old set."""
        files = self._partition.files
        try:
            files.append_next([self._shifted(record) for record in journal], data, qlist)
            sizes = files.sizes
            if any(end > size for end, size in zip(files.next_positions(), (sizes.journal, sizes.data, sizes.qlist),
                                                   strict=True)):
                raise OSError(errno.ENOSPC, "the next file set is full")
        except OSError as error:
            self._fail(error)

    def _shifted(self, record: bytes) -> bytes:
        """A record with the offsets of the next set."""
        kind = int.from_bytes(record[:8], "big") >> TYPE_SHIFT
        if kind == RecordType.MESSAGE:
            return _added(record, _MESSAGE_DATA, self._data_shift)
        if kind == RecordType.QUEUE_OP and record[_QUEUE_OP_QLIST - 1] in (QueueOp.CREATION, QueueOp.ADDITION):
            return _added(record, _QUEUE_OP_QLIST, self._qlist_shift)
        if kind == RecordType.JOURNAL_OP:
            return _added(_added(record, _JOURNAL_OP_DATA, self._data_shift), _JOURNAL_OP_QLIST, self._qlist_shift)
        return record

    def _marked(self, wall: int) -> bool:
        self.phase = Phase.SWITCHING
        return True

    def _switch(self, wall: int) -> bool:
        """The next set becomes the current one."""
        partition = self._partition
        if partition.batch_waits and not partition.write_batch() and not partition.broken:
            return False
        if self._copied is None or not self.mirrors or partition.broken:  # that batch did not go into the next set
            return self._gave_up(wall)
        partition.files.switch_next()
        self.moved = Moved(partition.state, self._copied, self._joined, partition.state.last_key, self._data_shift)
        self._copied, self.mirrors = None, False
        partition.moved_to_next()
        self._ended()
        self.phase = Phase.RETIRING
        self._ask(partial(partition.files.retire_old, False))
        return True

    def _settle(self, wall: int) -> bool:
        """Some messages learn where they are now."""
        if self.moved is not None and self.moved.settle(SETTLED_RECORDS):
            self.moved = None
            self._rest()
        return self.moved is not None

    def _retired(self, wall: int) -> bool:
        self._rest()
        return False

    def _rest(self) -> None:
        if self._job is None and self.moved is None:
            self.phase = Phase.RESTING

    # ---- giving up -----------------------------------------------------------------------------------------------

    def _gave_up(self, wall: int) -> bool:
        """Whatever there is of a next set goes; the old one stays."""
        self._cancel()
        self.copy, self._copied, self.mirrors = None, None, False
        self.phase = Phase.RESTING
        self._partition.files.abandon_roll()
        self._not_early_before = wall + RETRY_EARLY_S
        return False

    def _fail(self, error: OSError) -> bool:
        """Something of a rollover in slices failed."""
        self._said("rollover failed", error, RETRY_EARLY_S)
        return self._gave_up(self._wall)

    def _fail_at_once(self, what: str, error: OSError, wall: int) -> bool:
        """Something of a rollover in one step failed."""
        self._said(what, error, RETRY_S)
        self._not_before = wall + RETRY_S
        return self._gave_up(wall)

    # ---- in one step ---------------------------------------------------------------------------------------------

    def _at_once(self, wall: int) -> bool:
        """All of it."""
        self._cancel()
        return self.rewrite(wall, damaged=False, announced=True)

    def rewrite(self, wall: int, damaged: bool, announced: bool) -> bool:
        """The live records into a new set; `announced`: by a ROLLOVER record in the old one. False: the old set stays."""
        files = self._partition.files
        if self.phase is not Phase.CREATING:  # that one has been told of
            self._begins()
        try:
            if not files.rolling:
                files.begin_roll(wall)
        except OSError as error:
            return self._fail_at_once("no new file set", error, wall)
        return self._complete(LiveCopy(files, self._partition.state), wall, damaged, announced)

    def _complete(self, copy: LiveCopy, wall: int, damaged: bool, announced: bool) -> bool:
        """The rest of a copy, and everything behind it."""
        partition, files = self._partition, self._partition.files
        try:
            copy.run()
            files.finish_roll(self._end_both(wall, announced), damaged)
        except OSError as error:
            return self._fail_at_once("rollover failed", error, wall)
        self._arrived(Moved(partition.state, copy, partition.state.last_key, partition.state.last_key, 0))
        return True

    def _end_both(self, wall: int, announced: bool) -> int:
        """A sync point behind the copied records, with the PSN of the last record of the old set; its offset."""
        partition, files, state = self._partition, self._partition.files, self._partition.state
        if announced and partition.leading:
            partition.append_sync_point(SyncPoint.ROLLOVER, wall)
            if not partition.write_batch(matters=False):
                raise OSError(errno.EIO, "its ROLLOVER record waits to be written")
        mark, data, qlist = files.next_positions()
        self.ended_at = state.lease, state.sequence
        if not state.lease:
            return 0
        files.append_next([pack_sync_point(state.sequence, state.lease, wall, SyncPoint.REGULAR, partition.primary_id, data,
                                           qlist)], [], [])
        return mark

    def _arrived(self, moved: Moved) -> None:
        """The next set is the current one, and synced as a whole."""
        moved.settle(1 << 62)
        self.copy, self._copied, self.moved, self.mirrors = None, None, None, False
        self.phase = Phase.RESTING
        self._partition.moved_to_next()
        self._partition.all_is_durable()
        self._ended()

    def _told(self) -> None:
        done = 100 if self._copied is None else round(100 * self._copied.progress)
        self._partition.alarm("ROLLOVER", f"a file is full before its live records were copied in slices ({done} %): the"
                                          " rest is done at once. Larger files would leave more time.")

    def _copy_the_rest(self, wall: int) -> bool:
        copy = self._copied
        self._told()
        if copy is None or not self._cancel():
            return self._gave_up(wall)
        return self._complete(copy, wall, damaged=False, announced=True)

    def _mark_now(self, wall: int) -> bool:
        self._told()
        if not self._cancel():
            return self._gave_up(wall)
        try:
            self._partition.files.mark_next(self._mark)
        except OSError as error:
            return self._fail_at_once("rollover failed", error, wall)
        return self._switch_now(wall)

    def _switch_now(self, wall: int) -> bool:
        partition, copy = self._partition, self._copied
        if copy is None or not self.mirrors:
            return self._gave_up(wall)
        try:
            partition.files.sync_next()
        except OSError as error:
            return self._fail_at_once("rollover failed", error, wall)
        partition.files.switch_next()
        partition.files.retire_old(False)
        self._arrived(Moved(partition.state, copy, self._joined, partition.state.last_key, self._data_shift))
        return True

    def _retire_now(self, wall: int) -> bool:
        self._cancel()
        self._partition.files.retire_old(False)
        if self.moved is not None:
            self.moved.settle(1 << 62)
        self.moved = None
        self._rest()
        return True

    def _again(self, wall: int) -> bool:
        """Full before the last rollover was through."""
        self._retire_now(wall)
        return self._at_once(wall)


def _added(record: bytes, offset: int, shift: int) -> bytes:
    """A record with `shift` added to its 32-bit field at `offset`."""
    value = int.from_bytes(record[offset:offset + 4], "big") + shift
    return record[:offset] + value.to_bytes(4, "big") + record[offset + 4:]
