"""Replication of partitions: stored messages, failovers, images, disk faults, and random faults.

Tests `bmqtwist/member/replication.py`; the machine alone is in `tests/table/test_partition_machine.py`.
"""

from __future__ import annotations

from random import Random

import pytest
from kit.disks import fail_syncs, fill_disk

from bmqtwist.cluster.partition_events import PartitionRole
from bmqtwist.member.partition_runner import DELAY_S
from bmqtwist.storage import image, replica, rollover
from bmqtwist.storage.journal import is_sync_point
from bmqtwist.storage.psn import psns_of
from bmqtwist.storage.records import RECORD, SyncPoint
from bmqtwist.storage.slot_file import PromiseFile
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.elected import heal, resume
from sim.replicated import EVENTUAL, FANOUT, STRONG, ReplicatingCluster, stable_cluster


@pytest.mark.spec("cluster", 63)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_posted_messages_are_stored_at_all_members(count: int) -> None:
    nodes = stable_cluster(1, count)
    nodes.post(20)
    nodes.post(5, EVENTUAL)
    nodes.post(5, FANOUT)
    nodes.run(2.0)
    nodes.judge_partitions()
    assert set(nodes.roles().values()) == {PartitionRole.PRIMARY_HEALED, PartitionRole.REPLICA_HEALED}
    assert all(node.broker.clusters["c3"].unavailable == "" for node in nodes.machines)
    partition = nodes.partition(nodes.primary())
    assert partition.copies.committed == partition.position
    whole, (lease, sequence) = partition.read_run((0, 0)), partition.summary.last
    last = partition.read_run((lease, sequence - 1))
    assert whole is not None and last is not None
    for journal, number in ((whole.journal[:60], 1), (last.journal, sequence)):
        assert is_sync_point(RECORD.unpack(journal)) and next(iter(psns_of(journal))) == (lease, number)


def test_a_confirm_at_the_primary_removes_the_message_at_all_members() -> None:
    nodes = stable_cluster(2)
    nodes.post(10)
    client = nodes.client(nodes.primary().name)
    queue = client.consume(STRONG)
    pushed = queue.take(10)
    assert [message.payload for message in pushed] == nodes.acknowledged[STRONG]
    queue.confirm(*pushed[:4])
    nodes.run(1.0)
    for node in nodes.machines:
        assert nodes.stored(node) == nodes.acknowledged[STRONG][4:]
    assert len({nodes.partition(node).summary.last for node in nodes.machines}) == 1


def test_confirms_are_replicated_with_the_next_message_or_after_a_delay() -> None:
    nodes = stable_cluster(4)
    nodes.post(10)
    primary, (replica, _) = nodes.primary(), nodes.replicas()
    _, writer = nodes.writer()
    reader = nodes.client(primary.name).consume(STRONG)
    pushed = reader.take(10)
    here, there = nodes.partition(primary), nodes.partition(replica)
    before = there.written_psn
    reader.confirm(*pushed[:4])
    nodes.run(DELAY_S * 0.8)
    assert there.written_psn == before < here.written_psn
    nodes.run(DELAY_S)
    assert there.written_psn == here.written_psn > before
    before = here.written_psn
    reader.confirm(*pushed[4:6])
    while here.written_psn == before:
        nodes.run(DELAY_S / 50)
    before, moment = here.written_psn, nodes.now
    writer.put(b"another one")
    while there.written_psn <= before:
        nodes.run(DELAY_S / 50)
    assert there.written_psn == here.written_psn and nodes.now - moment < DELAY_S * 0.9
    assert len(nodes.stored(replica)) == 5


@pytest.mark.spec("cluster", 64)
@pytest.mark.parametrize("how", ["kill", "power", "stop"])
@pytest.mark.parametrize("seed", range(3))
def test_the_next_primary_has_every_acknowledged_message(how: str, seed: int) -> None:
    nodes = stable_cluster(seed)
    for round_ in range(3):
        nodes.post(10)
        nodes.post(3, wait=False)
        former = nodes.primary()
        if how == "stop":
            former.stop(down=None)
        else:
            former.crash(power=how == "power", down=None)
        nodes.run(5.0)
        assert nodes.primary() is not former
        for payload in nodes.acknowledged[STRONG]:
            assert payload in nodes.stored(nodes.primary())
        nodes.post(5)
        former.boot()
        nodes.run_until_stable()
        nodes.judge_partitions()
        assert round_ or nodes.roles()[former.name] is PartitionRole.REPLICA_HEALED


