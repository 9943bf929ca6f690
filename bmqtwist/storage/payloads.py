"""The application data of stored messages, read back from DATA."""

from __future__ import annotations

from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import DATA_HEADER
from bmqtwist.storage.rollover import Rollover
from bmqtwist.storage.store import BEGINNING_BYTES, PayloadDamaged
from bmqtwist.wire.checksum import crc32c

_HEADER_BYTES = DATA_HEADER.size


class Payloads:
    """Of one partition. OSError: DATA cannot be read."""

    def __init__(self, files: FileSets, roll: Rollover) -> None:
        self._files, self._roll = files, roll

    def whole(self, message: Message) -> bytes:
        """The application data of a message. PayloadDamaged: DATA has something else."""
        if message.payload is not None:
            return message.payload
        offset = self._offset(message)
        payload = self._files.read_data(offset, message.size)
        if len(payload) != message.size or crc32c(payload) != message.crc:
            what = f"the stored data of message {message.guid.hex().upper()} at offset {offset} is damaged"
            self._files.reports.alarm("STORAGE", f": {what}; it is not delivered.")
            raise PayloadDamaged(what)
        return payload

    def beginning(self, message: Message, size: int = BEGINNING_BYTES) -> bytes:
        """The first bytes; unchecked, unless it is all there is."""
        if message.payload is not None or message.size <= size:
            return self.whole(message)
        return self.piece(message, 0, size)

    def piece(self, message: Message, start: int, size: int) -> bytes:
        """Bytes from its midst, unchecked."""
        return self._files.read_data(self._offset(message) + start, size)

    def _offset(self, message: Message) -> int:
        moved = self._roll.moved
        dwords = message.data_offset if moved is None else moved.offset(message)
        return dwords * 8 + _HEADER_BYTES + len(message.options)
