"""Cluster state: effects of advisories, and rejected advisories."""

import pytest

from bmqtwist.cluster.state import ClusterState, Primary, QueueRecord, StateMismatch
from bmqtwist.wire.cluster_schema import (
    AppIdInfo,
    ClusterMessage,
    LeaderAdvisory,
    LeaderAdvisoryCommit,
    LeaderMessageSequence,
    PartitionPrimaryAdvisory,
    PartitionPrimaryInfo,
    QueueAssignmentAdvisory,
    QueueInfo,
    QueueInfoUpdate,
    QueueUnAssignmentAdvisory,
    QueueUpdateAdvisory,
)

LSN = LeaderMessageSequence(1, 1)
KEY, OTHER = b"12345", b"54321"


def info(uri="bmq://d/q", key=KEY, partition_id=0, apps=()):
    return QueueInfo(uri, key, partition_id, [AppIdInfo(app_id, app_id.encode() * 5) for app_id in apps])


def assign(*queues):
    return ClusterMessage("queueAssignmentAdvisory", QueueAssignmentAdvisory(LSN, list(queues)))


def unassign(*queues):
    return ClusterMessage("queueUnAssignmentAdvisory", QueueUnAssignmentAdvisory(LSN, 0, 1, 1, list(queues)))


def primaries(*entries):
    return ClusterMessage("partitionPrimaryAdvisory", PartitionPrimaryAdvisory(
        LSN, [PartitionPrimaryInfo(*entry) for entry in entries]))


def update(added=(), removed=(), uri="bmq://d/q", key=KEY):
    return ClusterMessage("queueUpdateAdvisory", QueueUpdateAdvisory(LSN, [QueueInfoUpdate(
        uri, key, 0, info(apps=added).app_ids, info(apps=removed).app_ids, "d")]))


def snapshot(partitions=(), queues=()):
    return ClusterMessage("leaderAdvisory", LeaderAdvisory(
        LSN, [PartitionPrimaryInfo(*entry) for entry in partitions], list(queues)))


def test_a_queue_is_assigned_and_unassigned():
    state = ClusterState()
    changes = state.apply(assign(info(apps="ab")))
    queue = state.queues["bmq://d/q"]
    assert changes.assigned == [queue] and queue == QueueRecord("bmq://d/q", KEY, 0, {"a": b"aaaaa", "b": b"bbbbb"})
    assert state.keys == {KEY} and state.queue_counts == {0: 1}
    assert state.apply(unassign(info())).removed == [queue]
    assert state.queues == {} and state.keys == set() and state.queue_counts == {0: 0}


def test_a_second_assignment_of_a_queue_replaces_the_first():
    state = ClusterState()
    state.apply(assign(info()))
    state.apply(assign(info(key=OTHER, partition_id=1)))
    assert state.keys == {OTHER} and state.queue_counts == {0: 0, 1: 1}


def test_an_advisory_for_a_queue_with_another_key_or_partition_is_refused():
    state = ClusterState()
    state.apply(assign(info(apps="a")))
    for message in (unassign(info(), info(key=OTHER)), unassign(info(partition_id=1)), update("b", key=OTHER),
                    update("b", uri="bmq://d/unknown")):
        with pytest.raises(StateMismatch):
            state.apply(message)
    assert list(state.queues["bmq://d/q"].apps) == ["a"]


def test_apps_of_a_queue_keep_the_order_of_their_addition():
    state = ClusterState()
    state.apply(assign(info(apps="abc")))
    changes = state.apply(update(added="d", removed="b"))
    assert list(state.queues["bmq://d/q"].apps) == ["a", "c", "d"] and changes.updated == [state.queues["bmq://d/q"]]
    for message in (update(added="a"), update(removed="b")):
        with pytest.raises(StateMismatch):
            state.apply(message)


def test_an_update_of_a_domain_without_queues_has_no_effect():
    changes = ClusterState().apply(update(added="a", uri="", key=bytes(5)))
    assert not changes.updated


@pytest.mark.spec("cluster", 42)
def test_a_primary_advisory_with_an_older_lease_or_another_node_for_a_lease_is_refused():
    state = ClusterState()
    assert state.apply(primaries((0, 1, 5), (1, 1, 5))).partitions == [0, 1]
    assert state.apply(primaries((0, 1, 5), (1, 2, 6))).partitions == [1]
    for bad in ((0, 1, 4), (0, 2, 5)):
        with pytest.raises(StateMismatch):
            state.apply(primaries((1, 2, 9), bad))
    assert state.partitions == {0: Primary(1, 5), 1: Primary(2, 6)}


@pytest.mark.spec("cluster", 41)
def test_a_snapshot_replaces_the_state_and_returns_the_differences():
    state = ClusterState()
    state.apply(snapshot([(0, 1, 1), (1, 1, 1)], [info("bmq://d/a", b"aaaaa"), info("bmq://d/b", b"bbbbb"),
                                                  info("bmq://d/c", b"ccccc", apps="x"), info("bmq://d/d", b"ddddd")]))
    changes = state.apply(snapshot([(0, 1, 1), (2, 1, 1)], [
        info("bmq://d/a", b"aaaaa"), info("bmq://d/b", b"BBBBB"), info("bmq://d/c", b"ccccc", apps="xy")]))
    assert changes.partitions == [1, 2] and state.partitions == {0: Primary(1, 1), 2: Primary(1, 1)}
    assert [queue.uri for queue in changes.assigned] == ["bmq://d/b"]
    assert [queue.uri for queue in changes.updated] == ["bmq://d/c"]
    assert [queue.key for queue in changes.removed] == [b"bbbbb", b"ddddd"]
    assert state.keys == {b"aaaaa", b"BBBBB", b"ccccc"} and state.queue_counts == {0: 3}


def test_a_state_is_rebuilt_from_its_own_snapshot():
    state, copy = ClusterState(), ClusterState()
    state.apply(snapshot([(1, 1, 1), (0, 2, 3)], [info("bmq://d/a", b"aaaaa", 1, "xy"), info("bmq://d/b", b"bbbbb")]))
    copy.apply(ClusterMessage("leaderAdvisory", state.snapshot()))
    assert (copy.partitions, copy.queues, copy.queue_counts) == (state.partitions, state.queues, state.queue_counts)


def test_messages_that_are_not_advisories_are_refused():
    for message in (ClusterMessage("leaderAdvisoryCommit", LeaderAdvisoryCommit()), ClusterMessage()):
        with pytest.raises(StateMismatch):
            ClusterState().apply(message)
