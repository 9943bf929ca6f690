"""Reading admin commands: the table, words, JSON, and what is said about what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.admin import commands as cmd
from bmqtwist.admin.commands import (
    TABLE,
    AnswerEncoding,
    Command,
    CommandError,
    Value,
    integer,
)
from bmqtwist.admin.parse import parse, parse_value

VECTORS = Path(__file__).parents[2] / "vectors" / "admin" / "session.json"
GOLDEN = [(pair["command"], pair["answer"]) for pair in json.loads(VECTORS.read_text())]
REFUSED = [(command, answer) for command, answer in GOLDEN if answer.startswith("Unable to decode command")]

WORDS: list[tuple[str, Command]] = [
    ("HELP", cmd.Help()),
    ("help plumbing", cmd.Help(True)),
    ("BROKERCONFIG DUMP", cmd.BrokerConfigDump()),
    ("DOMAINS DOMAIN d PURGE", cmd.DomainPurge("d")),
    ("domains domain D infos", cmd.DomainInfos("D")),
    ("DOMAINS DOMAIN d QUEUE q PURGE *", cmd.QueuePurge("d", "q", "*")),
    ("DOMAINS DOMAIN d QUEUE q INTERNALS", cmd.QueueInternals("d", "q")),
    ("DOMAINS DOMAIN d QUEUE q LIST 0 unlimited", cmd.QueueList("d", "q", None, 0, 0)),
    ("DOMAINS DOMAIN d QUEUE q LIST foo -3 -2", cmd.QueueList("d", "q", "foo", -3, -2)),
    ("DOMAINS RECONFIGURE d", cmd.DomainReconfigure("d")),
    ("DOMAINS RESOLVER CACHE_CLEAR all", cmd.ResolverClear(None)),
    ("DOMAINS RESOLVER CACHE_CLEAR d", cmd.ResolverClear("d")),
    ("DOMAINS REMOVE d", cmd.DomainRemove("d")),
    ("DOMAINS REMOVE d finalize", cmd.DomainRemove("d", True)),
    ("CONFIGPROVIDER CACHE_CLEAR ALL", cmd.ConfigProviderClear(None)),
    ("STAT SHOW", cmd.StatShow()),
    ("STAT SET x 5", cmd.StatSet("x", integer(5))),
    ("STAT GET x", cmd.StatGet("x")),
    ("STAT LIST_TUNABLES", cmd.StatTunables()),
    ("CLUSTERS LIST", cmd.ClustersList()),
    ("CLUSTERS CLUSTER c STATUS", cmd.ClusterStatus("c")),
    ("CLUSTERS CLUSTER c QUEUEHELPER", cmd.ClusterQueueHelper("c")),
    ("CLUSTERS CLUSTER c FORCE_GC_QUEUES", cmd.ForceGcQueues("c")),
    ("CLUSTERS CLUSTER c STORAGE SUMMARY", cmd.StorageSummary("c")),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1 enable", cmd.PartitionSwitch("c", 1, True)),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1 DISABLE", cmd.PartitionSwitch("c", 1, False)),
    ("CLUSTERS CLUSTER c STORAGE PARTITION -2 SUMMARY", cmd.PartitionSummary("c", -2)),
    ("CLUSTERS CLUSTER c STORAGE PARTITION ALL ROLLOVER", cmd.PartitionRollover("c", -1)),
    ("CLUSTERS CLUSTER c STORAGE PARTITION -1 ROLLOVER", cmd.PartitionRollover("c", -1)),
    ("CLUSTERS CLUSTER c STORAGE DOMAIN d QUEUE_STATUS", cmd.StorageQueueStatus("c", "d")),
    ("CLUSTERS CLUSTER c STORAGE REPLICATION SET QUORUM 2", cmd.ReplicationSet("c", "QUORUM", integer(2))),
    ("CLUSTERS CLUSTER c STORAGE REPLICATION SET_ALL QUORUM 2", cmd.ReplicationSet("c", "QUORUM", integer(2), True)),
    ("CLUSTERS CLUSTER c STORAGE REPLICATION get_all QUORUM", cmd.ReplicationGet("c", "QUORUM", True)),
    ("CLUSTERS CLUSTER c STORAGE REPLICATION LIST_TUNABLES", cmd.ReplicationTunables("c")),
    ("CLUSTERS CLUSTER c STATE ELECTOR SET QUORUM x", cmd.ElectorSet("c", "QUORUM", Value("theString", "x"))),
    ("CLUSTERS CLUSTER c STATE ELECTOR GET QUORUM", cmd.ElectorGet("c", "QUORUM")),
    ("CLUSTERS CLUSTER c STATE ELECTOR LIST_TUNABLES", cmd.ElectorTunables("c")),
    ("CLUSTERS CLUSTER c STATE ELECTOR STORY", cmd.ElectorStory("c")),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1 STORY", cmd.PartitionStory("c", 1)),
    ("DOMAINS DOMAIN d QUEUE q STORY", cmd.QueueStory("d", "q")),
    ("stop status", cmd.StopStatus()),
    ("CLUSTERS CLUSTER c STORAGE PARTITION 1 MOVE n2", cmd.PartitionMove("c", 1, "n2")),
    ("CLUSTERS CLUSTER c REBALANCE", cmd.ClusterRebalance("c")),
    ("CLUSTERS CLUSTER c STATE ELECTOR TRANSFER n2", cmd.ElectorTransfer("c", "n2")),
    ("CLUSTERS CLUSTER c STATE ELECTOR MODE NEVER", cmd.ElectorMode("c", "NEVER")),
    ("stop preflight", cmd.StopQuestion()),
    ("EVENTS", cmd.Events(None)),
    ("EVENTS 7", cmd.Events(7)),
    ("ALARMS", cmd.Alarms()),
    ("ALARM 5 acknowledge", cmd.AlarmMark("5", False)),
    ("ALARM 5 CLEAR", cmd.AlarmMark("5", True)),
    ("LOG TAIL 20", cmd.LogLines(20)),
    ("CLUSTERS CLUSTER c STORAGE REPLICAS", cmd.StorageReplicas("c")),
    ("CLUSTERS CLUSTER c STATE ELECTOR TERMS", cmd.ElectorTerms("c")),
    ("DOMAINS DOMAIN d QUEUE q MESSAGES 10", cmd.QueueMessages("d", "q", None, 10)),
    ("DOMAINS DOMAIN d QUEUE q MESSAGES AB -10", cmd.QueueMessages("d", "q", "AB", -10)),
    ("DOMAINS DOMAIN d QUEUE q MESSAGE AB", cmd.QueueMessage("d", "q", "AB")),
    ("DOMAINS DOMAIN d QUEUE q SUBSCRIPTION n", cmd.QueueSubscription("d", "q", "n")),
    ("DOMAINS DOMAIN d QUEUE q SUBSCRIPTION a == 1 && b", cmd.QueueSubscription("d", "q", "a == 1 && b")),
]


def domain(command: object) -> object:
    return {"domains": {"domain": {"name": "d", "command": command}}}


def queue(command: object) -> object:
    return domain({"queue": {"name": "q", "command": command}})


def cluster(command: object) -> object:
    return {"clusters": {"cluster": {"name": "c", "command": command}}}


def storage_partition(number: int, command: object) -> object:
    return cluster({"storage": {"partition": {"partitionId": number, "command": command}}})


JSON_FORMS: list[tuple[object, Command]] = [
    ({"help": {}}, cmd.Help()),
    ({"help": {"plumbing": True, "else": 1}}, cmd.Help(True)),
    ({"brokerConfig": {"dump": {}}}, cmd.BrokerConfigDump()),
    (domain({"purge": {}}), cmd.DomainPurge("d")),
    (domain({"info": {}}), cmd.DomainInfos("d")),
    (queue({"purgeAppId": "foo"}), cmd.QueuePurge("d", "q", "foo")),
    (queue({"internals": {}}), cmd.QueueInternals("d", "q")),
    (queue({"messages": {"offset": 0, "count": 5}}), cmd.QueueList("d", "q", None, 0, 5)),
    (queue({"messages": {"appId": "foo", "offset": -1, "count": -5}}), cmd.QueueList("d", "q", "foo", -1, -5)),
    ({"domains": {"reconfigure": {"domain": "d"}}}, cmd.DomainReconfigure("d")),
    ({"domains": {"resolver": {"clearCache": {"all": {}}}}}, cmd.ResolverClear(None)),
    ({"domains": {"resolver": {"clearCache": {"domain": "d"}}}}, cmd.ResolverClear("d")),
    ({"domains": {"remove": {"domain": "d", "finalize": None}}}, cmd.DomainRemove("d")),
    ({"domains": {"remove": {"domain": "d", "finalize": True}}}, cmd.DomainRemove("d", True)),
    ({"configProvider": {"clearCache": {"domain": "d"}}}, cmd.ConfigProviderClear("d")),
    ({"stat": {"show": {}}}, cmd.StatShow()),
    ({"stat": {"setTunable": {"name": "x", "value": {"theBool": True}, "self": {}}}},
     cmd.StatSet("x", Value("theBool", True))),
    ({"stat": {"getTunable": "x"}}, cmd.StatGet("x")),
    ({"stat": {"listTunables": {}}}, cmd.StatTunables()),
    ({"clusters": {"list": {}}}, cmd.ClustersList()),
    (cluster({"status": {}}), cmd.ClusterStatus("c")),
    (cluster({"queueHelper": {}}), cmd.ClusterQueueHelper("c")),
    (cluster({"forceGcQueues": {}}), cmd.ForceGcQueues("c")),
    (cluster({"storage": {"summary": {}}}), cmd.StorageSummary("c")),
    (storage_partition(2, {"enable": {}}), cmd.PartitionSwitch("c", 2, True)),
    (storage_partition(2, {"disable": {}}), cmd.PartitionSwitch("c", 2, False)),
    (storage_partition(2, {"summary": {}}), cmd.PartitionSummary("c", 2)),
    (storage_partition(-1, {"rollover": {}}), cmd.PartitionRollover("c", -1)),
    (cluster({"storage": {"domain": {"name": "d", "command": {"queueStatus": {}}}}}), cmd.StorageQueueStatus("c", "d")),
    (cluster({"storage": {"replication": {"setTunable": {"name": "Q", "value": {"theInteger": 3}, "all": {}}}}}),
     cmd.ReplicationSet("c", "Q", integer(3), True)),
    (cluster({"storage": {"replication": {"getTunable": {"name": "Q", "self": {}}}}}), cmd.ReplicationGet("c", "Q")),
    (cluster({"state": {"elector": {"getTunable": {"name": "Q", "all": {}}}}}), cmd.ElectorGet("c", "Q", True)),
    (cluster({"state": {"elector": {"listTunables": {}}}}), cmd.ElectorTunables("c")),
    (storage_partition(1, {"move": "n2"}), cmd.PartitionMove("c", 1, "n2")),
    (cluster({"rebalance": {}}), cmd.ClusterRebalance("c")),
    (cluster({"state": {"elector": {"story": {}}}}), cmd.ElectorStory("c")),
    (cluster({"storage": {"partition": {"partitionId": 1, "command": {"story": {}}}}}), cmd.PartitionStory("c", 1)),
    ({"domains": {"domain": {"name": "d", "command": {"queue": {"name": "q", "command": {"story": {}}}}}}},
     cmd.QueueStory("d", "q")),
    ({"stop": {"status": {}}}, cmd.StopStatus()),
    (cluster({"state": {"elector": {"transfer": "n2"}}}), cmd.ElectorTransfer("c", "n2")),
    (cluster({"state": {"elector": {"mode": "NEVER"}}}), cmd.ElectorMode("c", "NEVER")),
    ({"stop": {"preflight": {}}}, cmd.StopQuestion()),
    ({"events": {}}, cmd.Events(None)),
    ({"events": {"after": 7}}, cmd.Events(7)),
    ({"alarms": {"list": {}}}, cmd.Alarms()),
    ({"alarms": {"alarm": {"id": "5", "acknowledge": {}}}}, cmd.AlarmMark("5", False)),
    ({"alarms": {"alarm": {"id": "5", "clear": {}}}}, cmd.AlarmMark("5", True)),
    ({"log": {"tail": {"count": 20}}}, cmd.LogLines(20)),
    (cluster({"storage": {"replicas": {}}}), cmd.StorageReplicas("c")),
    (cluster({"state": {"elector": {"terms": {}}}}), cmd.ElectorTerms("c")),
    (queue({"browse": {"count": 10}}), cmd.QueueMessages("d", "q", None, 10)),
    (queue({"browse": {"after": "AB", "count": -10}}), cmd.QueueMessages("d", "q", "AB", -10)),
    (queue({"message": {"guid": "AB"}}), cmd.QueueMessage("d", "q", "AB")),
    (queue({"subscription": {"expression": "a  == 1"}}), cmd.QueueSubscription("d", "q", "a  == 1")),
]


@pytest.mark.spec("broker", 213)
@pytest.mark.parametrize(("text", "command"), WORDS, ids=[text for text, _ in WORDS])
def test_a_command_in_words_is_read_with_keywords_in_any_case(text: str, command: Command) -> None:
    assert parse(text) == (command, AnswerEncoding.TEXT)


@pytest.mark.parametrize(("tree", "command"), JSON_FORMS, ids=[json.dumps(tree) for tree, _ in JSON_FORMS])
def test_a_command_as_json_is_read(tree: object, command: Command) -> None:
    assert parse(json.dumps(tree)) == (command, AnswerEncoding.TEXT)


def test_every_entry_of_the_table_is_tried_in_words_and_as_json() -> None:
    kinds = {type(entry.make(_Anything())) for entry in TABLE}
    assert {type(command) for _, command in WORDS} == kinds
    assert {type(command) for _, command in JSON_FORMS} | {cmd.ReplicationTunables, cmd.ElectorSet} == kinds


class _Anything(dict[str, object]):
    def __missing__(self, key: str) -> object:
        return "1"


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
    assert parse(f"encoding {encoding.value.lower()} HELP") == (cmd.Help(), encoding)
    assert parse(json.dumps({"help": {}, "encoding": encoding.value})) == (cmd.Help(), encoding)
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
