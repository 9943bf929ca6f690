"""Data events and options: encoding, decoding, and the valid messages before a malformed one."""

import pytest
from kit import broker_events as cluster_events
from kit import data_events as events
from kit.broker_events import (
    ClusterStateRecord,
    LedgerRecordType,
    Receipt,
    RecoveryChunk,
    RecoveryFile,
    StorageMessage,
    StorageType,
)
from kit.data_events import AckMessage, ConfirmMessage, PushMessage, PutMessage, encode_options

from bmqtwist.errors import LocalError, PeerError
from bmqtwist.wire import cluster_schema, options
from bmqtwist.wire.fast import CAT_ZLIB, IMPLICIT_PAYLOAD, MESSAGE_PROPERTIES, EventType

GUID = bytes.fromhex("40000000000000dd37e3448fe60cb346")
OTHER = bytes(range(16))


def body_of(decode, event):
    """Decode an event, alone and with other bytes around its body, with equal results."""
    found = decode(event, 8, len(event))
    shifted, error = decode(b"\xff" * 5 + event[8:] + b"\xff" * 9, 5, len(event) - 3)
    assert shifted == found[0] and (error is None) == (found[1] is None)
    return found


def test_a_put_has_the_annotated_bytes():
    event = bytes.fromhex("00000034 42020000 1000000b 00000009 00000000 40000000000000dd37e3448fe60cb346 9a71bb4c"
                          "00000000 68656c6c6f030303")
    assert events.encode_put([PutMessage(0, GUID, b"hello", flags=1)]) == event
    assert body_of(events.decode_put, event) == ([PutMessage(0, GUID, b"hello", 1, 0x9A71BB4C)], None)


def test_an_ack_has_the_annotated_bytes():
    event = bytes.fromhex("00000024 45020000 16000000 00000000") + GUID + bytes(4)
    assert events.encode_ack([AckMessage(0, 0, GUID, 0)]) == event
    assert body_of(events.decode_ack, event) == ([AckMessage(0, 0, GUID, 0)], None)


def test_a_push_and_its_confirm_have_the_annotated_bytes():
    event = bytes.fromhex("0000003c 44020000 0000000d 00000208 00000000") + OTHER + bytes.fromhex(
        "00000000 04000002 00000001 6f6c642d6f7074696f6e 0202")
    push = PushMessage(0, OTHER, b"old-option", options=encode_options([options.SubQueueIds((1,))]))
    assert events.encode_push([push]) == event
    assert body_of(events.decode_push, event) == ([push], None)
    event = bytes.fromhex("00000024 43020000 16000000 00000000") + OTHER + bytes(4)
    assert events.encode_confirm([ConfirmMessage(0, OTHER, 0)]) == event
    assert events.encode_reject([ConfirmMessage(0, OTHER, 0)])[4] == 0x4D
    assert body_of(events.decode_confirm, event) == ([ConfirmMessage(0, OTHER, 0)], None)


def test_a_correlation_id_is_encoded_in_place_of_the_guid():
    put = PutMessage(0, b"\0\1\2\3" + bytes(12), b"x")
    assert put.correlation_id == 0x010203


def two_puts(**second):
    first = PutMessage(1, GUID, b"first", 1)
    return events.encode_put([first, PutMessage(**{"queue_id": 2, "guid": OTHER, "data": b"second", **second})])


SECOND = 8 + 36 + 8  # offset of the second message


@pytest.mark.parametrize(("at", "value", "why"), [
    (SECOND + 3, 0, "longer than the message"),  # MessageWords 0
    (SECOND + 3, 12, "longer than its event"),
    (SECOND + 7, 7, "header of 7 words"),
    (SECOND + 6, 1, None),  # one word of options: the data is shorter then
    (SECOND + 6, 5, "longer than the message"),
    (SECOND + 7, 2 << 5 | 9, "unknown compression"),
    (SECOND + 33, 1, "schema id without properties"),
    (SECOND + 43, 0, "padding"),
    (SECOND + 43, 5, "padding"),
])
def test_a_malformed_put_ends_its_event_after_the_valid_ones(at, value, why):
    event = bytearray(two_puts())
    event[at] = value
    found, error = body_of(events.decode_put, bytes(event))
    assert found[0] == PutMessage(1, GUID, b"first", 1, found[0].crc)
    if why is None:
        assert len(found) == 2 and error is None
    else:
        assert len(found) == 1 and why in str(error) and not error.fatal


def test_a_put_without_data_and_a_put_event_without_messages_are_refused():
    found, error = body_of(events.decode_put, two_puts(data=b""))
    assert len(found) == 1 and "no application data" in str(error)
    found, error = events.decode_put(b"", 0, 0)
    assert not found and "no messages" in str(error)


