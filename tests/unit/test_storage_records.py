"""The packers of records.py against the drawings of layout.py, and against the recorded files."""

from __future__ import annotations

from struct import Struct

import pytest
from storage_kit import journals, name_of

from bmqtwist.storage import layout, records
from bmqtwist.storage.records import FileType, QueueOp, SyncPoint

HEADER = {"sequence": 0xABCDEF012345, "lease": 0x01020304, "wall": 1795237326}


def header(kind: int, flags: int) -> dict[str, object]:
    return {"kind": {"type": kind, "flags": flags}, **HEADER}


def test_a_message_record_is_packed_as_drawn() -> None:
    drawn = layout.MESSAGE_RECORD.build({
        "header": header(1, 0x345), "ref_count_high": 0x12, "compression": 1, "queue_key": b"queue",
        "file_key": bytes(5), "data_dwords": 77, "guid": b"0123456789abcdef", "crc": 0xC99465AA})
    head = records.MESSAGE_HEAD | 0x345 << 48 | HEADER["sequence"]
    assert records.MESSAGE.pack(head, HEADER["lease"], HEADER["wall"], 0x12, 1, b"queue", 77,
                                b"0123456789abcdef", 0xC99465AA, records.MAGIC) == drawn


def test_a_confirm_record_is_packed_as_drawn() -> None:
    drawn = layout.CONFIRM_RECORD.build({"header": header(2, 2), "queue_key": b"queue", "app_key": b"appke",
                                         "guid": b"0123456789abcdef"})
    assert records.CONFIRM.pack(records.CONFIRM_HEAD | 2 << 48 | HEADER["sequence"], HEADER["lease"], HEADER["wall"],
                                b"queue", b"appke", b"0123456789abcdef", records.MAGIC) == drawn


def test_a_deletion_record_is_packed_as_drawn() -> None:
    drawn = layout.DELETION_RECORD.build({"header": header(3, 4), "queue_key": b"queue", "guid": b"0123456789abcdef"})
    assert records.DELETION.pack(records.DELETION_HEAD | 4 << 48 | HEADER["sequence"], HEADER["lease"], HEADER["wall"],
                                 b"queue", b"0123456789abcdef", records.MAGIC) == drawn


def test_a_queue_op_record_is_packed_as_drawn() -> None:
    drawn = layout.QUEUE_OP_RECORD.build({
        "header": header(4, 0), "queue_key": b"queue", "app_key": b"appke", "op": 1, "qlist_words": 9,
        "start_sequence": 0x112233445566, "start_lease": 7})
    assert records.pack_queue_op(HEADER["sequence"], HEADER["lease"], HEADER["wall"], b"queue", b"appke", QueueOp.PURGE,
                                 36, 0x112233445566, 7) == drawn


def test_a_sync_point_is_packed_as_drawn() -> None:
    drawn = layout.JOURNAL_OP_RECORD.build({
        "header": header(5, 0), "sync_point_type": 2, "op": 2, "sequence": HEADER["sequence"], "node": -3,
        "lease": HEADER["lease"], "data_dwords": 5, "qlist_words": 9})
    assert records.pack_sync_point(HEADER["sequence"], HEADER["lease"], HEADER["wall"], SyncPoint.ROLLOVER, -3, 40,
                                   36) == drawn


@pytest.mark.parametrize("kind", [FileType.JOURNAL, FileType.DATA, FileType.QLIST])
def test_file_headers_are_packed_as_drawn(kind: FileType) -> None:
    special = {FileType.JOURNAL: layout.JOURNAL_FILE_HEADER.build({"header_words": 3, "record_words": 15, "mark": 0}),
               FileType.DATA: layout.DATA_FILE_HEADER.build({"header_words": 2, "file_key": bytes(5)}),
               FileType.QLIST: layout.QLIST_FILE_HEADER.build({"header_words": 1})}[kind]
    drawn = layout.FILE_HEADER.build({"bits": {"version": 1, "header_words": 8, "wide": 1, "type": int(kind)},
                                      "partition_id": 6})
    assert records.file_headers(kind, 6) == drawn + special


def test_a_data_header_is_packed_as_drawn() -> None:
    drawn = layout.DATA_HEADER.build({"sizes": {"header_words": 3, "record_words": 6},
                                      "options": {"words": 2, "flags": 1}, "schema_wire_id": 3})
    assert records.DATA_HEADER.pack(3 << 29 | 6, 2 << 8 | 1, 3, 0) == drawn


def test_the_mark_is_where_the_drawing_puts_it() -> None:
    headers = bytearray(records.file_headers(FileType.JOURNAL, 0))
    headers[records.MARK_OFFSET:records.MARK_OFFSET + 8] = records.pack_mark(764)
    assert layout.JOURNAL_FILE_HEADER.parse(bytes(headers[32:])).mark == 764 // 4


