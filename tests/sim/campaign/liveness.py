"""Liveness with failing disks: while a minority of the members cannot write, the leader among them, the others continue.

L3  Within LIVE_S another member leads and commits a change, each partition has an active primary, and posted messages are
    answered.

`play.py` calls it for every third seed, when all faults have ended.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from random import Random

from kit.disks import fail_file, fill_disk, make_read_only

from bmqtwist.cluster.changes import AssignQueue
from bmqtwist.storage.ledger_file import LEDGER_SUFFIX
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.clients import CampaignProducer
from sim.campaign.judges import Violation
from sim.campaign.world import CampaignWorld

LIVE_S = 20.0
PERIOD = 3  # of the seeds
FAULTS: dict[str, Callable[[SimulatedNode], None]] = {
    "full": lambda node: fill_disk(node, 0),
    "read-only": make_read_only,
    "ledger full": lambda node: fail_file(node, LEDGER_SUFFIX, errno.ENOSPC),
}


def check_liveness(world: CampaignWorld) -> bool:
    """Break the disks of a minority, and raise a Violation unless the others continue. The caller ends the faults.

    Return False if this seed, or the size of the cluster, has no such faults."""
    seed, size = world.schedule.seed, len(world.machines)
    if seed % PERIOD or size < 3 or len(world.believed()) != 1:
        return False
    random, leader = Random(f"{seed}/{size}/liveness"), world.believed()[0]
    others = [node for node in world.machines if node is not leader]
    random.shuffle(others)
    broken = {node.name: random.choice(list(FAULTS)) for node in [leader, *others][:random.randint(1, (size - 1) // 2)]}
    for name, fault in broken.items():
        world.counts[f"final disk {fault}"] += 1
        FAULTS[fault](world.node(name))
    producers = [client for client in world.campaign_clients if isinstance(client, CampaignProducer)]
    for each in producers:
        each.draining = False
        each.post_burst()
        each.draining = True
    until, committed = world.now + LIVE_S, list[object]()
    while missing := _missing(world, broken, producers, committed):
        if world.now >= until:
            raise Violation("L3", f"{broken} cannot write: after {LIVE_S:g} s {missing}")
        if not committed and world.believed():
            uri = f"bmq://bmq.test.persistent.priority/live{world.now:.1f}"
            world.propose(world.believed()[0], AssignQueue(uri, ("__default",), 1), committed.append)
        world.run(0.5)
    return True


def _missing(world: CampaignWorld, broken: Collection[str], producers: list[CampaignProducer],
             committed: list[object]) -> str:
    """Return a text about the first condition of L3 that does not hold; "" = all hold."""
    leaders = [node.name for node in world.believed()]
    if len(leaders) != 1 or leaders[0] in broken:
        return f"{leaders} lead"
    if not committed:
        return f"{leaders[0]} has committed no change"
    partitions = range(len(world.replication(world.machines[0]).hosted))
    passive = [index for index in partitions if not world.primaries(index)]
    if passive:
        return f"partitions {passive} have no active primary"
    unacked = sum(len(each.unacked) for each in producers)
    return f"{unacked} messages are not answered" if unacked else ""
