"""Where every bit of the binary headers is: declared once, drawn beside it, most significant bit first.

The structs of the hot path (`fast.py`) are derived from these declarations, and whoever is not in a hurry parses with
them (`declare.py` says how both follow). A *word* is 4 bytes, a *dword* 8. Reserved bits are written 0 and not looked at.
"""

from __future__ import annotations

from bmqtwist.wire.declare import Layout, number, raw, skip

#  0                   1                   2                   3
#  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
# +-+-------------------------------------------------------------+
# |F|                     length of the event                     |   F: fragment, always 0
# +---+-----------+---------------+---------------+---------------+
# |PV |   type    | header words  | type specific |   reserved    |   PV: protocol version, 1
# +---+-----------+---------------+---------------+---------------+
EVENT_HEADER = Layout(
    number(fragment=1, length=31),
    number(version=2, type=6),
    number(header_words=8),
    number(type_specific=8),
    number(_reserved=8),
)

# What a message of a PUT and one of a PUSH event begin with:
#
#  0                   1                   2                   3
#  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
# +-------+-------------------------------------------------------+
# | flags |          words of the message, padding included       |   PUT: 1 ACK_REQUESTED, 2 MESSAGE_PROPERTIES
# +-------+---------------------------------------+-----+---------+   PUSH: 1 IMPLICIT_PAYLOAD, 2 MESSAGE_PROPERTIES,
# |                 words of the options          | CAT |  header |   4 OUT_OF_ORDER
# +-----------------------------------------------+-----+---------+   CAT: 0 none, 1 zlib; header: its words, 9 or 8
# |                           queue id                            |
# +---------------------------------------------------------------+
# |                 GUID, or 0 and a 24-bit correlation id        |   correlation id: only in a PUT
# |                          (16 bytes)                           |
# +---------------------------------------------------------------+
MESSAGE_START = Layout(
    number(flags=4, words=28),
    number(options_words=24, compression=3, header_words=5),
    number(queue_id=32),
    raw(guid=16),
)

# and what follows in a PUT
# +---------------------------------------------------------------+
# |          CRC32-C of the application data as it is here        |
# +-------------------------------+-------------------------------+
# |        schema wire id         |           reserved            |   absent in a header of 8 words
# +-------------------------------+-------------------------------+
PUT_HEADER = Layout(*MESSAGE_START.parts, number(crc=32), number(schema_id=16), number(_reserved=16))

# and in a PUSH
# +-------------------------------+-------------------------------+
# |        schema wire id         |           reserved            |   absent in a header of 7 words
# +-------------------------------+-------------------------------+
PUSH_HEADER = Layout(*MESSAGE_START.parts, number(schema_id=16), number(_reserved=16))

# +-------+-------+-----------------------------------------------+
# |header | item  |                   reserved                    |   words of this header, 1, and of an item, 6
# +-------+-------+-----------------------------------------------+   stands before ACK, CONFIRM and REJECT items
ITEMS_HEADER = Layout(number(header_words=4, item_words=4), skip(3))

# +-------+-------+-----------------------------------------------+
# |  res  |status |          correlation id, 0 = none             |
# +-------+-------+-----------------------------------------------+
# |                        GUID (16 bytes)                        |
# +---------------------------------------------------------------+
# |                           queue id                            |
# +---------------------------------------------------------------+
ACK_MESSAGE = Layout(number(_reserved=4, status=4, correlation_id=24), raw(guid=16), number(queue_id=32))

# +---------------------------------------------------------------+
# |                           queue id                            |
# +---------------------------------------------------------------+
# |                        GUID (16 bytes)                        |
# +---------------------------------------------------------------+
# |                         sub-queue id                          |   0 = the default substream
# +---------------------------------------------------------------+
CONFIRM_MESSAGE = Layout(number(queue_id=32), raw(guid=16), number(sub_queue_id=32))  # and REJECT

# +-----------+-+-------+-----------------------------------------+
# |   type    |P|  spec |   words with this one, or packed value  |   P: packed, the option is this word only
# +-----------+-+-------+-----------------------------------------+
OPTION_HEADER = Layout(number(type=6, packed=1, type_specific=4, words=21))

# +---------------------------------------------------------------+
# |                        subscription id                        |
# +-+-+-----------+-----------------------------------------------+
# |U|P| attempts  |                   reserved                    |   U: unlimited, P: potentially poisonous
# +-+-+-----------+-----------------------------------------------+
SUB_QUEUE_INFO = Layout(number(id=32), number(unlimited=1, poisonous=1, attempts=6), skip(3))

# +---------------------------------------------------------------+
# |                        subscription id                        |
# +-+-+-----------+-----------------------------------------------+
# |U|P| attempts  |                   reserved                    |   as above; ours, between brokers that know each other
# +-+-+-----------+-----------------------------------------------+
# |                             lease                             |   where the message is stored
# +---------------------------------------------------------------+
# |                        sequence number                        |
# |                                                               |
# +---------------------------------------------------------------+
PLACED_SUB_QUEUE_INFO = Layout(number(id=32), number(unlimited=1, poisonous=1, attempts=6), skip(3), number(lease=32),
                               number(sequence=64))

# +---+-----+-----+-----------------------------------------------+
# |res|PHS/2|HS/2 |   words of the whole area, padding included   |   HS: bytes of this header, 6; PHS: of one below
# +---+-----+-----+---------------+-------------------------------+
# |   reserved    |     count     |
# +---------------+---------------+
PROPERTIES_HEADER = Layout(
    number(_reserved=2, property_header_half=3, header_half=3, area_words=24),
    skip(1),
    number(count=8),
)

