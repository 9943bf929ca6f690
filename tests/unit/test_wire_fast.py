"""The precompiled structs and the drawn declarations say the same of every header."""

import pytest
from construct import Container
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.wire import cluster_events, events, fast, layout, options, properties


def bits(count):
    return st.integers(0, (1 << count) - 1)


ITEM = st.binary(min_size=16, max_size=16)


def same(declaration, packed, /, **fields):
    """`packed` is what the declaration builds from the fields, and parses into them again."""
    assert declaration.build(fields) == packed
    parsed = declaration.parse(packed)
    assert {name: parsed[name] for name in fields} == fields
    assert declaration.sizeof() == len(packed)


@given(bits(6), st.integers(0, 1 << 30), bits(8))
def test_event_header(kind, body, specific):
    same(layout.EVENT_HEADER, fast.event_header(kind, body, specific), fragment=False, length=body + 8, version=1,
         type=kind, header_words=2, type_specific=specific)


@given(bits(4), bits(20), bits(3), bits(32), ITEM, bits(32), bits(16), st.binary(min_size=1, max_size=50))
def test_put_header(flags, option_words, compression, queue_id, guid, crc, schema_id, data):
    option_words &= 3
    area = bytes(4 * option_words)
    packed = fast.put_message(queue_id, guid, data, crc, flags, compression, schema_id, area)
    same(layout.PUT_HEADER, packed[:36], flags=flags, words=len(packed) // 4, options_words=option_words,
         compression=compression, header_words=9, queue_id=queue_id, guid=guid, crc=crc, schema_id=schema_id)
    assert packed[36:] == area + data + fast.PAD4[len(data) % 4]


@given(bits(4), bits(3), bits(32), ITEM, bits(16), st.lists(bits(32), min_size=1, max_size=3), bits(20))
def test_push_header(flags, compression, queue_id, guid, schema_id, ids, padded_words):
    area = fast.sub_queue_ids(ids)
    packed = fast.push_head(queue_id, guid, padded_words * 4, flags, compression, schema_id, area)
    assert packed[32:] == area
    same(layout.PUSH_HEADER, packed[:32], flags=flags, words=8 + len(area) // 4 + padded_words,
         options_words=len(area) // 4, compression=compression, header_words=8, queue_id=queue_id, guid=guid,
         schema_id=schema_id)


def test_header_of_items():
    same(layout.ITEMS_HEADER, fast.ITEMS_HEADER, header_words=1, item_words=6)


@given(bits(4), bits(24), ITEM, bits(32))
def test_ack_message(status, correlation_id, guid, queue_id):
    same(layout.ACK_MESSAGE, fast.ack_message(status, correlation_id, guid, queue_id), status=status,
         correlation_id=correlation_id, guid=guid, queue_id=queue_id)


@given(bits(32), ITEM, bits(32))
def test_confirm_message(queue_id, guid, sub_queue_id):
    same(layout.CONFIRM_MESSAGE, fast.CONFIRM_MESSAGE.pack(queue_id, guid, sub_queue_id), queue_id=queue_id, guid=guid,
         sub_queue_id=sub_queue_id)


@given(st.lists(bits(32), min_size=1, max_size=5))
def test_option_of_subscriptions(ids):
    packed = fast.sub_queue_ids(ids)
    same(layout.OPTION_HEADER, packed[:4], type=1, packed=False, type_specific=0, words=1 + len(ids))
    assert packed[4:] == b"".join(each.to_bytes(4, "big") for each in ids)


@given(bits(32), bits(6), st.booleans(), st.booleans())
def test_option_of_delivery_attempts(id_, attempts, unlimited, poisonous):
    info = options.SubQueueInfo(id_, None if unlimited else attempts, poisonous)
    packed = options.encode([options.SubQueueInfos((info,))])
    same(layout.OPTION_HEADER, packed[:4], type=3, packed=False, type_specific=2, words=3)
    same(layout.SUB_QUEUE_INFO, packed[4:], id=id_, unlimited=unlimited, poisonous=poisonous,
         attempts=0 if unlimited else attempts)


