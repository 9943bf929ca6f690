"""Liveness with a broken minority: its disks fail, its storage is lost or old, its list of nodes is wrong, or it is stopped.

The leader is among them. The other members have intact storage, can write, and are connected.

L3  Within LIVE_S another member leads and commits a change, and each partition has an active primary; within ACKED_S all
    posted messages are answered.
L5  A running node that does not serve says why: `/readyz` has a reason, with the name of its state if that is not MEMBER, or
    with its disk fault.

ACKED_S includes the time that a client of `clients.py` needs to find another node: it leaves a silent one after 7 to 9 s.
`play.py` calls it for every third seed, when all faults have ended.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from random import Random

from kit.disks import fail_file, fill_disk, make_read_only

from bmqtwist.cluster.changes import AssignQueue
from bmqtwist.cluster.electorate import MemberState
from bmqtwist.storage.ledger_file import LEDGER_SUFFIX
from bmqtwist.testing.cluster import PORT
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.clients import CampaignProducer
from sim.campaign.copies import replace_files
from sim.campaign.judges import Violation
from sim.campaign.membership import send_to_leader
from sim.campaign.operator_mistakes import misconfigure
from sim.campaign.schedule import Step
from sim.campaign.world import EVERYTHING, CampaignWorld

LIVE_S, ACKED_S, CANCELLED_S = 20.0, 40.0, 20.0
PLANNED = 99  # id of a node that is never added
PERIOD = 3  # of the seeds
Fault = Callable[[CampaignWorld, SimulatedNode, Random], None]


def _lose_storage(world: CampaignWorld, node: SimulatedNode, random: Random) -> None:
    node.crash(power=False, down=random.random())
    world.lose_storage(node, EVERYTHING)


def _restore_copy(world: CampaignWorld, node: SimulatedNode, random: Random) -> None:
    node.crash(power=False, down=random.random())
    if node.name in world.copies:
        replace_files(world, node, "directory", world.copies[node.name])


def _give_wrong_list(world: CampaignWorld, node: SimulatedNode, random: Random) -> None:
    misconfigure(world, node, node, Step("wrong list", 1, 1, 1e6, random.random(), 0.0))  # until all faults end


def _stop_in_change(world: CampaignWorld, node: SimulatedNode, random: Random) -> None:
    """Stop a node after a change was planned; the plan is cancelled when the others have continued."""
    send_to_leader(world, f"ADD {PLANNED} n{PLANNED} tcp://n{PLANNED}:{PORT}")
    world.run(random.random())
    node.crash(power=False, down=None)


FAULTS: dict[str, Fault] = {
    "full": lambda world, node, random: fill_disk(node, 0),
    "read-only": lambda world, node, random: make_read_only(node),
    "ledger full": lambda world, node, random: fail_file(node, LEDGER_SUFFIX, errno.ENOSPC),
    "stopped": lambda world, node, random: node.crash(power=True, down=None),
    "storage lost": _lose_storage,
    "old copy": _restore_copy,
    "wrong list": _give_wrong_list,
    "stopped in a change": _stop_in_change,
}


def check_liveness(world: CampaignWorld) -> bool:
    """Break a minority, and raise a Violation unless the others continue. The caller ends the faults.

    Return False if this seed, or the size of the cluster, has no such faults."""
    seed, size = world.schedule.seed, len(world.machines)
    if seed % PERIOD or size < 3 or len(world.believed()) != 1:
        return False
    random, leader = Random(f"{seed}/{size}/liveness"), world.believed()[0]
    others = [node for node in world.machines if node is not leader]
    random.shuffle(others)
    broken = {node.name: random.choice(list(FAULTS)) for node in [leader, *others][:random.randint(1, (size - 1) // 2)]}
    for name, fault in broken.items():
        world.counts[f"final fault {fault}"] += 1
        FAULTS[fault](world, world.node(name), random)
    producers = [client for client in world.campaign_clients if isinstance(client, CampaignProducer)
                 and ("n1" not in broken or not client.place.startswith("p"))]  # n1: the only upstream node of p1
    for each in producers:
        each.draining = False
        each.post_burst()
        each.draining = True
    begun, committed = world.now, list[object]()
    while missing := _missing(world, broken, committed) or _unanswered(producers):
        if world.now >= begun + (ACKED_S if missing == _unanswered(producers) else LIVE_S):
            raise Violation("L3", f"the minority is broken: {broken}; after {world.now - begun:g} s {missing}")
        if not committed and world.believed():
            uri = f"bmq://bmq.test.persistent.priority/live{world.now:.1f}"
            world.propose(world.believed()[0], AssignQueue(uri, ("__default",), 1), committed.append)
        world.run(0.5)
    world.counts["resumed after, s"] = int(world.now - begun)
    _check_reasons(world)
    for name in broken:
        if not world.node(name).up:
            world.node(name).boot()
    until = world.now + CANCELLED_S
    while world.members is not None and world.members.planned:
        if world.now >= until:
            raise Violation("L3", f"after {CANCELLED_S:g} s the planned change is not cancelled")
        send_to_leader(world, "CANCEL")
        world.run(0.5)
    return True


def _missing(world: CampaignWorld, broken: Collection[str], committed: list[object]) -> str:
    """Return a text about the first condition of L3 that does not hold; "" = all hold."""
    leaders = [node.name for node in world.believed()]
    if len(leaders) != 1 or leaders[0] in broken:
        return f"{leaders} lead"
    if not committed:
        return f"{leaders[0]} has committed no change"
    partitions = range(len(world.replication(world.node(leaders[0])).hosted))
    passive = [index for index in partitions if not world.primaries(index)]
    return f"partitions {passive} have no active primary" if passive else ""


def _unanswered(producers: list[CampaignProducer]) -> str:
    unacked = sum(len(each.unacked) for each in producers)
    return f"{unacked} messages are not answered" if unacked else ""


def _check_reasons(world: CampaignWorld) -> None:
    for node in world.machines:
        if not node.up:
            continue
        cluster = world.cluster(node.name)
        state, _ = cluster.leadership.member_state
        broken_disk = cluster.release is not None and cluster.release.health.reason
        expected = broken_disk or (state.name if state is not MemberState.MEMBER else cluster.unavailable)
        if expected not in cluster.unready:
            raise Violation("L5", f"{node.name} does not serve: '{expected}', but its reason is '{cluster.unready}'")
