"""Recorded events: every event is decoded, and encoded to the same bytes.

Two exceptions, both the sender's choice: an identity that ends before `userAgent` gains that field, and JSON of other
writers than the C++ broker (order of keys, spaces, empty arrays) is compared by value.
"""

import dataclasses
from collections import Counter

import pytest
from crc32c import crc32c
from kit import broker_events as cluster_events
from kit import data_events
from kit.data_events import encode_options
from kit.wire_recordings import (
    CLIENT,
    FILES,
    MALFORMED,
    RECORDINGS,
    events,
    good_events,
    name_of,
    segments,
    streams,
)

from bmqtwist.errors import PeerError
from bmqtwist.wire import application_data, ber, control, jsoncodec, options, properties
from bmqtwist.wire.control import ControlMessage, Encoding, NegotiationMessage
from bmqtwist.wire.fast import IMPLICIT_PAYLOAD, MESSAGE_PROPERTIES, EventType

WELL_FORMED = [path for path in FILES if MALFORMED not in path.name]
ITEM_READERS = {
    EventType.PUT: (data_events.decode_put, data_events.encode_put),
    EventType.PUSH: (data_events.decode_push, data_events.encode_push),
    EventType.ACK: (data_events.decode_ack, data_events.encode_ack),
    EventType.CONFIRM: (data_events.decode_confirm, data_events.encode_confirm),
    EventType.REJECT: (data_events.decode_confirm, data_events.encode_reject),
    EventType.STORAGE: (cluster_events.decode_storage, cluster_events.encode_storage),
    EventType.PARTITION_SYNC: (
        cluster_events.decode_storage,
        lambda messages: cluster_events.encode_storage(messages, EventType.PARTITION_SYNC)),
    EventType.REPLICATION_RECEIPT: (
        cluster_events.decode_receipt, lambda receipts: cluster_events.encode_receipt(*receipts)),
    EventType.CLUSTER_STATE: (cluster_events.decode_cluster_state, cluster_events.encode_cluster_state),
}


def decode_schema(event):
    """The message of a CONTROL, AUTHENTICATION or ELECTOR event."""
    if event.kind == EventType.AUTHENTICATION:
        return control.decode_authentication(event.body, event.encoding)
    if event.kind == EventType.ELECTOR:
        return control.decode_elector(event.body)
    if event.first_control:
        return control.decode_negotiation(event.body, event.encoding)
    return control.decode_control(event.body, event.encoding)


def schema_events(path):
    return [event for event in good_events(path)
            if event.kind in (EventType.CONTROL, EventType.AUTHENTICATION, EventType.ELECTOR)]


def is_unread(message):
    """A message that only brokers of the original evaluate: it is skipped."""
    return message.choice == "clusterMessage" and not message.value.choice


def is_older_identity(message):
    return message.choice == "clientIdentity" and not message.value.user_agent


@pytest.mark.spec("wire", 2)
@pytest.mark.parametrize("path", WELL_FORMED, ids=name_of)
def test_recorded_ber_messages_are_encoded_to_the_same_bytes(path):
    """Negotiation, control, authentication, elector: every default written, every integer shortest."""
    for event in schema_events(path):
        if event.encoding != Encoding.BER:
            continue
        message = decode_schema(event)
        assert message.choice
        if is_unread(message):
            continue
        again = control.encode_event(message, Encoding.BER)
        if is_older_identity(message) and again != event.raw:
            short = event.body[:-event.raw[-1]]
            assert short.endswith(bytes(8))  # guidInfo is the last field
            assert ber.encode(message) == short[:-6] + b"\x8c\x00" + bytes(6)
        else:
            assert again == event.raw


@pytest.mark.parametrize("path", WELL_FORMED, ids=name_of)
def test_recorded_json_messages_keep_their_values_over_a_round_trip(path):
    """By value: senders choose the order of keys, spaces and empty arrays."""
    for event in schema_events(path):
        if event.encoding == Encoding.JSON:
            message = decode_schema(event)
            assert message.choice
            assert jsoncodec.decode(type(message), jsoncodec.encode(message)) == message


def test_recorded_json_of_the_original_broker_is_encoded_to_the_same_bytes():
    """Both encoders make the same choices, the escaped slash included."""
    [path] = [path for path in RECORDINGS if path.stem == "json_client"]
    [stream] = [stream for stream in streams(path) if stream.name.endswith(":30141")]
    answers = [event for event in events(stream.data) if event.kind == EventType.CONTROL]
    assert len(answers) > 3
    for event in answers:
        assert event.encoding == Encoding.JSON
        assert control.encode_event(decode_schema(event), Encoding.JSON) == event.raw


