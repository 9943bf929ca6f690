"""Members of different releases in one cluster: refusals on both sides, activation of features, rollback."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bmqtwist.alarms import NODE_VERSION_DIFFERS
from bmqtwist.cluster.changes import ActivateFeatures
from bmqtwist.cluster.electorate import MemberState
from bmqtwist.daemon.assemble import StartFailure
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.slot_file import StorageVersionFile
from bmqtwist.testing.clock import WALL_S
from bmqtwist.testing.config import sample_domains
from bmqtwist.testing.simulated_node import SimulatedNode, SimulatedPerformer
from bmqtwist.versions import BASELINE, FEATURE_RECORDS, MEMBER_LIST, OWN, VersionRange, Versions
from bmqtwist.view import cluster_facts
from sim.introductions import links
from sim.replicated import STRONG, ReplicatingCluster

ROLLBACK_S = 600
BEFORE = replace(OWN, release="0.0.9", features=BASELINE)  # understands this release's versions, without its features
LEGACY = replace(BEFORE, release="0.0.1", protocol=VersionRange(0, 0), storage=VersionRange(0, 0))
NEXT = Versions("9.0.0", VersionRange(OWN.protocol.newest, OWN.protocol.newest + 1), OWN.storage, (*OWN.features, "NEXT"))
AFTER_NEXT = replace(NEXT, protocol=VersionRange(OWN.protocol.newest + 1, OWN.protocol.newest + 2))


class Releases(ReplicatingCluster):
    """A cluster whose members run the releases in `versions`, by name."""

    def __init__(self, seed: int, versions: dict[str, Versions], count: int = 3) -> None:
        self.versions = versions
        texts = {name: re.sub(r'"messageTtl": [0-9]+', '"messageTtl": 100000', text) for name, text in sample_domains()}
        super().__init__(seed, count, texts=texts, app={"bmqtwist": {"rollbackSeconds": ROLLBACK_S}})

    def on_node_created(self, node: SimulatedNode) -> None:
        """Set the release of a node."""
        super().on_node_created(node)
        node.versions = self.versions.get(node.name, OWN)

    def install(self, name: str, versions: Versions) -> None:
        """Stop a node gracefully, and start it with another release."""
        node = self.node(name)
        node.versions = versions
        node.stop(down=None)
        self.until(lambda: not node.up)
        node.boot()

    def active(self) -> set[tuple[str, ...]]:
        """Return the active features, as each running node knows them."""
        return {tuple(self.cluster(node.name).metadata.features) for node in self.machines if node.up}

    def alarms(self, name: str) -> list[str]:
        """Return the texts of the active alarms about versions at a node."""
        return [each.text for each in self.node(name).assembled.alarms.active if each.kind == NODE_VERSION_DIFFERS.id]

    def storage_versions(self) -> set[int]:
        """Return the storage versions of all nodes."""
        found = set()
        for node in self.machines:
            location = self.cluster(node.name).definition.partition_config.location
            found.add(StorageVersionFile(node.disk, location).read()[0])
        return found

    def post_and_wait(self) -> None:
        """Wait until all members serve, and post messages."""
        self.until(lambda: all(links(node).announced_features() is not None for node in self.machines))
        self.wait_until_available()
        self.post(5)

    def check_all(self) -> None:
        """Check that all members store each acknowledged message once."""
        self.run_until_stable()
        self.judge_partitions()


REFUSED = [
    (AFTER_NEXT, "no common protocol version", "9.0.0 with protocol version"),
    (replace(NEXT, storage=VersionRange(5, 6)), "no common storage version", "storage version 5 to 6"),
    (BEFORE, "it does not support FEATURE_RECORDS, MEMBER_LIST, which this cluster uses", "0.0.9 with protocol version"),
    (LEGACY, "it does not support FEATURE_RECORDS, MEMBER_LIST, which this cluster uses", "0.0.1 with protocol version 0"),
]


@pytest.mark.parametrize("name", ["n1", "n3"])
@pytest.mark.parametrize("versions, reason, text", REFUSED, ids=lambda each: str(each)[:30])
def test_an_incompatible_member_is_refused_and_both_sides_name_both_releases(
        name: str, versions: Versions, reason: str, text: str) -> None:
    """n1 dials the other members, n3 is dialled by them."""
    nodes = Releases(3, {})
    nodes.post_and_wait()
    nodes.node(name).disk = MemoryDisk()  # as a new node of that release
    nodes.install(name, versions)
    nodes.run(30.0)
    others = [node.name for node in nodes.machines if node.name != name]
    own = f"{OWN.release} with protocol version {OWN.protocol} and storage version {OWN.storage}"
    for other in others:
        found, = nodes.alarms(other)
        assert f"node [{name}, {name[1]}]" in found and text in found and own in found and "It is refused" in found
        assert reason in found
        status = nodes.admin(nodes.node(other), "CLUSTERS CLUSTER c3 STATUS")
        assert status.count("    Refused: ") == 1 and reason in status
        member, = (each for each in cluster_facts.members(nodes.cluster(other), {}) if each.name == name)
        assert not member.connected and reason in member.refused
        assert not nodes.cluster(other).unready
    assert nodes.alarms(name) and all(own in each and text in each for each in nodes.alarms(name))
    assert all(other in nodes.cluster(name).unready for other in others)
    queue = nodes.client(others[0]).open(STRONG, write=1)
    queue.put(b"posted without the member")
    assert queue.next_ack().status == 0
    refused = nodes.node(name)
    refused.stop(down=None)
    nodes.until(lambda: not refused.up)
    refused.versions = OWN
    if versions.storage.oldest > OWN.storage.newest:
        with pytest.raises(StartFailure, match=f"has version {versions.storage.oldest}; this release, .*, understands "):
            refused.open_node(SimulatedPerformer(refused))
        refused.disk = MemoryDisk()
    refused.boot()
    nodes.post_and_wait()
    nodes.run(2.0)
    assert not any(nodes.alarms(node.name) for node in nodes.machines)
    assert "Refused" not in nodes.admin(nodes.node(others[0]), "CLUSTERS CLUSTER c3 STATUS")
    nodes.check_all()


def test_a_new_cluster_uses_all_features_of_its_members_from_its_first_record() -> None:
    for count in (1, 2, 3):
        nodes = Releases(5, {}, count)
        nodes.run(20.0)
        assert nodes.active() == {(FEATURE_RECORDS, MEMBER_LIST)}
        assert nodes.storage_versions() == {1}


@pytest.mark.parametrize("old", [BEFORE, LEGACY], ids=["before", "legacy"])
def test_a_rolling_upgrade_can_be_rolled_back_until_the_features_are_active(old: Versions) -> None:
    nodes = Releases(7, dict.fromkeys(("n1", "n2", "n3"), old))
    nodes.post_and_wait()
    for name in ("n1", "n2", "n3"):
        assert nodes.active() == {()}
        nodes.install(name, OWN)
        nodes.post_and_wait()
    nodes.run(ROLLBACK_S / 2)
    status = nodes.admin(nodes.leader, "CLUSTERS CLUSTER c3 STATUS")
    assert "Features      : none, FEATURE_RECORDS in " in status and "Storage       : version 0" in status
    for name in ("n3", "n1", "n2"):
        nodes.install(name, old)
        nodes.post_and_wait()
    nodes.run(ROLLBACK_S)
    assert nodes.active() == {()} and nodes.storage_versions() == {0}
    nodes.check_all()


def test_features_become_active_after_the_time_for_a_rollback() -> None:
    nodes = Releases(9, dict.fromkeys(("n1", "n2", "n3"), BEFORE))
    nodes.post_and_wait()
    for name in ("n1", "n2", "n3"):
        nodes.install(name, OWN)
    nodes.post_and_wait()
    nodes.node("n2").crash(power=True, down=5.0)  # a restart of the same release does not begin the time anew
    nodes.run(ROLLBACK_S - 60.0)
    assert nodes.active() == {()}
    nodes.leader.stop(down=5.0)  # nor does another leader
    nodes.run(120.0)
    assert nodes.active() == {(FEATURE_RECORDS, MEMBER_LIST)}
    assert "Features" not in nodes.admin(nodes.leader, "CLUSTERS CLUSTER c3 STATUS"), "the text is the original's again"
    node = nodes.node("n3")
    node.versions = replace(BEFORE, storage=VersionRange(0, 0))
    node.stop(down=None)
    nodes.until(lambda: not node.up)
    with pytest.raises(StartFailure, match=r"storage in '.*' has version 1; this release, 0\.0\.9, understands 0"):
        node.open_node(SimulatedPerformer(node))
    node.versions = BEFORE
    with pytest.raises(StartFailure, match=r"use FEATURE_RECORDS, MEMBER_LIST, which this release, 0\.0\.9, does"):
        node.open_node(SimulatedPerformer(node))
    node.versions = replace(OWN, storage=VersionRange(2, 3))
    with pytest.raises(StartFailure, match=r"has version 1; this release, .*, understands 2 to 3: first run the"):
        node.open_node(SimulatedPerformer(node))
    node.versions = OWN
    node.boot()
    nodes.post_and_wait()
    nodes.check_all()


@pytest.mark.parametrize("old", [1, 2])
def test_a_cluster_with_a_member_of_the_last_release_has_no_member_list_and_works_as_before(old: int) -> None:
    names = [f"n{number}" for number in range(1, old + 1)]
    nodes = Releases(17, dict.fromkeys(names, LEGACY))
    nodes.run(20.0)  # nodes connect again after they have acknowledged the first record
    nodes.post_and_wait()
    for node in nodes.machines:
        node.crash(power=False, down=None)
        nodes.run(8.0)
        nodes.post(3)
        node.disk = MemoryDisk()
        node.boot()
        nodes.run(20.0)
        nodes.post_and_wait()
    assert all(nodes.cluster(node.name).metadata.state.members is None for node in nodes.machines)
    nodes.check_all()
    for name in names:
        nodes.install(name, OWN)
    nodes.post_and_wait()
    assert nodes.cluster("n3").metadata.state.members is None, "a rollback is possible"
    nodes.run(ROLLBACK_S + 10.0)
    for node in nodes.machines:
        members = nodes.cluster(node.name).metadata.state.members
        assert members is not None and all(each.voting and each.incarnation for each in members.nodes)
        assert nodes.cluster(node.name).leadership.member_state == (MemberState.MEMBER, "")
    nodes.check_all()


def test_a_member_that_was_rolled_back_in_the_moment_of_activation_is_disconnected() -> None:
    """Its negotiation was before the activation; records of the feature must not reach it."""
    nodes = Releases(11, {"n3": BEFORE})
    nodes.post_and_wait()
    if nodes.leader.name == "n3":
        nodes.admin(nodes.leader, "CLUSTERS CLUSTER c3 STATE ELECTOR TRANSFER n1")
        nodes.run(10.0)
    leader, metadata = nodes.leader, nodes.cluster(nodes.leader.name).metadata
    leader.act(lambda: metadata.propose(ActivateFeatures([FEATURE_RECORDS]), lambda outcome, wall: None, int(WALL_S)))
    nodes.run(5.0)
    assert not any(links(leader).is_up(number) for number in (3,)) and nodes.alarms(leader.name)
    assert nodes.cluster("n3").metadata.features == ()
    assert not nodes.cluster(leader.name).unready


def test_a_storage_version_that_cannot_be_written_delays_the_use_of_features() -> None:
    nodes = Releases(13, dict.fromkeys(("n1", "n2", "n3"), BEFORE))
    nodes.post_and_wait()
    for name in ("n1", "n2", "n3"):
        nodes.install(name, OWN)
    nodes.post_and_wait()

    def fail(operation: str, path: str) -> None:
        if path.endswith(StorageVersionFile.name):
            raise OSError(5, "Input/output error")
    failing = nodes.node("n2")
    failing.disk.fail = fail
    nodes.run(ROLLBACK_S + 10.0)
    assert nodes.cluster("n2").metadata.state.features == (FEATURE_RECORDS, MEMBER_LIST)
    assert nodes.cluster("n2").metadata.features == ()
    assert len([line for line in failing.log() if "FEATURE_RECORDS, MEMBER_LIST cannot be used" in line]) == 1
    failing.disk.fail = lambda operation, path: None
    nodes.run(2.0)
    assert nodes.active() == {(FEATURE_RECORDS, MEMBER_LIST)}
    nodes.post_and_wait()
