"""`bmq storage show`, `ledger` and `qlist`: filters, output forms, input files, errors of the command line."""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path

import pytest
from kit.data_events import encode_options
from kit.storage_kit import DEFAULT, KEY, OTHER, WALL, disk_with, journals, make_message, name_of, open_files, start, stored
from kit.storagetool_kit import bmq, change, files_of, ledger_of, one, spill, storage_directory, write_ledger

from bmqtwist.cli import storage as command
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.recovery import recover
from bmqtwist.wire import options as wire_options
from bmqtwist.wire import properties as wire_properties
from bmqtwist.wire.properties import PropertyType

JOURNAL, DATA, LEDGER = files_of("app-added-removed.n1")
GUIDS = ["400000000000004F4E32B99784572D5C", "400001000000004F930CB99784572D5C", "400002000000216442ECB99784572D5C",
         "40000300000021650A16B99784572D5C", "40000400000057B5F868B99784572D5C"]


def shown_guids(*arguments: object) -> list[str]:
    """Return the GUIDs that `show` prints in its short form."""
    outcome = bmq("show", *arguments)
    assert outcome.code == 0, outcome.err
    return re.findall(r"^[0-9A-F]{32}$", outcome.out, re.M)


def shown_offsets(*arguments: object) -> list[int]:
    """Return the offsets of all records that `show` prints in JSON."""
    outcome = bmq("show", *arguments, "--json", "line")
    assert outcome.code == 0, outcome.err
    return sorted(int(each["Offset"]) for each in json.loads(outcome.out).get("Records", []))


# ---- filters -----------------------------------------------------------------------------------------------------


def test_messages_are_printed_as_guids_without_the_details_option() -> None:
    """Details print the records, here of one message only."""
    assert shown_guids(JOURNAL, "-r", "message") == GUIDS
    outcome = bmq("show", JOURNAL, "--guid", GUIDS[0], "--details")
    assert outcome.code == 0
    assert re.findall(r"RecordType +: (\S+)", outcome.out) == ["MESSAGE", "CONFIRM", "DELETION"]
    assert outcome.out.endswith("1 message record(s) found.\n\n")


def test_a_missing_guid_is_reported_and_fails_the_command() -> None:
    """The other messages are printed."""
    outcome = bmq("show", JOURNAL, "--guid", GUIDS[1], "--guid", "4" * 32)
    assert outcome.code == 1
    assert outcome.out == f"{GUIDS[1]}\n\n1 message record(s) found.\n\nThe following 1 GUID(s) not found:\n{'4' * 32}\n\n"
    tree = json.loads(bmq("show", JOURNAL, "--guid", "4" * 32, "--json", "pretty").out)
    assert tree == {"MessageRecords": "0", "GuidsNotFound": ["4" * 32]}


@pytest.mark.parametrize(("option", "good", "bad"), [("--seqnum", "1-8", "9-9"), ("--offset", "464", "465")])
def test_a_record_is_selected_by_sequence_number_and_by_offset(option: str, good: str, bad: str) -> None:
    """Records of any type are found, such as this CONFIRM."""
    outcome = bmq("show", JOURNAL, option, good)
    assert outcome.code == 0 and re.findall(r"RecordType +: (\S+)", outcome.out) == ["CONFIRM"]
    assert "1 confirm record(s) found.\nNo deletion record found.\nNo message record found.\n" in outcome.out
    missing = bmq("show", JOURNAL, option, good, option, bad)
    assert missing.code == 1 and f"not found:\n{bad}\n" in missing.out
    tree = json.loads(bmq("show", JOURNAL, option, bad, "--json", "line").out)
    missed = tree.get("SequenceNumbersNotFound", tree.get("OffsetsNotFound"))
    assert tree["ConfirmRecords"] == "0" and missed == [bad]


def test_every_record_can_be_selected_by_its_offset() -> None:
    """Each offset selects the record at that offset."""
    for offset in range(44, JOURNAL.stat().st_size, 60):
        assert shown_offsets(JOURNAL, "--offset", offset) == [offset]


