"""Client sessions: PUT and CONFIRM events, valid and invalid, and the order of responses."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from kit import codec
from kit.client import Client, Queue
from kit.memory import MemoryWorld

from bmqtwist.errors import AckStatus
from bmqtwist.limits import APPLICATION_DATA_BYTES_MAX, PUT_OPTIONS_BYTES_MAX
from bmqtwist.link import puts, requests
from bmqtwist.link.session import Session
from bmqtwist.queue import window

INVALID = "#CLIENT_INVALID_PUT"


@pytest.fixture
def memory(tmp_path: Path) -> MemoryWorld:
    world = MemoryWorld(tmp_path)
    world.domain("d")
    return world


def acks(client: Client) -> list[tuple[bytes, int]]:
    """Return (GUID, status) of all ACKs, after a barrier."""
    client.barrier()
    return [(event.ack.guid, event.ack.status) for event in client.events if event.kind == "ack"]


def send_put_event(queue: Queue, *messages: bytes) -> None:
    queue.client.send(codec.put_frame(list(messages)))


def put_message(queue: Queue, guid: bytes | None = None, payload: bytes = b"x", **shape: object) -> bytes:
    return codec.put_message(queue.q_id, guid or queue.client.new_guid(), payload, **shape)  # type: ignore[arg-type]


def overwrite(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value):]


@pytest.mark.parametrize("code, damage", [
    (-2, lambda good: good[:20]),
    (-3, lambda good: overwrite(good, 0, (1 << 28 | 0x0FFFFFF).to_bytes(4, "big"))),
    (-3, lambda good: overwrite(good, 7, bytes([5]))),
    (-3, lambda good: overwrite(good, 4, b"\xff\xff\xff")),
    (-4, lambda good: overwrite(good, len(good) - 1, b"\0")),
    (-4, lambda good: overwrite(good, len(good) - 1, b"\x05")),
    (-4, lambda good: overwrite(good, 7, bytes([2 << 5 | 9]))),
    (-4, lambda good: overwrite(good, 32, b"\0\x01"))])
def test_an_invalid_put_ends_only_its_event(memory: MemoryWorld, code: int, damage: object) -> None:
    """Messages before an invalid one are posted, later ones of the event are dropped, the session continues."""
    producer = memory.producer()
    before, bad = producer.client.new_guid(), put_message(producer)
    after = [] if code == -2 else [put_message(producer)]  # a truncated header ends with the event
    send_put_event(producer, put_message(producer, before), damage(bad), *after)  # type: ignore[operator]
    assert acks(producer.client) == [(before, 0)] and memory.stored() == 1
    assert memory.logged("#CORRUPTED_EVENT", f"Invalid Put event [rc: {code}]")
    producer.post()


def test_an_empty_put_event_is_logged_as_invalid(memory: MemoryWorld) -> None:
    producer = memory.producer()
    send_put_event(producer)
    producer.post()
    assert memory.logged("Invalid Put event [rc: -1]")


def test_a_put_header_without_the_schema_word_is_accepted(memory: MemoryWorld) -> None:
    producer, consumer = memory.producer(), memory.consumer()
    long = put_message(producer, payload=b"short header")
    words = int.from_bytes(long[:4], "big") - 1
    send_put_event(producer, words.to_bytes(4, "big") + long[4:7] + bytes([8]) + long[8:32] + long[36:])
    assert consumer.next_push().payload == b"short header"


def test_a_put_for_an_unknown_queue_id_is_refused_and_counted(memory: MemoryWorld) -> None:
    client = memory.client()
    guid = client.new_guid()
    client.send(codec.put_frame([codec.put_message(77, guid)]))
    assert acks(client) == [(guid, 5)] and memory.logged(INVALID, "unknown Id")
    assert memory.broker.queues.invalid_put_stats.nack_msgs == 1


def test_a_put_to_a_queue_opened_only_for_reading_is_refused(memory: MemoryWorld) -> None:
    consumer = memory.consumer()
    guid = consumer.client.new_guid()
    send_put_event(consumer, put_message(consumer, guid))
    assert acks(consumer.client) == [(guid, 5)] and memory.logged(INVALID, "not opened in WRITE mode")


def test_after_the_final_close_no_ack_is_sent_for_the_queue(memory: MemoryWorld) -> None:
    producer = memory.producer()
    with memory.storage_stalled():
        send_put_event(producer, put_message(producer))
        producer.client.send_request({"closeQueue": producer.close_parameters()})
        send_put_event(producer, put_message(producer))
        producer.client.pump(0)
    assert acks(producer.client) == [] and memory.stored() == 1


def test_a_put_without_a_guid_is_refused_and_not_stored(memory: MemoryWorld) -> None:
    producer = memory.producer()
    send_put_event(producer, codec.put_message(producer.q_id, bytes(16)))
    ((_, status),) = acks(producer.client)
    assert status == 5 and memory.logged(INVALID, "without a GUID") and memory.stored() == 0


def test_puts_with_a_wrong_checksum_are_stored_with_the_right_one_and_logged_once(memory: MemoryWorld) -> None:
    """Some clients include the padding in the checksum; the original does not check it."""
    producer = memory.producer()
    send_put_event(producer, put_message(producer, crc=1), put_message(producer, crc=2), put_message(producer))
    assert [status for _, status in acks(producer.client)] == [0] * 3
    queue = memory.broker.domains.by_name["d"].queues["q"]
    assert [message.crc for message in queue.messages.values()] == [crc32c(b"x")] * 3
    assert queue.stats.wrong_crc_msgs == 2 and len(memory.logged(INVALID, "CRC32-C")) == 1


def test_a_message_above_the_size_limit_is_refused(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puts, "APPLICATION_DATA_BYTES_MAX", 1000)
    producer = memory.producer()
    assert producer.status_of(bytes(1000)) == 0
    assert producer.status_of(bytes(1001)) == 5


def test_a_put_repeated_after_close_and_reopen_is_acknowledged_to_the_new_handle(
        memory: MemoryWorld) -> None:
    """Regression: after a client's reconnect through the same peer, its PUT received no ACK."""
    client = memory.client()
    first = client.open("bmq://d/q", write=1)
    guid = client.new_guid()
    with memory.storage_stalled():
        send_put_event(first, put_message(first, guid))
        first.close()
        second = client.open("bmq://d/q", write=1)
        send_put_event(second, put_message(second, guid))
        assert acks(client) == []
    memory.wait_idle()
    client.pump(0)
    assert acks(client) == [(guid, 0)] and memory.stored() == 1


