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


def parsed(run: Callable[..., Any], *arguments: Any, kind: str = "") -> Parsed:
    return run, kind, arguments


def parse_parts(text: str) -> tuple[Parsed, AnswerEncoding]:
    command, encoding = parse(text)
    run = command.entry.run
    kind = run.args[0] if isinstance(run, partial) else ""
    return (run.func if isinstance(run, partial) else run, kind, command.arguments), encoding


REFUSED = [(command, answer) for command, answer in GOLDEN if answer.startswith("Unable to decode command")]

WORDS: list[tuple[str, Parsed]] = [
    ("HELP", parsed(show_help, False)),
    ("help plumbing", parsed(show_help, True)),
    ("BROKERCONFIG DUMP", parsed(ops.show_configuration)),
    ("DOMAINS DOMAIN d PURGE", parsed(ops.purge_domain, "d")),
    ("domains domain D infos", parsed(ops.show_domain, "D")),
    ("DOMAINS DOMAIN d QUEUE q PURGE *", parsed(ops.purge_queue, "d", "q", "*")),
    ("DOMAINS DOMAIN d QUEUE q INTERNALS", parsed(ops.show_queue, "d", "q")),
    ("DOMAINS DOMAIN d QUEUE q LIST 0 unlimited", parsed(ops.list_messages, "d", "q", None, 0, 0)),
    ("DOMAINS DOMAIN d QUEUE q LIST foo -3 -2", parsed(ops.list_messages, "d", "q", "foo", -3, -2)),
    ("DOMAINS RECONFIGURE d", parsed(ops.reconfigure_domain, "d")),
    ("DOMAINS RESOLVER CACHE_CLEAR all", parsed(ops.clear_resolver, None)),
    ("DOMAINS RESOLVER CACHE_CLEAR d", parsed(ops.clear_resolver, "d")),
    ("DOMAINS REMOVE d", parsed(ops.remove_domain, "d", False)),
    ("DOMAINS REMOVE d finalize", parsed(ops.remove_domain, "d", True)),
    ("CONFIGPROVIDER CACHE_CLEAR ALL", parsed(ops.clear_files, None)),
    ("STAT SHOW", parsed(ops.show_statistics)),
    ("STAT SET x 5", parsed(ops.set_interval, "x", integer(5))),
    ("STAT GET x", parsed(ops.show_interval, "x")),
    ("STAT LIST_TUNABLES", parsed(ops.list_intervals)),
    ("CLUSTERS LIST", parsed(ops.list_clusters)),
    ("CLUSTERS CLUSTER c STATUS", parsed(ops.show_cluster, "c")),
    ("CLUSTERS CLUSTER c QUEUEHELPER", parsed(ops.show_cluster, "c")),
    ("CLUSTERS CLUSTER c FORCE_GC_QUEUES", parsed(ops.collect_queues, "c")),
    ("CLUSTERS CLUSTER c STORAGE SUMMARY", parsed(ops.show_cluster, "c")),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1 enable", parsed(ops.switch_partition, "c", 1, "ENABLE")),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1 DISABLE", parsed(ops.switch_partition, "c", 1, "DISABLE")),
    ("CLUSTERS CLUSTER c STORAGE PARTITION -2 SUMMARY", parsed(ops.show_partition, "c", -2)),
    ("CLUSTERS CLUSTER c STORAGE PARTITION ALL ROLLOVER", parsed(ops.roll_over, "c", None)),
    ("CLUSTERS CLUSTER c STORAGE PARTITION -1 ROLLOVER", parsed(ops.roll_over, "c", -1)),
    ("CLUSTERS CLUSTER c STORAGE DOMAIN d QUEUE_STATUS", parsed(ops.show_stored_queues, "c", "d")),
    ("CLUSTERS CLUSTER c STORAGE REPLICATION SET QUORUM 2",
     parsed(ops.set_quorum, "c", "SET", "QUORUM", integer(2), kind=ops.REPLICATION)),
    ("CLUSTERS CLUSTER c STORAGE REPLICATION SET_ALL QUORUM 2",
     parsed(ops.set_quorum, "c", "SET_ALL", "QUORUM", integer(2), kind=ops.REPLICATION)),
    ("CLUSTERS CLUSTER c STORAGE REPLICATION get_all QUORUM",
     parsed(ops.show_quorum, "c", "GET_ALL", "QUORUM", kind=ops.REPLICATION)),
    ("CLUSTERS CLUSTER c STORAGE REPLICATION LIST_TUNABLES", parsed(ops.list_quorums, "c", kind=ops.REPLICATION)),
    ("CLUSTERS CLUSTER c STATE ELECTOR SET QUORUM x",
     parsed(ops.set_quorum, "c", "SET", "QUORUM", Value("theString", "x"), kind=ops.ELECTOR)),
    ("CLUSTERS CLUSTER c STATE ELECTOR GET QUORUM", parsed(ops.show_quorum, "c", "GET", "QUORUM", kind=ops.ELECTOR)),
    ("CLUSTERS CLUSTER c STATE ELECTOR LIST_TUNABLES", parsed(ops.list_quorums, "c", kind=ops.ELECTOR)),
    ("CLUSTERS CLUSTER c STATE ELECTOR STORY", parsed(ops.show_elector_history, "c")),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1 STORY", parsed(ops.show_partition_history, "c", 1)),
    ("DOMAINS DOMAIN d QUEUE q STORY", parsed(ops.show_queue_history, "d", "q")),
    ("domains moves", parsed(ops.show_moves)),
    ("stop status", parsed(ops.show_stop)),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1 MOVE n2", parsed(ops.move_partition, "c", 1, "n2")),
    ("CLUSTERS CLUSTER c REBALANCE", parsed(ops.rebalance, "c")),
    ("CLUSTERS CLUSTER c MEMBERS ADD 4 n4 tcp://h:1", parsed(ops.add_member, "c", 4, "n4", "tcp://h:1")),
    ("CLUSTERS CLUSTER c MEMBERS REMOVE n2", parsed(ops.remove_member, "c", "n2")),
    ("CLUSTERS CLUSTER c MEMBERS REPLACE n2 tcp://h:1", parsed(ops.replace_member, "c", "n2", "tcp://h:1")),
    ("CLUSTERS CLUSTER c MEMBERS CANCEL", parsed(ops.cancel_members, "c")),
    ("CLUSTERS CLUSTER c STATE ELECTOR TRANSFER n2", parsed(ops.transfer_leadership, "c", "n2")),
    ("CLUSTERS CLUSTER c STATE ELECTOR MODE NEVER", parsed(ops.set_election_mode, "c", "NEVER")),
    ("stop preflight", parsed(ops.show_stop_preflight)),
    ("EVENTS", parsed(ops.show_events, None)),
    ("EVENTS 7", parsed(ops.show_events, 7)),
    ("ALARMS", parsed(ops.show_alarms)),
    ("ALARM 5 acknowledge", parsed(ops.mark_alarm, "5", "ACKNOWLEDGE")),
    ("ALARM 5 CLEAR", parsed(ops.mark_alarm, "5", "CLEAR")),
    ("LOG TAIL 20", parsed(ops.show_log, 20)),
    ("CLUSTERS CLUSTER c STORAGE REPLICAS", parsed(ops.show_replicas, "c")),
    ("CLUSTERS CLUSTER c STATE ELECTOR TERMS", parsed(ops.show_terms, "c")),
    ("DOMAINS DOMAIN d QUEUE q MESSAGES 10", parsed(ops.browse_messages, "d", "q", None, 10)),
    ("DOMAINS DOMAIN d QUEUE q MESSAGES AB -10", parsed(ops.browse_messages, "d", "q", "AB", -10)),
    ("DOMAINS DOMAIN d QUEUE q MESSAGE AB", parsed(ops.show_message, "d", "q", "AB")),
    ("DOMAINS DOMAIN d QUEUE q SUBSCRIPTION n", parsed(ops.evaluate_subscription, "d", "q", "n")),
    ("DOMAINS DOMAIN d QUEUE q SUBSCRIPTION a == 1 && b", parsed(ops.evaluate_subscription, "d", "q", "a == 1 && b")),
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
    ({"help": {}}, parsed(show_help, False)),
    ({"help": {"plumbing": True, "else": 1}}, parsed(show_help, True)),
    ({"brokerConfig": {"dump": {}}}, parsed(ops.show_configuration)),
    (domain({"purge": {}}), parsed(ops.purge_domain, "d")),
    (domain({"info": {}}), parsed(ops.show_domain, "d")),
    (queue({"purgeAppId": "foo"}), parsed(ops.purge_queue, "d", "q", "foo")),
    (queue({"internals": {}}), parsed(ops.show_queue, "d", "q")),
    (queue({"messages": {"offset": 0, "count": 5}}), parsed(ops.list_messages, "d", "q", None, 0, 5)),
    (queue({"messages": {"appId": "foo", "offset": -1, "count": -5}}), parsed(ops.list_messages, "d", "q", "foo", -1, -5)),
    ({"domains": {"reconfigure": {"domain": "d"}}}, parsed(ops.reconfigure_domain, "d")),
    ({"domains": {"resolver": {"clearCache": {"all": {}}}}}, parsed(ops.clear_resolver, None)),
    ({"domains": {"resolver": {"clearCache": {"domain": "d"}}}}, parsed(ops.clear_resolver, "d")),
    ({"domains": {"remove": {"domain": "d", "finalize": None}}}, parsed(ops.remove_domain, "d", False)),
    ({"domains": {"remove": {"domain": "d", "finalize": True}}}, parsed(ops.remove_domain, "d", True)),
    ({"configProvider": {"clearCache": {"domain": "d"}}}, parsed(ops.clear_files, "d")),
    ({"stat": {"show": {}}}, parsed(ops.show_statistics)),
    ({"stat": {"setTunable": {"name": "x", "value": {"theBool": True}, "self": {}}}},
     parsed(ops.set_interval, "x", Value("theBool", True))),
    ({"stat": {"getTunable": "x"}}, parsed(ops.show_interval, "x")),
    ({"stat": {"listTunables": {}}}, parsed(ops.list_intervals)),
    ({"clusters": {"list": {}}}, parsed(ops.list_clusters)),
    (cluster({"status": {}}), parsed(ops.show_cluster, "c")),
    (cluster({"queueHelper": {}}), parsed(ops.show_cluster, "c")),
    (cluster({"forceGcQueues": {}}), parsed(ops.collect_queues, "c")),
    (cluster({"storage": {"summary": {}}}), parsed(ops.show_cluster, "c")),
    (storage_partition(2, {"enable": {}}), parsed(ops.switch_partition, "c", 2, "ENABLE")),
    (storage_partition(2, {"disable": {}}), parsed(ops.switch_partition, "c", 2, "DISABLE")),
    (storage_partition(2, {"summary": {}}), parsed(ops.show_partition, "c", 2)),
    (storage_partition(-1, {"rollover": {}}), parsed(ops.roll_over, "c", -1)),
    (cluster({"storage": {"domain": {"name": "d", "command": {"queueStatus": {}}}}}),
     parsed(ops.show_stored_queues, "c", "d")),
    (cluster({"storage": {"replication": {"setTunable": {"name": "Q", "value": {"theInteger": 3}, "all": {}}}}}),
     parsed(ops.set_quorum, "c", "SET_ALL", "Q", integer(3), kind=ops.REPLICATION)),
    (cluster({"storage": {"replication": {"getTunable": {"name": "Q", "self": {}}}}}),
     parsed(ops.show_quorum, "c", "GET", "Q", kind=ops.REPLICATION)),
    (cluster({"state": {"elector": {"getTunable": {"name": "Q", "all": {}}}}}),
     parsed(ops.show_quorum, "c", "GET_ALL", "Q", kind=ops.ELECTOR)),
    (cluster({"state": {"elector": {"listTunables": {}}}}), parsed(ops.list_quorums, "c", kind=ops.ELECTOR)),
    (storage_partition(1, {"move": "n2"}), parsed(ops.move_partition, "c", 1, "n2")),
    (cluster({"rebalance": {}}), parsed(ops.rebalance, "c")),
    (cluster({"members": {"add": {"id": 4, "node": "n4", "endpoint": "tcp://h:1"}}}),
     parsed(ops.add_member, "c", 4, "n4", "tcp://h:1")),
    (cluster({"members": {"remove": "n2"}}), parsed(ops.remove_member, "c", "n2")),
    (cluster({"members": {"replace": {"node": "n2", "endpoint": "tcp://h:1"}}}),
     parsed(ops.replace_member, "c", "n2", "tcp://h:1")),
    (cluster({"members": {"cancel": {}}}), parsed(ops.cancel_members, "c")),
    (cluster({"state": {"elector": {"story": {}}}}), parsed(ops.show_elector_history, "c")),
    (cluster({"storage": {"partition": {"partitionId": 1, "command": {"story": {}}}}}),
     parsed(ops.show_partition_history, "c", 1)),
    ({"domains": {"domain": {"name": "d", "command": {"queue": {"name": "q", "command": {"story": {}}}}}}},
     parsed(ops.show_queue_history, "d", "q")),
    ({"domains": {"moves": {}}}, parsed(ops.show_moves)),
    ({"stop": {"status": {}}}, parsed(ops.show_stop)),
    (cluster({"state": {"elector": {"transfer": "n2"}}}), parsed(ops.transfer_leadership, "c", "n2")),
    (cluster({"state": {"elector": {"mode": "NEVER"}}}), parsed(ops.set_election_mode, "c", "NEVER")),
    ({"stop": {"preflight": {}}}, parsed(ops.show_stop_preflight)),
    ({"events": {}}, parsed(ops.show_events, None)),
    ({"events": {"after": 7}}, parsed(ops.show_events, 7)),
    ({"alarms": {"list": {}}}, parsed(ops.show_alarms)),
    ({"alarms": {"alarm": {"id": "5", "acknowledge": {}}}}, parsed(ops.mark_alarm, "5", "ACKNOWLEDGE")),
    ({"alarms": {"alarm": {"id": "5", "clear": {}}}}, parsed(ops.mark_alarm, "5", "CLEAR")),
    ({"log": {"tail": {"count": 20}}}, parsed(ops.show_log, 20)),
    (cluster({"storage": {"replicas": {}}}), parsed(ops.show_replicas, "c")),
    (cluster({"state": {"elector": {"terms": {}}}}), parsed(ops.show_terms, "c")),
    (queue({"browse": {"count": 10}}), parsed(ops.browse_messages, "d", "q", None, 10)),
    (queue({"browse": {"after": "AB", "count": -10}}), parsed(ops.browse_messages, "d", "q", "AB", -10)),
    (queue({"message": {"guid": "AB"}}), parsed(ops.show_message, "d", "q", "AB")),
    (queue({"subscription": {"expression": "a  == 1"}}), parsed(ops.evaluate_subscription, "d", "q", "a  == 1")),
]


