"""`bmq storage` compared with the recorded output of `bmqstoragetool` for files of real brokers.

Where the output of the original is wrong, a function of this module computes the expected output from its own detailed
output; docs/storage-tool.md documents each of these differences.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from kit.storagetool_kit import TOLD, bmq, files_of, ledger_of

Tree = dict[str, Any]
OUTPUTS = sorted(TOLD.glob("*/*.txt"))
_NAME = re.compile(r"(?:archive\.)?p(\d)\.(?:(\d{8}_\d{6})\.)?([a-z-]+)\.(human|json)\.txt")
_TORN = re.compile(r"CSL file is either corrupted or incomplete at offset=(\d+)\. .*\n")


def select(*kinds: str, form: str) -> list[Any]:
    """Return the recorded outputs as test parameters: (case, partition, archived set, kind, path)."""
    found = []
    for path in OUTPUTS:
        match = _NAME.fullmatch(path.name)
        if match and match[3] in kinds and match[4] == form:
            found.append(pytest.param(path.parent.name, match[1], match[2] or "", match[3], path,
                                      id=f"{path.parent.name}/{path.name.removesuffix('.txt')}"))
    assert found
    return found


def ledgers(kind: str, form: str) -> list[Any]:
    """Return the recorded outputs for ledgers as test parameters."""
    return [pytest.param(path.parent.name, path, id=path.parent.name)
            for path in OUTPUTS if path.name == f"{kind}.{form}.txt"]


def run(case: str, partition: str, archived: str, kind: str, *more: str) -> str:
    """Return the output of `bmq storage` with the options of the recording."""
    journal, data, ledger = files_of(case, partition, archived)
    arguments = {"details": (journal, data, ledger, "--details", "--dump-payload"), "journal": (journal, "--details"),
                 "summary": (journal, data, "--summary")}
    outcome = bmq("show", *arguments.get(kind, (journal, "-r", "all", f"--{kind}")), *more)
    assert outcome.code == 0 and not outcome.err
    return outcome.out


# ---- errors of the original -------------------------------------------------------------------------------------


def details_of(path: Path) -> list[Tree]:
    """Return the records of the detailed JSON output in the directory of `path`."""
    name = re.sub(r"\.(summary|outstanding|confirmed|partially-confirmed)\..*", ".details.json.txt", path.name)
    records: list[Tree] = json.loads((path.parent / name).read_text())["Records"]
    return records


@cache
def statuses(path: Path) -> dict[str, str]:
    """Return GUID -> outstanding, confirmed or purged, from the recorded details: the original's summary and filters ignore
    the last confirmation of a single app, expiry and the purge of a queue."""
    records = details_of(path)
    deleted = {each["GUID"] for each in records if each["RecordType"] == "DELETION"}
    ends = [(each["QueueKey"], int(each["Index"])) for each in records if each["RecordType"] == "QUEUE_OP"
            and each["AppKey"] == "0000000000" and each["QueueOpType"] in ("PURGE", "DELETION")]
    found = {}
    for each in records:
        if each["RecordType"] == "MESSAGE":
            purged = any(key == each["QueueKey"] and index > int(each["Index"]) for key, index in ends)
            found[each["GUID"]] = "confirmed" if each["GUID"] in deleted else "purged" if purged else "outstanding"
    return found


def outstanding_ratio(path: Path) -> tuple[int, int, int]:
    """Return the right (percent, outstanding, total)."""
    found = list(statuses(path).values())
    outstanding = found.count("outstanding")
    return int(100 * outstanding / len(found) + 0.5), outstanding, len(found)


def dump(data: bytes) -> str:
    """Format bytes as both tools do."""
    text = ""
    for start in range(0, len(data), 16):
        part = data[start:start + 16]
        digits = re.sub(r"(.{8})(?=.)", r"\1 ", part.hex().upper())
        text += f"{start:6}:   {digits:35}     |{re.sub(rb'[^ -~]', b'.', part).decode():16}|\n"
    return text


def without_area_padding(text: str) -> str:
    """The padding of the properties area (n bytes of value n) is no payload."""

    def corrected(match: re.Match[str]) -> str:
        data = b"".join(bytes.fromhex(line[10:45].replace(" ", "")) for line in match[3].splitlines())
        data = data[data[0]:]
        return f"{match[1]}First {len(data)} bytes of payload:\n{dump(data)}"

    return re.sub(r"(Properties: \n(?:    Name .*\n)+\nPayload: \n)First (\d+) bytes of payload:\n((?: +\d+:   .*\n)+)",
                  corrected, text)


def without_auto_confirms(text: str) -> tuple[str, int]:
    """The original omits CONFIRMs that precede their MESSAGE (a subscription did not match); `bmq storage` prints them."""
    return re.subn(r"    RecordType      : CONFIRM\n(?:    .*\n)+\n", "", text)


# ---- journals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "partition", "archived", "kind", "path"), select("details", "journal", form="human"))
def test_details_equal_the_recorded_text_of_the_original(case: str, partition: str, archived: str, kind: str,
                                                         path: Path) -> None:
    """All records in the same order, all fields with the same names, DATA headers, properties and payload dumps."""
    printed = run(case, partition, archived, kind)
    if case == "auto-confirm.n1":
        printed, removed = without_auto_confirms(printed)
        assert removed == 2
    assert printed == without_area_padding(path.read_text())


@pytest.mark.parametrize(("case", "partition", "archived", "kind", "path"), select("details", "journal", form="json"))
def test_details_in_json_have_the_members_and_values_of_the_original(case: str, partition: str, archived: str, kind: str,
                                                                     path: Path) -> None:
    """All members of the original have the same text; properties are added."""
    parsed = json.loads(run(case, partition, archived, kind, "--json", "pretty"))
    expected = json.loads(path.read_text())
    if case == "auto-confirm.n1":
        before = len(parsed["Records"])
        parsed["Records"] = [each for each in parsed["Records"] if each["RecordType"] != "CONFIRM"]
        assert before - len(parsed["Records"]) == 2
    for record, other in zip(parsed["Records"], expected["Records"], strict=True):
        if record.pop("Properties", None):
            other["Payload"] = other["Payload"][2 * int(other["Payload"][:2], 16):]
        assert list(record.items()) == list(other.items())
    assert parsed == expected


@pytest.mark.parametrize(("case", "partition", "archived", "kind", "path"),
                         select("outstanding", "confirmed", "partially-confirmed", form="human"))
def test_filters_by_status_select_the_messages_of_the_original(case: str, partition: str, archived: str, kind: str,
                                                               path: Path) -> None:
    """The same GUIDs in the same order, except for purged messages; the ratio is always of all messages."""
    wanted = path.read_text()
    found = statuses(path)
    for guid in [guid for guid, status in found.items() if status == "purged"]:
        wanted = wanted.replace(f"{guid}\n\n", "")
    count = len(re.findall(r"^[0-9A-F]{32}$", wanted, re.M))
    wanted = re.sub(r"^\d+ message record", f"{count} message record", wanted, flags=re.M)
    if found:
        percent, outstanding, total = outstanding_ratio(path)
        wanted = re.sub(r"Outstanding ratio: .*", f"Outstanding ratio: {percent}% ({outstanding}/{total})", wanted)
    assert run(case, partition, archived, kind) == wanted


@pytest.mark.parametrize(("case", "partition", "archived", "kind", "path"),
                         select("outstanding", "confirmed", "partially-confirmed", form="human"))
def test_filters_by_status_without_record_types_print_only_messages(case: str, partition: str, archived: str, kind: str,
                                                                    path: Path) -> None:
    """The original adds all queue and journal operations unless a record type is given."""
    printed = bmq("show", files_of(case, partition)[0], f"--{kind}").out
    guids = [guid for guid in re.findall(r"^[0-9A-F]{32}$", path.read_text(), re.M) if statuses(path)[guid] != "purged"]
    lines = [line for line in printed.splitlines() if line and "found" not in line and "ratio" not in line]
    assert lines == guids and "RecordType" not in printed


@pytest.mark.parametrize(("case", "partition", "archived", "kind", "path"), select("summary", form="human"))
def test_the_summary_has_the_lines_of_the_original(case: str, partition: str, archived: str, kind: str, path: Path) -> None:
    """The text is equal, except for the corrected numbers of messages."""
    found = list(statuses(path).values())
    wanted = path.read_text()
    if found:
        percent, outstanding, total = outstanding_ratio(path)
        purged = f"Number of purged messages: {found.count('purged')}\n" if "purged" in found else ""
        right = {r"Number of confirmed messages: .*": f"Number of confirmed messages: {found.count('confirmed')}",
                 r"Number of outstanding messages: .*": f"{purged}Number of outstanding messages: {outstanding}",
                 r"Outstanding ratio: .*": f"Outstanding ratio: {percent}% ({outstanding}/{total})"}
        for pattern, text in right.items():
            wanted, count = re.subn(pattern, text, wanted)
            assert count == 1
    assert run(case, partition, archived, kind) == wanted


@pytest.mark.parametrize(("case", "partition", "archived", "kind", "path"), select("summary", form="json"))
def test_the_summary_in_json_has_the_members_of_the_original(case: str, partition: str, archived: str, kind: str,
                                                             path: Path) -> None:
    """Order, names and values are equal, except for the corrected numbers of messages."""
    wanted = json.loads(path.read_text())
    found = list(statuses(path).values())
    if found:
        percent, outstanding, _ = outstanding_ratio(path)
        wanted |= {"ConfirmedMessagesNumber": str(found.count("confirmed")),
                   "OutstandingMessagesNumber": str(outstanding), "OutstandingRatio": str(percent),
                   "OutstandingMessages": str(outstanding)}
    printed = json.loads(run(case, partition, archived, kind, "--json", "pretty"))
    assert printed.pop("PurgedMessagesNumber", "0") == str(found.count("purged"))
    assert list(printed) == list(wanted) and printed == wanted


# ---- ledgers -----------------------------------------------------------------------------------------------------


def run_ledger(case: str, recorded: str, *options: str) -> tuple[str, str]:
    """Return our output, and the recorded one without its error text for the end of the file, which is on stderr here."""
    outcome = bmq("ledger", ledger_of(case), "--csl-from-begin", *options)
    assert outcome.code == 0
    torn = _TORN.search(recorded)
    assert (f"offset {torn[1]}: the file is in use" in outcome.err) if torn else not outcome.err
    return outcome.out, _TORN.sub("", recorded)


@pytest.mark.parametrize(("case", "path"), ledgers("csl", "human"))
def test_records_of_a_ledger_equal_the_recorded_text_of_the_original(case: str, path: Path) -> None:
    printed, wanted = run_ledger(case, path.read_text(), "--details")
    assert printed == wanted


def hexadecimal(tree: Any) -> Any:
    """The original prints keys whose base64 form has a slash in base64."""
    if isinstance(tree, list):
        return [hexadecimal(each) for each in tree]
    if isinstance(tree, dict):
        return {name: b64decode(value).hex().upper() if name in ("key", "appKey") and "/" in value
                else hexadecimal(value) for name, value in tree.items()}
    return tree


@pytest.mark.parametrize(("case", "path"), ledgers("csl", "json"))
def test_records_of_a_ledger_in_json_have_the_members_of_the_original(case: str, path: Path) -> None:
    """Decoded bodies are equal, too."""
    printed, wanted = run_ledger(case, path.read_text(), "--json", "pretty")
    assert json.loads(printed) == hexadecimal(json.loads(wanted))


@pytest.mark.parametrize(("case", "path"), ledgers("csl.summary", "human"))
def test_the_summary_of_a_ledger_has_the_counts_and_queues_of_the_original(case: str, path: Path) -> None:
    """The original lists queues in the order of a hash table, removed ones included."""
    printed, wanted = run_ledger(case, path.read_text(), "--summary")
    head, queues = printed.split("\n\n")[:-1], re.findall(r"^\[ uri.*", printed, re.M)
    assert sorted(queues) == sorted(re.findall(r"^\[ uri.*", wanted, re.M))
    counts = re.findall(r"^(?:\d+|No) (?:unassigned )?Queues found", printed, re.M)
    assert sum(int(each.split()[0]) for each in counts) == len(queues)
    assert [each for each in head if "uri" not in each] == [each for each in wanted.split("\n\n")[:-1]
                                                           if "uri" not in each]


@pytest.mark.parametrize(("case", "path"), ledgers("csl.summary", "json"))
def test_the_summary_of_a_ledger_in_json_has_the_members_of_the_original(case: str, path: Path) -> None:
    """Removed queues are in a separate list."""
    printed, wanted = run_ledger(case, path.read_text(), "--summary", "--json", "pretty")
    parsed, expected = json.loads(printed), hexadecimal(json.loads(wanted))
    assert parsed["Summary"] == expected["Summary"]
    queues = [*parsed["Queues"], *parsed.get("UnassignedQueues", [])]
    assert sorted(queues, key=str) == sorted(expected["Queues"], key=str)
