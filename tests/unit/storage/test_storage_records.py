"""Encoding of storage files: layouts, structs and packers, compared with literal bytes and recorded files."""

from __future__ import annotations

from struct import Struct
from typing import Any

import pytest
from kit.storage_kit import DATA_RECORD, QUEUE_RECORD, RECORDS, journals, name_of, parse_record, unpadded

from bmqtwist.storage import layout, records
from bmqtwist.storage.records import FileType, QueueOp, SyncPoint

GUID = bytes(range(16, 32))
PSN = {"sequence": 0xABCDEF012345, "lease": 0x01020304, "wall": 1795237326}
PSN_HEX = "abcdef012345" "01020304" "000000006b0125ce"
QUEUE_HEX, APP_HEX, MAGIC_HEX = b"queue".hex(), b"appke".hex(), b"*rEc".hex()

# name of the declaration, its fields, its bytes
LAYOUTS = [
    ("FILE_HEADER", dict(version=1, header_words=8, wide=1, type=2, partition_id=-3),
     "21626d71424d5121" "4882" + "00" * 10 + "fffffffd" + "00" * 8),
    ("JOURNAL_FILE_HEADER", dict(header_words=3, record_words=15, mark=0x0102030405060708), "030f00000102030405060708"),
    ("DATA_FILE_HEADER", dict(header_words=2, file_key=b"filek"), "020066696c656b00"),
    ("QLIST_FILE_HEADER", dict(header_words=1), "01000000"),
    ("MESSAGE_RECORD", dict(type=1, flags=0x345, **PSN, ref_count_high=0x12, compression=1, queue_key=b"queue",
                            file_key=bytes(5), data_dwords=77, guid=GUID, crc=0xC99465AA),
     f"1345{PSN_HEX}1201{QUEUE_HEX}00000000000000004d{GUID.hex()}c99465aa{MAGIC_HEX}"),
    ("CONFIRM_RECORD", dict(type=2, flags=2, **PSN, queue_key=b"queue", app_key=b"appke", guid=GUID),
     f"2002{PSN_HEX}0000{QUEUE_HEX}{APP_HEX}{GUID.hex()}{'00' * 8}{MAGIC_HEX}"),
    ("DELETION_RECORD", dict(type=3, flags=4, **PSN, queue_key=b"queue", guid=GUID),
     f"3004{PSN_HEX}000000{QUEUE_HEX}{GUID.hex()}{'00' * 12}{MAGIC_HEX}"),
    ("QUEUE_OP_RECORD", dict(type=4, flags=0, **PSN, queue_key=b"queue", app_key=b"appke", op=-1, qlist_words=9,
                             start_sequence=0x112233445566, start_lease=7),
     f"4000{PSN_HEX}0000{QUEUE_HEX}{APP_HEX}ffffffff00000009000011223344556600000007" f"00000000{MAGIC_HEX}"),
    ("JOURNAL_OP_RECORD", dict(type=5, flags=0, **PSN, sync_point_type=2, op=2, inner_sequence=0xABCDEF012345, node=-3,
                               inner_lease=0x01020304, data_dwords=5, qlist_words=9),
     f"5000{PSN_HEX}00000002000000020000abcdef012345fffffffd0102030400000005" f"0000000900000000{MAGIC_HEX}"),
    ("DATA_HEADER", dict(header_words=3, record_words=0x1234567, options_words=0x010203, flags=1, schema_wire_id=3),
     "612345670102030100030000"),
    ("QUEUE_RECORD_HEADER", dict(uri_words=3, app_count=2, header_words=5, record_words=0x010203),
     "0003000205010203" + "00" * 12),
    ("APP_HEADER", dict(words=3), "00000003"),
    ("QUEUE_KEY", dict(key=b"queue"), QUEUE_HEX + "00" * 11),
]


