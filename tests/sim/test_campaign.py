"""Campaigns of random faults: short runs, schedules that once failed, and canaries that a campaign must detect.

`make sim` runs long campaigns with fresh seeds. Runs are in `campaign/play.py`, canaries in `campaign/canaries.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sim.campaign.actions import CLIENT_WEIGHTS, WEIGHTS
from sim.campaign.canaries import CANARIES, PARTITION_CANARIES, inject
from sim.campaign.endurance import Endurance
from sim.campaign.play import Run, campaign, play
from sim.campaign.schedule import LEADER, Schedule, Step, draw
from sim.campaign.shrink import shrink

MEMBERS = {"members": 3, "assign": 6, "isolate leader": 3, "isolate": 2, "heal": 3, "kill": 2}
# Canary -> rules that it breaks first, first seed that is likely to detect it, cluster size; and the weights of the actions,
# if they are not those of a whole campaign: such a schedule has CANARY_STEPS.
CANARY_RUNS: dict[str, tuple[Any, ...]] = {
    "vote not persisted": ("E2", 0, 3), "vote not saved": ("E2", 0, 3), "log check off": ("AssertionError M2 M3", 0, 3),
    "commit rule off": ("M4", 0, 3), "prev check off": ("M1", 0, 3), "conflicts kept": ("M3", 15, 3),
    "quorum check off": ("E5", 1, 3), "lost metadata not noticed": ("M9", 7, 3),
    "lost partitions not noticed": ("R12", 4, 3), "old copy not noticed": ("M8", 0, 3, {"old copy": 3, "assign": 3}),
    "list of the file votes": ("E6", 3, 3), "one list decides": ("M4", 23, 4, MEMBERS),
    "any node counted": ("M4 E4", 6, 3),
    "cluster id not compared": ("M1 R5", 5, 3, {"founded alone": 1, "assign": 3}), "versions not compared": ("V1", 3, 3),
    "promise not persisted": ("A7", 0, 3), "older leases counted": ("R5", 0, 3), "lease expiry ignored": ("A8", 2, 3),
    "generation check off": ("P2", 0, 1), "deduplication lost": ("D2", 16, 3), "old set deleted first": ("R3 R7", 15, 3),
    "own copy ignored": ("D6", 0, 3), "two copies of five": ("D1 D6", 0, 5),
    "damage not repaired": ("R11", 0, 3, {"bit rot": 4, "burst": 1}),
    "previous record not checked": ("R2 R1", 5, 3, {"full": 3, "writes fail": 2, "mend": 4, "burst": 4,
                                                    "isolate busy primary": 2, "heal": 2, "reset": 2})}
# n3 misses records that n1 and n2 commit, n2 loses its files, and n1 is down when n2 and n3 take over
LOST_RECORDS = Schedule(1, 3, 1 << 18, 1 << 20, 1 << 20, 8.0, clients=True, steps=(
    Step("kill", 3, 1, 0.99, 0.5, 3.0), Step("burst", LEADER, 1, 0.5, 0.5, 0.5),
    Step("storage lost", 2, 1, 0.1, 0.55, 0.05), Step("kill", 1, 1, 0.99, 0.5, 8.0)))
# Data of stored messages are damaged at each node in turn, and consumers that reconnect receive stored messages again
DAMAGED_DATA = Schedule(47, 3, 1 << 18, 1 << 20, 1, 6.0, clients=True, journal_bytes=1 << 18, steps=tuple(
    step for node, share, dice in ((2, 0.81, 0.05), (3, 0.9, 0.15), (1, 0.99, 0.25)) for step in (
        Step("burst", LEADER, 1, 0.5, 0.5, 0.3), Step("bit rot", node, 1, share, dice, 0.3),
        *(Step("disconnect", LEADER, 1, 0.5, number / 14 + 0.01, 0.05) for number in range(14)))))
CANARY_STEPS = 24
SHORT_RUNS, SHORT_STEPS, SHORT_SIZES = 50, 10, (1, 2, 3, 3, 5)  # per seed: many short runs, to cover starts of clusters
SUITE_RUNS = 20  # short runs per seed without --seeds
CANARY_SEEDS = 20  # within which each canary is detected


def assert_no_violation(run: Run) -> None:
    """Fail with the rule and the schedule if a run broke an invariant."""
    assert not run.rule, f"{run.text}\n{run.schedule.text()}"


@pytest.mark.spec("cluster", 116)
@pytest.mark.fixed_seeds(2)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_random_faults_without_clients_break_no_invariant(size: int, fresh_seed: int) -> None:
    assert_no_violation(campaign(fresh_seed, size))


@pytest.mark.spec("cluster", 116)
@pytest.mark.fixed_seeds(1)
def test_short_schedules_break_no_invariant(fresh_seed: int, request: pytest.FixtureRequest) -> None:
    for number in range(SHORT_RUNS if request.config.getoption("seeds") else SUITE_RUNS):
        seed, size, clients = SHORT_RUNS * fresh_seed + number, SHORT_SIZES[number % len(SHORT_SIZES)], number % 10 == 9
        assert_no_violation(campaign(seed, size, SHORT_STEPS, clients=clients))


@pytest.mark.spec("cluster", 27)
def test_two_nodes_that_lose_their_votes_before_they_have_a_leader_elect_one() -> None:
    """Once each of them waited for the term of the other one."""
    assert_no_violation(play(Schedule(81000123, 2, 2000, 1 << 20, 1 << 20, 0.9837, steps=(
        Step("pause", 2, 2, 0.7989, 0.7534, 0.0015), Step("transfer", 1, 1, 0.4069, 0.5456, 0.0838),
        Step("isolate leader", 2, 1, 0.344, 0.9517, 0.0398), Step("heal", 2, 2, 0.2148, 0.4353, 0.1639),
        Step("assign", 1, 2, 0.6524, 0.7284, 0.0531), Step("cut", 2, 1, 0.3249, 0.9252, 0.1856),
        Step("assign", 2, 2, 0.6792, 0.8659, 2.654), Step("kill", 1, 2, 0.3865, 0.2829, 0.1693),
        Step("assign", 2, 1, 0.9707, 0.4996, 0.2381), Step("split", 1, 2, 0.7583, 0.4899, 0.1529),
        Step("heal", 1, 1, 0.2945, 0.856, 2.6507), Step("one way", 2, 1, 0.838, 0.4853, 0.6652),
        Step("assign", 0, 1, 0.5952, 0.9945, 3.8041), Step("mend", 1, 2, 0.9778, 0.0881, 0.5999),
        Step("vote lost", 2, 2, 0.6849, 0.5578, 0.0)))))


@pytest.mark.spec("cluster", 116)
def test_a_message_kept_for_another_node_by_a_primary_in_a_second_lease_is_delivered_out_of_order() -> None:
    """Once such a message, kept for an unreachable node, was delivered after newer ones without the out-of-order flag."""
    assert_no_violation(play(Schedule(700054, 3, 1 << 18, 1 << 20, 1 << 20, 2.8195, clients=True, journal_bytes=1 << 18,
                                 spread=True, steps=(
        Step("isolate busy primary", 0, 2, 0.1865, 0.7738, 0.0), Step("heal", 0, 3, 0.324, 0.9824, 0.0),
        Step("isolate primary", 2, 1, 0.7754, 0.6231, 0.7669), Step("isolate busy primary", 0, 1, 0.2829, 0.8675, 3.1703)))))


@pytest.mark.spec("cluster", 116)
def test_unconfirmed_messages_of_a_crashed_node_are_delivered_out_of_order_by_a_former_replica() -> None:
    """Half of the messages were unconfirmed at a node that crashed; a consumer at the next primary received the others."""
    assert_no_violation(play(Schedule(9, 5, 2000, 1 << 20, 1, 5.5432, clients=True, journal_bytes=1 << 18, spread=True,
                                      steps=(
        Step("isolate busy primary", 4, 1, 0.1115, 0.8891, 3.669), Step("lost acks", 1, 3, 0.2521, 0.145, 3.6842)))))


@pytest.mark.spec("cluster", 103)
@pytest.mark.parametrize("schedule", [
    Schedule(2000213, 3, 1 << 18, 1 << 20, 1 << 20, 0.9747, clients=True, journal_bytes=1 << 18, spread=True, steps=(
        Step("disconnect", 2, 2, 0.2171, 0.1558, 0.0), Step("heal", 1, 1, 0.3044, 0.9049, 0.7811),
        Step("assign", 0, 3, 0.9506, 0.9099, 2.0751), Step("full primary", 3, 1, 0.2878, 0.1041, 0.0034),
        Step("elector mode", 0, 1, 0.9607, 0.531, 0.0084), Step("lost acks", 2, 3, 0.0533, 0.1417, 0.1321),
        Step("isolate busy primary", 2, 2, 0.0402, 0.2566, 0.0), Step("stop", 3, 1, 0.7444, 0.3359, 0.3307),
        Step("power", 2, 1, 0.3268, 0.7565, 0.0))),
    Schedule(3000024, 3, 2000, 500, 1, 6.4936, clients=True, journal_bytes=32768, spread=True, steps=(
        Step("restart all", 2, 2, 0.7903, 0.6403, 0.6118), Step("isolate leader", 0, 1, 0.193, 0.6887, 0.0),
        Step("kill primary", 3, 3, 0.8885, 0.9006, 0.0), Step("mend", 0, 2, 0.3321, 0.6408, 2.1774),
        Step("power primary", 2, 2, 0.5539, 0.4442, 0.0)))], ids=["priority", "fanout"])
def test_redeliveries_at_a_proxy_that_changed_its_upstream_are_marked_out_of_order(schedule: Schedule) -> None:
    assert_no_violation(play(schedule))


@pytest.mark.spec("cluster", 116)
def test_a_log_that_cannot_be_read_after_a_disk_fault_ends_with_its_last_written_record() -> None:
    """Once a former primary had a record that was not written, and its disk failed when it read the log again."""
    assert_no_violation(play(Schedule(1000129, 3, 2000, 500, 1 << 20, 5.0383, clients=True, journal_bytes=32768, spread=True,
                                 steps=(
        Step("one way", 2, 1, 0.3179, 0.0242, 0.0821), Step("isolate leader", 2, 3, 0.9632, 0.8689, 0.3835),
        Step("reset", 0, 1, 0.2579, 0.2006, 0.0037), Step("disconnect", 0, 2, 0.8178, 0.1506, 0.1883),
        Step("stop", 3, 2, 0.0332, 0.9519, 0.061), Step("isolate busy primary", 1, 3, 0.7814, 0.1398, 0.9221),
        Step("vote lost", 0, 3, 0.0658, 0.2269, 0.0), Step("syncs fail", 0, 3, 0.732, 0.7121, 1.4287)))))


@pytest.mark.spec("cluster", 116)
def test_an_image_contains_all_records_that_a_replica_shares_with_its_primary() -> None:
    """Once a node with compacted uncommitted records got an image of a rollover before its last committed records."""
    assert_no_violation(play(Schedule(163, 3, 2000, 1 << 20, 1, 7.786, clients=True, journal_bytes=32768, steps=(
        Step("rollover", 0, 1, 0.0296, 0.3539, 0.9347), Step("isolate primary", 0, 3, 0.2469, 0.5193, 3.7809),
        Step("rollover", 1, 3, 0.2332, 0.7056, 0.0525), Step("stop", 3, 2, 0.8925, 0.2426, 3.5867),
        Step("transfer", 2, 1, 0.5925, 0.7682, 2.2354), Step("burst", 3, 2, 0.8145, 0.8434, 3.0174),
        Step("isolate primary", 3, 3, 0.7059, 0.311, 0.0026), Step("half open", 0, 3, 0.9179, 0.1719, 1.7668),
        Step("syncs fail primary", 0, 2, 0.408, 0.2406, 0.0005), Step("one way primary", 2, 2, 0.1979, 0.223, 0.1928)))))


def test_a_node_that_cannot_store_its_appointment_as_primary_is_replaced() -> None:
    """Its ledger is full, so that it does not know that it is the primary, and does not decline."""
    assert_no_violation(campaign(5007, 5))


@pytest.mark.spec("cluster", 27)
def test_two_nodes_that_cannot_store_their_first_list_elect_a_leader_later() -> None:
    assert_no_violation(play(Schedule(90000021, 2, 2000, 0, 1, 1.4464, steps=(
        Step("full", LEADER, 1, 0.5708, 0.5338, 0.0), Step("full", 2, 2, 0.4479, 0.0768, 0.0),
        Step("members", 2, 2, 0.3133, 0.9036, 3.7114)))))


@pytest.mark.spec("cluster", 118)
def test_a_campaign_without_clients_is_determined_by_its_seed() -> None:
    assert campaign(3, 3, 20).digest == campaign(3, 3, 20).digest != campaign(4, 3, 20).digest


@pytest.mark.parametrize("seed, size", [(1, 1), (2, 1), (1, 3)])
def test_random_faults_with_clients_break_no_invariant(seed: int, size: int) -> None:
    assert_no_violation(campaign(seed, size, clients=True))


@pytest.mark.spec("cluster", 118)
def test_a_campaign_with_clients_is_determined_by_its_seed() -> None:
    assert campaign(3, 1, 20, clients=True).digest == campaign(3, 1, 20, clients=True).digest
    assert campaign(3, 3, 10, clients=True).digest == campaign(3, 3, 10, clients=True).digest


@pytest.mark.spec("cluster", 117)
@pytest.mark.parametrize("name", CANARY_RUNS)
def test_a_campaign_detects_each_canary(name: str) -> None:
    rules, first, size, *weights = CANARY_RUNS[name]
    clients = name in PARTITION_CANARIES
    with inject(name):
        for seed in range(first, first + CANARY_SEEDS):
            run = (play(draw(seed, size, CANARY_STEPS, *weights, clients)) if weights else
                   campaign(seed, size, clients=clients))
            if run.rule:
                assert run.rule in rules.split()
                return
    raise AssertionError(f"{CANARY_SEEDS} campaigns have not detected it")


@pytest.mark.spec("cluster", 117)
@pytest.mark.parametrize("name, rule, schedule", [
    ("doubts ignored", "R6", LOST_RECORDS), ("checksum not verified", "D10", DAMAGED_DATA),
    ("promise not checked", "A7", draw(0, 3, 12, {"pause primary": 4, "pause": 2, "burst": 3}, True))])
def test_a_schedule_detects_each_rare_canary(name: str, rule: str, schedule: Schedule) -> None:
    assert_no_violation(play(schedule))
    with inject(name):
        assert play(schedule).rule == rule


def test_every_canary_has_a_test() -> None:
    assert {*CANARIES, *PARTITION_CANARIES} == {
        *CANARY_RUNS, "doubts ignored", "checksum not verified", "promise not checked"}


@pytest.mark.campaign
def test_campaigns_with_clients_perform_all_actions() -> None:
    counts = sum((campaign(seed, 3, clients=True).counts for seed in range(9)), start=Counter[str]())
    assert not [kind for kind in CLIENT_WEIGHTS if not counts[kind]]
    assert min(counts[each] for each in ("writes torn", "bits flipped", "kills between disk operations", "relayed",
                                         "posted again", "truncations")) > 0


@pytest.mark.campaign
def test_campaigns_without_clients_perform_all_actions() -> None:
    counts = sum((campaign(seed, 3).counts for seed in range(12)), start=campaign(20, 5).counts)
    assert not [kind for kind in WEIGHTS if not counts[kind]]
    assert min(counts[each] for each in ("elected", "votes", "commits", "changes done", "votes lost")) > 0


@pytest.mark.spec("cluster", 116)
def test_a_failed_schedule_is_shrunk_to_a_smaller_one_that_breaks_the_same_rule() -> None:
    with inject("log check off"):
        failed = next(run for seed in range(CANARY_SEEDS) if (run := campaign(seed, 3)).rule)
        smallest, played = shrink(failed, runs_max=25)
        assert smallest.rule == failed.rule and len(smallest.schedule.steps) < len(failed.schedule.steps) and played <= 25
        parsed = Schedule.read(smallest.schedule.text())
        assert parsed == smallest.schedule and play(parsed).digest == smallest.digest


def test_shrinking_removes_unnecessary_steps_and_waits() -> None:
    wanted = {3, 11}

    def run_schedule(schedule: Schedule) -> Run:
        remaining = {int(step.share) for step in schedule.steps}
        return Run(schedule, "", failed.counts, "E1" if wanted <= remaining else "")
    steps = tuple(Step("kill", LEADER, 1, float(number), 0.0, 1.0) for number in range(20))
    failed = Run(Schedule(1, 3, 0, 0, 0, 0.0, steps), "", campaign(1, 1, 1).counts, "E1")
    smallest, _ = shrink(failed, run_schedule)
    assert [(step.share, step.wait) for step in smallest.schedule.steps] == [(3.0, 0.0), (11.0, 0.0)]


def test_resource_usage_does_not_grow_after_periods_of_faults() -> None:
    """A short endurance run; `python -m sim.campaign.endurance` runs for a simulated day (`make sim`)."""
    endurance = Endurance(2, period_s=120.0, warm_up=4)
    endurance.run(2 * 120.0)
    endurance.world.finish()
    assert sum(endurance.faults.values()) > 20
