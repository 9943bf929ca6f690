"""Versions and features of brokers: announcement, comparison, and the choice of the features to activate."""

from __future__ import annotations

import pytest

from bmqtwist.cluster.changes import ActivateFeatures, ChangePlanner
from bmqtwist.cluster.feature_activation import FeatureActivation
from bmqtwist.cluster.state import ClusterState
from bmqtwist.link.session import Remote
from bmqtwist.versions import (
    ACTIVE_EXTENSION,
    BASELINE,
    FEATURE_RECORDS,
    OWN,
    REGISTRY,
    VERSIONS_EXTENSION,
    ActiveFeatures,
    VersionRange,
    Versions,
    active_announcement,
    announced_versions,
    member_conflict,
)
from bmqtwist.wire.cluster_schema import ClusterMessage
from bmqtwist.wire.schema import ClientIdentity

THIS = Versions("1.4", VersionRange(3, 4), VersionRange(2, 3), (*BASELINE, "A", "B"))


def groups(text: str) -> dict[str, list[str]]:
    """Return the feature groups of a text as a connection has them."""
    return Remote(ClientIdentity(features=text)).features


def announced(versions: Versions, active: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the feature groups of a member."""
    return groups(versions.announcement() + active_announcement(active))


def release(protocol: tuple[int, int] = (3, 4), storage: tuple[int, int] = (2, 3), *features: str) -> Versions:
    return Versions("1.5", VersionRange(*protocol), VersionRange(*storage), (*BASELINE, *features))


@pytest.mark.parametrize("versions", [THIS, OWN, release((0, 0), (0, 0))])
def test_announced_versions_are_those_of_the_sender(versions: Versions) -> None:
    assert announced_versions(groups(f"X:Y;{versions.announcement()};Z:W")) == versions


@pytest.mark.parametrize("names", ["", "PROTOCOL", "PROTOCOL_1", "PROTOCOL_-1_2,STORAGE_a_b", "PROTOCOL_1_9999999999",
                                   "RELEASE_" + "x" * 33, "RELEASE_\x1b[0m", "STORAGE_\u0663_\u0664"])
def test_malformed_versions_are_those_of_a_broker_without_the_announcement(names: str) -> None:
    none = Versions("", VersionRange(0, 0), VersionRange(0, 0), ())
    assert announced_versions(groups(f"{VERSIONS_EXTENSION}:{names}")) == none
    assert announced_versions(groups("")) == announced_versions(groups(f"{ACTIVE_EXTENSION}:")) == none


REFUSALS = [
    (release((5, 6)), (), (), "no common protocol version"),
    (release((1, 2)), (), (), "no common protocol version"),
    (release((2, 3), (4, 4)), (), (), "no common storage version"),
    (release((5, 6), (4, 4)), (), (), "no common protocol version"),
    (release(), ("A",), (), "it does not support A, which this cluster uses"),
    (release((3, 4), (2, 3), "A", "C"), ("A",), ("A", "C"), "it uses C, which this node does not support"),
    (release((4, 5), (3, 4), "A"), ("A",), ("A",), ""),
    (release((2, 3), (1, 2)), (), (), ""),
    (release(), (), (), ""),
]


@pytest.mark.parametrize("theirs, ours_active, theirs_active, reason", REFUSALS)
def test_table_of_refusals(theirs: Versions, ours_active: tuple[str, ...], theirs_active: tuple[str, ...],
                           reason: str) -> None:
    text = f"{reason}: its release is {theirs}, that of this node is {THIS}" if reason else ""
    assert member_conflict(THIS, ours_active, announced(theirs, theirs_active)) == text


def test_versions_are_named_in_full() -> None:
    assert str(release((5, 6), (4, 4))) == "1.5 with protocol version 5 to 6 and storage version 4"
    assert str(THIS) == "1.4 with protocol version 3 to 4 and storage version 2 to 3"


def test_both_sides_refuse_the_same_pairs() -> None:
    for theirs, ours_active, theirs_active, reason in REFUSALS:
        reverse = member_conflict(theirs, theirs_active, announced(THIS, ours_active))
        assert bool(reverse) == bool(reason), (theirs, reverse)


def test_a_broker_without_the_announcement_has_version_0() -> None:
    assert not member_conflict(OWN, (), groups("BMQTWIST:DURABLE_VOTE,METADATA_LOG"))
    assert "it does not support DURABLE_VOTE, METADATA_LOG" in member_conflict(OWN, (), groups("BMQTWIST:"))
    assert "its release is unknown with protocol version 0" in member_conflict(THIS, (), groups(""))


def test_the_registry_fits_the_ranges_of_this_release() -> None:
    assert OWN.protocol.newest - OWN.protocol.oldest <= 1 and OWN.storage.newest - OWN.storage.oldest <= 1
    for feature in REGISTRY.values():
        assert feature.protocol <= OWN.protocol.newest and feature.storage <= OWN.storage.newest and feature.meaning
    assert set(OWN.features) == set(REGISTRY) and ActiveFeatures().active(BASELINE[0])
    assert not ActiveFeatures().active(FEATURE_RECORDS) and ActiveFeatures([FEATURE_RECORDS]).active(FEATURE_RECORDS)


# -- activation -----------------------------------------------------------------------------------------------------

NONE = ActiveFeatures()


def test_a_feature_is_due_after_the_delay() -> None:
    activation = FeatureActivation((*BASELINE, "A", "B"), 60.0)
    everywhere = [("A", "B"), ("B", "A", "C")]
    assert activation.due(100.0, everywhere, NONE) == [] and activation.seconds_left(130.0) == {"A": 30.0, "B": 30.0}
    assert activation.due(159.9, everywhere, NONE) == []
    assert activation.due(160.0, everywhere, NONE) == ["A", "B"]
    assert activation.due(161.0, everywhere, ActiveFeatures(["A"])) == ["B"] and list(activation.common_since) == ["B"]


def test_a_member_without_the_feature_begins_the_delay_anew() -> None:
    activation = FeatureActivation(("A",), 60.0)
    activation.due(0.0, [("A",)], NONE)
    assert activation.due(50.0, [()], NONE) == [] and activation.seconds_left(50.0) == {}
    assert activation.due(61.0, [("A",)], NONE) == [] and activation.due(121.0, [("A",)], NONE) == ["A"]


def test_without_a_member_nothing_is_activated_and_the_delay_continues() -> None:
    activation = FeatureActivation(("A",), 60.0)
    activation.due(0.0, [("A",)], NONE)
    assert activation.due(100.0, None, NONE) == [] and activation.common(None) == []
    assert activation.due(101.0, [("A",)], NONE) == ["A"]


def test_a_node_alone_activates_its_own_features() -> None:
    activation = FeatureActivation((*BASELINE, "B", "A"), 0.0)
    assert activation.common([]) == activation.due(5.0, [], NONE) == ["A", "B"]


def test_active_features_are_part_of_each_snapshot_of_the_state() -> None:
    state = ClusterState()
    assert state.snapshot().features is None
    planner = ChangePlanner(1, "")
    plan = planner.plan(ActivateFeatures(["B", "A"]), state, set())
    state.apply(ClusterMessage.of(plan.advisory))
    assert plan.result == state.features == ("A", "B")
    again = ClusterState()
    again.apply(ClusterMessage.of(state.snapshot()))
    assert again.features == ("A", "B")
    assert planner.plan(ActivateFeatures(["B"]), again, set()).advisory is None
