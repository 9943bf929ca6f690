"""Binary headers as literal bytes: parsed and built by the declarations, written by the structs and helpers."""

import pytest
from kit import broker_events as cluster_events
from kit import data_events as events
from kit.data_events import encode_options

from bmqtwist.link.outbox import Outbox
from bmqtwist.wire import fast, layout, options, properties

GUID = bytes(range(16, 32))
HEX = GUID.hex()

# name of the declaration, its fields, its bytes
HEADERS = [
    ("EVENT_HEADER", dict(fragment=1, length=0x12345678, version=1, type=11, header_words=2, type_specific=0x20),
     "923456784b022000"),
    ("PUT_HEADER", dict(flags=3, words=0x1234567, options_words=0x010203, compression=1, header_words=9,
                        queue_id=0xFFFFFFFE, guid=GUID, crc=0xC99465AA, schema_id=7),
     f"3123456701020329fffffffe{HEX}c99465aa00070000"),
    ("PUSH_HEADER", dict(flags=4, words=0x1234567, options_words=2, compression=1, header_words=8, queue_id=5, guid=GUID,
                         schema_id=7), f"412345670000022800000005{HEX}00070000"),
    ("ITEMS_HEADER", dict(header_words=1, item_words=6), "16000000"),
    ("ACK_MESSAGE", dict(status=5, correlation_id=0x0A0B0C, guid=GUID, queue_id=3), f"050a0b0c{HEX}00000003"),
    ("CONFIRM_MESSAGE", dict(queue_id=3, guid=GUID, sub_queue_id=9), f"00000003{HEX}00000009"),
    ("OPTION_HEADER", dict(type=3, packed=0, type_specific=2, words=0x012345), "0c412345"),
    ("OPTION_HEADER", dict(type=3, packed=1, type_specific=0, words=0x85), "0e000085"),
    ("SUB_QUEUE_INFO", dict(id=9, unlimited=0, poisonous=1, attempts=5), "0000000945000000"),
    ("SUB_QUEUE_INFO_WITH_PSN", dict(id=9, unlimited=0, poisonous=1, attempts=5, lease=0x0A0B0C0D,
                                   sequence=0x0102030405060708), "00000009450000000a0b0c0d0102030405060708"),
    ("PROPERTIES_HEADER", dict(property_header_half=3, header_half=3, area_words=0x012345, count=4), "1b0123450004"),
    ("PROPERTY_V1", dict(type=6, value_length=0x2345678, name_length=0xABC), "1a3456780abc"),
    ("PROPERTY_V2", dict(type=7, name_offset=0x2345678, name_length=0xABC), "1e3456780abc"),
    ("STORAGE_HEADER", dict(flags=1, words=0x1234567, version=1, header_words=3, type=4, partition_id=0x0102,
                            journal_words=0x0A0B0C0D), "09234567130401020a0b0c0d"),
    ("RECOVERY_HEADER", dict(final=1, words=0x1234567, header_words=7, file=2, partition_id=0x0102, number=0x0A0B0C0D,
                             digest=GUID), f"81234567007201020a0b0c0d{HEX}"),
    ("RECEIPT", dict(partition_id=6, sequence_number=0x0102030405060708, lease=9), "00000006010203040506070800000009"),
    ("CLUSTER_STATE_HEADER", dict(header_words=8, type=2, body_words=0x1234567, term=0x0102030405060708,
                                  sequence_number=0x1112131415161718, timestamp=1795237326),
     "820000000123456701020304050607081112131415161718000000006b0125ce"),
]


@pytest.mark.parametrize(("name", "fields", "recorded"), HEADERS, ids=[each[0] for each in HEADERS])
def test_parser_and_struct_of_each_header_agree_with_the_literal_bytes(name, fields, recorded):
    declared, data = getattr(layout, name, None) or getattr(cluster_events, name), bytes.fromhex(recorded)
    parsed = declared.parse(data)
    assert {field: parsed[field] for field in fields} == fields
    assert declared.build(**fields) == data
    assert declared.struct.pack(*declared.struct.unpack(data)) == data
    values = dict(zip((part for part in declared.parts if not part.code.endswith("x")), declared.struct.unpack(data),
                      strict=True))
    for part, value in values.items():
        for field, _ in part.fields:
            if field in fields:
                assert (value >> declared.shift(field) & declared.mask(field) if part.is_number else value) == fields[field]