@pytest.mark.parametrize("path", WELL_FORMED, ids=name_of)
def test_recorded_messages_are_unchanged_by_both_encodings(path):
    for event in schema_events(path):
        message = decode_schema(event)
        if is_unread(message):
            continue
        assert jsoncodec.decode(type(message), jsoncodec.encode(message)) == message
        assert ber.decode(type(message), ber.encode(message)) == message


@pytest.mark.spec("wire", 3)
def test_recorded_json_responses_have_the_values_of_their_ber_requests():
    """One session: the client asks in BER, the answers to the same steps are JSON and echo the requests."""
    requests = [decode_schema(event) for event in good_events(CLIENT / "broker_answers_in_json.c2b.bin")
                if event.kind == EventType.CONTROL]
    answers = [decode_schema(event) for event in good_events(CLIENT / "broker_answers_in_json.b2c.bin")
               if event.kind == EventType.CONTROL]
    assert [answer.r_id for answer in answers[1:]] == [request.r_id for request in requests[1:]]
    echoed = Counter()
    for request, answer in zip(requests[1:], answers[1:], strict=True):
        assert answer.choice == request.choice + "Response"
        if request.choice == "openQueue":
            assert answer.value.original_request == request.value
            echoed[request.choice] += 1
        elif request.choice == "configureStream":
            assert answer.value.request == request.value
            echoed[request.choice] += 1
    assert echoed == {"openQueue": 1, "configureStream": 2}


@pytest.mark.parametrize("path", WELL_FORMED, ids=name_of)
def test_recorded_data_events_are_encoded_to_the_same_bytes(path):
    for event in good_events(path):
        if event.kind in ITEM_READERS:
            decode, encode = ITEM_READERS[event.kind]
            messages, error = decode(event.raw, 8, len(event.raw))
            assert error is None
            assert encode(messages) == event.raw


def test_the_recordings_contain_events_of_nearly_every_type():
    """Each event type is recorded, so that the tests above have input; except RECOVERY, of an older mode, and extensions."""
    seen = Counter(event.kind for path in WELL_FORMED for event in good_events(path))
    assert set(seen) == set(EventType) - {EventType.UNDEFINED, EventType.RECOVERY, EventType.REJECT, EventType.FRAGMENT}
    assert min(seen.values()) >= 2


@pytest.mark.parametrize("path", WELL_FORMED, ids=name_of)
def test_recorded_options_are_encoded_to_the_same_bytes(path):
    for event in good_events(path):
        for message in put_and_push(event):
            assert encode_options(options.decode(message.options)) == message.options


@pytest.mark.spec("wire", 4)
@pytest.mark.parametrize("path", WELL_FORMED, ids=name_of)
def test_recorded_puts_have_valid_checksums_and_properties(path):
    """One message is posted with a wrong checksum on purpose."""
    wrong = 0
    for event in good_events(path):
        for message in put_and_push(event):
            if event.kind == EventType.PUT:
                wrong += message.crc != crc32c(message.data)
            if not message.flags & MESSAGE_PROPERTIES:
                assert message.schema_id == 0
                continue
            if not message.data:
                assert event.kind == EventType.PUSH and message.flags & IMPLICIT_PAYLOAD
                continue
            area, v2 = application_data.properties_area(message.data, message.compression, message.schema_id)
            found = properties.decode(area, v2)
            assert found and properties.encode(found, v2) == area
            if v2:
                assert properties.decode(properties.to_v1(area), False) == found
    assert wrong == (path.stem in ("producer_consumer",))


@pytest.mark.spec("wire", 4)
def test_recorded_schema_ids_are_odd_for_new_and_even_for_known_schemas():
    puts = [message for event in good_events(CLIENT / "producer_v2props_order.c2b.bin")
            for message in put_and_push(event) if message.flags & MESSAGE_PROPERTIES]
    assert [message.schema_id for message in puts] == [3, 2, 5, 2, 2, 7, 9]


def put_and_push(event):
    if event.kind in (EventType.PUT, EventType.PUSH):
        return ITEM_READERS[event.kind][0](event.raw, 8, len(event.raw))[0]
    return []


SDK_RUNS = [path for path in RECORDINGS if path.stem.startswith("sdk_")]


