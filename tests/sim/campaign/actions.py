"""What may happen, by name: how often it is drawn, and what it does."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bmqtwist.cluster.changes import AssignPartitions, AssignQueue, UnassignQueue, UpdateApps
from bmqtwist.cluster.election_events import ElectionMode
from bmqtwist.cluster.state import QueueRecord
from bmqtwist.node.leadership import Leadership
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.network import ConnectionEnd
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.judges import durable_vote
from sim.campaign.schedule import LEADER, Step
from sim.campaign.world import CampaignWorld

DOWN_S, PAUSED_S, SLOW_S, JUMP_S = 8.0, 8.0, 1.5, 4.0  # at most
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
        life = node.life
        world.at(world.now + step.share * PAUSED_S, lambda: node.resume() if node.life == life and node.paused else None)


def jump(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Its clocks jump: the monotonic one as after a suspended machine, the other one in either direction."""
    node.jump(step.share * JUMP_S, wall=(step.dice - 0.5) * 7200)


PROCESSES = {"kill": Action(8, kill), "power": Action(6, power), "die": Action(4, die), "stop": Action(4, stop),
             "blackout": Action(2, blackout), "pause": Action(6, pause), "jump": Action(2, jump)}


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
    ends = [session.transport for session in node.broker.sessions if isinstance(session.transport, ConnectionEnd)]
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
    node.fill_disk(int(step.share * 200))


def mend(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    for each in world.machines:
        each.mend()


def vote_lost(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """It dies, and its file is not readable when it comes back. No two at a time: nobody could tell then."""
    if node.up and len(world.machines) > 1 and not any(durable_vote(each)[2] for each in world.machines):
        node.crash(power=False, down=0.01 + step.share * DOWN_S)
        world.damage_vote(node)


DISKS = {"syncs fail": Action(2, syncs_fail), "writes fail": Action(2, writes_fail), "full": Action(2, full),
         "mend": Action(5, mend), "vote lost": Action(2, vote_lost)}


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
        queues = sorted(each.broker.clusters[CLUSTER].metadata.state.queues)
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


def _timer(world: CampaignWorld) -> int:
    return int(world.now * 1e9) + world.proposals


ACTIONS: dict[str, Action] = PROCESSES | NETWORK | DISKS | ELECTIONS | METADATA
WEIGHTS = {name: action.weight for name, action in ACTIONS.items()}


def act(world: CampaignWorld, step: Step) -> None:
    """Do a step."""
    leaders = world.believed()
    node = (leaders[0] if leaders else world.machines[0]) if step.node == LEADER else world.by_number(step.node)
    world.counts[step.kind] += 1
    ACTIONS[step.kind].do(world, node, world.by_number(step.other), step)


def calm(world: CampaignWorld) -> None:
    """Nothing fails any more."""
    heal(world, world.machines[0], world.machines[0], NOTHING)
    fast(world, world.machines[0], world.machines[0], NOTHING)
    for node in world.machines:
        if node.paused:
            node.resume()
        node.mend()
        if node.up:
            _leadership(node).set_mode(ElectionMode.NORMAL)


NOTHING = Step("nothing", 1, 1, 0.0, 0.0, 0.0)
