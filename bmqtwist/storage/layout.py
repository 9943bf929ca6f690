"""Where every byte of the storage files is: declared once, drawn beside it.

The structs of `records.py` are derived from these declarations, and the headers of files are parsed with them
(`wire/declare.py` says how both follow). All numbers are big-endian, a *word* is 4 bytes, a *dword* 8. Reserved bytes are
written 0 and not looked at.
"""

from __future__ import annotations

from bmqtwist.wire.declare import Layout, magic, null, number, raw, signed, skip

# What every file begins with; after it the header of its kind, then the first record.
#
#  0               4               8   9   10                  20              24                      32
# +---------------+---------------+---+---+-------------------+---------------+-----------------------+
# |     !bmq      |     BMQ!      | V | T |     reserved      |  partitionId  |       reserved        |
# +---------------+---------------+---+---+-------------------+---------------+-----------------------+
#   V: protocol version 2 bits (1), header words 6 bits (8)
#   T: 64-bit writer 1 bit, file type 7 bits (1 DATA, 2 JOURNAL, 3 QLIST)
FILE_MAGIC = b"!bmq", b"BMQ!"
FILE_HEADER = Layout(
    magic(magic1=FILE_MAGIC[0]),
    magic(magic2=FILE_MAGIC[1]),
    number(version=2, header_words=6),
    number(wide=1, type=7),
    skip(10),
    signed(partition_id=32),
    skip(8),
)

#  32  33  34      36                      44
# +---+---+-------+-----------------------+
# | 3 |15 | resvd | mark                  |   mark: words from the start of the file to the sync point that ended the
# +---+---+-------+-----------------------+   last rollover, written last of all; 0 = none (yet)
JOURNAL_FILE_HEADER = Layout(number(header_words=8), number(record_words=8), skip(2), number(mark=64))

#  32  33  34          39  40
# +---+---+-----------+---+
# | 2 | - | fileKey   | - |   fileKey: always null
# +---+---+-----------+---+
DATA_FILE_HEADER = Layout(number(header_words=8), skip(1), null(file_key=5), skip(1))

#  32  33          36
# +---+-----------+
# | 1 | reserved  |
# +---+-----------+
QLIST_FILE_HEADER = Layout(number(header_words=8), skip(3))

# Journal records: 60 bytes each, the same at both ends.
#
#  0       2                       8               12                      20                        56          60
# +-------+-----------------------+---------------+-----------------------+------ ... -------------+-----------+
# | T | F |   sequence number     |     lease     |  seconds since epoch  |   body                 |   *rEc    |
# +-------+-----------------------+---------------+-----------------------+------ ... -------------+-----------+
#   T: type, 4 bits (1 MESSAGE, 2 CONFIRM, 3 DELETION, 4 QUEUE_OP, 5 JOURNAL_OP);  F: flags, 12 bits, by type
RECORD_HEADER = Layout(
    number(type=4, flags=12, sequence=48),
    number(lease=32),
    number(wall=64),
)

_HEADER, _MAGIC = RECORD_HEADER.parts, magic(magic=b"*rEc")
JOURNAL_RECORD = Layout(*_HEADER, raw(body=36), _MAGIC)

#  20  21  22          27          32      36                              52      56
# +---+---+-----------+-----------+-------+-------------------------------+-------+
# | R | C | queueKey  | fileKey   | DATA  | GUID                          | CRC   |   flags: refCount bits 11..0
# +---+---+-----------+-----------+-------+-------------------------------+-------+
#   R: refCount bits 19..12;  C: compression, low 3 bits;  DATA: dwords to the DATA record;  CRC: CRC32-C of the
#   application data (properties and payload as stored)
MESSAGE_RECORD = Layout(
    *_HEADER,
    number(ref_count_high=8),
    number(compression=8),
    raw(queue_key=5),
    null(file_key=5),
    number(data_dwords=32),
    raw(guid=16),
    number(crc=32),
    _MAGIC,
)

