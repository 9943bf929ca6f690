"""What may happen, by name: how often it is drawn, and what it does."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from kit.disks import fill_disk

from bmqtwist.cluster.changes import AssignPartitions, AssignQueue, UnassignQueue, UpdateApps
from bmqtwist.cluster.election_events import ElectionMode
from bmqtwist.cluster.state import QueueRecord
from bmqtwist.member.leadership import Leadership
from bmqtwist.member.partition_logs import HostedPartition
from bmqtwist.storage.found_log import SYNC_POINTS
from bmqtwist.storage.journal import is_sync_point
from bmqtwist.storage.records import RECORD, RECORD_BYTES, FileType
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.network import ConnectionEnd
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.clients import CampaignProducer
from sim.campaign.judges import durable_vote
from sim.campaign.messages import APPS as APPS_OF_CLIENTS
from sim.campaign.messages import EVENTUAL, EXTRA_APP, FANOUT, STRONG, domain_text
from sim.campaign.schedule import LEADER, Step
from sim.campaign.world import CampaignWorld

DOWN_S, PAUSED_S, SLOW_S, SLOW_DISK_S, JUMP_S = 8.0, 8.0, 1.5, 3.0, 4.0  # at most
ROLLING_S = 9.0  # between the stops of two nodes
_SEQUENCE_AT = 7  # the last byte of a record's sequence number
URIS = 12  # that queues are assigned and forgotten under
APPS = ("a", "b", "c")

Do = Callable[[CampaignWorld, SimulatedNode, SimulatedNode, Step], None]


@dataclass(frozen=True, slots=True)
class Action:
    """`do` is told the world, the node and the other node of the step, and the step."""

    weight: int
    do: Do


def _leadership(node: SimulatedNode) -> Leadership:
    return node.broker.clusters[CLUSTER].leadership


# -- processes ------------------------------------------------------------------------------------------------------------

def kill(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node.up:
        node.crash(power=False, down=step.share * DOWN_S)


def power(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """What was not synced is lost or torn."""
    if node.up:
        node.crash(power=True, down=step.share * DOWN_S, silently=step.dice < 0.3)


def die(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Between two operations on the disk, soon."""
    if node.up:
        node.disk.stop_after = node.disk.steps + int(step.share * 8)


