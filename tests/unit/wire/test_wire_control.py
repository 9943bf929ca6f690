"""Control messages: annotated bytes, tolerated deviations, and rejected messages."""

import json

import pytest
from kit.wire_recordings import FILES, MALFORMED, good_events, name_of

from bmqtwist.errors import Category, LocalError, PeerError
from bmqtwist.wire import ber, cluster_schema, jsoncodec, schema
from bmqtwist.wire.control import (
    AuthenticationMessage,
    ClusterMessage,
    ControlMessage,
    ElectorMessage,
    Encoding,
    NegotiationMessage,
    decode_authentication,
    decode_control,
    decode_elector,
    decode_negotiation,
    encode_body,
    encode_event,
    encoding_of,
)
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.fields import choice_of, fields_of

DISCONNECT = bytes.fromhex("3080 800103 a180 a180 0000 0000 0000")
OPEN = ControlMessage(1, "openQueue", schema.OpenQueue(schema.QueueHandleParameters(
    "bmq://bmq.test.mem.priority/q1", 0, None, 4, 0, 1, 0)))
CONFIGURE = ControlMessage(2, "configureStream", schema.ConfigureStream(0, schema.StreamParameters(subscriptions=[
    schema.Subscription(1, consumers=[schema.ConsumerInfo(100, 5000, 3, 1)])])))


def test_a_disconnect_has_the_annotated_bytes():
    message = ControlMessage(3, "disconnect", schema.Disconnect())
    event = encode_event(message)
    assert event == bytes.fromhex("00000018 41020000") + DISCONNECT + b"\x01"
    assert decode_control(event[8:], Encoding.BER) == message


def test_an_open_queue_has_the_annotated_bytes():
    assert encode_event(OPEN) == (
        bytes.fromhex("0000004c 41020000 3080 800101 a180 aa80 a080 801e") + b"bmq://bmq.test.mem.priority/q1"
        + bytes.fromhex("810100 830104 840100 850101 860100 0000 0000 0000 0000 0202"))


def test_the_sub_queue_id_is_encoded_between_queue_id_and_flags():
    parameters = schema.QueueHandleParameters("u", sub_id_info=schema.SubQueueIdInfo(1, "foo"))
    raw = ber.encode(parameters)
    assert bytes.fromhex("810100 a280 800101 8103666f6f 0000 830100") in raw


def test_a_configure_stream_has_the_annotated_bytes():
    assert encode_event(CONFIGURE) == bytes.fromhex(
        "00000054 41020000 3080 800102 a180 b080 800100 a180 8009 5f5f64656661756c74 a180 3080 800101"
        "a180 800100 8100 0000 a280 3080 800164 81021388 820103 830101 0000 0000 0000 0000 0000 0000 0000 0000 0202")


def test_a_leader_heartbeat_has_the_annotated_bytes():
    event = encode_event(ElectorMessage(5, "leaderHeartbeat", cluster_schema.LeaderHeartbeat()), Encoding.JSON)
    assert event[4:8].hex() == "47020000"  # always BER, independent of the requested encoding
    assert event[8:23].hex() == "3080800105a180a280" + "00" * 6
    assert decode_elector(event[8:]).term == 5


def test_a_cluster_message_inside_a_control_message_has_a_wrapper():
    message = ControlMessage(7, "clusterMessage", ClusterMessage("stopRequest", cluster_schema.StopRequest("c", 2)))
    assert encode_event(message)[8:].startswith(bytes.fromhex("3080 800107 a180 a980 a080 b880 800163 810102"))
    assert json.loads(jsoncodec.encode(message)) == {
        "rId": 7, "clusterMessage": {"stopRequest": {"clusterName": "c", "version": 2}}}
    assert decode_control(encode_body(message, Encoding.JSON), Encoding.JSON) == message


def test_authentication_events_have_their_own_type():
    request = AuthenticationMessage("authenticationRequest", schema.AuthenticationRequest("BASIC", b"u:\xffp"))
    for encoding in Encoding:
        event = encode_event(request, encoding)
        assert event[4:7] == bytes((0x40 | EventType.AUTHENTICATION, 2, encoding << 5))
        assert decode_authentication(event[8:], encoding) == request
    assert json.loads(jsoncodec.encode(request))["authenticationRequest"]["data"] == "dTr/cA=="


