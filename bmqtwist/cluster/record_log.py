"""Records of the metadata log in memory, their durability and commit, and the next write of the file. Pure.

```
        base      covered            durable        written          records
          |          |                  |              |                |
   -------+----------+------------------+--------------+----------------+
   dropped    for lagging  uncommitted     write in        pending for
              followers                    progress        the next write
```

`base` is the LSN of the last record dropped from memory. Changes up to `covered` are applied to the state. A file begins
with a SNAPSHOT of the state at `covered` at that time, and contains every record after it. The SNAPSHOT has the LSN of the
last record that it includes, so that the predecessor of the next record is known. The only member of a cluster, which has no
followers, gives it the LSN of the next record, as the original does.

At the start the log of several nodes is loaded from the last committed SNAPSHOT on, which includes all records before it; in
a file that continues a full one, from the first SNAPSHOT on. Records that do not follow their predecessor are dropped; the
other nodes send them again.

`metadata_log.py` and `leader_term.py` append to it and commit; the bytes of the file are in `storage/ledger_file.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from bmqtwist.cluster.log_events import FileJob, ReplaceFile, WriteFile
from bmqtwist.cluster.state import ClusterState
from bmqtwist.ids import make_storage_key
from bmqtwist.storage.ledger_file import LEDGER_HEADER_BYTES, pack_ledger_header
from bmqtwist.wire.cluster_schema import (
    NO_LSN,
    ClusterMessage,
    ClusterStateRecord,
    LeaderAdvisory,
    LeaderAdvisoryCommit,
    LedgerRecordType,
    Lsn,
    MemberList,
    PartitionPrimaryAdvisory,
    encode_cluster_state_record,
)

NEVER_WRITTEN = 0  # no write has this number


@dataclass(slots=True)
class LogRecord:
    """A record, and its encoding in the file and in messages."""

    lsn: Lsn
    record: ClusterStateRecord
    data: bytes

    @property
    def is_change(self) -> bool:
        """True if the commit of the record changes the state; False for a COMMIT."""
        return self.record.type is not LedgerRecordType.COMMIT

    @property
    def members(self) -> MemberList | None:
        """The member list that the record sets, if any."""
        return members_in(self.record)


def members_in(record: ClusterStateRecord) -> MemberList | None:
    """Return the member list that a record sets, if any."""
    advisory = record.message.value
    return advisory.members if isinstance(advisory, LeaderAdvisory | PartitionPrimaryAdvisory) else None


def log_record(record: ClusterStateRecord) -> LogRecord:
    return LogRecord((record.term, record.sequence_number), record, encode_cluster_state_record(record))


def follows(previous: Lsn, lsn: Lsn) -> bool:
    """True if a record may directly follow another one: a term begins with sequence number 1 and has no gaps."""
    return lsn == (previous[0], previous[1] + 1) or lsn[0] > previous[0] and lsn[1] == 1


def snapshot_record(state: ClusterState, lsn: Lsn, wall: int) -> ClusterStateRecord:
    """Return a SNAPSHOT record of `state` with this LSN."""
    advisory = state.snapshot()
    advisory.sequence_number = lsn
    return ClusterStateRecord(LedgerRecordType.SNAPSHOT, *lsn, wall, ClusterMessage.of(advisory))


class RecordLog:
    """Records in memory, and the state of the file. `max_bytes`: size above which a new file begins; `name`: of the node,
    for log ids."""

    def __init__(self, name: str, max_bytes: int, is_only_member: bool) -> None:
        self.name, self.max_bytes, self.is_only_member = name, max_bytes, is_only_member
        self.records: list[LogRecord] = []
        self._list_records: list[LogRecord] = []  # those of `records` with a member list
        self.base = NO_LSN
        self.covered = self.durable = self.written = 0  # counts of records in `records`
        self._retained = self._retained_bytes = 0  # covered records counted by `drop_covered`, and their bytes
        self.size = 0  # bytes of the file with all written records
        self.log_id = b""
        self.file_exists = False
        self.begins_new_file = True  # with the next write
        self.writing = NEVER_WRITTEN  # number of the write in progress
        self._last_number = NEVER_WRITTEN
        self._durable_after = 0  # `durable` after the write in progress
        self._truncation_due = False  # the file has more than `size` bytes
        self._initial_bytes = 0  # of the file when it was begun, without new records

    # -- reading ----------------------------------------------------------------------------------------------------

    def lsn_at(self, count: int) -> Lsn:
        """Return the LSN of the record number `count`, counted from 1; `base` for 0."""
        return self.records[count - 1].lsn if count else self.base

    @property
    def last(self) -> Lsn:
        return self.lsn_at(len(self.records))

    def count_up_to(self, lsn: Lsn) -> int:
        """Return the number of records with this LSN or a lower one."""
        return bisect_right(self.records, lsn, key=lambda each: each.lsn)

    def has_record(self, lsn: Lsn) -> bool:
        """True if the record with this LSN is in memory, or is the last dropped one."""
        return self.lsn_at(self.count_up_to(lsn)) == lsn

    @property
    def pending_lists(self) -> list[MemberList]:
        """The member lists in the records that are not applied yet."""
        applied = self.lsn_at(self.covered)
        return [members for each in self._list_records if each.lsn > applied and (members := each.members) is not None]

    # -- changing ---------------------------------------------------------------------------------------------------

    def append(self, record: ClusterStateRecord) -> None:
        self.records.append(log_record(record))
        self._list_records += self.records[-1:] if self.records[-1].members is not None else []

    def truncate(self, count: int) -> list[LogRecord]:
        """Remove and return the records after the first `count`, which are at least the covered ones."""
        removed = self.records[count:]
        if count < self.written:
            self.size -= sum(len(each.data) for each in self.records[count:self.written])
            self.written, self._truncation_due = count, True
        del self.records[count:]
        self._list_records = [each for each in self._list_records if each.lsn <= self.last]
        self.durable, self._durable_after = min(self.durable, count), min(self._durable_after, count)
        return removed

    def drop_covered(self, retained_bytes: int) -> None:
        """Drop covered records from memory, except for the last `retained_bytes` bytes."""
        self._retained_bytes += sum([len(each.data) for each in self.records[self._retained:self.covered]])
        at = 0
        while self._retained_bytes > retained_bytes:
            self._retained_bytes -= len(self.records[at].data)
            at += 1
        if at:
            self.base = self.records[at - 1].lsn
            del self.records[:at]
            self._list_records = [each for each in self._list_records if each.lsn > self.base]
            self.covered, self.durable, self.written = self.covered - at, self.durable - at, self.written - at
            self._durable_after = max(0, self._durable_after - at)
        self._retained = self.covered

    def restart(self, base: Lsn) -> None:
        """Remove all records: the file was replaced by one with only the state at `base`."""
        self.records.clear()
        self._list_records.clear()
        self.base = base
        self.covered = self.durable = self.written = self._durable_after = self._retained = self._retained_bytes = 0
        self._truncation_due = False

    # -- the file ---------------------------------------------------------------------------------------------------

    def load(self, base: Lsn, records: list[LogRecord], covered: int, size: int, log_id: bytes,
             begins_new_file: bool) -> None:
        """Set the content of the file at the start."""
        self.base, self.records, self.covered = base, records, covered
        self._list_records = [each for each in records if each.members is not None]
        self.durable = self.written = len(records)
        self._retained = self._retained_bytes = 0
        self.size, self.log_id, self.file_exists, self.begins_new_file = size, log_id, True, begins_new_file

    def next_write(self, state: ClusterState, wall: int) -> FileJob | None:
        """Return the next write, None if there is none or one is in progress."""
        if self.writing or self.written == len(self.records):
            return None
        data = b"".join(each.data for each in self.records[self.written:])
        # a state that nearly fills a file must not cause a new file with every change
        full = self.size + len(data) > max(self.max_bytes, 2 * self._initial_bytes)
        if not (full or self.begins_new_file):
            cut = self.size if self._truncation_due else None
            self.size += len(data)
            return self._begin_write(WriteFile(self._next_number(), cut, data), len(self.records))
        head = b""
        if self.file_exists or self.base != NO_LSN:
            stamp = self.records[self.written].lsn if self.is_only_member else self.lsn_at(self.covered)
            uncommitted = [each.data for each in self.records[self.covered:self.written]]
            head = encode_cluster_state_record(snapshot_record(state, stamp, wall)) + b"".join(uncommitted)
        return self._replace(head, data, wall, self.records[self.written].lsn)

    def replacement(self, record: ClusterStateRecord, wall: int) -> FileJob:
        """Return the write of a new file with only another node's SNAPSHOT; `restart` must follow it."""
        job = self._replace(encode_cluster_state_record(record), b"", wall, (record.term, record.sequence_number))
        self._durable_after = 0
        return job

    def _replace(self, head: bytes, data: bytes, wall: int, lsn: Lsn) -> FileJob:
        before = self.log_id
        self.log_id = make_storage_key(self.name, wall * 1_000_000_000 + lsn[1], {self.log_id})
        whole = pack_ledger_header(self.log_id) + head + data
        self.size, self._initial_bytes = len(whole), LEDGER_HEADER_BYTES + len(head)
        return self._begin_write(ReplaceFile(self._next_number(), self.log_id, whole, wall, before), len(self.records))

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _begin_write(self, job: FileJob, count: int) -> FileJob:
        self.writing, self._durable_after, self.written, self._truncation_due = job.number, count, count, False
        return job

    def on_written(self) -> None:
        """Complete the write in progress: its records are durable."""
        self.writing, self.durable = NEVER_WRITTEN, self._durable_after
        self.file_exists, self.begins_new_file = True, False

    def on_write_failed(self) -> list[LogRecord]:
        """Remove and return the records that are not durable; the next write begins a new file."""
        self.writing = NEVER_WRITTEN
        removed = self.truncate(self.durable)
        self.written, self._truncation_due, self.begins_new_file = self.durable, False, True
        return removed