@pytest.mark.parametrize(("bounds", "wanted"), [
    (("--offset-gt", 164, "--offset-lt", 404), GUIDS[1:3]),
    (("--offset-gt", 163, "--offset-lt", 405), GUIDS[:4]),
    (("--seqnum-gt", "1-3"), GUIDS[1:]),
    (("--seqnum-lt", "1-4"), GUIDS[:1]),
    (("--seqnum-gt", "0-99", "--seqnum-lt", "2-1"), GUIDS),
    (("--timestamp-gt", 1795237326), GUIDS[4:]),
    (("--timestamp-lt", 1795237327), GUIDS[:4]),
    (("--timestamp-gt", 1795237325, "--timestamp-lt", 1795237327, "--offset-gt", 224), GUIDS[2:4]),
])
def test_ranges_exclude_their_bounds(bounds: tuple[object, ...], wanted: list[str]) -> None:
    """Ranges select messages by their MESSAGE record; CONFIRMs outside the range are included, as the status needs them."""
    assert shown_guids(JOURNAL, "-r", "message", *bounds) == wanted
    confirmed = shown_guids(JOURNAL, "--confirmed", *bounds)
    assert confirmed == [guid for guid in wanted if guid == GUIDS[0]]


def test_records_of_a_queue_are_selected_by_key_and_by_name() -> None:
    """Sync points belong to no queue."""
    journal, _, ledger = files_of("purge.n1")
    by_name = bmq("show", journal, ledger, "--queue-name", "bmq://d.prio/a", "--details").out
    assert by_name == bmq("show", journal, ledger, "--queue-key", "71941543A9", "--details").out
    assert set(re.findall(r"QueueUri +: (\S+)", by_name)) == {"bmq://d.prio/a"}
    assert "JOURNAL_OP" not in by_name and "4 message record(s) found.\n3 queueOp record(s) found.\n" in by_name
    both = shown_guids(journal, "-r", "message", "--queue-key", "71941543A9", "--queue-key", "591BA22F3E")
    assert len(both) == 8


@pytest.mark.parametrize(("kinds", "types"), [
    (("queue-op",), {"QUEUE_OP"}), (("journal-op",), {"JOURNAL_OP"}),
    (("queue-op", "journal-op"), {"QUEUE_OP", "JOURNAL_OP"}),
    (("message",), {"MESSAGE", "CONFIRM", "DELETION"}),
    (("all",), {"MESSAGE", "CONFIRM", "DELETION", "QUEUE_OP", "JOURNAL_OP"}),
])
def test_records_are_selected_by_type(kinds: tuple[str, ...], types: set[str]) -> None:
    """The option of the original is repeatable."""
    outcome = bmq("show", JOURNAL, "--details", *(part for kind in kinds for part in ("-r", kind)))
    assert set(re.findall(r"RecordType +: (\S+)", outcome.out)) == types


@pytest.mark.parametrize("journal", journals(archives=False), ids=name_of)
def test_outstanding_messages_are_those_that_recovery_restores(journal: Path) -> None:
    """The tool and recovery find the same messages in every recorded set."""
    recovered = recover(open_files(disk_with(journal), int(journal.name[4])))
    wanted = sorted(message.guid.hex().upper() for message in stored(recovered))
    assert sorted(shown_guids(journal, "--outstanding")) == wanted


# ---- forms -------------------------------------------------------------------------------------------------------


def test_json_lines_and_pretty_json_have_the_same_content() -> None:
    """Each line holds one record; --print-mode is the option of the original."""
    line = bmq("show", JOURNAL, DATA, LEDGER, "--dump-payload", "--print-mode", "json-line").out
    assert line == bmq("show", JOURNAL, DATA, LEDGER, "--dump-payload", "--json", "line").out
    assert json.loads(line) == json.loads(bmq("show", JOURNAL, DATA, LEDGER, "--dump-payload", "--json", "pretty").out)
    assert line.count("\n    {") == 15
    assert all(json.loads(part.rstrip(",")) for part in re.findall(r"^    \{.*", line, re.M))


