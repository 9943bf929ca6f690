"""What a file set says: one pass forward over JOURNAL, then over the DATA records of the messages that are left.

Nothing here stops at damage. What is lost or put right becomes a sentence in `alarms`, and `damaged` asks for the live
records to be copied into a new set, which leaves the old one as evidence.

Three kinds of messages come out: those of `queues`, to be delivered; `finished`, which every app has confirmed but
whose DELETION was never written; and `quarantined`, whose stored data is not what the producer sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bmqtwist.ids import DEFAULT_APP_ID, DEFAULT_APP_KEY, NULL_GUID, NULL_KEY
from bmqtwist.storage.datacheck import check_messages
from bmqtwist.storage.journal import JournalScan, check_file_header, unpack_sync_point
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import (
    CONFIRM_BODY,
    DELETION_BODY,
    MAGIC,
    MESSAGE_BODY,
    QUEUE_OP_BODY,
    QUEUE_RECORD_HEADER,
    RECORD,
    SEQUENCE_MASK,
    FileType,
    QueueOp,
    pack_queue_op,
    pack_queue_record,
    parse_queue_record,
)
from bmqtwist.storage.store import DATA_HEADER_BYTES, QLIST_HEADER_BYTES, PartitionFiles

UNFINISHED = "they were being written when the broker died, and are cut off"  # the end of an alarm about DATA or QLIST
_LISTED_MAX = 20  # GUIDs named in one alarm
_QUEUE_RECORD_BYTES_MAX = 64 << 20
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
class RecoveredApp:
    """An app of a recovered queue; `ordinal` is its bit in `Message.pending`."""

    app_id: str
    key: bytes
    ordinal: int


@dataclass(slots=True)
class RecoveredQueue:
    """A queue that has a CREATION record. `in_ledger` is False if a ledger was given and does not know the queue.

    history: (GUID, arrival in epoch seconds) of every readable message found that is young enough, removed ones
    included.
    """

    key: bytes
    uri: str
    apps: list[RecoveredApp] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    history: list[tuple[bytes, int]] = field(default_factory=list)
    in_ledger: bool = True


@dataclass(slots=True)
class RecoveredPartition:
    """State of one partition, and what `Partition` needs to go on. Positions in bytes."""

    queues: dict[bytes, RecoveredQueue]
    live: dict[int, Message | bytes | tuple[bytes, bytes]]
    queue_slots: dict[bytes, list[int]]
    lease: int = 0
    sequence: int = 0
    next_slot: int = 0
    journal_end: int = 0
    data_end: int = DATA_HEADER_BYTES
    qlist_end: int = QLIST_HEADER_BYTES
    data_outstanding: int = DATA_HEADER_BYTES
    qlist_outstanding: int = QLIST_HEADER_BYTES
    alarms: list[str] = field(default_factory=list)
    damaged: bool = False
    finished: list[Message] = field(default_factory=list)
    quarantined: list[Message] = field(default_factory=list)


def recover(files: PartitionFiles, known: Mapping[bytes, KnownQueue] | None = None, history_since: int = 0,
            epoch: float = 0.0, partition_id: int | None = None) -> RecoveredPartition:
    """Read the current file set.

    known: queues of the metadata ledger, None if there is no ledger to compare with. history_since: epoch seconds;
    older GUIDs are not remembered. epoch: wall minus monotonic clock, seconds, for `Message.arrived`.
    """
    fold = _Fold(files, known, history_since, epoch)
    fold.check_headers(partition_id)
    fold.read_journal()
    fold.read_data()
    return fold.result()


class _Queue:
    """A queue while its records are read."""

    __slots__ = ("found", "apps", "mask", "messages", "auto_guid", "auto_mask", "auto_slots", "from_ledger")

    def __init__(self, found: RecoveredQueue, apps: list[tuple[str, bytes]], from_ledger: bool) -> None:
        self.found, self.from_ledger = found, from_ledger
        self.apps: dict[bytes, int] = {}  # key -> ordinal, removed apps included
        self.mask = 0  # bits of the apps there are now
        self.messages: dict[bytes, Message] = {}
        self.auto_guid, self.auto_mask, self.auto_slots = b"", 0, list[int]()
        self.add_apps(apps)

    def add_apps(self, apps: list[tuple[str, bytes]]) -> None:
        for app_id, key in apps:
            if key not in self.apps:
                ordinal = self.apps[key] = len(self.apps)
                self.mask |= 1 << ordinal
                self.found.apps.append(RecoveredApp(app_id, key, ordinal))

    def remove_app(self, key: bytes) -> None:
        bit = 1 << self.apps[key] if key in self.apps else 0
        self.mask &= ~bit
        self.found.apps = [app for app in self.found.apps if app.key != key]
        for message in self.messages.values():
            message.pending &= ~bit


class _Fold:
    """The state while reading; one method per kind of record."""

    def __init__(self, files: PartitionFiles, known: Mapping[bytes, KnownQueue] | None, since: int,
                 epoch: float) -> None:
        self.files, self.known, self.since, self.epoch = files, known, since, epoch
        self.journal_size, self.data_size, self.qlist_size = files.lengths()
        self.scan = JournalScan(files.read_journal, self.journal_size)
        self.queues: dict[bytes, _Queue] = {}
        self.state = RecoveredPartition({}, {}, {})
        self.live = self.state.live
        self.slot = 0
        self.last_offset = 0  # of the DATA record of the last MESSAGE, bytes
        self.qlist_end, self.sync_data, self.sync_qlist = QLIST_HEADER_BYTES, DATA_HEADER_BYTES, QLIST_HEADER_BYTES
        self.strangers: dict[bytes, int] = {}  # queueKey nobody knows -> its records
        self.unmatched = 0  # CONFIRMs of messages or apps nobody knows
        self.listed: dict[bytes, tuple[str, list[tuple[str, bytes]]]] | None = None  # QLIST walked as a whole

    def damage(self, text: str) -> None:
        """Something is lost or wrong on disk: a person is told, and the set is copied."""
        self.state.damaged = True
        self.state.alarms.append(text)

    # ---- headers -------------------------------------------------------------------------------------------------

    def check_headers(self, partition_id: int | None) -> None:
        """File headers; a wrong one is no reason not to read what follows."""
        readers = ((FileType.JOURNAL, self.files.read_journal), (FileType.DATA, self.files.read_data),
                   (FileType.QLIST, self.files.read_qlist))
        for kind, read in readers:
            wrong = check_file_header(read(0, DATA_HEADER_BYTES), kind, partition_id)
            if wrong:
                self.damage(f"{kind.name}: {wrong}; read as if the header were right")
        self.state.damaged |= self.files.broken

    # ---- journal -------------------------------------------------------------------------------------------------

    def read_journal(self) -> None:
        """Fold every accepted record."""
        live, queues, since, epoch = self.live, self.queues, self.since, self.epoch
        unpack_message, unpack_deletion = MESSAGE_BODY.unpack, DELETION_BODY.unpack
        for entry in self.scan:
            offset, head, lease, wall, body = entry
            kind = head >> 60
            if kind == 1:
                ref_high, compression, key, data_offset, guid, crc = unpack_message(body)
                queue = queues.get(key)
                if queue is None:
                    queue = self.adopt(key, entry)
                self.last_offset = data_offset * 8
                if queue is None or guid == NULL_GUID or guid in queue.messages:
                    self.odd_message(queue, guid, offset)
                    continue
                message = Message(guid, None, b"", False, compression & 7, 0, crc, wall - epoch, wall)
                message.ref_count = ref_count = ref_high << 12 | head >> 48 & 0xFFF
                message.pending = queue.mask
                message.queue_key, message.data_offset = key, data_offset
                message.lease, message.sequence = lease, head & SEQUENCE_MASK
                if queue.auto_guid or queue.from_ledger:
                    self.settle_apps(queue, message, ref_count)
                self.slot = message.slot = slot = self.slot + 1
                live[slot] = queue.messages[guid] = message
                if wall >= since:
                    queue.found.history.append((guid, wall))
            elif kind == 3:
                key, guid = unpack_deletion(body)
                queue = queues.get(key)
                if queue is not None and guid in queue.messages:
                    self.forget(queue.messages.pop(guid))
            elif kind == 2:
                self.confirm(entry)
            elif kind == 4:
                self.queue_op(entry)
            elif kind == 5:
                self.sync_point(entry)
            else:
                self.damage(f"JOURNAL: the record at offset {offset} has the unknown type {kind}: skipped")
        self.end_of_journal()

    def end_of_journal(self) -> None:
        """Take over what the scan found out, and say what did not fit together."""
        scan, state = self.scan, self.state
        state.lease, state.sequence, state.journal_end = scan.lease, scan.sequence, scan.end
        state.alarms += scan.problems
        state.damaged |= scan.damaged
        for queue in self.queues.values():
            self.drop_auto(queue)
        for key, count in self.strangers.items():
            self.damage(f"JOURNAL: {count} record(s) belong to queue key {key.hex().upper()}, which nothing explains:"
                        " they are not carried on")
        if self.unmatched:
            state.alarms.append(f"JOURNAL: {self.unmatched} CONFIRM record(s) name messages or apps that are not there:"
                                " ignored")
        if self.journal_size and not scan.preallocated and scan.last_head >> 60 != 5:
            self.damage("JOURNAL: the file ends without a sync point: it was cut; later records are lost, and messages"
                        " confirmed since may be delivered again")

    def adopt(self, key: bytes, entry: tuple[int, int, int, int, bytes]) -> _Queue | None:
        """A record of a queue whose CREATION was not seen: the ledger or a walk over QLIST may know it."""
        if key not in self.strangers:
            record = self.known.get(key) if self.known else None
            listed = (record.uri, list(record.apps.items())) if record else self.walk_qlist().get(key)
            if listed is not None and key != NULL_KEY:
                offset, head, lease, wall, _ = entry
                self.damage(f"JOURNAL: no CREATION of {listed[0]} before offset {offset}: taken from the"
                            f" {'ledger' if record else 'QLIST'}")
                # just before this record, where a lost one had the number, or (1, and two of them) equal to another
                created = pack_queue_op(max(1, (head & SEQUENCE_MASK) - 1), lease, wall, key, NULL_KEY, QueueOp.CREATION)
                queue = self.open_queue(key, *listed, from_ledger=record is not None)
                self.keep(key, (created, pack_queue_record(listed[0], key, listed[1])))
                return queue
        self.strangers[key] = self.strangers.get(key, 0) + 1
        return None

    def walk_qlist(self) -> dict[bytes, tuple[str, list[tuple[str, bytes]]]]:
        """Every queue key in QLIST with its URI and apps."""
        if self.listed is None:
            self.listed = {}
            position = QLIST_HEADER_BYTES
            while True:
                try:
                    uri, key, apps, entry = self.queue_record(position)
                except ValueError:
                    break
                position += len(entry)
                self.listed.setdefault(key, (uri, []))[1].extend(apps)
        return self.listed

    def queue_record(self, offset: int) -> tuple[str, bytes, list[tuple[str, bytes]], bytes]:
        """(URI, key, apps, bytes) of the QLIST record at `offset`; ValueError if there is none."""
        head = self.files.read_qlist(offset, QUEUE_RECORD_HEADER.size)
        if offset < QLIST_HEADER_BYTES or len(head) < QUEUE_RECORD_HEADER.size:
            raise ValueError("offset is outside of QLIST")
        size = min((QUEUE_RECORD_HEADER.unpack(head)[2] & 0xFFFFFF) << 2, _QUEUE_RECORD_BYTES_MAX)
        entry = self.files.read_qlist(offset, size)
        uri, key, apps, size = parse_queue_record(entry)
        return uri, key, apps, entry[:size]

    def odd_message(self, queue: _Queue | None, guid: bytes, offset: int) -> None:
        """A MESSAGE that cannot be kept."""
        if queue is not None:
            what = "no GUID" if guid == NULL_GUID else f"GUID {guid.hex().upper()}, which is stored already"
            self.damage(f"JOURNAL: the MESSAGE at offset {offset} has {what}: skipped")

    def settle_apps(self, queue: _Queue, message: Message, ref_count: int) -> None:
        """Which apps a message waits for, when auto-confirms precede it or the ledger is all we know of the apps."""
        if queue.auto_guid == message.guid:
            message.confirms = queue.auto_slots
            message.pending &= ~queue.auto_mask
            queue.auto_guid, queue.auto_mask, queue.auto_slots = b"", 0, []
        else:
            self.drop_auto(queue)
        if queue.from_ledger:
            saw = ref_count + len(message.confirms or ())
            message.pending &= (1 << saw) - 1 if saw < len(queue.apps) else -1

    def drop_auto(self, queue: _Queue) -> None:
        """Auto-confirms that no message follows mean nothing."""
        for slot in queue.auto_slots:
            del self.live[slot]
        queue.auto_guid, queue.auto_mask, queue.auto_slots = b"", 0, []

    def forget(self, message: Message) -> None:
        """The message and its CONFIRMs are no longer live."""
        live = self.live
        del live[message.slot]
        if message.confirms is not None:
            for slot in message.confirms:
                del live[slot]

    def confirm(self, entry: tuple[int, int, int, int, bytes]) -> None:
        """CONFIRM: one app is done with a message, or (reason 2) does not want the one that follows."""
        _, head, lease, wall, body = entry
        key, app_key, guid = CONFIRM_BODY.unpack(body)
        queue = self.queues.get(key) or self.adopt(key, entry)
        if queue is None:
            return
        ordinal = queue.apps.get(app_key)
        auto = head >> 48 & 0xFFF == 2
        message = queue.messages.get(guid)
        if ordinal is None or message is None and not auto:
            self.unmatched += 1
            return
        self.slot += 1
        self.live[self.slot] = RECORD.pack(head, lease, wall, body, MAGIC)
        if message is None:
            if guid != queue.auto_guid:
                self.drop_auto(queue)
                queue.auto_guid = guid
            queue.auto_mask |= 1 << ordinal
            queue.auto_slots.append(self.slot)
            return
        message.pending &= ~(1 << ordinal)
        if message.confirms is None:
            message.confirms = [self.slot]
        else:
            message.confirms.append(self.slot)

    def sync_point(self, entry: tuple[int, int, int, int, bytes]) -> None:
        """JOURNAL_OP: positions that must exist. Other operations than sync points mean nothing to us."""
        if int.from_bytes(entry[4][4:8], "big") != 2:
            return
        _, _, _, data, qlist = unpack_sync_point(entry)
        for name, position, size in (("DATA", data, self.data_size), ("QLIST", qlist, self.qlist_size)):
            if position > size:
                self.damage(f"{name}: the file has {size} B, but the sync point at JOURNAL offset {entry[0]}"
                            f" says {position}")
        self.sync_data, self.sync_qlist = max(self.sync_data, data), max(self.sync_qlist, qlist)

    # ---- queues --------------------------------------------------------------------------------------------------

    def queue_op(self, entry: tuple[int, int, int, int, bytes]) -> None:
        """CREATION, ADDITION, PURGE, DELETION."""
        offset, head, lease, wall, body = entry
        key, app_key, op, qlist_word, start_sequence, start_lease = QUEUE_OP_BODY.unpack(body)
        record = RECORD.pack(head, lease, wall, body, MAGIC)
        if op in (QueueOp.CREATION, QueueOp.ADDITION):
            self.declare(key, op, qlist_word * 4, record, offset)
            return
        queue = self.queues.get(key)
        if op == QueueOp.DELETION and app_key == NULL_KEY:
            self.delete_queue(key)
            return
        if queue is None:
            queue = self.adopt(key, entry)
        if queue is None:
            return
        if op == QueueOp.PURGE and app_key == NULL_KEY:
            for message in queue.messages.values():
                self.forget(message)
            queue.messages.clear()
        elif op == QueueOp.PURGE:
            bit = 1 << queue.apps[app_key] if app_key in queue.apps else 0
            start = (start_lease, start_sequence) if start_lease <= lease else (0, 0)
            for message in queue.messages.values():
                if (message.lease, message.sequence) >= start:
                    message.pending &= ~bit
        elif op == QueueOp.DELETION:
            queue.remove_app(app_key)
        else:
            self.damage(f"JOURNAL: the QUEUE_OP at offset {offset} has the unknown operation {op}: skipped")
            return
        self.keep(key, record)

    def keep(self, key: bytes, item: bytes | tuple[bytes, bytes]) -> None:
        """A live record of a queue."""
        self.slot += 1
        self.live[self.slot] = item
        self.state.queue_slots.setdefault(key, []).append(self.slot)
        if type(item) is tuple:
            self.state.qlist_outstanding += len(item[1])

    def declare(self, key: bytes, op: int, qlist_offset: int, record: bytes, offset: int) -> None:
        """CREATION or ADDITION: URI and apps from QLIST, held against the ledger."""
        known = self.known.get(key) if self.known else None
        try:
            if not qlist_offset:
                raise ValueError("no QLIST record")
            uri, listed_key, apps, entry = self.queue_record(qlist_offset)
            self.qlist_end = max(self.qlist_end, qlist_offset + len(entry))
            if listed_key != key or entry[-4:] != b"qUrI":
                self.damage(f"QLIST: the record at offset {qlist_offset} has a wrong queue key or end mark")
                entry = pack_queue_record(uri, key, apps)
        except ValueError as error:
            uri, apps, entry = "", [], b""
            if qlist_offset or known is None:
                self.damage(f"QLIST: the record at offset {qlist_offset} for queue key {key.hex().upper()} is"
                            f" unreadable ({error})")
        from_ledger = not entry
        if known is not None:
            names = {app_key: app_id for app_id, app_key in known.apps.items()}
            corrected = [(names.get(app_key, app_id), app_key) for app_id, app_key in apps]
            if not entry:
                corrected = list(known.apps.items())
            elif (uri, apps) != (known.uri, corrected):
                self.damage(f"QLIST: the record at offset {qlist_offset} says {uri!r} {apps}, the ledger {known.uri!r}"
                            f" {corrected}: the ledger is right")
            uri, apps = known.uri, corrected
            entry = pack_queue_record(uri, key, apps)
        queue = self.queues.get(key)
        if queue is None:
            if not entry:
                self.strangers.setdefault(key, 0)
                return
            if not apps and op == QueueOp.CREATION:
                apps = [(DEFAULT_APP_ID, DEFAULT_APP_KEY)]
            if op == QueueOp.ADDITION:
                self.damage(f"JOURNAL: the ADDITION at offset {offset} for {uri} has no CREATION before it")
            self.open_queue(key, uri, apps, from_ledger)
        elif op == QueueOp.ADDITION:
            queue.add_apps(apps)
        else:
            self.damage(f"JOURNAL: the CREATION at offset {offset} for {uri} is the second one: ignored")
            return
        if entry:
            self.keep(key, (record, entry))

    def open_queue(self, key: bytes, uri: str, apps: list[tuple[str, bytes]], from_ledger: bool) -> _Queue:
        """A queue begins."""
        found = self.state.queues[key] = RecoveredQueue(key, uri)
        found.in_ledger = self.known is None or key in self.known
        self.strangers.pop(key, None)
        queue = self.queues[key] = _Queue(found, apps, from_ledger)
        return queue

    def delete_queue(self, key: bytes) -> None:
        """Nothing of the queue is live any more."""
        queue = self.queues.pop(key, None)
        self.strangers.pop(key, None)
        if queue is None:
            return
        for message in queue.messages.values():
            self.forget(message)
        self.drop_auto(queue)
        for slot in self.state.queue_slots.pop(key, ()):
            item = self.live.pop(slot)
            if type(item) is tuple:
                self.state.qlist_outstanding -= len(item[1])
        del self.state.queues[key]

    # ---- data ----------------------------------------------------------------------------------------------------

    def read_data(self) -> None:
        """Sizes, options and checksums of the live messages, then where DATA and QLIST end."""
        bytes_of_good, damaged = check_messages(
            self.files.read_data, (item for item in self.live.values() if type(item) is Message))
        self.state.data_outstanding += bytes_of_good
        for reason, messages in damaged.items():
            self.quarantine(reason, messages)
        self.find_ends()

    def quarantine(self, reason: str, messages: list[Message]) -> None:
        """Messages that must not be delivered; the old files keep what there is of them.

        Their GUIDs are forgotten: a producer that never got an ACK posts them again, and they are new then.
        """
        guids = ", ".join(message.guid.hex().upper() for message in messages[:_LISTED_MAX])
        more = f" and {len(messages) - _LISTED_MAX} more" if len(messages) > _LISTED_MAX else ""
        self.damage(f"DATA: {len(messages)} message(s) are damaged ({reason}) and not delivered: {guids}{more}")
        for message in messages:
            queue = self.queues[message.queue_key]
            del queue.messages[message.guid]
            self.forget(message)
        lost = {message.guid for message in messages}
        for key in {message.queue_key for message in messages}:
            found = self.queues[key].found
            found.history = [entry for entry in found.history if entry[0] not in lost]
        self.state.quarantined += messages

    def find_ends(self) -> None:
        """Write positions of DATA and QLIST, and whether anything lies behind them."""
        state = self.state
        end = DATA_HEADER_BYTES
        if self.last_offset:
            header = self.files.read_data(self.last_offset, 12)
            size = (int.from_bytes(header[:4], "big") & 0x1FFFFFFF) << 2
            end = self.last_offset + size
            if len(header) < 12 or size < 16 or size % 8 or end > self.data_size:
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

    def result(self) -> RecoveredPartition:
        """Sort the messages that are left."""
        state = self.state
        for queue in self.queues.values():
            left: list[Message] = []
            done: list[Message] = []
            for message in queue.messages.values():
                (left if message.pending else done).append(message)
            queue.found.messages = left
            state.finished += done
        state.next_slot = self.slot + 1
        return state
