"""The metadata ledger: the original's records for the same operations, and nothing decided before it is written."""

from base64 import b64decode

import pytest
from test_ledgerfile import FILES, case, told_by_tool

from bmqtwist.cluster import ledger as module
from bmqtwist.cluster.ledger import LEAST_ASSIGNED, LedgerRefused, LedgerUnavailable, MetadataLedger
from bmqtwist.cluster.state import Primary, QueueRecord
from bmqtwist.ids import DEFAULT_APP_KEY
from bmqtwist.report import ListReport
from bmqtwist.storage.ledger_format import parse_ledger_file_name, read_ledger
from bmqtwist.wire.cluster_events import LedgerRecordType

SINGLE = [path for path in FILES if path.parent.name.endswith((".n1", ".n1-after-restart"))
          and not path.parent.name.startswith("three-nodes") and path.parent.name != "no-quorum-deletion.n1"]
TOLD = [path for path in FILES if (path.parent / "csl.summary.json").exists()]
MIB = 1 << 20


class Disk:
    """A LedgerFile in memory: `data` is what a reader sees, `safe` what a loss of power leaves."""

    def __init__(self, data=b""):
        self.data = self.safe = data
        self.previous = None
        self.calls = []
        self.broken = False

    def read_all(self):
        return self.data

    def append(self, data):
        self._use("append")
        self.data += data

    def sync(self):
        self._use("sync")
        self.safe = self.data

    def truncate(self, size):
        self.calls.append("truncate")
        self.data = self.safe = self.data[:size]

    def replace(self, log_id, data, wall):
        self._use("replace")
        self.previous, self.data, self.safe = self.data, data, data

    def close(self):
        self.calls.append("close")

    def _use(self, name):
        self.calls.append(name)
        if self.broken:
            raise OSError(28, "No space left on device")


def opened(disk=None, **options):
    disk = Disk() if disk is None else disk
    ledger = MetadataLedger(disk, options.pop("node_id", 1), "n1", options.pop("max_bytes", MIB), **options)
    ledger.open()
    return ledger, disk


def leading(partitions=1, **options):
    ledger, disk = opened(**options)
    ledger.become_leader(partitions, 1000)
    return ledger, disk


def kinds(disk):
    return [(each.type.name, each.term, each.sequence_number, each.message.choice)
            for _, each in read_ledger(disk.data).records]


def same(state, other):
    return (state.partitions, state.queues, state.keys) == (other.partitions, other.queues, other.keys)


def key_of(text):
    """The tool prints keys in hexadecimal, some in base64."""
    return bytes.fromhex(text) if len(text) == 10 else b64decode(text)


# -- what real brokers wrote --------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", TOLD, ids=case)
def test_real_files_give_the_queues_that_the_original_tool_prints(path):
    report = ListReport()
    ledger, _ = opened(Disk(path.read_bytes()), report=report)
    told = told_by_tool(path, "csl.summary.json")["Queues"]
    gone = {info.key for _, each in read_ledger(path.read_bytes()).records
            if each.message.choice == "queueUnAssignmentAdvisory" for info in each.message.value.queues}
    found = {(queue.uri, queue.key, queue.partition_id, tuple(queue.apps.items()))
             for queue in ledger.state.queues.values()}
    assert found == {(entry["uri"], key_of(entry["key"]), entry["partitionId"],
                      tuple((app["appId"], key_of(app["appKey"])) for app in entry["appIds"]))
                     for entry in told if key_of(entry["key"]) not in gone}
    assert report.lines == []


@pytest.mark.parametrize("name", ["three-nodes-live", "three-nodes-rollover-drop"])
def test_the_files_of_all_nodes_of_a_cluster_give_the_same_state(name):
    states = [opened(Disk(path.read_bytes()))[0].state for path in FILES if case(path).rpartition(".")[0] == name]
    assert len(states) == 3 and states[0].queues and states[0].partitions
    assert all(same(state, states[0]) for state in states)


