"""Framing: the same events for every division into chunks; bytes of an invalid event are not stored."""

import random
import sys

import pytest
from kit.wire_recordings import CLIENT, FILES, MALFORMED, events, name_of, streams

from bmqtwist.errors import PeerError
from bmqtwist.wire.fast import HEARTBEAT_REQ, HEARTBEAT_RSP, EventType, event_header
from bmqtwist.wire.frames import DROPPED, FrameBuffer

LIMIT = 1 << 20
WELL_FORMED = [path for path in FILES if MALFORMED not in path.name]
NAMES = {"HB_REQ": "HEARTBEAT_REQ", "HB_RSP": "HEARTBEAT_RSP"}


def split_stream(data, sizes=None):
    """(kind, body) of all events when `data` arrives in pieces of `sizes` bytes, repeated; and the buffer."""
    frames = FrameBuffer(LIMIT)
    found, pos, turn = [], 0, 0
    while pos < len(data):
        size = sizes[turn % len(sizes)] if sizes else len(data)
        buffer, spans = frames.receive(data[pos:pos + size])
        found += [(kind, specific, buffer[start:end]) for kind, specific, start, end in spans]
        pos, turn = pos + size, turn + 1
    return found, frames


@pytest.mark.spec("wire", 1)
@pytest.mark.parametrize("path", WELL_FORMED, ids=name_of)
@pytest.mark.parametrize("sizes", [None, [1], [3], [7, 64, 1, 1460]], ids=["whole", "bytewise", "threes", "uneven"])
def test_a_recorded_stream_has_the_same_events_for_any_chunk_sizes(path, sizes):
    """TCP delivers bytes in chunks of any size."""
    for stream in streams(path):
        found, frames = split_stream(stream.data, sizes)
        assert found == [(event.kind, event.raw[6], event.body) for event in events(stream.data)]
        assert frames.incomplete_bytes == 0


@pytest.mark.spec("wire", 1)
@pytest.mark.parametrize("path", sorted(CLIENT.glob("*.seq.txt")), ids=lambda path: path.name[:-8])
def test_events_have_the_offsets_listed_with_the_recording(path):
    """An independent reader made the lists beside the recordings."""
    for direction in ("c2b", "b2c"):
        data = (CLIENT / f"{path.name[:-8]}.{direction}.bin").read_bytes()
        _, spans = FrameBuffer(LIMIT).receive(data)
        ours = [(start - 8, end - start + 8, EventType(kind).name) for kind, _, start, end in spans
                if kind in set(EventType)]
        theirs = []
        for line in path.read_text().splitlines():
            which, offset, length, kind = line.split()[:4]
            if which == direction:
                theirs.append((int(offset.partition("=")[2]), int(length.partition("=")[2]), NAMES.get(kind, kind)))
        assert theirs and ours == theirs


@pytest.mark.parametrize("count", range(1, 8))
def test_an_incomplete_event_is_held_until_its_rest_arrives(count):
    frames = FrameBuffer(LIMIT)
    buffer, spans = frames.receive(HEARTBEAT_REQ + HEARTBEAT_RSP[:count])
    assert [(kind, buffer[start:end]) for kind, _, start, end in spans] == [(EventType.HEARTBEAT_REQ, b"")]
    assert frames.incomplete_bytes == count
    buffer, spans = frames.receive(HEARTBEAT_RSP[count:])
    assert spans == [(EventType.HEARTBEAT_RSP, 0, 8, 8)]
    assert frames.incomplete_bytes == 0


def test_an_event_in_many_chunks_is_parsed_once(monkeypatch):
    """Joining at every piece would take quadratic time for a large message."""
    parsed = []
    original = FrameBuffer._split
    monkeypatch.setattr(FrameBuffer, "_split", lambda self, data: parsed.append(len(data)) or original(self, data))
    event = event_header(EventType.PUT, 100_000) + bytes(100_000)
    found, _ = split_stream(event, [100])
    assert found == [(EventType.PUT, 0, bytes(100_000))]
    assert parsed == [100, 100_008]


def test_a_complete_event_is_returned_without_a_copy():
    chunk = event_header(EventType.PUT, 40) + bytes(40)
    buffer, spans = FrameBuffer(LIMIT).receive(chunk)
    assert buffer is chunk
    assert spans == [(EventType.PUT, 0, 8, 48)]


@pytest.mark.parametrize("length", [0, 1, 4, 5, 7, LIMIT + 1, 0x7FFFFFFF, 0x80000010])
def test_an_invalid_length_ends_the_stream_at_its_fourth_byte(length):
    """Bytes of an event that is too long, or of a fragmented event, are not stored."""
    frames = FrameBuffer(LIMIT)
    with pytest.raises(PeerError) as caught:
        frames.receive(length.to_bytes(4, "big"))
    assert caught.value.fatal and caught.value.field == "Length"
    assert frames.incomplete_bytes == 0
    with pytest.raises(PeerError):
        frames.receive(HEARTBEAT_REQ)


