"""`bmq storage verify`: finds damage and contradictions in a file set or a ledger file, without changing it.

First it runs the recovery of a broker and reports its alarms. Then it checks what recovery does not read: data of deleted
messages, unreferenced records, inconsistent sync points, impossible times and counts. Called by `cli/storage.py`; recovery
is in `storage/recovery.py`, the comparison of two copies in `compare.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import takewhile
from typing import NamedTuple

from bmqtwist import alarms
from bmqtwist.ids import NULL_GUID, NULL_KEY
from bmqtwist.storage.journal import UNFINISHED_TEXT, JournalScan
from bmqtwist.storage.ledger_file import LedgerContents, parse_ledger_file_name
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import (
    DATA_RECORD_BYTES_MIN,
    ConfirmReason,
    DeletionReason,
    FileType,
    QueueOp,
    RecordType,
    SyncPoint,
    check_messages,
    parse_queue_record,
    queue_records,
    read_queue_record,
)
from bmqtwist.storage.recovery import RecoveredPartition, join_limited, recover
from bmqtwist.storage.store import DATA_HEADER_BYTES, QLIST_HEADER_BYTES
from bmqtwist.storagetool.datafile import DataFile
from bmqtwist.storagetool.inputs import JournalSnapshot, OnRead, SetFiles, SetView, StorageTarget, open_ledger
from bmqtwist.storagetool.journalview import (
    CONFIRM,
    DELETION,
    JOURNAL_OP,
    MESSAGE,
    QUEUE_OP,
    JournalRecord,
    hex_key,
    records,
)
from bmqtwist.storagetool.ledgerview import LedgerQueue, queues_of
from bmqtwist.storagetool.selection import MessageRecords, by_message
from bmqtwist.wire.cluster_schema import LeaderAdvisory, LeaderAdvisoryCommit, LedgerRecordType, PartitionPrimaryAdvisory

ERROR, WARNING, NOTE = "error", "warning", "note"
CLOCK_STEP_SECONDS = 60  # by which timestamps may decrease, since clocks are adjusted
LISTED_MAX = 10  # GUIDs or offsets per finding


class FileFinding(NamedTuple):
    """Result of a check. error: damaged data or references; warning: an inconsistency without a loss of data; note: an
    information. `where`: the file set, file or directory."""

    severity: str
    text: str
    where: str = ""


def verify_set(view: SetView, known: Mapping[bytes, LedgerQueue] | None,
               partition_id: int | None) -> tuple[list[FileFinding], int]:
    """Return all findings and the last lease in the journal. known: queues of the ledger, None without a ledger."""
    found = list(_check_presence(view))
    if view.sources[FileType.JOURNAL] is None or not view.lengths()[0]:
        return found, 0
    recovered = recover(view, known, partition_id=partition_id)
    absent = {kind for kind, source in view.sources.items() if source is None or not source.size}  # see `_check_presence`
    severity = ERROR if recovered.damaged else WARNING
    journal = view.sources[FileType.JOURNAL]
    written = isinstance(journal, JournalSnapshot) and journal.has_grown()  # DATA was written before it
    found += [FileFinding(NOTE, each.text.replace(UNFINISHED_TEXT, "appended during this check"))
              if written and each.kind is alarms.UNFINISHED_WRITE else FileFinding(severity, each.text)
              for each in recovered.alarms if each.kind is not alarms.FILE_TOO_SHORT or each.file not in absent]
    found += [FileFinding(ERROR, f"queue {queue.uri} ({hex_key(queue.key)}) is in the journal, but not in the ledger")
              for queue in recovered.queues.values() if queue.key in recovered.unlisted]
    checks = _Checks(view, recovered)
    checks.check_journal()
    checks.check_data()
    checks.check_qlist()
    found += checks.found
    if not checks.qlist_used:
        found = [each for each in found if each.text != _missing_text(FileType.QLIST)]
    for key, queue in (known or {}).items():
        if key not in recovered.queues:
            found.append(FileFinding(NOTE, f"queue {queue.uri} is in the ledger, but has no CREATION in the journal"))
    return found, recovered.lease


def _missing_text(kind: FileType) -> str:
    return f"the {kind.name} file is missing"


def _check_presence(view: SetView) -> Iterator[FileFinding]:
    for kind, source in view.sources.items():
        if source is None:
            yield FileFinding(ERROR, _missing_text(kind))
        elif not source.size:
            yield FileFinding(ERROR, f"the {kind.name} file is empty")


class _Checks:
    """Checks of one file set in addition to those of recovery."""

    def __init__(self, view: SetView, recovered: RecoveredPartition) -> None:
        self.view, self.recovered = view, recovered
        self.found: list[FileFinding] = []
        self.messages: list[JournalRecord] = []
        self.qlist_offsets: set[int] = set()
        self.qlist_used = False  # a broker may be configured without QLIST
        self.apps: dict[bytes, int] = {}  # queueKey -> number of apps, removed ones included
        data_bytes = view.lengths()[1]
        self.starts = dict(takewhile(  # offset -> size of the DATA records up to the first invalid one
            lambda each: each[1] >= DATA_RECORD_BYTES_MIN and not each[1] & 7 and sum(each) <= data_bytes,
            DataFile(view.read_data, data_bytes).walk()))

    def report(self, severity: str, text: str) -> None:
        self.found.append(FileFinding(severity, text))

    def report_each(self, severity: str, what: str, names: list[str]) -> None:
        """Add one finding that lists GUIDs or offsets, if there are any."""
        if names:
            self.report(severity, f"{len(names)} {what}: {join_limited(names, LISTED_MAX)}")

    # ---- journal -------------------------------------------------------------------------------------------------

    def check_journal(self) -> None:
        """Check the records and the messages that they form, in one pass."""
        scan = JournalScan(self.view.read_journal, self.view.lengths()[0])
        orphans: dict[int, list[str]] = {DELETION: [], CONFIRM: []}
        for item in by_message(self._check_records(records(scan))):
            if isinstance(item, MessageRecords) and item.message is None:
                for record in item.records:
                    if record.type == DELETION or record.flags != ConfirmReason.AUTO_CONFIRMED:
                        orphans[record.type].append(hex_key(record.guid))
        for kind, guids in orphans.items():
            self.report_each(WARNING, f"{RecordType(kind).name} record(s) name messages that are not in the journal", guids)

    def _check_records(self, found: Iterable[JournalRecord]) -> Iterator[JournalRecord]:
        """Check each record, in order, and yield it; then report the findings about all records."""
        latest = following = 0
        early, counts, odd = list[str](), list[str](), list[str]()
        position = DATA_HEADER_BYTES
        for record in found:
            following = 0 if record.is_sync_point else following + 1
            if record.wall or record.type != CONFIRM:  # the CONFIRM of a rejected message has no timestamp
                if record.wall < latest - CLOCK_STEP_SECONDS:
                    early.append(str(record.offset))
                else:
                    latest = max(latest, record.wall)
            if record.type == MESSAGE:
                self.messages.append(record)
                start = record.data_dwords * 8
                position = start + self.starts.get(start, 0)
                if record.ref_count > self.apps.get(record.queue_key, record.ref_count):
                    counts.append(hex_key(record.guid))
            elif record.type == QUEUE_OP:
                self.qlist_used |= record.qlist_words > 0
                self._check_queue_op(record)
            elif record.type == JOURNAL_OP:
                self.qlist_used |= record.qlist_words > 0
                self._check_sync_point(record, position)
            if _is_invalid(record):
                odd.append(str(record.offset))
            yield record
        self.report_each(WARNING, "record(s) are older than records before them, at offset", early)
        self.report_each(WARNING, "message(s) wait for more apps than their queue ever had", counts)
        self.report_each(WARNING, "record(s) have an impossible flag or an empty GUID, at offset", odd)
        if following:
            self.report(NOTE, f"{following} record(s) follow the last sync point: the broker runs, or did not stop cleanly")

    def _check_queue_op(self, record: JournalRecord) -> None:
        offset = record.qlist_words * 4
        if not record.is_listed or not offset:  # or the broker writes no QLIST
            return
        self.qlist_offsets.add(offset)
        try:
            apps = parse_queue_record(read_queue_record(self.view.read_qlist, offset) or b"")[2]
        except ValueError:
            return  # reported by recovery
        number = len(apps) or (record.op == QueueOp.CREATION)
        self.apps[record.queue_key] = self.apps.get(record.queue_key, 0) + number

    def _check_sync_point(self, record: JournalRecord, position: int) -> None:
        if not record.is_sync_point:
            self.report(NOTE, f"JOURNAL: the JOURNAL_OP at offset {record.offset} has the unknown operation {record.op}")
            return
        inner = record.inner_lease, record.inner_sequence
        if inner[0] > record.lease or inner[0] == record.lease and inner != record.psn:
            self.report(ERROR, f"JOURNAL: the sync point at offset {record.offset} is {record.lease}-{record.sequence}"
                        f" in its header and {inner[0]}-{inner[1]} in its body")
        if record.kind not in (SyncPoint.REGULAR, SyncPoint.ROLLOVER):
            self.report(ERROR, f"JOURNAL: the sync point at offset {record.offset} has the unknown type {record.kind}")
        if self.starts and record.data_dwords * 8 != position and not self.recovered.damaged:
            self.report(WARNING, f"JOURNAL: the sync point at offset {record.offset} says that DATA ends at"
                              f" {record.data_dwords * 8}; the last message before it ends at {position}")

    # ---- data ----------------------------------------------------------------------------------------------------

    def check_data(self) -> None:
        """Check the data of deleted messages; find DATA records of no message."""
        if not self.view.lengths()[1]:
            return
        live = {each.data_offset for each in self.recovered.state.live.values() if isinstance(each, Message)}
        live |= {each.data_offset for each in self.recovered.quarantined}
        _, damaged = check_messages(self.view.read_data, (_stored_message(record) for record in self.messages
                                                          if record.data_dwords not in live))
        for reason, messages in damaged.items():
            self.report_each(WARNING, f"deleted message(s) are damaged ({reason})",
                        [hex_key(message.guid) for message in messages])
        referred = {record.data_dwords * 8 for record in self.messages}
        unreferenced = [str(offset) for offset in self.starts
                        if offset not in referred and offset < self.recovered.data_end]
        self.report_each(WARNING, "DATA record(s) belong to no message of the journal, at offset", unreferenced)
        end = max((offset + size for offset, size in self.starts.items()), default=DATA_HEADER_BYTES)
        if end < self.recovered.data_end:
            self.report(WARNING, f"DATA: no record at offset {end}, but records follow it")

    # ---- qlist ---------------------------------------------------------------------------------------------------

    def check_qlist(self) -> None:
        """Check that all QLIST records are valid and referenced."""
        found, end, problem = queue_records(self.view.read_qlist(0, self.recovered.qlist_end), QLIST_HEADER_BYTES)
        if problem:
            self.report(WARNING, f"QLIST: no record at offset {end} ({problem})")
            return
        unreferenced = [str(offset) for offset, *_ in found if offset not in self.qlist_offsets]
        self.report_each(WARNING, "QLIST record(s) belong to no QUEUE_OP of the journal, at offset", unreferenced)


def _stored_message(record: JournalRecord) -> Message:
    message = Message(record.guid, None, crc=record.crc)
    message.data_offset = record.data_dwords
    return message


def _is_invalid(record: JournalRecord) -> bool:
    if record.type not in (CONFIRM, DELETION):
        return False
    reasons = set(ConfirmReason if record.type == CONFIRM else DeletionReason)
    return record.flags not in reasons or record.guid == NULL_GUID or record.queue_key == NULL_KEY


def verify_ledger(ledger: LedgerContents, name: str) -> list[FileFinding]:
    """Return all findings about a ledger; `name`: file name without its directory."""
    found = [FileFinding(ERROR, alarm) for alarm in ledger.alarms]
    log_id = parse_ledger_file_name(name)
    if log_id is not None and ledger.log_id and log_id != ledger.log_id:
        found.append(FileFinding(WARNING, f"the file's name says log id {hex_key(log_id)}, its header"
                                      f" {hex_key(ledger.log_id)}"))
    if not ledger.entries:
        found.append(FileFinding(ERROR, "no record can be read"))
    found += _check_order(ledger)
    if ledger.tail_zeros:
        found.append(FileFinding(NOTE, f"{ledger.tail_zeros} zero bytes after the last record: the broker runs, or did not"
                                   " stop cleanly"))
    return found


def _check_order(ledger: LedgerContents) -> Iterator[FileFinding]:
    """Check that LSNs ascend and changes are committed. Exceptions: the records that a rollover copies to the start of a
    file, and a snapshot, with which a cluster without its last term starts again."""
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
            open_changes.pop(value.sequence_number_committed, None)
        elif entry.record.type is LedgerRecordType.UPDATE:
            open_changes[entry.lsn] = entry.offset
    for lsn, offset in open_changes.items():
        yield FileFinding(NOTE, f"the change {lsn[0]}-{lsn[1]} at offset {offset} was never committed")


def leases_of(ledger: LedgerContents) -> dict[int, int]:
    """Return the highest lease of each partition in the ledger."""
    found: dict[int, int] = {}
    for entry in ledger.entries:
        value = entry.record.message.value
        if isinstance(value, LeaderAdvisory | PartitionPrimaryAdvisory):
            for each in value.partitions:
                found[each.partition_id] = max(found.get(each.partition_id, 0), each.primary_lease_id)
    return found


def verify(target: StorageTarget, with_ledger: bool, on_read: OnRead | None) -> list[FileFinding]:
    """Return all findings about the file sets of a target and, `with_ledger`, about its ledger."""
    with ExitStack() as stack:
        views = [(each, SetView(each, stack, on_read)) for each in target.sets]  # journals first: see JournalSnapshot
        return _verify(target, views, with_ledger, on_read)


def _verify(target: StorageTarget, views: list[tuple[SetFiles, SetView]], with_ledger: bool,
            on_read: OnRead | None) -> list[FileFinding]:
    found: list[FileFinding] = []
    ledger = None
    if target.ledger and with_ledger:
        ledger = open_ledger(target.ledger, on_read)
        name = target.ledger.rpartition("/")[2]
        found += [finding._replace(where=name) for finding in verify_ledger(ledger, name)]
    elif target.whole and with_ledger:
        found.append(FileFinding(WARNING, "there is no cluster state ledger (.bmq_csl)", target.name))
    found += [FileFinding(NOTE, "an older ledger, not checked", path.rpartition("/")[2]) for path in target.older_ledgers]
    queues = queues_of(ledger.entries) if ledger else {}
    leases = leases_of(ledger) if ledger else {}
    for each, view in views:
        found += _verify_one(each, view, queues, ledger, leases)
    found += _missing_sets(target, queues)
    return found


def _verify_one(each: SetFiles, view: SetView, queues: dict[bytes, LedgerQueue], ledger: LedgerContents | None,
                leases: dict[int, int]) -> list[FileFinding]:
    name = f"bmq_{each.partition_id}.{each.stamp}" if each.stamp else each.journal.rpartition("/")[2]
    number = each.partition_id if each.partition_id >= 0 else None
    known = None
    if number is not None and ledger is not None and ledger.entries:
        known = {key: queue for key, queue in queues.items()
                 if queue.partition_id == number and not queue.removed}
    findings, lease = verify_set(view, known, number)
    if number is not None and leases and lease > leases.get(number, 0):
        findings.append(FileFinding(ERROR, f"the journal has lease {lease}, the highest in the ledger"
                                    f" is {leases.get(number, 0)}"))
    return [finding._replace(where=name) for finding in findings]


def _missing_sets(target: StorageTarget, queues: dict[bytes, LedgerQueue]) -> list[FileFinding]:
    if not target.whole:
        return []
    there = [each.partition_id for each in target.sets if each.journal]
    wanted = {queue.partition_id for queue in queues.values() if not queue.removed}
    return [FileFinding(ERROR, f"partition {number} has queues in the ledger, but no journal", target.name)
            for number in sorted(wanted - set(there))] + [
        FileFinding(NOTE, f"partition {number} has several file sets: a rollover was interrupted", target.name)
        for number in sorted({number for number in there if there.count(number) > 1})]
