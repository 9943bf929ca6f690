"""Application data of the stored messages of one partition: reading with a test of the checksum, and repair in place.

`PayloadReader` detects a DATA record that differs from the record that was written. Its message becomes a `Repair`, which
`member/repairs.py` completes: with the data in memory, with the data of the record itself if only its header, options or
padding differ, or with a copy of another member.

A repair writes the bytes that the record had, at the same offset; JOURNAL and offsets stay. No other record depends on the
write. If a crash interrupts it, the record is as damaged as before.

`queue/root.py`, `replica.py`, `member/repairs.py`, `member/member_relays.py` and `view/stored_queue.py` read messages,
`scrub.py` and `image.py` whole records. `Repair` is in `damage.py`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from crc32c import crc32c

from bmqtwist.storage.damage import PayloadDamaged, Repair
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import (
    DATA_HEADER,
    DATA_HEADER_START,
    DATA_OPTION_BYTES_SHIFT,
    PADS,
    FileType,
    data_record_bytes,
    pack_data_header,
)
from bmqtwist.storage.rollover import Rollover
from bmqtwist.storage.store import BEGINNING_BYTES

_HEADER_BYTES = DATA_HEADER.size


class PayloadReader:
    """Application data of the messages of one partition. Methods raise OSError if DATA cannot be read.

    damaged: repairs in progress by live key. on_damaged: called with each new repair. closed: another partition replaces
    this one over the same files, so that nothing may be written any more.
    """

    def __init__(self, files: FileSets, roll: Rollover) -> None:
        self._files, self._roll = files, roll
        self.damaged: dict[int, Repair] = {}
        self.on_damaged: Callable[[Repair], None] = _ignore
        self.closed = False

    # ---- application data ----------------------------------------------------------------------------------------

    def read(self, message: Message) -> bytes:
        """Return the application data of a message; PayloadDamaged if its checksum does not match."""
        if message.payload is not None:
            return message.payload
        payload = self._read(message, self.offset(message) + _HEADER_BYTES + len(message.options), message.size)
        if len(payload) != message.size or crc32c(payload) != message.crc:
            raise self._damage(message, False)
        return payload

    def read_beginning(self, message: Message, size: int = BEGINNING_BYTES) -> bytes:
        """Return the first `size` bytes of the application data; the checksum is verified only if these are all of it."""
        if message.payload is not None or message.size <= size:
            return self.read(message)
        return self.read_piece(message, 0, size)

    def read_piece(self, message: Message, start: int, size: int) -> bytes:
        """Return `size` bytes of the application data from offset `start` on, without a checksum."""
        return self._read(message, self.offset(message) + _HEADER_BYTES + len(message.options) + start, size)

    def _read(self, message: Message, offset: int, size: int) -> bytes:
        try:
            return self._files.read_data(offset, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise self._damage(message, True) from error

    # ---- whole records -------------------------------------------------------------------------------------------

    def offset(self, message: Message) -> int:
        """Return the offset of the DATA record of a message in the current file set, bytes."""
        relocation = self._roll.relocation
        return (message.data_offset if relocation is None else relocation.offset(message)) * 8

    def is_written(self, message: Message) -> bool:
        """Return whether the DATA record of a live message is in the file."""
        return message.live_key >= 0 and self.offset(message) + record_bytes(message) <= self._files.current.data.end

    def read_record(self, message: Message) -> bytes:
        """Return the DATA record of a message; PayloadDamaged if it differs from the record that was written."""
        record = self._read(message, self.offset(message), record_bytes(message))
        if not is_intact(record, message):
            raise self._damage(message, False)
        return record

    def own_copy(self, message: Message) -> bytes | None:
        """Return the application data of a damaged message from memory, or from its record if only header, options or
        padding are damaged; None if both are lost."""
        if message.payload is not None:
            return message.payload
        try:
            payload = self._files.read_data(self.offset(message) + _HEADER_BYTES + len(message.options), message.size)
        except OSError:
            return None
        return payload if len(payload) == message.size and crc32c(payload) == message.crc else None

    def write_payload(self, message: Message, payload: bytes) -> None:
        """Write the DATA record of a live message again, in place. OSError."""
        if self.closed or not self.is_written(message):
            raise OSError(errno.ESTALE, "the record is not in the files any more")
        self._files.current.data.file.write(self.offset(message), [pack_record(message, payload)])

    def _damage(self, message: Message, unreadable: bool) -> PayloadDamaged:
        """Return the exception to raise, with the repair of the message."""
        where = f"offset {self.offset(message)} of {self._files.directory.path(self._files.current.base, FileType.DATA)}"
        text = f"the stored data of message {message.guid.hex().upper()} at {where} is damaged"
        if self.closed or message.live_key < 0:
            return PayloadDamaged(text)
        repair = self.damaged.get(message.live_key)
        if repair is None:
            repair = self.damaged[message.live_key] = Repair(message, where, unreadable)
            self.on_damaged(repair)
        return PayloadDamaged(text, repair)


def record_bytes(message: Message) -> int:
    """Return the size of the DATA record of a message."""
    return data_record_bytes(_HEADER_BYTES + len(message.options) + message.size)


def pack_head(message: Message) -> bytes:
    """Encode header and options of the DATA record of a message."""
    options = message.options
    return pack_data_header(DATA_HEADER_START | record_bytes(message) >> 2,
                            len(options) << DATA_OPTION_BYTES_SHIFT | message.has_properties, message.schema_id) + options


def pack_record(message: Message, payload: bytes) -> bytes:
    """Encode the DATA record of a message."""
    head = pack_head(message)
    return head + payload + PADS[record_bytes(message) - len(head) - len(payload)]


def is_intact(record: bytes, message: Message) -> bool:
    """Return whether a DATA record has the bytes that were written for the message."""
    head, size = pack_head(message), record_bytes(message)
    end = len(head) + message.size
    return (len(record) == size and record.startswith(head) and record[end:] == PADS[size - end]
            and crc32c(memoryview(record)[len(head):end]) == message.crc)


def _ignore(repair: Repair) -> None:
    """Leave the repair to the next `on_damaged`."""