@pytest.mark.spec("broker", 213)
@pytest.mark.parametrize(("text", "command"), WORDS, ids=[text for text, _ in WORDS])
def test_a_text_command_is_parsed_with_keywords_in_any_case(text: str, command: Parsed) -> None:
    assert parse_parts(text) == (command, AnswerEncoding.TEXT)


@pytest.mark.parametrize(("tree", "command"), JSON_FORMS, ids=[json.dumps(tree) for tree, _ in JSON_FORMS])
def test_a_json_command_is_parsed(tree: object, command: Parsed) -> None:
    assert parse_parts(json.dumps(tree)) == (command, AnswerEncoding.TEXT)


def test_the_parser_tests_cover_every_command_as_text_and_as_json() -> None:
    syntaxes = {entry.syntax for entry in TABLE}
    assert {parse(text)[0].entry.syntax for text, _ in WORDS} == syntaxes
    text_only = {"CLUSTERS CLUSTER <name> STORAGE REPLICATION LIST_TUNABLES",
                 "CLUSTERS CLUSTER <name> STATE ELECTOR [SET|SET_ALL] <parameter> <value>"}
    assert {parse(json.dumps(tree))[0].entry.syntax for tree, _ in JSON_FORMS} == syntaxes - text_only


def test_the_function_of_every_command_accepts_the_arguments_of_its_syntax() -> None:
    for entry in TABLE:
        arguments = entry.command({"word": "X"}).arguments
        inspect.signature(entry.run).bind(None, *arguments)  # TypeError if they differ


