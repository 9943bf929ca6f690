"""State of a partition: queues, messages and live records, changed only by applying records.

A primary applies each record when it appends it, recovery when it reads it, a replica when it receives it. The same records
give the same state:

    record                   queues                                            live records
    ------------------------ ------------------------------------------------- ---------------------------------
    CREATION, ADDITION       create a queue; add apps to it                    + the record with its QLIST entry
    MESSAGE                  pending for all apps except auto-confirmed ones   + the message
    CONFIRM                  no longer pending for the app                     + the record
    CONFIRM, auto-confirmed  the next message will not be pending for the app  + the record
    DELETION                 remove the message                                - the message and its CONFIRMs
    PURGE                    remove all messages                               - all of them; + the record
    PURGE of an app          messages from `start` on: not pending for the app + the record
    QUEUE DELETION of an app no message is pending for the app; remove the app + the record
    QUEUE DELETION           remove the queue                                  - all its records

A record is live while it is needed to restore the present state: a rollover copies the live records, in order, and
nothing else. `live` maps ascending keys to the data needed to write each record again:

    Message             a MESSAGE with its DATA record
    bytes               a CONFIRM, PURGE or app-level DELETION, verbatim
    (bytes, bytes)      a CREATION or ADDITION with its QLIST record

Messages of in-memory queues follow the same rules, without records and live keys.

A purge, or the removal of an app, may affect a million messages: its record is applied at once, its effect on messages in
steps, by an iterator that yields the messages of each step. Until it ends, messages of a purged queue are in no queue, but
still live: a rollover may copy them, before the PURGE.

`partition.py` applies the records of a primary, `replay.py` those of recovery and replicas. The size of a step is
MESSAGES_AT_ONCE in `bmqtwist/limits.py`.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from bmqtwist.ids import domain_of
from bmqtwist.limits import MESSAGES_AT_ONCE
from bmqtwist.steps import at_once
from bmqtwist.storage.history import GuidHistory
from bmqtwist.storage.long_dict import LongDict, RisingDict
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import DATA_HEADER, RECORD_BYTES, data_record_bytes
from bmqtwist.storage.store import DATA_HEADER_BYTES, JOURNAL_HEADER_BYTES, QLIST_HEADER_BYTES

Live = Message | bytes | tuple[bytes, bytes]
MessageSteps = Generator[list[Message], None, None]  # the messages of each completed step

BIGGEST_QUEUES = 10  # listed in an alarm
HISTORY_SECONDS = 3600.0  # window of a queue's history until its domain's deduplication time is known


@dataclass(frozen=True, slots=True)
class StoredApp:
    """An app of a stored queue. `bit`: its bit in `Message.pending`, never reused for another app of the queue."""

    app_id: str
    key: bytes
    bit: int

    @property
    def ordinal(self) -> int:
        """Number of the app, counted from 0 over all apps of the queue, removed ones included."""
        return self.bit.bit_length() - 1


class StoredQueue:
    """Messages and apps of one queue. Only `PartitionState` changes it.

    apps: app key -> registered app. mask: their bits. messages: GUID -> message, in order of arrival. bytes: sum of their
    sizes. history: recent GUIDs, removed messages included. in_memory: True once it held messages without records.
    live_keys: of its CREATION, ADDITION, PURGE and app-level DELETION records. auto_*: the auto-confirms whose message has
    not arrived.
    """

    __slots__ = ("key", "uri", "apps", "mask", "messages", "bytes", "history", "in_memory", "live_keys", "auto_guid",
                 "auto_mask", "auto_keys", "_bits")

    def __init__(self, key: bytes, uri: str) -> None:
        self.key, self.uri = key, uri
        self.apps: dict[bytes, StoredApp] = {}
        self.mask = 0
        self.messages: LongDict[bytes, Message] = LongDict()
        self.bytes = 0
        self.history = GuidHistory(HISTORY_SECONDS)
        self.in_memory = False
        self.live_keys: list[int] = []
        self.auto_guid, self.auto_mask, self.auto_keys = b"", 0, list[int]()
        self._bits: dict[bytes, int] = {}  # app key -> bit, removed apps included

    def app_bit(self, app_key: bytes) -> int:
        """Return the bit of an app, also of a removed one; 0 if the key is unknown."""
        return self._bits.get(app_key, 0)

    @property
    def app_count(self) -> int:
        """Number of all apps, removed ones included."""
        return len(self._bits)

    def register_apps(self, apps: Iterable[tuple[str, bytes]]) -> None:
        """Register apps (appId, key) in order; skip keys that were registered before."""
        for app_id, key in apps:
            if key not in self._bits:
                bit = self._bits[key] = 1 << len(self._bits)
                self.apps[key] = StoredApp(app_id, key, bit)
                self.mask |= bit

    def add_message(self, message: Message) -> None:
        """Add a message of an in-memory queue, without a record."""
        self.in_memory = True
        message.pending = self.mask
        message.queue_key = self.key
        self.messages.add(message.guid, message)
        self.bytes += message.size

    def remove_message(self, message: Message) -> None:
        """Remove a message of an in-memory queue."""
        message.pending = 0
        del self.messages[message.guid]
        self.bytes -= message.size

    def unregister_app(self, app_key: bytes) -> MessageSteps:
        """Unregister an app; no message is pending for it any more."""
        bit = self.app_bit(app_key)
        self.apps.pop(app_key, None)
        self.mask &= ~bit
        return self.clear_pending(bit)

    def clear_pending(self, bit: int, start: tuple[int, int] = (0, 0)) -> MessageSteps:
        """Clear the app's pending bit of the present messages from PSN `start` on; yield the changed messages, oldest first.
        The caller removes messages that are pending for no app."""
        return self._clear_pending_in_steps(list(self.messages.newest_first()), bit, start)

    def _clear_pending_in_steps(self, waiting: list[Message], bit: int, start: tuple[int, int]) -> MessageSteps:
        while waiting:
            stored = self.messages
            step = [message for message in reversed(waiting[-MESSAGES_AT_ONCE:]) if message.pending & bit
                    and (message.lease, message.sequence) >= start and stored.get(message.guid) is message]
            del waiting[-MESSAGES_AT_ONCE:]  # frees removed messages
            for message in step:
                message.pending &= ~bit
            yield step


class PartitionState:
    """The state of one partition after the record with the PSN (`lease`, `sequence`). Read freely, change by methods.

    data_bytes, qlist_bytes: bytes of DATA and QLIST that a rollover would copy, file headers included; domain_qlist_bytes:
    those of QLIST by domain. cached_bytes: of payloads in memory. last_key: highest live key so far. purging: (queue, its
    messages that are still live) of purges in progress.
    """

    __slots__ = ("lease", "sequence", "live", "queues", "data_bytes", "qlist_bytes", "domain_qlist_bytes", "cached_bytes",
                 "last_key", "purging")

    def __init__(self) -> None:
        self.lease = self.sequence = 0
        self.live: RisingDict[Live] = RisingDict()
        self.queues: dict[bytes, StoredQueue] = {}
        self.data_bytes, self.qlist_bytes = DATA_HEADER_BYTES, QLIST_HEADER_BYTES
        self.domain_qlist_bytes: dict[str, int] = {}
        self.cached_bytes = 0
        self.last_key = 0
        self.purging: list[tuple[StoredQueue, LongDict[bytes, Message]]] = []

    def begin_lease(self, lease: int) -> None:
        """Begin a lease with sequence number 0; drop auto-confirms of the last lease whose message never came."""
        self.lease, self.sequence = lease, 0
        for queue in self.queues.values():
            self.drop_auto_confirms(queue)

    def outstanding(self) -> tuple[int, int, int]:
        """Return the bytes of JOURNAL, DATA, QLIST that a rollover would copy, file headers included."""
        return JOURNAL_HEADER_BYTES + RECORD_BYTES * len(self.live), self.data_bytes, self.qlist_bytes

    def live_messages(self) -> Iterable[Message]:
        """Iterate over the live messages in journal order."""
        return (item for item in self.live.values() if type(item) is Message)

    # ---- messages ------------------------------------------------------------------------------------------------

    def count_bytes(self) -> None:
        """Count the bytes of all queues: recovery reads the sizes of the messages after their records."""
        for queue in self.queues.values():
            queue.bytes = sum([message.size for message in queue.messages.values()])

    def apply_message(self, queue: StoredQueue, message: Message, record_bytes: int) -> None:
        """Apply a MESSAGE with a DATA record of `record_bytes`; it is pending for the apps of the queue."""
        message.pending = queue.mask
        message.queue_key = queue.key
        if queue.auto_keys:
            self._apply_auto_confirms(queue, message)
        self.last_key = key = self.last_key + 1
        message.live_key = key
        self.live.add(key, message)
        queue.messages.add(message.guid, message)
        size = message.size
        queue.bytes += size
        self.data_bytes += record_bytes
        self.cached_bytes += size

    def apply_confirm(self, queue: StoredQueue, bit: int, message: Message, record: bytes) -> None:
        """Apply a CONFIRM: the message is no longer pending for the app."""
        message.pending &= ~bit
        self.last_key = key = self.last_key + 1
        self.live.add(key, record)
        if message.confirms is None:
            message.confirms = [key]
        else:
            message.confirms.append(key)

    def apply_auto_confirm(self, queue: StoredQueue, bit: int, guid: bytes, record: bytes) -> None:
        """Apply an auto-confirmed CONFIRM: the message `guid`, whose MESSAGE comes next, will not be pending for the app."""
        if guid != queue.auto_guid:
            self.drop_auto_confirms(queue)
            queue.auto_guid = guid
        self.last_key += 1
        self.live.add(self.last_key, record)
        queue.auto_mask |= bit
        queue.auto_keys.append(self.last_key)

    def _apply_auto_confirms(self, queue: StoredQueue, message: Message) -> None:
        if queue.auto_guid == message.guid:
            message.confirms = queue.auto_keys
            message.pending &= ~queue.auto_mask
            queue.auto_guid, queue.auto_mask, queue.auto_keys = b"", 0, []
        else:
            self.drop_auto_confirms(queue)

    def drop_auto_confirms(self, queue: StoredQueue) -> None:
        """Remove auto-confirms whose message did not follow."""
        for key in queue.auto_keys:
            del self.live[key]
        queue.auto_guid, queue.auto_mask, queue.auto_keys = b"", 0, []

    def apply_deletion(self, queue: StoredQueue, message: Message) -> None:
        """Apply a DELETION: remove the message; it and its CONFIRMs are no longer live."""
        del queue.messages[message.guid]
        message.pending = 0
        live, size = self.live, message.size
        queue.bytes -= size
        del live[message.live_key]
        message.live_key = -1
        if message.payload is not None:
            self.cached_bytes -= size
        self.data_bytes -= (12 + len(message.options) + size & -8) + 8  # data_record_bytes, without the call
        if message.confirms is not None:
            for key in message.confirms:
                del live[key]

    def drop_payload(self, message: Message) -> None:
        if message.payload is not None and message.live_key >= 0:
            message.payload = None
            self.cached_bytes -= message.size

    # ---- queues --------------------------------------------------------------------------------------------------

    def apply_creation(self, key: bytes, uri: str, apps: Iterable[tuple[str, bytes]], record: bytes,
                       entry: bytes) -> StoredQueue:
        """Apply a CREATION of a queue with its apps (appId, key); `entry` is its QLIST record."""
        queue = self.queues[key] = StoredQueue(key, uri)
        queue.register_apps(apps)
        self._add_live_record(queue, (record, entry))
        return queue

    def apply_addition(self, queue: StoredQueue, apps: Iterable[tuple[str, bytes]], record: bytes, entry: bytes) -> None:
        """Apply an ADDITION: later messages will be pending for these apps, too."""
        queue.register_apps(apps)
        self._add_live_record(queue, (record, entry))

    def apply_purge(self, queue: StoredQueue, record: bytes) -> MessageSteps:
        self._add_live_record(queue, record)
        return self.empty_queue(queue)

    def empty_queue(self, queue: StoredQueue) -> MessageSteps:
        """Empty a queue at once; remove its messages in steps."""
        leaving, queue.messages, queue.bytes = queue.messages, LongDict(), 0
        self.purging.append((queue, leaving))
        return self._remove_messages(queue, leaving)

    def _remove_messages(self, queue: StoredQueue, leaving: LongDict[bytes, Message]) -> MessageSteps:
        last = StoredQueue(queue.key, queue.uri)  # holds each message until its removal
        while leaving:
            step = []
            for _ in range(min(len(leaving), MESSAGES_AT_ONCE)):
                guid, message = leaving.popitem()
                last.messages.add(guid, message)
                last.bytes += message.size
                if message.live_key < 0:
                    last.remove_message(message)
                else:
                    self.apply_deletion(last, message)
                step.append(message)
            yield step
        self.purging = [each for each in self.purging if each[1] is not leaving]

    def apply_app_purge(self, queue: StoredQueue, app_key: bytes, start: tuple[int, int], record: bytes) -> MessageSteps:
        """Apply a PURGE of one app, of the messages whose PSN is `start` or later; (0, 0) = all."""
        self._add_live_record(queue, record)
        return queue.clear_pending(queue.app_bit(app_key), start)

    def apply_app_deletion(self, queue: StoredQueue, app_key: bytes, record: bytes) -> MessageSteps:
        """Apply the DELETION of an app: remove it from the queue."""
        self._add_live_record(queue, record)
        return queue.unregister_app(app_key)

    def apply_queue_deletion(self, queue: StoredQueue) -> None:
        """Apply the DELETION of a queue: none of its records stays live."""
        at_once(self.empty_queue(queue))
        for owner, leaving in self.purging:
            if owner is queue:
                at_once(self._remove_messages(owner, leaving))
        self.drop_auto_confirms(queue)
        for key in queue.live_keys:
            item = self.live.pop(key)
            if type(item) is tuple:
                self._count_qlist_bytes(queue, -len(item[1]))
        del self.queues[queue.key]

    def _add_live_record(self, queue: StoredQueue, item: bytes | tuple[bytes, bytes]) -> None:
        self.last_key += 1
        self.live.add(self.last_key, item)
        queue.live_keys.append(self.last_key)
        if type(item) is tuple:
            self._count_qlist_bytes(queue, len(item[1]))

    def _count_qlist_bytes(self, queue: StoredQueue, size: int) -> None:
        self.qlist_bytes += size
        domain = domain_of(queue.uri)
        total = self.domain_qlist_bytes.get(domain, 0) + size
        if total:
            self.domain_qlist_bytes[domain] = total
        else:
            del self.domain_qlist_bytes[domain]

    # ---- monitoring ----------------------------------------------------------------------------------------------

    def biggest_queues_text(self) -> str:
        """Return an alarm text with the queues that use most of the files; walks all live records."""
        totals: dict[bytes, list[int]] = {}
        for message in self.live_messages():
            total = totals.setdefault(message.queue_key, [0, 0])
            total[0] += 1
            total[1] += data_record_bytes(DATA_HEADER.size + len(message.options) + message.size)
        ranked = sorted(totals.items(), key=lambda entry: entry[1][1], reverse=True)[:BIGGEST_QUEUES]
        queues = ", ".join(f"{self.queues[key].uri if key in self.queues else key.hex().upper()}: {count} messages, {size} B"
                           for key, (count, size) in ranked)
        return f"Biggest queues: {queues or 'none'}."