def test_a_payload_dump_is_truncated_at_the_limit() -> None:
    """The number of the other bytes is printed."""
    journal, data, _ = files_of("payload-60k.n1")
    outcome = bmq("show", journal, data, "-r", "message", "--dump-payload", "--dump-limit", 20).out
    assert outcome.startswith("400000000000006DF676823CE72A48C9\n\n\nDataRecord index: 0, offset: 40\n")
    assert "First 20 bytes of payload:\n" in outcome and "And 61420 more bytes (redacted)\n" in outcome
    assert "First 5 bytes of payload:\n     0:   736D616C 6C " in outcome


def test_the_summary_lists_queues_with_a_minimum_number_of_records() -> None:
    """Apps are listed if several have confirmed."""
    journal, _, ledger = files_of("fanout-partial.n1")
    outcome = bmq("show", journal, ledger, "--summary", "--min-records-per-queue", 1).out
    assert ("Number of records per Queue:\n"
            "    Queue Key             : 0B6AECBEA7\n"
            "    Queue URI             : bmq://d.fan/f\n"
            "    Total Records         : 17\n"
            "    Num Queue Op Records  : 1\n"
            "    Num Message Records   : 6\n"
            "    Num Confirm Records   : 9\n"
            "    Num Records Per App   : foo=6 bar=3\n"
            "    Num Delete Records    : 1\n") in outcome
    assert "per Queue" not in bmq("show", journal, "--summary", "--min-records-per-queue", 18).out
    tree = json.loads(bmq("show", journal, "--summary", "--min-records-per-queue", 17, "--json", "line").out)
    (queue,) = tree["PerQueueRecordsNumber"]
    assert queue["Queue Key"] == "0B6AECBEA7" and queue["Total Records"] == "17" and "Queue URI" not in queue


def test_a_summary_counts_only_the_selected_records() -> None:
    """Types that are not selected have no lines."""
    outcome = bmq("show", JOURNAL, "--summary", "-r", "queue-op").out
    assert "Total number of queueOp records: 4\n" in outcome and "messages" not in outcome and "journalOp" not in outcome
    assert "Total number of messages: 2\n" in bmq("show", JOURNAL, "--summary", "--offset-lt", 300).out
    journal = files_of("in-memory.n1")[0]
    assert "\nNo messages found.\n" in bmq("show", journal, "--summary").out
    none = bmq("show", journal, "--summary", "--offset-gt", 10 ** 6).out
    assert "\nNo queueOp records found.\n" in none and "\nNo journalOp records found.\n" in none


def create_file_set(directory: Path) -> Path:
    """Create a set with options, properties inside and outside of compressed data, an app's purge, two queues."""
    disk = MemoryDisk()
    partition, _ = start(disk)
    partition.queues.create(KEY, "bmq://d/q", DEFAULT, WALL)
    partition.queues.create(OTHER, "bmq://d/other", [("a", b"aaaaa"), ("b", b"bbbbb")], WALL)
    fields = {"name": (PropertyType.STRING, "naïve"), "n": (PropertyType.SHORT, -3)}
    area = {v2: wire_properties.encode(fields, v2) for v2 in (False, True)}
    compressed = zlib.compress(area[False] + b"old style " * 200)
    partition.append_message(KEY, make_message(1, compressed, compression=1, has_properties=True), WALL)
    partition.append_message(KEY, make_message(2, area[True] + zlib.compress(b"new style " * 200), compression=1,
                                               has_properties=True, schema_id=3), WALL)
    partition.append_message(KEY, make_message(3, area[False] + b"plain", has_properties=True), WALL)
    partition.append_message(KEY, make_message(4, b"with options", options=encode_options(
        [wire_options.GroupId(b"group")])), WALL)
    partition.append_message(OTHER, make_message(5, b"no properties at all", has_properties=True, ref_count=2), WALL)
    partition.stop(WALL + 1)
    spill(disk, directory)
    write_ledger(directory, WALL, [("bmq://d/q", KEY, DEFAULT), ("bmq://d/other", OTHER, [("a", b"aaaaa")])])
    return directory


