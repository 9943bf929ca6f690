"""Compression of application data: one complete zlib stream, inflated only up to a ceiling."""

from __future__ import annotations

import zlib

from bmqtwist.errors import PeerError
from bmqtwist.limits import INFLATED_BYTES_MAX
from bmqtwist.wire.fast import CAT_NONE, CAT_ZLIB


class TooLarge(PeerError):
    """What a stream inflates to is more than a message may have."""


COMPRESS_BYTES_MIN = 1024  # shorter data is sent as it is
PIECE_BYTES = 1 << 20  # inflated at a time where only the size is wanted


def inflate(data: bytes | memoryview, limit_bytes: int = INFLATED_BYTES_MAX) -> bytes:
    """The bytes behind one zlib stream; PeerError if it is broken, cut short, followed by more, or too large."""
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, limit_bytes + 1)
    except zlib.error:
        raise PeerError("broken zlib stream", "data") from None
    if len(plain) > limit_bytes:
        raise TooLarge(f"inflates to more than {limit_bytes} bytes", "data")
    if not stream.eof:
        raise PeerError("zlib stream cut short", "data", len(data))
    if stream.unused_data:
        raise PeerError("bytes after the zlib stream", "data", len(data) - len(stream.unused_data))
    return plain


def check_size(data: bytes, limit_bytes: int) -> None:
    """Raise what `inflate` would raise for the size of a stream, without the memory for it; PeerError if it is broken."""
    stream = zlib.decompressobj()
    size = 0
    try:
        while size <= limit_bytes:
            piece = stream.decompress(data, PIECE_BYTES)
            size += len(piece)
            data = stream.unconsumed_tail
            if stream.eof or not piece:
                break
    except zlib.error:
        raise PeerError("broken zlib stream", "data") from None
    if size > limit_bytes:
        raise TooLarge(f"inflates to more than {limit_bytes} bytes", "data")


def deflate(data: bytes) -> tuple[bytes, int]:
    """(data to send, CAT): compressed only where that is worth it, from 1024 bytes on and if it gets smaller."""
    if len(data) >= COMPRESS_BYTES_MIN:
        small = zlib.compress(data)
        if len(small) < len(data):
            return small, CAT_ZLIB
    return data, CAT_NONE
