"""Wire codecs for arbitrary input: any bytes give events or a PeerError, encoded messages decode to the same values, and
a stream may be split anywhere."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import broker_events as cluster_events
from kit import data_events as events
from kit.broker_events import LedgerRecordType, RecoveryFile, StorageType
from kit.data_events import encode_options

from bmqtwist.errors import PeerError
from bmqtwist.wire import application_data, ber, control, jsoncodec, options, properties
from bmqtwist.wire.control import (
    ClusterMessage,
    ControlMessage,
    ElectorMessage,
    NegotiationMessage,
)
from bmqtwist.wire.fast import EventType, event_header
from bmqtwist.wire.fields import Kind, choice_of, fields_of
from bmqtwist.wire.frames import DROPPED, FrameBuffer

TOP_LEVELS = [ControlMessage, NegotiationMessage, control.AuthenticationMessage, ElectorMessage, ClusterMessage]
LIMIT = 1 << 16
TEXT = st.text(max_size=20)


# -- control messages --------------------------------------------------------------------------------------------


def of_field(entry):
    if entry.kind is Kind.INT:
        value = st.integers(entry.low, entry.high)
    elif entry.kind is Kind.BOOL:
        value = st.booleans()
    elif entry.kind is Kind.TEXT:
        value = TEXT
    elif entry.kind is Kind.BYTES:
        value = st.binary(max_size=20)
    elif entry.kind is Kind.ENUM:
        value = st.sampled_from(list(entry.type))
    else:
        value = of_type(entry.type)
    if entry.array:
        return st.lists(value, max_size=3)
    return st.none() | value if entry.optional else value


_strategies = {}


def of_type(cls):
    """Messages of a schema type, from the declarations alone."""
    if cls not in _strategies:
        plain = {entry.attribute: of_field(entry) for entry in fields_of(cls)}
        choice = choice_of(cls)
        if choice is None:
            _strategies[cls] = st.builds(cls, **plain)
        else:
            _strategies[cls] = st.one_of([
                st.builds(cls, **plain, choice=st.just(name), value=of_type(type_))
                for _, name, type_ in choice.selections])
    return _strategies[cls]


@pytest.mark.parametrize("cls", TOP_LEVELS)
@given(data=st.data())
def test_a_schema_message_is_unchanged_by_a_round_trip(cls, data):
    message = data.draw(of_type(cls))
    for codec in (ber, jsoncodec):
        raw = codec.encode(message)
        assert codec.decode(cls, raw) == message
        assert codec.decode(cls, raw + b"\2\2") == message


@pytest.mark.parametrize("cls", TOP_LEVELS)
@pytest.mark.parametrize("codec", [ber, jsoncodec], ids=["ber", "json"])
@given(data=st.data())
def test_a_damaged_schema_message_is_a_message_or_a_peer_error(cls, codec, data):
    """Random bytes rarely get past the first tag; damaged messages do."""
    raw = bytearray(codec.encode(data.draw(of_type(cls))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at:at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    decode_and_check(codec, cls, bytes(raw))


@pytest.mark.parametrize("cls", TOP_LEVELS)
@pytest.mark.parametrize("codec", [ber, jsoncodec], ids=["ber", "json"])
@given(raw=st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: b"\x30\x80" + tail))
def test_any_bytes_are_a_schema_message_or_a_peer_error(cls, codec, raw):
    decode_and_check(codec, cls, raw)


def decode_and_check(codec, cls, raw):
    """PeerError or a message that, if complete, can be written again."""
    try:
        message = codec.decode(cls, raw)
    except PeerError as error:
        assert not error.fatal and error.field
        return
    assert type(message) is cls
    if message.choice and is_complete(message.value):
        assert codec.decode(cls, codec.encode(message)) == message


def is_complete(value):
    """A nested choice may be unset, too."""
    return choice_of(type(value)) is None or (bool(value.choice) and is_complete(value.value))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.sampled_from(
    ["E_SUCCESS", "E_TCPCLIENT"]), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["rId", "status", "category", "openQueue", "handleParameters", "configureStream", "streamParameters",
         "subscriptions", "consumers", "clusterMessage", "partitionMessage", "uri", "x"]), inner, max_size=4),
    max_leaves=20))
def test_any_json_is_a_schema_message_or_a_peer_error(tree):
    decode_and_check(jsoncodec, ControlMessage, json.dumps(tree).encode())


# -- framing -----------------------------------------------------------------------------------------------------

EVENT = st.builds(lambda kind, specific, body: event_header(kind, len(body), specific) + body, st.integers(1, 63),
                  st.integers(0, 255), st.binary(max_size=60))


def decode_chunks(pieces):
    """(events, was the stream given up?) of a stream in pieces."""
    frames, found = FrameBuffer(LIMIT), []
    try:
        for piece in pieces:
            buffer, spans = frames.receive(piece)
            found += [(kind, specific, buffer[start:end]) for kind, specific, start, end in spans]
    except PeerError as error:
        assert error.fatal and error is frames.error
    return found, frames.error is not None


def split_at(data, borders):
    borders = sorted({0, len(data), *(border % (len(data) + 1) for border in borders)})
    return [data[start:end] for start, end in pairwise(borders)]


@given(st.lists(EVENT, max_size=6), st.lists(st.integers(0, 10**6), max_size=8), st.binary(max_size=7))
def test_a_valid_stream_has_the_same_events_for_any_chunks(stream, borders, tail):
    data = b"".join(stream) + tail[:3]
    wanted = [(each[4] & 0x3F, each[6], each[8:]) for each in stream]
    assert decode_chunks([data] if data else []) == (wanted, False)
    assert decode_chunks(split_at(data, borders)) == (wanted, False)


@given(st.lists(EVENT | st.binary(min_size=1, max_size=12) | st.binary(min_size=4, max_size=20).map(
    lambda tail: b"\0\0\0" + tail), max_size=6), st.lists(st.integers(0, 10**6), max_size=8))
def test_any_stream_has_the_same_events_for_any_chunks(parts, borders):
    data = b"".join(parts)
    whole = decode_chunks([data] if data else [])
    assert decode_chunks(split_at(data, borders)) == whole
    assert decode_chunks([data[at:at + 1] for at in range(len(data))]) == whole
    assert all(kind == DROPPED or 0 < kind < 64 for kind, _, _ in whole[0])


# -- data events -------------------------------------------------------------------------------------------------


def bits(count):
    return st.integers(0, (1 << count) - 1)


GUID = st.binary(min_size=16, max_size=16)
WORDS = st.binary(max_size=40).map(lambda raw: raw[:len(raw) & ~3])
DATA = st.binary(min_size=1, max_size=60)


@st.composite
def puts(draw):
    flags, schema_id, words = draw(bits(4)), draw(bits(16)), draw(st.sampled_from([8, 9]))
    schema_id = schema_id if flags & 2 and words == 9 else 0
    return events.PutMessage(draw(bits(32)), draw(GUID), draw(DATA), flags, draw(bits(32)), draw(bits(1)), schema_id,
                      draw(WORDS), words)


@st.composite
def pushes(draw):
    flags, schema_id, words = draw(bits(4)), draw(bits(16)), draw(st.sampled_from([7, 8]))
    schema_id = schema_id if flags & 2 and words == 8 else 0
    data = b"" if flags & 1 else draw(st.binary(max_size=60))
    return events.PushMessage(draw(bits(32)), draw(GUID), data, flags, draw(bits(1)), schema_id, draw(WORDS), words)


SCHEMES = {
    "PUT": (puts(), events.encode_put, events.decode_put),
    "PUSH": (pushes(), events.encode_push, events.decode_push),
    "ACK": (st.builds(events.AckMessage, bits(4), bits(24), GUID, bits(32)), events.encode_ack, events.decode_ack),
    "CONFIRM": (st.builds(events.ConfirmMessage, bits(32), GUID, bits(32)), events.encode_confirm, events.decode_confirm),
    "STORAGE": (st.builds(cluster_events.StorageMessage, st.sampled_from(StorageType), bits(16), bits(32),
                          st.binary(min_size=60, max_size=60), WORDS, bits(5)),
                cluster_events.encode_storage, cluster_events.decode_storage),
    "RECOVERY": (st.builds(cluster_events.RecoveryChunk, st.sampled_from(RecoveryFile), bits(16), bits(32), GUID,
                           WORDS.map(lambda raw: raw or b"data"), st.booleans()),
                 cluster_events.encode_recovery, cluster_events.decode_recovery),
    "CLUSTER_STATE": (st.builds(cluster_events.ClusterStateRecord, st.sampled_from(LedgerRecordType), bits(64),
                                bits(64), bits(64), of_type(ClusterMessage)),
                      cluster_events.encode_cluster_state, cluster_events.decode_cluster_state),
}


@pytest.mark.parametrize("name", SCHEMES)
@given(data=st.data())
def test_a_data_event_is_unchanged_by_a_round_trip(name, data):
    strategy, encode, decode = SCHEMES[name]
    messages = data.draw(st.lists(strategy, min_size=1, max_size=4))
    event = encode(messages)
    assert event[4] & 0x3F == EventType[name]
    assert int.from_bytes(event[:4], "big") == len(event)
    assert decode(event, 8, len(event)) == (messages, None)
    assert decode(b"???" + event[8:] + b"!", 3, len(event) - 5) == (messages, None)


@pytest.mark.parametrize("name", SCHEMES)
@given(data=st.data())
def test_a_damaged_data_event_has_the_messages_before_the_damage(name, data):
    """An error after them is possible."""
    strategy, encode, decode = SCHEMES[name]
    messages = data.draw(st.lists(strategy, min_size=1, max_size=3))
    event = bytearray(encode(messages))
    at = data.draw(st.integers(8, len(event) - 1))
    event[at] ^= data.draw(st.integers(1, 255))
    found, error = decode(bytes(event), 8, len(event))
    assert error is None or isinstance(error, PeerError) and not error.fatal
    ends = [len(encode(messages[:count])) for count in range(1, len(messages))]
    intact = sum(end <= at for end in ends)
    if at >= (12 if name in ("ACK", "CONFIRM") else 8):
        assert found[:intact] == messages[:intact]


@pytest.mark.parametrize("name", [*SCHEMES, "RECEIPT"])
@given(raw=st.binary(max_size=200))
def test_any_bytes_are_data_events_or_a_peer_error(name, raw):
    decode = SCHEMES[name][2] if name in SCHEMES else cluster_events.decode_receipt
    found, error = decode(raw, 0, len(raw))
    assert found or isinstance(error, PeerError)


# -- options, properties, compression ----------------------------------------------------------------------------

INFO = st.builds(options.SubQueueInfo, bits(32), st.none() | bits(6), st.booleans())
OPTIONS = st.tuples(
    st.none() | st.builds(options.SubQueueIds, st.lists(bits(32), min_size=1, max_size=5).map(tuple)),
    st.none() | st.builds(options.GroupId, st.binary(max_size=31)),
    st.none() | st.builds(options.SubQueueInfos, st.lists(INFO, min_size=1, max_size=4).map(tuple))
    | st.builds(options.SubQueueInfos, INFO.map(lambda info: (replace(info, id=0),)), st.just(True)),
).flatmap(lambda some: st.permutations([each for each in some if each is not None]))


@given(OPTIONS)
def test_options_are_unchanged_by_a_round_trip(several):
    assert options.decode(encode_options(several)) == several


@given(OPTIONS | st.builds(lambda info: [options.SubQueueInfos((info,))], INFO) | st.just([options.SubQueueIds((1, 2))]))
def test_the_options_of_a_push_to_one_subscription_have_a_fast_decoder(several):
    infos = several[0].items if len(several) == 1 and isinstance(several[0], options.SubQueueInfos) else ()
    only = (infos[0].id, infos[0].attempts) if len(infos) == 1 and not several[0].packed and not infos[0].lease else None
    assert options.only_info(encode_options(several)) == only


@given(st.binary(max_size=60) | WORDS)
def test_any_bytes_are_options_or_a_peer_error(raw):
    try:
        found = options.decode(raw)
    except PeerError:
        return
    assert options.decode(encode_options(found)) == found


RANGES = {properties.PropertyType.CHAR: 8, properties.PropertyType.SHORT: 16, properties.PropertyType.INT32: 32,
          properties.PropertyType.INT64: 64}
VALUE = st.one_of(
    st.tuples(st.just(properties.PropertyType.BOOL), st.booleans()),
    st.tuples(st.just(properties.PropertyType.STRING), TEXT),
    st.tuples(st.just(properties.PropertyType.BINARY), st.binary(max_size=20)),
    *(st.tuples(st.just(kind), st.integers(-(1 << size - 1), (1 << size - 1) - 1)) for kind, size in RANGES.items()),
)
PROPERTIES = st.dictionaries(st.from_regex(r"[a-zA-Z0-9][^\x00]{0,10}", fullmatch=True), VALUE, min_size=1, max_size=8)


@given(PROPERTIES, st.binary(max_size=30))
def test_properties_are_unchanged_by_a_round_trip_in_both_styles(wanted, payload):
    old, new = properties.encode(wanted, False), properties.encode(wanted, True)
    for area, v2 in ((old, False), (new, True)):
        assert list(properties.decode(area + payload, v2).items()) == list(wanted.items())
        assert properties.values(area, v2) == {name: value for name, (_, value) in wanted.items()}
        assert properties.area_length(area + payload) == len(area)
    assert properties.to_v1(new + payload) == old


@pytest.mark.parametrize("v2", [False, True])
@given(wanted=PROPERTIES, damage=st.lists(st.tuples(bits(16), bits(8)), max_size=4))
def test_a_damaged_properties_area_is_properties_or_a_peer_error(v2, wanted, damage):
    area = bytearray(properties.encode(wanted, v2))
    for at, value in damage:
        area[at % len(area)] = value
    area = bytes(area)
    for read in (properties.decode, properties.values):
        try:
            assert read(area, v2)
        except PeerError as error:
            assert error.field == "properties"


@given(st.binary(max_size=100), st.booleans())
def test_any_bytes_are_properties_or_a_peer_error(raw, v2):
    for read in (lambda: properties.decode(raw, v2), lambda: properties.to_v1(raw),
                 lambda: application_data.unpack_data(raw, True, 1, int(v2)),
                 lambda: application_data.for_old_reader(raw, True, 0, 1)):
        try:
            read()
        except PeerError:
            pass


@settings(max_examples=50)
@given(PROPERTIES, st.binary(max_size=50), st.integers(0, 100), st.booleans(), st.booleans())
def test_closed_application_data_is_opened_to_the_same_values(wanted, unit, times, v2, compress):
    area, payload = properties.encode(wanted, v2), unit * times
    data, kind = application_data.pack_data(area, payload, v2, compress)
    assert len(data) <= len(area) + len(payload)
    assert application_data.unpack_data(data, True, kind, int(v2)) == (area, payload)
    assert application_data.for_old_reader(data, True, kind, int(v2)) == (properties.encode(wanted, False) + payload, 0)


@given(st.binary(max_size=3000))
def test_deflated_data_is_inflated_to_the_same_bytes(data):
    small, kind = application_data.deflate(data)
    assert (application_data.inflate(small) if kind else small) == data
