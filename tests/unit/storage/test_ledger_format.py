"""Ledger file format: files of the original broker are read and encoded to the same bytes; damage never stops a start."""

from base64 import b64encode
from dataclasses import is_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.ledger_files import FILES, case, tool_output

from bmqtwist.errors import LocalError
from bmqtwist.storage import ledger_file as ledgerfile
from bmqtwist.storage.ledger_file import (
    LEDGER_HEADER,
    encode_ledger,
    ledger_file_name,
    pack_ledger_header,
    parse_ledger_file_name,
    read_ledger,
)
from bmqtwist.wire.cluster_schema import (
    ClusterMessage,
    ClusterStateRecord,
    LeaderAdvisory,
    LeaderAdvisoryCommit,
    LeaderMessageSequence,
    LedgerRecordType,
    QueueAssignmentAdvisory,
    QueueInfo,
    encode_cluster_state_record,
)
from bmqtwist.wire.fields import fields_of

PRINTED = [path for path in FILES if (path.parent / "csl.json").exists()]


def tool_output_of(value):
    """A message as the tool prints it: empty arrays and unknown members left out, keys in hexadecimal unless their
    base64 has a slash."""
    if isinstance(value, bytes):
        text = b64encode(value).decode()
        return text if "/" in text else value.hex().upper()
    if isinstance(value, list):
        return [tool_output_of(each) for each in value]
    if not is_dataclass(value) and not isinstance(value, tuple):
        return value
    parts = {entry.wire_name: getattr(value, entry.attribute) for entry in fields_of(type(value))}
    ours = ("unsafe", "features", "members")
    return {name: tool_output_of(part) for name, part in parts.items() if part != [] and (name not in ours or part)}


def record(sequence, uri="", kind=LedgerRecordType.UPDATE, term=1):
    lsn = LeaderMessageSequence(term, sequence)
    if kind is LedgerRecordType.SNAPSHOT:
        message = ClusterMessage("leaderAdvisory", LeaderAdvisory(lsn))
    else:
        message = ClusterMessage("queueAssignmentAdvisory",
                                 QueueAssignmentAdvisory(lsn, [QueueInfo(uri, b"12345", 0)]))
    return ClusterStateRecord(kind, term, sequence, 1000 + sequence, message)


RECORDS = [record(1, kind=LedgerRecordType.SNAPSHOT), record(2, "bmq://d/a"), record(3, "bmq://d/bb"),
           record(4, "bmq://d/ccc")]
WHOLE = encode_ledger(b"LOGID", RECORDS)
ENDS = [8]
for each in RECORDS:
    ENDS.append(ENDS[-1] + len(encode_cluster_state_record(each)))


def sequences(found):
    return [each.record.sequence_number for each in found.entries]


@pytest.mark.spec("storage", 1)
@pytest.mark.spec("storage", 5)
@pytest.mark.spec("storage", 6)
@pytest.mark.parametrize("path", FILES, ids=case)
def test_a_file_of_the_original_is_read_without_alarms_and_encoded_to_the_same_bytes(path):
    data = path.read_bytes()
    found = read_ledger(data)
    assert found.alarms == [] and not found.damaged
    assert found.log_id == parse_ledger_file_name(path.name)
    assert encode_ledger(found.log_id, [each.record for each in found.entries]) == data[:found.end]
    assert not data[found.end:].strip(b"\0")


@pytest.mark.parametrize("path", PRINTED, ids=case)
def test_the_records_of_a_file_equal_the_output_of_the_original_tool(path):
    found = read_ledger(path.read_bytes())
    printed = tool_output(path, "csl.json")["Records"]
    assert len(printed) == len(found.entries)
    for entry, place in zip(printed, found.entries, strict=True):
        each = place.record
        assert (entry["RecordType"], int(entry["Offset"])) == (each.type.name, place.offset)
        assert (int(entry["ElectorTerm"]), int(entry["SequenceNumber"])) == (each.term, each.sequence_number)
        assert int(entry["Epoch"]) == each.timestamp and entry["LogId"] == found.log_id.hex().upper()
        size = len(encode_cluster_state_record(each))
        assert (int(entry["HeaderWords"]) + int(entry["LeaderAdvisoryWords"])) * 4 == size
        assert entry["Record"] == {each.message.choice: tool_output_of(each.message.value)}


