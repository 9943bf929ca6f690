"""Compression of application data: one complete zlib stream, inflated only up to a ceiling, or in steps."""

from __future__ import annotations

import zlib
from collections import deque
from io import BytesIO

from bmqtwist.errors import PeerError
from bmqtwist.limits import INFLATE_STEP_BYTES, INFLATED_BYTES_MAX
from bmqtwist.wire.checksum import crc32c
from bmqtwist.wire.fast import CAT_NONE, CAT_ZLIB


class TooLarge(PeerError):
    """What a stream inflates to is more than a message may have."""


COMPRESS_BYTES_MIN = 1024  # shorter data is sent as it is


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


class Inflation:
    """One zlib stream that is inflated in steps. With `keeps` its bytes are kept, and it has to be complete; without, only
    its size is of interest, and takes no memory. `crc`: the CRC32-C of what was kept so far. `before`: what stands before it
    in `data()`.

    The pieces are put together in steps, too, in memory that is asked for once: the first use of a page takes longer than
    all else that is done with it, and what grows is copied.
    """

    __slots__ = ("bytes", "crc", "keeps", "_stream", "_rest", "_size", "_limit", "_pieces", "_whole", "_over", "_error")

    def __init__(self, data: bytes | memoryview, limit_bytes: int, keeps: bool, before: bytes = b"") -> None:
        self._stream, self._rest, self._size = zlib.decompressobj(), data, len(data)
        self._limit, self.keeps = limit_bytes, keeps
        self._pieces = deque([before] if before else ())
        self._whole: BytesIO | None = None  # where they are put together
        self.bytes = self.crc = 0  # inflated so far
        self._over = False
        self._error: PeerError | None = None

    def step(self, bytes_max: int = INFLATE_STEP_BYTES) -> bool:
        """Inflate so many bytes more, or put so many together. True: it is over."""
        if self._whole is not None:
            self._put_together(self._whole, bytes_max)
        elif not self._over:
            try:
                self._over = self._inflate(bytes_max)
            except PeerError as error:
                self._over, self._error = True, error.with_traceback(None)
                self._rest = b""  # of no use any more, and perhaps large
                self._pieces.clear()
            if self._over and self._pieces:
                self._whole = BytesIO(bytes(sum(map(len, self._pieces))))
                self._put_together(self._whole, bytes_max - self.bytes)
        return self._over and not self._pieces

    def _put_together(self, whole: BytesIO, bytes_max: int) -> None:
        while self._pieces and bytes_max > 0:
            bytes_max -= whole.write(self._pieces.popleft())

    def _inflate(self, bytes_max: int) -> bool:
        stream = self._stream
        try:
            piece = stream.decompress(self._rest, bytes_max)
        except zlib.error:
            raise PeerError("broken zlib stream", "data") from None
        self._rest = stream.unconsumed_tail
        self.bytes += len(piece)
        if self.bytes > self._limit:
            raise TooLarge(f"inflates to more than {self._limit} bytes", "data")
        if self.keeps:
            self._pieces.append(piece)
            self.crc = crc32c(piece, self.crc)
        if not stream.eof and len(piece) == bytes_max:
            return False
        if self.keeps and not stream.eof:
            raise PeerError("zlib stream cut short", "data", self._size)
        if self.keeps and stream.unused_data:
            raise PeerError("bytes after the zlib stream", "data", self._size - len(stream.unused_data))
        return True

    def data(self) -> bytes:
        """What was kept of it, once it is over; raises what `inflate` raises."""
        error = self._error
        if error is not None:  # a new one: a traceback would lead back here, and all of it would have to be collected
            raise type(error)(error.reason, error.field, error.offset)
        return b"" if self._whole is None else self._whole.getvalue()


def deflate(data: bytes) -> tuple[bytes, int]:
    """(data to send, CAT): compressed only where that is worth it, from 1024 bytes on and if it gets smaller."""
    if len(data) >= COMPRESS_BYTES_MIN:
        small = zlib.compress(data)
        if len(small) < len(data):
            return small, CAT_ZLIB
    return data, CAT_NONE
