"""Layouts of the storage files: the declarations of all their bytes; docs/layouts.md draws them.

`records.py` derives its structs from these declarations (see `wire/declare.py`), `spark/records.py` its columns.
`journal.py`, `ledger_file.py`, `slot_file.py` and `storagetool/` parse with them, `store.py` has sizes of headers. All
numbers are big-endian, a *word* is 4 bytes, a *dword* 8. Reserved bytes are written 0 and ignored.
"""

from __future__ import annotations

from bmqtwist.wire.declare import Layout, magic, null, number, raw, signed, skip

# General header of every file, followed by the header of its type and the first record.
#   version: 1; header_words: 8; wide: written by a 64-bit process; type: 1 DATA, 2 JOURNAL, 3 QLIST
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
#   mark: words from the start of the file to the sync point that ended the last rollover, written last; 0 = none (yet)
JOURNAL_FILE_HEADER = Layout(number(header_words=8), number(record_words=8), skip(2), number(mark=64))
DATA_FILE_HEADER = Layout(number(header_words=8), skip(1), null(file_key=5), skip(1))
QLIST_FILE_HEADER = Layout(number(header_words=8), skip(3))

# Journal records: 60 bytes each, with a common header and magic.
#   type: 1 MESSAGE, 2 CONFIRM, 3 DELETION, 4 QUEUE_OP, 5 JOURNAL_OP; flags: by type; wall: seconds since the epoch
RECORD_HEADER = Layout(
    number(type=4, flags=12, sequence=48),
    number(lease=32),
    number(wall=64),
)
_HEADER, _MAGIC = RECORD_HEADER.parts, magic(magic=b"*rEc")
JOURNAL_RECORD = Layout(*_HEADER, raw(body=36), _MAGIC)
#   flags: bits 11..0 of the reference count; compression: low 3 bits; data_dwords: from the start of DATA to its record;
#   crc: CRC32-C of the application data (properties and payload as stored)
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
#   flags: 0 confirmed, 1 rejected, 2 auto-confirmed
CONFIRM_RECORD = Layout(*_HEADER, skip(2), raw(queue_key=5), raw(app_key=5), raw(guid=16), skip(8), _MAGIC)
#   flags: 0 none, 2 TTL, 4 no quorum
DELETION_RECORD = Layout(*_HEADER, skip(3), raw(queue_key=5), raw(guid=16), skip(12), _MAGIC)
#   op: 1 PURGE, 2 CREATION, 3 DELETION, 4 ADDITION; app_key: null = the whole queue; qlist_words: from the start of QLIST to
#   its record (2, 4); start_*: the oldest message that a PURGE of one app covers
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
#   sync_point_type: 1 REGULAR, 2 ROLLOVER; op: 2; data_dwords, qlist_words: write positions
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

# A record of DATA: this header, the options, properties and payload, and 1..8 bytes of padding, each holding their number.
#   record_words: of the whole record; flags: 1 = properties present; schema_wire_id: (id << 1) | recycled
DATA_HEADER = Layout(
    number(header_words=3, record_words=29),
    number(options_words=24, flags=8),
    number(schema_wire_id=16),
    number(_reserved=16),
)

# A record of QLIST: this header, the URI, QUEUE_KEY; for every app APP_HEADER, the appId, QUEUE_KEY; "qUrI" at the end.
#   *words of texts include their 1..4 bytes of padding, each holding their number
QUEUE_RECORD_HEADER = Layout(
    number(uri_words=16),
    number(app_count=16),
    number(header_words=8, record_words=24),
    skip(12),
)
APP_HEADER = Layout(skip(2), number(words=16))
QUEUE_KEY = Layout(raw(key=5), skip(11))  # of the queue and of each app, after its text

# The ledger of the metadata: this header (version 1), then records as brokers send them to each other, each on a word.
LEDGER_HEADER = Layout(number(version=2, header_words=6), raw(log_id=5), skip(2))

# A slot of the files of a node's vote and promises: this header (version 1), the value, the CRC32 of all before it.
SLOT = Layout(raw(magic=4), number(version=32), number(number=64))
VOTE = Layout(number(term=64), signed(vote=32))  # the value after the magic BMQV; vote: id of the node, -1 = none
STORAGE_VERSION = Layout(number(version=32))  # the value after the magic BMQS
PROMISES = Layout(number(partitions=32))  # the value after the magic BMQP, then for each partition:
PROMISE = Layout(number(lease=32), number(flags=32))  # flags: 1 = durable records may be missing, 2 = files too