def stop(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if not node.paused:
        node.stop(down=step.share * DOWN_S / 2)


def blackout(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for each in world.machines:
        if each.up:
            each.crash(power=True, down=step.share)


def pause(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node.up and not node.paused:
        node.pause()
        run, end = node.run_number, world.now + step.share * PAUSED_S
        world.at(end, lambda: node.resume() if node.run_number == run and node.paused else None)


def jump(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Its clocks jump: the monotonic one as after a suspended machine, the other one in either direction."""
    node.jump(step.share * JUMP_S, wall=(step.dice - 0.5) * 7200)


def half_open(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Its machine dies: nobody is told that connections with it are gone."""
    if node.up:
        node.crash(power=True, down=step.share * DOWN_S, silently=True)


PROCESSES = {"kill": Action(8, kill), "power": Action(6, power), "die": Action(4, die), "stop": Action(4, stop),
             "blackout": Action(2, blackout), "half open": Action(3, half_open),
             "pause": Action(6, pause), "jump": Action(2, jump)}


# -- the network ------------------------------------------------------------------------------------------------------------

def cut(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node is not other:
        world.network.cut(node.name, other.name)


def one_way(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node is not other:
        world.network.cut(node.name, other.name, both=False)


def split(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Into two groups; the share says who is in which."""
    mask = int(step.share * (1 << len(world.machines)))
    for one in world.machines:
        for two in world.machines:
            if mask >> int(one.name[1:]) - 1 & 1 and not mask >> int(two.name[1:]) - 1 & 1:
                world.network.cut(one.name, two.name)


def isolate(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for each in world.machines:
        if each is not node:
            world.network.cut(node.name, each.name)


def heal(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for one in world.machines:
        for two in world.machines:
            if one is not two:
                world.network.heal(one.name, two.name, both=False)


def reset(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """One of its connections breaks, with what is under way."""
    ends = [session.transport for session in node.broker.sessions.open if isinstance(session.transport, ConnectionEnd)]
    if node.up and ends:
        ends[int(step.dice * len(ends))].reset()


def slow(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node is not other:
        world.network.slow(node.name, other.name, step.share * SLOW_S)


def fast(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for one in world.machines:
        for two in world.machines:
            world.network.slow(one.name, two.name, 0.0)


NETWORK = {"cut": Action(5, cut), "one way": Action(4, one_way), "split": Action(4, split), "isolate": Action(4, isolate),
           "heal": Action(12, heal), "reset": Action(8, reset), "slow": Action(4, slow), "fast": Action(2, fast)}


# -- disks ------------------------------------------------------------------------------------------------------------------

def _fail(node: SimulatedNode, wanted: str) -> None:
    node.disk.fail = lambda operation, path: errno.EIO if operation == wanted else None


def syncs_fail(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    _fail(node, "sync")


def writes_fail(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    _fail(node, "write")


def full(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    fill_disk(node, int(step.share * 200))


def mend(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for each in world.machines:
        each.clear_disk_faults()


def slow_disk(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Whatever it syncs takes long."""
    node.disk_delay_s = step.share * SLOW_DISK_S


def vote_lost(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """It dies, and its file is not readable when it comes back. No two at a time: nobody could tell then."""
    if node.up and len(world.machines) > 1 and not any(durable_vote(each)[1] for each in world.machines):
        node.crash(power=False, down=0.01 + step.share * DOWN_S)
        world.damage_vote(node)


DISKS = {"syncs fail": Action(2, syncs_fail), "writes fail": Action(2, writes_fail), "full": Action(2, full),
         "slow disk": Action(3, slow_disk), "mend": Action(5, mend), "vote lost": Action(2, vote_lost)}


# -- elections --------------------------------------------------------------------------------------------------------------

def transfer(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node.up and not node.paused:
        _leadership(node).transfer(int(other.name[1:]))


def mode(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    if node.up and not node.paused:
        _leadership(node).set_mode(list(ElectionMode)[int(step.dice * 3)])


ELECTIONS = {"transfer": Action(3, transfer), "mode": Action(2, mode)}


# -- metadata ---------------------------------------------------------------------------------------------------------------

def _askable(world: CampaignWorld, node: SimulatedNode) -> list[SimulatedNode]:
    """All that believe to lead; else one that will refuse."""
    asked = [each for each in world.believed() if not each.paused]
    return asked or ([node] if node.up and not node.paused else [])


def assign(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    uri = f"bmq://bmq.test.persistent.priority/q{int(step.dice * URIS)}"
    for each in _askable(world, node):
        change = AssignQueue(uri, APPS[:int(step.share * 3)] or ("__default",), _timer(world))
        world.propose(each, change, partial(_assigned, world), uri)


def _assigned(world: CampaignWorld, queue: QueueRecord) -> None:
    world.ask(lambda judge: judge.assigned(queue.uri, queue.key))


def unassign(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    uri = f"bmq://bmq.test.persistent.priority/q{int(step.dice * URIS)}"
    for each in _askable(world, node):
        world.propose(each, UnassignQueue(uri), uri=uri)


def apps(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for each in _askable(world, node):
        queues = sorted(uri for uri in each.broker.clusters[CLUSTER].metadata.state.queues if uri not in APPS_OF_CLIENTS)
        if queues:
            uri = queues[int(step.dice * len(queues))]
            has = list(each.broker.clusters[CLUSTER].metadata.state.queues[uri].apps)
            removed = has[:1] if step.share < 0.5 and len(has) > 1 else []
            world.propose(each, UpdateApps(uri, [f"x{world.proposals}"], removed, _timer(world)), uri=uri)


def partitions(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for each in _askable(world, node):
        world.propose(each, AssignPartitions([int(node.name[1:])], []))


def strand(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """A leader is cut off with what it was just asked for."""
    for each in world.believed():
        if each.paused:
            continue
        if step.share < 0.5:
            assign(world, node, other, step)
            world.play(world.now + step.share / 100)
        isolate(world, each, other, step)
        assign(world, node, other, step)
        return


METADATA = {"assign": Action(16, assign), "unassign": Action(4, unassign), "apps": Action(5, apps),
            "partitions": Action(3, partitions), "strand": Action(5, strand)}


# -- partitions, with clients at work ---------------------------------------------------------------------------------------

def _at_primary(what: Do) -> Do:
    """The same with the primary of a partition."""
    def do(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
        for each in world.primaries(int(step.dice * 2))[:1]:
            what(world, each, other, step)
    return do


def long_pause(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Longer than its lease lasts."""
    pause(world, node, other, replace(step, share=0.5 + step.share))


def strand_primary(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """It is cut off, or can be heard by nobody, while clients post at it; it may die with that."""
    for each in world.machines:
        if each is not node and (each is not other or step.share < 0.6):
            world.network.cut(node.name, each.name, both=step.dice < 0.7)
    press(world, node, other, step)
    world.play(world.now + step.share / 20)
    if step.share < 0.5 and node.up:
        node.crash(power=step.share < 0.2, down=step.dice * DOWN_S)


def rot(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """It dies, and bits of one of its files are not what they were when it comes back. No two at a time: a majority keeps
    its disks."""
    all_hosted = [hosted for each in world.machines if each.up for hosted in world.replication(each).hosted] if (
        len(world.machines) > 2) else []
    if not all_hosted or not all(each.up for each in world.machines) or any(
            hosted.machine.standing.doubtful for hosted in all_hosted):
        return
    found = [(path, where) for hosted in world.replication(node).hosted if not hosted.busy
             for path, where in safe_places(hosted) if path in node.disk.paths()]
    if found:
        node.crash(power=False, down=0.01 + step.share * DOWN_S)
        path, where = found[int(step.dice * len(found))]
        node.disk.flip(path, where, 1 << int(step.share * 8))
        world.counts["bits flipped"] += 1


def safe_places(hosted: HostedPartition) -> list[tuple[str, int]]:
    """Bytes of records that were safe, as two sync points behind each say: path and offset. The format has no sum over a
    record: what says that it is one, and which, is looked at."""
    files, found = hosted.partition.files, list[tuple[str, int]]()
    path = files.directory.path(files.current.base, FileType.JOURNAL)
    end = files.current.journal.end - RECORD_BYTES * len(hosted.partition.tail.journal)
    sync_points = 0
    for at in range(end - RECORD_BYTES, JOURNAL_HEADER_BYTES - 1, -RECORD_BYTES):
        if sync_points >= SYNC_POINTS:
            found += [(path, at + _SEQUENCE_AT), (path, at + RECORD_BYTES - 1)]
        sync_points += is_sync_point(RECORD.unpack(files.read_journal(at, RECORD_BYTES)))
    return found


def restart_all(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """A rolling restart: one node after the other is stopped and started."""
    def restart(each: SimulatedNode) -> None:
        if each.up and not each.paused and not world.over:
            each.stop(down=step.share)
    for number, each in enumerate(world.machines):
        world.at(world.now + number * ROLLING_S * step.dice, partial(restart, each))


def press(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Clients post much at once."""
    for client in world.clients_at_work:
        if isinstance(client, CampaignProducer):
            client.press()


def lost_acks(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """What is posted is stored, perhaps confirmed; no producer hears of it before the primary dies."""
    producers = [client for client in world.clients_at_work if isinstance(client, CampaignProducer)]
    for each in producers:
        each.deaf = True
    press(world, node, other, step)
    world.play(world.now + 0.2 + step.share)
    kill(world, node, other, step)
    for each in producers:
        each.leave("cut")


def factor(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """So many nodes must have a record, a majority at least."""
    size = len(world.machines)
    for each in world.machines:
        _set_factor(each, size // 2 + 1 + int(step.dice * (size - size // 2)))


def _set_factor(node: SimulatedNode, number: int) -> None:
    if node.up and not node.paused:
        node.act(lambda: node.broker.clusters[CLUSTER].set_replication_factor(number))
        node.turn_due()


def _command(node: SimulatedNode, text: str) -> None:
    if node.up and not node.paused:
        node.act(lambda: node.broker.commands.run_at_once(text, "campaign") and None)
        node.turn_due()


def roll(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    _command(node, f"CLUSTERS CLUSTER {CLUSTER} STORAGE PARTITION ALL ROLLOVER")


def purge(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    uri = (STRONG, EVENTUAL, FANOUT)[int(step.share * 3)]
    domain, _, queue = uri.removeprefix("bmq://").partition("/")
    for each in world.machines:
        world.messages.purged(uri)
        _command(each, f"DOMAINS DOMAIN {domain} QUEUE {queue} PURGE *")


def more_apps(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """The domain of the fanout queue has one app more, or one less again."""
    apps = (*APPS_OF_CLIENTS[FANOUT], EXTRA_APP)
    world.domains.texts["campaign.fanout"] = domain_text("campaign.fanout", apps if step.share < 0.5 else apps[:-1])
    world.unsettled[FANOUT] += 1  # for ever: nobody is told when the metadata have it
    for each in world.machines:
        _command(each, "DOMAINS RECONFIGURE campaign.fanout")


def proxy(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """A proxy dies, or is paused, or loses a connection."""
    each = world.proxies[int(step.dice * len(world.proxies))]
    (kill if step.share < 0.4 else pause if step.share < 0.6 else reset)(world, each, other, step)


def leave(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """A client loses its connection."""
    world.clients_at_work[int(step.dice * len(world.clients_at_work))].leave("vanish" if step.share < 0.3 else "cut")


PARTITIONS = {"kill primary": Action(8, _at_primary(kill)), "power primary": Action(6, _at_primary(power)),
              "die primary": Action(4, _at_primary(die)), "pause primary": Action(4, _at_primary(long_pause)),
              "strand primary": Action(12, _at_primary(strand_primary)),
              "one way primary": Action(4, _at_primary(one_way)), "isolate primary": Action(4, _at_primary(isolate)),
              "syncs fail primary": Action(2, _at_primary(syncs_fail)),
              "writes fail primary": Action(2, _at_primary(writes_fail)), "full primary": Action(2, _at_primary(full)),
              "lost acks": Action(6, _at_primary(lost_acks)), "press": Action(8, press),
              "rot": Action(4, rot), "restart all": Action(3, restart_all), "factor": Action(2, factor),
              "roll": Action(6, roll), "purge": Action(2, purge),
              "more apps": Action(2, more_apps), "proxy": Action(4, proxy), "leave": Action(6, leave)}


def _timer(world: CampaignWorld) -> int:
    return int(world.now * 1e9) + world.proposals


ACTIONS: dict[str, Action] = PROCESSES | NETWORK | DISKS | ELECTIONS | METADATA
WEIGHTS = {name: action.weight for name, action in ACTIONS.items()}
ACTIONS |= PARTITIONS
CLIENT_WEIGHTS = {name: action.weight for name, action in ACTIONS.items()}


def act(world: CampaignWorld, step: Step) -> None:
    """Do a step."""
    leaders = world.believed()
    node = (leaders[0] if leaders else world.machines[0]) if step.node == LEADER else world.by_number(step.node)
    world.counts[step.kind] += 1
    ACTIONS[step.kind].do(world, node, world.by_number(step.other), step)


def calm(world: CampaignWorld) -> None:
    """Nothing fails any more."""
    world.over = True
    heal(world, world.machines[0], world.machines[0], NOTHING)
    fast(world, world.machines[0], world.machines[0], NOTHING)
    for node in world.machines:
        if node.paused:
            node.resume()
        node.clear_disk_faults()
        if node.up:
            _leadership(node).set_mode(ElectionMode.NORMAL)
            _put_right(world, node)
    for each in world.proxies:
        if each.paused:
            each.resume()
    for client in world.clients_at_work:
        client.settle_down()


def _put_right(world: CampaignWorld, node: SimulatedNode) -> None:
    """As an operator does when a disk has failed, and when another number of replicas was tried."""
    if any(partition.log.broken for partition in world.cluster(node.name).partitions):
        node.crash(power=False, down=0.5)
    elif len(world.machines) > 1:
        _set_factor(node, len(world.machines) // 2 + 1)


NOTHING = Step("nothing", 1, 1, 0.0, 0.0, 0.0)
