"""Recovery of a partition from its file set: one pass over JOURNAL, then over the DATA records of the live messages.

Recovery never stops at damage. Each loss or repair adds a finding to `alarms`; `damaged` requests a copy of the live
records to a new set, and the old set stays in the archive for inspection.

Recovered messages are of three kinds: pending for apps, to be delivered; pending for no app, since every app has confirmed
them but their DELETION was not written; and `quarantined`, whose stored data differs from the data that the producer sent.
A member of a cluster also keeps damaged messages that other members have stored: `to_repair`.

Called by `member/cluster.py` for a single broker and by `found_log.py` for a member of several; `bmq storage verify`
calls it, too. `journal.py` finds the records, `replay.py` applies them. Alarms are declared in `bmqtwist/alarms.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.ids import DEFAULT_APP_ID, DEFAULT_APP_KEY, NULL_GUID, NULL_KEY
from bmqtwist.storage.journal import UNFINISHED_TEXT, Entry, JournalScan, check_file_header
from bmqtwist.storage.layout import FILE_HEADER
from bmqtwist.storage.message import Message
from bmqtwist.storage.psn import NO_PSN, Psn
from bmqtwist.storage.records import (
    DATA_HEADER,
    DATA_MISMATCH,
    DATA_RECORD_BYTES_MIN,
    DATA_WORDS_MASK,
    JOURNAL_OP_BODY,
    MESSAGE_BODY,
    QLIST_MAGIC,
    SEQUENCE_MASK,
    SYNC_POINT_OP,
    TYPE_SHIFT,
    FileType,
    QueueOp,
    RecordType,
    check_messages,
    data_record_bytes,
    pack_queue_op,
    pack_queue_record,
    queue_records,
    read_queue_record,
)
from bmqtwist.storage.replay import Apps, Replay, qlist_entry
from bmqtwist.storage.state import PartitionState, StoredQueue
from bmqtwist.storage.store import DATA_HEADER_BYTES, QLIST_HEADER_BYTES, PartitionReader

_LISTED_MAX = 20  # GUIDs per alarm
GAP_SECONDS_MAX = 1  # counted between two MESSAGE records, for the age of GUIDs in the history
_TAIL_BYTES = 1 << 20  # searched for stale bytes after the end of DATA and QLIST


class KnownQueue(Protocol):
    """A queue of the metadata ledger."""

    @property
    def uri(self) -> str:
        """Canonical URI."""

    @property
    def apps(self) -> Mapping[str, bytes]:
        """appId -> key, in order of creation."""


class RecoveryFinding(NamedTuple):
    """A loss or repair. `file`: the file that the text is about."""

    kind: AlarmKind
    text: str
    file: FileType = FileType.JOURNAL


@dataclass(slots=True)
class RecoveredPartition:
    """Recovered state, PSN of the last record ((0, 0) if there is none), and write positions of the files, bytes.

    to_repair: messages with damaged data that stay. unlisted: keys of queues that the ledger does not list. unreadable: PSNs
    of skipped records, and of CREATIONs and ADDITIONs with a damaged QLIST record.
    """

    state: PartitionState = field(default_factory=PartitionState)
    lease: int = 0
    sequence: int = 0
    journal_end: int = 0
    data_end: int = DATA_HEADER_BYTES
    qlist_end: int = QLIST_HEADER_BYTES
    alarms: list[RecoveryFinding] = field(default_factory=list)
    damaged: bool = False
    quarantined: list[Message] = field(default_factory=list)
    to_repair: list[Message] = field(default_factory=list)
    unlisted: set[bytes] = field(default_factory=set)
    unreadable: list[tuple[int, int]] = field(default_factory=list)

    @property
    def queues(self) -> dict[bytes, StoredQueue]:
        return self.state.queues


def recover(files: PartitionReader, known: Mapping[bytes, KnownQueue] | None = None, epoch: float = 0.0,
            partition_id: int | None = None, wall_max: int | None = None, durable: Psn = NO_PSN) -> RecoveredPartition:
    """Read the current file set.

    known: queues of the metadata ledger, None without a ledger. epoch: wall minus monotonic clock, seconds, for
    `Message.arrived`. wall_max: present time, epoch seconds, as upper bound of arrival times; None if unknown. durable: up
    to this PSN, messages whose data do not match their checksum are kept, to be repaired with the copies of other members.
    """
    found = Recovery(files, known, epoch, wall_max)
    found.check_headers(partition_id)
    found.read_journal()
    found.read_data_files(durable)
    return found.recovered


def join_limited(texts: list[str], limit: int) -> str:
    """Join up to `limit` texts, followed by the number of the rest."""
    return ", ".join(texts[:limit]) + (f" and {len(texts) - limit} more" if len(texts) > limit else "")


class Recovery(Replay):
    """Replay that skips or repairs damaged records."""

    def __init__(self, files: PartitionReader, known: Mapping[bytes, KnownQueue] | None, epoch: float,
                 wall_max: int | None) -> None:
        self.recovered = RecoveredPartition()
        super().__init__(self.recovered.state, epoch, 1 << 62 if wall_max is None else wall_max)
        self.files, self.known, self._now = files, known, wall_max
        self._seen_at, self._wall = 0.0, 0  # seconds counted between MESSAGE records; time of the last one
        self.journal_size, self.data_size, self.qlist_size = files.lengths()
        self.scan = JournalScan(files.read_journal, self.journal_size, files.journal_after)
        self.last_offset = 0  # DATA offset of the last MESSAGE, bytes
        self.qlist_end, self.sync_data, self.sync_qlist = QLIST_HEADER_BYTES, DATA_HEADER_BYTES, QLIST_HEADER_BYTES
        self.unknown_keys: dict[bytes, int] = {}  # queueKey without CREATION -> number of its records
        self.unmatched_confirms = 0
        self.from_ledger: set[bytes] = set()  # queues whose apps are only in the ledger
        self.listed: dict[bytes, tuple[str, Apps]] | None = None  # all queues of QLIST

    def report(self, text: str, kind: AlarmKind, file: FileType = FileType.JOURNAL) -> None:
        """Add a finding for the operator."""
        self.recovered.alarms.append(RecoveryFinding(kind, text, file))

    def report_damage(self, text: str, kind: AlarmKind = alarms.RECOVERY_DAMAGE, file: FileType = FileType.JOURNAL) -> None:
        """Add a finding about a loss or an error on disk, and request a copy of the set."""
        self.recovered.damaged = True
        self.report(text, kind, file)

    def mark_unreadable(self, entry: Entry) -> None:
        """Record that a record, or part of it, was not applied."""
        self.recovered.unreadable.append((entry[2], entry[1] & SEQUENCE_MASK))

    # ---- headers -------------------------------------------------------------------------------------------------

    def check_headers(self, partition_id: int | None) -> None:
        """Check the file headers; the records after a wrong header are read as usual."""
        readers = ((FileType.JOURNAL, self.files.read_journal), (FileType.DATA, self.files.read_data),
                   (FileType.QLIST, self.files.read_qlist))
        for kind, read in readers:
            header = read(0, DATA_HEADER_BYTES)
            wrong = check_file_header(header, kind, partition_id)
            if wrong:
                self.report_damage(f"{kind.name}: {wrong}; the file is read as if its header were valid",
                                   alarms.FILE_TOO_SHORT if len(header) < FILE_HEADER.size else alarms.RECOVERY_DAMAGE, kind)
        self.recovered.damaged |= self.files.file_missing

    # ---- journal -------------------------------------------------------------------------------------------------

    def read_journal(self) -> None:
        """Apply every accepted record; report mismatches."""
        scan, recovered, state = self.scan, self.recovered, self.state
        self.run(scan)
        recovered.lease, recovered.sequence, recovered.journal_end = scan.lease, scan.sequence, scan.end
        state.lease, state.sequence = scan.lease, scan.sequence
        for text in scan.problems:
            self.report(text, alarms.RECOVERY_DAMAGE)
        if scan.unfinished:
            self.report(scan.unfinished, alarms.UNFINISHED_WRITE)
        recovered.damaged |= scan.damaged
        now = (self._wall if self._now is None else self._now) - self.epoch
        for queue in state.queues.values():
            queue.history.shift_times(now - self._seen_at)
        for key, count in self.unknown_keys.items():
            self.report_damage(f"JOURNAL: {count} record(s) belong to queue key {key.hex().upper()}, which has no CREATION:"
                               " they are dropped")
        if self.unmatched_confirms:
            self.report(f"JOURNAL: {self.unmatched_confirms} CONFIRM record(s) name absent messages or apps and are ignored",
                        alarms.RECOVERY_DAMAGE)
        if self.journal_size and not scan.preallocated and scan.last_head >> TYPE_SHIFT != RecordType.JOURNAL_OP:
            self.report_damage("JOURNAL: the file ends without a sync point: it was truncated; later records are lost, and"
                               " messages confirmed since may be delivered again")

    def on_unknown_queue(self, key: bytes, entry: Entry) -> StoredQueue | None:
        """Create the queue of a record without CREATION from the ledger or QLIST; None if it is in neither."""
        if key not in self.unknown_keys:
            record = self.known.get(key) if self.known else None
            listed = (record.uri, list(record.apps.items())) if record else self.queues_in_qlist().get(key)
            if listed is not None and key != NULL_KEY:
                offset, head, lease, wall, _ = entry
                self.report_damage(f"JOURNAL: no CREATION of {listed[0]} before offset {offset}: taken from the"
                                   f" {'ledger' if record else 'QLIST'}")
                # the PSN before this record, which the lost record had; a duplicate if the sequence is 1
                created = pack_queue_op((lease, max(1, (head & SEQUENCE_MASK) - 1)), wall, key, NULL_KEY, QueueOp.CREATION)
                return self.create(key, *listed, created, pack_queue_record(listed[0], key, listed[1]),
                                   from_ledger=record is not None)
        self.unknown_keys[key] = self.unknown_keys.get(key, 0) + 1
        self.mark_unreadable(entry)
        return None

    def queues_in_qlist(self) -> dict[bytes, tuple[str, Apps]]:
        """Return URI and apps of every queue key in QLIST."""
        if self.listed is None:
            self.listed = {}
            for _, uri, key, apps in queue_records(self.files.read_qlist(0, self.qlist_size), QLIST_HEADER_BYTES)[0]:
                if any(app_key == NULL_KEY for _, app_key in apps):
                    break
                self.listed.setdefault(key, (uri, []))[1].extend(apps)
        return self.listed

    def read_queue_record(self, offset: int) -> tuple[str, bytes, Apps, bytes]:
        """Return (URI, key, apps, record) of the QLIST record at `offset`; ValueError if there is none."""
        record = read_queue_record(self.files.read_qlist, offset)
        if offset < QLIST_HEADER_BYTES or record is None:
            raise ValueError("offset is outside of QLIST")
        return qlist_entry(record)

    def read_data(self, queue: StoredQueue, message: Message) -> int:
        """Store the DATA offset; `read_data_files` reads DATA of the live messages only."""
        self.last_offset = message.data_offset * 8
        return 0

    def on_invalid_message(self, queue: StoredQueue | None, guid: bytes, entry: Entry) -> None:
        """Skip the MESSAGE and report it."""
        self.last_offset = MESSAGE_BODY.unpack(entry[4])[3] * 8
        if queue is not None:
            self.mark_unreadable(entry)
            what = "no GUID" if guid == NULL_GUID else f"GUID {guid.hex().upper()}, which is stored already"
            self.report_damage(f"JOURNAL: the MESSAGE at offset {entry[0]} has {what}: skipped")

    def on_stored(self, queue: StoredQueue, message: Message) -> None:
        """Add the GUID to the history; if the apps come from the ledger, the reference count gives the pending ones."""
        super().on_stored(queue, message)
        if self.from_ledger and queue.key in self.from_ledger:
            saw = message.ref_count + len(message.confirms or ())
            message.pending &= (1 << saw) - 1 if saw < queue.app_count else -1

    def arrival_time(self, message: Message) -> float:
        """Return the time counted so far, with at most GAP_SECONDS_MAX between two messages: clock jumps and downtime must
        not expire GUIDs too early, as a repeated PUT would be stored twice."""
        self._seen_at += min(max(0, message.wall - self._wall), GAP_SECONDS_MAX)
        self._wall = message.wall
        return self._seen_at

    def on_unmatched_confirm(self, entry: Entry, why: str) -> None:
        """Count the CONFIRM; `read_journal` reports their number."""
        self.unmatched_confirms += 1

    def on_unknown_record(self, entry: Entry, why: str) -> None:
        self.mark_unreadable(entry)
        self.report_damage(f"JOURNAL: the record at offset {entry[0]} {why}: skipped")

    def apply_journal_op(self, entry: Entry) -> None:
        """Check the positions in a sync point against the file lengths; ignore other operations."""
        _, op, _, _, _, dwords, words = JOURNAL_OP_BODY.unpack(entry[4])
        if op != SYNC_POINT_OP:
            return
        super().apply_journal_op(entry)
        data, qlist = dwords * 8, words * 4
        for kind, position, size in ((FileType.DATA, data, self.data_size), (FileType.QLIST, qlist, self.qlist_size)):
            if position > size:
                self.report_damage(f"{kind.name}: the file has {size} B, but the sync point at JOURNAL offset {entry[0]}"
                                   f" says {position}", alarms.FILE_TOO_SHORT, kind)
        self.sync_data, self.sync_qlist = max(self.sync_data, data), max(self.sync_qlist, qlist)

    # ---- queues --------------------------------------------------------------------------------------------------

    def apply_declaration(self, key: bytes, op: QueueOp, qlist_offset: int, record: bytes, entry: Entry) -> None:
        """Apply a CREATION or ADDITION with URI and apps from QLIST, corrected from the ledger."""
        known = self.known.get(key) if self.known else None
        try:
            if not qlist_offset:
                raise ValueError("no QLIST record")
            uri, listed_key, apps, qlist = self.read_queue_record(qlist_offset)
            self.qlist_end = max(self.qlist_end, qlist_offset + len(qlist))
            if listed_key != key or qlist[-4:] != QLIST_MAGIC:
                self.mark_unreadable(entry)
                self.report_damage(f"QLIST: the record at offset {qlist_offset} has a wrong queue key or end mark")
                qlist = pack_queue_record(uri, key, apps)
        except ValueError as error:
            uri, apps, qlist = "", [], b""
            if qlist_offset:
                self.mark_unreadable(entry)
            if qlist_offset or known is None:
                self.report_damage(f"QLIST: the record at offset {qlist_offset} for queue key {key.hex().upper()} is"
                                   f" unreadable ({error})")
        from_ledger = not qlist
        if known is not None:
            names = {app_key: app_id for app_id, app_key in known.apps.items()}
            corrected = [(names.get(app_key, app_id), app_key) for app_id, app_key in apps]
            if not qlist or DEFAULT_APP_ID in known.apps:  # the default app only, which never changes
                corrected = list(known.apps.items())
            if qlist and (uri, apps) != (known.uri, corrected):
                self.report_damage(f"QLIST: the record at offset {qlist_offset} says {uri!r} {apps}, the ledger"
                                   f" {known.uri!r} {corrected}: the ledger is used")
            uri, apps = known.uri, corrected
            qlist = pack_queue_record(uri, key, apps)
        queue = self.state.queues.get(key)
        if queue is None:
            if not qlist:
                self.unknown_keys.setdefault(key, 0)
                return
            if not apps and op == QueueOp.CREATION:
                apps = [(DEFAULT_APP_ID, DEFAULT_APP_KEY)]
            if op == QueueOp.ADDITION:
                self.report_damage(f"JOURNAL: the ADDITION at offset {entry[0]} for {uri} has no CREATION before it")
            self.create(key, uri, apps, record, qlist, from_ledger)
        elif op == QueueOp.CREATION:
            self.report_damage(f"JOURNAL: the CREATION at offset {entry[0]} for {uri} is the second one: ignored")
        elif qlist:
            self.state.apply_addition(queue, apps, record, qlist)

    def create(self, key: bytes, uri: str, apps: Apps, record: bytes, qlist: bytes, from_ledger: bool) -> StoredQueue:
        if self.known is not None and key not in self.known:
            self.recovered.unlisted.add(key)
        self.unknown_keys.pop(key, None)
        if from_ledger:
            self.from_ledger.add(key)
        else:
            self.from_ledger.discard(key)
        return self.state.apply_creation(key, uri, apps, record, qlist)

    def apply_queue_deletion(self, queue: StoredQueue | None, key: bytes) -> None:
        self.unknown_keys.pop(key, None)
        self.recovered.unlisted.discard(key)
        super().apply_queue_deletion(queue, key)

    # ---- data ----------------------------------------------------------------------------------------------------

    def read_data_files(self, durable: Psn) -> None:
        """Read sizes, options and checksums of the live messages; find the ends of DATA and QLIST."""
        bytes_of_good, damaged = check_messages(self.files.read_data, self.state.live_messages())
        mismatched = damaged.pop(DATA_MISMATCH, [])
        kept = self.recovered.to_repair = [each for each in mismatched if (each.lease, each.sequence) <= durable]
        if len(kept) < len(mismatched):
            damaged[DATA_MISMATCH] = [each for each in mismatched if (each.lease, each.sequence) > durable]
        for reason, messages in damaged.items():
            self.quarantine(reason, messages)
        self.state.data_bytes = DATA_HEADER_BYTES + bytes_of_good + sum(
            data_record_bytes(DATA_HEADER.size + len(message.options) + message.size) for message in kept)
        self.state.count_bytes()
        self.find_ends()

    def quarantine(self, reason: str, messages: list[Message]) -> None:
        """Remove damaged messages; the archived files keep their data.

        Their GUIDs leave the history, so that a producer without an ACK can post them again.
        """
        guids = join_limited([message.guid.hex().upper() for message in messages], _LISTED_MAX)
        self.report_damage(f"DATA: {len(messages)} message(s) are damaged ({reason}) and not delivered: {guids}")
        queues = self.state.queues
        for key in {message.queue_key for message in messages}:
            queues[key].history.remove({message.guid for message in messages})
        for message in messages:
            self.state.apply_deletion(queues[message.queue_key], message)
        self.recovered.quarantined += messages

    def find_ends(self) -> None:
        """Set the write positions of DATA and QLIST; report stale bytes after them."""
        state = self.recovered
        end = DATA_HEADER_BYTES
        if self.last_offset:
            header = self.files.read_data(self.last_offset, DATA_HEADER.size).ljust(DATA_HEADER.size, b"\0")
            size = (DATA_HEADER.unpack(header)[0] & DATA_WORDS_MASK) << 2
            end = self.last_offset + size
            if size < DATA_RECORD_BYTES_MIN or size % 8 or end > self.data_size:
                self.report_damage(f"DATA: the last record, at offset {self.last_offset}, is unreadable")
                end = self.last_offset
        state.data_end = min(max(end, self.sync_data), max(self.data_size, DATA_HEADER_BYTES))
        state.qlist_end = min(max(self.qlist_end, self.sync_qlist), max(self.qlist_size, QLIST_HEADER_BYTES))
        for kind, read, position in ((FileType.DATA, self.files.read_data, state.data_end),
                                     (FileType.QLIST, self.files.read_qlist, state.qlist_end)):
            stale = len(read(position, _TAIL_BYTES).rstrip(b"\0"))
            if not stale:
                continue
            text = f"{kind.name}: at least {stale} B after offset {position} belong to no record of the journal"
            if not self.scan.preallocated:
                self.report_damage(f"{text}, though the files were closed: records are missing", file=kind)
            elif self.scan.damaged:
                self.report_damage(f"{text}, which is damaged: they are cut off", file=kind)
            else:
                self.report(f"{text}: {UNFINISHED_TEXT}", alarms.UNFINISHED_WRITE, kind)
