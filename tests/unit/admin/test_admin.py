"""Admin commands of a broker on a simulated disk."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.admin_kit import Bench

from bmqtwist.admin.commands import Value, integer, publish_intervals
from bmqtwist.admin.operations import list_slice
from bmqtwist.errors import LocalError, Refused

Q = "DOMAINS DOMAIN d QUEUE q "
F = "DOMAINS DOMAIN f QUEUE q "
C = "CLUSTERS CLUSTER c3 "


@pytest.fixture
def bench() -> Bench:
    """Broker with a priority domain d and a fanout domain f."""
    made = Bench()
    made.write_domain()
    made.write_domain("f", "fanout")
    return made


def test_a_command_and_its_answer_are_logged(bench: Bench) -> None:
    bench.run("CLUSTERS LIST")
    texts = [text for severity, text in bench.report.lines if severity == "INFO"]
    assert "Received command 'CLUSTERS LIST' [source: test]" in texts
    assert any("Send response message" in text for text in texts)


@pytest.mark.parametrize("text", ["", "BOGUS", "ENCODING JSON_COMPACT BOGUS", "%s", "{"])
def test_a_command_that_cannot_be_decoded_is_answered_with_a_text_error(bench: Bench, text: str) -> None:
    assert bench.run(text).startswith("Unable to decode command (rc: -1, error: '")


@pytest.mark.parametrize("encoding", ["TEXT", "JSON_COMPACT", "JSON_PRETTY", "\\ud800"])
def test_an_answer_with_a_lone_surrogate_can_be_encoded_as_utf8(bench: Bench, encoding: str) -> None:
    text = r'{"domains": {"domain": {"name": "\ud800", "command": {"info": {}}}}, "encoding": "ENCODING"}'
    assert "?" in bench.run(text.replace("ENCODING", encoding)).encode().decode()


@pytest.mark.parametrize(("command", "answer"), [
    ("DOMAINS DOMAIN no INFOS", "Domain 'no' doesn't exist"),
    ("DOMAINS DOMAIN no PURGE", "Domain 'no' doesn't exist"),
    ("DOMAINS RECONFIGURE no", "Domain 'no' doesn't exist"),
    ("DOMAINS REMOVE no", "Domain 'no' doesn't exist"),
    ("DOMAINS REMOVE d FINALIZE", "Domain 'd' doesn't exist"),
    ("DOMAINS DOMAIN d QUEUE no INTERNALS", "Queue 'no' was not found on domain 'd'"),
    ("DOMAINS DOMAIN d QUEUE no LIST 0 1", "Queue 'no' was not found on domain 'd'"),
    ("DOMAINS DOMAIN d QUEUE no PURGE *", "Queue was not found in a storage 'bmq://d/no'"),
    ("CLUSTERS CLUSTER no STATUS", "cluster 'no' not found !"),
    (C + "STORAGE PARTITION 2 SUMMARY", "Too high partitionId value: '2'"),
    (C + "STORAGE PARTITION -1 ENABLE", "Too low partitionId value: '-1'"),
    (C + "STORAGE PARTITION 9 ROLLOVER", "Too high partitionId value: '9'"),
    (C + "STORAGE DOMAIN no QUEUE_STATUS", "Unknown domain 'no'"),
    (C + "STORAGE REPLICATION SET ZZ 1", "Unknown tunable name 'ZZ'"),
    (C + "STORAGE REPLICATION SET QUORUM -1", ("The QUORUM tunable must be a non-negative integer, but instead the "
     "following was specified: [ theInteger = -1 ]")),
    (C + "STATE ELECTOR SET QUORUM x", ("The QUORUM tunable must be a non-negative integer, but instead the "
     'following was specified: [ theString = "x" ]')),
    (C + "STATE ELECTOR GET ZZ",
     "Unsupported tunable 'ZZ': Issue the LIST_TUNABLES command for the list of supported tunables."),
    ("STAT GET ZZ", "Unsupported tunable 'ZZ': Issue the LIST_TUNABLES command for the list of supported tunables."),
])
def test_refused_commands_have_the_error_texts_of_the_original(bench: Bench, command: str, answer: str) -> None:
    assert bench.run(command) == answer
    assert json.loads(bench.run(f"ENCODING JSON_COMPACT {command}")) == {"error": {"message": answer}}


def test_purge_refuses_a_queue_name_that_makes_no_valid_uri(bench: Bench) -> None:
    assert bench.run("DOMAINS DOMAIN d QUEUE a/b PURGE *").startswith("Unable to build queue uri with error '")


def test_purge_of_a_queue_without_an_app_id_is_refused(bench: Bench) -> None:
    command = {"domains": {"domain": {"name": "d", "command": {"queue": {"name": "q", "command": {"purgeAppId": ""}}}}}}
    assert bench.run(json.dumps(command)) == (
        "Queue Purge requires a non-empty appId (Specify '*' to purge the entire queue).")


def test_infos_loads_a_domain_that_is_not_loaded_yet(bench: Bench) -> None:
    assert "ActiveQueues ..: 0" in bench.run("DOMAINS DOMAIN d INFOS")


def test_a_queue_stays_active_after_its_last_client_closes_it(bench: Bench) -> None:
    producer = bench.open()
    bench.post(producer, b"1")
    bench.close(producer)
    assert "ActiveQueues ..: 1\n           0. bmq://d/q" in bench.run("DOMAINS DOMAIN d INFOS")
    assert "Printing 1 message(s) [0-0 / 1]" in bench.run(Q + "LIST 0 0")


def test_infos_omits_queues_without_messages(bench: Bench) -> None:
    bench.open("bmq://d/empty")
    bench.post(bench.open(), b"123")
    text = bench.run("DOMAINS DOMAIN d INFOS")
    assert "Number of assigned queue-storages: 1\n" in text and text.endswith("             1        3  B    bmq://d/q")


@pytest.mark.spec("broker", 214)
def test_purge_reports_the_number_and_bytes_of_removed_messages(bench: Bench) -> None:
    bench.post(bench.open(), b"1", b"22")
    assert bench.run(Q + "PURGE *").startswith("Purged 2 message(s) for a total of 3  B from 1 queue(s):")
    assert bench.run(Q + "PURGE *").startswith("Purged 0 message(s)")


@pytest.mark.spec("broker", 216)
def test_purge_removes_messages_of_one_app_and_domain_purge_removes_the_rest(bench: Bench) -> None:
    bench.post(bench.open("bmq://f/q"), b"1", b"22")
    for app in ("foo", "bar"):
        text = bench.run(F + f"PURGE {app}")
        assert text.startswith("Purged 2 message(s)") and re.search(rf"[0-9A-F]{{10}}  +{app}  bmq://f/q$", text)
    assert bench.run("DOMAINS DOMAIN f PURGE").startswith("Purged 2 message(s)")
    for command in (F + "PURGE baz", F + "PURGE *", "DOMAINS DOMAIN f PURGE"):
        assert bench.run(command).startswith("Purged 0 message(s)")


def test_purge_of_an_unknown_app_removes_nothing_and_reports_an_error(bench: Bench) -> None:
    bench.post(bench.open("bmq://f/q"), b"1")
    text = bench.run(F + "PURGE nope")
    assert text.startswith("Purged 0 message(s) for a total of 0  B from 1 queue(s):")
    assert text.endswith("Errors encountered: \nSpecified appId 'nope' not found in the storage of queue 'bmq://f/q'.")


@pytest.mark.spec("broker", 220)
def test_list_shows_the_requested_slice_of_a_queue_or_app(bench: Bench) -> None:
    guids = [guid.hex().upper() for guid in bench.post(bench.open("bmq://f/q"), b"1", b"22", b"333", b"4444")]
    bench.run(F + "PURGE foo")

    def listed(arguments: str) -> tuple[str, list[int]]:
        text = bench.run(F + f"LIST {arguments}")
        return text.splitlines()[0], [guids.index(guid) for guid in re.findall("[0-9A-F]{32}", text)]

    assert listed("0 UNLIMITED") == ("Printing 4 message(s) [0-3 / 4] (total: 10  B)", [0, 1, 2, 3])
    assert listed("-1 1") == ("Printing 1 message(s) [3-3 / 4] (total: 4  B)", [3])
    assert listed("2 -1") == ("Printing 1 message(s) [1-1 / 4] (total: 2  B)", [1])
    assert listed("bar 1 2")[1] == [1, 2]
    assert listed("foo 0 UNLIMITED")[1] == []
    assert bench.run(F + "LIST zz 0 1") == "Invalid 'LIST' command: invalid APPID"


@given(st.integers(0, 50), st.integers(-60, 60), st.integers(-60, 60))
def test_a_slice_lies_within_the_list_and_begins_or_ends_at_its_offset(total: int, offset: int, count: int) -> None:
    first, last = list_slice(total, offset, count)
    assert 0 <= first <= last <= total
    assert count == 0 or last - first <= abs(count)
    position = min(max(offset + total if offset < 0 else offset, 0), total)
    assert position == (last if count < 0 else first)


def test_internals_shows_handles_unconfirmed_messages_and_app_states(bench: Bench) -> None:
    bench.post(bench.open("bmq://f/q", name="poster"), b"1", b"22")
    bench.open("bmq://f/q", "foo", read=True, name="reader")
    bench.open("bmq://f/q", "quux", read=True, name="unregistered")
    text = bench.run(F + "INTERNALS")
    for part in ("3 handles:", "~ poster\n", "~ reader\n", "UnconfirmedMessages ...: 2", "foo : [appKey: ",
                 "foo : status=alive", "bar : status=registered",
                 "quux: status=unauthorized\n", "Storage ...........: 2 messages, 3  B", "FanoutQueueEngine (fanout):",
                 'clientDescription = "reader"'):
        assert part in text
    engine = json.loads(bench.run(f"ENCODING JSON_COMPACT {F}INTERNALS"))["queueInternals"]["queue"]["localQueue"]
    states = {app["appId"]: app["status"] for app in engine["queueEngine"]["fanout"]["consumerStates"]}
    assert states == {"foo": "alive", "bar": "registered", "baz": "registered", "quux": "unauthorized"}


def test_a_domain_is_removed_by_remove_then_finalize(bench: Bench) -> None:
    producer = bench.open()
    bench.post(producer, b"1", b"2")
    assert bench.run("DOMAINS REMOVE d") == (
        "Trying to remove the domain 'd' while there are queues opened or opening")
    bench.post(producer, b"3")
    bench.close(producer)
    assert bench.run("DOMAINS REMOVE d FINALIZE") == "First round of DOMAINS REMOVE 'd' is not completed."
    assert bench.run("DOMAINS REMOVE d").startswith("Purged 3 message(s)")
    with pytest.raises(Refused):
        bench.open()
    assert bench.run("DOMAINS REMOVE d FINALIZE") == "SUCCESS"
    assert bench.post(bench.open(), b"new") and "Printing 1 message(s)" in bench.run(Q + "LIST 0 0")


def test_a_domain_with_a_pending_open_is_not_removed(bench: Bench) -> None:
    bench.broker.domains.get_or_load("d").opening += 1
    assert "open queue requests on the fly" in bench.run("DOMAINS REMOVE d")


def test_a_removed_domain_without_a_file_does_not_exist(bench: Bench) -> None:
    bench.close(bench.open())
    bench.run("DOMAINS REMOVE d")
    del bench.source.files["d"]
    assert bench.run("DOMAINS REMOVE d FINALIZE") == "SUCCESS"
    assert bench.run("DOMAINS DOMAIN d INFOS") == "Domain 'd' doesn't exist"


def test_reconfigure_takes_effect_at_once_and_refuses_a_change_of_mode(bench: Bench) -> None:
    bench.open()
    bench.write_domain("d", maxConsumers=3)
    assert bench.run("DOMAINS RECONFIGURE d") == "SUCCESS"
    assert "(maxConsumers: 3)" in bench.run(Q + "INTERNALS")
    for command in ("DOMAINS RESOLVER CACHE_CLEAR ALL", "CONFIGPROVIDER CACHE_CLEAR ALL"):
        assert bench.run(command) == "SUCCESS"
    bench.write_domain("d", "fanout")
    assert "routing mode is not allowed" in bench.run("DOMAINS RECONFIGURE d")


def test_a_disabled_partition_is_reported_unavailable_until_it_is_enabled(bench: Bench) -> None:
    queue = bench.open().queue
    assert bench.run(C + f"STORAGE PARTITION {queue.partition_id} DISABLE") == "SUCCESS"
    assert "IsAvailable: false" in bench.run(C + f"STORAGE PARTITION {queue.partition_id} SUMMARY")
    assert not queue.partition.available
    assert bench.run(C + f"STORAGE PARTITION {queue.partition_id} ENABLE") == "SUCCESS"
    assert queue.partition.available


def test_rollover_applies_to_one_partition_or_to_all(bench: Bench) -> None:
    bench.post(bench.open(), b"1")
    names = re.findall(r"bmq_\d\.\S+\.bmq_data", bench.run(C + "STORAGE SUMMARY"))
    bench.advance(5.0)
    assert bench.run(C + "STORAGE PARTITION 0 ROLLOVER") == "SUCCESS"
    after = re.findall(r"bmq_\d\.\S+\.bmq_data", bench.run(C + "STORAGE SUMMARY"))
    assert after[0] != names[0] and after[1] == names[1]
    bench.advance(5.0)
    assert bench.run(C + "STORAGE PARTITION ALL ROLLOVER") == "SUCCESS"
    last = re.findall(r"bmq_\d\.\S+\.bmq_data", bench.run(C + "STORAGE SUMMARY"))
    assert last[0] != after[0] and last[1] != after[1]
    assert "Printing 1 message(s)" in bench.run(Q + "LIST 0 0")


@pytest.mark.spec("broker", 206)
def test_force_gc_queues_deletes_only_empty_queues_without_handles(bench: Bench) -> None:
    bench.close(bench.open("bmq://d/empty"))
    full = bench.open("bmq://d/full")
    bench.post(full, b"1")
    bench.close(full)
    bench.open("bmq://d/used")
    assert bench.run(C + "FORCE_GC_QUEUES") == "SUCCESS"
    assert sorted(bench.cluster.queues) == ["bmq://d/full", "bmq://d/used"]


def test_cluster_commands_list_the_queues_of_the_cluster(bench: Bench) -> None:
    bench.post(bench.open(), b"1")
    assert "bmq://d/q\n" in bench.run(C + "STATUS")
    helper = bench.run(C + "QUEUEHELPER")
    assert "d: numAssignedQueues=1" in helper and "queue............: created" in helper
    assert bench.run(C + "STORAGE DOMAIN d QUEUE_STATUS").endswith("             1        1  B    bmq://d/q")
    assert "[LOCAL ] c3:\n        n1 " in bench.run("CLUSTERS LIST")


def test_a_quorum_that_was_set_is_read_back(bench: Bench) -> None:
    for where, old in (("STORAGE REPLICATION", 1), ("STATE ELECTOR", 0)):
        assert bench.run(C + f"{where} GET QUORUM") == f"Quorum = {old}"
        assert bench.run(C + f"{where} SET quorum 3") == f"Quorum set to 3 from {old}"
        assert bench.run(C + f"{where} GET_ALL QUORUM") == "Quorum = 3"
        assert bench.run(C + f"{where} LIST_TUNABLES").startswith("QUORUM..: 3\n    ")


def test_a_publish_interval_is_refused_unless_it_is_a_multiple_of_the_snapshot_interval() -> None:
    intervals = publish_intervals({"Prom": 30}, 2)
    assert intervals.get("PROM.publishinterval").value == integer(30)
    assert intervals.set("Prom.PUBLISHINTERVAL", integer(0)).old == integer(30)
    assert intervals.get("Prom.PUBLISHINTERVAL").value == integer(0)
    assert intervals.set("Prom.PUBLISHINTERVAL", integer(-1)).new == integer(30)
    for value in (integer(3), integer(-2), Value("theString", "x"), Value("theBool", True)):
        with pytest.raises(LocalError):
            intervals.set("Prom.PUBLISHINTERVAL", value)
    for name in ("Prom", "Other.PUBLISHINTERVAL"):
        with pytest.raises(LocalError, match="Unsupported tunable"):
            intervals.get(name)
    assert [one.name for one in intervals.list()] == ["PROM.PUBLISHINTERVAL"]


def test_brokerconfig_dump_is_the_same_tree_as_text_and_as_json(bench: Bench) -> None:
    tree = json.loads(bench.run("BROKERCONFIG DUMP"))
    assert tree["hostName"] == "n1"
    as_json = json.loads(bench.run("ENCODING JSON_COMPACT BROKERCONFIG DUMP"))["brokerConfig"]["asJSON"]
    assert json.loads(as_json) == tree


@pytest.mark.spec("broker", 222)
def test_stat_show_reports_the_counters_of_the_worked_example(bench: Bench) -> None:
    bench.write_domain("w", "fanout", queue_messages=1000, queue_bytes=1048576)
    uri = "bmq://w/q"

    def show() -> tuple[dict[str, int], dict[str, int]]:
        bench.advance(1.5)
        stats = json.loads(json.loads(bench.run("ENCODING JSON_COMPACT STAT SHOW"))["stats"])
        tree = stats["domainQueues"]["domains"]["w"][uri]
        return tree["values"], {app: each["values"]["queue_msgs_current"] for app, each in tree["appIds"].items()}

    bench.post(bench.open(uri), *[b"msg"] * 32)
    values, apps = show()
    assert values | {"queue_put_msgs_abs": 32, "queue_put_bytes_abs": 96, "queue_ack_msgs_abs": 32,
                     "queue_msgs_current": 32, "queue_msgs_utilization_max": 3, "queue_producers_count": 1,
                     "queue_cfg_msgs": 1000, "queue_cfg_bytes": 1048576, "queue_role": 1} == values
    assert apps == {"foo": 32, "bar": 32, "baz": 32}
    for app, count in (("foo", 32), ("bar", 22), ("baz", 11)):
        bench.confirm(bench.open(uri, app, read=True), count)
    values, apps = show()
    assert values | {"queue_push_msgs": 96, "queue_push_bytes": 288, "queue_confirm_msgs": 65,
                     "queue_consumers_count": 3, "queue_msgs_current": 21, "queue_history_abs": 11} == values
    assert apps == {"foo": 0, "bar": 10, "baz": 21}
    assert bench.run("DOMAINS DOMAIN w QUEUE q PURGE baz").startswith("Purged 21 message(s)")
    values, apps = show()
    assert values | {"queue_msgs_current": 10, "queue_history_abs": 22} == values
    assert apps == {"foo": 0, "bar": 10, "baz": 0}


def test_stat_show_more_than_four_times_in_an_interval_is_an_error(bench: Bench) -> None:
    answers = [bench.run("STAT SHOW") for _ in range(5)]
    assert [":::::::::: :::::::::: DOMAINQUEUES >>" in answer for answer in answers] == [True] * 4 + [False]
    assert answers[4] == "Cannot save the recent snapshot, trying to make snapshots too often"


def test_an_election_mode_is_refused_where_it_has_no_effect(bench: Bench) -> None:
    answer = bench.run(C + "STATE ELECTOR MODE NEVER")
    assert "has no other nodes: this node always leads" in answer