@pytest.mark.spec("cluster", 84)
@pytest.mark.parametrize("seed", range(3))
def test_a_power_loss_of_all_members_loses_no_acknowledged_message(seed: int) -> None:
    nodes = stable_cluster(seed)
    for _ in range(3):
        nodes.post(10)
        nodes.post(3, wait=False)
        for node in nodes.machines:
            node.crash(power=True, down=0.5)
        nodes.run_until_stable()
        nodes.judge_partitions()


@pytest.mark.spec("cluster", 65)
@pytest.mark.spec("cluster", 74)
def test_an_isolated_primary_acknowledges_no_strong_put_and_its_uncommitted_records_are_truncated() -> None:
    nodes = stable_cluster(3)
    nodes.post(5)
    former = nodes.primary()
    client, queue = nodes.writer()
    consumer = nodes.client(former.name).consume(STRONG)
    consumer.take(5)
    nodes.isolate(former)
    for number in range(5):
        queue.put(b"later %d" % number)
    alone = nodes.partition(former).summary.last
    nodes.run(0.5)
    assert not queue.acks() and not consumer.pushes()
    assert nodes.partition(former).summary.last > alone
    nodes.run(4.0)
    assert not client.link.closed and not queue.acks()
    replication = nodes.replication(former)
    assert not replication.hosted[0].partition.copies.committed or not replication.is_active_primary(0)
    nodes.run(10.0)
    others = [node for node in nodes.machines if node is not former and nodes.replication(node).is_active_primary(0)]
    assert len(others) == 1
    heal(nodes)
    nodes.run_until_stable()
    assert nodes.primary() in others
    nodes.post(5)
    nodes.run(1.0)
    nodes.judge_partitions()
    assert nodes.stored(former)[5:10] == [b"later %d" % number for number in range(5)], "sent again, stored once, in order"
    assert len(queue.acks()) == 5 and not client.link.closed


@pytest.mark.spec("cluster", 80)
def test_a_paused_primary_becomes_a_replica_and_its_pending_put_is_acknowledged() -> None:
    nodes = stable_cluster(4)
    nodes.post(5, EVENTUAL)
    former = nodes.primary()
    client = nodes.client(former.name)
    queue = client.open(EVENTUAL, write=1)
    former.pause()
    guid = queue.put(b"too late")
    nodes.run(15.0)
    former.resume()
    nodes.run(1.0)
    client.pump(0.1)
    nodes.run_until_stable()
    assert nodes.primary() is not former and nodes.roles()[former.name] is PartitionRole.REPLICA_HEALED
    assert queue.next_ack(guid).status == 0 and nodes.stored(nodes.primary(), EVENTUAL)[5:] == [b"too late"]
    nodes.judge_partitions()


def images(nodes: ReplicatingCluster, target: SimulatedNode | None = None) -> int:
    """Return how many images were sent, to one member or to all."""
    name = f"[{target.name}, " if target is not None else ""
    return sum(f"node {name}" in line and "gets an image" in line for node in nodes.machines for line in node.log())


def roll_over_without_replica(nodes: ReplicatingCluster, count: int) -> tuple[SimulatedNode, SimulatedNode]:
    """Post messages and roll over while a replica is down; return the replica and the primary."""
    nodes.post(5)
    away, primary = nodes.replicas()[0], nodes.primary()
    away.crash(power=False, down=None)
    nodes.post(count)
    nodes.partition(primary).rollover(primary.broker.loop.wall(primary.local_now))
    return away, primary