@pytest.mark.parametrize(("value", "hexadecimal"), [
    (0, "00"), (127, "7f"), (128, "0080"), (-1, "ff"), (-128, "80"), (-129, "ff7f"), (255, "00ff"), (256, "0100"),
    (-(1 << 31), "80000000"), ((1 << 31) - 1, "7fffffff"),
])
def test_integers_have_the_shortest_encoding(value, hexadecimal):
    raw = ber.encode(schema.Status(code=value))
    assert bytes((0x81, len(hexadecimal) // 2)) + bytes.fromhex(hexadecimal) in raw
    assert ber.decode(schema.Status, raw).code == value


def test_unsigned_integers_with_the_top_bit_have_a_leading_zero():
    raw = ber.encode(schema.SubQueueIdInfo(0xFFFFFFFF, ""))
    assert raw == bytes.fromhex("3080 8005 00ffffffff 8100 0000")
    assert ber.encode(schema.RoutingConfiguration((1 << 64) - 1)).hex() == "3080800900ffffffffffffffff0000"


def test_an_unsigned_integer_without_its_leading_zero_is_decoded():
    """The original reads it the same way."""
    assert ber.decode(schema.SubQueueIdInfo, bytes.fromhex("3080 8004 fffffff6 0000")).sub_id == 0xFFFFFFF6


@pytest.mark.parametrize("size", [0, 127, 128, 255, 256, 70000])
def test_strings_are_decoded_with_every_form_of_length(size):
    message = schema.AdminCommand("x" * size)
    assert ber.decode(schema.AdminCommand, ber.encode(message)) == message


def with_definite_lengths(raw):
    """Convert BER to definite lengths."""
    def convert(pos):
        tag = raw[pos:pos + 1]
        if raw[pos + 1] != 0x80:
            size = raw[pos + 1]
            head = 2
            if size > 0x80:
                head += size & 0x7F
                size = int.from_bytes(raw[pos + 2:pos + head], "big")
            return raw[pos:pos + head + size], pos + head + size
        pos, parts = pos + 2, []
        while raw[pos:pos + 2] != b"\0\0":
            part, pos = convert(pos)
            parts.append(part)
        body = b"".join(parts)
        length = bytes((len(body),)) if len(body) < 128 else b"\x82" + len(body).to_bytes(2, "big")
        return tag + length + body, pos + 2
    return convert(0)[0]


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".bin"], ids=name_of)
def test_messages_with_definite_lengths_are_decoded(path):
    for event in good_events(path):
        if event.kind == EventType.CONTROL and event.encoding == Encoding.BER:
            decode = decode_negotiation if event.first_control else decode_control
            assert decode(with_definite_lengths(event.body), Encoding.BER) == decode(event.body, Encoding.BER)


UNKNOWN_FIELDS = ["9e0101", "9d00", "be80 800101 a080 0000 0000", "be03 800101", "9f87ffffff7f 0105",
                  "bf8701 80 0000", "9e8103 616263"]


@pytest.mark.parametrize("unknown", UNKNOWN_FIELDS)
@pytest.mark.parametrize("place", [2, 5, 7, 9, 11])
def test_unknown_fields_are_skipped_at_every_position(unknown, place):
    """Newer peers send more fields: after the sequence's head, its rId, the choice's head, the selection's head, its
    end."""
    raw = DISCONNECT[:place] + bytes.fromhex(unknown) + DISCONNECT[place:]
    assert decode_control(raw, Encoding.BER) == ControlMessage(3, "disconnect", schema.Disconnect())


@pytest.mark.parametrize("hint", ["9f87ffffff7f 0105"])
def test_the_length_hint_of_an_array_is_skipped(hint):
    raw = ber.encode(CONFIGURE)
    head = bytes.fromhex("a1803080800101")
    assert raw.count(head) == 1
    assert ber.decode(ControlMessage, raw.replace(head, head[:2] + bytes.fromhex(hint) + head[2:])) == CONFIGURE


def test_fields_are_decoded_in_any_order_and_a_repeated_field_has_its_last_value():
    raw = bytes.fromhex("3080 8203 616263 810105 810106 8001fb 0000")
    assert ber.decode(schema.Status, raw) == schema.Status(Category.E_NOT_SUPPORTED, 6, "abc")


def test_missing_fields_have_their_defaults():
    """The official client accepts an empty response of each kind; so does this one."""
    empty = decode_negotiation(bytes.fromhex("3080 a080 a180 0000 0000 0000"), Encoding.BER)
    assert empty == NegotiationMessage("brokerResponse", schema.BrokerResponse())
    assert empty.value.result.category == Category.E_SUCCESS
    assert (empty.value.heartbeat_interval_ms, empty.value.max_missed_heartbeats) == (3000, 10)
    assert decode_negotiation(b'{"brokerResponse":{}}', Encoding.JSON) == empty
    assert schema.OpenQueueResponse().deduplication_time_ms == 300000
    assert schema.ConsumerInfo().consumer_priority == -2147483648


