"""Iteration over PUT and PUSH events: messages, the position of the error, and its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit import data_events as events
from kit.data_events import PushMessage, PutMessage

from bmqtwist.wire.fast import IMPLICIT_PAYLOAD, MESSAGE_PROPERTIES, sub_queue_ids
from bmqtwist.wire.walk import BAD_CONTENT, BAD_SIZES, CUT_SHORT, NO_MESSAGES, MessageError, walk_pushes, walk_puts

GUID = bytes(range(16))
AREA = sub_queue_ids([7])
Walk = Callable[[bytes, int, int], Iterator[tuple[Any, ...]]]


def walk_all(walk: Walk, event: bytes, start: int = 8) -> tuple[list[tuple[Any, ...]], MessageError | None]:
    """Return the messages, and the error that ended them."""
    found: list[tuple[Any, ...]] = []
    try:
        for message in walk(event, start, len(event)):
            found.append(message)
    except MessageError as error:
        return found, error
    return found, None


def test_puts_are_returned_with_all_fields_and_their_end_offset() -> None:
    event = events.encode_put([
        PutMessage(1, GUID, b"first", 1, 5), PutMessage(2, GUID, b"second", MESSAGE_PROPERTIES, 6, 1, 3, AREA),
        PutMessage(3, GUID, b"third", 0, 7, header_words=8)])
    assert walk_all(walk_puts, event) == ([
        (1, GUID, b"first", 1, 5, 0, 0, b"", 9, 52),
        (2, GUID, b"second", MESSAGE_PROPERTIES, 6, 1, 3, AREA, 9, 104),
        (3, GUID, b"third", 0, 7, 0, 0, b"", 8, len(event))], None)


def test_pushes_are_returned_with_all_fields_and_their_end_offset() -> None:
    event = events.encode_push([
        PushMessage(1, GUID, b"first", 4, 0, 0, AREA), PushMessage(2, GUID, b"", IMPLICIT_PAYLOAD),
        PushMessage(3, GUID, b"third", MESSAGE_PROPERTIES, 1, 3), PushMessage(4, GUID, b"", header_words=7)])
    assert walk_all(walk_pushes, event) == ([
        (1, GUID, b"first", 4, 0, 0, AREA, 8, 56), (2, GUID, b"", IMPLICIT_PAYLOAD, 0, 0, b"", 8, 92),
        (3, GUID, b"third", MESSAGE_PROPERTIES, 1, 3, b"", 8, 132), (4, GUID, b"", 0, 0, 0, b"", 7, len(event))], None)


def test_a_push_with_implicit_payload_may_end_with_its_header() -> None:
    whole = bytes.fromhex("10000007" "00000007" "00000001") + GUID
    assert walk_all(walk_pushes, whole, 0) == ([(1, GUID, b"", IMPLICIT_PAYLOAD, 0, 0, b"", 7, 28)], None)
    assert walk_all(walk_pushes, b"\0" + whole[1:], 0)[1].code == BAD_CONTENT  # type: ignore[union-attr]


@pytest.mark.parametrize("walk", [walk_puts, walk_pushes])
def test_an_event_without_messages_is_an_error(walk: Walk) -> None:
    found, error = walk_all(walk, bytes(8))
    assert not found and error is not None and error.code == NO_MESSAGES


@pytest.mark.parametrize(("walk", "event", "size"), [
    (walk_puts, events.encode_put([PutMessage(1, GUID, b"first"), PutMessage(2, GUID, b"second", options=AREA)]), 36),
    (walk_pushes, events.encode_push([PushMessage(1, GUID, b"first"), PushMessage(2, GUID, b"second", options=AREA)]), 32)])
@pytest.mark.parametrize(("at", "value", "code", "why"), [
    (3, 0, BAD_SIZES, "longer than the message"), (3, 99, BAD_SIZES, "longer than its event"),
    (7, 6, BAD_SIZES, "header of 6 words"), (6, 9, BAD_SIZES, "longer than the message"),
    (7, 2 << 5 | 9, BAD_CONTENT, "unknown compression 2"), (-3, 1, BAD_CONTENT, "schema id without properties"),
    (15, 0, BAD_CONTENT, "padding byte 0"), (15, 5, BAD_CONTENT, "padding byte 5")])
def test_a_malformed_message_ends_the_iteration_after_the_valid_ones(walk: Walk, event: bytes, size: int, at: int,
                                                                     value: int, code: int, why: str) -> None:
    second = 8 + size + 8
    place = second + at if 0 <= at < 8 else second + size + at if at < 0 else len(event) - 1
    broken = bytearray(event)
    broken[place] = value
    found, error = walk_all(walk, bytes(broken))
    assert [message[2] for message in found] == [b"first"]
    assert error is not None and error.code == code and why in str(error) and not error.fatal


@pytest.mark.parametrize(("walk", "event", "least"), [
    (walk_puts, events.encode_put([PutMessage(1, GUID, b"first")]), 36),
    (walk_pushes, events.encode_push([PushMessage(1, GUID, b"first")]), 28)])
def test_a_truncated_message_is_an_error(walk: Walk, event: bytes, least: int) -> None:
    for length in range(9, len(event)):
        found, error = walk_all(walk, event[:length])
        assert not found and error is not None
        assert error.code == (CUT_SHORT if length - 8 < least else BAD_SIZES)


def test_data_with_an_implicit_payload_is_an_error() -> None:
    event = events.encode_push([PushMessage(1, GUID, b"data", IMPLICIT_PAYLOAD)])
    _, error = walk_all(walk_pushes, event)
    assert error is not None and (error.code, error.reason) == (BAD_CONTENT, "data in spite of IMPLICIT_PAYLOAD")


def test_a_put_without_data_is_an_error() -> None:
    _, error = walk_all(walk_puts, events.encode_put([PutMessage(1, GUID, b"")]))
    assert error is not None and (error.code, error.reason) == (BAD_CONTENT, "no application data")
