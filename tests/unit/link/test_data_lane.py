"""Data lane of a peer: control events overtake data, which travels in fragments; and their reception."""

from __future__ import annotations

from random import Random

import pytest

from bmqtwist.errors import PeerError
from bmqtwist.limits import LINK_WRITE_BYTES
from bmqtwist.link.data_lane import DataLane
from bmqtwist.link.outbox import OVERTAKING, Outbox
from bmqtwist.wire.fast import EVENT_HEADER_BYTES, HEARTBEAT_REQ, EventType, event_header
from bmqtwist.wire.frames import BufferedBytes, FrameBuffer

STORAGE = int(EventType.STORAGE)
LIMIT = 64 << 20


def event(size: int, fill: bytes = b"x", kind: EventType = EventType.STORAGE) -> bytes:
    return event_header(kind, size) + fill * size


def outbox() -> Outbox:
    made = Outbox()
    made.lane = DataLane(True)
    return made


def received(chunks: list[bytes]) -> list[bytes]:
    """Return the events that a receiver of these chunks processes, in order."""
    frames, found = FrameBuffer(LIMIT), []
    for chunk in chunks:
        buffer, spans = frames.receive(chunk)
        for kind, _, start, end in spans:
            if kind == EventType.FRAGMENT:
                whole, inner = frames.receive_fragment(buffer[start:end])
                found += [whole[at - EVENT_HEADER_BYTES:until] for _, _, at, until in inner]
            else:
                found.append(buffer[start - EVENT_HEADER_BYTES:end])
    assert not frames.held_bytes
    return found


def test_output_that_fits_is_written_as_it_is() -> None:
    box = outbox()
    box.event(event(100))
    box.event(event(LINK_WRITE_BYTES - 100 - 2 * EVENT_HEADER_BYTES))
    assert b"".join(box.take_output()) == event(100) + event(LINK_WRITE_BYTES - 100 - 2 * EVENT_HEADER_BYTES)
    assert box.lane is not None and not box.lane.bytes


@pytest.mark.parametrize("kind", sorted(OVERTAKING))
def test_control_events_overtake_the_data_of_their_turn_and_waiting_data(kind: int) -> None:
    box, control = outbox(), event(4, kind=EventType(kind))
    assert box.lane is not None
    box.event(event(100))
    box.event(control)
    assert b"".join(box.take_output()) == control + event(100)
    box.lane.blocked = True
    box.event(event(100))
    box.event(control)
    box.control_event(event(7, kind=EventType.CONTROL), False)
    assert b"".join(box.take_output()) == control + event(7, kind=EventType.CONTROL)
    box.lane.blocked = False
    assert received([b"".join(box.lane.next_fragment())]) == [event(100)]


def test_no_control_event_overtakes_the_first_output_of_a_broker_that_was_dialled() -> None:
    box = Outbox()
    box.event(event(100))
    box.lane = DataLane(False)
    box.event(HEARTBEAT_REQ)
    box.control_event(event(7, kind=EventType.CONTROL), False)
    assert b"".join(box.take_output()) == event(100) + HEARTBEAT_REQ + event(7, kind=EventType.CONTROL)
    box.event(event(100))
    box.event(HEARTBEAT_REQ)
    assert b"".join(box.take_output()) == HEARTBEAT_REQ + event(100)


def test_without_a_lane_control_events_keep_their_place() -> None:
    box = Outbox()
    box.event(event(100))
    box.event(HEARTBEAT_REQ)
    box.control_event(event(7, kind=EventType.CONTROL), False)
    assert b"".join(box.take_output()) == event(100) + HEARTBEAT_REQ + event(7, kind=EventType.CONTROL)