def test_the_file_header_equals_its_declaration():
    data = pack_ledger_header(bytes.fromhex("87edf15dc0"))
    assert data == bytes.fromhex("4287edf15dc00000")
    drawn = LEDGER_HEADER.parse(data)
    assert (drawn.version, drawn.header_words * 4, drawn.log_id) == (1, ledgerfile.LEDGER_HEADER_BYTES, data[1:6])
    assert LEDGER_HEADER.struct.unpack(data) == (1 << 6 | 2, data[1:6])


def test_the_body_of_a_commit_record_has_the_literal_bytes():
    message = ClusterMessage("leaderAdvisoryCommit", LeaderAdvisoryCommit(LeaderMessageSequence(1, 2),
                                                                          LeaderMessageSequence(1, 1)))
    data = encode_cluster_state_record(ClusterStateRecord(LedgerRecordType.COMMIT, 1, 2, 1000, message))
    assert data[32:-4] == bytes.fromhex("3080a080b680a0808001018101020000a180800101810101000000000000000004040404")


def test_a_log_id_of_zeros_is_refused():
    with pytest.raises(LocalError):
        pack_ledger_header(bytes(5))


def test_file_names_contain_the_utc_time_and_the_log_id():
    log_id = bytes.fromhex("8C68F0E439")
    assert ledger_file_name(log_id, 1795237326) == "bmq_csl_20261121_050206_8C68F0E439.bmq_csl"
    assert parse_ledger_file_name("bmq_csl_20261121_050206_8C68F0E439.bmq_csl") == log_id
    assert parse_ledger_file_name("bmq_csl_20261121_050206_8C68F0E439.bmq_csl.old") is None


def test_empty_input_is_an_empty_ledger():
    found = read_ledger(b"")
    assert (found.entries, found.end, found.damaged, found.alarms) == ([], 0, False, [])


@pytest.mark.parametrize("size", range(ENDS[-2], ENDS[-1]))
def test_a_file_truncated_within_its_last_record_loses_only_that_record(size):
    found = read_ledger(WHOLE[:size])
    assert sequences(found) == [1, 2, 3] and found.end == ENDS[-2] and not found.damaged
    assert len(found.alarms) == (size > ENDS[-2])


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\0" * 3])
def test_zeros_after_the_last_record_are_the_end(tail):
    found = read_ledger(WHOLE + tail)
    assert sequences(found) == [1, 2, 3, 4] and found.end == len(WHOLE) and not found.alarms


def test_an_incomplete_last_record_before_zeros_is_dropped_with_an_alarm():
    found = read_ledger(WHOLE[:-20] + b"\0" * 4096)
    assert sequences(found) == [1, 2, 3] and found.end == ENDS[-2] and not found.damaged
    assert len(found.alarms) == 1 and "incomplete record" in found.alarms[0]


@pytest.mark.parametrize("bad", range(3))
def test_a_damaged_record_is_skipped_with_an_alarm(bad):
    for offset in range(ENDS[bad], ENDS[bad + 1]):
        data = bytearray(WHOLE)
        data[offset] ^= 0x55
        found = read_ledger(bytes(data))
        assert sequences(found) == [each for each in (1, 2, 3, 4) if each != bad + 1]
        assert found.end == len(WHOLE) and found.damaged and len(found.alarms) == 1


def test_an_unreadable_file_header_keeps_all_records():
    found = read_ledger(bytes(8) + WHOLE[8:])
    assert sequences(found) == [1, 2, 3, 4] and found.log_id == b"" and found.damaged and len(found.alarms) == 1


def test_the_number_of_alarms_for_a_damaged_file_is_limited():
    good = encode_cluster_state_record(RECORDS[0])
    found = read_ledger(pack_ledger_header(b"LOGID") + (good + b"\xff" * 40) * 60 + good)
    assert len(found.entries) == 61 and len(found.alarms) == ledgerfile.DAMAGE_REPORTS_MAX


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=12), st.integers(0, 400))
def test_any_bytes_are_read_without_an_error_and_yield_only_complete_records(changes, cut):
    data = bytearray(WHOLE)
    for offset, value in changes:
        data[offset] = value
    data = bytes(data[:len(data) - cut])
    found = read_ledger(data)
    assert found.end <= len(data)
    for each in found.entries:
        spelled = encode_cluster_state_record(each.record)
        assert data[each.offset:each.offset + len(spelled)] == spelled
