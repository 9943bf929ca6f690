"""Layouts of the binary headers, most significant bit first; docs/layouts.md draws them.

`fast.py` derives the structs of the hot path from these declarations (see `declare.py`); `options.py`, `properties.py`,
`walk.py`, `cluster_schema.py` and `cluster/partition_events.py` derive further ones. A *word* is 4 bytes, a *dword* 8.
Reserved bits are written 0 and ignored by readers.
"""

from __future__ import annotations

from bmqtwist.wire.declare import Layout, number, raw, skip

# fragment: always 0; version: of the protocol, 1
EVENT_HEADER = Layout(
    number(fragment=1, length=31),
    number(version=2, type=6),
    number(header_words=8),
    number(type_specific=8),
    number(_reserved=8),
)

# The start of a message of a PUT or PUSH event. words: of the message, padding included; header_words: 9 or 8;
# flags of a PUT: 1 ACK_REQUESTED, 2 MESSAGE_PROPERTIES; of a PUSH: 1 IMPLICIT_PAYLOAD, 2 MESSAGE_PROPERTIES, 4 OUT_OF_ORDER;
# compression (CAT): 0 none, 1 zlib; guid in a PUT: the GUID, or 0 and a 24-bit correlation id
MESSAGE_START = Layout(
    number(flags=4, words=28),
    number(options_words=24, compression=3, header_words=5),
    number(queue_id=32),
    raw(guid=16),
)

# crc: CRC32-C of the application data as it is here. The last word is absent in a header of 8 words, of a PUSH in one of 7
PUT_HEADER = Layout(*MESSAGE_START.parts, number(crc=32), number(schema_id=16), number(_reserved=16))
PUSH_HEADER = Layout(*MESSAGE_START.parts, number(schema_id=16), number(_reserved=16))

# Before ACK, CONFIRM and REJECT items: words of this header, 1, and of an item, 6
ITEMS_HEADER = Layout(number(header_words=4, item_words=4), skip(3))

# correlation_id: 0 = none
ACK_MESSAGE = Layout(number(_reserved=4, status=4, correlation_id=24), raw(guid=16), number(queue_id=32))

# and REJECT; sub_queue_id: 0 = the default substream
CONFIRM_MESSAGE = Layout(number(queue_id=32), raw(guid=16), number(sub_queue_id=32))

# packed: the option consists of this word, with the value `words`; else `words` is the size, this word included
OPTION_HEADER = Layout(number(type=6, packed=1, type_specific=4, words=21))

# id: of the subscription; poisonous: potentially; attempts: remaining delivery attempts, unless unlimited
SUB_QUEUE_INFO = Layout(number(id=32), number(unlimited=1, poisonous=1, attempts=6), skip(3))

# Extension between brokers of this kind: with the PSN of the message
SUB_QUEUE_INFO_WITH_PSN = Layout(*SUB_QUEUE_INFO.parts, number(lease=32), number(sequence=64))

# header_half: half the bytes of this header, 3; property_header_half: of a PROPERTY; area_words: padding included
PROPERTIES_HEADER = Layout(
    number(_reserved=2, property_header_half=3, header_half=3, area_words=24),
    skip(1),
    number(count=8),
)

PROPERTY_V1 = Layout(number(_reserved1=1, type=5, value_length=26), number(_reserved2=4, name_length=12))

# The new style. name_offset: bytes from the first name
PROPERTY_V2 = Layout(number(_reserved1=1, type=5, name_offset=26), number(_reserved2=4, name_length=12))

# lease: of the primary
RECEIPT = Layout(number(partition_id=32), number(sequence_number=64), number(lease=32))

# Extension, in events of the same types between members that support it. A PSN is the lease of a record and its number in
# the lease. A STORAGE event begins with the PSNs of the record before the first one, of the last one, and of the last
# committed one; JOURNAL, DATA and QLIST records follow as in the sender's files. crc: CRC32-C of these records
RECORD_RUN = Layout(
    number(partition_id=32), number(lease=32),
    number(previous_lease=32), number(previous_sequence=64),
    number(last_lease=32), number(last_sequence=64),
    number(committed_lease=32), number(committed_sequence=64),
    number(journal_bytes=32), number(data_bytes=32), number(qlist_bytes=32), number(crc=32),
)

# A REPLICATION_RECEIPT: PSNs up to which the sender's log equals the primary's, and up to which it is durable; received
# parts of an image; milliseconds of the primary's clock, from its last keepalive
REPLICA_RECEIPT = Layout(
    number(partition_id=32), number(lease=32),
    number(matched_lease=32), number(matched_sequence=64),
    number(durable_lease=32), number(durable_sequence=64),
    number(parts=32), number(stamp=64),
)

# header_words: 8; type: 1 SNAPSHOT, 2 UPDATE, 3 COMMIT, 4 ACK; body_words: of the padded message and its CRC; term: of the
# elector; timestamp: seconds since the epoch
CLUSTER_STATE_HEADER = Layout(
    number(header_words=4, type=4),
    skip(3),
    number(_reserved=4, body_words=28),
    number(term=64),
    number(sequence_number=64),
    number(timestamp=64),
)
