"""Answers of admin commands compared with those of the original, byte for byte."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bmqtwist.admin import commands, table
from bmqtwist.admin.commands import AnswerKind, Value, integer
from bmqtwist.admin.json import dump
from bmqtwist.admin.text import window_text
from bmqtwist.broker.graceful_stop import ClusterProgress, StopProgress
from bmqtwist.machine import Transition
from bmqtwist.textformat import timestamp_text
from bmqtwist.view import snapshot as state

VECTORS = Path(__file__).parents[2] / "vectors" / "admin" / "session.json"
GOLDEN: dict[str, list[str]] = {}
for _pair in json.loads(VECTORS.read_text()):
    GOLDEN.setdefault(_pair["command"], []).append(_pair["answer"])

NO_CONTEXT: Any = None  # HELP needs no context
NODE = "[n1, 1]"
FAN, PRIO = "DOMAINS DOMAIN t.fan ", "DOMAINS DOMAIN t.prio QUEUE adm "
CLUSTER = "CLUSTERS CLUSTER c3 "


def print_json(kind: AnswerKind, result: Any, pretty: bool) -> str:
    return dump({kind.name: kind.tree(result)}, pretty)


def golden(command: str, occurrence: int = 0) -> str:
    return GOLDEN[command][occurrence]


def wall_time(microseconds: int) -> float:
    return datetime(2026, 11, 21, 5, 23, 56, microseconds, UTC).timestamp()


def meter(name: str, messages: int, size: int, parent: state.MeterSnapshot | None = None) -> state.MeterSnapshot:
    scale = 1 if name.startswith("queue") else 2
    return state.MeterSnapshot(name, messages, scale * 10_000_000, size, scale * 10_485_760_000, parent=parent)


FIRST = commands.ListedMessage("400001525B0910CF81A40A0B0C0D0E0F", 3, wall_time(623349))
SECOND = commands.ListedMessage("400002525B0910D004940A0B0C0D0E0F", 3, wall_time(623493))
THIRD = commands.ListedMessage("400003525B0910D029280A0B0C0D0E0F", 3, wall_time(623495))
LISTED = commands.QueueContents((FIRST, SECOND, THIRD), 0, 3)

FAN_CONFIG = json.loads(golden("ENCODING JSON_COMPACT " + FAN + "INFOS"))["domainInfo"]["configJson"]
FAN_STORAGE = state.StorageState("bmq://t.fan/adm", "4CF923E884", 1, 2, 8)
FAN_INFO = state.DomainState(
    "t.fan", "c3", "fanout", FAN_CONFIG, meter("domain [bmq://t.fan]", 2, 8),
    queues=(state.QueueState("bmq://t.fan/adm", "adm", "t.fan", "4CF923E884", "fanout", 1, 2, 8,
                             meter("queue [bmq://t.fan/adm]", 2, 8)),),
    storages=(FAN_STORAGE, state.StorageState("bmq://t.fan/sdkf", "1FD7A73507", 1, 0, 0)))

READER = state.SubscriptionState(1, "", "E_UNDEFINED", 0, 1, 1, 33554432, 1, 3, True)
INTERNALS = state.QueueState(
    "bmq://t.prio/adm", "adm", "t.prio", "8F5388E062", "priority", 0, 3, 9,
    meter("queue [bmq://t.prio/adm]", 3, 9, meter("domain [bmq://t.prio]", 12, 2120)),
    apps=(state.AppState("__default", "3000000000", "alive", 3, 9, consumers=1, at_end=False,
                         router=(state.RouterEntry(0, "rawtest:4242.9", 1, ""),)),),
    handles=(state.HandleState(0x7FAA0814B610, "rawtest:4242.9", "bmq://t.prio/adm", 0, 2, 1, 0,
                               (state.SubstreamState(0, "__default", 1, 1, (READER,)),)),
             state.HandleState(0x7FAA0811EF50, "rawtest:4242", "bmq://t.prio/adm", 0, 4, 0, 1,
                               (state.SubstreamState(0, "__default"),))))

# key, partition, opened here, uri, in-memory, messages, bytes; in the order of the cluster's metadata
QUEUES = [
    ("4CF923E884", 1, True, "t.fan/adm"), ("1FD7A73507", 1, False, "t.fan/sdkf"),
    ("4A9FF329C7", 0, False, "t.prio/oo"), ("8F5388E062", 0, True, "t.prio/adm"), ("2E6646E4F2", 1, False, "t.sc/q"),
    ("A0713BD904", 0, False, "t.fan/f9"), ("9AB0A3ACB7", 0, False, "t.prio/dis"),
    ("690E45C952", 1, False, "t.mem/big"), ("814D6C9B9C", 1, False, "t.prio/crcq"), ("9D5502AABC", 1, False, "t.q3/n"),
    ("E579E97CA6", 1, False, "t.prio/gs3"), ("2F62ECF5D1", 0, False, "t.prio/evq"),
    ("DA57313711", 0, False, "t.prio/gs"), ("36B6A3049C", 1, False, "t.prio/rw"), ("E6812E79DB", 1, False, "t.mem/gs"),
    ("B9541621F1", 0, False, "t.prio/lc"), ("444CC1D956", 0, False, "t.mem/dis"), ("EB8A872876", 0, False, "t.ttl/b")]
STORED = {  # partition -> keys in storage order, with messages and bytes
    0: [("2F62ECF5D1", 1, 1), ("9AB0A3ACB7", 1, 1), ("8F5388E062", 0, 0), ("B9541621F1", 0, 0), ("A0713BD904", 0, 0),
        ("EB8A872876", 0, 0), ("444CC1D956", 0, 0), ("4A9FF329C7", 0, 0), ("DA57313711", 0, 0)],
    1: [("814D6C9B9C", 5, 2108), ("2E6646E4F2", 2, 2), ("E579E97CA6", 2, 2), ("4CF923E884", 0, 0),
        ("690E45C952", 0, 0), ("E6812E79DB", 0, 0), ("1FD7A73507", 0, 0), ("9D5502AABC", 0, 0), ("36B6A3049C", 0, 0)]}
URIS = {key: "bmq://" + name for key, _, _, name in QUEUES}
MB = 1 << 20


def partition(number: int) -> state.PartitionSnapshot:
    storages = tuple(state.StorageState(URIS[key], key, number, messages, size, "t.mem" not in URIS[key])
                     for key, messages, size in STORED[number])
    used = [(5260, 72, 30760, 944, 8356, 880), (3648, 2304, 12520, 1424, 2400, 920)][number]
    return state.PartitionSnapshot(
        number, NODE, 7, [10, 25][number], queues=9, active=1, aliased=1, batch=100,
        data_file=["bmq_0.20261121_050037.bmq_data", "bmq_1.20261121_051422.bmq_data"][number],
        data=state.FileState(used[0], 256 * MB, used[1]), journal=state.FileState(used[2], 64 * MB, used[3]),
        qlist=state.FileState(used[4], 8 * MB, used[5]), records=[15, 23][number], storages=storages)


THE_CLUSTER = state.ClusterSnapshot(
    "c3", NODE, True, (state.NodeState(NODE, "n1", 1, "dc1", "self", "E_AVAILABLE", (0, 1)),),
    state.ElectorState("LEADER", NODE, 7, 6, "ACTIVE"), (partition(0), partition(1)),
    tuple(state.AssignedQueue("bmq://" + name, key, number, NODE,
                              name.partition("/")[0], opened) for key, number, opened, name in QUEUES),
    "/var/lib/bmq/c/n1/storage")
QUORUM_TEXT = "non-negative integer count of the number of peers required to persist each message"


def purged(uri: str, messages: int, size: int, *app: str) -> commands.Purged:
    return commands.Purged("bmq://" + uri, messages, size, *app)


EMPTY_FAN = commands.PurgeReport(tuple(purged(uri, 0, 0) for uri in ("t.fan/adm", "t.fan/sdkf", "t.fan/f9")))

TEXT_ANSWERS: list[tuple[str, int, AnswerKind, Any]] = [
    ("HELP", 0, table.HELP, table.show_help(NO_CONTEXT, False)),
    ("help plumbing", 0, table.HELP, table.show_help(NO_CONTEXT, True)),
    (PRIO + "LIST 0 UNLIMITED", 0, table.CONTENTS, LISTED),
    (PRIO + "LIST -1 1", 0, table.CONTENTS, commands.QueueContents((THIRD,), 2, 3)),
    (FAN + "INFOS", 0, table.DOMAIN, FAN_INFO),
    (PRIO + "INTERNALS", 0, table.QUEUE, INTERNALS),
    (FAN + "QUEUE adm PURGE nope", 0, table.PURGED, commands.PurgeReport(
        (), ("Specified appId 'nope' not found in the storage of queue 'bmq://t.fan/adm'.",))),
    (FAN + "QUEUE adm PURGE foo", 0, table.PURGED, commands.PurgeReport((purged("t.fan/adm", 2, 8, "foo", "DB0F821754"),))),
    (PRIO + "PURGE *", 0, table.PURGED, commands.PurgeReport((purged("t.prio/adm", 3, 9),))),
    (PRIO + "PURGE *", 1, table.PURGED, commands.PurgeReport((purged("t.prio/adm", 0, 0),))),
    (FAN + "PURGE", 0, table.PURGED, commands.PurgeReport(
        (purged("t.fan/sdkf", 0, 0), purged("t.fan/f9", 0, 0), purged("t.fan/adm", 2, 8)))),
    ("DOMAINS RECONFIGURE t.prio", 0, table.DONE, None),
    ("DOMAINS RECONFIGURE t.nosuch", 0, table.ERROR, ("Domain 't.nosuch' doesn't exist")),
    ("STAT LIST_TUNABLES", 0, table.TUNABLES, ()),
    ("CLUSTERS LIST", 0, table.CLUSTERS, (THE_CLUSTER,)),
    (CLUSTER + "STATUS", 0, table.CLUSTER, THE_CLUSTER),
    (CLUSTER + "STORAGE SUMMARY", 0, table.STORAGE,
     THE_CLUSTER),
    (CLUSTER + "STORAGE PARTITION 0 SUMMARY", 0, table.STORAGE,
     replace(THE_CLUSTER, partitions=THE_CLUSTER.partitions[:1])),
    (CLUSTER + "STORAGE REPLICATION LIST_TUNABLES", 0, table.TUNABLES, (
        commands.Tunable("QUORUM", integer(1), QUORUM_TEXT),)),
    (CLUSTER + "STORAGE REPLICATION GET QUORUM", 0, table.TUNABLE, commands.Tunable("Quorum", integer(1))),
    (CLUSTER + "STORAGE REPLICATION SET QUORUM 1", 0, table.CONFIRMATION,
     commands.TunableConfirmation("Quorum", integer(1), integer(1))),
    (CLUSTER + "STATE ELECTOR SET QUORUM 1", 0, table.CONFIRMATION,
     commands.TunableConfirmation("Quorum", integer(0), integer(1))),
    (CLUSTER + "STORAGE DOMAIN t.fan QUEUE_STATUS", 0, table.STORED_QUEUES, (
        (state.StorageState("bmq://t.fan/adm", "4CF923E884", 1, 0, 0),))),
]

JSON_ANSWERS: list[tuple[str, bool, AnswerKind, Any]] = [
    ("ENCODING JSON_COMPACT HELP PLUMBING", False, table.HELP, table.show_help(NO_CONTEXT, True)),
    ('{"help":{"plumbing":true},"encoding":"JSON_PRETTY"}', True, table.HELP, table.show_help(NO_CONTEXT, True)),
    ("ENCODING JSON_COMPACT " + PRIO + "LIST 0 UNLIMITED", False, table.CONTENTS, LISTED),
    ("ENCODING JSON_COMPACT " + FAN + "INFOS", False, table.DOMAIN, FAN_INFO),
    ("ENCODING JSON_PRETTY " + FAN + "PURGE", True, table.PURGED, EMPTY_FAN),
    ("ENCODING JSON_COMPACT STAT GET ZZ", False, table.ERROR, (
        "Unsupported tunable 'ZZ': Issue the LIST_TUNABLES command for the list of supported tunables.")),
]


@pytest.mark.parametrize(("command", "occurrence", "kind", "result"), TEXT_ANSWERS,
                         ids=[f"{command} #{at}" for command, at, *_ in TEXT_ANSWERS])
def test_text_answers_equal_those_of_the_original(command: str, occurrence: int, kind: AnswerKind, result: Any) -> None:
    assert kind.text(result) == golden(command, occurrence)


@pytest.mark.parametrize(("command", "pretty", "kind", "result"), JSON_ANSWERS, ids=[row[0] for row in JSON_ANSWERS])
def test_json_answers_equal_those_of_the_original(command: str, pretty: bool, kind: AnswerKind, result: Any) -> None:
    assert print_json(kind, result, pretty) == golden(command)


def test_the_queuehelper_answer_equals_that_of_the_original_except_for_the_order_of_domains() -> None:
    def blocks(text: str) -> tuple[list[str], str]:
        return sorted(re.findall(r".*numAssignedQueues.*", text)), re.sub(r".*numAssignedQueues.*\n\n", "", text)

    assert blocks(table.QUEUE_HELPER.text(THE_CLUSTER)) == blocks(golden(CLUSTER + "QUEUEHELPER"))


def test_every_kind_of_answer_can_be_printed_in_every_encoding() -> None:
    moved = commands.Transitions(2.0, (Transition(0.5, "FOLLOWER", "CANDIDATE", "x"),))
    samples = [(kind, result) for *_, kind, result in TEXT_ANSWERS + JSON_ANSWERS] + [
        (table.QUEUE_HELPER, THE_CLUSTER), (table.STATISTICS, ("table", {"a": 1})),
        (table.CONFIGURATION, "{}"),
        (table.ELECTOR_TRANSITIONS, moved), (table.PARTITION_TRANSITIONS, moved), (table.QUEUE_TRANSITIONS, moved),
        (table.STOP_STATUS, commands.StopStatus(None)), (table.STOP_STATUS, commands.StopStatus(StopProgress(
            "notifies members", 1.5, 2, (ClusterProgress("Cluster (c)", (0, 1), True, 3, 4, 18.5),)))),
        (table.EVENTS, []), (table.ALARMS, []), (table.LOG, []), (table.REPLICAS, []),
            (table.MOVES, [{"domain": "d", "from": "old", "to": "new", "seconds": 1.5, "queues": 1,
                            "first": [{"uri": "bmq://d/q", "waitsFor": "ACKs of 1 PUT(s)"}]}])]
    by_commands = {table.ALARM, table.STOP_PREFLIGHT, table.TERMS, table.MESSAGES, table.MESSAGE, table.SUBSCRIPTION}
    assert {kind.name for kind, _ in samples} | {kind.name for kind in by_commands} == {
        each.name for each in vars(table).values() if isinstance(each, AnswerKind)}
    for kind, sample in samples:
        assert isinstance(kind.text(sample), str)
        assert len(json.loads(print_json(kind, sample, False))) == 1
        assert json.loads(print_json(kind, sample, True)) == json.loads(print_json(kind, sample, False))


def test_a_purge_without_queues_prints_no_queue_purged() -> None:
    assert table.PURGED.text(commands.PurgeReport(())) == "No queue purged."


def test_a_broadcast_meter_prints_as_disabled() -> None:
    disabled = state.MeterSnapshot("queue [bmq://t.bc/q]", 0, 0, 0, 0, disabled=True)
    domain = state.DomainState("t.bc", "c3", "broadcast", "{}", disabled)
    assert "    Capacity Meter ..: \n        [ ** DISABLED ** ]\n" in table.DOMAIN.text(domain)


def test_values_print_with_their_type_in_errors_and_without_it_in_answers() -> None:
    assert integer(-1).described == "[ theInteger = -1 ]"
    assert Value("theString", "x").described == '[ theString = "x" ]'
    assert [str(value) for value in (Value("theNull", None), Value("theBool", True), Value("theDouble", 2.5))] == [
        "NULL", "true", "2.5"]


def test_a_queue_of_a_replica_prints_as_remote_queue() -> None:
    queue = state.QueueState("bmq://d/q", "q", "d", "0000000001", "priority", 0, 0, 0, meter("queue [bmq://d/q]", 0, 0),
                             apps=(state.AppState("__default", "3000000000", "alive", 2, 6, consumers=1),),
                             role=state.NodeRole.REPLICA, internal_id=4, upstream=state.UpstreamState(3, 1, 2))
    text = table.QUEUE.text(queue)
    assert "    RemoteQueue:\n    ------------\n        Pending PUTs .......................: 3 items\n" in text
    assert "                [__default] - [3000000000] : 2\n" in text
    assert "remoteQueue" in json.loads(print_json(table.QUEUE, queue, False))["queueInternals"]["queue"]


def test_a_timestamp_is_utc_to_the_microsecond() -> None:
    assert timestamp_text(wall_time(623349)) == "21NOV2026_05:23:56.623349+0000"


def test_a_delivery_window_prints_as_normal_high_watermark_or_full() -> None:
    def window(messages: int, size: int) -> str:
        return window_text(state.SubscriptionState(1, "", "E_UNDEFINED", 0, 1, 1000, 1 << 25, messages, size))

    assert window(0, 0) == ("STATE_NORMAL [Messages (STATE_NORMAL): 0 (800 - 800 - 1,000), Bytes (STATE_NORMAL): 0  B "
                            "(25.60 MB - 25.60 MB - 32.00 MB)] ")
    assert window(800, 0).startswith("STATE_HIGH_WATERMARK [Messages (STATE_HIGH_WATERMARK): 800 ")
    assert window(1, 1 << 25).startswith("STATE_FULL [Messages (STATE_NORMAL): 1 ")


def test_the_json_of_a_cluster_has_numeric_internal_queue_ids() -> None:
    tree = json.loads(print_json(table.CLUSTER, THE_CLUSTER, False))["clusterStatus"]
    assert {row["internalQueueId"] for row in tree["queuesInfo"]["storages"]} == {0xFFFFFFFE, 0xFFFFFFFF}
    summary = tree["clusterStorageSummary"]["fileStores"][1]["summary"]
    assert summary["activeFileSet"]["dataFile"] == {"positionBytes": 3648, "sizeBytes": 256 * MB,
                                                    "outstandingBytes": 2304}
    assert tree["nodeStatuses"]["nodes"] == [{"description": NODE, "status": "E_AVAILABLE",
                                              "primaryForPartitionIds": [0, 1]}]