@pytest.mark.parametrize("uri", ["bmq://d/q", "bmq://d/qq", "bmq://d/qqq", "bmq://d/qqqq", "bmq://d.~tier/ä"])
@pytest.mark.parametrize("apps", [
    [], [("__default", b"0\0\0\0\0")], [("a", b"aaaaa"), ("four", b"bbbbb"), ("", b"c" * 5)]])
def test_a_queue_record_is_packed_as_drawn_and_parsed_back(uri: str, apps: list[tuple[str, bytes]]) -> None:
    packed = records.pack_queue_record(uri, b"queue", apps)
    drawn = layout.QUEUE_RECORD.parse(packed)
    assert drawn.sizes.record_words * 4 == len(packed)
    assert (layout.unpadded(drawn.padded_uri).decode(), drawn.key) == (uri, b"queue")
    assert [(layout.unpadded(app.padded_id).decode(), app.key) for app in drawn.apps] == apps
    assert layout.QUEUE_RECORD.build(drawn) == packed
    assert records.parse_queue_record(b"xx" + packed, 2) == (uri, b"queue", apps, len(packed))


def test_a_cut_queue_record_is_refused_at_every_length() -> None:
    packed = records.pack_queue_record("bmq://d/q", b"queue", [("a", b"aaaaa")])
    for length in range(len(packed)):
        with pytest.raises(ValueError):
            records.parse_queue_record(packed[:length])


def test_padding_is_never_empty() -> None:
    assert [records.pad_words(b"x" * n)[n:] for n in range(5)] == [b"\4" * 4, b"\3" * 3, b"\2\2", b"\1", b"\4" * 4]
    assert [records.data_record_bytes(n) - n for n in range(16, 25)] == [8, 7, 6, 5, 4, 3, 2, 1, 8]


@pytest.mark.spec("storage", 7)
@pytest.mark.parametrize("path", journals(), ids=name_of)
def test_recorded_files_parse_as_drawn_and_build_back_to_the_same_bytes(path) -> None:  # type: ignore[no-untyped-def]
    journal = path.read_bytes()
    assert layout.FILE_HEADER.parse(journal).bits.type == 2
    assert layout.JOURNAL_FILE_HEADER.parse(journal[32:]).record_words == 15
    for offset in range(44, len(journal) - 59, 60):
        record = journal[offset:offset + 60]
        if not any(record):
            break
        assert layout.RECORDS[record[0] >> 4].build(layout.parse_record(record)) == record
    assert repack_journal(journal) == journal
    data = path.with_suffix(".bmq_data").read_bytes()
    assert layout.FILE_HEADER.parse(data).bits.type == 1
    offset = 40
    while offset < len(data) and any(data[offset:offset + 12]):
        record = layout.DATA_RECORD.parse(data[offset:])
        assert 1 <= record.pad <= 8
        offset += record.header.sizes.record_words * 4
    qlist = path.with_suffix(".bmq_qlist").read_bytes()
    offset = 36
    while offset < len(qlist) and any(qlist[offset:offset + 4]):
        uri, key, apps, size = records.parse_queue_record(qlist, offset)
        assert records.pack_queue_record(uri, key, apps) == qlist[offset:offset + size]
        offset += size


def repack_journal(journal: bytes) -> bytes:
    """Every record through the precompiled structs and back."""
    packers: dict[int, Struct] = {1: records.MESSAGE, 2: records.CONFIRM, 3: records.DELETION, 4: records.QUEUE_OP,
                                  5: records.JOURNAL_OP}
    parts, offset = [journal[:44]], 44
    while offset + 60 <= len(journal) and journal[offset]:
        struct = packers[journal[offset] >> 4]
        parts.append(struct.pack(*struct.unpack(journal[offset:offset + 60])))
        offset += 60
    return b"".join(parts) + journal[offset:]


@pytest.mark.spec("storage", 2)
@pytest.mark.spec("storage", 3)
@pytest.mark.spec("storage", 4)
def test_the_sample_of_the_format_description_is_reproduced() -> None:
    assert records.file_headers(FileType.JOURNAL, 0).hex() == (
        "21626d71424d51214882" + "00" * 22 + "030f0000" + "00" * 8)
    key = bytes.fromhex("26dacdc974")
    assert records.pack_queue_op(2, 1, 0, key, bytes(5), QueueOp.CREATION, 36)[20:].hex() == (
        "000026dacdc9740000000000000000020000000900000000000000000000000000000000" + "2a724563")
    message = records.MESSAGE.pack(records.MESSAGE_HEAD | 1 << 48 | 4, 1, 0, 0, 0, key, 5,
                                   bytes.fromhex("400000000002b471f5b3ac11aa7d7dab"), 0xC99465AA, records.MAGIC)
    assert message[:12].hex() == "100100000000000400000001"
    assert message[20:].hex() == ("000026dacdc974000000000000000005400000000002b471f5b3ac11aa7d7dab" "c99465aa2a724563")
    assert len(records.pack_queue_record("bmq://" + "x" * 43, key, [])) == 92