# -- the start --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LoadedLog:
    """Content of a file. `applied`: records to apply at once, up to `base`; `records`: the records after it; `alarm`: text
    about a defect, or empty."""

    committed: Lsn
    base: Lsn = NO_LSN
    applied: list[ClusterStateRecord] = field(default_factory=list)
    records: list[LogRecord] = field(default_factory=list)
    alarm: str = ""


def committed_by(record: ClusterStateRecord) -> Lsn:
    """Return the LSN that a COMMIT record reports as committed; NO_LSN for other records."""
    advisory = record.message.value
    if isinstance(advisory, LeaderAdvisoryCommit):
        committed = advisory.sequence_number_committed
        if committed < (record.term, record.sequence_number):
            return committed
    return NO_LSN


def load_single(records: list[ClusterStateRecord]) -> LoadedLog:
    """Load the log of the only member of a cluster: all records from the last SNAPSHOT on count as committed."""
    last = max(((record.term, record.sequence_number) for record in records), default=NO_LSN)
    starts = [at for at, record in enumerate(records) if record.type is LedgerRecordType.SNAPSHOT]
    changes = (LedgerRecordType.SNAPSHOT, LedgerRecordType.UPDATE)
    return LoadedLog(last, last, [record for record in records[starts[-1] if starts else 0:] if record.type in changes])


