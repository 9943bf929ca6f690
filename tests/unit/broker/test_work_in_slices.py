"""Slices of client input: one turn does a limited part, and the next turns continue in order, without loss."""

from __future__ import annotations

import gc
import weakref
import zlib
from collections import Counter
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from kit import codec
from kit.client import Queue
from kit.memory import MemoryWorld

from bmqtwist.broker.periodic_jobs import PeriodicJobs
from bmqtwist.limits import (
    INFLATE_STEP_BYTES,
    MESSAGES_AT_ONCE,
    SLICE_BYTES,
    SUBSCRIPTIONS_MAX,
    TURN_EVALUATIONS_MAX,
    TURN_MESSAGES_MAX,
)
from bmqtwist.link import puts
from bmqtwist.link.client import ClientSession
from bmqtwist.link.session import Session
from bmqtwist.loop.scheduler import BUDGETS, STEPS_MAX, Priority
from bmqtwist.queue.queue import Router
from bmqtwist.queue.root import RootQueue
from bmqtwist.steps import ITEMS_AT_ONCE
from bmqtwist.testing.node import ImmediatePerformer
from bmqtwist.wire import application_data
from bmqtwist.wire.fast import EventType, event_header

PUT_BYTES = 40
CONFIRM_BYTES = 24
MANY = 3 * STEPS_MAX * SLICE_BYTES // PUT_BYTES  # PUTs of three turns


@pytest.fixture
def memory(tmp_path: Path) -> MemoryWorld:
    world = MemoryWorld(tmp_path)
    world.domain("d", domain_bytes=1 << 40)
    return world


