"""Where every bit of the binary headers is: the truth that `fast.py` is tested against.

Declared with construct, drawn beside it, most significant bit first. Tools and tests parse with these; the broker
never does, a parse costs some 15 us. A *word* is 4 bytes, a *dword* 8. Reserved bits are written 0 and not looked at.
"""

from __future__ import annotations

from construct import (  # type: ignore[import-untyped]
    BitsInteger,
    BitStruct,
    Bytes,
    Bytewise,
    Flag,
    Int32ub,
    Int64ub,
    Padding,
    Struct,
)

_SIXTEEN_BYTES = Bytewise(Bytes(16))

#  0                   1                   2                   3
#  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
# +-+-------------------------------------------------------------+
# |F|                     length of the event                     |   F: fragment, always 0
# +---+-----------+---------------+---------------+---------------+
# |PV |   type    | header words  | type specific |   reserved    |   PV: protocol version, 1
# +---+-----------+---------------+---------------+---------------+
EVENT_HEADER = BitStruct(
    "fragment" / Flag,
    "length" / BitsInteger(31),
    "version" / BitsInteger(2),
    "type" / BitsInteger(6),
    "header_words" / BitsInteger(8),
    "type_specific" / BitsInteger(8),
    Padding(8),
)

#  0                   1                   2                   3
#  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
# +-------+-------------------------------------------------------+
# | flags |          words of the message, padding included       |   1 ACK_REQUESTED, 2 MESSAGE_PROPERTIES
# +-------+---------------------------------------+-----+---------+
# |                 words of the options          | CAT |  header |   CAT: 0 none, 1 zlib; header: its words, 9
# +-----------------------------------------------+-----+---------+
# |                           queue id                            |
# +---------------------------------------------------------------+
# |                 GUID, or 0 and a 24-bit correlation id        |
# |                          (16 bytes)                           |
# +---------------------------------------------------------------+
# |          CRC32-C of the application data as it is here        |
# +-------------------------------+-------------------------------+
# |        schema wire id         |           reserved            |   absent in a header of 8 words
# +-------------------------------+-------------------------------+
PUT_HEADER = BitStruct(
    "flags" / BitsInteger(4),
    "words" / BitsInteger(28),
    "options_words" / BitsInteger(24),
    "compression" / BitsInteger(3),
    "header_words" / BitsInteger(5),
    "queue_id" / BitsInteger(32),
    "guid" / _SIXTEEN_BYTES,
    "crc" / BitsInteger(32),
    "schema_id" / BitsInteger(16),
    Padding(16),
)

# +-------+-------------------------------------------------------+
# | flags |          words of the message, padding included       |   1 IMPLICIT_PAYLOAD, 2 MESSAGE_PROPERTIES,
# +-------+---------------------------------------+-----+---------+   4 OUT_OF_ORDER
# |                 words of the options          | CAT |  header |   header: 8 words
# +-----------------------------------------------+-----+---------+
# |                           queue id                            |
# +---------------------------------------------------------------+
# |                        GUID (16 bytes)                        |
# +-------------------------------+-------------------------------+
# |        schema wire id         |           reserved            |   absent in a header of 7 words
# +-------------------------------+-------------------------------+
PUSH_HEADER = BitStruct(
    "flags" / BitsInteger(4),
    "words" / BitsInteger(28),
    "options_words" / BitsInteger(24),
    "compression" / BitsInteger(3),
    "header_words" / BitsInteger(5),
    "queue_id" / BitsInteger(32),
    "guid" / _SIXTEEN_BYTES,
    "schema_id" / BitsInteger(16),
    Padding(16),
)

# +-------+-------+-----------------------------------------------+
# |header | item  |                   reserved                    |   words of this header, 1, and of an item, 6
# +-------+-------+-----------------------------------------------+   stands before ACK, CONFIRM and REJECT items
ITEMS_HEADER = BitStruct(
    "header_words" / BitsInteger(4),
    "item_words" / BitsInteger(4),
    Padding(24),
)

# +-------+-------+-----------------------------------------------+
# |  res  |status |          correlation id, 0 = none             |
# +-------+-------+-----------------------------------------------+
# |                        GUID (16 bytes)                        |
# +---------------------------------------------------------------+
# |                           queue id                            |
# +---------------------------------------------------------------+
ACK_MESSAGE = BitStruct(
    Padding(4),
    "status" / BitsInteger(4),
    "correlation_id" / BitsInteger(24),
    "guid" / _SIXTEEN_BYTES,
    "queue_id" / BitsInteger(32),
)