def events_in_order(path):
    """Events of a recorded run in order of time, as (stream, from the client?, event)."""
    waiting, first = {}, set()
    for line in segments(path):
        key = line["stream"], line["src"]
        data = waiting.get(key, b"") + bytes.fromhex(line["hex"])
        while len(data) >= 4 and len(data) >= (size := int.from_bytes(data[:4], "big")):
            [event] = events(data[:size])
            is_control = event.kind == EventType.CONTROL
            yield line["stream"], line["dst"] == 30141, dataclasses.replace(
                event, first_control=is_control and key not in first)
            first |= {key} if is_control else set()
            data = data[size:]
        waiting[key] = data


def captured_in_order(stem):
    """Events of a captured client, from its list of events."""
    data = {way: (CLIENT / f"{stem}.{way}.bin").read_bytes() for way in ("c2b", "b2c")}
    first = set()
    for line in (CLIENT / f"{stem}.seq.txt").read_text().splitlines():
        way, offset, length, _ = line.split()[:4]
        at = int(offset.partition("=")[2])
        [event] = events(data[way][at:at + int(length.partition("=")[2])])
        is_control = event.kind == EventType.CONTROL
        yield 0, way == "c2b", dataclasses.replace(event, first_control=is_control and way not in first)
        first |= {way} if is_control else set()


CAPTURED = sorted(path.name[:-8] for path in CLIENT.glob("*.seq.txt"))


@pytest.mark.spec("wire", 5)
@pytest.mark.parametrize("run", [*SDK_RUNS, *CAPTURED], ids=lambda run: run if isinstance(run, str) else name_of(run))
def test_recorded_confirms_name_a_pushed_message_by_its_sub_queue_id(run):
    """PUSH names subscriptions (sId), CONFIRM their substream (subId); the numbers may differ."""
    sub_ids, pushed = {}, set()
    if run == "reconnect.conn2":  # its CONFIRM names a message of the first connection
        pushed = check_confirms(captured_in_order("reconnect"), {}, set())
    check_confirms(captured_in_order(run) if isinstance(run, str) else events_in_order(run), sub_ids, pushed)


def check_confirms(steps, sub_ids, pushed):
    """Follow a run; fail at a CONFIRM of a message that was not pushed. Return all pushed (stream, queue, GUID, subId)."""
    apps = {}
    for stream, from_client, event in steps:
        if event.kind == EventType.CONTROL and from_client and not event.first_control:
            message = decode_schema(event)
            if message.choice == "openQueue":
                parameters = message.value.handle_parameters
                info = parameters.sub_id_info
                if info:
                    apps[stream, parameters.q_id, info.app_id] = info.sub_id
                sub_ids[stream, parameters.q_id, info.sub_id if info else 0] = info.sub_id if info else 0
            elif message.choice == "configureStream":
                for each in message.value.stream_parameters.subscriptions:
                    key = stream, message.value.q_id, message.value.stream_parameters.app_id
                    sub_ids[stream, message.value.q_id, each.s_id] = apps.get(key, 0)
        elif event.kind == EventType.PUSH and not from_client:
            for message in put_and_push(event):
                for sub_id in ids_of(message, sub_ids, stream):
                    pushed.add((stream, message.queue_id, message.guid, sub_id))
        elif event.kind == EventType.CONFIRM:
            confirms, error = data_events.decode_confirm(event.raw, 8, len(event.raw))
            assert error is None
            for each in confirms:
                assert (stream, each.queue_id, each.guid, each.sub_queue_id) in pushed
    return pushed


def ids_of(message, sub_ids, stream):
    """Substreams of a PUSH."""
    ids = [0]
    for option in options.decode(message.options):
        ids = list(option.ids) if isinstance(option, options.SubQueueIds) else [item.id for item in option.items]
    return [sub_ids[stream, message.queue_id, each] for each in ids if (stream, message.queue_id, each) in sub_ids]


def test_recorded_malformed_messages_are_refused():
    """Undecodable control messages, an empty PUT and unknown types of a deliberately faulty client."""
    [path] = [path for path in RECORDINGS if path.stem == MALFORMED]
    bodies = [bytes.fromhex("3080ffffffff0102"), b""]
    for body in bodies:
        with pytest.raises(PeerError):
            control.decode_control(body, Encoding.BER)
        assert any(body in stream.data for stream in streams(path))


def test_the_first_control_event_of_a_stream_is_a_negotiation_message():
    kinds = {type(decode_schema(event)) for path in WELL_FORMED for event in schema_events(path)
             if event.kind == EventType.CONTROL}
    assert kinds == {NegotiationMessage, ControlMessage}
