"""Old copies in a campaign: the storage directory of a node, or one part of it, as it was earlier.

A node detects lost files by itself, but not an old copy of complete ones: the leader detects it, because it remembers what
the node has acknowledged, until it restarts. So an old copy is drawn only while all other members run undisturbed, until
the node is known to be recovering, or has all records. An old copy that returns together with a restart of the other
members is documented as undetectable.

M8  A node whose ledger lacks records that it has acknowledged to the leader gets a new incarnation.

`actions.py` has the action.
"""

from __future__ import annotations

from collections.abc import Callable

from bmqtwist.cluster.electorate import MemberState
from bmqtwist.storage.ledger_file import LEDGER_SUFFIX, read_ledger
from bmqtwist.storage.slot_file import PromiseFile, VoteFile
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import NO_LSN, Lsn
from sim.campaign.judges import Loss, Violation
from sim.campaign.schedule import Step
from sim.campaign.world import CampaignWorld

DETECTED_S = 30.0  # until an old copy is detected, or has all records
READY_S = 20.0  # until all other members are ready
DOWN_S = 5.0
_ALL_PARTITIONS = (0, 1)
# part -> whether a file belongs to it, its meaning for the judges
PARTS: dict[str, tuple[Callable[[str], bool], Loss]] = {
    "directory": (lambda name: True, Loss(True, True, True, _ALL_PARTITIONS, True)),
    "ledger": (lambda name: name.endswith(LEDGER_SUFFIX), Loss(metadata=True, is_old=True)),
    "vote": (lambda name: name == VoteFile.name, Loss(vote=True, is_old=True)),
    "promises": (lambda name: name == PromiseFile.name, Loss(promises=True, is_old=True)),
    "partition": (lambda name: name.startswith("bmq_0."), Loss(partitions=(0,), is_old=True)),
    "partitions": (lambda name: name.startswith(("bmq_0.", "bmq_1.")), Loss(partitions=_ALL_PARTITIONS, is_old=True)),
}


def restore_old_copy(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Copy the storage of all nodes as a loss of power would leave it; if there is a copy, stop a node and restore its."""
    if len(world.machines) < 3 or world.change is not None or world.mistaken or node.name not in world.intact_members():
        return
    if node.name not in world.copies:
        world.copies = {each.name: {path: bytes(file.durable) for path, file in each.disk._durable_names.items()}
                        for each in world.machines}
        return
    _end_disturbance(world)
    node.crash(power=False, down=None)
    others = [each for each in world.machines if each is not node]
    until = world.now + READY_S
    while world.now < until and not _is_ready(world, others):
        world.run(0.1)
    if _is_ready(world, others):
        world.run(step.share * DOWN_S)
    if _is_ready(world, others):
        leader, part = world.believed()[0], list(PARTS)[int(step.dice * len(PARTS) * 2) % len(PARTS)]
        replace_files(world, node, part, world.copies.pop(node.name))
        world.counts[f"old copy of {part}"] += 1
        _watch(world, node, leader, part)
    else:
        node.boot()
    world.undisturbed = False


def _is_ready(world: CampaignWorld, nodes: list[SimulatedNode]) -> bool:
    """Return whether these nodes are intact members, and one of them leads them."""
    intact = world.intact_members()
    return all(each.up and each.name in intact and not world.cluster(each.name).unavailable for each in nodes) and len(
        world.believed()) == 1


def replace_files(world: CampaignWorld, node: SimulatedNode, part: str, files: dict[str, bytes]) -> None:
    """Replace the files of one part, of a stopped node, by a copy."""
    belongs, loss = PARTS[part]
    world.notify_judges(lambda judge: judge.on_storage_lost(node, loss))
    for path in node.disk.paths():
        if belongs(path.rpartition("/")[2]):
            node.disk.remove(path)
            node.disk.sync_directory(path.rpartition("/")[0])
    for path, data in files.items():
        if belongs(path.rpartition("/")[2]):
            node.disk.put(path, data)


def _end_disturbance(world: CampaignWorld) -> None:
    world.undisturbed = True
    world.network.heal_all()
    for each in world.machines:
        each.clear_disk_faults()
        if each.up and each.paused:
            each.resume()


def _watch(world: CampaignWorld, node: SimulatedNode, leader: SimulatedNode, part: str) -> None:
    """Start the node, and run until its copy is detected or has all records."""
    number, led = int(node.name[1:]), world.cluster(leader.name).metadata.log.leader_term
    acknowledged = led.followers[number].durable if led is not None else NO_LSN
    copied = _last_lsn(node)
    must_detect = copied < acknowledged
    before = _incarnation(world, number)
    node.boot()
    until, detected = world.now + DETECTED_S, False
    while not detected and world.now < until:
        world.run(0.05)
        if node.up and world.cluster(node.name).leadership.active:
            member = world.cluster(node.name)
            detected = _incarnation(world, number) != before or member.leadership.member_state[0] is MemberState.RECOVERING
            if not must_detect and not member.unavailable:
                break
    if must_detect and not detected and world.believed() == [leader]:
        raise Violation("M8", f"{node.name} has an old copy of its {part}, up to {copied} instead of "
                        f"{tuple(acknowledged)}, and is still registered")


def _incarnation(world: CampaignWorld, number: int) -> int:
    members = world.members
    return next((each.incarnation for each in members.nodes if each.node_id == number), 0) if members is not None else 0


def _last_lsn(node: SimulatedNode) -> Lsn:
    paths = [path for path in node.disk.paths() if path.endswith(LEDGER_SUFFIX)]
    records = [each.record for path in paths for each in read_ledger(node.disk.content(path)).entries]
    return max(((record.term, record.sequence_number) for record in records), default=NO_LSN)