def test_a_put_repeated_before_its_ack_is_acknowledged_once(memory: MemoryWorld) -> None:
    producer = memory.producer()
    guid = producer.client.new_guid()
    send_put_event(producer, put_message(producer, guid), put_message(producer, guid))
    assert acks(producer.client) == [(guid, 0)] and memory.logged("#UNACKED_PUT_GUID_COLLISION")
    send_put_event(producer, put_message(producer, guid))
    assert acks(producer.client) == [(guid, 0)] * 2 and memory.stored() == 1


def test_acks_to_a_client_without_guids_have_its_correlation_ids(memory: MemoryWorld) -> None:
    producer = memory.producer(guids=False)
    send_put_event(producer, put_message(producer, codec.correlation(7)),
                   codec.put_message(producer.q_id + 9, codec.correlation(8)))
    producer.client.barrier()
    found = [event.ack for event in producer.client.events if event.kind == "ack"]
    assert sorted((ack.correlation_id, ack.status) for ack in found) == [(7, 0), (8, 5)]
    made = {ack.correlation_id: ack.guid for ack in found}
    assert made[7] != bytes(16) and made[8] == bytes(16)


def test_puts_without_ack_request_receive_only_negative_acks(memory: MemoryWorld) -> None:
    producer = memory.producer()
    send_put_event(producer, put_message(producer, ack=False), put_message(producer, bytes(16), ack=False))
    assert [status for _, status in acks(producer.client)] == [5] and memory.stored() == 1


@pytest.mark.parametrize("body", [b"", b"\x16", b"\x15\0\0\0", b"\xf6\0\0\0"])
def test_a_confirm_event_with_an_invalid_header_is_dropped(memory: MemoryWorld, body: bytes) -> None:
    client = memory.client()
    client.send(codec.frame(codec.CONFIRM, body))
    client.heartbeat()
    assert memory.logged("#CORRUPTED_EVENT", "Confirm")


def test_confirm_items_with_unknown_trailing_fields_are_accepted(memory: MemoryWorld) -> None:
    producer, consumer = memory.producer(), memory.consumer()
    producer.post_all(b"1", b"2")
    items = [codec._ITEM.pack(consumer.q_id, push.guid, 0) + b"more" for push in consumer.take(2)]
    consumer.client.send(codec.frame(codec.CONFIRM, b"\x17\0\0\0" + b"".join(items)))
    consumer.client.barrier()
    assert memory.stored() == 0