@pytest.mark.parametrize(("name", "fields", "recorded"), LAYOUTS, ids=[each[0] for each in LAYOUTS])
def test_parser_and_struct_of_each_record_agree_with_the_literal_bytes(name: str, fields: dict[str, Any],
                                                                       recorded: str) -> None:
    declared, data = getattr(layout, name), bytes.fromhex(recorded)
    parsed = declared.parse(data)
    assert {field: parsed[field] for field in fields} == fields
    assert declared.build(**fields) == data
    if fields.get("file_key", bytes(5)) == bytes(5):  # the structs write only keys of zeros
        assert declared.struct.pack(*declared.struct.unpack(data)) == data
    values = zip((part for part in declared.parts if not part.code.endswith("x")), declared.struct.unpack(data), strict=True)
    for part, value in values:
        for field, _ in part.fields:
            if field in fields:
                assert (fields[field] == value if len(part.fields) == 1 else
                        fields[field] == value >> declared.shift(field) & declared.mask(field))


def test_packers_write_the_literal_bytes() -> None:
    sequence, lease, wall = PSN.values()
    recorded = {name: data for name, _, data in LAYOUTS}
    assert records.MESSAGE.pack(records.MESSAGE_HEAD | 0x345 << 48 | sequence, lease, wall, 0x12, 1, b"queue", 77, GUID,
                                0xC99465AA, records.MAGIC).hex() == recorded["MESSAGE_RECORD"]
    assert records.CONFIRM.pack(records.CONFIRM_HEAD | 2 << 48 | sequence, lease, wall, b"queue", b"appke", GUID,
                                records.MAGIC).hex() == recorded["CONFIRM_RECORD"]
    assert records.DELETION.pack(records.DELETION_HEAD | 4 << 48 | sequence, lease, wall, b"queue", GUID,
                                 records.MAGIC).hex() == recorded["DELETION_RECORD"]
    start = 7, 0x112233445566
    assert records.pack_queue_op((lease, sequence), wall, b"queue", b"appke", QueueOp.PURGE, 36, start).hex() == (
        recorded["QUEUE_OP_RECORD"].replace("ffffffff", "00000001"))
    assert records.pack_sync_point(sequence, lease, wall, SyncPoint.ROLLOVER, -3, 40, 36).hex() == (
        recorded["JOURNAL_OP_RECORD"])


@pytest.mark.parametrize(("kind", "expected"), [
    (FileType.JOURNAL, "4882" "00000000000000000000" "00000006" "0000000000000000" "030f0000" "0000000000000000"),
    (FileType.DATA, "4881" "00000000000000000000" "00000006" "0000000000000000" "0200000000000000"),
    (FileType.QLIST, "4883" "00000000000000000000" "00000006" "0000000000000000" "01000000")])
def test_file_headers_have_the_literal_bytes(kind: FileType, expected: str) -> None:
    assert records.file_headers(kind, 6).hex() == "21626d71424d5121" + expected


def test_the_rollover_mark_is_at_its_offset_in_the_journal_header() -> None:
    headers = bytearray(records.file_headers(FileType.JOURNAL, 0))
    headers[records.MARK_OFFSET:records.MARK_OFFSET + 8] = records.pack_mark(764)
    assert headers[32:].hex() == "030f0000" "00000000000000bf"


def test_record_bodies_are_unpacked_without_header_and_magic() -> None:
    body = bytes.fromhex(dict((name, data) for name, _, data in LAYOUTS)["MESSAGE_RECORD"])[20:56]
    assert records.MESSAGE_BODY.unpack(body) == (0x12, 1, b"queue", 77, GUID, 0xC99465AA)
    assert {each.size for each in (records.MESSAGE_BODY, records.CONFIRM_BODY, records.DELETION_BODY,
                                   records.QUEUE_OP_BODY, records.JOURNAL_OP_BODY)} == {36}


@pytest.mark.parametrize("uri", ["bmq://d/q", "bmq://d/qq", "bmq://d/qqq", "bmq://d/qqqq", "bmq://d.~tier/ä"])
@pytest.mark.parametrize("apps", [
    [], [("__default", b"0\0\0\0\0")], [("a", b"aaaaa"), ("four", b"bbbbb"), ("", b"c" * 5)]])
def test_a_queue_record_is_packed_in_the_declared_layout_and_parsed_back(uri: str, apps: list[tuple[str, bytes]]) -> None:
    packed = records.pack_queue_record(uri, b"queue", apps)
    drawn = QUEUE_RECORD.parse(packed)
    assert drawn.header.record_words * 4 == len(packed)
    assert (unpadded(drawn.padded_uri).decode(), drawn.key.key) == (uri, b"queue")
    assert [(unpadded(app.padded_id).decode(), app.key.key) for app in drawn.apps] == apps
    assert QUEUE_RECORD.build(drawn) == packed
    assert records.parse_queue_record(b"xx" + packed, 2) == (uri, b"queue", apps, len(packed))