@pytest.mark.spec("cluster", 73)
def test_a_member_that_missed_a_rollover_gets_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "RECENT_BYTES", 0)
    nodes = stable_cluster(5, maxJournalFileSize=1 << 16)
    nodes.post(5)
    away = nodes.replicas()[0]
    away.crash(power=False, down=None)
    for _ in range(8):
        nodes.post(20)
    primary = nodes.primary()
    nodes.partition(primary).rollover(primary.broker.loop.wall(primary.local_now))
    nodes.post(3)
    assert nodes.partition(primary).summary.base > (0, 0)
    away.boot()
    nodes.run_until_stable()
    assert nodes.partition(away).summary.base > (0, 0) and images(nodes, away) == 1
    nodes.post(3)
    nodes.run(1.0)
    nodes.judge_partitions()
    away.crash(power=True, down=1.0)
    nodes.run_until_stable()
    nodes.judge_partitions()


def test_an_image_of_many_parts_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a keepalive from before its first part requested the whole image again."""
    monkeypatch.setattr(replica, "RECENT_BYTES", 0)
    monkeypatch.setattr(image, "MESSAGE_RECORDS_MAX", 4)
    nodes = stable_cluster(1025)
    away, _ = roll_over_without_replica(nodes, 100)
    nodes.run(1.0)
    away.boot()
    nodes.run_until_stable()
    assert images(nodes, away) == 1 and nodes.stored(away) == nodes.acknowledged[STRONG]
    nodes.judge_partitions()


def test_an_image_is_sent_once_while_messages_are_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each notification of a commit requested the whole image again: it never ended under load."""
    monkeypatch.setattr(replica, "RECENT_BYTES", 0)
    monkeypatch.setattr(image, "MESSAGE_RECORDS_MAX", 4)
    nodes = stable_cluster(1026)
    away, _ = roll_over_without_replica(nodes, 200)
    nodes.run(1.0)
    _, queue = nodes.writer(STRONG)
    away.boot()
    posted = [b"during the image %d" % number for number in range(300)]
    for payload in posted:
        queue.put(payload)
        nodes.run(0.01)
    nodes.run_until_stable()
    assert images(nodes, away) == 1 and nodes.stored(away) == nodes.acknowledged[STRONG] + posted
    nodes.judge_partitions()


@pytest.mark.parametrize("lead", [True, False], ids=["same primary", "another primary"])
def test_a_member_that_missed_a_rollover_gets_records_that_are_still_in_memory(lead: bool) -> None:
    """Also from another primary, and when its log ends within a batch."""
    nodes = stable_cluster(6)
    away, primary = roll_over_without_replica(nodes, 40)
    nodes.post(5)
    nodes.run(1.0)
    up = [node for node in nodes.machines if node.up]
    assert all(nodes.partition(node).summary.base > nodes.partition(primary).psn_at(20) for node in up)
    if not lead:
        primary.crash(power=False, down=3.0)
        nodes.run(0.1)
    away.boot()
    nodes.run_until_stable()
    assert not images(nodes)
    assert [nodes.stored(node) for node in nodes.machines] == [nodes.acknowledged[STRONG]] * 3
    nodes.judge_partitions()


def test_replicas_roll_over_with_their_primary_without_an_image() -> None:
    """The last record before the rollover is sent with a delay, when it is in no file any more."""
    nodes = stable_cluster(7)
    nodes.post(5)
    nodes.run(2.0)
    primary = nodes.primary()
    assert nodes.admin(primary, "CLUSTERS CLUSTER c3 STORAGE PARTITION ALL ROLLOVER") == "SUCCESS"
    primary.request_turn()
    nodes.run(1.0)
    assert {nodes.partition(node).summary.base for node in nodes.machines} == {nodes.partition(primary).summary.base}
    assert nodes.partition(primary).summary.base > (0, 0) and not images(nodes)
    nodes.judge_partitions()


