"""Message properties: both styles, annotated bytes, malformed areas; conversion and compression."""

import zlib

import pytest
from crc32c import crc32c
from kit import data_events as events
from kit.wire_recordings import CLIENT, RECORDINGS, good_events

from bmqtwist.errors import LocalError, PeerError
from bmqtwist.wire import application_data, properties
from bmqtwist.wire.fast import MESSAGE_PROPERTIES, EventType
from bmqtwist.wire.properties import PropertyType as Kind

FIVE = {"a": (Kind.INT64, 1), "b": (Kind.STRING, "str"), "c": (Kind.BOOL, True), "d": (Kind.BINARY, b"\1\2"),
        "e": (Kind.SHORT, -5)}
V2 = bytes.fromhex("1b00000f0005 140000000001 180000090001 0400000d0001 1c00000f0001 0c0000120001"
                   "610000000000000001 62737472 6301 640102 65fffb 030303")
V1 = bytes.fromhex("1b00000f0005 140000080001 180000030001 040000010001 1c0000020001 0c0000020001"
                   "610000000000000001 62737472 6301 640102 65fffb 030303")


@pytest.mark.parametrize(("area", "v2"), [(V1, False), (V2, True)], ids=["v1", "v2"])
def test_five_properties_have_the_annotated_bytes(area, v2):
    assert properties.encode(FIVE, v2) == area
    assert properties.decode(area, v2) == FIVE
    assert properties.area_length(area) == properties.area_length(area + b"payload") == 60
    assert properties.decode(area + b"payload", v2) == FIVE


def test_values_are_decoded_without_types_and_only_for_the_wanted_names():
    """Values as subscriptions evaluate them."""
    assert properties.values(V2, True) == {name: value for name, (_, value) in FIVE.items()}
    assert properties.values(V2, True, {"b", "e", "zz"}.__contains__) == {"b": "str", "e": -5}
    assert type(properties.values(V2, True)["c"]) is bool


def test_the_new_style_is_converted_to_the_old_one_by_rewriting_lengths():
    assert properties.to_v1(V2) == properties.to_v1(V2 + b"payload") == V1


def test_limit_values_of_every_property_type_are_encoded_and_decoded():
    edges = {"bool": (Kind.BOOL, False), "char": (Kind.CHAR, -128), "char2": (Kind.CHAR, 127),
             "short": (Kind.SHORT, -(1 << 15)), "i32": (Kind.INT32, (1 << 31) - 1), "i64": (Kind.INT64, -(1 << 63)),
             "none": (Kind.STRING, ""), "nought": (Kind.BINARY, b""), "text": (Kind.STRING, "\u00e9\U0001f600")}
    for v2 in (False, True):
        assert properties.decode(properties.encode(edges, v2), v2) == edges


def test_255_properties_with_long_names_and_a_large_value_are_encoded_and_decoded():
    many = {f"{n:03}" + "x" * 4092: (Kind.INT32, n) for n in range(254)} | {"big": (Kind.BINARY, bytes(1 << 20))}
    for v2 in (False, True):
        assert properties.decode(properties.encode(many, v2), v2) == many


@pytest.mark.parametrize("bad", [
    {}, {str(n): (Kind.BOOL, True) for n in range(256)}, {"": (Kind.BOOL, True)}, {"_x": (Kind.BOOL, True)},
    {"x" * 4096: (Kind.BOOL, True)}, {"a": (Kind.SHORT, 1 << 15)}, {"a": (Kind.STRING, b"x")},
    {"a": (Kind.BINARY, "x")}, {"a": (Kind.INT32, "1")}, {"a": (Kind.BINARY, bytes(1 << 26))},
    {"a": (Kind.STRING, "half \ud800")}, {"a\udbff": (Kind.BOOL, True)},
])
def test_encoding_invalid_properties_is_a_local_error(bad):
    with pytest.raises(LocalError):
        properties.encode(bad, True)


def with_byte(area, at, value):
    return area[:at] + bytes((value,)) + area[at + 1:]


