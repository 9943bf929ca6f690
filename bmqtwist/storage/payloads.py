"""The application data of a stored message, read back from DATA."""

from __future__ import annotations

from bmqtwist.storage.compaction import Moved
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import DATA_HEADER
from bmqtwist.storage.store import PartitionFiles
from bmqtwist.storage.unavailable import PayloadDamaged
from bmqtwist.wire.checksum import crc32c

_HEADER_BYTES = DATA_HEADER.size


def whole(files: PartitionFiles, message: Message, moved: Moved | None) -> bytes:
    """All of it, checked. `moved`: by the rollover under way. PayloadDamaged if it is not what was written; OSError."""
    offset = _offset(message, moved)
    payload = files.read_data(offset, message.size)
    if len(payload) != message.size or crc32c(payload) != message.crc:
        raise PayloadDamaged(f"the stored data of message {message.guid.hex().upper()} at offset {offset} is damaged")
    return payload


def part(files: PartitionFiles, message: Message, moved: Moved | None, size: int) -> bytes:
    """Its first bytes, unchecked; OSError."""
    return files.read_data(_offset(message, moved), size)


def piece(files: PartitionFiles, message: Message, moved: Moved | None, start: int, size: int) -> bytes:
    """Bytes from its midst, unchecked; OSError."""
    return files.read_data(_offset(message, moved) + start, size)


def _offset(message: Message, moved: Moved | None) -> int:
    dwords = message.data_offset if moved is None else moved.offset(message)
    return dwords * 8 + _HEADER_BYTES + len(message.options)
