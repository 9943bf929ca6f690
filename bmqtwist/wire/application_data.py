"""Application data taken apart, put together, and turned into the style that its next reader understands; its compression:
one complete zlib stream, inflated only up to a ceiling, or in steps.

| properties | style | what CAT 1 compresses |
|---|---|---|
| none | - | the payload |
| schema id 0 | v1, lengths | area and payload together |
| schema id not 0 | v2, offsets | the payload only |
"""

from __future__ import annotations

import zlib
from collections import deque
from io import BytesIO

from crc32c import crc32c

from bmqtwist.errors import PeerError
from bmqtwist.limits import DEFLATE_RATIO_MAX, INFLATE_STEP_BYTES, INFLATED_BYTES_MAX
from bmqtwist.wire import properties
from bmqtwist.wire.fast import CAT_NONE, CAT_ZLIB

SCHEMA_ANONYMOUS = 1  # "new style, no schema named": right for every reader


def open_data(data: bytes, has_properties: bool, compression: int, schema_id: int) -> tuple[bytes, bytes]:
    """(properties area, b"" if there is none; inflated payload) of application data as it stands in a message."""
    if compression not in (CAT_NONE, CAT_ZLIB):
        raise PeerError(f"unknown compression {compression}", "CAT")
    if not has_properties:
        return b"", inflate(data) if compression else data
    if schema_id == 0:
        plain = inflate(data) if compression else data
        cut = properties.area_length(plain)
        return plain[:cut], plain[cut:]
    cut = properties.area_length(data)
    return data[:cut], inflate(data[cut:]) if compression else data[cut:]


def close_data(area: bytes, payload: bytes, v2: bool, compress: bool) -> tuple[bytes, int]:
    """(application data, CAT): the reverse of `open_data`; compressed only where that is asked for and worth it."""
    if not compress:
        return area + payload, CAT_NONE
    if v2:
        small, compression = deflate(payload)
        return area + small, compression
    return deflate(area + payload)


def properties_area(data: bytes, compression: int, schema_id: int) -> tuple[bytes, bool]:
    """(area, is it v2?) of a message that has properties, for evaluating subscriptions; the payload is not inflated
    unless the area is inside the same stream."""
    if schema_id == 0 and compression:
        data = inflate(data)
    return data[:properties.area_length(data)], schema_id != 0


def inflation(data: bytes, has_properties: bool, schema_id: int,
              limit_bytes: int = INFLATED_BYTES_MAX) -> Inflation | None:
    """What has to be inflated of a PUT with CAT 1 before it is stored; None = nothing.

    One with v1 properties is stored inflated: `data()` of the inflation, with CAT 0 and a new checksum. Others are stored as
    they came, if that would not be too large for who inflates it: a consumer, or the broker for a reader of v1 properties.
    """
    if has_properties and not schema_id:
        return Inflation(data, limit_bytes, True)
    if len(data) * DEFLATE_RATIO_MAX <= limit_bytes:
        return None
    cut = properties.area_length(data) if has_properties else 0
    return Inflation(memoryview(data)[cut:], limit_bytes - cut, False)


def conversion(data: bytes) -> Inflation:
    """What has to be inflated of a message with v2 properties and CAT 1 for a client that cannot read them: its `data()` go
    with CAT 0 and schema id 0."""
    cut = properties.area_length(data)
    return Inflation(memoryview(data)[cut:], INFLATED_BYTES_MAX, True, properties.to_v1(data[:cut]))


def for_old_reader(data: bytes, has_properties: bool, compression: int, schema_id: int) -> tuple[bytes, int]:
    """(data, CAT) for a client that cannot read v2 properties; the schema id to send with it is 0.

    Messages with properties get the v1 style and are inflated; those without go as they are.
    """
    if not has_properties:
        return data, compression
    if schema_id and compression == CAT_ZLIB:
        made = conversion(data)
        while not made.step():
            pass
        return made.data(), CAT_NONE
    area, payload = open_data(data, True, compression, schema_id)
    return (properties.to_v1(area) if schema_id else area) + payload, CAT_NONE


# -- compression ----------------------------------------------------------------------------------------------


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
