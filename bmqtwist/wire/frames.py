"""From TCP chunks to whole events, whatever the slicing.

The header of an event is drawn in `layout.py`. A chunk that holds whole events only, the usual case, is handed back as
it is. What is left over is gathered in one growing buffer, which is handed on as it is when the event it begins is complete:
an event may be large. The length an event claims is checked before anything of it is kept.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

from bmqtwist.errors import PeerError
from bmqtwist.wire.fast import EVENT_HEADER, EVENT_HEADER_BYTES, EVENT_HEADER_WORDS, EVENT_TYPE_MASK

DROPPED: Final = -1  # event type of a span whose header makes no sense: to be logged and passed over

Span = tuple[int, int, int, int]  # event type, type-specific byte, start of the body, end of the event

_LENGTH_BYTES: Final = 4
_unpack: Final = EVENT_HEADER.unpack_from


class Held:
    """How many bytes of incomplete events all connections together have sent."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class FrameBuffer:
    """Cuts the bytes of one connection into events; an event longer than `limit_bytes` ends the connection.

    `error` is the PeerError (always fatal) that ended the stream, None while it can be followed.
    What is held of an incomplete event counts in `total`, too.
    """

    __slots__ = ("_held", "_need", "error", "held_bytes", "limit_bytes", "total")

    def __init__(self, limit_bytes: int, total: Held | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.total = total or Held()
        self.error: PeerError | None = None
        self._held: BytesIO | None = None  # the beginning of an event
        self.held_bytes = 0  # how much of it there is
        self._need = 0  # bytes of _held that are worth looking at it again

    def receive(self, chunk: bytes) -> tuple[bytes, list[Span]]:
        """Take the next bytes; give a buffer and the spans of the whole events in it, in order.

        A span is (event type, type-specific byte, start of the body, end); of a DROPPED one the start is that of its
        header. Raises a fatal PeerError if the bytes cannot be followed. If whole events precede the bad bytes those
        are given first, `error` is set, and the next call raises.
        """
        if self._held is None and self.error is None:
            size = len(chunk)
            if size >= EVENT_HEADER_BYTES:
                length, version_type, words, specific, _ = _unpack(chunk)
                kind = version_type & EVENT_TYPE_MASK
                if length == size and words == EVENT_HEADER_WORDS and kind and size <= self.limit_bytes:
                    return chunk, [(kind, specific, EVENT_HEADER_BYTES, size)]
            return self._cut(chunk)
        if self.error is not None:
            raise self.error
        held = self._held
        assert held is not None
        held.write(chunk)
        self.held_bytes += len(chunk)
        self.total.bytes += len(chunk)
        if self.held_bytes < self._need:
            return b"", []
        whole = held.getvalue()  # not copied
        self.clear()
        return self._cut(whole)

    def clear(self) -> None:
        """Forget the beginning of an event: nobody wants the rest."""
        self.total.bytes -= self.held_bytes
        self._held, self.held_bytes = None, 0

    def _cut(self, data: bytes) -> tuple[bytes, list[Span]]:
        spans: list[Span] = []
        pos, size = 0, len(data)
        while size - pos >= _LENGTH_BYTES:
            length = int.from_bytes(data[pos:pos + _LENGTH_BYTES], "big")
            if not EVENT_HEADER_BYTES <= length <= self.limit_bytes:
                self._fail(length, pos)
                if not spans:
                    raise self.error  # type: ignore[misc]
                return data, spans
            end = pos + length
            if end > size:
                self._need = length
                break
            _, version_type, words, specific, _ = _unpack(data, pos)
            kind = version_type & EVENT_TYPE_MASK
            if kind == 0 or words < EVENT_HEADER_WORDS or words * 4 > length:
                spans.append((DROPPED, specific, pos, end))
            else:
                spans.append((kind, specific, pos + words * 4, end))
            pos = end
        else:
            self._need = _LENGTH_BYTES
        if pos < size:
            self._held, self.held_bytes = BytesIO(), size - pos
            self._held.write(memoryview(data)[pos:])
            self.total.bytes += size - pos
        return data, spans

    def _fail(self, length: int, pos: int) -> None:
        if length >> 31:
            reason = "fragmented event"
        elif length < EVENT_HEADER_BYTES:
            reason = f"event of {length} bytes"
        else:
            reason = f"event of {length} bytes, more than {self.limit_bytes}"
        self.error = PeerError(reason, "Length", pos, fatal=True)