def test_properties_options_and_compression_are_shown_if_readable(tmp_path: Path) -> None:
    """Old-style properties lie inside compressed data, new-style ones before it; invalid ones are reported, not raised."""
    directory = create_file_set(tmp_path / "s")
    parts = bmq("show", directory, "-r", "message", "--dump-payload").out.split("DataRecord index")[1:]
    named = "Name [name], Type [STRING], Value [naïve]\n    Name [n], Type [SHORT], Value [-3]\n"
    assert named in parts[0] and "Payload (inflated): \nFirst 1024 bytes" in parts[0]
    assert "|old style old st|" in parts[0]
    assert named in parts[1] and "Payload: \n" in parts[1] and "     0:   789C" in parts[1]
    assert named in parts[2] and "First 5 bytes of payload:\n     0:   706C6169 6E " in parts[2]
    assert "OptionsWords: 3\n" in parts[3] and "GroupId(text=b'group')" in parts[3]
    assert "properties cannot be read" in parts[4] and "First 20 bytes" in parts[4]
    records = json.loads(bmq("show", directory, "-r", "message", "--dump-payload", "--json", "line").out)["Records"]
    assert records[2]["Properties"] == [{"Name": "name", "Type": "STRING", "Value": "naïve"},
                                        {"Name": "n", "Type": "SHORT", "Value": "-3"}]
    assert "properties cannot be read" in records[4]["PayloadProblem"]


def test_damaged_records_are_reported_and_the_others_shown(tmp_path: Path) -> None:
    """Unreadable parts are reported on stderr or in the output; all other records are found."""
    directory = create_file_set(tmp_path / "s")
    change(one(directory, "journal"), 44 + 60 * 4 + 56, b"nope")
    change(one(directory, "data"), 40, bytes(12))
    outcome = bmq("show", directory, "-r", "message", "--dump-payload")
    assert outcome.code == 0 and "unreadable: skipped" in outcome.err
    assert "4 message record(s) found." in outcome.out
    assert "Failed to retrieve message from DATA file: the DATA record at offset 40 is damaged\n" in outcome.out
    assert "DataRecord index: unknown" in outcome.out


def test_a_file_that_is_not_a_storage_file_is_reported(tmp_path: Path) -> None:
    """An invalid header or a missing one is reported."""
    journal, ledger = tmp_path / "x.bmq_journal", tmp_path / "x.bmq_csl"
    journal.write_bytes(bytes(range(200)))
    ledger.write_bytes(b"")
    assert "file magic is wrong" in bmq("show", journal).err
    assert "no record can be read" in bmq("ledger", ledger).err


def test_records_of_unknown_type_are_shown_as_unknown(tmp_path: Path) -> None:
    """The type and the operation are of another version."""
    directory = create_file_set(tmp_path / "s")
    path = one(directory, "journal")
    change(path, 44 + 60 * 3, b"\x90")
    change(path, path.stat().st_size - 60 + 27, b"\x03")
    outcome = bmq("show", directory, "-r", "journal-op").out
    assert "RecordType      : UNKNOWN (9)" in outcome and "JournalOpType   : UNKNOWN (3)" in outcome


# ---- naming files ------------------------------------------------------------------------------------------------


def test_files_are_given_by_name_by_prefix_or_by_directory(tmp_path: Path) -> None:
    """All three give the same output."""
    directory = storage_directory("app-added-removed.n1", tmp_path / "s")
    journal, data, ledger = (one(directory, kind) for kind in ("journal", "data", "csl"))
    wanted = bmq("show", journal, data, ledger, "--details", "--dump-payload").out
    more = ("--details", "--dump-payload")
    assert bmq("show", directory, *more).out == wanted
    assert bmq("show", f"{directory}/bmq_*", *more).out == wanted
    assert bmq("show", "--journal-path", f"{directory}/bmq_0*", "--csl-file", ledger, *more).out == wanted
    assert bmq("show", "--journal-file", journal, "--data-file", data, "--csl-file", ledger, *more).out == wanted


