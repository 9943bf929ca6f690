"""Records of a metadata ledger as its file has them at the start: which are loaded, and which wait for a leader. Pure.

The log of several nodes begins with the last committed SNAPSHOT, which stands for all before it; in a file that was begun
when another one was full, with the first SNAPSHOT. What does not follow the record before it is left to the other nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bmqtwist.cluster.log_events import NO_LSN, Lsn
from bmqtwist.cluster.record_log import LogRecord, follows, log_record
from bmqtwist.wire.cluster_events import ClusterStateRecord, LedgerRecordType
from bmqtwist.wire.cluster_schema import LeaderAdvisoryCommit


@dataclass(slots=True)
class OpenedLog:
    """`loaded`: records that are applied at once, up to `base`; `kept`: those behind it; `alarm`: what is wrong; else ""."""

    committed: Lsn
    base: Lsn = NO_LSN
    loaded: list[ClusterStateRecord] = field(default_factory=list)
    kept: list[LogRecord] = field(default_factory=list)
    alarm: str = ""


def commit_of(record: ClusterStateRecord) -> Lsn:
    """Up to where a COMMIT record says that the log is committed; NO_LSN of other records."""
    advisory = record.message.value
    if isinstance(advisory, LeaderAdvisoryCommit):
        committed = advisory.sequence_number_committed.elector_term, advisory.sequence_number_committed.sequence_number
        if committed < (record.term, record.sequence_number):
            return committed
    return NO_LSN


def opened_alone(records: list[ClusterStateRecord]) -> OpenedLog:
    """Of a cluster of one: from the last SNAPSHOT on everything, committed or not."""
    last = max(((record.term, record.sequence_number) for record in records), default=NO_LSN)
    starts = [at for at, record in enumerate(records) if record.type is LedgerRecordType.SNAPSHOT]
    changes = (LedgerRecordType.SNAPSHOT, LedgerRecordType.UPDATE)
    return OpenedLog(last, last, [record for record in records[starts[-1] if starts else 0:] if record.type in changes])


def opened_log(records: list[ClusterStateRecord]) -> OpenedLog:
    """Of several nodes."""
    opened, each = OpenedLog(max(map(commit_of, records), default=NO_LSN)), [log_record(record) for record in records]
    starts = [at for at, entry in enumerate(each)
              if at and entry.record.type is LedgerRecordType.SNAPSHOT and entry.lsn <= opened.committed]
    if starts:  # it stands for all before it, even where the original left records out
        opened.loaded, opened.base, each = [each[starts[-1]].record], each[starts[-1]].lsn, each[starts[-1] + 1:]
    elif each and each[0].record.type is LedgerRecordType.SNAPSHOT:
        stamp = each[0].lsn
        second = each[1].lsn if len(each) > 1 else (stamp[0], stamp[1] + 1)
        if stamp[1] != 1 or second <= stamp:  # a file that was begun when another one was full
            opened.loaded = [each.pop(0).record]
            opened.base = stamp if second > stamp else (second[0], second[1] - 1)
    last = opened.base
    for entry in each:
        if not follows(last, entry.lsn):
            opened.alarm = (f"record ({entry.lsn[0]}, {entry.lsn[1]}) of the ledger does not follow ({last[0]}, {last[1]}): "
                            "it and all behind it are left to the other nodes")
            break
        opened.kept.append(entry)
        last = entry.lsn
    return opened
