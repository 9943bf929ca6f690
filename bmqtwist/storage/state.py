"""What the records of a partition mean: the one place where a record changes what is stored.

A primary applies each record as it makes it, recovery as it reads it back, a replica as it receives it; whoever applied
the same records holds the same state:

    record                   queues                                            live records
    ------------------------ ------------------------------------------------- ---------------------------------
    CREATION, ADDITION       a queue begins; apps join it                      + the record with its QLIST entry
    MESSAGE                  waits for every app but those auto-confirmed      + the message
    CONFIRM                  the app is done with the message                  + the record
    CONFIRM, auto-confirmed  the app does not want the message that follows    + the record
    DELETION                 the message is gone                               - the message and its CONFIRMs
    PURGE                    all messages are gone                             - all of them; + the record
    PURGE of an app          the app is done with messages from `start` on     + the record
    QUEUE DELETION of an app the app is done with everything and leaves        + the record
    QUEUE DELETION           the queue is gone                                 - everything of it

A record is live while it is needed to come to the present state: a rollover copies the live records, in order, and
nothing else. `live` maps ascending numbers to what is needed to write each of them again:

    Message             a MESSAGE with its DATA record
    bytes               a CONFIRM, PURGE or app-level DELETION, verbatim
    (bytes, bytes)      a CREATION or ADDITION with its QLIST record

Messages of queues that live in memory only have no records and no live key, but the same rules.

A purge, or the end of an app, may concern a million messages. Its record says all; what it means for each message is done
in steps, by an iterator that gives the messages of each step. Until it is through, messages of a purged queue are in no
queue, but still live: a rollover may copy them, before the PURGE.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from bmqtwist.limits import MESSAGES_AT_ONCE
from bmqtwist.steps import at_once
from bmqtwist.storage.history import GuidHistory
from bmqtwist.storage.long_dict import LongDict, RisingDict
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import DATA_HEADER, RECORD_BYTES, data_record_bytes
from bmqtwist.storage.store import DATA_HEADER_BYTES, JOURNAL_HEADER_BYTES, QLIST_HEADER_BYTES

Live = Message | bytes | tuple[bytes, bytes]
MessageSteps = Generator[list[Message], None, None]  # the messages of each step, when it is done

BIGGEST_QUEUES = 10  # listed in an alarm
HISTORY_SECONDS = 3600.0  # GUIDs younger than that are remembered until the domain says how long its own are


@dataclass(frozen=True, slots=True)
class StoredApp:
    """An app of a stored queue; `bit` stands for it in `Message.pending`, and for no other app of the queue ever."""

    app_id: str
    key: bytes
    bit: int

    @property
    def ordinal(self) -> int:
        """Which app of the queue it is, counted from 0 over all there ever were."""
        return self.bit.bit_length() - 1


class StoredQueue:
    """What is stored in one queue and which apps still need it. Changed by `PartitionState` alone.

    apps: app key -> app, those registered now. mask: their bits. messages: GUID -> message, in order of arrival.
    history: GUIDs seen lately, those of removed messages included. in_memory: whether it ever held messages that have no
    records. live_keys: of its CREATION, ADDITION, PURGE and app-level DELETION records. auto_*: the auto-confirms that wait
    for their message.
    """

    __slots__ = ("key", "uri", "apps", "mask", "messages", "history", "in_memory", "live_keys", "auto_guid", "auto_mask",
                 "auto_keys", "_bits")

    def __init__(self, key: bytes, uri: str) -> None:
        self.key, self.uri = key, uri
        self.apps: dict[bytes, StoredApp] = {}
        self.mask = 0
        self.messages: LongDict[bytes, Message] = LongDict()
        self.history = GuidHistory(HISTORY_SECONDS)
        self.in_memory = False
        self.live_keys: list[int] = []
        self.auto_guid, self.auto_mask, self.auto_keys = b"", 0, list[int]()
        self._bits: dict[bytes, int] = {}  # app key -> bit, removed apps included

    def bit(self, app_key: bytes) -> int:
        """The bit of an app, also of a removed one; 0 = it was never here."""
        return self._bits.get(app_key, 0)

    @property
    def app_count(self) -> int:
        """How many apps there ever were."""
        return len(self._bits)

    def join(self, apps: Iterable[tuple[str, bytes]]) -> None:
        """Register apps (appId, key) in order; those that were here before are left out."""
        for app_id, key in apps:
            if key not in self._bits:
                bit = self._bits[key] = 1 << len(self._bits)
                self.apps[key] = StoredApp(app_id, key, bit)
                self.mask |= bit

    def hold(self, message: Message) -> None:
        """A message that lives in memory only: no record, the same rules."""
        self.in_memory = True
        message.pending = self.mask
        message.queue_key = self.key
        self.messages.add(message.guid, message)

    def drop(self, message: Message) -> None:
        """A message that lived in memory only is gone."""
        message.pending = 0
        del self.messages[message.guid]

    def leave(self, app_key: bytes) -> MessageSteps:
        """Unregister an app: it is done with everything."""
        bit = self.bit(app_key)
        self.apps.pop(app_key, None)
        self.mask &= ~bit
        return self.done_with(bit)

    def done_with(self, bit: int, start: tuple[int, int] = (0, 0)) -> MessageSteps:
        """An app is done with the messages that are here now and whose PSN is `start` or later: those that it had, oldest
        first. Whoever takes them removes those that nobody needs any more."""
        return self._done_with(list(self.messages.newest_first()), bit, start)

    def _done_with(self, waiting: list[Message], bit: int, start: tuple[int, int]) -> MessageSteps:
        while waiting:
            stored = self.messages
            step = [message for message in reversed(waiting[-MESSAGES_AT_ONCE:]) if message.pending & bit
                    and (message.lease, message.sequence) >= start and stored.get(message.guid) is message]
            del waiting[-MESSAGES_AT_ONCE:]  # what is gone is not kept alive
            for message in step:
                message.pending &= ~bit
            yield step


class PartitionState:
    """The state of one partition after the record with the PSN (`lease`, `sequence`). Read freely, change by methods.

    data_bytes, qlist_bytes: what a rollover would keep of DATA and QLIST, file headers included. cached_bytes: of
    payloads in memory. last_key: of the newest record that was ever live. leaving: messages of purged queues that are still
    live, with their queues.
    """

    __slots__ = ("lease", "sequence", "live", "queues", "data_bytes", "qlist_bytes", "cached_bytes", "last_key", "leaving")

    def __init__(self) -> None:
        self.lease = self.sequence = 0
        self.live: RisingDict[Live] = RisingDict()
        self.queues: dict[bytes, StoredQueue] = {}
        self.data_bytes, self.qlist_bytes = DATA_HEADER_BYTES, QLIST_HEADER_BYTES
        self.cached_bytes = 0
        self.last_key = 0
        self.leaving: list[tuple[StoredQueue, LongDict[bytes, Message]]] = []

    def begin_lease(self, lease: int) -> None:
        """A primary begins, with sequence number 0: what the last one left half done it does not finish."""
        self.lease, self.sequence = lease, 0
        for queue in self.queues.values():
            self.drop_auto(queue)

    def outstanding(self) -> tuple[int, int, int]:
        """Bytes of JOURNAL, DATA, QLIST that a rollover would keep."""
        return JOURNAL_HEADER_BYTES + RECORD_BYTES * len(self.live), self.data_bytes, self.qlist_bytes

    def messages(self) -> Iterable[Message]:
        """Every message in the journal, in its order."""
        return (item for item in self.live.values() if type(item) is Message)

    # ---- messages ------------------------------------------------------------------------------------------------

    def message(self, queue: StoredQueue, message: Message, record_bytes: int) -> None:
        """MESSAGE with a DATA record of `record_bytes`: from now on it waits for the apps of the queue."""
        message.pending = queue.mask
        message.queue_key = queue.key
        if queue.auto_keys:
            self._settle_auto(queue, message)
        self.last_key = key = self.last_key + 1
        message.live_key = key
        self.live.add(key, message)
        queue.messages.add(message.guid, message)
        self.data_bytes += record_bytes
        self.cached_bytes += message.size

    def confirm(self, queue: StoredQueue, bit: int, message: Message, record: bytes) -> None:
        """CONFIRM: one app of several is done with a message."""
        message.pending &= ~bit
        self.last_key = key = self.last_key + 1
        self.live.add(key, record)
        if message.confirms is None:
            message.confirms = [key]
        else:
            message.confirms.append(key)

    def auto_confirm(self, queue: StoredQueue, bit: int, guid: bytes, record: bytes) -> None:
        """CONFIRM, auto-confirmed: an app does not want the message `guid`, whose MESSAGE comes next."""
        if guid != queue.auto_guid:
            self.drop_auto(queue)
            queue.auto_guid = guid
        self.last_key += 1
        self.live.add(self.last_key, record)
        queue.auto_mask |= bit
        queue.auto_keys.append(self.last_key)

    def _settle_auto(self, queue: StoredQueue, message: Message) -> None:
        if queue.auto_guid == message.guid:
            message.confirms = queue.auto_keys
            message.pending &= ~queue.auto_mask
            queue.auto_guid, queue.auto_mask, queue.auto_keys = b"", 0, []
        else:
            self.drop_auto(queue)

    def drop_auto(self, queue: StoredQueue) -> None:
        """Auto-confirms that no message follows mean nothing."""
        for key in queue.auto_keys:
            del self.live[key]
        queue.auto_guid, queue.auto_mask, queue.auto_keys = b"", 0, []

    def deletion(self, queue: StoredQueue, message: Message) -> None:
        """DELETION: the message is gone, it and its CONFIRMs are no longer live."""
        del queue.messages[message.guid]
        message.pending = 0
        live, size = self.live, message.size
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

    def create(self, key: bytes, uri: str, apps: Iterable[tuple[str, bytes]], record: bytes, entry: bytes) -> StoredQueue:
        """CREATION of a queue with its apps (appId, key); `entry` is its QLIST record."""
        queue = self.queues[key] = StoredQueue(key, uri)
        queue.join(apps)
        self._keep(queue, (record, entry))
        return queue

    def add_apps(self, queue: StoredQueue, apps: Iterable[tuple[str, bytes]], record: bytes, entry: bytes) -> None:
        """ADDITION: apps join for the messages that come from now on."""
        queue.join(apps)
        self._keep(queue, (record, entry))

    def purge(self, queue: StoredQueue, record: bytes) -> MessageSteps:
        self._keep(queue, record)
        return self.empty(queue)

    def empty(self, queue: StoredQueue) -> MessageSteps:
        """All messages leave a queue, which is empty from now on."""
        leaving, queue.messages = queue.messages, LongDict()
        self.leaving.append((queue, leaving))
        return self._leave(queue, leaving)

    def _leave(self, queue: StoredQueue, leaving: LongDict[bytes, Message]) -> MessageSteps:
        last = StoredQueue(queue.key, queue.uri)  # where they are until they are gone
        while leaving:
            step = []
            for _ in range(min(len(leaving), MESSAGES_AT_ONCE)):
                guid, message = leaving.popitem()
                last.messages.add(guid, message)
                if message.live_key < 0:
                    last.drop(message)
                else:
                    self.deletion(last, message)
                step.append(message)
            yield step
        self.leaving = [each for each in self.leaving if each[1] is not leaving]

    def purge_app(self, queue: StoredQueue, app_key: bytes, start: tuple[int, int], record: bytes) -> MessageSteps:
        """PURGE of one app: it is done with the messages whose PSN is `start` or later. (0, 0) = all."""
        self._keep(queue, record)
        return queue.done_with(queue.bit(app_key), start)

    def remove_app(self, queue: StoredQueue, app_key: bytes, record: bytes) -> MessageSteps:
        """DELETION of an app: it is done with everything and leaves the queue."""
        self._keep(queue, record)
        return queue.leave(app_key)

    def delete(self, queue: StoredQueue) -> None:
        """DELETION of a whole queue: nothing of it is live any more."""
        at_once(self.empty(queue))
        for owner, leaving in self.leaving:
            if owner is queue:
                at_once(self._leave(owner, leaving))
        self.drop_auto(queue)
        for key in queue.live_keys:
            item = self.live.pop(key)
            if type(item) is tuple:
                self.qlist_bytes -= len(item[1])
        del self.queues[queue.key]

    def _keep(self, queue: StoredQueue, item: bytes | tuple[bytes, bytes]) -> None:
        self.last_key += 1
        self.live.add(self.last_key, item)
        queue.live_keys.append(self.last_key)
        if type(item) is tuple:
            self.qlist_bytes += len(item[1])

    # ---- watching ------------------------------------------------------------------------------------------------

    def biggest_text(self) -> str:
        """The queues that hold most in the files, for the operator; walks all live records."""
        totals: dict[bytes, list[int]] = {}
        for message in self.messages():
            total = totals.setdefault(message.queue_key, [0, 0])
            total[0] += 1
            total[1] += data_record_bytes(DATA_HEADER.size + len(message.options) + message.size)
        ranked = sorted(totals.items(), key=lambda entry: entry[1][1], reverse=True)[:BIGGEST_QUEUES]
        queues = ", ".join(f"{self.queues[key].uri if key in self.queues else key.hex().upper()}: {count} messages, {size} B"
                           for key, (count, size) in ranked)
        return f"Biggest queues: {queues or 'none'}."
