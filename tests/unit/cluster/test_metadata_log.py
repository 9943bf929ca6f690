"""Metadata log: the same records as the original for the same operations, and outcomes only after the write."""

from base64 import b64decode
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.ledger_files import FILES, case, tool_output
from kit.ledger_kit import Disk, Failed, leading, opened

from bmqtwist.cluster import changes, metadata_log, record_log
from bmqtwist.cluster.changes import LEAST_ASSIGNED, AssignQueue, PrimaryRules, UnassignQueue, UpdateApps
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.log_events import (
    Done,
    Flush,
    Follow,
    Lead,
    LeadershipLost,
    NotDone,
    Send,
    StateChanged,
    StepDown,
    WriteFile,
)
from bmqtwist.cluster.record_log import LogRecord
from bmqtwist.cluster.state import ClusterState, Primary, QueueRecord
from bmqtwist.ids import DEFAULT_APP_KEY
from bmqtwist.member.metadata import ClusterMetadata
from bmqtwist.report import ListReport
from bmqtwist.storage.ledger_file import LedgerFile, encode_ledger, parse_ledger_file_name, read_ledger
from bmqtwist.storage.memory import MemoryDisk, ProcessKilled
from bmqtwist.wire.cluster_schema import (
    NO_LSN,
    Acknowledged,
    CatchUp,
    ClusterMessage,
    ClusterStateRecord,
    Entries,
    LeaderAdvisoryCommit,
    LeaderMessageSequence,
    LedgerRecordType,
    QueueAssignmentAdvisory,
    Snapshot,
)

SINGLE_NODE_FILES = [path for path in FILES if path.parent.name.endswith((".n1", ".n1-after-restart"))
                     and not path.parent.name.startswith("three-nodes") and path.parent.name != "no-quorum-deletion.n1"]
SUMMARIZED_FILES = [path for path in FILES if (path.parent / "csl.summary.json").exists()]


def records_in(data):
    return [each.record for each in read_ledger(data).entries]


def record_kinds(disk):
    return [(each.type.name, each.term, each.sequence_number, each.message.choice)
            for each in records_in(disk.data)]


def is_same_state(state, other):
    return (state.partitions, state.queues, state.keys) == (other.partitions, other.queues, other.keys)


def key_of(text):
    """The tool prints keys in hexadecimal, some in base64."""
    return bytes.fromhex(text) if len(text) == 10 else b64decode(text)


# -- what real brokers wrote --------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", SUMMARIZED_FILES, ids=case)
def test_recorded_files_have_the_queues_that_the_original_tool_prints(path):
    report = ListReport()
    ledger, _ = opened(Disk(path.read_bytes()), report=report)
    printed = tool_output(path, "csl.summary.json")["Queues"]
    gone = {info.key for each in records_in(path.read_bytes())
            if each.message.choice == "queueUnAssignmentAdvisory" for info in each.message.value.queues}
    found = {(queue.uri, queue.key, queue.partition_id, tuple(queue.apps.items()))
             for queue in ledger.log.state.queues.values()}
    assert found == {(entry["uri"], key_of(entry["key"]), entry["partitionId"],
                      tuple((app["appId"], key_of(app["appKey"])) for app in entry["appIds"]))
                     for entry in printed if key_of(entry["key"]) not in gone}
    assert report.lines == []


@pytest.mark.parametrize("name", ["three-nodes-live", "three-nodes-rollover-drop"])
def test_the_files_of_all_nodes_of_a_cluster_give_the_same_state(name):
    states = [opened(Disk(path.read_bytes()))[0].log.state for path in FILES if case(path).rpartition(".")[0] == name]
    assert len(states) == 3 and states[0].queues and states[0].partitions
    assert all(is_same_state(state, states[0]) for state in states)


@pytest.mark.parametrize("path", SINGLE_NODE_FILES, ids=case)
def test_the_same_operations_write_the_same_bytes_as_the_original(path, monkeypatch):
    data = path.read_bytes()
    recorded = read_ledger(data)
    keys = [parse_ledger_file_name(path.name)]
    for module in (changes, record_log):
        monkeypatch.setattr(module, "make_storage_key", lambda *_: keys.pop(0))
    disk = Disk()
    for each in records_in(data):
        advisory, wall = each.message.value, each.timestamp
        if each.type is LedgerRecordType.SNAPSHOT:  # the broker was started
            ledger, _ = opened(disk)
            ledger.become_leader(len(advisory.partitions), wall)
        elif each.message.choice == "queueAssignmentAdvisory":
            queue, = advisory.queues
            apps = [app for app in queue.app_ids if app.app_key != DEFAULT_APP_KEY]
            keys += [queue.key, *(app.app_key for app in apps)]
            ledger.assign_queue(queue.uri, [app_id for app_id, _ in queue.app_ids], 0, wall)
        elif each.message.choice == "queueUnAssignmentAdvisory":
            ledger.unassign_queue(advisory.queues[0].uri, wall)
        elif each.message.choice == "queueUpdateAdvisory":
            update, = advisory.queue_updates
            keys += [app.app_key for app in update.added_app_ids]
            ledger.update_apps(update.uri, [app_id for app_id, _ in update.added_app_ids],
                               [app_id for app_id, _ in update.removed_app_ids], 0, wall)
        else:
            assert each.message.choice == "leaderAdvisoryCommit"
    assert disk.safe == data[:recorded.end]


# -- starting -----------------------------------------------------------------------------------------------------

