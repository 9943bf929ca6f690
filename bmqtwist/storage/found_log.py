"""What a node of several finds in its files: a log without holes, and how far it reaches.

A single broker makes the best of damage. A node of several must not: it tells the others what it holds, so its log ends
before the first record that is not whole, and the others have the rest. What a loss of power tore was never told to be
safe here. Other damage is told: a record that is followed by two sync points, which are written a second apart and synced,
was safe once. Of those that are not, the messages are whole as well that later records have deleted: other nodes are sent
them. Damage before the base, in what a compaction has copied, leaves nothing to be built upon: the file set is put aside,
and the node begins with nothing. A node that has lost what was safe remembers that until it has been healed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bmqtwist.storage.exchange import FilesAhead, attachment
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.journal import JournalScan, is_sync_point
from bmqtwist.storage.psn import NO_PSN, LogSummary, Psn
from bmqtwist.storage.records import MAGIC, RECORD, RECORD_BYTES, SEQUENCE_MASK
from bmqtwist.storage.recovery import KnownQueue, RecoveredPartition, recover
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES, PartitionReader

SYNC_POINTS = 2  # behind a record, which was safe then


@dataclass(slots=True)
class FoundLog:
    """The log in the files, and the state that it leaves. `cut`: bytes of JOURNAL that count no more, though something is in
    them; `lost`: the file set had to be put aside; `doubtful`: records that were safe are missing."""

    summary: LogSummary
    recovered: RecoveredPartition
    cut: int = 0
    lost: bool = False
    doubtful: bool = False


@dataclass(slots=True)
class RecoveryClock:
    """As of `storage.recovery.recover`."""

    epoch: float = 0.0
    wall_max: int | None = None


class FilesUpTo:
    """A `PartitionReader` for which there is nothing behind a place in JOURNAL."""

    def __init__(self, files: FileSets, journal_end: int) -> None:
        self._files, self._end = files, journal_end
        self.broken = files.broken
        self.read_data, self.read_qlist, self.lengths = files.read_data, files.read_qlist, files.lengths

    def read_journal(self, offset: int, size: int) -> bytes:
        """Bytes of the JOURNAL, zeros behind the end."""
        data = self._files.read_journal(offset, size)
        kept = max(0, self._end - offset)
        return data if len(data) <= kept else data[:kept] + bytes(len(data) - kept)

    def journal_after(self, offset: int) -> int | None:
        """Where something may be."""
        return self._files.journal_after(offset) if offset < self._end else None


@dataclass(slots=True)
class _Journal:
    """What JOURNAL holds by itself. `end`: behind the last record that counts; `whole`: what was copied into it is."""

    summary: LogSummary
    end: int
    reach: int  # behind the last byte that is anything
    whole: bool
    sync_points: list[Psn]  # also of those that do not count

    def offset(self, psn: Psn) -> int:
        """Behind the record with this PSN, which is in the log."""
        return self.end - RECORD_BYTES * self.summary.distance(psn)

    def torn_at_the_end(self, files: PartitionReader) -> list[Psn]:
        """The first record that may not have been safe yet and that cannot be sent to another node, if there is one."""
        summary = self.summary
        counted = [psn for psn in self.sync_points if psn <= summary.last]
        safe = max(counted[-SYNC_POINTS], summary.base) if len(counted) >= SYNC_POINTS else summary.base
        start = self.offset(safe) if safe != NO_PSN else JOURNAL_HEADER_BYTES
        records = files.read_journal(start, self.end - start)
        ahead = FilesAhead(files, files.lengths()[1])
        for at in range(0, len(records), RECORD_BYTES):
            record = records[at:at + RECORD_BYTES]
            head, lease, _, _, _ = RECORD.unpack(record)
            try:
                attachment(ahead, record, head)
            except OSError:
                return [(lease, head & SEQUENCE_MASK)]
        return []


def find_log(files: FileSets, known: Mapping[bytes, KnownQueue] | None, clock: RecoveryClock, partition_id: int,
             wall: int, limit: int | None = None) -> FoundLog:
    """Read the file set; nothing of JOURNAL counts behind `limit`. OSError."""
    journal = _read_journal(files, limit)
    reach, sync_points = journal.reach, journal.sync_points
    while journal.whole:
        view = FilesUpTo(files, journal.end)
        recovered = recover(view, known, clock.epoch, partition_id, clock.wall_max)
        torn = min([(message.lease, message.sequence) for message in recovered.quarantined] + recovered.unreadable
                   + journal.torn_at_the_end(view), default=None)
        if torn is None:
            safe = sum(psn > journal.summary.last for psn in sync_points)
            return FoundLog(journal.summary, recovered, max(0, reach - journal.end), doubtful=safe >= SYNC_POINTS)
        if torn <= journal.summary.base:
            break
        journal = _read_journal(files, journal.offset(torn) - RECORD_BYTES)
    files.begin_roll(wall)
    files.finish_roll(0, damaged=True)
    return FoundLog(LogSummary(), recover(files, known, partition_id=partition_id), lost=True, doubtful=True)


def _read_journal(files: FileSets, limit: int | None) -> _Journal:
    length = files.lengths()[0]
    view = FilesUpTo(files, length if limit is None else limit)
    scan = JournalScan(view.read_journal, length, view.journal_after)
    base, last, leases, end, problems = NO_PSN, NO_PSN, dict[int, int](), JOURNAL_HEADER_BYTES, len(scan.problems)
    copied = scan.marked
    whole, broken, sync_points = True, False, list[Psn]()
    for offset, head, lease, _, body in scan:
        psn = lease, head & SEQUENCE_MASK
        if is_sync_point((head, lease, 0, body, MAGIC)):
            sync_points.append(psn)
        if broken:
            continue
        inside = copied and offset <= scan.mark
        if inside:
            whole &= len(scan.problems) == problems
            base = psn
        elif len(scan.problems) > problems or not _follows(last, psn, (head, lease, 0, body, MAGIC)):
            broken = True
            continue
        last = psn
        leases[lease] = psn[1]
        end = offset + RECORD_BYTES
    reach = length if broken or scan.stale and limit is None else end
    if copied and end <= scan.mark:
        whole = False  # its sync point is not there
    kept = tuple((lease, sequence) for lease, sequence in leases.items() if lease >= base[0])
    return _Journal(LogSummary(last, base, kept), end, reach, whole, sync_points)


def _follows(last: Psn, psn: Psn, record: tuple[int, int, int, bytes, int]) -> bool:
    if psn[0] == last[0]:
        return psn[1] == last[1] + 1
    return psn[0] > last[0] and psn[1] == 1 and is_sync_point(record)