class TurnCounts:
    """Counts the calls of a function in each turn."""

    def __init__(self, memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.counts = [0]
        action, turn = getattr(owner, name), memory.broker.turn

        def counted(*arguments: Any) -> Any:
            self.counts[-1] += 1
            return action(*arguments)

        def next_turn(now: float) -> None:
            turn(now)
            self.counts.append(0)

        monkeypatch.setattr(owner, name, counted)
        monkeypatch.setattr(memory.broker, "turn", next_turn)

    @property
    def most(self) -> int:
        return max(self.counts)


def speed_up_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Advance the clock by `seconds` at each call."""
    ticks = count()
    monkeypatch.setattr(ImmediatePerformer, "clock", lambda self: next(ticks) * seconds)


def put_event(queue: Queue, number: int) -> bytes:
    """One PUT event."""
    return codec.put_frame([codec.put_message(queue.q_id, queue.client.new_guid()) for _ in range(number)])


@pytest.mark.parametrize("name", ["_check_session", "_heartbeat"])
def test_timers_of_very_many_sessions_run_over_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                             name: str) -> None:
    """A regression: 2,000 connections took 7 ms of one turn, each second."""
    memory = MemoryWorld(tmp_path, app={"heartbeats": {"client": 9, "downstreamBroker": 9, "upstreamBroker": 9,
                                                       "clusterPeer": 9}})
    number = 20 * ITEMS_AT_ONCE
    for _ in range(number):
        memory.connect("silent")
    turn_counts = TurnCounts(memory, monkeypatch, PeriodicJobs, name)
    speed_up_clock(monkeypatch, BUDGETS[Priority.SESSIONS])
    memory.advance(3.5)
    assert turn_counts.most <= 4 * ITEMS_AT_ONCE
    assert sum(turn_counts.counts) == number * (3 if name == "_check_session" else 1), "a heartbeat each 3 s"


def test_an_event_of_very_many_puts_is_processed_over_several_turns_in_order(memory: MemoryWorld,
                                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """A regression: all were processed in one turn, 20,000 in 76 ms."""
    producer = memory.producer()
    turn_counts = TurnCounts(memory, monkeypatch, RootQueue, "post")
    producer.client.send(put_event(producer, MANY))
    producer.client.barrier()
    acknowledged = [event.ack for event in producer.client.events if event.kind == "ack"]
    assert len(acknowledged) == MANY and not any(ack.status for ack in acknowledged)
    assert turn_counts.most <= STEPS_MAX * (SLICE_BYTES // PUT_BYTES + 1) and sum(turn_counts.counts) == MANY
    assert [ack.guid for ack in acknowledged] == sorted(ack.guid for ack in acknowledged)


def test_input_after_a_long_event_is_processed_after_it(memory: MemoryWorld) -> None:
    """A close in the same chunk, and an event that arrives meanwhile."""
    producer, other = memory.producer(), memory.producer("bmq://d/other")
    client = producer.client
    close = codec.control_frame({"rId": 77, "closeQueue": {
        "handleParameters": client.handle_parameters(producer.uri, producer.q_id, write=1), "isFinal": True}})
    client.send(put_event(producer, MANY) + close)
    assert client.link.session is not None and client.link.session.has_jobs
    client.send(put_event(producer, 1))
    assert client.link.session.has_jobs and other.post(b"another client is served meanwhile")
    answer = client.wait(lambda event: event.kind == "control" and event.control.get("rId") == 77, "the answer")
    client.barrier()
    received = client.events
    before = [event for event in received[:received.index(answer)] if event.kind == "ack"]
    assert 0 < len(before) and memory.stored(producer.uri) == MANY
    assert not any(event.kind == "ack" for event in received[received.index(answer):]), "the queue id was closed"
    assert not client.link.session.has_jobs


def test_a_turn_ends_by_time_within_a_long_event(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = memory.producer()
    speed_up_clock(monkeypatch, 0.004)
    turn_counts = TurnCounts(memory, monkeypatch, RootQueue, "post")
    producer.client.send(put_event(producer, MANY))
    memory.run()
    assert turn_counts.most <= 2 * (SLICE_BYTES // PUT_BYTES + 1) and memory.stored() == MANY


def test_an_event_of_very_many_confirms_is_processed_over_several_turns(memory: MemoryWorld,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown ones first, then valid ones."""
    producer, consumer = memory.producer(), memory.consumer(m=1 << 20)
    producer.client.send(put_event(producer, 3000))
    guids = [push.guid for push in memory.pushes(consumer)]
    assert len(guids) == 3000
    junk = [(999, bytes(16), 0)] * (2 * STEPS_MAX * SLICE_BYTES // CONFIRM_BYTES)
    items = junk + [(consumer.q_id, guid, consumer.sub_id) for guid in guids]
    taken: list[int] = []
    take = ClientSession._process_confirms
    monkeypatch.setattr(ClientSession, "_process_confirms", lambda self, buffer, start, end, step: (
        taken.append(end - start), take(self, buffer, start, end, step))[1])
    consumer.client.send(codec.confirm_frame(items))
    assert consumer.client.link.session is not None and consumer.client.link.session.has_jobs
    memory.run()
    assert max(taken) <= SLICE_BYTES and len(taken) > STEPS_MAX and memory.stored() == 0


def test_input_of_a_connection_lost_within_a_long_event_is_processed_completely(memory: MemoryWorld) -> None:
    producer = memory.producer()
    session = producer.client.link.session
    assert session is not None
    producer.client.send(put_event(producer, MANY))
    producer.client.link.drop()
    memory.run()
    assert memory.stored() == MANY and session not in memory.broker.sessions.open


def test_a_session_closed_within_a_long_event_drops_the_rest_of_it(memory: MemoryWorld) -> None:
    producer = memory.producer()
    session = producer.client.link.session
    assert session is not None
    producer.client.send(put_event(producer, MANY))
    session.close("enough")
    memory.run()
    assert 0 < len(memory.broker.domains.by_name["d"].queues["q"].messages) < MANY
    assert not session.has_jobs and session not in memory.broker.sessions.open


def test_a_session_is_not_read_from_until_its_long_event_is_processed(memory: MemoryWorld,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    producer = memory.producer()
    asked: list[bool] = []
    monkeypatch.setattr(ImmediatePerformer, "set_reading", lambda self, session, wanted: asked.append(wanted))
    producer.client.send(put_event(producer, MANY))
    assert asked == [False]
    memory.run()
    assert asked[-1] is True and set(asked[:-1]) == {False}


def test_sessions_with_long_events_are_processed_in_rotation(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget ends the row; the next session is the first in the next turn."""
    producers = [memory.producer() for _ in range(4)]
    resumed: list[str] = []
    update_time = Session.update_time
    speed_up_clock(monkeypatch, 0.001)
    monkeypatch.setattr(Session, "update_time", lambda self: (resumed.append(self.peer), update_time(self))[1])
    for producer in producers:
        producer.client.send(put_event(producer, MANY))
    memory.run()
    assert memory.stored() == 4 * MANY
    assert set(Counter(resumed[:40]).values()) <= {9, 10, 11, 12}


@pytest.mark.parametrize("shape", [{"properties": {"a": 1}, "v2": False}, {"properties": {"a": 1}}, {}])
def test_a_large_compressed_message_is_inflated_in_slices(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch,
                                                          shape: dict[str, Any]) -> None:
    """64 MiB at once took 296 ms. The messages before and after it keep their order."""
    producer = memory.producer()
    turn_counts = TurnCounts(memory, monkeypatch, application_data.Inflation, "_inflate")
    size = 20 * INFLATE_STEP_BYTES
    guids = [producer.put(b"before"), producer.put(bytes(size), compress=True, **shape), producer.put(b"behind")]
    producer.client.barrier()
    assert [event.ack.guid for event in producer.client.events if event.kind == "ack"] == guids
    assert turn_counts.most <= STEPS_MAX + 1
    inflated = "v2" in shape
    assert (sum(turn_counts.counts) >= 20) == inflated
    stored = list(memory.broker.domains.by_name["d"].queues["q"].messages.values())
    assert len(stored) == 3 and (stored[1].size > size) == inflated


def test_the_checksum_of_an_inflated_message_is_computed_in_slices(memory: MemoryWorld,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum of 64 MiB took 30 ms at once; it is the checksum of the stored data."""
    producer, sizes = memory.producer(), list[int]()
    for module in (puts, application_data):
        monkeypatch.setattr(module, "crc32c", lambda data, crc=0: (sizes.append(len(data)), crc32c(data, crc))[1])
    producer.post(b"y" * (3 * INFLATE_STEP_BYTES + 7), compress=True, properties={"a": 1}, v2=False)
    stored, = memory.broker.domains.by_name["d"].queues["q"].messages.values()
    assert stored.payload is not None and crc32c(stored.payload) == stored.crc
    assert max(sizes) <= INFLATE_STEP_BYTES and sum(sizes) > 3 * INFLATE_STEP_BYTES


@pytest.mark.parametrize("size", [0, 1, INFLATE_STEP_BYTES - 3, INFLATE_STEP_BYTES, 5 * INFLATE_STEP_BYTES + 7])
@pytest.mark.parametrize("before", [b"", b"abc"])
def test_inflated_chunks_are_joined_in_slices(size: int, before: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    class RecordingBytesIO(BytesIO):
        def write(self, data: Any) -> int:
            written[-1] += len(data)
            return super().write(data)

    monkeypatch.setattr(application_data, "BytesIO", RecordingBytesIO)
    plain = bytes(n % 251 for n in range(size))
    inflation = application_data.Inflation(zlib.compress(plain), size, True, before)
    written.append(0)
    while not inflation.step():
        written.append(0)
    assert inflation.data() == before + plain and inflation.bytes == size
    assert sum(written) == size + len(before) and max(written) <= INFLATE_STEP_BYTES + len(before)


def test_small_compressed_messages_of_one_event_share_the_slice(memory: MemoryWorld,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    producer = memory.producer()
    turn_counts = TurnCounts(memory, monkeypatch, application_data.Inflation, "data")
    messages = [codec.put_message(producer.q_id, producer.client.new_guid(), bytes(INFLATE_STEP_BYTES - 100),
                                  properties={"a": 1}, v2=False, compress=True) for _ in range(9)]
    speed_up_clock(monkeypatch, 1.0)
    producer.client.send(codec.put_frame(messages))
    producer.client.barrier()
    assert turn_counts.most <= 4 and sum(turn_counts.counts) == 9
    assert len(memory.broker.domains.by_name["d"].queues["q"].messages) == 9


def test_a_broken_compressed_message_is_stored_unchanged(memory: MemoryWorld) -> None:
    producer = memory.producer()
    broken = zlib.compress(bytes(3 * INFLATE_STEP_BYTES))[:-9]
    guid = producer.client.new_guid()
    good = codec.put_message(producer.q_id, guid, broken)
    producer.client.send(codec.put_frame([good[:7] + bytes([good[7] | 1 << 5]) + good[8:]]))
    assert producer.next_ack(guid).status == 0
    stored, = memory.broker.domains.by_name["d"].queues["q"].messages.values()
    assert stored.size == len(broken) and stored.compression == 1


def test_messages_for_an_old_client_are_inflated_in_slices_and_in_order(memory: MemoryWorld,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB at once took 300 ms of a turn. Only deliveries to this client wait for it."""
    speed_up_clock(monkeypatch, 1.0)
    old = memory.client(features="PROTOCOL_ENCODING:BER,JSON")
    consumer = old.open("bmq://d/q", read=1)
    consumer.configure(b=1 << 30)
    turn_counts = TurnCounts(memory, monkeypatch, application_data.Inflation, "_inflate")
    producer, size = memory.producer(), 5 * INFLATE_STEP_BYTES
    payloads = [b"before", b"\1" * size, b"behind", b"\2" * size, *(bytes([number]) * 9000 for number in range(200)),
                b"last"]
    for payload in payloads:
        producer.put(payload, properties={"a": 1}, compress=True)
    pushed = consumer.take(len(payloads))
    assert [each.payload for each in pushed] == payloads
    assert {each.properties["a"] for each in pushed} == {("INT64", 1)}
    assert sum(turn_counts.counts) >= 210 and turn_counts.most <= INFLATE_STEP_BYTES // 9000 + 3


def test_a_message_being_inflated_for_a_lost_client_goes_to_another_consumer(memory: MemoryWorld) -> None:
    old = memory.client(features="PROTOCOL_ENCODING:BER,JSON")
    old.open("bmq://d/q", read=1).configure()
    producer = memory.producer()
    payload = b"x" * (STEPS_MAX + 5) * INFLATE_STEP_BYTES
    producer.put(payload, properties={"a": 1}, compress=True)
    session = old.link.session
    assert session is not None
    old.link.report_loss()
    memory.run()
    assert memory.consumer().next_push().payload == payload


@pytest.mark.parametrize("data", [zlib.compress(bytes(3 * INFLATE_STEP_BYTES))[:-9], zlib.compress(bytes(65 << 20), 9)])
def test_a_failed_inflation_is_freed_without_a_garbage_collection(memory: MemoryWorld, data: bytes) -> None:
    """The exception referred to 64 MiB until a garbage collection: 4 GiB within minutes."""
    made: list[weakref.ref[Any]] = []

    class TrackedInflation(application_data.Inflation):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(weakref.ref(self))

    producer = memory.producer()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(application_data, "Inflation", TrackedInflation)
            put = bytearray(codec.put_message(producer.q_id, producer.client.new_guid(), data))
            put[0] |= codec.HAS_PROPERTIES << 4
            put[7] |= 1 << 5
            producer.client.send(codec.put_frame([bytes(put)]))
            producer.client.barrier()
        assert len(made) == 1 and made[0]() is None
    finally:
        gc.enable()


def test_puts_before_their_open_response_are_inflated_in_slices_and_in_order(memory: MemoryWorld,
                                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """PUTs before the answer of their open: the first takes long, the others follow it."""
    turn_counts = TurnCounts(memory, monkeypatch, application_data.Inflation, "_inflate")
    speed_up_clock(monkeypatch, 1.0)
    client = memory.client()
    guids = [client.new_guid() for _ in range(3)]
    big: dict[str, Any] = {"properties": {"a": 1}, "v2": False, "compress": True}
    with memory.storage_stalled():
        client.send(codec.control_frame({"rId": 1, "openQueue": {
            "handleParameters": client.handle_parameters("bmq://d/new", 0, write=1)}}))
        client.send(codec.put_frame([codec.put_message(0, guids[0], bytes(5 * INFLATE_STEP_BYTES), **big),
                                     codec.put_message(0, guids[1], b"2")]))
        client.send(codec.put_frame([codec.put_message(0, guids[2], b"3")]))
        memory.run()
    memory.wait_idle()
    assert [event.ack.guid for event in client.events if event.kind == "ack"] == guids
    assert turn_counts.most <= 2 and sum(turn_counts.counts) >= 5


@pytest.mark.parametrize("encoding", ["BER", "JSON"])
def test_a_configure_with_many_subscriptions_is_parsed_and_compiled_in_slices(memory: MemoryWorld,
                                                                              monkeypatch: pytest.MonkeyPatch,
                                                                              encoding: str) -> None:
    """1024 subscriptions took 45 ms. Later requests are answered after it."""
    speed_up_clock(monkeypatch, 1.0)
    consumer = memory.consumer()
    parameters = consumer.stream_parameters()
    one, = parameters["subscriptions"]
    parameters["subscriptions"] = [{**one, "sId": 100 + number, "expression": {
        "version": "E_VERSION_1", "text": f"x == {number} && y > 3"}} for number in range(SUBSCRIPTIONS_MAX)]
    request = codec.control_frame({"rId": 50, "configureStream": {"qId": consumer.q_id, "streamParameters": parameters}},
                                  encoding)
    steps = 0
    turn = memory.broker.turn

    def counted(now: float) -> None:
        nonlocal steps
        steps += 1
        turn(now)

    monkeypatch.setattr(memory.broker, "turn", counted)
    consumer.client.send(request + codec.control_frame({"rId": 51, "configureStream": {
        "qId": 12345, "streamParameters": consumer.stream_parameters()}}))
    first = consumer.client.wait(lambda event: event.kind == "control", "the first answer")
    second = consumer.client.wait(lambda event: event.kind == "control", "the second answer")
    assert first.control["rId"] == 50 and "configureStreamResponse" in first.control
    assert second.control["rId"] == 51 and "status" in second.control
    assert steps > 20
    handle, = (each for each in memory.broker.domains.by_name["d"].queues["q"].handles if each.read_count)
    substream, = handle.substreams.values()
    assert len(substream.subscriptions) == SUBSCRIPTIONS_MAX
    assert substream.subscriptions[7].matcher is not None and substream.subscriptions[7].matcher.matches({"x": 7, "y": 4})


def test_one_turn_delivers_a_bounded_number_of_messages_in_order(memory: MemoryWorld,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    producer = memory.producer()
    producer.client.send(put_event(producer, 5 * TURN_MESSAGES_MAX // 2))
    producer.client.barrier()
    turn_counts = TurnCounts(memory, monkeypatch, ClientSession, "push")
    speed_up_clock(monkeypatch, 1.0)
    consumer = memory.consumer(m=1 << 20)
    pushed = [push.guid for push in memory.pushes(consumer)]
    assert turn_counts.most == TURN_MESSAGES_MAX and pushed == sorted(pushed) and len(pushed) == sum(turn_counts.counts)
    assert len(pushed) == 5 * TURN_MESSAGES_MAX // 2


def test_one_turn_evaluates_a_bounded_number_of_expressions(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """New, put-aside and redelivered messages all arrive, in order."""
    producer = memory.producer()
    groups = 256
    guids = [producer.put(bytes([number]), properties={"x": number % 5}) for number in range(100)]
    producer.client.barrier()
    turn_counts = TurnCounts(memory, monkeypatch, Router, "choose")
    speed_up_clock(monkeypatch, 1.0)

    def consume(texts: list[str]) -> Queue:
        consumer = memory.client().open("bmq://d/q", read=1)
        parameters = consumer.stream_parameters(m=1 << 20)
        one, = parameters["subscriptions"]
        parameters["subscriptions"] = [{**one, "sId": 100 + number, "expression": {"version": "E_VERSION_1", "text": text}}
                                       for number, text in enumerate(texts)]
        consumer.configure_stream(parameters)
        return consumer

    unmatched = [f"x == {1000 + number}" for number in range(groups - 1)]
    first = consume([*unmatched, "x == 1"])
    share = TURN_EVALUATIONS_MAX // groups
    assert [push.payload[0] % 5 for push in memory.pushes(first)] == [1] * 20 and turn_counts.most <= 2 * share
    second = consume([*unmatched, "x > 1"])
    got = [push.guid for push in memory.pushes(second)]
    assert got == [guid for number, guid in enumerate(guids) if number % 5 > 1] and turn_counts.most <= 2 * share
    second.client.link.drop()
    third = consume([*unmatched, "x >= 2"])
    got = [push.guid for push in memory.pushes(third)]
    assert got == [guid for number, guid in enumerate(guids) if number % 5 > 1] and turn_counts.most <= 2 * share


def test_one_turn_expires_a_bounded_number_of_messages(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.domain("d", messageTtl=1)
    producer = memory.producer("bmq://d/old")
    producer.client.send(put_event(producer, 5 * MESSAGES_AT_ONCE // 2))
    producer.client.barrier()
    turn_counts = TurnCounts(memory, monkeypatch, RootQueue, "remove")
    speed_up_clock(monkeypatch, 1.0)
    memory.advance(4)
    assert memory.stored(producer.uri) == 0 and turn_counts.most == MESSAGES_AT_ONCE


@pytest.mark.parametrize("text", ["", "x ==", "("])
def test_a_refused_request_leaves_no_reference_cycles(memory: MemoryWorld, text: str) -> None:
    """Thousands of objects in reference cycles cause a long garbage collection."""
    consumer = memory.consumer()
    parameters = consumer.stream_parameters()
    one, = parameters["subscriptions"]
    number = SUBSCRIPTIONS_MAX + 1 if not text else 500
    parameters["subscriptions"] = [{**one, "sId": each, "expression": {
        "version": "E_VERSION_1", "text": f"x == {each}"}} for each in range(number - 1)] + [{**one, "expression": {
            "version": "E_VERSION_1", "text": text}}]
    request = codec.control_frame({"rId": 50, "configureStream": {"qId": consumer.q_id, "streamParameters": parameters}})
    gc.collect()
    gc.disable()
    try:
        consumer.client.send(request)
        memory.run()
        left = gc.collect()
    finally:
        gc.enable()
    assert memory.logged("#CLIENT_CONFIGUREQUEUE_FAILURE") and left < 100


def test_confirms_of_an_event_received_in_chunks_all_count(memory: MemoryWorld) -> None:
    """Collected chunk by chunk: CONFIRMs on both sides of each boundary count."""
    producer, consumer = memory.producer(), memory.consumer(m=1 << 20)
    producer.client.send(put_event(producer, 2000))
    guids = [push.guid for push in memory.pushes(consumer)]
    event = codec.confirm_frame([(consumer.q_id, guid, consumer.sub_id) for guid in guids])
    for at in range(0, len(event), 777):
        consumer.client.send(event[at:at + 777])
    memory.run()
    assert memory.stored() == 0 and len(guids) == 2000


def test_json_with_too_many_values_is_refused_before_it_is_parsed(memory: MemoryWorld) -> None:
    consumer = memory.consumer()
    body = b'{"rId":1,"configureStream":{"streamParameters":{"subscriptions":[' + b"{}," * 80_000 + b"{}]}}}"
    consumer.client.send(event_header(EventType.CONTROL, len(body) + 3 & ~3, 1 << 5) + body + bytes(-len(body) % 4))
    memory.run()
    assert memory.logged("#CORRUPTED_EVENT", "too many values")