def test_a_first_start_writes_a_snapshot_with_the_leases_and_its_commit():
    ledger, disk = leading(2)
    assert record_kinds(disk) == [("SNAPSHOT", 1, 1, "leaderAdvisory"), ("COMMIT", 1, 2, "leaderAdvisoryCommit")]
    assert ledger.log.state.partitions == {0: Primary(1, 1), 1: Primary(1, 1)} and disk.safe == disk.data


def test_each_start_increments_term_and_leases():
    _, disk = leading(2)
    for start in (2, 3):
        ledger, _ = opened(disk)
        ledger.become_leader(2, 2000)
        assert ledger.log.lsn == (start, 2)
        assert ledger.log.state.partitions == {0: Primary(1, start), 1: Primary(1, start)}
    assert disk.calls.count("replace") == 1


def test_queues_survive_a_restart():
    ledger, disk = leading(2)
    for name in "abc":
        ledger.assign_queue(f"bmq://d/{name}", ["foo", "bar"], 7, 1000)
    ledger.update_apps("bmq://d/a", ["baz"], ["foo"], 8, 1000)
    ledger.unassign_queue("bmq://d/b", 1000)
    again, _ = opened(Disk(disk.safe))
    assert is_same_state(again.log.state, ledger.log.state) and again.log.lsn == ledger.log.lsn
    assert list(again.log.state.queues["bmq://d/a"].apps) == ["bar", "baz"] and list(again.log.state.queues) == [
        "bmq://d/a", "bmq://d/c"]


def test_an_update_without_its_commit_record_is_applied_after_a_restart():
    ledger, disk = leading()
    before = len(disk.data)
    ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    offset = read_ledger(disk.data).entries[-1].offset
    again, _ = opened(Disk(disk.data[:offset]))
    assert offset > before and "bmq://d/a" in again.log.state.queues


def test_an_incomplete_last_record_is_truncated_with_an_alarm_and_overwritten():
    ledger, disk = leading()
    good = disk.data
    ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    report = ListReport()
    again, torn = opened(Disk(disk.data[:len(good) + 50]), report=report)
    assert len(report.texts("ALARM")) == 1 and report.texts("ALARM")[0].startswith("[CLUSTER] ")
    assert torn.data == good and again.log.state.queues == {}
    again.become_leader(1, 2000)
    assert torn.data.startswith(good) and not read_ledger(torn.data).alarms


def test_trailing_zeros_are_truncated_without_an_alarm():
    _, disk = leading()
    report = ListReport()
    _, crashed = opened(Disk(disk.data + bytes(4096)), report=report)
    assert crashed.data == disk.data and report.lines == []


def test_a_damaged_file_is_replaced_by_a_new_file():
    ledger, disk = leading()
    for name in "ab":
        ledger.assign_queue(f"bmq://d/{name}", ["__default"], ord(name), 1000)
    offset = next(each.offset for each in read_ledger(disk.data).entries if each.record.sequence_number == 3)
    data = bytearray(disk.data)
    data[offset + 60] ^= 1
    report = ListReport()
    again, damaged = opened(Disk(bytes(data)), report=report)
    assert list(again.log.state.queues) == ["bmq://d/b"] and len(report.texts("ALARM")) == 1
    assert damaged.data == bytes(data)
    again.become_leader(1, 2000)
    assert damaged.previous == bytes(data) and not read_ledger(damaged.data).alarms
    assert list(opened(damaged)[0].log.state.queues) == ["bmq://d/b"]


def test_a_record_that_contradicts_the_state_is_skipped_with_an_alarm():
    ledger, disk = leading()
    ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    ledger.unassign_queue("bmq://d/a", 1000)
    entries = read_ledger(disk.data).entries
    without = disk.data[:entries[2].offset] + disk.data[entries[4].offset:]  # the assignment and its COMMIT are missing
    report = ListReport()
    assert opened(Disk(without), report=report)[0].log.state.queues == {}
    assert len(report.texts("ALARM")) == 1 and "is not applied" in report.texts("ALARM")[0]


def test_queues_of_partitions_that_are_not_configured_raise_an_alarm():
    ledger, disk = leading(2)
    for name in "ab":
        ledger.assign_queue(f"bmq://d/{name}", ["__default"], ord(name), 1000)
    report = ListReport()
    again, _ = opened(disk, report=report)
    again.become_leader(1, 2000)
    assert again.log.state.partitions == {0: Primary(1, 2)} and "[1]" in report.texts("ALARM")[0]


# -- partitions ---------------------------------------------------------------------------------------------------

def test_partitions_of_lost_nodes_are_assigned_to_the_nodes_with_the_fewest_partitions():
    ledger, _ = opened(algorithm=LEAST_ASSIGNED)
    ledger.become_leader(5, 1000, candidates=[3, 1, 2])
    assert [ledger.log.state.partitions[n].node_id for n in range(5)] == [1, 2, 3, 1, 2]
    assert ledger.assign_partitions(1001, candidates=[1, 3], keep=[1, 3]) == [1, 4]
    assert ledger.log.state.partitions == {0: Primary(1, 1), 1: Primary(3, 2), 2: Primary(3, 1), 3: Primary(1, 1),
                                       4: Primary(1, 2)}
    assert ledger.assign_partitions(1002, candidates=[1, 3], keep=[1, 3]) == []