# +-+---------+---------------------------------------------------+
# |r|  type   |     length of the value (26)                      |
# +-+-----+---+-------------------+-------------------------------+
# |  res  |    name length (12)   |
# +-------+-----------------------+
PROPERTY_V1 = Layout(number(_reserved1=1, type=5, value_length=26), number(_reserved2=4, name_length=12))

# The new style keeps there where the name begins, counted from the first name.
PROPERTY_V2 = Layout(number(_reserved1=1, type=5, name_offset=26), number(_reserved2=4, name_length=12))

# +---------+-----------------------------------------------------+
# |  flags  |          words of the message, header included      |   1 RECEIPT_REQUESTED
# +---+---+-+-----+---------------+-------------------------------+
# |res| SV|header |     type      |         partition id          |   SV: storage version, 1; header: 3 words
# +---+---+-------+---------------+-------------------------------+
# |               place of the record in the journal, in words    |
# +---------------------------------------------------------------+
STORAGE_HEADER = Layout(
    number(flags=5, words=27),
    number(_reserved=2, version=2, header_words=4),
    number(type=8),
    number(partition_id=16),
    number(journal_words=32),
)

# +-+-----+-------------------------------------------------------+
# |F| res |          words of the message, header included        |   F: last chunk of its file
# +-+-----+-------+-------+-------+-------------------------------+
# |   reserved    |header | file  |         partition id          |   header: 7 words; file: 1 data, 2 journal, 3 qlist
# +---------------+-------+-------+-------------------------------+
# |                         chunk number                          |
# +---------------------------------------------------------------+
# |                  MD5 of the chunk (16 bytes)                  |
# +---------------------------------------------------------------+
RECOVERY_HEADER = Layout(
    number(final=1, _reserved=3, words=28),
    skip(1),
    number(header_words=4, file=4),
    number(partition_id=16),
    number(number=32),
    raw(digest=16),
)

# +---------------------------------------------------------------+
# |                         partition id                          |
# +---------------------------------------------------------------+
# |                  sequence number (high, low)                  |
# |                                                               |
# +---------------------------------------------------------------+
# |                       primary's lease id                      |
# +---------------------------------------------------------------+
RECEIPT = Layout(number(partition_id=32), number(sequence_number=64), number(lease=32))

# Ours, in events of the same types between members that know our extensions. A PSN is the lease of a record and its number
# in it. What a STORAGE event begins with; JOURNAL, DATA and QLIST records follow as they lie in the sender's files:
#
# +---------------------------------------------------------------+
# |                         partition id                          |
# +---------------------------------------------------------------+
# |                       primary's lease id                      |
# +---------------------------------------------------------------+
# |            PSN of the record before the first one             |
# |                          (12 bytes)                           |
# +---------------------------------------------------------------+
# |                     PSN of the last one                       |
# |                          (12 bytes)                           |
# +---------------------------------------------------------------+
# |          PSN of the last one known to be committed            |
# |                          (12 bytes)                           |
# +---------------------------------------------------------------+
# |                   bytes of JOURNAL records                    |
# +---------------------------------------------------------------+
# |                     bytes of DATA records                     |
# +---------------------------------------------------------------+
# |                     bytes of QLIST records                    |
# +---------------------------------------------------------------+
# |                   CRC32-C of all of these bytes               |
# +---------------------------------------------------------------+
RECORD_RUN = Layout(
    number(partition_id=32), number(lease=32),
    number(previous_lease=32), number(previous_sequence=64),
    number(last_lease=32), number(last_sequence=64),
    number(committed_lease=32), number(committed_sequence=64),
    number(journal_bytes=32), number(data_bytes=32), number(qlist_bytes=32), number(crc=32),
)

# and a REPLICATION_RECEIPT:
#
# +---------------------------------------------------------------+
# |                         partition id                          |
# +---------------------------------------------------------------+
# |                       primary's lease id                      |
# +---------------------------------------------------------------+
# |      PSN up to which the sender's log is the primary's        |
# |                          (12 bytes)                           |
# +---------------------------------------------------------------+
# |                PSN up to which it is safe                     |
# |                          (12 bytes)                           |
# +---------------------------------------------------------------+
# |                  parts of an image that were taken            |
# +---------------------------------------------------------------+
# |   milliseconds of the primary's clock, of its last keepalive  |
# |                                                               |
# +---------------------------------------------------------------+
TAKEN_RECEIPT = Layout(
    number(partition_id=32), number(lease=32),
    number(matched_lease=32), number(matched_sequence=64),
    number(durable_lease=32), number(durable_sequence=64),
    number(parts=32), number(stamp=64),
)

# +-------+-------+-----------------------------------------------+
# |header | type  |                   reserved                    |   header: 8 words; 1 SNAPSHOT, 2 UPDATE, 3 COMMIT,
# +-------+-------+-----------------------------------------------+   4 ACK
# |  res  |         words of the padded message and its CRC       |
# +-------+-------------------------------------------------------+
# |                         elector term                          |
# |                                                               |
# +---------------------------------------------------------------+
# |                        sequence number                        |
# |                                                               |
# +---------------------------------------------------------------+
# |                    seconds since the epoch                    |
# |                                                               |
# +---------------------------------------------------------------+
CLUSTER_STATE_HEADER = Layout(
    number(header_words=4, type=4),
    skip(3),
    number(_reserved=4, body_words=28),
    number(term=64),
    number(sequence_number=64),
    number(timestamp=64),
)
