"""What a file set says: one pass forward over JOURNAL, then over the DATA records of the messages that are left.

Nothing here stops at damage. What is lost or put right becomes a sentence in `alarms`, and `damaged` asks for the live
records to be copied into a new set, which leaves the old one as evidence.

Three kinds of messages come out: those that wait for apps, to be delivered; those with nothing pending, which every app
has confirmed but whose DELETION was never written; and `quarantined`, whose stored data is not what the producer sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bmqtwist.ids import DEFAULT_APP_ID, DEFAULT_APP_KEY, NULL_GUID, NULL_KEY
from bmqtwist.storage.journal import Entry, JournalScan, check_file_header
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import (
    DATA_HEADER,
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
    pack_queue_op,
    pack_queue_record,
    queue_records,
    read_queue_record,
)
from bmqtwist.storage.replay import Apps, Replay, qlist_entry
from bmqtwist.storage.state import PartitionState, StoredQueue
from bmqtwist.storage.store import DATA_HEADER_BYTES, QLIST_HEADER_BYTES, PartitionReader

UNFINISHED = "they were being written when the broker died, and are cut off"  # the end of an alarm about DATA or QLIST
_LISTED_MAX = 20  # GUIDs named in one alarm
GAP_SECONDS_MAX = 1  # that may have passed between two MESSAGE records, for the GUIDs that are remembered
_TAIL_BYTES = 1 << 20  # how far behind the end of DATA and QLIST stale bytes are looked for


class KnownQueue(Protocol):
    """A queue as the metadata ledger knows it."""

    @property
    def uri(self) -> str:
        """Canonical URI."""

    @property
    def apps(self) -> Mapping[str, bytes]:
        """appId -> key, in order of creation."""


@dataclass(slots=True)
class RecoveredPartition:
    """What was found: the state, the PSN of the last record (0, 0: there is none), and where the files end, bytes.

    unlisted: keys of queues that the ledger does not know. unreadable: PSNs of records that are left out, and of
    CREATIONs and ADDITIONs whose QLIST record is not what was written.
    """

    state: PartitionState = field(default_factory=PartitionState)
    lease: int = 0
    sequence: int = 0
    journal_end: int = 0
    data_end: int = DATA_HEADER_BYTES
    qlist_end: int = QLIST_HEADER_BYTES
    alarms: list[str] = field(default_factory=list)
    damaged: bool = False
    quarantined: list[Message] = field(default_factory=list)
    unlisted: set[bytes] = field(default_factory=set)
    unreadable: list[tuple[int, int]] = field(default_factory=list)

    @property
    def queues(self) -> dict[bytes, StoredQueue]:
        return self.state.queues


def recover(files: PartitionReader, known: Mapping[bytes, KnownQueue] | None = None, epoch: float = 0.0,
            partition_id: int | None = None, wall_max: int | None = None) -> RecoveredPartition:
    """Read the current file set.

    known: queues of the metadata ledger, None if there is no ledger to compare with. epoch: wall minus monotonic clock,
    seconds, for `Message.arrived`. wall_max: now, epoch seconds: what a clock that was ahead says arrived later counts as
    having arrived now; None = it is not known.
    """
    found = Recovery(files, known, epoch, wall_max)
    found.check_headers(partition_id)
    found.read_journal()
    found.read_data_files()
    return found.recovered


def listed(texts: list[str], limit: int) -> str:
    """Up to `limit` of them, and how many more there are."""
    return ", ".join(texts[:limit]) + (f" and {len(texts) - limit} more" if len(texts) > limit else "")


class Recovery(Replay):
    """A replay that makes the best of whatever the files hold."""

    def __init__(self, files: PartitionReader, known: Mapping[bytes, KnownQueue] | None, epoch: float,
                 wall_max: int | None) -> None:
        self.recovered = RecoveredPartition()
        super().__init__(self.recovered.state, epoch, 1 << 62 if wall_max is None else wall_max)
        self.files, self.known, self._now = files, known, wall_max
        self._seen_at, self._wall = 0.0, 0  # seconds counted between the MESSAGE records up to now; time of the last one
        self.journal_size, self.data_size, self.qlist_size = files.lengths()
        self.scan = JournalScan(files.read_journal, self.journal_size, files.journal_after)
        self.last_offset = 0  # of the DATA record of the last MESSAGE, bytes
        self.qlist_end, self.sync_data, self.sync_qlist = QLIST_HEADER_BYTES, DATA_HEADER_BYTES, QLIST_HEADER_BYTES
        self.strangers: dict[bytes, int] = {}  # queueKey nobody knows -> its records
        self.unmatched_confirms = 0
        self.from_ledger: set[bytes] = set()  # queues whose apps only the ledger knows
        self.listed: dict[bytes, tuple[str, Apps]] | None = None  # QLIST walked as a whole

    def damage(self, text: str) -> None:
        """Something is lost or wrong on disk: a person is told, and the set is copied."""
        self.recovered.damaged = True
        self.recovered.alarms.append(text)

    def left_out(self, entry: Entry) -> None:
        """The state is not what this record would make of it."""
        self.recovered.unreadable.append((entry[2], entry[1] & SEQUENCE_MASK))

    # ---- headers -------------------------------------------------------------------------------------------------

    def check_headers(self, partition_id: int | None) -> None:
        """File headers; a wrong one is no reason not to read what follows."""
        readers = ((FileType.JOURNAL, self.files.read_journal), (FileType.DATA, self.files.read_data),
                   (FileType.QLIST, self.files.read_qlist))
        for kind, read in readers:
            wrong = check_file_header(read(0, DATA_HEADER_BYTES), kind, partition_id)
            if wrong:
                self.damage(f"{kind.name}: {wrong}; read as if the header were right")
        self.recovered.damaged |= self.files.broken

    # ---- journal -------------------------------------------------------------------------------------------------

    def read_journal(self) -> None:
        """Apply every accepted record, and say what did not fit together."""
        scan, recovered, state = self.scan, self.recovered, self.state
        self.run(scan)
        recovered.lease, recovered.sequence, recovered.journal_end = scan.lease, scan.sequence, scan.end
        state.lease, state.sequence = scan.lease, scan.sequence
        recovered.alarms += scan.problems
        recovered.damaged |= scan.damaged
        now = (self._wall if self._now is None else self._now) - self.epoch
        for queue in state.queues.values():
            queue.history.shift(now - self._seen_at)
        for key, count in self.strangers.items():
            self.damage(f"JOURNAL: {count} record(s) belong to queue key {key.hex().upper()}, which nothing explains:"
                        " they are not carried on")
        if self.unmatched_confirms:
            recovered.alarms.append(f"JOURNAL: {self.unmatched_confirms} CONFIRM record(s) name messages or apps that are"
                                    " not there: ignored")
        if self.journal_size and not scan.preallocated and scan.last_head >> TYPE_SHIFT != RecordType.JOURNAL_OP:
            self.damage("JOURNAL: the file ends without a sync point: it was cut; later records are lost, and messages"
                        " confirmed since may be delivered again")

    def unknown_queue(self, key: bytes, entry: Entry) -> StoredQueue | None:
        """A record of a queue whose CREATION was not seen: the ledger or a walk over QLIST may know it."""
        if key not in self.strangers:
            record = self.known.get(key) if self.known else None
            listed = (record.uri, list(record.apps.items())) if record else self.walk_qlist().get(key)
            if listed is not None and key != NULL_KEY:
                offset, head, lease, wall, _ = entry
                self.damage(f"JOURNAL: no CREATION of {listed[0]} before offset {offset}: taken from the"
                            f" {'ledger' if record else 'QLIST'}")
                # just before this record, where a lost one had the number, or (1, and two of them) equal to another
                created = pack_queue_op((lease, max(1, (head & SEQUENCE_MASK) - 1)), wall, key, NULL_KEY, QueueOp.CREATION)
                return self.create(key, *listed, created, pack_queue_record(listed[0], key, listed[1]),
                                   from_ledger=record is not None)
        self.strangers[key] = self.strangers.get(key, 0) + 1
        self.left_out(entry)
        return None

    def walk_qlist(self) -> dict[bytes, tuple[str, Apps]]:
        """Every queue key in QLIST with its URI and apps."""
        if self.listed is None:
            self.listed = {}
            for _, uri, key, apps in queue_records(self.files.read_qlist(0, self.qlist_size), QLIST_HEADER_BYTES)[0]:
                if any(app_key == NULL_KEY for _, app_key in apps):
                    break
                self.listed.setdefault(key, (uri, []))[1].extend(apps)
        return self.listed

    def read_queue_record(self, offset: int) -> tuple[str, bytes, Apps, bytes]:
        """(URI, key, apps, bytes) of the QLIST record at `offset`; ValueError if there is none."""
        record = read_queue_record(self.files.read_qlist, offset)
        if offset < QLIST_HEADER_BYTES or record is None:
            raise ValueError("offset is outside of QLIST")
        return qlist_entry(record)

    def read_data(self, queue: StoredQueue, message: Message) -> int:
        """DATA is read later, and only for what is left then."""
        self.last_offset = message.data_offset * 8
        return 0

    def odd_message(self, queue: StoredQueue | None, guid: bytes, entry: Entry) -> None:
        """A MESSAGE that cannot be kept."""
        self.last_offset = MESSAGE_BODY.unpack(entry[4])[3] * 8
        if queue is not None:
            self.left_out(entry)
            what = "no GUID" if guid == NULL_GUID else f"GUID {guid.hex().upper()}, which is stored already"
            self.damage(f"JOURNAL: the MESSAGE at offset {entry[0]} has {what}: skipped")

    def stored(self, queue: StoredQueue, message: Message) -> None:
        """Remember its GUID; the reference count says which apps it waits for where only the ledger knows the apps."""
        super().stored(queue, message)
        if self.from_ledger and queue.key in self.from_ledger:
            saw = message.ref_count + len(message.confirms or ())
            message.pending &= (1 << saw) - 1 if saw < queue.app_count else -1

    def seen_at(self, message: Message) -> float:
        """By the time that passed between messages: clocks that jumped, and the time for which nobody ran, count as little
        as may be, since a GUID that is forgotten too early is a message that is stored twice."""
        self._seen_at += min(max(0, message.wall - self._wall), GAP_SECONDS_MAX)
        self._wall = message.wall
        return self._seen_at

    def unmatched(self, entry: Entry, why: str) -> None:
        """A CONFIRM of something that is not there: counted."""
        self.unmatched_confirms += 1

    def unknown(self, entry: Entry, why: str) -> None:
        self.left_out(entry)
        self.damage(f"JOURNAL: the record at offset {entry[0]} {why}: skipped")

    def journal_op(self, entry: Entry) -> None:
        """Positions that must exist. Other operations than sync points mean nothing to us."""
        _, op, _, _, _, dwords, words = JOURNAL_OP_BODY.unpack(entry[4])
        if op != SYNC_POINT_OP:
            return
        super().journal_op(entry)
        data, qlist = dwords * 8, words * 4
        for name, position, size in (("DATA", data, self.data_size), ("QLIST", qlist, self.qlist_size)):
            if position > size:
                self.damage(f"{name}: the file has {size} B, but the sync point at JOURNAL offset {entry[0]}"
                            f" says {position}")
        self.sync_data, self.sync_qlist = max(self.sync_data, data), max(self.sync_qlist, qlist)

    # ---- queues --------------------------------------------------------------------------------------------------

    def declare(self, key: bytes, op: QueueOp, qlist_offset: int, record: bytes, entry: Entry) -> None:
        """CREATION or ADDITION: URI and apps from QLIST, held against the ledger."""
        known = self.known.get(key) if self.known else None
        try:
            if not qlist_offset:
                raise ValueError("no QLIST record")
            uri, listed_key, apps, qlist = self.read_queue_record(qlist_offset)
            self.qlist_end = max(self.qlist_end, qlist_offset + len(qlist))
            if listed_key != key or qlist[-4:] != QLIST_MAGIC:
                self.left_out(entry)
                self.damage(f"QLIST: the record at offset {qlist_offset} has a wrong queue key or end mark")
                qlist = pack_queue_record(uri, key, apps)
        except ValueError as error:
            uri, apps, qlist = "", [], b""
            if qlist_offset:
                self.left_out(entry)
            if qlist_offset or known is None:
                self.damage(f"QLIST: the record at offset {qlist_offset} for queue key {key.hex().upper()} is"
                            f" unreadable ({error})")
        from_ledger = not qlist
        if known is not None:
            names = {app_key: app_id for app_id, app_key in known.apps.items()}
            corrected = [(names.get(app_key, app_id), app_key) for app_id, app_key in apps]
            if not qlist or DEFAULT_APP_ID in known.apps:  # a queue without apps of its own: they never change
                corrected = list(known.apps.items())
            if qlist and (uri, apps) != (known.uri, corrected):
                self.damage(f"QLIST: the record at offset {qlist_offset} says {uri!r} {apps}, the ledger {known.uri!r}"
                            f" {corrected}: the ledger is right")
            uri, apps = known.uri, corrected
            qlist = pack_queue_record(uri, key, apps)
        queue = self.state.queues.get(key)
        if queue is None:
            if not qlist:
                self.strangers.setdefault(key, 0)
                return
            if not apps and op == QueueOp.CREATION:
                apps = [(DEFAULT_APP_ID, DEFAULT_APP_KEY)]
            if op == QueueOp.ADDITION:
                self.damage(f"JOURNAL: the ADDITION at offset {entry[0]} for {uri} has no CREATION before it")
            self.create(key, uri, apps, record, qlist, from_ledger)
        elif op == QueueOp.CREATION:
            self.damage(f"JOURNAL: the CREATION at offset {entry[0]} for {uri} is the second one: ignored")
        elif qlist:
            self.state.add_apps(queue, apps, record, qlist)

    def create(self, key: bytes, uri: str, apps: Apps, record: bytes, qlist: bytes, from_ledger: bool) -> StoredQueue:
        if self.known is not None and key not in self.known:
            self.recovered.unlisted.add(key)
        self.strangers.pop(key, None)
        if from_ledger:
            self.from_ledger.add(key)
        else:
            self.from_ledger.discard(key)
        return self.state.create(key, uri, apps, record, qlist)

    def delete_queue(self, queue: StoredQueue | None, key: bytes) -> None:
        self.strangers.pop(key, None)
        self.recovered.unlisted.discard(key)
        super().delete_queue(queue, key)

    # ---- data ----------------------------------------------------------------------------------------------------

    def read_data_files(self) -> None:
        """Sizes, options and checksums of the live messages, then where DATA and QLIST end."""
        bytes_of_good, damaged = check_messages(self.files.read_data, self.state.messages())
        for reason, messages in damaged.items():
            self.quarantine(reason, messages)
        self.state.data_bytes = DATA_HEADER_BYTES + bytes_of_good
        self.find_ends()

    def quarantine(self, reason: str, messages: list[Message]) -> None:
        """Messages that must not be delivered; the old files keep what there is of them.

        Their GUIDs are forgotten: a producer that never got an ACK posts them again, and they are new then.
        """
        guids = listed([message.guid.hex().upper() for message in messages], _LISTED_MAX)
        self.damage(f"DATA: {len(messages)} message(s) are damaged ({reason}) and not delivered: {guids}")
        queues = self.state.queues
        for key in {message.queue_key for message in messages}:
            queues[key].history.forget({message.guid for message in messages})
        for message in messages:
            self.state.deletion(queues[message.queue_key], message)
        self.recovered.quarantined += messages

    def find_ends(self) -> None:
        """Write positions of DATA and QLIST, and whether anything lies behind them."""
        state = self.recovered
        end = DATA_HEADER_BYTES
        if self.last_offset:
            header = self.files.read_data(self.last_offset, DATA_HEADER.size).ljust(DATA_HEADER.size, b"\0")
            size = (DATA_HEADER.unpack(header)[0] & DATA_WORDS_MASK) << 2
            end = self.last_offset + size
            if size < DATA_RECORD_BYTES_MIN or size % 8 or end > self.data_size:
                self.damage(f"DATA: the last record, at offset {self.last_offset}, is unreadable")
                end = self.last_offset
        state.data_end = min(max(end, self.sync_data), max(self.data_size, DATA_HEADER_BYTES))
        state.qlist_end = min(max(self.qlist_end, self.sync_qlist), max(self.qlist_size, QLIST_HEADER_BYTES))
        for name, read, position in (("DATA", self.files.read_data, state.data_end),
                                     ("QLIST", self.files.read_qlist, state.qlist_end)):
            stale = len(read(position, _TAIL_BYTES).rstrip(b"\0"))
            if not stale:
                continue
            text = f"{name}: at least {stale} B behind offset {position} belong to no record of the journal"
            if self.scan.preallocated:
                state.alarms.append(f"{text}: {UNFINISHED}")
            else:
                self.damage(f"{text}, though the files were closed: records are missing")