def test_a_truncated_queue_record_is_refused_at_every_length() -> None:
    packed = records.pack_queue_record("bmq://d/q", b"queue", [("a", b"aaaaa")])
    for length in range(len(packed)):
        with pytest.raises(ValueError):
            records.parse_queue_record(packed[:length])


def test_padding_is_never_empty() -> None:
    assert [records.pad_words(b"x" * n)[n:] for n in range(5)] == [b"\4" * 4, b"\3" * 3, b"\2\2", b"\1", b"\4" * 4]
    assert [records.data_record_bytes(n) - n for n in range(16, 25)] == [8, 7, 6, 5, 4, 3, 2, 1, 8]


@pytest.mark.spec("storage", 7)
@pytest.mark.parametrize("path", journals(), ids=name_of)
def test_recorded_files_are_parsed_and_built_to_the_same_bytes(path) -> None:  # type: ignore[no-untyped-def]
    journal = path.read_bytes()
    assert layout.FILE_HEADER.parse(journal).type == 2
    assert layout.JOURNAL_FILE_HEADER.parse(journal[32:]).record_words == 15
    for offset in range(44, len(journal) - 59, 60):
        record = journal[offset:offset + 60]
        if not any(record):
            break
        assert RECORDS[record[0] >> 4].build(**parse_record(record)) == record
    assert repack_journal(journal) == journal
    data = path.with_suffix(".bmq_data").read_bytes()
    assert layout.FILE_HEADER.parse(data).type == 1
    offset = 40
    while offset < len(data) and any(data[offset:offset + 12]):
        record = DATA_RECORD.parse(data[offset:])
        assert 1 <= record.pad <= 8
        offset += record.header.record_words * 4
    qlist = path.with_suffix(".bmq_qlist").read_bytes()
    offset = 36
    while offset < len(qlist) and any(qlist[offset:offset + 4]):
        uri, key, apps, size = records.parse_queue_record(qlist, offset)
        assert records.pack_queue_record(uri, key, apps) == qlist[offset:offset + size]
        offset += size


def repack_journal(journal: bytes) -> bytes:
    """Decode and encode every record with the structs."""
    packers: dict[int, Struct] = {1: records.MESSAGE, 2: records.CONFIRM, 3: records.DELETION, 4: records.QUEUE_OP,
                                  5: records.JOURNAL_OP}
    parts, offset = [journal[:44]], 44
    while offset + 60 <= len(journal) and journal[offset]:
        struct = packers[journal[offset] >> 4]
        parts.append(struct.pack(*struct.unpack(journal[offset:offset + 60])))
        offset += 60
    return b"".join(parts) + journal[offset:]


@pytest.mark.spec("storage", 1)
@pytest.mark.spec("storage", 2)
@pytest.mark.spec("storage", 3)
@pytest.mark.spec("storage", 4)
def test_the_sample_of_the_format_documentation_is_reproduced() -> None:
    assert records.file_headers(FileType.JOURNAL, 0).hex() == (
        "21626d71424d51214882" + "00" * 22 + "030f0000" + "00" * 8)
    key = bytes.fromhex("26dacdc974")
    assert records.pack_queue_op((1, 2), 0, key, bytes(5), QueueOp.CREATION, 36)[20:].hex() == (
        "000026dacdc9740000000000000000020000000900000000000000000000000000000000" + "2a724563")
    message = records.MESSAGE.pack(records.MESSAGE_HEAD | 1 << 48 | 4, 1, 0, 0, 0, key, 5,
                                   bytes.fromhex("400000000002b471f5b3ac11aa7d7dab"), 0xC99465AA, records.MAGIC)
    assert message[:12].hex() == "100100000000000400000001"
    assert message[20:].hex() == ("000026dacdc974000000000000000005400000000002b471f5b3ac11aa7d7dab" "c99465aa2a724563")
    assert len(records.pack_queue_record("bmq://" + "x" * 43, key, [])) == 92