def test_a_directory_with_several_partitions_requires_the_partition_option(tmp_path: Path) -> None:
    """The error names the option."""
    directory = storage_directory("three-nodes.n1", tmp_path / "s")
    outcome = bmq("show", directory)
    assert outcome.code == 2 and "--partition" in outcome.err
    assert bmq("show", directory, "--partition", 1).out == bmq("show", directory / "bmq_1.20261121_050208.bmq_journal",
                                                               ledger_of("three-nodes.n1")).out
    assert bmq("show", directory, "--partition", 7).code == 2


def test_a_ledger_alone_is_shown_as_a_ledger(tmp_path: Path) -> None:
    """`show` and `ledger` give the same output, from a file or a directory."""
    wanted = bmq("ledger", LEDGER, "--details").out
    assert bmq("show", "--csl-file", LEDGER, "--details").out == wanted
    directory = storage_directory("app-added-removed.n1", tmp_path / "s")
    assert bmq("ledger", directory, "--details").out == wanted


def test_files_are_opened_for_reading_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No command opens a file for writing."""
    directory = storage_directory("app-added-removed.n1", tmp_path / "s")
    seen = []
    real = os.open

    def watched(path, flags, *more, **keywords):
        if "bmq_" in str(path):
            seen.append(flags)
        return real(path, flags, *more, **keywords)

    monkeypatch.setattr(os, "open", watched)
    for arguments in (("show", directory, "--dump-payload"), ("show", directory, "--summary"), ("ledger", directory),
                      ("qlist", directory), ("verify", directory), ("compare", directory, directory)):
        assert bmq(*arguments).code == 0
    assert len(seen) > 10
    assert all(flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT | os.O_TRUNC) == 0 for flags in seen)


def test_a_progress_bar_is_shown_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress bar is on stderr, and only if that is a terminal."""
    monkeypatch.setattr(command, "_PROGRESS_BYTES_MIN", 1)
    with command._progress([str(JOURNAL)]) as watch:
        assert watch is None
    monkeypatch.setattr(command.sys.stderr, "isatty", lambda: True, raising=False)
    with command._progress([str(JOURNAL)]) as watch:
        assert watch is not None
        watch(100)


# ---- ledgers and QLIST -------------------------------------------------------------------------------------------


def test_a_ledger_is_shown_from_its_last_snapshot_by_default() -> None:
    """This ledger has a snapshot for each start."""
    path = ledger_of("crash-single.n1-after-restart")
    whole, recent = (len(re.findall("^\\[ recordType", bmq("ledger", path, *more).out, re.M))
                     for more in (("--csl-from-begin",), ()))
    assert whole > recent > 0
    assert bmq("ledger", path).out.startswith("[ recordType = SNAPSHOT electorTerm = 2 ")


def test_records_of_a_ledger_are_selected_by_filters() -> None:
    """Filters are type, LSN, offset, queue and range."""
    def found(*arguments: object) -> list[int]:
        outcome = bmq("ledger", LEDGER, *arguments)
        assert outcome.code == 0
        return [int(each) for each in re.findall(r"offset = (\d+)", outcome.out)]

    assert found() == [8, 88, 160, 284, 356, 480, 552, 676]
    assert found("--csl-record-type", "snapshot", "--csl-record-type", "commit") == [8, 88, 284, 480, 676]
    assert found("--seqnum", "1-3", "--seqnum", "1-5") == [160, 356]
    assert found("--offset", 88) == [88]
    assert found("--queue-key", "EB538CAE81") == found("--queue-name", "bmq://d.fan/f") == [160, 356, 552]
    assert found("--seqnum-gt", "1-6") == [552, 676] == found("--timestamp-gt", 1795237326)
    assert found("--offset-gt", 88, "--offset-lt", 284) == [160]
    missing = bmq("ledger", LEDGER, "--seqnum", "4-4")
    assert missing.code == 1 and "The following 1 sequence number(s) not found:\n4-4\n" in missing.out


def test_queues_of_a_ledger_are_listed_up_to_a_limit() -> None:
    """The count includes queues above the limit."""
    path = ledger_of("three-nodes.n1")
    outcome = bmq("ledger", path, "--summary", "--summary-queues-limit", 1).out
    assert "3 Queues found:\nOnly first 1 queues are displayed.\n" in outcome and outcome.count("uri = ") == 1
    tree = json.loads(bmq("ledger", path, "--summary", "--summary-queues-limit", 2, "--json", "line").out)
    assert len(tree["First2Queues"]) == 2


