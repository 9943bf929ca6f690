"""Parser of admin commands: the table, words, JSON, and errors of invalid commands."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.admin import operations as ops
from bmqtwist.admin.commands import AnswerEncoding, Command, CommandError, Value, integer
from bmqtwist.admin.parse import parse, parse_value
from bmqtwist.admin.table import TABLE, show_help

VECTORS = Path(__file__).parents[2] / "vectors" / "admin" / "session.json"
GOLDEN = [(pair["command"], pair["answer"]) for pair in json.loads(VECTORS.read_text())]
Parsed = tuple[Callable[..., Any], str, tuple[Any, ...]]  # the function, the kind of its tunable, its arguments


def of(run: Callable[..., Any], *arguments: Any, kind: str = "") -> Parsed:
    return run, kind, arguments


def read(text: str) -> tuple[Parsed, AnswerEncoding]:
    command, encoding = parse(text)
    run = command.entry.run
    kind = run.args[0] if isinstance(run, partial) else ""
    return (run.func if isinstance(run, partial) else run, kind, command.arguments), encoding


REFUSED = [(command, answer) for command, answer in GOLDEN if answer.startswith("Unable to decode command")]

WORDS: list[tuple[str, Parsed]] = [
    ("HELP", of(show_help, False)),
    ("help plumbing", of(show_help, True)),
    ("BROKERCONFIG DUMP", of(ops.show_configuration)),
    ("DOMAINS DOMAIN d PURGE", of(ops.purge_domain, "d")),
    ("domains domain D infos", of(ops.show_domain, "D")),
    ("DOMAINS DOMAIN d QUEUE q PURGE *", of(ops.purge_queue, "d", "q", "*")),
    ("DOMAINS DOMAIN d QUEUE q INTERNALS", of(ops.show_queue, "d", "q")),
    ("DOMAINS DOMAIN d QUEUE q LIST 0 unlimited", of(ops.list_messages, "d", "q", None, 0, 0)),
    ("DOMAINS DOMAIN d QUEUE q LIST foo -3 -2", of(ops.list_messages, "d", "q", "foo", -3, -2)),
    ("DOMAINS RECONFIGURE d", of(ops.reconfigure_domain, "d")),
    ("DOMAINS RESOLVER CACHE_CLEAR all", of(ops.clear_resolver, None)),
    ("DOMAINS RESOLVER CACHE_CLEAR d", of(ops.clear_resolver, "d")),
    ("DOMAINS REMOVE d", of(ops.remove_domain, "d", False)),
    ("DOMAINS REMOVE d finalize", of(ops.remove_domain, "d", True)),
    ("CONFIGPROVIDER CACHE_CLEAR ALL", of(ops.clear_files, None)),
    ("STAT SHOW", of(ops.show_statistics)),
    ("STAT SET x 5", of(ops.set_interval, "x", integer(5))),
    ("STAT GET x", of(ops.show_interval, "x")),
    ("STAT LIST_TUNABLES", of(ops.list_intervals)),
    ("CLUSTERS LIST", of(ops.list_clusters)),
    ("CLUSTERS CLUSTER c STATUS", of(ops.show_cluster, "c")),
    ("CLUSTERS CLUSTER c QUEUEHELPER", of(ops.show_cluster, "c")),
    ("CLUSTERS CLUSTER c FORCE_GC_QUEUES", of(ops.collect_queues, "c")),
    ("CLUSTERS CLUSTER c STORAGE SUMMARY", of(ops.show_cluster, "c")),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1 enable", of(ops.switch_partition, "c", 1, "ENABLE")),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1 DISABLE", of(ops.switch_partition, "c", 1, "DISABLE")),
    ("CLUSTERS CLUSTER c STORAGE PARTITION -2 SUMMARY", of(ops.show_partition, "c", -2)),
    ("CLUSTERS CLUSTER c STORAGE PARTITION ALL ROLLOVER", of(ops.roll_over, "c", None)),
    ("CLUSTERS CLUSTER c STORAGE PARTITION -1 ROLLOVER", of(ops.roll_over, "c", -1)),
    ("CLUSTERS CLUSTER c STORAGE DOMAIN d QUEUE_STATUS", of(ops.show_stored_queues, "c", "d")),
    ("CLUSTERS CLUSTER c STORAGE REPLICATION SET QUORUM 2",
     of(ops.set_quorum, "c", "SET", "QUORUM", integer(2), kind=ops.REPLICATION)),
    ("CLUSTERS CLUSTER c STORAGE REPLICATION SET_ALL QUORUM 2",
     of(ops.set_quorum, "c", "SET_ALL", "QUORUM", integer(2), kind=ops.REPLICATION)),
    ("CLUSTERS CLUSTER c STORAGE REPLICATION get_all QUORUM",
     of(ops.show_quorum, "c", "GET_ALL", "QUORUM", kind=ops.REPLICATION)),
    ("CLUSTERS CLUSTER c STORAGE REPLICATION LIST_TUNABLES", of(ops.list_quorums, "c", kind=ops.REPLICATION)),
    ("CLUSTERS CLUSTER c STATE ELECTOR SET QUORUM x",
     of(ops.set_quorum, "c", "SET", "QUORUM", Value("theString", "x"), kind=ops.ELECTOR)),
    ("CLUSTERS CLUSTER c STATE ELECTOR GET QUORUM", of(ops.show_quorum, "c", "GET", "QUORUM", kind=ops.ELECTOR)),
    ("CLUSTERS CLUSTER c STATE ELECTOR LIST_TUNABLES", of(ops.list_quorums, "c", kind=ops.ELECTOR)),
    ("CLUSTERS CLUSTER c STATE ELECTOR STORY", of(ops.show_elector_history, "c")),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1 STORY", of(ops.show_partition_history, "c", 1)),
    ("DOMAINS DOMAIN d QUEUE q STORY", of(ops.show_queue_history, "d", "q")),
    ("stop status", of(ops.show_stop)),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1 MOVE n2", of(ops.move_partition, "c", 1, "n2")),
    ("CLUSTERS CLUSTER c REBALANCE", of(ops.rebalance, "c")),
    ("CLUSTERS CLUSTER c STATE ELECTOR TRANSFER n2", of(ops.transfer_leadership, "c", "n2")),
    ("CLUSTERS CLUSTER c STATE ELECTOR MODE NEVER", of(ops.set_election_mode, "c", "NEVER")),
    ("stop preflight", of(ops.show_stop_preflight)),
    ("EVENTS", of(ops.show_events, None)),
    ("EVENTS 7", of(ops.show_events, 7)),
    ("ALARMS", of(ops.show_alarms)),
    ("ALARM 5 acknowledge", of(ops.mark_alarm, "5", "ACKNOWLEDGE")),
    ("ALARM 5 CLEAR", of(ops.mark_alarm, "5", "CLEAR")),
    ("LOG TAIL 20", of(ops.show_log, 20)),
    ("CLUSTERS CLUSTER c STORAGE REPLICAS", of(ops.show_replicas, "c")),
    ("CLUSTERS CLUSTER c STATE ELECTOR TERMS", of(ops.show_terms, "c")),
    ("DOMAINS DOMAIN d QUEUE q MESSAGES 10", of(ops.browse_messages, "d", "q", None, 10)),
    ("DOMAINS DOMAIN d QUEUE q MESSAGES AB -10", of(ops.browse_messages, "d", "q", "AB", -10)),
    ("DOMAINS DOMAIN d QUEUE q MESSAGE AB", of(ops.show_message, "d", "q", "AB")),
    ("DOMAINS DOMAIN d QUEUE q SUBSCRIPTION n", of(ops.evaluate_subscription, "d", "q", "n")),
    ("DOMAINS DOMAIN d QUEUE q SUBSCRIPTION a == 1 && b", of(ops.evaluate_subscription, "d", "q", "a == 1 && b")),
]


def domain(command: object) -> object:
    return {"domains": {"domain": {"name": "d", "command": command}}}


def queue(command: object) -> object:
    return domain({"queue": {"name": "q", "command": command}})


def cluster(command: object) -> object:
    return {"clusters": {"cluster": {"name": "c", "command": command}}}


def storage_partition(number: int, command: object) -> object:
    return cluster({"storage": {"partition": {"partitionId": number, "command": command}}})


JSON_FORMS: list[tuple[object, Parsed]] = [
    ({"help": {}}, of(show_help, False)),
    ({"help": {"plumbing": True, "else": 1}}, of(show_help, True)),
    ({"brokerConfig": {"dump": {}}}, of(ops.show_configuration)),
    (domain({"purge": {}}), of(ops.purge_domain, "d")),
    (domain({"info": {}}), of(ops.show_domain, "d")),
    (queue({"purgeAppId": "foo"}), of(ops.purge_queue, "d", "q", "foo")),
    (queue({"internals": {}}), of(ops.show_queue, "d", "q")),
    (queue({"messages": {"offset": 0, "count": 5}}), of(ops.list_messages, "d", "q", None, 0, 5)),
    (queue({"messages": {"appId": "foo", "offset": -1, "count": -5}}), of(ops.list_messages, "d", "q", "foo", -1, -5)),
    ({"domains": {"reconfigure": {"domain": "d"}}}, of(ops.reconfigure_domain, "d")),
    ({"domains": {"resolver": {"clearCache": {"all": {}}}}}, of(ops.clear_resolver, None)),
    ({"domains": {"resolver": {"clearCache": {"domain": "d"}}}}, of(ops.clear_resolver, "d")),
    ({"domains": {"remove": {"domain": "d", "finalize": None}}}, of(ops.remove_domain, "d", False)),
    ({"domains": {"remove": {"domain": "d", "finalize": True}}}, of(ops.remove_domain, "d", True)),
    ({"configProvider": {"clearCache": {"domain": "d"}}}, of(ops.clear_files, "d")),
    ({"stat": {"show": {}}}, of(ops.show_statistics)),
    ({"stat": {"setTunable": {"name": "x", "value": {"theBool": True}, "self": {}}}},
     of(ops.set_interval, "x", Value("theBool", True))),
    ({"stat": {"getTunable": "x"}}, of(ops.show_interval, "x")),
    ({"stat": {"listTunables": {}}}, of(ops.list_intervals)),
    ({"clusters": {"list": {}}}, of(ops.list_clusters)),
    (cluster({"status": {}}), of(ops.show_cluster, "c")),
    (cluster({"queueHelper": {}}), of(ops.show_cluster, "c")),
    (cluster({"forceGcQueues": {}}), of(ops.collect_queues, "c")),
    (cluster({"storage": {"summary": {}}}), of(ops.show_cluster, "c")),
    (storage_partition(2, {"enable": {}}), of(ops.switch_partition, "c", 2, "ENABLE")),
    (storage_partition(2, {"disable": {}}), of(ops.switch_partition, "c", 2, "DISABLE")),
    (storage_partition(2, {"summary": {}}), of(ops.show_partition, "c", 2)),
    (storage_partition(-1, {"rollover": {}}), of(ops.roll_over, "c", -1)),
    (cluster({"storage": {"domain": {"name": "d", "command": {"queueStatus": {}}}}}),
     of(ops.show_stored_queues, "c", "d")),
    (cluster({"storage": {"replication": {"setTunable": {"name": "Q", "value": {"theInteger": 3}, "all": {}}}}}),
     of(ops.set_quorum, "c", "SET_ALL", "Q", integer(3), kind=ops.REPLICATION)),
    (cluster({"storage": {"replication": {"getTunable": {"name": "Q", "self": {}}}}}),
     of(ops.show_quorum, "c", "GET", "Q", kind=ops.REPLICATION)),
    (cluster({"state": {"elector": {"getTunable": {"name": "Q", "all": {}}}}}),
     of(ops.show_quorum, "c", "GET_ALL", "Q", kind=ops.ELECTOR)),
    (cluster({"state": {"elector": {"listTunables": {}}}}), of(ops.list_quorums, "c", kind=ops.ELECTOR)),
    (storage_partition(1, {"move": "n2"}), of(ops.move_partition, "c", 1, "n2")),
    (cluster({"rebalance": {}}), of(ops.rebalance, "c")),
    (cluster({"state": {"elector": {"story": {}}}}), of(ops.show_elector_history, "c")),
    (cluster({"storage": {"partition": {"partitionId": 1, "command": {"story": {}}}}}),
     of(ops.show_partition_history, "c", 1)),
    ({"domains": {"domain": {"name": "d", "command": {"queue": {"name": "q", "command": {"story": {}}}}}}},
     of(ops.show_queue_history, "d", "q")),
    ({"stop": {"status": {}}}, of(ops.show_stop)),
    (cluster({"state": {"elector": {"transfer": "n2"}}}), of(ops.transfer_leadership, "c", "n2")),
    (cluster({"state": {"elector": {"mode": "NEVER"}}}), of(ops.set_election_mode, "c", "NEVER")),
    ({"stop": {"preflight": {}}}, of(ops.show_stop_preflight)),
    ({"events": {}}, of(ops.show_events, None)),
    ({"events": {"after": 7}}, of(ops.show_events, 7)),
    ({"alarms": {"list": {}}}, of(ops.show_alarms)),
    ({"alarms": {"alarm": {"id": "5", "acknowledge": {}}}}, of(ops.mark_alarm, "5", "ACKNOWLEDGE")),
    ({"alarms": {"alarm": {"id": "5", "clear": {}}}}, of(ops.mark_alarm, "5", "CLEAR")),
    ({"log": {"tail": {"count": 20}}}, of(ops.show_log, 20)),
    (cluster({"storage": {"replicas": {}}}), of(ops.show_replicas, "c")),
    (cluster({"state": {"elector": {"terms": {}}}}), of(ops.show_terms, "c")),
    (queue({"browse": {"count": 10}}), of(ops.browse_messages, "d", "q", None, 10)),
    (queue({"browse": {"after": "AB", "count": -10}}), of(ops.browse_messages, "d", "q", "AB", -10)),
    (queue({"message": {"guid": "AB"}}), of(ops.show_message, "d", "q", "AB")),
    (queue({"subscription": {"expression": "a  == 1"}}), of(ops.evaluate_subscription, "d", "q", "a  == 1")),
]


@pytest.mark.spec("broker", 213)
@pytest.mark.parametrize(("text", "command"), WORDS, ids=[text for text, _ in WORDS])
def test_a_command_in_words_is_read_with_keywords_in_any_case(text: str, command: Parsed) -> None:
    assert read(text) == (command, AnswerEncoding.TEXT)


@pytest.mark.parametrize(("tree", "command"), JSON_FORMS, ids=[json.dumps(tree) for tree, _ in JSON_FORMS])
def test_a_command_as_json_is_read(tree: object, command: Parsed) -> None:
    assert read(json.dumps(tree)) == (command, AnswerEncoding.TEXT)


def test_every_entry_of_the_table_is_tried_in_words_and_as_json() -> None:
    every = {entry.syntax for entry in TABLE}
    assert {parse(text)[0].entry.syntax for text, _ in WORDS} == every
    in_words_alone = {"CLUSTERS CLUSTER <name> STORAGE REPLICATION LIST_TUNABLES",
                      "CLUSTERS CLUSTER <name> STATE ELECTOR [SET|SET_ALL] <parameter> <value>"}
    assert {parse(json.dumps(tree))[0].entry.syntax for tree, _ in JSON_FORMS} == every - in_words_alone


def test_the_function_of_every_entry_takes_the_arguments_of_its_syntax() -> None:
    for entry in TABLE:
        arguments = entry.command({"word": "X"}).arguments
        inspect.signature(entry.run).bind(None, *arguments)  # TypeError if they differ


@pytest.mark.parametrize(("command", "answer"), REFUSED, ids=[command for command, _ in REFUSED])
def test_what_the_original_refuses_is_refused_in_its_words(command: str, answer: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse(command)
    assert caught.value.answer == answer


@pytest.mark.parametrize("command", [command for command, answer in GOLDEN if (command, answer) not in REFUSED])
def test_what_the_original_understands_is_understood(command: str) -> None:
    parse(command)


@pytest.mark.spec("broker", 212)
@pytest.mark.parametrize("encoding", list(AnswerEncoding))
def test_the_encoding_is_given_by_prefix_or_by_member(encoding: AnswerEncoding) -> None:
    assert read(f"encoding {encoding.value.lower()} HELP") == (of(show_help, False), encoding)
    assert read(json.dumps({"help": {}, "encoding": encoding.value})) == (of(show_help, False), encoding)
    for wrong in ("ENCODING INCORRECT HELP", '{"help": {}, "encoding": "INCORRECT"}'):
        with pytest.raises(CommandError, match="INCORRECT"):
            parse(wrong)


@pytest.mark.parametrize(("text", "part"), [
    ("   ", "Empty input"),
    ("ENCODING", "one of [TEXT, JSON_COMPACT, JSON_PRETTY]"),
    ("ENCODING TEXT", "followed by a command"),
    ("DOMAINS", "DOMAINS command must be followed by DOMAIN or RECONFIGURE or RESOLVER or REMOVE."),
    ("DOMAINS FOO", "but the following was given: FOO"),
    ("DOMAINS DOMAIN", "must be followed by a name."),
    ("DOMAINS DOMAIN d PURGE now", "Unexpected words after DOMAINS DOMAIN <name> PURGE: now"),
    ("DOMAINS DOMAIN d QUEUE q LIST x y", "Invalid <offset> in"),
    ("DOMAINS DOMAIN d QUEUE q LIST 0 y", "Invalid <count> in"),
    ("DOMAINS DOMAIN d QUEUE q LIST 0 99999999999", "Invalid <count> in"),
    ("DOMAINS DOMAIN d QUEUE q LIST a 0 1 2", "Unexpected words after"),
    ("CLUSTERS CLUSTER c STORAGE PARTITION x SUMMARY", "Invalid <partitionId> in"),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1", "[ENABLE|DISABLE] or SUMMARY or ROLLOVER or MOVE or STORY."),
    ("STAT SET p", "must be followed by a value."),
    ("HELP ME", "but the following was given: ME"),
    ("{", "Error decoding JSON command"),
    ('{"nothing": 1}', "unknown command"),
    ('{"help": 1}', "an object was expected"),
    ('{"help": {"plumbing": 1}}', "plumbing cannot be 1"),
    ('{"help": {}, "encoding": 1}', "encoding must be a string"),
    ('{"stat": {"setTunable": {"name": "x", "value": {"theInteger": true}}}}', "value cannot be"),
    ('{"stat": {"setTunable": {"name": "x", "value": {"theDate": "soon"}}}}', "value cannot be"),
])
def test_an_error_says_what_is_wrong(text: str, part: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse(text)
    assert part in str(caught.value)


@pytest.mark.parametrize(("word", "kind", "value"), [
    ("null", "theNull", None), ("true", "theBool", True), ("-7", "theInteger", -7), ("1e3", "theDouble", 1000.0),
    ("2026-11-21", "theDate", "2026-11-21"), ("05:23:56", "theTime", "05:23:56"),
    ("2026-11-21T05:23:56", "theDatetime", "2026-11-21T05:23:56"), ("1_0", "theString", "1_0"),
    (str(1 << 63), "theDouble", float(1 << 63)), ("True", "theString", "True"),
])
def test_value_words_are_tried_from_the_narrowest_kind_to_text(word: str, kind: str, value: object) -> None:
    assert parse_value(word) == Value(kind, value)


VOCABULARY = sorted({word for entry in TABLE for token in entry.grammar for word in token.strip("[]()").split("|")})


@given(st.one_of(
    st.text(max_size=60),
    st.lists(st.one_of(st.sampled_from(VOCABULARY), st.text(max_size=5), st.integers().map(str)), max_size=11)
    .map(" ".join)))
def test_any_text_gives_a_command_or_a_refusal(text: str) -> None:
    try:
        command, encoding = parse(text)
    except CommandError as error:
        assert error.answer.startswith("Unable to decode command (rc: -1, error: '")
    else:
        assert isinstance(command, Command) and isinstance(encoding, AnswerEncoding)


JSON_KEYS = ["help", "plumbing", "encoding", "domains", "domain", "name", "command", "queue", "stat", "setTunable",
             "value", "theInteger", "theDouble", "theDate", "clusters", "cluster", "storage", "partition",
             "partitionId"]


@given(st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=2),
                            st.dictionaries(st.sampled_from(JSON_KEYS), inner, max_size=4)),
    max_leaves=12))
def test_any_json_object_gives_a_command_or_a_refusal(tree: object) -> None:
    try:
        parse(json.dumps({"stat": tree, "domains": tree, "clusters": tree}))
    except CommandError as error:
        assert "Error decoding JSON command" in error.answer
    else:
        raise AssertionError("no generated object is complete enough to be a command")
