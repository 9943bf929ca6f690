"""Actions of a campaign by name: faults of processes, network and disks, and requests of operators and clients.

Each action receives the world, the node and the other node of its step, and the step, whose `share` and `dice` choose the
intensity and the details. `play.py` performs the actions of a schedule with `act`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from kit.disks import fail_file, fill_disk, make_read_only

from bmqtwist.cluster.changes import AssignPartitions, AssignQueue, UnassignQueue, UpdateApps
from bmqtwist.cluster.election_events import ElectionMode
from bmqtwist.cluster.state import QueueRecord
from bmqtwist.member.leadership import Leadership
from bmqtwist.member.partition_logs import HostedPartition
from bmqtwist.storage.found_log import SYNC_POINTS
from bmqtwist.storage.journal import is_sync_point
from bmqtwist.storage.psn import NO_PSN, Psn
from bmqtwist.storage.records import DATA_HEADER, RECORD, RECORD_BYTES, SEQUENCE_MASK, FileType
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.network import ConnectionEnd
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.clients import CampaignProducer
from sim.campaign.copies import restore_old_copy
from sim.campaign.judges import Loss, damaged_messages, durable_vote
from sim.campaign.membership import change_members, start_removed, stop_removed
from sim.campaign.messages import APPS as APPS_OF_CLIENTS
from sim.campaign.messages import EVENTUAL, EXTRA_APP, FANOUT, STRONG, domain_text
from sim.campaign.operator_mistakes import correct_all, found_alone, misconfigure, swap_directories
from sim.campaign.releases import change_release, upgrade_all
from sim.campaign.schedule import LEADER, Step
from sim.campaign.world import EVERYTHING, CampaignWorld

DOWN_S, PAUSED_S, SLOW_S, SLOW_DISK_S, JUMP_S = 8.0, 8.0, 1.5, 3.0, 4.0  # longest duration, delay or clock jump
BANDWIDTH_MIN, BANDWIDTH_MAX = 10_000, 1_000_000  # of a narrow link, bytes per second
ROLLING_S = 9.0  # longest time between the stops of two nodes in a rolling restart
_SEQUENCE_AT = 7  # offset of the last byte of the sequence number in a record
FLIP_ATTEMPTS, FLIP_RETRY_S = 20, 0.25  # until there is such a message
URIS = 12  # number of queues that are assigned and unassigned
APPS = ("a", "b", "c")

Perform = Callable[[CampaignWorld, SimulatedNode, SimulatedNode, Step], None]


@dataclass(frozen=True, slots=True)
class Action:
    """An action with its relative frequency in drawn schedules."""

    weight: int
    perform: Perform


def _leadership(node: SimulatedNode) -> Leadership:
    return node.broker.clusters[CLUSTER].leadership


# -- processes ------------------------------------------------------------------------------------------------------------

def kill_process(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node.up:
        node.crash(power=False, down=step.share * DOWN_S)


def lose_power(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Lose power: unsynced writes are lost or torn; with `dice` below 0.3 peers are not notified."""
    if node.up:
        node.crash(power=True, down=step.share * DOWN_S, silently=step.dice < 0.3)


