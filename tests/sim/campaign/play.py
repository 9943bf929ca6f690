"""One schedule from its first step to the quiet end."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bmqtwist.cluster import leader_term, metadata_log
from bmqtwist.cluster.changes import AssignQueue
from bmqtwist.storage import image, replica
from bmqtwist.testing.config import CLUSTER
from sim.campaign.actions import CLIENT_WEIGHTS, WEIGHTS, act, calm
from sim.campaign.clients import cast
from sim.campaign.elections import ElectionJudge
from sim.campaign.judges import Judge, Violation
from sim.campaign.messages import MessageJudge
from sim.campaign.metadata import MetadataJudge
from sim.campaign.partitions import PartitionJudge
from sim.campaign.relays import RelayJudge
from sim.campaign.schedule import Schedule, draw
from sim.campaign.world import CampaignWorld
from sim.elected import SETTLE_S

JUDGES: tuple[Callable[[CampaignWorld], Judge], ...] = (ElectionJudge, MetadataJudge, PartitionJudge, MessageJudge,
                                                        RelayJudge)
STEPS = 60
SETTLE_STEP_S = 4.0
PATIENT_SEEDS = 8  # each of so many
RUN_RECORDS = 8  # of one message to a replica: an image comes in several parts
RECENT_BYTES = 4000  # of records in memory: who was away for longer gets an image after a compaction


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a schedule. `rule`: what does not hold, "" = all does; `digest`: of everything that happened."""

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
    """Play it; never raises for what it finds."""
    with _log_limits(schedule):
        return _judged(schedule)


def _judged(schedule: Schedule) -> Run:
    world = CampaignWorld(schedule, JUDGES)
    rule = text = ""
    try:
        _play(world, schedule)
    except Violation as violation:
        rule, text = violation.rule, str(violation)
    except Exception as error:  # no input may raise
        rule, text = type(error).__name__, "".join(traceback.format_exception(error)[-6:])
    world.counts["steps"] += len(schedule.steps)
    world.counts["seconds"] += int(world.now)
    world.counts["writes torn"] = sum(node.torn_writes for node in world.machines)
    world.counts["deaths between operations on a disk"] = sum(node.disk_deaths for node in world.machines)
    return Run(schedule, world.digest, world.counts, rule, text)


def _play(world: CampaignWorld, schedule: Schedule) -> None:
    if schedule.clients:
        cast(world)
    world.run(schedule.begin)
    for step in schedule.steps:
        act(world, step)
        world.run(step.wait)
    calm(world)
    _settle(world)
    calm(world)  # who was down meanwhile
    _settle(world)
    believed = world.believed()
    if len(believed) != 1:
        raise Violation("L1", f"{[node.name for node in believed]} lead when all is quiet: "
                        f"{[(node.name, node.up, world.cluster(node.name).leadership.standing) for node in world.machines]}")
    passive = [node.name for node in world.machines if not world.cluster(node.name).leadership.active]
    if passive:
        raise Violation("L1", f"{passive} do not know that {believed[0].name} is active when all is quiet")
    done: list[object] = []
    world.propose(believed[0], AssignQueue("bmq://bmq.test.persistent.priority/last", ("__default",), 1), done.append)
    world.run(2.0)
    if not done:
        raise Violation("L1", f"{believed[0].name} leads, and commits nothing")
    _settle(world)  # a replica that was waited for gets what has come since
    for judge in world.judges:
        judge.quiet()
    standings = {world.cluster(node.name).leadership.standing.leader for node in world.machines}
    if standings != {believed[0].broker.clusters[CLUSTER].node_id}:
        raise Violation("L1", f"{standings} are followed when all is quiet")


def _settle(world: CampaignWorld) -> None:
    """Until all judges are content, or there was time enough; now and then all of that time, for what goes wrong late."""
    until = world.now + SETTLE_S
    while world.now < until:
        world.run(SETTLE_STEP_S)
        if world.schedule.seed % PATIENT_SEEDS and _is_settled(world):
            return


def _is_settled(world: CampaignWorld) -> bool:
    """Whether everybody is up and what has to hold when all is quiet holds."""
    if not all(node.up for node in world.machines) or len(world.believed()) != 1:
        return False
    leader = world.cluster(world.believed()[0].name)
    if any(world.cluster(node.name).leadership.standing.leader != leader.node_id for node in world.machines):
        return False
    try:
        for judge in world.judges:
            judge.quiet()
    except Violation:
        return False
    return True


def campaign(seed: int, size: int, steps: int = STEPS, clients: bool = False) -> Run:
    """Draw a schedule and play it; with `clients` they and proxies take part, and more goes wrong with partitions."""
    return play(draw(seed, size, steps, CLIENT_WEIGHTS if clients else WEIGHTS, clients))