def test_an_event_header_has_the_literal_bytes():
    assert fast.event_header(4, 0x123440, 0x20).hex() == "0012344844022000"


def test_a_put_message_has_the_literal_bytes():
    packed = fast.put_message(0xFFFFFFFE, GUID, b"hello", 0x9A71BB4C, 3, 1, 7)
    assert packed.hex() == f"3000000b00000029fffffffe{HEX}9a71bb4c00070000" "68656c6c6f030303"


def test_a_push_message_has_the_literal_bytes():
    packed = events.encode_push([events.PushMessage(5, GUID, b"hello", 4, 1, 7, fast.sub_queue_ids([1, 2]))])
    assert packed.hex() == ("0000003c44020000" f"4000000d0000032800000005{HEX}00070000" "040000030000000100000002"
                            "68656c6c6f030303")


def test_acks_and_confirms_have_the_literal_bytes():
    assert fast.ack_message(5, 0x0A0B0C, GUID, 3).hex() == f"050a0b0c{HEX}00000003"
    assert fast.items_event(3, [fast.CONFIRM_MESSAGE.pack(3, GUID, 9)]).hex() == (
        "0000002443020000" "16000000" f"00000003{HEX}00000009")


def test_options_have_the_literal_bytes():
    infos = options.SubQueueInfos((options.SubQueueInfo(9, 5, True), options.SubQueueInfo(10, None)))
    assert encode_options([infos]).hex() == "0c400005" "0000000945000000" "0000000a80000000"
    assert encode_options([options.SubQueueInfos((options.SubQueueInfo(0, 5),), packed=True)]).hex() == "0e000005"
    assert encode_options([options.SubQueueIds((7, 8))]).hex() == "04000003" "00000007" "00000008"
    assert encode_options([options.GroupId(b"group")]).hex() == "08000003" "67726f7570030303"


@pytest.mark.parametrize(("v2", "first", "second"), [(False, "1c000003", "14000008"), (True, "1c000000", "14000004")])
def test_properties_have_the_literal_bytes(v2, first, second):
    area = properties.encode({"a": (properties.PropertyType.BINARY, b"xyz"),
                              "b": (properties.PropertyType.INT64, 1)}, v2)
    assert area.hex() == ("1b0000080002" f"{first}0001" f"{second}0001" "6178797a" "620000000000000001" "01")
    if v2:
        assert properties.to_v1(area) == properties.encode(properties.decode(area, True), False)


def test_events_between_brokers_have_the_literal_bytes():
    stored = cluster_events.StorageMessage(cluster_events.StorageType.DELETION, 0x0102, 0x0A0B0C0D, bytes(60), b"pay1", 1)
    assert cluster_events.encode_storage([stored])[8:].hex() == "08000013130401020a0b0c0d" + "00" * 60 + "70617931"
    chunk = cluster_events.RecoveryChunk(cluster_events.RecoveryFile.JOURNAL, 0x0102, 0x0A0B0C0D, GUID, b"pay1", True)
    assert cluster_events.encode_recovery([chunk])[8:].hex() == f"80000008007201020a0b0c0d{HEX}70617931"
    receipt = cluster_events.Receipt(6, 0x0102030405060708, 9)
    assert cluster_events.encode_receipt(receipt).hex() == "000000184e020000" "00000006010203040506070800000009"


@pytest.mark.parametrize("length", range(17))
def test_padding_is_not_empty_and_its_bytes_have_its_length(length):
    pad = fast.PAD4[length % 4]
    assert 1 <= len(pad) <= 4 and (length + len(pad)) % 4 == 0
    assert set(pad) == {len(pad)}


def test_heartbeats_have_the_literal_bytes():
    assert fast.HEARTBEAT_REQ.hex() == "000000084b020000"
    assert fast.HEARTBEAT_RSP.hex() == "000000084c020000"


def test_helpers_and_objects_encode_the_same_bytes():
    """Objects of the tools and helpers of broker and client give the same bytes."""
    guid = bytes(range(16))
    area = fast.sub_queue_ids([7])
    put = events.PutMessage(3, guid, b"hello", flags=1)
    assert events.encode_put([put])[8:] == fast.put_message(3, guid, b"hello", 0x9A71BB4C, 1)
    push = events.PushMessage(3, guid, b"hello", flags=4, options=area)
    outbox = Outbox()
    outbox.push(3, guid, 7, 4, 0, 0, b"hello")
    assert events.encode_push([push]) == b"".join(outbox.take_output())