@pytest.mark.parametrize("cut", range(1, 44))
def test_a_truncated_put_event_has_its_complete_messages(cut):
    event = two_puts()
    found, error = body_of(events.decode_put, event[:-cut])
    assert len(found) == 1
    assert (error is None) == (cut == 44)


def test_puts_with_a_short_header_options_or_properties_are_decoded():
    messages = [PutMessage(1, GUID, b"data", header_words=8), PutMessage(1, OTHER, b"data", MESSAGE_PROPERTIES, schema_id=3),
                PutMessage(0xFFFFFFF5, OTHER, b"data", compression=CAT_ZLIB, options=bytes.fromhex("0400000200000001"))]
    found, error = body_of(events.decode_put, events.encode_put(messages))
    assert error is None
    assert [(each.header_words, each.schema_id, each.options) for each in found] == [
        (8, 0, b""), (9, 3, b""), (9, 0, bytes.fromhex("0400000200000001"))]
    assert events.encode_put(found) == events.encode_put(messages)


def test_unknown_words_of_a_longer_header_are_skipped():
    event = events.encode_put([PutMessage(1, GUID, b"data", options=b"\xaa\xbb\xcc\xdd")])
    wider = event[:8] + bytes.fromhex("0000000c 0000000a") + event[16:]
    [found], error = body_of(events.decode_put, wider)
    assert error is None and found.options == b"" and found.data == b"data"


def test_pushes_without_payload_are_encoded_and_decoded():
    """The original writes four bytes of padding also without a payload."""
    messages = [PushMessage(1, GUID, b"", header_words=7), PushMessage(1, OTHER, b"", IMPLICIT_PAYLOAD)]
    event = events.encode_push(messages)
    assert body_of(events.decode_push, event) == (messages, None)
    bare = bytes.fromhex("00000028 44020000 10000008 00000008 00000001") + OTHER + bytes(4)
    assert events.decode_push(bare, 8, 40) == ([PushMessage(1, OTHER, b"", IMPLICIT_PAYLOAD)], None)
    loaded = events.encode_push([PushMessage(1, OTHER, b"payload", IMPLICIT_PAYLOAD)])
    found, error = events.decode_push(loaded, 8, len(loaded))
    assert not found and "IMPLICIT_PAYLOAD" in str(error)


def test_acks_of_a_larger_item_size_are_decoded():
    event = bytes.fromhex("00000030 45020000 27000000 deadbeef 0712d687") + GUID + bytes.fromhex("00000009 eeeeeeee")
    assert body_of(events.decode_ack, event) == ([AckMessage(7, 0x12D687, GUID, 9)], None)


@pytest.mark.parametrize("decode", [events.decode_ack, events.decode_confirm])
@pytest.mark.parametrize(("body", "count"), [
    (b"", 0), (b"\x16\0\0", 0), (b"\x16\0\0\0", 0), (b"\x06\0\0\0" + bytes(24), 0), (b"\x15\0\0\0" + bytes(24), 0),
    (b"\x16\0\0\0" + bytes(23), 0), (b"\x16\0\0\0" + bytes(47), 1), (b"\xf6\0\0\0", 0),
])
def test_a_malformed_item_is_refused_after_the_valid_ones(decode, body, count):
    found, error = decode(body, 0, len(body))
    assert len(found) == count and isinstance(error, PeerError) and not error.fatal


# -- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "hexadecimal"), [
    (options.SubQueueIds((1,)), "0400000200000001"),
    (options.SubQueueIds((3, 1, 2)), "04000004000000030000000100000002"),
    (options.SubQueueInfos((options.SubQueueInfo(1),)), "0c4000030000000180000000"),
    (options.SubQueueInfos((options.SubQueueInfo(0),), packed=True), "0e000080"),
    (options.SubQueueInfos((options.SubQueueInfo(2, 63, False, 7, 1 << 40), options.SubQueueInfo(3, 0, False, 7, 1 << 40))),
     "0ca0000b" "000000023f000000000000070000010000000000" "0000000300000000000000070000010000000000"),
    (options.SubQueueInfos((options.SubQueueInfo(2, 63, True), options.SubQueueInfo(3, 0))),
     "0c400005000000027f0000000000000300000000"),
    (options.GroupId(b"abc"), "0800000261626301"),
])
def test_options_have_the_documented_bytes(option, hexadecimal):
    assert encode_options([option]).hex() == hexadecimal
    assert options.decode(bytes.fromhex(hexadecimal)) == [option]


