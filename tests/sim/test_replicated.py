"""Three and five nodes that store messages: what was acknowledged is there, whoever dies."""

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
from sim.replicated import EVENTUAL, FANOUT, STRONG, ReplicatingCluster, settled_cluster


@pytest.mark.spec("cluster", 63)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_every_node_has_what_a_client_posts(count: int) -> None:
    nodes = settled_cluster(1, count)
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


def test_a_consumer_at_the_primary_gets_and_confirms_messages_everywhere() -> None:
    nodes = settled_cluster(2)
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


def test_confirms_are_sent_to_the_other_nodes_with_the_next_message_or_a_little_later() -> None:
    nodes = settled_cluster(0)
    nodes.post(10)
    primary, (replica, _) = nodes.primary(), nodes.replicas()
    _, writer = nodes.writer()
    reader = nodes.client(primary.name).consume(STRONG)
    pushed = reader.take(10)
    here, there = nodes.partition(primary), nodes.partition(replica)
    before = there.written
    reader.confirm(*pushed[:4])
    nodes.run(DELAY_S * 0.8)
    assert there.written == before < here.written
    nodes.run(DELAY_S)
    assert there.written == here.written > before
    before = here.written
    reader.confirm(*pushed[4:6])
    while here.written == before:
        nodes.run(DELAY_S / 50)
    before, moment = here.written, nodes.now
    writer.put(b"another one")
    while there.written <= before:
        nodes.run(DELAY_S / 50)
    assert there.written == here.written and nodes.now - moment < DELAY_S * 0.9
    assert len(nodes.stored(replica)) == 5


@pytest.mark.spec("cluster", 64)
@pytest.mark.parametrize("how", ["kill", "power", "stop"])
@pytest.mark.parametrize("seed", range(3))
def test_the_next_primary_has_every_acknowledged_message(how: str, seed: int) -> None:
    nodes = settled_cluster(seed)
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
        nodes.settle()
        nodes.judge_partitions()
        assert round_ or nodes.roles()[former.name] is PartitionRole.REPLICA_HEALED


@pytest.mark.spec("cluster", 84)
@pytest.mark.parametrize("seed", range(3))
def test_all_lose_their_power_and_nothing_that_was_acknowledged(seed: int) -> None:
    nodes = settled_cluster(seed)
    for _ in range(3):
        nodes.post(10)
        nodes.post(3, wait=False)
        for node in nodes.machines:
            node.crash(power=True, down=0.5)
        nodes.settle()
        nodes.judge_partitions()


@pytest.mark.spec("cluster", 65)
@pytest.mark.spec("cluster", 74)
def test_a_primary_that_is_cut_off_acknowledges_nothing_and_its_tail_is_cut_off() -> None:
    nodes = settled_cluster(3)
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
    nodes.settle()
    assert nodes.primary() in others
    nodes.post(5)
    nodes.run(1.0)
    nodes.judge_partitions()
    assert nodes.stored(former)[5:10] == [b"later %d" % number for number in range(5)], "posted again, stored once, in order"
    assert len(queue.acks()) == 5 and not client.link.closed


@pytest.mark.spec("cluster", 80)
def test_a_primary_that_was_paused_serves_nothing_and_becomes_a_replica() -> None:
    nodes = settled_cluster(4)
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
    nodes.settle()
    assert nodes.primary() is not former and nodes.roles()[former.name] is PartitionRole.REPLICA_HEALED
    assert queue.next_ack(guid).status == 0 and nodes.stored(nodes.primary(), EVENTUAL)[5:] == [b"too late"]
    nodes.judge_partitions()


def images(nodes: ReplicatingCluster, target: SimulatedNode | None = None) -> int:
    """How often all that is live was sent, to one node or to any."""
    name = f"[{target.name}, " if target is not None else ""
    return sum(f"node {name}" in line and "gets an image" in line for node in nodes.machines for line in node.log())


def compacted_without_one(nodes: ReplicatingCluster, count: int) -> tuple[SimulatedNode, SimulatedNode]:
    """So many messages and a rollover while a replica is away: that one, and the primary."""
    nodes.post(5)
    away, primary = nodes.replicas()[0], nodes.primary()
    away.crash(power=False, down=None)
    nodes.post(count)
    nodes.partition(primary).rollover(primary.broker.loop.wall(primary.local_now))
    return away, primary