@pytest.mark.parametrize("path", SINGLE, ids=case)
def test_the_same_operations_write_the_same_bytes_as_the_original(path, monkeypatch):
    data = path.read_bytes()
    recorded = read_ledger(data)
    keys = [parse_ledger_file_name(path.name)]
    monkeypatch.setattr(module, "make_storage_key", lambda *_: keys.pop(0))
    disk = Disk()
    for _, each in recorded.records:
        advisory, wall = each.message.value, each.timestamp
        if each.type is LedgerRecordType.SNAPSHOT:  # the broker was started
            ledger, _ = opened(disk)
            ledger.become_leader(len(advisory.partitions), wall)
        elif each.message.choice == "queueAssignmentAdvisory":
            queue, = advisory.queues
            apps = [app for app in queue.app_ids if app.app_key != DEFAULT_APP_KEY]
            keys += [queue.key, *(app.app_key for app in apps)]
            ledger.assign_queue(queue.uri, [app.app_id for app in queue.app_ids], 0, wall)
        elif each.message.choice == "queueUnAssignmentAdvisory":
            ledger.unassign_queue(advisory.queues[0].uri, wall)
        elif each.message.choice == "queueUpdateAdvisory":
            update, = advisory.queue_updates
            keys += [app.app_key for app in update.added_app_ids]
            ledger.update_apps(update.uri, [app.app_id for app in update.added_app_ids],
                               [app.app_id for app in update.removed_app_ids], 0, wall)
        else:
            assert each.message.choice == "leaderAdvisoryCommit"
    assert disk.safe == data[:recorded.end]


# -- starting -----------------------------------------------------------------------------------------------------

def test_a_first_start_writes_a_snapshot_with_the_leases_and_its_commit():
    ledger, disk = leading(2)
    assert kinds(disk) == [("SNAPSHOT", 1, 1, "leaderAdvisory"), ("COMMIT", 1, 2, "leaderAdvisoryCommit")]
    assert ledger.state.partitions == {0: Primary(1, 1), 1: Primary(1, 1)} and disk.safe == disk.data


def test_every_start_begins_a_term_and_raises_the_leases():
    _, disk = leading(2)
    for start in (2, 3):
        ledger, _ = opened(disk)
        ledger.become_leader(2, 2000)
        assert (ledger.term, ledger.sequence) == (start, 2)
        assert ledger.state.partitions == {0: Primary(1, start), 1: Primary(1, start)}
    assert disk.calls.count("replace") == 1


def test_queues_survive_a_restart():
    ledger, disk = leading(2)
    for name in "abc":
        ledger.assign_queue(f"bmq://d/{name}", ["foo", "bar"], 7, 1000)
    ledger.update_apps("bmq://d/a", ["baz"], ["foo"], 8, 1000)
    ledger.unassign_queue("bmq://d/b", 1000)
    again, _ = opened(Disk(disk.safe))
    assert same(again.state, ledger.state) and again.lsn == ledger.lsn
    assert list(again.state.queues["bmq://d/a"].apps) == ["bar", "baz"] and list(again.state.queues) == [
        "bmq://d/a", "bmq://d/c"]


def test_an_update_without_its_commit_counts_after_a_restart():
    ledger, disk = leading()
    before = len(disk.data)
    ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    offset = [offset for offset, _ in read_ledger(disk.data).records][-1]
    again, _ = opened(Disk(disk.data[:offset]))
    assert offset > before and "bmq://d/a" in again.state.queues


def test_a_torn_last_record_is_cut_off_and_the_next_goes_in_its_place():
    ledger, disk = leading()
    good = disk.data
    ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    report = ListReport()
    again, torn = opened(Disk(disk.data[:len(good) + 50]), report=report)
    assert len(report.texts("ALARM")) == 1 and report.texts("ALARM")[0].startswith("[CLUSTER] ")
    assert torn.data == good and again.state.queues == {}
    again.become_leader(1, 2000)
    assert torn.data.startswith(good) and not read_ledger(torn.data).alarms


def test_zeros_of_a_crashed_original_are_cut_off_silently():
    _, disk = leading()
    report = ListReport()
    _, crashed = opened(Disk(disk.data + bytes(4096)), report=report)
    assert crashed.data == disk.data and report.lines == []


