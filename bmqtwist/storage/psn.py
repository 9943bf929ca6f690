"""Partition sequence numbers (PSNs), log summaries that nodes exchange, and runs of records. Pure.

A PSN is (lease, sequence). One node writes under a lease, with the sequences 1, 2, 3, ..., so two logs that hold the same
PSN are equal up to it. A rollover copies live records only: a log holds every record after its *base*, and only the live
ones before it. Used by `cluster/partition_machine.py` and its parts, and by `replica.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bmqtwist.storage.records import RECORD, RECORD_BYTES, SEQUENCE_MASK

Psn = tuple[int, int]  # lease, sequence
NO_PSN: Psn = (0, 0)  # before the first record
Leases = tuple[tuple[int, int], ...]  # (lease, its last sequence in a log), ascending


@dataclass(slots=True, unsafe_hash=True)
class LogSummary:
    """Summary of a log: its last PSN, its base, and its leases from the base on."""

    last: Psn
    base: Psn
    leases: Leases

    def __init__(self, last: Psn = NO_PSN, base: Psn = NO_PSN, leases: Leases = ()) -> None:
        self.last, self.base, self.leases = last, base, leases

    def contains(self, psn: Psn) -> bool:
        """Return whether the log has this record, or its last rollover ended with it."""
        return psn == self.base or psn > self.base and any(lease == psn[0] and psn[1] <= end for lease, end in self.leases)

    def distance(self, psn: Psn) -> int:
        """Return the number of records after `psn`, which the log holds."""
        return sum(end - psn[1] if lease == psn[0] else end for lease, end in self.leases if lease >= psn[0])

    def extended(self, last: Psn) -> LogSummary:
        """Return the summary after appending records up to `last`, in the last lease or a newer one."""
        leases = self.leases[:-1] if self.leases and self.leases[-1][0] == last[0] else self.leases
        return LogSummary(last, self.base, (*leases, last))

    def truncated(self, psn: Psn) -> LogSummary:
        """Return the summary without the records after `psn`, which the log holds."""
        kept = tuple((lease, psn[1] if lease == psn[0] else end) for lease, end in self.leases if lease <= psn[0])
        return LogSummary(psn, self.base, kept)

    def rebased(self, base: Psn) -> LogSummary:
        """Return the summary after a rollover that ended at `base`."""
        return LogSummary(self.last, base, tuple(each for each in self.leases if each[0] >= base[0]))

    @property
    def is_consistent(self) -> bool:
        """True if base, leases and last PSN are consistent."""
        numbers = [lease for lease, _ in self.leases]
        first = self.leases[0] if self.leases else NO_PSN
        return (numbers == sorted(set(numbers)) and all(lease > 0 and end > 0 for lease, end in self.leases)
                and (self.leases[-1] if self.leases else NO_PSN) == self.last
                and (self.base == NO_PSN or first[0] == self.base[0] and self.base[1] <= first[1]))


def common_prefix(one: LogSummary, other: LogSummary) -> Psn | None:
    """Return the last record that both logs hold; None if it may lie before the base of one of them."""
    theirs = dict(other.leases)
    found = max(((lease, min(end, theirs[lease])) for lease, end in one.leases if lease in theirs), default=NO_PSN)
    return found if found >= one.base and found >= other.base else None


@dataclass(slots=True)
class RecordRun:
    """Consecutive records of a log: JOURNAL records, DATA records of their MESSAGEs, QLIST records of their CREATIONs and
    ADDITIONs. `previous`: PSN of the record before the first; `last`: PSN of the last.
    """

    previous: Psn
    last: Psn
    journal: bytes
    data: bytes
    qlist: bytes

    def __init__(self, previous: Psn, last: Psn, journal: bytes = b"", data: bytes = b"", qlist: bytes = b"") -> None:
        self.previous, self.last, self.journal, self.data, self.qlist = previous, last, journal, data, qlist

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return len(self.journal) + len(self.data) + len(self.qlist)

    def continues(self, after: Psn) -> bool:
        """Return whether the run holds the record after `after`."""
        return self.previous == after or self.previous[0] == after[0] == self.last[0] and (
            self.previous[1] < after[1] < self.last[1])

    def leases(self) -> Leases:
        """Return (lease, last sequence) of each lease in the run."""
        return leases_of(psns_of(self.journal))


def join_runs(runs: list[RecordRun]) -> RecordRun:
    """Join consecutive runs."""
    if len(runs) == 1:
        return runs[0]
    return RecordRun(runs[0].previous, runs[-1].last, b"".join([run.journal for run in runs]),
                     b"".join([run.data for run in runs]), b"".join([run.qlist for run in runs]))


def psns_of(journal: bytes) -> Iterable[Psn]:
    """Iterate over the PSNs of JOURNAL records; an incomplete last record is omitted."""
    whole = len(journal) // RECORD_BYTES * RECORD_BYTES
    return ((lease, head & SEQUENCE_MASK) for head, lease, _, _, _ in RECORD.iter_unpack(memoryview(journal)[:whole]))


def leases_of(psns: Iterable[Psn]) -> Leases:
    """Return the last PSN of each lease, of ascending PSNs."""
    return tuple(dict(psns).items())
