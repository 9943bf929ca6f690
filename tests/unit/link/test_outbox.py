"""Outbox: order of the events of one turn, merged PUSHes, limits of event sizes."""

from __future__ import annotations

import pytest
from kit import codec
from kit.codec import Event
from kit.data_events import PushMessage, encode_options, encode_push

from bmqtwist.limits import OUT_EVENT_BYTES_MAX
from bmqtwist.link.outbox import Outbox
from bmqtwist.storage.message import Message
from bmqtwist.wire import options
from bmqtwist.wire.fast import HEARTBEAT_RSP


def guid(number: int) -> bytes:
    return number.to_bytes(16, "big")


def frames(outbox: Outbox) -> list[bytes]:
    """Take the output and return its complete events."""
    whole, rest = codec.split_frames(b"".join(outbox.take_output()))
    assert not rest
    return whole


def events(outbox: Outbox) -> list[Event]:
    return [event for frame in frames(outbox) for event in codec.decode_event(frame, negotiated=True)]


def push(outbox: Outbox, number: int, s_id: int = 1, q_id: int = 7, payload: bytes = b"payload", flags: int = 0,
         merged: bool = False) -> None:
    (outbox.push_merged if merged else outbox.push)(q_id, guid(number), s_id, flags, 0, 0, payload)


def merged(outbox: Outbox, *deliveries: tuple[int, int]) -> list[tuple[int, list[int]]]:
    """Push (message, subscription id) pairs in this order; return the PUSHes of the wire, (message, subscription ids)."""
    for number, s_id in deliveries:
        push(outbox, number, s_id, merged=True)
    return [(int.from_bytes(event.push.guid, "big"), event.push.ids) for event in events(outbox)]


def test_an_empty_outbox_has_no_output() -> None:
    assert Outbox().take_output() == []


def test_pushes_precede_acks_and_each_type_shares_one_event() -> None:
    outbox = Outbox()
    outbox.ack(7, guid(1), 0, 0)
    push(outbox, 2)
    outbox.ack(7, guid(3), 5, 1)
    push(outbox, 4)
    assert len(codec.split_frames(b"".join(outbox.take_output()))[0]) == 2
    assert outbox.take_output() == []
    outbox.ack(7, guid(1), 0, 0)
    push(outbox, 2)
    assert [event.kind for event in events(outbox)] == ["push", "ack"]


def test_an_ack_has_status_correlation_id_and_queue_id() -> None:
    outbox = Outbox()
    outbox.ack(9, guid(3), 0x123456, 6)
    (event,) = events(outbox)
    assert (event.ack.q_id, event.ack.guid, event.ack.correlation_id, event.ack.status) == (9, guid(3), 0x123456, 6)


def test_a_control_event_keeps_its_order_among_pushes_and_acks() -> None:
    outbox = Outbox()
    outbox.ack(7, guid(1), 0, 0)
    push(outbox, 2)
    outbox.event(HEARTBEAT_RSP)
    push(outbox, 3)
    outbox.ack(7, guid(4), 0, 0)
    assert [event.kind for event in events(outbox)] == ["push", "ack", "heartbeat_rsp", "push", "ack"]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 100])
def test_a_push_has_its_payload_for_every_padding_length(size: int) -> None:
    outbox = Outbox()
    outbox.push(7, guid(1), 3, 4, 0, 0, b"x" * size)
    (event,) = events(outbox)
    assert (event.push.payload, event.push.ids, event.push.out_of_order) == (b"x" * size, [3], True)


