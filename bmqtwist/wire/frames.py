"""From TCP chunks to whole events, whatever the slicing.

The header of an event is in `layout.py`. A chunk that holds whole events only, the usual case, is handed back as
it is. What is left over is gathered in one buffer, which is handed on as it is when the event it begins is complete. The
length an event claims is checked before anything of it is kept. Memory for all of a large one is asked for when a 64th is
here: a buffer that grows with each chunk is copied again and again, for up to 0.1 s where it has 40 MiB.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

from bmqtwist.errors import PeerError
from bmqtwist.wire.fast import EVENT_HEADER_BYTES, EVENT_HEADER_WORDS, EVENT_TYPE_MASK, event_header_at

DROPPED: Final = -1  # event type of a span whose header makes no sense: to be logged and passed over

Span = tuple[int, int, int, int]  # event type, type-specific byte, start of the body, end of the event

_LENGTH_BYTES: Final = 4
_LARGE_BYTES: Final = 1 << 20  # of an event that is worth the trouble
_AHEAD: Final = 8  # memory is asked for ahead, for so many times of what is here, so that no more than an eighth is copied
_SLACK_BYTES: Final = 64 << 10  # for what follows an event in its last chunk


class Held:
    """How many bytes of incomplete events all connections together have sent, and how many they may."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int = 1 << 62) -> None:
        self.bytes, self.bytes_max = 0, bytes_max


class FrameBuffer:
    """Cuts the bytes of one connection into events; an event longer than `limit_bytes` ends the connection.

    `error` is the PeerError (always fatal) that ended the stream, None while it can be followed.
    What is held of an incomplete event counts in `total`, too.
    """

    __slots__ = ("_held", "_need", "_room", "error", "held_bytes", "limit_bytes", "total")

    def __init__(self, limit_bytes: int, total: Held | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.total = total or Held()
        self.error: PeerError | None = None
        self._held: BytesIO | None = None  # the beginning of an event
        self.held_bytes = 0  # how much of it there is
        self._need = 0  # bytes of _held that are worth looking at it again
        self._room = 0  # bytes that _held takes without growing

    def receive(self, chunk: bytes) -> tuple[bytes, list[Span]]:
        """Take the next bytes; give a buffer and the spans of the whole events in it, in order.

        A span is (event type, type-specific byte, start of the body, end); of a DROPPED one the start is that of its
        header. Raises a fatal PeerError if the bytes cannot be followed. If whole events precede the bad bytes those
        are given first, `error` is set, and the next call raises.
        """
        if self._held is None and self.error is None:
            size = len(chunk)
            if size >= EVENT_HEADER_BYTES:
                length, version_type, words, specific = event_header_at(chunk, 0)
                kind = version_type & EVENT_TYPE_MASK
                if length == size and words == EVENT_HEADER_WORDS and kind and size <= self.limit_bytes:
                    return chunk, [(kind, specific, EVENT_HEADER_BYTES, size)]
            return self._cut(chunk)
        if self.error is not None:
            raise self.error
        held = self._held
        assert held is not None
        self.held_bytes += len(chunk)
        self.total.bytes += len(chunk)
        if self.held_bytes > self._room and self._need > _LARGE_BYTES:
            held = self._larger(held)
        held.write(chunk)
        if self.held_bytes < self._need:
            return b"", []
        held.truncate()
        whole = held.getvalue()  # not copied
        self.clear()
        return self._cut(whole)

    def _larger(self, held: BytesIO) -> BytesIO:
        """A buffer with room for what is to come."""
        have, need = self.held_bytes, self._need
        self._room = max(have, need if have * _AHEAD * _AHEAD >= need else have * _AHEAD) + _SLACK_BYTES
        self._held = larger = BytesIO(bytes(self._room))
        larger.write(held.getbuffer()[:held.tell()])
        return larger

    def clear(self) -> None:
        """Forget the beginning of an event: nobody wants the rest."""
        self.total.bytes -= self.held_bytes
        self._held, self.held_bytes = None, 0

    def _cut(self, data: bytes) -> tuple[bytes, list[Span]]:
        spans: list[Span] = []
        pos, size = 0, len(data)
        while size - pos >= _LENGTH_BYTES:
            whole = size - pos >= EVENT_HEADER_BYTES
            length, version_type, words, specific = event_header_at(data, pos) if whole else (
                int.from_bytes(data[pos:pos + _LENGTH_BYTES], "big"), 0, 0, 0)
            if not EVENT_HEADER_BYTES <= length <= self.limit_bytes:
                self._fail(length, pos)
                if not spans:
                    raise self.error  # type: ignore[misc]
                return data, spans
            end = pos + length
            if end > size:
                self._need = length
                break
            kind = version_type & EVENT_TYPE_MASK
            if kind == 0 or words < EVENT_HEADER_WORDS or words * 4 > length:
                spans.append((DROPPED, specific, pos, end))
            else:
                spans.append((kind, specific, pos + words * 4, end))
            pos = end
        else:
            self._need = _LENGTH_BYTES
        if pos < size:
            self._held, self.held_bytes, self._room = BytesIO(), size - pos, 0
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
