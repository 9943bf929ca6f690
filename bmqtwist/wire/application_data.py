"""Application data of a message: its properties area and payload, its compression, and its conversion for old readers.

Compressed data are one complete zlib stream, inflated up to a size limit, at once or in steps.

| properties | style | compressed by CAT 1 |
|---|---|---|
| none | - | the payload |
| schema id 0 | v1, lengths | area and payload together |
| schema id not 0 | v2, offsets | the payload only |

`link/puts.py` inflates PUTs with it, `link/client.py` converts messages for clients of an older protocol,
`sdk/_core/posts.py` packs them. The properties area itself is in `properties.py`. Sizes are limited in
`bmqtwist/limits.py`.
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

SCHEMA_ANONYMOUS = 1  # new style without a named schema, for every reader


def unpack_data(data: bytes, has_properties: bool, compression: int, schema_id: int) -> tuple[bytes, bytes]:
    """Return (properties area or b"", inflated payload) of the application data of a message."""
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


def pack_data(area: bytes, payload: bytes, v2: bool, compress: bool) -> tuple[bytes, int]:
    """Return (application data, CAT), the reverse of `unpack_data`; compressed on request if it gets smaller."""
    if not compress:
        return area + payload, CAT_NONE
    if v2:
        small, compression = deflate(payload)
        return area + small, compression
    return deflate(area + payload)


def properties_area(data: bytes, compression: int, schema_id: int) -> tuple[bytes, bool]:
    """Return (area, True if it is v2) of a message with properties, for subscriptions; inflates the payload only if the
    area is in the same stream."""
    if schema_id == 0 and compression:
        data = inflate(data)
    return data[:properties.area_length(data)], schema_id != 0


def inflation_of_put(data: bytes, has_properties: bool, schema_id: int,
                     limit_bytes: int = INFLATED_BYTES_MAX) -> Inflation | None:
    """Return the inflation of a PUT with CAT 1 before it is stored, None without one.

    A PUT with v1 properties is stored inflated: `data()` of the inflation, with CAT 0 and a new checksum. Others are stored
    as received, if their inflated size is within the limit: a consumer or this broker inflates them later.
    """
    if has_properties and not schema_id:
        return Inflation(data, limit_bytes, True)
    if len(data) * DEFLATE_RATIO_MAX <= limit_bytes:
        return None
    cut = properties.area_length(data) if has_properties else 0
    return Inflation(memoryview(data)[cut:], limit_bytes - cut, False)


def inflation_for_old_reader(data: bytes) -> Inflation:
    """Return the inflation of a message with v2 properties and CAT 1 for a client that reads only v1: its `data()` are sent
    with CAT 0 and schema id 0."""
    cut = properties.area_length(data)
    return Inflation(memoryview(data)[cut:], INFLATED_BYTES_MAX, True, properties.to_v1(data[:cut]))


def for_old_reader(data: bytes, has_properties: bool, compression: int, schema_id: int) -> tuple[bytes, int]:
    """Return (data, CAT) for a client that reads only v1 properties; the schema id to send with them is 0.

    Messages with properties are inflated and get the v1 style; messages without properties stay unchanged.
    """
    if not has_properties:
        return data, compression
    if schema_id and compression == CAT_ZLIB:
        made = inflation_for_old_reader(data)
        while not made.step():
            pass
        return made.data(), CAT_NONE
    area, payload = unpack_data(data, True, compression, schema_id)
    return (properties.to_v1(area) if schema_id else area) + payload, CAT_NONE


# -- compression ----------------------------------------------------------------------------------------------


class TooLarge(PeerError):
    """The inflated size exceeds the limit of a message."""


COMPRESS_BYTES_MIN = 1024  # shorter data are not compressed


def inflate(data: bytes | memoryview, limit_bytes: int = INFLATED_BYTES_MAX) -> bytes:
    """Return the inflated bytes of one zlib stream; PeerError if it is broken, cut short, followed by more, or too large."""
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
    """Inflation of one zlib stream in steps. With `keeps` it retains the bytes and requires a complete stream; without, it
    only measures the size. `crc`: CRC32-C of the retained bytes; `before`: bytes that precede them in `data()`.

    The pieces are joined in steps, too, in memory allocated once: the first access to a page costs more than its use, and a
    growing buffer would be copied.
    """

    __slots__ = ("bytes", "crc", "keeps", "_stream", "_rest", "_size", "_limit", "_pieces", "_whole", "_inflated", "_error")

    def __init__(self, data: bytes | memoryview, limit_bytes: int, keeps: bool, before: bytes = b"") -> None:
        self._stream, self._rest, self._size = zlib.decompressobj(), data, len(data)
        self._limit, self.keeps = limit_bytes, keeps
        self._pieces = deque([before] if before else ())
        self._whole: BytesIO | None = None  # buffer for the joined pieces
        self.bytes = self.crc = 0  # inflated so far
        self._inflated = False
        self._error: PeerError | None = None

    def step(self, bytes_max: int = INFLATE_STEP_BYTES) -> bool:
        """Inflate or join up to `bytes_max` bytes; return True when complete."""
        if self._whole is not None:
            self._join_pieces(self._whole, bytes_max)
        elif not self._inflated:
            try:
                self._inflated = self._inflate(bytes_max)
            except PeerError as error:
                self._inflated, self._error = True, error.with_traceback(None)
                self._rest = b""  # frees the data, which may be large
                self._pieces.clear()
            if self._inflated and self._pieces:
                self._whole = BytesIO(bytes(sum(map(len, self._pieces))))
                self._join_pieces(self._whole, bytes_max - self.bytes)
        return self._inflated and not self._pieces

    def _join_pieces(self, whole: BytesIO, bytes_max: int) -> None:
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
        """Return the retained bytes once complete; raises the errors of `inflate`."""
        error = self._error
        if error is not None:  # a new error: the traceback of the first would make a reference cycle
            raise type(error)(error.reason, error.field, error.offset)
        return b"" if self._whole is None else self._whole.getvalue()


def deflate(data: bytes) -> tuple[bytes, int]:
    """Return (data, CAT), compressed from 1024 bytes on if that makes them smaller."""
    if len(data) >= COMPRESS_BYTES_MIN:
        small = zlib.compress(data)
        if len(small) < len(data):
            return small, CAT_ZLIB
    return data, CAT_NONE