def test_bytes_after_the_message_are_ignored_and_padding_may_be_missing():
    wanted = ControlMessage(3, "disconnect", schema.Disconnect())
    for tail in (b"", b"\x01", b"\x04\x04\x04\x04", b"anything", DISCONNECT):
        assert decode_control(DISCONNECT + tail, Encoding.BER) == wanted
    for tail in (b"", b"\x01", b"\x04" * 4, b"\x00"):
        assert decode_control(b'{"rId":3,"disconnect":{}}' + tail, Encoding.JSON) == wanted


def test_a_message_with_an_unknown_selection_has_no_choice_and_its_request_id():
    """The request can be answered before its timeout."""
    raw = bytes.fromhex("3080 800109 a180 bc80 800101 0000 0000 0000")
    assert decode_control(raw, Encoding.BER) == ControlMessage(9, "", None)
    assert decode_control(b'{"rId":9,"danceQueue":{"a":[1,{}]}}', Encoding.JSON) == ControlMessage(9, "", None)
    assert decode_control(b'{"rId":9}', Encoding.JSON) == ControlMessage(9, "", None)


@pytest.mark.parametrize("cut", range(len(DISCONNECT)))
def test_a_truncated_message_is_refused(cut):
    with pytest.raises(PeerError):
        decode_control(DISCONNECT[:cut], Encoding.BER)


@pytest.mark.parametrize(("raw", "why"), [
    ("", "not a BER sequence"),
    ("ff80", "not a BER sequence"),
    ("3080 8000 0000", "wrong length"),
    ("3080 8005 0000000001 0000", "wrong length"),
    ("3080 8080 0000 0000", "indefinite"),
    ("3080 a080 0000 0000", "primitive where constructed"),
    ("3080 8101 00 0000", "primitive where constructed"),
    ("3080 8089 ffffffffffffffffff 0000", "length too long"),
    ("3080 8004 01", "longer than its container"),
    ("3003 800401", "longer than its container"),
    ("3080 9fffffffffffffffffff01 00 0000", "tag too long"),
])
def test_malformed_messages_are_refused_with_a_reason(raw, why):
    with pytest.raises(PeerError, match=why) as caught:
        decode_control(bytes.fromhex(raw), Encoding.BER)
    assert not caught.value.fatal


@pytest.mark.parametrize(("cls", "raw"), [
    (schema.Status, "3080 800101 0000"),  # category 1 does not exist
    (schema.CloseQueue, "3080 81020000 0000"),  # a boolean of two bytes
    (schema.SubQueueIdInfo, "3080 80050100000000 0000"),  # beyond 32 bits
    (schema.RoutingConfiguration, "3080 8009010000000000000000 0000"),  # beyond 64 bits
])
def test_values_outside_their_type_are_refused(cls, raw):
    with pytest.raises(PeerError):
        ber.decode(cls, bytes.fromhex(raw))


@pytest.mark.parametrize("raw", [
    bytes.fromhex("3080") + b"\xbe\x80" * 100_000,  # unknown fields
    bytes.fromhex("3080 a180 a980 a080") + b"\xa0\x80" * 100_000,
    b'{"x":' + b"[" * 100_000,
    b'{"x":' * 100_000,
])
def test_the_nesting_of_messages_is_limited(raw):
    """The depth of the stack has a limit that the peer cannot exceed."""
    with pytest.raises(PeerError):
        decode_control(raw, Encoding.JSON if raw[:1] == b"{" else Encoding.BER)


def test_text_that_is_not_utf8_is_decoded_with_replacement_characters():
    """A client whose process name is not UTF-8 can connect."""
    assert ber.decode(schema.AdminCommand, b"\x30\x80\x80\x02a\xff\x00\x00").command == "a\ufffd"


# -- JSON --------------------------------------------------------------------------------------------------------


def test_json_of_the_java_sdk_is_decoded():
    text = (b'{"rId":1,"openQueue":{"handleParameters":{"uri":"bmq:\\/\\/bmq.test.mem.priority\\/q1","qId":0,'
            b'"flags":4,"readCount":0,"writeCount":1,"adminCount":0}}}')
    assert decode_control(text, Encoding.JSON) == OPEN
    assert jsoncodec.encode(OPEN) == text


def test_json_omits_empty_arrays_and_accepts_both_forms():
    message = ControlMessage(4, "configureStream", schema.ConfigureStream(0, schema.StreamParameters()))
    text = b'{"rId":4,"configureStream":{"qId":0,"streamParameters":{"appId":"__default"%s}}}'
    assert jsoncodec.encode(message) == text % b""
    assert decode_control(text % b',"subscriptions":[]', Encoding.JSON) == message