@pytest.mark.parametrize(("area", "v2"), [
    (b"", True), (V2[:5], True), (V2[:59], True),
    (with_byte(V2, 3, 0), True),  # no size
    (with_byte(V2, 3, 1), True),  # smaller than its header
    (with_byte(V2, 3, 14), True),  # ends inside a value: no padding there
    (with_byte(V2, 5, 0), True), (with_byte(V2, 5, 6), True), (with_byte(V2, 5, 255), True),  # count
    (with_byte(V2, 0, 0x1A), True), (with_byte(V2, 0, 0x13), True),  # sizes of headers
    (with_byte(V2, 6, 0x20), True), (with_byte(V2, 6, 0), True),  # type
    (with_byte(V2, 15, 8), True), (with_byte(V2, 15, 200), True),  # offset
    (with_byte(V2, 9, 1), True),  # first offset not 0
    (with_byte(V2, 11, 0), True), (with_byte(V2, 11, 9), True),  # length of a name
    (with_byte(V2, 59, 0), True), (with_byte(V2, 59, 5), True),  # padding
    (with_byte(V1, 9, 7), False), (with_byte(V1, 15, 255), False), (with_byte(V1, 33, 3), False),  # lengths
    (V2, False), (V1, True),  # of the other style
])
def test_an_inconsistent_properties_area_is_refused(area, v2):
    with pytest.raises(PeerError) as caught:
        properties.decode(area, v2)
    assert caught.value.field == "properties" and not caught.value.fatal


def test_a_repeated_property_is_refused():
    area = properties.encode({"a": (Kind.BOOL, True), "b": (Kind.BOOL, True)}, True)
    with pytest.raises(PeerError, match="twice"):
        properties.decode(area.replace(b"b", b"a"), True)


@pytest.mark.parametrize("length", [0, 2, 4])
def test_an_area_longer_than_its_properties_is_refused(length):
    """Bytes that belong to no property make the area invalid."""
    area = properties.encode({"a": (Kind.STRING, "abc")}, False)
    assert properties.decode(with_byte(area, 9, 3), False) == {"a": (Kind.STRING, "abc")}
    with pytest.raises(PeerError):
        properties.decode(with_byte(area, 9, length), False)


def test_unknown_fields_of_larger_headers_are_skipped():
    """A later version may add fields to both headers."""
    plain = properties.encode({"a": (Kind.SHORT, 258)}, True)
    longer = bytes.fromhex("24 000006 00 01 ffff") + plain[6:12] + b"\xff\xff" + plain[12:15]
    longer += bytes([24 - len(longer)]) * (24 - len(longer))
    with pytest.raises(PeerError):
        properties.decode(longer, True)  # five bytes of padding: not what a writer makes
    longer = bytes.fromhex("24 000005 00 01 ffff") + plain[6:12] + b"\xff\xff" + plain[12:15] + b"\1"
    assert properties.decode(longer, True) == {"a": (Kind.SHORT, 258)}


def test_names_and_strings_that_are_not_utf8_are_unchanged_by_a_round_trip():
    area = properties.encode({"aX": (Kind.STRING, "Y")}, False).replace(b"X", b"\xfe").replace(b"Y", b"\xff")
    assert properties.encode(properties.decode(area, False), False) == area


# -- compression and style ---------------------------------------------------------------------------------------


def test_data_is_compressed_from_1024_bytes_and_only_if_it_shrinks():
    assert application_data.deflate(bytes(1023)) == (bytes(1023), 0)
    small, kind = application_data.deflate(bytes(1024))
    assert kind == 1 and small[:2].hex() == "789c" and application_data.inflate(small) == bytes(1024)
    noise = b"".join(zlib.crc32(bytes((n & 255, n >> 8))).to_bytes(4, "big") for n in range(512))
    assert application_data.deflate(noise) == (noise, 0)


def test_inflation_stops_at_its_limit():
    """A few bytes may declare gigabytes."""
    bomb = zlib.compress(bytes(1 << 20))
    assert len(application_data.inflate(bomb, 1 << 20)) == 1 << 20
    with pytest.raises(PeerError, match="more than"):
        application_data.inflate(bomb, (1 << 20) - 1)