def test_the_default_assignment_makes_the_leader_primary_of_all_partitions():
    ledger, _ = opened(node_id=2)
    ledger.become_leader(2, 1000, candidates=[1, 2, 3])
    assert set(ledger.log.state.partitions.values()) == {Primary(2, 1)}


# -- queues -------------------------------------------------------------------------------------------------------

def test_a_queue_is_assigned_to_the_partition_with_the_fewest_queues():
    ledger, _ = leading(2)
    placed = [ledger.assign_queue(f"bmq://d/{n}", ["__default"], n, 1000).partition_id for n in range(5)]
    assert placed == [0, 1, 0, 1, 0]
    ledger.unassign_queue("bmq://d/0", 1000)
    ledger.unassign_queue("bmq://d/2", 1000)
    assert [ledger.assign_queue(f"bmq://d/{n}", ["__default"], n, 1000).partition_id for n in (6, 7)] == [0, 0]


def test_queue_and_app_keys_are_unique_also_for_a_recreated_queue():
    ledger, _ = leading()
    first = ledger.assign_queue("bmq://d/a", ["x", "y", "__default"], 7, 1000)
    assert len({first.key, *first.apps.values()}) == 4 and first.apps["__default"] == DEFAULT_APP_KEY
    assert ledger.assign_queue("bmq://d/a", ["x"], 8, 1000) == first
    assert ledger.unassign_queue("bmq://d/a", 1000) == first
    assert ledger.unassign_queue("bmq://d/a", 1000) is None
    assert ledger.assign_queue("bmq://d/a", ["x"], 9, 1000).key != first.key


def test_a_queue_adopted_from_a_partition_keeps_its_keys():
    ledger, disk = leading(2)
    ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    found = QueueRecord("bmq://d/b", b"FOUND", 0, {"x": b"xxxxx", "y": b"yyyyy"})
    ledger.adopt_queue(found, 1000)
    assert opened(Disk(disk.safe))[0].log.state.queues["bmq://d/b"] == found
    before = disk.data
    for bad in (found, QueueRecord("bmq://d/c", b"FOUND", 0, {}), QueueRecord("bmq://d/c", b"OTHER", 2, {})):
        with pytest.raises(Failed):
            ledger.adopt_queue(bad, 1000)
    assert disk.data == before


def test_a_queue_assignment_without_any_primary_is_refused():
    ledger, disk = opened()
    with pytest.raises(Failed):
        ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    assert disk.calls == []


@pytest.mark.parametrize("added, removed", [(["a"], []), ([], ["c"]), (["c", "c"], []), (["c"], ["a", "a"]),
                                            (["c"], ["d"])])
def test_an_invalid_change_of_apps_is_refused_completely(added, removed):
    ledger, disk = leading()
    ledger.assign_queue("bmq://d/q", ["a", "b"], 7, 1000)
    before = disk.data
    with pytest.raises(Failed):
        ledger.update_apps("bmq://d/q", added, removed, 8, 1000)
    assert disk.data == before and list(ledger.log.state.queues["bmq://d/q"].apps) == ["a", "b"]


def test_an_app_update_names_the_domain_with_tier_and_an_empty_update_writes_no_record():
    ledger, disk = leading()
    ledger.assign_queue("bmq://d.~lcl/q", ["a"], 7, 1000)
    before = disk.data
    ledger.update_apps("bmq://d.~lcl/q", [], [], 8, 1000)
    assert disk.data == before
    changed = ledger.update_apps("bmq://d.~lcl/q", ["b"], ["a"], 8, 1000)
    assert ledger.log.state.queues["bmq://d.~lcl/q"] == changed and list(changed.apps) == ["b"]
    update = records_in(disk.data)[-2].message.value.queue_updates[0]
    assert update.domain == "d.~lcl"
    with pytest.raises(Failed):
        ledger.update_apps("bmq://d/unknown", ["b"], [], 8, 1000)


# -- durability ---------------------------------------------------------------------------------------------------

def test_a_change_is_applied_after_its_sync():
    ledger, disk = leading()
    seen = []
    apply = ledger.log.state.apply
    ledger.log.state = type("Watched", (type(ledger.log.state),), {
        "apply": lambda self, message: (seen.append(disk.safe == disk.data and disk.calls[-1] == "sync"),
                                        apply(message))[1]})()
    ledger.log.state.partitions = {0: Primary(1, 1)}
    ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    assert seen == [True]


def test_a_failed_write_changes_no_state_and_the_next_change_creates_a_new_file():
    report = ListReport()
    ledger, disk = leading(report=report)
    ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    disk.broken = True
    with pytest.raises(Failed):
        ledger.assign_queue("bmq://d/b", ["__default"], 8, 1000)
    with pytest.raises(Failed):
        ledger.unassign_queue("bmq://d/a", 1000)
    assert list(ledger.log.state.queues) == ["bmq://d/a"] and len(report.texts("ALARM")) == 2
    disk.broken = False
    disk.data += b"\x81garbage"
    ledger.assign_queue("bmq://d/c", ["__default"], 9, 1000)
    again, _ = opened(Disk(disk.safe))
    assert is_same_state(again.log.state, ledger.log.state) and list(again.log.state.queues) == ["bmq://d/a", "bmq://d/c"]
    assert not read_ledger(disk.safe).alarms