def test_a_push_event_is_closed_when_it_exceeds_its_size_limit() -> None:
    outbox = Outbox()
    payload = bytes(OUT_EVENT_BYTES_MAX // 4)
    for number in range(10):
        push(outbox, number, payload=payload)
    found = frames(outbox)
    assert len(found) == 3 and all(len(frame) < OUT_EVENT_BYTES_MAX + len(payload) + 100 for frame in found)
    assert b"".join(found).count(payload) == 10


def test_a_message_larger_than_an_event_has_its_own_event() -> None:
    outbox = Outbox()
    push(outbox, 1, payload=bytes(2 * OUT_EVENT_BYTES_MAX))
    push(outbox, 2)
    assert [event.push.guid for event in events(outbox)] == [guid(1), guid(2)]


def test_acks_are_divided_into_several_events() -> None:
    outbox = Outbox()
    for number in range(60_000):
        outbox.ack(7, guid(number), 0, 0)
    found = frames(outbox)
    assert len(found) == 2 and all(len(frame) <= OUT_EVENT_BYTES_MAX + 24 for frame in found)


def test_acks_of_a_finally_closed_queue_are_dropped() -> None:
    outbox = Outbox()
    outbox.ack(7, guid(1), 0, 0)
    outbox.ack(8, guid(2), 0, 0)
    outbox.drop_acks(7)
    assert [event.ack.q_id for event in events(outbox)] == [8]


def test_a_merged_push_lists_all_subscriptions_of_the_message() -> None:
    assert merged(Outbox(), (1, 10), (2, 10), (1, 20), (2, 20), (1, 30)) == [(1, [10, 20, 30]), (2, [10, 20])]


def test_a_merged_push_can_be_read_with_any_payload() -> None:
    outbox = Outbox()
    for s_id in (1, 2, 3):
        push(outbox, 1, s_id, payload=b"abcde", merged=True)
    (event,) = events(outbox)
    assert (event.push.payload, event.push.ids) == (b"abcde", [1, 2, 3])


def test_merging_keeps_the_order_of_messages_of_each_app() -> None:
    """The PUSH of a shared message comes after the PUSHes to one app alone, to keep the order of each app."""
    assert merged(Outbox(), (2, 10), (3, 10), (0, 20), (1, 20), (2, 20), (3, 20)) == [
        (2, [10]), (3, [10]), (0, [20]), (1, [20]), (2, [20]), (3, [20])]


def test_a_third_app_is_merged_into_the_later_of_two_pushes() -> None:
    assert merged(Outbox(), (2, 10), (1, 20), (2, 20), (1, 30), (2, 30)) == [(2, [10]), (1, [20, 30]), (2, [20, 30])]


def test_a_redelivery_and_a_first_delivery_are_not_merged() -> None:
    """A PUSH has one out-of-order flag for all its subscriptions."""
    outbox = Outbox()
    push(outbox, 1, 10, flags=4, merged=True)
    push(outbox, 1, 20, flags=0, merged=True)
    assert [(event.push.ids, event.push.out_of_order) for event in events(outbox)] == [([10], True), ([20], False)]


def test_a_push_is_not_merged_into_a_closed_event() -> None:
    outbox = Outbox()
    push(outbox, 1, 10, merged=True)
    outbox.event(HEARTBEAT_RSP)
    push(outbox, 1, 20, merged=True)
    push(outbox, 1, 20, q_id=8, merged=True)
    assert [event.push.ids for event in events(outbox) if event.kind == "push"] == [[10], [20], [20]]
    big = bytes(OUT_EVENT_BYTES_MAX + 1)
    push(outbox, 1, 10, payload=big, merged=True)
    push(outbox, 1, 20, payload=big, merged=True)
    assert [event.push.ids for event in events(outbox)] == [[10, 20]]


@pytest.mark.parametrize("place", [(0, 0), (7, 1 << 40)])
@pytest.mark.parametrize("sub_ids", [[3], [3, 4, 5]])
def test_a_push_to_another_broker_equals_the_encoding_of_the_codec(place: tuple[int, int], sub_ids: list[int]) -> None:
    outbox = Outbox()
    outbox.sends_psns = place != (0, 0)
    message = Message(guid(1), b"payload", b"", False, 1, 2, 0, 0.0, 0)
    message.lease, message.sequence = 7, 1 << 40
    for sub_id in sub_ids:
        outbox.push_infos(7, message, sub_id, 0x80, 4, 2, b"payload")
    infos = options.SubQueueInfos(tuple(options.SubQueueInfo(each, None, False, *place) for each in sub_ids))
    area = encode_options([infos])
    [event] = frames(outbox)
    assert event == encode_push([PushMessage(7, guid(1), b"payload", 4, 1, 2, area)])
    assert options.decode(area) == [infos]