def test_a_large_control_event_is_sent_in_fragments_and_not_overtaken_by_those_in_order() -> None:
    box, large, later = outbox(), event(3 * LINK_WRITE_BYTES, kind=EventType.CONTROL), event(7, kind=EventType.CONTROL)
    lane = box.lane
    assert lane is not None
    box.control_event(large, True)
    written = [b"".join(box.take_output())]
    box.control_event(later, True)
    box.control_event(event(9), False)
    lane.blocked = True
    written.append(b"".join(box.take_output()))
    assert len(written[0]) < len(large) and written[1] == event(9)
    while lane.bytes:
        written.append(b"".join(lane.next_fragment()))
    assert received(written) == [event(9), large, later]
    lane.blocked = False
    box.event(event(100))
    box.control_event(later, True)
    assert b"".join(box.take_output()) == later + event(100), "nothing large waits any more"


def test_a_write_has_a_limited_number_of_bytes_and_copies_none() -> None:
    box, large = outbox(), event(3 * LINK_WRITE_BYTES)
    assert box.lane is not None
    box.event(large)
    writes = [box.take_output()]
    while box.lane.bytes:
        writes.append(box.lane.next_fragment())
    assert [sum(map(len, parts)) - EVENT_HEADER_BYTES for parts in writes] == 3 * [LINK_WRITE_BYTES] + [EVENT_HEADER_BYTES]
    assert all(isinstance(part, memoryview) and part.obj is large for parts in writes for part in parts[1:])


@pytest.mark.parametrize("seed", range(20))
def test_events_arrive_whole_and_in_order(seed: int) -> None:
    random, box, chunks, sent = Random(seed), outbox(), list[bytes](), list[bytes]()
    lane = box.lane
    assert lane is not None
    for number in range(60):
        for _ in range(random.randrange(4)):
            each = event(random.choice((0, 1, 50, 70_000, LINK_WRITE_BYTES, 900_000)), bytes([number]))
            sent.append(each)
            box.event(each)
        box.event(HEARTBEAT_REQ)
        chunks.append(b"".join(box.take_output()))
        while lane.bytes and not lane.blocked:
            chunks.append(b"".join(lane.next_fragment()))
            lane.blocked = random.random() < 0.4
        if random.random() < 0.5:
            lane.blocked = False
    while lane.bytes:
        chunks.append(b"".join(lane.next_fragment()))
    stream, pieces = b"".join(chunks), list[bytes]()
    while stream:
        size = random.randrange(1, 200_000)
        pieces.append(stream[:size])
        stream = stream[size:]
    found = received(pieces)
    assert [each for each in found if each != HEARTBEAT_REQ] == sent
    assert found.count(HEARTBEAT_REQ) == 60


# -- malformed fragments --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("bodies", "error"), [
    ([event(4, kind=EventType.FRAGMENT)], "FRAGMENT event within a fragment"),
    ([(LIMIT + 1).to_bytes(4, "big")], f"event of {LIMIT + 1} bytes, more than {LIMIT}"),
    ([event(4), (4).to_bytes(4, "big")], "event of 4 bytes"),
])
def test_a_malformed_fragment_is_refused(bodies: list[bytes], error: str) -> None:
    frames = FrameBuffer(LIMIT)
    with pytest.raises(PeerError, match=error):
        for body in [*bodies, event(4) * 3]:
            frames.receive_fragment(body)


def test_fragments_count_as_incomplete_input_until_their_event_is_complete() -> None:
    total = BufferedBytes()
    frames, whole = FrameBuffer(LIMIT, total), event(100_000)
    frames.receive_fragment(whole[:60_000])
    assert total.bytes == frames.held_bytes == 60_000 and not frames.incomplete_bytes
    frames.receive(event(100)[:50])
    assert total.bytes == frames.held_bytes == 60_050
    assert frames.receive_fragment(whole[60_000:])[1] == [(STORAGE, 0, EVENT_HEADER_BYTES, len(whole))]
    assert total.bytes == frames.held_bytes == 50
    frames.receive_fragment(whole[:60_000])
    frames.clear()
    assert total.bytes == frames.held_bytes == 0