def test_a_full_file_is_replaced_by_a_new_one_that_begins_with_a_snapshot():
    ledger, disk = leading(max_bytes=1500)
    first = ledger.log.log.log_id
    for n in range(30):
        ledger.assign_queue("bmq://d/a", ["__default"], n, 1000 + n)
        ledger.unassign_queue("bmq://d/a", 1000 + n)
        assert len(disk.data) == ledger.log.log.size <= 1500
        assert is_same_state(opened(Disk(disk.safe))[0].log.state, ledger.log.state)
    assert disk.calls.count("replace") > 3 and ledger.log.log.log_id != first
    assert read_ledger(disk.data).log_id == ledger.log.log.log_id
    assert record_kinds(disk)[0][0] == "SNAPSHOT" and record_kinds(disk)[0][2] == record_kinds(disk)[1][2]
    assert ledger.log.leader_term.sequence == 2 + 30 * 4


def test_a_state_above_the_file_size_does_not_create_a_file_for_each_change():
    ledger, disk = leading(max_bytes=500)
    for n in range(100):
        ledger.assign_queue(f"bmq://d/{n}", ["__default"], n, 1000)
    assert disk.calls.count("replace") < 20
    assert is_same_state(opened(Disk(disk.safe))[0].log.state, ledger.log.state)


def test_a_file_truncated_anywhere_gives_an_earlier_state():
    ledger, disk = opened()
    earlier_states = [{}]
    for step in (lambda: ledger.become_leader(2, 1000),
                 lambda: ledger.assign_queue("bmq://d/a", ["x", "y"], 1, 1000),
                 lambda: ledger.assign_queue("bmq://d/b", ["__default"], 2, 1000),
                 lambda: ledger.update_apps("bmq://d/a", ["z"], ["x"], 3, 1000),
                 lambda: ledger.unassign_queue("bmq://d/b", 1000),
                 lambda: ledger.assign_queue("bmq://d/b", ["__default"], 4, 1000)):
        step()
        earlier_states.append(dict(ledger.log.state.queues))
    seen = [opened(Disk(disk.data[:size]))[0].log.state.queues for size in range(len(disk.data) + 1)]
    assert all(state in earlier_states for state in seen)
    assert [state for at, state in enumerate(seen) if not at or state != seen[at - 1]] == earlier_states[1:]


# -- one sync for many --------------------------------------------------------------------------------------------

def test_changes_of_one_turn_are_one_write_with_the_same_bytes_as_single_changes():
    (one, disk), (many, other) = leading(2), leading(2)
    changes_ = [AssignQueue("bmq://d/a", ["x"], 1), AssignQueue("bmq://d/b", ["y"], 2),
                UpdateApps("bmq://d/a", ["z"], ["x"], 3), UnassignQueue("bmq://d/b")]
    for change in changes_:
        one.propose(change)
        one.flush()
    calls = len(other.calls)
    tokens = [many.propose(change) for change in changes_]
    assert not many.outcomes.keys() & set(tokens) and other.calls[calls:] == []
    many.flush()
    assert other.calls[calls:] == ["append", "sync"] and all(isinstance(many.outcomes[each], Done) for each in tokens)
    assert disk.data == other.data


def test_changes_proposed_during_a_write_are_written_together_after_it():
    ledger, disk = leading()
    first = ledger.propose(AssignQueue("bmq://d/a", ["x"], 1))
    job, = ledger.step(Flush())
    later = [ledger.propose(AssignQueue(f"bmq://d/{n}", ["x"], n)) for n in range(3)]
    assert ledger.step(Flush()) == []
    ledger.perform(job)
    assert first in ledger.outcomes and not ledger.outcomes.keys() & set(later)
    calls = len(disk.calls)
    ledger.flush()
    assert disk.calls[calls:] == ["append", "sync"] and ledger.outcomes.keys() >= set(later)


def test_a_failed_write_undoes_the_changes_proposed_during_it():
    ledger, disk = leading()
    first = ledger.propose(AssignQueue("bmq://d/a", ["x"], 1))
    job, = ledger.step(Flush())
    behind = ledger.propose(UpdateApps("bmq://d/a", ["y"], [], 2))
    disk.broken = True
    ledger.perform(job)
    assert [ledger.outcomes[each].unknown for each in (first, behind)] == [True, True] and not ledger.log.head.queues
    disk.broken = False
    assert ledger.assign_queue("bmq://d/a", ["x"], 3, 1000) == ledger.log.state.queues["bmq://d/a"]
    assert is_same_state(opened(Disk(disk.safe))[0].log.state, ledger.log.state)


def test_a_change_is_validated_against_pending_changes():
    ledger, _ = leading(2)
    token = [ledger.propose(change) for change in (
        AssignQueue("bmq://d/a", ["x"], 7), AssignQueue("bmq://d/b", ["x"], 7), AssignQueue("bmq://d/a", ["y"], 8),
        UpdateApps("bmq://d/a", ["y"], ["x"], 9), UpdateApps("bmq://d/a", ["y"], [], 10), UnassignQueue("bmq://d/b"),
        AssignQueue("bmq://d/b", ["x"], 7), UnassignQueue("bmq://d/none"))]
    assert ledger.outcomes.keys() & set(token) == {token[4], token[7]}  # y exists; the unassignment has no effect
    assert ledger.log.is_pending("bmq://d/a") and not ledger.log.is_pending("bmq://d/none")
    ledger.flush()
    a, b, again, updated, _, gone, new, _ = (ledger.outcomes[each] for each in token)
    assert {a.value.partition_id, b.value.partition_id} == {0, 1} and a == again and gone == b
    assert list(updated.value.apps) == ["y"] == list(ledger.log.state.queues["bmq://d/a"].apps)
    assert len({a.value.key, b.value.key, new.value.key}) == 3 and not ledger.log.is_pending("bmq://d/a")