def test_replicas_roll_over_once_for_each_rollover_of_their_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in slices: the files of replicas are as full as those of the primary, which starts the rollover."""
    monkeypatch.setattr(rollover, "SMALL_RECORDS", 4)
    monkeypatch.setattr(rollover, "SLICE_RECORDS", 4)
    nodes = stable_cluster(8, maxJournalFileSize=1 << 14)
    nodes.post(30)
    reader = nodes.client(nodes.primary().name).consume(STRONG)
    reader.take(30)
    for _ in range(40):
        nodes.post(10)
        reader.confirm(*reader.take(10))
        nodes.run(0.2)
    nodes.run(2.0)
    done = [sum("ROLLOVER COMPLETE" in line for line in node.log()) for node in nodes.machines]
    assert done[0] >= 2 and len(set(done)) == 1 and not images(nodes), done
    assert [nodes.stored(node) for node in nodes.machines] == [nodes.acknowledged[STRONG][:30]] * 3


def test_a_partition_offers_only_written_records_of_its_log() -> None:
    """Records of other leases are not offered."""
    nodes = stable_cluster(9)
    nodes.post(3)
    primary = nodes.primary()
    partition = nodes.partition(primary)
    lease, sequence = partition.summary.last
    partition.log.append_sync_point(SyncPoint.REGULAR, primary.broker.loop.wall(primary.local_now))
    assert partition.log.write()
    assert partition.can_send_after((lease, sequence)) and not partition.can_send_after((lease, sequence + 100))
    assert not partition.can_send_after((lease - 1, sequence)) and not partition.can_send_after((lease + 1, 1))


def test_a_put_repeated_after_a_failover_is_stored_once() -> None:
    nodes = stable_cluster(6)
    _, queue = nodes.writer()
    guid = queue.put(b"once")
    assert queue.next_ack(guid).status == 0
    consumer = nodes.client(nodes.primary().name).consume(STRONG)
    consumer.confirm(consumer.next_push())
    nodes.run(1.0)
    former = nodes.primary()
    former.crash(power=False, down=2.0)
    nodes.run_until_stable()
    _, queue = nodes.writer()
    queue.put(b"once", guid=guid)
    assert queue.next_ack(guid).status == 0
    nodes.run(1.0)
    assert all(nodes.stored(node) == [] for node in nodes.machines)
    for node in nodes.machines:
        node.stop(down=1.0)
        nodes.run_until_stable()
    _, queue = nodes.writer()
    queue.put(b"once", guid=guid)
    assert queue.next_ack(guid).status == 0
    nodes.run(1.0)
    assert all(nodes.stored(node) == [] for node in nodes.machines)


@pytest.mark.spec("cluster", 69)
def test_a_put_repeated_before_the_commit_is_acknowledged_with_the_commit() -> None:
    nodes = stable_cluster(18)
    nodes.post(1)
    primary = nodes.primary()
    (_, first), (_, second) = nodes.writer(), nodes.writer()
    nodes.isolate(primary)
    guid = first.put(b"twice")
    nodes.run(0.2)
    second.put(b"twice", guid=guid)
    nodes.run(1.0)
    assert not first.acks() and not second.acks()
    heal(nodes)
    assert second.next_ack(guid).status == 0 and first.next_ack(guid).status == 0
    nodes.run(1.0)
    assert all(nodes.stored(node).count(b"twice") == 1 for node in nodes.machines)


def test_with_least_assigned_partitions_have_different_primaries() -> None:
    nodes = stable_cluster(7, masterAssignment="E_LEAST_ASSIGNED")
    assert nodes.primary(0) is not nodes.primary(1)
    nodes.post(5)
    former = nodes.primary(1)
    former.crash(power=False, down=None)
    nodes.run(6.0)
    assert nodes.primary(0) is not former and nodes.primary(1) is not former
    former.boot()
    nodes.run_until_stable()
    nodes.judge_partitions()


def test_a_member_with_a_damaged_promise_file_recovers_when_it_follows_a_leader() -> None:
    nodes = stable_cluster(8)
    nodes.post(5)
    node = nodes.replicas()[0]
    node.crash(power=False, down=None)
    path = f"/memory/{node.name}/storage/{PromiseFile.name}"
    node.disk.open(path).write(0, [b"\xff" * node.disk.open(path).size()])
    node.boot()
    nodes.run_until_stable()
    assert any("has lost data of this node: the promises (damaged)" in line for line in node.log())
    nodes.post(5)
    nodes.run(1.0)
    nodes.judge_partitions()


def test_another_member_becomes_primary_when_the_disk_of_the_primary_fails() -> None:
    nodes = stable_cluster(10, masterAssignment="E_LEAST_ASSIGNED")
    nodes.post(5)
    former = nodes.primary()
    _, queue = nodes.writer()
    fail_syncs(former)
    queue.put(b"unknown")
    nodes.run(10.0)
    assert nodes.primary() is not former
    former.crash(power=False, down=3.0)
    nodes.run(1.0)
    nodes.post(5)
    nodes.run_until_stable()
    nodes.judge_partitions()


def test_a_replica_with_a_failing_disk_does_not_delay_acks() -> None:
    nodes = stable_cluster(11)
    nodes.post(5)
    node = nodes.replicas()[0]
    node.disk.fail = lambda operation, path: 5 if operation == "write" and "journal" in path else None
    nodes.post(5)
    nodes.run(3.0)
    node.clear_disk_faults()
    nodes.run(3.0)
    nodes.post(5)
    nodes.run(1.0)
    nodes.judge_partitions()
    fail_syncs(node)
    nodes.post(5)
    node.crash(power=False, down=1.0)
    nodes.run_until_stable()
    nodes.judge_partitions()


@pytest.mark.parametrize("kind, where", [("journal", 104), ("journal", 704), ("data", 100), ("data", 400)])
def test_a_replica_with_flipped_bits_gets_the_records_from_other_members(kind: str, where: int) -> None:
    """The data at 100 is the payload of a message, which is repaired; the log is kept."""
    nodes = stable_cluster(12)
    for _ in range(4):
        nodes.post(10)
        nodes.run(1.5)
    index = nodes.cluster("n1").metadata.state.queues[STRONG].partition_id
    node = nodes.replicas(index)[0]
    node.crash(power=False, down=None)
    path = next(path for path in node.disk.paths()
                if f"/storage/bmq_{index}." in path and path.endswith(kind))
    node.disk.flip(path, where, 0xFF)
    node.boot()
    assert bool(nodes.replication(node).hosted[index].machine.standing.doubt) is ((kind, where) != ("data", 100))
    nodes.run_until_stable()
    assert not nodes.replication(node).hosted[index].machine.standing.doubt
    nodes.judge_partitions()
    node.crash(power=True, down=1.0)
    nodes.run_until_stable()
    assert not nodes.replication(node).hosted[index].machine.standing.doubt
    nodes.judge_partitions()


def make_unreadable_record(nodes: ReplicatingCluster) -> tuple[SimulatedNode, SimulatedNode]:
    """Store and confirm a message while a replica is down, and damage its data at the primary; return both nodes."""
    nodes.post(5)
    away, primary = nodes.replicas()[0], nodes.primary()
    place = nodes.partition(primary).tail.positions()[1]
    away.crash(power=False, down=None)
    nodes.post(1)
    client = nodes.client(primary.name)
    queue = client.consume(STRONG)
    queue.confirm(*queue.take(len(nodes.acknowledged[STRONG])))
    queue.close()
    client.kill()
    nodes.acknowledged[STRONG].clear()
    nodes.post(5)
    nodes.run(3.0)
    index = nodes.cluster("n1").metadata.state.queues[STRONG].partition_id
    path = [path for path in primary.disk.paths() if f"/storage/bmq_{index}." in path and path.endswith("data")][-1]
    primary.disk.flip(path, place + 20)
    return away, primary


@pytest.mark.parametrize("rolled", [False, True])
def test_a_replica_that_lacks_an_unreadable_record_gets_an_image(rolled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the last rollover was before that record, so that its copies do not contain it."""
    monkeypatch.setattr(replica, "RECENT_BYTES", 0)
    nodes = stable_cluster(5)
    if rolled:
        nodes.post(5)
        first = nodes.primary()
        nodes.partition(first).rollover(first.broker.loop.wall(first.local_now))
        nodes.run(1.0)
    away, primary = make_unreadable_record(nodes)
    before = images(nodes, away)
    away.boot()
    nodes.run_until_stable()
    alarms = [line for line in primary.log() if "that it lacks cannot be read" in line]
    assert len(alarms) == 1 and images(nodes, away) == before + 2  # one in the alarm
    nodes.post(3)
    nodes.run(1.0)
    assert nodes.stored(away) == nodes.acknowledged[STRONG]
    nodes.judge_partitions()


