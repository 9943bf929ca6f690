"""Changes of the members in a campaign, by the steps of an operator: plan, files of all nodes, restarts, the new node.

    begin    as soon as all members have intact storage, which `actions.py` does not destroy from then on
    plan     the admin command at the leader, repeated until it succeeds; omitted in a part of the changes, as by operators
             whose files other tools deploy
    files    one node after the other gets the new list and restarts; meanwhile the files differ
    cancel   a part of the changes is given up while a node still has the former list: the files go back, then the plan ends
    end      the committed list has the wanted nodes as voters, and all of them know it

Faults of the schedule happen between the steps. A removed node may return with its storage and its files. There is one
change at a time. `actions.py` has the actions, `world.py` the files of the nodes (`CampaignWorld.files`) and the removed
nodes (`retired`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from random import Random

from bmqtwist.config.clusters import ClusterNode
from bmqtwist.testing.cluster import PORT
from bmqtwist.testing.config import CLUSTER, member_configuration
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.operator_mistakes import empty_disk
from sim.campaign.schedule import Step
from sim.campaign.world import CampaignWorld

MEMBERS_MAX = 6
STEP_S, LAST_STEPS_S = 4.0, 0.3  # longest time between two steps, and after the end of all faults
DEPLOYED, CANCELLED = 0.25, 0.2  # shares of the changes: without a command, given up
RETURNS = 0.5  # share of the removed nodes that return after the change
RETURN_S = 10.0  # longest time for which a removed node returns

Nodes = tuple[ClusterNode, ...]


class MembershipChange:
    """A change from the nodes of the committed list to `wanted`. `subject`: the node that is added, removed or replaced."""

    def __init__(self, world: CampaignWorld, random: Random, subject: str, wanted: Nodes, command: str) -> None:
        self._world, self._random, self.subject = world, random, subject
        self.wanted, self._command = wanted, command
        self._former = definition_nodes(world)
        self._restarted: list[str] = []  # with the wanted list
        names = sorted({*(each.name for each in self._former), subject})
        random.shuffle(names)
        self._cancel_at = random.randrange(len(names)) if random.random() < CANCELLED else -1
        self._steps: list[Callable[[], bool]] = [self._is_intact]
        self._steps += [] if random.random() < DEPLOYED else [partial(self._plan, command)]
        self._steps += [partial(self._restart, name) for name in names]
        self._after(0.0, self._step)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._world.at(self._world.now + seconds, action)

    def _step(self) -> None:
        """Perform the next step; a step that has no effect is repeated."""
        world = self._world
        if not self._steps:
            if self._is_complete():
                world.change = None
                world.counts["member changes done"] += 1
                if self._random.random() < RETURNS:
                    self._after(0.0, partial(return_removed, world, self.subject, self._random.random() * RETURN_S))
                return
        elif self._steps[0]():
            del self._steps[0]
        if len(self._steps) == self._cancel_at + 1 and self._cancel_at >= 0 and not self._is_committed():
            self._cancel()
        self._after(LAST_STEPS_S if world.faults_ended else self._random.random() * STEP_S, self._step)

    def _cancel(self) -> None:
        """Give up the change, which is not committed yet."""
        self._world.counts["member changes cancelled"] += 1
        self.wanted, self._cancel_at = self._former, -1
        self._steps = [partial(self._restart, name) for name in self._restarted]
        self._steps.append(partial(self._plan, "CANCEL"))

    def _plan(self, command: str) -> bool:
        """Send a command about the plan to the leader until its effect is committed."""
        members = self._world.members
        if members is not None and bool(members.planned) is (command != "CANCEL"):
            return True
        send_to_leader(self._world, command)
        return False

    def _is_intact(self) -> bool:
        """Return whether all members have intact storage: the operator begins only then."""
        return len(self._world.intact_members()) == len(self._world.machines)

    def _restart(self, name: str) -> bool:
        """Give a node the wanted list and restart it; start a new one, stop one that is removed."""
        world = self._world
        node, own = world.node(name), next((each for each in self.wanted if each.name == name), None)
        self._restarted.append(name)
        if own is None:
            world.retired.add(name)
            node.crash(power=False, down=None)
            return True
        world.files[name] = self.wanted
        if own.endpoint != f"tcp://{node.address}":
            _move(world, node, own)
        elif name in world.retired:
            node.crash(power=False, down=None)  # it may have returned
            if all(each.name != name for each in self._former):
                empty_disk(world, node)
            world.retired.remove(name)
            node.boot()
        elif node.up:
            node.crash(power=self._random.random() < 0.3, down=self._random.random() * 2)
        return True

    def _is_committed(self) -> bool:
        members = self._world.members
        return members is not None and sorted(each.endpoint for each in members.nodes) != sorted(
            each.endpoint for each in self._former)

    def _is_complete(self) -> bool:
        """Return whether all wanted nodes, and no others, are voters, and each of them knows it."""
        world, wanted = self._world, {(each.id, each.endpoint) for each in self.wanted}
        for node in world.machines:
            members = world.cluster(node.name).metadata.state.members if node.up else None
            if members is None or members.planned or not all(each.voting for each in members.nodes) or (
                    {(each.node_id, each.endpoint) for each in members.nodes} != wanted):
                return False
        return True


def send_to_leader(world: CampaignWorld, command: str) -> None:
    """Send a command about the members to the leader."""
    for leader in world.believed():
        if not leader.paused:
            leader.act(partial(leader.broker.commands.run_at_once, f"CLUSTERS CLUSTER {CLUSTER} MEMBERS {command}",
                               "campaign"))
            leader.request_turn()


def definition_nodes(world: CampaignWorld) -> Nodes:
    """Return the nodes in the files of n1, which is never removed, as the proxy p1 has no other upstream."""
    definition, = world.machines[0]._configure().clusters.my_clusters
    return tuple(definition.nodes)


def change_members(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Begin to add, remove or replace a member of a formed cluster, unless a change or a mistake is in progress."""
    if len(world.machines) < 2 or world.members is None or world.change is not None or world.mistaken or world.faults_ended:
        return
    random, former = Random(f"{world.schedule.seed}/{world.now}/members"), definition_nodes(world)
    kinds = ["replace"] + ["add"] * 2 * (len(former) < MEMBERS_MAX) + ["remove"] * 2 * (len(former) > 2)
    kind = random.choice(kinds)
    world.counts[f"members: {kind}"] += 1
    if kind == "add":
        added = _new_node(world, former, random)
        world.change = MembershipChange(world, random, added.name, (*former, added),
                                        f"ADD {added.id} {added.name} {added.endpoint}")
        return
    subject = node if node is not world.machines[0] else world.machines[-1]
    if kind == "remove":
        wanted = tuple(each for each in former if each.name != subject.name)
        world.change = MembershipChange(world, random, subject.name, wanted, f"REMOVE {subject.name}")
        return
    world.replaced += 1
    endpoint = f"tcp://{subject.name}-{world.replaced}:{PORT}"
    wanted = tuple(_at(each, endpoint) if each.name == subject.name else each for each in former)
    world.change = MembershipChange(world, random, subject.name, wanted, f"REPLACE {subject.name} {endpoint}")


