"""`bmq storage verify`: everything that can be seen to be wrong with a file set, without changing it.

Recovery is asked first: what a broker would say at its start. Then what recovery does not look at: data of messages
that are gone, records nothing refers to, sync points that disagree, times and counts that cannot be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from bmqtwist.ids import NULL_GUID, NULL_KEY
from bmqtwist.storage.datacheck import DATA_RECORD_BYTES_MIN, check_messages
from bmqtwist.storage.journal import JournalScan
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import (
    DATA_HEADER,
    DATA_WORDS_MASK,
    ConfirmReason,
    DeletionReason,
    FileType,
    QueueOp,
    SyncPoint,
    parse_queue_record,
)
from bmqtwist.storage.recovery import UNFINISHED, RecoveredPartition, recover
from bmqtwist.storage.store import DATA_HEADER_BYTES, QLIST_HEADER_BYTES
from bmqtwist.storagetool.fields import hex_key
from bmqtwist.storagetool.journalview import (
    ConfirmRecord,
    DeletionRecord,
    JournalOpRecord,
    JournalRecord,
    MessageRecord,
    QueueOpRecord,
    records,
)
from bmqtwist.storagetool.ledgerview import LedgerQueue
from bmqtwist.storagetool.selection import Story, is_sync_point, stories
from bmqtwist.storagetool.setview import ERROR, NOTE, WARNING, FileFinding, JournalSnapshot, SetView

CLOCK_STEP_SECONDS = 60  # a timestamp may lie so far before that of an earlier record: clocks are adjusted
LISTED_MAX = 10  # GUIDs or offsets named in one finding
_QLIST_BYTES_MAX = 64 << 20
_WINDOW_BYTES = 1 << 20  # of DATA read at a time


def verify_set(view: SetView, known: Mapping[bytes, LedgerQueue] | None,
               partition_id: int | None) -> tuple[list[FileFinding], int]:
    """All findings, and the last lease in the journal. known: queues of the ledger, None if there is none."""
    found = list(_presence(view))
    if view.sources[FileType.JOURNAL] is None or not view.lengths()[0]:
        return found, 0
    recovered = recover(view, known, partition_id=partition_id)
    absent = tuple(f"{kind.name}: {what}" for kind, source in view.sources.items()
                   if source is None or not source.size for what in ("file is shorter", "the file has 0 B"))
    severity = ERROR if recovered.damaged else WARNING
    journal = view.sources[FileType.JOURNAL]
    written = isinstance(journal, JournalSnapshot) and journal.grown()  # then DATA is ahead of it, as it should be
    found += [FileFinding(NOTE, text.replace(UNFINISHED, "they were written meanwhile"))
              if written and text.endswith(UNFINISHED) else FileFinding(severity, text)
              for text in recovered.alarms if not absent or not text.startswith(absent)]
    found += [FileFinding(ERROR, f"queue {queue.uri} ({hex_key(queue.key)}) is in the journal, but not in the ledger")
              for queue in recovered.queues.values() if queue.key in recovered.unlisted]
    checks = _Checks(view, recovered)
    checks.journal()
    checks.data()
    checks.qlist()
    found += checks.found
    if not checks.qlist_used:
        found = [each for each in found if each.text != _missing(FileType.QLIST)]
    for key, queue in (known or {}).items():
        if key not in recovered.queues:
            found.append(FileFinding(NOTE, f"queue {queue.uri} is in the ledger, but has no CREATION in the journal"))
    return found, recovered.lease


def _missing(kind: FileType) -> str:
    return f"the {kind.name} file is missing"


def _presence(view: SetView) -> Iterator[FileFinding]:
    for kind, source in view.sources.items():
        if source is None:
            yield FileFinding(ERROR, _missing(kind))
        elif not source.size:
            yield FileFinding(ERROR, f"the {kind.name} file is empty")


class _Checks:
    """What recovery leaves out."""

    def __init__(self, view: SetView, recovered: RecoveredPartition) -> None:
        self.view, self.recovered = view, recovered
        self.found: list[FileFinding] = []
        self.has_data = bool(view.lengths()[1])
        self.messages: list[MessageRecord] = []
        self.qlist_offsets: set[int] = set()
        self.qlist_used = False  # brokers can be told to write none
        self.apps: dict[bytes, int] = {}  # queueKey -> apps it ever had
        self.starts = dict(self._walk_data()) if self.has_data else {}

    def say(self, severity: str, text: str) -> None:
        """Add a finding."""
        self.found.append(FileFinding(severity, text))

    def listed(self, severity: str, what: str, places: list[str]) -> None:
        """Add one finding for many places, if there are any."""
        if places:
            more = f" and {len(places) - LISTED_MAX} more" if len(places) > LISTED_MAX else ""
            self.say(severity, f"{len(places)} {what}: {', '.join(places[:LISTED_MAX])}{more}")

    # ---- journal -------------------------------------------------------------------------------------------------

    def journal(self) -> None:
        """One pass over the records and the messages they make up."""
        scan = JournalScan(self.view.read_journal, self.view.lengths()[0])
        orphans: dict[str, list[str]] = {"DELETION": [], "CONFIRM": []}
        for item in stories(self._each(records(scan))):
            if isinstance(item, Story) and item.message is None and any(item.records):
                if item.deletion is not None:
                    orphans["DELETION"].append(item.deletion.guid.hex().upper())
                orphans["CONFIRM"] += [each.guid.hex().upper() for each in item.confirms
                                       if each.flags != ConfirmReason.AUTO_CONFIRMED]
        for kind, guids in orphans.items():
            self.listed(WARNING, f"{kind} record(s) name messages that are not in the journal", guids)

    def _each(self, found: Iterable[JournalRecord]) -> Iterator[JournalRecord]:
        latest = behind = 0
        early: list[str] = []
        odd: list[str] = []
        counts: list[str] = []
        position = DATA_HEADER_BYTES
        for record in found:
            behind = 0 if is_sync_point(record) else behind + 1
            rejected = isinstance(record, ConfirmRecord) and not record.wall
            if not rejected:
                if record.wall < latest - CLOCK_STEP_SECONDS:
                    early.append(str(record.offset))
                else:
                    latest = max(latest, record.wall)
            if isinstance(record, MessageRecord):
                self.messages.append(record)
                start = record.data_dwords * 8
                position = start + self.starts.get(start, 0)
                if record.ref_count > self.apps.get(record.queue_key, record.ref_count):
                    counts.append(record.guid.hex().upper())
            elif isinstance(record, QueueOpRecord):
                self.qlist_used |= record.qlist_words > 0
                self._queue_op(record)
            elif isinstance(record, JournalOpRecord):
                self.qlist_used |= record.qlist_words > 0
                self._sync_point(record, position)
            if _is_odd(record):
                odd.append(str(record.offset))
            yield record
        self.listed(WARNING, "record(s) are older than records before them, at offset", early)
        self.listed(WARNING, "message(s) wait for more apps than their queue ever had", counts)
        self.listed(WARNING, "record(s) have an impossible flag or an empty GUID, at offset", odd)
        if behind:
            self.say(NOTE, f"{behind} record(s) follow the last sync point: the broker runs, or did not stop cleanly")

    def _queue_op(self, record: QueueOpRecord) -> None:
        if record.op not in (QueueOp.CREATION, QueueOp.ADDITION):
            return
        offset = record.qlist_words * 4
        if not offset:
            return  # written without a QLIST
        self.qlist_offsets.add(offset)
        try:
            apps = parse_queue_record(self.view.read_qlist(offset, _QLIST_BYTES_MAX))[2]
        except ValueError:
            return  # recovery has told
        number = len(apps) or (record.op == QueueOp.CREATION)
        self.apps[record.queue_key] = self.apps.get(record.queue_key, 0) + number

    def _sync_point(self, record: JournalOpRecord, position: int) -> None:
        if not is_sync_point(record):
            self.say(NOTE, f"JOURNAL: the JOURNAL_OP at offset {record.offset} has the unknown operation {record.op}")
            return
        inner = record.inner_lease, record.inner_sequence
        if inner[0] > record.lease or inner[0] == record.lease and inner != record.psn:
            self.say(ERROR, f"JOURNAL: the sync point at offset {record.offset} is {record.lease}-{record.sequence}"
                            f" outside and {inner[0]}-{inner[1]} inside")
        if record.kind not in (SyncPoint.REGULAR, SyncPoint.ROLLOVER):
            self.say(ERROR, f"JOURNAL: the sync point at offset {record.offset} has the unknown type {record.kind}")
        if self.starts and record.data_dwords * 8 != position and not self.recovered.damaged:
            self.say(WARNING, f"JOURNAL: the sync point at offset {record.offset} says that DATA ends at"
                              f" {record.data_dwords * 8}; the last message before it ends at {position}")

    # ---- data ----------------------------------------------------------------------------------------------------

    def _walk_data(self) -> Iterator[tuple[int, int]]:
        """(offset, size) of the records from the start of DATA up to the first that is none."""
        offset, length = DATA_HEADER_BYTES, self.view.lengths()[1]
        base, window = 0, b""
        while offset < length:
            if not base <= offset <= base + len(window) - DATA_HEADER.size:
                base, window = offset, self.view.read_data(offset, _WINDOW_BYTES)
                if len(window) < DATA_HEADER.size:
                    return
            size = (DATA_HEADER.unpack_from(window, offset - base)[0] & DATA_WORDS_MASK) << 2
            if size < DATA_RECORD_BYTES_MIN or size & 7 or offset + size > length:
                return
            yield offset, size
            offset += size

    def data(self) -> None:
        """Data of messages that are gone, and DATA records that belong to no message."""
        if not self.has_data:
            return
        live = {each.data_offset for each in self.recovered.live.values() if isinstance(each, Message)}
        live |= {each.data_offset for each in self.recovered.quarantined}
        _, damaged = check_messages(self.view.read_data, (_message(record) for record in self.messages
                                                          if record.data_dwords not in live))
        for reason, messages in damaged.items():
            self.listed(WARNING, f"message(s) that are gone are damaged ({reason})",
                        [message.guid.hex().upper() for message in messages])
        referred = {record.data_dwords * 8 for record in self.messages}
        strangers = [str(offset) for offset in self.starts
                     if offset not in referred and offset < self.recovered.data_end]
        self.listed(WARNING, "DATA record(s) belong to no message of the journal, at offset", strangers)
        end = max((offset + size for offset, size in self.starts.items()), default=DATA_HEADER_BYTES)
        if end < self.recovered.data_end:
            self.say(WARNING, f"DATA: no record at offset {end}, though records follow it")

    # ---- qlist ---------------------------------------------------------------------------------------------------

    def qlist(self) -> None:
        """QLIST from its start: every record whole and referred to."""
        content = self.view.read_qlist(0, self.recovered.qlist_end)
        offset = QLIST_HEADER_BYTES
        strangers = []
        while offset < len(content):
            try:
                size = parse_queue_record(content, offset)[3]
            except ValueError as error:
                self.say(WARNING, f"QLIST: no record at offset {offset} ({error})")
                return
            if offset not in self.qlist_offsets:
                strangers.append(str(offset))
            offset += size
        self.listed(WARNING, "QLIST record(s) belong to no QUEUE_OP of the journal, at offset", strangers)


def _message(record: MessageRecord) -> Message:
    message = Message(record.guid, None, crc=record.crc)
    message.data_offset = record.data_dwords
    return message


def _is_odd(record: JournalRecord) -> bool:
    if isinstance(record, ConfirmRecord):
        return record.flags not in set(ConfirmReason) or record.guid == NULL_GUID or record.queue_key == NULL_KEY
    if isinstance(record, DeletionRecord):
        return record.flags not in set(DeletionReason) or record.guid == NULL_GUID or record.queue_key == NULL_KEY
    return False