@pytest.mark.spec("cluster", 73)
def test_a_node_that_was_away_while_the_others_compacted_gets_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "RECENT_BYTES", 0)
    nodes = settled_cluster(5, maxJournalFileSize=1 << 16)
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
    nodes.settle()
    assert nodes.partition(away).summary.base > (0, 0) and images(nodes, away) == 1
    nodes.post(3)
    nodes.run(1.0)
    nodes.judge_partitions()
    away.crash(power=True, down=1.0)
    nodes.settle()
    nodes.judge_partitions()


def test_an_image_of_many_parts_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keepalive that was made before its first part went out asked for all of it again."""
    monkeypatch.setattr(replica, "RECENT_BYTES", 0)
    monkeypatch.setattr(image, "MESSAGE_RECORDS_MAX", 4)
    nodes = settled_cluster(5)
    away, _ = compacted_without_one(nodes, 100)
    nodes.run(1.0)
    away.boot()
    nodes.settle()
    assert images(nodes, away) == 1 and nodes.stored(away) == nodes.acknowledged[STRONG]
    nodes.judge_partitions()


@pytest.mark.parametrize("lead", [True, False], ids=["same primary", "another primary"])
def test_a_node_that_was_away_for_a_compaction_gets_what_is_remembered(lead: bool) -> None:
    """Whoever wrote it, and if its log ends within what was written at once."""
    nodes = settled_cluster(6)
    away, primary = compacted_without_one(nodes, 40)
    nodes.post(5)
    nodes.run(1.0)
    up = [node for node in nodes.machines if node.up]
    assert all(nodes.partition(node).summary.base > nodes.partition(primary).psn_at(20) for node in up)
    if not lead:
        primary.crash(power=False, down=3.0)
        nodes.run(0.1)
    away.boot()
    nodes.settle()
    assert not images(nodes)
    assert [nodes.stored(node) for node in nodes.machines] == [nodes.acknowledged[STRONG]] * 3
    nodes.judge_partitions()


def test_replicas_roll_over_with_their_primary_and_need_no_image_for_it() -> None:
    """Its last record before that waits for a moment as confirms do, and is in no file any more when it is sent."""
    nodes = settled_cluster(7)
    nodes.post(5)
    nodes.run(2.0)
    primary = nodes.primary()
    assert nodes.admin(primary, "CLUSTERS CLUSTER c3 STORAGE PARTITION ALL ROLLOVER") == "SUCCESS"
    primary.turn_due()
    nodes.run(1.0)
    assert {nodes.partition(node).summary.base for node in nodes.machines} == {nodes.partition(primary).summary.base}
    assert nodes.partition(primary).summary.base > (0, 0) and not images(nodes)
    nodes.judge_partitions()


def test_replicas_roll_over_once_for_each_rollover_of_their_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    """In slices, too: their files are as full as its own, but it comes first."""
    monkeypatch.setattr(rollover, "SMALL_RECORDS", 4)
    monkeypatch.setattr(rollover, "SLICE_RECORDS", 4)
    nodes = settled_cluster(8, maxJournalFileSize=1 << 14)
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


def test_only_what_was_written_is_offered() -> None:
    """Before a batch is kept for others, too; a record of another log is none of it."""
    nodes = settled_cluster(9)
    nodes.post(3)
    primary = nodes.primary()
    partition = nodes.partition(primary)
    lease, sequence = partition.summary.last
    partition.log.append_sync_point(SyncPoint.REGULAR, primary.broker.loop.wall(primary.local_now))
    assert partition.log.write()
    assert partition.offers((lease, sequence)) and not partition.offers((lease, sequence + 100))
    assert not partition.offers((lease - 1, sequence)) and not partition.offers((lease + 1, 1))


def test_a_message_that_is_posted_again_after_a_failover_is_stored_once() -> None:
    nodes = settled_cluster(6)
    _, queue = nodes.writer()
    guid = queue.put(b"once")
    assert queue.next_ack(guid).status == 0
    consumer = nodes.client(nodes.primary().name).consume(STRONG)
    consumer.confirm(consumer.next_push())
    nodes.run(1.0)
    former = nodes.primary()
    former.crash(power=False, down=2.0)
    nodes.settle()
    _, queue = nodes.writer()
    queue.put(b"once", guid=guid)
    assert queue.next_ack(guid).status == 0
    nodes.run(1.0)
    assert all(nodes.stored(node) == [] for node in nodes.machines)
    for node in nodes.machines:
        node.stop(down=1.0)
        nodes.settle()
    _, queue = nodes.writer()
    queue.put(b"once", guid=guid)
    assert queue.next_ack(guid).status == 0
    nodes.run(1.0)
    assert all(nodes.stored(node) == [] for node in nodes.machines)


@pytest.mark.spec("cluster", 69)
def test_a_message_that_comes_twice_before_it_is_committed_is_acknowledged_when_it_is() -> None:
    nodes = settled_cluster(18)
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


def test_partitions_are_spread_where_that_is_configured() -> None:
    nodes = settled_cluster(7, masterAssignment="E_LEAST_ASSIGNED")
    assert nodes.primary(0) is not nodes.primary(1)
    nodes.post(5)
    former = nodes.primary(1)
    former.crash(power=False, down=None)
    nodes.run(6.0)
    assert nodes.primary(0) is not former and nodes.primary(1) is not former
    former.boot()
    nodes.settle()
    nodes.judge_partitions()


def test_a_node_without_its_promises_takes_part_again_once_it_follows_a_leader() -> None:
    nodes = settled_cluster(8)
    nodes.post(5)
    node = nodes.replicas()[0]
    node.crash(power=False, down=None)
    path = f"/memory/{node.name}/storage/{PromiseFile.name}"
    node.disk.open(path).write(0, [b"\xff" * node.disk.open(path).size()])
    node.boot()
    nodes.settle()
    assert any("the promises of this node are unknown" in line for line in node.log())
    nodes.post(5)
    nodes.run(1.0)
    nodes.judge_partitions()


def test_a_primary_whose_disk_fails_leaves_the_partition_to_another_node() -> None:
    nodes = settled_cluster(10, masterAssignment="E_LEAST_ASSIGNED")
    nodes.post(5)
    former = nodes.primary()
    _, queue = nodes.writer()
    fail_syncs(former)
    queue.put(b"nobody knows")
    nodes.run(10.0)
    assert nodes.primary() is not former
    nodes.post(5)
    former.crash(power=False, down=1.0)
    nodes.settle()
    nodes.judge_partitions()


def test_a_replica_whose_disk_fails_holds_nobody_up() -> None:
    nodes = settled_cluster(11)
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
    nodes.settle()
    nodes.judge_partitions()


@pytest.mark.parametrize("kind, where", [("journal", 104), ("journal", 704), ("data", 100), ("data", 400)])
def test_what_rotted_on_a_disk_comes_from_the_others(kind: str, where: int) -> None:
    nodes = settled_cluster(12)
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
    assert nodes.replication(node).hosted[index].machine.standing.doubtful
    nodes.settle()
    assert not nodes.replication(node).hosted[index].machine.standing.doubtful
    nodes.judge_partitions()
    node.crash(power=True, down=1.0)
    nodes.settle()
    assert not nodes.replication(node).hosted[index].machine.standing.doubtful
    nodes.judge_partitions()


def deleted_and_rotten(nodes: ReplicatingCluster) -> tuple[SimulatedNode, SimulatedNode]:
    """A replica is away while a message is stored and confirmed, whose data rot at the primary: both nodes."""
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
def test_a_node_that_lacks_a_record_that_cannot_be_read_gets_what_is_live(rolled: bool,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last rollover was before that record, so that what it copied would not help."""
    monkeypatch.setattr(replica, "RECENT_BYTES", 0)
    nodes = settled_cluster(5)
    if rolled:
        nodes.post(5)
        first = nodes.primary()
        nodes.partition(first).rollover(first.broker.loop.wall(first.local_now))
        nodes.run(1.0)
    away, primary = deleted_and_rotten(nodes)
    before = images(nodes, away)
    away.boot()
    nodes.settle()
    said = [line for line in primary.log() if "that it lacks cannot be read" in line]
    assert len(said) == 1 and images(nodes, away) == before + 2  # the alarm says so, too
    nodes.post(3)
    nodes.run(1.0)
    assert nodes.stored(away) == nodes.acknowledged[STRONG]
    nodes.judge_partitions()


