"""Recorded messages of a proxy of the original, replayed to a member: its answers equal those of the original."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from kit import data_events as events
from kit.memory import MemoryLink, MemoryWorld

from bmqtwist.wire import control, options
from bmqtwist.wire.control import ControlMessage, encoding_of
from bmqtwist.wire.fast import EventType

RECORDED = Path(__file__).resolve().parent.parent / "vectors" / "real-cluster" / "proxy.jsonl"
MEMBER, PROXY_LINK, CLIENT_LINK = 30350, 7, 10  # port of the active node; connections with it


class ReceivedEvents:
    """Messages of one side of a connection, by kind."""

    def __init__(self) -> None:
        self.buffer = b""
        self.answers: dict[int, ControlMessage] = {}
        self.acks: set[tuple[int, bytes, int]] = set()
        self.pushes: list[tuple[int, bytes, bytes, list[options.Option], int]] = []
        self.statuses: list[str] = []
        self.introduced = False

    def take(self, data: bytes) -> None:
        """Decode the complete events of received bytes."""
        self.buffer += data
        while len(self.buffer) >= 8 and len(self.buffer) >= (size := int.from_bytes(self.buffer[:4], "big")):
            event, self.buffer = self.buffer[:size], self.buffer[size:]
            kind, body = EventType(event[4] & 63), event[8:]
            if kind is EventType.ACK:
                self.acks |= {(each.status, each.guid, each.queue_id) for each in events.decode_ack(body, 0, len(body))[0]}
            elif kind is EventType.PUSH:
                self.pushes += [(each.queue_id, each.guid, each.data, options.decode(each.options), each.flags)
                                for each in events.decode_push(body, 0, len(body))[0]]
            elif kind is EventType.CONTROL and not self.introduced:
                self.introduced = True
            elif kind is EventType.CONTROL:
                message = control.decode_control(body, encoding_of(event[6]))
                if message.r_id is not None:
                    self.answers[message.r_id] = message
                else:
                    self.statuses.append(message.value.value.status.name)

    def by_queue(self) -> list[tuple[int, bytes, bytes, list[options.Option], int]]:
        """Return the messages in order, by queue."""
        return sorted(self.pushes, key=lambda push: push[0])


@pytest.fixture
def replayed(tmp_path: Path) -> tuple[dict[int, ReceivedEvents], dict[int, ReceivedEvents]]:
    """Replay a recording; return recorded and actual messages by number of the connection."""
    world = MemoryWorld(tmp_path)
    world.domain("d.sc", strong=True)
    world.domain("d.fan", "fanout", apps=("foo", "bar"), strong=True)
    world.domain("d.bc", "broadcast", in_memory=True)
    links: dict[int, MemoryLink] = {}
    recorded, actual = defaultdict(ReceivedEvents), defaultdict(ReceivedEvents)
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        segment = json.loads(line)
        stream, data = segment["stream"], bytes.fromhex(segment["hex"])
        if stream not in (PROXY_LINK, CLIENT_LINK):
            continue
        if segment["src"] == MEMBER:
            recorded[stream].take(data)
        else:
            if stream not in links:
                links[stream] = world.link()
            links[stream].send(data)
        for number, link in links.items():
            actual[number].take(link.receive(0))
    return recorded, actual


def test_a_member_answers_a_recorded_proxy_as_the_original_does(
        replayed: tuple[dict[int, ReceivedEvents], dict[int, ReceivedEvents]]) -> None:
    recorded, actual = (each[PROXY_LINK] for each in replayed)
    assert len(recorded.answers) == 19 and actual.answers == recorded.answers
    assert len(recorded.acks) == 6 and actual.acks == recorded.acks
    assert len(recorded.pushes) == 7 and actual.by_queue() == recorded.by_queue()
    assert actual.statuses == recorded.statuses[:1] == ["E_AVAILABLE"]


def test_clients_of_a_recorded_proxy_share_queues_with_other_clients(
        replayed: tuple[dict[int, ReceivedEvents], dict[int, ReceivedEvents]]) -> None:
    recorded, actual = (each[CLIENT_LINK] for each in replayed)
    assert actual.answers == recorded.answers
    assert [each[:4] for each in actual.pushes] == [each[:4] for each in recorded.pushes] and len(actual.pushes) == 2