def load_log(records: list[ClusterStateRecord]) -> LoadedLog:
    """Load the log of a cluster of several nodes."""
    loaded, each = LoadedLog(max(map(committed_by, records), default=NO_LSN)), [log_record(record) for record in records]
    starts = [at for at, entry in enumerate(each)
              if at and entry.record.type is LedgerRecordType.SNAPSHOT and entry.lsn <= loaded.committed]
    if starts:  # it includes all earlier records, also records that BlazingMQ omits
        loaded.applied, loaded.base, each = [each[starts[-1]].record], each[starts[-1]].lsn, each[starts[-1] + 1:]
    elif each and each[0].record.type is LedgerRecordType.SNAPSHOT:
        stamp = each[0].lsn
        second = each[1].lsn if len(each) > 1 else (stamp[0], stamp[1] + 1)
        if stamp[1] != 1 or second <= stamp:  # the file continues a full one
            loaded.applied = [each.pop(0).record]
            loaded.base = stamp if second > stamp else (second[0], second[1] - 1)
    last = loaded.base
    for entry in each:
        if not follows(last, entry.lsn):
            loaded.alarm = (f"record ({entry.lsn[0]}, {entry.lsn[1]}) of the metadata ledger does not follow record "
                            f"({last[0]}, {last[1]}): it and all later ones are dropped. The other nodes send them "
                            "again; no action is needed")
            break
        loaded.records.append(entry)
        last = entry.lsn
    return loaded