def test_the_number_of_pending_records_is_limited(monkeypatch):
    monkeypatch.setattr(metadata_log, "PENDING_RECORDS_MAX", 4)
    ledger, _ = leading()
    tokens = [ledger.propose(AssignQueue(f"bmq://d/{n}", ["x"], n)) for n in range(3)]
    assert ledger.outcomes[tokens[2]] == NotDone("4 changes of the metadata are not committed yet", False)
    ledger.flush()
    assert ledger.assign_queue("bmq://d/2", ["x"], 2, 1000)


# -- more nodes than one ------------------------------------------------------------------------------------------

def leader_of_three(**options):
    """Node 1 leads nodes 2 and 3; its first record is committed."""
    ledger, disk = opened(members=(1, 2, 3), **options)
    ledger.become_leader(1, 1000, candidates=[1, 2, 3])
    ledger.step(Acknowledged(2, 1, (1, 1)))
    ledger.flush()
    return ledger, disk


def follower(leader, disk=None, node_id=2, **options):
    """A follower of node 1 with its whole log."""
    node, disk = opened(disk, node_id=node_id, members=(1, 2, 3), **options)
    node.step(Follow(leader.log.term, 1))
    node.step(Entries(1, leader.log.term, (0, 0), tuple(each.record for each in leader.log.log.records)))
    return node, node.flush()


def update(term, number, uri, timer):
    """Record of the leader of a term that assigns a queue."""
    queue = QueueRecord(uri, bytes([timer]) * 5, 0, {"x": b"xxxxx"})
    return ClusterStateRecord(LedgerRecordType.UPDATE, term, number, 1000, ClusterMessage(
        "queueAssignmentAdvisory", QueueAssignmentAdvisory(LeaderMessageSequence(term, number), [queue.info()])))


def first_of(term):
    """First record of a leader without queues."""
    state = ClusterState()
    state.partitions[0] = Primary(3, term)
    return record_log.snapshot_record(state, (term, 1), 1000)


def test_with_a_quorum_of_two_a_change_waits_for_the_acknowledgement_of_a_second_node():
    ledger, disk = opened(members=(1, 2, 3))
    ledger.become_leader(1, 1000, candidates=[1, 2, 3])
    assert ledger.log.state.partitions == {} and ledger.log.lsn == (1, 1)
    assert ledger.step(Acknowledged(1, 1, (1, 1))) == []  # its own acknowledgement is counted once
    assert ledger.step(Acknowledged(2, 1, (1, 1)))
    assert ledger.step(Acknowledged(3, 1, (1, 1))) == []
    tokens = [ledger.propose(AssignQueue(f"bmq://d/{name}", ["x"], 7)) for name in "ab"]
    ledger.flush()
    assert ledger.log.state.queues == {}
    ledger.step(Acknowledged(3, 1, (1, 3)))
    assert list(ledger.log.state.queues) == ["bmq://d/a"] and tokens[1] not in ledger.outcomes
    ledger.step(Acknowledged(3, 1, (1, 4)))
    ledger.flush()
    assert [entry[:3] for entry in record_kinds(disk)] == [
        ("SNAPSHOT", 1, 1), ("COMMIT", 1, 2), ("UPDATE", 1, 3), ("UPDATE", 1, 4), ("COMMIT", 1, 5), ("COMMIT", 1, 6)]
    assert is_same_state(opened(Disk(disk.safe), members=(1, 2, 3))[0].log.state, ledger.log.state)


@pytest.mark.spec("cluster", 35)
def test_a_repeated_acknowledgement_counts_once():
    """A quorum of five nodes is three: this node and two others."""
    ledger, _ = opened(members=(1, 2, 3, 4, 5))
    ledger.become_leader(1, 1000, candidates=[1, 2, 3, 4, 5])
    for _ in range(5):
        assert ledger.step(Acknowledged(2, 1, (1, 1))) == []
    assert ledger.log.state.partitions == {} and ledger.log.committed == (0, 0)
    assert ledger.step(Acknowledged(4, 1, (1, 1))) and ledger.log.committed == (1, 1)


@pytest.mark.spec("cluster", 43)
@pytest.mark.parametrize("power", [True, False])
def test_a_crash_at_any_step_of_a_ledger_rollover_keeps_the_state(power):
    """Crash at every operation on the disk, with every prefix of the unsynced data."""
    place, moments = "/storage", 0
    for operations in range(20):
        for torn in range(6 if power else 1):
            disk = MemoryDisk()
            file = LedgerFile(disk, place)
            file.open()
            log = metadata_log.MetadataLog(Electorate(1, (1, 2, 3)), "n1", 500)
            metadata = ClusterMetadata(log, file, ListReport())
            metadata.open()
            metadata.lead(1, PrimaryRules(1, [1, 2, 3]), lambda outcome, wall: None, 1000)
            committed, durable, rolled = {}, (0, 0), 0
            try:
                for number in range(12):
                    if number == 3:
                        disk.stop_after = disk.steps + operations
                    uri = f"bmq://d/{number}"
                    metadata.propose(AssignQueue(uri, ["x"], number), lambda outcome, wall: None, 1000)
                    metadata.perform_jobs(1000)
                    metadata.step(Acknowledged(2, 1, log.lsn), 1000)
                    metadata.perform_jobs(1000)
                    committed, durable = dict(log.state.queues), log.lsn
                    rolled = sum(what == "rename" for what, _ in disk.log)
            except ProcessKilled:
                moments += rolled > 0
            if power:
                disk.crash(Random(torn))
            else:
                disk.kill()
            again = LedgerFile(disk, place)
            again.open()
            other = metadata_log.MetadataLog(Electorate(1, (1, 2, 3)), "n1", 500)
            other.open(again.read_all())
            assert other.lsn >= durable
            assert all(queue == log.state.queues[uri] for uri, queue in other.state.queues.items())
            other.step(Lead(0, 9, PrimaryRules(1, [1, 2, 3])), 1000)  # also applies records not known as committed
            assert all(other.head.queues[uri] == queue for uri, queue in committed.items())
    assert moments > 0