def kill_at_disk_step(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Kill the process between two disk operations, after at most 7 more of them."""
    if node.up:
        node.disk.stop_after = node.disk.steps + int(step.share * 8)


def stop_gracefully(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if not node.paused:
        node.stop(down=step.share * DOWN_S / 2)


def lose_all_power(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for each in world.machines:
        if each.up:
            each.crash(power=True, down=step.share)


def pause_process(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node.up and not node.paused:
        node.pause()
        run = node.run_number
        world.at(world.now + step.share * PAUSED_S,
                 lambda: node.resume() if node.run_number == run and node.paused else None)


def jump_clocks(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Advance the monotonic clock, as after a suspension, and shift the wall clock by up to an hour either way."""
    node.jump(step.share * JUMP_S, wall=(step.dice - 0.5) * 7200)


def lose_power_silently(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Lose power without notice to peers: their connections stay half-open."""
    if node.up:
        node.crash(power=True, down=step.share * DOWN_S, silently=True)


PROCESSES = {
    "kill": Action(8, kill_process),
    "power": Action(6, lose_power),
    "disk death": Action(4, kill_at_disk_step),
    "stop": Action(4, stop_gracefully),
    "blackout": Action(2, lose_all_power),
    "half open": Action(3, lose_power_silently),
    "pause": Action(6, pause_process),
    "jump": Action(2, jump_clocks),
}


# -- the network ------------------------------------------------------------------------------------------------------------

def cut_link(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node is not other:
        world.network.cut(node.name, other.name)


def cut_one_way(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node is not other:
        world.network.cut(node.name, other.name, both=False)


def split_network(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Split the network into two groups; the bits of `share` choose the groups."""
    mask = int(step.share * (1 << len(world.machines)))
    for one in world.machines:
        for two in world.machines:
            if mask >> world.machines.index(one) & 1 and not mask >> world.machines.index(two) & 1:
                world.network.cut(one.name, two.name)


def isolate_node(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for each in world.machines:
        if each is not node:
            world.network.cut(node.name, each.name)


def heal_links(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for one in world.machines:
        for two in world.machines:
            if one is not two:
                world.network.heal(one.name, two.name, both=False)


def reset_connection(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Reset a connection of the node; data in flight is lost."""
    ends = [session.transport for session in node.broker.sessions.open if isinstance(session.transport, ConnectionEnd)]
    if node.up and ends:
        ends[int(step.dice * len(ends))].reset()


def slow_link(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node is not other:
        world.network.slow(node.name, other.name, step.share * SLOW_S, step.dice * step.share * SLOW_S)


def limit_link(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Limit the bandwidth of a link, in one direction or both."""
    if node is not other:
        rate = int(BANDWIDTH_MIN * (BANDWIDTH_MAX / BANDWIDTH_MIN) ** step.share)
        world.network.limit(node.name, other.name, rate, both=step.dice < 0.5)


def end_link_delays(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for one in world.machines:
        for two in world.machines:
            world.network.slow(one.name, two.name, 0.0)
            world.network.limit(one.name, two.name, both=False)


NETWORK = {
    "cut": Action(5, cut_link),
    "one way": Action(4, cut_one_way),
    "split": Action(4, split_network),
    "isolate": Action(4, isolate_node),
    "heal": Action(12, heal_links),
    "reset": Action(8, reset_connection),
    "slow": Action(4, slow_link),
    "narrow": Action(4, limit_link),
    "fast": Action(2, end_link_delays),
}


# -- disks ------------------------------------------------------------------------------------------------------------------

def _fail_operations(node: SimulatedNode, failed: str) -> None:
    """Let all disk operations of one kind fail with EIO."""
    node.disk.fail = lambda operation, path: errno.EIO if operation == failed else None


def fail_syncs(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    _fail_operations(node, "sync")


def fail_writes(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    _fail_operations(node, "write")


def make_disk_read_only(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    make_read_only(node)


def fail_one_kind_of_file(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Let writes to the ledger, the vote, the promises, JOURNAL or DATA fail with EIO or ENOSPC."""
    kinds = (".bmq_csl", "bmqtwist_vote", "bmqtwist_promises", ".bmq_journal", ".bmq_data")
    fail_file(node, kinds[int(step.share * len(kinds))], errno.EIO if step.dice < 0.5 else errno.ENOSPC)


def limit_disk_space(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    fill_disk(node, int(step.share * 200))


def end_disk_faults(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for each in world.machines:
        each.clear_disk_faults()


def delay_syncs(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Delay all syncs of the node."""
    node.disk_delay_s = step.share * SLOW_DISK_S


def damage_vote_file(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Kill the node and damage its vote file, unless the file of another node is damaged already."""
    if node.up and len(world.machines) > 1 and not any(durable_vote(each)[1] for each in world.machines) and (
            world.change is None and world.may_lose_vote(node)):
        node.crash(power=False, down=0.01 + step.share * DOWN_S)
        world.damage_vote(node)


LOSSES = {"everything": EVERYTHING, "ledger": Loss(metadata=True), "vote": Loss(vote=True), "promises": Loss(promises=True),
          "partition files": Loss(partitions=(0, 1)), "one partition": Loss(partitions=(0,)),
          "metadata": Loss(vote=True, metadata=True), "promises and one partition": Loss(promises=True, partitions=(1,))}


def lose_storage(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Kill the node and remove files of it, if enough members with intact storage remain to continue without an operator."""
    size = len(world.voters(world.members))
    remaining = set(world.intact_members()) - {node.name}
    if node.up and world.change is None and size > 1 and len(remaining) >= size - size // 2:
        node.crash(power=False, down=0.01 + step.share * DOWN_S)
        name = list(LOSSES)[int(step.dice * len(LOSSES))]
        world.lose_storage(node, LOSSES[name])
        world.counts[f"lost {name}"] += 1


DISKS = {
    "syncs fail": Action(2, fail_syncs),
    "writes fail": Action(2, fail_writes),
    "full": Action(2, limit_disk_space),
    "read-only": Action(2, make_disk_read_only),
    "one file fails": Action(2, fail_one_kind_of_file),
    "slow disk": Action(3, delay_syncs),
    "mend": Action(5, end_disk_faults),
    "vote lost": Action(2, damage_vote_file),
    "storage lost": Action(4, lose_storage),
    "wrong list": Action(2, misconfigure),
    "swapped": Action(1, swap_directories),
}


# -- elections --------------------------------------------------------------------------------------------------------------

def transfer_lead(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node.up and not node.paused:
        _leadership(node).transfer(int(other.name[1:]))


def set_mode(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node.up and not node.paused:
        _leadership(node).set_mode(list(ElectionMode)[int(step.dice * 3)])


ELECTIONS = {
    "transfer": Action(3, transfer_lead),
    "elector mode": Action(2, set_mode),
}


# -- metadata ---------------------------------------------------------------------------------------------------------------

def _proposers(world: CampaignWorld, node: SimulatedNode) -> list[SimulatedNode]:
    """Return the nodes at which a change is proposed: all that act as leader, else `node`, which will refuse it."""
    leaders = [each for each in world.believed() if not each.paused]
    return leaders or ([node] if node.up and not node.paused else [])


def assign_queue(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    uri = f"bmq://bmq.test.persistent.priority/q{int(step.dice * URIS)}"
    for each in _proposers(world, node):
        change = AssignQueue(uri, APPS[:int(step.share * 3)] or ("__default",), _timer(world))
        world.propose(each, change, partial(_assigned, world), uri)


def _assigned(world: CampaignWorld, queue: QueueRecord) -> None:
    world.notify_judges(lambda judge: judge.on_queue_assigned(queue.uri, queue.key))


def unassign_queue(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    uri = f"bmq://bmq.test.persistent.priority/q{int(step.dice * URIS)}"
    for each in _proposers(world, node):
        world.propose(each, UnassignQueue(uri), uri=uri)


def update_apps(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for each in _proposers(world, node):
        queues = sorted(uri for uri in each.broker.clusters[CLUSTER].metadata.state.queues if uri not in APPS_OF_CLIENTS)
        if queues:
            uri = queues[int(step.dice * len(queues))]
            has = list(each.broker.clusters[CLUSTER].metadata.state.queues[uri].apps)
            removed = has[:1] if step.share < 0.5 and len(has) > 1 else []
            world.propose(each, UpdateApps(uri, [f"x{world.proposals}"], removed, _timer(world)), uri=uri)


def assign_partitions(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for each in _proposers(world, node):
        world.propose(each, AssignPartitions([int(node.name[1:])], []))


def isolate_leader(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Isolate a leader while it processes proposals."""
    for each in world.believed():
        if each.paused:
            continue
        if step.share < 0.5:
            assign_queue(world, node, other, step)
            world.play(world.now + step.share / 100)
        isolate_node(world, each, other, step)
        assign_queue(world, node, other, step)
        return


METADATA = {
    "assign": Action(16, assign_queue),
    "unassign": Action(4, unassign_queue),
    "queue apps": Action(5, update_apps),
    "partitions": Action(3, assign_partitions),
    "isolate leader": Action(5, isolate_leader),
}


# -- partitions, with clients at work ---------------------------------------------------------------------------------------

def _at_primary(action: Perform) -> Perform:
    """Return the action with the primary of a random partition as its node."""
    def perform(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
        for each in world.primaries(int(step.dice * 2))[:1]:
            action(world, each, other, step)
    return perform


def pause_longer_than_lease(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Pause the node for 4 to 12 s, longer than the lease time."""
    pause_process(world, node, other, replace(step, share=0.5 + step.share))


def isolate_busy_primary(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Isolate a primary, in both directions or outgoing, while producers post a burst; it may crash, too."""
    for each in world.machines:
        if each is not node and (each is not other or step.share < 0.6):
            world.network.cut(node.name, each.name, both=step.dice < 0.7)
    post_bursts(world, node, other, step)
    world.play(world.now + step.share / 20)
    if step.share < 0.5 and node.up:
        node.crash(power=step.share < 0.2, down=step.dice * DOWN_S)


def flip_bit(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Flip a bit in a file of the node, unless a node is down or has damage: the data of a message, or, unless a change of
    the members may empty another disk, its journal after a kill.

    So a majority of the disks stays intact.
    """
    if step.dice < 0.5:
        flip_live_data(world, node, step, FLIP_ATTEMPTS)
        return
    may_flip = world.change is None and _is_undamaged(world)
    found = [(path, where) for hosted in world.replication(node).hosted if not hosted.busy
             for path, where in detectable_positions(hosted) if path in node.disk.paths()] if may_flip else []
    if found:
        node.crash(power=False, down=0.01 + step.share * DOWN_S)
        path, where = found[int(step.dice * len(found))]
        node.disk.flip(path, where, 1 << int(step.share * 8))
        world.damaged.add(node.name)
        world.counts["bits flipped"] += 1


def _is_undamaged(world: CampaignWorld) -> bool:
    """Return whether all of at least three nodes are up, and no log or live message is damaged."""
    if len(world.machines) < 3 or len(world.intact_members()) < len(world.machines) or not all(
            each.up for each in world.machines):
        return False
    all_hosted = [hosted for each in world.machines for hosted in world.replication(each).hosted]
    return not any(hosted.busy or hosted.machine.standing.doubt for hosted in all_hosted) and not any(
        True for _ in damaged_messages(all_hosted))


def flip_live_data(world: CampaignWorld, node: SimulatedNode, step: Step, attempts: int) -> None:
    """Flip a bit in the data of a message that all nodes store, as soon as there is one; then the node scrubs, or is killed,
    or a read finds the damage."""
    if world.faults_ended:
        return
    replications = [world.replication(each) for each in world.machines] if _is_undamaged(world) else []
    for hosted in world.replication(node).hosted if replications else ():
        durable = min(each.hosted[hosted.index].partition.durable_psn for each in replications)
        durable = min(durable, complete_psn(hosted))
        found = [message for message in hosted.partition.state.live_messages() if message.size
                 and (message.lease, message.sequence) <= durable]
        if not found:
            continue
        message, files = found[int(step.share * len(found))], hosted.partition.files
        node.disk.flip(files.directory.path(files.current.base, FileType.DATA), hosted.partition.payloads.offset(message)
                       + DATA_HEADER.size + len(message.options), 1 << int(step.dice * 16))
        world.counts["live data flipped"] += 1
        if step.share < 0.4:
            node.broker.scrubbing.begin(node.local_now)
            node.request_turn()
        elif step.share < 0.7:
            node.crash(power=False, down=0.01 + step.share * DOWN_S)
        return
    if attempts > 1:
        world.at(world.now + FLIP_RETRY_S, partial(flip_live_data, world, node, step, attempts - 1))


def complete_psn(hosted: HostedPartition) -> Psn:
    """Return the PSN of the newest record of a journal that two later sync points show as complete."""
    files, partition = hosted.partition.files, hosted.partition
    end = files.current.journal.end - RECORD_BYTES * len(partition.tail.journal)
    sync_points = 0
    for at in range(end - RECORD_BYTES, JOURNAL_HEADER_BYTES - 1, -RECORD_BYTES):
        record = RECORD.unpack(files.read_journal(at, RECORD_BYTES))
        if sync_points >= SYNC_POINTS:
            return record[1], record[0] & SEQUENCE_MASK
        sync_points += is_sync_point(record)
    return NO_PSN


def detectable_positions(hosted: HostedPartition) -> list[tuple[str, int]]:
    """Return (path, offset) of the bytes whose damage is detected.

    These are the end of the sequence number and the end of the record, in records that two later sync points show as
    complete; a record has no checksum.
    """
    files, found = hosted.partition.files, list[tuple[str, int]]()
    path = files.directory.path(files.current.base, FileType.JOURNAL)
    end = files.current.journal.end - RECORD_BYTES * len(hosted.partition.tail.journal)
    sync_points = 0
    for at in range(end - RECORD_BYTES, JOURNAL_HEADER_BYTES - 1, -RECORD_BYTES):
        if sync_points >= SYNC_POINTS:
            found += [(path, at + _SEQUENCE_AT), (path, at + RECORD_BYTES - 1)]
        sync_points += is_sync_point(RECORD.unpack(files.read_journal(at, RECORD_BYTES)))
    return found


def restart_in_turn(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Rolling restart: stop and start one node after the other."""
    def restart(each: SimulatedNode) -> None:
        if each.up and not each.paused and not world.faults_ended and not world.undisturbed:
            each.stop(down=step.share)
    for number, each in enumerate(world.machines):
        world.at(world.now + number * ROLLING_S * step.dice, partial(restart, each))


def post_bursts(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Let all producers post a burst."""
    for client in world.campaign_clients:
        if isinstance(client, CampaignProducer):
            client.post_burst()


def lose_acks(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Let producers post a burst and lose all ACKs, then kill the primary: they will send stored PUTs again."""
    producers = [client for client in world.campaign_clients if isinstance(client, CampaignProducer)]
    for each in producers:
        each.drop_acks = True
    post_bursts(world, node, other, step)
    world.play(world.now + 0.2 + step.share)
    kill_process(world, node, other, step)
    for each in producers:
        each.disconnect("cut")


def set_replication_factor(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Set the replication factor at all nodes: a majority or more."""
    size = len(world.machines)
    for each in world.machines:
        _set_factor(each, size // 2 + 1 + int(step.dice * (size - size // 2)))


def _set_factor(node: SimulatedNode, number: int) -> None:
    if node.up and not node.paused:
        node.act(lambda: node.broker.clusters[CLUSTER].set_replication_factor(number))
        node.request_turn()


def _command(node: SimulatedNode, text: str) -> None:
    if node.up and not node.paused:
        node.act(lambda: node.broker.commands.run_at_once(text, "campaign") and None)
        node.request_turn()


def roll_over(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    _command(node, f"CLUSTERS CLUSTER {CLUSTER} STORAGE PARTITION ALL ROLLOVER")


def purge_queue(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    uri = (STRONG, EVENTUAL, FANOUT)[int(step.share * 3)]
    domain, _, queue = uri.removeprefix("bmq://").partition("/")
    for each in world.machines:
        world.message_judge.on_purge(uri)
        _command(each, f"DOMAINS DOMAIN {domain} QUEUE {queue} PURGE *")


def update_domain_apps(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Add an app to the domain of the fanout queue, or remove it."""
    apps = (*APPS_OF_CLIENTS[FANOUT], EXTRA_APP)
    world.domains.texts["campaign.fanout"] = domain_text("campaign.fanout", apps if step.share < 0.5 else apps[:-1])
    world.undecided[FANOUT] += 1  # never decremented: the commit is not reported
    for each in world.machines:
        _command(each, "DOMAINS RECONFIGURE campaign.fanout")


def disturb_proxy(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Kill or pause a proxy, or reset one of its connections."""
    each = world.proxies[int(step.dice * len(world.proxies))]
    (kill_process if step.share < 0.4 else pause_process if step.share < 0.6 else reset_connection)(world, each, other, step)


def disconnect_client(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Cut the connection of a client, in 30 % of cases without notice to the broker."""
    world.campaign_clients[int(step.dice * len(world.campaign_clients))].disconnect("vanish" if step.share < 0.3 else "cut")


PARTITIONS = {
    "kill primary": Action(8, _at_primary(kill_process)),
    "power primary": Action(6, _at_primary(lose_power)),
    "disk death primary": Action(4, _at_primary(kill_at_disk_step)),
    "pause primary": Action(4, _at_primary(pause_longer_than_lease)),
    "isolate busy primary": Action(12, _at_primary(isolate_busy_primary)),
    "one way primary": Action(4, _at_primary(cut_one_way)),
    "isolate primary": Action(4, _at_primary(isolate_node)),
    "syncs fail primary": Action(2, _at_primary(fail_syncs)),
    "writes fail primary": Action(2, _at_primary(fail_writes)),
    "full primary": Action(2, _at_primary(limit_disk_space)),
    "lost acks": Action(6, _at_primary(lose_acks)),
    "burst": Action(8, post_bursts),
    "bit rot": Action(4, flip_bit),
    "restart all": Action(3, restart_in_turn),
    "replication factor": Action(2, set_replication_factor),
    "rollover": Action(6, roll_over),
    "purge": Action(2, purge_queue),
    "domain apps": Action(2, update_domain_apps),
    "proxy": Action(4, disturb_proxy),
    "disconnect": Action(6, disconnect_client),
}


def _timer(world: CampaignWorld) -> int:
    return int(world.now * 1e9) + world.proposals


OPERATORS = {
    "founded alone": Action(2, found_alone),
    "old copy": Action(6, restore_old_copy),
    "members": Action(6, change_members),
    "removed returns": Action(2, start_removed),
    "release": Action(4, change_release),
}
ACTIONS: dict[str, Action] = PROCESSES | NETWORK | DISKS | ELECTIONS | METADATA | OPERATORS
WEIGHTS = {name: action.weight for name, action in ACTIONS.items()}
ACTIONS |= PARTITIONS
CLIENT_WEIGHTS = {name: action.weight for name, action in ACTIONS.items()}


def act(world: CampaignWorld, step: Step) -> None:
    """Perform a step."""
    leaders = world.believed()
    node = (leaders[0] if leaders else world.machines[0]) if step.node == LEADER else world.node_by_number(step.node)
    world.counts[step.kind] += 1
    ACTIONS[step.kind].perform(world, node, world.node_by_number(step.other), step)


def end_faults(world: CampaignWorld) -> None:
    """End all faults and let clients drain."""
    world.faults_ended = True
    correct_all(world)
    upgrade_all(world)
    stop_removed(world)
    heal_links(world, world.machines[0], world.machines[0], NOTHING)
    end_link_delays(world, world.machines[0], world.machines[0], NOTHING)
    for node in world.machines:
        if node.paused:
            node.resume()
        node.clear_disk_faults()
        if node.up:
            _leadership(node).set_mode(ElectionMode.NORMAL)
            node.broker.scrubbing.begin(node.local_now)
            _repair(world, node)
    for each in world.proxies:
        if each.paused:
            each.resume()
    for client in world.campaign_clients:
        client.drain()


def _repair(world: CampaignWorld, node: SimulatedNode) -> None:
    """Act as an operator: restart a node with a failed partition, else restore the replication factor."""
    if any(partition.log.closed for partition in world.cluster(node.name).partitions):
        node.crash(power=False, down=0.5)
    elif len(world.machines) > 1:
        _set_factor(node, len(world.machines) // 2 + 1)


NOTHING = Step("nothing", 1, 1, 0.0, 0.0, 0.0)
