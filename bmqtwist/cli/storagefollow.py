"""Messages of one queue as they reach the storage files of a running broker: nobody is asked, nothing is consumed.

Each look reads the records that were appended since the last one. A rollover begins a new file set whose first records
are copies; they keep their numbers (lease, sequence), and so none is shown twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from bmqtwist.cli.storageverify import read_ledger
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Subscription
from bmqtwist.storage.journal import JournalScan
from bmqtwist.storage.records import MAGIC, RECORD, RECORD_BYTES, TYPE_SHIFT
from bmqtwist.storagetool.datafile import DataError, DataFile
from bmqtwist.storagetool.inputs import InputError, ReadOnlyFile, SetFiles, file_sets, ledger_files
from bmqtwist.storagetool.journalview import JournalRecord, MessageRecord, records, view
from bmqtwist.storagetool.ledgerview import LedgerQueue, queues_of
from bmqtwist.wire.fast import MESSAGE_PROPERTIES

_READ_BYTES = RECORD_BYTES << 12
LOOK_MESSAGES_MAX, _LOOK_BYTES_MAX = 1000, 64 << 20  # what one look gives at most; the next one goes on from there


class StoredMessage(Message):
    """A message as it lies in a file; `wall`: when it arrived, seconds since the epoch."""

    __slots__ = ("wall",)

    def __init__(self, uri: str, record: MessageRecord, data: bytes, flags: int, schema_wire_id: int) -> None:
        queue: Any = SimpleNamespace(uri=uri, codec=None)
        super().__init__(queue, Subscription(), record.guid, data, flags, schema_wire_id << 3 | record.compression)
        self.wall = record.wall


class StorageFollower:
    """Follows the queue `uri` through the files of `directory`, beginning with the last `lines` messages they hold.

    `known` is None until the ledger knows the queue.
    """

    def __init__(self, directory: str, uri: str, lines: int) -> None:
        self._directory, self._uri, self._lines = directory, uri, lines
        self.known: LedgerQueue | None = None
        self._stamp = ""
        self._end = 0  # of what was read in the present journal
        self._last = (0, 0)  # lease and sequence of the last message that was read, of whatever queue
        self.problems: list[str] = []

    def look(self) -> list[StoredMessage]:
        """What arrived since the last look. InputError if the files cannot be read."""
        if self.known is None or self.known.removed:
            self.known = self._find()
        if self.known is None:
            return []
        found: list[StoredMessage] = []
        sets = [each for each in file_sets(self._directory) if each.journal and each.data
                and each.partition_id == self.known.partition_id and "damaged." not in each.journal]
        for each in sets:
            if each.stamp >= self._stamp and len(found) < LOOK_MESSAGES_MAX:
                found += self._read(each, self.known.key)
        return found

    def _find(self) -> LedgerQueue | None:
        ledgers = ledger_files(self._directory)
        if not ledgers:
            raise InputError(f"{self._directory} holds no ledger (.bmq_csl): is it the storage directory of a broker?")
        queues = queues_of(read_ledger(ledgers[-1]).entries)
        return next((queue for queue in queues.values() if queue.uri == self._uri and not queue.removed), None)

    def _read(self, files: SetFiles, key: bytes) -> list[StoredMessage]:
        with ExitStack() as stack:
            try:
                journal, data = ReadOnlyFile(files.journal), ReadOnlyFile(files.data)
            except InputError:
                return []  # archived meanwhile: what it held last was copied to the next one
            stack.callback(journal.close)
            stack.callback(data.close)
            payloads = DataFile(data.read, data.size)
            news = (record for record in self._records(journal, files.stamp)
                    if isinstance(record, MessageRecord) and self._is_new(record) and record.queue_key == key)
            if not self._stamp:
                return self._messages(deque(news, maxlen=self._lines), payloads)
            return self._messages(news, payloads)

    def _is_new(self, record: MessageRecord) -> bool:
        new = record.psn > self._last
        if new:
            self._last = record.psn
        return new

    def _messages(self, found: Iterable[MessageRecord], payloads: DataFile) -> list[StoredMessage]:
        messages: list[StoredMessage] = []
        size = 0
        for record in found:
            try:
                stored = payloads.record(record.data_dwords << 3)
            except DataError as error:
                self.problems.append(f"message {record.guid.hex().upper()}: {error}")
                continue
            flags = MESSAGE_PROPERTIES if stored.has_properties else 0
            messages.append(StoredMessage(self._uri, record, stored.data, flags, stored.schema_wire_id))
            size += len(stored.data)
            if len(messages) >= LOOK_MESSAGES_MAX or size >= _LOOK_BYTES_MAX:
                break
        return messages

    def _records(self, journal: ReadOnlyFile, stamp: str) -> Iterator[JournalRecord]:
        if stamp != self._stamp:
            scan = JournalScan(journal.read, journal.size)
            yield from records(scan)
            self._stamp, self._end = stamp, scan.end
        while chunk := journal.read(self._end, _READ_BYTES):
            for record in RECORD.iter_unpack(chunk[:len(chunk) // RECORD_BYTES * RECORD_BYTES]):
                head, lease, wall, body, magic = record
                if magic != MAGIC or not head >> TYPE_SHIFT:
                    return
                yield view((self._end, head, lease, wall, body))
                self._end += RECORD_BYTES
            if len(chunk) < RECORD_BYTES:
                return