def test_an_image_with_an_unreadable_message_raises_a_limited_number_of_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replica gets no image; the other members continue."""
    monkeypatch.setattr(replica, "RECENT_BYTES", 0)
    nodes = stable_cluster(5)
    away, primary = make_unreadable_record(nodes)
    monkeypatch.setattr(image.ImageSource, "next_part", unreadable)
    away.boot()
    nodes.run(10.0)
    alarms = [line for line in primary.log() if "replication-read-failed" in line]
    assert 1 <= len(alarms) <= 20
    nodes.post(3)
    monkeypatch.undo()
    nodes.run_until_stable()
    nodes.run(1.0)
    assert nodes.stored(away) == nodes.acknowledged[STRONG]


def unreadable(source: image.ImageSource) -> None:
    """Fail as a damaged disk does."""
    raise OSError(5, "unreadable sector")


def test_without_a_majority_no_put_is_acknowledged_and_its_repetition_is_stored_once() -> None:
    nodes = stable_cluster(13)
    nodes.post(1)
    primary = nodes.primary()
    _, queue = nodes.writer()
    for node in nodes.machines:
        if node is not primary:
            node.crash(power=False, down=None)
    guid = queue.put(b"again")
    nodes.run(1.0)
    assert not queue.acks(), "no other member has it"
    nodes.run(10.0)
    for node in nodes.machines:
        if node is not primary:
            node.boot()
    nodes.run_until_stable()
    _, queue = nodes.writer()
    queue.put(b"again", guid=guid)
    assert queue.next_ack(guid).status == 0
    nodes.run(1.0)
    assert all(nodes.stored(node).count(b"again") == 1 for node in nodes.machines)


@pytest.mark.spec("cluster", 66)
def test_a_primary_isolated_for_a_short_time_becomes_active_again_under_its_lease() -> None:
    nodes = stable_cluster(14)
    nodes.post(5, EVENTUAL)
    primary = nodes.primary()
    lease = nodes.partition(primary).lease
    _, queue = nodes.writer(EVENTUAL)
    nodes.isolate(primary)
    nodes.run(2.3)
    queue.put(b"waits")
    nodes.run(0.1)
    assert not nodes.replication(primary).is_active_primary(0) and not queue.acks()
    heal(nodes)
    nodes.run(3.0)
    assert nodes.primary() is primary and nodes.partition(primary).lease == lease
    assert len(queue.acks()) == 1
    nodes.post(5, EVENTUAL)
    nodes.run(1.0)
    nodes.judge_partitions()


def test_a_rolling_restart_transfers_only_missing_records() -> None:
    nodes = stable_cluster(15)
    nodes.post(20)
    for node in nodes.machines:
        node.stop(down=None)
        nodes.run(8.0)
        nodes.post(5)
        node.boot()
        nodes.run_until_stable()
        nodes.judge_partitions()
    lines = [line for node in nodes.machines for line in node.log()]
    assert not [line for line in lines if "are cut off" in line or "gets an image" in line]


def test_confirmed_messages_are_not_delivered_by_the_next_primary() -> None:
    nodes = stable_cluster(16)
    nodes.post(10, FANOUT)
    record = nodes.cluster("n1").metadata.state.queues[FANOUT]
    apps = list(record.apps)
    readers = {app: nodes.client(nodes.primary(record.partition_id).name).consume(FANOUT, app) for app in apps[:2]}
    for app, reader in readers.items():
        pushed = reader.take(10)
        reader.confirm(*pushed[:5 if app == apps[0] else 10])
    nodes.run(1.0)
    nodes.primary(record.partition_id).crash(power=True, down=1.0)
    nodes.run_until_stable()
    node = nodes.primary(record.partition_id)
    again = {app: nodes.client(node.name).consume(FANOUT, app) for app in apps}
    nodes.run(0.5)
    assert {app: len(reader.pushes()) for app, reader in again.items()} == {
        app: 5 if app == apps[0] else 0 if app == apps[1] else 10 for app in apps}


def test_the_status_shows_each_primary_and_whether_it_is_active() -> None:
    nodes = stable_cluster(17)
    primary = nodes.primary()
    for node in nodes.machines:
        text = nodes.admin(node, "CLUSTERS CLUSTER c3 STATUS")
        assert text.count(f"Primary Node   : [{primary.name}, {primary.name[1:]}]") == 2
        assert text.count("Primary Status : ACTIVE") == 2
    for node in nodes.machines:
        if node is not primary:
            node.crash(power=False, down=None)
    nodes.run(3.0)
    assert "Primary Status : PASSIVE" in nodes.admin(primary, "CLUSTERS CLUSTER c3 STATUS")
    assert primary.broker.clusters["c3"].unavailable.startswith("c3 (WAITING_FOR_MEMBERS: waits for [")


FAULTS = ("kill", "kill", "power", "stop", "cut", "one way", "heal", "heal", "pause", "resume", "resume", "blackout", "post",
          "post", "post", "post", "post", "rollover", "reset", "syncs", "full", "mend", "move", "move")


def disturb(nodes: ReplicatingCluster, random: Random, kind: str) -> None:
    """Perform one random fault or action."""
    node, other = random.sample(nodes.machines, 2)
    if kind in ("kill", "power") and node.up:
        node.crash(power=kind == "power", down=random.random() * 8, silently=random.random() < 0.2)
    elif kind == "stop":
        node.stop(down=random.random() * 3)
    elif kind in ("cut", "one way"):
        nodes.network.cut(node.name, other.name, kind == "cut")
    elif kind == "heal":
        heal(nodes)
    elif kind == "pause" and node.up:
        node.pause()
    elif kind == "resume":
        resume(nodes)
    elif kind == "blackout" and random.random() < 0.5:
        for each in nodes.machines:
            if each.up:
                each.crash(power=True, down=random.random())
    elif kind == "reset" and node.up and node.broker.sessions.open:
        random.choice(list(node.broker.sessions.open)).transport.reset()  # type: ignore[attr-defined]
    elif kind == "rollover" and node.up and not node.paused:
        for hosted in nodes.replication(node).hosted:
            if not hosted.busy:
                hosted.partition.roll.finish_at_once(node.broker.loop.wall(node.local_now))
    elif kind == "move":
        nodes.move_any(random)
    elif kind == "syncs":
        fail_syncs(node)
    elif kind == "full":
        fill_disk(node, random.randrange(2000))
    elif kind == "mend":
        node.clear_disk_faults()
    elif kind == "post":
        post(nodes, random)


def post(nodes: ReplicatingCluster, random: Random) -> None:
    """Post messages at active primaries and record the messages acknowledged within 1 s."""
    for node in nodes.machines:
        if not node.up or node.paused or not nodes.replication(node).is_active_primary(0):
            continue
        try:
            client = nodes.client(node.name)
            queue = client.open(STRONG, write=1)
            guids = {queue.put(payload): payload for payload in
                     (b"message %d" % (nodes.posted + each) for each in range(random.randint(1, 5)))}
            nodes.posted += len(guids)
            for _ in guids:
                ack = queue.next_ack(deadline=random.random())
                if ack.status == 0:
                    nodes.acknowledged.setdefault(STRONG, []).append(guids[ack.guid])
        except AssertionError as error:
            assert "two" not in str(error)


def campaign(seed: int, size: int, steps: int) -> ReplicatingCluster:
    """Run random faults, then check the final state of all members."""
    random = Random(f"{seed}/replicas")
    nodes = ReplicatingCluster(seed, size, maxJournalFileSize=random.choice((1 << 15, 1 << 20)),
                               masterAssignment=random.choice(("E_LEADER_IS_MASTER_ALL", "E_LEAST_ASSIGNED")))
    nodes.run(random.random() * 8)
    for _ in range(steps):
        disturb(nodes, random, random.choice(FAULTS))
        nodes.run(random.choice((0.01, 0.2, 1.0, 4.0)) * random.random())
    heal(nodes)
    resume(nodes)
    for node in nodes.machines:
        node.clear_disk_faults()
        if node.up and any(hosted.broken for hosted in nodes.replication(node).hosted):
            node.crash(power=False, down=0.5)  # as an operator does when a disk has failed
    nodes.run_until_stable()
    nodes.run_until_stable()
    nodes.post(3)
    nodes.run(2.0)
    nodes.judge_partitions()
    nodes.judge_all()
    return nodes


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_random_faults_of_members_lose_no_acknowledged_message(size: int, seed: int) -> None:
    campaign(seed, size, 40)


def test_a_simulation_is_determined_by_its_seed() -> None:
    assert campaign(3, 3, 10).digest == campaign(3, 3, 10).digest