def test_an_event_above_the_size_limit_is_refused():
    frames = FrameBuffer(16)
    assert frames.receive(event_header(EventType.PUT, 8) + bytes(8))[1]
    with pytest.raises(PeerError):
        frames.receive(event_header(EventType.PUT, 9) + bytes(9))


def test_complete_events_before_an_invalid_length_are_returned():
    """They precede the invalid bytes: a CONFIRM among them is valid."""
    frames = FrameBuffer(LIMIT)
    _, spans = frames.receive(HEARTBEAT_REQ + bytes(8))
    assert [span[0] for span in spans] == [EventType.HEARTBEAT_REQ]
    assert frames.error is not None and frames.error.fatal
    with pytest.raises(PeerError):
        frames.receive(HEARTBEAT_REQ)


@pytest.mark.parametrize("header", [
    bytes.fromhex("0000000c 40020000"),  # type 0
    bytes.fromhex("0000000c 42000000"),  # no header words
    bytes.fromhex("0000000c 42010000"),  # a header shorter than itself
    bytes.fromhex("0000000c 42040000"),  # a header longer than the event
])
def test_an_event_with_an_invalid_header_is_dropped(header):
    data = header + b"abcd" + HEARTBEAT_REQ
    _, spans = FrameBuffer(LIMIT).receive(data)
    assert spans == [(DROPPED, 0, 0, 12), (EventType.HEARTBEAT_REQ, 0, 20, 20)]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_protocol_version_is_ignored(version):
    data = bytes((0, 0, 0, 8, version << 6 | EventType.HEARTBEAT_REQ, 2, 0, 0))
    assert FrameBuffer(LIMIT).receive(data)[1] == [(EventType.HEARTBEAT_REQ, 0, 8, 8)]


def test_a_longer_header_is_skipped_and_an_unknown_type_is_returned():
    data = bytes.fromhex("00000010 69032000 ffffffff 61626364")
    buffer, [(kind, specific, start, end)] = FrameBuffer(LIMIT).receive(data)
    assert (kind, specific, buffer[start:end]) == (0x29, 0x20, b"abcd")


def test_a_recorded_malformed_stream_is_parsed_up_to_its_invalid_length():
    """The original broker closed that connection after serving the events before."""
    [path] = [path for path in FILES if MALFORMED in path.name]
    frames = [FrameBuffer(LIMIT) for _ in streams(path)]
    kinds = [[span[0] for span in each.receive(stream.data)[1]] for each, stream in zip(frames, streams(path),
                                                                                        strict=True)]
    bad = [each for each in frames if each.error]
    assert len(bad) == 1 and bad[0].error.fatal
    assert [kind for each in kinds for kind in each].count(DROPPED) == 2


@pytest.mark.parametrize("size", [(1 << 20) - 8, 1 << 20, 3 << 20, 5 << 20])
@pytest.mark.parametrize("chunk", [1000, 64 << 10, 100_001, 2 << 20])
def test_a_large_event_and_later_events_are_complete_for_any_chunk_sizes(size, chunk):
    body = random.Random(size + chunk).randbytes(size)
    data = HEARTBEAT_REQ + event_header(EventType.PUT, size) + body + HEARTBEAT_RSP + HEARTBEAT_REQ[:5]
    frames, found = FrameBuffer(size + 8), []
    for at in range(0, len(data), chunk):
        buffer, spans = frames.receive(data[at:at + chunk])
        found += [(kind, buffer[start:end]) for kind, _, start, end in spans]
    assert found == [(EventType.HEARTBEAT_REQ, b""), (EventType.PUT, body), (EventType.HEARTBEAT_RSP, b"")]
    assert frames.incomplete_bytes == frames.total.bytes == 5


def test_a_large_event_is_copied_few_times_while_it_is_received():
    """A buffer that grows with each chunk is copied each time, which blocks the broker."""
    size = 40 << 20
    data, frames, sizes = event_header(EventType.PUT, size) + bytes(size), FrameBuffer(size + 8), []
    for at in range(0, len(data), 64 << 10):
        frames.receive(data[at:at + (64 << 10)])
        if frames._incomplete is not None and (not sizes or sizes[-1][1] != sys.getsizeof(frames._incomplete)):
            sizes.append((frames.incomplete_bytes, sys.getsizeof(frames._incomplete)))
    copied = [held for held, _ in sizes[1:]]
    assert len(copied) <= 4 and max(copied) < size / 7