@pytest.mark.parametrize(("command", "answer"), REFUSED, ids=[command for command, _ in REFUSED])
def test_commands_that_the_original_refuses_are_refused_with_its_error_text(command: str, answer: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse(command)
    assert caught.value.answer == answer


@pytest.mark.parametrize("command", [command for command, answer in GOLDEN if (command, answer) not in REFUSED])
def test_commands_that_the_original_accepts_are_accepted(command: str) -> None:
    parse(command)


@pytest.mark.spec("broker", 212)
@pytest.mark.parametrize("encoding", list(AnswerEncoding))
def test_the_encoding_is_chosen_by_a_prefix_or_a_json_member(encoding: AnswerEncoding) -> None:
    assert parse_parts(f"encoding {encoding.value.lower()} HELP") == (parsed(show_help, False), encoding)
    assert parse_parts(json.dumps({"help": {}, "encoding": encoding.value})) == (parsed(show_help, False), encoding)
    for wrong in ("ENCODING INCORRECT HELP", '{"help": {}, "encoding": "INCORRECT"}'):
        with pytest.raises(CommandError, match="INCORRECT"):
            parse(wrong)


@pytest.mark.parametrize(("text", "part"), [
    ("   ", "Empty input"),
    ("ENCODING", "one of [TEXT, JSON_COMPACT, JSON_PRETTY]"),
    ("ENCODING TEXT", "followed by a command"),
    ("DOMAINS", "DOMAINS command must be followed by DOMAIN or RECONFIGURE or RESOLVER or REMOVE or MOVES."),
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
def test_the_error_of_an_invalid_command_names_its_cause(text: str, part: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse(text)
    assert part in str(caught.value)


@pytest.mark.parametrize(("word", "kind", "value"), [
    ("null", "theNull", None), ("true", "theBool", True), ("-7", "theInteger", -7), ("1e3", "theDouble", 1000.0),
    ("2026-11-21", "theDate", "2026-11-21"), ("05:23:56", "theTime", "05:23:56"),
    ("2026-11-21T05:23:56", "theDatetime", "2026-11-21T05:23:56"), ("1_0", "theString", "1_0"),
    (str(1 << 63), "theDouble", float(1 << 63)), ("True", "theString", "True"),
])
def test_a_value_gets_the_narrowest_type_that_it_parses_as(word: str, kind: str, value: object) -> None:
    assert parse_value(word) == Value(kind, value)


VOCABULARY = sorted({word for entry in TABLE for token in entry.grammar for word in token.strip("[]()").split("|")})


@given(st.one_of(
    st.text(max_size=60),
    st.lists(st.one_of(st.sampled_from(VOCABULARY), st.text(max_size=5), st.integers().map(str)), max_size=11)
    .map(" ".join)))
def test_any_text_is_a_command_or_a_command_error(text: str) -> None:
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
def test_any_incomplete_json_object_is_a_command_error(tree: object) -> None:
    try:
        parse(json.dumps({"stat": tree, "domains": tree, "clusters": tree}))
    except CommandError as error:
        assert "Error decoding JSON command" in error.answer
    else:
        raise AssertionError("no generated object is complete enough to be a command")
