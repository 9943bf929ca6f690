"""Recovery of a cluster member: finds a log without gaps in its files, and its last PSN.

A single broker skips and repairs damage. A cluster member reports its log to the other members, so its log ends before the
first damaged record, and the primary sends the rest.

- A record followed by SYNC_POINTS sync points, which are written a second apart and synced, was durable. If it is missing,
  the log is `doubtful` until it has been healed.
- If only its application data is damaged, the log keeps it: the data is repaired with the copy of another member.
- Later records may be torn by a loss of power: they were never reported as durable. All of them must be intact, those of
  deleted messages included, since replicas may need them.
- Damage before the base, in the part that a rollover copied, makes the file set unusable: it is archived, and the log begins
  empty.

`member/partition_logs.py` calls `find_log` at the start and after a cut. The recovery of a single broker is in
`recovery.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bmqtwist import alarms
from bmqtwist.storage.exchange import ReadAhead, read_attachment
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.journal import JournalScan, is_sync_point
from bmqtwist.storage.partition_log import SYNC_POINTS
from bmqtwist.storage.psn import NO_PSN, LogSummary, Psn
from bmqtwist.storage.records import MAGIC, RECORD, RECORD_BYTES, SEQUENCE_MASK
from bmqtwist.storage.recovery import KnownQueue, RecoveredPartition, recover
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES, PartitionReader


@dataclass(slots=True)
class FoundLog:
    """Log in the files, with the recovered state. `cut_bytes`: bytes of JOURNAL after the log's end that are not zero;
    `set_damaged`: the file set was archived as damaged; `doubtful`: durable records are missing."""

    summary: LogSummary
    recovered: RecoveredPartition
    cut_bytes: int = 0
    set_damaged: bool = False
    doubtful: bool = False


@dataclass(slots=True)
class RecoveryClock:
    """Arguments `epoch` and `wall_max` of `storage.recovery.recover`."""

    epoch: float = 0.0
    wall_max: int | None = None


class TruncatedFiles:
    """`PartitionReader` of a file set whose JOURNAL reads as zeros from an offset on."""

    def __init__(self, files: FileSets, journal_end: int) -> None:
        self._files, self._end = files, journal_end
        self.file_missing = files.file_missing
        self.read_data, self.read_qlist, self.lengths = files.read_data, files.read_qlist, files.lengths

    def read_journal(self, offset: int, size: int) -> bytes:
        """Read bytes of the JOURNAL, zeros after the end."""
        data = self._files.read_journal(offset, size)
        kept = max(0, self._end - offset)
        return data if len(data) <= kept else data[:kept] + bytes(len(data) - kept)

    def journal_after(self, offset: int) -> int | None:
        """Return the offset of the next bytes that may not be zero."""
        return self._files.journal_after(offset) if offset < self._end else None


@dataclass(slots=True)
class _Journal:
    """Log in JOURNAL alone. `end`: offset after its last record; `is_complete`: the copied part has no gap."""

    summary: LogSummary
    end: int
    written_end: int  # offset after the last byte that may not be zero
    is_complete: bool
    sync_points: list[Psn]  # those after the log's end included

    def offset(self, psn: Psn) -> int:
        """Return the offset after the record `psn` of the log."""
        return self.end - RECORD_BYTES * self.summary.distance(psn)

    @property
    def durable(self) -> Psn:
        """PSN of the last record that was durable by its sync points or its rollover."""
        counted = [psn for psn in self.sync_points if psn <= self.summary.last]
        return max(counted[-SYNC_POINTS], self.summary.base) if len(counted) >= SYNC_POINTS else self.summary.base

    def first_torn(self, files: PartitionReader, durable: Psn) -> list[Psn]:
        """Return the first record after `durable` whose DATA or QLIST record is damaged; [] if there is none."""
        if durable >= self.summary.last:
            return []
        start = self.offset(durable) if durable != NO_PSN else JOURNAL_HEADER_BYTES
        records = files.read_journal(start, self.end - start)
        reader = ReadAhead(files, files.lengths()[1])
        for at in range(0, len(records), RECORD_BYTES):
            record = records[at:at + RECORD_BYTES]
            head, lease, _, _, _ = RECORD.unpack(record)
            try:
                read_attachment(reader, record, head)
            except OSError:
                return [(lease, head & SEQUENCE_MASK)]
        return []


def find_log(files: FileSets, known: Mapping[bytes, KnownQueue] | None, clock: RecoveryClock, partition_id: int,
             wall: int, limit: int | None = None) -> FoundLog:
    """Read the file set, JOURNAL up to the offset `limit`. OSError."""
    journal = _read_journal(files, limit)
    written_end, sync_points, durable = journal.written_end, journal.sync_points, journal.durable
    while journal.is_complete:
        view = TruncatedFiles(files, journal.end)
        recovered = recover(view, known, clock.epoch, partition_id, clock.wall_max, durable)
        torn = min([(message.lease, message.sequence) for message in recovered.quarantined] + recovered.unreadable
                   + journal.first_torn(view, durable), default=None)
        if torn is None:
            # bytes after the log's end were cut off on purpose, or the primary sends their records again
            recovered.alarms = [each for each in recovered.alarms if each.kind is not alarms.UNFINISHED_WRITE]
            lost_sync_points = sum(psn > journal.summary.last for psn in sync_points)
            return FoundLog(journal.summary, recovered, max(0, written_end - journal.end),
                            doubtful=lost_sync_points >= SYNC_POINTS)
        if torn <= journal.summary.base:
            break
        journal = _read_journal(files, journal.offset(torn) - RECORD_BYTES)
    files.create_next(wall)
    files.complete_rollover(0, damaged=True)
    return FoundLog(LogSummary(), recover(files, known, partition_id=partition_id), set_damaged=True, doubtful=True)


def _read_journal(files: FileSets, limit: int | None) -> _Journal:
    length = files.lengths()[0]
    view = TruncatedFiles(files, length if limit is None else limit)
    scan = JournalScan(view.read_journal, length, view.journal_after)
    base, last, leases, end, problems = NO_PSN, NO_PSN, dict[int, int](), JOURNAL_HEADER_BYTES, len(scan.problems)
    copied = scan.marked
    complete, ended, sync_points = True, False, list[Psn]()
    for offset, head, lease, _, body in scan:
        psn = lease, head & SEQUENCE_MASK
        if is_sync_point((head, lease, 0, body, MAGIC)):
            sync_points.append(psn)
        if ended:
            continue
        inside = copied and offset <= scan.mark
        if inside:
            complete &= len(scan.problems) == problems
            base = psn
        elif len(scan.problems) > problems or not _is_next(last, psn, (head, lease, 0, body, MAGIC)):
            ended = True
            continue
        last = psn
        leases[lease] = psn[1]
        end = offset + RECORD_BYTES
    written_end = length if ended or scan.stale and limit is None else end
    if copied and end <= scan.mark:
        complete = False  # the sync point after the copied part is missing
    kept = tuple((lease, sequence) for lease, sequence in leases.items() if lease >= base[0])
    return _Journal(LogSummary(last, base, kept), end, written_end, complete, sync_points)


def _is_next(last: Psn, psn: Psn, record: tuple[int, int, int, bytes, int]) -> bool:
    if psn[0] == last[0]:
        return psn[1] == last[1] + 1
    return psn[0] > last[0] and psn[1] == 1 and is_sync_point(record)