def test_json_accepts_enumerations_by_name_and_by_number():
    for value in (b'"E_REFUSED"', b"-6"):
        message = decode_control(b'{"rId":1,"status":{"category":%s}}' % value, Encoding.JSON)
        assert message.value.category is Category.E_REFUSED


def test_json_accepts_any_order_spaces_unknown_keys_and_nulls():
    text = b' { "future": [1.5e3, null], "disconnect" : {"why": "tea"}, "rId" : 3 } '
    assert decode_control(text, Encoding.JSON) == ControlMessage(3, "disconnect", schema.Disconnect())
    assert decode_control(b'{"rId":null,"disconnect":{}}', Encoding.JSON).r_id is None


@pytest.mark.parametrize("text", [
    b"", b"{", b"[]", b"1", b'"x"', b"null", b"{}x", b"\xff\xfe", b'{"rId":"1"}', b'{"rId":1.0}', b'{"rId":true}',
    b'{"rId":2147483648}', b'{"rId":NaN}', b'{"status":{"category":"E_TEA"}}', b'{"status":{"category":3}}',
    b'{"status":{"category":[]}}', b'{"status":[]}', b'{"status":{"message":1}}', b'{"closeQueue":{"isFinal":1}}',
    b'{"configureStream":{"streamParameters":{"subscriptions":{}}}}', b'{"rId":' + b"9" * 5000 + b"}",
    b'{"configureStream":{"streamParameters":{"subscriptions":[1]}}}',
])
def test_malformed_json_messages_are_refused(text):
    with pytest.raises(PeerError):
        decode_control(text, Encoding.JSON)


def test_invalid_base64_is_refused():
    with pytest.raises(PeerError, match="base64"):
        decode_authentication(b'{"authenticationRequest":{"mechanism":"BASIC","data":"*"}}', Encoding.JSON)


def test_a_lone_surrogate_in_json_becomes_a_replacement_character():
    message = decode_control(b'{"rId":1,"adminCommand":{"command":"\\ud83d\\ude00 \\ud83d"}}', Encoding.JSON)
    assert message.value.command == "\U0001f600 \ufffd"
    assert encode_event(message, Encoding.BER)


# -- our own mistakes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [
    ControlMessage(1, "", None),
    ControlMessage(1, "danceQueue", schema.Disconnect()),
    ControlMessage(1, "openQueue", schema.Disconnect()),
    ControlMessage(1, "status", schema.Status(message=None)),
])
@pytest.mark.parametrize("encoding", list(Encoding))
def test_encoding_an_invalid_message_is_a_local_error(message, encoding):
    with pytest.raises(LocalError):
        encode_event(message, encoding)


def test_encoding_an_integer_beyond_its_type_is_a_local_error():
    with pytest.raises(LocalError, match="qId"):
        ber.encode(schema.ConfigureStream(1 << 32))


@pytest.mark.parametrize(("specific", "encoding"), [(0, Encoding.BER), (0x20, Encoding.JSON), (0x3F, Encoding.JSON)])
def test_the_encoding_is_read_from_the_top_three_bits(specific, encoding):
    assert encoding_of(specific) is encoding


@pytest.mark.parametrize("specific", [0x40, 0xE0])
def test_an_undefined_encoding_is_refused(specific):
    with pytest.raises(PeerError):
        encoding_of(specific)


def test_wire_names_are_derived_from_the_attribute_names():
    assert [(entry.wire_id, entry.wire_name) for entry in fields_of(schema.QueueHandleParameters)] == list(enumerate(
        ["uri", "qId", "subIdInfo", "flags", "readCount", "writeCount", "adminCount"]))
    assert [entry.wire_name for entry in fields_of(schema.ClientIdentity)] == [
        "protocolVersion", "sdkVersion", "clientType", "processName", "pid", "sessionId", "hostName", "features",
        "clusterName", "clusterNodeId", "sdkLanguage", "guidInfo", "userAgent"]
    assert [entry.wire_name for entry in fields_of(schema.GuidInfo)] == ["clientId", "nanoSecondsFromEpoch"]


def test_selections_have_the_tags_of_the_schema():
    tags = {name: tag for tag, name, _ in choice_of(ControlMessage).selections}
    assert tags["status"] == 0 and tags["clusterMessage"] == 9 and tags["configureStreamResponse"] == 17
    tags = {name: tag for tag, name, _ in choice_of(ClusterMessage).selections}
    assert tags["queueUnAssignmentAdvisory"] == 20 and tags["queueUpdateAdvisory"] == 27 and len(tags) == 11 + 3
    ours = {"metadataLogMessage": 30, "confirmReceipt": 19, "quotaAdvisory": 18}
    assert tags.items() >= ours.items(), "selections of this broker"


def test_the_recordings_are_present():
    assert sum(MALFORMED not in path.name for path in FILES) > 80