def test_a_live_message_that_cannot_be_read_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """No image of it can be made, and the others go on."""
    monkeypatch.setattr(replica, "RECENT_BYTES", 0)
    nodes = settled_cluster(5)
    away, primary = deleted_and_rotten(nodes)
    monkeypatch.setattr(image.ImageSource, "part", unreadable)
    away.boot()
    nodes.run(10.0)
    said = [line for line in primary.log() if "an image cannot be made for node" in line]
    assert 1 <= len(said) <= 20
    nodes.post(3)
    monkeypatch.undo()
    nodes.settle()
    nodes.run(1.0)
    assert nodes.stored(away) == nodes.acknowledged[STRONG]


def unreadable(source: image.ImageSource) -> None:
    """Its disk fails."""
    raise OSError(5, "a sector is gone")


def test_without_a_majority_nothing_is_acknowledged_and_what_comes_again_is_stored_once() -> None:
    nodes = settled_cluster(13)
    nodes.post(1)
    primary = nodes.primary()
    _, queue = nodes.writer()
    for node in nodes.machines:
        if node is not primary:
            node.crash(power=False, down=None)
    guid = queue.put(b"again")
    nodes.run(1.0)
    assert not queue.acks(), "nobody else has it"
    nodes.run(10.0)
    for node in nodes.machines:
        if node is not primary:
            node.boot()
    nodes.settle()
    _, queue = nodes.writer()
    queue.put(b"again", guid=guid)
    assert queue.next_ack(guid).status == 0
    nodes.run(1.0)
    assert all(nodes.stored(node).count(b"again") == 1 for node in nodes.machines)


