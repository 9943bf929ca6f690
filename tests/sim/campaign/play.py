"""Run of one schedule: its steps, the end of all faults, and the check of the final state.

L1  In the end exactly one node leads, all nodes follow it, and it commits a change. `liveness.py` has L3.
L4  In the end all nodes are members with intact storage, of one cluster id.

Called by `campaign/__main__.py`, `shrink.py` and `test_campaign.py`. The steps are drawn by `schedule.py` and performed by
`actions.py`.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bmqtwist.cluster import leader_term, metadata_log
from bmqtwist.cluster.changes import AssignQueue
from bmqtwist.cluster.electorate import MemberState
from bmqtwist.storage import image, replica
from bmqtwist.testing.config import CLUSTER
from sim.campaign.actions import CLIENT_WEIGHTS, WEIGHTS, act, end_faults
from sim.campaign.clients import create_clients
from sim.campaign.elections import ElectionJudge
from sim.campaign.judges import Judge, Violation
from sim.campaign.liveness import check_liveness
from sim.campaign.messages import MessageJudge
from sim.campaign.metadata import MetadataJudge
from sim.campaign.partitions import PartitionJudge
from sim.campaign.relays import RelayJudge
from sim.campaign.schedule import Schedule, draw
from sim.campaign.world import CampaignWorld
from sim.elected import SETTLE_S

JUDGES: tuple[Callable[[CampaignWorld], Judge], ...] = (ElectionJudge, MetadataJudge, PartitionJudge, MessageJudge,
                                                        RelayJudge)
STEPS = 60  # of a schedule
SETTLE_STEP_S = 4.0
FULL_WAIT_SEEDS = 8  # every 8th seed waits for all of SETTLE_S, to find late violations
RUN_RECORDS = 8  # records in a message to a replica, so that an image has several parts
RECENT_BYTES = 4000  # records kept in memory; a replica that lacks more needs an image after a compaction


@dataclass(frozen=True, slots=True)
class Run:
    """Outcome of a schedule. `rule`: the broken invariant, "" = none; `digest`: of the trace of the simulation."""

    schedule: Schedule
    digest: str
    counts: Counter[str]
    rule: str = ""
    text: str = ""


@contextmanager
def _log_limits(schedule: Schedule) -> Iterator[None]:
    usual, run_records = (metadata_log.RETAINED_BYTES, leader_term.MESSAGE_BYTES), replica.RUN_RECORDS_MAX
    read_records, recent_bytes = replica.MESSAGE_RECORDS_MAX, replica.RECENT_BYTES
    if schedule.clients:
        replica.RUN_RECORDS_MAX = replica.MESSAGE_RECORDS_MAX = image.MESSAGE_RECORDS_MAX = RUN_RECORDS  # type: ignore[misc]
        replica.RECENT_BYTES = RECENT_BYTES
    metadata_log.RETAINED_BYTES, leader_term.MESSAGE_BYTES = schedule.retained_bytes, schedule.message_bytes
    try:
        yield
    finally:
        metadata_log.RETAINED_BYTES, leader_term.MESSAGE_BYTES = usual
        replica.RUN_RECORDS_MAX = run_records  # type: ignore[misc]
        replica.MESSAGE_RECORDS_MAX = image.MESSAGE_RECORDS_MAX = read_records  # type: ignore[misc]
        replica.RECENT_BYTES = recent_bytes


def play(schedule: Schedule) -> Run:
    """Run a schedule; a violation or exception is part of the result."""
    with _log_limits(schedule):
        return _run(schedule)


def _run(schedule: Schedule) -> Run:
    world = CampaignWorld(schedule, JUDGES)
    rule = text = ""
    try:
        _perform(world, schedule)
    except Violation as violation:
        rule, text = violation.rule, str(violation)
    except Exception as error:  # a machine or the broker raised: a violation, too
        rule, text = type(error).__name__, "".join(traceback.format_exception(error)[-6:])
    world.counts["steps"] += len(schedule.steps)
    world.counts["seconds"] += int(world.now)
    world.counts["writes torn"] = sum(node.torn_writes for node in world.machines)
    world.counts["kills between disk operations"] = sum(node.disk_deaths for node in world.machines)
    return Run(schedule, world.digest, world.counts, rule, text)


def _perform(world: CampaignWorld, schedule: Schedule) -> None:
    if schedule.clients:
        create_clients(world)
    world.run(schedule.begin)
    if schedule.old_nodes:  # an upgrade begins with a cluster that works
        until = world.now + SETTLE_S
        while world.now < until and not any(world.cluster(node.name).leadership.active for node in world.machines):
            world.run(SETTLE_STEP_S)
    for step in schedule.steps:
        act(world, step)
        world.run(step.wait)
    end_faults(world)
    _run_to_final_state(world)
    end_faults(world)  # also at nodes that were down before
    _run_to_final_state(world)
    if check_liveness(world):
        end_faults(world)
        _run_to_final_state(world)
    believed = world.believed()
    if len(believed) != 1:
        raise Violation("L1", f"{[node.name for node in believed]} lead in the end: "
                        f"{[(node.name, node.up, world.cluster(node.name).leadership.standing) for node in world.machines]}")
    passive = [node.name for node in world.machines if not world.cluster(node.name).leadership.active]
    if passive:
        raise Violation("L1", f"{passive} do not know in the end that {believed[0].name} is active")
    done: list[object] = []
    world.propose(believed[0], AssignQueue("bmq://bmq.test.persistent.priority/last", ("__default",), 1), done.append)
    world.run(2.0)
    if not done:
        raise Violation("L1", f"{believed[0].name} leads, but does not commit a change")
    _run_to_final_state(world)  # replicas receive the records of that change
    for judge in world.judges:
        judge.check_final_state()
    states = {node.name: world.cluster(node.name).leadership.member_state for node in world.machines}
    lists = {repr(world.cluster(node.name).metadata.state.members) for node in world.machines}
    if world.change is not None or len(lists) != 1 or set(states.values()) != {(MemberState.MEMBER, "")} or (
            len(world.machines) > 1 and world.members is None):
        raise Violation("L4", f"the states of the nodes are {states}, their lists {lists}, the change in progress "
                        f"{world.change}")
    standings = {world.cluster(node.name).leadership.standing.leader for node in world.machines}
    if standings != {believed[0].broker.clusters[CLUSTER].node_id}:
        raise Violation("L1", f"nodes follow different leaders in the end: {standings}")


def _run_to_final_state(world: CampaignWorld) -> None:
    """Let time pass until the final state is reached, at most SETTLE_S; with some seeds wait all of that time."""
    until = world.now + SETTLE_S
    while world.now < until:
        world.run(SETTLE_STEP_S)
        if world.schedule.seed % FULL_WAIT_SEEDS and _is_final(world):
            return


def _is_final(world: CampaignWorld) -> bool:
    """Return whether all nodes are up and the judges accept the state as final."""
    if world.change is not None or not all(node.up for node in world.machines) or len(world.believed()) != 1:
        return False
    if len(world.machines) > 1 and world.members is None:  # the features of this release are not active yet
        return False
    leader = world.cluster(world.believed()[0].name)
    if any(world.cluster(node.name).leadership.standing.leader != leader.node_id for node in world.machines):
        return False
    try:
        for judge in world.judges:
            judge.check_final_state()
    except Violation:
        return False
    return all(world.cluster(node.name).leadership.member_state[0] is MemberState.MEMBER for node in world.machines)


def campaign(seed: int, size: int, steps: int = STEPS, clients: bool = False) -> Run:
    """Draw a schedule and run it; `clients`: with clients, proxies, and faults of partitions."""
    return play(draw(seed, size, steps, CLIENT_WEIGHTS if clients else WEIGHTS, clients))
