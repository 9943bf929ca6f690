"""Mistakes of operators in a campaign: wrong lists of nodes, swapped directories, and a second cluster of the same name.

A mistake lasts for at most MISTAKEN_S (a second cluster: FOREIGN_S), or until `correct_all`, which `actions.end_faults`
calls. Meanwhile the node does not serve; the judges and the final state show that its mistake had no consequence.
`actions.py` has the actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from bmqtwist.config.broker import Configuration
from bmqtwist.config.clusters import ClusterDefinition, ClusterNode
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.schedule import Step
from sim.campaign.world import EVERYTHING, CampaignWorld

MISTAKEN_S, FOREIGN_S = 12.0, 25.0
RESTARTS_MAX, RESTART_S = 40, 0.25  # of a cluster that was founded by mistake

Mistake = Callable[[ClusterDefinition, ClusterNode], ClusterDefinition]  # of a definition, at a node


def _alone(definition: ClusterDefinition, own: ClusterNode) -> ClusterDefinition:
    return replace(definition, nodes=(own,))


def _one_missing(definition: ClusterDefinition, own: ClusterNode) -> ClusterDefinition:
    others = [node for node in definition.nodes if node is not own]
    return replace(definition, nodes=(own, *others[1:]))


def _one_added(definition: ClusterDefinition, own: ClusterNode) -> ClusterDefinition:
    return replace(definition, nodes=(*definition.nodes, replace(own, id=99, name="n99")))


def _swapped(definition: ClusterDefinition, own: ClusterNode) -> ClusterDefinition:
    """Give each node the name of the next one."""
    nodes = definition.nodes
    return replace(definition, nodes=tuple(replace(one, name=two.name) for one, two in
                                           zip(nodes, (*nodes[1:], nodes[0]), strict=True)))


def _more_partitions(definition: ClusterDefinition, own: ClusterNode) -> ClusterDefinition:
    config = definition.partition_config
    return replace(definition, partition_config=replace(config, num_partitions=config.num_partitions + 1))


MISTAKES: Sequence[Mistake] = (_alone, _alone, _one_missing, _one_added, _swapped, _more_partitions)


def misconfigure(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Restart a member with a wrong list of nodes, or a wrong number of partitions."""
    if len(world.machines) < 2 or world.change is not None or not node.up or node.name in world.mistaken or (
            node.name not in world.intact_members()):
        return
    usual, mistake, number = node._configure, MISTAKES[int(step.dice * len(MISTAKES))], int(node.name[1:])

    def wrong() -> Configuration:
        right = usual()
        definition, = right.clusters.my_clusters
        own = next(each for each in definition.nodes if each.id == number)
        return replace(right, clusters=replace(right.clusters, my_clusters=(mistake(definition, own),)))

    def correct() -> None:
        node._configure = usual
        node.crash(power=False, down=0.1)

    node._configure = wrong
    node.crash(power=False, down=0.1)
    _correct_later(world, correct, step, node)
    world.counts["wrong lists of nodes"] += 1


def found_alone(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Start a member with an empty directory and a list of itself alone, so that it founds a cluster; then correct the list.

    Before that no client reaches the node. It belongs to another history, which the judges do not know; in the end its
    directory is emptied.
    """
    size, remaining = len(world.voters(world.members)), set(world.intact_members()) - {node.name}
    if not node.up or world.change is not None or node.name in world.mistaken or len(world.machines) < 3 or (
            len(remaining) < size - size // 2):
        return
    usual, number = node._configure, int(node.name[1:])
    node.crash(power=False, down=None)
    world.retired.add(node.name)
    world.foreign.add(node.name)
    empty_disk(world, node)
    del world.network._nodes[node.address]
    node._configure = partial(_configuration_of_one, usual, number)
    node.boot()
    restarts = int(step.dice * RESTARTS_MAX)
    for each in range(restarts):  # each begins a new term
        world.at(world.now + (each + 1) * RESTART_S, partial(_restart_foreign, world, node))

    def join() -> None:
        if node.name in world.foreign:
            node._configure = usual
            world.network.add(node)
            node.crash(power=False, down=0.1)

    def correct() -> None:
        node._configure = usual
        world.network.add(node)
        node.crash(power=False, down=None)
        world.foreign.remove(node.name)
        world.retired.remove(node.name)
        empty_disk(world, node)
        node.boot()

    world.at(world.now + (restarts + 1) * RESTART_S, join)
    _correct_later(world, correct, replace(step, share=FOREIGN_S / MISTAKEN_S), node)
    world.counts["clusters founded by mistake"] += 1


def _restart_foreign(world: CampaignWorld, node: SimulatedNode) -> None:
    if node.name in world.foreign:
        node.crash(power=False, down=0.1)


def empty_disk(world: CampaignWorld, node: SimulatedNode) -> None:
    """Give a stopped node an empty disk."""
    world.notify_judges(lambda judge: judge.on_storage_lost(node, EVERYTHING))
    node.disk = MemoryDisk()


def _configuration_of_one(usual: Callable[[], Configuration], number: int) -> Configuration:
    right = usual()
    definition, = right.clusters.my_clusters
    own = next(each for each in definition.nodes if each.id == number)
    return replace(right, clusters=replace(right.clusters, my_clusters=(_alone(definition, own),)))


def swap_directories(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Restart two members, each with the directory of the other one."""
    if node is other or world.change is not None or not node.up or not other.up or (
            {node.name, other.name} & world.mistaken.keys()):
        return

    def swap() -> None:
        for each in (node, other):
            each.crash(power=False, down=0.1)
        node.disk, other.disk = other.disk, node.disk
        for each, former in ((node, other), (other, node)):
            _rename(each, former.name)

    swap()
    _correct_later(world, swap, step, node, other)
    world.counts["directories swapped"] += 1


def _rename(node: SimulatedNode, former: str) -> None:
    disk = node.disk
    for path in disk.paths():
        disk.rename(path, path.replace(f"/memory/{former}/", f"/memory/{node.name}/"))
    for path in disk.paths():
        disk.sync_directory(path.rpartition("/")[0])


def _correct_later(world: CampaignWorld, correct: Callable[[], None], step: Step, *nodes: SimulatedNode) -> None:
    entry = (correct, nodes)
    for node in nodes:
        world.mistaken[node.name] = entry
    world.at(world.now + 1.0 + step.share * MISTAKEN_S, lambda: _correct(world, entry))


def _correct(world: CampaignWorld, entry: tuple[Callable[[], None], tuple[SimulatedNode, ...]]) -> None:
    correct, nodes = entry
    if all(world.mistaken.get(node.name) is entry for node in nodes):
        for node in nodes:
            del world.mistaken[node.name]
        correct()


def correct_all(world: CampaignWorld) -> None:
    """Correct all mistakes now."""
    for entry in list(world.mistaken.values()):
        _correct(world, entry)