@given(st.text("abc", min_size=1, max_size=9), st.binary(max_size=99), st.booleans())
def test_properties_header(name, value, v2):
    area = properties.encode({name: (properties.PropertyType.BINARY, value)}, v2)
    same(layout.PROPERTIES_HEADER, area[:6], property_header_half=3, header_half=3, area_words=len(area) // 4, count=1)
    if v2:
        same(layout.PROPERTY_V2, area[6:12], type=7, name_offset=0, name_length=len(name))
    else:
        same(layout.PROPERTY_V1, area[6:12], type=7, value_length=len(value), name_length=len(name))


@given(bits(5), st.sampled_from(cluster_events.StorageType), bits(16), bits(32), bits(3))
def test_storage_header(flags, kind, partition_id, journal_words, payload_words):
    message = cluster_events.StorageMessage(kind, partition_id, journal_words, bytes(60), bytes(4 * payload_words),
                                            flags)
    packed = cluster_events.encode_storage([message])
    same(layout.STORAGE_HEADER, packed[8:20], flags=flags, words=18 + payload_words, version=1, header_words=3,
         type=kind, partition_id=partition_id, journal_words=journal_words)


@given(st.booleans(), st.sampled_from(cluster_events.RecoveryFile), bits(16), bits(32), ITEM, bits(3))
def test_recovery_header(final, file, partition_id, number, digest, data_words):
    chunk = cluster_events.RecoveryChunk(file, partition_id, number, digest, bytes(4 * data_words), final)
    packed = cluster_events.encode_recovery([chunk])
    same(layout.RECOVERY_HEADER, packed[8:36], final=final, words=7 + data_words, header_words=7, file=file,
         partition_id=partition_id, number=number, digest=digest)


@given(bits(32), bits(64), bits(32))
def test_receipt(partition_id, sequence_number, lease):
    packed = cluster_events.encode_receipt(cluster_events.Receipt(partition_id, sequence_number, lease))
    same(layout.RECEIPT, packed[8:], partition_id=partition_id, sequence_number=sequence_number, lease=lease)


@given(bits(4), bits(28), bits(64), bits(64), bits(64))
def test_cluster_state_header(kind, body_words, term, sequence_number, timestamp):
    packed = fast.CLUSTER_STATE_HEADER.pack(8 << 4 | kind, body_words, term, sequence_number, timestamp)
    same(layout.CLUSTER_STATE_HEADER, packed, header_words=8, type=kind, body_words=body_words, term=term,
         sequence_number=sequence_number, timestamp=timestamp)


@pytest.mark.parametrize("length", range(17))
def test_padding_is_never_empty_and_holds_its_own_length(length):
    for table, unit in ((fast.PAD4, 4), (fast.PAD8, 8)):
        pad = table[length % unit]
        assert 1 <= len(pad) <= unit and (length + len(pad)) % unit == 0
        assert set(pad) == {len(pad)}


def test_heartbeats():
    assert fast.HEARTBEAT_REQ.hex() == "000000084b020000"
    assert fast.HEARTBEAT_RSP.hex() == "000000084c020000"


def test_hot_helpers_and_objects_write_the_same():
    """Tools write with objects, the broker with helpers: one language."""
    guid = bytes(range(16))
    area = fast.sub_queue_ids([7])
    put = events.Put(3, guid, b"hello", flags=1, options=area)
    assert events.encode_put([put])[8:] == fast.put_message(3, guid, b"hello", 0x9A71BB4C, 1, options=area)
    push = events.Push(3, guid, b"hello", flags=4, options=area)
    assert events.encode_push([push])[8:] == fast.push_head(3, guid, 8, 4, options=area) + b"hello\3\3\3"
    assert isinstance(layout.EVENT_HEADER.parse(fast.HEARTBEAT_REQ), Container)