def test_a_damaged_file_is_survived_and_replaced_by_a_whole_one():
    ledger, disk = leading()
    for name in "ab":
        ledger.assign_queue(f"bmq://d/{name}", ["__default"], ord(name), 1000)
    offset = next(offset for offset, each in read_ledger(disk.data).records if each.sequence_number == 3)
    data = bytearray(disk.data)
    data[offset + 60] ^= 1
    report = ListReport()
    again, damaged = opened(Disk(bytes(data)), report=report)
    assert list(again.state.queues) == ["bmq://d/b"] and len(report.texts("ALARM")) == 1
    assert damaged.data == bytes(data)
    again.become_leader(1, 2000)
    assert damaged.previous == bytes(data) and not read_ledger(damaged.data).alarms
    assert list(opened(damaged)[0].state.queues) == ["bmq://d/b"]


def test_a_record_that_does_not_fit_is_left_out_with_an_alarm():
    ledger, disk = leading()
    ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    ledger.unassign_queue("bmq://d/a", 1000)
    records = read_ledger(disk.data).records
    start = records[2][0]
    without = disk.data[:start] + disk.data[records[4][0]:]  # the assignment and its COMMIT are missing
    report = ListReport()
    assert opened(Disk(without), report=report)[0].state.queues == {}
    assert len(report.texts("ALARM")) == 1 and "is left out" in report.texts("ALARM")[0]


def test_queues_mapped_to_partitions_that_are_no_longer_configured_are_told():
    ledger, disk = leading(2)
    for name in "ab":
        ledger.assign_queue(f"bmq://d/{name}", ["__default"], ord(name), 1000)
    report = ListReport()
    again, _ = opened(disk, report=report)
    again.become_leader(1, 2000)
    assert again.state.partitions == {0: Primary(1, 2)} and "[1]" in report.texts("ALARM")[0]


# -- partitions ---------------------------------------------------------------------------------------------------

def test_primaries_of_living_nodes_stay_and_the_others_move_to_the_least_loaded():
    ledger, _ = opened(algorithm=LEAST_ASSIGNED)
    ledger.become_leader(5, 1000, candidates=[3, 1, 2])
    assert [ledger.state.partitions[n].node_id for n in range(5)] == [1, 2, 3, 1, 2]
    assert ledger.assign_partitions(1001, candidates=[1, 3], keep=[1, 3]) == [1, 4]
    assert ledger.state.partitions == {0: Primary(1, 1), 1: Primary(3, 2), 2: Primary(3, 1), 3: Primary(1, 1),
                                       4: Primary(1, 2)}
    assert ledger.assign_partitions(1002, candidates=[1, 3], keep=[1, 3]) == []


def test_the_usual_policy_makes_the_leader_primary_of_everything():
    ledger, _ = opened(node_id=2)
    ledger.become_leader(2, 1000, candidates=[1, 2, 3])
    assert set(ledger.state.partitions.values()) == {Primary(2, 1)}


# -- queues -------------------------------------------------------------------------------------------------------

def test_a_queue_goes_to_the_partition_with_the_fewest_queues_and_then_the_lowest_id():
    ledger, _ = leading(2)
    placed = [ledger.assign_queue(f"bmq://d/{n}", ["__default"], n, 1000).partition_id for n in range(5)]
    assert placed == [0, 1, 0, 1, 0]
    ledger.unassign_queue("bmq://d/0", 1000)
    ledger.unassign_queue("bmq://d/2", 1000)
    assert [ledger.assign_queue(f"bmq://d/{n}", ["__default"], n, 1000).partition_id for n in (6, 7)] == [0, 0]


def test_keys_differ_and_a_recreated_queue_gets_another_one():
    ledger, _ = leading()
    first = ledger.assign_queue("bmq://d/a", ["x", "y", "__default"], 7, 1000)
    assert len({first.key, *first.apps.values()}) == 4 and first.apps["__default"] == DEFAULT_APP_KEY
    assert ledger.assign_queue("bmq://d/a", ["x"], 8, 1000) == first
    assert ledger.unassign_queue("bmq://d/a", 1000) == first
    assert ledger.unassign_queue("bmq://d/a", 1000) is None
    assert ledger.assign_queue("bmq://d/a", ["x"], 9, 1000).key != first.key