def test_the_complete_items_of_a_truncated_confirm_event_take_effect(memory: MemoryWorld) -> None:
    producer, consumer = memory.producer(), memory.consumer()
    producer.post_all(b"1", b"2")
    whole = codec.confirm_frame([(consumer.q_id, push.guid, 0) for push in consumer.take(2)])
    consumer.client.send((len(whole) - 4).to_bytes(4, "big") + whole[4:-4])
    consumer.client.barrier()
    assert memory.stored() == 1 and memory.logged("#CORRUPTED_EVENT", "Confirm")


def test_confirms_for_unknown_queues_subscriptions_or_messages_are_ignored(memory: MemoryWorld) -> None:
    producer, consumer = memory.producer(), memory.consumer()
    producer.post(b"1")
    guid = consumer.next_push().guid
    consumer.client.send(codec.confirm_frame([(99, guid, 0), (consumer.q_id, guid, 55), (consumer.q_id, b"?" * 16, 0)]))
    consumer.client.barrier()
    assert memory.stored() == 1 and memory.logged("#CLIENT_UNKNOWN_QUEUE")


def test_responses_follow_the_pushes_delivered_before_them(memory: MemoryWorld) -> None:
    """The configure response separates PUSHes of the old subscriptions from those of the new ones."""
    producer, consumer = memory.producer(), memory.consumer()
    producer.put(b"old")
    memory.run()
    consumer.deconfigure()
    producer.post(b"new")
    consumer.configure()
    assert [push.payload for push in consumer.pushes()] == [b"old", b"new"]
    received = consumer.client.events
    pushed = [place for place, event in enumerate(received) if event.kind == "push"]
    answers = [place for place, event in enumerate(received) if "configureStreamResponse" in event.control]
    assert pushed[0] < answers[1] < answers[2] < pushed[1]