@pytest.mark.parametrize("broken", [b"", b"x", zlib.compress(b"abc")[:-1], zlib.compress(b"abc") + b"x",
                                    zlib.compress(b"abc")[:-1] + b"\0"])
def test_a_broken_zlib_stream_is_refused(broken):
    with pytest.raises(PeerError):
        application_data.inflate(broken)


def test_the_checksum_is_crc32c():
    assert (crc32c(b""), crc32c(b"hello"), crc32c(b"123456789")) == (0, 0x9A71BB4C, 0xE3069283)


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("size", [0, 5, 5000])
def test_closed_application_data_is_opened_to_the_same_properties_and_payload(v2, compress, size):
    area = V2 if v2 else V1
    data, kind = application_data.pack_data(area, bytes(size), v2, compress)
    assert kind == (compress and size == 5000)
    assert application_data.unpack_data(data, True, kind, int(v2)) == (area, bytes(size))
    assert application_data.properties_area(data, kind, int(v2)) == (area, v2)
    if v2:
        assert data[:60] == V2  # stays readable


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("compress", [False, True])
def test_an_old_client_receives_old_style_properties_and_an_inflated_payload(v2, compress):
    data, kind = application_data.pack_data(V2 if v2 else V1, bytes(5000), v2, compress)
    assert application_data.for_old_reader(data, True, kind, int(v2)) == (V1 + bytes(5000), 0)


def test_an_old_client_receives_a_message_without_properties_unchanged():
    data, kind = application_data.deflate(bytes(5000))
    assert application_data.for_old_reader(data, False, kind, 0) == (data, 1)
    assert application_data.unpack_data(data, False, kind, 0) == (b"", bytes(5000))


def test_a_compressed_old_style_message_is_stored_inflated_with_a_new_checksum():
    data, kind = application_data.pack_data(V1, bytes(5000), False, True)
    assert kind == 1
    inflation = application_data.inflation_of_put(data, True, 0)
    assert inflation is not None and inflation.keeps
    while not inflation.step(1000):
        pass
    assert inflation.data() == V1 + bytes(5000) and inflation.bytes == len(V1) + 5000


def test_an_unknown_compression_is_refused():
    with pytest.raises(PeerError):
        application_data.unpack_data(b"x", False, 2, 0)


def test_the_conversion_of_styles_equals_that_of_the_original_broker():
    """The same posts to a client with and one without v2: the conversion of the first bytes gives the second."""
    [path] = [path for path in RECORDINGS if path.stem == "properties_v1_v2"]
    pushed, posted = {}, {}
    for event in good_events(path):
        if event.kind == EventType.PUSH:
            for message in events.decode_push(event.raw, 8, len(event.raw))[0]:
                pushed.setdefault(message.guid, []).append(message)
        elif event.kind == EventType.PUT:
            for message in events.decode_put(event.raw, 8, len(event.raw))[0]:
                posted[message.guid] = message
    converted = 0
    for guid, copies in pushed.items():
        put = posted[guid]
        has_properties = bool(put.flags & MESSAGE_PROPERTIES)
        stored = put.data, put.compression
        if has_properties and put.compression and not put.schema_id:
            inflation = application_data.inflation_of_put(put.data, True, 0)
            assert inflation is not None and inflation.step()
            stored = inflation.data(), 0
        old = application_data.for_old_reader(*stored[:1], has_properties, stored[1], put.schema_id)
        for copy in copies:
            if copy.schema_id or not has_properties:
                assert (copy.data, copy.compression) == stored
            else:
                assert (copy.data, copy.compression) == old
                converted += bool(put.schema_id)
    assert converted >= 3


def test_messages_compressed_by_the_original_client_are_inflated():
    for stem in ("producer_v1props_zlib", "producer_v2props_zlib"):
        opened = [application_data.unpack_data(put.data, bool(put.flags & MESSAGE_PROPERTIES), put.compression,
                                               put.schema_id)
                  for event in good_events(CLIENT / f"{stem}.c2b.bin") if event.kind == EventType.PUT
                  for put in events.decode_put(event.raw, 8, len(event.raw))[0]]
        assert len(opened) >= 2 and max(len(payload) for _, payload in opened) >= 1024
        assert all(payload for _, payload in opened)
