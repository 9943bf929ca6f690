"""Where every byte of the storage files is: the truth that `records.py` is tested against.

Declared with construct, drawn beside it. Tools and tests parse with these; the broker never does. All numbers are
big-endian, a *word* is 4 bytes, a *dword* 8. Reserved bytes are written 0 and not looked at.
"""

from __future__ import annotations

from typing import Any

from construct import (  # type: ignore[import-untyped]
    Array,
    BitsInteger,
    BitStruct,
    Bytes,
    BytesInteger,
    Computed,
    Const,
    Int8ub,
    Int16ub,
    Int32sb,
    Int32ub,
    Int64ub,
    Padding,
    Struct,
    this,
)

# What every file begins with; after it the header of its kind, then the first record.
#
#  0               4               8   9   10                  20              24                      32
# +---------------+---------------+---+---+-------------------+---------------+-----------------------+
# |     !bmq      |     BMQ!      | V | T |     reserved      |  partitionId  |       reserved        |
# +---------------+---------------+---+---+-------------------+---------------+-----------------------+
#   V: protocol version 2 bits (1), header words 6 bits (8)
#   T: 64-bit writer 1 bit, file type 7 bits (1 DATA, 2 JOURNAL, 3 QLIST)
FILE_HEADER = Struct(
    "magic1" / Const(b"!bmq"),
    "magic2" / Const(b"BMQ!"),
    "bits" / BitStruct(
        "version" / BitsInteger(2),
        "header_words" / BitsInteger(6),
        "wide" / BitsInteger(1),
        "type" / BitsInteger(7),
    ),
    Padding(10),
    "partition_id" / Int32sb,
    Padding(8),
)

#  32  33  34      36                      44
# +---+---+-------+-----------------------+
# | 3 |15 | resvd | mark                  |   mark: words from the start of the file to the sync point that ended the
# +---+---+-------+-----------------------+   last rollover, written last of all; 0 = none (yet)
JOURNAL_FILE_HEADER = Struct("header_words" / Int8ub, "record_words" / Int8ub, Padding(2), "mark" / Int64ub)

#  32  33  34          39  40
# +---+---+-----------+---+
# | 2 | - | fileKey   | - |   fileKey: always null
# +---+---+-----------+---+
DATA_FILE_HEADER = Struct("header_words" / Int8ub, Padding(1), "file_key" / Bytes(5), Padding(1))

#  32  33          36
# +---+-----------+
# | 1 | reserved  |
# +---+-----------+
QLIST_FILE_HEADER = Struct("header_words" / Int8ub, Padding(3))

# Journal records: 60 bytes each, the same at both ends.
#
#  0       2                       8               12                      20                        56          60
# +-------+-----------------------+---------------+-----------------------+------ ... -------------+-----------+
# | T | F |   sequence number     |     lease     |  seconds since epoch  |   body                 |   *rEc    |
# +-------+-----------------------+---------------+-----------------------+------ ... -------------+-----------+
#   T: type, 4 bits (1 MESSAGE, 2 CONFIRM, 3 DELETION, 4 QUEUE_OP, 5 JOURNAL_OP);  F: flags, 12 bits, by type
RECORD_HEADER = Struct(
    "kind" / BitStruct("type" / BitsInteger(4), "flags" / BitsInteger(12)),
    "sequence" / BytesInteger(6),
    "lease" / Int32ub,
    "wall" / Int64ub,
)

_MAGIC = "magic" / Const(b"*rEc")

#  20  21  22          27          32      36                              52      56
# +---+---+-----------+-----------+-------+-------------------------------+-------+
# | R | C | queueKey  | fileKey   | DATA  | GUID                          | CRC   |   flags: refCount bits 11..0
# +---+---+-----------+-----------+-------+-------------------------------+-------+
#   R: refCount bits 19..12;  C: compression, low 3 bits;  DATA: dwords to the DATA record;  CRC: CRC32-C of the
#   application data (properties and payload as stored)
MESSAGE_RECORD = Struct(
    "header" / RECORD_HEADER,
    "ref_count_high" / Int8ub,
    "compression" / Int8ub,
    "queue_key" / Bytes(5),
    "file_key" / Bytes(5),
    "data_dwords" / Int32ub,
    "guid" / Bytes(16),
    "crc" / Int32ub,
    _MAGIC,
)

#  20      22          27          32                              48              56
# +-------+-----------+-----------+-------------------------------+---------------+
# | resvd | queueKey  | appKey    | GUID                          | reserved      |   flags: 0 confirmed, 1 rejected,
# +-------+-----------+-----------+-------------------------------+---------------+   2 auto-confirmed
CONFIRM_RECORD = Struct(
    "header" / RECORD_HEADER,
    Padding(2),
    "queue_key" / Bytes(5),
    "app_key" / Bytes(5),
    "guid" / Bytes(16),
    Padding(8),
    _MAGIC,
)