def test_one_turn_delivers_a_bounded_number_of_bytes_to_a_client(memory: MemoryWorld,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Later turns deliver the rest, in order; a lagging client receives nothing until its output is sent."""
    monkeypatch.setattr(window, "TURN_PUSH_BYTES_MAX", 2500)
    producer = memory.producer()
    sent = [bytes([n]) * 1000 for n in range(10)]
    for payload in sent:
        producer.post(payload)
    writes: list[int] = []
    original = memory.broker.loop.performer.write

    def write(to: Session, parts: list[bytes]) -> int:
        size = sum(map(len, parts))
        if size > 900:
            writes.append(size)
        return original(to, parts)

    monkeypatch.setattr(memory.broker.loop.performer, "write", write)
    consumer = memory.consumer(m=1000)
    memory.advance(0.01)
    assert [push.payload for push in memory.pushes(consumer)] == sent
    assert len(writes) == 4 and max(writes) < 3 * 1100


def test_a_client_with_unsent_output_receives_further_messages_after_it_is_sent(memory: MemoryWorld,
                                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    producer, consumer = memory.producer(), memory.consumer(m=1000)
    lagging = consumer.client.link.session  # type: ignore[attr-defined]
    original = memory.broker.loop.performer.write
    monkeypatch.setattr(memory.broker.loop.performer, "write", lambda to, parts: original(to, parts) + (
        window.LAGGING_BYTES + 1 if to is lagging else 0))
    producer.post_all(b"1", b"2")
    memory.advance(5.0)
    assert [push.payload for push in memory.pushes(consumer)] == [b"1"]
    monkeypatch.setattr(memory.broker.loop.performer, "write", original)
    memory.broker.sessions.on_drained(lagging, memory.now)
    memory.turn_requested = True
    assert [push.payload for push in memory.pushes(consumer)] == [b"2"]


def open_and_post(memory: MemoryWorld, uri: str, *payloads: bytes) -> tuple[Client, list[bytes]]:
    """Send an open whose answer is delayed, then PUTs; return the client and the GUIDs."""
    client = memory.client("hasty")
    client.send_request({"openQueue": {"handleParameters": client.handle_parameters(uri, 0, read=0, write=1)}})
    guids = [client.new_guid() for _ in payloads]
    for guid, payload in zip(guids, payloads, strict=True):
        client.send(codec.put_frame([codec.put_message(0, guid, payload)]))
    return client, guids


def test_puts_before_their_open_response_wait_for_it(memory: MemoryWorld) -> None:
    """Their ACKs come after the open response, in order."""
    memory.domain("d")
    with memory.storage_stalled():
        client, guids = open_and_post(memory, "bmq://d/new", b"1", b"2")
        memory.run()
        assert not client.inbox, "no response before the metadata is durable"
    memory.wait_idle()
    kinds = [event.kind for event in client.inbox]
    assert kinds.index("control") < kinds.index("ack")
    assert [event.ack.guid for event in client.inbox if event.kind == "ack"] == guids
    assert memory.new_payloads(memory.consumer("bmq://d/new")) == [b"1", b"2"]


def test_puts_before_their_open_response_are_refused_above_a_number_of_bytes(memory: MemoryWorld,
                                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """The original refuses all of them; it never closes the connection."""
    monkeypatch.setattr(requests, "EARLY_PUT_BYTES_MAX", 1000)
    memory.domain("d")
    with memory.storage_stalled():
        client, guids = open_and_post(memory, "bmq://d/new", b"x" * 800, b"y" * 800, b"z" * 80)
        memory.run()
    memory.wait_idle()
    acks = {event.ack.guid: event.ack.status for event in client.inbox if event.kind == "ack"}
    assert acks == {guids[0]: 0, guids[1]: AckStatus.UNKNOWN, guids[2]: 0}
    assert memory.new_payloads(memory.consumer("bmq://d/new")) == [b"x" * 800, b"z" * 80]


def test_puts_after_a_refused_open_are_refused(memory: MemoryWorld) -> None:
    memory.domain("d")
    with memory.storage_stalled():
        client, guids = open_and_post(memory, "bmq://d/new", b"1")
        memory.run()
        memory.disk.fail = lambda operation, path: errno.EIO if path.endswith(("_csl", ".new")) else None
    memory.run()
    memory.disk.fail = lambda operation, path: None
    answer = client.wait(lambda event: event.kind == "control", "the answer")
    assert "status" in answer.control
    refused = client.wait(lambda event: event.kind == "ack", "the NACK").ack
    assert (refused.guid, refused.status) == (guids[0], AckStatus.UNKNOWN)


@pytest.mark.parametrize("shape", [{"properties": {"a": 1}}, {"properties": {"a": 1}, "v2": True}, {}])
def test_a_message_that_inflates_above_the_size_limit_is_refused(memory: MemoryWorld, shape: dict[str, Any]) -> None:
    """The message is not stored; the connection and later messages are unaffected."""
    producer, consumer = memory.producer(), memory.consumer()
    bomb = bytes(APPLICATION_DATA_BYTES_MAX + 1)
    assert producer.status_of(bomb, compress=True, **shape) not in (0, None)
    assert memory.logged("#CLIENT_INVALID_PUT", "inflates to more than")
    assert producer.status_of(bomb[:1 << 20], compress=True, **shape) == 0
    assert len(memory.pushes(consumer)) == 1 and memory.stored() == 1


@pytest.mark.parametrize("shape", [{"properties": {"a": 1}}, {}])
def test_the_options_of_a_message_count_towards_its_size_after_inflation(memory: MemoryWorld, shape: dict[str, Any],
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puts, "APPLICATION_DATA_BYTES_MAX", 1 << 20)
    producer, option = memory.producer(), bytes([0x08, 0, 1, 0]) + bytes(1020)
    data = bytes((1 << 20) - 512)
    assert producer.status_of(data, compress=True, options=option, **shape) not in (0, None)
    assert producer.status_of(data, compress=True, **shape) == 0 and memory.stored() == 1


def test_options_count_towards_the_quotas_of_queue_and_domain(memory: MemoryWorld) -> None:
    """The count is the same after a restart, and zero once the messages are confirmed."""
    def counted() -> list[int]:
        domain = memory.broker.domains.by_name["d"]
        return [meter.bytes for meter in (domain.queues["q"].meter, domain.meter)]

    option = bytes([0x08, 0, 1, 0]) + bytes(1020)
    memory.domain("d", queue_bytes=2000)
    producer = memory.producer()
    assert [producer.status_of(b"12", options=option) for _ in range(3)] == [0, 0, AckStatus.LIMIT_BYTES]
    assert counted() == [2 * 1026] * 2
    memory.restart()
    consumer = memory.consumer()
    assert counted() == [2 * 1026] * 2
    consumer.confirm(*memory.pushes(consumer))
    memory.run()
    assert counted() == [0, 0]


def test_options_count_towards_the_size_of_a_message_and_have_their_own_limit(memory: MemoryWorld) -> None:
    producer = memory.producer()
    option = bytes([0x08, 0, 1, 0])  # an unknown type, 256 words
    assert producer.status_of(b"x", options=(option + bytes(1020))[:PUT_OPTIONS_BYTES_MAX]) == 0
    assert producer.status_of(b"x", options=bytes(PUT_OPTIONS_BYTES_MAX + 4)) not in (0, None)
    assert producer.status_of(b"x", options=bytes(1 << 24)) not in (0, None)
    assert memory.logged("#CLIENT_INVALID_PUT") and memory.stored() == 1