def test_a_queue_found_in_a_partition_is_registered_with_its_own_keys():
    ledger, disk = leading(2)
    ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    found = QueueRecord("bmq://d/b", b"FOUND", 0, {"x": b"xxxxx", "y": b"yyyyy"})
    ledger.adopt_queue(found, 1000)
    assert opened(Disk(disk.safe))[0].state.queues["bmq://d/b"] == found
    before = disk.data
    for bad in (found, QueueRecord("bmq://d/c", b"FOUND", 0, {}), QueueRecord("bmq://d/c", b"OTHER", 2, {})):
        with pytest.raises(LedgerRefused):
            ledger.adopt_queue(bad, 1000)
    assert disk.data == before


def test_a_queue_before_any_partition_has_a_primary_is_refused():
    ledger, disk = opened()
    with pytest.raises(LedgerRefused):
        ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    assert disk.calls == []


@pytest.mark.parametrize("added, removed", [(["a"], []), ([], ["c"]), (["c", "c"], []), (["c"], ["a", "a"]),
                                            (["c"], ["d"])])
def test_changes_of_apps_that_do_not_fit_are_refused_whole(added, removed):
    ledger, disk = leading()
    ledger.assign_queue("bmq://d/q", ["a", "b"], 7, 1000)
    before = disk.data
    with pytest.raises(LedgerRefused):
        ledger.update_apps("bmq://d/q", added, removed, 8, 1000)
    assert disk.data == before and list(ledger.state.queues["bmq://d/q"].apps) == ["a", "b"]


def test_the_domain_of_an_update_has_its_tier_and_no_change_writes_nothing():
    ledger, disk = leading()
    ledger.assign_queue("bmq://d.~lcl/q", ["a"], 7, 1000)
    before = disk.data
    ledger.update_apps("bmq://d.~lcl/q", [], [], 8, 1000)
    assert disk.data == before
    changed = ledger.update_apps("bmq://d.~lcl/q", ["b"], ["a"], 8, 1000)
    assert ledger.state.queues["bmq://d.~lcl/q"] == changed and list(changed.apps) == ["b"]
    update = read_ledger(disk.data).records[-2][1].message.value.queue_updates[0]
    assert update.domain == "d.~lcl"
    with pytest.raises(LedgerRefused):
        ledger.update_apps("bmq://d/unknown", ["b"], [], 8, 1000)


# -- durability ---------------------------------------------------------------------------------------------------

def test_nothing_is_applied_before_it_is_synced():
    ledger, disk = leading()
    seen = []
    apply = ledger.state.apply
    ledger.state = type("Watched", (type(ledger.state),), {
        "apply": lambda self, message: (seen.append(disk.safe == disk.data and disk.calls[-1] == "sync"),
                                        apply(message))[1]})()
    ledger.state.partitions = {0: Primary(1, 1)}
    ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    assert seen == [True]


def test_a_failed_write_changes_nothing_and_the_next_change_begins_a_new_file():
    report = ListReport()
    ledger, disk = leading(report=report)
    ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    disk.broken = True
    with pytest.raises(LedgerUnavailable):
        ledger.assign_queue("bmq://d/b", ["__default"], 8, 1000)
    with pytest.raises(LedgerUnavailable):
        ledger.unassign_queue("bmq://d/a", 1000)
    assert list(ledger.state.queues) == ["bmq://d/a"] and len(report.texts("ALARM")) == 2
    disk.broken = False
    disk.data += b"\x81garbage"
    ledger.assign_queue("bmq://d/c", ["__default"], 9, 1000)
    again, _ = opened(Disk(disk.safe))
    assert same(again.state, ledger.state) and list(again.state.queues) == ["bmq://d/a", "bmq://d/c"]
    assert not read_ledger(disk.safe).alarms