#  20        23          28                              44                      56
# +---------+-----------+-------------------------------+-----------------------+
# | resvd   | queueKey  | GUID                          | reserved              |   flags: 0 none, 2 TTL, 4 no quorum
# +---------+-----------+-------------------------------+-----------------------+
DELETION_RECORD = Struct(
    "header" / RECORD_HEADER,
    Padding(3),
    "queue_key" / Bytes(5),
    "guid" / Bytes(16),
    Padding(12),
    _MAGIC,
)

#  20      22          27          32      36      40              48      52      56
# +-------+-----------+-----------+-------+-------+---------------+-------+-------+
# | resvd | queueKey  | appKey    |  op   | QLIST | start seq.    | start | resvd |
# +-------+-----------+-----------+-------+-------+---------------+ lease +-------+
#   op: 1 PURGE, 2 CREATION, 3 DELETION, 4 ADDITION;  QLIST: words to the QLIST record (2, 4);  start: oldest message a
#   PURGE of one app covers;  appKey null = the whole queue
QUEUE_OP_RECORD = Struct(
    "header" / RECORD_HEADER,
    Padding(2),
    "queue_key" / Bytes(5),
    "app_key" / Bytes(5),
    "op" / Int32sb,
    "qlist_words" / Int32ub,
    "start_sequence" / Int64ub,
    "start_lease" / Int32ub,
    Padding(4),
    _MAGIC,
)

#  20        23  24      28              36      40      44      48      52      56
# +---------+---+-------+---------------+-------+-------+-------+-------+-------+
# | resvd   | K | op, 2 | sequence      | node  | lease | DATA  | QLIST | resvd |
# +---------+---+-------+---------------+-------+-------+-------+-------+-------+
#   K: 1 REGULAR, 2 ROLLOVER;  DATA, QLIST: write positions, in dwords and words
JOURNAL_OP_RECORD = Struct(
    "header" / RECORD_HEADER,
    Padding(3),
    "sync_point_type" / Int8ub,
    "op" / Int32sb,
    "sequence" / Int64ub,
    "node" / Int32sb,
    "lease" / Int32ub,
    "data_dwords" / Int32ub,
    "qlist_words" / Int32ub,
    Padding(4),
    _MAGIC,
)

RECORDS = {1: MESSAGE_RECORD, 2: CONFIRM_RECORD, 3: DELETION_RECORD, 4: QUEUE_OP_RECORD, 5: JOURNAL_OP_RECORD}

#  0       4           7   8       10      12
# +-------+-----------+---+-------+-------+--- ... ---+------ ... ------+- ... -+
# |H words| opt words | F | schema| resvd |  options  | properties and  |  pad  |   H: header words, 3 bits; other 29
# +-------+-----------+---+-------+-------+--- ... ---+  payload ...  --+- ... -+   bits: the whole record in words
#   F: 1 = properties present;  schema: (id << 1) | recycled;  pad: 1..8 bytes, each holding their number
DATA_HEADER = Struct(
    "sizes" / BitStruct("header_words" / BitsInteger(3), "record_words" / BitsInteger(29)),
    "options" / BitStruct("words" / BitsInteger(24), "flags" / BitsInteger(8)),
    "schema_wire_id" / Int16ub,
    Padding(2),
)

DATA_RECORD = Struct(
    "header" / DATA_HEADER,
    "options" / Bytes(this.header.options.words * 4),
    "padded" / Bytes((this.header.sizes.record_words - this.header.sizes.header_words
                      - this.header.options.words) * 4),
    "pad" / Computed(lambda context: context.padded[-1]),
    "data" / Computed(lambda context: context.padded[:-context.padded[-1]]),
)

# +-------+-------+---+-----------+-----------------------+--- ... ---+------+-----------+
# | URI w.| apps  | 5 | words     | reserved (12)         | URI + pad | key  | 0 (11)    |
# +-------+-------+---+-----------+-----------------------+--- ... ---+------+-----------+
#   then for every app:                        and at the end:
# +-------+-------+--- ... ----+------+-----------+   +-------+
# | resvd | words | appId + pad| key  | 0 (11)    |   | qUrI  |     words of texts include their 1..4 bytes of padding
# +-------+-------+--- ... ----+------+-----------+   +-------+
APP_ENTRY = Struct(
    Padding(2),
    "words" / Int16ub,
    "padded_id" / Bytes(this.words * 4),
    "key" / Bytes(5),
    Padding(11),
)

QUEUE_RECORD = Struct(
    "uri_words" / Int16ub,
    "app_count" / Int16ub,
    "sizes" / BitStruct("header_words" / BitsInteger(8), "record_words" / BitsInteger(24)),
    Padding(12),
    "padded_uri" / Bytes(this.uri_words * 4),
    "key" / Bytes(5),
    Padding(11),
    "apps" / Array(this.app_count, APP_ENTRY),
    "magic" / Const(b"qUrI"),
)


def unpadded(data: bytes) -> bytes:
    """A padded text without its padding."""
    return data[:-data[-1]]


def parse_record(data: bytes) -> Any:
    """One journal record of 60 bytes, by its type; KeyError for a type that does not exist."""
    return RECORDS[data[0] >> 4].parse(data)
