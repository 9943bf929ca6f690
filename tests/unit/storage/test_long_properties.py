"""Properties of long messages that are not in memory: expressions read only the properties from DATA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit import codec
from kit.client import Queue
from kit.memory import MemoryWorld

from bmqtwist.storage.partition import PayloadReader
from bmqtwist.storage.store import BEGINNING_BYTES

LONG = bytes(8 * BEGINNING_BYTES)
EMPTY_AREA = bytes.fromhex("180000020000000c00000000")  # a header without properties


@pytest.fixture
def world(tmp_path: Path) -> MemoryWorld:
    """Return a broker without cached payloads."""
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"payloadCacheBytes": 0}})
    world.domain()
    return world


@pytest.fixture
def read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the size of each read."""
    read, found = PayloadReader.read_beginning, list[int]()

    def record_read(self: PayloadReader, *arguments: Any) -> bytes:
        data = read(self, *arguments)
        found.append(len(data))
        return data

    monkeypatch.setattr(PayloadReader, "read_beginning", record_read)
    monkeypatch.setattr(PayloadReader, "read", lambda self, message: pytest.fail("the read message was read"))
    return found


def post_malformed(producer: Queue, area: bytes) -> None:
    """Post a message whose flags announce properties."""
    client, guid = producer.client, producer.client.new_guid()
    message = bytearray(codec.put_message(producer.q_id, guid, area + LONG))
    message[0] |= codec.HAS_PROPERTIES << 4
    client.send(codec.put_frame([bytes(message)]))
    assert producer.next_ack(guid).status == 0


@pytest.mark.parametrize("text_bytes", [10, BEGINNING_BYTES, 4 * BEGINNING_BYTES])
def test_properties_of_any_size_are_read_without_the_payload(world: MemoryWorld, read_sizes: list[int],
                                                             text_bytes: int) -> None:
    producer = world.producer()
    producer.post(LONG, properties={"text": "t" * text_bytes, "x": 5})
    world.consumer(x="x > 7")  # evaluates the expression, receives no message
    assert text_bytes < read_sizes[-1] < text_bytes + BEGINNING_BYTES + 100


@pytest.mark.parametrize("area", [EMPTY_AREA, bytes.fromhex("18ffffff0100000c00000000")])
def test_a_message_with_malformed_properties_is_read_only_at_its_beginning(world: MemoryWorld, read_sizes: list[int],
                                                                           area: bytes) -> None:
    post_malformed(world.producer(), area)
    world.consumer(x="x > 7")
    assert read_sizes == [BEGINNING_BYTES]
