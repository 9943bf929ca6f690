"""Framing: divides the TCP chunks of a connection into whole events.

`layout.py` has the header of an event. A chunk of whole events, the usual case, is returned without a copy. An
incomplete event is collected in one buffer, which is returned without a copy once complete. The declared length of an
event is checked before its bytes are stored; the caller passes the limit, EVENT_BYTES_MAX (`bmqtwist/limits.py`) or the
configured one. Memory for all of a large event is allocated when 1/64 has arrived, since a growing buffer is copied
repeatedly: 0.1 s for 40 MiB.

Called by `link/session.py` for connections of the broker, and by `sdk/_core/connection.py` for the client.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

from bmqtwist.errors import PeerError
from bmqtwist.wire.fast import EVENT_HEADER_BYTES, EVENT_HEADER_WORDS, EVENT_TYPE_MASK, EventType, event_header_at

DROPPED: Final = -1  # event type of a span with an invalid header: to be logged and skipped

Span = tuple[int, int, int, int]  # event type, type-specific byte, start of the body, end of the event

_FRAGMENT: Final = int(EventType.FRAGMENT)
_LENGTH_BYTES: Final = 4
_LARGE_BYTES: Final = 1 << 20  # size of an event above which memory is allocated in advance
_ALLOCATION_FACTOR: Final = 8  # allocated multiple of the received bytes: at most an eighth is copied
_SLACK_BYTES: Final = 64 << 10  # for the bytes after an event in its last chunk


class BufferedBytes:
    """Bytes of incomplete events of all connections together, and their limit."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int = 1 << 62) -> None:
        self.bytes, self.bytes_max = 0, bytes_max


class FrameBuffer:
    """Divides the bytes of one connection into events; an event longer than `limit_bytes` ends the connection.

    `error`: the PeerError (always fatal) that ended the stream, else None. Stored bytes of an incomplete event also count
    in `total`. FRAGMENT events carry the bytes of other events, which have a buffer of their own (`receive_fragment`).
    """

    __slots__ = ("_fragments", "_incomplete", "_need", "_room", "error", "incomplete_bytes", "limit_bytes", "total")

    def __init__(self, limit_bytes: int, total: BufferedBytes | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._fragments: FrameBuffer | None = None
        self.total = total or BufferedBytes()
        self.error: PeerError | None = None
        self._incomplete: BytesIO | None = None  # incomplete event
        self.incomplete_bytes = 0  # bytes of `_incomplete`
        self._need = 0  # bytes of `_incomplete` at which it is divided again
        self._room = 0  # capacity of `_incomplete`, bytes

    def receive(self, chunk: bytes) -> tuple[bytes, list[Span]]:
        """Take the next bytes; return a buffer and the spans of the whole events in it, in order.

        A span is (event type, type-specific byte, start of the body, end); for DROPPED the start of its header. Raises a
        fatal PeerError for an invalid length. If whole events precede it, they are returned first, `error` is set, and
        the next call raises.
        """
        if self._incomplete is None and self.error is None:
            size = len(chunk)
            if size >= EVENT_HEADER_BYTES:
                length, version_type, words, specific = event_header_at(chunk, 0)
                kind = version_type & EVENT_TYPE_MASK
                if length == size and words == EVENT_HEADER_WORDS and kind and size <= self.limit_bytes:
                    return chunk, [(kind, specific, EVENT_HEADER_BYTES, size)]
            return self._split(chunk)
        if self.error is not None:
            raise self.error
        held = self._incomplete
        assert held is not None
        self.incomplete_bytes += len(chunk)
        self.total.bytes += len(chunk)
        if self.incomplete_bytes > self._room and self._need > _LARGE_BYTES:
            held = self._enlarge(held)
        held.write(chunk)
        if self.incomplete_bytes < self._need:
            return b"", []
        held.truncate()
        whole = held.getvalue()  # not copied
        self._clear_incomplete()
        return self._split(whole)

    def receive_fragment(self, body: bytes) -> tuple[bytes, list[Span]]:
        """Take the body of a FRAGMENT event; return as `receive` the whole events that it completes. Raises a fatal
        PeerError for an invalid length, and for a fragment within a fragment."""
        fragments = self._fragments
        if fragments is None:
            fragments = self._fragments = FrameBuffer(self.limit_bytes, self.total)
        buffer, spans = fragments.receive(body)
        for kind, _, start, _ in spans:
            if kind == _FRAGMENT:
                raise PeerError("FRAGMENT event within a fragment", "Type", start, fatal=True)
        return buffer, spans

    @property
    def held_bytes(self) -> int:
        """Bytes of incomplete events, those in fragments included."""
        return self.incomplete_bytes + (self._fragments.incomplete_bytes if self._fragments is not None else 0)

    def _enlarge(self, held: BytesIO) -> BytesIO:
        """Replace the buffer by a larger one."""
        have, need = self.incomplete_bytes, self._need
        more = have * _ALLOCATION_FACTOR
        self._room = max(have, need if more * _ALLOCATION_FACTOR >= need else more) + _SLACK_BYTES
        self._incomplete = larger = BytesIO(bytes(self._room))
        larger.write(held.getbuffer()[:held.tell()])
        return larger

    def clear(self) -> None:
        """Drop incomplete events."""
        self._clear_incomplete()
        if self._fragments is not None:
            self._fragments.clear()

    def _clear_incomplete(self) -> None:
        self.total.bytes -= self.incomplete_bytes
        self._incomplete, self.incomplete_bytes = None, 0

    def _split(self, data: bytes) -> tuple[bytes, list[Span]]:
        spans: list[Span] = []
        pos, size = 0, len(data)
        while size - pos >= _LENGTH_BYTES:
            whole = size - pos >= EVENT_HEADER_BYTES
            length, version_type, words, specific = event_header_at(data, pos) if whole else (
                int.from_bytes(data[pos:pos + _LENGTH_BYTES], "big"), 0, 0, 0)
            if not EVENT_HEADER_BYTES <= length <= self.limit_bytes:
                self._set_error(length, pos)
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
            self._incomplete, self.incomplete_bytes, self._room = BytesIO(), size - pos, 0
            self._incomplete.write(memoryview(data)[pos:])
            self.total.bytes += size - pos
        return data, spans

    def _set_error(self, length: int, pos: int) -> None:
        if length >> 31:
            reason = "fragmented event"
        elif length < EVENT_HEADER_BYTES:
            reason = f"event of {length} bytes"
        else:
            reason = f"event of {length} bytes, more than {self.limit_bytes}"
        self.error = PeerError(reason, "Length", pos, fatal=True)
