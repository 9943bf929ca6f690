"""Releases in a campaign: members of the previous release, upgrades, rollbacks, and rollbacks that come too late.

`Schedule.old_nodes` has the members that begin with the previous release. While the features of this release are inactive
each node may be upgraded and rolled back. A rollback after that is refused, by the node itself or by the other members. It
ends after LATE_S, or with all faults, when `upgrade_all` installs this release everywhere.

V1  A node of a release without the active features is not connected with another one.

`actions.py` has the action.
"""

from __future__ import annotations

from functools import partial

from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.versions import OWN, Versions
from sim.campaign.judges import Violation
from sim.campaign.schedule import Step
from sim.campaign.world import LEGACY, PREVIOUS, CampaignWorld

LATE_S = 8.0
LATE = 0.5  # share of the rollbacks after the activation that are tried


def change_release(world: CampaignWorld, node: SimulatedNode, other: SimulatedNode, step: Step) -> None:
    """Stop or kill a node, and start it with the other release."""
    if not node.up or node.paused or len(world.machines) < 2 or world.faults_ended:
        return
    if node.versions is not OWN:
        world.counts["upgrades"] += 1
        _install(node, OWN, step)
    elif not any(world.cluster(each.name).metadata.state.features for each in world.machines if each.up):
        if world.schedule.old_nodes:
            world.counts["rollbacks"] += 1
            _install(node, (PREVIOUS, LEGACY)[step.dice < 0.5], step)
    elif step.share < LATE and world.change is None and node.name in set(world.intact_members()) - world.mistaken.keys():
        world.counts["late rollbacks"] += 1
        _install(node, (PREVIOUS, LEGACY)[step.dice < 0.5], step)
        world.at(world.now + LATE_S, partial(_end_late_rollback, world, node, node.run_number))


def _install(node: SimulatedNode, versions: Versions, step: Step) -> None:
    node.versions = versions
    if step.dice < 0.3:
        node.crash(power=False, down=step.share * 3)
    else:
        node.stop(down=step.share * 3)


def _upgrade(node: SimulatedNode) -> None:
    if node.versions is not OWN:
        node.versions = OWN
        node.crash(power=False, down=0.1)


def _end_late_rollback(world: CampaignWorld, node: SimulatedNode, run: int) -> None:
    """Check V1, unless the node still stops, and upgrade it again. `run`: its last run with this release."""
    connected = [each.name for each in world.machines if each is not node and each.up and node.up
                 and world.cluster(each.name).leadership.is_up(int(node.name[1:]))]
    if connected and node.versions is not OWN and node.run_number != run:
        raise Violation("V1", f"{node.name} lacks active features, and is connected with {connected}")
    _upgrade(node)


def upgrade_all(world: CampaignWorld) -> None:
    """Install this release at all nodes."""
    for node in world.machines:
        _upgrade(node)
