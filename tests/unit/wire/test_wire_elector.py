"""Extension fields in elector messages: absent in messages of the original, skipped by the decoder of the original."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from kit.wire_recordings import RECORDINGS, good_events

from bmqtwist.wire import ber, control
from bmqtwist.wire.cluster_schema import (
    ElectionProposal,
    ElectionResponse,
    ElectorNodeStatus,
    HeartbeatResponse,
    LeaderHeartbeat,
    LeaderMessageSequence,
    LeadershipCessionNotification,
    ScoutingRequest,
    ScoutingResponse,
)
from bmqtwist.wire.control import ElectorMessage
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.fields import U64, Choice, SchemaType


class EmptyType(SchemaType):
    """A message without fields."""


class BooleanType(SchemaType):
    """A message with a boolean, `willVote` or `isAvailable`."""

    yes: bool = False


class OriginalElectorMessage(SchemaType):
    """ElectorMessage as the original's schema has it."""

    CHOICE: ClassVar[Choice] = Choice(1, (
        (0, "electionProposal", EmptyType), (1, "electionResponse", EmptyType), (2, "leaderHeartbeat", EmptyType),
        (3, "electorNodeStatus", BooleanType), (4, "heartbeatResponse", EmptyType), (5, "scoutingRequest", EmptyType),
        (6, "scoutingResponse", BooleanType), (7, "leadershipCessionNotification", EmptyType)))
    term: U64 = 0
    choice: str = ""
    value: Any = None


LAST = LeaderMessageSequence(7, 12)
EXTENDED = [
    ElectorMessage(8, "electionProposal", ElectionProposal(LAST, 3)),
    ElectorMessage(8, "electionResponse", ElectionResponse(-1)),
    ElectorMessage(8, "leaderHeartbeat", LeaderHeartbeat(1 << 40)),
    ElectorMessage(0, "electorNodeStatus", ElectorNodeStatus(True)),
    ElectorMessage(8, "heartbeatResponse", HeartbeatResponse(5, LAST)),
    ElectorMessage(8, "scoutingRequest", ScoutingRequest(LAST, 2)),
    ElectorMessage(8, "scoutingResponse", ScoutingResponse(True, 2)),
    ElectorMessage(8, "leadershipCessionNotification", LeadershipCessionNotification(3))]


@pytest.mark.parametrize("message", EXTENDED, ids=lambda message: message.choice)
def test_extension_fields_are_decoded_here_and_skipped_by_the_original(message: ElectorMessage) -> None:
    event = control.encode_event(message)
    assert control.decode_elector(event[8:]) == message
    read = ber.decode(OriginalElectorMessage, event[8:])
    value = BooleanType(True) if message.choice in ("electorNodeStatus", "scoutingResponse") else EmptyType()
    assert (read.term, read.choice, read.value) == (message.term, message.choice, value)


def test_a_heartbeat_with_a_time_stamp_has_the_literal_bytes() -> None:
    event = control.encode_event(ElectorMessage(2, "leaderHeartbeat", LeaderHeartbeat(300)))
    assert event.hex(" ", 4) == "0000001c 47020000 30808001 02a180a2 80800201 2c000000 00000001"


def test_recorded_messages_of_the_original_have_no_extension_fields() -> None:
    seen = set()
    for path in RECORDINGS:
        for event in good_events(path):
            if event.kind == EventType.ELECTOR:
                message, known = control.decode_elector(event.body), ber.decode(OriginalElectorMessage, event.body)
                seen.add(message.choice)
                value = message.value
                plain = type(value)(*([known.value.yes] if isinstance(known.value, BooleanType) else []))
                assert value == plain and control.encode_event(message) == event.raw
    assert seen >= {"electionProposal", "electionResponse", "leaderHeartbeat", "scoutingRequest", "scoutingResponse"}