#  20      22          27          32                              48              56
# +-------+-----------+-----------+-------------------------------+---------------+
# | resvd | queueKey  | appKey    | GUID                          | reserved      |   flags: 0 confirmed, 1 rejected,
# +-------+-----------+-----------+-------------------------------+---------------+   2 auto-confirmed
CONFIRM_RECORD = Layout(*_HEADER, skip(2), raw(queue_key=5), raw(app_key=5), raw(guid=16), skip(8), _MAGIC)

#  20        23          28                              44                      56
# +---------+-----------+-------------------------------+-----------------------+
# | resvd   | queueKey  | GUID                          | reserved              |   flags: 0 none, 2 TTL, 4 no quorum
# +---------+-----------+-------------------------------+-----------------------+
DELETION_RECORD = Layout(*_HEADER, skip(3), raw(queue_key=5), raw(guid=16), skip(12), _MAGIC)

#  20      22          27          32      36      40              48      52      56
# +-------+-----------+-----------+-------+-------+---------------+-------+-------+
# | resvd | queueKey  | appKey    |  op   | QLIST | start seq.    | start | resvd |
# +-------+-----------+-----------+-------+-------+---------------+ lease +-------+
#   op: 1 PURGE, 2 CREATION, 3 DELETION, 4 ADDITION;  QLIST: words to the QLIST record (2, 4);  start: oldest message a
#   PURGE of one app covers;  appKey null = the whole queue
QUEUE_OP_RECORD = Layout(
    *_HEADER,
    skip(2),
    raw(queue_key=5),
    raw(app_key=5),
    signed(op=32),
    number(qlist_words=32),
    number(start_sequence=64),
    number(start_lease=32),
    skip(4),
    _MAGIC,
)

#  20        23  24      28              36      40      44      48      52      56
# +---------+---+-------+---------------+-------+-------+-------+-------+-------+
# | resvd   | K | op, 2 | sequence      | node  | lease | DATA  | QLIST | resvd |
# +---------+---+-------+---------------+-------+-------+-------+-------+-------+
#   K: 1 REGULAR, 2 ROLLOVER;  DATA, QLIST: write positions, in dwords and words
JOURNAL_OP_RECORD = Layout(
    *_HEADER,
    skip(3),
    number(sync_point_type=8),
    signed(op=32),
    number(inner_sequence=64),
    signed(node=32),
    number(inner_lease=32),
    number(data_dwords=32),
    number(qlist_words=32),
    skip(4),
    _MAGIC,
)

#  0       4           7   8       10      12
# +-------+-----------+---+-------+-------+--- ... ---+------ ... ------+- ... -+
# |H words| opt words | F | schema| resvd |  options  | properties and  |  pad  |   H: header words, 3 bits; other 29
# +-------+-----------+---+-------+-------+--- ... ---+  payload ...  --+- ... -+   bits: the whole record in words
#   F: 1 = properties present;  schema: (id << 1) | recycled;  pad: 1..8 bytes, each holding their number
DATA_HEADER = Layout(
    number(header_words=3, record_words=29),
    number(options_words=24, flags=8),
    number(schema_wire_id=16),
    number(_reserved=16),
)

# +-------+-------+---+-----------+-----------------------+--- ... ---+------+-----------+
# | URI w.| apps  | 5 | words     | reserved (12)         | URI + pad | key  | 0 (11)    |
# +-------+-------+---+-----------+-----------------------+--- ... ---+------+-----------+
#   then for every app:                        and at the end:
# +-------+-------+--- ... ----+------+-----------+   +-------+
# | resvd | words | appId + pad| key  | 0 (11)    |   | qUrI  |     words of texts include their 1..4 bytes of padding
# +-------+-------+--- ... ----+------+-----------+   +-------+
QUEUE_RECORD_HEADER = Layout(
    number(uri_words=16),
    number(app_count=16),
    number(header_words=8, record_words=24),
    skip(12),
)
APP_HEADER = Layout(skip(2), number(words=16))
QUEUE_KEY = Layout(raw(key=5), skip(11))  # of the queue and of each app, behind its text