def test_a_leader_counts_its_own_acknowledgement_only_after_its_sync():
    ledger, _ = leader_of_three()
    token = ledger.propose(AssignQueue("bmq://d/a", ["x"], 7))
    job = next(each for each in ledger.step(Flush()) if isinstance(each, WriteFile))
    ledger.step(Acknowledged(2, 1, ledger.log.log.last))
    assert token not in ledger.outcomes
    ledger.perform(job)
    assert ledger.outcomes[token] == Done(ledger.log.state.queues["bmq://d/a"])


def test_records_of_an_earlier_leader_are_committed_only_by_a_record_of_the_own_term():
    ledger, _ = follower(leader_of_three()[0])
    ledger.step(Entries(1, 1, ledger.log.log.last, (update(1, 3, "bmq://d/a", 1),)))
    ledger.flush()
    assert ledger.log.lsn == (1, 3) and not ledger.log.state.queues
    ledger.step(Lead(50, 2, PrimaryRules(1, [1, 2, 3])))
    early = ledger.propose(AssignQueue("bmq://d/a", ["y"], 9))
    ledger.flush()
    ledger.step(Acknowledged(3, 2, (1, 3)))
    assert not ledger.log.state.queues and early not in ledger.outcomes and ledger.log.is_pending("bmq://d/a")
    changed = [each.lsn for each in ledger.step(Acknowledged(3, 2, (2, 1))) if isinstance(each, StateChanged)]
    assert changed == [(1, 3), (2, 1)] and ledger.outcomes[early].value == ledger.log.state.queues["bmq://d/a"]


def test_a_follower_acknowledges_synced_records_and_applies_committed_ones():
    leader, _ = leader_of_three()
    leader.assign_queue("bmq://d/a", ["x"], 7, 1000)
    node, _ = follower(leader)
    assert node.log.lsn == (1, 3) and not node.log.state.queues and node.log.state.partitions
    node, disk = opened(node_id=2, members=(1, 2, 3))
    node.step(Follow(1, 1))
    node.step(Entries(1, 1, (0, 0), tuple(each.record for each in leader.log.log.records)))
    job, = node.step(Flush())
    assert node.log.lsn == (0, 0) and not node.log.state.partitions
    node.perform(job)
    assert node.step(Flush()) == [Send(1, Acknowledged(2, 1, (1, 3)))]
    leader.step(Acknowledged(2, 1, (1, 3)))
    commit = next(each.message for each in leader.flush() if isinstance(each, Send) and each.node_id == 2)
    node.step(commit)
    node.flush()
    assert is_same_state(node.log.state, leader.log.state) and leader.log.state.queues
    assert is_same_state(opened(Disk(disk.safe), node_id=2, members=(1, 2, 3))[0].log.state, leader.log.state)


def test_a_follower_requests_missing_records_and_the_leader_sends_them():
    leader, _ = leader_of_three()
    node, _ = follower(leader)
    for name in "abc":
        leader.assign_queue(f"bmq://d/{name}", ["x"], 7, 1000)
    late = update(1, 5, "bmq://d/c", 3)
    assert node.step(Entries(1, 1, (1, 4), (late,))) == [Send(1, CatchUp(2, 1, (1, 2)))]
    leader.step(CatchUp(2, 1, (1, 2)))
    sent, = (each.message for each in leader.flush() if isinstance(each, Send) and each.node_id == 2)
    assert (sent.previous, len(sent.records)) == ((1, 2), 3)
    node.step(sent)
    assert Send(1, Acknowledged(2, 1, (1, 5))) in node.flush()


def test_a_follower_truncates_uncommitted_records_of_another_leader_only():
    leader, _ = leader_of_three()
    node, disk = opened(node_id=2, members=(1, 2, 3))
    node, _ = follower(leader, disk)
    kept = disk.data
    node.step(Entries(1, 1, (1, 2), (update(1, 3, "bmq://d/a", 1), update(1, 4, "bmq://d/b", 2))))
    node.flush()
    node.step(Follow(2, 3))
    node.step(Entries(3, 2, (1, 2), (first_of(2),)))
    node.flush()
    assert disk.calls[-3:] == ["truncate", "append", "sync"] and disk.data.startswith(kept)
    assert [entry[1:3] for entry in record_kinds(disk)] == [(1, 1), (1, 2), (2, 1)] and node.log.lsn == (2, 1)
    node.step(Follow(3, 1))
    before = disk.data
    node.step(Entries(1, 3, (0, 0), (first_of(1), update(1, 2, "bmq://d/c", 3))))  # another log up to the committed record
    assert disk.data == before and node.log.log.lsn_at(node.log.log.covered) == (1, 2)


