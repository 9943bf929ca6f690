"""What can be seen to be wrong with a ledger file, alone and beside the journals."""

from __future__ import annotations

from collections.abc import Iterator

from bmqtwist.storage.ledger_format import parse_ledger_file_name
from bmqtwist.storagetool.ledgerview import Ledger
from bmqtwist.storagetool.setview import ERROR, NOTE, WARNING, FileFinding
from bmqtwist.wire.cluster_events import LedgerRecordType
from bmqtwist.wire.cluster_schema import (
    LeaderAdvisory,
    LeaderAdvisoryCommit,
    PartitionPrimaryAdvisory,
)


def verify_ledger(ledger: Ledger, name: str) -> list[FileFinding]:
    """All findings; `name`: the file's, without its directory."""
    found = [FileFinding(ERROR, alarm) for alarm in ledger.contents.alarms]
    log_id = parse_ledger_file_name(name)
    if log_id is not None and ledger.contents.log_id and log_id != ledger.contents.log_id:
        found.append(FileFinding(WARNING, f"the file's name says log id {log_id.hex().upper()}, its header"
                                      f" {ledger.log_id}"))
    if not ledger.entries:
        found.append(FileFinding(ERROR, "no record can be read"))
    found += _order(ledger)
    if ledger.tail_zeros:
        found.append(FileFinding(NOTE, f"{ledger.tail_zeros} B of zeros behind the last record: the broker runs, or did not"
                                   " stop cleanly"))
    return found


def _order(ledger: Ledger) -> Iterator[FileFinding]:
    """LSNs rise, but for what a rollover puts at the start of a file, and for a snapshot, with which a cluster that
    knows its last term no more begins anew; changes are committed."""
    latest, committed_any = (0, 0), False
    open_changes: dict[tuple[int, int], int] = {}
    for entry in ledger.entries:
        if entry.record.type is LedgerRecordType.SNAPSHOT and entry.lsn <= latest:
            latest, committed_any = (0, 0), False
        if entry.lsn <= latest and committed_any:
            yield FileFinding(WARNING, f"the record at offset {entry.offset} has LSN {entry.lsn[0]}-{entry.lsn[1]}, after"
                                   f" {latest[0]}-{latest[1]}")
        latest = max(latest, entry.lsn)
        value = entry.record.message.value
        if isinstance(value, LeaderAdvisoryCommit):
            committed_any = True
            committed = value.sequence_number_committed
            open_changes.pop((committed.elector_term, committed.sequence_number), None)
        elif entry.record.type is LedgerRecordType.UPDATE:
            open_changes[entry.lsn] = entry.offset
    for lsn, offset in open_changes.items():
        yield FileFinding(NOTE, f"the change {lsn[0]}-{lsn[1]} at offset {offset} was never committed")


def leases_of(ledger: Ledger) -> dict[int, int]:
    """The highest lease of each partition that the ledger tells of."""
    found: dict[int, int] = {}
    for entry in ledger.entries:
        value = entry.record.message.value
        if isinstance(value, LeaderAdvisory | PartitionPrimaryAdvisory):
            for each in value.partitions:
                found[each.partition_id] = max(found.get(each.partition_id, 0), each.primary_lease_id)
    return found