def test_damage_in_a_ledger_is_reported_and_the_other_records_shown(tmp_path: Path) -> None:
    """An unreadable record is skipped."""
    path = tmp_path / LEDGER.name
    path.write_bytes(LEDGER.read_bytes())
    change(path, 200, b"\xff")
    outcome = bmq("ledger", path)
    assert "wrong checksum" in outcome.err and outcome.out.count("recordType") == 7


def test_queues_and_apps_of_a_qlist_are_listed(tmp_path: Path) -> None:
    """ADDITIONs hold the added apps only."""
    path = JOURNAL.with_suffix(".bmq_qlist")
    outcome = bmq("qlist", path)
    assert outcome.code == 0 and outcome.out.endswith("2 queue record(s) found.\n\n")
    assert ("    QueueUri    : bmq://d.fan/f\n    QueueKey    : EB538CAE81\n"
            "    App         : a [8DEC9022E1]\n") in outcome.out
    tree = json.loads(bmq("qlist", path, "--json", "pretty").out)
    assert [[app["AppId"] for app in each["Apps"]] for each in tree["Records"]] == [["a", "b"], ["c"]]
    damaged = tmp_path / path.name
    damaged.write_bytes(path.read_bytes())
    change(damaged, int(tree["Records"][1]["Offset"]), b"\xff\xff")
    outcome = bmq("qlist", damaged)
    assert outcome.code == 1 and "there is no record at offset 140" in outcome.err


# ---- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "hint"), [
    ((), "Name a .bmq_journal"),
    (("missing.bmq_journal",), "cannot be opened: No such file"),
    (("missing*",), "no storage file begins with missing"),
    (("notes.txt",), "there is no notes.txt"),
    ((__file__,), "is not a storage file"),
    ((JOURNAL, files_of("ttl.n1")[0]), "two journal files"),
    ((JOURNAL, "--dump-payload"), "needs the DATA file"),
    ((JOURNAL, "--queue-name", "bmq://d/q"), "needs the ledger"),
    ((JOURNAL, LEDGER, "--queue-name", "bmq://d/unknown"), "has no queue bmq://d/unknown"),
    ((JOURNAL, "--queue-key", "12"), "10 hexadecimal digits"),
    ((JOURNAL, "--guid", "xyz"), "32 hexadecimal digits"),
    ((JOURNAL, "--seqnum", "12"), "two numbers with a dash"),
    ((JOURNAL, "--outstanding", "--confirmed"), "Choose one of"),
    ((JOURNAL, "--guid", "4" * 32, "--seqnum", "1-1"), "leave out the other filters"),
    ((JOURNAL, "--offset", "44", "--timestamp-gt", "5"), "leave out the other filters"),
    ((JOURNAL, "--summary", "--outstanding"), "--summary counts all records"),
    ((JOURNAL, "--summary", "--details"), "--summary counts all records"),
    ((JOURNAL, "--offset-gt", "9", "--offset-lt", "9"), "is empty"),
    ((JOURNAL, "--csl-from-begin"), "does not apply to a journal"),
    ((LEDGER, "--outstanding"), "does not apply to a ledger"),
    ((LEDGER, "--summary", "--seqnum", "1-1"), "--summary of a ledger counts all records"),
    (("--journal-path", "x*", "--journal-file", JOURNAL), "leave out --journal-file"),
    (("--journal-file", DATA), "--journal-file takes a .bmq_journal"),
])
def test_an_invalid_command_line_is_refused_with_a_hint(arguments: tuple[object, ...], hint: str) -> None:
    """The exit code is 2, stdout is empty, and stderr has a hint."""
    outcome = bmq("show", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert hint in " ".join(outcome.err.split())


def test_help_names_every_command() -> None:
    """Without a command the group prints its help."""
    outcome = bmq("--help").out
    assert all(f"  {name} " in outcome for name in ("show", "ledger", "qlist", "verify", "compare"))