def test_a_write_for_an_old_leader_is_not_acknowledged_to_the_new_one():
    leader, _ = leader_of_three()
    node, _ = follower(leader)
    node.step(Entries(1, 1, (1, 2), (update(1, 3, "bmq://d/a", 1),)))
    job = next(each for each in node.step(Flush()) if isinstance(each, WriteFile))
    node.step(Follow(2, 3))
    node.perform(job)
    assert node.log.lsn == (1, 3) and node.flush() == []
    node.step(Entries(3, 2, (1, 1), ()))
    assert node.flush() == [Send(3, Acknowledged(2, 2, (1, 1)))]


def test_records_replaced_during_a_write_are_not_durable_when_it_completes():
    leader, _ = leader_of_three()
    node, disk = opened(node_id=2, members=(1, 2, 3))
    node, _ = follower(leader, disk)
    node.step(Entries(1, 1, (1, 2), (update(1, 3, "bmq://d/a", 1), update(1, 4, "bmq://d/b", 2))))
    job = next(each for each in node.step(Flush()) if isinstance(each, WriteFile))
    node.step(Follow(2, 3))
    node.step(Entries(3, 2, (1, 2), (first_of(2), update(2, 2, "bmq://d/c", 3))))
    node.perform(job)
    assert node.log.lsn == (1, 2)
    assert Send(3, Acknowledged(2, 2, (2, 2))) in node.flush()
    assert [entry[1:3] for entry in record_kinds(disk)] == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_at_a_step_down_unsent_changes_are_refused_and_sent_ones_have_an_unknown_outcome():
    ledger, _ = leader_of_three()
    sent = ledger.propose(AssignQueue("bmq://d/a", ["x"], 7))
    ledger.flush()
    kept = ledger.propose(AssignQueue("bmq://d/b", ["x"], 7))
    ledger.step(StepDown())
    assert [ledger.outcomes[each].unknown for each in (sent, kept)] == [True, False] and ledger.log.log.last == (1, 3)
    assert not ledger.log.is_pending("bmq://d/a")


def test_a_leader_that_cannot_write_steps_down_and_creates_a_new_file_later():
    ledger, disk = leader_of_three()
    disk.broken = True
    token = ledger.propose(AssignQueue("bmq://d/a", ["x"], 7))
    outputs = ledger.flush()
    assert ledger.outcomes[token].unknown and any(isinstance(each, LeadershipLost) for each in outputs)
    disk.broken = False
    disk.data += b"\x81garbage"
    ledger.step(Follow(2, 3))
    ledger.step(Entries(3, 2, (1, 2), (first_of(2),)))
    assert Send(3, Acknowledged(1, 2, (2, 1))) in ledger.flush() and disk.calls[-1] == "replace"
    assert not read_ledger(disk.safe).alarms and opened(Disk(disk.safe), members=(1, 2, 3))[0].log.lsn == (2, 1)


def test_a_commit_after_a_failed_write_does_not_commit_another_record_at_its_position():
    """Node 3 no longer leads, and sends records that no other node has."""
    leader, _ = leader_of_three()
    node, disk = opened(node_id=2, members=(1, 2, 3))
    node, _ = follower(leader, disk)
    commit = LeaderAdvisoryCommit(LeaderMessageSequence(3, 2), LeaderMessageSequence(3, 1))
    printed = ClusterStateRecord(LedgerRecordType.COMMIT, 3, 2, 1000, ClusterMessage("leaderAdvisoryCommit", commit))
    disk.broken = True
    node.step(Follow(3, 1))
    node.step(Entries(1, 3, (1, 2), (first_of(3), printed)))
    node.flush()
    assert node.log.log.last == (1, 2)
    disk.broken = False
    node.step(StepDown())
    node.step(Entries(3, 2, (1, 2), (update(1, 3, "bmq://d/a", 1),)))
    node.flush()
    assert node.log.lsn == (1, 3) and node.log.committed == (1, 2) and "bmq://d/a" not in node.log.state.queues


def test_uncommitted_records_are_copied_into_a_new_file():
    ledger, disk = leader_of_three(max_bytes=600)
    for n in range(4):
        ledger.propose(AssignQueue(f"bmq://d/{n}", ["__default"], n))
        ledger.flush()
    assert disk.calls.count("replace") > 1
    again, _ = opened(Disk(disk.safe), members=(1, 2, 3))
    assert is_same_state(again.log.state, ledger.log.state) and again.log.log.last == (1, 6) and not again.log.state.queues
    ledger.step(Acknowledged(2, 1, (1, 6)))
    assert set(ledger.log.state.queues) == {f"bmq://d/{n}" for n in range(4)}


def test_a_member_of_several_nodes_applies_only_committed_records_of_its_file():
    ledger, disk = leader_of_three()
    committed = ledger.propose(AssignQueue("bmq://d/a", ["x"], 7))
    ledger.flush()
    ledger.step(Acknowledged(2, 1, (1, 3)))
    ledger.flush()
    ledger.assign_queue("bmq://d/b", ["x"], 8, 1000)
    again, _ = opened(Disk(disk.safe), members=(1, 2, 3))
    assert ledger.outcomes[committed] and list(again.log.state.queues) == ["bmq://d/a"]
    assert again.log.lsn == ledger.log.lsn == (1, 5)
    again.step(Lead(50, 2, PrimaryRules(1)))
    assert list(again.log.head.queues) == ["bmq://d/a", "bmq://d/b"]