# +---------------------------------------------------------------+
# |                           queue id                            |
# +---------------------------------------------------------------+
# |                        GUID (16 bytes)                        |
# +---------------------------------------------------------------+
# |                         sub-queue id                          |   0 = the default substream
# +---------------------------------------------------------------+
CONFIRM_MESSAGE = Struct("queue_id" / Int32ub, "guid" / Bytes(16), "sub_queue_id" / Int32ub)  # and REJECT

# +-----------+-+-------+-----------------------------------------+
# |   type    |P|  spec |   words with this one, or packed value  |   P: packed, the option is this word only
# +-----------+-+-------+-----------------------------------------+
OPTION_HEADER = BitStruct(
    "type" / BitsInteger(6),
    "packed" / Flag,
    "type_specific" / BitsInteger(4),
    "words" / BitsInteger(21),
)

# +---------------------------------------------------------------+
# |                        subscription id                        |
# +-+-+-----------+-----------------------------------------------+
# |U|P| attempts  |                   reserved                    |   U: unlimited, P: potentially poisonous
# +-+-+-----------+-----------------------------------------------+
SUB_QUEUE_INFO = BitStruct(
    "id" / BitsInteger(32),
    "unlimited" / Flag,
    "poisonous" / Flag,
    "attempts" / BitsInteger(6),
    Padding(24),
)

# +---+-----+-----+-----------------------------------------------+
# |res|PHS/2|HS/2 |   words of the whole area, padding included   |   HS: bytes of this header, 6; PHS: of one below
# +---+-----+-----+---------------+-------------------------------+
# |   reserved    |     count     |
# +---------------+---------------+
PROPERTIES_HEADER = BitStruct(
    Padding(2),
    "property_header_half" / BitsInteger(3),
    "header_half" / BitsInteger(3),
    "area_words" / BitsInteger(24),
    Padding(8),
    "count" / BitsInteger(8),
)

# +-+---------+---------------------------------------------------+
# |r|  type   |     length of the value (26)                      |
# +-+-----+---+-------------------+-------------------------------+
# |  res  |    name length (12)   |
# +-------+-----------------------+
PROPERTY_V1 = BitStruct(
    Padding(1),
    "type" / BitsInteger(5),
    "value_length" / BitsInteger(26),
    Padding(4),
    "name_length" / BitsInteger(12),
)

# The same with another meaning of X: where the name begins, counted from the first name.
PROPERTY_V2 = BitStruct(
    Padding(1),
    "type" / BitsInteger(5),
    "name_offset" / BitsInteger(26),
    Padding(4),
    "name_length" / BitsInteger(12),
)

# +---------+-----------------------------------------------------+
# |  flags  |          words of the message, header included      |   1 RECEIPT_REQUESTED
# +---+---+-+-----+---------------+-------------------------------+
# |res| SV|header |     type      |         partition id          |   SV: storage version, 1; header: 3 words
# +---+---+-------+---------------+-------------------------------+
# |               place of the record in the journal, in words    |
# +---------------------------------------------------------------+
STORAGE_HEADER = BitStruct(
    "flags" / BitsInteger(5),
    "words" / BitsInteger(27),
    Padding(2),
    "version" / BitsInteger(2),
    "header_words" / BitsInteger(4),
    "type" / BitsInteger(8),
    "partition_id" / BitsInteger(16),
    "journal_words" / BitsInteger(32),
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
RECOVERY_HEADER = BitStruct(
    "final" / Flag,
    Padding(3),
    "words" / BitsInteger(28),
    Padding(8),
    "header_words" / BitsInteger(4),
    "file" / BitsInteger(4),
    "partition_id" / BitsInteger(16),
    "number" / BitsInteger(32),
    "digest" / _SIXTEEN_BYTES,
)

# +---------------------------------------------------------------+
# |                         partition id                          |
# +---------------------------------------------------------------+
# |                  sequence number (high, low)                  |
# |                                                               |
# +---------------------------------------------------------------+
# |                       primary's lease id                      |
# +---------------------------------------------------------------+
RECEIPT = Struct("partition_id" / Int32ub, "sequence_number" / Int64ub, "lease" / Int32ub)

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
CLUSTER_STATE_HEADER = BitStruct(
    "header_words" / BitsInteger(4),
    "type" / BitsInteger(4),
    Padding(24),
    Padding(4),
    "body_words" / BitsInteger(28),
    "term" / BitsInteger(64),
    "sequence_number" / BitsInteger(64),
    "timestamp" / BitsInteger(64),
)