def _at(node: ClusterNode, endpoint: str) -> ClusterNode:
    tcp = node.transport.tcp
    assert tcp is not None
    return replace(node, transport=replace(node.transport, tcp=replace(tcp, endpoint=endpoint)))


def _new_node(world: CampaignWorld, former: Nodes, random: Random) -> ClusterNode:
    """Return a new node, or a removed one with empty storage; it does not run yet."""
    known = {each.id for each in former}
    removed = sorted(int(name[1:]) for name in world.retired)
    number = random.choice(removed) if removed and random.random() < 0.5 else 1 + max(known.union(removed))
    name = f"n{number}"
    if name not in world.retired:
        node = SimulatedNode(world.network, name, f"{name}:{PORT}",
                             cache(partial(member_configuration, number, number, PORT, **world.configured)),
                             lambda configuration: world.domains)
        world.retired.add(name)
        world.on_node_created(node)
    return replace(_at(former[0], f"tcp://{world.node(name).address}"), id=number, name=name)


def _move(world: CampaignWorld, node: SimulatedNode, entry: ClusterNode) -> None:
    """Replace a node by a new machine with empty storage, at another address."""
    node.crash(power=False, down=None)
    del world.network._nodes[node.address]
    node.address = entry.endpoint.removeprefix("tcp://")
    world.network.add(node)
    empty_disk(world, node)
    node.boot()


def start_removed(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Start a removed node."""
    found = sorted(world.retired - world.foreign)
    if found:
        return_removed(world, found[int(step.dice * len(found))], step.share * RETURN_S)


def return_removed(world: CampaignWorld, name: str, seconds: float) -> None:
    """Start a removed node with its storage and the files that it had, for some seconds."""
    removed, change = world.node(name), world.change
    if world.faults_ended or name not in world.retired or not removed.run_number or removed.up or (
            change is not None and change.subject == name):
        return
    removed.boot()
    world.counts["removed nodes that return"] += 1
    world.at(world.now + seconds, partial(stop_removed, world))


def stop_removed(world: CampaignWorld) -> None:
    """Stop the removed nodes that run."""
    for name in sorted(world.retired):
        if world.node(name).run_number:
            world.node(name).crash(power=False, down=None)