@pytest.mark.spec("cluster", 66)
def test_a_primary_that_is_silent_for_a_moment_is_active_again_under_its_lease() -> None:
    nodes = settled_cluster(14)
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


def test_nodes_that_are_restarted_one_after_the_other_get_the_records_that_they_lack_and_no_more() -> None:
    nodes = settled_cluster(15)
    nodes.post(20)
    for node in nodes.machines:
        node.stop(down=None)
        nodes.run(8.0)
        nodes.post(5)
        node.boot()
        nodes.settle()
        nodes.judge_partitions()
    told = [line for node in nodes.machines for line in node.log()]
    assert not [line for line in told if "are cut off" in line or "gets an image" in line]


def test_what_a_consumer_has_confirmed_does_not_come_again_from_the_next_primary() -> None:
    nodes = settled_cluster(16)
    nodes.post(10, FANOUT)
    record = nodes.cluster("n1").metadata.state.queues[FANOUT]
    apps = list(record.apps)
    readers = {app: nodes.client(nodes.primary(record.partition_id).name).consume(FANOUT, app) for app in apps[:2]}
    for app, reader in readers.items():
        pushed = reader.take(10)
        reader.confirm(*pushed[:5 if app == apps[0] else 10])
    nodes.run(1.0)
    nodes.primary(record.partition_id).crash(power=True, down=1.0)
    nodes.settle()
    node = nodes.primary(record.partition_id)
    again = {app: nodes.client(node.name).consume(FANOUT, app) for app in apps}
    nodes.run(0.5)
    assert {app: len(reader.pushes()) for app, reader in again.items()} == {
        app: 5 if app == apps[0] else 0 if app == apps[1] else 10 for app in apps}


def test_the_status_says_who_is_primary_and_whether_it_is_active() -> None:
    nodes = settled_cluster(17)
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
    assert primary.broker.clusters["c3"].unavailable == "c3 (no primaries)"


FAULTS = ("kill", "kill", "power", "stop", "cut", "one way", "heal", "heal", "pause", "resume", "resume", "blackout", "post",
          "post", "post", "post", "post", "roll", "reset", "syncs", "full", "mend", "move", "move")


def disturb(nodes: ReplicatingCluster, random: Random, kind: str) -> None:
    """One fault, or a moment of normal life."""
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
    elif kind == "roll" and node.up and not node.paused:
        for hosted in nodes.replication(node).hosted:
            if not hosted.busy:
                hosted.partition.roll.finish(node.broker.loop.wall(node.local_now))
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
    """Whoever serves is given messages; what is acknowledged within a moment counts."""
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
    """Faults at random, then none; everything must be well in the end."""
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
    nodes.settle()
    nodes.settle()
    nodes.post(3)
    nodes.run(2.0)
    nodes.judge_partitions()
    nodes.judge_all()
    return nodes


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_what_is_acknowledged_stays(size: int, seed: int) -> None:
    campaign(seed, size, 40)


def test_the_same_seed_is_the_same_life() -> None:
    assert campaign(3, 3, 10).digest == campaign(3, 3, 10).digest