def leader_without_records(monkeypatch):
    """Return a leader that has dropped the records of three queues from memory."""
    monkeypatch.setattr(metadata_log, "RETAINED_BYTES", 0)
    leader, _ = leader_of_three()
    for name in "abc":
        leader.propose(AssignQueue(f"bmq://d/{name}", ["x"], 7))
        leader.flush()
        leader.step(Acknowledged(2, 1, leader.log.log.last))
        leader.flush()
    return leader


def test_a_follower_that_lacks_dropped_records_receives_a_snapshot(monkeypatch):
    leader = leader_without_records(monkeypatch)
    node, disk = opened(node_id=3, members=(1, 2, 3))
    node.step(Follow(1, 1))
    leader.step(CatchUp(3, 1, (0, 0)))
    snapshot, = (each.message for each in leader.flush() if isinstance(each, Send) and isinstance(each.message, Snapshot))
    node.step(snapshot)
    assert node.flush()[-1] == Send(1, Acknowledged(3, 1, leader.log.log.last))
    assert is_same_state(node.log.state, leader.log.state) and disk.calls == ["replace"]
    again, _ = opened(Disk(disk.safe), node_id=3, members=(1, 2, 3))
    assert is_same_state(again.log.state, leader.log.state) and again.log.committed == leader.log.log.last
    assert node.step(snapshot) == [] and disk.calls == ["replace"]  # a second one is not needed


def test_a_node_without_records_after_its_snapshot_sends_only_the_snapshot(monkeypatch):
    """A message without records would be reported as corrupted by its receiver."""
    leader = leader_without_records(monkeypatch)
    leader.step(StepDown())
    sent = [each.message for each in leader.step(CatchUp(3, 1, (0, 0))) if isinstance(each, Send)]
    assert [type(each) for each in sent] == [Snapshot]


def test_a_snapshot_older_than_the_log_of_a_follower_removes_no_record():
    leader, _ = leader_of_three()
    node, disk = opened(node_id=2, members=(1, 2, 3))
    node, _ = follower(leader, disk)
    node.step(Entries(1, 1, (1, 2), (update(1, 3, "bmq://d/a", 1), update(1, 4, "bmq://d/b", 2))))
    node.flush()
    state = ClusterState()
    state.apply(update(1, 3, "bmq://d/a", 1).message)
    node.step(Snapshot(1, 1, record_log.snapshot_record(state, (1, 3), 1000)))
    node.flush()
    assert node.log.lsn == (1, 4) and list(node.log.state.queues) == ["bmq://d/a"]


def test_a_follower_that_lost_its_file_is_not_counted_for_earlier_records():
    leader, _ = leader_of_three()
    leader.step(CatchUp(2, 1, (0, 0)))
    sent = [each.message for each in leader.flush() if isinstance(each, Send) and each.node_id == 2]
    assert sent and sent[0].previous == (0, 0) and leader.log.leader_term.followers[2].durable == (0, 0)


def test_records_after_a_gap_in_a_file_are_dropped_with_an_alarm():
    leader, disk = leader_of_three()
    leader.assign_queue("bmq://d/a", ["x"], 7, 1000)
    found = read_ledger(disk.data)
    whole = [each.record for each in found.entries]
    again, _ = opened(Disk(encode_ledger(found.log_id, [whole[0], *whole[2:]])), members=(1, 2, 3))
    assert again.log.lsn == (1, 1) and len(again.report.texts("ALARM")) == 1


@pytest.mark.parametrize("path", [path for path in FILES if case(path).startswith("three-nodes")], ids=case)
def test_a_recorded_file_of_one_of_three_nodes_gives_the_committed_state(path):
    report = ListReport()
    several, _ = opened(Disk(path.read_bytes()), members=(1, 2, 3), report=report)
    alone, _ = opened(Disk(path.read_bytes()))
    assert report.lines == [] and is_same_state(several.log.state, alone.log.state) and several.log.state.partitions


@given(st.lists(st.one_of(st.integers(1, 40), st.sampled_from(["cover", "drop", "truncate"])), max_size=60),
       st.integers(0, 100))
def test_the_newest_covered_records_up_to_a_number_of_bytes_stay_in_memory(steps: list[int | str], keep_bytes: int) -> None:
    """For every sequence of appends, commits, truncations and drops."""
    log, whole = record_log.RecordLog("n1", 1 << 20, False), list[LogRecord]()
    for step in steps:
        if isinstance(step, int):
            record = LogRecord((1, len(whole) + 1), None, bytes(step))  # type: ignore[arg-type]
            whole.append(record)
            log.records.append(record)
        elif step == "cover":
            log.covered = log.durable = log.written = (log.covered + len(log.records) + 1) // 2
        elif step == "truncate":
            gone = log.truncate(log.covered)
            del whole[len(whole) - len(gone):]
        else:
            log.drop_covered(keep_bytes)
            covered = whole[:len(whole) - (len(log.records) - log.covered)]
            kept = log.records[:log.covered]
            assert kept == covered[len(covered) - len(kept):] and sum(len(each.data) for each in kept) <= keep_bytes
            left_out = covered[:len(covered) - len(kept)]
            assert log.base == (left_out[-1].lsn if left_out else NO_LSN)
            assert not left_out or sum(len(each.data) for each in [left_out[-1], *kept]) > keep_bytes
            assert log.records[log.covered:] == whole[len(covered):]