def test_several_options_keep_their_order():
    several = [options.SubQueueInfos((options.SubQueueInfo(1, 5),)), options.SubQueueIds((1,)), options.GroupId(b"")]
    assert options.decode(encode_options(several)) == several
    assert options.decode(b"") == []


@pytest.mark.parametrize("area", [
    "10000002 00000000", "00000002 00000000", "04000002 00000001 04000002 00000001", "04000001", "04000000",
    "04000003 00000001", "04", "0c400002 00000001", "0c200002 00000001", "06000001", "08000002 61626300",
    "08000002 61626305", "0800000a" + "61" * 35 + "01",
], ids=lambda area: area[:17])
def test_an_option_area_with_a_malformed_option_is_refused(area):
    with pytest.raises(PeerError):
        options.decode(bytes.fromhex(area))


@pytest.mark.parametrize("attempts", [64, -1])
def test_encoding_delivery_attempts_out_of_range_is_a_local_error(attempts):
    with pytest.raises(LocalError):
        options.rda_byte(options.SubQueueInfo(1, attempts))


# -- between brokers ---------------------------------------------------------------------------------------------

STORED = [StorageMessage(StorageType.DATA, 3, 11, b"r" * 60, b"payload!", 1),
          StorageMessage(StorageType.JOURNAL_OP, 3, 26, b"s" * 60)]
STATE = ClusterStateRecord(LedgerRecordType.COMMIT, 2, 5, 1795234000, cluster_schema.ClusterMessage(
    "leaderAdvisoryCommit", cluster_schema.LeaderAdvisoryCommit(
        cluster_schema.LeaderMessageSequence(2, 5), cluster_schema.LeaderMessageSequence(2, 4))))
CHUNKS = [RecoveryChunk(RecoveryFile.JOURNAL, 1, 0, OTHER, b"abcd"), RecoveryChunk(RecoveryFile.QLIST, 1, 1, OTHER, b"",
                                                                                 True)]


@pytest.mark.parametrize(("messages", "encode", "decode"), [
    (STORED, cluster_events.encode_storage, cluster_events.decode_storage),
    (CHUNKS, cluster_events.encode_recovery, cluster_events.decode_recovery),
    ([STATE, STATE], cluster_events.encode_cluster_state, cluster_events.decode_cluster_state),
], ids=["storage", "recovery", "cluster state"])
def test_truncated_events_between_brokers_have_their_complete_messages(messages, encode, decode):
    event = encode(messages)
    assert body_of(decode, event) == (messages, None)
    last = len(event) - len(encode(messages[:1]))
    for cut in range(1, last):
        found, error = body_of(decode, event[:-cut])
        assert found == messages[:1] and error is not None
    assert decode(event, 8, 8)[1] is not None


def test_a_replication_receipt_is_unchanged_by_a_round_trip():
    event = cluster_events.encode_receipt(Receipt(1, 2 << 32 | 3, 4))
    assert event.hex() == "000000184e020000" + "00000001" + "00000002" + "00000003" + "00000004"
    assert body_of(cluster_events.decode_receipt, event) == ([Receipt(1, 2 << 32 | 3, 4)], None)
    assert cluster_events.decode_receipt(event, 8, 23)[1] is not None


def test_a_partition_sync_event_has_the_body_of_a_storage_event():
    event = cluster_events.encode_storage(STORED, EventType.PARTITION_SYNC)
    assert event[4] == 0x4A and event[8:] == cluster_events.encode_storage(STORED)[8:]


@pytest.mark.parametrize("at", [0, 7, 20, 31, 40, -1])
def test_a_changed_bit_of_a_cluster_state_record_is_detected(at):
    record = bytearray(cluster_events.encode_cluster_state_record(STATE))
    record[at] ^= 0x10
    with pytest.raises(PeerError):
        cluster_events.read_cluster_state_record(bytes(record), 0, len(record))


@pytest.mark.parametrize(("at", "value"), [(3, 0), (3, 17), (3, 255), (4, 0x12), (5, 0), (5, 7)])
def test_an_inconsistent_storage_message_is_refused(at, value):
    event = bytearray(cluster_events.encode_storage(STORED))
    event[8 + at] = value
    found, error = cluster_events.decode_storage(bytes(event), 8, len(event))
    assert not found and error is not None


@pytest.mark.parametrize(("at", "value"), [(3, 6), (3, 255), (5, 0x60 | 2), (5, 0x70), (5, 0x74)])
def test_an_inconsistent_recovery_chunk_is_refused(at, value):
    event = bytearray(cluster_events.encode_recovery(CHUNKS))
    event[8 + at] = value
    found, error = cluster_events.decode_recovery(bytes(event), 8, len(event))
    assert not found and error is not None