def test_a_full_file_is_followed_by_a_new_one_that_begins_with_the_whole_state():
    ledger, disk = leading(max_bytes=1500)
    first = ledger.log_id
    for n in range(30):
        ledger.assign_queue("bmq://d/a", ["__default"], n, 1000 + n)
        ledger.unassign_queue("bmq://d/a", 1000 + n)
        assert len(disk.data) == ledger.size <= 1500
        assert same(opened(Disk(disk.safe))[0].state, ledger.state)
    assert disk.calls.count("replace") > 3 and ledger.log_id != first
    assert read_ledger(disk.data).log_id == ledger.log_id
    assert kinds(disk)[0][0] == "SNAPSHOT" and kinds(disk)[0][2] == kinds(disk)[1][2]
    assert ledger.sequence == 2 + 30 * 4


def test_a_state_larger_than_the_file_does_not_begin_a_file_with_every_change():
    ledger, disk = leading(max_bytes=500)
    for n in range(100):
        ledger.assign_queue(f"bmq://d/{n}", ["__default"], n, 1000)
    assert disk.calls.count("replace") < 20
    assert same(opened(Disk(disk.safe))[0].state, ledger.state)


def test_a_file_cut_anywhere_gives_a_state_that_once_existed():
    ledger, disk = opened()
    existed = [{}]
    for step in (lambda: ledger.become_leader(2, 1000),
                 lambda: ledger.assign_queue("bmq://d/a", ["x", "y"], 1, 1000),
                 lambda: ledger.assign_queue("bmq://d/b", ["__default"], 2, 1000),
                 lambda: ledger.update_apps("bmq://d/a", ["z"], ["x"], 3, 1000),
                 lambda: ledger.unassign_queue("bmq://d/b", 1000),
                 lambda: ledger.assign_queue("bmq://d/b", ["__default"], 4, 1000)):
        step()
        existed.append(dict(ledger.state.queues))
    seen = [opened(Disk(disk.data[:size]))[0].state.queues for size in range(len(disk.data) + 1)]
    assert all(state in existed for state in seen)
    assert [state for at, state in enumerate(seen) if not at or state != seen[at - 1]] == existed[1:]


# -- more nodes than one ------------------------------------------------------------------------------------------

def test_with_a_quorum_of_two_a_change_waits_for_the_second_node():
    ledger, disk = opened(quorum=2)
    ledger.become_leader(1, 1000, candidates=[1, 2, 3])
    assert ledger.state.partitions == {} and list(ledger.pending) == [(1, 1)]
    assert not ledger.acknowledge(1, (1, 1), 1000)
    assert ledger.acknowledge(2, (1, 1), 1000)
    assert not ledger.acknowledge(3, (1, 1), 1000) and ledger.pending == {}
    first = ledger.assign_queue("bmq://d/a", ["__default"], 7, 1000)
    second = ledger.assign_queue("bmq://d/b", ["__default"], 7, 1000)
    assert ledger.state.queues == {} and first.key != second.key
    with pytest.raises(LedgerRefused):
        ledger.assign_queue("bmq://d/a", ["__default"], 8, 1000)
    assert ledger.acknowledge(3, (1, 4), 1000) and list(ledger.state.queues) == ["bmq://d/b"]
    assert ledger.acknowledge(3, (1, 3), 1000)
    assert [entry[:3] for entry in kinds(disk)] == [
        ("SNAPSHOT", 1, 1), ("COMMIT", 1, 2), ("UPDATE", 1, 3), ("UPDATE", 1, 4), ("COMMIT", 1, 5), ("COMMIT", 1, 6)]
    assert same(opened(Disk(disk.safe))[0].state, ledger.state)


def test_what_waits_for_its_quorum_is_carried_into_a_new_file():
    ledger, disk = opened(quorum=2, max_bytes=600)
    ledger.become_leader(1, 1000)
    ledger.acknowledge(2, (1, 1), 1000)
    waiting = []
    for n in range(4):
        ledger.assign_queue(f"bmq://d/{n}", ["__default"], n, 1000)
        waiting.append(ledger.lsn)
    assert disk.calls.count("replace") > 1
    assert set(opened(Disk(disk.safe))[0].state.queues) == {f"bmq://d/{n}" for n in range(4)}
    assert [ledger.acknowledge(2, lsn, 1000) for lsn in waiting] == [True] * 4
    assert set(ledger.state.queues) == {f"bmq://d/{n}" for n in range(4)}
